"""Consumers of one subscription whose messages are acknowledged one by one: the facts that queue mode stands on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from spark_mq_source.core.errors import ResourceBusyError, ServiceNotReadyError
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
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_net import HOST, FaultProxy
from tests.formats.pulsar import PulsarFormat

PATIENCE = 30.0
NAME = "s"
Open = Callable[..., QueueConsumer]
Entry = tuple[int, int]


@pytest.fixture
def open_consumer(pulsar: PulsarUnderTest) -> Iterator[Open]:
    """Opens consumers, each on connections of its own: `open_consumer(topic, SubType.Shared, consumer_name="a")`."""
    with contextlib.ExitStack() as stack:

        def open_(topic: str, kind: SubType = SubType.Shared, *, timeout: str = "10s", **how: Any) -> QueueConsumer:
            client = stack.enter_context(PulsarClient(options(pulsar, "t", operationTimeout=timeout)))
            subscription = Subscription(NAME, kind, **{"initial": InitialPosition.Earliest} | how)
            return client.open_queue_consumer(TopicPartition.parse(topic), subscription)

        yield open_


def options(pulsar: PulsarUnderTest, topic: str, **more: str) -> PulsarOptions:
    given = {"serviceUrl": pulsar.service_url, "topic": topic} | more
    return PulsarOptions.from_spark({name.lower(): value for name, value in given.items()}, READ)


def publish(pulsar: PulsarUnderTest, topic: str, values: Sequence[bytes], *, keys: Sequence[str] = ()) -> list[Entry]:
    """One message an entry."""
    with RawProducer(PulsarFormat(pulsar).service, topic) as producer:
        return [
            producer.send(raw.metadata(raw.text(6, keys[n % len(keys)]) if keys else b"", sequence_id=n), value)
            for n, value in enumerate(values)
        ]


def take(consumer: QueueConsumer, count: int) -> list[Any]:
    """So many messages, which must come."""
    found: list[Any] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} messages came"
        found += consumer.receive(max_bytes=1 << 20, timeout_seconds=1)
    return found


def nothing_comes(consumer: QueueConsumer, seconds: float = 1.0) -> bool:
    return not consumer.receive(max_bytes=1 << 20, timeout_seconds=seconds)


def grant(consumer: QueueConsumer, permits: int) -> None:
    """Permits that the broker has when this returns: others' commands may overtake FLOW, which has no answer."""
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
    assert (stats.msg_backlog, stats.type, stats.consumer_name) == (5, kind.name, "ours")
    told = subscription_stats(pulsar, topic)
    assert (told["msgBacklog"], told["type"]) == (5, kind.name)
    assert [one["consumerName"] for one in told["consumers"]] == ["ours"]
    consumer.close(timeout_seconds=PATIENCE)
    again = open_consumer(topic, kind)
    again.grant(100)
    assert ids(take(again, 5)) == sent[1::2]
    # Seen on broker 4.0.8: when the last consumer leaves, what was counted is forgotten.
    assert nothing_comes(again)
    again.acknowledge(sent).result(PATIENCE)
    assert again.request_stats().result(PATIENCE).msg_backlog == 0


def test_an_acknowledgement_that_crosses_the_end_of_its_consumer_fails_when_that_is_closed(
    pulsar: PulsarUnderTest, fault_proxy: Callable[[str, int], FaultProxy]
):
    """The broker does not answer it, because the topic was unloaded, and says so to a consumer that is closed here."""
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


def active(*consumers: QueueConsumer) -> list[bool]:
    return [consumer.is_active for consumer in consumers]


def test_who_only_asks_does_not_take_a_failover_subscription_over(pulsar: PulsarUnderTest, open_consumer: Open):
    """The consumers of the lowest priority level are candidates; others' names do not count (seen on 4.0.8)."""
    topic = pulsar.topic()
    publish(pulsar, topic, [b"%d" % n for n in range(6)])
    first = open_consumer(topic, SubType.Failover, consumer_name="m")
    first.grant(100)
    take(first, 6)
    for name in ("a", "b", "x", "y", "z"):
        asking = open_consumer(topic, SubType.Failover, consumer_name=name, priority_level=2**31 - 1)
        assert asking.request_stats().result(PATIENCE).msg_backlog == 6
        asking.close(timeout_seconds=PATIENCE)
        assert active(first, asking) == [True, False]
    # Had another one been active meanwhile, everything would come again.
    assert nothing_comes(first, 2.0)


def test_a_driver_that_plans_does_not_take_a_failover_subscription_over(pulsar: PulsarUnderTest, open_consumer: Open):
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


def test_an_exclusive_subscription_has_one_consumer(pulsar: PulsarUnderTest, open_consumer: Open):
    topic = pulsar.topic()
    first = open_consumer(topic, SubType.Exclusive)
    with pytest.raises(ResourceBusyError, match="Exclusive consumer is already connected"):
        open_consumer(topic, SubType.Exclusive, timeout="1s")
    with pytest.raises(ResourceBusyError, match="Subscription is of different type"):
        open_consumer(topic, SubType.Shared, timeout="1s")
    first.close(timeout_seconds=PATIENCE)
    # Without consumers a subscription takes any type.
    assert open_consumer(topic, SubType.Shared).request_stats().result(PATIENCE).type == "Shared"


def test_what_the_broker_shows_of_a_subscription_and_its_consumers(pulsar: PulsarUnderTest, open_consumer: Open):
    topic = pulsar.topic()
    how: dict[str, Any] = {"properties": {"team": "a", "ü": ""}, "priority_level": 3, "consumer_name": "spark-0"}
    open_consumer(topic, **how)
    stats = subscription_stats(pulsar, topic)
    assert stats["subscriptionProperties"] == {"team": "a", "ü": ""}
    (consumer,) = stats["consumers"]
    assert consumer["consumerName"] == "spark-0"
    # Properties are of who makes a subscription.
    open_consumer(topic, **how | {"properties": {"team": "b"}, "consumer_name": "spark-1"})
    stats = subscription_stats(pulsar, topic)
    assert stats["subscriptionProperties"] == {"team": "a", "ü": ""}
    assert sorted(one["consumerName"] for one in stats["consumers"]) == ["spark-0", "spark-1"]


@pytest.mark.parametrize("initial", list(InitialPosition))
def test_where_a_new_subscription_begins(pulsar: PulsarUnderTest, open_consumer: Open, initial: InitialPosition):
    topic = pulsar.topic()
    before = publish(pulsar, topic, [b"0"])
    consumer = open_consumer(topic, initial=initial)
    after = publish(pulsar, topic, [b"1"])
    consumer.grant(10)
    expected = after if initial is InitialPosition.Latest else before + after
    assert ids(take(consumer, len(expected))) == expected


@pytest.mark.parametrize("kind", list(SubType))
def test_the_end_of_a_terminated_topic(pulsar: PulsarUnderTest, open_consumer: Open, kind: SubType):
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(3)])
    consumer = open_consumer(topic, kind)
    consumer.grant(10)
    take(consumer, 3)
    pulsar.admin.terminate(topic)
    consumer.acknowledge(sent[1:]).result(PATIENCE)
    assert nothing_comes(consumer)
    assert not consumer.has_ended
    consumer.acknowledge(sent[:1]).result(PATIENCE)
    wait_until(lambda: consumer.has_ended, "the end of the topic")


@pytest.mark.parametrize("kind", list(SubType))
def test_a_topic_that_is_not_persistent(pulsar: PulsarUnderTest, open_consumer: Open, kind: SubType):
    """Seen on broker 4.0.8: who is not there, or has no permits, loses what is published, and nothing comes again.

    All messages have the same id, so none can be told from another by it.
    """
    topic = pulsar.unused_topic().replace("persistent://", "non-persistent://")
    pulsar.admin.create_topic(topic)
    publish(pulsar, topic, [b"lost"])
    consumer = open_consumer(topic, kind)
    publish(pulsar, topic, [b"lost too"])
    grant(consumer, 10)
    publish(pulsar, topic, [b"%d" % n for n in range(3)])
    messages = take(consumer, 3)
    assert [bytes(message.body)[-1:] for message in messages] == [b"0", b"1", b"2"]
    assert ids(messages) == [(0, 0)] * 3
    stats = consumer.request_stats().result(PATIENCE)
    assert (stats.msg_backlog, stats.unacked_messages, stats.available_permits) == (0, 0, 7)
    consumer.put_back(ids(messages))
    assert nothing_comes(consumer)
    consumer.acknowledge(ids(messages)).result(PATIENCE)
