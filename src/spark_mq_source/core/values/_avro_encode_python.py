"""Encodes Avro for the interpreter: the twin of ``_avro_encode_native``. It goes column by column."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core.errors import UnwritableRowError
from spark_mq_source.core.values._loops_python import payloads_of, unwritable
from spark_mq_source.core.values.avro_write_steps import (
    NO_MEMBER,
    NO_NULL,
    NO_SIZE,
    NO_SYMBOL,
    WriteCode,
    WriteStep,
)
from spark_mq_source.core.varint import encode_varint

Cell = bytes | UnwritableRowError
"""A value, or why it has no form; what is beneath a NULL may have none."""


def encode(step: WriteStep, array: pa.Array) -> pa.BinaryArray:
    """The bytes of each value; NULL where it is NULL.

    Raises:
        UnwritableRowError: a value does not fit the schema, or all do not fit one array.
    """
    cells: list[bytes | None] = []
    for cell, is_valid in zip(_cells(step, array), array.is_valid().to_pylist(), strict=True):
        if is_valid and isinstance(cell, UnwritableRowError):
            raise cell
        cells.append(cell if is_valid else None)  # type: ignore[arg-type] # mypy does not see that it is bytes
    return payloads_of(cells)


def _number(value: int) -> bytes:
    return encode_varint(value << 1 if value >= 0 else ~(value << 1))


def _sized(data: bytes) -> bytes:
    return _number(len(data)) + data


def _joined(parts: Sequence[Cell]) -> Cell:
    """All parts in a row, or the first that has no form."""
    bad = next((part for part in parts if isinstance(part, UnwritableRowError)), None)
    return b"".join(part for part in parts if isinstance(part, bytes)) if bad is None else bad


def _cells(step: WriteStep, array: pa.Array) -> list[Cell]:
    if step.code == WriteCode.CONSTANT:
        return [step.data] * len(array)
    cells = _ENCODERS[step.code](step, array)
    null: Cell = unwritable(step, NO_NULL) if step.null is None else step.null
    return [
        _joined((step.head, cell)) if is_valid else null
        for cell, is_valid in zip(cells, array.is_valid().to_pylist(), strict=True)
    ]


def _leaves(encode_one: Callable[[Any], bytes]) -> Callable[[WriteStep, pa.Array], list[Cell]]:
    def encode_all(_step: WriteStep, array: pa.Array) -> list[Cell]:
        return [b"" if value is None else encode_one(value) for value in array.to_pylist()]

    return encode_all


def _numbers(step: WriteStep, array: pa.Array) -> list[Cell]:
    # Times as numbers, of which Python has some only.
    values = array.cast(pa.int32() if pa.types.is_date32(array.type) else pa.int64()).to_pylist()
    by = 1000 if step.code == WriteCode.MILLIS else 1
    return [b"" if value is None else _number(value // by) for value in values]


def _fixed(step: WriteStep, array: pa.Array) -> list[Cell]:
    bad = unwritable(step, NO_SIZE)
    return [b"" if one is None else one if len(one) == step.size else bad for one in array.to_pylist()]


def _decimals(step: WriteStep, array: pa.Array) -> list[Cell]:
    cells: list[Cell] = []
    for value in array.to_pylist():
        sign, digits, exponent = (0, (0,), 0) if value is None else value.as_tuple()
        unscaled = int("".join(map(str, digits))) * 10 ** (array.type.scale + int(exponent) + step.shift)
        unscaled = -unscaled if sign else unscaled
        size = step.size or (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        data = unscaled.to_bytes(size, "big", signed=True)
        cells.append(_sized(data) if step.code == WriteCode.DECIMAL else data)
    return cells


def _symbols(step: WriteStep, array: pa.Array) -> list[Cell]:
    known: dict[str, Cell] = {symbol.decode(): _number(at) for at, symbol in reversed(list(enumerate(step.symbols)))}
    bad = unwritable(step, NO_SYMBOL)
    return [known.get(value, bad) for value in array.to_pylist()]


def _records(step: WriteStep, array: pa.Array) -> list[Cell]:
    columns = [
        _cells(one, array.field(one.column)) if one.column >= 0 else [one.data] * len(array) for one in step.steps
    ]
    return [_joined(row) for row in zip(*columns, strict=True)] if columns else [b""] * len(array)


def _blocks(step: WriteStep, array: pa.Array) -> list[Cell]:
    parts = (array.keys, array.items) if step.code == WriteCode.MAP else (array.values,)
    columns = [_cells(one, part) for one, part in zip(step.steps, parts, strict=True)]
    items = [_joined(row) for row in zip(*columns, strict=True)]
    ends = array.offsets.to_pylist()
    return [
        _joined((_number(end - start), *items[start:end], b"\0")) if end > start else b"\0"
        for start, end in itertools.pairwise(ends)
    ]


def _members(step: WriteStep, array: pa.Array) -> list[Cell]:
    columns = [array.field(one.column) for one in step.steps]
    cells = [_cells(one, column) for one, column in zip(step.steps, columns, strict=True)]
    valid = [column.is_valid().to_pylist() for column in columns]
    bad = unwritable(step, NO_MEMBER)
    made: list[Cell] = []
    for row in range(len(array)):
        found = [at for at, column in enumerate(valid) if column[row]]
        made.append(cells[found[0]][row] if len(found) == 1 else bad)
    return made


_ENCODERS: Final[dict[WriteCode, Callable[[WriteStep, pa.Array], list[Cell]]]] = {
    WriteCode.BOOLEAN: _leaves(lambda value: bytes([value])),
    WriteCode.BYTE: _numbers,
    WriteCode.SHORT: _numbers,
    WriteCode.INT: _numbers,
    WriteCode.LONG: _numbers,
    WriteCode.MILLIS: _numbers,
    WriteCode.FLOAT: _leaves(struct.Struct("<f").pack),
    WriteCode.DOUBLE: _leaves(struct.Struct("<d").pack),
    WriteCode.INT_TO_DOUBLE: _leaves(struct.Struct("<d").pack),
    WriteCode.FLOAT_TO_DOUBLE: _leaves(struct.Struct("<d").pack),
    WriteCode.SIZED: _leaves(lambda value: _sized(value.encode() if isinstance(value, str) else value)),
    WriteCode.FIXED: _fixed,
    WriteCode.DECIMAL: _decimals,
    WriteCode.FIXED_DECIMAL: _decimals,
    WriteCode.ENUM: _symbols,
    WriteCode.RECORD: _records,
    WriteCode.ARRAY: _blocks,
    WriteCode.MAP: _blocks,
    WriteCode.MEMBERS: _members,
}
