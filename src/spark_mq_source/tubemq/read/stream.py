"""The driver's part of a streaming query: its partitions, and the start and end of its triggers.

Spark's checkpoint has the positions. Each offset there also has the start of its own trigger, so a repeated trigger is
the same one, whatever has happened to the group since.

With ``assignment=client`` a query reads all partitions. With ``assignment=server`` it is a member of a group whose
partitions the master assigns (`Membership`). Tasks read in their own groups (see `reader`), so handing over a partition
does not affect tasks that still read it: the query leaves it at the end of the last trigger in Spark's checkpoint,
which it will read, and the next member begins there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from spark_mq_source.core.errors import (
    BrokerError,
    MQSourceError,
    OptionError,
    RequestTimeoutError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from spark_mq_source.core.shares import in_turn, served_last, share_out
from spark_mq_source.net.pace import TriggerPace
from spark_mq_source.net.retry import Deadline, retrying, until_found
from spark_mq_source.net.stops import Finish, all_read, check_stop
from spark_mq_source.tubemq.client.bounds import Bounds, Partitions, fetch_bounds, owners_of_stores, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.group_members import GroupMember, GroupSession
from spark_mq_source.tubemq.client.members import ClientBalancedMember, ProducerMember, unique_client_id
from spark_mq_source.tubemq.client.session import PartitionConsumer
from spark_mq_source.tubemq.offsets import (
    EARLIEST,
    INDEX_BYTES,
    LATEST,
    OffsetOption,
    TopicPartition,
    Trigger,
    decode_offsets,
    encode_offsets,
)
from spark_mq_source.tubemq.options import WITH_MEMORY, Assignment, TubeMQOptions
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from spark_mq_source.tubemq.protocol.commands import ReadStatus, RegisterPartitionResponse
from spark_mq_source.tubemq.protocol.error_codes import PARTITION_OCCUPIED
from spark_mq_source.tubemq.read.planner import check_named, ranges_of, resolve_offset
from spark_mq_source.tubemq.read.reader import TubeMQRange

logger = logging.getLogger(__name__)

FIRST_WAIT_SECONDS: Final = 1.0
"""Time for which a trigger waits for a partition, after the first has waited for `assignmentTimeout`."""

PLANNED_WITHIN_SECONDS: Final = 10.0
"""Time for Spark to write a trigger's end before the master's request for one of its partitions is refused.

Spark needs as long as for a small file, unless another source of the query is slow. The master has the whole group wait
meanwhile, and repeats the request in its next round (10 rounds later without any answer; master 2.4.0).
"""

Positions = Mapping[TopicPartition, int]


class TubeMQStream:
    """Planner of the triggers of one query.

    Not for use by several threads at once. After an error, the same call can be repeated.

    Attributes:
        newest: the ends at the latest call of `latest`, regardless of limits; None before.
    """

    def __init__(self, options: TubeMQOptions) -> None:
        self._options = options
        self.newest: dict[str, object] | None = None
        self._client = TubeMQClient(options)
        self._assigned = (
            Membership(self._client, options)
            if options.assignment is Assignment.SERVER
            else _AllPartitions(self._client, options)
        )
        self._target: Positions | None = None
        # The positions of the offset that `latest` returned last.
        self._ends: Positions = {}
        # The last trigger of the checkpoint, after a restart.
        self._repeated: Trigger | None = None
        # The offset that Spark committed last; before, the start of a query without a checkpoint.
        self._committed: Mapping[str, object] | None = None
        self._served: TopicPartition | None = None
        self._finish = Finish()
        self._pace = TriggerPace(options.min_rows_per_trigger, options.max_trigger_delay_ms)

    def close(self) -> None:
        """Leave the group, and close the connections."""
        self._assigned.close()
        self._client.close()

    def initial(self) -> dict[str, object]:
        """Return the start of a query without a checkpoint.

        Raises:
            OptionError: `startingOffsets` names partitions that are not read, or leaves one out; or `endingOffsets` is
                before the start.
            DataLossError: `startingOffsets` names an offset that does not exist, and `failOnDataLoss` is true.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        if self._repeated is not None:
            # Spark repeats the first trigger.
            initial: Positions = {**self._repeated.positions, **self._repeated.begins}
        else:
            initial = self._assigned.initial()
            self._stops(initial)
        self._committed = encode_offsets(Trigger(initial))
        return dict(self._committed)

    def latest(self, start: Mapping[str, object], *, limited: bool = True) -> dict[str, object]:
        """Return the end of the next trigger.

        Args:
            start: start of the trigger.
            limited: whether the limits of the options apply.

        Raises:
            DataLossError: a partition has vanished or lost unread messages, and `failOnDataLoss` is true.
            OptionError: `endingOffsets` is before what was read, or leaves a partition out.
            EndOfStreamError: every partition is read to its `endingOffsets`.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        known = _decode(start).positions
        partitions = self._assigned.partitions(known)
        known = self._without_vanished(known, partitions)
        bounds = fetch_bounds(self._client, self._options, partitions)
        begins = self._checked(self._assigned.begins(known, bounds), partitions, bounds)
        newest = {tp: max(begin, bounds[tp].last) for tp, begin in begins.items()}
        self.newest = encode_offsets(Trigger({**known, **newest}))
        ends = newest
        if self._target is not None:
            # Messages after the query's start are for the next one, also those of new partitions.
            ends = {tp: max(begins[tp], min(end, self._target.get(tp, 0))) for tp, end in ends.items()}
        stops = self._stops(begins)
        ends = {tp: min(end, stops.get(tp, end)) for tp, end in ends.items()}
        is_last = bool(stops) and ends == stops
        if self._target is None and limited and not is_last and self._is_delayed(begins, ends):
            ends = dict(begins)
        if limited and self._options.max_rows_per_trigger is not None:
            ends = self._limited(begins, ends, self._options.max_rows_per_trigger)
        planned = self._assigned.plan({tp: end for tp, end in ends.items() if end > begins[tp]})
        ends = {tp: end for tp, end in ends.items() if end <= begins[tp] or tp in planned}
        read = {tp: begins[tp] for tp in planned}
        has_moved_back = any(begins[tp] < known[tp] for tp in begins.keys() & known.keys())
        if not read and not has_moved_back and known.keys() == _decode(start).positions.keys():
            if self._finish.count(start, is_all=is_last and self._target is None) >= Finish.ENOUGH:
                # Spark commits a trigger when the next one begins, and there is none.
                self.commit(start)
                raise all_read("tubemq", len(ends))
            return dict(start)
        self._ends = {**known, **ends}
        return encode_offsets(Trigger(self._ends, read))

    def _stops(self, begins: Positions) -> Positions:
        """Return the ends of the query; none without `endingOffsets`.

        Raises:
            OptionError: one is before the begin, or a partition has none.
        """
        wanted = self._options.ending_offsets
        if wanted is None:
            return {}
        stops = {}
        for tp, begin in begins.items():
            stop = wanted.at(tp)
            if stop is None:
                raise OptionError(f"endingOffsets must name every partition or its topic; missing: {tp}")
            check_stop(f"tubemq: {tp}", begin, stop)
            stops[tp] = stop
        return stops

    def cap_at_current_end(self) -> None:
        """Limit `latest` to the messages that exist now (`Trigger.AvailableNow`).

        Raises:
            RequestTimeoutError: the master gave no partition within `assignmentTimeout`.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        self._assigned.wait()
        bounds = fetch_bounds(self._client, self._options, self._assigned.partitions())
        self._target = {tp: found.last for tp, found in bounds.items()}

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[TubeMQRange]:
        """Return the tasks of one trigger; always the same for the same `end`.

        Raises:
            DataLossError: a partition has vanished, and `failOnDataLoss` is true.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        trigger = _decode(end)
        # Spark commits the start of a new trigger once its checkpoint has the end, and before it asks for the tasks
        # (4.x, `MicroBatchExecution`). With asynchronous progress tracking it may ask earlier, so a restarted query may
        # begin at an earlier trigger: a group that was ahead of it would leave out rows.
        is_stored = self.newest is None or start == self._committed
        self._assigned.planned({tp: trigger.positions[tp] for tp in trigger.begins} if is_stored else {})
        if start == end:
            # Spark asks after a restart, and reads nothing (`setLatestSeenOffset`).
            self._repeated = trigger
            return []
        # The end itself has this trigger's start, which may differ from the previous end.
        partitions = self._assigned.located(trigger.begins.keys())
        is_all = self._options.assignment is not Assignment.SERVER
        owners = owners_of_stores(partitions) if is_all else frozenset()
        spans = {}
        for tp in sorted(trigger.begins):
            if tp in partitions:
                spans[tp] = trigger.begins[tp], trigger.positions[tp]
            else:
                self._report(f"{tp}: no longer exists, so its unread messages are lost")
        return ranges_of(self._client, self._options, partitions, spans, owners=owners)

    def commit(self, end: Mapping[str, object]) -> None:
        """Commit `end`: move the group's position on the brokers after the query, for monitoring.

        If that fails, the next trigger's commit replaces it. Spark commits a trigger after it has the end of the next
        one (4.x, `MicroBatchExecution`), which is earlier if a broker has lost messages.
        """
        positions = _decode(end).positions
        self._committed = end
        try:
            # All positions: with asynchronous progress tracking Spark does not commit every trigger.
            self._assigned.commit({tp: min(at, self._ends.get(tp, at)) for tp, at in positions.items()})
        except MQSourceError as error:
            logger.warning("tubemq: the positions of group %s stay behind: %s", self._options.group_name, error)

    def _without_vanished(self, known: Positions, partitions: Partitions) -> Positions:
        if self._options.assignment is Assignment.SERVER:
            # Partitions of other members may come back.
            return known
        vanished = sorted(str(tp) for tp in known if tp not in partitions)
        if vanished:
            self._report(f"{', '.join(vanished)}: no longer exists, so its unread messages are lost")
        return {tp: at for tp, at in known.items() if tp in partitions}

    def _checked(
        self, begins: Positions, partitions: Partitions, bounds: Mapping[TopicPartition, Bounds]
    ) -> dict[TopicPartition, int]:
        """Return `begins` within the brokers' bounds, after reporting data loss."""
        checked = dict(begins)
        # A group's position may be in data that a broker has not flushed yet, but that another member has read.
        ahead = {tp: partitions[tp] for tp, begin in begins.items() if begin > bounds[tp].last}
        all_there_is = fetch_bounds(self._client, self._options, ahead, priority=WITH_MEMORY) if ahead else {}
        for tp, begin in begins.items():
            last = max(all_there_is[tp].last, bounds[tp].last) if tp in ahead else bounds[tp].last
            if begin < bounds[tp].first:
                self._report(f"{tp}: messages from {begin} to {bounds[tp].first} are gone")
                checked[tp] = bounds[tp].first
            elif begin > last:
                self._report(
                    f"{tp}: the broker has messages up to {last} only, but had them up to {begin} before: a killed "
                    f"broker loses the messages in its memory, and reuses their offsets"
                )
                checked[tp] = last
        self._assigned.go_back({tp: at for tp, at in checked.items() if at < begins[tp]})
        return checked

    def _is_delayed(self, begins: Positions, ends: Positions) -> bool:
        """Return whether fewer messages wait than the minimum of a trigger; those of a store are counted once."""
        if not self._pace.counts:
            return False
        waiting: dict[tuple[int, str, int], int] = {}
        for tp, end in ends.items():
            store = tp.broker_id, tp.topic, tp.store
            waiting[store] = max(waiting.get(store, 0), (end - begins[tp]) // INDEX_BYTES)
        return self._pace.delays(sum(waiting.values()))

    def _limited(self, begins: Positions, ends: Positions, rows: int) -> dict[TopicPartition, int]:
        backlogs = {tp: (end - begins[tp]) // INDEX_BYTES for tp, end in ends.items() if end > begins[tp]}
        shares = share_out(in_turn(backlogs, self._served), rows)
        self._served = served_last(shares, self._served)
        return {tp: begins[tp] + INDEX_BYTES * shares.get(tp, 0) for tp in ends}

    def _report(self, what: str) -> None:
        self._options.report_loss(f"tubemq: {what}; set failOnDataLoss=false to continue with the remaining messages")


class _AllPartitions:
    """All partitions, regardless of other members of the group (V2); with the methods of `Membership`."""

    def __init__(self, client: TubeMQClient, options: TubeMQOptions) -> None:
        self._client = client
        self._options = options
        self._member: ClientBalancedMember | None = None
        # The bounds of what existed when the query started; None if it waited for no topic.
        self._early: dict[TopicPartition, Bounds] | None = None
        # The positions that this query has given the group.
        self._stored: dict[TopicPartition, int] = {}

    def initial(self) -> Positions:
        self.wait()
        partitions = self.partitions()
        wanted = self._options.starting_offsets or OffsetOption(everywhere=LATEST)
        check_named(self._options, partitions)
        bounds = fetch_bounds(self._client, self._options, partitions)
        early = bounds if self._early is None else self._early
        starts = {}
        for tp in partitions:
            # What did not exist when the query started comes after any latest message.
            is_late = tp not in early and wanted.at(tp) == LATEST
            at = OffsetOption(everywhere=EARLIEST) if is_late else wanted
            starts[tp] = resolve_offset(at, tp, early.get(tp, bounds[tp]), self._options)
        return starts

    def wait(self) -> None:
        """Wait for missing topics, for `waitForTopic` at most."""
        options = self._options
        if options.wait_for_topic_ms is None or self._early is not None:
            return
        try:
            self._present()
        except TopicNotFoundError:
            self._early = {}
            for topic in options.topic_names:  # none with topicsPattern
                with suppress(TopicNotFoundError):
                    meta = self._client.fetch_topics(
                        [topic], group=options.group_name, filters=options.filters_of(topic)
                    )
                    self._early |= fetch_bounds(self._client, options, partitions_of(meta.partitions()))
            # Masters list a topic before its brokers know it.
            until_found(lambda: fetch_bounds(self._client, options, self._present()), options.wait_for_topic_ms)

    def _present(self) -> Partitions:
        partitions = self.partitions()
        if not partitions:
            raise TopicNotFoundError(f"tubemq: no topic matches topicsPattern {self._options.topics_pattern}")
        return partitions

    def partitions(self, known: Positions | None = None) -> Partitions:
        wanted = frozenset(known or ())
        return _listed(lambda: self._partitions(wanted), wanted, self._options)

    def _partitions(self, known: Collection[TopicPartition]) -> Partitions:
        if self._member is None:
            self._client.wait_until_settled()
        options = self._client.matched({tp.topic for tp in known})
        if self._member is not None and (self._member.error is not None or self._member.topics != options.topic_names):
            self._member.close()
            self._member = None
        if not options.topic_names:
            return {}
        if self._member is None:
            filters = {topic: options.filters_of(topic) for topic in options.topic_names}
            self._member = self._client.enter(
                ClientBalancedMember(self._client.masters, options.group_name, options.topic_names, filters)
            )
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        return partitions_of(retrying(self._member.fetch_topics, deadline=deadline).partitions())

    def located(self, wanted: Collection[TopicPartition]) -> Partitions:
        return self.partitions(dict.fromkeys(wanted, 0))

    def begins(self, known: Positions, bounds: Mapping[TopicPartition, Bounds]) -> Positions:
        # A partition that was added meanwhile is read from its first message on.
        return {tp: known.get(tp, found.first) for tp, found in bounds.items()}

    def go_back(self, ends: Positions) -> None:
        pass

    def plan(self, ends: Positions) -> Positions:
        return ends

    def planned(self, ends: Positions) -> None:
        pass

    def commit(self, ends: Positions) -> None:
        """Register at each new position as a member of the group would, and unregister at once."""
        ends = {tp: end for tp, end in ends.items() if self._stored.get(tp) != end}
        partitions = self.partitions()
        group = self._options.group_name
        consumers = {
            tp: self._client.consumer(partitions[tp], client_id=unique_client_id(group), group=group)
            for tp in ends
            if tp in partitions
        }
        # Not as a reader of flushed data: the broker must not change the position, which is correct.
        answers = {
            tp: (c.register(curr_offset=ends[tp], qry_priority_id=WITH_MEMORY), c.unregister())
            for tp, c in consumers.items()
        }
        for tp, (registered, left) in answers.items():
            self._client.wait(registered, f"commit of {tp} at {ends[tp]}")
            self._client.wait(left, f"unregister of {tp}")
            self._stored[tp] = ends[tp]

    def close(self) -> None:
        if self._member is not None:
            self._member.close()


@dataclass(slots=True)
class _Registration:
    """A partition that the master has assigned to this query, and that is registered at its broker in the group's name.

    Attributes:
        position: the group's position: that of the query in Spark's checkpoint.
        stored: the group's position at the broker, as last known.
    """

    partition: BrokerPartition
    consumer: PartitionConsumer
    position: int
    stored: int


class Membership:
    """The query as a member of a group whose partitions the master assigns (V1).

    Events arrive in the member's own thread, at any time. A partition is released at once on request, with one
    exception: between `plan` and `planned` it is unknown whether Spark has written the trigger's end. Released at
    either end of the trigger it could be read twice or never, so after `PLANNED_WITHIN_SECONDS` it is kept: this is
    reported to the master, which continues with the group and requests it again in its next round.

    Args:
        client: sends the requests; its owner closes it.
        options: the query's options.
    """

    def __init__(self, client: TubeMQClient, options: TubeMQOptions) -> None:
        self._client = client
        self._options = options
        self._group = options.group_name
        self._client_id = unique_client_id(self._group)
        self._changed = threading.Condition()
        self._held: dict[TopicPartition, _Registration] = {}
        self._given_up: dict[TopicPartition, int] = {}
        """The query's position in partitions of other members."""
        self._unstarted: set[TopicPartition] = set()
        """Partitions that could not be taken when the session started."""
        self._former: dict[BrokerPartition, int] = {}
        """The group's positions before the session: a broker that is killed soon after the start returns to them."""
        self._pending: frozenset[TopicPartition] = frozenset()
        self._known: frozenset[TopicPartition] = frozenset()
        self._closing = False
        self._has_waited = False
        self._member: GroupMember | None = None
        self._session: GroupSession | None = None
        wanted = options.starting_offsets
        self._from_first = wanted is not None and wanted.everywhere != LATEST

    def initial(self) -> Positions:
        """Return the start of a query without a checkpoint: no positions, because the group has them."""
        self._joined()
        return {}

    def partitions(self, known: Positions | None = None) -> Partitions:
        """Return the partitions held now; wait for some time if there are none.

        `_AllPartitions` waits for those of `known`, for `operationTimeout`; here, other members may have them.

        Args:
            known: the query's position, if Spark has reported it.
        """
        self._known = self._known.union(known or ())
        member = self._joined(known)
        with self._changed:
            has_some = bool(self._held)
        if not has_some and not self._closing:
            seconds = FIRST_WAIT_SECONDS if self._has_waited else self._options.assignment_timeout_ms / 1000
            self._has_waited = True
            if not member.assigned.wait(seconds):
                logger.warning("tubemq: the master has given no partition to this member of group %s", self._group)
        self._restore_registrations()
        with self._changed:
            return {tp: held.partition for tp, held in self._held.items() if held.consumer.lost is None}

    def located(self, wanted: Collection[TopicPartition]) -> Partitions:
        """Return the locations of partitions that are or were read, except those unlisted for `operationTimeout`.

        Includes partitions that were handed over, or are from an earlier run. Only the broker's address is needed,
        which any client may request without an authorized group.
        """
        with self._changed:
            found = {tp: held.partition for tp, held in self._held.items() if tp in wanted}
        elsewhere = wanted - found.keys()
        if elsewhere:
            found |= _listed(lambda: self._located(elsewhere), elsewhere, self._options)
        return found

    def _located(self, wanted: Collection[TopicPartition]) -> Partitions:
        brokers = self._client.fetch_brokers()
        return {
            tp: BrokerPartition(brokers[tp.broker_id], tp.topic, tp.partition)
            for tp in wanted
            if tp.broker_id in brokers
        }

    def wait(self) -> None:
        """Wait for the first partitions, for `assignmentTimeout` at most."""
        if not self._joined().assigned.wait(self._options.assignment_timeout_ms / 1000):
            raise RequestTimeoutError(
                f"tubemq: the master gave no partition to this member of group {self._group} within assignmentTimeout "
                f"({self._options.assignment_timeout_ms} ms); are there more members than partitions?"
            )

    def begins(self, known: Positions, bounds: Mapping[TopicPartition, Bounds]) -> Positions:
        """Return the start of a trigger: the later of this query's and the group's position, in each partition held."""
        with self._changed:
            return {tp: max(known.get(tp, 0), self._held[tp].position) for tp in bounds if tp in self._held}

    def go_back(self, ends: Positions) -> None:
        """Move the positions of held partitions back to the ends of what brokers have, after a loss.

        Also the group's: a broker keeps a position past its end until a member of the group fetches (2.4.0,
        `DefaultOffsetManager`), and this query does not.
        """
        with self._changed:
            for tp, end in ends.items():
                if tp in self._held:
                    self._register(self._held[tp].consumer, end)
                    self._held[tp].position = self._held[tp].stored = end

    def plan(self, ends: Positions) -> Positions:
        """Keep these partitions until `planned`; return the ends of those that are neither handed over nor lost.

        A broker and the master drop a member from which they hear nothing for 30 s; another one may have it then.
        """
        with self._changed:
            held = {tp for tp, one in self._held.items() if one.consumer.lost is None}
            ends = {tp: end for tp, end in ends.items() if tp in held}
            self._pending = frozenset(ends)
            self._changed.notify_all()
            return ends

    def planned(self, ends: Positions) -> None:
        """Release the partitions of the trigger for a handover, at these ends, which Spark's checkpoint has."""
        with self._changed:
            for tp, end in ends.items():
                if tp in self._held:
                    self._held[tp].position = max(self._held[tp].position, end)
            self._pending = frozenset()
            self._changed.notify_all()

    def commit(self, ends: Positions) -> None:
        """Move the group's positions of held partitions to the ends that Spark has read, unless they are there."""
        with self._changed:
            # Under the lock, so that a partition is not handed over meanwhile and then moved back.
            held = {tp: one for tp, one in self._held.items() if one.consumer.lost is None}
            moved = {tp: one for tp, one in held.items() if ends.get(tp, 0) > one.stored}
            for tp, one in moved.items():
                one.position = max(one.position, ends[tp])
            asked = {tp: self._request(one.consumer, ends[tp]) for tp, one in moved.items()}
            for tp, answer in asked.items():
                self._client.wait(answer, f"commit of {tp} in group {self._group}")
                moved[tp].stored = ends[tp]

    def close(self) -> None:
        """Leave all partitions at the query's position, and the group."""
        with self._changed:
            self._closing = True
            self._pending = frozenset()
            self._changed.notify_all()
            left = list(self._held)
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        for tp in left:
            try:
                self._leave(tp, deadline)
            except MQSourceError as error:
                logger.warning("tubemq: the position of %s in group %s stays behind: %s", tp, self._group, error)
        if self._member is not None:
            self._member.close()

    def _joined(self, known: Positions | None = None) -> GroupMember:
        error = None if self._member is None else self._member.error
        if error is not None:
            self._member = None
            raise error.within(f"tubemq: group {self._group}")
        if self._member is None:
            self._session = self._start_session(known or {})
            member = GroupMember(
                self._client.masters,
                self._group,
                self._options.topic_names,
                {topic: self._options.filters_of(topic) for topic in self._options.topic_names},
                self._connect,
                self._disconnect,
                self._session,
            )
            self._member = self._client.enter(member)
        return self._member

    def _start_session(self, known: Positions) -> GroupSession | None:
        """Return the session in which the group starts at `startingOffsets`, or at the query's positions; or None.

        Raises:
            DataLossError: `startingOffsets` names an offset that does not exist, and `failOnDataLoss` is true.
        """
        options, wanted = self._options, self._options.starting_offsets
        if wanted is None or wanted.everywhere is not None:
            return None
        offsets = dict(known)
        if not offsets:
            places = dict(self._located([tp for tp in wanted.partitions if tp.topic in options.topic_names]))
            # Only a producer learns of a topic's partitions before the group has any.
            if topics := [topic for topic in options.topic_names if topic in wanted.topics]:
                producer = self._client.enter(ProducerMember(self._client.masters, topics))
                places |= partitions_of(producer.meta.partitions())
                producer.close()
            check_named(options, places, needs_all=False)
            bounds = fetch_bounds(self._client, options, places, priority=WITH_MEMORY)
            offsets = {tp: resolve_offset(wanted, tp, bounds[tp], options) for tp in sorted(places)}
        # A unique key: a master that still knows an earlier run's member would not start at these offsets.
        key = options.session_key or self._client_id
        return GroupSession(key, options.session_members, {str(tp): at for tp, at in sorted(offsets.items())})

    def _connect(self, partitions: Sequence[BrokerPartition]) -> Collection[BrokerPartition]:
        """Take partitions, in the member's thread; return those taken."""
        # One deadline for all: the whole group waits for the answer.
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        taken = []
        for tp, partition in partitions_of(partitions).items():
            try:
                # The previous member may still have it.
                held = retrying(lambda tp=tp, partition=partition: self._open(tp, partition), deadline=deadline)  # type: ignore[misc]
            except MQSourceError as error:
                logger.warning("tubemq: group %s: %s cannot be taken: %s", self._group, tp, error)
                if self._session is not None and self._session.is_starting:
                    self._unstarted.add(tp)
                continue
            self._unstarted.discard(tp)
            with self._changed:
                # Assigned again, by a master that has lost the group or after another member had it: the query is where
                # it was, if not further.
                held.position = max(held.position, self._given_up.pop(tp, 0))
                if tp in self._held:
                    held.position = max(held.position, self._held[tp].position)
                self._held[tp] = held
            taken.append(partition)
            logger.info("tubemq: group %s: %s is assigned to this query, from %d", self._group, tp, held.position)
        return taken

    def _disconnect(self, partitions: Sequence[BrokerPartition]) -> Collection[BrokerPartition]:
        """Release partitions, in the member's thread; return those released."""
        wanted = partitions_of(partitions)
        with self._changed:
            self._changed.wait_for(
                lambda: self._closing or not wanted.keys() & self._pending, timeout=PLANNED_WITHIN_SECONDS
            )
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        left = []
        for tp, partition in wanted.items():
            try:
                self._leave(tp, deadline)
            except MQSourceError as error:
                logger.warning(
                    "tubemq: group %s: %s is kept until the master requests it again: %s", self._group, tp, error
                )
            else:
                left.append(partition)
        return left

    def _leave(self, tp: TopicPartition, deadline: Deadline) -> None:
        """Move the group's position to the query's, and unregister the partition."""
        with self._changed:
            if tp in self._pending and not self._closing:
                raise ServiceNotReadyError(
                    f"no trigger has shown within {PLANNED_WITHIN_SECONDS:.0f} s whether it reads the partition"
                )
            held = self._held.pop(tp, None)
        if held is None:
            return

        def leave() -> None:
            consumer, held.position = self._take_back(held)
            self._client.wait(consumer.unregister(), f"unregister of {tp}")

        try:
            retrying(leave, deadline=deadline)
        except MQSourceError:
            # The failure is reported to the master, for which the partition is still ours.
            with self._changed:
                self._held.setdefault(tp, held)
            raise
        logger.info("tubemq: group %s: %s is left at %d", self._group, tp, held.position)

    def _open(self, tp: TopicPartition, partition: BrokerPartition) -> _Registration:
        # After an earlier read, the query never continues at the end of the topic, whatever the broker has lost.
        from_first = self._from_first or tp in self._known
        session = self._session
        start = None if session is None else session.offsets.get(str(tp))
        consumer = self._client.consumer(partition, client_id=self._client_id, group=self._group)
        position = self._register(consumer, None, from_first=from_first)
        if start is not None and session is not None:
            is_starting = session.is_starting or tp in self._unstarted
            if is_starting:
                self._former.setdefault(partition, position)
            # A master that took over meanwhile, or assigned it later, does not start the group there.
            if is_starting or (session.is_counted and position < start):
                position = self._register(consumer, start)
        return _Registration(partition, consumer, position, position)

    def _register(self, consumer: PartitionConsumer, position: int | None, *, from_first: bool = True) -> int:
        """Register a partition in the group's name, at a position or at the group's; return the position."""
        answer = self._request(consumer, position, from_first=from_first)
        return self._client.wait(answer, f"register of {consumer.partition} in group {self._group}").curr_offset

    def _request(
        self, consumer: PartitionConsumer, position: int | None, *, from_first: bool = True
    ) -> Future[RegisterPartitionResponse]:
        # Including memory, whatever this query reads: a member that reads memory may have had the partition before.
        return consumer.register(
            curr_offset=position,
            read_status=ReadStatus.STORED_OR_MIN if from_first else ReadStatus.STORED_OR_MAX,
            filters=self._options.filters_of(consumer.partition.topic),
            qry_priority_id=WITH_MEMORY,
        )

    def _take_back(self, held: _Registration) -> tuple[PartitionConsumer, int]:
        """Register a partition again, at the later of the query's and the group's position; return both.

        After 30 s without a heartbeat another member may have had it: at the query's position, the group would read
        that member's messages again. After a broker's crash the group's position may be an old one; one from before the
        session may even be a later one.
        """
        consumer = self._client.consumer(held.partition, client_id=self._client_id, group=self._group)
        position = self._register(consumer, None)
        if position < held.position or position == self._former.get(held.partition):
            position = self._register(consumer, held.position)
        held.stored = position
        return consumer, position

    def _take_back_if_free(self, held: _Registration) -> tuple[PartitionConsumer, int] | None:
        try:
            return self._take_back(held)
        except BrokerError as error:
            if error.code != PARTITION_OCCUPIED:
                raise
            logger.warning(
                "tubemq: group %s: %s is no longer assigned to this query: %s", self._group, held.partition, error
            )
            return None

    def _give_up(self, tp: TopicPartition, held: _Registration) -> None:
        with self._changed:
            if self._held.get(tp) is not held or tp in self._pending:
                return
            del self._held[tp]
            self._given_up[tp] = held.position
        if self._member is not None:
            self._member.give_up(held.partition)

    def _restore_registrations(self) -> None:
        """Register again after a lost connection or a broker's restart, which the master does not notice.

        If another member has the partition by then, possibly because the master has lost the group, that member keeps
        it: this is reported to the master, which assigns the partitions again.
        """
        with self._changed:
            lost = [(tp, held) for tp, held in self._held.items() if held.consumer.lost is not None]
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        for tp, held in lost:
            try:
                taken = retrying(lambda held=held: self._take_back_if_free(held), deadline=deadline)  # type: ignore[misc]
            except BrokerError as error:
                logger.warning("tubemq: group %s: %s cannot be held: %s", self._group, tp, error)
                continue
            if taken is None:
                self._give_up(tp, held)
                continue
            consumer, position = taken
            with self._changed:
                is_held = self._held.get(tp) is held
                if is_held:
                    held.consumer, held.position = consumer, max(held.position, position)
            if not is_held:
                # It was released meanwhile: kept here, no other member could have it.
                self._client.wait(consumer.unregister(), f"unregister of {tp}")


class _UnlistedError(ServiceNotReadyError):
    """A master does not list partitions that were read."""


def _listed(look: Callable[[], Partitions], wanted: Collection[TopicPartition], options: TubeMQOptions) -> Partitions:
    """Return what a master lists: all of `wanted`, or what it lists after `operationTimeout`.

    A master that takes over serves while it reads its configuration, topic by topic (2.4.0). Its answer does not tell
    this from a deletion, so only time does.

    Raises:
        TopicNotFoundError: a topic has been on no broker for that time; at once if none of its partitions was read.
        MQSourceError: any other error of `look`.
    """
    found: Partitions = {}

    def ask() -> Partitions:
        nonlocal found
        try:
            found = look()
        except TopicNotFoundError as error:
            error.retryable = error.retryable or bool(wanted)
            raise
        if missing := sorted(tp for tp in wanted if tp not in found):
            raise _UnlistedError(f"tubemq: the master does not list {', '.join(map(str, missing))}")
        return found

    try:
        return retrying(ask, deadline=Deadline.after_ms(options.operation_timeout_ms))
    except _UnlistedError:
        return found


def _decode(document: Mapping[str, object]) -> Trigger:
    try:
        return decode_offsets(document)
    except ValueError as error:
        raise OptionError(f"tubemq: the checkpoint cannot be used: {error}") from error
