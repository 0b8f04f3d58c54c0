"""Waiting time, working time and Spark's time, measured with a clock that the tests move."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.net import stopwatch
from spark_mq_source.net.stopwatch import timed_input, timed_output, waiting, working
from tests.unit.standins import Clock

TIMED = stopwatch


def batch(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(rows))})


def test_a_readers_time_is_waiting_or_working_and_the_rest_is_sparks(clock: Clock) -> None:
    counters = Counters()

    def read() -> Iterator[pa.RecordBatch]:
        for rows in (3, 4):
            with waiting(counters):
                clock.now += 5
            clock.now += 2
            yield batch(rows)
        clock.now += 1

    taken = []
    for one in timed_output(read(), counters):
        clock.now += 1000
        taken.append(one.num_rows)
    assert taken == [3, 4]
    assert counters == Counters(rows=7, wait_seconds=10, work_seconds=5)


def test_a_writers_time_excludes_the_time_of_its_input_rows(clock: Clock) -> None:
    counters = Counters()

    def rows() -> Iterator[pa.RecordBatch]:
        clock.now += 1000
        yield batch(3)
        clock.now += 1000

    with working(counters):
        for _ in timed_input(rows(), counters):
            clock.now += 2
            with waiting(counters):
                clock.now += 5
        clock.now += 1
    assert counters == Counters(rows=3, wait_seconds=5, work_seconds=3)


def test_time_before_an_error_is_counted(clock: Clock) -> None:
    counters = Counters()

    def read() -> Iterator[pa.RecordBatch]:
        clock.now += 2
        with waiting(counters):
            clock.now += 5
            raise ConnectionError
        yield batch(1)

    with pytest.raises(ConnectionError):
        next(timed_output(read(), counters))
    assert counters == Counters(wait_seconds=5, work_seconds=2)


def test_an_abandoned_read_ends_at_once(clock: Clock) -> None:
    ended = []

    def read() -> Iterator[pa.RecordBatch]:
        try:
            yield batch(1)
        finally:
            ended.append(True)

    kept = read()  # the generator does not end while a reference to it exists
    batches = timed_output(kept, Counters())
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert ended == [True]
