"""Managed ledgers, which keep a topic-partition's entries, and their cursors, as in broker 4.0.8.

From `ManagedLedgerImpl`, `ManagedCursorImpl` and `NonDurableCursorImpl` of 4.0.8, and from observations of it. A
position is (ledger, entry). A ledger is closed when it has `ledger_entries` entries or the topic is loaded again, and
the next one is opened at once, so the current ledger is often empty.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from tests.simulation.pulsar.entries import Entry, last_message

Position: TypeAlias = tuple[int, int]

EARLIEST: Position = (-1, -1)

PERSIST_SECONDS = 10.0
"""Seconds between writes of a cursor's acknowledgements to disk: `managedLedgerDefaultMarkDeleteRateLimit` of a
standalone broker is 0.1 per second (1 per second in `broker.conf`)."""

FLUSH_SECONDS = 60.0
"""Seconds between writes of cursors that this limit has delayed: `managedLedgerCursorPositionFlushSeconds`."""

COMPACTION = "__compaction"
"""The durable subscription whose cursor shows how far a topic is compacted."""

Snapshot: TypeAlias = tuple[Position, frozenset[Position], dict[Position, int]]


class Cursor:
    """The position of one subscription.

    Attributes:
        name: of the subscription.
        durable: whether it outlives its consumers, and keeps ledgers.
        mark: everything up to here is acknowledged (`markDeletePosition`).
        read: the next position to read (`readPosition`).
        acked: entries after `mark` that are individually acknowledged.
        partial: partially acknowledged batches: bits of the unacknowledged messages.
        persisted: `mark`, `acked` and `partial` after a crash of the broker.
        is_dirty: whether the current values differ from `persisted`.
        is_known: whether its position was reported to its consumer.
        miscounted: by how much the broker's backlog is too low, until the topic is loaded again.
        compacted: whether it is non-durable and reads the compacted ledger: it may be in removed ledgers then.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        name: str,
        *,
        durable: bool,
        mark: Position,
        read: Position,
        compacted: bool = False,
    ) -> None:
        self.compacted = compacted
        self.ledger = ledger
        self.name = name
        self.durable = durable
        self.mark = mark
        self.read = read
        self.acked: set[Position] = set()
        self.partial: dict[Position, int] = {}
        self.persisted: Snapshot = (mark, frozenset(), {})
        self.is_dirty = False
        self.is_known = False
        self.miscounted = 0
        self._before = self.persisted
        self._persisted_at = -1e9
        self._persists_from = -1e9

    def mark_delete(self, position: Position, *, now: float) -> None:
        """Acknowledge everything up to a position; ignore one past the end or before the mark (seen on 4.0.8)."""
        ledger = self.ledger
        if position <= self.mark:
            return
        if position > ledger.last and not (position == (ledger.current, -1) and self.mark >= ledger.last):
            return
        self.mark = position
        self._absorb()
        self._changed(now)

    def delete(self, positions: Iterable[tuple[Position, Sequence[int]]], *, now: float) -> None:
        """Acknowledge entries, or their messages whose bits are 0; stop at a position past the end."""
        for position, ack_set in positions:
            if position > self.ledger.last:
                return
            if self.is_deleted(position):
                continue
            if not ack_set:
                self.acked.add(position)
                self.partial.pop(position, None)
            elif self.ledger.batch_indexes:
                left = self.partial.get(position, -1) & bits_of(ack_set)
                if left:
                    self.partial[position] = left
                else:
                    self.acked.add(position)
                    self.partial.pop(position, None)
        if self._reaches_first():
            self._absorb()
        self._changed(now)

    def _changed(self, now: float) -> None:
        if self.durable:
            self.is_dirty = True
            if now >= self._persists_from:
                self.persist(now)
                self._persists_from = now + PERSIST_SECONDS

    def is_deleted(self, position: Position) -> bool:
        """Return whether an entry is acknowledged."""
        return position <= self.mark or position in self.acked

    def left(self, position: Position, entry: Entry) -> tuple[tuple[int, ...], int]:
        """Return the unacknowledged messages of a batch in the form of MESSAGE, and their number."""
        left = self.partial.get(position)
        if left is None:
            return (), entry.messages
        return words_of(left), left.bit_count()

    def newly_acked(self, position: Position, ack_set: Sequence[int], messages: int) -> int:
        """Return the number of messages of a batch of this size that this acknowledges for the first time."""
        if not self.ledger.batch_indexes:
            return 0
        left = self.partial.get(position, (1 << messages) - 1)
        return left.bit_count() - (left & bits_of(ack_set)).bit_count()

    def _reaches_first(self) -> bool:
        """Move the mark to the first acknowledged entry, unless a counted entry, or one of its ledger, is between them.

        So a gap among uncounted entries holds the mark back, though its entries are not sent after a rewind.
        """
        first = min(self.acked, default=None)
        if first is not None and self.ledger.uncounted:
            if self.ledger.count_after(self.mark) > self.ledger.count_after((first[0], first[1] - 1)):
                return False
            self.mark = first
        return True

    def _absorb(self) -> None:
        ledger = self.ledger
        while self.acked:
            while (self.mark[0], self.mark[1] + 1) in self.acked:
                self.mark = self.mark[0], self.mark[1] + 1
            following = ledger.next_valid(self.mark)
            if following not in self.acked:
                break
            # Acknowledged uncounted entries of a ledger stay in the broker's count if one ACK goes past them.
            passed = [p for p in ledger.uncounted if p[0] == self.mark[0] and (p <= self.mark or p in self.acked)]
            self.miscounted += len(passed)
            self.mark = following
        self.acked = {p for p in self.acked if p > self.mark}
        self.partial = {p: left for p, left in self.partial.items() if p > self.mark}
        if self.read <= self.mark:
            self.rewind()

    def rewind(self) -> None:
        """Move the read position to the first unacknowledged entry."""
        self.read = (self.mark[0], self.mark[1] + 1) if self.compacted else self.ledger.next_valid(self.mark)

    def recover(self) -> None:
        """Load the cursor: entries whose acknowledgements were lost may have been removed meanwhile."""
        if self.mark[0] not in self.ledger.ledgers:
            following = next((ledger for ledger in self.ledger.ledgers if ledger > self.mark[0]), None)
            if following is not None:
                self.mark = following, -1
        if self._reaches_first():
            self._absorb()
        self.rewind()
        self.miscounted = 0

    def persist(self, now: float = -1e9) -> None:
        """Write it to disk; if a time is given, that takes a moment."""
        self._before, self._persisted_at = self.persisted, now
        self.persisted = self.mark, frozenset(self.acked), dict(self.partial)
        self.is_dirty = False

    def forget(self, written_until: float) -> None:
        """Lose the changes that were not on disk at a crash."""
        if self._persisted_at > written_until:
            self.persisted = self._before
        mark, acked, partial = self.persisted
        self.mark, self.acked, self.partial = mark, set(acked), dict(partial)
        self.is_dirty = False
        self._persists_from = -1e9

    def reset(self, read: Position) -> None:
        """Handle SEEK: set the read position, on disk at once."""
        ledger = self.ledger
        if read == EARLIEST:
            read = ledger.next_valid(ledger.first)
        elif not ledger.is_valid(read):
            read = ledger.next_valid((read[0], read[1] - 1))
        self.read, self.mark = read, ledger.previous(read)
        self.acked.clear()
        self.partial.clear()
        self.miscounted = 0
        self.persist()

    @property
    def backlog(self) -> int:
        """The broker's count of unacknowledged entries of any kind, which uncounted ones make too low."""
        waiting = self.ledger.count_after(self.mark) - sum(position in self.ledger.entries for position in self.acked)
        return waiting - self.miscounted if waiting >= self.miscounted else waiting


class ManagedLedger:
    """The entries of one topic-partition on disk, and its cursors.

    Attributes:
        ledgers: number of entries by id, oldest first; the last one is written to.
        entries: by position, without those of removed ledgers.
        history: every entry that was ever stored, with its position, for oracles.
        uncounted: entries that are stored and not counted, see `close_unrecorded`.
        removed: removed ledgers.
        unseen_moves: how often TTL or truncation has moved a cursor that its reader had not requested yet.
        last: the last entry (`lastConfirmedEntry`), or before the first one of the current ledger.
        cursors: by subscription.
        places_cursors: whether a cursor of a non-durable subscription is moved to an existing entry.
        batch_indexes: whether a part of a batch can be acknowledged (`acknowledgmentAtBatchIndexLevelEnabled`).
        is_terminated: whether it accepts no more entries.
        on_removed: called with each removed ledger.
        compacted: the entries of the compacted ledger.
        horizon: the last position that was compacted; EARLIEST if none was.
    """

    def __init__(
        self,
        next_id: Callable[[], int],
        *,
        ledger_entries: int,
        places_cursors: bool = True,
        batch_indexes: bool = False,
    ) -> None:
        self.batch_indexes = batch_indexes
        self._next_id = next_id
        self.ledger_entries = ledger_entries
        self.places_cursors = places_cursors
        self.ledgers: dict[int, int] = {}
        self.entries: dict[Position, Entry] = {}
        self.history: dict[Position, Entry] = {}
        self.uncounted: set[Position] = set()
        self.removed: set[int] = set()
        self.unseen_moves = 0
        self.cursors: dict[str, Cursor] = {}
        self.last: Position = EARLIEST
        self.opened = False
        self.is_terminated = False
        self.on_removed: Callable[[int], None] = lambda _: None
        self.compacted: dict[Position, Entry] = {}
        self.horizon = EARLIEST
        self.taken = EARLIEST
        """The last entry that TTL or truncation has skipped for the existing cursors; it may still be stored."""

    # -- opening and closing

    def open(self) -> None:
        """Load the topic: drop empty ledgers and open a new one (`initializeBookKeeper`)."""
        for ledger in [ledger for ledger, entries in self.ledgers.items() if not entries]:
            del self.ledgers[ledger]
        if not self.is_terminated:
            self._begin_ledger()
        self.last = self._last_before((self.current + 1, 0)) or (self.current, -1)
        for cursor in self.cursors.values():
            cursor.recover()
        self.opened = True

    def close(self, *, written_until: float | None = None) -> None:
        """Unload the topic, or with `written_until` let its broker crash after the writes up to that time."""
        self.opened = False
        for name in [name for name, cursor in self.cursors.items() if not cursor.durable]:
            del self.cursors[name]
        for cursor in self.cursors.values():
            if written_until is None:
                cursor.persist()
            else:
                cursor.forget(written_until)

    def restore(self, entries: int) -> None:
        """Restore the disks to the first of the stored entries, in this number, while the topic is closed."""
        kept = list(self.entries)[:entries]
        for position in list(self.entries)[entries:]:
            del self.entries[position], self.history[position]
        counted = [position for position in kept if position not in self.uncounted]
        self.ledgers = {ledger: sum(p[0] == ledger for p in counted) for ledger in sorted({p[0] for p in counted})}
        self.last = counted[-1] if counted else EARLIEST
        for cursor in self.cursors.values():
            cursor.mark = min(cursor.mark, self.last)
            cursor.acked.clear()
            cursor.partial.clear()
            cursor.persist()

    def _begin_ledger(self) -> None:
        self.ledgers[self._next_id()] = 0

    @property
    def current(self) -> int:
        """The ledger for new entries."""
        return next(reversed(self.ledgers))

    def append(self, entry: Entry) -> Position:
        """Store an entry."""
        ledger = self.current
        position = ledger, self.ledgers[ledger]
        self.ledgers[ledger] += 1
        self.entries[position] = self.history[position] = entry
        self.last = position
        if self.ledgers[ledger] >= self.ledger_entries:
            self.roll_over()
        return position

    def roll_over(self) -> None:
        """Close the current ledger, if it has entries, and open the next one."""
        if self.ledgers[self.current] and not self.is_terminated:
            self._begin_ledger()

    def close_unrecorded(self, entries: Sequence[Entry]) -> None:
        """Store entries that the ledger does not count, and open the next one, to which the caller writes them again.

        ZooKeeper fails while a broker replaces a bookie: the ledger stays open there, and later readers find the
        entries that the broker has not acknowledged (seen on 4.0.8). An empty ledger is deleted instead.
        """
        ledger, count = self.current, self.ledgers[self.current]
        if not count:
            return
        for position, entry in zip(((ledger, number) for number in itertools.count(count)), entries, strict=False):
            self.entries[position] = self.history[position] = entry
            self.uncounted.add(position)
        self._begin_ledger()

    def terminate(self) -> None:
        """Accept no more entries. Not modelled: a broker loses the last message id before an empty closed ledger."""
        self.is_terminated = True
        if not self.ledgers[self.current] and len(self.ledgers) > 1:
            del self.ledgers[self.current]

    # -- positions

    @property
    def first(self) -> Position:
        """The position before the first entry (`getFirstPosition`)."""
        ledger = next(iter(self.ledgers))
        return (min(ledger, self.last[0]) if self.last[0] >= 0 else ledger), -1

    def is_valid(self, position: Position) -> bool:
        """Return whether this is an entry's position, or that of the next one (`isValidPosition`)."""
        ledger, entry = position
        if entry < 0 or ledger > self.last[0]:
            return False
        if ledger == self.last[0]:
            return entry <= self.last[1] + 1
        return entry < self.ledgers.get(ledger, 0)

    def next_valid(self, position: Position) -> Position:
        """Return the next position (`getNextValidPosition`)."""
        following = position[0], position[1] + 1
        while not self.is_valid(following):
            ledger = next((ledger for ledger in self.ledgers if ledger > following[0]), None)
            if ledger is None:
                return self.last[0], self.last[1] + 1
            following = ledger, 0
        return following

    def previous(self, position: Position) -> Position:
        """Return the previous position (`getPreviousPosition`)."""
        ledger, entry = position
        if entry > 0:
            return ledger, entry - 1
        return self._last_before(position) or (ledger, -1)

    def _last_before(self, position: Position) -> Position | None:
        for ledger in reversed(self.ledgers):
            if ledger < position[0] and self.ledgers[ledger]:
                return ledger, self.ledgers[ledger] - 1
        return None

    def read_at(self, position: Position) -> tuple[Position, Entry] | None:
        """Return the first entry at or after a position; skip removed ledgers silently."""
        ordered = list(self.ledgers)
        for ledger in ordered[bisect.bisect_left(ordered, position[0]) :]:
            at = ledger, max(position[1], 0) if ledger == position[0] else 0
            if at in self.entries:
                return at, self.entries[at]
        return None

    def walk(self, position: Position = EARLIEST) -> Iterator[tuple[Position, Entry]]:
        """Yield the stored and counted entries at or after a position."""
        found = self.read_at(position)
        while found is not None:
            if found[0] not in self.uncounted:
                yield found
            found = self.read_at((found[0][0], found[0][1] + 1))

    def count_after(self, position: Position) -> int:
        """Return the number of entries after a position, minus the uncounted ones before it."""
        count = sum(entries for ledger, entries in self.ledgers.items() if ledger >= position[0])
        if position[0] in self.ledgers:
            stored = self.ledgers[position[0]] + sum(p[0] == position[0] for p in self.uncounted)
            count -= min(position[1] + 1, stored)
        return count

    # -- cursors

    def open_non_durable(self, name: str, start: Position, *, earliest: bool, compacted: bool = False) -> Cursor:
        """Return a `NonDurableCursorImpl`: `start` is included, as PersistentTopic steps back by one entry."""
        if start[0] >= 0 and start[1] >= 0:
            start = start[0], start[1] - 1
        if start > self.last and start[0] >= 0:
            if earliest:
                read = self.next_valid(self.first)
                mark = self.previous(read)
            else:
                mark = self.last
                read = self.next_valid(mark)
        else:
            if start[0] < 0:
                start = self.first
            read = (start[0], start[1] + 1) if compacted else self.next_valid(start)
            # 2.10.1 leaves it at the requested position: past the end of a closed ledger, or in a removed one.
            mark = self.previous(read) if self.places_cursors else start
        cursor = self.cursors[name] = Cursor(self, name, durable=False, mark=mark, read=read, compacted=compacted)
        return cursor

    def open_durable(self, name: str, *, earliest: bool) -> Cursor:
        """Return the cursor of a durable subscription; create it if there is none."""
        cursor = self.cursors.get(name)
        if cursor is None:
            mark = self.previous(self.next_valid(self.first)) if earliest else self.last
            cursor = self.cursors[name] = Cursor(self, name, durable=True, mark=mark, read=self.next_valid(mark))
            cursor.persist()
        return cursor

    # -- compaction

    def compact(self, last: Position, *, now: float) -> None:
        """Write the compacted ledger again, with the last message of each key up to a position, unless that is empty.

        Its cursor keeps the entries that are not compacted yet (`AbstractTwoPhaseCompactor`).
        """
        entries = {
            **self.compacted,
            **{at: entry for at, entry in self.walk() if self.horizon < at <= last and entry.marker is None},
        }
        latest = {entry.key: at for at, entry in entries.items()}
        self.compacted = {at: last_message(entries[at]) for at in sorted(latest.values()) if entries[at].values[-1]}
        self.horizon = last
        cursor = self.open_durable(COMPACTION, earliest=True)
        cursor.mark_delete(last, now=now)
        cursor.persist()

    # -- removal

    def trim(self, *, now: float, truncate: bool = False) -> bool:
        """Remove the ledgers that no durable cursor needs (`internalTrimLedgers`, retention 0); return whether any."""
        for cursor in self.cursors.values():
            # maybeUpdateCursorBeforeTrimmingConsumedLedger: a cursor at the end of a ledger moves to the next one.
            if not cursor.durable:
                continue
            ledger, entry = cursor.mark
            if ledger in self.ledgers and entry >= 0 and entry + 1 >= self.ledgers[ledger]:
                following = next((other for other in self.ledgers if other > ledger), None)
                if following is not None:
                    cursor.mark_delete((following, -1), now=now)
        durable = [cursor.mark[0] for cursor in self.cursors.values() if cursor.durable]
        slowest = min(durable) if durable else self.current
        gone = [ledger for ledger in self.ledgers if ledger < slowest or truncate]
        gone = [ledger for ledger in gone if ledger != self.current]
        if not gone:
            return False
        highest = gone[-1], self.ledgers[gone[-1]] - 1
        if not self.places_cursors:
            # 2.10.1 moves them to the first remaining ledger.
            highest = next(ledger for ledger in self.ledgers if ledger > gone[-1]), -1
        for cursor in self.cursors.values():
            # advanceCursorsIfNecessary
            if cursor.mark < highest <= self.last and not cursor.compacted:
                cursor.mark_delete(highest, now=now)
        for ledger in gone:
            del self.ledgers[ledger]
            for position in [position for position in self.entries if position[0] == ledger]:
                del self.entries[position]
            self.removed.add(ledger)
            self.on_removed(ledger)
        if self.last[0] in gone:
            self.last = self.current, -1
        return True

    def truncate(self, *, now: float) -> None:
        """Move all cursors to the end and remove all ledgers but the current one (`asyncTruncate`)."""
        self._pass_all(self.last, now=now)
        self.trim(now=now, truncate=True)

    def expire(self, before_ms: int, *, now: float) -> None:
        """Expire by TTL: move every cursor past older entries, if a durable one has a backlog (seen on 4.0.8)."""
        if not any(cursor.durable and cursor.backlog for cursor in self.cursors.values()):
            return
        oldest = min(cursor.mark for cursor in self.cursors.values() if cursor.durable)
        expired: Position | None = None
        for position, entry in self.walk(self.next_valid(oldest)):
            if entry.publish_time >= before_ms:
                break
            expired = position
        if expired is not None:
            self._pass_all(expired, now=now)

    def _pass_all(self, position: Position, *, now: float) -> None:
        """Move every cursor that is before a position to it."""
        self.taken = max(self.taken, position)
        self.unseen_moves += any(
            not (cursor.durable or cursor.is_known) and cursor.mark < position for cursor in self.cursors.values()
        )
        for cursor in self.cursors.values():
            cursor.mark_delete(position, now=now)


def bits_of(words: Sequence[int]) -> int:
    """Return an `ack_set` as one number."""
    return sum((word & 0xFFFF_FFFF_FFFF_FFFF) << 64 * n for n, word in enumerate(words))


def words_of(bits: int) -> tuple[int, ...]:
    """Return a number as an `ack_set`: signed words of 64 bits, without zeros at the end."""
    words = []
    while bits:
        word = bits & 0xFFFF_FFFF_FFFF_FFFF
        words.append(word - (1 << 64) if word >> 63 else word)
        bits >>= 64
    return tuple(words)
