"""The backoff of go-nsq's consumer after failures: it pauses, and then takes one message at a time."""

from __future__ import annotations


class Backoff:
    """The backoff of one consumer (go-nsq 1.1.0, `startStopContinueBackoff`).

    At level n the consumer pauses for 2^n seconds (RDY 0) and then takes one message (RDY 1). A success lowers the
    level, and a failure raises it unless the pause would exceed the maximum. At level 0 it takes all messages again.

    Args:
        failures: the number of failures before: the earlier attempts at the task.
        most_ms: the longest pause; below 2 s there is none.

    Example:
        >>> backoff = Backoff(2, 120_000)
        >>> backoff.pause_seconds, backoff.limit(2500)
        (4, 1)
        >>> backoff.succeeded()
        >>> backoff.succeeded()
        >>> backoff.pause_seconds, backoff.limit(2500), Backoff(9, 10_000).pause_seconds
        (0, 2500, 8)
    """

    def __init__(self, failures: int = 0, most_ms: int = 0) -> None:
        self._level = min(failures, max(0, (most_ms // 1000).bit_length() - 1))

    @property
    def pause_seconds(self) -> int:
        """The time to pause now, 0 at level 0."""
        return 2**self._level if self._level else 0

    def limit(self, messages: int) -> int:
        """Return how many of `messages` may be in flight."""
        return min(messages, 1) if self._level else messages

    def succeeded(self) -> None:
        """Lower the level: the messages in flight are done."""
        self._level = max(0, self._level - 1)
