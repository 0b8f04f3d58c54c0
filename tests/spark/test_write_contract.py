"""What a write of any format does in Spark: the same suite for all of them, against real brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import PySparkException

from tests.formats import Feed, Format, numbers
from tests.spark.streams import finish

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def save(df: DataFrame, mq: Format, topic: Feed, mode: str = "append", **options: str) -> None:
    df.write.format(mq.name).options(**topic.target | options).mode(mode).save()


def refusal(df: DataFrame, mq: Format, topic: Feed, mode: str = "append", **options: str) -> str:
    with pytest.raises(PySparkException) as caught:
        save(df, mq, topic, mode, **options)
    return str(caught.value)


def test_every_row_of_every_task_is_there_once(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(3)
    save(spark.range(0, 5000, 1, 4).selectExpr("cast(id as string) as value"), mq, topic)
    assert sorted(mq.consume(topic.topic, 5000)) == sorted(numbers(5000))


def test_a_streaming_query_writes_each_row_once_through_restarts(
    spark: SparkSession, mq: Format, tmp_path: Path
) -> None:
    topic = mq.feed(2)
    rows, checkpoint = str(tmp_path / "rows"), str(tmp_path / "checkpoint")
    for start in (0, 500, 1000):
        new = spark.range(start, start + 500).selectExpr("cast(id as string) as value")
        new.where("id < 1000").write.mode("append").text(rows)
        finish(
            spark.readStream.text(rows)
            .writeStream.format(mq.name)
            .options(**topic.target)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
    assert sorted(mq.consume(topic.topic, 1000)) == sorted(numbers(1000))


def test_columns_and_options_are_checked_before_anything_is_written(spark: SparkSession, mq: Format) -> None:
    topic = mq.feed(1)
    good = spark.range(1).selectExpr("cast(id as string) as value")
    assert "column valeu is unknown (known: " in refusal(good.selectExpr("value", "1 as valeu"), mq, topic)
    assert "column value is bigint, expected binary or string" in refusal(good.selectExpr("1L as value"), mq, topic)
    assert "there is no column value to write" in refusal(good.selectExpr("'t' as topic"), mq, topic)
    assert "nonsense: unknown option" in refusal(good, mq, topic, nonsense="x")
    assert "cannot be overwritten" in refusal(good, mq, topic, mode="overwrite")
    save(good, mq, topic)
    assert mq.consume(topic.topic, 1) == [b"0"]
