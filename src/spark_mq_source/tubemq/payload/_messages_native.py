"""The decoder's inner loop over the messages of a fetch, compiled: Cython's pure-Python mode, C types in annotations.

It has the interface, rows and errors of ``_messages_python``, whose documentation and rules apply. The difference: the
loop walks the answer once, without Python objects, and writes into buffers that Arrow then uses without a copy.

Safety: every length is compared with the remaining bytes before it is used; space for the worst case (a column cannot
hold more than the answer it comes from) is reserved before the walk, so the walk itself writes without checks. After an
error the counters are reset, and the next answer overwrites what was written beyond them.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.tubemq.payload._messages_native is not compiled")

from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.libc.stdlib import free, malloc
from cython.cimports.libc.string import memcmp, memset
from cython.cimports.spark_mq_source.core._columns_native import (
    Column,
    Columns,
    end_row,
    fill_long,
    is_null,
    long_at,
    put,
    put_entry,
    put_long,
    put_null,
    set_null,
)
from cython.cimports.spark_mq_source.core._wire import Field, Slice, find_no_utf8, read_field, read_u32

from spark_mq_source.core.protobuf_fields import CORRUPT_FIELDS
from spark_mq_source.tubemq.payload.layout import check_count, corrupt_message, unreadable_answer

_SENTENCES = cython.declare(
    dict,
    CORRUPT_FIELDS
    | {
        -5: "the message lacks a required field",
        -6: "the checksum does not match: {announced:#010x} announced, {computed:#010x} found",
        -7: "the attributes do not fit into the message",
        -8: "the attributes are not UTF-8",
        -9: "the value is not UTF-8",
        -10: "the message_type is not UTF-8",
    },
)


# Below this size the walk ends before another thread could use the interpreter.
_NOGIL_BYTES = cython.declare(cython.Py_ssize_t, 65536)
# Up to this many attributes of a message are compared with each other; more go through a set.
_COMPARED_ATTRIBUTES = cython.declare(cython.Py_ssize_t, 16)

_Message = cython.struct(
    has_id=cython.bint,
    has_check_sum=cython.bint,
    has_flag=cython.bint,
    message_id=cython.longlong,
    check_sum=cython.int,
    flag=cython.int,
    payload=Slice,
    attributes=Slice,
    type=Slice,
    time=Slice,
)

# From crc32.h.
crc32_begin()


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _number(digits: cython.p_uchar, size: cython.Py_ssize_t) -> cython.longlong:
    """Return the number of a time's 12 digits; -1 if there are other characters."""
    at: cython.Py_ssize_t
    number: cython.longlong = 0
    if size != 12:
        return -1
    for at in range(size):
        if digits[at] < 0x30 or digits[at] > 0x39:
            return -1
        number = number * 10 + digits[at] - 0x30
    return number


@cython.cclass
class MessageColumns(Columns):
    """See `_messages_python.MessageColumns`."""

    corrupt_messages = cython.declare(cython.Py_ssize_t, visibility="readonly")
    filters: object
    times: object
    value: cython.pointer(Column)
    message_type: cython.pointer(Column)
    message_id: cython.pointer(Column)
    message_time: cython.pointer(Column)
    fetch_offset: cython.pointer(Column)
    attributes: cython.pointer(Column)
    wants_header: cython.bint

    # The filters for C.
    num_filters: cython.Py_ssize_t
    filter_slices: cython.pointer(Slice)

    # The error of a walk, and its message.
    on_corrupt: cython.int
    has_stop: cython.bint
    stop_id: cython.longlong
    stop_check_sum: cython.longlong
    number: cython.Py_ssize_t
    corrupt: cython.Py_ssize_t
    message: _Message
    computed: cython.uint

    def __init__(self, schema, *, topic, broker_id, partition, filters, times):
        at: cython.Py_ssize_t = 0
        text: bytes
        Columns.__init__(self, schema, {"topic": topic, "broker_id": broker_id, "partition": partition})
        self.times = times
        self.value = self.find("value")
        self.message_type = self.find("message_type")
        self.message_id = self.find("message_id")
        self.message_time = self.find("message_time")
        self.fetch_offset = self.find("fetch_offset")
        self.attributes = self.find("attributes")
        # Kept, because the slices point into these texts.
        self.filters = list(filters)
        self.filter_slices = cython.cast(
            cython.pointer(Slice), malloc(max(1, len(self.filters)) * cython.sizeof(Slice))
        )
        if self.filter_slices == cython.NULL:
            raise MemoryError
        for text in self.filters:
            self.filter_slices[at].data = text
            self.filter_slices[at].size = len(text)
            at += 1
        self.num_filters = at
        self.wants_header = (
            self.attributes != cython.NULL
            or self.message_type != cython.NULL
            or self.message_time != cython.NULL
            or self.num_filters > 0
        )

    def __dealloc__(self):
        free(self.filter_slices)

    def append(self, body, fetch_offset: cython.longlong, on_corrupt: cython.int = 0, stop_at=None, expected=None):
        """See `_messages_python.MessageColumns.append`."""
        view: Py_buffer
        data: cython.p_uchar
        size: cython.Py_ssize_t
        count: cython.Py_ssize_t
        before: cython.Py_ssize_t = self.rows
        code: cython.Py_ssize_t
        self.on_corrupt = on_corrupt
        self.has_stop = stop_at is not None
        if self.has_stop:
            self.stop_id, self.stop_check_sum = stop_at
        PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
        try:
            data = cython.cast(cython.p_uchar, view.buf)
            size = view.len
            count = _count_messages(data, size)
            self.reserve_rows(count)
            if count:
                self.reserve(self.value, size)
                self.reserve(self.message_type, size)
                if self.attributes != cython.NULL:
                    # Each attribute but the last takes at least a byte and a comma.
                    self.reserve_entries(self.attributes, size // 2 + 1, size)
            self.mark()
            self.number = -1
            self.corrupt = 0
            if size < _NOGIL_BYTES:
                code = self._walk(data, size)
            else:
                with cython.nogil:
                    code = self._walk(data, size)
            if code < 0:
                self.roll_back()
                if code <= -100:
                    raise unreadable_answer(_SENTENCES[code + 100])
                if code == -11:
                    raise MemoryError
                sentence = _SENTENCES[code].format(
                    announced=self.message.check_sum, computed=self.computed & 0x7FFFFFFF
                )
                message_id = self.message.message_id if self.message.has_id else None
                raise corrupt_message(sentence, message_id, self.number, fetch_offset)
            if expected is not None and expected != self.number + 1:
                self.roll_back()
                check_count(self.number + 1, expected, fetch_offset)
        finally:
            PyBuffer_Release(cython.address(view))
        self.corrupt_messages += self.corrupt
        if self.fetch_offset != cython.NULL:
            fill_long(self.fetch_offset, before, self.rows - before, fetch_offset)
        if self.message_time != cython.NULL:
            self._convert_times(before)
        return self.rows - before

    @cython.cfunc
    def _convert_times(self, first: cython.Py_ssize_t):
        """Convert digits to UTC times: neighbouring rows usually have the same minute."""
        row: cython.Py_ssize_t
        digits: cython.longlong = -1
        time_us: object = None
        for row in range(first, self.rows):
            if is_null(self.message_time, row):
                continue
            if long_at(self.message_time, row) != digits:
                digits = long_at(self.message_time, row)
                time_us = self.times(digits)
            if time_us is None:
                set_null(self.message_time, row)
            put_long(self.message_time, row, 0 if time_us is None else time_us)

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk(self, data: cython.p_uchar, size: cython.Py_ssize_t) -> cython.Py_ssize_t:
        """Return 0, or a message's error (see `_SENTENCES`), or an error of the answer itself, minus 100."""
        field: Field
        at: cython.Py_ssize_t = 0
        code: cython.Py_ssize_t
        while at < size:
            at = read_field(data, at, size, cython.address(field))
            if at < 0:
                return at - 100
            if field.tag != 0x22:
                continue
            self.number += 1
            code = self._take(data + field.start, field.size)
            if code == 1:
                self.number -= 1
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
        """Add one message if it is wanted; return 0, 1 if it is the one to stop at, or its error."""
        message: cython.pointer(_Message) = cython.address(self.message)
        code: cython.Py_ssize_t = _parse_message(data, size, message)
        attributes_bytes: cython.Py_ssize_t
        digits: cython.longlong
        row: cython.Py_ssize_t = self.rows
        if code < 0:
            return code
        if self.has_stop and message.message_id == self.stop_id and message.check_sum == self.stop_check_sum:
            return 1
        if message.check_sum != -1:
            self.computed = crc32_of(message.payload.data, message.payload.size)
            if cython.cast(cython.int, self.computed & 0x7FFFFFFF) != message.check_sum:
                return -6
        if message.flag & 1:
            if message.payload.size < 4:
                return -7
            attributes_bytes = read_u32(message.payload.data)
            if attributes_bytes > message.payload.size - 4:
                return -7
            message.attributes.data = message.payload.data + 4
            message.attributes.size = attributes_bytes
            message.payload.data += 4 + message.attributes.size
            message.payload.size -= 4 + message.attributes.size
        if self.wants_header:
            if message.attributes.size:
                code = self._parse_attributes(message)
                if code < 0:
                    return code
            if self.num_filters and not self._is_wanted(message):
                self._forget_attributes()
                return 0
        # Columns are written after all checks, except attributes, which are removed again.
        if (
            self.value != cython.NULL
            and self.value.is_text
            and find_no_utf8(message.payload.data, message.payload.size) >= 0
        ):
            code = -9
        elif self.message_type != cython.NULL and find_no_utf8(message.type.data, message.type.size) >= 0:
            code = -10
        if code < 0:
            self._forget_attributes()
            return code
        if self.value != cython.NULL:
            put(self.value, row, message.payload.data, message.payload.size)
        if self.message_type != cython.NULL:
            if message.type.data == cython.NULL:
                put_null(self.message_type, row)
            else:
                put(self.message_type, row, message.type.data, message.type.size)
        if self.message_id != cython.NULL:
            put_long(self.message_id, row, message.message_id)
        if self.message_time != cython.NULL:
            digits = _number(message.time.data, message.time.size)
            if digits < 0:
                set_null(self.message_time, row)
            put_long(self.message_time, row, digits)
        if self.attributes != cython.NULL:
            end_row(self.attributes, row)
        self.rows += 1
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _put_unknown(self) -> cython.void:
        """Add a row for an unreadable message, with its id if known."""
        at: cython.Py_ssize_t
        column: cython.pointer(Column)
        for at in range(self.num_columns):
            column = self.columns + at
            if column == self.message_id and self.message.has_id:
                put_long(column, self.rows, self.message.message_id)
            elif column != self.fetch_offset and not column.is_entry:
                put_null(column, self.rows)
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
        """Find type and time, and add the other attributes if wanted; return 0, or the error."""
        data: cython.p_uchar = message.attributes.data
        size: cython.Py_ssize_t = message.attributes.size
        at: cython.Py_ssize_t = 0
        end: cython.Py_ssize_t
        equals: cython.Py_ssize_t
        key_size: cython.Py_ssize_t
        item: cython.Py_ssize_t
        item_size: cython.Py_ssize_t
        first: cython.Py_ssize_t = 0
        if self.attributes != cython.NULL:
            first = self.attributes.used
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
                elif self.attributes != cython.NULL and (
                    self.attributes.used - first >= _COMPARED_ATTRIBUTES
                    or not self._has_attribute(first, data + at, key_size)
                ):
                    put_entry(self.attributes, data + at, key_size, data + item, item_size)
            at = end + 1
        if self.attributes == cython.NULL:
            return 0
        if self.attributes.used - first > _COMPARED_ATTRIBUTES:
            with cython.gil:
                if not self._drop_repeated(first):
                    self._forget_attributes()
                    return -11
        for at in range(first, self.attributes.used):
            if not _is_text(self.attributes + 1, at) or not _is_text(self.attributes + 2, at):
                self._forget_attributes()
                return -8
        return 0

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _forget_attributes(self) -> cython.void:
        """Remove attributes that belong to no row."""
        if self.attributes != cython.NULL:
            self.attributes.used = self.attributes.offsets[self.rows]
            self.attributes[1].used = self.attributes[1].offsets[self.attributes.used]
            self.attributes[2].used = self.attributes[2].offsets[self.attributes.used]

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _has_attribute(self, first: cython.Py_ssize_t, key: cython.p_uchar, size: cython.Py_ssize_t) -> cython.bint:
        at: cython.Py_ssize_t
        start: cython.Py_ssize_t
        keys: cython.pointer(Column) = self.attributes + 1
        for at in range(first, self.attributes.used):
            start = keys.offsets[at]
            # Empty keys may have no address, which C forbids for `memcmp`.
            if keys.offsets[at + 1] - start == size and not (size and memcmp(keys.data + start, key, size)):
                return True
        return False

    @cython.cfunc
    @cython.exceptval(check=False)
    def _drop_repeated(self, first: cython.Py_ssize_t) -> cython.bint:
        """Keep only the first attribute of each key; return False if memory is exhausted."""
        at: cython.Py_ssize_t
        keys: cython.pointer(Column) = self.attributes + 1
        items: cython.pointer(Column) = self.attributes + 2
        try:
            pairs: dict = {}
            for at in range(first, self.attributes.used):
                key = keys.data[keys.offsets[at] : keys.offsets[at + 1]]
                pairs.setdefault(key, items.data[items.offsets[at] : items.offsets[at + 1]])
            self._forget_attributes()
            for key, item in pairs.items():
                put_entry(self.attributes, key, len(key), item, len(item))
        except MemoryError:
            return False
        return True


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_text(column: cython.pointer(Column), row: cython.Py_ssize_t) -> cython.bint:
    start: cython.Py_ssize_t = column.offsets[row]
    return find_no_utf8(column.data + start, column.offsets[row + 1] - start) < 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _parse_message(
    data: cython.p_uchar, size: cython.Py_ssize_t, message: cython.pointer(_Message)
) -> cython.Py_ssize_t:
    """Return 0, or why the TransferedMessage is corrupt, with the fields read so far."""
    field: Field
    at: cython.Py_ssize_t = 0
    memset(message, 0, cython.sizeof(_Message))
    while at < size:
        at = read_field(data, at, size, cython.address(field))
        if at < 0:
            # A message that cannot be read to its end has no known fields, as in the twin.
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
    """Return the number of messages; errors are left to the walk."""
    field: Field
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = 0
    while at < size:
        at = read_field(data, at, size, cython.address(field))
        if at < 0:
            break
        count += field.tag == 0x22
    return count


def without_messages(body):
    """See `_messages_python.without_messages`; the messages are not copied."""
    view: Py_buffer
    data: cython.p_uchar
    field: Field
    at: cython.Py_ssize_t = 0
    end: cython.Py_ssize_t
    others = []
    PyObject_GetBuffer(body, cython.address(view), PyBUF_SIMPLE)
    try:
        data = cython.cast(cython.p_uchar, view.buf)
        while at < view.len:
            end = read_field(data, at, view.len, cython.address(field))
            if end < 0:
                raise unreadable_answer(_SENTENCES[end])
            if field.tag != 0x22:
                others.append(data[at:end])
            at = end
    finally:
        PyBuffer_Release(cython.address(view))
    return b"".join(others)
