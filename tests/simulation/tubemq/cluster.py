"""A TubeMQ cluster in the simulated world: masters, brokers, topics, and messages of foreign producers."""

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
    """A topic, of the same shape on each of its brokers."""

    name: str
    stores: int = 1
    partitions: int = 1
    brokers: tuple[int, ...] = (1,)

    @property
    def partition_ids(self) -> list[int]:
        """The ids of its partitions on one broker."""
        return [10_000 * store + n for store in range(self.stores) for n in range(self.partitions)]


class Cluster:
    """Masters and brokers.

    Args:
        world: the cluster's world.
        brokers: the number of brokers; their ids are 1, 2, ...
        masters: the number of masters.
        flush_seconds: the longest time for which a message is only in memory.
        force_seconds: the longest time for which it is only in the file.
        balance_seconds: between two rounds of rebalancing.
        authorized: the groups that may read; None for all.

    Attributes:
        limits: the probability that flow control answers a fetch.
        rules: the flow rules of every group; empty for none.
        overflows: the probability that a broker has no room for a message.
        removals: the number of messages to remove from a fetch's position on, by the number of the fetch.
        keeps_index: whether messages are removed without their index, in stores of one partition; a client cannot
            notice it in others.
        is_quiet_after_kills: whether a killed broker becomes quiet, until a scenario ends this.
        max_message_bytes: of any topic.
        unstarted: partitions that a session was to start, and the client id of the member that was to start each and
            has not reported it since; another member continues at the group's position.
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
        self.keeps_index = False
        self.is_quiet_after_kills = False
        self.max_message_bytes = 1_048_576
        self.unstarted: dict[tuple[str, int, int], str] = {}
        self.topics: dict[str, Topic] = {}
        self.masters: list[Master] = []
        self.brokers = [Broker(self, n + 1) for n in range(brokers)]
        for n in range(masters):
            self.masters.append(Master(self, n))
        self.elect()

    @property
    def addresses(self) -> str:
        """The value of `masters`."""
        return ",".join(master.address for master in self.masters)

    @property
    def broker_infos(self) -> tuple[str, ...]:
        """All brokers."""
        return tuple(broker.info for broker in self.brokers)

    def elect(self, first: Master | None = None) -> None:
        """Make one of the running masters the leader, unless there is one."""
        if not any(master.leads for master in self.masters):
            for master in self.masters if first is None else (first, *self.masters):
                if master.is_up:
                    master.lead()
                    return

    def create(self, topic: Topic) -> None:
        """Create a topic."""
        self.topics[topic.name] = topic

    # -- foreign producers

    def publish(
        self, topic: str, broker: int, partition: int, values: Sequence[bytes], type_: str | None = None
    ) -> None:
        """Publish messages as a foreign producer, or nothing if the broker is down or quiet."""
        server = self.brokers[broker - 1]
        if not server.is_up or server.is_quiet:
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

    # -- stores

    def store(self, topic: str, broker: int, partition: int) -> Store:
        """Return the store of a partition."""
        return self.brokers[broker - 1].store(topic, partition)

    def all_stores(self, topic: str) -> list[Store]:
        """Return every existing store of a topic."""
        return [store for broker in self.brokers for (name, _), store in broker.stores.items() if name == topic]
