"""A stream in Spark: each message once in the sink, through restarts and kills, with the limits of the release."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dev.processes import ManagedProcess, log_tail
from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from tests.fix_brokers import PulsarUnderTest
from tests.fix_spark import spark_environment
from tests.spark.formats import MESSAGE_ID, PulsarFeed, load, numbers, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "pulsar-native"
SCHEMA = f"value string, partition int, message_id {MESSAGE_ID}"
QUERY_TIMEOUT_S = 120.0
needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="before 4.2 Spark does not tell a data source where a trigger begins"
)


class Sink:
    """A parquet table, a checkpoint, and what each batch had in it."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.batches: list[int] = []
        self.progress: list[dict[str, Any]] = []

    def run(self, options: Mapping[str, str]) -> None:
        """Runs a query on everything there is, in as many batches as Spark and the limits make of it."""
        query = (
            stream(self.spark, options)
            .writeStream.trigger(availableNow=True)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .foreachBatch(self._write)
            .start()
        )
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
        self.progress = [json.loads(p.json) for p in query.recentProgress]

    def _write(self, df: DataFrame, number: int) -> None:
        df.write.mode("overwrite").parquet(str(self.folder / "table" / f"batch={number}"))
        self.batches.append(self.spark.read.parquet(str(self.folder / "table" / f"batch={number}")).count())

    def rows(self) -> list[Any]:
        return self.spark.read.parquet(str(self.folder / "table")).select("value", "partition", "message_id").collect()


def stream(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.readStream.format(NAME).options(**options).schema(SCHEMA).load()


def produced(spark: SparkSession, feed: PulsarFeed) -> list[Any]:
    """What a batch read finds, which other tests compare with what was published."""
    return load(spark, NAME, feed.options, SCHEMA).collect()


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Sink:
    return Sink(spark, tmp_path)


def test_the_sink_has_each_message_once_through_restarts(
    spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink
) -> None:
    feed = PulsarFeed(pulsar, 3)
    options = feed.options | {"startingOffsets": "earliest", "subscription": "sink"}
    feed.publish(numbers(90))
    sink.run(options)
    assert sorted(sink.rows()) == sorted(produced(spark, feed))
    assert sum(sink.batches) == 90
    # A restart goes on from the checkpoint, whatever the options say of the start.
    feed.publish([b"more"] * 6)
    for start in ("earliest", "latest"):
        sink.run(options | {"startingOffsets": start})
        assert sorted(sink.rows()) == sorted(produced(spark, feed))
        assert sum(sink.batches) == 96
    assert len(sink.rows()) == len(set(sink.rows())) == 96
    stats = pulsar.admin.stats(feed.topic_partitions[0])["subscriptions"]
    assert list(stats) == ["sink"]


def test_starts_at_latest_and_goes_on_there(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 1)
    feed.publish(numbers(5))
    sink.run(feed.options)
    feed.publish([b"new"])
    sink.run(feed.options)
    assert [row.value for row in sink.rows()] == ["new"]


@needs_admission_control
def test_available_now_comes_in_batches_within_the_limit(
    spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink
) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(numbers(26), batching_enabled=False)
    sink.run(feed.options | {"startingOffsets": "earliest", "maxEntriesPerTrigger": "8"})
    assert sink.batches == [8, 8, 8, 2]
    assert sorted(int(row.value) for row in sink.rows()) == list(range(26))
    # Progress shows how far the newest message is, from the first batch on.
    sources = [p["sources"][0] for p in sink.progress if p["numInputRows"]]
    newest = sources[-1]["endOffset"]
    assert [source["latestOffset"] for source in sources] == [newest] * 4
    assert [source["endOffset"] == newest for source in sources] == [False] * 3 + [True]


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="from 4.2 on there are several")
def test_available_now_is_one_batch_before_4_2(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(numbers(26), batching_enabled=False)
    for _ in range(4):
        sink.run(feed.options | {"startingOffsets": "earliest", "maxEntriesPerTrigger": "8"})
    assert sink.batches == [8, 8, 8, 2]
    assert sorted(int(row.value) for row in sink.rows()) == list(range(26))


def test_triggers_keep_within_the_limit(spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(numbers(20), batching_enabled=False)
    seen: list[list[int]] = []
    query = (
        stream(spark, feed.options | {"startingOffsets": "earliest", "maxEntriesPerTrigger": "7"})
        .writeStream.trigger(processingTime="100 milliseconds")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda df, _: seen.append([int(row.value) for row in df.collect()]))
        .start()
    )
    try:
        wait_until(lambda: sum(map(len, seen)) >= 20 or query.exception() is not None, "all are read")
        assert query.exception() is None
        pulsar.admin.unload(feed.topic)
        feed.publish([b"20", b"21"])
        wait_until(lambda: sum(map(len, seen)) >= 22 or query.exception() is not None, "what came later is read")
    finally:
        query.stop()
    assert [len(values) for values in seen][:3] == [7, 7, 6]
    assert sorted(itertools.chain(*seen)) == list(range(22))
    wait_until(lambda: feed.readers() == 0, "the broker has no reader any more")


def test_lost_data_ends_the_query_and_is_named(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    from pyspark.errors import StreamingQueryException

    gone, stays = PulsarFeed(pulsar, 1), PulsarFeed(pulsar, 1)
    topics = f"{gone.topic},{stays.topic}"
    options = {"serviceUrl": pulsar.service_url, "topics": topics, "startingOffsets": "earliest"}
    gone.publish([b"1"])
    sink.run(options)
    pulsar.admin.delete_topic(gone.topic, partitioned=True)
    stays.publish([b"2"])
    with pytest.raises(StreamingQueryException, match="no longer there, with whatever was not read of it"):
        sink.run(options)
    sink.run(options | {"failOnDataLoss": "false"})
    assert sorted(row.value for row in sink.rows()) == ["1", "2"]


DRIVER = """
import json, os, sys
from pyspark.sql import SparkSession

name, schema, options, folder = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), sys.argv[4]
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
)
query = (
    spark.readStream.format(name).options(**options).schema(schema).load()
    .writeStream.format("parquet").option("path", folder + "/table")
    .option("checkpointLocation", folder + "/checkpoint").trigger(processingTime="0 seconds").start()
)
query.awaitTermination()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_that_is_killed_and_started_again_writes_each_message_once(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    feed = PulsarFeed(pulsar, 2)
    count = 160
    feed.publish(numbers(count), batching_enabled=False)
    options = feed.options | {"startingOffsets": "earliest", "maxEntriesPerTrigger": "40", "subscription": "sink"}
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)

    def logged(kind: str) -> int:
        folder = tmp_path / "checkpoint" / kind
        return len([p for p in folder.glob("*") if p.name.isdigit()]) if folder.exists() else 0

    def run(log: Path, reached: Callable[[], bool]) -> None:
        given = (json.dumps(options), str(tmp_path))
        process = ManagedProcess(
            [sys.executable, script, NAME, SCHEMA, *given], log=log, environment=spark_environment(), folder=tmp_path
        )
        try:
            deadline = time.monotonic() + 200
            while not reached():
                assert process.alive, log_tail(log)
                assert time.monotonic() < deadline, log_tail(log)
                time.sleep(0.005)  # to kill it at that very step, which it tells nobody
        finally:
            process.kill()

    # Planned and not done: the offsets are written, the commit is not. Then the other way round.
    run(tmp_path / "1.log", lambda: logged("offsets") > logged("commits"))
    run(tmp_path / "2.log", lambda: logged("commits") >= 2)
    run(tmp_path / "3.log", lambda: logged("commits") >= 4)
    rows = spark.read.parquet(str(tmp_path / "table")).collect()
    assert len(rows) == len({(row.partition, row.message_id) for row in rows}) == count
    assert sorted(rows) == sorted(produced(spark, feed))
