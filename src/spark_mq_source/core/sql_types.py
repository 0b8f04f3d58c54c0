"""Converts Spark's SQL types to Arrow's without Spark, for the types of the formats' columns."""

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
        KeyError: unsupported type.

    Example:
        >>> arrow_schema_of({"id": "struct<ledger:bigint,entry:bigint>"}).field("id").type
        StructType(struct<ledger: int64, entry: int64>)
        >>> str(arrow_schema_of({"a": "array<struct<m:map<string,string>,n:int>>"}).field("a").type)
        'list<item: struct<m: map<string, string>, n: int32>>'
    """
    return pa.schema([(name, _arrow_type(text)) for name, text in columns.items()])


def matches(type_: pa.DataType, text: str) -> bool:
    """Whether an Arrow type corresponds to a SQL type.

    Inner fields of maps and lists may have any name, and timestamps any zone or none (``timestamp_ntz``).

    Args:
        type_: type of a column.
        text: a SQL type; ``struct`` alone matches any struct.

    Raises:
        KeyError: unsupported type.

    Example:
        >>> matches(pa.int32(), "int"), matches(pa.large_string(), "string"), matches(pa.timestamp("us"), "timestamp")
        (True, False, True)
        >>> matches(pa.struct([("a", pa.int64())]), "struct<a:bigint>"), matches(pa.struct([]), "struct")
        (True, True)
    """
    kind, _, inner = text.partition("<")
    inner = inner.removesuffix(">")
    if kind == "struct":
        if not pa.types.is_struct(type_) or not inner:
            return bool(pa.types.is_struct(type_))
        fields = [field.split(":", 1) for field in _fields(inner)]
        return [field.name for field in type_] == [name for name, _ in fields] and all(
            matches(field.type, part) for field, (_, part) in zip(type_, fields, strict=True)
        )
    if kind == "map":
        key, value = _fields(inner)
        return bool(pa.types.is_map(type_)) and matches(type_.key_type, key) and matches(type_.item_type, value)
    if kind == "array":
        return bool(pa.types.is_list(type_)) and matches(type_.value_type, inner)
    if kind in {"timestamp", "timestamp_ntz"}:
        return bool(pa.types.is_timestamp(type_)) and type_.unit == "us"
    return bool(type_.equals(_SIMPLE[text]))


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
    """Splits at the commas outside ``<>``."""
    fields = [""]
    depth = 0
    for character in inner:
        depth += (character == "<") - (character == ">")
        if character == "," and not depth:
            fields.append("")
        else:
            fields[-1] += character
    return fields
