"""Batch reads and streaming queries of a subscription without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_mq_source.core.options import READ, STREAM, Scope
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.options import PulsarOptions
from tests import formats
from tests.fix_brokers import PulsarUnderTest
from tests.formats import schema_of
from tests.formats.pulsar import MESSAGE_ID

FORMAT = PulsarFormat()
ROW = f"value string, key string, topic string, partition int, {MESSAGE_ID}"
SUBSCRIPTION = "queue"


def _options(broker: PulsarUnderTest, topic: str | None, scope: Scope, **options: Any) -> PulsarOptions:
    given = {
        "serviceUrl": broker.service_url,
        "topic": topic,
        "subscription": SUBSCRIPTION,
        "subscriptionType": "Shared",
        "initialPosition": "earliest",
        "operationTimeout": "60s",
    } | options
    return PulsarOptions.from_spark(
        {name.lower(): str(value) for name, value in given.items() if value is not None}, scope
    )


def drain_options(broker: PulsarUnderTest, topic: str | None, **options: Any) -> PulsarOptions:
    """Return options of a read that waits for all of `maxRows`, however long a busy machine takes."""
    if not options.keys() & {"maxSeconds", "idleTimeout"}:
        options["idleTimeout"] = "20s" if "maxRows" in options else "1s"
    return _options(broker, topic, READ, **options)


def read(options: PulsarOptions, ddl: str = ROW) -> pa.Table:
    """Return all rows of a batch read, planned now."""
    return read_tasks(options, FORMAT.plan(options, ()), ddl)


def read_tasks(options: PulsarOptions, tasks: Any, ddl: str = ROW) -> pa.Table:
    schema = schema_of(ddl)
    batches = [batch for task in tasks for batch in FORMAT.read(options, task, schema)]
    return pa.Table.from_batches(batches, schema)


def values(table: pa.Table) -> list[str]:
    return table.column("value").to_pylist()


class SubscriptionQuery(formats.Query):
    """A started streaming query of a subscription.

    A trigger waits for its planned messages, unless `idleTimeout` is given: a busy broker is not silent.
    """

    def __init__(self, broker: PulsarUnderTest, topic: str | None, wal: Path, **options: Any) -> None:
        given = {"walDir": wal, "idleTimeout": "10s"} | options
        super().__init__(FORMAT, _options(broker, topic, STREAM, **given), ROW)
        self.begin()
