"""Nested Arrow arrays under construction, compiled: Cython's pure-Python mode, C types in ``_tree_native.pxd``."""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values._tree_native is not compiled")

import pyarrow as pa
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp, memmove, memset
from cython.cimports.spark_mq_source.core._checked import IS_CHECKED, check, must
from cython.cimports.spark_mq_source.core._columns_native import allocate, hand_over, resize

from spark_mq_source.core._columns_python import column_overflow
from spark_mq_source.core.columns import MAX_COLUMN_BYTES

# More keys than this are compared by hash, not each with all others.
_FEW_KEYS = cython.declare(cython.Py_ssize_t, 16)
_MIN_VALUES = cython.declare(cython.Py_ssize_t, 64)
_MIN_BYTES = cython.declare(cython.Py_ssize_t, 256)
_MAX_BYTES = cython.declare(cython.Py_ssize_t, MAX_COLUMN_BYTES)


@cython.cclass
class Tree:
    """An array of one type that grows value by value; its root is ``nodes[0]``.

    Args:
        type_: the Arrow type of a value: structs, lists and maps at any depth, of booleans, text, binary, and types of
            a fixed width.
    """

    def __init__(self, type_):
        self.type = type_
        count: cython.Py_ssize_t = _count_nodes(type_)
        self.nodes = cython.cast(cython.pointer(Node), allocate(count, cython.sizeof(Node)))
        self.num_nodes = count
        free_at: cython.Py_ssize_t = 1
        # Breadth first, so that the children of a node are consecutive.
        types: list = [type_]
        at: cython.Py_ssize_t
        for at in range(count):
            node: cython.pointer(Node) = self.nodes + at
            children = children_of(types[at])
            _describe(node, types[at])
            node.children = self.nodes + free_at
            node.count = len(children)
            free_at += len(children)
            types.extend(children)

    def __dealloc__(self):
        self.clear()
        free(self.nodes)

    def take(self):
        """Return the values as an Arrow array, which owns them; the tree is empty afterwards, even if this fails."""
        try:
            array = self.take_node(self.nodes, self.type)
        except BaseException:
            self.clear()
            raise
        if IS_CHECKED:
            array.validate(full=True)
        return array

    def clear(self):
        at: cython.Py_ssize_t
        node: cython.pointer(Node)
        for at in range(self.num_nodes):
            node = self.nodes + at
            free(node.valid)
            free(node.offsets)
            free(node.data)
            node.valid = node.data = cython.NULL
            node.offsets = cython.NULL
            node.length = node.capacity = node.nulls = node.used = node.room = 0

    def take_node(self, node, type_):
        types: list = children_of(type_)
        length = node.length
        nulls = node.nulls
        if IS_CHECKED:
            check_end(node)
        if node.kind == Kind.NOTHING:
            node.length = 0
            return pa.nulls(length, type_)
        children = [self.take_node(node.children + at, types[at]) for at in range(node.count)]
        if not length:
            return pa.nulls(0, type_)
        buffers: list = [None]
        if nulls:
            buffers[0] = hand_over(cython.cast(cython.pp_void, cython.address(node.valid)), (length + 7) // 8)
        if node.kind in (Kind.LIST, Kind.BYTES):
            buffers.append(hand_over(cython.cast(cython.pp_void, cython.address(node.offsets)), (length + 1) * 4))
        if node.kind == Kind.FIXED:
            buffers.append(hand_over(cython.cast(cython.pp_void, cython.address(node.data)), length * node.width))
        elif node.kind == Kind.BIT:
            buffers.append(hand_over(cython.cast(cython.pp_void, cython.address(node.data)), (length + 7) // 8))
        elif node.kind == Kind.BYTES:
            if node.data:
                buffers.append(hand_over(cython.cast(cython.pp_void, cython.address(node.data)), node.used))
            else:
                buffers.append(pa.py_buffer(b""))
        node.length = node.capacity = node.nulls = node.used = node.room = 0
        return pa.Array.from_buffers(type_, length, buffers, null_count=nulls, children=children or None)


def children_of(type_):
    """Return the types of an Arrow type's children, in Arrow's order; a map has one, the struct of its entries."""
    if pa.types.is_struct(type_):
        return [type_.field(at).type for at in range(type_.num_fields)]
    if pa.types.is_map(type_):
        return [type_.field(0).type]
    return [type_.value_type] if pa.types.is_list(type_) else []


def _count_nodes(type_):
    return 1 + sum(map(_count_nodes, children_of(type_)))


@cython.cfunc
@cython.exceptval(-1)
def _describe(node: cython.pointer(Node), type_) -> cython.int:
    if pa.types.is_null(type_):
        node.kind = Kind.NOTHING
    elif pa.types.is_struct(type_):
        node.kind = Kind.STRUCT
    elif pa.types.is_map(type_) or pa.types.is_list(type_):
        node.kind = Kind.LIST
    elif pa.types.is_string(type_) or pa.types.is_binary(type_):
        node.kind = Kind.BYTES
    elif pa.types.is_boolean(type_):
        node.kind = Kind.BIT
    else:
        node.kind = Kind.FIXED
        node.width = type_.bit_width // 8
        node.is_floating = pa.types.is_floating(type_)
    return 0


def grow(node):
    had: cython.Py_ssize_t = node.capacity
    # Offsets count the values of a list's child, so no node may have more values than an offset can express.
    if node.length >= _MAX_BYTES:
        raise column_overflow("value", "maxBatchBytes")
    wanted: cython.Py_ssize_t = min(max(2 * had, _MIN_VALUES), _MAX_BYTES)
    if node.kind == Kind.FIXED:
        node.data = cython.cast(cython.p_uchar, resize(node.data, wanted * node.width))
    elif node.kind == Kind.BIT:
        node.data = cython.cast(cython.p_uchar, resize(node.data, wanted // 8 + 1))
    elif node.kind in (Kind.LIST, Kind.BYTES):
        node.offsets = cython.cast(cython.p_int, resize(node.offsets, (wanted + 1) * 4))
        node.offsets[0] = 0
    if node.valid:
        node.valid = cython.cast(cython.p_uchar, resize(node.valid, wanted // 8 + 1))
        memset(node.valid + had // 8 + 1, 0xFF, wanted // 8 - had // 8)
    node.capacity = wanted
    return 0


def grow_bytes(node, more):
    if more > _MAX_BYTES - node.used:
        raise column_overflow("value", "maxBatchBytes")
    room: cython.Py_ssize_t = min(max(node.used + more, 2 * node.room, _MIN_BYTES), _MAX_BYTES)
    node.data = cython.cast(cython.p_uchar, resize(node.data, room))
    node.room = room
    return 0


def put_null(node):
    """Append a NULL to a node; append one to a struct's children too, but not to a list's."""
    at: cython.Py_ssize_t
    reserve_value(node)
    if IS_CHECKED:
        check_end(node)
    if node.kind == Kind.STRUCT:
        for at in range(node.count):
            put_null(node.children + at)
    elif node.kind in (Kind.LIST, Kind.BYTES):
        node.offsets[node.length + 1] = node.offsets[node.length]
    elif node.kind == Kind.FIXED:
        memset(node.data + node.length * node.width, 0, node.width)
    elif node.kind == Kind.BIT:
        node.data[node.length >> 3] &= ~(1 << (node.length & 7))
    if node.kind != Kind.NOTHING:
        if not node.valid:
            node.valid = cython.cast(cython.p_uchar, resize(cython.NULL, node.capacity // 8 + 1))
            memset(node.valid, 0xFF, node.capacity // 8 + 1)
        node.valid[node.length >> 3] &= ~(1 << (node.length & 7))
        node.nulls += 1
    node.length += 1
    return 0


def check_end(node):
    """Check, in the checked build, that no value is unfinished, and that the children end with the last value."""
    end: cython.Py_ssize_t
    if node.kind == Kind.STRUCT:
        return check_children(node, node.length)
    if node.kind in (Kind.LIST, Kind.BYTES):
        end = node.children.length if node.kind == Kind.LIST else node.used
        return check(end == (node.offsets[node.length] if node.capacity else 0), "a value is unfinished")
    return 0


def truncate(node, length):
    """Remove all values of a node except the first `length`, and the values beneath them."""
    at: cython.Py_ssize_t
    must(0 <= length <= node.length, "more values are kept than there are")
    if node.kind == Kind.STRUCT:
        # The children of an unfinished struct have more values than the struct.
        for at in range(node.count):
            truncate(node.children + at, length)
    elif node.kind == Kind.LIST:
        truncate(node.children, node.offsets[length] if node.capacity else 0)
    elif node.kind == Kind.BYTES and node.length > length:
        node.used = node.offsets[length]
    if node.length <= length:
        return
    if node.nulls:
        for at in range(length, node.length):
            if not node.valid[at >> 3] >> (at & 7) & 1:
                node.nulls -= 1
                node.valid[at >> 3] |= 1 << (at & 7)
    node.length = length


def keep_values(node, start, marks):
    """Remove the values from `start` on without a mark, and those beneath them; return how many values were moved."""
    at: cython.Py_ssize_t
    inner: cython.Py_ssize_t
    first: cython.Py_ssize_t
    last: cython.Py_ssize_t
    beneath: cython.p_uchar = cython.NULL
    begin: cython.Py_ssize_t = 0
    to: cython.Py_ssize_t = start
    used: cython.Py_ssize_t = 0
    moved: cython.Py_ssize_t = node.length - start
    if node.kind == Kind.STRUCT:
        for at in range(node.count):
            moved += keep_values(node.children + at, start, marks)
    elif node.kind == Kind.LIST and node.length > start:
        begin = node.offsets[start]
        beneath = cython.cast(cython.p_uchar, allocate(node.offsets[node.length] - begin, 1))
        used = begin
    elif node.kind == Kind.BYTES and node.length > start:
        used = node.offsets[start]
    for at in range(start, node.length):
        if node.kind in (Kind.LIST, Kind.BYTES):
            first, last = node.offsets[at], node.offsets[at + 1]
        if not marks[at - start]:
            if node.nulls and not node.valid[at >> 3] >> (at & 7) & 1:
                node.nulls -= 1
            continue
        if node.kind == Kind.FIXED:
            memmove(node.data + to * node.width, node.data + at * node.width, node.width)
        elif node.kind == Kind.BIT:
            put_bit(node.data, to, node.data[at >> 3] >> (at & 7) & 1)
        elif node.kind == Kind.BYTES:
            if last > first:
                memmove(node.data + used, node.data + first, last - first)
            used += last - first
            node.offsets[to + 1] = cython.cast(cython.int, used)
        elif node.kind == Kind.LIST:
            for inner in range(first, last):
                beneath[inner - begin] = 1
            used += last - first
            node.offsets[to + 1] = cython.cast(cython.int, used)
        if node.valid:
            put_bit(node.valid, to, node.valid[at >> 3] >> (at & 7) & 1)
        to += 1
    if node.valid:
        # The bits of values to come must be set.
        for at in range(to, node.length):
            put_bit(node.valid, at, True)
    if node.kind == Kind.BYTES and node.length > start:
        node.used = used
    node.length = to
    if beneath != cython.NULL:
        try:
            moved += keep_values(node.children, begin, beneath)
        finally:
            free(beneath)
    return moved


def keep_last_entries(entries, start):
    """Remove the entries of a map from `start` on except the last of each key; return how many values were moved."""
    at: cython.Py_ssize_t
    keys: cython.pointer(Node) = entries.children
    count: cython.Py_ssize_t = entries.length - start
    if count < 2 or not has_twice(keys, start, entries.length):
        return 0
    found: set = set()
    marks: cython.p_uchar = cython.cast(cython.p_uchar, allocate(count, 1))
    try:
        for at in range(count - 1, -1, -1):
            key = key_at(keys, start + at)
            if key not in found:
                found.add(key)
                marks[at] = 1
        return keep_values(entries, start, marks)
    finally:
        free(marks)


@cython.cfunc
def key_at(node: cython.pointer(Node), at: cython.Py_ssize_t):
    if node.kind == Kind.BYTES:
        return node.data[node.offsets[at] : node.offsets[at + 1]]
    if node.kind == Kind.BIT:
        return node.data[at >> 3] >> (at & 7) & 1
    return node.data[at * node.width : (at + 1) * node.width]


@cython.cfunc
@cython.exceptval(check=False)
def is_same(node: cython.pointer(Node), one: cython.Py_ssize_t, other: cython.Py_ssize_t) -> cython.bint:
    size: cython.Py_ssize_t
    if node.kind == Kind.BYTES:
        size = node.offsets[one + 1] - node.offsets[one]
        if size != node.offsets[other + 1] - node.offsets[other]:
            return False
        # The data is NULL if all keys so far are empty.
        return not size or not memcmp(node.data + node.offsets[one], node.data + node.offsets[other], size)
    if node.kind == Kind.BIT:
        return (node.data[one >> 3] >> (one & 7) ^ node.data[other >> 3] >> (other & 7)) & 1 == 0
    return not memcmp(node.data + one * node.width, node.data + other * node.width, node.width)


@cython.cfunc
def has_twice(keys: cython.pointer(Node), start: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    one: cython.Py_ssize_t
    other: cython.Py_ssize_t
    if end - start > _FEW_KEYS:
        return len({key_at(keys, one) for one in range(start, end)}) < end - start
    for one in range(start + 1, end):
        for other in range(start, one):
            if is_same(keys, one, other):
                return True
    return False


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def put_bit(bits: cython.p_uchar, at: cython.Py_ssize_t, value: cython.bint) -> cython.void:
    if value:
        bits[at >> 3] |= 1 << (at & 7)
    else:
        bits[at >> 3] &= ~(1 << (at & 7))
