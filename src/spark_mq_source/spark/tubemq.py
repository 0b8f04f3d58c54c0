"""`spark.read.format("tubemq")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, STREAM, WRITE
from spark_mq_source.spark.base import MQDataSource
from spark_mq_source.tubemq.inspector import TubeMQInspector
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.payload.columns import COLUMNS, DEFAULT_COLUMNS, REQUIRED_WRITE_COLUMNS, WRITE_COLUMNS
from spark_mq_source.tubemq.read.planner import plan_batch
from spark_mq_source.tubemq.read.reader import TubeMQRange, read_range
from spark_mq_source.tubemq.read.stream import TubeMQStream
from spark_mq_source.tubemq.write.writer import write_rows

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import Predicate, TaskAttempt

__all__ = ["TubeMQDataSource", "TubeMQFormat"]


class TubeMQFormat:
    """Apache InLong TubeMQ, as `core.ports.Format` wants it."""

    name = "tubemq"
    columns: Mapping[str, Sequence[str]] = COLUMNS
    default_columns: Sequence[str] = DEFAULT_COLUMNS
    write_columns: Mapping[str, Sequence[str]] = WRITE_COLUMNS
    required_write_columns: Sequence[str] = REQUIRED_WRITE_COLUMNS

    def parse_options(self, options: Mapping[str, str]) -> TubeMQOptions:
        """See `TubeMQOptions`."""
        return TubeMQOptions.from_spark(options, READ)

    def parse_stream_options(self, options: Mapping[str, str]) -> TubeMQOptions:
        """See `TubeMQOptions`."""
        return TubeMQOptions.from_spark(options, STREAM)

    def open_stream(self, options: TubeMQOptions) -> TubeMQStream:
        """See `TubeMQStream`."""
        return TubeMQStream(options)

    def wants_pushdown(self, options: TubeMQOptions) -> bool:
        """Never: message types are chosen by the option `filters`, and nothing else would spare a broker work."""
        del options
        return False

    def plan(self, options: TubeMQOptions, predicates: Sequence[Predicate]) -> Sequence[TubeMQRange]:
        """See `plan_batch`."""
        del predicates
        return plan_batch(options)

    def read(
        self, options: TubeMQOptions, task: TubeMQRange, schema: pa.Schema, counters: Counters | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `read_range`."""
        return read_range(options, task, schema, counters)

    def parse_look_options(self, options: Mapping[str, str]) -> TubeMQOptions:
        """See `TubeMQOptions`: a read takes nothing away."""
        return self.parse_options(options)

    def open_inspector(self, options: TubeMQOptions) -> TubeMQInspector:
        """See `TubeMQInspector`."""
        return TubeMQInspector(options)

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> TubeMQOptions:
        """See `TubeMQOptions`."""
        parsed = TubeMQOptions.from_spark(options, WRITE)
        if parsed.topic is None and "topic" not in columns:
            msg = f"format {self.name!r}: set the option topic, or write a column topic"
            raise OptionError(msg)
        return parsed

    def write(
        self,
        options: TubeMQOptions,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> int:
        """See `write_rows`."""
        return write_rows(options, batches, attempt, counters)

    def commit(self, options: TubeMQOptions, reports: Sequence[int]) -> None:
        """Nothing: what a task has reported is there."""

    def abort(self, options: TubeMQOptions, reports: Sequence[int]) -> None:
        """Nothing: what is there stays, and is there again when it is written again."""


class TubeMQDataSource(MQDataSource):
    """Apache InLong TubeMQ topics as DataFrames, over TubeMQ's own binary protocol.

    Name: `tubemq`

    Options: see the table in README.md; `masters` and one of `topic` and `topics` are required.

    Columns: `value`, `topic`, `broker_id`, `partition`, `message_id`, `message_time`, `message_type`, `attributes`;
    `fetch_offset` too when named in `.schema()`, which is the projection: only the columns named are built.

    Example:
        ::

            df = (
                spark.read.format("tubemq")
                .option("masters", "localhost:8715")
                .option("topic", "flights")
                .schema("value string, message_type string")
                .load()
            )

    Writing: `value` (binary or string) is required; `topic`, `message_type`, `message_time` and `attributes` are
    written where they are there. A row's own topic wins over the option `topic`.

    Example:
        ::

            (
                df.selectExpr("carrier as message_type", "to_json(struct(*)) as value")
                .write.format("tubemq")
                .option("masters", "localhost:8715")
                .option("topic", "flights")
                .mode("append")
                .save()
            )
    """

    format = TubeMQFormat()
