"""Chunked messages of several producers, restarted and sent again, against a model without a memory limit."""

from __future__ import annotations

import contextlib
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mq_source.core.errors import UnsupportedFeatureError
from spark_mq_source.pulsar.payload.messages import WHOLE_ENTRY, EntryDecoder
from tests.oracles.pulsar_messages import framed
from tests.protobuf import pulsar as pulsar_pb

pytest.importorskip("spark_mq_source.pulsar.payload._messages_native", exc_type=ImportError)

CHUNK_BYTES = 100
OVERHEAD_BYTES = 512 + 1
SCHEMA = pa.schema([("value", pa.binary())])
Rows = list[tuple[int, bytes]]
"""The entry that completes each message, and the message."""


class Chunk(NamedTuple):
    """One entry of the topic."""

    uuid: str
    chunk_id: int
    num_chunks: int
    payload: bytes

    def encode(self) -> bytes:
        metadata = pulsar_pb.MessageMetadata(
            producer_name="p",
            sequence_id=0,
            publish_time=0,
            uuid=self.uuid,
            chunk_id=self.chunk_id,
            num_chunks_from_msg=self.num_chunks,
            total_chunk_msg_size=self.num_chunks * CHUNK_BYTES,
        ).SerializeToString()
        return framed(metadata, self.payload, is_checked=False)


def model(topic: list[Chunk]) -> Rows:
    """Return the complete messages: a message is the latest chunk 0 of its uuid and each next chunk after it."""
    rows: Rows = []
    open_: dict[str, list[Chunk]] = {}
    for entry, chunk in enumerate(topic):
        if chunk.chunk_id == 0:
            open_[chunk.uuid] = [chunk]
            continue
        parts = open_.get(chunk.uuid, [])
        if parts and chunk.chunk_id == len(parts) and chunk.num_chunks == parts[0].num_chunks:
            parts.append(chunk)
            if len(parts) == chunk.num_chunks:
                rows.append((entry, b"".join(part.payload for part in parts)))
    return rows


def read(topic: list[Chunk], implementation: str, start: int, end: int, memory: int, cuts: list[int]) -> Rows:
    """Read the range [start, end) as `pulsar.reader` does: from the first pending chunk on after each cut, from an
    earlier entry for a last chunk without its beginning."""
    decoder = EntryDecoder(
        SCHEMA,
        topic="t",
        partition=0,
        max_message_bytes=64 << 20,
        max_pending_chunk_bytes=memory,
        implementation=implementation,
    )
    rows: Rows = []
    cuts = list(cuts)
    done = opened = at = start
    passed_over = -1
    steps = 0
    while at < end:
        steps += 1
        assert steps < 100 * len(topic), "the read does not end"
        if cuts and at == cuts[0] and at >= done:
            del cuts[0]
            pending = decoder.pending_chunk_start()
            opened = at = done if pending is None else min(done, pending[1])
            continue
        emit = at >= done
        decoder.decode(1, at, topic[at].encode(), (), 0, WHOLE_ENTRY, emit)
        orphan, decoder.orphan = decoder.orphan, None
        if orphan and emit and orphan.chunk_id == orphan.num_chunks - 1 and passed_over != at:
            if orphan.first is not None:
                opened = at = orphan.first[1]
                continue
            if opened > 0:
                opened = at = max(0, opened - 1 - 2 * (at - opened))
                continue
            passed_over = at
        if emit:
            rows += [(at, value) for value in decoder.take_batch().column(0).to_pylist()]
            done = at + 1
        at += 1
    return rows


@st.composite
def topics(draw: st.DrawFn) -> list[Chunk]:
    """Draw the chunks of some producers, each in order, with restarts, refusals and chunks sent again."""
    queues: list[list[Chunk]] = []
    for producer in range(draw(st.integers(1, 4))):
        queue: list[Chunk] = []
        for message in range(draw(st.integers(1, 5))):
            num_chunks = draw(st.sampled_from([2, 2, 3, 5]))
            chunks = [
                Chunk(f"{producer}", n, num_chunks, f"{producer}.{message}.{n}.".encode().ljust(CHUNK_BYTES, b"x"))
                for n in range(num_chunks)
            ]
            match draw(st.sampled_from(["whole", "whole", "abandoned", "again", "again from", "refused"])):
                case "whole":
                    queue += chunks
                case "abandoned":
                    queue += chunks[: draw(st.integers(1, num_chunks - 1))]
                case "again":
                    queue += chunks[: draw(st.integers(1, num_chunks))] + chunks
                case "again from":
                    # The receipts from one chunk onwards were lost.
                    upto = draw(st.integers(1, num_chunks))
                    queue += chunks[:upto] + chunks[draw(st.integers(0, upto)) :]
                case "refused":
                    without = draw(st.integers(0, num_chunks - 1))
                    queue += chunks[:without] + chunks[without + 1 :] + chunks[without:]
        queues.append(queue)
    topic: list[Chunk] = []
    while queues:
        queue = draw(st.sampled_from(queues))
        topic.append(queue.pop(0))
        queues = [queue for queue in queues if queue]
    return topic


def expected(topic: list[Chunk], start: int, end: int) -> Rows:
    return [row for row in model(topic) if start <= row[0] < end]


@settings(max_examples=150, deadline=None)
@given(topics(), st.data())
def test_every_complete_message_is_read_once_with_any_memory_bound(topic: list[Chunk], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(topic)), label="start")
    end = data.draw(st.integers(start, len(topic)), label="end")
    largest = OVERHEAD_BYTES + max(chunk.num_chunks for chunk in topic) * CHUNK_BYTES
    memory = data.draw(st.integers(largest, 4 * largest), label="memory")
    cuts = sorted(data.draw(st.lists(st.integers(start, end), max_size=3), label="cuts"))
    for implementation in ("native", "python"):
        assert read(topic, implementation, start, end, memory, cuts) == expected(topic, start, end)


@settings(max_examples=100, deadline=None)
@given(topics(), st.integers(1, 3000))
def test_memory_stays_within_the_bound(topic: list[Chunk], memory: int) -> None:
    decoder = EntryDecoder(SCHEMA, topic="t", partition=0, max_message_bytes=64 << 20, max_pending_chunk_bytes=memory)
    chunks = decoder._chunks
    for entry, chunk in enumerate(topic):
        with contextlib.suppress(UnsupportedFeatureError):
            decoder.decode(1, entry, chunk.encode())
        # The overhead of one message exists even if the bound is smaller.
        assert chunks.nbytes <= max(memory, OVERHEAD_BYTES)
