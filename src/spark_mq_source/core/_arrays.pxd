"""Arrow arrays as the compiled encoders read them, without copying their buffers. All functions are inline."""

from spark_mq_source.core._wire cimport Slice


# An array of text, bytes or maps (without data). `offsets` begins at the array's first row, and is NULL if there is no
# column. `valid` has one bit per row, the first one at `bit`, and is NULL if no row is NULL.
cdef struct Cells:
    unsigned char *valid
    Py_ssize_t bit
    int *offsets
    unsigned char *data


# An array of numbers, likewise; `data` is NULL if there is no column.
cdef struct Numbers:
    unsigned char *valid
    Py_ssize_t bit
    unsigned char *data


cdef inline unsigned char *address_of(object buffer) except? NULL:
    return NULL if buffer is None else <unsigned char *><size_t>buffer.address


cdef inline int bind_cells(Cells *column, object values) except -1:
    # An array without rows may have no offsets, and an array of empty values no data.
    buffers = values.buffers()
    column.bit = values.offset
    column.valid = address_of(buffers[0]) if values.null_count else NULL
    column.offsets = <int *>address_of(buffers[1])
    if column.offsets != NULL:
        column.offsets += column.bit
    column.data = address_of(buffers[2])
    return 0


cdef inline int bind_numbers(Numbers *column, object values) except -1:
    buffers = values.buffers()
    column.bit = values.offset
    column.valid = address_of(buffers[0]) if values.null_count else NULL
    column.data = address_of(buffers[1])
    if column.data != NULL:
        column.data += column.bit * <Py_ssize_t>(values.type.bit_width // 8)
    return 0


cdef inline bint is_valid(const unsigned char *valid, Py_ssize_t at) noexcept nogil:
    return valid == NULL or valid[at >> 3] >> (at & 7) & 1


cdef inline Slice cell_at(const Cells *column, Py_ssize_t row) noexcept nogil:
    """Return the bytes of a row; absent if the row is NULL, or if there is no column."""
    cdef Slice found
    found.data = NULL
    found.size = 0
    if column.offsets != NULL and is_valid(column.valid, column.bit + row):
        found.size = column.offsets[row + 1] - column.offsets[row]
        # An empty value needs an address too: NULL means absent.
        found.data = <unsigned char *>column.offsets if column.data == NULL else column.data + column.offsets[row]
    return found


cdef inline bint has_number(const Numbers *column, Py_ssize_t row) noexcept nogil:
    return column.data != NULL and is_valid(column.valid, column.bit + row)
