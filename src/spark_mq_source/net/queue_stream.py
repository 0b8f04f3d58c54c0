"""The driver's side of a streaming query of a queue: it plans a batch in the write-ahead folder, then tells Spark.

A queue has no positions, so an offset is the number of a batch and the name of a folder in `walDir`. Each checkpoint
has its own folder, so two queries never share a batch. The folder contains the plan of each batch. A batch that is
repeated after a crash has the same tasks, and each task finds the messages that it has already read in its log.

The broker redelivers a message if the acknowledgement was lost, or if the broker was killed before it stored the
acknowledgement. Each plan lists such messages of earlier batches, and its tasks leave them out.
"""

from __future__ import annotations

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar, Final, Generic

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.queue_offsets import BatchOffset
from spark_mq_source.net.pace import TriggerPace
from spark_mq_source.net.queue_plan import MAX_UNCOUNTED, Doubts, SourceT, TaskT, plan_document, tasks_of
from spark_mq_source.net.write_ahead import TaskLog, is_planned, open_folder, read_plan, remove_batch, write_plan

logger = logging.getLogger(__name__)

REMEMBERED_SECONDS: Final = 24 * 3600.0
"""The time for which a message that may be redelivered is remembered.

The broker redelivers it after its timeout, behind all waiting messages. All that is known of a source is forgotten once
it was absent for this time.
"""

MAX_STEP_SECONDS: Final = 3600.0
"""The maximum time between two batches that counts towards `REMEMBERED_SECONDS`.

A query that was stopped for longer has read nothing meanwhile, and a clock that was changed measures no time.
"""


class QueueStream(ABC, Generic[SourceT, TaskT]):
    """Planner of the triggers of one query.

    Not thread-safe. After any error the same call can be repeated.

    Args:
        format_name: the format.
        where: the format and the topic, the beginning of errors and logs.
        options: the query's.
        topic: the topic whose messages `newest` counts.

    Raises:
        OptionError: `walDir` cannot be written to.
        UnsupportedFeatureError: the file system of `walDir` has no exclusive creation.

    Attributes:
        newest: the last planned offset, and the number of all waiting messages; None before the first plan.
    """

    counts_held: ClassVar[bool] = False
    """True if the number of waiting messages includes unacknowledged messages at other consumers."""

    task_type: ClassVar[Any]
    """The format's subclass of `QueueTask`."""

    def __init__(
        self,
        format_name: str,
        where: str,
        options: Any,  # noqa: ANN401 - those of a format, which include `DrainOptions` and `PaceOptions`
        *,
        topic: str | None,
    ) -> None:
        self._where = where
        self._store = open_folder(format_name, options.wal_dir or "", probe=True)
        self._topic = topic
        self._max_rows: int | None = options.max_rows_per_trigger
        self._pace = TriggerPace(options.min_rows_per_trigger, options.max_trigger_delay_ms)
        self.newest: dict[str, object] | None = None
        self._is_capped = False
        # With `cap_at_current_end`: messages still to read, by source name; None (unknown) until a batch finds none.
        self._left: dict[str, int | None] | None = None
        self._extended: set[str] = set()
        """Names of the doubted sources of which more messages are read than were counted."""
        self._planned_now: int | None = None
        self._doubts = Doubts()
        self._recalled = False

    def initial(self) -> dict[str, object]:
        """Return the start of a query without a checkpoint: the offset before the first batch of a new folder.

        Raises:
            TopicNotFoundError: nothing to read exists, and the query must not wait for it.
            MQSourceError: the brokers cannot be reached, or refuse.
        """
        self._begin()
        return BatchOffset(uuid.uuid4().hex, 0).to_json()

    def latest(self, start: Mapping[str, object], *, limited: bool = True) -> dict[str, object]:
        """Return the end of the next trigger; if messages may be waiting, plan the next batch and return its offset.

        Args:
            start: the start of the trigger.
            limited: whether `maxRowsPerTrigger` and `minRowsPerTrigger` apply.

        Raises:
            DataLossError: the write-ahead folder is gone.
            MQSourceError: the brokers cannot be reached or refuse, or nothing to read exists.
        """
        at = self._offset(start)
        if at.batch:
            self._update_doubts(at)
        counts_all = self._is_capped and self._left is None
        waiting = self._waiting(self._sources_now() if counts_all else self._sources())
        if counts_all:
            self._left = self._counted(waiting)
        known = [depth for depth in waiting.values() if depth is not None]
        self.newest = at.to_json() | {
            "topic": self._topic,
            "waiting": sum(known) if len(known) == len(waiting) else None,
            "unit": "entries" if self.counts_held else "messages",
        }
        following = BatchOffset(at.wal, at.batch + 1)
        if is_planned(self._store, following.folder):
            # Planned before a restart; Spark does not know the batch yet, or repeats it.
            return following.to_json()
        if self._left is not None:
            waiting = self._remaining(at, waiting, self._left)
        if not any(depth is None or depth for depth in waiting.values()):
            self._warn_of_held(waiting)
            return at.to_json()
        if limited and self._left is None and None not in waiting.values() and self._pace.delays(sum(known)):
            return at.to_json()
        tasks = self._tasks(waiting, self._max_rows if limited else None, turn=following.batch)
        memory = self._remembered(at, {source.name for source in waiting})
        plan = plan_document(tasks, *memory, self._doubts, now=time.time())
        write_plan(self._store, following.folder, plan)
        self._planned_now = following.batch
        return following.to_json()

    def cap_at_current_end(self) -> None:
        """Limit `latest` to the messages that wait at its first call (`Trigger.AvailableNow`).

        Spark calls this before it tells whether the query is new; a new one creates subscriptions and channels first.

        A source whose number of messages is unknown is read until a batch finds none. So is one in `_doubts`, but at
        most `MAX_UNCOUNTED` messages beyond its count.
        """
        self._is_capped = True

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[TaskT]:
        """Return the tasks of a trigger, the same for the same offsets.

        Raises:
            DataLossError: a plan was deleted.
        """
        first, last = self._offset(start), self._offset(end)
        # A query that was interrupted in its first batch gets a new start from `initial`, in a new folder.
        begin = first.batch if first.wal == last.wal else 0
        batches = (BatchOffset(last.wal, number) for number in range(begin + 1, last.batch + 1))
        return [task for batch in batches for task in self._planned(batch)]

    def commit(self, end: Mapping[str, object]) -> None:
        """Commit `end`. Its batch is kept until the next commit, because the next plan reads its outcome."""
        at = self._offset(end)
        for name in self._store.names(at.wal):
            if name.isdecimal() and int(name) < at.batch:
                remove_batch(self._store, f"{at.wal}/{name}")

    # -- methods of a format

    @abstractmethod
    def _begin(self) -> None:
        """Refuse a query if nothing to read exists and it must not wait for it."""

    @abstractmethod
    def _sources(self) -> Sequence[SourceT]:
        """Return the sources to read in the next trigger."""

    def _sources_now(self) -> Sequence[SourceT]:
        """Return the sources for a query that does not wait for more."""
        return self._sources()

    @abstractmethod
    def _waiting(self, sources: Sequence[SourceT]) -> dict[SourceT, int | None]:
        """Return the number of messages that each source could deliver now; None if unknown, or in `_doubts`."""

    def _unknown_reason(self, source: SourceT) -> str:
        del source
        return "its broker does not report it"

    def _count_held(self, source: SourceT) -> int:
        """Return how many messages are not counted as waiting, because the broker may deliver them again later."""
        del source
        return 0

    @abstractmethod
    def _check(self, source: SourceT) -> None:
        """Raise an error if this source cannot be read."""

    @abstractmethod
    def _tasks(self, waiting: Mapping[SourceT, int | None], budget: int | None, *, turn: int) -> Sequence[TaskT]:
        """Return the tasks of a trigger that reads the waiting messages, at most `budget`."""

    @abstractmethod
    def _merged(self, recent: str, last: str) -> str:
        """Add the messages that a task acknowledged last to those that were acknowledged before."""

    def _compact(self, ids: Sequence[str]) -> Iterable[str]:
        """Convert ids of messages to the form in a plan: those of one attempt that may be redelivered, in its order."""
        return ids

    # -- inside

    def _counted(self, waiting: Mapping[SourceT, int | None]) -> dict[str, int | None]:
        """Return the number of messages to read by source name, after a warning of those that are unknown."""
        for source, count in waiting.items():
            if count is None:
                logger.warning(
                    "%s: %s: number of waiting messages unknown (%s); read until a batch finds none",
                    self._where,
                    source.name,
                    self._unknown_reason(source),
                )
        return {source.name: count for source, count in waiting.items()}

    def _planned(self, at: BatchOffset) -> list[TaskT]:
        return tasks_of(self.task_type, at.folder, read_plan(self._store, at.folder))

    def _update_doubts(self, at: BatchOffset) -> None:
        """Recall the doubts of another driver, and find the doubted sources of which the last batch read all."""
        if self._recalled and not self._doubts.names:
            return
        plan = read_plan(self._store, at.folder)
        if not self._recalled:
            self._doubts.recall(plan)
            self._recalled = True
        is_idle: dict[str, bool] = {}
        for name, log in self._logs(at) if self._doubts.names.intersection(plan["doubted"]) else ():
            is_idle[name] = is_idle.get(name, name in plan["doubted"]) and log.ended_idle
        self._doubts.empty = {name for name, idle in is_idle.items() if idle}

    def _remaining(
        self, at: BatchOffset, waiting: dict[SourceT, int | None], left: dict[str, int | None]
    ) -> dict[SourceT, int | None]:
        """Return how many of the messages counted by `cap_at_current_end` remain after the batches up to `at`.

        Raises:
            MQSourceError: the last batch found no messages at a source because it cannot be reached.
        """
        # A batch planned earlier has messages that were not counted, or that were read before the count.
        if at.batch == self._planned_now:
            self._planned_now = None
            for name, (found, is_idle) in self._found(at).items():
                source = next((source for source in waiting if source.name == name), None)
                expected = left.get(name, 0)
                if found or source is None:
                    left[name] = None if expected is None else max(0, expected - found)
                elif waiting[source] != 0:
                    # A batch is also empty if its task could not connect, or received only messages that come again.
                    self._check(source)
                    if is_idle and (waiting[source] is None or self.counts_held):
                        left[name] = 0
                        if waiting[source]:
                            logger.warning(
                                "%s: %s: the broker counts %d unacknowledged entries, and sent none within "
                                "idleTimeout; other consumers may hold them, and the next run reads the rest",
                                self._where,
                                name,
                                waiting[source],
                            )
        for name in left.keys() & self._doubts.names & (self._doubts.counts.keys() - self._extended):
            # A bound, because a doubt does not end as long as messages keep arriving.
            left[name] = max(0, left[name] or 0, self._doubts.counts[name]) + MAX_UNCOUNTED
            self._extended.add(name)
        # A doubt has ended because everything was read.
        left.update(dict.fromkeys(self._extended - self._doubts.names, 0))
        for source, depth in waiting.items():
            if left.get(source.name, 0) is None and depth is not None:
                left[source.name] = depth
        for name in left.keys() - {source.name for source in waiting}:
            if left.pop(name) != 0:
                logger.warning("%s: %s disappeared before it was read", self._where, name)
        return {source: _least(depth, left.get(source.name, 0)) for source, depth in waiting.items()}

    def _warn_of_held(self, waiting: Iterable[SourceT]) -> None:
        """Warn if a query with `cap_at_current_end` ends before it has read all that was counted."""
        for source in waiting:
            if self._left and self._left.get(source.name) and (held := self._count_held(source)):
                logger.warning(
                    "%s: %s: no more messages wait, but %d are deferred, or held by another consumer or a lost "
                    "connection; the next run reads those that the broker delivers again",
                    self._where,
                    source.name,
                    held,
                )

    def _found(self, at: BatchOffset) -> dict[str, tuple[int, bool]]:
        """Return the number of messages in a batch by source name, and whether the broker had no more."""
        found: dict[str, tuple[int, bool]] = {}
        for name, log in self._logs(at):
            rows, is_idle = found.get(name, (0, True))
            found[name] = rows + log.rows, is_idle and log.ended_idle
        return found

    def _logs(self, at: BatchOffset) -> Iterator[tuple[str, TaskLog]]:
        """Yield the log of each task of a batch, with the name of its source."""
        for task in self._planned(at):
            log = TaskLog(self._store, at.folder, task.task)
            log.catch_up()
            yield task.source.name, log

    def _remembered(
        self, at: BatchOffset, present: Set[str]
    ) -> tuple[dict[str, dict[str, float]], dict[str, str], dict[str, float]]:
        """Return the messages that may be redelivered after this batch, by source name; forget long absent sources.

        Returns:
            Messages whose acknowledgement is not confirmed, each with the seconds since that became known; the
            messages that were acknowledged last; and the seconds since each absent source was present.
        """
        if not at.batch:
            return {}, {}, {}
        plan = read_plan(self._store, at.folder)
        passed = min(max(0.0, time.time() - plan["planned"]), MAX_STEP_SECONDS)
        found: dict[str, dict[str, float]] = {
            name: {text: age + passed for text, age in texts.items() if age + passed < REMEMBERED_SECONDS}
            for name, texts in plan["duplicates"].items()
        }
        recent: dict[str, str] = dict(plan["recent"])
        for task in filter(lambda task: task.is_repeatable, tasks_of(self.task_type, at.folder, plan)):
            unconfirmed, last = TaskLog(self._store, at.folder, task.task).outcome()
            name = task.source.name
            recent[name] = self._merged(recent.get(name, ""), last)
            for ids in unconfirmed:
                logger.warning(
                    "%s: %s: %d messages of batch %d may come again, and will be left out",
                    self._where,
                    name,
                    len(ids),
                    at.batch,
                )
                found.setdefault(name, {}).update(dict.fromkeys(self._compact(ids), 0.0))
        known = found.keys() | recent.keys() | self._doubts.started.keys() | self._doubts.names
        absent = {name: plan["absent"].get(name, 0.0) + passed for name in sorted(known - present)}
        for name in [name for name, seconds in absent.items() if seconds >= REMEMBERED_SECONDS]:
            del absent[name]
            found.pop(name, None)
            recent.pop(name, None)
            self._doubts.forget(name)
        found = {name: texts for name, texts in found.items() if texts}
        return found, {name: text for name, text in recent.items() if text}, absent

    def _offset(self, document: Mapping[str, object]) -> BatchOffset:
        try:
            return BatchOffset.from_json(document)
        except ValueError as error:
            raise OptionError(f"{self._where}: the checkpoint cannot be used: {error}") from error


def _least(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)
