"""What the compiled Avro encoder walks: the steps of ``write_steps``, and beside each the column that it reads."""

from spark_mq_source.core._arrays cimport Cells
from spark_mq_source.core._wire cimport Slice
from spark_mq_source.values.avro._decode_native cimport int128, uint128
from spark_mq_source.values._loops_native cimport RowEncoder


# As `avro.write_steps.WriteCode`, which `check_codes` compares with it.
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


# `cells` are the values of the column.
cdef struct Step:
    Code code
    bint has_null
    Slice null_value
    Slice head
    Slice constant
    Py_ssize_t size
    int128 factor
    Slice *symbols
    Py_ssize_t num_symbols
    Step *steps
    Py_ssize_t count
    Cells cells


cdef class Encoder(RowEncoder):
    cdef Step *steps
    cdef Py_ssize_t num_steps
    cdef list arrays  # which own what the steps read

    cdef int lay_out(self, Step *step, described, array, Py_ssize_t *count) except -1
    cdef int put(self, Step *step, Py_ssize_t row) except -1
    cdef int put_block(self, Step *step, Py_ssize_t row) except -1
    cdef int put_member(self, Step *step, Py_ssize_t row) except -1
    cdef int put_symbol(self, Step *step, const unsigned char *data, Py_ssize_t size) except -1
    cdef int put_decimal(self, Step *step, Py_ssize_t row) except -1
