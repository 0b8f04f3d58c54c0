"""Faults of a streaming query at exact points: each message is in the sink once.

After every fault the sink has the messages that the broker's official client reads, without duplicates, and no
offset in the checkpoint has decreased (`Sink.check`).
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from spark_mq_source.pulsar.offsets import EARLIEST
from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_net import Fault, FaultProxy
from tests.formats import numbers
from tests.formats.pulsar import PulsarFeed, PulsarFormat
from tests.spark.streams import QUERY_TIMEOUT_S, SIGKILLED, Sink, pausing, run_driver, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

PIN = "pin"
PINNED = {"startingOffsets": "earliest", "subscription": PIN}
FEW_AHEAD = {"receiverQueueSize": "5", "maxBatchRows": "1"}
"""The broker sends a task five messages more than it has taken: the others are still on the broker at the fault."""


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path)


def large(count: int) -> list[bytes]:
    """Return values of 100 kB. A task's sockets hold less than 200 of them: while it waits, the rest is unread."""
    return [b"%06d" % number * 17_000 for number in range(count)]


@contextlib.contextmanager
def publishing(feed: PulsarFeed) -> Iterator[set[tuple[int, ...]]]:
    """Publish to all partitions until the block ends, and collect the receipts: partition, ledger, entry, batch."""
    client = feed.broker.client()
    producers = [client.create_producer(name, send_timeout_millis=120_000) for name in feed.topic_partitions]
    receipts: set[tuple[int, ...]] = set()
    failures: list[object] = []
    stop = threading.Event()

    def publish() -> None:
        number = 0
        while not stop.wait(0.01):
            for partition, producer in enumerate(producers):

                def noted(result: Any, at: Any, partition: int = partition) -> None:
                    if str(result).endswith("Ok"):
                        receipts.add((partition, at.ledger_id(), at.entry_id(), at.batch_index()))
                    else:
                        failures.append(result)

                producer.send_async(b"later %d" % number, noted)
            number += 1

    thread = threading.Thread(target=publish, name="publisher")
    thread.start()
    try:
        yield receipts
    finally:
        stop.set()
        thread.join()
        for producer in producers:
            producer.flush()
            producer.close()
    assert receipts
    assert not failures, failures[0]


def cursors(feed: PulsarFeed) -> list[tuple[int, int]]:
    """Return ledger and entry of the last message that the pin of each partition has released."""
    stats = (feed.broker.admin.internal_stats(name)["cursors"][PIN] for name in feed.topic_partitions)
    positions = (str(pin["markDeletePosition"]).partition(":") for pin in stats)
    return [(int(ledger), int(entry)) for ledger, _, entry in positions]


def check_pin(feed: PulsarFeed, sink: Sink) -> None:
    """Check that the pin has released the committed messages except for the last entry, and nothing else.

    Spark commits a batch when it begins the next one, so all but the last batch are committed.
    """
    committed = sink.offsets[-2] if len(sink.offsets) > 1 else {}
    messages = stored(feed)
    for partition, name in enumerate(feed.topic_partitions):
        end = committed.get(name, EARLIEST)
        entries = {m[1:3] for m in messages if m.partition == partition and m[1:3] >= (end.ledger, end.entry)}
        assert feed.broker.admin.stats(name)["subscriptions"][PIN]["msgBacklog"] == len(entries), name
        assert all(cursors(feed)[partition] < entry for entry in entries), name


def wait_for_pause(query: StreamingQuery, sink: Sink) -> None:
    """Wait until a task of the query is at the stop of `pausing`."""
    paused = sink.folder / "paused"
    wait_until(lambda: paused.exists() or not query.isActive, "a task has read a part of its range", QUERY_TIMEOUT_S)
    assert query.exception() is None


# -- the topic


def test_a_topic_is_unloaded_every_second(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(large(400), batching_enabled=False)
    step = pausing(sink.folder, after=10)
    with sink.running(spark, feed.options | PINNED | FEW_AHEAD, lambda df, n: sink.write(df, n, step)) as query:
        wait_for_pause(query, sink)
        assert feed.sent() < 400
        with publishing(feed) as receipts:
            for _ in range(3):
                for name in feed.topic_partitions:
                    pulsar.admin.unload(name)
                (sink.folder / "resume").touch()
                time.sleep(1)  # the fault itself
        query.processAllAvailable()
    sink.check(feed)
    check_pin(feed, sink)
    assert receipts <= {message[:4] for message in sink.messages}


# -- the driver and its tasks


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_driver_is_killed_at_each_step(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(numbers(200), batching_enabled=False)
    options = feed.options | PINNED | {"maxEntriesPerTrigger": "40"}
    steps = [("killed_when_planned", {}), ("killed_in_a_task", {"after": 5}), ("killed_when_written", {})]
    # Each run repeats the batch in which the previous one was killed, and is killed in the next one.
    for batch, (step, arguments) in enumerate(steps):
        trigger = {"processingTime": "0 seconds"}
        assert run_driver(sink, options, step, trigger=trigger, batch=batch, **arguments) == SIGKILLED
        assert (len(sink.offsets), len(sink.commits)) == (batch + 1, batch)
    with sink.running(spark, options) as query:
        query.processAllAvailable()
    sink.check(feed)
    check_pin(feed, sink)
    assert sink.batches == [40] * 5


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="finds the worker in /proc")
def test_a_task_is_killed_while_it_reads_and_stores_dead_letters(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, sink: Sink
) -> None:
    feed, dead = PulsarFeed(pulsar, 1), PulsarFeed(pulsar, 0)
    good = large(300)
    bad = [b"\xff" + value[:6] for value in good]
    feed.publish([value for pair in zip(bad, good, strict=True) for value in pair], batching_enabled=False)
    letters = {"valueFormat": "string", "onCorrupt": "deadLetter", "deadLetterTopic": dead.topic}
    options = feed.options | PINNED | FEW_AHEAD | letters
    port = urlsplit(pulsar.service_url).port
    assert run_driver(sink, options, "reader_killed", master="local[2,4]", port=port, after=10) == 0
    assert len(json.loads((sink.folder / "killed").read_text())) == 1
    assert sink.values == [value.decode() for value in good]
    found = pulsar_format.read(dead.topic).column("value").to_pylist()
    assert set(found) == set(bad)
    assert found.count(bad[0]) == 2
    assert found.count(bad[-1]) == 1


# -- the link


@pytest.fixture
def link(pulsar: PulsarUnderTest) -> Iterator[FaultProxy]:
    """Yield a proxy between the broker and the driver and tasks. A standalone broker redirects its clients to it."""
    parts = urlsplit(pulsar.service_url)
    with FaultProxy(parts.hostname or "", parts.port or 0) as proxy:
        yield proxy


def through(link: FaultProxy, feed: PulsarFeed, **options: object) -> dict[str, str]:
    """Return options to read a feed over a link that may fail."""
    impatient = {"connectTimeout": "1s", "keepAliveInterval": "500ms", "operationTimeout": "60s"}
    given = {"serviceUrl": f"pulsar://{link.address}"} | options
    return feed.options | PINNED | impatient | {name: str(value) for name, value in given.items()}


@pytest.mark.parametrize(
    "fault",
    [
        # One that the simulation makes in every order, and one that it cannot make, because checksums are real.
        pytest.param(Fault("cut", at=350_000, connections=1000), id="every connection is cut after 350 kB"),
        pytest.param(Fault("flip", at=150_000, connections=20), id="a bit is flipped"),
    ],
)
def test_a_link_fails(spark: SparkSession, pulsar: PulsarUnderTest, sink: Sink, link: FaultProxy, fault: Fault) -> None:
    feed = PulsarFeed(pulsar, 2)
    feed.publish(large(20), batching_enabled=False)
    link.add(fault)
    # Before 4.2 AvailableNow is one batch.
    sink.run(spark, through(link, feed, **{"maxEntriesPerTrigger": 12} if HAS_ADMISSION_CONTROL else {}))
    assert fault in link.happened
    sink.check(feed)
    check_pin(feed, sink)
