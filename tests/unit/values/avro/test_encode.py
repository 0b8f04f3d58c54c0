from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.avro.encode import encode_avro

pytest.importorskip("spark_mq_source.values.avro._encode_native", exc_type=ImportError)

TIME = pa.timestamp("us", "UTC")
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
INTS = {"type": "array", "items": "int"}


def record(*fields):
    return {"type": "record", "name": "R", "fields": list(fields)}


def field(name, kind, **more):
    return {"name": name, "type": kind, **more}


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


@pytest.fixture
def encode():
    def encode(array, schema):
        found = encode_avro(array, json.dumps(schema))
        found.validate(full=True)
        return found

    return encode


@pytest.fixture
def read(encode):
    """What fastavro reads of what is encoded."""

    def read(array, schema):
        parsed = fastavro.parse_schema(schema)
        return [
            None if one is None else fastavro.schemaless_reader(io.BytesIO(one), parsed)
            for one in encode(array, schema).to_pylist()
        ]

    return read


@pytest.mark.parametrize(
    ("type_", "value", "schema", "expected"),
    [
        (pa.bool_(), True, "boolean", True),
        (pa.int8(), -5, "int", -5),
        (pa.int16(), -500, "long", -500),
        (pa.int32(), -(2**31), "int", -(2**31)),
        (pa.int32(), 7, "long", 7),
        (pa.int32(), 7, "double", 7.0),
        (pa.int64(), -(2**63), "long", -(2**63)),
        (pa.float32(), 0.5, "float", 0.5),
        (pa.float32(), 0.5, "double", 0.5),
        (pa.float64(), -1e300, "double", -1e300),
        (pa.string(), "ü" * 5000, "string", "ü" * 5000),
        (pa.string(), "B", ENUM, "B"),
        (pa.binary(), b"\xff", "bytes", b"\xff"),
        (pa.binary(), b"abc", {"type": "fixed", "name": "F", "size": 3}, b"abc"),
        (pa.decimal128(5, 2), Decimal("-1.50"), logical("bytes", "decimal", precision=5, scale=2), Decimal("-1.50")),
        (pa.decimal128(5, 2), Decimal("1.50"), logical("bytes", "decimal", precision=9, scale=4), Decimal("1.5000")),
        (
            pa.decimal128(38, 0),
            Decimal(1 - 10**38),
            {"type": "fixed", "name": "F", "size": 20, "logicalType": "decimal", "precision": 38},
            Decimal(1 - 10**38),
        ),
        (TIME, 1_500_000, logical("long", "timestamp-micros"), datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
        (TIME, -1, logical("long", "timestamp-millis"), datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        (pa.list_(pa.int32()), [1, 2], INTS, [1, 2]),
        (pa.list_(pa.int32()), [], INTS, []),
        (pa.map_(pa.string(), pa.int32()), [("a", 1)], {"type": "map", "values": ["int", "null"]}, {"a": 1}),
        (pa.int32(), 5, ["null", "int"], 5),
        (pa.int64(), 5, ["int", "long"], 5),
        (pa.string(), "a", ["null", "int", "string"], "a"),
        (
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            {"member1": "a"},
            ["int", "null", "string"],
            "a",
        ),
        (
            pa.struct([("B", pa.int32()), ("a", pa.string())]),
            {"a": "x", "B": 1},
            record(field("a", "string"), field("b", "int")),
            {"a": "x", "b": 1},
        ),
        (
            pa.struct([]),
            {},
            record(field("d", INTS, default=[1, 2]), field("n", ["null", "int"])),
            {"d": [1, 2], "n": None},
        ),
    ],
)
def test_a_value_is_what_fastavro_reads(read, type_, value, schema, expected):
    array = pa.array([value, value, None, value], type_).slice(1)
    assert read(array, schema) == [expected, None, expected]


def test_a_slice_is_encoded_from_where_it_begins(read):
    type_ = pa.struct(
        [("l", pa.list_(pa.struct([("x", pa.bool_())]))), ("m", pa.map_(pa.string(), pa.string())), ("b", pa.bool_())]
    )
    rows = [
        {"l": [{"x": at % 3 == 0}] * at, "m": [(str(n), None if n else "v") for n in range(at)], "b": at % 2 == 0}
        for at in range(20)
    ]
    x = {"type": "record", "name": "X", "fields": [field("x", "boolean")]}
    schema = record(
        field("b", "boolean"),
        field("l", {"type": "array", "items": x}),
        field("m", {"type": "map", "values": ["null", "string"]}),
    )
    expected = [{**row, "m": dict(row["m"])} for row in rows]
    assert read(pa.array(rows, type_).slice(3, 15), schema) == expected[3:18]


@pytest.mark.parametrize(
    ("type_", "value", "schema", "sentence"),
    [
        (pa.struct([("a", pa.int32())]), {"a": None}, record(field("a", "int")), r"value\.a is NULL in a row"),
        (pa.list_(pa.int32()), [1, None], INTS, r"value\[\] is NULL in a row"),
        (pa.map_(pa.string(), pa.int32()), [("k", None)], {"type": "map", "values": "int"}, r"value\{\} is NULL in a"),
        (pa.string(), "C", ENUM, "value has a text in a row that is not a symbol of its enum"),
        (
            pa.binary(),
            b"ab",
            {"type": "fixed", "name": "F", "size": 3},
            "value has a value in a row that is not as long",
        ),
        (
            pa.struct([("member0", pa.int32()), ("member1", pa.string())]),
            {"member0": 1, "member1": "a"},
            ["int", "string"],
            "value must have exactly one member",
        ),
        (pa.struct([("member0", pa.int32()), ("member1", pa.string())]), {}, ["int", "string"], "exactly one member"),
    ],
)
def test_a_value_that_has_no_form_is_refused(encode, type_, value, schema, sentence):
    with pytest.raises(UnwritableRowError, match=sentence):
        encode(pa.array([None, value], type_), schema)


def test_what_is_beneath_a_null_does_not_matter(read):
    type_ = pa.struct([("a", pa.struct([("b", pa.int32())]))])
    schema = record(field("a", ["null", {"type": "record", "name": "A", "fields": [field("b", "int")]}]))
    assert read(pa.array([{"a": None}, {"a": {"b": 1}}], type_), schema) == [{"a": None}, {"a": {"b": 1}}]


@pytest.mark.parametrize(
    ("type_", "schema", "sentence"),
    [
        (pa.int64(), "int", "value is int64, which cannot be written as int: cast it"),
        (pa.string(), "bytes", "value is string, which cannot be written as bytes"),
        (pa.timestamp("us"), logical("long", "timestamp-micros"), "value is timestamp"),
        (pa.decimal128(5, 2), logical("bytes", "decimal", precision=5, scale=1), "value is decimal128"),
        (pa.decimal128(9, 2), logical("bytes", "decimal", precision=5, scale=2), "value is decimal128"),
        (pa.struct([("x", pa.int32())]), record(field("a", "int")), r"value\.x is not in the schema"),
        (pa.struct([]), record(field("a", "int")), r"value\.a is missing, which the schema requires"),
        (pa.int32(), "rubbish", "is not an Avro schema"),
    ],
)
def test_a_type_that_does_not_fit_the_schema_is_refused(encode, type_, schema, sentence):
    with pytest.raises(OptionError, match=sentence):
        encode(pa.array([], type_), schema)
