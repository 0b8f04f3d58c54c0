"""Where a member of a group goes on: the later of what the query has read and of what the group has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq_source.core.options import STREAM
from spark_mq_source.tubemq.offsets import TopicPartition
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.commands import ReadStatus
from spark_mq_source.tubemq.read.stream import Membership, _Held

AT, OTHER = TopicPartition("t", 1, 0), TopicPartition("t", 1, 1)
PARTITION = BrokerPartition(Broker(1, "host", 8123), "t", 0)
GROUP = 100
"""Where the group is, as its broker says."""


class Member(Membership):
    """A member whose broker answers that the group is at `GROUP`; `asked` is what it was asked, in order."""

    def __init__(self, **options: str) -> None:
        given = {"masters": "host:8715", "topic": "t", "group": "g", "assignment": "server"} | options
        client: Any = SimpleNamespace(
            consumer=lambda *_, **__: SimpleNamespace(register=self._answer, lost=None, partition=PARTITION),
            wait=lambda answer, _: answer,
        )
        super().__init__(client, TubeMQOptions.from_spark({k.lower(): v for k, v in given.items()}, STREAM))
        self.asked: list[tuple[int | None, ReadStatus]] = []

    def _answer(self, *, curr_offset: int | None, read_status: ReadStatus, **_: Any) -> Any:
        self.asked.append((curr_offset, read_status))
        return SimpleNamespace(curr_offset=GROUP if curr_offset is None else curr_offset)

    def holds(self, at: TopicPartition, position: int) -> _Held:
        held = self._held[at] = _Held(PARTITION, self._client.consumer(PARTITION), position)
        return held


@pytest.mark.parametrize("position", [GROUP - 28, GROUP, GROUP + 28])
def test_a_partition_that_comes_back_goes_on_where_the_query_or_the_group_was(position: int) -> None:
    for is_held in (False, True):
        member = Member()
        if is_held:
            member.holds(AT, position)
        else:
            member._given_up[AT] = position
        assert member._connect([PARTITION]) == [PARTITION]
        assert member._held[AT].position == max(position, GROUP)
        assert member._given_up == {}
        assert member.begins({AT: position}, {AT: None, OTHER: None}) == {AT: max(position, GROUP)}


@pytest.mark.parametrize("known", [0, GROUP - 28, GROUP, GROUP + 28])
def test_a_trigger_begins_at_the_later_of_what_spark_knows_and_what_the_group_has(known: int) -> None:
    member = Member()
    member.holds(AT, GROUP)
    assert member.begins({AT: known} if known else {}, {AT: None}) == {AT: max(known, GROUP)}


@pytest.mark.parametrize(("position", "registered"), [(72, [None]), (100, [None]), (128, [None, 128])])
def test_a_partition_is_taken_back_at_the_query_s_position_if_the_group_s_is_before_it(position, registered) -> None:
    member = Member()
    _, at = member._take_back(member.holds(AT, position))
    assert at == max(position, GROUP)
    assert [offset for offset, _ in member.asked] == registered


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_a_partition_that_was_read_before_never_goes_on_at_the_end_of_its_topic(known: bool, starting: str) -> None:
    member = Member(startingOffsets=starting)
    member._known = frozenset([AT] * known)
    member._hold(AT, PARTITION)
    from_first = known or starting == "earliest"
    assert member.asked == [(None, ReadStatus.STORED_OR_MIN if from_first else ReadStatus.STORED_OR_MAX)]


def test_what_was_left_while_a_trigger_was_planned_is_not_in_it() -> None:
    member = Member()
    member.holds(AT, 28)
    assert member.plan({AT: 56, OTHER: 84}) == {AT: 56}
    assert member._pending == {AT}
    member.planned({AT: 56, OTHER: 84})
    assert member._pending == frozenset()
    assert {at: held.position for at, held in member._held.items()} == {AT: 56}
