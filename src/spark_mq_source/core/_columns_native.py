"""Columns under construction, compiled: Cython's pure-Python mode, C types in ``_columns_native.pxd``.

The interface and its documentation are those of ``_columns_python``. For loops in C there are also a pointer to each
column (`find`; NULL if the column was not requested), memory reserved in advance (`reserve_rows`, `reserve`,
`reserve_entries`), so that a loop writes cells without checks, and `mark` and `roll_back` around code that may fail.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.core._columns_native is not compiled")

import pyarrow as pa
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memset
from cython.cimports.spark_mq_source.core._checked import IS_CHECKED, allocation_fails, check

from spark_mq_source.core._columns_python import column_overflow, layout_of, parts_of, unfilled
from spark_mq_source.core.columns import (
    MAX_COLUMN_BYTES,
    fixed_row_bytes,
    is_text,
    is_text_or_binary,
    map_array,
    struct_array,
)


@cython.cclass
class _Block:
    """Memory owned by an Arrow buffer."""

    pointer: cython.p_void

    def __dealloc__(self):
        free(self.pointer)


def hand_over(pointer, size):
    """Return the memory as an Arrow buffer, which will free it; set the caller's pointer to NULL unless this raises."""
    block: _Block = _Block.__new__(_Block)
    if allocation_fails():
        raise MemoryError
    buffer = pa.foreign_buffer(cython.cast(cython.size_t, pointer[0]), size, block)
    block.pointer = pointer[0]
    pointer[0] = cython.NULL
    return buffer


@cython.cclass
class Columns:
    """Columns under construction; the compiled form of `_columns_python.Columns`."""

    def __init__(self, schema, constants, remedy="maxBatchBytes"):
        column: cython.pointer(Column)
        self.schema = schema
        self.remedy = remedy
        self.constant, self.row_bytes, parts = layout_of(schema, constants)
        self.names = [name for name, _, _ in parts]
        self.unclaimed = [field.name for field in schema if field.name not in self.constant]
        self.columns = cython.cast(cython.pointer(Column), allocate(len(parts), cython.sizeof(Column)))
        for _, type_, parent in parts:
            column = self.columns + self.num_columns
            is_map = pa.types.is_map(type_)
            column.is_text = is_text(type_)
            column.width = 0 if is_map or is_text_or_binary(type_) else fixed_row_bytes(type_)
            column.weight = 8 if is_map else 1
            column.is_entry = parent is not None and pa.types.is_map(parent)
            column.is_nullable = parent is None and not is_map
            self.num_columns += 1

    def __dealloc__(self):
        self.clear()
        free(self.columns)

    @property
    def nbytes(self):
        at: cython.Py_ssize_t
        total: cython.Py_ssize_t = self.rows * self.row_bytes
        for at in range(self.num_columns):
            total += self.columns[at].used * self.columns[at].weight
        return total

    def find(self, name):
        """Return a column, which the loop must fill from now on; NULL if it was not requested."""
        if name not in self.names:
            return cython.NULL
        whole = name.partition(".")[0]
        if whole in self.unclaimed:
            self.unclaimed.remove(whole)
        return self.columns + self.names.index(name)

    def raise_unclaimed(self):
        """Raise if the loop does not fill a column: its memory would stay uninitialized."""
        if self.unclaimed:
            raise unfilled(self.unclaimed[0])
        return 0

    def name_of(self, column):
        return self.names[column - self.columns]

    def put_nulls(self, row):
        """Put NULL into every column, except entries, which belong to no row."""
        at: cython.Py_ssize_t
        for at in range(self.num_columns):
            if not self.columns[at].is_entry:
                put_null(self.columns + at, row)

    def reserve_rows(self, more):
        """Reserve room for `more` rows, except their bytes and entries."""
        at: cython.Py_ssize_t
        capacity: cython.Py_ssize_t
        if self.rows + more <= self.row_capacity:
            return 0
        self.raise_unclaimed()
        capacity = max(self.rows + more, 2 * self.row_capacity, self.row_hint, 64)
        for at in range(self.num_columns):
            if not self.columns[at].is_entry:
                _resize_rows(self.columns + at, capacity)
        # Only after all columns have grown: if an allocation fails, the old capacity still holds.
        self.row_capacity = capacity
        return 0

    def reserve(self, column, more):
        """Reserve room for `more` bytes in a column."""
        capacity: cython.Py_ssize_t
        # Allocate even for 0 bytes: memcpy to NULL is undefined.
        if column == cython.NULL or (column.data and column.used + more <= column.capacity):
            return 0
        most: cython.Py_ssize_t = MAX_COLUMN_BYTES
        if column.used + more > most:
            raise column_overflow(self.name_of(column), self.remedy)
        # Never above the limit, because it is checked only when a column grows.
        capacity = min(max(column.used + more, 2 * column.capacity, column.hint, 256), most)
        column.data = cython.cast(cython.p_uchar, resize(column.data, capacity))
        column.capacity = capacity
        return 0

    def reserve_entries(self, mapping, count, more):
        """Reserve room for `count` entries of a map, with `more` bytes of keys and `more` bytes of items."""
        most: cython.Py_ssize_t = MAX_COLUMN_BYTES
        self.reserve(mapping + 1, more)
        self.reserve(mapping + 2, more)
        count += mapping.used
        if count <= mapping[1].rows:
            return 0
        if count > most:
            raise column_overflow(self.name_of(mapping), self.remedy)
        count = min(max(count, 2 * mapping[1].rows), most)
        # The keys last, because their number of rows is the capacity for entries.
        _resize_rows(mapping + 2, count)
        _resize_rows(mapping + 1, count)
        return 0

    def mark(self):
        """Record the current ends of the columns."""
        at: cython.Py_ssize_t
        self.marked_rows = self.rows
        for at in range(self.num_columns):
            self.columns[at].marked_used = self.columns[at].used
            self.columns[at].marked_nulls = self.columns[at].nulls

    def roll_back(self):
        """Remove everything added since `mark`."""
        at: cython.Py_ssize_t
        column: cython.pointer(Column)
        self.rows = self.marked_rows
        for at in range(self.num_columns):
            column = self.columns + at
            column.used = column.marked_used
            if IS_CHECKED and not column.is_entry:
                column.filled = min(column.filled, cython.cast(cython.int, self.rows))
            if column.nulls != column.marked_nulls:
                column.nulls = column.marked_nulls
                # The bits of rows to come must be set.
                column.valid[self.rows >> 3] |= (0xFF << (self.rows & 7)) & 0xFF
                memset(column.valid + self.rows // 8 + 1, 0xFF, column.rows // 8 - self.rows // 8)

    def take_arrays(self):
        """Return the pending rows as `_columns_python.Columns.take_arrays` does; drop them if that fails."""
        if not self.rows:
            return [pa.nulls(0, field.type) for field in self.schema]
        try:
            arrays: list = self.collect()
        except BaseException:
            self.clear()
            raise
        # The next batch is probably as large. Reserving its size at once avoids growing, which copies.
        self.row_hint = self.rows + self.rows // 8
        self.row_capacity = 0
        self.rows = 0
        if IS_CHECKED:
            for array in arrays:
                array.validate(full=True)
        return arrays

    def collect(self):
        """Return one array for each column of the schema."""
        at: cython.Py_ssize_t = 0
        arrays: list = []
        for field in self.schema:
            if field.name in self.constant:
                arrays.append(self.constant[field.name].take(self.rows))
            else:
                arrays.append(self.take_column(self.columns + at, field.type, self.rows))
                at += len(parts_of(field))
        return arrays

    def clear(self):
        at: cython.Py_ssize_t
        column: cython.pointer(Column)
        self.rows = self.row_capacity = 0
        for at in range(self.num_columns):
            column = self.columns + at
            free(column.data)
            free(column.offsets)
            free(column.valid)
            column.data = column.valid = cython.NULL
            column.offsets = cython.NULL
            column.used = column.capacity = column.nulls = column.rows = 0
            column.filled = 0

    def take_column(self, column, type_, rows):
        if not rows:
            return pa.nulls(0, type_)
        if pa.types.is_struct(type_):
            fields = [type_.field(at).type for at in range(type_.num_fields)]
            return struct_array(type_, [self.take_column(column + at, fields[at], rows) for at in range(len(fields))])
        if IS_CHECKED:
            check(column.filled >= rows, "a column has fewer rows than its batch")
            check(bool(column.width) or column.offsets[rows] == column.used, "bytes are used behind the last row")
            column.filled = 0
        validity = None
        nulls = column.nulls
        if nulls:
            validity = hand_over(cython.cast(cython.pp_void, cython.address(column.valid)), (rows + 7) // 8)
            column.nulls = 0
        column.rows = 0
        if column.width:
            data = hand_over(cython.cast(cython.pp_void, cython.address(column.data)), rows * column.width)
            return pa.Array.from_buffers(type_, rows, [validity, data], null_count=nulls)
        offsets = hand_over(cython.cast(cython.pp_void, cython.address(column.offsets)), (rows + 1) * 4)
        used: cython.Py_ssize_t = column.used
        column.used = 0
        if pa.types.is_map(type_):
            keys = self.take_column(column + 1, type_.key_type, used)
            return map_array(type_, rows, offsets, keys, self.take_column(column + 2, type_.item_type, used))
        data = pa.py_buffer(b"")
        if column.data:
            data = hand_over(cython.cast(cython.pp_void, cython.address(column.data)), used)
        column.hint = used + used // 8
        column.capacity = 0
        return pa.Array.from_buffers(type_, rows, [validity, offsets, data], null_count=nulls)


@cython.cfunc
@cython.exceptval(-1)
def _resize_rows(column: cython.pointer(Column), rows: cython.Py_ssize_t) -> cython.int:
    # This column is already larger if the allocation of another one failed.
    if rows <= column.rows:
        return 0
    if column.width:
        column.data = cython.cast(cython.p_uchar, resize(column.data, rows * column.width))
    else:
        column.offsets = cython.cast(cython.p_int, resize(column.offsets, (rows + 1) * 4))
        column.offsets[0] = 0
    if column.is_nullable:
        column.valid = cython.cast(cython.p_uchar, resize(column.valid, rows // 8 + 1))
        if column.nulls:
            memset(column.valid + column.rows // 8 + 1, 0xFF, rows // 8 - column.rows // 8)
    column.rows = rows
    return 0
