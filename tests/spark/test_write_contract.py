"""Writes of all formats in Spark: one suite, against real brokers."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource

from spark_mq_source.spark.base import MQBatchWriter
from tests.fix_brokers import wait_until
from tests.formats import Feed, Format, numbers
from tests.spark.streams import finish

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def save(df: DataFrame, mq: Format, topic: Feed, mode: str = "append", **options: str) -> None:
    df.write.format(mq.name).options(**topic.target | options).mode(mode).save()


def refusal(df: DataFrame, mq: Format, topic: Feed, mode: str = "append", **options: str) -> str:
    with pytest.raises(PySparkException) as caught:
        save(df, mq, topic, mode, **options)
    return str(caught.value)


def test_every_row_of_every_task_is_stored_once(spark: SparkSession, mq: Format) -> None:
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


def recording_source(folder: Path) -> type[DataSource]:
    """Return a data source whose writer notes in `folder` the rows that it received for all of a task, or an error.

    Its classes are defined here, so that they are sent to Spark's workers by value.
    """

    class RecordingFormat:
        name = "recording"

        def write(self, options: object, batches: Iterator[pa.RecordBatch], *_: object) -> None:
            rows, outcome = 0, "its rows were taken for all"
            try:
                for batch in batches:
                    rows += batch.num_rows
                    (folder / "begun").touch()
            except Exception as error:
                outcome = type(error).__name__
                raise
            finally:
                (folder / "new").write_text(f"{rows} rows: {outcome}")
                (folder / "new").rename(folder / "outcome")

        def commit(self, options: object, reports: Sequence[object]) -> None: ...

        def abort(self, options: object, reports: Sequence[object]) -> None: ...

    class RecordingSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return "recording"

        def writer(self, schema: object, overwrite: bool) -> Any:
            return MQBatchWriter(RecordingFormat(), None)  # type: ignore[arg-type] - the part that a task calls

    return RecordingSource


def test_rows_that_spark_cuts_short_are_not_accepted_as_complete(spark: SparkSession, tmp_path: Path) -> None:
    """A task is killed while Spark's worker writes its rows: the writer must not accept the rows so far as complete.

    Spark closes the connection to the worker, and Arrow treats that as the regular end of the rows: no error comes from
    Spark itself. The writer detects it by the state of the connection, which it finds in the frames of the worker of
    this release of Spark: this test runs on the newest and on the oldest.
    """
    spark.dataSource.register(recording_source(tmp_path))
    outcome = tmp_path / "outcome"

    def save_rows(count: int) -> None:
        spark.range(0, count, 1, 1).write.format("recording").mode("append").save()

    def kill_when_it_writes() -> None:
        wait_until((tmp_path / "begun").exists, "the first rows")
        spark.sparkContext.cancelJobGroup("cut short")

    save_rows(1000)
    assert outcome.read_text() == "1000 rows: its rows were taken for all"
    for used in (outcome, tmp_path / "begun"):
        used.unlink()
    with ThreadPoolExecutor(1) as pool:
        spark.sparkContext.setJobGroup("cut short", "", interruptOnCancel=True)
        killing = pool.submit(kill_when_it_writes)
        try:
            with pytest.raises(Py4JJavaError, match="cancelled part of cancelled job group cut short"):
                save_rows(10**15)  # more than the task writes
        finally:
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        killing.result()
    wait_until(outcome.exists, "the end of the task")
    assert re.fullmatch(r"[1-9][0-9]* rows: TaskEndedError", outcome.read_text())
