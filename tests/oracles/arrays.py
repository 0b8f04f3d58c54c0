"""Arrow arrays for decoders and oracles: payloads at any alignment, and the cells of values."""

from __future__ import annotations

import ctypes
import itertools
import mmap
from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa


def cells(values: pa.Array) -> list[Any]:
    """Return the cells of an Arrow array.

    A struct is a tuple, a map a list of pairs, a time or a float the integer of its bits, and a decimal its unscaled
    integer.
    """
    type_ = values.type
    found: Sequence[Any]
    if pa.types.is_struct(type_):
        fields = [cells(values.field(at)) for at in range(type_.num_fields)]
        found = list(zip(*fields, strict=True)) if fields else [()] * len(values)
    elif pa.types.is_map(type_):
        found = _parts(values.offsets, list(zip(cells(values.keys), cells(values.items), strict=True)))
    elif pa.types.is_list(type_):
        found = _parts(values.offsets, cells(values.values))
    elif pa.types.is_decimal(type_):
        found = [_unscaled(values, values.offset + at) for at in range(len(values))]
    elif pa.types.is_temporal(type_) or pa.types.is_floating(type_):
        width = pa.uint64() if pa.types.is_float64(type_) else pa.uint32() if pa.types.is_floating(type_) else None
        found = values.view(width or (pa.int32() if type_.bit_width == 32 else pa.int64())).to_pylist()
    else:
        return values.to_pylist()
    if not values.null_count:
        return list(found)
    return [cell if valid else None for cell, valid in zip(found, values.is_valid().to_pylist(), strict=True)]


def _unscaled(values: pa.Array, at: int) -> int:
    return int.from_bytes(memoryview(values.buffers()[1])[16 * at : 16 * at + 16], "little", signed=True)


def _parts(offsets: pa.Array, items: list[Any]) -> list[list[Any]]:
    ends = offsets.to_pylist()
    return [items[start:end] for start, end in itertools.pairwise(ends)]


def laid_out(payloads: Sequence[bytes | None], offset: int = 0) -> pa.BinaryArray:
    """Return a binary array in a separate allocation: the data begins at an offset, and ends where that ends."""
    cells = [payload or b"" for payload in payloads]
    data = array("B", bytes(offset) + b"".join(cells))
    ends = array("i", itertools.accumulate(map(len, cells), initial=offset))
    valid = None
    if None in payloads:
        bits = bytearray((len(payloads) + 7) // 8)
        for at, payload in enumerate(payloads):
            bits[at >> 3] |= (payload is not None) << (at & 7)
        valid = pa.py_buffer(bits)
    return pa.Array.from_buffers(pa.binary(), len(payloads), [valid, pa.py_buffer(ends), pa.py_buffer(data)])


def at_the_end(payloads: Sequence[bytes | None], offset: int) -> pa.BinaryArray:
    """Return a binary array whose data begins at an address with this remainder by 16, and ends before unmapped memory.

    Bytes beneath a NULL before the last payload pad the size. Reading past the end ends the process.
    """
    data = [payload or b"" for payload in payloads]
    padding = bytes((-offset - sum(map(len, data))) % 16)
    rows = [*payloads[:-1], None, payloads[-1]]
    data = [*data[:-1], padding, data[-1]]
    size = sum(map(len, data))
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[room - size : room] = b"".join(data)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + room), mmap.PAGESIZE, 0) == 0
    begin = address + room - size
    assert begin % 16 == offset
    ends = [0]
    for one in data:
        ends.append(ends[-1] + len(one))
    valid = pa.array([row is not None for row in rows]).buffers()[1]
    buffers = [valid, pa.array(ends, pa.int32()).buffers()[1], pa.foreign_buffer(begin, size, memory)]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)
