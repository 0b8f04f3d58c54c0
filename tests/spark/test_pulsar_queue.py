"""A subscription of Pulsar as a queue, as a user of Spark reads it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.behaviours.pulsar.streams import numbered, publish
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats.pulsar import MESSAGE_ID
from tests.spark.frames import failure, load
from tests.spark.streams import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "pulsar-native"
SCHEMA = f"value string, partition int, redelivery_count int, {MESSAGE_ID}"


def options(broker: PulsarUnderTest, topic: str, **more: Any) -> Mapping[str, str]:
    """Tasks wait for what they were planned for as long as a busy machine takes."""
    given = {
        "serviceUrl": broker.service_url,
        "topic": topic,
        "subscription": "queue",
        "subscriptionType": "Shared",
        "initialPosition": "earliest",
        "idleTimeout": "20s",
    } | more
    return {name: str(value) for name, value in given.items()}


def backlog(broker: PulsarUnderTest, topic: str) -> int:
    return int(broker.admin.stats(topic)["subscriptions"]["queue"]["msgBacklog"])


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path, NAME, SCHEMA)


def test_a_drain_has_every_message_and_a_second_one_none(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic(2)
    for partition in range(2):
        publish(pulsar, f"{topic}-partition-{partition}", numbered(500, f"{partition}."), batch=10)
    df = load(spark, NAME, options(pulsar, topic, maxRows=1000, consumersPerPartition=2), SCHEMA)
    assert sorted(row.value for row in df.collect()) == sorted(numbered(500, "0.") + numbered(500, "1."))
    given = dict(options(pulsar, topic, idleTimeout="1s"))
    assert load(spark, NAME, given, SCHEMA).count() == 0
    del given["idleTimeout"]
    assert "a queue has no end: set maxRows, maxSeconds or idleTimeout" in failure(load(spark, NAME, given))


def test_a_run_that_is_written_down_counts_twice_the_same(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(300))
    df = load(spark, NAME, options(pulsar, topic, maxRows=300, walDir=tmp_path / "wal", runId="r"), SCHEMA)
    assert df.count() == 300
    publish(pulsar, topic, ["later"])
    assert [row.value for row in df.collect()] == numbered(300)
    assert backlog(pulsar, topic) == 1


def test_a_stream_has_each_message_once_through_restarts(
    spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink, tmp_path: Path
) -> None:
    topic = pulsar.topic(2)
    given = options(pulsar, topic, walDir=tmp_path / "wal")
    values: list[str] = []
    for run in range(2):
        for partition in range(2):
            part = numbered(100, f"{run}.{partition}.")
            publish(pulsar, f"{topic}-partition-{partition}", part, batch=1 + run * 9)
            values += part
        sink.run(spark, given)
        assert sorted(sink.values) == sorted(values)
    for partition in range(2):
        wait_until(lambda p=partition: backlog(pulsar, f"{topic}-partition-{p}") == 0, "all is acknowledged")


def test_a_stream_goes_on_with_what_comes(
    spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink, tmp_path: Path
) -> None:
    topic = pulsar.topic()
    where = options(pulsar, topic, walDir=tmp_path / "wal", initialPosition="latest")
    with sink.running(spark, where) as query:
        wait_until(lambda: "queue" in pulsar.admin.stats(topic)["subscriptions"], "the query is there")
        for part in range(3):
            publish(pulsar, topic, numbered(10, f"{part}."))
            wait_until(lambda: backlog(pulsar, topic) == 0, "they are acknowledged")
        query.processAllAvailable()
    assert sorted(sink.values) == sorted(value for part in range(3) for value in numbered(10, f"{part}."))
