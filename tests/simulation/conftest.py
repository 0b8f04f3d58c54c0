"""Fixtures of the simulation's tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation import standins


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_worlds_alone() -> Iterator[None]:
    """Exclude objects that exist before the worlds from the garbage collection after each one: they may be many."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def simulated() -> Iterator[None]:
    """Run the package on the clock, threads and network of a world, which the test creates."""
    standins.install()
    yield
    standins.uninstall()
