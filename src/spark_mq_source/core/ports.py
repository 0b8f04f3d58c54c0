"""The interfaces of the objects that a format opens, and the values that `spark` passes to it.

Most classes do not inherit from these protocols; mypy checks the structure at the point of use. The interface of a
format is `base_format.BaseFormat`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self

RangeT_co = TypeVar("RangeT_co", covariant=True)


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


class Stream(Protocol[RangeT_co]):
    """The driver's side of one streaming query. Offsets are JSON documents in the form of the format."""

    newest: dict[str, object] | None
    """The newest available offset at the last call of `latest`; None before."""

    def initial(self) -> dict[str, object]:
        """Return the start of a query without a checkpoint."""

    def latest(self, start: Mapping[str, object], *, limited: bool) -> dict[str, object]:
        """Return the end of the trigger that begins at `start`; `start` if there is nothing new."""

    def cap_at_current_end(self) -> None:
        """Limit `latest` to the messages available now."""

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> Sequence[RangeT_co]:
        """Return the ranges of one trigger, one per task; the same for the same offsets."""

    def commit(self, end: Mapping[str, object]) -> None:
        """Commit `end`: Spark will not read earlier offsets again."""

    def close(self) -> None:
        """Close the stream at the end of the query."""


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


class Closing:
    """A context manager that closes itself at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        del error_type
        self.close()

    def close(self) -> None:
        """Release what it holds, such as connections."""
        raise NotImplementedError


class RowWriter(Protocol):
    """The writer of a format."""

    @abstractmethod
    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch, or buffer them; wait while too much is pending."""

    @abstractmethod
    def flush(self) -> None:
        """Send the buffered rows, and wait until the brokers have acknowledged all rows."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections without waiting for acknowledgements."""


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
    """Inspector of a broker, without Spark; it changes nothing. Rows have plain values, and one shape per method."""

    def topics(self) -> Iterable[Mapping[str, object]]:
        """Yield the topics of the options, or all topics with those of `BaseFormat.parse_list_options`."""

    def partitions(self) -> Iterable[Mapping[str, object]]:
        """Yield the partitions of the topics, and their brokers."""

    def offsets(self) -> Iterable[Mapping[str, object]]:
        """Yield the first and last offset of each partition."""

    def lag(self, checkpoint: Mapping[str, object] | None) -> Iterable[Mapping[str, object]]:
        """Yield the lag of a streaming query with these offsets, or of the subscription or channel of the options."""

    def steps(self) -> Iterable[tuple[str, Callable[[], str]]]:
        """Yield the checks for a read, in order; each returns its finding, or raises MQSourceError."""

    def tails(self) -> Sequence[Tail[Any]]:
        """Return the tail of each partition; the options come from `BaseFormat.parse_tail_options`."""

    def close(self) -> None:
        """Close the connections."""


@runtime_checkable
class Unsubscriber(Protocol):
    """An inspector of a broker with durable subscriptions."""

    def unsubscribe(self) -> Iterable[Mapping[str, object]]:
        """Delete the subscription of the options; return the backlog it had."""
