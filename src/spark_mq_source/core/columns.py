"""Arrow columns of a RecordBatch, built from the values that a decoder collected, for every format.

Compiled loops pass raw buffers: nothing is copied, and the arrays keep the buffers alive. Python loops pass lists.
Columns with one value in all rows, such as the topic's name, are `ConstantColumn`.

Every array, children included, takes its type from the schema that Spark gave. Spark compares schemas with
``pa.Schema.equals``, which also compares the names and nullability of the inner fields of maps and structs.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.core.options import similar
from spark_mq_source.core.sql_types import matches

RequestedColumn = tuple[str, str, Callable[[str], bool]]
"""A column of a schema, for `ColumnTable.problems`."""

KEY = "key"
VALUE = "value"
SCHEMA_VERSION = "schema_version"
CORRUPT = "_corrupt"
ERROR = "_error"

MAX_COLUMN_BYTES = 2**31 - 1
"""The maximum bytes of one binary, string or map column of a batch: Arrow's offsets are signed 32-bit integers."""


def too_large() -> UnwritableRowError:
    """Return the error for values that do not fit in one array."""
    return UnwritableRowError(
        f"the rows of a batch hold more than the {MAX_COLUMN_BYTES} bytes that can be written together: lower "
        f"spark.sql.execution.arrow.maxRecordsPerBatch"
    )


def is_text(type_: pa.DataType) -> bool:
    """Return whether the type is Arrow's ``string`` (with 32-bit offsets)."""
    return bool(pa.types.is_string(type_))


def is_text_or_binary(type_: pa.DataType) -> bool:
    """Return whether the type is Arrow's ``string`` or ``binary`` (with 32-bit offsets)."""
    return bool(pa.types.is_string(type_) or pa.types.is_binary(type_))


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a format.

    Attributes:
        read_as: SQL types it can be read as, the default first; empty if it cannot be read.
        written_from: SQL types it can be written from; empty if it cannot be written.
        by_default: whether it is read if the user names no columns.
        note: text that the reference adds for readers, in Markdown.
        write_note: text that the reference adds for writers, in Markdown.
    """

    name: str
    read_as: Sequence[str] = ()
    written_from: Sequence[str] = ()
    by_default: bool = True
    required: bool = False
    note: str = ""
    write_note: str = ""


CORRUPT_COLUMNS = (
    Column(CORRUPT, ("binary",), by_default=False, note="with `onCorrupt=null`: the bytes that cannot be decoded"),
    Column(
        ERROR, ("string",), by_default=False, note="with `onCorrupt=null`: the reason; NULL if the message was decoded"
    ),
)
"""The columns of every format for messages that cannot be decoded."""


class ColumnTable:
    """The columns of a format: their SQL types for Spark, and the types that a user may request.

    Args:
        columns: all columns; the readable ones in the order of reading.
        position: the columns that contain the position of a message, for errors.
        properties: the column with the properties of a message; empty if messages have none.

    Attributes:
        readable: the SQL types that each column can be read as, the default first.
        default: the columns that are read if the user selects none, in order.
        writable: the SQL types that each column can be written from.
        required: the columns that rows to be written must have.

    Example:
        >>> value = Column("value", read_as=("binary", "string"), written_from=("binary",))
        >>> table = ColumnTable(value, Column("n", ("int",), by_default=False))
        >>> table.default, list(table.writable)
        (('value',), ['value'])
        >>> table.check(pa.schema([("n", pa.int64())]))
        Traceback (most recent call last):
        ...
        spark_mq_source.OptionError: column n is int64, expected int
    """

    def __init__(self, *columns: Column, position: Sequence[str] = (), properties: str = "") -> None:
        self.columns = columns
        self.position = position
        self.properties = properties
        self.readable: Mapping[str, Sequence[str]] = {one.name: one.read_as for one in columns if one.read_as}
        self.default = tuple(one.name for one in columns if one.read_as and one.by_default)
        self.writable: Mapping[str, Sequence[str]] = {one.name: one.written_from for one in columns if one.written_from}
        self.required = tuple(one.name for one in columns if one.required)

    def check(self, schema: pa.Schema, *, written: bool = False) -> None:
        """Refuse a schema with columns or types that cannot be read or written, or without a column to be written.

        Raises:
            OptionError: names every unknown, unusable and missing column, and the known columns.
        """
        asked = [(field.name, str(field.type), partial(matches, field.type)) for field in schema]
        if problems := self.problems(asked, written=written):
            raise OptionError("; ".join(problems))

    def problems(self, asked: Sequence[RequestedColumn], *, written: bool = False) -> list[str]:
        """Return the problems with the columns of a schema.

        Args:
            asked: each column's name, its type as an error shows it, and a function that returns whether Spark turns a
                given SQL type into that type.
            written: whether rows are written; they are read otherwise.
        """
        known, required = (self.writable, self.required) if written else (self.readable, ())
        problems = []
        for name, type_, fits in asked:
            types = known.get(name)
            if types is None:
                hint = f", did you mean {meant}?" if (meant := similar(name, known)) else ""
                problems.append(f"column {name} is unknown (known: {', '.join(known)}){hint}")
            elif not any(map(fits, types)):
                hint = f"; set {name}Format to write a struct" if written and type_.startswith("struct") else ""
                if type_ == "timestamp_ntz":
                    hint = "; in a schema, timestamp_ltz is one, whatever spark.sql.timestampType is"
                problems.append(f"column {name} is {type_}, expected {' or '.join(types)}{hint}")
        names = [name for name, _, _ in asked]
        problems += [f"column {name} is named twice" for name in sorted({n for n in names if names.count(n) > 1})]
        return problems + [f"there is no column {name} to write" for name in required if name not in names]


def fixed_row_bytes(type_: pa.DataType) -> int:
    """Return the bytes that one row of this type takes without its variable part (with offsets, without validity bits).

    Example:
        >>> fixed_row_bytes(pa.int64()), fixed_row_bytes(pa.binary())
        (8, 4)
    """
    if pa.types.is_struct(type_):
        return sum(fixed_row_bytes(type_.field(i).type) for i in range(type_.num_fields))
    if is_text_or_binary(type_) or pa.types.is_map(type_):
        return 4
    return int(type_.bit_width) // 8


class ConstantColumn:
    """A column with the same value in every row: built once and sliced for each batch, so that a row costs nothing.

    Example:
        >>> topic = ConstantColumn("t", pa.string())
        >>> topic.take(2).to_pylist()
        ['t', 't']
    """

    def __init__(self, value: str | int, type_: pa.DataType) -> None:
        self._type = type_
        self._cell = (
            value.encode() if isinstance(value, str) else value.to_bytes(type_.bit_width // 8, "little", signed=True)
        )
        self._rows = pa.nulls(0, type_)

    def take(self, rows: int) -> pa.Array:
        """Return the column with `rows` rows."""
        if rows > len(self._rows):
            # Twice as many rows, so that slowly growing batches do not rebuild the column each time.
            self._rows = self._repeat(max(2 * len(self._rows), rows))
        return self._rows.slice(0, rows)

    def _repeat(self, rows: int) -> pa.Array:
        # From buffers: pa.scalar and pa.array import pandas if it is installed, which takes a worker seconds.
        data = pa.py_buffer(self._cell * rows)
        if not is_text(self._type):
            return pa.Array.from_buffers(self._type, rows, [None, data])
        width = len(self._cell)
        offsets = array("i", range(0, (rows + 1) * width, width) if width else bytes(4 * (rows + 1)))
        return pa.Array.from_buffers(self._type, rows, [None, pa.py_buffer(offsets), data])


def struct_array(type_: pa.DataType, children: Sequence[pa.Array]) -> pa.Array:
    """Make a struct array without NULLs from `children` of equal length, with the types of the struct's fields."""
    return pa.Array.from_buffers(type_, len(children[0]), [None], null_count=0, children=list(children))


def map_array(type_: pa.DataType, rows: int, offsets: pa.Buffer, keys: pa.Array, items: pa.Array) -> pa.Array:
    """Make a map array without NULLs: row i has the entries from ``offsets[i]`` (int32) up to ``offsets[i + 1]``."""
    entries = struct_array(type_.field(0).type, [keys, items])
    return pa.Array.from_buffers(type_, rows, [None, offsets], null_count=0, children=[entries])


class SparseColumns:
    """Columns with values in few rows; the loops over rows do not fill them.

    Args:
        schema: all columns of the batches.
        names: the sparse columns; the schema may lack some.

    Attributes:
        dense: the other columns, which the loops fill.

    Example:
        >>> sparse = SparseColumns(pa.schema([("a", pa.int64()), ("why", pa.string())]), ["why"])
        >>> sparse.put("why", 1, "late", 4)
        >>> [column.to_pylist() for column in sparse.among([pa.array([7, 8])], 2)]
        [[7, 8], [None, 'late']]
    """

    def __init__(self, schema: pa.Schema, names: Sequence[str]) -> None:
        self._fields = {field.name: field for field in schema if field.name in names}
        self._places = {name: schema.get_field_index(name) for name in self._fields}
        self._cells: dict[str, dict[int, Any]] = {name: {} for name in self._fields}
        self.dense = pa.schema([field for field in schema if field.name not in names])
        self.nbytes = 0

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    def __bool__(self) -> bool:
        return bool(self._fields)

    def put(self, name: str, row: int, cell: Any, nbytes: int) -> None:  # noqa: ANN401 - any value of the column's type
        """Set a cell; ignore a column that the schema does not have."""
        if name in self._fields:
            self._cells[name][row] = cell
            self.nbytes += nbytes

    def among(self, arrays: list[pa.Array], rows: int) -> list[pa.Array]:
        """Return the dense arrays with the sparse columns inserted in the schema's order, and start over."""
        for name, field in self._fields.items():
            cells = self._cells[name]
            # In the schema's order, so that each index is final.
            arrays.insert(
                self._places[name],
                _array_of_cells(cells, rows, field.type),
            )
            self._cells[name] = {}
        self.nbytes = 0
        return arrays


class ColumnDecoder:
    """The rows that a loop has decoded, until they are taken as a batch; see each format's decoder."""

    _columns: Any
    """The loop's columns, with the dense ones of the schema."""

    def __init__(self, schema: pa.Schema, table: ColumnTable, sparse: Sequence[str] = ()) -> None:
        table.check(schema)
        self._schema = schema
        self._sparse = SparseColumns(schema, sparse)

    @property
    def rows(self) -> int:
        """Rows decoded and not yet taken."""
        return self._columns.rows  # type: ignore[no-any-return] # of the loop

    @property
    def nbytes(self) -> int:
        """Bytes of these rows in Arrow's buffers, without columns that never change."""
        return self._columns.nbytes + self._sparse.nbytes  # type: ignore[no-any-return] # of the loop

    def take_batch(self) -> pa.RecordBatch:
        """Return every row decoded so far, and start over. The compiled loops copy nothing."""
        rows = self._columns.rows
        return record_batch(self._schema, self._sparse.among(self._columns.take_arrays(), rows), rows)


def _array_of_cells(cells: Mapping[int, Any], rows: int, type_: pa.DataType) -> pa.Array:
    if not cells:
        return pa.nulls(rows, type_)
    if is_text_or_binary(type_):
        return text_array(cells, rows, type_)
    return pa.array(map(cells.get, range(rows)), type_)


# From buffers: pa.array imports pandas if it is installed, which takes a worker seconds.
def text_array(cells: Mapping[int, str | bytes | None], rows: int, type_: pa.DataType) -> pa.Array:
    """Return an array of text or binary with these cells by row; NULL in other rows.

    Example:
        >>> text_array({1: "late"}, 3, pa.string()).to_pylist()
        [None, 'late', None]
    """
    offsets = array("i")
    valid = bytearray(rows // 8 + 1)
    texts: list[bytes] = []
    end = 0
    for row, cell in sorted(cells.items()):
        if cell is not None:
            texts.append(cell.encode() if isinstance(cell, str) else cell)
            valid[row >> 3] |= 1 << (row & 7)
            offsets.extend(array("i", [end]) * (row + 1 - len(offsets)))
            end += len(texts[-1])
    offsets.extend(array("i", [end]) * (rows + 1 - len(offsets)))
    buffers = [pa.py_buffer(valid), pa.py_buffer(offsets), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(type_, rows, buffers, null_count=rows - len(texts))


def int_array(numbers: Iterable[int], type_: pa.DataType) -> pa.Array:
    """Return an array of integers of 32 or 64 bits without NULLs.

    Example:
        >>> int_array([1, 2], pa.int32()).to_pylist()
        [1, 2]
    """
    values = array("i" if type_.bit_width == 32 else "q", numbers)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def fixed_cells(data: array[int], rows: int) -> pa.Array:
    r"""Return a binary array whose rows have the same number of the bytes of `data`.

    Example:
        >>> fixed_cells(array("b", [1, 2, 3, 4]), 2).to_pylist()
        [b'\x01\x02', b'\x03\x04']
    """
    width = data.itemsize * len(data) // max(rows, 1)
    offsets = array("i", range(0, rows * width + 1, width or 1))
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def map_array_of(rows: Sequence[Mapping[bytes, bytes]], type_: pa.DataType) -> pa.Array:
    """Make a map array without NULLs from one mapping per row, whose keys and values are UTF-8 already.

    Example:
        >>> map_array_of([{b"k": b"v"}, {}], pa.map_(pa.string(), pa.string())).to_pylist()
        [[('k', 'v')], []]
    """
    offsets = [0]
    keys: list[bytes] = []
    items: list[bytes] = []
    for row in rows:
        keys += row
        items += row.values()
        offsets.append(len(keys))
    return map_array(
        type_,
        len(rows),
        pa.py_buffer(array("i", offsets)),
        text_array(dict(enumerate(keys)), len(keys), type_.key_type),
        text_array(dict(enumerate(items)), len(items), type_.item_type),
    )


def record_batch(schema: pa.Schema, arrays: Sequence[pa.Array], rows: int) -> pa.RecordBatch:
    """Make a batch of `arrays` with exactly `schema`; `rows` is its length if it has no column."""
    if not arrays:
        # Spark requests no column for a plain count(), but the batch must have the number of rows.
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    return pa.RecordBatch.from_arrays(list(arrays), schema=schema)


def without_large_types(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows with 32-bit offsets; `spark.sql.execution.arrow.useLargeVarTypes` makes 64-bit ones.

    Raises:
        UnwritableRowError: a column is too large for 32-bit offsets.

    Example:
        >>> batch = pa.record_batch({"value": pa.array([b"a"], pa.large_binary()), "n": pa.array([1])})
        >>> without_large_types(batch).schema.types
        [DataType(binary), DataType(int64)]
    """
    types = [_with_small_offsets(type_) for type_ in batch.schema.types]
    if types == batch.schema.types:
        return batch
    fields = [field.with_type(type_) for field, type_ in zip(batch.schema, types, strict=True)]
    try:
        arrays = [column.cast(type_) for column, type_ in zip(batch.columns, types, strict=True)]
    except pa.ArrowInvalid as error:
        raise too_large() from error
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _with_small_offsets(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_large_binary(type_):
        return pa.binary()
    if pa.types.is_large_string(type_):
        return pa.string()
    if pa.types.is_map(type_):
        return pa.map_(_field_with_small_offsets(type_.key_field), _field_with_small_offsets(type_.item_field))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return pa.list_(_field_with_small_offsets(type_.value_field))
    if pa.types.is_struct(type_):
        return pa.struct([_field_with_small_offsets(type_.field(n)) for n in range(type_.num_fields)])
    return type_


def _field_with_small_offsets(field: pa.Field) -> pa.Field:
    return field.with_type(_with_small_offsets(field.type))


def rows_by_topic(
    column: pa.Array | None, rows: int, default: str | None, format_name: str
) -> Iterator[tuple[str, array[int] | None]]:
    """Yield each topic of the rows to write, with the numbers of its rows; None if all rows have the topic.

    Args:
        column: the topic of each row, NULL for the default; None if there is no such column.
        rows: the number of rows.
        default: the option `topic`.
        format_name: name of the format, for errors.

    Raises:
        UnwritableRowError: a row has no topic.

    Example:
        >>> [(name, order and list(order)) for name, order in rows_by_topic(pa.array(["a", None, "a"]), 3, "b", "nsq")]
        [('a', [0, 2]), ('b', [1])]
    """
    orders: dict[str | None, array[int]] = {}
    if column is None:
        yield default_topic(default, format_name), None
        return
    for row, name in enumerate(column.to_pylist()):
        orders.setdefault(name, array("i")).append(row)
    for name, order in orders.items():
        yield default_topic(default, format_name) if name is None else name, None if len(order) == rows else order


def default_topic(default: str | None, format_name: str) -> str:
    """Return the topic of rows without a topic.

    Raises:
        UnwritableRowError: the option `topic` is not set.
    """
    if default is None:
        raise UnwritableRowError(f"{format_name}: a row has no topic: set the option topic, or the column")
    return default


def version_name(version: bytes) -> str:
    """Return a schema version as text: a number if the broker encodes it in 8 bytes, or else hexadecimal.

    Example:
        >>> version_name((2).to_bytes(8, "big")), version_name(b"?")
        ('2', '0x3f')
    """
    return str(int.from_bytes(version, "big")) if len(version) == 8 else f"0x{version.hex()}"
