"""Limits of rows and bytes in Spark: no batch passes them, all of it arrives, whatever release asks for the batches."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats import numbers
from tests.formats.pulsar import PulsarFeed
from tests.spark.streams import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


def run_until_read(spark: SparkSession, sink: Sink, options: dict[str, str], messages: int) -> None:
    """AvailableNow: one run where Spark splits it into batches, one run a batch where it does not."""
    runs = 1 if HAS_ADMISSION_CONTROL else messages
    for _ in range(runs):
        sink.run(spark, options)
        if sum(sink.batches) >= messages:
            return


def test_rows(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(numbers(40), batching_max_messages=5)
    run_until_read(spark, sink, feed.options | EARLIEST | {"maxRowsPerTrigger": "12"}, 40)
    sink.check(feed)
    assert len(sink.batches) > 1
    assert max(sink.batches) <= 12


def test_bytes(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish([b"%02d" % n * 5_000 for n in range(20)], batching_enabled=False)
    options = feed.options | EARLIEST | {"maxBytesPerTrigger": "45k", "adminUrl": pulsar.admin_url}
    run_until_read(spark, sink, options, 20)
    sink.check(feed)
    # A message of 10,000 bytes takes a few more with its metadata: four fit.
    assert sink.batches == [4] * 5


def test_the_smallest_of_several_limits_holds(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 1)
    feed.publish(numbers(9), batching_enabled=False)
    limits = {"maxRowsPerTrigger": "5", "maxEntriesPerTrigger": "3", "maxBytesPerTrigger": "1m"}
    run_until_read(spark, sink, feed.options | EARLIEST | limits, 9)
    sink.check(feed)
    assert sink.batches == [3, 3, 3]


def test_triggers_of_a_query_that_goes_on(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(numbers(30), batching_enabled=False)
    with sink.running(spark, feed.options | EARLIEST | {"maxRowsPerTrigger": "10"}) as query:
        wait_until(lambda: sum(sink.batches) >= 30 or query.exception() is not None, "all are read")
        feed.publish(numbers(30), batching_enabled=False)
        wait_until(lambda: sum(sink.batches) >= 60 or query.exception() is not None, "what came later is read")
        assert query.exception() is None
    sink.check(feed)
    assert max(sink.batches) <= 10
