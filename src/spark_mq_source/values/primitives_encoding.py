"""Columns as the primitives of Pulsar's registry, with the layouts of the table in `primitives`."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.primitives import primitive_type_of

_DAY_US: Final = 86_400_000_000


class PrimitiveEncoder:
    r"""Encodes single values in one layout; equal values always give equal bytes.

    Args:
        kind: a name from the table in `primitives`.
        type_: the column's type: `primitives.primitive_type_of`, or a narrower integer or float.

    Raises:
        OptionError: the column has another type.

    Example:
        >>> PrimitiveEncoder("int16", pa.int8()).encode(pa.array([1, None], pa.int8())).to_pylist()
        [b'\x00\x01', None]
    """

    def __init__(self, kind: str, type_: pa.DataType, column: str = "value") -> None:
        self._kind = kind
        self._column = column
        self._type = primitive_type_of(kind)
        if not _fits(type_, self._type):
            raise OptionError(f"column {column} is {type_}, and {column}Format={kind} is {self._type}: cast it")

    def encode(self, values: pa.Array) -> pa.Array:
        """Encode the values as a binary array; NULL becomes NULL.

        Raises:
            UnwritableRowError: a value is out of the layout's range.
        """
        if self._kind == "string":
            return values
        code, words = _WRITERS[self._kind]
        try:
            numbers = array(code, words(pc.cast(values, self._type)))
        except OverflowError as error:
            raise UnwritableRowError(f"column {self._column} has a value outside the range of {self._kind}") from error
        if sys.byteorder == "little":
            numbers.byteswap()
        return _cells(numbers, len(values), values)


def _fits(type_: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_signed_integer(type_) and pa.types.is_signed_integer(wanted):
        return bool(type_.bit_width <= wanted.bit_width)
    return bool(type_.equals(wanted) or (pa.types.is_float32(type_) and pa.types.is_float64(wanted)))


def _cells(numbers: array[int], rows: int, values: pa.Array) -> pa.Array:
    size = numbers.itemsize * len(numbers) // rows if rows else 0
    offsets = array("i", range(0, size * rows + 1, size)) if rows else array("i", [0])
    cells = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(numbers)])
    if not values.null_count:
        return cells
    return pc.if_else(pc.is_valid(values), cells, pa.nulls(1, pa.binary())[0])


def _plain(values: pa.Array) -> list[int]:
    return [number or 0 for number in values.to_pylist()]


def _microseconds(values: pa.Array) -> list[int]:
    return _plain(values.view(pa.int64()))


def _milliseconds(values: pa.Array) -> list[int]:
    return [us // 1000 for us in _microseconds(values)]


def _instants(values: pa.Array) -> list[int]:
    words = []
    for us in _microseconds(values):
        seconds, rest = divmod(us, 1_000_000)
        words += [_signed_half(seconds >> 32), _signed_half(seconds), rest * 1000]
    return words


def _signed_half(word: int) -> int:
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _days(values: pa.Array) -> list[int]:
    return _plain(values.view(pa.int32()))


def _days_and_times(values: pa.Array) -> list[int]:
    words = []
    for us in _microseconds(values):
        day, rest = divmod(us, _DAY_US)
        words += [day, rest * 1000]
    return words


_WRITERS: Final[Mapping[str, tuple[str, Callable[[pa.Array], list[int]]]]] = {
    "bool": ("b", _plain),
    "int8": ("b", _plain),
    "int16": ("h", _plain),
    "int32": ("i", _plain),
    "int64": ("q", _plain),
    "float": ("f", _plain),
    "double": ("d", _plain),
    "date": ("q", _milliseconds),
    "timestamp": ("q", _milliseconds),
    "time": ("q", _plain),
    "instant": ("i", _instants),
    "local_date": ("q", _days),
    "local_time": ("q", _plain),
    "local_date_time": ("q", _days_and_times),
}
"""The type code (`array`) of the numbers, big-endian in the payload, and their conversion from a column, 0 for NULL."""
