"""The client of one cluster, in parts: connections, admin API, topics, subscriptions and producers.

One `PulsarClient` has the connections of one task or of the driver's planning. Requests share them: those for many
topic-partitions are sent together, so that planning a thousand partitions takes a few round trips.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.pulsar.client.failover import on_available_cluster
from spark_mq_source.pulsar.client.producers import Producers
from spark_mq_source.pulsar.client.subscriptions import Subscriptions
from spark_mq_source.pulsar.options import PulsarOptions


class PulsarClient(Subscriptions, Producers):
    """A client of one cluster. Used by one thread; close it when done.

    Each request fails with an MQSourceError if the cluster refuses it, or does not answer within `operationTimeout`.

    Args:
        options: as for `Connections`; with `failoverServiceUrls`, the cluster is chosen here.
        role: suffix of its consumers' names; the option `consumerName` is their prefix.

    Raises:
        MQSourceError: there are several clusters, and none can be reached.

    Example:
        ::

            with PulsarClient(options) as client:
                for topic_partition in client.fetch_partitions(["persistent://public/default/t"]):
                    ...
    """

    def __init__(self, options: PulsarOptions, role: str = "driver") -> None:
        super().__init__(on_available_cluster(options), role)


@contextmanager
def connected(options: PulsarOptions, where: str, role: str = "driver") -> Iterator[PulsarClient]:
    """Open a client, and hand its connections over to the next one; its errors begin with `where`."""
    with PulsarClient(options, role) as client:
        try:
            yield client
        except MQSourceError as error:
            raise error.within(where) from error
        client.hand_over()
