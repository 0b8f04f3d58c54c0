"""A producer that sends whatever it is told, byte by byte: for entries that no client would publish.

The frames are written by hand from the protocol's field numbers, so that nothing of the code under test takes part in
making its input. The broker stores an entry unread, but for its CRC32C (seen on 4.0.8).
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from typing import Self

import crc32c

CONNECT, CONNECTED, PRODUCER, SEND, SEND_RECEIPT, SEND_ERROR = 2, 3, 5, 6, 7, 8
PRODUCER_SUCCESS, PING, PONG, LOOKUP, LOOKUP_RESPONSE = 17, 18, 19, 23, 24


class RawProducer:
    """One producer on one connection to a broker without authentication.

    Example:
        ::

            with RawProducer(("127.0.0.1", 6650), topic) as producer:
                ledger, entry = producer.send(metadata(), b"hello")
    """

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self._socket = socket.create_connection(address, timeout=30)
        self._received = bytearray()
        self._sequence_id = 0
        self._command(CONNECT, text(1, "spark-mq-source tests") + number(4, 19))
        self._expect(CONNECTED)
        self._command(LOOKUP, text(1, topic) + number(2, 1))
        self._expect(LOOKUP_RESPONSE)
        self._command(PRODUCER, text(1, topic) + number(2, 1) + number(3, 2))
        self._expect(PRODUCER_SUCCESS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, head: bytes, payload: bytes, *, messages: int = 1, checksum: bool = True) -> tuple[int, int]:
        """Publishes one entry and returns its ledger and entry id."""
        body = struct.pack(">I", len(head)) + head + payload
        if checksum:
            body = b"\x0e\x01" + struct.pack(">I", crc32c.crc32c(body)) + body
        self._sequence_id += 1
        command = number(1, SEND) + text(SEND, number(1, 1) + number(2, self._sequence_id) + number(3, messages))
        self._socket.sendall(struct.pack(">II", 4 + len(command) + len(body), len(command)) + command + body)
        receipt = fields(self._expect(SEND_RECEIPT)[SEND_RECEIPT])
        message_id = fields(receipt[3])
        return int(message_id.get(1, 0)), int(message_id.get(2, 0))

    def _command(self, kind: int, body: bytes) -> None:
        command = number(1, kind) + text(kind, body)
        self._socket.sendall(struct.pack(">II", 4 + len(command), len(command)) + command)

    def _expect(self, kind: int) -> dict[int, int | bytes]:
        while True:
            command = fields(self._next_command())
            if command[1] == PING:
                self._command(PONG, b"")
            elif command[1] == kind:
                return command
            else:
                raise AssertionError(f"expected command {kind}, the broker sent {command}")

    def _next_command(self) -> bytes:
        while len(self._received) < 4 or len(self._received) < 4 + int.from_bytes(self._received[:4], "big"):
            data = self._socket.recv(1 << 16)
            if not data:
                raise AssertionError("the broker closed the connection")
            self._received += data
        total, size = struct.unpack_from(">II", self._received)
        command = bytes(self._received[8 : 8 + size])
        del self._received[: 4 + total]
        return command


def metadata(extra: bytes = b"", *, producer: str = "raw", sequence_id: int = 0, publish_time_ms: int = 0) -> bytes:
    """The required fields of MessageMetadata, and more as encoded by `number` and `text`."""
    publish_time_ms = publish_time_ms or int(time.time() * 1000)
    return text(1, producer) + number(2, sequence_id) + number(3, publish_time_ms) + extra


def chunk(uuid: str, chunk_id: int, chunks: int, total_bytes: int) -> bytes:
    """The fields that make an entry one chunk of a message."""
    return text(26, uuid) + number(27, chunks) + number(28, total_bytes) + number(29, chunk_id)


def batch(*payloads: bytes | None) -> tuple[bytes, bytes]:
    """The metadata and the payload of a batch; None is a message that compaction took out."""
    payload = b""
    for one in payloads:
        single = number(3, len(one or b"")) + (number(4, 1) if one is None else b"")
        payload += struct.pack(">I", len(single)) + single + (one or b"")
    return metadata(number(11, len(payloads))), payload


def varint(value: int) -> bytes:
    """A base-128 varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """A varint field."""
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """A length-delimited field."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def fields(message: int | bytes | Mapping[int, int | bytes]) -> dict[int, int | bytes]:
    """The fields of an encoded message, the last of each number."""
    assert isinstance(message, bytes)
    found: dict[int, int | bytes] = {}
    at = 0

    def take_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = take_varint()
        match key & 7:
            case 0:
                found[key >> 3] = take_varint()
            case 1:
                found[key >> 3] = message[at : at + 8]
                at += 8
            case 2:
                size = take_varint()
                found[key >> 3] = message[at : at + size]
                at += size
            case 5:
                found[key >> 3] = message[at : at + 4]
                at += 4
            case kind:
                raise AssertionError(f"wire type {kind}")
    return found
