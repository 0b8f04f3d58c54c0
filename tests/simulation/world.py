"""A world in one thread: processes, their threads, a clock, and one seed that determines every choice.

The threads of the program under test are greenlets here (`Fiber`). One runs at a time, until it waits for a lock, a
time or a socket. Then the world draws the next fiber from the runnable ones. If no fiber is runnable, the clock jumps
to the next timer, so hours pass in milliseconds. A hang is found at once: no fiber is runnable and no timer is set
(`DeadlockError`), or the time limit has passed (`HangError`).

The program under test is not changed: while a world runs, `standins` replaces what the program imports from the
standard library (threads, clocks, sockets, random numbers).
"""

from __future__ import annotations

import gc
import heapq
import itertools
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from greenlet import getcurrent, greenlet

from tests.simulation import clockwork

FIRST_NOW = 1_000_000.0
"""The monotonic clock at the start, in seconds: not 0, which code may use for "never"."""

FIRST_WALL = 1_790_000_000.0
"""The wall clock at the start, in seconds since 1970."""

TICK = 1e-6
"""Seconds that pass at each reading of the clock, so that a loop that polls the clock ends."""

MAX_STEPS = 3_000_000
"""Switches between fibers after which a world is considered to be in an endless loop."""


MAX_UNWINDS = 100
"""Maximum number of KilledErrors thrown into a fiber: code that catches it and waits again would never end."""


class KilledError(BaseException):
    """The process of this fiber is dead. A BaseException, so that an `except Exception` does not catch it."""


class DeadlockError(AssertionError):
    """All fibers wait and no timer is set."""


class HangError(AssertionError):
    """The time limit of the world has passed, or its fibers run in an endless loop."""


class Process:
    """A process of the program under test; its fibers die together.

    Attributes:
        name: for messages and for faults that name a process.
        pid: its number, unique in this world.
        alive: False once it is killed; its fibers never run again.
        on_killed: called when it is killed, as the kernel closes its sockets.
        switches: how often one of its fibers was scheduled.
        kill_at: the number of switches at which it is killed, as by SIGKILL.
        stopped_until: the time at which it continues if it is stopped.
    """

    def __init__(self, name: str, pid: int) -> None:
        self.name = name
        self.pid = pid
        self.alive = True
        self.on_killed: list[Callable[[], None]] = []
        self.switches = 0
        self.kill_at: int | None = None
        self.stopped_until = 0.0

    def __repr__(self) -> str:
        return f"<{self.name} ({self.pid})>"


class Fiber:
    """One thread of a process.

    Attributes:
        name: the thread's name.
        process: the process that it belongs to.
        done: whether it has ended.
        result: the returned value.
        error: the raised exception, or None.
    """

    def __init__(self, world: World, process: Process, name: str, run: Callable[[], Any]) -> None:
        self.name = name
        self.process = process
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_ready = False
        self.token = 0
        self.joiners: list[Fiber] = []
        self._world = world
        self._run = run
        self.greenlet = greenlet(self._main, parent=world.hub)

    def _main(self, *_: object) -> None:
        try:
            self.result = self._run()
        except BaseException as error:  # noqa: BLE001 - the fiber that joins it decides
            self.error = error
        self.done = True
        for joiner in self.joiners:
            self._world.wake(joiner)

    def __repr__(self) -> str:
        return f"<{self.process.name}: {self.name}>"


class World:
    """A simulated world, in which a seed determines the order of all events.

    Args:
        seed: of every choice. Each kind of choice has its own random generator (`dice`), so that leaving out a fault
            changes the other choices as little as possible.
        limit_seconds: the time limit, by the world's clock.

    Example:
        >>> world = World(7)
        >>> with world.running():
        ...     began = world.now
        ...     world.run(lambda: world.sleep(3600))
        ...     3600 <= world.now - began < 3601
        True
    """

    def __init__(self, seed: int, *, limit_seconds: float = 24 * 3600) -> None:
        self.seed = seed
        self.now = FIRST_NOW
        self.wall_offset = FIRST_WALL - FIRST_NOW
        self.hub = getcurrent()
        self.steps = 0
        self.log: list[str] = []
        self.processes: list[Process] = []
        self.kills: dict[str, int] = {}
        """Switches at which processes are killed, by the process's name."""
        self.counts: dict[str, int] = {}
        """Counters of the models, by purpose."""
        self.stopped_until = 0.0
        """The latest time at which a stopped process continues or delayed bytes arrive; may be past."""
        self._limit = FIRST_NOW + limit_seconds
        self._pids = itertools.count(100)
        self._order = itertools.count()
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._ready: list[Fiber] = []
        self._fibers: list[Fiber] = []
        self._dice: dict[str, random.Random] = {}
        self._over = False
        self.current: Fiber | None = None
        self.preempts = self.dice("preempt").choice((0.0, 0.02, 0.2))
        self._schedule = self.dice("schedule")
        self._preempt = self.dice("preempt")
        self.test = self.process("test")

    # -- random choices and the clock

    def dice(self, purpose: str) -> random.Random:
        """Return the random generator of one purpose, seeded by the world's seed and the purpose."""
        found = self._dice.get(purpose)
        if found is None:
            found = self._dice[purpose] = random.Random(f"{self.seed} {purpose}")
        return found

    def count(self, purpose: str) -> int:
        """Return the next number of this purpose, from 0."""
        number = self.counts.get(purpose, 0)
        self.counts[purpose] = number + 1
        return number

    @property
    def wall(self) -> float:
        """The wall clock: seconds since 1970. A fault may move it."""
        return self.now + self.wall_offset

    def note(self, what: str) -> None:
        """Write a line into the log, which is printed with a failure."""
        if len(self.log) < 5000:
            self.log.append(f"{self.now - FIRST_NOW:12.6f} {what}")

    # -- processes and fibers

    def process(self, name: str) -> Process:
        """Return a new process without a fiber."""
        made = Process(name, next(self._pids))
        made.kill_at = self.kills.get(name)
        self.processes.append(made)
        return made

    def spawn(self, run: Callable[[], Any], name: str, process: Process | None = None) -> Fiber:
        """Return a new fiber, of the running process unless one is given; it runs once the world schedules it."""
        fiber = Fiber(self, process or self.here, name, run)
        self._fibers.append(fiber)
        self.wake(fiber)
        return fiber

    @property
    def here(self) -> Process:
        """The running process."""
        return self.current.process if self.current is not None else self.test

    def check_alive(self) -> None:
        """Raise in a fiber of a killed process, which unwinds.

        Raises:
            KilledError: the running process was killed, or the world has ended.
        """
        if self._over or (self.current is not None and not self.current.process.alive):
            raise KilledError

    def kill(self, process: Process) -> None:
        """Kill a process as SIGKILL does: none of its code runs any more, not even a `finally`; its sockets close."""
        if not process.alive:
            return
        self.note(f"{process} is killed")
        process.alive = False
        for call in process.on_killed:
            call()
        if self.current is not None and self.current.process is process:
            # Never switched to again; its objects are released when the world ends.
            self._back_to_hub()

    def stop(self, process: Process, seconds: float) -> None:
        """Stop the fibers of a process for a time, as by SIGSTOP or a long pause; its sockets stay open."""
        process.stopped_until = max(process.stopped_until, self.now + seconds)
        self.stopped_until = max(self.stopped_until, process.stopped_until)
        self.at(process.stopped_until, lambda: None)

    # -- scheduling

    def wake(self, fiber: Fiber) -> None:
        """Make a waiting fiber runnable."""
        if not fiber.is_ready and not fiber.done and fiber.process.alive:
            fiber.is_ready = True
            self._ready.append(fiber)

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call a function at a time of the monotonic clock, outside of any fiber; it must not wait."""
        heapq.heappush(self._timers, (when, next(self._order), call))

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function after a time; see `at`."""
        self.at(self.now + seconds, call)

    def park(self, timeout: float | None = None) -> bool:
        """Suspend the running fiber until it is woken; return False on a timeout."""
        self.check_alive()
        fiber = self.current
        if fiber is None:
            raise RuntimeError("only a fiber can wait")
        fiber.token += 1
        token, expired = fiber.token, []
        if timeout is not None:

            def expire() -> None:
                if fiber.token == token and not fiber.is_ready:
                    expired.append(True)
                    self.wake(fiber)

            self.after(max(timeout, 0.0), expire)
        self._back_to_hub()
        fiber.token += 1
        self.check_alive()
        return not expired

    def pause(self) -> None:
        """Let another fiber run, or not, at a point at which the interleaving of real threads matters."""
        self.check_alive()
        if self.current is not None and self.preempts and self._ready and self._preempt.random() < self.preempts:
            self.wake(self.current)
            self._back_to_hub()
            self.check_alive()

    def sleep(self, seconds: float) -> None:
        """Suspend the running fiber for a time."""
        self.park(seconds)

    def rest(self, seconds: float) -> None:
        """Wait for this time after the last stopped process and delayed byte, which running ones may still wait for."""
        began = self.now
        while (left := max(began, self.stopped_until) + seconds - self.now) > 0:
            self.sleep(left)

    def join(self, fiber: Fiber, timeout: float | None = None) -> bool:
        """Wait for the end of a fiber; return False on a timeout or if its process was killed."""
        until = None if timeout is None else self.now + timeout
        while not fiber.done and fiber.process.alive:
            fiber.joiners.append(self.current)
            if not self.park(None if until is None else until - self.now):
                return False
        return fiber.done

    def _back_to_hub(self) -> None:
        self.hub.switch()

    @contextmanager
    def running(self) -> Iterator[World]:
        """Make this the running world, which the stand-ins of the standard library use, in a `with` block.

        Garbage collection is off meanwhile: it would close a generator of a dead process while another process runs,
        at a point that depends on what ran before this world.
        """
        previous, clockwork.world = clockwork.world, self
        was_collecting = gc.isenabled()
        gc.disable()
        try:
            yield self
        finally:
            hook, sys.unraisablehook = sys.unraisablehook, _ignore_killed
            try:
                self._end()
                self._fibers.clear()
                self._ready.clear()
                # While this is the running world: objects that are closed now must not affect another one.
                gc.collect()
            finally:
                sys.unraisablehook = hook
                clockwork.world = previous
                if was_collecting:
                    gc.enable()

    def run(self, main: Callable[[], Any]) -> Any:
        """Run a function as the first fiber until it ends, and the other fibers meanwhile; return its result.

        Raises:
            DeadlockError: no fiber is runnable and no timer is set.
            HangError: the world's time limit has passed.
            BaseException: raised by `main`.
        """
        first = self.spawn(main, "main", self.test)
        while not first.done:
            self._step()
        if first.error is not None:
            raise first.error
        return first.result

    def _step(self) -> None:
        runnable = self._ready
        if self.stopped_until > self.now and any(f.process.stopped_until > self.now for f in runnable):
            runnable = [f for f in runnable if f.process.stopped_until <= self.now]
        if not runnable:
            if not self._timers:
                raise DeadlockError(f"all fibers wait, and no timer is set:\n{self.places()}")
            when, _, call = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            if self.now > self._limit:
                raise HangError(
                    f"not done after {self._limit - FIRST_NOW:.0f} s of the world's clock:\n{self.places()}"
                )
            call()
            return
        # Due timers run before the next fiber: time passes while fibers run, too.
        if self._timers and self._timers[0][0] <= self.now:
            heapq.heappop(self._timers)[2]()
            return
        fiber = runnable[self._schedule.randrange(len(runnable))] if len(runnable) > 1 else runnable[0]
        self._ready.remove(fiber)
        fiber.is_ready = False
        process = fiber.process
        if not process.alive or fiber.done:
            return
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise HangError(f"more than {MAX_STEPS} switches, at {self.now - FIRST_NOW:.3f} s:\n{self.places()}")
        process.switches += 1
        if process.kill_at is not None and process.switches >= process.kill_at:
            self.kill(process)
            return
        self.current = fiber
        try:
            fiber.greenlet.switch()
        finally:
            self.current = None

    def places(self) -> str:
        """Return the current position of every fiber, for a message."""
        lines = []
        for fiber in self._fibers:
            frame = fiber.greenlet.gr_frame
            if fiber.done or not fiber.process.alive or frame is None:
                continue
            stack = [s for s in traceback.extract_stack(frame) if "/simulation/" not in s.filename][-4:]
            where = " > ".join(f"{s.filename.rsplit('/', 1)[-1]}:{s.lineno} {s.name}" for s in stack)
            lines.append(f"  {fiber}: {where}")
        return "\n".join(lines) or "  no fibers"

    def threads_of(self, process: Process) -> list[Fiber]:
        """Return the fibers of a process that have not ended."""
        return [f for f in self._fibers if f.process is process and not f.done]

    def _end(self) -> None:
        """Unwind the remaining fibers. Every call into the world raises, so unwinding has no visible effect."""
        self._over = True
        for fiber in self._fibers:
            for _ in range(MAX_UNWINDS):
                if not fiber.greenlet or fiber.greenlet.dead:
                    break
                self.current = fiber
                fiber.greenlet.throw(KilledError)
        self.current = None
        self._timers.clear()


def _ignore_killed(unraisable: Any) -> None:
    """Report unraisable errors other than those of killed processes."""
    if not isinstance(unraisable.exc_value, KilledError):
        sys.__unraisablehook__(unraisable)
