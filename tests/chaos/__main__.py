"""Command line: `python -m tests.chaos --help`. `make chaos SECONDS=600 SEED=n` uses it."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tests.chaos import pulsar, tubemq
from tests.chaos.faults import Chaos

SCENES: dict[str, Any] = {"pulsar": pulsar.Scene, "tubemq": tubemq.Scene}

console = Console(stderr=True)


def run(name: str, folder: Path, seed: int, seconds: float) -> tuple[Sequence[str], Chaos, Any]:
    """Run one cluster under chaos.

    Returns:
        The problems found, the faults, and the scene.
    """
    scene = SCENES[name](folder, seed)
    try:
        scene.start()
        for load in scene.loads:
            load.start()
        chaos = Chaos(scene.kinds(), seed)
        chaos.run(seconds)
        scene.heal()
        # What is published last must be there before the readers end.
        for load in scene.loads:
            load.finish()
            load.join()
        problems = [*chaos.problems, *(f"{load.name}: {text}" for load in scene.loads for text in load.problems)]
        problems += scene.check()
    finally:
        scene.stop()
    return problems, chaos, scene


def main(
    scenes: Annotated[list[str] | None, typer.Argument(help="pulsar, tubemq; all unless given")] = None,
    seconds: Annotated[float, typer.Option(help="for each")] = 600.0,
    seed: Annotated[int | None, typer.Option(help="random unless given")] = None,
) -> None:
    """Kill, freeze and cut off real servers under load; compare the lists of rows at the end."""
    seed = secrets.randbelow(1 << 32) if seed is None else seed
    failed = False
    for name in scenes or SCENES:
        console.print(f"{name}: {seconds:.0f} s of chaos, seed {seed}")
        with tempfile.TemporaryDirectory(prefix=f"chaos-{name}-", ignore_cleanup_errors=True) as folder:
            problems, chaos, scene = run(name, Path(folder), seed, seconds)
        for load in scene.loads:
            errors = ", ".join(f"{kind} {count}" for kind, count in load.failures.items()) or "none"
            console.print(f"  {load.name}: {load.steps} steps; errors: {errors}", highlight=False)
        counts = ", ".join(f"{kind} {count}" for kind, count in sorted(chaos.counts.items()))
        console.print(f"  faults: {counts}", highlight=False)
        if problems:
            failed = True
            console.print("\n".join(chaos.happened), highlight=False, markup=False)
            console.print("\n".join(problems), highlight=False, markup=False)
        console.print(f"{name}: {len(problems)} problems")
    if failed:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
