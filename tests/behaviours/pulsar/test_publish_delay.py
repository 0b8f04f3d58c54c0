"""The option that sends rows of a slow source before their batch is full."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar.test_writer import options
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": list(values), "key": [value.decode() for value in values]})


def stored(broker: PulsarUnderTest, topic: str) -> int:
    return int(broker.admin.partitioned_stats(topic)["msgInCounter"])


@pytest.mark.parametrize("delay", ["100ms", None])
def test_a_row_of_a_slow_source(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, delay: str | None):
    topic = pulsar.topic(2)
    seen = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        yield rows(b"a", b"b")
        yield rows(b"c")
        # No more rows follow until these are visible.
        seen.wait(60 if delay else 1)
        yield rows(b"d", b"e")

    more: dict[str, Any] = {"batchingMaxPublishDelay": delay} if delay else {}
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(PulsarWriter(options(pulsar, topic, **more), TaskAttempt("job")).write_all, source())
        if delay:
            wait_until(lambda: stored(pulsar, topic) == 3, "the first rows are stored")
            seen.set()
        writing.result(60)
    found = pulsar_format.read(topic, f"value binary, partition int, {MESSAGE_ID}").to_pylist()
    assert sorted(row["value"] for row in found) == [b"a", b"b", b"c", b"d", b"e"]
    entries = {(row["partition"], row["message_id"]["entry_id"]) for row in found}
    assert len(entries) > 2 if delay else len(entries) == 2


def test_rows_of_a_source_that_never_pauses(pulsar: PulsarUnderTest):
    topic = pulsar.topic(2)
    enough = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        # One partition's batch is never full, the other's often.
        yield pa.record_batch({"value": [b"k"], "partition": pa.array([1], pa.int32())})
        while not enough.is_set():
            yield pa.record_batch({"value": [b"x" * 10_000], "partition": pa.array([0], pa.int32())})

    with ThreadPoolExecutor(1) as pool:
        given = options(pulsar, topic, batchingMaxPublishDelay="100ms")
        writing = pool.submit(PulsarWriter(given, TaskAttempt("job")).write_all, source())
        names = [f"{topic}-partition-{n}" for n in range(2)]
        try:
            wait_until(
                lambda: writing.done() or all(pulsar.admin.stats(name)["msgInCounter"] for name in names),
                "both partitions to have rows",
            )
            assert not writing.done()
        finally:
            enough.set()
        writing.result(60)
