"""Detection of messages that were read before, in any order of delivery."""

from __future__ import annotations

import random

import pytest

from spark_mq_source.nsq.read import recent as module
from spark_mq_source.nsq.read.recent import RECENT_IDS, RecentIds, split_ids


def ids(*numbers: int) -> bytes:
    return b"".join(b"%016x" % number for number in numbers)


def test_messages_in_order_are_new():
    recent = RecentIds(ids(1, 2, 3), [])
    for start in range(4, 100, 10):
        batch = ids(*range(start, start + 10))
        assert recent.repeated(batch) == set()
        recent.remember(batch)
    # Earlier messages are excluded: several tasks of a batch begin with the same ones.
    assert split_ids(recent.last) == split_ids(ids(*range(4, 104)))


def test_unordered_ids_are_forgotten_after_twice_the_remembered_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "RECENT_IDS", 4)
    recent = RecentIds(b"", [])
    assert sorted(recent.repeated(ids(9, 8))) == []  # from here on each id is remembered
    for first in (10, 20):
        assert sorted(recent.repeated(ids(10))) == ([] if first == 10 else [0])
        recent.remember(ids(*range(first, first + 4)))
    assert sorted(recent.repeated(ids(10, 20))) == [1]
    assert split_ids(recent.last) == split_ids(ids(*range(20, 24)))


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        ([7], set()),
        ([2], {0}),
        ([7, 7], {1}),
        ([7, 1, 8, 3], {1, 3}),
        ([8, 7], set()),
        ([9, 50], {1}),
    ],
    ids=["new", "finished before", "twice at once", "in between", "out of order", "of others"],
)
def test_duplicates_and_new_messages_are_distinguished(batch: list[int], expected: set[int]):
    assert RecentIds(ids(1, 2, 3), [ids(50)]).repeated(ids(*batch)) == expected


def test_messages_that_were_only_received_are_not_remembered():
    """The message was requeued, so it is redelivered and must be read then."""
    recent = RecentIds(b"", [])
    assert recent.repeated(ids(5, 6)) == set()
    assert recent.repeated(ids(5, 6)) == set()


@pytest.mark.parametrize("others", [[], [ids(4)]], ids=["finished last", "of others"])
def test_the_largest_known_id_is_not_new(others: list[bytes]):
    recent = RecentIds(ids(1, 2, 3), others)
    largest = 3 + len(others)
    assert recent.repeated(ids(largest + 1, largest + 2)) == set()
    assert recent.repeated(ids(largest, largest + 1)) == {0}
    recent.remember(ids(largest + 1))
    assert recent.repeated(ids(largest + 1, largest + 2)) == {0}


@pytest.mark.parametrize("is_ordered", [True, False])
def test_the_last_ones_are_remembered_and_memory_is_bounded(is_ordered: bool):
    recent = RecentIds(b"", [ids(0)])
    if not is_ordered:
        recent.repeated(ids(3, 2))
    count, most = 1000, 4 * RECENT_IDS
    for start in range(1, most, count):
        batch = ids(*range(start, start + count))
        assert recent.repeated(batch) == set()
        recent.remember(batch)
    assert split_ids(recent.last) == split_ids(ids(*range(most - RECENT_IDS + 1, most + 1)))
    for number in (0, most - RECENT_IDS + 1, most):
        assert recent.repeated(ids(number)) == {0}
    assert recent.repeated(ids(1)) == set(), "it is too old"


def test_each_message_is_read_once_in_any_order():
    rng = random.Random(15)
    published = list(range(5000))
    delivered = published + rng.choices(published, k=3000)
    rng.shuffle(delivered)
    recent, taken = RecentIds(b"", []), []
    for start in range(0, len(delivered), 700):
        batch = delivered[start : start + 700]
        repeated = recent.repeated(ids(*batch))
        taken += [number for row, number in enumerate(batch) if row not in repeated]
        recent.remember(ids(*batch))
    assert sorted(taken) == published


def test_messages_logged_by_another_attempt_are_duplicates():
    recent = RecentIds(b"", [])
    recent.know([ids(2)])
    assert recent.repeated(ids(1, 2, 3)) == {1}
