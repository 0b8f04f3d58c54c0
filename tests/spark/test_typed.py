"""Typed columns in Spark, by the registry's schemas and by those of an option."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pulsar import schema as official_schema

from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.values.encodings import Encoding, decoder_for
from tests.behaviours.pulsar.test_typed import FIELDS, publish, publish_all_versions, publish_bytes
from tests.fix_brokers import PulsarUnderTest
from tests.formats import Format
from tests.spark.frames import failure, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "pulsar-native"


def auto(broker: PulsarUnderTest, topic: str, **more: str) -> dict[str, str]:
    return {"serviceUrl": broker.service_url, "topic": topic, "valueFormat": "auto"} | more


@pytest.mark.parametrize("kind", [official_schema.AvroSchema, official_schema.JsonSchema])
def test_a_topic_is_read_by_its_schema(
    spark: SparkSession, pulsar: PulsarUnderTest, kind: type[official_schema.AvroSchema]
) -> None:
    topic = pulsar.topic()
    expected = publish_all_versions(pulsar, topic, kind)
    df = load(spark, NAME, auto(pulsar, topic))
    assert dict(df.dtypes)["value"] == f"struct<{','.join(FIELDS)}>"
    found = [row.value.asDict(recursive=True) for row in df.collect()]
    assert found == [row | {"tags": row["tags"] and dict(row["tags"])} for row in expected]
    assert [row[0] for row in df.select("value.legs.city").collect()] == [None, None, ["JFK"], None]
    flat = load(spark, NAME, auto(pulsar, topic, flatten="true"))
    assert flat.columns == [field.partition(":")[0] for field in FIELDS] + [
        name for name in df.columns if name != "value"
    ]
    assert [
        tuple(row) for row in flat.where("distance is not null").select("carrier", "number", "topic").collect()
    ] == [
        ("DL", 3, topic),
        ("UA", 2, topic),
    ]
    part = load(spark, NAME, auto(pulsar, topic), "value struct<tags: map<string, string>, carrier: string>")
    assert [row.value.carrier for row in part.collect()] == ["AA", "DL", "UA", "B6"]
    wider = load(spark, NAME, auto(pulsar, topic), "value struct<number: bigint>, _error string")
    assert [row.value.number for row in wider.collect()] == [1, 3, 2, None]


def test_undecodable_values_follow_the_users_option(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic()
    publish(pulsar, topic, official_schema.AvroSchema, 0, [{"carrier": "AA", "number": 1}])
    publish_bytes(pulsar, topic, b"\x09not avro")
    text = failure(load(spark, NAME, auto(pulsar, topic)))
    assert "without a schema version: value: field carrier: " in text
    assert "set onCorrupt=skip, null or deadLetter" in text
    ddl = "value struct<carrier: string>, _error string, _corrupt binary"
    found = load(spark, NAME, auto(pulsar, topic, onCorrupt="null"), ddl).where("_error is not null").collect()
    assert [(row.value, bytes(row._corrupt)) for row in found] == [(None, b"\x09not avro")]


@pytest.mark.parametrize("mq", [pytest.param("pulsar", marks=pytest.mark.broker)], indirect=True)
def test_json_without_a_registered_schema_equals_from_json(spark: SparkSession, mq: Format) -> None:
    from pyspark.sql import functions

    ddl = "id bigint, at timestamp, local timestamp_ntz, days array<date>"
    df = spark.range(3).selectExpr(
        "struct(id, timestamp_micros(1700000000000000 + id) as at, "
        "cast(timestamp_micros(id) as timestamp_ntz) as local, "
        "array(date_add(DATE'1969-12-31', int(id))) as days) as value"
    )
    topic = mq.feed(2)
    df.write.format(mq.name).options(**topic.target, schema="bytes", valueFormat="json").mode("append").save()
    payloads = mq.consume(topic.topic, 3)
    texts = spark.createDataFrame([(payload.decode(),) for payload in payloads], "text string")
    parsed = texts.select(functions.from_json("text", ddl, {"mode": "FAILFAST"}).alias("value"))
    assert sorted(parsed.collect()) == sorted(df.collect())
    type_ = arrow_type_of_ddl(ddl)
    decoded = decoder_for(Encoding("json", ddl), type_, None).decode(pa.array(payloads, pa.binary()))
    assert decoded.reasons == {}
    again = spark.createDataFrame(pa.table({"value": decoded.values}))
    assert sorted(again.collect()) == sorted(df.collect())
