from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from spark_mq_source.pulsar.write.arrivals import arrivals


def test_items_are_yielded_in_order():
    assert list(arrivals(range(100), lambda: None)) == list(range(100))
    assert list(arrivals([], lambda: None)) == []


def test_a_timeout_yields_no_item():
    more = threading.Event()

    def slow() -> Iterator[int]:
        yield 1
        more.wait(30)
        yield 2

    found = arrivals(slow(), lambda: 0.05)
    seen = [item for item in (next(found), next(found), next(found)) if item is not None]
    assert seen == [1]
    more.set()
    rest = list(found)
    assert [item for item in rest if item is not None] == [2]


def test_errors_of_the_iterator_are_raised():
    def failing() -> Iterator[int]:
        yield 1
        raise OSError("broken")

    found = arrivals(failing(), lambda: None)
    assert next(found) == 1
    with pytest.raises(OSError, match="broken"):
        next(found)


def test_a_caller_that_stops_ends_the_thread():
    before = set(threading.enumerate())
    found = arrivals(iter(range(1000)), lambda: None)
    assert next(found) == 0
    (reader,) = set(threading.enumerate()) - before
    found.close()
    reader.join(30)
    assert not reader.is_alive()
