"""What the simulation's tests share."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.simulation import standins


@pytest.fixture(autouse=True, scope="module")
def _garbage_of_worlds_alone() -> Iterator[None]:
    """Let the collection of garbage after each world pass over what was there before: that may be all of the tests."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def simulated() -> Iterator[None]:
    """Run the package on a world's clock, threads and network, in a test that makes the world itself."""
    standins.install()
    yield
    standins.uninstall()
