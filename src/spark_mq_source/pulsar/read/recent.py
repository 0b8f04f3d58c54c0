"""The entries of a topic-partition that a query has acknowledged, some of which a broker may deliver again.

A broker answers an ACK when it is in memory, and writes it to disk later: at once if everything before is acknowledged
as well, but at most once a second (`managedLedgerDefaultMarkDeleteRateLimit`), otherwise after up to a minute
(`managedLedgerCursorPositionFlushSeconds`). A killed broker forgets what it had not written, and delivers those entries
again, with a redelivery count of 0 (seen on 4.0.8). So may a broker that unloads the topic in order, for ACKs that it
has just answered (seen on 4.0.8: twice in 40 unloads immediately after the answers, never in 90 after 0.1 s or more).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

MAX_RANGES: Final = 50_000
"""Maximum number of ranges per topic-partition, of the last ledgers; if all entries are read here, a ledger has one. A
broker itself keeps 10,000 (`managedLedgerMaxUnackedRangesToPersist`)."""

Entry = tuple[int, int]
"""Ledger and entry."""


Run = tuple[int, int, int]
"""Ledger, and the first and last of consecutive entries in it."""


def runs_of(entries: Iterable[Entry]) -> list[Run]:
    """Return entries as runs of consecutive ones, in their order.

    Example:
        >>> runs_of([(7, 0), (7, 1), (7, 5), (8, 6)])
        [(7, 0, 1), (7, 5, 5), (8, 6, 6)]
    """
    runs: list[Run] = []
    at, first, last = -1, 0, -1
    for ledger, entry in entries:
        if entry != last + 1 or ledger != at:
            if at >= 0:
                runs.append((at, first, last))
            at, first = ledger, entry
        last = entry
    if at >= 0:
        runs.append((at, first, last))
    return runs


class _Ledger:
    __slots__ = ("first", "last")

    def __init__(self) -> None:
        self.first = array("q")
        self.last = array("q")

    def meets(self, first: int, last: int) -> bool:
        at = bisect_right(self.first, last) - 1
        return at >= 0 and first <= self.last[at]

    def add(self, first: int, last: int) -> None:
        begin = bisect_left(self.last, first - 1)
        end = bisect_right(self.first, last + 1)
        if begin < end:
            first, last = min(first, self.first[begin]), max(last, self.last[end - 1])
        self.first[begin:end] = array("q", (first,))
        self.last[begin:end] = array("q", (last,))


class EntryRanges:
    """A set of entries, compact if they are consecutive.

    Args:
        texts: initial entries, as `text` and `texts` write them; also single ones, `ledger:entry`.

    Example:
        >>> ranges = EntryRanges(["7:0-4", "7:9"])
        >>> ranges.add([(7, 5), (8, 0)])
        >>> (7, 5) in ranges, (7, 6) in ranges, ranges.text()
        (True, False, '7:0-5,9;8:0')
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._ledgers: defaultdict[int, _Ledger] = defaultdict(_Ledger)
        for text in texts:
            for part in filter(None, text.split(";")):
                ledger, _, ranges = part.partition(":")
                for one in ranges.split(","):
                    first, _, last = one.partition("-")
                    self._ledgers[int(ledger)].add(int(first), int(last or first))

    def __contains__(self, entry: Entry) -> bool:
        return self.meets((*entry, entry[1]))

    def add(self, entries: Iterable[Entry]) -> None:
        """Add entries, in any order."""
        self.add_runs(runs_of(entries))

    def add_runs(self, runs: Iterable[Run]) -> None:
        """Add runs of consecutive entries."""
        for ledger, first, last in runs:
            self._ledgers[ledger].add(first, last)

    def meets(self, run: Run) -> bool:
        """Return whether any entry of the run is in the set."""
        ledger = self._ledgers.get(run[0])
        return ledger is not None and ledger.meets(run[1], run[2])

    def texts(self) -> list[str]:
        """Return one text for each range, in order."""
        return [
            f"{number}:{_range_text(first, last)}"
            for number, ledger in sorted(self._ledgers.items())
            for first, last in zip(ledger.first, ledger.last, strict=True)
        ]

    def text(self) -> str:
        """Return all ranges in one text; if there are more than `MAX_RANGES`, the last ones."""
        left, parts = MAX_RANGES, []
        for number, ledger in sorted(self._ledgers.items(), reverse=True):
            ranges = list(map(_range_text, ledger.first[-left:], ledger.last[-left:]))
            parts.append(f"{number}:{','.join(ranges)}")
            left -= len(ranges)
            if left <= 0:
                break
        return ";".join(reversed(parts))


def _range_text(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def parse_entry(text: str) -> Entry:
    """Return an entry from ``ledger:entry``."""
    ledger, _, entry = text.partition(":")
    return int(ledger), int(entry)
