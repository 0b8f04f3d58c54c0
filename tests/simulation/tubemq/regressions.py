"""Shortest plans of failures that were mended, by what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.simulation.explore import Fault, Plan

REGRESSIONS: Final[Mapping[str, Plan]] = {
    # A fetch that finds no message does not say where it began, and what was removed before it was passed over.
    "removed_under_fetches_that_find_nothing": Plan(
        "batch_read_removal",
        seed=774533044132,
        size=2,
        faults=(Fault("kill_master", at=0.114, args=(0, 5.0)), Fault("remove", at=0.021, args=(1, 16))),
    ),
    # What a trigger had read already was forgotten with the partition's entry, and left at the group's old position.
    "given_again_by_a_master_that_has_forgotten_the_group": Plan(
        "group_read",
        seed=774533044378,
        size=1,
        faults=(Fault("stop_broker", at=2.09, args=(1, 5.0)), Fault("kill_master", at=6.306, args=(0, 0.5))),
    ),
    # It asked for its partitions for ever, which another member had, and never took those that nobody had.
    "given_to_another_by_a_master_that_has_forgotten_the_group": Plan(
        "group_read",
        seed=774533043579,
        size=4,
        faults=(
            Fault("cut_sent", args=(3, 2)),
            Fault("mute", args=(9, 8015)),
            Fault("mute", args=(13, 9504)),
            Fault("cut_sent", args=(4, 178)),
            Fault("kill", args=("executor-1", 17)),
            Fault("kill_master", at=19.574, args=(1, 0.5)),
            Fault("kill_master", at=18.105, args=(0, 0.5)),
            Fault("stop_broker", at=18.772, args=(0, 5.0)),
        ),
    ),
}
