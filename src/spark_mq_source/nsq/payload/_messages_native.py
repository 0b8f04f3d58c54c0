"""The message decoder's inner loops, compiled: Cython's pure-Python mode, C types in annotations.

The same interface, rows and errors as ``_messages_python``, whose documentation and rules hold here. What differs: the
loop walks the frames once, without Python objects, and writes into buffers that Arrow then takes as they are.

Safety: every size is compared with what is left before it is used, and room for a whole run (a column cannot hold more
than the run it comes from) is reserved before the walk. On any error the counters stay where they were, and what was
written beyond them is overwritten by the next run.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.nsq.payload._messages_native is not compiled")

import pyarrow as pa
from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy

from spark_mq_source.core.columns import (
    MAX_COLUMN_BYTES,
    ConstantColumn,
    fixed_row_bytes,
    fixed_width_array,
    is_text,
    variable_width_array,
)
from spark_mq_source.nsq.payload._messages_python import check_text, column_overflow, not_a_run

_HEAD = cython.declare(cython.Py_ssize_t, 8)
_MESSAGE_HEAD = cython.declare(cython.Py_ssize_t, 34)
_LEAST_SIZE = cython.declare(cython.Py_ssize_t, 30)
_ID = cython.declare(cython.Py_ssize_t, 16)
_ID_AT = cython.declare(cython.Py_ssize_t, 18)
_HIGH_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _u32(data: cython.p_uchar) -> cython.Py_ssize_t:
    return (
        (cython.cast(cython.Py_ssize_t, data[0]) << 24)
        | (cython.cast(cython.Py_ssize_t, data[1]) << 16)
        | (cython.cast(cython.Py_ssize_t, data[2]) << 8)
        | data[3]
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _microseconds(data: cython.p_uchar) -> cython.longlong:
    """Of the nanoseconds that stand there, cut towards the past."""
    nanoseconds: cython.longlong = cython.cast(
        cython.longlong,
        (cython.cast(cython.ulonglong, _u32(data)) << 32) | cython.cast(cython.ulonglong, _u32(data + 4)),
    )
    microseconds: cython.longlong = nanoseconds // 1000  # C's division, which cuts towards zero
    if nanoseconds < 0 and microseconds * 1000 != nanoseconds:
        microseconds -= 1
    return microseconds


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _is_ascii(message_id: cython.p_uchar) -> cython.bint:
    words: cython.ulonglong[2]
    memcpy(words, message_id, 16)
    return not (words[0] | words[1]) & _HIGH_BITS


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


def scan_messages(data, offset: cython.Py_ssize_t, max_frame_bytes: cython.Py_ssize_t):
    """As `_messages_python.scan_messages`."""
    view: cython.Py_buffer
    start: cython.p_uchar
    end: cython.Py_ssize_t
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    start = cython.cast(cython.p_uchar, view.buf)
    end = view.len
    while offset + _HEAD <= end and _u32(start + offset + 4) == 2:
        size = _u32(start + offset)
        if size < _LEAST_SIZE or size > max_frame_bytes or size > end - offset - 4:
            break
        offset += 4 + size
        count += 1
    PyBuffer_Release(cython.address(view))
    return count, offset


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _count(
    data: cython.p_uchar, end: cython.Py_ssize_t, wrong_at: cython.pointer(cython.Py_ssize_t)
) -> cython.Py_ssize_t:
    """How many messages a run has; -1 where it is none."""
    at: cython.Py_ssize_t = 0
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    while at < end:
        wrong_at[0] = at
        if end - at < _MESSAGE_HEAD or _u32(data + at + 4) != 2:
            return -1
        size = _u32(data + at)
        if size < _LEAST_SIZE or size > end - at - 4:
            return -1
        at += 4 + size
        count += 1
    return count


def message_ids(data):
    """As `_messages_python.message_ids`."""
    view: cython.Py_buffer
    start: cython.p_uchar
    out: cython.p_uchar
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    try:
        start = cython.cast(cython.p_uchar, view.buf)
        count = _count(start, view.len, cython.address(at))
        if count < 0:
            raise not_a_run(at)
        ids = PyBytes_FromStringAndSize(cython.NULL, count * _ID)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(ids))
        at = 0
        while at < view.len:
            memcpy(out, start + at + _ID_AT, _ID)
            out += _ID
            at += 4 + _u32(start + at)
    finally:
        PyBuffer_Release(cython.address(view))
    return ids


def encode_id_commands(name: bytes, ids, tail: bytes = b""):
    """As `_messages_python.encode_id_commands`."""
    view: cython.Py_buffer
    start: cython.p_uchar
    out: cython.p_uchar
    at: cython.Py_ssize_t
    before: bytes = name + b" "
    after: bytes = tail + b"\n"
    before_size: cython.Py_ssize_t = len(before)
    after_size: cython.Py_ssize_t = len(after)
    before_data: cython.p_char = before
    after_data: cython.p_char = after
    PyObject_GetBuffer(ids, cython.address(view), PyBUF_SIMPLE)
    try:
        if view.len % _ID:
            raise ValueError(f"message ids have {_ID} bytes each; {view.len} are not whole ones")
        commands = PyBytes_FromStringAndSize(cython.NULL, view.len // _ID * (before_size + _ID + after_size))
        start = cython.cast(cython.p_uchar, view.buf)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(commands))
        at = 0
        while at < view.len:
            memcpy(out, before_data, before_size)
            memcpy(out + before_size, start + at, _ID)
            memcpy(out + before_size + _ID, after_data, after_size)
            out += before_size + _ID + after_size
            at += _ID
    finally:
        PyBuffer_Release(cython.address(view))
    return commands


@cython.cclass
class MessageColumns:
    """As `_messages_python.MessageColumns`."""

    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    schema: object
    constant: dict
    row_bytes: cython.Py_ssize_t
    capacity: cython.Py_ssize_t
    row_hint: cython.Py_ssize_t
    wants_value: cython.bint
    value_is_text: cython.bint
    wants_id: cython.bint
    id_is_text: cython.bint
    wants_timestamp: cython.bint
    wants_attempts: cython.bint
    value: cython.p_uchar
    value_used: cython.Py_ssize_t
    value_capacity: cython.Py_ssize_t
    value_hint: cython.Py_ssize_t
    value_offsets: cython.p_int
    ids: cython.p_uchar
    timestamps: cython.p_longlong
    attempts: cython.p_int

    def __init__(self, schema, *, topic, channel, nsqd):
        self.schema = schema
        self.constant = {
            name: ConstantColumn(text, schema.field(name).type)
            for name, text in (("topic", topic), ("channel", channel), ("nsqd", nsqd))
            if name in schema.names
        }
        wanted = [name for name in schema.names if name not in self.constant]
        self.wants_value = "value" in wanted
        self.value_is_text = self.wants_value and is_text(schema.field("value").type)
        self.wants_id = "message_id" in wanted
        self.id_is_text = self.wants_id and is_text(schema.field("message_id").type)
        self.wants_timestamp = "timestamp" in wanted
        self.wants_attempts = "attempts" in wanted
        self.row_bytes = sum(fixed_row_bytes(schema.field(name).type) for name in wanted)
        if self.wants_id:
            self.row_bytes += _ID

    def __dealloc__(self):
        free(self.value)
        free(self.value_offsets)
        free(self.ids)
        free(self.timestamps)
        free(self.attempts)

    @property
    def nbytes(self):
        """As `_messages_python.MessageColumns.nbytes`."""
        return self.value_used + self.rows * self.row_bytes

    def append(self, data):
        """As `_messages_python.MessageColumns.append`."""
        view: cython.Py_buffer
        start: cython.p_uchar
        count: cython.Py_ssize_t
        at: cython.Py_ssize_t = 0
        used: cython.Py_ssize_t = self.value_used
        is_text: cython.bint
        PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
        try:
            start = cython.cast(cython.p_uchar, view.buf)
            count = _count(start, view.len, cython.address(at))
            if count < 0:
                raise not_a_run(at)
            self._reserve(count, view.len - count * _MESSAGE_HEAD)
            with cython.nogil:
                is_text = self._walk(start, view.len)
            try:
                if not is_text or not self._is_utf8(used):
                    # Its twin finds the message, and raises.
                    check_text(data, self.value_is_text, self.id_is_text)
            except BaseException:
                self.value_used = used
                raise
            self.rows += count
        finally:
            PyBuffer_Release(cython.address(view))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk(self, data: cython.p_uchar, end: cython.Py_ssize_t) -> cython.bint:
        """Writes the rows of a run whose sizes `_count` has checked; False where a column of text is none, surely."""
        at: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        row: cython.Py_ssize_t = self.rows
        is_text: cython.bint = True
        while at < end:
            size = _u32(data + at) - _LEAST_SIZE
            if self.wants_value:
                # All values together are checked later; this one's first byte must not belong to a sequence before it.
                if self.value_is_text and size and data[at + _MESSAGE_HEAD] & 0xC0 == 0x80:
                    is_text = False
                memcpy(self.value + self.value_used, data + at + _MESSAGE_HEAD, size)
                self.value_used += size
                self.value_offsets[row + 1] = cython.cast(cython.int, self.value_used)
            if self.wants_id:
                if self.id_is_text and not _is_ascii(data + at + _ID_AT):
                    is_text = False
                memcpy(self.ids + row * _ID, data + at + _ID_AT, _ID)
            if self.wants_timestamp:
                self.timestamps[row] = _microseconds(data + at + _HEAD)
            if self.wants_attempts:
                self.attempts[row] = (cython.cast(cython.int, data[at + 16]) << 8) | data[at + 17]
            row += 1
            at += _MESSAGE_HEAD + size
        return is_text

    @cython.cfunc
    def _is_utf8(self, used: cython.Py_ssize_t) -> cython.bint:
        """Whether the values from `used` on are, all together."""
        if self.value_is_text and self.value_used > used:
            try:
                PyUnicode_DecodeUTF8(cython.cast(cython.p_char, self.value + used), self.value_used - used, cython.NULL)
            except UnicodeDecodeError:
                return False
        return True

    @cython.cfunc
    def _reserve(self, more: cython.Py_ssize_t, more_bytes: cython.Py_ssize_t):
        """Make room for `more` rows and `more_bytes` of values."""
        capacity: cython.Py_ssize_t
        # Even nothing is only ever copied to somewhere: memcpy to NULL is undefined.
        if self.wants_value and (self.value == cython.NULL or self.value_used + more_bytes > self.value_capacity):
            if self.value_used + more_bytes > cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES):
                raise column_overflow("value")
            # Never beyond the bound, which is not looked at again while there is room.
            capacity = max(self.value_used + more_bytes, 2 * self.value_capacity, self.value_hint, 256)
            capacity = min(capacity, cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES))
            self.value = cython.cast(cython.p_uchar, _resize(self.value, capacity))
            self.value_capacity = capacity
        if self.rows + more <= self.capacity:
            return
        if self.wants_id and (self.rows + more) * _ID > cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES):
            raise column_overflow("message_id")
        capacity = max(self.rows + more, 2 * self.capacity, self.row_hint, 64)
        if self.wants_id:
            capacity = min(capacity, cython.cast(cython.Py_ssize_t, MAX_COLUMN_BYTES) // _ID)
        if self.wants_value:
            self.value_offsets = cython.cast(cython.p_int, _resize(self.value_offsets, (capacity + 1) * 4))
            self.value_offsets[0] = 0
        if self.wants_id:
            self.ids = cython.cast(cython.p_uchar, _resize(self.ids, capacity * _ID))
        if self.wants_timestamp:
            self.timestamps = cython.cast(cython.p_longlong, _resize(self.timestamps, capacity * 8))
        if self.wants_attempts:
            self.attempts = cython.cast(cython.p_int, _resize(self.attempts, capacity * 4))
        self.capacity = capacity

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
                arrays.append(self._take_values(field.type))
            elif name == "message_id":
                arrays.append(self._take_ids(field.type))
            elif name == "timestamp":
                arrays.append(fixed_width_array(field.type, rows, _hand_over(self.timestamps, rows * 8)))
                self.timestamps = cython.NULL
            else:
                arrays.append(fixed_width_array(field.type, rows, _hand_over(self.attempts, rows * 4)))
                self.attempts = cython.NULL
        # As much again is likely to come: enough at once spares growing, which copies.
        self.row_hint = rows + rows // 8
        self.capacity = 0
        self.rows = 0
        return arrays

    @cython.cfunc
    def _take_values(self, type_):
        offsets = _hand_over(self.value_offsets, (self.rows + 1) * 4)
        self.value_offsets = cython.NULL
        data = _hand_over(self.value, self.value_used)
        self.value = cython.NULL
        self.value_hint = self.value_used + self.value_used // 8
        self.value_used = 0
        self.value_capacity = 0
        return variable_width_array(type_, self.rows, offsets, data)

    @cython.cfunc
    def _take_ids(self, type_):
        row: cython.Py_ssize_t
        offsets: cython.p_int = cython.cast(cython.p_int, _resize(cython.NULL, (self.rows + 1) * 4))
        for row in range(self.rows + 1):
            offsets[row] = cython.cast(cython.int, row * _ID)
        data = _hand_over(self.ids, self.rows * _ID)
        self.ids = cython.NULL
        return variable_width_array(type_, self.rows, _hand_over(offsets, (self.rows + 1) * 4), data)
