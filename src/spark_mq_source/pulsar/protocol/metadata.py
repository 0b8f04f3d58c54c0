"""The metadata of an entry: `MessageMetadata` of `PulsarApi.proto`, with our own field names.

The loops that decode entries use the field numbers of `TAGS`, not protobuf.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, TypedDict

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf import Int32, Int64, ProtobufCodec, Uint32, Uint64
from spark_mq_source.pulsar.protocol.commands import KeyValue
from spark_mq_source.pulsar.protocol.wire import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC

LOCAL: Final = "__local__"
"""The only cluster in `replicate_to` of a message that is not replicated (`PulsarApi.proto`'s users in Java)."""


class _EncryptionKey(TypedDict):
    key: Annotated[str, 1]
    value: Annotated[bytes, 2]


class EncryptionKeys(_EncryptionKey, total=False):
    """A data key, encrypted with the key of this name."""

    metadata: Annotated[Sequence[KeyValue], 3]


class _RequiredMetadata(TypedDict):
    producer_name: Annotated[str, 1]
    sequence_id: Annotated[Uint64, 2]
    publish_time: Annotated[Uint64, 3]


class MessageMetadata(_RequiredMetadata, total=False):
    """Metadata of an entry: a message, a batch, or a chunk.

    Attributes:
        publish_time: ms since 1970, like all times.
        compression: NONE=0, LZ4=1, ZLIB=2, ZSTD=3, SNAPPY=4.
        replicate_to: clusters, instead of those of the namespace; `LOCAL` for none.
        num_messages_in_batch: absent for a single message.
        schema_id: of an external registry (PIP-420).
    """

    properties: Annotated[Sequence[KeyValue], 4]
    replicated_from: Annotated[str, 5]
    partition_key: Annotated[str, 6]
    replicate_to: Annotated[Sequence[str], 7]
    compression: Annotated[Int32, 8]
    uncompressed_size: Annotated[Uint32, 9]
    num_messages_in_batch: Annotated[Int32, 11]
    event_time: Annotated[Uint64, 12]
    encryption_keys: Annotated[Sequence[EncryptionKeys], 13]
    encryption_algo: Annotated[str, 14]
    encryption_param: Annotated[bytes, 15]
    schema_version: Annotated[bytes, 16]
    partition_key_b64_encoded: Annotated[bool, 17]
    ordering_key: Annotated[bytes, 18]
    deliver_at_time: Annotated[Int64, 19]
    marker_type: Annotated[Int32, 20]
    txnid_least_bits: Annotated[Uint64, 22]
    txnid_most_bits: Annotated[Uint64, 23]
    highest_sequence_id: Annotated[Uint64, 24]
    null_value: Annotated[bool, 25]
    uuid: Annotated[str, 26]
    num_chunks_from_msg: Annotated[Int32, 27]
    total_chunk_msg_size: Annotated[Int32, 28]
    chunk_id: Annotated[Int32, 29]
    null_partition_key: Annotated[bool, 30]
    compacted_batch_indexes: Annotated[Sequence[Int32], 31]
    schema_id: Annotated[bytes, 32]


_PROTOBUF: Final = ProtobufCodec()
_MESSAGE_METADATA: Final = _PROTOBUF.class_of(MessageMetadata)
_FIELDS: Final = _MESSAGE_METADATA.DESCRIPTOR.fields
# FieldDescriptor.CPPTYPE_... of descriptor.py in protobuf.
_KINDS: Final = {1: "int32", 2: "int64", 3: "uint32", 4: "uint64", 7: "bool", 9: "bytes", 10: "message"}

KINDS: Final = {field.name: _KINDS[field.cpp_type] for field in _FIELDS}
"""The type of each field; text is ``bytes``."""

TAGS: Final = {field.name: field.number << 3 | (2 * (KINDS[field.name] in {"bytes", "message"})) for field in _FIELDS}
"""The tag of each field: its number and wire type. A repeated field may also be packed."""


def encode_metadata(metadata: MessageMetadata) -> bytes:
    """Return encoded metadata."""
    return _MESSAGE_METADATA(**metadata).SerializeToString()  # type: ignore[no-any-return]


def decode_metadata(body: memoryview) -> tuple[MessageMetadata, int]:
    """Return the metadata of an encrypted entry, and its size in bytes; loops parse what others need.

    Args:
        body: everything after a MESSAGE's command (see wire.py).

    Raises:
        CorruptMessageError: it cannot be parsed.

    Example:
        >>> metadata = bytes.fromhex("0a0170 1000 1801 5803")  # producer "p", sequence 0, time 1, a batch of 3
        >>> decode_metadata(memoryview(len(metadata).to_bytes(4, "big") + metadata))[0]["num_messages_in_batch"]
        3
    """
    at = 0
    if body[:2] == BROKER_METADATA_MAGIC:
        at = 6 + int.from_bytes(body[2:6], "big")
    if body[at : at + 2] == CHECKSUM_MAGIC:
        at += 6
    size = int.from_bytes(body[at : at + 4], "big")
    try:
        return _PROTOBUF.decode(MessageMetadata, bytes(body[at + 4 : at + 4 + size])), size
    except ValueError as error:
        raise CorruptMessageError(f"the encryption metadata cannot be parsed: {error}") from error
