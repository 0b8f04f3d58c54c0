"""The steps that read a value; `avro.resolution` makes them, and the compiled decoder copies them into C structs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import pyarrow as pa

MAX_EMPTY_ITEMS: Final = 1024
"""The maximum number of items without bytes (nulls, records without fields) in the arrays of a payload."""


class Code(IntEnum):
    """The action of a step; in the order of ``_decode_native.pxd``."""

    NULL = 0
    BOOLEAN = 1
    INT = 2  # 32 bits
    LONG = 3
    MILLIS = 4  # read as microseconds
    INT_TO_FLOAT = 5
    INT_TO_DOUBLE = 6
    FLOAT = 7
    FLOAT_TO_DOUBLE = 8
    DOUBLE = 9
    TEXT = 10
    BINARY = 11
    FIXED = 12  # `size` bytes
    DECIMAL = 13  # of `size` bytes; if `size` is negative, the bytes begin with their size
    ENUM = 14
    RECORD = 15
    ARRAY = 16
    MAP = 17
    UNION = 18  # one step per branch
    MEMBER = 19  # one field of a struct that represents a union; the others are NULL
    DEFAULT = 20  # the step reads `data`
    FAIL = 21
    SEQUENCE = 22  # a sequence of steps that skip
    SKIP_BYTES = 23  # `size` of them
    SKIP_VARINTS = 24  # `size` of them
    SKIP_SIZED = 25  # `size` texts or binary values
    SKIP_BLOCKS = 26  # an array or a map


@dataclass(frozen=True, slots=True)
class Step:
    """One action on the next bytes.

    Attributes:
        slot: the field of the enclosing struct that the step fills; negative if it fills none.
        size: see `Code`.
        is_int: whether the bytes are an Avro ``int``, regardless of the type that is read.
        is_empty: of an array: whether its items have no bytes.
        data: an encoded default value.
        symbols: of an enum: the reader's text for each symbol; None if the reader does not know it.
        shift: the number of digits by which a decimal grows.
        written: of an enum: the writer's symbols.
        text: of `FAIL`: the reason.
    """

    code: Code
    name: str = ""
    slot: int = -1
    steps: tuple[Step, ...] = ()
    size: int = 0
    is_int: bool = False
    is_empty: bool = False
    data: bytes = b""
    symbols: tuple[bytes | None, ...] = ()
    precision: int = 0
    shift: int = 0
    written: tuple[str, ...] = ()
    text: str = ""


def check_step(step: Step, type_: pa.DataType | None) -> None:
    """Check that the compiled loop can execute a step, and its inner steps, to fill an array of a type.

    Only this function determines which step may directly contain which other step: the loop itself checks nothing.

    Args:
        step: the step of a value.
        type_: the type of the array to fill; None if the step skips the value.

    Raises:
        AssertionError: the step would corrupt the array, or consume other bytes than the value's; that is an error of
            the planner, never of a schema.
    """
    code, within = step.code, step.steps
    fits = code in _SKIPS and step.slot < 0 if type_ is None else code in _FILLS and _FILLS[code](type_)
    if code in (Code.RECORD, Code.SEQUENCE, Code.SKIP_BLOCKS):
        _check(fits, step, type_)
    elif code == Code.UNION:
        # The loop resolves only one union per step.
        _check(fits and all(one.code != Code.UNION for one in within), step, type_)
    else:
        _check(fits and len(within) == (code in (Code.ARRAY, Code.MAP, Code.MEMBER, Code.DEFAULT)), step, type_)
    if type_ is not None and code in (Code.RECORD, Code.MEMBER):
        slots = sorted(one.slot for one in within if one.slot >= 0)
        # Each column gets one value per row; `MEMBER` adds the NULLs of the other columns.
        _check(slots == list(range(type_.num_fields)) if code == Code.RECORD else True, step, type_)
        for one in within:
            _check(one.slot < type_.num_fields, step, type_)
            check_step(one, type_.field(one.slot).type if one.slot >= 0 else None)
        return
    if type_ is not None and code in (Code.ARRAY, Code.MAP):
        type_ = type_.value_type if code == Code.ARRAY else type_.item_type
    for one in within:
        check_step(one, type_)


def _check(fits: bool, step: Step, type_: pa.DataType | None) -> None:
    if not fits:
        steps = ", ".join(one.code.name for one in step.steps)
        raise AssertionError(f"step {step.code.name} with steps ({steps}) within cannot fill {type_}")


def _is_long(type_: pa.DataType) -> bool:
    return bool(pa.types.is_int64(type_) or (pa.types.is_timestamp(type_) and type_.unit == "us"))


_FILLS: Final[Mapping[Code, Callable[[pa.DataType], bool]]] = {
    Code.NULL: lambda _: True,
    Code.BOOLEAN: pa.types.is_boolean,
    Code.INT: lambda type_: pa.types.is_int32(type_) or pa.types.is_date32(type_),
    Code.LONG: _is_long,
    Code.MILLIS: _is_long,
    Code.INT_TO_FLOAT: pa.types.is_float32,
    Code.INT_TO_DOUBLE: pa.types.is_float64,
    Code.FLOAT: pa.types.is_float32,
    Code.FLOAT_TO_DOUBLE: pa.types.is_float64,
    Code.DOUBLE: pa.types.is_float64,
    Code.TEXT: pa.types.is_string,
    Code.BINARY: pa.types.is_binary,
    Code.FIXED: pa.types.is_binary,
    Code.DECIMAL: pa.types.is_decimal128,
    Code.ENUM: pa.types.is_string,
    Code.RECORD: pa.types.is_struct,
    Code.ARRAY: pa.types.is_list,
    Code.MAP: pa.types.is_map,
    Code.UNION: lambda _: True,
    Code.MEMBER: pa.types.is_struct,
    Code.DEFAULT: lambda _: True,
    Code.FAIL: lambda _: True,
}
_SKIPS: Final = frozenset(
    (Code.UNION, Code.SEQUENCE, Code.SKIP_BYTES, Code.SKIP_VARINTS, Code.SKIP_SIZED, Code.SKIP_BLOCKS)
)


# Reasons why a payload cannot be decoded.
ENDS: Final = "the payload ends within it"
NO_END: Final = "a number does not end"
NO_INT: Final = "an int needs more than 32 bits"
NO_BOOLEAN: Final = "a boolean is neither 0 nor 1"
NO_UTF8: Final = "the text is not UTF-8"
NO_LENGTH: Final = "a length is negative"
NO_BRANCH: Final = "the union has no such branch"
NO_SYMBOL: Final = "the enum has no such symbol"
NO_DECIMAL: Final = "the decimal does not fit its precision"
NO_TIME: Final = "the time does not fit 64 bits in microseconds"
TOO_MANY: Final = "an array or a map has more items than bytes"


def unknown_symbol(symbol: str) -> str:
    """Return the reason for a symbol that the reader does not know."""
    return f"the symbol {symbol} is not in the reader's schema, which has no default for it"
