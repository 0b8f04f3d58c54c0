"""The driver's side of one streaming query: a batch is planned into the write-ahead folder before Spark knows of it.

NSQ has no positions, so an offset is the number of a batch and the name of a folder in `walDir` (a new one for each
checkpoint: batches of two queries never meet). What a batch reads is written there as its plan; whoever does the batch
over, after whatever crash, finds the same tasks, and each task finds in its log what it has read already.

A message whose FIN did not get through, or may not have, comes again although a batch has it. So does a finished one
if nsqd is killed before it saves how far it has read its disk. Each plan names both kinds of the batches before it, and
its tasks leave them out.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from spark_mq_source.core.errors import OptionError, TransportError
from spark_mq_source.net.storage import Store
from spark_mq_source.nsq.client.client import NsqClient, Nsqd
from spark_mq_source.nsq.client.session import Session
from spark_mq_source.nsq.offsets import BatchOffset
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.protocol.wire import MESSAGE_ID_BYTES
from spark_mq_source.nsq.read.planner import (
    Waiting,
    fetch_waiting,
    find_nsqds,
    nobody_has_it,
    plan_document,
    tasks_of,
    trigger_tasks,
)
from spark_mq_source.nsq.read.reader import NsqRange
from spark_mq_source.nsq.read.recent import RECENT_IDS
from spark_mq_source.nsq.read.wal import TaskLog, is_planned, open_folder, read_plan, remove_batch, write_plan

logger = logging.getLogger(__name__)

REMEMBERED_SECONDS: Final = 24 * 3600.0
"""How long a message that may come again is looked for. It waits for its timeout, and then behind all that waits."""

LONGEST_STEP_SECONDS: Final = 3600.0
"""How much of the time between two batches counts for that: a query that did not run for longer has read nothing
meanwhile, and a clock that was moved says nothing."""

EPHEMERAL: Final = "#ephemeral"
"""What a channel's name ends in that nsqd deletes with its last consumer (V2 specification, Notes)."""


class NsqStream:
    """Plans the triggers of one query.

    Not for use by several threads at once. After any error the same call may be made again.

    Args:
        options: the query's options.

    Attributes:
        newest: the offset that was planned last and how many messages wait, without any limit; None before.

    Raises:
        OptionError: `walDir` cannot be written to.
        UnsupportedFeatureError: nothing can be made exclusively there.
    """

    def __init__(self, options: NsqOptions) -> None:
        self._options = options
        self._client = NsqClient(options)
        self._store: Store = open_folder(options.wal_dir or "", probe=True)
        self.newest: dict[str, object] | None = None
        self._was_found = False
        # How many more messages each nsqd is read for, by name, once that is fixed; None until it has no more.
        self._left: dict[str, int | None] | None = None
        self._planned_now: int | None = None
        self._held: dict[str, Session] = {}

    def close(self) -> None:
        """Closes the connections."""
        while self._held:
            self._held.popitem()[1].close()

    def initial(self) -> dict[str, object]:
        """Where a query starts that has no checkpoint: before the first batch of a folder of its own.

        Raises:
            TopicNotFoundError: no nsqlookupd knows the topic, or the channel does not exist, and `createChannel` is
                false.
            MQSourceError: no nsqlookupd answers, or no nsqd can be reached where a channel is to be created.
        """
        nsqds = self._find_nsqds()
        if not nsqds and not self._options.create_channel:
            if not self._client.fetch_topology(self._options.topic or "").is_known:
                raise nobody_has_it(self._options, is_stream=True)
            logger.warning("nsq topic %s: none of its nsqd is registered now; the query waits", self._options.topic)
        return BatchOffset(uuid.uuid4().hex, 0).to_json()

    def latest(self, start: Mapping[str, object] | None, *, limited: bool = True) -> dict[str, object]:
        """Where the next trigger ends: one batch on, if anything may wait. The batch is planned then.

        Args:
            start: where it begins; None begins a new query.
            limited: whether `maxRowsPerTrigger` counts.

        Raises:
            DataLossError: the write-ahead folder is gone.
            MQSourceError: no nsqlookupd answers, or the channel is not there.
        """
        at = _offset(self.initial() if start is None else start)
        nsqds = self._find_nsqds()
        self._hold(nsqds)
        waiting: Waiting = fetch_waiting(self._client, self._options, nsqds)
        known = [depth for depth in waiting.values() if depth is not None]
        self.newest = at.to_json() | {
            "topic": self._options.topic,
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
        budget = self._options.max_rows_per_trigger if limited else None
        tasks = trigger_tasks(self._options, waiting, budget, turn=following.batch)
        plan = plan_document(tasks, *self._remembered(at), now=time.time())
        write_plan(self._store, following.folder, plan)
        self._planned_now = following.batch
        return following.to_json()

    def aim_at_now(self) -> None:
        """From now on `latest` plans no more messages than there are now (`Trigger.AvailableNow`).

        An nsqd whose HTTP interface does not tell how many there are is read until a batch finds none there.

        Raises:
            TopicNotFoundError: no nsqd has the topic, and `createChannel` is false.
            MQSourceError: no nsqlookupd answers, or the channel does not exist.
        """
        nsqds = self._find_nsqds()
        if not nsqds and not self._options.create_channel:
            raise nobody_has_it(self._options)
        waiting = fetch_waiting(self._client, self._options, nsqds)
        for nsqd in nsqds:
            if waiting[nsqd] is None:
                logger.warning(
                    "nsq topic %s, nsqd %s: number of waiting messages unknown (%s); read until a batch finds none",
                    self._options.topic,
                    nsqd.name,
                    self._client.why_no_stats(nsqd),
                )
        self._left = {nsqd.name: waiting[nsqd] for nsqd in nsqds}

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[NsqRange]:
        """The tasks of one trigger; the same for the same offsets.

        Raises:
            DataLossError: the plan is gone.
        """
        first, last = _offset(start), _offset(end)
        # The start of a query that was interrupted in its first batch is made up anew, with a folder that has nothing.
        begin = first.batch if first.wal == last.wal else 0
        batches = (BatchOffset(last.wal, number) for number in range(begin + 1, last.batch + 1))
        return [task for batch in batches for task in tasks_of(batch.folder, read_plan(self._store, batch.folder))]

    def commit(self, end: Mapping[str, object]) -> None:
        """Spark has `end` for good. Its batch is kept until the next one: that has to know what may come again."""
        at = _offset(end)
        for name in self._store.names(at.wal):
            if name.isdecimal() and int(name) < at.batch:
                remove_batch(self._store, f"{at.wal}/{name}")

    # -- inside

    def _hold(self, nsqds: Sequence[Nsqd]) -> None:
        """Keeps an ephemeral channel, and what waits in it, from going between two triggers."""
        topic, channel = self._options.topic or "", self._options.channel or ""
        if not channel.endswith(EPHEMERAL):
            return
        for nsqd in nsqds:
            held = self._held.get(nsqd.name)
            if held is None or held.closed:
                try:
                    session = self._client.open_session(nsqd)
                    self._held[nsqd.name] = session
                    session.subscribe(topic, channel)
                except TransportError as error:
                    logger.warning("%s: the channel %s of %s is not kept there: %s", nsqd.name, channel, topic, error)

    def _find_nsqds(self) -> Sequence[Nsqd]:
        nsqds = find_nsqds(self._client, self._options, was_found=self._was_found)
        self._was_found = self._was_found or bool(nsqds)
        return nsqds

    def _aimed(self, at: BatchOffset, waiting: Waiting, left: dict[str, int | None]) -> Waiting:
        """What is still to be read of what waits, after the batches until `at`.

        Raises:
            MQSourceError: the last batch found nothing on an nsqd because it cannot be reached.
        """
        # What was planned before is not part of what was counted, or was read before it was.
        if at.batch == self._planned_now:
            self._planned_now = None
            for name, found in self._found(at).items():
                nsqd = next((nsqd for nsqd in waiting if nsqd.name == name), None)
                expected = left.get(name, 0)
                if found or nsqd is None:
                    left[name] = None if expected is None else max(0, expected - found)
                elif waiting[nsqd] != 0:
                    # The batch is empty, too, if its task could not connect.
                    self._client.open_session(nsqd).close()
                    if waiting[nsqd] is None:
                        left[name] = 0
        for nsqd, depth in waiting.items():
            if left.get(nsqd.name, 0) is None and depth is not None:
                left[nsqd.name] = depth
        for name in left.keys() - {nsqd.name for nsqd in waiting}:
            if left.pop(name) != 0:
                logger.warning("nsq topic %s: nsqd %s is gone before it was read", self._options.topic, name)
        return {nsqd: _least(depth, left.get(nsqd.name, 0)) for nsqd, depth in waiting.items()}

    def _found(self, at: BatchOffset) -> dict[str, int]:
        """How many messages a batch has, by the nsqd's name."""
        found: dict[str, int] = {}
        for task in tasks_of(at.folder, read_plan(self._store, at.folder)):
            log = TaskLog(self._store, at.folder, task.task)
            log.catch_up()
            found[task.nsqd.name] = found.get(task.nsqd.name, 0) + log.rows
        return found

    def _remembered(self, at: BatchOffset) -> tuple[dict[str, dict[str, float]], dict[str, str]]:
        """What may come again after this batch, by nsqd.

        Returns:
            Ids whose FIN may not be through, each with for how many seconds that is known, and the ids that were
            finished last.
        """
        if not at.batch:
            return {}, {}
        plan = read_plan(self._store, at.folder)
        passed = min(max(0.0, time.time() - plan["planned"]), LONGEST_STEP_SECONDS)
        found: dict[str, dict[str, float]] = {
            name: {id_: age + passed for id_, age in ids.items() if age + passed < REMEMBERED_SECONDS}
            for name, ids in plan["duplicates"].items()
        }
        recent: dict[str, str] = dict(plan["recent"])
        for task in tasks_of(at.folder, plan):
            unfinished, last = TaskLog(self._store, at.folder, task.task).outcome()
            recent[task.nsqd.name] = (recent.get(task.nsqd.name, "") + last)[-RECENT_IDS * MESSAGE_ID_BYTES :]
            if unfinished:
                logger.warning(
                    "nsq topic %s, nsqd %s: %d messages of batch %d may come again, and will be left out",
                    self._options.topic,
                    task.nsqd.name,
                    len(unfinished),
                    at.batch,
                )
                found.setdefault(task.nsqd.name, {}).update(dict.fromkeys(unfinished, 0.0))
        return {name: ids for name, ids in found.items() if ids}, {name: ids for name, ids in recent.items() if ids}


def _least(one: int | None, other: int | None) -> int | None:
    """The smaller of two bounds; None is none."""
    return other if one is None else one if other is None else min(one, other)


def _offset(document: Mapping[str, object]) -> BatchOffset:
    try:
        return BatchOffset.from_json(document)
    except ValueError as error:
        raise OptionError(f"nsq: the checkpoint cannot be used: {error}") from error
