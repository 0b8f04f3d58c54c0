from __future__ import annotations

import logging
from typing import Any

import pytest

from spark_mq_source.core.errors import (
    AuthenticationError,
    BrokerError,
    ConnectionLostError,
    LocalProtocolError,
    MQSourceError,
    RemoteProtocolError,
    UnsupportedFeatureError,
)
from spark_mq_source.nsq.payload.messages import message_ids
from spark_mq_source.nsq.protocol import commands as c
from spark_mq_source.nsq.protocol.compression import DeflateStream, SnappyStream
from spark_mq_source.nsq.protocol.connection import ConnectionState, NsqConnection
from spark_mq_source.nsq.protocol.wire import MESSAGE, RESPONSE, encode_frame
from tests.unit.nsq.vectors import CASES, received

OK = encode_frame(RESPONSE, b"OK")
HEARTBEAT = encode_frame(RESPONSE, b"_heartbeat_")
IDENTIFIED = received("identify negotiated", 0)
ID = b"0123456789abcdef"


def message(body: bytes = b"body", message_id: bytes = ID) -> bytes:
    return encode_frame(MESSAGE, bytes(8) + b"\0\1" + message_id + body)


def connection(auth_secret: str | None = None, **wanted: Any) -> NsqConnection:
    made = NsqConnection(c.Identify("i", "h", "u", **wanted), auth_secret=auth_secret, now=0.0)
    assert made.data_to_send().startswith(b"  V2IDENTIFY\n")
    return made


def connected(**wanted: Any) -> NsqConnection:
    made = connection(**wanted)
    made.receive_data(IDENTIFIED)
    assert made.events_received() == [made.identified]
    return made


def subscribed(**wanted: Any) -> NsqConnection:
    made = connected(**wanted)
    made.send(c.Sub("t", "c"))
    made.receive_data(OK)
    assert made.events_received() == [c.Ok()]
    assert made.data_to_send() == b"SUB t c\n"
    return made


def agreed(**fields: object) -> bytes:
    values = ", ".join(f'"{name}": {str(value).lower()}' for name, value in fields.items())
    return encode_frame(RESPONSE, b"{%b}" % values.encode())


# -- the handshake


def test_without_upgrades_the_answer_to_identify_is_enough() -> None:
    made = connection()
    assert made.state is ConnectionState.IDENTIFYING
    made.receive_data(IDENTIFIED)
    assert made.state is ConnectionState.CONNECTED
    assert made.events_received()[0].max_rdy_count == 20_000
    assert made.data_to_send() == b""


def test_tls_then_compression_then_auth_each_with_its_answer() -> None:
    made = connection("hush", tls_v1=True, deflate=True, deflate_level=3)
    theirs = DeflateStream(3)
    made.receive_data(agreed(tls_v1=True, deflate=True, deflate_level=3, auth_required=True))
    assert made.state is ConnectionState.STARTING_TLS
    made.tls_started()
    assert made.state is ConnectionState.UPGRADING
    made.receive_data(OK)
    assert made.state is ConnectionState.UPGRADING
    assert made.data_to_send() == b""
    made.receive_data(theirs.compress(OK))
    assert made.state is ConnectionState.AUTHENTICATING
    sent = b"".join(theirs.decompress(made.data_to_send()))
    assert sent == b"AUTH\n\x00\x00\x00\x04hush"
    assert made.events_received() == []
    made.receive_data(theirs.compress(received("auth: subscribe allowed", 0)))
    assert made.state is ConnectionState.CONNECTED
    assert made.authorized == c.Authorized("vec", "http://127.0.0.1/vec", 1)
    assert made.events_received() == [made.identified]


@pytest.mark.parametrize("together", [True, False])
def test_the_compressed_ok_may_follow_the_answer_immediately(together: bool) -> None:
    made = connection(snappy=True)
    (ok,) = [bytes.fromhex(event["recv_snappy"]) for event in CASES["snappy upgrade"] if "recv_snappy" in event]
    answer = received("snappy upgrade", 0)
    for data in [answer + ok] if together else [answer, ok[:7], ok[7:]]:
        made.receive_data(data)
    assert made.state is ConnectionState.CONNECTED
    made.send(c.Nop())
    assert b"".join(SnappyStream().decompress(made.data_to_send())) == b"NOP\n"


def test_unencrypted_bytes_after_the_tls_upgrade_are_refused() -> None:
    made = connection(tls_v1=True)
    made.receive_data(agreed(tls_v1=True) + OK)
    with pytest.raises(RemoteProtocolError, match="in plain text"):
        made.tls_started()
    assert made.state is ConnectionState.CLOSED


def test_tls_is_not_started_without_a_request() -> None:
    with pytest.raises(LocalProtocolError, match="TLS was started while connected"):
        connected().tls_started()


def test_a_broker_without_tls_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="-tls-cert"):
        connection(tls_v1=True).receive_data(received("tls_v1 when the server has no certificate", 0))


def test_a_broker_without_compression_is_accepted_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    made = connection(deflate=True)
    with caplog.at_level(logging.WARNING):
        made.receive_data(IDENTIFIED)
    assert made.state is ConnectionState.CONNECTED
    assert "does not offer the requested compression" in caplog.text


def test_unrequested_compression_is_ignored() -> None:
    made = connection()
    made.receive_data(agreed(snappy=True, deflate=True, tls_v1=True))
    assert made.state is ConnectionState.CONNECTED


def test_a_secret_is_needed_and_sent_only_if_required() -> None:
    with pytest.raises(AuthenticationError, match="set authSecret"):
        connection().receive_data(agreed(auth_required=True))
    made = connection("hush")
    made.receive_data(IDENTIFIED)
    assert b"hush" not in made.data_to_send()
    assert made.authorized is None


def test_an_old_broker_answers_ok() -> None:
    made = connection()
    made.receive_data(OK)
    assert made.state is ConnectionState.CONNECTED
    assert made.identified.max_rdy_count == 2500


def test_heartbeats_are_answered_within_the_handshake() -> None:
    made = connection("hush")
    made.receive_data(agreed(auth_required=True))
    made.data_to_send()
    made.receive_data(HEARTBEAT)
    assert made.data_to_send() == b"NOP\n"
    assert made.state is ConnectionState.AUTHENTICATING


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (received("identify heartbeat out of range", 0), BrokerError, "identifying: .*heartbeat interval"),
        (received("bad magic", 0), BrokerError, "E_BAD_PROTOCOL"),
        (message(), RemoteProtocolError, "a message before SUB"),
        (encode_frame(RESPONSE, b"what?"), RemoteProtocolError, "is not a JSON object"),
    ],
)
def test_a_handshake_that_fails_closes(data: bytes, error: type[MQSourceError], words: str) -> None:
    made = connection()
    with pytest.raises(error, match=words):
        made.receive_data(data)
    assert made.state is ConnectionState.CLOSED
    with pytest.raises(LocalProtocolError, match="sent after an error"):
        made.send(c.Nop())
    with pytest.raises(LocalProtocolError, match="received after an error"):
        made.receive_data(OK)
    assert made.next_timer() is None


def test_an_end_within_the_handshake_names_the_step() -> None:
    with pytest.raises(ConnectionLostError, match="while identifying; is this the TCP port"):
        connection().receive_eof()
    made = connection(tls_v1=True)
    made.receive_data(agreed(tls_v1=True))
    made.tls_started()
    with pytest.raises(ConnectionLostError, match="client certificate"):
        made.receive_eof()


# -- sending


def test_no_command_is_sent_before_the_handshake_is_over() -> None:
    with pytest.raises(LocalProtocolError, match="Pub sent while identifying"):
        connection().send(c.Pub("t", b"x"))


@pytest.mark.parametrize("command", [c.Rdy(1), c.Fin(ID), c.Req(ID), c.Touch(ID), c.Cls()], ids=repr)
def test_commands_of_consumers_are_refused_without_a_subscription(command: c.Command) -> None:
    made = connected()
    with pytest.raises(LocalProtocolError, match="before SUB"):
        made.send(command)
    assert made.data_to_send() == b""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (c.Sub("t", "c"), "one subscription"),
        (c.Rdy(-1), "0 to 20000"),
        (c.Rdy(20_001), "0 to 20000"),
        (c.Fin(b"short"), "not whole"),
        (c.Pub("bad topic", b"x"), "is not a valid name"),
        (c.Mpub("t\nPUB u", b"x"), "is not a valid name"),
        (c.Pub("t", b""), "empty"),
        (c.Dpub("t", -1, b"x"), "passed"),
        (c.Identify("i", "h", "u"), "not for users"),
        (c.Auth("s"), "not for users"),
    ],
    ids=repr,
)
def test_commands_for_which_the_broker_would_close_are_refused(command: c.Command, words: str) -> None:
    made = subscribed()
    with pytest.raises(LocalProtocolError, match=words):
        made.send(command)
    assert made.data_to_send() == b""


def test_commands_about_messages_are_sent_as_one_piece() -> None:
    made = subscribed()
    for command in (c.Rdy(2), c.Fin(ID + b"f" * 16), c.Req(ID, 0), c.Req(ID, 1500), c.Touch(ID), c.Cls()):
        made.send(command)
    assert made.data_to_send() == (
        b"RDY 2\nFIN 0123456789abcdef\nFIN ffffffffffffffff\nREQ 0123456789abcdef 0\nREQ 0123456789abcdef 1500\n"
        b"TOUCH 0123456789abcdef\nCLS\n"
    )
    assert made.data_to_send() == b""


# -- receiving


def test_messages_are_reported_in_runs_between_answers() -> None:
    made = subscribed()
    error = received("fin unknown id is not fatal", 1)
    made.receive_data(message(b"1") + message(b"2") + HEARTBEAT + message(b"3") + error + OK + message(b"4")[:-1])
    first, second, failed, ok = made.events_received()
    assert isinstance(first, c.Messages)
    assert isinstance(second, c.Messages)
    assert (first.count, bytes(first.data)) == (2, message(b"1") + message(b"2"))
    assert (second.count, bytes(second.data)) == (1, message(b"3"))
    assert isinstance(failed, c.Failed)
    assert ok == c.Ok()
    assert made.data_to_send() == b"NOP\n"
    made.receive_data(message(b"4")[-1:])
    (fourth,) = made.events_received()
    assert isinstance(fourth, c.Messages)
    assert message_ids(fourth.data) == ID


def test_messages_before_a_refusal_are_delivered() -> None:
    made = subscribed()
    with pytest.raises(BrokerError, match="E_INVALID: RDY count"):
        made.receive_data(message() + OK + received("rdy above max-rdy-count", 1) + message())
    run, ok = made.events_received()
    assert isinstance(run, c.Messages)
    assert ok == c.Ok()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (encode_frame(MESSAGE, bytes(25)), "a frame of 33 bytes, which is too short"),
        (b"\x7f\xff\xff\xff", "2147483647 bytes"),
        (encode_frame(RESPONSE, b"FINE"), "unknown answer"),
        (encode_frame(7, b"x"), "unknown type 7"),
    ],
)
def test_invalid_frames_close_the_connection(data: bytes, words: str) -> None:
    made = subscribed()
    with pytest.raises(RemoteProtocolError, match=words):
        made.receive_data(message() + data)
    assert len(made.events_received()) == 1
    assert made.state is ConnectionState.CLOSED


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (100_000, "to 100030 are possible"),
        # Answers may be larger than the largest message.
        (50, "a message of 51 bytes, and maxMessageBytes is 50: set it to nsqd's"),
    ],
)
def test_a_message_larger_than_allowed_is_refused(limit: int, words: str) -> None:
    made = NsqConnection(c.Identify("i", "h", "u"), max_message_bytes=limit, now=0.0)
    made.receive_data(IDENTIFIED)
    made.send(c.Sub("t", "c"))
    made.receive_data(OK + message(bytes(limit)))
    assert len(made.events_received()) == 3
    with pytest.raises(RemoteProtocolError, match=words):
        made.receive_data(message(bytes(limit + 1))[: 4 if limit > 50 else None])


def test_an_announced_size_allocates_no_memory() -> None:
    made = subscribed()
    made.receive_data((100 << 20).to_bytes(4, "big") + bytes.fromhex("00000002"))
    assert len(made.writable(1000)) <= 4 << 20


def test_an_end_loses_the_connection() -> None:
    made = subscribed()
    made.receive_data(message()[:10])
    with pytest.raises(ConnectionLostError, match=r"nsqd closed the connection \(10 bytes of an unfinished frame"):
        made.receive_eof()
    made.receive_eof()
    made.close()


# -- time


def test_silence_of_three_heartbeats_loses_the_connection() -> None:
    made = connected(heartbeat_interval_ms=1000)
    made.receive_data(HEARTBEAT, now=10.0)
    assert made.next_timer() == 13.0
    made.handle_timer(12.9)
    with pytest.raises(ConnectionLostError, match="silent for 3 s"):
        made.handle_timer(13.0)


def test_without_heartbeats_silence_keeps_the_connection() -> None:
    assert connected(heartbeat_interval_ms=c.OFF).next_timer() is None


def test_a_paused_reader_sends_nops_without_heartbeats() -> None:
    made = connected(heartbeat_interval_ms=1000)
    made.receive_data(HEARTBEAT, now=10.0)
    made.data_to_send()
    made.paused = True
    assert made.next_timer() == 11.0
    for now in (11.0, 12.0, 13.0, 14.0, 15.0):
        made.handle_timer(now)
        assert made.data_to_send() == b"NOP\n"
    made.paused = False
    assert made.next_timer() == 18.0
