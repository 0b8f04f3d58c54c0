"""Entries in the write-ahead log: stored as received, and decoded as if they had just been received."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.options import READ
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from spark_mq_source.pulsar.protocol.commands import Message
from spark_mq_source.pulsar.read import queue_log
from spark_mq_source.pulsar.read.queue_log import LOGGED, ChunkGroups, LogReader, log_batch
from tests.unit.pulsar.payload.test_messages import MESSAGE_ID, batch, entry, single

AT = TopicPartition.parse("persistent://public/default/t-partition-3")
SCHEMA = pa.schema(
    [("value", pa.binary()), ("message_id", MESSAGE_ID), ("redelivery_count", pa.int32()), ("partition", pa.int32())]
)

values = st.binary(max_size=20)
plain = values.map(entry)
batches = st.lists(values, min_size=1, max_size=70).map(lambda found: batch(*map(single, found)))
counts = st.integers(0, 2**31 - 1)
ack_sets = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2).map(tuple)


def message(number: int, body: bytes, count: int = 0, ack_set: tuple[int, ...] = ()) -> Message:
    return Message(1, 7 + number // 5, number, count, ack_set, memoryview(body))


def options(**given: str) -> PulsarOptions:
    return PulsarOptions.from_spark({"serviceurl": "pulsar://h:1", "topic": "t"} | given, READ)


def logged(messages: list[Message]) -> pa.RecordBatch:
    """Pass messages through the log's writer and the bytes of a file."""
    sink = pa.BufferOutputStream()
    written = log_batch(messages, [1] * len(messages))
    assert written.schema == LOGGED
    written.validate(full=True)
    with pa.ipc.new_stream(sink, LOGGED) as stream:
        stream.write_batch(written)
    (found,) = pa.ipc.open_stream(sink.getvalue())
    return found


def rows_of(batches_: list[pa.RecordBatch], **given: str) -> list[dict[str, Any]]:
    reader = LogReader(options(**given), AT, SCHEMA)
    found = [*reader.batches(batches_), *reader.rest()]
    return [row for one in found for row in one.to_pylist()]


@given(st.lists(st.tuples(plain | batches, counts, ack_sets), max_size=12), st.integers(0, 12), st.integers(1, 5))
def test_the_log_returns_the_messages_of_the_broker(entries: list[Any], cut: int, most: int) -> None:
    messages = [message(number, *one) for number, one in enumerate(entries)]
    decoder = EntryDecoder(
        SCHEMA, topic=AT.topic, partition=3, max_message_bytes=1 << 20, max_pending_chunk_bytes=1 << 20
    )
    for _, ledger, number, count, ack_set, body in messages:
        decoder.decode(ledger, number, body, ack_set, redelivery_count=count)
    expected = decoder.take_batch().to_pylist()
    whole = logged(messages)
    assert rows_of([whole]) == expected
    # Slices share their buffers with the whole batch; a small batch splits entries.
    assert rows_of([whole.slice(0, cut), whole.slice(cut)], maxbatchrows=str(most)) == expected


def test_the_logged_columns_of_an_entry() -> None:
    body = entry(b"v")
    found = logged([message(0, body, 2**32 - 1, (-1, 5)), message(6, body)]).to_pylist()
    assert found[0] == {
        "message_id": "7:0",
        "ledger": 7,
        "entry": 0,
        "redelivery_count": 2**31 - 1,
        "ack_set": b"\xff" * 8 + b"\x05" + bytes(7),
        "messages": 1,
        "body": body,
    }
    assert (found[1]["message_id"], found[1]["ack_set"], found[1]["redelivery_count"]) == ("8:6", b"", 0)


def test_a_corrupt_entry_in_the_log() -> None:
    good, bad = entry(b"v"), entry(b"w")[:-1] + b"x"
    found = logged([message(0, good), message(1, bad), message(2, good)])
    with pytest.raises(CorruptMessageError, match="message 7:1: the checksum"):
        rows_of([found])
    assert [row["value"] for row in rows_of([found], oncorrupt="skip")] == [b"v", b"v"]


def test_the_log_has_the_reasons_of_unreadable_entries() -> None:
    bodies = [
        entry(b"sound"),
        entry(b"v")[:-1] + b"w",
        entry(b"no LZ4", compression=1, num_chunks_from_msg=1, uncompressed_size=6),
        entry(b"v", compression=1, num_chunks_from_msg=1, uncompressed_size=2**31),
        entry(b"no batch", num_messages_in_batch=2),
        entry(b"?", encryption_keys=[{"key": "k", "value": b"v"}]),
    ]
    reader = LogReader(
        options(onCorrupt="skip", cryptoFailureAction="DISCARD"), AT, pa.schema([("value", pa.binary())])
    )
    list(reader.batches([logged([message(number, body, 1) for number, body in enumerate(bodies)])]))
    assert {entry: why.name for (_, entry), why in reader.damaged.items()} == {
        1: "ChecksumMismatch",
        2: "DecompressionError",
        3: "UncompressedSizeCorruption",
        4: "BatchDeSerializeError",
        5: "DecryptionError",
    }


def chunk(number: int, uuid: str, chunk_id: int, chunks: int, size: int = 3) -> Message:
    body = entry(
        b"%d%d." % (number % 10, chunk_id) if size == 3 else bytes(size),
        uuid=uuid,
        chunk_id=chunk_id,
        num_chunks_from_msg=chunks,
        total_chunk_msg_size=chunks * size,
    )
    return message(number, body)


def added(groups: ChunkGroups, *chunks: Message) -> list[list[int]]:
    """Return the entries of the messages that became complete."""
    assert [groups.count(one.body) for one in chunks] == [0] * len(chunks)
    return [[part.entry_id for part in one] for one in map(groups.add, chunks) if one]


@given(st.permutations([("a", n) for n in range(3)] + [("b", n) for n in range(2)]))
def test_chunks_of_a_message_leave_together_and_in_order(order: list[tuple[str, int]]) -> None:
    groups = ChunkGroups(max_bytes=1 << 20)
    sizes = {"a": 3, "b": 2}
    taken = added(groups, *(chunk(number, uuid, n, sizes[uuid]) for number, (uuid, n) in enumerate(order)))
    in_order = [
        [number for number, (other, _) in enumerate(order) if other == uuid]
        for uuid in sizes
        if [n for other, n in order if other == uuid] == list(range(sizes[uuid]))
    ]
    assert sorted(taken) == sorted(in_order)


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        ((0, 1, 1, 2), [[0, 1, 2, 3]]),
        ((0, 1, 0, 1, 2), [[0, 1, 2, 3, 4]]),
        ((0, 2, 1, 2), [[0, 1, 2, 3]]),
        ((0, 1, 2, 0, 1, 2), [[0, 1, 2], [3, 4, 5]]),
    ],
)
def test_chunks_that_were_sent_twice_leave_with_their_message(sent: tuple[int, ...], taken: list[list[int]]) -> None:
    chunks = [chunk(number, "u", n, 3) for number, n in enumerate(sent)]
    assert added(ChunkGroups(max_bytes=1 << 20), *chunks) == taken
    (row,) = {row["value"][1::3] for row in rows_of([logged(chunks)])}
    assert row == b"012"


def test_a_chunk_is_late_after_its_message_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_log, "MAX_COMPLETE", 1)
    groups = ChunkGroups(max_bytes=1 << 20)
    first, *_, last = chunks = [chunk(n, "u", n, 3) for n in range(3)]
    assert [groups.is_late(one) for one in chunks] == [False] * 3
    added(groups, *chunks)
    assert [groups.is_late(one) for one in chunks] == [False, True, True]
    groups.add(first)
    assert not groups.is_late(last)
    groups.clear()
    for one in chunks:
        groups.add_known(one)
    assert groups.is_late(last)
    added(groups, *(chunk(n, "v", n, 2) for n in range(2)))
    assert not groups.is_late(last)


def test_messages_beyond_the_bound_are_dropped_oldest_first() -> None:
    groups = ChunkGroups(max_bytes=2500)
    chunks = [chunk(number, f"u{number}", 0, 2, 1000) for number in range(3)]
    assert added(groups, *chunks) == []
    last = [chunk(number + 10, f"u{number}", 1, 2, 1000) for number in range(3)]
    assert added(groups, *last) == [[1, 11], [2, 12]]


@pytest.mark.parametrize(
    ("sent", "taken"),
    [
        # A producer that ends again and again after its first chunk.
        ([0] * 200 + [1], [198, 199, 200]),
        ([0] + [1] * 200 + [2], [0, 1, 201]),
        ([0, 1, 0, 1, 1, 1, 2], [2, 3, 6]),
        ([0, 0, 1, 2], [1, 2, 3]),
    ],
)
def test_chunks_sent_twice_are_not_held_beyond_the_bound(sent: list[int], taken: list[int]) -> None:
    groups = ChunkGroups(max_bytes=2500)
    count = max(sent) + 1
    held = []
    for number, n in enumerate(sent[:-1]):
        assert groups.add(chunk(number, "u", n, count, 1000)) == ()
        held.append(groups._nbytes)
    assert max(held) <= 2500
    assert added(groups, chunk(len(sent) - 1, "u", sent[-1], count, 1000)) == [taken]
    assert groups._nbytes == 0


def test_redelivered_chunks_are_acknowledged_after_the_last_one() -> None:
    groups = ChunkGroups(max_bytes=1 << 20)
    chunks = [chunk(number, uuid, n, 3) for number, (uuid, n) in enumerate((u, n) for n in range(3) for u in "ab")]
    found = [[entry_ for _, entry_ in groups.add_known(one)] for one in chunks]
    assert found == [[], [], [], [], [0, 2, 4], [1, 3, 5]]
