"""`spark.read.format("pulsar-native")`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, STREAM, WRITE
from spark_mq_source.pulsar.inspector import PulsarInspector
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.columns import COLUMNS, DEFAULT_COLUMNS, REQUIRED_WRITE_COLUMNS, WRITE_COLUMNS
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import PulsarRange, read_range
from spark_mq_source.pulsar.read.stream import PulsarStream
from spark_mq_source.pulsar.write.transactions import abort_transactions, commit_transactions
from spark_mq_source.pulsar.write.values import check_values, with_schema
from spark_mq_source.pulsar.write.writer import WriteReport, write_rows
from spark_mq_source.spark._compat import arrow_schema
from spark_mq_source.spark.base import MQDataSource

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import Predicate, TaskAttempt

__all__ = ["PulsarFormat", "PulsarNativeDataSource"]


class PulsarFormat:
    """Apache Pulsar, as `core.ports.Format` wants it."""

    name = "pulsar-native"
    columns: Mapping[str, Sequence[str]] = COLUMNS
    default_columns: Sequence[str] = DEFAULT_COLUMNS
    write_columns: Mapping[str, Sequence[str]] = WRITE_COLUMNS
    required_write_columns: Sequence[str] = REQUIRED_WRITE_COLUMNS

    def parse_options(self, options: Mapping[str, str]) -> PulsarOptions:
        """See `PulsarOptions`."""
        return PulsarOptions.from_spark(options, READ)

    def parse_stream_options(self, options: Mapping[str, str]) -> PulsarOptions:
        """See `PulsarOptions`."""
        return PulsarOptions.from_spark(options, STREAM)

    def open_stream(self, options: PulsarOptions) -> PulsarStream:
        """See `PulsarStream`."""
        return PulsarStream(options)

    def wants_pushdown(self, options: PulsarOptions) -> bool:
        """The option `pushdown`."""
        return options.pushdown

    def plan(self, options: PulsarOptions, predicates: Sequence[Predicate]) -> Sequence[PulsarRange]:
        """See `plan_batch`."""
        return plan_batch(options, predicates)

    def read(
        self, options: PulsarOptions, task: PulsarRange, schema: pa.Schema, counters: Counters | None = None
    ) -> Iterator[pa.RecordBatch]:
        """See `read_range`."""
        return read_range(options, task, schema, counters)

    def parse_look_options(self, options: Mapping[str, str]) -> PulsarOptions:
        """See `PulsarOptions`: a read takes nothing away."""
        return self.parse_options(options)

    def open_inspector(self, options: PulsarOptions) -> PulsarInspector:
        """See `PulsarInspector`."""
        return PulsarInspector(options)

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> PulsarOptions:
        """See `PulsarOptions`."""
        parsed = PulsarOptions.from_spark(options, WRITE)
        if parsed.topic is None and "topic" not in columns:
            msg = f"format {self.name!r}: set the option topic, or write a column topic"
            raise OptionError(msg)
        return parsed

    def write(
        self,
        options: PulsarOptions,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> WriteReport:
        """See `write_rows`."""
        return write_rows(options, batches, attempt, counters)

    def commit(self, options: PulsarOptions, reports: Sequence[WriteReport]) -> None:
        """See `commit_transactions`; without transactions what a task has reported is there."""
        transactions = [report.transaction for report in reports if report.transaction is not None]
        if transactions:
            commit_transactions(options, transactions)

    def abort(self, options: PulsarOptions, reports: Sequence[WriteReport]) -> None:
        """See `abort_transactions`; without transactions what a task has reported stays."""
        transactions = [report.transaction for report in reports if report.transaction is not None]
        if transactions:
            abort_transactions(options, transactions)


class PulsarNativeDataSource(MQDataSource):
    """Apache Pulsar topics as DataFrames, over Pulsar's own binary protocol.

    Name: `pulsar-native`

    Options: see the table in README.md; `serviceUrl` and one of `topic`, `topics`, `topicsPattern` are required.

    Columns: `key`, `value`, `topic`, `partition`, `message_id`, `publish_time`, `event_time`, `properties`; more when
    named in `.schema()`, which is the projection: only the columns named are built.

    Example:
        ::

            df = (
                spark.read.format("pulsar-native")
                .option("serviceUrl", "pulsar://localhost:6650")
                .option("topic", "flights")
                .schema("value string, publish_time timestamp")
                .load()
            )

    Writing: `value` (binary, string, or with `valueFormat=json` a struct) is required; `key`, `topic`, `event_time`,
    `properties`, `ordering_key`, `partition` and `deliver_at` are written where they are there. A row's own topic wins
    over the option `topic`.

    Example:
        ::

            (
                df.selectExpr("carrier as key", "to_json(struct(*)) as value")
                .write.format("pulsar-native")
                .option("serviceUrl", "pulsar://localhost:6650")
                .option("topic", "flights")
                .mode("append")
                .save()
            )
    """

    format = PulsarFormat()

    def _write_options(self, schema: StructType) -> PulsarOptions:
        options: PulsarOptions = super()._write_options(schema)
        type_ = arrow_schema(schema).field("value").type
        check_values(options, type_)
        return with_schema(options, type_)
