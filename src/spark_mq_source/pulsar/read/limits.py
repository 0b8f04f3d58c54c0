"""Limits of a trigger, in entries, rows and bytes, which become the positions where it ends.

A broker delivers entries and positions count entries, so a limit in entries is exact (on 2.10, which does not report
the end of a ledger, a trigger that reaches it takes fewer). Positions do not show the rows and bytes of entries: these
are estimated, at each trigger that has such a limit, from

- the broker's message index, if the broker has one and exposes it to clients: the rows between two entries;
- the sizes of ledgers, with `adminUrl`: the bytes per entry of the ledgers that are read;
- otherwise the entries themselves: the first one, the last one of the trigger, and those of earlier triggers.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import pyarrow as pa

from spark_mq_source.core.errors import MQSourceError, RequestTimeoutError
from spark_mq_source.core.shares import in_turn, served_last, share_out
from spark_mq_source.pulsar.client.admin import Ledger
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.offsets import EARLIEST, LATEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.read.reader import PulsarRange

logger = logging.getLogger(__name__)

END_OF_LEDGER = 2**62
"""An entry past the end of any ledger: a consumer opened there shows the length of its ledger (seen on 4.0.8)."""

ROUNDS = 4
"""Maximum number of corrections of an end by the entry found there."""

REMEMBERED_ENTRIES = 16
"""Number of entries, about, in the moving average: few enough to follow a changing producer."""

CHECKED_TRIGGERS = 16
"""Interval of checks, in triggers within one closed ledger; before, the 2nd, 4th and 8th are checked."""

_INDEX = pa.schema([("broker_index", pa.int64())])


@dataclass(frozen=True, slots=True)
class _Sample:
    """An entry that was fetched as a sample.

    Attributes:
        asked: the position at or after which it is the first entry.
        messages: its number of messages.
        stored_bytes: its size on the broker: compressed, with its metadata.
        index: the broker's index of its last message; None if the broker does not expose one.
    """

    asked: Position
    messages: int
    stored_bytes: int
    index: int | None


@dataclass(slots=True)
class _Waiting:
    """The backlog of one topic-partition, the share of it for this trigger, and the known sizes.

    Attributes:
        start: the last position read.
        end: the last one that could be read now.
        cut: position of the last of these.
        ledgers: the topic-partition's, from the admin API, if available.
    """

    start: Position
    end: Position
    entries: int
    share: int = 0
    cut: Position = EARLIEST
    samples: list[_Sample] = field(default_factory=list)
    ledgers: Sequence[Ledger] = ()

    @property
    def first(self) -> Position:
        """The position at or after which the first entry is; see `_first_position`."""
        return _first_position(self.start)

    @property
    def inside(self) -> list[_Sample]:
        """The samples within the share, in order."""
        taken = (sample for sample in self.samples if sample.asked <= self.cut)
        return sorted(taken, key=operator.attrgetter("asked"))


class Limiter:
    """Limits of the options, to which the ends of a trigger are moved back. For one thread.

    Each request fails with an MQSourceError if the cluster cannot be reached in time, or refuses it.

    Args:
        client: fetches entries and ledgers; its owner closes it.
        options: the query's options.
    """

    def __init__(self, client: PulsarClient, options: PulsarOptions) -> None:
        self._client = client
        self._options = options
        # CONSUMER_STATS for a consumer that was just unloaded ends the connection (seen on 4.0.8).
        self._statistics = PulsarClient(options)
        self._ledger_ends: dict[tuple[TopicPartition, int], int] = {}
        # The first entry for delivery after the last one of a ledger.
        self._following: dict[tuple[TopicPartition, Position], Position] = {}
        # Average messages and bytes per entry.
        self._seen: dict[TopicPartition, tuple[float, float]] = {}
        self._served: TopicPartition | None = None
        # The entries that were fetched to count the rows after a start.
        self._counted: dict[tuple[TopicPartition, Position], list[_Sample]] = {}
        self._asks_admin = options.admin_url is not None

    def close(self) -> None:
        """Close this object's own connection."""
        self._statistics.close()

    def following(self, tp: TopicPartition, position: Position) -> Position | None:
        """Return the first entry for delivery after a position where a trigger ended with a ledger; None if unknown."""
        return self._following.get((tp, position))

    def forget_before(self, starts: Mapping[TopicPartition, Position]) -> None:
        """Forget earlier ledgers, and other topic-partitions."""
        ends = self._ledger_ends.items()
        self._ledger_ends = {at: last for at, last in ends if at[0] in starts and at[1] >= starts[at[0]].ledger}
        self._following = {at: after for at, after in self._following.items() if at[1] >= starts.get(at[0], LATEST)}
        self._seen = {tp: seen for tp, seen in self._seen.items() if tp in starts}

    def limit(
        self, starts: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, Position]:
        """Return `ends`, moved back to the limits: shares are proportional to backlogs, and every one gets its turn.

        At least one entry is read, whatever its size.
        """
        options = self._options
        by_size = options.max_rows_per_trigger is not None or options.max_bytes_per_trigger is not None
        behind = [tp for tp in sorted(ends) if starts[tp] < ends[tp]]
        if not behind or not (by_size or options.max_entries_per_trigger is not None):
            return dict(ends)
        backlogs = self._statistics.fetch_backlogs({tp: starts[tp] for tp in behind}, ends)
        waiting = {tp: _Waiting(starts[tp], ends[tp], backlogs[tp]) for tp in behind}
        turns = self._settle(waiting) if by_size else self._take(waiting, self._allowed(waiting))
        self._served = served_last({tp: waiting[tp].share for tp in turns}, self._served)
        return {**ends, **{tp: w.cut for tp, w in waiting.items()}}

    def count_rows(self, starts: Mapping[TopicPartition, Position], ends: Mapping[TopicPartition, Position]) -> int:
        """Return about how many messages wait: the entries, times the messages of the first or earlier ones if more.

        An entry is fetched once for each start, so that a waiting trigger costs no more than an idle one.
        """
        behind = [tp for tp in sorted(ends) if starts[tp] < ends[tp]]
        backlogs = self._statistics.fetch_backlogs({tp: starts[tp] for tp in behind}, ends) if behind else {}
        waiting = {
            tp: _Waiting(starts[tp], end, backlogs[tp], cut=end, samples=self._counted.get((tp, starts[tp]), []))
            for tp, end in ((tp, ends[tp]) for tp in behind)
        }
        self._look(waiting, {tp: w.first for tp, w in waiting.items()})
        self._counted = {(tp, w.start): w.samples for tp, w in waiting.items()}
        return int(sum(w.entries * self._rows_per_entry(tp, w) for tp, w in waiting.items()))

    def split(self, ranges: list[PulsarRange]) -> list[PulsarRange]:
        """Return the ranges, one for each topic-partition, split by `maxRecordsPerPartition`.

        The pieces depend only on the range and its entries: a trigger that is repeated has the same tasks.
        """
        most = self._options.max_records_per_partition
        if most is None or not ranges:
            return ranges
        ends = {r.topic_partition: r.end for r in ranges}
        starts = {r.topic_partition: r.start for r in ranges}
        firsts = self._client.fetch_first_entries({tp: EARLIEST for tp, at in starts.items() if at == EARLIEST})
        starts |= {tp: Position(entry.ledger, entry.entry - 1) for tp, entry in firsts.items()}
        entries = self._statistics.fetch_backlogs(starts, ends)
        whole = {tp: _Waiting(at, ends[tp], entries[tp], share=entries[tp], cut=ends[tp]) for tp, at in starts.items()}
        self._look(whole, {tp: w.first for tp, w in whole.items()})
        self._look(whole, {tp: w.end for tp, w in whole.items()})
        pieces = []
        for r in ranges:
            tp, at, w = r.topic_partition, r.start, whole[r.topic_partition]
            count = -(-w.entries // max(1, int(most // _rows_of(w))))
            each = -(-w.entries // count)
            cut = self._advance(tp, w.start, w.end, each)
            while cut < w.end:
                pieces.append(replace(r, start=at, end=cut))
                at, cut = cut, self._advance(tp, cut, w.end, each)
            pieces.append(replace(r, start=at))
        return pieces

    def _settle(self, waiting: Mapping[TopicPartition, _Waiting]) -> Sequence[TopicPartition]:
        """Try shares, corrected each time by the entries at their ends, until they are within the limits.

        Returns:
            The topic-partitions in the order of turns.
        """
        self._look(waiting, {tp: w.first for tp, w in waiting.items() if tp not in self._seen})
        turns = self._take(waiting, self._allowed(waiting))
        good: dict[TopicPartition, int] = {}
        bad = {tp: w.entries + 1 for tp, w in waiting.items()}
        for _ in range(ROUNDS):
            tried = {tp: w.share for tp, w in waiting.items()}
            self._look(waiting, {tp: w.first for tp, w in waiting.items() if w.share})
            self._look(waiting, {tp: w.cut for tp, w in waiting.items() if w.share > 1})
            allowed = self._allowed(waiting)
            if all(abs(allowed[tp] - share) * 10 <= share for tp, share in tried.items()):
                return self._take(waiting, {tp: min(share, tried[tp]) for tp, share in allowed.items()})
            for tp, share in tried.items():
                if allowed[tp] * 10 < share * 9:
                    bad[tp] = min(bad[tp], share)
                elif share:
                    good[tp] = max(good.get(tp, 1), share)
            # A share that was too much stays too much, though smaller entries in a smaller one seem to allow for more.
            turns = self._take(
                waiting,
                {tp: n if n < bad[tp] else (good.get(tp, 1) + bad[tp]) // 2 for tp, n in allowed.items()},
            )
        self._take(waiting, {tp: good.get(tp, 1) if w.share else 0 for tp, w in waiting.items()})
        return turns

    def _allowed(self, waiting: Mapping[TopicPartition, _Waiting]) -> dict[TopicPartition, int]:
        """Return the number of entries of each topic-partition within all limits, by the known sizes, in turn."""
        options = self._options
        backlogs = in_turn({tp: w.entries for tp, w in waiting.items()}, self._served)
        parts = []
        if options.max_entries_per_trigger is not None:
            parts.append(share_out(backlogs, options.max_entries_per_trigger))
        if options.max_rows_per_trigger is not None:
            rows = {tp: self._rows_per_entry(tp, w) for tp, w in waiting.items()}
            parts.append(share_out(backlogs, options.max_rows_per_trigger, rows))
        if options.max_bytes_per_trigger is not None:
            sizes = {tp: self._bytes_per_entry(tp, w) for tp, w in waiting.items()}
            parts.append(share_out(backlogs, options.max_bytes_per_trigger, sizes))
        return {tp: min(part[tp] for part in parts) for tp in parts[0]}

    def _take(
        self, waiting: Mapping[TopicPartition, _Waiting], shares: Mapping[TopicPartition, int]
    ) -> Sequence[TopicPartition]:
        for tp, w in waiting.items():
            w.share = shares[tp]
            w.cut = w.end if w.share == w.entries else min(w.end, self._advance(tp, w.start, w.end, w.share))
        return list(shares)

    # -- sizes of entries

    def _rows_per_entry(self, tp: TopicPartition, w: _Waiting) -> float:
        seen, inside = self._seen.get(tp, (1.0, 1.0))[0], w.inside
        if not inside:
            return seen
        first, last = inside[0], inside[-1]
        if first.asked == w.first and last.asked == w.cut and first.index is not None and last.index is not None:
            # A transaction's batch counts as one message there (seen on 4.0.8).
            rows = last.index - first.index + first.messages
            return max(rows / w.share, min(sample.messages for sample in inside))
        return max(seen, fmean(sample.messages for sample in inside))

    def _bytes_per_entry(self, tp: TopicPartition, w: _Waiting) -> float:
        taken, stored = 0, 0.0
        for ledger in w.ledgers:
            if w.first.ledger <= ledger.ledger_id <= w.cut.ledger:
                first = max(w.first.entry, 0) if ledger.ledger_id == w.first.ledger else 0
                last = w.cut.entry if ledger.ledger_id == w.cut.ledger else ledger.entries - 1
                entries = min(last, ledger.entries - 1) - first + 1
                if entries > 0:
                    taken += entries
                    stored += entries * ledger.stored_bytes / ledger.entries
        if taken:
            return max(1.0, stored / taken)
        seen, inside = self._seen.get(tp, (1.0, 1.0))[1], w.inside
        return max(seen, fmean(sample.stored_bytes for sample in inside)) if inside else seen

    def _look(self, waiting: Mapping[TopicPartition, _Waiting], places: Mapping[TopicPartition, Position]) -> None:
        """Add the first entry at or after each position to the samples, unless it was fetched before."""
        new = {tp: at for tp, at in places.items() if all(sample.asked != at for sample in waiting[tp].samples)}
        found = self._client.sample_first_entries(new, lambda tp, message: self._sample(tp, new[tp], message))
        for tp, sample in found.items():
            waiting[tp].samples.append(sample)
            held = (sample.messages, sample.stored_bytes)
            old = self._seen.get(tp, held)
            messages, stored = (was + (now - was) / REMEMBERED_ENTRIES for was, now in zip(old, held, strict=True))
            self._seen[tp] = messages, stored
        if self._asks_admin and self._options.max_bytes_per_trigger is not None:
            for tp in new:
                waiting[tp].ledgers = waiting[tp].ledgers or self._ledgers(tp)

    def _sample(self, tp: TopicPartition, asked: Position, message: commands.Message) -> _Sample:
        decoder = EntryDecoder(
            _INDEX,
            topic=tp.topic,
            partition=tp.partition,
            on_encrypted="raw",
            on_corrupt="null",
            max_message_bytes=self._options.max_message_bytes,
            max_pending_chunk_bytes=self._options.max_pending_chunk_bytes,
        )
        try:
            decoder.decode(message.ledger_id, message.entry_id, message.body)
        except MQSourceError as error:
            logger.debug("%s: looking at %d:%d: %s", tp, message.ledger_id, message.entry_id, error)
        rows = decoder.take_batch().column(0)
        index = rows[-1].as_py() if len(rows) else None
        return _Sample(asked, decoder.entry_messages, len(message.body), index)

    def _ledgers(self, tp: TopicPartition) -> Sequence[Ledger]:
        if not self._asks_admin:
            return ()
        try:
            return self._client.fetch_ledgers(tp)
        except MQSourceError as error:
            # A failed estimate must not end a query.
            self._asks_admin = False
            logger.warning("%s: maxBytesPerTrigger is now estimated from entries already read: %s", tp, error)
            return ()

    # -- entries

    def _advance(self, tp: TopicPartition, start: Position, end: Position, entries: int) -> Position:
        """Return the position `entries` entries after `start`, across ledgers, or `end` if that comes first."""
        if entries == 0:
            return start
        ledger, entry, left = start.ledger, start.entry, entries
        # If the start is within a batch, a part of its entry is still to be read.
        if start.batch >= 0:
            entry -= 1
        while left > 0 and ledger < end.ledger:
            last = self._last_entry(tp, ledger)
            if last is None:
                after = self._first_after(tp, Position(ledger, entry + left - 1))
                if after is not None and after.ledger == ledger:
                    break
                first = self._first_after(tp, Position(ledger, entry))
                if first is None or after is None:
                    return end
                if first.ledger == ledger:
                    # The number of entries is unknown, but fewer than may be taken.
                    return Position(after.ledger, -1)
                ledger, entry = first.ledger, first.entry - 1
                continue
            if entry + left < last:
                break
            left -= max(0, last - entry)
            after = self._first_after(tp, Position(ledger, END_OF_LEDGER))
            if after is None:
                return end
            if left == 0:
                cut = Position(ledger, last)
                # If a ledger still exists, so does the one after it.
                if self._client.fetch_stored({tp: cut})[tp] == cut:
                    self._following[tp, cut] = after
                return cut
            ledger, entry = after.ledger, after.entry - 1
        return Position(ledger, entry + left)

    def _first_after(self, tp: TopicPartition, position: Position) -> Position | None:
        """Return the first entry for delivery after a position; None if none arrives in time."""
        return self._client.fetch_first_entries({tp: position.next_entry}).get(tp)

    def _last_entry(self, tp: TopicPartition, ledger: int) -> int | None:
        """Return the last entry of a closed ledger; None if the broker does not report it.

        A closed ledger never changes, so it is requested once. On Pulsar 4.0.8 the cursor of a subscription past the
        end of a ledger is at its end, on 2.10.1 wherever it was requested.
        """
        known = self._ledger_ends.get((tp, ledger))
        if known is None:
            consumer = self._client.open_consumer(tp, Position(ledger, END_OF_LEDGER))
            consumer.leave()
            cursor = consumer.opened.first
            if cursor.entry == END_OF_LEDGER - 1:
                return None
            if cursor.ledger != ledger:
                return -1  # the ledger was deleted
            known = self._ledger_ends[tp, ledger] = cursor.entry
        return known


class ProgressGuard:
    """Check of the ends of limited triggers against the entries that the broker delivers. For one thread.

    The limiter computes an end from the lengths of ledgers. If it misreads a broker's answer (as 2.10.1's once), a
    query moves through positions past the end of a closed ledger endlessly: offsets grow and no trigger has rows. So a
    few of the triggers that begin and end in one closed ledger are checked. A check takes one subscription and one
    entry, about as much as the limiter itself takes at each trigger.

    Args:
        client: fetches entries; its owner closes it.
        options: the query's options.
    """

    def __init__(self, client: PulsarClient, options: PulsarOptions) -> None:
        self._client = client
        self._options = options
        # The closed ledger in which the last triggers began and ended, and their number.
        self._within: dict[TopicPartition, tuple[int, int]] = {}
        self._warned: set[TopicPartition] = set()

    def check(
        self,
        starts: Mapping[TopicPartition, Position],
        ends: Mapping[TopicPartition, Position],
        cuts: Mapping[TopicPartition, Position],
    ) -> dict[TopicPartition, Position]:
        """Return `cuts`, moved to the next entry in topic-partitions of whose entries the trigger would read none.

        If no entry arrives, a cut past its start is kept: the task that reads the range then fails.

        Args:
            starts: start of the trigger.
            ends: the last messages.
            cuts: `ends` within the limits.

        Raises:
            RequestTimeoutError: the limits allow nothing, and no entry arrives within `operationTimeout`.
            MQSourceError: the cluster cannot be reached in time, or refuses.
        """
        behind = [tp for tp in sorted(cuts) if starts[tp] < ends[tp]]
        self._count(behind, starts, ends, cuts)
        # One topic-partition may have no turn, but not all of them.
        stalled = all(cuts[tp] <= starts[tp] for tp in behind)
        suspects = behind if stalled else [tp for tp in behind if starts[tp] < cuts[tp] and self._is_due(tp)]
        if not suspects:
            return dict(cuts)
        entries = self._client.fetch_first_entries({tp: _first_position(starts[tp]) for tp in suspects})
        if stalled and not entries:
            tp, waited_ms = suspects[0], self._options.operation_timeout_ms
            raise RequestTimeoutError(
                f"pulsar-native: {tp}: no message came within {waited_ms} ms after {starts[tp]}, though the last one "
                f"is {ends[tp]}, so the query makes no progress: check the broker's log and whether a transaction is "
                f"left open, then restart the query, or raise operationTimeout"
            )
        passed = {tp: entry for tp, entry in entries.items() if entry > cuts[tp]}
        if not stalled:
            passed = self._past_ledgers(passed, cuts)
        for tp, entry in passed.items():
            self._warn(tp, starts[tp], cuts[tp], entry)
        return {**cuts, **{tp: min(entry, ends[tp]) for tp, entry in passed.items()}}

    def _past_ledgers(
        self, passed: Mapping[TopicPartition, Position], cuts: Mapping[TopicPartition, Position]
    ) -> dict[TopicPartition, Position]:
        """Return those of `passed`, next entries after cuts, whose cut may be past the end of its ledger.

        The others end with entries that are not delivered, such as those of an aborted transaction, as they should:
        moved to the next entry, a trigger would end with a ledger of which the limiter does not know what follows.
        """
        ends = {tp: Position(cuts[tp].ledger, END_OF_LEDGER) for tp in passed if passed[tp].ledger != cuts[tp].ledger}
        stored = self._client.fetch_stored(ends)
        # On 2.10.1 the cursor is wherever it was requested.
        return {tp: passed[tp] for tp, end in ends.items() if not cuts[tp] <= stored[tp] < end}

    def _count(
        self,
        behind: Sequence[TopicPartition],
        starts: Mapping[TopicPartition, Position],
        ends: Mapping[TopicPartition, Position],
        cuts: Mapping[TopicPartition, Position],
    ) -> None:
        """Count the consecutive triggers that began and ended in one closed ledger."""
        within = {}
        for tp in behind:
            ledger = starts[tp].ledger
            if cuts[tp].ledger == ledger < ends[tp].ledger:
                before, count = self._within.get(tp, (ledger, 0))
                # Without a turn, the count is unchanged.
                within[tp] = ledger, (count if before == ledger else 0) + (cuts[tp] > starts[tp])
        self._within = within

    def _is_due(self, tp: TopicPartition) -> bool:
        _, count = self._within.get(tp, (0, 1))
        return count in {2, 4, 8} or count % CHECKED_TRIGGERS == 0

    def _warn(self, tp: TopicPartition, start: Position, cut: Position, entry: Position) -> None:
        if tp not in self._warned:
            self._warned.add(tp)
            logger.warning(
                "pulsar-native: %s: the limits end a trigger at %s, but the next message after %s is %s, so it ends "
                "there: please report this with the broker's version",
                tp,
                cut,
                start,
                entry,
            )


def _rows_of(w: _Waiting) -> float:
    """Return the most messages per entry that is known of a range, from the entries at its ends."""
    found = [1.0, *(float(sample.messages) for sample in w.samples)]
    indexes = [sample.index for sample in w.inside if sample.index is not None]
    if len(indexes) > 1:
        found.append((indexes[-1] - indexes[0] + w.inside[0].messages) / w.entries)
    return max(found)


def _first_position(start: Position) -> Position:
    """Return the position at or after which the first entry after `start` is; that of a start within a batch itself."""
    return start if start.batch >= 0 or start == EARLIEST else start.next_entry
