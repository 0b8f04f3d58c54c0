"""A streaming query of a queue (NSQ's channels, Pulsar's subscriptions) as its tests run it, without Spark."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import pyarrow as pa

from tests.fix_brokers import wait_until
from tests.formats import through_json

TaskT = TypeVar("TaskT")
ValueT = TypeVar("ValueT")


class QueueQuery(ABC, Generic[TaskT, ValueT]):
    """A streaming query, its checkpoint and its sink.

    Attributes:
        options: of the stream.
        stream: the driver's side.
        at: the offset that was reached.
        rows: what was read, trigger after trigger.
    """

    def __init__(self, options: Any) -> None:
        self.options = options
        self.stream = self.open_stream()
        self.at = through_json(self.stream.initial())
        self.rows: list[dict[str, Any]] = []

    @abstractmethod
    def open_stream(self) -> Any:
        """The driver's side, made anew."""

    @abstractmethod
    def read(self, tasks: Sequence[TaskT]) -> pa.Table:
        """The rows of the tasks, one after the other."""

    def restart(self) -> None:
        """Ends the driver and begins again from the checkpoint."""
        self.stream.close()
        self.stream = self.open_stream()

    def plan(self) -> tuple[dict[str, object], list[TaskT]]:
        """The end of the next trigger, and its tasks; none where nothing waits."""
        end = through_json(self.stream.latest(self.at))
        return end, [] if end == self.at else self.stream.ranges(self.at, end)

    def trigger(self) -> list[ValueT]:
        """Runs one trigger and commits it; the values that it read."""
        end, tasks = self.plan()
        table = self.read(tasks)
        if end != self.at:
            self.at = end
            self.stream.commit(end)
        self.rows += table.to_pylist()
        return table.column("value").to_pylist()

    def until(self, count: int) -> list[ValueT]:
        """Runs triggers until so many rows were read in all; the values of all of them."""

        def has_come() -> bool:
            if len(self.rows) < count:
                self.trigger()
            return len(self.rows) >= count

        wait_until(has_come, f"{count} rows")
        return [row["value"] for row in self.rows]

    def close(self) -> None:
        """Ends it."""
        self.stream.close()
