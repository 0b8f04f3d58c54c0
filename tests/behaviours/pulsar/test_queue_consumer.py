"""Consumers of one subscription whose messages are acknowledged one by one: the facts that queue mode stands on."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from spark_mq_source.core.errors import BrokerError, ResourceBusyError, ServiceNotReadyError
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
SHARED_TYPES = [SubType.Shared, SubType.Key_Shared]
ALONE_TYPES = [SubType.Exclusive, SubType.Failover]

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


@pytest.mark.parametrize("kind", SHARED_TYPES)
def test_what_is_put_back_comes_again_and_is_counted(pulsar: PulsarUnderTest, open_consumer: Open, kind: SubType):
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(6)])
    consumer = open_consumer(topic, kind)
    consumer.grant(100)
    take(consumer, 6)
    for times in range(1, 4):
        consumer.put_back(sent[:3])
        again = take(consumer, 3)
        assert ids(again) == sent[:3]
        assert counts(again) == [times] * 3
    assert nothing_comes(consumer)


@pytest.mark.parametrize("kind", ALONE_TYPES)
def test_who_is_alone_puts_everything_back_uncounted(pulsar: PulsarUnderTest, open_consumer: Open, kind: SubType):
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(6)])
    consumer = open_consumer(topic, kind)
    consumer.grant(100)
    take(consumer, 6)
    consumer.acknowledge(sent[1:2]).result(PATIENCE)
    consumer.put_back(sent[:1])
    again = take(consumer, 5)
    # Seen on broker 4.0.8: Exclusive and Failover rewind, whatever was asked for, and count nothing.
    assert ids(again) == [*sent[:1], *sent[2:]]
    assert counts(again) == [0] * 5


@pytest.mark.parametrize("kind", SHARED_TYPES)
def test_what_a_closed_consumer_had_goes_to_another(pulsar: PulsarUnderTest, open_consumer: Open, kind: SubType):
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(6)])
    first = open_consumer(topic, kind)
    first.grant(100)
    take(first, 6)
    first.put_back(sent[:1])
    assert counts(take(first, 1)) == [1]
    second = open_consumer(topic, kind)
    second.grant(100)
    assert nothing_comes(second, 0.5)
    first.acknowledge(sent[5:]).result(PATIENCE)
    first.close(timeout_seconds=PATIENCE)
    got = sorted(take(second, 5), key=lambda message: message.entry_id)
    assert ids(got) == sent[:5]
    # Seen on broker 4.0.8: what was counted stays, and the end of a consumer counts for nothing.
    assert counts(got) == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("kind", list(SubType))
def test_what_a_lost_consumer_had_goes_to_the_next(pulsar: PulsarUnderTest, open_consumer: Open, kind: SubType):
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(6)])
    first = open_consumer(topic, kind)
    first.grant(100)
    take(first, 6)
    if kind in SHARED_TYPES:
        first.put_back(sent[:3])
        assert counts(take(first, 3)) == [1] * 3
    first.session.close()
    wait_until(lambda: not subscription_stats(pulsar, topic)["consumers"], "the broker knows that it is gone")
    second = open_consumer(topic, kind)
    second.grant(100)
    got = take(second, 6)
    assert ids(got) == sent
    # Seen on broker 4.0.8: nobody was left to count for.
    assert counts(got) == [0] * 6


def test_an_acknowledgement_from_another_consumer(pulsar: PulsarUnderTest, open_consumer: Open):
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(6)])
    first, second = open_consumer(topic, consumer_name="first"), open_consumer(topic, consumer_name="second")
    first.grant(100)
    take(first, 6)
    second.acknowledge(sent[:3]).result(PATIENCE)
    stats = subscription_stats(pulsar, topic)
    unacked = {one["consumerName"]: one["unackedMessages"] for one in stats["consumers"]}
    assert (stats["msgBacklog"], unacked) == (3, {"first": 3, "second": 0})
    first.close(timeout_seconds=PATIENCE)
    second.grant(100)
    assert ids(take(second, 3)) == sent[3:]


def test_what_does_not_exist_is_acknowledged_too(pulsar: PulsarUnderTest, open_consumer: Open):
    """Seen on broker 4.0.8: an answer to ACK says that it was read, and nothing of what was in it."""
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(6)])
    consumer = open_consumer(topic)
    ledger = sent[-1][0]
    for nowhere in [(ledger, 99), (ledger + 1000, 0), (-1, -1), (0, 0)]:
        consumer.acknowledge([nowhere]).result(PATIENCE)
    assert consumer.request_stats().result(PATIENCE).msg_backlog == 6
    consumer.grant(100)
    assert ids(take(consumer, 6)) == sent


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


def test_a_failover_subscription_has_one_active_consumer(pulsar: PulsarUnderTest, open_consumer: Open):
    topic = pulsar.topic()
    sent = publish(pulsar, topic, [b"%d" % n for n in range(6)])
    first = open_consumer(topic, SubType.Failover, consumer_name="a")
    first.grant(100)
    take(first, 6)
    first.acknowledge(sent[:2]).result(PATIENCE)
    second = open_consumer(topic, SubType.Failover, consumer_name="b", priority_level=1)
    second.grant(100)
    assert nothing_comes(second, 2.0)
    assert active(first, second) == [True, False]
    first.close(timeout_seconds=PATIENCE)
    assert ids(take(second, 4)) == sent[2:]
    assert second.is_active


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
        open_consumer(topic, SubType.Exclusive, timeout="3s")
    with pytest.raises(ResourceBusyError, match="Subscription is of different type"):
        open_consumer(topic, SubType.Shared, timeout="3s")
    first.close(timeout_seconds=PATIENCE)
    # Without consumers a subscription takes any type.
    assert open_consumer(topic, SubType.Shared).request_stats().result(PATIENCE).type == "Shared"


def test_the_keys_of_a_subscription_are_divided(pulsar: PulsarUnderTest, open_consumer: Open):
    topic = pulsar.topic()
    keys = [f"k{n}" for n in range(20)]
    consumers = [open_consumer(topic, SubType.Key_Shared, consumer_name=f"c{n}") for n in range(2)]
    for consumer in consumers:
        consumer.grant(1000)
    sent = publish(pulsar, topic, [b"%d" % n for n in range(100)], keys=keys)
    got = [ids(messages) for messages in receive_all(consumers, 100)]
    assert sorted(got[0] + got[1]) == sent
    # Each consumer has its keys for itself, in their order.
    of_key = [{n % 20 for n, entry in enumerate(sent) if entry in taken} for taken in map(set, got)]
    assert all(of_key)
    assert not of_key[0] & of_key[1]
    assert got == [sorted(got[0]), sorted(got[1])]


def receive_all(consumers: Sequence[QueueConsumer], count: int) -> list[list[Any]]:
    """What each consumer got of so many messages."""
    found: list[list[Any]] = [[] for _ in consumers]
    deadline = time.monotonic() + PATIENCE
    while sum(map(len, found)) < count:
        assert time.monotonic() < deadline, f"{list(map(len, found))} of {count} messages came"
        for one, consumer in zip(found, consumers, strict=True):
            one.extend(consumer.receive(max_bytes=1 << 20, timeout_seconds=0.05))
    return found


def test_a_key_stays_where_it_is_until_it_is_acknowledged(pulsar: PulsarUnderTest, open_consumer: Open):
    """Seen on broker 4.0.8: also if its hash belongs to another consumer now; what was sent is not taken back."""
    topic = pulsar.topic()
    keys = [f"k{n}" for n in range(20)]
    # Names say how the hashes are divided.
    first = open_consumer(topic, SubType.Key_Shared, consumer_name="c0")
    first.grant(1000)
    sent = publish(pulsar, topic, [b"%d" % n for n in range(20)], keys=keys)
    take(first, 20)
    second = open_consumer(topic, SubType.Key_Shared, consumer_name="c1")
    second.grant(1000)
    publish(pulsar, topic, [b"more %d" % n for n in range(20)], keys=keys)
    # Those of the first that remain the first's come; no message of a key that moves does.
    kept = take(first, 1)
    assert nothing_comes(second)
    first.acknowledge(sent).result(PATIENCE)
    kept_and_moved = receive_all([first, second], 20 - len(kept))
    assert kept_and_moved[1]


def sticky_keys(count: int, *, below: bool) -> list[str]:
    """Keys in the lower or the upper half of the hashes: MurmurHash3 (32 bits, seed 0) modulo 65536."""
    found: list[str] = []
    for n in itertools.count():
        key = f"k{n}"
        if (murmur3(key.encode()) % 65536 < 32768) == below:
            found.append(key)
        if len(found) == count:
            return found
    raise AssertionError


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 without its sign, of seed 0, as `Murmur3_32Hash` of the broker."""
    mask, value = 0xFFFFFFFF, 0

    def mixed(k: int) -> int:
        k = k * 0xCC9E2D51 & mask
        return (k << 15 | k >> 17) * 0x1B873593 & mask

    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        value ^= mixed(int.from_bytes(data[at : at + 4], "little"))
        value = ((value << 13 | value >> 19) & mask) * 5 + 0xE6546B64 & mask
    if data[whole:]:
        value ^= mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    return (value ^ value >> 16) & 0x7FFFFFFF


def test_sticky_consumers_get_the_keys_of_their_ranges(pulsar: PulsarUnderTest, open_consumer: Open):
    topic = pulsar.topic()
    low, high = sticky_keys(5, below=True), sticky_keys(5, below=False)
    upper = open_consumer(topic, SubType.Key_Shared, key_ranges=((32768, 65535),))
    upper.grant(1000)
    sent = publish(pulsar, topic, [b"%d" % n for n in range(20)], keys=[*low, *high])
    of_upper = [entry for n, entry in enumerate(sent) if n % 10 >= 5]
    assert ids(take(upper, 10)) == of_upper
    # Nobody has the others' hashes: they wait.
    assert nothing_comes(upper)
    with pytest.raises(BrokerError, match=r"ConsumerAssignError \(19\)"):
        open_consumer(topic, SubType.Key_Shared, key_ranges=((60000, 65535),), timeout="3s")
    with pytest.raises(BrokerError):
        open_consumer(topic, SubType.Key_Shared, timeout="3s")
    lower = open_consumer(topic, SubType.Key_Shared, key_ranges=((0, 10000), (10001, 32767)))
    lower.grant(1000)
    assert ids(take(lower, 10)) == [entry for entry in sent if entry not in of_upper]


def test_unacknowledged_messages_are_limited_by_the_broker(pulsar: PulsarUnderTest, open_consumer: Open):
    namespace = pulsar.new_namespace()
    pulsar.admin.request("POST", f"namespaces/{namespace}/maxUnackedMessagesPerConsumer", 5)
    topic = pulsar.topic(namespace=namespace)
    sent = publish(pulsar, topic, [b"%d" % n for n in range(20)])
    consumer = open_consumer(topic)
    consumer.grant(100)

    def is_blocked() -> bool:
        return bool(consumer.request_stats().result(PATIENCE).blocked_consumer_on_unacked_msgs)

    wait_until(is_blocked, "the broker sends no more")
    unacked = consumer.request_stats().result(PATIENCE).unacked_messages
    assert 5 <= unacked < 20
    begun = take(consumer, unacked)
    assert nothing_comes(consumer)
    assert len(begun) == unacked

    rest = list(begun)
    while len(rest) < 20:
        consumer.acknowledge(ids(rest)).result(PATIENCE)
        rest += take(consumer, 1)
    assert ids(rest) == sent


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


def test_consumers_of_lower_levels_come_first(pulsar: PulsarUnderTest, open_consumer: Open):
    topic = pulsar.topic()
    second = open_consumer(topic, priority_level=1)
    first = open_consumer(topic, priority_level=0)
    grant(second, 100)
    grant(first, 10)
    sent = publish(pulsar, topic, [b"%d" % n for n in range(15)])
    assert ids(take(first, 10)) == sent[:10]
    assert ids(take(second, 5)) == sent[10:]


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


def test_each_message_is_one_consumers_whoever_joins_and_leaves(pulsar: PulsarUnderTest, open_consumer: Open):
    import pulsar as official

    topic = pulsar.topic()
    first = open_consumer(topic)
    first.grant(100)
    sent = publish(pulsar, topic, [b"%d" % n for n in range(300)])
    ours = take(first, 50)
    first.acknowledge(ids(ours[:40])).result(PATIENCE)
    other = pulsar.client().subscribe(topic, NAME, official.ConsumerType.Shared, receiver_queue_size=60)
    theirs = [other.receive(20_000) for _ in range(60)]
    for message in theirs:
        other.acknowledge(message)
    # It does not wait for the answers, and its acknowledgements may be lost when it is closed before they are there.
    wait_until(
        lambda: first.request_stats().result(PATIENCE).msg_backlog == 200, "the broker knows of all that is done"
    )
    # What it has not acknowledged goes to whoever is there next, as does what the other one has queued.
    first.close(timeout_seconds=PATIENCE)
    other.close()
    second = open_consumer(topic)
    second.grant(1000)
    rest = take(second, 300 - 40 - 60)
    assert nothing_comes(second, 0.5)
    second.acknowledge(ids(rest)).result(PATIENCE)
    of_theirs = [(one.message_id().ledger_id(), one.message_id().entry_id()) for one in theirs]
    assert sorted(ids(ours[:40]) + of_theirs + ids(rest)) == sent
    assert second.request_stats().result(PATIENCE).msg_backlog == 0
