"""The compiled loop over protobuf messages: Cython's pure-Python mode, C types in ``_decode_native.pxd``.

Fields come in any order and more than once, and Arrow's columns grow in their own order. So each message is first
scanned: this records the last value of each field, and the occurrences of repeated fields and messages as lists of
pieces of the payload. Then the fields are appended to the tree in the order of the columns. An inner message is scanned
when it is appended. Bytes that no column needs are skipped unread.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values.protobuf._decode_native is not compiled")

from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcpy
from cython.cimports.spark_mq_source.core._columns_native import allocate, resize
from cython.cimports.spark_mq_source.core._wire import Slice, find_no_utf8, read_varint, slice_of
from cython.cimports.spark_mq_source.values._loops_native import RowDecoder
from cython.cimports.spark_mq_source.values._tree_native import (
    Kind,
    Node,
    end_list,
    end_struct,
    keep_last_entries,
    put_bool,
    put_bytes,
    put_double,
    put_fixed,
    put_int,
    put_long,
    put_null,
    truncate,
)

from spark_mq_source.values.protobuf.schema import MAX_DEPTH, MAX_SECONDS, why_of
from spark_mq_source.values.steps import codes_of

_READS = codes_of(list(Read))
_PUTS = codes_of(list(Put))
_DEPTH = cython.declare(cython.int, MAX_DEPTH)
_TABLE = cython.declare(cython.int, 4096)
_MIN_PIECES = cython.declare(cython.Py_ssize_t, 64)
_MAX_KEPT = cython.declare(cython.Py_ssize_t, 1 << 16)
_MAX_SECONDS = cython.declare(cython.longlong, MAX_SECONDS)


@cython.final
@cython.cclass
class ProtobufDecoder(RowDecoder):
    """A decoder of the messages of one plan; see `ValueDecoder`.

    Args:
        plan: the plan of the message.
        type_: the Arrow type of a value, which must fit the plan.
    """

    def __init__(self, plan, type_):
        RowDecoder.__init__(self, type_)
        self.labels = []
        self.kept = []
        if self.tree.nodes.kind != Kind.STRUCT or self.tree.nodes.count != plan.columns:
            raise TypeError(f"the protobuf decoder cannot put message {plan.name} into a column of {type_}")
        self.root = self.build_message(plan, self.tree.nodes.children)

    def __dealloc__(self):
        free(self.pieces)
        while self.memory:
            memory: cython.pointer(cython.p_void) = self.memory
            self.memory = cython.cast(cython.pointer(cython.p_void), memory[0])
            free(memory)

    def decode(self, payloads):
        try:
            return RowDecoder.decode(self, payloads)
        finally:
            if self.room > _MAX_KEPT:
                free(self.pieces)
                self.pieces = cython.NULL
                self.room = 0

    def read_row(self, payload):
        self.base = payload.data
        self.num_pieces = 0
        self.is_dry = False
        forget(self.root)
        self.code = self.scan(self.root, payload.data, payload.size, _DEPTH)
        if not self.code:
            self.code = self.emit_fields(self.root, _DEPTH)
        if self.code:
            return False
        end_struct(self.tree.nodes)
        return True

    def why(self, payload):
        return why_of(self.code, self.where)

    # -- building the plan in C

    def take_memory(self, size):
        """Return zeroed memory that is freed with the decoder."""
        # Two words before it: the first one links to the memory taken before.
        memory: cython.pointer(cython.p_void) = cython.cast(cython.pointer(cython.p_void), allocate(size + 16, 1))
        memory[0] = self.memory
        self.memory = memory
        return memory + 2

    def build_message(self, plan, nodes):
        at: cython.Py_ssize_t
        message: cython.pointer(Message) = cython.cast(
            cython.pointer(Message), self.take_memory(cython.sizeof(Message))
        )
        message.count = len(plan.fields)
        message.columns = plan.columns
        message.fields = cython.cast(cython.pointer(Field), self.take_memory(message.count * cython.sizeof(Field)))
        numbers: list = [field.number for field in plan.fields]
        message.table_size = min(max(numbers, default=0) + 1, _TABLE)
        message.table = cython.cast(cython.pointer(cython.short), self.take_memory(message.table_size * 2))
        message.order = cython.cast(cython.pointer(cython.short), self.take_memory(message.count * 2))
        for at, field in enumerate(plan.fields):
            # A timestamp's seconds and nanos have no columns.
            has_node: cython.bint = nodes != cython.NULL and at < message.columns
            self.build_field(message.fields + at, field, nodes + at if has_node else cython.NULL)
            if message.fields[at].number < message.table_size:
                message.table[message.fields[at].number] = at + 1
        for at, place in enumerate(sorted(range(message.count), key=numbers.__getitem__)):
            message.order[at] = place
        last: dict = {}
        # Twice through the fields, so that the last field of each oneof links to its first one.
        for at, field in enumerate((*plan.fields, *plan.fields)):
            if field.oneof >= 0:
                if field.oneof in last:
                    message.fields[cython.cast(cython.int, last[field.oneof])].sibling = (
                        message.fields + at % message.count
                    )
                last[field.oneof] = at % message.count
        return message

    def build_field(self, field, plan, node):
        field.number = plan.number
        field.wire_type = plan.wire_type
        field.read = _READS[plan.read]
        field.put = _PUTS[plan.put]
        field.is_repeated = plan.is_repeated
        field.is_map = plan.is_map
        field.is_required = plan.is_required
        field.is_implicit = plan.is_implicit
        field.label = len(self.labels)
        self.labels.append(f".{plan.name}")
        field.node = node
        field.first = -1
        if plan.names is not None:
            self.build_names(field, plan)
        if node == cython.NULL:
            field.put = Put.NOWHERE
            return 0
        inner: cython.pointer(Node) = node.children if field.is_repeated else node
        self.check_node(field, plan, inner)
        if plan.message is not None:
            field.message = self.build_message(plan.message, inner.children if field.put == Put.STRUCT else cython.NULL)
        if plan.default is not None:
            self.build_default(field, plan.default)
        return 0

    def check_node(self, field, plan, node):
        """Raise if the field has no branch in `put_value` and the like, or its column cannot hold their values.

        Values are put only into nodes of fields that were checked here.
        """
        inside: cython.Py_ssize_t = plan.message.columns if plan.message is not None else -1
        fits: cython.bint = False
        if field.put == Put.INT:
            fits = node.kind == Kind.FIXED and node.width == 4
        elif field.put in (Put.LONG, Put.NUMBER, Put.FLOAT, Put.MICROS):
            fits = node.kind == Kind.FIXED and node.width == 8
        elif field.put == Put.DECIMAL:
            fits = node.kind == Kind.FIXED and node.width == 16
        elif field.put == Put.BOOL:
            fits = node.kind == Kind.BIT
        elif field.put in (Put.BINARY, Put.TEXT, Put.NAME):
            fits = node.kind == Kind.BYTES
        elif field.put == Put.STRUCT:
            fits = node.kind == Kind.STRUCT and node.count == inside
        if field.put == Put.MICROS or field.is_map:
            # Seconds and nanoseconds, or key and value.
            fits = fits and inside == 2
        elif field.put != Put.STRUCT:
            fits = fits and inside < 0
        if field.put == Put.NAME:
            fits = fits and plan.names is not None
        if field.is_repeated:
            fits = fits and field.node.kind == Kind.LIST
        if not fits:
            raise TypeError(f"the protobuf decoder cannot put field {plan.name} into a column of {plan.type}")
        return 0

    def build_default(self, field, default):
        field.has_default = True
        if isinstance(default, str):
            default = default.encode()
        single: cython.float
        if isinstance(default, bytes):
            self.kept.append(default)
            field.default_data = cython.cast(cython.p_uchar, cython.cast(bytes, default))
            field.default_value = len(default)
        elif isinstance(default, float):
            double: cython.double = default
            if field.wire_type == 5:
                single = default
                memcpy(cython.address(field.default_value), cython.address(single), 4)
            else:
                memcpy(cython.address(field.default_value), cython.address(double), 8)
        else:
            field.default_value = int(default) & 0xFFFFFFFFFFFFFFFF
        return 0

    def build_names(self, field, plan):
        at: cython.Py_ssize_t
        field.is_closed = plan.unknown is None
        prefix: bytes = (plan.unknown or "").encode()
        self.kept.append(prefix)
        field.unknown = slice_of(prefix)
        field.num_names = len(plan.names)
        field.numbers = cython.cast(cython.p_int, self.take_memory(field.num_names * cython.sizeof(cython.int)))
        field.names = cython.cast(cython.pointer(Slice), self.take_memory(field.num_names * cython.sizeof(Slice)))
        for at, number in enumerate(sorted(plan.names)):
            name: bytes = plan.names[number].encode()
            self.kept.append(name)
            field.numbers[at] = number
            field.names[at] = slice_of(name)
        return 0

    # -- the fields of a message

    def add_piece(self, field, data, value):
        if self.num_pieces == self.room:
            room: cython.Py_ssize_t = max(2 * self.room, _MIN_PIECES)
            self.pieces = cython.cast(cython.pointer(Piece), resize(self.pieces, room * cython.sizeof(Piece)))
            self.room = room
        piece: cython.pointer(Piece) = self.pieces + self.num_pieces
        piece.data = data
        piece.value = value
        piece.next = -1
        if field.first < 0:
            field.first = self.num_pieces
        else:
            self.pieces[field.last].next = self.num_pieces
        field.last = self.num_pieces
        self.num_pieces += 1
        return 0

    def scan(self, message, data, size, depth):
        """Record the fields in these bytes of a message; return a code of `CORRUPT` if they are corrupt."""
        at: cython.Py_ssize_t = 0
        started: cython.Py_ssize_t
        last: cython.Py_ssize_t
        end: cython.Py_ssize_t = 0
        code: cython.int
        tag: cython.ulonglong
        value: cython.ulonglong = 0
        number: cython.uint
        wire_type: cython.int
        word: cython.uint
        field: cython.pointer(Field)
        start: cython.p_uchar
        while at < size:
            started = at
            tag = data[at]
            if tag < 0x80:
                at += 1
            else:
                at = read_varint(data, at, size, cython.address(tag))
                if at < 0 or at - started > 5:
                    return self.fail(data, started, -1)
            if tag < 8 or tag >> 32:
                return self.fail(data, started, -2)
            number = tag >> 3
            wire_type = tag & 7
            field = find_field(message, number)
            if field == cython.NULL or (
                wire_type != field.wire_type
                and not (field.is_repeated and wire_type == 2 and field.wire_type in (0, 1, 5))
            ):
                at = skip(data, at, size, tag, depth, cython.address(end))
                if at < 0:
                    return self.fail(data, started, cython.cast(cython.int, at))
                continue
            start = cython.NULL
            if wire_type == 0:
                at = read_varint(data, at, size, cython.address(value))
                if at < 0:
                    return self.fail(data, started, -1)
                value = number_of(field.read, value)
            elif wire_type == 2:
                last = at
                at = read_varint(data, at, size, cython.address(value))
                if at < 0 or at - last > 5:
                    return self.fail(data, started, -1)
                if value > cython.cast(cython.ulonglong, size - at):
                    return self.fail(data, started, -3)
                start = data + at
                at += cython.cast(cython.Py_ssize_t, value)
            elif wire_type == 3:
                start = data + at
                last = at
                at = skip(data, at, size, tag, depth, cython.address(end))
                if at < 0:
                    return self.fail(data, started, cython.cast(cython.int, at))
                value = end - last
            else:
                last = at + (8 if wire_type == 1 else 4)
                if last > size:
                    return self.fail(data, started, -3)
                if wire_type == 1:
                    memcpy(cython.address(value), data + at, 8)
                else:
                    memcpy(cython.address(word), data + at, 4)
                    value = number_of(field.read, word)
                at = last
            # A number that its closed enum lacks is an unknown field.
            if field.is_closed and start == cython.NULL and find_name(field, cython.cast(cython.int, value)) < 0:
                message.is_dropped = True
                continue
            if field.sibling != cython.NULL:
                code = self.clear_others(field, depth)
                if code:
                    return code
            field.is_seen = True
            if field.is_repeated or field.message != cython.NULL:
                self.add_piece(field, start, value)
            else:
                field.data = start
                field.value = value
        return 0

    def fail(self, data, at, code):
        self.where = data + at - self.base
        return code

    def clear_others(self, field, depth):
        """Clear the other fields of the same oneof."""
        code: cython.int
        length: cython.Py_ssize_t
        other: cython.pointer(Field) = field.sibling
        while other != field:
            if other.is_seen:
                if other.message != cython.NULL:
                    # A corrupt message is an error even though no column shows it.
                    length = other.node.length
                    was_dry: cython.bint = self.is_dry
                    self.is_dry = True
                    code = self.emit_field(other, depth)
                    self.is_dry = was_dry
                    if code:
                        self.path.append(self.labels[other.label])
                        return code
                    truncate(other.node, length)
                other.is_seen = False
                other.first = -1
            other = other.sibling
        return 0

    # -- appending to the tree

    def scan_pieces(self, message, piece, is_merged, depth):
        """Scan a piece, or with `is_merged` this piece and all that follow, as one message."""
        code: cython.int
        if not depth:
            return self.fail(self.base, 0, -6)
        forget(message)
        while piece >= 0:
            self.work += self.pieces[piece].value
            code = self.scan(message, self.pieces[piece].data, self.pieces[piece].value, depth - 1)
            if code:
                return code
            piece = self.pieces[piece].next if is_merged else -1
        return 0

    def emit_fields(self, message, depth):
        """Append the fields of the scanned message."""
        at: cython.int
        code: cython.int
        for at in range(message.columns):
            code = self.emit_field(message.fields + at, depth)
            if code:
                self.path.append(self.labels[message.fields[at].label])
                return code
        return 0

    def emit_field(self, field, depth):
        if field.is_repeated:
            return self.emit_map(field, depth) if field.is_map else self.emit_elements(field, depth)
        if not field.is_seen:
            if field.is_required and not self.is_dry:
                return self.fail(self.base, 0, -7)
            if not field.has_default:
                return put_null(field.node)
            if field.message != cython.NULL:
                return self.emit_message(field, field.node, -1, True, depth)
            return self.put_value(field, field.node, field.default_data, field.default_value)
        if field.message != cython.NULL:
            return self.emit_message(field, field.node, field.first, True, depth)
        if field.is_implicit and not field.value:
            return put_null(field.node)
        return self.put_value(field, field.node, field.data, field.value)

    def emit_message(self, field, node, piece, is_merged, depth):
        code: cython.int
        micros: cython.longlong
        seconds: cython.longlong
        nanos: cython.longlong
        had: cython.Py_ssize_t = self.num_pieces
        code = self.scan_pieces(field.message, piece, is_merged, depth)
        if code:
            return code
        if field.is_map and field.message.is_dropped:
            # The entry's bytes are an unknown field, whose content is not checked.
            return 0
        if field.put == Put.STRUCT:
            code = self.emit_fields(field.message, depth - 1)
            if code:
                return code
            self.num_pieces = had
            return end_struct(node)
        seconds = field.message.fields[0].value if field.message.fields[0].is_seen else 0
        nanos = field.message.fields[1].value if field.message.fields[1].is_seen else 0
        # Truncated towards zero, as in Java.
        nanos = nanos // 1000
        if seconds > _MAX_SECONDS or seconds < -_MAX_SECONDS:
            if not self.is_dry:
                return self.fail(self.pieces[piece].data, 0, -9)
            seconds = 0
        micros = seconds * 1_000_000 + nanos
        return put_long(node, micros)

    def emit_elements(self, field, depth):
        code: cython.int
        count: cython.Py_ssize_t = 0
        child: cython.pointer(Node) = field.node.children
        had: cython.Py_ssize_t = child.length
        at: cython.Py_ssize_t = field.first
        while at >= 0:
            if field.message != cython.NULL:
                code = self.emit_message(field, child, at, False, depth)
            elif self.pieces[at].data != cython.NULL and field.wire_type != 2:
                code = self.emit_packed(field, child, self.pieces[at].data, self.pieces[at].value)
            else:
                code = self.put_value(field, child, self.pieces[at].data, self.pieces[at].value)
            if code:
                self.path.append(f"[{child.length - had}]")
                return code
            at = self.pieces[at].next
            count += 1
        return end_list(field.node)

    def emit_packed(self, field, node, data, size):
        at: cython.Py_ssize_t = 0
        started: cython.Py_ssize_t
        value: cython.ulonglong = 0
        word: cython.uint
        self.work += size
        if field.wire_type != 0 and size % (8 if field.wire_type == 1 else 4):
            return self.fail(data, 0, -3)
        while at < size:
            if field.wire_type == 0:
                started = at
                at = read_varint(data, at, size, cython.address(value))
                if at < 0:
                    return self.fail(data, started, -1)
                value = number_of(field.read, value)
                if field.is_closed and find_name(field, cython.cast(cython.int, value)) < 0:
                    continue
            elif field.wire_type == 1:
                memcpy(cython.address(value), data + at, 8)
                at += 8
            else:
                memcpy(cython.address(word), data + at, 4)
                value = number_of(field.read, word)
                at += 4
            self.put_value(field, node, cython.NULL, value)
        return 0

    def emit_map(self, field, depth):
        code: cython.int
        entry: cython.pointer(Node) = field.node.children
        had: cython.Py_ssize_t = entry.length
        at: cython.Py_ssize_t = field.first
        while at >= 0:
            code = self.emit_message(field, entry, at, False, depth)
            if code:
                self.path.append(f"[{entry.length - had}]")
                return code
            at = self.pieces[at].next
        self.work += keep_last_entries(entry, had)
        return end_list(field.node)

    def put_value(self, field, node, data, value):
        bits: cython.uint
        single: cython.float
        bad: cython.Py_ssize_t
        wide: cython.ulonglong[2]
        if field.put == Put.INT:
            return put_int(node, cython.cast(cython.int, value))
        elif field.put == Put.LONG:  # noqa: RET505 - a switch, to C
            return put_long(node, cython.cast(cython.longlong, value))
        elif field.put == Put.TEXT:
            bad = find_no_utf8(data, value)
            if bad >= 0 and not self.is_dry:
                return self.fail(data, bad, -8)
            return put_bytes(node, data, value)
        elif field.put == Put.BINARY:
            return put_bytes(node, data, value)
        elif field.put == Put.BOOL:
            return put_bool(node, value != 0)
        elif field.put == Put.NAME:
            return self.put_name(field, node, cython.cast(cython.int, value))
        elif field.put == Put.FLOAT:
            bits = cython.cast(cython.uint, value)
            memcpy(cython.address(single), cython.address(bits), 4)
            return put_double(node, single)
        elif field.put == Put.NUMBER:
            return put_double(node, cython.cast(cython.double, cython.cast(cython.longlong, value)))
        elif field.put == Put.DECIMAL:
            wide[0] = value
            wide[1] = 0
            return put_fixed(node, cython.cast(cython.p_uchar, cython.address(wide[0])))
        return 0

    def put_name(self, field, node, number):
        at: cython.int = find_name(field, number)
        if at >= 0:
            return put_bytes(node, field.names[at].data, field.names[at].size)
        name: bytes = b"%b%d" % (field.unknown.data[: field.unknown.size], number)
        return put_bytes(node, cython.cast(cython.p_uchar, name), len(name))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def number_of(read: Read, value: cython.ulonglong) -> cython.ulonglong:
    word: cython.uint
    if read == Read.AS_IS:
        return value
    if read == Read.SIGNED32:
        return cython.cast(
            cython.ulonglong, cython.cast(cython.longlong, cython.cast(cython.int, cython.cast(cython.uint, value)))
        )
    if read == Read.UNSIGNED32:
        return cython.cast(cython.uint, value)
    if read == Read.TRUTH:
        return value != 0
    if read == Read.ZIGZAG64:
        return (value >> 1) ^ (0 - (value & 1))
    word = cython.cast(cython.uint, value)
    word = (word >> 1) ^ (0 - (word & 1))
    return cython.cast(cython.ulonglong, cython.cast(cython.longlong, cython.cast(cython.int, word)))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def find_field(message: cython.pointer(Message), number: cython.uint) -> cython.pointer(Field):
    low: cython.int
    high: cython.int
    middle: cython.int
    at: cython.int
    if number < message.table_size:
        at = message.table[number]
        return message.fields + at - 1 if at else cython.NULL
    low, high = 0, message.count
    while low < high:
        middle = (low + high) // 2
        if message.fields[message.order[middle]].number < number:
            low = middle + 1
        else:
            high = middle
    if low < message.count and message.fields[message.order[low]].number == number:
        return message.fields + message.order[low]
    return cython.NULL


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def find_name(field: cython.pointer(Field), number: cython.int) -> cython.int:
    low: cython.int = 0
    high: cython.int = field.num_names
    middle: cython.int
    # Most enums count from 0 upwards.
    if 0 <= number < high and field.numbers[number] == number:
        return number
    while low < high:
        middle = (low + high) // 2
        if field.numbers[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < field.num_names and field.numbers[low] == number else -1


@cython.cfunc
@cython.exceptval(check=False)
def forget(message: cython.pointer(Message)) -> cython.void:
    at: cython.int
    message.is_dropped = False
    for at in range(message.count):
        message.fields[at].is_seen = False
        message.fields[at].first = -1


@cython.cfunc
@cython.exceptval(check=False)
def skip(
    data: cython.p_uchar,
    at: cython.Py_ssize_t,
    size: cython.Py_ssize_t,
    tag: cython.ulonglong,
    depth: cython.int,
    end: cython.pointer(cython.Py_ssize_t),
) -> cython.Py_ssize_t:
    """Return the end of the field whose tag ends at `at` (of a group's fields in `end`), or a code of `CORRUPT`."""
    value: cython.ulonglong = 0
    started: cython.Py_ssize_t = at
    wire_type: cython.int = tag & 7
    if wire_type == 0:
        return read_varint(data, at, size, cython.address(value))
    if wire_type == 2:
        at = read_varint(data, at, size, cython.address(value))
        if at < 0 or at - started > 5:
            return -1
        return -3 if value > cython.cast(cython.ulonglong, size - at) else at + value
    if wire_type == 1:
        return -3 if at + 8 > size else at + 8
    if wire_type == 5:
        return -3 if at + 4 > size else at + 4
    if wire_type != 3:
        return -4
    if not depth:
        return -6
    while True:
        if at >= size:
            return -5
        started = at
        at = read_varint(data, at, size, cython.address(value))
        if at < 0 or at - started > 5:
            return -1
        # As in protobuf's C runtime, the field number 0 is invalid except in skipped fields.
        if value >> 32:
            return -2
        if value == tag + 1:
            end[0] = started
            return at
        at = skip(data, at, size, value, depth - 1, end)
        if at < 0:
            return at
