"""The server's side of TubeMQ's codec, for servers of tests and for recordings: requests in, answers out."""

from __future__ import annotations

from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError
from spark_mq_source.core.varint import encode_sized
from spark_mq_source.tubemq.protocol.codec import (
    _METHODS,
    _PROTOBUF,
    _REQUESTS,
    RequestBody,
    ResponseHeader,
    RpcConnHeader,
    RspResponseBody,
    _decode,
    _undelimited,
)
from spark_mq_source.tubemq.protocol.commands import GetMessageResponse, Request, Response, RpcException
from spark_mq_source.tubemq.protocol.hot import USUAL_HEAD
from spark_mq_source.tubemq.protocol.wire import Frame, encode_frame


def decode_request(frame: Frame) -> tuple[Request, int]:
    """Decode a client's frame into its request and `timeout_ms`, as a server.

    Raises:
        RemoteProtocolError: it cannot be parsed, or lacks a required field.
    """
    _, at = _undelimited(frame.payload, 0)
    _, at = _undelimited(frame.payload, at)
    body = _decode(RequestBody, _undelimited(frame.payload, at)[0])
    kind = _REQUESTS.get(body.method)
    if kind is None:
        raise RemoteProtocolError(f"a call of method {body.method}, which is not in use")
    return _decode(kind, body.request), body.timeout


def encode_response(serial_no: int, response: Response) -> bytes:
    """Encode the frame of an answer, as a server.

    Raises:
        LocalProtocolError: a field does not fit the protocol.
    """
    try:
        if isinstance(response, RpcException):
            head = encode_sized(_PROTOBUF.encode(RpcConnHeader(1)))
            head += encode_sized(_PROTOBUF.encode(ResponseHeader(response.status)))
            body = _PROTOBUF.encode(response)
        else:
            head = USUAL_HEAD
            data = bytes(response.body) if isinstance(response, GetMessageResponse) else b""
            body = _PROTOBUF.encode(RspResponseBody(_METHODS[type(response)], data or _PROTOBUF.encode(response)))
        return encode_frame(serial_no, head + encode_sized(body))
    except (TypeError, ValueError) as error:
        raise LocalProtocolError(f"{type(response).__name__} cannot be sent: {error}") from error
