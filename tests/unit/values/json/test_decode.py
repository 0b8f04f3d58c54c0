"""Values and reasons of JSON payloads, alike in the compiled decoder and `explain`; see also tests/matrices."""

from __future__ import annotations

import datetime
import enum
import itertools
import json
import math
import re
import sys
import zoneinfo
from collections.abc import Callable, Iterator
from decimal import Decimal
from random import Random
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
FOLLOWING = pa.array([b" " * 512], pa.binary())


def decode(payloads: list[bytes | str | None], wanted: pa.DataType, definition: str | None = None) -> Decoded:
    """Return what both decoders make of payloads, which must be the same."""
    data = pa.array([one.encode() if isinstance(one, str) else one for one in payloads], pa.binary())
    native = json_decoder(wanted, definition, "native").decode(data)
    python = json_decoder(wanted, definition, "python").decode(data)
    native.values.validate(full=True)
    assert native.values.type == python.values.type == wanted
    assert shown(native.values) == shown(python.values)
    assert dict(native.reasons) == dict(python.reasons)
    assert all(not native.values[row].is_valid for row in native.reasons)
    # The same once more, where the keys are known already, and more of the batch follows: there is a fast way then.
    again = json_decoder(wanted, definition, "native").decode(pa.concat_arrays([data, data, FOLLOWING]))
    assert shown(again.values[len(data) : 2 * len(data)]) == shown(native.values)
    expected = {first + row: reason for first in (0, len(data)) for row, reason in native.reasons.items()}
    assert {row: reason for row, reason in again.reasons.items() if row < 2 * len(data)} == expected
    return native


def shown(values: pa.Array) -> str:
    """In which NaN is NaN, and with timestamps that Python's do not reach."""
    try:
        return repr(values.to_pylist())
    except (ValueError, OverflowError):
        return str(values)


def decode_one(payload: bytes | str, wanted: pa.DataType, definition: str | None = None) -> Any:
    """The value of a payload, or the reason why there is none."""
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
        # That the whole is no JSON counts more than that a part of it does not fit.
        ('{"a": "x", "b": nil}', pa.struct([("a", pa.int8())]), "it is not JSON: Expecting value at byte 16"),
    ],
)
def test_reasons(payload: bytes | str, type_: pa.DataType, reason: str) -> None:
    assert decode_one(payload, type_) == reason
    inside = '{"f":%s}'
    if isinstance(payload, str) and not reason.startswith(("field", "it is")):
        assert decode_one(inside % payload, pa.struct([("f", type_)])) == f"field f: {reason}"


@pytest.mark.parametrize(
    ("payload", "type_", "value"),
    [
        ("-0", pa.int8(), 0),
        ("-0", pa.float64(), -0.0),
        ("0e400", pa.float64(), 0.0),
        ("1e-400", pa.float64(), 0.0),
        ("123456789012345678901234567890", pa.float64(), 123456789012345678901234567890.0),
        ("9007199254740993", pa.float64(), 9007199254740992.0),
        ('"NaN"', pa.float64(), math.nan),
        ("-Infinity", pa.float32(), -math.inf),
        ('"+INF"', pa.float64(), math.inf),
        ("1e3", pa.decimal128(6, 2), Decimal("1000.00")),
        ("-0.00", pa.decimal128(6, 2), Decimal("0.00")),
        ("99999999999999999999999999999999999999", pa.decimal128(38, 0), Decimal("9" * 38)),
        ("0.1000000000000000000000000000000000000000", pa.decimal128(3, 1), Decimal("0.1")),
        ('"+007.50"', pa.decimal128(3, 2), Decimal("7.50")),
        ('"\\u0031.5"', pa.decimal128(3, 2), Decimal("1.50")),
        ('"AQI\\u003d"', pa.binary(), b"\x01\x02"),
        ('""', pa.binary(), b""),
        ('"\\ud83d\\ude00\\u0000\\/\\b\\f"', pa.string(), "😀\0/\b\f"),
        ('{"a" : [1,  2.50]}', pa.string(), '{"a" : [1,  2.50]}'),
        ("-12.50e1", pa.string(), "-12.50e1"),
        ("false", pa.string(), "false"),
        ("NaN", pa.string(), "NaN"),
        ('["[", {"a]": []}]', pa.list_(pa.string()), ["[", '{"a]": []}']),
        ('"0001-1-1"', pa.date32(), datetime.date(1, 1, 1)),
        ('"9999-12-31"', pa.date32(), datetime.date(9999, 12, 31)),
        ('"2020-2-29 1:2"', LOCAL, datetime.datetime(2020, 2, 29, 1, 2)),
        ('"2020-02-29"', LOCAL, datetime.datetime(2020, 2, 29)),
        ('"1969-12-31T23:59:59.9999999UTC"', INSTANT, datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        ('"2020-01-01T00:00:00.5+0130"', INSTANT, datetime.datetime(2019, 12, 31, 22, 30, 0, 500000, UTC)),
        ('"2020-01-01T00:00:00-08"', INSTANT, datetime.datetime(2020, 1, 1, 8, tzinfo=UTC)),
        ("-1", INSTANT, datetime.datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)),
        ('{"a":1,"a":2}', pa.struct([("a", pa.int8())]), {"a": 2}),
        ('{"a":[1,2],"a":null}', pa.struct([("a", pa.list_(pa.int8()))]), {"a": None}),
        ('{"A":1,"\\u0061":3}', pa.struct([("a", pa.int8())]), {"a": 3}),
        ('{"a":1,"b":2,"a":{"x":[]}}', pa.map_(pa.string(), pa.string()), [("b", "2"), ("a", '{"x":[]}')]),
        ('{"\\ud800":1}', pa.struct([("a", pa.int8())]), {"a": None}),
        ("[null, 5, {}]", pa.null(), None),
        ("[[], 5]", pa.list_(pa.null()), [None, None]),
    ],
)
def test_values(payload: str, type_: pa.DataType, value: Any) -> None:
    assert repr(decode_one(payload, type_)) == repr(value)
    assert repr(decode_one(f' {{"x":[{{}}],"f":{payload}}}\n', pa.struct([("f", type_)]))) == repr({"f": value})


@pytest.mark.parametrize("count", [2, 16, 17, 1000])
def test_the_last_of_equal_keys_in_a_map_counts(count: int) -> None:
    members = [(f"k{n}", n) for n in range(count)]
    again = [*members, ("k0", -1), (f"k{count - 1}", -2)]
    text = "{" + ",".join(f'"{key}":{{"n":{n}}}' for key, n in again) + "}"
    expected = dict(members) | {"k0": -1, f"k{count - 1}": -2}
    found = decode_one(text, pa.map_(pa.string(), pa.struct([("n", pa.int32())])))
    assert len(found) == count
    assert dict(found) == {key: {"n": n} for key, n in expected.items()}


def test_the_last_of_empty_keys_counts() -> None:
    # The fuzzer's sanitizer (directed_json, seed 1251113585) saw keys without bytes compared at no address.
    assert decode_one('{"":1,"":2}', pa.map_(pa.string(), pa.int32())) == [("", 2)]


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_nesting_is_bounded_in_what_is_wanted_and_what_is_not(opening: str, closing: str) -> None:
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
    """Maps within maps, each of which has equal keys around and beside the next one."""
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
        """Return the number of calls that decoding and finding the reason make."""
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
        assert decoder.reread <= MAP_DEPTH * size
        return next(calls)

    few = work_of(10_000)
    assert work_of(1_000_000) <= 110 * few


@pytest.mark.parametrize("extra", [0, 3, 200])
def test_keys_of_all_lengths_are_told_apart_in_any_order(extra: int) -> None:
    rng = Random(extra)
    names = ["k" * size for size in range(40)] + ["k" * size + "x" for size in range(40)]
    others = [f"{'k' * rng.randint(0, 70)}{number}" for number in range(extra)]
    type_ = pa.struct([(name, pa.int32()) for name in names])
    texts: list[bytes | str | None] = []
    rows = []
    for number in range(50):
        # In one order for a while, then with keys left out, then in others.
        keys = sorted(names + others) if number < 20 else rng.sample(names + others, rng.randint(0, len(names)))
        texts.append(json.dumps({key: at for at, key in enumerate(keys)}))
        rows.append(dict.fromkeys(names) | {key: at for at, key in enumerate(keys) if key in names})
    assert decode(texts, type_).values.to_pylist() == rows


@pytest.mark.parametrize("wanted", ["abcdefgh", "bfg", "hca"])
def test_keys_are_left_out_and_change_their_order_from_row_to_row(wanted: str) -> None:
    rng = Random(20_260)
    rows: list[dict[str, Any]] = []
    for _ in range(500):
        keys = [key for key in "abcdefgh" if rng.random() < 0.8]
        if rng.random() < 0.1:
            rng.shuffle(keys)
        rows.append(
            {key: rng.choice([f"{key} of {len(rows)}", len(rows), -1.5, None, [key], {"a": key}]) for key in keys}
        )
    texts = [json.dumps(row) for row in rows]
    decoded = decode(list(texts), pa.struct([(key, pa.string()) for key in wanted]))
    assert not decoded.reasons
    shown_of = [
        {key: value if isinstance(value, str) or value is None else json.dumps(value) for key, value in row.items()}
        for row in rows
    ]
    assert decoded.values.to_pylist() == [{key: row.get(key) for key in wanted} for row in shown_of]


def test_a_byte_that_is_not_utf8_is_found_wherever_it_is() -> None:
    text = b'{"a":"' + bytes(range(0x30, 0x5B)) * 2 + b'"}'
    wanted = pa.struct([("a", pa.string())])
    good = [text[:at] + "\u00e9".encode() + text[at:] for at in range(6, len(text) - 1)]
    decoded = decode([*good, *(text[:at] + b"\xe9" + text[at:] for at in range(6, len(text) - 1))], wanted)
    assert decoded.values.to_pylist()[: len(good)] == [json.loads(one) for one in good]
    assert dict(decoded.reasons) == {len(good) + at: f"it is not UTF-8 at byte {at + 6}" for at in range(len(good))}


def test_slices_and_nulls_of_a_batch() -> None:
    payloads = pa.array([b"1", None, b"x", b"2", b"", b"3"], pa.binary())
    for implementation in ("native", "python"):
        decoder = json_decoder(pa.int64(), None, implementation)
        decoded = decoder.decode(payloads.slice(1, 3))
        assert decoded.values.to_pylist() == [None, None, 2]
        assert list(decoded.reasons) == [1]
        assert decoder.decode(payloads.slice(3)).values.to_pylist() == [2, None, 3]
        assert decoder.decode(payloads.slice(0, 0)).values.to_pylist() == []


# -- definitions


def record(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": type_} for name, type_ in fields]}
    )


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def test_numbers_are_what_the_definition_says() -> None:
    definition = record(
        ("day", ["null", logical("int", "date")]),
        ("ms", logical("long", "timestamp-millis")),
        ("us", ["null", logical("long", "timestamp-micros")]),
        ("local", {"type": "array", "items": logical("long", "local-timestamp-millis")}),
        ("inner", {"type": "map", "values": {"type": "record", "name": "I", "fields": [
            {"name": "at", "type": logical("long", "timestamp-millis")}]}}),
        ("again", ["null", "I"]),
    )  # fmt: skip
    inner = pa.struct([("at", INSTANT)])
    wanted = pa.struct(
        [("DAY", pa.date32()), ("ms", INSTANT), ("us", INSTANT), ("local", pa.list_(LOCAL)),
         ("inner", pa.map_(pa.string(), inner)), ("again", inner), ("unknown", pa.int8())]
    )  # fmt: skip
    text = '{"day": 1, "ms": -1, "us": 2, "local": [3], "inner": {"k": {"at": 4}}, "again": {"at": "2020-01-01T00Z"}}'
    moment = datetime.datetime(1970, 1, 1, tzinfo=UTC)
    ms = datetime.timedelta(milliseconds=1)
    assert decode_one(text.replace("00Z", "00:00Z"), wanted, definition) == {
        "DAY": datetime.date(1970, 1, 2),
        "ms": moment - ms,
        "us": moment + ms / 500,
        "local": [(moment + 3 * ms).replace(tzinfo=None)],
        "inner": [("k", {"at": moment + 4 * ms})],
        "again": {"at": datetime.datetime(2020, 1, 1, tzinfo=UTC)},
        "unknown": None,
    }
    assert decode_one('{"day": 2147483648}', wanted, definition) == "field day: 2147483648 is not a valid date"
    beyond = decode_one('{"ms": 9223372036854776}', wanted, definition)
    assert beyond == "field ms: 9223372036854776 is not a valid timestamp"


TIMES = record(
    ("t", logical("long", "timestamp-millis")), ("l", logical("long", "local-timestamp-micros")),
    ("d", logical("int", "date")), ("m", logical("int", "time-millis")), ("u", logical("long", "time-micros")),
)  # fmt: skip
SOME_TIMES = pa.struct([("t", INSTANT), ("l", LOCAL), ("d", pa.date32()), ("m", pa.int32()), ("u", pa.int64())])


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("t", "1.5", datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        ("t", "0.000000999", datetime.datetime(1970, 1, 1, tzinfo=UTC)),
        ("t", "-1.500000000", datetime.datetime(1969, 12, 31, 23, 59, 59, 500_000, UTC)),
        ("t", "-0.25", datetime.datetime(1969, 12, 31, 23, 59, 59, 750_000, UTC)),
        ("t", "-62135596800.0", datetime.datetime(1, 1, 1, tzinfo=UTC)),
        ("t", "9223372036854.775808", "9223372036854.775808 is not a valid timestamp"),
        ("t", "-9223372036855.0", "-9223372036855.0 is not a valid timestamp"),
        ("t", "1234567890123456789012.5", "1234567890123456789012.5 is not a valid timestamp"),
        ("t", "1.5e3", "1.5e3 is not a valid timestamp"),
        ("t", "[2020, 1, 2, 3, 4]", "an array is not a valid timestamp"),
        ("l", "1.5", "1.5 is not a valid timestamp_ntz"),
        ("l", "[2020 , 2,29,23, 59,58,999999999]", datetime.datetime(2020, 2, 29, 23, 59, 58, 999_999)),
        ("l", "[2020,1,2,3,4]", datetime.datetime(2020, 1, 2, 3, 4)),
        ("l", "[2020,1,2,3]", "an array is not a valid timestamp_ntz"),
        ("l", "[2020,1,2,3,4,5,6,7]", "an array is not a valid timestamp_ntz"),
        ("l", "[2020,1,2,24,4]", "an array is not a valid timestamp_ntz"),
        ("l", '[2020,1,2,3,"4"]', "an array is not a valid timestamp_ntz"),
        ("l", "[2020,1,2,3,[4]]", "an array is not a valid timestamp_ntz"),
        ("d", "[1,1,1]", datetime.date(1, 1, 1)),
        ("d", "[2021,2,29]", "an array is not a valid date"),
        ("d", "[10000,1,1]", "an array is not a valid date"),
        ("d", "[2021,9223372036854775807,1]", "an array is not a valid date"),
        ("d", "[2021,1,1,0]", "an array is not a valid date"),
        ("d", "[]", "an array is not a valid date"),
        ("d", "{}", "an object is not a valid date"),
        ("m", "5", 5),
        ("m", "[0,0]", 0),
        ("m", "[23,59,59,999999999]", 86_399_999),
        ("m", "[1]", "an array is not a valid int"),
        ("m", "[1,2,3,1000000000]", "an array is not a valid int"),
        ("m", "[1,2,3,4,5]", "an array is not a valid int"),
        ("m", "[1,-2]", "an array is not a valid int"),
        ("u", "[23,59,59,999999999]", 86_399_999_999),
        ("u", "[1,2,60]", "an array is not a valid bigint"),
    ],
)
def test_times_as_jackson_writes_those_of_java(name: str, text: str, value: Any) -> None:
    found = decode_one(f'{{"{name}":{text}}}', SOME_TIMES, TIMES)
    assert found == (f"field {name}: {value}" if isinstance(value, str) else dict.fromkeys("tldmu") | {name: value})


@pytest.mark.parametrize(
    ("type_", "title"),
    [(pa.bool_(), "boolean"), (pa.int32(), "int"), (pa.float32(), "float"), (pa.float64(), "double"),
     (pa.decimal128(5, 2), "decimal(5,2)"), (pa.binary(), "binary"), (INSTANT, "timestamp")],
    ids=str,
)  # fmt: skip
def test_an_array_of_parts_is_refused_by_types_without_parts(type_: pa.DataType, title: str) -> None:
    payloads: list[bytes | str | None] = [json.dumps({"a": list(range(1, count + 1))}) for count in range(9)]
    decoded = decode(payloads, pa.struct([("a", type_)]))
    assert dict(decoded.reasons) == dict.fromkeys(range(9), f"field a: an array is not a valid {title}")


def test_a_time_of_day_that_its_column_cannot_hold_is_a_reason() -> None:
    wanted = pa.struct([("u", pa.int32())])
    assert decode_one('{"u":[1,0]}', wanted, TIMES) == "field u: an array is not a valid int"
    assert decode_one('{"u":[0,1]}', wanted, TIMES) == {"u": 60_000_000}


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


def test_what_the_python_client_writes() -> None:
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
    # It writes the values of an enum, of whatever type, where Java writes the names.
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
        ("int", pa.int8()), ("int", pa.float64()), ("long", pa.decimal128(19, 0)), ("float", pa.float64()),
        ("double", pa.decimal128(38, 10)), ("string", INSTANT), (logical("long", "timestamp-millis"), pa.int64()),
        (logical("bytes", "decimal", precision=4, scale=2), pa.decimal128(10, 2)), ("bytes", pa.binary()),
        ("boolean", pa.string()), ({"type": "array", "items": "int"}, pa.string()),
    ],
)  # fmt: skip
def test_what_can_be_without_loss_is_allowed(kind: Any, wanted: pa.DataType) -> None:
    assert decode_one("{}", pa.struct([("f", wanted)]), record(("f", kind))) == {"f": None}


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("string", pa.int32()), ("double", pa.int64()), ("double", pa.float32()), ("long", pa.float64()),
        ("boolean", pa.int8()), (logical("long", "timestamp-millis"), LOCAL), ("long", INSTANT), ("int", pa.date32()),
        ({"type": "array", "items": "int"}, pa.struct([])), ({"type": "map", "values": "int"}, pa.list_(pa.int32())),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_its_field(kind: Any, wanted: pa.DataType) -> None:
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
def test_what_has_no_json_is_refused(wanted: pa.DataType, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        json_decoder(wanted)


def test_a_definition_that_is_none_is_refused() -> None:
    with pytest.raises(OptionError, match="the definition of the JSON schema is not an Avro schema"):
        json_decoder(pa.struct([]), '{"type": "record"}')
