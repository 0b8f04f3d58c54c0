"""The end of a streaming query with `endingOffsets` or `endingTimestamp`, or whose topics are terminated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from spark_mq_source.core.errors import EndOfStreamError, OptionError

PositionT = TypeVar("PositionT", bound=Any)


class Finish:
    """Counter of consecutive triggers that find nothing, after which a query can end.

    A query does not end at the first of them: Spark may run another trigger without data, to complete results behind a
    watermark.

    Example:
        >>> finish = Finish()
        >>> [finish.count({"at": 7}, is_all=True) for _ in range(3)]
        [0, 1, 2]
    """

    ENOUGH = 2

    def __init__(self) -> None:
        self._offered: Mapping[str, object] | None = None
        self._repeats = 0

    def count(self, offered: Mapping[str, object], *, is_all: bool) -> int:
        """Return how often this end of a trigger was repeated while nothing more can be read (`is_all`)."""
        self._repeats = self._repeats + 1 if is_all and offered == self._offered else 0
        self._offered = offered
        return self._repeats


def check_stop(where: object, begin: PositionT, stop: PositionT) -> None:
    """Refuse a stop before a position that a query begins at, or has read to.

    Raises:
        OptionError: it is before that.

    Example:
        >>> check_stop("pulsar-native: t", 7, 7)
    """
    if stop < begin:
        raise OptionError(
            f"{where}: the query would end at {stop}, before {begin}, its start or the position it has read to: set a "
            f"later end, or an earlier startingOffsets with a new checkpoint"
        )


STOPPED: Final = "every topic-partition of this query is read to its endingOffsets or endingTimestamp"


def all_read(where: str, topic_partitions: int, reason: str = STOPPED) -> EndOfStreamError:
    """Return the error that ends a query: Spark lets a source end one only by an error."""
    return EndOfStreamError(f"{where}: {reason} ({topic_partitions} topic-partitions): the query ends")
