"""Stand-ins for unit tests."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest


class Clock:
    """A replacement of a module's `time`: time passes only when a test moves it, or in a sleep."""

    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def done(value: object) -> Future[Any]:
    """Return a future that is done."""
    future = Future[Any]()
    future.set_result(value)
    return future


def both_loops(compiled: str) -> Any:
    """Return a fixture `impl`: native and python, without native if the compiled module is missing."""

    @pytest.fixture(params=["native", "python"], name="impl")
    def impl(request: pytest.FixtureRequest) -> str:
        if request.param == "native":
            pytest.importorskip(compiled, exc_type=ImportError)
        return request.param

    return impl
