"""Dispatchers of broker 4.0.8, which distribute a subscription's entries to its consumers.

From `PersistentDispatcherSingleActiveConsumer`, `PersistentDispatcherMultipleConsumers`,
`PersistentStickyKeyDispatcherMultipleConsumers`, `SharedConsumerAssignor`, `Consumer` and the selectors of 4.0.8.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.commands import KeySharedMode, SubType
from tests.simulation.pulsar.entries import Entry, key_hash, murmur3
from tests.simulation.pulsar.ledgers import EARLIEST, Cursor, Position

if TYPE_CHECKING:
    from tests.simulation.pulsar.broker import Connection
    from tests.simulation.pulsar.topic import Topic

T = TypeVar("T")

CONSUMER_BUSY = 5
CONSUMER_ASSIGN_ERROR = 19

MAX_ENTRIES_AT_ONCE = 100
"""`dispatcherMaxReadBatchSize`."""

MAX_MESSAGES_IN_TURN = 20
"""`dispatcherMaxRoundRobinBatchSize`: messages that a consumer of a Shared subscription gets in one turn."""

FAILOVER_SECONDS = 1.0
"""`activeConsumerFailoverDelayTimeMillis`."""

RING_POINTS = 100
"""Points of each consumer in a ring of hashes."""

NO_HASH = -1
"""Placeholder for the hash of a delayed entry's key."""

BLOCKED_SECONDS = 0.05
"""Seconds after which a broker checks again whether a client has room for more; specific to the model."""


@dataclass
class Limits:
    """Configured limits of a broker.

    Attributes:
        consumer: maximum number of unacknowledged messages of a consumer; 0 for no limit.
        subscription: likewise, of all consumers of a subscription.
        tick_seconds: how early a delayed message may be delivered (`delayedDeliveryTickTimeMillis`).
    """

    consumer: int = 50_000
    subscription: int = 200_000
    tick_seconds: float = 1.0


@dataclass
class Pending:
    """An entry delivered to a consumer and not acknowledged."""

    messages: int
    key_hash: int


@dataclass
class Consumer:
    """One consumer of a subscription.

    Attributes:
        permits: the number of messages that it may still be sent.
        pending: entries delivered and not acknowledged; only with Shared and Key_Shared subscriptions.
        unacked: the number of messages in `pending`.
        is_blocked: whether `unacked` has reached the limit.
        withheld: permits received while it is blocked.
        left_others: whether it has left a subscription that has other consumers.
        was_closed: whether its client has closed it; otherwise its connection was lost.
        compacted: whether it reads the compacted ledger, as far as that goes.
        from_earliest: whether it starts at `MessageId.earliest`.
    """

    connection: Connection
    consumer_id: int
    subscription: Subscription
    name: str = ""
    priority: int = 0
    ranges: Sequence[tuple[int, int]] = ()
    permits: int = 0
    pending: dict[Position, Pending] = field(default_factory=dict)
    unacked: int = 0
    is_blocked: bool = False
    withheld: int = 0
    left_others: bool = False
    was_closed: bool = False
    compacted: bool = False
    from_earliest: bool = False

    @property
    def takes_more(self) -> bool:
        """Whether it may be sent entries."""
        return self.permits > 0 and not self.is_blocked

    def send(self, position: Position, entry: Entry, redeliveries: int, ack_set: tuple[int, ...], left: int) -> None:
        """Send it an entry with this number of unacknowledged messages."""
        self.permits -= left
        body = memoryview(self.subscription.topic.delivered(entry))
        self.connection.reply(commands.Message(self.consumer_id, *position, redeliveries, ack_set, body))

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Subscription:
    """A subscription of a loaded topic.

    Attributes:
        cursor: its position.
        dispatcher: serves its consumers; replaced when the type changes.
    """

    def __init__(self, topic: Topic, cursor: Cursor) -> None:
        self.topic = topic
        self.cursor = cursor
        self.dispatcher: Dispatcher | None = None

    @property
    def consumers(self) -> Sequence[Consumer]:
        """The connected consumers."""
        return self.dispatcher.consumers if self.dispatcher is not None else ()

    def refusal(self, kind: SubType, meta: commands.KeySharedMeta | None) -> tuple[int, str] | None:
        """Return the error for a consumer whose subscription type differs from that of the others; None if it suits."""
        dispatcher = self.dispatcher
        if dispatcher is None or not dispatcher.consumers:
            return None
        if not dispatcher.suits(kind, meta):
            return CONSUMER_BUSY, "Subscription is of different type"
        return None

    def holder(self, kind: SubType, meta: commands.KeySharedMeta | None) -> tuple[Consumer, int, str] | None:
        """Return the consumer that has exclusively what a new one requests, and the error code and text; or None."""
        dispatcher = self.dispatcher
        if kind is SubType.Exclusive and self.consumers:
            return self.consumers[0], CONSUMER_BUSY, "Exclusive consumer is already connected"
        if isinstance(dispatcher, KeyShared) and meta is not None and (one := dispatcher.overlapping(meta)) is not None:
            return one, CONSUMER_ASSIGN_ERROR, "Range conflict with consumer"
        return None

    def join(self, consumer: Consumer, kind: SubType, meta: commands.KeySharedMeta | None) -> None:
        """Add a consumer."""
        if self.dispatcher is None or not self.dispatcher.suits(kind, meta):
            self.dispatcher = _dispatcher(self, kind, meta)
        self.dispatcher.add(consumer)

    def leave(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        if self.dispatcher is not None and consumer in self.dispatcher.consumers:
            self.dispatcher.remove(consumer)

    def wake(self) -> None:
        """Dispatch after a change."""
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def notify_end(self) -> None:
        """Send REACHED_END_OF_TOPIC if the topic is terminated and everything is acknowledged."""
        if self.topic.ledger.is_terminated and not self.cursor.backlog:
            for consumer in self.consumers:
                consumer.connection.reply(commands.ReachedEndOfTopic(consumer.consumer_id))

    def acknowledge(self, consumer: Consumer, command: commands.Ack) -> None:
        """Handle an ACK of any type."""
        dispatcher, now = self.dispatcher, self.topic.world.now
        if dispatcher is None:
            return
        before = self.cursor.mark
        if command.ack_type is commands.AckType.Cumulative:
            if len(command.message_ids) == 1 and not isinstance(dispatcher, Shared):
                message_id = command.message_ids[0]
                self.cursor.mark_delete((message_id.ledger_id, message_id.entry_id), now=now)
        else:
            found = []
            for message_id in command.message_ids:
                position = message_id.ledger_id, message_id.entry_id
                dispatcher.acknowledging(consumer, position, message_id.ack_set)
                found.append((position, message_id.ack_set))
            self.cursor.delete(found, now=now)
            dispatcher.acknowledged([position for position, _ in found])
        self.topic.acknowledged(before, self.cursor)


class Dispatcher:
    """A dispatcher, which serves the consumers of one subscription.

    Attributes:
        consumers: in the order of their turns.
    """

    def __init__(self, subscription: Subscription, kind: SubType) -> None:
        self.subscription = subscription
        self.topic = subscription.topic
        self.cursor = subscription.cursor
        self.world = subscription.topic.world
        self.kind = kind
        self.consumers: list[Consumer] = []
        self._due = False

    def suits(self, kind: SubType, meta: commands.KeySharedMeta | None) -> bool:
        """Return whether it can serve such a consumer."""
        return kind is self.kind

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        raise NotImplementedError

    def remove(self, consumer: Consumer) -> None:
        """Remove a consumer."""
        raise NotImplementedError

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Handle FLOW."""
        consumer.permits += permits
        self.wake()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """Handle REDELIVER_UNACKNOWLEDGED_MESSAGES."""
        raise NotImplementedError

    def acknowledging(self, consumer: Consumer, position: Position, ack_set: tuple[int, ...]) -> None:
        """Prepare for the acknowledgement of an entry, or a part of it, by a consumer."""

    def acknowledged(self, positions: Iterable[Position]) -> None:
        """Update the state after entries were acknowledged."""

    def wake(self) -> None:
        """Dispatch a little later."""
        if not self._due and self.consumers:
            self._due = True
            self.world.after(self.world.dice("dispatch").random() * 0.002, self._woken)

    def _woken(self) -> None:
        self._due = False
        if self.topic.is_open and self.consumers:
            self.dispatch()

    def dispatch(self) -> None:
        """Send the entries that can be sent."""
        raise NotImplementedError

    def _wake_later(self) -> None:
        self._due = True
        self.world.after(BLOCKED_SECONDS, self._woken)

    def _read(self) -> tuple[Position, Entry] | None:
        """Return the next entry to deliver from the cursor's read position."""
        topic, cursor = self.topic, self.cursor
        while True:
            found = topic.ledger.read_at(cursor.read)
            if found is None or found[0] > topic.max_read:
                return None
            position, entry = found
            cursor.read = position[0], position[1] + 1
            if not self._is_hidden(position, entry):
                return found

    def _is_hidden(self, position: Position, entry: Entry) -> bool:
        if self.cursor.is_deleted(position):
            return True
        if self.topic.buffer.hides(entry):
            # The broker acknowledges entries that it does not deliver.
            self.cursor.delete([(position, ())], now=self.world.now)
            return True
        return False


class SingleActive(Dispatcher):
    """Dispatcher of Exclusive and Failover: one consumer gets all unacknowledged entries in order."""

    def __init__(self, subscription: Subscription, kind: SubType) -> None:
        super().__init__(subscription, kind)
        self.active: Consumer | None = None
        self._reads_from = 0.0
        self._is_first_read = True

    def add(self, consumer: Consumer) -> None:
        """See `Dispatcher`."""
        if not self.consumers:
            self._is_first_read = True
            if consumer.compacted:
                self._open_compacted_ledger()
        self.consumers.append(consumer)
        if not self._pick():
            self._notify(consumer)

    def _open_compacted_ledger(self) -> None:
        seconds = self.world.dice("compaction").choice((0.0, 0.0, 0.3, 2.0))
        self._reads_from = self.world.now + seconds
        self.world.after(seconds, self.wake)

    def remove(self, consumer: Consumer) -> None:
        """See `Dispatcher`."""
        self.consumers.remove(consumer)
        if self.consumers:
            self._pick()
        else:
            self.active = None
            # Entries that were delivered and not acknowledged are redelivered.
            self._rewind()

    def _pick(self) -> bool:
        """Choose the active consumer; return whether it has changed."""
        self.consumers.sort(key=lambda consumer: (consumer.priority, consumer.name))
        first = [one for one in self.consumers if one.priority == self.consumers[0].priority]
        partition = self.topic.name.rpartition("-partition-")[2]
        if partition.isdigit():
            chosen = first[int(partition) % len(first)]
        else:
            names = {one.name: one for one in first}
            chosen = names[active_name(self.topic.name, list(names))]
        if chosen is self.active:
            return False
        self.active = chosen
        if self.kind is SubType.Failover:
            # Until then the previous consumer can acknowledge its entries.
            self._reads_from = self.world.now + FAILOVER_SECONDS
            self.world.after(FAILOVER_SECONDS, lambda: self._begin(chosen))
        else:
            self._rewind()
        return True

    def _begin(self, chosen: Consumer) -> None:
        if self.active is chosen and self.world.now >= self._reads_from and self.topic.is_open:
            self._rewind()
            for consumer in self.consumers:
                self._notify(consumer)
            self.wake()

    def _notify(self, consumer: Consumer) -> None:
        if self.kind is SubType.Failover:
            consumer.connection.reply(commands.ActiveConsumerChange(consumer.consumer_id, consumer is self.active))

    def _rewind(self) -> None:
        self.cursor.rewind()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """See `Dispatcher`; redeliver everything, whichever positions are given, and count no redelivery."""
        if consumer is self.active and self.world.now >= self._reads_from:
            self._rewind()
            self.wake()

    def _read(self) -> tuple[Position, Entry] | None:
        """Return the next entry of the compacted ledger, if the consumer reads it, then of the topic.

        From `CompactedTopicUtils` of 4.0.8. The cursor may be past the entries of the compacted ledger, whose originals
        are removed: only the first read of a consumer that starts at `MessageId.earliest` begins before it.
        """
        assert self.active is not None
        ledger, cursor = self.topic.ledger, self.cursor
        begin = EARLIEST if self._is_first_read and self.active.from_earliest else cursor.read
        self._is_first_read = False
        if not self.active.compacted or begin > ledger.horizon:
            return super()._read()
        at = min((at for at in ledger.compacted if at >= begin), default=None)
        if at is None:
            after = ledger.horizon[0], ledger.horizon[1] + 1
            cursor.read = after if cursor.mark < after else ledger.next_valid(cursor.mark)
            return super()._read()
        cursor.read = at[0], at[1] + 1
        return at, ledger.compacted[at]

    def dispatch(self) -> None:
        """See `Dispatcher`."""
        consumer, topic = self.active, self.topic
        if consumer is None or consumer.permits <= 0 or self.world.now < self._reads_from:
            return
        if not consumer.connection.stream.is_writable:
            self._wake_later()
            return
        # The broker estimates the messages per entry, and from them the number of entries to read.
        most = min(consumer.permits, MAX_ENTRIES_AT_ONCE)
        for _ in range(topic.world.dice("dispatch").randint(1, most)):
            if consumer.permits <= 0:
                break
            found = self._read()
            if found is None:
                self.subscription.notify_end()
                return
            position, entry = found
            ack_set, left = self.cursor.left(position, entry)
            consumer.send(position, entry, 0, ack_set, left)
        self.wake()


class Shared(Dispatcher):
    """Dispatcher of Shared: consumers get entries in turn, by priority; redeliveries go to the next in turn.

    Attributes:
        looks_ahead: whether new entries are read while no consumer has room for the redeliveries.
    """

    looks_ahead = False

    def __init__(self, subscription: Subscription, kind: SubType) -> None:
        super().__init__(subscription, kind)
        self.replays: dict[Position, int] = {}
        """Entries to redeliver: the hash of the key, by position."""
        self.redeliveries: dict[Position, int] = {}
        self.unacked = 0
        self.is_blocked = False
        self.delayed: dict[Position, int] = {}
        """Delayed entries: the time of delivery, by position."""
        self._turn = 0
        self._of_message: dict[str, Consumer] = {}

    def add(self, consumer: Consumer) -> None:
        """See `Dispatcher`."""
        if not self.consumers:
            self.cursor.rewind()
            self.replays.clear()
            self.delayed.clear()
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda one: one.priority)

    def remove(self, consumer: Consumer) -> None:
        """See `Dispatcher`."""
        self._count(-consumer.unacked)
        self.consumers.remove(consumer)
        if not self.consumers:
            self.replays.clear()
            self.redeliveries.clear()
            self.cursor.rewind()
            return
        for position, pending in consumer.pending.items():
            self.replays[position] = pending.key_hash
        consumer.pending.clear()
        consumer.left_others = True
        self.wake()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """See `Dispatcher`."""
        most = self.topic.limits.consumer
        if most and consumer.unacked >= most:
            consumer.is_blocked = True
        if consumer.is_blocked:
            consumer.withheld += permits
        else:
            super().flow(consumer, permits)

    def _unblock(self, consumer: Consumer) -> None:
        consumer.is_blocked = False
        if consumer.withheld:
            permits, consumer.withheld = consumer.withheld, 0
            super().flow(consumer, permits)

    def _count(self, messages: int) -> None:
        self.unacked += messages
        most = self.topic.limits.subscription
        if most and messages > 0 and self.unacked >= most:
            self.is_blocked = True
        elif self.is_blocked and self.unacked < most // 2:
            self.is_blocked = False
            self.wake()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """See `Dispatcher`."""
        returned = [position for position in positions or list(consumer.pending) if position in consumer.pending]
        for position in returned:
            pending = consumer.pending.pop(position)
            consumer.unacked -= pending.messages
            self._count(-pending.messages)
            self.replays[position] = pending.key_hash
            self.redeliveries[position] = self.redeliveries.get(position, 0) + 1
        self._unblock(consumer)
        self.wake()

    def acknowledging(self, consumer: Consumer, position: Position, ack_set: tuple[int, ...]) -> None:
        """See `Dispatcher`."""
        owner = next((one for one in [consumer, *self.consumers] if position in one.pending), None)
        if owner is None:
            return
        pending = owner.pending[position]
        if ack_set:
            messages = self.cursor.newly_acked(position, ack_set, pending.messages)
            pending.messages -= messages
        else:
            messages = owner.pending.pop(position).messages
        owner.unacked -= messages
        self._count(-messages)
        if owner.is_blocked and owner.unacked <= self.topic.limits.consumer // 2:
            self._unblock(owner)

    def acknowledged(self, positions: Iterable[Position]) -> None:
        """See `Dispatcher`."""
        for position in positions:
            if self.cursor.is_deleted(position):
                self.redeliveries.pop(position, None)
        self.wake()

    def dispatch(self) -> None:
        """See `Dispatcher`."""
        permits = sum(max(one.permits, 0) for one in self.consumers if one.takes_more)
        if not permits:
            return
        if not all(one.connection.stream.is_writable for one in self.consumers if one.takes_more):
            self._wake_later()
            return
        most = min(permits, MAX_ENTRIES_AT_ONCE)
        found = self._replayed(most)
        if found and self._send(found, is_replay=True):
            self.wake()
        elif not found or self.looks_ahead:
            self._read_on(most)

    def _read_on(self, most: int) -> None:
        if self.is_blocked:
            return
        found = []
        while len(found) < most and (one := self._read()) is not None:
            found.append(one)
        if found:
            self._send(found, is_replay=False)
            self.wake()

    def _replayed(self, most: int) -> list[tuple[Position, Entry]]:
        """Return the entries to redeliver now, and the delayed ones that are due; oldest first."""
        for position in [position for position, deliver_at in self.delayed.items() if self._is_due(deliver_at)]:
            del self.delayed[position]
            self.replays[position] = NO_HASH
        found = []
        for position in sorted(self.replays):
            entry = self.topic.ledger.entries.get(position)
            if entry is None or self._is_hidden(position, entry):
                del self.replays[position]
            elif len(found) < most and self._can_replay(self.replays[position]):
                found.append((position, entry))
        return found

    def _can_replay(self, key_hash: int) -> bool:
        return True

    def _send(self, found: list[tuple[Position, Entry]], *, is_replay: bool) -> bool:
        """Distribute entries and keep the rest for later; return whether any was sent."""
        if any(entry.chunk is not None for _, entry in found):
            return self._send_chunks(found)
        average = max(sum(entry.messages for _, entry in found) // len(found), 1)
        left = sum(entry.messages for _, entry in found)
        at = 0
        while at < len(found) and (consumer := self._next()) is not None:
            permits = consumer.permits
            if self.topic.limits.consumer:
                permits = min(permits, max(self.topic.limits.consumer - consumer.unacked, 0))
            end = at + max(min(left, permits, MAX_MESSAGES_IN_TURN) // average, 1)
            for position, entry in found[at:end]:
                self.deliver(consumer, position, entry)
                left -= entry.messages
            at = end
        for position, entry in found[at:]:
            self.replays[position] = self.hash_of(entry)
        return at > 0

    def _send_chunks(self, found: list[tuple[Position, Entry]]) -> bool:
        """Send all chunks of a message to the consumer that got the first one (`SharedConsumerAssignor`).

        They are assigned to that consumer even after it left, as long as it had permits then.
        """
        shares: dict[Consumer, list[tuple[Position, Entry]]] = {}
        permits: dict[Consumer, int] = {}
        current, left = None, 0
        for position, entry in found:
            if left <= 0 and (current := self._next()) is not None:
                left = permits[current] = current.permits
            consumer = current if entry.chunk is None or current is None else self._of_chunk(entry, current)
            if consumer is None or permits.setdefault(consumer, consumer.permits) <= 0:
                self.replays[position] = self.hash_of(entry)
                continue
            if entry.chunk is not None and entry.chunk[1] == entry.chunk[2] - 1:
                self._of_message.pop(entry.chunk[0], None)
            # The broker counts so, whichever consumer gets the entry.
            permits[consumer] = left - 1
            left -= 1
            shares.setdefault(consumer, []).append((position, entry))
        for consumer, entries in shares.items():
            most = consumer.permits
            for position, entry in entries[:most]:
                self.deliver(consumer, position, entry)
            for position, entry in entries[most:]:
                self.replays[position] = self.hash_of(entry)
        return bool(shares)

    def _of_chunk(self, entry: Entry, current: Consumer) -> Consumer | None:
        """Return the consumer that has the message of a chunk: for a first chunk, the one in turn."""
        assert entry.chunk is not None
        uuid, number, _ = entry.chunk
        if uuid not in self._of_message and number == 0:
            self._of_message[uuid] = current
        return self._of_message.get(uuid)

    @property
    def stranded(self) -> Mapping[str, Consumer]:
        """Messages whose chunks are assigned to a consumer that left without permits, so no consumer gets them."""
        return {
            uuid: consumer
            for uuid, consumer in self._of_message.items()
            if consumer not in self.consumers and consumer.permits <= 0
        }

    def deliver(self, consumer: Consumer, position: Position, entry: Entry) -> None:
        """Deliver an entry to a consumer, or keep it if its delivery is delayed."""
        self.replays.pop(position, None)
        if entry.deliver_at is not None and not self._is_due(entry.deliver_at):
            self.delayed[position] = entry.deliver_at
            self._wake_at(entry.deliver_at)
            return
        if consumer not in self.consumers:
            # A chunk of a consumer that left: no consumer gets it until the cursor is rewound.
            if not consumer.left_others:
                consumer.send(position, entry, 0, (), entry.messages)
            return
        ack_set, left = self.cursor.left(position, entry)
        consumer.pending[position] = Pending(left, self.hash_of(entry))
        consumer.unacked += left
        if self.topic.limits.consumer and consumer.unacked >= self.topic.limits.consumer:
            consumer.is_blocked = True
        self._count(left)
        consumer.send(position, entry, self.redeliveries.get(position, 0), ack_set, left)

    def _is_due(self, deliver_at: int) -> bool:
        """Return whether an entry is due, which may be a tick too early (`isDelayedDeliveryDeliverAtTimeStrict`)."""
        return deliver_at <= (self.world.wall + self.topic.limits.tick_seconds) * 1000

    def _wake_at(self, deliver_at: int) -> None:
        """Dispatch when an entry is due, even if the clock is moved back meanwhile."""

        def due() -> None:
            if self._is_due(deliver_at):
                self.wake()
            elif deliver_at in self.delayed.values() and self.topic.is_open:
                self._wake_at(deliver_at)

        self.world.after(max(deliver_at / 1000 - self.world.wall, 0.001), due)

    def hash_of(self, entry: Entry) -> int:
        """Return the hash by which entries are distributed; always 0 here."""
        return 0

    def _next(self) -> Consumer | None:
        """Return the consumer in turn, among those of the highest priority that have room."""
        count = len(self.consumers)
        if self._turn >= count:
            self._turn = 0
        takers = [n for n, one in enumerate(self.consumers) if one.takes_more]
        if not takers:
            return None
        highest = self.consumers[takers[0]].priority
        level = [n for n in takers if self.consumers[n].priority == highest]
        found = next((n for n in level if n >= self._turn), level[0])
        self._turn = found + 1
        return self.consumers[found]


class KeyShared(Shared):
    """Dispatcher of Key_Shared: the messages of a key go to one consumer, in order."""

    looks_ahead = True

    def __init__(self, subscription: Subscription, meta: commands.KeySharedMeta) -> None:
        super().__init__(subscription, SubType.Key_Shared)
        self.mode = meta.key_shared_mode
        self.in_any_order = meta.allow_out_of_order_delivery
        self._numbers: dict[Consumer, int] = {}
        self._ring: dict[int, list[Consumer]] = {}
        self._blocked: set[int] = set()
        self._taken: dict[Consumer, int] = {}

    def suits(self, kind: SubType, meta: commands.KeySharedMeta | None) -> bool:
        """See `Dispatcher`."""
        meta = meta or commands.KeySharedMeta(KeySharedMode.AUTO_SPLIT)
        policy = meta.key_shared_mode, meta.allow_out_of_order_delivery
        return kind is self.kind and policy == (self.mode, self.in_any_order)

    def overlapping(self, meta: commands.KeySharedMeta) -> Consumer | None:
        """Return a consumer whose ranges overlap these, or None."""
        for one in self.consumers:
            for start, end in one.ranges:
                if any(mine.start <= end and start <= mine.end for mine in meta.hash_ranges):
                    return one
        return None

    def add(self, consumer: Consumer) -> None:
        """See `Dispatcher`."""
        super().add(consumer)
        if self.mode is KeySharedMode.AUTO_SPLIT:
            used = {number for one, number in self._numbers.items() if one.name == consumer.name}
            number = self._numbers[consumer] = next(n for n in range(len(used) + 1) if n not in used)
            for point in self._points(consumer, number):
                self._ring.setdefault(point, []).append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """See `Dispatcher`."""
        if self.mode is KeySharedMode.AUTO_SPLIT:
            for point in self._points(consumer, self._numbers.pop(consumer)):
                self._ring[point].remove(consumer)
                if not self._ring[point]:
                    del self._ring[point]
        super().remove(consumer)

    @staticmethod
    def _points(consumer: Consumer, number: int) -> list[int]:
        found = {key_hash(f"{consumer.name}\0{number}\0{n}".encode()) for n in range(RING_POINTS)}
        return sorted(found)

    def hash_of(self, entry: Entry) -> int:
        """See `Shared`."""
        return murmur3(entry.key) % 65536 or 1 if self.mode is KeySharedMode.STICKY else key_hash(entry.key)

    def chosen(self, of_key: int) -> Consumer | None:
        """Return the consumer to which a hash belongs."""
        if self.mode is KeySharedMode.STICKY:
            return next((c for c in self.consumers if any(start <= of_key <= end for start, end in c.ranges)), None)
        return _behind(self._ring, of_key)[0] if self._ring else None

    def _is_draining(self, consumer: Consumer, of_key: int) -> bool:
        """Return whether another consumer, which had the key before, has unacknowledged messages of it."""
        if self.mode is KeySharedMode.STICKY or self.in_any_order:
            return False
        return any(
            pending.key_hash == of_key
            for one in self.consumers
            if one is not consumer
            for pending in one.pending.values()
        )

    def _replayed(self, most: int) -> list[tuple[Position, Entry]]:
        self._blocked.clear()
        self._taken.clear()
        return super()._replayed(most)

    def _can_replay(self, of_key: int) -> bool:
        if self.in_any_order or of_key == NO_HASH:
            return True
        consumer = None if of_key in self._blocked else self.chosen(of_key)
        if consumer is None or not self._has_permit(consumer) or self._is_draining(consumer, of_key):
            self._blocked.add(of_key)
            return False
        self._taken[consumer] = self._taken.get(consumer, 0) + 1
        return True

    def _has_permit(self, consumer: Consumer) -> bool:
        return consumer.takes_more and consumer.permits > self._taken.get(consumer, 0)

    def _send(self, found: list[tuple[Position, Entry]], *, is_replay: bool) -> bool:
        self._taken.clear()
        blocked: set[int] = set()
        chosen: list[tuple[Consumer, Position, Entry]] = []
        for position, entry in found:
            of_key = self.hash_of(entry)
            consumer = None if of_key in blocked else self.chosen(of_key)
            waits = not is_replay and of_key in self.replays.values()
            if consumer is None or not self._has_permit(consumer) or waits or self._is_draining(consumer, of_key):
                blocked.add(of_key)
                self.replays[position] = of_key
            else:
                self._taken[consumer] = self._taken.get(consumer, 0) + 1
                chosen.append((consumer, position, entry))
        for consumer, position, entry in chosen:
            self.deliver(consumer, position, entry)
        return bool(chosen)


def active_name(topic: str, names: Sequence[str]) -> str:
    """Return the name of the active consumer in a Failover subscription of a topic without partitions."""
    ring = {murmur3(f"{name}{n}".encode()): name for name in sorted(names) for n in range(RING_POINTS)}
    return _behind(ring, murmur3(topic.encode()))


def _behind(ring: dict[int, T], at: int) -> T:
    """Return the value at a hash or at the next one on the ring."""
    points = sorted(ring)
    return ring[points[bisect.bisect_left(points, at) % len(points)]]


def _dispatcher(subscription: Subscription, kind: SubType, meta: commands.KeySharedMeta | None) -> Dispatcher:
    if kind is SubType.Key_Shared:
        return KeyShared(subscription, meta or commands.KeySharedMeta(KeySharedMode.AUTO_SPLIT))
    if kind is SubType.Shared:
        return Shared(subscription, kind)
    return SingleActive(subscription, kind)
