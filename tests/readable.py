"""Columns that tests read: all of a format's table, so that tests cover new ones."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from spark_mq_source.core.columns import ColumnTable
from spark_mq_source.core.sql_types import arrow_schema_of


def types_of(table: ColumnTable, *, without: Collection[str] = (), **others: str) -> dict[str, str]:
    """Return all columns that can be read and their types: the first one of each, or the one given."""
    types = {name: types[0] for name, types in table.readable.items() if name not in without}
    assert set(others) <= set(types)
    return types | others


def ddl_of(table: ColumnTable, *, without: Collection[str] = (), **others: str) -> str:
    """Return these columns as Spark writes a schema."""
    return ", ".join(f"{name} {type_}" for name, type_ in types_of(table, without=without, **others).items())


def schema_of(table: ColumnTable, *, without: Collection[str] = (), **others: str) -> pa.Schema:
    """Return these columns as Arrow's schema."""
    return arrow_schema_of(types_of(table, without=without, **others))
