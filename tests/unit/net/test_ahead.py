"""One batch at most is read ahead in a thread; errors, the end and an early end are the same as without it."""

from __future__ import annotations

import threading
from collections.abc import Generator

import pytest

from spark_mq_source.core.errors import StorageError
from spark_mq_source.net.ahead import made_ahead


class Read:
    """A read of numbers that fails after some; it records the numbers and whether it was closed."""

    def __init__(self, most: int = 1000, error: Exception | None = None) -> None:
        self.made: list[int] = []
        self.threads: set[threading.Thread] = set()
        self.closed = False
        self._most = most
        self._error = error

    def batches(self) -> Generator[int, None, None]:
        try:
            for number in range(self._most):
                self.threads.add(threading.current_thread())
                self.made.append(number)
                yield number
            if self._error is not None:
                raise self._error
        finally:
            self.closed = True


def test_batches_are_yielded_in_order_before_the_error_that_ends_the_read() -> None:
    read = Read(3, StorageError("ledger 3 is gone"))
    got: list[int] = []
    with pytest.raises(StorageError, match=r"^ledger 3 is gone$"):
        got.extend(made_ahead(read.batches()))  # `extend` keeps the items before the error
    assert got == [0, 1, 2]
    assert not any(thread.is_alive() for thread in read.threads)


def test_a_caller_that_stops_ends_the_thread_and_a_read_at_most_one_batch_ahead() -> None:
    read = Read()
    ahead = made_ahead(read.batches())
    assert [next(ahead), next(ahead)] == [0, 1]
    ahead.close()
    assert read.closed
    assert read.made == [0, 1, 2]
    assert not any(thread.is_alive() for thread in read.threads)
    assert threading.current_thread() not in read.threads


def test_the_next_batch_is_read_while_the_caller_uses_one() -> None:
    is_used = threading.Event()

    def batches() -> Generator[int, None, None]:
        yield 0
        # Without a thread it would never be set: the caller sets it while it has the first batch.
        assert is_used.wait(timeout=60)
        yield 1

    ahead = made_ahead(batches())
    assert next(ahead) == 0
    is_used.set()
    assert list(ahead) == [1]
