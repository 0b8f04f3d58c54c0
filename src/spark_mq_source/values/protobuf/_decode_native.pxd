"""A plan of `protobuf.schema` in C, with the fields found in the current message."""

from spark_mq_source.core._wire cimport Slice
from spark_mq_source.values._loops_native cimport RowDecoder
from spark_mq_source.values._tree_native cimport Node


# The conversion of a number on the wire to a value; the plans of `protobuf.schema` have it by name.
cpdef enum Read:
    AS_IS
    SIGNED32
    UNSIGNED32
    ZIGZAG32
    ZIGZAG64
    TRUTH


# The form of a value in its column, likewise.
cpdef enum Put:
    NOWHERE  # no column
    INT  # or the bits of a float
    LONG  # or the bits of a double
    NUMBER  # an integer as a double
    FLOAT  # a float as a double
    DECIMAL
    BOOL
    BINARY
    TEXT
    NAME  # the name of an enum's number
    MICROS  # from seconds and nanoseconds
    STRUCT


# One occurrence of a repeated field or a message, in a linked list.
cdef struct Piece:
    unsigned char *data  # NULL for a number
    unsigned long long value  # the number, or the size of `data`
    Py_ssize_t next  # -1 at the end


# The members that are read for each field of each message come first.
cdef struct Field:
    unsigned int number
    int wire_type  # of a single value
    Read read
    Put put
    bint is_repeated
    bint is_map
    bint is_required
    bint is_implicit
    bint is_closed
    bint has_default
    int label  # index of its name in `ProtobufDecoder.labels`
    bint is_seen  # about the current message, like the next four members
    unsigned char *data
    unsigned long long value  # the number, or the size of `data`
    Py_ssize_t first  # index of its first piece; -1 without one
    Py_ssize_t last
    Message *message
    Node *node
    Field *sibling  # the next field of its oneof, in a ring; NULL without one
    # the value if absent
    unsigned char *default_data
    unsigned long long default_value
    # of an enum: its numbers in order, and their names
    int num_names
    int *numbers
    Slice *names
    Slice unknown


cdef struct Message:
    Field *fields
    int count
    int columns
    # the fields by number: `table` has 1 + an index, up to `table_size`; `order` lists the indices by number
    short *table
    unsigned int table_size
    short *order
    # about the current message
    bint is_dropped  # an entry of a map whose number is not in its closed enum


cdef class ProtobufDecoder(RowDecoder):
    cdef list labels
    cdef list kept
    cdef void **memory
    cdef Message *root
    cdef Piece *pieces
    cdef Py_ssize_t num_pieces
    cdef Py_ssize_t room
    cdef const unsigned char *base
    cdef bint is_dry  # values are only checked, and removed again
    cdef readonly long long work  # bytes of inner messages scanned, once per depth, plus values moved
    cdef int code  # of `CORRUPT`
    cdef Py_ssize_t where

    cdef void *take_memory(self, Py_ssize_t size) except NULL
    cdef Message *build_message(self, object plan, Node *nodes) except NULL
    cdef int build_field(self, Field *field, object plan, Node *node) except -99
    cdef int check_node(self, Field *field, object plan, Node *node) except -99
    cdef int build_default(self, Field *field, object default) except -99
    cdef int build_names(self, Field *field, object plan) except -99
    cdef int add_piece(self, Field *field, unsigned char *data, unsigned long long value) except -99
    cdef int scan(self, Message *message, unsigned char *data, Py_ssize_t size, int depth) except -99
    cdef int fail(self, const unsigned char *data, Py_ssize_t at, int code) except -99
    cdef int clear_others(self, Field *field, int depth) except -99
    cdef int scan_pieces(self, Message *message, Py_ssize_t piece, bint is_merged, int depth) except -99
    cdef int emit_fields(self, Message *message, int depth) except -99
    cdef int emit_field(self, Field *field, int depth) except -99
    cdef int emit_message(self, Field *field, Node *node, Py_ssize_t piece, bint is_merged, int depth) except -99
    cdef int emit_elements(self, Field *field, int depth) except -99
    cdef int emit_packed(self, Field *field, Node *node, unsigned char *data, Py_ssize_t size) except -99
    cdef int emit_map(self, Field *field, int depth) except -99
    cdef int put_value(self, Field *field, Node *node, unsigned char *data, unsigned long long value) except -99
    cdef int put_name(self, Field *field, Node *node, int number) except -99
