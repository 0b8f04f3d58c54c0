"""Queries over terminated topics: they end with the topics, with a specific error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from spark_mq_source.spark.progress import await_end
from tests.fix_brokers import PulsarUnderTest
from tests.formats import numbers
from tests.formats.pulsar import PulsarFeed
from tests.spark.streams import Sink, finish, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.fix_spark import ScriptResult

ENDING = {"startingOffsets": "earliest", "endAtTermination": "true"}
PATIENCE_S = 120


def terminate(feed: PulsarFeed) -> None:
    for name in feed.topic_partitions:
        feed.broker.admin.terminate(name)


CONNECT_SCRIPT = """
import json, sys
from pyspark.errors import StreamingQueryException
import spark_mq_source
from spark_mq_source.spark.progress import await_end

url, topic, folder = sys.argv[1:]
spark_mq_source.register(spark)
found = []
for number, column in enumerate(("value binary", "value string")):
    stream = spark.readStream.format("pulsar-native").schema(column)
    stream = stream.options(serviceUrl=url, topic=topic, startingOffsets="earliest", endAtTermination="true").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", f"{folder}/{number}").start()
    try:
        found.append(await_end(query, 120))
    except StreamingQueryException as error:
        found.append(str(error))
    query.stop()
spark.stop()
print(json.dumps(found))
"""


def test_a_query_ends_with_its_topics(spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    feed, sink = PulsarFeed(pulsar, 2), Sink(tmp_path)
    feed.publish(numbers(20))
    with sink.running(spark, feed.stream | ENDING) as query:
        assert not await_end(query, 1)
        feed.publish(numbers(20))
        terminate(feed)
        assert await_end(query, PATIENCE_S)
        assert not query.isActive
        # The error as seen by a caller that does not expect it.
        with pytest.raises(
            StreamingQueryException, match=r"EndOfStreamError: pulsar-native: .*all topics of this query"
        ):
            query.awaitTermination()
    sink.check(feed)
    assert len(sink.batches) == len(sink.commits)
    # Started again, it ends again, with nothing more.
    with sink.running(spark, feed.stream | ENDING) as query:
        assert await_end(query, PATIENCE_S)
    sink.check(feed)


def test_windows_that_wait_for_a_watermark_are_completed(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    feed = PulsarFeed(pulsar, 1)
    feed.publish(numbers(3))
    feed.publish([b"last"])
    terminate(feed)
    rows = stream(spark, feed.options | ENDING, schema="value string, publish_time timestamp")
    counted = (
        rows.selectExpr("value", "if(value = 'last', publish_time + interval 1 hour, publish_time) as at")
        .withWatermark("at", "1 minute")
        .groupBy("at", "value")
        .count()
    )
    query = (
        counted.writeStream.format("parquet")
        .option("path", str(tmp_path / "table"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        assert await_end(query, PATIENCE_S)
    finally:
        query.stop()
    found = spark.read.parquet(str(tmp_path / "table")).collect()
    assert sorted(row.value for row in found) == sorted(value.decode() for value in numbers(3))


def test_available_now_needs_no_error(spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    feed, sink = PulsarFeed(pulsar, 2), Sink(tmp_path)
    feed.publish(numbers(20))
    terminate(feed)
    finish(sink.start(spark, feed.stream | ENDING, availableNow=True))
    sink.check(feed)


def test_over_spark_connect_an_end_is_awaited_and_a_failure_raised(
    spark_connect: Callable[..., ScriptResult], pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    feed = PulsarFeed(pulsar, 1)
    feed.publish([b"\xff"])
    terminate(feed)
    result = spark_connect(CONNECT_SCRIPT, pulsar.service_url, feed.topic, str(tmp_path))
    assert result.code == 0, result.output[-3000:]
    ended, failed = result.last_json()
    assert ended is True
    assert "UTF-8" in failed
