"""The keys and parameters to decrypt a message outside of this package: the column ``encryption_context``.

The names are those of the Java client's EncryptionContext. Chunks are encrypted separately, so their fields are added.
Encrypted entries are rare and become one row each, so all their metadata is parsed.
"""

from __future__ import annotations

from spark_mq_source.pulsar.payload.layout import COMPRESSION_TYPES
from spark_mq_source.pulsar.protocol.metadata import MessageMetadata


def encryption_context_of(metadata: MessageMetadata) -> dict[str, object]:
    """Return the column's value for an entry with this metadata."""
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
        "compression": COMPRESSION_TYPES[number] if 0 <= number < len(COMPRESSION_TYPES) else str(number),
        "uncompressed_size": metadata.get("uncompressed_size", 0),
        "batch_size": metadata.get("num_messages_in_batch"),
        "uuid": metadata.get("uuid", "") if is_chunk else None,
        "chunk_id": metadata.get("chunk_id", 0) if is_chunk else None,
        "num_chunks": metadata.get("num_chunks_from_msg") if is_chunk else None,
    }
