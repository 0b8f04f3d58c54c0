"""One task's messages -> Arrow batches: straight from an nsqd, or by way of the write-ahead folder.

Without `walDir` a read is a drain: messages are finished once Spark has taken their rows, and whoever reads again gets
others. With it the messages of a task are written down first and finished then; see `wal` for how attempts agree.

A message is in flight from its delivery until its FIN, and nsqd delivers no more than it was let (RDY) ahead. So RDY is
never more than what the task still wants: nothing has to be put back, and nothing is delivered once too often.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_mq_source.core.columns import (
    ConstantColumn,
    fixed_width_array,
    is_text,
    record_batch,
    variable_width_array,
)
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import (
    CorruptMessageError,
    MQSourceError,
    RequestTimeoutError,
    TooManyAttemptsError,
    TransportError,
)
from spark_mq_source.net.stopwatch import waiting
from spark_mq_source.nsq.client.client import NsqClient, Nsqd
from spark_mq_source.nsq.options import AckMode, NsqOptions, OnMaxAttempts
from spark_mq_source.nsq.payload.columns import COLUMNS
from spark_mq_source.nsq.payload.messages import MessageDecoder, message_ids
from spark_mq_source.nsq.protocol.commands import Pub
from spark_mq_source.nsq.protocol.wire import MESSAGE_ID_BYTES
from spark_mq_source.nsq.read.recent import RecentIds, split_ids
from spark_mq_source.nsq.read.wal import Slot, TaskLog, open_folder

if TYPE_CHECKING:
    from spark_mq_source.nsq.client.session import Consumer


logger = logging.getLogger(__name__)

IDLE_MS: Final = 500
"""How long a trigger waits for a next message, unless `idleTimeout` says: what is late is in the next trigger."""

DRAIN_IDLE_MS: Final = 2000
"""How long a batch read that has no other end in time does: there is no next one for what is late."""

LONGEST_WAIT_SECONDS: Final = 1.0
"""A wait for messages is never longer, so that what else has to be done is done in time."""

_LOGGED: Final = pa.schema(
    [
        ("value", pa.binary()),
        ("message_id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("attempts", pa.int32()),
    ]
)
"""What is written down, whatever columns are asked for: whoever does the batch over may ask for others."""


@dataclass(frozen=True, slots=True)
class NsqRange:
    """The work of one task.

    Attributes:
        nsqd: who is asked.
        max_rows: how many messages at most; None for no bound.
        folder: of the batch, in `walDir`; empty without.
        task: the task's number in it.
        duplicates: ids of messages that earlier batches have, and that may come again.
        recent: ids of the messages that earlier batches have finished last, one after the other.
    """

    nsqd: Nsqd
    max_rows: int | None = None
    folder: str = ""
    task: int = 0
    duplicates: frozenset[str] = frozenset()
    recent: str = ""

    def __str__(self) -> str:
        return f"nsqd {self.nsqd.name}" + (f", task {self.task} of {self.folder}" if self.folder else "")


def read_range(
    options: NsqOptions, task: NsqRange, schema: pa.Schema, counters: Counters | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, in batches of `schema`; `counters` count what came from nsqd.

    Raises:
        OptionError: columns or types that cannot be built.
        CorruptMessageError: text was asked for and a message is not UTF-8.
        TooManyAttemptsError: a message came more often than `maxAttempts` says, and `onMaxAttempts` is `fail`.
        DataLossError: the write-ahead log was deleted.
        MQSourceError: nsqd refuses, or (but in a stream) cannot be reached or goes away.
    """
    COLUMNS.check_read(schema)
    with closing(_read_range(options, task, schema, counters or Counters())) as batches:
        for batch in batches:
            # What came in one piece is decoded in one.
            for at in range(0, batch.num_rows, options.max_batch_rows):
                yield batch.slice(at, options.max_batch_rows)


def _read_range(
    options: NsqOptions, task: NsqRange, schema: pa.Schema, counters: Counters
) -> Generator[pa.RecordBatch, None, None]:
    if not task.folder:
        yield from _Drain(options, task, schema, counters).rows()
        return
    log = TaskLog(open_folder(options.wal_dir or ""), task.folder, task.task)
    log.catch_up()
    if not log.is_ended:
        _Collector(options, task, log, counters).collect()
    project = _Projection(options, task, schema)
    for slot in log.slots:
        if not slot.is_end:
            yield from map(project, log.read(slot))


class _Limits:
    """When a read ends: so many messages, so long, or nothing for a while; None is no such limit."""

    def __init__(self, max_rows: int | None, max_seconds: float | None, idle_seconds: float | None) -> None:
        self._max_rows = max_rows
        self._deadline = float("inf") if max_seconds is None else time.monotonic() + max_seconds
        self._idle_seconds = float("inf") if idle_seconds is None else idle_seconds
        self._heard = time.monotonic()

    def heard(self) -> None:
        """Messages came, or nobody has listened until now: the wait for the next one begins."""
        self._heard = time.monotonic()

    def wanted(self, rows: int, most: int) -> int:
        """How many more than `rows` may be on their way at once; `most` at most."""
        return most if self._max_rows is None else max(0, min(most, self._max_rows - rows))

    def seconds_left(self) -> float:
        """How long the next message may take to come."""
        return max(0.0, min(self._deadline, self._heard + self._idle_seconds) - time.monotonic())


class _Received:
    """Messages that were received and not handed on yet, decoded into `schema`."""

    def __init__(self, options: NsqOptions, task: NsqRange, schema: pa.Schema, counters: Counters) -> None:
        self._counters = counters
        self._decoder = MessageDecoder(
            schema, topic=options.topic or "", channel=options.channel or "", nsqd=task.nsqd.name
        )
        self._ids: list[bytes] = []
        self._since = 0.0
        self._most_rows = options.max_batch_rows
        self._most_bytes = options.max_batch_bytes

    def receive(self, consumer: Consumer, timeout_seconds: float) -> bool:
        """Takes what is there, or what comes in time; whether that was anything."""
        if not self.rows:
            self._since = time.monotonic()
        timeout_seconds = min(timeout_seconds, LONGEST_WAIT_SECONDS)
        with waiting(self._counters):
            runs = consumer.receive(max_bytes=self._most_bytes, timeout_seconds=timeout_seconds)
        self._counters.entries += len(runs)
        self._counters.entry_bytes += sum(len(run.data) for run in runs)
        for at, run in enumerate(runs):
            try:
                self._ids.append(self._decoder.append(run))
            except MQSourceError:
                # Nobody can read them, but they are ours until they are put back.
                self._ids += map(message_ids, runs[at:])
                raise
        return bool(runs)

    @property
    def rows(self) -> int:
        """How many there are."""
        return self._decoder.rows

    @property
    def ids(self) -> bytes:
        """The ids of all of them, 16 bytes each."""
        # A copy, because another thread asks too.
        return b"".join(tuple(self._ids))

    def is_due(self, wanted: int, most: int, patience_seconds: float) -> bool:
        """Whether they are to be handed on before more is waited for.

        At half of what may be in flight: nsqd sends the other half meanwhile. And well before their timeout.
        """
        return self.rows > 0 and (
            self.rows >= wanted
            or self.rows * 2 >= most
            or self.rows >= self._most_rows
            or self._decoder.nbytes >= self._most_bytes
            or time.monotonic() - self._since >= patience_seconds
        )

    def take(self) -> tuple[bytes, pa.RecordBatch]:
        """Their ids and rows; starts over."""
        ids, self._ids = self.ids, []
        return ids, self._decoder.take_batch()


class _Task:
    """What both ways to read have in common: the connection, and messages that came more than once."""

    def __init__(self, options: NsqOptions, task: NsqRange, counters: Counters) -> None:
        self._counters = counters
        self._options = options
        self._task = task
        self._where = f"nsq topic {options.topic}, channel {options.channel}, nsqd {task.nsqd.name}"

    @contextmanager
    def _subscribed(self) -> Iterator[Consumer]:
        with waiting(self._counters):
            opened = NsqClient(self._options).open_session(self._task.nsqd)
        with opened as session:
            with waiting(self._counters):
                consumer = session.subscribe(self._options.topic or "", self._options.channel or "")
            yield consumer

    def _most_in_flight(self, consumer: Consumer) -> int:
        most = consumer.session.identified.max_rdy_count
        return most if self._options.max_in_flight is None else min(most, self._options.max_in_flight)

    def _wait(self, consumer: Consumer, received: _Received, limits: _Limits, wanted: int) -> bool:
        """Receives until that is to be handed on; whether there is anything."""
        most, patience = self._most_in_flight(consumer), _patience_seconds(consumer)
        # While Spark took the last rows, or walDir did, nobody listened: that was no silence.
        limits.heard()
        looked = time.monotonic()
        while not received.is_due(wanted, most, patience):
            left = limits.seconds_left()
            if not (wanted and left):
                break
            if received.receive(consumer, left):
                limits.heard()
            if time.monotonic() - looked >= LONGEST_WAIT_SECONDS:
                if self._is_over():
                    return False
                looked = time.monotonic()
        return received.rows > 0

    def _is_over(self) -> bool:
        """Whether nobody wants more of this attempt."""
        return False

    @staticmethod
    def _put_back(consumer: Consumer, ids: bytes) -> None:
        if ids and not consumer.session.closed:
            # Or they would be delivered here once more.
            consumer.ready(0)
            consumer.requeue(ids)

    def _close(self, consumer: Consumer) -> bytes:
        """The barrier; returns the ids of what was finished too late."""
        with waiting(self._counters):
            refused = consumer.close(timeout_seconds=self._options.operation_timeout_ms / 1000)
        if refused:
            count = len(refused) // MESSAGE_ID_BYTES
            logger.warning("%s: %d messages were finished after their timeout, and come again", self._where, count)
        return refused

    def _sorted_out(
        self, consumer: Consumer, batch: pa.RecordBatch, known: Callable[[], set[str]], repeated: Set[int] = frozenset()
    ) -> pa.RecordBatch:
        """The batch without duplicates, and without messages that are given up.

        Args:
            consumer: whose session publishes what is given up.
            batch: with the columns of `_LOGGED`.
            known: gives the ids that are read already; asked for only where a message has come before, and added to.
            repeated: rows that are known to be duplicates, whatever nsqd says of their attempts.

        Raises:
            TooManyAttemptsError: a message came too often.
            MQSourceError: nsqd did not take a message that was given up.
        """
        attempts = memoryview(batch.column("attempts").buffers()[1]).cast("i")[: batch.num_rows]
        came_again = max(attempts, default=0) > 1
        if not came_again and not repeated:
            return batch
        limit, seen = self._options.max_attempts, known() if came_again else set()
        kept = array("i")
        for row, id_ in enumerate(batch.column("message_id").to_pylist()):
            if row in repeated or id_ in seen:
                continue
            seen.add(id_)
            if limit and attempts[row] > limit:
                self._give_up(consumer, id_, attempts[row], batch.column("value")[row].as_buffer())
            else:
                kept.append(row)
        if len(kept) == batch.num_rows:
            return batch
        logger.info("%s: %d messages left out: come again, or given up", self._where, batch.num_rows - len(kept))
        return _only(batch, kept)

    def _give_up(self, consumer: Consumer, id_: str, attempts: int, value: pa.Buffer) -> None:
        options = self._options
        if options.on_max_attempts is OnMaxAttempts.FAIL:
            raise TooManyAttemptsError(
                f"{self._where}: message {id_} was delivered {attempts} times, and maxAttempts is "
                f"{options.max_attempts}; set onMaxAttempts=deadLetterTopic to put such messages aside"
            )
        answer = consumer.session.publish(Pub(options.dead_letter_topic or "", value))
        try:
            answer.result(options.operation_timeout_ms / 1000)
        except FutureTimeoutError:
            raise RequestTimeoutError(f"{self._where}: no OK for message {id_} within operationTimeout") from None
        except MQSourceError as error:
            raise error.within(f"{self._where}: message {id_} to topic {options.dead_letter_topic}") from error


class _Drain(_Task):
    """Messages straight from nsqd, finished (or put back) when Spark has taken their rows."""

    def __init__(self, options: NsqOptions, task: NsqRange, schema: pa.Schema, counters: Counters) -> None:
        super().__init__(options, task, counters)
        self._schema = schema

    def rows(self) -> Iterator[pa.RecordBatch]:
        """See `read_range`."""
        options = self._options
        # Whether a message came too often cannot be told by any columns.
        project = _Projection(options, self._task, self._schema) if options.max_attempts else None
        received = _Received(options, self._task, self._schema if project is None else _LOGGED, self._counters)
        with self._subscribed() as consumer:
            keeper = _Keeper(consumer, received)
            try:
                with keeper:
                    for ids, batch in self._received(consumer, received):
                        keeper.held += ids
                        rows = batch if project is None else project(self._sorted_out(consumer, batch, set))
                        if rows.num_rows:
                            yield rows
                        if options.ack_mode is AckMode.FIN:
                            consumer.fin(keeper.held)
                            keeper.held = b""
            finally:
                self._put_back(consumer, keeper.held + received.ids)
                if not consumer.session.closed:
                    self._close(consumer)

    def _received(self, consumer: Consumer, received: _Received) -> Iterator[tuple[bytes, pa.RecordBatch]]:
        options, most = self._options, self._most_in_flight(consumer)
        is_peek = options.ack_mode is AckMode.REQUEUE
        max_rows = self._task.max_rows
        if is_peek:
            # All of it stays in flight until the end.
            max_rows = most if max_rows is None else min(most, max_rows)
        limits = _drain_limits(options, max_rows)
        wanted, rows = limits.wanted(0, most), 0
        seen = RecentIds(b"", ())
        consumer.ready(wanted)
        while self._wait(consumer, received, limits, wanted):
            rows += received.rows
            wanted = limits.wanted(rows, most)
            if not is_peek:
                # Before anything is finished: nsqd would send as many again.
                consumer.ready(wanted)
            ids, batch = received.take()
            if is_peek and (repeated := seen.repeated(ids)):
                # They are no longer kept for us: from here on the same ones would come in turns.
                yield ids, _only(batch, array("i", (row for row in range(batch.num_rows) if row not in repeated)))
                return
            if is_peek:
                seen.remember(ids)
            yield ids, batch


class _Collector(_Task):
    """Fills the log of a task: receives, writes down, finishes; until the limits, or until the log has ended."""

    def __init__(self, options: NsqOptions, task: NsqRange, log: TaskLog, counters: Counters) -> None:
        super().__init__(options, task, counters)
        self._log = log
        self._known = set(task.duplicates)
        self._slots_known = 0
        # With what other attempts at this task have written down before.
        self._recent = RecentIds(task.recent.encode(), (id_.encode() for id_ in self._ids_known()))

    def collect(self) -> None:
        """Ends the log, with whatever there was.

        In a stream an nsqd that is not there, or goes away, has no more messages for this batch; those that it has are
        in a later one. A run has no later batch, so its log is not ended then: the next attempt goes on with it.

        Raises:
            MQSourceError: see `read_range`.
        """
        try:
            with self._subscribed() as consumer:
                self._fill(consumer)
                refused = self._close(consumer)
        except TransportError as error:
            if self._options.run_id is not None or not error.retryable:
                raise
            # What was not finished is delivered again, in a later batch: as a duplicate where it is in the log.
            logger.warning("%s: no more of it in this batch: %s", self._where, error)
        else:
            if any(slot.attempt == self._log.attempt for slot in self._log.slots):
                self._log.finished(list(map(bytes.decode, split_ids(refused))), self._recent.last.decode())
        self._log.end()

    def _fill(self, consumer: Consumer) -> None:
        options, most = self._options, self._most_in_flight(consumer)
        if options.run_id is None:
            idle_ms = IDLE_MS if options.idle_timeout_ms is None else options.idle_timeout_ms
            limits = _Limits(self._task.max_rows, _patience_seconds(consumer), idle_ms / 1000)
        else:
            limits = _drain_limits(options, self._task.max_rows)
        received = _Received(options, self._task, _LOGGED, self._counters)
        wanted = limits.wanted(self._log.rows, most)
        consumer.ready(wanted)
        try:
            with _Keeper(consumer, received) as keeper:
                while not self._log.is_ended and self._wait(consumer, received, limits, wanted):
                    ids, is_stored = self._write_down(consumer, received, keeper)
                    wanted = limits.wanted(self._log.rows, most)
                    if is_stored:
                        # Before anything is finished: nsqd would send as many again.
                        consumer.ready(wanted)
                        consumer.fin(ids)
                        self._recent.remember(ids)
        finally:
            # An error, or another attempt has ended the log: nsqd need not wait for the timeout.
            self._put_back(consumer, received.ids)

    def _is_over(self) -> bool:
        # With speculation, Spark may let the attempt that was second go on for as long as it likes. What such attempts
        # hold would go round among them, counted as one more attempt each time, and past those that want it.
        return self._log.look_for_end()

    def _write_down(self, consumer: Consumer, received: _Received, keeper: _Keeper) -> tuple[bytes, bool]:
        """Puts what was received into the log, or back where the log has ended; its ids, and whether it is there."""
        keeper.held, batch = received.take()
        ids = keeper.held
        is_stored = False
        try:
            batch = self._sorted_out(consumer, batch, self._ids_known, self._recent.repeated(ids))
            while not is_stored and not self._log.is_ended:
                slots_seen = len(self._log.slots)
                is_stored = not batch.num_rows or self._log.append(batch)
                if not is_stored:
                    batch = self._without(batch, self._log.slots[slots_seen:])
        finally:
            keeper.held = b""
            if not is_stored:
                self._put_back(consumer, ids)
        return ids, is_stored

    def _without(self, batch: pa.RecordBatch, slots: Sequence[Slot]) -> pa.RecordBatch:
        """What these slots do not have: a message may time out here and be delivered to the attempt that made them."""
        known: set[str] = set()
        for slot in slots:
            if not slot.is_end:
                known |= self._log.ids(slot)
        self._recent.know(map(str.encode, known))
        ids = batch.column("message_id").to_pylist()
        return _only(batch, array("i", (row for row, id_ in enumerate(ids) if id_ not in known)))

    def _ids_known(self) -> set[str]:
        for slot in self._log.slots[self._slots_known :]:
            if not slot.is_end:
                self._known |= self._log.ids(slot)
        self._slots_known = len(self._log.slots)
        return self._known


class _Projection:
    """Rows that were written down -> the columns asked for."""

    def __init__(self, options: NsqOptions, task: NsqRange, schema: pa.Schema) -> None:
        self._schema = schema
        self._where = f"nsq topic {options.topic}, channel {options.channel}, nsqd {task.nsqd.name}"
        constants = {"topic": options.topic or "", "channel": options.channel or "", "nsqd": task.nsqd.name}
        self._constants = {
            field.name: ConstantColumn(constants[field.name], field.type) for field in schema if field.name in constants
        }

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows.

        Raises:
            CorruptMessageError: text was asked for and a message is not UTF-8.
        """
        arrays = [
            self._constants[field.name].take(batch.num_rows)
            if field.name in self._constants
            else self._converted(batch, field)
            for field in self._schema
        ]
        return record_batch(self._schema, arrays, batch.num_rows)

    def _converted(self, batch: pa.RecordBatch, field: pa.Field) -> pa.Array:
        column = batch.column(field.name)
        if column.type == field.type:
            return column
        if not pa.types.is_timestamp(field.type):
            _, offsets, data = column.buffers()
            converted = variable_width_array(field.type, batch.num_rows, offsets, data)
            if is_text(field.type):
                self._check_text(batch, converted)
            return converted
        return fixed_width_array(field.type, batch.num_rows, column.buffers()[1])

    def _check_text(self, batch: pa.RecordBatch, column: pa.Array) -> None:
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for id_, value in zip(
                batch.column("message_id").to_pylist(), batch.column("value").to_pylist(), strict=True
            ):
                try:
                    value.decode()
                except UnicodeDecodeError as error:
                    raise CorruptMessageError(
                        f"{self._where}: message {id_}: value is not UTF-8 ({error}); read it as binary"
                    ) from error
            raise


class _Keeper:
    """Has nsqd wait longer (TOUCH) for every message that is here, as long as the context lasts.

    nsqd 1.3.0 does so up to its `-max-msg-timeout` after the delivery, 15 min by default.

    Args:
        consumer: whose messages; those that it has queued are among them.
        received: those that were taken from it.

    Attributes:
        held: the ids of those that were handed on and not answered yet, 16 bytes each.
    """

    def __init__(self, consumer: Consumer, received: _Received) -> None:
        self.held = b""
        self._consumer = consumer
        self._received = received
        # A message on its way from one place to the next may be missed once.
        self._every_seconds = consumer.session.identified.msg_timeout_ms / 3000
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nsq touch", daemon=True)

    def __enter__(self) -> _Keeper:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(self._every_seconds):
            try:
                # In the order of their way, so that those that move on meanwhile are seen.
                ids = self._consumer.queued_ids() + self._received.ids
                self._consumer.touch(ids + self.held)
            except MQSourceError as error:
                logger.debug("no TOUCH: %s", error)
                return


def _only(batch: pa.RecordBatch, rows: array[int]) -> pa.RecordBatch:
    # From a buffer, because pa.array imports pandas where there is one.
    return batch.take(fixed_width_array(pa.int32(), len(rows), pa.py_buffer(rows)))


def _patience_seconds(consumer: Consumer) -> float:
    """How long a message may wait here before something is done about its timeout: half of it."""
    return consumer.session.identified.msg_timeout_ms / 2000


def _drain_limits(options: NsqOptions, max_rows: int | None) -> _Limits:
    idle_ms = options.idle_timeout_ms
    if idle_ms is None and options.max_seconds is None:
        idle_ms = DRAIN_IDLE_MS
    return _Limits(max_rows, options.max_seconds, None if idle_ms is None else idle_ms / 1000)
