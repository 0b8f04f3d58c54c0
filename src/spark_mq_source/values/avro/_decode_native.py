"""Decodes Avro, compiled: Cython's pure-Python mode, C types in ``_decode_native.pxd``.

One function executes the steps of a record and calls itself for inner steps: as deep as the schema, which is bounded,
regardless of the bytes. Every size is compared with the rest of the payload before it is used. A fault in a payload is
not an exception here but a negative position, and each step adds its name to the path on the way out.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values.avro._decode_native is not compiled")

from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcpy
from cython.cimports.spark_mq_source.core._columns_native import allocate
from cython.cimports.spark_mq_source.core._wire import Slice, find_no_utf8, slice_of
from cython.cimports.spark_mq_source.values._loops_native import RowDecoder, count_steps, int128, lay_out_texts, uint128
from cython.cimports.spark_mq_source.values._tree_native import (
    Node,
    end_list,
    end_struct,
    put_bool,
    put_bytes,
    put_double,
    put_fixed,
    put_float,
    put_int,
    put_long,
    put_null,
)

from spark_mq_source.values.avro.steps import (
    ENDS,
    MAX_EMPTY_ITEMS,
    NO_BOOLEAN,
    NO_BRANCH,
    NO_DECIMAL,
    NO_END,
    NO_INT,
    NO_LENGTH,
    NO_SYMBOL,
    NO_TIME,
    NO_UTF8,
    TOO_MANY,
    unknown_symbol,
)
from spark_mq_source.values.steps import codes_of

_CODES = codes_of(list(Code))
_MAX_EMPTY_ITEMS = cython.declare(cython.Py_ssize_t, MAX_EMPTY_ITEMS)
_MAX_MILLIS = cython.declare(cython.longlong, (2**63 - 1) // 1000)
_MAX_LONG = cython.declare(cython.longlong, 2**63 - 1)
_WHYS = {Fault.ENDS_: ENDS, Fault.NO_END_: NO_END, Fault.NO_LENGTH_: NO_LENGTH}


@cython.final
@cython.cclass
class AvroDecoder(RowDecoder):
    """Decoder of payloads that were written with one schema.

    Args:
        step: the step that reads a value, from `avro.resolution.resolve`.
        type_: the Arrow type of the values.
    """

    def __init__(self, step, type_):
        RowDecoder.__init__(self, type_)
        count: cython.Py_ssize_t = count_steps(step)
        self.steps = cython.cast(cython.pointer(Step), allocate(count, cython.sizeof(Step)))
        self.num_steps = count
        self.described = [None] * count
        used: cython.Py_ssize_t = 1
        self.lay_out(self.steps, step, self.tree.nodes, cython.address(used))

    def __dealloc__(self):
        at: cython.Py_ssize_t
        for at in range(self.num_steps):
            free(self.steps[at].symbols)
        free(self.steps)

    def lay_out(self, step, described, node, used):
        """Fill a step; fill its inner steps behind the first `used` steps."""
        at: cython.Py_ssize_t
        inner: cython.pointer(Node)
        self.described[step - self.steps] = described
        step.code = _CODES[described.code]
        step.is_int = described.is_int
        step.is_empty = described.is_empty
        step.node = node
        step.size = described.size
        step.default_value = slice_of(described.data)
        step.limit = step.factor = 1
        for _ in range(described.precision):
            step.limit *= 10
        for _ in range(described.shift):
            step.factor *= 10
        step.num_symbols = len(described.symbols)
        step.symbols = lay_out_texts(described.symbols)
        step.count = len(described.steps)
        step.steps = self.steps + used[0]
        used[0] += step.count
        for at in range(step.count):
            one = described.steps[at]
            inner = cython.NULL
            if step.code in (Code.RECORD, Code.MEMBER):
                if one.slot >= 0:
                    inner = node.children + cython.cast(cython.Py_ssize_t, one.slot)
            elif step.code == Code.ARRAY:
                inner = node.children
            elif step.code == Code.MAP:
                inner = node.children.children + 1
            elif step.code in (Code.UNION, Code.DEFAULT):
                inner = node
            self.lay_out(step.steps + at, one, inner, used)
        return 0

    def read_row(self, payload):
        self.empty_items = 0
        return self.run(payload.data, 0, payload.size, self.steps, 1) >= 0

    def why(self, payload):
        return self.wrong

    def within(self, step, wrong):
        """Record a fault, or, with None, that it is within this step; return a negative position."""
        if wrong is not None:
            self.wrong = wrong
        name: str = self.described[step - self.steps].name
        if name:
            self.path.append(name)
        return -1

    def unreadable(self, step, fault):
        """Record a fault of a number or size, like `within`."""
        return self.within(step, _WHYS[fault])

    def run(self, data, at, end, step, count):
        """Read the values of consecutive steps; return their end, or a negative position if the payload is bad.

        `avro.steps.check_step` refuses a code without a branch here, which would read nothing: a last branch that
        raises would cost 4 % of the rate.
        """
        one: cython.pointer(cython.const[Step])
        last: cython.pointer(cython.const[Step]) = step + count
        node: cython.pointer(Node)
        size: cython.Py_ssize_t
        at_child: cython.Py_ssize_t
        number: cython.longlong = 0
        single: cython.float
        double: cython.double
        symbol: cython.pointer(Slice)
        _: cython.Py_ssize_t
        while step < last:
            one = step
            if one.code == Code.UNION:
                at = read_number(data, at, end, cython.address(number))
                if at < 0:
                    return self.unreadable(step, at)
                if number < 0 or number >= one.count:
                    return self.within(step, NO_BRANCH)
                one = one.steps + number
            node = one.node
            code = one.code
            # Values that begin with a number: the value itself, or its length.
            if Code.INT <= code <= Code.INT_TO_DOUBLE or code in (
                Code.TEXT,
                Code.BINARY,
                Code.ENUM,
            ):
                at = read_number(data, at, end, cython.address(number))
                if at < 0:
                    return self.unreadable(step, at)
                if one.is_int and number != cython.cast(cython.int, number):
                    return self.within(step, NO_INT)
            if code in (Code.TEXT, Code.BINARY):
                at = check_size(number, at, end)
                if at < 0:
                    return self.unreadable(step, at)
                size = number
                if code == Code.TEXT and find_no_utf8(data + at, size) >= 0:
                    return self.within(step, NO_UTF8)
                put_bytes(node, data + at, size)
                at += size
            elif code == Code.INT:
                put_int(node, cython.cast(cython.int, number))
            elif code == Code.LONG:
                put_long(node, number)
            elif code == Code.MILLIS:
                if number > _MAX_MILLIS or number < -_MAX_MILLIS:
                    return self.within(step, NO_TIME)
                put_long(node, number * 1000)
            elif code == Code.INT_TO_FLOAT:
                put_float(node, cython.cast(cython.float, number))
            elif code == Code.INT_TO_DOUBLE:
                put_double(node, cython.cast(cython.double, number))
            elif code == Code.ENUM:
                if number < 0 or number >= one.num_symbols:
                    return self.within(step, NO_SYMBOL)
                symbol = one.symbols + number
                if symbol.data == cython.NULL:
                    return self.within(step, unknown_symbol(self.described[one - self.steps].written[number]))
                put_bytes(node, symbol.data, symbol.size)
            elif code == Code.DOUBLE:
                if end - at < 8:
                    return self.within(step, ENDS)
                memcpy(cython.address(double), data + at, 8)
                put_double(node, double)
                at += 8
            elif code in (Code.FLOAT, Code.FLOAT_TO_DOUBLE):
                if end - at < 4:
                    return self.within(step, ENDS)
                memcpy(cython.address(single), data + at, 4)
                if code == Code.FLOAT:
                    put_float(node, single)
                else:
                    put_double(node, single)
                at += 4
            elif code == Code.BOOLEAN:
                if at == end:
                    return self.within(step, ENDS)
                if data[at] > 1:
                    return self.within(step, NO_BOOLEAN)
                put_bool(node, data[at])
                at += 1
            elif code == Code.NULL_:
                put_null(node)
            elif code == Code.FIXED:
                if end - at < one.size:
                    return self.within(step, ENDS)
                put_bytes(node, data + at, one.size)
                at += one.size
            elif code == Code.DECIMAL:
                number = one.size
                if number < 0:
                    at = read_number(data, at, end, cython.address(number))
                    if at < 0:
                        return self.unreadable(step, at)
                at = check_size(number, at, end)
                if at < 0:
                    return self.unreadable(step, at)
                size = number
                if self.put_decimal(one, data + at, size) < 0:
                    return self.within(step, NO_DECIMAL)
                at += size
            elif code == Code.RECORD:
                at = self.run(data, at, end, one.steps, one.count)
                if at < 0:
                    return self.within(step, None)
                end_struct(node)
            elif code in (Code.ARRAY, Code.MAP, Code.SKIP_BLOCKS):
                at = self.run_blocks(data, at, end, one)
                if at < 0:
                    return self.within(step, None)
                if code != Code.SKIP_BLOCKS:
                    end_list(node)
            elif code == Code.MEMBER:
                at = self.run(data, at, end, one.steps, 1)
                if at < 0:
                    return self.within(step, None)
                for at_child in range(node.count):
                    if node.children + at_child != one.steps.node:
                        put_null(node.children + at_child)
                end_struct(node)
            elif code == Code.DEFAULT:
                # The schema bounds a default value, not the payload, so its items do not count.
                size = self.empty_items
                self.empty_items = -_MAX_LONG // 2
                if self.run(one.default_value.data, 0, one.default_value.size, one.steps, 1) < 0:
                    return self.within(step, None)
                self.empty_items = size
            elif code == Code.FAIL:
                return self.within(step, self.described[one - self.steps].text)
            elif code == Code.SEQUENCE:
                at = self.run(data, at, end, one.steps, one.count)
                if at < 0:
                    return self.within(step, None)
            elif code == Code.SKIP_BYTES:
                if end - at < one.size:
                    return self.within(step, ENDS)
                at += one.size
            elif code == Code.SKIP_VARINTS:
                for _ in range(one.size):
                    at = read_number(data, at, end, cython.address(number))
                    if at < 0:
                        return self.unreadable(step, at)
            elif code == Code.SKIP_SIZED:
                for _ in range(one.size):
                    at = read_size(data, at, end, cython.address(number))
                    if at < 0:
                        return self.unreadable(step, at)
                    at += number
            step += 1
        return at

    def run_blocks(self, data, at, end, step):
        """Read an array or a map; return its end, or a negative position, after which the caller may call `within`."""
        count: cython.longlong = 0
        size: cython.longlong = 0
        index: cython.Py_ssize_t = 0
        entries: cython.pointer(Node) = cython.NULL
        if step.code == Code.MAP:
            entries = step.node.children
        while True:
            at = read_number(data, at, end, cython.address(count))
            if at < 0:
                self.wrong = _WHYS[at]
                return -1
            self.items += 1
            if count == 0:
                return at
            size = -1
            if count < 0:
                at = read_number(data, at, end, cython.address(size))
                if at >= 0 and size < 0:
                    at = Fault.NO_LENGTH_
                if at < 0:
                    self.wrong = _WHYS[at]
                    return -1
                if count < -_MAX_LONG:
                    self.wrong = TOO_MANY
                    return -1
                count = -count
            if count > (_MAX_EMPTY_ITEMS - self.empty_items if step.is_empty else end - at):
                self.wrong = TOO_MANY
                return -1
            if step.is_empty:
                self.empty_items += count
            if step.code == Code.SKIP_BLOCKS:
                if size >= 0:
                    if size > end - at:
                        self.wrong = ENDS
                        return -1
                    at += size
                    continue
                if step.is_empty:
                    continue
            self.items += count
            while count:
                if entries != cython.NULL:
                    at = self.put_key(data, at, end, entries.children)
                    if at < 0:
                        self.path.append("{}")
                        return -1
                at = self.run(data, at, end, step.steps, step.count)
                if at < 0:
                    if step.code != Code.SKIP_BLOCKS:
                        self.path.append("{}" if entries != cython.NULL else f"[{index}]")
                    return -1
                if entries != cython.NULL:
                    end_struct(entries)
                index += 1
                count -= 1

    def put_key(self, data, at, end, node):
        """Read the key of a map; return its end, or a negative position if it is bad."""
        size: cython.longlong = 0
        at = read_size(data, at, end, cython.address(size))
        if at < 0:
            self.wrong = _WHYS[at]
            return -1
        if find_no_utf8(data + at, size) >= 0:
            self.wrong = NO_UTF8
            return -1
        put_bytes(node, data + at, size)
        return at + size

    def put_decimal(self, step, data, size):
        """Append a big-endian number as a decimal; return a negative value if it does not fit."""
        filler: cython.uchar
        value: uint128
        result: int128
        if size == 0:
            return -1
        filler = 0xFF if data[0] & 0x80 else 0
        while size > 16:
            if data[0] != filler:
                return -1
            data += 1
            size -= 1
        if (data[0] ^ filler) & 0x80:
            return -1
        value = 0
        if filler:
            value = ~value
        while size:
            value = value << 8 | data[0]
            data += 1
            size -= 1
        result = cython.cast(int128, value)
        if result >= step.limit or result <= -step.limit:
            return -1
        result *= step.factor
        put_fixed(step.node, cython.cast(cython.p_uchar, cython.address(result)))
        return 0
