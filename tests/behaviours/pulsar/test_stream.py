"""The driver's side of a stream on a real broker, without Spark: chained triggers, limits, pins, data loss."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from spark_mq_source.core.errors import (
    DataLossError,
    EndOfStreamError,
    OptionError,
    ResourceBusyError,
)
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from tests.behaviours.pulsar.streams import (
    PIN,
    ROW,
    Query,
    backlog,
    cursor,
    numbered,
    position,
    publish,
    rolled,
    trimmed,
)
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats import through_json
from tests.formats.pulsar import read_tasks

# -- starts of queries


def test_a_pin_right_before_a_ledger_counts_as_moved(
    pulsar: PulsarUnderTest, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(2, "old"))
    pulsar.admin.unload(topic)
    publish(pulsar, topic, ["last"])
    with caplog.at_level(logging.WARNING, "spark_mq_source"):
        q = query(topic, startingOffsets="latest", subscription=PIN)
        assert q.trigger() == []
    assert "stays at" not in caplog.text
    publish(pulsar, topic, ["new"])
    assert q.trigger() == ["new"]


def test_starts_after_a_position(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    ids = publish(pulsar, topic, numbered(5))
    q = query(topic, startingOffsets=json.dumps({topic: ids[1].to_json()}))
    assert q.trigger() == ["2", "3", "4"]


def test_starts_within_a_batch_and_counts_the_rest_of_it_as_an_entry(
    pulsar: PulsarUnderTest, query: Callable[..., Query]
):
    topics = [pulsar.topic() for _ in range(3)]
    start = {}
    for topic in topics:
        (first, *_) = publish(pulsar, topic, numbered(12), batch=4)
        start[topic] = Position(first.ledger, first.entry, 1).to_json()
    q = query(topics=",".join(topics), startingOffsets=json.dumps(start), maxEntriesPerTrigger=1)
    values = q.drain()
    assert sorted(values) == sorted(numbered(12)[2:] * 3)
    assert q.triggers == [1] * 9
    limited = query(topics[0], startingOffsets=json.dumps({topics[0]: start[topics[0]]}), maxEntriesPerTrigger=2)
    assert limited.trigger() == numbered(12)[2:8]


def test_starts_at_a_time(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(3, "before"))
    between = time.time_ns() // 1_000_000 + 1
    wait_until(lambda: time.time_ns() // 1_000_000 > between, "the next millisecond but one")
    publish(pulsar, topic, numbered(3, "after"))
    assert query(topic, startingTimestamp=between).trigger() == numbered(3, "after")
    assert query(topic, startingTimestamp=between + 3_600_000).trigger() == []


@pytest.mark.parametrize(
    ("option", "start", "unknown"),
    [
        ("startingOffsets", {"TOPIC": {"0": "earliest", "7": "earliest"}}, "TOPIC-partition-7"),
        ("startingTimestamp", {"TOPIC": 0, "nowhere": 0}, "persistent://public/default/nowhere"),
    ],
)
def test_a_start_for_a_topic_that_is_not_read_is_refused(
    pulsar: PulsarUnderTest, query: Callable[..., Query], option: str, start: dict[str, object], unknown: str
):
    topic = pulsar.topic(2)
    given = {option: json.dumps(start).replace("TOPIC", topic)}
    refused = f"{option} names {unknown.replace('TOPIC', topic)}, which this query does not read"
    with pytest.raises(OptionError, match=refused):
        query(topic, **given).stream.initial()
    # A continued query ignores the options of its start.
    publish(pulsar, f"{topic}-partition-1", ["1"])
    begun = query(topic, startingOffsets="earliest")
    begun.trigger()
    assert query(topic, checkpoint=begun.at, **given).trigger() == []


def test_a_start_at_a_deleted_position_is_a_loss(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic, ids = trimmed(pulsar)
    start = json.dumps({topic: ids[0].to_json()})
    with pytest.raises(DataLossError, match=f"the broker has deleted the messages from {ids[0]} to"):
        query(topic, startingOffsets=start).trigger()
    assert query(topic, startingOffsets=start, failOnDataLoss=False).trigger() == ["left"]


# -- new partitions and topics


def test_new_partitions_and_new_topics_start_at_earliest(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    namespace = pulsar.new_namespace()
    topic = pulsar.topic(1, prefix="flights", namespace=namespace)
    publish(pulsar, f"{topic}-partition-0", ["old"])
    q = query(topicsPattern=f"{namespace}/flights.*", subscription=PIN)
    assert q.trigger() == []
    pulsar.admin.add_partitions(topic, 3)
    other = pulsar.topic(prefix="flights", namespace=namespace)
    ignored = pulsar.topic(prefix="weather", namespace=namespace)
    publish(pulsar, f"{topic}-partition-2", ["grown"])
    publish(pulsar, other, ["other"])
    publish(pulsar, ignored, ["ignored"])
    assert sorted(q.trigger()) == ["grown", "other"]
    assert PIN in pulsar.admin.subscriptions(other)
    assert q.trigger() == []
    assert PIN in pulsar.admin.subscriptions(f"{topic}-partition-1")
    q.restart()
    publish(pulsar, f"{topic}-partition-1", ["late"])
    assert q.trigger() == ["late"]


# -- limits


@pytest.mark.parametrize("limit", [3, 7])
def test_a_limit_is_exact_across_ledgers(pulsar: PulsarUnderTest, query: Callable[..., Query], limit: int):
    topic = pulsar.topic()
    values = rolled(pulsar, topic, 3, 4)
    q = query(topic, startingOffsets="earliest", maxEntriesPerTrigger=limit)
    assert q.drain() == values
    if pulsar.is_before((3, 3)):  # a trigger ends at the end of a ledger (seen on 2.10.1 and 2.11.0)
        assert max(q.triggers) == min(limit, 4)
        return
    full, rest = divmod(len(values), limit)
    assert q.triggers == [limit] * full + [rest] * (rest > 0)


# -- a repeated first batch


@pytest.mark.parametrize("subscription", [{}, {"subscription": PIN}])
@pytest.mark.parametrize("before", [0, 2])
def test_a_first_batch_that_began_at_latest_is_repeated_from_the_same_start(
    pulsar: PulsarUnderTest, query: Callable[..., Query], before: int, subscription: dict[str, str]
):
    topic = pulsar.topic(2, namespace=pulsar.new_namespace(keep_data=not subscription))
    zero, one = (f"{topic}-partition-{n}" for n in range(2))
    publish(pulsar, zero, numbered(before, "old"))
    q = query(topic, **subscription)
    # The first trigger finds nothing new, so no batch is run.
    start = q.plan()
    assert start == q.at
    pulsar.admin.unload(zero)
    publish(pulsar, zero, numbered(3, "first"))
    publish(pulsar, one, numbered(3, "first"))
    pulsar.admin.add_partitions(topic, 3)
    publish(pulsar, f"{topic}-partition-2", numbered(3, "first"))
    end = through_json(q.stream.latest(start))
    for _ in range(2):
        publish(pulsar, zero, numbered(3, "later"))
        publish(pulsar, one, numbered(3, "later"))
        q.restart()
        # Spark does so if the checkpoint has the end of the first batch, and no commit; twice interrupted.
        again = through_json(q.stream.initial())
        for _ in range(2):
            rows = read_tasks(q.options, q.stream.ranges(again, end), ROW).to_pylist()
            assert [row["value"] for row in rows] == numbered(3, "first") * 3
    q.at = end
    assert q.trigger() == numbered(3, "later") * 4
    q.stream.commit(q.at)
    if subscription:
        assert [backlog(pulsar, f"{topic}-partition-{n}") for n in range(3)] == [1, 1, 1]


# -- the pin


@pytest.mark.parametrize(("start", "waiting"), [("earliest", 10), ("latest", 1)])
def test_a_pin_is_created_at_the_start_of_the_query(
    pulsar: PulsarUnderTest, query: Callable[..., Query], start: str, waiting: int
):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(10))
    query(topic, startingOffsets=start, subscription=PIN).plan()
    assert backlog(pulsar, topic) == waiting


def test_an_existing_pin_is_moved_to_the_start(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    ids = publish(pulsar, topic, numbered(10))
    for at in (ids[6], ids[2], ids[8], ids[0]):
        q = query(topic, startingOffsets=json.dumps({topic: at.to_json()}), subscription=PIN)
        q.plan()
        assert cursor(pulsar, topic) == f"{at.ledger}:{at.entry - 1}"
        q.stream.close()


def test_the_backlog_falls_with_each_commit_and_stays_after_the_end(
    pulsar: PulsarUnderTest, query: Callable[..., Query]
):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(10))
    q = query(topic, startingOffsets="earliest", maxEntriesPerTrigger=4, subscription=PIN)
    seen = []
    for _ in range(3):
        q.trigger()
        seen.append(backlog(pulsar, topic))
    # The last entry read stays: see `PulsarStream.commit`.
    assert seen == [7, 3, 1]
    q.stream.close()
    wait_until(lambda: not pulsar.admin.stats(topic)["subscriptions"][PIN]["consumers"], "the consumer has gone")
    publish(pulsar, topic, numbered(5))
    assert backlog(pulsar, topic) == 6


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_a_restart_moves_no_cursor(pulsar: PulsarUnderTest, query: Callable[..., Query], start: str):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(10))
    q = query(topic, startingOffsets="earliest", maxEntriesPerTrigger=4, subscription=PIN)
    q.trigger()
    at = cursor(pulsar, topic)
    q.stream.close()
    again = query(topic, startingOffsets=start, subscription=PIN, checkpoint=q.at)
    assert position(again.stream.latest(q.at), topic).entry == 9
    assert cursor(pulsar, topic) == at
    assert again.trigger() == numbered(10)[4:]


def test_a_query_waits_for_a_subscription_held_by_another(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(3))
    holder = query(topic, startingOffsets="earliest", subscription=PIN)
    holder.plan()
    impatient = query(topic, startingOffsets="earliest", subscription=PIN, operationTimeout="2s")
    with pytest.raises(ResourceBusyError, match="another consumer holds this subscription"):
        impatient.plan()
    patient = query(topic, startingOffsets="earliest", subscription=PIN)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(patient.trigger)
        with pytest.raises(TimeoutError):
            waiting.result(1)
        holder.stream.close()
        assert waiting.result() == numbered(3)


# -- loss


def test_cursors_moved_by_expiry_lose_no_retained_messages(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    q = query(topic, startingOffsets="earliest", subscription=PIN, maxEntriesPerTrigger=2)
    publish(pulsar, topic, numbered(6))
    assert q.trigger() == numbered(2)
    before = time.time()
    wait_until(lambda: time.time() > before + 2, "messages older than a second")
    path = topic.replace("://", "/")
    pulsar.admin.request("POST", f"{path}/all_subscription/expireMessages/1")
    wait_until(lambda: backlog(pulsar, topic) == 0, "expired")
    assert q.drain() == numbered(6)[2:]


@pytest.mark.parametrize("pattern", [False, True])
def test_a_deleted_topic_is_a_loss(pulsar: PulsarUnderTest, query: Callable[..., Query], pattern: bool):
    namespace = pulsar.new_namespace()
    stays, goes = (pulsar.topic(namespace=namespace, prefix=prefix) for prefix in ("stays", "goes"))
    which = {"topicsPattern": f"{namespace}/.*"} if pattern else {"topics": f"{stays},{goes}"}
    for topic in (stays, goes):
        publish(pulsar, topic, ["1"])
    q = query(startingOffsets="earliest", subscription=PIN, **which)
    assert q.trigger() == ["1", "1"]
    pulsar.admin.delete_topic(goes)
    publish(pulsar, stays, ["2"])
    with pytest.raises(DataLossError, match=f"{goes}: no longer exists"):
        q.trigger()
    q.stream.close()
    tolerant = query(failOnDataLoss=False, subscription=PIN, checkpoint=q.at, **which)
    # Spark commits the previous batch before it plans the next trigger.
    tolerant.stream.commit(q.at)
    assert tolerant.trigger() == ["2"]
    assert tolerant.trigger() == []
    pulsar.admin.create_topic(goes)
    publish(pulsar, goes, ["again"])
    assert tolerant.trigger() == ["again"]


# -- the checkpoint


def test_a_checkpoint_can_be_the_start_of_another_query(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(5))
    q = query(topic, startingOffsets="earliest", maxEntriesPerTrigger=2)
    q.trigger()
    assert query(topic, startingOffsets=json.dumps(q.at)).trigger() == numbered(5)[2:]


def test_a_query_ends_within_an_entry_or_before_a_time(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    (entry,) = publish(pulsar, topic, numbered(5), batch=5)
    inside = {topic: {"ledger": entry.ledger, "entry": entry.entry, "batch": 1}}
    publish(pulsar, topic, ["last"])
    time.sleep(0.002)  # another millisecond
    until = int(time.time() * 1000)
    in_time = query(topic, startingOffsets="earliest", endingTimestamp=until)
    assert in_time.drain() == [*numbered(5), "last"]
    assert in_time.drain() == in_time.drain() == []  # earlier messages may still come
    publish(pulsar, topic, ["later"])
    pulsar.admin.unload(topic)
    publish(pulsar, topic, ["in a later ledger"])
    in_order = [*numbered(5), "last"]
    for rows, ending in ((2, {"endingOffsets": json.dumps(inside)}), (6, {"endingTimestamp": until})):
        q = query(topic, startingOffsets="earliest", **ending)
        with pytest.raises(EndOfStreamError):
            q.drain_to("later")
        assert [row["value"] for row in q.rows] == in_order[:rows]
    with pytest.raises(EndOfStreamError):
        in_time.drain_to("later")
    assert [row["value"] for row in in_time.rows] == in_order


def test_ranges_are_the_same_whenever_they_are_planned(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic(2)
    publish(pulsar, f"{topic}-partition-0", numbered(10))
    q = query(topic, startingOffsets="earliest", minPartitions=4)
    start = through_json(q.stream.initial())
    end = through_json(q.stream.latest(start))
    ranges = q.stream.ranges(start, end)
    publish(pulsar, f"{topic}-partition-0", ["later"])
    assert ranges == query(topic, minPartitions=4).stream.ranges(start, end)
    assert len(ranges) == 4
    assert {r.topic_partition for r in ranges} == {TopicPartition(topic, 0)}
