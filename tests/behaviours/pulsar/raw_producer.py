"""A producer of entries written byte by byte, for entries that no client would publish.

The entries, right or deliberately wrong, are written by hand from the protocol's field numbers: our encoder makes no
wrong ones, and the inputs of the decoder must not come from its counterpart. The broker stores an entry unread,
but for its CRC32C (seen on 4.0.8).
"""

from __future__ import annotations

import itertools
import struct
import time
from typing import TYPE_CHECKING

from spark_mq_source.pulsar.protocol.commands import Send, SendReceipt
from tests.oracles.fields import LENGTH, put_field
from tests.oracles.pulsar_messages import framed
from tests.vectors.raw_connection import RawConnection

if TYPE_CHECKING:
    from typing_extensions import Self


class RawProducer:
    """One producer on one connection to a broker without authentication.

    Example:
        ::

            with RawProducer(("127.0.0.1", 6650), topic) as producer:
                ledger, entry = producer.send(metadata(), b"hello")
    """

    def __init__(self, address: tuple[str, int], topic: str) -> None:
        self._connection = RawConnection(*address)
        self._connection.open_producers([topic])
        self._sequence_ids = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(self, head: bytes, payload: bytes, *, messages: int = 1, checksum: bool = True) -> tuple[int, int]:
        """Publish one entry and return its ledger and entry id."""
        body = framed(head, payload, is_checked=checksum)
        self._connection.send(Send(0, next(self._sequence_ids), body, messages))
        stored = self._connection.expect(SendReceipt).message_id
        assert stored is not None
        return stored.ledger_id, stored.entry_id


def metadata(extra: bytes = b"", *, producer: str = "raw", sequence_id: int = 0, publish_time_ms: int = 0) -> bytes:
    """Return the required fields of MessageMetadata, and more as encoded by `number` and `text`."""
    publish_time_ms = publish_time_ms or int(time.time() * 1000)
    return text(1, producer) + number(2, sequence_id) + number(3, publish_time_ms) + extra


def chunk(uuid: str, chunk_id: int, chunks: int, total_bytes: int) -> bytes:
    """Return the fields that make an entry one chunk of a message."""
    return text(26, uuid) + number(27, chunks) + number(28, total_bytes) + number(29, chunk_id)


def batch(*payloads: bytes | None) -> tuple[bytes, bytes]:
    """Return the metadata and the payload of a batch; None is a message that compaction removed."""
    payload = b""
    for one in payloads:
        single = number(3, len(one or b"")) + (number(4, 1) if one is None else b"")
        payload += struct.pack(">I", len(single)) + single + (one or b"")
    return metadata(number(11, len(payloads))), payload


def number(field: int, value: int) -> bytes:
    """Return a varint field."""
    return put_field(field << 3, value)


def text(field: int, value: str | bytes) -> bytes:
    """Return a length-delimited field."""
    return put_field(field << 3 | LENGTH, value.encode() if isinstance(value, str) else value)
