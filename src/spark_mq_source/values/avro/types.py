"""The Arrow types that Spark uses for Avro's types, and the types that may be wanted instead.

They follow Spark's ``from_avro``: `SchemaConverters` and `AvroDeserializer` of Spark 4.0 to 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from spark_mq_source.core.errors import OptionError
from spark_mq_source.values.avro.schema import MAX_PRECISION, AvroType


def arrow_type(type_: AvroType, path: str = "value") -> pa.DataType:
    """Return the Arrow type that Spark uses for an Avro type.

    Raises:
        OptionError: Spark has no such type; the message names the field.
    """
    kind = type_.kind
    if kind == "record":
        return pa.struct([(field.name, arrow_type(field.type, f"{path}.{field.name}")) for field in type_.fields])
    if kind == "array":
        return pa.list_(arrow_type(inner_of(type_), f"{path}[]"))
    if kind == "map":
        return pa.map_(pa.string(), arrow_type(inner_of(type_), f"{path}{{}}"))
    if kind == "union":
        return _union_type(type_, path)
    return _leaf_type(type_, path)


def _union_type(union: AvroType, path: str) -> pa.DataType:
    branches = not_null_branches(union)
    if len(branches) <= 1:
        return arrow_type(branches[0], path) if branches else pa.null()
    if is_number_union(union):
        return pa.float64() if branches[0].kind in ("float", "double") else pa.int64()
    return pa.struct([(f"member{n}", arrow_type(one, path)) for n, one in enumerate(branches)])


def _leaf_type(type_: AvroType, path: str) -> pa.DataType:
    if type_.logical != "decimal":
        return _LOGICAL_TYPES.get(type_.logical) or _PLAIN_TYPES[type_.kind]
    if type_.precision > MAX_PRECISION:
        raise OptionError(
            f"{path} is a decimal of {type_.precision} digits, and Spark has {MAX_PRECISION}: leave it out, by a "
            f"schema that names the fields that are wanted"
        )
    return pa.decimal128(type_.precision, type_.scale)


_PLAIN_TYPES: Final[Mapping[str, pa.DataType]] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
# As in Spark 4.0. Later releases have a type TIME for time-micros if a setting allows it, but not all of them accept it
# in Arrow batches from Python. Spark reads nanoseconds as a number.
_LOGICAL_TYPES: Final[Mapping[str, pa.DataType]] = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}


def inner_of(type_: AvroType) -> AvroType:
    """Return the type of the elements of an array, or of the values of a map."""
    assert type_.inner is not None  # noqa: S101 - for mypy
    return type_.inner


def _branches(type_: AvroType) -> Sequence[AvroType]:
    return type_.branches if type_.kind == "union" else (type_,)


def not_null_branches(type_: AvroType) -> list[AvroType]:
    """Return the branches of a union except null; of another type, the type itself unless it is null."""
    return [branch for branch in _branches(type_) if branch.kind != "null"]


def takes_null(type_: AvroType) -> bool:
    """Return whether a value may be null."""
    return any(branch.kind == "null" for branch in _branches(type_))


def is_number_union(union: AvroType) -> bool:
    """Return whether Spark reads a union as one number of its wider type."""
    kinds = sorted(branch.kind for branch in not_null_branches(union))
    return kinds in (["int", "long"], ["double", "float"])


Place = tuple[int, pa.Field]
"""The index of a field in a wanted struct, and the field."""


def places_of(names: Sequence[str], wanted: pa.StructType, path: str = "value") -> dict[int, Place]:
    """Return the place of each wanted name: the field of the same name, or the only one that differs in case alone.

    Raises:
        OptionError: a wanted field matches no name, several names, or the name of another field.
    """
    exact = {name: at for at, name in enumerate(names)}
    lower = [name.lower() for name in names]
    alike = {name: at for at, name in enumerate(lower)}
    places: dict[int, Place] = {}
    for slot, field in enumerate(wanted):
        at = exact.get(field.name, alike.get(field.name.lower()))
        if at is None:
            raise OptionError(f"{path}.{field.name} is not in the schema (it has {', '.join(names)})")
        if field.name not in exact and lower.count(field.name.lower()) > 1:
            raise OptionError(f"{path}.{field.name} is in the schema in several cases: name one of them")
        if at in places:
            raise OptionError(f"{path}.{field.name} is requested twice")
        places[at] = slot, field
    return places


def check_conversion(type_: AvroType, wanted: pa.DataType, path: str = "value") -> None:
    """Refuse a wanted type that the values of an Avro type cannot become without loss.

    Raises:
        OptionError: the type does not fit; names the field.
    """
    kind = type_.kind
    if kind == "union" and len(not_null_branches(type_)) == 1:
        check_conversion(not_null_branches(type_)[0], wanted, path)
    elif kind == "record" and pa.types.is_struct(wanted):
        _check_fields({field.name: field.type for field in type_.fields}, wanted, path)
    elif (
        kind == "union"
        and len(not_null_branches(type_)) > 1
        and not is_number_union(type_)
        and pa.types.is_struct(wanted)
    ):
        _check_fields({f"member{n}": one for n, one in enumerate(not_null_branches(type_))}, wanted, path)
    elif kind == "array" and pa.types.is_list(wanted):
        check_conversion(inner_of(type_), wanted.value_type, f"{path}[]")
    elif kind == "map" and pa.types.is_map(wanted) and pa.types.is_string(wanted.key_type):
        check_conversion(inner_of(type_), wanted.item_type, f"{path}{{}}")
    elif not _widens(arrow_type(type_, path), wanted):
        raise OptionError(f"{path} cannot be {wanted}: the schema has {arrow_type(type_, path)} there")


def _check_fields(types: Mapping[str, AvroType], wanted: pa.StructType, path: str) -> None:
    names = list(types)
    for at, (_, field) in places_of(names, wanted, path).items():
        check_conversion(types[names[at]], field.type, f"{path}.{field.name}")


def _widens(type_: pa.DataType, wanted: pa.DataType) -> bool:
    if pa.types.is_decimal128(type_) and pa.types.is_decimal128(wanted):
        digits = type_.precision - type_.scale
        return bool(wanted.scale >= type_.scale and wanted.precision - wanted.scale >= digits)
    if pa.types.is_timestamp(type_) and pa.types.is_timestamp(wanted):
        return bool(wanted.unit == "us" and (wanted.tz is None) == (type_.tz is None))
    return bool(type_.equals(wanted)) or (str(type_), str(wanted)) in _WIDER


_WIDER: Final = frozenset((("int32", "int64"), ("int32", "double"), ("float", "double")))
