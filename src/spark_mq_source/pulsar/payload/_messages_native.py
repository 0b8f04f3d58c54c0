"""The entry decoder's inner loop, compiled: Cython's pure-Python mode, C types in annotations.

It has the interface, rows and errors of ``_messages_python``, whose documentation and rules apply. The difference: the
loop walks the payload once, without Python objects, and writes into buffers that Arrow then uses without a copy.

Safety: every length is compared with the remaining bytes before it is used; space for the worst case (a column cannot
hold more than the payload it comes from) is reserved before the walk, so the walk itself writes without checks. After
an error the counters are reset, and the next entry overwrites what was written beyond them.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.pulsar.payload._messages_native is not compiled")

from crc32c import crc32c
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp
from cython.cimports.spark_mq_source.core._checked import must
from cython.cimports.spark_mq_source.core._columns_native import (
    Column,
    Columns,
    end_row,
    fill_long,
    put,
    put_entry,
    put_int,
    put_long,
    put_null,
    resize,
    set_null,
)
from cython.cimports.spark_mq_source.core._wire import Field, Slice, find_no_utf8, read_field, read_u32, read_varint

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf_fields import CORRUPT_FIELDS
from spark_mq_source.pulsar.payload.layout import (
    CELL,
    ENTRY_COLUMNS,
    REMEDY,
    TIME,
    checksum_mismatch,
    too_many_repetitions,
)
from spark_mq_source.pulsar.protocol.metadata import TAGS

_NO_UTF8 = cython.declare(cython.Py_ssize_t, -8)
_NO_TIME = cython.declare(cython.Py_ssize_t, -10)
_SENTENCES = cython.declare(
    dict,
    CORRUPT_FIELDS
    | {
        -5: "the message lacks its payload_size",
        -6: "the batch ends within this message",
        -7: "the key is not base64",
        -8: "the {column} is not UTF-8 (byte {byte})",
        -9: "a property lacks its key or its value",
        -10: "the {column} of {time_ms} ms is beyond what a timestamp can hold",
    },
)


# Below this size the walk ends before another thread could use the interpreter.
_NOGIL_BYTES = cython.declare(cython.Py_ssize_t, 65536)
_MAX_TIME_MS = cython.declare(cython.longlong, 9223372036854775)
# Up to this many properties of a message are compared with each other; more go through a dict.
_COMPARED_PROPERTIES = cython.declare(cython.Py_ssize_t, 16)

_Single = cython.struct(
    payload_size=cython.int,
    has_payload_size=cython.bint,
    compacted_out=cython.bint,
    null_value=cython.int,
    null_key=cython.int,
    is_base64=cython.bint,
    has_event_time=cython.bint,
    has_sequence_id=cython.bint,
    key=Slice,
    ordering_key=Slice,
    event_time=cython.longlong,
    sequence_id=cython.longlong,
    num_properties=cython.Py_ssize_t,
)
# A column with the same metadata field in all rows of an entry.
_Common = cython.struct(column=cython.pointer(Column), number=cython.int, kind=cython.int)

# For each field number of MessageMetadata, the tag, or 0.
_FIELDS = cython.declare(cython.int, 48)
_TAGS = cython.declare(cython.ulonglong[48])
for _tag in TAGS.values():
    if _tag >> 3 >= _FIELDS:
        raise ImportError(f"field {_tag >> 3} of MessageMetadata is beyond the {_FIELDS} of this module")
    _TAGS[_tag >> 3] = _tag
_PRODUCER_NAME = cython.declare(cython.int, TAGS["producer_name"] >> 3)
_SEQUENCE_ID = cython.declare(cython.int, TAGS["sequence_id"] >> 3)
_PUBLISH_TIME = cython.declare(cython.int, TAGS["publish_time"] >> 3)
_PARTITION_KEY = cython.declare(cython.int, TAGS["partition_key"] >> 3)
_COMPRESSION = cython.declare(cython.int, TAGS["compression"] >> 3)
_UNCOMPRESSED_SIZE = cython.declare(cython.int, TAGS["uncompressed_size"] >> 3)
_NUM_MESSAGES_IN_BATCH = cython.declare(cython.int, TAGS["num_messages_in_batch"] >> 3)
_EVENT_TIME = cython.declare(cython.int, TAGS["event_time"] >> 3)
_ENCRYPTION_KEYS = cython.declare(cython.int, TAGS["encryption_keys"] >> 3)
_PARTITION_KEY_B64_ENCODED = cython.declare(cython.int, TAGS["partition_key_b64_encoded"] >> 3)
_ORDERING_KEY = cython.declare(cython.int, TAGS["ordering_key"] >> 3)
_MARKER_TYPE = cython.declare(cython.int, TAGS["marker_type"] >> 3)
_NULL_VALUE = cython.declare(cython.int, TAGS["null_value"] >> 3)
_UUID = cython.declare(cython.int, TAGS["uuid"] >> 3)
_NUM_CHUNKS_FROM_MSG = cython.declare(cython.int, TAGS["num_chunks_from_msg"] >> 3)
_TOTAL_CHUNK_MSG_SIZE = cython.declare(cython.int, TAGS["total_chunk_msg_size"] >> 3)
_CHUNK_ID = cython.declare(cython.int, TAGS["chunk_id"] >> 3)
_NULL_PARTITION_KEY = cython.declare(cython.int, TAGS["null_partition_key"] >> 3)
_PROPERTIES = cython.declare(cython.int, TAGS["properties"] >> 3)
_TXN = cython.declare(cython.int, TAGS["txnid_least_bits"] >> 3)
_COMPACTED_BATCH_INDEXES = cython.declare(cython.int, TAGS["compacted_batch_indexes"] >> 3)
_TIME = cython.declare(cython.int, TIME)
_CELL = cython.declare(cython.int, CELL)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _parse_single(
    data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, single: cython.pointer(_Single)
) -> cython.Py_ssize_t:
    """Return 0, or why the SingleMessageMetadata is corrupt."""
    field: Field
    # Not by memset, which costs as much as the rest: the numbers have no meaning unless these flags are set.
    single.has_payload_size = single.has_event_time = single.has_sequence_id = False
    single.compacted_out = single.is_base64 = False
    single.null_value = single.null_key = -1
    single.key.data = single.ordering_key.data = cython.NULL
    single.num_properties = 0
    # The usual fields, in this order: a short key or none, payload_size, and a sequence_id or none.
    if end - at > 2 and data[at] == 0x12 and data[at + 1] < 0x80 and data[at + 1] <= end - at - 2:
        single.key.data = data + at + 2
        single.key.size = data[at + 1]
        at += 2 + single.key.size
    if at < end and data[at] == 0x18:
        at = read_varint(data, at + 1, end, cython.address(field.value))
        if at < 0:
            return at
        single.payload_size = cython.cast(cython.int, cython.cast(cython.uint, field.value))
        single.has_payload_size = True
        if at < end and data[at] == 0x40:
            at = read_varint(data, at + 1, end, cython.address(field.value))
            if at < 0:
                return at
            single.sequence_id = cython.cast(cython.longlong, field.value)
            single.has_sequence_id = True
    while at < end:
        at = read_field(data, at, end, cython.address(field))
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
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _find_value(
    data: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t, single: cython.pointer(_Single)
) -> cython.Py_ssize_t:
    """Parse the message of a batch that begins at `at`; return where its value begins, or why it is corrupt."""
    head: cython.Py_ssize_t
    code: cython.Py_ssize_t
    if size - at < 4:
        return -6
    head = read_u32(data + at)
    at += 4
    if head > size - at:
        return -6
    code = _parse_single(data, at, at + head, single)
    if code < 0:
        return code
    at += head
    if single.payload_size < 0 or single.payload_size > size - at:
        return -6
    return at


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
    """Return the number of bytes written to `out` (never more than `size`), or -7."""
    bits: cython.uint = 0
    held: cython.int = 0
    written: cython.Py_ssize_t = 0
    at: cython.Py_ssize_t
    sextet: cython.int
    if size and data[size - 1] == 0x3D:
        # Padding is optional, but must be complete if present.
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


@cython.cclass
class EntryColumns(Columns):
    """See `_messages_python.EntryColumns`."""

    num_messages = cython.declare(cython.int, visibility="readonly")
    compression = cython.declare(cython.int, visibility="readonly")
    uncompressed_size = cython.declare(cython.uint, visibility="readonly")
    redelivery_count = cython.declare(cython.int, visibility="public")
    chunk_id = cython.declare(cython.int, visibility="readonly")
    num_chunks = cython.declare(cython.int, visibility="readonly")
    total_chunk_bytes = cython.declare(cython.int, visibility="readonly")
    unfinished = cython.declare(cython.bint, visibility="readonly")

    max_repeated_bytes: cython.Py_ssize_t
    max_rows: cython.Py_ssize_t
    value: cython.pointer(Column)
    key: cython.pointer(Column)
    ordering_key: cython.pointer(Column)
    message_id: cython.pointer(Column)
    properties: cython.pointer(Column)
    event_time: cython.pointer(Column)
    sequence_id: cython.pointer(Column)
    broker_time: cython.pointer(Column)
    broker_index: cython.pointer(Column)
    redeliveries: cython.pointer(Column)
    common: _Common[32]
    num_common: cython.int

    # The entry opened last; its bytes stay in place while `view` is held.
    body: object
    view: Py_buffer
    is_open: cython.bint
    is_parsed: cython.bint
    metadata_start: cython.Py_ssize_t
    metadata_end: cython.Py_ssize_t
    has_compacted: cython.bint
    # Its metadata, each field at its number; a bit of `present` tells whether the field was present.
    fields: Field[48]
    present: cython.ulonglong
    has_broker_time: cython.bint
    has_broker_index: cython.bint
    broker_time_ms: cython.longlong
    last_broker_index: cython.longlong
    # The defaults of a message of a batch, and the values of a message outside a batch.
    entry: _Single

    # Its payload: as sent, or what has replaced it, whose bytes stay in place while `other` is held.
    replaced: object
    other: Py_buffer
    is_replaced: cython.bint
    data: cython.p_uchar
    size: cython.Py_ssize_t

    # A batch, which may be added in parts: its unwanted messages, if any, and the message to add next.
    skipped: cython.p_uchar
    ledger_id: cython.longlong
    entry_id: cython.longlong
    next_index: cython.Py_ssize_t
    next_at: cython.Py_ssize_t

    # The details of a failure.
    error_index: cython.Py_ssize_t
    error_byte: cython.Py_ssize_t
    error_time: cython.longlong

    def __init__(self, schema, *, topic, partition, max_repeated_bytes, max_rows):
        common: cython.pointer(_Common)
        Columns.__init__(self, schema, {"topic": topic, "partition": partition}, REMEDY)
        self.max_repeated_bytes = max_repeated_bytes
        self.max_rows = max_rows
        self.value = self.find("value")
        self.key = self.find("key")
        self.ordering_key = self.find("ordering_key")
        self.message_id = self.find("message_id.ledger_id")
        self.properties = self.find("properties")
        self.event_time = self.find("event_time")
        self.sequence_id = self.find("sequence_id")
        self.broker_time = self.find("broker_publish_time")
        self.broker_index = self.find("broker_index")
        self.redeliveries = self.find("redelivery_count")
        for name, kind in ENTRY_COLUMNS.items():
            common = cython.address(self.common[self.num_common])
            common.column = self.find(name)
            if common.column != cython.NULL:
                common.number, common.kind = TAGS[name] >> 3, kind
                self.num_common += 1

    def __dealloc__(self):
        if self.is_replaced:
            PyBuffer_Release(cython.address(self.other))
        if self.is_open:
            PyBuffer_Release(cython.address(self.view))
        free(self.skipped)

    @cython.cfunc
    @cython.exceptval(check=False)
    def _close(self) -> cython.void:
        self.is_parsed = self.unfinished = False
        free(self.skipped)
        self.skipped = cython.NULL
        self._drop_replaced()
        if self.is_open:
            self.is_open = False
            PyBuffer_Release(cython.address(self.view))
            self.body = None

    @cython.cfunc
    @cython.exceptval(check=False)
    def _drop_replaced(self) -> cython.void:
        if self.is_replaced:
            self.is_replaced = False
            PyBuffer_Release(cython.address(self.other))
            self.replaced = None

    @property
    def uuid(self):
        cell: Slice = self._bytes(_UUID)
        return cell.data[: cell.size] if self.is_parsed and cell.data else b""

    def payload(self):
        if self.is_replaced:
            return memoryview(self.replaced)
        return memoryview(self.body)[self.metadata_end :] if self.is_parsed else memoryview(b"")

    def replace_payload(self, payload):
        """See `_messages_python.EntryColumns.replace_payload`."""
        self._expect_parsed()
        self._drop_replaced()
        PyObject_GetBuffer(payload, cython.address(self.other), PyBUF_SIMPLE)
        self.is_replaced = True
        self.replaced = payload
        self.data = cython.cast(cython.p_uchar, self.other.buf)
        self.size = self.other.len

    def open_entry(self, body, verify_checksum: cython.bint):
        """See `_messages_python.EntryColumns.open_entry`."""
        flags: cython.int
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t
        start: cython.Py_ssize_t
        data: cython.p_uchar
        announced: cython.Py_ssize_t
        self._close()
        self.num_messages = 1
        self.present = 0
        self.compression = self.chunk_id = self.num_chunks = self.total_chunk_bytes = 0
        self.uncompressed_size = 0
        self.has_broker_time = self.has_broker_index = False
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
            announced = read_u32(data + at + 2)
            at += 6
            if verify_checksum:
                computed = crc32c(memoryview(body)[at:])
                if computed != announced:
                    raise checksum_mismatch(announced, computed)
        start = at + 4
        at = self._sized(data, at, end, "message metadata")
        self.metadata_start = start
        self.metadata_end = at
        self.data = data + at
        self.size = end - at
        flags = self._parse_metadata(data, start, at)
        self.is_parsed = True
        return flags

    def is_transactional(self):
        """See `_messages_python.EntryColumns.is_transactional`."""
        return self._has(_TXN) and not self._has(_MARKER_TYPE)

    @cython.cfunc
    def _expect_parsed(self):
        if not self.is_parsed:
            raise RuntimeError("no entry is open")

    @cython.cfunc
    @cython.exceptval(-1)
    def _sized(self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, what) -> cython.Py_ssize_t:
        """Return the end of the u32-prefixed part at `at`."""
        if end - at < 4 or read_u32(data + at) > end - at - 4:
            raise CorruptMessageError(f"the entry ends within its {what}")
        return at + 4 + read_u32(data + at)

    @cython.cfunc
    def _parse_broker_metadata(self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t):
        field: Field
        while at < end:
            at = read_field(data, at, end, cython.address(field))
            if at < 0:
                raise CorruptMessageError(_SENTENCES[at])
            if field.tag == 0x08:
                self.broker_time_ms = cython.cast(cython.longlong, field.value)
                self.has_broker_time = True
            elif field.tag == 0x10:
                self.last_broker_index = cython.cast(cython.longlong, field.value)
                self.has_broker_index = True

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _has(self, number: cython.int) -> cython.bint:
        return (self.present >> number) & 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _number(self, number: cython.int) -> cython.ulonglong:
        """Return the value of a field of the entry; 0 if it is absent."""
        return self.fields[number].value if self._has(number) else 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _int(self, number: cython.int) -> cython.int:
        return cython.cast(cython.int, cython.cast(cython.uint, self._number(number)))

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def _bytes(self, number: cython.int) -> Slice:
        cell: Slice
        cell.data = cython.NULL
        cell.size = 0
        if self._has(number):
            cell.data = cython.cast(cython.p_uchar, self.view.buf) + self.fields[number].start
            cell.size = self.fields[number].size
        return cell

    @cython.cfunc
    @cython.exceptval(-1)
    def _parse_metadata(self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.int:
        field: Field
        entry: cython.pointer(_Single) = cython.address(self.entry)
        flags: cython.int = 0
        number: cython.ulonglong
        index: cython.ulonglong = 0
        inner: cython.Py_ssize_t
        self.has_compacted = False
        while at < end:
            at = read_field(data, at, end, cython.address(field))
            if at < 0:
                raise CorruptMessageError(_SENTENCES[at])
            number = field.tag >> 3
            if number < cython.cast(cython.ulonglong, _FIELDS) and field.tag == _TAGS[number]:
                self.fields[number] = field
                self.present |= cython.cast(cython.ulonglong, 1) << number
            if number == cython.cast(cython.ulonglong, _COMPACTED_BATCH_INDEXES) and field.tag & 5 == 0:
                self.has_compacted = True
                if field.tag & 2:
                    inner = field.start
                    while inner < at:
                        inner = read_varint(data, inner, at, cython.address(index))
                        if inner < 0:
                            raise CorruptMessageError(_SENTENCES[inner])
        if not (self._has(_PRODUCER_NAME) and self._has(_SEQUENCE_ID) and self._has(_PUBLISH_TIME)):
            raise CorruptMessageError("the message metadata lacks a required field")
        entry.key = self._bytes(_PARTITION_KEY)
        entry.ordering_key = self._bytes(_ORDERING_KEY)
        entry.sequence_id = cython.cast(cython.longlong, self._number(_SEQUENCE_ID))
        entry.event_time = cython.cast(cython.longlong, self._number(_EVENT_TIME))
        entry.has_sequence_id = entry.has_event_time = True
        entry.is_base64 = self._number(_PARTITION_KEY_B64_ENCODED) != 0
        entry.null_value = self._number(_NULL_VALUE) != 0
        entry.null_key = self._number(_NULL_PARTITION_KEY) != 0
        entry.num_properties = self._has(_PROPERTIES)
        self.compression = self._int(_COMPRESSION)
        self.uncompressed_size = cython.cast(cython.uint, self._number(_UNCOMPRESSED_SIZE))
        self.chunk_id = self._int(_CHUNK_ID)
        self.num_chunks = self._int(_NUM_CHUNKS_FROM_MSG)
        self.total_chunk_bytes = self._int(_TOTAL_CHUNK_MSG_SIZE)
        if self._has(_MARKER_TYPE):
            flags |= 1
        if self._has(_ENCRYPTION_KEYS):
            flags |= 2
        if self.num_chunks > 1:
            flags |= 4
        elif self._has(_NUM_MESSAGES_IN_BATCH):
            flags |= 8
            self.num_messages = self._int(_NUM_MESSAGES_IN_BATCH)
        if self.compression:
            flags |= 16
        return flags

    def append_single(self, ledger_id: cython.longlong, entry_id: cython.longlong):
        """See `_messages_python.EntryColumns.append_single`."""
        code: cython.Py_ssize_t
        self._expect_parsed()
        self.reserve_rows(1)
        self.reserve(self.value, self.size)
        self.reserve(self.key, self.entry.key.size)
        self.reserve(self.ordering_key, self.entry.ordering_key.size)
        if self.entry.num_properties:
            self._reserve_properties(self.metadata_end - self.metadata_start)
        self.mark()
        code = self._append_row(
            cython.address(self.entry),
            self.data,
            self.size,
            self.rows,
            cython.cast(cython.p_uchar, self.view.buf),
            self.metadata_start,
            self.metadata_end,
            0x22,
            -1,
        )
        if code < 0:
            self.roll_back()
            raise self._error(code, -1)
        self._fill(1, ledger_id, entry_id)
        self.rows += 1
        self._close()
        return 1

    def append_batch(
        self,
        ledger_id: cython.longlong,
        entry_id: cython.longlong,
        ack_set,
        first_index: cython.Py_ssize_t,
        last_index: cython.Py_ssize_t,
    ):
        """See `_messages_python.EntryColumns.append_batch`."""
        count: cython.Py_ssize_t = self.num_messages
        at: cython.Py_ssize_t
        self._expect_parsed()
        if count <= 0 or count > self.size // 6:
            raise CorruptMessageError(f"{self.size} bytes cannot hold the batch of {count} messages that was announced")
        for at in range(self.num_common):
            if self.common[at].kind == _CELL:
                self._check_repeated(self.common[at].column, self._bytes(self.common[at].number))
        if ack_set or self.has_compacted or first_index > 0 or last_index < count - 1:
            self._skip(ack_set, first_index, last_index)
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.next_index = self.next_at = 0
        if count > self.max_rows:
            # All is checked before a row is added: afterwards it is too late for an error.
            while self.next_index < count:
                self._append_part(False)
            self.next_index = self.next_at = 0
        return self._append_part(True)

    def append_rest(self):
        """See `_messages_python.EntryColumns.append_rest`."""
        if not self.unfinished:
            raise RuntimeError("no batch is unfinished")
        return self._append_part(True)

    @cython.cfunc
    def _skip(self, ack_set, first_index: cython.Py_ssize_t, last_index: cython.Py_ssize_t):
        """Set a byte for each message of the batch: 1 if it is unwanted."""
        count: cython.Py_ssize_t = self.num_messages
        index: cython.Py_ssize_t
        word: cython.ulonglong = 0
        words: cython.Py_ssize_t = len(ack_set)
        data: cython.p_uchar = cython.cast(cython.p_uchar, self.view.buf)
        at: cython.Py_ssize_t = self.metadata_start
        inner: cython.Py_ssize_t
        field: Field
        number: cython.ulonglong = 0
        skipped: cython.p_uchar = cython.cast(cython.p_uchar, resize(self.skipped, count))
        self.skipped = skipped
        for index in range(count):
            if words and index & 63 == 0:
                word = ack_set[index >> 6] & 0xFFFFFFFFFFFFFFFF if index >> 6 < words else 0
            skipped[index] = index < first_index or index > last_index or (words and not (word >> (index & 63)) & 1)
        if self.has_compacted:
            while at < self.metadata_end:
                at = read_field(data, at, self.metadata_end, cython.address(field))
                if field.tag == 0xF8:
                    index = cython.cast(cython.int, cython.cast(cython.uint, field.value))
                    if 0 <= index < count:
                        skipped[index] = 1
                elif field.tag == 0xFA:
                    inner = field.start
                    while inner < at:
                        inner = read_varint(data, inner, at, cython.address(number))
                        index = cython.cast(cython.int, cython.cast(cython.uint, number))
                        if 0 <= index < count:
                            skipped[index] = 1

    @cython.cfunc
    @cython.exceptval(-1)
    def _append_part(self, adds: cython.bint) -> cython.Py_ssize_t:
        """Add the next messages, `max_rows` at most, and return how many; or only check that they can be added."""
        rows: cython.Py_ssize_t
        stop: cython.Py_ssize_t = min(self.next_index + self.max_rows, self.num_messages)
        reserved: cython.Py_ssize_t = self.size
        if stop - self.next_index < self.num_messages:
            reserved = self._span(stop)
        self.reserve_rows(stop - self.next_index)
        # No column can hold more than the part of the payload that its bytes come from.
        self.reserve(self.value, reserved)
        self.reserve(self.key, reserved)
        self.reserve(self.ordering_key, reserved)
        self._reserve_properties(reserved)
        self.mark()
        if self.size >= _NOGIL_BYTES:
            with cython.nogil:
                rows = self._walk(stop)
        else:
            rows = self._walk(stop)
        if rows < 0:
            self.roll_back()
            raise self._error(rows, self.error_index)
        if rows:
            self._fill(rows, self.ledger_id, self.entry_id)
        self.next_index = stop
        if not adds:
            self.roll_back()
            return 0
        self.rows += rows
        self.unfinished = stop < self.num_messages
        if not self.unfinished:
            self._close()
        return rows

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _span(self, stop: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return the total size of the messages from the next one to `stop`, or to one that is corrupt."""
        single: _Single
        end: cython.Py_ssize_t = self.next_at
        start: cython.Py_ssize_t
        for _ in range(self.next_index, stop):
            start = _find_value(self.data, end, self.size, cython.address(single))
            if start < 0:
                break
            end = start + single.payload_size
        return end - self.next_at

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk(self, stop: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Write the rows of the messages up to `stop`; return how many, or the error's code (and set `error_index`)."""
        single: _Single
        data: cython.p_uchar = self.data
        size: cython.Py_ssize_t = self.size
        skipped: cython.p_uchar = self.skipped
        at: cython.Py_ssize_t = self.next_at
        start: cython.Py_ssize_t
        row: cython.Py_ssize_t = self.rows
        index: cython.Py_ssize_t
        code: cython.Py_ssize_t
        for index in range(self.next_index, stop):
            self.error_index = index
            start = at + 4
            at = _find_value(data, at, size, cython.address(single))
            if at < 0:
                return at
            if not single.compacted_out and (skipped == cython.NULL or not skipped[index]):
                code = self._append_row(
                    cython.address(single), data + at, single.payload_size, row, data, start, at, 0x0A, index
                )
                if code < 0:
                    return code
                row += 1
            at += single.payload_size
        self.next_at = at
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
        index: cython.Py_ssize_t,
    ) -> cython.Py_ssize_t:
        """Write the columns that differ from message to message; return 0, or the error's code."""
        number: cython.longlong
        broker_index: cython.ulonglong
        flag: cython.int
        code: cython.Py_ssize_t
        if self.value != cython.NULL:
            flag = self.entry.null_value if single.null_value < 0 else single.null_value
            if flag:
                put_null(self.value, row)
            else:
                if self.value.is_text:
                    self.error_byte = find_no_utf8(payload, size)
                    if self.error_byte >= 0:
                        return -81
                put(self.value, row, payload, size)
        if self.key != cython.NULL:
            flag = self.entry.null_key if single.null_key < 0 else single.null_key
            if flag or single.key.data == cython.NULL:
                end_row(self.key, row)
                set_null(self.key, row)
            else:
                code = self._put_key(single, row)
                if code < 0:
                    return code
        if self.event_time != cython.NULL:
            number = single.event_time if single.has_event_time else self.entry.event_time
            if number < -_MAX_TIME_MS or number > _MAX_TIME_MS:
                self.error_time = number
                return -102
            put_long(self.event_time, row, number * 1000)
            if not number:
                set_null(self.event_time, row)
        if self.properties != cython.NULL:
            if single.num_properties:
                code = self._put_properties(metadata, at, end, property_tag)
                if code < 0:
                    return code
            end_row(self.properties, row)
        if self.sequence_id != cython.NULL:
            put_long(self.sequence_id, row, single.sequence_id if single.has_sequence_id else self.entry.sequence_id)
        if self.ordering_key != cython.NULL:
            if single.ordering_key.data == cython.NULL:
                put_null(self.ordering_key, row)
            else:
                put(self.ordering_key, row, single.ordering_key.data, single.ordering_key.size)
        if self.message_id != cython.NULL:
            put_int(self.message_id + 2, row, cython.cast(cython.int, index))
        if self.broker_index != cython.NULL:
            broker_index = cython.cast(cython.ulonglong, self.last_broker_index)
            if index >= 0:
                # The broker counts to the batch's last message. Unsigned: the subtraction may wrap around.
                broker_index -= self.num_messages - 1 - index
            put_long(self.broker_index, row, cython.cast(cython.longlong, broker_index))
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
            must(size <= self.key.capacity - self.key.used, "a key is decoded for which no room was reserved")
            self.key.used += size
            end_row(self.key, row)
        else:
            size = single.key.size
            put(self.key, row, single.key.data, size)
        if self.key.is_text:
            self.error_byte = find_no_utf8(start, size)
            if self.error_byte >= 0:
                return -82
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_properties(
        self, data: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, property_tag: cython.uint
    ) -> cython.Py_ssize_t:
        """Write one message's properties; return 0, or the error's code."""
        field: Field
        pair: Field
        key: Slice
        item: Slice
        inner: cython.Py_ssize_t
        first: cython.Py_ssize_t = self.properties.used
        other: cython.Py_ssize_t
        keys: cython.pointer(Column) = self.properties + 1
        is_twice: cython.bint = False
        while at < end:
            at = read_field(data, at, end, cython.address(field))
            if field.tag != property_tag:
                continue
            key.data = cython.NULL
            item.data = cython.NULL
            inner = field.start
            while inner < at:
                inner = read_field(data, inner, at, cython.address(pair))
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
            self.error_byte = find_no_utf8(key.data, key.size)
            if self.error_byte >= 0:
                return -83
            self.error_byte = find_no_utf8(item.data, item.size)
            if self.error_byte >= 0:
                return -83
            if self.properties.used - first >= _COMPARED_PROPERTIES:
                is_twice = True
            for other in range(first, self.properties.used):
                if is_twice:
                    break
                # Empty keys may have no address, which C forbids for `memcmp`.
                if keys.offsets[other + 1] - keys.offsets[other] == key.size and not (
                    key.size and memcmp(keys.data + keys.offsets[other], key.data, key.size)
                ):
                    is_twice = True
            put_entry(self.properties, key.data, key.size, item.data, item.size)
        if is_twice:
            # Rare: a repeated key, or so many that a dict is faster.
            with cython.gil:
                try:
                    self._put_properties_once(first)
                except MemoryError:
                    return -11
        return 0

    @cython.cfunc
    def _put_properties_once(self, first: cython.Py_ssize_t):
        """Write the properties from number `first` on again, so that the last of several with the same key counts."""
        keys: cython.pointer(Column) = self.properties + 1
        items: cython.pointer(Column) = self.properties + 2
        at: cython.Py_ssize_t
        found: dict = {}
        for at in range(first, self.properties.used):
            key = keys.data[keys.offsets[at] : keys.offsets[at + 1]]
            found[key] = items.data[items.offsets[at] : items.offsets[at + 1]]
        keys.used, items.used, self.properties.used = keys.offsets[first], items.offsets[first], first
        for key, item in found.items():
            put_entry(self.properties, key, len(key), item, len(item))

    @cython.cfunc
    def _fill(self, rows: cython.Py_ssize_t, ledger_id: cython.longlong, entry_id: cython.longlong):
        """Write the columns that are the same for all rows of an entry."""
        row: cython.Py_ssize_t
        at: cython.int
        number: cython.int
        value: cython.longlong
        column: cython.pointer(Column)
        try:
            self._fill_number(self.broker_time, rows, self.broker_time_ms, self.has_broker_time, True)
            for at in range(self.num_common):
                column, number = self.common[at].column, self.common[at].number
                if self.common[at].kind == _CELL:
                    self._fill_bytes(column, rows, self._bytes(number))
                else:
                    value = cython.cast(cython.longlong, self._number(number))
                    self._fill_number(column, rows, value, self._has(number), self.common[at].kind == _TIME)
        except BaseException:
            self.roll_back()
            raise
        if self.message_id != cython.NULL:
            fill_long(self.message_id, self.rows, rows, ledger_id)
            fill_long(self.message_id + 1, self.rows, rows, entry_id)
        if self.redeliveries != cython.NULL:
            for row in range(self.rows, self.rows + rows):
                put_int(self.redeliveries, row, self.redelivery_count)
        if self.broker_index != cython.NULL and not self.has_broker_index:
            for row in range(self.rows, self.rows + rows):
                put_null(self.broker_index, row)

    @cython.cfunc
    def _fill_number(
        self,
        column: cython.pointer(Column),
        rows: cython.Py_ssize_t,
        value: cython.longlong,
        is_known: cython.bint,
        is_time: cython.bint,
    ):
        row: cython.Py_ssize_t
        if column == cython.NULL:
            return
        if not is_known:
            for row in range(self.rows, self.rows + rows):
                put_null(column, row)
            return
        if is_time:
            if value < -_MAX_TIME_MS or value > _MAX_TIME_MS:
                raise CorruptMessageError(_SENTENCES[_NO_TIME].format(column=self.name_of(column), time_ms=value))
            value *= 1000
        fill_long(column, self.rows, rows, value)

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def _check_repeated(self, column: cython.pointer(Column), cell: Slice) -> cython.int:
        """Refuse a cell that all messages together would repeat too often, in however many parts."""
        # An absent cell has the size 0.
        if cell.size * self.num_messages > max(self.max_repeated_bytes, 16 * (self.view.len - self.metadata_end)):
            raise too_many_repetitions(self.name_of(column), cell.size, self.num_messages)
        return 0

    @cython.cfunc
    def _fill_bytes(self, column: cython.pointer(Column), rows: cython.Py_ssize_t, cell: Slice):
        row: cython.Py_ssize_t
        bad: cython.Py_ssize_t
        if cell.data == cython.NULL:
            for row in range(self.rows, self.rows + rows):
                put_null(column, row)
            return
        if column.is_text:
            bad = find_no_utf8(cell.data, cell.size)
            if bad >= 0:
                raise CorruptMessageError(_SENTENCES[_NO_UTF8].format(column=self.name_of(column), byte=bad))
        self.reserve(column, cell.size * rows)
        for row in range(self.rows, self.rows + rows):
            put(column, row, cell.data, cell.size)

    def append_null(self, ledger_id: cython.longlong, entry_id: cython.longlong):
        """See `_messages_python.EntryColumns.append_null`."""
        self._close()
        self.reserve_rows(1)
        self.put_nulls(self.rows)
        if self.message_id != cython.NULL:
            put_long(self.message_id, self.rows, ledger_id)
            put_long(self.message_id + 1, self.rows, entry_id)
            put_int(self.message_id + 2, self.rows, -1)
        self.rows += 1
        return 1

    @cython.cfunc
    def _error(self, code: cython.Py_ssize_t, index: cython.Py_ssize_t):
        """Return the error for a code of `_append_row` or `_walk`."""
        if code == -11:
            return MemoryError()
        if code <= -80:
            name = {-81: "value", -82: "key", -83: "properties", -102: "event_time"}[code]
            sentence = _SENTENCES[_NO_TIME if code == -102 else _NO_UTF8]
            sentence = sentence.format(column=name, byte=self.error_byte, time_ms=self.error_time)
        else:
            sentence = _SENTENCES[code]
        return CorruptMessageError(sentence if index < 0 else f"batch index {index}: {sentence}")

    @cython.cfunc
    def _reserve_properties(self, more: cython.Py_ssize_t):
        """Reserve space for the properties in `more` bytes: each takes at least six, with its tag and size."""
        if self.properties != cython.NULL:
            self.reserve_entries(self.properties, more // 6 + 1, more)
