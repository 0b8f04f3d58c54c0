"""Adapters of the formats for the common suites, with Spark and without.

An adapter is a format on its broker: it creates topics, publishes to them with the official client, and reads them by
the interface that Spark's side uses. Its attributes are the differences of the formats. `mq` in `fix_formats.py`
runs a test with each of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from spark_mq_source.core import ports
from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.spark._compat import arrow_schema
from tests.fix_brokers import wait_until
from tests.fix_net import FaultProxy

BATCH_ROWS = "maxBatchRows"
"""The option of all formats for the maximum number of rows of one Arrow batch."""


def schema_of(ddl: str) -> pa.Schema:
    """Return the Arrow schema that Spark asks a reader for after the user's `.schema(ddl)`.

    Spark's own parser needs a JVM.
    """
    return arrow_schema(from_arrow_schema(pa.schema(arrow_type_of_ddl(ddl))))


class Feed(Protocol):
    """A new topic (or its equivalent in a format), as Spark reads it.

    Attributes:
        topic: its name.
        partitions: the values of the column `Format.partition`, in order of the partitions.
    """

    topic: str
    partitions: Sequence[object]

    @property
    def options(self) -> Mapping[str, str]:
        """The format's options that read it, repeatedly, with their values.

        Those of NSQ name a run, which is logged, and after each `publish` another one.
        """

    @property
    def straight(self) -> Mapping[str, str]:
        """The options of a read whose rows go straight from the broker to Spark."""

    @property
    def stream(self) -> Mapping[str, str]:
        """The options of a streaming query, from the first message on."""

    @property
    def target(self) -> Mapping[str, str]:
        """The options of a write to it."""

    def publish(self, values: Sequence[bytes], **producing: Any) -> None:
        """Publish values with the broker's official client, value i to partition i modulo their number."""

    def readers(self) -> int:
        """Return the number of readers that the broker has at this moment."""

    def sent(self) -> int:
        """Return the number of messages that the broker has sent to readers since the topic exists."""


class Format:
    """One data source and its broker, for the common suites.

    Attributes:
        door: the interface for Spark's side and the command line.
        name: in `spark.read.format(name)`.
        schema: the columns read by default with their types, as Spark shows them.
        position_columns: those with the position of a message, which identify it.
        partition: the column that identifies a partition: in NSQ a partition is an nsqd.
        secret: an option whose value must never be shown.
        takes_empty: whether a message may be empty.
        plenty: more messages of 1000 bytes than a broker sends ahead to a reader that takes none.
        apart: options of a feed that publishes messages which a limit can separate.
        counted: options of a feed that publishes messages which a stream counts one by one before it reads them.
        ordered: whether a partition's messages arrive in the order of publishing. NSQ guarantees no order.
        rows_stay: whether messages remain for other reads. NSQ's messages are gone once delivered.
        reconnects: whether one read continues over a new connection. NSQ's does not: those of a broken connection are
            delivered again only after their timeout, to the reader at that time.
        has_positions: whether a stream's offsets are positions in the topic.
        tasks_have_sizes: whether a plan knows how many messages a task reads at most.
        partitions_have_ends: whether a plan detects a partition without messages.
        more_tasks: options for at least seven tasks where a topic has two partitions.
        impatient: options for tests of links that fail silently.
        open_end: options of a read that continues while messages arrive; empty if a plan has an end, which formats
            without positions do not have.
        repeatable: options of a read that can be repeated; empty if every one can. NSQ's delivered messages are gone
            unless they were logged.
        aside: options of a read that takes no messages from other reads; empty if no read does. In NSQ they name
            another channel.
    """

    door: ClassVar[ports.Format[Any, Any, Any]]
    name: ClassVar[str]
    schema: ClassVar[Mapping[str, str]]
    position_columns: ClassVar[str]
    partition: ClassVar[str] = "partition"
    secret: ClassVar[str]
    takes_empty: ClassVar[bool] = True
    plenty: ClassVar[int] = 20_000
    apart: ClassVar[Mapping[str, Any]] = {}
    counted: ClassVar[Mapping[str, Any]] = {}
    ordered: ClassVar[bool] = True
    rows_stay: ClassVar[bool] = True
    reconnects: ClassVar[bool] = True
    has_positions: ClassVar[bool] = True
    tasks_have_sizes: ClassVar[bool] = True
    partitions_have_ends: ClassVar[bool] = True
    more_tasks: ClassVar[Mapping[str, str]] = {"minPartitions": "7"}
    impatient: ClassVar[Mapping[str, str]]
    open_end: ClassVar[Mapping[str, str]] = {}
    aside: ClassVar[Mapping[str, str]] = {}

    @property
    def repeatable(self) -> Mapping[str, str]:
        return {}

    @property
    def columns(self) -> str:
        """A value and its partition, as `.schema()` takes them."""
        return f"value string, {self.partition} {self.schema[self.partition]}"

    @property
    def service(self) -> tuple[str, int]:
        """Host and port of the first connection of clients."""
        raise NotImplementedError

    def feed(self, partitions: int) -> Feed:
        """Create a new topic with its options."""
        raise NotImplementedError

    def new_topic(self, partitions: int = 1) -> str:
        """Create a topic."""
        raise NotImplementedError

    def unused_topic(self) -> str:
        """Return the name of a topic that does not exist."""
        raise NotImplementedError

    def create(self, topic: str) -> None:
        """Create a topic of this name with one partition, and wait until clients find it."""
        raise NotImplementedError

    def topics(self) -> list[str]:
        """Return all topics."""
        raise NotImplementedError

    def publish(self, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> None:
        """Publish values with the broker's official client, in order, to one partition or to all in turn."""
        raise NotImplementedError

    def consume(self, topic: str, count: int) -> list[bytes]:
        """Return the values of the `count` messages of a topic, read by the official client if there is one here."""
        raise NotImplementedError

    def options(self, topic: str | None, **options: Any) -> Any:
        """Return the options dataclass of a batch read.

        With `service=(host, port)` another address is used first; with `via=` a `proxy()` the rows pass through that.
        """
        raise NotImplementedError

    def plan(self, topic: str, **options: Any) -> Sequence[Any]:
        """Return the tasks of a batch read."""
        return self.door.plan(self.options(topic, **options), ())

    def batches(self, topic: str | None, ddl: str = "value binary", **options: Any) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a topic, task after task, in their batches."""
        schema = schema_of(ddl)
        made = self.door.fit_read(self.options(topic, **options), schema)
        for task in self.door.plan(made, ()):
            yield from self.door.read(made, task, schema)

    def read(self, topic: str | None, ddl: str = "value binary", **options: Any) -> pa.Table:
        """Return all rows of a topic at once."""
        return pa.Table.from_batches(self.batches(topic, ddl, **options), schema_of(ddl))

    def proxy(self) -> FaultProxy:
        """Return a link for all connections to the broker that can be made to fail; the caller stops it."""
        raise NotImplementedError

    def partition_of(self, row: dict[str, Any]) -> int:
        """Return the partition of a row with `position_columns`, as `publish` counts them."""
        return int(row["partition"])

    def assert_each_once(self, rows: Sequence[dict[str, Any]]) -> None:
        """Check that no row is duplicate or, as far as `position_columns` show, out of order."""
        raise NotImplementedError


class Query(ports.Closing):
    """Spark's side of a stream: a checkpoint, triggers, and a sink that collects the rows of the ranges.

    Attributes:
        options: of the stream.
        stream: the driver's side.
        at: the offset that was reached, in Spark's form; None before the query has begun.
        rows: the rows read, trigger after trigger.
        sizes: how many rows each trigger read.
    """

    def __init__(self, door: Any, options: Any, ddl: str, checkpoint: dict[str, Any] | None = None) -> None:
        self._door = door
        self._schema = schema_of(ddl)
        self.options = door.fit_read(options, self._schema)
        self.stream = door.open_stream(self.options)
        self.at = checkpoint
        self.rows: list[dict[str, Any]] = []
        self.sizes: list[int] = []

    @property
    def values(self) -> list[Any]:
        """The values of all rows."""
        return _values(self.rows)

    def begin(self) -> None:
        """Fetch the start, as Spark does once."""
        if self.at is None:
            self.at = through_json(self.stream.initial())

    def plan(self, *, limited: bool = True) -> dict[str, Any]:
        """Return the end of the next trigger; the end of the last one if nothing is new."""
        self.begin()
        return through_json(self.stream.latest(self.at, limited=limited))

    def tasks(self) -> list[Any]:
        """Return the tasks of the next trigger; none if nothing is new."""
        end = self.plan()
        return [] if end == self.at else self.stream.ranges(self.at, end)

    def read(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the rows of the tasks, one after the other; repeatable."""
        batches = [batch for task in tasks for batch in self._door.read(self.options, task, self._schema)]
        return pa.Table.from_batches(batches, self._schema).to_pylist()

    def read_to(self, end: Mapping[str, object]) -> list[dict[str, Any]]:
        """Return the rows between the checkpoint and this offset."""
        return self.read(self.stream.ranges(self.at, end))

    def trigger(self, *, limited: bool = True) -> list[Any]:
        """Plan, read and commit; return the values read. If nothing is new, read nothing and keep the offset."""
        end = self.plan(limited=limited)
        if end == self.at:
            return []
        found = self.read_to(end)
        self.stream.commit(end)
        self.at = end
        self.rows += found
        self.sizes.append(len(found))
        return _values(found)

    def until(self, count: int) -> list[Any]:
        """Trigger until this many rows were read in all; return the values of all of them."""

        def has_come() -> bool:
            if len(self.rows) < count:
                self.trigger()
            return len(self.rows) >= count

        wait_until(has_come, f"{count} rows")
        return self.values

    def restart(self) -> None:
        """Start the next run from the same checkpoint."""
        self.close()
        self.stream = self._door.open_stream(self.options)

    def close(self) -> None:
        """End the query."""
        self.stream.close()


def _values(rows: Sequence[dict[str, Any]]) -> list[Any]:
    return [row.get("value") for row in rows]


def start_query(mq: Format, given: Mapping[str, str], value: str = "value binary") -> Query:
    """Return a started query of a format."""
    options = mq.door.parse_stream_options({name.lower(): value for name, value in given.items()})
    made = Query(mq.door, options, f"{value}, {mq.position_columns}")
    try:
        made.begin()
    except BaseException:
        made.close()
        raise
    return made


def through_json(offset: Mapping[str, object]) -> dict[str, object]:
    """Return an offset that was serialized as Spark does."""
    return json.loads(json.dumps(offset))


def write(mq: Format, given: Mapping[str, str], tasks: Sequence[Sequence[bytes]]) -> None:
    """Write values as Spark does: task after task, and then the commit."""
    schema = pa.schema({"value": pa.binary()})
    batches = [[pa.record_batch([pa.array(values, pa.binary())], schema=schema)] if values else [] for values in tasks]
    write_batches(mq, given, schema, batches)


def write_batches(
    mq: Format, given: Mapping[str, str], schema: pa.Schema, tasks: Sequence[Sequence[pa.RecordBatch]]
) -> None:
    """Write rows with these columns as Spark does: task after task, and then the commit."""
    options = mq.door.parse_write_options({name.lower(): value for name, value in given.items()}, schema.names)
    options = mq.door.fit(options, schema)
    reports = []
    for number, rows in enumerate(tasks):
        attempt = ports.TaskAttempt("job", partition=number, attempt_id=number)
        reports.append(mq.door.write(options, iter(rows), attempt))
    mq.door.commit(options, reports)


def numbers(count: int) -> list[bytes]:
    """Return values that are all different."""
    return [b"%d" % number for number in range(count)]
