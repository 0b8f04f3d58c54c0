"""Entries as the broker sent them <-> Arrow columns of the write-ahead log -> rows.

The log holds undecoded entries: each reader of the log decodes them into the columns it wants, by the same rules as
entries of a range. The chunks of a message are written together.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Literal

import pyarrow as pa

from spark_mq_source.core.columns import int_array, record_batch
from spark_mq_source.core.options import INT32_MAX
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.messages import HeadReader
from spark_mq_source.pulsar.protocol.commands import Message, ValidationError
from spark_mq_source.pulsar.read.decoding import decoder_of

LOGGED: Final = pa.schema(
    [
        ("message_id", pa.string()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("redelivery_count", pa.int32()),
        ("ack_set", pa.binary()),
        ("messages", pa.int32()),
        ("body", pa.binary()),
    ]
)
"""The fields of an entry in the log.

`message_id` is "ledger:entry"; `ack_set` has 64-bit words, little-endian, and is empty if no message of the entry is
acknowledged; `messages` is the maximum number of its rows, 0 for all chunks of a message but the last.
"""


def log_batch(messages: Sequence[Message], counts: Sequence[int]) -> pa.RecordBatch:
    """Return entries in the form of the log; `counts` has the number of messages of each."""
    rows = len(messages)
    # Column by column, because work for each entry would take longer than all of this.
    _, ledgers, entries, redelivered, ack_sets, bodies = zip(*messages, strict=True) if rows else ((),) * 6
    ids = [b"%d:%d" % entry for entry in zip(ledgers, entries, strict=True)]
    arrays = [
        _texts(LOGGED.field(0).type, ids),
        int_array(ledgers, pa.int64()),
        int_array(entries, pa.int64()),
        int_array([min(one, INT32_MAX) for one in redelivered], pa.int32()),
        _texts(pa.binary(), list(map(_packed, ack_sets)) if any(ack_sets) else [b""] * rows),
        int_array(counts, pa.int32()),
        _texts(pa.binary(), bodies),
    ]
    return record_batch(LOGGED, arrays, rows)


WORD: Final = 2**64 - 1
"""The bits of one word of an `ack_set`, which is signed on the wire."""


def _packed(ack_set: Sequence[int]) -> bytes:
    return b"".join((word & WORD).to_bytes(8, "little") for word in ack_set)


def _texts(type_: pa.DataType, values: Sequence[bytes | memoryview]) -> pa.Array:
    offsets = array("i", accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))])


MAX_COMPLETE: Final = 4096
"""Maximum number of complete messages in chunks that are remembered."""


@dataclass(slots=True)
class _Group:
    """The received chunks of a message in order of arrival, with those sent twice."""

    num_chunks: int
    chunks: list[Message]
    nbytes: int
    next_chunk_id: int = 0


class ChunkGroups:
    """Chunks of messages, held until they are complete.

    A message is the latest chunk 0 of a uuid and the chunks that follow it (`payload.chunks.ChunkAssembly`). A producer
    may send chunks twice, after a reconnect or a restart. They are held, logged and acknowledged with the message, as
    Java's client acknowledges them (4.0.8, ConsumerImpl), and left out by the reader of the log. Incomplete messages
    are delivered again after the consumer is closed. If a producer ended before its last chunk, the message stays in
    the subscription and is delivered again and again, until it is skipped or expires; nothing waits for it.

    Args:
        max_bytes: maximum total size; beyond it the oldest message is dropped, or of the only one the chunks that were
            sent twice, to be delivered again.
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._heads = HeadReader()
        self._groups: dict[bytes, _Group] = {}
        self._known: dict[bytes, list[tuple[int, int]]] = {}
        self._complete: dict[bytes, None] = {}
        self._nbytes = 0

    def count(self, body: memoryview) -> int:
        """Return the number of messages of an entry; 0 for a chunk, -1 if its checksum or head is wrong."""
        return self._heads.count(body)

    def is_late(self, message: Message) -> bool:
        """Return whether a chunk came after its message was complete: its producer sent it twice."""
        head = self._heads.read_chunk(message.body)
        return head.chunk_id > 0 and head.uuid in self._complete and head.uuid not in self._groups

    def add(self, message: Message) -> Sequence[Message]:
        """Return all chunks of a message that this chunk completes, in order; otherwise nothing."""
        head = self._heads.read_chunk(message.body)
        group = self._groups.get(head.uuid)
        if head.chunk_id == 0:
            if group is None:
                group = self._groups[head.uuid] = _Group(head.num_chunks, [], 0)
            group.num_chunks, group.next_chunk_id = head.num_chunks, 0
            self._complete.pop(head.uuid, None)
        if group is None or head.num_chunks != group.num_chunks:
            return ()
        is_repeated = head.chunk_id not in {0, group.next_chunk_id}
        if is_repeated and self._nbytes + len(message.body) > self._max_bytes:
            return ()
        group.chunks.append(message)
        group.nbytes += len(message.body)
        self._nbytes += len(message.body)
        group.next_chunk_id += head.chunk_id == group.next_chunk_id
        if group.next_chunk_id == head.num_chunks:
            self._drop(head.uuid)
            self._remember(head.uuid)
            return group.chunks
        while self._nbytes > self._max_bytes and len(self._groups) > 1:
            self._drop(next(iter(self._groups)))
        if self._nbytes > self._max_bytes:
            (last,) = self._groups.values()
            if len(last.chunks) > last.next_chunk_id:
                self._drop_repeated(last)
        return ()

    def add_known(self, message: Message) -> Sequence[tuple[int, int]]:
        """Add a chunk of a message that was read before; after the last one, return the received entries of its chunks.

        They must be acknowledged together: once the first one is, a broker delivers neither the others, with Shared,
        nor what follows them (seen on 4.0.8).
        """
        head = self._heads.read_chunk(message.body)
        entries = self._known.setdefault(head.uuid, [])
        entries.append((message.ledger_id, message.entry_id))
        if head.chunk_id < head.num_chunks - 1:
            return ()
        self._remember(head.uuid)
        return self._known.pop(head.uuid)

    def clear(self) -> None:
        """Drop all chunks."""
        self._known.clear()
        self._groups.clear()
        self._complete.clear()
        self._nbytes = 0

    def _drop_repeated(self, group: _Group) -> None:
        kept: list[Message] = []
        for message in group.chunks:
            chunk_id = self._heads.read_chunk(message.body).chunk_id
            if chunk_id == 0:
                kept = [message]
            elif chunk_id == len(kept):
                kept.append(message)
        group.chunks, before = kept, group.nbytes
        group.nbytes = sum(len(message.body) for message in kept)
        self._nbytes += group.nbytes - before

    def _drop(self, uuid: bytes) -> None:
        self._nbytes -= self._groups.pop(uuid).nbytes

    def _remember(self, uuid: bytes) -> None:
        self._complete[uuid] = None
        if len(self._complete) > MAX_COMPLETE:
            del self._complete[next(iter(self._complete))]


class LogReader:
    """Decoder of entries of the log into rows.

    Attributes:
        damaged: the entries that could not be read and gave no error, with the reason.
    """

    def __init__(self, options: PulsarOptions, topic_partition: TopicPartition, schema: pa.Schema) -> None:
        self._options = options
        self.damaged: dict[tuple[int, int], ValidationError] = {}
        self._decoder = decoder_of(options, topic_partition, schema, on_corrupt=options.on_corrupt)

    def batches(self, logged: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches that these entries complete.

        Raises:
            CorruptMessageError: a message cannot be decoded, and `onCorrupt` is `fail`.
        """
        decoder, options = self._decoder, self._options
        for batch in logged:
            ledgers, entries = _numbers(batch, "ledger", "q"), _numbers(batch, "entry", "q")
            counts = _numbers(batch, "redelivery_count", "i")
            bodies, body_at = _bytes_of(batch, "body")
            ack_sets, ack_set_at = _bytes_of(batch, "ack_set")
            for row in range(batch.num_rows):
                words = ack_sets[ack_set_at[row] : ack_set_at[row + 1]]
                decoder.decode(
                    ledgers[row],
                    entries[row],
                    bodies[body_at[row] : body_at[row + 1]],
                    words.cast("Q").tolist() if words else (),
                    redelivery_count=counts[row],
                )
                if decoder.damage is not None:
                    self.damaged[ledgers[row], entries[row]] = decoder.damage
                    decoder.damage = None
                while decoder.unfinished:
                    yield decoder.take_batch()
                    decoder.decode_rest()
                if decoder.rows >= options.max_batch_rows or decoder.nbytes >= options.max_batch_bytes:
                    yield decoder.take_batch()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the remaining rows."""
        if self._decoder.rows:
            yield self._decoder.take_batch()


def _numbers(batch: pa.RecordBatch, name: str, width: Literal["q", "i"]) -> memoryview[int]:
    column = batch.column(name)
    begin: int = column.offset
    return memoryview(column.buffers()[1]).cast(width)[begin : begin + len(column)]


def _bytes_of(batch: pa.RecordBatch, name: str) -> tuple[memoryview[int], memoryview[int]]:
    """Return the bytes of a column, and the offsets of its rows, without a copy."""
    column = batch.column(name)
    _, offsets, data = column.buffers()
    begin: int = column.offset
    at = memoryview(offsets).cast("i")[begin : begin + len(column) + 1]
    return memoryview(data if data is not None else b""), at
