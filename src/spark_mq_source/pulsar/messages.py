"""Pulsar entries to Arrow RecordBatches.

`EntryDecoder` decides what becomes of an entry: markers are dropped, encryption and corruption follow the options,
chunks are put together, payloads decompressed. The loop over bytes and rows is `EntryColumns`, of which there are two:
compiled (``_messages_native``) and, where no compiled one is installed, written for the interpreter
(``_messages_python``, which also states the rules of what is corrupt). Both give the same rows and the same errors.

``SPARK_MQ_SOURCE_IMPL=native`` or ``python`` in the environment asks for one; `implementation` tells which one runs.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Final, NamedTuple

import pyarrow as pa

from spark_mq_source.core.columns import record_batch
from spark_mq_source.core.compression import decompress
from spark_mq_source.core.errors import CorruptMessageError, EncryptedMessageError, UnsupportedFeatureError
from spark_mq_source.pulsar import _messages_python
from spark_mq_source.pulsar._messages_python import BATCH, CHUNKED, COMPRESSED, ENCRYPTED, MARKER

__all__ = ["WHOLE_ENTRY", "ChunkAssembly", "EntryDecoder", "OrphanChunk", "implementation"]

WHOLE_ENTRY: Final = 2**31 - 1
"""The `last_index` that leaves no message of a batch out."""

_COMPRESSION_TYPES: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")
"""The names of CompressionType, by number (Pulsar binary protocol, Message metadata)."""

_CHUNK_OVERHEAD_BYTES: Final = 512
"""What a message under assembly counts for beside its bytes, so that empty chunks cannot pile up for nothing."""


def _load_native() -> ModuleType:
    return import_module("spark_mq_source.pulsar._messages_native")


def _choose(asked: str) -> tuple[str, ModuleType, str]:
    """The implementation's name, its module, and why it is not the compiled one ("" where it is, or was not wanted).

    Raises:
        ImportError: `asked` is no implementation, or is ``native`` and there is none.
    """
    if asked not in ("", "native", "python"):
        msg = f"SPARK_MQ_SOURCE_IMPL={asked}: expected native or python"
        raise ImportError(msg)
    if asked == "python":
        return "python", _messages_python, ""
    try:
        return "native", _load_native(), ""
    except ImportError as error:
        if asked == "native":
            msg = f"SPARK_MQ_SOURCE_IMPL=native, but the compiled decoder cannot be loaded: {error}"
            raise ImportError(msg) from error
        return "python", _messages_python, str(error)


_implementation, _module, _fallback_reason = _choose(os.environ.get("SPARK_MQ_SOURCE_IMPL", ""))


def implementation() -> str:
    """Which decoder runs in this process: ``native``, the compiled one, or ``python``, its twin.

    Example:
        >>> implementation() in ("native", "python")
        True
    """
    return _implementation


def _warn_of_fallback() -> None:
    """Say once, when the first decoder is made and not when the package is imported, that it is the slow one."""
    global _fallback_reason
    if _fallback_reason:
        reason, _fallback_reason = _fallback_reason, ""
        warnings.warn(
            f"spark-mq-source runs without its compiled decoder, several times slower ({reason}); "
            f"set SPARK_MQ_SOURCE_IMPL=python to accept this",
            RuntimeWarning,
            stacklevel=3,
        )


class OrphanChunk(NamedTuple):
    """A chunk that arrived without the ones before it: the message began earlier than what was read."""

    uuid: bytes
    ledger_id: int
    entry_id: int
    chunk_id: int
    num_chunks: int


class _Pending:
    """A chunked message of which some chunks are here."""

    __slots__ = ("data", "next_chunk_id", "num_chunks", "start", "total_bytes")

    def __init__(self, num_chunks: int, total_bytes: int, start: tuple[int, int]) -> None:
        self.num_chunks = num_chunks
        self.total_bytes = total_bytes
        self.start = start
        self.next_chunk_id = 0
        self.data = bytearray()


class ChunkAssembly:
    """Puts chunked messages together, many at a time, within a fixed amount of memory.

    The chunks of one message carry the same uuid and arrive in order, between those of others (Java client;
    seen on broker 4.0.8). A chunk seen already is one redelivered, and is ignored.

    Attributes:
        orphan: set by the `add` that met one; whoever looks resets it to None.
        nbytes: what the messages under assembly take.

    Example:
        >>> chunks = ChunkAssembly(max_bytes=10_000)
        >>> chunks.add(b"p-0", 0, 2, 10, (7, 0), b"hello")
        >>> chunks.pending_start()
        (7, 0)
        >>> chunks.add(b"p-0", 1, 2, 10, (7, 1), b"world")
        bytearray(b'helloworld')
    """

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._pending: dict[bytes, _Pending] = {}
        self.nbytes = 0
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
        """The whole message where this chunk completes one, else None.

        Args:
            uuid: what the chunks of one message have in common.
            chunk_id: from 0.
            num_chunks: of the message.
            total_bytes: of the message, as announced.
            position: ledger and entry of this chunk.
            payload: this chunk's bytes; copied.

        Raises:
            CorruptMessageError: the chunk contradicts itself or the ones before it.
            UnsupportedFeatureError: the messages under assembly would take more than `max_bytes`.
        """
        if not uuid or not 0 <= chunk_id < num_chunks or total_bytes < 0:
            msg = f"chunk {chunk_id} of {num_chunks} ({total_bytes} bytes in all, uuid {uuid!r}) is no chunk"
            raise CorruptMessageError(msg)
        pending = self._pending.get(uuid)
        if pending and (pending.num_chunks, pending.total_bytes) != (num_chunks, total_bytes):
            # A producer that restarted under its old name counts its messages from where it was: this is another one.
            self._drop(uuid)
            pending = None
        if pending is None and chunk_id == 0:
            self._make_room(len(uuid) + _CHUNK_OVERHEAD_BYTES, total_bytes)
            self.nbytes += len(uuid) + _CHUNK_OVERHEAD_BYTES
            pending = self._pending[uuid] = _Pending(num_chunks, total_bytes, position)
        if pending is None or chunk_id > pending.next_chunk_id:
            self._drop(uuid)
            self.orphan = OrphanChunk(uuid, *position, chunk_id, num_chunks)
            return None
        if chunk_id < pending.next_chunk_id:
            return None
        if len(pending.data) + len(payload) > total_bytes:
            self._drop(uuid)
            msg = f"the chunks up to {chunk_id} of {num_chunks} hold more than the {total_bytes} bytes announced"
            raise CorruptMessageError(msg)
        self._make_room(len(payload), 0)
        pending.data += payload
        self.nbytes += len(payload)
        pending.next_chunk_id += 1
        if pending.next_chunk_id < num_chunks:
            return None
        self._drop(uuid)
        if len(pending.data) != total_bytes:
            msg = f"all {num_chunks} chunks hold {len(pending.data)} bytes where {total_bytes} were announced"
            raise CorruptMessageError(msg)
        return pending.data

    def _make_room(self, more_bytes: int, announced_bytes: int) -> None:
        # A message too large to ever fit is refused with its first chunk, not after reading the limit's worth of it.
        if max(self.nbytes + more_bytes, announced_bytes) > self._max_bytes:
            msg = (
                f"{len(self._pending)} chunked messages under assembly hold {self.nbytes} bytes, and the next one "
                f"({max(more_bytes, announced_bytes)} bytes) would take more than maxPendingChunkBytes="
                f"{self._max_bytes}: raise that option"
            )
            raise UnsupportedFeatureError(msg)

    def _drop(self, uuid: bytes) -> None:
        pending = self._pending.pop(uuid, None)
        if pending:
            self.nbytes -= len(pending.data) + len(uuid) + _CHUNK_OVERHEAD_BYTES

    def pending_start(self) -> tuple[int, int] | None:
        """Ledger and entry of the oldest first chunk whose message is not complete; None where there is none."""
        return min((pending.start for pending in self._pending.values()), default=None)


class EntryDecoder:
    """Turns the entries of one topic-partition into RecordBatches.

    Not for use by several threads at once.

    Args:
        schema: exactly the columns asked for, in that order; what `take_batch` returns has this very schema. Types as
            `COLUMN_TYPES` has them: ``key`` and ``value`` binary or string.
        topic: the column ``topic``.
        partition: the column ``partition``; -1 for a topic that is not partitioned.
        on_encrypted: ``fail``, or ``raw``: an encrypted entry becomes one row, whose value is the ciphertext as it
            is on the wire (compressed before it was encrypted), be it a single message, a whole batch or one chunk.
        on_corrupt: ``fail``; ``skip``: a corrupt entry gives no row; ``null``: it gives one row with NULL in every
            column but topic, partition and message_id (properties are empty). May be changed between entries.
        verify_checksum: whether CRC32C is checked where an entry has one.
        max_message_bytes: how large an uncompressed payload may be. A chunked message may also be as large as
            `max_pending_chunk_bytes`.
        max_pending_chunk_bytes: how much memory chunked messages under assembly may take, all together.
        implementation: ``native`` or ``python``; None for the one the environment asks for, or the best there is.

    Attributes:
        on_corrupt: as above.
        corrupt_entries: how many were skipped or became NULL.
        entry_messages: how many messages the last entry says it holds, which is what it takes of the FLOW permits. As
            the producer wrote it: in a corrupt entry it may be any number, negative ones too.
        orphan: set by the `decode` that met a chunk without its beginning; whoever looks resets it to None.

    Raises:
        OptionError: `schema` has a column or a type that cannot be built.
        ImportError: `implementation` is ``native`` and the compiled decoder cannot be loaded.

    Example:
        >>> import pyarrow as pa
        >>> decoder = EntryDecoder(pa.schema([("value", pa.binary())]), topic="t", partition=-1)
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
        on_encrypted: str = "fail",
        on_corrupt: str = "fail",
        verify_checksum: bool = True,
        max_message_bytes: int = 64 * 2**20,
        max_pending_chunk_bytes: int = 256 * 2**20,
        implementation: str | None = None,
    ) -> None:
        if implementation is None:
            _warn_of_fallback()
            module = _module
        else:
            module = _choose(implementation)[1]
        # A column may repeat a producer's name in every row; this is what bounds a batch made to explode by that.
        self._columns: _messages_python.EntryColumns = module.EntryColumns(
            schema, topic=topic, partition=partition, max_repeated_bytes=16 * max_message_bytes
        )
        self._schema = schema
        self._is_raw = on_encrypted == "raw"
        self.on_corrupt = on_corrupt
        self._verify_checksum = verify_checksum
        self._max_message_bytes = max_message_bytes
        self._max_chunked_bytes = max(max_message_bytes, max_pending_chunk_bytes)
        self._chunks = ChunkAssembly(max_bytes=max_pending_chunk_bytes)
        self.corrupt_entries = 0
        self.entry_messages = 1
        self.orphan: OrphanChunk | None = None

    @property
    def rows(self) -> int:
        """Rows decoded and not yet taken."""
        return self._columns.rows

    @property
    def nbytes(self) -> int:
        """What these rows take in Arrow's buffers, in bytes; columns that never change are not counted."""
        return self._columns.nbytes

    def decode(
        self,
        ledger_id: int,
        entry_id: int,
        body: bytes | memoryview,
        ack_set: Sequence[int] = (),
        first_index: int = 0,
        last_index: int = WHOLE_ENTRY,
        emit: bool = True,
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
                they give no row, and no error where they are corrupt or encrypted.

        Returns:
            How many rows were appended: all of the entry's, or after an error none.

        Raises:
            CorruptMessageError: the entry is corrupt, and `on_corrupt` is ``fail``.
            EncryptedMessageError: its payload is encrypted, and `on_encrypted` is ``fail``.
            UnsupportedFeatureError: its compression is unknown or not installed, chunked messages need more memory
                than `max_pending_chunk_bytes`, or a column would pass 2 GiB.
        """
        columns = self._columns
        self.entry_messages = 1
        try:
            flags = columns.open_entry(body, self._verify_checksum)
            self.entry_messages = columns.num_messages
            if not flags and emit and first_index <= 0 <= last_index:
                return columns.append_single(None, ledger_id, entry_id)
            if flags == BATCH and emit:
                return columns.append_batch(None, ledger_id, entry_id, ack_set, first_index, last_index)
            return self._decode_special(flags, ledger_id, entry_id, ack_set, first_index, last_index, emit)
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
            return columns.append_null(ledger_id, entry_id)
        except UnsupportedFeatureError as error:
            raise error.within(f"message {ledger_id}:{entry_id}") from error.__cause__

    def _decode_special(  # noqa: PLR0911 - an entry is one of many things
        self,
        flags: int,
        ledger_id: int,
        entry_id: int,
        ack_set: Sequence[int],
        first_index: int,
        last_index: int,
        emit: bool,
    ) -> int:
        """An entry that is marked, encrypted, chunked, compressed or not wanted.

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
                msg = (
                    "the payload is encrypted, and there is no key to read it; onEncrypted=raw passes on the ciphertext"
                )
                raise EncryptedMessageError(msg)
            # The ciphertext of a batch is one row as well, so it is wanted as one.
            if not first_index <= 0 <= last_index:
                return 0
            return columns.append_single(None, ledger_id, entry_id)
        payload: bytes | bytearray | memoryview | None = None
        max_bytes = self._max_message_bytes
        if flags & CHUNKED:
            payload = self._add_chunk(ledger_id, entry_id)
            if payload is None:
                return 0
            max_bytes = self._max_chunked_bytes
        if not is_wanted:
            return 0
        if flags & COMPRESSED:
            number, size = columns.compression, columns.uncompressed_size
            if not 0 <= number < len(_COMPRESSION_TYPES):
                msg = f"compression type {number} is not supported; known are {', '.join(_COMPRESSION_TYPES)}"
                raise UnsupportedFeatureError(msg)
            if size > max_bytes:
                msg = f"the payload announces {size} bytes uncompressed, more than maxMessageBytes={max_bytes} allows"
                raise CorruptMessageError(msg)
            payload = decompress(_COMPRESSION_TYPES[number], columns.payload() if payload is None else payload, size)
        if flags & BATCH:
            return columns.append_batch(payload, ledger_id, entry_id, ack_set, first_index, last_index)
        return columns.append_single(payload, ledger_id, entry_id)

    def _add_chunk(self, ledger_id: int, entry_id: int) -> bytearray | None:
        columns, chunks = self._columns, self._chunks
        payload = chunks.add(
            columns.uuid,
            columns.chunk_id,
            columns.num_chunks,
            columns.total_chunk_bytes,
            (ledger_id, entry_id),
            columns.payload(),
        )
        if chunks.orphan is not None:
            self.orphan, chunks.orphan = chunks.orphan, None
        return payload

    def pending_chunk_start(self) -> tuple[int, int] | None:
        """Ledger and entry of the oldest first chunk still being assembled: where a reconnect has to resume."""
        return self._chunks.pending_start()

    def take_batch(self) -> pa.RecordBatch:
        """Every row decoded so far; starts over. Nothing is copied where the decoder is the compiled one."""
        rows = self._columns.rows
        return record_batch(self._schema, self._columns.take_arrays(), rows)
