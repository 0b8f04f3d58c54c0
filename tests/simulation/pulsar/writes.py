"""What goes wrong with what the program under test publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.explore import Fault

if TYPE_CHECKING:
    from tests.simulation.pulsar.topic import Producer


class WriteFaults:
    """What goes wrong with what is published, by the how-many-th SEND or receipt of the cluster.

    Attributes:
        sends: kind by number: `checksum`, `fail`, `fail_stored` (stored all the same) or `slow`.
        receipts: seconds by number; None for one that is never sent.
        calls: by number of a receipt: what happens when an entry is stored, before its receipt is sent.
    """

    def __init__(self) -> None:
        self.sends: dict[int, str] = {}
        self.receipts: dict[int, float | None] = {}
        self.calls: dict[int, Callable[[Producer], None]] = {}
        self._sent = 0
        self._received = 0

    def take(self) -> str | None:
        """Return what happens to the next SEND."""
        self._sent += 1
        return self.sends.get(self._sent - 1)

    def receipt_delay(self, producer: Producer) -> float:
        """Return how late the next receipt is; infinite for never."""
        if (call := self.calls.get(self._received)) is not None:
            call(producer)
        self._received += 1
        late = self.receipts.get(self._received - 1, 0.0)
        return inf if late is None else late


def write_faults(dice: Random, most: int) -> Iterator[Fault]:
    """Return what goes wrong with the first so many messages that are sent, or nothing."""
    for _ in range(dice.choice((0, 0, 1, 2))):
        kind = dice.choice(("send_checksum", "send_fail", "send_fail_stored", "send_slow"))
        yield Fault(kind, args=(dice.randrange(most),))
    for _ in range(dice.choice((0, 0, 1))):
        late = dice.choice((None, 0.5, 20.0))
        yield Fault("receipt", args=(dice.randrange(most), late))


def arrange_writes(writes: WriteFaults, faults: Sequence[Fault]) -> None:
    """Have these faults happen.

    - `send_checksum`, `send_fail`, ...: the number of a SEND; see `WriteFaults`.
    - `receipt`: the number of a receipt, seconds by which it is late; None for never.
    """
    for fault in faults:
        if fault.kind.startswith("send_"):
            writes.sends[fault.args[0]] = fault.kind.removeprefix("send_")
        elif fault.kind == "receipt":
            writes.receipts[fault.args[0]] = fault.args[1]
