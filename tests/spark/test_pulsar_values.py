"""Structs as JSON, written with Spark."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fix_brokers import PulsarUnderTest
from tests.spark.frames import load
from tests.spark.test_pulsar_write import NAME, save

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_struct_is_read_back_from_its_json(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
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
    # Another thread takes a task's rows if they may not wait.
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
