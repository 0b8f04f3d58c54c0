"""The keys and parameters to decrypt a message outside of this package: the column ``encryption_context``.

The names are those of the Java client's EncryptionContext. Chunks are encrypted separately, so their fields are added.
Encrypted entries are rare and become one row each, so all their metadata is parsed.
"""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.pulsar.protocol.metadata import MessageMetadata, decode_metadata

_COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


def encryption_context_of(body: bytes | memoryview) -> tuple[dict[str, object], int]:
    """Return the column's value for an entry, and the size of its metadata in bytes.

    Raises:
        CorruptMessageError: its metadata cannot be parsed.
    """
    metadata, size = encryption_metadata_of(body)
    return _context_of(metadata), size


def encryption_metadata_of(body: bytes | memoryview) -> tuple[MessageMetadata, int]:
    """Return the metadata of an encrypted entry, and its size in bytes; see `encryption_context_of`.

    Raises:
        CorruptMessageError: it cannot be parsed.
    """
    try:
        return decode_metadata(memoryview(body))
    except CorruptMessageError as error:
        raise CorruptMessageError(f"the encryption metadata cannot be parsed: {error}") from error


def _context_of(metadata: MessageMetadata) -> dict[str, object]:
    is_chunk = metadata.get("num_chunks_from_msg", 0) > 1
    number = metadata.get("compression", 0)
    return {
        "keys": [
            {
                "key": key["key"],
                "value": key["value"],
                "metadata": {m["key"]: m["value"] for m in key["metadata"]},
            }
            for key in metadata["encryption_keys"]
        ],
        "param": metadata.get("encryption_param"),
        "algorithm": metadata.get("encryption_algo"),
        "compression": _COMPRESSIONS[number] if 0 <= number < len(_COMPRESSIONS) else str(number),
        "uncompressed_size": metadata.get("uncompressed_size", 0),
        "batch_size": metadata.get("num_messages_in_batch"),
        "uuid": metadata.get("uuid", "") if is_chunk else None,
        "chunk_id": metadata.get("chunk_id", 0) if is_chunk else None,
        "num_chunks": metadata.get("num_chunks_from_msg") if is_chunk else None,
    }
