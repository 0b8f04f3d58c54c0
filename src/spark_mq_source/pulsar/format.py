"""`pulsar-native`: the interface for Spark and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq_source.core.base_format import BaseFormat
from spark_mq_source.pulsar.inspector import PulsarInspector
from spark_mq_source.pulsar.offsets import count_lag
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import PulsarRange, read_range
from spark_mq_source.pulsar.read.stream import PulsarStream
from spark_mq_source.pulsar.write.transactions import abort_transactions, commit_transactions
from spark_mq_source.pulsar.write.values import check_values, with_schema
from spark_mq_source.pulsar.write.writer import WriteReport, write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import Predicate, TaskAttempt


class PulsarFormat(BaseFormat[PulsarOptions, PulsarRange, WriteReport]):
    """Apache Pulsar: a `core.ports.Format`, the only interface for `spark` and `cli`."""

    name = "pulsar-native"
    columns = COLUMNS
    options_type = PulsarOptions
    count_lag = staticmethod(count_lag)

    def wants_pushdown(self, options: PulsarOptions) -> bool:
        """The option `pushdown`."""
        return options.pushdown

    def fit(self, options: PulsarOptions, schema: pa.Schema) -> PulsarOptions:
        """The options, with the schema of the column `value`.

        Raises:
            OptionError: `value` cannot be written with these options.
        """
        type_ = schema.field("value").type
        check_values(options, type_)
        return with_schema(options, type_)

    def plan(self, options: PulsarOptions, predicates: Sequence[Predicate]) -> Sequence[PulsarRange]:
        """See `plan_batch`."""
        return plan_batch(options, predicates)

    def read(
        self,
        options: PulsarOptions,
        task: PulsarRange,
        schema: pa.Schema,
        counters: Counters | None = None,
        *,
        tries: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """See `read_range`; every attempt reads the same rows."""
        del tries
        return read_range(options, task, schema, counters)

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
        """See `commit_transactions`; without transactions the rows of a finished task are already visible."""
        transactions = [report.transaction for report in reports if report.transaction is not None]
        if transactions:
            commit_transactions(options, transactions)

    def abort(self, options: PulsarOptions, reports: Sequence[WriteReport]) -> None:
        """See `abort_transactions`; without transactions the rows of a finished task stay."""
        transactions = [report.transaction for report in reports if report.transaction is not None]
        if transactions:
            abort_transactions(options, transactions)

    def open_stream(self, options: PulsarOptions) -> PulsarStream:
        """See `PulsarStream`."""
        return PulsarStream(options)

    def open_inspector(self, options: PulsarOptions) -> PulsarInspector:
        """See `PulsarInspector`."""
        return PulsarInspector(options)
