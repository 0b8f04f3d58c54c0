"""Begins and ends of triggers with a scripted group, and the partitions that a member keeps or releases."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq_source.core.errors import BrokerError, DataLossError, ServiceNotReadyError, TopicNotFoundError
from spark_mq_source.core.options import STREAM
from spark_mq_source.net import retry
from spark_mq_source.tubemq.client.bounds import Bounds
from spark_mq_source.tubemq.client.group_members import GroupSession
from spark_mq_source.tubemq.offsets import TopicPartition, Trigger, decode_offsets, encode_offsets
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.commands import ReadStatus
from spark_mq_source.tubemq.protocol.error_codes import PARTITION_OCCUPIED
from spark_mq_source.tubemq.read import stream as module
from spark_mq_source.tubemq.read.stream import Membership, TubeMQStream, _AllPartitions
from tests.unit.standins import Clock, done

TIMED = retry
A, B, C = (TopicPartition("t", 1, n) for n in range(3))
BROKER = Broker(1, "host", 8123)
AT = {tp: BrokerPartition(BROKER, "t", tp.partition) for tp in (A, B, C)}


def options_of(**given: str) -> TubeMQOptions:
    made = {"masters": "h:1", "topics": "t", "group": "g", "operationTimeout": "1s"} | given
    return TubeMQOptions.from_spark(made, STREAM)


class Assigned:
    """A query that reads these partitions, each from its known offset."""

    def __init__(
        self, partitions: Mapping[TopicPartition, BrokerPartition], begins: Mapping[TopicPartition, int]
    ) -> None:
        self.there, self.at = dict(partitions), dict(begins)
        self.left: list[TopicPartition] = []

    def partitions(self, known: object = None) -> dict[TopicPartition, BrokerPartition]:
        return self.there

    def located(self, wanted: object) -> dict[TopicPartition, BrokerPartition]:
        return self.there

    def wait(self) -> None:
        pass

    def begins(self, known: Mapping[TopicPartition, int], bounds: object) -> dict[TopicPartition, int]:
        return {tp: max(known.get(tp, 0), self.at.get(tp, 0)) for tp in self.there}

    def go_back(self, ends: object) -> None:
        pass

    def plan(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        return {tp: end for tp, end in ends.items() if tp not in self.left}

    def planned(self, ends: object) -> None:
        pass


class Query:
    """A stream whose partitions have messages within these bounds; `memory` is the end of messages in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, bounds: Mapping[TopicPartition, Bounds], **given: str) -> None:
        self.bounds, self.memory = dict(bounds), dict[TopicPartition, int]()
        self.asked_memory: list[list[TopicPartition]] = []
        self.stream = TubeMQStream(options_of(**{"assignment": "client"} | given))
        self.assigned = Assigned({tp: AT[tp] for tp in bounds}, {})
        self.stream._assigned = self.assigned  # type: ignore[assignment]
        monkeypatch.setattr(module, "fetch_bounds", self._fetch)

    def _fetch(self, _: object, __: object, asked: Any, *, priority: int | None = None) -> dict[TopicPartition, Bounds]:
        if priority is None:
            return {tp: self.bounds[tp] for tp in asked}
        self.asked_memory.append(list(asked))
        return {tp: Bounds(0, self.memory.get(tp, 0)) for tp in asked}

    def latest(self, start: Mapping[TopicPartition, int], **limited: bool) -> Trigger:
        return decode_offsets(self.stream.latest(encode_offsets(Trigger(dict(start))), **limited))


@pytest.mark.parametrize(
    ("start", "bounds", "positions", "begins"),
    [
        ({A: 28}, {A: Bounds(0, 28)}, {A: 28}, {}),
        ({A: 28}, {A: Bounds(0, 56)}, {A: 56}, {A: 28}),
        ({A: 28, B: 0}, {A: Bounds(28, 28), B: Bounds(0, 28)}, {A: 28, B: 28}, {B: 0}),
        # An added partition without messages is recorded with the next trigger.
        ({A: 28}, {A: Bounds(0, 28), B: Bounds(0, 0)}, {A: 28}, {}),
        ({A: 28}, {A: Bounds(0, 56), B: Bounds(0, 0)}, {A: 56, B: 0}, {A: 28}),
    ],
)
def test_a_trigger_begins_at_the_end_of_the_previous_one(
    monkeypatch: pytest.MonkeyPatch, start: Any, bounds: Any, positions: Any, begins: Any
) -> None:
    assert Query(monkeypatch, bounds).latest(start) == Trigger(positions, begins)


def test_an_offset_without_new_messages_is_the_same_document(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, {A: Bounds(0, 56)})
    # The document contains the begins of the last trigger: another document would be another trigger.
    start = encode_offsets(Trigger({A: 56}, {A: 28}))
    assert query.stream.latest(start) == start
    assert query.stream.latest(encode_offsets(Trigger({}))) == encode_offsets(Trigger({A: 56}, {A: 0}))
    query.bounds[A] = Bounds(0, 28)
    query.stream._options = options_of(assignment="client", failOnDataLoss="false")
    assert query.stream.latest(start) == encode_offsets(Trigger({A: 28}, {}))


@pytest.mark.parametrize(
    ("begin", "memory", "checked", "loss"),
    [
        (28, 0, 28, None),
        (0, 0, 28, "messages from 0 to 28 are gone"),
        (84, 0, 84, None),
        # Another member of the group reads from memory, which may be ahead of the flushed messages.
        (112, 112, 112, None),
        (112, 140, 112, None),
        (112, 84, 84, "the broker has messages up to 84 only, but had them up to 112"),
        (112, 28, 84, "the broker has messages up to 84 only, but had them up to 112"),
    ],
)
def test_a_start_that_does_not_exist(
    monkeypatch: pytest.MonkeyPatch, begin: int, memory: int, checked: int, loss: str | None
) -> None:
    for fails in ("true", "false"):
        query = Query(monkeypatch, {A: Bounds(28, 84)}, failOnDataLoss=fails)
        query.memory[A] = memory
        if loss is not None and fails == "true":
            with pytest.raises(DataLossError, match=loss):
                query.latest({A: begin})
        else:
            assert query.latest({A: begin}).positions == {A: max(84, checked)}
            assert query.latest({A: begin}).begins == ({A: checked} if checked < 84 else {})
        assert query.asked_memory[:1] == ([[A]] if begin > 84 else [])


@pytest.mark.parametrize(("assignment", "loses"), [("client", True), ("server", False)])
def test_a_partition_that_is_no_longer_read(monkeypatch: pytest.MonkeyPatch, assignment: str, loses: bool) -> None:
    query = Query(monkeypatch, {A: Bounds(0, 56)}, assignment=assignment)
    if loses:
        with pytest.raises(DataLossError, match="1:t:1: no longer exists"):
            query.latest({A: 28, B: 28})
    else:
        # A partition of another member may return.
        assert query.latest({A: 28, B: 28}) == Trigger({A: 56, B: 28}, {A: 28})


def test_a_partition_released_before_planning_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, {A: Bounds(0, 56), B: Bounds(0, 56)})
    query.assigned.left = [B]
    assert query.latest({A: 28, B: 28}) == Trigger({A: 56, B: 28}, {A: 28})


def test_an_availablenow_query_ends_at_its_target_and_not_before_its_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, {A: Bounds(0, 56), B: Bounds(0, 56)})
    query.stream.cap_at_current_end()
    query.bounds = {A: Bounds(0, 84), B: Bounds(0, 84), C: Bounds(0, 84)}
    query.assigned.there = dict(AT)
    # C was added after the query began, and B was read further than that.
    assert query.latest({A: 28, B: 84}) == Trigger({A: 56, B: 84, C: 0}, {A: 28})


@pytest.mark.parametrize(
    ("given", "limited", "ends"),
    [
        ({"maxRowsPerTrigger": "2"}, True, {A: 28, B: 28}),
        ({"maxRowsPerTrigger": "2"}, False, {A: 112, B: 112}),
        ({}, True, {A: 112, B: 112}),
        ({"maxRowsPerTrigger": "9"}, True, {A: 112, B: 112}),
        # Two partitions of one store count its messages once: the backlog is four.
        ({"minRowsPerTrigger": "4"}, True, {A: 112, B: 112}),
        ({"minRowsPerTrigger": "5"}, True, {A: 0, B: 0}),
        ({"minRowsPerTrigger": "5"}, False, {A: 112, B: 112}),
    ],
)
def test_limits(monkeypatch: pytest.MonkeyPatch, given: dict[str, str], limited: bool, ends: Any) -> None:
    query = Query(monkeypatch, {A: Bounds(0, 112), B: Bounds(0, 112)}, **given)
    # The first trigger of a query is not delayed.
    query.latest({A: 0, B: 0}, limited=limited)
    assert query.latest({A: 0, B: 0}, limited=limited).positions == ends


def test_only_partitions_with_a_backlog_get_a_share_of_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, {A: Bounds(0, 112), B: Bounds(0, 28)}, maxRowsPerTrigger="2")
    assert query.latest({A: 0, B: 28}).positions == {A: 56, B: 28}


def test_a_range_whose_partition_has_vanished(monkeypatch: pytest.MonkeyPatch) -> None:
    for fails, spans in (("true", None), ("false", ["1:t:0 [0, 28)"])):
        query = Query(monkeypatch, {A: Bounds(0, 28)}, failOnDataLoss=fails)
        end = encode_offsets(Trigger({A: 28, B: 28}, {A: 0, B: 0}))
        if spans is None:
            with pytest.raises(DataLossError, match="1:t:1: no longer exists"):
                query.stream.ranges({}, end)
            # Spark asks for it after a restart, and reads nothing.
            assert query.stream.ranges(end, end) == []
        else:
            assert [str(one) for one in query.stream.ranges({}, end)] == spans


def test_a_repeated_first_trigger_does_not_check_a_new_start(monkeypatch: pytest.MonkeyPatch) -> None:
    # By now the topic is past the end of the query, and has another partition.
    query = Query(monkeypatch, {A: Bounds(0, 84), B: Bounds(0, 84)}, endingOffsets='{"1:t:0": 56}')
    end = encode_offsets(Trigger({A: 56}, {A: 28}))
    assert query.stream.ranges(end, end) == []
    assert query.stream.initial() == encode_offsets(Trigger({A: 28}))
    assert [str(one) for one in query.stream.ranges(query.stream.initial(), end)] == ["1:t:0 [28, 56)"]


class Master:
    """The client of a query whose master lists these partitions in turn; None for a topic that is on no broker."""

    def __init__(self, *listed: list[TopicPartition] | None) -> None:
        self.listed = itertools.chain(listed, itertools.repeat(listed[-1]))
        self.masters = self.error = None
        self.topics = ("t",)
        self.known: set[str] = set()

    def matched(self, known: set[str]) -> TubeMQOptions:
        self.known = known
        return options_of()

    def wait_until_settled(self) -> None:
        """Return at once: the master started long ago."""

    def enter(self, _: object) -> Master:
        return self

    def fetch_topics(self) -> Any:
        listed = next(self.listed)
        if listed is None:
            raise TopicNotFoundError("topic t is on no broker")
        return SimpleNamespace(partitions=lambda: [AT[tp] for tp in listed])


@pytest.mark.parametrize(
    ("known", "listed", "found", "gone"),
    [
        ([], [None], None, False),
        ([], [[A]], [A], False),
        ([A, B], [None, [A], [A, B, C]], [A, B, C], False),
        ([A, B], [[A]], [A], True),
        ([A, B], [[A], None], None, True),
    ],
)
def test_a_partition_is_gone_if_no_master_has_listed_it_for_the_timeout(
    clock: Clock, known: list[TopicPartition], listed: Any, found: list[TopicPartition] | None, gone: bool
) -> None:
    master, begin = Master(*listed), clock.now
    made = _AllPartitions(master, options_of())  # type: ignore[arg-type]
    if found is None:
        with pytest.raises(TopicNotFoundError):
            made.located(known)
    else:
        assert list(made.partitions(dict.fromkeys(known, 0))) == found
        assert master.known == {tp.topic for tp in known}
    assert (clock.now - begin > 0.3) == gone
    assert clock.now - begin < 1.0


# -- a member of a group


class Consumer:
    """A partition at its broker, with the group's position; `refusal` is the answer to a registration."""

    def __init__(self, group: Group, partition: BrokerPartition) -> None:
        self.group, self.partition, self.lost = group, partition, None

    def register(self, *, curr_offset: int | None, read_status: ReadStatus, **_: object) -> Future[Any]:
        tp = next(tp for tp, at in AT.items() if at == self.partition)
        if self.group.refusals:
            future = Future[Any]()
            future.set_exception(self.group.refusals.pop(0))
            return future
        self.group.registered.append((tp, curr_offset, read_status))
        if curr_offset is not None:
            self.group.positions[tp] = curr_offset
        return done(SimpleNamespace(curr_offset=self.group.positions.setdefault(tp, 0)))

    def unregister(self) -> Future[Any]:
        self.group.unregistered.append(next(tp for tp, at in AT.items() if at == self.partition))
        return done(None)


class Group:
    """The client of a member of a group, and the state of its brokers."""

    def __init__(self, **positions: int) -> None:
        self.positions = {tp: positions[name] for name, tp in (("a", A), ("b", B), ("c", C)) if name in positions}
        self.registered: list[tuple[TopicPartition, int | None, ReadStatus]] = []
        self.unregistered: list[TopicPartition] = []
        self.refusals: list[BrokerError] = []
        self.given_up: list[BrokerPartition] = []
        self.consumers: list[Consumer] = []
        self.assigned = SimpleNamespace(wait=lambda _: True)
        self.masters = self.error = None
        self.unlisted = 0
        """Remaining calls for which no broker is known."""

    def consumer(self, partition: BrokerPartition, **_: object) -> Consumer:
        self.consumers.append(Consumer(self, partition))
        return self.consumers[-1]

    def wait(self, future: Future[Any], _: str) -> Any:
        return future.result()

    def enter(self, _: object) -> Group:
        return self

    def give_up(self, partition: BrokerPartition) -> None:
        self.given_up.append(partition)

    def fetch_brokers(self) -> dict[int, Broker]:
        self.unlisted -= 1
        return {} if self.unlisted >= 0 else {1: BROKER}

    def close(self) -> None:
        pass


def member(group: Group, *held: TopicPartition, **given: str) -> Membership:
    made = Membership(group, options_of(assignment="server", **given))  # type: ignore[arg-type]
    made._connect([AT[tp] for tp in held])
    return made


@pytest.mark.parametrize(
    ("known", "group", "begin"), [({}, 56, 56), ({A: 28}, 56, 56), ({A: 56}, 56, 56), ({A: 84}, 56, 84)]
)
def test_a_trigger_begins_at_the_later_of_the_query_s_and_the_group_s_position(
    known: dict[TopicPartition, int], group: int, begin: int
) -> None:
    made = member(Group(a=group, b=0), A)
    assert made.begins(known, {A: Bounds(0, 112), B: Bounds(0, 112)}) == {A: begin}


def test_after_a_loss_a_member_continues_at_the_end_of_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(monkeypatch, {A: Bounds(0, 84), B: Bounds(0, 56)}, assignment="server", failOnDataLoss="false")
    query.memory[A] = 84
    group = Group(a=280, b=28)
    query.stream._assigned = member(group, A, B)
    assert query.latest({A: 280, B: 28}) == Trigger({A: 84, B: 56}, {B: 28})
    assert group.positions == {A: 84, B: 28}
    # Spark commits the previous trigger only now.
    query.stream.commit(encode_offsets(Trigger({A: 280, B: 28}, {A: 0})))
    assert group.positions == {A: 84, B: 28}
    # Other messages have the lost ones' offsets.
    query.bounds[A] = Bounds(0, 308)
    assert query.latest({A: 84, B: 56}) == Trigger({A: 308, B: 56}, {A: 84})


@pytest.mark.parametrize(
    ("starting", "known", "status"),
    [
        ("latest", {}, ReadStatus.STORED_OR_MAX),
        ("earliest", {}, ReadStatus.STORED_OR_MIN),
        ("latest", {A: 28}, ReadStatus.STORED_OR_MIN),
        ("latest", {B: 28}, ReadStatus.STORED_OR_MAX),
    ],
)
def test_the_start_of_a_group_without_a_position(starting: str, known: Any, status: ReadStatus) -> None:
    group = Group()
    made = member(group, startingOffsets=starting)
    made.partitions(known)
    made._connect([AT[A]])
    assert group.registered == [(A, None, status)]


def test_a_partition_assigned_again_resumes_at_the_query_s_position() -> None:
    group = Group(a=28)
    made = member(group, A)
    made.planned({A: 84, B: 84})
    made.planned({A: 56})
    # The group has no position of it.
    made._connect([AT[A]])
    assert made.begins({}, {A: Bounds(0, 112)}) == {A: 84}
    made.partitions()
    made._give_up(A, made._held[A])
    assert (group.given_up, made.located({A}), made.partitions()) == ([AT[A]], {A: AT[A]}, {})
    for position, begin in ((56, 84), (112, 112)):
        group.positions[A] = position
        made._connect([AT[A]])
        assert made.begins({}, {A: Bounds(0, 112)}) == {A: begin}


@pytest.mark.parametrize(("group_at", "left_at"), [(28, 84), (84, 84), (112, 112)])
def test_a_partition_is_released_at_the_later_position(group_at: int, left_at: int) -> None:
    group = Group(a=28)
    made = member(group, A)
    made.planned({A: 84})
    group.positions[A], group.registered = group_at, []
    assert made._disconnect([AT[A]]) == [AT[A]]
    assert (group.positions[A], group.unregistered) == (left_at, [A])
    assert len(group.registered) == (2 if group_at < 84 else 1)


def test_a_partition_of_a_pending_trigger_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLANNED_WITHIN_SECONDS", 0.0)
    group = Group(a=28, b=28)
    made = member(group, A, B)
    assert made.plan({A: 56, C: 56}) == {A: 56}
    assert made._disconnect([AT[A], AT[B]]) == [AT[B]]
    made._give_up(A, made._held[A])
    assert (list(made._held), group.given_up) == ([A], [])
    made.planned({A: 56})
    assert made._disconnect([AT[A], AT[C]]) == [AT[A], AT[C]]
    assert group.positions == {A: 56, B: 28}


def test_a_lost_partition_is_not_planned() -> None:
    made = member(Group(a=28, b=28), A, B)
    made._held[B].consumer.lost = ServiceNotReadyError("lost")
    assert made.plan({A: 56, B: 56}) == {A: 56}


def test_a_member_that_ends_does_not_wait_for_a_plan() -> None:
    group = Group(a=28)
    made = member(group, A)
    made.plan({A: 56})
    made.close()
    assert (group.unregistered, group.positions) == ([A], {A: 28})


@pytest.mark.parametrize(
    ("commits", "left_at"),
    [
        ([28, 56], 84),
        # Asynchronous progress tracking: nothing shows that the checkpoint has the second or third trigger.
        ([], 28),
        # It commits the last but one trigger that the checkpoint has.
        ([None, 28], 28),
    ],
)
def test_a_group_is_left_at_the_last_trigger_that_the_checkpoint_surely_has(
    monkeypatch: pytest.MonkeyPatch, commits: list[int | None], left_at: int
) -> None:
    group = Group(a=0)
    query = Query(monkeypatch, {}, assignment="server")
    query.stream._assigned = made = member(group, A)
    ends = [query.stream.initial()]
    for number, end in enumerate([28, 56, 84]):
        query.bounds[A] = Bounds(0, end)
        ends.append(query.stream.latest(ends[-1]))
        if number and commits and (commit := commits[number - 1]) is not None:
            query.stream.commit(ends[commit // 28])
        assert query.stream.ranges(ends[-2], ends[-1]) != []
    made.close()
    assert group.positions == {A: left_at}


def test_a_repeated_trigger_is_in_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group(a=28)
    query = Query(monkeypatch, {A: Bounds(0, 56)}, assignment="server")
    query.stream._assigned = made = member(group, A)
    assert query.stream.ranges(encode_offsets(Trigger({A: 28})), encode_offsets(Trigger({A: 56}, {A: 28}))) != []
    made.close()
    assert group.positions == {A: 56}


def test_a_commit_shows_that_the_checkpoint_has_the_trigger() -> None:
    made = member(Group(a=28), A)
    made.commit({A: 56})
    assert made._held[A].position == 56


def test_a_commit_includes_the_partitions_of_earlier_triggers() -> None:
    group = Group(a=0, b=0)
    made = member(group, A, B)
    stream = TubeMQStream(options_of(assignment="server"))
    stream._assigned = made
    # Asynchronous progress tracking: the trigger that read B was not committed.
    stream.commit(encode_offsets(Trigger({A: 84, B: 56}, {A: 0})))
    assert group.positions == {A: 84, B: 56}


def test_a_commit_never_moves_a_group_back() -> None:
    group = Group(a=84)
    made = member(group, A)
    made.commit({A: 56})
    assert group.positions == {A: 84}


def test_only_held_partitions_are_committed() -> None:
    group = Group(a=28, b=28, c=28)
    made = member(group, A, B)
    made._held[B].consumer.lost = ServiceNotReadyError("lost")
    made.commit({A: 56, B: 56, C: 56})
    assert group.positions == {A: 56, B: 28, C: 28}


@pytest.mark.parametrize(("code", "kept"), [(PARTITION_OCCUPIED, []), (PARTITION_OCCUPIED + 1, [A])])
def test_a_partition_taken_by_another_member_is_given_up(code: int, kept: list[TopicPartition]) -> None:
    group = Group(a=28)
    made = member(group, A)
    made._held[A].consumer.lost = ServiceNotReadyError("lost")
    refusal = BrokerError("taken", code=code)
    refusal.retryable = False
    group.refusals = [refusal]
    made.partitions()
    assert (list(made._held), group.given_up) == (kept, [AT[A]] if not kept else [])


@pytest.mark.parametrize(("group_at", "begin"), [(28, 56), (84, 84)])
def test_a_partition_is_held_again_at_the_later_position(group_at: int, begin: int) -> None:
    group = Group(a=28)
    made = member(group, A)
    made.planned({A: 56})
    made._held[A].consumer.lost = ServiceNotReadyError("lost")
    assert made.begins({}, {A: Bounds(0, 112)}) == {A: 56}
    group.positions[A] = group_at
    assert made.partitions() == {A: AT[A]}
    assert made.begins({}, {A: Bounds(0, 112)}) == {A: begin}


@pytest.mark.parametrize(("group_at", "begin"), [(84, 56), (28, 56), (112, 112)])
def test_a_position_from_before_the_session_is_not_the_group_s(group_at: int, begin: int) -> None:
    group = Group(a=84)
    made = member(group)
    made._session = GroupSession("s", 1, {str(A): 0}, is_starting=True)
    made._connect([AT[A]])
    assert (group.positions[A], made._held[A].position) == (0, 0)
    made._session.is_starting = False
    made.planned({A: 56})
    made._held[A].consumer.lost = ServiceNotReadyError("lost")
    # A broker that is killed soon after the start has lost the group's position, and returns to the one before.
    group.positions[A] = group_at
    made.partitions()
    assert (group.positions[A], made._held[A].position) == (begin, begin)


def test_a_partition_that_could_not_be_taken_at_the_start_of_a_session_starts_when_it_is_taken(clock: Clock) -> None:
    group = Group(a=84, b=84)
    made = member(group)
    made._session = GroupSession("s", 1, {str(A): 28, str(B): 28}, is_starting=True, is_counted=True)
    group.refusals = [BrokerError("no", code=1)]
    assert made._connect([AT[A], AT[B]]) == [AT[B]]
    made._session.is_starting = False
    made._connect([AT[A]])
    assert group.positions == {A: 28, B: 28}
    # Later they are read from the group's position, wherever it is.
    group.positions = {A: 84, B: 84}
    made._connect([AT[A], AT[B]])
    assert group.positions == {A: 84, B: 84}


def test_positions_of_partitions_that_are_not_held(clock: Clock) -> None:
    group = Group(a=0)
    made = member(group, A)
    group.unlisted = 3
    assert made.located({A, B}) == {A: AT[A], B: AT[B]}
    assert len(clock.slept) == 3
    elsewhere = TopicPartition("t", 2, 0)
    assert made.located({A, B, elsewhere}) == {A: AT[A], B: AT[B]}
    assert 0.5 < sum(clock.slept) < 2.0
