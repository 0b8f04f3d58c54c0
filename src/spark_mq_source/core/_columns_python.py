"""Columns under construction, written for the interpreter, for the decoders of all formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core.columns import (
    MAX_COLUMN_BYTES,
    ConstantColumn,
    fixed_row_bytes,
    is_text,
    is_text_or_binary,
    map_array_of,
    struct_array,
)
from spark_mq_source.core.errors import UnsupportedFeatureError

Part = tuple[str, pa.DataType, pa.DataType | None]
"""The name of a part, its type, and the type of the struct or map that contains it."""

_ENTRY_BYTES: Final = 8
"""The bytes that one map entry adds to `nbytes` besides its text: two offsets."""


class Columns:
    """Collector of rows of the requested columns until `take_arrays`; each format adds rows in its own way.

    Args:
        schema: exactly the requested columns, with types that the format's table allows.
        constants: the values of columns that have the same value in every row.
        remedy: the options to lower if a column overflows.

    Attributes:
        rows: number of rows since the last `take_arrays`.
        nbytes: approximate size of these rows in Arrow, without constant columns.
    """

    def __init__(self, schema: pa.Schema, constants: Mapping[str, str | int], remedy: str = "maxBatchBytes") -> None:
        self._schema = schema
        self._remedy = remedy
        self._constant, self._row_bytes, parts = layout_of(schema, constants)
        self._names = [name for name, _, parent in parts if parent is None or pa.types.is_struct(parent)]
        self._maps = [name for name, type_, _ in parts if pa.types.is_map(type_)]
        self._texts = [name for name, type_, _ in parts if is_text(type_)]
        self._sized = [name for name, type_, parent in parts if parent is None and is_text_or_binary(type_)]
        self._start_over()

    def _start_over(self) -> None:
        # A struct has one list for each field; a map's cells are mappings of bytes.
        self._cells: dict[str, list[Any]] = {name: [] for name in self._names}
        self._used = dict.fromkeys([*self._sized, *self._maps], 0)
        self.rows = 0
        self.nbytes = 0

    def _add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows, each with a cell for every name in `_cells`; other cells are ignored.

        Raises:
            RuntimeError: a row lacks a cell.
            UnsupportedFeatureError: a column would pass 2 GiB; nothing was added.
        """
        missing = next((name for name in self._names if any(name not in row for row in rows)), None)
        if missing is not None:
            raise unfilled(missing)
        sizes = {name: sum(len(row[name] or b"") for row in rows) for name in self._sized}
        for name in self._maps:
            sizes[name] = sum(len(key) + len(item) for row in rows for key, item in row[name].items())
        for name, size in sizes.items():
            if self._used[name] + size > MAX_COLUMN_BYTES:
                raise column_overflow(name, self._remedy)
        for name, size in sizes.items():
            self._used[name] += size
        for name, cells in self._cells.items():
            cells.extend([row[name] for row in rows])
        entries = sum(len(row[name]) for row in rows for name in self._maps)
        self.rows += len(rows)
        self.nbytes += len(rows) * self._row_bytes + sum(sizes.values()) + entries * _ENTRY_BYTES

    def take_arrays(self) -> list[pa.Array]:
        """Return every pending row, one array for each column in the schema's order, and start over."""
        arrays = []
        for field in self._schema:
            if field.name in self._constant:
                array = self._constant[field.name].take(self.rows)
            elif pa.types.is_struct(field.type):
                array = struct_array(
                    field.type, [pa.array(self._cells[name], type_) for name, type_, _ in parts_of(field)]
                )
            elif pa.types.is_map(field.type):
                array = map_array_of(self._cells[field.name], field.type)
            else:
                array = pa.array(self._cells[field.name], field.type)
            arrays.append(array)
        self._start_over()
        return arrays


def layout_of(
    schema: pa.Schema, constants: Mapping[str, str | int]
) -> tuple[dict[str, ConstantColumn], int, list[Part]]:
    """Return the constant columns, the fixed bytes of a row of the other columns, and the parts of these.

    Example:
        >>> constant, row_bytes, parts = layout_of(pa.schema({"topic": pa.string(), "at": pa.int64()}), {"topic": "t"})
        >>> list(constant), row_bytes, [name for name, _, _ in parts]
        (['topic'], 8, ['at'])
    """
    constant = {
        name: ConstantColumn(value, schema.field(name).type)
        for name, value in constants.items()
        if name in schema.names
    }
    built = [field for field in schema if field.name not in constant]
    return (
        constant,
        sum(fixed_row_bytes(field.type) for field in built),
        [p for field in built for p in parts_of(field)],
    )


def parts_of(field: pa.Field) -> list[Part]:
    """Return the parts that a column is built of: each part's name, its type, and the struct or map that contains it.

    Example:
        >>> [name for name, _, _ in parts_of(pa.field("id", pa.struct({"a": pa.int32(), "b": pa.int64()})))]
        ['id.a', 'id.b']
        >>> [name for name, _, _ in parts_of(pa.field("m", pa.map_(pa.string(), pa.string())))]
        ['m', 'm.key', 'm.item']
    """
    name, type_ = field.name, field.type
    if pa.types.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return [(f"{name}.{child.name}", child.type, type_) for child in fields]
    if pa.types.is_map(type_):
        return [(name, type_, None), (f"{name}.key", type_.key_type, type_), (f"{name}.item", type_.item_type, type_)]
    return [(name, type_, None)]


def column_overflow(name: str, remedy: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"column {name.partition('.')[0]} would pass the 2 GiB that one Arrow batch can hold; lower {remedy}"
    )


def unfilled(name: str) -> RuntimeError:
    """Return the error for a column that the loop does not fill because the loop is older than the table of columns."""
    return RuntimeError(
        f"column {name.partition('.')[0]} is not filled by this build of the loops; "
        "run `make native` in a checkout, or install the package again"
    )
