"""Plans that once failed, by what was wrong: the shortest that `tests.simulation` found."""

from __future__ import annotations

from tests.simulation.explore import Fault, Plan

REGRESSIONS: dict[str, Plan] = {
    # A worker that died while it noted its FINs left half a note, which stopped the query for good.
    "half a note of FINs": Plan("stream", 411061010, 1, (Fault("kill", args=("executor-1", 34)),)),
}
