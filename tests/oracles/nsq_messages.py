"""A reference for NSQ's messages and bodies of MPUB, by the V2 specification."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Final

from tests.oracles.fields import check, is_text

MESSAGE: Final = 2
HEAD_BYTES: Final = 34


def frame(nanoseconds: int, attempts: int, message_id: bytes, value: bytes, kind: int = MESSAGE) -> bytes:
    """Return the frame of a message."""
    content = struct.pack(">Iqh16s", kind, nanoseconds, attempts - (attempts >> 15 << 16), message_id) + value
    return struct.pack(">I", len(content)) + content


def run_of(data: bytes) -> list[tuple[int, int, bytes, bytes]]:
    """Return time, attempts, id and value of each message of a run.

    Raises:
        CorruptError: it does not consist of whole messages.
    """
    found = []
    while data:
        check(len(data) >= HEAD_BYTES, "head")
        size, kind, nanoseconds, attempts, message_id = struct.unpack_from(">IIqH16s", data)
        check(kind == MESSAGE and HEAD_BYTES - 4 <= size <= len(data) - 4, "frame")
        found.append((nanoseconds, attempts, message_id, data[HEAD_BYTES : 4 + size]))
        data = data[4 + size :]
    return found


def scan(data: bytes, most: int) -> tuple[int, int]:
    """Return the number of whole frames of messages at the beginning of data, and their bytes."""
    count = at = 0
    while len(data) - at >= 8:
        size, kind = struct.unpack_from(">II", data, at)
        if kind != MESSAGE or not HEAD_BYTES - 4 <= size <= most or at + 4 + size > len(data):
            break
        count, at = count + 1, at + 4 + size
    return count, at


@dataclass
class Reader:
    """The columns of a decoder: their names, and whether they are text."""

    columns: dict[str, bool]

    def decode(self, data: bytes) -> list[dict[str, Any]]:
        """Return the rows of a run.

        Raises:
            CorruptError: it is no run, or text is not UTF-8.
        """
        rows = []
        for nanoseconds, attempts, message_id, value in run_of(data):
            cells: dict[str, Any] = {
                "topic": b"t", "channel": b"c", "nsqd": b"n", "message_id": message_id, "value": value,
                "timestamp": nanoseconds // 1000, "timestamp_ns": nanoseconds, "attempts": attempts,
            }  # fmt: skip
            check(not self.columns.get("value") or is_text(value), "value")
            check(not self.columns.get("message_id") or message_id.isascii(), "message_id")
            rows.append({name: cells.get(name) for name in self.columns})
        return rows


def messages_of(body: bytes) -> list[bytes]:
    """Return the messages of an MPUB, as nsqd reads them."""
    (count,) = struct.unpack_from(">I", body)
    found = []
    at = 4
    for _ in range(count):
        (size,) = struct.unpack_from(">I", body, at)
        found.append(body[at + 4 : at + 4 + size])
        assert len(found[-1]) == size > 0
        at += 4 + size
    assert at == len(body)
    return found
