"""The steps of ``steps`` as C structs, for the compiled Avro decoder."""

from spark_mq_source.core._wire cimport Slice, read_varint
from spark_mq_source.values._loops_native cimport RowDecoder, int128
from spark_mq_source.values._tree_native cimport Node


# The actions of the steps of `avro.steps`, which have them by name.
cpdef enum Code:
    NULL_
    BOOLEAN
    INT  # 32 bits
    LONG
    MILLIS  # read as microseconds
    INT_TO_FLOAT
    INT_TO_DOUBLE
    FLOAT
    FLOAT_TO_DOUBLE
    DOUBLE
    TEXT
    BINARY
    FIXED  # `size` bytes
    DECIMAL  # of `size` bytes; if `size` is negative, the bytes begin with their size
    ENUM
    RECORD
    ARRAY
    MAP
    UNION  # one step per branch
    MEMBER  # one field of a struct that represents a union; the others are NULL
    DEFAULT  # the step reads `data`
    FAIL
    SEQUENCE  # a sequence of steps that skip
    SKIP_BYTES  # `size` of them
    SKIP_VARINTS  # `size` of them
    SKIP_SIZED  # `size` texts or binary values
    SKIP_BLOCKS  # an array or a map


# `node` is the node that the step fills, NULL if it skips; `steps` are `count` consecutive steps.
cdef struct Step:
    Code code
    bint is_int
    bint is_empty
    Node *node
    Step *steps
    Py_ssize_t count
    Py_ssize_t size
    Slice default_value
    Slice *symbols
    Py_ssize_t num_symbols
    int128 limit  # exclusive limit of a decimal
    int128 factor


# The reasons for negative positions; see `_WHYS`.
cdef enum Fault:
    ENDS_ = -1
    NO_END_ = -2
    NO_LENGTH_ = -3


cdef inline Py_ssize_t read_number(
    const unsigned char *data, Py_ssize_t at, Py_ssize_t end, long long *number
) noexcept nogil:
    """Return the end of the number at `at`, or a `Fault`. Zigzag: small negative numbers are short, too."""
    cdef unsigned long long word = 0
    cdef Py_ssize_t after = read_varint(data, at, end, &word)
    if after < 0:
        # A number has at most ten bytes.
        return Fault.NO_END_ if end - at >= 10 else Fault.ENDS_
    number[0] = <long long>((word >> 1) ^ (~(word & 1) + 1))
    return after


cdef inline Py_ssize_t check_size(long long size, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Return `at` if a value of this size fits there, or a `Fault`."""
    return Fault.NO_LENGTH_ if size < 0 else Fault.ENDS_ if size > end - at else at


cdef inline Py_ssize_t read_size(
    const unsigned char *data, Py_ssize_t at, Py_ssize_t end, long long *size
) noexcept nogil:
    """Return the start of the value after its size, which is at `at`, or a `Fault`."""
    at = read_number(data, at, end, size)
    return at if at < 0 else check_size(size[0], at, end)


cdef class AvroDecoder(RowDecoder):
    cdef Step *steps
    cdef Py_ssize_t num_steps
    cdef list described  # the Python steps, which own the bytes
    cdef str wrong
    cdef Py_ssize_t empty_items
    # The number of blocks, and of items that were read or skipped one by one, since the decoder was created. With the
    # number of bytes, it bounds the time of decoding.
    cdef readonly Py_ssize_t items

    cdef int lay_out(self, Step *step, described, Node *node, Py_ssize_t *used) except -1
    cdef Py_ssize_t run(
        self, const unsigned char *data, Py_ssize_t at, Py_ssize_t end, const Step *step, Py_ssize_t count
    ) except? -1
    cdef Py_ssize_t run_blocks(
        self, const unsigned char *data, Py_ssize_t at, Py_ssize_t end, const Step *step
    ) except? -1
    cdef Py_ssize_t put_key(
        self, const unsigned char *data, Py_ssize_t at, Py_ssize_t end, Node *node
    ) except? -1
    cdef Py_ssize_t within(self, const Step *step, str wrong) except? -1
    cdef Py_ssize_t unreadable(self, const Step *step, Py_ssize_t fault) except? -1
    cdef Py_ssize_t put_decimal(self, const Step *step, const unsigned char *data, Py_ssize_t size) except -2
