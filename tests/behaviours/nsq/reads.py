"""Batch reads and streaming queries of nsq without Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_mq_source.core.options import READ, STREAM, Scope
from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.planner import plan_batch
from spark_mq_source.nsq.read.reader import NsqRange, read_range
from tests import formats
from tests.fix_brokers import NsqUnderTest
from tests.formats import schema_of

FORMAT = NsqFormat()
ROW = "value binary, message_id string, attempts int"


def numbered(count: int, what: str = "m") -> list[bytes]:
    return [f"{what}{number:06d}".encode() for number in range(count)]


def _options(broker: NsqUnderTest, topic: str | None, scope: Scope, **options: Any) -> NsqOptions:
    given = {"channel": "c"} | options
    if "nsqdTcpAddresses" not in options:
        given = {"nsqlookupdHttpAddresses": broker.lookupd_address} | given
    if topic is not None:
        given["topic"] = topic
    return NsqOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, scope)


def read_options(broker: NsqUnderTest, topic: str | None, **options: Any) -> NsqOptions:
    if not options.keys() & {"maxRows", "maxSeconds", "idleTimeout"}:
        options["idleTimeout"] = "2s"
    return _options(broker, topic, READ, **options)


def read(options: NsqOptions, ddl: str = ROW) -> pa.Table:
    """Return all rows of a batch read, planned now."""
    return read_tasks(options, plan_batch(options), ddl)


def read_tasks(options: NsqOptions, tasks: Sequence[NsqRange], ddl: str = ROW) -> pa.Table:
    schema = schema_of(ddl)
    return pa.Table.from_batches([batch for task in tasks for batch in read_range(options, task, schema)], schema)


def values(table: pa.Table) -> list[bytes]:
    return table.column("value").to_pylist()


class Query(formats.Query):
    """A started streaming query of a channel."""

    def __init__(self, broker: NsqUnderTest, topic: str | None, wal: Path, **options: Any) -> None:
        super().__init__(FORMAT, _options(broker, topic, STREAM, walDir=wal, **options), ROW)
        self.begin()
