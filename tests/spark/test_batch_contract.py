"""Batch reads of all formats in Spark: one suite, against real brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

import spark_mq_source
from tests.fix_brokers import wait_until
from tests.formats import BATCH_ROWS, Format, numbers
from tests.spark.frames import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def values_of(df: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in df.select("value").collect())


# -- finding the format, its schema, its columns


def test_is_found_without_registration(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(1)
    topic.publish(numbers(3))
    session = spark.newSession()
    # It decides what "timestamp" means in a schema of the session, not in the default columns.
    session.conf.set("spark.sql.timestampType", "TIMESTAMP_NTZ")
    assert values_of(load(session, mq.name, topic.options)) == sorted(numbers(3))
    spark_mq_source.register(session)
    assert load(session, mq.name, topic.options).columns == list(mq.schema)


def test_named_columns_come_in_the_order_named(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(2)
    topic.publish(numbers(20))
    expected = load(spark, mq.name, topic.options)
    columns = list(reversed(mq.schema))
    projected = load(spark, mq.name, topic.options, ", ".join(f"{name} {mq.schema[name]}" for name in columns))
    assert projected.columns == columns
    sort_key = repr
    assert sorted(projected.collect(), key=sort_key) == sorted(expected.select(*columns).collect(), key=sort_key)


def test_null_and_empty_values_are_distinguished(spark: SparkSession, mq: Format) -> None:
    if not mq.takes_empty:
        pytest.skip("a message must not be empty")
    topic = mq.feed(1)
    topic.publish([b"", b"x"])
    df = load(spark, mq.name, topic.options)
    assert [bytes(row.value) for row in df.collect()] == [b"", b"x"]
    assert df.where("value is null").count() == 0


# -- contents


def test_empty_topic_is_an_empty_dataframe(spark: SparkSession, mq: Format) -> None:
    df = load(spark, mq.name, mq.feed(3).options)
    assert df.collect() == []
    assert df.count() == 0
    assert {field.name: field.dataType.simpleString() for field in df.schema} == mq.schema


def test_queries_return_the_published_messages(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(3)
    texts = ["na\u00efve \u2713 \U0001f680", "a\x00b", *[""][: mq.takes_empty], *map(str, range(900))]
    topic.publish([text.encode() for text in texts])
    df = load(spark, mq.name, topic.options, mq.columns)
    assert sorted(row.value for row in df.select("value").collect()) == sorted(texts)
    df = df.withColumn("n", F.expr("try_cast(value as int)")).where("n is not null")
    assert sorted(row.n for row in df.where("n % 100 = 7").collect()) == list(range(7, 900, 100))
    grouped = df.groupBy(F.col("n") % 7).agg(F.count("*"), F.sum("n")).collect()
    expected = {(k, len(range(k, 900, 7)), sum(range(k, 900, 7))) for k in range(7)}
    assert {tuple(row) for row in grouped} == expected
    joined = df.alias("a").join(df.alias("b"), "n").count()
    assert joined == 900


def test_partitions_of_a_topic_are_tasks(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(4)
    topic.publish(numbers(40))
    df = load(spark, mq.name, topic.options)
    assert df.rdd.getNumPartitions() == 4
    by_task = df.select(F.spark_partition_id().alias("task"), F.col(mq.partition).alias("of"), "value").collect()
    assert len({(row.task, row.of) for row in by_task}) == 4
    for row in by_task:
        assert row.of == topic.partitions[int(row.value) % 4]


def test_sql_view(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(2)
    topic.publish(numbers(30))
    options = ", ".join(f"{name} '{value}'" for name, value in topic.options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW plain USING `{mq.name}` OPTIONS ({options})")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW named (value STRING) USING `{mq.name}` OPTIONS ({options})")
    try:
        assert spark.table("plain").columns == list(mq.schema)
        assert spark.sql("SELECT count(*) FROM plain").first()[0] == 30
        assert spark.sql("SELECT sum(int(value)) FROM named WHERE value <> '29'").first()[0] == sum(range(29))
    finally:
        spark.catalog.dropTempView("plain")
        spark.catalog.dropTempView("named")


def test_limit_stops_reading_and_leaves_nothing_behind(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(1)
    count = mq.plenty
    topic.publish([b"%01000d" % n for n in range(count)])
    before = topic.sent()
    rows = load(spark, mq.name, topic.straight | {BATCH_ROWS: "1000"}, "value binary").limit(5).collect()
    assert len(rows) == 5
    wait_until(lambda: topic.readers() == 0, "the broker has no reader")
    assert topic.sent() - before < count
