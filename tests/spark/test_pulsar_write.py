"""Writes to Pulsar with Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats.pulsar import PulsarFeed
from tests.spark.frames import load
from tests.spark.streams import stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "pulsar-native"


def save(df: DataFrame, broker: PulsarUnderTest, mode: str = "append", **options: Any) -> None:
    given = {"serviceUrl": broker.service_url} | {name: str(value) for name, value in options.items()}
    df.write.format(NAME).options(**given).mode(mode).save()


def refusal(df: DataFrame, broker: PulsarUnderTest, **options: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        save(df, broker, **options)
    return str(caught.value)


def test_all_columns_are_read_back(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic(3)
    df = spark.range(10_000).selectExpr(
        "if(id % 7 = 0, null, concat('value-', id)) as value",
        "encode(concat('k', id % 10), 'utf-8') as key",
        "if(id % 3 = 0, null, encode(concat('o', id), 'utf-8')) as ordering_key",
        "timestamp_millis(1700000000000 + id) as event_time",
        "map('id', cast(id as string)) as properties",
    )
    save(df, pulsar, topic=topic, compressionType="lz4", batchingMaxMessages=500)
    columns = "value string, key binary, ordering_key binary, event_time timestamp, properties map<string,string>"
    found = load(spark, NAME, {"serviceUrl": pulsar.service_url, "topic": topic}, columns)
    assert found.count() == 10_000
    order = "cast(properties['id'] as int)"
    assert found.orderBy(*spark_columns(order)).collect() == df.orderBy(*spark_columns(order)).collect()


def spark_columns(*texts: str) -> list[Any]:
    from pyspark.sql.functions import expr

    return [expr(text) for text in texts]


def test_rows_read_can_be_written_again(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    first, second = pulsar.topic(), pulsar.topic(2)
    save(spark.range(100).selectExpr("cast(id as string) as value"), pulsar, topic=first)
    read = load(spark, NAME, {"serviceUrl": pulsar.service_url, "topic": first})
    save(read.select("key", "value", "event_time", "properties"), pulsar, topic=second)
    copy = load(spark, NAME, {"serviceUrl": pulsar.service_url, "topic": second}, "value string")
    assert sorted(int(row.value) for row in copy.collect()) == list(range(100))


def test_tasks_write_concurrently_and_report_their_rows(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic(2)
    save(spark.range(0, 50_000, 1, 8).selectExpr("cast(id as string) as value"), pulsar, topic=topic)
    found = load(spark, NAME, {"serviceUrl": pulsar.service_url, "topic": topic}, "value string, producer_name string")
    assert found.selectExpr("sum(cast(value as long))", "count(*)").first() == (50_000 * 49_999 // 2, 50_000)
    assert found.select("producer_name").distinct().count() >= 8


def test_rows_of_a_failed_job_are_never_visible_with_transactions(
    spark: SparkSession, pulsar_featured: PulsarUnderTest
) -> None:
    feed = PulsarFeed(pulsar_featured, 2)
    given = {
        "topic": feed.topic, "authToken": pulsar_featured.require_own().admin_token, "batchingMaxMessages": 10,
        "deliveryGuarantee": "transaction", "transactionTimeout": "20m",
    }  # fmt: skip
    # The first Arrow batches are written when the next one fails.
    fails = spark.range(0, 30_000, 1, 1).selectExpr(
        "if(id = 25000, raise_error('too late'), cast(id as string)) as value"
    )
    assert "too late" in refusal(fails, pulsar_featured, **given)
    save(spark.range(0, 400, 1, 2).selectExpr("cast(id as string) as value"), pulsar_featured, **given)
    # No open transaction hides them: Spark does not wait for its failed tasks, which may still run.
    wait_until(lambda: len(stored(feed)) >= 400, "all rows are visible")
    assert sorted(int(message.value) for message in stored(feed)) == list(range(400))


def test_a_task_without_rows_uses_the_schema_of_the_others(spark: SparkSession, deduplicated: PulsarUnderTest) -> None:
    deduplicated.admin.request("POST", f"namespaces/{deduplicated.namespace}/schemaValidationEnforced", True)
    feed = PulsarFeed(deduplicated, 2)
    struct = "struct(id, timestamp_millis(id) as at, cast(id as decimal(9, 2)) as price, array(id) as ids) as value"
    given = {"topic": feed.topic, "valueFormat": "json", "deliveryGuarantee": "exactly-once"}
    # In the order of the tasks: rows, which create the topic's schema, and then none.
    df = spark.range(0, 40, 1, 4).where("id < 10").selectExpr(struct)
    for _ in range(2):
        save(df, deduplicated, producerName="flights", **given)
    assert len(stored(feed)) == 10
