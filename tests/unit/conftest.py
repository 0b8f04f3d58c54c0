"""Fixtures of unit tests: a clock that a test moves, and both implementations of a loop."""

from __future__ import annotations

import pytest

from tests.unit.standins import Clock


@pytest.fixture
def clock(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Replace the time of the module that the test file names as TIMED."""
    made = Clock()
    monkeypatch.setattr(request.module.TIMED, "time", made)
    return made
