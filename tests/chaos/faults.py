"""Faults of real servers; the seed determines their kinds, times and durations."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.fix_net import Fault as LinkFault
from tests.fix_net import FaultProxy

Making = contextlib.AbstractContextManager[None]


class Victim(Protocol):
    """A server of a cluster."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    Attributes:
        name: e.g. `freeze`.
        group: only one fault of a group's kinds is active at a time.
        targets: the names of possible targets.
        seconds: the shortest and the longest duration.
        make: applies it to a target for as long as the context lasts.
        weight: its frequency relative to other kinds.
    """

    name: str
    group: str
    targets: Sequence[str]
    seconds: tuple[float, float]
    make: Callable[[str, random.Random], Making]
    weight: float = 1.0


class Chaos:
    """A scheduler of faults.

    Args:
        kinds: the kinds of faults.
        seed: determines the faults and their times.
        pause_s: the longest pause between two faults.

    Attributes:
        happened: a log of the faults, with the seconds since the start.
        counts: the number of faults of each kind.
    """

    def __init__(self, kinds: Sequence[Kind], seed: int, *, pause_s: float = 8.0) -> None:
        self._kinds = kinds
        self._dice = random.Random(seed)
        self._pause_s = pause_s
        self._began = time.monotonic()
        self._stopping = threading.Event()
        self._busy: dict[str, threading.Thread] = {}
        self.happened: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self, seconds: float) -> None:
        """Apply faults for this time, and end all of them."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._busy = {group: thread for group, thread in self._busy.items() if thread.is_alive()}
            kinds = [kind for kind in self._kinds if kind.group not in self._busy]
            if kinds:
                self._begin(self._dice.choices(kinds, [kind.weight for kind in kinds])[0])
            time.sleep(min(self._dice.uniform(0.5, self._pause_s), max(0.0, deadline - time.monotonic())))
        self._stopping.set()
        for thread in self._busy.values():
            thread.join()

    def _begin(self, kind: Kind) -> None:
        target, seconds = self._dice.choice(kind.targets), self._dice.uniform(*kind.seconds)
        # A fault has its own random generator, so that the duration of another one does not change it.
        dice = random.Random(self._dice.random())
        thread = threading.Thread(target=self._happen, args=(kind, target, seconds, dice), name=kind.name, daemon=True)
        self._busy[kind.group] = thread
        self._note(f"{kind.name} {target} for {seconds:.1f} s")
        self.counts[kind.name] += 1
        thread.start()

    def _happen(self, kind: Kind, target: str, seconds: float, dice: random.Random) -> None:
        try:
            with kind.make(target, dice):
                self._stopping.wait(seconds)
            self._note(f"{kind.name} {target} is over")
        except Exception as error:  # noqa: BLE001 - the report must show any error
            # A server whose start another fault prevents is started when all faults are over.
            self._note(f"{kind.name} {target} failed: {str(error).splitlines()[0]}")

    def _note(self, text: str) -> None:
        self.happened.append(f"{time.monotonic() - self._began:7.1f} s  {text}")


def frozen(victims: Mapping[str, Callable[[], Victim | None]]) -> Callable[[str, random.Random], Making]:
    """Return a fault that freezes a server (SIGSTOP) and resumes it (SIGCONT)."""

    @contextlib.contextmanager
    def make(target: str, _: random.Random) -> Iterator[None]:
        process = victims[target]()
        if process is None:
            yield
            return
        process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.signal(signal.SIGCONT)

    return make


def link_faults(
    links: Mapping[str, FaultProxy], *, but: Collection[str] = ()
) -> Callable[[str, random.Random], Making]:
    """Return a fault that cuts, stalls, slows or damages client connections to a server, without the excluded ways."""

    @contextlib.contextmanager
    def make(target: str, dice: random.Random) -> Iterator[None]:
        link = links[target]
        kind = dice.choice([one for one in ("cut", "abort", "stall", "delay", "cut later", "flip") if one not in but])
        if kind in ("cut", "abort"):
            link.cut_now(abort=kind == "abort")
        elif kind == "stall":
            link.stall_now()
        elif kind == "delay":
            link.add(LinkFault("delay", seconds=dice.uniform(0.01, 0.2), connections=dice.randrange(1, 5)))
            link.cut_now()
        elif kind == "cut later":
            link.add(LinkFault("cut", dice.choice(["c2b", "b2c"]), at=dice.randrange(50_000), connections=8))
            link.cut_now()
        else:
            link.add(LinkFault("flip", "b2c", at=dice.randrange(100, 50_000), connections=2))
            link.cut_now()
        try:
            yield
        finally:
            link.resume()

    return make
