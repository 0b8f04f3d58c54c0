"""Encodes Avro, compiled: Cython's pure-Python mode, C types in ``_encode_native.pxd``.

Room for what is written next is made before it is written; the
columns are read where Arrow has them.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values.avro._encode_native is not compiled")

from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.spark_mq_source.core._arrays import is_valid
from cython.cimports.spark_mq_source.core._columns_native import allocate
from cython.cimports.spark_mq_source.core._wire import Slice, slice_of
from cython.cimports.spark_mq_source.values._loops_native import (
    RowEncoder,
    bind_array,
    count_steps,
    end_of,
    lay_out_texts,
)

from spark_mq_source.values.avro.steps import check_codes
from spark_mq_source.values.avro.write_steps import NO_MEMBER, NO_NULL, NO_SIZE, NO_SYMBOL, WriteCode

check_codes(WriteCode, {code.name: code.value for code in list(Code)})

# Before each value there is room for a branch of a union and for a number, or for eight bytes.
_HEAD_ROOM = cython.declare(cython.Py_ssize_t, 64)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_number(out: cython.p_uchar, number: cython.longlong) -> cython.Py_ssize_t:
    """Write a number; return how many bytes it took."""
    value: cython.ulonglong = (cython.cast(cython.ulonglong, number) << 1) ^ cython.cast(
        cython.ulonglong, -1 if number < 0 else 0
    )
    size: cython.Py_ssize_t = 0
    while value >= 0x80:
        out[size] = cython.cast(cython.uchar, value & 0x7F | 0x80)
        value >>= 7
        size += 1
    out[size] = cython.cast(cython.uchar, value)
    return size + 1


def encode(step, array):
    """Encode each value; NULL becomes NULL.

    Raises:
        UnwritableRowError: a value does not fit the schema, or all do not fit one array.
    """
    return Encoder(step, array).encode(array)


@cython.final
@cython.cclass
class Encoder(RowEncoder):
    """The values of one array."""

    def __init__(self, step, array):
        count: cython.Py_ssize_t = count_steps(step)
        self.steps = cython.cast(cython.pointer(Step), allocate(count, cython.sizeof(Step)))
        self.num_steps = count
        self.described = [None] * count
        self.arrays = []
        used: cython.Py_ssize_t = 1
        self.lay_out(self.steps, step, array, cython.address(used))

    def __dealloc__(self):
        at: cython.Py_ssize_t
        for at in range(self.num_steps):
            free(self.steps[at].symbols)
        free(self.steps)

    def lay_out(self, step, described, array, count):
        """Write a step with the column that it reads, and the steps within it after the `count` ones."""
        at: cython.Py_ssize_t
        self.described[step - self.steps] = described
        step.code = described.code
        step.size = described.size
        step.has_null = described.null is not None
        if step.has_null:
            step.null_value = slice_of(described.null)
        step.head = slice_of(described.head)
        step.constant = slice_of(described.data)
        step.factor = 1
        for _ in range(described.shift):
            step.factor *= 10
        step.num_symbols = len(described.symbols)
        step.symbols = lay_out_texts(described.symbols)
        if step.code == Code.CONSTANT:
            return 0
        self.arrays.append(array)
        bind_array(cython.address(step.cells), array)
        step.count = len(described.steps)
        step.steps = self.steps + count[0]
        count[0] += step.count
        for at in range(step.count):
            one = described.steps[at]
            if step.code == Code.ARRAY:
                column = array.values
            elif step.code == Code.MAP:
                column = array.items if at else array.keys
            else:
                column = array.field(one.column) if one.column >= 0 else None
            self.lay_out(step.steps + at, one, column, count)
        return 0

    def put_row(self, row):
        return self.put(self.steps, row)

    def put(self, step, row):
        """Write a value."""
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        number: cython.longlong
        single: cython.float
        double: cython.double
        start: cython.p_uchar
        code = step.code
        if self.room - self.used < _HEAD_ROOM:
            self.grow(_HEAD_ROOM)
        if code == Code.CONSTANT:
            if self.room - self.used < step.constant.size:
                self.grow(step.constant.size)
            memcpy(end_of(self, step.constant.size), step.constant.data, step.constant.size)
            self.used += step.constant.size
            return 0
        if not is_valid(step.cells.valid, step.cells.bit + row):
            if not step.has_null:
                self.refuse(step - self.steps, NO_NULL)
            memcpy(end_of(self, step.null_value.size), step.null_value.data, step.null_value.size)
            self.used += step.null_value.size
            return 0
        memcpy(end_of(self, step.head.size), step.head.data, step.head.size)
        self.used += step.head.size
        if code == Code.INT:
            number = cython.cast(cython.p_int, step.cells.data)[row]
            self.used += _put_number(end_of(self, 10), number)
        elif code == Code.LONG:
            number = cython.cast(cython.p_longlong, step.cells.data)[row]
            self.used += _put_number(end_of(self, 10), number)
        elif code == Code.MILLIS:
            number = cython.cast(cython.p_longlong, step.cells.data)[row]
            # C's division cuts towards zero.
            number = number // 1000 - (1 if number % 1000 < 0 else 0)
            self.used += _put_number(end_of(self, 10), number)
        elif code == Code.BYTE:
            number = cython.cast(cython.p_schar, step.cells.data)[row]
            self.used += _put_number(end_of(self, 10), number)
        elif code == Code.SHORT:
            number = cython.cast(cython.p_short, step.cells.data)[row]
            self.used += _put_number(end_of(self, 10), number)
        elif code in (Code.SIZED, Code.FIXED, Code.ENUM):
            size = step.cells.offsets[row + 1] - step.cells.offsets[row]
            start = step.cells.data + step.cells.offsets[row]
            if code == Code.ENUM:
                return self.put_symbol(step, start, size)
            if code == Code.SIZED:
                self.used += _put_number(end_of(self, 10), size)
            elif size != step.size:
                self.refuse(step - self.steps, NO_SIZE)
            if self.room - self.used < size:
                self.grow(size)
            if size:
                memcpy(end_of(self, size), start, size)
            self.used += size
        elif code == Code.DOUBLE:
            memcpy(end_of(self, 8), step.cells.data + row * 8, 8)
            self.used += 8
        elif code == Code.FLOAT:
            memcpy(end_of(self, 4), step.cells.data + row * 4, 4)
            self.used += 4
        elif code in (Code.INT_TO_DOUBLE, Code.FLOAT_TO_DOUBLE):
            if code == Code.INT_TO_DOUBLE:
                double = cython.cast(cython.p_int, step.cells.data)[row]
            else:
                memcpy(cython.address(single), step.cells.data + row * 4, 4)
                double = single
            memcpy(end_of(self, 8), cython.address(double), 8)
            self.used += 8
        elif code == Code.BOOLEAN:
            at = step.cells.bit + row
            end_of(self, 1)[0] = step.cells.data[at >> 3] >> (at & 7) & 1
            self.used += 1
        elif code in (Code.DECIMAL, Code.FIXED_DECIMAL):
            self.put_decimal(step, row)
        elif code == Code.RECORD:
            for at in range(step.count):
                self.put(step.steps + at, row)
        elif code in (Code.ARRAY, Code.MAP):
            self.put_block(step, row)
        elif code == Code.MEMBERS:
            self.put_member(step, row)
        else:
            raise AssertionError(f"the compiled loop has no branch for write step {int(code)}")
        return 0

    def put_block(self, step, row):
        """Write the items of an array or a map, all in one block."""
        at: cython.Py_ssize_t
        part: cython.Py_ssize_t
        first: cython.Py_ssize_t = step.cells.offsets[row]
        last: cython.Py_ssize_t = step.cells.offsets[row + 1]
        if last > first:
            self.used += _put_number(end_of(self, 10), last - first)
            for at in range(first, last):
                for part in range(step.count):
                    self.put(step.steps + part, at)
        if self.room - self.used < _HEAD_ROOM:
            self.grow(_HEAD_ROOM)
        end_of(self, 1)[0] = 0
        self.used += 1
        return 0

    def put_member(self, step, row):
        """Write the one field of a struct that is not NULL."""
        at: cython.Py_ssize_t
        one: cython.pointer(Step)
        found: cython.pointer(Step) = cython.NULL
        for at in range(step.count):
            one = step.steps + at
            if is_valid(one.cells.valid, one.cells.bit + row):
                if found != cython.NULL:
                    self.refuse(step - self.steps, NO_MEMBER)
                found = one
        if found == cython.NULL:
            self.refuse(step - self.steps, NO_MEMBER)
        return self.put(found, row)

    def put_symbol(self, step, data, size):
        """Write the number of an enum's symbol."""
        at: cython.Py_ssize_t
        symbol: cython.pointer(Slice)
        for at in range(step.num_symbols):
            symbol = step.symbols + at
            if symbol.size == size and memcmp(symbol.data, data, size) == 0:
                self.used += _put_number(end_of(self, 10), at)
                return 0
        return self.refuse(step - self.steps, NO_SYMBOL)

    def put_decimal(self, step, row):
        """Write a decimal, big-endian: as short as possible, or filled to the size of a fixed."""
        number: int128
        value: uint128
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t = 1
        memcpy(cython.address(number), step.cells.data + row * 16, 16)
        number *= step.factor
        value = cython.cast(uint128, number)
        while size < 16 and (number >> (8 * size - 1)) != (-1 if number < 0 else 0):
            size += 1
        if step.code == Code.DECIMAL:
            self.used += _put_number(end_of(self, 10), size)
        else:
            if self.room - self.used < step.size + 16:
                self.grow(step.size + 16)
            if step.size > size:
                memset(end_of(self, step.size - size), 0xFF if number < 0 else 0, step.size - size)
                self.used += step.size - size
        end_of(self, size)
        for at in range(size):
            self.out[self.used + size - 1 - at] = cython.cast(cython.uchar, value & 0xFF)
            value >>= 8
        self.used += size
        return 0
