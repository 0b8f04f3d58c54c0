"""The decoder's inner loop over the messages of a fetch, compiled: Cython's pure-Python mode, C types in annotations.

The same interface, rows and errors as ``_messages_python``, whose documentation and rules hold here. What differs: the
loop walks the answer once, without Python objects, and writes into buffers that Arrow then takes as they are.

Safety: every length is compared with what is left before it is used; room for the worst case (a column cannot hold
more than the answer it comes from) is reserved before the walk, so that the walk itself writes without asking. On any
error the counters go back to where they were, and what was written beyond them is overwritten by the next answer.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.tubemq.payload._messages_native is not compiled")

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
    variable_width_array,
)
from spark_mq_source.tubemq.payload._messages_python import (
    ATTRIBUTE_BYTES,
    column_overflow,
    corrupt_message,
    unreadable_answer,
)

_SENTENCES = {
    -1: "a protobuf number does not end",
    -2: "a protobuf field has an impossible number",
    -3: "a protobuf field reaches past the end",
    -4: "a protobuf field has an unknown wire type",
    -5: "the message lacks a required field",
    -6: "the checksum does not match: {announced:#010x} announced, {computed:#010x} found",
    -7: "the attributes do not fit into the message",
    -8: "the attributes are not UTF-8",
    -9: "the value is not UTF-8",
    -10: "the message_type is not UTF-8",
}


@cython.cfunc
def _sentence(code: cython.Py_ssize_t):
    return _SENTENCES[code]


# Below this many bytes the walk is over sooner than another thread could have been given the interpreter.
_NOGIL_BYTES = cython.declare(cython.Py_ssize_t, 65536)
_HIGH_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)
# So many attributes of a message are compared with each other; more go through a set.
_COMPARED_ATTRIBUTES = cython.declare(cython.Py_ssize_t, 16)

_Slice = cython.struct(data=cython.p_uchar, size=cython.Py_ssize_t)  # absent where data is NULL
_Field = cython.struct(tag=cython.ulonglong, value=cython.ulonglong, start=cython.Py_ssize_t, size=cython.Py_ssize_t)
_Message = cython.struct(
    has_id=cython.bint,
    has_check_sum=cython.bint,
    has_flag=cython.bint,
    message_id=cython.longlong,
    check_sum=cython.int,
    flag=cython.int,
    payload=_Slice,
    attributes=_Slice,
    type=_Slice,
    time=_Slice,
)
# A column of bytes: `used` of `capacity` are filled. `valid` has a byte a row and is packed when the batch is taken.
_Bytes = cython.struct(
    wanted=cython.bint,
    data=cython.p_uchar,
    used=cython.Py_ssize_t,
    capacity=cython.Py_ssize_t,
    hint=cython.Py_ssize_t,
    offsets=cython.p_int,
    valid=cython.p_uchar,
    nulls=cython.Py_ssize_t,
)
_Longs = cython.struct(wanted=cython.bint, data=cython.p_longlong, valid=cython.p_uchar, nulls=cython.Py_ssize_t)


# From crc32.h.
crc32_begin()


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
@cython.nogil
@cython.exceptval(check=False)
def _is_utf8(data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.bint:
    """Whether it is UTF-8 as Python's strict decoder has it."""
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
            return False
        more = 1
        if first >= 0xE0:
            more += 1
        if first >= 0xF0:
            more += 1
        if size - at <= more:
            return False
        second = data[at + 1]
        # Overlong forms, surrogates, and beyond U+10FFFF show in the second byte.
        if first == 0xE0 and second < 0xA0:
            return False
        if first == 0xED and second > 0x9F:
            return False
        if first == 0xF0 and second < 0x90:
            return False
        if first == 0xF4 and second > 0x8F:
            return False
        for i in range(1, more + 1):
            if data[at + i] & 0xC0 != 0x80:
                return False
        at += more + 1
    return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _two_digits(data: cython.p_uchar) -> cython.longlong:
    """The number they say; above 99 where they are none."""
    if data[0] < 0x30 or data[0] > 0x39 or data[1] < 0x30 or data[1] > 0x39:
        return 1000
    return (data[0] - 0x30) * 10 + data[1] - 0x30


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _parse_minute(data: cython.p_uchar, local_us: cython.p_longlong) -> cython.bint:
    """Whether the 12 bytes are a time; then `local_us` is it, in microseconds since 1970."""
    century: cython.longlong = _two_digits(data)
    year: cython.longlong = century * 100 + _two_digits(data + 2)
    month: cython.longlong = _two_digits(data + 4)
    day: cython.longlong = _two_digits(data + 6)
    hour: cython.longlong = _two_digits(data + 8)
    minute: cython.longlong = _two_digits(data + 10)
    days: cython.longlong
    if year < 1 or century > 99 or year - century * 100 > 99 or month < 1 or month > 12 or hour > 23 or minute > 59:
        return False
    if month == 2:
        days = 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    else:
        days = 30 + ((month + (month > 7)) & 1)
    if day < 1 or day > days:
        return False
    # The days since 1970-01-01 in the Gregorian calendar, with years that begin in March.
    if month <= 2:
        year -= 1
        month += 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * (month - 3) + 2) // 5 + day - 719469
    local_us[0] = ((days * 24 + hour) * 60 + minute) * 60_000_000
    return True


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
class MessageColumns:
    """As `_messages_python.MessageColumns`."""

    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    corrupt_messages = cython.declare(cython.Py_ssize_t, visibility="readonly")

    # What is built, and the columns under construction.
    schema: object
    constant: dict
    filters: object
    shift: object
    row_bytes: cython.Py_ssize_t
    row_capacity: cython.Py_ssize_t
    row_hint: cython.Py_ssize_t
    value: _Bytes
    value_is_text: cython.bint
    message_type: _Bytes
    message_id: _Longs
    message_time: _Longs
    fetch_offset: _Longs
    wants_attributes: cython.bint
    wants_header: cython.bint
    attribute_offsets: cython.p_int
    attribute_keys: _Bytes
    attribute_items: _Bytes
    num_attributes: cython.Py_ssize_t
    attribute_capacity: cython.Py_ssize_t

    # The filters as C has them.
    num_filters: cython.Py_ssize_t
    filter_slices: cython.pointer(_Slice)

    # What the walk found wrong, and the message it was at.
    on_corrupt: cython.int
    has_stop: cython.bint
    stop_id: cython.longlong
    stop_check_sum: cython.longlong
    number: cython.Py_ssize_t
    corrupt: cython.Py_ssize_t
    message: _Message
    computed: cython.uint

    def __init__(self, schema, *, topic, broker_id, partition, filters, shift):
        at: cython.Py_ssize_t = 0
        text: bytes
        names = schema.names
        self.schema = schema
        self.shift = shift
        self.constant = {
            name: ConstantColumn(value, schema.field(name).type)
            for name, value in (("topic", topic), ("broker_id", broker_id), ("partition", partition))
            if name in names
        }
        self.row_bytes = sum(fixed_row_bytes(field.type) for field in schema if field.name not in self.constant)
        self.value.wanted = "value" in names
        self.value_is_text = self.value.wanted and is_text(schema.field("value").type)
        self.message_type.wanted = "message_type" in names
        self.message_id.wanted = "message_id" in names
        self.message_time.wanted = "message_time" in names
        self.fetch_offset.wanted = "fetch_offset" in names
        self.wants_attributes = "attributes" in names
        self.attribute_keys.wanted = self.attribute_items.wanted = self.wants_attributes
        # Kept, because the slices point into its texts.
        self.filters = list(filters)
        self.filter_slices = cython.cast(
            cython.pointer(_Slice), malloc(max(1, len(self.filters)) * cython.sizeof(_Slice))
        )
        if self.filter_slices == cython.NULL:
            raise MemoryError
        for text in self.filters:
            self.filter_slices[at].data = text
            self.filter_slices[at].size = len(text)
            at += 1
        self.num_filters = at
        self.wants_header = (
            self.wants_attributes or self.message_type.wanted or self.message_time.wanted or self.num_filters > 0
        )

    def __dealloc__(self):
        self._free_bytes(cython.address(self.value))
        self._free_bytes(cython.address(self.message_type))
        self._free_bytes(cython.address(self.attribute_keys))
        self._free_bytes(cython.address(self.attribute_items))
        self._free_longs(cython.address(self.message_id))
        self._free_longs(cython.address(self.message_time))
        self._free_longs(cython.address(self.fetch_offset))
        free(self.attribute_offsets)
        free(self.filter_slices)

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

    @property
    def nbytes(self):
        return (
            self.rows * self.row_bytes
            + self.value.used
            + self.message_type.used
            + self.attribute_keys.used
            + self.attribute_items.used
            + cython.cast(cython.Py_ssize_t, ATTRIBUTE_BYTES) * self.num_attributes
        )

    def append(self, body, fetch_offset: cython.longlong, on_corrupt: cython.int = 0, stop_at=None):
        """As `_messages_python.MessageColumns.append`."""
        view: Py_buffer
        data: cython.p_uchar
        size: cython.Py_ssize_t
        count: cython.Py_ssize_t
        before: cython.Py_ssize_t = self.rows
        code: cython.Py_ssize_t
        row: cython.Py_ssize_t
        value_used: cython.Py_ssize_t = self.value.used
        value_nulls: cython.Py_ssize_t = self.value.nulls
        type_used: cython.Py_ssize_t = self.message_type.used
        type_nulls: cython.Py_ssize_t = self.message_type.nulls
        id_nulls: cython.Py_ssize_t = self.message_id.nulls
        time_nulls: cython.Py_ssize_t = self.message_time.nulls
        keys_used: cython.Py_ssize_t = self.attribute_keys.used
        items_used: cython.Py_ssize_t = self.attribute_items.used
        num_attributes: cython.Py_ssize_t = self.num_attributes
        self.on_corrupt = on_corrupt
        self.has_stop = stop_at is not None
        if self.has_stop:
            self.stop_id, self.stop_check_sum = stop_at
        PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
        try:
            data = cython.cast(cython.p_uchar, view.buf)
            size = view.len
            if self.nbytes + size > MAX_COLUMN_BYTES:
                raise column_overflow()
            count = _count_messages(data, size)
            self._reserve_rows(count)
            if count:
                self._reserve(cython.address(self.value), size)
                self._reserve(cython.address(self.message_type), size)
                self._reserve_attributes(size)
            self.number = -1
            self.corrupt = 0
            if size < _NOGIL_BYTES:
                code = self._walk(data, size)
            else:
                with cython.nogil:
                    code = self._walk(data, size)
            if code < 0:
                self.value.used, self.value.nulls = value_used, value_nulls
                self.message_type.used, self.message_type.nulls = type_used, type_nulls
                self.message_id.nulls, self.message_time.nulls = id_nulls, time_nulls
                self.attribute_keys.used, self.attribute_items.used = keys_used, items_used
                self.num_attributes = num_attributes
                self.rows = before
                if code <= -100:
                    raise unreadable_answer(_sentence(code + 100))
                if code == -11:
                    raise MemoryError
                sentence = _sentence(code).format(announced=self.message.check_sum, computed=self.computed & 0x7FFFFFFF)
                message_id = self.message.message_id if self.message.has_id else None
                raise corrupt_message(sentence, message_id, self.number, fetch_offset)
        finally:
            PyBuffer_Release(cython.address(view))
        self.corrupt_messages += self.corrupt
        if self.fetch_offset.wanted:
            for row in range(before, self.rows):
                self.fetch_offset.data[row] = fetch_offset
                self.fetch_offset.valid[row] = 1
        if self.message_time.wanted and not self.shift.is_utc:
            self._shift_times(before)
        return self.rows - before

    @cython.cfunc
    def _shift_times(self, first: cython.Py_ssize_t):
        """From local time to UTC: neighbours mostly have the same minute."""
        row: cython.Py_ssize_t
        local: cython.longlong = 0
        shifted: cython.longlong = 0
        is_known: cython.bint = False
        for row in range(first, self.rows):
            if self.message_time.valid[row]:
                if not is_known or self.message_time.data[row] != local:
                    local = self.message_time.data[row]
                    shifted = self.shift(local)
                    is_known = True
                self.message_time.data[row] = shifted

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk(self, data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """0, or what is wrong with a message (see `_SENTENCES`), or with the answer itself, 100 less."""
        field: _Field
        at: cython.Py_ssize_t = 0
        code: cython.Py_ssize_t
        while at < size:
            at = _read_field(data, at, size, cython.address(field))
            if at < 0:
                return at - 100
            if field.tag != 0x22:
                continue
            self.number += 1
            code = self._take(data + field.start, field.size)
            if code == 1:
                return 0
            if code < 0:
                if self.on_corrupt == 0 or code == -11:
                    return code
                self.corrupt += 1
                if self.on_corrupt == 2:
                    self._put_unknown()
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _take(self, data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Adds one message where it is wanted: 0, or 1 where it is the one to stop at, or what is wrong with it."""
        message: cython.pointer(_Message) = cython.address(self.message)
        code: cython.Py_ssize_t = _parse_message(data, size, message)
        attributes_bytes: cython.longlong
        local_us: cython.longlong = 0
        row: cython.Py_ssize_t = self.rows
        if code < 0:
            return code
        if self.has_stop and message.message_id == self.stop_id and message.check_sum == self.stop_check_sum:
            return 1
        if message.check_sum != -1:
            self.computed = crc32_of(message.payload.data, message.payload.size)
            if cython.cast(cython.int, self.computed & 0x7FFFFFFF) != message.check_sum:
                return -6
        message.attributes.data = cython.NULL
        message.attributes.size = 0
        message.type.data = cython.NULL
        message.time.data = cython.NULL
        if message.flag & 1:
            if message.payload.size < 4:
                return -7
            attributes_bytes = (
                (cython.cast(cython.longlong, message.payload.data[0]) << 24)
                | (cython.cast(cython.longlong, message.payload.data[1]) << 16)
                | (cython.cast(cython.longlong, message.payload.data[2]) << 8)
                | message.payload.data[3]
            )
            if attributes_bytes > message.payload.size - 4:
                return -7
            message.attributes.data = message.payload.data + 4
            message.attributes.size = cython.cast(cython.Py_ssize_t, attributes_bytes)
            message.payload.data += 4 + message.attributes.size
            message.payload.size -= 4 + message.attributes.size
        if self.wants_header:
            if message.attributes.size:
                code = self._parse_attributes(message)
                if code < 0:
                    return code
            if self.num_filters and not self._is_wanted(message):
                if self.wants_attributes:
                    self._forget_attributes()
                return 0
        # Nothing is put before all is known to be right; attributes are, and taken back.
        if self.value_is_text and not _is_utf8(message.payload.data, message.payload.size):
            code = -9
        elif (
            self.message_type.wanted
            and message.type.data != cython.NULL
            and not _is_utf8(message.type.data, message.type.size)
        ):
            code = -10
        if code < 0:
            if self.wants_attributes:
                self._forget_attributes()
            return code
        if self.value.wanted:
            _put(cython.address(self.value), row, message.payload.data, message.payload.size)
        if self.message_type.wanted:
            if message.type.data == cython.NULL:
                _put_null(cython.address(self.message_type), row)
            else:
                _put(cython.address(self.message_type), row, message.type.data, message.type.size)
        if self.message_id.wanted:
            self.message_id.data[row] = message.message_id
            self.message_id.valid[row] = 1
        if self.message_time.wanted:
            self.message_time.valid[row] = (
                message.time.data != cython.NULL
                and message.time.size == 12
                and _parse_minute(message.time.data, cython.address(local_us))
            )
            self.message_time.data[row] = local_us
            self.message_time.nulls += not self.message_time.valid[row]
        if self.wants_attributes:
            self.attribute_offsets[row + 1] = cython.cast(cython.int, self.num_attributes)
        self.rows += 1
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_unknown(self) -> cython.void:
        """A row for a message that cannot be read."""
        row: cython.Py_ssize_t = self.rows
        if self.value.wanted:
            _put_null(cython.address(self.value), row)
        if self.message_type.wanted:
            _put_null(cython.address(self.message_type), row)
        if self.message_id.wanted:
            self.message_id.data[row] = self.message.message_id if self.message.has_id else 0
            self.message_id.valid[row] = self.message.has_id
            self.message_id.nulls += not self.message.has_id
        if self.message_time.wanted:
            self.message_time.data[row] = 0
            self.message_time.valid[row] = 0
            self.message_time.nulls += 1
        if self.wants_attributes:
            self.attribute_offsets[row + 1] = cython.cast(cython.int, self.num_attributes)
        self.rows += 1

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _is_wanted(self, message: cython.pointer(_Message)) -> cython.bint:
        at: cython.Py_ssize_t
        if message.type.data == cython.NULL:
            return False
        for at in range(self.num_filters):
            if self.filter_slices[at].size == message.type.size and not memcmp(
                self.filter_slices[at].data, message.type.data, message.type.size
            ):
                return True
        return False

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _parse_attributes(self, message: cython.pointer(_Message)) -> cython.Py_ssize_t:
        """Finds type and time, and adds the others where they are wanted; 0, or what is wrong."""
        data: cython.p_uchar = message.attributes.data
        size: cython.Py_ssize_t = message.attributes.size
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t
        equals: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        item: cython.Py_ssize_t
        item_size: cython.Py_ssize_t
        first: cython.Py_ssize_t = self._first_attribute()
        while at < size:
            end = at
            equals = -1
            while end < size and data[end] != 0x2C:
                if equals < 0 and data[end] == 0x3D:
                    equals = end
                end += 1
            if end > at:
                key_size = (equals if equals >= 0 else end) - at
                item = equals + 1 if equals >= 0 else end
                item_size = end - item
                if key_size == 9 and not memcmp(data + at, b"$msgType$", 9):
                    if message.type.data == cython.NULL:
                        message.type.data = data + item
                        message.type.size = item_size
                elif key_size == 9 and not memcmp(data + at, b"$msgTime$", 9):
                    if message.time.data == cython.NULL:
                        message.time.data = data + item
                        message.time.size = item_size
                elif self.wants_attributes:
                    if self.num_attributes - first < _COMPARED_ATTRIBUTES:
                        if not self._has_attribute(first, data + at, key_size):
                            self._put_attribute(data + at, key_size, data + item, item_size)
                    else:
                        self._put_attribute(data + at, key_size, data + item, item_size)
            at = end + 1
        if not self.wants_attributes:
            return 0
        if self.num_attributes - first > _COMPARED_ATTRIBUTES:
            with cython.gil:
                if not self._drop_repeated(first):
                    self._forget_attributes()
                    return -11
        for at in range(first, self.num_attributes):
            if not _is_utf8(
                self.attribute_keys.data + self.attribute_keys.offsets[at],
                self.attribute_keys.offsets[at + 1] - self.attribute_keys.offsets[at],
            ) or not _is_utf8(
                self.attribute_items.data + self.attribute_items.offsets[at],
                self.attribute_items.offsets[at + 1] - self.attribute_items.offsets[at],
            ):
                self._forget_attributes()
                return -8
        return 0

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _first_attribute(self) -> cython.Py_ssize_t:
        """How many attributes the rows so far have."""
        if self.wants_attributes:
            return self.attribute_offsets[self.rows]
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _forget_attributes(self) -> cython.void:
        """Takes back the attributes that no row has."""
        self.num_attributes = self.attribute_offsets[self.rows]
        self.attribute_keys.used = self.attribute_keys.offsets[self.num_attributes]
        self.attribute_items.used = self.attribute_items.offsets[self.num_attributes]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _has_attribute(self, first: cython.Py_ssize_t, key: cython.p_uchar, size: cython.Py_ssize_t) -> cython.bint:
        at: cython.Py_ssize_t
        start: cython.Py_ssize_t
        for at in range(first, self.num_attributes):
            start = self.attribute_keys.offsets[at]
            if self.attribute_keys.offsets[at + 1] - start == size and not memcmp(
                self.attribute_keys.data + start, key, size
            ):
                return True
        return False

    @cython.cfunc
    @cython.inline
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_attribute(
        self, key: cython.p_uchar, key_size: cython.Py_ssize_t, item: cython.p_uchar, item_size: cython.Py_ssize_t
    ) -> cython.void:
        _put(cython.address(self.attribute_keys), self.num_attributes, key, key_size)
        _put(cython.address(self.attribute_items), self.num_attributes, item, item_size)
        self.num_attributes += 1

    @cython.cfunc
    @cython.exceptval(check=False)
    def _drop_repeated(self, first: cython.Py_ssize_t) -> cython.bint:
        """Leaves the first attribute of each key, of many; False where there is no memory for it."""
        at: cython.Py_ssize_t
        count: cython.Py_ssize_t = self.num_attributes
        try:
            pairs: dict = {}
            for at in range(first, count):
                key = self.attribute_keys.data[self.attribute_keys.offsets[at] : self.attribute_keys.offsets[at + 1]]
                item = self.attribute_items.data[
                    self.attribute_items.offsets[at] : self.attribute_items.offsets[at + 1]
                ]
                pairs.setdefault(key, item)
            self._forget_attributes()
            for key, item in pairs.items():
                self._put_attribute(key, len(key), item, len(item))
        except MemoryError:
            return False
        return True

    @cython.cfunc
    def _reserve_rows(self, more: cython.Py_ssize_t):
        capacity: cython.Py_ssize_t
        if self.rows + more <= self.row_capacity:
            return
        capacity = max(self.rows + more, 2 * self.row_capacity, self.row_hint, 64)
        self._resize_bytes(cython.address(self.value), capacity)
        self._resize_bytes(cython.address(self.message_type), capacity)
        self._resize_longs(cython.address(self.message_id), capacity)
        self._resize_longs(cython.address(self.message_time), capacity)
        self._resize_longs(cython.address(self.fetch_offset), capacity)
        if self.wants_attributes:
            self.attribute_offsets = cython.cast(cython.p_int, _resize(self.attribute_offsets, (capacity + 1) * 4))
            self.attribute_offsets[0] = 0
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
    def _reserve(self, column: cython.pointer(_Bytes), more: cython.Py_ssize_t):
        """Make room for `more` bytes in a column."""
        capacity: cython.Py_ssize_t
        # Even nothing is only ever copied to somewhere: memcpy to NULL is undefined.
        if not column.wanted or (column.data and column.used + more <= column.capacity):
            return
        # What is reserved ahead is never beyond the bound: `append` lets nobody come so far.
        capacity = min(max(2 * column.capacity, column.hint, 256), cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES))
        capacity = max(column.used + more, capacity)
        column.data = cython.cast(cython.p_uchar, _resize(column.data, capacity))
        column.capacity = capacity

    @cython.cfunc
    def _reserve_attributes(self, more: cython.Py_ssize_t):
        """Make room for the attributes that `more` bytes can hold: each takes a byte and a comma, but the last."""
        capacity: cython.Py_ssize_t
        count: cython.Py_ssize_t = self.num_attributes + more // 2 + 1
        if not self.wants_attributes:
            return
        self._reserve(cython.address(self.attribute_keys), more)
        self._reserve(cython.address(self.attribute_items), more)
        if count <= self.attribute_capacity:
            return
        capacity = max(count, 2 * self.attribute_capacity)
        self._resize_bytes(cython.address(self.attribute_keys), capacity)
        self._resize_bytes(cython.address(self.attribute_items), capacity)
        self.attribute_capacity = capacity

    def take_arrays(self):
        """As `_messages_python.MessageColumns.take_arrays`."""
        arrays: list = []
        rows: cython.Py_ssize_t = self.rows
        if not rows:
            return [pa.nulls(0, field.type) for field in self.schema]
        for field in self.schema:
            name = field.name
            if name in self.constant:
                arrays.append(self.constant[name].take(rows))
            elif name == "value":
                arrays.append(self._take_bytes(cython.address(self.value), field.type, rows))
            elif name == "message_type":
                arrays.append(self._take_bytes(cython.address(self.message_type), field.type, rows))
            elif name == "attributes":
                arrays.append(self._take_attributes(field.type))
            elif name == "message_id":
                arrays.append(self._take_longs(cython.address(self.message_id), field.type))
            elif name == "message_time":
                arrays.append(self._take_longs(cython.address(self.message_time), field.type))
            else:
                arrays.append(self._take_longs(cython.address(self.fetch_offset), field.type))
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
    def _take_attributes(self, type_):
        count: cython.Py_ssize_t = self.num_attributes
        offsets = _hand_over(self.attribute_offsets, (self.rows + 1) * 4)
        self.attribute_offsets = cython.NULL
        if count:
            keys = self._take_bytes(cython.address(self.attribute_keys), type_.key_type, count)
            items = self._take_bytes(cython.address(self.attribute_items), type_.item_type, count)
            self.attribute_capacity = 0
        else:
            keys, items = pa.nulls(0, type_.key_type), pa.nulls(0, type_.item_type)
        self.num_attributes = 0
        return map_array(type_, self.rows, offsets, keys, items)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _parse_message(
    data: cython.p_uchar, size: cython.Py_ssize_t, message: cython.pointer(_Message)
) -> cython.Py_ssize_t:
    """0, or why the TransferedMessage is corrupt; then it has what was read so far."""
    field: _Field
    at: cython.Py_ssize_t = 0
    memset(message, 0, cython.sizeof(_Message))
    while at < size:
        at = _read_field(data, at, size, cython.address(field))
        if at < 0:
            # Nothing is known of a message that cannot be read to its end, in the twin either.
            message.has_id = False
            return at
        if field.tag == 0x08:
            message.message_id = cython.cast(cython.longlong, field.value)
            message.has_id = True
        elif field.tag == 0x10:
            message.check_sum = cython.cast(cython.int, cython.cast(cython.uint, field.value))
            message.has_check_sum = True
        elif field.tag == 0x1A:
            message.payload.data = data + field.start
            message.payload.size = field.size
        elif field.tag == 0x20:
            message.flag = cython.cast(cython.int, cython.cast(cython.uint, field.value))
            message.has_flag = True
    if message.has_id and message.has_check_sum and message.payload.data != cython.NULL and message.has_flag:
        return 0
    message.has_id = False
    return -5


@cython.cfunc
@cython.exceptval(-1)
def _count_messages(data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """How many messages the answer has; what cannot be read is left to the walk, which says so."""
    field: _Field
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    while at < size:
        at = _read_field(data, at, size, cython.address(field))
        if at < 0:
            break
        count += field.tag == 0x22
    return count


def without_messages(body):
    """As `_messages_python.without_messages`, without a copy of the messages."""
    view: Py_buffer
    data: cython.p_uchar
    field: _Field
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    others = []
    PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
    try:
        data = cython.cast(cython.p_uchar, view.buf)
        while at < view.len:
            end = _read_field(data, at, view.len, cython.address(field))
            if end < 0:
                raise unreadable_answer(_sentence(end))
            if field.tag != 0x22:
                others.append(data[at:end])
            at = end
    finally:
        PyBuffer_Release(cython.address(view))
    return b"".join(others)
