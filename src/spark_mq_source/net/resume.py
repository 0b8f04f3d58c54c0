"""Reads one bounded range to its end, over as many connections as that takes: nothing twice, nothing lost."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from spark_mq_source.core.errors import (
    CorruptMessageError,
    EncryptedMessageError,
    MQSourceError,
    RemoteProtocolError,
    ServiceNotReadyError,
)
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.net.stopwatch import waiting

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.counters import Counters

logger = logging.getLogger(__name__)

RangeT = TypeVar("RangeT")
PlaceT = TypeVar("PlaceT")
ConsumerT = TypeVar("ConsumerT")


class OpenAgainError(ServiceNotReadyError):
    """Not a failure: what is read has to be opened again, elsewhere or to see what is left, at once."""


class ResumingReader(ABC, Generic[RangeT, PlaceT, ConsumerT]):
    """The state that outlives a connection: how far the range is read, what was distrusted, and how long it is stuck.

    Args:
        task: what is read; its text stands in logs.
        begin: nothing after this place is read yet.
        timeout_ms: how long it may make no progress.
        counters: count what is waited for, and connections beyond the first.
    """

    def __init__(self, task: RangeT, begin: PlaceT, *, timeout_ms: int, counters: Counters) -> None:
        self._task = task
        self._counters = counters
        self._done = begin
        """Everything up to here has been emitted, decoded or passed over."""
        self._timeout_ms = timeout_ms
        self._patience = Deadline.after_ms(timeout_ms)
        self._stuck_at: PlaceT | None = None
        """The `done` at the last failure; `_patience` is renewed whenever there was progress since."""
        self._distrusted: PlaceT | None = None
        """The `done` at which something undecodable came once: a second time it is not the network's fault."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows of the range, whatever happens to the connection in between."""
        while not self._is_finished():
            try:
                with waiting(self._counters):
                    consumer = retrying(self._open, deadline=self._patience)
                try:
                    yield from self._drain(consumer)
                finally:
                    self._leave(consumer)
            except OpenAgainError as reason:
                logger.info("%s: opening again at %s: %s", self._task, self._done, reason)
            except EncryptedMessageError:
                raise
            except (CorruptMessageError, RemoteProtocolError) as error:
                # One bit flipped on the way looks the same as a corrupt message; reading it again tells them apart.
                if self._is_distrusted():
                    raise
                self._distrusted = self._done
                logger.warning("%s: reading again at %s: %s", self._task, self._done, error)
            except MQSourceError as error:
                if not self._may_pass(error):
                    raise
                if self._stuck_at != self._done:
                    self._stuck_at = self._done
                    self._patience = Deadline.after_ms(self._timeout_ms)
                elif self._patience.expired:
                    raise
                logger.info("%s: resuming at %s: %s", self._task, self._done, error)
            if not self._is_finished():
                self._counters.reconnects += 1
        yield from self._rest()

    @abstractmethod
    def _is_finished(self) -> bool:
        """Whether the range is read."""

    @abstractmethod
    def _open(self) -> ConsumerT:
        """Who brings what comes after `done`; tried again as long as the error is retryable."""

    @abstractmethod
    def _drain(self, consumer: ConsumerT) -> Iterator[pa.RecordBatch]:
        """Everything that one consumer brings, until the range is read or the consumer ends (an error)."""

    @abstractmethod
    def _leave(self, consumer: ConsumerT) -> None:
        """The consumer has ended, or is of no use any more."""

    @abstractmethod
    def _rest(self) -> Iterator[pa.RecordBatch]:
        """What is decoded and not emitted, once the range is read."""

    def _may_pass(self, error: MQSourceError) -> bool:
        """Whether another try may help against what ended a consumer."""
        return error.retryable

    def _is_distrusted(self) -> bool:
        """Whether what comes next was undecodable once, so that it is, whatever it is, what the broker has."""
        return self._distrusted == self._done
