"""Entries, answers and frames made to be slow: the time to decode each must be linear in its length."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.nsq.payload.columns import COLUMNS as NSQ_COLUMNS
from spark_mq_source.nsq.payload.messages import MessageDecoder as NsqDecoder
from spark_mq_source.nsq.protocol.commands import Messages
from spark_mq_source.pulsar.payload.columns import COLUMNS as PULSAR_COLUMNS
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from spark_mq_source.tubemq.payload.columns import COLUMNS as TUBEMQ_COLUMNS
from spark_mq_source.tubemq.payload.messages import MessageDecoder
from tests.oracles import nsq_messages as nsq
from tests.oracles.fields import put_field
from tests.oracles.pulsar_messages import framed
from tests.readable import schema_of

REQUIRED: Final = bytes.fromhex("0a0170 1000 1801")
BATCH: Final = bytes.fromhex("58")


def entry(metadata: bytes, payload: bytes = b"") -> list[bytes]:
    """Return an entry without a checksum."""
    return [framed(metadata, payload, is_checked=False)]


def batch(message: bytes, count: int, more: bytes = b"") -> list[bytes]:
    """Return an entry of this number of equal messages."""
    return entry(REQUIRED + more + put_field(0x58, count), message * count)


def single(metadata: bytes, value: bytes = b"") -> bytes:
    """Return a message of a batch."""
    return len(metadata).to_bytes(4, "big") + metadata + value


def pair(key: bytes, value: bytes = b"") -> bytes:
    """Return a property."""
    return put_field(0x0A, key) + put_field(0x12, value)


def compressed(payload: bytes, announced: int, count: int) -> list[bytes]:
    """Return an entry of a batch in zlib's format."""
    return entry(
        REQUIRED + put_field(0x40, 2) + put_field(0x48, announced) + put_field(0x58, count), zlib.compress(payload)
    )


PULSAR: Final[dict[str, Callable[[int], list[bytes]]]] = {
    "a field again and again": lambda size: entry(put_field(0x0A, b"p") * (size // 3) + REQUIRED),
    "unknown fields": lambda size: entry(REQUIRED + put_field(200 << 3, 1) * (size // 3)),
    "long varints": lambda size: entry(REQUIRED + (b"\x10" + b"\x80" * 9 + b"\0") * (size // 11)),
    "one property again and again": lambda size: entry(REQUIRED + put_field(0x22, pair(b"k")) * (size // 7)),
    "properties": lambda size: entry(
        REQUIRED + b"".join(put_field(0x22, pair(b"%x" % number)) for number in range(size // 11))
    ),
    "a property without a value at the end": lambda size: entry(
        REQUIRED + put_field(0x22, pair(b"k")) * (size // 7) + put_field(0x22, b"")
    ),
    "compacted indexes": lambda size: batch(single(b"\x18\0"), size // 12, put_field(0xF8, 1) * (size // 6)),
    "packed indexes": lambda size: batch(single(b"\x18\0"), size // 12, put_field(0xFA, b"\1" * (size // 2))),
    "tiny messages": lambda size: batch(single(b"\x18\0"), size // 6),
    "messages with properties": lambda size: batch(
        single(put_field(0x0A, pair(b"k")) * 17 + put_field(0x0A, pair(b"l")) + b"\x18\0"), size // 132
    ),
    "messages of one byte more": lambda size: batch(single(b"\x18\1"), size // 6),
    "a key that is no base64": lambda size: entry(REQUIRED + put_field(0x32, b"A" * size + b"!") + b"\x88\1\1"),
    "text that is none at the end": lambda size: entry(REQUIRED, "ä".encode() * (size // 2) + b"\xff"),
    "encryption keys": lambda size: entry(REQUIRED + put_field(0x6A, pair(b"k")) * (size // 7)),
    "a bomb": lambda size: compressed(bytes(50 * size), 50 * size, 50 * size // 6),
    "a bomb that lies": lambda size: compressed(bytes(50 * size), size, size // 6),
    "chunks that begin": lambda size: [
        entry(REQUIRED + bytes.fromhex("d801 02 e001 7f") + put_field(0xD2, b"%d" % number), b"v")[0]
        for number in range(size // 25)
    ],
    "chunks without a beginning": lambda size: [
        entry(REQUIRED + bytes.fromhex("d801 02 e001 7f e801 01") + put_field(0xD2, b"%d" % number), b"v")[0]
        for number in range(size // 28)
    ],
}


def message(payload: bytes, flag: int = 1, check_sum: int = -1) -> bytes:
    """Return a field of an answer."""
    said = put_field(0x08, 1) + put_field(0x10, check_sum) + put_field(0x1A, payload) + put_field(0x20, flag)
    return put_field(0x22, said)


def attributes(text: bytes) -> list[bytes]:
    """Return an answer of one message with attributes."""
    return [message(len(text).to_bytes(4, "big") + text)]


TUBEMQ: Final[dict[str, Callable[[int], list[bytes]]]] = {
    "tiny messages": lambda size: [message(b"", 0) * (size // 20)],
    "corrupt messages": lambda size: [message(b"v", 0, 5) * (size // 12)],
    "fields that are none": lambda size: [put_field(0x0A, b"") * (size // 2)],
    "a fault at the end": lambda size: [message(b"", 0) * (size // 20) + b"\x22\x7f"],
    "commas": lambda size: attributes(b"," * size),
    "one attribute again and again": lambda size: attributes(b"k=v," * (size // 4)),
    "attributes": lambda size: attributes(b",".join(b"%x=" % number for number in range(size // 6))),
    "attributes without a value": lambda size: attributes(b",".join(b"%x" % number for number in range(size // 5))),
    "equals signs": lambda size: attributes(b"=" * size),
    "attributes that are no text": lambda size: attributes(b"k=v," * (size // 4) + b"\xff"),
    "types": lambda size: attributes(b"$msgType$=a," * (size // 12)),
}
NSQ: Final[dict[str, Callable[[int], list[bytes]]]] = {
    "empty messages": lambda size: [nsq.frame(0, 1, b"0" * 16, b"") * (size // 34)],
    "text that is none at the end": lambda size: [
        nsq.frame(0, 1, b"0" * 16, b"v") * (size // 35) + nsq.frame(0, 1, b"1" * 16, b"\xff")
    ],
    "an id that is none at the end": lambda size: [
        nsq.frame(0, 1, b"0" * 16, b"v") * (size // 35) + nsq.frame(0, 1, b"\xff" * 16, b"v")
    ],
    "a frame that is cut off": lambda size: [nsq.frame(0, 1, b"0" * 16, b"v") * (size // 35) + b"\0\0"],
}


def decode_pulsar(bodies: list[bytes], loops: str, max_batch_rows: int) -> None:
    """Decode entries, with any result, and their rows."""
    schema = schema_of(PULSAR_COLUMNS, value="string")
    decoder = EntryDecoder(
        schema, topic="t", partition=0, on_corrupt="null", on_encrypted="raw", max_message_bytes=64 << 20,
        max_pending_chunk_bytes=64 << 20, max_batch_rows=max_batch_rows, implementation=loops,
    )  # fmt: skip
    for number, body in enumerate(bodies):
        decoder.decode(7, number, body)
        while decoder.unfinished:
            decoder.decode_rest()


def decode_tubemq(bodies: list[bytes], loops: str, _max_batch_rows: int) -> None:
    """Decode answers in the same way."""
    schema = schema_of(TUBEMQ_COLUMNS, value="string")
    decoder = MessageDecoder(schema, topic="t", broker_id=1, partition=0, on_corrupt="null", implementation=loops)
    for body in bodies:
        try:
            decoder.decode(body, 0)
        except MQSourceError:
            continue


def decode_nsq(bodies: list[bytes], loops: str, _max_batch_rows: int) -> None:
    """Decode runs in the same way."""
    schema = schema_of(NSQ_COLUMNS, without=("_corrupt", "_error"), value="string")
    decoder = NsqDecoder(schema, topic="t", channel="c", nsqd="n", implementation=loops)
    for body in bodies:
        try:
            decoder.append(Messages(memoryview(body), 0))
        except MQSourceError:
            continue


SHAPES: Final[dict[str, tuple[Callable[[int], list[bytes]], Callable[[list[bytes], str, int], Any]]]] = {
    f"{name}: {shape}": (make, decode)
    for name, shapes, decode in (
        ("pulsar", PULSAR, decode_pulsar),
        ("tubemq", TUBEMQ, decode_tubemq),
        ("nsq", NSQ, decode_nsq),
    )
    for shape, make in shapes.items()
}
