"""The running world, and modules with replaced names: shared by the stand-ins and the world."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.world import World

world: Any = None
"""The running world; None outside of `World.running`."""


def here() -> World:
    """Return the running world."""
    if world is None:
        raise RuntimeError("no simulated world runs")
    return world  # type: ignore[no-any-return]


def namespace(original: types.ModuleType, **replaced: Any) -> types.ModuleType:
    """Return a copy of a module in which some names are replaced."""
    made = types.ModuleType(original.__name__)
    made.__dict__.update({k: v for k, v in vars(original).items() if not k.startswith("__")})
    made.__dict__.update(replaced)
    return made
