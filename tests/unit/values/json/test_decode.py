"""Values and reasons of JSON payloads, equal in the compiled decoder and `explain`; see also tests/matrices."""

from __future__ import annotations

import enum
import itertools
import json
import math
import re
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pulsar import schema as official_schema

from spark_mq_source.core.errors import OptionError
from spark_mq_source.values.decoder import Decoded
from spark_mq_source.values.json import explain
from spark_mq_source.values.json.decode import arrow_type_of, json_decoder
from spark_mq_source.values.json.steps import MAX_DEPTH

UTC = zoneinfo.ZoneInfo("UTC")  # as pyarrow has it
INSTANT = pa.timestamp("us", "UTC")
LOCAL = pa.timestamp("us")

MARK = explain._MARK


def decode(payloads: list[bytes | str | None], wanted: pa.DataType, definition: str | None = None) -> Decoded:
    """Return the results of decoding payloads, which must be equal in both decoders."""
    data = pa.array([one.encode() if isinstance(one, str) else one for one in payloads], pa.binary())
    native = json_decoder(wanted, definition, "native").decode(data)
    python = json_decoder(wanted, definition, "python").decode(data)
    native.values.validate(full=True)
    assert native.values.type == python.values.type == wanted
    assert shown(native.values) == shown(python.values)
    assert dict(native.reasons) == dict(python.reasons)
    assert all(not native.values[row].is_valid for row in native.reasons)
    return native


def shown(values: pa.Array) -> str:
    """Return values as text, in which NaN equals NaN and timestamps may be outside of Python's range."""
    try:
        return repr(values.to_pylist())
    except (ValueError, OverflowError):
        return str(values)


def decode_one(payload: bytes | str, wanted: pa.DataType, definition: str | None = None) -> Any:
    """Return the value of a payload, or the reason why it has none."""
    decoded = decode([payload], wanted, definition)
    return decoded.reasons.get(0, decoded.values[0].as_py())


# -- values and reasons


@pytest.mark.parametrize(
    ("payload", "type_", "reason"),
    [
        ('"1"', pa.int32(), '"1" is not a valid int'),
        ("1.5", pa.int32(), "1.5 is not a valid int"),
        ("1.0", pa.int64(), "1.0 is not a valid bigint"),
        ("1e2", pa.int64(), "1e2 is not a valid bigint"),
        ("128", pa.int8(), "128 is not a valid tinyint"),
        ("-32769", pa.int16(), "-32769 is not a valid smallint"),
        ("9223372036854775808", pa.int64(), "9223372036854775808 is not a valid bigint"),
        ("1" * 30, pa.int64(), f"{'1' * 30} is not a valid bigint"),
        ("1" * 70, pa.int64(), f"{'1' * 60}... is not a valid bigint"),
        ("true", pa.float64(), "true is not a valid double"),
        ('"1.5"', pa.float64(), '"1.5" is not a valid double'),
        ("1e400", pa.float64(), "1e400 is not a valid double"),
        ("-1e39", pa.float32(), "-1e39 is not a valid float"),
        ("0", pa.bool_(), "0 is not a valid boolean"),
        ("1.005", pa.decimal128(9, 2), "1.005 is not a valid decimal(9,2)"),
        ("1000", pa.decimal128(5, 2), "1000 is not a valid decimal(5,2)"),
        ('"1,5"', pa.decimal128(5, 2), '"1,5" is not a valid decimal(5,2)'),
        ('""', pa.decimal128(5, 2), '"" is not a valid decimal(5,2)'),
        ("1e99999999999999999999", pa.decimal128(38, 0), "1e99999999999999999999 is not a valid decimal(38,0)"),
        ('"A"', pa.binary(), '"A" is not a valid binary'),
        ('"-_8="', pa.binary(), '"-_8=" is not a valid binary'),
        ('"===="', pa.binary(), '"====" is not a valid binary'),
        ('"2021-02-29"', pa.date32(), '"2021-02-29" is not a valid date'),
        ('"2021-02-28T00:00"', pa.date32(), '"2021-02-28T00:00" is not a valid date'),
        ("1", pa.date32(), "1 is not a valid date"),
        ('"2021-02-28 24:00:00Z"', INSTANT, '"2021-02-28 24:00:00Z" is not a valid timestamp'),
        ('"2021-02-28 00:00:00+18:01"', INSTANT, '"2021-02-28 00:00:00+18:01" is not a valid timestamp'),
        ('"2021-02-28 00:00:00Z"', LOCAL, '"2021-02-28 00:00:00Z" is not a valid timestamp_ntz'),
        ("1", LOCAL, "1 is not a valid timestamp_ntz"),
        ("9223372036855", INSTANT, "9223372036855 is not a valid timestamp"),
        (
            '"2021-02-28 10:00"',
            INSTANT,
            '"2021-02-28 10:00" names no time zone; read it as timestamp_ntz, or as string',
        ),
        ('"a\\udc00"', pa.string(), '"a\\udc00" is not a valid string'),
        ("[1]", pa.struct([("a", pa.int8())]), "an array is not a valid struct"),
        ("{}", pa.list_(pa.int8()), "an object is not a valid array"),
        ("3", pa.map_(pa.string(), pa.int8()), "3 is not a valid map"),
        ("", pa.int8(), "it is not JSON: Expecting value at byte 0"),
        ("ää", pa.int8(), "it is not JSON: Expecting value at byte 0"),
        ('["ä" 1]', pa.list_(pa.string()), "it is not JSON: Expecting ',' delimiter at byte 6"),
        ("\ufeff1", pa.int8(), "it is not JSON: it begins with a byte order mark"),
        (b'"\xff"', pa.string(), "it is not UTF-8 at byte 1"),
        ('"\x01"', pa.string(), "it is not JSON: Invalid control character at at byte 1"),
        (
            '{"a": [{"b": {"x\\n": true, "y": 1}}]}',
            pa.struct([("a", pa.list_(pa.struct([("b", pa.map_(pa.string(), pa.bool_()))])))]),
            'field a[0].b["y"]: 1 is not a valid boolean',
        ),
        # Invalid JSON of the whole takes precedence over a part that does not fit.
        ('{"a": "x", "b": nil}', pa.struct([("a", pa.int8())]), "it is not JSON: Expecting value at byte 16"),
    ],
)
def test_reasons(payload: bytes | str, type_: pa.DataType, reason: str) -> None:
    assert decode_one(payload, type_) == reason
    inside = '{"f":%s}'
    if isinstance(payload, str) and not reason.startswith(("field", "it is")):
        assert decode_one(inside % payload, pa.struct([("f", type_)])) == f"field f: {reason}"


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded_in_wanted_and_skipped_values(opening: str, closing: str) -> None:
    def nested(depth: int) -> str:
        return opening * depth + "1" + closing * depth

    field = pa.struct([("f", pa.int8())])
    text = pa.struct([("x", pa.string())])
    inside = '{"x":%s,"f":1}'
    assert decode_one(inside % nested(MAX_DEPTH - 1), field) == {"f": 1}
    assert decode_one(inside % nested(MAX_DEPTH - 1), text) == {"x": nested(MAX_DEPTH - 1)}
    too_deep = f"it is nested more than {MAX_DEPTH} deep"
    for hostile in (inside % nested(MAX_DEPTH), nested(1_000_000), opening * 1_000_000):
        assert decode_one(hostile, field) == too_deep
        assert decode_one(hostile, text) == too_deep
    assert decode_one('["%s"]' % ("[" * 10_000), pa.list_(pa.string())) == ["[" * 10_000]


def maps(depth: int) -> pa.DataType:
    return pa.map_(pa.string(), maps(depth - 1)) if depth else pa.int32()


def repeated_keys(depth: int, size: int) -> str:
    """Return nested maps, each with equal keys around and beside the next one."""
    text = '{"a":1,"a":2}'
    for _ in range(depth - 2):
        text = f'{{"a":{{}},"a":{text},"b":{{}},"b":{{}}}}'
    return "{" + ",".join([f'"k":{text}'] * (size // len(text))) + "}"


def beside(text: str) -> str:
    return f'{{"s":{text},"f":"no number"}}'


def and_field(type_: pa.DataType) -> pa.DataType:
    return pa.struct([("s", type_), ("f", pa.int32())])


MAP_DEPTH = 10
FIELD = pa.struct([("f", pa.int32())])
HOSTILE: dict[str, tuple[Callable[[int], str], pa.DataType]] = {
    "an unterminated string of quotes behind brackets": (lambda n: "[]" * 501 + '"' + '\\"' * (n // 2), FIELD),
    "unterminated strings": (lambda n: "[]" * 501 + '"\\' * (n // 2), FIELD),
    "open brackets": (lambda n: '[{"a":' * (n // 6), FIELD),
    "empty arrays": (lambda n: '{"x":[' + "[]," * (n // 3) + "[]]}x", FIELD),
    "digits": (lambda n: "1" * n, pa.float64()),
    "digits behind a point": (lambda n: "0." + "0" * n + "1x", pa.float64()),
    "digits of a decimal": (lambda n: '"' + "1" * n + "." + "1" * n + 'x"', pa.decimal128(38, 0)),
    "an exponent": (lambda n: "1e" + "9" * n, pa.decimal128(38, 0)),
    "a fraction of a second": (lambda n: '"2020-01-01T00:00:00.' + "1" * n + 'x"', LOCAL),
    "halves of pairs": (lambda n: '"' + "\\ud800" * (n // 6) + '"', pa.string()),
    # Read to the end, then refused.
    "equal keys of a map": (lambda n: beside("{" + ",".join(['"k":1'] * (n // 6)) + "}"), and_field(maps(1))),
    "equal keys of maps in maps": (lambda n: beside(repeated_keys(MAP_DEPTH, n)), and_field(maps(MAP_DEPTH))),
    "equal keys of a struct": (lambda n: "{" + ",".join(['"f":1'] * (n // 6)) + "}x", FIELD),
    "nested arrays as a text": (lambda n: beside("[" * 499 + f'"{"a" * n}"' + "]" * 499), and_field(pa.string())),
    "backslashes in an array as a text": (lambda n: beside('["' + "\\\\" * (n // 2) + '"]'), and_field(pa.string())),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_work_is_linear_in_the_length_of_a_payload(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, type_ = HOSTILE[name]
    marks: list[str] = []

    class Mark:
        def finditer(self, text: str) -> Iterator[re.Match[str]]:
            marks[:] = MARK.findall(text)
            return MARK.finditer(text)

    monkeypatch.setattr(explain, "_MARK", Mark())

    def work_of(size: int) -> int:
        """Return the number of calls made to decode and to find the reason."""
        calls = itertools.count()
        decoder: Any = json_decoder(type_, None, "native")
        text = make(size)
        payload = pa.array([text.encode()], pa.binary())
        marks.clear()
        sys.setprofile(lambda *_: next(calls))
        try:
            assert list(decoder.decode(payload).reasons) == [0]
        finally:
            sys.setprofile(None)
        # The depth is searched for by marks, each of two characters at most.
        assert bool(marks) == (text.count("[") + text.count("{") > MAX_DEPTH)
        assert max(map(len, marks), default=0) <= 2
        assert decoder.moved <= MAP_DEPTH * size
        return next(calls)

    few = work_of(10_000)
    assert work_of(1_000_000) <= 110 * few


# -- definitions


def record(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields]}
    )


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


class Gate(enum.Enum):
    A = 1
    B = "b"


class Leg(official_schema.Record):
    city = official_schema.String()


class Flight(official_schema.Record):
    number = official_schema.Long(required=True)
    delay = official_schema.Float()
    speed = official_schema.Double()
    text = official_schema.String()
    legs = official_schema.Array(Leg())
    tags = official_schema.Map(official_schema.Integer())
    gate = official_schema.CustomEnum(Gate)
    other_gate = official_schema.CustomEnum(Gate)
    leg = Leg()


def test_values_of_the_python_client() -> None:
    flight = Flight(
        number=2**62,
        delay=math.nan,
        speed=-math.inf,
        text="ü😀\x01",
        legs=[Leg(city="x"), Leg()],
        tags={"a": 1},
        gate=Gate.A,
        other_gate=Gate.B,
    )
    definition = json.dumps(Flight.schema())
    payload = official_schema.JsonSchema(Flight).encode(flight)
    # It writes the values of an enum, of any type, while Java writes the names.
    assert repr(decode_one(payload, arrow_type_of(definition), definition)) == repr(
        {
            "number": 2**62,
            "delay": math.nan,
            "speed": -math.inf,
            "text": "ü😀\x01",
            "legs": [{"city": "x"}, {"city": None}],
            "tags": [("a", 1)],
            "gate": "1",
            "other_gate": "b",
            "leg": {"city": None},
        }
    )


def test_a_union_of_several_types_is_a_text() -> None:
    definition = record(("u", ["null", "int", "string"]), ("n", ["int", "null", "long"]), ("f", ["float", "double"]))
    wanted = pa.struct([("u", pa.string()), ("n", pa.int64()), ("f", pa.float64())])
    assert arrow_type_of(definition) == wanted
    decoded = decode(['{"u": 1, "n": 2, "f": 3}', '{"u": "1", "n": null}', '{"u": null}'], wanted, definition)
    assert decoded.values.to_pylist() == [
        {"u": "1", "n": 2, "f": 3.0},
        {"u": "1", "n": None, "f": None},
        {"u": None, "n": None, "f": None},
    ]
    assert decode_one('{"u": 1}', pa.struct([("u", pa.int32())]), definition) == {"u": 1}
    assert decode_one('{"u": "1"}', pa.struct([("u", pa.int32())]), definition) == 'field u: "1" is not a valid int'


def test_the_type_of_a_definition_can_be_read() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": logical("long", "timestamp-micros")}]}
    definition = record(
        ("b", "boolean"), ("i", "int"), ("l", ["null", "long"]), ("f", "float"), ("d", "double"), ("s", "string"),
        ("y", "bytes"), ("x", {"type": "fixed", "name": "X", "size": 2}), ("n", "null"),
        ("e", {"type": "enum", "name": "E", "symbols": ["A"]}),
        ("c", logical("bytes", "decimal", precision=4, scale=1)),
        ("w", ["null", logical("string", "decimal", precision=38, scale=9)]),
        ("v", logical("string", "decimal", precision=39)), ("u", logical("string", "decimal", precision=2, scale=3)),
        ("day", logical("int", "date")), ("time", logical("int", "time-millis")), ("id", logical("string", "uuid")),
        ("ms", logical("long", "timestamp-millis")), ("local", logical("long", "local-timestamp-micros")),
        ("ns", logical("long", "timestamp-nanos")), ("list", {"type": "array", "items": ["null", inner]}),
        ("map", {"type": "map", "values": "I"}),
    )  # fmt: skip
    fields = {field.name: field.type for field in arrow_type_of(definition)}
    assert fields == {
        "b": pa.bool_(), "i": pa.int32(), "l": pa.int64(), "f": pa.float32(), "d": pa.float64(), "s": pa.string(),
        "y": pa.binary(), "x": pa.binary(), "n": pa.null(), "e": pa.string(), "c": pa.decimal128(4, 1),
        "w": pa.decimal128(38, 9), "v": pa.string(), "u": pa.string(),
        "day": pa.date32(), "time": pa.int32(), "id": pa.string(), "ms": INSTANT, "local": LOCAL, "ns": pa.int64(),
        "list": pa.list_(pa.struct([("at", INSTANT)])), "map": pa.map_(pa.string(), pa.struct([("at", INSTANT)])),
    }  # fmt: skip
    assert decode_one("{}", pa.struct(list(fields.items())), definition) == dict.fromkeys(fields)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("string", pa.int32()), ("double", pa.int64()), ("double", pa.float32()), ("long", pa.float64()),
        ("boolean", pa.int8()), (logical("long", "timestamp-millis"), LOCAL), ("long", INSTANT), ("int", pa.date32()),
        ({"type": "array", "items": "int"}, pa.struct([])), ({"type": "map", "values": "int"}, pa.list_(pa.int32())),
    ],
)  # fmt: skip
def test_types_that_contradict_the_definition_are_refused_with_their_field(kind: Any, wanted: pa.DataType) -> None:
    with pytest.raises(OptionError, match="field f: the schema of the JSON values says"):
        json_decoder(pa.struct([("f", wanted)]), record(("f", kind)))


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (pa.struct([("a", pa.list_(pa.uint8()))]), r"field a\[\]: Spark has no type uint8"),
        (pa.map_(pa.int32(), pa.int32()), "its keys must be strings"),
        (pa.timestamp("ms"), "Spark has no type timestamp"),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), "two of the wanted fields are the key 'a'"),
    ],
)
def test_types_without_json_are_refused(wanted: pa.DataType, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        json_decoder(wanted)


def test_an_invalid_definition_is_refused() -> None:
    with pytest.raises(OptionError, match="the definition of the JSON schema is not an Avro schema"):
        json_decoder(pa.struct([]), '{"type": "record"}')
