# cython: language_level=3, boundscheck=False, wraparound=False
"""What the assertions of the checked build must find: built with it alone, as spark_mq_source.core._checks.

Each function breaks one of the rules by which the loops write into columns.
"""

import pyarrow as pa

from spark_mq_source.core._checked cimport IS_CHECKED
from spark_mq_source.core._columns_native cimport Column, Columns, end_row, long_at, put, put_int, put_long, set_null
from spark_mq_source.values cimport _tree_native as tree
from spark_mq_source.values._tree_native cimport Node, Tree

SCHEMA = pa.schema([("number", pa.int64()), ("small", pa.int32()), ("text", pa.string())])
VALUE = pa.struct(
    [
        ("int", pa.int32()),
        ("long", pa.int64()),
        ("double", pa.float64()),
        ("float", pa.float32()),
        ("bool", pa.bool_()),
        ("bytes", pa.binary()),
        ("list", pa.list_(pa.int32())),
    ]
)
INT, LONG, DOUBLE, FLOAT, BOOL, BYTES, LIST, STRUCT = range(8)


def is_checked():
    return bool(IS_CHECKED)


def put_into_node(str what, int number):
    """Put a value into a field of VALUE, or into the struct itself: of another kind, an AssertionError."""
    cdef Tree values = Tree(VALUE)
    cdef Node *node = values.nodes if number == STRUCT else values.nodes.children + number
    cdef unsigned char data[16]
    if what == "int":
        tree.put_int(node, 1)
    elif what == "long":
        tree.put_long(node, 1)
    elif what == "float":
        tree.put_float(node, 1)
    elif what == "double":
        tree.put_double(node, 1)
    elif what == "fixed":
        tree.put_fixed(node, data)
    elif what == "bool":
        tree.put_bool(node, True)
    elif what == "bytes":
        tree.put_bytes(node, b"abc", 3)
    elif what == "list":
        tree.end_list(node)
    else:
        tree.end_struct(node)


def leave_item_without_list():
    """A list's item that belongs to no list, and then a null."""
    cdef Tree values = Tree(pa.list_(pa.int32()))
    tree.put_int(values.nodes.children, 1)
    tree.put_null(values.nodes)


def take_unfinished_struct():
    """A struct's field that has a value more than the struct."""
    cdef Tree values = Tree(pa.struct([("a", pa.int32())]))
    tree.put_null(values.nodes)
    tree.put_int(values.nodes.children, 1)
    values.take()


def take_text_that_is_none():
    """Bytes in a column of text that are not UTF-8: what `validate(full=True)` finds."""
    cdef Tree values = Tree(pa.string())
    tree.put_bytes(values.nodes, b"\xff", 1)
    values.take()


def end_bytes_beyond_room(Py_ssize_t size):
    cdef Tree values = Tree(pa.binary())
    tree.reserve_value(values.nodes)
    tree.reserve_bytes(values.nodes, 10)
    tree.end_bytes(values.nodes, size)


cdef class Probe(Columns):
    """Three columns, with room for some rows."""

    cdef Column *number
    cdef Column *small
    cdef Column *text

    def __init__(self, rows=64):
        Columns.__init__(self, SCHEMA, {})
        self.number, self.small, self.text = self.find("number"), self.find("small"), self.find("text")
        self.reserve_rows(rows)
        self.reserve(self.text, 256)

    def fill(self, rows):
        for row in range(rows):
            put_long(self.number, row, row)
            put_int(self.small, row, row)
            put(self.text, row, b"abc", 3)
        self.rows = rows
        return self.take_arrays()

    def break_rule(self, str rule):
        if rule == "width":
            put_int(self.number, 0, 1)
        elif rule == "capacity":
            for row in range(65):
                put_long(self.number, row, 1)
        elif rule == "gap":
            put_long(self.number, 1, 1)
        elif rule == "bytes":
            put(self.text, 0, b"a" * 257, 257)
        elif rule == "offset":
            put(self.text, 0, b"abc", 3)
            self.text.used = 0
            end_row(self.text, 1)
        elif rule == "nulls":
            put_long(self.number, 0, 1)
            set_null(self.number, 0)
            set_null(self.number, 0)
        elif rule == "read":
            long_at(self.number, 0)
        else:
            put_long(self.number, 0, 1)
            put_int(self.small, 0, 1)
            self.rows = 1
            self.take_arrays()


cdef class Forgetful(Columns):
    """A loop that fills one of three columns."""

    def __init__(self):
        Columns.__init__(self, SCHEMA, {})
        self.find("number")

    def use(self):
        self.reserve_rows(1)
