"""Streaming queries of all formats in Spark: one suite, against real brokers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from tests.fix_formats import every_stream
from tests.formats import Format, numbers
from tests.spark.streams import Sink, run_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@every_stream
def test_the_sink_has_each_message_once_through_restarts_within_the_limit(
    spark: SparkSession, mq: Format, tmp_path: Path
) -> None:
    topic = mq.feed(2)
    sink = Sink(tmp_path, mq.name, mq.columns)
    # Before 4.2 AvailableNow is one batch.
    limit = {"maxRowsPerTrigger": "40"} if HAS_ADMISSION_CONTROL else {}
    end = 0
    for count in (90, 6, 0):
        start, end = end, end + count
        if count:
            topic.publish(numbers(end)[start:], **mq.apart)
        progress = sink.run(spark, topic.stream | limit)
        assert sum(batch["numInputRows"] for batch in progress) == count
        assert sorted(sink.values) == sorted(value.decode() for value in numbers(end))
    if HAS_ADMISSION_CONTROL:
        assert max(sink.batches) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("mq", ["tubemq", "nsq_embedded", "nsq_nsqd"], indirect=True)  # Pulsar: test_streaming_faults
def test_bad_messages_of_a_killed_task_become_dead_letters(mq: Format, tmp_path: Path) -> None:
    feed, dead = mq.feed(2), mq.new_topic()
    sink = Sink(tmp_path, mq.name, mq.columns)
    # More than fits between the worker that reads and the one that dies.
    good = [b"%04d" % n + b"." * 3000 for n in range(2000) if n % 5]
    bad = [b"\xff%04d" % n for n in range(2000) if not n % 5]
    feed.publish(sorted(good + bad, key=lambda value: value.lstrip(b"\xff")))
    letters = {"valueFormat": "string", "onCorrupt": "deadLetter", "deadLetterTopic": dead}
    options = feed.stream | letters | {"maxBatchRows": "20"}
    assert run_driver(sink, options, "worker_killed", master="local[2,4]", after=100) == 0
    assert (sink.folder / "killed").exists()
    assert sorted(sink.values) == [value.decode() for value in good]
    more: dict[str, Any] = {"tubemq": {"lowLatency": True}}.get(mq.name, {})
    if mq.name == "nsq":
        more = {"createChannel": True, "maxRows": 10_000, "idleTimeout": "3s"}
    found = Counter(mq.read(dead, **more).column("value").to_pylist())
    assert found.keys() == set(bad)
    # The second attempt stored the dead letters of the first one again.
    assert 0 < sum(found.values()) - len(bad) < len(bad)
