"""Behaviour of the embedded NSQ broker beyond the recordings; nsqd must behave the same if it is on PATH."""

from __future__ import annotations

import http.client
import json
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from brokers.credentials import Credentials, make_credentials
from spark_mq_source.testing import Authorization, AuthorizedClient, AuthRequest, NsqLookupd
from tests.behaviours.nsq.conftest import RawClient
from tests.fix_brokers import NsqUnderTest, start_nsq, wait_until

Private = Callable[..., NsqUnderTest]

OK = (0, b"OK")


class Client(RawClient):
    """A connection that sends commands of the protocol."""

    def __init__(self, broker: NsqUnderTest) -> None:
        super().__init__(broker.tcp_address)
        self.send(b"  V2")

    def ask(self, line: str, body: bytes | None = None) -> tuple[int, bytes]:
        self.tell(line, body)
        return self.response()

    def tell(self, line: str, body: bytes | None = None) -> None:
        self.send(line.encode() + b"\n" + (b"" if body is None else struct.pack(">i", len(body)) + body))

    def identify(self, **fields: Any) -> dict[str, Any]:
        kind, body = self.ask("IDENTIFY", json.dumps({"feature_negotiation": True, **fields}).encode())
        assert kind == 0, body
        return json.loads(body)

    def subscribe(self, topic: str, channel: str = "c", *, ready: int = 0) -> None:
        assert self.ask(f"SUB {topic} {channel}") == OK
        if ready:
            self.tell(f"RDY {ready}")

    def message(self) -> tuple[str, int, bytes]:
        """Return the id, attempts and body of the next message."""
        kind, body = self.response()
        assert kind == 2, body
        return body[10:26].decode(), struct.unpack(">H", body[8:10])[0], body[26:]

    def bodies(self, count: int) -> list[bytes]:
        """Return the bodies of the next messages, and finish each."""
        found = []
        for _ in range(count):
            ident, _attempts, body = self.message()
            self.tell(f"FIN {ident}")
            found.append(body)
        return found

    def start_tls(self, context: ssl.SSLContext) -> None:
        self.sock = context.wrap_socket(self.sock, server_hostname="127.0.0.1")

    def expect_error(self, text: str) -> None:
        """Expect a fatal error and the end of the connection."""
        assert self.response() == (1, text.encode())
        self.expect_closed()


@pytest.fixture
def connect(nsq: NsqUnderTest, closing: Callable[[Client], Client]) -> Callable[..., Client]:
    return lambda broker=nsq: closing(Client(broker))


Connect = Callable[..., Client]


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    return make_credentials(tmp_path_factory.mktemp("credentials"))


def until(broker: NsqUnderTest, topic: str, channel: str = "c", **wanted: object) -> None:
    """Wait until the broker reports these statistics of a channel."""

    def as_wanted() -> bool:
        stats = broker.channel_stats(topic, channel)
        return {name: stats.get(name) for name in wanted} == wanted

    wait_until(as_wanted, f"{topic}/{channel}: {wanted}")


# -- topics and channels


def test_an_ephemeral_channel_is_deleted_with_its_last_subscriber_and_an_ephemeral_topic_too(
    nsq: NsqUnderTest, connect: Connect
):
    topic = nsq.unused_topic() + "#ephemeral"
    first, second = connect(), connect()
    first.subscribe(topic, "c#ephemeral")
    second.subscribe(topic, "c#ephemeral")
    first.close()
    until(nsq, topic, "c#ephemeral", client_count=1)
    second.close()
    wait_until(lambda: nsq.topic_stats(topic) == {}, "the topic is deleted")


def test_an_ephemeral_channel_holds_no_more_than_its_queue(nsq_private: Private, connect: Connect):
    broker = nsq_private(mem_queue_size=10)
    topic = broker.unused_topic()
    connect(broker).subscribe(topic, "c#ephemeral")
    broker.create(topic, "kept")
    broker.publish(topic, *(b"%d" % number for number in range(50)))
    until(broker, topic, "kept", depth=50, message_count=50)
    until(broker, topic, "c#ephemeral", depth=10, message_count=50)


def test_deleting_a_channel_or_topic_closes_its_connections(nsq: NsqUnderTest, connect: Connect):
    topic = nsq.topic("c", "d")
    one, other = connect(), connect()
    one.subscribe(topic, "c")
    other.subscribe(topic, "d")
    nsq.post("/channel/delete", topic=topic, channel="c")
    one.expect_closed()
    assert [c["channel_name"] for c in nsq.topic_stats(topic)["channels"]] == ["d"]
    nsq.post("/topic/delete", topic=topic)
    other.expect_closed()
    assert nsq.topic_stats(topic) == {}


def test_emptying_a_channel_drops_messages_in_flight_and_deferred_ones_too(nsq: NsqUnderTest, connect: Connect):
    topic = nsq.topic("c")
    client = connect()
    client.subscribe(topic, ready=1)
    assert client.ask(f"DPUB {topic} 60000", b"later") == OK
    nsq.publish(topic, b"a", b"b")
    ident, _, _ = client.message()
    until(nsq, topic, depth=1, in_flight_count=1, deferred_count=1)
    nsq.post("/channel/empty", topic=topic, channel="c")
    until(nsq, topic, depth=0, in_flight_count=0, deferred_count=0)
    assert client.ask(f"FIN {ident}") == (1, f"E_FIN_FAILED FIN {ident} failed ID not in flight".encode())
    nsq.publish(topic, b"c")
    assert client.bodies(1) == [b"c"]


# -- messages in flight


def test_a_deferred_message_is_delivered_after_its_delay(nsq: NsqUnderTest, connect: Connect):
    topic = nsq.topic("c", "d")
    client = connect()
    client.subscribe(topic, ready=5)
    started_s = time.monotonic()
    assert client.ask(f"DPUB {topic} 400", b"later") == OK
    nsq.post("/pub", b"later still", topic=topic, defer="700")
    assert client.bodies(1) == [b"later"]
    assert time.monotonic() - started_s >= 0.4
    assert client.bodies(1) == [b"later still"]
    assert time.monotonic() - started_s >= 0.7
    until(nsq, topic, "d", deferred_count=0, depth=2)


def test_a_block_of_fins_with_one_unknown_id_finishes_the_others(nsq: NsqUnderTest, connect: Connect):
    topic = nsq.topic("c")
    nsq.publish(topic, *(b"%d" % number for number in range(100)))
    client = connect()
    client.subscribe(topic, ready=100)
    idents = [client.message()[0] for _ in range(100)]
    idents.insert(50, "0123456789abcdef")
    client.send(b"".join(f"FIN {ident}\n".encode() for ident in idents) + b"CLS\n")
    assert client.response() == (1, b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")
    assert client.response() == (0, b"CLOSE_WAIT")
    until(nsq, topic, depth=0, in_flight_count=0)


@pytest.mark.parametrize("between", [b"", b"NOP\n", b"RDY 200\n"])
def test_fins_are_executed_in_any_mix_and_pieces(nsq: NsqUnderTest, connect: Connect, between: bytes):
    topic = nsq.topic("c")
    nsq.publish(topic, *(b"%d" % number for number in range(200)))
    client = connect()
    client.subscribe(topic, ready=200)
    fins = [f"FIN {client.message()[0]}\n".encode() for _ in range(200)]
    data = between + b"".join(fins[:90]) + between + b"".join(fins[90:]) + between
    for start in range(0, len(data), 1234):
        client.send(data[start : start + 1234])
    until(nsq, topic, depth=0, in_flight_count=0)


def test_a_sample_rate_deletes_the_other_messages(nsq: NsqUnderTest, connect: Connect):
    topic = nsq.topic("c")
    client = connect()
    assert client.identify(sample_rate=10)["sample_rate"] == 10
    client.subscribe(topic, ready=2000)
    nsq.publish(topic, *(b"%d" % number for number in range(1000)))
    until(nsq, topic, depth=0)
    assert 20 <= nsq.channel_stats(topic, "c")["in_flight_count"] <= 300  # 110 are expected


# -- invalid commands


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"heartbeat_interval": 60_001}, "heartbeat interval (60001) is invalid"),
        ({"heartbeat_interval": 999}, "heartbeat interval (999) is invalid"),
        ({"output_buffer_size": 63}, "output buffer size (63) is invalid"),
        ({"output_buffer_size": 65_537}, "output buffer size (65537) is invalid"),
        ({"output_buffer_timeout": 24}, "output buffer timeout (24) is invalid"),
        ({"output_buffer_timeout": 30_001}, "output buffer timeout (30001) is invalid"),
        ({"sample_rate": -1}, "sample rate (-1) is invalid"),
        ({"msg_timeout": 999}, "msg timeout (999) is invalid"),
        ({"msg_timeout": 900_001}, "msg timeout (900001) is invalid"),
        ({"msg_timeout": -1}, "msg timeout (-1) is invalid"),
        ({"msg_timeout": "1000"}, "failed to decode JSON body"),
        ({"snappy": 1}, "failed to decode JSON body"),
        ({"client_id": None, "heartbeat_interval": 1.5}, "failed to decode JSON body"),
    ],
)
def test_identify_refuses_values_out_of_range(connect: Connect, fields: dict[str, Any], complaint: str):
    client = connect()
    client.tell("IDENTIFY", json.dumps({"feature_negotiation": True, **fields}).encode())
    client.expect_error(f"E_BAD_BODY IDENTIFY {complaint}")


def test_identify_returns_the_requested_values(nsq: NsqUnderTest, connect: Connect):
    client = connect()
    given = client.identify(
        client_id="me", Hostname="here", user_agent="test/1", output_buffer_size=-1, output_buffer_timeout=500,
        msg_timeout=900_000, heartbeat_interval=60_000, unknown=[1],
    )  # fmt: skip
    assert (given["output_buffer_size"], given["output_buffer_timeout"]) == (1, 0)
    assert given["msg_timeout"] == 900_000
    topic = nsq.topic("c")
    client.subscribe(topic, ready=7)
    until(nsq, topic, client_count=1)
    (listed,) = nsq.channel_stats(topic, "c")["clients"]
    wanted = {"client_id": "me", "hostname": "here", "user_agent": "test/1", "state": 3}
    assert {name: listed[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("line", "body", "complaint"),
    [
        ("pub t", None, "E_INVALID invalid command pub"),
        ("", None, "E_INVALID invalid command "),
        ("MPUB t", b"\0\0\0\1\0\0\0\2abc" + bytes(200), "E_BAD_BODY MPUB body too big 211 > 200"),
        ("MPUB t", b"", "E_BAD_BODY MPUB invalid body size 0"),
        ("MPUB", None, "E_INVALID MPUB insufficient number of parameters"),
        ("MPUB b@d", None, 'E_BAD_TOPIC E_BAD_TOPIC MPUB topic name "b@d" is not valid'),
        ("MPUB t", b"\0\0\0\x28" + bytes(12), "E_BAD_BODY MPUB invalid message count 40"),
        ("DPUB t", None, "E_INVALID DPUB insufficient number of parameters"),
        ("DPUB b@d 5", None, 'E_BAD_TOPIC DPUB topic name "b@d" is not valid'),
        ("DPUB t 5", bytes(101), "E_BAD_MESSAGE DPUB message too big 101 > 100"),
        ("PUB b@d", None, 'E_BAD_TOPIC PUB topic name "b@d" is not valid'),
        ("SUB t#ephemeral#ephemeral c", None, 'E_BAD_TOPIC SUB topic name "t#ephemeral#ephemeral" is not valid'),
        ("AUTH x", b"secret", "E_INVALID AUTH invalid number of parameters"),
        ("IDENTIFY", bytes(201), "E_BAD_BODY IDENTIFY body too big 201 > 200"),
        ("IDENTIFY", b"[]", "E_BAD_BODY IDENTIFY failed to decode JSON body"),
    ],
)
def test_invalid_commands_are_refused(
    small: NsqUnderTest, connect: Connect, line: str, body: bytes | None, complaint: str
):
    client = connect(small)
    client.tell(line, body)
    client.expect_error(complaint)


@pytest.fixture(scope="module")
def small(nsq_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqUnderTest]:
    with start_nsq(nsq_kind, tmp_path_factory.mktemp("nsq"), max_msg_size=100, max_body_size=200) as broker:
        yield broker


@pytest.mark.parametrize(
    ("commands", "complaint"),
    [
        (["CLS", "CLS"], "E_INVALID cannot CLS in current state"),
        (["CLS", "SUB t c"], "E_INVALID cannot SUB in current state"),
        (["IDENTIFY"], "E_INVALID cannot IDENTIFY in current state"),
        (["AUTH"], "E_INVALID cannot AUTH in current state"),
        (["FIN"], "E_INVALID FIN insufficient number of params"),
        (["REQ 0123456789abcdef"], "E_INVALID REQ insufficient number of params"),
        (["TOUCH"], "E_INVALID TOUCH insufficient number of params"),
        (["TOUCH 0"], "E_INVALID invalid message ID"),
        (["REQ 0 0"], "E_INVALID invalid message ID"),
        (["REQ 0123456789abcdef -1"], "E_INVALID REQ could not parse timeout -1"),
    ],
)
def test_invalid_commands_of_subscribers_are_refused(
    nsq: NsqUnderTest, connect: Connect, commands: list[str], complaint: str
):
    client = connect()
    client.subscribe(nsq.topic("c"))
    for command in commands:
        client.tell(command)
    if "CLS" in commands:
        assert client.response() == (0, b"CLOSE_WAIT")
    client.expect_error(complaint)


def test_a_channel_refuses_consumers_beyond_its_limit(nsq_private: Private, connect: Connect):
    broker = nsq_private(max_channel_consumers=1)
    topic = broker.topic("c")
    connect(broker).subscribe(topic)
    second = connect(broker)
    second.tell(f"SUB {topic} c")
    second.expect_error(f"E_SUB_FAILED SUB failed consumers for {topic}:c exceeds limit of 1")


def test_lines_may_end_with_a_carriage_return_and_bytes_may_come_one_by_one(nsq: NsqUnderTest, connect: Connect):
    topic = nsq.topic("c")
    client = connect()
    for byte in f"PUB {topic}\r\n".encode() + b"\0\0\0\5hello" + f"SUB {topic} c\r\nRDY 1\n".encode():
        client.send(bytes([byte]))
    assert client.response() == OK
    assert client.response() == OK
    assert client.bodies(1) == [b"hello"]


# -- TLS and authorization


def context_of(credentials: Credentials, *, certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=credentials.ca_certificate)
    if certificate:
        context.load_cert_chain(credentials.certificate("client"), credentials.key("client"))
    return context


def tls_settings(credentials: Credentials) -> dict[str, Any]:
    return {"tls_cert": credentials.certificate("server"), "tls_key": credentials.key("server")}


def test_tls_can_be_required(nsq_private: Private, connect: Connect, credentials: Credentials):
    broker = nsq_private(**tls_settings(credentials), tls_required=True)
    client = connect(broker)
    client.tell("PUB t", b"x")
    client.expect_error("E_INVALID cannot PUB in current state (TLS required)")
    client = connect(broker)
    client.identify()
    client.tell("NOP")
    client.expect_error("E_INVALID cannot NOP in current state (TLS required)")
    status, answer = broker.ask("GET", broker.http_address, "/ping")
    assert (status, answer["message"]) == (403, "TLS_REQUIRED")


def test_a_client_certificate_can_be_required(nsq_private: Private, connect: Connect, credentials: Credentials):
    asked: list[AuthRequest] = []

    def authorize(request: AuthRequest) -> AuthorizedClient:
        asked.append(request)
        return AuthorizedClient("me")

    broker = nsq_private(
        **tls_settings(credentials),
        tls_root_ca_file=credentials.ca_certificate,
        tls_client_auth_policy="require-verify",
        authorize=authorize,
    )
    client = connect(broker)
    client.identify(tls_v1=True)
    client.start_tls(context_of(credentials, certificate=True))
    assert client.response() == OK
    assert client.ask("AUTH", b"s3cret")[0] == 0
    assert asked == [AuthRequest("s3cret", "127.0.0.1", tls=True, common_name="client")]
    without = connect(broker)
    without.identify(tls_v1=True)
    # In TLS 1.3 the refusal arrives after the client's part of the handshake.
    without.start_tls(context_of(credentials))
    with pytest.raises((ssl.SSLError, EOFError, ConnectionError)):
        without.response()


def test_an_expired_authorization_is_requested_again(nsq_private: Private, connect: Connect):
    answers: list[AuthorizedClient | None] = [
        AuthorizedClient("me", [Authorization("^a", ["^c$", ".*"])], ttl_s=1),
        AuthorizedClient("me", [Authorization("^b", [".*"], ["publish"])], ttl_s=1000),
    ]
    broker = nsq_private(authorize=lambda _: answers.pop(0))
    client = connect(broker)
    assert json.loads(client.ask("AUTH", b"x")[1]) == {"identity": "me", "identity_url": "", "permission_count": 1}
    assert client.ask("PUB a", b"x") == OK
    expires_s = time.monotonic() + 1
    wait_until(lambda: time.monotonic() > expires_s, "the authorization has expired")
    assert client.ask("PUB b", b"x") == OK
    client.tell("SUB b c")
    client.expect_error('E_UNAUTHORIZED AUTH failed for SUB on "b" "c"')


def test_a_secret_without_authorizations_is_refused(nsq_private: Private, connect: Connect):
    client = connect(nsq_private(authorize=lambda _: AuthorizedClient("nobody", [])))
    client.tell("AUTH", b"x")
    client.expect_error("E_UNAUTHORIZED AUTH no authorizations found")


# -- HTTP


@pytest.mark.parametrize("of_lookupd", [False, True])
@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"  V2IDENTIFY\n", b"400 Bad Request"),
        (b"hello\r\n", b"400 Bad Request"),
        (b"\n", b"400 Bad Request"),
        (b"GET /ping\r\n\r\n", b"400 Bad Request"),
        (b"GET /ping HTTP/1.1\r\n\r\n", b"400 Bad Request: missing required Host header"),
        (b"GET /ping HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n", b"400 Bad Request"),
        (b"POST /pub?topic=a HTTP/1.1\r\nHost: x\r\nContent-Length: x\r\n\r\n", b"400 Bad Request"),
        (b"GET /ping HTTP/9.1\r\nHost: x\r\n\r\n", b"505 HTTP Version Not Supported: unsupported protocol version"),
    ],
)
def test_invalid_http_is_refused_at_once(nsq: NsqUnderTest, data: bytes, answer: bytes, of_lookupd: bool):
    client = RawClient(nsq.lookupd_address if of_lookupd else nsq.http_address)
    head = b"Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"
    expected = b"HTTP/1.1 %b\r\n%b%b" % (answer, head, answer)
    client.send(data)
    assert client.read(len(expected)) == expected
    client.expect_closed()
    client.close()


@pytest.mark.parametrize(
    ("method", "path", "parameters", "body", "status", "message"),
    [
        ("GET", "/none", {}, b"", 404, "NOT_FOUND"),
        ("GET", "/pub", {}, b"", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/pub", {"topic": "t"}, b"", 400, "MSG_EMPTY"),
        ("POST", "/pub", {}, b"x", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/pub", {"topic": "b@d"}, b"x", 400, "INVALID_TOPIC"),
        ("POST", "/pub", {"topic": "t"}, bytes(101), 413, "MSG_TOO_BIG"),
        ("POST", "/pub", {"topic": "t", "defer": "x"}, b"x", 400, "INVALID_DEFER"),
        ("POST", "/pub", {"topic": "t", "defer": "-1"}, b"x", 400, "INVALID_DEFER"),
        ("POST", "/mpub", {"topic": "t"}, bytes(201), 413, "BODY_TOO_BIG"),
        ("POST", "/mpub", {"topic": "t"}, b"a" * 101 + b"\n", 413, "MSG_TOO_BIG"),
        ("POST", "/mpub", {"topic": "t", "binary": "true"}, b"\0\0\0\0", 413, "BAD_BODY"),
        ("POST", "/mpub", {"topic": "t", "binary": "true"}, b"\0\0\0\1\0\0\0\0", 413, "BAD_MESSAGE"),
        ("POST", "/mpub", {"topic": "t", "binary": "true"}, b"\0\0\0\1\0\0\0\5ab", 413, "BAD_MESSAGE"),
        ("POST", "/topic/create", {}, b"", 400, "MISSING_ARG_TOPIC"),
        ("POST", "/topic/create", {"topic": "b@d"}, b"", 400, "INVALID_TOPIC"),
        ("POST", "/topic/delete", {"topic": "none"}, b"", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/topic/empty", {"topic": "b@d"}, b"", 400, "INVALID_TOPIC"),
        ("POST", "/topic/pause", {"topic": "none"}, b"", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/create", {"topic": "none", "channel": "c"}, b"", 404, "TOPIC_NOT_FOUND"),
        ("POST", "/channel/create", {"topic": "t"}, b"", 400, "MISSING_ARG_CHANNEL"),
        ("POST", "/channel/create", {"topic": "t", "channel": "b@d"}, b"", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "/channel/delete", {"topic": "there", "channel": "none"}, b"", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "/channel/empty", {"topic": "there", "channel": "none"}, b"", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "lookupd /channel/delete", {"topic": "t", "channel": "none"}, b"", 404, "CHANNEL_NOT_FOUND"),
        ("POST", "lookupd /topic/create", {"topic": "b@d"}, b"", 400, "INVALID_ARG_TOPIC"),
        ("POST", "lookupd /channel/create", {"topic": "t", "channel": "b@d"}, b"", 400, "INVALID_ARG_CHANNEL"),
        ("POST", "lookupd /topic/tombstone", {"topic": "t"}, b"", 400, "MISSING_ARG_NODE"),
        ("GET", "lookupd /channels", {}, b"", 400, "MISSING_ARG_TOPIC"),
        ("GET", "lookupd /none", {}, b"", 404, "NOT_FOUND"),
        ("POST", "lookupd /lookup", {}, b"", 405, "METHOD_NOT_ALLOWED"),
    ],
)
def test_invalid_http_requests_are_refused(
    small: NsqUnderTest, method: str, path: str, parameters: dict[str, str], body: bytes, status: int, message: str
):
    small.create("there")
    of_lookupd = path.startswith("lookupd ")
    address = small.lookupd_address if of_lookupd else small.http_address
    found = small.ask(method, address, path.removeprefix("lookupd "), body, **parameters)
    assert found == (status, {"message": message})


def test_http_publishes_lines_or_counted_messages(nsq: NsqUnderTest, connect: Connect):
    topic = nsq.topic("c")
    nsq.post("/mpub", b"a\n\nb\n", topic=topic)
    nsq.post("/mpub", b"\0\0\0\1\0\0\0\1c", topic=topic, binary="1")
    nsq.post("/pub", b"d\n", topic=topic)
    client = connect()
    client.subscribe(topic, ready=9)
    assert sorted(client.bodies(4)) == [b"a", b"b", b"c", b"d\n"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_body_size", 200), ("max_msg_timeout", 900_000_000_000), ("max_rdy_count", 2500), ("deflate", True),
        ("max_req_timeout", 3_600_000_000_000), ("msg_timeout", 60_000_000_000), ("mem_queue_size", 10_000),
    ],
)  # fmt: skip
def test_http_returns_the_configuration(small: NsqUnderTest, name: str, value: object):
    assert small.ask("GET", small.http_address, f"/config/{name}") == (200, value)


# -- lookups, and the end of a broker


def test_all_brokers_of_a_lookup_daemon_are_found(nsq_private: Private):
    first = nsq_private()
    second = nsq_private(lookupd=first)
    topic = first.topic("known")
    second.post("/topic/create", topic=topic)

    def found() -> dict[str, Any]:
        return first.ask("GET", first.lookupd_address, "/lookup", topic=topic)[1]

    wait_until(lambda: len(found()["producers"]) == 2, "both brokers are found")
    # A new topic immediately has the channels that the lookup daemon knows.
    assert [c["channel_name"] for c in second.topic_stats(topic)["channels"]] == ["known"]
    parameters = {"topic": topic, "node": f"127.0.0.1:{second.broker.http_port}"}
    assert first.ask("POST", first.lookupd_address, "/topic/tombstone", **parameters)[0] == 200
    assert [p["tcp_port"] for p in found()["producers"]] == [first.broker.tcp_port]
    first.post("/topic/delete", topic=topic)
    wait_until(lambda: found()["producers"] == [], "no broker is found")
    assert found()["channels"] == ["known"]
    assert len(first.ask("GET", first.lookupd_address, "/nodes")[1]["producers"]) == 2
    second.broker.stop()
    nodes = lambda: first.ask("GET", first.lookupd_address, "/nodes")[1]["producers"]  # noqa: E731
    wait_until(lambda: len(nodes()) == 1, "the stopped broker is no longer a node")


def test_a_restarted_broker_listens_on_the_same_ports(nsq_private: Private):
    broker = nsq_private()
    before = (broker.tcp_address, broker.http_address, broker.lookupd_address)
    broker.broker.stop()
    broker.broker.start()
    assert (broker.tcp_address, broker.http_address, broker.lookupd_address) == before
    assert broker.ask("GET", broker.http_address, "/ping") == (200, "OK")


def test_stopping_with_a_connected_http_client_logs_nothing(caplog: pytest.LogCaptureFixture):
    with NsqLookupd() as lookupd:
        client = http.client.HTTPConnection(lookupd.http_address)
        client.request("GET", "/ping")
        assert client.getresponse().read() == b"OK"
    assert caplog.messages == []
    client.close()
