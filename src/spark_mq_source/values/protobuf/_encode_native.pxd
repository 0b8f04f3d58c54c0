"""The step codes of ``write_steps`` in C, and the compiled protobuf encoder."""

from spark_mq_source.values._loops_native cimport RowEncoder, WriteStep


# The content of a column; the steps of `protobuf.write_steps` have it by name.
cpdef enum Code:
    BYTE  # an integer of this width
    SHORT
    INT  # or the bits of a float
    LONG  # or the bits of a double
    WIDE  # an int64 whose lower 32 bits are written
    DECIMAL  # without a fraction; its lower 64 bits are written
    BOOLEAN
    FLOAT  # written as a double
    SIZED  # text or binary
    NAME  # a text, written as its number in the enum
    CHECKED  # an int32 that must be in a closed enum
    TIMESTAMP  # microseconds; the nanoseconds are never negative
    DURATION  # microseconds; the nanoseconds have the sign of the seconds
    MESSAGE
    GROUP
    LIST  # one field per element
    PACKED
    MAP


# The form of a number on the wire, likewise.
cpdef enum Form:
    VARINT
    VARINT32  # the lower 32 bits
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
