"""Nested Arrow arrays under construction: the compiled value decoders write into them.

A value is appended to a node and to all nodes beneath it: after a value of a struct, each of its children has one more
value; for a value of a list or map, `end_list` takes the values appended to its child.
"""

from libc.string cimport memcpy

from spark_mq_source.core._checked cimport IS_CHECKED, check


cdef enum Kind:
    FIXED  # `width` bytes per value
    BIT  # one bit per value: booleans
    BYTES  # text and binary
    LIST  # lists and maps: one child, in a map a struct of key and item
    STRUCT
    NOTHING  # Arrow's null type: only a length


# One array. `children` are `count` consecutive nodes.
cdef struct Node:
    Kind kind
    bint is_floating
    Py_ssize_t width
    Node *children
    Py_ssize_t count
    Py_ssize_t length  # values so far
    Py_ssize_t capacity  # number of values with reserved room, without the bytes of BYTES
    unsigned char *valid  # one bit per value; NULL until a value is null
    Py_ssize_t nulls
    int *offsets
    unsigned char *data
    Py_ssize_t used  # bytes in `data` of BYTES
    Py_ssize_t room


cdef int grow(Node *node) except -1
cdef int grow_bytes(Node *node, Py_ssize_t more) except -1
cdef int put_null(Node *node) except -1
cdef int check_end(Node *node) except -1
cdef void truncate(Node *node, Py_ssize_t length) noexcept
cdef Py_ssize_t keep_values(Node *node, Py_ssize_t start, const unsigned char *marks) except -1
cdef Py_ssize_t keep_last_entries(Node *entries, Py_ssize_t start) except -1


cdef inline int reserve_value(Node *node) except -1:
    if node.length == node.capacity:
        grow(node)
    return 0


cdef inline int check_fixed(Node *node, Py_ssize_t width) except -1:
    """Check, in the checked build, a write of `width` bytes."""
    check(node != NULL and node.kind == Kind.FIXED, "a value of a fixed width is put into a node of another kind")
    return check(node.width == width, "a value is put into a node of another width")


cdef inline int reserve_bytes(Node *node, Py_ssize_t more) except -1:
    if node.used + more > node.room:
        grow_bytes(node, more)
    return 0


cdef inline int put_int(Node *node, int value) except -1:
    if IS_CHECKED:
        check_fixed(node, 4)
    reserve_value(node)
    (<int *>node.data)[node.length] = value
    node.length += 1
    return 0


cdef inline int put_long(Node *node, long long value) except -1:
    if IS_CHECKED:
        check_fixed(node, 8)
    reserve_value(node)
    (<long long *>node.data)[node.length] = value
    node.length += 1
    return 0


cdef inline int put_float(Node *node, float value) except -1:
    if IS_CHECKED:
        check_fixed(node, 4)
        check(node.is_floating, "a floating-point number is put into a node of integers")
    reserve_value(node)
    (<float *>node.data)[node.length] = value
    node.length += 1
    return 0


cdef inline int put_double(Node *node, double value) except -1:
    if IS_CHECKED:
        check_fixed(node, 8)
        check(node.is_floating, "a floating-point number is put into a node of integers")
    reserve_value(node)
    (<double *>node.data)[node.length] = value
    node.length += 1
    return 0


cdef inline int put_fixed(Node *node, const unsigned char *value) except -1:
    """Append a value of the node's width in Arrow's form: little-endian."""
    check(node.kind == Kind.FIXED, "a value of a fixed width is put into a node of another kind")
    reserve_value(node)
    memcpy(node.data + node.length * node.width, value, node.width)
    node.length += 1
    return 0


cdef inline int put_bool(Node *node, bint value) except -1:
    cdef unsigned char bit = 1 << (node.length & 7)
    check(node.kind == Kind.BIT, "a boolean is put into a node of another kind")
    reserve_value(node)
    if value:
        node.data[node.length >> 3] |= bit
    else:
        node.data[node.length >> 3] &= ~bit
    node.length += 1
    return 0


cdef inline int check_bytes(Node *node) except -1:
    """Check, in the checked build, that bytes can be added."""
    check(node.kind == Kind.BYTES, "bytes are put into a node of another kind")
    return check(node.used == (node.offsets[node.length] if node.capacity else 0), "bytes do not begin at their offset")


cdef inline int end_bytes(Node *node, Py_ssize_t size) except -1:
    """Append a value whose bytes were written at `data + used`, into reserved room."""
    check(0 <= size and size <= node.room - node.used, "bytes are written for which no room was reserved")
    check(node.length < node.capacity, "a value is written for which no room was reserved")
    node.used += size
    node.length += 1
    node.offsets[node.length] = <int>node.used
    return 0


cdef inline int put_bytes(Node *node, const unsigned char *value, Py_ssize_t size) except -1:
    """Append a text, which must be UTF-8, or a binary value."""
    if IS_CHECKED:
        check(size >= 0, "bytes of a negative size are put into a node")
        check_bytes(node)
    reserve_value(node)
    if size:
        reserve_bytes(node, size)
        memcpy(node.data + node.used, value, size)
        node.used += size
    node.length += 1
    node.offsets[node.length] = <int>node.used
    return 0


cdef inline int end_list(Node *node) except -1:
    """Append a list or map of the values appended to its child since the last one."""
    reserve_value(node)
    check(node.kind == Kind.LIST, "a list is ended in a node of another kind")
    check(node.children.length >= node.offsets[node.length], "a list ends before it begins")
    node.length += 1
    node.offsets[node.length] = <int>node.children.length
    return 0


cdef inline int check_children(Node *node, Py_ssize_t length) except -1:
    """Check, in the checked build, that each child of a struct has `length` values."""
    cdef Py_ssize_t at
    for at in range(node.count):
        check(node.children[at].length == length, "the fields of a struct have other lengths than the struct")
    return 0


cdef inline int end_struct(Node *node) except -1:
    """Append a struct whose children have their values already."""
    if IS_CHECKED:
        check(node.kind == Kind.STRUCT, "a struct is ended in a node of another kind")
        check_children(node, node.length + 1)
    reserve_value(node)
    node.length += 1
    return 0


cdef class Tree:
    cdef readonly object type
    cdef Node *nodes
    cdef Py_ssize_t num_nodes

    cdef void clear(self) noexcept
    cdef object take_node(self, Node *node, type_)
