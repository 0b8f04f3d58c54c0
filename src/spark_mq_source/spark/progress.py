"""What streaming queries do, trigger by trigger: a line each to be read, or numbers to be plotted.

Rows, rates and times are Spark's own. How far a query is behind comes from its source's newest offset, which Spark asks
for from 4.2 on.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from spark_mq_source.tubemq.format import TubeMQFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_mq_source.core.counters import Lag

__all__ = ["ProgressListener", "TriggerProgress", "observe_delay", "triggers_of"]

DELAY: Final = "spark_mq_source_delay"
"""The name of what `observe_delay` observes."""

_FORMATS: Final = (NsqFormat, TubeMQFormat, PulsarFormat)


@dataclass(frozen=True, slots=True)
class TriggerProgress:
    """What one trigger of a query has done.

    Attributes:
        query: its name, or the beginning of its id where it has none.
        batch: the number of the micro-batch.
        at: when the trigger began.
        seconds: how long it took.
        rows: how many were read.
        rows_per_second: read and processed while it took.
        lags: what was left to be read of each topic; empty where Spark or the broker does not say.
        delay_seconds: between the publication of the oldest row and the end of the trigger; None without rows, or where
            `observe_delay` was not used.

    Example:
        >>> progress = {
        ...     "id": "8f0e5a1c-0000-0000-0000-000000000000", "name": "delays", "batchId": 7,
        ...     "timestamp": "2013-01-01T05:15:00.000Z", "numInputRows": 1000, "processedRowsPerSecond": 2000.0,
        ...     "durationMs": {"triggerExecution": 500}, "sources": [],
        ... }
        >>> print(TriggerProgress.parse(progress))
        delays batch 7: 1,000 rows in 0.50 s, 2,000 rows/s
    """

    query: str
    batch: int
    at: datetime
    seconds: float
    rows: int
    rows_per_second: float
    lags: Sequence[Lag] = ()
    delay_seconds: float | None = None

    @classmethod
    def parse(cls, progress: Mapping[str, Any]) -> TriggerProgress:
        """Of Spark's progress, as decoded JSON."""
        seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        observed = (progress.get("observedMetrics") or {}).get(DELAY) or {}
        oldest_us = observed.get("oldest_us")
        at = datetime.fromisoformat(progress["timestamp"])
        return cls(
            query=progress.get("name") or progress["id"][:8],
            batch=progress["batchId"],
            at=at,
            seconds=seconds,
            rows=progress["numInputRows"],
            # Spark has no number, or no finite one, where a trigger took no time.
            rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
            lags=tuple(lag for source in progress["sources"] for lag in _lags(source)),
            delay_seconds=None if oldest_us is None else at.timestamp() + seconds - oldest_us / 1e6,
        )

    @property
    def behind(self) -> int:
        """What was left to be read of all topics together."""
        return sum(lag.behind for lag in self.lags)

    def __str__(self) -> str:
        parts = [f"{self.rows:,} rows in {self.seconds:.2f} s", f"{self.rows_per_second:,.0f} rows/s"]
        if self.delay_seconds is not None:
            parts.append(f"delay {self.delay_seconds:.2f} s")
        parts += [f"behind {lag}" for lag in self.lags]
        return f"{self.query} batch {self.batch}: {', '.join(parts)}"


class ProgressListener(StreamingQueryListener):
    """Says a line about each trigger, and keeps the last of them.

    Args:
        say: takes the lines; None for none.
        keep: how many triggers are kept.

    Attributes:
        triggers: of all queries of the session, the oldest first.

    Example:
        ::

            progress = ProgressListener()
            spark.streams.addListener(progress)
            query = stream.writeStream.queryName("delays").format("noop").start()
            # delays batch 0: 1,000 rows in 0.50 s, 2,000 rows/s, behind persistent://public/default/flights 12 entries
            rates = [trigger.rows_per_second for trigger in progress.triggers]
    """

    def __init__(self, say: Callable[[str], object] | None = print, *, keep: int = 1000) -> None:
        self.triggers: deque[TriggerProgress] = deque(maxlen=keep)
        self._say = say

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing to tell yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """A trigger has ended."""
        trigger = TriggerProgress.parse(json.loads(event.progress.json))
        self.triggers.append(trigger)
        if self._say is not None:
            self._say(str(trigger))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Nothing new for a while."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """The query's own error says more."""


def triggers_of(query: StreamingQuery) -> list[TriggerProgress]:
    """The triggers that Spark keeps of a query (`query.recentProgress`), the oldest first."""
    return [TriggerProgress.parse(json.loads(progress.json)) for progress in query.recentProgress]


def observe_delay(stream: DataFrame, column: str = "publish_time") -> DataFrame:
    """The same rows; the progress of a query over them says when the oldest one was published.

    Args:
        stream: what was loaded.
        column: when a row was published: `publish_time` of Pulsar, `timestamp` of NSQ, and `message_time` of TubeMQ,
            which is to the minute.
    """
    return stream.observe(DELAY, F.unix_micros(F.min(column)).alias("oldest_us"))


def _lags(source: Mapping[str, Any]) -> Iterable[Lag]:
    if not HAS_ADMISSION_CONTROL:
        return ()  # what is called the newest offset is where the trigger ends
    read, newest = source.get("endOffset"), source.get("latestOffset")
    for format_ in _FORMATS:
        try:
            return format_.count_lag(read, newest, source.get("numInputRows") or 0)
        except ValueError:
            continue  # of another format, or Spark says nothing
    return ()
