"""The interface of a format for Spark and the command line, and the common part of the formats."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from spark_mq_source.core.columns import CORRUPT, ERROR, ColumnTable
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import CorruptMessageError, OptionError, UnwritableRowError
from spark_mq_source.core.options import INT32_MAX, READ, STREAM, WRITE, Scope
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.core.shared_options import OnCorrupt
from spark_mq_source.values.encodings import TypedRead, TypedWrite
from spark_mq_source.values.options import TypedOptions, typed_read_of, typed_write_of

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.dead_letters import DeadLetters
    from spark_mq_source.core.ports import Inspector, Predicate, Stream
    from spark_mq_source.net.sending import Writer
    from spark_mq_source.values.rows import SchemaLookup


OptionsT = TypeVar("OptionsT", bound=TypedOptions)
RangeT = TypeVar("RangeT")
ReportT = TypeVar("ReportT")


class BaseFormat(Generic[OptionsT, RangeT, ReportT]):
    """The interface of a format; by default rows become visible as soon as their task has succeeded.

    Methods run on the driver, except `read` and `write`, which run in tasks. Methods that parse options raise
    OptionError with all problems at once.

    `OptionsT` is the format's dataclass of options, `RangeT` the picklable, frozen description of one task's work, and
    `ReportT` the picklable report of one attempt at a write to the driver: without transactions, the number of rows.

    Attributes:
        name: the name in `spark.read.format(name)`.
        has_namespaces: whether `topicsPattern` begins with a namespace.
        raw_errors: those of the columns `_corrupt` and `_error` that `read_raw` fills.
    """

    name: str
    columns: ColumnTable
    options_type: ClassVar[type[TypedOptions]]
    writer_type: ClassVar[type[Writer[Any, Any]]]
    inspector_type: ClassVar[type[Any]]
    has_namespaces: ClassVar[bool] = False
    raw_errors: ClassVar[Collection[str]] = ()

    def parse_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse the options of a batch read."""
        return self._parsed(options, READ)

    def parse_stream_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse the options of a stream."""
        return self._parsed(options, STREAM)

    def columns_by_default(self, options: Mapping[str, str]) -> tuple[pa.Schema, TypedRead | None]:
        """Return the columns of a batch or stream with these options, and the decoding.

        Options are parsed only if values are decoded; otherwise they are checked when the read begins.
        """
        typed = None
        if not self._is_raw(options):
            typed = self._typed_read(self._parsed(options, READ | STREAM))
        return self._columns_of(typed), typed

    def columns_of_look(self, options: OptionsT) -> tuple[pa.Schema, TypedRead | None]:
        """Return the columns of a read that looks, or tails, with these options, and the decoding.

        The value is one column, even with `flatten`.
        """
        typed = self._typed_read(options)
        if typed is not None:
            typed = replace(typed, flatten=False)
        return self._columns_of(typed), typed

    def _columns_of(self, typed: TypedRead | None) -> pa.Schema:
        from spark_mq_source.values.rows import columns_of  # noqa: PLC0415 - for reads that decode

        with self._option_errors():
            return columns_of(self.columns, typed)

    def has_other_columns(self, options: OptionsT) -> bool:
        """Return whether the columns differ from `columns`, so that `fit` and `fit_read` check them all."""
        del options
        return False

    def fit_read(self, options: OptionsT, schema: pa.Schema, typed: TypedRead | None = None) -> OptionsT:
        """Return the options of a read of these columns, with the decoding: `typed`, or that of the options.

        Raises:
            OptionError: the columns do not fit the decoding.
        """
        typed = typed or self._typed_read(options)
        if typed is None:
            return options
        from spark_mq_source.values.rows import TypedRows  # noqa: PLC0415 - the same

        with self._option_errors():
            TypedRows(schema, typed, self.columns)
        return replace(options, typed=typed)

    def reads_ahead(self, task: RangeT) -> bool:
        """Return whether a thread makes the next Arrow batch of a task while Spark takes one.

        False for tasks that acknowledge what Spark has taken.
        """
        del task
        return False

    def decoded(self, options: OptionsT, names: Sequence[str]) -> Collection[str]:
        """Return the columns whose types depend on the decoding; `options` come from `fit_read`."""
        if options.typed is None:
            return ()
        from spark_mq_source.values.rows import decoded_names  # noqa: PLC0415 - the same

        return decoded_names(self.columns, options.typed, names)

    def read(
        self, options: OptionsT, task: RangeT, schema: pa.Schema, counters: Counters | None = None, *, tries: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range, in order and decoded, as batches of `schema`.

        Updates `counters`, except rows and work time. `tries` is the number of earlier attempts at this task.

        Raises:
            CorruptMessageError: a message cannot be decoded, and `onCorrupt` is `fail`.
            MQSourceError: the dead letter topic did not accept a message.
        """
        counters = counters or Counters()
        dead_letters = self._dead_letters(options, task, counters, tries)
        # A message that is corrupt as a whole is read with its bytes, for a dead letter.
        raw_options = options if dead_letters is None else _with(options, on_corrupt=OnCorrupt.NULL)
        raw = partial(self.read_raw, raw_options, task, counters=counters, tries=tries)
        asked = {CORRUPT, ERROR} & set(schema.names)
        if options.typed is None and asked <= set(self.raw_errors) and dead_letters is None:
            return raw(schema)
        return self._decoded_rows(options, task, schema, raw, dead_letters)

    def _decoded_rows(
        self,
        options: OptionsT,
        task: RangeT,
        schema: pa.Schema,
        raw: Any,  # noqa: ANN401 - `read_raw` in part
        dead_letters: DeadLetters | None,
    ) -> Iterator[pa.RecordBatch]:
        from spark_mq_source.values.rows import TypedRows, typed_batches  # noqa: PLC0415 - the same

        stage = TypedRows(
            schema,
            options.typed or TypedRead(),
            self.columns,
            on_corrupt=getattr(options, "on_corrupt", "fail"),
            lookup=self._schema_lookup(options, task),
            raw_errors=self.raw_errors,
            dead_letters=dead_letters,
            max_rows=getattr(options, "max_batch_rows", INT32_MAX),
        )
        try:
            yield from typed_batches(stage, raw, task)
        except CorruptMessageError as error:
            where = f"{self.name}: reading {task}"
            raise (error if str(error).startswith(where) else error.within(where)) from error

    def _dead_letters(self, options: OptionsT, task: RangeT, counters: Counters, tries: int) -> DeadLetters | None:
        """Open the dead letters of a task if `onCorrupt` is `deadLetter`; otherwise return None."""
        if getattr(options, "on_corrupt", None) is not OnCorrupt.DEAD_LETTER:
            return None
        from spark_mq_source.core.dead_letters import DeadLetters  # noqa: PLC0415 - for reads that need it

        topic: str = options.dead_letter_topic  # type: ignore[attr-defined] # every format declares it
        return DeadLetters(
            f"{self.name}: reading {task}",
            topic,
            partial(self._dead_letter_writer, _with(options, topic=topic)),
            self.columns,
            attempt=tries,
            counters=counters,
            **self._dead_letter_form,
        )

    _dead_letter_form: ClassVar[Mapping[str, Any]] = {}
    """Further arguments of `DeadLetters` for the format."""

    def _dead_letter_writer(self, options: OptionsT, counters: Counters) -> Writer[Any, Any]:
        """Open a writer to the topic of these options."""
        return self.writer_type(options, TaskAttempt("dead letters"), counters)

    @abstractmethod
    def read_raw(
        self, options: OptionsT, task: RangeT, schema: pa.Schema, counters: Counters, tries: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the messages of one range, in order, undecoded."""

    def parse_look_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse the options of a batch read that removes no messages and sends no dead letters."""
        parsed = self._parsed_to_look(options)
        is_sending = getattr(parsed, "on_corrupt", None) is OnCorrupt.DEAD_LETTER
        return _with(parsed, on_corrupt=OnCorrupt.NULL) if is_sending else parsed

    def _parsed_to_look(self, options: Mapping[str, str]) -> OptionsT:
        return self.parse_options(options)

    _every_topic: ClassVar[Mapping[str, str]] = {"topic": "every"}
    """Options that replace a topic if none is given."""

    def parse_list_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse options in which the topic is optional; without one, `topic` is None."""
        if options.keys() & {"topic", "topics", "topicspattern"}:
            return self.parse_look_options(options)
        return _with(self.parse_look_options({**self._every_topic, **options}), topic=None)

    def parse_tail_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse the options of a read of the newest messages; messages removed meanwhile are no error."""
        return _with(self.parse_look_options(options), fail_on_data_loss=False)

    def plan_look(self, options: OptionsT) -> Sequence[RangeT]:
        """Plan a batch read that creates nothing on the broker, with the options of `parse_look_options`."""
        return self.plan(options, ())

    @abstractmethod
    def plan(self, options: OptionsT, predicates: Sequence[Predicate]) -> Sequence[RangeT]:
        """Plan a batch read: one range per task."""

    def open_stream(self, options: OptionsT) -> Stream[RangeT]:
        """Open the driver's side of a query with these options."""
        raise NotImplementedError

    def open_inspector(self, options: OptionsT) -> Inspector:
        """Open an inspector with the options of a read."""
        inspector: Inspector = self.inspector_type(options)
        return inspector

    def option_names(self) -> Sequence[str]:
        """Return the names of the options of a batch read, without aliases."""
        return [one.name for one in self.options_type.described() if READ in one.scope]

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> OptionsT:
        """Parse the options of a write; an option or a column must provide the topic."""
        parsed = self._parsed(options, WRITE)
        if getattr(parsed, "topic", None) is None and "topic" not in columns:
            raise OptionError(f"format {self.name!r}: set the option topic, or write a column topic")
        return parsed

    def encoded(self, options: OptionsT) -> Collection[str]:
        """Return the columns that are encoded; their encodings determine the types that rows may have."""
        write = self._typed_write(options)
        return () if write is None else [name for name, one in write.encodings.items() if one is not None]

    def fit(self, options: OptionsT, schema: pa.Schema) -> OptionsT:
        """Return the options of a write of these columns, with their encodings.

        Raises:
            OptionError: such rows cannot be written with these options.
        """
        write = self._typed_write(options)
        if write is None:
            return options
        from spark_mq_source.values.encoders import with_definitions  # noqa: PLC0415 - for writes that encode

        with self._option_errors(OptionError):
            return replace(options, encoded=with_definitions(write, schema))

    def write(
        self,
        options: OptionsT,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> ReportT:
        """Encode and write the rows of one task, and wait until the broker has stored them.

        Nothing of an attempt may reach a broker after its report. Updates `counters`, except rows and work time.

        Raises:
            UnwritableRowError: a value does not fit its schema, or cannot become a message.
        """
        if options.encoded is not None:
            batches = self._encoded_rows(options.encoded, batches)
        report: ReportT = self.writer_type(options, attempt, counters).write_all(batches)
        return report

    def _encoded_rows(self, write: TypedWrite, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_mq_source.values.encoders import encoded_rows  # noqa: PLC0415 - as above

        try:
            yield from encoded_rows(write, batches, self.columns)
        except UnwritableRowError as error:
            raise error.within(self.name) from error

    def wants_pushdown(self, options: OptionsT) -> bool:
        """Return whether `plan` uses predicates; Spark rejects readers with predicates unless it is configured."""
        del options
        return False

    def commit(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Commit a write: every task has succeeded, with one report each. By default its rows are already visible."""

    def abort(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Abort a write, with the reports of the tasks that had succeeded; also after a failed `commit`.

        By default written rows stay, and a repeated write adds them again.
        """

    def _is_raw(self, options: Mapping[str, str]) -> bool:
        """Return whether the unparsed options decode nothing."""
        given = {name.lower() for name in options}
        return not given & {"valueformat", "keyformat", "flatten"}

    def _typed_read(self, options: OptionsT) -> TypedRead | None:
        """Return the decoding of a read; query the schema registry if the options use one."""
        with self._option_errors(prefix="valueSchema: "):
            return typed_read_of(options)

    def _typed_write(self, options: OptionsT) -> TypedWrite | None:
        with self._option_errors(prefix="valueSchema: "):
            return typed_write_of(options)

    def _schema_lookup(self, options: OptionsT, task: RangeT) -> SchemaLookup | None:
        """Return a lookup of schema versions in the registry for a task; None without a registry."""
        del options, task
        return None

    @contextmanager
    def _option_errors(self, caught: type[ValueError] = ValueError, *, prefix: str = "") -> Iterator[None]:
        """Raise errors of the class `caught` as an OptionError that names the format."""
        try:
            yield
        except caught as error:
            raise OptionError(f"format {self.name!r}: {prefix}{error}") from error

    def _parsed(self, options: Mapping[str, str], scope: Scope) -> OptionsT:
        return self.options_type.from_spark(options, scope)  # type: ignore[return-value] # the subclass's type


AnyFormat = BaseFormat[Any, Any, Any]


def _with(options: OptionsT, **changes: object) -> OptionsT:
    """Change some options that every format declares."""
    return replace(options, **changes)  # type: ignore[arg-type] # fields of the subclass
