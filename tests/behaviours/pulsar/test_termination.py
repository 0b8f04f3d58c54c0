"""Terminated topics: only a stream with endAtTermination ends with them."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from spark_mq_source.core.errors import EndOfStreamError
from tests.behaviours.pulsar.streams import PIN, Query, backlog, numbered, publish, rolled
from tests.fix_brokers import PulsarUnderTest


def read_to_end(q: Query) -> list[str]:
    """Return the rows that it reads until it reports that its topics have ended."""
    read: list[str] = []

    def go_on() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            read.extend(q.trigger())

    with pytest.raises(EndOfStreamError, match="all topics of this query are terminated and read to their end"):
        go_on()
    return read


def ending(query: Callable[..., Query], topic: str | None, **more: object) -> Query:
    return query(topic, endAtTermination="true", startingOffsets="earliest", **more)


def test_a_stream_ends_when_all_partitions_are_terminated_and_read(
    pulsar: PulsarUnderTest, query: Callable[..., Query]
):
    topic = pulsar.topic(3)
    q = ending(query, topic)
    values = []
    for n in range(3):
        part = f"{topic}-partition-{n}"
        values += [f"{n}.{i}" for i in range(5)]
        publish(pulsar, part, values[-5:])
        pulsar.admin.terminate(part)
        if n < 2:
            assert len(q.drain()) == 5
            for _ in range(5):
                assert q.trigger() == []  # one is not terminated yet
    assert sorted(read_to_end(q)) == values[-5:]
    assert sorted(row["value"] for row in q.rows) == values


def test_an_empty_topic_that_is_terminated_ends_a_stream(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic(2)
    q = ending(query, topic)
    assert q.trigger() == []
    for n in range(2):
        pulsar.admin.terminate(f"{topic}-partition-{n}")
    assert read_to_end(q) == []


def test_a_stream_restarted_behind_the_end_ends_again(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    values = [*rolled(pulsar, topic, 2, 3), "last"]
    publish(pulsar, topic, values[-1:])
    pulsar.admin.terminate(topic)
    q = ending(query, topic, subscription=PIN, maxEntriesPerTrigger="2")
    assert read_to_end(q) == values
    assert backlog(pulsar, topic) == 1, "the last entry, as ever"
    q.restart()
    assert read_to_end(q) == []
    pulsar.admin.unload(topic)
    q.restart()
    assert read_to_end(q) == []


def test_a_compacted_read_ends(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    producer = pulsar.client().create_producer(topic, batching_enabled=False)
    for n in range(10):
        producer.send(f"{n}".encode(), partition_key="k")
    producer.close()
    pulsar.admin.compact(topic)
    pulsar.admin.terminate(topic)
    q = ending(query, topic, readCompacted="true")
    assert read_to_end(q)[-1] == "9"


def test_a_stream_without_the_option_continues(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(3))
    pulsar.admin.terminate(topic)
    q = query(topic, startingOffsets="earliest")
    assert q.drain() == numbered(3)
    for _ in range(10):
        assert q.trigger() == []
