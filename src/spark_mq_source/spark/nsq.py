"""`spark.read.format("nsq")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark import TaskContext

from spark_mq_source.core.errors import DataLossError, OptionError
from spark_mq_source.core.options import READ, STREAM, WRITE
from spark_mq_source.nsq.inspector import NsqInspector
from spark_mq_source.nsq.options import AckMode, NsqOptions
from spark_mq_source.nsq.payload.columns import COLUMNS, DEFAULT_COLUMNS, REQUIRED_WRITE_COLUMNS, WRITE_COLUMNS
from spark_mq_source.nsq.read.planner import plan_batch
from spark_mq_source.nsq.read.reader import NsqRange, read_range
from spark_mq_source.nsq.read.stream import NsqStream
from spark_mq_source.nsq.write.writer import write_rows
from spark_mq_source.spark.base import MQDataSource

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import Predicate, TaskAttempt

__all__ = ["NsqDataSource", "NsqFormat", "check_attempt"]


def check_attempt(options: NsqOptions, task: NsqRange) -> None:
    """Refuses to do a drain over: messages are finished when Spark has taken their rows, which it drops with the task.

    Raises:
        DataLossError: this is not the first attempt at the task, and nothing was written down.
    """
    context = TaskContext.get()
    if task.folder or options.ack_mode is AckMode.REQUEUE or context is None or not context.attemptNumber():
        return
    msg = (
        f"nsq topic {options.topic}, channel {options.channel}, nsqd {task.nsqd.name}: attempt "
        f"{context.attemptNumber() + 1} at a read without walDir: an earlier attempt may have finished messages, and "
        f"their rows are lost with it; see why it failed, and set walDir and runId, with which a task can be done over"
    )
    raise DataLossError(msg)


class NsqFormat:
    """NSQ, as `core.ports.Format` wants it."""

    name = "nsq"
    columns: Mapping[str, Sequence[str]] = COLUMNS
    default_columns: Sequence[str] = DEFAULT_COLUMNS
    write_columns: Mapping[str, Sequence[str]] = WRITE_COLUMNS
    required_write_columns: Sequence[str] = REQUIRED_WRITE_COLUMNS

    def parse_options(self, options: Mapping[str, str]) -> NsqOptions:
        """See `NsqOptions`."""
        return NsqOptions.from_spark(options, READ)

    def parse_stream_options(self, options: Mapping[str, str]) -> NsqOptions:
        """See `NsqOptions`."""
        return NsqOptions.from_spark(options, STREAM)

    def open_stream(self, options: NsqOptions) -> NsqStream:
        """See `NsqStream`."""
        return NsqStream(options)

    def wants_pushdown(self, options: NsqOptions) -> bool:
        """Never: nsqd delivers what is next, and nothing else would spare it work."""
        del options
        return False

    def plan(self, options: NsqOptions, predicates: Sequence[Predicate]) -> Sequence[NsqRange]:
        """See `plan_batch`."""
        del predicates
        return plan_batch(options)

    def read(
        self, options: NsqOptions, task: NsqRange, schema: pa.Schema, counters: Counters | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `read_range`.

        Raises:
            DataLossError: an earlier attempt may have finished messages whose rows nobody has.
        """
        check_attempt(options, task)
        return read_range(options, task, schema, counters)

    def parse_look_options(self, options: Mapping[str, str]) -> NsqOptions:
        """See `NsqOptions`; what is read is put back, and a read that was given no end has one."""
        ends = {"maxrows", "maxseconds", "idletimeout"}
        given = dict(options) | {"ackmode": "requeue"} | ({} if ends & options.keys() else {"idletimeout": "2s"})
        return NsqOptions.from_spark(given, READ)

    def open_inspector(self, options: NsqOptions) -> NsqInspector:
        """See `NsqInspector`."""
        return NsqInspector(options)

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> NsqOptions:
        """See `NsqOptions`."""
        parsed = NsqOptions.from_spark(options, WRITE)
        if parsed.topic is None and "topic" not in columns:
            msg = f"format {self.name!r}: set the option topic, or write a column topic"
            raise OptionError(msg)
        return parsed

    def write(
        self,
        options: NsqOptions,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> int:
        """See `write_rows`."""
        return write_rows(options, batches, attempt, counters)

    def commit(self, options: NsqOptions, reports: Sequence[int]) -> None:
        """Nothing: what a task has reported is there."""

    def abort(self, options: NsqOptions, reports: Sequence[int]) -> None:
        """Nothing: what was published stays, and is published again when it is written again."""


class NsqDataSource(MQDataSource):
    """Topics of NSQ as DataFrames, over NSQ's own TCP protocol.

    Name: `nsq`

    Options: see the table in README.md; `topic`, `channel`, and `nsqlookupdHttpAddresses` or `nsqdTcpAddresses` are
    required to read.

    Columns: `value`, `topic`, `channel`, `message_id`, `timestamp`, `attempts`, `nsqd`; `.schema()` chooses among them.

    NSQ has no positions. A batch read takes what is there out of the channel, and needs an end: `maxRows`,
    `maxSeconds` or `idleTimeout`. With `walDir` and `runId` the rows are written down, and the same read gives the same
    rows again. A stream always writes them down, in `walDir`.

    Example:
        ::

            query = (
                spark.readStream.format("nsq")
                .option("nsqlookupdHttpAddresses", "localhost:4161")
                .option("topic", "flights")
                .option("channel", "spark")
                .option("walDir", "/data/flights.wal")
                .load()
            )

    Writing: `value` (binary or string) is required; `topic` wins over the option; a row with `defer` (milliseconds) is
    delivered that much later.

    Example:
        ::

            (
                df.selectExpr("to_json(struct(*)) as value")
                .write.format("nsq")
                .option("nsqdTcpAddresses", "localhost:4150")
                .option("topic", "flights")
                .mode("append")
                .save()
            )
    """

    format = NsqFormat()
