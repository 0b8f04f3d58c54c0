"""A streaming query over TubeMQ without Spark: a checkpoint, triggers, and what the ranges hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from spark_mq_source.core.options import STREAM
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.read.reader import TubeMQRange, read_range
from spark_mq_source.tubemq.read.stream import TubeMQStream
from tests.formats import schema_of, through_json
from tests.formats.tubemq import tubemq_options

ROW = "topic string, broker_id int, partition int, message_id bigint, value string"
PATIENCE_S = 60.0

Offset = dict[str, Any]
Row = dict[str, Any]


class Query:
    """What Spark does with a stream: a checkpoint, triggers, and a sink that takes what the ranges hold."""

    def __init__(self, masters: str, topic: str | None, checkpoint: Offset | None = None, **options: Any) -> None:
        self.options: TubeMQOptions = tubemq_options(masters, topic, STREAM, **options)
        self.stream = TubeMQStream(self.options)
        self.at = checkpoint
        self.rows: list[Row] = []
        self.triggers: list[int] = []
        """The rows that each trigger read."""

    def __enter__(self) -> Query:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    @property
    def values(self) -> list[str]:
        return [row["value"] for row in self.rows]

    def begin(self) -> None:
        """Asks where it starts, as Spark does once."""
        if self.at is None:
            self.at = through_json(self.stream.initial())

    def trigger(self, *, limited: bool = True) -> list[str]:
        """Plans, reads and commits; the values read. Nothing new: nothing is read, and the offset is the same."""
        self.begin()
        assert self.at is not None
        end = through_json(self.stream.latest(self.at, limited=limited))
        if end == self.at:
            return []
        rows = self.read(self.stream.ranges(self.at, end))
        self.stream.commit(end)
        self.at = end
        self.rows += rows
        self.triggers.append(len(rows))
        return [row["value"] for row in rows]

    def read(self, ranges: list[TubeMQRange]) -> list[Row]:
        schema = schema_of(ROW)
        batches = [batch for task in ranges for batch in read_range(self.options, task, schema)]
        return pa.Table.from_batches(batches, schema).to_pylist()

    def trigger_until(self, condition: Callable[[], bool], what: str) -> None:
        """Triggers until it is so.

        Raises:
            AssertionError: it is not within a minute.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}; {self.at}, {len(self.rows)} rows"
            if not self.trigger():
                time.sleep(0.05)  # nothing is new, and nobody says when something is

    def restart(self) -> None:
        """The next run from the same checkpoint."""
        self.stream.close()
        self.stream = TubeMQStream(self.options)


def numbered(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def encoded(values: list[str]) -> list[bytes]:
    return [value.encode() for value in values]
