"""`tubemq`: the interface for Spark and the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq_source.base_format import BaseFormat
from spark_mq_source.core.columns import CORRUPT, ERROR
from spark_mq_source.tubemq.inspector import TubeMQInspector
from spark_mq_source.tubemq.offsets import count_lag
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.payload.columns import COLUMNS
from spark_mq_source.tubemq.read.planner import check_dead_letter_topic, plan_batch
from spark_mq_source.tubemq.read.reader import TubeMQRange, read_range
from spark_mq_source.tubemq.read.stream import TubeMQStream
from spark_mq_source.tubemq.write.receipts import WriteReport
from spark_mq_source.tubemq.write.writer import TubeMQWriter, writable_attributes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import Predicate


class TubeMQFormat(BaseFormat[TubeMQOptions, TubeMQRange, WriteReport]):
    """Apache InLong TubeMQ."""

    name = "tubemq"
    columns = COLUMNS
    writer_type = TubeMQWriter
    inspector_type = TubeMQInspector
    options_type = TubeMQOptions
    raw_errors = (CORRUPT, ERROR)
    count_lag = staticmethod(count_lag)

    def parse_tail_options(self, options: Mapping[str, str]) -> TubeMQOptions:
        """Parse the options of a read of the newest messages, including those only in the broker's memory."""
        return super().parse_tail_options({"lowlatency": "true", **options})

    def plan(self, options: TubeMQOptions, predicates: Sequence[Predicate]) -> Sequence[TubeMQRange]:
        """See `plan_batch`; a missing dead letter topic is an error."""
        del predicates
        check_dead_letter_topic(options)
        return plan_batch(options)

    def read_raw(
        self, options: TubeMQOptions, task: TubeMQRange, schema: pa.Schema, counters: Counters, tries: int
    ) -> Iterator[pa.RecordBatch]:
        """See `read_range`; every attempt reads the same rows."""
        del tries
        return read_range(options, task, schema, counters)

    def commit(self, options: TubeMQOptions, reports: Sequence[WriteReport]) -> None:
        """Log the receipts, with `logReceipts`."""
        if options.log_receipts:
            WriteReport.log(reports)

    _dead_letter_form = {"fitting": writable_attributes}  # noqa: RUF012 - never changed

    def open_stream(self, options: TubeMQOptions) -> TubeMQStream:
        """See `TubeMQStream`; a missing dead letter topic is an error."""
        check_dead_letter_topic(options)
        return TubeMQStream(options)
