"""Fresh seeds of every protocol in every run of the tests, and the list of mutations."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.simulation.__main__ import fresh_seed
from tests.simulation.explore import PROTOCOLS, plan_of, scenarios
from tests.simulation.mutations import Mutation, edited, mutations

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "1000"))
MORE_SEEDS = int(os.environ.get("SIMULATION_MORE_SEEDS", "1000"))
FIRST = os.environ.get("SIMULATION_FIRST")
"""The first seed, for a reproducible run; random unless set."""


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(MORE_SEEDS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.timeout(900)
def test_no_seed_breaks_a_guarantee(protocol: str, seeds: int, capsys: pytest.CaptureFixture[str]) -> None:
    first = fresh_seed() if FIRST is None else int(FIRST)
    with capsys.disabled():
        print(f"\n{protocol}: {seeds} simulated worlds from seed {first}")  # noqa: T201 - every run must show its first seed
    ended = command("explore", protocol, "--seeds", seeds, "--first", first, "--jobs", 1, "--json")
    assert ended.returncode == 0, f"python -m tests.simulation explore {protocol} --first {first}\n{ended.stderr}"
    assert json.loads(ended.stdout)[protocol]["runs"] == seeds


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_scenario_has_its_share_of_the_seeds(protocol: str) -> None:
    drawn = Counter(plan_of(protocol, seed).scenario for seed in range(1000))
    assert sorted(drawn) == sorted(scenarios(protocol))
    # 48 lots of Pulsar: 21 of 1,000 each, and 7 is three standard deviations less.
    assert {name: n for name, n in drawn.items() if n < 7} == {}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_seed_gives_the_same_run_every_time(protocol: str) -> None:
    first = fresh_seed() if FIRST is None else int(FIRST)
    one, other = command("steps", protocol, first, 10), command("steps", protocol, first, 10)
    assert one.returncode == 0, one.stderr
    assert json.loads(one.stdout) == json.loads(other.stdout), f"seeds {first} to {first + 9}"


@pytest.mark.parametrize(
    "mutation",
    [pytest.param(mutation, id=f"{name}-{mutation.name}") for name in PROTOCOLS for mutation in mutations(name)],
)
def test_the_text_that_a_mutation_changes_still_exists(mutation: Mutation) -> None:
    for text in edited(mutation).values():
        ast.parse(text)
    if mutation.test is not None:
        assert Path(mutation.test.partition("::")[0]).is_file()
