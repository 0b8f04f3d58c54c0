"""A streaming query over TubeMQ without Spark: a checkpoint, triggers, and the rows of the ranges."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from spark_mq_source.core.options import STREAM
from tests import formats
from tests.formats.tubemq import TubeMQFormat, tubemq_options

ROW = "topic string, broker_id int, partition int, message_id bigint, value string"
PATIENCE_S = 60.0

Offset = dict[str, Any]


class Query(formats.Query):
    """A query of one topic, or of the topics that the options name."""

    def __init__(self, masters: str, topic: str | None, checkpoint: Offset | None = None, **options: Any) -> None:
        super().__init__(TubeMQFormat.door, tubemq_options(masters, topic, STREAM, **options), ROW, checkpoint)

    def trigger_until(self, condition: Callable[[], bool], what: str) -> None:
        """Trigger until the condition holds.

        Raises:
            AssertionError: it does not hold within a minute.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}; {self.at}, {len(self.rows)} rows"
            if not self.trigger():
                time.sleep(0.05)  # nothing is new, and no event reports new messages


def numbered(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def encoded(values: list[str]) -> list[bytes]:
    return [value.encode() for value in values]
