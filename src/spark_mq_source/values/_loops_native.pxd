"""The base of the compiled loops over values: rows, steps in memory, and a growing buffer of bytes."""

from libc.string cimport memcpy

from spark_mq_source.core._arrays cimport Cells
from spark_mq_source.core._checked cimport must
from spark_mq_source.core._wire cimport Slice
from spark_mq_source.values._tree_native cimport Tree


cdef extern from *:
    """
    typedef __int128 smq_int128;
    typedef unsigned __int128 smq_uint128;
    """
    ctypedef long long int128 "smq_int128"
    ctypedef unsigned long long uint128 "smq_uint128"


# A step of an encoder, with the column that it reads. Each encoding uses some of the members, like its `WriteStep`.
cdef struct WriteStep:
    int code
    int form
    bint is_implicit
    bint is_required
    int oneof
    bint has_null
    bint is_checked  # each text must be checked: one of the column may not be UTF-8
    Cells cells
    Slice head
    WriteStep *steps
    Py_ssize_t count
    long long *chosen  # of a message: for each oneof, the last message that set it
    Slice tail
    Slice null_value
    Slice constant
    Py_ssize_t size
    Slice *names
    int *numbers
    Py_ssize_t num_names
    int128 factor


cdef class RowDecoder:
    cdef readonly object type
    cdef Tree tree
    cdef list path  # of the fault in a payload, from the inside to the outside

    cdef bint read_row(self, Slice payload) except -1
    cdef str why(self, Slice payload)


cdef class RowEncoder:
    cdef WriteStep *steps
    cdef Py_ssize_t num_steps
    cdef list described  # the Python steps, which own the bytes
    cdef list kept  # further owners of memory that steps read: arrays and bytes
    cdef unsigned char *out
    cdef Py_ssize_t used
    cdef Py_ssize_t room

    cdef int lay_out(self, WriteStep *step, described, array) except -1
    cdef int describe(self, WriteStep *step, described) except -1
    cdef int put_row(self, Py_ssize_t row) except -1
    cdef int grow(self, Py_ssize_t more) except -1
    cdef int refuse(self, const WriteStep *step, str why) except -1


cdef inline unsigned char *end_of(RowEncoder encoder, Py_ssize_t more) noexcept:
    """Return the position of the next bytes, at most `more`, for which room must be reserved."""
    must(0 <= more <= encoder.room - encoder.used, "bytes are written for which no room was reserved")
    return encoder.out + encoder.used


cdef inline int reserve(RowEncoder encoder, Py_ssize_t more) except -1:
    if encoder.room - encoder.used < more:
        encoder.grow(more)
    return 0


cdef inline void put(RowEncoder encoder, const void *data, Py_ssize_t size) noexcept:
    """Write bytes, for which room must be reserved."""
    if size:
        memcpy(end_of(encoder, size), data, size)
        encoder.used += size


cdef inline void put_varint(RowEncoder encoder, unsigned long long value) noexcept:
    """Write a varint, for which room must be reserved: ten bytes at most."""
    cdef unsigned char *out = end_of(encoder, 1)
    cdef unsigned char *begin = out
    while value >= 0x80:
        out[0] = <unsigned char>(value | 0x80)
        value >>= 7
        out += 1
    out[0] = <unsigned char>value
    end_of(encoder, out - begin + 1)
    encoder.used += out - begin + 1


cdef inline unsigned long long zigzag(long long number) noexcept:
    return (<unsigned long long>number << 1) ^ (0 - (<unsigned long long>number >> 63))


cdef Py_ssize_t count_steps(described) except -1
cdef Slice *lay_out_texts(texts) except? NULL
cdef Py_ssize_t find_name(const WriteStep *step, Py_ssize_t row) noexcept
