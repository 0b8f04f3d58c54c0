"""Command line: `python -m tests.simulation --help`. `make simulate SEEDS=n` and `make test` use it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.simulation.explore import (
    PROTOCOLS,
    Failure,
    Findings,
    Plan,
    attempt,
    load,
    plan_of,
    run_seeds,
    shrink,
    trace,
)
from tests.simulation.mutations import Mutation, mutated_source, mutations

CHUNK = 20
"""Seeds in one unit of work of a process."""

app = typer.Typer(add_completion=False, help=__doc__, no_args_is_help=True)
console = Console(stderr=True)

Seeds = Annotated[int, typer.Option(help="how many seeds")]
First = Annotated[int | None, typer.Option(help="the first seed; random unless given")]
Jobs = Annotated[int | None, typer.Option(help="processes; one a core unless given")]
Scenario = Annotated[str | None, typer.Option(help="one scenario; drawn by the seed unless given")]
Protocols = Annotated[list[str] | None, typer.Argument(help="pulsar, tubemq, nsq; all unless given")]


def fresh_seed() -> int:
    """Return a random first seed."""
    return secrets.randbelow(1 << 40)


def _explored(
    protocol: str, first: int, seeds: int, jobs: int, *, stop: bool, scenario: str | None
) -> Iterator[Findings]:
    """Yield the findings of each unit of work; with `stop`, end soon after the first failure."""
    starts = iter(range(first, first + seeds, CHUNK))
    # Not by fork: this process has a thread (the progress bar), which may hold a lock during the fork.
    with ProcessPoolExecutor(jobs, mp_context=get_context("forkserver")) as pool:
        running: set[Any] = set()

        def more() -> None:
            start = next(starts, None)
            if start is not None:
                count = min(CHUNK, first + seeds - start)
                running.add(pool.submit(run_seeds, protocol, start, count, stop=stop, scenario=scenario))

        for _ in range(2 * jobs):
            more()
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                found: Findings = future.result()
                yield found
                if not (stop and found.failures):
                    more()
                else:
                    pool.shutdown(wait=False, cancel_futures=True)
                    return


@app.command()
def explore(
    protocols: Protocols = None,
    seeds: Seeds = 1000,
    first: First = None,
    jobs: Jobs = None,
    scenario: Scenario = None,
    stop: Annotated[bool, typer.Option(help="end at the first failure")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the findings as JSON")] = False,
    shrink_tries: Annotated[int, typer.Option(help="runs spent on making the first failure of a kind smaller")] = 300,
) -> None:
    """Run seeds; print the rate of each scenario, and the smallest plan found for each kind of failure."""
    found: dict[str, Any] = {}
    for protocol in protocols or PROTOCOLS:
        start = fresh_seed() if first is None else first
        workers = jobs or os.cpu_count() or 1
        found[protocol] = _explore_one(protocol, start, seeds, workers, stop, shrink_tries, scenario)
    if as_json:
        print(json.dumps(found))  # noqa: T201 - the output
    if any(one["failures"] for one in found.values()):
        raise typer.Exit(1)


def _explore_one(
    protocol: str, first: int, seeds: int, jobs: int, stop: bool, tries: int, scenario: str | None
) -> dict[str, Any]:
    outcomes: Counter[str] = Counter()
    seconds_of: Counter[str] = Counter()
    failures: list[Failure] = []
    began, done = time.monotonic(), 0
    console.print(f"{protocol}: {seeds} seeds from {first}")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(protocol, total=seeds)
        for found in _explored(protocol, first, seeds, jobs, stop=stop, scenario=scenario):
            count = found.outcomes.total()
            done += count
            outcomes += found.outcomes
            seconds_of += found.seconds
            failures += found.failures
            progress.update(task, advance=count, description=f"{protocol} ({len(failures)} failed)")
    seconds = time.monotonic() - began
    console.print(f"{protocol}: {done} runs in {seconds:.1f} s ({done / seconds:.0f} a second), {len(failures)} failed")
    by_scenario: dict[str, Counter[str]] = {}
    for outcome, count in sorted(outcomes.items()):
        name, _, word = outcome.partition(": ")
        by_scenario.setdefault(name, Counter())[word] += count
    for name, words in by_scenario.items():
        rate = words.total() / seconds_of[name]
        what = ", ".join(f"{word} {count}" for word, count in words.items())
        console.print(f"  {words.total():8d} {name}, {rate:.0f} a second of a process: {what}", highlight=False)
    failures.sort(key=lambda failure: failure.plan.seed)
    smallest: dict[tuple[str, str], Failure] = {}
    for failure in failures:
        smallest.setdefault((failure.plan.scenario, failure.kind), failure)
    for (name, kind), failure in smallest.items():
        best = shrink(protocol, failure, tries=tries) if tries else failure
        console.rule(f"{protocol} {name}: {kind}, first with seed {failure.plan.seed}")
        console.print(best.text, highlight=False, markup=False)
        console.print(f"shortest plan: {best.plan!r}", highlight=False, markup=False)
    return {
        "first": first,
        "runs": done,
        "seconds": round(seconds, 1),
        "outcomes": dict(sorted(outcomes.items())),
        "failures": [{"seed": f.plan.seed, "scenario": f.plan.scenario, "kind": f.kind} for f in failures],
    }


@app.command()
def seed(
    protocol: str,
    number: int,
    scenario: Scenario = None,
    smaller: Annotated[bool, typer.Option(help="make it smaller if it fails")] = True,
) -> None:
    """Run one seed and print its outcome."""
    _run_plan(protocol, plan_of(protocol, number, scenario), smaller=smaller)


def _run_plan(protocol: str, plan: Plan, *, smaller: bool) -> None:
    console.print(repr(plan), markup=False)
    outcome, failure = attempt(protocol, plan)
    if failure is None:
        console.print(outcome)
        return
    if smaller:
        failure = shrink(protocol, failure, say=lambda line: console.print(line, markup=False, highlight=False))
    console.print(failure.text, markup=False, highlight=False)
    console.print(f"shortest plan: {failure.plan!r}", markup=False)
    raise typer.Exit(1)


@app.command()
def steps(protocol: str, first: int, count: int) -> None:
    """Print a digest of the run of each seed as JSON: the same on every machine and in every run."""
    load(protocol)
    print(json.dumps([trace(protocol, plan_of(protocol, n)) for n in range(first, first + count)]))  # noqa: T201


@app.command()
def mutants(
    protocols: Protocols = None,
    only: Annotated[str | None, typer.Option(help="those whose name contains this")] = None,
    seeds: Annotated[int, typer.Option(help="seeds to try before giving up")] = 5000,
    first: Annotated[int, typer.Option(help="the first seed")] = 1,
    jobs: Jobs = None,
) -> None:
    """Apply each mutation in turn; print the number of seeds that found it."""
    print("| protocol | what is broken | seeds until found | failure |\n|---|---|---:|---|")  # noqa: T201
    missed = 0
    for protocol in protocols or PROTOCOLS:
        for mutation in mutations(protocol):
            if only and only not in mutation.name:
                continue
            if mutation.test is not None:
                kind = _failing(mutation, mutation.test)
                missed += not kind
                print(f"| {protocol} | {mutation.name}: {mutation.what} | a test, not seeds | {kind} |", flush=True)  # noqa: T201
                continue
            needed, kind = _hunt(protocol, mutation, seeds, first, jobs)
            missed += needed is None
            shown = f"not in {seeds}" if needed is None else str(needed)
            if mutation.scenario is not None:
                shown += f" of `{mutation.scenario}` alone"
            print(f"| {protocol} | {mutation.name}: {mutation.what} | {shown} | {kind} |", flush=True)  # noqa: T201
    if missed:
        raise typer.Exit(1)


def _failing(mutation: Mutation, test: str) -> str:
    """Return the first test that fails with a mutation; empty if all pass."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "-p", "no:cacheprovider", "-rf", test]
        ended = subprocess.run(command, env=_environment(mutation, Path(folder)), capture_output=True, check=False)
    failed = [line for line in ended.stdout.decode().splitlines() if line.startswith("FAILED ")]
    # 1: tests failed.
    if ended.returncode not in {0, 1} or bool(failed) != bool(ended.returncode):
        raise RuntimeError(f"{mutation.name}: {ended.stdout.decode()}{ended.stderr.decode()}")
    return failed[0].split()[1] if failed else ""


def _environment(mutation: Mutation, folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports the package with a mutation, from a copy in a folder."""
    path = os.pathsep.join([str(mutated_source(mutation, folder)), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path}


def _hunt(protocol: str, mutation: Mutation, seeds: int, first: int, jobs: int | None) -> tuple[int | None, str]:
    """Return the number of seeds until a mutation was found, or None if it was not, and the failure."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        environment = _environment(mutation, Path(folder))
        command = [sys.executable, "-m", "tests.simulation", "explore", protocol, "--seeds", str(seeds)]
        command += ["--first", str(first), "--stop", "--json", "--shrink-tries", "0"]
        if jobs is not None:
            command += ["--jobs", str(jobs)]
        if mutation.scenario is not None:
            command += ["--scenario", mutation.scenario]
        ended = subprocess.run(command, env=environment, capture_output=True, check=False)
        if not ended.stdout:
            raise RuntimeError(f"{mutation.name}: {ended.stderr.decode()}")
        found = json.loads(ended.stdout)[protocol]["failures"]
    if not found:
        return None, ""
    return found[0]["seed"] - first + 1, f"{found[0]['scenario']}: {found[0]['kind']}"


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The order of sets must be the same in every run, too.
        os.execve(  # noqa: S606 - this program again
            sys.executable,
            [sys.executable, "-m", "tests.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    app()
