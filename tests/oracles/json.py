"""A reference reader of JSON payloads: Python's `json`, and a short form of the rules in `json.steps`.

Dates are days and timestamps microseconds since 1970, so that those outside of Python's range can be compared.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import json.decoder
import json.scanner
import math
import re
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import pyarrow as pa

MAX_DEPTH = 500
EPOCH = datetime.datetime(1970, 1, 1)
DATE = r"(\d{4})-(\d\d?)-(\d\d?)"
TIMESTAMP = DATE + r"(?:[T ](\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d+))?)?(Z|UTC|([+-])(\d\d)(?::?(\d\d))?)?)?"
DECIMAL = r"[+-]?\d+(\.\d+)?([eE][+-]?\d+)?"
NAMED = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
ALSO_NAMED = {**NAMED, "+Infinity": math.inf, "+INF": math.inf, "-INF": -math.inf}


class Refused(Exception):  # noqa: N818
    """The payload cannot be decoded."""


# -- Python's reader of JSON


class Number(str):
    """A number as it is written; also NaN, Infinity and -Infinity."""

    __slots__ = ()


class Members(list[Any]):
    """The members of an object, including equal keys."""

    raw = ""


class Items(list[Any]):
    """The elements of an array, with its text."""

    raw = ""


_reader = json.JSONDecoder(object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=Number)
_raw_reader = json.JSONDecoder(object_pairs_hook=Members, parse_int=Number, parse_float=Number, parse_constant=Number)


def _with_raw(parse: Any, make: type[Members | Items]) -> Any:
    def parse_and_keep(place: tuple[str, int], *rest: Any) -> tuple[Any, int]:
        found, end = parse(place, *rest)
        made = make(found)
        made.raw = place[0][place[1] - 1 : end]
        return made, end

    return parse_and_keep


# The reader in pure Python reports the place of each array and object.
_raw_reader.parse_object = _with_raw(json.decoder.JSONObject, Members)  # type: ignore[attr-defined]
_raw_reader.parse_array = _with_raw(json.decoder.JSONArray, Items)  # type: ignore[attr-defined]
_raw_reader.scan_once = json.scanner.py_make_scanner(_raw_reader)  # type: ignore[attr-defined]


def _depth(value: Any) -> int:
    depth, inner = 0, [value]
    while inner := [one for one in inner if isinstance(one, list)]:
        depth += 1
        inner = [part[1] if isinstance(one, Members) else part for one in inner for part in one]
    return depth


def parse(payload: bytes, *, raw: bool) -> Any:
    """Return the value of a payload; arrays and objects have their texts if `raw`.

    Raises:
        Refused: it is not JSON in UTF-8, or nested too deep.
    """
    try:
        text = payload.decode()
        value = _reader.decode(text)
        if (text.count("[") + text.count("{") > MAX_DEPTH) and _depth(value) > MAX_DEPTH:
            raise Refused("depth")
    except (ValueError, RecursionError) as error:
        raise Refused(str(error)) from None
    if not raw or not isinstance(value, list):
        return value
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        return _raw_reader.decode(text)
    finally:
        sys.setrecursionlimit(limit)


# -- definitions


class Meaning(NamedTuple):
    """The part of an Avro definition that affects the reading of a value."""

    logical: str = ""
    fields: Mapping[str, Meaning] = {}
    inner: Meaning | None = None


_MOMENTS = {
    **dict.fromkeys(("java.util.Date", "java.sql.Date", "java.sql.Timestamp"), "timestamp-millis"),
    **dict.fromkeys(("java.time.OffsetDateTime", "java.time.ZonedDateTime"), "timestamp-micros"),
}


def meaning_of(definition: Any, known: dict[str, Meaning]) -> Meaning:
    """Return the meaning of a parsed definition; `known` are the named types before it."""
    if isinstance(definition, list):
        branches = [one for one in definition if one != "null"]
        return meaning_of(branches[0], known) if len(branches) == 1 else Meaning()
    if isinstance(definition, str):
        return known.get(definition, Meaning())
    kind = definition["type"]
    if kind == "record":
        if not definition["fields"]:
            found = Meaning(_MOMENTS.get(definition["name"], ""))
        else:
            found = Meaning("", {one["name"]: meaning_of(one["type"], known) for one in definition["fields"]})
        known[definition["name"]] = found
        return found
    if kind == "array" and not str(definition["items"]).startswith(
        "{'type': 'record', 'name': 'org.apache.avro.reflect.Pair"
    ):
        return Meaning("", {}, meaning_of(definition["items"], known))
    if kind in ("array", "map"):
        values = definition["values"] if kind == "map" else definition["items"]["fields"][-1]["type"]
        return Meaning("", {}, meaning_of(values, known))
    return Meaning(definition.get("logicalType", ""))


# -- the rules

Read = Callable[[Any], Any]
"""A function that converts a result of `parse` other than null."""


def reader_of(type_: pa.DataType, definition: str | None = None) -> Callable[[bytes], Any]:
    """Return a function that reads payloads, and raises `Refused`."""
    read = _of(type_, None if definition is None else meaning_of(json.loads(definition), {}))
    raw = "string" in str(type_)

    def read_payload(payload: bytes) -> Any:
        value = parse(payload, raw=raw)
        return None if value is None else read(value)

    return read_payload


def _of(type_: pa.DataType, meaning: Meaning | None) -> Read:  # noqa: PLR0911 - a table
    logical = "" if meaning is None else meaning.logical
    inner = None if meaning is None else meaning.inner
    if pa.types.is_struct(type_):
        return _struct(type_, {} if meaning is None else meaning.fields)
    if pa.types.is_list(type_):
        item = _of(type_.value_type, inner)
        return lambda value: [None if one is None else item(one) for one in _array(value)]
    if pa.types.is_map(type_):
        return _map(_of(type_.item_type, inner))
    if pa.types.is_null(type_):
        return lambda _: None
    if pa.types.is_boolean(type_):
        return lambda value: value if isinstance(value, bool) else _refuse()
    if pa.types.is_integer(type_):
        unit = {"time-millis": 10**6, "time-micros": 10**3}.get(logical)
        return lambda value: _integer(value, type_.bit_width, unit)
    if pa.types.is_floating(type_):
        return lambda value: _float(value, is_single=type_ == pa.float32())
    if pa.types.is_decimal(type_):
        return lambda value: _decimal(value, type_.precision, type_.scale)
    if pa.types.is_string(type_):
        return _text
    if pa.types.is_binary(type_):
        return _binary
    if pa.types.is_date(type_):
        return lambda value: _date(value, has_numbers=logical == "date")
    if type_.tz:
        factor = {"timestamp-millis": 1000, "timestamp-micros": 1}.get(logical, 0 if meaning is not None else 10**6)
        return lambda value: _instant(value, factor, has_fraction=meaning is not None)
    local = {"local-timestamp-millis": 1000, "local-timestamp-micros": 1}.get(logical, 0)
    return lambda value: _local(value, local)


def _refuse() -> Any:
    raise Refused


def _array(value: Any) -> list[Any]:
    return value if isinstance(value, list) and not isinstance(value, Members) else _refuse()


def _struct(type_: pa.StructType, known: Mapping[str, Meaning]) -> Read:
    fields: dict[str, tuple[str, Read]] = {}
    for field in type_:
        alike = [name for name in known if name.lower() == field.name.lower()]
        key = alike[0] if field.name not in known and len(alike) == 1 else field.name
        fields[key] = (field.name, _of(field.type, known.get(key)))
    names = [field.name for field in type_]

    def read(value: Any) -> dict[str, Any]:
        row: dict[str, Any] = dict.fromkeys(names)
        for key, member in value if isinstance(value, Members) else _refuse():
            if key in fields:
                name, of_field = fields[key]
                row[name] = None if member is None else of_field(member)
        return row

    return read


def _map(item: Read) -> Read:
    def read(value: Any) -> list[tuple[str, Any]]:
        entries: dict[str, Any] = {}
        for key, member in value if isinstance(value, Members) else _refuse():
            entries.pop(_text(key), None)
            entries[key] = None if member is None else item(member)
        return list(entries.items())

    return read


def _whole(value: Any, bits: int, factor: int = 1) -> int:
    if isinstance(value, Number) and len(value) < 25 and re.fullmatch(r"-?\d+", value):
        number = int(value) * factor
        if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            return number
    raise Refused


def _integer(value: Any, bits: int, unit_ns: int | None) -> int:
    if unit_ns and isinstance(value, list):
        number = _ns_of(_parts(value, 2, 4)) // unit_ns
        return number if number < 2 ** (bits - 1) else _refuse()
    return _whole(value, bits)


def _parts(value: Any, least: int, most: int) -> list[int]:
    parts = [_whole(one, 64) for one in _array(value)]
    return parts if least <= len(parts) <= most else _refuse()


def _ns_of(parts: list[int]) -> int:
    hour, minute, second, ns = (*parts, 0, 0)[:4]
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60 and 0 <= ns < 10**9):
        raise Refused
    return ((hour * 60 + minute) * 60 + second) * 10**9 + ns


def _days(year: int, month: int, day: int) -> int:
    try:
        return (datetime.datetime(year, month, day) - EPOCH).days
    except (ValueError, OverflowError):
        raise Refused from None


def _float(value: Any, *, is_single: bool) -> float:
    if isinstance(value, Number) and value not in NAMED:
        number = float(value)
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0] if is_single else number
        except OverflowError:
            raise Refused from None
        return number if math.isfinite(number) else _refuse()
    return ALSO_NAMED[value] if isinstance(value, str) and value in ALSO_NAMED else _refuse()


def _decimal(value: Any, precision: int, scale: int) -> Decimal:
    if not isinstance(value, str) or not re.fullmatch(DECIMAL, value, re.ASCII):
        raise Refused
    mantissa, _, exponent = value.lower().partition("e")
    if not Decimal(mantissa):
        return Decimal((0, (0,), -scale))
    try:
        number = Decimal(mantissa.lstrip("+") + (f"e{int(exponent)}" if len(exponent) < 4000 and exponent else ""))
        sign, digits, power = number.as_tuple()
    except InvalidOperation:
        raise Refused from None
    text = "".join(map(str, digits)).lstrip("0")
    assert isinstance(power, int)
    if len(exponent) >= 4000 or power + len(text) + scale > precision or power + scale < -len(text):
        raise Refused
    whole = text + "0" * (power + scale)
    if power + scale < 0:
        whole, lost = text[: power + scale], text[power + scale :]
        if lost.strip("0"):
            raise Refused
    return Decimal((sign, tuple(map(int, whole)), -scale))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Members | Items):
        return value.raw
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refused from None
    return str(value)


def _binary(value: Any) -> bytes:
    if type(value) is not str or len(value) % 4:
        raise Refused
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise Refused from None


def _date(value: Any, *, has_numbers: bool) -> int:
    if isinstance(value, list):
        year, month, day = _parts(value, 3, 3)
        return _days(year, month, day)
    if isinstance(value, Number):
        return _whole(value, 32) if has_numbers else _refuse()
    found = re.fullmatch(DATE, value, re.ASCII) if isinstance(value, str) else None
    return _days(*map(int, found.groups())) if found else _refuse()


def _moment(value: Any, *, has_zone: bool) -> int:
    """Return the microseconds of a text."""
    found = re.fullmatch(TIMESTAMP, value, re.ASCII) if type(value) is str else None
    if not found or bool(found[8]) != has_zone:
        raise Refused
    hour, minute, second = (int(part or 0) for part in found.groups()[3:6])
    seconds = _days(*map(int, found.groups()[:3])) * 86_400 + _ns_of([hour, minute, second]) // 10**9
    hours, minutes = int(found[10] or 0), int(found[11] or 0)
    if minutes > 59 or hours * 60 + minutes > 18 * 60:
        raise Refused
    seconds -= (hours * 60 + minutes) * (-60 if found[9] == "-" else 60)
    return seconds * 10**6 + int(((found[7] or "") + "000000")[:6])


def _instant(value: Any, factor: int, *, has_fraction: bool) -> int:
    if not isinstance(value, Number):
        return _moment(value, has_zone=True)
    found = re.fullmatch(r"(-?)(\d+)\.(\d+)", value) if has_fraction and factor else None
    if not found:
        return _whole(value, 64, factor) if factor else _refuse()
    seconds = int(found[2]) if len(found[2]) < 25 else 2**63
    us = int((found[3] + "000000")[:6])
    number = (us - seconds * 10**6 if seconds else -us) if found[1] else us + seconds * 10**6
    return number if seconds <= (2**63 - 1) // 10**6 and number < 2**63 else _refuse()


def _local(value: Any, factor: int) -> int:
    if isinstance(value, list):
        parts = _parts(value, 5, 7)
        return _days(*parts[:3]) * 86_400 * 10**6 + _ns_of(parts[3:]) // 1000
    if isinstance(value, Number):
        return _whole(value, 64, factor) if factor else _refuse()
    return _moment(value, has_zone=False)


# -- comparing


def storage_of(type_: pa.DataType, *, bits: bool = False) -> pa.DataType:
    """Return the type with numbers for dates and timestamps, and for floats too if `bits`, so that NaN equals NaN."""
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(storage_of(field.type, bits=bits)) for field in type_])
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), storage_of(type_.item_type, bits=bits))
    if pa.types.is_list(type_):
        return pa.list_(storage_of(type_.value_type, bits=bits))
    if pa.types.is_temporal(type_) or (bits and pa.types.is_floating(type_)):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    # pyarrow 26 casts void within a map or list to an array of another length.
    return pa.int8() if pa.types.is_null(type_) and not bits else type_


def differences(values: pa.Array, reasons: Mapping[int, str], expected: list[Any]) -> Iterator[tuple[int, Any]]:
    """Yield the rows that differ from the expected values or `Refused`, with their content."""
    values.validate(full=True)
    found: list[Any] = values.cast(storage_of(values.type)).to_pylist()
    if len(found) != len(expected):
        yield len(found), "rows"
    for row, (one, other) in enumerate(zip(found, expected, strict=False)):
        if other is Refused:
            if not reasons.get(row) or one is not None:
                yield row, one
        elif row in reasons or repr(one) != repr(other):  # NaN equals NaN here, and -0.0 differs from 0.0
            yield row, reasons.get(row, one)


def read_all(read: Callable[[bytes], Any], payloads: list[bytes]) -> list[Any]:
    """Return the value of each payload, or the class `Refused`."""
    values: list[Any] = []
    for payload in payloads:
        try:
            values.append(read(payload))
        except Refused:
            values.append(Refused)
    return values
