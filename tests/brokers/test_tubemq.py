"""The TubeMQ servers of the fixtures that all other tests use."""

from __future__ import annotations

import contextlib
import socket
import ssl

import pytest

from brokers.tubemq_admin import AdminError
from tests.behaviours.tubemq.java_client import Place, TubeJavaClient
from tests.fix_tubemq import TubeUnderTest


def test_topics_are_unique_and_have_the_requested_shape(tubemq: TubeUnderTest) -> None:
    topics = [tubemq.topic(2, stores=2) for _ in range(2)]
    assert topics[0] != topics[1]
    for topic in topics:
        (found,) = tubemq.admin.query("admin_query_topic_info", topicName=topic)
        (place,) = found["topicInfo"]
        assert (place["brokerId"], place["runInfo"]["numPartitions"], place["runInfo"]["numTopicStores"]) == (1, 2, 2)


def test_java_client_publishes_and_reads_types_times_and_attributes(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient
) -> None:
    topic = tubemq.topic(3)
    message = {"value": b"\x00\xff", "type": "a", "time": "202601021504", "attributes": {"k": "v"}}
    places = tube_java.produce(tubemq.cluster, topic, [message, b"plain", {"value": b"b", "type": "b"}])
    assert len({place.offset for place in places}) == 3
    found = tube_java.consume(tubemq.cluster, topic, tubemq.group(), 3)
    assert sorted((m.value, m.type, m.time) for m in found) == [
        (b"\x00\xff", "a", "202601021504"),
        (b"b", "b", None),
        (b"plain", None, None),
    ]
    assert {"k=v"} <= {pair for m in found if m.type == "a" for pair in (m.attributes or "").split(",")}


def test_messages_of_both_brokers_can_be_read_by_a_client_that_chooses_its_partitions(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient
) -> None:
    topic = tubemq.topic(2, brokers=(1, 2))
    places: list[Place] = []
    # It sends to the brokers that it is already connected to, and connects to others in the background.
    while {place.broker_id for place in places} != {1, 2}:
        places += tube_java.produce(tubemq.cluster, topic, [b"%d" % len(places)])
    ranges = [tubemq.admin.topic_range(broker_id, topic, 0) for broker_id in (1, 2)]
    assert sum(end - begin for begin, end in ranges) == 28 * len(places)
    found = tube_java.consume(tubemq.cluster, topic, tubemq.group(), len(places), balanced=True)
    assert sorted(int(message.value) for message in found) == list(range(len(places)))


def test_members_of_a_group_share_partitions_and_release_them(tubemq: TubeUnderTest, tube_java: TubeJavaClient) -> None:
    topic, group = tubemq.topic(3), tubemq.group()
    with tube_java.join(tubemq.cluster, [topic], group) as first:
        first.wait_until(lambda member: len(member.held) == 3, "the only member holds all")
        with tube_java.join(tubemq.cluster, [topic], group) as second:
            second.wait_until(lambda member: len(member.held) == 1, "the second member holds one")
            assert len(first.look().held) == 2
        first.wait_until(lambda member: len(member.held) == 3, "all have come back")


def test_committed_positions_are_visible_at_the_broker(tubemq: TubeUnderTest, tube_java: TubeJavaClient) -> None:
    topic, group = tubemq.topic(), tubemq.group()
    tube_java.produce(tubemq.cluster, topic, [b"%d" % number for number in range(10)])
    tube_java.consume(tubemq.cluster, topic, group, 10)
    assert tubemq.admin.group_offset(1, group, topic, 0) == 280
    assert tubemq.admin.group_offset(1, tubemq.group(), topic, 0) == 0


def test_secure_cluster_accepts_only_clients_with_a_certificate(tubemq_secure: TubeUnderTest) -> None:
    cluster = tubemq_secure.cluster
    assert cluster.credentials is not None
    for server in (*cluster.masters, *cluster.brokers):
        for name in ("client", None):
            context = ssl.create_default_context(cafile=cluster.credentials.ca_certificate)
            # In TLS 1.3 the server's refusal comes after the handshake.
            context.maximum_version = ssl.TLSVersion.TLSv1_2
            if name is not None:
                context.load_cert_chain(cluster.credentials.certificate(name), cluster.credentials.key(name))
            with (
                contextlib.nullcontext() if name else pytest.raises((ssl.SSLError, ConnectionError)),
                socket.create_connection((server.host, server.tls_port), 30) as plain,
                context.wrap_socket(plain, server_hostname=server.host) as secured,
            ):
                assert secured.version() == "TLSv1.2"


def test_admin_error_has_the_masters_message(tubemq: TubeUnderTest) -> None:
    with pytest.raises(AdminError, match="brokerId"):
        tubemq.admin.modify("admin_reload_broker_configure")
