"""Which world runs: the one place that the stand-ins and the world share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world import World

world: Any = None
"""The world that runs; None outside of `World.running`."""


def here() -> World:
    """Return the world that runs."""
    if world is None:
        raise RuntimeError("no simulated world runs")
    return world  # type: ignore[no-any-return]
