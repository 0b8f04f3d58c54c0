"""`nsq`, as Spark and the command line see it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spark_mq_source.core.base_format import BaseFormat
from spark_mq_source.core.errors import DataLossError
from spark_mq_source.core.options import READ
from spark_mq_source.nsq.inspector import NsqInspector
from spark_mq_source.nsq.offsets import count_lag
from spark_mq_source.nsq.options import AckMode, NsqOptions
from spark_mq_source.nsq.payload.columns import COLUMNS
from spark_mq_source.nsq.read.planner import plan_batch
from spark_mq_source.nsq.read.reader import NsqRange, read_range
from spark_mq_source.nsq.read.stream import NsqStream
from spark_mq_source.nsq.write.writer import write_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import Predicate, TaskAttempt


class NsqFormat(BaseFormat[NsqOptions, NsqRange, int]):
    """NSQ, as `core.ports.Format` wants it: the door to everything in this folder."""

    name = "nsq"
    columns = COLUMNS
    options_type = NsqOptions
    count_lag = staticmethod(count_lag)

    def parse_look_options(self, options: Mapping[str, str]) -> NsqOptions:
        """What is read is put back, and a read that was given no end has one."""
        ends = {"maxrows", "maxseconds", "idletimeout"}
        given = dict(options) | {"ackmode": "requeue"} | ({} if ends & options.keys() else {"idletimeout": "2s"})
        return NsqOptions.from_spark(given, READ)

    def plan(self, options: NsqOptions, predicates: Sequence[Predicate]) -> Sequence[NsqRange]:
        """See `plan_batch`."""
        del predicates
        return plan_batch(options)

    def read(
        self,
        options: NsqOptions,
        task: NsqRange,
        schema: pa.Schema,
        counters: Counters | None = None,
        *,
        tries: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """See `read_range`.

        Raises:
            DataLossError: an earlier attempt may have finished messages whose rows nobody has.
        """
        _check_attempt(options, task, tries)
        return read_range(options, task, schema, counters)

    def write(
        self,
        options: NsqOptions,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> int:
        """See `write_rows`."""
        return write_rows(options, batches, attempt, counters)

    def open_stream(self, options: NsqOptions) -> NsqStream:
        """See `NsqStream`."""
        return NsqStream(options)

    def open_inspector(self, options: NsqOptions) -> NsqInspector:
        """See `NsqInspector`."""
        return NsqInspector(options)


def _check_attempt(options: NsqOptions, task: NsqRange, tries: int) -> None:
    """Refuses to do a drain over: messages are finished when Spark has their rows, which it drops with the task."""
    if task.folder or options.ack_mode is AckMode.REQUEUE or not tries:
        return
    raise DataLossError(
        f"nsq topic {options.topic}, channel {options.channel}, nsqd {task.nsqd.name}: attempt {tries + 1} at a read "
        f"without walDir: an earlier attempt may have finished messages, and their rows are lost with it; see why it "
        f"failed, and set walDir and runId, with which a task can be done over"
    )
