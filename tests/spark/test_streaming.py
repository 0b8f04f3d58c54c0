"""A stream in Spark: each message once in the sink, through restarts, with the limits of the release."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_mq_source.cli.checkpoints import migrated_checkpoint
from spark_mq_source.core.varint import encode_varint
from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats import numbers
from tests.formats.pulsar import PulsarFeed
from tests.spark.streams import Message, Sink, is_late_worker, stored
from tests.vectors import PULSAR_SPARK_CHECKPOINT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

needs_admission_control = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="before 4.2 Spark passes no start of a trigger to a data source"
)


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


@needs_admission_control
def test_available_now_makes_batches_within_the_limit(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(numbers(26), batching_enabled=False)
    progress = sink.run(spark, feed.options | {"startingOffsets": "earliest", "maxEntriesPerTrigger": "8"})
    assert sink.batches == [8, 8, 8, 2]
    assert sorted(int(message.value) for message in sink.messages) == list(range(26))
    # Progress shows the position of the newest message from the first batch on.
    sources = [p["sources"][0] for p in progress if p["numInputRows"]]
    newest = sources[-1]["endOffset"]
    assert [source["latestOffset"] for source in sources] == [newest] * 4
    assert [source["endOffset"] == newest for source in sources] == [False] * 3 + [True]


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="from 4.2 on AvailableNow makes several batches")
def test_available_now_is_one_batch_before_4_2(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(numbers(13), batching_enabled=False)
    for _ in range(2):
        sink.run(spark, feed.options | {"startingOffsets": "earliest", "maxEntriesPerTrigger": "8"})
    assert sink.batches == [8, 5]
    assert sorted(int(message.value) for message in sink.messages) == list(range(13))


@pytest.mark.timeout(600)
def test_a_failed_first_batch_is_repeated_from_the_same_start(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    """Spark asks for another start of a query at the latest message when it is started again."""
    feed, batches, published = PulsarFeed(pulsar, 1), [], itertools.count()

    def start(take: Callable[[DataFrame, int], None]) -> StreamingQuery:
        rows = spark.readStream.format("pulsar-native").options(**feed.options).load()
        return rows.writeStream.option("checkpointLocation", str(tmp_path)).foreachBatch(take).start()

    def keep(rows: DataFrame, number: int) -> None:
        batches.append((number, [int(bytes(row.value)) for row in rows.collect()]))

    def fail(rows: DataFrame, number: int) -> None:
        keep(rows, number)
        raise RuntimeError("the first one fails")

    def run_until(batches_kept: int, take: Callable[[DataFrame, int], None]) -> StreamingQuery:
        query = start(take)

        def has_come() -> bool:
            nonlocal query
            if is_late_worker(query.exception()):
                query = start(take)
            feed.publish([b"%d" % next(published)])
            return len(batches) >= batches_kept

        try:
            wait_until(has_come, "the published rows are read", timeout_s=240)
        except BaseException:
            query.stop()
            raise
        return query

    query = run_until(1, fail)
    wait_until(lambda: query.exception() is not None, "the query fails")
    feed.publish([b"%d" % next(published)])
    run_until(3, keep).stop()
    assert [number for number, _ in batches[:3]] == [0, 0, 1]
    assert batches[0] == batches[1]
    read = [value for _, values in batches[1:] for value in values]
    assert read == list(range(read[0], read[0] + len(read)))


def test_lost_data_ends_the_query_with_an_error_that_names_it(
    spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink
) -> None:
    from pyspark.errors import StreamingQueryException

    gone, stays = PulsarFeed(pulsar, 1), PulsarFeed(pulsar, 1)
    topics = f"{gone.topic},{stays.topic}"
    options = {"serviceUrl": pulsar.service_url, "topics": topics, "startingOffsets": "earliest"}
    gone.publish([b"1"])
    sink.run(spark, options)
    pulsar.admin.delete_topic(gone.topic, partitioned=True)
    stays.publish([b"2"])
    with pytest.raises(StreamingQueryException, match="no longer exists, so its unread messages are lost"):
        sink.run(spark, options)
    sink.run(spark, options | {"failOnDataLoss": "false"})
    assert sorted(message.value for message in sink.messages) == ["1", "2"]


def test_a_stream_of_pulsar_spark_continues_after_its_last_batch(
    spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink
) -> None:
    """A recorded checkpoint with this topic's message ids; batch 2 is committed, and 3 was interrupted."""
    feed = PulsarFeed(pulsar, 2)
    old = Path(shutil.copytree(PULSAR_SPARK_CHECKPOINT, sink.folder / "old"))
    shutil.rmtree(old / "state")
    (old / "commits" / "3").unlink()
    values = numbers(60)
    for batch, part in ((2, values[:20]), (3, values[20:40])):
        feed.publish(part)
        set_end(old / "offsets" / str(batch), feed)
    migrated_checkpoint(old, sink.folder / "checkpoint")
    feed.publish(values[40:])
    for _ in range(2):  # before Spark 4.2 the first of these ends after the interrupted batch
        sink.run(spark, feed.options)
    assert sink.batches == [20, 20]
    assert sorted(int(message.value) for message in sink.messages) == list(range(20, 60))


def test_a_stream_of_pulsar_spark_repeats_its_first_batch_from_its_start(
    spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink
) -> None:
    """The new query, whose start is the latest message, begins where the interrupted one did."""
    feed, values = PulsarFeed(pulsar, 2), numbers(40)
    old = Path(shutil.copytree(PULSAR_SPARK_CHECKPOINT, sink.folder / "old"))
    for folder in ("state", "commits"):
        shutil.rmtree(old / folder)
    for batch in range(1, 4):
        (old / "offsets" / str(batch)).unlink()
    feed.publish(values[:20])
    set_end(old / "offsets" / "0", feed)
    start = old / "sources" / "0" / "0"
    earliest = next(iter(json.loads(start.read_text().removeprefix("v1")).values()))
    start.write_text("v1\n" + json.dumps(dict.fromkeys(feed.topic_partitions, earliest)))
    feed.publish(values[20:])
    migrated_checkpoint(old, sink.folder / "checkpoint")
    for _ in range(2):
        sink.run(spark, feed.options)
    assert sink.batches == [20, 20]
    assert sorted(int(message.value) for message in sink.messages) == list(range(40))


def set_end(file: Path, feed: PulsarFeed) -> None:
    """Let a batch of a checkpoint end with the newest messages of the topic."""
    ends = {feed.topic_partitions[one.partition]: message_id(one) for one in stored(feed)}
    file.write_text("\n".join([*file.read_text().splitlines()[:2], json.dumps(ends)]))


def message_id(message: Message) -> list[int]:
    """Return the bytes of `MessageIdData` in the form of pulsar-spark's JSON."""
    numbers = ((0x08, message.ledger), (0x10, message.entry), (0x18, message.partition))
    return [byte for tag, number in numbers for byte in (tag, *encode_varint(number))]
