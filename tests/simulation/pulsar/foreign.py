"""A foreign consumer beside those of the program under test, without a network connection."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.commands import SubType
from tests.simulation.pulsar.dispatch import Consumer, Subscription
from tests.simulation.pulsar.ledgers import Position, words_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.pulsar.broker import Cluster


class ForeignConsumer:
    """A consumer that joins a subscription, handles some messages, and leaves.

    It acknowledges most messages individually, some batches in part if the broker supports it, requests the redelivery
    of some, and leaves with the rest unacknowledged. Most such clients assemble chunks, and handle a message when its
    last chunk has arrived; some do not support chunks, and handle each as a message.

    Args:
        cluster: has the topic.
        name: the topic-partition.
        subscription: the name of the subscription.
        kind: its type.
        seconds: the time until it leaves.
        meta: of Key_Shared.
        handled: called with the messages of an entry that it has acknowledged, as soon as the broker has processed it.
    """

    stream: Any

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        subscription: str,
        kind: SubType,
        seconds: float,
        meta: commands.KeySharedMeta | None,
        handled: Callable[[str, Position, Sequence[int]], None],
    ) -> None:
        self.stream = self
        self.is_writable = True
        self._cluster = cluster
        self._name = name
        self._handled = handled
        self._dice = cluster.world.dice("foreign")
        self._knows_chunks = self._dice.random() < 0.7
        self._chunks: dict[str, list[Position]] = {}
        self._consumer: Consumer | None = None
        topic = cluster.load(name)
        found = topic.subscriptions.get(subscription)
        if found is None:
            if subscription not in topic.ledger.cursors:
                return
            found = topic.subscriptions[subscription] = Subscription(topic, topic.ledger.cursors[subscription])
        if found.refusal(kind, meta) is not None or found.holder(kind, meta) is not None:
            return
        ranges = [(one.start, one.end) for one in meta.hash_ranges] if meta is not None else []
        self._consumer = Consumer(self, 1, found, f"foreign-{cluster.world.count('foreign')}", ranges=ranges)  # type: ignore[arg-type] - has the methods that it needs
        found.join(self._consumer, kind, meta)
        cluster.world.note(f"{self._consumer.name} joins {name}")
        self._flow(self._dice.choice((1, 3, 100)))
        cluster.world.after(seconds, self._leave)

    @property
    def _here(self) -> Consumer | None:
        consumer = self._consumer
        return consumer if consumer is not None and consumer.subscription.topic.is_open else None

    def _flow(self, permits: int) -> None:
        consumer = self._here
        if consumer is not None and consumer.subscription.dispatcher is not None:
            consumer.subscription.dispatcher.flow(consumer, permits)

    def _leave(self) -> None:
        consumer, self._consumer = self._here, None
        if consumer is not None:
            self._cluster.world.note(f"{consumer.name} leaves")
            consumer.subscription.topic.remove_consumer(consumer)

    # -- the interface of a connection

    def reply(self, command: commands.Command) -> None:
        """Handle a command of the broker."""
        if isinstance(command, commands.Message):
            draw = self._dice.random()
            positions = self._whole((command.ledger_id, command.entry_id))
            call = partial(self._handle, positions, draw)
            self._cluster.world.after(self._dice.choice((0.0, 0.01, 0.3)), call)

    def _whole(self, position: Position) -> Sequence[Position]:
        """Return the entries of the message that this one completes; empty if chunks of it are missing."""
        entry = self._cluster.storage[self._name].history[position]
        if entry.chunk is None or not self._knows_chunks:
            return [position]
        uuid, number, count = entry.chunk
        if number == 0:
            self._chunks[uuid] = []
        found = self._chunks.get(uuid)
        if found is None or len(found) != number:
            return []
        found.append(position)
        return self._chunks.pop(uuid) if number == count - 1 else []

    def forget_consumer(self, consumer: Consumer) -> None:
        """Handle that the topic has closed it."""
        self._consumer = None

    def _handle(self, positions: Sequence[Position], draw: float) -> None:
        consumer = self._here
        if consumer is None or consumer.subscription.dispatcher is None:
            return
        cursor = consumer.subscription.cursor
        if positions and not any(map(cursor.is_deleted, positions)):
            if draw < 0.7:
                self._acknowledge(consumer, positions, in_part=draw >= 0.5)
            elif draw < 0.85:
                consumer.subscription.dispatcher.redeliver(consumer, positions)
        self._flow(1)

    def _acknowledge(self, consumer: Consumer, positions: Sequence[Position], *, in_part: bool) -> None:
        topic, cursor = consumer.subscription.topic, consumer.subscription.cursor
        sent, handled = [], []
        for position in positions:
            entry = topic.ledger.entries.get(position)
            if entry is None:
                return
            left = cursor.partial.get(position, (1 << entry.messages) - 1)
            some = self._dice.randrange(left + 1) & left if in_part and topic.ledger.batch_indexes else left
            ack_set = () if some == left else words_of(left & ~some)
            sent.append(commands.MessageId(*position, ack_set=ack_set))
            handled.append((position, [n for n in range(entry.messages) if some >> n & 1]))
        consumer.subscription.acknowledge(consumer, commands.Ack(1, commands.AckType.Individual, tuple(sent), 1))
        for position, indexes in handled:
            self._handled(self._name, position, indexes)
