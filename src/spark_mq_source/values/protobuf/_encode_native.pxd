"""The step codes of ``write_steps`` in C, and the compiled protobuf encoder."""

from spark_mq_source.values._loops_native cimport RowEncoder, WriteStep


# Equal to `protobuf.write_steps.WriteCode`; `check_codes` compares them.
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


# Equal to `protobuf.write_steps.Form`, likewise.
cpdef enum Form:
    VARINT
    VARINT32
    ZIGZAG32
    ZIGZAG64
    FIXED32
    FIXED64


cdef class ProtobufEncoder(RowEncoder):
    cdef long long messages  # number of messages so far

    cdef int put_value(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_head(self, WriteStep *step) except -1
    cdef int put_bytes(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_fields(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_time(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_block(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_entries(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int end_sized(self, Py_ssize_t start) except -1
    cdef int read_number(self, WriteStep *step, Py_ssize_t row, long long *number) except -1
    cdef int read_name(self, WriteStep *step, Py_ssize_t row, long long *number) except -1
