"""Limits in rows and bytes on a real broker: exact with the broker's index, approximate by inspected entries."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.streams import PIN, ROW, Query, numbered, publish, query_of
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import PulsarFormat, read_tasks


@pytest.fixture
def indexed(featured: PulsarFormat, closing: Callable[[Query], Query]) -> Callable[..., Query]:
    """Start queries on the broker that numbers messages."""
    given = {**featured.defaults, "startingOffsets": "earliest"}
    return lambda topic=None, **options: closing(query_of(featured.broker, topic, given | options))


def mixed(broker: PulsarUnderTest, topic: str, batches: list[int]) -> list[str]:
    """Publish entries of these numbers of messages; return the values in order."""
    values: list[str] = []
    for n, size in enumerate(batches):
        part = numbered(size, f"{n}.")
        publish(broker, topic, part, batch=size)
        values += part
    return values


def most_beyond(query: Query, limit: int) -> int:
    """Return the largest excess over the limit among triggers of more than one entry."""
    return max(
        (rows - limit for rows, entries in zip(query.sizes, query.triggers, strict=True) if entries > 1), default=0
    )


# -- equal entries: limits are exact on every broker


@pytest.mark.parametrize(("limit", "expected"), [(35, [30, 30, 30, 10]), (7, [10] * 10)])
def test_rows_are_whole_entries_within_the_limit(
    pulsar: PulsarUnderTest, query: Callable[..., Query], limit: int, expected: list[int]
):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(100), batch=10)
    q = query(topic, startingOffsets="earliest", maxRowsPerTrigger=limit)
    assert q.drain() == numbered(100)
    assert q.sizes == expected


@pytest.mark.parametrize("admin", [False, True])
def test_a_limit_of_bytes_counts_stored_bytes(pulsar: PulsarUnderTest, query: Callable[..., Query], admin: bool):
    topic = pulsar.topic()
    values = [f"{n:01000}" for n in range(20)]
    publish(pulsar, topic, values)
    options = {"adminUrl": pulsar.admin_url} if admin else {}
    with_overhead = 1100
    q = query(topic, startingOffsets="earliest", maxBytesPerTrigger=6 * with_overhead, **options)
    assert q.drain() == values
    assert q.sizes == [6, 6, 6, 2]
    tight = query(topic, startingOffsets="earliest", maxBytesPerTrigger="1k", **options)
    tight.trigger()
    assert tight.sizes == [1]


def test_the_smallest_limit_is_obeyed(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(60), batch=6)
    most = {"maxEntriesPerTrigger": 4, "maxRowsPerTrigger": 24, "maxBytesPerTrigger": "10m"}
    for fewer in ({"maxEntriesPerTrigger": 2}, {"maxRowsPerTrigger": 12}, {"maxBytesPerTrigger": 100}):
        q = query(topic, startingOffsets="earliest", **(most | fewer))
        q.trigger()
        assert q.triggers in ([2], [1]), fewer
        assert (q.triggers == [1]) == ("maxBytesPerTrigger" in fewer)
    q = query(topic, startingOffsets="earliest", **most)
    q.trigger()
    assert q.triggers == [4]


def test_no_limit_applies_if_spark_asks_for_everything(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(10))
    q = query(topic, startingOffsets="earliest", maxRowsPerTrigger=3, maxBytesPerTrigger=300)
    assert q.trigger(limited=False) == numbered(10)


# -- several partitions


def test_tasks_stay_within_their_limit_of_records_across_ledgers_and_are_replanned_alike(
    pulsar: PulsarUnderTest, query: Callable[..., Query]
):
    topic = pulsar.topic()
    values = []
    for n in range(3):
        part = numbered(70, f"{n}.")
        publish(pulsar, topic, part, batch=10)
        pulsar.admin.unload(topic)
        values += part
    q = query(topic, startingOffsets="earliest", maxRecordsPerPartition=25)
    end = q.plan()
    tasks = q.stream.ranges(q.at, end)
    rows = [read_tasks(q.options, [task], ROW).to_pylist() for task in tasks]
    assert [row["value"] for part in rows for row in part] == values
    assert max(map(len, rows)) == 20
    q.restart()
    assert q.stream.ranges(q.at, end) == tasks


# -- the broker's index


def test_limits_by_the_index_are_exact_for_different_entries(
    featured: PulsarFormat, indexed: Callable[..., Query], rng: random.Random
):
    topic = featured.broker.topic()
    values = mixed(featured.broker, topic, [1] * 12 + [40] * 3 + [1] * 12 + [rng.choice([1, 5, 30]) for _ in range(20)])
    assert len(featured.broker.admin.ledgers(topic)) > 3
    q = indexed(topic, maxRowsPerTrigger=20)
    assert q.drain() == values
    print(q.sizes)  # noqa: T201
    assert most_beyond(q, 20) <= 0
    # The first ones are as many as the limit allows.
    assert q.sizes[0] >= 8


def test_a_transaction_that_the_index_counts_as_one_stays_within_the_limit(
    featured: PulsarFormat, indexed: Callable[..., Query], java: JavaClient
):
    broker = featured.broker
    topic = broker.topic()
    values = []
    for n in range(12):
        part = numbered(10, f"{n}.")
        transaction = java.begin(broker, f"limit-{n}")
        java.produce(
            broker, topic, [v.encode() for v in part], transaction=transaction, batching=True, batchMessages=10
        )
        java.commit(broker, transaction)
        values += part
    q = indexed(topic, maxRowsPerTrigger=30)
    assert q.drain() == values
    assert most_beyond(q, 30) <= 0


# -- inspected entries


def test_limits_adapt_to_entries_of_different_sizes(
    pulsar: PulsarUnderTest, query: Callable[..., Query], rng: random.Random
):
    topic = pulsar.topic(2)
    expected = {n: mixed(pulsar, f"{topic}-partition-{n}", [rng.choice([1, 10]) for _ in range(40)]) for n in range(2)}
    q = query(topic, startingOffsets="earliest", maxRowsPerTrigger=25, subscription=PIN)
    q.drain()
    for n, values in expected.items():
        assert [row["value"] for row in q.rows if row["partition"] == n] == values
    print(q.sizes)  # noqa: T201
    # However wrong the estimate, no entry has more than ten.
    assert max(q.sizes) <= 10 * 25
    assert len(q.sizes) > sum(map(len, expected.values())) // 250


def test_a_missing_admin_interface_ends_no_query(
    pulsar: PulsarUnderTest, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(9))
    q = query(topic, startingOffsets="earliest", maxBytesPerTrigger=200, adminUrl=f"{pulsar.admin_url}/nowhere")
    assert q.drain() == numbered(9)
    assert caplog.text.count("maxBytesPerTrigger is now estimated from entries already read") == 1


def test_inspecting_entries_leaves_nothing_behind(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(30))
    q = query(topic, startingOffsets="earliest", maxRowsPerTrigger=7)
    q.drain()
    assert len(pulsar.admin.stats(topic)["subscriptions"]) == 1
