"""Entries as a broker stores them: creation by a foreign producer, and the parts that a broker parses."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from crc32c import crc32c

from spark_mq_source.pulsar.payload._encode_python import _murmur3_32
from spark_mq_source.pulsar.protocol.wire import CHECKSUM_MAGIC
from tests.oracles.pulsar_messages import framed
from tests.protobuf import pulsar as pb

COMMIT_MARKER, ABORT_MARKER = 21, 22
"""`MarkerType.TXN_COMMIT`, `TXN_ABORT`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: a message, a batch of them, a chunk of one, or a marker.

    Attributes:
        body: the bytes after SEND and MESSAGE: checksum, metadata, payload.
        producer: the producer's name.
        sequence_id: its own, or that of the first message of its batch.
        highest_sequence_id: of the last message of its batch.
        is_batch: whether its messages have indexes.
        messages: the number of its messages, as counted by FLOW permits.
        publish_time: in ms, by the producer's clock.
        marker: whether it is a marker, which the broker writes.
        txn: its transaction, (most, least).
        chunk: (uuid, number, count) of a chunk.
        key: assigns it to one of the Key_Shared consumers.
        deliver_at: in ms since 1970, if its delivery is delayed.
        values: of its messages; of a chunk the part.
    """

    body: bytes
    producer: str
    sequence_id: int
    highest_sequence_id: int
    is_batch: bool
    messages: int
    publish_time: int
    marker: int | None
    txn: tuple[int, int] | None
    chunk: tuple[str, int, int] | None
    key: bytes
    deliver_at: int | None
    values: tuple[bytes, ...]


@cache
def key_hash(key: bytes) -> int:
    """Return the hash of a key in the broker's range, 1 to 65535 (`ConsistentHashingStickyKeyConsumerSelector`)."""
    return murmur3(key) % 65535 + 1


def murmur3(data: bytes) -> int:
    """Return the lower 31 bits of `Murmur3_32Hash`."""
    return _murmur3_32(data) & 0x7FFF_FFFF


def read_entry(body: bytes) -> Entry:
    """Return the entry with the fields that a broker parses."""
    metadata, payload = _parts(body)
    is_batch = metadata.HasField("num_messages_in_batch")
    is_chunk = metadata.HasField("chunk_id") and metadata.num_chunks_from_msg > 1
    txn = (metadata.txnid_most_bits, metadata.txnid_least_bits) if metadata.HasField("txnid_least_bits") else None
    return Entry(
        body,
        metadata.producer_name,
        metadata.sequence_id,
        max(metadata.highest_sequence_id, metadata.sequence_id),
        is_batch,
        metadata.num_messages_in_batch if is_batch else 1,
        metadata.publish_time,
        metadata.marker_type if metadata.HasField("marker_type") else None,
        txn,
        (metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg) if is_chunk else None,
        _key(metadata),
        metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None,
        _values(payload, metadata.num_messages_in_batch) if is_batch else (payload,),
    )


def _parts(body: bytes) -> tuple[Any, bytes]:
    """Return the metadata and the payload of an entry."""
    at = 6 if body[:2] == CHECKSUM_MAGIC else 0
    size = int.from_bytes(body[at : at + 4], "big")
    return pb.MessageMetadata.FromString(body[at + 4 : at + 4 + size]), body[at + 4 + size :]


def _key(metadata: Any) -> bytes:
    if metadata.HasField("ordering_key"):
        return bytes(metadata.ordering_key)
    if metadata.HasField("partition_key"):
        return (
            b64decode(metadata.partition_key) if metadata.partition_key_b64_encoded else metadata.partition_key.encode()
        )
    return f"{metadata.producer_name}-{metadata.sequence_id}".encode()


def has_good_checksum(body: bytes) -> bool:
    """Return whether the checksum matches the bytes after it."""
    return body[:2] != CHECKSUM_MAGIC or int.from_bytes(body[2:6], "big") == crc32c(body[6:])


def _values(payload: bytes, messages: int) -> tuple[bytes, ...]:
    return tuple(value for _, value in _singles(payload, messages))


def _singles(payload: bytes, messages: int) -> Iterator[tuple[Any, bytes]]:
    at = 0
    for _ in range(messages):
        size = int.from_bytes(payload[at : at + 4], "big")
        single = pb.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size
        yield single, payload[at : at + single.payload_size]
        at += single.payload_size


def properties_of(entry: Entry) -> list[dict[str, str]]:
    """Return the properties of each of its messages."""
    metadata, payload = _parts(entry.body)
    heads = [single for single, _ in _singles(payload, entry.messages)] if entry.is_batch else [metadata]
    return [{one.key: one.value for one in head.properties} for head in heads]


def make_entry(
    values: Sequence[bytes],
    publish_time: int,
    *,
    producer: str = "foreign",
    sequence_id: int = 0,
    txn: tuple[int, int] | None = None,
    key: str | None = None,
    deliver_at: int | None = None,
) -> Entry:
    """Return the entry of a message, or of a batch of several with the same key."""
    metadata = pb.MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=publish_time, deliver_at_time=deliver_at
    )
    if key is not None:
        metadata.partition_key = key
    payload = values[0]
    if len(values) > 1:
        metadata.num_messages_in_batch = len(values)
        metadata.highest_sequence_id = sequence_id + len(values) - 1
        parts = []
        for value in values:
            single = pb.SingleMessageMetadata(payload_size=len(value), partition_key=key).SerializeToString()
            parts.append(len(single).to_bytes(4, "big") + single + value)
        payload = b"".join(parts)
    metadata.uncompressed_size = len(payload)  # an empty message without it stays in the compacted ledger
    if txn is not None:
        metadata.txnid_most_bits, metadata.txnid_least_bits = txn
    return read_entry(framed(metadata.SerializeToString(), payload))


def last_message(entry: Entry) -> Entry:
    """Return the entry as compaction stores it, if its messages have one key: with all but the last one emptied.

    They stay with a flag, so that the indexes stay the same (`RawBatchConverter`).
    """
    if not entry.is_batch:
        return entry
    metadata, payload = _parts(entry.body)
    parts = []
    for single, value in list(_singles(payload, entry.messages)):
        is_last = len(parts) == entry.messages - 1
        single.compacted_out, single.payload_size = not is_last, len(value) if is_last else 0
        head = single.SerializeToString()
        parts.append(len(head).to_bytes(4, "big") + head + (value if is_last else b""))
    return replace(entry, body=framed(metadata.SerializeToString(), b"".join(parts)), values=entry.values[-1:])


def make_chunks(value: bytes, parts: int, publish_time: int, *, producer: str, sequence_id: int) -> list[Entry]:
    """Return the entries of a chunked message; its uuid is that of the Java client: producer and sequence id."""
    size = -(-len(value) // parts)
    found = []
    for number in range(parts):
        metadata = pb.MessageMetadata(
            producer_name=producer,
            sequence_id=sequence_id,
            publish_time=publish_time,
            uuid=f"{producer}-{sequence_id}",
            num_chunks_from_msg=parts,
            total_chunk_msg_size=len(value),
            chunk_id=number,
        )
        found.append(read_entry(framed(metadata.SerializeToString(), value[number * size : (number + 1) * size])))
    return found


def make_marker(kind: int, txn: tuple[int, int], publish_time: int) -> Entry:
    """Return the marker that a broker writes after an ended transaction."""
    metadata = pb.MessageMetadata(
        producer_name="pulsar.txn.marker",
        sequence_id=0,
        publish_time=publish_time,
        marker_type=kind,
        txnid_most_bits=txn[0],
        txnid_least_bits=txn[1],
    )
    return replace(read_entry(framed(metadata.SerializeToString(), b"")), values=())
