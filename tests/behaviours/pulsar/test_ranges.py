"""Ranges (start, end] that follow each other without gaps; neither end needs to be a message."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest

from spark_mq_source.core.errors import DataLossError
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.read.reader import PulsarRange
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.raw_producer import RawProducer, chunk, metadata
from tests.behaviours.pulsar.streams import numbered, publish, trimmed
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat, assert_each_once, read_tasks

ROW = f"value binary, {MESSAGE_ID}"


def mixed(mq: PulsarFormat, java: JavaClient) -> tuple[str, list[bytes], list[Position]]:
    """Return a topic of single messages, batches, chunks and several ledgers; its values and positions in order."""
    topic, broker = mq.broker.topic(), mq.broker
    values, ids = [], []
    for part, how in enumerate(
        ({}, {"batching": True, "batchMessages": 5}, {"chunkBytes": 100}, {}, {"batching": True, "batchMessages": 3})
    ):
        messages = [f"{part}.{n} ".encode() * (100 if "chunkBytes" in how else 1) for n in range(7)]
        ids += java.produce(broker, topic, messages, **how)
        values += messages
        if part == 2:
            broker.admin.unload(topic)
    return topic, values, [Position(ledger, entry, batch) for ledger, entry, batch, _ in ids]


def json_of(topic: str, position: Position) -> str:
    return json.dumps({topic: position.to_json()})


def read_between(mq: PulsarFormat, topic: str, start: Position, end: Position, **options: Any) -> list[bytes]:
    table = read_tasks(mq.options(topic, **options), [PulsarRange(TopicPartition(topic, -1), start, end)], ROW)
    rows = table.to_pylist()
    assert_each_once(rows, mq.position_of)
    return [row["value"] for row in rows]


def test_a_cut_at_any_message_returns_each_once(pulsar_format: PulsarFormat, java: JavaClient):
    topic, values, ids = mixed(pulsar_format, java)
    for n, cut in enumerate(ids):
        assert read_between(pulsar_format, topic, EARLIEST, cut) == values[: n + 1]
        assert read_between(pulsar_format, topic, cut, ids[-1]) == values[n + 1 :]


def test_a_range_may_begin_one_entry_past_the_end_of_a_ledger(featured: PulsarFormat, java: JavaClient):
    topic = featured.broker.topic()
    values = [str(n).encode() for n in range(25)]
    ids = [Position(*i[:2]) for i in java.produce(featured.broker, topic, values)]
    first = ids[0].ledger
    rest = [v for v, i in zip(values, ids, strict=True) if i.ledger > first]
    for entry in (9, 10):
        assert read_between(featured, topic, Position(first, entry), ids[-1]) == rest
    for entry in (11, 1000, 2**62):
        with pytest.raises(DataLossError, match=rf"position {first}:{entry} does not exist.* is {first}:9;"):
            read_between(featured, topic, Position(first, entry), ids[-1])
        tolerant = {"failOnDataLoss": False}
        assert read_between(featured, topic, Position(first, entry), ids[-1], **tolerant) == rest


def test_a_start_far_past_the_end_is_a_loss(pulsar_format: PulsarFormat, java: JavaClient):
    topic, _, ids = mixed(pulsar_format, java)
    last = Position(ids[-1].ledger, ids[-1].entry)
    for start in Position(last.ledger, last.entry + 2), Position(last.ledger, last.entry + 50), Position(2**40, 0):
        sentence = rf"{topic}: position {start} does not exist: the last entry before it is {last};"
        with pytest.raises(DataLossError, match=sentence):
            pulsar_format.plan(topic, startingOffsets=json_of(topic, start))
        # A task planned from there, or whose topic was deleted and created again meanwhile.
        end = Position(2**41, 5)
        with pytest.raises(DataLossError, match="does not exist: the last entry before it is"):
            read_between(pulsar_format, topic, start, end)
        tolerant = {"failOnDataLoss": False}
        assert pulsar_format.read(topic, startingOffsets=json_of(topic, start), **tolerant).num_rows == 0
        assert read_between(pulsar_format, topic, start, end, **tolerant) == []


def test_an_end_inside_an_incomplete_chunked_message(pulsar_format: PulsarFormat):
    topic = pulsar_format.broker.topic()
    with RawProducer(pulsar_format.service, topic) as producer:
        producer.send(metadata(), b"whole")
        for n in range(2):
            producer.send(metadata(chunk("never-complete", n, 3, 30)), b"0123456789")
    assert pulsar_format.read(topic).column("value").to_pylist() == [b"whole"]


def test_an_end_between_the_chunks_leaves_the_message_to_the_next_range(pulsar_format: PulsarFormat, java: JavaClient):
    topic = pulsar_format.broker.topic()
    (before,) = java.produce(pulsar_format.broker, topic, [b"before"])
    (big,) = java.produce(pulsar_format.broker, topic, [b"0123456789" * 500], chunkBytes=1000)
    (after,) = java.produce(pulsar_format.broker, topic, [b"after"])
    entries = range(before[1], big[1] + 1)
    assert len(entries) > 5
    for entry in entries:
        cut = Position(big[0], entry)
        is_whole = entry == big[1]
        assert read_between(pulsar_format, topic, EARLIEST, cut) == [b"before"] + [b"0123456789" * 500] * is_whole
        rest = read_between(pulsar_format, topic, cut, Position(*after[:2]))
        assert rest == [b"0123456789" * 500] * (not is_whole) + [b"after"]


def test_a_range_finds_a_first_chunk_far_back_in_another_ledger(featured: PulsarFormat, java: JavaClient):
    topic = featured.broker.topic()
    java.produce(featured.broker, topic, [str(n).encode() for n in range(15)])
    (big,) = java.produce(featured.broker, topic, [b"0123456789" * 500], chunkBytes=500)
    assert len({ledger for ledger, _ in featured.broker.admin.ledgers(topic)}) >= 3
    end = Position(*big[:2])
    start = Position(end.ledger, end.entry - 1)
    assert read_between(featured, topic, start, end) == [b"0123456789" * 500]


def test_chunks_without_their_first_are_skipped(pulsar_format: PulsarFormat):
    topic = pulsar_format.broker.topic()
    with RawProducer(pulsar_format.service, topic) as producer:
        producer.send(metadata(chunk("headless", 1, 3, 30)), b"0123456789")
        producer.send(metadata(), b"between")
        producer.send(metadata(chunk("headless", 2, 3, 30)), b"0123456789")
        producer.send(metadata(), b"after")
    assert pulsar_format.read(topic).column("value").to_pylist() == [b"between", b"after"]


def test_times_as_start_and_end(pulsar_format: PulsarFormat):
    topic = pulsar_format.broker.topic()
    base = 1_700_000_000_000
    with RawProducer(pulsar_format.service, topic) as producer:
        for n in range(20):
            producer.send(metadata(publish_time_ms=base + 1000 * n), str(n).encode())

    def between(**options):
        return [int(v) for v in pulsar_format.read(topic, **options).column("value").to_pylist()]

    assert between(startingTimestamp=base + 5000) == list(range(5, 20))
    assert between(startingTimestamp=base + 4001) == list(range(5, 20))
    assert between(endingTimestamp=base + 5000) == list(range(5))
    assert between(startingTimestamp=base + 3000, endingTimestamp=base + 7000) == list(range(3, 7))
    assert between(startingTimestamp=base + 60_000) == []
    assert between(startingTimestamp=0) == list(range(20))
    assert between(endingTimestamp=base) == []
    assert between(endingTimestamp=base + 60_000) == list(range(20))
    iso = datetime.datetime.fromtimestamp(base / 1000 + 5, datetime.timezone.utc).isoformat()
    assert between(startingTimestamp=iso) == list(range(5, 20))
    assert between(startingTimestamp=json.dumps({topic: base + 18_000})) == [18, 19]


def test_times_in_an_empty_topic(pulsar_format: PulsarFormat):
    assert pulsar_format.read(pulsar_format.broker.topic(), startingTimestamp=0, endingTimestamp=2**40).num_rows == 0


def test_offsets_per_partition(pulsar_format: PulsarFormat, java: JavaClient):
    topic = pulsar_format.new_topic(2)
    ids = [java.produce(pulsar_format.broker, f"{topic}-partition-{p}", [b"0", b"1", b"2"]) for p in range(2)]
    start = {topic: {"0": Position(*ids[0][0][:2]).to_json(), "1": "earliest"}}
    end = {topic: {"0": "latest", "1": Position(*ids[1][1][:2]).to_json()}}
    rows = pulsar_format.read(
        topic, "partition int, value string", startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)
    ).to_pylist()
    assert [tuple(row.values()) for row in rows] == [(0, "1"), (0, "2"), (1, "0"), (1, "1")]


@pytest.mark.parametrize("with_admin", [True, False])
@pytest.mark.parametrize("wanted", [2, 3, 10, 34, 1000])
def test_min_partitions_split_a_topic_without_changing_it(
    pulsar_format: PulsarFormat, java: JavaClient, wanted, with_admin
):
    topic, values, ids = mixed(pulsar_format, java)
    options = {"minPartitions": wanted} | ({"adminUrl": pulsar_format.broker.admin_url} if with_admin else {})
    tasks = pulsar_format.plan(topic, **options)
    entries = len({(i.ledger, i.entry) for i in ids})
    if wanted <= entries and with_admin:
        assert len(tasks) >= wanted
    assert [tasks[n].end for n in range(len(tasks) - 1)] == [task.start for task in tasks[1:]]
    assert read_tasks(pulsar_format.options(topic, **options), tasks).column("value").to_pylist() == values


def test_a_range_that_ends_past_the_last_entry_of_a_ledger_can_be_split(pulsar_format: PulsarFormat):
    topic = pulsar_format.broker.topic()
    entries = publish(pulsar_format.broker, topic, numbered(3))
    pulsar_format.broker.admin.unload(topic)
    publish(pulsar_format.broker, topic, ["later"])
    behind = Position(entries[-1].ledger, entries[-1].entry + 9)
    table = pulsar_format.read(topic, "value string", endingOffsets=json_of(topic, behind), minPartitions=12)
    assert table.column("value").to_pylist() == numbered(3)


def test_a_start_in_a_deleted_ledger_is_reported_as_a_possible_loss(pulsar_format: PulsarFormat):
    topic, ids = trimmed(pulsar_format.broker)
    # The broker has no record that this message was the last one of its ledger.
    for start in (ids[1], ids[-1]):
        with pytest.raises(DataLossError, match=r"has deleted the messages.*failOnDataLoss=false"):
            pulsar_format.read(topic, startingOffsets=json_of(topic, start))
        table = pulsar_format.read(topic, startingOffsets=json_of(topic, start), failOnDataLoss=False)
        assert table.column("value").to_pylist() == [b"left"]


def test_earliest_begins_with_the_first_remaining_message(pulsar_format: PulsarFormat):
    topic, _ = trimmed(pulsar_format.broker)
    assert pulsar_format.read(topic).column("value").to_pylist() == [b"left"]
    assert pulsar_format.read(topic, startingOffsets="earliest").column("value").to_pylist() == [b"left"]
