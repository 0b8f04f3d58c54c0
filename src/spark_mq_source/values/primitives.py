"""The primitive schemas of Pulsar's registry: each payload is one value of a fixed layout, a cell of a Spark column.

The layouts are those of the Java client (``org.apache.pulsar.client.impl.schema``, 4.0); numbers are big-endian:

| kind | Java's class | payload | Spark |
|---|---|---|---|
| ``bool`` | ``BooleanSchema`` | one byte, true unless 0 | ``boolean`` |
| ``int8`` ``int16`` ``int32`` ``int64`` | ``ByteSchema`` ``ShortSchema`` ``IntSchema`` ``LongSchema`` | 1, 2, 4, 8 bytes | ``tinyint`` ``smallint`` ``int`` ``bigint`` |
| ``float`` ``double`` | ``FloatSchema`` ``DoubleSchema`` | IEEE 754 bits, 4 or 8 bytes | ``float`` ``double`` |
| ``string`` | ``StringSchema`` | UTF-8 | ``string`` |
| ``date`` ``timestamp`` | ``DateSchema`` ``TimestampSchema`` | int64: ms since 1970 | ``timestamp`` |
| ``time`` | ``TimeSchema`` | int64: ms since 1970 | ``bigint`` |
| ``instant`` | ``InstantSchema`` | int64: seconds since 1970; int32: ns | ``timestamp`` |
| ``local_date`` | ``LocalDateSchema`` | int64: days since 1970 | ``date`` |
| ``local_time`` | ``LocalTimeSchema`` | int64: ns since midnight | ``bigint`` |
| ``local_date_time`` | ``LocalDateTimeSchema`` | int64: days since 1970; int64: ns since midnight | ``timestamp_ntz`` |

Three of them are not what their names suggest:

- ``date`` is a ``java.util.Date``: an instant, whose day depends on a time zone that the payload does not contain. So
  it is a timestamp; ``to_date(value)`` gives the day in the session's time zone.
- ``time`` is a ``java.sql.Time``: an instant, too, on a meaningless day and at an hour of the writer's time zone. So it
  stays a number of milliseconds.
- ``local_time`` has no type in Spark before 4.1, where ``time`` is off by default. So it stays a number of nanoseconds;
  the type ``time`` can be requested.

Nanoseconds are cut to microseconds, towards the past. Java's decoders of dates and times ignore bytes after the value;
here a payload of another length is an error for all kinds.
"""  # noqa: E501 - a table

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq_source.core.columns import ConstantColumn, fixed_cells, text_array
from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.core.utf8 import is_utf8
from spark_mq_source.values.decoder import Decoded, ValueDecoder
from spark_mq_source.values.steps import NO_UTF8

_TIMESTAMP: Final = pa.timestamp("us", "UTC")
_TIMESTAMP_NTZ: Final = pa.timestamp("us")
_DOUBLE: Final = pa.float64()
_DAY_US: Final = 86_400_000_000
_NS_OF_DAY: Final = 1000 * _DAY_US
_MAX_INT64: Final = 2**63 - 1

_Columns = tuple[pa.Array, pa.Array | None]
"""The values, and the flags of the values in range; None if every number is a value."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """The layout of values of a fixed width: numbers, which are big-endian in the payload.

    Attributes:
        code: the type code (`array`) of the numbers.
        read: converts numbers to values.
        write: converts values to numbers, NULL to 0.
        count: the numbers of a value.
    """

    type: pa.DataType
    code: str
    read: Callable[[array[int]], _Columns]
    write: Callable[[pa.Array], list[int]]
    count: int = 1

    @property
    def size(self) -> int:
        """The bytes of a value."""
        return array(self.code).itemsize * self.count


def primitive_type_of(kind: str) -> pa.DataType:
    """Return the Arrow type of a primitive schema's values.

    Args:
        kind: a name from the table above.

    Example:
        >>> primitive_type_of("int16"), primitive_type_of("instant")
        (DataType(int16), TimestampType(timestamp[us, tz=UTC]))
    """
    return pa.string() if kind == "string" else _LAYOUTS[kind].type


def primitive_decoder(kind: str, wanted: pa.DataType) -> ValueDecoder:
    r"""Return a decoder of payloads that a primitive schema wrote.

    Args:
        kind: a name from the table above.
        wanted: the type of the values: `primitive_type_of`; integers and floats can also be wider, integers can be
            decimals or doubles that hold them all, strings binary, and ``local_time`` Spark's ``time``.

    Raises:
        OptionError: the primitive cannot become the type without loss.

    Example:
        >>> decoded = primitive_decoder("int16", pa.int16()).decode(pa.array([b"\x01\x00", None, b"1"]))
        >>> decoded.values.to_pylist(), decoded.reasons
        ([256, None, None], {2: 'an int16 has 2 bytes, and the payload has 1'})
    """
    given = primitive_type_of(kind)
    if not _converts_to(kind, given, wanted):
        raise OptionError(
            f"values of the primitive {kind} are {given} and do not become {wanted} without loss; "
            f"read them as {given} and convert the column"
        )
    return _TextDecoder(wanted) if kind == "string" else _FixedDecoder(kind, wanted)


_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}


def _converts_to(kind: str, given: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_timestamp(given):
        return bool(pa.types.is_timestamp(wanted) and wanted.unit == "us" and bool(wanted.tz) == bool(given.tz))
    if pa.types.is_integer(given) and pa.types.is_decimal(wanted):
        return bool(wanted.precision - wanted.scale >= _DIGITS[given.bit_width] and wanted.scale >= 0)
    if pa.types.is_integer(given) and pa.types.is_signed_integer(wanted):
        return bool(wanted.bit_width >= given.bit_width)
    wider = {"int8": _DOUBLE, "int16": _DOUBLE, "int32": _DOUBLE, "float": _DOUBLE, "string": pa.binary()}
    wider["local_time"] = pa.time64("ns")
    return bool(wanted.equals(given) or wanted.equals(wider.get(kind, given)))


class _TextDecoder:
    """Decoder of strings, which are the whole payload."""

    def __init__(self, wanted: pa.DataType) -> None:
        self.type = wanted

    def decode(self, payloads: pa.Array) -> Decoded:
        try:
            return Decoded(pc.cast(pc.cast(payloads, pa.string()), self.type), {})
        except pa.ArrowInvalid:
            pass
        reasons = {}
        cells = dict(enumerate(payloads.to_pylist()))
        for row, payload in cells.items():
            try:
                str(payload or b"", "utf-8")
            except UnicodeDecodeError as error:
                cells[row] = None
                reasons[row] = f"the payload is not UTF-8: {error.reason} at byte {error.start}"
        return Decoded(text_array(cells, len(cells), self.type), reasons)


class _FixedDecoder:
    """Decoder of values of a fixed width: all of a batch at once, without an object per value."""

    def __init__(self, kind: str, wanted: pa.DataType) -> None:
        self.type = wanted
        self._kind = kind
        self._layout = _LAYOUTS[kind]
        self._size = _scalar(self._layout.size, pa.int32())
        self._zeros = fixed_cells(array("b", bytes(self._layout.size)), 1)[0]

    def decode(self, payloads: pa.Array) -> Decoded:
        size = self._layout.size
        reasons: dict[int, str] = {}
        if not len(payloads):
            return Decoded(pa.nulls(0, self.type), reasons)
        fits = pc.equal(pc.binary_length(payloads), self._size)  # NULL if the payload is NULL
        if not pc.all(fits, min_count=0).as_py():
            lengths = pc.binary_length(payloads)
            article = "an" if self._kind[0] == "i" else "a"
            for row in _false_rows(fits):
                reasons[row] = (
                    f"{article} {self._kind} has {size} byte{'s' * (size > 1)}, and the payload has {lengths[row]}"
                )
        valid = pc.fill_null(fits, _FALSE)
        has_all = not reasons and not payloads.null_count
        values, in_range = self._layout.read(
            self._numbers(payloads if has_all else pc.if_else(valid, payloads, self._zeros))
        )
        if in_range is not None and not pc.all(in_range).as_py():
            for row in _false_rows(in_range):
                shown = bytes(payloads[row].as_buffer()).hex()
                reasons[row] = f"the {self._kind} 0x{shown} is out of range"
            valid, has_all = pc.and_(valid, in_range), False
        if not values.type.equals(self.type):
            values = pc.cast(values, self.type)
        return Decoded(values if has_all else _with_nulls(values, valid), reasons)

    def _numbers(self, payloads: pa.Array) -> array[int]:
        """Return the numbers in payloads without NULLs."""
        _, offsets, data = payloads.buffers()
        ends = memoryview(offsets).cast("i")
        first, last = ends[payloads.offset], ends[payloads.offset + len(payloads)]
        numbers = array(self._layout.code)
        numbers.frombytes(memoryview(data)[first:last])
        return _swapped(numbers)


class PrimitiveEncoder:
    r"""Encoder of single values in one layout; equal values always give equal bytes.

    Args:
        kind: a name from the table above.
        type_: the column's type: `primitive_type_of`, or a narrower integer or float.

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
            UnwritableRowError: a value is out of the layout's range, or a text is not UTF-8.
        """
        if self._kind == "string":
            # A NULL may have any bytes.
            if not is_utf8(values) and not is_utf8(values.drop_null()):
                raise UnwritableRowError(f"column {self._column} {NO_UTF8}")
            return values
        layout = _LAYOUTS[self._kind]
        try:
            numbers = array(layout.code, layout.write(pc.cast(values, self._type)))
        except OverflowError as error:
            raise UnwritableRowError(f"column {self._column} has a value outside the range of {self._kind}") from error
        cells = fixed_cells(_swapped(numbers), len(values))
        return _with_nulls(cells, pc.is_valid(values)) if values.null_count else cells


def _fits(type_: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_signed_integer(type_) and pa.types.is_signed_integer(wanted):
        return bool(type_.bit_width <= wanted.bit_width)
    return bool(type_.equals(wanted) or (pa.types.is_float32(type_) and pa.types.is_float64(wanted)))


# pa.scalar and pa.array import pandas if it is installed, which takes a worker seconds: see `ConstantColumn`.
def _scalar(value: int, type_: pa.DataType | None = None) -> pa.Scalar:
    return ConstantColumn(value, type_ or pa.int64()).take(1)[0]


_FALSE: Final = pa.Array.from_buffers(pa.bool_(), 1, [None, pa.py_buffer(b"\x00")])[0]


def _false_rows(flags: pa.Array) -> list[int]:
    rows: list[int] = pc.indices_nonzero(pc.invert(pc.fill_null(flags, pc.invert(_FALSE)))).to_pylist()
    return rows


def _with_nulls(values: pa.Array, valid: pa.Array) -> pa.Array:
    return pc.if_else(valid, values, pa.nulls(1, values.type)[0])


def _swapped(numbers: array[int]) -> array[int]:
    """Convert numbers from big-endian to the machine's byte order, or back."""
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _array(numbers: array[int], type_: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type_, len(numbers), [None, pa.py_buffer(numbers)])


# -- from numbers to values


def _within(values: pa.Array, lowest: int, highest: int) -> pa.Array:
    """Return flags of the values in a range."""
    return pc.and_(
        pc.greater_equal(values, _scalar(lowest, values.type)), pc.less_equal(values, _scalar(highest, values.type))
    )


def _in_microseconds(values: pa.Array, us: int) -> tuple[pa.Array, pa.Array]:
    """Convert numbers with a unit of `us` microseconds; those that exceed an int64 become 0."""
    within = _within(values, -(_MAX_INT64 // us) + 1, _MAX_INT64 // us - 1)
    return pc.multiply(pc.if_else(within, values, _scalar(0)), _scalar(us)), within


def _read_milliseconds(numbers: array[int]) -> _Columns:
    values, within = _in_microseconds(_array(numbers, pa.int64()), 1000)
    return values.view(_TIMESTAMP), within


def _read_instants(numbers: array[int]) -> _Columns:
    high, low, ns = (_array(numbers[at::3], pa.int32()) for at in range(3))
    seconds = pc.bit_wise_or(
        pc.shift_left(pc.cast(high, pa.int64()), _scalar(32)), pc.cast(low.view(pa.uint32()), pa.int64())
    )
    us, within = _in_microseconds(seconds, 1_000_000)
    # Java's Instant.ofEpochSecond also accepts nanoseconds beyond a second, which an Instant never contains.
    within = pc.and_(within, _within(ns, 0, 999_999_999))
    return pc.add(us, pc.divide(pc.cast(ns, pa.int64()), _scalar(1000))).view(_TIMESTAMP), within


def _read_days(numbers: array[int]) -> _Columns:
    values = _array(numbers, pa.int64())
    within = _within(values, -(2**31), 2**31 - 1)
    return pc.cast(pc.if_else(within, values, _scalar(0)), pa.int32()).view(pa.date32()), within


def _read_times_of_day(numbers: array[int]) -> _Columns:
    values = _array(numbers, pa.int64())
    return values, _within(values, 0, _NS_OF_DAY - 1)


def _read_local_date_times(numbers: array[int]) -> _Columns:
    days, ns = (_array(numbers[at::2], pa.int64()) for at in range(2))
    us, within = _in_microseconds(days, _DAY_US)
    within = pc.and_(within, _within(ns, 0, _NS_OF_DAY - 1))
    return pc.add(us, pc.divide(ns, _scalar(1000))).view(_TIMESTAMP_NTZ), within


# -- from values to numbers


def _write_plain(values: pa.Array) -> list[int]:
    return [0 if number is None else number for number in values.to_pylist()]


def _write_microseconds(values: pa.Array) -> list[int]:
    return _write_plain(values.view(pa.int64()))


def _write_milliseconds(values: pa.Array) -> list[int]:
    return [us // 1000 for us in _write_microseconds(values)]


def _write_instants(values: pa.Array) -> list[int]:
    words = []
    for us in _write_microseconds(values):
        seconds, rest = divmod(us, 1_000_000)
        words += [_signed_half(seconds >> 32), _signed_half(seconds), rest * 1000]
    return words


def _signed_half(word: int) -> int:
    return ((word & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000


def _write_times_of_day(values: pa.Array) -> list[int]:
    # Java's LocalTime.ofNanoOfDay throws for other numbers (JDK 17).
    if not pc.all(_within(values, 0, _NS_OF_DAY - 1), min_count=0).as_py():
        raise OverflowError
    return _write_plain(values)


def _write_local_date_times(values: pa.Array) -> list[int]:
    words = []
    for us in _write_microseconds(values):
        day, rest = divmod(us, _DAY_US)
        words += [day, rest * 1000]
    return words


def _plain(code: str, type_: pa.DataType) -> _Layout:
    return _Layout(type_, code, lambda numbers: (_array(numbers, type_), None), _write_plain)


_LAYOUTS: Final[Mapping[str, _Layout]] = {
    "bool": _Layout(pa.bool_(), "b", lambda numbers: (_array(numbers, pa.int8()).cast(pa.bool_()), None), _write_plain),
    "int8": _plain("b", pa.int8()),
    "int16": _plain("h", pa.int16()),
    "int32": _plain("i", pa.int32()),
    "int64": _plain("q", pa.int64()),
    "float": _plain("f", pa.float32()),
    "double": _plain("d", pa.float64()),
    "date": _Layout(_TIMESTAMP, "q", _read_milliseconds, _write_milliseconds),
    "timestamp": _Layout(_TIMESTAMP, "q", _read_milliseconds, _write_milliseconds),
    "time": _plain("q", pa.int64()),
    "instant": _Layout(_TIMESTAMP, "i", _read_instants, _write_instants, count=3),
    "local_date": _Layout(pa.date32(), "q", _read_days, lambda values: _write_plain(values.view(pa.int32()))),
    "local_time": _Layout(pa.int64(), "q", _read_times_of_day, _write_times_of_day),
    "local_date_time": _Layout(_TIMESTAMP_NTZ, "q", _read_local_date_times, _write_local_date_times, count=2),
}
