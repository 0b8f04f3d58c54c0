"""The client of one cluster, in parts: connections, admin API, topics, subscriptions and producers.

One `PulsarClient` has the connections of one task or of the driver's planning. Requests share them: those for many
topic-partitions are sent together, so that planning a thousand partitions takes a few round trips.
"""

from __future__ import annotations

from spark_mq_source.pulsar.client.producers import Producers
from spark_mq_source.pulsar.client.subscriptions import Subscriptions


class PulsarClient(Subscriptions, Producers):
    """A client of one cluster. Used by one thread; close it when done.

    Each request fails with an MQSourceError if the cluster refuses it, or does not answer within `operationTimeout`.

    Args:
        role: suffix of its consumers' names; the option `consumerName` is their prefix.

    Example:
        ::

            with PulsarClient(options) as client:
                for topic_partition in client.fetch_partitions(["persistent://public/default/t"]):
                    ...
    """
