"""Messages of InLong as records: InLongMsg of the versions 0 to 4, and the protobuf form of `ProxySdk.proto`.

A DataProxy marks what it writes by properties (attributes in TubeMQ): `version` and `msgEnType` are 0 for a bare
record, 1 for `MessageObjs`, 2 for InLongMsg. With 1, the properties `compressType`, `inlongGroupId` and
`inlongStreamId` apply to all records. Without these properties a message must begin and end as an InLongMsg, or be a
`MessagePack`, which has its own header.

InLongMsg (integers are big-endian; ``0f 0N`` is at both ends)::

    0f 0N  [N>=1: i64 time]  [N>=2: i32 records]  i32 blocks  block...  0f 0N              ; N = 0 to 3
    block:  u16 size, attributes  [N=2: i32 records]  i32 size, (u8 1 = snappy, body)
    body:   (i32 size, record)...            ; N=3: (i32 size, (i32 size, record, i32 size, attributes)...)...

    0f 04  i32 size  u8 kind  i16 group  i16 stream  i16 flags  i32 seconds  i16 records  i32 id
           i32 size, body  i16 size, attributes  ee 01  0f 04

In version 4, `kind >> 5` is 1 for a body in snappy; `flags & 4` means that `group` and `stream` are not used, and
`flags & 1` that each record is followed by its attributes (facts of `InLongMsg.java` and `MessageDeserializer.java`).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple

from spark_mq_source.core.compression import decompress
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf import signed64
from spark_mq_source.core.protobuf_fields import take_fields
from spark_mq_source.core.time_zones import time_zone
from spark_mq_source.core.varint import take_varint
from spark_mq_source.values._loops_python import BadPayloadError
from spark_mq_source.values.inlong.texts import ATTRIBUTES, split_kv

MAX_MESSAGE_BYTES: Final = 256 << 20
"""Maximum bytes of the records of one message, with their attributes."""

BARE, PROTOBUF, INLONG_MSG = "0", "1", "2"
"""The values of the property `version`."""

GROUP_ID, STREAM_ID = "inlongGroupId", "inlongStreamId"
"""The properties with a message's group and stream."""

_STREAM_KEYS: Final = ("streamId", "tid", "iname", "id")
_GZIP: Final = 31
_NEITHER: Final = "it is neither an InLongMsg nor protobuf of InLong"
_COMPRESSIONS: Final = {"NONE": 0, "INLONG_NO_COMPRESS": 0, "INLONG_GZ": 1, "INLONG_SNAPPY": 2}
# A copy of snappy has at least 3 bytes for 64.
_SNAPPY_FACTOR: Final = 22


class Head(NamedTuple):
    """The common part of records with the same attributes.

    Attributes:
        group_id: the group; None if nothing names it.
        stream_id: the stream, likewise.
        time_us: the time of the data, in microseconds since 1970; None if there is none.
        has_numbers: whether group and stream are the numbers of a message of version 4, which replace the names.
    """

    group_id: str | None
    stream_id: str | None
    time_us: int | None
    attributes: Mapping[str, str]
    has_numbers: bool = False


def records_of(payload: bytes, properties: Mapping[str, str], zone: str = "UTC") -> Iterator[tuple[Head, bytes]]:
    """Yield the records of a message, in its order.

    Args:
        payload: the message's value.
        properties: its properties.
        zone: the zone of the attribute `t`, which has the time of records without `dt`.

    Raises:
        BadPayloadError: the message is damaged, or not InLong's; it may have yielded records before.

    Example:
        >>> head, record = next(records_of(b"a|b", {"version": "0", "inlongStreamId": "s", "msgTime": "1"}))
        >>> head.stream_id, head.time_us, record
        ('s', 1000, b'a|b')
    """
    version = properties.get("version") or properties.get("msgEnType")
    if version == PROTOBUF:
        yield from _objects(payload, properties.get("compressType", "0"), properties)
    elif version == BARE:
        # All other properties are the producer's (2.5, `MessageDeserializer.decode` and `RawMsgDeserializeOperator`).
        group = properties.get(GROUP_ID, properties.get("groupId"))
        stream = properties.get(STREAM_ID, properties.get("streamId"))
        yield Head(group, stream, _time_us(properties.get("msgTime", "").strip(), "", zone), properties), payload
    elif version in (INLONG_MSG, None) and (magic := payload[:2]) in _LAYOUTS and payload[2:][-2:] == magic:
        make_head = lru_cache(maxsize=1024)(
            lambda text, has_numbers: _head(next(split_kv(text, ATTRIBUTES)), properties, zone, has_numbers=has_numbers)
        )
        for attributes, record, has_numbers in _LAYOUTS[magic](_Input(payload, 2, len(payload) - 2), magic[1]):
            yield make_head(attributes, has_numbers), record
    elif version is None and payload and payload[:2] not in _LAYOUTS:
        yield from _pack(payload, properties)
    else:
        raise BadPayloadError(f"it does not begin and end as an InLongMsg (property version: {version})")


class _Input:
    """Bytes that are taken from the beginning; an error names the offset in the part that they are from."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self._data, self._at, self._end = data, at, len(data) if end is None else end

    @property
    def left(self) -> int:
        return self._end - self._at

    def take(self, size: int, what: str) -> bytes:
        if not 0 <= size <= self.left:
            raise BadPayloadError(f"{what} of {size} bytes at offset {self._at}, where {self.left} bytes remain")
        begin, self._at = self._at, self._at + size
        return self._data[begin : self._at]

    def number(self, size: int, *, signed: bool = True) -> int:
        return int.from_bytes(self.take(size, "a number"), "big", signed=signed)

    def part(self, what: str) -> bytes:
        """Take an int32 with a size, and so many bytes."""
        return self.take(self.number(4), what)

    def check_end(self) -> None:
        if self.left:
            raise BadPayloadError(f"{self.left} bytes at offset {self._at} belong to no part")


# -- InLongMsg


def _blocks(source: _Input, version: int) -> Iterator[tuple[str, bytes, bool]]:
    if version >= 1:
        source.take(8, "a time")
    if version >= 2:
        source.number(4)
    count = source.number(4)
    if count < 0:
        raise BadPayloadError(f"{count} blocks are announced")
    for _ in range(count):
        attributes = _modified_utf8(source.take(source.number(2, signed=False), "attributes"))
        if version == 2:
            source.number(4)
        body = _Input(source.part("a body"))
        is_compressed = body.number(1) == 1
        for record in _parts(_unpacked(body.take(body.left, "a body"), 2 if is_compressed else 0)):
            if version < 3:
                yield attributes, record, False
            else:
                for own, inner in _with_attributes(record):
                    yield f"{attributes}&{own}", inner, False
    source.check_end()


def _parts(data: bytes) -> Iterator[bytes]:
    """Yield parts, each after an int32 with its size."""
    at, end = 0, len(data)
    while at < end:
        begin = at + 4
        size = int.from_bytes(data[at:begin], "big", signed=True)
        if not 0 <= size <= end - begin:
            raise BadPayloadError(
                f"a record of {size} bytes at offset {begin}, where {max(end - begin, 0)} bytes remain"
            )
        at = begin + size
        yield data[begin:at]


def _with_attributes(data: bytes) -> Iterator[tuple[str, bytes]]:
    parts = _parts(data)
    for record in parts:
        attributes = next(parts, b"")
        if not record or not attributes:
            raise BadPayloadError("a record with attributes has none, or is empty")
        yield _text(attributes), record


def _binary(source: _Input, _version: int) -> Iterator[tuple[str, bytes, bool]]:
    size = source.number(4)
    if size != source.left:
        raise BadPayloadError(f"{size} bytes are announced, but there are {source.left}")
    kind, group, stream, flags = (source.number(size) for size in (1, 2, 2, 2))
    seconds, count, _ = (source.number(size) for size in (4, 2, 4))
    content = _unpacked(source.part("a body"), {0: 0, 1: 2}.get(kind >> 5 & 7, 9))
    common = _entries(_text(source.take(source.number(2), "attributes")))
    if source.take(2, "a mark") != b"\xee\x01":
        raise BadPayloadError("the mark ee 01 does not follow the attributes")
    source.check_end()
    common |= {"dt": str(seconds * 1000), "cnt": str(count)}
    has_numbers = not flags & 4
    if has_numbers:
        common |= {"groupId": str(group), "streamId": str(stream)}
    if flags & 1:
        for own, record in _with_attributes(content):
            yield _joined(_entries(own) | common), record, has_numbers
        return
    attributes = _joined(common)
    for record in _parts(content):
        yield attributes, record, has_numbers


_LAYOUTS: Final = {bytes((0x0F, version)): _blocks for version in range(4)} | {b"\x0f\x04": _binary}


def _entries(text: str) -> dict[str, str]:
    """Return the attributes of version 4, where each has exactly one `=` (Guava's `MapSplitter`)."""
    pairs = [entry.strip().split("=") for entry in text.split("&")] if text else []
    found = {pair[0]: pair[-1] for pair in pairs}
    if any(len(pair) != 2 for pair in pairs) or len(found) != len(pairs):
        raise BadPayloadError(f"the attributes {text[:80]!r} are not one text key=value&key=value")
    return found


def _joined(attributes: Mapping[str, str]) -> str:
    return "&".join(f"{key}={value}" for key, value in attributes.items())


def _head(attributes: Mapping[str, str], properties: Mapping[str, str], zone: str, *, has_numbers: bool) -> Head:
    stream = next((attributes[key] for key in _STREAM_KEYS if key in attributes), properties.get(STREAM_ID))
    time_us = _time_us(attributes.get("dt", "").strip(), attributes.get("t", "").strip(), zone)
    return Head(attributes.get("groupId", properties.get(GROUP_ID)), stream, time_us, attributes, has_numbers)


def _time_us(millis: str, local: str, zone: str) -> int | None:
    if millis:
        return _micros(int(millis) if re.fullmatch(r"[+-]?[0-9]{1,19}", millis) else None, millis)
    if len(local) < 8:
        return None
    digits = local[: 8 if len(local) < 10 else 10 if len(local) < 12 else 12]
    try:
        time = datetime.strptime(digits, "%Y%m%d%H%M"[: len(digits) - 2])
    except ValueError:
        raise BadPayloadError(
            f"the attribute t is {local[:40]!r}, expected yyyyMMdd, yyyyMMddHH or yyyyMMddHHmm"
        ) from None
    return int(time.replace(tzinfo=time_zone(zone)).timestamp()) * 1_000_000


def _micros(millis: int | None, text: object) -> int:
    if millis is None or not -(2**63) <= millis * 1000 < 2**63:
        raise BadPayloadError(f"the time {text!s:.40} is not a number of milliseconds")
    return millis * 1000


# -- protobuf


def _pack(payload: bytes, properties: Mapping[str, str]) -> Iterator[tuple[Head, bytes]]:
    """Yield the records of a `MessagePack`."""
    pack = _message(payload, (0x0A, 0x12))
    header = _message(pack[0x0A], (0x0A, 0x12, 0x18, 0x20, 0x28, 0x30, 0x38, 0x40), repeated=0x4A)
    named = {GROUP_ID: _text(header[0x0A]), STREAM_ID: _text(header[0x12])}
    yield from _objects(pack[0x12], str(header[0x40]), {**properties, **named}, _params(header[0x4A]))


def _objects(
    payload: bytes, compression: str, properties: Mapping[str, str], params: Mapping[str, str] | None = None
) -> Iterator[tuple[Head, bytes]]:
    """Yield the records of `MessageObjs`."""
    code = _COMPRESSIONS.get(compression, int(compression) if re.fullmatch(r"[0-9]", compression) else -1)
    group, stream = properties.get(GROUP_ID), properties.get(STREAM_ID)
    for tag, one in _fields(_unpacked(payload, code, compression)):
        if tag != 0x0A:
            continue
        record = _message(one, (0x08, 0x12, 0x1A), repeated=0x22)
        attributes = {"sourceIp": _text(record[0x12]), **(params or {}), **_params(record[0x22])}
        time_ms = signed64(record[0x08])
        yield Head(group, stream, _micros(time_ms, time_ms), attributes), record[0x1A]


def _message(data: bytes, required: tuple[int, ...], repeated: int = 0) -> dict[int, Any]:
    """Return the fields of a protobuf message by tag, the last of several; and all of the repeated one."""
    found: dict[int, Any] = {repeated: []}
    for tag, value in _fields(data):
        if tag == repeated:
            found[tag].append(value)
        else:
            found[tag] = value
    missing = [tag >> 3 for tag in required if tag not in found]
    if missing:
        raise BadPayloadError(f"{_NEITHER}: a message lacks field {missing[0]}")
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the tag of each field of a protobuf message, and its number or bytes."""
    try:
        for tag, value, stop in take_fields(data, 0, len(data)):
            yield tag, data[value:stop] if tag & 7 == 2 else value
    except CorruptMessageError as error:
        raise BadPayloadError(f"{_NEITHER}: {error}") from None


def _params(entries: list[bytes]) -> dict[str, str]:
    pairs = (_message(entry, ()) for entry in entries)
    return {_text(pair.get(0x0A, b"")): _text(pair.get(0x12, b"")) for pair in pairs}


# -- parts


def _unpacked(data: bytes, code: int, name: str = "") -> bytes:
    """Return uncompressed bytes: 0 is none, 1 gzip, 2 snappy, as in `ProxySdk.proto`."""
    if code == 0:
        return data
    if code == 1:
        return _ungzipped(data)
    if code != 2:
        raise BadPayloadError(f"the compression {name[:40] or code} is unknown")
    try:
        size, _ = take_varint(data, 0, len(data))
        if size > min(_SNAPPY_FACTOR * len(data), MAX_MESSAGE_BYTES):
            raise BadPayloadError(f"{len(data)} bytes of snappy announce {size} bytes")
        return bytes(decompress("SNAPPY", data, size))
    except CorruptMessageError as error:
        raise BadPayloadError(str(error)) from None


def _ungzipped(data: bytes) -> bytes:
    inflating = zlib.decompressobj(_GZIP)
    try:
        found = inflating.decompress(data, MAX_MESSAGE_BYTES)
    except zlib.error as error:
        raise BadPayloadError(f"the gzip does not decompress: {error}") from None
    if not inflating.eof or inflating.unused_data:
        raise BadPayloadError(f"the gzip does not end after {len(found)} bytes, or more follows")
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise BadPayloadError("the attributes are not UTF-8") from None


def _modified_utf8(data: bytes) -> str:
    """Return a text of Java's `writeUTF`: NUL has two bytes, and characters beyond 65535 are pairs of surrogates."""
    if b"\xed" not in data and b"\xc0\x80" not in data:
        return _text(data)
    try:
        units = data.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        return units.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise BadPayloadError("the attributes are not UTF-8") from None
