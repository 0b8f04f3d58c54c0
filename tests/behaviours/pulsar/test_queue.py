"""Subscriptions as queues: batch reads that drain them, and streams with a write-ahead folder."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import DataLossError, EndOfStreamError, RequestTimeoutError, TooManyAttemptsError
from spark_mq_source.net.write_ahead import TaskLog
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.read.queue_reader import _Inflow
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar.queues import (
    FORMAT,
    ROW,
    SUBSCRIPTION,
    SubscriptionQuery,
    drain_options,
    read,
    read_tasks,
    values,
)
from tests.behaviours.pulsar.streams import numbered, publish
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats import schema_of
from tests.formats.pulsar import PulsarFormat

KINDS = ("Exclusive", "Failover", "Shared", "Key_Shared")


def backlog(broker: PulsarUnderTest, topic: str, subscription: str = SUBSCRIPTION) -> int:
    return int(broker.admin.stats(topic)["subscriptions"][subscription]["msgBacklog"])


def consumers(broker: PulsarUnderTest, topic: str) -> list[str]:
    return sorted(c["consumerName"] for c in broker.admin.stats(topic)["subscriptions"][SUBSCRIPTION]["consumers"])


def wait_until_acknowledged(broker: PulsarUnderTest, topic: str) -> None:
    wait_until(lambda: backlog(broker, topic) == 0, "all of it is acknowledged")


@pytest.mark.parametrize("kind", ["Exclusive", "Failover"])
def test_messages_removed_by_compaction_are_acknowledged(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery], kind: str
):
    topic = pulsar.topic()
    producer = pulsar.client().create_producer(topic, batching_enabled=False)
    for n in range(100):
        producer.send(b"%d" % n, partition_key=f"k{n % 10}")
    pulsar.admin.compact(topic)
    query = queue(topic, subscriptionType=kind, readCompacted="true", maxRowsPerTrigger=4)
    # Skipped messages are acknowledged with the next delivered one; messages left by a trigger stay.
    assert query.trigger() == numbered(100)[90:94]
    assert backlog(pulsar, topic) == 6
    producer.send(b"last", partition_key="k10")
    assert query.until(11) == [*numbered(100)[90:], "last"]
    assert backlog(pulsar, topic) == 0
    assert query.plan() == query.at


# -- batch reads


@pytest.mark.parametrize(("kind", "batch"), [("Exclusive", 1), ("Failover", 7), ("Shared", 1), ("Key_Shared", 7)])
def test_a_drain_reads_each_message_once_and_leaves_none(pulsar: PulsarUnderTest, kind: str, batch: int):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(100), batch=batch)
    table = read(drain_options(pulsar, topic, subscriptionType=kind, maxRows=100))
    assert values(table) == numbered(100)
    wait_until_acknowledged(pulsar, topic)
    assert values(read(drain_options(pulsar, topic, subscriptionType=kind))) == []


def test_maxrows_limits_all_partitions_of_a_drain_together(pulsar: PulsarUnderTest):
    topic = pulsar.topic(3)
    for partition in range(3):
        publish(pulsar, f"{topic}-partition-{partition}", numbered(20, f"{partition}."))
    options = drain_options(pulsar, topic, maxRows=30, consumersPerPartition=2)
    first = values(read(options))
    second = values(read(options))
    assert (len(first), len(second)) == (30, 30)
    assert sorted(first + second) == sorted(numbered(20, "0.") + numbered(20, "1.") + numbered(20, "2."))


def test_maxrows_counts_whole_entries_and_requeues_the_rest(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(40), batch=10)
    assert values(read(drain_options(pulsar, topic, maxRows=25))) == numbered(20)
    third = read(drain_options(pulsar, topic, maxRows=3))
    rest = read(drain_options(pulsar, topic, maxRows=10), "value string, redelivery_count int")
    # An entry that the broker was reading when the first consumer closed may come before those that were put back.
    assert sorted([values(third), values(rest)]) == [numbered(40)[20:30], numbered(40)[30:]]
    assert rest.column("redelivery_count").to_pylist() == [0] * 10  # messages received and put back are not counted


def test_a_peek_leaves_the_messages(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(50))
    options = drain_options(pulsar, topic, ackMode="nack", maxRows=50)
    assert values(read(options)) == numbered(50)
    assert values(read(options)) == numbered(50)
    assert backlog(pulsar, topic) == 50


def test_an_undecodable_message_is_stored_as_a_dead_letter_before_its_acknowledgement(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, monkeypatch: pytest.MonkeyPatch
):
    topic, dead = pulsar.topic(), pulsar.topic()
    sent = [b"\xff%d" % n if n % 5 == 0 else b"%d" % n for n in range(30)]
    pulsar_format.publish(topic, sent)
    letters = {"valueFormat": "string", "onCorrupt": "deadLetter", "deadLetterTopic": dead, "maxBatchRows": 7}
    letters["maxRows"] = len(sent)

    def drain() -> list[str]:
        options = drain_options(pulsar, topic, **letters)
        return values(read(FORMAT.fit_read(options, schema_of(ROW))))

    def refuse(*_: object) -> None:
        raise RequestTimeoutError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(PulsarWriter, "flush", refuse)
        with pytest.raises(RequestTimeoutError, match=f"dead letters to topic {dead}: no room"):
            drain()
    assert sorted(drain(), key=int) == [value.decode() for value in sent if value[:1] != b"\xff"]
    wait_until_acknowledged(pulsar, topic)
    stored = pulsar_format.read(dead).column("value").to_pylist()
    # Dead letters sent by the failed attempt may be stored, too.
    assert set(stored) == {value for value in sent if value[:1] == b"\xff"}
    assert len(stored) <= 6 + 2


def test_a_rerun_returns_the_same_rows(pulsar: PulsarUnderTest, tmp_path: Path):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(30), batch=5)
    options = drain_options(pulsar, topic, walDir=tmp_path, runId="r", maxRows=30)
    first = read(options)
    assert values(first) == numbered(30)
    publish(pulsar, topic, ["newer"])
    assert read(options).equals(first)
    assert read(options, "value binary").column("value").to_pylist() == [value.encode() for value in numbered(30)]


def test_a_pattern_without_matches_has_no_rows(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery], tmp_path: Path
):
    pattern = f"{pulsar.new_namespace()}/none-.*"
    run = {"maxRows": 5, "walDir": tmp_path / "run", "runId": "r"}
    for limits in ({}, {"maxRows": 5}, {"maxRows": 5, "consumersPerPartition": 2, "minPartitions": 3}, run, run):
        assert values(read(drain_options(pulsar, None, topicsPattern=pattern, **limits))) == []
    assert queue(None, topicsPattern=pattern, maxRowsPerTrigger=5).trigger() == []


def test_a_drain_without_wal_dir_is_not_repeated(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    options = drain_options(pulsar, topic)
    (task,) = FORMAT.plan(options, ())
    with pytest.raises(DataLossError, match=r"attempt 2 at a read without walDir: .*set|with walDir and runId"):
        FORMAT.read(options, task, pa.schema([("value", pa.binary())]), tries=1)


# -- streams


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_reads_each_message_once(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery], kind: str):
    topic = pulsar.topic()
    q = queue(topic, subscriptionType=kind)
    assert q.trigger() == []
    publish(pulsar, topic, numbered(20, "a"), batch=4)
    assert q.until(20) == numbered(20, "a")
    publish(pulsar, topic, numbered(20, "b"))
    assert q.until(40) == numbered(20, "a") + numbered(20, "b")
    assert q.trigger() == []
    wait_until_acknowledged(pulsar, topic)


def test_a_query_creates_its_subscription(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]):
    topic = pulsar.topic()
    publish(pulsar, topic, ["before"])
    q = queue(topic, initialPosition="latest")
    publish(pulsar, topic, ["after"])
    assert q.until(1) == ["after"]


class KilledError(Exception):
    """A simulated end of a task."""


def test_an_attempt_that_dies_between_log_and_ack_loses_and_repeats_nothing(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery], monkeypatch: pytest.MonkeyPatch
):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(30), batch=3)
    # The second attempt waits in vain for all planned messages: it gets those that the first has logged.
    q = queue(topic, idleTimeout="3s")
    tasks = q.tasks()
    with monkeypatch.context() as dying:

        def die(self: TaskLog, batch: pa.RecordBatch) -> bool:
            append(self, batch)
            raise KilledError

        append = TaskLog.append
        dying.setattr(TaskLog, "append", die)
        with pytest.raises(KilledError):
            read_tasks(q.options, tasks)
    assert backlog(pulsar, topic) == 10
    assert values(read_tasks(q.options, tasks)) == numbered(30)
    wait_until_acknowledged(pulsar, topic)
    assert q.until(30) == numbered(30)
    assert q.trigger() == []


def test_a_topic_unloaded_repeatedly_is_read_once(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery], monkeypatch: pytest.MonkeyPatch
):
    topic = pulsar.topic()
    publish(pulsar, topic, numbered(200))
    q = queue(topic, maxInFlight=40, idleTimeout="3s")
    grants = []
    take = _Inflow.take

    def unloaded(self: _Inflow) -> pa.RecordBatch:
        grants.append(True)
        if len(grants) % 3 == 1:
            pulsar.admin.unload(topic)
        return take(self)

    monkeypatch.setattr(_Inflow, "take", unloaded)
    assert q.until(200) == numbered(200)
    assert len(grants) > 3

    def is_acknowledged() -> bool:
        # A topic that is being unloaded confirms ACKs that it loses: their messages are redelivered, and left out.
        assert q.trigger() == []
        return backlog(pulsar, topic) == 0

    wait_until(is_acknowledged, "all of it is acknowledged")


def test_minpartitions_sets_the_number_of_tasks(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]):
    topic = pulsar.topic(2)
    for partition in range(2):
        publish(pulsar, f"{topic}-partition-{partition}", numbered(9, f"{partition}."))
    q = queue(topic, minPartitions=3)
    tasks = q.tasks()
    assert len(tasks) == 4
    assert sorted(q.until(18)) == sorted(numbered(9, "0.") + numbered(9, "1."))


def keyed(broker: PulsarUnderTest, topic: str, count: int, keys: int = 10) -> list[str]:
    producer = broker.client().create_producer(topic, batching_enabled=False)
    sent = []
    for number in range(count):
        sent.append(f"k{number % keys}:{number}")
        producer.send(sent[-1].encode(), partition_key=f"k{number % keys}")
    producer.close()
    return sent


def by_key(found: list[str]) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = defaultdict(list)
    for value in found:
        keys[value.partition(":")[0]].append(value)
    return keys


# The task of a range is planned for the messages of all of them.
STICKY = {"keySharedMode": "sticky", "keyRanges": "0-30000,30001-65535", "idleTimeout": "500ms"}


@pytest.mark.parametrize(
    "how",
    [{}, {"consumersPerPartition": 2}, STICKY],
    ids=["one task", "two tasks", "sticky"],
)
def test_the_messages_of_a_key_come_in_order(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery], how: dict[str, Any]
):
    topic = pulsar.topic()
    q = queue(topic, subscriptionType="Key_Shared", maxRowsPerTrigger=40, **how)
    sent = keyed(pulsar, topic, 120)
    assert by_key(q.until(120)) == by_key(sent)
    wait_until_acknowledged(pulsar, topic)


def test_a_foreign_consumer_joins_and_leaves(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]):
    import pulsar as official

    topic = pulsar.topic()
    q = queue(topic, maxRowsPerTrigger=60, idleTimeout="2s")
    client = pulsar.client()
    foreign: list[str] = []

    def consume(most: int) -> None:
        consumer = client.subscribe(
            topic, SUBSCRIPTION, consumer_type=official.ConsumerType.Shared, receiver_queue_size=20
        )
        for _ in range(most):
            message = consumer.receive(20_000)
            foreign.append(message.data().decode())
            consumer.acknowledge(message)
        q.trigger()
        consumer.close()

    publish(pulsar, topic, numbered(300))
    q.trigger()
    consume(30)
    q.trigger()
    consume(10)
    wait_until(lambda: bool(q.trigger() or True) and backlog(pulsar, topic) == 0, "all of it is read")
    ours = [row["value"] for row in q.rows]
    assert len(foreign) == 40
    assert sorted(ours + foreign) == sorted(numbered(300))


def put_back(consumer: Any, *, messages: int, times: int) -> None:
    """Negatively acknowledge until each of `messages` messages has been redelivered `times` times."""
    found: dict[bytes, int] = {}
    while len(found) < messages or min(found.values()) < times:
        message = consumer.receive(20_000)
        found[message.data()] = message.redelivery_count()
        consumer.negative_acknowledge(message)


def test_messages_delivered_too_often_end_the_query(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]):
    import pulsar as official

    topic = pulsar.topic()
    q = queue(topic, maxRedeliverCount=2)
    publish(pulsar, topic, numbered(3))
    consumer = pulsar.client().subscribe(
        topic,
        SUBSCRIPTION,
        consumer_type=official.ConsumerType.Shared,
        negative_ack_redelivery_delay_ms=10,
        receiver_queue_size=3,
    )
    # The broker resets the counts when the last consumer leaves; this one receives nothing.
    staying = pulsar.client().subscribe(
        topic, SUBSCRIPTION, consumer_type=official.ConsumerType.Shared, receiver_queue_size=0
    )
    put_back(consumer, messages=3, times=3)
    consumer.close()
    tasks = q.tasks()
    with pytest.raises(TooManyAttemptsError, match=r"was redelivered \d+ times, and maxRedeliverCount is 2"):
        read_tasks(q.options, tasks)
    assert backlog(pulsar, topic) == 3
    staying.close()


def test_messages_delivered_too_often_become_dead_letters(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]
):
    import pulsar as official

    topic = pulsar.topic()
    q = queue(topic, maxRedeliverCount=2, onMaxRedeliver="deadLetter", createTopic="true")
    publish(pulsar, topic, numbered(3))
    client = pulsar.client()
    shared = {"consumer_type": official.ConsumerType.Shared}
    consumer = client.subscribe(topic, SUBSCRIPTION, negative_ack_redelivery_delay_ms=10, **shared)
    staying = client.subscribe(topic, SUBSCRIPTION, receiver_queue_size=0, **shared)
    put_back(consumer, messages=3, times=3)
    consumer.close()
    publish(pulsar, topic, ["good"])
    assert q.until(1) == ["good"]
    wait_until_acknowledged(pulsar, topic)
    dead = client.subscribe(f"{topic}-{SUBSCRIPTION}-DLQ", "s", initial_position=official.InitialPosition.Earliest)
    letters = [dead.receive(10_000) for _ in range(3)]
    assert sorted(letter.data().decode() for letter in letters) == numbered(3)
    assert {letter.properties()["REAL_TOPIC"] for letter in letters} == {topic}
    staying.close()


@pytest.mark.slow
def test_retried_messages_return_until_they_become_dead_letters(pulsar: PulsarUnderTest):
    import pulsar as official

    topic = pulsar.topic()
    publish(pulsar, topic, numbered(5), batch=5)
    how = {
        "ackMode": "nack",
        "retryTopic": "true",
        "createTopic": "true",
        "nackDelay": "200ms",
        "maxRedeliverCount": 2,
        "onMaxRedeliver": "deadLetter",
        "idleTimeout": "3s",
    }
    found: list[dict[str, Any]] = []

    def is_over() -> bool:
        table = read(drain_options(pulsar, topic, **how), "value string, properties map<string,string>")
        found.extend(table.to_pylist())
        return len(found) >= 15

    wait_until(is_over, "all are dead letters")
    seen = [(row["value"], dict(row["properties"]).get("RECONSUMETIMES", "0")) for row in found]
    assert sorted(seen) == sorted((value, times) for value in numbered(5) for times in "012")
    dead = pulsar.client().subscribe(
        f"{topic}-{SUBSCRIPTION}-DLQ", "s", initial_position=official.InitialPosition.Earliest
    )
    letters = [dead.receive(10_000) for _ in range(5)]
    assert sorted(letter.data().decode() for letter in letters) == numbered(5)
    assert {letter.properties()["REAL_TOPIC"] for letter in letters} == {topic}
    for name in (topic, f"{topic}-{SUBSCRIPTION}-RETRY"):
        wait_until_acknowledged(pulsar, name)


@pytest.mark.slow
def test_the_first_retried_messages_are_kept_for_a_subscription_at_latest(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    how = {"initialPosition": "latest", "retryTopic": "true", "createTopic": "true"}
    assert values(read(drain_options(pulsar, topic, **how))) == []
    publish(pulsar, topic, numbered(5))
    how |= {"maxRows": 5, "maxSeconds": 60, "idleTimeout": "20s"}
    assert values(read(drain_options(pulsar, topic, **how, ackMode="nack", nackDelay="2s"))) == numbered(5)
    assert sorted(values(read(drain_options(pulsar, topic, **how)))) == numbered(5)
    wait_until_acknowledged(pulsar, f"{topic}-{SUBSCRIPTION}-RETRY")


def test_messages_held_by_others_do_not_block_available_now(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]
):
    import pulsar as official

    topic = pulsar.topic()
    q = queue(topic, idleTimeout="3s")
    publish(pulsar, topic, numbered(10))
    consumer = pulsar.client().subscribe(
        topic, SUBSCRIPTION, consumer_type=official.ConsumerType.Shared, receiver_queue_size=1
    )
    held = consumer.receive(10_000).data().decode()
    q.stream.cap_at_current_end()
    found: list[str] = []
    for _ in range(5):
        found += q.trigger()
    ended = q.at
    q.trigger()
    assert q.at == ended
    assert set(numbered(10)) - set(found) >= {held}
    assert len(found) >= 8
    consumer.close()


def test_a_new_partition_is_found_at_the_next_trigger(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]):
    topic = pulsar.topic(1)
    q = queue(topic)
    publish(pulsar, f"{topic}-partition-0", ["0"])
    assert q.until(1) == ["0"]
    pulsar.admin.add_partitions(topic, 2)
    publish(pulsar, f"{topic}-partition-1", ["1"])
    assert q.until(2) == ["0", "1"]


def test_a_new_topic_is_read_from_its_first_message(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]):
    namespace = pulsar.new_namespace()
    first = pulsar.topic(namespace=namespace)
    publish(pulsar, first, ["before"])
    q = queue(None, topicsPattern=f"{namespace}/.*", initialPosition="latest")
    publish(pulsar, first, ["0"])
    assert q.until(1) == ["0"]
    for n in (1, 2):
        publish(pulsar, pulsar.topic(namespace=namespace), [f"{n}"])
        assert q.until(n + 1) == numbered(n + 1)
        q.restart()


def test_a_subscription_that_was_deleted_ends_a_restarted_query(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]
):
    topic = pulsar.topic()
    q = queue(topic)
    publish(pulsar, topic, ["0"])
    assert q.until(1) == ["0"]
    client = PulsarClient(q.options)
    client.delete_subscription([TopicPartition.parse(topic)], SUBSCRIPTION)
    client.close()
    q.restart()
    with pytest.raises(DataLossError, match=f"subscription {SUBSCRIPTION}: it no longer exists in {topic}"):
        q.plan()


def test_a_stream_ends_with_its_terminated_topics(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]):
    topic = pulsar.topic(2)
    q = queue(topic, endAtTermination="true")
    for partition in range(2):
        publish(pulsar, f"{topic}-partition-{partition}", numbered(5, f"{partition}."))
        assert [len(q.trigger()) for _ in range(5)] == [5, 0, 0, 0, 0]  # one is not terminated yet
        pulsar.admin.terminate(f"{topic}-partition-{partition}")

    def go_on() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            assert q.trigger() == []

    with pytest.raises(EndOfStreamError, match="all topics of this query are terminated and read to their end"):
        go_on()


def test_chunks_beyond_a_batch_are_in_the_next(pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery]):
    topic = pulsar.topic()
    q = queue(topic, maxRowsPerTrigger=1)
    producer = pulsar.client().create_producer(topic, chunking_enabled=True, batching_enabled=False)
    for letter in "ABC":
        producer.send(letter.encode() * (11 << 20))
    producer.close()
    # A message with chunks in an earlier batch may follow the others.
    assert sorted((value[0], value.count(value[0])) for value in q.until(3)) == [(letter, 11 << 20) for letter in "ABC"]
    wait_until_acknowledged(pulsar, topic)


def test_consumer_names_are_stable(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery], monkeypatch: pytest.MonkeyPatch
):
    topic = pulsar.topic()
    q = queue(topic, consumerName="flights")
    publish(pulsar, topic, numbered(3))
    seen: list[list[str]] = []
    take = _Inflow.take

    def looked(self: _Inflow) -> pa.RecordBatch:
        seen.append(consumers(pulsar, topic))
        return take(self)

    monkeypatch.setattr(_Inflow, "take", looked)
    q.until(3)
    assert seen
    assert all(names == ["flights-0000"] for names in seen)


def test_acknowledgements_lost_by_a_killed_broker_cause_no_duplicates(
    pulsar: PulsarUnderTest, queue: Callable[..., SubscriptionQuery], monkeypatch: pytest.MonkeyPatch
):
    """As after a crash of the broker: the cursor goes back, and acknowledged messages return with a count of 0."""
    topic = pulsar.topic()
    q = queue(topic, idleTimeout="1s")
    publish(pulsar, topic, numbered(10))
    assert q.until(10) == numbered(10)
    path = f"{topic.replace('://', '/')}/subscription/{SUBSCRIPTION}/resetcursor"
    pulsar.admin.request("POST", path, {"ledgerId": -1, "entryId": -1})
    publish(pulsar, topic, ["new"])
    assert backlog(pulsar, topic) == 11
    assert q.until(11) == [*numbered(10), "new"]
    wait_until_acknowledged(pulsar, topic)
