"""The steps that compiled loops execute: their codes, and a check of the columns that they read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Any, Final

import pyarrow as pa

NO_UTF8: Final = "has a text in a row that is not UTF-8; make_valid_utf8 replaces such bytes"


def codes_of(compiled: Iterable[IntEnum]) -> dict[str, int]:
    """Return the codes of a compiled loop by name; names in C may end with an underscore."""
    return {code.name.rstrip("_"): code.value for code in compiled}


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
        steps = ", ".join(one.code for one in step.steps)
        raise AssertionError(f"write step {step.code} with steps ({steps}) within cannot read {type_}")
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
