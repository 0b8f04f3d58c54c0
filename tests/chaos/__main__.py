"""Command line: `python -m tests.chaos --help`. `make chaos SECONDS=600 SEED=n` uses it."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tests.chaos import nsq, pulsar, tubemq
from tests.chaos.faults import Chaos
from tests.chaos.loads import Load


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Attributes:
        problems: lost rows, rows read or written more than once, and loads that did not end.
        chaos: the faults.
        loads: the loads.
    """

    problems: Sequence[str]
    chaos: Chaos
    loads: Sequence[Load]


SCENES: dict[str, Any] = {"pulsar": pulsar.Scene, "tubemq": tubemq.Scene, "nsq": nsq.Scene}

console = Console(stderr=True)


def run(name: str, folder: Path, seed: int, seconds: float, inspect: Callable[[Any], None] | None = None) -> Run:
    """Run one cluster under chaos, and compare the lists of rows.

    Args:
        name: of a scene.
        folder: for its files.
        seed: selects the faults.
        seconds: the duration of the faults.
        inspect: called with the scene after the comparison, while the cluster runs.
    """
    scene = SCENES[name](folder, seed)
    try:
        scene.start()
        for load in scene.loads:
            load.start()
        chaos = Chaos(scene.kinds(), seed)
        chaos.run(seconds)
        scene.heal()
        # The first load writes; the others end when they have read all its rows.
        for load in scene.loads:
            load.finish()
            load.join()
        problems = [f"{load.name}: {text}" for load in scene.loads for text in load.problems]
        problems += scene.check()
        if inspect is not None:
            inspect(scene)
    finally:
        scene.stop()
    return Run(problems, chaos, scene.loads)


def main(
    scenes: Annotated[list[str] | None, typer.Argument(help="pulsar, tubemq, nsq; all unless given")] = None,
    seconds: Annotated[float, typer.Option(help="for each")] = 600.0,
    seed: Annotated[int | None, typer.Option(help="random unless given")] = None,
    errors: Annotated[bool, typer.Option(help="print the first error of each class, too")] = False,
) -> None:
    """Kill, freeze and disconnect real servers under load; compare the lists of rows at the end."""
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    failed = False
    for name in scenes or SCENES:
        console.print(f"{name}: {seconds:.0f} s of chaos, seed {seed}")
        folder = tempfile.mkdtemp(prefix=f"chaos-{name}-")
        done = run(name, Path(folder), seed, seconds)
        for load in done.loads:
            failures = ", ".join(f"{kind} {count}" for kind, count in load.failures.items()) or "none"
            console.print(f"  {load.name}: {load.report()}; errors: {failures}", highlight=False)
            if errors:
                console.print("\n".join(load.errors.values()), highlight=False, markup=False)
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(done.chaos.counts.items()))
        console.print(f"  faults: {counts}", highlight=False)
        if done.problems:
            failed = True
            lines = [*done.chaos.happened, *done.problems, f"the servers' logs are in {folder}"]
            console.print("\n".join(lines), highlight=False, markup=False)
        else:
            shutil.rmtree(folder, ignore_errors=True)
        console.print(f"{name}: {len(done.problems)} problems")
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
