import contextlib
import dataclasses
import itertools
import struct
import sys

import pyarrow as pa
import pytest
from google.protobuf import __version__ as protobuf_version
from google.protobuf import struct_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from spark_mq_source.core.errors import OptionError, UnsupportedFeatureError
from spark_mq_source.values.protobuf import schema as protobuf_schema
from spark_mq_source.values.protobuf.decode import arrow_type_of, protobuf_decoder
from spark_mq_source.values.protobuf.encode import protobuf_encoder
from spark_mq_source.values.steps import codes_of
from tests.oracles.protobuf import Schema, add, new_file, schema, sized, tag, varint

_decode_native = pytest.importorskip("spark_mq_source.values.protobuf._decode_native", exc_type=ImportError)

TIMESTAMP = pa.timestamp("us", "UTC")


@pytest.fixture
def decode():
    """Return a function from payloads, each bytes or None, to rows and reasons."""

    def decode(schema, *payloads, wanted=None):
        type_ = wanted or arrow_type_of(schema.descriptors, schema.message)
        decoder = protobuf_decoder(schema.descriptors, schema.message, type_)
        decoded = decoder.decode(pa.array(payloads, pa.binary()))
        assert decoded.values.type == type_
        decoded.values.validate(full=True)
        return decoded.values.to_pylist(), dict(decoded.reasons)

    return decode


@pytest.fixture
def value(decode):
    """Return a function from a good message of one field to its value."""

    def value(schema, payload, wanted=None):
        [row], reasons = decode(schema, payload, wanted=None if wanted is None else pa.struct([("f", wanted)]))
        assert not reasons
        return row["f"]

    return value


def wire(number, payload):
    """Return a field: a number as a varint, bytes and texts with their length, a float in eight bytes."""
    if isinstance(payload, int):
        return tag(number, 0) + varint(payload)
    if isinstance(payload, float):
        return tag(number, 1) + struct.pack("<d", payload)
    return tag(number, 2) + sized(payload.encode() if isinstance(payload, str) else payload)


# -- types


def test_an_entry_dropped_by_a_closed_enum_is_not_checked(decode):
    message = schema("M: by map<string, Color> 1", syntax="proto2", enums="Color: A 0, B 9")
    bad_key = wire(1, b"\xff")
    payloads = [wire(1, bad_key + wire(2, 77)), wire(1, bad_key + wire(2, 77)) + wire(1, wire(1, "k") + wire(2, 9))]
    assert decode(message, *payloads) == ([{"by": []}, {"by": [("k", "B")]}], {})
    assert decode(message, wire(1, bad_key + wire(2, 9)))[0] == [None]
    # As in protobuf's runtime.
    assert [dict(message.make.FromString(payload).by) for payload in payloads] == [{}, {"k": 9}]


@pytest.mark.parametrize(
    ("seconds", "nanos", "micros"),
    [
        (0, 0, 0),
        (1, 999_999_999, 1_999_999),
        (-1, 1_500, -999_999),
        (-1, -1_500, -1_000_001),
        (-62_135_596_800, 0, None),
    ],
)
def test_times_are_in_microseconds_rounded_towards_zero(decode, seconds, nanos, micros):
    message = schema("M: at Timestamp 1, took Duration 2")
    type_ = arrow_type_of(message.descriptors, "M")
    assert type_ == pa.struct([("at", TIMESTAMP), ("took", pa.duration("us"))])
    payload = wire(1, seconds) + wire(2, nanos)
    wanted = pa.struct([(name, pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])) for name in ("at", "took")])
    both = {"seconds": seconds or None, "nanos": nanos or None}
    assert decode(message, wire(1, payload) + wire(2, payload), wanted=wanted) == ([{"at": both, "took": both}], {})
    decoder = protobuf_decoder(message.descriptors, "M", type_)
    [found] = decoder.decode(pa.array([wire(1, payload) + wire(2, payload)], pa.binary())).values
    expected = seconds * 1_000_000 if micros is None else micros
    assert (found["at"].value, found["took"].value) == (expected, expected)


def test_a_time_beyond_microseconds_is_corrupt(decode):
    message = schema("M: at Timestamp 1, n int32 2")
    rows, reasons = decode(message, wire(1, wire(1, 2**62)), wire(2, 1))
    assert rows == [None, {"at": None, "n": 1}]
    assert reasons[0].startswith("field at: it is out of range as microseconds")


def test_wrappers_are_structs_and_empty_messages_no_columns():
    message = schema("M: a Int64Value 1, b Nothing 2, c map<int32, Nothing> 3, d StringValue 4\nNothing:")
    expected = pa.struct([("a", pa.struct([("value", pa.int64())])), ("d", pa.struct([("value", pa.string())]))])
    assert arrow_type_of(message.descriptors, "M") == expected
    assert arrow_type_of(message.descriptors, "Nothing") == pa.struct([])


def test_a_message_without_columns_is_still_read(decode):
    assert decode(schema("M:"), b"", wire(1, 5), None, b"\x08") == (
        [{}, {}, None, None],
        {3: decode(schema("M:"), b"\x08")[1][0]},
    )


# -- presence


def test_an_absent_field_is_the_default_of_its_descriptor(decode):
    message = schema(
        r"M: a int32 1 = -7, b string 2 = zwei, c bytes 3 = \377a, d double 4 = 0.5, e float 5 = 0.5, f bool 6 = true, "
        "g Color 7 = BLUE, h int32 8, i uint64 9 = 18446744073709551615",
        syntax="proto2",
        enums="Color: RED 0, BLUE 4",
    )
    defaults = {"a": -7, "b": "zwei", "c": b"\xffa", "d": 0.5, "e": 0.5, "f": True, "g": "BLUE", "h": None, "i": -1}
    assert decode(message, b"", wire(1, 0) + wire(2, "")) == ([defaults, defaults | {"a": 0, "b": ""}], {})


def test_a_message_without_a_required_field_is_corrupt(decode):
    message = schema("M: repeated parts Part 1\nPart: required a int32 1, b int32 2", syntax="proto2")
    payload = wire(1, wire(1, 0)) + wire(1, wire(2, 1))
    reasons = {1: "field parts[1].a: it is required, and missing"}
    assert decode(message, wire(1, wire(1, 0)), payload) == ([{"parts": [{"a": 0, "b": None}]}, None], reasons)
    wanted = pa.struct([("parts", pa.list_(pa.struct([("b", pa.int32())])))])
    assert decode(message, payload, wanted=wanted) == ([{"parts": [{"b": None}, {"b": 1}]}], {})


# -- any order, any number of times


def test_a_message_replaced_within_a_oneof_must_be_valid_too(decode):
    message = schema(
        "M: a int32 1 / o, b Part 2 / o\nPart: required x int32 1, y string 2, at Timestamp 3", syntax="proto2"
    )
    good = wire(2, wire(2, b"\xff") + wire(3, wire(1, 2**62)))
    rows, reasons = decode(message, wire(2, wire(3, b"\x08")) + wire(1, 1), good + wire(1, 1), good)
    assert rows == [None, {"a": 1, "b": None}, None]
    assert list(reasons) == [0, 2]
    assert "(" in reasons[0]


def test_the_last_entry_of_a_key_is_taken(decode):
    message = schema("M: a map<string, int32> 1, b map<bool, int32> 2")

    def entries(number, *pairs):
        return b"".join(wire(number, wire(1, key) + wire(2, item)) for key, item in pairs)

    few = entries(1, ("a", 1), ("b", 2), ("a", 3)) + entries(2, (1, 1), (0, 2), (1, 3))
    many = entries(1, *((str(n % 70), n) for n in range(100)))
    rows, reasons = decode(message, few, entries(1, ("a", 1)), many)
    assert not reasons
    assert rows[0] == {"a": [("b", 2), ("a", 3)], "b": [(False, 2), (True, 3)]}
    assert rows[1] == {"a": [("a", 1)], "b": []}
    assert rows[2]["a"] == [(str(n % 70), n) for n in range(30, 100)]


@pytest.mark.parametrize(
    ("item", "values"),
    [
        ("int32", [(wire(2, n), n) for n in range(5)]),
        ("optional bool", [(wire(2, n % 2), n % 2 == 1) for n in range(5)]),
        ("string", [(wire(2, "x" * n), "x" * n) for n in range(5)]),
        (
            "Part",
            [
                (wire(2, part), {"n": n or None, "ok": None if n == 3 else n % 2 == 1, "t": ["ab"[:n], "c"], "by": by})
                for n in range(5)
                for by in [[(1, "y" * n), (2, "z")]]
                for part in [
                    wire(1, n)
                    + (b"" if n == 3 else wire(2, n % 2))
                    + wire(3, "ab"[:n])
                    + wire(3, "c")
                    + wire(4, wire(1, 1) + wire(2, "x"))
                    + wire(4, wire(1, 1) + wire(2, "y" * n))
                    + wire(4, wire(1, 2) + wire(2, "z"))
                ]
            ],
        ),
    ],
)
def test_replaced_entries_leave_no_state(decode, item, values):
    item = item.removeprefix("optional ")
    message = schema(
        f"M: f map<int32, {item}> 1\nPart: n int32 1, optional ok bool 2, repeated t string 3, by map<int32, string> 4"
    )
    # Each choice of four keys for five entries, all in one batch.
    keys = [*itertools.product((7, 8, 9, 10), repeat=5)]
    payloads = [
        b"".join(wire(1, wire(1, key) + data) for key, (data, _) in zip(row, values, strict=True)) for row in keys
    ]
    rows, reasons = decode(message, *payloads)
    assert not reasons
    for row, found in zip(keys, rows, strict=True):
        last = {key: at for at, key in enumerate(row)}
        assert found["f"] == [(key, values[at][1]) for at, key in enumerate(row) if last[key] == at]


def test_an_entry_of_a_map_may_have_fields_that_are_unknown(value):
    # As in Java; protobuf's C runtime, and so its Python package, drops such an entry.
    assert value(schema("M: f map<int32, int32> 1"), wire(1, wire(1, 1) + wire(3, "x") + wire(2, 2))) == [(1, 2)]


def test_a_field_0_is_accepted_in_a_skipped_group(decode):
    message = schema("M: a int32 1 / o, g group:Part 2 / o, c int32 3\nPart: x int32 1", syntax="proto2")
    payload = tag(2, 3) + b"\x00\x7f" + tag(2, 4) + wire(3, 1)
    assert decode(message, payload)[0] == [None]
    # Another field of its oneof is wanted, and it is not: directed_protobuf with seed 5002039.
    wanted = pa.struct([("a", pa.int32()), ("c", pa.int32())])
    assert decode(message, payload, tag(9, 3) + b"\x00\x7f" + tag(9, 4) + wire(3, 1), wanted=wanted) == (
        [{"a": None, "c": 1}] * 2,
        {},
    )


# -- hostile bytes


REASONS = {
    b"\x08": "a protobuf number does not end (byte 0)",
    b"\x08" + b"\x80" * 9 + b"\x80": "a protobuf number does not end (byte 0)",
    b"\x88\x80\x80\x80\x80\x00\x01": "a protobuf number does not end (byte 0)",
    wire(1, 1) + b"\x00\x01": "a protobuf field has an impossible number (byte 2)",
    b"\xf8\xff\xff\xff\x1f\x01": "a protobuf field has an impossible number (byte 0)",
    wire(2, "ab")[:-1]: "a protobuf field reaches past the end (byte 0)",
    b"\x12\xff\xff\xff\xff\x0f": "a protobuf field reaches past the end (byte 0)",
    tag(1, 1) + b"1234567": "a protobuf field reaches past the end (byte 0)",
    tag(9, 5) + b"123": "a protobuf field reaches past the end (byte 0)",
    tag(1, 6): "a protobuf field has an unknown wire type (byte 0)",
    tag(1, 7): "a protobuf field has an unknown wire type (byte 0)",
    tag(1, 4): "a protobuf field has an unknown wire type (byte 0)",
    tag(9, 3): "a protobuf group does not end (byte 0)",
    tag(9, 3) + tag(8, 4): "a protobuf field has an unknown wire type (byte 0)",
    wire(2, b"a\xff"): "field b: the text is not UTF-8 (byte 3)",
    wire(3, wire(1, "x") + b"\x0a"): "field m: a protobuf number does not end (byte 5)",
    wire(3, wire(1, b"\xed\xa0\x80")): "field m.x: the text is not UTF-8 (byte 4)",
    wire(4, b"") + wire(4, wire(1, b"\xff")): "field many[1].x: the text is not UTF-8 (byte 6)",
    wire(5, b"\x01\x80"): "field numbers[1]: a protobuf number does not end (byte 3)",
    wire(6, b"1234567"): "field doubles[0]: a protobuf field reaches past the end (byte 2)",
    wire(7, wire(2, wire(1, b"\xff"))): "field map[0].value.x: the text is not UTF-8 (byte 6)",
}  # fmt: skip
HOSTILE = (
    "M: a int32 1, b string 2, m Part 3, repeated many Part 4, repeated numbers int32 5, repeated doubles double 6, "
    "map map<string, Part> 7\nPart: x string 1"
)


@pytest.mark.parametrize("payload", REASONS, ids=lambda payload: payload.hex())
def test_a_bad_payload_has_a_reason_and_leaves_no_state(decode, payload):
    message = schema(HOSTILE)
    good = wire(1, 1) + wire(2, "z") + wire(4, wire(1, "x")) + wire(5, b"\x01\x02") + wire(7, wire(1, "k"))
    rows, reasons = decode(message, good, good + payload, None, payload, good)
    assert rows[1:4] == [None] * 3
    assert rows[0] == rows[4] == decode(message, good)[0][0]
    assert list(reasons) == [1, 3]
    assert reasons[3] == REASONS[payload]


def test_groups_may_be_nested_a_hundred_deep(decode):
    message = schema("M: a int32 1")
    deep, deeper = (tag(9, 3) * depth + tag(9, 4) * depth + wire(1, 5) for depth in (100, 101))
    rows, reasons = decode(message, deep, deeper)
    assert rows == [{"a": 5}, None]
    assert list(reasons) == [1]


def test_wanted_messages_may_be_nested_a_hundred_deep():
    message = schema("M: m M 1, x int32 2")
    wanted = pa.struct([("x", pa.int32())])
    for _ in range(102):
        wanted = pa.struct([("m", wanted)])
    deep = [wire(2, 5)]
    for _ in range(102):
        deep.append(wire(1, deep[-1]))
    decoder = protobuf_decoder(message.descriptors, "M", wanted)
    assert [*decoder.decode(pa.array(deep, pa.binary())).reasons] == [101, 102]
    for payload, is_taken in zip(deep[100:102], (True, False), strict=True):
        with contextlib.nullcontext() if is_taken else pytest.raises(DecodeError):
            message.make.FromString(payload)


def test_very_deep_groups_do_not_overflow_the_stack(decode):
    assert decode(schema("M: a int32 1"), tag(9, 3) * 1_000_000)[0] == [None]


DEEP = (
    "M: m M1 1, repeated g group:G 2, by map<int32, B1> 3, a M1 4 / o, b M1 5 / o, repeated n int32 6, t string 7\n"
    "M1: m M2 1, a M2 4 / o, b M2 5 / o\nM2: m Leaf 1, a Leaf 4 / o, b Leaf 5 / o\nLeaf: repeated n int32 1\n"
    "G: g group:G1 2\nG1: g group:G2 2\nG2: n int32 6\nB1: by map<int32, B2> 3\nB2: by map<int32, Leaf> 3"
)
LEAF = wire(1, 1)
HOSTILE_SHAPES = {
    "a message in pieces": wire(1, wire(1, wire(1, LEAF))),
    "a message in pieces of pieces": wire(1, wire(1, wire(1, LEAF) * 5) * 5),
    "elements": wire(6, 1),
    "elements in runs": wire(6, b"\x01\x02\x03") + wire(6, 1) + wire(6, b""),
    "groups": tag(2, 3) * 3 + wire(6, 1) + tag(2, 4) * 3,
    "groups that are unknown": tag(9, 3) * 100 + tag(9, 4) * 100,
    "entries of one key": wire(3, wire(2, wire(3, wire(2, wire(3, wire(2, LEAF)) * 2)) * 2)) * 2,
    "a oneof that flips": wire(4, wire(4, wire(4, LEAF) + wire(5, LEAF)) * 2) + wire(5, wire(5, LEAF)),
    "unknown fields": wire(9, 1) + wire(9, b"abc"),
    "long numbers": tag(6, 0) + b"\x81" + b"\x80" * 8 + b"\x00",
    "texts": wire(7, "Zürich" * 20),
}


@pytest.mark.parametrize("end", [b"", b"\x08"], ids=["whole", "corrupt"])
@pytest.mark.parametrize("shape", HOSTILE_SHAPES)
def test_the_work_is_linear_in_the_size(shape, end):
    message = schema(DEEP, syntax="proto2")
    work = []
    for size in (10_000, 1_000_000):
        payload = HOSTILE_SHAPES[shape] * (size // len(HOSTILE_SHAPES[shape])) + end
        decoder = protobuf_decoder(message.descriptors, "M", arrow_type_of(message.descriptors, "M"))
        decoded = decoder.decode(pa.array([payload], pa.binary()))
        assert len(decoded.reasons) == len(end)
        work.append(1 + decoder.work / len(payload))
    # Each byte is read once for each message that contains it, and each value moved once for each map.
    assert max(work) < 8
    assert work[1] == pytest.approx(work[0], rel=0.05)


def test_the_work_does_not_multiply_with_the_depth_of_maps():
    work = []
    for depth in (2, 8):
        inner = "\n".join(f"M{at}: by map<int32, M{at + 1}> 1" for at in range(depth))
        message = schema(f"M: by map<int32, M0> 1\n{inner}\nM{depth}: x int32 1")
        payload = b""
        for _ in range(depth + 1):
            payload = wire(1, wire(2, payload)) * 2
        decoder = protobuf_decoder(message.descriptors, "M", arrow_type_of(message.descriptors, "M"))
        assert not decoder.decode(pa.array([payload], pa.binary())).reasons
        work.append(decoder.work / len(payload) / depth)
    assert work[1] < 2 * work[0]


# -- steps


PUTS = {
    "int32": ["INT"], "int64": ["LONG", "NUMBER", "FLOAT", "MICROS"], "double": ["LONG", "NUMBER", "FLOAT", "MICROS"],
    "bool": ["BOOL"], "string": ["BINARY", "TEXT"], "bytes": ["BINARY", "TEXT"], "Part": ["STRUCT"],
}  # fmt: skip


@pytest.mark.parametrize("kind", PUTS)
@pytest.mark.parametrize("put", list(codes_of(_decode_native.Put)))
def test_a_column_accepts_only_steps_that_fit_it(kind, put):
    message = schema(f"M: f {kind} 1\nPart: x int32 1, y int32 2")
    wanted = arrow_type_of(message.descriptors, "M")
    plan = protobuf_schema.plan_of(message.descriptors, "M", wanted)
    two = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    parts = [protobuf_schema.plan_of(message.descriptors, "Part", type_) for type_ in (two, pa.struct([]))]
    for part in (None, *parts):
        wrong = dataclasses.replace(plan, fields=(dataclasses.replace(plan.fields[0], put=put, message=part),))
        needs_message = put in ("STRUCT", "MICROS")
        if put in PUTS[kind] and part is (parts[0] if needs_message else None):
            _decode_native.ProtobufDecoder(wrong, wanted)
        else:
            with pytest.raises(TypeError, match=r"^the protobuf decoder cannot put field f into a column of "):
                _decode_native.ProtobufDecoder(wrong, wanted)


def test_a_message_needs_a_struct_of_its_columns():
    message = schema("M: x int32 1, y int32 2")
    plan = protobuf_schema.plan_of(message.descriptors, "M", pa.struct([("x", pa.int32()), ("y", pa.int32())]))
    for type_ in (pa.int32(), pa.struct([("x", pa.int32())]), pa.list_(pa.int32())):
        with pytest.raises(TypeError, match=r"^the protobuf decoder cannot put message p.M into a column of "):
            _decode_native.ProtobufDecoder(plan, type_)


# -- wanted columns


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ([("z", pa.int32())], "p.M has no single field z (it has a, A, parts, at, by)"),
        ([("PARTS", pa.list_(pa.struct([("q", pa.int32())])))], "p.Part has no single field parts.q (it has x)"),
        ([("a", pa.string())], "a is int32, not string"),
        ([("a", pa.list_(pa.int32()))], "a is int32, not list<item: int32>"),
        ([("parts", pa.int32())], "parts is an array, not int32"),
        ([("parts", pa.list_(pa.int32()))], "parts is a struct of x, not int32"),
        ([("at", pa.timestamp("us"))], "at is timestamp[us, tz=UTC], not timestamp[us]"),
        ([("at", pa.int64())], "at is timestamp[us, tz=UTC], not int64"),
        ([("by", pa.list_(pa.int32()))], "by is a map, not list<item: int32>"),
        ([("by", pa.map_(pa.int32(), pa.int32()))], "by.key is string, not int32"),
        ([("a", pa.bool_()), ("A", pa.bool_())], "a is int32, not bool; A is int64, not bool"),
    ],
)
def test_columns_that_do_not_fit_are_named(wanted, problem):
    message = schema(
        "M: a int32 1, A int64 2, repeated parts Part 3, at Timestamp 4, by map<string, int32> 5\nPart: x int32 1"
    )
    with pytest.raises(OptionError) as caught:
        protobuf_decoder(message.descriptors, "M", pa.struct(wanted))
    assert str(caught.value) == f"protobuf message p.M does not fit the wanted columns: {problem}"


def test_a_field_that_the_writer_lacks_is_absent(decode):
    older = schema("M: a int32 1, part Part 2\nPart: x int32 1", syntax="proto2")
    newer = schema(
        "M: a int32 1, b string 3, repeated c int32 4, d map<int32, Part> 5, e int32 6 = 7, part Part 2\n"
        "Part: x int32 1, y Timestamp 2",
        syntax="proto2",
    )
    payload = older.make(a=1, part={"x": 2}).SerializeToString()
    wanted = arrow_type_of(newer.descriptors, "M")
    decoder = protobuf_decoder(older.descriptors, "M", wanted, (newer.descriptors, "M"))
    decoded = decoder.decode(pa.array([payload], pa.binary()))
    assert (decoded.values.to_pylist(), decoded.reasons) == decode(newer, payload)
    assert decoded.values.to_pylist() == [{"a": 1, "b": None, "c": [], "d": [], "e": 7, "part": {"x": 2, "y": None}}]


def test_a_field_of_another_version_is_found_by_its_number(decode):
    older = schema("M: number sint32 1, color Color 2, count int32 3", enums="Color: RED 0, TEAL 1")
    newer = schema("M: count int32 1, COLOR Color 2", enums="Color: RED 0, GREEN 1")
    payload = older.make(number=-5, color=1, count=9).SerializeToString()
    wanted = pa.struct([("Count", pa.int64()), ("color", pa.string())])
    decoder = protobuf_decoder(older.descriptors, "M", wanted, (newer.descriptors, "M"))
    # The types and the names of an enum are those of the writer.
    assert decoder.decode(pa.array([payload], pa.binary())).values.to_pylist() == [{"Count": -5, "color": "TEAL"}]


@pytest.mark.parametrize(
    ("older", "newer", "problem"),
    [
        ("a int64 1", "a int32 1", "a is int64, not int32"),
        ("a int32 1", "repeated a int32 1", "a is int32, not list<item: int32>"),
        ("p Part 1", "repeated p Part 1", "p is a struct of x, not list<item: struct<x: int32>>"),
        ("p Part 1", "p int32 1", "p is a struct of x, not int32"),
        ("p map<int32, int32> 1", "repeated p Part 1", "p is a map, not list<item: struct<x: int32>>"),
        ("o int32 1, p Part 2", "n string 1, p Part 2", "o is int32, not string"),
    ],
)
def test_a_field_of_another_version_must_fit_the_column(older, newer, problem):
    written, read = (schema(f"M: {text}\nPart: x int32 1") for text in (older, newer))
    with pytest.raises(OptionError) as caught:
        protobuf_decoder(
            written.descriptors, "M", arrow_type_of(read.descriptors, "M"), (read.descriptors, read.message)
        )
    assert str(caught.value) == f"protobuf message p.M does not fit the wanted columns: {problem}"


def test_a_name_in_another_case_must_be_unambiguous():
    with pytest.raises(OptionError, match=r"no single field AA \(it has aa and aA\)"):
        protobuf_decoder(schema("M: aa int32 1, aA int64 2").descriptors, "M", pa.struct([("AA", pa.int32())]))


def test_a_recursive_message_requires_a_wanted_type(decode):
    message = schema("M: id int32 1, repeated children M 2")
    with pytest.raises(OptionError) as caught:
        arrow_type_of(message.descriptors, "M")
    assert str(caught.value) == (
        "protobuf message p.M cannot be columns as a whole: p.M contains itself; name the wanted columns, down to some "
        "depth, by .schema()"
    )
    wanted = pa.struct([("id", pa.int32()), ("children", pa.list_(pa.struct([("id", pa.int32())])))])
    payload = wire(1, 1) + wire(2, wire(1, 2) + wire(2, wire(1, 3)))
    assert decode(message, payload, wanted=wanted) == ([{"id": 1, "children": [{"id": 2}]}], {})


def test_a_json_struct_is_recursive():
    files = FileDescriptorSet(file=[FileDescriptorProto.FromString(struct_pb2.DESCRIPTOR.serialized_pb)])
    with pytest.raises(OptionError, match=r"google\.protobuf\.Struct contains itself; name the wanted columns"):
        arrow_type_of(files.SerializeToString(), "google.protobuf.Struct")


def test_a_message_of_too_many_columns_requires_a_wanted_type(decode):
    depth = 40
    text = "\n".join(f"M{at}: a M{at + 1} 1, b M{at + 1} 2" for at in range(depth))
    message = schema(f"{text}\nM{depth}: x int32 1")
    with pytest.raises(OptionError, match="consists of more than 20000 types; name the wanted columns"):
        arrow_type_of(message.descriptors, "M0")
    wanted = pa.struct([("b", pa.struct([("a", pa.struct([]))]))])
    assert decode(message, wire(2, wire(1, b"")), wanted=wanted) == ([{"b": {"a": {}}}], {})


def test_a_message_of_too_deep_columns_requires_a_wanted_type():
    file = new_file()
    for at in range(2000):
        add(file.message_type.add(name=f"M{at}"), "a", 1, "message", type_name=f".p.M{at + 1}")
    add(file.message_type.add(name="M2000"), "x", 1, "int32")
    descriptors = FileDescriptorSet(file=[file]).SerializeToString()
    with pytest.raises(OptionError, match="is nested more than 64 types deep; name the wanted columns"):
        arrow_type_of(descriptors, "M0")
    assert arrow_type_of(descriptors, "M1999") == pa.struct([("a", pa.struct([("x", pa.int32())]))])


# -- descriptors


def test_descriptor_files_may_be_in_any_order():
    message = schema("M: at Timestamp 1")
    files = FileDescriptorSet.FromString(message.descriptors)
    turned = FileDescriptorSet(file=reversed(files.file)).SerializeToString()
    assert arrow_type_of(turned, "p.M") == pa.struct([("at", TIMESTAMP)])


def test_a_name_without_its_package_must_be_unambiguous():
    one, two = (new_file() for _ in range(2))
    two.name, two.package = "other.proto", "q"
    for file in (one, two):
        file.message_type.add(name="M").nested_type.add(name="Inner" if file is one else "Other")
    both = FileDescriptorSet(file=[one, two]).SerializeToString()
    assert arrow_type_of(both, "q.M") == arrow_type_of(both, "Inner") == pa.struct([])
    for name, problem in (
        ("M", "there are p.M and q.M: give the full name"),
        ("N", "it has p.M, p.M.Inner, q.M, q.M.Other"),
    ):
        with pytest.raises(OptionError) as caught:
            arrow_type_of(both, name)
        assert str(caught.value) == f"the descriptor set has no single protobuf message {name!r}; {problem}"


@pytest.mark.parametrize(
    ("descriptors", "problem"),
    [
        (b"\xff", "it is not a FileDescriptorSet of protobuf"),
        (b"", "it is an empty FileDescriptorSet of protobuf"),
        (
            FileDescriptorSet(file=[FileDescriptorProto(name="a", dependency=["b"])]),
            "the descriptor set lacks b, which a imports; protoc --descriptor_set_out=FILE --include_imports makes one",
        ),
        (
            FileDescriptorSet(
                file=[FileDescriptorProto(name="a", dependency=["b"]), FileDescriptorProto(name="b", dependency=["a"])]
            ),
            "the protobuf descriptors of b and a import each other",
        ),
        (
            FileDescriptorSet(file=[FileDescriptorProto(name="a", package="..")]),
            "the protobuf descriptor of a is invalid",
        ),
    ],
)
def test_bad_descriptors_are_an_error(descriptors, problem):
    data = descriptors if isinstance(descriptors, bytes) else descriptors.SerializeToString()
    with pytest.raises(OptionError) as caught:
        arrow_type_of(data, "M")
    assert str(caught.value).startswith(problem)


def test_features_of_an_edition_correspond_to_a_syntax(decode):
    file = new_file("")
    file.syntax, file.edition = "editions", 1000
    color = file.enum_type.add(name="Color")
    color.options.features.enum_type = 2
    color.value.add(name="RED", number=3)
    part = file.message_type.add(name="Part")
    part.field.add(name="x", number=1, type="TYPE_INT32", label="LABEL_OPTIONAL")
    message = file.message_type.add(name="M")
    for number, (name, kind, features) in enumerate(
        [
            ("explicit", "TYPE_INT32", {}),
            ("implicit", "TYPE_INT32", {"field_presence": 2}),
            ("required", "TYPE_INT32", {"field_presence": 3}),
            ("delimited", "TYPE_MESSAGE", {"message_encoding": 2}),
            ("closed", "TYPE_ENUM", {}),
        ],
        1,
    ):
        field = message.field.add(name=name, number=number, type=kind, label="LABEL_OPTIONAL")
        for feature, setting in features.items():
            setattr(field.options.features, feature, setting)
        if kind != "TYPE_INT32":
            field.type_name = ".p.Part" if kind == "TYPE_MESSAGE" else ".p.Color"
    if tuple(map(int, protobuf_version.split(".")[:2])) < (5, 27):
        with pytest.raises(
            UnsupportedFeatureError, match=r"^the protobuf descriptor of m.proto is of an edition, which"
        ):
            arrow_type_of(FileDescriptorSet(file=[file]).SerializeToString(), "M")
        return
    edition = Schema(file)
    needed = wire(1, 0) + wire(2, 0) + tag(4, 3) + wire(1, 7) + tag(4, 4) + wire(5, 9)
    rows, reasons = decode(edition, needed + wire(3, 0), needed)
    assert rows == [{"explicit": 0, "implicit": None, "required": 0, "delimited": {"x": 7}, "closed": None}, None]
    assert reasons == {1: "field required: it is required, and missing"}


# -- without the compiled loops


@pytest.mark.parametrize("environment", ["", "python"])
def test_typed_protobuf_needs_the_compiled_loops(monkeypatch, environment):
    monkeypatch.setenv("SPARK_MQ_SOURCE_IMPL", environment)
    for name in ("_decode_native", "_encode_native"):
        monkeypatch.setitem(sys.modules, f"spark_mq_source.values.protobuf.{name}", None)
    message = schema("M: a int32 1")
    wanted = arrow_type_of(message.descriptors, "M")
    with pytest.raises(UnsupportedFeatureError) as caught:
        protobuf_decoder(message.descriptors, "M", wanted)
    begin = "typed columns of protobuf need the compiled module spark_mq_source.values.protobuf._"
    assert str(caught.value).startswith(f"{begin}decode_native, which cannot be loaded (")
    assert str(caught.value).endswith(", or read them as binary and decode them with Spark's from_protobuf")
    with pytest.raises(UnsupportedFeatureError) as caught:
        protobuf_encoder(wanted, message.descriptors, "M")(pa.array([], wanted))
    assert str(caught.value).startswith(f"{begin}encode_native, which cannot be loaded (")
    assert str(caught.value).endswith(", or encode them with Spark's to_protobuf and write binary")
