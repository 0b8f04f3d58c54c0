"""Encodes Avro, compiled: Cython's pure-Python mode, C types in ``_encode_native.pxd``.

Room is reserved before each write; the columns are read in place, in Arrow's buffers.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values.avro._encode_native is not compiled")

from cython.cimports.libc.string import memcpy, memset
from cython.cimports.spark_mq_source.core._arrays import is_valid
from cython.cimports.spark_mq_source.core._wire import find_no_utf8, slice_of
from cython.cimports.spark_mq_source.values._loops_native import (
    RowEncoder,
    WriteStep,
    end_of,
    find_name,
    int128,
    lay_out_texts,
    put,
    put_varint,
    reserve,
    uint128,
    zigzag,
)

from spark_mq_source.values.avro.write_steps import NO_MEMBER, NO_NULL, NO_SIZE, NO_SYMBOL
from spark_mq_source.values.steps import NO_UTF8, codes_of

_CODES = codes_of(list(Code))
# The room reserved before each value: for a union's branch and a number, or for eight bytes.
_HEAD_ROOM = cython.declare(cython.Py_ssize_t, 64)


@cython.final
@cython.cclass
class AvroEncoder(RowEncoder):
    """Encoder of the values of one array, by a step from `avro.write_steps`."""

    def describe(self, step, described):
        step.code = _CODES[described.code]
        step.size = described.size
        step.has_null = described.null is not None
        if step.has_null:
            step.null_value = slice_of(described.null)
        step.constant = slice_of(described.data)
        step.factor = 1
        for _ in range(described.shift):
            step.factor *= 10
        step.num_names = len(described.symbols)
        step.names = lay_out_texts(described.symbols)
        return 0

    def put_row(self, row):
        return self.put_value(self.steps, row)

    def put_value(self, step, row):
        at: cython.Py_ssize_t
        size: cython.Py_ssize_t
        number: cython.longlong
        single: cython.float
        double: cython.double
        code = step.code
        reserve(self, _HEAD_ROOM)
        if code == Code.CONSTANT:
            reserve(self, step.constant.size)
            put(self, step.constant.data, step.constant.size)
            return 0
        if not is_valid(step.cells.valid, step.cells.bit + row):
            if not step.has_null:
                self.refuse(step, NO_NULL)
            put(self, step.null_value.data, step.null_value.size)
            return 0
        put(self, step.head.data, step.head.size)
        if code == Code.INT:
            number = cython.cast(cython.p_int, step.cells.data)[row]
            put_varint(self, zigzag(number))
        elif code == Code.LONG:
            number = cython.cast(cython.p_longlong, step.cells.data)[row]
            put_varint(self, zigzag(number))
        elif code == Code.MILLIS:
            number = cython.cast(cython.p_longlong, step.cells.data)[row]
            # C's division truncates towards zero.
            number = number // 1000 - (1 if number % 1000 < 0 else 0)
            put_varint(self, zigzag(number))
        elif code == Code.BYTE:
            number = cython.cast(cython.p_schar, step.cells.data)[row]
            put_varint(self, zigzag(number))
        elif code == Code.SHORT:
            number = cython.cast(cython.p_short, step.cells.data)[row]
            put_varint(self, zigzag(number))
        elif code in (Code.SIZED, Code.FIXED):
            size = step.cells.offsets[row + 1] - step.cells.offsets[row]
            if code == Code.SIZED:
                put_varint(self, zigzag(size))
            elif size != step.size:
                self.refuse(step, NO_SIZE)
            if step.is_checked and find_no_utf8(step.cells.data + step.cells.offsets[row], size) >= 0:
                self.refuse(step, NO_UTF8)
            reserve(self, size)
            put(self, step.cells.data + step.cells.offsets[row], size)
        elif code == Code.ENUM:
            at = find_name(step, row)
            if at < 0:
                self.refuse(step, NO_SYMBOL)
            put_varint(self, zigzag(at))
        elif code == Code.DOUBLE:
            put(self, step.cells.data + row * 8, 8)
        elif code == Code.FLOAT:
            put(self, step.cells.data + row * 4, 4)
        elif code in (Code.INT_TO_DOUBLE, Code.FLOAT_TO_DOUBLE):
            if code == Code.INT_TO_DOUBLE:
                double = cython.cast(cython.p_int, step.cells.data)[row]
            else:
                memcpy(cython.address(single), step.cells.data + row * 4, 4)
                double = single
            put(self, cython.address(double), 8)
        elif code == Code.BOOLEAN:
            at = step.cells.bit + row
            end_of(self, 1)[0] = step.cells.data[at >> 3] >> (at & 7) & 1
            self.used += 1
        elif code in (Code.DECIMAL, Code.FIXED_DECIMAL):
            self.put_decimal(step, row)
        elif code == Code.RECORD:
            for at in range(step.count):
                self.put_value(step.steps + at, row)
        elif code in (Code.ARRAY, Code.MAP):
            self.put_block(step, row)
        elif code == Code.MEMBERS:
            self.put_member(step, row)
        else:
            raise AssertionError(f"the compiled loop has no branch for write step {int(code)}")
        return 0

    def put_block(self, step, row):
        """Write the items of an array or a map as one block."""
        at: cython.Py_ssize_t
        part: cython.Py_ssize_t
        first: cython.Py_ssize_t = step.cells.offsets[row]
        last: cython.Py_ssize_t = step.cells.offsets[row + 1]
        if last > first:
            put_varint(self, zigzag(last - first))
            for at in range(first, last):
                for part in range(step.count):
                    self.put_value(step.steps + part, at)
        reserve(self, _HEAD_ROOM)
        end_of(self, 1)[0] = 0
        self.used += 1
        return 0

    def put_member(self, step, row):
        """Write the one field of a struct that is not NULL."""
        at: cython.Py_ssize_t
        one: cython.pointer(WriteStep)
        found: cython.pointer(WriteStep) = cython.NULL
        for at in range(step.count):
            one = step.steps + at
            if is_valid(one.cells.valid, one.cells.bit + row):
                if found != cython.NULL:
                    self.refuse(step, NO_MEMBER)
                found = one
        if found == cython.NULL:
            self.refuse(step, NO_MEMBER)
        return self.put_value(found, row)

    def put_decimal(self, step, row):
        """Write a decimal as big-endian bytes: as short as possible, or padded to the size of a fixed."""
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
            put_varint(self, zigzag(size))
        else:
            reserve(self, step.size + 16)
            if step.size > size:
                memset(end_of(self, step.size - size), 0xFF if number < 0 else 0, step.size - size)
                self.used += step.size - size
        end_of(self, size)
        for at in range(size):
            self.out[self.used + size - 1 - at] = cython.cast(cython.uchar, value & 0xFF)
            value >>= 8
        self.used += size
        return 0
