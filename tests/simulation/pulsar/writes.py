"""Faults of entries that the program under test publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.explore import Fault

if TYPE_CHECKING:
    from tests.simulation.pulsar.topic import Producer


class WriteFaults:
    """Faults of SENDs and receipts, by their number in the cluster.

    Attributes:
        sends: kind by number: `checksum`, `fail`, `fail_stored` (refused, but stored) or `slow`.
        receipts: seconds by number; None for a receipt that is never sent.
        calls: functions by number of a receipt, called when the entry is stored, before its receipt is sent.
    """

    def __init__(self) -> None:
        self.sends: dict[int, str] = {}
        self.receipts: dict[int, float | None] = {}
        self.calls: dict[int, Callable[[Producer], None]] = {}
        self._sent = 0
        self._received = 0

    def take(self) -> str | None:
        """Return the fault of the next SEND, or None."""
        self._sent += 1
        return self.sends.get(self._sent - 1)

    def receipt_delay(self, producer: Producer) -> float:
        """Return the delay of the next receipt; infinite for never."""
        if (call := self.calls.get(self._received)) is not None:
            call(producer)
        self._received += 1
        late = self.receipts.get(self._received - 1, 0.0)
        return inf if late is None else late


def write_faults(dice: Random, most: int) -> Iterator[Fault]:
    """Yield faults of the first SENDs, up to this number, or none."""
    for _ in range(dice.choice((0, 0, 1, 2))):
        kind = dice.choice(("send_checksum", "send_fail", "send_fail_stored", "send_slow"))
        yield Fault(kind, args=(dice.randrange(most),))
    for _ in range(dice.choice((0, 0, 1))):
        late = dice.choice((None, 0.5, 20.0))
        yield Fault("receipt", args=(dice.randrange(most), late))


def arrange_writes(writes: WriteFaults, faults: Sequence[Fault]) -> None:
    """Schedule these faults.

    - `send_checksum`, `send_fail`, ...: the number of a SEND; see `WriteFaults`.
    - `receipt`: the number of a receipt, seconds of its delay; None for never.
    """
    for fault in faults:
        if fault.kind.startswith("send_"):
            writes.sends[fault.args[0]] = fault.kind.removeprefix("send_")
        elif fault.kind == "receipt":
            writes.receipts[fault.args[0]] = fault.args[1]
