"""One task of a queue: reads messages of a subscription in a topic-partition as Arrow batches (`net.queue_task`).

The unit is the entry: a single message, a producer's batch, or all chunks of one message. Entries are logged as
received and acknowledged whole; they are decoded into rows when the log is read (`queue_log`).

A broker sends as many messages as it has permits for (FLOW), in whole entries. It reserves messages that are
sent or unacknowledged for this consumer until it is closed; then other consumers get them, without a redelivery count.
So a task never returns messages by a command, but closes its consumer.

A lost connection, or the unload of a topic, ends a consumer. Entries received but not logged are dropped then, because
the broker sends them again, here or elsewhere. The next consumer first acknowledges the logged entries again: until
then the broker may send them to others.

With `readCompacted` the broker leaves entries out, which would stay in the backlog permanently: a cumulative ACK of a
later entry acknowledges them. This is correct only if this consumer received everything up to there in order and has
taken all of it. After a chunk, a repeated entry, or another consumer's turn (Failover), entries are therefore
acknowledged one by one, until there is another consumer. Other reads always acknowledge one by one, which is as fast:
with a thousand ids per command it takes 1 % of the processor time of a drain, the broker's included.

A broker sends each entry of a non-persistent topic once, to any consumer with permits at that moment, and all have the
id 0:0. So no entry is a repeat, nothing is acknowledged, and what a task receives and does not take is lost.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import CorruptMessageError, MQSourceError, RequestTimeoutError, ResourceBusyError
from spark_mq_source.net.queue_plan import QueueTask
from spark_mq_source.net.queue_task import Collector, Limits, drained, logged, only_rows
from spark_mq_source.net.retry import Deadline, pauses
from spark_mq_source.net.stopwatch import waiting
from spark_mq_source.net.write_ahead import Slot, TaskLog
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.consumer import KINDS, Subscription
from spark_mq_source.pulsar.client.queue_consumer import Acknowledgement, QueueConsumer
from spark_mq_source.pulsar.offsets import TopicPartition, is_persistent
from spark_mq_source.pulsar.options import (
    SHARED_TYPES,
    AckMode,
    InitialPosition,
    OnMaxRedeliver,
    PulsarOptions,
    SubscriptionType,
)
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.commands import Message
from spark_mq_source.pulsar.read.letters import OpenWriter, QueueLetters, too_many_deliveries
from spark_mq_source.pulsar.read.permits import BURST_BYTES, Permits
from spark_mq_source.pulsar.read.queue_log import WORD, ChunkGroups, LogReader, log_batch
from spark_mq_source.pulsar.read.recent import Entry, EntryRanges, Run, parse_entry, runs_of

logger = logging.getLogger(__name__)

SPARE_PERMITS: Final = 1 << 20
"""Number of permits to keep until a consumer is closed (see `_Inflow.close`; seen on 4.0.8): more than the broker uses
in one read of 100 entries, before it notices that the consumer is closed."""

LOG_BYTES: Final = 8 << 20
"""Maximum size of a slot's file: each file takes some milliseconds, whatever its size."""

TRIGGER_SECONDS: Final = 30.0
"""Time for which a task of a stream waits for the planned messages, as long as some arrive."""

PATIENCE_SECONDS: Final = 5.0
"""Maximum time between the receipt of a message and its logging and acknowledgement."""

FAILOVER_SECONDS: Final = 2.5
"""Time for the first message of a Failover subscription: its broker waits after it has chosen a consumer, for
`activeConsumerFailoverDelayTimeMillis`, 1 s by default."""

STANDBY_SECONDS: Final = 10.0
"""Time for which an inactive consumer waits: the active one may belong to another attempt at the same task."""


@dataclass(frozen=True, slots=True)
class QueueSource:
    """The source of one consumer: a topic-partition, or with STICKY ranges some keys of one.

    Attributes:
        partition: -1 if the topic is not partitioned.
        first_key: start of the range of key hashes; -1 for all that the broker sends.
        last_key: its end, inclusive.
        base: of a retry topic: the topic to which it belongs.
    """

    topic: str
    partition: int
    first_key: int = -1
    last_key: int = -1
    base: str | None = None

    @property
    def name(self) -> str:
        """The name to which positions belong."""
        return str(self.topic_partition)

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic-partition that is read."""
        return TopicPartition(self.topic, self.partition)

    @property
    def is_stored(self) -> bool:
        """True if the broker keeps messages until they are acknowledged."""
        return is_persistent(self.topic)


@dataclass(frozen=True, slots=True)
class PulsarQueueRange(QueueTask[QueueSource]):
    """The work of one task.

    Attributes:
        max_entries: maximum number of entries; None for no limit.
    """

    max_entries: int | None = None

    source_type = QueueSource

    def __str__(self) -> str:
        return self.source.name + (f", task {self.task} of {self.folder}" if self.folder else "")

    @property
    def bounds(self) -> dict[str, Any]:
        """The bounds as in a plan."""
        return {"max_rows": self.max_rows, "max_entries": self.max_entries}

    @property
    def is_repeatable(self) -> bool:
        """True unless the topic is non-persistent."""
        return self.source.is_stored

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic-partition that is read."""
        return self.source.topic_partition


def subscription_of(options: PulsarOptions, source: QueueSource, role: str) -> Subscription:
    """Return the subscription of a consumer of this query; `role` is the suffix of the consumer's name."""
    ranges = ((source.first_key, source.last_key),) if source.first_key >= 0 else ()
    # Messages that were put off have been acknowledged, and no other subscription holds them.
    is_latest = options.initial_position is InitialPosition.LATEST and source.base is None
    return Subscription(
        options.subscription or "",
        KINDS[options.subscription_kind],
        initial=commands.InitialPosition.Latest if is_latest else commands.InitialPosition.Earliest,
        properties=dict(options.subscription_properties),
        consumer_name=f"{options.consumer_name or options.subscription_prefix}-{role}",
        priority_level=options.priority_level,
        key_ranges=ranges,
        read_compacted=options.read_compacted,
        # It existed when the task was planned. A non-persistent topic exists while a client uses it.
        creates_topic=not source.is_stored,
    )


def read_queue(
    options: PulsarOptions,
    task: PulsarQueueRange,
    schema: pa.Schema,
    counters: Counters | None = None,
    *,
    open_writer: OpenWriter,
    tries: int = 0,
) -> Iterator[pa.RecordBatch]:
    """Read the rows of one task, in batches of `schema`.

    Args:
        options: the query's.
        task: the work of the task.
        schema: the columns wanted, in order.
        counters: updated with received entries and messages.
        open_writer: opens a writer to the dead letter or the retry topic.
        tries: the number of earlier attempts.

    Raises:
        OptionError: columns or types that cannot be built.
        CorruptMessageError: a message cannot be decoded, and `onCorrupt` is `fail`.
        TooManyAttemptsError: a message was redelivered or put off more often than `maxRedeliverCount`, and
            `onMaxRedeliver` is `fail`.
        DataLossError: the write-ahead log was deleted.
        MQSourceError: the broker refuses, or (except in a stream) cannot be reached for `operationTimeout`.
    """
    COLUMNS.check(schema)
    counters = counters or Counters()
    where = f"pulsar-native: reading {task}"
    letters = QueueLetters(
        options,
        task.topic_partition,
        where,
        open_writer,
        base=task.source.base,
        attempt=tries,
        counters=counters,
    )
    try:
        with closing(letters), closing(_read_queue(options, task, schema, counters, letters)) as batches:
            yield from batches
    except MQSourceError as error:
        raise (error if str(error).startswith(where) else error.within(where)) from error


def _read_queue(
    options: PulsarOptions, task: PulsarQueueRange, schema: pa.Schema, counters: Counters, letters: QueueLetters
) -> Generator[pa.RecordBatch, None, None]:
    reader = LogReader(options, task.topic_partition, schema)
    if not task.folder:
        yield from _drain(options, task, reader, counters, letters)
        return
    entries = logged("pulsar-native", options, task, lambda log: _Collector(options, task, log, counters, letters))
    yield from reader.batches(entries)
    yield from reader.rest()


def _drain(
    options: PulsarOptions, task: PulsarQueueRange, reader: LogReader, counters: Counters, letters: QueueLetters
) -> Generator[pa.RecordBatch, None, None]:
    """Yield messages directly from the broker; acknowledge (or keep, or put off) them once Spark has the rows."""
    is_given_back = options.ack_mode is AckMode.NACK
    is_peek = is_given_back and not options.retry_topic
    with _consuming(options, task, EntryRanges(), counters, max_rows=task.max_rows) as inflow:
        for batch in drained(inflow, Limits.of(options, task.max_rows), is_peek=is_peek):
            kept = _kept(options, batch, letters)
            yield from reader.batches([kept])
            yield from reader.rest()
            if is_peek:
                continue
            inflow.note_damaged(reader.damaged)
            if is_given_back:
                letters.put_off(kept)
            inflow.acknowledge()
        inflow.settle()


@contextmanager
def _consuming(
    options: PulsarOptions, task: PulsarQueueRange, known: EntryRanges, counters: Counters, *, max_rows: int | None
) -> Iterator[_Inflow]:
    with PulsarClient(options, role=f"{task.task:04d}") as client:
        inflow = _Inflow(client, options, task, known, counters, max_rows=max_rows)
        try:
            yield inflow
        finally:
            inflow.close()
        client.hand_over()


class _Allowance:
    """The remaining limits of a task, in whole messages and batches; the first one is taken whatever its size.

    Attributes:
        rows: number of messages; None for no limit.
        entries: number of entries; None for no limit.
        is_used_up: whether nothing more is taken.
    """

    def __init__(self, rows: int | None, entries: int | None) -> None:
        self.rows = rows
        self.entries = entries
        self.is_used_up = False
        self._has_taken = False

    def ends_within(self, *, entries: int) -> bool:
        """Return whether this many entries use it up."""
        return self.entries is not None and entries >= self.entries

    def take(self, counts: Sequence[int], rows: int) -> int:
        """Take as many of the received entries as fit, and return how many.

        Args:
            counts: number of messages of each entry: 0 for all chunks but the last of a message.
            rows: their sum.
        """
        stop = len(counts) if self._fit(rows, len(counts)) else self._fitting(counts)
        self._has_taken = self._has_taken or stop > 0
        if self.rows is not None:
            self.rows = max(0, self.rows - sum(counts[:stop]))
        if self.entries is not None:
            self.entries = max(0, self.entries - stop)
        self.is_used_up = stop < len(counts) or 0 in (self.rows, self.entries)
        return stop

    def _fit(self, rows: int, entries: int) -> bool:
        return (self.rows is None or rows <= self.rows) and (self.entries is None or entries <= self.entries)

    def _fitting(self, counts: Sequence[int]) -> int:
        stop = taken = 0
        for number, count in enumerate(counts, 1):
            if not count:
                continue  # a chunk with more of its message after it
            # An entry that begins below the limit is taken with all of its chunks.
            if (self._has_taken or stop) and not self._fit(taken + count, stop + 1):
                break
            stop, taken = number, taken + count
        return stop


class _Inflow:
    """The received entries of the consumer of one task; see `net.queue_task.Inflow`."""

    def __init__(
        self,
        client: PulsarClient,
        options: PulsarOptions,
        task: PulsarQueueRange,
        known: EntryRanges,
        counters: Counters,
        *,
        max_rows: int | None,
    ) -> None:
        self._client = client
        self._options = options
        self._task = task
        self._known = known
        self._is_stored = task.source.is_stored
        self._acknowledges = self._is_stored and (options.ack_mode is AckMode.ACK or options.retry_topic)
        self._counters = counters
        self._subscription = subscription_of(options, task.source, f"{task.task:04d}")
        self._chunks = ChunkGroups(max_bytes=options.max_pending_chunk_bytes)
        self._allowance = _Allowance(max_rows, task.max_entries)
        self._doubtful: list[Entry] = []
        """Entries that were received corrupt."""
        self._distrusted: set[Entry] = set()
        """Entries that have been corrupt once."""
        self._damaged: dict[Entry, commands.ValidationError] = {}
        """Entries that cannot be read, as far as known before they are acknowledged."""
        self._received: list[Message] = []
        """Entries that were not taken yet; the chunks of a message follow one another."""
        self._counts: list[int] = []
        """Number of messages of each: 0 for all chunks but the last."""
        self._nbytes = 0
        self._since = 0.0
        self._here = EntryRanges()
        """Entries that were received on this consumer, or taken before."""
        self._held: list[Entry] = []
        """Entries of these that were taken and not acknowledged yet."""
        self._is_gapless = options.read_compacted
        """Whether everything before the last of those was taken, too."""
        self._last: Entry = (-1, -1)
        self._held_messages = 0
        self.rows = 0
        self._acknowledged = EntryRanges()
        self._wanted = 0
        self._permits = Permits(options.receive_queue_bytes)
        self._unanswered: list[tuple[Acknowledgement, Sequence[Entry]]] = []
        self._unconfirmed: list[Entry] = []
        self._pauses = pauses()
        """The seconds before each further consumer, while none has received anything new."""
        self._patience: Deadline | None = None
        """The end of the attempts to do so; None before the first failure."""
        self._consumer = self._open()
        self._is_closed = False

    # -- as `net.queue_task.Inflow`

    @property
    def most(self) -> int:
        return 0 if self._allowance.is_used_up else self._options.max_in_flight

    def want(self, messages: int) -> None:
        self._wanted = messages
        self._grant()

    def receive(self, timeout_seconds: float) -> bool:
        self._grant()
        is_slow = self._options.subscription_kind is SubscriptionType.FAILOVER and not self._permits.entries
        try:
            with waiting(self._counters):
                messages = self._consumer.receive(
                    max_bytes=BURST_BYTES,
                    timeout_seconds=max(timeout_seconds, FAILOVER_SECONDS) if is_slow else timeout_seconds,
                )
        except MQSourceError as error:
            if not error.retryable:
                raise
            self._wait_before_resuming(error)
            self._resume(error)
            # The consumer was not read meanwhile, so that was no silence.
            return True
        if not messages and self._is_standby():
            return True
        if not self._received:
            self._since = time.monotonic()
        if repeated := self._add(messages):
            logger.info("%s: %d entries come again, and are left out", self._task, len(repeated))
            if self._acknowledges:
                self._send_acknowledgement(repeated)
        if len(repeated) < len(messages):
            self._patience = None
        if self._doubtful:
            self._read_again()
        # A message can take longer than the idle time to arrive.
        return bool(messages) or self._consumer.unfinished_bytes > 0

    def _wait_before_resuming(self, error: MQSourceError) -> None:
        """Pause if the last consumer was lost, too, before it received anything new.

        A connection may open, and end with each message that is sent.

        Raises:
            MQSourceError: the error, if that has been so for `operationTimeout`.
        """
        timeout_ms = self._options.operation_timeout_ms
        if self._patience is None or time.monotonic() - self._opened_at > timeout_ms / 2000:
            self._pauses, self._patience = pauses(), Deadline.after_ms(timeout_ms)
            return
        pause = next(self._pauses)
        if self._patience.remaining_seconds() <= pause:
            raise error
        with waiting(self._counters):
            time.sleep(pause)

    def _is_standby(self) -> bool:
        """Return whether the consumer is on standby: then silence does not mean that no messages wait."""
        return not self._consumer.is_active and time.monotonic() < self._standby_until

    def _read_again(self) -> None:
        """Request the corrupt entries once more: if they are corrupt again, so are the broker's."""
        ledger, entry = self._doubtful[0]
        self._distrusted.update(self._doubtful)
        self._doubtful = []
        self.close()
        self._resume(CorruptMessageError(f"message {ledger}:{entry} is corrupt, and is read again"))

    def is_due(self, wanted: int) -> bool:
        return bool(self._received) and (
            self.rows >= wanted
            or self.rows * 2 >= self._options.max_in_flight
            or self._nbytes >= LOG_BYTES
            or self._allowance.ends_within(entries=len(self._received))
            or time.monotonic() - self._since >= PATIENCE_SECONDS
        )

    def take(self) -> pa.RecordBatch:
        """Return the entries within the limits; at least one message or batch, if none was taken before."""
        stop = self._allowance.take(self._counts, self.rows)
        messages, counts = self._received[:stop], self._counts[:stop]
        self._held += [(message.ledger_id, message.entry_id) for message in messages]
        self._held_messages += sum(counts)
        # The rest returns to the subscription when the consumer is closed.
        self._drop_received()
        return log_batch(messages, counts)

    def note_damaged(self, damaged: dict[Entry, commands.ValidationError]) -> None:
        """Take the entries that could not be read, so that their ACKs tell the broker why."""
        self._damaged.update(damaged)
        damaged.clear()

    def acknowledge(self) -> None:
        entries, self._held, self._held_messages = self._held, [], 0
        if not self._is_stored:
            return
        runs = runs_of(entries)
        self._known.add_runs(runs)
        self._acknowledged.add_runs(runs)
        is_everything = self._is_gapless and not self._consumer.was_replaced
        sound = self._acknowledge_damaged(entries) if self._damaged else entries
        self._send_acknowledgement(entries if is_everything else sound, is_everything=is_everything)

    def _acknowledge_damaged(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Acknowledge the damaged ones of these entries with the reason, and return the others."""
        of_reason: dict[commands.ValidationError | None, list[Entry]] = {}
        for entry in entries:
            of_reason.setdefault(self._damaged.pop(entry, None), []).append(entry)
        sound = of_reason.pop(None, [])
        self._unanswered += [(self._consumer.acknowledge(some, reason), some) for reason, some in of_reason.items()]
        return sound

    def put_back(self) -> None:
        # Done by closing the consumer: nothing received is taken any more.
        self._drop_received()
        self._allowance.is_used_up = True

    def _drop_received(self) -> None:
        self._received, self._counts, self.rows, self._nbytes = [], [], 0, 0

    # -- the end

    @property
    def acknowledged(self) -> str:
        """The entries that were acknowledged here, in the form of the log, one attempt after the other."""
        return f"{self._acknowledged.text()};"

    def settle(self) -> list[Entry]:
        """Close the consumer after the broker's answers to all ACKs; return the entries without an answer."""
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        while True:
            # First, so that no more arrives here. ACKs that were sent before are answered before.
            self.close()
            failure = self._answered(deadline)
            if failure is None or not failure.retryable or deadline.expired:
                break
            self._resume(failure)
        if refused := self._unconfirmed:
            logger.warning("%s: %d entries could not be acknowledged, and come again", self._task, len(refused))
        return self._unconfirmed

    def close(self) -> None:
        """Close the consumer, which returns what was not acknowledged."""
        if not self._is_closed:
            self._is_closed = True
            self._note_taken()
            if self._is_stored and self._options.subscription_kind in SHARED_TYPES:
                # Some chunks of a message may be here, or in transit, and the others not. The broker reserves those for
                # the closed consumer; and for good if that has no permits left, until the topic is loaded again.
                with suppress(MQSourceError):
                    self._consumer.grant(max(0, -self._permits.outstanding) + SPARE_PERMITS)
            self._consumer.close(timeout_seconds=self._options.operation_timeout_ms / 1000)

    def _open(self) -> QueueConsumer:
        self._opened_at = time.monotonic()
        self._standby_until = self._opened_at + STANDBY_SECONDS
        with waiting(self._counters):
            return self._client.open_queue_consumer(self._task.topic_partition, self._subscription)

    def _resume(self, error: MQSourceError) -> None:
        """Continue with another consumer, which first acknowledges what the last one may not have."""
        logger.info("%s: resuming: %s", self._task, error)
        self._counters.reconnects += 1
        if not self._is_closed:
            self._note_taken()
        for acknowledgement, entries in self._unanswered:
            if not acknowledgement.done() or acknowledgement.exception() is not None:
                self._unconfirmed += entries
        self._unanswered = []
        if self._is_stored:
            self._drop_received()
            self._chunks.clear()
        self._permits.outstanding = 0
        self._here = EntryRanges()
        self._here.add(self._held)
        self._is_gapless = self._options.read_compacted and not self._held
        self._last = (-1, -1)
        self._consumer = self._open()
        self._is_closed = False
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        self._send_acknowledgement(unconfirmed)

    def _note_taken(self) -> None:
        self._counters.entries += self._consumer.taken_entries
        self._counters.entry_bytes += self._consumer.taken_bytes

    def _grant(self) -> None:
        """Grant permits for the messages wanted, within the limits."""
        if not self._allowance.is_used_up:
            try:
                self._permits.repay(self._consumer, self._allowed())
            except MQSourceError as error:
                # The next `receive` raises the same error, once all earlier messages are taken.
                logger.debug("%s: no FLOW: %s", self._task, error)

    def _allowed(self) -> int:
        most = self._options.max_in_flight
        if not self._is_stored:
            # Messages that arrive without permits are lost. What exceeds the queue waits in transit.
            return most if self._allowance.rows is None else min(most, self._allowance.rows - self.rows)
        allowed = min(self._wanted - self.rows, most - self.rows - self._held_messages)
        if self._allowance.entries is not None:
            per_entry = max(1, self._permits.messages // max(self._permits.entries, 1))
            allowed = min(allowed, (self._allowance.entries - len(self._received)) * per_entry)
        return self._permits.fitting(allowed)

    def _add(self, messages: Sequence[Message]) -> list[Entry]:
        """Queue received messages; return the entries that were read before, or repeat chunks of read messages."""
        entries = [(message.ledger_id, message.entry_id) for message in messages]
        runs = runs_of(entries) if self._is_stored else []
        are_new = self._are_new(runs)
        if are_new:
            self._here.add_runs(runs)
        if self._is_gapless and entries:
            self._is_gapless = all(one < other for one, other in pairwise([self._last, *entries]))
            self._last = entries[-1]
        repeated: list[Entry] = []
        count_messages, received, counts = self._chunks.count, self._received, self._counts
        charged = rows = nbytes = 0
        for message, entry in zip(messages, entries, strict=True):
            count = count_messages(message.body)
            is_corrupt = count < 0
            if is_corrupt:
                count = 1
            if count and message.ack_set:
                # Acknowledged messages of a batch are not delivered, and cost no permits (4.0.8, Consumer).
                count = max(1, sum((word & WORD).bit_count() for word in message.ack_set))
            charged += count or 1
            nbytes += len(message.body)
            if not count:
                # A chunk: it is taken when its message is complete, after later entries.
                self._is_gapless = False
            if not are_new:
                if entry in self._known:
                    repeated += self._chunks.add_known(message) if not count else [entry]
                    continue
                if entry in self._here:
                    continue
                self._here.add([entry])
            if not count:
                if self._chunks.is_late(message):
                    repeated.append(entry)
                    continue
                group = self._chunks.add(message)
                received += group
                counts += [0] * (len(group) - 1) + [1] * bool(group)
                rows += bool(group)
                continue
            if is_corrupt:
                self._note_corrupt(entry)
            received.append(message)
            counts.append(count)
            rows += count
        self.rows += rows
        self._nbytes += nbytes
        self._permits.count(charged, entries=len(messages), nbytes=nbytes)
        return repeated

    def _note_corrupt(self, entry: Entry) -> None:
        if entry in self._distrusted:
            self._damaged[entry] = commands.ValidationError.ChecksumMismatch
        elif self._is_stored:
            self._doubtful.append(entry)

    def _are_new(self, runs: Sequence[Run]) -> bool:
        """Return whether these entries are all new and distinct: the usual case."""
        if any(self._known.meets(run) or self._here.meets(run) for run in runs):
            return False
        return all(one[0] != other[0] or one[2] < other[1] for one, other in pairwise(sorted(runs)))

    def _send_acknowledgement(self, entries: Sequence[Entry], *, is_everything: bool = False) -> None:
        if entries:
            consumer = self._consumer
            sent = consumer.acknowledge_until(entries[-1]) if is_everything else consumer.acknowledge(entries)
            self._unanswered.append((sent, entries))
        while self._unanswered and self._unanswered[0][0].done() and self._unanswered[0][0].exception() is None:
            del self._unanswered[0]

    def _answered(self, deadline: Deadline) -> MQSourceError | None:
        """Wait for the answers; record the entries without a successful answer, and return the reason."""
        failure: MQSourceError | None = None
        for acknowledgement, entries in self._unanswered:
            try:
                with waiting(self._counters):
                    acknowledgement.result(deadline.remaining_seconds())
            except FutureTimeoutError:
                failure = RequestTimeoutError(f"{self._consumer.address}: no answer to ACK within operationTimeout")
                self._unconfirmed += entries
            except MQSourceError as error:
                failure = error
                self._unconfirmed += entries
        self._unanswered = []
        return failure


class _Collector(Collector[_Inflow]):
    """Receiver that fills the log of a task, see `net.queue_task.Collector`."""

    def __init__(
        self,
        options: PulsarOptions,
        task: PulsarQueueRange,
        log: TaskLog,
        counters: Counters,
        letters: QueueLetters,
    ) -> None:
        super().__init__(str(task), log)
        self._letters = letters
        # The driver of a stream has joined the subscription before: if it is missing, it was deleted.
        is_stream = options.run_id is None
        self._options = replace(options, initial_position=InitialPosition.EARLIEST) if is_stream else options
        self._task = task
        self._counters = counters
        self._known = EntryRanges([*task.duplicates, task.recent])
        # With the entries logged by other attempts at this task.
        self._add_known(self._ids_of(log.slots))
        self._messages = 0
        self._slots_counted = 0
        self._messages_taken = 0

    @contextmanager
    def _open(self) -> Iterator[_Inflow]:
        max_rows = self._task.max_rows
        left = None if max_rows is None else max(0, max_rows - self._rows())
        with _consuming(self._options, self._task, self._known, self._counters, max_rows=left) as inflow:
            yield inflow

    def _limits(self, inflow: _Inflow) -> Limits:
        return Limits.of(self._options, self._task.max_rows, TRIGGER_SECONDS)

    def _without_known(self, inflow: _Inflow, batch: pa.RecordBatch) -> pa.RecordBatch:
        kept = _kept(self._options, batch, self._letters)
        self._messages_taken = _count_messages(kept)
        return kept

    def _close(self, inflow: _Inflow) -> tuple[Sequence[str], str]:
        return [f"{ledger}:{entry}" for ledger, entry in inflow.settle()], inflow.acknowledged

    def _may_end_early(self, error: MQSourceError) -> bool:
        # If other consumers block the subscription, the user should know.
        return self._options.run_id is None and error.retryable and not isinstance(error, ResourceBusyError)

    def _ids_of(self, slots: Sequence[Slot]) -> set[str]:
        return super()._ids_of(slots) if self._task.is_repeatable else set()

    def _add_known(self, ids: set[str]) -> None:
        self._known.add(sorted(map(parse_entry, ids)))

    def _rows(self) -> int:
        for slot in self._log.slots[self._slots_counted :]:
            if slot.attempt == self._log.attempt:
                self._messages += self._messages_taken
            elif not slot.is_end:
                self._messages += sum(map(_count_messages, self._log.read(slot)))
        self._slots_counted = len(self._log.slots)
        return self._messages


def _count_messages(batch: pa.RecordBatch) -> int:
    return sum(batch.column("messages").to_pylist())


def _kept(options: PulsarOptions, batch: pa.RecordBatch, letters: QueueLetters) -> pa.RecordBatch:
    """Return the batch without messages that were redelivered too often, which become dead letters.

    Raises:
        TooManyAttemptsError: there are such messages, and `onMaxRedeliver` is `fail`.
        MQSourceError: the dead letter topic did not accept them.
    """
    limit = options.max_redeliver_count
    counts = batch.column("redelivery_count").to_pylist()
    if not limit or max(counts, default=0) <= limit:
        return batch
    kept, given_up, reasons = array("i"), array("i"), []
    group = array("i")
    for row, messages in enumerate(batch.column("messages").to_pylist()):
        group.append(row)
        if not messages:
            continue  # a chunk with more of its message after it
        times = max(counts[one] for one in group)
        if times <= limit:
            kept.extend(group)
        elif options.on_max_redeliver is OnMaxRedeliver.FAIL:
            raise too_many_deliveries(batch.column("message_id")[row], f"redelivered {times} times", limit)
        else:
            given_up.extend(group)
            reasons += [f"redelivered {times} times"] * len(group)
        group = array("i")
    letters.give_up(only_rows(batch, given_up), reasons)
    return only_rows(batch, kept)
