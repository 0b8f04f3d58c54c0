"""Avro schemas for Pulsar's JSON and AVRO schemas: derived from structs, and for JSON compared with them.

A decimal is bytes in Avro. In JSON it is a text, so that no digit is lost, and its schema is a string with the logical
type, precision and scale of the decimal. Avro does not define this for strings and so treats it as a plain string, as
do the Java and Python clients (seen with 4.0.8 and 3.13.0), but `json.steps` makes it a decimal. With a schema of
bytes, the Java client would read the text as base64 (`GenericJsonRecord` of 4.0.8).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core.columns import is_text
from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.avro.schema import AVRO_NAME

_NAMES: Final = {"json": "JSON", "avro": "Avro"}

# -- derived from a struct


def derive_definition(struct: pa.StructType, encoding: str, column: str = "value") -> str:
    """Return the schema of such structs, as JSON.

    Every field may be null, regardless of Spark's nullability, so that the schema does not depend on the source of a
    column, and consumers may lack a new field. Elements and map values may not be null, so that a consumer in Java or
    Python can read them with the schema of its class, which allows no null there (seen on broker 4.0.8 and the
    clients of 4.0.8 and 3.13.0); see `check_nulls`.

    Args:
        struct: the type of the structs.
        encoding: ``json``, as `json.encode.json_texts` writes, or ``avro``, as `avro.encode.encode_avro` does.
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


def check_struct(struct: pa.StructType, definition: str, column: str = "value") -> None:
    """Refuse a struct whose JSON a reader with this schema could not read; `avro.encode` checks Avro.

    Raises:
        OptionError: the struct does not fit; all problems in one sentence.

    Example:
        >>> definition = '{"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}'
        >>> check_struct(pa.struct([("a", pa.string())]), definition)
        Traceback (most recent call last):
        ...
        spark_mq_source.OptionError: the struct in column value does not fit the given schema: value.a is \
string, and int in the schema
    """
    derived = json.loads(derive_definition(struct, "json", column))
    problems = list(_mismatches(derived, json.loads(definition), column, {}))
    if problems:
        raise OptionError(f"the struct in column {column} does not fit the given schema: {'; '.join(problems)}")


# A type that is written as the key can be read as any type of the value.
_READ_AS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("int", "long", "float", "double"),
    "long": ("long", "double"),
    "float": ("float", "double"),
    "string": ("string", "enum"),
}


def _mismatches(ours: Any, theirs: Any, path: str, named: dict[str, Any]) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the problems of a reader with the schema `theirs` for a value of the schema `ours`, one sentence each."""
    ours = ours[1] if isinstance(ours, list) else ours
    branches = _resolved(theirs, named)
    kind = _type_of(ours)
    for branch in branches:
        if _type_of(branch) not in _READ_AS.get(kind, (kind,)):
            continue
        unit = _unit_of(branch)
        if _unit_of(ours) is not None and unit not in (None, _unit_of(ours)):
            cast = "to the type of the schema" if _unit_of(ours) == "decimal" else "to a number"
            yield f"{path} is written as {_unit_of(ours)}, and {unit} in the schema: cast it {cast}"
        elif unit == "decimal" and not _holds(branch, ours):
            yield f"{path} is {_decimal_of(ours)}, and {_decimal_of(branch)} in the schema: cast it to that"
        elif kind == "record":
            yield from _field_mismatches(ours, branch, path, named)
        elif kind in ("array", "map"):
            part = "items" if kind == "array" else "values"
            yield from _mismatches(ours[part], branch.get(part), path, named)
        return
    wanted = " or ".join(str(_type_of(branch)) for branch in branches if branch != "null")
    yield f"{path} is {kind}, and {wanted} in the schema"


def _field_mismatches(ours: Any, theirs: Any, path: str, named: dict[str, Any]) -> Iterator[str]:  # noqa: ANN401
    known = {field["name"]: field for field in theirs.get("fields", ())}
    written = {field["name"]: field for field in ours["fields"]}
    for name, field in written.items():
        if name in known:
            yield from _mismatches(field["type"], known[name].get("type"), f"{path}.{name}", named)
        else:
            yield f"{path}.{name} is not in the schema (it has {', '.join(known)})"
    for name, field in known.items():
        if name not in written and "default" not in field and not _takes_null(field):
            yield f"{path}.{name} is missing, which the schema requires"


def _resolved(kind: Any, named: dict[str, Any]) -> list[Any]:  # noqa: ANN401
    """Return the branches of a type with full named types; store the types that are named here."""
    branches = [named.get(one, one) if isinstance(one, str) else one for one in _branches(kind)]
    for branch in branches:
        if isinstance(branch, dict) and "name" in branch:
            named[branch["name"]] = branch
    return branches


def _branches(kind: Any) -> list[Any]:  # noqa: ANN401
    return kind if isinstance(kind, list) else [kind]


def _type_of(kind: Any) -> Any:  # noqa: ANN401
    """Return the name of an Avro type; for a logical type, the underlying type."""
    if isinstance(kind, dict):
        inner = kind.get("type")
        return inner if isinstance(inner, str) else _type_of(inner)
    return kind


def _unit_of(kind: Any) -> str | None:  # noqa: ANN401
    return kind.get("logicalType") if isinstance(kind, dict) else None


def _holds(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> bool:
    """Return whether all decimals of type `ours` fit `theirs`, or `theirs` is invalid, so that readers ignore it."""
    if not isinstance(theirs.get("precision"), int):
        return True
    digits = [one["precision"] - one.get("scale", 0) for one in (theirs, ours)]
    return bool(digits[0] >= digits[1] and theirs.get("scale", 0) >= ours["scale"])


def _decimal_of(kind: Mapping[str, Any]) -> str:
    return f"decimal({kind['precision']},{kind.get('scale', 0)})"


# -- checked against rows


def check_nulls(values: pa.StructArray, definition: str, column: str = "value") -> None:
    """Refuse rows with a NULL that the schema does not allow; otherwise `values` must fit it, see `check_struct`.

    Raises:
        UnwritableRowError: a NULL is not allowed; names the first such field.

    Example:
        >>> definition = derive_definition(pa.struct([("tags", pa.list_(pa.string()))]), "json")
        >>> check_nulls(pa.array([{"tags": ["a"]}, {"tags": None}, None]), definition)
        >>> check_nulls(pa.array([{"tags": ["a", None]}]), definition)
        Traceback (most recent call last):
        ...
        spark_mq_source.UnwritableRowError: value.tags[] is NULL in a row, which the schema does not allow
    """
    path = next(_forbidden_nulls(values, json.loads(definition), column, {}), None)
    if path is not None:
        raise UnwritableRowError(f"{path} is NULL in a row, which the schema does not allow")


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
