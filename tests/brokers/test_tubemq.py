"""The TubeMQ servers of the fixtures that all other tests use."""

from __future__ import annotations

import contextlib
import socket
import ssl

import pytest

from brokers.tubemq_admin import AdminError
from tests.fix_tubemq import TubeUnderTest


def test_topics_are_unique_and_have_the_requested_shape(tubemq: TubeUnderTest) -> None:
    topics = [tubemq.topic(2, stores=2) for _ in range(2)]
    assert topics[0] != topics[1]
    for topic in topics:
        (found,) = tubemq.admin.query("admin_query_topic_info", topicName=topic)
        (place,) = found["topicInfo"]
        assert (place["brokerId"], place["runInfo"]["numPartitions"], place["runInfo"]["numTopicStores"]) == (1, 2, 2)


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
