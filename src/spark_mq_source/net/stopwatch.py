"""Measures the times of a task's counters: waiting for the broker, and working, without Spark's own time."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.counters import Counters


@contextmanager
def waiting(counters: Counters) -> Iterator[None]:
    """Count the time of the block as waiting for the broker, even if it ends with an error.

    Example:
        >>> from spark_mq_source.core.counters import Counters
        >>> counters = Counters()
        >>> with waiting(counters):
        ...     pass
        >>> counters.wait_seconds > 0
        True
    """
    began = time.perf_counter()
    try:
        yield
    finally:
        counters.wait_seconds += time.perf_counter() - began


@contextmanager
def working(counters: Counters) -> Iterator[None]:
    """Count the time of the block as work, except the waiting time within it."""
    began, waited = time.perf_counter(), counters.wait_seconds
    try:
        yield
    finally:
        counters.work_seconds += time.perf_counter() - began - (counters.wait_seconds - waited)


def timed_output(batches: Iterator[pa.RecordBatch], counters: Counters) -> Generator[pa.RecordBatch, None, None]:
    """Yield the batches of a reader; count their rows and the time to produce them.

    The caller's time between batches is not counted. If a read is abandoned, it ends at once, not when it is garbage
    collected, so that its counters are complete.
    """
    try:
        while True:
            with working(counters):
                batch = next(batches, None)
            if batch is None:
                return
            counters.rows += batch.num_rows
            yield batch
    finally:
        if isinstance(batches, Generator):
            batches.close()


def timed_input(batches: Iterator[pa.RecordBatch], counters: Counters) -> Iterator[pa.RecordBatch]:
    """Yield the batches for a writer; count their rows, and exclude the time to get them from its work.

    The writer's work contains that time, so it is subtracted.
    """
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        counters.work_seconds -= time.perf_counter() - began
        if batch is None:
            return
        counters.rows += batch.num_rows
        yield batch
