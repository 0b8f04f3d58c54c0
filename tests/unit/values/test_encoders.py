"""Rows with encoded keys and values, read by the decoders."""

from __future__ import annotations

import base64
import datetime

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.encoders import BatchEncoder, encoded_rows, encoder_for, with_definitions
from spark_mq_source.values.encodings import PRIMITIVES, Encoding, TypedWrite, decoder_for
from spark_mq_source.values.primitives import primitive_decoder, primitive_type_of
from tests.java_arrow import as_java_writes
from tests.oracles.protobuf import schema as protobuf_schema

UTC = datetime.timezone.utc
BEFORE = datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)
VALUES = {
    "bool": [True, False],
    "int8": [-128, 127],
    "int16": [-(2**15), 258],
    "int32": [-(2**31), 258],
    "int64": [-(2**63), 258],
    "float": [0.5, -(2.0**100)],
    "double": [0.1, -1e300],
    "string": ["é", ""],
    "date": [BEFORE, datetime.datetime(9999, 12, 31, tzinfo=UTC)],
    "timestamp": [BEFORE, datetime.datetime(1, 1, 1, tzinfo=UTC)],
    "time": [-1, 86_399_999],
    "instant": [BEFORE, datetime.datetime(1, 1, 1, 0, 0, 0, 1, UTC), datetime.datetime(2200, 1, 1, tzinfo=UTC)],
    "local_date": [datetime.date(1969, 12, 31), datetime.date(9999, 12, 31)],
    "local_time": [0, 86_399_999_999_999],
    "local_date_time": [datetime.datetime(1969, 12, 31, 23, 59, 59, 999999), datetime.datetime(2013, 1, 1)],
}


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_a_written_primitive_is_read_back(kind: str) -> None:
    rows = [None, *VALUES[kind], None]
    values = pa.array([None, *rows], primitive_type_of(kind)).slice(1)
    payloads = encoder_for(Encoding(kind), values.type)(values)
    decoded = primitive_decoder(kind, primitive_type_of(kind)).decode(payloads.cast(pa.binary()))
    assert not decoded.reasons
    assert decoded.values.to_pylist() == rows
    assert encoder_for(Encoding(kind), values.type)(values.slice(0, 0)).to_pylist() == []


@pytest.mark.parametrize(
    ("kind", "type_", "value", "payload"),
    [
        ("int64", pa.int8(), -2, b"\xff" * 7 + b"\xfe"),
        ("double", pa.float32(), 0.5, b"\x3f\xe0" + bytes(6)),
        ("bool", pa.bool_(), True, b"\1"),
        ("float", pa.float32(), -0.0, b"\x80" + bytes(3)),
        ("double", pa.float64(), -0.0, b"\x80" + bytes(7)),
        ("instant", pa.timestamp("us", "UTC"), BEFORE, b"\xff" * 8 + (999_000_000).to_bytes(4, "big")),
    ],
)
def test_the_layouts(kind: str, type_: pa.DataType, value: object, payload: bytes) -> None:
    assert encoder_for(Encoding(kind), type_)(pa.array([value], type_)).to_pylist() == [payload]


@pytest.mark.parametrize(
    ("kind", "value", "sentence"),
    [
        ("local_time", -1, "column value has a value outside the range of local_time"),
        ("local_time", 86_400_000_000_000, "column value has a value outside the range of local_time"),
        ("string", b"a\xff", "column value has a text in a row that is not UTF-8"),
    ],
)
def test_a_value_that_a_primitive_cannot_have_is_refused(kind: str, value: object, sentence: str) -> None:
    values = pa.array([None, value])
    values = values.view(pa.string()) if kind == "string" else values.cast(primitive_type_of(kind))
    encode = encoder_for(Encoding(kind), values.type)
    with pytest.raises(UnwritableRowError, match=sentence):
        encode(values)


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(OptionError, match="column value is int64, and valueFormat=int32 is int32: cast it"):
        encoder_for(Encoding("int32"), pa.int64())
    with pytest.raises(OptionError, match="column key is string, expected a struct with keyFormat=avro"):
        with_definitions(TypedWrite(key=Encoding("avro")), pa.schema([("key", pa.string()), ("value", pa.binary())]))


PAIRS = pa.record_batch(
    {
        "key": pa.array([{"k": 1}, {"k": None}, None, {"k": 4}]),
        "value": pa.array([{"v": "a"}, None, {"v": None}, {"v": "d"}]),
        "partition": pa.array([0, 1, 2, 3]),
    }
)


@pytest.mark.parametrize("name", ["avro", "json"])
def test_a_separated_pair(name: str) -> None:
    write = with_definitions(TypedWrite(Encoding(name), Encoding(name)), PAIRS.schema)
    made = BatchEncoder(write, PAIRS.schema).encode(PAIRS)
    assert made.column("partition").to_pylist() == [0, 1, 2, 3]
    assert made.schema.field("key").type == pa.binary()
    for side, encoding in write.encodings.items():
        assert encoding is not None
        decoder = decoder_for(encoding, PAIRS.schema.field(side).type, encoding)
        assert decoder.decode(made.column(side).cast(pa.binary())).values.to_pylist() == PAIRS.column(side).to_pylist()


def test_an_inline_pair_is_in_the_payload_without_a_key() -> None:
    write = with_definitions(TypedWrite(Encoding("json"), Encoding("json"), is_inline=True), PAIRS.schema)
    made = BatchEncoder(write, PAIRS.schema).encode(PAIRS)
    assert made.schema.names == ["value", "partition"]
    nothing = b"\xff" * 4
    assert made.column("value").to_pylist() == [
        b'\0\0\0\x07{"k":1}\0\0\0\x09{"v":"a"}',
        b"\0\0\0\x02{}" + nothing,
        nothing + b"\0\0\0\x02{}",
        b'\0\0\0\x07{"k":4}\0\0\0\x09{"v":"d"}',
    ]


def test_a_definition_may_be_columns_in_sparks_syntax() -> None:
    columns = pa.schema([("value", pa.struct([("a", pa.int32())]))])
    made = with_definitions(TypedWrite(Encoding("json", "a bigint, b string")), columns)
    assert made.value is not None
    assert '"long"' in made.value.definition
    with pytest.raises(OptionError, match=r"value\.a is int32, which cannot be written as string"):
        with_definitions(TypedWrite(Encoding("avro", "a string")), columns)


def test_an_error_names_the_column() -> None:
    batch = pa.record_batch({"value": pa.array([{"a": [None]}], pa.struct([("a", pa.list_(pa.int32()))]))})
    write = with_definitions(TypedWrite(Encoding("avro")), batch.schema)
    with pytest.raises(UnwritableRowError, match=r"^writing column value as avro: value\.a\[\] is NULL in a row"):
        list(encoded_rows(write, iter([batch])))


def encoding_of(name: str, fields: str = "optional a string 1") -> Encoding:
    """Return an encoding; for protobuf of a message with these fields."""
    if name != "protobuf":
        return Encoding(name)
    message = protobuf_schema(f"M: {fields}")
    return Encoding(name, base64.b64encode(message.descriptors).decode(), message.message)


@pytest.mark.parametrize("name", ["avro", "json", "protobuf"])
def test_a_text_that_is_not_utf8_is_refused(name: str) -> None:
    # The bytes of both texts together are UTF-8.
    halves = pa.array([b"a", b"\xc3", b"\xa4"]).view(pa.string())
    numbers = pa.array([1, 2, 3], pa.int32())
    maps = pa.MapArray.from_arrays([0, 1, 3], halves, numbers)
    lists = pa.ListArray.from_arrays([0, 1, 3], halves)
    for column, declared in (
        (halves, "optional a string 1"),
        (lists, "repeated a string 1"),
        (maps, "a map<string, int32> 1"),
    ):
        batch = pa.record_batch({"value": pa.StructArray.from_arrays([column], ["a"])})
        encoder = BatchEncoder(with_definitions(TypedWrite(encoding_of(name, declared)), batch.schema), batch.schema)
        with pytest.raises(UnwritableRowError, match=r"a text .*is not UTF-8"):
            encoder.encode(batch)
        assert encoder.encode(batch.slice(0, 1)).num_rows == 1


@pytest.mark.parametrize("name", ["avro", "protobuf"])
def test_the_bytes_of_a_null_are_not_checked(name: str) -> None:
    texts = pa.array(["ä".encode(), b"\xff"]).view(pa.string())
    rows = pa.StructArray.from_arrays([texts], ["a"], mask=pa.array([False, True]))
    batch = pa.record_batch({"value": rows})
    write = with_definitions(TypedWrite(encoding_of(name)), batch.schema)
    payload, nothing = BatchEncoder(write, batch.schema).encode(batch).column("value").to_pylist()
    assert "ä".encode() in payload
    assert nothing is None


def test_each_column_of_a_protobuf_struct_needs_a_field() -> None:
    flight = protobuf_schema("M: optional carrier string 1, optional number int32 2")
    encoding = Encoding("protobuf", base64.b64encode(flight.descriptors).decode(), flight.message)
    rows = pa.record_batch({"value": pa.array([{"number": 7}, None], pa.struct([("number", pa.int32())]))})
    write = with_definitions(TypedWrite(encoding), rows.schema)
    payloads = BatchEncoder(write, rows.schema).encode(rows).column("value").to_pylist()
    assert payloads == [flight.make(number=7).SerializeToString(), None]
    wrong = pa.schema([("value", pa.struct([("nonsense", pa.int32())]))])
    with pytest.raises(OptionError, match="nonsense"):
        with_definitions(TypedWrite(encoding), wrong)
    with pytest.raises(OptionError, match="expected a struct with valueFormat=protobuf"):
        with_definitions(TypedWrite(encoding), pa.schema([("value", pa.string())]))


def test_without_encodings_rows_are_unchanged() -> None:
    batch = pa.record_batch({"value": [b"x"]})
    assert list(encoded_rows(None, iter([batch]))) == [batch]


NOTHING_WITHIN = pa.struct(
    [
        ("texts", pa.list_(pa.string())),
        ("numbers", pa.list_(pa.int32())),
        ("counts", pa.map_(pa.string(), pa.int64())),
        ("rows", pa.list_(pa.struct([("name", pa.string())]))),
    ]
)


@pytest.mark.parametrize("name", ["avro", "json", "protobuf"])
def test_empty_lists_and_maps_from_spark_without_offsets_are_written(name: str) -> None:
    fields = "repeated texts string 1, repeated numbers int32 2, counts map<string, int64> 3, repeated rows N 4"
    message = protobuf_schema(f"M: {fields}\nN: optional name string 1") if name == "protobuf" else None
    encoding = (
        Encoding(name, base64.b64encode(message.descriptors).decode(), message.message) if message else Encoding(name)
    )
    row = {"texts": [], "numbers": [], "counts": [], "rows": []}
    for values in (pa.array([row, row], NOTHING_WITHIN), pa.array([], NOTHING_WITHIN)):
        batch = pa.record_batch({"value": as_java_writes(values)})
        write = with_definitions(TypedWrite(encoding), batch.schema)
        found, expected = (
            BatchEncoder(write, one.schema).encode(one).column("value").to_pylist()
            for one in (batch, pa.record_batch({"value": values}))
        )
        assert found == expected
        assert len(found) == len(values)
