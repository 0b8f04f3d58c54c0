"""Checks of the steps that compiled loops execute: of their codes, and of the columns that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any

import pyarrow as pa


def check_codes(codes: type[IntEnum], compiled: Iterable[IntEnum]) -> None:
    """Check that a compiled loop, which has the codes as a C enum, was built with the same ones.

    Names in C may end with an underscore.

    Raises:
        ImportError: the codes differ: the module is older or newer than the package.

    Example:
        >>> from spark_mq_source.values.json.steps import Code
        >>> check_codes(Code, Code)
        >>> check_codes(Code, [])
        Traceback (most recent call last):
        ...
        ImportError: the compiled module was built from another version of this package: build it again
    """
    if [(code.name, code.value) for code in codes] != [(code.name.rstrip("_"), code.value) for code in compiled]:
        raise ImportError("the compiled module was built from another version of this package: build it again")


def check_write_step(
    step: Any,  # noqa: ANN401 - the `WriteStep` of an encoding
    type_: pa.DataType,
    reads: Mapping[Any, Callable[[pa.DataType], bool]],
) -> None:
    """Check that a compiled encoder can execute a step, and its inner steps, on an array of a type.

    Args:
        step: the step of a value.
        type_: the type of the array; null without a column.
        reads: returns for each code whether the encoder's branch reads arrays of a type.

    Raises:
        AssertionError: the step would read memory outside the array; an error of the planner, never of a schema.
    """
    types = _types_of(step, type_)
    if step.code not in reads or not reads[step.code](type_) or len(types) != len(step.steps):
        steps = ", ".join(one.code.name for one in step.steps)
        raise AssertionError(f"write step {step.code.name} with steps ({steps}) within cannot read {type_}")
    if pa.types.is_nested(type_):
        for one, inside in zip(step.steps, types, strict=True):
            check_write_step(one, inside, reads)


def _types_of(step: Any, type_: pa.DataType) -> list[pa.DataType]:  # noqa: ANN401 - as above
    """Return the types of the arrays that the encoder binds to the inner steps (`RowEncoder.lay_out`)."""
    if pa.types.is_list(type_):
        return [type_.value_type]
    if pa.types.is_map(type_):
        return [type_.key_type, type_.item_type]
    fields = [field.type for field in type_] if pa.types.is_struct(type_) else []
    return [fields[one.column] if 0 <= one.column < len(fields) else pa.null() for one in step.steps]
