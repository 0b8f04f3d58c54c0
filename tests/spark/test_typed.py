"""Typed columns in Spark, by the registry's schemas and by those of an option."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pulsar import schema as official_schema

from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.values.encodings import Encoding, decoder_for
from spark_mq_source.values.struct_schema import derive_definition
from tests.behaviours.pulsar.test_typed import FIELDS, publish, publish_all_versions, publish_bytes
from tests.fix_brokers import PulsarUnderTest
from tests.fix_spark import ScriptResult
from tests.formats import Format
from tests.spark.frames import failure, load
from tests.spark.streams import finish

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


def test_a_schema_that_changes_under_a_stream(spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    topic = pulsar.topic()
    kind = official_schema.AvroSchema
    publish(pulsar, topic, kind, 0, [{"carrier": "AA", "number": 1}])
    options = auto(pulsar, topic, startingOffsets="earliest", flatten="true")
    rows, checkpoint = tmp_path / "rows", tmp_path / "checkpoint"

    def run() -> None:
        df = spark.readStream.format(NAME).options(**options).load().drop("properties", "message_id")
        writer = (
            df.writeStream.format("parquet").option("path", str(rows)).option("checkpointLocation", str(checkpoint))
        )
        query = writer.start()
        try:
            query.processAllAvailable()
            publish(pulsar, topic, kind, 1, [{"carrier": "UA", "number": 2, "distance": 1.5}])
            query.processAllAvailable()
        finally:
            query.stop()

    run()
    assert "distance" not in spark.read.parquet(str(rows)).columns
    # Started again, the query takes the new field.
    run()
    found = spark.read.option("mergeSchema", "true").parquet(str(rows))
    assert sorted((row.carrier, row.number, row.distance or 0.0) for row in found.collect()) == [
        ("AA", 1, 0.0),
        ("UA", 2, 0.0),
        ("UA", 2, 1.5),
    ]


def test_what_cannot_be_decoded_is_the_users_choice(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic()
    publish(pulsar, topic, official_schema.AvroSchema, 0, [{"carrier": "AA", "number": 1}])
    publish_bytes(pulsar, topic, b"\x09not avro")
    text = failure(load(spark, NAME, auto(pulsar, topic)))
    assert "without a schema version: value: field carrier: " in text
    assert "set onCorrupt=skip, null or deadLetter" in text
    ddl = "value struct<carrier: string>, _error string, _corrupt binary"
    found = load(spark, NAME, auto(pulsar, topic, onCorrupt="null"), ddl).where("_error is not null").collect()
    assert [(row.value, bytes(row._corrupt)) for row in found] == [(None, b"\x09not avro")]


def test_columns_that_do_not_fit_are_refused(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic()
    publish(pulsar, topic, official_schema.AvroSchema, 0, [{"carrier": "AA", "number": 1}])
    text = failure_of_load(spark, auto(pulsar, topic), "value struct<carrier: int>")
    assert "value.carrier cannot be int32" in text
    assert "column topic is int, expected string" in failure_of_load(spark, auto(pulsar, topic), "topic int")
    assert "column gate is unknown" in failure_of_load(spark, auto(pulsar, topic), "gate int")


def failure_of_load(spark: SparkSession, options: dict[str, str], schema: str) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        load(spark, NAME, options, schema).collect()
    return str(caught.value)


def test_every_format_decodes_by_the_schema_of_an_option(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(2)
    topic.publish([json.dumps({"n": n, "tags": ["x"] * n}).encode() for n in range(20)] + [b"nothing"])
    given = dict(topic.options) | {"valueFormat": "json", "valueSchema": "n bigint, tags array<string>"}
    df = load(spark, mq.name, given | {"onCorrupt": "skip"})
    assert dict(df.dtypes)["value"] == "struct<n:bigint,tags:array<string>>"
    assert sorted((row.n, len(row.tags)) for row in df.select("value.*").collect()) == [(n, n) for n in range(20)]


def test_every_format_stores_what_it_cannot_decode_in_the_dead_letter_topic(
    spark: SparkSession, mq: Format, tmp_path: Path
) -> None:
    topic, dead = mq.feed(2), mq.new_topic()
    topic.publish([b'{"n": %d}' % n for n in range(20)] + [b"nothing"])
    given = {"valueFormat": "json", "valueSchema": "n int", "flatten": "true"}
    given |= {"onCorrupt": "deadLetter", "deadLetterTopic": dead}
    rows = load(spark, mq.name, dict(topic.options) | given, "n int").collect()
    assert sorted(row.n for row in rows) == list(range(20))
    topic.publish([b'{"n": 20}', b"nothing"])
    stream = spark.readStream.format(mq.name).options(**dict(topic.stream) | given).schema("n int").load()
    sink = stream.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    query = sink.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    finish(query)
    assert 20 in [row.n for row in spark.read.parquet(str(tmp_path / "rows")).collect()]
    # Where the stream reads what the batch has read, its dead letter is there twice.
    assert set(mq.consume(dead, 2)) == {b"nothing"}


@pytest.mark.parametrize("encoding", ["avro", "json"])
def test_what_is_written_as_structs_is_read_as_structs(spark: SparkSession, mq: Format, encoding: str) -> None:
    topic = mq.feed(2)
    df = spark.range(500).selectExpr(
        "struct(id, if(id % 3 = 0, null, array(id, -id)) as numbers, cast(id as decimal(10, 2)) as price, "
        "map('half', id / 2) as halves, timestamp_micros(id) as at) as value"
    )
    df.write.format(mq.name).options(**topic.target, valueFormat=encoding).mode("append").save()
    type_ = arrow_type_of_ddl(
        "id bigint, numbers array<bigint>, price decimal(10, 2), halves map<string, double>, at timestamp"
    )
    decoder = decoder_for(Encoding(encoding, derive_definition(type_, encoding)), type_, None)
    found = decoder.decode(pa.array(mq.consume(topic.topic, 500), pa.binary())).values.to_pylist()
    assert sorted(found, key=lambda row: row["id"]) == [
        {
            "id": n,
            "numbers": [n, -n] if n % 3 else None,
            "price": Decimal(n),
            "halves": [("half", n / 2)],
            "at": datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=n),
        }
        for n in range(500)
    ]


def test_json_without_a_registered_schema_is_what_from_json_reads(spark: SparkSession, mq: Format) -> None:
    from pyspark.sql import functions

    ddl = "id bigint, at timestamp, local timestamp_ntz, days array<date>"
    df = spark.range(3).selectExpr(
        "struct(id, timestamp_micros(1700000000000000 + id) as at, "
        "cast(timestamp_micros(id) as timestamp_ntz) as local, "
        "array(date_add(DATE'1969-12-31', int(id))) as days) as value"
    )
    topic = mq.feed(2)
    without = {"schema": "bytes"} if mq.name == NAME else {"valueSchema": ddl}
    df.write.format(mq.name).options(**topic.target, **without, valueFormat="json").mode("append").save()
    payloads = mq.consume(topic.topic, 3)
    texts = spark.createDataFrame([(payload.decode(),) for payload in payloads], "text string")
    parsed = texts.select(functions.from_json("text", ddl, {"mode": "FAILFAST"}).alias("value"))
    assert sorted(parsed.collect()) == sorted(df.collect())
    type_ = arrow_type_of_ddl(ddl)
    decoded = decoder_for(Encoding("json", ddl), type_, None).decode(pa.array(payloads, pa.binary()))
    assert decoded.reasons == {}
    again = spark.createDataFrame(pa.table({"value": decoded.values}))
    assert sorted(again.collect()) == sorted(df.collect())


def test_a_stream_writes_typed_rows_once(spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    namespace = pulsar.new_namespace()
    pulsar.admin.set_deduplication(namespace, enabled=True)
    source, target = pulsar.topic(2), pulsar.topic(2, namespace=namespace)
    where = {"serviceUrl": pulsar.service_url}
    flights = spark.range(1000).selectExpr("cast(id as string) as key", "struct(id as n, array(id) as ids) as value")

    def copy() -> None:
        df = (
            spark.readStream.format(NAME)
            .options(**where, topic=source, startingOffsets="earliest", valueFormat="auto")
            .load()
        )
        query = (
            df.selectExpr("struct(value.n as k) as key", "value")
            .writeStream.format(NAME)
            .options(**where, topic=target, valueFormat="avro", keyFormat="avro", deliveryGuarantee="exactly-once")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        finish(query)

    for first in (0, 500):
        part = flights.where(f"value.n >= {first} and value.n < {first + 500}")
        part.write.format(NAME).options(**where, topic=source, valueFormat="avro").mode("append").save()
        copy()
    # The last micro-batch runs again.
    newest = max((tmp_path / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    copy()
    rows = load(spark, NAME, auto(pulsar, target)).selectExpr("key.k", "value.n", "value.ids").collect()
    assert sorted((row.k, row.n, row.ids) for row in rows) == [(n, n, [n]) for n in range(1000)]


CONNECT_SCRIPT = """
import json, sys

service_url, topic = sys.argv[1:]
df = spark.read.format("pulsar-native").options(serviceUrl=service_url, topic=topic, valueFormat="auto").load()
found = [row.number for row in df.select("value.number").collect()]
spark.stop()
print(json.dumps(found))
"""


def test_spark_connect_reads_typed_columns(spark_connect: Callable[..., ScriptResult], pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic()
    publish_all_versions(pulsar, topic, official_schema.AvroSchema)
    result = spark_connect(CONNECT_SCRIPT, pulsar.service_url, topic)
    assert result.code == 0, result.output[-3000:]
    assert result.last_json() == [1, 3, 2, None]
