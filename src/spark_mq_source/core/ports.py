"""The interfaces that every format implements, on which `net` and `spark` are built.

Formats do not inherit from these protocols; mypy checks the structure at the point of use.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.columns import ColumnTable
    from spark_mq_source.core.counters import Counters


OptionsT = TypeVar("OptionsT")
RangeT = TypeVar("RangeT")
RangeT_co = TypeVar("RangeT_co", covariant=True)
ReportT = TypeVar("ReportT")


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on rows. Spark evaluates it again, so a format may ignore it.

    Attributes:
        column: name of the column.
        operator: one of `=`, `<`, `<=`, `>`, `>=`, `in`.
        value: the value to compare with; a tuple for `in`.
    """

    column: str
    operator: str
    value: Any


class BatchFormat(Protocol[OptionsT, RangeT]):
    """The interface of a format for batch reads.

    `OptionsT` is the format's options dataclass, `RangeT` its picklable, frozen description of one task's work.
    """

    name: str
    """The format's name in `spark.read.format(name)`."""

    columns: ColumnTable
    """The readable columns and their types."""

    def parse_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse the options of a batch read. Raises OptionError with all problems at once."""

    def columns_by_default(self, options: Mapping[str, str]) -> tuple[pa.Schema, Any]:
        """Return the columns read by default, and the decoding for them (driver).

        `options` are those of a batch or a stream. Raises OptionError with all problems at once.
        """

    def fit_read(self, options: OptionsT, schema: pa.Schema, typed: Any = None) -> OptionsT:  # noqa: ANN401 - a TypedRead, which is above this room
        """Return the options of a read of these columns, with their decoding: `typed`, or that of the options.

        Raises OptionError if the columns do not fit the decoding (driver).
        """

    def decoded(self, options: OptionsT, names: Sequence[str]) -> Collection[str]:
        """Return the columns whose types depend on the decoding; `options` come from `fit_read`."""

    def has_other_columns(self, options: OptionsT) -> bool:
        """Return whether the columns are others than those of `columns`, so that `fit_read` checks them all."""

    def wants_pushdown(self, options: OptionsT) -> bool:
        """Return whether `plan` uses predicates; Spark rejects readers with predicates unless it is configured."""

    def plan(self, options: OptionsT, predicates: Sequence[Predicate]) -> Sequence[RangeT]:
        """Plan a batch read: one range per task (driver)."""

    def read(
        self, options: OptionsT, task: RangeT, schema: pa.Schema, counters: Counters | None = None, *, tries: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range, in order, as batches of `schema` (executor).

        Updates `counters`, except rows and work time. `tries` is the number of earlier attempts of this task.
        """


class Stream(Protocol[RangeT_co]):
    """The driver's side of one streaming query. Offsets are JSON documents in the form of the format."""

    newest: dict[str, object] | None
    """The newest available offset at the last call of `latest`; None before."""

    def initial(self) -> dict[str, object]:
        """Return the start of a query without a checkpoint."""

    def latest(self, start: Mapping[str, object] | None, *, limited: bool) -> dict[str, object]:
        """Return the end of the trigger that begins at `start` (None if unknown); `start` if there is nothing new."""

    def cap_at_current_end(self) -> None:
        """Limit `latest` to the messages available now."""

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[RangeT_co]:
        """Return the ranges of one trigger, one per task; the same for the same offsets."""

    def commit(self, end: Mapping[str, object]) -> None:
        """Commit `end`: Spark will not read earlier offsets again."""

    def close(self) -> None:
        """Close the stream at the end of the query."""


class StreamFormat(BatchFormat[OptionsT, RangeT], Protocol[OptionsT, RangeT]):
    """The interface of a format for streams; tasks are read as in a batch."""

    def parse_stream_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse the options of a stream. Raises OptionError with all problems at once."""

    def open_stream(self, options: OptionsT) -> Stream[RangeT]:
        """Open the driver's side of a query with these options."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt of a write task.

    Spark may run several attempts of a task, sequentially or concurrently (speculation), and uses the report of one
    attempt. A name that an attempt gives to a broker must contain `attempt_id`, unless all attempts must share it.

    Attributes:
        job_id: id of the write: for a stream the query's id, which survives restarts from its checkpoint; for a batch
            an id that the driver generates for this `save`.
        batch_id: number of the micro-batch, equal in a repetition; None outside a streaming query. A batch write within
            `foreachBatch` has one too.
        partition: number of the task, from 0, the same for all attempts.
        attempt: number of earlier attempts of the task; restarts at 0 if Spark repeats the stage.
        attempt_id: unique among all attempts of this Spark application.
        in_foreach_batch: whether this is a batch write within a query's `foreachBatch`; a repeated micro-batch then has
            another `job_id`.

    Example:
        >>> TaskAttempt("8f0e", partition=3).attempt
        0
    """

    job_id: str
    batch_id: int | None = None
    partition: int = 0
    attempt: int = 0
    attempt_id: int = 0
    in_foreach_batch: bool = False


class WriteFormat(Protocol[OptionsT, ReportT]):
    """The interface of a format for writes, in batches and streams.

    `ReportT` is the picklable report of one attempt to the driver. If rows are visible as soon as their task has
    succeeded (at least once), it is the number of rows, and `commit` and `abort` do nothing.
    """

    name: str
    """The format's name in `df.write.format(name)`."""

    columns: ColumnTable
    """The writable columns, their types, and which are required."""

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> OptionsT:
        """Parse the options of a write of these columns. Raises OptionError with all problems at once."""

    def has_other_columns(self, options: OptionsT) -> bool:
        """Return whether the columns are others than those of `columns`, so that `fit` checks them all."""

    def encoded(self, options: OptionsT) -> Collection[str]:
        """Return the columns that are encoded: `fit` checks their types."""

    def fit(self, options: OptionsT, schema: pa.Schema) -> OptionsT:
        """Return the options for rows of these types. Raises OptionError if such rows cannot be written with them."""

    def write(
        self,
        options: OptionsT,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> ReportT:
        """Write the rows of one task, and wait until the broker has stored them (executor).

        Nothing of an attempt may reach a broker after its report. Updates `counters`, except rows and work time.
        """

    def commit(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Commit the write: every task has succeeded, with one report each (driver, in a separate process)."""

    def abort(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Abort the write, with the reports of the tasks that had succeeded (driver).

        Also called after a failed `commit`, with all reports.
        """


class Tail(Protocol[RangeT_co]):
    """The end of one partition at the time the tail was opened, and the messages after it."""

    def newest(self, messages: int) -> tuple[RangeT_co, bool] | None:
        """Return a range up to the end with the `messages` newest messages, and whether it is the whole partition.

        The range may have fewer messages, because brokers also count entries that are not delivered. Returns None if
        the broker keeps no past messages.
        """

    def following(self) -> Iterator[RangeT_co]:
        """Yield the ranges after the end, each once it has messages; for use by one thread."""


class Inspector(Protocol):
    """Inspects a broker without Spark and without changing it. Rows have plain values, and one shape per method."""

    def topics(self) -> Iterable[Mapping[str, object]]:
        """Yield the topics of the options, or all topics with those of `InspectFormat.parse_list_options`."""

    def partitions(self) -> Iterable[Mapping[str, object]]:
        """Yield the partitions of the topics, and their brokers."""

    def offsets(self) -> Iterable[Mapping[str, object]]:
        """Yield the first and last offset of each partition."""

    def lag(self, checkpoint: Mapping[str, object] | None) -> Iterable[Mapping[str, object]]:
        """Yield the lag of a streaming query with these offsets, or of the subscription or channel of the options."""

    def steps(self) -> Iterable[tuple[str, Callable[[], str]]]:
        """Yield the checks for a read, in order; each returns its finding, or raises MQSourceError."""

    def tails(self) -> Sequence[Tail[Any]]:
        """Return the tail of each partition; the options come from `InspectFormat.parse_tail_options`."""

    def close(self) -> None:
        """Close the connections."""


@runtime_checkable
class Unsubscriber(Protocol):
    """An inspector of a broker with durable subscriptions."""

    def unsubscribe(self) -> Iterable[Mapping[str, object]]:
        """Delete the subscription of the options; return the backlog it had."""


class Format(StreamFormat[OptionsT, RangeT], WriteFormat[OptionsT, ReportT], Protocol[OptionsT, RangeT, ReportT]):
    """The complete interface of a format for Spark."""


class InspectFormat(BatchFormat[OptionsT, RangeT], Protocol[OptionsT, RangeT]):
    """The interface of a format for the command line."""

    def parse_look_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse the options of a batch read that removes no messages. Raises OptionError with all problems at once."""

    def parse_list_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse options that list their topics, or all topics. Raises OptionError with all problems at once."""

    def parse_tail_options(self, options: Mapping[str, str]) -> OptionsT:
        """Parse the options of a read of the newest messages. Raises OptionError with all problems at once."""

    def plan_look(self, options: OptionsT) -> Sequence[RangeT]:
        """Plan a batch read that creates nothing on the broker, with the options of `parse_look_options`."""

    def option_names(self) -> Sequence[str]:
        """Return the names of the options of a batch read, without aliases."""

    def open_inspector(self, options: OptionsT) -> Inspector:
        """Open an inspector with the options of a read."""
