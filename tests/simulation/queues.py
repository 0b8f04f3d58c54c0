"""Common parts of the scenarios of queues, which are NSQ's channels and Pulsar's subscriptions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import DataLossError, MQSourceError, OptionError, StorageError
from tests.simulation import clockwork, files, spark
from tests.simulation.clockwork import here
from tests.simulation.explore import Fault, Plan, ViolationError
from tests.simulation.spark import Checkpoint, DriverKilledError, Executors, JobFailedError, Query
from tests.simulation.world import World

PROCESSES = ("executor-0", "executor-1", "executor-2", "executor-3", "driver-0", "driver-1")

PATIENCE_SECONDS = 900.0
"""Longest time, by the world's clock, without progress while messages are left, after any faults."""


class _WorldLog(logging.Handler):
    """A handler that copies the package's log into the world's log, which is printed with a failure."""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if clockwork.world is not None:
            clockwork.world.note(f"{clockwork.world.here}: {record.getMessage()[:300]}")


def install() -> None:
    """Install the stand-ins that these scenarios need besides those of all protocols."""
    files.install()
    log = logging.getLogger("spark_mq_source")
    if not any(isinstance(handler, _WorldLog) for handler in log.handlers):
        log.addHandler(_WorldLog())


def executors_of(world: World) -> Executors:
    """Return executors with drawn settings."""
    dice = world.dice("scenario")
    return Executors(
        speculation=dice.choice((0.0, 0.3, 1.0)),
        zombies=dice.choice((0.0, 1.0)),
        slow=dice.choice((0.0, 0.05, 1.5)),
        at_once=dice.choice((1, 2, 4)),
        copies=2,
    )


# -- the write-ahead folder


def folder_faults(dice: Random, seconds: float, *, tears: Sequence[int]) -> Iterator[Fault]:
    """Yield faults of the folder within this time, or none; see `arrange_folder`.

    Args:
        dice: of the plan.
        seconds: the duration of the read.
        tears: the number of damaged files is one of these.
    """

    def at() -> float:
        return round(dice.random() * seconds, 3)

    for _ in range(dice.choice((0, 0, 0, 1))):
        yield Fault("fill_disk", at=at(), args=(dice.choice((0.05, 3.0)),))
    for _ in range(dice.choice(tears)):
        yield Fault("tear", at=at(), args=(round(dice.random(), 4), dice.random() < 0.5))


def arrange_folder(world: World, faults: Sequence[Fault]) -> None:
    """Schedule the folder's faults, at times from now on.

    - `fill_disk`: seconds for which nothing can be written to walDir.
    - `tear`: the file (a fraction of their number), and whether a bit is flipped or the file is cut.
    """
    store = files.store()

    def fill_disk(seconds: float) -> None:
        store.is_full = True
        world.after(seconds, lambda: setattr(store, "is_full", False))

    def tear(part: float, flip: bool) -> None:
        store.tear(part, flip=flip)

    calls: dict[str, Callable[..., None]] = {"fill_disk": fill_disk, "tear": tear}
    for fault in faults:
        if (call := calls.get(fault.kind)) is not None:
            world.after(fault.at, lambda call=call, args=fault.args: call(*args))


def folder_outcome(plan: Plan, error: BaseException) -> str | None:
    """Return the outcome of a run that a fault of the folder ended; None if the error has another cause."""
    kinds = {fault.kind for fault in plan.faults}
    if isinstance(error, StorageError | OptionError) and "fill_disk" in kinds and "cannot be written" in str(error):
        return "disk full"
    if isinstance(error, DataLossError | StorageError) and "tear" in kinds:
        return "torn"
    return None


# -- a query


def life(plan: Plan, work: Callable[[], Any], outcome_of: Callable[[Plan, BaseException], str]) -> str:
    """Run one life of a driver; return its outcome in a word, empty if it succeeded.

    Args:
        plan: has the faults.
        work: the work of the driver.
        outcome_of: the outcome of an allowed error; raises ViolationError for others.

    Raises:
        ViolationError: the driver failed with an error that is not allowed.
    """
    try:
        work()
    except DriverKilledError:
        return "restarted"
    except (JobFailedError, MQSourceError) as failed:
        return outcome_of(plan, getattr(failed, "cause", failed))
    return ""


def read_until(
    plan: Plan,
    query: Query,
    is_done: Callable[[], bool],
    outcome_of: Callable[[Plan, BaseException], str],
    *,
    available_now: bool = False,
) -> str:
    """Run a query in as many lives as needed; return `read`, or the outcome of the last life that failed."""
    outcome = "read"
    while not is_done():
        ended = life(plan, lambda: query.run(until=is_done, available_now=available_now), outcome_of)
        outcome = ended or outcome
        if ended == "torn":
            break
        here().sleep(1.0)
    return outcome


def run_once(
    format_: Any,
    schema: pa.Schema,
    plan: Plan,
    options: Any,
    executors: Executors,
    outcome_of: Callable[[Plan, BaseException], str],
) -> list[list[dict[str, Any]]] | None:
    """Repeat a batch read until it succeeds; return the rows of each task, or None if its log is damaged.

    Raises:
        ViolationError: the read does not succeed.
    """
    found: list[list[dict[str, Any]]] = []

    def read() -> None:
        found.extend(spark.in_driver(lambda: spark.read_batch(format_, options, schema, executors)))

    for _ in range(1000):
        ended = life(plan, read, outcome_of)
        if not ended:
            return found
        if ended == "torn":
            return None
        here().sleep(1.0)
    raise ViolationError("a read failed a thousand times")


class Patience:
    """A check that ends a run without progress.

    Args:
        world: has the clock.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._left: Sequence[Any] = []
        self._since = world.now

    def check(self, left: Sequence[Any]) -> None:
        """Record the messages that are not read yet.

        Raises:
            ViolationError: they have been the same for too long.
        """
        if left != self._left:
            self._left = left
            self.rest()
        elif left:
            self._wait(left)

    def rest(self) -> None:
        """Restart the timeout: deliberate waiting does not count."""
        self._since = self._world.now

    def _wait(self, left: Sequence[Any]) -> None:
        if self._world.now > self._since + PATIENCE_SECONDS:
            raise ViolationError(f"{len(left)} not read after {PATIENCE_SECONDS:.0f} s: {left[:8]}")


def check_replays(checkpoint: Checkpoint) -> None:
    """Check that a repeated batch had the same rows.

    Raises:
        ViolationError: it had other rows.
    """
    first: dict[int, list[dict[str, Any]]] = {}
    for batch, rows in checkpoint.replays:
        if first.setdefault(batch, rows) != rows:
            raise ViolationError(f"batch {batch} was {first[batch]} and then {rows}")
