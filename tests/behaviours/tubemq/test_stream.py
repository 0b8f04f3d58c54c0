"""The driver's side of a stream on a real cluster, without Spark: chained triggers, shared groups, no loss."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_mq_source.core.errors import AuthorizationError, DataLossError, OptionError, RequestTimeoutError
from spark_mq_source.core.options import READ
from spark_mq_source.tubemq.client.flow import FlowPace
from spark_mq_source.tubemq.protocol.commands import GetMessageResponse
from spark_mq_source.tubemq.read.planner import plan_batch
from tests.behaviours.tubemq.java_client import TubeJavaClient
from tests.behaviours.tubemq.streams import Query, encoded, numbered
from tests.fix_tubemq import TubeUnderTest
from tests.formats import through_json
from tests.formats.tubemq import tubemq_options, wait_until_flushed

MakeQuery = Callable[..., Query]


@pytest.fixture
def query(tubemq: TubeUnderTest, closing: Callable[[Query], Query]) -> MakeQuery:
    """Return queries, `assignment=client` by default; close them with the test."""

    def make(topic: str | None = None, **options: object) -> Query:
        if "group" not in options:
            options = {"assignment": "client"} | options
        return closing(Query(tubemq.masters, topic, **options))

    return make


@pytest.fixture
def publish(tubemq: TubeUnderTest, tube_java: TubeJavaClient) -> Callable[[str, list[str]], None]:
    """Publish values with the official client."""

    def send(topic: str, values: list[str]) -> None:
        tube_java.produce(tubemq.cluster, topic, encoded(values))
        wait_until_flushed(tubemq_options(tubemq.masters, topic, READ))

    return send


Publish = Callable[[str, list[str]], None]


# -- the query reads all partitions


def test_starts_at_latest_by_default(tubemq: TubeUnderTest, query: MakeQuery, publish: Publish):
    topic = tubemq.topic(3)
    publish(topic, numbered(5, "old"))
    late, early = query(topic), query(topic, startingOffsets="earliest")
    assert late.trigger() == []
    publish(topic, numbered(7, "new"))
    assert sorted(late.trigger()) == numbered(7, "new")
    assert late.trigger() == []
    assert sorted(early.trigger()) == sorted(numbered(5, "old") + numbered(7, "new"))


def test_topics_that_match_a_pattern_join_the_stream(tubemq: TubeUnderTest, query: MakeQuery, publish: Publish):
    """A new topic takes half a minute, so the second one exists already and is hidden from the first trigger."""
    first, second = tubemq.topic(2), tubemq.topic()
    given = {"topicsPattern": f"{first}|{second}", "adminUrl": tubemq.admin.masters[0], "startingOffsets": "earliest"}
    publish(first, numbered(5))
    publish(second, numbered(3, "second "))
    assert {r.topic_partition.topic for r in plan_batch(tubemq_options(tubemq.masters, None, READ, **given))} == {
        first,
        second,
    }
    q = query(**given)
    list_all = q.stream._client.list_topics
    q.stream._client.list_topics = lambda **how: [row for row in list_all(**how) if row["topic"] != second]
    assert sorted(q.trigger()) == numbered(5)
    q.stream._client.list_topics = list_all
    publish(first, numbered(2, "more "))
    assert sorted(q.trigger()) == sorted(numbered(2, "more ") + numbered(3, "second "))
    nothing = {**given, "topicsPattern": "no-.*"}
    assert plan_batch(tubemq_options(tubemq.masters, None, READ, **nothing)) == []
    assert query(**nothing).trigger() == []


@pytest.mark.parametrize("limit", [1, 4, 7])
def test_a_limit_is_exact_in_a_store_of_one_partition(
    tubemq: TubeUnderTest, query: MakeQuery, publish: Publish, limit: int
):
    topic = tubemq.topic()
    publish(topic, numbered(10))
    q = query(topic, startingOffsets="earliest", maxRowsPerTrigger=limit)
    while q.trigger():
        pass
    full, rest = divmod(10, limit)
    assert q.sizes == [limit] * full + [rest] * (rest > 0)
    assert q.values == numbered(10)


def test_a_limit_bounds_partitions_that_share_a_store(tubemq: TubeUnderTest, query: MakeQuery, publish: Publish):
    topic = tubemq.topic(3)
    publish(topic, numbered(40))
    q = query(topic, startingOffsets="earliest", maxRowsPerTrigger=8)
    q.trigger_until(lambda: len(q.rows) == 40, "all is read")
    assert max(q.sizes) <= 8
    assert sorted(q.values) == sorted(numbered(40))


def test_the_groups_position_on_the_broker_is_updated(tubemq: TubeUnderTest, query: MakeQuery, publish: Publish):
    topic, group = tubemq.topic(3), tubemq.group()
    publish(topic, numbered(30))
    q = query(topic, startingOffsets="earliest", group=group, assignment="client")
    q.trigger()
    assert [tubemq.admin.group_offset(1, group, topic, n) for n in range(3)] == [30 * 28] * 3


def test_an_offset_that_the_broker_never_had_is_a_loss(tubemq: TubeUnderTest, query: MakeQuery, publish: Publish):
    topic = tubemq.topic()
    publish(topic, numbered(5))
    begun = query(topic, startingOffsets="earliest")
    begun.trigger()
    at = through_json(begun.at)
    at["positions"][f"1:{topic}:0"] = 100 * 28
    with pytest.raises(DataLossError, match=rf"1:{topic}:0: the broker has messages up to 140 only, but had .* 2800"):
        query(topic, checkpoint=at).trigger()
    careless = query(topic, checkpoint=at, failOnDataLoss=False)
    assert careless.trigger() == []
    publish(topic, ["6"])
    assert careless.trigger() == ["6"]


def test_a_missing_partition_is_a_loss(tubemq: TubeUnderTest, query: MakeQuery, publish: Publish):
    topic = tubemq.topic()
    publish(topic, ["1"])
    begun = query(topic, startingOffsets="earliest")
    begun.trigger()
    at = through_json(begun.at)
    at["positions"]["1:vanished:0"] = 28
    with pytest.raises(DataLossError, match="1:vanished:0: no longer exists"):
        query(topic, checkpoint=at, operationTimeout="2s").trigger()
    publish(topic, ["2"])
    assert query(topic, checkpoint=at, failOnDataLoss=False, operationTimeout="2s").trigger() == ["2"]


def test_a_start_for_a_topic_that_is_not_read_is_refused(tubemq: TubeUnderTest, query: MakeQuery):
    topic = tubemq.topic()
    with pytest.raises(OptionError, match="startingOffsets names 1:elsewhere:0, which this query does not read"):
        query(topic, startingOffsets=f'{{"{topic}": "earliest", "1:elsewhere:0": 0}}').stream.initial()


def test_a_checkpoint_of_an_unknown_version_is_refused(tubemq: TubeUnderTest, query: MakeQuery):
    with pytest.raises(OptionError, match="the checkpoint cannot be used: offsets of version 9"):
        query(tubemq.topic(), checkpoint={"version": 9, "positions": {}, "from": {}}).trigger()


@pytest.mark.parametrize("assignment", ["client", "server"])
def test_tasks_obey_the_rules_of_the_group(tubemq: TubeUnderTest, query: MakeQuery, publish: Publish, assignment: str):
    topic, group = tubemq.topic(), tubemq.group()
    rule = {"start": "00:00", "end": "24:00", "dltInM": 21, "limitInM": 0, "freqInMs": 321}
    tubemq.admin.set_group_flow_control(group, [{"type": 0, "rule": [rule]}], priority=202)
    publish(topic, numbered(3000))
    q = query(topic, group=group, assignment=assignment, startingOffsets="earliest", lowLatency="true")
    q.trigger_until(lambda: len(q.rows) == 3000, "all is read")
    assert q.at is not None
    (task,) = q.stream.ranges({}, q.at)
    for flow in (q.stream._client.flow_rules, task.flow):
        assert flow is not None
        assert flow.priority == 202  # nothing is read from memory
        assert not flow.allows_memory(filtered=False)
        pace = FlowPace(flow, filtered=False)
        assert pace.escapes_cluster
        assert pace.wait_ms(GetMessageResponse(True, 200, curr_data_dlt=1 << 20)) == 321


# -- the query shares a group


def test_a_single_member_reads_all_from_the_groups_position(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, query: MakeQuery, publish: Publish
):
    topic, group = tubemq.topic(3), tubemq.group()
    publish(topic, numbered(30, "before"))
    read = tube_java.consume(tubemq.cluster, topic, group, 30)
    assert len(read) == 30
    publish(topic, numbered(30, "after"))
    q = query(topic, group=group, startingOffsets="earliest")
    q.trigger_until(lambda: len(q.rows) >= 30, "all new messages of the group are read")
    assert sorted(q.values) == sorted(numbered(30, "after"))
    assert [tubemq.admin.group_offset(1, group, topic, n) for n in range(3)] == [60 * 28] * 3


@pytest.mark.parametrize(("start", "expected"), [("earliest", ["new", "old"]), (None, ["new"])])
def test_a_new_group_starts_at_the_given_position(
    tubemq: TubeUnderTest, query: MakeQuery, publish: Publish, start: str | None, expected: list[str]
):
    topic = tubemq.topic()
    publish(topic, ["old"])
    options = {} if start is None else {"startingOffsets": start}
    q = query(topic, group=tubemq.group(), **options)
    q.begin()
    q.stream.cap_at_current_end()  # waits for the partition
    q.trigger()
    q.stream._target = None
    publish(topic, ["new"])
    q.trigger_until(lambda: "new" in q.values, "the new message is read")
    assert sorted(q.values) == expected


@pytest.mark.parametrize("start", [280, "latest"])
def test_a_group_is_moved_to_exact_offsets_and_continues_after_a_restart(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, query: MakeQuery, publish: Publish, start: int | str
):
    topic, group = tubemq.topic(), tubemq.group()
    publish(topic, numbered(20))
    assert len(tube_java.consume(tubemq.cluster, topic, group, 20 if start == 280 else 1)) >= 1
    q = query(topic, group=group, startingOffsets=json.dumps({topic: start}))
    q.trigger_until(lambda: bool(q.stream._assigned.partitions()), "the query has the partition")
    q.trigger()
    publish(topic, ["new"])
    q.trigger_until(lambda: "new" in q.values, "the new message is read")
    assert q.values == [*(numbered(20)[10:] if start == 280 else []), "new"]
    q.restart()
    publish(topic, ["newer"])
    q.trigger_until(lambda: "newer" in q.values, "the restarted query continues")
    assert q.values[-2:] == ["new", "newer"]


def test_a_query_and_a_java_consumer_start_a_session_together(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, query: MakeQuery
):
    topic, group = tubemq.topic(2), tubemq.group()
    places = tube_java.produce(tubemq.cluster, topic, encoded(numbered(60)))
    wait_until_flushed(tubemq_options(tubemq.masters, topic, READ))
    offsets = [json.dumps({f"1:{topic}:0": 560}), {f"1:{topic}:1": 840}]
    q = query(topic, group=group, startingOffsets=offsets[0], sessionKey="together", sessionMembers="2")
    q.begin()
    with tube_java.join(tubemq.cluster, [topic], group, session="together", members=2, offsets=offsets[1]) as member:
        member.wait_until(lambda m: list(m.held) == [f"1:{topic}:1"], "the Java consumer has its partition")
        expected = [
            n for n, place in zip(numbered(60), places, strict=True) if place.partition == 0 and place.offset >= 560
        ]
        q.trigger_until(lambda: len(q.rows) >= len(expected), "the query has read its partition")
    assert q.values == expected


def test_a_java_consumer_takes_over_a_part_and_returns_it(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, query: MakeQuery, publish: Publish
):
    topic, group = tubemq.topic(3), tubemq.group()
    q = query(topic, group=group, startingOffsets="earliest")
    publish(topic, numbered(60, "alone."))
    q.trigger_until(lambda: len(q.rows) == 60, "the query alone reads all")
    expected = numbered(60, "alone.")
    with tube_java.join(tubemq.cluster, [topic], group) as member:
        stop = threading.Event()
        failures: list[BaseException] = []

        def keep_reading() -> None:
            try:
                while not stop.is_set():
                    q.trigger()
            except BaseException as error:  # noqa: BLE001 - checked by the test's own thread
                failures.append(error)

        reading = threading.Thread(target=keep_reading)
        reading.start()
        try:
            member.wait_until(lambda m: bool(m.held), "it has a partition")
            for step in range(5):
                values = numbered(30, f"shared{step}.")
                publish(topic, values)
                expected += values
            member.wait_until(
                lambda m: len(q.rows) + len(m.read) >= len(expected) or bool(failures), "both have read all"
            )
        finally:
            stop.set()
            reading.join()
        assert not failures
        values = numbered(30, "leaving.")
        publish(topic, values)
        expected += values
    q.trigger_until(lambda: len(q.rows) + len(member.read) >= len(expected), "the query has read the remaining rows")
    assert Counter(q.values + [m.value.decode() for m in member.read]) == Counter(expected)
    assert member.read


def test_a_trigger_of_an_earlier_run_is_repeated_without_a_partition(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, query: MakeQuery, publish: Publish
):
    """It does not wait for an assignment, and on a topic with group control no other group must be authorized."""
    topic, group = tubemq.topic(), tubemq.group()
    tubemq.admin.authorize_topic(topic)
    tubemq.admin.authorize_group(topic, group)
    publish_to_authorized(tube_java, tubemq, topic, group, numbered(60))
    q = query(topic, group=group, startingOffsets="earliest")
    q.begin()
    q.stream.cap_at_current_end()
    start = through_json(q.at)
    end = through_json(q.stream.latest(start))
    assert sorted(row["value"] for row in q.read(q.stream.ranges(start, end))) == sorted(numbered(60))
    q.stream.close()
    with tube_java.join(tubemq.cluster, [topic], group) as member:
        member.wait_until(lambda m: bool(m.held), "another member has the partition")
        again = query(topic, group=group, startingOffsets="earliest", checkpoint=start)
        again.begin()
        with ThreadPoolExecutor(1) as pool:
            # The default `assignmentTimeout` is 3 minutes.
            ranges = pool.submit(again.stream.ranges, start, end).result(60)
        assert sorted(row["value"] for row in again.read(ranges)) == sorted(numbered(60))


@pytest.mark.parametrize("assignment", ["client", "server"])
def test_with_group_control_only_the_group_itself_must_be_authorized(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, query: MakeQuery, assignment: str
):
    topic, group = tubemq.topic(3), tubemq.group()
    tubemq.admin.authorize_topic(topic)
    tubemq.admin.authorize_group(topic, group)
    publish_to_authorized(tube_java, tubemq, topic, group, numbered(60))
    options = {"group": group, "assignment": assignment, "startingOffsets": "earliest", "minPartitions": 6}
    q = query(topic, **options)
    q.begin()
    q.stream.cap_at_current_end()
    start = through_json(q.at)
    end = through_json(q.stream.latest(start))
    ranges = q.stream.ranges(start, end)
    assert len(ranges) >= 6
    first, second = q.read(ranges), q.read(ranges)
    assert sorted(row["value"] for row in first) == sorted(numbered(60))
    assert first == second
    q.stream.commit(end)
    assert [tubemq.admin.group_offset(1, group, topic, n) for n in range(3)] == [60 * 28] * 3
    stranger = query(topic, **options | {"group": tubemq.group("stranger")})
    with pytest.raises(AuthorizationError, match=r"GROUP_FORBIDDEN \(450\).*have an administrator authorize it"):
        stranger.begin()


def publish_to_authorized(
    tube_java: TubeJavaClient, tubemq: TubeUnderTest, topic: str, group: str, values: list[str]
) -> None:
    tube_java.produce(tubemq.cluster, topic, encoded(values))
    wait_until_flushed(tubemq_options(tubemq.masters, topic, READ, group=group))


def test_available_now_without_any_partition_is_an_error(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, query: MakeQuery
):
    topic, group = tubemq.topic(), tubemq.group()
    with tube_java.join(tubemq.cluster, [topic], group) as member:
        member.wait_until(lambda m: bool(m.held), "it has the only partition")
        q = query(topic, group=group, startingOffsets="earliest", assignmentTimeout="1s")
        q.begin()
        with pytest.raises(RequestTimeoutError, match=f"gave no partition to this member of group {group} within"):
            q.stream.cap_at_current_end()
