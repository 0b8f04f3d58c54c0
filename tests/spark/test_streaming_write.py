"""Streaming queries that write to Pulsar, with Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from tests.fix_brokers import PulsarUnderTest
from tests.formats import numbers
from tests.formats.pulsar import PulsarFeed
from tests.spark.streams import NAME, finish, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def copy(df: DataFrame, target: PulsarFeed, checkpoint: Path, mode: str = "append", **options: Any) -> StreamingQuery:
    """Start a query that writes the present messages to a topic."""
    given = target.options | {name: str(value) for name, value in options.items()}
    return (
        df.writeStream.format(NAME)
        .options(**given)
        .option("checkpointLocation", str(checkpoint))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )


def read(spark: SparkSession, feed: PulsarFeed, **options: Any) -> DataFrame:
    given = feed.options | {"startingOffsets": "earliest"} | {name: str(value) for name, value in options.items()}
    return spark.readStream.format(NAME).options(**given).schema("key binary, value string").load()


@contextmanager
def conf(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.set(name, before)


def values(feed: PulsarFeed) -> Counter[str]:
    return Counter(message.value for message in stored(feed))


@pytest.mark.parametrize("large", ["false", "true"])
def test_a_query_copies_one_topic_to_another(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path, large: str
) -> None:
    source, target = PulsarFeed(pulsar, 2), PulsarFeed(pulsar, 3)
    source.publish(numbers(300), batching_enabled=False)
    # Before 4.2 AvailableNow is one batch.
    df = read(spark, source, **{"maxEntriesPerTrigger": 100} if HAS_ADMISSION_CONTROL else {})
    with conf(spark, "spark.sql.execution.arrow.useLargeVarTypes", large):
        finish(copy(df, target, tmp_path))
        source.publish([b"%d" % number for number in range(300, 350)])
        finish(copy(df, target, tmp_path))
    assert values(target) == Counter(map(str, range(350)))


def test_complete_mode_writes_the_whole_result_with_every_batch(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    source, target = PulsarFeed(pulsar, 1), PulsarFeed(pulsar, 1)
    df = read(spark, source).groupBy("value").count().selectExpr("concat(value, '=', count) as value")
    for published in (b"a", b"b"):
        source.publish([published])
        finish(copy(df, target, tmp_path, mode="complete"))
    assert values(target) == Counter({"a=1": 2, "b=1": 1})


def each_batch(df: DataFrame, write: Callable[[DataFrame, int], None], checkpoint: Path) -> StreamingQuery:
    writer = df.writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def test_foreach_batch_writes_once_if_its_writes_are_named(
    spark: SparkSession, pulsar: PulsarUnderTest, deduplicated: PulsarUnderTest, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    source = PulsarFeed(pulsar, 2)
    targets = [PulsarFeed(deduplicated, 2) for _ in range(2)]
    source.publish(numbers(300), batching_enabled=False)
    failing = True

    def write(df: DataFrame, number: int) -> None:
        # A name for each batch; and one for all of them, which are distinguished by their numbers.
        for target, name in zip(targets, [f"flights-{number}", "flights"], strict=True):
            named = {"deliveryGuarantee": "exactly-once", "producerName": name}
            df.write.format(NAME).options(**target.options, **named).mode("append").save()
        if failing:
            raise OSError

    df = read(spark, source, **{"maxEntriesPerTrigger": 100} if HAS_ADMISSION_CONTROL else {})
    for _ in range(2):
        with pytest.raises(StreamingQueryException):
            finish(each_batch(df, write, tmp_path))
        assert values(targets[0])
    failing = False
    finish(each_batch(df, write, tmp_path))
    for target in targets:
        assert values(target) == Counter(map(str, range(300)))


def test_an_exactly_once_write_in_foreach_batch_without_a_name_is_refused(
    spark: SparkSession, pulsar: PulsarUnderTest, deduplicated: PulsarUnderTest, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    source, target = PulsarFeed(pulsar, 1), PulsarFeed(deduplicated, 1)
    source.publish([b"x"])
    given = target.options | {"deliveryGuarantee": "exactly-once"}

    def write(df: DataFrame, _: int) -> None:
        df.write.format(NAME).options(**given).mode("append").save()

    with pytest.raises(StreamingQueryException, match="needs a producerName that is unique"):
        finish(each_batch(read(spark, source), write, tmp_path))
    assert values(target) == Counter()
    # Outside of a query only tasks are repeated.
    spark.range(3).selectExpr("cast(id as string) as value").write.format(NAME).options(**given).mode("append").save()
    assert values(target) == Counter(["0", "1", "2"])
