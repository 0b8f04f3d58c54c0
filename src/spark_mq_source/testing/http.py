"""A minimal HTTP/1.1 server with keep-alive for NSQ's two HTTP interfaces."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from spark_mq_source.testing.queues import is_valid_name

_MAX_HEADERS: Final = 1000


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its whole body."""

    method: str
    path: str
    parameters: Mapping[str, list[str]]
    body: bytes

    def first(self, name: str) -> str:
        """Return a parameter's first value; an empty text if it is missing."""
        return self.parameters.get(name, [""])[0]

    def required(self, name: str) -> str:
        """Return a parameter's first value.

        Raises:
            HttpError: it is missing.
        """
        if name not in self.parameters:
            raise HttpError(400, f"MISSING_ARG_{name.upper()}")
        return self.first(name)

    def required_name(self, name: str) -> str:
        """Return a parameter's first value: the name of a topic or channel.

        Raises:
            HttpError: it is missing or not valid.
        """
        value = self.required(name)
        if not is_valid_name(value):
            raise HttpError(400, f"INVALID_ARG_{name.upper()}")
        return value


class HttpError(Exception):
    """An answer `{"message": text}` with an HTTP status; the text is nsqd's."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class _NotHttpError(Exception):
    """The request is not HTTP; the text is the status of the answer."""


Handler = Callable[[Request], Any]
"""Answers a request: text or bytes unchanged, None as an empty body, other values as JSON. Raises HttpError."""


def find_route(routes: Mapping[tuple[str, str], Handler], request: Request) -> Handler:
    """Return the handler of a request's method and path.

    Raises:
        HttpError: there is no such path, or not with this method.
    """
    route = routes.get((request.method, request.path))
    if route is None:
        if any(path == request.path for _, path in routes):
            raise HttpError(405, "METHOD_NOT_ALLOWED")
        raise HttpError(404, "NOT_FOUND")
    return route


async def serve_client(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection until it ends."""
    try:
        while True:
            try:
                request, keep_open = await _read_request(reader, writer)
            except _NotHttpError as error:
                writer.write(_refusal(str(error)))
                break
            writer.write(_answer(handler, request, keep_open=keep_open))
            await writer.drain()
            if not keep_open:
                break
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # the client has disconnected, or does not speak HTTP
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Request, bool]:
    method, target, version = _first_line(await _read_line(reader))
    headers: dict[str, str] = {}
    while line := await _read_line(reader):
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or len(headers) > _MAX_HEADERS:
            raise _NotHttpError("400 Bad Request")
        headers[name.strip().lower()] = value.strip()
    if version == "HTTP/1.1" and "host" not in headers:
        raise _NotHttpError("400 Bad Request: missing required Host header")
    if not headers.get("content-length", "0").isdecimal():
        raise _NotHttpError("400 Bad Request")
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    if headers.get("transfer-encoding", "").lower() == "chunked":
        body = await _read_chunks(reader)
    else:
        body = await reader.readexactly(int(headers.get("content-length", "0")))
    address = urlsplit(target)
    request = Request(method, address.path, parse_qs(address.query, keep_blank_values=True), body)
    connection = headers.get("connection", "").lower()
    return request, connection != "close" and (version != "HTTP/1.0" or connection == "keep-alive")


async def _read_line(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\n")).decode("latin-1").removesuffix("\n").removesuffix("\r")


def _first_line(line: str) -> tuple[str, str, str]:
    """Parse method, target and version first, so that clients without HTTP are refused immediately."""
    parts = line.split(" ")
    if len(parts) != 3 or not parts[0].isalpha() or not parts[2].startswith("HTTP/"):
        raise _NotHttpError("400 Bad Request")
    if parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise _NotHttpError("505 HTTP Version Not Supported: unsupported protocol version")
    return parts[0], parts[1], parts[2]


def _refusal(status: str) -> bytes:
    """Return the answer of Go's server to requests that are not HTTP (recorded from nsqd 1.3.0)."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n{status}"
    return head.encode()


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass  # trailers
    return b"".join(parts)


def _answer(handler: Handler, request: Request, *, keep_open: bool) -> bytes:
    status = 200
    try:
        answer = handler(request)
    except HttpError as error:
        status, answer = error.status, {"message": error.text}
    kind = "text/plain; charset=utf-8"
    if isinstance(answer, str):
        body = answer.encode()
    elif isinstance(answer, bytes):
        body = answer
    elif answer is None:
        body = b""
    else:
        body = json.dumps(answer, separators=(",", ":"), ensure_ascii=False).encode()
        kind = "application/json; charset=utf-8"
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\nContent-Type: {kind}\r\n"
        f"X-NSQ-Content-Type: nsq; version=1.0\r\nContent-Length: {len(body)}\r\n"
        f"Connection: {'keep-alive' if keep_open else 'close'}\r\n\r\n"
    )
    return head.encode() + body
