"""The brokers' receipts of the rows of one task, summed up for each partition (`logReceipts`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import NamedTuple

from spark_mq_source.tubemq.offsets import TopicPartition
from spark_mq_source.tubemq.protocol.commands import SendMessage, SendMessageResponse

logger = logging.getLogger(__name__)


class Stored(NamedTuple):
    """A stored message: what its receipt says.

    Attributes:
        offset: its offset in the index of the partition's store.
        message_id: not unique.
        time_ms: when the broker has appended it.
    """

    offset: int
    message_id: int
    time_ms: int

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
        return f"offset {self.offset}, id {self.message_id}, {at}"


class Span(NamedTuple):
    """The messages of one partition: their number, the first and the last one by offset."""

    rows: int
    first: Stored
    last: Stored


@dataclass(slots=True)
class WriteReport:
    """The result of a task.

    Attributes:
        spans: the stored messages by partition, also those that were stored twice; empty without `logReceipts`.
    """

    rows: int = 0
    spans: dict[TopicPartition, Span] = field(default_factory=dict)

    def add(self, broker_id: int, send: SendMessage, answer: SendMessageResponse) -> None:
        """Add a stored message."""
        one = Stored(answer.append_offset, answer.message_id, answer.append_time)
        self._merge(TopicPartition(send.topic_name, broker_id, send.partition_id), Span(1, one, one))

    def _merge(self, tp: TopicPartition, span: Span) -> None:
        known = self.spans.get(tp, Span(0, *span[1:]))
        self.spans[tp] = Span(known.rows + span.rows, min(known.first, span.first), max(known.last, span.last))

    @classmethod
    def log(cls, reports: Iterable[WriteReport]) -> Mapping[TopicPartition, Span]:
        """Log the spans of all tasks, a line for each partition; return them."""
        whole = cls()
        for report in reports:
            for tp, span in report.spans.items():
                whole._merge(tp, span)
        for tp in sorted(whole.spans):
            span = whole.spans[tp]
            logger.info("tubemq: %s has %d rows, from %s, to %s", tp, *span)
        return whole.spans
