"""Streaming queries that write to Pulsar, as a user of Spark sees it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from tests.fix_brokers import PulsarUnderTest
from tests.spark.formats import PulsarFeed, numbers
from tests.spark.streams import NAME, QUERY_TIMEOUT_S, stored

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery


def copy(df: DataFrame, target: PulsarFeed, checkpoint: Path, mode: str = "append", **options: Any) -> StreamingQuery:
    """Starts a query that writes to a topic what there is."""
    given = target.options | {name: str(value) for name, value in options.items()}
    return (
        df.writeStream.format(NAME)
        .options(**given)
        .option("checkpointLocation", str(checkpoint))
        .outputMode(mode)
        .trigger(availableNow=True)
        .start()
    )


def finish(query: StreamingQuery) -> None:
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
    finally:
        query.stop()


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


def test_the_whole_result_is_written_with_every_batch_in_complete_mode(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    source, target = PulsarFeed(pulsar, 1), PulsarFeed(pulsar, 1)
    df = read(spark, source).groupBy("value").count().selectExpr("concat(value, '=', count) as value")
    for published in (b"a", b"b"):
        source.publish([published])
        finish(copy(df, target, tmp_path, mode="complete"))
    assert values(target) == Counter({"a=1": 2, "b=1": 1})


def test_options_and_columns_are_checked_before_the_first_batch_is_written(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    source, target = PulsarFeed(pulsar, 1), PulsarFeed(pulsar, 1)
    source.publish([b"x"])
    df = read(spark, source)
    for wrong, options, sentence in [
        (df.selectExpr("value", "1 as valeu"), {}, "column valeu is unknown"),
        (df, {"compresionType": "LZ4"}, "did you mean compressionType"),
    ]:
        with pytest.raises(StreamingQueryException, match=sentence):
            finish(copy(wrong, target, tmp_path, **options))
    assert values(target) == Counter()
