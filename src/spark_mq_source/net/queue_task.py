"""The task's side of a queue: messages become Arrow batches, directly from the broker or through `walDir`.

Without `walDir` a read is a drain: messages are acknowledged once Spark has taken their rows, and a second read gets
other messages. With `walDir` a task stores its messages before it acknowledges them; `net.write_ahead` describes how
attempts agree.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, Protocol, TypeVar

import pyarrow as pa

from spark_mq_source.core.columns import int_array
from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.core.shared_options import DrainOptions
from spark_mq_source.net.queue_plan import QueueTask
from spark_mq_source.net.write_ahead import Slot, TaskLog, open_folder

logger = logging.getLogger(__name__)

IDLE_MS: Final = 500
"""The default time that a trigger waits for the next message; a later one belongs to the next trigger."""

DRAIN_IDLE_MS: Final = 2000
"""The default time that a batch read without `maxSeconds` waits for the next message; no later trigger reads it."""

MAX_WAIT_SECONDS: Final = 1.0
"""The longest single wait for messages, so that other work is done in time."""


class Inflow(Protocol):
    """The messages that a broker delivers to one task, until each is acknowledged or put back."""

    @property
    def most(self) -> int:
        """The maximum number of unacknowledged messages at this consumer."""

    @property
    def rows(self) -> int:
        """The number of messages that were received and not taken."""

    def want(self, messages: int) -> None:
        """Let the broker deliver `messages` more messages than were received so far."""

    def receive(self, timeout_seconds: float) -> bool:
        """Receive messages that have arrived or arrive within the timeout; return False if the broker was silent."""

    def is_due(self, wanted: int) -> bool:
        """Return whether to pass on the received messages now; `wanted` is the number the broker may deliver."""

    def take(self) -> pa.RecordBatch:
        """Return the received messages."""

    def acknowledge(self) -> None:
        """Acknowledge all messages returned by `take`."""

    def put_back(self) -> None:
        """Return unacknowledged messages to the broker for immediate redelivery; receive no more."""


InflowT = TypeVar("InflowT", bound=Inflow)


class Limits:
    """The limits of a read: number of messages, time, and time without a message; None means unbounded.

    Example:
        >>> limits = Limits(max_rows=10, max_seconds=None, idle_seconds=None)
        >>> [limits.request_count(rows, most) for rows, most in ((4, 100), (4, 5), (10, 5))], limits.seconds_left()
        ([6, 5, 0], inf)
    """

    def __init__(self, max_rows: int | None, max_seconds: float | None, idle_seconds: float | None) -> None:
        self._max_rows = max_rows
        self._deadline = float("inf") if max_seconds is None else time.monotonic() + max_seconds
        self._idle_seconds = float("inf") if idle_seconds is None else idle_seconds
        self._last_message = time.monotonic()
        self._has_received = False

    @classmethod
    def of(
        cls,
        options: DrainOptions,
        max_rows: int | None,
        trigger_seconds: float | None = None,
        *,
        min_idle_seconds: float = 0.0,
    ) -> Limits:
        """Return the limits of a task, which has `trigger_seconds` unless it belongs to a batch read.

        The broker may keep a message for nearly `min_idle_seconds` before it sends it, so the idle time is not shorter.
        """
        max_seconds: float | None = options.max_seconds
        idle_ms = options.idle_timeout_ms
        if trigger_seconds is not None and options.run_id is None:
            max_seconds, idle_ms = trigger_seconds, IDLE_MS if idle_ms is None else idle_ms
        elif max_seconds is None and idle_ms is None:
            idle_ms = DRAIN_IDLE_MS
        return cls(max_rows, max_seconds, None if idle_ms is None else max(idle_ms / 1000, min_idle_seconds))

    def restart_idle_time(self) -> None:
        """Restart the idle time, because the task could not receive until now."""
        self._last_message = time.monotonic()

    def received(self) -> None:
        """Note that messages arrived."""
        self._has_received = True
        self.restart_idle_time()

    def request_count(self, rows: int, most: int) -> int:
        """Return how many messages beyond `rows` to request at once, at most `most`."""
        return most if self._max_rows is None else max(0, min(most, self._max_rows - rows))

    @property
    def is_idle(self) -> bool:
        """True if no message came within the idle time, or none at all."""
        return not self._has_received or time.monotonic() - self._last_message >= self._idle_seconds

    def seconds_left(self) -> float:
        """Return the seconds within which the next message must arrive."""
        return max(0.0, min(self._deadline, self._last_message + self._idle_seconds) - time.monotonic())


def wait_for_messages(inflow: Inflow, limits: Limits, wanted: int, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Receive until messages are to be passed on; return whether there are any.

    Args:
        inflow: the source of messages.
        limits: the limits of the read.
        wanted: the number of messages that the broker may deliver.
        is_over: returns whether this attempt is no longer needed; called from time to time.
    """
    # Nothing was received while Spark or `walDir` took the last rows, so that time does not count as idle.
    limits.restart_idle_time()
    looked = time.monotonic()
    while not inflow.is_due(wanted):
        left = limits.seconds_left()
        if not (wanted and left):
            break
        if inflow.receive(min(left, MAX_WAIT_SECONDS)):
            limits.received()
        if time.monotonic() - looked >= MAX_WAIT_SECONDS:
            if is_over():
                return False
            looked = time.monotonic()
    return inflow.rows > 0


def drained(inflow: Inflow, limits: Limits, *, is_peek: bool) -> Iterator[pa.RecordBatch]:
    """Yield messages in batches until the limits; the caller acknowledges each batch before the next, unless it peeks.

    Args:
        inflow: the source of messages.
        limits: the limits of the read.
        is_peek: whether nothing is acknowledged: messages stay in flight, and no replacements are requested.
    """
    rows, wanted = 0, limits.request_count(0, inflow.most)
    inflow.want(wanted)
    while wait_for_messages(inflow, limits, wanted):
        rows += inflow.rows
        wanted = limits.request_count(rows, max(0, inflow.most - rows) if is_peek else inflow.most)
        if not is_peek:
            # Before acknowledging: the broker would replace acknowledged messages up to the old limit.
            inflow.want(wanted)
        yield inflow.take()


class Collector(ABC, Generic[InflowT]):
    """Receiver that fills the log of a task: it stores and acknowledges messages until a limit or the end of the log.

    Args:
        where: the task, the beginning of logs.
        log: the task's log, caught up.
    """

    def __init__(self, where: str, log: TaskLog) -> None:
        self._where = where
        self._log = log

    def collect(self) -> None:
        """Read until the limits, then end the log.

        In a stream, a broker that is down or goes away delivers no more messages to this batch; a later batch reads
        them. A run has no later batch, so its log is not ended then, and the next attempt continues it.

        Raises:
            MQSourceError: a broker refuses, or (except in a stream) cannot be reached or goes away.
        """
        is_idle = False
        try:
            with self._open() as inflow:
                is_idle = self._fill(inflow)
                refused, last = self._close(inflow)
        except MQSourceError as error:
            if not self._may_end_early(error):
                raise
            # Unacknowledged messages are redelivered in a later batch, as duplicates if they are in the log.
            logger.warning("%s: this batch ends early: %s", self._where, error)
            is_idle = False
        else:
            if any(slot.attempt == self._log.attempt for slot in self._log.slots):
                self._log.acknowledged(refused, last)
            # nsqd counts a message whose FIN it refused as still in flight here, so it may have held back others.
            is_idle = is_idle and not refused
        self._log.end(is_idle=is_idle)

    # -- methods of a format

    @abstractmethod
    def _open(self) -> AbstractContextManager[InflowT]:
        """Connect and subscribe."""

    @abstractmethod
    def _limits(self, inflow: InflowT) -> Limits:
        """Return the limits of the task, whose time begins now."""

    @abstractmethod
    def _without_known(self, inflow: InflowT, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch without duplicates, and without messages that were given up."""

    @abstractmethod
    def _close(self, inflow: InflowT) -> tuple[Sequence[str], str]:
        """Wait for all acknowledgements; return the ids of unacknowledged messages, and the last acknowledged ids."""

    @abstractmethod
    def _may_end_early(self, error: MQSourceError) -> bool:
        """Return whether the batch ends with its present messages after this error."""

    @abstractmethod
    def _add_known(self, ids: set[str]) -> None:
        """Remember messages in the logs of other attempts, because this attempt may receive them, too."""

    def _preventing_redelivery(self, inflow: InflowT) -> AbstractContextManager[object]:
        """Prevent the broker from redelivering received messages to other consumers meanwhile, if it would."""
        del inflow
        return nullcontext()

    def _rows(self) -> int:
        return self._log.rows

    # -- inside

    def _fill(self, inflow: InflowT) -> bool:
        """Read until the limits; return whether the broker had no more messages."""
        limits = self._limits(inflow)
        wanted = limits.request_count(self._rows(), inflow.most)
        inflow.want(wanted)
        try:
            with self._preventing_redelivery(inflow):
                # With speculation, Spark may let a slower attempt run on. Attempts would take messages from each other
                # again and again, each time counted as a delivery, and withhold them from the tasks that need them. So
                # an attempt checks from time to time whether the log has ended.
                while not self._log.is_ended and wait_for_messages(inflow, limits, wanted, self._log.look_for_end):
                    is_stored = self._write_down(self._without_known(inflow, inflow.take()))
                    wanted = limits.request_count(self._rows(), inflow.most)
                    if is_stored:
                        # Before acknowledging: the broker would replace acknowledged messages up to the old limit.
                        inflow.want(wanted)
                        inflow.acknowledge()
            return wanted > 0 and limits.is_idle
        finally:
            # After an error, or if another attempt has ended the log, the broker need not wait for the timeout.
            inflow.put_back()

    def _write_down(self, batch: pa.RecordBatch) -> bool:
        """Append messages to the log unless it has ended; return whether the log contains them."""
        while not self._log.is_ended:
            slots_seen = len(self._log.slots)
            if not batch.num_rows or self._log.append(batch):
                return True
            batch = self._without(batch, self._log.slots[slots_seen:])
        return False

    def _without(self, batch: pa.RecordBatch, slots: Sequence[Slot]) -> pa.RecordBatch:
        """Return the messages that are not in these slots, which may contain messages that timed out here."""
        known = self._ids_of(slots)
        self._add_known(known)
        ids = batch.column("message_id").to_pylist()
        return only_rows(batch, array("i", (row for row, id_ in enumerate(ids) if id_ not in known)))

    def _ids_of(self, slots: Sequence[Slot]) -> set[str]:
        return {id_ for slot in slots if not slot.is_end for id_ in self._log.ids(slot)}


def logged(
    format_name: str,
    options: DrainOptions,
    task: QueueTask[Any],
    collector_of: Callable[[TaskLog], Collector[InflowT]],
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the messages in the log of a task with `walDir`, which a collector fills unless an attempt has done so."""
    log = TaskLog(open_folder(format_name, options.wal_dir or ""), task.folder, task.task)
    log.catch_up()
    if not log.is_ended:
        collector_of(log).collect()
    for slot in log.slots:
        if not slot.is_end:
            yield from log.read(slot)


def only_rows(batch: pa.RecordBatch, rows: array[int]) -> pa.RecordBatch:
    """Return rows of a batch by number; `rows` has 32-bit integers (`i`)."""
    return batch.take(int_array(rows, pa.int32()))
