"""A position of NSQ: the number of a batch, because the broker has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_mq_source.core.counters import Lag


@dataclass(frozen=True, slots=True, order=True)
class BatchOffset:
    """Everything up to a batch of one query's write-ahead folder.

    Attributes:
        wal: the folder's name in `walDir`; each checkpoint has one of its own.
        batch: the batch's number; 0 before the first.
    """

    wal: str
    batch: int

    @classmethod
    def from_json(cls, document: Mapping[str, object]) -> BatchOffset:
        """The inverse of `to_json`.

        Raises:
            ValueError: anything else.

        Example:
            >>> BatchOffset.from_json({"version": 1, "batch": 7, "wal": "8f0e"})
            BatchOffset(wal='8f0e', batch=7)
        """
        version, batch, wal = (document.get(name) for name in ("version", "batch", "wal"))
        if version != 1:
            raise ValueError(f"offsets of version {version!r}, and this release knows version 1 only")
        if type(batch) is not int or batch < 0 or not isinstance(wal, str) or not wal.isalnum():
            raise ValueError(f"expected a batch and the name of its wal, not {dict(document)!r}")
        return cls(wal, batch)

    def to_json(self) -> dict[str, object]:
        """The form in Spark's checkpoint.

        Example:
            >>> BatchOffset("8f0e", 7).to_json()
            {'version': 1, 'batch': 7, 'wal': '8f0e'}
        """
        return {"version": 1, "batch": self.batch, "wal": self.wal}

    @property
    def folder(self) -> str:
        """Where the batch is in `walDir`."""
        return f"{self.wal}/{self.batch}"


def count_lag(read: object, newest: object, rows: int) -> list[Lag]:
    """How many messages wait behind a batch; nothing where an nsqd does not say.

    Args:
        read: the batch.
        newest: what was known when it was planned: that, and how many messages waited, its own among them.
        rows: how many it has read.

    Raises:
        ValueError: these are not documents of this form.

    Example:
        >>> at = BatchOffset("8f0e", 7).to_json()
        >>> print(*count_lag(at, at | {"topic": "flights", "waiting": 1000}, 400))
        flights 600 messages
    """
    if not isinstance(read, Mapping) or not isinstance(newest, Mapping):
        raise ValueError("offsets are JSON objects")  # noqa: TRY004 - as of every other document that is none
    BatchOffset.from_json(read)
    BatchOffset.from_json(newest)
    topic, waiting = newest.get("topic"), newest.get("waiting")
    if not isinstance(topic, str) or type(waiting) is not int:
        return []
    return [Lag(topic, max(0, waiting - rows), "messages")]
