"""A consumer of somebody else's, beside those of the program under test; it does without a connection."""

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
    """Joins a subscription, handles some of what it gets, and leaves.

    It acknowledges most entries, one by one, some of them in part where the broker can, has some delivered again, and
    leaves with the rest of them.

    Args:
        cluster: where.
        name: the topic-partition.
        subscription: which.
        kind: its type.
        seconds: how long it stays.
        meta: of Key_Shared.
        handled: is given which messages of an entry it has acknowledged, as soon as the broker knows.
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
        self._consumer = Consumer(self, 1, found, f"foreign-{cluster.world.count('foreign')}", ranges=ranges)  # type: ignore[arg-type] - as much of a connection as it needs
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

    # -- as a connection

    def reply(self, command: commands.Command) -> None:
        """What the broker sends."""
        if isinstance(command, commands.Message):
            draw = self._dice.random()
            position = command.ledger_id, command.entry_id
            self._cluster.world.after(self._dice.choice((0.0, 0.01, 0.3)), partial(self._handle, position, draw))

    def forget_consumer(self, consumer: Consumer) -> None:
        """The topic has closed it."""
        self._consumer = None

    def _handle(self, position: Position, draw: float) -> None:
        consumer = self._here
        if consumer is None or consumer.subscription.dispatcher is None:
            return
        topic, cursor = consumer.subscription.topic, consumer.subscription.cursor
        entry = topic.ledger.entries.get(position)
        if draw < 0.7 and entry is not None and not cursor.is_deleted(position):
            left = cursor.partial.get(position, (1 << entry.messages) - 1)
            some = left if draw < 0.5 or not topic.ledger.batch_indexes else self._dice.randrange(left + 1) & left
            ack_set = () if some == left else words_of(left & ~some)
            sent = (commands.MessageId(*position, ack_set=ack_set),)
            consumer.subscription.acknowledge(consumer, commands.Ack(1, commands.AckType.Individual, sent, 1))
            self._handled(self._name, position, [n for n in range(entry.messages) if some >> n & 1])
        elif draw < 0.85:
            consumer.subscription.dispatcher.redeliver(consumer, [position])
        self._flow(1)
