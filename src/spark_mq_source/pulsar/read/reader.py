"""Reads one bounded range of one topic-partition as Arrow batches, without duplicates or loss.

A range is `(start, end]` by the order of positions. The reader subscribes at the entry of `start` itself (a start is
inclusive on the wire), skips messages not after it, and ends at the first entry at or past `end`, which need not exist.
After a topic unload, a broker restart or a lost connection it subscribes again at the last position it emitted.

No deleted message is skipped unnoticed, because (all seen on broker 4.0.8)

- the cursor of a subscription whose start is in a deleted ledger is after that start, and ledgers are deleted oldest
  first: what follows an existing start is complete when the subscription is opened;
- from then on, any deletion of messages (trimming, TTL, a backlog quota, truncation) first moves the cursors of all
  subscriptions, also of connected readers, past them; and this reader acknowledges nothing. The broker itself
  acknowledges what it does not deliver (markers, aborted messages), but the cursor stops at the first entry delivered.

So after each gap, also a change of ledger, the reader requests the cursor. If it is not past the last entry received,
then everything up to the end of the gap was sent or is not for delivery. If it is, the reader subscribes again at that
entry, and the first rule shows whether anything is gone. The request is sent when the entry after the gap arrives, not
when it is read: messages that are deleted while they are queued here are not lost. It rarely waits for the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import RequestTimeoutError, ServiceNotReadyError
from spark_mq_source.net.resume import ReopenError, ResumingReader
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.stopwatch import waiting
from spark_mq_source.pulsar.client.admin import Ledger
from spark_mq_source.pulsar.client.client import PulsarClient, connected
from spark_mq_source.pulsar.client.consumer import Consumer
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.payload.messages import WHOLE_ENTRY
from spark_mq_source.pulsar.read.decoding import decoder_of
from spark_mq_source.pulsar.read.permits import BURST_BYTES, Permits

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.pulsar.options import PulsarOptions
    from spark_mq_source.pulsar.protocol.commands import Message


logger = logging.getLogger(__name__)

IDLE_SECONDS = 1.0
"""Silence with permits outstanding after which the reader requests the broker's bounds."""


@dataclass(frozen=True, slots=True)
class PulsarRange:
    """The work of one task: the messages of one topic-partition after `start`, up to and including `end`.

    Attributes:
        number: number of the task in its batch, which is part of its consumer's name.
        ledgers: the ledgers of a range that is read from the object store; none for a range of brokers.
        query_start: where the query begins in the topic-partition; None if an earlier trigger has read messages before
            the range.

    Example:
        >>> from spark_mq_source.pulsar.offsets import Position
        >>> str(PulsarRange(TopicPartition("persistent://public/default/t", 0), Position(7, 3), Position(7, 9)))
        'persistent://public/default/t-partition-0 (7:3, 7:9]'
    """

    topic_partition: TopicPartition
    start: Position
    end: Position
    number: int = field(default=0, compare=False)
    ledgers: tuple[Ledger, ...] = ()
    query_start: Position | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.topic_partition} ({self.start}, {self.end}]{' of offloadStorage' if self.ledgers else ''}"


def past_the_end(topic_partition: TopicPartition, position: Position, stored: Position) -> str:
    """Return the text for a position without an entry, because the topic has none after `stored` or between the two.

    Example:
        >>> from spark_mq_source.pulsar.offsets import Position
        >>> past_the_end(TopicPartition("t", -1), Position(40, 7), Position(3, 5)).partition(";")[0]
        't: position 40:7 does not exist: the last entry before it is 3:5'
    """
    return (
        f"{topic_partition}: position {position} does not exist: the last entry before it is {stored}; the topic was "
        f"recreated or the broker's data restored since, or serviceUrl leads to another cluster: start from a position "
        f"of this topic (a streaming query: with a new checkpoint), or set failOnDataLoss=false to continue with the "
        f"messages that exist"
    )


def read_range(
    options: PulsarOptions, task: PulsarRange, schema: pa.Schema, counters: Counters | None = None
) -> Iterator[pa.RecordBatch]:
    """Read one range, over connections for this task alone; the next task may reuse them.

    Yields:
        Batches of `schema`, of at most about `maxBatchRows` rows and `maxBatchBytes` bytes.

    Raises:
        DataLossError: messages of the range have been deleted, and `failOnDataLoss` is true.
        CorruptMessageError: a message cannot be decoded, also when received again.
        MQSourceError: the broker cannot be reached, or sends nothing, for `operationTimeout`; or it refuses.
    """
    with connected(options, f"pulsar-native: reading {task}", role=f"{task.number:04d}") as client:
        yield from _RangeReader(client, options, task, schema, counters or Counters()).batches()


class _RangeReader(ResumingReader[PulsarRange, Position, Consumer]):
    def __init__(
        self, client: PulsarClient, options: PulsarOptions, task: PulsarRange, schema: pa.Schema, counters: Counters
    ) -> None:
        super().__init__(task, task.start, timeout_ms=options.operation_timeout_ms, counters=counters)
        self._client = client
        self._options = options
        self._decoder = decoder_of(options, task.topic_partition, schema, on_corrupt="fail")
        self._finished = task.start >= task.end
        self._received = (-1, -1)
        """Ledger and entry of the last message received, or of the one before the consumer's first entry."""
        self._look_back: Position | None = None
        """Position at which to resume instead of `done`, to find the first chunk of an earlier message."""
        self._moved_at: Position | None = None
        """The `done` at which the broker had moved the cursor once, and the cursor."""
        self._moved_to = EARLIEST

    def _is_finished(self) -> bool:
        return self._finished

    def _leave(self, consumer: Consumer) -> None:
        self._counters.entries += consumer.taken_entries
        self._counters.entry_bytes += consumer.taken_bytes
        consumer.leave()

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if self._decoder.corrupt_entries:
            logger.warning("%s: %d corrupt entries", self._task, self._decoder.corrupt_entries)
        if self._decoder.rows:
            yield self._decoder.take_batch()

    def _open(self) -> Consumer:
        start = self._done
        pending = self._decoder.pending_chunk_start()
        if pending is not None:
            # The start is inclusive on the wire: the first chunk itself is sent again.
            start = min(start, Position(*pending))
        if self._look_back is not None:
            start = min(start, self._look_back)
        consumer, cursor = self._open_at(start)
        if start != EARLIEST and cursor > start:
            # TTL and truncation move all cursors, also one that was just opened, and may keep the messages that they
            # pass: a subscription opened now is placed at the messages that exist.
            consumer.leave()
            consumer, cursor = self._open_at(start)
        if start != EARLIEST and cursor > start:
            self._options.report_loss(
                f"the broker has deleted the messages from {start} to {cursor}, by retention or a backlog quota; keep "
                f"data longer, or set failOnDataLoss=false to continue with the messages that remain",
                task=self._task,
            )
        elif start.entry > 0 and cursor < Position(start.ledger, start.entry - 1):
            # One past the last entry of a ledger may be a user's start; a position after that is wrong, except if it
            # was read here. If ZooKeeper fails while a broker replaces a bookie, the ledger may end with entries that
            # the topic does not count: the broker writes them again to its next ledger (seen on 4.0.8). Readers get
            # both, but cannot start there.
            if start > self._task.start:
                logger.warning("%s: the entries from %s to %s were written twice", self._task, cursor.next_entry, start)
            else:
                loss = past_the_end(self._task.topic_partition, start, cursor)
                self._options.report_loss(loss, task=self._task)
        return consumer

    def _open_at(self, start: Position) -> tuple[Consumer, Position]:
        """Return a consumer from the entry of `start` on, or the first one left; and the position before it."""
        consumer = self._client.open_consumer(self._task.topic_partition, start)
        cursor = consumer.opened.first
        if start != EARLIEST and not consumer.session.places_cursors:
            # Requested after it was opened: what exists now existed then.
            cursor = max(cursor, self._client.fetch_bounds([consumer.topic_partition])[consumer.topic_partition].first)
        return consumer, cursor

    def _drain(self, consumer: Consumer) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one consumer, until the range is finished or the consumer ends (an error)."""
        options, cursor = self._options, consumer.opened.first
        permits = Permits(options.receive_queue_bytes)
        self._received = cursor.ledger, cursor.entry
        patience = Deadline.after_ms(options.operation_timeout_ms // 2)
        while not self._finished:
            permits.repay(consumer, permits.fitting(options.receiver_queue_messages))
            before = consumer.taken_bytes
            with waiting(self._counters):
                burst = consumer.receive(max_bytes=BURST_BYTES, timeout_seconds=IDLE_SECONDS)
            if burst:
                nbytes = consumer.taken_bytes - before
                permits.count((yield from self._decoded(consumer, burst)), entries=len(burst), nbytes=nbytes)
                patience = Deadline.after_ms(options.operation_timeout_ms // 2)
            else:
                self._finished = self._is_at_end(consumer, Position(*self._received), patience)

    def _decoded(self, consumer: Consumer, burst: Sequence[Message]) -> Generator[pa.RecordBatch, None, int]:
        """Yield the batches that become full; return how many messages came, wanted or not."""
        decoder, options, start, end = self._decoder, self._options, self._task.start, self._task.end
        start_key, end_key = (start.ledger, start.entry), (end.ledger, end.entry)
        done_key = (self._done.ledger, self._done.entry)
        # `done` is a whole entry except for a start within a batch.
        whole = self._done.batch < 0
        ledger, entry = self._received
        # A message that is corrupt again when received again is corrupt on the broker: the option applies.
        decoder.on_corrupt = options.on_corrupt if self._is_distrusted() else "fail"
        messages = 0
        try:
            for _, ledger_id, entry_id, redelivery_count, ack_set, body in burst:
                key = ledger_id, entry_id
                if entry_id != entry + 1 or ledger_id != ledger:
                    self._note_done(done_key, whole)
                    self._check_gap(consumer, Position(ledger, entry), key)
                ledger, entry = self._received = key
                if key > end_key:
                    self._finished = True
                    break
                first_index, emit = 0, True
                if key <= done_key:
                    emit = key == start_key and not whole
                    first_index = start.batch + 1
                decoder.decode(
                    ledger,
                    entry,
                    body,
                    ack_set,
                    first_index if emit else 0,
                    end.batch if key == end_key and end.batch >= 0 else WHOLE_ENTRY,
                    emit,
                    redelivery_count,
                )
                while decoder.unfinished:
                    yield decoder.take_batch()
                    decoder.decode_rest()
                messages += decoder.entry_messages
                if decoder.orphan is not None:
                    self._find_first_chunk(consumer, key > done_key)
                if key > done_key or (key == done_key and not whole):
                    done_key, whole = key, True
                    decoder.on_corrupt = "fail"
                if key == end_key:
                    self._finished = True
                    break
                if decoder.rows >= options.max_batch_rows or decoder.nbytes >= options.max_batch_bytes:
                    yield decoder.take_batch()
        finally:
            self._note_done(done_key, whole)
        return messages

    def _note_done(self, key: tuple[int, int], whole: bool) -> None:
        """Record progress; not for each entry, since making a Position takes longer than the rest of the loop."""
        if whole:
            self._done = Position(*key)

    def _is_at_end(self, consumer: Consumer, received: Position, patience: Deadline) -> bool:
        """Return whether the broker has nothing after `received`: then the end is an entry that it does not deliver."""
        bounds = self._client.wait(consumer.request_bounds(), f"the last message of {consumer.topic_partition}")
        self._check_cursor(consumer, received, bounds.first)
        tp, end = self._task.topic_partition, self._task.end
        # A broker may report no last message though it has some: see `Subscriptions.confirmed`. A terminated topic,
        # which can end with a ledger without entries, and one of which compaction has left nothing may have none.
        # After a range whose messages are deleted, nothing can arrive.
        is_known = bounds.last > EARLIEST or received >= end or end.entry < 0 or self._options.read_compacted
        # With `readCompacted`, the first cursor may be after the messages of the compacted ledger.
        read = min(received, self._done) if self._options.read_compacted else received
        if bounds.last <= read and is_known:
            # Such an end is, for example, a marker, or was removed by compaction; but it existed.
            stored = self._client.fetch_stored({tp: end})[tp]
            if stored < end and end.entry >= 0:
                self._options.report_loss(past_the_end(tp, end, stored), task=self._task)
            return True
        if patience.expired:
            raise RequestTimeoutError(
                f"{consumer.address}: no message for {self._options.operation_timeout_ms // 2} ms after {received}, "
                f"though the last one is {bounds.last}"
            )
        return False

    def _check_gap(self, consumer: Consumer, received: Position, following: tuple[int, int]) -> None:
        """Raise if the broker may have deleted messages between `received` and the next one."""
        answer = consumer.bounds_after_gap(*following)
        with waiting(self._counters):
            bounds = self._client.wait(answer, f"the cursor of {consumer.topic_partition}")
        self._check_cursor(consumer, received, bounds.first)

    def _check_cursor(self, consumer: Consumer, received: Position, cursor: Position) -> None:
        """Raise if the cursor is past `received`: then a new subscription shows whether anything is gone.

        Before the first message the broker itself may have acknowledged what it does not deliver. If the cursor moves
        again without a message in between, and to the same place, that is the reason; if it is farther, TTL may have
        moved it.
        """
        if cursor <= max(received, consumer.opened.first):
            return
        msg = f"{consumer.address}: the broker moved the cursor to {cursor}, past {received}"
        if self._moved_at != self._done:
            self._moved_at, self._moved_to = self._done, cursor
            raise ReopenError(msg)
        if received != consumer.opened.first or cursor > self._moved_to:
            self._moved_to = max(cursor, self._moved_to)
            raise ServiceNotReadyError(msg)

    def _begins_with_topic(self, earliest: Position) -> bool:
        """Return whether the query begins with the topic's first message, and nothing was deleted since."""
        tp, begin = self._task.topic_partition, self._task.query_start
        if begin is None or begin in (EARLIEST, earliest):
            return begin is not None
        # The position before the first message that is planned for a stream: the cursor may be in an empty ledger.
        first = self._client.fetch_first_entries({tp: EARLIEST}).get(tp, EARLIEST)
        return begin == Position(first.ledger, first.entry - 1)

    def _find_first_chunk(self, consumer: Consumer, is_wanted: bool) -> None:
        """Restart earlier, by growing steps, to find the first chunk of a message whose last chunk has arrived.

        If a range begins inside a chunked message, the first chunk is before the range; the message belongs to the
        range with its last chunk.
        """
        orphan, self._decoder.orphan = self._decoder.orphan, None
        if orphan is None or orphan.chunk_id < orphan.num_chunks - 1 or not is_wanted:
            return
        if orphan.first is not None:
            self._look_back = Position(*orphan.first)
            raise ReopenError(
                f"reading the message that ends at {orphan.entry_id} again: its chunks were dropped to save memory"
            )
        opened_at = consumer.opened.first
        earliest = self._client.fetch_bounds([self._task.topic_partition])[self._task.topic_partition].first
        if opened_at <= earliest or self._look_back == earliest:
            self._look_back = None
            lost = f"the chunked message that ends at {orphan.ledger_id}:{orphan.entry_id} has no first chunk"
            # A topic that is read from its first message may begin inside a chunked message, whose first chunk was
            # deleted before. Compaction keeps only the last chunk (from the source of 4.0.8).
            if self._options.read_compacted or self._begins_with_topic(earliest):
                logger.warning("%s: %s; it is passed over", self._task, lost)
                return
            self._options.report_loss(
                f"{lost}, which the broker has deleted or never had; keep data longer, or set failOnDataLoss=false to "
                f"pass the message over",
                task=self._task,
            )
            return
        distance = orphan.num_chunks
        if opened_at.ledger == orphan.ledger_id:
            distance = max(distance, 4 * (orphan.entry_id - opened_at.entry))
        if opened_at.ledger < orphan.ledger_id or (opened_at.entry <= 0 and distance > orphan.entry_id):
            self._look_back = earliest
        else:
            self._look_back = Position(orphan.ledger_id, max(-1, orphan.entry_id - distance))
        raise ReopenError(
            f"looking back to {self._look_back} for the first chunk of the message that ends at {orphan.entry_id}"
        )
