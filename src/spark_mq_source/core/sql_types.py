"""Spark's SQL types as Arrow's, where there is no Spark to ask: the few that formats have columns of."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

__all__ = ["arrow_schema_of"]

_SIMPLE: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}

_BETWEEN_FIELDS = re.compile(r",(?![^<]*>)")


def arrow_schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema of columns given as name and SQL type.

    Raises:
        KeyError: a type that no format has.

    Example:
        >>> arrow_schema_of({"id": "struct<ledger:bigint,entry:bigint>"}).field("id").type
        StructType(struct<ledger: int64, entry: int64>)
    """
    return pa.schema([(name, _arrow_type(text)) for name, text in columns.items()])


def _arrow_type(text: str) -> pa.DataType:
    kind, _, inner = text.removesuffix(">").partition("<")
    if kind == "struct":
        fields = (field.split(":", 1) for field in _BETWEEN_FIELDS.split(inner))
        return pa.struct([(name, _arrow_type(type_)) for name, type_ in fields])
    if kind == "map":
        key, value = _BETWEEN_FIELDS.split(inner)
        return pa.map_(_arrow_type(key), _arrow_type(value))
    return _SIMPLE[text]
