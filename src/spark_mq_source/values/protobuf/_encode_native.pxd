"""What the compiled protobuf encoder walks: the steps of ``write_steps``, and beside each the column it reads."""

from spark_mq_source.core._arrays cimport Cells
from spark_mq_source.core._wire cimport Slice
from spark_mq_source.values._loops_native cimport RowEncoder


# As `protobuf.write_steps.WriteCode`, in the same order.
cpdef enum Code:
    BYTE
    SHORT
    INT
    LONG
    WIDE
    DECIMAL
    BOOLEAN
    FLOAT
    SIZED
    NAME
    CHECKED
    TIMESTAMP
    DURATION
    MESSAGE
    GROUP
    LIST
    PACKED
    MAP


# As `protobuf.write_steps.Form`, in the same order.
cpdef enum Form:
    VARINT
    VARINT32
    ZIGZAG32
    ZIGZAG64
    FIXED32
    FIXED64


# `cells` are the values of the column.
cdef struct Step:
    Code code
    Form form
    bint is_implicit
    bint is_required
    int oneof
    Slice head
    Slice tail  # the end of a group
    Slice *names
    int *numbers
    Py_ssize_t num_names
    Step *steps
    Py_ssize_t count
    long long *chosen  # of a message, by oneof the message that has it already
    Cells cells


cdef class Encoder(RowEncoder):
    cdef Step *steps
    cdef Py_ssize_t num_steps
    cdef list kept  # the bytes and arrays that the steps read
    cdef long long messages  # so far

    cdef int lay_out(self, Step *step, described, array, Py_ssize_t *count) except -1
    cdef int put(self, Step *step, Py_ssize_t row) except -1
    cdef int put_head(self, Step *step) except -1
    cdef int put_bytes(self, Step *step, Py_ssize_t row) except -1
    cdef int put_fields(self, Step *step, Py_ssize_t row) except -1
    cdef int put_time(self, Step *step, Py_ssize_t row) except -1
    cdef int put_block(self, Step *step, Py_ssize_t row) except -1
    cdef int put_entries(self, Step *step, Py_ssize_t row) except -1
    cdef int put_varint(self, unsigned long long value) except -1
    cdef int end_sized(self, Py_ssize_t start) except -1
    cdef int read_number(self, Step *step, Py_ssize_t row, long long *number) except -1
    cdef int read_name(self, Step *step, Py_ssize_t row, long long *number) except -1
