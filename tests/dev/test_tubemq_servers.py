"""The TubeMQ servers that all other tests lean on do what their fixtures promise."""

from __future__ import annotations

import subprocess

import pytest

from dev.tubemq_admin import AdminError
from dev.tubemq_servers import distribution
from tests.fix_tubemq import TubeUnderTest


def produce(under_test: TubeUnderTest, topic: str, count: int) -> None:
    """Publishes with the official Java client, each message acknowledged."""
    program = "org.apache.inlong.tubemq.server.tools.cli.CliProducer"
    subprocess.run(
        [
            "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", f"{distribution()}/lib/*", program,
            "--master-servers", under_test.masters, "--topicName", topic, "--messages", str(count),
            "--message-data-size", "100", "--sync-produce", "--num-send-threads", "1",
        ],
        check=True,
        capture_output=True,
    )  # fmt: skip


def test_topics_are_never_given_twice_and_have_the_shape_asked_for(tubemq: TubeUnderTest) -> None:
    topics = [tubemq.topic(2, stores=2) for _ in range(2)]
    assert topics[0] != topics[1]
    for topic in topics:
        (found,) = tubemq.admin.query("admin_query_topic_info", topicName=topic)
        (place,) = found["topicInfo"]
        assert (place["brokerId"], place["runInfo"]["numPartitions"], place["runInfo"]["numTopicStores"]) == (1, 2, 2)


def test_java_client_publishes_to_both_brokers(tubemq: TubeUnderTest) -> None:
    topic = tubemq.topic(2, brokers=(1, 2))
    produce(tubemq, topic, 100)
    messages = sum(tubemq.admin.topic_range(broker_id, topic, 0)[1] // 28 for broker_id in (1, 2))
    assert messages == 100


def test_admin_error_carries_the_masters_words(tubemq: TubeUnderTest) -> None:
    with pytest.raises(AdminError, match="brokerId"):
        tubemq.admin.modify("admin_reload_broker_configure")
