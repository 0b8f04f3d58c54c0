"""The Pulsar brokers of the fixtures that all other tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokers.pulsar import Ports, PulsarStandalone
from brokers.pulsar_admin import AdminError
from tests.fix_brokers import PulsarUnderTest


def publish(under_test: PulsarUnderTest, topic: str, count: int) -> None:
    producer = under_test.client().create_producer(topic)
    for number in range(count):
        producer.send(b"%d" % number)


def test_stock_broker_has_the_requested_version_and_keeps_read_data(
    pulsar: PulsarUnderTest, pytestconfig: pytest.Config
) -> None:
    assert pulsar.admin.broker_version() == pytestconfig.getoption("--pulsar-version")
    topic = pulsar.topic()
    publish(pulsar, topic, 5)
    assert pulsar.admin.stats(topic)["msgInCounter"] == 5
    policy = pulsar.admin.request("GET", f"namespaces/{pulsar.namespace}/retention")
    assert policy == {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}


def test_new_topics_have_the_partitions_and_unique_names(pulsar: PulsarUnderTest) -> None:
    first, second = pulsar.topic(partitions=3), pulsar.topic(partitions=3)
    assert first != second
    assert pulsar.admin.partitioned_stats(first)["metadata"]["partitions"] == 3


def test_admin_error_has_the_status_and_the_brokers_message(pulsar: PulsarUnderTest) -> None:
    with pytest.raises(AdminError, match="not found") as caught:
        pulsar.admin.stats(pulsar.unused_topic())
    assert caught.value.status == 404


def test_featured_broker_rolls_small_ledgers(pulsar_featured: PulsarUnderTest) -> None:
    topic = pulsar_featured.topic()
    publish(pulsar_featured, topic, 25)
    assert [entries for _, entries in pulsar_featured.admin.ledgers(topic)][:3] == [10, 10, 5]


def test_a_broker_that_cannot_start_reports_the_cause(tmp_path: Path, pulsar: PulsarUnderTest) -> None:
    taken = int(pulsar.service_url.rpartition(":")[2])
    free = PulsarStandalone(tmp_path, ports=Ports(broker=taken, web=0, bookie=0))
    with pytest.raises(RuntimeError, match="ended while starting"):
        free.start()
    free.kill()
