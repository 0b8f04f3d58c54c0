"""The pace of a stream: whether a trigger waits for more rows (`minRowsPerTrigger` and `maxTriggerDelay`)."""

from __future__ import annotations

import time


class TriggerPace:
    """Decision whether the waiting rows make a trigger, as in Spark's Kafka source.

    A trigger is planned if enough rows wait, or if the last one was planned `maxTriggerDelay` ago. The first trigger of
    a query or after a restart is not delayed, because checkpoints do not contain the time of the last plan.

    Args:
        min_rows: the number of rows that is enough; None for any number.

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
        """True if the number of rows matters."""
        return self._min_rows is not None

    def delays(self, rows: int) -> bool:
        """Return whether a trigger of `rows` rows must wait; if not, and if `rows` is not 0, it counts as planned."""
        if self._min_rows is None or not rows:
            return False
        now = time.monotonic()
        if rows < self._min_rows and now - self._last < self._max_delay_seconds:
            return True
        self._last = now
        return False
