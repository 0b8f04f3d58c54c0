"""Plans that once failed, by what was wrong: the shortest that `tests.simulation` found."""

from __future__ import annotations

from tests.simulation.explore import Plan

REGRESSIONS: dict[str, Plan] = {}
