"""How the ranges of a read are split into more tasks."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import AuthorizationError
from spark_mq_source.core.options import READ
from spark_mq_source.tubemq.offsets import INDEX_BYTES, TopicPartition
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker
from spark_mq_source.tubemq.read.planner import plan_batch, split_ranges
from spark_mq_source.tubemq.read.reader import TubeMQRange, read_range


def split(wanted: int | None, *ranges: TubeMQRange) -> list[TubeMQRange]:
    options = {"masters": "host:8715", "topic": "flights"} | ({} if wanted is None else {"minPartitions": str(wanted)})
    return split_ranges(TubeMQOptions.from_spark(options, READ), ranges)


def whole(partition: int, first: int, messages: int) -> TubeMQRange:
    start = first * INDEX_BYTES
    end = start + messages * INDEX_BYTES
    return TubeMQRange(TopicPartition("flights", 1, partition), Broker(1, "host", 8123), start, end)


def test_a_broker_that_checks_groups_is_told_apart_and_the_names_to_authorize_are_said(server: Any) -> None:
    """Brokers 2.4.0 check none; others may."""
    refusal = c.RegisterPartitionResponse(False, 450, "who are you", -1)
    one = server({c.RegisterPartition: lambda _, __: refusal})
    options = TubeMQOptions.from_spark({"masters": one.address, "topic": "t", "group": "g"}, READ)
    with pytest.raises(
        AuthorizationError, match="read as g-read-0, or up to g-read-99 when several read one"
    ) as raised:
        plan_batch(options)
    assert raised.value.code == 450
    whole = TubeMQRange(TopicPartition("t", 1, 0), one.broker, 0, 28)
    with pytest.raises(AuthorizationError, match="read as g-read-0"):
        list(read_range(options, whole, pa.schema([("value", pa.binary())])))


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 10_000)), min_size=1, max_size=5))
def test_pieces_are_as_many_as_asked_for_and_the_same_messages(wanted: int, sizes: list[tuple[int, int]]) -> None:
    ranges = [whole(number, *size) for number, size in enumerate(sizes)]
    pieces = split(wanted, *ranges)
    assert len(pieces) >= min(wanted, sum(messages for _, messages in sizes))
    for one in ranges:
        mine = [piece for piece in pieces if piece.topic_partition == one.topic_partition]
        assert (mine[0].start, mine[-1].end) == (one.start, one.end)
        assert all(before.end == after.start for before, after in itertools.pairwise(mine))
        messages = [(piece.end - piece.start) / INDEX_BYTES for piece in mine]
        assert all(count.is_integer() and count > 0 for count in messages)
        assert max(messages) - min(messages) <= 1


def test_larger_partitions_get_more_tasks() -> None:
    pieces = split(5, whole(0, 0, 1000), whole(1, 0, 4000))
    assert [piece.topic_partition.partition for piece in pieces] == [0, 1, 1, 1, 1]


def test_partitions_are_not_split_where_there_are_enough_or_none_is_asked_for() -> None:
    ranges = [whole(0, 0, 1000), whole(1, 0, 1000)]
    assert split(None, *ranges) == split(1, *ranges) == split(2, *ranges) == ranges
    assert split(7) == []
