"""Batch reads and streaming queries of nsq as its tests run them, without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_mq_source.core.options import READ, STREAM
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.planner import plan_batch
from spark_mq_source.nsq.read.reader import NsqRange, read_range
from spark_mq_source.nsq.read.stream import NsqStream
from tests.behaviours.queues import QueueQuery
from tests.fix_brokers import NsqUnderTest
from tests.formats import schema_of

ROW = "value binary, message_id string, attempts int"


def numbered(count: int, what: str = "m") -> list[bytes]:
    return [f"{what}{number:06d}".encode() for number in range(count)]


def read_options(broker: NsqUnderTest, topic: str | None, **options: Any) -> NsqOptions:
    given = {"nsqlookupdHttpAddresses": broker.lookupd_address, "channel": "c"} | options
    if topic is not None:
        given["topic"] = topic
    if "nsqdTcpAddresses" in options:
        del given["nsqlookupdHttpAddresses"]
    if not given.keys() & {"maxRows", "maxSeconds", "idleTimeout"}:
        given["idleTimeout"] = "2s"
    return NsqOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, READ)


def read(options: NsqOptions, ddl: str = ROW) -> pa.Table:
    """All rows of a batch read, planned now."""
    return read_tasks(options, plan_batch(options), ddl)


def read_tasks(options: NsqOptions, tasks: Sequence[NsqRange], ddl: str = ROW) -> pa.Table:
    schema = schema_of(ddl)
    return pa.Table.from_batches([batch for task in tasks for batch in read_range(options, task, schema)], schema)


def values(table: pa.Table) -> list[bytes]:
    return table.column("value").to_pylist()


class Query(QueueQuery[NsqRange, bytes]):
    """A streaming query of a channel."""

    def __init__(self, broker: NsqUnderTest, topic: str | None, wal: Path, **options: Any) -> None:
        given = {"nsqlookupdHttpAddresses": broker.lookupd_address, "channel": "c", "walDir": wal} | options
        if topic is not None:
            given["topic"] = topic
        if "nsqdTcpAddresses" in options:
            del given["nsqlookupdHttpAddresses"]
        super().__init__(NsqOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, STREAM))

    def open_stream(self) -> NsqStream:
        return NsqStream(self.options)

    def read(self, tasks: Sequence[NsqRange]) -> pa.Table:
        return read_tasks(self.options, tasks)
