"""The progress of streaming queries per trigger, as log lines or numbers.

Rows, rates and times come from Spark. The lag is computed from the source's newest offset, which Spark requests from
4.2 on.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.streaming.listener import StreamingQueryListener

from spark_mq_source.core.errors import EndOfStreamError
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

__all__ = ["ProgressListener", "TriggerProgress", "await_end", "observe_delay", "triggers_of"]

DELAY: Final = "spark_mq_source_delay"
"""The name of `observe_delay`'s observation."""

_END_OF_STREAM: Final = f"{EndOfStreamError.__module__}.{EndOfStreamError.__name__}: "
"""The beginning of the error in a worker's traceback, the only text that Spark passes on."""

_FORMATS: Final = (NsqFormat, TubeMQFormat, PulsarFormat)


@dataclass(frozen=True, slots=True)
class TriggerProgress:
    """One trigger of a query.

    Attributes:
        query: its name, or the first 8 characters of its id.
        batch: the number of the micro-batch.
        at: start of the trigger.
        seconds: duration of the trigger.
        rows: number of rows read.
        rows_per_second: rows processed per second.
        lags: lag of each topic; empty if Spark or the broker does not report it.
        delay_seconds: time from the publication of the oldest row to the end of the trigger; None without rows or
            without `observe_delay`.
        phase_seconds: time spent in each phase, by Spark's names: `latestOffset` asks the broker, `addBatch` reads,
            decodes, processes and writes the rows.
        redelivered: number of rows that the broker had delivered before; None without the argument of `observe_delay`.

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
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    redelivered: int | None = None

    @classmethod
    def parse(cls, progress: Mapping[str, Any]) -> TriggerProgress:
        """Parse Spark's progress, given as decoded JSON."""
        seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
        observed = (progress.get("observedMetrics") or {}).get(DELAY) or {}
        oldest_us = observed.get("oldest_us")
        at = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))  # Python 3.10 does not know Z
        return cls(
            query=progress.get("name") or progress["id"][:8],
            batch=progress["batchId"],
            at=at,
            seconds=seconds,
            rows=progress["numInputRows"],
            # Missing or not finite if the trigger took no measurable time.
            rows_per_second=float(progress.get("processedRowsPerSecond") or 0.0),
            lags=tuple(lag for source in progress["sources"] for lag in _lags(source)),
            delay_seconds=None if oldest_us is None else at.timestamp() + seconds - oldest_us / 1e6,
            phase_seconds={
                name: ms / 1000 for name, ms in progress["durationMs"].items() if name != "triggerExecution"
            },
            redelivered=observed.get("redelivered"),
        )

    @property
    def behind(self) -> int:
        """The sum of all lags."""
        return sum(lag.behind for lag in self.lags)

    def __str__(self) -> str:
        parts = [f"{self.rows:,} rows in {self.seconds:.2f} s", f"{self.rows_per_second:,.0f} rows/s"]
        if self.delay_seconds is not None:
            parts.append(f"delay {self.delay_seconds:.2f} s")
        parts += [f"behind {lag}" for lag in self.lags]
        return f"{self.query} batch {self.batch}: {', '.join(parts)}"


class ProgressListener(StreamingQueryListener):
    """Listener that prints a line for each trigger, and keeps the latest triggers.

    Args:
        say: called with each line; None for no output.
        keep: number of triggers to keep.

    Attributes:
        triggers: the latest triggers of all queries of the session, oldest first.

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
        """Do nothing."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        """Record the trigger."""
        trigger = TriggerProgress.parse(json.loads(event.progress.json))
        self.triggers.append(trigger)
        if self._say is not None:
            self._say(str(trigger))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        """Do nothing: the query raises its own error."""


def await_end(query: StreamingQuery, timeout_seconds: int | None = None) -> bool:
    """Wait for the end of a query; unlike `awaitTermination`, accept that it has read everything.

    A query ends with an error when it is read to its `endingOffsets` or `endingTimestamp`, or with `endAtTermination`
    when all its topics are terminated and read.

    Args:
        query: classic or Spark Connect.
        timeout_seconds: the maximum time to wait; None for no limit.

    Returns:
        Whether the query has ended: False after the timeout.

    Raises:
        StreamingQueryException: the query has failed.

    Example:
        ::

            query = spark.readStream.format("pulsar-native").options(**where, endAtTermination=True).load() ...
            await_end(query)
    """
    try:
        return query.awaitTermination(timeout_seconds) is not False
    except StreamingQueryException as error:
        if _END_OF_STREAM not in str(error):
            raise
        return True


def triggers_of(query: StreamingQuery) -> list[TriggerProgress]:
    """Return the triggers in `query.recentProgress`, oldest first."""
    return [TriggerProgress.parse(json.loads(progress.json)) for progress in query.recentProgress]


def observe_delay(stream: DataFrame, column: str = "publish_time", *, redelivered: str | None = None) -> DataFrame:
    """Return the same rows, and add the publish time of the oldest row to the query's progress.

    Args:
        stream: a loaded stream.
        column: the column of the publish time: `publish_time` of Pulsar, `timestamp` of NSQ, or `message_time` of
            TubeMQ, which is in whole minutes.
        redelivered: also count the rows with this condition: `redelivery_count > 0` of Pulsar's queues, `attempts > 1`
            of NSQ.
    """
    values = [F.unix_micros(F.min(column)).alias("oldest_us")]
    if redelivered is not None:
        values.append(F.count_if(F.expr(redelivered)).alias("redelivered"))
    return stream.observe(DELAY, *values)


def _lags(source: Mapping[str, Any]) -> Iterable[Lag]:
    if not HAS_ADMISSION_CONTROL:
        return ()  # earlier releases report the end of the trigger as the newest offset
    read, newest = source.get("endOffset"), source.get("latestOffset")
    for format_ in _FORMATS:
        try:
            return format_.count_lag(read, newest, source.get("numInputRows") or 0)
        except ValueError:
            continue  # another format, or no offsets
    return ()
