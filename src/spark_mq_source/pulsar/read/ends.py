"""The end of terminated topics, at which a query with `endAtTermination` ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.consumer import Consumer
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition

TERMINATED: Final = "as endAtTermination asks, all topics of this query are terminated and read to their end"


class EndWatch:
    """The consumers that wait at the end of topic-partitions for REACHED_END_OF_TOPIC.

    The broker sends it to a consumer with permits whose subscription is at the end: after the FLOW, or when the topic
    is terminated. It sends it only once to the consumers of a durable subscription (both seen on 4.0.8), so these
    consumers have their own subscriptions.

    Each request fails with an MQSourceError if the cluster cannot be reached in time, or refuses it.

    Args:
        client: opens the consumers; its owner closes it.
    """

    def __init__(self, client: PulsarClient) -> None:
        self._client = client
        self._waiting: dict[TopicPartition, tuple[Position, Consumer]] = {}
        """Each consumer, and the position after which it waits."""

    def are_ended(self, ends: Mapping[TopicPartition, Position]) -> bool:
        """Return whether every topic-partition is known to be terminated, with nothing after these positions.

        Call it at several triggers: a consumer that is opened here may get the notice later.
        """
        for tp, (position, consumer) in list(self._waiting.items()):
            if ends.get(tp) != position or (consumer.is_closed and not consumer.has_ended):
                self._waiting.pop(tp)[1].leave()
        missing = {tp: at if at == EARLIEST else at.next_entry for tp, at in ends.items() if tp not in self._waiting}
        for tp, consumer in self._client.open_consumers(missing).items():
            self._waiting[tp] = ends[tp], consumer
            consumer.grant(1)
        return bool(ends) and all(consumer.has_ended for _, consumer in self._waiting.values())
