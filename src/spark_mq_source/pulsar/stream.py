"""The driver's side of one streaming query: where its triggers begin and end, and what is pinned meanwhile.

One `PulsarStream` lives as long as the query. It keeps a consumer without permits on every topic-partition, so that a
trigger costs a round trip and no connection. The positions themselves live in Spark's checkpoint, never here: after a
restart everything is found again from them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

from spark_mq_source.core.errors import DataLossError, MQSourceError, OptionError, TopicNotFoundError
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.pulsar.client import PulsarClient
from spark_mq_source.pulsar.offsets import EARLIEST, LATEST, Position, TopicPartition, decode_offsets, encode_offsets
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.planner import resolve_positions, split_ranges, topics_of
from spark_mq_source.pulsar.reader import PulsarRange
from spark_mq_source.pulsar.session import Bounds, Consumer

__all__ = ["Offsets", "PulsarStream", "offsets_from_json", "offsets_to_json"]

Offsets = Mapping[TopicPartition, Position]
"""The last message read of each topic-partition."""

logger = logging.getLogger(__name__)

END_OF_LEDGER = 2**62
"""An entry past the end of any ledger: a consumer opened there tells how long its ledger is (seen on 4.0.8)."""


class PulsarStream:
    """Plans the triggers of one query.

    Not for use by several threads at once. After any error the same call may be made again.

    Offsets go in and out as the JSON documents that Spark keeps in its checkpoint, see `offsets_to_json`.

    Args:
        options: the query's options.

    Attributes:
        newest: the last messages there were when `latest` was asked, without any limit; None before.
    """

    def __init__(self, options: PulsarOptions) -> None:
        self._options = options
        self.newest: dict[str, object] | None = None
        self._client = PulsarClient(options)
        # CONSUMER_STATS for a consumer that was just unloaded costs the connection (seen on 4.0.8).
        self._statistics = PulsarClient(options)
        # The subscription is exclusive: when anything fails, closing the connection is the one sure way to let go of
        # every consumer that was opened.
        self._pinning = PulsarClient(options)
        self._watchers: dict[TopicPartition, Consumer] = {}
        self._pins: dict[TopicPartition, Consumer] = {}
        self._target: Offsets | None = None
        self._ledger_ends: dict[tuple[TopicPartition, int], int] = {}
        # Where a range begins whose start is the last entry of a ledger that was read and is gone now.
        self._successors: dict[tuple[TopicPartition, Position], Position] = {}
        self._served: TopicPartition | None = None
        # The start of a query that has planned no trigger since it was started.
        self._unplanned: dict[str, object] | None = None
        if options.subscription is None:
            logger.warning(
                "pulsar-native: nothing keeps this query's data on the broker: with Pulsar's default retention, "
                "messages that no subscription waits for are deleted, read or not; set subscription=NAME to keep them "
                "until this query has read them, or a retention on the namespace"
            )

    def close(self) -> None:
        """Closes the connections; a durable subscription stays."""
        self._client.close()
        self._statistics.close()
        self._pinning.close()

    def initial(self) -> dict[str, object]:
        """Where a query starts that has no checkpoint; a durable subscription is brought there.

        Raises:
            DataLossError: `startingOffsets` names a position that is gone, and `failOnDataLoss` is true.
            MQSourceError: the cluster cannot be reached in time, or refuses; or a topic does not exist.
        """
        bounds = self._watch(self._client.fetch_partitions(topics_of(self._client, self._options)))
        starts = resolve_positions(self._client, "starting", self._options.stream_starting_at, list(bounds))
        initial = {}
        for tp, start in starts.items():
            first, last = bounds[tp].first, bounds[tp].last
            if EARLIEST < start < first:
                self._report(f"{tp}: the ledger of {start}, and whatever followed it up to {first}, is gone")
            # Where there is nothing, all that comes is wanted. The current ledger is no start: as long as it is empty,
            # an unload replaces it, and that would look like loss (seen on 4.0.8).
            initial[tp] = min(max(start, first), last) if last > first else EARLIEST
        if self._options.subscription is not None:
            self._move_pins(initial, move_back=True)
        self._unplanned = offsets_to_json(initial)
        return self._unplanned

    def latest(self, start: Mapping[str, object] | None, *, limited: bool = True) -> dict[str, object]:
        """Where the next trigger ends.

        Args:
            start: where it begins; None where Spark does not say (before 4.2), and then nothing is limited.
            limited: whether `maxEntriesPerTrigger` counts.

        Raises:
            DataLossError: a topic-partition has vanished or lost unread messages, and `failOnDataLoss` is true.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        self._unplanned = None
        given = {} if start is None else offsets_from_json(start)
        bounds = self._watch(self._partitions(given))
        begin = self._checked(given, bounds)
        if self._options.subscription is not None:
            self._open_pins(bounds)
        # TTL may have moved a watcher to the end, so `first` does not tell whether there is something to read.
        ends = {
            tp: max(begin.get(tp, EARLIEST), b.last) for tp, b in bounds.items() if tp in begin or b.last > EARLIEST
        }
        self.newest = offsets_to_json(ends)
        if self._target is not None:
            # What came after the query began is for the next one: of new partitions too.
            target = self._target
            ends = {
                tp: max(begin.get(tp, EARLIEST), min(end, target.get(tp, EARLIEST)))
                for tp, end in ends.items()
                if tp in begin or target.get(tp, EARLIEST) > EARLIEST
            }
        limit = self._options.max_entries_per_trigger
        if limited and limit is not None and start is not None:
            starts = {tp: begin.get(tp, EARLIEST) for tp in ends}
            starts = {tp: bounds[tp].first if at == EARLIEST < ends[tp] else at for tp, at in starts.items()}
            ends = self._limit(starts, ends, limit)
        return offsets_to_json(ends)

    def aim_at_now(self) -> None:
        """From now on `latest` never passes what there is now (`Trigger.AvailableNow`).

        Raises:
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        self._target = {tp: bounds.last for tp, bounds in self._watch(self._present()[0]).items()}

    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[PulsarRange]:
        """The tasks of one trigger; the same for the same positions, whenever it is asked.

        Raises:
            DataLossError: the first trigger is done again, its start is not known, and `failOnDataLoss` is true.
            MQSourceError: the cluster cannot be reached in time (only where `minPartitions` has something to split).
        """
        begin, finish = offsets_from_json(start), offsets_from_json(end)
        if start == self._unplanned and finish:
            self._check_repeatable(begin)
        starts = {tp: begin.get(tp, EARLIEST) for tp in finish}
        # The reader takes a start that is gone for loss; here it is known to have been the last of its ledger.
        starts = {tp: min(self._successors.get((tp, at), at), finish[tp]) for tp, at in starts.items()}
        ranges = [PulsarRange(tp, starts[tp], finish[tp]) for tp in sorted(finish)]
        return split_ranges(self._client, self._options, [r for r in ranges if r.start < r.end])

    def commit(self, end: Mapping[str, object]) -> None:
        """Spark has `end` for good: the durable subscription, if there is one, lets go of what is before it.

        The entry of `end` itself is kept: without it the next trigger could not tell whether its ledger had more, once
        the ledger is gone. So the backlog of a query that has everything is one entry a topic-partition.

        Raises:
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        if self._options.subscription is not None:
            done = offsets_from_json(end)
            try:
                self._move_pins(done, move_back=False)
            except TopicNotFoundError:
                # What has vanished has no subscription either; the next trigger says what that means.
                there = set(self._partitions(done))
                self._move_pins({tp: position for tp, position in done.items() if tp in there}, move_back=False)

    # -- inside

    def _watch(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Bounds]:
        """First and last position of each partition now: one round trip where all consumers are open still."""

        def ask() -> dict[TopicPartition, Bounds]:
            for gone in self._watchers.keys() - set(partitions):
                self._client.close_consumer(self._watchers.pop(gone))
            missing = [tp for tp in partitions if tp not in self._watchers]
            self._watchers |= self._client.open_consumers(dict.fromkeys(missing, EARLIEST))
            asked = {tp: self._watchers[tp].request_bounds() for tp in partitions}
            try:
                return self._client.wait_for(asked, "the last message")
            except MQSourceError:
                # Unloaded, or its connection is gone: whoever has no answer is opened again.
                for tp, answer in asked.items():
                    if not answer.done() or answer.exception() is not None:
                        self._watchers.pop(tp, None)
                raise

        return retrying(ask, deadline=Deadline.after_ms(self._options.operation_timeout_ms))

    def _open_pins(self, partitions: Iterable[TopicPartition]) -> None:
        """Opens the durable subscription where it is not open; one that is new begins at the first message."""
        missing = [tp for tp in partitions if tp not in self._pins]
        if missing:
            starts = dict.fromkeys(missing, EARLIEST)
            try:
                self._pins |= self._pinning.open_consumers(starts, durable_name=self._options.subscription)
            except MQSourceError:
                self._drop_pins()
                raise

    def _move_pins(self, positions: Offsets, *, move_back: bool) -> None:
        """Lets go of what is before the entries of `positions`, and reads back that the broker has done so.

        An acknowledgement is not on disk at once: after a crash of the broker the cursor can be back where it was, and
        the next trigger's acknowledgement moves it again.
        """
        targets = {tp: Position(at.ledger, max(at.entry - 1, -1)) for tp, at in positions.items() if at != EARLIEST}

        def ask(partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
            asked = {tp: self._pins[tp].request_bounds() for tp in partitions}
            return {tp: bounds.first for tp, bounds in self._pinning.wait_for(asked, "the cursor").items()}

        def move() -> None:
            try:
                self._open_pins(positions)
                cursors = ask(targets)
                if move_back:
                    ahead = [tp for tp, at in targets.items() if at < cursors[tp]]
                    for tp in ahead:
                        self._pinning.seek(self._pins.pop(tp), Position(targets[tp].ledger, targets[tp].entry + 1))
                    self._open_pins(ahead)
                behind = [tp for tp, at in targets.items() if at > cursors[tp]]
                acks = {tp: self._pins[tp].request_ack(targets[tp]) for tp in behind}
                # To a consumer that has just been unloaded an acknowledgement has no answer, but this question has:
                # whoever answers it, after the acknowledgement, was there for both.
                ask(behind)
                self._pinning.wait_for(acks, "ACK")
                for tp, cursor in ask(targets).items():
                    if cursor < targets[tp] or (move_back and cursor > targets[tp]):
                        name = self._options.subscription
                        logger.warning("%s: subscription %s stays at %s, not %s", tp, name, cursor, targets[tp])
            except MQSourceError:
                self._drop_pins()
                raise

        retrying(move, deadline=Deadline.after_ms(self._options.operation_timeout_ms))

    def _drop_pins(self) -> None:
        self._pins.clear()
        self._pinning.close()

    def _cursor_at(self, tp: TopicPartition, start: Position) -> Position:
        consumer = self._client.open_consumer(tp, start)
        self._client.close_consumer(consumer)
        return consumer.opened.first

    def _first_after(self, tp: TopicPartition, position: Position) -> Position | None:
        """The first entry in the ledgers after the closed one of `position`; None where there is none yet."""
        consumer = self._client.open_consumer(tp, Position(position.ledger, END_OF_LEDGER))
        try:
            consumer.grant(1)
            entries = consumer.receive(max_bytes=1, timeout_seconds=self._options.operation_timeout_ms / 1000)
        finally:
            self._client.close_consumer(consumer)
        return Position(entries[0].ledger_id, entries[0].entry_id) if entries else None

    def _present(self) -> tuple[Sequence[TopicPartition], Mapping[str, TopicNotFoundError]]:
        """The topic-partitions there are to read now, and the topics that are not there."""
        names = topics_of(self._client, self._options)
        try:
            return self._client.fetch_partitions(names), {}
        except TopicNotFoundError:
            pass  # all are asked for at once, and the first that is not there ends that
        found: list[TopicPartition] = []
        missing: dict[str, TopicNotFoundError] = {}
        for name in names:
            try:
                found += self._client.fetch_partitions([name])
            except TopicNotFoundError as error:
                missing[name] = error
        return found, missing

    def _partitions(self, known: Offsets) -> Sequence[TopicPartition]:
        """What there is to read now.

        Raises:
            TopicNotFoundError: a topic is not there, is not known either, and `failOnDataLoss` is true.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        found, missing = self._present()
        before = {name for tp in known for name in (tp.topic, str(tp))}
        # A topic that only matched a pattern is forgotten; of one that was read, `_checked` says what that means.
        if self._options.fail_on_data_loss and self._options.topics_pattern is None:
            for name, error in missing.items():
                if name not in before:
                    raise error
        return found

    def _checked(self, start: Offsets, bounds: Mapping[TopicPartition, Bounds]) -> dict[TopicPartition, Position]:
        """`start` without what has vanished, after a word about what is lost."""
        vanished = sorted(str(tp) for tp in start if tp not in bounds)
        if vanished:
            self._report(f"{', '.join(vanished)}: no longer there, with whatever was not read of it")
        for tp, position in start.items():
            if tp in bounds and EARLIEST < position < bounds[tp].first:
                self._check_trimmed(tp, position)
        return {tp: position for tp, position in start.items() if tp in bounds}

    def _check_repeatable(self, begin: Offsets) -> None:
        """The first trigger of a query that was interrupted in it: its end is in the checkpoint, its start is not."""
        moving = [tp for tp in sorted(begin) if self._options.stream_starting_at(str(tp)) == LATEST]
        if moving:
            self._report(
                f"{', '.join(map(str, moving))}: the query was interrupted in its first batch, and where that began, "
                f"at the latest message then, was not written down: delete the checkpoint to start anew"
            )

    def _check_trimmed(self, tp: TopicPartition, position: Position) -> None:
        # The watcher's cursor is moved by TTL too, which deletes nothing; a new consumer sees what is really there.
        first = self._client.fetch_bounds([tp])[tp].first
        if position >= first:
            return
        if self._ledger_ends.get((tp, position.ledger)) == position.entry and position.batch < 0:
            self._successors[tp, position] = first
            return
        self._report(f"{tp}: messages after {position} up to {first} are gone, or cannot be told from gone ones")

    def _report(self, what: str) -> None:
        msg = (
            f"pulsar-native: {what}; retention, TTL, a backlog quota or somebody deleted it; set subscription=NAME to "
            f"keep data until it is read, or failOnDataLoss=false to go on with what is left"
        )
        if self._options.fail_on_data_loss:
            raise DataLossError(msg)
        logger.warning("%s", msg)

    def _limit(self, start: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, Position]:
        """`ends`, moved back until at most `limit` entries are between: shares go by backlog, and none starves."""
        behind = [tp for tp in sorted(ends) if start[tp] < ends[tp]]
        backlogs = self._backlogs(behind, start, ends)
        if sum(backlogs.values()) <= limit:
            return dict(ends)
        shares = share_out(backlogs, limit, self._served)
        if limit < len(behind):
            self._served = [tp for tp in shares if shares[tp]][-1]
        limited = dict(ends)
        for tp, entries in shares.items():
            limited[tp] = min(ends[tp], self._advance(tp, start[tp], ends[tp], entries))
        return limited

    def _backlogs(self, behind: Sequence[TopicPartition], start: Offsets, ends: Offsets) -> dict[TopicPartition, int]:
        """Entries between start and end; across ledgers as the broker counts them, markers and all."""
        # A start within a batch has part of its entry still to be read.
        near = {
            tp: ends[tp].entry - start[tp].entry + (start[tp].batch >= 0)
            for tp in behind
            if ends[tp].ledger == start[tp].ledger
        }
        far = {tp: start[tp] for tp in behind if tp not in near}

        def ask() -> dict[TopicPartition, int]:
            consumers = self._statistics.open_consumers(far)
            backlogs = self._statistics.wait_for({tp: c.request_backlog() for tp, c in consumers.items()}, "backlog")
            for consumer in consumers.values():
                self._statistics.close_consumer(consumer)
            # The cursor begins before the entry of the start itself where that is still there.
            return {tp: backlogs[tp] - (consumers[tp].opened.first < far[tp] and far[tp].batch < 0) for tp in far}

        counted = near | retrying(ask, deadline=Deadline.after_ms(self._options.operation_timeout_ms))
        return {tp: max(1, counted[tp]) for tp in behind}

    def _advance(self, tp: TopicPartition, start: Position, end: Position, entries: int) -> Position:
        """The position `entries` entries after `start`, across ledgers, or `end` if that comes first."""
        if entries == 0:
            return start
        ledger, entry, left = start.ledger, start.entry, entries
        # A start within a batch has part of its entry still to be read.
        if start.batch >= 0:
            entry -= 1
        while left > 0 and ledger < end.ledger:
            last = self._last_entry(tp, ledger)
            if entry + left <= last:
                break
            left -= max(0, last - entry)
            following = self._first_after(tp, Position(ledger, last))
            if following is None:
                return end
            if left == 0:
                return Position(ledger, last)
            ledger, entry = following.ledger, following.entry - 1
        return Position(ledger, entry + left) if left > 0 else Position(ledger, entry)

    def _last_entry(self, tp: TopicPartition, ledger: int) -> int:
        """The last entry of a ledger that is closed. Such a ledger never changes, so it is asked for once."""
        known = self._ledger_ends.get((tp, ledger))
        if known is None:
            cursor = self._cursor_at(tp, Position(ledger, END_OF_LEDGER))
            known = cursor.entry if cursor.ledger == ledger else -1
            self._ledger_ends[tp, ledger] = known
        return known


def offsets_to_json(offsets: Offsets) -> dict[str, object]:
    """The form in Spark's checkpoint: readable, sorted, with a version.

    Example:
        >>> offsets_to_json({TopicPartition("persistent://public/default/t", 0): Position(7, 3)})["positions"]
        {'persistent://public/default/t-partition-0': {'ledger': 7, 'entry': 3, 'batch': -1}}
    """
    return encode_offsets({str(tp): position for tp, position in offsets.items()})


def offsets_from_json(document: Mapping[str, object]) -> Offsets:
    """The inverse of `offsets_to_json`.

    Raises:
        OptionError: not written by this package, or by a release that writes another version.
    """
    try:
        return {TopicPartition.parse(name): position for name, position in decode_offsets(document).items()}
    except ValueError as error:
        msg = f"pulsar-native: the checkpoint cannot be used: {error}"
        raise OptionError(msg) from error


def share_out(
    backlogs: Mapping[TopicPartition, int], budget: int, served: TopicPartition | None
) -> dict[TopicPartition, int]:
    """Divides `budget` entries by backlog; whoever has any gets at least one, in turns where there are too many.

    The parts never add up to more than the budget, and none is more than its backlog.

    Args:
        backlogs: entries that wait, at least 1 each.
        budget: entries to share out.
        served: who had the last turn; those after it come first, in the order of names.

    Returns:
        The parts; where there are too many for the budget, in the order of turns.

    Example:
        >>> a, b = TopicPartition("a", -1), TopicPartition("b", -1)
        >>> share_out({a: 90, b: 10}, 20, None) == {a: 18, b: 2}
        True
        >>> [share_out({a: 90, b: 10}, 1, served)[a] for served in (None, a, b)]
        [1, 0, 1]
    """
    names = sorted(backlogs)
    if budget < len(names):
        # By name, not by number: whoever has caught up leaves the round, and must not make anybody miss a turn.
        later = [name for name in names if served is not None and name > served]
        turns = later + names[: len(names) - len(later)]
        return {name: int(n < budget) for n, name in enumerate(turns)}
    total = sum(backlogs.values())
    if total <= budget:
        return dict(backlogs)
    rest, waiting = budget - len(names), total - len(names)
    shares = {name: 1 + rest * (backlogs[name] - 1) // waiting for name in names}
    # What rounding leaves, less than one for each, goes to the longest.
    spare = budget - sum(shares.values())
    for name in sorted(names, key=backlogs.__getitem__, reverse=True):
        more = min(spare, backlogs[name] - shares[name])
        shares[name] += more
        spare -= more
    return shares
