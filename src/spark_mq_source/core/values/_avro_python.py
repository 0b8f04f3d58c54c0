"""Decodes Avro for the interpreter: the twin of ``_avro_native``."""

from __future__ import annotations

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core.values._loops_python import BadPayloadError, RowDecoder
from spark_mq_source.core.values.avro_steps import (
    ENDS,
    MOST_EMPTY_ITEMS,
    NO_BOOLEAN,
    NO_BRANCH,
    NO_DECIMAL,
    NO_END,
    NO_INT,
    NO_LENGTH,
    NO_SYMBOL,
    NO_TIME,
    NO_UTF8,
    TOO_MANY,
    Code,
    Step,
    unknown_symbol,
)

_MOST_MILLIS: Final = (2**63 - 1) // 1000


class AvroDecoder(RowDecoder):
    """Decodes payloads that were written with one schema.

    Args:
        step: what reads a value, see `avro_resolution.resolve`.
        type_: the Arrow type of the values.
    """

    def __init__(self, step: Step, type_: pa.DataType) -> None:
        super().__init__(type_)
        self._step = step

    def _read_row(self, payload: bytes) -> Any:  # noqa: ANN401 - of any type
        return _Payload(payload).read(self._step)


class _Payload:
    """Bytes that are read once, from their beginning."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._empty_items = 0

    def read(self, step: Step) -> Any:  # noqa: ANN401 - of any type
        return _READERS[step.code](self, step)

    def _take(self, size: int) -> bytes:
        if size < 0:
            raise BadPayloadError(NO_LENGTH)
        data = self._data[self._at : self._at + size]
        if len(data) < size:
            raise BadPayloadError(ENDS)
        self._at += size
        return data

    def _number(self) -> int:
        value = shift = 0
        while shift < 70 and self._at < len(self._data):
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                value &= 0xFFFFFFFFFFFFFFFF
                return value >> 1 ^ -(value & 1)
            shift += 7
        raise BadPayloadError(NO_END if shift == 70 else ENDS)

    def _read_within(self, step: Step, name: str) -> Any:  # noqa: ANN401
        try:
            return self.read(step)
        except BadPayloadError as bad:
            bad.path.append(name)
            raise

    def _steps(self, step: Step) -> dict[str, Any]:
        """What the steps within one give, by the key of those that fill a field."""
        values = {}
        for one in step.steps:
            value = self._read_within(one, one.name)
            if one.slot >= 0:
                values[one.key] = value
        return values

    def null(self, _step: Step) -> None:
        return None

    def boolean(self, _step: Step) -> bool:
        value = self._take(1)[0]
        if value > 1:
            raise BadPayloadError(NO_BOOLEAN)
        return value == 1

    def long(self, step: Step) -> int:
        value = self._number()
        if step.is_int and not -(1 << 31) <= value < 1 << 31:
            raise BadPayloadError(NO_INT)
        return value

    def millis(self, step: Step) -> int:
        value = self.long(step)
        if not -_MOST_MILLIS <= value <= _MOST_MILLIS:
            raise BadPayloadError(NO_TIME)
        return value * 1000

    def int_to_float(self, step: Step) -> float:
        # Rounded once: what is cut off before leaves a bit that decides between two neighbours.
        value = self.long(step)
        more = max(value.bit_length() - 30, 0)
        kept = value >> more | (value & (1 << more) - 1 != 0)
        number: float = struct.unpack("<f", struct.pack("<f", float(kept) * 2.0**more))[0]
        return number

    def int_to_double(self, step: Step) -> float:
        return float(self.long(step))

    def single(self, _step: Step) -> float:
        number: float = struct.unpack("<f", self._take(4))[0]
        return number

    def double(self, _step: Step) -> float:
        number: float = struct.unpack("<d", self._take(8))[0]
        return number

    def text(self, _step: Step) -> str:
        try:
            return self._take(self._number()).decode()
        except UnicodeDecodeError:
            raise BadPayloadError(NO_UTF8) from None

    def binary(self, _step: Step) -> bytes:
        return self._take(self._number())

    def fixed(self, step: Step) -> bytes:
        return self._take(step.size)

    def decimal(self, step: Step) -> Decimal:
        data = self._take(self._number() if step.size < 0 else step.size)
        value = int.from_bytes(data, "big", signed=True)
        if not data or abs(value) >= 10**step.precision:
            raise BadPayloadError(NO_DECIMAL)
        # Not by arithmetic, which rounds to the digits of a context.
        return Decimal((int(value < 0), tuple(map(int, str(abs(value) * 10**step.shift))), -step.scale))

    def enum(self, step: Step) -> str:
        number = self._number()
        if not 0 <= number < len(step.symbols):
            raise BadPayloadError(NO_SYMBOL)
        symbol = step.symbols[number]
        if symbol is None:
            raise BadPayloadError(unknown_symbol(step.written[number]))
        return symbol.decode()

    def _blocks(self, step: Step, *, is_skipped: bool = False) -> Any:  # noqa: ANN401 - an iterator of indices
        """An index an item; skips a block that says its size if it is to be skipped."""
        index = 0
        while count := self._number():
            size = -1
            if count < 0:
                count = -count
                size = self._number()
                if size < 0:
                    raise BadPayloadError(NO_LENGTH)
            if step.is_empty:
                self._empty_items += count
                if self._empty_items > MOST_EMPTY_ITEMS:
                    raise BadPayloadError(TOO_MANY)
            elif count > len(self._data) - self._at:
                raise BadPayloadError(TOO_MANY)
            if is_skipped and size >= 0:
                self._take(size)
                continue
            yield from range(index, index + count)
            index += count

    def array(self, step: Step) -> list[Any]:
        return [self._read_within(step.steps[0], f"[{index}]") for index in self._blocks(step)]

    def map(self, step: Step) -> list[tuple[str, Any]]:
        return [(self._read_within(_KEY, "{}"), self._read_within(step.steps[0], "{}")) for _ in self._blocks(step)]

    def union(self, step: Step) -> Any:  # noqa: ANN401
        number = self._number()
        if not 0 <= number < len(step.steps):
            raise BadPayloadError(NO_BRANCH)
        return self.read(step.steps[number])

    def default(self, step: Step) -> Any:  # noqa: ANN401
        payload = _Payload(step.data)
        payload._empty_items = -(2**62)
        return payload.read(step.steps[0])

    def fail(self, step: Step) -> None:
        raise BadPayloadError(step.text)

    def skip_bytes(self, step: Step) -> None:
        self._take(step.size)

    def skip_varints(self, step: Step) -> None:
        for _ in range(step.size):
            self._number()

    def skip_sized(self, step: Step) -> None:
        for _ in range(step.size):
            self._take(self._number())

    def skip_blocks(self, step: Step) -> None:
        for _ in self._blocks(step, is_skipped=True):
            self._steps(step)


_KEY: Final = Step(Code.TEXT)
_READERS: Final[dict[Code, Callable[[_Payload, Step], Any]]] = {
    Code.NULL: _Payload.null,
    Code.BOOLEAN: _Payload.boolean,
    Code.INT: _Payload.long,
    Code.LONG: _Payload.long,
    Code.MILLIS: _Payload.millis,
    Code.INT_TO_FLOAT: _Payload.int_to_float,
    Code.INT_TO_DOUBLE: _Payload.int_to_double,
    Code.FLOAT: _Payload.single,
    Code.FLOAT_TO_DOUBLE: _Payload.single,
    Code.DOUBLE: _Payload.double,
    Code.TEXT: _Payload.text,
    Code.BINARY: _Payload.binary,
    Code.FIXED: _Payload.fixed,
    Code.DECIMAL: _Payload.decimal,
    Code.ENUM: _Payload.enum,
    Code.RECORD: _Payload._steps,
    Code.ARRAY: _Payload.array,
    Code.MAP: _Payload.map,
    Code.UNION: _Payload.union,
    Code.MEMBER: _Payload._steps,
    Code.DEFAULT: _Payload.default,
    Code.FAIL: _Payload.fail,
    Code.SEQUENCE: _Payload._steps,
    Code.SKIP_BYTES: _Payload.skip_bytes,
    Code.SKIP_VARINTS: _Payload.skip_varints,
    Code.SKIP_SIZED: _Payload.skip_sized,
    Code.SKIP_BLOCKS: _Payload.skip_blocks,
}
