"""Which Avro schema a struct has, and which structs a schema can be of."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.core.options import WRITE
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.schema import ValueSchema, check_nulls, check_struct, derive_schema, parse_schema
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.write.values import check_values, json_values, schema_to_send

FIELDS = [
    ("flag", pa.bool_(), "boolean"),
    ("tiny", pa.int8(), "int"),
    ("count", pa.int32(), "int"),
    ("total", pa.int64(), "long"),
    ("ratio", pa.float32(), "float"),
    ("rate", pa.float64(), "double"),
    ("name", pa.string(), "string"),
    ("price", pa.decimal128(10, 2), "string"),
    ("data", pa.binary(), "bytes"),
    ("day", pa.date32(), {"type": "int", "logicalType": "date"}),
    ("at", pa.timestamp("us", "UTC"), {"type": "long", "logicalType": "timestamp-micros"}),
    ("local_at", pa.timestamp("us"), {"type": "long", "logicalType": "timestamp-micros"}),
    ("tags", pa.list_(pa.string()), {"type": "array", "items": "string"}),
    ("counts", pa.map_(pa.string(), pa.int64()), {"type": "map", "values": "long"}),
    (
        "place",
        pa.struct([("place", pa.struct([("x", pa.int32())]))]),
        {
            "type": "record",
            "name": "place",
            "namespace": "Value",
            "fields": [
                {
                    "name": "place",
                    "type": [
                        "null",
                        {
                            "type": "record",
                            "name": "place",
                            "namespace": "Value.place",
                            "fields": [{"name": "x", "type": ["null", "int"], "default": None}],
                        },
                    ],
                    "default": None,
                }
            ],
        },
    ),
]
STRUCT = pa.struct([(name, type_) for name, type_, _ in FIELDS])


def options(**given: str) -> PulsarOptions:
    required = {"serviceUrl": "pulsar://b", "topic": "t"}
    return PulsarOptions.from_spark({k.lower(): v for k, v in (required | given).items()}, WRITE)


def record(*fields: dict[str, object]) -> ValueSchema:
    return ValueSchema("JSON", json.dumps({"type": "record", "name": "F", "fields": list(fields)}))


def test_every_type_of_a_struct_has_its_place():
    derived = derive_schema(STRUCT)
    assert derived.type == "JSON"
    assert json.loads(derived.definition) == {
        "type": "record",
        "name": "Value",
        "fields": [{"name": name, "type": ["null", kind], "default": None} for name, _, kind in FIELDS],
    }


def test_what_is_derived_is_a_schema_and_fits():
    derived = derive_schema(STRUCT)
    check_struct(STRUCT, parse_schema(derived.definition))


def test_what_has_no_place_is_refused_all_at_once():
    with pytest.raises(OptionError) as caught:
        derive_schema(
            pa.struct(
                [
                    ("ok", pa.int32()),
                    ("no name", pa.int32()),
                    ("ok", pa.int32()),
                    ("took", pa.duration("us")),
                    ("by_id", pa.map_(pa.int32(), pa.string())),
                ]
            )
        )
    for words in (
        "value.no name is no Avro name",
        "value.ok is there twice",
        "value.took is duration[us], which has no place in it: cast it",
        "value.by_id is map<int32, string>, which has no place in it: its keys must be strings",
    ):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("type_", "kind"),
    [
        (pa.int32(), "long"),
        (pa.int32(), ["null", "double"]),
        (pa.int64(), {"type": "long", "logicalType": "timestamp-millis"}),
        (pa.string(), {"type": "enum", "name": "E", "symbols": ["A"]}),
        (pa.timestamp("us", "UTC"), "long"),
        (pa.timestamp("us", "UTC"), {"type": "long", "logicalType": "timestamp-micros"}),
        (pa.list_(pa.int32()), {"type": "array", "items": "int"}),
        (pa.struct([("x", pa.int32())]), {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}),
    ],
)
def test_what_a_reader_can_read_fits(type_, kind):
    check_struct(pa.struct([("a", type_)]), record({"name": "a", "type": kind}))


@pytest.mark.parametrize(
    ("type_", "kind", "sentence"),
    [
        (pa.string(), "int", "value.a is string, and int in the schema"),
        (pa.int64(), ["null", "int", "string"], "value.a is long, and int or string in the schema"),
        (
            pa.timestamp("us", "UTC"),
            {"type": "long", "logicalType": "timestamp-millis"},
            "value.a is written as timestamp-micros, and timestamp-millis in the schema: cast it to a number",
        ),
        (pa.list_(pa.string()), {"type": "array", "items": "int"}, "value.a is string, and int in the schema"),
        (
            pa.struct([("x", pa.string()), ("y", pa.string())]),
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]},
            "value.a.y is not in the schema (it has x)",
        ),
    ],
)
def test_what_a_reader_could_not_read_is_refused(type_, kind, sentence):
    with pytest.raises(OptionError) as caught:
        check_struct(pa.struct([("a", type_)]), record({"name": "a", "type": kind}))
    assert str(caught.value) == f"the struct in column value does not fit the option schema: {sentence}"


def test_only_what_a_schema_requires_must_be_there():
    wanted = [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "int"]},
        {"name": "c", "type": "int", "default": 1},
    ]
    check_struct(pa.struct([("a", pa.int32())]), record(*wanted))
    with pytest.raises(OptionError, match=r"value\.a is missing, which the schema requires"):
        check_struct(pa.struct([("b", pa.int32())]), record(*wanted))


def test_a_record_that_is_named_again_is_known():
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    schema = record({"name": "a", "type": point}, {"name": "b", "type": ["null", "P"]})
    one = pa.struct([("x", pa.int32())])
    check_struct(pa.struct([("a", one), ("b", one)]), schema)
    parse_schema(schema.definition)


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        ('"string"', "it is no JSON object"),
        ("{", "it is no JSON object"),
        ('{"type": "rec", "name": "F"}', "the schema has the type 'rec', which is none"),
        ('{"type": "record", "fields": []}', "the schema is a record without a name"),
        ('{"type": "record", "name": "a-b", "fields": []}', "the schema is a record without a name of letters"),
        ('{"type": "record", "name": "F"}', "the schema is a record without fields"),
        ('{"type": "record", "name": "F", "fields": [{"type": "int"}]}', "has a field without a name"),
        ('{"type": "record", "name": "F", "fields": [{"name": "a"}]}', "the schema.a has no type"),
        (
            '{"type": "record", "name": "F", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "the schema has two fields a",
        ),
        ('{"type": "array"}', "the schema[] has no type"),
        ('{"type": "map", "values": "x"}', "the schema{} has the type 'x'"),
        ('{"type": "enum", "name": "E"}', "the schema is an enum without symbols"),
        ('{"type": "fixed", "name": "E"}', "the schema is a fixed without a size"),
    ],
)
def test_what_is_no_avro_schema_is_refused(definition, sentence):
    with pytest.raises(ValueError, match="the definition is no Avro schema") as caught:
        parse_schema(json.dumps({"type": "AVRO", "schema": definition}))
    assert sentence in str(caught.value)


POINT = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}


@pytest.mark.parametrize(
    ("rows", "kind", "path"),
    [
        ([1, None], "int", "value.a"),
        ([1, None], ["null", "int"], None),
        ([1, None], ["int", "null"], None),
        ([[1], [2, None]], {"type": "array", "items": "int"}, "value.a[]"),
        ([[1], [2, None]], {"type": "array", "items": ["null", "int"]}, None),
        ([[[1, None]]], {"type": "array", "items": {"type": "array", "items": "int"}}, "value.a[][]"),
        ([{"x": None}], POINT, "value.a.x"),
        ([{"x": 1}, None], POINT, "value.a"),
        ([{"x": 1}, None], ["null", POINT], None),
        ([[{"x": 1}, {"x": None}]], {"type": "array", "items": POINT}, "value.a[].x"),
    ],
)
def test_what_is_null_where_the_schema_has_no_place_for_it_is_refused(rows, kind, path):
    schema = record({"name": "a", "type": kind})
    # What is outside of a part of a column, or in a row that is NULL, does not count.
    column = pa.array([{"a": None}, None, *({"a": row} for row in rows), {"a": None}]).slice(1, len(rows) + 1)
    if path is None:
        check_nulls(column, schema)
        return
    with pytest.raises(UnwritableRowError) as caught:
        check_nulls(column, schema)
    assert str(caught.value) == f"{path} is NULL in a row, for which the schema has no place"


def test_a_value_of_a_map_that_is_null_is_refused():
    type_ = pa.struct([("a", pa.map_(pa.string(), pa.int32()))])
    schema = derive_schema(type_)
    check_nulls(pa.array([{"a": [("k", 1)]}, {"a": None}, None], type_), schema)
    with pytest.raises(UnwritableRowError, match=r"value\.a\{\} is NULL"):
        check_nulls(pa.array([{"a": [("k", 1), ("l", None)]}], type_), schema)


def test_a_field_with_a_default_may_be_left_out():
    check_nulls(pa.array([{"a": 1}, {"a": None}]), record({"name": "a", "type": "long", "default": 0}))


# -- with the options


@pytest.mark.parametrize(
    ("given", "type_", "sentence"),
    [
        ({}, STRUCT, "set valueFormat=json to write a struct as JSON"),
        ({"schema": "STRING"}, pa.binary(), "column value is binary, but the option schema is STRING"),
        ({"schema": '{"type": "AVRO", "schema": {"type": "string"}}'}, pa.string(), "the option schema is AVRO"),
        ({"valueFormat": "json"}, pa.string(), "column value is string, expected a struct with valueFormat=json"),
        ({"valueFormat": "json"}, pa.struct([("a b", pa.int32())]), "value.a b is no Avro name"),
        ({"valueFormat": "json", "schema": "BYTES"}, pa.struct([("a", pa.duration("us"))]), "there is no JSON for"),
        ({"valueFormat": "json", "schema": '{"type": "record", "name": "F", "fields": []}'}, STRUCT, "does not fit"),
    ],
)
def test_values_that_cannot_be_written_are_refused(given, type_, sentence):
    with pytest.raises(OptionError, match="format 'pulsar-native'") as caught:
        check_values(options(**given), type_)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("given", "type_", "kind", "definition"),
    [
        ({}, pa.binary(), None, None),
        ({"schema": "BYTES", "valueFormat": "json"}, pa.struct([("a b", pa.int32())]), None, None),
        ({"schema": "STRING"}, pa.string(), commands.SchemaType.STRING, b""),
        ({"schema": '{"type":"AVRO","schema":{"type":"string"}}'}, pa.binary(), 4, b'{"type":"string"}'),
        ({"valueFormat": "json"}, pa.struct([]), 2, b'{"type":"record","name":"Value","fields":[]}'),
        (
            {"valueFormat": "json", "schema": '{"type": "record", "name": "F", "fields": []}'},
            pa.struct([]),
            commands.SchemaType.JSON,
            b'{"type": "record", "name": "F", "fields": []}',
        ),
    ],
)
def test_what_the_broker_is_told(given, type_, kind, definition):
    made = options(**given)
    check_values(made, type_)
    sent = schema_to_send(made, type_)
    assert (sent and sent.type, sent and sent.schema_data) == (kind, definition)


def test_only_the_value_becomes_json():
    batch = pa.record_batch({"key": ["k", None], "value": pa.array([{"a": 1}, None])})
    found = json_values(options(valueFormat="json"), batch).to_pydict()
    assert found == {
        "key": ["k", None],
        "value": ['{"a":1}', None],
    }
