"""Plans of the batches of a queue, in the write-ahead folder: the source and number of messages of each task.

A source is what one connection consumes: an nsqd, or a topic-partition of a Pulsar subscription.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from spark_mq_source.core.errors import DataLossError, MQSourceError
from spark_mq_source.core.shared_options import DrainOptions
from spark_mq_source.core.shares import share_out
from spark_mq_source.net.write_ahead import open_folder, read_plan, write_plan

SourceT = TypeVar("SourceT", bound=Any)
"""A frozen dataclass of plain values, with a `name` that identifies the source in every batch."""

TaskT = TypeVar("TaskT", bound="QueueTask[Any]")


@dataclass(frozen=True, slots=True)
class QueueTask(Generic[SourceT]):
    """The work of one task.

    Attributes:
        max_rows: maximum number of messages; None means unbounded.
        task: the task's number in the batch.
        duplicates: messages of earlier batches that may be delivered again, in the format's form.
        recent: the last messages that earlier batches acknowledged, in the format's form.
    """

    source: SourceT
    max_rows: int | None = None
    folder: str = ""
    task: int = 0
    duplicates: frozenset[str] = frozenset()
    recent: str = ""

    source_type: ClassVar[Callable[..., Any]]
    """The function that makes a source of the fields in a plan."""

    @property
    def is_drain(self) -> bool:
        """True for a batch read without `walDir`: no other attempt can read the same messages."""
        return not self.folder

    @property
    def is_repeatable(self) -> bool:
        """True if the broker redelivers unacknowledged messages with the same ids."""
        return True

    @property
    def bounds(self) -> dict[str, Any]:
        """The fields of a task in a plan, except its source."""
        return {"max_rows": self.max_rows}

    def check_attempt(self, where: str, tries: int) -> None:
        """Refuse a second attempt of a task without `walDir`: the first one may have acknowledged messages.

        Raises:
            DataLossError: it is a second attempt without `walDir`.
        """
        if tries and self.is_drain:
            raise DataLossError(
                f"{where}: attempt {tries + 1} at a read without walDir: an earlier attempt may have acknowledged "
                "messages whose rows are lost; it failed, or Spark reads its input twice, as for orderBy; set walDir "
                "and runId to make tasks repeatable"
            )


MAX_UNCOUNTED: Final = 25_000
"""The maximum number of messages that a doubted count is taken to lack: ten times nsqd's default of `--sync-every`."""


@dataclass(slots=True)
class Doubts:
    """The sources whose broker may count fewer messages than it has; stored in plans, so kept after a restart.

    Attributes:
        started: when the broker of each source started, by source name, in seconds since 1970.
        names: names of the doubted sources; a batch reads such a source regardless of the count.
        empty: names of the sources that the last batch read until no message arrived.
        counts: the broker's last count of each source, by source name; not stored.

    Example:
        >>> doubts = Doubts()
        >>> [doubts.count("nsqd a", 5, started_s) for started_s in (100, 100, 200, 200)]
        [5, 5, None, None]
    """

    started: dict[str, int] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    empty: Set[str] = frozenset()
    counts: dict[str, int] = field(default_factory=dict)

    def count(self, name: str, count: int, started_s: int) -> int | None:
        """Return the broker's count of a source, or None if it is doubted: less than 0, or the broker was restarted.

        The doubt ends if the broker counts none and the last batch read until no message arrived.
        """
        self._compare(name, started_s)
        self.counts[name] = count
        if count < 0:
            self.names.add(name)
        elif count == 0 and name in self.empty:
            self.names.discard(name)
        return None if name in self.names else count

    def recall(self, plan: Mapping[str, Any]) -> None:
        """Add the doubts of a plan, and doubt the sources whose broker was started since."""
        now, self.started = self.started, dict(plan["started"])
        self.names.update(plan["doubted"])
        for name, started_s in now.items():
            self._compare(name, started_s)

    def forget(self, name: str) -> None:
        """Forget a source."""
        self.started.pop(name, None)
        self.counts.pop(name, None)
        self.names.discard(name)

    def _compare(self, name: str, started_s: int) -> None:
        if self.started.setdefault(name, started_s) != started_s:
            self.names.add(name)
            self.empty -= {name}
            self.started[name] = started_s


def tasks_of(task_type: type[TaskT], folder: str, plan: Mapping[str, Any]) -> list[TaskT]:
    """Return the tasks of a planned batch, the same at every call."""
    sources = [task_type.source_type(**source) for source in plan["sources"]]
    duplicates, recent = plan["duplicates"], plan["recent"]
    tasks: list[TaskT] = []
    for number, task in enumerate(plan["tasks"]):
        bounds = dict(task)
        source = sources[bounds.pop("source")]
        tasks.append(
            task_type(
                source=source,
                folder=folder,
                task=number,
                duplicates=frozenset(duplicates.get(source.name, ())),
                recent=recent.get(source.name, ""),
                **bounds,
            )
        )
    return tasks


def plan_document(
    tasks: Sequence[QueueTask[Any]],
    duplicates: Mapping[str, Mapping[str, float]] | None = None,
    recent: Mapping[str, str] | None = None,
    absent: Mapping[str, float] | None = None,
    doubts: Doubts | None = None,
    *,
    now: float = 0.0,
) -> dict[str, object]:
    """Return the JSON document of a planned batch.

    Args:
        tasks: the tasks of the batch.
        duplicates: messages that may be redelivered, by source name, each with the seconds since that became known.
        recent: the messages acknowledged last, by source name.
        absent: the seconds since each known source that is absent was present, by source name.
        doubts: the sources whose broker may count too few messages.
        now: the time of planning, in seconds since 1970.
    """
    sources = list(dict.fromkeys(task.source for task in tasks))
    doubts = doubts or Doubts()
    return {
        "sources": [asdict(source) for source in sources],
        "tasks": [{"source": sources.index(task.source), **task.bounds} for task in tasks],
        "duplicates": duplicates or {},
        "recent": recent or {},
        "absent": absent or {},
        "started": doubts.started,
        "doubted": sorted(doubts.names),
        "planned": now,
    }


def plan_once(
    format_name: str, options: DrainOptions, task_type: type[TaskT], plan: Callable[[], Sequence[TaskT]]
) -> list[TaskT]:
    """Return the tasks of one batch read: a drain, or with `walDir` and `runId` the plan of its first read.

    Raises:
        OptionError: `walDir` cannot be used.
        UnsupportedFeatureError: the file system of `walDir` has no exclusive creation.
        DataLossError: the plan was deleted.
        MQSourceError: an error of `plan`.
    """
    try:
        if options.wal_dir is None or options.run_id is None:
            return list(plan())
        store, folder = open_folder(format_name, options.wal_dir, probe=True), f"run-{options.run_id}"
        if not store.names(folder):
            write_plan(store, folder, plan_document(plan()))
        return tasks_of(task_type, folder, read_plan(store, folder))
    except MQSourceError as error:
        raise error.within(f"{format_name}: planning") from error


def share_waiting(waiting: Mapping[SourceT, int | None], budget: int, turn: int = 0) -> dict[SourceT, int]:
    """Return how many messages to take from each source; if not every source gets one, begin at number `turn`.

    Args:
        waiting: the number of waiting messages; None if unknown.
        budget: the number of messages in total.
        turn: any number; the next trigger passes the next one.

    Example:
        >>> share_waiting({"a": 10, "b": 10, "c": None}, 2, turn=1)
        {'a': 0, 'b': 1, 'c': 1}
    """
    sources = list(waiting)
    first = turn % max(len(sources), 1)
    depths = {source: waiting[source] for source in sources[first:] + sources[:first]}
    shares = share_out({source: budget if depth is None else depth for source, depth in depths.items()}, budget)
    return {source: shares[source] for source in sources}


def share_drain(waiting: Mapping[SourceT, int | None], budget: int | None) -> dict[SourceT, int | None]:
    """Return how many messages a batch read takes from each source, `budget` in total; None means unbounded.

    A batch read also waits for new messages, so the rest of the budget is distributed over all sources.

    Args:
        waiting: the number of waiting messages; None if unknown.
        budget: the number of messages to take; None for no bound.

    Example:
        >>> share_drain({"a": 1, "b": 0}, 6), share_drain({"a": 1}, None), share_drain({}, 6)
        ({'a': 4, 'b': 2}, {'a': None}, {})
    """
    if budget is None:
        return dict.fromkeys(waiting)
    parts = share_waiting(waiting, budget)
    each, odd = divmod(budget - sum(parts.values()), max(len(parts), 1))
    return {source: part + each + (index < odd) for index, (source, part) in enumerate(parts.items())}


def split_parts(
    parts: Iterable[tuple[SourceT, int | None]], count: int, *, most: int | None = None
) -> list[tuple[SourceT, int | None]]:
    """Split each part into up to `count` parts of similar size, or more so that none is larger than `most`.

    An unbounded part (None) becomes `count` parts of `most` each.

    Example:
        >>> split_parts([("a", 5), ("b", 1), ("c", None)], 2)
        [('a', 3), ('a', 2), ('b', 1), ('c', None), ('c', None)]
        >>> split_parts([("a", 5), ("b", 1), ("c", None)], 1, most=2)
        [('a', 2), ('a', 2), ('a', 1), ('b', 1), ('c', 2)]
    """
    found: list[tuple[SourceT, int | None]] = []
    for source, rows in parts:
        pieces = count if rows is None or most is None else max(count, -(-rows // most))
        for number in range(pieces):
            if rows is None:
                found.append((source, most))
            elif part := rows // pieces + (number < rows % pieces):
                found.append((source, part))
    return found
