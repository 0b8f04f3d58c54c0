"""What a task has done, in numbers; and how far a query is behind."""

from __future__ import annotations

from dataclasses import dataclass, fields

_KIB = 1024


@dataclass(slots=True)
class Counters:
    """What one task, or several, have read or written.

    Nothing here is counted row by row: an Arrow batch, or what the broker sends at once, is counted in one go.

    Attributes:
        rows: handed to Spark, or taken from it.
        entries: the pieces in which they travelled: Pulsar's entries; of TubeMQ fetches that were read and messages
            that were sent; of NSQ runs of messages that came together, and commands that publish. What was read or sent
            again counts again; what NSQ's `walDir` has does not.
        entry_bytes: in these pieces, compressed where they are.
        reconnects: how often something that was broken, moved or refused was opened again.
        wait_seconds: spent waiting for the broker.
        work_seconds: the rest of the time: decoding or encoding for the most part. What Spark does with the rows
            meanwhile is in neither.

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

    def __add__(self, other: Counters) -> Counters:
        return Counters(*(getattr(self, name) + getattr(other, name) for name in _NAMES))

    def as_texts(self) -> dict[str, str]:
        """All of them by name, as logs with fields take them."""
        return {name: str(round(getattr(self, name), 6)) for name in _NAMES}

    def __str__(self) -> str:
        return (
            f"{self.rows:,} rows in {self.entries:,} entries of {_size(self.entry_bytes)}, "
            f"{self.reconnects:,} reconnects, waited {self.wait_seconds:.3f} s, worked {self.work_seconds:.3f} s"
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
    """How much of a topic a query has not read yet.

    Attributes:
        topic: its name.
        behind: how many.
        unit: of what: `messages`, or `entries`, which hold one message or a batch of them.
        is_exact: False where it is more than `behind`, and how much more the broker's positions do not tell.

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
