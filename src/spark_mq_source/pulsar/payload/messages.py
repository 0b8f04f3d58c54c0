"""Pulsar entries to Arrow RecordBatches, and back.

`EntryDecoder` decides what becomes of an entry: markers are dropped, encryption and corruption follow the options,
chunks are put together, payloads decompressed. The loop over bytes and rows is `EntryColumns`, of which there are two:
compiled (``_messages_native``) and, where no compiled one is installed, written for the interpreter
(``_messages_python``, which also states the rules of what is corrupt). Both give the same rows and the same errors.

`EntryEncoder` decides which rows share an entry, compresses, cuts what is too large into chunks and puts metadata and
checksum before it. The loop over rows and bytes is `BatchPayload`, of which there are two as well (``_encode_native``,
and ``_encode_python``, which states what becomes of a row).

``SPARK_MQ_SOURCE_IMPL=native`` or ``python`` in the environment asks for one; `implementation` tells which one runs.
"""

from __future__ import annotations

import logging
import uuid
from array import array
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from spark_mq_source.core.columns import CORRUPT, ERROR, SparseColumns, record_batch
from spark_mq_source.core.compression import compress, decompress
from spark_mq_source.core.crc import crc32c
from spark_mq_source.core.errors import (
    CorruptMessageError,
    EncryptedMessageError,
    UnsupportedFeatureError,
    UnwritableRowError,
)
from spark_mq_source.core.implementation import Implementation, name_of_all
from spark_mq_source.core.utf8 import check_texts
from spark_mq_source.pulsar.payload import _encode_python, _messages_python
from spark_mq_source.pulsar.payload.columns import COLUMNS, ENCRYPTION_CONTEXT
from spark_mq_source.pulsar.payload.encryption import encryption_context_of
from spark_mq_source.pulsar.payload.layout import (
    ALONE,
    BATCH,
    CHUNKED,
    COMPRESSED,
    ENCRYPTED,
    MARKER,
    TAKEN,
    Row,
    row_of,
)
from spark_mq_source.pulsar.protocol.commands import Send
from spark_mq_source.pulsar.protocol.metadata import MessageMetadata, encode_metadata
from spark_mq_source.pulsar.protocol.wire import CHECKSUM_MAGIC

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_INT32_MAX: Final = 2**31 - 1

WHOLE_ENTRY: Final = _INT32_MAX
"""The `last_index` that leaves no message of a batch out."""

_COMPRESSION_TYPES: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
"""The names of CompressionType, by number (Pulsar binary protocol, Message metadata)."""

_CHUNK_OVERHEAD_BYTES: Final = 512
"""The overhead that a message under assembly counts beside its bytes, so that empty chunks cannot pile up unnoticed."""

_REMEMBERED_MESSAGES: Final = 4096
"""The most complete, and the most dropped, chunked messages that are remembered."""

_MAX_REMEMBERED_UUID_BYTES: Final = 1024
"""So that remembering takes a few MiB at most. A uuid is the producer's name and a number."""

_SPARSE: Final = (ENCRYPTION_CONTEXT, ERROR, CORRUPT)
"""The columns that the loops leave out: few rows have something there."""

_decoding: Final = Implementation(_messages_python)
_encoding: Final = Implementation(_encode_python)

RowSource: TypeAlias = _encode_python.RowSource
"""The rows that `open_rows` returns."""


def implementation() -> str:
    """Return the loops of this process: ``native``, the compiled ones, or ``python`` if a twin of one runs.

    Example:
        >>> implementation() in ("native", "python")
        True
    """
    return name_of_all(_decoding, _encoding)


class OrphanChunk(NamedTuple):
    """A chunk without the ones before it: its message began before what was read, or was dropped to save memory."""

    uuid: bytes
    ledger_id: int
    entry_id: int
    chunk_id: int
    num_chunks: int
    first: tuple[int, int] | None
    """Ledger and entry of chunk 0, if the message was dropped."""


class _Pending:
    """A chunked message of which some chunks have arrived; `data` is None for one that is too large to assemble."""

    __slots__ = ("data", "last", "next_chunk_id", "num_chunks", "received_bytes", "start", "total_bytes")

    def __init__(self, num_chunks: int, total_bytes: int, start: tuple[int, int], *, fits: bool) -> None:
        self.num_chunks = num_chunks
        self.total_bytes = total_bytes
        self.start = self.last = start
        self.next_chunk_id = 0
        self.received_bytes = 0
        self.data = bytearray() if fits else None


class ChunkAssembly:
    """Puts chunked messages together, many at a time, within a fixed amount of memory.

    The chunks of one message carry the same uuid, and each is stored after the one before it. A message is the latest
    chunk 0 of a uuid and the chunks that follow it, which is also what the Java client delivers (ConsumerImpl
    ``processMessageChunk``, 3.0 and newer):

    - Chunk 0 at another position begins a new message: a producer that restarts under its old name counts its
      messages from where it was, so two messages may have the same uuid. What was there of the older one is dropped;
      it cannot become complete any more.
    - A chunk that was already taken is one that was delivered or sent again, and is ignored; the same holds for chunks
      of a message that is already complete.
    - A chunk ahead of the next one is ignored. The Java client drops the message here; but a producer whose chunk 1 was
      refused has sent chunk 2 already, and sends both again.

    Nothing tells that a message will never become complete. So when the messages under assembly need more memory than
    `max_bytes`, the one that has waited longest for its next chunk is dropped (the Java client drops the oldest one
    beyond ``maxPendingChunkedMessage``, or after ``expireTimeOfIncompleteChunkedMessage``). If that one was not
    abandoned after all, its last chunk becomes an `orphan`: the caller can `protect` it and read it again.

    Args:
        max_bytes: most bytes that the messages under assembly take together.
        topic: for the log.

    Attributes:
        orphan: set by the `add` that met one; whoever looks resets it to None.
        nbytes: what the messages under assembly take.
        dropped: how many messages were dropped before they were complete.

    Example:
        >>> chunks = ChunkAssembly(max_bytes=10_000)
        >>> chunks.add(b"p-0", 0, 2, 10, (7, 0), b"hello")
        >>> chunks.pending_start()
        (7, 0)
        >>> chunks.add(b"p-0", 1, 2, 10, (7, 1), b"world")
        bytearray(b'helloworld')
    """

    def __init__(self, *, max_bytes: int, topic: str = "") -> None:
        self._max_bytes = max_bytes
        self._topic = topic
        # In the order of the chunks that arrived last.
        self._pending: dict[bytes, _Pending] = {}
        self._completed: dict[bytes, tuple[int, int, tuple[int, int]]] = {}
        self._dropped: dict[bytes, tuple[int, int]] = {}
        self._protected: bytes | None = None
        self.nbytes = 0
        self.dropped = 0
        self.orphan: OrphanChunk | None = None

    def add(
        self,
        uuid: bytes,
        chunk_id: int,
        num_chunks: int,
        total_bytes: int,
        position: tuple[int, int],
        payload: bytes | memoryview,
    ) -> bytearray | None:
        """Return the whole message if this chunk completes one, else None.

        Args:
            uuid: what the chunks of one message have in common.
            chunk_id: from 0.
            num_chunks: of the message.
            total_bytes: of the message, as announced.
            position: ledger and entry of this chunk.
            payload: this chunk's bytes; copied.

        Raises:
            CorruptMessageError: the chunk contradicts itself or the ones before it.
            UnsupportedFeatureError: the message is complete, and larger than `max_bytes` by itself.
        """
        if not uuid or not 0 <= chunk_id < num_chunks or total_bytes < 0:
            raise CorruptMessageError(
                f"chunk {chunk_id} of {num_chunks} ({total_bytes} bytes in all, uuid {uuid!r}) is no chunk"
            )
        pending = self._pending.get(uuid)
        if chunk_id == 0:
            if pending is None or pending.start != position:
                pending = self._begin(uuid, num_chunks, total_bytes, position)
        elif pending is None or (pending.num_chunks, pending.total_bytes) != (num_chunks, total_bytes):
            # After a reconnect the last chunk of a complete message can come once more, and is an orphan then.
            completed = self._completed.get(uuid)
            if completed is None or completed[:2] != (num_chunks, total_bytes) or position <= completed[2]:
                self.orphan = OrphanChunk(uuid, *position, chunk_id, num_chunks, self._dropped.get(uuid))
            return None
        # After a reconnect the entries since chunk 0 come again; one that was passed over is passed over again.
        if chunk_id != pending.next_chunk_id or position < pending.last:
            return None
        # Before anything is changed, so that reading the chunk again tells whether it is stored like that.
        received_bytes = pending.received_bytes + len(payload)
        is_last = chunk_id == num_chunks - 1
        if received_bytes > total_bytes or (is_last and received_bytes != total_bytes):
            raise CorruptMessageError(
                f"{chunk_id + 1} of {num_chunks} chunks hold {received_bytes} bytes where {total_bytes} were announced "
                f"for all of them"
            )
        if not self._make_room(uuid, 0 if pending.data is None else len(payload)):
            self.orphan = OrphanChunk(uuid, *position, chunk_id, num_chunks, self._dropped.get(uuid))
            return None
        if pending.data is not None:
            pending.data += payload
            self.nbytes += len(payload)
        elif is_last:
            self._remove(uuid)
            raise self._too_large(pending)
        pending.received_bytes = received_bytes
        pending.next_chunk_id += 1
        pending.last = position
        # To the end: a message that grows is not abandoned.
        self._pending[uuid] = self._pending.pop(uuid)
        if not is_last:
            return None
        self._remove(uuid)
        _remember(self._completed, uuid, (num_chunks, total_bytes, position))
        return pending.data

    def protect(self, uuid: bytes) -> None:
        """Drop every other message before those of this uuid, until another uuid is protected."""
        self._protected = uuid
        # If chunk 0 is no longer found where it was, looking there again would not find it either.
        self._dropped.pop(uuid, None)

    def discard(self, uuid: bytes) -> None:
        """Drop a message if it is under assembly."""
        self._drop(uuid, "it is corrupt")

    def _begin(self, uuid: bytes, num_chunks: int, total_bytes: int, position: tuple[int, int]) -> _Pending:
        self._drop(uuid, "another one began under the same uuid")
        self._completed.pop(uuid, None)
        self._dropped.pop(uuid, None)
        overhead = len(uuid) + _CHUNK_OVERHEAD_BYTES
        # Known from the first chunk on, but an error only when the message is complete: an abandoned one is no reason
        # to stop.
        fits = total_bytes + overhead <= self._max_bytes
        pending = self._pending[uuid] = _Pending(num_chunks, total_bytes, position, fits=fits)
        self.nbytes += overhead
        return pending

    def _too_large(self, pending: _Pending) -> UnsupportedFeatureError:
        ledger_id, entry_id = pending.start
        return UnsupportedFeatureError(
            f"a chunked message of {pending.total_bytes} bytes, whose first chunk is {ledger_id}:{entry_id}, is larger "
            f"than maxPendingChunkBytes={self._max_bytes} allows: raise that option"
        )

    def _make_room(self, uuid: bytes, more_bytes: int) -> bool:
        """Drop messages until `more_bytes` fit; return whether `uuid` is still under assembly."""
        while self.nbytes + more_bytes > self._max_bytes:
            victim = next((other for other in self._pending if other not in (uuid, self._protected)), None)
            if victim is None:
                # By itself the message fits; beside the protected one it does not.
                if len(self._pending) > 1:
                    self._drop_for_now(uuid)
                return uuid in self._pending
            self._drop_for_now(victim)
        return True

    def _drop_for_now(self, uuid: bytes) -> None:
        _remember(self._dropped, uuid, self._pending[uuid].start)
        self._drop(uuid, "maxPendingChunkBytes is reached")

    def _drop(self, uuid: bytes, reason: str) -> None:
        pending = self._pending.get(uuid)
        if pending is not None:
            self._remove(uuid)
            self.dropped += 1
            logger.info(
                "%s: dropped %d of %d chunks of the message that began at %d:%d: %s",
                self._topic,
                pending.next_chunk_id,
                pending.num_chunks,
                *pending.start,
                reason,
            )

    def _remove(self, uuid: bytes) -> None:
        pending = self._pending.pop(uuid)
        data_bytes = 0 if pending.data is None else len(pending.data)
        self.nbytes -= data_bytes + len(uuid) + _CHUNK_OVERHEAD_BYTES

    def pending_start(self) -> tuple[int, int] | None:
        """Ledger and entry of the oldest first chunk whose message is not complete; None where there is none."""
        return min((pending.start for pending in self._pending.values()), default=None)


def _remember(messages: dict[bytes, _T], uuid: bytes, message: _T) -> None:
    if len(uuid) <= _MAX_REMEMBERED_UUID_BYTES:
        messages[uuid] = message
        if len(messages) > _REMEMBERED_MESSAGES:
            del messages[next(iter(messages))]


class EntryHead(NamedTuple):
    """The bytes before the payload of an entry.

    Attributes:
        messages: how many it says it holds; at least 1.
        uuid: of a chunk: what the chunks of its message have in common.
        chunk_id: its number in the message.
        num_chunks: how many the message has.
    """

    messages: int = 1
    uuid: bytes = b""
    chunk_id: int = 0
    num_chunks: int = 0

    @property
    def is_chunk(self) -> bool:
        """True if it is a chunk of a message."""
        return self.num_chunks > 1


class HeadReader:
    """Reads what stands before the payload of entries, with the same loop as `EntryDecoder`.

    Example:
        >>> metadata = bytes.fromhex("0a0170 1000 1801 5803")  # producer "p", sequence 0, time 1, a batch of 3
        >>> HeadReader().read(memoryview(len(metadata).to_bytes(4, "big") + metadata)).messages
        3
    """

    def __init__(self, implementation: str | None = None) -> None:
        module = (_decoding if implementation is None else Implementation(_messages_python, implementation)).module
        self._columns: _messages_python.EntryColumns = module.EntryColumns(
            pa.schema([]), topic="", partition=-1, max_repeated_bytes=0, max_rows=1
        )

    def count(self, body: bytes | memoryview) -> int:
        """Return the number of messages that an entry announces, at least 1; 0 for a chunk, -1 for a corrupt entry."""
        columns = self._columns
        try:
            flags = columns.open_entry(body, True)
        except CorruptMessageError:
            return -1
        if flags & CHUNKED:
            return 0
        messages = columns.num_messages
        return messages if 0 < messages <= MAX_IN_ENTRY else min(max(messages, 1), MAX_IN_ENTRY)

    def read(self, body: bytes | memoryview) -> EntryHead:
        """Return the kind of an entry; a corrupt one counts as a message."""
        columns = self._columns
        try:
            flags = columns.open_entry(body, False)
        except CorruptMessageError:
            return EntryHead()
        if flags & CHUNKED:
            return EntryHead(1, columns.uuid, columns.chunk_id, columns.num_chunks)
        return EntryHead(min(max(columns.num_messages, 1), MAX_IN_ENTRY))


MAX_IN_ENTRY: Final = 1 << 24
"""More messages than any entry holds: a batch of empty ones within a frame has fewer."""


class EntryDecoder:
    """Turns the entries of one topic-partition into RecordBatches.

    Not for use by several threads at once.

    Args:
        schema: exactly the columns asked for, in that order; what `take_batch` returns has this very schema. Types as
            `columns` has them: ``key`` and ``value`` binary or string.
        topic: the column ``topic``.
        partition: the column ``partition``; -1 for a topic that is not partitioned.
        on_encrypted: ``fail``, or ``raw``: an encrypted entry becomes one row, whose value is the ciphertext as it
            is on the wire (compressed before it was encrypted), be it a single message, a whole batch or one chunk.
            The column ``encryption_context`` has what decrypting it needs.
        on_corrupt: ``fail``; ``skip``: a corrupt entry gives no row; ``null``: it gives one row with NULL in every
            column but topic, partition and message_id (properties are empty), ``_error`` (why) and ``_corrupt`` (the
            entry as the broker sent it). May be changed between entries.
        verify_checksum: whether CRC32C is checked where an entry has one.
        max_message_bytes: how large an uncompressed payload may be. A chunked message may also be as large as
            `max_pending_chunk_bytes`.
        max_pending_chunk_bytes: how much memory chunked messages under assembly may take, all together.
        max_batch_rows: how many messages of one entry become rows at a time, see `unfinished`.
        implementation: ``native`` or ``python``; None for the one the environment asks for, or the best there is.

    Attributes:
        on_corrupt: as above.
        corrupt_entries: how many were skipped or became NULL.
        entry_messages: how many messages the last entry says it holds, which is what it takes of the FLOW permits. As
            the producer wrote it: in a corrupt entry it may be any number, negative ones too.
        orphan: set by the `decode` that met a chunk without its beginning; whoever looks resets it to None. If it is
            the last chunk of a message of the range, decoding the entries from its first chunk on again completes it.

    Raises:
        OptionError: `schema` has a column or a type that cannot be built.
        ImportError: `implementation` is ``native`` and the compiled decoder cannot be loaded.

    Example:
        >>> import pyarrow as pa
        >>> limits = {"max_message_bytes": 5 << 20, "max_pending_chunk_bytes": 5 << 20}
        >>> decoder = EntryDecoder(pa.schema([("value", pa.binary())]), topic="t", partition=-1, **limits)
        >>> metadata = bytes.fromhex("0a0170 1000 1801")  # producer_name "p", sequence_id 0, publish_time 1
        >>> decoder.decode(7, 0, memoryview(len(metadata).to_bytes(4, "big") + metadata + b"hello"))
        1
        >>> decoder.take_batch().to_pydict()
        {'value': [b'hello']}
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        topic: str,
        partition: int,
        max_message_bytes: int,
        max_pending_chunk_bytes: int,
        on_encrypted: str = "fail",
        on_corrupt: str = "fail",
        verify_checksum: bool = True,
        max_batch_rows: int = WHOLE_ENTRY,
        implementation: str | None = None,
    ) -> None:
        chosen = _decoding if implementation is None else Implementation(_messages_python, implementation)
        chosen.warn_of_fallback()
        module = chosen.module
        COLUMNS.check_read(schema)
        self._sparse = SparseColumns(schema, _SPARSE)
        # A column may repeat a producer's name in every row; this is what bounds a batch made to explode by that.
        self._columns: _messages_python.EntryColumns = module.EntryColumns(
            self._sparse.dense,
            topic=topic,
            partition=partition,
            max_repeated_bytes=16 * max_message_bytes,
            max_rows=max_batch_rows,
        )
        self._schema = schema
        self._is_raw = on_encrypted == "raw"
        self.on_corrupt = on_corrupt
        self._verify_checksum = verify_checksum
        self._max_message_bytes = max_message_bytes
        self._max_chunked_bytes = max(max_message_bytes, max_pending_chunk_bytes)
        self._chunks = ChunkAssembly(max_bytes=max_pending_chunk_bytes, topic=topic)
        self.corrupt_entries = 0
        self.entry_messages = 1
        self.orphan: OrphanChunk | None = None

    @property
    def rows(self) -> int:
        """Rows decoded and not yet taken."""
        return self._columns.rows

    @property
    def nbytes(self) -> int:
        """Bytes of these rows in Arrow's buffers, without columns that never change."""
        return self._columns.nbytes + self._sparse.nbytes

    @property
    def unfinished(self) -> bool:
        """True if the last entry has rows left; take the rows before them first, then `decode_rest` appends these."""
        return self._columns.unfinished

    def decode_rest(self) -> int:
        """Append the next rows of an entry that is `unfinished`; how many. It was checked as a whole by `decode`."""
        return self._columns.append_rest()

    def decode(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | memoryview,
        ack_set: Sequence[int] = (),
        first_index: int = 0,
        last_index: int = WHOLE_ENTRY,
        emit: bool = True,
        redelivery_count: int = 0,
    ) -> int:
        """Append an entry's rows.

        Args:
            ledger_id: of the entry.
            entry_id: of the entry.
            body: everything in the MESSAGE frame after the command; only looked at during this call.
            ack_set: of the MESSAGE command: 64-bit words in which a cleared bit is a message of the batch that was
                acknowledged, which is left out.
            first_index: messages of a batch before this one are left out; a message that is not in a batch counts as
                index 0.
            last_index: messages of a batch after this one are left out.
            emit: False for entries before the range, which are read only to find the beginning of chunked messages:
                they give no row, and no error where they are corrupt, encrypted or too large.
            redelivery_count: of the MESSAGE command; a chunked message has that of its last chunk.

        Returns:
            How many rows were appended: all of the entry's, or the first ones of an entry that is `unfinished`, or
            after an error none.

        Raises:
            CorruptMessageError: the entry is corrupt, and `on_corrupt` is ``fail``.
            EncryptedMessageError: its payload is encrypted, and `on_encrypted` is ``fail``.
            UnsupportedFeatureError: its compression is unknown or not installed, it completes a chunked message larger
                than `max_pending_chunk_bytes`, or a column would pass 2 GiB.
        """
        columns = self._columns
        self.entry_messages = 1
        columns.redelivery_count = redelivery_count if redelivery_count < _INT32_MAX else _INT32_MAX
        try:
            flags = columns.open_entry(body, self._verify_checksum)
            self.entry_messages = columns.num_messages
            if not flags and emit and first_index <= 0 <= last_index:
                return columns.append_single(None, ledger_id, entry_id)
            if flags == BATCH and emit:
                return columns.append_batch(None, ledger_id, entry_id, ack_set, first_index, last_index)
            return self._decode_special(flags, body, ledger_id, entry_id, ack_set, first_index, last_index, emit)
        except EncryptedMessageError as error:
            raise error.within(f"message {ledger_id}:{entry_id}") from error.__cause__
        except CorruptMessageError as error:
            if not emit or (self.on_corrupt == "null" and not first_index <= 0 <= last_index):
                return 0
            if self.on_corrupt == "fail":
                raise error.within(f"message {ledger_id}:{entry_id}") from error.__cause__
            self.corrupt_entries += 1
            if self.on_corrupt == "skip":
                return 0
            appended = columns.append_null(ledger_id, entry_id)
            if self._sparse:
                self._sparse.put(ERROR, columns.rows - 1, str(error), len(str(error)))
                self._sparse.put(CORRUPT, columns.rows - 1, bytes(body), len(body))
            return appended
        except UnsupportedFeatureError as error:
            raise error.within(f"message {ledger_id}:{entry_id}") from error.__cause__

    def _decode_special(  # noqa: PLR0911 - an entry is one of many things
        self,
        flags: int,
        body: bytes | memoryview,
        ledger_id: int,
        entry_id: int,
        ack_set: Sequence[int],
        first_index: int,
        last_index: int,
        emit: bool,
    ) -> int:
        """Append the rows of an entry that is marked, encrypted, chunked, compressed or not wanted.

        Raises:
            CorruptMessageError: see `decode`.
            EncryptedMessageError: see `decode`.
            UnsupportedFeatureError: see `decode`.
        """
        columns = self._columns
        if flags & MARKER:
            return 0
        is_wanted = emit and (bool(flags & BATCH) or first_index <= 0 <= last_index)
        if flags & ENCRYPTED:
            if not emit:
                return 0
            if not self._is_raw:
                raise EncryptedMessageError(
                    "the payload is encrypted, and there is no key to read it; onEncrypted=raw passes on the ciphertext"
                )
            # The ciphertext of a batch is one row as well, so it is wanted as one.
            if not first_index <= 0 <= last_index:
                return 0
            return self._append_encrypted(body, ledger_id, entry_id)
        payload: bytes | bytearray | memoryview | None = None
        max_bytes = self._max_message_bytes
        if flags & CHUNKED:
            payload = self._add_chunk(ledger_id, entry_id, emit)
            if payload is None:
                return 0
            max_bytes = self._max_chunked_bytes
        if not is_wanted:
            return 0
        if flags & COMPRESSED:
            number, size = columns.compression, columns.uncompressed_size
            if not 0 <= number < len(_COMPRESSION_TYPES):
                raise UnsupportedFeatureError(
                    f"compression type {number} is not supported; known are {', '.join(_COMPRESSION_TYPES)}"
                )
            if size > max_bytes:
                raise CorruptMessageError(
                    f"the payload announces {size} bytes uncompressed, more than maxMessageBytes={max_bytes} allows"
                )
            payload = decompress(_COMPRESSION_TYPES[number], columns.payload() if payload is None else payload, size)
        if flags & BATCH:
            return columns.append_batch(payload, ledger_id, entry_id, ack_set, first_index, last_index)
        return columns.append_single(payload, ledger_id, entry_id)

    def _append_encrypted(self, body: bytes | memoryview, ledger_id: int, entry_id: int) -> int:
        if ENCRYPTION_CONTEXT not in self._sparse:
            return self._columns.append_single(None, ledger_id, entry_id)
        context, size = encryption_context_of(body)
        appended = self._columns.append_single(None, ledger_id, entry_id)
        self._sparse.put(ENCRYPTION_CONTEXT, self._columns.rows - 1, context, size)
        return appended

    def _add_chunk(self, ledger_id: int, entry_id: int, emit: bool) -> bytearray | None:
        columns, chunks = self._columns, self._chunks
        try:
            payload = chunks.add(
                columns.uuid,
                columns.chunk_id,
                columns.num_chunks,
                columns.total_chunk_bytes,
                (ledger_id, entry_id),
                columns.payload(),
            )
        except CorruptMessageError:
            if self.on_corrupt != "fail":
                chunks.discard(columns.uuid)
            raise
        except UnsupportedFeatureError:
            if emit:
                raise
            return None
        orphan, chunks.orphan = chunks.orphan, None
        if orphan is not None:
            self.orphan = orphan
            if emit and orphan.chunk_id == orphan.num_chunks - 1:
                chunks.protect(orphan.uuid)
        return payload

    def pending_chunk_start(self) -> tuple[int, int] | None:
        """Ledger and entry of the oldest first chunk still being assembled: where a reconnect has to resume."""
        return self._chunks.pending_start()

    def take_batch(self) -> pa.RecordBatch:
        """Every row decoded so far; starts over. Nothing is copied where the decoder is the compiled one."""
        rows = self._columns.rows
        return record_batch(self._schema, self._sparse.among(self._columns.take_arrays(), rows), rows)


_CODEC_NUMBERS: Final = {name: number for number, name in enumerate(_COMPRESSION_TYPES)}
_SIZE_BYTES: Final = 4


class Numbering(Protocol):
    """Makes an entry's first and last sequence id of the number of its rows and of what they are."""

    @property
    def last_id(self) -> int:
        """The last id of the entry before; before the first entry, an id below all others."""

    def next(self, rows: int, content: bytes | memoryview) -> tuple[int, int]:
        """Return the first and the last id of the next entry."""


def _encoder(asked: str | None) -> ModuleType:
    chosen = _encoding if asked is None else Implementation(_encode_python, asked)
    chosen.warn_of_fallback()
    return chosen.module


_TEXT_COLUMNS: Final = ("key", "topic", "properties")


def open_rows(batch: pa.RecordBatch, implementation: str | None = None, *, first_row: int = 0) -> RowSource:
    """Return the rows of a RecordBatch, for `EntryEncoder.append` of the same implementation.

    Args:
        batch: the rows.
        implementation: ``native`` or ``python``; None for the one the environment asks for, or the best there is.
        first_row: the number of the first row among those of the task, for errors.

    Raises:
        OptionError: a column is unknown or of a type that cannot be written, or there is no column ``value``.
        UnwritableRowError: a row has text that is not UTF-8; a value is bytes, of whatever type its column is.
    """
    check_texts(batch, _TEXT_COLUMNS, first_row)
    source: RowSource = _encoder(implementation).RowSource(batch)
    return source


def hash_keys(keys: pa.Array, hashing: int, implementation: str | None = None) -> array[int]:
    """Return the hash of each key, -1 if there is none; see `_encode_python.hashes_of`."""
    hashes: array[int] = _encoder(implementation).hashes_of(keys, hashing)
    return hashes


def group_rows(
    explicit: pa.Array | None,
    hashes: array[int] | None,
    order: array[int] | None,
    rows: int,
    partitions: int,
    implementation: str | None = None,
) -> list[tuple[int, memoryview]]:
    """Group rows by their partition; see `_encode_python.group_rows`.

    Raises:
        IndexError: of a row whose partition does not exist.
    """
    groups: list[tuple[int, memoryview]] = _encoder(implementation).group_rows(
        explicit, hashes, order, rows, partitions
    )
    return groups


class EntryEncoder:
    """Turns the rows for one topic-partition into the SENDs of one producer.

    Which rows share an entry depends on the rows and on the arguments alone: not on how the rows come, in how many
    RecordBatches, nor on time. Only `flush` ends an entry early.

    Args:
        producer_id: of the SENDs.
        producer_name: of the messages, as PRODUCER_SUCCESS gave it.
        sequence_id: of the first message; each one has its own, counted up from here.
        max_message_bytes: how large the broker lets an entry be, metadata and checksum included.
        compression: one of `core.compression.CODECS`. What does not get smaller by it is sent as it is.
        batching: whether messages are put together; False sends each by itself.
        batch_bytes: how large the payload of a batch may be before it is compressed; never more than three quarters of
            `max_message_bytes`, so that there is room for what stands around it. A larger message is sent by itself.
        batch_rows: how many messages a batch may hold.
        batching_by_key: whether the messages of a batch have one ordering key (where they have none, one key), as
            consumers of a Key_Shared subscription need it. Rows should come ordered by it.
        chunking: whether a message larger than `max_message_bytes` is cut into several entries, or is an error.
        schema_version: of the messages, as PRODUCER_SUCCESS gave it; empty for none.
        txn_id: the transaction they belong to: its least and its most significant half.
        numbering: makes the sequence ids of entries; None for the rows' own.
        implementation: ``native`` or ``python``; None for the one the environment asks for, or the best there is.

    Attributes:
        sequence_id: of the next row.

    Raises:
        ImportError: `implementation` is ``native`` and the compiled encoder cannot be loaded.

    Example:
        >>> limits = {"max_message_bytes": 5 << 20, "batch_bytes": 100_000, "batch_rows": 1000}
        >>> encoder = EntryEncoder(producer_id=1, producer_name="p", sequence_id=0, **limits)
        >>> rows = open_rows(pa.record_batch({"value": [b"hello", b"world"]}))
        >>> encoder.append(rows, None, 0, 2, now_ms=1)
        2
        >>> encoder.flush(now_ms=1)
        >>> [(send.sequence_id, send.num_messages, send.highest_sequence_id) for send in encoder.take()]
        [(0, 2, 1)]
    """

    def __init__(
        self,
        *,
        producer_id: int,
        producer_name: str,
        sequence_id: int,
        max_message_bytes: int,
        batch_bytes: int,
        batch_rows: int,
        compression: str = "NONE",
        batching: bool = True,
        batching_by_key: bool = False,
        chunking: bool = False,
        schema_version: bytes = b"",
        txn_id: tuple[int, int] | None = None,
        numbering: Numbering | None = None,
        implementation: str | None = None,
    ) -> None:
        self._producer_id = producer_id
        self._producer_name = producer_name
        self.sequence_id = sequence_id
        self._max_message_bytes = max_message_bytes
        self._compression = compression
        self._batching = batching
        self._chunking = chunking
        self._schema_version = schema_version
        self._txn_id = txn_id
        self._numbering = numbering
        # Where attempts have their names and ids in common: a message may not be put together of the chunks of several.
        self._uuid_end = "" if numbering is None else f"-{uuid.uuid4().hex}"
        self._payload: _encode_python.BatchPayload = _encoder(implementation).BatchPayload(
            max_bytes=min(batch_bytes, max_message_bytes * 3 // 4), max_rows=batch_rows, by_key=batching_by_key
        )
        self._finished: list[Send] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the batch that is not finished."""
        return self._payload.nbytes

    def append(
        self,
        source: RowSource,
        order: memoryview | array[int] | None,
        begin: int,
        end: int,
        *,
        now_ms: int,
    ) -> int:
        """Add rows until entries are finished or all rows are in.

        Args:
            source: where they are.
            order: their indices in `source`; None for all, as they stand.
            begin: the first one's place in `order`.
            end: the place behind the last one's.
            now_ms: the publish time of the entries that are finished, in milliseconds since 1970.

        Returns:
            The place of the first row that was not added; `end` where all were.

        Raises:
            UnwritableRowError: a row cannot become a message; those before it are added.
        """
        stop = ALONE
        at = begin
        if self._batching:
            at = self._payload.append(source, order, begin, end, self.sequence_id)
            self.sequence_id += at - begin
            stop = self._payload.stop
        if stop == TAKEN or at == end:
            return at
        self.flush(now_ms=now_ms)
        if stop != ALONE:
            return at
        self._finish_alone(row_of(source.columns, at if order is None else order[at]), now_ms)
        self.sequence_id += 1
        return at + 1

    def flush(self, *, now_ms: int) -> None:
        """Finish the entry that is under construction, if there is one."""
        payload = self._payload
        rows = payload.rows
        if not rows:
            return
        key, is_base64, ordering_key = payload.first
        first, last = self.sequence_id - rows, self.sequence_id - 1
        if self._numbering is not None:
            with payload.view() as view:
                first, last = self._numbering.next(rows, view)
        metadata = self._metadata(first, now_ms)
        metadata["num_messages_in_batch"] = rows
        # The first message's: it is by these that a Key_Shared subscription chooses its consumer (as the Java client).
        _put_keys(metadata, key, is_base64, ordering_key)
        if last > first:
            metadata["highest_sequence_id"] = last
        with payload.view() as view:
            compressed = self._compressed(view, metadata)
            head = _head_of(metadata, view if compressed is None else compressed)
        if compressed is None:
            body: bytes | memoryview = payload.take(head)
        else:
            body = b"".join((head, compressed))
            payload.clear()
        self._finish(first, body, rows, last if last > first else None)

    def take(self) -> list[Send]:
        """Return the SENDs of the entries finished since the last call, in order."""
        finished, self._finished = self._finished, []
        return finished

    def _finish(self, sequence_id: int, body: bytes | memoryview, rows: int, highest: int | None) -> None:
        least, most = (None, None) if self._txn_id is None else self._txn_id
        self._finished.append(Send(self._producer_id, sequence_id, body, rows, highest, least, most))

    def _finish_alone(self, row: Row, now_ms: int) -> None:
        _check(row)
        metadata = self._metadata(0, 0)
        if row.properties:
            metadata["properties"] = [
                {"key": name.decode(), "value": (item or b"").decode()} for name, item in row.properties
            ]
        _put_keys(metadata, row.key, row.is_base64, row.ordering_key)
        if row.event_time_ms is not None:
            metadata["event_time"] = row.event_time_ms
        if row.deliver_at_ms is not None:
            metadata["deliver_at_time"] = row.deliver_at_ms
        if row.value is None:
            metadata["null_value"] = True
        value = row.value or b""
        before, sequence_id = None, self.sequence_id
        if self._numbering is not None:
            before = self._numbering.last_id
            _, sequence_id = self._numbering.next(1, b"".join((encode_metadata(metadata), value)))
        metadata["sequence_id"], metadata["publish_time"] = sequence_id, now_ms
        payload = self._compressed(value, metadata)
        if payload is None:
            payload = value
        head = _head_of(metadata, payload)
        if len(head) + len(payload) <= self._max_message_bytes:
            self._finish(sequence_id, b"".join((head, payload)), 1, None)
            return
        if not self._chunking:
            raise UnwritableRowError(
                f"a message of {len(head) + len(payload)} bytes is larger than the {self._max_message_bytes} that the "
                f"broker takes; set chunking=true to cut it into several entries, or raise the broker's maxMessageSize"
            )
        for body in self._chunks(metadata, payload, before):
            self._finish(metadata["sequence_id"], body, 1, None)
            self._finished[-1] = self._finished[-1]._replace(is_chunk=True)

    def _chunks(self, metadata: MessageMetadata, payload: bytes | memoryview, before: int | None) -> Iterator[bytes]:
        """Yield a message's entries; `metadata` is that of the yielded one.

        Only the last one has an id as high as the message's. A broker that loads a topic takes the highest id of its
        entries, chunks or not, for stored, and would drop what is missing of the message (seen on broker 4.0.8).

        Args:
            metadata: the message's.
            payload: its value, as it is sent.
            before: the id of all entries but the last; None for ids that go up to the next message's.
        """
        sequence_id = metadata["sequence_id"]
        metadata["uuid"] = f"{self._producer_name}-{sequence_id}{self._uuid_end}"
        metadata["total_chunk_msg_size"] = len(payload)
        # As large as the numbers can become, so that all chunks but the last are of one size.
        metadata["num_chunks_from_msg"] = metadata["chunk_id"] = _INT32_MAX
        metadata["sequence_id"] = sequence_id + len(payload)
        room = self._max_message_bytes - len(_head_of(metadata, b""))
        if room <= 0:
            raise UnwritableRowError(
                f"a message's key and properties leave no room for its value within the {self._max_message_bytes} "
                f"bytes that the broker takes; they cannot be cut into chunks"
            )
        starts = range(0, len(payload), room)
        metadata["num_chunks_from_msg"] = len(starts)
        if before is None:
            self.sequence_id += len(starts) - 1
        view = memoryview(payload)
        for number, start in enumerate(starts):
            metadata["chunk_id"] = number
            if before is None:
                metadata["sequence_id"] = sequence_id + number
            else:
                metadata["sequence_id"] = before if number < len(starts) - 1 else sequence_id
            chunk = view[start : start + room]
            yield b"".join((_head_of(metadata, chunk), chunk))

    def _metadata(self, sequence_id: int, now_ms: int) -> MessageMetadata:
        metadata = MessageMetadata(producer_name=self._producer_name, sequence_id=sequence_id, publish_time=now_ms)
        if self._schema_version:
            metadata["schema_version"] = self._schema_version
        if self._txn_id is not None:
            metadata["txnid_least_bits"], metadata["txnid_most_bits"] = self._txn_id
        return metadata

    def _compressed(self, payload: bytes | memoryview, metadata: MessageMetadata) -> bytes | memoryview | None:
        """Return the payload compressed, noted in the metadata; None if it does not get smaller."""
        if self._compression == "NONE" or not payload:
            return None
        compressed = compress(self._compression, payload)
        if len(compressed) >= len(payload):
            return None
        metadata["compression"] = _CODEC_NUMBERS[self._compression]
        metadata["uncompressed_size"] = len(payload)
        return compressed


def _head_of(metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
    """Return the bytes before a payload: checksum, size and metadata."""
    serialized = encode_metadata(metadata)
    checked = len(serialized).to_bytes(_SIZE_BYTES, "big") + serialized
    return CHECKSUM_MAGIC + crc32c(payload, crc32c(checked)).to_bytes(_SIZE_BYTES, "big") + checked


def _put_keys(metadata: MessageMetadata, key: bytes | None, is_base64: bool, ordering_key: bytes | None) -> None:
    if key is not None:
        metadata["partition_key"] = key.decode()
    if is_base64:
        metadata["partition_key_b64_encoded"] = True
    if ordering_key is not None:
        metadata["ordering_key"] = ordering_key


def _check(row: Row) -> None:
    """Refuses a row that breaks a rule.

    Raises:
        UnwritableRowError: says which.
    """
    if row.event_time_ms is not None and row.event_time_ms <= 0:
        raise UnwritableRowError(
            f"an event_time of {row.event_time_ms} ms since 1970 cannot be written: Pulsar has none before 1 ms; use "
            f"NULL for none"
        )
    for name, item in row.properties:
        if item is None:
            raise UnwritableRowError(
                f"the property {name.decode()!r} is NULL, which Pulsar has no place for; leave it out of the map"
            )
