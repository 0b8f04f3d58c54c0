"""A small HTTP/1.1 server for the two HTTP interfaces of NSQ: keeps connections open, knows no more than they need."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

__all__ = ["Handler", "HttpError", "Request", "serve_client"]

_MOST_HEADER_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Request:
    """A request with its whole body."""

    method: str
    path: str
    parameters: Mapping[str, list[str]]
    body: bytes

    def first(self, name: str, default: str = "") -> str:
        """A parameter's first value."""
        return self.parameters.get(name, [default])[0]


class HttpError(Exception):
    """Answered as `{"message": text}` with the status.

    Args:
        status: of HTTP.
        text: nsqd's word for it.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


Handler = Callable[[Request], Any]
"""Answers a request: text or bytes as they are, None with nothing, anything else as JSON. Raises HttpError."""


async def serve_client(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers the requests of one connection until it ends."""
    try:
        while True:
            request, keep_open = await _read_request(reader, writer)
            writer.write(_answer(handler, request, keep_open=keep_open))
            await writer.drain()
            if not keep_open:
                break
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        pass  # the client is gone, or what it speaks is not HTTP
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Request, bool]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.split("\r\n")
    method, target, version = first.split(" ")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
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
