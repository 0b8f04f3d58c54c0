"""Avro schemas for Pulsar's JSON and AVRO schemas: derived from structs, and for JSON compared with them.

A decimal is bytes in Avro. In JSON it is a text, so that no digit is lost, and its schema is a string with the logical
type, precision and scale of the decimal. Avro does not define this for strings and so treats it as a plain string, as
do the Java and Python clients (seen with 4.0.8 and 3.13.0), but `json.steps` makes it a decimal. With a schema of
bytes, the Java client would read the text as base64 (`GenericJsonRecord` of 4.0.8).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq_source.core.columns import is_text, text_array
from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.avro.schema import AVRO_NAME, AvroField, AvroType, parse_avro
from spark_mq_source.values.avro.types import inner_of, not_null_branches, takes_null
from spark_mq_source.values.avro.write_steps import NO_NULL, NO_SYMBOL

_NAMES: Final = {"json": "JSON", "avro": "Avro"}

# -- derived from a struct


def derive_definition(struct: pa.StructType, encoding: str, column: str = "value") -> str:
    """Return the schema of such structs, as JSON.

    Every field may be null, regardless of Spark's nullability, so that the schema does not depend on the source of a
    column, and consumers may lack a new field. Elements and map values may not be null, so that a consumer in Java or
    Python can read them with the schema of its class, which allows no null there (seen on broker 4.0.8 and the
    clients of 4.0.8 and 3.13.0); see `check_rows`.

    Args:
        struct: the type of the structs.
        encoding: ``json``, as `json.encode.json_texts` writes, or ``avro``, as `avro.encode.avro_encoder` does.
        column: the name of the column.

    Raises:
        OptionError: Avro does not allow the name or the type of a field; all problems in one sentence.

    Example:
        >>> derive_definition(pa.struct([("carrier", pa.string())]), "json")
        '{"type":"record","name":"Value","fields":[{"name":"carrier","type":["null","string"],"default":null}]}'
    """
    deriving = _Deriving(encoding)
    record = deriving.record(struct, column.capitalize(), "", column)
    if deriving.problems:
        raise OptionError(
            f"the struct in column {column} cannot be {_NAMES[encoding]} with a schema: {'; '.join(deriving.problems)}"
        )
    return json.dumps(record, separators=(",", ":"))


class _Deriving:
    def __init__(self, encoding: str) -> None:
        self.problems: list[str] = []
        self._is_avro = encoding == "avro"

    def record(self, struct: pa.StructType, name: str, namespace: str, path: str) -> dict[str, object]:
        # A namespace for each path, because Avro requires a unique name for every record.
        inside = f"{namespace}.{name}" if namespace else name
        names = [field.name for field in struct]
        fields = []
        for field in struct:
            if not AVRO_NAME.fullmatch(field.name):
                self.problems.append(f"{path}.{field.name} is not an Avro name (letters, digits and _): rename it")
            elif names.count(field.name) > 1:
                self.problems.append(f"{path}.{field.name} is a duplicate")
            kind = self._type(field.type, field.name, inside, f"{path}.{field.name}")
            fields.append({"name": field.name, "type": ["null", kind], "default": None})
        return {"type": "record", "name": name} | ({"namespace": namespace} if namespace else {}) | {"fields": fields}

    def _type(self, kind: pa.DataType, name: str, namespace: str, path: str) -> object:  # noqa: PLR0911 - a table
        if pa.types.is_struct(kind):
            return self.record(kind, name, namespace, path)
        if pa.types.is_list(kind):
            return {"type": "array", "items": self._type(kind.value_type, name, namespace, path)}
        if pa.types.is_map(kind) and is_text(kind.key_type):
            return {"type": "map", "values": self._type(kind.item_type, name, namespace, path)}
        if pa.types.is_decimal(kind):
            base = "bytes" if self._is_avro else "string"
            return {"type": base, "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
        if pa.types.is_timestamp(kind) and kind.tz is None:
            return {"type": "long", "logicalType": "local-timestamp-micros"}
        for is_it, type_ in _AVRO_TYPES:
            if is_it(kind):
                return type_
        hint = "its keys must be strings" if pa.types.is_map(kind) else "cast it"
        self.problems.append(f"{path} is {kind}, which such a schema cannot represent: {hint}")
        return "null"


_AVRO_TYPES: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (is_text, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (pa.types.is_timestamp, {"type": "long", "logicalType": "timestamp-micros"}),
)


# -- compared with a definition


def check_struct(struct: pa.StructType, definition: str, column: str = "value") -> AvroType:
    """Refuse a struct whose JSON a reader with this schema could not read; return the schema.

    `avro.encode` checks structs for Avro.

    Raises:
        OptionError: the definition is not a schema, or the struct does not fit; all problems in one sentence.

    Example:
        >>> definition = '{"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}'
        >>> check_struct(pa.struct([("a", pa.string())]), definition)
        Traceback (most recent call last):
        ...
        spark_mq_source.OptionError: the struct in column value does not fit the given schema: value.a is \
string, and int in the schema
    """
    derived = derive_definition(struct, "json", column)
    try:
        schema = parse_avro(definition)
        problems = list(_mismatches(parse_avro(derived), schema, column))
    except ValueError as error:
        raise OptionError(f"the schema of column {column} is not an Avro schema: {error}") from None
    if problems:
        raise OptionError(f"the struct in column {column} does not fit the given schema: {'; '.join(problems)}")
    return schema


# A type that is written as the key can be read as any type of the value.
_READ_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "double"),
    "float": ("float", "double"),
    "string": ("string", "enum"),
}


def _mismatches(written: AvroType, schema: AvroType, path: str) -> Iterator[str]:
    """Yield the problems of a reader with a schema for a value that is written with another, one sentence each."""
    ours = not_null_branches(written)[0]
    branches = not_null_branches(schema)
    theirs = next((one for one in branches if one.kind in _READ_AS.get(ours.kind, (ours.kind,))), None)
    if theirs is None:
        yield f"{path} is {ours.kind}, and {' or '.join(one.kind for one in branches)} in the schema"
        return
    our_unit, their_unit = _unit_of(ours), _unit_of(theirs)
    if our_unit and their_unit not in ("", our_unit):
        unit = "the type of the schema" if our_unit == "decimal" else "a number in its unit, such as unix_millis(...)"
        yield f"{path} is written as {our_unit}, and {their_unit} in the schema: convert it to {unit}"
    elif their_unit == "decimal" and (
        theirs.scale < ours.scale or theirs.precision - theirs.scale < ours.precision - ours.scale
    ):
        yield f"{path} is {_decimal_of(ours)}, and {_decimal_of(theirs)} in the schema: cast it to that"
    elif ours.kind == "record":
        yield from _field_mismatches(ours, theirs, path)
    elif ours.kind in ("array", "map"):
        yield from _mismatches(inner_of(ours), inner_of(theirs), path)


def _field_mismatches(ours: AvroType, theirs: AvroType, path: str) -> Iterator[str]:
    known = {field.name: field for field in theirs.fields}
    written = {field.name: field for field in ours.fields}
    for name, field in written.items():
        if name in known:
            yield from _mismatches(field.type, known[name].type, f"{path}.{name}")
        else:
            yield f"{path}.{name} is not in the schema (it has {', '.join(known)})"
    for name, field in known.items():
        if name not in written and not _is_optional(field):
            yield f"{path}.{name} is missing, which the schema requires"


def _unit_of(type_: AvroType) -> str:
    return "decimal" if type_.precision else type_.logical


def _decimal_of(type_: AvroType) -> str:
    return f"decimal({type_.precision},{type_.scale})"


# -- checked against rows


def check_rows(values: pa.StructArray, schema: AvroType, column: str = "value") -> None:
    """Refuse rows with a NULL or a text that the schema does not allow; `schema` comes from `check_struct`.

    Raises:
        UnwritableRowError: a NULL is not allowed, or a text is not a symbol of its enum; names the first such field.

    Example:
        >>> schema = parse_avro(derive_definition(pa.struct([("tags", pa.list_(pa.string()))]), "json"))
        >>> check_rows(pa.array([{"tags": ["a"]}, {"tags": None}, None]), schema)
        >>> check_rows(pa.array([{"tags": ["a", None]}]), schema)
        Traceback (most recent call last):
        ...
        spark_mq_source.UnwritableRowError: value.tags[] is NULL in a row, which the schema does not allow
    """
    fault = next(_faults(values, schema, column), None)
    if fault is not None:
        raise UnwritableRowError(fault)


def _faults(values: pa.Array, schema: AvroType, path: str) -> Iterator[str]:
    branches = not_null_branches(schema)
    schema = next(iter(branches), schema)
    if is_text(values.type) and {branch.kind for branch in branches} == {"enum"}:
        symbols = dict(enumerate(symbol for branch in branches for symbol in branch.symbols))
        known = pc.is_in(values.drop_null(), value_set=text_array(symbols, len(symbols), values.type))
        if not pc.all(known, min_count=0).as_py():
            yield f"{path} {NO_SYMBOL}"
    elif pa.types.is_struct(values.type):
        fields = {field.name: field for field in schema.fields}
        for field, column in zip(values.type, values.flatten(), strict=True):
            declared = fields[field.name]
            inside = f"{path}.{field.name}"
            if column.null_count > values.null_count and not _is_optional(declared):
                yield f"{inside} {NO_NULL}"
            yield from _faults(column, declared.type, inside)
    elif pa.types.is_list(values.type) or pa.types.is_map(values.type):
        of_map = pa.types.is_map(values.type)
        inside = f"{path}{{}}" if of_map else f"{path}[]"
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        elements = (values.items if of_map else values.values).slice(first, last - first)
        if elements.null_count and not takes_null(inner_of(schema)):
            yield f"{inside} {NO_NULL}"
        yield from _faults(elements, inner_of(schema), inside)


def _is_optional(field: AvroField) -> bool:
    return field.has_default or takes_null(field.type)
