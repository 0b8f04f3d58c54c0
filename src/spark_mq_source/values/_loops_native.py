"""The base of the compiled loops over values: Cython's pure-Python mode, C types in ``_loops_native.pxd``.

A decoder reads one payload, and an encoder writes one row; the loop over the rows is the same for all, with one virtual
call per row.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values._loops_native is not compiled")

import pyarrow as pa
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp
from cython.cimports.spark_mq_source.core._arrays import Cells, address_of, bind_cells, cell_at, is_valid
from cython.cimports.spark_mq_source.core._columns_native import allocate, hand_over, resize
from cython.cimports.spark_mq_source.core._wire import Slice, slice_of
from cython.cimports.spark_mq_source.values._tree_native import Node, Tree, put_null, truncate

from spark_mq_source.core.columns import MAX_COLUMN_BYTES, too_large
from spark_mq_source.core.errors import UnwritableRowError
from spark_mq_source.core.utf8 import is_utf8
from spark_mq_source.values.decoder import Decoded, reason_of

_MAX_BYTES = cython.declare(cython.Py_ssize_t, MAX_COLUMN_BYTES)
_MIN_ROOM = cython.declare(cython.Py_ssize_t, 4096)


@cython.cclass
class RowDecoder:
    """Decoder of payloads, one by one, into values of the Arrow type `type_`; see `ValueDecoder`."""

    def __init__(self, type_):
        self.type = type_
        self.tree = Tree(type_)
        self.path = []

    def decode(self, payloads):
        cells: Cells
        payload: Slice
        row: cython.Py_ssize_t
        root: cython.pointer(Node) = self.tree.nodes
        reasons: dict = {}
        bind_cells(cython.address(cells), payloads)
        try:
            for row in range(len(payloads)):
                payload = cell_at(cython.address(cells), row)
                if payload.data == cython.NULL:
                    put_null(root)
                elif not self.read_row(payload):
                    why = self.why(payload)
                    reasons[row] = reason_of(self.path, why)
                    self.path.clear()
                    truncate(root, row)
                    put_null(root)
        except BaseException:
            self.path.clear()
            truncate(root, 0)
            raise
        return Decoded(self.tree.take(), reasons)

    def read_row(self, payload):
        """Append a payload's value to the tree; return whether it is complete; if not, a part of it may be there."""
        raise NotImplementedError

    def why(self, payload):
        """Return the reason at `path` why the last payload cannot be decoded."""
        raise NotImplementedError


@cython.cclass
class RowEncoder:
    """Encoder of the rows of one array, concatenated.

    Args:
        step: the Python step that writes a value.
        array: the values.
    """

    def __init__(self, step, array):
        count: cython.Py_ssize_t = count_steps(step)
        self.steps = cython.cast(cython.pointer(WriteStep), allocate(count, cython.sizeof(WriteStep)))
        self.kept = []
        self.num_steps = 1
        self.described = [None] * count
        self.lay_out(self.steps, step, array)

    def __dealloc__(self):
        at: cython.Py_ssize_t
        for at in range(self.num_steps):
            free(self.steps[at].names)
            free(self.steps[at].numbers)
            free(self.steps[at].chosen)
        free(self.steps)
        free(self.out)

    def lay_out(self, step, described, array):
        """Fill a step and bind its column; do the same for its inner steps, which follow the steps used so far."""
        at: cython.Py_ssize_t
        self.described[step - self.steps] = described
        step.head = slice_of(described.head)
        step.count = len(described.steps)
        step.steps = self.steps + self.num_steps
        self.num_steps += step.count
        self.describe(step, described)
        type_ = pa.null() if array is None else array.type
        if not pa.types.is_null(type_):
            self.kept.append(array)
            _bind_array(cython.address(step.cells), array)
            step.is_checked = pa.types.is_string(type_) and not is_utf8(array)
        for at in range(step.count):
            one = described.steps[at]
            column = None
            if pa.types.is_list(type_):
                column = array.values
            elif pa.types.is_map(type_):
                column = array.items if at else array.keys
            elif one.column >= 0:
                column = array.field(one.column)
            self.lay_out(step.steps + at, one, column)
        return 0

    def describe(self, step, described):
        """Fill the code of a step, and the members that belong to this encoding."""
        raise NotImplementedError

    def encode(self, array):
        """Encode each value; NULL becomes NULL."""
        row: cython.Py_ssize_t
        rows: cython.Py_ssize_t = len(array)
        bit: cython.Py_ssize_t = array.offset
        valid: cython.p_uchar = address_of(array.buffers()[0]) if array.null_count else cython.NULL
        ends: cython.p_int = cython.cast(cython.p_int, resize(cython.NULL, (rows + 1) * 4))
        owned: cython.p_void = ends
        try:
            offsets = hand_over(cython.address(owned), (rows + 1) * 4)
        finally:
            free(owned)
        ends[0] = 0
        try:
            for row in range(rows):
                if is_valid(valid, bit + row):
                    self.put_row(row)
                ends[row + 1] = cython.cast(cython.int, self.used)
            data = pa.py_buffer(b"")
            if self.out != cython.NULL:
                data = hand_over(cython.cast(cython.pp_void, cython.address(self.out)), self.used)
                self.room = 0
        finally:
            # Even if a row cannot be encoded: the next array starts again.
            self.used = 0
        # A new validity bitmap, which begins with the array.
        bits = array.is_valid().buffers()[1] if array.null_count else None
        return pa.Array.from_buffers(pa.binary(), rows, [bits, offsets, data])

    def put_row(self, row):
        """Write a value that is not NULL."""
        raise NotImplementedError

    def grow(self, more):
        if more > _MAX_BYTES - self.used:
            raise too_large()
        room: cython.Py_ssize_t = min(max(2 * self.room, self.used + more, _MIN_ROOM), _MAX_BYTES)
        self.out = cython.cast(cython.p_uchar, resize(self.out, room))
        self.room = room
        return 0

    def refuse(self, step, why):
        """Raise the error for a value that a step cannot write."""
        raise UnwritableRowError(f"{self.described[step - self.steps].path} {why}")


def count_steps(described):
    """Return the number of steps, including inner steps."""
    count: cython.Py_ssize_t = 1
    for one in described.steps:
        count += count_steps(one)
    return count


@cython.cfunc
@cython.exceptval(-1)
def _bind_array(cells: cython.pointer(Cells), array) -> cython.int:
    """Bind the cells to an array of any type, which the caller keeps alive; a struct's values are in its fields."""
    type_ = array.type
    buffers = array.buffers()
    cells.bit = array.offset
    cells.valid = address_of(buffers[0]) if array.null_count else cython.NULL
    cells.offsets = cython.NULL
    cells.data = cython.NULL
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return bind_cells(cells, array)
    if pa.types.is_list(type_) or pa.types.is_map(type_):
        cells.offsets = cython.cast(cython.p_int, address_of(buffers[1]))
        if cells.offsets != cython.NULL:
            cells.offsets += cells.bit
    elif not pa.types.is_struct(type_):
        cells.data = address_of(buffers[1])
        # Booleans have a width of 0 bytes: they are bits, which also begin at `bit`.
        if cells.data != cython.NULL:
            cells.data += cells.bit * cython.cast(cython.Py_ssize_t, type_.bit_width // 8)
    return 0


def lay_out_texts(texts):
    """Return an array of slices, which the caller frees, of bytes that the caller keeps alive; absent for None."""
    at: cython.Py_ssize_t
    count: cython.Py_ssize_t = len(texts)
    if not count:
        return cython.NULL
    laid: cython.pointer(Slice) = cython.cast(cython.pointer(Slice), allocate(count, cython.sizeof(Slice)))
    for at, text in enumerate(texts):
        if text is not None:
            laid[at] = slice_of(text)
    return laid


def find_name(step, row):
    """Return the index of a text among the names of an enum; -1 if it is none of them."""
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t = step.cells.offsets[row + 1] - step.cells.offsets[row]
    text: cython.p_uchar = step.cells.data + step.cells.offsets[row]
    for at in range(step.num_names):
        if step.names[at].size == size and memcmp(step.names[at].data, text, size) == 0:
            return at
    return -1
