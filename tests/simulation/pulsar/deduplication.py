"""Deduplication of a broker by stored sequence ids (`MessageDeduplication` of 4.0.8)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from tests.simulation.pulsar.entries import Entry


class Status(Enum):
    """The result of the check of an entry."""

    NEW = 1
    DUPLICATE = 2
    UNKNOWN = 3


class Deduplication:
    """The deduplication state of one loaded topic.

    It has the highest id of each producer that was pushed to storage, and the highest id that storage has confirmed.
    After a crash both come from the snapshot and the entries after it, which equals a scan of all stored entries.
    """

    def __init__(self, stored: Iterable[Entry]) -> None:
        self.persisted: dict[str, int] = {}
        for entry in stored:
            # Here every chunk counts, and a lower id replaces a higher one (`replayCursor`).
            if entry.marker is None:
                self.persisted[entry.producer] = entry.highest_sequence_id
        self.pushed = dict(self.persisted)

    def check(self, producer: str, sequence_id: int, highest: int, chunk: tuple[str, int, int] | None) -> Status:
        """Check an arriving entry; a new one counts as pushed."""
        if chunk is not None and chunk[1] != chunk[2] - 1:
            return Status.NEW
        pushed = self.pushed.get(producer)
        if pushed is not None and sequence_id <= pushed:
            persisted = self.persisted.get(producer)
            return Status.DUPLICATE if persisted is not None and sequence_id <= persisted else Status.UNKNOWN
        self.pushed[producer] = max(sequence_id, highest)
        return Status.NEW

    def stored(self, producer: str, highest: int, chunk: tuple[str, int, int] | None) -> None:
        """Record an entry as stored."""
        if chunk is None or chunk[1] == chunk[2] - 1:
            self.persisted[producer] = max(highest, self.persisted.get(producer, -1))

    def failed(self) -> None:
        """Forget the ids that were pushed and not stored (`resetHighestSequenceIdPushed`)."""
        self.pushed = dict(self.persisted)

    def last_sequence_id(self, producer: str) -> int:
        """Return the last sequence id for PRODUCER_SUCCESS; -1 for none."""
        return self.pushed.get(producer, -1)
