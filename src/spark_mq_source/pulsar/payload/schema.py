"""What a topic's values are, as its schema says: read from the option, or derived from the struct that is written.

A schema says how values are to be read; the broker keeps it, checks that a producer's fits the topic's, and looks into
no message. JSON and AVRO values are both defined by an Avro schema (Pulsar binary protocol, Schema).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core.columns import is_text
from spark_mq_source.core.errors import OptionError, UnwritableRowError

BYTES: Final = "BYTES"
STRING: Final = "STRING"
JSON: Final = "JSON"
AVRO: Final = "AVRO"

_RECORD_NAME: Final = "Value"
_AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_EXPECTED: Final = (
    'expected BYTES, STRING, or {"type": "JSON", "schema": DEFINITION}, with AVRO for JSON where the values are so '
    "encoded, and an Avro schema as the DEFINITION"
)


@dataclass(frozen=True, slots=True)
class ValueSchema:
    """One schema.

    Attributes:
        type: `BYTES` (which is none), `STRING`, `JSON` or `AVRO`; empty where there is a definition alone.
        definition: the Avro schema as JSON; empty for BYTES and STRING.
        properties: of the schema, for people.

    Example:
        >>> parse_schema('{"type": "AVRO", "schema": {"type": "record", "name": "F", "fields": []}}')
        ValueSchema(type='AVRO', definition='{"type":"record","name":"F","fields":[]}', properties=())
    """

    type: str
    definition: str = ""
    properties: tuple[tuple[str, str], ...] = ()


def parse_schema(text: str) -> ValueSchema:
    """The schema that a text says: a name, what `pulsar-admin schemas upload` reads, or an Avro schema alone.

    Raises:
        ValueError: it is none; the message says why.

    Example:
        >>> parse_schema("bytes").type, parse_schema("string").type
        ('BYTES', 'STRING')
    """
    name = text.strip().upper()
    if name in (BYTES, STRING):
        return ValueSchema(name)
    document = _parse_object(text)
    if document is None:
        raise ValueError(_EXPECTED)
    if "schema" not in document:
        return ValueSchema("", _definition(text))
    unknown = sorted(set(document) - {"type", "schema", "properties", "name"})
    if unknown:
        raise ValueError(f"{', '.join(unknown)} has no meaning beside type, schema and properties")
    type_ = str(document.get("type")).upper()
    if type_ not in (JSON, AVRO):
        raise ValueError(_EXPECTED)
    properties = document.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise ValueError("expected texts as the properties")
    given = document["schema"]
    definition = _definition(given if isinstance(given, str) else json.dumps(given, separators=(",", ":")))
    return ValueSchema(type_, definition, tuple(properties.items()))


def _parse_object(text: str) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _definition(text: str) -> str:
    # A broker does not answer a producer whose definition it cannot parse (seen on 4.0.8), so it is looked at here.
    document = _parse_object(text)
    wrong = "it is no JSON object" if document is None else next(_faults(document, "the schema", set()), None)
    if wrong is not None:
        raise ValueError(
            f"the definition is no Avro schema, which looks like "
            f'{{"type": "record", "name": "F", "fields": [{{"name": "a", "type": "string"}}]}}: {wrong}'
        )
    return text


_PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))


def _faults(kind: Any, path: str, named: set[str]) -> Iterator[str]:  # noqa: ANN401 - JSON
    """What breaks the grammar of Avro schemas (Apache Avro 1.11 specification, Schema Declaration)."""
    if isinstance(kind, list):
        for branch in kind:
            yield from _faults(branch, path, named)
        return
    if isinstance(kind, str):
        if kind not in _PRIMITIVES and kind.rpartition(".")[2] not in named:
            yield f"{path} has the type {kind!r}, which is none"
        return
    type_ = kind.get("type") if isinstance(kind, dict) else None
    if type_ in ("record", "enum", "fixed"):
        name = kind.get("name")
        if not isinstance(name, str) or not all(_AVRO_NAME.fullmatch(part) for part in name.split(".")):
            yield f"{path} is a {type_} without a name of letters, digits and _"
            return
        named.add(name.rpartition(".")[2])
        yield from _faults_of_named(kind, path, named)
    elif type_ == "array":
        yield from _faults(kind.get("items"), f"{path}[]", named)
    elif type_ == "map":
        yield from _faults(kind.get("values"), f"{path}{{}}", named)
    elif type_ is None:
        yield f"{path} has no type"
    else:
        yield from _faults(type_, path, named)


def _faults_of_named(kind: Mapping[str, Any], path: str, named: set[str]) -> Iterator[str]:
    if kind["type"] == "enum" and not isinstance(kind.get("symbols"), list):
        yield f"{path} is an enum without symbols"
    if kind["type"] == "fixed" and not isinstance(kind.get("size"), int):
        yield f"{path} is a fixed without a size"
    if kind["type"] != "record":
        return
    fields = kind.get("fields")
    if not isinstance(fields, list):
        yield f"{path} is a record without fields"
        return
    seen: set[str] = set()
    for field in fields:
        name = field.get("name") if isinstance(field, dict) else None
        if not isinstance(name, str) or not _AVRO_NAME.fullmatch(name):
            yield f"{path} has a field without a name of letters, digits and _"
            return
        if name in seen:
            yield f"{path} has two fields {name}"
        seen.add(name)
        yield from _faults(field.get("type"), f"{path}.{name}", named)


# -- from a struct


def derive_schema(struct: pa.StructType) -> ValueSchema:
    """The JSON schema of values that `core.json_column.json_texts` makes of such a struct.

    Every field may be null, whatever Spark knows of it: so the schema stays the same when a column is read from
    elsewhere, and a field that is added is one that consumers may lack. Elements and map values may not: so a consumer
    in Java or Python reads them by the schema of its class, which has no null there (seen on broker 4.0.8 and the
    clients of 4.0.8 and 3.13.0); see `check_nulls`.

    Raises:
        OptionError: a field has a name or a type that Avro does not; all problems in one sentence.

    Example:
        >>> derive_schema(pa.struct([("carrier", pa.string())])).definition
        '{"type":"record","name":"Value","fields":[{"name":"carrier","type":["null","string"],"default":null}]}'
    """
    problems: list[str] = []
    record = _record(struct, _RECORD_NAME, "", "value", problems)
    if problems:
        raise OptionError(f"the struct in column value cannot be JSON with a schema: {'; '.join(problems)}")
    return ValueSchema(JSON, json.dumps(record, separators=(",", ":")))


def _record(struct: pa.StructType, name: str, namespace: str, path: str, problems: list[str]) -> dict[str, object]:
    # A namespace for each path: Avro wants every record to have a name of its own.
    inside = f"{namespace}.{name}" if namespace else name
    names = [field.name for field in struct]
    fields = []
    for field in struct:
        if not _AVRO_NAME.fullmatch(field.name):
            problems.append(f"{path}.{field.name} is no Avro name (letters, digits and _): rename it")
        elif names.count(field.name) > 1:
            problems.append(f"{path}.{field.name} is there twice")
        kind = _avro_type(field.type, field.name, inside, f"{path}.{field.name}", problems)
        fields.append({"name": field.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": name} | ({"namespace": namespace} if namespace else {}) | {"fields": fields}


def _avro_type(kind: pa.DataType, name: str, namespace: str, path: str, problems: list[str]) -> object:
    if pa.types.is_struct(kind):
        return _record(kind, name, namespace, path, problems)
    if pa.types.is_list(kind):
        return {"type": "array", "items": _avro_type(kind.value_type, name, namespace, path, problems)}
    if pa.types.is_map(kind) and is_text(kind.key_type):
        return {"type": "map", "values": _avro_type(kind.item_type, name, namespace, path, problems)}
    for is_it, type_ in _AVRO_TYPES:
        if is_it(kind):
            return type_
    hint = "its keys must be strings" if pa.types.is_map(kind) else "cast it"
    problems.append(f"{path} is {kind}, which has no place in it: {hint}")
    return "null"


_AVRO_TYPES: Final = (
    (pa.types.is_boolean, "boolean"),
    (pa.types.is_int64, "long"),
    (pa.types.is_integer, "int"),
    (pa.types.is_float32, "float"),
    (pa.types.is_float64, "double"),
    (is_text, "string"),
    # As a text, see core.json_column.
    (pa.types.is_decimal, "string"),
    (pa.types.is_binary, "bytes"),
    (pa.types.is_date32, {"type": "int", "logicalType": "date"}),
    (pa.types.is_timestamp, {"type": "long", "logicalType": "timestamp-micros"}),
)


# -- against a definition


def check_struct(struct: pa.StructType, schema: ValueSchema) -> None:
    """Refuses a struct whose JSON a reader with this schema could not read.

    Raises:
        OptionError: all problems in one sentence.

    Example:
        >>> schema = parse_schema('{"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}')
        >>> check_struct(pa.struct([("a", pa.string())]), schema)
        Traceback (most recent call last):
        ...
        spark_mq_source.core.errors.OptionError: the struct in column value does not fit the option schema: value.a is \
string, and int in the schema
    """
    derived = json.loads(derive_schema(struct).definition)
    problems = list(_misfits(derived, json.loads(schema.definition), "value", {}))
    if problems:
        raise OptionError(f"the struct in column value does not fit the option schema: {'; '.join(problems)}")


# What is written as the first can be read as any of the others.
_READ_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "double"),
    "float": ("float", "double"),
    "string": ("string", "enum"),
}


def _misfits(ours: Any, theirs: Any, path: str, named: dict[str, Any]) -> Iterator[str]:  # noqa: ANN401 - JSON
    """What a reader of `theirs` could not read of a value that is written as `ours`, one sentence each."""
    ours = ours[1] if isinstance(ours, list) else ours
    branches = _resolved(theirs, named)
    kind = _type_of(ours)
    for branch in branches:
        if _type_of(branch) not in _READ_AS.get(kind, (kind,)):
            continue
        unit = _unit_of(branch)
        if _unit_of(ours) is not None and unit not in (None, _unit_of(ours)):
            yield f"{path} is written as {_unit_of(ours)}, and {unit} in the schema: cast it to a number"
        elif kind == "record":
            yield from _misfits_of_fields(ours, branch, path, named)
        elif kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            yield from _misfits(ours[part], branch.get(part), path, named)
        return
    wanted = " or ".join(str(_type_of(branch)) for branch in branches if branch != "null")
    yield f"{path} is {kind}, and {wanted} in the schema"


def _misfits_of_fields(ours: Any, theirs: Any, path: str, named: dict[str, Any]) -> Iterator[str]:  # noqa: ANN401
    known = {field["name"]: field for field in theirs.get("fields", ())}
    written = {field["name"]: field for field in ours["fields"]}
    for name, field in written.items():
        if name in known:
            yield from _misfits(field["type"], known[name].get("type"), f"{path}.{name}", named)
        else:
            yield f"{path}.{name} is not in the schema (it has {', '.join(known)})"
    for name, field in known.items():
        if name not in written and "default" not in field and not _takes_null(field):
            yield f"{path}.{name} is missing, which the schema requires"


def _resolved(kind: Any, named: dict[str, Any]) -> list[Any]:  # noqa: ANN401
    """The branches of a type, those that are named elsewhere in full; notes what is named here."""
    branches = [named.get(one, one) if isinstance(one, str) else one for one in _branches(kind)]
    for branch in branches:
        if isinstance(branch, dict) and "name" in branch:
            named[branch["name"]] = branch
    return branches


def _branches(kind: Any) -> list[Any]:  # noqa: ANN401
    return kind if isinstance(kind, list) else [kind]


def _type_of(kind: Any) -> Any:  # noqa: ANN401
    """The name of an Avro type; of one with a logical type, what stands beneath it."""
    if isinstance(kind, dict):
        inner = kind.get("type")
        return inner if isinstance(inner, str) else _type_of(inner)
    return kind


def _unit_of(kind: Any) -> str | None:  # noqa: ANN401
    return kind.get("logicalType") if isinstance(kind, dict) else None


# -- against the rows


def check_nulls(values: pa.StructArray, schema: ValueSchema) -> None:
    """Refuses rows with a NULL where the schema has none; `values` fit it otherwise, see `check_struct`.

    Raises:
        UnwritableRowError: says where the first one is.

    Example:
        >>> schema = derive_schema(pa.struct([("tags", pa.list_(pa.string()))]))
        >>> check_nulls(pa.array([{"tags": ["a"]}, {"tags": None}, None]), schema)
        >>> check_nulls(pa.array([{"tags": ["a", None]}]), schema)
        Traceback (most recent call last):
        ...
        spark_mq_source.core.errors.UnwritableRowError: value.tags[] is NULL in a row, for which the schema has no place
    """
    path = next(_forbidden_nulls(values, json.loads(schema.definition), "value", {}), None)
    if path is not None:
        raise UnwritableRowError(f"{path} is NULL in a row, for which the schema has no place")


def _forbidden_nulls(values: pa.Array, kind: Any, path: str, named: dict[str, Any]) -> Iterator[str]:  # noqa: ANN401
    kind = next((one for one in _resolved(kind, named) if one != "null"), None)
    if pa.types.is_struct(values.type):
        fields = {field["name"]: field for field in kind["fields"]}
        for field, column in zip(values.type, values.flatten(), strict=True):
            declared = fields[field.name]
            inside = f"{path}.{field.name}"
            if column.null_count > values.null_count and not _takes_null(declared) and "default" not in declared:
                yield inside
            yield from _forbidden_nulls(column, declared["type"], inside, named)
    elif pa.types.is_list(values.type) or pa.types.is_map(values.type):
        of_map = pa.types.is_map(values.type)
        part, inside = ("values", f"{path}{{}}") if of_map else ("items", f"{path}[]")
        first, last = values.offsets[0].as_py(), values.offsets[-1].as_py()
        elements = (values.items if of_map else values.values).slice(first, last - first)
        if elements.null_count and "null" not in _branches(kind[part]):
            yield inside
        yield from _forbidden_nulls(elements, kind[part], inside, named)


def _takes_null(field: Mapping[str, Any]) -> bool:
    return "null" in _branches(field["type"])
