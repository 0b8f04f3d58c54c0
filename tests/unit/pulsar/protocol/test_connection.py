from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_mq_source.core.errors import (
    AuthenticationError,
    BrokerError,
    ConnectionLostError,
    LocalProtocolError,
    MQSourceError,
    RemoteProtocolError,
    ServiceNotReadyError,
    UnsupportedFeatureError,
)
from spark_mq_source.pulsar.client.authentication import (
    BasicAuthentication,
    TlsAuthentication,
    TokenAuthentication,
    TokenFileAuthentication,
)
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command
from spark_mq_source.pulsar.protocol.commands import Command
from spark_mq_source.pulsar.protocol.connection import Authentication, ConnectionState, PulsarConnection
from spark_mq_source.pulsar.protocol.wire import take_frame
from tests.vectors import pulsar_frames

FRAMES = pulsar_frames()
CONNECTED = c.Connected("Pulsar Server4.0.8", 19, 5 << 20)
SUBSCRIBE = c.Subscribe("t", "s", c.SubType.Exclusive, consumer_id=1, request_id=100, durable=False)
BODY = bytes.fromhex("00000008 0a0170 1000 1801 00") + b"payload"
MESSAGE = c.Message(1, 141, 0, 0, (), memoryview(BODY))
PRODUCER = c.Producer("t", producer_id=3, request_id=200)
SEND = c.Send(3, 0, memoryview(BODY))


def connection(authentication: Authentication | None = None, **options: object) -> PulsarConnection:
    return PulsarConnection(client_version="test", authentication=authentication, now=0.0, **options)


def connected(**options: object) -> PulsarConnection:
    made = connection(**options)
    made.receive_data(encode_command(CONNECTED))
    made.events_received()
    made.data_to_send()
    return made


def subscribed(**options: object) -> PulsarConnection:
    made = connected(**options)
    made.send(SUBSCRIBE)
    made.receive_data(encode_command(c.Success(100)))
    made.events_received()
    made.data_to_send()
    return made


def producing(**options: object) -> PulsarConnection:
    made = connected(**options)
    made.send(PRODUCER)
    made.receive_data(encode_command(c.ProducerSuccess(200, "p")))
    made.events_received()
    made.data_to_send()
    return made


def sent(made: PulsarConnection) -> list[Command]:
    data = memoryview(made.data_to_send())
    found = []
    offset = 0
    while offset < len(data):
        frame = take_frame(data, offset, 1 << 24)
        assert frame is not None
        found.append(decode_command(frame))
        offset += frame.size
    return found


# The conversation: events and answers for each state and each command of the peer.

STATES: dict[str, Callable[[], PulsarConnection]] = {
    "CONNECTING": lambda: _drained(connection(TokenAuthentication("t0k"))),
    "CONNECTED": lambda: connected(authentication=TokenAuthentication("t0k")),
    "SUBSCRIBED": lambda: subscribed(authentication=TokenAuthentication("t0k")),
    "PRODUCING": lambda: producing(authentication=TokenAuthentication("t0k")),
}


def _drained(made: PulsarConnection) -> PulsarConnection:
    made.data_to_send()
    return made


CHALLENGE = c.AuthChallenge(challenge=c.AuthData("token", b"PulsarAuthRefresh"), protocol_version=19)
AUTH_RESPONSE = c.AuthResponse("test", c.AuthData("token", b"t0k"), 20)
CONVERSATION: list[tuple[str, Command, list[Command] | type[MQSourceError], list[Command]]] = [
    # state, the peer's bytes, the events or the error, the answer
    ("CONNECTING", CONNECTED, [CONNECTED], []),
    ("CONNECTING", CHALLENGE, [], [AUTH_RESPONSE]),
    ("CONNECTING", c.Ping(), [], [c.Pong()]),
    ("CONNECTING", c.Pong(), [], []),
    ("CONNECTING", c.UnknownCommand(70), [], []),
    ("CONNECTING", c.Error(-1, 3, "Failed to authenticate"), AuthenticationError, []),
    ("CONNECTING", c.Error(0, 6, "loading"), ServiceNotReadyError, []),
    ("CONNECTING", c.Error(-1, 10, "too old"), BrokerError, []),
    ("CONNECTING", c.Success(1), RemoteProtocolError, []),
    ("CONNECTING", MESSAGE, RemoteProtocolError, []),
    ("CONNECTING", c.CloseConsumer(1, -1), RemoteProtocolError, []),
    ("CONNECTING", c.Connected("x", 19, 0), RemoteProtocolError, []),
    ("CONNECTING", c.Lookup("t", 1), RemoteProtocolError, []),
    ("CONNECTED", CONNECTED, [], []),
    ("CONNECTED", CHALLENGE, [], [AUTH_RESPONSE]),
    ("CONNECTED", c.Ping(), [], [c.Pong()]),
    ("CONNECTED", c.Pong(), [], []),
    ("CONNECTED", c.UnknownCommand(70), [], []),
    ("CONNECTED", c.Error(-1, 3, "token expired"), AuthenticationError, []),
    ("CONNECTED", c.Error(8, 11, "no topic"), [c.Error(8, 11, "no topic")], []),
    ("CONNECTED", c.Success(8), [c.Success(8)], []),
    ("CONNECTED", c.LookupResponse(8), [c.LookupResponse(8)], []),
    ("CONNECTED", c.PartitionedMetadataResponse(8, 4), [c.PartitionedMetadataResponse(8, 4)], []),
    ("CONNECTED", c.GetTopicsOfNamespaceResponse(8, ("a", "b")), [c.GetTopicsOfNamespaceResponse(8, ("a", "b"))], []),
    ("CONNECTED", c.ConsumerStatsResponse(8), [c.ConsumerStatsResponse(8)], []),
    ("CONNECTED", c.AckResponse(1, request_id=8), [c.AckResponse(1, request_id=8)], []),
    ("CONNECTED", c.AckResponse(1), [c.AckResponse(1)], []),
    ("CONNECTED", c.ReachedEndOfTopic(1), [c.ReachedEndOfTopic(1)], []),
    ("CONNECTED", c.ActiveConsumerChange(1), [c.ActiveConsumerChange(1)], []),
    (
        "CONNECTED",
        c.TopicMigrated(1, c.ResourceType.Consumer, "pulsar://b:1"),
        [c.TopicMigrated(1, c.ResourceType.Consumer, "pulsar://b:1")],
        [],
    ),
    ("CONNECTED", c.CloseConsumer(1, -1), [c.CloseConsumer(1, -1)], []),
    ("CONNECTED", SUBSCRIBE, RemoteProtocolError, []),
    ("CONNECTED", c.Flow(1, 1), RemoteProtocolError, []),
    ("CONNECTED", c.Connect("another client"), RemoteProtocolError, []),
    ("CONNECTING", c.SendReceipt(3, 0), RemoteProtocolError, []),
    ("CONNECTING", c.CloseProducer(3, -1), RemoteProtocolError, []),
    ("CONNECTED", PRODUCER, RemoteProtocolError, []),
    ("CONNECTED", SEND, RemoteProtocolError, []),
    ("CONNECTED", c.ProducerSuccess(8, "p"), [c.ProducerSuccess(8, "p")], []),
    ("CONNECTED", c.ProducerSuccess(8, "p", producer_ready=False), [], []),
    ("CONNECTED", c.TcClientConnectResponse(8), [c.TcClientConnectResponse(8)], []),
    ("CONNECTED", c.NewTxnResponse(8, 33, 0), [c.NewTxnResponse(8, 33, 0)], []),
    ("CONNECTED", c.AddPartitionToTxnResponse(8, 33, 0), [c.AddPartitionToTxnResponse(8, 33, 0)], []),
    ("CONNECTED", c.EndTxnResponse(8, 33, 0, 24, "gone"), [c.EndTxnResponse(8, 33, 0, 24, "gone")], []),
    ("PRODUCING", c.SendReceipt(3, 0, c.MessageId(7, 5)), [c.SendReceipt(3, 0, c.MessageId(7, 5))], []),
    ("PRODUCING", c.SendReceipt(9, 0, c.MessageId(7, 5)), [c.SendReceipt(9, 0, c.MessageId(7, 5))], []),
    ("PRODUCING", c.SendError(3, 0, 9, "damaged"), [c.SendError(3, 0, 9, "damaged")], []),
    ("PRODUCING", c.CloseProducer(3, -1, "pulsar://b:1"), [c.CloseProducer(3, -1, "pulsar://b:1")], []),
    ("SUBSCRIBED", MESSAGE, [MESSAGE], []),
    ("SUBSCRIBED", c.CloseConsumer(1, -1, "pulsar://b:1"), [c.CloseConsumer(1, -1, "pulsar://b:1")], []),
]
IDS = [f"{state}-{command}"[:70] for state, command, _, _ in CONVERSATION]


@pytest.mark.parametrize("trailing", [b"", encode_command(c.Pong())[:-1]], ids=["", "trailing bytes"])
@pytest.mark.parametrize("step", [None, 1, 7], ids=["whole", "byte by byte", "by seven"])
@pytest.mark.parametrize(("state", "command", "events", "answer"), CONVERSATION, ids=IDS)
def test_conversation(
    state: str,
    command: Command,
    events: list[Command] | type[MQSourceError],
    answer: list[Command],
    step: int | None,
    trailing: bytes,
) -> None:
    made = STATES[state]()
    data = encode_command(command) + trailing
    pieces = [data[at : at + (step or len(data))] for at in range(0, len(data), step or len(data))]

    def receive() -> None:
        for piece in pieces:
            made.receive_data(piece)

    if isinstance(events, list):
        receive()
        assert made.events_received() == events
        assert sent(made) == answer
        assert made.events_received() == []
        assert made.data_to_send() == b""
        return
    with pytest.raises(events) as raised:
        receive()
    assert type(raised.value) is events
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # noqa: S301 - our own bytes
    assert made.state is ConnectionState.CLOSED
    assert made.data_to_send() == b""
    assert made.next_timer() is None


@pytest.mark.parametrize("step", [None, 1, 1000], ids=["whole", "byte by byte", "by a thousand"])
def test_every_recorded_frame_of_a_broker_is_accepted(step: int | None) -> None:
    made = subscribed(authentication=TokenAuthentication("t0k"))
    data = b"".join(f.data for f in FRAMES if f.from_broker and "18446744073709551615 error" not in f.text)
    for at in range(0, len(data), step or len(data)):
        made.receive_data(data[at : at + (step or len(data))])
    events = made.events_received()
    recorded = sum(f.from_broker and f.kind == "MESSAGE" for f in FRAMES)
    assert sum(isinstance(event, c.Message) for event in events) == recorded > 0
    assert {type(event) for event in sent(made)} == {c.Pong, c.AuthResponse}


# Handshake.


def test_connect_has_our_version_and_features() -> None:
    made = connection(BasicAuthentication("alice", "pässword"), proxy_to_broker_url="broker-1:6650")
    assert sent(made) == [
        c.Connect(
            "test",
            "alice:pässword".encode(),
            20,
            "basic",
            "broker-1:6650",
            c.FeatureFlags(
                supports_auth_refresh=True,
                supports_broker_entry_metadata=True,
                supports_get_partitioned_metadata_without_auto_creation=True,
            ),
        )
    ]


def test_connected_has_the_versions_and_limit_of_the_broker() -> None:
    made = connection()
    assert (made.state, made.max_message_bytes) == (ConnectionState.CONNECTING, 5 << 20)
    made.receive_data(encode_command(c.Connected("Pulsar Server2.8", 17, 1 << 20)))
    assert made.state is ConnectionState.CONNECTED
    assert (made.server_version, made.protocol_version, made.max_message_bytes) == ("Pulsar Server2.8", 17, 1 << 20)


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (c.Ack(1, c.AckType.Individual, (), 9), 17),
        (c.AckEntries(1, [(7, 0)], 9), 17),
        (c.Subscribe("t", "s", c.SubType.Key_Shared, 2, 9), 14),
        (c.GetLastMessageId(1, 9), 12),
        (c.TcClientConnectRequest(9, 0), 19),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_command_unknown_to_the_broker_is_not_sent(command: c.Request, needed: int) -> None:
    for version in (needed - 1, needed):
        made = _drained(connection())
        made.receive_data(encode_command(c.Connected("Pulsar Server1", version)))
        made.send(c.Subscribe("t", "s", c.SubType.Shared, 1, 8))
        made.receive_data(encode_command(c.Success(8)))
        sent = len(made.data_to_send())
        if version < needed:
            with pytest.raises(UnsupportedFeatureError, match=f"needs version {needed} .*Pulsar Server1 has version"):
                made.send(command)
        else:
            made.send(command)
        assert bool(made.data_to_send()) == (version >= needed)
        assert sent


def test_a_broker_that_requires_authentication_without_credentials() -> None:
    made = connection()
    with pytest.raises(AuthenticationError, match="by token: set authToken"):
        made.receive_data(encode_command(CHALLENGE))


def test_a_broker_that_requires_another_authentication() -> None:
    made = connection(TlsAuthentication("client.pem"))
    with pytest.raises(AuthenticationError, match="by token, the options are for tls"):
        made.receive_data(encode_command(CHALLENGE))


def test_a_token_file_is_read_again_at_each_challenge(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")
    made = connection(TokenFileAuthentication(str(file)))
    (connect,) = sent(made)
    assert isinstance(connect, c.Connect)
    assert connect.auth_data == b"first"
    file.write_text("second\n")
    made.receive_data(encode_command(CONNECTED) + encode_command(CHALLENGE))
    assert sent(made) == [c.AuthResponse("test", c.AuthData("token", b"second"), 20)]
    file.write_text("\n")
    with pytest.raises(AuthenticationError, match="is empty"):
        connection(TokenFileAuthentication(str(file)))
    file.unlink()
    with pytest.raises(AuthenticationError, match="cannot be read"):
        made.receive_data(encode_command(CHALLENGE))
    assert made.state is ConnectionState.CLOSED


def test_the_broker_s_message_size_is_the_limit_of_frames() -> None:
    made = connection()
    made.receive_data(encode_command(c.Connected("x", 19, 1 << 20)))
    limit = (1 << 20) + 26 * 1024
    made.receive_data((limit).to_bytes(4, "big"))
    made = connection()
    made.receive_data(encode_command(c.Connected("x", 19, 1 << 20)))
    with pytest.raises(RemoteProtocolError, match=f"{limit + 1} bytes was announced"):
        made.receive_data((limit + 1).to_bytes(4, "big"))


def test_no_broker_raises_the_limit_above_ours() -> None:
    made = connection()
    made.receive_data(encode_command(c.Connected("x", 19, (1 << 31) - 1)))
    with pytest.raises(RemoteProtocolError, match="was announced"):
        made.receive_data(((256 << 20) + 1).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("data", "words"), [(b"HTTP/1.1 400", "HTTP server"), (bytes.fromhex("15030300020246"), "TLS port")]
)
def test_a_peer_that_is_no_broker_is_an_error_with_its_protocol(data: bytes, words: str) -> None:
    made = connection()
    with pytest.raises(RemoteProtocolError, match=words):
        made.receive_data(data)
    with pytest.raises(LocalProtocolError, match="received after an error"):
        made.receive_data(data)


# The end.


def test_eof_before_connected_hints_at_the_port() -> None:
    made = connection()
    with pytest.raises(ConnectionLostError, match=r"before it answered CONNECT; .*6650.*6651"):
        made.receive_eof()
    assert made.state is ConnectionState.CLOSED


def test_eof_reports_open_requests() -> None:
    made = subscribed()
    made.send(c.Lookup("t", 1))
    made.send(c.Lookup("t", 2))
    made.send(c.GetLastMessageId(1, 3))
    made.receive_data(encode_command(MESSAGE)[:9])
    with pytest.raises(ConnectionLostError) as raised:
        made.receive_eof()
    assert str(raised.value) == (
        "the broker closed the connection while 2 Lookup, GetLastMessageId waited for an answer and 1 consumers were "
        "open (9 bytes of an unfinished frame received)"
    )
    assert raised.value.retryable
    with pytest.raises(ConnectionLostError, match="closed the connection while 1 producers were open"):
        producing().receive_eof()


def test_after_close_nothing_is_sent_or_received() -> None:
    made = subscribed()
    made.send(c.Flow(1, 1))
    made.close()
    assert made.data_to_send() == b""
    with pytest.raises(LocalProtocolError, match="sent after the connection was closed here"):
        made.send(c.Flow(1, 1))
    with pytest.raises(LocalProtocolError, match="received after"):
        made.receive_data(b"x")
    made.receive_eof()
    made.handle_timer(1e9)


# Keep-alive.


def test_one_silent_interval_sends_ping_and_two_end_the_connection() -> None:
    made = connected(keep_alive_ms=10_000)
    assert made.next_timer() == 10.0
    made.handle_timer(9.9)
    assert sent(made) == []
    made.handle_timer(10.0)
    assert sent(made) == [c.Ping()]
    assert made.next_timer() == 20.0
    made.handle_timer(19.9)
    assert sent(made) == []
    with pytest.raises(ConnectionLostError, match="silent for 20 s, even to PING"):
        made.handle_timer(20.0)
    assert made.state is ConnectionState.CLOSED


def test_a_broker_that_throttles_a_producer_may_be_silent_for_longer() -> None:
    made = producing(keep_alive_ms=10_000, producing_keep_alive_ms=30_000)
    # Also after CLOSE_PRODUCER, which the broker does not read before the end of the throttling.
    made.send(c.CloseProducer(1, 7))
    made.data_to_send()
    made.handle_timer(30.0)
    assert sent(made) == [c.Ping()]
    made.handle_timer(59.9)
    with pytest.raises(ConnectionLostError, match="silent for 60 s, even to PING"):
        made.handle_timer(60.0)


@pytest.mark.parametrize("data", [encode_command(c.Pong()), encode_command(c.Success(1)), b"\0"])
def test_any_byte_restarts_the_silence_timer(data: bytes) -> None:
    made = connected(keep_alive_ms=10_000)
    made.handle_timer(10.0)
    made.receive_data(data, now=19.0)
    assert made.next_timer() == 29.0
    made.handle_timer(29.0)
    assert sent(made) == [c.Ping(), c.Ping()]
    assert made.next_timer() == 39.0


def test_a_peer_that_never_answers_connect_is_lost_after_two_intervals() -> None:
    made = connection(keep_alive_ms=10_000)
    made.data_to_send()
    made.handle_timer(10.0)
    assert sent(made) == []
    with pytest.raises(ConnectionLostError, match="no answer to CONNECT for 20 s"):
        made.handle_timer(20.0)


def test_while_paused_pings_are_sent_and_the_connection_is_kept() -> None:
    made = connected(keep_alive_ms=10_000)
    made.handle_timer(10.0)
    made.paused = True
    for _ in range(10):
        timer = made.next_timer()
        assert timer is not None
        made.handle_timer(timer)
    assert sent(made) == [c.Ping()] * 11
    assert timer >= 100.0
    made.paused = False
    # The broker's answers meanwhile are in the socket: one interval is left to read them.
    assert made.next_timer() == timer + 10.0
    made.handle_timer(timer + 10.0)
    with pytest.raises(ConnectionLostError):
        made.handle_timer(timer + 20.0)


# Commands that must not be sent.


def test_nothing_is_sent_before_connected() -> None:
    with pytest.raises(LocalProtocolError, match="Lookup sent before CONNECTED"):
        connection().send(c.Lookup("t", 1))


@pytest.mark.parametrize("permits", [0, -1, 2**31, 2**32])
def test_a_flow_for_which_the_broker_would_close_is_refused(permits: int) -> None:
    made = subscribed()
    with pytest.raises(LocalProtocolError, match="permits are 1 to 2147483647"):
        made.send(c.Flow(1, permits))
    assert made.data_to_send() == b""
    assert made.state is ConnectionState.CONNECTED


def test_commands_that_cross_the_broker_s_close() -> None:
    made = subscribed()
    made.receive_data(encode_command(c.CloseConsumer(1, -1)))
    made.send(c.Flow(1, 10))
    with pytest.raises(ServiceNotReadyError, match="consumer was closed meanwhile"):
        made.send(c.ConsumerStats(7, 1))
    with pytest.raises(ServiceNotReadyError, match="subscribe again"):
        made.send(c.Ack(1, c.AckType.Cumulative, (c.MessageId(1, 2),), 8))
    assert made.data_to_send() == b""
    made.send(c.Subscribe("t", "s", c.SubType.Exclusive, 1, 101))
    made.receive_data(encode_command(c.Success(101)))
    made.send(c.ConsumerStats(7, 1))


def test_a_send_is_written_unchanged() -> None:
    made = producing()
    made.send(SEND)
    batch = c.Send(3, 1, memoryview(BODY), num_messages=3, highest_sequence_id=3)
    made.send(batch)
    assert made.data_to_send() == encode_command(SEND) + encode_command(batch)


def test_a_producer_that_waits_for_access_has_no_answer_yet() -> None:
    made = connected()
    made.send(PRODUCER)
    made.receive_data(encode_command(c.ProducerSuccess(200, "p", producer_ready=False)))
    assert made.events_received() == []
    made.receive_data(encode_command(c.ProducerSuccess(200, "p")))
    assert made.events_received() == [c.ProducerSuccess(200, "p")]
    made.send(SEND)


def test_a_send_that_crosses_the_broker_s_close() -> None:
    made = producing()
    made.receive_data(encode_command(c.CloseProducer(3, -1)))
    with pytest.raises(ServiceNotReadyError, match="SEND 0: the broker has closed producer 3 meanwhile"):
        made.send(SEND)
    assert made.data_to_send() == b""
    made.send(c.Producer("t", 3, 201))
    made.receive_data(encode_command(c.ProducerSuccess(201, "p")))
    made.send(SEND)


def test_a_send_is_no_larger_than_the_broker_accepts() -> None:
    made = producing()
    most = made.max_message_bytes
    made.send(SEND._replace(body=bytes(most)))
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        made.send(SEND._replace(sequence_id=1, num_messages=2**31))
    with pytest.raises(LocalProtocolError, match=f"SEND 1 has {most + 1} bytes.*its {most}"):
        made.send(SEND._replace(sequence_id=1, body=bytes(most + 1)))
    assert made.state is ConnectionState.CONNECTED


def test_a_failed_encoding_changes_no_state() -> None:
    made = connected()
    with pytest.raises(LocalProtocolError, match="cannot be sent"):
        made.send(c.Subscribe("\ud800", "s", c.SubType.Exclusive, 1, 1))
    made.send(c.Subscribe("t", "s", c.SubType.Exclusive, 1, 1))


# Received messages.


def test_messages_are_views_of_the_receive_buffer() -> None:
    made = subscribed()
    data = encode_command(MESSAGE)
    free = made.writable(len(data))
    free[: len(data)] = data
    block = free.obj
    made.received(len(data), 0.0)
    (message,) = made.events_received()
    assert isinstance(message, c.Message)
    assert message.body.obj is block
    assert message.body.readonly


def test_an_ignored_command_is_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    made = connected()
    with caplog.at_level(logging.DEBUG, logger="spark_mq_source"):
        made.receive_data(encode_command(c.UnknownCommand(70)))
    assert "a command of type 70 was ignored" in caplog.text
