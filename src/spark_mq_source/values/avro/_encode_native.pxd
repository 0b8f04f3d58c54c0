"""The step codes of ``write_steps`` in C, and the compiled Avro encoder."""

from spark_mq_source.values._loops_native cimport RowEncoder, WriteStep


# The actions of the steps of `avro.write_steps`, which have them by name.
cpdef enum Code:
    CONSTANT  # `data`, without a column
    BOOLEAN
    BYTE  # an integer of this width
    SHORT
    INT
    LONG
    MILLIS  # from microseconds, rounded towards the past as in Spark
    FLOAT
    DOUBLE
    INT_TO_DOUBLE
    FLOAT_TO_DOUBLE
    SIZED  # a text or a binary value after its size
    FIXED  # a binary value of `size` bytes
    DECIMAL  # after its size
    FIXED_DECIMAL  # of `size` bytes
    ENUM
    RECORD
    ARRAY
    MAP
    MEMBERS  # the only field of a struct that is not NULL


cdef class AvroEncoder(RowEncoder):
    cdef int put_value(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_block(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_member(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_decimal(self, WriteStep *step, Py_ssize_t row) except -1
