"""Retries: exponential backoff with jitter under one deadline, decided by `error.retryable` alone."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from spark_mq_source.core.errors import MQSourceError, TopicNotFoundError

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_DELAY_SECONDS = 0.05
MAX_DELAY_SECONDS = 2.0

POLL_SECONDS = 1.0
"""Interval of the looks for a topic that does not exist yet."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in monotonic time.

    Example:
        >>> Deadline.after_ms(60_000).remaining_seconds() > 59
        True
        >>> Deadline.after_ms(0).expired
        True
    """

    at: float

    @classmethod
    def after_ms(cls, timeout_ms: int) -> Deadline:
        """Return the deadline `timeout_ms` milliseconds from now."""
        return cls(time.monotonic() + timeout_ms / 1000)

    def remaining_seconds(self) -> float:
        """Return the seconds left, never below 0."""
        return max(0.0, self.at - time.monotonic())

    @property
    def expired(self) -> bool:
        """True once this time has passed."""
        return time.monotonic() >= self.at


def pauses() -> Iterator[float]:
    """Yield the seconds between attempts: doubled from 50 ms to 2 s, and drawn at random from the upper half.

    So the tasks of a job do not all reconnect to a restarted broker at once.

    Example:
        >>> waits = pauses()
        >>> 0.025 <= next(waits) <= 0.05 <= next(waits) <= 0.1
        True
    """
    delay = FIRST_DELAY_SECONDS
    while True:
        yield delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads load, hides nothing
        delay = min(delay * 2, MAX_DELAY_SECONDS)


def retrying(call: Callable[[], T], *, deadline: Deadline) -> T:
    """Call until it succeeds, fails with an error that is not retryable, or the next attempt would miss the deadline.

    Raises:
        MQSourceError: the last failure, if it is not retryable or time is up.

    Example:
        >>> retrying(lambda: 7, deadline=Deadline.after_ms(100))
        7
    """
    waits = pauses()
    while True:
        try:
            return call()
        except MQSourceError as error:
            pause = next(waits)
            if not error.retryable or deadline.remaining_seconds() <= pause:
                raise
        time.sleep(pause)


def until_found(look: Callable[[], T], wait_ms: int | None) -> T:
    """Call until topics exist: again every second while `look` raises TopicNotFoundError, for `waitForTopic` at most.

    Raises:
        TopicNotFoundError: they are still missing; at once without `wait_ms`.
        MQSourceError: any other error of `look`.

    Example:
        >>> until_found(lambda: 7, None)
        7
    """
    if wait_ms is None:
        return look()
    deadline = Deadline.after_ms(wait_ms)
    has_warned = False
    while True:
        try:
            return look()
        except TopicNotFoundError as error:
            if deadline.expired:
                remedy = f"; the query has waited for it for {wait_ms} ms: create the topic, or raise waitForTopic"
                raise error.with_remedy(remedy) from error
            if not has_warned:
                logger.warning("the query waits for a topic, %d ms at most (waitForTopic): %s", wait_ms, error)
                has_warned = True
        time.sleep(min(POLL_SECONDS, deadline.remaining_seconds()))
