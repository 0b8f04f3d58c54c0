"""The split of a read's ranges into more tasks."""

from __future__ import annotations

import itertools
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import AuthorizationError, DataLossError
from spark_mq_source.core.options import READ
from spark_mq_source.core.shared_options import LossOptions
from spark_mq_source.tubemq.client.bounds import Bounds
from spark_mq_source.tubemq.offsets import EARLIEST, INDEX_BYTES, LATEST, OffsetOption, TopicPartition
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker
from spark_mq_source.tubemq.read.planner import plan_batch, resolve_offset, split_ranges
from spark_mq_source.tubemq.read.reader import TubeMQRange, read_range


def split(wanted: int | None, *ranges: TubeMQRange) -> list[TubeMQRange]:
    options = {"masters": "host:8715", "topic": "flights"} | ({} if wanted is None else {"minPartitions": str(wanted)})
    return split_ranges(TubeMQOptions.from_spark(options, READ), ranges)


def test_ranges_are_split_by_size_and_then_by_number() -> None:
    options = {"masters": "host:8715", "topic": "flights", "maxRecordsPerPartition": "4", "minPartitions": "2"}
    pieces = split_ranges(TubeMQOptions.from_spark(options, READ), [whole(0, 0, 9), whole(1, 0, 4)])
    assert [(p.topic_partition.partition, (p.end - p.start) // INDEX_BYTES) for p in pieces] == [
        *[(0, 3)] * 3,
        (1, 4),
    ]


def whole(partition: int, first: int, messages: int) -> TubeMQRange:
    start = first * INDEX_BYTES
    end = start + messages * INDEX_BYTES
    return TubeMQRange(TopicPartition("flights", 1, partition), Broker(1, "host", 8123), start, end)


def test_the_error_of_a_broker_that_checks_groups_names_the_groups_to_authorize(server: Any) -> None:
    """Brokers 2.4.0 do not check groups; other brokers may."""
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


@pytest.mark.parametrize(
    ("wanted", "found", "is_loss"),
    [
        (None, 28, False),
        (EARLIEST, 28, False),
        (LATEST, 84, False),
        (0, 28, True),
        (28, 28, False),
        (56, 56, False),
        (84, 84, False),
        (112, 84, True),
    ],
)
def test_starting_offsets_within_the_bounds(wanted: int | None, found: int, is_loss: bool) -> None:
    tp = TopicPartition("flights", 1, 0)
    offsets = OffsetOption(partitions={} if wanted is None else {tp: wanted})
    assert resolve_offset(offsets, tp, Bounds(28, 84), LossOptions(fail_on_data_loss=False)) == found
    if is_loss:
        with pytest.raises(DataLossError, match=f"offsets from 28 to 84, but not {wanted}"):
            resolve_offset(offsets, tp, Bounds(28, 84), LossOptions())
    else:
        assert resolve_offset(offsets, tp, Bounds(28, 84), LossOptions()) == found


@pytest.mark.parametrize(("start", "spans"), [(2744, ["1:t:0 [2744, 2772)"]), (2772, []), (2800, [])])
def test_a_range_without_messages_has_no_task(server: Any, start: int, spans: list[str]) -> None:
    one = server({})
    given = {
        "masters": one.address,
        "topic": "t",
        "startingoffsets": f'{{"t": {start}}}',
        "endingoffsets": '{"t": 2772}',
    }
    assert [str(task) for task in plan_batch(TubeMQOptions.from_spark(given, READ))] == spans


@given(st.integers(1, 50), st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 10_000)), min_size=1, max_size=5))
def test_pieces_have_the_requested_number_and_all_messages(wanted: int, sizes: list[tuple[int, int]]) -> None:
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


def test_partitions_are_not_split_if_enough_exist_or_no_split_is_requested() -> None:
    ranges = [whole(0, 0, 1000), whole(1, 0, 1000)]
    assert split(None, *ranges) == split(1, *ranges) == split(2, *ranges) == ranges
    assert split(7) == []
