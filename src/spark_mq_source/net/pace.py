"""The pace of a stream: the wait for more rows before a trigger (`minRowsPerTrigger` and `maxTriggerDelay`)."""

from __future__ import annotations

import time


class TriggerPace:
    """Decides whether the rows that wait make a trigger, as Spark's Kafka source does.

    A trigger is planned if enough rows wait, or if the last one was planned `maxTriggerDelay` ago. The first trigger of
    a query is not delayed, nor is the first one after a restart: when the last one was planned is in no checkpoint.

    Args:
        min_rows: how many rows are enough; None for any number.
        max_delay_ms: the longest time between two triggers as long as any row waits.

    Example:
        >>> pace = TriggerPace(min_rows=100, max_delay_ms=60_000)
        >>> pace.delays(1), pace.delays(99), pace.delays(100), pace.delays(99)
        (False, True, False, True)
    """

    def __init__(self, min_rows: int | None, max_delay_ms: int) -> None:
        self._min_rows = min_rows
        self._max_delay_seconds = max_delay_ms / 1000
        self._last = float("-inf")

    @property
    def counts(self) -> bool:
        """True if the number of rows matters at all."""
        return self._min_rows is not None

    def delays(self, rows: int) -> bool:
        """Return whether a trigger of `rows` rows must wait; if not, and it has rows, it counts as planned now."""
        if self._min_rows is None or not rows:
            return False
        now = time.monotonic()
        if rows < self._min_rows and now - self._last < self._max_delay_seconds:
            return True
        self._last = now
        return False
