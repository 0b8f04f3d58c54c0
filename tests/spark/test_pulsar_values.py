"""Structs as JSON, as a user of Spark writes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fix_brokers import PulsarUnderTest
from tests.spark.frames import load
from tests.spark.test_pulsar_write import NAME, refusal, save

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_struct_comes_back_from_its_json(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic(2)
    df = spark.range(20_000).selectExpr(
        """struct(
            id,
            if(id % 3 = 0, null, concat('"', id, '\n')) as text,
            if(id % 5 = 0, null, array(id, -id)) as numbers,
            map('half', id / 2) as halves,
            struct(id % 2 = 0 as is_even) as about,
            timestamp_micros(id) as at,
            cast(id as decimal(10, 2)) as price
        ) as value"""
    )
    # A task's rows are taken by another thread where they may not wait.
    save(df.repartition(2), pulsar, topic=topic, valueFormat="json", batchingMaxPublishDelay="10ms")
    found = load(spark, NAME, {"serviceUrl": pulsar.service_url, "topic": topic}, "value string")
    ddl = (
        "id bigint, text string, numbers array<bigint>, halves map<string,double>, about struct<is_even:boolean>, "
        "at bigint, price string"
    )
    read = found.selectExpr(f"from_json(value, '{ddl}') as value")
    wanted = df.selectExpr(
        "struct(value.id, value.text, value.numbers, value.halves, value.about, "
        "unix_micros(value.at) as at, cast(value.price as string) as price) as value"
    )
    assert sorted(read.collect(), key=lambda row: row.value.id) == wanted.collect()
    schema = pulsar.admin.request("GET", f"schemas/{topic.partition('://')[2]}/schema")
    names = [field["name"] for field in json.loads(schema["data"])["fields"]]
    assert names == ["id", "text", "numbers", "halves", "about", "at", "price"]


def test_values_are_checked_before_anything_is_written(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic()
    struct = spark.range(1).selectExpr("struct(id, id as `no name`) as value")
    assert "expected binary or string; set valueFormat to write a struct" in refusal(struct, pulsar, topic=topic)
    assert "value.no name is not an Avro name" in refusal(struct, pulsar, topic=topic, valueFormat="json")
    number = spark.range(1).selectExpr("id as value")
    assert "column value is bigint, expected binary or string" in refusal(number, pulsar, topic=topic)
    text = spark.range(1).selectExpr("cast(id as string) as value")
    assert "expected a struct with valueFormat=json" in refusal(text, pulsar, topic=topic, valueFormat="json")
    record = '{"type": "record", "name": "F", "fields": [{"name": "id", "type": "string"}]}'
    fitting = struct.selectExpr("struct(value.id) as value")
    sentence = refusal(fitting, pulsar, topic=topic, valueFormat="json", schema=record)
    assert "value.id is long, and string in the schema" in sentence
    assert pulsar.admin.stats(topic)["msgInCounter"] == 0
