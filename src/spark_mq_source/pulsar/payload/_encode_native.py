"""The entry encoder's inner loop, compiled: Cython's pure-Python mode, C types in annotations.

It has the interface, bytes and errors of ``_encode_python``, whose documentation and rules apply. The difference: the
loop reads Arrow's buffers directly and writes into the payload, without Python objects.

Safety: Arrow's offsets and indices are trusted, as in Arrow's own kernels; the size of a row is computed, and space for
it reserved, before it is written.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.pulsar.payload._encode_native is not compiled")

from array import array

import pyarrow as pa
from cython.cimports.cpython.buffer import PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.cpython.memoryview import PyMemoryView_FromMemory
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.spark_mq_source.core._arrays import (
    Cells,
    Numbers,
    bind_cells,
    bind_numbers,
    cell_at,
    has_number,
    is_valid,
)
from cython.cimports.spark_mq_source.core._checked import must
from cython.cimports.spark_mq_source.core._columns_native import hand_over, resize
from cython.cimports.spark_mq_source.core._wire import Slice, write_u32

from spark_mq_source.pulsar.payload.layout import (
    ALONE,
    FULL,
    HEAD_ROOM_BYTES,
    JAVA_STRING_HASH,
    NO_PARTITION,
    TAKEN,
    bind_columns,
)

_TAKEN = cython.declare(cython.int, TAKEN)
_FULL = cython.declare(cython.int, FULL)
_ALONE = cython.declare(cython.int, ALONE)
_HEAD_ROOM = cython.declare(cython.Py_ssize_t, HEAD_ROOM_BYTES)
_NO_PARTITION = cython.declare(cython.int, NO_PARTITION)
_FIRST_BYTES = cython.declare(cython.Py_ssize_t, 16384)
_MICROSECONDS_A_MS = cython.declare(cython.longlong, 1000)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _varint_size(value: cython.ulonglong) -> cython.Py_ssize_t:
    size: cython.Py_ssize_t = 1
    while value > 0x7F:
        value >>= 7
        size += 1
    return size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_varint(out: cython.p_uchar, value: cython.ulonglong) -> cython.p_uchar:
    while value > 0x7F:
        out[0] = cython.cast(cython.uchar, value & 0x7F) | 0x80
        out += 1
        value >>= 7
    out[0] = cython.cast(cython.uchar, value)
    return out + 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_bytes(out: cython.p_uchar, tag: cython.uchar, data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.p_uchar:
    out[0] = tag
    out = _put_varint(out + 1, size)
    memcpy(out, data, size)
    return out + size


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _letter(sextet: cython.uint) -> cython.uchar:
    if sextet < 26:
        return 0x41 + sextet
    if sextet < 52:
        return 0x61 + sextet - 26
    if sextet < 62:
        return 0x30 + sextet - 52
    return 0x2B if sextet == 62 else 0x2F


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _put_base64(out: cython.p_uchar, data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.p_uchar:
    at: cython.Py_ssize_t = 0
    bits: cython.uint
    while at + 3 <= size:
        bits = (cython.cast(cython.uint, data[at]) << 16) | (cython.cast(cython.uint, data[at + 1]) << 8) | data[at + 2]
        out[0] = _letter(bits >> 18)
        out[1] = _letter(bits >> 12 & 63)
        out[2] = _letter(bits >> 6 & 63)
        out[3] = _letter(bits & 63)
        out += 4
        at += 3
    if at < size:
        bits = cython.cast(cython.uint, data[at]) << 16
        if at + 1 < size:
            bits |= cython.cast(cython.uint, data[at + 1]) << 8
        out[0] = _letter(bits >> 18)
        out[1] = _letter(bits >> 12 & 63)
        out[2] = _letter(bits >> 6 & 63) if at + 1 < size else 0x3D
        out[3] = 0x3D
        out += 4
    return out


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _base64_size(size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return (size + 2) // 3 * 4


@cython.cfunc
def _ints_of(numbers, view: cython.pointer(Py_buffer)) -> cython.p_int:
    """Return 32-bit integers, which stay in place until the view is released; NULL for None."""
    memset(view, 0, cython.sizeof(Py_buffer))  # as long as it is, there is nothing to release
    if numbers is None:
        return cython.NULL
    PyObject_GetBuffer(numbers, view, PyBUF_SIMPLE)
    return cython.cast(cython.p_int, view.buf)


@cython.cclass
class RowSource:
    """See `_encode_python.RowSource`."""

    batch = cython.declare(object, visibility="readonly")
    columns = cython.declare(dict, visibility="readonly")
    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    # The owners of the memory behind the pointers, besides the batch.
    _children: object
    _is_base64: cython.bint
    _value: Cells
    _key: Cells
    _ordering_key: Cells
    _event_time: Numbers
    _deliver_at: Numbers
    _properties: Cells
    _property_keys: Cells
    _property_items: Cells

    def __cinit__(self, batch):
        self.batch = batch
        self.columns = bind_columns(batch)
        self.rows = batch.num_rows
        self._is_base64 = "key" in self.columns and pa.types.is_binary(self.columns["key"].type)
        self._bind(cython.address(self._value), "value")
        self._bind(cython.address(self._key), "key")
        self._bind(cython.address(self._ordering_key), "ordering_key")
        self._bind(cython.address(self._properties), "properties")
        if "properties" in self.columns:
            self._children = keys, items = self.columns["properties"].keys, self.columns["properties"].items
            bind_cells(cython.address(self._property_keys), keys)
            bind_cells(cython.address(self._property_items), items)
        if "event_time" in self.columns:
            bind_numbers(cython.address(self._event_time), self.columns["event_time"])
        if "deliver_at" in self.columns:
            bind_numbers(cython.address(self._deliver_at), self.columns["deliver_at"])

    @cython.cfunc
    def _bind(self, column: cython.pointer(Cells), name):
        if name in self.columns:
            bind_cells(column, self.columns[name])


# What `_measure` computes for a row.
_Measured = cython.struct(
    size=cython.Py_ssize_t,  # in the payload
    single_size=cython.Py_ssize_t,  # of its SingleMessageMetadata
    keys_size=cython.Py_ssize_t,  # of key and ordering key
    key_size=cython.Py_ssize_t,  # as it is written
    event_time_ms=cython.longlong,
    value=Slice,
    key=Slice,
    ordering_key=Slice,
    first_property=cython.Py_ssize_t,
    last_property=cython.Py_ssize_t,  # the offset after it
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _pair_size(keys: cython.pointer(Cells), items: cython.pointer(Cells), at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    key_size: cython.Py_ssize_t = keys.offsets[at + 1] - keys.offsets[at]
    item_size: cython.Py_ssize_t = items.offsets[at + 1] - items.offsets[at]
    return 2 + _varint_size(key_size) + key_size + _varint_size(item_size) + item_size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _measure(
    source: RowSource, row: cython.Py_ssize_t, sequence_id: cython.ulonglong, found: cython.pointer(_Measured)
) -> cython.bint:
    """Return whether the row can be in a batch, apart from its size."""
    size: cython.Py_ssize_t
    pair: cython.Py_ssize_t
    at: cython.Py_ssize_t
    time_us: cython.longlong
    if has_number(cython.address(source._deliver_at), row):
        return False
    found.value = cell_at(cython.address(source._value), row)
    size = 1 + _varint_size(found.value.size) + 1 + _varint_size(sequence_id)
    if found.value.data == cython.NULL:
        size += 2
    found.keys_size = 0
    found.key_size = 0
    found.key = cell_at(cython.address(source._key), row)
    if found.key.data != cython.NULL:
        found.key_size = found.key.size
        if source._is_base64:
            found.key_size = _base64_size(found.key.size)
            size += 2
        size += 1 + _varint_size(found.key_size) + found.key_size
        found.keys_size = found.key_size
    found.ordering_key = cell_at(cython.address(source._ordering_key), row)
    if found.ordering_key.data != cython.NULL:
        size += 1 + _varint_size(found.ordering_key.size) + found.ordering_key.size
        found.keys_size += found.ordering_key.size
    found.event_time_ms = 0
    if has_number(cython.address(source._event_time), row):
        time_us = cython.cast(cython.p_longlong, source._event_time.data)[row]
        if time_us < _MICROSECONDS_A_MS:
            return False
        found.event_time_ms = time_us // _MICROSECONDS_A_MS
        size += 1 + _varint_size(found.event_time_ms)
    found.first_property = 0
    found.last_property = 0
    if source._properties.offsets != cython.NULL and is_valid(source._properties.valid, source._properties.bit + row):
        found.first_property = source._properties.offsets[row]
        found.last_property = source._properties.offsets[row + 1]
        for at in range(found.first_property, found.last_property):
            if not is_valid(source._property_items.valid, source._property_items.bit + at):
                return False
            pair = _pair_size(cython.address(source._property_keys), cython.address(source._property_items), at)
            size += 1 + _varint_size(pair) + pair
    found.single_size = size
    found.size = 4 + size + found.value.size
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _write(
    source: RowSource, found: cython.pointer(_Measured), sequence_id: cython.ulonglong, out: cython.p_uchar
) -> cython.void:
    at: cython.Py_ssize_t
    text: Slice
    end: cython.p_uchar = out + found.size
    write_u32(out, cython.cast(cython.uint, found.single_size))
    out += 4
    for at in range(found.first_property, found.last_property):
        out[0] = 0x0A
        out = _put_varint(
            out + 1, _pair_size(cython.address(source._property_keys), cython.address(source._property_items), at)
        )
        text = cell_at(cython.address(source._property_keys), at)
        out = _put_bytes(out, 0x0A, text.data, text.size)
        text = cell_at(cython.address(source._property_items), at)
        out = _put_bytes(out, 0x12, text.data, text.size)
    if found.key.data != cython.NULL:
        if source._is_base64:
            out[0] = 0x12
            out = _put_varint(out + 1, found.key_size)
            out = _put_base64(out, found.key.data, found.key.size)
        else:
            out = _put_bytes(out, 0x12, found.key.data, found.key.size)
    out[0] = 0x18
    out = _put_varint(out + 1, found.value.size)
    if found.event_time_ms:
        out[0] = 0x28
        out = _put_varint(out + 1, found.event_time_ms)
    if source._is_base64 and found.key.data != cython.NULL:
        out[0] = 0x30
        out[1] = 1
        out += 2
    if found.ordering_key.data != cython.NULL:
        out = _put_bytes(out, 0x3A, found.ordering_key.data, found.ordering_key.size)
    out[0] = 0x40
    out = _put_varint(out + 1, sequence_id)
    if found.value.data == cython.NULL:
        out[0] = 0x48
        out[1] = 1
        out += 2
    else:
        memcpy(out, found.value.data, found.value.size)
        out += found.value.size
    must(out == end, "a row has another size than was measured")


@cython.cclass
class BatchPayload:
    """See `_encode_python.BatchPayload`. The payload begins after `HEAD_ROOM_BYTES` of free space."""

    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    nbytes = cython.declare(cython.Py_ssize_t, visibility="readonly")
    stop = cython.declare(cython.int, visibility="readonly")
    first = cython.declare(tuple, visibility="readonly")
    _max_bytes: cython.Py_ssize_t
    _max_rows: cython.Py_ssize_t
    _by_key: cython.bint
    _block: cython.p_uchar
    _capacity: cython.Py_ssize_t
    _hint: cython.Py_ssize_t
    _first_keys_size: cython.Py_ssize_t

    def __cinit__(self, *, max_bytes, max_rows, by_key):
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._by_key = by_key
        self._hint = _FIRST_BYTES
        self.clear()

    def __dealloc__(self):
        free(self._block)

    def clear(self):
        """See `_encode_python.BatchPayload.clear`."""
        self.rows = 0
        self.nbytes = 0
        self.stop = _TAKEN
        self.first = (None, False, None)
        self._first_keys_size = 0

    def append(
        self,
        source: RowSource,
        order,
        begin: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        sequence_id: cython.ulonglong,
    ):
        """See `_encode_python.BatchPayload.append`."""
        view: Py_buffer
        indices: cython.p_int = _ints_of(order, cython.address(view))
        found: _Measured
        at: cython.Py_ssize_t = begin
        row: cython.Py_ssize_t
        self.stop = _TAKEN
        try:
            while at < end:
                row = at if indices == cython.NULL else indices[at]
                if (
                    not _measure(source, row, sequence_id, cython.address(found))
                    or found.size + found.keys_size > self._max_bytes
                ):
                    self.stop = _ALONE
                    break
                if self.rows == 0:
                    self.first = _first_of(source, cython.address(found))
                    self._first_keys_size = found.keys_size
                elif (
                    self.rows >= self._max_rows
                    or self.nbytes + found.size + self._first_keys_size > self._max_bytes
                    or (self._by_key and not self._has_same_key(source, cython.address(found)))
                ):
                    self.stop = _FULL
                    break
                if _HEAD_ROOM + self.nbytes + found.size > self._capacity:
                    self._make_room(found.size)
                must(_HEAD_ROOM + self.nbytes + found.size <= self._capacity, "a row is written without room for it")
                _write(source, cython.address(found), sequence_id, self._block + _HEAD_ROOM + self.nbytes)
                self.nbytes += found.size
                self.rows += 1
                sequence_id += 1
                at += 1
        finally:
            PyBuffer_Release(cython.address(view))
        return at

    @cython.cfunc
    def _make_room(self, size: cython.Py_ssize_t):
        capacity: cython.Py_ssize_t = max(self._hint, 2 * self._capacity, _HEAD_ROOM + self.nbytes + size)
        self._block = cython.cast(cython.p_uchar, resize(self._block, capacity))
        self._capacity = capacity

    @cython.cfunc
    def _has_same_key(self, source: RowSource, found: cython.pointer(_Measured)) -> cython.bint:
        key, _, ordering_key = self.first
        mine = key if ordering_key is None else ordering_key
        if found.ordering_key.data != cython.NULL:
            return mine is not None and _equals(mine, found.ordering_key.data, found.ordering_key.size)
        if found.key.data == cython.NULL:
            return mine is None
        if source._is_base64:
            return mine == _base64_of(found)
        return mine is not None and _equals(mine, found.key.data, found.key.size)

    def view(self):
        """See `_encode_python.BatchPayload.view`."""
        if not self.nbytes:
            return memoryview(b"")
        return PyMemoryView_FromMemory(cython.cast(cython.p_char, self._block + _HEAD_ROOM), self.nbytes, PyBUF_READ)

    def take(self, head: bytes):
        """See `_encode_python.BatchPayload.take`; not copied if there is space for the head."""
        size: cython.Py_ssize_t = len(head)
        if size > _HEAD_ROOM or not self._block:
            joined = memoryview(head + bytes(self.view()))
            self.clear()
            return joined
        memcpy(self._block + _HEAD_ROOM - size, PyBytes_AS_STRING(head), size)
        end: cython.Py_ssize_t = _HEAD_ROOM + self.nbytes
        buffer = hand_over(cython.cast(cython.pp_void, cython.address(self._block)), end)
        self._capacity = 0
        # The next one will have about this size.
        self._hint = max(end, _FIRST_BYTES)
        self.clear()
        return memoryview(buffer)[_HEAD_ROOM - size :]


@cython.cfunc
def _equals(mine: bytes, data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.bint:
    return PyBytes_GET_SIZE(mine) == size and memcmp(PyBytes_AS_STRING(mine), data, size) == 0


@cython.cfunc
def _bytes_of(text: Slice):
    if text.data == cython.NULL:
        return None
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, text.data), text.size)


@cython.cfunc
def _base64_of(found: cython.pointer(_Measured)):
    encoded: bytes = PyBytes_FromStringAndSize(cython.NULL, found.key_size)
    _put_base64(cython.cast(cython.p_uchar, PyBytes_AS_STRING(encoded)), found.key.data, found.key.size)
    return encoded


@cython.cfunc
def _first_of(source: RowSource, found: cython.pointer(_Measured)):
    has_key: cython.bint = found.key.data != cython.NULL
    key = _base64_of(found) if has_key and source._is_base64 else _bytes_of(found.key)
    return key, has_key and source._is_base64, _bytes_of(found.ordering_key)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _java_string_hash(data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.uint:
    result: cython.uint = 0
    point: cython.uint
    more: cython.int
    at: cython.Py_ssize_t = 0
    while at < size:
        point = data[at]
        at += 1
        if point >= 0x80:
            # Relies on Arrow's text being UTF-8.
            more = 1
            if point >= 0xF0:
                more = 3
                point &= 0x07
            elif point >= 0xE0:
                more = 2
                point &= 0x0F
            else:
                point &= 0x1F
            while more and at < size:
                point = (point << 6) | (data[at] & 0x3F)
                at += 1
                more -= 1
        if point >= 0x10000:
            point -= 0x10000
            result = 31 * result + (0xD800 | (point >> 10))
            point = 0xDC00 | (point & 0x3FF)
        result = 31 * result + point
    return result


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _mixed(word: cython.uint) -> cython.uint:
    word *= cython.cast(cython.uint, 0xCC9E2D51)
    word = (word << 15) | (word >> 17)
    return word * cython.cast(cython.uint, 0x1B873593)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _murmur3_32(data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.uint:
    result: cython.uint = 0
    word: cython.uint
    at: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    while at + 4 <= size:
        word = 0
        for i in range(4):
            word |= cython.cast(cython.uint, data[at + i]) << (8 * i)
        result ^= _mixed(word)
        result = (result << 13) | (result >> 19)
        result = result * 5 + cython.cast(cython.uint, 0xE6546B64)
        at += 4
    if at < size:
        word = 0
        for i in range(size - at):
            word |= cython.cast(cython.uint, data[at + i]) << (8 * i)
        result ^= _mixed(word)
    result ^= cython.cast(cython.uint, size)
    result = (result ^ (result >> 16)) * cython.cast(cython.uint, 0x85EBCA6B)
    result = (result ^ (result >> 13)) * cython.cast(cython.uint, 0xC2B2AE35)
    return result ^ (result >> 16)


@cython.ccall
def hashes_of(keys, hashing: cython.int):
    """See `_encode_python.hashes_of`."""
    column: Cells
    bind_cells(cython.address(column), keys)
    rows: cython.Py_ssize_t = len(keys)
    is_base64: cython.bint = pa.types.is_binary(keys.type)
    is_java: cython.bint = hashing == JAVA_STRING_HASH
    found = array("i", bytes(4 * rows))
    view: Py_buffer
    hashes: cython.p_int = _ints_of(found, cython.address(view))
    text: Slice
    scratch: cython.p_uchar = cython.NULL
    capacity: cython.Py_ssize_t = 0
    row: cython.Py_ssize_t
    value: cython.uint
    try:
        for row in range(rows):
            text = cell_at(cython.address(column), row)
            if text.data == cython.NULL:
                hashes[row] = -1
                continue
            if is_base64:
                if _base64_size(text.size) > capacity:
                    capacity = 2 * _base64_size(text.size)
                    scratch = cython.cast(cython.p_uchar, resize(scratch, capacity))
                _put_base64(scratch, text.data, text.size)
                text.size = _base64_size(text.size)
                text.data = scratch
            value = _java_string_hash(text.data, text.size) if is_java else _murmur3_32(text.data, text.size)
            hashes[row] = cython.cast(cython.int, value & 0x7FFFFFFF)
    finally:
        free(scratch)
        PyBuffer_Release(cython.address(view))
    return found


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _partition_of(
    wanted: cython.pointer(Numbers), hashes: cython.p_int, row: cython.Py_ssize_t, partitions: cython.int
) -> cython.int:
    """Return the partition of a row; -2 if it does not exist."""
    partition: cython.int
    if has_number(wanted, row):
        partition = cython.cast(cython.p_int, wanted.data)[row]
        return partition if 0 <= partition < partitions else -2
    if hashes != cython.NULL and hashes[row] >= 0:
        return hashes[row] % partitions
    return _NO_PARTITION


@cython.ccall
def group_rows(explicit, hashes, order, rows: cython.Py_ssize_t, partitions: cython.int):
    """See `_encode_python.group_rows`."""
    wanted: Numbers
    wanted.data = cython.NULL
    if explicit is not None:
        bind_numbers(cython.address(wanted), explicit)
    indices = array("i", bytes(4 * rows))
    counts: cython.p_longlong = cython.cast(cython.p_longlong, calloc(partitions + 2, 8))
    hashes_view: Py_buffer
    order_view: Py_buffer
    indices_view: Py_buffer
    hash_at: cython.p_int = _ints_of(hashes, cython.address(hashes_view))
    order_at: cython.p_int = _ints_of(order, cython.address(order_view))
    out: cython.p_int = _ints_of(indices, cython.address(indices_view))
    place: cython.Py_ssize_t
    row: cython.Py_ssize_t
    partition: cython.int
    try:
        if counts == cython.NULL:
            raise MemoryError
        # A counting sort: count the rows of each partition, compute where each begins, and place the rows.
        for place in range(rows):
            row = place if order_at == cython.NULL else order_at[place]
            partition = _partition_of(cython.address(wanted), hash_at, row, partitions)
            if partition < _NO_PARTITION:
                raise IndexError(row)
            counts[partition + 2] += 1
        for partition in range(1, partitions + 2):
            counts[partition] += counts[partition - 1]
        starts = [counts[partition] for partition in range(partitions + 2)]
        for place in range(rows):
            row = place if order_at == cython.NULL else order_at[place]
            partition = _partition_of(cython.address(wanted), hash_at, row, partitions)
            out[counts[partition + 1]] = cython.cast(cython.int, row)
            counts[partition + 1] += 1
    finally:
        free(counts)
        PyBuffer_Release(cython.address(indices_view))
        PyBuffer_Release(cython.address(hashes_view))
        PyBuffer_Release(cython.address(order_view))
    whole = memoryview(indices)
    return [
        (partition - 1, whole[starts[partition] : starts[partition + 1]])
        for partition in range(partitions + 1)
        if starts[partition + 1] > starts[partition]
    ]
