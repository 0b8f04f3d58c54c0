"""The specification of the entry encoder's inner loop, which runs if no compiled one is installed.

The payload of a batch, before it is compressed (Pulsar binary protocol, Batch messages)::

    ( u32 size  SingleMessageMetadata  payload_size bytes ) x num_messages_in_batch

The rules for a row, the same in both implementations:

- ``value`` NULL is a tombstone (``null_value``). A ``key`` of text is written as it is, a binary one in base64 with
  ``partition_key_b64_encoded`` set, as the Java client's ``key`` and ``keyBytes``; NULL is no key.
- Times are cut to milliseconds. An event time must be after 1970-01-01 00:00:00.000, which on the wire means none.
- A property has a value; properties keep their order.
- Each message carries its own sequence id, counted up from that of its batch's first one (as the Java client does).

The caller sends a row that cannot be in a batch as a separate message, or refuses it: one with ``deliver_at``, one
larger than a batch may be, and one that breaks a rule.
"""

from __future__ import annotations

from array import array
from typing import Final

import pyarrow as pa

from spark_mq_source.core.varint import encode_sized, encode_varint
from spark_mq_source.pulsar.payload.layout import (
    ALONE,
    FULL,
    JAVA_STRING_HASH,
    NO_PARTITION,
    TAKEN,
    Row,
    bind_columns,
    keys_of,
    rows_of,
)

_INT_MAX: Final = 0x7FFFFFFF
_UINT32: Final = 0xFFFFFFFF


class RowSource:
    """The rows of one RecordBatch, for `BatchPayload.append`; see `encoder.open_rows`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.columns = bind_columns(batch)
        self.rows = batch.num_rows
        self._rows = rows_of(self.columns)

    def row(self, index: int) -> Row:
        """Return the row at `index`."""
        return self._rows[index]


class BatchPayload:
    """The payload of a batch under construction.

    Args:
        by_key: whether all messages have the same ordering key, or without one the same key.

    Attributes:
        stop: why the last `append` ended.
        first: of the first row: its key, whether that is base64, and its ordering key.
    """

    def __init__(self, *, max_bytes: int, max_rows: int, by_key: bool) -> None:
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._by_key = by_key
        self.clear()

    def clear(self) -> None:
        """Remove all rows."""
        self._data = bytearray()
        self.rows = 0
        self.nbytes = 0
        self.stop = TAKEN
        self.first: tuple[bytes | None, bool, bytes | None] = (None, False, None)

    def append(
        self, source: RowSource, order: memoryview | array[int] | None, begin: int, end: int, sequence_id: int
    ) -> int:
        """Add rows until one does not fit.

        Args:
            source: the rows.
            order: their indices in `source`; None for all, in order.
            begin: index in `order` of the first row to add.
            end: index in `order` after the last row to add.
            sequence_id: id of the first row.

        Returns:
            The index in `order` of the first row that was not added; `stop` has the reason.
        """
        self.stop = TAKEN
        for at in range(begin, end):
            row = source.row(at if order is None else order[at])
            message = _encode_message(row, sequence_id + at - begin)
            self.stop = self._reason_against(row, len(message))
            if self.stop != TAKEN:
                return at
            if not self.rows:
                self.first = (row.key, row.is_base64, row.ordering_key)
            self._data += message
            self.rows += 1
            self.nbytes = len(self._data)
        return end

    def _reason_against(self, row: Row, size: int) -> int:
        keys_size = len(row.key or b"") + len(row.ordering_key or b"")
        if row.deliver_at_ms is not None or not row.is_writable or size + keys_size > self._max_bytes:
            return ALONE
        if not self.rows:
            return TAKEN
        key, _, ordering_key = self.first
        # The head of the entry repeats the first row's keys.
        room = self._max_bytes - self.nbytes - len(key or b"") - len(ordering_key or b"")
        is_other = self._by_key and _dispatch_key(row.key, row.ordering_key) != _dispatch_key(key, ordering_key)
        return FULL if self.rows >= self._max_rows or size > room or is_other else TAKEN

    def view(self) -> memoryview:
        """Return the payload so far; to be released before the next `append`."""
        return memoryview(self._data)

    def take(self, head: bytes) -> memoryview:
        """Return `head` and the payload, and remove all rows."""
        data = head + self._data
        self.clear()
        return memoryview(data)


def _dispatch_key(key: bytes | None, ordering_key: bytes | None) -> bytes | None:
    return key if ordering_key is None else ordering_key


def _encode_message(row: Row, sequence_id: int) -> bytes:
    value = row.value or b""
    out = bytearray()
    for name, item in row.properties:
        out += b"\x0a" + encode_sized(b"\x0a" + encode_sized(name) + b"\x12" + encode_sized(item or b""))
    if row.key is not None:
        out += b"\x12" + encode_sized(row.key)
    out += b"\x18" + encode_varint(len(value))
    if row.event_time_ms is not None:
        out += b"\x28" + encode_varint(row.event_time_ms)
    if row.is_base64:
        out += b"\x30\x01"
    if row.ordering_key is not None:
        out += b"\x3a" + encode_sized(row.ordering_key)
    out += b"\x40" + encode_varint(sequence_id)
    if row.value is None:
        out += b"\x48\x01"
    return len(out).to_bytes(4, "big") + out + value


def hashes_of(keys: pa.Array, hashing: int) -> array[int]:
    """Return the hash by which the Java client's producer chooses a partition, of each key; -1 if there is no key.

    Args:
        keys: text, or binary: then the hash is that of its base64 (as the Java client's, seen on 4.0.8).
        hashing: `JAVA_STRING_HASH` or `MURMUR3_32_HASH`.

    Example:
        >>> hashes_of(pa.array(["a", None, "hello"]), JAVA_STRING_HASH).tolist()
        [97, -1, 99162322]
    """
    hash_of = _java_string_hash if hashing == JAVA_STRING_HASH else _murmur3_32
    return array("i", [-1 if key is None else hash_of(key) & _INT_MAX for key in keys_of(keys)])


def _java_string_hash(text: bytes) -> int:
    # String.hashCode: over UTF-16 units.
    result = 0
    for unit in array("H", text.decode().encode("utf-16-le")):
        result = (31 * result + unit) & _UINT32
    return result


def _murmur3_32(data: bytes) -> int:
    # MurmurHash3_x86_32, seed 0.
    result = 0
    for at in range(0, len(data), 4):
        word = data[at : at + 4]
        result ^= _mixed(int.from_bytes(word, "little"))
        if len(word) == 4:
            result = (result << 13 | result >> 19) & _UINT32
            result = (result * 5 + 0xE6546B64) & _UINT32
    result ^= len(data)
    result = ((result ^ result >> 16) * 0x85EBCA6B) & _UINT32
    result = ((result ^ result >> 13) * 0xC2B2AE35) & _UINT32
    return result ^ result >> 16


def _mixed(word: int) -> int:
    word = (word * 0xCC9E2D51) & _UINT32
    word = (word << 15 | word >> 17) & _UINT32
    return (word * 0x1B873593) & _UINT32


def group_rows(
    explicit: pa.Array | None, hashes: array[int] | None, order: array[int] | None, rows: int, partitions: int
) -> list[tuple[int, memoryview]]:
    """Return the partitions that get rows, in order, each with the indices of its rows; `NO_PARTITION` is first.

    Args:
        explicit: the column ``partition``, None if it does not exist; NULL if the key decides.
        hashes: hashes of the keys, None if there are none; -1 if a row has no key.
        order: the indices of the rows in question; None for all.
        rows: number of rows in question.
        partitions: number of partitions of the topic.

    Raises:
        IndexError: the partition of a row does not exist; its argument is the row's index.
    """
    wanted = None if explicit is None else explicit.to_pylist()
    groups: dict[int, array[int]] = {}
    for row in range(rows) if order is None else order[:rows]:
        partition = NO_PARTITION
        if wanted is not None and wanted[row] is not None:
            partition = wanted[row]
            if not 0 <= partition < partitions:
                raise IndexError(row)
        elif hashes is not None and hashes[row] >= 0:
            partition = hashes[row] % partitions
        groups.setdefault(partition, array("i")).append(row)
    return [(partition, memoryview(groups[partition])) for partition in sorted(groups)]
