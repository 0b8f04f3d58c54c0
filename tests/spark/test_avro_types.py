"""Columns of Avro's types, compared with Spark's own converter."""

from __future__ import annotations

import json

import pytest
from pyspark.sql.pandas.types import from_arrow_type

from spark_mq_source.values.avro.decode import arrow_type_of

INNER = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
FIXED = {"type": "fixed", "name": "F", "size": 4}
DECIMAL = {"logicalType": "decimal", "precision": 9, "scale": 2}


@pytest.mark.parametrize(
    "kind",
    [
        *("null", "boolean", "int", "long", "float", "double", "string", "bytes", FIXED),
        {"type": "enum", "name": "E", "symbols": ["A"]},
        {"type": "array", "items": ["null", INNER]},
        {"type": "map", "values": {"type": "array", "items": "long"}},
        {"type": "bytes", **DECIMAL},
        {**FIXED, **DECIMAL},
        {**FIXED, **DECIMAL, "precision": 10},
        {"type": "bytes", **DECIMAL, "scale": 10},
        *({"type": "int", "logicalType": name} for name in ("date", "time-millis", "timestamp-millis")),
        *({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros")),
        *({"type": "long", "logicalType": f"local-timestamp-{unit}"} for unit in ("millis", "micros")),
        {"type": "string", "logicalType": "uuid"},
        ["null", "string"],
        ["string"],
        # Not a union of null alone, which Spark turns into a struct without fields that is always NULL.
        ["int", "long"],
        ["null", "double", "float"],
        ["int", {"type": "long", "logicalType": "timestamp-millis"}],
        ["null", "int", "string", INNER],
        ["int", "long", "string"],
    ],
    ids=json.dumps,
)
def test_a_column_has_the_type_of_from_avro(spark, kind):
    definition = json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    jvm = spark.sparkContext._jvm
    parsed = jvm.org.apache.avro.Schema.Parser().parse(definition)
    theirs = jvm.org.apache.spark.sql.avro.SchemaConverters.toSqlType(parsed).dataType().sql()
    ours = from_arrow_type(arrow_type_of(definition).field("a").type, prefer_timestamp_ntz=True)
    as_ddl = spark.createDataFrame([], f"a {ours.simpleString()}").schema
    assert jvm.org.apache.spark.sql.types.DataType.fromJson(as_ddl.json()).sql() == theirs.replace(" NOT NULL", "")
