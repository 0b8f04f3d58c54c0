"""The entry decoder's inner loop, written for the interpreter, and the rules that it shares with the compiled one.

An entry, as it follows the command in a MESSAGE frame (Pulsar binary protocol, Message commands)::

    [0x0e02  u32 size  BrokerEntryMetadata]  [0x0e01  u32 crc32c of all that follows]
    u32 size  MessageMetadata  payload

and the payload of a batch, once decompressed (Pulsar binary protocol, Batch messages)::

    ( u32 size  SingleMessageMetadata  payload_size bytes ) x num_messages_in_batch

All sizes are big-endian. The rules that decide what is corrupt, the same in both implementations:

- A protobuf field of a known number but another wire type is skipped like an unknown one; the last of several counts.
  Wire types 3, 4, 6 and 7, field number 0, a varint of more than ten bytes and a length past the end are corrupt.
- What protobuf calls required must be there: producer_name, sequence_id, publish_time; payload_size in a batch.
- Text is checked to be UTF-8, times to fit in microseconds, base64 to be base64, only where a column is built of it.
- A batch of n messages takes at least six bytes for each. Bytes after the last message are ignored.

Where a SingleMessageMetadata lacks event_time, sequence_id or the NULL flags, the entry's own count; its key, ordering
key and properties never fall back (as the Java client has it).
"""

from __future__ import annotations

import re
import struct
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import pyarrow as pa

from spark_mq_source.core._columns_python import Columns
from spark_mq_source.core.crc import crc32c
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf_fields import signed32, take_fields
from spark_mq_source.core.varint import take_varint

# What `open_entry` says about an entry, as a set of bits.
MARKER: Final = 1
ENCRYPTED: Final = 2
CHUNKED: Final = 4
BATCH: Final = 8
COMPRESSED: Final = 16


REMEDY: Final = "maxBatchBytes or maxMessageBytes"
"""The options to lower if a column overflows."""

MIN_SINGLE_BYTES: Final = 6
"""A u32 and the required payload_size: what a message of a batch takes at the very least."""

MAX_TIME_MS: Final = (2**63 - 1) // 1000
"""The latest (and, negative, the earliest) time that microseconds can say."""

_MAGIC_BROKER_METADATA: Final = b"\x0e\x02"
_MAGIC_CHECKSUM: Final = b"\x0e\x01"
_U32: Final = struct.Struct(">I")

# Java's decoder, which most consumers use, does without the padding and looks at no bit beyond the last byte.
_BASE64: Final = re.compile(rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}(?:==)?|[A-Za-z0-9+/]{3}=?)?")

# How the clients write nearly every message of a batch, after its key: payload_size, and a sequence_id or none.
_USUAL_BYTES: Final = rb"\x18([\x80-\xff]{0,9}[\x00-\x7f])(?:\x40([\x80-\xff]{0,9}[\x00-\x7f]))?"
_USUAL: Final = re.compile(_USUAL_BYTES)
_USUAL_HEAD: Final = re.compile(rb"\x00{3}[\x00-\x7f]" + _USUAL_BYTES)


class _Single(NamedTuple):
    """A SingleMessageMetadata; None where a field is absent."""

    payload_size: int
    compacted_out: bool
    null_value: bool | None
    null_partition_key: bool | None
    partition_key: bytes | None
    is_base64: bool
    ordering_key: bytes | None
    event_time: int | None
    sequence_id: int | None
    properties: tuple[bytes, ...]


class _Rest(NamedTuple):
    """A batch, and which of its messages comes next: its index, and where it begins."""

    data: bytes
    ledger_id: int
    entry_id: int
    ack_set: Sequence[int]
    first_index: int
    last_index: int
    next_index: int
    at: int


class EntryColumns(Columns):
    """Parses entries and collects their rows.

    One entry at a time: `open_entry` parses what is around the payload, then at most one of `append_batch` and
    `append_single` adds its rows: all of them, or none and an error. It never looks at a byte outside what it is given.
    A batch of more than `max_rows` messages is added in parts, by `append_rest`, once all of it is known to be sound.

    Attributes:
        unfinished: whether messages of the entry opened last wait for `append_rest`.
        num_messages: of the entry opened last: how many messages it says it holds; 1 where it is no batch.
        compression: its CompressionType, a number.
        uncompressed_size: its announced size in bytes; may be wrong, and negative.
        uuid: its chunk fields.
        chunk_id: 〃
        num_chunks: 〃
        total_chunk_bytes: 〃
        redelivery_count: of the rows that are added from now on; set by who opens entries.
    """

    def __init__(
        self, schema: pa.Schema, *, topic: str, partition: int, max_repeated_bytes: int, max_rows: int
    ) -> None:
        super().__init__(schema, {"topic": topic, "partition": partition}, REMEDY)
        self._max_rows = max_rows
        self._max_repeated_bytes = max_repeated_bytes
        self.redelivery_count = 0
        self._forget_entry()

    def _forget_entry(self) -> None:
        self._rest: _Rest | None = None
        self.num_messages = 1
        self.compression = self.uncompressed_size = 0
        self.uuid = b""
        self.chunk_id = self.num_chunks = self.total_chunk_bytes = 0
        self._payload: bytes = b""
        self._broker_time: int | None = None
        self._broker_index: int | None = None
        self._producer_name: bytes | None = None
        self._sequence_id: int | None = None
        self._publish_time: int | None = None
        self._event_time = 0
        self._replicated_from: bytes | None = None
        self._schema_version: bytes | None = None
        self._key: bytes | None = None
        self._is_base64 = False
        self._ordering_key: bytes | None = None
        self._null_value = False
        self._null_key = False
        self._properties: tuple[bytes, ...] = ()
        self._compacted: set[int] = set()

    @property
    def unfinished(self) -> bool:
        return self._rest is not None

    def payload(self) -> memoryview:
        """The opened entry's payload, as it came: compressed, encrypted or a chunk of one."""
        return memoryview(self._payload)

    def open_entry(self, body: bytes | bytearray | memoryview, verify_checksum: bool) -> int:
        """Parse an entry up to its payload.

        Args:
            body: everything in the MESSAGE frame after the command.
            verify_checksum: whether to compute the CRC32C; entries without one are accepted either way.

        Returns:
            Bits of `MARKER`, `ENCRYPTED`, `CHUNKED`, `BATCH` and `COMPRESSED`.

        Raises:
            CorruptMessageError: the checksum does not match, or the entry is not an entry.
        """
        self._forget_entry()
        data = bytes(body)
        at = 0
        if data[:2] == _MAGIC_BROKER_METADATA:
            start, at = _sized(data, 2, "broker entry metadata")
            self._parse_broker_metadata(data, start, at)
        if data[at : at + 2] == _MAGIC_CHECKSUM:
            if len(data) - at < 6:
                raise CorruptMessageError("the entry ends within its checksum")
            announced = _U32.unpack_from(data, at + 2)[0]
            at += 6
            if verify_checksum and (computed := crc32c(memoryview(data)[at:])) != announced:
                raise checksum_mismatch(announced, computed)
        start, at = _sized(data, at, "message metadata")
        flags = self._parse_metadata(data, start, at)
        self._payload = data[at:]
        return flags

    def _parse_broker_metadata(self, data: bytes, start: int, end: int) -> None:
        for tag, value, _stop in take_fields(data, start, end):
            if tag == 0x08:
                self._broker_time = _signed(value)
            elif tag == 0x10:
                self._broker_index = _signed(value)

    def _parse_metadata(self, data: bytes, start: int, end: int) -> int:
        flags = 0
        properties: list[bytes] = []
        for tag, value, stop in take_fields(data, start, end):
            match tag:
                case 0x0A:
                    self._producer_name = data[value:stop]
                case 0x10:
                    self._sequence_id = _signed(value)
                case 0x18:
                    self._publish_time = _signed(value)
                case 0x22:
                    properties.append(data[value:stop])
                case 0x2A:
                    self._replicated_from = data[value:stop]
                case 0x32:
                    self._key = data[value:stop]
                case 0x40:
                    self.compression = signed32(value)
                case 0x48:
                    self.uncompressed_size = value & 0xFFFFFFFF
                case 0x58:
                    self.num_messages = signed32(value)
                    flags |= BATCH
                case 0x60:
                    self._event_time = _signed(value)
                case 0x6A:
                    flags |= ENCRYPTED
                case 0x82:
                    self._schema_version = data[value:stop]
                case 0x88:
                    self._is_base64 = value != 0
                case 0x92:
                    self._ordering_key = data[value:stop]
                case 0xA0:
                    flags |= MARKER
                case 0xC8:
                    self._null_value = value != 0
                case 0xD2:
                    self.uuid = data[value:stop]
                case 0xD8:
                    self.num_chunks = signed32(value)
                case 0xE0:
                    self.total_chunk_bytes = signed32(value)
                case 0xE8:
                    self.chunk_id = signed32(value)
                case 0xF0:
                    self._null_key = value != 0
                case 0xF8:
                    self._compacted.add(signed32(value))
                case 0xFA:
                    at = value
                    while at < stop:
                        index, at = take_varint(data, at, stop)
                        self._compacted.add(signed32(index))
        if self._producer_name is None or self._sequence_id is None or self._publish_time is None:
            raise CorruptMessageError("the message metadata lacks a required field")
        self._properties = tuple(properties)
        if self.num_chunks > 1:
            # A chunked message is never a batch; the Java client looks at the chunks first as well.
            flags = (flags | CHUNKED) & ~BATCH
        if not flags & BATCH:
            self.num_messages = 1
        if self.compression:
            flags |= COMPRESSED
        return flags

    def append_single(self, payload: bytes | bytearray | memoryview | None, ledger_id: int, entry_id: int) -> int:
        """Add the opened entry as one row, with batch index -1.

        Args:
            payload: its value; None for the payload as it came.
            ledger_id: of the entry.
            entry_id: of the entry.

        Returns:
            1.

        Raises:
            CorruptMessageError: nothing was added; see the module's rules.
            UnsupportedFeatureError: nothing was added; a column would pass 2 GiB.
        """
        value: bytes | None = self._payload if payload is None else bytes(payload)
        single = _Single(
            0,
            compacted_out=False,
            null_value=self._null_value,
            null_partition_key=self._null_key,
            partition_key=self._key,
            is_base64=self._is_base64,
            ordering_key=self._ordering_key,
            event_time=self._event_time,
            sequence_id=self._sequence_id,
            properties=self._properties,
        )
        return self._append(ledger_id, entry_id, [-1], [value], [single], [single])

    def append_batch(
        self,
        payload: bytes | bytearray | memoryview | None,
        ledger_id: int,
        entry_id: int,
        ack_set: Sequence[int],
        first_index: int,
        last_index: int,
    ) -> int:
        """Add the opened entry's messages, each with its index in the batch.

        Args:
            payload: the batch, decompressed; None for the payload as it came.
            ledger_id: of the entry.
            entry_id: of the entry.
            ack_set: 64-bit words, least significant bit first: a cleared bit is a message acknowledged, which is not
                added; empty where none is.
            first_index: messages before are not added.
            last_index: messages after are not added.

        Returns:
            The number of rows added: of a batch that is `unfinished` then, those of its first messages.

        Raises:
            CorruptMessageError: nothing was added; see the module's rules.
            UnsupportedFeatureError: nothing was added; a column would pass 2 GiB.
        """
        data = self._payload if payload is None else bytes(payload)
        end = len(data)
        count = self.num_messages
        if count <= 0 or count > end // MIN_SINGLE_BYTES:
            raise CorruptMessageError(f"{end} bytes cannot hold the batch of {count} messages that was announced")
        repeated = {
            "producer_name": self._producer_name,
            "schema_version": self._schema_version,
            "replicated_from": self._replicated_from,
        }
        for name, cell in repeated.items():
            # Of all messages, in however many parts their rows come.
            size = len(cell or b"") * count
            if name in self._cells and size > max(self._max_repeated_bytes, 16 * len(self._payload)):
                raise too_many_repetitions(name, len(cell or b""), count)
        part = _Rest(data, ledger_id, entry_id, ack_set, first_index, last_index, 0, 0)
        if count <= self._max_rows:
            return self._append_part(part, count)[0]
        checked: _Rest | None = part
        while checked is not None:
            checked = self._append_part(checked, self._max_rows, adds=False)[1]
        self._rest = part
        return self.append_rest()

    def append_rest(self) -> int:
        """Add the next messages of a batch that is `unfinished`, `max_rows` at most.

        Returns:
            The number of rows added, of messages that are all left out none.
        """
        if self._rest is None:
            raise RuntimeError("no batch is unfinished")
        rows, self._rest = self._append_part(self._rest, self._max_rows)
        return rows

    def _append_part(self, part: _Rest, max_rows: int, *, adds: bool = True) -> tuple[int, _Rest | None]:
        """The rows added of the next messages, and what is left of the batch."""
        begin, count = part.next_index, min(max_rows, self.num_messages - part.next_index)
        ack_set, first_index, last_index = part.ack_set, part.first_index, part.last_index
        indices: Sequence[int] = range(begin, begin + count)
        if ack_set or self._compacted or first_index > begin or last_index < begin + count - 1:
            indices = [index for index in indices if self._is_wanted(index, ack_set, first_index, last_index)]
        values, singles, distinct, at = self._walk(part.data, part.at, begin, count)
        if len(indices) < count or any(single.compacted_out for single in distinct):
            indices = [index for index in indices if not singles[index - begin].compacted_out]
            values = [values[index - begin] for index in indices]
            singles = [singles[index - begin] for index in indices]
        rows = self._append(part.ledger_id, part.entry_id, indices, values, singles, distinct, adds=adds)
        left = begin + count < self.num_messages
        return rows, part._replace(next_index=begin + count, at=at) if left else None

    def _walk(
        self, data: bytes, at: int, begin: int, count: int
    ) -> tuple[list[bytes | None], list[_Single], list[_Single], int]:
        """Messages of a batch: their payloads, what is said about them, the latter without repetitions, and the end.

        Messages about which the columns asked for need to know nothing but their size, share one `_Single`.

        Raises:
            CorruptMessageError: see the module's rules.
        """
        end = len(data)
        values: list[bytes | None] = []
        singles: list[_Single] = []
        distinct: list[_Single] = []
        add_value, add_single, unpack, match_head = values.append, singles.append, _U32.unpack_from, _USUAL_HEAD.match
        # By the bytes of payload_size, where nothing else is said that a column asked for would show.
        shared: dict[bytes, _Single] = {}
        shares = "sequence_id" not in self._cells
        index = begin
        try:
            for index in range(begin, begin + count):  # noqa: B007 - the error names it
                head = match_head(data, at)
                if head is not None and (stop := head.end()) - at - 4 == data[at + 3]:
                    start = at + 4
                    single = shared.get(head[1])
                else:
                    if end - at < 4:
                        raise _cut_off()
                    start = at + 4
                    stop = start + unpack(data, at)[0]
                    if stop > end:
                        raise _cut_off()
                    head = single = None
                if single is None:
                    single = _parse_single(data, start, stop)
                    distinct.append(single)
                    if head is not None and shares:
                        shared[head[1]] = single
                size = single.payload_size
                at = stop + size
                if at > end or size < 0:
                    raise _cut_off()
                add_value(data[stop:at])
                add_single(single)
        except CorruptMessageError as error:
            raise error.within(f"batch index {index}") from None
        return values, singles, distinct, at

    def _is_wanted(self, index: int, ack_set: Sequence[int], first_index: int, last_index: int) -> bool:
        if index in self._compacted or not first_index <= index <= last_index:
            return False
        return not ack_set or (index >> 6 < len(ack_set) and bool(ack_set[index >> 6] >> (index & 63) & 1))

    def _append(
        self,
        ledger_id: int,
        entry_id: int,
        indices: Sequence[int],
        values: list[bytes | None],
        singles: list[_Single],
        distinct: list[_Single],
        *,
        adds: bool = True,
    ) -> int:
        """Build every column's new cells first, then add them all, unless they are only to be checked.

        Most batches say little about their messages: `distinct`, which has each of `singles`, tells quickly what no
        message has.
        """
        rows = len(values)
        if not rows:
            return 0
        added: dict[str, Sequence[Any]] = {}
        for name in self._cells:
            match name:
                case "value":
                    if self._null_value or any(s.null_value is not None for s in distinct):
                        values = [
                            None if (self._null_value if s.null_value is None else s.null_value) else value
                            for value, s in zip(values, singles, strict=True)
                        ]
                    added[name] = values
                case "key":
                    has_keys = any(s.partition_key is not None for s in distinct)
                    added[name] = self._keys(indices, singles) if has_keys else [None] * rows
                case "ordering_key":
                    added[name] = [s.ordering_key for s in singles]
                case "properties":
                    has_properties = any(s.properties for s in distinct)
                    added[name] = _property_rows(indices, singles) if has_properties else [{}] * rows
                case "publish_time":
                    added[name] = [_time_us(self._publish_time, name)] * rows
                case "event_time":
                    default = self._event_time
                    if any(s.event_time is not None for s in distinct):
                        times = [default if s.event_time is None else s.event_time for s in singles]
                        added[name] = [_time_us(time_ms, name) if time_ms else None for time_ms in times]
                    else:
                        added[name] = [_time_us(default, name) if default else None] * rows
                case "sequence_id":
                    default = self._sequence_id or 0
                    added[name] = [default if s.sequence_id is None else s.sequence_id for s in singles]
                case "producer_name":
                    added[name] = self._repeated(name, self._producer_name, rows)
                case "schema_version":
                    added[name] = self._repeated(name, self._schema_version, rows)
                case "replicated_from":
                    added[name] = self._repeated(name, self._replicated_from, rows)
                case "broker_publish_time":
                    added[name] = [_time_us(self._broker_time, name)] * rows
                case "broker_index":
                    if self._broker_index is None:
                        added[name] = [None] * rows
                    else:
                        # The broker counts to the batch's last message; what is one row has that number as it is.
                        last = self.num_messages - 1
                        added[name] = [
                            _signed(self._broker_index - (last - index if index >= 0 else 0) & 0xFFFFFFFFFFFFFFFF)
                            for index in indices
                        ]
                case "redelivery_count":
                    added[name] = [self.redelivery_count] * rows
                case "message_id.ledger_id":
                    added[name] = [ledger_id] * rows
                case "message_id.entry_id":
                    added[name] = [entry_id] * rows
                case "message_id.batch_index":
                    added[name] = indices
        for name in ("key", "value"):
            if name in self._texts:
                _check_utf8(added[name], name, indices)
        sizes = self._measure(added)
        if adds:
            self._extend(rows, added, sizes)
        return rows if adds else 0

    def _keys(self, indices: Sequence[int], singles: list[_Single]) -> list[bytes | None]:
        default = self._null_key
        keys: list[bytes | None] = []
        for index, single in zip(indices, singles, strict=True):
            key = single.partition_key
            if key is not None:
                is_null = default if single.null_partition_key is None else single.null_partition_key
                if is_null:
                    key = None
                elif single.is_base64:
                    if _BASE64.fullmatch(key) is None:
                        raise _of_row("the key is not base64", index)
                    key = a2b_base64(key.rstrip(b"=") + b"=" * (-len(key.rstrip(b"=")) % 4))
            keys.append(key)
        return keys

    def _repeated(self, name: str, cell: bytes | None, rows: int) -> Sequence[bytes | None]:
        if cell is not None and name != "schema_version":
            _check_utf8([cell], name, [-1])
        return [cell] * rows

    def append_null(self, ledger_id: int, entry_id: int) -> int:
        """Add a row of which only topic, partition and message id (batch index -1) are known, for a corrupt entry."""
        added: dict[str, list[Any]] = {name: [{} if name in self._maps else None] for name in self._cells}
        if "message_id.entry_id" in added:
            added["message_id.ledger_id"], added["message_id.entry_id"] = [ledger_id], [entry_id]
            added["message_id.batch_index"] = [-1]
        self._extend(1, added, {})
        return 1


def checksum_mismatch(announced: int, computed: int) -> CorruptMessageError:
    """The error for an entry whose bytes are not those the producer sent."""
    return CorruptMessageError(
        f"the checksum does not match: CRC32C {announced:#010x} announced, {computed:#010x} found"
    )


def too_many_repetitions(name: str, size: int, rows: int) -> CorruptMessageError:
    """The error for a batch made to explode: a huge producer name, say, that every row would repeat."""
    return CorruptMessageError(
        f"a {name} of {size} bytes for each of {rows} messages is more than maxMessageBytes allows"
    )


def _cut_off() -> CorruptMessageError:
    return CorruptMessageError("the batch ends within this message")


def _of_row(sentence: str, index: int) -> CorruptMessageError:
    return CorruptMessageError(sentence if index < 0 else f"batch index {index}: {sentence}")


def _check_utf8(cells: Sequence[bytes | None], name: str, indices: Sequence[int]) -> None:
    for row, cell in enumerate(cells):
        if cell is not None and not cell.isascii():
            try:
                cell.decode()
            except UnicodeDecodeError as error:
                sentence = f"the {name} is not UTF-8 (byte {error.start})"
                raise _of_row(sentence, indices[row]) from None


def _time_us(time_ms: int | None, name: str) -> int | None:
    if time_ms is None:
        return None
    if not -MAX_TIME_MS <= time_ms <= MAX_TIME_MS:
        raise CorruptMessageError(f"the {name} of {time_ms} ms is beyond what a timestamp can hold")
    return time_ms * 1000


def _property_rows(indices: Sequence[int], singles: list[_Single]) -> list[dict[bytes, bytes]]:
    rows: list[dict[bytes, bytes]] = []
    for index, single in zip(indices, singles, strict=True):
        row: dict[bytes, bytes] = {}
        for pair in single.properties:
            try:
                key = value = None
                for tag, start, stop in take_fields(pair, 0, len(pair)):
                    if tag == 0x0A:
                        key = pair[start:stop]
                    elif tag == 0x12:
                        value = pair[start:stop]
            except CorruptMessageError as error:
                raise _of_row(str(error), index) from None
            if key is None or value is None:
                raise _of_row("a property lacks its key or its value", index)
            _check_utf8([key, value], "properties", [index, index])
            row[key] = value
        rows.append(row)
    return rows


def _parse_single(data: bytes, start: int, end: int) -> _Single:
    """The SingleMessageMetadata at `start`.

    Raises:
        CorruptMessageError: see the module's rules.
    """
    # Nearly every message has a short key or none, a size and a sequence id or none; the rest takes the long way.
    key: bytes | None = None
    at = start
    if end - at > 2 and data[at] == 0x12 and (size := data[at + 1]) < 0x80:
        at += 2 + size
        key = data[start + 2 : at]
    usual = _USUAL.fullmatch(data, at, end) if at < end else None
    if usual is not None:
        size_bytes, sequence_bytes = usual.groups()
        return _new_single(
            _Single,
            (
                signed32(_small_varint(size_bytes)),
                False,
                None,
                None,
                key,
                False,
                None,
                None,
                None if sequence_bytes is None else _signed(_small_varint(sequence_bytes)),
                (),
            ),
        )
    return _parse_unusual_single(data, start, end)


_new_single = cast("Callable[[type[_Single], tuple[Any, ...]], _Single]", tuple.__new__)


def _small_varint(data: bytes) -> int:
    if len(data) == 1:
        return data[0]
    if len(data) == 2:
        return data[0] & 0x7F | data[1] << 7
    return take_varint(data, 0, len(data))[0]


def _parse_unusual_single(data: bytes, start: int, end: int) -> _Single:
    payload_size: int | None = None
    compacted_out = is_base64 = False
    null_value: bool | None = None
    null_key: bool | None = None
    key: bytes | None = None
    ordering_key: bytes | None = None
    event_time: int | None = None
    sequence_id: int | None = None
    properties: list[bytes] = []
    for tag, value, stop in take_fields(data, start, end):
        if tag == 0x18:
            payload_size = signed32(value)
        elif tag == 0x40:
            sequence_id = _signed(value)
        elif tag == 0x12:
            key = data[value:stop]
        elif tag == 0x0A:
            properties.append(data[value:stop])
        elif tag == 0x28:
            event_time = _signed(value)
        elif tag == 0x20:
            compacted_out = value != 0
        elif tag == 0x30:
            is_base64 = value != 0
        elif tag == 0x3A:
            ordering_key = data[value:stop]
        elif tag == 0x48:
            null_value = value != 0
        elif tag == 0x50:
            null_key = value != 0
    if payload_size is None:
        raise CorruptMessageError("the message lacks its payload_size")
    return _Single(
        payload_size,
        compacted_out,
        null_value,
        null_key,
        key,
        is_base64,
        ordering_key,
        event_time,
        sequence_id,
        tuple(properties),
    )


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _sized(data: bytes, at: int, what: str) -> tuple[int, int]:
    """Where the u32-prefixed part at `at` begins and ends.

    Raises:
        CorruptMessageError: it reaches past the end of `data`.
    """
    if len(data) - at < 4:
        raise CorruptMessageError(f"the entry ends within its {what}")
    start = at + 4
    end = start + _U32.unpack_from(data, at)[0]
    if end > len(data):
        raise CorruptMessageError(f"the entry ends within its {what}")
    return start, end
