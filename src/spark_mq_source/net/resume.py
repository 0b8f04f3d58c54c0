"""Reads one bounded range to its end over as many connections as necessary, without loss or duplicates."""

from __future__ import annotations

import logging
import time
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
from spark_mq_source.net.retry import Deadline, pauses, retrying
from spark_mq_source.net.stopwatch import waiting

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.counters import Counters

logger = logging.getLogger(__name__)

RangeT = TypeVar("RangeT")
PlaceT = TypeVar("PlaceT")
ConsumerT = TypeVar("ConsumerT")


class ReopenError(ServiceNotReadyError):
    """The consumer must be reopened at once, on another broker or to find the remaining messages; not a failure."""


class ResumingReader(ABC, Generic[RangeT, PlaceT, ConsumerT]):
    """The state that outlives a connection: the progress in the range, and failures without progress.

    Args:
        task: the range, also a text for logs.
    """

    def __init__(self, task: RangeT, begin: PlaceT, *, timeout_ms: int, counters: Counters) -> None:
        self._task = task
        self._counters = counters
        self._done = begin
        """The position up to which messages are decoded or left out."""
        self._timeout_ms = timeout_ms
        self._patience = Deadline.after_ms(timeout_ms)
        self._stuck_at: PlaceT | None = None
        """The value of `_done` at the last failure; after progress, a failure renews `_patience`."""
        self._pauses = pauses()
        """The seconds before each further attempt at `_stuck_at`: a broker may open consumers and refuse to read."""
        self._distrusted: PlaceT | None = None
        """The value of `_done` at the last decoding error; a second one there is not caused by the network."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range, reconnecting as often as necessary."""
        while not self._is_finished():
            try:
                with waiting(self._counters):
                    consumer = retrying(self._open, deadline=self._patience)
                try:
                    yield from self._drain(consumer)
                finally:
                    self._leave(consumer)
            except ReopenError as reason:
                logger.info("%s: opening again at %s: %s", self._task, self._done, reason)
            except EncryptedMessageError:
                raise
            except (CorruptMessageError, RemoteProtocolError) as error:
                # A bit that flipped in transit looks like a corrupt message; reading again distinguishes them.
                if self._is_distrusted():
                    raise
                self._distrusted = self._done
                logger.warning("%s: reading again at %s: %s", self._task, self._done, error)
            except MQSourceError as error:
                if not self._may_pass(error):
                    raise
                if self._stuck_at != self._done:
                    self._stuck_at, self._pauses = self._done, pauses()
                    self._patience = Deadline.after_ms(self._timeout_ms)
                else:
                    pause = next(self._pauses)
                    if self._patience.remaining_seconds() <= pause:
                        raise
                    with waiting(self._counters):
                        time.sleep(pause)
                logger.info("%s: resuming at %s: %s", self._task, self._done, error)
            if not self._is_finished():
                self._counters.reconnects += 1
        yield from self._rest()

    @abstractmethod
    def _is_finished(self) -> bool:
        """Return whether the range is read to its end."""

    @abstractmethod
    def _open(self) -> ConsumerT:
        """Open a consumer after `_done`; called again while its error is retryable."""

    @abstractmethod
    def _drain(self, consumer: ConsumerT) -> Iterator[pa.RecordBatch]:
        """Read from one consumer until the range is finished, or until the consumer fails."""

    @abstractmethod
    def _leave(self, consumer: ConsumerT) -> None:
        """Close the consumer."""

    @abstractmethod
    def _rest(self) -> Iterator[pa.RecordBatch]:
        """Yield decoded rows that remain at the end of the range."""

    def _may_pass(self, error: MQSourceError) -> bool:
        """Return whether the read may resume after this error."""
        return error.retryable

    def _is_distrusted(self) -> bool:
        """Return whether the next data has failed to decode before; if it fails again, it is corrupt in storage."""
        return self._distrusted == self._done
