"""Pulsar entries to Arrow RecordBatches.

`EntryDecoder` decides how to treat an entry: markers are dropped, the options decide on encrypted and corrupt entries,
chunks are assembled, payloads decompressed. The loop over bytes and rows is `EntryColumns`, compiled in
``_messages_native``. ``_messages_python`` specifies it, with the rules for corrupt entries, and runs if no compiled
loop is installed. Both give the same rows and the same errors: see `core.implementation`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa

from spark_mq_source.core.columns import CORRUPT, ERROR, ColumnDecoder
from spark_mq_source.core.compression import decompress
from spark_mq_source.core.errors import (
    CorruptMessageError,
    EncryptedMessageError,
    UnreadableKeyError,
    UnsupportedFeatureError,
)
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.core.options import INT32_MAX
from spark_mq_source.pulsar.payload import _messages_python
from spark_mq_source.pulsar.payload.chunks import ChunkAssembly, OrphanChunk
from spark_mq_source.pulsar.payload.columns import COLUMNS, ENCRYPTION_CONTEXT
from spark_mq_source.pulsar.payload.encryption import encryption_context_of
from spark_mq_source.pulsar.payload.layout import BATCH, CHUNKED, COMPRESSED, COMPRESSION_TYPES, ENCRYPTED, MARKER
from spark_mq_source.pulsar.protocol.commands import ValidationError
from spark_mq_source.pulsar.protocol.metadata import decode_metadata

if TYPE_CHECKING:
    from spark_mq_source.pulsar.payload.cipher import PayloadDecryptor

logger = logging.getLogger(__name__)

MAX_IN_ENTRY: Final = 1 << 24
"""More messages than any entry holds: even a batch of empty ones within a frame has fewer."""

WHOLE_ENTRY: Final = INT32_MAX
"""The `last_index` that excludes no message of a batch."""

_SPARSE: Final = (ENCRYPTION_CONTEXT, ERROR, CORRUPT)
"""The columns that the loops leave out, because few rows have a value in them."""

_NO_KEY: Final = (
    "the payload is encrypted, and there is no key to read it: set cryptoPrivateKeys or cryptoKeyReader; "
    "cryptoFailureAction=CONSUME passes on the ciphertext"
)

_decoding: Final = Implementation(_messages_python)


def _within_entry(messages: int) -> int:
    # The number is the producer's own, and arbitrary in a corrupt entry.
    return min(max(messages, 1), MAX_IN_ENTRY)


class TransactionalEntryError(UnsupportedFeatureError):
    """An entry of a transaction, which may have been aborted."""


class ChunkHead(NamedTuple):
    """Which part of which message a chunk is; the uuid is the same for all chunks of a message."""

    uuid: bytes
    chunk_id: int
    num_chunks: int


class HeadReader:
    """Reader of the bytes before the payload of entries, with the same loop as `EntryDecoder`.

    Example:
        >>> metadata = bytes.fromhex("0a0170 1000 1801 5803")  # producer "p", sequence 0, time 1, a batch of 3
        >>> HeadReader().count(memoryview(len(metadata).to_bytes(4, "big") + metadata))
        3
    """

    def __init__(self, implementation: str | None = None) -> None:
        module = _decoding.load(implementation)
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
        return _within_entry(columns.num_messages)

    def read_chunk(self, body: bytes | memoryview) -> ChunkHead:
        """Return the head of an entry that is a chunk."""
        columns = self._columns
        columns.open_entry(body, False)
        return ChunkHead(columns.uuid, columns.chunk_id, columns.num_chunks)


class EntryDecoder(ColumnDecoder):
    """Decoder of the entries of one topic-partition into RecordBatches.

    Not for use by several threads at once.

    Args:
        schema: the columns wanted, in this order; also the schema of `take_batch`. Types as in `columns`: ``key`` and
            ``value`` binary or string.
        topic: the column ``topic``.
        partition: the column ``partition``; -1 for a topic that is not partitioned.
        on_encrypted: the action for an encrypted entry (message, batch or chunk) that cannot be decrypted. ``fail``;
            ``skip``: it gives no row; ``raw``: it becomes one row, with the ciphertext as value, as sent (compressed
            before it was encrypted), and the keys and parameters for decryption in ``encryption_context``.
        decryptor: decrypts payloads; None if there are no keys.
        on_corrupt: ``fail``; ``skip``: a corrupt entry gives no row; ``null``: it gives one row with NULL in every
            column but topic, partition and message_id (properties are empty), ``_error`` (the reason) and ``_corrupt``
            (the entry as sent). May be changed between entries.
        verify_checksum: whether to check the CRC32C of entries that have one.
        max_message_bytes: maximum uncompressed size of a payload. A chunked message may also have
            `max_pending_chunk_bytes`.
        max_pending_chunk_bytes: maximum total size of the chunked messages under assembly.
        max_batch_rows: maximum number of messages of one entry that become rows at once, see `unfinished`.
        refuses_transactions: whether an entry of a transaction is an error: only brokers know the aborted ones.
        implementation: ``native`` or ``python``; None for that of the environment variable, else the best available.

    Attributes:
        on_corrupt: as above.
        corrupt_entries: number of entries skipped or returned as NULL.
        discarded_entries: number of entries left out because they cannot be decrypted.
        entry_messages: announced number of messages of the last entry, at least 1: what it takes of the FLOW permits.
        damage: why the last entry that was skipped, returned as NULL or left out could not be read, in the broker's
            terms; the caller resets it to None.
        orphan: set by a `decode` that found a chunk without its beginning; the caller resets it to None. If it is the
            last chunk of a message of the range, decoding the entries from its first chunk on again completes it.

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
        decryptor: PayloadDecryptor | None = None,
        on_corrupt: str = "fail",
        verify_checksum: bool = True,
        max_batch_rows: int = WHOLE_ENTRY,
        refuses_transactions: bool = False,
        implementation: str | None = None,
    ) -> None:
        module = _decoding.load(implementation)
        super().__init__(schema, COLUMNS, _SPARSE)
        # A column may repeat a producer's name in every row; this limits the size of a malicious batch.
        self._columns: _messages_python.EntryColumns = module.EntryColumns(
            self._sparse.dense,
            topic=topic,
            partition=partition,
            max_repeated_bytes=16 * max_message_bytes,
            max_rows=max_batch_rows,
        )
        self._topic = topic
        self._on_encrypted = on_encrypted
        self._decryptor = decryptor
        self.on_corrupt = on_corrupt
        self._verify_checksum = verify_checksum
        self._refuses_transactions = refuses_transactions
        self._max_message_bytes = max_message_bytes
        self._max_chunked_bytes = max(max_message_bytes, max_pending_chunk_bytes)
        self._chunks = ChunkAssembly(max_bytes=max_pending_chunk_bytes, topic=topic)
        self.corrupt_entries = 0
        self.discarded_entries = 0
        self.entry_messages = 1
        self.damage: ValidationError | None = None
        self._suspect = ValidationError.ChecksumMismatch
        self.orphan: OrphanChunk | None = None

    @property
    def unfinished(self) -> bool:
        """True if the last entry has rows left; take the rows before them first, then `decode_rest` appends these."""
        return self._columns.unfinished

    def decode_rest(self) -> int:
        """Append the next rows of an entry that is `unfinished`; return how many. `decode` has validated all of it."""
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
            body: everything in the MESSAGE frame after the command; used only during this call.
            ack_set: of the MESSAGE command: 64-bit words in which a cleared bit is an acknowledged message of the
                batch, which is left out.
            first_index: messages of a batch before this index are left out; a message outside a batch has index 0.
            last_index: messages of a batch after this index are left out.
            emit: False for entries before the range, which are read only for the beginnings of chunked messages: they
                give no row, and no error if they are corrupt, encrypted or too large.
            redelivery_count: of the MESSAGE command; a chunked message has that of its last chunk.

        Returns:
            The number of rows appended: all of the entry, the first ones of an entry that is `unfinished`, or none
            after an error.

        Raises:
            CorruptMessageError: the entry is corrupt, and `on_corrupt` is ``fail``.
            EncryptedMessageError: its payload cannot be decrypted, and `on_encrypted` is ``fail``.
            TransactionalEntryError: it belongs to a transaction, and `refuses_transactions` is true.
            UnsupportedFeatureError: its compression is unknown or not installed, it completes a chunked message larger
                than `max_pending_chunk_bytes`, or a column would pass 2 GiB.
        """
        columns = self._columns
        self.entry_messages = 1
        columns.redelivery_count = redelivery_count if redelivery_count < INT32_MAX else INT32_MAX
        self._suspect = ValidationError.ChecksumMismatch
        try:
            flags = columns.open_entry(body, self._verify_checksum)
            if self._refuses_transactions and columns.is_transactional():
                raise TransactionalEntryError(
                    "it belongs to a transaction, and only the broker tells whether it was committed: set "
                    "readOffloaded=auto, which reads the rest of the range from brokers"
                )
            self._suspect = ValidationError.BatchDeSerializeError
            messages = columns.num_messages
            self.entry_messages = messages if 0 < messages < MAX_IN_ENTRY else _within_entry(messages)
            if not flags and emit and first_index <= 0 <= last_index:
                return columns.append_single(ledger_id, entry_id)
            if flags == BATCH and emit:
                return columns.append_batch(ledger_id, entry_id, ack_set, first_index, last_index)
            return self._decode_special(flags, body, ledger_id, entry_id, ack_set, first_index, last_index, emit)
        except EncryptedMessageError as error:
            raise error.within(f"message {ledger_id}:{entry_id}") from error.__cause__
        except CorruptMessageError as error:
            if not emit or (self.on_corrupt == "null" and not first_index <= 0 <= last_index):
                return 0
            if self.on_corrupt == "fail":
                raise error.within(f"message {ledger_id}:{entry_id}") from error.__cause__
            self.corrupt_entries += 1
            self.damage = self._suspect
            if self.on_corrupt == "skip":
                return 0
            appended = columns.append_null(ledger_id, entry_id)
            if self._sparse:
                self._sparse.put(ERROR, columns.rows - 1, str(error), len(str(error)))
                self._sparse.put(CORRUPT, columns.rows - 1, bytes(body), len(body))
            return appended
        except UnsupportedFeatureError as error:
            raise error.within(f"message {ledger_id}:{entry_id}") from error.__cause__

    def _decode_special(
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
        """Append the rows of an entry that is a marker, encrypted, chunked, compressed or unwanted."""
        columns = self._columns
        if flags & MARKER:
            return 0
        is_wanted = emit and (bool(flags & BATCH) or first_index <= 0 <= last_index)
        if flags & ENCRYPTED and (is_wanted or flags & CHUNKED):
            decrypted = self._decrypted(body, ledger_id, entry_id, emit)
            if decrypted is None:
                # The ciphertext of a batch is one row, so it is wanted as a whole.
                is_row = self._on_encrypted == "raw" and emit and first_index <= 0 <= last_index
                return self._append_encrypted(body, ledger_id, entry_id) if is_row else 0
            columns.replace_payload(decrypted)
        max_bytes = self._max_message_bytes
        if flags & CHUNKED:
            message = self._add_chunk(ledger_id, entry_id, emit)
            if message is None:
                return 0
            columns.replace_payload(message)
            max_bytes = self._max_chunked_bytes
        if not is_wanted:
            return 0
        if flags & COMPRESSED:
            number, size = columns.compression, columns.uncompressed_size
            if not 0 <= number < len(COMPRESSION_TYPES):
                raise UnsupportedFeatureError(
                    f"compression type {number} is not supported; known are {', '.join(COMPRESSION_TYPES)}"
                )
            if size > max_bytes:
                self._suspect = ValidationError.UncompressedSizeCorruption
                raise CorruptMessageError(
                    f"the payload announces {size} bytes uncompressed, more than maxMessageBytes={max_bytes} allows"
                )
            self._suspect = ValidationError.DecompressionError
            columns.replace_payload(decompress(COMPRESSION_TYPES[number], columns.payload(), size))
            self._suspect = ValidationError.BatchDeSerializeError
        if flags & BATCH:
            return columns.append_batch(ledger_id, entry_id, ack_set, first_index, last_index)
        return columns.append_single(ledger_id, entry_id)

    def _decrypted(self, body: bytes | memoryview, ledger_id: int, entry_id: int, emit: bool) -> bytes | None:
        """Return the decrypted payload of the opened entry; None if there is no key for it and that is no error.

        Raises:
            CorruptMessageError: its metadata cannot be parsed.
            EncryptedMessageError: there is no key for it, and `on_encrypted` is ``fail``.
            UnreadableKeyError: its key cannot be read.
        """
        reason = _NO_KEY
        if self._decryptor is not None:
            try:
                return self._decryptor.decrypt(self._columns.payload(), decode_metadata(memoryview(body))[0])
            except UnreadableKeyError:
                raise
            except EncryptedMessageError as error:
                reason = str(error)
        if emit and self._on_encrypted == "fail":
            raise EncryptedMessageError(reason)
        if emit and self._on_encrypted == "skip":
            if not self.discarded_entries:
                where = f"{self._topic}: message {ledger_id}:{entry_id}"
                logger.warning("%s and others like it are left out (cryptoFailureAction=DISCARD): %s", where, reason)
            self.discarded_entries += 1
            self.damage = ValidationError.DecryptionError
        return None

    def _append_encrypted(self, body: bytes | memoryview, ledger_id: int, entry_id: int) -> int:
        if ENCRYPTION_CONTEXT not in self._sparse:
            return self._columns.append_single(ledger_id, entry_id)
        metadata, size = decode_metadata(memoryview(body))
        appended = self._columns.append_single(ledger_id, entry_id)
        self._sparse.put(ENCRYPTION_CONTEXT, self._columns.rows - 1, encryption_context_of(metadata), size)
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
        """Return ledger and entry of the oldest first chunk under assembly: where to resume after a reconnect."""
        return self._chunks.pending_start()
