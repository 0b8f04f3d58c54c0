"""The steps that read a value; `avro.resolution` makes them, and the compiled decoder copies them into C structs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

MAX_EMPTY_ITEMS: Final = 1024
"""The maximum number of items without bytes (nulls, records without fields) in the arrays of a payload."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action on the next bytes.

    Attributes:
        code: the action; ``_decode_native.pxd`` has all codes.
        slot: the field of the enclosing struct that the step fills; negative if it fills none.
        size: see the codes.
        is_int: whether the bytes are an Avro ``int``, regardless of the type that is read.
        is_empty: of an array: whether its items have no bytes.
        data: an encoded default value.
        symbols: of an enum: the reader's text for each symbol; None if the reader does not know it.
        shift: the number of digits by which a decimal grows.
        written: of an enum: the writer's symbols.
        text: of `FAIL`: the reason.
    """

    code: str
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
    if code in ("RECORD", "SEQUENCE", "SKIP_BLOCKS"):
        _check(fits, step, type_)
    elif code == "UNION":
        # The loop resolves only one union per step.
        _check(fits and all(one.code != "UNION" for one in within), step, type_)
    else:
        _check(fits and len(within) == (code in ("ARRAY", "MAP", "MEMBER", "DEFAULT")), step, type_)
    if type_ is not None and code in ("RECORD", "MEMBER"):
        slots = sorted(one.slot for one in within if one.slot >= 0)
        # Each column gets one value per row; `MEMBER` adds the NULLs of the other columns.
        _check(slots == list(range(type_.num_fields)) if code == "RECORD" else True, step, type_)
        for one in within:
            _check(one.slot < type_.num_fields, step, type_)
            check_step(one, type_.field(one.slot).type if one.slot >= 0 else None)
        return
    if type_ is not None and code in ("ARRAY", "MAP"):
        type_ = type_.value_type if code == "ARRAY" else type_.item_type
    for one in within:
        check_step(one, type_)


def _check(fits: bool, step: Step, type_: pa.DataType | None) -> None:
    if not fits:
        steps = ", ".join(one.code for one in step.steps)
        raise AssertionError(f"step {step.code} with steps ({steps}) within cannot fill {type_}")


def _is_long(type_: pa.DataType) -> bool:
    return bool(pa.types.is_int64(type_) or (pa.types.is_timestamp(type_) and type_.unit == "us"))


_FILLS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "NULL": lambda _: True,
    "BOOLEAN": pa.types.is_boolean,
    "INT": lambda type_: pa.types.is_int32(type_) or pa.types.is_date32(type_),
    "LONG": _is_long,
    "MILLIS": _is_long,
    "INT_TO_FLOAT": pa.types.is_float32,
    "INT_TO_DOUBLE": pa.types.is_float64,
    "FLOAT": pa.types.is_float32,
    "FLOAT_TO_DOUBLE": pa.types.is_float64,
    "DOUBLE": pa.types.is_float64,
    "TEXT": pa.types.is_string,
    "BINARY": pa.types.is_binary,
    "FIXED": pa.types.is_binary,
    "DECIMAL": pa.types.is_decimal128,
    "ENUM": pa.types.is_string,
    "RECORD": pa.types.is_struct,
    "ARRAY": pa.types.is_list,
    "MAP": pa.types.is_map,
    "UNION": lambda _: True,
    "MEMBER": pa.types.is_struct,
    "DEFAULT": lambda _: True,
    "FAIL": lambda _: True,
}
_SKIPS: Final = frozenset(("UNION", "SEQUENCE", "SKIP_BYTES", "SKIP_VARINTS", "SKIP_SIZED", "SKIP_BLOCKS"))


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
