"""The step codes of ``write_steps`` in C, and the compiled Avro encoder."""

from spark_mq_source.values._loops_native cimport RowEncoder, WriteStep


# Equal to `avro.write_steps.WriteCode`; `check_codes` compares them.
cpdef enum Code:
    CONSTANT
    BOOLEAN
    BYTE
    SHORT
    INT
    LONG
    MILLIS
    FLOAT
    DOUBLE
    INT_TO_DOUBLE
    FLOAT_TO_DOUBLE
    SIZED
    FIXED
    DECIMAL
    FIXED_DECIMAL
    ENUM
    RECORD
    ARRAY
    MAP
    MEMBERS


cdef class AvroEncoder(RowEncoder):
    cdef int put_value(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_block(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_member(self, WriteStep *step, Py_ssize_t row) except -1
    cdef int put_symbol(self, WriteStep *step, const unsigned char *data, Py_ssize_t size) except -1
    cdef int put_decimal(self, WriteStep *step, Py_ssize_t row) except -1
