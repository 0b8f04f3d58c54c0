"""What is needed to decrypt a message outside of this package: the column ``encryption_context``.

The names are those of the Java client's EncryptionContext; chunks are each encrypted by themselves, so that theirs are
added. Entries that are encrypted are rare and become one row each, so protobuf's own parser does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from google.protobuf.message import DecodeError

from spark_mq_source.core.columns import is_int32, is_int64, is_string_map, is_text
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.pulsar.protocol import _pb

ENCRYPTION_CONTEXT: Final = "encryption_context"

_COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
_MAGIC_BROKER_METADATA: Final = b"\x0e\x02"
_MAGIC_CHECKSUM: Final = b"\x0e\x01"

_KEY_FIELDS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "key": is_text,
    "value": pa.types.is_binary,
    "metadata": is_string_map,
}
_FIELDS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "keys": lambda type_: bool(pa.types.is_list(type_)) and _has_fields(type_.value_type, _KEY_FIELDS),
    "param": pa.types.is_binary,
    "algorithm": is_text,
    "compression": is_text,
    "uncompressed_size": is_int64,
    "batch_size": is_int32,
    "uuid": is_text,
    "chunk_id": is_int32,
    "num_chunks": is_int32,
}


def is_encryption_context(type_: pa.DataType) -> bool:
    """Whether it is the type of the column, whatever the inner fields of its lists and maps are called."""
    return _has_fields(type_, _FIELDS)


def _has_fields(type_: pa.DataType, fields: Mapping[str, Callable[[pa.DataType], bool]]) -> bool:
    if not pa.types.is_struct(type_) or [field.name for field in type_] != list(fields):
        return False
    return all(fields[field.name](field.type) for field in type_)


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
