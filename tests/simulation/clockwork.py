"""Which world runs, and modules with stand-ins: the one place that the stand-ins and the world share."""

from __future__ import annotations

import types
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


def namespace(original: types.ModuleType, **replaced: Any) -> types.ModuleType:
    """Return a module like another one but for some names; those that are not replaced are the original's."""
    made = types.ModuleType(original.__name__)
    made.__dict__.update({k: v for k, v in vars(original).items() if not k.startswith("__")})
    made.__dict__.update(replaced)
    return made
