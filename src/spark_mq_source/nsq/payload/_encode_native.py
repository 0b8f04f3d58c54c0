"""The encoder's inner loop, compiled: Cython's pure-Python mode, C types in annotations.

The same interface and bytes as ``_encode_python``, whose documentation and rules hold here. What differs: the loop
reads Arrow's buffers as they are and writes straight into the body, without Python objects.

Safety: Arrow's offsets and indices are believed, as its own kernels do; the body's size is worked out before it is
written.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.nsq.payload._encode_native is not compiled")

from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy

from spark_mq_source.nsq.payload._encode_python import bind_value


@cython.cfunc
def _address(buffer) -> cython.size_t:
    return 0 if buffer is None else buffer.address


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_u32(out: cython.p_uchar, value: cython.Py_ssize_t) -> cython.void:
    out[0] = (value >> 24) & 0xFF
    out[1] = (value >> 16) & 0xFF
    out[2] = (value >> 8) & 0xFF
    out[3] = value & 0xFF


@cython.cclass
class RowSource:
    """As `_encode_python.RowSource`."""

    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    # What the pointers point into. `valid` is NULL where no row is; `offsets` is moved to where the array begins.
    array: object
    valid: cython.p_uchar
    bit: cython.Py_ssize_t
    offsets: cython.p_int
    data: cython.p_uchar

    def __init__(self, batch):
        self.array = bind_value(batch)
        self.rows = batch.num_rows
        buffers = self.array.buffers()
        self.bit = self.array.offset
        if self.array.null_count:
            self.valid = cython.cast(cython.p_uchar, _address(buffers[0]))
        # An array without rows may come without offsets; then nobody asks for any.
        self.offsets = cython.cast(cython.p_int, _address(buffers[1]))
        if self.offsets != cython.NULL:
            self.offsets += self.bit
        self.data = cython.cast(cython.p_uchar, _address(buffers[2]))

    def value(self, row: cython.Py_ssize_t):
        """As `_encode_python.RowSource.value`."""
        if not 0 <= row < self.rows:
            raise IndexError(row)
        if self.valid != cython.NULL and not (self.valid[(self.bit + row) >> 3] >> ((self.bit + row) & 7)) & 1:
            return None
        if self.offsets[row + 1] == self.offsets[row]:
            return b""
        return self.data[self.offsets[row] : self.offsets[row + 1]]


def find_unwritable(source: RowSource, max_message_bytes: cython.Py_ssize_t):
    """As `_encode_python.find_unwritable`."""
    row: cython.Py_ssize_t
    size: cython.Py_ssize_t
    bit: cython.Py_ssize_t
    for row in range(source.rows):
        size = source.offsets[row + 1] - source.offsets[row]
        bit = source.bit + row
        if size == 0 or size > max_message_bytes:
            return row
        if source.valid != cython.NULL and not (source.valid[bit >> 3] >> (bit & 7)) & 1:
            return row
    return -1


def build_body(
    source: RowSource,
    order,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    *,
    max_bytes: cython.Py_ssize_t,
    max_rows: cython.Py_ssize_t,
):
    """As `_encode_python.build_body`."""
    view: cython.Py_buffer
    rows: cython.p_int = cython.NULL
    size: cython.Py_ssize_t = 4
    more: cython.Py_ssize_t
    row: cython.Py_ssize_t
    stop: cython.Py_ssize_t = at
    i: cython.Py_ssize_t
    out: cython.p_uchar
    if order is not None:
        PyObject_GetBuffer(order, cython.address(view), PyBUF_SIMPLE)
        rows = cython.cast(cython.p_int, view.buf)
    try:
        while stop < end and stop - at < max_rows:
            row = stop if rows == cython.NULL else rows[stop]
            more = 4 + source.offsets[row + 1] - source.offsets[row]
            if size + more > max_bytes:
                break
            size += more
            stop += 1
        if stop == at:
            return b"", at
        body = PyBytes_FromStringAndSize(cython.NULL, size)
        out = cython.cast(cython.p_uchar, PyBytes_AS_STRING(body))
        _put_u32(out, stop - at)
        out += 4
        with cython.nogil:
            for i in range(at, stop):
                row = i if rows == cython.NULL else rows[i]
                more = source.offsets[row + 1] - source.offsets[row]
                _put_u32(out, more)
                memcpy(out + 4, source.data + source.offsets[row], more)
                out += 4 + more
    finally:
        if order is not None:
            PyBuffer_Release(cython.address(view))
    return body, stop
