"""A consumer with individual acknowledgements, against a scripted broker: late, invalid and missing answers."""

import pytest

from spark_mq_source.core.errors import BrokerError, ConnectionLostError, MQSourceError, ServiceNotReadyError
from spark_mq_source.pulsar.client import queue_consumer as module
from spark_mq_source.pulsar.client.consumer import Subscription
from spark_mq_source.pulsar.protocol import commands as c
from tests.unit.pulsar.client import test_client
from tests.unit.pulsar.client.test_client import NONE_ID, PATIENCE, TOPIC, TP, message

broker = test_client.broker
client = test_client.client

SHARED = Subscription("s", c.SubType.Shared, consumer_name="spark-0")


def answered(_, ack):
    return c.AckResponse(ack.consumer_id, request_id=ack.request_id)


def test_the_fields_of_subscribe(broker, client):
    one = broker()
    client(one.url).open_queue_consumer(
        TP,
        Subscription(
            "s",
            c.SubType.Key_Shared,
            initial=c.InitialPosition.Earliest,
            properties={"team": "a"},
            consumer_name="spark-0",
            priority_level=2,
            key_ranges=((0, 9), (20, 65535)),
        ),
    )
    (subscribe,) = one.of(c.Subscribe)
    ranges = (c.IntRange(0, 9), c.IntRange(20, 65535))
    assert subscribe == c.Subscribe(
        TOPIC,
        "s",
        c.SubType.Key_Shared,
        subscribe.consumer_id,
        subscribe.request_id,
        consumer_name="spark-0",
        initial_position=c.InitialPosition.Earliest,
        force_topic_creation=False,
        priority_level=2,
        key_shared_meta=c.KeySharedMeta(c.KeySharedMode.STICKY, ranges),
        subscription_properties=(c.KeyValue(key="team", value="a"),),
    )


def test_a_consumer_that_is_active_again_knows_that_another_was_active(broker, client):
    consumer = client(broker().url).open_queue_consumer(TP, Subscription("s", c.SubType.Failover))
    assert not consumer.is_active
    seen = []
    for is_active in (True, False, True):
        consumer.note_active(is_active=is_active)
        seen.append((consumer.is_active, consumer.was_replaced))
    assert seen == [(True, False), (False, True), (True, True)]


def test_ids_are_sent_in_bounded_commands_at_once(broker, client, monkeypatch):
    monkeypatch.setattr(module, "MAX_IDS", 3)
    held = []

    def hold(link, ack):
        held.append(ack)
        # Answered in another order, once all have arrived.
        return [answered(link, one) for one in reversed(held)] if len(held) == 3 else None

    one = broker({c.Ack: hold})
    consumer = client(one.url).open_queue_consumer(TP, SHARED)
    consumer.acknowledge([(7, n) for n in range(7)]).result(PATIENCE)
    assert [[m.entry_id for m in ack.message_ids] for ack in one.of(c.Ack)] == [[0, 1, 2], [3, 4, 5], [6]]


def test_nothing_to_acknowledge(broker, client):
    one = broker()
    assert client(one.url).open_queue_consumer(TP, SHARED).acknowledge([]).done()
    assert one.of(c.Ack) == []


def test_a_refused_acknowledgement(broker, client, monkeypatch):
    monkeypatch.setattr(module, "MAX_IDS", 1)

    def refuse_second(_, ack):
        refused = ack.message_ids[0].entry_id == 1
        return c.AckResponse(ack.consumer_id, 2 if refused else None, "no room" if refused else "", ack.request_id)

    one = broker({c.Ack: refuse_second})
    acknowledgement = client(one.url).open_queue_consumer(TP, SHARED).acknowledge([(7, 0), (7, 1), (7, 2)])
    with pytest.raises(ServiceNotReadyError, match=r"PersistenceError \(2\): no room"):
        acknowledgement.result(PATIENCE)
    assert len(one.of(c.Ack)) == 3


def test_an_acknowledgement_after_the_broker_s_close_is_not_awaited(broker, client):
    one = broker({c.Ack: lambda _, ack: c.CloseConsumer(ack.consumer_id, NONE_ID)})
    consumer = client(one.url).open_queue_consumer(TP, SHARED)
    with pytest.raises(ServiceNotReadyError, match="closed the consumer"):
        consumer.acknowledge([(7, 0)]).result(PATIENCE)
    with pytest.raises(ServiceNotReadyError, match="subscribe again"):
        consumer.acknowledge([(7, 0)]).result(PATIENCE)
    with pytest.raises(ServiceNotReadyError, match="closed the consumer"):
        consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)


def test_an_answer_after_the_broker_s_close_changes_nothing(broker, client):
    def both(_, ack):
        return [c.CloseConsumer(ack.consumer_id, NONE_ID), answered(_, ack)]

    one = broker({c.Ack: both})
    asking = client(one.url)
    acknowledgement = asking.open_queue_consumer(TP, SHARED).acknowledge([(7, 0)])
    assert isinstance(acknowledgement.exception(PATIENCE), ServiceNotReadyError)
    assert asking.fetch_partitions([TOPIC]) == [TP]


def test_acknowledgements_of_a_lost_connection(broker, client):
    def cut(link, _):
        link.peer.reset()

    one = broker({c.Ack: cut})
    consumer = client(one.url).open_queue_consumer(TP, SHARED)
    assert isinstance(consumer.acknowledge([(7, 0)]).exception(PATIENCE), ConnectionLostError)
    assert isinstance(consumer.acknowledge([(7, 0)]).exception(PATIENCE), ConnectionLostError)
    consumer.close(timeout_seconds=PATIENCE)


def test_an_answer_behind_more_messages_than_the_queue_holds(broker, client):
    def flood(_, ack):
        return [*(message(n, 100_000, ack.consumer_id) for n in range(100)), answered(_, ack)]

    one = broker({c.Flow: lambda _, flow: [message(n, 100_000, flow.consumer_id) for n in range(30)], c.Ack: flood})
    consumer = client(one.url, receiveQueueBytes="1mb").open_queue_consumer(TP, SHARED)
    consumer.grant(200)
    (first,) = consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)
    consumer.acknowledge([(first.ledger_id, first.entry_id)]).result(PATIENCE)
    assert len(consumer._inbox.waiting()) == 129


def test_closing_waits_for_the_acknowledgements_before_it(broker, client):
    one = broker({c.Ack: answered})
    consumer = client(one.url).open_queue_consumer(TP, SHARED)
    acknowledgement = consumer.acknowledge([(7, 0)])
    consumer.close(timeout_seconds=PATIENCE)
    assert acknowledgement.done()
    assert acknowledgement.exception() is None
    with pytest.raises(ServiceNotReadyError, match="closed here"):
        consumer.receive(max_bytes=1, timeout_seconds=PATIENCE)
    with pytest.raises(MQSourceError, match="closed meanwhile, by the broker or here"):
        consumer.acknowledge([(7, 0)]).result(PATIENCE)


def test_statistics_that_are_refused(broker, client):
    def answer(_, request):
        refused = len(one.of(c.ConsumerStats)) == 2
        return c.ConsumerStatsResponse(request.request_id, 13 if refused else None, "gone", msg_backlog=7)

    one = broker({c.ConsumerStats: answer})
    consumer = client(one.url).open_queue_consumer(TP, SHARED)
    assert consumer.request_stats().result(PATIENCE).msg_backlog == 7
    with pytest.raises(BrokerError, match="gone"):
        consumer.request_stats().result(PATIENCE)
