"""Plans that once failed, or do with a mutation, by what was wrong: the shortest that `tests.simulation` found."""

from __future__ import annotations

from tests.simulation.explore import Fault, Plan

REGRESSIONS: dict[str, Plan] = {
    # A worker that died while it noted its FINs left half a note, which stopped the query for good.
    "half a note of FINs": Plan("stream", 411061010, 1, (Fault("kill", args=("executor-1", 34)),)),
    # Never failed, but random seeds seldom come so far: the mutation slot-as-it-was does here what it breaks.
    "an attempt stood still while another one wrote down its messages": Plan(
        "drain", 148, 1, (Fault("stall", at=0.806, args=(1, 4.0)),)
    ),
}
