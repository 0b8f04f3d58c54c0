"""Data that a broker deletes during a read: it is read or reported; data read before its deletion is no loss."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_mq_source.core.errors import DataLossError
from spark_mq_source.pulsar.offsets import Position
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import read_range
from tests.behaviours.pulsar.streams import Query, numbered, publish
from tests.fix_brokers import wait_until
from tests.formats import schema_of
from tests.formats.pulsar import PulsarFormat

LEDGERS, ENTRIES = 10, 4
VALUES = numbered(LEDGERS * ENTRIES)
SLOW = {"receiverQueueSize": 2, "maxBatchRows": 1, "operationTimeout": "8s"}
"""The broker sends no more than two entries ahead."""


class Topic:
    """A topic of ten closed ledgers of four entries, which a subscription keeps until `trim_to`, and an empty one."""

    def __init__(self, mq: PulsarFormat, *, keep_data: bool = False) -> None:
        self.mq = mq
        self.admin = mq.broker.admin
        self.namespace = mq.broker.new_namespace(keep_data=keep_data)
        self.name = mq.broker.topic(namespace=self.namespace)
        self.ids: list[Position] = []
        mq.broker.client().subscribe(self.name, "keeper").close()
        for n in range(LEDGERS):
            self.ids += publish(mq.broker, self.name, VALUES[n * ENTRIES : (n + 1) * ENTRIES])
            self.admin.unload(self.name)
        mq.broker.client().create_producer(self.name).close()  # loads it again
        wait_until(lambda: len(self.admin.ledgers(self.name)) > LEDGERS, "the topic is loaded")

    def trim_to(self, count: int) -> None:
        """Have the ledgers of the first `count` messages deleted, and no others."""
        consumer = self.mq.broker.client().subscribe(self.name, "keeper")
        # One more, because 2.10 keeps the ledger of the last entry that is acknowledged.
        for _ in range(min(count + 1, len(VALUES))):
            received = consumer.receive(20_000)
        consumer.acknowledge_cumulative(received)
        consumer.close()
        kept = self.ids[count].ledger if count < len(self.ids) else self.ids[-1].ledger + 1

        def gone() -> bool:
            self.admin.trim(self.name)
            return self.admin.ledgers(self.name)[0][0] >= kept

        wait_until(gone, "the ledgers are gone")

    def truncate(self, _: int) -> None:
        """Have everything deleted."""
        self.admin.request("DELETE", f"{self.name.replace('://', '/')}/truncate")
        wait_until(lambda: self.admin.ledgers(self.name)[0][0] > self.ids[-1].ledger, "the ledgers are gone")

    def expire(self, _: int) -> None:
        """Move all cursors to the end, readers' included; that alone deletes nothing."""
        before = time.time()
        wait_until(lambda: time.time() > before + 2, "messages older than a second")
        self.admin.request("POST", f"{self.name.replace('://', '/')}/all_subscription/expireMessages/1")
        wait_until(
            lambda: self.admin.stats(self.name)["subscriptions"]["keeper"]["msgBacklog"] == 0, "the messages expired"
        )

    def read_slowly(self, **options: Any) -> Iterator[str]:
        """Yield the values of a batch read one by one."""
        made = self.mq.options(self.name, **SLOW | options)
        for task in plan_batch(made):
            for one in read_range(made, task, schema_of("value string")):
                yield from one.column(0).to_pylist()


@pytest.fixture
def topic(pulsar_format: PulsarFormat) -> Topic:
    return Topic(pulsar_format)


def take(reading: Iterator[str], count: int) -> list[str]:
    return [next(reading) for _ in range(count)]


# -- deleted before it was read


# The simulation reads and deletes at any time (batch_read_removal, stream_trimmed).
@pytest.mark.parametrize(("read", "trimmed"), [(1, 4), (ENTRIES, LEDGERS)])
def test_ledgers_trimmed_ahead_of_a_reader_are_a_loss(topic: Topic, read: int, trimmed: int):
    reading = topic.read_slowly()
    rows = take(reading, read)
    topic.trim_to(trimmed * ENTRIES)
    with pytest.raises(DataLossError, match=r"the broker has deleted the messages from .*failOnDataLoss=false"):
        rows += reading
    # The rows before the error are those published, in order.
    assert rows == VALUES[: len(rows)]
    assert len(rows) < trimmed * ENTRIES


def test_a_tolerant_reader_continues_with_the_remaining_messages(topic: Topic, caplog: pytest.LogCaptureFixture):
    trimmed = 4
    reading = topic.read_slowly(failOnDataLoss=False)
    rows = take(reading, ENTRIES - 1)
    topic.trim_to(trimmed * ENTRIES)
    with caplog.at_level(logging.WARNING, "spark_mq_source"):
        rows += reading
    before = len(rows) - (LEDGERS - trimmed) * ENTRIES
    assert rows == VALUES[:before] + VALUES[trimmed * ENTRIES :]
    assert before < trimmed * ENTRIES
    assert "the broker has deleted the messages from" in caplog.text


# -- deleted after it was read, or not deleted


def test_a_stream_continues_past_a_deleted_ledger_that_it_has_read(topic: Topic, query: Callable[..., Query]):
    q = query(topic.name, startingOffsets="earliest", maxEntriesPerTrigger=ENTRIES)
    assert q.drain_to(VALUES[3 * ENTRIES - 1]) == VALUES[: 3 * ENTRIES]
    topic.trim_to(3 * ENTRIES)
    assert q.drain() == VALUES[3 * ENTRIES :]


def test_messages_may_be_deleted_once_they_are_read(topic: Topic):
    read = 3 * ENTRIES + 1
    reading = topic.read_slowly()
    rows = take(reading, read)
    topic.trim_to(read)
    rows += reading
    assert rows == VALUES


def test_messages_may_be_deleted_once_they_are_received(topic: Topic):
    # All of it is in the receive queue when it is deleted: only the state of the broker when it sent them matters.
    reading = topic.read_slowly(receiverQueueSize=1000)
    rows = take(reading, 1)
    wait_until(
        lambda: all(
            one["unackedMessages"] == len(VALUES) or one["msgOutCounter"] == len(VALUES)
            for name, one in topic.admin.stats(topic.name)["subscriptions"].items()
            if name != "keeper"
        ),
        "everything was sent",
    )
    topic.trim_to(len(VALUES))
    rows += reading
    assert rows == VALUES


def test_a_cursor_moved_by_expiry_is_moved_back(pulsar_format: PulsarFormat):
    topic = Topic(pulsar_format, keep_data=True)
    reading = topic.read_slowly()
    rows = take(reading, ENTRIES)
    topic.expire(0)
    rows += reading
    assert rows == VALUES
