"""Consumers of one subscription with individual acknowledgements: the broker's behaviour that queue mode relies on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from spark_mq_source.core.errors import ServiceNotReadyError
from spark_mq_source.core.options import READ
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.consumer import Subscription
from spark_mq_source.pulsar.client.queue_consumer import QueueConsumer
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol.commands import InitialPosition, SubType
from spark_mq_source.pulsar.read.queue_stream import plan_queue
from tests.behaviours.pulsar import raw_producer as raw
from tests.behaviours.pulsar.raw_producer import RawProducer
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import HOST, FaultProxy
from tests.formats.pulsar import PulsarFormat

PATIENCE = 30.0
NAME = "s"
Open = Callable[..., QueueConsumer]
Entry = tuple[int, int]


@pytest.fixture
def open_consumer(pulsar: PulsarUnderTest, closing: Callable[[PulsarClient], PulsarClient]) -> Open:
    """Open consumers, each on its own connections: `open_consumer(topic, SubType.Shared, consumer_name="a")`."""

    def open_(topic: str, kind: SubType = SubType.Shared, *, timeout: str = "60s", **how: Any) -> QueueConsumer:
        client = closing(PulsarClient(options(pulsar, "t", operationTimeout=timeout)))
        subscription = Subscription(NAME, kind, **{"initial": InitialPosition.Earliest} | how)
        return client.open_queue_consumer(TopicPartition.parse(topic), subscription)

    return open_


def options(pulsar: PulsarUnderTest, topic: str, **more: str) -> PulsarOptions:
    return PulsarOptions.from_spark({"serviceUrl": pulsar.service_url, "topic": topic} | more, READ)


def publish(pulsar: PulsarUnderTest, topic: str, values: Sequence[bytes], *, keys: Sequence[str] = ()) -> list[Entry]:
    """Publish one message an entry."""
    with RawProducer(PulsarFormat(pulsar).service, topic) as producer:
        return [
            producer.send(raw.metadata(raw.text(6, keys[n % len(keys)]) if keys else b"", sequence_id=n), value)
            for n, value in enumerate(values)
        ]


def take(consumer: QueueConsumer, count: int) -> list[Any]:
    """Receive this many messages, or fail."""
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += consumer.receive(max_bytes=1 << 20, timeout_seconds=1)
    return found


def nothing_comes(consumer: QueueConsumer, seconds: float = 1.0) -> bool:
    return not consumer.receive(max_bytes=1 << 20, timeout_seconds=seconds)


def grant(consumer: QueueConsumer, permits: int) -> None:
    """Grant permits; the broker has them on return: other commands may overtake FLOW, which has no answer."""
    consumer.grant(permits)
    assert consumer.request_stats().result(PATIENCE).available_permits == permits


def ids(messages: Sequence[Any]) -> list[Entry]:
    return [(message.ledger_id, message.entry_id) for message in messages]


def counts(messages: Sequence[Any]) -> list[int]:
    return [message.redelivery_count for message in messages]


def subscription_stats(pulsar: PulsarUnderTest, topic: str) -> Any:
    return pulsar.admin.stats(topic)["subscriptions"][NAME]


@pytest.mark.parametrize("kind", list(SubType))
def test_entries_are_acknowledged_one_by_one(pulsar: PulsarUnderTest, open_consumer: Open, kind: SubType):
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(10)])
    consumer = open_consumer(topic, kind, consumer_name="ours")
    consumer.grant(100)
    messages = take(consumer, 10)
    assert ids(messages) == sent
    assert counts(messages) == [0] * 10
    consumer.acknowledge(sent[::2]).result(PATIENCE)
    stats = consumer.request_stats().result(PATIENCE)
    assert (stats.msg_backlog, stats.consumer_name) == (5, "ours")
    shown = subscription_stats(pulsar, topic)
    assert (shown["msgBacklog"], shown["type"]) == (5, kind.name)
    assert [one["consumerName"] for one in shown["consumers"]] == ["ours"]
    consumer.close(timeout_seconds=PATIENCE)
    again = open_consumer(topic, kind)
    again.grant(100)
    assert ids(take(again, 5)) == sent[1::2]
    # Seen on broker 4.0.8: when the last consumer leaves, redelivery counts are reset.
    assert nothing_comes(again)
    again.acknowledge(sent).result(PATIENCE)
    assert again.request_stats().result(PATIENCE).msg_backlog == 0


def test_an_acknowledgement_in_flight_fails_when_its_consumer_is_closed(
    pulsar: PulsarUnderTest, fault_proxy: Callable[[str, int], FaultProxy]
):
    """The broker does not answer it, because the topic was unloaded, and does not report that to a closed consumer."""
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(6)])
    link = fault_proxy(*PulsarFormat(pulsar).service)
    with PulsarClient(options(pulsar, topic, serviceUrl=f"pulsar://{HOST}:{link.port}")) as client:
        subscription = Subscription(NAME, SubType.Shared, initial=InitialPosition.Earliest)
        consumer = client.open_queue_consumer(TopicPartition.parse(topic), subscription)
        consumer.grant(100)
        take(consumer, 6)
        link.stall_now()
        pulsar.admin.unload(topic)
        acknowledgement = consumer.acknowledge(sent)
        closing = consumer.request_close()
        link.resume()
        closing.result(PATIENCE)
        with pytest.raises(ServiceNotReadyError, match="the consumer was closed here"):
            acknowledgement.result(PATIENCE)
        again = client.open_queue_consumer(TopicPartition.parse(topic), subscription)
        assert again.request_stats().result(PATIENCE).msg_backlog == 6


def test_planning_does_not_take_over_a_failover_subscription(pulsar: PulsarUnderTest, open_consumer: Open):
    topic = pulsar.topic()
    publish(pulsar, topic, [b"%d" % n for n in range(6)])
    first = open_consumer(topic, SubType.Failover, consumer_name="m")
    first.grant(100)
    take(first, 6)
    for name in ("a", "b", "y", "z"):
        how = {"subscription": NAME, "subscriptionType": "failover", "maxRows": "6", "consumerName": name}
        (task,) = plan_queue(options(pulsar, topic, **how))
        assert task.max_rows == 6
    assert nothing_comes(first, 2.0)
    assert first.is_active
