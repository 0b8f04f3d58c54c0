"""Writes the rows of one task until the brokers have acknowledged them: routing, producers, limits, resending.

A producer belongs to one topic-partition. Its entries are sent in order, and each is kept until its receipt
(SEND_RECEIPT) arrives. When the broker closes the producer (the topic was unloaded) or the connection is lost, the
topic is looked up again, a producer of the same name is opened, and all entries without receipt are sent again: same
order, bytes and sequence ids. So nothing is lost or reordered. This is at least once: without deduplication on the
broker, an entry whose receipt was lost is stored twice. With deduplication, an entry that is not stored can be taken
for a duplicate: the broker refuses an entry with damaged bytes, and stores the following ones, which have higher ids.
So after such a refusal, or if one may have been lost with a connection, the entries are sent again under another
producer name, and some may be stored twice. The other two guarantees differ:

- `exactly-once` (`deduplication`): an entry is sent only after the previous one is stored, so that the broker never
  stores an entry after a refused one, and the highest sequence id covers all lower ones.
- `transaction` (`transactions`): an entry that may be stored is sent again only if the broker deduplicates, and only
  under the same name. Otherwise both copies would become visible, so the attempt and its transaction fail.

Receipts arrive in another thread, which shares `_Producer` with the task's thread, under one lock.
"""

from __future__ import annotations

import itertools
import logging
import time
import uuid
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, TypeVar

from spark_mq_source.core.columns import rows_by_topic
from spark_mq_source.core.errors import (
    BrokerError,
    LocalProtocolError,
    MQSourceError,
    RemoteProtocolError,
    ReplayError,
    RequestTimeoutError,
    ServiceNotReadyError,
    UnsupportedFeatureError,
    UnwritableRowError,
)
from spark_mq_source.net.retry import Deadline, pauses, retrying
from spark_mq_source.net.sending import Writer
from spark_mq_source.net.stopwatch import waiting
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.crypto_keys import encryptor_of
from spark_mq_source.pulsar.offsets import Position, TopicPartition, is_persistent, parse_topic
from spark_mq_source.pulsar.options import DeliveryGuarantee
from spark_mq_source.pulsar.payload.encoder import EntryEncoder, encoding, open_rows
from spark_mq_source.pulsar.payload.layout import NO_PARTITION
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.error_codes import error_for_code
from spark_mq_source.pulsar.write.arrivals import arrivals
from spark_mq_source.pulsar.write.deduplication import EntryNumbers, producer_name
from spark_mq_source.pulsar.write.transactions import TaskTransaction, Transaction
from spark_mq_source.pulsar.write.values import schema_to_send

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import TaskAttempt
    from spark_mq_source.pulsar.client.session import Session
    from spark_mq_source.pulsar.options import PulsarOptions
    from spark_mq_source.pulsar.payload.cipher import PayloadEncryptor
    from spark_mq_source.pulsar.payload.encoder import RowSource


T = TypeVar("T")

logger = logging.getLogger(__name__)

CHECKSUM_ERROR: Final = 9
"""`ServerError.ChecksumError`: the bytes were damaged in transit; the entry is sent again."""

MAX_UNSTORED_ENTRIES: Final = 500
"""Maximum entries in transit to non-persistent topics: a broker drops those beyond 1,000 on a connection by default."""

_MIN_BATCH_BYTES: Final = 16 << 10
"""The limit of a batch is not lower than this, however many partitions a topic has."""

_producer_ids = itertools.count(1)
"""Unique in this process: an entry's bytes contain the producer id, so they can be resent unchanged over another
connection.
"""


@dataclass(frozen=True, slots=True)
class WriteReport:
    """The report of a task attempt to the driver.

    Attributes:
        rows: number of rows, all stored by the broker.
        transaction: the transaction for the driver to commit; None if the rows are visible already, or there are none.

    Example:
        >>> WriteReport(3).transaction is None
        True
    """

    rows: int
    transaction: Transaction | None = None


@dataclass(slots=True, eq=False)
class _Pending:
    """An entry without a receipt.

    Attributes:
        may_be_stored: whether an earlier attempt may have stored it.
        times_sent: number of sends, over all connections.
        times_in_doubt: number of sends that may have stored it.
        may_be_refused: whether the broker has refused it, or may have, on a lost connection.
        is_alone: whether the previous chunks were skipped because the broker has stored the whole message.
    """

    send: commands.Send
    may_be_stored: bool
    times_sent: int = 0
    times_in_doubt: int = 0
    may_be_refused: bool = False
    is_alone: bool = False


class _Producer:
    """The producer of one topic-partition, with its pending entries.

    Attributes:
        batch_bytes: maximum payload of a batch.
        encoder: encodes its entries; None until the first open.
        error: why the producer is not open; None if it is.
        last_progress: monotonic seconds of the open, the last receipt, or the send of the first pending entry,
            whichever is latest.
        reopened_at: monotonic seconds of the first reopen since the last receipt; None if there was none.
        pauses: the seconds before each further reopen.
        distrusts_connection: whether it was reopened for a lack of receipts, and none has arrived since.
        confirmed: the last sequence id of the last acknowledged entry.
        numbers: sequence ids of its entries, with `exactly-once`.
        is_proven: whether the broker is known to deduplicate, if that is required.
        is_deduplicated: whether the broker deduplicated at the last open.
        may_lose_refused: whether, at the last open, the broker had stored an entry after one that it may have refused.
        sends_once: whether an entry that may be stored must not be sent again without deduplication.
        is_stored: whether the topic stores what the broker acknowledges.
        dropped: number of entries that the broker has reported as dropped.
    """

    def __init__(
        self,
        topic_partition: TopicPartition,
        writer: PulsarWriter,
        *,
        batch_bytes: int,
        name: str | None = None,
        numbers: EntryNumbers | None = None,
        sends_once: bool = False,
    ) -> None:
        self.topic_partition = topic_partition
        self.batch_bytes = batch_bytes
        self.encoder: EntryEncoder | None = None
        self.producer_id = next(_producer_ids)
        self.name = name
        self.numbers = numbers
        self.is_proven = numbers is None
        self.is_deduplicated = False
        self.may_lose_refused = False
        self.sends_once = sends_once
        self.is_stored = is_persistent(topic_partition.topic)
        self.dropped = 0
        self.epoch = 0
        self.topic_epoch: int | None = None
        self.session: Session | None = None
        self.error: MQSourceError | None = None
        self.pending: deque[_Pending] = deque()
        self.pending_bytes = 0
        self.last_progress = 0.0
        self.reopened_at: float | None = None
        self.pauses = pauses()
        self.distrusts_connection = False
        self.confirmed = -1
        self.last_position: Position | None = None
        self._arrived, self._wake = writer._arrived, writer._wake

    # Callbacks, in the thread of the connection's driver.

    def opened(self) -> None:
        """Handle the opening of the producer, also a later one."""
        with self._arrived:
            if self.error is not None and self.error.retryable:
                self.error = None

    def deliver(self, event: commands.SendReceipt | commands.SendError) -> None:
        """Handle a stored or refused entry."""
        with self._arrived:
            if isinstance(event, commands.SendError):
                self._refused(event)
            else:
                self._stored(event)
            self._wake(is_due=self.error is not None)

    def fail(self, error: MQSourceError) -> None:
        """Handle the end of the producer or its connection."""
        with self._arrived:
            self._fail(error)
            self._wake(is_due=self.error is not None)

    def _fail(self, error: MQSourceError) -> None:
        # A retryable error must not hide one that is not.
        if self.error is None or (self.error.retryable and not error.retryable):
            self.error = error

    def _stored(self, receipt: commands.SendReceipt) -> None:
        entry = next((e for e in self.pending if e.send.sequence_id == receipt.sequence_id), None)
        if entry is None:
            # The entry was sent twice because the first receipt was late.
            logger.debug("%s: a second receipt of %d", self.topic_partition, receipt.sequence_id)
            return
        if not self.is_stored:
            # Its messages have no position; (-1, -1) is for dropped ones, and arrives at once (seen on 4.0.8).
            self.dropped += receipt.is_duplicate
            self._done(entry)
            return
        # A receipt for a duplicate arrives at once. Only the last chunk of a message can be a duplicate: the other
        # chunks are stored again, and their receipts arrive later (seen on broker 4.0.8).
        if entry is not self.pending[0] and not entry.may_be_stored and self.error is None:
            msg = (
                f"the receipt of sequence id {receipt.sequence_id} came before that of "
                f"{self.pending[0].send.sequence_id}"
            )
            self._fail(RemoteProtocolError(self._about(msg)))
            return
        if receipt.is_duplicate and not entry.may_be_stored and entry.times_in_doubt <= 1:
            if entry.send.is_chunk and self.numbers is not None:
                # All chunks except the last have the id of the previous entry. Brokers before apache/pulsar pull
                # request 20948 drop them as duplicates (seen on 2.10.1).
                msg = (
                    "the broker dropped a chunk of a message as a duplicate of the previous entry: this broker version "
                    "cannot deduplicate chunks, so set chunking=false, or a deliveryGuarantee other than exactly-once"
                )
                self._fail(UnsupportedFeatureError(self._about(msg)))
                return
            msg = (
                f"the broker dropped the entry of sequence id {receipt.sequence_id} as a duplicate although it is not "
                f"stored: another producer named {self.name!r} has written with these or higher sequence ids"
            )
            self._fail(LocalProtocolError(self._about(msg)))
            return
        if receipt.message_id is not None and not receipt.is_duplicate:
            self.last_position = Position(receipt.message_id.ledger_id, receipt.message_id.entry_id)
        self._done(entry)

    def _done(self, entry: _Pending) -> None:
        self.pending.remove(entry)
        self.confirmed = max(self.confirmed, _last_id(entry.send))
        self.pending_bytes -= len(entry.send.body)
        self.last_progress = time.monotonic()
        self.reopened_at = None
        self.distrusts_connection = False

    def _refused(self, refusal: commands.SendError) -> None:
        error: MQSourceError = error_for_code(
            refusal.error, refusal.message, self._about(f"the entry of sequence id {refusal.sequence_id}")
        )
        for entry in self.pending:
            # For a batch, a refusal has the sequence id of the last message, a receipt that of the first (seen on
            # broker 4.0.8).
            if refusal.sequence_id in {entry.send.sequence_id, entry.send.highest_sequence_id}:
                entry.may_be_refused = True
                # Earlier sends stay in doubt: a deduplicating broker also refuses an entry while it cannot tell whether
                # it is a duplicate (seen on broker 4.0.8). This send stays in doubt too if the broker's storage has
                # failed, which may have a copy.
                if refusal.error == CHECKSUM_ERROR or not self.sends_once:
                    entry.times_in_doubt -= 1
                # A resent chunk would follow later chunks that are already stored, and the message could not be
                # reassembled, unless each entry waits for the previous one.
                is_in_turn = self.numbers is not None or not entry.send.is_chunk
                if refusal.error == CHECKSUM_ERROR and entry.times_sent == 1 and is_in_turn:
                    error = ServiceNotReadyError(str(error))
        self._fail(error)

    def _about(self, what: str) -> str:
        return what if self.session is None else f"{self.session.address}: {what}"


class _Topic:
    """The partitions of a topic, taking turns.

    Attributes:
        turn: index of the producer for rows without a partition, until its current entry is complete.
    """

    def __init__(self, producers: Sequence[_Producer], turn: int) -> None:
        self.producers = producers
        self.is_partitioned = producers[0].topic_partition.partition >= 0
        self.turn = turn % len(self.producers)


class PulsarWriter(Writer["PulsarOptions", WriteReport]):
    """Writer of the rows of one task, see `net.sending.Writer`. Tasks begin with different topic-partitions."""

    def __init__(self, options: PulsarOptions, attempt: TaskAttempt, counters: Counters | None = None) -> None:
        super().__init__(options, attempt, counters)
        self._client = PulsarClient(options)
        self._topics: dict[str, _Topic] = {}
        self._open: list[_Producer] = []
        # Of incomplete batches: with the defaults, those of 64 partitions can be as large as `batchingMaxBytes`.
        self._max_buffered_bytes = 4 * options.max_pending_bytes
        is_transaction = options.delivery_guarantee is DeliveryGuarantee.TRANSACTION
        self._transaction = TaskTransaction(options, self._client) if is_transaction else None
        # A task without rows also sends it, to find out what an earlier attempt has stored.
        self._schema = schema_to_send(options)
        # When to send incomplete batches, in monotonic seconds; None if there are none.
        self._publish_at: float | None = None

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            if error_type is not None and self._transaction is not None:
                self._abort(self._transaction)
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections and their producers without waiting for receipts; see `flush`."""
        self._client.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch, or buffer them for the next entry; wait while `maxPendingBytes` are pending.

        Raises:
            OptionError: a column is unknown or not writable, or ``value`` is missing.
            UnwritableRowError: a row cannot become a message, has no topic, or has an invalid topic or partition.
            MQSourceError: the broker refused an entry, or sent no receipt in time.
        """
        if not batch.num_rows:
            return
        began = time.monotonic()
        try:
            source = open_rows(batch, first_row=self.rows)
        except UnwritableRowError as error:
            to = f": writing to {self._options.topic}" if "topic" not in batch.schema.names else ""
            raise error.within(f"pulsar-native{to}") from None
        self.rows += batch.num_rows
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        loops = encoding.load()
        hashes = loops.hashes_of(columns["key"], self._options.hashing) if "key" in columns else None
        for name, order in rows_by_topic(columns.get("topic"), batch.num_rows, self._options.topic, "pulsar-native"):
            topic = self._topic(name)
            rows = batch.num_rows if order is None else len(order)
            partitions = len(topic.producers)
            try:
                explicit = self._explicit(topic, columns.get("partition"), order)
                groups = loops.group_rows(explicit, None if partitions == 1 else hashes, order, rows, partitions)
            except IndexError as error:
                wanted = columns["partition"][error.args[0]].as_py()
                raise UnwritableRowError(
                    f"pulsar-native: a row is for partition {wanted} of {name}, which has {partitions}"
                ) from None
            for partition, indices in groups:
                chosen = self._ordered_by_key(columns, indices) if self._options.batching_by_key else indices
                self._append(topic, partition, source, chosen)
        self._publish_in_time(began)

    def arriving(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches; while waiting for one, send rows that are buffered longer than `batchingMaxPublishDelay`.

        Raises:
            MQSourceError: as for `write`.
        """
        if self._options.batching_max_publish_delay_ms is None:
            yield from batches
            return
        for batch in arrivals(batches, self._seconds_to_publish):
            if batch is None:
                self._publish()
            else:
                yield batch

    def _seconds_to_publish(self) -> float | None:
        return None if self._publish_at is None else max(0.0, self._publish_at - time.monotonic())

    def _publish_in_time(self, began: float) -> None:
        """Start the timer of buffered rows, or send them if it has expired or if those of many topics are too many."""
        delay_ms = self._options.batching_max_publish_delay_ms
        buffered = sum(producer.encoder.nbytes for producer in self._open if producer.encoder is not None)
        # With `exactly-once`, the division of rows into entries must not depend on the rows of other topics.
        can_divide = self._options.delivery_guarantee is not DeliveryGuarantee.EXACTLY_ONCE
        if can_divide and buffered > self._max_buffered_bytes:
            self._publish()
            return
        if delay_ms is None or not buffered:
            self._publish_at = None
            return
        if self._publish_at is None:
            self._publish_at = began + delay_ms / 1000
        if time.monotonic() >= self._publish_at:
            self._publish()

    def _publish(self) -> None:
        for producer in self._open:
            if producer.encoder is not None:
                producer.encoder.flush(now_ms=_now_ms())
                self._send(producer)
        self._publish_at = None

    def finish(self) -> WriteReport:
        """Send the buffered rows, wait until the broker has stored everything, and close the producers.

        Raises:
            ReplayError: an earlier attempt has stored more rows than this one has.
            MQSourceError: as for `flush`.
        """
        self.flush()
        if self._options.delivery_guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            self._finish_replay()
        for producer in self._open:
            self._close_finished(producer)
            if producer.dropped:
                logger.warning(
                    "pulsar-native: %s: the broker dropped %d of the entries that were sent: too many were under way "
                    "on one connection (maxConcurrentNonPersistentMessagePerConnection)",
                    producer.topic_partition,
                    producer.dropped,
                )
        if self._transaction is None or self._transaction.id is None:
            return WriteReport(self.rows)
        wrote = next((producer for producer in self._open if producer.last_position is not None), None)
        transaction = self._transaction.id
        if wrote is not None:
            transaction = replace(transaction, topic_partition=wrote.topic_partition, position=wrote.last_position)
        return WriteReport(self.rows, transaction)

    def _close_finished(self, producer: _Producer) -> None:
        """Close a producer without pending entries: the next attempt or micro-batch may need its name at once."""
        if producer.session is None:
            return
        try:
            self._client.close_producer(producer.session, producer.producer_id)
        except MQSourceError as error:
            # It closes with its connection, and nothing is pending.
            logger.debug("%s: not closed: %s", producer.topic_partition, error)

    def _abort(self, transaction: TaskTransaction) -> None:
        """Abort the transaction once no more entries of this attempt can reach the broker."""
        try:
            for producer in self._open:
                if producer.session is not None and producer.pending:
                    # Queued after pending entries, CLOSE_PRODUCER may arrive too late.
                    producer.session.close()
            for producer in self._open:
                if producer.session is None or producer.session.closed:
                    self._close_again(producer, transaction)
                else:
                    self._client.close_producer(producer.session, producer.producer_id)
            transaction.abort()
        except MQSourceError as error:
            logger.warning("pulsar-native: a transaction was not aborted and ends by its timeout: %s", error)

    def _close_again(self, producer: _Producer, transaction: TaskTransaction) -> None:
        """Reopen and close a producer whose connection is lost, before its transaction is aborted.

        A broker refuses entries that arrive on the lost connection once another one has the producer's name. It sets
        entries aside that arrive while it takes the topic's first snapshot of transactions. An abort meanwhile writes
        no marker, and the entries, stored after it, hide all later messages (seen on broker 4.0.8). They are stored in
        order, so none is set aside when copies of them are answered.

        Raises:
            RequestTimeoutError: the transaction's timeout is near.
            MQSourceError: the producer cannot be opened, or the entries are not answered.
        """
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        with self._arrived:
            # A topic that has stored an entry of a transaction has the snapshot.
            unanswered = [e.send for e in producer.pending if e.times_sent] if producer.confirmed < 0 else []
        if unanswered:
            deadline = Deadline(min(deadline.at, transaction.idle_from))

        def close() -> None:
            session = self._open_once(producer)
            with self._arrived:
                producer.error = None
            for send in unanswered:
                transaction.check_time()
                session.send(send)
            self._client.close_producer(session, producer.producer_id)
            if producer.error is not None and producer.error.retryable:
                raise producer.error  # the broker has closed the producer, or its storage has failed

        retrying(close, deadline=deadline)

    def _finish_replay(self) -> None:
        """Check that no earlier attempt has stored more rows, also in topic-partitions that this one has none for.

        Raises:
            ReplayError: an earlier attempt has stored more rows.
            MQSourceError: no answer in time, or a refusal.
        """
        if self._options.topic is not None:
            self._topic(self._options.topic)
        producers = [producer for topic in self._topics.values() for producer in topic.producers]
        untouched = {one.topic_partition: one for one in producers if one.encoder is None}
        asked = {at: (one.producer_id, one.name or "", one) for at, one in untouched.items()}
        try:
            stored = self._client.fetch_last_sequence_ids(asked, schema=self._schema)
        except MQSourceError as error:
            where = "pulsar-native: finding out what earlier attempts have stored"
            if self._options.access_mode:
                # The check uses accessMode Shared, which is refused too while another task has exclusive access.
                where += " (exactly-once with an accessMode other than Shared: write with a single task)"
            raise error.within(where) from error
        for at, last_sequence_id in stored.items():
            self._check(untouched[at], partial(EntryNumbers.found, last_sequence_id=last_sequence_id))
        for producer in producers:
            self._check(producer, EntryNumbers.finish)

    def _check(self, producer: _Producer, look: Callable[[EntryNumbers], T]) -> T:
        assert producer.numbers is not None  # noqa: S101 - for mypy: always set here
        try:
            return look(producer.numbers)
        except ReplayError as error:
            raise self._in_context(producer, error) from error

    def flush(self) -> None:
        """Send the buffered rows, and wait until the broker has stored everything.

        Raises:
            MQSourceError: the broker refused an entry, or sent no receipt in time.
        """
        self._publish()
        self._wait_until(lambda: not any(producer.pending for producer in self._open))

    # -- routing

    def _topic(self, name: str) -> _Topic:
        topic = self._topics.get(name)
        if topic is None:
            try:
                full = parse_topic(name, stored=False)
            except ValueError as error:
                raise UnwritableRowError(f"pulsar-native: a row is for topic {name!r}: {error}") from error
            for problem in self._options.unstorable(full):
                raise UnwritableRowError(f"pulsar-native: a row is for topic {name!r}: {problem}")
            if not is_persistent(full):
                logger.warning(
                    "pulsar-native: %s stores nothing: rows are lost for every subscription without a connected "
                    "consumer that has room for them, and the broker acknowledges them all the same",
                    full,
                )
            try:
                found = self._client.fetch_partitions([full], create=self._options.create_topic)
            except MQSourceError as error:
                raise error.within(f"pulsar-native: writing to {full}") from error
            # This must depend on neither time nor rows: with `exactly-once`, all attempts divide the rows alike.
            share = max(_MIN_BATCH_BYTES, self._max_buffered_bytes // len(found))
            batch_bytes = min(share, self._options.batching_max_bytes)
            producers = [self._producer(topic_partition, batch_bytes) for topic_partition in found]
            topic = self._topics[name] = _Topic(producers, self._attempt.partition)
        return topic

    def _producer(self, topic_partition: TopicPartition, batch_bytes: int) -> _Producer:
        if self._options.delivery_guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            sends_once = self._options.delivery_guarantee is DeliveryGuarantee.TRANSACTION
            name = self._unique_name()
            return _Producer(topic_partition, self, batch_bytes=batch_bytes, name=name, sends_once=sends_once)
        name = producer_name(self._options.producer_name, self._attempt)
        numbers = EntryNumbers(self._attempt.batch_id)
        return _Producer(topic_partition, self, batch_bytes=batch_bytes, name=name, numbers=numbers)

    def _unique_name(self) -> str | None:
        """Return a unique producer name; None to let the broker generate one."""
        base = self._options.producer_name
        return None if base is None else f"{base}-{self._attempt.partition}-{uuid.uuid4().hex}"

    @staticmethod
    def _explicit(topic: _Topic, column: pa.Array | None, order: array[int] | None) -> pa.Array | None:
        if column is None or len(topic.producers) > 1:
            return column
        # There is only one partition. Rows read from an unpartitioned topic have -1.
        allowed = {None, 0} if topic.is_partitioned else {None, 0, -1}
        wanted = column.to_pylist()
        for row in range(len(wanted)) if order is None else order:
            if wanted[row] not in allowed:
                raise IndexError(row)
        return None

    @staticmethod
    def _ordered_by_key(columns: dict[str, pa.Array], order: memoryview) -> array[int]:
        keys = [columns[name].to_pylist() for name in ("ordering_key", "key") if name in columns]
        groups: dict[object, array[int]] = {}
        for row in order:
            key = next((column[row] for column in keys if column[row] is not None), None)
            groups.setdefault(key, array("i")).append(row)
        return array("i", itertools.chain.from_iterable(groups.values()))

    def _append(self, topic: _Topic, partition: int, source: RowSource, order: memoryview | array[int]) -> None:
        """Encode the rows of one partition, and send the entries that are complete; without a partition, in turn."""
        at, end = 0, len(order)
        while at < end:
            producer = topic.producers[topic.turn if partition == NO_PARTITION else partition]
            if producer.encoder is None:
                self._reopen(producer)
            assert producer.encoder is not None  # noqa: S101 - for mypy: it is open now
            try:
                at = producer.encoder.append(source, order, at, end, now_ms=_now_ms())
            except UnwritableRowError as error:
                raise error.within(f"pulsar-native: writing to {producer.topic_partition}") from error
            if self._send(producer) and partition == NO_PARTITION:
                topic.turn = (topic.turn + 1) % len(topic.producers)

    # -- sending and resending

    def _send(self, producer: _Producer) -> bool:
        """Send the complete entries; return whether there were any."""
        if producer.encoder is None:
            return False
        sends = producer.encoder.take()
        is_alone = False
        for number, send in enumerate(sends):
            size = len(send.body)
            self._wait_until(partial(self._has_room, producer, size))
            if _is_first_part_of_stored(producer, sends, number):
                is_alone = True
                continue
            entry = _Pending(send, may_be_stored=self._admit(producer, send), is_alone=is_alone)
            is_alone = False
            with self._arrived:
                if not producer.pending:
                    producer.last_progress = time.monotonic()
                producer.pending.append(entry)
                producer.pending_bytes += size
            self._send_entry(producer, entry)
        if sends and not producer.is_proven:
            self._check_deduplication(producer, sends[-1])
        return bool(sends)

    def _admit(self, producer: _Producer, send: commands.Send) -> bool:
        """Return whether an earlier attempt may have stored an entry.

        Raises:
            ReplayError: it has stored other rows under these ids.
        """
        if producer.numbers is None:
            return False
        return self._check(producer, lambda numbers: numbers.admit(send.sequence_id, _last_id(send)))

    def _check_deduplication(self, producer: _Producer, send: commands.Send) -> None:
        """Check that the broker deduplicates: when the producer is reopened, it must return the last sequence id.

        Raises:
            UnsupportedFeatureError: deduplication is off.
        """
        self._wait_until(lambda: not producer.pending)
        self._reopen(producer)
        if not producer.is_proven:
            raise UnsupportedFeatureError(
                f"pulsar-native: writing to {producer.topic_partition}: deliveryGuarantee=exactly-once needs the "
                f"broker's deduplication, which is off: enable it with {_how_to_deduplicate(producer)}; the rows up to "
                f"sequence id {send.sequence_id} are written"
            )

    def _has_room(self, producer: _Producer, size: int) -> bool:
        if producer.numbers is not None and producer.pending:
            # Otherwise this entry could be stored without the previous one, which no id would show (`deduplication`).
            return False
        # A single entry may exceed the limit, or it could never be sent.
        if not producer.is_stored and self._count_unstored() >= MAX_UNSTORED_ENTRIES:
            return False
        pending = sum(producer.pending_bytes for producer in self._open)
        return pending == 0 or pending + size <= self._options.max_pending_bytes

    def _count_unstored(self) -> int:
        return sum(len(producer.pending) for producer in self._open if not producer.is_stored)

    def _send_entry(self, producer: _Producer, entry: _Pending) -> None:
        if producer.session is None or producer.error is not None:
            return
        if self._transaction is not None:
            self._transaction.check_time()
        entry.times_sent += 1
        entry.times_in_doubt += 1
        self._counters.entries += 1
        self._counters.entry_bytes += len(entry.send.body)
        try:
            producer.session.send(entry.send)
        except ServiceNotReadyError as error:
            # The broker has closed the producer: nothing was sent.
            entry.times_in_doubt -= 1
            producer.fail(error)
        except MQSourceError as error:
            # The next wait reopens the producer and sends the entry.
            producer.fail(error)

    def _is_due(self) -> bool:
        return self._failed() is not None

    def _failed(self) -> _Producer | None:
        return next((p for p in self._open if p.error is not None and p.pending), None)

    def _until(self) -> float:
        until = min(self._reopen_time(p) for p in self._open if p.pending)
        return until if self._transaction is None else min(until, self._transaction.idle_from)

    def _attend(self) -> None:
        if self._transaction is not None:
            # Pending entries must not reach the broker after the transaction has ended.
            self._transaction.check_time()
        failed = self._failed()
        if failed is None:
            self._reopen_or_fail()
        else:
            self._reopen(failed)

    def _reopen_or_fail(self) -> None:
        """Reopen the producer that waits longest for a receipt once, on a new connection; then fail.

        Raises:
            RequestTimeoutError: no receipt on the new connection either.
        """
        waiting = [producer for producer in self._open if producer.pending]
        producer = min(waiting, key=lambda one: one.last_progress, default=None)
        if producer is None or producer.session is None or time.monotonic() < self._reopen_time(producer):
            return
        if not producer.distrusts_connection:
            producer.distrusts_connection = True
            producer.session.close()
            return
        raise RequestTimeoutError(
            f"pulsar-native: writing to {producer.topic_partition}: {producer.session.address}: no receipt of sequence "
            f"id {producer.pending[0].send.sequence_id} within sendTimeout ({self._options.send_timeout_ms} ms)"
        )

    def _reopen_time(self, producer: _Producer) -> float:
        # Half of the time for the current connection, half for a new one.
        return producer.last_progress + self._options.send_timeout_ms / 2000

    def _reopen(self, producer: _Producer) -> None:
        """Open or reopen a producer, and resend the pending entries.

        Raises:
            MQSourceError: not retryable, not open within `sendTimeout`, or reopened for as long without a receipt.
        """
        # A receipt that arrives meanwhile resets it.
        reason, since = producer.error, producer.reopened_at
        if reason is not None and not reason.retryable:
            raise self._in_context(producer, reason) from reason
        if reason is not None:
            logger.info("%s: opening the producer again: %s", producer.topic_partition, reason)
            self._counters.reconnects += 1
        try:
            with waiting(self._counters):
                if reason is not None and since is not None:
                    self._back_off(producer, reason, time.monotonic() - since)
                self._open_in_time(producer)
                if producer.may_lose_refused and not producer.sends_once:
                    # Under a new name, no entry is a duplicate.
                    producer.name = self._unique_name()
                    self._open_in_time(producer)
        except MQSourceError as error:
            raise self._in_context(producer, error) from error
        with self._arrived:
            unsent = list(producer.pending)
            if unsent and producer.reopened_at is None:
                producer.reopened_at, producer.pauses = time.monotonic(), pauses()
        why = self._resend_obstacle(producer, unsent) if reason is not None and producer.sends_once else None
        if reason is not None and why is not None:
            raise self._in_context(producer, reason.within(why)) from reason
        for entry in unsent:
            self._send_entry(producer, entry)

    def _back_off(self, producer: _Producer, reason: MQSourceError, elapsed: float) -> None:
        """Pause before the next reopen without a receipt: a broker can open a producer and refuse all of its entries.

        Raises:
            MQSourceError: `sendTimeout` has passed since the first such reopen.
        """
        pause = next(producer.pauses)
        time.sleep(pause)
        if elapsed + pause >= self._options.send_timeout_ms / 1000:
            refusal = producer.session and producer.session.late_refusals.get(producer.producer_id)
            raise (refusal or reason).within(f"no receipt within sendTimeout ({self._options.send_timeout_ms} ms)")

    @staticmethod
    def _resend_obstacle(producer: _Producer, unsent: Sequence[_Pending]) -> str | None:
        """Return why a transaction must not resend the pending entries; None if it may."""
        end = "this attempt is aborted, and Spark may run the task again"
        if producer.may_lose_refused:
            return (
                "the broker may have refused an entry, and would take it for a duplicate, because it has stored later "
                f"ones; {end}"
            )
        doubtful = [entry.send for entry in unsent if entry.times_in_doubt > 0]
        # Even a deduplicating broker stores the first chunks of a message again. If it then loads the topic, it also
        # takes the following chunks for new (seen on broker 4.0.8).
        has_chunks = any(send.is_chunk for send in doubtful)
        if not doubtful or (producer.is_deduplicated and not has_chunks):
            return None
        where = "for messages in chunks" if has_chunks else "without the broker's deduplication"
        how = "" if has_chunks else f" (to let attempts continue, enable it with {_how_to_deduplicate(producer)})"
        return (
            f"it is unknown whether {len(doubtful)} pending entries are stored, and {where} a transaction must not "
            f"send them again; {end}{how}"
        )

    def _open_in_time(self, producer: _Producer) -> None:
        retrying(lambda: self._open_once(producer), deadline=Deadline.after_ms(self._options.send_timeout_ms))

    def _open_once(self, producer: _Producer) -> Session:
        """Open or reopen a producer; return its connection."""
        if producer.session is not None:
            # The broker answers only after the receipts of the entries it has stored.
            self._client.close_producer(producer.session, producer.producer_id)
        # On a live connection, refusals arrive before that answer, or before the broker closes the producer.
        was_disconnected = producer.session is not None and producer.session.closed
        session, opened = self._client.open_producer(
            producer.topic_partition,
            producer.producer_id,
            producer,
            name=producer.name,
            epoch=producer.epoch,
            topic_epoch=producer.topic_epoch,
            schema=self._schema,
            # Two tasks that each hold a topic-partition exclusively must not deadlock.
            wait_ms=self._options.send_timeout_ms if any(one is not producer for one in self._open) else None,
        )
        with self._arrived:
            producer.session = session
            producer.epoch += 1
            producer.topic_epoch = opened.topic_epoch
            producer.last_progress = time.monotonic()
            # Without deduplication, a broker always returns -1 as the last sequence id (seen on 4.0.8).
            producer.is_deduplicated = opened.last_sequence_id >= 0
            producer.may_lose_refused = producer.numbers is None and _may_lose_refused(
                producer.pending, opened.last_sequence_id, was_disconnected=was_disconnected
            )
        if producer.numbers is not None:
            producer.is_proven = producer.is_proven or producer.is_deduplicated
            with self._arrived:
                own = {producer.confirmed, *(_last_id(entry.send) for entry in producer.pending)}
                lacking = [e for e in producer.pending if e.is_alone and e.send.sequence_id > opened.last_sequence_id]
            producer.numbers.found(opened.last_sequence_id, own)
            if lacking:
                # The broker's last sequence id includes entries whose storage may still fail.
                msg = (
                    f"the broker lacks the message of sequence id {lacking[0].send.sequence_id}, which it had reported "
                    "as stored; the next task attempt sends all of its chunks"
                )
                raise BrokerError(f"{session.address}: {msg}")
        if producer.encoder is not None and opened.schema_version != producer.encoder.schema_version:
            # The topic was created again, or has migrated to another cluster: the pending entries name a version of
            # the registry that had the schema when this attempt began.
            raise BrokerError(
                f"{session.address}: the schema of this write has another version now; the next task attempt sets it"
            )
        if producer.name is None:
            producer.name = opened.producer_name
        if producer.encoder is None:
            producer.encoder = self._encoder(producer, session, opened)
            self._open.append(producer)
        return session

    @cached_property
    def _encryptor(self) -> PayloadEncryptor | None:
        return encryptor_of(self._options, _now_ms())

    def _encoder(self, producer: _Producer, session: Session, opened: commands.ProducerSuccess) -> EntryEncoder:
        options = self._options
        begun = None if self._transaction is None else self._transaction.join(producer.topic_partition)
        return EntryEncoder(
            producer_id=producer.producer_id,
            producer_name=opened.producer_name,
            sequence_id=opened.last_sequence_id + 1 if producer.numbers is None else producer.numbers.first_row_id,
            max_message_bytes=session.connection.max_message_bytes,
            compression=options.compression_type,
            batching=options.batching,
            batch_bytes=producer.batch_bytes,
            batch_rows=options.batching_max_messages,
            batching_by_key=options.batching_by_key,
            chunking=options.chunking,
            schema_version=opened.schema_version,
            txn_id=None if begun is None else (begun.least, begun.most),
            replicate_to=options.replication_clusters,
            numbering=producer.numbers,
            encryptor=self._encryptor,
        )

    @staticmethod
    def _in_context(producer: _Producer, error: MQSourceError) -> MQSourceError:
        where = f"pulsar-native: writing to {producer.topic_partition}"
        if producer.pending:
            where += f" from sequence id {producer.pending[0].send.sequence_id} on"
        return error.within(where)


def _how_to_deduplicate(producer: _Producer) -> str:
    namespace = producer.topic_partition.topic.partition("://")[2].rpartition("/")[0]
    return (
        f"`pulsar-admin namespaces set-deduplication --enable {namespace}`, or brokerDeduplicationEnabled=true in the "
        f"broker's configuration"
    )


def _is_first_part_of_stored(producer: _Producer, sends: Sequence[commands.Send], number: int) -> bool:
    """Return whether an entry is a chunk, but not the last one, of a message that an earlier attempt has stored.

    It must not be sent again: a broker never drops such a chunk. When it loads the topic, it would take this chunk's
    id, as that of the last entry, for the highest one (seen on broker 4.0.8), and would store everything after the
    message again.
    """
    numbers, send = producer.numbers, sends[number]
    if numbers is None or not send.is_chunk or send.sequence_id > numbers.admitted:
        return False
    # All chunks of a message are in `sends`, and only the last one has a higher id than the previous entry.
    following = (other.sequence_id for other in itertools.islice(sends, number, None))
    return next(last for last in following if last > send.sequence_id) <= numbers.stored


def _may_lose_refused(pending: Sequence[_Pending], last_sequence_id: int, *, was_disconnected: bool) -> bool:
    """Return whether a deduplicating broker may lack a pending entry that it would take for a duplicate.

    Args:
        pending: entries without receipt, in order.
        last_sequence_id: the highest id that the broker has stored; lower ids may be missing.
        was_disconnected: whether the broker may have refused them on a lost connection.
    """
    # Entries with a higher id can be resent: nothing after them is stored, so refusals no longer matter.
    for entry in pending:
        entry.may_be_refused = _last_id(entry.send) <= last_sequence_id and (was_disconnected or entry.may_be_refused)
    taken = [entry for entry in pending if _last_id(entry.send) <= last_sequence_id]
    # If the last of them has exactly this id, it is stored, unless an acknowledged entry followed it.
    return any(
        entry.may_be_refused and (entry is not taken[-1] or _last_id(entry.send) < last_sequence_id) for entry in taken
    )


def _last_id(send: commands.Send) -> int:
    return send.sequence_id if send.highest_sequence_id is None else send.highest_sequence_id


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
