"""The encoder's inner loop, compiled: Cython's pure-Python mode, C types in annotations.

It has the interface and bytes of ``_encode_python``, whose documentation and rules apply. The difference: the loop
reads Arrow's buffers directly and writes into the body, without Python objects.

Safety: Arrow's offsets and indices are trusted, as in Arrow's own kernels; the size of the body is computed before it
is written.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.nsq.payload._encode_native is not compiled")

from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.string import memcpy
from cython.cimports.spark_mq_source.core._arrays import Cells, bind_cells, is_valid
from cython.cimports.spark_mq_source.core._checked import must
from cython.cimports.spark_mq_source.core._wire import write_u32

from spark_mq_source.nsq.payload.layout import bind_value


@cython.cclass
class RowSource:
    """See `_encode_python.RowSource`."""

    rows = cython.declare(cython.Py_ssize_t, visibility="readonly")
    # The owner of the memory behind the pointers.
    array: object
    cells: Cells

    def __init__(self, batch):
        self.array = bind_value(batch)
        self.rows = batch.num_rows
        bind_cells(cython.address(self.cells), self.array)

    def value(self, row: cython.Py_ssize_t):
        """See `_encode_python.RowSource.value`."""
        start: cython.Py_ssize_t
        end: cython.Py_ssize_t
        if not 0 <= row < self.rows:
            raise IndexError(row)
        if not is_valid(self.cells.valid, self.cells.bit + row):
            return None
        start, end = self.cells.offsets[row], self.cells.offsets[row + 1]
        return self.cells.data[start:end] if start < end else b""

    def find_unwritable(self, max_message_bytes: cython.Py_ssize_t):
        """See `_encode_python.RowSource.find_unwritable`."""
        row: cython.Py_ssize_t
        size: cython.Py_ssize_t
        for row in range(self.rows):
            size = self.cells.offsets[row + 1] - self.cells.offsets[row]
            if size == 0 or size > max_message_bytes or not is_valid(self.cells.valid, self.cells.bit + row):
                return row
        return -1

    def build_body(
        self,
        order,
        at: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
        *,
        max_bytes: cython.Py_ssize_t,
        max_rows: cython.Py_ssize_t,
    ):
        """See `_encode_python.RowSource.build_body`."""
        view: cython.Py_buffer
        rows: cython.p_int = cython.NULL
        size: cython.Py_ssize_t = 4
        more: cython.Py_ssize_t
        row: cython.Py_ssize_t
        stop: cython.Py_ssize_t = at
        i: cython.Py_ssize_t
        out: cython.p_uchar
        start: cython.p_uchar
        if order is not None:
            PyObject_GetBuffer(order, cython.address(view), PyBUF_SIMPLE)
            rows = cython.cast(cython.p_int, view.buf)
        try:
            while stop < end and stop - at < max_rows:
                row = stop if rows == cython.NULL else rows[stop]
                more = 4 + self.cells.offsets[row + 1] - self.cells.offsets[row]
                if size + more > max_bytes:
                    break
                size += more
                stop += 1
            if stop == at:
                return b"", at
            body = PyBytes_FromStringAndSize(cython.NULL, size)
            out = start = cython.cast(cython.p_uchar, PyBytes_AS_STRING(body))
            write_u32(out, stop - at)
            out += 4
            with cython.nogil:
                for i in range(at, stop):
                    row = i if rows == cython.NULL else rows[i]
                    more = self.cells.offsets[row + 1] - self.cells.offsets[row]
                    write_u32(out, more)
                    memcpy(out + 4, self.cells.data + self.cells.offsets[row], more)
                    out += 4 + more
                    must(out - start <= size, "a row is written for which there is no room")
        finally:
            if order is not None:
                PyBuffer_Release(cython.address(view))
        return body, stop
