"""First and last offsets of partitions, for plans, streams and writers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from spark_mq_source.core.errors import BrokerError, ResourceBusyError
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.members import unique_client_id
from spark_mq_source.tubemq.client.reading_groups import MAX_GROUPS, reading_group, with_names_to_authorize
from spark_mq_source.tubemq.offsets import TopicPartition
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from spark_mq_source.tubemq.protocol.error_codes import PARTITION_OCCUPIED

MAX_AT_ONCE = 500
"""Number of stores whose bounds are requested at once."""

Partitions = Mapping[TopicPartition, BrokerPartition]
"""Partitions by their names in offsets, with the addresses of their brokers."""


class Bounds(NamedTuple):
    """Offsets [first, last) of the messages that a broker has of a partition's store."""

    first: int
    last: int


def partitions_of(found: Iterable[BrokerPartition]) -> dict[TopicPartition, BrokerPartition]:
    """Map partitions by their names in offsets.

    Example:
        >>> from spark_mq_source.tubemq.protocol.addresses import Broker
        >>> [str(tp) for tp in partitions_of([BrokerPartition(Broker(1, "host", 8123), "flights", 10000)])]
        ['1:flights:10000']
    """
    return {TopicPartition(one.topic, one.broker.broker_id, one.partition_id): one for one in found}


def owners_of_stores(partitions: Partitions) -> frozenset[TopicPartition]:
    """Return the partitions without another one in their stores: each entry of such an index is one of their messages.

    Args:
        partitions: all partitions of their topics.

    Example:
        >>> from spark_mq_source.tubemq.protocol.addresses import Broker
        >>> found = [BrokerPartition(Broker(1, "host", 8123), "flights", number) for number in (0, 1, 10_000)]
        >>> [str(tp) for tp in owners_of_stores(partitions_of(found))]
        ['1:flights:10000']
    """
    counts = Counter((tp.broker_id, tp.topic, tp.store) for tp in partitions)
    return frozenset(tp for tp in partitions if counts[tp.broker_id, tp.topic, tp.store] == 1)


def fetch_bounds(
    client: TubeMQClient, options: TubeMQOptions, partitions: Partitions, *, priority: int | None = None
) -> dict[TopicPartition, Bounds]:
    """Fetch the bounds of each partition, one request per store, because partitions of a store share an index.

    Args:
        client: sends the requests.
        options: the query's.
        partitions: the partitions.
        priority: qryPriorityId, which selects the messages to count; None for that of reads.

    Raises:
        MQSourceError: a broker cannot be reached in time, or refuses.
    """
    asked: dict[tuple[int, str, int], BrokerPartition] = {}
    for tp in sorted(partitions):
        asked.setdefault((tp.broker_id, tp.topic, tp.store), partitions[tp])
    which = client.read_priority if priority is None else priority
    found: dict[BrokerPartition, Bounds] = {}
    deadline = Deadline.after_ms(options.operation_timeout_ms)
    stores = list(asked.values())
    for at in range(0, len(stores), MAX_AT_ONCE):
        some = stores[at : at + MAX_AT_ONCE]
        retrying(lambda some=some: _probe(client, options, some, found, which), deadline=deadline)  # type: ignore[misc]
    return {tp: found[asked[tp.broker_id, tp.topic, tp.store]] for tp in partitions}


def _probe(
    client: TubeMQClient,
    options: TubeMQOptions,
    stores: Sequence[BrokerPartition],
    found: dict[BrokerPartition, Bounds],
    priority: int,
) -> None:
    """Register at offset 0, which the broker changes to its first offset, and unregister again."""
    for number in range(MAX_GROUPS):
        group = reading_group(options, number)
        consumers = [
            client.consumer(one, client_id=unique_client_id(group), group=group) for one in stores if one not in found
        ]
        answers = [consumer.register(curr_offset=0, qry_priority_id=priority) for consumer in consumers]
        left = []
        is_occupied = False
        try:
            for consumer, answer in zip(consumers, answers, strict=True):
                try:
                    response = client.wait(answer, f"register of {consumer.partition}")
                except BrokerError as error:
                    if error.code != PARTITION_OCCUPIED:
                        raise with_names_to_authorize(error, options) from error
                    is_occupied = True
                else:
                    left.append(consumer.unregister())
                    found[consumer.partition] = Bounds(response.curr_offset, response.max_offset)
        finally:
            for farewell in left:
                with contextlib.suppress(BrokerError):
                    client.wait(farewell, "unregister")
        if not is_occupied:
            return
    raise ResourceBusyError(f"tubemq: {MAX_GROUPS} readers have the partitions already")
