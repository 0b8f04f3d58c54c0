"""What is needed to decrypt a message outside of this package: the column ``encryption_context``.

The names are those of the Java client's EncryptionContext; chunks are each encrypted by themselves, so that theirs are
added. Entries that are encrypted are rare and become one row each, so protobuf's own parser does.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.pulsar.protocol import _pb

_COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
_MAGIC_BROKER_METADATA: Final = b"\x0e\x02"
_MAGIC_CHECKSUM: Final = b"\x0e\x01"


def encryption_context_of(body: bytes | memoryview) -> tuple[dict[str, object], int]:
    """The column's value for an entry, and how many bytes its metadata takes.

    Args:
        body: an entry that `EntryColumns.open_entry` has accepted.

    Raises:
        CorruptMessageError: its metadata cannot be parsed.
    """
    data = bytes(body)
    at = 0
    if data[:2] == _MAGIC_BROKER_METADATA:
        at = 6 + int.from_bytes(data[2:6], "big")
    if data[at : at + 2] == _MAGIC_CHECKSUM:
        at += 6
    size = int.from_bytes(data[at : at + 4], "big")
    try:
        metadata = _pb.MessageMetadata.FromString(data[at + 4 : at + 4 + size])
        return _context_of(metadata), size
    except (DecodeError, UnicodeDecodeError) as error:
        raise CorruptMessageError(f"the encryption metadata cannot be parsed: {error}") from error


def _context_of(metadata: _pb.MessageMetadata) -> dict[str, object]:
    is_chunk = metadata.num_chunks_from_msg > 1
    number = metadata.compression
    return {
        "keys": [
            {
                "key": _text(key.key),
                "value": key.value,
                "metadata": {_text(m.key): _text(m.value) for m in key.metadata},
            }
            for key in metadata.encryption_keys
        ],
        "param": metadata.encryption_param if metadata.HasField("encryption_param") else None,
        "algorithm": _text(metadata.encryption_algo) if metadata.HasField("encryption_algo") else None,
        "compression": _COMPRESSIONS[number] if 0 <= number < len(_COMPRESSIONS) else str(number),
        "uncompressed_size": metadata.uncompressed_size,
        "batch_size": metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None,
        "uuid": _text(metadata.uuid) if is_chunk else None,
        "chunk_id": metadata.chunk_id if is_chunk else None,
        "num_chunks": metadata.num_chunks_from_msg if is_chunk else None,
    }


def _text(value: str | bytes) -> str:
    # If the bytes are not UTF-8, some runtimes of protobuf give them instead of an error.
    return value.decode() if isinstance(value, bytes) else value
