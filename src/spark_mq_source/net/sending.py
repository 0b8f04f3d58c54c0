"""Writes the rows of one task until the brokers have acknowledged them: the part that all writers share.

Acknowledgements arrive in the threads of the connections, which share a writer's state with the task's thread, under
one lock. Only the task's thread sends: it waits for room and for acknowledgements, and resends what was lost.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.ports import Closing, RowWriter
from spark_mq_source.net.stopwatch import waiting

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.ports import TaskAttempt

OptionsT = TypeVar("OptionsT")
ReportT = TypeVar("ReportT")


class Writer(RowWriter, Closing, Generic[OptionsT, ReportT]):
    """Writer of the rows of one task. For one thread; a context manager that closes its connections.

    Args:
        attempt: the task attempt. Its partition also selects where the first rows without a place go, so that tasks
            start with different ones.

    Attributes:
        rows: number of rows passed to `write`.

    Example:
        ::

            with NsqWriter(options, TaskAttempt("flights")) as writer:
                for batch in batches:
                    writer.write(batch)
                report = writer.finish()
    """

    def __init__(self, options: OptionsT, attempt: TaskAttempt, counters: Counters | None = None) -> None:
        self.rows = 0
        self._options = options
        self._attempt = attempt
        self._counters = counters or Counters()
        self._arrived = threading.Condition()
        self._awaited: Callable[[], bool] | None = None
        """The condition for which `_wait_until` waits now."""

    def write_all(self, batches: Iterator[pa.RecordBatch]) -> ReportT:
        """Write all rows of the task, close the connections, and return the report to the driver.

        Raises:
            MQSourceError: as for `write` and `finish`.
        """
        with self:
            for batch in self.arriving(batches):
                self.write(batch)
            return self.finish()

    def arriving(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the batches; a writer that buffers rows sends them while it waits for the next batch."""
        return batches

    @abstractmethod
    def finish(self) -> ReportT:
        """Flush, and return the report to the driver."""

    # -- waiting

    @abstractmethod
    def _is_due(self) -> bool:
        """Return whether the task's thread must act; called under the lock."""

    @abstractmethod
    def _until(self) -> float:
        """Return when it must act if nothing arrives, in monotonic seconds; called under the lock."""

    @abstractmethod
    def _attend(self) -> None:
        """Act after a failure, or because the time is over: resend, reopen, or raise the error of the write."""

    def _wait_until(self, is_reached: Callable[[], bool]) -> None:
        """Wait until `is_reached()`, and act whenever it is due or the time is over."""
        while True:
            with self._arrived:
                while not (is_due := self._is_due()) and not is_reached():
                    left = self._until() - time.monotonic()
                    if left <= 0:
                        break
                    self._awaited = is_reached
                    with waiting(self._counters):
                        self._arrived.wait(left)
                    self._awaited = None
                else:
                    if not is_due:
                        return
            self._attend()

    def _wake(self, *, is_due: bool) -> None:
        """Wake the task's thread if `is_due`, or if it waits for what has come; call under the lock.

        Acknowledgements arrive a few at a time, but the task waits for room for many: it is not woken for each.
        """
        if is_due or self._awaited is None or self._awaited():
            self._arrived.notify_all()
