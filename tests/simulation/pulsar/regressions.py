"""Plans that failed once, by what went wrong: `name` -> the shortest plan found. Each must pass."""

from __future__ import annotations

from collections.abc import Mapping

from tests.simulation.explore import Fault, Plan

REGRESSIONS: Mapping[str, Plan] = {
    # Spark before 4.2 asks for an end without saying the start; one before the start was read from the beginning.
    "rebuilt_without_limits": Plan("rebuilt", seed=4, size=1),
    # A partition that was truncated before anything of it was read stays at "earliest": nothing of it is awaited.
    "truncated_before_the_first_trigger": Plan(
        "stream_removal",
        seed=371,
        size=1,
        faults=(
            Fault("cut_received", args=(5, 17474)),
            Fault("unload", at=0.048, args=(0,)),
            Fault("unload", at=0.255, args=(1,)),
            Fault("kill_broker", at=0.23, args=(0, 8.0)),
            Fault("truncate", at=0.336, args=(1, 0.77)),
        ),
    ),
}
