"""The entry decoder's inner loop, compiled: Cython's pure-Python mode, C types in annotations.

The same interface, rows and errors as ``_messages_python``, whose documentation and rules hold here. What differs: the
loop walks the payload once, without Python objects, and writes into buffers that Arrow then takes as they are.

Safety: every length is compared with what is left before it is used; room for the worst case (a column cannot hold
more than the payload it comes from) is reserved before the walk, so that the walk itself writes without asking. On any
error the counters go back to where they were, and what was written beyond them is overwritten by the next entry.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.pulsar.payload._messages_native is not compiled")

import pyarrow as pa
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memcmp, memcpy, memset

from spark_mq_source.core.columns import (
    MAX_COLUMN_BYTES,
    ConstantColumn,
    fixed_row_bytes,
    fixed_width_array,
    is_text,
    map_array,
    struct_array,
    variable_width_array,
)
from spark_mq_source.core.crc import crc32c
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.pulsar.payload._messages_python import (
    checksum_mismatch,
    column_overflow,
    repeated_too_often,
)

_SENTENCES = {
    -1: "a protobuf number does not end",
    -2: "a protobuf field has an impossible number",
    -3: "a protobuf field reaches past the end",
    -4: "a protobuf field has an unknown wire type",
    -5: "the message lacks its payload_size",
    -6: "the batch ends within this message",
    -7: "the key is not base64",
    -8: "the {column} is not UTF-8 (byte {byte})",
    -9: "a property lacks its key or its value",
    -10: "the {column} of {time_ms} ms is beyond what a timestamp can hold",
}


@cython.cfunc
def _sentence(code: cython.Py_ssize_t):
    return _SENTENCES.get(code)


# Below this many bytes the walk is over sooner than another thread could have been given the interpreter.
_NOGIL_BYTES = cython.declare(cython.Py_ssize_t, 65536)
_HIGH_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)
_MAX_TIME_MS = cython.declare(cython.longlong, 9223372036854775)
# So many properties of a message are compared with each other; more go through a dict.
_COMPARED_PROPERTIES = cython.declare(cython.Py_ssize_t, 16)

_Slice = cython.struct(data=cython.p_uchar, size=cython.Py_ssize_t)  # absent where data is NULL
_Field = cython.struct(tag=cython.ulonglong, value=cython.ulonglong, start=cython.Py_ssize_t, size=cython.Py_ssize_t)
_Single = cython.struct(
    payload_size=cython.int,
    has_payload_size=cython.bint,
    compacted_out=cython.bint,
    null_value=cython.int,
    null_key=cython.int,
    is_base64=cython.bint,
    has_event_time=cython.bint,
    has_sequence_id=cython.bint,
    key=_Slice,
    ordering_key=_Slice,
    event_time=cython.longlong,
    sequence_id=cython.longlong,
    num_properties=cython.Py_ssize_t,
)
# A column of bytes: `used` of `capacity` are filled. `valid` has a byte a row and is packed when the batch is taken.
_Bytes = cython.struct(
    wanted=cython.bint,
    text=cython.bint,
    data=cython.p_uchar,
    used=cython.Py_ssize_t,
    capacity=cython.Py_ssize_t,
    hint=cython.Py_ssize_t,
    offsets=cython.p_int,
    valid=cython.p_uchar,
    nulls=cython.Py_ssize_t,
)
_Longs = cython.struct(wanted=cython.bint, data=cython.p_longlong, valid=cython.p_uchar, nulls=cython.Py_ssize_t)

# Where the columns stood before an entry.
_Marks = cython.struct(
    value_used=cython.Py_ssize_t,
    value_nulls=cython.Py_ssize_t,
    key_used=cython.Py_ssize_t,
    key_nulls=cython.Py_ssize_t,
    ordering_key_used=cython.Py_ssize_t,
    ordering_key_nulls=cython.Py_ssize_t,
    producer_name_used=cython.Py_ssize_t,
    producer_name_nulls=cython.Py_ssize_t,
    schema_version_used=cython.Py_ssize_t,
    schema_version_nulls=cython.Py_ssize_t,
    replicated_from_used=cython.Py_ssize_t,
    replicated_from_nulls=cython.Py_ssize_t,
    event_time_nulls=cython.Py_ssize_t,
    broker_time_nulls=cython.Py_ssize_t,
    broker_index_nulls=cython.Py_ssize_t,
    num_properties=cython.Py_ssize_t,
    property_keys_used=cython.Py_ssize_t,
    property_items_used=cython.Py_ssize_t,
)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_varint(
    data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, value: cython.p_ulonglong
) -> cython.Py_ssize_t:
    result: cython.ulonglong = 0
    shift: cython.int = 0
    byte: cython.uchar
    if at < end and data[at] < 0x80:
        value[0] = data[at]
        return at + 1
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        result |= cython.cast(cython.ulonglong, byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            return at
        shift += 7
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_field(
    data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, field: cython.pointer(_Field)
) -> cython.Py_ssize_t:
    """Where the field at `at` ends, or why it is corrupt (see `_SENTENCES`)."""
    wire_type: cython.int
    size: cython.ulonglong = 0
    at = _read_varint(data, at, end, cython.address(field.tag))
    if at < 0:
        return -1
    if field.tag < 8 or field.tag >> 32:
        return -2
    wire_type = field.tag & 7
    if wire_type == 0:
        return _read_varint(data, at, end, cython.address(field.value))
    if wire_type == 2:
        at = _read_varint(data, at, end, cython.address(size))
        if at < 0:
            return -1
        if size > cython.cast(cython.ulonglong, end - at):
            return -3
        field.start = at
        field.size = cython.cast(cython.Py_ssize_t, size)
        return at + field.size
    if wire_type == 1:
        at += 8
    elif wire_type == 5:
        at += 4
    else:
        return -4
    if at > end:
        return -3
    return at


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _read_u32(data: cython.p_uchar, at: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return (
        (cython.cast(cython.Py_ssize_t, data[at]) << 24)
        | (cython.cast(cython.Py_ssize_t, data[at + 1]) << 16)
        | (cython.cast(cython.Py_ssize_t, data[at + 2]) << 8)
        | data[at + 3]
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _parse_single(
    data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, single: cython.pointer(_Single)
) -> cython.Py_ssize_t:
    """0, or why the SingleMessageMetadata is corrupt."""
    field: _Field
    memset(single, 0, cython.sizeof(_Single))
    single.null_value = -1
    single.null_key = -1
    while at < end:
        at = _read_field(data, at, end, cython.address(field))
        if at < 0:
            return at
        if field.tag == 0x18:
            single.payload_size = cython.cast(cython.int, cython.cast(cython.uint, field.value))
            single.has_payload_size = True
        elif field.tag == 0x40:
            single.sequence_id = cython.cast(cython.longlong, field.value)
            single.has_sequence_id = True
        elif field.tag == 0x12:
            single.key.data = data + field.start
            single.key.size = field.size
        elif field.tag == 0x0A:
            single.num_properties += 1
        elif field.tag == 0x28:
            single.event_time = cython.cast(cython.longlong, field.value)
            single.has_event_time = True
        elif field.tag == 0x20:
            single.compacted_out = field.value != 0
        elif field.tag == 0x30:
            single.is_base64 = field.value != 0
        elif field.tag == 0x3A:
            single.ordering_key.data = data + field.start
            single.ordering_key.size = field.size
        elif field.tag == 0x48:
            single.null_value = field.value != 0
        elif field.tag == 0x50:
            single.null_key = field.value != 0
    if single.has_payload_size:
        return 0
    return -5


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _find_no_utf8(data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Where the first sequence begins that is not UTF-8 (as Python's strict decoder has it); -1 where all is."""
    at: cython.Py_ssize_t = 0
    more: cython.Py_ssize_t
    word: cython.ulonglong
    first: cython.uchar
    second: cython.uchar
    i: cython.Py_ssize_t
    while at < size:
        if size - at >= 8:
            memcpy(cython.address(word), data + at, 8)
            if not word & _HIGH_BITS:
                at += 8
                continue
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        if first < 0xC2 or first > 0xF4:
            return at
        more = 1
        if first >= 0xE0:
            more += 1
        if first >= 0xF0:
            more += 1
        if size - at <= more:
            return at
        second = data[at + 1]
        # Overlong forms, surrogates, and beyond U+10FFFF show in the second byte.
        if first == 0xE0 and second < 0xA0:
            return at
        if first == 0xED and second > 0x9F:
            return at
        if first == 0xF0 and second < 0x90:
            return at
        if first == 0xF4 and second > 0x8F:
            return at
        for i in range(1, more + 1):
            if data[at + i] & 0xC0 != 0x80:
                return at
        at += more + 1
    return -1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _sextet(byte: cython.uchar) -> cython.int:
    if 0x41 <= byte <= 0x5A:
        return byte - 0x41
    if 0x61 <= byte <= 0x7A:
        return byte - 0x61 + 26
    if 0x30 <= byte <= 0x39:
        return byte - 0x30 + 52
    if byte == 0x2B:
        return 62
    if byte == 0x2F:
        return 63
    return -1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _decode_base64(data: cython.p_uchar, size: cython.Py_ssize_t, out: cython.p_uchar) -> cython.Py_ssize_t:
    """How many bytes were written to `out` (never more than `size`), or -7."""
    bits: cython.uint = 0
    held: cython.int = 0
    written: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    sextet: cython.int
    if size and data[size - 1] == 0x3D:
        # Padding is optional, but where it is there it is complete.
        if size % 4:
            return -7
        size -= 1
        if data[size - 1] == 0x3D:
            size -= 1
    if size % 4 == 1:
        return -7
    for at in range(size):
        sextet = _sextet(data[at])
        if sextet < 0:
            return -7
        bits = (bits << 6) | cython.cast(cython.uint, sextet)
        held += 6
        if held >= 8:
            held -= 8
            out[written] = (bits >> held) & 0xFF
            written += 1
    return written


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put(
    column: cython.pointer(_Bytes), row: cython.Py_ssize_t, data: cython.p_uchar, size: cython.Py_ssize_t
) -> cython.void:
    memcpy(column.data + column.used, data, size)
    column.used += size
    column.offsets[row + 1] = cython.cast(cython.int, column.used)
    column.valid[row] = 1


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_null(column: cython.pointer(_Bytes), row: cython.Py_ssize_t) -> cython.void:
    column.offsets[row + 1] = cython.cast(cython.int, column.used)
    column.valid[row] = 0
    column.nulls += 1


@cython.cfunc
def _resize(pointer: cython.p_void, size: cython.Py_ssize_t) -> cython.p_void:
    grown: cython.p_void = realloc(pointer, size)
    if not grown:
        raise MemoryError
    return grown


@cython.cclass
class _Block:
    """Memory that an Arrow buffer has taken over."""

    pointer: cython.p_void

    def __dealloc__(self):
        free(self.pointer)


@cython.cfunc
def _hand_over(pointer: cython.p_void, size: cython.Py_ssize_t):
    block: _Block = _Block.__new__(_Block)
    block.pointer = pointer
    return pa.foreign_buffer(cython.cast(cython.size_t, pointer), size, block)


@cython.cfunc
def _pack_validity(valid: cython.p_uchar, rows: cython.Py_ssize_t):
    """One bit a row, least significant first, of one byte a row."""
    size: cython.Py_ssize_t = (rows + 7) // 8
    bits: cython.p_uchar = cython.cast(cython.p_uchar, malloc(max(size, 1)))
    row: cython.Py_ssize_t
    if bits == cython.NULL:
        raise MemoryError
    memset(bits, 0, size)
    for row in range(rows):
        bits[row >> 3] |= valid[row] << (row & 7)
    return _hand_over(bits, size)


@cython.cclass
class EntryColumns:
    """As `_messages_python.EntryColumns`."""

    num_messages = cython.declare(cython.int, visibility="readonly")
    compression = cython.declare(cython.int, visibility="readonly")
    uncompressed_size = cython.declare(cython.uint, visibility="readonly")
    chunk_id = cython.declare(cython.int, visibility="readonly")
    num_chunks = cython.declare(cython.int, visibility="readonly")
    total_chunk_bytes = cython.declare(cython.int, visibility="readonly")
    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    unfinished = cython.declare(cython.bint, visibility="readonly")

    # What is built, and the columns under construction.
    schema: object
    constant: dict
    max_repeated_bytes: cython.Py_ssize_t
    max_rows: cython.Py_ssize_t
    row_bytes: cython.Py_ssize_t
    row_capacity: cython.Py_ssize_t
    row_hint: cython.Py_ssize_t
    value: _Bytes
    key: _Bytes
    ordering_key: _Bytes
    producer_name: _Bytes
    schema_version: _Bytes
    replicated_from: _Bytes
    publish_time: _Longs
    event_time: _Longs
    sequence_id: _Longs
    broker_time: _Longs
    broker_index: _Longs
    wants_message_id: cython.bint
    ledger_ids: cython.p_longlong
    entry_ids: cython.p_longlong
    batch_indexes: cython.p_int
    wants_properties: cython.bint
    property_offsets: cython.p_int
    property_keys: _Bytes
    property_items: _Bytes
    num_properties: cython.Py_ssize_t
    property_capacity: cython.Py_ssize_t

    # The entry opened last; its bytes stay where they are as long as `view` is held.
    body: object
    view: Py_buffer
    is_open: cython.bint
    is_parsed: cython.bint
    metadata_start: cython.Py_ssize_t
    metadata_end: cython.Py_ssize_t
    has_compacted: cython.bint
    has_broker_time: cython.bint
    has_broker_index: cython.bint
    entry_broker_time: cython.longlong
    entry_broker_index: cython.longlong
    entry_publish_time: cython.longlong
    entry_uuid: _Slice
    entry_producer_name: _Slice
    entry_schema_version: _Slice
    entry_replicated_from: _Slice
    # What a message of a batch falls back to, and what a message outside of a batch is.
    entry: _Single

    # What is left of a batch that is added in parts: its payload where that is not the entry's, the messages not
    # wanted, and the next one.
    rest_payload: object
    rest_skipped: cython.p_uchar
    rest_index: cython.Py_ssize_t
    rest_at: cython.Py_ssize_t
    rest_ledger_id: cython.longlong
    rest_entry_id: cython.longlong

    # Where a walk ended, and what a failed one has to tell.
    walked_to: cython.Py_ssize_t
    error_index: cython.Py_ssize_t
    error_byte: cython.Py_ssize_t
    error_time: cython.longlong
    error_column: object

    def __init__(self, schema, *, topic, partition, max_repeated_bytes, max_rows):
        names = schema.names
        self.schema = schema
        self.max_repeated_bytes = max_repeated_bytes
        self.max_rows = max_rows
        self.constant = {
            name: ConstantColumn(value, schema.field(name).type)
            for name, value in (("topic", topic), ("partition", partition))
            if name in names
        }
        self.row_bytes = sum(fixed_row_bytes(field.type) for field in schema if field.name not in self.constant)
        self.value.wanted = "value" in names
        self.value.text = self.value.wanted and is_text(schema.field("value").type)
        self.key.wanted = "key" in names
        self.key.text = self.key.wanted and is_text(schema.field("key").type)
        self.ordering_key.wanted = "ordering_key" in names
        self.producer_name.wanted = self.producer_name.text = "producer_name" in names
        self.schema_version.wanted = "schema_version" in names
        self.replicated_from.wanted = self.replicated_from.text = "replicated_from" in names
        self.publish_time.wanted = "publish_time" in names
        self.event_time.wanted = "event_time" in names
        self.sequence_id.wanted = "sequence_id" in names
        self.broker_time.wanted = "broker_publish_time" in names
        self.broker_index.wanted = "broker_index" in names
        self.wants_message_id = "message_id" in names
        self.wants_properties = "properties" in names

    def __dealloc__(self):
        if self.is_open:
            PyBuffer_Release(cython.address(self.view))
        self._free_bytes(cython.address(self.value))
        self._free_bytes(cython.address(self.key))
        self._free_bytes(cython.address(self.ordering_key))
        self._free_bytes(cython.address(self.producer_name))
        self._free_bytes(cython.address(self.schema_version))
        self._free_bytes(cython.address(self.replicated_from))
        self._free_bytes(cython.address(self.property_keys))
        self._free_bytes(cython.address(self.property_items))
        self._free_longs(cython.address(self.publish_time))
        self._free_longs(cython.address(self.event_time))
        self._free_longs(cython.address(self.sequence_id))
        self._free_longs(cython.address(self.broker_time))
        self._free_longs(cython.address(self.broker_index))
        free(self.ledger_ids)
        free(self.entry_ids)
        free(self.batch_indexes)
        free(self.property_offsets)
        free(self.rest_skipped)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _free_bytes(self, column: cython.pointer(_Bytes)) -> cython.void:
        free(column.data)
        free(column.offsets)
        free(column.valid)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _free_longs(self, column: cython.pointer(_Longs)) -> cython.void:
        free(column.data)
        free(column.valid)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _close(self) -> cython.void:
        self.is_parsed = False
        if self.unfinished:
            self.unfinished = False
            self.rest_payload = None
            free(self.rest_skipped)
            self.rest_skipped = cython.NULL
        if self.is_open:
            self.is_open = False
            PyBuffer_Release(cython.address(self.view))
            self.body = None

    @property
    def nbytes(self):
        return (
            self.rows * self.row_bytes
            + self.value.used
            + self.key.used
            + self.ordering_key.used
            + self.producer_name.used
            + self.schema_version.used
            + self.replicated_from.used
            + self.property_keys.used
            + self.property_items.used
            + 8 * self.num_properties
        )

    @property
    def uuid(self):
        return self.entry_uuid.data[: self.entry_uuid.size] if self.is_parsed and self.entry_uuid.data else b""

    def payload(self):
        return memoryview(self.body)[self.metadata_end :] if self.is_parsed else memoryview(b"")

    def open_entry(self, body, verify_checksum: cython.bint):
        """As `_messages_python.EntryColumns.open_entry`."""
        flags: cython.int
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t
        start: cython.Py_ssize_t
        data: cython.p_uchar
        announced: cython.Py_ssize_t
        self._close()
        self.num_messages = 1
        self.compression = 0
        self.uncompressed_size = 0
        self.chunk_id = 0
        self.num_chunks = 0
        self.total_chunk_bytes = 0
        self.entry_uuid.data = cython.NULL
        self.has_broker_time = False
        self.has_broker_index = False
        PyObject_GetBuffer(body, cython.address(self.view), PyBUF_SIMPLE)
        self.is_open = True
        self.body = body
        data = cython.cast(cython.p_uchar, self.view.buf)
        end = self.view.len
        if end >= 2 and data[0] == 0x0E and data[1] == 0x02:
            start, at = 6, self._sized(data, 2, end, "broker entry metadata")
            self._parse_broker_metadata(data, start, at)
        if end - at >= 2 and data[at] == 0x0E and data[at + 1] == 0x01:
            if end - at < 6:
                raise CorruptMessageError("the entry ends within its checksum")
            announced = _read_u32(data, at + 2)
            at += 6
            if verify_checksum:
                computed = crc32c(memoryview(body)[at:])
                if computed != announced:
                    raise checksum_mismatch(announced, computed)
        start = at + 4
        at = self._sized(data, at, end, "message metadata")
        self.metadata_start = start
        self.metadata_end = at
        flags = self._parse_metadata(data, start, at)
        self.is_parsed = True
        return flags

    @cython.cfunc
    def _expect_parsed(self):
        if not self.is_parsed:
            raise RuntimeError("no entry is open")

    @cython.cfunc
    @cython.exceptval(-1)
    def _sized(self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what) -> cython.Py_ssize_t:
        """Where the u32-prefixed part at `at` ends."""
        if end - at < 4 or _read_u32(data, at) > end - at - 4:
            raise CorruptMessageError(f"the entry ends within its {what}")
        return at + 4 + _read_u32(data, at)

    @cython.cfunc
    def _parse_broker_metadata(self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t):
        field: _Field
        while at < end:
            at = _read_field(data, at, end, cython.address(field))
            if at < 0:
                raise CorruptMessageError(_sentence(at))
            if field.tag == 0x08:
                self.entry_broker_time = cython.cast(cython.longlong, field.value)
                self.has_broker_time = True
            elif field.tag == 0x10:
                self.entry_broker_index = cython.cast(cython.longlong, field.value)
                self.has_broker_index = True

    @cython.cfunc
    @cython.exceptval(-1)
    def _parse_metadata(self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        field: _Field
        entry: cython.pointer(_Single) = cython.address(self.entry)
        flags: cython.int = 0
        has_publish_time: cython.bint = False
        index: cython.ulonglong = 0
        inner: cython.Py_ssize_t
        memset(entry, 0, cython.sizeof(_Single))
        self.has_compacted = False
        self.entry_producer_name.data = cython.NULL
        self.entry_schema_version.data = cython.NULL
        self.entry_replicated_from.data = cython.NULL
        while at < end:
            at = _read_field(data, at, end, cython.address(field))
            if at < 0:
                raise CorruptMessageError(_sentence(at))
            if field.tag == 0x0A:
                self.entry_producer_name.data = data + field.start
                self.entry_producer_name.size = field.size
            elif field.tag == 0x10:
                entry.sequence_id = cython.cast(cython.longlong, field.value)
                entry.has_sequence_id = True
            elif field.tag == 0x18:
                self.entry_publish_time = cython.cast(cython.longlong, field.value)
                has_publish_time = True
            elif field.tag == 0x22:
                entry.num_properties += 1
            elif field.tag == 0x2A:
                self.entry_replicated_from.data = data + field.start
                self.entry_replicated_from.size = field.size
            elif field.tag == 0x32:
                entry.key.data = data + field.start
                entry.key.size = field.size
            elif field.tag == 0x40:
                self.compression = cython.cast(cython.int, cython.cast(cython.uint, field.value))
            elif field.tag == 0x48:
                self.uncompressed_size = cython.cast(cython.uint, field.value)
            elif field.tag == 0x58:
                self.num_messages = cython.cast(cython.int, cython.cast(cython.uint, field.value))
                flags |= 8
            elif field.tag == 0x60:
                entry.event_time = cython.cast(cython.longlong, field.value)
            elif field.tag == 0x6A:
                flags |= 2
            elif field.tag == 0x82:
                self.entry_schema_version.data = data + field.start
                self.entry_schema_version.size = field.size
            elif field.tag == 0x88:
                entry.is_base64 = field.value != 0
            elif field.tag == 0x92:
                entry.ordering_key.data = data + field.start
                entry.ordering_key.size = field.size
            elif field.tag == 0xA0:
                flags |= 1
            elif field.tag == 0xC8:
                entry.null_value = field.value != 0
            elif field.tag == 0xD2:
                self.entry_uuid.data = data + field.start
                self.entry_uuid.size = field.size
            elif field.tag == 0xD8:
                self.num_chunks = cython.cast(cython.int, cython.cast(cython.uint, field.value))
            elif field.tag == 0xE0:
                self.total_chunk_bytes = cython.cast(cython.int, cython.cast(cython.uint, field.value))
            elif field.tag == 0xE8:
                self.chunk_id = cython.cast(cython.int, cython.cast(cython.uint, field.value))
            elif field.tag == 0xF0:
                entry.null_key = field.value != 0
            elif field.tag == 0xF8:
                self.has_compacted = True
            elif field.tag == 0xFA:
                self.has_compacted = True
                inner = field.start
                while inner < at:
                    inner = _read_varint(data, inner, at, cython.address(index))
                    if inner < 0:
                        raise CorruptMessageError(_sentence(-1))
        if self.entry_producer_name.data == cython.NULL or not entry.has_sequence_id or not has_publish_time:
            raise CorruptMessageError("the message metadata lacks a required field")
        entry.has_event_time = True
        if self.num_chunks > 1:
            flags = (flags | 4) & ~8
        if not flags & 8:
            self.num_messages = 1
        if self.compression:
            flags |= 16
        return flags

    def append_single(self, payload, ledger_id: cython.longlong, entry_id: cython.longlong):
        """As `_messages_python.EntryColumns.append_single`."""
        body: cython.p_uchar = cython.cast(cython.p_uchar, self.view.buf)
        other: Py_buffer
        data: cython.p_uchar
        size: cython.Py_ssize_t
        self._expect_parsed()
        if payload is None:
            data = body + self.metadata_end
            size = self.view.len - self.metadata_end
            self._append_single(data, size, ledger_id, entry_id)
        else:
            PyObject_GetBuffer(payload, cython.address(other), PyBUF_SIMPLE)
            try:
                self._append_single(cython.cast(cython.p_uchar, other.buf), other.len, ledger_id, entry_id)
            finally:
                PyBuffer_Release(cython.address(other))
        self._close()
        return 1

    @cython.cfunc
    def _append_single(
        self, data: cython.p_uchar, size: cython.Py_ssize_t, ledger_id: cython.longlong, entry_id: cython.longlong
    ):
        body: cython.p_uchar = cython.cast(cython.p_uchar, self.view.buf)
        metadata_bytes: cython.Py_ssize_t = self.metadata_end - self.metadata_start
        marks: _Marks = self._mark()
        code: cython.Py_ssize_t
        self._reserve_rows(1)
        self._reserve(cython.address(self.value), size, "value")
        self._reserve(cython.address(self.key), self.entry.key.size, "key")
        self._reserve(cython.address(self.ordering_key), self.entry.ordering_key.size, "ordering_key")
        if self.entry.num_properties:
            self._reserve_properties(metadata_bytes)
        code = self._append_row(
            cython.address(self.entry), data, size, self.rows, body, self.metadata_start, self.metadata_end, 0x22
        )
        if code < 0:
            self._roll_back(marks)
            raise self._error(code, -1)
        if self.wants_message_id:
            self.batch_indexes[self.rows] = -1
        self._fill(1, ledger_id, entry_id, marks)
        if self.broker_index.wanted and self.has_broker_index:
            self.broker_index.data[self.rows] = self.entry_broker_index
        self.rows += 1

    def append_batch(
        self,
        payload,
        ledger_id: cython.longlong,
        entry_id: cython.longlong,
        ack_set,
        first_index: cython.Py_ssize_t,
        last_index: cython.Py_ssize_t,
    ):
        """As `_messages_python.EntryColumns.append_batch`."""
        body: cython.p_uchar = cython.cast(cython.p_uchar, self.view.buf)
        other: Py_buffer
        rows: cython.Py_ssize_t
        skipped: cython.p_uchar = cython.NULL
        size: cython.Py_ssize_t
        count: cython.Py_ssize_t = self.num_messages
        data: cython.p_uchar
        is_other: cython.bint = payload is not None
        index: cython.Py_ssize_t
        at: cython.Py_ssize_t
        stop: cython.Py_ssize_t
        self._expect_parsed()
        if is_other:
            PyObject_GetBuffer(payload, cython.address(other), PyBUF_SIMPLE)
            data = cython.cast(cython.p_uchar, other.buf)
            size = other.len
        else:
            data = body + self.metadata_end
            size = self.view.len - self.metadata_end
        try:
            if count <= 0 or count > size // 6:
                raise CorruptMessageError(f"{size} bytes cannot hold the batch of {count} messages that was announced")
            if ack_set or self.has_compacted or first_index > 0 or last_index < count - 1:
                skipped = self._skipped(ack_set, first_index, last_index)
            if count <= self.max_rows:
                rows = self._append_batch(data, size, skipped, ledger_id, entry_id, 0, 0, count, True)
            else:
                # All of it is checked before a row is added: afterwards it is too late for an error.
                index = at = 0
                while index < count:
                    stop = min(index + self.max_rows, count)
                    self._append_batch(data, size, skipped, ledger_id, entry_id, at, index, stop, False)
                    index, at = stop, self.walked_to
                self.rest_payload = payload
                self.rest_skipped, skipped = skipped, cython.NULL
                self.rest_index = self.rest_at = 0
                self.rest_ledger_id = ledger_id
                self.rest_entry_id = entry_id
                self.unfinished = True
        finally:
            free(skipped)
            if is_other:
                PyBuffer_Release(cython.address(other))
        if self.unfinished:
            return self.append_rest()
        self._close()
        return rows

    def append_rest(self):
        """As `_messages_python.EntryColumns.append_rest`."""
        other: Py_buffer
        data: cython.p_uchar = cython.cast(cython.p_uchar, self.view.buf) + self.metadata_end
        size: cython.Py_ssize_t = self.view.len - self.metadata_end
        stop: cython.Py_ssize_t = min(self.rest_index + self.max_rows, self.num_messages)
        is_other: cython.bint = self.rest_payload is not None
        rows: cython.Py_ssize_t
        if not self.unfinished:
            raise RuntimeError("no batch is unfinished")
        if is_other:
            PyObject_GetBuffer(self.rest_payload, cython.address(other), PyBUF_SIMPLE)
            data = cython.cast(cython.p_uchar, other.buf)
            size = other.len
        try:
            rows = self._append_batch(
                data,
                size,
                self.rest_skipped,
                self.rest_ledger_id,
                self.rest_entry_id,
                self.rest_at,
                self.rest_index,
                stop,
                True,
            )
        finally:
            if is_other:
                PyBuffer_Release(cython.address(other))
        self.rest_index = stop
        self.rest_at = self.walked_to
        if stop == self.num_messages:
            self._close()
        return rows

    @cython.cfunc
    def _skipped(self, ack_set, first_index: cython.Py_ssize_t, last_index: cython.Py_ssize_t) -> cython.p_uchar:
        """A byte for each message of the batch: 1 where it is not wanted. To be freed."""
        count: cython.Py_ssize_t = self.num_messages
        index: cython.Py_ssize_t
        word: cython.ulonglong = 0
        words: cython.Py_ssize_t = len(ack_set)
        data: cython.p_uchar = cython.cast(cython.p_uchar, self.view.buf)
        at: cython.Py_ssize_t = self.metadata_start
        inner: cython.Py_ssize_t
        field: _Field
        number: cython.ulonglong = 0
        skipped: cython.p_uchar = cython.cast(cython.p_uchar, malloc(count))
        if skipped == cython.NULL:
            raise MemoryError
        try:
            for index in range(count):
                if words and index & 63 == 0:
                    word = ack_set[index >> 6] & 0xFFFFFFFFFFFFFFFF if index >> 6 < words else 0
                skipped[index] = index < first_index or index > last_index or (words and not (word >> (index & 63)) & 1)
        except BaseException:
            free(skipped)
            raise
        if self.has_compacted:
            while at < self.metadata_end:
                at = _read_field(data, at, self.metadata_end, cython.address(field))
                if field.tag == 0xF8:
                    index = cython.cast(cython.int, cython.cast(cython.uint, field.value))
                    if 0 <= index < count:
                        skipped[index] = 1
                elif field.tag == 0xFA:
                    inner = field.start
                    while inner < at:
                        inner = _read_varint(data, inner, at, cython.address(number))
                        index = cython.cast(cython.int, cython.cast(cython.uint, number))
                        if 0 <= index < count:
                            skipped[index] = 1
        return skipped

    @cython.cfunc
    @cython.exceptval(-1)
    def _append_batch(
        self,
        data: cython.p_uchar,
        size: cython.Py_ssize_t,
        skipped: cython.p_uchar,
        ledger_id: cython.longlong,
        entry_id: cython.longlong,
        at: cython.Py_ssize_t,
        index: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
        adds: cython.bint,
    ) -> cython.Py_ssize_t:
        """Add the messages from `index`, which begins at `at`, up to `stop`; or only check that they could be."""
        marks: _Marks = self._mark()
        rows: cython.Py_ssize_t
        row: cython.Py_ssize_t
        first: cython.ulonglong
        reserved: cython.Py_ssize_t = size
        if stop - index < self.num_messages:
            reserved = self._span(data, size, at, index, stop)
        self._reserve_rows(stop - index)
        # No column can hold more than the part of the payload that its bytes come from.
        self._reserve(cython.address(self.value), reserved, "value")
        self._reserve(cython.address(self.key), reserved, "key")
        self._reserve(cython.address(self.ordering_key), reserved, "ordering_key")
        self._reserve_properties(reserved)
        if size >= _NOGIL_BYTES:
            with cython.nogil:
                rows = self._walk(data, size, skipped, at, index, stop)
        else:
            rows = self._walk(data, size, skipped, at, index, stop)
        if rows < 0:
            self._roll_back(marks)
            raise self._error(rows, self.error_index)
        if rows == 0:
            return 0
        self._fill(rows, ledger_id, entry_id, marks)
        if not adds:
            self._roll_back(marks)
            return 0
        if self.broker_index.wanted and self.has_broker_index:
            # The broker counts to the batch's last message. Unsigned, because that may wrap around.
            first = cython.cast(cython.ulonglong, self.entry_broker_index) - (self.num_messages - 1)
            for row in range(self.rows, self.rows + rows):
                self.broker_index.data[row] = cython.cast(cython.longlong, first + self.batch_indexes[row])
        self.rows += rows
        return rows

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _span(
        self,
        data: cython.p_uchar,
        size: cython.Py_ssize_t,
        at: cython.Py_ssize_t,
        index: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """How many bytes messages take, up to one that is cut off."""
        single: _Single
        begin: cython.Py_ssize_t = at
        start: cython.Py_ssize_t
        for _ in range(stop - index):
            if size - at < 4 or _read_u32(data, at) > size - at - 4:
                break
            start = at + 4
            at = start + _read_u32(data, at)
            if _parse_single(data, start, at, cython.address(single)) < 0:
                break
            if single.payload_size < 0 or single.payload_size > size - at:
                break
            at += single.payload_size
        return at - begin

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk(
        self,
        data: cython.p_uchar,
        size: cython.Py_ssize_t,
        skipped: cython.p_uchar,
        at: cython.Py_ssize_t,
        begin: cython.Py_ssize_t,
        stop: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Write rows of a batch; how many, or why not (and `error_index` where)."""
        single: _Single
        start: cython.Py_ssize_t
        row: cython.Py_ssize_t = self.rows
        index: cython.Py_ssize_t
        code: cython.Py_ssize_t
        wants_index: cython.bint = self.batch_indexes != cython.NULL
        for index in range(begin, stop):
            self.error_index = index
            if size - at < 4:
                return -6
            start = at + 4
            at = _read_u32(data, at)
            if at > size - start:
                return -6
            at += start
            code = _parse_single(data, start, at, cython.address(single))
            if code < 0:
                return code
            if single.payload_size < 0 or single.payload_size > size - at:
                return -6
            if not single.compacted_out and (skipped == cython.NULL or not skipped[index]):
                code = self._append_row(
                    cython.address(single), data + at, single.payload_size, row, data, start, at, 0x0A
                )
                if code < 0:
                    return code
                if wants_index:
                    self.batch_indexes[row] = cython.cast(cython.int, index)
                row += 1
            at += single.payload_size
        self.walked_to = at
        return row - self.rows

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _append_row(
        self,
        single: cython.pointer(_Single),
        payload: cython.p_uchar,
        size: cython.Py_ssize_t,
        row: cython.Py_ssize_t,
        metadata: cython.p_uchar,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        property_tag: cython.uint,
    ) -> cython.Py_ssize_t:
        """Write what differs from message to message; 0, or why not."""
        number: cython.longlong
        flag: cython.int
        code: cython.Py_ssize_t
        if self.value.wanted:
            flag = self.entry.null_value if single.null_value < 0 else single.null_value
            if flag:
                _put_null(cython.address(self.value), row)
            else:
                if self.value.text:
                    self.error_byte = _find_no_utf8(payload, size)
                    if self.error_byte >= 0:
                        return -81
                _put(cython.address(self.value), row, payload, size)
        if self.key.wanted:
            flag = self.entry.null_key if single.null_key < 0 else single.null_key
            if flag or single.key.data == cython.NULL:
                _put_null(cython.address(self.key), row)
            else:
                code = self._put_key(single, row)
                if code < 0:
                    return code
        if self.event_time.wanted:
            number = single.event_time if single.has_event_time else self.entry.event_time
            if number < -_MAX_TIME_MS or number > _MAX_TIME_MS:
                self.error_time = number
                return -102
            self.event_time.data[row] = number * 1000
            self.event_time.valid[row] = number != 0
            self.event_time.nulls += number == 0
        if self.wants_properties:
            if single.num_properties:
                code = self._put_properties(metadata, at, end, property_tag)
                if code < 0:
                    return code
            self.property_offsets[row + 1] = cython.cast(cython.int, self.num_properties)
        if self.sequence_id.wanted:
            self.sequence_id.data[row] = single.sequence_id if single.has_sequence_id else self.entry.sequence_id
            self.sequence_id.valid[row] = 1
        if self.ordering_key.wanted:
            if single.ordering_key.data == cython.NULL:
                _put_null(cython.address(self.ordering_key), row)
            else:
                _put(cython.address(self.ordering_key), row, single.ordering_key.data, single.ordering_key.size)
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_key(self, single: cython.pointer(_Single), row: cython.Py_ssize_t) -> cython.Py_ssize_t:
        size: cython.Py_ssize_t
        start: cython.p_uchar = self.key.data + self.key.used
        if single.is_base64:
            size = _decode_base64(single.key.data, single.key.size, start)
            if size < 0:
                return size
            self.key.used += size
            self.key.offsets[row + 1] = cython.cast(cython.int, self.key.used)
            self.key.valid[row] = 1
        else:
            size = single.key.size
            _put(cython.address(self.key), row, single.key.data, size)
        if self.key.text:
            self.error_byte = _find_no_utf8(start, size)
            if self.error_byte >= 0:
                return -82
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_properties(
        self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, property_tag: cython.uint
    ) -> cython.Py_ssize_t:
        """Write one message's properties; 0, or why not."""
        field: _Field
        pair: _Field
        key: _Slice
        item: _Slice
        inner: cython.Py_ssize_t
        first: cython.Py_ssize_t = self.num_properties
        other: cython.Py_ssize_t
        count: cython.Py_ssize_t
        keys: cython.pointer(_Bytes) = cython.address(self.property_keys)
        items: cython.pointer(_Bytes) = cython.address(self.property_items)
        start_of_keys: cython.Py_ssize_t = keys.used
        start_of_items: cython.Py_ssize_t = items.used
        whole_start: cython.Py_ssize_t = at
        is_twice: cython.bint = False
        while at < end:
            at = _read_field(data, at, end, cython.address(field))
            if field.tag != property_tag:
                continue
            key.data = cython.NULL
            item.data = cython.NULL
            inner = field.start
            while inner < at:
                inner = _read_field(data, inner, at, cython.address(pair))
                if inner < 0:
                    return inner
                if pair.tag == 0x0A:
                    key.data = data + pair.start
                    key.size = pair.size
                elif pair.tag == 0x12:
                    item.data = data + pair.start
                    item.size = pair.size
            if not key.data or not item.data:
                return -9
            self.error_byte = _find_no_utf8(key.data, key.size)
            if self.error_byte >= 0:
                return -83
            self.error_byte = _find_no_utf8(item.data, item.size)
            if self.error_byte >= 0:
                return -83
            count = self.num_properties - first
            if count >= _COMPARED_PROPERTIES:
                is_twice = True
            for other in range(first, self.num_properties):
                if is_twice:
                    break
                if keys.offsets[other + 1] - keys.offsets[other] == key.size and not memcmp(
                    keys.data + keys.offsets[other], key.data, key.size
                ):
                    is_twice = True
            memcpy(keys.data + keys.used, key.data, key.size)
            keys.used += key.size
            memcpy(items.data + items.used, item.data, item.size)
            items.used += item.size
            self.num_properties += 1
            keys.offsets[self.num_properties] = cython.cast(cython.int, keys.used)
            items.offsets[self.num_properties] = cython.cast(cython.int, items.used)
        if is_twice:
            # Rare: the same key again, or so many that a dict is faster. All have been found to be well-formed.
            keys.used = start_of_keys
            items.used = start_of_items
            self.num_properties = first
            with cython.gil:
                try:
                    self._put_properties_once(data, whole_start, end, property_tag)
                except MemoryError:
                    return -11
        return 0

    @cython.cfunc
    def _put_properties_once(
        self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, property_tag: cython.uint
    ):
        """Write properties of which the last of several with the same key counts."""
        field: _Field
        pair: _Field
        inner: cython.Py_ssize_t
        text: cython.p_char
        keys: cython.pointer(_Bytes) = cython.address(self.property_keys)
        items: cython.pointer(_Bytes) = cython.address(self.property_items)
        found: dict = {}
        while at < end:
            at = _read_field(data, at, end, cython.address(field))
            if field.tag != property_tag:
                continue
            key = item = None
            inner = field.start
            while inner < at:
                inner = _read_field(data, inner, at, cython.address(pair))
                if pair.tag == 0x0A:
                    key = data[pair.start : pair.start + pair.size]
                elif pair.tag == 0x12:
                    item = data[pair.start : pair.start + pair.size]
            found[key] = item
        for key, item in found.items():
            text = key
            memcpy(keys.data + keys.used, text, len(key))
            keys.used += len(key)
            text = item
            memcpy(items.data + items.used, text, len(item))
            items.used += len(item)
            self.num_properties += 1
            keys.offsets[self.num_properties] = cython.cast(cython.int, keys.used)
            items.offsets[self.num_properties] = cython.cast(cython.int, items.used)

    @cython.cfunc
    def _fill(
        self,
        rows: cython.Py_ssize_t,
        ledger_id: cython.longlong,
        entry_id: cython.longlong,
        marks: _Marks,
    ):
        """Write what the rows of one entry have in common."""
        row: cython.Py_ssize_t
        first: cython.Py_ssize_t = self.rows
        try:
            if self.publish_time.wanted:
                self._fill_time(cython.address(self.publish_time), rows, self.entry_publish_time, True, "publish_time")
            if self.broker_time.wanted:
                self._fill_time(
                    cython.address(self.broker_time),
                    rows,
                    self.entry_broker_time,
                    self.has_broker_time,
                    "broker_publish_time",
                )
            if self.producer_name.wanted:
                self._fill_bytes(cython.address(self.producer_name), rows, self.entry_producer_name, "producer_name")
            if self.schema_version.wanted:
                self._fill_bytes(cython.address(self.schema_version), rows, self.entry_schema_version, "schema_version")
            if self.replicated_from.wanted:
                self._fill_bytes(
                    cython.address(self.replicated_from), rows, self.entry_replicated_from, "replicated_from"
                )
        except BaseException:
            self._roll_back(marks)
            raise
        if self.wants_message_id:
            for row in range(first, first + rows):
                self.ledger_ids[row] = ledger_id
            for row in range(first, first + rows):
                self.entry_ids[row] = entry_id
        if self.broker_index.wanted:
            memset(self.broker_index.valid + first, self.has_broker_index, rows)
            if not self.has_broker_index:
                self.broker_index.nulls += rows

    @cython.cfunc
    def _fill_time(
        self,
        column: cython.pointer(_Longs),
        rows: cython.Py_ssize_t,
        time_ms: cython.longlong,
        is_known: cython.bint,
        name,
    ):
        row: cython.Py_ssize_t
        if not is_known:
            memset(column.valid + self.rows, 0, rows)
            memset(column.data + self.rows, 0, rows * 8)
            column.nulls += rows
            return
        if time_ms < -_MAX_TIME_MS or time_ms > _MAX_TIME_MS:
            raise CorruptMessageError(_sentence(-10).format(column=name, time_ms=time_ms))
        memset(column.valid + self.rows, 1, rows)
        for row in range(self.rows, self.rows + rows):
            column.data[row] = time_ms * 1000

    @cython.cfunc
    def _fill_bytes(self, column: cython.pointer(_Bytes), rows: cython.Py_ssize_t, cell: _Slice, name):
        row: cython.Py_ssize_t
        bad: cython.Py_ssize_t
        if cell.data == cython.NULL:
            for row in range(self.rows, self.rows + rows):
                _put_null(column, row)
            return
        if cell.size * rows > max(self.max_repeated_bytes, 16 * (self.view.len - self.metadata_end)):
            raise repeated_too_often(name, cell.size, rows)
        if column.text:
            bad = _find_no_utf8(cell.data, cell.size)
            if bad >= 0:
                raise CorruptMessageError(_sentence(-8).format(column=name, byte=bad))
        self._reserve(column, cell.size * rows, name)
        for row in range(self.rows, self.rows + rows):
            _put(column, row, cell.data, cell.size)

    def append_null(self, ledger_id: cython.longlong, entry_id: cython.longlong):
        """As `_messages_python.EntryColumns.append_null`."""
        self._close()
        self._reserve_rows(1)
        self._append_null_bytes(cython.address(self.value))
        self._append_null_bytes(cython.address(self.key))
        self._append_null_bytes(cython.address(self.ordering_key))
        self._append_null_bytes(cython.address(self.producer_name))
        self._append_null_bytes(cython.address(self.schema_version))
        self._append_null_bytes(cython.address(self.replicated_from))
        self._append_null_long(cython.address(self.publish_time))
        self._append_null_long(cython.address(self.event_time))
        self._append_null_long(cython.address(self.sequence_id))
        self._append_null_long(cython.address(self.broker_time))
        self._append_null_long(cython.address(self.broker_index))
        if self.wants_message_id:
            self.ledger_ids[self.rows] = ledger_id
            self.entry_ids[self.rows] = entry_id
            self.batch_indexes[self.rows] = -1
        if self.wants_properties:
            self.property_offsets[self.rows + 1] = cython.cast(cython.int, self.num_properties)
        self.rows += 1
        return 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _append_null_bytes(self, column: cython.pointer(_Bytes)) -> cython.void:
        if column.wanted:
            _put_null(column, self.rows)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _append_null_long(self, column: cython.pointer(_Longs)) -> cython.void:
        if column.wanted:
            column.data[self.rows] = 0
            column.valid[self.rows] = 0
            column.nulls += 1

    @cython.cfunc
    def _error(self, code: cython.Py_ssize_t, index: cython.Py_ssize_t):
        """The error for what `_append_row` or `_walk` returned."""
        if code == -11:
            return MemoryError()
        if code <= -80:
            name = {-81: "value", -82: "key", -83: "properties", -102: "event_time"}[code]
            sentence = _sentence(-10 if code == -102 else -8)
            sentence = sentence.format(column=name, byte=self.error_byte, time_ms=self.error_time)
        else:
            sentence = _sentence(code)
        return CorruptMessageError(sentence if index < 0 else f"batch index {index}: {sentence}")

    @cython.cfunc
    def _mark(self) -> _Marks:
        marks: _Marks
        marks.value_used = self.value.used
        marks.value_nulls = self.value.nulls
        marks.key_used = self.key.used
        marks.key_nulls = self.key.nulls
        marks.ordering_key_used = self.ordering_key.used
        marks.ordering_key_nulls = self.ordering_key.nulls
        marks.producer_name_used = self.producer_name.used
        marks.producer_name_nulls = self.producer_name.nulls
        marks.schema_version_used = self.schema_version.used
        marks.schema_version_nulls = self.schema_version.nulls
        marks.replicated_from_used = self.replicated_from.used
        marks.replicated_from_nulls = self.replicated_from.nulls
        marks.event_time_nulls = self.event_time.nulls
        marks.broker_time_nulls = self.broker_time.nulls
        marks.broker_index_nulls = self.broker_index.nulls
        marks.num_properties = self.num_properties
        marks.property_keys_used = self.property_keys.used
        marks.property_items_used = self.property_items.used
        return marks

    @cython.cfunc
    @cython.exceptval(check=False)
    def _roll_back(self, marks: _Marks) -> cython.void:
        self.value.used = marks.value_used
        self.value.nulls = marks.value_nulls
        self.key.used = marks.key_used
        self.key.nulls = marks.key_nulls
        self.ordering_key.used = marks.ordering_key_used
        self.ordering_key.nulls = marks.ordering_key_nulls
        self.producer_name.used = marks.producer_name_used
        self.producer_name.nulls = marks.producer_name_nulls
        self.schema_version.used = marks.schema_version_used
        self.schema_version.nulls = marks.schema_version_nulls
        self.replicated_from.used = marks.replicated_from_used
        self.replicated_from.nulls = marks.replicated_from_nulls
        self.event_time.nulls = marks.event_time_nulls
        self.broker_time.nulls = marks.broker_time_nulls
        self.broker_index.nulls = marks.broker_index_nulls
        self.num_properties = marks.num_properties
        self.property_keys.used = marks.property_keys_used
        self.property_items.used = marks.property_items_used

    @cython.cfunc
    def _reserve_rows(self, more: cython.Py_ssize_t):
        capacity: cython.Py_ssize_t
        if self.rows + more <= self.row_capacity:
            return
        capacity = max(self.rows + more, 2 * self.row_capacity, self.row_hint, 64)
        self._resize_bytes(cython.address(self.value), capacity)
        self._resize_bytes(cython.address(self.key), capacity)
        self._resize_bytes(cython.address(self.ordering_key), capacity)
        self._resize_bytes(cython.address(self.producer_name), capacity)
        self._resize_bytes(cython.address(self.schema_version), capacity)
        self._resize_bytes(cython.address(self.replicated_from), capacity)
        self._resize_longs(cython.address(self.publish_time), capacity)
        self._resize_longs(cython.address(self.event_time), capacity)
        self._resize_longs(cython.address(self.sequence_id), capacity)
        self._resize_longs(cython.address(self.broker_time), capacity)
        self._resize_longs(cython.address(self.broker_index), capacity)
        if self.wants_message_id:
            self.ledger_ids = cython.cast(cython.p_longlong, _resize(self.ledger_ids, capacity * 8))
            self.entry_ids = cython.cast(cython.p_longlong, _resize(self.entry_ids, capacity * 8))
        if self.wants_message_id or self.broker_index.wanted:
            self.batch_indexes = cython.cast(cython.p_int, _resize(self.batch_indexes, capacity * 4))
        if self.wants_properties:
            self.property_offsets = cython.cast(cython.p_int, _resize(self.property_offsets, (capacity + 1) * 4))
            self.property_offsets[0] = 0
        self.row_capacity = capacity

    @cython.cfunc
    def _resize_bytes(self, column: cython.pointer(_Bytes), capacity: cython.Py_ssize_t):
        if column.wanted:
            column.offsets = cython.cast(cython.p_int, _resize(column.offsets, (capacity + 1) * 4))
            column.offsets[0] = 0
            column.valid = cython.cast(cython.p_uchar, _resize(column.valid, capacity))

    @cython.cfunc
    def _resize_longs(self, column: cython.pointer(_Longs), capacity: cython.Py_ssize_t):
        if column.wanted:
            column.data = cython.cast(cython.p_longlong, _resize(column.data, capacity * 8))
            column.valid = cython.cast(cython.p_uchar, _resize(column.valid, capacity))

    @cython.cfunc
    def _reserve(self, column: cython.pointer(_Bytes), more: cython.Py_ssize_t, name):
        """Make room for `more` bytes in a column."""
        capacity: cython.Py_ssize_t
        # Even nothing is only ever copied to somewhere: memcpy to NULL is undefined.
        if not column.wanted or (column.data and column.used + more <= column.capacity):
            return
        if column.used + more > cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES):
            raise column_overflow(name)
        # Never beyond the bound, which is not looked at again while there is room.
        capacity = max(column.used + more, 2 * column.capacity, column.hint, 256)
        capacity = min(capacity, cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES))
        column.data = cython.cast(cython.p_uchar, _resize(column.data, capacity))
        column.capacity = capacity

    @cython.cfunc
    def _reserve_properties(self, more: cython.Py_ssize_t):
        """Make room for the properties that `more` bytes can hold: each takes six at least, and a tag and a size."""
        capacity: cython.Py_ssize_t
        count: cython.Py_ssize_t = self.num_properties + more // 6 + 1
        if not self.wants_properties:
            return
        self.property_keys.wanted = True
        self.property_items.wanted = True
        self._reserve(cython.address(self.property_keys), more, "properties")
        self._reserve(cython.address(self.property_items), more, "properties")
        if count <= self.property_capacity:
            return
        if count > cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES):
            raise column_overflow("properties")
        capacity = min(max(count, 2 * self.property_capacity), cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES))
        self._resize_bytes(cython.address(self.property_keys), capacity)
        self._resize_bytes(cython.address(self.property_items), capacity)
        self.property_capacity = capacity

    def take_arrays(self):
        """As `_messages_python.EntryColumns.take_arrays`."""
        arrays: list = []
        rows: cython.Py_ssize_t = self.rows
        if not rows:
            return [pa.nulls(0, field.type) for field in self.schema]
        for field in self.schema:
            name = field.name
            if name in self.constant:
                arrays.append(self.constant[name].take(rows))
            elif name == "message_id":
                arrays.append(self._take_message_ids(field.type))
            elif name == "properties":
                arrays.append(self._take_properties(field.type))
            elif name == "value":
                arrays.append(self._take_bytes(cython.address(self.value), field.type, rows))
            elif name == "key":
                arrays.append(self._take_bytes(cython.address(self.key), field.type, rows))
            elif name == "ordering_key":
                arrays.append(self._take_bytes(cython.address(self.ordering_key), field.type, rows))
            elif name == "producer_name":
                arrays.append(self._take_bytes(cython.address(self.producer_name), field.type, rows))
            elif name == "schema_version":
                arrays.append(self._take_bytes(cython.address(self.schema_version), field.type, rows))
            elif name == "replicated_from":
                arrays.append(self._take_bytes(cython.address(self.replicated_from), field.type, rows))
            elif name == "publish_time":
                arrays.append(self._take_longs(cython.address(self.publish_time), field.type))
            elif name == "event_time":
                arrays.append(self._take_longs(cython.address(self.event_time), field.type))
            elif name == "sequence_id":
                arrays.append(self._take_longs(cython.address(self.sequence_id), field.type))
            elif name == "broker_publish_time":
                arrays.append(self._take_longs(cython.address(self.broker_time), field.type))
            else:
                arrays.append(self._take_longs(cython.address(self.broker_index), field.type))
        # As much again is likely to come: enough at once spares growing, which copies.
        self.row_hint = rows + rows // 8
        self.row_capacity = 0
        self.rows = 0
        return arrays

    @cython.cfunc
    def _take_bytes(self, column: cython.pointer(_Bytes), type_, rows: cython.Py_ssize_t):
        validity = _pack_validity(column.valid, rows) if column.nulls else None
        offsets = _hand_over(column.offsets, (rows + 1) * 4)
        column.offsets = cython.NULL
        data = pa.py_buffer(b"") if column.data == cython.NULL else _hand_over(column.data, column.used)
        nulls = column.nulls
        column.data = cython.NULL
        column.hint = column.used + column.used // 8
        column.used = 0
        column.capacity = 0
        column.nulls = 0
        return variable_width_array(type_, rows, offsets, data, validity, nulls)

    @cython.cfunc
    def _take_longs(self, column: cython.pointer(_Longs), type_):
        validity = _pack_validity(column.valid, self.rows) if column.nulls else None
        data = _hand_over(column.data, self.rows * 8)
        nulls = column.nulls
        column.data = cython.NULL
        column.nulls = 0
        return fixed_width_array(type_, self.rows, data, validity, nulls)

    @cython.cfunc
    def _take_message_ids(self, type_):
        ledger_ids = _hand_over(self.ledger_ids, self.rows * 8)
        self.ledger_ids = cython.NULL
        entry_ids = _hand_over(self.entry_ids, self.rows * 8)
        self.entry_ids = cython.NULL
        batch_indexes = _hand_over(self.batch_indexes, self.rows * 4)
        self.batch_indexes = cython.NULL
        types = (type_.field(0).type, type_.field(1).type, type_.field(2).type)
        parts = [
            fixed_width_array(part_type, self.rows, part)
            for part_type, part in zip(types, (ledger_ids, entry_ids, batch_indexes), strict=True)
        ]
        return struct_array(type_, parts)

    @cython.cfunc
    def _take_properties(self, type_):
        count: cython.Py_ssize_t = self.num_properties
        offsets = _hand_over(self.property_offsets, (self.rows + 1) * 4)
        self.property_offsets = cython.NULL
        if count:
            keys = self._take_bytes(cython.address(self.property_keys), type_.key_type, count)
            items = self._take_bytes(cython.address(self.property_items), type_.item_type, count)
            self.property_capacity = 0
        else:
            keys, items = pa.nulls(0, type_.key_type), pa.nulls(0, type_.item_type)
        self.num_properties = 0
        return map_array(type_, self.rows, offsets, keys, items)
