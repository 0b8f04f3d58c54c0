"""What a broker knows of the sequence ids that it has stored (`MessageDeduplication` of 4.0.8)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from tests.simulation.pulsar.entries import Entry


class Status(Enum):
    """What an entry is to deduplication."""

    NEW = 1
    DUPLICATE = 2
    UNKNOWN = 3


class Deduplication:
    """Of one loaded topic.

    The highest id of each producer that was pushed to storage, and of what storage has confirmed. After a crash both
    come from the snapshot and from what is stored behind it, which is as if from all that is stored.
    """

    def __init__(self, stored: Iterable[Entry]) -> None:
        self.persisted: dict[str, int] = {}
        for entry in stored:
            # Here a chunk counts, whichever it is, and a lower id replaces a higher one (`replayCursor`).
            if entry.marker is None:
                self.persisted[entry.producer] = entry.highest_sequence_id
        self.pushed = dict(self.persisted)

    def check(self, producer: str, sequence_id: int, highest: int, chunk: tuple[str, int, int] | None) -> Status:
        """Return what an entry is that arrives now; one that is new counts as pushed."""
        if chunk is not None and chunk[1] != chunk[2] - 1:
            return Status.NEW
        pushed = self.pushed.get(producer)
        if pushed is not None and sequence_id <= pushed:
            persisted = self.persisted.get(producer)
            return Status.DUPLICATE if persisted is not None and sequence_id <= persisted else Status.UNKNOWN
        self.pushed[producer] = max(sequence_id, highest)
        return Status.NEW

    def stored(self, producer: str, highest: int, chunk: tuple[str, int, int] | None) -> None:
        """Note that an entry is on disk."""
        if chunk is None or chunk[1] == chunk[2] - 1:
            self.persisted[producer] = max(highest, self.persisted.get(producer, -1))

    def failed(self) -> None:
        """Return what was pushed and not stored is forgotten (`resetHighestSequenceIdPushed`)."""
        self.pushed = dict(self.persisted)

    def last_sequence_id(self, producer: str) -> int:
        """Return what PRODUCER_SUCCESS says; -1 for none."""
        return self.pushed.get(producer, -1)
