"""The message decoder's inner loops, compiled: Cython's pure-Python mode, C types in annotations.

It has the interface, rows and errors of ``_messages_python``, whose documentation and rules apply. The difference: the
loop walks the frames once, without Python objects, and writes into buffers that Arrow then uses without a copy.

Safety: every size is compared with the remaining bytes before it is used, and space for a whole run (a column cannot
hold more than the run it comes from) is reserved before the walk. After an error the counters are unchanged, and the
next run overwrites what was written beyond them.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.nsq.payload._messages_native is not compiled")

from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.cpython.unicode import PyUnicode_DecodeUTF8
from cython.cimports.libc.string import memcpy
from cython.cimports.spark_mq_source.core._checked import must
from cython.cimports.spark_mq_source.core._columns_native import Column, Columns, put, put_int, put_long
from cython.cimports.spark_mq_source.core._wire import read_u32

from spark_mq_source.nsq.payload.layout import check_text, not_a_run

_HEAD = cython.declare(cython.Py_ssize_t, 8)
_MESSAGE_HEAD = cython.declare(cython.Py_ssize_t, 34)
_MIN_SIZE = cython.declare(cython.Py_ssize_t, 30)
_ID = cython.declare(cython.Py_ssize_t, 16)
_ID_AT = cython.declare(cython.Py_ssize_t, 18)
_HIGH_BITS = cython.declare(cython.ulonglong, 0x8080808080808080)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _nanoseconds(data: cython.p_uchar) -> cython.longlong:
    """Return a big-endian number of 64 bits."""
    return cython.cast(
        cython.longlong,
        (cython.cast(cython.ulonglong, read_u32(data)) << 32) | cython.cast(cython.ulonglong, read_u32(data + 4)),
    )


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _microseconds(data: cython.p_uchar) -> cython.longlong:
    """Return the microseconds of a big-endian time in nanoseconds, rounded down."""
    nanoseconds: cython.longlong = _nanoseconds(data)
    microseconds: cython.longlong = nanoseconds // 1000  # C's division, which rounds towards zero
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
@cython.nogil
@cython.exceptval(check=False)
def _scan(
    data: cython.p_uchar,
    at: cython.pointer(cython.Py_ssize_t),
    end: cython.Py_ssize_t,
    max_frame_bytes: cython.Py_ssize_t,
) -> cython.Py_ssize_t:
    """Move `at` behind the complete message frames that begin there; return their number."""
    size: cython.Py_ssize_t
    count: cython.Py_ssize_t = 0
    while at[0] + _HEAD <= end and read_u32(data + at[0] + 4) == 2:
        size = read_u32(data + at[0])
        if size < _MIN_SIZE or size > max_frame_bytes or size > end - at[0] - 4:
            break
        at[0] += 4 + size
        count += 1
    return count


def scan_messages(data, offset: cython.Py_ssize_t, max_frame_bytes: cython.Py_ssize_t):
    """See `_messages_python.scan_messages`."""
    view: cython.Py_buffer
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    count = _scan(cython.cast(cython.p_uchar, view.buf), cython.address(offset), view.len, max_frame_bytes)
    PyBuffer_Release(cython.address(view))
    return count, offset


@cython.cfunc
@cython.exceptval(-1)
def _count(data: cython.p_uchar, end: cython.Py_ssize_t) -> cython.Py_ssize_t:
    """Return the number of messages of a run; raise if it is invalid."""
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t = _scan(data, cython.address(at), end, end)
    if at < end:
        raise not_a_run(at)
    return count


def message_ids(data):
    """See `_messages_python.message_ids`."""
    view: cython.Py_buffer
    start: cython.p_uchar
    out: cython.p_uchar
    at: cython.Py_ssize_t = 0
    count: cython.Py_ssize_t
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    try:
        start = cython.cast(cython.p_uchar, view.buf)
        count = _count(start, view.len)
        ids = PyBytes_FromStringAndSize(cython.NULL, count * _ID)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(ids))
        while at < view.len:
            memcpy(out, start + at + _ID_AT, _ID)
            out += _ID
            count -= 1
            at += 4 + read_u32(start + at)
        must(count == 0, "a run has other messages than were counted")
    finally:
        PyBuffer_Release(cython.address(view))
    return ids


def encode_id_commands(name: bytes, ids, tail: bytes = b""):
    """See `_messages_python.encode_id_commands`."""
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
class MessageColumns(Columns):
    """See `_messages_python.MessageColumns`."""

    value: cython.pointer(Column)
    message_id: cython.pointer(Column)
    timestamp: cython.pointer(Column)
    timestamp_ns: cython.pointer(Column)
    attempts: cython.pointer(Column)
    value_is_text: cython.bint
    id_is_text: cython.bint

    def __init__(self, schema, *, topic, channel, nsqd):
        Columns.__init__(self, schema, {"topic": topic, "channel": channel, "nsqd": nsqd})
        self.value = self.find("value")
        self.message_id = self.find("message_id")
        self.timestamp = self.find("timestamp")
        self.timestamp_ns = self.find("timestamp_ns")
        self.attempts = self.find("attempts")
        self.value_is_text = self.value != cython.NULL and self.value.is_text
        self.id_is_text = self.message_id != cython.NULL and self.message_id.is_text

    def append(self, data):
        """See `_messages_python.MessageColumns.append`."""
        view: cython.Py_buffer
        start: cython.p_uchar
        count: cython.Py_ssize_t
        is_text: cython.bint
        PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
        try:
            start = cython.cast(cython.p_uchar, view.buf)
            count = _count(start, view.len)
            self.reserve_rows(count)
            self.reserve(self.value, view.len - count * _MESSAGE_HEAD)
            self.reserve(self.message_id, count * _ID)
            self.mark()
            with cython.nogil:
                is_text = self._walk(start, view.len)
            try:
                if not is_text or not self._is_utf8():
                    # The check of the twin finds the message, and raises.
                    check_text(data, self.value_is_text, self.id_is_text)
            except BaseException:
                self.roll_back()
                raise
            self.rows += count
        finally:
            PyBuffer_Release(cython.address(view))

    @cython.cfunc
    @cython.nogil
    @cython.exceptval(check=False)
    def _walk(self, data: cython.p_uchar, end: cython.Py_ssize_t) -> cython.bint:
        """Write the rows of a run that `_count` has checked; return False if a text column is certainly invalid."""
        at: cython.Py_ssize_t = 0
        size: cython.Py_ssize_t
        row: cython.Py_ssize_t = self.rows
        is_text: cython.bint = True
        while at < end:
            size = read_u32(data + at) - _MIN_SIZE
            if self.value != cython.NULL:
                # All values together are checked later; this one must not continue the previous one's last sequence.
                if self.value_is_text and size and data[at + _MESSAGE_HEAD] & 0xC0 == 0x80:
                    is_text = False
                put(self.value, row, data + at + _MESSAGE_HEAD, size)
            if self.message_id != cython.NULL:
                if self.id_is_text and not _is_ascii(data + at + _ID_AT):
                    is_text = False
                put(self.message_id, row, data + at + _ID_AT, _ID)
            if self.timestamp != cython.NULL:
                put_long(self.timestamp, row, _microseconds(data + at + _HEAD))
            if self.timestamp_ns != cython.NULL:
                put_long(self.timestamp_ns, row, _nanoseconds(data + at + _HEAD))
            if self.attempts != cython.NULL:
                put_int(self.attempts, row, (cython.cast(cython.int, data[at + 16]) << 8) | data[at + 17])
            row += 1
            at += _MESSAGE_HEAD + size
        return is_text

    @cython.cfunc
    def _is_utf8(self) -> cython.bint:
        """Return whether all values since `mark` together are UTF-8."""
        if self.value_is_text and self.value.used > self.value.marked_used:
            try:
                PyUnicode_DecodeUTF8(
                    cython.cast(cython.p_char, self.value.data + self.value.marked_used),
                    self.value.used - self.value.marked_used,
                    cython.NULL,
                )
            except UnicodeDecodeError:
                return False
        return True
