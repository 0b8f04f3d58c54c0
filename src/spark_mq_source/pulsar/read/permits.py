"""Permits: the messages that a broker may send to a consumer, from the average size of entries."""

from __future__ import annotations

from typing import Final

from spark_mq_source.pulsar.client.consumer import BaseConsumer

FIRST_GRANT_MESSAGES: Final = 1_000
"""Permits while the message size of this topic is unknown."""

BURST_BYTES: Final = 8 << 20
"""Maximum bytes taken from a consumer's queue at once: the rest stays within the queue's bound."""


class Permits:
    """The permits of one consumer, which are repaid when half of them are used.

    Args:
        queue_bytes: the size of the consumer's queue.

    Attributes:
        outstanding: number of messages that the broker may still send. Entries are sent whole, so it can be negative.
        messages: number of received messages, as the broker counts them.
    """

    def __init__(self, queue_bytes: int) -> None:
        self._queue_bytes = queue_bytes
        self.outstanding = 0
        self.messages = self.entries = self.nbytes = 0

    def count(self, messages: int, *, entries: int, nbytes: int) -> None:
        """Count received messages."""
        self.outstanding -= messages
        self.messages += messages
        self.entries += entries
        self.nbytes += nbytes

    def fitting(self, most: int) -> int:
        """Return how many messages to allow, up to `most`: those of two queues, so that the queue never runs empty."""
        if not self.messages:
            return min(most, FIRST_GRANT_MESSAGES)
        return min(most, max(1, 2 * self._queue_bytes * self.messages // max(self.nbytes, 1)))

    def repay(self, consumer: BaseConsumer, allowed: int) -> None:
        """Grant the missing permits up to `allowed`, if half of these are used.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        if allowed > 0 and self.outstanding <= allowed // 2:
            missing, self.outstanding = allowed - self.outstanding, allowed
            consumer.grant(missing)
