"""Frames <-> commands, both ways.

::

    payload    = conn_header header body     ; protobuf messages, each after its size as a varint
      request  : RpcConnHeader{flag=0}  RequestHeader{service_type,protocol_ver=3} RequestBody{method,timeout,request}
      answer   : RpcConnHeader{flag=1}  ResponseHeader{status=SUCCESS}             RspResponseBody{method, data}
      exception: RpcConnHeader{flag=1}  ResponseHeader{status=ERROR or FATAL}      RpcException{exception_name}

Source: seed "Client RPC", section 2; the vectors of server 2.4.0. ERROR means that a handler raised an exception, FATAL
that a call could not be read or has no handler (both seen on 2.4.0).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Final, TypeVar, get_args

from spark_mq_source.core.errors import CorruptMessageError, LocalProtocolError, RemoteProtocolError
from spark_mq_source.core.protobuf import Int32, Int64, MissingFieldsError, ProtobufCodec, constant_name, serialized
from spark_mq_source.core.varint import encode_sized, take_varint
from spark_mq_source.tubemq.payload.messages import without_messages
from spark_mq_source.tubemq.protocol.commands import (
    CommitOffset,
    GetMessage,
    GetMessageResponse,
    MasterRequest,
    Method,
    Request,
    Response,
    RpcException,
    SendMessage,
    Status,
)
from spark_mq_source.tubemq.protocol.hot import USUAL_HEAD, encode_send
from spark_mq_source.tubemq.protocol.wire import Frame, encode_frame


@dataclass(frozen=True, slots=True)
class RpcConnHeader:
    """Kind of a message: a request (0) or an answer (1)."""

    flag: Annotated[Int32, 1]


@dataclass(frozen=True, slots=True)
class RequestBody:
    """A call; `timeout` is in ms, and `request` holds an encoded message."""

    method: Annotated[Int32, 1]
    timeout: Annotated[Int64, 2] = 0
    request: Annotated[bytes, 3] = b""


@dataclass(frozen=True, slots=True)
class ResponseHeader:
    """The result of a call: a `Status`."""

    status: Annotated[Int32, 1]


@dataclass(frozen=True, slots=True)
class RspResponseBody:
    """The answer to a call; `data` holds an encoded message."""

    method: Annotated[Int32, 1]
    data: Annotated[bytes, 2]


KindT = TypeVar("KindT")
_PROTOBUF: Final = ProtobufCodec()
_REQUESTS: Final[dict[int, type[Request]]] = {Method[constant_name(kind.__name__)]: kind for kind in get_args(Request)}
_RESPONSES: Final[dict[int, type[Response]]] = {
    Method[constant_name(kind.__name__.removesuffix("Response"))]: kind
    for kind in get_args(Response)
    if kind is not RpcException
}
_METHODS: Final[dict[type, Method]] = {
    kind: Method(number) for number, kind in (*_REQUESTS.items(), *_RESPONSES.items())
}
# RpcConnHeader{flag=0}, and RequestHeader of a master's service (1), or of a broker's for reading (2).
_MASTER_HEAD, _READ_HEAD = bytes.fromhex("02080004 08011003"), bytes.fromhex("02080004 08021003")
_REQUEST_BODY: Final = _PROTOBUF.class_of(RequestBody)
_METHOD, _DATA, _MORE = 0x08, 0x12, 0x80


def method_of(command: Request | Response) -> Method | None:
    """Return the method that a request calls or a response answers; None for an exception."""
    return _METHODS.get(type(command))


def encode_request(serial_no: int, request: Request, *, timeout_ms: int) -> bytes:
    """Encode the frame of a request.

    Args:
        serial_no: the number that the answer will have.
        request: the request.
        timeout_ms: a server that has not handled the request by then drops it silently, with 0 at once (both seen on
            server 2.4.0).

    Raises:
        LocalProtocolError: a field does not fit the protocol, or the request is too large.

    Example:
        >>> from spark_mq_source.tubemq.protocol.commands import CloseProducer
        >>> encode_request(1, CloseProducer("c"), timeout_ms=10_000)[16:].hex(" ", -4)
        '02080004 08011003 0a080310 904e1a03 0a0163'
    """
    if type(request) is SendMessage:
        return encode_send(serial_no, request, timeout_ms)
    is_repeated = type(request) is GetMessage or type(request) is CommitOffset
    return encode_frame(serial_no, (_repeated_payload_of if is_repeated else _payload_of)(request, timeout_ms))


def _payload_of(request: Request, timeout_ms: int) -> bytes:
    try:
        body = _REQUEST_BODY(method=_METHODS[type(request)], timeout=timeout_ms, request=_PROTOBUF.encode(request))
        head = _MASTER_HEAD if isinstance(request, MasterRequest) else _READ_HEAD
        return head + encode_sized(serialized(body))
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"{type(request).__name__} cannot be sent: {error}") from error


_repeated_payload_of = lru_cache(maxsize=64)(_payload_of)
"""A cache for requests that a reader repeats unchanged."""


def decode_response(frame: Frame) -> tuple[Method | None, Response]:
    """Decode a server's frame; return the method that it answers (None for an exception) and the answer.

    Raises:
        RemoteProtocolError: it cannot be parsed, or lacks a required field.

    Example:
        >>> payload = bytes.fromhex("02080104 08001803 0e080312 0a080110 c8011a03 4f4b21")
        >>> decode_response(Frame(1, memoryview(payload), 39))[1]
        CloseProducerResponse(success=True, err_code=200, err_msg='OK!')
    """
    payload = frame.payload
    if payload[: len(USUAL_HEAD)] == USUAL_HEAD:
        body = _undelimited(payload, len(USUAL_HEAD))[0]
    else:
        status, body = _take_response_head(payload)
        if status != Status.SUCCESS:
            return None, _decode(RpcException, body, status=status)
    method, data = _take_response_body(body)
    kind = _RESPONSES.get(method)
    if kind is None:
        raise RemoteProtocolError(f"the server answers method {method}, which nobody called")
    if kind is GetMessageResponse:
        # Its messages, often thousands, stay in `body`: protobuf would copy them as an unknown field.
        return Method.GET_MESSAGE, _decode(GetMessageResponse, without_messages(data), body=data)
    return Method(method), _decode(kind, data)


def _take_response_head(payload: memoryview) -> tuple[int, memoryview]:
    conn_header, at = _undelimited(payload, 0)
    _decode(RpcConnHeader, conn_header)
    header, at = _undelimited(payload, at)
    status = _decode(ResponseHeader, header).status
    return status, _undelimited(payload, at)[0]


def _take_response_body(body: memoryview) -> tuple[int, memoryview]:
    """Return method and data of an answer; the usual form without a copy of the data."""
    if len(body) > 3 and body[0] == _METHOD and body[1] < _MORE and body[2] == _DATA:
        data, at = _undelimited(body, 3)
        if at == len(body):
            return body[1], data
    message = _decode(RspResponseBody, body)
    return message.method, memoryview(message.data)


def _undelimited(data: memoryview, at: int) -> tuple[memoryview, int]:
    """Return the bytes at `at`, after their size as a varint, and the offset of their end."""
    size = len(data) + 1
    with suppress(CorruptMessageError):
        size, at = take_varint(data, at, len(data))
    if at + size > len(data):
        raise RemoteProtocolError(
            f"a call of {len(data)} bytes cannot be parsed: a part ends outside: a damaged stream"
        )
    return data[at : at + size], at + size


def _decode(kind: type[KindT], data: bytes | memoryview, /, **given: object) -> KindT:
    try:
        return _PROTOBUF.decode(kind, bytes(data), **given)
    except CorruptMessageError as error:
        raise RemoteProtocolError(
            f"{kind.__name__} of {len(data)} bytes cannot be parsed ({error}): a damaged stream"
        ) from error
    except MissingFieldsError as error:
        raise RemoteProtocolError(f"{kind.__name__} without its required fields {', '.join(error.args)}") from error
    except ValueError as error:
        raise RemoteProtocolError(f"{kind.__name__} has a field that cannot be: {error}") from error
