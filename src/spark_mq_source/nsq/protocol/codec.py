"""Commands to bytes, and frames to answers."""

from __future__ import annotations

import json
import re
from typing import Final

from spark_mq_source.core.errors import RemoteProtocolError
from spark_mq_source.nsq.protocol.commands import (
    Auth,
    Authorized,
    ByteString,
    CloseWait,
    Cls,
    Dpub,
    Failed,
    Heartbeat,
    Identified,
    Identify,
    Mpub,
    Nop,
    Ok,
    Pub,
    Rdy,
    Refused,
    Response,
    Sub,
)
from spark_mq_source.nsq.protocol.wire import MESSAGE_ID_BYTES, encode_command

_RESPONSES: Final[dict[bytes, Response]] = {b"OK": Ok(), b"_heartbeat_": Heartbeat(), b"CLOSE_WAIT": CloseWait()}
_NOT_FATAL: Final = {"E_FIN_FAILED": "FIN", "E_REQ_FAILED": "REQ", "E_TOUCH_FAILED": "TOUCH"}
_ID: Final = re.compile(rf"\A(?:FIN|REQ|TOUCH) ([0-9a-zA-Z]{{{MESSAGE_ID_BYTES}}}) ")


def encode(command: Identify | Auth | Sub | Rdy | Cls | Nop | Pub | Mpub | Dpub) -> bytes:
    r"""Encode a command.

    Example:
        >>> encode(Sub("flights", "spark")), encode(Dpub("flights", 1500, b"late"))
        (b'SUB flights spark\n', b'DPUB flights 1500\n\x00\x00\x00\x04late')
    """
    words: tuple[bytes, ...] = ()
    body: ByteString | None = None
    match command:
        case Pub() | Mpub():
            words, body = (command.topic.encode(),), command.body
        case Dpub():
            words, body = (command.topic.encode(), b"%d" % command.defer_ms), command.body
        case Rdy():
            words = (b"%d" % command.count,)
        case Sub():
            words = (command.topic.encode(), command.channel.encode())
        case Auth():
            body = command.secret.encode()
        case Identify():
            body = _identify_body(command)
    return encode_command(type(command).__name__.upper().encode(), *words, body=body)


def _identify_body(command: Identify) -> bytes:
    wanted: dict[str, object] = {
        "client_id": command.client_id,
        "hostname": command.hostname,
        "user_agent": command.user_agent,
        "feature_negotiation": True,
        "heartbeat_interval": command.heartbeat_interval_ms,
        "output_buffer_size": command.output_buffer_bytes,
        "output_buffer_timeout": command.output_buffer_timeout_ms,
        "msg_timeout": command.msg_timeout_ms,
        "tls_v1": command.tls_v1,
        "snappy": command.snappy,
        "deflate": command.deflate,
        "deflate_level": command.deflate_level,
        "sample_rate": command.sample_rate,
        "topology_region": command.topology_region,
        "topology_zone": command.topology_zone,
    }
    return json.dumps({name: value for name, value in wanted.items() if value is not None}).encode()


def decode_response(data: memoryview) -> Response:
    """Decode the answer in a response frame.

    Raises:
        RemoteProtocolError: the answer is unknown.

    Example:
        >>> decode_response(memoryview(b"OK"))
        Ok()
    """
    response = _RESPONSES.get(bytes(data[:64]))
    if response is None:
        raise RemoteProtocolError(f"an unknown answer: {bytes(data[:64])!r}")
    return response


def decode_identified(data: memoryview) -> Identified:
    """Decode the answer to IDENTIFY; a plain OK comes from an nsqd without feature negotiation.

    Raises:
        RemoteProtocolError: the answer is neither JSON nor OK.

    Example:
        >>> decode_identified(memoryview(b'{"max_rdy_count": 2500, "version": "1.3.0"}')).version
        '1.3.0'
    """
    if bytes(data) == b"OK":
        return Identified()
    answer = _json_object(data, "IDENTIFY")
    default = Identified()

    def number(name: str, otherwise: int) -> int:
        value = answer.get(name, otherwise)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
            raise RemoteProtocolError(f"the answer to IDENTIFY has {name}={value!r}")
        return value

    return Identified(
        max_rdy_count=number("max_rdy_count", default.max_rdy_count),
        version=str(answer.get("version", "")),
        max_msg_timeout_ms=number("max_msg_timeout", default.max_msg_timeout_ms),
        msg_timeout_ms=number("msg_timeout", default.msg_timeout_ms),
        tls_v1=answer.get("tls_v1") is True,
        deflate=answer.get("deflate") is True,
        deflate_level=number("deflate_level", 0),
        max_deflate_level=number("max_deflate_level", 0),
        snappy=answer.get("snappy") is True,
        sample_rate=number("sample_rate", 0),
        auth_required=answer.get("auth_required") is True,
        output_buffer_bytes=number("output_buffer_size", 0),
        output_buffer_timeout_ms=number("output_buffer_timeout", 0),
        topology_region=str(answer.get("topology_region", "")),
        topology_zone=str(answer.get("topology_zone", "")),
    )


def decode_authorized(data: memoryview) -> Authorized:
    """Decode the answer to AUTH.

    Raises:
        RemoteProtocolError: it is not an answer to AUTH.

    Example:
        >>> decode_authorized(memoryview(b'{"identity":"vec","identity_url":"","permission_count":1}'))
        Authorized(identity='vec', identity_url='', permission_count=1)
    """
    answer = _json_object(data, "AUTH")
    count = answer.get("permission_count", 0)
    return Authorized(
        str(answer.get("identity", "")), str(answer.get("identity_url", "")), count if isinstance(count, int) else 0
    )


def decode_error(data: memoryview) -> Failed | Refused:
    """Decode an error frame.

    Example:
        >>> decode_error(memoryview(b"E_FIN_FAILED FIN 0123456789abcdef failed ID not in flight")).message_id
        b'0123456789abcdef'
        >>> decode_error(memoryview(b"E_BAD_TOPIC PUB topic name is not valid"))
        Refused(code='E_BAD_TOPIC', words='PUB topic name is not valid')
    """
    code, _, words = bytes(data).decode("utf-8", "replace").partition(" ")
    command = _NOT_FATAL.get(code)
    if command is None:
        return Refused(code, words)
    found = _ID.match(words)
    return Failed(command, found[1].encode() if found else b"", words)


def _json_object(data: memoryview, command: str) -> dict[str, object]:
    try:
        answer = json.loads(bytes(data))
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise RemoteProtocolError(f"the answer to {command} is not a JSON object: {bytes(data[:64])!r}")
    return answer
