"""Counters of tasks, and the lag of queries."""

from __future__ import annotations

from dataclasses import dataclass, fields

_KIB = 1024


@dataclass(slots=True)
class Counters:
    """The counters of one or more tasks.

    Code updates them per Arrow batch or per response of the broker, never per row.

    Attributes:
        rows: rows passed to Spark, or received from it.
        entries: units of transfer: Pulsar's entries; TubeMQ's fetches read and messages sent; NSQ's runs of messages
            received together and publish commands sent. Repeated transfers count again; replays from NSQ's `walDir` do
            not count.
        entry_bytes: bytes of these entries as transferred (compressed).
        reconnects: how often a broken, moved or refused connection, producer or consumer was reopened.
        wait_seconds: time spent waiting for the broker.
        work_seconds: the remaining time, mostly for decoding or encoding. Neither includes Spark's own processing.
        dead_letters: messages stored in the dead letter topic.

    Example:
        >>> str(Counters(rows=2000, entries=4, entry_bytes=51200, wait_seconds=0.25) + Counters(rows=1))
        '2,001 rows in 4 entries of 50.0 KiB, 0 reconnects, waited 0.250 s, worked 0.000 s'
    """

    rows: int = 0
    entries: int = 0
    entry_bytes: int = 0
    reconnects: int = 0
    wait_seconds: float = 0.0
    work_seconds: float = 0.0
    dead_letters: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, name) + getattr(other, name) for name in _NAMES))

    def as_texts(self) -> dict[str, str]:
        """Return all counters as texts by name, for structured logs."""
        return {name: str(round(getattr(self, name), 6)) for name in _NAMES}

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows in {self.entries:,} entries of {_size(self.entry_bytes)}, "
            f"{self.reconnects:,} reconnects, waited {self.wait_seconds:.3f} s, worked {self.work_seconds:.3f} s"
            f"{f', {self.dead_letters:,} dead letters' if self.dead_letters else ''}"
        )


_NAMES = tuple(field.name for field in fields(Counters))


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < _KIB:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= _KIB
    return f"{count:,.1f} GiB"


@dataclass(frozen=True, slots=True)
class Lag:
    """The unread part of a topic for a query.

    Attributes:
        unit: `messages`, or `entries` (each one message or a batch of messages).
        is_exact: False if `behind` is a lower bound.

    Example:
        >>> str(Lag("flights", 1200, "entries", is_exact=False))
        'flights at least 1,200 entries'
    """

    topic: str
    behind: int
    unit: str
    is_exact: bool = True

    def __str__(self) -> str:
        return f"{self.topic} {'' if self.is_exact else 'at least '}{self.behind:,} {self.unit}"
