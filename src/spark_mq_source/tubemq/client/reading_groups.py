"""The groups in which tasks read: ``GROUP-read-0``, ``GROUP-read-1``, ..., so that readers do not compete.

A partition has one reader per group, and a broker keeps a reader that vanished for 30 s (broker 2.4.0). A task that
reads or requests bounds uses the first of these groups in which the partition is free.
"""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.errors import AuthorizationError, BrokerError, MQSourceError, ResourceBusyError
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.members import unique_client_id
from spark_mq_source.tubemq.client.session import PartitionConsumer
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from spark_mq_source.tubemq.protocol.commands import RegisterPartitionResponse
from spark_mq_source.tubemq.protocol.error_codes import CONSUME_GROUP_FORBIDDEN, PARTITION_OCCUPIED

MAX_GROUPS: Final = 100
"""Maximum number of readers of a partition at once; the broker keeps a group name for each."""


def reading_group(options: TubeMQOptions, number: int) -> str:
    """Return the group in which the reader of this number reads."""
    return f"{options.group_name}-read-{number}"


def register_in_any_group(
    client: TubeMQClient, options: TubeMQOptions, partition: BrokerPartition, offset: int, *, priority: int
) -> tuple[PartitionConsumer, RegisterPartitionResponse]:
    """Register a partition at an offset, in the first of our groups in which it is free; return the broker's answer.

    Raises:
        ResourceBusyError: it has a reader in all of them.
        MQSourceError: no answer, or a refusal.
    """
    busy: MQSourceError | None = None
    for number in range(MAX_GROUPS):
        group = reading_group(options, number)
        consumer = client.consumer(partition, client_id=unique_client_id(group), group=group)
        try:
            answer = consumer.register(
                curr_offset=offset, filters=options.filters_of(partition.topic), qry_priority_id=priority
            )
            return consumer, client.wait(answer, f"register of {partition}")
        except BrokerError as error:
            if error.code != PARTITION_OCCUPIED:
                raise with_names_to_authorize(error, options) from error
            busy = error
    raise ResourceBusyError(f"{partition}: {MAX_GROUPS} readers have it already; {busy}")


def with_names_to_authorize(error: BrokerError, options: TubeMQOptions) -> BrokerError:
    """Add the names that an administrator must authorize to an error, if the broker refused a reader's group.

    Brokers 2.4.0 never refuse one: only masters check groups, by the name of the group itself.
    """
    if error.code != CONSUME_GROUP_FORBIDDEN:
        return error
    first, last = reading_group(options, 0), reading_group(options, MAX_GROUPS - 1)
    msg = (
        f"{error}; tasks read as {first}, or up to {last} when several read one partition, and this broker, unlike "
        f"2.4.0, requires these names to be authorized as well"
    )
    return AuthorizationError(msg, code=error.code, code_name=error.code_name, broker_message=error.broker_message)
