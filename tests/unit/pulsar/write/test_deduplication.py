"""Sequence ids of replays: the same rows continue after a killed attempt, other rows are refused before any is lost."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import ReplayError, UnwritableRowError
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.write.deduplication import EntryNumbers, producer_name

ENTRIES = st.lists(st.lists(st.binary(min_size=1, max_size=3), min_size=1, max_size=3), min_size=1, max_size=6)
"""Rows, grouped by entry."""


class Deduplicating:
    """A broker's state of one producer: it drops an entry whose first id is not above the highest stored."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.highest = -1

    def send(self, first: int, last: int, rows: list[bytes]) -> bool:
        if first <= self.highest:
            return False
        self.rows += rows
        self.highest = last
        return True


def attempt(
    broker: Deduplicating, entries: list[list[bytes]], *, killed_after: int | None = None, batch: int = 3
) -> None:
    """Write as the writer does: fetch the highest stored id, check each entry before it is sent, and check the end."""
    numbers = EntryNumbers(batch)
    numbers.found(broker.highest)
    for rows in entries[:killed_after]:
        # Each row has a length before it, as in a batch's payload.
        first, last = numbers.next(len(rows), b"".join(bytes([len(row)]) + row for row in rows))
        may_be_stored = numbers.admit(first, last)
        assert broker.send(first, last, rows) or may_be_stored
    if killed_after is None:
        numbers.finish()


def flat(entries: list[list[bytes]]) -> list[bytes]:
    return list(itertools.chain(*entries))


@given(ENTRIES, st.lists(st.integers(0, 6), max_size=3))
def test_each_row_is_stored_once_after_any_number_of_killed_attempts(entries, kills) -> None:
    broker = Deduplicating()
    for killed_after in kills:
        attempt(broker, entries, killed_after=killed_after)
    attempt(broker, entries)
    attempt(broker, entries)
    assert broker.rows == flat(entries)


@given(ENTRIES, ENTRIES, st.integers(0, 6))
def test_a_replay_of_other_rows_never_succeeds_with_a_row_lost(before, after, killed_after) -> None:
    broker = Deduplicating()
    attempt(broker, before, killed_after=killed_after)
    stored = list(broker.rows)
    try:
        attempt(broker, after)
    except ReplayError:
        assert broker.rows == stored or broker.rows[: len(stored)] == stored
    else:
        # A fingerprint may agree by chance, but not in as few examples as are tried here.
        assert broker.rows == flat(after)


@given(ENTRIES, ENTRIES)
def test_batches_are_stored_in_order_and_a_late_repetition_is_refused(one, other) -> None:
    broker = Deduplicating()
    attempt(broker, one, batch=3)
    attempt(broker, other, batch=4)
    assert broker.rows == flat(one) + flat(other)
    with pytest.raises(ReplayError, match=r"a later micro-batch \(4 of 65,536; this one is 3\)"):
        attempt(broker, one, batch=3)


def test_ids_stay_within_63_bits_and_rows_within_theirs() -> None:
    numbers = EntryNumbers(65_535)
    assert numbers.next((1 << 31) - 1, b"")[1] < 1 << 63
    with pytest.raises(UnwritableRowError, match="use more tasks"):
        numbers.next(1, b"")


def test_a_concurrent_attempt_is_detected() -> None:
    numbers, other = EntryNumbers(0), EntryNumbers(0)
    ends = []
    for _ in range(3):
        first, last = numbers.next(10, b"mine")
        numbers.admit(first, last)
        ends.append(last)
    numbers.found(ends[1], ends[1:])
    other.next(10, b"its")
    with pytest.raises(ReplayError, match="another attempt writes at the same time"):
        numbers.found(other.next(10, b"its")[1], ends[1:])


def test_a_name_depends_on_query_task_and_era() -> None:
    names = {
        producer_name(base, TaskAttempt(job, batch_id, partition))
        for base in (None, "base")
        for job in ("q", "r")
        for batch_id in (None, 1, 65_535, 65_536)
        for partition in (0, 1)
    }
    assert names == {
        f"{start}-{partition}{era}"
        for start in ("spark-q", "spark-r", "base")
        for partition in (0, 1)
        for era in ("", "-1")
    }
