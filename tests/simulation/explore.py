"""Exploration by seed: plans with their faults, their runs, and the search for the shortest plan that fails.

A `Plan` is all that a run depends on: the scenario, the seed of the world's random choices, the size of the work and
the list of faults. The same plan gives the same run, step by step. A failing plan is made smaller (`shrink`): faults
are left out and the work is reduced as long as it still fails; the smallest plan is printed as Python.
"""

from __future__ import annotations

import functools
import gc
import logging
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, Protocol

from spark_mq_source.core.errors import MQSourceError
from tests.simulation import network, standins
from tests.simulation.spark import DriverKilledError
from tests.simulation.world import World

PROTOCOLS = tuple(sorted(found.parent.name for found in Path(__file__).parent.glob("*/scenarios.py")))
"""Protocols with a model of their broker, each in a folder."""


class ViolationError(AssertionError):
    """A guarantee was broken."""


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        kind: one of `apply_common`, or the protocol's own.
        at: seconds after the start, for faults that happen at a time.
        args: further parameters of the kind.
    """

    kind: str
    at: float = 0.0
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Plan:
    """All that a run depends on.

    Example:
        >>> Plan("batch_read", seed=7, size=3, faults=(Fault("cut_received", args=(1, 500)),)).seed
        7
    """

    scenario: str
    seed: int
    size: int
    faults: tuple[Fault, ...] = ()

    @property
    def has_lasting_fault(self) -> bool:
        """Whether a fault may outlast a client's attempts; cut connections and delays of a few seconds do not."""
        return any(
            fault.kind not in {"cut_sent", "cut_received", "wall_clock"}
            and not (fault.kind in {"stall_sent", "stall_received"} and fault.args[-1] <= SHORT_DELAY_SECONDS)
            for fault in self.faults
        )


class Scenario(Protocol):
    """A way to use the program under test, and an oracle that checks the result."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """Return the drawn faults of one run."""

    def run(self, world: World, plan: Plan) -> str:
        """Run it in a fiber of the world; return its outcome in a word. Raises ViolationError."""


SHORT_DELAY_SECONDS = 4.0
"""A delay that every client waits for."""
MAX_SIZE = 5
"""The largest size of work; the smallest is 1."""


def scenarios(protocol: str) -> Mapping[str, Scenario]:
    """Return the scenarios of a protocol, by name."""
    found: Mapping[str, Scenario] = import_module(f"tests.simulation.{protocol}.scenarios").SCENARIOS
    return found


def load(protocol: str) -> None:
    """Load the modules that worlds of a protocol need, and exclude them from later garbage collections."""
    scenarios(protocol)
    standins.install()
    _freeze(len(sys.modules))


@functools.cache
def _freeze(modules: int) -> None:
    """Exclude the objects that exist now from garbage collection; once for each number of loaded modules."""
    gc.collect()
    gc.freeze()


@functools.cache
def _lots(protocol: str) -> Sequence[str]:
    """Return the names that a seed draws from, each as often as the protocol's `LOTS` gives it, or once."""
    lots: Mapping[str, int] = getattr(import_module(f"tests.simulation.{protocol}.scenarios"), "LOTS", {})
    return [name for name in sorted(scenarios(protocol)) for _ in range(lots.get(name, 1))]


def plan_of(protocol: str, seed: int, scenario: str | None = None) -> Plan:
    """Return the plan of a seed, for this scenario if one is given."""
    dice = Random(f"plan {seed}")
    name = scenario or dice.choice(_lots(protocol))
    size = dice.randint(1, MAX_SIZE)
    return Plan(name, seed, size, tuple(scenarios(protocol)[name].faults(dice, size)))


def run_plan(protocol: str, plan: Plan) -> str:
    """Run a plan.

    Returns:
        Its outcome, in a word.

    Raises:
        ViolationError: a guarantee was broken.
        AssertionError: it hangs, or the model found an impossible request or state.
        Exception: the program under test failed in a way that the scenario does not allow.
    """
    world = World(plan.seed)
    try:
        return _play(world, protocol, plan)
    except BaseException as error:
        error.add_note("\n".join(["the world's log:", *world.log[-200:]]))
        raise


def _play(world: World, protocol: str, plan: Plan) -> str:
    standins.install()
    standins.reset()
    _freeze(len(sys.modules))
    with world.running():
        for fault in plan.faults:
            apply_common(world, fault)
        return str(world.run(lambda: scenarios(protocol)[plan.scenario].run(world, plan)))


def common_faults(dice: Random, *, streams: int, processes: Sequence[str], seconds: float) -> Iterator[Fault]:
    """Yield a few faults that apply to every protocol, or none.

    Args:
        dice: draws the faults.
        streams: the approximate number of connections of a run.
        processes: the names of processes that may be killed.
        seconds: the approximate duration of a run.
    """
    for _ in range(dice.choice((0, 0, 1, 1, 2, 4))):
        kind = dice.choice(("cut_sent", "cut_received", "cut_received", "mute", "stall_sent", "stall_received"))
        # Most faults matter in the first few hundred bytes of an answer or in the middle of data.
        args = dice.randrange(streams), int(dice.choice((200, 2_000, 20_000)) * dice.random()) + 1
        yield Fault(kind, args=(*args, dice.choice((0.3, 4.0, 25.0, 70.0))) if kind.startswith("stall") else args)
    for _ in range(dice.choice((0, 0, 0, 1, 2))):
        yield Fault("kill", args=(dice.choice(processes), int(dice.choice((10, 60, 300)) * dice.random()) + 1))
    for _ in range(dice.choice((0, 0, 0, 1))):
        yield Fault("stop", at=dice.random() * seconds, args=(dice.choice(processes), dice.choice((0.5, 12.0, 70.0))))
    for _ in range(dice.choice((0, 0, 0, 0, 1))):
        yield Fault("wall_clock", at=dice.random() * seconds, args=(dice.choice((-3600.0, 30.0, 86_400.0)),))


def apply_common(world: World, fault: Fault) -> None:
    """Schedule a fault of these kinds; ignore others, which the scenario handles.

    - `cut_sent`, `cut_received`: stream number, bytes after which it breaks.
    - `mute`: stream number, bytes after which it is half-open.
    - `stall_sent`, `stall_received`: stream number, bytes after which it is delayed, seconds of the delay.
    - `kill`: a process's name, the number of its switches at which it is killed.
    - `stop`: a process's name, seconds for which it is stopped.
    - `wall_clock`: seconds by which the wall clock is moved.
    """
    if fault.kind in {"stall_sent", "stall_received"}:
        stream, size, seconds = fault.args
        fate = network.network().fates.setdefault(stream, network.Fate())
        setattr(fate, fault.kind.replace("stall_", "stall_after_"), (size, seconds))
    elif fault.kind in {"cut_sent", "cut_received", "mute"}:
        stream, size = fault.args
        fate = network.network().fates.setdefault(stream, network.Fate())
        name = {"cut_sent": "cut_after_sent", "cut_received": "cut_after_received", "mute": "mute_after_received"}
        setattr(fate, name[fault.kind], size)
    elif fault.kind == "kill":
        name, switches = fault.args
        world.kills[name] = switches
    elif fault.kind == "stop":
        name, seconds = fault.args
        world.after(fault.at, lambda: [world.stop(p, seconds) for p in world.processes if p.name == name and p.alive])
    elif fault.kind == "wall_clock":

        def move(by: float = fault.args[0]) -> None:
            world.wall_offset += by

        world.after(fault.at, move)


def check_letters(plan: Plan, letters: Counter[bytes], attempts: Counter[bytes]) -> None:
    """Check that all dead letters are bad messages of tasks and, without a fault, one for each attempt at most.

    Args:
        plan: has the faults.
        letters: the number of times that each dead letter is stored.
        attempts: the number of task attempts whose range had each bad message.

    Raises:
        ViolationError: they are not.
    """
    strange = letters.keys() - attempts.keys()
    if strange:
        raise ViolationError(f"letters that are not bad messages: {sorted(strange)[:8]}")
    more = letters - attempts
    if more and not plan.faults:
        raise ViolationError(f"duplicate letters without a retried task: {sorted(more.items())[:8]}")


def check_nothing_runs(world: World) -> None:
    """Check that no process but the test's has a fiber that has not ended.

    Raises:
        ViolationError: another process has one.
    """
    for process in world.processes:
        if process is not world.test and process.alive and world.threads_of(process):
            raise ViolationError(f"{process} still has fibers:\n{world.places()}")


def check_allowed(plan: Plan, error: BaseException) -> None:
    """Check that an error may end a run: one of the network or a broker after a fault that lasts, or a killed driver.

    Raises:
        ViolationError: the plan has no such fault, or it is another error.
    """
    if isinstance(error, DriverKilledError):
        return
    if isinstance(error, MQSourceError) and error.retryable and plan.has_lasting_fault:
        return
    if isinstance(error, ConnectionError) and any(fault.kind in {"kill", "stop"} for fault in plan.faults):
        return  # a worker was killed for the last time
    raise ViolationError(f"an error that is not allowed here: {type(error).__name__}: {error}") from error


@dataclass(frozen=True)
class Failure:
    """A failed plan and its error."""

    plan: Plan
    kind: str
    text: str


def attempt(protocol: str, plan: Plan) -> tuple[str, Failure | None]:
    """Run a plan; return its outcome, and the failure if it failed."""
    try:
        return run_plan(protocol, plan), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - any error is a finding
        return "failed", Failure(plan, type(error).__name__, "".join(traceback.format_exception(error)))


@dataclass(frozen=True)
class Findings:
    """The results of some seeds.

    Attributes:
        outcomes: the number of runs by scenario and outcome (`SCENARIO: WORD`).
        seconds: processor time by scenario.
        failures: the failed plans.
    """

    outcomes: Counter[str]
    seconds: Counter[str]
    failures: list[Failure]


def run_seeds(protocol: str, first: int, count: int, *, stop: bool = False, scenario: str | None = None) -> Findings:
    """Run seeds in sequence, with `stop` until the first failure."""
    # Thousands of warnings are of no use; `seed` runs a single seed with its warnings.
    logging.disable(logging.CRITICAL)
    load(protocol)
    found = Findings(Counter(), Counter(), [])
    for seed in range(first, first + count):
        plan = plan_of(protocol, seed, scenario)
        began = time.process_time()
        outcome, failure = attempt(protocol, plan)
        found.seconds[plan.scenario] += time.process_time() - began  # type: ignore[assignment] # a sum of floats
        found.outcomes[f"{plan.scenario}: {outcome}"] += 1
        if failure is not None:
            found.failures.append(failure)
            if stop:
                break
    return found


def shrink(
    protocol: str, failure: Failure, *, tries: int = 300, say: Callable[[str], None] = lambda _: None
) -> Failure:
    """Return the smallest plan found that fails in the same way, with less work and fewer faults.

    Leaving out a fault changes the rest of the run, so each smaller plan is tried with some other seeds as well.
    """
    best = failure

    def fails(plan: Plan) -> bool:
        nonlocal best, tries
        for seed in (plan.seed, *range(3)):
            if tries <= 0:
                return False
            tries -= 1
            found = attempt(protocol, replace(plan, seed=seed))[1]
            if found is not None and found.kind == failure.kind:
                best = found
                say(f"still fails: {found.plan}")
                return True
        return False

    smaller = True
    while smaller and tries > 0:
        smaller = False
        for n in range(len(best.plan.faults)):
            if fails(replace(best.plan, faults=best.plan.faults[:n] + best.plan.faults[n + 1 :])):
                smaller = True
                break
        else:
            smaller = best.plan.size > 1 and fails(replace(best.plan, size=best.plan.size - 1))
    return best


def trace(protocol: str, plan: Plan) -> str:
    """Return a digest of a run: its outcome, its end by the world's clock and the number of steps."""
    world = World(plan.seed)
    try:
        outcome = _play(world, protocol, plan)
    except Exception as error:  # noqa: BLE001 - part of the trace
        outcome = repr(error)
    return f"{plan.scenario} {outcome} {world.now!r} {world.steps}"
