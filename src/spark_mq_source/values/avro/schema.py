"""Parses Avro schemas: a definition becomes types (Apache Avro 1.12 specification, Schema Declaration).

Like brokers and clients, this parser is laxer than the specification: a name may be defined twice, a default may have
the wrong type until it is needed, and a name is also looked up outside its namespace (as in Java's library).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from spark_mq_source.core.errors import OptionError
from spark_mq_source.values.limits import MAX_DEPTH, check_size

AVRO_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
PRIMITIVES: Final = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))

MAX_PRECISION: Final = 38
"""The maximum number of digits of a decimal in Spark."""

_MAX_BYTES: Final = 2**31 - 1
_LOGICAL: Final[Mapping[str, frozenset[str]]] = {
    "int": frozenset(("date", "time-millis")),
    "long": frozenset(
        (
            "time-micros",
            *(f"{kind}-{unit}" for kind in ("timestamp", "local-timestamp") for unit in ("millis", "micros", "nanos")),
        )
    ),
    "string": frozenset(("uuid",)),
}


@dataclass(slots=True, eq=False)
class AvroField:
    """A field of a record; `default` is the JSON value, and is valid only if `has_default`."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    has_default: bool = False
    default: Any = None


@dataclass(slots=True, eq=False)
class AvroType:
    """An Avro type; a type that refers to itself is a cycle of these objects.

    Attributes:
        kind: a primitive, or ``record``, ``enum``, ``fixed``, ``array``, ``map`` or ``union``.
        name: full name of a record, enum or fixed, with its namespace.
        aliases: other full names of this type.
        default: the symbol of an enum that replaces unknown ones; empty without one.
        logical: a logical type of the specification, of the right kind and with valid attributes; otherwise empty.
        precision: of a decimal, or of a string with a precision, which has a meaning only in JSON (`json.steps`).
        scale: the scale that belongs to `precision`.
        java_class: of a primitive or an array: the Java class that it represents; empty if the definition lacks it.
    """

    kind: str
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    inner: AvroType | None = None
    branches: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str = ""
    size: int = 0
    logical: str = ""
    precision: int = 0
    scale: int = 0
    java_class: str = ""

    def __repr__(self) -> str:
        return self.name or self.kind


def parse_avro(definition: str) -> AvroType:
    """Parse a definition, which is JSON or only the name of a primitive type.

    Raises:
        ValueError: the text is not a schema; the message gives the reason.

    Example:
        >>> parse_avro('{"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}]}').fields[0].type
        int
        >>> parse_avro('{"type": "array"}')
        Traceback (most recent call last):
        ...
        ValueError: the schema[] has no type
    """
    if definition.strip() in PRIMITIVES:
        return AvroType(definition.strip())
    try:
        document = json.loads(definition)
    except (ValueError, RecursionError):
        raise ValueError("it is not JSON") from None
    return avro_type_of(document)


def avro_type_of(document: object) -> AvroType:
    """Return the type in a parsed definition.

    Raises:
        ValueError: the document is not a schema; the message gives the reason.
    """
    return _Parser().type_of(document, "the schema", "", 0)


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, AvroType] = {}

    def type_of(self, kind: Any, path: str, namespace: str, depth: int) -> AvroType:  # noqa: ANN401 - JSON
        if depth > MAX_DEPTH:
            raise ValueError(f"{path} is nested more than {MAX_DEPTH} types deep")
        if isinstance(kind, list):
            branches = tuple(self.type_of(branch, path, namespace, depth + 1) for branch in kind)
            if any(branch.kind == "union" for branch in branches):
                raise ValueError(f"{path} is a union directly within a union")
            return AvroType("union", branches=branches)
        if isinstance(kind, str):
            return AvroType(kind) if kind in PRIMITIVES else self._find(kind, path, namespace)
        type_ = kind.get("type") if isinstance(kind, dict) else None
        if type_ in ("record", "enum", "fixed"):
            return self._named_type(type_, kind, path, namespace, depth)
        if type_ in ("array", "map"):
            part, inside = ("items", f"{path}[]") if type_ == "array" else ("values", f"{path}{{}}")
            inner = self.type_of(kind.get(part), inside, namespace, depth + 1)
            return AvroType(type_, inner=inner, java_class=str(kind.get("java-class", "")))
        if type_ is None:
            raise ValueError(f"{path} has no type")
        if not isinstance(type_, str) or type_ not in PRIMITIVES:
            return self.type_of(type_, path, namespace, depth + 1)
        made = AvroType(type_, java_class=str(kind.get("java-class", "")))
        _set_logical_type(made, kind)
        return made

    def _find(self, name: str, path: str, namespace: str) -> AvroType:
        full = _full_name(name, namespace)
        if full in self._named:
            return self._named[full]
        # Some registries hold schemas from which the namespaces were removed.
        same = [made for full, made in self._named.items() if full.rpartition(".")[2] == name.rpartition(".")[2]]
        if not same:
            raise ValueError(f"{path} has the type {name!r}, which is unknown")
        return same[-1]

    def _named_type(self, type_: str, kind: Mapping[str, Any], path: str, namespace: str, depth: int) -> AvroType:
        name = kind.get("name")
        if not isinstance(name, str) or not all(AVRO_NAME.fullmatch(part) for part in name.split(".")):
            raise ValueError(f"{path} is a {type_} without a name of letters, digits and _")
        own = kind.get("namespace")
        made = AvroType(type_, _full_name(name, own if isinstance(own, str) else namespace))
        space = made.name.rpartition(".")[0]
        made.aliases = tuple(_full_name(alias, space) for alias in _texts(kind.get("aliases")))
        self._named[made.name] = made
        if type_ == "enum":
            if not isinstance(kind.get("symbols"), list):
                raise ValueError(f"{path} is an enum without symbols")
            made.symbols = _texts(kind["symbols"])
            # JSON can express half a surrogate pair.
            halves = any("\ud800" <= character <= "\udfff" for character in "".join(made.symbols))
            if halves or len(made.symbols) < len(kind["symbols"]):
                raise ValueError(f"{path} is an enum with a symbol that is not a text")
            made.default = kind["default"] if kind.get("default") in made.symbols else ""
        elif type_ == "fixed":
            size = kind.get("size")
            if not isinstance(size, int) or not 0 <= size <= _MAX_BYTES:
                raise ValueError(f"{path} is a fixed without a size")
            made.size = int(size)
            _set_logical_type(made, kind)
        else:
            made.fields = self._fields(kind.get("fields"), path, space, depth)
        return made

    def _fields(self, fields: object, path: str, namespace: str, depth: int) -> tuple[AvroField, ...]:
        if not isinstance(fields, list):
            raise ValueError(f"{path} is a record without fields")  # noqa: TRY004 - of a schema
        made: dict[str, AvroField] = {}
        for field in fields:
            name = field.get("name") if isinstance(field, dict) else None
            if not isinstance(name, str) or not AVRO_NAME.fullmatch(name):
                raise ValueError(f"{path} has a field without a name of letters, digits and _")
            if name in made:
                raise ValueError(f"{path} has two fields {name}")
            made[name] = AvroField(
                name,
                self.type_of(field.get("type"), f"{path}.{name}", namespace, depth + 1),
                _texts(field.get("aliases")),
                "default" in field,
                field.get("default"),
            )
        return tuple(made.values())


def _full_name(name: str, namespace: str) -> str:
    return f"{namespace}.{name}" if namespace and "." not in name else name


def _texts(given: object) -> tuple[str, ...]:
    return tuple(one for one in given if isinstance(one, str)) if isinstance(given, list) else ()


def _set_logical_type(made: AvroType, kind: Mapping[str, Any]) -> None:
    # An unknown or invalid logical type is ignored, as in the specification.
    logical = kind.get("logicalType")
    if logical == "decimal" and made.kind in ("bytes", "fixed", "string"):
        precision, scale = kind.get("precision"), kind.get("scale", 0)
        if not isinstance(precision, int) or not isinstance(scale, int) or not 0 <= scale <= precision or not precision:
            return
        if made.kind == "fixed" and precision > math.floor(math.log10(2) * (8 * made.size - 1)):
            return
        made.precision, made.scale = precision, scale
        made.logical = "" if made.kind == "string" else "decimal"
    elif isinstance(logical, str) and logical in _LOGICAL.get(made.kind, ()):
        made.logical = logical


def parse_finite(definition: str, what: str = "the schema") -> AvroType:
    """Parse a definition whose values can be columns: it is not too large, and the columns have a finite type.

    Raises:
        OptionError: the text, which the error names as `what`, is not a schema, or the type is recursive, nested too
            deeply, or has too many types.

    Example:
        >>> parse_finite('{"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]}]}')
        Traceback (most recent call last):
        ...
        spark_mq_source.OptionError: the schema is not an Avro schema that can be columns: R contains itself
    """
    try:
        type_ = parse_avro(definition)
        check_size(type_, _parts_of, repr)
    except ValueError as error:
        raise OptionError(f"{what} is not an Avro schema that can be columns: {error}") from None
    return type_


def _parts_of(type_: AvroType) -> list[AvroType]:
    return [field.type for field in type_.fields] + list(type_.branches) + ([type_.inner] if type_.inner else [])
