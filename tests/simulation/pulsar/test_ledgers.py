"""The model's ledgers where no likeness trace can tell: on a broker that is not run in tests."""

from __future__ import annotations

import itertools

from spark_mq_source.pulsar.read.limits import END_OF_LEDGER
from tests.simulation.pulsar.entries import make_entry
from tests.simulation.pulsar.ledgers import EARLIEST, ManagedLedger


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
