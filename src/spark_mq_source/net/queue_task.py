"""The task's side of a queue: messages -> Arrow batches, straight from the broker, or by way of the write-ahead folder.

Without `walDir` a read is a drain: messages are acknowledged once Spark has taken their rows, and whoever reads again
gets others. With it the messages of a task are written down first and acknowledged then; `net.write_ahead` says how
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
"""How long a trigger waits for a next message, unless `idleTimeout` says: what is late is in the next trigger."""

DRAIN_IDLE_MS: Final = 2000
"""How long a batch read that has no other end in time does: there is no next one for what is late."""

MAX_WAIT_SECONDS: Final = 1.0
"""A wait for messages is never longer, so that what else has to be done is done in time."""


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
        """Lets the broker deliver so many, besides those that were received."""

    def receive(self, timeout_seconds: float) -> bool:
        """Takes what is there, or what comes in time; whether that was anything."""

    def is_due(self, wanted: int) -> bool:
        """Whether what was received is to be handed on before more is waited for; `wanted` is all of it."""

    def take(self) -> pa.RecordBatch:
        """Hands on what was received."""

    def acknowledge(self) -> None:
        """Acknowledges all that was handed on."""

    def put_back(self) -> None:
        """Gives back all that was not acknowledged, so that others need not wait for it; nothing more comes then."""


InflowT = TypeVar("InflowT", bound=Inflow)


class Limits:
    """When a read ends: so many messages, so long, or nothing for a while; None is no such limit.

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
        """Those of a task of a stream, with the option `idleTimeout`."""
        return cls(max_rows, max_seconds, (IDLE_MS if idle_timeout_ms is None else idle_timeout_ms) / 1000)

    @classmethod
    def of_drain(cls, max_rows: int | None, max_seconds: float | None, idle_timeout_ms: int | None) -> Limits:
        """Those of a batch read, with the options `maxSeconds` and `idleTimeout`."""
        if idle_timeout_ms is None and max_seconds is None:
            idle_timeout_ms = DRAIN_IDLE_MS
        return cls(max_rows, max_seconds, None if idle_timeout_ms is None else idle_timeout_ms / 1000)

    def heard(self) -> None:
        """Messages came, or nobody has listened until now: the wait for the next one begins."""
        self._heard = time.monotonic()

    def wanted(self, rows: int, most: int) -> int:
        """How many more than `rows` may be on their way at once; `most` at most."""
        return most if self._max_rows is None else max(0, min(most, self._max_rows - rows))

    def seconds_left(self) -> float:
        """How long the next message may take to come."""
        return max(0.0, min(self._deadline, self._heard + self._idle_seconds) - time.monotonic())


def wait_for_messages(inflow: Inflow, limits: Limits, wanted: int, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Receives until that is to be handed on; whether there is anything.

    Args:
        inflow: what comes.
        limits: of the read.
        wanted: how many messages the broker was let deliver.
        is_over: whether nobody wants more of this attempt; asked from time to time.
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
    """What comes until the limits, in batches; who takes one acknowledges it before the next, but for a peek.

    Args:
        inflow: what comes.
        limits: of the read.
        is_peek: whether nothing is acknowledged: what came stays in flight, and is not wanted again.
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
        """Ends the log, with whatever there was.

        In a stream a broker that is not there, or goes away, has no more messages for this batch; those that it has are
        in a later one. A run has no later batch, so its log is not ended then: the next attempt goes on with it.

        Raises:
            MQSourceError: a broker refuses, or (but in a stream) cannot be reached or goes away.
        """
        try:
            with self._open() as inflow:
                self._fill(inflow)
                refused, last = self._close(inflow)
        except MQSourceError as error:
            if not self._may_end_early(error):
                raise
            # What was not acknowledged is delivered again, in a later batch: as a duplicate where it is in the log.
            logger.warning("%s: no more of it in this batch: %s", self._where, error)
        else:
            if any(slot.attempt == self._log.attempt for slot in self._log.slots):
                self._log.acknowledged(refused, last)
        self._log.end()

    # -- what a format says

    @abstractmethod
    def _open(self) -> AbstractContextManager[InflowT]:
        """Connects, and subscribes."""

    @abstractmethod
    def _limits(self, inflow: InflowT) -> Limits:
        """When the task has enough; they begin now."""

    @abstractmethod
    def _sorted_out(self, inflow: InflowT, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch without messages that came before, and without those that are given up."""

    @abstractmethod
    def _close(self, inflow: InflowT) -> tuple[Sequence[str], str]:
        """Waits until everything is acknowledged: the messages that are not, and those that were last."""

    @abstractmethod
    def _may_end_early(self, error: MQSourceError) -> bool:
        """Whether a batch ends with what it has after this error."""

    @abstractmethod
    def _know(self, ids: set[str]) -> None:
        """Other attempts have written these messages down: they may come here, too."""

    def _keeping(self, inflow: InflowT) -> AbstractContextManager[object]:
        """Keeps the messages that are here from being delivered to others meanwhile, where brokers would."""
        del inflow
        return nullcontext()

    def _rows(self) -> int:
        """How many messages are in the log."""
        return self._log.rows

    # -- inside

    def _fill(self, inflow: InflowT) -> None:
        limits = self._limits(inflow)
        wanted = limits.wanted(self._rows(), inflow.most)
        inflow.want(wanted)
        try:
            with self._keeping(inflow):
                # With speculation, Spark may let the attempt that was second go on for as long as it likes. What such
                # attempts hold would go round among them, counted as one more delivery each time, and past those that
                # want it. So from time to time it is looked whether the log has ended.
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
        """Puts what was received into the log, unless that has ended; whether it is there."""
        while not self._log.is_ended:
            slots_seen = len(self._log.slots)
            if not batch.num_rows or self._log.append(batch):
                return True
            batch = self._without(batch, self._log.slots[slots_seen:])
        return False

    def _without(self, batch: pa.RecordBatch, slots: Sequence[Slot]) -> pa.RecordBatch:
        """What these slots do not have: a message may time out here and be delivered to the attempt that made them."""
        known = self._ids_of(slots)
        self._know(known)
        ids = batch.column("message_id").to_pylist()
        return only_rows(batch, array("i", (row for row, id_ in enumerate(ids) if id_ not in known)))

    def _ids_of(self, slots: Sequence[Slot]) -> set[str]:
        return {id_ for slot in slots if not slot.is_end for id_ in self._log.ids(slot)}


def only_rows(batch: pa.RecordBatch, rows: array[int]) -> pa.RecordBatch:
    """These rows of a batch, by number; `rows` has 32-bit integers (`i`)."""
    # From a buffer, because pa.array imports pandas where there is one.
    return batch.take(fixed_width_array(pa.int32(), len(rows), pa.py_buffer(rows)))
