"""The adapters of the formats: what the common suites, with Spark and without, need to know of each.

An adapter is a format on its broker: how to make a topic, publish to it with the official client, and read it, by the
door that Spark's side comes in by. Its facts are what formats differ in. One file a format; `mq` in `fix_formats.py`
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
"""The option for the most rows of one Arrow batch, in all formats."""


def schema_of(ddl: str) -> pa.Schema:
    """The Arrow schema that Spark asks a reader for where the user wrote `.schema(ddl)`.

    Spark's own parser needs a JVM.
    """
    return arrow_schema(from_arrow_schema(pa.schema(arrow_type_of_ddl(ddl))))


class Feed(Protocol):
    """One topic (or what a format calls it) that nobody else uses, as Spark reads it.

    Attributes:
        topic: its name.
        partitions: what the column `Format.partition` says of each partition, in order.
    """

    topic: str
    partitions: Sequence[object]

    @property
    def options(self) -> Mapping[str, str]:
        """What reads it, as often as one likes: the format's options with their values.

        Those of NSQ name a run, which is written down, and after each `publish` another one.
        """

    @property
    def straight(self) -> Mapping[str, str]:
        """What reads it with every row passing straight from the broker to Spark."""

    @property
    def stream(self) -> Mapping[str, str]:
        """What a query reads it with, from the first message on."""

    @property
    def target(self) -> Mapping[str, str]:
        """What writes to it."""

    def publish(self, values: Sequence[bytes], **producing: Any) -> None:
        """Publishes values with the broker's official client, value i to partition i modulo their number."""

    def readers(self) -> int:
        """How many readers the broker knows of at this moment."""

    def sent(self) -> int:
        """How many messages the broker has sent to readers since the topic exists."""


class Format:
    """One data source and its broker, as the common suites see them.

    Attributes:
        door: what Spark's side and the command line come in by.
        name: in `spark.read.format(name)`.
        schema: the columns read by default with their types, as Spark shows them.
        position_columns: those that tell where a message is, and apart from all others.
        partition: the column that tells partitions apart: in NSQ a partition is an nsqd.
        secret: an option whose value must never be shown.
        misspelt: an option that does not exist, and what the error is to suggest.
        flag: an option that is true or false.
        takes_empty: whether a message may hold nothing.
        plenty: more messages of 100 bytes than a broker sends ahead to somebody who takes none.
        apart: how a feed publishes messages that a limit can come between.
        counted: how a feed publishes messages that a stream counts one by one before it reads them.
        ordered: whether a partition's messages come as they were published. NSQ promises no order.
        rows_stay: whether what was read can be read by others. What NSQ has delivered is gone.
        reconnects: whether one read goes on over a new connection. NSQ's does not: what a broken connection held is
            delivered again only after its timeout, to whoever reads then.
        has_positions: whether a stream's offsets are positions in the topic.
        tasks_have_sizes: whether a plan knows how many messages a task reads at most.
        partitions_have_ends: whether a plan sees that a partition has no message.
        more_tasks: options for at least seven tasks where a topic has two partitions.
        impatient: options for tests of links that fail without a word.
        open_end: options of a read that goes on while messages come; empty where a plan has an end, which those do not
            have that keep no positions.
        repeatable: options with which a read can be done again; empty where any can. What NSQ has delivered is gone
            unless it was written down.
        aside: options of a read that takes nothing from those without them; empty where no read takes anything. In NSQ
            it is another channel's.
    """

    door: ClassVar[ports.Format[Any, Any, Any]]
    name: ClassVar[str]
    schema: ClassVar[Mapping[str, str]]
    position_columns: ClassVar[str]
    partition: ClassVar[str] = "partition"
    secret: ClassVar[str]
    misspelt: ClassVar[tuple[str, str]] = ("startingOffset", "startingOffsets")
    flag: ClassVar[str] = "failOnDataLoss"
    takes_empty: ClassVar[bool] = True
    plenty: ClassVar[int] = 60_000
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
        """Host and port that clients connect to first."""
        raise NotImplementedError

    def feed(self, partitions: int) -> Feed:
        """Makes a topic that nobody else uses."""
        raise NotImplementedError

    def new_topic(self, partitions: int = 1) -> str:
        """Creates a topic."""
        raise NotImplementedError

    def unused_topic(self) -> str:
        """The name of a topic that does not exist."""
        raise NotImplementedError

    def create(self, topic: str) -> None:
        """Creates a topic of this name with one partition, and waits until clients find it."""
        raise NotImplementedError

    def topics(self) -> list[str]:
        """All topics there are."""
        raise NotImplementedError

    def publish(self, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> None:
        """Publishes values with the broker's official client, in order, to one partition or to all in turn."""
        raise NotImplementedError

    def consume(self, topic: str, count: int) -> list[bytes]:
        """The values of the `count` messages of a topic, read by the official client where there is one here."""
        raise NotImplementedError

    def options(self, topic: str | None, **options: Any) -> Any:
        """The options dataclass of a batch read.

        With `service=(host, port)` another address is asked first; with `via=` a `proxy()` the rows come through that.
        """
        raise NotImplementedError

    def plan(self, topic: str, **options: Any) -> Sequence[Any]:
        """The tasks of a batch read."""
        return self.door.plan(self.options(topic, **options), ())

    def batches(self, topic: str | None, ddl: str = "value binary", **options: Any) -> Iterator[pa.RecordBatch]:
        """All rows of a topic, task after task, as they come."""
        schema = schema_of(ddl)
        made = self.door.fit_read(self.options(topic, **options), schema)
        for task in self.door.plan(made, ()):
            yield from self.door.read(made, task, schema)

    def read(self, topic: str | None, ddl: str = "value binary", **options: Any) -> pa.Table:
        """The same at once."""
        return pa.Table.from_batches(self.batches(topic, ddl, **options), schema_of(ddl))

    def proxy(self) -> FaultProxy:
        """A link to the broker that all connections pass through, made to fail; the caller stops it."""
        raise NotImplementedError

    def partition_of(self, row: dict[str, Any]) -> int:
        """The partition of a row with `position_columns`, as `publish` counts them."""
        return int(row["partition"])

    def assert_each_once(self, rows: Sequence[dict[str, Any]]) -> None:
        """Nothing is there twice or, as far as `position_columns` tell, out of order."""
        raise NotImplementedError


class Query(ports.Closing):
    """What Spark does with a stream: a checkpoint, triggers, and a sink that takes what the ranges hold.

    Attributes:
        options: of the stream.
        stream: the driver's side.
        at: the offset that was reached, as Spark keeps it; None before the query has begun.
        rows: what was read, trigger after trigger.
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
        """Asks where it begins, as Spark does once."""
        if self.at is None:
            self.at = through_json(self.stream.initial())

    def plan(self, *, limited: bool = True) -> dict[str, Any]:
        """Where the next trigger ends; where the last one did if nothing is new."""
        self.begin()
        return through_json(self.stream.latest(self.at, limited=limited))

    def tasks(self) -> list[Any]:
        """The tasks of the next trigger; none if nothing is new."""
        end = self.plan()
        return [] if end == self.at else self.stream.ranges(self.at, end)

    def read(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        """The rows of the tasks, one after the other, as often as one likes."""
        batches = [batch for task in tasks for batch in self._door.read(self.options, task, self._schema)]
        return pa.Table.from_batches(batches, self._schema).to_pylist()

    def read_to(self, end: Mapping[str, object]) -> list[dict[str, Any]]:
        """The rows between the checkpoint and this offset."""
        return self.read(self.stream.ranges(self.at, end))

    def trigger(self, *, limited: bool = True) -> list[Any]:
        """Plans, reads and commits; the values read. Nothing new: nothing is read, and the offset is the same."""
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
        """Triggers until so many rows were read in all; the values of all of them."""

        def has_come() -> bool:
            if len(self.rows) < count:
                self.trigger()
            return len(self.rows) >= count

        wait_until(has_come, f"{count} rows")
        return self.values

    def restart(self) -> None:
        """The next run from the same checkpoint."""
        self.close()
        self.stream = self._door.open_stream(self.options)

    def close(self) -> None:
        """Ends it."""
        self.stream.close()


def _values(rows: Sequence[dict[str, Any]]) -> list[Any]:
    return [row.get("value") for row in rows]


def start_query(mq: Format, given: Mapping[str, str], value: str = "value binary") -> Query:
    """A query of a format that has begun."""
    options = mq.door.parse_stream_options({name.lower(): value for name, value in given.items()})
    made = Query(mq.door, options, f"{value}, {mq.position_columns}")
    try:
        made.begin()
    except BaseException:
        made.close()
        raise
    return made


def through_json(offset: Mapping[str, object]) -> dict[str, object]:
    """As Spark keeps it."""
    return json.loads(json.dumps(offset))


def write(mq: Format, given: Mapping[str, str], tasks: Sequence[Sequence[bytes]]) -> None:
    """Writes values as Spark does: task after task, and then the commit."""
    schema = pa.schema({"value": pa.binary()})
    batches = [[pa.record_batch([pa.array(values, pa.binary())], schema=schema)] if values else [] for values in tasks]
    write_batches(mq, given, schema, batches)


def write_batches(
    mq: Format, given: Mapping[str, str], schema: pa.Schema, tasks: Sequence[Sequence[pa.RecordBatch]]
) -> None:
    """The same of rows with these columns."""
    options = mq.door.parse_write_options({name.lower(): value for name, value in given.items()}, schema.names)
    options = mq.door.fit(options, schema)
    reports = []
    for number, rows in enumerate(tasks):
        attempt = ports.TaskAttempt("job", partition=number, attempt_id=number)
        reports.append(mq.door.write(options, iter(rows), attempt))
    mq.door.commit(options, reports)


def numbers(count: int) -> list[bytes]:
    """Values that tell themselves apart."""
    return [b"%d" % number for number in range(count)]
