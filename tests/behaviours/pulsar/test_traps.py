"""What makes a broker drop the connection, wait for ever or begin again (seen on 4.0.8) is refused here or avoided."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from spark_mq_source.core.errors import LocalProtocolError, MQSourceError
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.consumer import Consumer
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.protocol import commands
from tests.formats.pulsar import PulsarFormat

VALUES = [str(n).encode() for n in range(20)]


@pytest.fixture
def topic(pulsar_format: PulsarFormat) -> str:
    """A topic of one partition with `VALUES`."""
    topic = pulsar_format.broker.topic()
    pulsar_format.publish(topic, VALUES)
    return topic


@pytest.fixture
def client(pulsar_format: PulsarFormat, topic: str) -> Iterator[PulsarClient]:
    with PulsarClient(pulsar_format.options(topic)) as client:
        yield client


@pytest.fixture
def consumer(client: PulsarClient, topic: str) -> Consumer:
    """A consumer at the start of the topic, not yet granted anything."""
    return client.open_consumer(TopicPartition(topic, -1), EARLIEST)


def assert_alive(client: PulsarClient, consumer: Consumer) -> None:
    """The connection still answers, and messages still come."""
    assert client.wait(consumer.request_bounds(), "the bounds").last == consumer.opened.last
    consumer.grant(1000)
    assert consumer.receive(max_bytes=1 << 20, timeout_seconds=10)


@pytest.mark.parametrize("permits", [0, -1, 2**31, 2**32])
def test_a_flow_that_breaks_the_connection_is_refused_before_it_is_sent(client, consumer, permits):
    with pytest.raises(LocalProtocolError, match="permits"):
        consumer.grant(permits)
    assert_alive(client, consumer)


def test_permits_whose_sum_overflows_are_refused_before_they_are_sent(client, consumer):
    consumer.grant(2**31 - 1)
    with pytest.raises(LocalProtocolError, match="overflow"):
        consumer.grant(2**31 - 1)
    assert client.wait(consumer.request_bounds(), "the bounds").last == consumer.opened.last
    assert consumer.receive(max_bytes=1 << 20, timeout_seconds=10)


def test_consumer_stats_of_an_unknown_consumer_are_refused_before_they_are_sent(client, consumer):
    asked = consumer.session.request(
        lambda request_id: commands.ConsumerStats(request_id=request_id, consumer_id=99), lambda answer: answer
    )
    with pytest.raises(LocalProtocolError, match="99"):
        asked.result(10)
    assert_alive(client, consumer)


def test_the_cluster_counts_the_entries_of_a_consumer_that_was_not_granted_any(client, consumer):
    asked = consumer.session.request(
        partial(_stats, consumer),
        lambda answer: answer.msg_backlog,  # type: ignore[attr-defined]
    )
    last = consumer.opened.last
    assert asked.result(10) == last.entry + 1


def _stats(consumer: Consumer, request_id: int) -> commands.ConsumerStats:
    return commands.ConsumerStats(request_id=request_id, consumer_id=consumer._consumer_id)


@pytest.mark.parametrize("ahead", [1, 50])
def test_a_consumer_past_the_end_waits_and_does_not_begin_again(pulsar_format, client, consumer, topic, ahead):
    last = consumer.opened.last
    past = client.open_consumer(TopicPartition(topic, -1), Position(last.ledger, last.entry + ahead))
    past.grant(1000)
    # The answer comes behind any message that would have been sent.
    assert client.wait(past.request_bounds(), "the bounds").last == last
    assert past.receive(max_bytes=1 << 20, timeout_seconds=0.5) == []


def test_a_terminated_topic_whose_end_is_announced_only_after_acks_ends_all_the_same(pulsar_format, topic):
    pulsar_format.broker.admin.terminate(topic)
    assert pulsar_format.read(topic).column("value").to_pylist() == VALUES


def test_the_same_name_twice_is_never_used(client, consumer, topic, pulsar_format):
    # A second non-durable consumer of the same name would share the first one's cursor, its start ignored.
    second = client.open_consumer(TopicPartition(topic, -1), EARLIEST)
    assert len(set(pulsar_format.broker.admin.subscriptions(topic))) == 2
    for one in consumer, second:
        one.grant(1000)
        first = one.receive(max_bytes=1, timeout_seconds=10)[0]
        assert (first.ledger_id, first.entry_id) == (consumer.opened.last.ledger, 0)


def test_a_subscription_named_by_the_user_begins_the_names_shown_to_the_broker(pulsar_format, topic):
    pulsar_format.publish(topic, VALUES)  # a second entry: the reader is not yet done with the first batch of rows
    batches = pulsar_format.batches(topic, subscription="nightly", maxBatchRows=1)
    next(batches)
    (name,) = pulsar_format.broker.admin.subscriptions(topic)
    assert name.startswith("nightly-")
    batches.close()


def test_requests_after_the_connection_ended_fail_at_once(client, consumer):
    consumer.session.close()
    with pytest.raises(MQSourceError):
        consumer.grant(1)
    with pytest.raises(MQSourceError):
        client.wait(consumer.request_bounds(), "the bounds")
