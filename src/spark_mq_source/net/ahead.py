"""Makes the next Arrow batch of a read in a thread, while Spark's worker writes the one before to its socket."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")


def made_ahead(batches: Generator[T, None, None]) -> Generator[T, None, None]:
    """Yield what a generator yields; a thread makes one more while the caller uses the last one.

    When this generator ends or is closed, the thread has ended and the other generator is closed; its error follows
    everything it has yielded. It must not acknowledge what the caller has taken.

    Example:
        >>> list(made_ahead(number for number in range(3)))
        [0, 1, 2]
    """
    # The thread ends first: a generator that runs cannot be closed.
    with closing(batches), ThreadPoolExecutor(1, thread_name_prefix="read ahead") as thread:
        following = thread.submit(next, batches, None)
        while (batch := following.result()) is not None:
            following = thread.submit(next, batches, None)
            yield batch
