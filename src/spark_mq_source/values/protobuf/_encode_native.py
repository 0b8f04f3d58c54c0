"""Encodes protobuf, compiled: Cython's pure-Python mode, C types in ``_encode_native.pxd``.

An inner message is written after one byte for its size, and moved if the size needs more bytes; the columns are read in
place, in Arrow's buffers.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values.protobuf._encode_native is not compiled")

from cython.cimports.libc.string import memcpy, memmove
from cython.cimports.spark_mq_source.core._arrays import is_valid
from cython.cimports.spark_mq_source.core._columns_native import allocate
from cython.cimports.spark_mq_source.core._wire import find_no_utf8, slice_of
from cython.cimports.spark_mq_source.values._loops_native import (
    RowEncoder,
    WriteStep,
    end_of,
    find_name,
    lay_out_texts,
    put,
    put_varint,
    reserve,
    zigzag,
)

from spark_mq_source.values.protobuf.write_steps import (
    NO_CHOICE,
    NO_NAME,
    NO_NULL,
    NO_NUMBER,
    NO_UNSIGNED,
    end_of_group,
)
from spark_mq_source.values.steps import NO_UTF8, codes_of

_CODES = codes_of(list(Code))
_FORMS = codes_of(list(Form))
# The room for a tag and a number.
_HEAD_ROOM = cython.declare(cython.Py_ssize_t, 32)


@cython.final
@cython.cclass
class ProtobufEncoder(RowEncoder):
    """Encoder of the values of one array, by a step from `protobuf.write_steps`."""

    def describe(self, step, described):
        at: cython.Py_ssize_t
        step.code = _CODES[described.code]
        step.form = _FORMS[described.form]
        if step.code in (Code.TIMESTAMP, Code.DURATION) and step.count != 2:
            raise TypeError(f"{described.code} needs steps for seconds and nanoseconds")
        step.is_implicit = described.is_implicit
        step.is_required = described.is_required
        step.oneof = described.oneof
        tail: bytes = end_of_group(described)
        self.kept.append(tail)
        step.tail = slice_of(tail)
        step.num_names = len(described.names)
        step.names = lay_out_texts(described.names)
        step.numbers = cython.cast(cython.p_int, allocate(step.num_names, cython.sizeof(cython.int)))
        for at, number in enumerate(described.names.values()):
            step.numbers[at] = number
        oneofs: cython.Py_ssize_t = 1 + max([one.oneof for one in described.steps], default=-1)
        step.chosen = cython.cast(cython.p_longlong, allocate(oneofs, cython.sizeof(cython.longlong)))
        return 0

    def put_row(self, row):
        return self.put_fields(self.steps, row)

    def put_head(self, step):
        """Write the tag of a field, and reserve room for a number after it."""
        # Not with `reserve` and `put`, which GCC does not inline here: that costs a tenth of the rate.
        if self.room - self.used < _HEAD_ROOM:
            self.grow(_HEAD_ROOM)
        memcpy(end_of(self, step.head.size), step.head.data, step.head.size)
        self.used += step.head.size
        return 0

    def end_sized(self, start):
        """Write the size of the bytes after `start` into the byte at `start`; insert bytes if the size needs more."""
        size: cython.Py_ssize_t = self.used - start - 1
        more: cython.Py_ssize_t = 0
        rest: cython.Py_ssize_t = size >> 7
        while rest:
            more += 1
            rest >>= 7
        if more:
            reserve(self, more)
            end_of(self, more)
            memmove(self.out + start + 1 + more, self.out + start + 1, size)
        end: cython.Py_ssize_t = self.used + more
        self.used = start
        put_varint(self, size)
        self.used = end
        return 0

    def put_fields(self, step, row):
        one: cython.pointer(WriteStep) = step.steps
        end: cython.pointer(WriteStep) = one + step.count
        self.messages += 1
        message: cython.longlong = self.messages
        while one < end:
            if not is_valid(one.cells.valid, one.cells.bit + row):
                if one.is_required:
                    self.refuse(one, NO_NULL)
            else:
                if one.oneof >= 0:
                    if step.chosen[one.oneof] == message:
                        self.refuse(one, NO_CHOICE)
                    step.chosen[one.oneof] = message
                self.put_value(one, row)
            one += 1
        return 0

    def put_value(self, step, row):
        """Write a field whose value is not NULL."""
        start: cython.Py_ssize_t
        number: cython.longlong = 0
        value: cython.ulonglong
        code: Code = cython.cast(Code, step.code)
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
            reserve(self, _HEAD_ROOM)
            put(self, step.tail.data, step.tail.size)
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
            put_varint(self, value)
        elif step.form == Form.VARINT32:
            put_varint(self, value & 0xFFFFFFFF)
        elif step.form == Form.ZIGZAG64:
            put_varint(self, zigzag(number))
        elif step.form == Form.ZIGZAG32:
            put_varint(self, zigzag(number) & 0xFFFFFFFF)
        elif step.form == Form.FIXED32:
            put(self, cython.address(value), 4)
        else:
            put(self, cython.address(value), 8)
        return 0

    def put_bytes(self, step, row):
        size: cython.Py_ssize_t = step.cells.offsets[row + 1] - step.cells.offsets[row]
        if step.is_implicit and not size:
            return 0
        if step.is_checked and find_no_utf8(step.cells.data + step.cells.offsets[row], size) >= 0:
            self.refuse(step, NO_UTF8)
        self.put_head(step)
        put_varint(self, size)
        reserve(self, size)
        put(self, step.cells.data + step.cells.offsets[row], size)
        return 0

    def put_time(self, step, row):
        micros: cython.longlong = cython.cast(cython.p_longlong, step.cells.data)[row]
        # C's division truncates towards zero, as a duration needs.
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
            put_varint(self, cython.cast(cython.ulonglong, seconds))
        if nanos or not step.steps[1].is_implicit:
            self.put_head(step.steps + 1)
            put_varint(self, cython.cast(cython.ulonglong, nanos))
        return self.end_sized(start)

    def put_block(self, step, row):
        """Write the elements of an array."""
        at: cython.Py_ssize_t
        start: cython.Py_ssize_t = 0
        one: cython.pointer(WriteStep) = step.steps
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
                self.refuse(one, NO_NULL)
            self.put_value(one, at)
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
        """Read the number to write; for a number with a fraction, its bits."""
        at: cython.Py_ssize_t
        single: cython.float
        double: cython.double
        wide: cython.longlong[2]
        code: Code = cython.cast(Code, step.code)
        if code == Code.INT:
            number[0] = cython.cast(cython.p_int, step.cells.data)[row]
        elif code in (Code.LONG, Code.WIDE):
            number[0] = cython.cast(cython.p_longlong, step.cells.data)[row]
            if code == Code.WIDE and (number[0] < 0 or number[0] >> 32):
                self.refuse(step, NO_UNSIGNED)
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
            self.refuse(step, NO_NUMBER)
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
                self.refuse(step, NO_UNSIGNED)
            number[0] = wide[0]
        return 0

    def read_name(self, step, row, number):
        """Read a name as its number in the enum."""
        at: cython.Py_ssize_t = find_name(step, row)
        if at >= 0:
            number[0] = step.numbers[at]
            return 0
        text = step.cells.data[step.cells.offsets[row] : step.cells.offsets[row + 1]]
        found = self.described[step - self.steps].number_of(text)
        if found is None:
            self.refuse(step, NO_NAME)
        number[0] = found
        return 0
