"""The driver's side of a streaming query of a queue: it plans a batch in the write-ahead folder, and then tells Spark.

A queue has no positions, so an offset is the number of a batch and the name of a folder in `walDir` (a new one for each
checkpoint, so that two queries never share a batch). The plan of a batch is stored there. A batch that is repeated
after a crash has the same tasks, and each task finds the messages that it has already read in its log.

The broker delivers a message again if its acknowledgement may be lost, or if the broker is killed before it saves the
acknowledgement. Each plan lists such messages of earlier batches, and its tasks leave them out.
"""

from __future__ import annotations

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, Generic

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.queue_offsets import BatchOffset
from spark_mq_source.net.pace import TriggerPace
from spark_mq_source.net.queue_plan import SourceT, TaskT, plan_document, tasks_of
from spark_mq_source.net.storage import Store
from spark_mq_source.net.write_ahead import TaskLog, is_planned, read_plan, remove_batch, write_plan

logger = logging.getLogger(__name__)

REMEMBERED_SECONDS: Final = 24 * 3600.0
"""The time for which a message that may come again is remembered.

The broker delivers it after its timeout, and then behind all waiting messages.
"""

MAX_STEP_SECONDS: Final = 3600.0
"""The most time between two batches that counts towards `REMEMBERED_SECONDS`.

A query that was stopped for longer has read nothing meanwhile, and a clock that was moved is not a measure of time.
"""


class QueueStream(ABC, Generic[SourceT, TaskT]):
    """Plans the triggers of one query.

    Not for use by several threads at once. After any error the same call may be made again.

    Args:
        where: the format and the topic, which errors and logs begin with.
        store: the write-ahead folder.
        task_type: of the tasks.
        topic: the topic whose messages `newest` counts.
        max_rows: maximum number of messages of a trigger.
        pace: decides how long a trigger waits for more messages.

    Attributes:
        newest: the offset planned last, and the number of all waiting messages; None before the first plan.
    """

    counts_held: ClassVar[bool] = False
    """True if the number of waiting messages includes those that other consumers hold unacknowledged."""

    def __init__(
        self,
        where: str,
        store: Store,
        task_type: type[TaskT],
        *,
        topic: str | None,
        max_rows: int | None,
        pace: TriggerPace,
    ) -> None:
        self._where = where
        self._store = store
        self._task_type = task_type
        self._topic = topic
        self._max_rows = max_rows
        self._pace = pace
        self.newest: dict[str, object] | None = None
        # How much more of each source is read, by name, once that is fixed; None until it has no more.
        self._left: dict[str, int | None] | None = None
        self._planned_now: int | None = None

    def initial(self) -> dict[str, object]:
        """Return the start of a query without a checkpoint: before the first batch of a new folder.

        Raises:
            TopicNotFoundError: there is nothing to read, and the query must not wait for it.
            MQSourceError: the brokers cannot be reached, or refuse.
        """
        self._begin()
        return BatchOffset(uuid.uuid4().hex, 0).to_json()

    def latest(self, start: Mapping[str, object] | None, *, limited: bool = True) -> dict[str, object]:
        """Return the end of the next trigger: one batch on, if anything may wait. The batch is planned then.

        Args:
            start: where the trigger begins; None begins a new query.
            limited: whether `maxRowsPerTrigger` and `minRowsPerTrigger` count.

        Raises:
            DataLossError: the write-ahead folder is gone.
            MQSourceError: the brokers cannot be reached, or refuse, or there is nothing to consume.
        """
        at = self._offset(self.initial() if start is None else start)
        waiting = self._waiting(self._sources())
        known = [depth for depth in waiting.values() if depth is not None]
        self.newest = at.to_json() | {
            "topic": self._topic,
            "waiting": sum(known) if len(known) == len(waiting) else None,
        }
        following = BatchOffset(at.wal, at.batch + 1)
        if is_planned(self._store, following.folder):
            # Planned before the query ended, and not yet known to Spark, or to be done over.
            return following.to_json()
        if self._left is not None:
            waiting = self._aimed(at, waiting, self._left)
        if not any(depth is None or depth for depth in waiting.values()):
            return at.to_json()
        if limited and self._left is None and None not in waiting.values() and self._pace.delays(sum(known)):
            return at.to_json()
        tasks = self._tasks(waiting, self._max_rows if limited else None, turn=following.batch)
        plan = plan_document(tasks, *self._remembered(at), now=time.time())
        write_plan(self._store, following.folder, plan)
        self._planned_now = following.batch
        return following.to_json()

    def cap_at_current_end(self) -> None:
        """Limit `latest` to the messages that wait now (`Trigger.AvailableNow`).

        A source that does not report its number of messages is read until a batch finds nothing there.

        Raises:
            TopicNotFoundError: there is nothing to read, and the query must not wait for it.
            MQSourceError: the brokers cannot be reached, or refuse.
        """
        sources = self._sources_now()
        waiting = self._waiting(sources)
        for source in sources:
            if waiting[source] is None:
                logger.warning(
                    "%s: %s: number of waiting messages unknown (%s); read until a batch finds none",
                    self._where,
                    source.name,
                    self._why_unknown(source),
                )
        self._left = {source.name: waiting[source] for source in sources}

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[TaskT]:
        """Return the tasks of one trigger; the same for the same offsets.

        Raises:
            DataLossError: the plan is gone.
        """
        first, last = self._offset(start), self._offset(end)
        # The start of a query that was interrupted in its first batch is made up anew, with a folder that has nothing.
        begin = first.batch if first.wal == last.wal else 0
        batches = (BatchOffset(last.wal, number) for number in range(begin + 1, last.batch + 1))
        return [task for batch in batches for task in self._planned(batch)]

    def commit(self, end: Mapping[str, object]) -> None:
        """Commit `end`. Its batch is kept until the next commit, which needs to know what may come again."""
        at = self._offset(end)
        for name in self._store.names(at.wal):
            if name.isdecimal() and int(name) < at.batch:
                remove_batch(self._store, f"{at.wal}/{name}")

    # -- methods of a format

    @abstractmethod
    def _begin(self) -> None:
        """Refuse a query that has nothing to read and must not wait for it."""

    @abstractmethod
    def _sources(self) -> Sequence[SourceT]:
        """Return the sources to read in the next trigger."""

    def _sources_now(self) -> Sequence[SourceT]:
        """Return the sources for a query that does not wait for more."""
        return self._sources()

    @abstractmethod
    def _waiting(self, sources: Sequence[SourceT]) -> dict[SourceT, int | None]:
        """Return the number of messages that each source could deliver now; None if unknown."""

    def _why_unknown(self, source: SourceT) -> str:
        """Return the reason why the number of messages of a source is unknown."""
        del source
        return "its broker does not report it"

    @abstractmethod
    def _check(self, source: SourceT) -> None:
        """Raise the error that keeps this source from being read, if there is one."""

    @abstractmethod
    def _tasks(self, waiting: Mapping[SourceT, int | None], budget: int | None, *, turn: int) -> Sequence[TaskT]:
        """Return the tasks of a trigger that reads waiting messages, within the budget of messages."""

    @abstractmethod
    def _merged(self, recent: str, last: str) -> str:
        """Merge the messages that a task acknowledged last into those acknowledged before."""

    def _compact(self, ids: Iterable[str]) -> Iterable[str]:
        """Return the ids of messages in the form that a plan uses."""
        return ids

    # -- inside

    def _planned(self, at: BatchOffset) -> list[TaskT]:
        return tasks_of(self._task_type, at.folder, read_plan(self._store, at.folder))

    def _aimed(
        self, at: BatchOffset, waiting: dict[SourceT, int | None], left: dict[str, int | None]
    ) -> dict[SourceT, int | None]:
        """Return how much is still to be read of the messages that waited, after the batches until `at`.

        Raises:
            MQSourceError: the last batch found nothing at a source because it cannot be reached.
        """
        # What was planned before is not part of what was counted, or was read before it was.
        if at.batch == self._planned_now:
            self._planned_now = None
            for name, found in self._found(at).items():
                source = next((source for source in waiting if source.name == name), None)
                expected = left.get(name, 0)
                if found or source is None:
                    left[name] = None if expected is None else max(0, expected - found)
                elif waiting[source] != 0:
                    # The batch is empty, too, if its task could not connect.
                    self._check(source)
                    if waiting[source] is None or self.counts_held:
                        left[name] = 0
        for source, depth in waiting.items():
            if left.get(source.name, 0) is None and depth is not None:
                left[source.name] = depth
        for name in left.keys() - {source.name for source in waiting}:
            if left.pop(name) != 0:
                logger.warning("%s: %s disappeared before it was read", self._where, name)
        return {source: _least(depth, left.get(source.name, 0)) for source, depth in waiting.items()}

    def _found(self, at: BatchOffset) -> dict[str, int]:
        """Return the number of messages in a batch, by the source's name."""
        found: dict[str, int] = {}
        for task in self._planned(at):
            log = TaskLog(self._store, at.folder, task.task)
            log.catch_up()
            found[task.source.name] = found.get(task.source.name, 0) + log.rows
        return found

    def _remembered(self, at: BatchOffset) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """Return the messages that may come again after this batch, by source.

        Returns:
            Messages whose acknowledgement is not confirmed, each with the seconds since that became known, and those
            that were acknowledged last.
        """
        if not at.batch:
            return {}, {}
        plan = read_plan(self._store, at.folder)
        passed = min(max(0.0, time.time() - plan["planned"]), MAX_STEP_SECONDS)
        found: dict[str, dict[str, float]] = {
            name: {text: age + passed for text, age in texts.items() if age + passed < REMEMBERED_SECONDS}
            for name, texts in plan["duplicates"].items()
        }
        recent: dict[str, str] = dict(plan["recent"])
        for task in filter(lambda task: task.is_repeatable, tasks_of(self._task_type, at.folder, plan)):
            unconfirmed, last = TaskLog(self._store, at.folder, task.task).outcome()
            name = task.source.name
            recent[name] = self._merged(recent.get(name, ""), last)
            if unconfirmed:
                logger.warning(
                    "%s: %s: %d messages of batch %d may come again, and will be left out",
                    self._where,
                    name,
                    len(unconfirmed),
                    at.batch,
                )
                found.setdefault(name, {}).update(dict.fromkeys(self._compact(unconfirmed), 0.0))
        return {name: texts for name, texts in found.items() if texts}, {n: text for n, text in recent.items() if text}

    def _offset(self, document: Mapping[str, object]) -> BatchOffset:
        try:
            return BatchOffset.from_json(document)
        except ValueError as error:
            raise OptionError(f"{self._where}: the checkpoint cannot be used: {error}") from error


def _least(one: int | None, other: int | None) -> int | None:
    """Return the smaller of two bounds; None means unbounded."""
    return other if one is None else one if other is None else min(one, other)
