"""Converts a wanted Arrow type, and the Avro definition of a JSON schema if given, into the steps that read JSON.

Both decoders execute these steps: the compiled one copies them into C structs, its twin uses them directly.

Without a definition the rules are those of Spark's ``from_json`` in mode FAILFAST (`JacksonParser` of Spark 4.0 to
4.3), except where it changes or guesses what was written:

* Bytes after the value, single quotes, and digits that a decimal or an integer cannot hold are errors.
* A number beyond a ``float`` or ``double`` is an error, not infinity.
* The text of a timestamp must name its time zone (``from_json`` assumes the session's). The text of a date must contain
  only a date.

As in ``from_json``: names match exactly; a missing field is NULL; the last of several equal keys counts; any value can
be a ``string``, which is its JSON text unless it is a JSON string; floats can be the texts ``"NaN"``, ``"Infinity"``
and ``"-Infinity"`` (also ``"+Infinity"``, ``"+INF"`` and ``"-INF"``); binary is base64 with padding, as Jackson
(Pulsar's Java client) writes ``byte[]``; a number for a timestamp counts seconds. Beyond ``from_json``, a date and a
timestamp without time zone can be arrays of their parts, see below.

With a definition, its logical type determines the meaning of a number: days, milliseconds or microseconds. Pulsar's
Java client writes JSON with Jackson (`JSONSchema`, `ObjectMapperFactory` of 4.0.8), not with Avro's encoder. So the
value of a union is written without its type, binary values are base64, and:

* An ``Instant`` is its seconds with nine decimal places, regardless of the definition. The decimal places count towards
  the future even before 1970: -1.500000000 is half a second before 1970, as Jackson writes and reads it.
* A ``LocalDate`` is ``[year, month, day]``; a ``LocalDateTime`` continues with hour, minute and, unless they are zero,
  second and nanosecond; a ``LocalTime`` has only these.
* Types that Avro lacks are written differently: a ``char`` is a string, and a map whose keys are not strings (for Avro
  an array of pairs) has the keys' texts.
* A ``java.util.Date`` and similar classes, which Avro takes for a record without fields, are milliseconds.
* A union of several types, and any other class that Avro takes for a record without fields (``Object``, ``Optional``),
  do not determine the JSON: they are a ``string`` of JSON, or the wanted type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from spark_mq_source.core.errors import OptionError
from spark_mq_source.values.avro.schema import AvroType
from spark_mq_source.values.avro.types import places_of

MAX_DEPTH: Final = 500
"""The maximum depth of arrays and objects in a payload. Jackson allows 1000, Python's parser less."""


@dataclass(frozen=True, slots=True)
class Step:
    """The plan for reading values of one type.

    Attributes:
        code: the kind of the values; ``_decode_native.pxd`` has all codes.
        names: of a struct: its fields, in the order of `steps`.
        keys: of a struct: the JSON keys of its fields, likewise.
        known: of a struct: all keys that its payloads are known to have, in the order of the schema.
        steps: the steps of a struct's fields, or the single step of a list's elements or a map's values.
        factor: the factor for the number of a date or timestamp; 0 if numbers are refused.
        has_seconds: whether a number with a fraction is a timestamp in seconds.
        unit_ns: unit of a number for a time of day, which may also be ``[hour, minute, second, nanosecond]``; else 0.
    """

    code: str
    type: pa.DataType
    title: str
    names: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()
    factor: int = 0
    has_seconds: bool = False
    unit_ns: int = 0


_SCALARS: Final[tuple[tuple[Callable[[pa.DataType], bool], str, str], ...]] = (
    (pa.types.is_null, "NOTHING", "void"),
    (pa.types.is_boolean, "BOOLEAN", "boolean"),
    (pa.types.is_int8, "INT", "tinyint"),
    (pa.types.is_int16, "INT", "smallint"),
    (pa.types.is_int32, "INT", "int"),
    (pa.types.is_int64, "INT", "bigint"),
    (pa.types.is_float32, "FLOAT", "float"),
    (pa.types.is_float64, "DOUBLE", "double"),
    (pa.types.is_string, "TEXT", "string"),
    (pa.types.is_binary, "BINARY", "binary"),
    (pa.types.is_date32, "DATE", "date"),
)
_SECONDS: Final = 1_000_000
_FACTORS: Final = {
    "date": 1,
    "timestamp-millis": 1000,
    "timestamp-micros": 1,
    "local-timestamp-millis": 1000,
    "local-timestamp-micros": 1,
}
_TIME_UNITS: Final = {"time-millis": 1_000_000, "time-micros": 1000}
_MAX_DECIMAL: Final = 38


def steps_of(wanted: pa.DataType, definition: AvroType | None, *, may_lack: bool = True) -> Step:
    """Return the steps that read values of a type.

    Args:
        wanted: the type.
        definition: the type of the values by their schema, in JSON's form (`as_json`); None without a schema.
        may_lack: whether the definition may lack wanted fields, as that of an older version may; they are NULL.

    Raises:
        OptionError: Spark has no such type, no value of the definition's type becomes it, or a field is unknown.
    """
    return _step(wanted, definition, "", may_lack)


def _step(wanted: pa.DataType, definition: AvroType | None, path: str, may_lack: bool) -> Step:
    if definition is not None and not _converts_to(definition, wanted):
        raise OptionError(
            f"{_field(path)}the schema of the JSON values says {_named(definition)}, which does not become {wanted}"
        )
    if pa.types.is_struct(wanted):
        return _struct(wanted, definition, path, may_lack)
    inner = definition.inner if definition is not None else None
    if pa.types.is_list(wanted):
        return Step("LIST", wanted, "array", steps=(_step(wanted.value_type, inner, f"{path}[]", may_lack),))
    if pa.types.is_map(wanted):
        if not pa.types.is_string(wanted.key_type):
            raise OptionError(f"{_field(path)}JSON has no {wanted}: its keys must be strings")
        return Step("MAP", wanted, "map", steps=(_step(wanted.item_type, inner, f"{path}{{}}", may_lack),))
    return _scalar(wanted, definition, path)


def _struct(wanted: pa.DataType, definition: AvroType | None, path: str, may_lack: bool) -> Step:
    known = {field.name: field.type for field in definition.fields} if definition is not None else {}
    if known and not may_lack:
        places_of([*known], wanted, f"value{path}")
    keys = tuple(_key(field.name, known) for field in wanted)
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise OptionError(f"{_field(path)}two of the wanted fields are the key {twice[0]!r}")
    steps = (
        _step(field.type, known.get(key), f"{path}.{field.name}", may_lack)
        for key, field in zip(keys, wanted, strict=True)
    )
    names = tuple(field.name for field in wanted)
    return Step("STRUCT", wanted, "struct", names, keys, tuple(dict.fromkeys((*known, *keys))), tuple(steps))


def _key(name: str, known: Mapping[str, AvroType]) -> str:
    """Return the key of a field: its name, or the only name in the definition that differs in case alone."""
    if name in known:
        return name
    alike = [key for key in known if key.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else name


def _scalar(wanted: pa.DataType, definition: AvroType | None, path: str) -> Step:
    factor = _FACTORS.get(definition.logical, 0) if definition is not None else 0
    for is_it, code, title in _SCALARS:
        if is_it(wanted):
            unit_ns = _TIME_UNITS.get(definition.logical, 0) if definition is not None and code == "INT" else 0
            return Step(code, wanted, title, factor=factor if code == "DATE" else 0, unit_ns=unit_ns)
    if pa.types.is_timestamp(wanted) and wanted.unit == "us":
        if wanted.tz is None:
            return Step("TIMESTAMP", wanted, "timestamp_ntz", factor=factor)
        has_seconds, factor = bool(factor), factor if definition is not None else _SECONDS
        return Step("TIMESTAMP", wanted, "timestamp", factor=factor, has_seconds=has_seconds)
    if pa.types.is_decimal128(wanted) and 0 <= wanted.scale <= wanted.precision <= _MAX_DECIMAL:
        return Step("DECIMAL", wanted, f"decimal({wanted.precision},{wanted.scale})")
    raise OptionError(f"{_field(path)}Spark has no type {wanted}")


def _field(path: str) -> str:
    return f"field {path.removeprefix('.')}: " if path else ""


def _named(definition: AvroType) -> str:
    return definition.logical or repr(definition)


# -- definitions


def as_json(definition: AvroType) -> AvroType:
    """Return the type of the values in JSON, where every value can be null.

    Args:
        definition: a type of finite size (`avro.schema.parse_finite`).
    """
    if definition.kind == "union":
        return _union(definition)
    fields = tuple(replace(field, type=as_json(field.type)) for field in definition.fields)
    inner = None if definition.inner is None else as_json(definition.inner)
    if definition.java_class in _JAVA_TEXTS:
        return AvroType("string")
    if definition.kind == "string" and 0 < definition.precision <= _MAX_DECIMAL:
        return replace(definition, logical="decimal")  # as `struct_schema` derives it
    if definition.kind == "record" and not fields:
        moment = _JAVA_MOMENTS.get(definition.name)
        return AvroType("long", logical=moment) if moment else _ANYTHING
    if definition.kind == "array" and inner is not None and inner.name.startswith(_JAVA_PAIR):
        return AvroType("map", inner=inner.fields[-1].type)
    return replace(definition, fields=fields, inner=inner)


def _union(definition: AvroType) -> AvroType:
    branches = [as_json(branch) for branch in definition.branches if branch.kind != "null"]
    kinds = {branch.kind for branch in branches if not branch.logical}
    if len(branches) < 2:
        return branches[0] if branches else AvroType("null")
    if kinds == {"int", "long"} and len(branches) == 2:
        return AvroType("long")
    return AvroType("double") if kinds == {"float", "double"} and len(branches) == 2 else _ANYTHING


_ANYTHING: Final = AvroType("string", java_class="java.lang.Object")
_JAVA_MOMENTS: Final = {
    "java.util.Date": "timestamp-millis",
    "java.sql.Date": "timestamp-millis",
    "java.sql.Timestamp": "timestamp-millis",
    "java.time.OffsetDateTime": "timestamp-micros",
    "java.time.ZonedDateTime": "timestamp-micros",
}
_JAVA_TEXTS: Final = frozenset(("java.lang.Character", "[C"))
_JAVA_PAIR: Final = "org.apache.avro.reflect.Pair"
"""The name that Java's library gives to the records of an array that represents a map."""


def _converts_to(definition: AvroType, wanted: pa.DataType) -> bool:
    """Return whether some values of a type can be of another type; each other value is an error."""
    if pa.types.is_string(wanted) or pa.types.is_null(wanted) or definition.kind == "null":
        return True
    if definition.kind == "string" and definition.java_class:
        return True  # a BigInteger, for example, is a number in JSON
    return any(is_it(wanted) for is_it in _BECOMES[definition.logical or definition.kind])


def _is_instant(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) and type_.tz)


def _is_local_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) and not type_.tz)


_INTEGER: Final = (pa.types.is_signed_integer, pa.types.is_decimal)
_BECOMES: Final[Mapping[str, tuple[Callable[[pa.DataType], bool], ...]]] = {
    "boolean": (pa.types.is_boolean,),
    "int": (*_INTEGER, pa.types.is_float64),
    "long": _INTEGER,
    "time-millis": _INTEGER,
    "time-micros": _INTEGER,
    "float": (pa.types.is_floating, pa.types.is_decimal),
    "double": (pa.types.is_float64, pa.types.is_decimal),
    "string": (pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal, pa.types.is_binary),
    "uuid": (),
    "enum": (),
    "bytes": (pa.types.is_binary,),
    "fixed": (pa.types.is_binary,),
    "decimal": (pa.types.is_decimal,),
    "date": (pa.types.is_date, *_INTEGER),
    "timestamp-millis": (_is_instant, *_INTEGER),
    "timestamp-micros": (_is_instant, *_INTEGER),
    "timestamp-nanos": _INTEGER,
    "local-timestamp-millis": (_is_local_time, *_INTEGER),
    "local-timestamp-micros": (_is_local_time, *_INTEGER),
    "local-timestamp-nanos": _INTEGER,
    "record": (pa.types.is_struct,),
    "array": (pa.types.is_list,),
    "map": (pa.types.is_map,),
}
"""The types that values of a kind, or of a logical type, can have besides texts."""
