"""Encodes commands, and decodes frames into answers."""

from __future__ import annotations

import json
import re
from dataclasses import Field, fields
from typing import Any, Final

from spark_mq_source.core.errors import RemoteProtocolError
from spark_mq_source.nsq.payload.messages import encode_id_commands
from spark_mq_source.nsq.protocol.commands import (
    Auth,
    Authorized,
    ByteString,
    CloseWait,
    Command,
    Dpub,
    Failed,
    Fin,
    Heartbeat,
    Identified,
    Identify,
    Mpub,
    Ok,
    Pub,
    Rdy,
    Refused,
    Req,
    Response,
    Sub,
    Touch,
)
from spark_mq_source.nsq.protocol.wire import MESSAGE_ID_BYTES, encode_command

_RESPONSES: Final[dict[bytes, Response]] = {b"OK": Ok(), b"_heartbeat_": Heartbeat(), b"CLOSE_WAIT": CloseWait()}
_NOT_FATAL: Final = {"E_FIN_FAILED": "FIN", "E_REQ_FAILED": "REQ", "E_TOUCH_FAILED": "TOUCH"}
_ID: Final = re.compile(rf"\A(?:FIN|REQ|TOUCH) ([0-9a-zA-Z]{{{MESSAGE_ID_BYTES}}}) ")


def encode(command: Command) -> bytes:
    r"""Encode a command, or one command for each message.

    Raises:
        ValueError: the message ids are incomplete.

    Example:
        >>> encode(Sub("flights", "spark")), encode(Dpub("flights", 1500, b"late"))
        (b'SUB flights spark\n', b'DPUB flights 1500\n\x00\x00\x00\x04late')
    """
    name = type(command).__name__.upper().encode()
    words: tuple[bytes, ...] = ()
    body: ByteString | None = None
    match command:
        case Fin() | Touch():
            return encode_id_commands(name, command.message_ids)
        case Req():
            return encode_id_commands(name, command.message_ids, b" %d" % command.delay_ms)
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
    return encode_command(name, *words, body=body)


def _identify_body(command: Identify) -> bytes:
    wanted = {_name_of(field): getattr(command, field.name) for field in fields(command)}
    wanted["feature_negotiation"] = True
    return json.dumps({name: value for name, value in wanted.items() if value is not None}).encode()


def _name_of(field: Field[Any]) -> str:
    """Return nsqd's name of a setting: it has no unit."""
    return field.name.removesuffix("_ms").replace("_bytes", "_size")


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
    given: dict[str, Any] = {}
    for field in fields(Identified):
        name = _name_of(field)
        value = answer.get(name, field.default)
        if isinstance(field.default, bool):
            value = value is True
        elif isinstance(field.default, str):
            value = str(value)
        elif type(value) is not int or not 0 <= value < 1 << 63:
            raise RemoteProtocolError(f"the answer to IDENTIFY has {name}={value!r}")
        given[field.name] = value
    return Identified(**given)


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
