"""The steps that read a value, which both decoders follow: `avro_resolution` makes them.

The compiled decoder lays them out as C structs, its twin walks them as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

MOST_EMPTY_ITEMS: Final = 1024
"""How many items without a byte of their own (nulls, records without fields) the arrays of a payload may have."""


class Code(IntEnum):
    """What a step does; in the order of ``_avro_native.pxd``."""

    NULL = 0
    BOOLEAN = 1
    INT = 2  # 32 bits
    LONG = 3
    MILLIS = 4  # as microseconds
    INT_TO_FLOAT = 5
    INT_TO_DOUBLE = 6
    FLOAT = 7
    FLOAT_TO_DOUBLE = 8
    DOUBLE = 9
    TEXT = 10
    BINARY = 11
    FIXED = 12  # `size` bytes
    DECIMAL = 13  # of `size` bytes, or of as many as it says itself where that is negative
    ENUM = 14
    RECORD = 15
    ARRAY = 16
    MAP = 17
    UNION = 18  # a step a branch
    MEMBER = 19  # one field of a struct that stands for a union, the others NULL
    DEFAULT = 20  # the step reads `data`
    FAIL = 21
    SEQUENCE = 22  # of steps that skip
    SKIP_BYTES = 23  # `size` of them
    SKIP_VARINTS = 24  # `size` of them
    SKIP_SIZED = 25  # `size` texts or binary values
    SKIP_BLOCKS = 26  # an array or a map


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do with the next bytes.

    Attributes:
        code: what.
        name: the field that it reads, for errors.
        slot: which field of the enclosing struct it fills; negative if it fills none.
        key: the name of that field.
        steps: the steps within it.
        size: see `Code`.
        is_int: whether the bytes are an ``int`` of Avro, whatever becomes of it.
        is_empty: of an array: its items have no bytes.
        data: a default value, encoded.
        symbols: of an enum: the reader's text of each symbol; None for one that the reader does not know.
        precision: of a decimal.
        scale: of a decimal, as it is wanted.
        shift: by how many digits a decimal grows.
        written: of an enum: the writer's symbols.
        text: of `FAIL`: why.
    """

    code: Code
    name: str = ""
    slot: int = -1
    key: str = ""
    steps: tuple[Step, ...] = ()
    size: int = 0
    is_int: bool = False
    is_empty: bool = False
    data: bytes = b""
    symbols: tuple[bytes | None, ...] = ()
    precision: int = 0
    scale: int = 0
    shift: int = 0
    written: tuple[str, ...] = ()
    text: str = ""


# Why a payload cannot be decoded, as both decoders say it.
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
    """The reason for a symbol that the reader does not know."""
    return f"the symbol {symbol} is not in the reader's schema, which has no default for it"
