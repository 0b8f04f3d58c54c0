"""Batch reads and streaming queries of nsq as its tests run them, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_mq_source.core.options import READ, STREAM
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.planner import plan_batch
from spark_mq_source.nsq.read.reader import NsqRange, read_range
from spark_mq_source.nsq.read.stream import NsqStream
from tests.fix_brokers import NsqUnderTest, wait_until
from tests.formats import schema_of

ROW = "value binary, message_id string, attempts int"


def numbered(count: int, what: str = "m") -> list[bytes]:
    return [f"{what}{number:06d}".encode() for number in range(count)]


def read_options(broker: NsqUnderTest, topic: str, **options: Any) -> NsqOptions:
    given = {"nsqlookupdHttpAddresses": broker.lookupd_address, "topic": topic, "channel": "c"} | options
    if "nsqdTcpAddresses" in options:
        del given["nsqlookupdHttpAddresses"]
    if not given.keys() & {"maxRows", "maxSeconds", "idleTimeout"}:
        given["idleTimeout"] = "2s"
    return NsqOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, READ)


def read(options: NsqOptions, ddl: str = ROW) -> pa.Table:
    """All rows of a batch read, planned now."""
    return read_tasks(options, plan_batch(options), ddl)


def read_tasks(options: NsqOptions, tasks: list[NsqRange], ddl: str = ROW) -> pa.Table:
    schema = schema_of(ddl)
    return pa.Table.from_batches([batch for task in tasks for batch in read_range(options, task, schema)], schema)


def values(table: pa.Table) -> list[bytes]:
    return table.column("value").to_pylist()


class Query:
    """A streaming query, its checkpoint and its sink.

    Attributes:
        at: the offset that was reached.
        rows: what was read, trigger after trigger.
    """

    def __init__(self, broker: NsqUnderTest, topic: str, wal: Path, **options: Any) -> None:
        where = {"nsqlookupdHttpAddresses": broker.lookupd_address, "topic": topic, "channel": "c", "walDir": wal}
        given = where | options
        if "nsqdTcpAddresses" in options:
            del given["nsqlookupdHttpAddresses"]
        self.options = NsqOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, STREAM)
        self.stream = NsqStream(self.options)
        self.at = through_json(self.stream.initial())
        self.rows: list[dict[str, Any]] = []

    def restart(self) -> None:
        """Ends the driver and begins again from the checkpoint."""
        self.stream.close()
        self.stream = NsqStream(self.options)

    def plan(self) -> tuple[dict[str, object], list[NsqRange]]:
        """The end of the next trigger, and its tasks; none where nothing waits."""
        end = through_json(self.stream.latest(self.at))
        return end, [] if end == self.at else self.stream.ranges(self.at, end)

    def trigger(self) -> list[bytes]:
        """Runs one trigger and commits it; the values that it read."""
        end, tasks = self.plan()
        table = read_tasks(self.options, tasks)
        if end != self.at:
            self.at = end
            self.stream.commit(end)
        self.rows += table.to_pylist()
        return values(table)

    def until(self, count: int) -> list[bytes]:
        """Runs triggers until so many rows were read in all; the values of all of them."""

        def has_come() -> bool:
            if len(self.rows) < count:
                self.trigger()
            return len(self.rows) >= count

        wait_until(has_come, f"{count} rows")
        return [row["value"] for row in self.rows]


def through_json(offset: dict[str, object]) -> dict[str, object]:
    """As Spark keeps it."""
    loaded: dict[str, object] = json.loads(json.dumps(offset))
    return loaded
