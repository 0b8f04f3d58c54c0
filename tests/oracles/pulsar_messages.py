"""A reference for Pulsar's entries: protobuf's runtime reads their metadata, the rest follows the specification.

It uses no code of the package: field numbers are those of `PulsarApi.proto`, codecs are those of libraries.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import cramjam
import lz4.block
import zstandard
from crc32c import crc32c as fast_crc32c

from tests.oracles.fields import CorruptError, check, crc32c, is_text, make_class, parse, signed

METADATA_FIELDS: Final = {
    "producer_name": (1, "bytes"), "sequence_id": (2, "uint64"), "publish_time": (3, "uint64"),
    "properties": (4, "*bytes"), "replicated_from": (5, "bytes"), "partition_key": (6, "bytes"),
    "compression": (8, "int32"), "uncompressed_size": (9, "uint32"), "num_messages_in_batch": (11, "int32"),
    "event_time": (12, "uint64"), "encryption_keys": (13, "*bytes"), "encryption_algo": (14, "bytes"),
    "encryption_param": (15, "bytes"), "schema_version": (16, "bytes"), "partition_key_b64_encoded": (17, "bool"),
    "ordering_key": (18, "bytes"), "deliver_at_time": (19, "int64"), "marker_type": (20, "int32"),
    "txnid_least_bits": (22, "uint64"), "txnid_most_bits": (23, "uint64"), "highest_sequence_id": (24, "uint64"),
    "null_value": (25, "bool"), "uuid": (26, "bytes"), "num_chunks_from_msg": (27, "int32"),
    "total_chunk_msg_size": (28, "int32"), "chunk_id": (29, "int32"), "null_partition_key": (30, "bool"),
    "compacted_batch_indexes": (31, "*int32"), "replicate_to": (7, "*bytes"), "schema_id": (32, "bytes"),
}  # fmt: skip
SINGLE_FIELDS: Final = {
    "properties": (1, "*bytes"), "partition_key": (2, "bytes"), "payload_size": (3, "int32"),
    "compacted_out": (4, "bool"), "event_time": (5, "uint64"), "partition_key_b64_encoded": (6, "bool"),
    "ordering_key": (7, "bytes"), "sequence_id": (8, "uint64"), "null_value": (9, "bool"),
    "null_partition_key": (10, "bool"),
}  # fmt: skip
BROKER_FIELDS: Final = {"broker_timestamp": (1, "uint64"), "index": (2, "uint64")}
PAIR_FIELDS: Final = {"key": (1, "bytes"), "value": (2, "bytes")}
KEY_FIELDS: Final = {**PAIR_FIELDS, "metadata": (3, "*bytes")}
Metadata: Final = make_class("Metadata", METADATA_FIELDS)
Single: Final = make_class("Single", SINGLE_FIELDS)
Broker: Final = make_class("Broker", BROKER_FIELDS)
Pair: Final = make_class("Pair", PAIR_FIELDS)
Key: Final = make_class("Key", KEY_FIELDS)

CODECS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
COMPRESS: Final = (
    bytes,
    lambda data: lz4.block.compress(data, store_size=False),
    zlib.compress,
    zstandard.compress,
    lambda data: bytes(cramjam.snappy.compress_raw(data)),
)
MAX_TIME_MS: Final = (2**63 - 1) // 1000
MAX_INT: Final = 2**31 - 1


class EncryptedError(Exception):
    """The entry is encrypted, and the ciphertext is not wanted."""


class UnsupportedError(Exception):
    """The compression is unknown."""


def decompress(codec: int, data: bytes, size: int) -> bytes:
    """Return decompressed bytes of the announced size.

    Raises:
        CorruptError: they are not of that size.
    """
    try:
        if codec == 1:
            out = lz4.block.decompress(data, uncompressed_size=size)
        elif codec == 2:
            out = zlib.decompressobj().decompress(data, size + 1)
        elif codec == 3:
            out = zstandard.decompress(data, max_output_size=size)
        else:
            out = bytes(cramjam.snappy.decompress_raw(data))
    except (lz4.block.LZ4BlockError, zlib.error, zstandard.ZstdError, cramjam.DecompressionError, ValueError) as error:
        raise CorruptError(str(error)) from error
    check(len(out) == size, "size")
    return out


@dataclass
class Entry:
    """The parts of one entry."""

    metadata: Any
    broker: Any
    payload: bytes
    is_sound: bool = False

    @classmethod
    def of(cls, body: bytes, *, verifies: bool = True, is_sound: bool = False) -> Entry:
        """Split an entry into its parts.

        Raises:
            CorruptError: it is no entry.
        """
        broker = None
        if body[:2] == b"\x0e\x02":
            head, body = sized(body[2:])
            broker = parse(Broker, head, is_sound)
        if body[:2] == b"\x0e\x01":
            check(len(body) >= 6, "checksum")
            check(not verifies or crc32c(body[6:]) == int.from_bytes(body[2:6], "big"), "checksum")
            body = body[6:]
        head, payload = sized(body)
        metadata = parse(Metadata, head, is_sound)
        check(all(map(metadata.HasField, ("producer_name", "sequence_id", "publish_time"))), "required")
        return cls(metadata, broker, payload, is_sound)

    @property
    def is_chunk(self) -> bool:
        """Whether the entry is a chunk of a message."""
        return self.metadata.num_chunks_from_msg > 1

    @property
    def is_batch(self) -> bool:
        """Whether the entry is a batch."""
        return not self.is_chunk and self.metadata.HasField("num_messages_in_batch")

    @property
    def messages(self) -> int:
        """The number of messages in the metadata."""
        return self.metadata.num_messages_in_batch if self.is_batch else 1


def framed(metadata: bytes, payload: bytes, *, broker: bytes | None = None, is_checked: bool = True) -> bytes:
    """Return the bytes of an entry; `Entry.of` splits them."""
    body = len(metadata).to_bytes(4, "big") + metadata + payload
    if is_checked:
        body = b"\x0e\x01" + fast_crc32c(body).to_bytes(4, "big") + body
    if broker is not None:
        body = b"\x0e\x02" + len(broker).to_bytes(4, "big") + broker + body
    return body


def sized(data: bytes) -> tuple[bytes, bytes]:
    """Return the bytes behind a size, and the rest.

    Raises:
        CorruptError: they are incomplete.
    """
    size = int.from_bytes(data[:4], "big")
    check(4 + size <= len(data), "size")
    return data[4 : 4 + size], data[4 + size :]


@dataclass
class Chunks:
    """Chunked messages under assembly, without a memory limit."""

    open: dict[bytes, dict[str, Any]] = field(default_factory=dict)

    def add(self, entry: Entry, position: tuple[int, int], *, discards: bool) -> bytes | None:
        """Return the whole message if this chunk completes one.

        Raises:
            CorruptError: it contradicts itself or the ones before it.
        """
        said = entry.metadata
        uuid, number, count, total = said.uuid, said.chunk_id, said.num_chunks_from_msg, said.total_chunk_msg_size
        try:
            check(bool(uuid) and 0 <= number < count and total >= 0, "no chunk")
            if number == 0 and (uuid not in self.open or self.open[uuid]["start"] != position):
                self.open[uuid] = {"start": position, "last": position, "next": 0, "size": (count, total), "data": b""}
            pending = self.open.get(uuid)
            if pending is None or (number and pending["size"] != (count, total)):
                return None
            if number != pending["next"] or position < pending["last"]:
                return None
            data = pending["data"] + entry.payload
            check(len(data) == total if number == count - 1 else len(data) <= total, "chunks do not add up")
        except CorruptError:
            if discards:
                self.open.pop(uuid, None)
            raise
        pending.update(next=number + 1, last=position, data=data)
        if number < count - 1:
            return None
        del self.open[uuid]
        return data  # type: ignore[no-any-return]


@dataclass
class Reader:
    """Options of a decoder, and its state between entries.

    Attributes:
        columns: names of the columns to build, and whether they are text.
    """

    columns: dict[str, bool]
    topic: str = "t"
    partition: int = 3
    on_corrupt: str = "fail"
    is_raw: bool = False
    verifies: bool = True
    max_message_bytes: int = 1 << 20
    max_pending_chunk_bytes: int = 1 << 24
    chunks: Chunks = field(default_factory=Chunks)
    corrupt_entries: int = 0

    def decode(
        self,
        position: tuple[int, int],
        body: bytes,
        ack_set: Sequence[int] = (),
        first: int = 0,
        last: int = MAX_INT,
        emit: bool = True,
        redelivery_count: int = 0,
        is_sound: bool = False,
    ) -> list[dict[str, Any]]:
        """Return an entry's rows.

        Args:
            position: ledger and entry.
            body: the entry.
            ack_set: words of bits.
            first: index of the first message wanted.
            last: index of the last one.
            emit: whether rows are wanted.
            redelivery_count: of the entry.
            is_sound: whether all protobuf messages in it are undamaged.

        Raises:
            CorruptError: it is corrupt, and the options make that an error.
            EncryptedError: it is encrypted, and the options make that an error.
            UnsupportedError: its compression is unknown.
        """
        try:
            entry = Entry.of(body, verifies=self.verifies, is_sound=is_sound)
            rows = self._rows(entry, position, body, ack_set, first, last, emit)
        except CorruptError:
            if not emit or (self.on_corrupt == "null" and not first <= 0 <= last):
                return []
            if self.on_corrupt == "fail":
                raise
            self.corrupt_entries += 1
            if self.on_corrupt == "skip":
                return []
            null = self._row(position, -1, {"properties": [], "_corrupt": body, "_error": Ellipsis})
            return [null]
        for row in rows:
            if "redelivery_count" in row:
                row["redelivery_count"] = min(redelivery_count, MAX_INT)
        return rows

    def _rows(  # noqa: PLR0911 - an entry is one of many things
        self, entry: Entry, position: tuple[int, int], body: bytes, ack_set: Sequence[int], first: int, last: int,
        emit: bool,
    ) -> list[dict[str, Any]]:  # fmt: skip
        said, payload = entry.metadata, entry.payload
        has_first = first <= 0 <= last
        if said.HasField("marker_type"):
            return []
        if said.encryption_keys:
            if not emit or not (entry.is_batch or entry.is_chunk or has_first):
                return []
            if not self.is_raw:
                raise EncryptedError
            return [self._single(entry, position, payload)] if has_first else []
        limit = self.max_message_bytes
        if entry.is_chunk:
            whole = self.chunks.add(entry, position, discards=self.on_corrupt != "fail")
            if whole is None:
                return []
            payload, limit = whole, max(limit, self.max_pending_chunk_bytes)
        if not emit or not (entry.is_batch or has_first):
            return []
        if said.compression:
            if not 0 < said.compression < len(CODECS):
                raise UnsupportedError
            check(said.uncompressed_size <= limit, "too large")
            payload = decompress(said.compression, payload, said.uncompressed_size)
        if entry.is_batch:
            return self._batch(entry, position, payload, ack_set, first, last)
        return [self._single(entry, position, payload)]

    def _batch(
        self, entry: Entry, position: tuple[int, int], payload: bytes, ack_set: Sequence[int], first: int, last: int
    ) -> list[dict[str, Any]]:
        count = entry.messages
        check(0 < count <= len(payload) // 6, "count")
        limit = 16 * max(self.max_message_bytes, len(entry.payload))
        for name in ("producer_name", "schema_version", "schema_id", "replicated_from"):
            check(name not in self.columns or len(getattr(entry.metadata, name)) * count <= limit, "explodes")
        wanted = []
        for index in range(count):
            head, payload = sized(payload)
            message = parse(Single, head, entry.is_sound)
            size = message.payload_size
            check(message.HasField("payload_size") and 0 <= size <= len(payload), "payload_size")
            is_acked = bool(ack_set) and not (index // 64 < len(ack_set) and ack_set[index // 64] >> index % 64 & 1)
            if not (
                message.compacted_out
                or index in entry.metadata.compacted_batch_indexes
                or is_acked
                or not first <= index <= last
            ):
                wanted.append((index, message, payload[:size]))
            payload = payload[size:]
        return [self._message(entry, message, position, index, value) for index, message, value in wanted]

    def _single(self, entry: Entry, position: tuple[int, int], value: bytes) -> dict[str, Any]:
        return self._message(entry, entry.metadata, position, -1, value)

    def _message(
        self, entry: Entry, message: Any, position: tuple[int, int], index: int, value: bytes
    ) -> dict[str, Any]:
        said, columns = entry.metadata, self.columns

        def own(name: str) -> Any:
            return getattr(message if message.HasField(name) else said, name)

        cells: dict[str, Any] = {
            "value": None if own("null_value") else value,
            "publish_time": signed(said.publish_time),
            "event_time": signed(own("event_time")) or None,
            "sequence_id": signed(own("sequence_id")),
            "broker_publish_time": None,
            "redelivery_count": 0,
        }
        for name in ("producer_name", "schema_version", "schema_id", "replicated_from"):
            cells[name] = getattr(said, name) if said.HasField(name) else None
        cells["ordering_key"] = message.ordering_key if message.HasField("ordering_key") else None
        if "key" in columns and message.HasField("partition_key") and not own("null_partition_key"):
            cells["key"] = message.partition_key
            if message.partition_key_b64_encoded:
                cells["key"] = unbase64(message.partition_key)
        if "properties" in columns:
            cells["properties"] = pairs_of(message.properties)
        if entry.broker is not None:
            if entry.broker.HasField("broker_timestamp"):
                cells["broker_publish_time"] = signed(entry.broker.broker_timestamp)
            if entry.broker.HasField("index"):
                behind = entry.messages - 1 - index if index >= 0 else 0
                cells["broker_index"] = signed(entry.broker.index - behind)
        if "encryption_context" in columns and said.encryption_keys:
            cells["encryption_context"] = context_of(said)
        for name in ("publish_time", "event_time", "broker_publish_time"):
            if name in columns and cells[name] is not None:
                check(abs(cells[name]) <= MAX_TIME_MS, "time")
                cells[name] *= 1000
        for name, is_text_column in columns.items():
            check(not is_text_column or cells.get(name) is None or is_text(cells[name]), "text")
        return self._row(position, index, cells)

    def _row(self, position: tuple[int, int], index: int, cells: dict[str, Any]) -> dict[str, Any]:
        ledger, entry = position
        cells |= {
            "topic": self.topic.encode(),
            "partition": self.partition,
            "message_id": {"ledger_id": ledger, "entry_id": entry, "batch_index": index},
        }
        return {name: cells.get(name) for name in self.columns}


def pairs_of(properties: Sequence[bytes]) -> list[tuple[str, str]]:
    """Return a message's properties; of several with one key the last value is taken, in the place of the first.

    Raises:
        CorruptError: a property lacks its key or its value, or is not text.
    """
    found: dict[str, str] = {}
    for pair in properties:
        said = parse(Pair, pair)
        check(said.HasField("key") and said.HasField("value"), "property")
        check(is_text(said.key) and is_text(said.value), "property")
        found[said.key.decode()] = said.value.decode()
    return list(found.items())


def unbase64(key: bytes) -> bytes:
    """Decode a key in base64, with or without padding.

    Raises:
        CorruptError: it is not base64.
    """
    check(not key.endswith(b"=") or len(key) % 4 == 0, "base64")
    try:
        return base64.b64decode(key + b"=" * (-len(key) % 4), validate=True)
    except binascii.Error as error:
        raise CorruptError("base64") from error


def context_of(said: Any) -> dict[str, Any]:
    """Return the encryption context of an entry, as in the column."""
    keys = [parse(Key, key) for key in said.encryption_keys]
    # Both are required, as in Java's reader.
    check(all(key.HasField("key") and key.HasField("value") for key in keys), "required")
    is_chunk = said.num_chunks_from_msg > 1
    number = said.compression
    return {
        "keys": [{"key": k.key.decode(), "value": k.value, "metadata": pairs_of(k.metadata)} for k in keys],
        "param": said.encryption_param if said.HasField("encryption_param") else None,
        "algorithm": said.encryption_algo.decode() if said.HasField("encryption_algo") else None,
        "compression": CODECS[number] if 0 <= number < len(CODECS) else str(number),
        "uncompressed_size": said.uncompressed_size,
        "batch_size": said.num_messages_in_batch if said.HasField("num_messages_in_batch") else None,
        "uuid": said.uuid.decode() if is_chunk else None,
        "chunk_id": said.chunk_id if is_chunk else None,
        "num_chunks": said.num_chunks_from_msg if is_chunk else None,
    }
