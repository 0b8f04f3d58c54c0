"""Names of a query's consumers in the broker's statistics, and its use of a durable subscription beside others."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pulsar as official
import pytest

from spark_mq_source.core.errors import BrokerError, ResourceBusyError
from spark_mq_source.core.options import READ
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read import stream
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import read_range
from tests.behaviours.pulsar.streams import PIN, Query, numbered, publish
from tests.fix_brokers import PulsarUnderTest, wait_until

Types = official.ConsumerType
EARLIEST = official.InitialPosition.Earliest


def options_of(broker: PulsarUnderTest, topic: str, **more: str) -> PulsarOptions:
    return PulsarOptions.from_spark({"serviceUrl": broker.service_url, "topic": topic} | more, READ)


def consumers(broker: PulsarUnderTest, topic: str, subscription: str | None = None) -> list[str]:
    found = broker.admin.stats(topic)["subscriptions"]
    chosen = found if subscription is None else [subscription]
    return [one["consumerName"] for name in chosen for one in found[name]["consumers"]]


# -- names


def test_the_consumers_of_a_query_are_named(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic(2)
    q = query(topic, subscription=PIN, consumerName="delays", startingOffsets="earliest")
    q.trigger()
    for n in range(2):
        # The watcher and the subscription; the broker may still have to close the consumers of tasks.
        part = f"{topic}-partition-{n}"
        wait_until(lambda part=part: consumers(pulsar, part) == ["delays-driver"] * 2, "the driver has subscribed")


def test_tasks_have_distinct_names_in_the_order_of_the_ranges(pulsar: PulsarUnderTest):
    topic = pulsar.topic(3)
    for n in range(3):
        publish(pulsar, f"{topic}-partition-{n}", numbered(10))
    options = options_of(pulsar, topic, consumerName="delays", minPartitions="6", maxBatchRows="1")
    ranges = plan_batch(options)
    assert [task.number for task in ranges] == list(range(6))
    for task in ranges:
        rows = read_range(options, task, arrow_schema_of({"value": "binary"}))
        next(rows)
        where, named = str(task.topic_partition), [f"delays-000{task.number}"]
        wait_until(lambda: consumers(pulsar, where) == named, "the previous task has unsubscribed")  # noqa: B023 - called here
        assert sum(batch.num_rows for batch in rows) > 0


# -- properties


def test_properties_are_those_set_when_the_subscription_was_created(
    pulsar: PulsarUnderTest, query: Callable[..., Query]
):
    pulsar.require_version((2, 11), "does not show the properties of a subscription")
    topic = pulsar.topic()
    wanted = {"team": "delays", "ünit": "ä b"}
    q = query(topic, subscription=PIN, subscriptionProperties=json.dumps(wanted))
    q.trigger()
    assert pulsar.admin.stats(topic)["subscriptions"][PIN]["subscriptionProperties"] == wanted
    q.close()
    again = query(topic, subscription=PIN, subscriptionProperties='{"team": "others"}', checkpoint=q.at)
    again.trigger()
    assert pulsar.admin.stats(topic)["subscriptions"][PIN]["subscriptionProperties"] == wanted


# -- failover


def failover(query: Callable[..., Query], topic: str, **more: str) -> Query:
    return query(topic, subscription=PIN, subscriptionType="failover", startingOffsets="earliest", **more)


def test_other_consumers_may_stand_by_with_failover(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    # In one partition the order of the names decides which consumer is active.
    topic = pulsar.topic(1)
    q = failover(query, topic, consumerName="a")
    publish(pulsar, topic, numbered(3))
    assert q.trigger() == numbered(3)
    other = pulsar.client().subscribe(topic, PIN, consumer_type=Types.Failover, consumer_name="zz")
    publish(pulsar, topic, numbered(3, "more"))
    assert q.trigger() == numbered(3, "more")
    assert pulsar.admin.stats(f"{topic}-partition-0")["subscriptions"][PIN]["type"] == "Failover"
    q.close()
    # The standby receives the last entry, which the query keeps unacknowledged to detect loss.
    assert other.receive(timeout_millis=20_000).data() == b"more2"


def test_a_standby_query_waits_until_it_is_active(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic(2)
    first = failover(query, topic)
    first.trigger()
    for n in range(2):
        publish(pulsar, f"{topic}-partition-{n}", [f"{n}"])
    second = failover(query, topic, priorityLevel="1")
    read: list[str] = []
    turn = threading.Thread(target=lambda: read.extend(second.trigger()))
    turn.start()
    wait_until(lambda: len(consumers(pulsar, f"{topic}-partition-1", PIN)) == 2, "the second query stands by")
    assert sorted(first.trigger()) == ["0", "1"]
    assert (turn.is_alive(), read) == (True, [])
    first.close()
    turn.join(20)
    assert sorted(read) == ["0", "1"]


def test_a_standby_query_that_never_becomes_active_reports_the_reason(
    pulsar: PulsarUnderTest, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(stream, "TURN_MS", 0)
    topic = pulsar.topic()
    failover(query, topic).trigger()
    second = failover(query, topic, priorityLevel="1", operationTimeout="2s")
    with pytest.raises(
        ResourceBusyError, match=r"another consumer of subscription pin has been active .* priorityLevel"
    ):
        second.trigger()


def test_exclusive_refuses_another_consumer(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic()
    query(topic, subscription=PIN).trigger()
    with pytest.raises(official.ConsumerBusy):
        pulsar.client().subscribe(topic, PIN, consumer_type=Types.Failover)


# -- the backlog, beside its consumers


@pytest.fixture
def waiting(pulsar: PulsarUnderTest) -> Callable[[str, str], dict[TopicPartition, int]]:
    def ask(topic: str, name: str) -> dict[TopicPartition, int]:
        options = replace(options_of(pulsar, topic), operation_timeout_ms=10_000)
        with PulsarClient(options) as client:
            return client.fetch_waiting(client.fetch_partitions([topic]), name)

    return ask


@pytest.mark.parametrize("kind", [Types.Shared, Types.Failover])
def test_reading_a_backlog_takes_no_message_from_the_consumers(
    pulsar: PulsarUnderTest, waiting: Callable[[str, str], dict[TopicPartition, int]], kind: Any
):
    topic = pulsar.topic(2)
    consumer = pulsar.client().subscribe(topic, "q", consumer_type=kind, initial_position=EARLIEST)
    for n in range(2):
        publish(pulsar, f"{topic}-partition-{n}", numbered(5, f"{n}."))
    received = []
    for _ in range(10):
        message = consumer.receive(timeout_millis=20_000)
        received.append(message.data().decode())
        waits = waiting(topic, "q")
        assert sum(waits.values()) == 11 - len(received)
        consumer.acknowledge(message)
        wait_until(
            lambda: sum(backlog_of(pulsar, f"{topic}-partition-{n}", "q") for n in range(2)) == 10 - len(received),
            "it is acknowledged",
        )
    assert sorted(received) == sorted(numbered(5, "0.") + numbered(5, "1."))
    assert [len(consumers(pulsar, f"{topic}-partition-{n}", "q")) for n in range(2)] == [1, 1]


def backlog_of(broker: PulsarUnderTest, topic: str, subscription: str) -> int:
    return int(broker.admin.stats(topic)["subscriptions"][subscription]["msgBacklog"])


@pytest.mark.parametrize("kind", [Types.Exclusive, Types.KeyShared])
def test_a_backlog_that_cannot_be_read_without_disturbing_consumers(
    pulsar: PulsarUnderTest, waiting: Callable[[str, str], dict[TopicPartition, int]], kind: Any
):
    topic = pulsar.topic()
    consumer = pulsar.client().subscribe(topic, "q", consumer_type=kind, initial_position=EARLIEST)
    with pytest.raises(ResourceBusyError, match=r"subscription q are of type Exclusive or Key_Shared.* set adminUrl"):
        waiting(topic, "q")
    publish(pulsar, topic, ["a"])
    consumer.acknowledge(consumer.receive(timeout_millis=20_000))
    consumer.close()
    wait_until(lambda: consumers(pulsar, topic, "q") == [], "the consumer is closed")
    publish(pulsar, topic, ["b"])
    assert list(waiting(topic, "q").values()) == [1]


def test_the_backlog_of_a_missing_subscription(
    pulsar: PulsarUnderTest, waiting: Callable[[str, str], dict[TopicPartition, int]]
):
    topic = pulsar.topic()
    with pytest.raises(BrokerError, match="there is no durable subscription none"):
        waiting(topic, "none")
    wait_until(lambda: pulsar.admin.subscriptions(topic) == [], "the consumer of the request is closed")
    reader = pulsar.client().create_reader(topic, official.MessageId.earliest, subscription_role_prefix="r")
    (name,) = pulsar.admin.subscriptions(topic)
    with pytest.raises(BrokerError, match="there is no durable subscription"):
        waiting(topic, name)
    reader.close()
