"""Data loss of a stream and gaps that are no loss; pins during a crash, with a hung client or a busy driver."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from spark_mq_source.core.errors import DataLossError
from spark_mq_source.pulsar.offsets import Position
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.raw_producer import RawProducer, chunk, metadata
from tests.behaviours.pulsar.streams import (
    PIN,
    ROW,
    Offset,
    Query,
    backlog,
    numbered,
    position,
    publish,
    query_of,
    rolled,
)
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats import through_json
from tests.formats.pulsar import PulsarFormat, read_tasks


def assert_lost(
    query: Callable[..., Query], q: Query, topic: str, left: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """Check that the query fails at the deleted range each time, and that a tolerant one continues with the rest."""
    at = position(q.at or {}, topic)
    for _ in range(2):
        with pytest.raises(
            DataLossError, match=rf"{topic}: the broker may have deleted the messages from {at} to \d+:-?\d+"
        ):
            q.trigger()
    q.close()
    caplog.clear()
    tolerant = query(topic, subscription=PIN, failOnDataLoss=False, checkpoint=q.at)
    with caplog.at_level(logging.WARNING, "spark_mq_source"):
        assert tolerant.drain() == left
    assert f"{topic}: the broker may have deleted the messages from {at} to" in caplog.text
    assert tolerant.trigger() == []


# -- unread and deleted


def delete_ledgers(broker: PulsarUnderTest, topic: str, last: int) -> None:
    """Have the ledgers up to `last` deleted, once no cursor retains them."""
    # A moved cursor releases no ledger while the topic stays loaded (seen on 4.0.8).
    broker.admin.unload(topic)
    broker.client().create_producer(topic).close()

    def gone() -> bool:
        broker.admin.trim(topic)
        return broker.admin.ledgers(topic)[0][0] > last

    wait_until(gone, "the ledgers are gone")


def test_expired_and_deleted_messages_are_a_loss(
    pulsar: PulsarUnderTest, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
):
    topic = pulsar.topic(namespace=pulsar.new_namespace(keep_data=False))
    q = query(topic, startingOffsets="earliest", subscription=PIN, maxEntriesPerTrigger=2)
    q.trigger()
    rolled(pulsar, topic, 2, 3)
    assert q.trigger() == ["0.0", "0.1"]
    before = time.time()
    wait_until(lambda: time.time() > before + 2, "messages older than a second")
    pulsar.admin.request("POST", f"{topic.replace('://', '/')}/all_subscription/expireMessages/1")
    wait_until(lambda: backlog(pulsar, topic) == 0, "expired")
    delete_ledgers(pulsar, topic, pulsar.admin.ledgers(topic)[-1][0])
    publish(pulsar, topic, ["left"])
    assert_lost(query, q, topic, ["left"], caplog)


def test_a_chunked_message_whose_first_chunk_is_deleted_between_triggers_is_a_loss(
    pulsar: PulsarUnderTest, query: Callable[..., Query]
):
    """The subscription keeps the entry read last, and this message began in the ledger before."""
    topic = pulsar.topic(namespace=pulsar.new_namespace(keep_data=False))
    q = query(topic, startingOffsets="earliest", subscription=PIN)
    q.trigger()

    def publish_chunks(*numbers: int) -> None:
        with RawProducer(PulsarFormat(pulsar).service, topic) as producer:
            for number in numbers:
                producer.send(metadata(chunk("u", number, 4, 4)), b"%d" % number)

    publish_chunks(0)
    first = pulsar.admin.ledgers(topic)[0][0]
    pulsar.admin.unload(topic)
    publish_chunks(1, 2)
    assert q.trigger() == q.trigger() == []
    delete_ledgers(pulsar, topic, first)
    publish_chunks(3)
    with pytest.raises(DataLossError, match=r"the chunked message that ends at .* has no first chunk"):
        q.trigger()


def test_a_possible_loss_is_reported_once(
    pulsar: PulsarUnderTest, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
):
    topic = pulsar.topic()
    publish(pulsar, topic, ["0"])
    q = query(topic, startingOffsets="earliest", failOnDataLoss=False)
    assert q.trigger() == ["0"]
    publish(pulsar, topic, ["1"])
    pulsar.admin.unload(topic)
    first = pulsar.admin.ledgers(topic)[0][0]
    pulsar.admin.request("DELETE", f"{topic.replace('://', '/')}/truncate")
    wait_until(lambda: pulsar.admin.ledgers(topic)[0][0] > first, "the ledger is gone")
    with caplog.at_level(logging.WARNING, "spark_mq_source"):
        for _ in range(3):
            assert q.trigger() == []
        publish(pulsar, topic, ["2"])
        assert q.trigger() == ["2"]
    assert caplog.text.count("may have deleted") == 1


# -- a checkpoint of another topic


def checkpoint_at(topic: str, at: Position) -> Offset:
    return {"version": 1, "positions": {topic: at.to_json()}}


@pytest.mark.parametrize(
    ("ledgers", "entries_past", "options"),
    [
        (0, None, {}),
        (0, None, {"subscription": PIN}),
        (2, None, {"maxEntriesPerTrigger": 2}),
        (2, 1, {}),
        (2, 1, {"subscription": PIN}),
        (2, 50, {"maxEntriesPerTrigger": 2}),
    ],
)
def test_a_checkpoint_past_the_end_is_a_loss(
    pulsar: PulsarUnderTest,
    query: Callable[..., Query],
    ledgers: int,
    entries_past: int | None,
    options: dict[str, Any],
):
    topic = pulsar.topic()
    values = rolled(pulsar, topic, ledgers, 4)
    at = Position(2**40, 7)
    if entries_past is not None:
        at = Position(pulsar.admin.ledgers(topic)[ledgers - 1][0], 3 + entries_past)
    checkpoint = checkpoint_at(topic, at)
    q = query(topic, checkpoint=checkpoint, **options)
    for _ in range(2):
        with pytest.raises(DataLossError, match=rf"{topic}: position {at} does not exist: .*checkpoint"):
            q.trigger()
    q.close()
    tolerant = query(topic, checkpoint=checkpoint, failOnDataLoss=False, **options)
    end = through_json(tolerant.stream.latest(checkpoint))
    first = read_tasks(tolerant.options, tolerant.stream.ranges(checkpoint, end), ROW).to_pylist()
    assert [row["value"] for row in first] == values[: options.get("maxEntriesPerTrigger")]
    # The same batch again, after a restart.
    tolerant.restart()
    assert read_tasks(tolerant.options, tolerant.stream.ranges(checkpoint, end), ROW).to_pylist() == first
    tolerant.stream.commit(end)
    tolerant.at = end
    assert tolerant.drain() == values[len(first) :]
    publish(pulsar, topic, ["more"])
    assert tolerant.trigger() == ["more"]


def test_a_query_at_the_end_continues_however_its_topic_ends(
    pulsar: PulsarUnderTest, query: Callable[..., Query], java: JavaClient
):
    topic = pulsar.topic()
    q = query(topic, startingOffsets="earliest", subscription=PIN)
    assert q.trigger() == []
    java.produce(pulsar, topic, [{"key": "k", "value": b"0"}, {"key": "other", "value": b"1"}])
    java.produce(pulsar, topic, [{"key": "k", "value": None}] * 3)
    assert q.drain() == ["0", "1", None, None, None]
    pulsar.admin.compact(topic)
    assert q.trigger() == []
    pulsar.admin.unload(topic)
    assert q.trigger() == []
    q.restart()
    assert q.trigger() == []
    publish(pulsar, topic, ["2"])
    assert q.drain() == ["2"]
    pulsar.admin.terminate(topic)
    q.restart()
    assert q.trigger() == []


# -- gaps that are no loss


@pytest.mark.parametrize("read_compacted", [False, True])
def test_messages_removed_by_compaction_are_no_loss(
    pulsar: PulsarUnderTest, query: Callable[..., Query], java: JavaClient, read_compacted: bool
):
    topic = pulsar.topic(namespace=pulsar.new_namespace(keep_data=False))
    options = {"startingOffsets": "earliest", "readCompacted": read_compacted, "maxEntriesPerTrigger": 5}
    q = query(topic, subscription=PIN, **options)
    q.trigger()
    java.produce(pulsar, topic, [{"key": f"k{n % 3}", "value": f"{n}".encode()} for n in range(12)])
    assert q.trigger() == numbered(5)
    pulsar.admin.compact(topic)
    java.produce(pulsar, topic, [{"key": f"k{n % 3}", "value": f"{n}".encode()} for n in range(12, 15)])
    # 9, 10 and 11 are the last of their keys in the compacted part.
    expected = ["9", "10", "11", "12", "13", "14"] if read_compacted else numbered(15)[5:]
    assert q.drain() == expected
    q.restart()
    assert q.trigger() == []


@pytest.mark.parametrize("options", [{}, {"subscription": PIN}, {"maxEntriesPerTrigger": 2}])
def test_compacted_messages_are_read_after_their_originals_are_deleted(
    pulsar: PulsarUnderTest, query: Callable[..., Query], java: JavaClient, options: dict[str, Any]
):
    topic = pulsar.topic(namespace=pulsar.new_namespace(keep_data=False))
    # The compacted ledger has a gap before the last message of k3.
    java.produce(pulsar, topic, [{"key": f"k{n % 4}", "value": f"{n}".encode()} for n in (0, 1, 2, 4, 5, 6, 3, 8)])
    pulsar.admin.compact(topic)
    delete_ledgers(pulsar, topic, pulsar.admin.ledgers(topic)[-1][0])
    compacted = ["5", "6", "3", "8"]

    def read(**more: Any) -> list[str]:
        return list(PulsarFormat(pulsar).read(topic, "value string", readCompacted=True, **more)["value"].to_pylist())

    assert read() == compacted
    late = query(topic, startingOffsets="latest", readCompacted=True)
    assert late.trigger() == []
    q = query(topic, startingOffsets="earliest", readCompacted=True, **options)
    found = q.trigger()
    for value in ("more", "last"):
        q.restart()
        found += q.drain()
        assert found == compacted
        publish(pulsar, topic, [value])
        compacted.append(value)
        assert late.drain() == [value]
    assert found + q.drain() == read() == read(minPartitions=3, adminUrl=pulsar.admin_url) == compacted


def test_a_query_continues_in_the_compacted_topic_after_the_originals_are_deleted(
    pulsar: PulsarUnderTest, query: Callable[..., Query], java: JavaClient
):
    topic = pulsar.topic(namespace=pulsar.new_namespace(keep_data=False))
    q = query(topic, startingOffsets="earliest", readCompacted=True, maxEntriesPerTrigger=3)
    java.produce(pulsar, topic, [{"key": f"k{n % 4}", "value": f"{n}".encode()} for n in range(8)])
    assert q.trigger() == numbered(3)
    pulsar.admin.compact(topic)
    delete_ledgers(pulsar, topic, pulsar.admin.ledgers(topic)[-1][0])
    java.produce(pulsar, topic, [{"key": "k", "value": b"8"}])
    assert q.drain() == ["4", "5", "6", "7", "8"]
    q.restart()
    assert q.trigger() == []


def test_aborted_messages_at_the_end_are_no_loss_and_no_trigger(featured: PulsarFormat, java: JavaClient):
    broker = featured.broker
    topic = broker.topic()
    options = {**featured.defaults, "startingOffsets": "earliest", "subscription": PIN, "maxEntriesPerTrigger": 3}
    with query_of(broker, topic, dict(options)) as q:
        java.produce(broker, topic, [b"0", b"1"])
        assert q.drain() == ["0", "1"]
        # Enough to fill ledgers of ten entries with aborted messages only.
        for n in range(3):
            transaction = java.begin(broker, f"end-{n}")
            java.produce(broker, topic, [b"never"] * 8, transaction=transaction)
            assert q.trigger() == []
            java.abort(broker, transaction)
            assert q.trigger() == []
        assert len(broker.admin.ledgers(topic)) > 2
        q.restart()
        assert q.trigger() == []
        java.produce(broker, topic, [b"2"])
        # The limit counts entries, so undelivered ones, too.
        assert q.drain() == ["2"]
        q.restart()
        assert q.trigger() == []
