"""The entry encoder's inner loop, written for the interpreter, and the rules that it shares with the compiled one.

The payload of a batch, before it is compressed (Pulsar binary protocol, Batch messages)::

    ( u32 size  SingleMessageMetadata  payload_size bytes ) x num_messages_in_batch

What becomes of a row, the same in both implementations:

- ``value`` NULL is a tombstone (``null_value``). A ``key`` of text is written as it is, a binary one in base64 with
  ``partition_key_b64_encoded`` set, as the Java client's ``key`` and ``keyBytes``; NULL is no key.
- Times are cut to milliseconds. An event time is to be after 1970-01-01 00:00:00.000, which on the wire means none.
- A property has a value; properties keep their order.
- Each message carries its own sequence id, counted up from that of its batch's first one (as the Java client does).

A row that cannot be in a batch is left to who asked, who makes a message of its own of it, or an error: one with
``deliver_at``, one larger than a batch may be, and one that breaks a rule.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from spark_mq_source.core.columns import (
    is_text_or_binary,
)
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.varint import encode_varint
from spark_mq_source.pulsar.payload.columns import COLUMNS

# Why `BatchPayload.append` stopped.
TAKEN: Final = 0
"""All rows are in."""
FULL: Final = 1
"""The row does not fit, or has another key."""
ALONE: Final = 2
"""The row cannot be in a batch."""

HEAD_ROOM_BYTES: Final = 512
"""What `BatchPayload.take` can put before a payload without copying it."""

JAVA_STRING_HASH: Final = 0
MURMUR3_32_HASH: Final = 1

NO_PARTITION: Final = -1
"""Of a row without key and partition: any will do."""

_INT_MAX: Final = 0x7FFFFFFF
_UINT32: Final = 0xFFFFFFFF
_UINT64: Final = 1 << 64
_MICROSECONDS_A_MS: Final = 1000


class Row(NamedTuple):
    """One row, as it goes into a message.

    Attributes:
        value: None for a tombstone.
        key: as on the wire, in base64 where it was binary; None for none.
        is_base64: whether it was.
        event_time_ms: None for none.
        deliver_at_ms: None for at once.
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
        """Whether it breaks no rule."""
        return (self.event_time_ms is None or self.event_time_ms > 0) and all(v is not None for _, v in self.properties)


class RowSource:
    """The rows of one RecordBatch, ready to be taken by `BatchPayload.append`. It keeps the batch alive.

    Raises:
        OptionError: a column is unknown or of a type that cannot be written, or there is no value.
    """

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch
        self.columns = bind_columns(batch)
        self.rows = batch.num_rows
        is_key_binary = "key" in self.columns and pa.types.is_binary(self.columns["key"].type)
        self._cells = {name: _cells_of(column) for name, column in self.columns.items()}
        if is_key_binary:
            self._cells["key"] = [None if key is None else base64.b64encode(key) for key in self._cells["key"]]
        self._is_base64 = is_key_binary

    def row(self, index: int) -> Row:
        """The row at `index`."""
        cells = self._cells
        key = cells["key"][index] if "key" in cells else None
        return Row(
            cells["value"][index],
            key,
            self._is_base64 and key is not None,
            cells["ordering_key"][index] if "ordering_key" in cells else None,
            cells["event_time"][index] if "event_time" in cells else None,
            cells["deliver_at"][index] if "deliver_at" in cells else None,
            (cells["properties"][index] or ()) if "properties" in cells else (),
        )


def bind_columns(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns that go into messages, checked.

    Raises:
        OptionError: see `RowSource`.
    """
    COLUMNS.check_written(batch.schema)
    if not is_text_or_binary(batch.schema.field("value").type):
        raise OptionError("column value: a struct becomes JSON before it comes here (valueFormat=json)")
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return {name: column for name, column in columns if name not in {"topic", "partition"}}


def row_of(columns: Mapping[str, pa.Array], index: int) -> Row:
    """One row of the columns; for the few that are not in a batch."""
    one = RowSource(pa.RecordBatch.from_arrays([c.slice(index, 1) for c in columns.values()], names=list(columns)))
    return one.row(0)


def _cells_of(column: pa.Array) -> list[Any]:
    type_ = column.type
    if pa.types.is_string(type_):
        return column.view(pa.binary()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(type_):
        times = column.view(pa.int64()).to_pylist()
        return [None if time is None else time // _MICROSECONDS_A_MS for time in times]
    if pa.types.is_map(type_):
        rows = column.to_pylist()
        return [row and [(key.encode(), None if item is None else item.encode()) for key, item in row] for row in rows]
    return column.to_pylist()  # type: ignore[no-any-return]


class BatchPayload:
    """The payload of a batch under construction.

    Args:
        max_bytes: what it may hold.
        max_rows: how many messages.
        by_key: whether all of them have one ordering key, or, where they have none, one key.

    Attributes:
        rows: so far.
        nbytes: so far.
        stop: why the last `append` came to its end.
        first: of the first row, its key, whether that is in base64, and its ordering key.
    """

    def __init__(self, *, max_bytes: int, max_rows: int, by_key: bool) -> None:
        self._max_bytes = max_bytes
        self._max_rows = max_rows
        self._by_key = by_key
        self._data = bytearray()
        self._start_over()

    def _start_over(self) -> None:
        self.rows = 0
        self.nbytes = 0
        self.stop = TAKEN
        self.first: tuple[bytes | None, bool, bytes | None] = (None, False, None)

    def append(
        self, source: RowSource, order: memoryview | array[int] | None, begin: int, end: int, sequence_id: int
    ) -> int:
        """Adds rows until there is no room.

        Args:
            source: where they are.
            order: their indices in `source`; None for all, as they stand.
            begin: the first one's place in `order`.
            end: the place behind the last one's.
            sequence_id: of the first.

        Returns:
            The place of the first row that was not added; `stop` says why it was not.
        """
        data = self._data
        at = begin
        self.stop = TAKEN
        while at < end:
            row = source.row(at if order is None else order[at])
            single = _single_metadata(row, sequence_id + at - begin)
            size = 4 + len(single) + len(row.value or b"")
            # The first row's keys stand in the head of the entry once more.
            repeated = len(self.first[0] or b"") + len(self.first[2] or b"")
            own = len(row.key or b"") + len(row.ordering_key or b"")
            if row.deliver_at_ms is not None or not row.is_writable or size + own > self._max_bytes:
                self.stop = ALONE
                break
            if self.rows:
                if self.rows >= self._max_rows or self.nbytes + size + repeated > self._max_bytes:
                    self.stop = FULL
                    break
                if self._by_key and _dispatch_key(row.key, row.ordering_key) != _dispatch_key(
                    self.first[0], self.first[2]
                ):
                    self.stop = FULL
                    break
            else:
                self.first = (row.key, row.is_base64, row.ordering_key)
            data += len(single).to_bytes(4, "big")
            data += single
            data += row.value or b""
            self.rows += 1
            self.nbytes += size
            at += 1
        return at

    def view(self) -> memoryview:
        """The payload so far; to be released before the next `append`."""
        return memoryview(self._data)

    def take(self, head: bytes) -> memoryview:
        """The payload behind `head`; starts over."""
        data = head + self._data
        self.clear()
        return memoryview(data)

    def clear(self) -> None:
        """Starts over."""
        self._data.clear()
        self._start_over()


def _dispatch_key(key: bytes | None, ordering_key: bytes | None) -> bytes | None:
    return key if ordering_key is None else ordering_key


def _single_metadata(row: Row, sequence_id: int) -> bytes:
    out = bytearray()
    for name, item in row.properties:
        if item is not None:
            pair = b"\x0a" + encode_varint(len(name)) + name + b"\x12" + encode_varint(len(item)) + item
            out += b"\x0a" + encode_varint(len(pair)) + pair
    if row.key is not None:
        out += b"\x12" + encode_varint(len(row.key)) + row.key
    out += b"\x18" + encode_varint(len(row.value or b""))
    if row.event_time_ms is not None:
        out += b"\x28" + encode_varint(row.event_time_ms)
    if row.is_base64:
        out += b"\x30\x01"
    if row.ordering_key is not None:
        out += b"\x3a" + encode_varint(len(row.ordering_key)) + row.ordering_key
    out += b"\x40" + encode_varint(sequence_id)
    if row.value is None:
        out += b"\x48\x01"
    return bytes(out)


def hashes_of(keys: pa.Array, hashing: int) -> array[int]:
    """The hash of each key, as the Java client's producer takes it to find a partition; -1 where there is no key.

    Args:
        keys: text, or binary: then the hash is that of its base64 (as the Java client's, seen on 4.0.8).
        hashing: `JAVA_STRING_HASH` or `MURMUR3_32_HASH`.

    Example:
        >>> hashes_of(pa.array(["a", None, "hello"]), JAVA_STRING_HASH).tolist()
        [97, -1, 99162322]
    """
    hash_of = _java_string_hash if hashing == JAVA_STRING_HASH else _murmur3_32
    texts = _cells_of(keys)
    if pa.types.is_binary(keys.type):
        texts = [None if text is None else base64.b64encode(text) for text in texts]
    return array("i", [-1 if text is None else hash_of(text) & _INT_MAX for text in texts])


def _java_string_hash(text: bytes) -> int:
    # String.hashCode: over UTF-16 units.
    units = array("H", text.decode().encode("utf-16-le"))
    result = 0
    for unit in units:
        result = (31 * result + unit) & _UINT32
    return result


def _murmur3_32(data: bytes) -> int:
    # MurmurHash3_x86_32, seed 0.
    result = 0
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        result ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        result = (result << 13 | result >> 19) & _UINT32
        result = (result * 5 + 0xE6546B64) & _UINT32
    if whole < len(data):
        result ^= _mixed(int.from_bytes(data[whole:], "little"))
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
    """Which rows go to which partition.

    Args:
        explicit: the column ``partition``, None where there is none; NULL where the key decides.
        hashes: of the keys, None where there are none; -1 where a row has no key.
        order: the indices of the rows in question; None for all.
        rows: how many rows there are in question.
        partitions: how many partitions the topic has.

    Returns:
        Partitions that get rows, in order, each with the indices of its rows, in order; `NO_PARTITION` comes first.

    Raises:
        IndexError: of a row whose partition does not exist; says its index.
    """
    wanted = None if explicit is None else explicit.to_pylist()
    groups: dict[int, array[int]] = {}
    for place in range(rows):
        row = place if order is None else order[place]
        partition = NO_PARTITION
        if wanted is not None and wanted[row] is not None:
            partition = wanted[row]
            if not 0 <= partition < partitions:
                raise IndexError(row)
        elif hashes is not None and hashes[row] >= 0:
            partition = hashes[row] % partitions
        groups.setdefault(partition, array("i")).append(row)
    return [(partition, memoryview(groups[partition])) for partition in sorted(groups)]
