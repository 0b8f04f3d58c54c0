"""Who of a subscription's consumers gets which entries: the dispatchers of broker 4.0.8.

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
from tests.simulation.pulsar.ledgers import Cursor, Position

if TYPE_CHECKING:
    from tests.simulation.pulsar.broker import Connection
    from tests.simulation.pulsar.topic import Topic

T = TypeVar("T")

CONSUMER_BUSY = 5
CONSUMER_ASSIGN_ERROR = 19

MAX_ENTRIES_AT_ONCE = 100
"""`dispatcherMaxReadBatchSize`."""

MAX_MESSAGES_IN_TURN = 20
"""`dispatcherMaxRoundRobinBatchSize`: what one consumer of a Shared subscription gets before it is another's turn."""

FAILOVER_SECONDS = 1.0
"""`activeConsumerFailoverDelayTimeMillis`."""

RING_POINTS = 100
"""Of each consumer in a ring of hashes."""

NO_HASH = -1
"""In place of the hash of a key: of an entry that was delayed."""

BLOCKED_SECONDS = 0.05
"""How soon a broker looks again whether a client takes more; the model's own."""


@dataclass
class Limits:
    """What a broker is configured to.

    Attributes:
        consumer: how many messages of a consumer may be unacknowledged; 0 for any number.
        subscription: the same of all consumers of a subscription.
        tick_seconds: by how much a delayed message may come too early (`delayedDeliveryTickTimeMillis`).
    """

    consumer: int = 50_000
    subscription: int = 200_000
    tick_seconds: float = 1.0


@dataclass
class Pending:
    """An entry that a consumer has and has not acknowledged."""

    messages: int
    key_hash: int


@dataclass
class Consumer:
    """One consumer of a subscription.

    Attributes:
        permits: how many messages it takes still.
        pending: what it has and has not acknowledged; of Shared and Key_Shared subscriptions only.
        unacked: messages in there.
        is_blocked: whether it has too many of them.
        withheld: permits that came meanwhile.
        left_others: whether it has left, and there were others.
        was_closed: whether its client has closed it; otherwise its connection was lost.
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

    @property
    def takes_more(self) -> bool:
        """True if it may be sent something."""
        return self.permits > 0 and not self.is_blocked

    def send(self, position: Position, entry: Entry, redeliveries: int, ack_set: tuple[int, ...], left: int) -> None:
        """Give it an entry, of which so many messages are left."""
        self.permits -= left
        body = memoryview(self.subscription.topic.delivered(entry))
        self.connection.reply(commands.Message(self.consumer_id, *position, redeliveries, ack_set, body))

    __hash__ = object.__hash__
    __eq__ = object.__eq__


class Subscription:
    """A subscription of a loaded topic.

    Attributes:
        cursor: where it is.
        dispatcher: serves its consumers; made anew when the type changes.
    """

    def __init__(self, topic: Topic, cursor: Cursor) -> None:
        self.topic = topic
        self.cursor = cursor
        self.dispatcher: Dispatcher | None = None

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Who is connected."""
        return self.dispatcher.consumers if self.dispatcher is not None else ()

    def refusal(self, kind: SubType, meta: commands.KeySharedMeta | None) -> tuple[int, str] | None:
        """Return why somebody cannot join who asks for this, whoever else is there."""
        dispatcher = self.dispatcher
        if dispatcher is None or not dispatcher.consumers:
            return None
        if not dispatcher.suits(kind, meta):
            return CONSUMER_BUSY, "Subscription is of different type"
        return None

    def holder(self, kind: SubType, meta: commands.KeySharedMeta | None) -> tuple[Consumer, int, str] | None:
        """Return who has what somebody asks for that only one can have, and with which error that is refused."""
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
        """Note that it is gone."""
        if self.dispatcher is not None and consumer in self.dispatcher.consumers:
            self.dispatcher.remove(consumer)

    def wake(self) -> None:
        """Something has changed."""
        if self.dispatcher is not None:
            self.dispatcher.wake()

    def tell_end(self) -> None:
        """REACHED_END_OF_TOPIC, where the topic is terminated and nothing is left to acknowledge."""
        if self.topic.ledger.is_terminated and not self.cursor.backlog:
            for consumer in self.consumers:
                consumer.connection.reply(commands.ReachedEndOfTopic(consumer.consumer_id))

    def acknowledge(self, consumer: Consumer, command: commands.Ack) -> None:
        """ACK, of whatever type."""
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
    """Serves the consumers of one subscription.

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
        """FLOW."""
        consumer.permits += permits
        self.wake()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """REDELIVER_UNACKNOWLEDGED_MESSAGES."""
        raise NotImplementedError

    def acknowledging(self, consumer: Consumer, position: Position, ack_set: tuple[int, ...]) -> None:
        """Note that this consumer is about to acknowledge an entry, or a part of it."""

    def acknowledged(self, positions: Iterable[Position]) -> None:
        """Note that these have been acknowledged."""

    def wake(self) -> None:
        """Dispatches, a little later."""
        if not self._due and self.consumers:
            self._due = True
            self.world.after(self.world.dice("dispatch").random() * 0.002, self._woken)

    def _woken(self) -> None:
        self._due = False
        if self.topic.is_open and self.consumers:
            self.dispatch()

    def dispatch(self) -> None:
        """Send what can be sent."""
        raise NotImplementedError

    def _wake_later(self) -> None:
        self._due = True
        self.world.after(BLOCKED_SECONDS, self._woken)

    def _read(self) -> tuple[Position, Entry] | None:
        """Return the next entry that is to be delivered, where the cursor reads."""
        topic, cursor = self.topic, self.cursor
        while True:
            found = topic.ledger.read_at(cursor.read)
            if found is None or found[0] > topic.buffer.max_read:
                return None
            position, entry = found
            cursor.read = position[0], position[1] + 1
            if not self._is_hidden(position, entry):
                return found

    def _is_hidden(self, position: Position, entry: Entry) -> bool:
        if self.cursor.is_deleted(position):
            return True
        if self.topic.buffer.hides(entry):
            # What is not delivered the broker acknowledges by itself.
            self.cursor.delete([(position, ())], now=self.world.now)
            return True
        return False


class SingleActive(Dispatcher):
    """Exclusive and Failover: one consumer gets everything, in order, from what is not acknowledged on."""

    def __init__(self, subscription: Subscription, kind: SubType) -> None:
        super().__init__(subscription, kind)
        self.active: Consumer | None = None
        self._reads_from = 0.0

    def add(self, consumer: Consumer) -> None:
        """See `Dispatcher`."""
        self.consumers.append(consumer)
        if not self._pick():
            self._tell(consumer)

    def remove(self, consumer: Consumer) -> None:
        """See `Dispatcher`."""
        self.consumers.remove(consumer)
        if self.consumers:
            self._pick()
        else:
            self.active = None
            # What was delivered and not acknowledged is delivered again.
            self._rewind()

    def _pick(self) -> bool:
        """Return who is active now; whether that is another one."""
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
            # So long the one before has to acknowledge what it has.
            self._reads_from = self.world.now + FAILOVER_SECONDS
            self.world.after(FAILOVER_SECONDS, lambda: self._begin(chosen))
        else:
            self._rewind()
        return True

    def _begin(self, chosen: Consumer) -> None:
        if self.active is chosen and self.world.now >= self._reads_from and self.topic.is_open:
            self._rewind()
            for consumer in self.consumers:
                self._tell(consumer)
            self.wake()

    def _tell(self, consumer: Consumer) -> None:
        if self.kind is SubType.Failover:
            consumer.connection.reply(commands.ActiveConsumerChange(consumer.consumer_id, consumer is self.active))

    def _rewind(self) -> None:
        self.cursor.rewind()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """See `Dispatcher`; everything, whatever is named, and without a count."""
        if consumer is self.active and self.world.now >= self._reads_from:
            self._rewind()
            self.wake()

    def dispatch(self) -> None:
        """See `Dispatcher`."""
        consumer, topic = self.active, self.topic
        if consumer is None or consumer.permits <= 0 or self.world.now < self._reads_from:
            return
        if not consumer.connection.stream.is_writable:
            self._wake_later()
            return
        # The broker guesses how many messages an entry holds, and so how many entries to read.
        most = min(consumer.permits, MAX_ENTRIES_AT_ONCE)
        for _ in range(topic.world.dice("dispatch").randint(1, most)):
            if consumer.permits <= 0:
                break
            found = self._read()
            if found is None:
                self.subscription.tell_end()
                return
            position, entry = found
            ack_set, left = self.cursor.left(position, entry)
            consumer.send(position, entry, 0, ack_set, left)
        self.wake()


class Shared(Dispatcher):
    """Shared: everybody gets something, in turn by priority; what comes back goes to whoever is next.

    Attributes:
        looks_ahead: whether entries are read on while nobody takes those that are to be delivered again.
    """

    looks_ahead = False

    def __init__(self, subscription: Subscription, kind: SubType) -> None:
        super().__init__(subscription, kind)
        self.replays: dict[Position, int] = {}
        """What is to be delivered again, by position: the hash of its key."""
        self.redeliveries: dict[Position, int] = {}
        self.unacked = 0
        self.is_blocked = False
        self.delayed: dict[Position, int] = {}
        """What is delivered later, and when."""
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
        """Return what is delivered again now, or was delayed until now; oldest first."""
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
        """Shares entries out; what nobody takes is kept for later. Whether anything was sent."""
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
        """Return the chunks of a message go to one consumer, who has got the first of them (`SharedConsumerAssignor`).

        That one may be gone, and then it has them all the same, as long as it had permits when it left.
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
            # So it is, whoever has it.
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
        """Return who has the message of a chunk; whose turn it is, for the first one."""
        assert entry.chunk is not None
        uuid, number, _ = entry.chunk
        if uuid not in self._of_message and number == 0:
            self._of_message[uuid] = current
        return self._of_message.get(uuid)

    @property
    def stranded(self) -> Mapping[str, Consumer]:
        """Messages whose chunks go to somebody who is gone, and took no more: nobody gets them."""
        return {
            uuid: consumer
            for uuid, consumer in self._of_message.items()
            if consumer not in self.consumers and consumer.permits <= 0
        }

    def deliver(self, consumer: Consumer, position: Position, entry: Entry) -> None:
        """Give a consumer an entry, which it has until it is acknowledged; unless it is to be delivered later."""
        self.replays.pop(position, None)
        if entry.deliver_at is not None and not self._is_due(entry.deliver_at):
            self.delayed[position] = entry.deliver_at
            self._wake_at(entry.deliver_at)
            return
        if consumer not in self.consumers:
            # The chunk of one that is gone: nobody has it until the subscription is read anew.
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
        """Return whether an entry is due: it may come a tick too early (`isDelayedDeliveryDeliverAtTimeStrict`)."""
        return deliver_at <= (self.world.wall + self.topic.limits.tick_seconds) * 1000

    def _wake_at(self, deliver_at: int) -> None:
        """Dispatches when an entry is due, also if the clock is moved back meanwhile."""

        def due() -> None:
            if self._is_due(deliver_at):
                self.wake()
            elif deliver_at in self.delayed.values() and self.topic.is_open:
                self._wake_at(deliver_at)

        self.world.after(max(deliver_at / 1000 - self.world.wall, 0.001), due)

    def hash_of(self, entry: Entry) -> int:
        """By which its consumers share entries out; nothing here."""
        return 0

    def _next(self) -> Consumer | None:
        """Whose turn it is: of the highest priority that takes more, one after the other."""
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
    """Key_Shared: the messages of a key go to one consumer, in order."""

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
        """Somebody who has a part of these ranges."""
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
        """Whose this hash is."""
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
    """Return which of these is active in a Failover subscription of a topic without partitions."""
    ring = {murmur3(f"{name}{n}".encode()): name for name in sorted(names) for n in range(RING_POINTS)}
    return _behind(ring, murmur3(topic.encode()))


def _behind(ring: dict[int, T], at: int) -> T:
    """Return who is at a hash or behind it."""
    points = sorted(ring)
    return ring[points[bisect.bisect_left(points, at) % len(points)]]


def _dispatcher(subscription: Subscription, kind: SubType, meta: commands.KeySharedMeta | None) -> Dispatcher:
    if kind is SubType.Key_Shared:
        return KeyShared(subscription, meta or commands.KeySharedMeta(KeySharedMode.AUTO_SPLIT))
    if kind is SubType.Shared:
        return Shared(subscription, kind)
    return SingleActive(subscription, kind)
