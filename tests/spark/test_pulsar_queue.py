"""A subscription of Pulsar as a queue, read with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tests.behaviours.pulsar.streams import numbered, publish
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import MESSAGE_ID
from tests.spark.frames import failure, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "pulsar-native"
SCHEMA = f"value string, partition int, redelivery_count int, {MESSAGE_ID}"


def options(broker: PulsarUnderTest, topic: str, **more: Any) -> Mapping[str, str]:
    """Return options with which tasks wait for all planned messages, however long a busy machine takes."""
    given = {
        "serviceUrl": broker.service_url,
        "topic": topic,
        "subscription": "queue",
        "subscriptionType": "Shared",
        "initialPosition": "earliest",
        "idleTimeout": "20s",
    } | more
    return {name: str(value) for name, value in given.items()}


def test_a_drain_reads_every_message_and_a_second_one_none(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic(2)
    for partition in range(2):
        publish(pulsar, f"{topic}-partition-{partition}", numbered(500, f"{partition}."), batch=10)
    df = load(spark, NAME, options(pulsar, topic, maxRows=1000, consumersPerPartition=2), SCHEMA)
    assert sorted(row.value for row in df.collect()) == sorted(numbered(500, "0.") + numbered(500, "1."))
    given = dict(options(pulsar, topic, idleTimeout="1s"))
    assert load(spark, NAME, given, SCHEMA).count() == 0
    del given["idleTimeout"]
    assert "a queue has no end: set maxRows, maxSeconds or idleTimeout" in failure(load(spark, NAME, given))
