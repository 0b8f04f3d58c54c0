from __future__ import annotations

import json

import pytest

from spark_mq_source.core.errors import RemoteProtocolError
from spark_mq_source.nsq.protocol import commands as c
from spark_mq_source.nsq.protocol.codec import (
    decode_authorized,
    decode_error,
    decode_identified,
    decode_response,
    encode,
)
from spark_mq_source.nsq.protocol.wire import take_frame
from tests.unit.nsq.vectors import received, sent


def data_of(frame: bytes) -> memoryview:
    found = take_frame(memoryview(frame), 0, 1 << 20)
    assert found is not None
    return found.data


@pytest.mark.parametrize(
    ("command", "case", "number"),
    [
        (c.Pub("vec_pub", b"hello"), "pub ok", 1),
        (c.Mpub("vec_mpub", bytes.fromhex("00000003000000016100000002626200000003636363")), "mpub ok", 1),
        (c.Dpub("vec_dpub", 1500, b"hi"), "dpub ok", 1),
        (c.Sub("vec_sub", "c"), "sub twice", 1),
        (c.Rdy(1_000_000), "rdy above max-rdy-count", 2),
        (c.Cls(), "cls before sub", 1),
        (c.Nop(), "nop is silent", 1),
        (c.Auth("good"), "auth: subscribe allowed", 1),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str | int) else None,
)
def test_commands_are_the_recorded_bytes(command: object, case: str, number: int) -> None:
    assert encode(command) == sent(case, number)  # type: ignore[arg-type]


def test_identify_is_that_of_the_recorded_client() -> None:
    command = c.Identify(
        "vec", "vec.local", "vec/1", output_buffer_bytes=16384, output_buffer_timeout_ms=250, msg_timeout_ms=60_000
    )
    ours, theirs = (
        json.loads(data.removeprefix(b"IDENTIFY\n")[4:]) for data in (encode(command), sent("identify negotiated", 1))
    )
    extra = {"tls_v1": False, "snappy": False, "deflate": False, "sample_rate": 0}
    assert ours == theirs | extra


def test_identify_contains_every_setting() -> None:
    command = c.Identify("i", "h", "u", 1000, 64, 1, 2000, True, False, True, 6, 99, "region", "zone")
    said = json.loads(encode(command).removeprefix(b"IDENTIFY\n")[4:])
    assert said == {
        "client_id": "i",
        "hostname": "h",
        "user_agent": "u",
        "feature_negotiation": True,
        "heartbeat_interval": 1000,
        "output_buffer_size": 64,
        "output_buffer_timeout": 1,
        "msg_timeout": 2000,
        "tls_v1": True,
        "snappy": False,
        "deflate": True,
        "deflate_level": 6,
        "sample_rate": 99,
        "topology_region": "region",
        "topology_zone": "zone",
    }


def test_the_answer_to_identify_is_read() -> None:
    answer = decode_identified(data_of(received("identify negotiated", 0)))
    assert answer == c.Identified(
        max_rdy_count=20_000,
        version="1.3.0",
        max_msg_timeout_ms=900_000,
        msg_timeout_ms=60_000,
        deflate_level=6,
        max_deflate_level=6,
        output_buffer_bytes=16_384,
        output_buffer_timeout_ms=250,
    )
    assert decode_identified(data_of(received("deflate upgrade", 0))).deflate
    assert decode_identified(data_of(received("snappy upgrade", 0))).snappy
    assert decode_identified(data_of(received("auth: IDENTIFY says auth_required", 0))).auth_required


def test_a_broker_without_negotiation_has_the_defaults() -> None:
    plain = data_of(received("identify without negotiation answers OK", 0))
    assert decode_identified(plain) == c.Identified(max_rdy_count=2500)


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b"", b"null", b'{"max_rdy_count": "many"}', b'{"max_rdy_count": -1}', b'{"max_rdy_count": true}'],
)
def test_an_invalid_answer_to_identify_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="IDENTIFY"):
        decode_identified(memoryview(data))


def test_the_answer_to_auth_is_read() -> None:
    answer = decode_authorized(data_of(received("auth: subscribe allowed", 0)))
    assert answer == c.Authorized("vec", "http://127.0.0.1/vec", 1)


def test_answers_are_distinguished() -> None:
    assert decode_response(data_of(received("pub ok", 0))) == c.Ok()
    assert decode_response(data_of(received("heartbeats", 1))) == c.Heartbeat()
    close_wait = next(
        frame for n in range(20) if (frame := received("deliver, touch, fin, req, redeliver, cls", n))[8:11] == b"CLO"
    )
    assert decode_response(data_of(close_wait)) == c.CloseWait()
    with pytest.raises(RemoteProtocolError, match="unknown answer: b'FINE'"):
        decode_response(memoryview(b"FINE"))


@pytest.mark.parametrize(
    ("case", "number", "command", "message_id"),
    [
        ("fin unknown id is not fatal", 1, "FIN", b"0123456789abcdef"),
        ("touch unknown id", 1, "TOUCH", b"0123456789abcdef"),
        ("req unknown id", 1, "REQ", b"0123456789abcdef"),
        ("fin from another connection", 1, "FIN", b"18a29bd6ede69000"),
    ],
)
def test_errors_about_one_message_name_it(case: str, number: int, command: str, message_id: bytes) -> None:
    error = decode_error(data_of(received(case, number)))
    assert isinstance(error, c.Failed)
    assert (error.command, error.message_id) == (command, message_id)


def test_an_error_about_one_message_may_lack_its_id() -> None:
    error = decode_error(memoryview(b"E_FIN_FAILED something new"))
    assert error == c.Failed("FIN", b"", "something new")


@pytest.mark.parametrize(
    ("case", "number", "code"),
    [
        ("bad magic", 0, "E_BAD_PROTOCOL"),
        ("pub topic 65 bytes", 0, "E_BAD_TOPIC"),
        ("sub bad channel", 0, "E_BAD_CHANNEL"),
        ("mpub zero messages", 0, "E_BAD_BODY"),
        ("pub empty body", 0, "E_BAD_MESSAGE"),
        ("rdy negative", 1, "E_INVALID"),
        ("auth: refused secret", 0, "E_AUTH_FAILED"),
        ("snappy and deflate together", 0, "E_IDENTIFY_FAILED"),
    ],
)
def test_other_errors_end_the_connection(case: str, number: int, code: str) -> None:
    error = decode_error(data_of(received(case, number)))
    assert isinstance(error, c.Refused)
    assert error.code == code


def test_secrets_and_bodies_are_in_no_repr() -> None:
    for command in (c.Auth("hush"), c.Pub("t", b"hush"), c.Mpub("t", b"hush"), c.Dpub("t", 1, b"hush")):
        assert "hush" not in repr(command)
