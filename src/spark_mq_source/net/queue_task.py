"""The task's side of a queue: messages -> Arrow batches, directly from the broker or through the write-ahead folder.

Without `walDir` a read is a drain: messages are acknowledged when Spark has taken their rows, and a second read gets
other messages. With it the messages of a task are stored and then acknowledged; `net.write_ahead` describes how
attempts agree.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, Generic, Protocol, TypeVar

import pyarrow as pa

from spark_mq_source.core.columns import fixed_width_array
from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.net.write_ahead import Slot, TaskLog

logger = logging.getLogger(__name__)

IDLE_MS: Final = 500
"""The time that a trigger waits for the next message by default: a later one is in the next trigger."""

DRAIN_IDLE_MS: Final = 2000
"""The wait of a batch read without another limit of time, which has no next trigger for later messages."""

MAX_WAIT_SECONDS: Final = 1.0
"""The longest wait for messages, so that other work is done in time."""


class Inflow(Protocol):
    """The messages that a broker delivers to one task, until each is acknowledged or put back.

    Attributes:
        most: how many may be here unacknowledged at once.
        rows: how many messages were received and not taken.
    """

    @property
    def most(self) -> int:
        """See above."""

    @property
    def rows(self) -> int:
        """See above."""

    def want(self, messages: int) -> None:
        """Let the broker deliver `messages` more than those already received."""

    def receive(self, timeout_seconds: float) -> bool:
        """Take the messages that have arrived or arrive in time; return whether there were any."""

    def is_due(self, wanted: int) -> bool:
        """Return whether to pass on the messages received before waiting for more; `wanted` is all of them."""

    def take(self) -> pa.RecordBatch:
        """Return the messages received."""

    def acknowledge(self) -> None:
        """Acknowledge all messages returned by `take`."""

    def put_back(self) -> None:
        """Return unacknowledged messages to the broker, so that others get them at once; no more are received."""


InflowT = TypeVar("InflowT", bound=Inflow)


class Limits:
    """Limits of a read: the number of messages, the time, and the time without a message; None means unbounded.

    Example:
        >>> limits = Limits(max_rows=10, max_seconds=None, idle_seconds=None)
        >>> limits.wanted(4, most=100), limits.wanted(4, most=5), limits.wanted(10, most=5), limits.seconds_left()
        (6, 5, 0, inf)
    """

    def __init__(self, max_rows: int | None, max_seconds: float | None, idle_seconds: float | None) -> None:
        self._max_rows = max_rows
        self._deadline = float("inf") if max_seconds is None else time.monotonic() + max_seconds
        self._idle_seconds = float("inf") if idle_seconds is None else idle_seconds
        self._heard = time.monotonic()

    @classmethod
    def of_trigger(cls, max_rows: int | None, max_seconds: float, idle_timeout_ms: int | None) -> Limits:
        """Return the limits of a task of a stream, with the option `idleTimeout`."""
        return cls(max_rows, max_seconds, (IDLE_MS if idle_timeout_ms is None else idle_timeout_ms) / 1000)

    @classmethod
    def of_drain(cls, max_rows: int | None, max_seconds: float | None, idle_timeout_ms: int | None) -> Limits:
        """Return the limits of a batch read, with the options `maxSeconds` and `idleTimeout`."""
        if idle_timeout_ms is None and max_seconds is None:
            idle_timeout_ms = DRAIN_IDLE_MS
        return cls(max_rows, max_seconds, None if idle_timeout_ms is None else idle_timeout_ms / 1000)

    def heard(self) -> None:
        """Restart the wait for the next message: messages came, or the task did not listen until now."""
        self._heard = time.monotonic()

    def wanted(self, rows: int, most: int) -> int:
        """Return how many messages more than `rows` may be on their way at once, at most `most`."""
        return most if self._max_rows is None else max(0, min(most, self._max_rows - rows))

    def seconds_left(self) -> float:
        """Return the seconds in which the next message must come."""
        return max(0.0, min(self._deadline, self._heard + self._idle_seconds) - time.monotonic())


def wait_for_messages(inflow: Inflow, limits: Limits, wanted: int, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Receive until the messages are to be passed on; return whether there are any.

    Args:
        inflow: the source of messages.
        limits: of the read.
        wanted: how many messages the broker may deliver.
        is_over: whether this attempt is no longer needed; called from time to time.
    """
    # While Spark took the last rows, or walDir did, nobody listened: that was no silence.
    limits.heard()
    looked = time.monotonic()
    while not inflow.is_due(wanted):
        left = limits.seconds_left()
        if not (wanted and left):
            break
        if inflow.receive(min(left, MAX_WAIT_SECONDS)):
            limits.heard()
        if time.monotonic() - looked >= MAX_WAIT_SECONDS:
            if is_over():
                return False
            looked = time.monotonic()
    return inflow.rows > 0


def drained(inflow: Inflow, limits: Limits, *, is_peek: bool) -> Iterator[pa.RecordBatch]:
    """Yield the messages until the limits, in batches; the caller acknowledges each before the next, except for a peek.

    Args:
        inflow: the source of messages.
        limits: of the read.
        is_peek: whether nothing is acknowledged: messages stay in flight, and are not requested again.
    """
    rows, wanted = 0, limits.wanted(0, inflow.most)
    inflow.want(wanted)
    while wait_for_messages(inflow, limits, wanted):
        rows += inflow.rows
        wanted = limits.wanted(rows, inflow.most)
        if not is_peek:
            # Before anything is acknowledged: the broker would send as many again.
            inflow.want(wanted)
        yield inflow.take()


class Collector(ABC, Generic[InflowT]):
    """Fills the log of a task: receives, writes down, acknowledges; until the limits, or until the log has ended.

    Args:
        where: the task, which logs begin with.
        log: of the task, caught up.
    """

    def __init__(self, where: str, log: TaskLog) -> None:
        self._where = where
        self._log = log

    def collect(self) -> None:
        """Read until the limits, and end the log.

        In a stream, a broker that is down or goes away has no more messages for this batch; a later batch has them. A
        run has no later batch, so its log is not ended then: the next attempt continues it.

        Raises:
            MQSourceError: a broker refuses, or (except in a stream) cannot be reached or goes away.
        """
        try:
            with self._open() as inflow:
                self._fill(inflow)
                refused, last = self._close(inflow)
        except MQSourceError as error:
            if not self._may_end_early(error):
                raise
            # What was not acknowledged is delivered again, in a later batch: as a duplicate where it is in the log.
            logger.warning("%s: this batch ends early: %s", self._where, error)
        else:
            if any(slot.attempt == self._log.attempt for slot in self._log.slots):
                self._log.acknowledged(refused, last)
        self._log.end()

    # -- methods of a format

    @abstractmethod
    def _open(self) -> AbstractContextManager[InflowT]:
        """Connect and subscribe."""

    @abstractmethod
    def _limits(self, inflow: InflowT) -> Limits:
        """Return the limits of the task, whose time begins now."""

    @abstractmethod
    def _sorted_out(self, inflow: InflowT, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch without duplicates, and without the messages that are given up."""

    @abstractmethod
    def _close(self, inflow: InflowT) -> tuple[Sequence[str], str]:
        """Wait for all acknowledgements; return the messages that remain unacknowledged, and the last others."""

    @abstractmethod
    def _may_end_early(self, error: MQSourceError) -> bool:
        """Return whether a batch ends with the messages that it has after this error."""

    @abstractmethod
    def _know(self, ids: set[str]) -> None:
        """Remember the messages in the log of other attempts, because they may come here, too."""

    def _keeping(self, inflow: InflowT) -> AbstractContextManager[object]:
        """Keep received messages from being delivered to other consumers meanwhile, if brokers would do that."""
        del inflow
        return nullcontext()

    def _rows(self) -> int:
        """Return the number of messages in the log."""
        return self._log.rows

    # -- inside

    def _fill(self, inflow: InflowT) -> None:
        limits = self._limits(inflow)
        wanted = limits.wanted(self._rows(), inflow.most)
        inflow.want(wanted)
        try:
            with self._keeping(inflow):
                # With speculation, Spark may let a slower attempt run on. Attempts would get each other's messages
                # again and again, each time counted as a delivery, and keep them from the tasks that need them. So an
                # attempt checks from time to time whether the log has ended.
                while not self._log.is_ended and wait_for_messages(inflow, limits, wanted, self._log.look_for_end):
                    is_stored = self._write_down(self._sorted_out(inflow, inflow.take()))
                    wanted = limits.wanted(self._rows(), inflow.most)
                    if is_stored:
                        # Before anything is acknowledged: the broker would send as many again.
                        inflow.want(wanted)
                        inflow.acknowledge()
        finally:
            # An error, or another attempt has ended the log: the broker need not wait for the timeout.
            inflow.put_back()

    def _write_down(self, batch: pa.RecordBatch) -> bool:
        """Append messages to the log, unless it has ended; return whether they are in it."""
        while not self._log.is_ended:
            slots_seen = len(self._log.slots)
            if not batch.num_rows or self._log.append(batch):
                return True
            batch = self._without(batch, self._log.slots[slots_seen:])
        return False

    def _without(self, batch: pa.RecordBatch, slots: Sequence[Slot]) -> pa.RecordBatch:
        """Return the messages that are not in these slots, whose attempt may have got messages that timed out here."""
        known = self._ids_of(slots)
        self._know(known)
        ids = batch.column("message_id").to_pylist()
        return only_rows(batch, array("i", (row for row, id_ in enumerate(ids) if id_ not in known)))

    def _ids_of(self, slots: Sequence[Slot]) -> set[str]:
        return {id_ for slot in slots if not slot.is_end for id_ in self._log.ids(slot)}


def only_rows(batch: pa.RecordBatch, rows: array[int]) -> pa.RecordBatch:
    """Return these rows of a batch, by number; `rows` has 32-bit integers (`i`)."""
    # From a buffer, because pa.array imports pandas where there is one.
    return batch.take(fixed_width_array(pa.int32(), len(rows), pa.py_buffer(rows)))
