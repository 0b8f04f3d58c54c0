"""Plans that failed once, by what went wrong: `name` -> the shortest plan found. Each must pass."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.explore import Plan

REGRESSIONS: Mapping[str, Plan] = {
    # Spark before 4.2 asks for an end without saying the start; one before the start was read from the beginning.
    "rebuilt_without_limits": Plan("rebuilt", seed=4, size=1),
}
