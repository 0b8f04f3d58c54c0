"""A session with an NSQ broker: its negotiation, the exchange of messages, and its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_mq_source.core.errors import (
    BrokerError,
    ConnectionLostError,
    ConnectTimeoutError,
    MQSourceError,
    RequestTimeoutError,
)
from spark_mq_source.nsq.protocol.commands import Pub
from tests.behaviours.nsq.clients import Proxies, ids_of, in_front_of, open_session, receive, take
from tests.behaviours.nsq.conftest import PATIENCE_S
from tests.fix_brokers import NsqUnderTest, wait_until
from tests.fix_net import Fault, ScriptedServer, expect, stay_silent


def test_the_broker_confirms_the_negotiated_settings(nsq: NsqUnderTest):
    with open_session(
        nsq.tcp_address, msgTimeout="2s", outputBufferSize="128", outputBufferTimeout="30ms", sampleRate="7"
    ) as session:
        agreed = session.identified
    assert (agreed.version, agreed.max_rdy_count, agreed.max_msg_timeout_ms) == ("1.3.0", 2500, 900_000)
    assert (agreed.msg_timeout_ms, agreed.output_buffer_bytes, agreed.output_buffer_timeout_ms) == (2000, 128, 30)
    assert agreed.sample_rate == 7
    assert session.authorized is None
    assert session.closed


def test_the_broker_shows_the_identity_of_the_client(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    buffers = {"outputBufferSize": "-1", "outputBufferTimeout": "-1"}
    with open_session(nsq.tcp_address, clientId="me", topologyZone="z1", topologyRegion="r1", **buffers) as session:
        agreed = session.identified
        assert (agreed.output_buffer_bytes, agreed.output_buffer_timeout_ms) == (1, 0)
        session.subscribe(topic, "c")
        (client,) = nsq.channel_stats(topic, "c")["clients"]
    assert client["client_id"] == "me"
    assert client["user_agent"].startswith("spark-mq-source")
    # Only nsqd after 1.3.0 shows them.
    assert (client.get("topology_zone", "z1"), client.get("topology_region", "r1")) == ("z1", "r1")


def test_the_barrier_names_messages_finished_too_late(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    nsq.publish(topic, b"late", b"in time")
    with open_session(nsq.tcp_address, msgTimeout="1s") as slow, open_session(nsq.tcp_address) as other:
        consumer = slow.subscribe(topic, "c")
        consumer.ready(1)
        late = receive(consumer, 1)
        helper = other.subscribe(topic, "c")
        helper.ready(2)
        receive(helper, 2)  # the second of them once it has timed out
        consumer.fin(ids_of(late))
        assert consumer.close(timeout_seconds=PATIENCE_S) == ids_of(late)


def test_the_barrier_requeues_messages_not_taken(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    nsq.publish(topic, *(b"%d" % number for number in range(10)))
    with open_session(nsq.tcp_address) as session:
        consumer = session.subscribe(topic, "c")
        consumer.ready(6)
        wait_until(lambda: nsq.channel_stats(topic, "c")["in_flight_count"] == 6, "six messages are in flight")
        assert consumer.close(timeout_seconds=PATIENCE_S) == b""
        stats = nsq.channel_stats(topic, "c")
        assert (stats["depth"], stats["in_flight_count"]) == (10, 0)


def test_heartbeats_are_answered_while_no_call_waits(nsq: NsqUnderTest, fault_proxy: Proxies):
    topic = nsq.topic("c")
    proxy = in_front_of(fault_proxy, nsq)
    with open_session(proxy.address, heartbeatInterval="1s") as session:
        consumer = session.subscribe(topic, "c")
        before = proxy.passed("b2c")
        heartbeat = len(b"....____" + b"_heartbeat_")
        proxy.wait_for(lambda p: p.passed("b2c") >= before + 3 * heartbeat)
        consumer.ready(1)
        nsq.publish(topic, b"still here")
        assert take(consumer, 1) == [b"still here"]


def test_a_broker_without_heartbeats_is_disconnected(nsq: NsqUnderTest, fault_proxy: Proxies):
    proxy = in_front_of(fault_proxy, nsq)
    with open_session(proxy.address, heartbeatInterval="1s") as session:
        consumer = session.subscribe(nsq.topic("c"), "c")
        proxy.stall_now()
        with pytest.raises(ConnectionLostError, match=r"topic .*, channel c: .*nsqd was silent for 3 s") as caught:
            consumer.receive(max_bytes=1, timeout_seconds=PATIENCE_S)
        assert caught.value.retryable
        with pytest.raises(ConnectionLostError, match="silent"):
            consumer.fin(b"0123456789abcdef")
        proxy.resume()


def test_a_full_queue_stops_the_broker(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    # More than the sockets of both sides hold: on a loopback those grow to some ten megabytes.
    bodies = [b"%04d" % number + bytes(500_000) for number in range(120)]
    for body in bodies:
        nsq.publish(topic, body)

    def ready_count() -> int:
        return int(nsq.channel_stats(topic, "c")["clients"][0]["ready_count"])

    with open_session(nsq.tcp_address, receiveQueueBytes="1m") as session:
        consumer = session.subscribe(topic, "c")
        consumer.ready(2500)
        wait_until(lambda: nsq.channel_stats(topic, "c")["in_flight_count"] > 0 and ready_count() == 0, "RDY 0")
        # Messages in transit when RDY 0 arrived are in sockets and buffers.
        assert nsq.channel_stats(topic, "c")["in_flight_count"] < len(bodies)
        assert sorted(take(consumer, len(bodies))) == bodies
        assert ready_count() == 2500


def test_a_refused_publish_reports_the_brokers_message_and_ends_the_connection(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    with open_session(nsq.tcp_address) as session:
        stored = session.request(Pub(topic, b"fine"))
        refused = session.request(Pub(topic, bytes((1 << 20) + 1)))
        behind = session.request(Pub(topic, b"behind"))
        assert stored.result(PATIENCE_S) is None
        with pytest.raises(BrokerError, match="E_BAD_MESSAGE: PUB message too big 1048577 > 1048576") as caught:
            refused.result(PATIENCE_S)
        assert caught.value.code_name == "E_BAD_MESSAGE"
        assert nsq.tcp_address in str(caught.value)
        assert not caught.value.retryable
        failure = behind.exception(PATIENCE_S)
        assert isinstance(failure, ConnectionLostError), failure
        assert failure.retryable
        with pytest.raises(MQSourceError):
            session.request(Pub(topic, b"later")).result(PATIENCE_S)
    assert nsq.topic_stats(topic)["message_count"] == 1


def test_a_cut_connection_loses_no_complete_message(nsq: NsqUnderTest, fault_proxy: Proxies):
    topic = nsq.topic("c")
    nsq.publish(topic, *(b"%03d" % number for number in range(100)))
    proxy = in_front_of(fault_proxy, nsq)
    # After the answer to IDENTIFY and the OK of SUB: somewhere within the messages of 37 bytes.
    proxy.add(Fault("cut", "b2c", at=2000))
    with open_session(proxy.address) as session:
        consumer = session.subscribe(topic, "c")
        consumer.ready(100)
        got = 0
        with pytest.raises(ConnectionLostError, match=r"closed the connection|broke"):  # noqa: PT012 - until it fails
            while True:
                got += sum(run.count for run in consumer.receive(max_bytes=1 << 20, timeout_seconds=PATIENCE_S))
        assert 30 < got < 60
        with pytest.raises(ConnectionLostError):
            consumer.close(timeout_seconds=PATIENCE_S)


def test_a_connection_without_answer_ends_in_time(scripted_server: Callable[..., ScriptedServer]):
    server = scripted_server([expect(b"  V2IDENTIFY\n"), stay_silent])
    with (
        pytest.raises(ConnectTimeoutError, match="no answer to IDENTIFY in time"),
        open_session(server.address, connectTimeout="300ms"),
    ):
        pass


def test_a_barrier_without_answer_ends_the_session(nsq: NsqUnderTest, fault_proxy: Proxies):
    topic = nsq.topic("c")
    proxy = in_front_of(fault_proxy, nsq)
    with open_session(proxy.address) as session:
        consumer = session.subscribe(topic, "c")
        proxy.stall_now()
        with pytest.raises(RequestTimeoutError, match="no CLOSE_WAIT"):
            consumer.close(timeout_seconds=0.1)
        assert session.closed
    proxy.resume()
