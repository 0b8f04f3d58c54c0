"""Permits: how many messages a broker may send to a consumer, in entries of a size that is learnt."""

from __future__ import annotations

from typing import Final

from spark_mq_source.pulsar.client.consumer import BaseConsumer

FIRST_GRANT_MESSAGES: Final = 1_000
"""Permits before the size of this topic's messages is known."""

BURST_BYTES: Final = 8 << 20
"""How much is taken from a consumer's queue at once: the rest stays where the queue's bound counts it."""


class Permits:
    """The permits of one consumer, which are repaid when half of them are used.

    Args:
        queue_bytes: the size of the consumer's queue.

    Attributes:
        outstanding: how many messages the broker may still send. An entry is sent whole, so it can be below zero.
        messages: how many came, as the broker counts them.
        entries: how many entries these were.
        nbytes: their size.
    """

    def __init__(self, queue_bytes: int) -> None:
        self._queue_bytes = queue_bytes
        self.outstanding = 0
        self.messages = self.entries = self.nbytes = 0

    def count(self, messages: int, *, entries: int, nbytes: int) -> None:
        """Count what came."""
        self.outstanding -= messages
        self.messages += messages
        self.entries += entries
        self.nbytes += nbytes

    def fitting(self, most: int) -> int:
        """Return how many messages to let come, at most `most`: the queue twice over, so that it never runs dry."""
        if not self.messages:
            return min(most, FIRST_GRANT_MESSAGES)
        return min(most, max(1, 2 * self._queue_bytes * self.messages // max(self.nbytes, 1)))

    def repay(self, consumer: BaseConsumer, allowed: int) -> None:
        """Grant what is missing of `allowed` messages if half of these are used.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        if allowed > 0 and self.outstanding <= allowed // 2:
            missing, self.outstanding = allowed - self.outstanding, allowed
            consumer.grant(missing)
