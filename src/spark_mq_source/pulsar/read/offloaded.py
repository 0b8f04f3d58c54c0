"""Reads offloaded ledgers from the object store, as the broker would have sent them.

A message is sent as it is stored, except that the broker leaves out messages of aborted transactions: the objects do
not tell which these are, so from the first message of a transaction on, a range is read from brokers. A chunked message
whose beginning is before the range is read from them too.
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import (
    CorruptMessageError,
    EncryptedMessageError,
    MQSourceError,
    StorageError,
    UnsupportedFeatureError,
)
from spark_mq_source.net.stopwatch import waiting
from spark_mq_source.net.storage import Store, open_store
from spark_mq_source.pulsar.client.admin import Ledger
from spark_mq_source.pulsar.offsets import EARLIEST, Position
from spark_mq_source.pulsar.options.reading import ALWAYS
from spark_mq_source.pulsar.payload.messages import WHOLE_ENTRY, TransactionalEntryError
from spark_mq_source.pulsar.protocol.offloaded import MAX_INDEX_BYTES, EntryParser, LedgerIndex, parse_index
from spark_mq_source.pulsar.read.decoding import decoder_of
from spark_mq_source.pulsar.read.reader import PulsarRange, read_range

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.pulsar.options import PulsarOptions

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

RANGE_BYTES: Final = 128 << 20
"""The size at which a range of objects ends, as of files in Spark (`spark.sql.files.maxPartitionBytes`)."""

PART_BYTES: Final = 8 << 20
"""The largest size of one request."""

PARTS_AHEAD: Final = 3
"""The number of requests under way or answered and not decoded."""

_SPARE: Final[deque[bytearray]] = deque(maxlen=PARTS_AHEAD + 1)
"""Memory of parts that a task leaves for the next one: new memory costs as much as the bytes that fill it."""


def _has_position(ledgers: Sequence[Ledger], start: Position) -> bool:
    """Return whether a topic with these ledgers has had the position; one after the last entry of a ledger counts."""
    if start.entry < 0:
        return start == EARLIEST or (bool(ledgers) and ledgers[0].ledger_id <= start.ledger)
    return any(ledger.ledger_id == start.ledger and start.entry <= ledger.entries for ledger in ledgers)


def split_by_storage(
    options: PulsarOptions, r: PulsarRange, ledgers: Sequence[Ledger], range_bytes: int
) -> list[PulsarRange]:
    """Split a range into ranges of the object store, of about `range_bytes`, and ranges of brokers.

    Ledgers larger than that are split where blocks begin, which their index objects tell.

    Args:
        options: the query's options.
        r: the range.
        ledgers: all ledgers of the topic-partition, oldest first.
        range_bytes: the size at which a range of the store ends.

    Raises:
        UnsupportedFeatureError: `readOffloaded=always`, and a ledger of the range is not offloaded.
        StorageError: `readOffloaded=always`, and an index cannot be read.
    """
    inside = [ledger for ledger in ledgers if r.start.ledger <= ledger.ledger_id <= r.end.ledger and ledger.entries]
    parts: list[_Part] = []
    # If the first ledgers were deleted since the range was planned, the start never existed, or the end is unknown,
    # brokers have to report it.
    is_placed = _has_position(ledgers, r.start)
    if is_placed:
        for ledger in inside:
            end = min(Position(ledger.ledger_id, ledger.entries - 1), r.end)
            if r.start < end and end.entry >= 0:
                parts += _parts_of(options, r, ledger, end, range_bytes)
    if not parts or parts[-1].end < r.end:
        parts.append(_Part(r.end, None, 0))
    kept = next((part.end.ledger for part in parts if part.ledger is None), None)
    if options.read_offloaded == ALWAYS and not is_placed:
        raise UnsupportedFeatureError(
            f"{r}: the topic has no position {r.start}, so only brokers can tell whether messages were deleted: set "
            "readOffloaded=auto"
        )
    if options.read_offloaded == ALWAYS and kept is not None:
        raise UnsupportedFeatureError(
            f"{r}: ledger {kept} is not in offloadStorage: end the range before it (endingOffsets), offload it "
            "(pulsar-admin topics offload), or set readOffloaded=auto, which reads it from brokers"
        )
    pieces: list[PulsarRange] = []
    size = 0
    for part in parts:
        last = pieces[-1] if pieces else None
        of_store = part.ledger is not None
        size += part.nbytes
        if last is None or bool(last.ledgers) != of_store or (of_store and size > range_bytes):
            last, size = replace(r, start=last.end if last else r.start), part.nbytes
            pieces.append(last)
        more = () if part.ledger is None or part.ledger in last.ledgers else (part.ledger,)
        pieces[-1] = replace(last, end=part.end, ledgers=(*last.ledgers, *more))
    return pieces


class _Part(NamedTuple):
    """An indivisible part of a range: entries up to `end`; the ledger is None if brokers serve them."""

    end: Position
    ledger: Ledger | None
    nbytes: int


def _parts_of(
    options: PulsarOptions, r: PulsarRange, ledger: Ledger, end: Position, range_bytes: int
) -> Sequence[_Part]:
    if not ledger.uuid:
        return [_Part(end, None, 0)]
    if ledger.stored_bytes <= range_bytes:
        return [_Part(end, ledger, ledger.stored_bytes)]
    try:
        with closing(open_objects(options)) as store:
            index = _StoredLedger(store, ledger).index
    except StorageError as error:
        if options.read_offloaded == ALWAYS:
            raise
        logger.warning("%s: read from brokers: %s", r, error)
        return [_Part(end, None, 0)]
    sizes = [b.offset - a.offset for a, b in itertools.pairwise(index.blocks)]
    cuts = [Position(ledger.ledger_id, block.first_entry - 1) for block in index.blocks[1:]]
    inside = [_Part(cut, ledger, size) for cut, size in zip(cuts, sizes, strict=True) if r.start < cut < end]
    return [*inside, _Part(end, ledger, index.data_bytes - index.blocks[-1].offset)]


def read_offloaded(
    options: PulsarOptions, task: PulsarRange, schema: pa.Schema, counters: Counters | None = None
) -> Iterator[pa.RecordBatch]:
    """Read one range of the object store; with `readOffloaded=auto`, from brokers what cannot be read there.

    Yields:
        Batches of `schema`, of at most about `maxBatchRows` rows and `maxBatchBytes` bytes.

    Raises:
        StorageError: `readOffloaded=always`, and an object is gone, damaged or unreachable.
        UnsupportedFeatureError: `readOffloaded=always`, and a ledger has messages of transactions.
        MQSourceError: as for `read_range`.
    """
    counters = counters or Counters()
    reader = _StoreReader(options, task, schema, counters)
    try:
        yield from reader.batches()
    except MQSourceError as error:
        if options.read_offloaded == ALWAYS or not isinstance(error, _BROKERS_MAY_READ):
            raise error.within(f"pulsar-native: reading {task}") from error
        logger.warning("%s: read from brokers after %s: %s", task, reader.done, error)
    else:
        return
    yield from reader.rest()
    yield from read_range(options, replace(task, start=reader.done, ledgers=()), schema, counters)


_BROKERS_MAY_READ: Final = (StorageError, TransactionalEntryError)


class _StoredLedger:
    """The two objects of a ledger, and the entries of them that a task reads.

    Raises:
        StorageError: the index is gone, damaged or unreachable.
    """

    def __init__(self, store: Store, ledger: Ledger, first: int = 0, last: int = 0, max_entry_bytes: int = 0) -> None:
        self._store = store
        self.ledger = ledger
        self._first = first
        self._last = last
        self._found = first - 1
        self.path = f"{ledger.uuid}-ledger-{ledger.ledger_id}"
        self.index: LedgerIndex = self._guarded(f"{self.path}-index", self._read_index)
        block, end = self.index.extent(first, last)
        self.extent = block.offset, end
        """The offsets in the data object between which the entries are."""
        self._parser = EntryParser(self.index, block, max_entry_bytes=max_entry_bytes)

    def receive(self, part: Future[memoryview]) -> memoryview:
        """Return a part of the data object once it is received.

        Raises:
            StorageError: the data object is gone, shorter or unreachable.
        """
        return self._guarded(self.path, part.result)

    def entries(self, part: memoryview) -> list[tuple[int, memoryview]]:
        """Return the wanted entries that are whole with the next part of the data object.

        Raises:
            StorageError: the data object is damaged.
        """
        got = self._guarded(self.path, partial(self._parser.feed, part))
        if got:
            self._found = max(self._found, got[-1][0])
            if got[0][0] < self._first or got[-1][0] > self._last:
                got = [one for one in got if self._first <= one[0] <= self._last]
        return got

    @property
    def is_complete(self) -> bool:
        """Whether the last wanted entry was found."""
        return self._found >= self._last

    def finish(self) -> None:
        """Check, after the last part, that all entries were there.

        Raises:
            StorageError: they were not.
        """
        if not self.is_complete:
            raise self._damaged(self.path, f"it ends after entry {self._found}, before {self._last}")

    def _read_index(self) -> LedgerIndex:
        index = parse_index(self._store.read(f"{self.path}-index", MAX_INDEX_BYTES))
        # It has more if the broker wrote the last ones again to the next ledger, and does not count them here.
        if index.entries < self.ledger.entries:
            raise CorruptMessageError(f"it has {index.entries} entries instead of {self.ledger.entries}")
        return index

    def _guarded(self, path: str, take: Callable[[], _T]) -> _T:
        try:
            return take()
        except FileNotFoundError:
            raise StorageError(
                f"{self._store.where(path)} does not exist, so ledger {self.ledger.ledger_id} was deleted since the "
                "query was planned, or offloadStorage is not where the broker's offloader puts ledgers; plan again, or "
                "set readOffloaded=auto, which then asks brokers"
            ) from None
        except CorruptMessageError as error:
            raise self._damaged(path, str(error)) from error

    def _damaged(self, path: str, reason: str) -> StorageError:
        return StorageError(
            f"{self._store.where(path)} is not ledger {self.ledger.ledger_id} as Pulsar's offloaders write it: "
            f"{reason}; restore the object, or set readOffloaded=auto, which then asks brokers"
        )


def open_objects(options: PulsarOptions) -> Store:
    """Return the store of `offloadStorage`.

    Raises:
        OptionError: the URL cannot be used.
        UnsupportedFeatureError: its scheme is unknown, or obstore is not installed.
    """
    return open_store(options.offload_storage or "", name="offloadStorage ")


def _take_spare(size: int) -> bytearray:
    """Return memory of this size, whose content is arbitrary."""
    with suppress(IndexError):
        while True:
            if len(buffer := _SPARE.pop()) == size:
                return buffer
    return bytearray(size)


class _StoreReader:
    def __init__(self, options: PulsarOptions, task: PulsarRange, schema: pa.Schema, counters: Counters) -> None:
        self._options = options
        self._task = task
        self._schema = schema
        self._counters = counters
        self._decoder = decoder_of(
            options,
            task.topic_partition,
            schema,
            # What is corrupt here may not be on the brokers.
            on_corrupt=options.on_corrupt if options.read_offloaded == ALWAYS else "fail",
            refuses_transactions=True,
        )
        self.done = task.start
        """The position up to which messages are decoded or left out."""

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are decoded."""
        if self._decoder.rows:
            yield self._decoder.take_batch()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range."""
        with (
            closing(open_objects(self._options)) as store,
            ThreadPoolExecutor(PARTS_AHEAD + 1, thread_name_prefix="offloaded ledger") as pool,
            closing(self._parts(store, pool)) as parts,
        ):
            for stored, entries in parts:
                self._counters.entries += len(entries)
                yield from self._decoded(stored.ledger.ledger_id, entries)
        yield from self.rest()

    def _parts(
        self, store: Store, pool: ThreadPoolExecutor
    ) -> Generator[tuple[_StoredLedger, Sequence[tuple[int, memoryview]]], None, None]:
        """Yield the entries of all ledgers, part by part; `PARTS_AHEAD` requests are under way or answered.

        The memory of a part is used again for a later one, also of the next task.
        """
        size = min(PART_BYTES, self._options.receive_queue_bytes // (PARTS_AHEAD + 1))
        ahead: deque[tuple[_StoredLedger, bool, bytearray, Future[memoryview]]] = deque()
        free: list[bytearray] = []  # of this task; those of requests under way are never reused
        requests = self._requests(store, pool, size)
        try:
            while True:
                for stored, offset, end in itertools.islice(requests, PARTS_AHEAD - len(ahead)):
                    buffer = free.pop() if free else _take_spare(size)
                    into = memoryview(buffer)[: min(size, end - offset)]
                    future = pool.submit(store.read_part, stored.path, offset, into)
                    ahead.append((stored, offset + size >= end, buffer, future))
                if not ahead:
                    return
                stored, is_last, buffer, future = ahead.popleft()
                with waiting(self._counters):
                    part = stored.receive(future)
                yield stored, stored.entries(part)
                if is_last:
                    stored.finish()
                free.append(buffer)
        finally:
            for *_, future in ahead:
                future.cancel()
            _SPARE.extend(free)

    def _requests(self, store: Store, pool: ThreadPoolExecutor, size: int) -> Iterator[tuple[_StoredLedger, int, int]]:
        """Yield each ledger, the offset of each part of it, and the end; the next index is read meanwhile."""
        start, end, ledgers = self._task.start, self._task.end, self._task.ledgers

        def opened(ledger: Ledger) -> Future[_StoredLedger]:
            # A start within an entry is that entry.
            first = start.entry + (start.batch < 0) if ledger.ledger_id == start.ledger else 0
            last = end.entry if ledger.ledger_id == end.ledger else ledger.entries - 1
            bounds = max(first, 0), min(last, ledger.entries - 1)
            return pool.submit(_StoredLedger, store, ledger, *bounds, self._options.max_message_bytes)

        following = opened(ledgers[0])
        for number in range(1, len(ledgers) + 1):
            with waiting(self._counters):
                stored = following.result()
            if number < len(ledgers):
                following = opened(ledgers[number])
            begin, stop = stored.extent
            for offset in range(begin, stop, size):
                if stored.is_complete:
                    break  # the range ends within a block
                yield stored, offset, stop

    def _decoded(self, ledger: int, entries: Sequence[tuple[int, memoryview]]) -> Iterator[pa.RecordBatch]:
        decoder, options, start, end = self._decoder, self._options, self._task.start, self._task.end
        entry = -1
        nbytes = 0
        try:
            for number, body in entries:
                at = ledger, number
                is_end = at == (end.ledger, end.entry) and end.batch >= 0
                decoder.decode(
                    ledger,
                    number,
                    body,
                    (),
                    start.batch + 1 if at == (start.ledger, start.entry) else 0,
                    end.batch if is_end else WHOLE_ENTRY,
                )
                while decoder.unfinished:
                    yield decoder.take_batch()
                    decoder.decode_rest()
                orphan, decoder.orphan = decoder.orphan, None
                if orphan is not None and orphan.chunk_id == orphan.num_chunks - 1:
                    yield from self.rest()
                    yield from self._from_brokers(Position(ledger, number))
                entry = number
                nbytes += len(body)
                if decoder.rows >= options.max_batch_rows or decoder.nbytes >= options.max_batch_bytes:
                    yield decoder.take_batch()
        except EncryptedMessageError:
            raise
        except CorruptMessageError as error:
            raise StorageError(
                f"ledger {ledger} in offloadStorage: {error}; restore the object, set readOffloaded=auto, which then "
                "asks brokers, or set onCorrupt"
            ) from error
        finally:
            self._counters.entry_bytes += nbytes
            if entry >= 0:
                self.done = Position(ledger, entry)

    def _from_brokers(self, at: Position) -> Iterator[pa.RecordBatch]:
        """Yield the chunked message that ends at a position and begins before the range."""
        task = replace(self._task, start=Position(at.ledger, at.entry - 1), end=at, ledgers=())
        yield from read_range(self._options, task, self._schema, self._counters)
