"""The driver's part of a streaming query: where its triggers begin and end, and how its messages are retained.

One `PulsarStream` lives as long as the query. It keeps a consumer without permits on every topic-partition, so that a
trigger needs one round trip and no new connection. Positions are stored only in Spark's checkpoint; after a restart,
the rest of the state follows from them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TypeVar

from spark_mq_source.core.errors import MQSourceError, OptionError, ResourceBusyError, TopicNotFoundError
from spark_mq_source.net.pace import TriggerPace
from spark_mq_source.net.retry import Deadline, retrying, until_found
from spark_mq_source.net.stops import STOPPED, Finish, all_read
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.connections import windows
from spark_mq_source.pulsar.client.consumer import KINDS, Bounds, Consumer
from spark_mq_source.pulsar.offsets import (
    EARLIEST,
    LATEST,
    Position,
    TopicPartition,
    decode_begins,
    decode_offsets,
    encode_offsets,
)
from spark_mq_source.pulsar.options import PulsarOptions, SubscriptionType
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.read.ends import TERMINATED, EndWatch
from spark_mq_source.pulsar.read.limits import Limiter, ProgressGuard
from spark_mq_source.pulsar.read.planner import (
    TaskSplitter,
    check_named,
    check_not_past_the_end,
    look_again,
    no_topic_matches,
    resolve_positions,
    topics_of,
)
from spark_mq_source.pulsar.read.reader import PulsarRange, past_the_end
from spark_mq_source.pulsar.read.stops import Stops

Offsets = Mapping[TopicPartition, Position]
"""The position of the last message read in each topic-partition."""

ResultT = TypeVar("ResultT")

TURN_MS = 90_000
"""Minimum wait for the active role: a broker keeps the consumer of a dead connection for 60 s (4.0.8)."""

logger = logging.getLogger(__name__)


class PulsarStream:
    """Planner of the triggers of one query.

    Not for use by several threads at once. Each request fails with an MQSourceError if the cluster cannot be reached in
    time, or refuses it; after an error, the same call can be repeated.

    Offsets are passed as the JSON documents of Spark's checkpoint, see `encode_offsets`.

    Attributes:
        newest: the last messages at the latest call of `latest`, regardless of limits; None before.
    """

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options
        self.newest: dict[str, object] | None = None
        self._client = PulsarClient(options)
        self._limiter = Limiter(self._client, options)
        self._splitter = TaskSplitter(self._client, options, self._limiter)
        self._guard = ProgressGuard(self._client, options)
        # The subscription is exclusive: after an error, only closing the connection surely closes all its consumers.
        self._pinning = PulsarClient(options)
        self._watchers: dict[TopicPartition, Consumer] = {}
        self._pins: dict[TopicPartition, Consumer] = {}
        self._durable = self._pinning.subscription(
            options.subscription,
            kind=KINDS[options.subscription_kind],
            initial=commands.InitialPosition.Earliest,
            priority_level=options.priority_level,
            properties=dict(options.subscription_properties),
        )
        self._ends = EndWatch(self._client)
        self._stops = Stops(self._client, options)
        self._finish = Finish()
        # The ends of topic-partitions whose last message a watcher cannot report.
        self._terminated: dict[TopicPartition, Position] = {}
        self._target: Offsets | None = None
        self._pace = TriggerPace(options.min_rows_per_trigger, options.max_trigger_delay_ms)
        # New starts of ranges whose start is in a deleted ledger: it was read, or its loss was reported.
        self._successors: dict[tuple[TopicPartition, Position], Position] = {}
        # The start of the current trigger in topic-partitions of which nothing was read yet.
        self._firsts: dict[TopicPartition, Position] = {}
        # The start of the first trigger, if Spark repeats that trigger.
        self._repeated: Offsets | None = None
        # The start of a new query, and whether its durable subscription has been moved there.
        self._initial: dict[str, object] | None = None
        self._is_placed = False
        # The offset that Spark committed last, and whether its checkpoint surely has the last planned trigger.
        self._committed: Mapping[str, object] | None = None
        self._is_stored = True
        if options.subscription is None:
            logger.warning(
                "pulsar-native: nothing keeps this query's data on the broker: with Pulsar's default retention, "
                "messages that no subscription waits for are deleted, read or not; set subscription=NAME to keep them "
                "until this query has read them, or a retention on the namespace"
            )

    def close(self) -> None:
        """Close the connections; a durable subscription is kept."""
        self._client.close()
        self._limiter.close()
        self._pinning.close()

    def initial(self) -> dict[str, object]:
        """Return the start of a query without a checkpoint.

        Raises:
            OptionError: `startingOffsets` or `startingTimestamp` names unread topic-partitions, or leaves one out; or a
                query would end before its start.
            DataLossError: `startingOffsets` names a position that was deleted, or is past the end, and `failOnDataLoss`
                is true.
        """
        if self._repeated is not None:
            return encode_offsets(self._repeated, self._repeated)
        early = self._confirmed(self._present()[0])
        partitions = until_found(self._all_present, self._options.wait_for_topic_ms)
        check_named(self._options, partitions)
        bounds = early if set(partitions) == early.keys() else self._confirmed(partitions) | early
        starts = resolve_positions(
            self._client, "starting", self._options.stream_starting_at, [tp for tp in partitions if tp in early]
        )
        # What did not exist when the query started comes after any latest message.
        late = [tp for tp in partitions if tp not in early]
        starts |= resolve_positions(self._client, "starting", self._starting_late, late)
        if self._target is not None and self._options.wait_for_topic_ms is not None:
            self._target = {**{tp: bounds[tp].last for tp in late}, **self._target}
        check_not_past_the_end(self._client, self._options, starts, bounds)
        initial = {}
        for tp, start in starts.items():
            first, last = look_again(self._client, tp, start, bounds[tp].first), bounds[tp].last
            if EARLIEST < last <= first:
                # TTL may have moved the watcher to the end.
                first = self._client.fetch_bounds([tp])[tp].first
            if EARLIEST < start < first:
                self._report_deleted(f"{tp}: the broker has deleted the messages from {start} to {first}")
            # In an empty topic-partition all later messages are wanted. The current ledger is no start: while it is
            # empty, an unload replaces it, which would look like loss (seen on 4.0.8).
            initial[tp] = min(max(start, first), last) if last > first else EARLIEST
        self._stops.check_begins(initial, {tp: bounds[tp].first for tp in initial})
        # A durable subscription is moved there with the first planned trigger, not before: a query that was interrupted
        # in its first batch calls this too, and that batch may begin earlier.
        # If nothing is new, it is the end of the first trigger, too: Spark runs an empty first batch, and gets another
        # start for it if it has to repeat it.
        self._initial = encode_offsets(initial, initial)
        self._committed = self._initial
        return self._initial

    def latest(self, start: Mapping[str, object], *, limited: bool = True) -> dict[str, object]:
        """Return the end of the next trigger. The first one of a new query moves the durable subscription to its start.

        Args:
            start: start of the trigger.
            limited: whether the limits of the options apply.

        Raises:
            DataLossError: a topic-partition has vanished, lost unread messages, or ends before the last position read,
                and `failOnDataLoss` is true.
            RequestTimeoutError: the limits allow nothing, and no message arrives although the broker has more.
            EndOfStreamError: every topic-partition is read to its `endingOffsets` or `endingTimestamp`, or with
                `endAtTermination` terminated and read.
            OptionError: `endingOffsets` is before what was read.
        """
        given = offsets_from_json(start)
        self._limiter.forget_before(given)
        self._successors = {key: first for key, first in self._successors.items() if given.get(key[0]) == key[1]}
        bounds = self._watch(self._partitions(given))
        begin = self._checked(given, bounds)
        if self._options.subscription is not None:
            if start == self._initial and not self._is_placed:
                self._place_pins(begin)
                self._is_placed = True
            self._with_pins(lambda: self._open_pins(bounds))
        # TTL may have moved a watcher to the end, so `first` does not show whether there are messages to read.
        ends = {
            tp: max(begin.get(tp, EARLIEST), b.last) for tp, b in bounds.items() if tp in begin or b.last > EARLIEST
        }
        newest, self.newest = ends, encode_offsets(ends)
        if self._target is not None:
            # Messages after the query's start are for the next one, also in new partitions.
            target = self._target
            ends = {
                tp: max(begin.get(tp, EARLIEST), min(end, target.get(tp, EARLIEST)))
                for tp, end in ends.items()
                if tp in begin or target.get(tp, EARLIEST) > EARLIEST
            }
        stopped = self._stops.apply(begin, {tp: ends.get(tp, EARLIEST) for tp in bounds})
        ends = {tp: stopped[tp] for tp in ends}
        is_last = self._stops.are_reached(stopped)
        self._firsts = self._before_first([tp for tp, end in ends.items() if begin.get(tp, EARLIEST) == EARLIEST < end])
        if limited:
            starts = {tp: self._firsts.get(tp, begin.get(tp, EARLIEST)) for tp in ends}
            if begin == given and not is_last and self._is_delayed(starts, ends):
                return dict(start)
            ends = self._guard.check(starts, ends, self._limiter.limit(starts, ends))
        # With a position instead of EARLIEST, the reader notices if a ledger was deleted since, also in a repeated
        # trigger. Compaction deletes ledgers, too.
        firsts = {} if self._options.read_compacted else self._firsts
        offered = encode_offsets(ends, {**given, **firsts} if firsts or start == self._initial else None)
        if given == ends:
            offered = dict(start)
        if self._target is None:
            stopped = {tp: ends.get(tp, EARLIEST) for tp in bounds}
            self._end_if_all_is_read(offered, stopped, reads_newest=ends == newest)
        return offered

    def _end_if_all_is_read(self, offered: dict[str, object], ends: Offsets, *, reads_newest: bool) -> None:
        is_stopped, ends_with_topics = self._stops.are_reached(ends), self._options.end_at_termination
        repeats = self._finish.count(offered, is_all=is_stopped or (ends_with_topics and reads_newest))
        if not repeats or not (is_stopped or self._ends.are_ended(ends)) or repeats < Finish.ENOUGH:
            return
        # Spark commits a trigger when the next one begins, and there is none.
        if self._is_stored:
            self.commit(offered)
        raise all_read("pulsar-native", len(ends), STOPPED if is_stopped else TERMINATED)

    def _is_delayed(self, starts: Offsets, ends: Offsets) -> bool:
        if not self._pace.counts or self._target is not None:
            return False
        return self._pace.delays(self._limiter.count_rows(starts, ends))

    def cap_at_current_end(self) -> None:
        """Limit `latest` to the messages that exist now (`Trigger.AvailableNow`)."""
        self._target = {tp: bounds.last for tp, bounds in self._confirmed(self._present()[0]).items()}

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[PulsarRange]:
        """Return the tasks of one trigger; always the same for the same positions.

        Raises:
            DataLossError: `start` is past `end`, and `failOnDataLoss` is true.
            UnsupportedFeatureError: `readOffloaded=always`, and a ledger of a range is not offloaded.
            MQSourceError: the cluster cannot be reached in time (only if `minPartitions` has something to split, or
                ledgers may be offloaded).
        """
        if start == end:
            # Spark asks after a restart, and reads nothing (`setLatestSeenOffset`).
            self._repeated = decode_begins(end)
            return []
        # With asynchronous progress tracking Spark does not store each trigger, see `TubeMQStream.ranges`.
        self._is_stored = self.newest is None or start == self._committed
        # A first trigger that is repeated gets a new start from Spark, so its end has the start too.
        finish, begin = offsets_from_json(end), decode_begins(end)
        if begin is None:
            begin = offsets_from_json(start)
        starts = {tp: begin.get(tp, EARLIEST) for tp in finish}
        for tp, end_of_tp in finish.items():
            if starts[tp] > end_of_tp:
                # The topic was made anew, and `failOnDataLoss` was false.
                self._report(past_the_end(tp, starts[tp], end_of_tp))
                starts[tp] = EARLIEST
        # A trigger ends with an entry, a query begins before one.
        begins = {tp: at if at.entry < 0 or at == self._firsts.get(tp) else None for tp, at in starts.items()}
        # The reader would report a deleted start as loss; here it is known to be none, or was reported already.
        starts = {tp: min(self._successors.get((tp, at), at), finish[tp]) for tp, at in starts.items()}
        ranges = [PulsarRange(tp, starts[tp], finish[tp], query_start=begins[tp]) for tp in sorted(finish)]
        return self._splitter.split([r for r in ranges if r.start < r.end])

    def commit(self, end: Mapping[str, object]) -> None:
        """Release the messages before `end`, which Spark has committed, from the durable subscription, if there is one.

        The entry of `end` itself is kept: without it the next trigger could not see whether its ledger had more, once
        the ledger is deleted. So the backlog of a query that has read everything is one entry per topic-partition.
        """
        self._committed = end
        if self._options.subscription is not None:
            done = offsets_from_json(end)
            try:
                self._move_pins(done)
            except TopicNotFoundError:
                # What has vanished has no subscription either; the next trigger reports it.
                there = set(self._partitions(done))
                self._move_pins({tp: position for tp, position in done.items() if tp in there})

    def _confirmed(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return self._client.confirmed(lambda: self._watch(partitions))

    def _watch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """Return the first and last position of each partition now: one round trip if all consumers are still open."""

        def ask() -> dict[TopicPartition, Bounds]:
            for gone in self._watchers.keys() - set(partitions):
                self._watchers.pop(gone).leave()
                self._terminated.pop(gone, None)
            missing = [tp for tp in partitions if tp not in self._watchers]
            opened = self._client.open_consumers(dict.fromkeys(missing, EARLIEST))
            self._watchers |= opened
            empty = {tp: one.opened.first for tp, one in opened.items() if one.opened.last == EARLIEST}
            self._terminated = {tp: end for tp, end in self._terminated.items() if tp not in opened}
            self._terminated |= self._client.fetch_terminated_ends(empty)
            asked: dict[TopicPartition, Future[Bounds]] = {}

            def ask_each() -> Iterator[tuple[TopicPartition, Future[Bounds]]]:
                for tp in partitions:
                    asked[tp] = self._watchers[tp].request_bounds()
                    yield tp, asked[tp]

            try:
                bounds = self._client.wait_for(ask_each(), "the last message")
            except MQSourceError:
                # Unloaded, or the connection is lost: consumers without an answer are reopened.
                for tp, answer in asked.items():
                    if not answer.done() or answer.exception() is not None:
                        self._watchers.pop(tp).leave()
                raise
            ends = self._terminated.items()
            bounds |= {tp: Bounds(bounds[tp].first, end) for tp, end in ends if bounds[tp].last == EARLIEST}
            return self._client.with_compacted(bounds)

        return retrying(ask, deadline=Deadline.after_ms(self._options.operation_timeout_ms))

    def _open_pins(self, partitions: Iterable[TopicPartition]) -> None:
        """Open the durable subscription if it is not open; a new one begins at the first message."""
        if any(pin.is_active is False for pin in self._pins.values()):
            # Another consumer of a Failover subscription is active now; this one waits for its turn again.
            self._drop_pins()
        missing = [tp for tp in partitions if tp not in self._pins]
        if missing:
            starts = dict.fromkeys(missing, EARLIEST)
            try:
                opened = self._pinning.open_consumers(starts, durable=self._durable)
                self._pins |= opened
                self._wait_for_turn(opened)
            except MQSourceError:
                self._drop_pins()
                raise

    def _wait_for_turn(self, opened: Mapping[TopicPartition, Consumer]) -> None:
        """Wait until the broker has made these consumers active, with Failover.

        Raises:
            ResourceBusyError: another consumer stays active.
            MQSourceError: a consumer has ended meanwhile.
        """
        options = self._options
        if options.subscription_kind is not SubscriptionType.FAILOVER:
            return
        timeout_ms = max(TURN_MS, options.operation_timeout_ms)
        deadline = Deadline.after_ms(timeout_ms)
        try:
            for one in opened.values():
                one.chosen.result(deadline.remaining_seconds())
        except FutureTimeoutError:
            waiting = ", ".join(str(tp) for tp, one in opened.items() if not one.is_active)
            busy = ResourceBusyError(
                f"pulsar-native: {waiting}: another consumer of subscription {options.subscription} has been active "
                f"for more than {timeout_ms // 1000} s: start this query again when the other one has ended; if each "
                f"of two is active in some of the partitions, give the standby a higher priorityLevel"
            )
            busy.retryable = False  # it has already waited
            raise busy from None

    def _place_pins(self, starts: Offsets) -> None:
        """Move the durable subscription of a new query to the entries of its start.

        SEEK moves it backwards too, and is answered when the new position is on disk.

        If nothing could be delivered, the query begins at the next message. An older subscription may be after that:
        for example, after the entries of an open transaction.
        """
        begins = self._client.fetch_stored({tp: at for tp, at in starts.items() if at == EARLIEST})
        firsts = {tp: first for tp, first in begins.items() if first != EARLIEST}
        targets = _pin_positions(starts) | firsts

        def place() -> None:
            self._open_pins(starts)
            cursors = self._request_pins(targets)
            elsewhere = [tp for tp, at in targets.items() if (cursors[tp] > at if tp in firsts else cursors[tp] != at)]
            # The broker closes a consumer at SEEK; its subscription stays.
            seeks = ((tp, self._pins.pop(tp).request_seek(targets[tp].next_entry)) for tp in elsewhere)
            self._pinning.wait_for(seeks, "SEEK")
            self._open_pins(elsewhere)
            for tp, cursor in self._request_pins(elsewhere).items():
                target = targets[tp]
                # A cursor before a ledger's first entry is reported after the previous ledger's last (seen on 4.0.8).
                is_there = cursor == target or (target.entry < 0 and cursor < target)
                self._check_place(tp, cursor, target, is_there=is_there)

        self._with_pins(place)

    def _move_pins(self, positions: Offsets) -> None:
        """Release the messages before the entries of `positions`, and check the cursor afterwards.

        An acknowledgement is not on disk at once: after a crash of the broker the cursor can be back at its old
        position, and the next trigger's acknowledgement moves it again.
        """
        targets = _pin_positions(positions)

        def move() -> None:
            self._open_pins(positions)
            behind = [tp for tp, cursor in self._request_pins(targets).items() if cursor < targets[tp]]
            for window in windows(behind):
                acks = {tp: self._pins[tp].request_ack(targets[tp]) for tp in window}
                # An acknowledgement to a consumer that was just unloaded has no answer, but this request has: if it is
                # answered after the acknowledgement, the consumer was open for both.
                self._request_pins(window)
                self._pinning.wait_for(acks.items(), "ACK")
            for tp, cursor in self._request_pins(targets).items():
                self._check_place(tp, cursor, targets[tp], is_there=cursor >= targets[tp])

        self._with_pins(move)

    def _check_place(self, tp: TopicPartition, cursor: Position, target: Position, *, is_there: bool) -> None:
        if not is_there:
            logger.warning("%s: subscription %s stays at %s, not %s", tp, self._options.subscription, cursor, target)

    def _request_pins(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        asked = ((tp, self._pins[tp].request_bounds()) for tp in partitions)
        return {tp: bounds.first for tp, bounds in self._pinning.wait_for(asked, "the cursor").items()}

    def _with_pins(self, ask: Callable[[], ResultT]) -> ResultT:
        """Repeat a request to the durable subscription until it succeeds or `operationTimeout` is over."""

        def once() -> ResultT:
            try:
                return ask()
            except MQSourceError:
                self._drop_pins()
                raise

        return retrying(once, deadline=Deadline.after_ms(self._options.operation_timeout_ms))

    def _drop_pins(self) -> None:
        self._pins.clear()
        self._pinning.close()

    def _before_first(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Position]:
        """Return the position before the first entry of each; the broker's cursor may be in an empty ledger."""
        found = self._client.fetch_first_entries(dict.fromkeys(partitions, EARLIEST))
        return {tp: Position(entry.ledger, entry.entry - 1) for tp, entry in found.items()}

    def _starting_late(self, topic_partition: str) -> Position | int | None:
        start = self._options.stream_starting_at(topic_partition)
        return EARLIEST if start == LATEST else start

    def _all_present(self) -> Sequence[TopicPartition]:
        """Return the topic-partitions of all topics.

        Raises:
            TopicNotFoundError: one is missing, or none matches the pattern although the query is to wait for one.
        """
        found = self._client.fetch_partitions(topics_of(self._client, self._options))
        if not found and self._options.wait_for_topic_ms is not None:
            raise no_topic_matches(self._options)
        return found

    def _present(self) -> tuple[Sequence[TopicPartition], Mapping[str, TopicNotFoundError]]:
        return self._find(topics_of(self._client, self._options))

    def _find(self, names: Sequence[str]) -> tuple[Sequence[TopicPartition], Mapping[str, TopicNotFoundError]]:
        """Return the topic-partitions of those topics that exist, and the errors of the others."""
        try:
            return self._client.fetch_partitions(names), {}
        except TopicNotFoundError as error:
            if len(names) == 1:
                return [], {names[0]: error}
        # All are requested at once, and the first missing one ends that.
        half = len(names) // 2
        (some, lacks), (others, lack_too) = self._find(names[:half]), self._find(names[half:])
        return [*some, *others], {**lacks, **lack_too}

    def _partitions(self, known: Offsets) -> Sequence[TopicPartition]:
        """Return the topic-partitions to read now.

        Raises:
            TopicNotFoundError: a topic that was never read is missing, and `failOnDataLoss` is true.
        """
        found, missing = self._present()
        before = {name for tp in known for name in (tp.topic, str(tp))}
        # A topic that only matched a pattern is forgotten; one that was read is handled by `_checked`.
        if self._options.fail_on_data_loss and self._options.topics_pattern is None:
            for name, error in missing.items():
                if name not in before:
                    raise error
        return found

    def _checked(self, start: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, Position]:
        """Return `start` without vanished topic-partitions, after reporting losses."""
        vanished = sorted(str(tp) for tp in start if tp not in bounds)
        if vanished:
            self._report_deleted(f"{', '.join(vanished)}: no longer exists, so its unread messages are lost")
        for tp, position in start.items():
            if tp not in bounds or position == EARLIEST or (tp, position) in self._successors:
                continue
            first = bounds[tp].first
            # A watcher's cursor right at an entry may only mean that its ledger was deleted.
            if position < first or (position == first and position.entry >= 0):
                self._check_trimmed(tp, position)
        begin = {tp: position for tp, position in start.items() if tp in bounds}
        far = {tp: at for tp, at in begin.items() if at > max(bounds[tp].first, bounds[tp].last)}
        for tp, stored in self._client.fetch_stored(far).items():
            if stored < far[tp]:
                self._report(past_the_end(tp, far[tp], stored))
                begin[tp] = EARLIEST
        return begin

    def _check_trimmed(self, tp: TopicPartition, position: Position) -> None:
        # TTL also moves the watcher's cursor, and deletes nothing; a new consumer sees what exists.
        first = look_again(self._client, tp, position, self._client.fetch_bounds([tp])[tp].first)
        if position >= first:
            return
        following = self._limiter.following(tp, position)
        # Deletion moves every cursor to the last deleted entry, a watcher's too (broker 4.0.8): if it was open before
        # and is not past the position, only messages that were read have been deleted. If it was opened just now, it
        # shows what exists, like those above.
        before = self._watchers.get(tp)
        watched = self._watch(list(self._watchers))[tp].first
        if watched <= position and self._watchers.get(tp) is not before:
            return
        if watched > position and (following is None or first >= following):
            self._report_deleted(f"{tp}: the broker may have deleted the messages from {position} to {first}")
        # The range begins here, after a reported loss or without one, and no later trigger reports it again.
        self._successors[tp, position] = first

    def _report_deleted(self, what: str) -> None:
        self._report(
            f"{what}; possible causes: retention, TTL, a backlog quota or an administrator; set subscription=NAME to "
            f"keep data until it is read, or failOnDataLoss=false to continue with the messages that remain"
        )

    def _report(self, what: str) -> None:
        self._options.report_loss(f"pulsar-native: {what}")


def _pin_positions(positions: Offsets) -> dict[TopicPartition, Position]:
    """Return the cursors of the durable subscription that retain the entries of these positions."""
    return {tp: Position(at.ledger, max(at.entry - 1, -1)) for tp, at in positions.items() if at != EARLIEST}


def offsets_from_json(document: Mapping[str, object]) -> Offsets:
    """Return the offsets of Spark's checkpoint, see `decode_offsets`.

    Raises:
        OptionError: not written by this package, or by a release with another version.
    """
    try:
        return decode_offsets(document)
    except ValueError as error:
        raise OptionError(f"pulsar-native: the checkpoint cannot be used: {error}") from error
