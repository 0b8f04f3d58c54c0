"""The data source, readers, writers and partition of all formats, on top of `BaseFormat`."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import ArrayType, MapType, StructType

from spark_mq_source.core.columns import without_large_types
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import MQSourceError, OptionError, TaskEndedError, UnsupportedFeatureError
from spark_mq_source.core.ports import Predicate, Stream, TaskAttempt
from spark_mq_source.formats import load_format
from spark_mq_source.net.stopwatch import timed_input, working
from spark_mq_source.spark._compat import (
    FILTER_OPERATORS,
    StreamReaderBase,
    StreamWriterBase,
    arrow_schema,
    spark_schema,
)
from spark_mq_source.spark.boundary import called_by_spark
from spark_mq_source.spark.task_log import log_counters, logged_read
from spark_mq_source.spark.worker import (
    check_running,
    connection_of_task,
    exit_if_terminated,
    freeze_loaded_modules,
    ignore_sigterm,
    is_read_again,
    rows_while_running,
    stop_on_sigterm,
)
from spark_mq_source.values.encodings import TypedRead

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter, Filter
    from pyspark.sql.types import DataType

    from spark_mq_source.base_format import AnyFormat


# Local properties that Spark sets for the tasks of a micro-batch (seen on 4.0.0 and 4.3.0).
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class MQPartition(InputPartition):
    """The work of one task.

    Attributes:
        value: the format's range; picklable.
    """

    value: Any


@dataclass(frozen=True)
class MQCommit(WriterCommitMessage):
    """The result of a task whose rows are all acknowledged.

    Attributes:
        report: the format's report; picklable.
    """

    report: Any
    counters: Counters


class MQDataSource(DataSource):
    """Spark's data source of a format; a subclass names and documents the format.

    Importing a format takes up to half a second of processor time. Spark imports every data source to find one, in a
    separate process, and creates one in another process, which needs the format only if no schema is given.
    """

    format_name: ClassVar[str]

    @cached_property
    def format(self) -> AnyFormat:
        """The format."""
        return load_format(self.format_name)

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options
        # The decoding of the default columns. Spark pickles this object between `schema` and `reader`.
        self._typed: TypedRead | None = None
        freeze_loaded_modules()

    @property
    def debug(self) -> bool:
        """The option `debug`, which is validated with all options."""
        return next((text.lower() == "true" for name, text in self.options.items() if name.lower() == "debug"), False)

    @classmethod
    def name(cls) -> str:
        """Return the name in `spark.read.format(name)`."""
        return cls.format_name

    @called_by_spark
    def schema(self) -> StructType:
        """Return the default columns.

        Raises:
            OptionError: options of decoding cannot be used; all problems in one sentence.
            MQSourceError: the schema registry cannot be reached or refuses.
        """
        columns, self._typed = self.format.columns_by_default(self.options)
        freeze_loaded_modules()
        return spark_schema(columns)

    @called_by_spark
    def reader(self, schema: StructType) -> DataSourceReader:
        """Make the batch reader of the requested columns.

        Raises:
            OptionError: options or columns cannot be used; all problems in one sentence.
            UnsupportedFeatureError: `pushdown` with a Spark version that lacks it.
        """
        options = self._fitted(self.format.parse_options(self.options), schema)
        if self.format.wants_pushdown(options) and not FILTER_OPERATORS:
            raise UnsupportedFeatureError(
                f"format {self.format_name!r}: pushdown=true needs Spark 4.1 or newer; remove this option"
            )
        kind = MQPushdownReader if self.format.wants_pushdown(options) else MQBatchReader
        return kind(self.format, options, arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Make the stream reader of the requested columns.

        If options or columns cannot be used, the reader's first method raises the error. Spark hides an error of this
        method behind another error, because it stops a reader that does not exist (4.0.0 and 4.3.0).
        """
        try:
            options = self._fitted(self.format.parse_stream_options(self.options), schema)
        except MQSourceError as error:
            return RefusedStreamReader(self, error)
        return MQStreamReader(self.format, options, arrow_schema(schema))

    def _fitted(self, options: Any, schema: StructType) -> Any:  # noqa: ANN401 - the format's own
        if required := sorted(_required(schema, "")):
            named = ", ".join(required)
            raise OptionError(f"format {self.format_name!r}: {named}: NOT NULL, but a message may lack it; allow NULL")
        columns = arrow_schema(schema)
        options = self.format.fit_read(options, columns, self._typed)
        if not self.format.has_other_columns(options):
            check_columns(self.format, schema, except_for=self.format.decoded(options, columns.names))
        freeze_loaded_modules()
        return options

    @called_by_spark
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Make the batch writer of these columns.

        Raises:
            OptionError: options or columns cannot be used, all problems in one sentence; or the mode is overwrite.
        """
        if overwrite:
            raise OptionError(f"format {self.format_name!r}: topics cannot be overwritten; use mode('append')")
        return MQBatchWriter(self.format, self._write_options(schema))

    @called_by_spark
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Make the stream writer of these columns.

        Output mode `complete`, which sets `overwrite`, appends the whole result with every batch, like Spark's Kafka
        sink. Spark refuses mode `update` for all Python data sources (seen on 4.3.0).

        Raises:
            OptionError: options or columns cannot be used; all problems in one sentence.
        """
        return MQStreamWriter(self.format, self._write_options(schema))

    def _write_options(self, schema: StructType) -> Any:  # noqa: ANN401 - the format's own
        options = self.format.parse_write_options(self.options, schema.names)
        if not self.format.has_other_columns(options):
            check_columns(self.format, schema, written=True, except_for=self.format.encoded(options))
        options = self.format.fit(options, arrow_schema(schema))
        freeze_loaded_modules()
        return options


class _FormatWithOptions:
    """The common part of readers and writers."""

    def __init__(self, format_: AnyFormat, options: object) -> None:
        self._format = format_
        self._options = options

    @property
    def format_name(self) -> str:
        return self._format.name

    @property
    def debug(self) -> bool:
        return getattr(self._options, "debug", False)


class _Reader(_FormatWithOptions):
    """The common part of batch and stream readers: they plan on the driver, and read on the executors."""

    def __init__(self, format_: AnyFormat, options: object, schema: pa.Schema) -> None:
        super().__init__(format_, options)
        self._schema = schema

    @called_by_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one partition, in the order of the topic."""
        # If the plan is empty, Spark passes its own partition without a range.
        if not isinstance(partition, MQPartition):
            return iter(())
        freeze_loaded_modules()
        counters, context, task = Counters(), TaskContext.get(), partition.value
        tries = 0 if context is None else context.attemptNumber()
        if context is not None and getattr(task, "is_drain", False):
            tries = tries or int(is_read_again(context, self._options, task))
        rows = self._format.read(self._options, task, self._schema, counters, tries=tries)
        return logged_read(self.format_name, task, rows, counters, is_ahead=self._format.reads_ahead(task))


class MQBatchReader(_Reader, DataSourceReader):
    """The reader of a batch."""

    def __init__(self, format_: AnyFormat, options: object, schema: pa.Schema) -> None:
        super().__init__(format_, options, schema)
        self._predicates: list[Predicate] = []

    @called_by_spark
    def partitions(self) -> Sequence[InputPartition]:
        """Plan one partition per range.

        Raises:
            MQSourceError: the broker cannot be reached, refuses, or lacks the requested topics or positions.
        """
        return [MQPartition(task) for task in self._format.plan(self._options, self._predicates)]


class MQPushdownReader(MQBatchReader):
    """A batch reader with predicate pushdown.

    This is a separate class because Spark refuses a reader with `pushFilters` unless
    `spark.sql.python.filterPushdown.enabled` is true.

    Spark keeps one plan per `load()`: the partitions planned for the last pushed condition also serve all other queries
    on the same DataFrame, which then lack rows (seen on 4.3.0). Spark does not call the reader again, so the reader
    cannot prevent this: with pushdown, each query needs its own `load()`.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Store the usable conditions for planning; return all conditions, so that Spark evaluates each one again."""
        for condition in filters:
            operator = FILTER_OPERATORS.get(type(condition))
            match condition:
                case object(attribute=(column,), value=value) if operator is not None:
                    self._predicates.append(Predicate(column, operator, _plain(value)))
        return filters


class MQStreamReader(_Reader, StreamReaderBase):
    """The reader of a streaming query.

    The driver keeps one object for the whole query; executors get pickled copies, without connections.
    """

    def __init__(self, format_: AnyFormat, options: object, schema: pa.Schema) -> None:
        super().__init__(format_, options, schema)
        self._stream: Stream[Any] | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_stream": None}

    @property
    def stream(self) -> Stream[Any]:
        """The format's stream, created at first use."""
        if self._stream is None:
            stop_on_sigterm()
            self._stream = self._format.open_stream(self._options)
        return self._stream

    @called_by_spark
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[MQPartition]:
        """Plan one partition per range of the trigger.

        Raises:
            MQSourceError: the broker cannot be reached or refuses.
        """
        self._begins_at = end
        return [MQPartition(task) for task in self.stream.ranges(start, end)]

    def stop(self) -> None:
        """Close the driver's connections."""
        ignore_sigterm()
        if self._stream is not None:
            self._stream.close()
        exit_if_terminated()


class RefusedStreamReader(StreamReaderBase):
    """A stream reader whose methods all raise one error."""

    def __init__(self, source: MQDataSource, error: MQSourceError) -> None:
        self.format_name = source.format_name
        self.debug = source.debug
        self._error = error

    @property
    def stream(self) -> Stream[Any]:
        """Raise the error."""
        raise self._error

    @called_by_spark
    def partitions(self, start: dict[str, object], end: dict[str, object]) -> list[MQPartition]:
        """Raise the error."""
        raise self._error

    @called_by_spark
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


class _Writer(_FormatWithOptions):
    """The common part of batch and stream writers.

    Writes on the executors; a task succeeds when the broker has acknowledged all its rows.
    """

    _job_id: str | None = None
    """The id of a batch write; None in a stream."""

    @called_by_spark
    def write(self, iterator: Iterator[pa.RecordBatch]) -> MQCommit:
        """Write the rows of one task."""
        freeze_loaded_modules()
        attempt, counters, connection = _attempt(self._job_id), Counters(), connection_of_task()
        with working(counters):
            taken = timed_input(map(without_large_types, rows_while_running(iterator, connection)), counters)
            report = self._format.write(self._options, taken, attempt, counters)
        try:
            check_running(connection)
        except TaskEndedError:
            # The driver does not receive this report, so it cannot abort it.
            self._format.abort(self._options, [report])
            raise
        log_counters(self._format.name, f"wrote task {attempt.partition}", counters)
        return MQCommit(report, counters)

    @called_by_spark
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """Commit a write, or a micro-batch: every task of it has succeeded."""
        self._format.commit(self._options, _reports(messages))
        tasks = [one.counters for one in messages if isinstance(one, MQCommit)]
        log_counters(self._format.name, f"wrote with {len(tasks)} tasks", sum(tasks, Counters()))

    @called_by_spark
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: N803
        """Abort a write, or a micro-batch, that has failed, or whose query was stopped."""
        self._format.abort(self._options, _reports(messages))


class MQBatchWriter(_Writer, DataSourceArrowWriter):
    """The writer of one `save`, created on the driver: pickled copies write, and the original or a copy commits."""

    def __init__(self, format_: AnyFormat, options: object) -> None:
        super().__init__(format_, options)
        self._job_id = uuid.uuid4().hex


class MQStreamWriter(_Writer, StreamWriterBase):
    """The writer of the micro-batches of a query.

    Spark creates one object to write a batch and another one to commit it (seen on 4.0.0 and 4.3.0), so `commit` gets
    state only through the tasks' messages.
    """


def _attempt(job_id: str | None) -> TaskAttempt:
    """Return the current task attempt of a batch (`job_id`), or of a streaming query (None).

    Raises:
        UnsupportedFeatureError: this is not a Spark task, or Spark does not set the query and batch.
    """
    context = TaskContext.get()
    if context is None:
        raise UnsupportedFeatureError("writers work only in Spark tasks")
    batch_id = context.getLocalProperty(_BATCH_ID)
    in_foreach_batch = job_id is not None and batch_id is not None
    if job_id is None:
        job_id = context.getLocalProperty(_QUERY_ID)
        if job_id is None or batch_id is None:
            raise UnsupportedFeatureError(
                "this Spark does not set the query and batch id for its tasks (Spark 4.0 to 4.3 do)"
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
    """Return the reports of the successful tasks; Spark passes None for the others."""
    return [message.report for message in messages if isinstance(message, MQCommit)]


def check_columns(
    format_: AnyFormat, schema: StructType, *, written: bool = False, except_for: Collection[str] = ()
) -> None:
    """Refuse columns that the format does not have, or not with that type.

    Args:
        format_: the format.
        schema: the columns.
        written: whether rows are written; they are read otherwise.
        except_for: columns that are decoded or encoded: `fit_read` and `fit` check their types.

    Raises:
        OptionError: all problems in one sentence, with the known columns and types.
    """
    asked = [
        (field.name, field.dataType.simpleString(), _types_check(field.dataType, is_any=field.name in except_for))
        for field in schema.fields
        if written or field.name not in except_for
    ]
    problems = format_.columns.problems(asked, written=written)
    if problems:
        raise OptionError(f"format '{format_.name}': {'; '.join(problems)}")


def _types_check(type_: DataType, *, is_any: bool) -> Callable[[str], bool]:
    names = {type_.simpleString(), type_.typeName()}
    return lambda expected: is_any or expected in names


def _required(type_: DataType, path: str) -> Iterator[str]:
    """Yield the paths of what may not be NULL; Spark does not check it, and fails or takes NULL for a value (4.3.0)."""
    inner: list[tuple[str, DataType, bool]] = []
    match type_:
        case StructType(fields=fields):
            inner = [(f"{path}.{field.name}".lstrip("."), field.dataType, field.nullable) for field in fields]
        case ArrayType(elementType=element, containsNull=may_be_null):
            inner = [(f"{path}[]", element, may_be_null)]
        case MapType(keyType=key, valueType=value, valueContainsNull=may_be_null):
            inner = [(f"{path}.key", key, True), (f"{path}.value", value, may_be_null)]
    for name, part, may_be_null in inner:
        if not may_be_null:
            yield name
        yield from _required(part, name)


def _plain(value: object) -> object:
    """Convert lists to tuples, and times without a zone to UTC, the zone of Python data sources."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(x) for x in value)
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=datetime.timezone.utc)
    return value


# A worker imports this module before a format, whose many new objects would start several garbage collections: a
# quarter of the time of the imports.
freeze_loaded_modules()
