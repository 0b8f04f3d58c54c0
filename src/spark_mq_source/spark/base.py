"""The data source, readers, writer and partition of every format, written once over `core.ports`."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)

from spark_mq_source.core.columns import without_large_types
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import OptionError, TaskEndedError, UnsupportedFeatureError
from spark_mq_source.core.ports import BatchFormat, Format, Predicate, Stream, StreamFormat, TaskAttempt, WriteFormat
from spark_mq_source.net.stopwatch import given, working
from spark_mq_source.spark._compat import FILTER_OPERATORS, StreamReaderBase, StreamWriterBase, arrow_schema
from spark_mq_source.spark.task_log import log_write, log_written, logged_read
from spark_mq_source.spark.worker import (
    check_wanted,
    connection_to_spark,
    leave_modules_uncollected,
    rows_while_wanted,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import StructType


OptionsT = TypeVar("OptionsT")
RangeT = TypeVar("RangeT")
ReportT = TypeVar("ReportT")

# What Spark's micro-batches tell their tasks (seen on 4.0.0 and 4.3.0).
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class MQPartition(InputPartition):
    """One task's work, as its format describes it.

    Attributes:
        value: the format's own range; picklable.
    """

    value: Any


@dataclass(frozen=True)
class MQCommit(WriterCommitMessage):
    """What a task says when all it has written is acknowledged.

    Attributes:
        report: the format's own; picklable.
        counters: what the task has done.
    """

    report: Any
    counters: Counters


class MQDataSource(DataSource):
    """A format as Spark sees it. A subclass names its format and carries the manual."""

    format: ClassVar[Format[Any, Any, Any]]

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        """The name in `spark.read.format(name)`."""
        return cls.format.name

    def schema(self) -> str:
        """The columns read where the user names none, as SQL."""
        return ", ".join(f"{name} {self.format.columns.readable[name][0]}" for name in self.format.columns.default)

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader of the columns asked for.

        Raises:
            OptionError: options or columns that cannot be used; all problems in one sentence.
            UnsupportedFeatureError: `pushdown` where Spark has none.
        """
        options = self.format.parse_options(self.options)
        check_columns(self.format, schema)
        if self.format.wants_pushdown(options) and not FILTER_OPERATORS:
            raise UnsupportedFeatureError(
                f"format {self.format.name!r}: pushdown=true needs Spark 4.1 or newer; leave it out"
            )
        kind = MQPushdownReader if self.format.wants_pushdown(options) else MQBatchReader
        return kind(self.format, options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """The stream reader of the columns asked for.

        Raises:
            OptionError: options or columns that cannot be used; all problems in one sentence.
        """
        options = self.format.parse_stream_options(self.options)
        check_columns(self.format, schema)
        return MQStreamReader(self.format, options, arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """The batch writer of these columns.

        Raises:
            OptionError: options or columns that cannot be used; all problems in one sentence; or mode overwrite.
        """
        if overwrite:
            raise OptionError(
                f"format {self.format.name!r}: what is in a topic cannot be overwritten; use mode('append')"
            )
        return MQBatchWriter(self.format, self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """The stream writer of these columns.

        Output mode `complete`, which is what `overwrite` says, writes the whole result with every batch, as Spark's
        Kafka sink does; `update` Spark itself refuses for every Python data source (seen on 4.3.0).

        Raises:
            OptionError: options or columns that cannot be used; all problems in one sentence.
        """
        return MQStreamWriter(self.format, self._write_options(schema))

    def _write_options(self, schema: StructType) -> Any:  # noqa: ANN401 - the format's own
        options = self.format.parse_write_options(self.options, schema.names)
        check_columns(self.format, schema, written=True)
        return self.format.fit(options, arrow_schema(schema))


class MQBatchReader(DataSourceReader, Generic[OptionsT, RangeT]):
    """Plans on the driver, reads on the executors."""

    def __init__(self, format_: BatchFormat[OptionsT, RangeT], options: OptionsT, schema: pa.Schema) -> None:
        self._format = format_
        self._options = options
        self._schema = schema
        self._predicates: list[Predicate] = []

    def partitions(self) -> Sequence[InputPartition]:
        """One partition a range of the plan.

        Raises:
            MQSourceError: the broker cannot be reached, refuses, or has not what was asked for.
        """
        return [MQPartition(task) for task in self._format.plan(self._options, self._predicates)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in the order of the topic.

        Raises:
            MQSourceError: see the format's reader.
        """
        # Spark makes a partition of its own, without a range, where a plan has none.
        if not isinstance(partition, MQPartition):
            return iter(())
        return _read(self._format, self._options, partition.value, self._schema)


class MQPushdownReader(MQBatchReader[OptionsT, RangeT]):
    """The same with predicates.

    A class of its own, because Spark refuses a reader that has `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is true.

    Spark keeps one plan for each `load()`: the partitions planned for the condition it pushed last serve every other
    query over the same DataFrame too, which then lack rows (seen on 4.3.0). Nothing here is asked again, so nothing
    here can prevent it: with pushdown, each query needs a `load()` of its own.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Notes what the plan can use. Spark checks every condition again: a plan prunes, it does not filter."""
        for condition in filters:
            operator = FILTER_OPERATORS.get(type(condition))
            match condition:
                case object(attribute=(column,), value=value) if operator is not None:
                    self._predicates.append(Predicate(column, operator, _plain(value)))
        return filters


class MQStreamReader(StreamReaderBase, Generic[OptionsT, RangeT]):
    """A streaming query's reader: plans on the driver, where it lives as long as the query, reads on the executors.

    Pickled copies go to the executors; they carry no connection.
    """

    def __init__(self, format_: StreamFormat[OptionsT, RangeT], options: OptionsT, schema: pa.Schema) -> None:
        self._format = format_
        self._options = options
        self._schema = schema
        self._stream: Stream[RangeT] | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_stream": None}

    @property
    def stream(self) -> Stream[RangeT]:
        """The format's side of the query, made when it is first asked for."""
        if self._stream is None:
            self._stream = self._format.open_stream(self._options)
        return self._stream

    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[MQPartition]:
        """One partition a range of the trigger.

        Raises:
            MQSourceError: the broker cannot be reached, or refuses.
        """
        self._begins_at = end
        return [MQPartition(task) for task in self.stream.ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in the order of the topic.

        Raises:
            MQSourceError: see the format's reader.
        """
        return _read(self._format, self._options, partition.value, self._schema)

    def stop(self) -> None:
        """Closes the connections of the driver."""
        if self._stream is not None:
            self._stream.close()


def _read(
    format_: BatchFormat[OptionsT, RangeT], options: OptionsT, task: RangeT, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    leave_modules_uncollected()
    counters, context = Counters(), TaskContext.get()
    tries = 0 if context is None else context.attemptNumber()
    return logged_read(format_.name, task, format_.read(options, task, schema, counters, tries=tries), counters)


class _Writing(Generic[OptionsT, ReportT]):
    """What batches and streams have in common."""

    def __init__(self, format_: WriteFormat[OptionsT, ReportT], options: OptionsT) -> None:
        self._format = format_
        self._options = options

    def _write(self, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt) -> MQCommit:
        leave_modules_uncollected()
        counters, connection = Counters(), connection_to_spark()
        with working(counters):
            taken = given(map(without_large_types, rows_while_wanted(batches, connection)), counters)
            report = self._format.write(self._options, taken, attempt, counters)
        try:
            check_wanted(connection)
        except TaskEndedError:
            # The driver will not hear of it.
            self._format.abort(self._options, [report])
            raise
        log_write(self._format.name, attempt.partition, counters)
        return MQCommit(report, counters)

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._format.commit(self._options, _reports(messages))
        log_written(self._format.name, [one.counters for one in messages if isinstance(one, MQCommit)])

    def _abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._format.abort(self._options, _reports(messages))


class MQBatchWriter(_Writing[OptionsT, ReportT], DataSourceArrowWriter):
    """Writes on the executors; a task has succeeded when the broker has acknowledged all its rows.

    Made on the driver for one `save`; pickled copies of it write, and itself (or a copy) commits.
    """

    def __init__(self, format_: WriteFormat[OptionsT, ReportT], options: OptionsT) -> None:
        super().__init__(format_, options)
        self._job_id = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> MQCommit:
        """Writes the rows of one task.

        Raises:
            MQSourceError: see the format's writer.
        """
        return self._write(iterator, _attempt(self._job_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task has succeeded.

        Raises:
            MQSourceError: see the format.
        """
        self._commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The job has failed.

        Raises:
            MQSourceError: see the format.
        """
        self._abort(messages)


class MQStreamWriter(_Writing[OptionsT, ReportT], StreamWriterBase):
    """Writes the micro-batches of a query on the executors.

    Spark makes a new one for every batch, and another one to commit it (seen on 4.0.0 and 4.3.0): what `commit` is to
    know travels in the tasks' messages.
    """

    def write(self, iterator: Iterator[pa.RecordBatch]) -> MQCommit:
        """Writes the rows of one task.

        Raises:
            MQSourceError: see the format's writer.
        """
        return self._write(iterator, _attempt(None))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Every task of a batch has succeeded.

        Raises:
            MQSourceError: see the format.
        """
        self._commit(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """The batch has failed, or the query was stopped.

        Raises:
            MQSourceError: see the format.
        """
        self._abort(messages)


def _attempt(job_id: str | None) -> TaskAttempt:
    """The attempt that runs here, of a batch (`job_id`) or of the streaming query that Spark tells of.

    Raises:
        UnsupportedFeatureError: this Spark does not tell.
    """
    context = TaskContext.get()
    if context is None:
        raise UnsupportedFeatureError("a writer writes in tasks of Spark only")
    batch_id = context.getLocalProperty(_BATCH_ID)
    in_foreach_batch = job_id is not None and batch_id is not None
    if job_id is None:
        job_id = context.getLocalProperty(_QUERY_ID)
        if job_id is None or batch_id is None:
            raise UnsupportedFeatureError(
                "this Spark does not tell its tasks which query and batch they write (seen on 4.0 to 4.3 that it does)"
            )
    return TaskAttempt(
        job_id=job_id,
        batch_id=None if batch_id is None else int(batch_id),
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
        attempt_id=context.taskAttemptId(),
        in_foreach_batch=in_foreach_batch,
    )


def _reports(messages: Sequence[WriterCommitMessage | None]) -> list[Any]:
    """What the tasks said that have succeeded; Spark has None for the others."""
    return [message.report for message in messages if isinstance(message, MQCommit)]


def check_columns(format_: Format[Any, Any, Any], schema: StructType, *, written: bool = False) -> None:
    """Refuses columns that the format does not have, or not with that type.

    Raises:
        OptionError: all problems in one sentence, with what there is.
    """
    types = ((field.name, field.dataType) for field in schema.fields)
    asked = [
        (name, type_.simpleString(), {type_.simpleString(), type_.typeName()}.__contains__) for name, type_ in types
    ]
    problems = format_.columns.problems(asked, written=written)
    if problems:
        raise OptionError(f"format '{format_.name}': {'; '.join(problems)}")


def _plain(value: object) -> object:
    """Lists as tuples; times without a zone are UTC, as Spark hands them to Python data sources."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(x) for x in value)
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    return value
