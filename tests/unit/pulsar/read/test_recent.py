"""The entries that a query has read already."""

from __future__ import annotations

import random

import pytest

from spark_mq_source.pulsar.read import recent
from spark_mq_source.pulsar.read.recent import EntryRanges


@pytest.mark.parametrize("seed", range(20))
def test_entries_are_a_set_in_any_order(seed: int):
    dice = random.Random(seed)
    ranges, known = EntryRanges(), set()
    for _ in range(30):
        ledger, first = dice.randrange(3), dice.randrange(40)
        part = [(ledger, entry) for entry in range(first, first + dice.choice((1, 1, 3, 10)))]
        dice.shuffle(part)
        ranges.add(part)
        known.update(part)
        ranges = EntryRanges([ranges.text()] if dice.random() < 0.5 else ranges.texts())
    assert {(ledger, entry) for ledger in range(3) for entry in range(60) if (ledger, entry) in ranges} == known


def test_neighbours_are_one_range():
    ranges = EntryRanges(["7:0-4", "7:6-9"])
    ranges.add([(7, 5), (8, 0)])
    assert ranges.texts() == ["7:0-9", "8:0"]
    assert ranges.text() == "7:0-9;8:0"


def test_logged_ranges_of_several_attempts_are_joined():
    assert EntryRanges(["7:0-2;" + "7:5;15:0;", ""]).text() == "7:0-2,5;15:0"


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recent, "MAX_RANGES", 3)
    assert EntryRanges(["7:0,2,4", "8:1,3"]).text() == "7:4;8:1,3"
    assert EntryRanges(["8:1,3,5,7"]).text() == "8:3,5,7"
