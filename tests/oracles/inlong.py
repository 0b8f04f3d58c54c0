"""Messages of InLong, written field by field: InLongMsg of all versions, and the classes of `ProxySdk.proto`."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import cramjam

from spark_mq_source.core.protobuf import Int32, Int64
from tests.protobuf import Classes


def sized(*parts: bytes) -> bytes:
    """Return the parts, each after its size."""
    return b"".join(struct.pack(">i", len(part)) + part for part in parts)


def modified_utf8(text: str) -> bytes:
    """Return a text as Java's `writeUTF` writes it, after its size."""
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    data = b"".join(b"\xc0\x80" if not code else chr(code).encode("utf-8", "surrogatepass") for code in codes)
    return struct.pack(">H", len(data)) + data


def inlong_msg(version: int, blocks: Sequence[tuple[str, Sequence[bytes]]], *, snappy: bool = False) -> bytes:
    """Return an InLongMsg of version 0 to 3: blocks of attributes and records; in version 3 records have attributes."""
    count = struct.pack(">i", sum(len(records) for _, records in blocks))
    data = struct.pack(">q", 5) * (version >= 1) + count * (version >= 2) + struct.pack(">i", len(blocks))
    for attributes, records in blocks:
        body = sized(*records)
        packed = b"\1" + bytes(cramjam.snappy.compress_raw(body)) if snappy else b"\0" + body
        data += modified_utf8(attributes) + struct.pack(">i", len(records)) * (version == 2) + sized(packed)
    magic = bytes((15, version))
    return magic + data + magic


def binary_msg(
    body: bytes, attributes: str = "", *, flags: int = 4, seconds: int = 7, count: int = 1, snappy: bool = False
) -> bytes:
    """Return the inner part of an InLongMsg of version 4, for group 3 and stream 4."""
    packed = bytes(cramjam.snappy.compress_raw(body)) if snappy else body
    text = attributes.encode()
    head = struct.pack(">bhhHihi", 7 | snappy << 5, 3, 4, flags, seconds, count, 99)
    inner = head + sized(packed) + struct.pack(">h", len(text)) + text + b"\xee\x01"
    return sized(inner)


def of_version_4(inner: bytes) -> bytes:
    """Return the whole InLongMsg."""
    return b"\x0f\4" + inner + b"\x0f\4"


@dataclass(frozen=True)
class MapFieldEntry:
    """`ProxySdk.MapFieldEntry`."""

    key: Annotated[str | None, 1] = None
    value: Annotated[str | None, 2] = None


@dataclass(frozen=True)
class MessageObj:
    """`ProxySdk.MessageObj`."""

    msg_time: Annotated[Int64, 1]
    source_ip: Annotated[str, 2]
    body: Annotated[bytes, 3]
    params: Annotated[tuple[MapFieldEntry, ...], 4] = ()


@dataclass(frozen=True)
class MessageObjs:
    """`ProxySdk.MessageObjs`."""

    msgs: Annotated[tuple[MessageObj, ...], 1] = ()


@dataclass(frozen=True)
class MessagePackHeader:
    """`ProxySdk.MessagePackHeader`."""

    group: Annotated[str, 1]
    stream: Annotated[str, 2]
    pack_id: Annotated[Int64, 3]
    pack_time: Annotated[Int64, 4]
    msg_count: Annotated[Int32, 5]
    src_length: Annotated[Int32, 6]
    compress_len: Annotated[Int32, 7]
    compress_type: Annotated[Int32, 8]
    params: Annotated[tuple[MapFieldEntry, ...], 9] = ()


@dataclass(frozen=True)
class MessagePack:
    """`ProxySdk.MessagePack`."""

    header: Annotated[MessagePackHeader, 1]
    compress_bytes: Annotated[bytes, 2]


proxy: Any = Classes("inlong", MessageObjs, MessagePack)


def random_text(rng: random.Random, alphabet: str = "abcö/:. _-0123456789😀\0") -> str:
    """Return a short text without separators."""
    return "".join(rng.choices(alphabet, k=rng.randrange(1, 8)))


def random_attributes(rng: random.Random, alphabet: str = "abcö/:. _-0123456789😀\0") -> str:
    """Return attributes of a stream, as a text."""
    names = rng.sample(["NodeIP", "cnt", "rt", "msgUUID", "ö", "f"], rng.randrange(4))
    more = "".join(f"&{name}={random_text(rng, alphabet)}" for name in names)
    return f"groupId={random_text(rng, alphabet)}&streamId=s{rng.randrange(3)}&dt={rng.randrange(10**13)}{more}"


def random_records(rng: random.Random) -> list[bytes]:
    """Return up to five records, one of which may be long."""
    return [rng.randbytes(rng.choice((1, 3, 10, 200))) * rng.choice((1, 1, 30)) for _ in range(rng.randrange(1, 6))]
