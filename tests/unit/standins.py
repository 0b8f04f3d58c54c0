"""Stand-ins that many unit tests use."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest


class Clock:
    """The time of a module, in place of `time`: it passes only when a test says so, or when somebody sleeps."""

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
    """What somebody waits for and has already."""
    future = Future[Any]()
    future.set_result(value)
    return future


def both_loops(compiled: str) -> Any:
    """A fixture `impl`: native and python, without native where the compiled module is missing."""

    @pytest.fixture(params=["native", "python"], name="impl")
    def impl(request: pytest.FixtureRequest) -> str:
        if request.param == "native":
            pytest.importorskip(compiled, exc_type=ImportError)
        return request.param

    return impl
