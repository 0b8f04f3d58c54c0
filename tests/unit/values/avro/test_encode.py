from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.avro.encode import avro_encoder

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
        found = avro_encoder(array.type, json.dumps(schema))(array)
        found.validate(full=True)
        return found

    return encode


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
def test_a_value_that_avro_cannot_represent_is_refused(encode, type_, value, schema, sentence):
    with pytest.raises(UnwritableRowError, match=sentence):
        encode(pa.array([None, value], type_), schema)


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
