"""The work of decoding any entry, answer or frame is linear in its length; it is counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import pytest

from tests.fuzz.hostile import SHAPES


def lines_of(run: Callable[[], object]) -> int:
    """Return the number of lines of this package that a call runs."""
    steps = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal steps
        if event == "call":
            return trace if "spark_mq_source" in frame.f_code.co_filename else None
        steps += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return steps


def calls_of(run: Callable[[], object]) -> int:
    """Return the number of functions that a call runs, including those in C."""
    steps = 0

    def profile(_frame: FrameType, event: str, _: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(before)
    return steps


@pytest.mark.parametrize(
    ("loops", "steps_of", "sizes", "max_batch_rows"),
    # Work in the compiled loop is not counted, but work in its twin, which finds the reason, is.
    [
        ("python", lines_of, (2_000, 20_000), 1 << 20),
        ("python", lines_of, (2_000, 20_000), 10),
        ("native", calls_of, (10_000, 1_000_000), 1000),
    ],
    ids=["interpreted", "interpreted, in parts", "compiled"],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_work_grows_no_faster_than_the_input(
    shape: str, loops: str, steps_of: Callable[[Callable[[], object]], int], sizes: tuple[int, int], max_batch_rows: int
) -> None:
    make, decode = SHAPES[shape]
    decode(make(100), loops, max_batch_rows)
    counts = [steps_of(partial(decode, make(size), loops, max_batch_rows)) for size in sizes]
    # Ten times as much would be quadratic; parts are read twice.
    assert counts[1] <= 2.5 * sizes[1] / sizes[0] * counts[0] + 1_000, counts


def test_every_format_has_hostile_inputs() -> None:
    assert [sum(shape.startswith(name) for shape in SHAPES) for name in ("pulsar", "tubemq", "nsq")] == [18, 11, 4]
