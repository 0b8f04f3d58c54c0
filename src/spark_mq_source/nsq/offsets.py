"""A position of NSQ: the number of a batch, because the broker has none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BatchOffset"]


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
            msg = f"offsets of version {version!r}, and this release knows version 1 only"
            raise ValueError(msg)
        if type(batch) is not int or batch < 0 or not isinstance(wal, str) or not wal.isalnum():
            msg = f"expected a batch and the name of its wal, not {dict(document)!r}"
            raise ValueError(msg)
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
