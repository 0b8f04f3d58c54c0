"""Encodes Arrow RecordBatches into the entries of a producer.

`EntryEncoder` decides which rows share an entry, compresses, encrypts, splits large messages into chunks and adds
metadata and checksum. The loop over rows and bytes is `BatchPayload`, compiled in ``_encode_native``;
``_encode_python`` specifies it, with the rules for rows.
"""

from __future__ import annotations

import uuid
from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
from crc32c import crc32c

from spark_mq_source.core.compression import compress
from spark_mq_source.core.errors import UnwritableRowError
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.core.options import INT32_MAX
from spark_mq_source.core.utf8 import check_texts
from spark_mq_source.pulsar.payload import _encode_python
from spark_mq_source.pulsar.payload.layout import ALONE, COMPRESSION_TYPES, TAKEN, Row, row_of
from spark_mq_source.pulsar.protocol.commands import Send
from spark_mq_source.pulsar.protocol.metadata import MessageMetadata, encode_metadata
from spark_mq_source.pulsar.protocol.wire import CHECKSUM_MAGIC

if TYPE_CHECKING:
    from spark_mq_source.pulsar.payload.cipher import PayloadEncryptor
    from spark_mq_source.pulsar.write.deduplication import EntryNumbers

encoding: Final = Implementation(_encode_python)

RowSource: TypeAlias = _encode_python.RowSource
"""The rows of `open_rows`."""

_CODEC_NUMBERS: Final = {name: number for number, name in enumerate(COMPRESSION_TYPES)}
_SIZE_BYTES: Final = 4
_TEXT_COLUMNS: Final = ("key", "topic", "properties")


def open_rows(batch: pa.RecordBatch, implementation: str | None = None, *, first_row: int = 0) -> RowSource:
    """Return the rows of a RecordBatch, for `EntryEncoder.append` of the same implementation.

    Args:
        batch: the rows.
        implementation: ``native`` or ``python``; None for that of the environment variable, else the best available.
        first_row: the number of the first row among those of the task, for errors.

    Raises:
        OptionError: a column is unknown or of a type that cannot be written, or there is no column ``value``.
        UnwritableRowError: a row has text that is not UTF-8; a value counts as bytes, whatever its type.
    """
    check_texts(batch, _TEXT_COLUMNS, first_row)
    source: RowSource = encoding.load(implementation).RowSource(batch)
    return source


class EntryEncoder:
    """Encoder of the rows for one topic-partition as the SENDs of one producer.

    The division into entries depends only on the rows and the arguments: not on time, nor on the division of the rows
    into RecordBatches. Only `flush` ends an entry early.

    Args:
        producer_name: name of the producer, as in PRODUCER_SUCCESS.
        sequence_id: id of the first message; each one has its own, counted up from here.
        max_message_bytes: the broker's maximum size of an entry, metadata and checksum included.
        compression: one of `core.compression.CODECS`. A payload that does not shrink is sent uncompressed.
        batch_bytes: maximum uncompressed payload of a batch; never more than three quarters of `max_message_bytes`,
            which leaves space for the metadata. A larger message is sent alone.
        batching_by_key: whether all messages of a batch have the same ordering key (without one, the same key), as
            consumers of a Key_Shared subscription need. Rows should be ordered by it.
        chunking: whether a message larger than `max_message_bytes` is split into several entries, or is an error.
        schema_version: of the messages, from PRODUCER_SUCCESS; empty for none.
        txn_id: their transaction: the less and the more significant half of its id.
        replicate_to: the clusters that get copies; empty for those of the namespace.
        numbering: returns the sequence ids of entries; None for the rows' own.
        implementation: ``native`` or ``python``; None for that of the environment variable, else the best available.

    Attributes:
        sequence_id: id of the next row.
        schema_version: as above.

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
        replicate_to: Sequence[str] = (),
        numbering: EntryNumbers | None = None,
        encryptor: PayloadEncryptor | None = None,
        implementation: str | None = None,
    ) -> None:
        self._producer_id = producer_id
        self._producer_name = producer_name
        self.sequence_id = sequence_id
        self._max_message_bytes = max_message_bytes
        self._compression = compression
        self._batching = batching
        self._chunking = chunking
        self.schema_version = schema_version
        self._txn_id = txn_id
        self._replicate_to = replicate_to
        self._numbering = numbering
        self._encryptor = encryptor
        # With `numbering`, attempts share names and ids: a message must not be assembled from chunks of several
        # attempts.
        self._uuid_end = "" if numbering is None else f"-{uuid.uuid4().hex}"
        self._payload: _encode_python.BatchPayload = encoding.load(implementation).BatchPayload(
            max_bytes=min(batch_bytes, max_message_bytes * 3 // 4), max_rows=batch_rows, by_key=batching_by_key
        )
        self._finished: list[Send] = []

    @property
    def nbytes(self) -> int:
        """Size of the incomplete batch in bytes."""
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
        """Add rows, as `BatchPayload.append`, until entries are complete, published at `now_ms`, or all rows are added.

        Returns:
            The index in `order` of the first row that was not added; `end` if all were.

        Raises:
            UnwritableRowError: a row cannot become a message; the rows before it are added.
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
        """Complete the entry under construction, if there is one."""
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
        # The first message's: a Key_Shared subscription uses these to choose its consumer (as the Java client).
        _put_keys(metadata, key, is_base64, ordering_key)
        if last > first:
            metadata["highest_sequence_id"] = last
        with payload.view() as view:
            changed = self._compressed(view, metadata)
            if self._encryptor is not None:
                self._encryptor.describe(metadata, now_ms)
                changed = self._encryptor.encrypt(view if changed is None else changed, metadata)
            head = _head_of(metadata, view if changed is None else changed)
        if changed is None:
            body: bytes | memoryview = payload.take(head)
        else:
            body = b"".join((head, changed))
            payload.clear()
        self._finish(first, body, rows, last if last > first else None)

    def take(self) -> list[Send]:
        """Return the SENDs of the entries completed since the last call, in order."""
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
        if self._encryptor is not None:
            self._encryptor.describe(metadata, now_ms)
        body = self._body_of(metadata, payload)
        if len(body) <= self._max_message_bytes:
            self._finish(sequence_id, body, 1, None)
            return
        if not self._chunking:
            raise UnwritableRowError(
                f"a message of {len(body)} bytes is larger than the {self._max_message_bytes} that the "
                f"broker takes; set chunking=true to cut it into several entries, or raise the broker's maxMessageSize"
            )
        for body in self._chunks(metadata, payload, before):
            self._finish(metadata["sequence_id"], body, 1, None)
            self._finished[-1] = self._finished[-1]._replace(is_chunk=True)

    def _chunks(self, metadata: MessageMetadata, payload: bytes | memoryview, before: int | None) -> Iterator[bytes]:
        """Yield a message's entries; `metadata` is changed to that of the yielded one.

        Only the last one has the message's id. A broker that loads a topic takes the highest id of its entries, chunks
        included, as stored, and would drop the missing chunks of the message (seen on broker 4.0.8).

        Args:
            metadata: the message's metadata.
            payload: its value, as sent.
            before: id of all entries but the last; None for ids that count up to the next message's.
        """
        sequence_id = metadata["sequence_id"]
        metadata["uuid"] = f"{self._producer_name}-{sequence_id}{self._uuid_end}"
        metadata["total_chunk_msg_size"] = len(payload)
        # The largest possible numbers, so that all chunks but the last have the same size.
        metadata["num_chunks_from_msg"] = metadata["chunk_id"] = INT32_MAX
        metadata["sequence_id"] = sequence_id + len(payload)
        room = self._max_message_bytes - len(self._body_of(metadata, b""))
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
            yield self._body_of(metadata, view[start : start + room])

    def _body_of(self, metadata: MessageMetadata, payload: bytes | memoryview) -> bytes:
        """Return an entry, encrypted if payloads are; `metadata` then has the keys already."""
        if self._encryptor is not None:
            payload = self._encryptor.encrypt(payload, metadata)
        return b"".join((_head_of(metadata, payload), payload))

    def _metadata(self, sequence_id: int, now_ms: int) -> MessageMetadata:
        metadata = MessageMetadata(producer_name=self._producer_name, sequence_id=sequence_id, publish_time=now_ms)
        if self.schema_version:
            metadata["schema_version"] = self.schema_version
        if self._txn_id is not None:
            metadata["txnid_least_bits"], metadata["txnid_most_bits"] = self._txn_id
        if self._replicate_to:
            metadata["replicate_to"] = self._replicate_to
        return metadata

    def _compressed(self, payload: bytes | memoryview, metadata: MessageMetadata) -> bytes | memoryview | None:
        """Return the compressed payload, and record it in the metadata; None if it does not shrink."""
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
    """Refuse a row that breaks a rule."""
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
