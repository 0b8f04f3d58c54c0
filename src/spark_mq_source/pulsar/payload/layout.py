"""Constants, rows and errors that `messages` and both implementations of the loops share."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_mq_source.core.columns import is_text_or_binary
from spark_mq_source.core.errors import CorruptMessageError, OptionError
from spark_mq_source.pulsar.payload.columns import COLUMNS

COMPRESSION_TYPES: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
"""The names of CompressionType, by number (Pulsar binary protocol, Message metadata)."""

# Decoding

# The bits that `EntryColumns.open_entry` returns.
MARKER: Final = 1
ENCRYPTED: Final = 2
CHUNKED: Final = 4
BATCH: Final = 8
COMPRESSED: Final = 16

# The kinds of `ENTRY_COLUMNS`.
TIME: Final = 1
"""Milliseconds since 1970, as a timestamp."""
CELL: Final = 2
"""Bytes or text, repeated in each row of the entry."""
NUMBER: Final = 3

ENTRY_COLUMNS: Final = {
    "publish_time": TIME,
    "producer_name": CELL,
    "schema_version": CELL,
    "schema_id": CELL,
    "replicated_from": CELL,
}
"""The columns that have the MessageMetadata field of the same name in all rows of an entry; by kind.

A field that is absent is NULL. To add a column of this kind, add it here and to `columns.COLUMNS`.
"""

REMEDY: Final = "maxBatchBytes or maxMessageBytes"
"""The options to lower if a column overflows."""

MIN_SINGLE_BYTES: Final = 6
"""The smallest message of a batch: a u32 and the required payload_size."""

MAX_TIME_MS: Final = (2**63 - 1) // 1000
"""The latest time that fits in microseconds; its negative is the earliest."""


def checksum_mismatch(announced: int, computed: int) -> CorruptMessageError:
    """Return the error for an entry whose checksum does not match."""
    return CorruptMessageError(
        f"the checksum does not match: CRC32C {announced:#010x} announced, {computed:#010x} found"
    )


def too_many_repetitions(name: str, size: int, rows: int) -> CorruptMessageError:
    """Return the error for a batch whose rows would repeat a cell, such as a huge producer name, too often."""
    return CorruptMessageError(
        f"a {name} of {size} bytes for each of {rows} messages is more than maxMessageBytes allows"
    )


# Encoding

# Why `BatchPayload.append` stopped.
TAKEN: Final = 0
"""All rows are in."""
FULL: Final = 1
"""The row does not fit, or has another key."""
ALONE: Final = 2
"""The row cannot be in a batch."""

HEAD_ROOM_BYTES: Final = 512
"""The largest head that `BatchPayload.take` can put before a payload without copying it."""

JAVA_STRING_HASH: Final = 0
MURMUR3_32_HASH: Final = 1

NO_PARTITION: Final = -1
"""The partition of a row without key and partition: any may take it."""


class Row(NamedTuple):
    """One row, as it goes into a message.

    Attributes:
        value: None for a tombstone.
        key: as sent, in base64 if it was binary; None for none.
        is_base64: whether the key was binary.
        event_time_ms: None for none.
        deliver_at_ms: None for immediate delivery.
        properties: key and value of each; a value of None breaks a rule.
    """

    value: bytes | None
    key: bytes | None = None
    is_base64: bool = False
    ordering_key: bytes | None = None
    event_time_ms: int | None = None
    deliver_at_ms: int | None = None
    properties: Sequence[tuple[bytes, bytes | None]] = ()

    @property
    def is_writable(self) -> bool:
        """True if the row breaks no rule."""
        return (self.event_time_ms is None or self.event_time_ms > 0) and all(v is not None for _, v in self.properties)


def bind_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the columns that go into messages.

    Raises:
        OptionError: a column is unknown or of a type that cannot be written, or there is no value.
    """
    COLUMNS.check(batch.schema, written=True)
    if not is_text_or_binary(batch.schema.field("value").type):
        raise OptionError("column value: a struct becomes JSON before it comes here (valueFormat=json)")
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return {name: column for name, column in columns if name not in {"topic", "partition"}}


def row_of(columns: Mapping[str, pa.Array], index: int) -> Row:
    """Return one row of columns."""
    return rows_of({name: column.slice(index, 1) for name, column in columns.items()})[0]


def rows_of(columns: Mapping[str, pa.Array]) -> list[Row]:
    """Return the rows of columns that `bind_columns` returned."""
    cells = {name: keys_of(column) if name == "key" else _cells_of(column) for name, column in columns.items()}
    absent: list[Any] = [None] * len(cells["value"])
    names = ("value", "key", "ordering_key", "event_time", "deliver_at", "properties")
    is_key_binary = "key" in columns and pa.types.is_binary(columns["key"].type)
    return [
        Row(value, key, is_key_binary and key is not None, ordering_key, event_time, deliver_at, properties or ())
        for value, key, ordering_key, event_time, deliver_at, properties in zip(
            *(cells.get(name, absent) for name in names), strict=True
        )
    ]


def keys_of(column: pa.Array) -> list[bytes | None]:
    """Return keys as sent: text in UTF-8, binary in base64."""
    keys = _cells_of(column)
    return [key and base64.b64encode(key) for key in keys] if pa.types.is_binary(column.type) else keys


def _cells_of(column: pa.Array) -> list[Any]:
    type_ = column.type
    if pa.types.is_timestamp(type_):
        return [None if us is None else us // 1000 for us in column.view(pa.int64()).to_pylist()]
    if pa.types.is_map(type_):
        rows = column.to_pylist()
        return [row and [(key.encode(), None if item is None else item.encode()) for key, item in row] for row in rows]
    return column.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
