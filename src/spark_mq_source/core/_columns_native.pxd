"""Columns under construction, shared by the compiled decoders. Functions that run for each cell are inline."""

from libc.limits cimport INT_MAX
from libc.stdlib cimport calloc, realloc
from libc.string cimport memcpy, memset

from spark_mq_source.core._checked cimport IS_CHECKED, allocation_fails, must


# A column, a field of a struct, or the keys or items of a map, which follow the map. A row has `width` bytes in `data`;
# if `width` is 0, it ends at its offset. `used` counts the bytes of rows without a width, and the entries of a map.
cdef struct Column:
    Py_ssize_t width
    bint is_text
    bint is_nullable
    bint is_entry  # keys or items of a map: a row is an entry
    int filled  # rows written so far, in the checked build
    Py_ssize_t weight  # bytes for each unit of `used`
    unsigned char *data
    Py_ssize_t used
    Py_ssize_t capacity  # of `data`, if rows end at offsets
    Py_ssize_t hint  # expected capacity
    int *offsets
    unsigned char *valid  # one bit per row, as in Arrow; undefined if `nulls` is 0
    Py_ssize_t nulls
    Py_ssize_t rows  # with reserved room
    Py_ssize_t marked_used
    Py_ssize_t marked_nulls


cdef inline void check_row(Column *column, Py_ssize_t row, Py_ssize_t width) noexcept nogil:
    """Check, in the checked build, a write of `width` bytes to a row, or of an offset if `width` is 0."""
    must(column != NULL, "a row is written into a column that nobody asked for")
    must(column.width == width, "a row is written with another width than the column's")
    must(0 <= row and row < column.rows, "a row is written for which no room was reserved")
    must(row <= column.filled, "a row is written behind one that is not written")
    if row == column.filled:
        column.filled += 1


cdef inline void end_row(Column *column, Py_ssize_t row) noexcept nogil:
    if IS_CHECKED:
        check_row(column, row, 0)
        must(column.used <= INT_MAX, "an offset passes 2 GiB")
        must(column.used >= column.offsets[row], "an offset is less than the one before")
        must(column.weight != 1 or column.used <= column.capacity, "more bytes are used than were reserved")
    column.offsets[row + 1] = <int>column.used


cdef inline void put(Column *column, Py_ssize_t row, const unsigned char *data, Py_ssize_t size) noexcept nogil:
    must(size >= 0 and column.used + size <= column.capacity, "bytes are written for which no room was reserved")
    memcpy(column.data + column.used, data, size)
    column.used += size
    end_row(column, row)


cdef inline void put_long(Column *column, Py_ssize_t row, long long value) noexcept nogil:
    if IS_CHECKED:
        check_row(column, row, 8)
    (<long long *>column.data)[row] = value


cdef inline void put_int(Column *column, Py_ssize_t row, int value) noexcept nogil:
    if IS_CHECKED:
        check_row(column, row, 4)
    (<int *>column.data)[row] = value


cdef inline long long long_at(const Column *column, Py_ssize_t row) noexcept nogil:
    must(column.width == 8 and 0 <= row and row < column.filled, "a row is read that is not written")
    return (<long long *>column.data)[row]


cdef inline void fill_long(Column *column, Py_ssize_t row, Py_ssize_t rows, long long value) noexcept nogil:
    for row in range(row, row + rows):
        put_long(column, row, value)


cdef inline void put_entry(
    Column *mapping, const unsigned char *key, Py_ssize_t key_size, const unsigned char *item, Py_ssize_t item_size
) noexcept nogil:
    put(mapping + 1, mapping.used, key, key_size)
    put(mapping + 2, mapping.used, item, item_size)
    mapping.used += 1


cdef inline void set_null(Column *column, Py_ssize_t row) noexcept nogil:
    must(column.is_nullable, "NULL is written into a column that has none")
    must(0 <= row and row < column.rows, "NULL is written into a row for which no room was reserved")
    if not column.nulls:
        memset(column.valid, 0xFF, column.rows // 8 + 1)
    must(column.valid[row >> 3] >> (row & 7) & 1, "NULL is written into a row twice")
    column.valid[row >> 3] &= ~(1 << (row & 7))
    column.nulls += 1


cdef inline bint is_null(const Column *column, Py_ssize_t row) noexcept nogil:
    return column.nulls and not column.valid[row >> 3] >> (row & 7) & 1


cdef inline void put_null(Column *column, Py_ssize_t row) noexcept nogil:
    """Write NULL; 0 or an empty map if the column is not nullable."""
    if column.offsets != NULL:
        end_row(column, row)
    elif column.width == 8:
        put_long(column, row, 0)
    else:
        put_int(column, row, 0)
    if column.is_nullable:
        set_null(column, row)


cdef inline void *resize(void *pointer, Py_ssize_t size) except NULL:
    if allocation_fails():
        raise MemoryError
    pointer = realloc(pointer, size)
    if pointer == NULL:
        raise MemoryError
    return pointer


cdef inline void *allocate(Py_ssize_t count, Py_ssize_t size) except NULL:
    """Allocate `count` zeroed items of `size` bytes, at least one."""
    cdef void *pointer
    if allocation_fails():
        raise MemoryError
    pointer = calloc(count if count else 1, size)
    if pointer == NULL:
        raise MemoryError
    return pointer


cdef object hand_over(void **pointer, Py_ssize_t size)


cdef class Columns:
    cdef readonly Py_ssize_t rows
    cdef object schema
    cdef dict constant
    cdef list names
    cdef object remedy
    cdef list unclaimed
    cdef Column *columns
    cdef Py_ssize_t num_columns
    cdef Py_ssize_t row_bytes
    cdef Py_ssize_t row_capacity
    cdef Py_ssize_t row_hint
    cdef Py_ssize_t marked_rows

    cdef Column *find(self, str name) noexcept
    cdef str name_of(self, const Column *column)
    cdef void put_nulls(self, Py_ssize_t row) noexcept nogil
    cdef int raise_unclaimed(self) except -1
    cdef int reserve_rows(self, Py_ssize_t more) except -1
    cdef int reserve(self, Column *column, Py_ssize_t more) except -1
    cdef int reserve_entries(self, Column *mapping, Py_ssize_t count, Py_ssize_t more) except -1
    cdef void mark(self) noexcept
    cdef void roll_back(self) noexcept
    cdef list collect(self)
    cdef void clear(self) noexcept
    cdef object take_column(self, Column *column, type_, Py_ssize_t rows)
