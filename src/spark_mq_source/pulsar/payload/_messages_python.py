"""The specification of the entry decoder's inner loop, which runs if no compiled one is installed.

An entry, as it follows the command in a MESSAGE frame (Pulsar binary protocol, Message commands)::

    [0x0e02  u32 size  BrokerEntryMetadata]  [0x0e01  u32 crc32c of all that follows]
    u32 size  MessageMetadata  payload

and the payload of a batch, once decompressed (Pulsar binary protocol, Batch messages)::

    ( u32 size  SingleMessageMetadata  payload_size bytes ) x num_messages_in_batch

All sizes are big-endian. The rules for corrupt messages, the same in both implementations:

- A protobuf field of a known number but another wire type is skipped like an unknown one; the last of several counts.
  Wire types 3, 4, 6 and 7, field number 0, a varint of more than ten bytes and a length past the end are corrupt.
- The fields that protobuf requires must exist: producer_name, sequence_id, publish_time; payload_size in a batch.
- Text must be UTF-8, times fit in microseconds, and base64 be base64, if a column is built of it.
- A batch of n messages takes at least six bytes for each. Bytes after the last message are ignored.

If a SingleMessageMetadata lacks event_time, sequence_id or the NULL flags, the entry's own count; its key, ordering
key and properties never fall back (as the Java client has it).
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from crc32c import crc32c

from spark_mq_source.core._columns_python import Columns
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf import signed64
from spark_mq_source.core.protobuf_fields import signed32, take_fields
from spark_mq_source.core.varint import take_varint
from spark_mq_source.pulsar.payload.layout import (
    BATCH,
    CELL,
    CHUNKED,
    COMPRESSED,
    ENCRYPTED,
    ENTRY_COLUMNS,
    MARKER,
    MAX_TIME_MS,
    MIN_SINGLE_BYTES,
    REMEDY,
    TIME,
    checksum_mismatch,
    too_many_repetitions,
)
from spark_mq_source.pulsar.protocol.metadata import KINDS, TAGS
from spark_mq_source.pulsar.protocol.wire import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC

# Java's decoder, which most consumers use, accepts keys without padding and ignores the bits beyond the last byte.
_BASE64: Final = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")

_Message = dict[str, Any]
_Fields = Mapping[int, tuple[str, Callable[[Any], Any]]]
"""The name of a field, and its type: `list` for all of its values, else for the last one."""

_BROKER: Final[_Fields] = {0x08: ("broker_timestamp", signed64), 0x10: ("index", signed64)}
_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "bool": bool,
    "int32": signed32,
    "uint32": (0xFFFFFFFF).__and__,
    "int64": signed64,
    "uint64": signed64,
    "bytes": bytes,
    "message": list,
}
_METADATA: Final[_Fields] = {
    **{tag: (name, _CONVERSIONS[KINDS[name]]) for name, tag in TAGS.items()},
    TAGS["compacted_batch_indexes"]: ("compacted_indexes", list),
    TAGS["compacted_batch_indexes"] | 2: ("packed_compacted_indexes", list),
}
_SINGLE: Final[_Fields] = {
    0x0A: ("properties", list),
    0x12: ("partition_key", bytes),
    0x18: ("payload_size", signed32),
    0x20: ("compacted_out", bool),
    0x28: ("event_time", signed64),
    0x30: ("partition_key_b64_encoded", bool),
    0x3A: ("ordering_key", bytes),
    0x40: ("sequence_id", signed64),
    0x48: ("null_value", bool),
    0x50: ("null_partition_key", bool),
}
_PAIR: Final[_Fields] = {0x0A: ("key", bytes), 0x12: ("value", bytes)}

_INHERITED: Final = ("event_time", "sequence_id", "null_value", "null_partition_key")
"""The fields that a message of a batch takes from its entry."""

_REPEATED: Final = tuple(name for name, kind in ENTRY_COLUMNS.items() if kind == CELL)
"""The columns that repeat bytes of the entry in each row."""

_TIMES: Final = (
    *(name for name, kind in ENTRY_COLUMNS.items() if kind == TIME),
    "event_time",
    "broker_publish_time",
)
_CUT_OFF: Final = "the batch ends within this message"


class EntryColumns(Columns):
    """Parser of entries, which collects their rows.

    One entry at a time: `open_entry` parses the bytes around the payload, then one call of `append_batch` or
    `append_single` adds all of its rows, or none if it raises an error. It reads no byte beyond its arguments. A batch
    of more than `max_rows` messages is validated as a whole, and then added in parts, by `append_rest`.

    Attributes:
        num_messages: the number of messages that the opened entry announces; 1 if it is not a batch.
        compression: its CompressionType, a number.
        uncompressed_size: its announced size in bytes; may be wrong, and negative.
        uuid: its chunk fields.
        chunk_id: 〃
        num_chunks: 〃
        total_chunk_bytes: 〃
        redelivery_count: value for the rows that are added from now on; set by the caller.
    """

    def __init__(
        self, schema: pa.Schema, *, topic: str, partition: int, max_repeated_bytes: int, max_rows: int
    ) -> None:
        super().__init__(schema, {"topic": topic, "partition": partition}, REMEDY)
        self._max_rows = max_rows
        self._max_repeated_bytes = max_repeated_bytes
        self.redelivery_count = 0
        self._parts: deque[list[_Message]] = deque()

    @property
    def unfinished(self) -> bool:
        """True if messages of the opened entry wait for `append_rest`."""
        return bool(self._parts)

    def payload(self) -> memoryview:
        """Return the opened entry's payload: as sent (compressed, encrypted or a chunk), unless it was replaced."""
        return memoryview(self._payload)

    def replace_payload(self, payload: bytes | bytearray | memoryview) -> None:
        """Replace the opened entry's payload: by the decrypted or decompressed one, or by the whole chunked message."""
        self._payload = bytes(payload)

    def open_entry(self, body: bytes | bytearray | memoryview, verify_checksum: bool) -> int:
        """Parse an entry up to its payload.

        Args:
            body: everything in the MESSAGE frame after the command.
            verify_checksum: whether to compute the CRC32C; entries without one are accepted either way.

        Returns:
            Bits of `MARKER`, `ENCRYPTED`, `CHUNKED`, `BATCH` and `COMPRESSED`.

        Raises:
            CorruptMessageError: the checksum does not match, or the bytes are not an entry.
        """
        self._parts.clear()
        self._broker: _Message = {}
        data = bytes(body)
        at = 0
        if data[:2] == BROKER_METADATA_MAGIC:
            part, at = _sized(data, 2, "the entry ends within its broker entry metadata")
            self._broker = _parse(part, _BROKER)
        if data[at : at + 2] == CHECKSUM_MAGIC:
            if len(data) - at < 6:
                raise CorruptMessageError("the entry ends within its checksum")
            announced = int.from_bytes(data[at + 2 : at + 6], "big")
            at += 6
            if verify_checksum and (computed := crc32c(memoryview(data)[at:])) != announced:
                raise checksum_mismatch(announced, computed)
        part, at = _sized(data, at, "the entry ends within its message metadata")
        entry = self._entry = _parse(part, _METADATA)
        self._payload = data[at:]
        self._sent_bytes = len(self._payload)
        self._compacted = set(_indexes_of(entry))
        if not entry.keys() >= {"producer_name", "sequence_id", "publish_time"}:
            raise CorruptMessageError("the message metadata lacks a required field")
        self.compression, self.uncompressed_size = entry.get("compression", 0), entry.get("uncompressed_size", 0)
        self.uuid, self.chunk_id = entry.get("uuid", b""), entry.get("chunk_id", 0)
        self.num_chunks, self.total_chunk_bytes = (
            entry.get("num_chunks_from_msg", 0),
            entry.get("total_chunk_msg_size", 0),
        )
        # A chunked message is never a batch; the Java client looks at the chunks first as well.
        is_chunk = self.num_chunks > 1
        is_batch = "num_messages_in_batch" in entry and not is_chunk
        self.num_messages = entry["num_messages_in_batch"] if is_batch else 1
        flags = {
            MARKER: "marker_type" in entry,
            ENCRYPTED: "encryption_keys" in entry,
            CHUNKED: is_chunk,
            BATCH: is_batch,
            COMPRESSED: self.compression != 0,
        }
        return sum(flag for flag, is_set in flags.items() if is_set)

    def is_transactional(self) -> bool:
        """Return whether the opened entry belongs to a transaction; a marker, which ends one, does not."""
        return "txnid_least_bits" in self._entry and "marker_type" not in self._entry

    def append_single(self, ledger_id: int, entry_id: int) -> int:
        """Add the opened entry as one row, with batch index -1.

        Raises:
            CorruptMessageError: nothing was added; see the module's rules.
            UnsupportedFeatureError: nothing was added; a column would pass 2 GiB.
        """
        self._add([self._cells_of(self._entry, self._payload, -1) | self._common_cells(ledger_id, entry_id)])
        return 1

    def append_batch(
        self, ledger_id: int, entry_id: int, ack_set: Sequence[int], first_index: int, last_index: int
    ) -> int:
        """Add the opened entry's messages, and return how many: the first ones, if the batch is `unfinished` then.

        For the arguments see `EntryDecoder.decode`; errors are those of `append_single`.
        """
        data = self._payload
        count = self.num_messages
        if not 0 < count <= len(data) // MIN_SINGLE_BYTES:
            raise CorruptMessageError(f"{len(data)} bytes cannot hold the batch of {count} messages that was announced")
        for name in _REPEATED:
            size = len(self._entry.get(name, b""))
            if name in self._cells and size * count > max(self._max_repeated_bytes, 16 * self._sent_bytes):
                raise too_many_repetitions(name, size, count)
        parts: list[list[_Message]] = [[] for _ in range(0, count, self._max_rows)]
        inherited = {name: self._entry[name] for name in _INHERITED if name in self._entry}
        at = 0
        for index in range(count):
            is_acknowledged = ack_set and not (index >> 6 < len(ack_set) and ack_set[index >> 6] >> (index & 63) & 1)
            try:
                message, value, at = _message_at(data, at)
                is_compacted = index in self._compacted or message.get("compacted_out")
                if first_index <= index <= last_index and not is_acknowledged and not is_compacted:
                    parts[index // self._max_rows].append(self._cells_of(inherited | message, value, index))
            except CorruptMessageError as error:
                raise error.within(f"batch index {index}") from None
        if any(parts):
            common = self._common_cells(ledger_id, entry_id)
            for row in (row for part in parts for row in part):
                row.update(common)
        self._parts.extend(parts)
        return self.append_rest()

    def append_rest(self) -> int:
        """Add the next messages of a batch that is `unfinished`, `max_rows` at most, and return how many."""
        if not self._parts:
            raise RuntimeError("no batch is unfinished")
        rows = self._parts.popleft()
        self._add(rows)
        return len(rows)

    def append_null(self, ledger_id: int, entry_id: int) -> int:
        """Add a row for a corrupt entry: only topic, partition and message id (batch index -1) are known."""
        row: _Message = {name: {} if name in self._maps else None for name in self._cells}
        self._add([row | _message_id(ledger_id, entry_id) | {"message_id.batch_index": -1}])
        return 1

    def _cells_of(self, message: _Message, value: bytes, index: int) -> _Message:
        """Return the cells that differ from message to message."""
        broker_index = self._broker.get("index")
        if broker_index is not None and index >= 0:
            # The broker counts to the batch's last message.
            broker_index = signed64((broker_index - (self.num_messages - 1 - index)) % 2**64)
        key = None if message.get("null_partition_key") else message.get("partition_key")
        if "key" in self._cells and key is not None and message.get("partition_key_b64_encoded"):
            key = _decode_base64(key)
        return self._checked(
            {
                "value": None if message.get("null_value") else value,
                "key": key,
                "event_time": message.get("event_time") or None,
                "properties": _properties_of(message) if "properties" in self._cells else {},
                "sequence_id": message["sequence_id"],
                "ordering_key": message.get("ordering_key"),
                "broker_index": broker_index,
                "message_id.batch_index": index,
            }
        )

    def _common_cells(self, ledger_id: int, entry_id: int) -> _Message:
        cells = {
            "broker_publish_time": self._broker.get("broker_timestamp"),
            "redelivery_count": self.redelivery_count,
            **{name: self._entry.get(name) for name in ENTRY_COLUMNS},
        }
        return self._checked(cells) | _message_id(ledger_id, entry_id)

    def _checked(self, cells: _Message) -> _Message:
        """Check and convert the cells of columns that are wanted."""
        for name, cell in cells.items():
            if name in self._texts and cell is not None:
                _check_utf8(cell, name)
            elif name in _TIMES and name in self._cells and cell is not None:
                if not -MAX_TIME_MS <= cell <= MAX_TIME_MS:
                    raise CorruptMessageError(f"the {name} of {cell} ms is beyond what a timestamp can hold")
                cells[name] = cell * 1000
        return cells


def _message_at(data: bytes, at: int) -> tuple[_Message, bytes, int]:
    """Return the metadata, the value and the end of the message of a batch that begins at `at`."""
    head, start = _sized(data, at, _CUT_OFF)
    message = _parse(head, _SINGLE)
    if "payload_size" not in message:
        raise CorruptMessageError("the message lacks its payload_size")
    end = start + message["payload_size"]
    if not start <= end <= len(data):
        raise CorruptMessageError(_CUT_OFF)
    return message, data[start:end], end


def _message_id(ledger_id: int, entry_id: int) -> _Message:
    return {"message_id.ledger_id": ledger_id, "message_id.entry_id": entry_id}


def _parse(data: bytes, fields: _Fields) -> _Message:
    """Return the values of known fields that a protobuf message has."""
    found: _Message = {}
    for tag, value, stop in take_fields(data, 0, len(data)):
        if tag in fields:
            name, convert = fields[tag]
            content = data[value:stop] if tag & 7 == 2 else value
            if convert is list:
                found.setdefault(name, []).append(content)
            else:
                found[name] = convert(content)
    return found


def _indexes_of(entry: _Message) -> Iterator[int]:
    """Yield the indexes of messages that the broker compacted."""
    yield from map(signed32, entry.get("compacted_indexes", ()))
    for packed in entry.get("packed_compacted_indexes", ()):
        at = 0
        while at < len(packed):
            index, at = take_varint(packed, at, len(packed))
            yield signed32(index)


def _properties_of(message: _Message) -> dict[bytes, bytes]:
    properties: dict[bytes, bytes] = {}
    for data in message.get("properties", ()):
        pair = _parse(data, _PAIR)
        if len(pair) < len(_PAIR):
            raise CorruptMessageError("a property lacks its key or its value")
        for text in pair.values():
            _check_utf8(text, "properties")
        properties[pair["key"]] = pair["value"]
    return properties


def _decode_base64(key: bytes) -> bytes:
    if _BASE64.fullmatch(key) is None:
        raise CorruptMessageError("the key is not base64")
    digits = key.rstrip(b"=")
    return a2b_base64(digits + b"=" * (-len(digits) % 4))


def _check_utf8(text: bytes, name: str) -> None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        raise CorruptMessageError(f"the {name} is not UTF-8 (byte {error.start})") from None


def _sized(data: bytes, at: int, problem: str) -> tuple[bytes, int]:
    """Return the bytes after their size, a u32 at `at`, and their end.

    Raises:
        CorruptMessageError: they reach past the end of `data`; `problem` is its sentence.
    """
    start = at + 4
    end = start + int.from_bytes(data[at:start], "big")
    if max(start, end) > len(data):
        raise CorruptMessageError(problem)
    return data[start:end], end
