"""Spark's SQL types as Arrow's, where there is no Spark to ask: the few that formats have columns of."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

_SIMPLE: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}


def arrow_schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """The Arrow schema of columns given as name and SQL type.

    Raises:
        KeyError: a type that no format has.

    Example:
        >>> arrow_schema_of({"id": "struct<ledger:bigint,entry:bigint>"}).field("id").type
        StructType(struct<ledger: int64, entry: int64>)
        >>> str(arrow_schema_of({"a": "array<struct<m:map<string,string>,n:int>>"}).field("a").type)
        'list<item: struct<m: map<string, string>, n: int32>>'
    """
    return pa.schema([(name, _arrow_type(text)) for name, text in columns.items()])


def _arrow_type(text: str) -> pa.DataType:
    kind, _, inner = text.partition("<")
    inner = inner.removesuffix(">")
    if kind == "struct":
        fields = (field.split(":", 1) for field in _fields(inner))
        return pa.struct([(name, _arrow_type(type_)) for name, type_ in fields])
    if kind == "map":
        key, value = _fields(inner)
        return pa.map_(_arrow_type(key), _arrow_type(value))
    if kind == "array":
        return pa.list_(_arrow_type(inner))
    return _SIMPLE[text]


def _fields(inner: str) -> list[str]:
    """What stands between the commas that are not within ``<>``."""
    fields = [""]
    depth = 0
    for character in inner:
        depth += (character == "<") - (character == ">")
        if character == "," and not depth:
            fields.append("")
        else:
            fields[-1] += character
    return fields
