"""The Avro schema of a struct, and the structs that fit a schema."""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.avro.schema import parse_avro
from spark_mq_source.values.struct_schema import check_rows, check_struct, derive_definition

FIELDS = [
    ("flag", pa.bool_(), "boolean"),
    ("tiny", pa.int8(), "int"),
    ("count", pa.int32(), "int"),
    ("total", pa.int64(), "long"),
    ("ratio", pa.float32(), "float"),
    ("rate", pa.float64(), "double"),
    ("name", pa.string(), "string"),
    (
        "price",
        pa.decimal128(10, 2),
        {"type": "string", "logicalType": "decimal", "precision": 10, "scale": 2},
    ),
    ("data", pa.binary(), "bytes"),
    ("day", pa.date32(), {"type": "int", "logicalType": "date"}),
    ("at", pa.timestamp("us", "UTC"), {"type": "long", "logicalType": "timestamp-micros"}),
    ("local_at", pa.timestamp("us"), {"type": "long", "logicalType": "local-timestamp-micros"}),
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


def record(*fields: dict[str, object]) -> str:
    return json.dumps({"type": "record", "name": "F", "fields": list(fields)})


def test_every_type_of_a_struct_has_a_schema():
    derived = derive_definition(STRUCT, "json")
    assert json.loads(derived) == {
        "type": "record",
        "name": "Value",
        "fields": [{"name": name, "type": ["null", kind], "default": None} for name, _, kind in FIELDS],
    }


def test_a_derived_schema_is_valid_and_fits():
    derived = derive_definition(STRUCT, "json")
    check_struct(STRUCT, derived)


def test_all_types_without_a_schema_are_in_one_error():
    with pytest.raises(OptionError) as caught:
        derive_definition(
            pa.struct(
                [
                    ("ok", pa.int32()),
                    ("no name", pa.int32()),
                    ("ok", pa.int32()),
                    ("took", pa.duration("us")),
                    ("by_id", pa.map_(pa.int32(), pa.string())),
                ]
            ),
            "json",
        )
    for words in (
        "value.no name is not an Avro name",
        "value.ok is a duplicate",
        "value.took is duration[us], which such a schema cannot represent: cast it",
        "value.by_id is map<int32, string>, which such a schema cannot represent: its keys must be strings",
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
def test_structs_that_a_reader_can_read_fit(type_, kind):
    check_struct(pa.struct([("a", type_)]), record({"name": "a", "type": kind}))


@pytest.mark.parametrize(
    ("type_", "kind", "sentence"),
    [
        (pa.string(), "int", "value.a is string, and int in the schema"),
        (pa.int64(), ["null", "int", "string"], "value.a is long, and int or string in the schema"),
        (
            pa.timestamp("us", "UTC"),
            {"type": "long", "logicalType": "timestamp-millis"},
            "value.a is written as timestamp-micros, and timestamp-millis in the schema: convert it to a number in "
            "its unit, such as unix_millis(...)",
        ),
        (pa.list_(pa.string()), {"type": "array", "items": "int"}, "value.a is string, and int in the schema"),
        (
            pa.struct([("x", pa.string()), ("y", pa.string())]),
            {"type": "record", "name": "R", "fields": [{"name": "x", "type": "string"}]},
            "value.a.y is not in the schema (it has x)",
        ),
    ],
)
def test_structs_that_a_reader_cannot_read_are_refused(type_, kind, sentence):
    with pytest.raises(OptionError) as caught:
        check_struct(pa.struct([("a", type_)]), record({"name": "a", "type": kind}))
    assert str(caught.value) == f"the struct in column value does not fit the given schema: {sentence}"


def test_only_required_fields_must_exist():
    wanted = [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", "int"]},
        {"name": "c", "type": "int", "default": 1},
    ]
    check_struct(pa.struct([("a", pa.int32())]), record(*wanted))
    with pytest.raises(OptionError, match=r"value\.a is missing, which the schema requires"):
        check_struct(pa.struct([("b", pa.int32())]), record(*wanted))


def test_a_record_can_be_referenced_by_its_name():
    point = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "int"}]}
    schema = record({"name": "a", "type": point}, {"name": "b", "type": ["null", "P"]})
    one = pa.struct([("x", pa.int32())])
    check_struct(pa.struct([("a", one), ("b", one)]), schema)


ENUM = {"type": "enum", "name": "E", "symbols": ["RED"]}
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
def test_a_null_in_a_field_that_is_not_nullable_is_refused(rows, kind, path):
    schema = record({"name": "a", "type": kind})
    # NULLs outside of the slice of a column, or in a row that is NULL, are ignored.
    column = pa.array([{"a": None}, None, *({"a": row} for row in rows), {"a": None}]).slice(1, len(rows) + 1)
    if path is None:
        check_rows(column, parse_avro(schema))
        return
    with pytest.raises(UnwritableRowError) as caught:
        check_rows(column, parse_avro(schema))
    assert str(caught.value) == f"{path} is NULL in a row, which the schema does not allow"


def test_a_value_of_a_map_that_is_null_is_refused():
    type_ = pa.struct([("a", pa.map_(pa.string(), pa.int32()))])
    schema = parse_avro(derive_definition(type_, "json"))
    check_rows(pa.array([{"a": [("k", 1)]}, {"a": None}, None], type_), schema)
    with pytest.raises(UnwritableRowError, match=r"value\.a\{\} is NULL"):
        check_rows(pa.array([{"a": [("k", 1), ("l", None)]}], type_), schema)


def test_a_field_with_a_default_may_be_omitted():
    schema = parse_avro(record({"name": "a", "type": "long", "default": 0}))
    check_rows(pa.array([{"a": 1}, {"a": None}]), schema)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (ENUM, "value.a"),
        (["null", ENUM], "value.a"),
        ({"type": "array", "items": ENUM}, "value.a[]"),
        ({"type": "map", "values": ENUM}, "value.a{}"),
        ([ENUM, {"type": "enum", "name": "F", "symbols": ["BLUE"]}], None),
        ([ENUM, "string"], None),
    ],
)
def test_a_text_that_is_not_a_symbol_of_its_enum_is_refused(kind, path):
    containers = {"array": (pa.list_(pa.string()), lambda text: [text])}
    containers["map"] = (pa.map_(pa.string(), pa.string()), lambda text: [("k", text)])
    type_, made = containers.get(kind["type"] if isinstance(kind, dict) else "", (pa.string(), lambda text: text))
    schema = check_struct(pa.struct([("a", type_)]), record({"name": "a", "type": kind}))
    rows = pa.array([{"a": made("RED")}, None, {"a": made("BLUE")}], pa.struct([("a", type_)]))
    check_rows(rows.slice(0, 2), schema)
    if path is None:
        check_rows(rows, schema)
        return
    with pytest.raises(UnwritableRowError) as caught:
        check_rows(rows, schema)
    assert str(caught.value) == f"{path} has a text in a row that is not a symbol of its enum"


def test_avro_has_a_type_for_decimals():
    type_ = pa.struct([("price", pa.decimal128(10, 2))])
    definition = derive_definition(type_, "avro", "key")
    assert json.loads(definition) == {
        "type": "record",
        "name": "Key",
        "fields": [
            {
                "name": "price",
                "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}],
                "default": None,
            },
        ],
    }


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("string", ""),
        (["null", {"type": "string", "logicalType": "decimal", "precision": 10, "scale": 2}], ""),
        ({"type": "string", "logicalType": "decimal", "precision": 12, "scale": 4}, ""),
        ({"type": "string", "logicalType": "decimal", "precision": "many"}, ""),
        (
            {"type": "string", "logicalType": "decimal", "precision": 11, "scale": 4},
            "value.price is decimal(10,2), and decimal(11,4) in the schema: cast it to that",
        ),
        (
            {"type": "string", "logicalType": "decimal", "precision": 10},
            "value.price is decimal(10,2), and decimal(10,0) in the schema: cast it to that",
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            "value.price is written as decimal, and uuid in the schema: convert it to the type of the schema",
        ),
        ({"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}, "value.price is string, and bytes"),
    ],
)
def test_a_decimal_of_json_in_a_given_schema(kind, problem):
    definition = record({"name": "price", "type": kind})
    type_ = pa.struct([("price", pa.decimal128(10, 2))])
    if problem:
        with pytest.raises(OptionError, match=re.escape(problem)):
            check_struct(type_, definition)
    else:
        check_struct(type_, definition)


def test_a_text_may_be_written_to_a_decimal():
    kind = {"type": "string", "logicalType": "decimal", "precision": 10, "scale": 2}
    check_struct(pa.struct([("price", pa.string())]), record({"name": "price", "type": kind}))


def test_a_definition_that_is_not_a_schema_is_refused():
    with pytest.raises(OptionError, match=r"the schema of column value is not an Avro schema: .* has no type"):
        check_struct(pa.struct([("a", pa.int32())]), record({"name": "a"}))
