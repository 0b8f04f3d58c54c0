"""Transactions: the buffers of topics and the coordinators (`TopicTransactionBuffer`, `MLTransactionMetadataStore`).

There is no fencing in 4.0.8: a SEND with the id of a transaction that has ended, or never existed, opens it on its
topic again, and hides the entries after it. Until the first snapshot of a topic's transactions is taken, their entries
are set aside, and an abort has no effect: the entries are stored after it.

Not modelled, since no client detects it: a commit during the unload of a bundle is reported and lost (`chaos/pulsar`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from tests.simulation.pulsar.entries import ABORT_MARKER, COMMIT_MARKER, Entry, make_marker
from tests.simulation.pulsar.ledgers import EARLIEST, ManagedLedger, Position
from tests.simulation.world import World

TxnId: TypeAlias = tuple[int, int]

TRANSACTION_NOT_FOUND, INVALID_TXN_STATUS = 24, 21


class TransactionBuffer:
    """The transactions of one topic-partition, on disk.

    Attributes:
        ongoing: the position of the first entry of each transaction that is open here.
        aborted: transactions whose entries are never delivered.
        has_snapshot: whether the first snapshot is taken.
    """

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger
        self.has_snapshot = False
        self.ongoing: dict[TxnId, Position] = {}
        self.aborted: set[TxnId] = set()

    def restore(self) -> None:
        """Restore the state from the restored disks."""
        self.ongoing.clear()
        self.aborted.clear()
        for position, entry in self._ledger.entries.items():
            if entry.txn is None:
                continue
            if entry.marker is None:
                self.ongoing.setdefault(entry.txn, position)
            else:
                self.ongoing.pop(entry.txn, None)
                if entry.marker == ABORT_MARKER:
                    self.aborted.add(entry.txn)

    @property
    def max_read(self) -> Position:
        """The last position to deliver: the end, or the one before the first open transaction."""
        if not self.ongoing:
            return self._ledger.last
        return self._ledger.previous(next(iter(self.ongoing.values())))

    def stored(self, txn: TxnId, position: Position) -> None:
        """Record a stored entry of a transaction."""
        self.has_snapshot = True
        self.ongoing.setdefault(txn, position)

    def end(self, txn: TxnId, *, commit: bool, low_water_mark: int, now_ms: int) -> None:
        """End a transaction: write a marker."""
        if not commit and not self.has_snapshot:
            return
        marker = make_marker(COMMIT_MARKER if commit else ABORT_MARKER, txn, now_ms)
        if not commit:
            self.aborted.add(txn)
        self._ledger.append(marker)
        self.ongoing.pop(txn, None)
        # handleLowWaterMark: an old transaction that is still open is aborted, with the entries that it had committed.
        first = next(iter(self.ongoing), None)
        if first is not None and first[0] == txn[0] and first[1] <= low_water_mark:
            self.end(first, commit=False, low_water_mark=-1, now_ms=now_ms)

    def hides(self, entry: Entry) -> bool:
        """Return whether an entry before `max_read` is not delivered."""
        return entry.marker is not None or (entry.txn is not None and entry.txn in self.aborted)

    def last_dispatchable(self) -> Position:
        """Return the `getLastDispatchablePosition`."""
        ledger, position = self._ledger, self.max_read
        if position != ledger.last:
            return position
        while ledger.is_valid(position) and position in ledger.entries and self.hides(ledger.entries[position]):
            position = ledger.previous(position)
        return position if position in ledger.entries else EARLIEST


@dataclass
class Transaction:
    """A transaction that is open or about to end.

    Attributes:
        partitions: topic-partitions that were added to it.
        action: True for commit, False for abort, None while it is open.
        ends_from: when its topics are available to end it, in seconds.
    """

    partitions: set[str] = field(default_factory=set)
    action: bool | None = None
    ends_from: float = 0.0


class Coordinators:
    """The transaction coordinators of a cluster, with their data on disk.

    Attributes:
        open: transactions that have not ended on all their partitions.
        committed: transactions whose commit was decided, for oracles.
        ended: all decided transactions, with the decision.
    """

    def __init__(
        self,
        world: World,
        buffer_of: Callable[[str], TransactionBuffer],
        count: int,
        stored_by: Callable[[str], float],
    ) -> None:
        self.count = count
        self.open: dict[TxnId, Transaction] = {}
        self.ended: dict[TxnId, bool] = {}
        self.on_ended: list[Callable[[str], None]] = []
        self._world = world
        self._buffer_of = buffer_of
        self._stored_by = stored_by
        self._next = [0] * count
        self._dice = world.dice("coordinators")

    def begin(self, coordinator: int, ttl_ms: int) -> TxnId:
        """Handle NEW_TXN; a transaction without a time to live expires at once (seen on 4.0.8)."""
        txn = coordinator, self._next[coordinator]
        self._next[coordinator] += 1
        self.open[txn] = Transaction()
        self._world.after(ttl_ms / 1000, lambda: self._time_out(txn))
        return txn

    def add(self, txn: TxnId, partitions: tuple[str, ...]) -> int | None:
        """Handle ADD_PARTITION_TO_TXN; return an error code, or None."""
        found = self.open.get(txn)
        if found is None:
            return TRANSACTION_NOT_FOUND
        if found.action is not None:
            return INVALID_TXN_STATUS
        found.partitions.update(partitions)
        return None

    def end(self, txn: TxnId, commit: bool, done: Callable[[int | None], None]) -> None:
        """Handle END_TXN; call `done` with an error code, or with None when it has ended on all partitions."""
        found = self.open.get(txn)
        if found is None:
            done(TRANSACTION_NOT_FOUND)
            return
        if found.action is not None and found.action != commit:
            done(INVALID_TXN_STATUS)
            return
        if found.action is None and commit and self._dice.random() < 0.01:
            # A broker is away for longer than `sendTimeout`; the coordinator goes on.
            found.ends_from = self._world.now + 150.0
        found.action = commit
        self.ended[txn] = commit
        self._world.after(self._dice.random() * 0.01, lambda: self._finish(txn, found, done))

    def _finish(self, txn: TxnId, transaction: Transaction, done: Callable[[int | None], None]) -> None:
        # A marker is appended as entries are: after those that are being stored.
        stored_by = max([transaction.ends_from, *map(self._stored_by, sorted(transaction.partitions))])
        if stored_by > self._world.now:
            self._world.at(stored_by, lambda: self._finish(txn, transaction, done))
            return
        if self.open.get(txn) is transaction:
            del self.open[txn]
            mine = [least for most, least in self.open if most == txn[0]]
            low_water_mark = min(mine) - 1 if mine else self._next[txn[0]] - 1
            for partition in sorted(transaction.partitions):
                self._buffer_of(partition).end(
                    txn,
                    commit=bool(transaction.action),
                    low_water_mark=low_water_mark,
                    now_ms=int(self._world.wall * 1000),
                )
                for call in self.on_ended:
                    call(partition)
        done(None)

    def status(self, txn: TxnId) -> str:
        """Return the status of a transaction that is about to end."""
        return "COMMITTING" if self.ended[txn] else "ABORTING"

    def _time_out(self, txn: TxnId) -> None:
        found = self.open.get(txn)
        if found is not None and found.action is None:
            self._world.note(f"transaction {txn} has timed out")
            self.end(txn, False, lambda _: None)
