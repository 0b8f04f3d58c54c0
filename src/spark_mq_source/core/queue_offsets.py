"""Offsets of a queue, which has no positions: an offset is the number of a batch in the write-ahead log."""

from __future__ import annotations

from dataclasses import dataclass

from spark_mq_source.core.counters import Lag
from spark_mq_source.core.json_text import OFFSETS_VERSION, versioned_offsets


@dataclass(frozen=True, slots=True, order=True)
class BatchOffset:
    """The batches of a query's write-ahead log up to this one.

    Attributes:
        wal: the log's folder in `walDir`; each checkpoint has its own.
        batch: the batch's number; 0 before the first.
    """

    wal: str
    batch: int

    @classmethod
    def from_json(cls, document: object) -> BatchOffset:
        """Parse the offset's form in Spark's checkpoint; the inverse of `to_json`.

        Raises:
            ValueError: the document has another form.

        Example:
            >>> BatchOffset.from_json({"version": 1, "batch": 7, "wal": "8f0e"})
            BatchOffset(wal='8f0e', batch=7)
        """
        offsets = versioned_offsets(document)
        batch, wal = offsets.get("batch"), offsets.get("wal")
        if type(batch) is not int or batch < 0 or not isinstance(wal, str) or not wal.isalnum():
            raise ValueError(f"expected a batch number and a wal name, not {dict(offsets)!r}")
        return cls(wal, batch)

    def to_json(self) -> dict[str, object]:
        """Return the form in Spark's checkpoint.

        Example:
            >>> BatchOffset("8f0e", 7).to_json()
            {'version': 1, 'batch': 7, 'wal': '8f0e'}
        """
        return {"version": OFFSETS_VERSION, "batch": self.batch, "wal": self.wal}

    @property
    def folder(self) -> str:
        """The batch's folder, relative to `walDir`."""
        return f"{self.wal}/{self.batch}"


def count_lag(read: object, newest: object, rows: int) -> list[Lag]:
    """Return what waits after a batch, at least; an empty list if the broker did not report it.

    Spark counts a row once for each scan: a `foreachBatch` with two actions on a batch counts its rows twice.

    Args:
        read: the offset of the batch.
        newest: the offset as planned, with the number of messages, or of entries, waiting at that time, including those
            of the batch.
        rows: the number of rows of the batch.

    Raises:
        ValueError: the documents have another form.

    Example:
        >>> at = BatchOffset("8f0e", 7).to_json()
        >>> print(*count_lag(at, at | {"topic": "flights", "waiting": 1000, "unit": "messages"}, 400))
        flights at least 600 messages
    """
    BatchOffset.from_json(read)
    BatchOffset.from_json(newest)
    planned = versioned_offsets(newest)
    topic, waiting, unit = (planned.get(key) for key in ("topic", "waiting", "unit"))
    if not isinstance(topic, str) or type(waiting) is not int or not isinstance(unit, str):
        return []
    return [Lag(topic, max(0, waiting - rows), unit, is_exact=False)]
