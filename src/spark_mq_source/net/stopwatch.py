"""The clock behind a task's counters: what was waited for the broker, what was worked, and what was Spark's time."""

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
    """Counts the time of the block as waiting for the broker, also where it ends with an error.

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
    """Counts the time of the block as work, but for what was waited in it."""
    began, waited = time.perf_counter(), counters.wait_seconds
    try:
        yield
    finally:
        counters.work_seconds += time.perf_counter() - began - (counters.wait_seconds - waited)


def made(batches: Iterator[pa.RecordBatch], counters: Counters) -> Iterator[pa.RecordBatch]:
    """The batches of a reader, with their rows and the time that it took to make them.

    What becomes of a batch before the next one is asked for is not the reader's time. A read that is given up ends at
    once, and not when nobody has it any more: its counters are complete then.
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


def given(batches: Iterator[pa.RecordBatch], counters: Counters) -> Iterator[pa.RecordBatch]:
    """The batches for a writer, with their rows and without the time that it took to get them.

    That time is taken off the work of the writer, in which they are asked for.
    """
    while True:
        began = time.perf_counter()
        batch = next(batches, None)
        counters.work_seconds -= time.perf_counter() - began
        if batch is None:
            return
        counters.rows += batch.num_rows
        yield batch
