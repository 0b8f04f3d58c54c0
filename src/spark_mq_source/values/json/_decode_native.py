"""Decodes JSON, compiled: Cython's pure-Python mode, C types in ``_decode_native.pxd``.

The interface and the results are those of `explain`. A payload is read once, directly into the arrays. If it is bad,
the row is removed, and `explain` finds the reason; `explain` also contains the rare paths.

Safety: each read checks the end of the payload; recursion is as deep as the wanted type, and unwanted values are
skipped without recursion.
"""

from json import dumps

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values.json._decode_native is not compiled")

from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.math import HUGE_VAL, NAN, isinf
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.spark_mq_source.core._columns_native import allocate, resize
from cython.cimports.spark_mq_source.core._wire import Slice, find_no_utf8, slice_of
from cython.cimports.spark_mq_source.values._loops_native import RowDecoder, count_steps
from cython.cimports.spark_mq_source.values._tree_native import (
    Node,
    end_bytes,
    end_list,
    end_struct,
    keep_last_entries,
    put_bool,
    put_bytes,
    put_double,
    put_fixed,
    put_float,
    put_int,
    put_long,
    put_null,
    reserve_bytes,
    reserve_value,
    truncate,
)
from cython.cimports.spark_mq_source.values.json._decode_native import PyOS_string_to_double

from spark_mq_source.values.json.explain import reason_of, unscaled_of
from spark_mq_source.values.json.steps import MAX_DEPTH
from spark_mq_source.values.steps import codes_of

_CODES = codes_of(list(Code))
_MAX_DEPTH = cython.declare(cython.int, MAX_DEPTH)
_LAST_US = cython.declare(cython.longlong, (1 << 63) - 1)
_POWERS = cython.declare(cython.double[23], [float(f"1e{n}") for n in range(23)])
_LONG_POWERS = cython.declare(cython.longlong[19], [10**n for n in range(19)])
_BASE64 = cython.declare(cython.schar[256])
for _code in range(256):
    _BASE64[_code] = -1
for _digit, _letter in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
    _BASE64[ord(_letter)] = _digit


@cython.final
@cython.cclass
class JsonDecoder(RowDecoder):
    """Decoder of JSON payloads; the compiled form of `json.explain.JsonDecoder`."""

    def __init__(self, step):
        RowDecoder.__init__(self, step.type)
        self.described = step
        self.owned = []
        self.num_steps = 1
        self.steps = cython.cast(cython.pointer(Step), allocate(count_steps(step), cython.sizeof(Step)))
        self.lay_out(self.steps, step)

    def __dealloc__(self):
        at: cython.Py_ssize_t
        if self.steps != cython.NULL:
            for at in range(self.num_steps):
                free(self.steps[at].keys)
                free(self.steps[at].buckets)
        free(self.steps)
        free(self.scratch)

    def lay_out(self, step, described):
        at: cython.Py_ssize_t
        type_ = described.type
        step.code = _CODES[described.code]
        step.factor = described.factor
        step.has_seconds = described.has_seconds
        step.unit_ns = described.unit_ns
        step.count = len(described.steps)
        step.steps = self.steps + self.num_steps
        self.num_steps += step.count
        if step.code == Code.INT:
            step.lowest, step.highest = _bounds(type_.bit_width, 1)
        elif step.code == Code.DATE:
            step.lowest, step.highest = _bounds(32, 1)
        elif step.code == Code.TIMESTAMP:
            step.lowest, step.highest = _bounds(64, described.factor or 1)
            step.has_zone = type_.tz is not None
        elif step.code == Code.DECIMAL:
            step.precision, step.scale = type_.precision, type_.scale
        elif step.code == Code.STRUCT:
            step.num_keys = len(described.known)
            step.mask = (1 << (2 * step.num_keys).bit_length()) - 1
            step.buckets = cython.cast(cython.p_int, resize(cython.NULL, (step.mask + 1) * cython.sizeof(cython.int)))
            for at in range(step.mask + 1):
                step.buckets[at] = -1
            step.keys = cython.cast(cython.pointer(Key), allocate(step.num_keys, cython.sizeof(Key)))
            for at, text in enumerate(described.known):
                key: cython.pointer(Key) = step.keys + at
                data: bytes = text.encode()
                written: bytes = dumps(text, ensure_ascii=False).encode()
                self.owned += [data, written]
                key.text = slice_of(data)
                key.written = slice_of(written)
                key.slot = described.keys.index(text) if text in described.keys else -1
                bucket: cython.uint = hash_of(key.text.data, key.text.size) & step.mask
                while step.buckets[bucket] >= 0:
                    bucket = (bucket + 1) & step.mask
                step.buckets[bucket] = at
        for at in range(step.count):
            self.lay_out(step.steps + at, described.steps[at])
        return 0

    def read_row(self, payload):
        at: cython.p_uchar
        end: cython.p_uchar = payload.data + payload.size
        if find_no_utf8(payload.data, payload.size) >= 0:
            return False
        at = self.read(self.steps, self.tree.nodes, payload.data, end, 0)
        return at != cython.NULL and skip_space(at, end) == end

    def why(self, payload):
        data = PyBytes_FromStringAndSize(cython.cast(cython.p_char, payload.data), payload.size)
        return reason_of(self.described, data) or "it is not JSON that can be read"

    def reserve(self, size):
        """Reserve room for a text in `scratch`."""
        if size > self.room:
            self.scratch = cython.cast(cython.p_uchar, resize(self.scratch, 2 * size))
            self.room = 2 * size
        return 0

    def find(self, step, key, size, is_escaped):
        """Return the index of a key; negative if it is unknown."""
        bucket: cython.uint
        known: cython.pointer(Slice)
        if is_escaped:
            self.reserve(size)
            size = unescape(key, size, self.scratch)
            if size < 0:
                return -1
            key = self.scratch
        bucket = hash_of(key, size) & step.mask
        while step.buckets[bucket] >= 0:
            known = cython.address(step.keys[step.buckets[bucket]].text)
            if known.size == size and memcmp(known.data, key, size) == 0:
                return step.buckets[bucket]
            bucket = (bucket + 1) & step.mask
        return -1

    def read(self, step, node, at, end, depth):
        """Append a value to the node; return its end."""
        number: cython.longlong
        real: cython.double
        is_escaped: cython.bint
        begin: cython.p_uchar = skip_space(at, end)
        code: Code = step.code
        if begin >= end:
            return cython.NULL
        if begin[0] == 0x6E:  # n
            at = skip_word(begin, end, b"null", 4)
            if at != cython.NULL:
                put_null(node)
            return at
        if code == Code.INT and begin[0] != 0x5B:  # [
            at = read_long(begin, end, cython.address(number))
            if at == cython.NULL or number < step.lowest or number > step.highest:
                return cython.NULL
            if node.width == 8:
                put_long(node, number)
            elif node.width == 4:
                put_int(node, cython.cast(cython.int, number))
            else:
                put_fixed(node, cython.cast(cython.p_uchar, cython.address(number)))
            return at
        if code == Code.TEXT and begin[0] == 0x22:  # "
            at = skip_string(begin, end, cython.address(is_escaped))
            if at == cython.NULL or not _put_text(node, begin + 1, at - begin - 2, is_escaped):
                return cython.NULL
            return at
        if code == Code.DOUBLE:
            at = self.read_double(begin, end, cython.address(real))
            if at != cython.NULL:
                put_double(node, real)
            return at
        if code < Code.STRUCT:
            return self.read_scalar(step, node, begin, end, depth)
        if depth >= _MAX_DEPTH:
            return cython.NULL
        if begin[0] == 0x7B:  # {
            if code == Code.STRUCT:
                return self.read_struct(step, node, begin, end, depth + 1)
            if code == Code.MAP:
                return self.read_map(step, node, begin, end, depth + 1)
        elif begin[0] == 0x5B and code == Code.LIST:
            return self.read_list(step, node, begin, end, depth + 1)
        return cython.NULL

    def read_struct(self, step, node, at, end, depth):
        child: cython.pointer(Node)
        after: cython.p_uchar
        is_escaped: cython.bint
        slot: cython.Py_ssize_t
        found: cython.int
        expected: cython.int = 0
        before: cython.Py_ssize_t = node.length
        at = skip_space(at + 1, end)
        if at < end and at[0] == 0x7D:  # }
            at += 1
        else:
            while True:
                # Most payloads have their fields in the order of the schema, and leave some out.
                found = expected
                if found < step.num_keys and not begins(at, end, cython.address(step.keys[found].written)):
                    found += 1
                if found < step.num_keys and begins(at, end, cython.address(step.keys[found].written)):
                    at += step.keys[found].written.size
                else:
                    if at >= end or at[0] != 0x22:  # "
                        return cython.NULL
                    after = skip_string(at, end, cython.address(is_escaped))
                    if after == cython.NULL:
                        return cython.NULL
                    found = self.find(step, at + 1, after - at - 2, is_escaped)
                    at = after
                slot = -1
                if found >= 0:
                    slot = step.keys[found].slot
                    expected = found + 1
                at = skip_space(at, end)
                if at >= end or at[0] != 0x3A:  # :
                    return cython.NULL
                at = skip_space(at + 1, end)
                if slot < 0:
                    if at < end and at[0] == 0x22:
                        at = skip_string(at, end, cython.address(is_escaped))
                    elif at < end and is_digit(at[0]):
                        at = skip_number(at, end)
                    else:
                        at = _skip_value(at, end, depth)
                else:
                    child = node.children + slot
                    if child.length > before:
                        # The last of several equal keys counts.
                        truncate(child, before)
                    at = self.read(step.steps + slot, child, at, end, depth)
                if at == cython.NULL:
                    return cython.NULL
                at = skip_space(at, end)
                if at >= end:
                    return cython.NULL
                if at[0] == 0x7D:
                    at += 1
                    break
                if at[0] != 0x2C:  # ,
                    return cython.NULL
                at = skip_space(at + 1, end)
        for slot in range(step.count):
            if node.children[slot].length == before:
                put_null(node.children + slot)
        end_struct(node)
        return at

    def read_list(self, step, node, at, end, depth):
        character: cython.uchar
        at = skip_space(at + 1, end)
        if at < end and at[0] == 0x5D:  # ]
            at += 1
        else:
            while True:
                at = self.read(step.steps, node.children, at, end, depth)
                if at == cython.NULL:
                    return cython.NULL
                at = skip_space(at, end)
                if at >= end:
                    return cython.NULL
                character = at[0]
                at += 1
                if character == 0x5D:
                    break
                if character != 0x2C:
                    return cython.NULL
        end_list(node)
        return at

    def read_map(self, step, node, at, end, depth):
        after: cython.p_uchar
        is_escaped: cython.bint
        entries: cython.pointer(Node) = node.children
        keys: cython.pointer(Node) = entries.children
        before: cython.Py_ssize_t = entries.length
        at = skip_space(at + 1, end)
        if at < end and at[0] == 0x7D:
            at += 1
        else:
            while True:
                if at >= end or at[0] != 0x22:
                    return cython.NULL
                after = skip_string(at, end, cython.address(is_escaped))
                if after == cython.NULL:
                    return cython.NULL
                if not _put_text(keys, at + 1, after - at - 2, is_escaped):
                    return cython.NULL
                at = skip_space(after, end)
                if at >= end or at[0] != 0x3A:
                    return cython.NULL
                at = self.read(step.steps, keys + 1, at + 1, end, depth)
                if at == cython.NULL:
                    return cython.NULL
                end_struct(entries)
                at = skip_space(at, end)
                if at >= end:
                    return cython.NULL
                if at[0] == 0x7D:
                    at += 1
                    break
                if at[0] != 0x2C:
                    return cython.NULL
                at = skip_space(at + 1, end)
        self.moved += keep_last_entries(entries, before)
        end_list(node)
        return at

    def read_scalar(self, step, node, at, end, depth):
        """Append a value of a less frequent type, which begins at `at`; return its end."""
        number: cython.longlong
        real: cython.double
        single: cython.float
        parts: cython.longlong[7]
        count: cython.int = 0
        after: cython.p_uchar
        code: Code = step.code
        if code in (Code.TEXT, Code.NOTHING):
            after = _skip_value(at, end, depth)
            if after == cython.NULL:
                return cython.NULL
            if code == Code.TEXT:
                put_bytes(node, at, after - at)
            else:
                put_null(node)
            return after
        if code == Code.FLOAT:
            after = self.read_double(at, end, cython.address(real))
            if after == cython.NULL:
                return cython.NULL
            single = cython.cast(cython.float, real)
            if isinf(single) and not isinf(real):
                return cython.NULL
            put_float(node, single)
            return after
        if code == Code.BOOLEAN:
            after = skip_word(at, end, b"true", 4) if at[0] == 0x74 else skip_word(at, end, b"false", 5)
            if after != cython.NULL:
                put_bool(node, at[0] == 0x74)
            return after
        if at[0] == 0x22:
            after = self.read_text(at, end)
            if after == cython.NULL:
                return cython.NULL
            if code == Code.DECIMAL:
                return after if self.put_decimal(step, node, self.text, self.size) else cython.NULL
            if code == Code.BINARY:
                return after if _put_base64(node, self.text, self.size) else cython.NULL
            if code == Code.DATE and _read_date(self.text, self.size, cython.address(number)):
                put_int(node, cython.cast(cython.int, number))
                return after
            if code == Code.TIMESTAMP and _read_timestamp(self.text, self.size, step.has_zone, cython.address(number)):
                put_long(node, number)
                return after
            return cython.NULL
        if code == Code.DECIMAL:
            after = skip_number(at, end)
            if after == cython.NULL or not self.put_decimal(step, node, at, after - at):
                return cython.NULL
            return after
        if at[0] == 0x5B:
            after = _read_parts(at, end, parts, cython.address(count)) if depth < _MAX_DEPTH else cython.NULL
            return after if after != cython.NULL and _put_parts(step, node, parts, count) else cython.NULL
        if not step.factor:
            return cython.NULL
        after = read_long(at, end, cython.address(number))
        if after == cython.NULL and step.has_seconds:
            after = _read_seconds(at, end, cython.address(number))
        elif after != cython.NULL:
            if number < step.lowest or number > step.highest:
                return cython.NULL
            number *= step.factor
        if after == cython.NULL:
            return cython.NULL
        if code == Code.DATE:
            put_int(node, cython.cast(cython.int, number))
            return after
        if code == Code.TIMESTAMP:
            put_long(node, number)
            return after
        return cython.NULL

    def read_text(self, at, end):
        """Read a string into `text` and `size`; return its end, NULL if it is not valid."""
        is_escaped: cython.bint
        after: cython.p_uchar = skip_string(at, end, cython.address(is_escaped))
        if after == cython.NULL:
            return cython.NULL
        self.text = at + 1
        self.size = after - at - 2
        if is_escaped:
            self.reserve(self.size)
            self.size = unescape(self.text, self.size, self.scratch)
            if self.size < 0:
                return cython.NULL
            self.text = self.scratch
        return after

    def read_double(self, at, end, value):
        begin: cython.p_uchar = at
        after: cython.p_uchar
        digits: cython.ulonglong = 0
        exponent: cython.longlong = 0
        power: cython.longlong = 0
        count: cython.Py_ssize_t = 0
        real: cython.double
        is_negative: cython.bint
        if at[0] == 0x22:
            after = self.read_text(at, end)
            if after == cython.NULL or not _read_named(self.text, self.size, value):
                return cython.NULL
            return after
        is_negative = at[0] == 0x2D  # -
        at += is_negative
        if at >= end:
            return cython.NULL
        if not is_digit(at[0]):
            after = skip_word(at, end, b"Infinity", 8)
            if after != cython.NULL:
                value[0] = -HUGE_VAL if is_negative else HUGE_VAL
            elif not is_negative:
                after = skip_word(at, end, b"NaN", 3)
                value[0] = NAN
            return after
        after = at
        at = read_digits(at, end, cython.address(digits))
        count = at - after
        if after[0] == 0x30 and count > 1:
            return cython.NULL
        if at < end and at[0] == 0x2E:  # .
            after = at + 1
            at = read_digits(after, end, cython.address(digits))
            if at == after:
                return cython.NULL
            exponent = after - at
            count += at - after
        if at < end and at[0] | 0x20 == 0x65:  # e
            at += 1
            is_reciprocal: cython.bint = at < end and at[0] == 0x2D
            if at < end and (at[0] == 0x2D or at[0] == 0x2B):
                at += 1
            after = at
            while at < end and is_digit(at[0]):
                if power < 100_000_000:
                    power = power * 10 + (at[0] - 0x30)
                at += 1
            if at == after:
                return cython.NULL
            exponent += -power if is_reciprocal else power
        # Exact if both numbers are exact doubles, because a single operation rounds correctly.
        if count <= 19 and digits <= 1 << 53 and -22 <= exponent <= 22:
            real = cython.cast(cython.double, digits)
            real = real / _POWERS[-exponent] if exponent < 0 else real * _POWERS[exponent]
            value[0] = -real if is_negative else real
            return at
        count = at - begin
        self.reserve(count + 1)
        memcpy(self.scratch, begin, count)
        self.scratch[count] = 0
        value[0] = PyOS_string_to_double(cython.cast(cython.p_char, self.scratch), cython.NULL, cython.NULL)
        return cython.NULL if isinf(value[0]) else at

    def put_decimal(self, step, node, text, size):
        """Append the text as a decimal of the step's type; return whether it is one."""
        at: cython.Py_ssize_t = 0
        digits: cython.longlong = 0
        count: cython.Py_ssize_t = 0
        point: cython.Py_ssize_t = -1
        words: cython.longlong[2]
        is_negative: cython.bint = size > 0 and text[0] == 0x2D
        at = is_negative
        while at < size and count < 18:
            if is_digit(text[at]):
                digits = digits * 10 + (text[at] - 0x30)
                count += 1
            elif text[at] == 0x2E and point < 0 and count:
                point = count
            else:
                break
            at += 1
        point = count - point if point >= 0 else 0  # digits after the point
        if at == size and count and text[size - 1] != 0x2E and point <= step.scale and count + step.scale - point <= 18:
            digits *= _LONG_POWERS[step.scale - point]
            if step.precision > 18 or digits < _LONG_POWERS[step.precision]:
                words[0] = -digits if is_negative else digits
                words[1] = -1 if words[0] < 0 else 0
                put_fixed(node, cython.cast(cython.p_uchar, cython.address(words)))
                return True
        number = unscaled_of(_text_of(text, size), step.precision, step.scale)
        if number is None:
            return False
        wide: bytes = number.to_bytes(16, "little", signed=True)
        put_fixed(node, cython.cast(cython.p_uchar, PyBytes_AS_STRING(wide)))
        return True


def _bounds(bits, factor):
    return -((1 << bits - 1) // factor), ((1 << bits - 1) - 1) // factor


@cython.cfunc
def _text_of(text: cython.p_uchar, size: cython.Py_ssize_t):
    return PyBytes_FromStringAndSize(cython.cast(cython.p_char, text), size).decode()


@cython.cfunc
@cython.exceptval(-1)
def _put_text(
    node: cython.pointer(Node), text: cython.p_uchar, size: cython.Py_ssize_t, is_escaped: cython.bint
) -> cython.int:
    """Append the characters between the quotes as a text; return whether they are valid."""
    if not is_escaped:
        put_bytes(node, text, size)
        return True
    reserve_value(node)
    reserve_bytes(node, size)
    size = unescape(text, size, node.data + node.used)
    if size < 0:
        return False
    end_bytes(node, size)
    return True


@cython.cfunc
@cython.exceptval(-1)
def _put_base64(node: cython.pointer(Node), text: cython.p_uchar, size: cython.Py_ssize_t) -> cython.int:
    """Append the bytes of a base64 text; return whether it is valid."""
    at: cython.Py_ssize_t
    i: cython.int
    bits: cython.uint
    digit: cython.int
    out: cython.p_uchar
    padding: cython.int = 0
    if size % 4:
        return False
    reserve_value(node)
    if size:
        reserve_bytes(node, size)
        padding = (text[size - 1] == 0x3D) + (text[size - 1] == 0x3D and text[size - 2] == 0x3D)  # =
    for at in range(0, size, 4):
        bits = 0
        for i in range(4):
            digit = _BASE64[text[at + i]]
            if digit < 0 and at + i >= size - padding:
                digit = 0
            if digit < 0:
                return False
            bits = bits << 6 | cython.cast(cython.uint, digit)
        out = node.data + node.used + at // 4 * 3
        out[0] = bits >> 16
        out[1] = bits >> 8 & 0xFF
        out[2] = bits & 0xFF
    end_bytes(node, size // 4 * 3 - padding)
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _read_named(text: cython.p_uchar, size: cython.Py_ssize_t, value: cython.p_double) -> cython.bint:
    """Read a float that JSON cannot express as a number; return whether the text is one."""
    is_negative: cython.bint = size > 0 and text[0] == 0x2D
    if size == 3 and memcmp(text, b"NaN", 3) == 0:
        value[0] = NAN
        return True
    value[0] = -HUGE_VAL if is_negative else HUGE_VAL
    if size == 8 and memcmp(text, b"Infinity", 8) == 0:
        return True
    if not is_negative and (size == 0 or text[0] != 0x2B):  # +
        return False
    return (size == 9 and memcmp(text + 1, b"Infinity", 8) == 0) or (size == 4 and memcmp(text + 1, b"INF", 3) == 0)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _one_or_two(text: cython.p_uchar, size: cython.Py_ssize_t, at: cython.pointer(cython.Py_ssize_t)) -> cython.int:
    """Return a number of one or two digits; negative if there is none."""
    number: cython.int
    if at[0] >= size or not is_digit(text[at[0]]):
        return -1
    number = text[at[0]] - 0x30
    at[0] += 1
    if at[0] < size and is_digit(text[at[0]]):
        number = number * 10 + (text[at[0]] - 0x30)
        at[0] += 1
    return number


@cython.cfunc
@cython.exceptval(check=False)
def _read_day(
    text: cython.p_uchar, size: cython.Py_ssize_t, at: cython.pointer(cython.Py_ssize_t), days: cython.p_longlong
) -> cython.bint:
    """Read a date at the start of a text, and move `at` past it; return whether there is one."""
    year: cython.int
    month: cython.int
    day: cython.int
    i: cython.int
    if size < 8:
        return False
    for i in range(4):
        if not is_digit(text[i]):
            return False
    year = two_digits(text) * 100 + two_digits(text + 2)
    at[0] = 5
    month = _one_or_two(text, size, at)
    if text[4] != 0x2D or at[0] >= size or text[at[0]] != 0x2D:
        return False
    at[0] += 1
    day = _one_or_two(text, size, at)
    return _day_of(year, month, day, days)


@cython.cfunc
@cython.exceptval(check=False)
def _day_of(
    year: cython.longlong, month: cython.longlong, day: cython.longlong, days: cython.p_longlong
) -> cython.bint:
    """Compute the days since 1970; return whether the day exists."""
    if not 1 <= year <= 9999 or not 1 <= month <= 12:
        return False
    if not 1 <= day <= days_in(cython.cast(cython.int, year), cython.cast(cython.int, month)):
        return False
    days[0] = days_of(cython.cast(cython.int, year), cython.cast(cython.int, month), cython.cast(cython.int, day))
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _read_parts(
    at: cython.p_uchar, end: cython.p_uchar, parts: cython.p_longlong, count: cython.p_int
) -> cython.p_uchar:
    """Read an array of one to seven integers, which begins at `at`; return its end."""
    character: cython.uchar
    count[0] = 0
    at += 1
    while count[0] < 7:
        at = read_long(skip_space(at, end), end, parts + count[0])
        if at == cython.NULL:
            return cython.NULL
        count[0] += 1
        at = skip_space(at, end)
        if at >= end:
            return cython.NULL
        character = at[0]
        at += 1
        if character == 0x5D:
            return at
        if character != 0x2C:
            return cython.NULL
    return cython.NULL


@cython.cfunc
@cython.exceptval(-1)
def _put_parts(
    step: cython.pointer(Step), node: cython.pointer(Node), parts: cython.p_longlong, count: cython.int
) -> cython.int:
    """Append the parts of a date or time as a value of the step's type; return whether they are valid."""
    number: cython.longlong = 0
    at: cython.int
    for at in range(count, 7):
        parts[at] = 0
    if step.code == Code.INT:
        if not step.unit_ns or not 2 <= count <= 4 or not _is_time(parts):
            return False
        number = (_second_of(parts) * 1_000_000_000 + parts[3]) // step.unit_ns
        if number > step.highest:
            return False
        put_fixed(node, cython.cast(cython.p_uchar, cython.address(number)))
        return True
    if count < 3 or not _day_of(parts[0], parts[1], parts[2], cython.address(number)):
        return False
    if step.code == Code.DATE:
        if count == 3:
            put_int(node, cython.cast(cython.int, number))
        return count == 3
    if step.code == Code.TIMESTAMP:
        if step.has_zone or count < 5 or not _is_time(parts + 3):
            return False
        put_long(node, (number * 86_400 + _second_of(parts + 3)) * 1_000_000 + parts[6] // 1000)
        return True
    return False


@cython.cfunc
@cython.exceptval(check=False)
def _is_time(parts: cython.p_longlong) -> cython.bint:
    """Return whether hour, minute, second and nanosecond are in range."""
    return 0 <= parts[0] < 24 and 0 <= parts[1] < 60 and 0 <= parts[2] < 60 and 0 <= parts[3] < 1_000_000_000


@cython.cfunc
@cython.exceptval(check=False)
def _second_of(parts: cython.p_longlong) -> cython.longlong:
    return (parts[0] * 60 + parts[1]) * 60 + parts[2]


@cython.cfunc
@cython.exceptval(check=False)
def _read_seconds(at: cython.p_uchar, end: cython.p_uchar, microseconds: cython.p_longlong) -> cython.p_uchar:
    """Read seconds with a fraction, in Jackson's form of an Instant; return their end."""
    begin: cython.p_uchar
    seconds: cython.ulonglong = 0
    fraction: cython.longlong = 0
    unit: cython.longlong = 100_000
    us: cython.longlong
    is_negative: cython.bint = at < end and at[0] == 0x2D
    at += is_negative
    begin = at
    at = read_digits(at, end, cython.address(seconds))
    # Limited so that the microseconds fit in 64 bits.
    if at == begin or at - begin > 18 or (begin[0] == 0x30 and at - begin > 1) or seconds > 9_223_372_036_854:
        return cython.NULL
    if end - at < 2 or at[0] != 0x2E or not is_digit(at[1]):
        return cython.NULL
    at += 1
    while at < end and is_digit(at[0]):
        fraction += (at[0] - 0x30) * unit
        unit //= 10
        at += 1
    if at < end and at[0] | 0x20 == 0x65:
        return cython.NULL
    us = cython.cast(cython.longlong, seconds) * 1_000_000
    if is_negative:
        us = -us
        if not us:
            fraction = -fraction
    if fraction > 0 and us > _LAST_US - fraction:
        return cython.NULL
    microseconds[0] = us + fraction
    return at


@cython.cfunc
@cython.exceptval(check=False)
def _read_date(text: cython.p_uchar, size: cython.Py_ssize_t, days: cython.p_longlong) -> cython.bint:
    at: cython.Py_ssize_t = 0
    return _read_day(text, size, cython.address(at), days) and at == size


@cython.cfunc
@cython.exceptval(check=False)
def _read_timestamp(
    text: cython.p_uchar, size: cython.Py_ssize_t, has_zone: cython.bint, microseconds: cython.p_longlong
) -> cython.bint:
    at: cython.Py_ssize_t = 0
    value: cython.longlong = 0
    hour: cython.int = 0
    minute: cython.int = 0
    second: cython.int = 0
    fraction: cython.int = 0
    unit: cython.int = 100_000
    offset: cython.int = 0
    if not _read_day(text, size, cython.address(at), cython.address(value)):
        return False
    if at < size:
        if text[at] != 0x54 and text[at] != 0x20:  # T
            return False
        at += 1
        hour = _one_or_two(text, size, cython.address(at))
        if at >= size or text[at] != 0x3A:
            return False
        at += 1
        minute = _one_or_two(text, size, cython.address(at))
        if at < size and text[at] == 0x3A:
            at += 1
            second = _one_or_two(text, size, cython.address(at))
            if at < size and text[at] == 0x2E:
                at += 1
                if at >= size or not is_digit(text[at]):
                    return False
                while at < size and is_digit(text[at]):
                    fraction += (text[at] - 0x30) * unit
                    unit //= 10
                    at += 1
        if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60):
            return False
    if (at < size) != has_zone:
        return False
    if has_zone and not _read_zone(text + at, size - at, cython.address(offset)):
        return False
    value = ((value * 24 + hour) * 60 + minute - offset) * 60 + second
    microseconds[0] = value * 1_000_000 + fraction
    return True


@cython.cfunc
@cython.exceptval(check=False)
def _read_zone(text: cython.p_uchar, size: cython.Py_ssize_t, offset: cython.p_int) -> cython.bint:
    """Read a time zone as minutes east of Greenwich; return whether the text is one."""
    minutes: cython.int = 0
    if text[0] == 0x5A:  # Z
        return size == 1
    if size == 3 and memcmp(text, b"UTC", 3) == 0:
        return True
    if (text[0] != 0x2B and text[0] != 0x2D) or size < 3 or not is_digit(text[1]) or not is_digit(text[2]):
        return False
    if size > 3:
        if size != 5 and (size != 6 or text[3] != 0x3A):
            return False
        if not is_digit(text[size - 2]) or not is_digit(text[size - 1]):
            return False
        minutes = two_digits(text + size - 2)
    offset[0] = two_digits(text + 1) * 60 + minutes
    if minutes > 59 or offset[0] > 18 * 60:
        return False
    if text[0] == 0x2D:
        offset[0] = -offset[0]
    return True


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_value(at: cython.p_uchar, end: cython.p_uchar, depth: cython.int) -> cython.p_uchar:
    """Return the end of an unwanted value."""
    is_escaped: cython.bint
    # The closing characters of the enclosing arrays and objects, from the inside to the outside.
    closing: cython.uchar[1024]
    level: cython.int = 0
    character: cython.uchar
    while True:
        at = skip_space(at, end)
        if at >= end:
            return cython.NULL
        if at[0] == 0x7B or at[0] == 0x5B:
            if depth + level >= _MAX_DEPTH:
                return cython.NULL
            closing[level] = at[0] + 2
            level += 1
            at = skip_space(at + 1, end)
            if at >= end:
                return cython.NULL
            if at[0] != closing[level - 1]:
                if closing[level - 1] == 0x7D:
                    at = _skip_key(at, end)
                    if at == cython.NULL:
                        return cython.NULL
                continue
            at += 1
            level -= 1
        elif at[0] == 0x22:
            at = skip_string(at, end, cython.address(is_escaped))
        elif at[0] == 0x74:
            at = skip_word(at, end, b"true", 4)
        elif at[0] == 0x66:
            at = skip_word(at, end, b"false", 5)
        elif at[0] == 0x6E:
            at = skip_word(at, end, b"null", 4)
        elif at[0] == 0x4E:
            at = skip_word(at, end, b"NaN", 3)
        elif at[0] == 0x49 or (at[0] == 0x2D and end - at > 1 and at[1] == 0x49):  # I
            at = skip_word(at + (at[0] == 0x2D), end, b"Infinity", 8)
        else:
            at = skip_number(at, end)
        if at == cython.NULL:
            return cython.NULL
        # After a value: the enclosing array or object ends, or has another value.
        while level:
            at = skip_space(at, end)
            if at >= end:
                return cython.NULL
            character = at[0]
            at += 1
            if character == closing[level - 1]:
                level -= 1
                continue
            if character != 0x2C:
                return cython.NULL
            if closing[level - 1] == 0x7D:
                at = _skip_key(at, end)
                if at == cython.NULL:
                    return cython.NULL
            break
        if not level:
            return at


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _skip_key(at: cython.p_uchar, end: cython.p_uchar) -> cython.p_uchar:
    """Return the position after the colon of a member."""
    is_escaped: cython.bint
    at = skip_space(at, end)
    if at >= end or at[0] != 0x22:
        return cython.NULL
    at = skip_string(at, end, cython.address(is_escaped))
    if at == cython.NULL:
        return cython.NULL
    at = skip_space(at, end)
    return at + 1 if at < end and at[0] == 0x3A else cython.NULL
