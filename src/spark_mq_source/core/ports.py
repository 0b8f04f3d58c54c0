"""The shapes that every format fills, so that `net` and `spark` are written once.

A protocol never imports these to inherit from: they are structural, and mypy checks them where a format is handed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
    """One condition that every row of the result meets; Spark checks it again, so a format may ignore it.

    Attributes:
        column: the column's name.
        operator: one of `=`, `<`, `<=`, `>`, `>=`, `in`.
        value: what it is compared with; a tuple for `in`.
    """

    column: str
    operator: str
    value: Any


class BatchFormat(Protocol[OptionsT, RangeT]):
    """What the Spark layer asks of a format to read it as a batch.

    `OptionsT` is the format's options dataclass, `RangeT` its own picklable, frozen description of one task's work.
    """

    name: str
    """The format's name in `spark.read.format(name)`."""

    columns: ColumnTable
    """Every column that can be read, and as what."""

    def parse_options(self, options: Mapping[str, str]) -> OptionsT:
        """The format's options dataclass. Raises OptionError with all problems at once."""

    def wants_pushdown(self, options: OptionsT) -> bool:
        """Whether predicates are to be offered to `plan`: Spark refuses readers that take them, unless configured."""

    def plan(self, options: OptionsT, predicates: Sequence[Predicate]) -> Sequence[RangeT]:
        """The work of one batch read, one range a task (driver)."""

    def read(
        self, options: OptionsT, task: RangeT, schema: pa.Schema, counters: Counters | None = None, *, tries: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one range, in order, as batches of `schema` (executor).

        `counters` get what only the reader knows: all but rows and work. `tries` is how many attempts at this task
        Spark has begun before.
        """


class Stream(Protocol[RangeT_co]):
    """The driver's side of one streaming query. Offsets are JSON documents of the format's own making."""

    newest: dict[str, object] | None
    """The newest offset there was when `latest` was asked; None before."""

    def initial(self) -> dict[str, object]:
        """Where a query starts that has no checkpoint."""

    def latest(self, start: Mapping[str, object] | None, *, limited: bool) -> dict[str, object]:
        """Where the trigger ends that begins at `start` (None where Spark does not say); `start` if nothing is new."""

    def aim_at_now(self) -> None:
        """From now on `latest` never passes what there is now."""

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[RangeT_co]:
        """The work of one trigger, one range a task; the same for the same offsets."""

    def commit(self, end: Mapping[str, object]) -> None:
        """Spark will never ask again for what is before `end`."""

    def close(self) -> None:
        """The query has ended."""


class StreamFormat(BatchFormat[OptionsT, RangeT], Protocol[OptionsT, RangeT]):
    """What the Spark layer asks of a format to read it as a stream; tasks are read as those of a batch."""

    def parse_stream_options(self, options: Mapping[str, str]) -> OptionsT:
        """The format's options dataclass. Raises OptionError with all problems at once."""

    def open_stream(self, options: OptionsT) -> Stream[RangeT]:
        """The driver's side of a query with these options."""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One attempt at one task of a write: who writes.

    Spark may make several attempts at a task, one after the other and two at once (speculation); it takes the report of
    one of them. Whatever name an attempt gives to a broker has to be told apart from those of the others by
    `attempt_id`, unless it is meant to be the same for all of them.

    Attributes:
        job_id: what is written. In a stream the query's id, which it keeps when it is restarted from its checkpoint; of
            a batch one that the driver made up for this one `save`.
        batch_id: the micro-batch's number, the same when it is done over; None outside of a streaming query. A batch
            that is written within `foreachBatch` has one too.
        partition: the task's number, from 0, the same for all attempts.
        attempt: how many attempts at this task Spark has begun before; begins anew where it does a stage over.
        attempt_id: unique among all attempts of this Spark application.
        in_foreach_batch: whether it is a batch within a query's `foreachBatch`: when the micro-batch is done over,
            `job_id` is another one.

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
    """What the Spark layer asks of a format to write to it, in batches and streams.

    `ReportT` is what one attempt tells the driver: picklable. Where a row is there as soon as its task has succeeded
    (at least once), it is the number of rows, and `commit` and `abort` have nothing to do.
    """

    name: str
    """The format's name in `df.write.format(name)`."""

    columns: ColumnTable
    """Every column that can be written, from what, and which must be there."""

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> OptionsT:
        """The format's options dataclass, for rows of these columns. Raises OptionError with all problems at once."""

    def fit(self, options: OptionsT, schema: pa.Schema) -> OptionsT:
        """The options for rows of these types. Raises OptionError where such rows cannot be written with them."""

    def write(
        self,
        options: OptionsT,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> ReportT:
        """Writes the rows of one task, and waits until the broker has stored them (executor).

        Nothing of an attempt may reach a broker after its report. `counters` get what only the writer knows: all but
        rows and work.
        """

    def commit(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """Every task has succeeded: here is one report of each (driver, in a process of its own)."""

    def abort(self, options: OptionsT, reports: Sequence[ReportT]) -> None:
        """The write has failed: here are the reports of the tasks that had succeeded (driver).

        Also called when `commit` has failed, with all of them.
        """


class Inspector(Protocol):
    """A look at a broker without Spark and without a trace. Rows are of plain values, and of one shape a method."""

    def topics(self) -> Iterable[Mapping[str, object]]:
        """The topics that the options name."""

    def partitions(self) -> Iterable[Mapping[str, object]]:
        """Their partitions, and who serves them."""

    def offsets(self) -> Iterable[Mapping[str, object]]:
        """Where each partition begins and ends now."""

    def lag(self, checkpoint: Mapping[str, object] | None) -> Iterable[Mapping[str, object]]:
        """How much waits for a streaming query with these offsets, or for what the options name."""

    def steps(self) -> Iterable[tuple[str, Callable[[], str]]]:
        """What has to work for a read, in order; each says what it found, or raises MQSourceError."""

    def close(self) -> None:
        """Closes the connections."""


@runtime_checkable
class Unsubscriber(Protocol):
    """An inspector of a broker that keeps messages for a name until it is told to forget the name."""

    def unsubscribe(self) -> Iterable[Mapping[str, object]]:
        """Makes the broker forget the subscription that the options name; says what it kept for it."""


class Format(StreamFormat[OptionsT, RangeT], WriteFormat[OptionsT, ReportT], Protocol[OptionsT, RangeT, ReportT]):
    """All that the Spark layer asks of a format."""


class InspectFormat(BatchFormat[OptionsT, RangeT], Protocol[OptionsT, RangeT]):
    """What the command line asks of a format."""

    def parse_look_options(self, options: Mapping[str, str]) -> OptionsT:
        """Those of a batch read that takes nothing away. Raises OptionError with all problems at once."""

    def open_inspector(self, options: OptionsT) -> Inspector:
        """A look at the broker with the options of a read."""
