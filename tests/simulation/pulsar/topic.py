"""A topic-partition loaded by a broker: its producers, its subscriptions and the delivery of entries."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from spark_mq_source.pulsar.protocol import commands
from tests.simulation.pulsar.deduplication import Deduplication, Status
from tests.simulation.pulsar.dispatch import Consumer, Limits, Subscription
from tests.simulation.pulsar.entries import Entry, has_good_checksum, read_entry
from tests.simulation.pulsar.ledgers import EARLIEST, FLUSH_SECONDS, Cursor, ManagedLedger, Position
from tests.simulation.pulsar.transactions import TransactionBuffer
from tests.simulation.pulsar.writes import WriteFaults

if TYPE_CHECKING:
    from tests.simulation.pulsar.broker import Connection
    from tests.simulation.world import World

PERSISTENCE_ERROR, CHECKSUM_ERROR = 2, 9


class Producer:
    """An open producer."""

    def __init__(self, connection: Connection, command: commands.Producer, name: str) -> None:
        self.connection = connection
        self.producer_id = command.producer_id
        self.name = name
        self.epoch = command.epoch or 0
        self.is_user_named = command.user_provided_producer_name is not False
        self.receipts_from = 0.0


class _Write:
    """An entry that is being stored."""

    __slots__ = ("entry", "producer", "send")

    def __init__(self, producer: Producer, send: commands.Send, entry: Entry) -> None:
        self.producer = producer
        self.send = send
        self.entry = entry


class Topic:
    """One loaded topic-partition.

    Attributes:
        name: full.
        ledger: its data on disk.
        is_open: False once it is unloaded or its broker was killed.
    """

    def __init__(
        self,
        world: World,
        name: str,
        ledger: ManagedLedger,
        buffer: TransactionBuffer,
        *,
        deduplicates: bool,
        faults: WriteFaults,
        limits: Limits,
    ) -> None:
        self.limits = limits
        self.world = world
        self.name = name
        self.ledger = ledger
        self.buffer = buffer
        self.is_open = True
        self.subscriptions: dict[str, Subscription] = {}
        self.producers: dict[str, Producer] = {}
        ledger.open()
        self.deduplication = Deduplication(ledger.history.values()) if deduplicates else None
        self._faults = faults
        self._writing: deque[_Write] = deque()
        self._set_aside: deque[tuple[_Write, str | None]] = deque()
        """Entries of transactions until the first snapshot is taken, each with its fault of storage."""
        self._last: Position | None = None
        """The last position to deliver, once it was found."""
        self._closing: list[tuple[Producer, Callable[[], None]]] = []
        self._write_at = 0.0
        self._flushes = False

    def delivered(self, entry: Entry) -> bytes:
        """Return the bytes of an entry that a consumer receives."""
        return entry.body

    # -- publishing

    def publish(self, producer: Producer, send: commands.Send) -> None:
        """Handle a SEND on an open producer."""
        body = bytes(send.body)
        highest = send.sequence_id if send.highest_sequence_id is None else send.highest_sequence_id
        fault = self._faults.take()
        if fault == "checksum" or not has_good_checksum(body):
            self._send_error(producer, highest, CHECKSUM_ERROR, "Checksum failed on the broker")
            return
        entry = read_entry(body)
        if self.deduplication is not None:
            status = self.deduplication.check(producer.name, send.sequence_id, highest, entry.chunk)
            if status is Status.DUPLICATE:
                self._receipt(producer, send, (-1, -1))
                return
            if status is Status.UNKNOWN:
                text = "Cannot determine whether the message is a duplicate at this time"
                self._send_error(producer, highest, PERSISTENCE_ERROR, text)
                return
        write = _Write(producer, send, entry)
        if entry.txn is None or self.buffer.has_snapshot:
            self._write(write, fault)
            return
        self._set_aside.append((write, fault))
        if len(self._set_aside) == 1:
            seconds = self.world.dice("snapshot").choice((0.0, 0.02, 0.3, 2.0))
            self.world.after(seconds, self._take_snapshot)

    def _take_snapshot(self) -> None:
        if self.is_open:
            self.buffer.has_snapshot = True
            while self._set_aside:
                self._write(*self._set_aside.popleft())
            self.changed()

    def _write(self, write: _Write, fault: str | None) -> None:
        self._writing.append(write)
        dice = self.world.dice("storage")
        delay = 0.001 + dice.random() * 0.002
        if fault == "slow":
            delay += dice.choice((0.05, 1.0, 20.0))
        self._write_at = max(self._write_at, self.world.now + delay)
        if fault in {"fail", "fail_stored"}:
            self.world.at(self._write_at, lambda: self._fail_writes(keep_first=fault == "fail_stored"))
        else:
            self.world.at(self._write_at, self._write_one)

    def _write_one(self) -> None:
        if not self._writing:
            return
        write = self._writing.popleft()
        position = self._store(write)
        self._receipt(write.producer, write.send, position)
        self._close_finished()

    @property
    def stored_by(self) -> float:
        """The time at which all entries sent so far are stored: entries and markers are stored in order."""
        return max(self._write_at, self.world.now) if self._writing else self.world.now

    def close_when_stored(self, producer: Producer, done: Callable[[], None]) -> None:
        """Handle CLOSE_PRODUCER: the answer follows the receipts of entries that are being stored."""
        self._closing.append((producer, done))
        self._close_finished()

    def _close_finished(self) -> None:
        for producer, done in list(self._closing):
            unanswered = [*self._writing, *(write for write, _ in self._set_aside)]
            if all(write.producer is not producer for write in unanswered):
                self._closing.remove((producer, done))
                self.remove_producer(producer)
                done()

    def _store(self, write: _Write) -> Position:
        entry = write.entry
        position = self.append(entry)
        if self.deduplication is not None:
            self.deduplication.stored(write.producer.name, entry.highest_sequence_id, entry.chunk)
        return position

    def append(self, entry: Entry) -> Position:
        """Store an entry at once."""
        position = self.ledger.append(entry)
        if entry.txn is not None:
            if self._last is None and not self.buffer.has_snapshot and self.world.dice("snapshot").random() < 0.5:
                self._last = EARLIEST  # somebody asked for it while the first snapshot was taken
            self.buffer.stored(entry.txn, position)
        elif entry.marker is None and position <= self.max_read:
            self._last = position
        self.changed()
        return position

    @property
    def max_read(self) -> Position:
        """The last position to deliver: none while the first snapshot of transactions is taken."""
        return EARLIEST if self._set_aside else self.buffer.max_read

    def transaction_ended(self) -> None:
        """Dispatch after the end of a transaction."""
        self._last = None
        self.changed()

    def _fail_writes(self, *, keep_first: bool) -> None:
        """Close the producers, then refuse each entry, as on a failure of storage (`PersistentTopic.addFailed`)."""
        if not self._writing or not self.is_open:
            return
        failed, self._writing = list(self._writing), deque()
        if keep_first:
            self._store(failed[0])
        self.world.note(f"{self.name}: storage fails for {len(failed)} entries")
        for producer in list(self.producers.values()):
            self._close_producer(producer)
        for write in failed:
            highest = write.entry.highest_sequence_id
            self._send_error(write.producer, highest, PERSISTENCE_ERROR, "Bookie operation timeout")
        self._close_finished()
        if self.deduplication is not None:
            self.deduplication.failed()

    def crash(self) -> None:
        """Handle a kill of the broker: a part of the entries being stored is stored."""
        for _ in range(self.world.dice("storage").randint(0, len(self._writing))):
            self._store(self._writing.popleft())
        self._writing.clear()
        self.is_open = False
        self.ledger.close(written_until=self.world.now - self.world.dice("cursor").choice((0.0, 0.005, 0.1)))

    def unload(self, done: Callable[[], None]) -> None:
        """Close producers and consumers at once; entries being stored are stored, and their receipts are late."""
        for producer in list(self.producers.values()):
            self._close_producer(producer)
        for subscription in list(self.subscriptions.values()):
            self.disconnect(subscription)
        while self._writing:
            self._write_one()
        self.is_open = False
        self.ledger.close()
        done()

    def disconnect(self, subscription: Subscription) -> None:
        """Send CLOSE_CONSUMER to the consumers of a subscription."""
        for consumer in list(subscription.consumers):
            subscription.leave(consumer)
            consumer.connection.forget_consumer(consumer)
            consumer.connection.reply(commands.CloseConsumer(consumer.consumer_id, -1))

    def _close_producer(self, producer: Producer) -> None:
        self.producers.pop(producer.name, None)
        producer.connection.forget_producer(producer)
        producer.connection.reply(commands.CloseProducer(producer.producer_id, -1))

    def _receipt(self, producer: Producer, send: commands.Send, position: Position) -> None:
        highest = -1 if send.highest_sequence_id is None else send.highest_sequence_id
        receipt = commands.SendReceipt(
            producer.producer_id, send.sequence_id, commands.MessageId(*position), highest % (1 << 64)
        )
        # Receipts are in the order of storage: a late or lost one delays the next ones.
        producer.receipts_from = max(producer.receipts_from, self.world.now + self._faults.receipt_delay(producer))
        if producer.receipts_from < inf:
            producer.connection.reply_after(producer.receipts_from - self.world.now, receipt)

    @staticmethod
    def _send_error(producer: Producer, sequence_id: int, code: int, text: str) -> None:
        producer.connection.reply(commands.SendError(producer.producer_id, sequence_id, code, text))

    def terminate(self) -> None:
        """Accept no more entries, and notify every consumer that has acknowledged all (`topicTerminated`)."""
        self.ledger.terminate()
        for producer in list(self.producers.values()):
            self._close_producer(producer)
        for subscription in self.subscriptions.values():
            subscription.notify_end()

    def changed(self) -> None:
        """Dispatch after new entries."""
        for subscription in self.subscriptions.values():
            subscription.wake()

    # -- producers and consumers

    def remove_producer(self, producer: Producer) -> None:
        """Remove a producer that its client has closed or whose connection has ended."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    def remove_consumer(self, consumer: Consumer) -> None:
        """Remove a consumer that its client has closed or whose connection has ended."""
        subscription = consumer.subscription
        subscription.leave(consumer)
        if not subscription.cursor.durable and not subscription.consumers:
            self.subscriptions.pop(subscription.cursor.name, None)
            self.ledger.cursors.pop(subscription.cursor.name, None)

    def acknowledged(self, before: Position, cursor: Cursor) -> None:
        """Remove ledgers that no cursor needs after a cursor has moved, and write the cursor to disk later."""
        if cursor.durable and before[0] != cursor.mark[0]:
            self.ledger.trim(now=self.world.now)
        if cursor.is_dirty and not self._flushes:
            self._flushes = True
            self.world.at((self.world.now // FLUSH_SECONDS + 1) * FLUSH_SECONDS, self._flush)

    def _flush(self) -> None:
        self._flushes = False
        if self.is_open:
            for cursor in self.ledger.cursors.values():
                if cursor.is_dirty:
                    cursor.persist(self.world.now)

    def last_message_id(self, *, compacted: bool = False) -> commands.MessageId:
        """Return the answer to GET_LAST_MESSAGE_ID."""
        if self._last is None:
            # This is kept until a transaction ends (`PersistentTopic.updateLastDispatchablePosition`).
            self._last = EARLIEST if self._set_aside else self.buffer.last_dispatchable()
        position = self._last
        entries = self.ledger.entries
        is_there = position[1] >= 0 and position[0] in self.ledger.ledgers
        if compacted and self.ledger.horizon > EARLIEST and not (is_there and position > self.ledger.horizon):
            entries = self.ledger.compacted
            position = max(entries, default=EARLIEST)
        elif not is_there:
            return commands.MessageId(-1, -1)
        entry = entries.get(position)
        return commands.MessageId(
            *position, batch_index=entry.messages - 1 if entry is not None and entry.is_batch else -1
        )
