"""Topics that do not end with a message: transactions, markers, compaction, termination, small ledgers."""

from __future__ import annotations

import datetime
from collections.abc import Callable

import pytest

from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.streams import Query, rolled
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat, assert_each_once


def values_of(mq: PulsarFormat, topic: str, **options) -> list[bytes | None]:
    """Return the values in order, after a check of the positions."""
    rows = mq.read(topic, f"value binary, {MESSAGE_ID}", **options).to_pylist()
    assert_each_once(rows, mq.position_of)
    return [row["value"] for row in rows]


def some(prefix: str, count: int = 7) -> list[bytes]:
    return [f"{prefix}-{n}".encode() for n in range(count)]


def test_aborted_transactions_between_messages_are_left_out(featured: PulsarFormat, java: JavaClient):
    topic, broker = featured.broker.topic(), featured.broker
    for n in range(4):
        java.produce(broker, topic, some(f"plain {n}"))
        transaction = java.begin(broker, "t")
        java.produce(broker, topic, some(f"in transaction {n}"), transaction=transaction, batching=bool(n % 2))
        (java.abort if n >= 2 else java.commit)(broker, transaction)
    expected = [v for n in range(4) for v in some(f"plain {n}") + (some(f"in transaction {n}") if n < 2 else [])]
    assert values_of(featured, topic) == expected
    assert values_of(featured, topic, minPartitions=5, adminUrl=broker.admin_url) == expected


def test_an_open_transaction_hides_later_messages_until_it_ends(featured: PulsarFormat, java: JavaClient):
    topic, broker = featured.broker.topic(), featured.broker
    java.produce(broker, topic, some("plain"))
    transaction = java.begin(broker, "open")
    java.produce(broker, topic, some("open"), transaction=transaction)
    java.produce(broker, topic, some("later"))
    assert values_of(featured, topic) == some("plain")
    java.commit(broker, transaction)
    assert values_of(featured, topic) == some("plain") + some("open") + some("later")


def test_a_terminated_topic_without_messages_is_empty(featured: PulsarFormat):
    topic = featured.broker.topic()
    featured.broker.admin.terminate(topic)
    assert values_of(featured, topic) == []


def test_a_compacted_topic_is_read_compacted_only_by_option(featured: PulsarFormat, java: JavaClient):
    topic, broker = featured.broker.topic(), featured.broker
    messages = [{"key": f"k{n % 5}", "value": f"{n}".encode()} for n in range(40)]
    java.produce(broker, topic, messages[:23])
    java.produce(broker, topic, messages[23:], batching=True, batchMessages=6)
    java.produce(broker, topic, [{"key": "k1", "value": None}])
    broker.admin.compact(topic)
    later = [{"key": "k0", "value": b"later"}]
    java.produce(broker, topic, later)
    table = featured.read(topic, "key string, value binary", readCompacted=True).to_pylist()
    last = {message["key"]: message["value"] for message in messages}
    del last["k1"]
    assert sorted((r["key"], r["value"]) for r in table) == sorted([*last.items(), ("k0", b"later")])
    everything = [message["value"] for message in messages] + [None, b"later"]
    assert values_of(featured, topic) == everything


def test_a_compacted_topic_without_its_last_messages_ends(featured: PulsarFormat, java: JavaClient):
    topic, broker = featured.broker.topic(), featured.broker
    java.produce(broker, topic, [{"key": "a", "value": b"1"}, {"key": "b", "value": b"2"}, {"key": "b", "value": None}])
    broker.admin.compact(topic)
    assert values_of(featured, topic, readCompacted=True) == [b"1"]


def test_broker_publish_times_and_indexes_are_exact(featured: PulsarFormat, java: JavaClient):
    topic, broker = featured.broker.topic(), featured.broker
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(milliseconds=1)
    java.produce(broker, topic, some("single", 3))
    java.produce(broker, topic, some("batched", 10), batching=True, batchMessages=4)
    java.produce(broker, topic, [b"c" * 2500], chunkBytes=1000)
    rows = featured.read(topic, "value binary, broker_index bigint, broker_publish_time timestamp").to_pylist()
    after = datetime.datetime.now(datetime.timezone.utc)
    assert all(before <= row["broker_publish_time"] <= after for row in rows)
    # Each chunk of a message takes an index; the message has the index of its last chunk.
    indexes = [row["broker_index"] for row in rows]
    assert indexes[:13] == list(range(13))
    assert indexes[13] > 13
    times = [row["broker_publish_time"] for row in rows]
    assert times == sorted(times)


@pytest.mark.parametrize("loaded_again", [False, True])
def test_a_topic_terminated_with_an_empty_ledger_is_read_completely(
    pulsar: PulsarUnderTest, query: Callable[..., Query], loaded_again: bool
):
    topic = pulsar.topic()
    values = rolled(pulsar, topic, 2, 3)
    pulsar.client().create_producer(topic).close()
    pulsar.admin.terminate(topic)
    if loaded_again:
        pulsar.admin.unload(topic)
    assert PulsarFormat(pulsar).read(topic, "value string").column("value").to_pylist() == values
    q = query(topic, startingOffsets="earliest", maxEntriesPerTrigger=2)
    assert q.drain() == values
    q.restart()
    assert q.trigger() == []
