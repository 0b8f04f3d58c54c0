"""Cursors as broker 2.10.1 leaves them, and the guard of limited triggers when the limiter misreads them."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator

import pytest

from spark_mq_source.pulsar.read.limits import END_OF_LEDGER, Limiter, ProgressGuard
from tests.simulation import standins
from tests.simulation.explore import Plan, ViolationError, run_plan
from tests.simulation.pulsar.entries import make_entry
from tests.simulation.pulsar.ledgers import EARLIEST, ManagedLedger

PLANS = [Plan("stream_2_10", seed, 2) for seed in range(4)]

PASSED = "the limits end a trigger at"


@pytest.fixture(autouse=True)
def misread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # A cursor that stands where it was asked for, taken for the last entry of the ledger.
    monkeypatch.setattr(Limiter, "_last_entry", lambda _limiter, _tp, _ledger: END_OF_LEDGER - 1)
    yield
    standins.uninstall()


def test_cursors_stand_where_they_were_asked_for() -> None:
    """As seen on broker 2.10.1; ledgers 5 and 6 have three entries each, 7 has one."""
    ledger = ManagedLedger(itertools.count(5).__next__, ledger_entries=3, places_cursors=False)
    ledger.open()
    for n in range(7):
        ledger.append(make_entry([b"%d" % n], 0))

    def mark(*start: int) -> tuple[int, int]:
        return ledger.open_non_durable("reader", start, earliest=False).mark

    assert [mark(5, 1), mark(5, 0), mark(5, 16), mark(6, END_OF_LEDGER)] == [
        (5, 0),
        (5, -1),
        (5, 15),
        (6, END_OF_LEDGER - 1),
    ]
    assert mark(7, END_OF_LEDGER) == (7, 0)
    cursor = ledger.open_non_durable("watcher", EARLIEST, earliest=False)
    assert ledger.trim(now=0.0)
    assert cursor.mark == (7, -1)
    assert cursor.read == (7, 0)
    assert [mark(5, 1), mark(*EARLIEST)] == [(5, 0), (7, -1)]


def test_a_query_reads_all_and_says_what_was_wrong(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert [run_plan("pulsar", plan) for plan in PLANS] == ["read"] * len(PLANS)
    assert any(PASSED in record.getMessage() for record in caplog.records)


def test_without_the_guard_a_query_reads_nothing_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProgressGuard, "check", lambda _guard, _starts, _ends, cuts: cuts)
    with pytest.raises(ViolationError, match="100 batches without a row"):
        [run_plan("pulsar", plan) for plan in PLANS]
