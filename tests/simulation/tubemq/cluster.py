"""A TubeMQ cluster in the simulated world: masters, brokers, topics, and what foreign producers send."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tests.simulation.tubemq.broker import Broker
from tests.simulation.tubemq.master import Master
from tests.simulation.tubemq.store import Message, Store
from tests.simulation.world import World


@dataclass(frozen=True)
class Topic:
    """What a topic is, on each of its brokers."""

    name: str
    stores: int = 1
    partitions: int = 1
    brokers: tuple[int, ...] = (1,)

    @property
    def partition_ids(self) -> list[int]:
        """Those of one broker."""
        return [10_000 * store + n for store in range(self.stores) for n in range(self.partitions)]


class Cluster:
    """Masters and brokers.

    Args:
        world: in which they are.
        brokers: how many; their ids are 1, 2, ...
        masters: how many.
        flush_seconds: how long a message is in memory only, at most.
        force_seconds: how long it is in the file only, at most.
        balance_seconds: between two rounds in which groups are shared out.
        authorized: the groups that may read, where that is controlled.

    Attributes:
        limits: the chance that flow control answers a fetch.
        rules: the flow rules of every group; empty for none.
        overflows: the chance that a broker has no room for a message.
        removals: how many messages, from where it begins, are removed when a fetch comes, by the number of the fetch.
        max_message_bytes: of any topic.
    """

    def __init__(
        self,
        world: World,
        *,
        brokers: int = 1,
        masters: int = 1,
        flush_seconds: float = 2.0,
        force_seconds: float = 1.0,
        balance_seconds: float = 3.0,
        authorized: Collection[str] | None = None,
    ) -> None:
        self.world = world
        self.flush_seconds = flush_seconds
        self.force_seconds = force_seconds
        self.balance_seconds = balance_seconds
        self.authorized = authorized
        self.limits = 0.0
        self.rules = ""
        self.overflows = 0.0
        self.removals: dict[int, int] = {}
        self.max_message_bytes = 1_048_576
        self.topics: dict[str, Topic] = {}
        self.masters: list[Master] = []
        self.brokers = [Broker(self, n + 1) for n in range(brokers)]
        for n in range(masters):
            self.masters.append(Master(self, n))
        self.elect()

    @property
    def addresses(self) -> str:
        """For `masters`."""
        return ",".join(master.address for master in self.masters)

    @property
    def broker_infos(self) -> tuple[str, ...]:
        """All brokers."""
        return tuple(broker.info for broker in self.brokers)

    def elect(self, first: Master | None = None) -> None:
        """One of the masters that run leads."""
        if not any(master.leads for master in self.masters):
            for master in self.masters if first is None else (first, *self.masters):
                if master.is_up:
                    master.lead()
                    return

    def create(self, topic: Topic) -> None:
        """Make a topic."""
        self.topics[topic.name] = topic

    # -- foreign producers

    def publish(
        self, topic: str, broker: int, partition: int, values: Sequence[bytes], type_: str | None = None
    ) -> None:
        """Messages of a foreign producer; nothing where the broker is down."""
        server = self.brokers[broker - 1]
        if not server.is_up:
            return
        for value in values:
            payload, flag = value, 0
            if type_ is not None:
                attributes = f"$msgType$={type_}".encode()
                payload, flag = len(attributes).to_bytes(4, "big") + attributes + value, 1
            check_sum = zlib.crc32(payload) & 0x7FFFFFFF
            server.store(topic, partition).append(
                Message(partition, server.next_message_id(), payload, flag, check_sum, type_)
            )

    # -- what is there

    def store(self, topic: str, broker: int, partition: int) -> Store:
        """Return the store of a partition."""
        return self.brokers[broker - 1].store(topic, partition)

    def all_stores(self, topic: str) -> list[Store]:
        """Return every store of a topic that has come into being."""
        return [store for broker in self.brokers for (name, _), store in broker.stores.items() if name == topic]
