"""Encodes protobuf, compiled: Cython's pure-Python mode, C types in ``_encode_native.pxd``.

A message within another one is written behind one byte for
its size, and moved if its size takes more; the columns are read where Arrow has them.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values.protobuf._encode_native is not compiled")

from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp, memcpy, memmove
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

from spark_mq_source.values.protobuf.write_steps import (
    NO_CHOICE,
    NO_NAME,
    NO_NULL,
    NO_NUMBER,
    NO_UNSIGNED,
    end_of_group,
)

# For a tag and a number.
_HEAD_ROOM = cython.declare(cython.Py_ssize_t, 32)


def encode(step, array):
    """Return the bytes of each value; NULL where it is NULL.

    Raises:
        UnwritableRowError: a value does not fit the message, or all do not fit one array.
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
        self.kept = []
        used: cython.Py_ssize_t = 1
        self.lay_out(self.steps, step, array, cython.address(used))

    def __dealloc__(self):
        at: cython.Py_ssize_t
        for at in range(self.num_steps):
            free(self.steps[at].names)
            free(self.steps[at].numbers)
            free(self.steps[at].chosen)
        free(self.steps)

    def lay_out(self, step, described, array, count):
        """Write a step with the column that it reads, and the steps within it after the `count` ones."""
        at: cython.Py_ssize_t
        self.described[step - self.steps] = described
        step.code = described.code
        step.form = described.form
        if not (Code.BYTE <= step.code <= Code.MAP and Form.VARINT <= step.form <= Form.FIXED64):
            raise TypeError(f"the protobuf encoder has no branch for {described.code!r} and {described.form!r}")
        step.is_implicit = described.is_implicit
        step.is_required = described.is_required
        step.oneof = described.oneof
        step.head = slice_of(described.head)
        tail: bytes = end_of_group(described)
        self.kept.append(tail)
        step.tail = slice_of(tail)
        step.num_names = len(described.names)
        step.names = lay_out_texts(described.names)
        step.numbers = cython.cast(cython.p_int, allocate(step.num_names, cython.sizeof(cython.int)))
        for at, number in enumerate(described.names.values()):
            step.numbers[at] = number
        step.count = len(described.steps)
        step.steps = self.steps + count[0]
        count[0] += step.count
        oneofs: cython.Py_ssize_t = 1 + max([one.oneof for one in described.steps], default=-1)
        step.chosen = cython.cast(cython.p_longlong, allocate(oneofs, cython.sizeof(cython.longlong)))
        if array is not None:
            self.kept.append(array)
            bind_array(cython.address(step.cells), array)
        for at in range(step.count):
            one = described.steps[at]
            if step.code in (Code.LIST, Code.PACKED):
                column = array.values
            elif step.code == Code.MAP:
                column = array.items if at else array.keys
            else:
                # The parts of a time have no columns.
                column = array.field(one.column) if one.column >= 0 else None
            self.lay_out(step.steps + at, one, column, count)
        return 0

    def put_row(self, row):
        return self.put_fields(self.steps, row)

    def put_varint(self, value):
        """Write a varint, for which there must be room."""
        while value >= 0x80:
            end_of(self, 1)[0] = cython.cast(cython.uchar, value & 0x7F | 0x80)
            self.used += 1
            value >>= 7
        end_of(self, 1)[0] = cython.cast(cython.uchar, value)
        self.used += 1
        return 0

    def put_head(self, step):
        """Write the tag of a field, and make room for a number after it."""
        if self.room - self.used < _HEAD_ROOM:
            self.grow(_HEAD_ROOM)
        memcpy(end_of(self, step.head.size), step.head.data, step.head.size)
        self.used += step.head.size
        return 0

    def end_sized(self, start):
        """Write the size of the bytes after `start` into the byte there, and insert bytes if the size needs more."""
        size: cython.Py_ssize_t = self.used - start - 1
        more: cython.Py_ssize_t = 0
        rest: cython.Py_ssize_t = size >> 7
        while rest:
            more += 1
            rest >>= 7
        if more:
            if self.room - self.used < more:
                self.grow(more)
            end_of(self, more)
            memmove(self.out + start + 1 + more, self.out + start + 1, size)
        end: cython.Py_ssize_t = self.used + more
        self.used = start
        self.put_varint(size)
        self.used = end
        return 0

    def put_fields(self, step, row):
        """Write the fields of a message."""
        one: cython.pointer(Step) = step.steps
        end: cython.pointer(Step) = one + step.count
        self.messages += 1
        message: cython.longlong = self.messages
        while one < end:
            if not is_valid(one.cells.valid, one.cells.bit + row):
                if one.is_required:
                    self.refuse(one - self.steps, NO_NULL)
            else:
                if one.oneof >= 0:
                    if step.chosen[one.oneof] == message:
                        self.refuse(one - self.steps, NO_CHOICE)
                    step.chosen[one.oneof] = message
                self.put(one, row)
            one += 1
        return 0

    def put(self, step, row):
        """Write a field with its value, which is not NULL."""
        start: cython.Py_ssize_t
        number: cython.longlong = 0
        value: cython.ulonglong
        code = step.code
        if code == Code.SIZED:
            return self.put_bytes(step, row)
        if code == Code.MESSAGE:
            self.put_head(step)
            start = self.used
            self.used += 1
            self.put_fields(step, row)
            return self.end_sized(start)
        if code == Code.GROUP:
            self.put_head(step)
            self.put_fields(step, row)
            if self.room - self.used < _HEAD_ROOM:
                self.grow(_HEAD_ROOM)
            memcpy(end_of(self, step.tail.size), step.tail.data, step.tail.size)
            self.used += step.tail.size
            return 0
        if code in (Code.LIST, Code.PACKED):
            return self.put_block(step, row)
        if code == Code.MAP:
            return self.put_entries(step, row)
        if code in (Code.TIMESTAMP, Code.DURATION):
            return self.put_time(step, row)
        self.read_number(step, row, cython.address(number))
        if step.is_implicit and not number:
            return 0
        self.put_head(step)
        value = cython.cast(cython.ulonglong, number)
        if step.form == Form.VARINT:
            self.put_varint(value)
        elif step.form == Form.VARINT32:
            self.put_varint(value & 0xFFFFFFFF)
        elif step.form == Form.ZIGZAG64:
            self.put_varint((value << 1) ^ (0 - (value >> 63)))
        elif step.form == Form.ZIGZAG32:
            self.put_varint(((value << 1) ^ (0 - (value >> 63))) & 0xFFFFFFFF)
        elif step.form == Form.FIXED32:
            memcpy(end_of(self, 4), cython.address(value), 4)
            self.used += 4
        else:
            memcpy(end_of(self, 8), cython.address(value), 8)
            self.used += 8
        return 0

    def put_bytes(self, step, row):
        size: cython.Py_ssize_t = step.cells.offsets[row + 1] - step.cells.offsets[row]
        if step.is_implicit and not size:
            return 0
        self.put_head(step)
        self.put_varint(size)
        if size:
            if self.room - self.used < size:
                self.grow(size)
            memcpy(end_of(self, size), step.cells.data + step.cells.offsets[row], size)
            self.used += size
        return 0

    def put_time(self, step, row):
        """Write seconds and nanoseconds."""
        micros: cython.longlong = cython.cast(cython.p_longlong, step.cells.data)[row]
        # C's division cuts towards zero, as a duration does.
        seconds: cython.longlong = micros // 1_000_000
        nanos: cython.longlong = (micros % 1_000_000) * 1000
        if step.code == Code.TIMESTAMP and nanos < 0:
            seconds -= 1
            nanos += 1_000_000_000
        self.put_head(step)
        start: cython.Py_ssize_t = self.used
        self.used += 1
        if seconds or not step.steps[0].is_implicit:
            self.put_head(step.steps)
            self.put_varint(cython.cast(cython.ulonglong, seconds))
        if nanos or not step.steps[1].is_implicit:
            self.put_head(step.steps + 1)
            self.put_varint(cython.cast(cython.ulonglong, nanos))
        return self.end_sized(start)

    def put_block(self, step, row):
        """Write the elements of an array."""
        at: cython.Py_ssize_t
        start: cython.Py_ssize_t = 0
        one: cython.pointer(Step) = step.steps
        first: cython.Py_ssize_t = step.cells.offsets[row]
        last: cython.Py_ssize_t = step.cells.offsets[row + 1]
        if first == last:
            return 0
        if step.code == Code.PACKED:
            self.put_head(step)
            start = self.used
            self.used += 1
        for at in range(first, last):
            if not is_valid(one.cells.valid, one.cells.bit + at):
                self.refuse(one - self.steps, NO_NULL)
            self.put(one, at)
        return self.end_sized(start) if step.code == Code.PACKED else 0

    def put_entries(self, step, row):
        """Write the entries of a map, each with key and value."""
        at: cython.Py_ssize_t
        start: cython.Py_ssize_t
        for at in range(step.cells.offsets[row], step.cells.offsets[row + 1]):
            self.put_head(step)
            start = self.used
            self.used += 1
            self.put_fields(step, at)
            self.end_sized(start)
        return 0

    def read_number(self, step, row, number):
        """Read the number to write; of a number with a fraction, its bits."""
        at: cython.Py_ssize_t
        single: cython.float
        double: cython.double
        wide: cython.longlong[2]
        code = step.code
        if code == Code.INT:
            number[0] = cython.cast(cython.p_int, step.cells.data)[row]
        elif code in (Code.LONG, Code.WIDE):
            number[0] = cython.cast(cython.p_longlong, step.cells.data)[row]
            if code == Code.WIDE and (number[0] < 0 or number[0] >> 32):
                self.refuse(step - self.steps, NO_UNSIGNED)
        elif code == Code.BOOLEAN:
            at = step.cells.bit + row
            number[0] = step.cells.data[at >> 3] >> (at & 7) & 1
        elif code == Code.NAME:
            self.read_name(step, row, number)
        elif code == Code.CHECKED:
            number[0] = cython.cast(cython.p_int, step.cells.data)[row]
            for at in range(step.num_names):
                if step.numbers[at] == number[0]:
                    return 0
            self.refuse(step - self.steps, NO_NUMBER)
        elif code == Code.FLOAT:
            memcpy(cython.address(single), step.cells.data + row * 4, 4)
            double = single
            memcpy(number, cython.address(double), 8)
        elif code == Code.BYTE:
            number[0] = cython.cast(cython.p_schar, step.cells.data)[row]
        elif code == Code.SHORT:
            number[0] = cython.cast(cython.p_short, step.cells.data)[row]
        else:
            # A decimal
            memcpy(cython.address(wide[0]), step.cells.data + row * 16, 16)
            if wide[1]:
                self.refuse(step - self.steps, NO_UNSIGNED)
            number[0] = wide[0]
        return 0

    def read_name(self, step, row, number):
        """Read a name as its number in the enum."""
        at: cython.Py_ssize_t
        name: cython.pointer(Slice)
        size: cython.Py_ssize_t = step.cells.offsets[row + 1] - step.cells.offsets[row]
        start: cython.p_uchar = step.cells.data + step.cells.offsets[row]
        for at in range(step.num_names):
            name = step.names + at
            if name.size == size and memcmp(name.data, start, size) == 0:
                number[0] = step.numbers[at]
                return 0
        found = self.described[step - self.steps].number_of(start[:size])
        if found is None:
            self.refuse(step - self.steps, NO_NAME)
        number[0] = found
        return 0
