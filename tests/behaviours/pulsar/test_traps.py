"""Requests that make a broker disconnect, hang or start over (seen on 4.0.8): refused or avoided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.consumer import Consumer
from spark_mq_source.pulsar.offsets import EARLIEST, TopicPartition
from tests.formats.pulsar import PulsarFormat

VALUES = [str(n).encode() for n in range(20)]


@pytest.fixture
def topic(pulsar_format: PulsarFormat) -> str:
    """Return a topic of one partition with `VALUES`."""
    topic = pulsar_format.broker.topic()
    pulsar_format.publish(topic, VALUES)
    return topic


@pytest.fixture
def client(pulsar_format: PulsarFormat, topic: str) -> Iterator[PulsarClient]:
    with PulsarClient(pulsar_format.options(topic)) as client:
        yield client


@pytest.fixture
def consumer(client: PulsarClient, topic: str) -> Consumer:
    """Return a consumer at the start of the topic, without permits."""
    return client.open_consumer(TopicPartition(topic, -1), EARLIEST)


def test_a_terminated_topic_whose_end_is_announced_only_after_acks_ends(pulsar_format, topic):
    pulsar_format.broker.admin.terminate(topic)
    assert pulsar_format.read(topic).column("value").to_pylist() == VALUES


def test_a_subscription_name_is_never_used_twice(client, consumer, topic, pulsar_format):
    # A second non-durable consumer of the same name would share the first one's cursor, its start ignored.
    second = client.open_consumer(TopicPartition(topic, -1), EARLIEST)
    assert len(set(pulsar_format.broker.admin.subscriptions(topic))) == 2
    for one in consumer, second:
        one.grant(1000)
        first = one.receive(max_bytes=1, timeout_seconds=10)[0]
        assert (first.ledger_id, first.entry_id) == (consumer.opened.last.ledger, 0)


def test_the_users_subscription_name_is_a_prefix_of_the_names_on_the_broker(pulsar_format, topic):
    pulsar_format.publish(topic, VALUES)  # a second entry: the reader is not yet done with the first batch of rows
    batches = pulsar_format.batches(topic, subscription="nightly", maxBatchRows=1)
    next(batches)
    (name,) = pulsar_format.broker.admin.subscriptions(topic)
    assert name.startswith("nightly-")
    batches.close()
