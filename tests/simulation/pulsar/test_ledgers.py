"""The model's ledgers in cases without a likeness trace: on a broker, or in a state, that no test can create."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from spark_mq_source.pulsar.read.limits import END_OF_LEDGER
from tests.simulation.pulsar.entries import make_entry
from tests.simulation.pulsar.ledgers import EARLIEST, Cursor, ManagedLedger, Position


def test_cursors_of_2_10_begin_at_the_requested_position() -> None:
    """Compare with broker 2.10.1; ledgers 5 and 6 have three entries each, 7 has one."""
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


FIRST = [(1, n) for n in range(6)]
SECOND = [(2, n) for n in range(3)]


def twice_stored() -> ManagedLedger:
    """Return ledgers of `FIRST`, which counts four entries, and of `SECOND`, which has the other two and another one.

    The expectations come from broker 4.0.8, with a ledger whose count was changed in ZooKeeper in an unloaded topic.
    """
    ledger = ManagedLedger(itertools.count(1).__next__, ledger_entries=10)
    ledger.open()
    entries = [make_entry([b"%d" % n], 0) for n in range(7)]
    for entry in entries[:4]:
        ledger.append(entry)
    ledger.close_unrecorded(entries[4:6])
    for entry in entries[4:]:
        ledger.append(entry)
    return ledger


def delivered(cursor: Cursor) -> list[Position]:
    found = []
    while (one := cursor.ledger.read_at(cursor.read)) is not None:
        cursor.read = one[0][0], one[0][1] + 1
        found += [] if cursor.is_deleted(one[0]) else [one[0]]
    return found


@pytest.mark.parametrize(
    ("acks", "mark", "backlog", "again"),
    [
        ([FIRST[:4]], (1, 3), 3, SECOND),
        # The broker subtracts acknowledged uncounted entries until the next ledger is acknowledged.
        ([FIRST[:5]], (1, 4), 2, SECOND),
        ([FIRST], (1, 5), 1, SECOND),
        ([FIRST, SECOND[:1]], (2, 0), 2, SECOND[1:]),
        # As many entries of the next ledger may be missing, which are the copies.
        ([FIRST, SECOND[1:2]], (2, 1), 1, SECOND[2:]),
        ([FIRST, SECOND[2:]], (2, 2), 0, []),
        # In one ACK: until the topic is loaded again, even if the backlog seems empty.
        ([FIRST + SECOND[:1]], (2, 0), 0, SECOND[1:]),
        ([FIRST[:3] + FIRST[4:] + SECOND], (1, 2), -1, FIRST[3:4]),
        # A gap among them holds the mark back.
        ([FIRST[:4], FIRST[5:], SECOND], (1, 3), -1, []),
    ],
)
def test_uncounted_entries_are_delivered_to_a_cursor_that_reads_up_to_them(
    acks: Sequence[Sequence[Position]], mark: Position, backlog: int, again: Sequence[Position]
) -> None:
    cursor = twice_stored().open_durable("s", earliest=True)
    assert delivered(cursor) == FIRST + SECOND
    for ack in acks:
        cursor.delete([(position, ()) for position in ack], now=0.0)
    cursor.rewind()
    assert (cursor.mark, cursor.backlog, delivered(cursor)) == (mark, backlog, again)


def test_no_cursor_begins_among_uncounted_entries() -> None:
    ledger = twice_stored()
    cursors = [ledger.open_non_durable("reader", start, earliest=False) for start in FIRST[3:]]
    assert [(cursor.mark, cursor.read) for cursor in cursors] == [
        ((1, 2), (1, 3)),
        ((1, 3), (2, 0)),
        ((1, 3), (2, 0)),
    ]
    cursor = ledger.open_durable("s", earliest=True)
    cursor.reset(FIRST[5])
    assert (cursor.mark, cursor.read) == ((1, 3), (2, 0))
    cursor = ledger.open_durable("t", earliest=True)
    cursor.mark_delete(FIRST[4], now=0.0)
    ledger.close()
    ledger.open()
    assert (cursor.mark, delivered(cursor)) == ((1, 4), SECOND)
