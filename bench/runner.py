"""Cases of measurements as data, and the one loop that measures them: contenders in turn, round after round."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

from bench.engine import AnyEngine, Engine, Job, Sample, timed

Role = Literal["ours", "limit", "peer"]
T = TypeVar("T")


class UnavailableError(Exception):
    """A contender needs a resource that is not available here: it is left out, and the reason is reported."""


@dataclass(frozen=True)
class Contender:
    """One way to do the work of a case.

    Attributes:
        name: short and stable: the files of results contain it.
        label: its name in tables.
        role: `ours` is this package, a `limit` does less than any client must, a `peer` is another client.
        run: one run, from before it connects unless stated otherwise; ours runs its jobs in the engine.
        beside: the one of ours that a limit or a peer is compared with.
        warm: the number of warm-up runs.
    """

    name: str
    label: str
    role: Role
    run: Callable[[AnyEngine], Sample]
    beside: str = "ours"
    warm: int = 1


@dataclass(frozen=True)
class Case:
    """The same work, done by several contenders.

    Attributes:
        part: the table it belongs to: `read`, `write`, `stream`, `queue`, `history`, `limits` or `guarantees`.
        name: the row of that table.
        contenders: in the order of a round.
        unit: of their results.
        prepare: fills topics, and warms the broker.
        repeats: rounds, if they differ from the requested number.
    """

    part: str
    name: str
    contenders: Sequence[Contender]
    unit: str = "rows/s"
    prepare: Callable[[], None] = lambda: None
    repeats: int | None = None


@dataclass(frozen=True)
class Setup:
    """The inputs from which a protocol makes its cases.

    Attributes:
        engine: runs our jobs in this process.
        folder: for files of this run.
        scale: of the number of messages.
        triggers: of each measurement of streaming queries.
    """

    engine: Engine
    folder: Path
    scale: float = 1.0
    triggers: int = 60

    def scaled(self, messages: int) -> int:
        """Return this many messages, scaled, in whole Arrow batches for each of four tasks."""
        return max(1, round(messages * self.scale / 40_000)) * 40_000


@dataclass(frozen=True)
class Measured:
    """The results of a case: every counted sample of each contender."""

    case: Case
    samples: Mapping[str, Sequence[Sample]]

    def document(self) -> dict[str, Any]:
        """Return JSON with all that the report needs, so that it needs no code of the protocol."""
        contenders = {
            one.name: {"label": one.label, "role": one.role, "beside": one.beside, **_columns(self.samples[one.name])}
            for one in self.case.contenders
        }
        return {"name": self.case.name, "unit": self.case.unit, "contenders": contenders}


def _columns(samples: Sequence[Sample]) -> dict[str, list[float]]:
    return {key: [sample[key] for sample in samples] for key in samples[0]}


def here(work: Callable[..., Sample], *arguments: object) -> Callable[[AnyEngine], Sample]:
    """Return a contender's run that needs no engine."""
    return lambda _engine: work(*arguments)


def ours(name: str, label: str, job: Job, around: Callable[[], AbstractContextManager[Job]] | None = None) -> Contender:
    """Return this package, doing a job.

    Args:
        name: of the contender.
        label: of the contender.
        job: its work.
        around: creates the resources of one run, such as a topic, and yields the job for them.
    """

    def run(engine: AnyEngine) -> Sample:
        if around is None:
            return engine.run(job)
        with around() as made:
            return engine.run(made)

    return Contender(name, label, "ours", run)


def loop(name: str, label: str, rows: int, work: Callable[[], object], *, beside: str = "ours") -> Contender:
    """Return a limit: a loop in this process that moves this many rows."""
    return Contender(name, label, "limit", here(timed, rows, work), beside)


def program(module: str, *arguments: object) -> float:
    """Return the last word printed by a module that is run as a separate program: a client's rate.

    A client's threads and memory are then not shared with Spark's driver.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    return float(done.stdout.split()[-1])


def interleaved(
    runs: Mapping[str, Callable[[], T]], repeats: int, after: Callable[[int, dict[str, list[T]]], None] | None = None
) -> dict[str, list[T]]:
    """Return one of each in turn, every other round backwards, so that changes of the machine affect all alike."""
    found: dict[str, list[T]] = {name: [] for name in runs}
    for repeat in range(repeats):
        for name in list(runs)[:: -1 if repeat % 2 else 1]:
            found[name].append(runs[name]())
        if after is not None:
            after(repeat + 1, found)
    return found


def measure(case: Case, engines: Mapping[str, AnyEngine], repeats: int, say: Callable[[str], None]) -> Measured:
    """Measure a case.

    Args:
        case: the case to measure.
        engines: one; or several by name, of which each runs every contender.
        repeats: rounds.
        say: called with lines of progress.
    """
    say(f"{case.part} {case.name}")
    case.prepare()
    if len(engines) > 1:
        both = [
            replace(one, name=f"{one.name} {name}", run=partial(_ignoring, one.run, engine))
            for one in case.contenders
            for name, engine in engines.items()
        ]
        case = replace(case, contenders=both)
    (engine, *_) = engines.values()
    case = replace(case, contenders=[one for one in case.contenders if _warmed(one, engine, say)])
    runs = {one.name: partial(one.run, engine) for one in case.contenders}
    scale = 1e-6 if case.unit == "rows/s" else 1
    shown = f"M {case.unit}" if case.unit == "rows/s" else case.unit

    def after(round_: int, found: dict[str, list[Sample]]) -> None:
        line = ", ".join(f"{name} {samples[-1]['value'] * scale:.4g}" for name, samples in found.items())
        say(f"  {round_}/{wanted} {shown}: {line}")

    wanted = case.repeats or repeats
    return Measured(case, interleaved(runs, wanted, after))


def _warmed(one: Contender, engine: AnyEngine, say: Callable[[str], None]) -> bool:
    """Do the warm-up runs; return False for a contender that is not available."""
    try:
        for _ in range(one.warm):
            one.run(engine)
    except UnavailableError as error:
        say(f"  without {one.label}: {error}")
        return False
    return True


def _ignoring(run: Callable[[AnyEngine], Sample], engine: AnyEngine, _given: AnyEngine) -> Sample:
    return run(engine)
