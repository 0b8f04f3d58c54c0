"""Discovery of nsqd and their statistics: nsqlookupd and the HTTP interfaces."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from spark_mq_source.core.errors import AuthenticationError, MQSourceError, RemoteProtocolError, TransportError
from spark_mq_source.core.options import READ
from spark_mq_source.net.queue_plan import Doubts
from spark_mq_source.nsq.client import client as module
from spark_mq_source.nsq.client.client import ChannelStats, NsqClient, Nsqd, Source
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.planner import fetch_waiting
from tests.behaviours.nsq.clients import Proxies, open_session
from tests.behaviours.nsq.conftest import PATIENCE_S
from tests.fix_brokers import NsqUnderTest, wait_until
from tests.fix_net import Peer, ScriptedServer, Step, TlsMaterial, failing_tls, free_port, tls

Start = Callable[..., NsqUnderTest]


@pytest.fixture(autouse=True)
def _forget_who_did_not_answer() -> Iterator[None]:
    module._unreachable_until.clear()
    yield
    module._unreachable_until.clear()


def client(**options: str) -> NsqClient:
    return NsqClient(NsqOptions.from_spark({"topic": "t", "channel": "c", "maxRows": "1", **options}, READ))


def test_lookups_list_the_nsqd_and_channels_of_a_topic(nsq: NsqUnderTest):
    topic = nsq.topic("a", "b")
    found = client(nsqlookupdHttpAddresses=nsq.lookupd_address).fetch_topology(topic)
    host, _, port = nsq.tcp_address.rpartition(":")
    assert found.nsqds == (Nsqd(nsq.tcp_address, host, int(port), f"http://{nsq.http_address}"),)
    assert found.channels == {"a", "b"}


def test_an_unknown_topic_has_no_nsqd(nsq: NsqUnderTest):
    found = client(nsqlookupdHttpAddresses=nsq.lookupd_address).fetch_topology(nsq.unused_topic())
    assert (found.nsqds, found.channels) == ((), frozenset())


def test_answers_of_several_lookups_are_merged(nsq_private: Start):
    first, second = nsq_private(), nsq_private()
    topic = first.topic("a")
    second.create(topic, "b")
    both = f"{first.lookupd_address},{second.lookupd_address}"
    found = client(nsqlookupdHttpAddresses=both).fetch_topology(topic)
    assert [nsqd.name for nsqd in found.nsqds] == sorted([first.tcp_address, second.tcp_address])
    assert found.channels == {"a", "b"}
    only_first = first.topic("c")
    assert [nsqd.name for nsqd in client(nsqlookupdHttpAddresses=both).fetch_topology(only_first).nsqds] == [
        first.tcp_address
    ]
    assert len(client(nsqlookupdHttpAddresses=both).fetch_writable(only_first)) == 2


def test_an_nsqd_listed_by_several_lookups_is_used_once(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    host, _, port = nsq.tcp_address.rpartition(":")
    same = f"http://{nsq.lookupd_address}, {nsq.lookupd_address}"
    found = client(nsqlookupdHttpAddresses=same, nsqdTcpAddresses=f"{host}:{port}").fetch_topology(topic)
    assert [nsqd.name for nsqd in found.nsqds] == [nsq.tcp_address]


def test_a_lookup_that_is_down_is_skipped_with_a_warning(nsq: NsqUnderTest, caplog: pytest.LogCaptureFixture):
    topic = nsq.topic("c")
    down = f"127.0.0.1:{free_port()}"
    made = client(nsqlookupdHttpAddresses=f"{down},{nsq.lookupd_address}")
    with caplog.at_level(logging.WARNING):
        assert len(made.fetch_topology(topic).nsqds) == 1
    assert f"nsqlookupd http://{down} did not answer" in caplog.text
    # The next request skips it.
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert len(made.fetch_topology(topic).nsqds) == 1
    assert caplog.text == ""


def test_without_a_reachable_lookup_discovery_fails():
    down = f"127.0.0.1:{free_port()}"
    made = client(nsqlookupdHttpAddresses=down, operationTimeout="300ms")
    for _ in range(2):
        with pytest.raises(TransportError, match=f"nsq: asking nsqlookupd http://{down}"):
            made.fetch_topology("t")


def answering(body: bytes) -> Step:
    """Answer one request over HTTP, and close the connection."""

    def answer(peer: Peer) -> None:
        while peer.read_line().strip():
            pass
        peer.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        peer.close()

    return answer


def test_an_unreachable_lookup_of_one_user_is_still_asked_for_the_next(
    scripted_server: Callable[..., ScriptedServer], tls_material: TlsMaterial
):
    producer = b'{"producers":[{"broadcast_address":"h","tcp_port":%d,"http_port":2}]}'
    context = tls_material.server()
    secured = scripted_server([failing_tls(context)], [tls(context), answering(producer % 1)])
    plain = scripted_server([answering(producer % 2)], repeat=True)
    for authority, found in ((tls_material.other_ca, ["h:2"]), (tls_material.ca, ["h:1", "h:2"])):
        asked = client(nsqlookupdHttpAddresses=f"https://{secured.address},{plain.address}", trustCerts=authority)
        assert [nsqd.name for nsqd in asked.fetch_topology("t").nsqds] == found


def test_an_unreachable_nsqd_of_one_user_is_still_asked_for_the_next(
    scripted_server: Callable[..., ScriptedServer], tls_material: TlsMaterial
):
    stats = b'{"topics":[{"topic_name":"t","depth":3,"channels":[]}]}'
    server = scripted_server([tls(tls_material.server()), answering(stats)])
    nsqd = Nsqd("h:1", "h", 1, f"https://{server.address}")
    theirs, ours = (
        client(nsqdTcpAddresses="h", tls="true", trustCerts=path) for path in ("/secret/theirs.pem", tls_material.ca)
    )
    assert theirs.fetch_stats(nsqd, "t", "c") is None
    assert "/secret/theirs.pem" in theirs.missing_stats_reason(nsqd)
    assert ours.fetch_stats(nsqd, "t", "c") == ChannelStats(exists=False, topic_depth=3)
    assert ours.missing_stats_reason(nsqd) == ""


def test_a_depth_after_a_restart_or_below_zero_is_not_trusted(
    scripted_server: Callable[..., ScriptedServer],
):
    stats = b'{"start_time":%d,"topics":[{"topic_name":"t","depth":0,"channels":[{"channel_name":"c","depth":%d}]}]}'
    counts = [(1, 3), (1, -2), (1, 0), (1, 4), (1, 0), (1, 4), (2, 0), (2, 0)]
    server = scripted_server(*([answering(stats % count)] for count in counts))
    options = NsqOptions.from_spark({"topic": "t", "channel": "c", "maxRows": "1", "nsqdTcpAddresses": "h"}, READ)
    asked, source = NsqClient(options), Source("t", Nsqd("h:1", "h", 1, f"http://{server.address}"))
    doubts, found = Doubts(), []
    for number, _ in enumerate(counts):
        doubts.empty = {source.name} if number >= 3 else set()
        found.append(fetch_waiting(asked, options, [source], doubts)[source])
    assert found == [3, None, None, None, 0, 4, None, 0]


@pytest.mark.parametrize(
    "answer", [b'{"producers": 3}', b"[]", b'{"producers": [{"broadcast_address": "h"}]}', b'{"producers": [1]}', b"x"]
)
def test_an_address_that_is_not_a_lookup_is_reported(scripted_server: Callable[..., ScriptedServer], answer: bytes):
    server = scripted_server([answering(answer)], repeat=True)
    with pytest.raises(RemoteProtocolError) as caught:
        client(nsqlookupdHttpAddresses=server.address, operationTimeout="5s").fetch_topology("t")
    assert server.address in str(caught.value)


@pytest.mark.parametrize(("given", "sent"), [({"lookupdAuthorization": "true"}, b"Bearer s3cret"), ({}, None)])
def test_a_lookup_is_sent_the_secret_only_if_the_option_says_so(
    scripted_server: Callable[..., ScriptedServer], given: dict[str, str], sent: bytes | None
):
    found: list[bytes | None] = []

    def answer(peer: Peer) -> None:
        headers = {}
        while line := peer.read_line().strip():
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        found.append(headers.get(b"authorization"))
        peer.send(b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
        peer.close()

    server = scripted_server([answer], repeat=True)
    with pytest.raises(AuthenticationError, match=server.address) as caught:
        client(nsqlookupdHttpAddresses=server.address, authSecret="s3cret", **given).fetch_topology("t")
    assert set(found) == {sent}
    assert "s3cret" not in str(caught.value)


def test_answers_of_old_lookups_are_read(scripted_server: Callable[..., ScriptedServer]):
    producer = b'{"broadcast_address":"h","tcp_port":1,"http_port":2}'
    answer = b'{"status_code":200,"data":{"channels":["c"],"producers":[%b]}}' % producer

    server = scripted_server([answering(answer)], repeat=True)
    found = client(nsqlookupdHttpAddresses=server.address).fetch_topology("t")
    assert found.nsqds == (Nsqd("h:1", "h", 1, "http://h:2"),)
    assert found.channels == {"c"}


def test_a_host_map_replaces_advertised_addresses(nsq_private: Start, fault_proxy: Proxies):
    nsq = nsq_private(broadcast_address="nowhere.invalid")
    topic = nsq.unused_topic()
    nsq.post("/topic/create", topic=topic)
    nsq.post("/channel/create", topic=topic, channel="c")
    wait_until(lambda: nsq.ask("GET", nsq.lookupd_address, "/lookup", topic=topic)[0] == 200, "known")
    port, http_port = (address.rpartition(":")[2] for address in (nsq.tcp_address, nsq.http_address))

    by_host = client(nsqlookupdHttpAddresses=nsq.lookupd_address, hostMap="nowhere.invalid=127.0.0.1")
    (nsqd,) = by_host.fetch_topology(topic).nsqds
    assert nsqd == Nsqd(f"nowhere.invalid:{port}", "127.0.0.1", int(port), f"http://127.0.0.1:{http_port}")
    assert by_host.fetch_stats(nsqd, topic, "c") == ChannelStats(exists=True)
    with by_host.open_session(nsqd) as session:
        session.subscribe(topic, "c")

    proxy = fault_proxy("127.0.0.1", int(port))
    by_port = client(
        nsqlookupdHttpAddresses=nsq.lookupd_address, hostMap=f"nowhere.invalid:{port}=127.0.0.1:{proxy.port}"
    )
    (nsqd,) = by_port.fetch_topology(topic).nsqds
    assert (nsqd.name, nsqd.port) == (f"nowhere.invalid:{port}", proxy.port)
    with by_port.open_session(nsqd):
        assert proxy.connections == 1
    # Its HTTP interface is at an unknown address: nothing needs it.
    assert by_port.fetch_stats(nsqd, topic, "c") is None
    assert by_port.fetch_setting(nsqd, "max_msg_size", 7) == 7

    unmapped = client(nsqlookupdHttpAddresses=nsq.lookupd_address, connectTimeout="5s")
    (nsqd,) = unmapped.fetch_topology(topic).nsqds
    with pytest.raises(MQSourceError, match=r"nowhere\.invalid"):
        unmapped.open_session(nsqd)


def test_stats_report_the_waiting_messages(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    nsq.publish(topic, b"1", b"2", b"3", b"4")
    made = client(nsqdTcpAddresses=nsq.tcp_address, nsqdHttpAddresses=nsq.http_address)
    (nsqd,) = made.fetch_topology(topic).nsqds
    wait_until(lambda: made.fetch_stats(nsqd, topic, "c") == ChannelStats(exists=True, depth=4), "four wait")
    with open_session(nsq.tcp_address) as session:
        consumer = session.subscribe(topic, "c")
        consumer.ready(1)
        runs = consumer.receive(max_bytes=1, timeout_seconds=PATIENCE_S)
        assert len(runs) == 1
        assert made.fetch_stats(nsqd, topic, "c") == ChannelStats(exists=True, depth=3, in_flight=1)
    nsq.post("/channel/pause", topic=topic, channel="c")
    stats = made.fetch_stats(nsqd, topic, "c")
    assert stats is not None
    assert stats.is_paused
    assert made.fetch_stats(nsqd, nsq.unused_topic(), "c") == ChannelStats(exists=False)


def test_a_missing_channel_would_receive_the_messages_of_the_topic(nsq: NsqUnderTest):
    topic = nsq.topic()
    nsq.publish(topic, b"1", b"2")
    made = client(nsqdTcpAddresses=nsq.tcp_address, nsqdHttpAddresses=nsq.http_address)
    (nsqd,) = made.fetch_topology(topic).nsqds
    assert made.fetch_stats(nsqd, topic, "none") == ChannelStats(exists=False, topic_depth=2)


def test_settings_are_read_or_the_defaults_apply(nsq_private: Start):
    nsq = nsq_private(max_msg_size=1000, max_body_size=5000, max_req_timeout_ms=7000)
    asked = client(nsqdTcpAddresses=nsq.tcp_address, nsqdHttpAddresses=nsq.http_address)
    (nsqd,) = asked.fetch_topology("t").nsqds
    found = {name: asked.fetch_setting(nsqd, name, 0) for name in ("max_msg_size", "max_body_size", "max_req_timeout")}
    assert found == {"max_msg_size": 1000, "max_body_size": 5000, "max_req_timeout": 7_000_000_000}
    assert asked.fetch_setting(nsqd, "no_such_setting", 7) == 7


def test_a_guessed_http_address_is_verified(nsq: NsqUnderTest, scripted_server: Callable[..., ScriptedServer]):
    answer = b'{"tcp_port":1,"version":"1.3.0"}'

    def say(peer: Peer) -> None:
        assert peer.read_line().startswith(b"GET /info ")
        while peer.read_line().strip():
            pass
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
        peer.close()

    server = scripted_server([say])
    host, _, port = server.address.rpartition(":")
    beside = client(nsqdTcpAddresses=f"{host}:{int(port) - 1}")
    (nsqd,) = beside.fetch_topology("t").nsqds
    assert nsqd.http_url == f"http://{server.address}"
    # Another program or another nsqd answers at the guessed address.
    assert beside.fetch_stats(nsqd, "t", "c") is None
