"""Reads messages of one task as Arrow batches: directly from an nsqd, or through the log (`net.queue_task`).

A message is in flight from its delivery until its FIN, and RDY limits the number of messages in flight. RDY never
exceeds what the task still wants, so no message has to be requeued, which would count as an attempt.
"""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark_mq_source.core.columns import ConstantColumn, is_text, record_batch
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import (
    BrokerError,
    CorruptMessageError,
    MQSourceError,
    OptionError,
    RequestTimeoutError,
    TooManyAttemptsError,
    TransportError,
)
from spark_mq_source.net.queue_plan import QueueTask
from spark_mq_source.net.queue_task import Collector, Limits, drained, logged, only_rows
from spark_mq_source.net.stopwatch import waiting
from spark_mq_source.net.write_ahead import TaskLog
from spark_mq_source.nsq.client.client import NsqClient, Nsqd, Source
from spark_mq_source.nsq.options import AckMode, NsqOptions, OnMaxAttempts
from spark_mq_source.nsq.payload.columns import COLUMNS
from spark_mq_source.nsq.payload.messages import MessageDecoder, message_ids
from spark_mq_source.nsq.protocol.commands import ByteString, Identified, Pub
from spark_mq_source.nsq.protocol.wire import MESSAGE_ID_BYTES
from spark_mq_source.nsq.read.backoff import Backoff
from spark_mq_source.nsq.read.recent import RecentIds, split_ids

if TYPE_CHECKING:
    from spark_mq_source.nsq.client.session import Consumer


logger = logging.getLogger(__name__)

_LOGGED: Final = pa.schema(
    [
        ("value", pa.binary()),
        ("message_id", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ns", pa.int64()),
        ("attempts", pa.int32()),
    ]
)
"""Columns in the log, whatever columns are requested: another attempt at the batch may request others."""


_SENDING_MS: Final = 100
"""Time for a message from nsqd's output buffer to this task, before the task may consider the channel idle."""


@dataclass(frozen=True, slots=True)
class NsqRange(QueueTask[Source]):
    """The work of one task."""

    source_type = Source.of_plan

    def __str__(self) -> str:
        part = f", task {self.task} of {self.folder}" if self.folder else ""
        return f"nsqd {self.nsqd.name}, topic {self.source.topic}{part}"

    @property
    def nsqd(self) -> Nsqd:
        """The nsqd of the task."""
        return self.source.nsqd


def read_range(
    options: NsqOptions, task: NsqRange, schema: pa.Schema, counters: Counters | None = None, *, tries: int = 0
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task, in batches of `schema`; update `counters` with received messages.

    `tries` is the number of earlier attempts at this task.

    Raises:
        OptionError: columns or types that cannot be built.
        CorruptMessageError: a text column is requested and a message is not UTF-8.
        TooManyAttemptsError: a message exceeded `maxAttempts`, and `onMaxAttempts` is `fail`.
        DataLossError: the write-ahead log was deleted.
        MQSourceError: nsqd refuses, or (except in a stream) cannot be reached or disconnects.
    """
    COLUMNS.check(schema)
    with closing(_read_range(options, task, schema, counters or Counters(), tries)) as batches:
        for batch in batches:
            # Messages of one log batch are decoded in pieces of the maximum size.
            for at in range(0, batch.num_rows, options.max_batch_rows):
                yield batch.slice(at, options.max_batch_rows)


def _read_range(
    options: NsqOptions, task: NsqRange, schema: pa.Schema, counters: Counters, tries: int
) -> Generator[pa.RecordBatch, None, None]:
    if not task.folder:
        yield from _Attempt(options, task, counters).drain(schema)
        return
    backoff = Backoff(tries, options.max_backoff_ms)
    rows = logged("nsq", options, task, lambda log: _Collector(options, task, log, counters, backoff))
    yield from map(_Projection(options, task, schema), rows)


class _Inflow:
    """Messages of one consumer, decoded into `schema`; see `net.queue_task.Inflow`."""

    def __init__(
        self,
        consumer: Consumer,
        options: NsqOptions,
        task: NsqRange,
        schema: pa.Schema,
        counters: Counters,
        on_finished: Callable[[bytes], None] = lambda _: None,
        backoff: Backoff | None = None,
    ) -> None:
        self.consumer = consumer
        self._where = f"nsq topic {task.source.topic}, channel {options.channel}, nsqd {task.nsqd.name}"
        self._backoff = backoff or Backoff()
        self._wanted = 0
        self._delay_ms, self._most_delay_ms = options.requeue_delay_ms, options.max_requeue_delay_ms
        self._attempts: list[int] = []
        """With `requeueDelay`: the attempts of the messages in `held`."""
        self.has_failed = False
        """True once the task fails, so that its messages are put back with a delay."""
        identified = consumer.session.identified
        most = identified.max_rdy_count
        self.most = most if options.max_in_flight is None else min(most, options.max_in_flight)
        self.patience_seconds = identified.msg_timeout_ms / 2000
        """Half of the messages' timeout: maximum wait here before the timeout is extended."""
        buffering_ms = _buffering_ms(identified, options.heartbeat_interval_ms)
        if buffering_ms >= identified.msg_timeout_ms:
            raise OptionError(
                f"outputBufferTimeout: {consumer.session.address}: nsqd may buffer a message for {buffering_ms} ms, "
                f"but redelivers it after {identified.msg_timeout_ms} ms: choose a time shorter than msgTimeout"
            )
        self.min_idle_seconds = (buffering_ms + _SENDING_MS) / 1000
        self.held = b""
        """The ids of messages that were taken and not acknowledged yet, 16 bytes each."""
        self.taken = b""
        """The ids of messages that were taken last."""
        self._counters = counters
        self._decoder = MessageDecoder(
            schema, topic=task.source.topic, channel=options.channel or "", nsqd=task.nsqd.name
        )
        self._ids: list[bytes] = []
        self._since = 0.0
        self._most_rows = options.max_batch_rows
        self._most_bytes = options.max_batch_bytes
        self._on_finished = on_finished

    def want(self, messages: int) -> None:
        self._wanted = messages
        self.consumer.ready(self._backoff.limit(messages))

    def pause(self) -> None:
        """Wait as long as earlier failures demand."""
        if seconds := self._backoff.pause_seconds:
            logger.warning("%s: paused for %d s after failed attempts", self.consumer.session.address, seconds)
            time.sleep(seconds)

    def receive(self, timeout_seconds: float) -> bool:
        if not self.rows:
            self._since = time.monotonic()
        with waiting(self._counters):
            runs = self.consumer.receive(max_bytes=self._most_bytes, timeout_seconds=timeout_seconds)
        self._counters.entries += len(runs)
        self._counters.entry_bytes += sum(len(run.data) for run in runs)
        for at, run in enumerate(runs):
            try:
                self._ids.append(self._decoder.append(run))
            except MQSourceError:
                # They cannot be read, but are ours until they are requeued.
                self._ids += (message_ids(run.data) for run in runs[at:])
                raise
        # A message can take longer than the idle time to arrive.
        return bool(runs) or self.consumer.unfinished_bytes > 0

    @property
    def rows(self) -> int:
        return self._decoder.rows

    @property
    def ids(self) -> bytes:
        """The ids of messages that were received and not taken, 16 bytes each."""
        # A copy, because another thread reads it too.
        return b"".join(tuple(self._ids))

    def is_due(self, wanted: int) -> bool:
        # At half of the messages in flight: nsqd sends the other half meanwhile. And well before their timeout.
        return self.rows > 0 and (
            self.rows >= self._backoff.limit(wanted)
            or self.rows * 2 >= self.most
            or self.rows >= self._most_rows
            or self._decoder.nbytes >= self._most_bytes
            or time.monotonic() - self._since >= self.patience_seconds
        )

    def take(self) -> pa.RecordBatch:
        self.taken, self._ids = self.ids, []
        self.held += self.taken
        batch = self._decoder.take_batch()
        if self._delay_ms:
            self._attempts += batch.column("attempts").to_pylist()
        return batch

    def acknowledge(self) -> None:
        is_backing_off = self._backoff.pause_seconds > 0
        if is_backing_off:
            self.consumer.ready(0)
        ids, self.held = self.held, b""
        self._attempts = []
        self.consumer.fin(ids)
        self._on_finished(ids)
        if is_backing_off:
            self._backoff.succeeded()
            self.pause()
            self.want(self._wanted)

    def put_back(self) -> None:
        if not (self.has_failed or self.taken or self._ids) and (unfinished := self.consumer.unfinished_bytes):
            logger.warning(
                "%s: the time of this read ended within its first message, of which %d bytes have arrived; nsqd sends "
                "it again. If this repeats, raise msgTimeout in a stream, or maxSeconds in a batch read",
                self._where,
                unfinished,
            )
        if self.has_failed and self._delay_ms and self.rows:
            self.take()
        ids = self.held + self.ids
        self.held, self._ids = b"", []
        if ids and not self.consumer.session.closed:
            # Otherwise they would be delivered here again.
            self.consumer.ready(0)
            for delay_ms, delayed in self._by_delay(ids).items():
                self.consumer.requeue(delayed, delay_ms=delay_ms)

    def _by_delay(self, ids: bytes) -> Mapping[int, ByteString]:
        """Return the ids by the delay of their messages, which grows with the attempts, as in go-nsq."""
        if not (self.has_failed and self._delay_ms):
            return {0: ids}
        found: dict[int, bytearray] = {}
        # A message that could not be decoded has unknown attempts.
        for id_, attempts in zip(split_ids(ids), chain(self._attempts, repeat(1)), strict=False):
            found.setdefault(min(attempts * self._delay_ms, self._most_delay_ms), bytearray()).extend(id_)
        return found


class _Attempt:
    """An attempt at a task: its connection, and the handling of redelivered messages."""

    def __init__(self, options: NsqOptions, task: NsqRange, counters: Counters) -> None:
        self._counters = counters
        self._options = options
        self._task = task
        self._where = f"nsq topic {task.source.topic}, channel {options.channel}, nsqd {task.nsqd.name}"

    def drain(self, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield messages directly from nsqd; they are finished (or requeued) once Spark has their rows."""
        options = self._options
        # The check of attempts, and delays by them, need the columns of the log, whatever columns are requested.
        is_logged = options.max_attempts or options.requeue_delay_ms
        project = _Projection(options, self._task, schema) if is_logged else None
        schema = schema if project is None else _LOGGED
        is_peek = options.ack_mode is AckMode.REQUEUE
        seen = RecentIds(b"", ())
        with self._subscribed() as consumer:
            inflow = _Inflow(consumer, options, self._task, schema, self._counters)
            try:
                with _TimeoutExtender(inflow):
                    limits = Limits.of(options, self._task.max_rows, min_idle_seconds=inflow.min_idle_seconds)
                    for batch in drained(inflow, limits, is_peek=is_peek):
                        repeated = seen.repeated(inflow.taken) if is_peek else set()
                        rows = _without(batch, repeated)
                        if project is not None:
                            rows = project(self._without_repeats(consumer, rows, set))
                        if rows.num_rows:
                            yield rows
                        if repeated:
                            # Their timeout has passed: from here on the same messages would be redelivered in turn.
                            return
                        if is_peek:
                            seen.remember(inflow.taken)
                        else:
                            inflow.acknowledge()
            finally:
                inflow.put_back()
                if not consumer.session.closed:
                    self._close_consumer(consumer)

    @contextmanager
    def _subscribed(self) -> Iterator[Consumer]:
        with waiting(self._counters):
            opened = NsqClient(self._options).open_session(self._task.nsqd)
        with opened as session:
            with waiting(self._counters):
                consumer = session.subscribe(self._task.source.topic, self._options.channel or "")
            yield consumer

    def _close_consumer(self, consumer: Consumer) -> bytes:
        """Close the consumer; return the ids of the messages that were finished too late."""
        with waiting(self._counters):
            refused = consumer.close(timeout_seconds=self._options.operation_timeout_ms / 1000)
        if refused:
            count = len(refused) // MESSAGE_ID_BYTES
            logger.warning("%s: %d messages were finished after their timeout, and come again", self._where, count)
        return refused

    def _without_repeats(
        self, consumer: Consumer, batch: pa.RecordBatch, known: Callable[[], set[str]], repeated: Set[int] = frozenset()
    ) -> pa.RecordBatch:
        """Return the batch without duplicates, and without messages that are given up.

        Args:
            consumer: its session publishes dead letters.
            batch: with the columns of `_LOGGED`.
            known: returns the ids that were read; called only if a message is a possible duplicate; updated here.
            repeated: rows that are known to be duplicates, whatever their attempts.

        Raises:
            TooManyAttemptsError: a message exceeded `maxAttempts`.
            MQSourceError: nsqd did not accept a dead letter.
        """
        attempts = memoryview(batch.column("attempts").buffers()[1]).cast("i")[: batch.num_rows]
        is_redelivered = max(attempts, default=0) > 1
        if not is_redelivered and not repeated:
            return batch
        limit, seen = self._options.max_attempts, known() if is_redelivered else set()
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
        return only_rows(batch, kept)

    def _give_up(self, consumer: Consumer, id_: str, attempts: int, value: pa.Buffer) -> None:
        options = self._options
        if options.on_max_attempts is OnMaxAttempts.FAIL:
            raise TooManyAttemptsError(
                f"{self._where}: message {id_} was delivered {attempts} times, and maxAttempts is "
                f"{options.max_attempts}; set onMaxAttempts=deadLetter to put such messages aside"
            )
        answer = consumer.session.request(Pub(options.dead_letter_topic or "", value))
        try:
            answer.result(options.operation_timeout_ms / 1000)
        except FutureTimeoutError:
            raise RequestTimeoutError(f"{self._where}: no OK for message {id_} within operationTimeout") from None
        except MQSourceError as error:
            raise error.within(f"{self._where}: message {id_} to topic {options.dead_letter_topic}") from error


class _Collector(_Attempt, Collector[_Inflow]):
    """Receiver that fills the log of a task, see `net.queue_task.Collector`."""

    def __init__(self, options: NsqOptions, task: NsqRange, log: TaskLog, counters: Counters, backoff: Backoff) -> None:
        _Attempt.__init__(self, options, task, counters)
        Collector.__init__(self, self._where, log)
        self._backoff = backoff
        self._known = set(task.duplicates)
        self._slots_known = 0
        # With the messages logged by other attempts at this task.
        self._recent = RecentIds(task.recent.encode(), (id_.encode() for id_ in self._known_ids()))

    @contextmanager
    def _open(self) -> Iterator[_Inflow]:
        with self._subscribed() as consumer:
            inflow = _Inflow(
                consumer, self._options, self._task, _LOGGED, self._counters, self._recent.remember, self._backoff
            )
            inflow.pause()
            yield inflow

    def _limits(self, inflow: _Inflow) -> Limits:
        return Limits.of(
            self._options, self._task.max_rows, inflow.patience_seconds, min_idle_seconds=inflow.min_idle_seconds
        )

    def _preventing_redelivery(self, inflow: _Inflow) -> _TimeoutExtender:
        return _TimeoutExtender(inflow)

    def _without_known(self, inflow: _Inflow, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self._without_repeats(inflow.consumer, batch, self._known_ids, self._recent.repeated(inflow.taken))

    def _close(self, inflow: _Inflow) -> tuple[Sequence[str], str]:
        refused = self._close_consumer(inflow.consumer)
        return list(map(bytes.decode, split_ids(refused))), self._recent.last.decode()

    def _may_end_early(self, error: MQSourceError) -> bool:
        # A channel of an nsqd that stops refuses the subscription (nsqd 1.3.0, Channel.AddClient).
        is_stopping = isinstance(error, BrokerError) and error.broker_message == "SUB failed exiting"
        is_away = is_stopping or (isinstance(error, TransportError) and error.retryable)
        return self._options.run_id is None and is_away

    def _add_known(self, ids: set[str]) -> None:
        self._recent.know(map(str.encode, ids))

    def _known_ids(self) -> set[str]:
        self._known |= self._ids_of(self._log.slots[self._slots_known :])
        self._slots_known = len(self._log.slots)
        return self._known


class _Projection:
    """Conversion of logged rows to the requested columns."""

    def __init__(self, options: NsqOptions, task: NsqRange, schema: pa.Schema) -> None:
        self._schema = schema
        self._where = f"nsq topic {task.source.topic}, channel {options.channel}, nsqd {task.nsqd.name}"
        constants = {"topic": task.source.topic, "channel": options.channel or "", "nsqd": task.nsqd.name}
        self._constants = {
            field.name: ConstantColumn(constants[field.name], field.type) for field in schema if field.name in constants
        }

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the same rows with the requested columns.

        Raises:
            CorruptMessageError: a text column is requested and a message is not UTF-8.
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
        converted = column.view(field.type)
        if is_text(field.type):
            self._check_text(batch, converted)
        return converted

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


class _TimeoutExtender:
    """Extension of the timeout of all messages held here (TOUCH), as long as the context lasts.

    nsqd 1.3.0 allows this up to `-max-msg-timeout` after the delivery, 15 min by default.

    Args:
        inflow: the messages, including those queued in its consumer.
    """

    def __init__(self, inflow: _Inflow) -> None:
        self._inflow = inflow
        # A message that moves from one queue to the next may be missed once.
        self._every_seconds = inflow.consumer.session.identified.msg_timeout_ms / 3000
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nsq touch", daemon=True)

    def __enter__(self) -> _TimeoutExtender:
        self._thread.start()
        return self

    def __exit__(self, failure: type[BaseException] | None, *exc: object) -> None:
        self._inflow.has_failed = failure is not None
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        consumer = self._inflow.consumer
        while not self._done.wait(self._every_seconds):
            try:
                # In the order in which messages move on, so that moving ones are not missed.
                ids = consumer.queued_ids() + self._inflow.ids
                consumer.touch(ids + self._inflow.held)
            except MQSourceError as error:
                logger.debug("no TOUCH: %s", error)
                return


def _buffering_ms(identified: Identified, heartbeat_ms: int) -> int:
    """Return how long nsqd may keep a message in its output buffer if it waits for more (nsqd 1.3.0, protocol_v2.go).

    Without a timeout it sends a full buffer, and all with each heartbeat; without a buffer only deflate keeps any.
    """
    if identified.output_buffer_timeout_ms:
        return identified.output_buffer_timeout_ms
    return 0 if identified.output_buffer_bytes == 1 and not identified.deflate else heartbeat_ms


def _without(batch: pa.RecordBatch, rows: Set[int]) -> pa.RecordBatch:
    return only_rows(batch, array("i", (row for row in range(batch.num_rows) if row not in rows))) if rows else batch
