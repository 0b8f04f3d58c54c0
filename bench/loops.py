"""Rates of single loops: `python -m bench` with one of `LOOPS`, or with `loops` for all in one table.

A loop never waits, so its processor time is its time on an idle machine.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final

from bench.runner import interleaved

ROWS: Final = 10_000
"""Rows of one turn of a loop over values."""

LOOPS: Final = {
    "decode": ("codec", "decoders"),
    "encode": ("codec", "encoders"),
    "avro": ("avro", "runs"),
    "json": ("json", "runs"),
    "protobuf": ("protobuf", "runs"),
    "letters": ("letters", "runs"),
}
"""The module of each loop, and the function in it that yields names and runs."""

ALL: Final = "loops"

Run = Callable[[float], float]
"""A function that returns rows a second, measured for this many seconds."""


def run_of(turn: Callable[[], object], rows: int = ROWS) -> Run:
    """Return a run of turns of this many rows each."""
    return partial(timed, rows, turn)


def timed(rows_of_a_turn: int, turn: Callable[[], object], seconds: float) -> float:
    """Return rows per second of processor time, of turns for this many seconds."""
    started = time.process_time()
    for turns in itertools.count(1):
        turn()
        elapsed = time.process_time() - started
        if elapsed >= seconds:
            return turns * rows_of_a_turn / elapsed
    raise AssertionError


def main(what: str, *arguments: str) -> None:
    """Measure the runs of a loop, or of all (`loops`), and print the table."""
    names = LOOPS if what == ALL else {what: LOOPS[what]}
    modules = {name: importlib.import_module(f"bench.{module}") for name, (module, _) in names.items()}
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {what}",
        description=__doc__ if what == ALL else modules[what].__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of each measurement")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args(arguments)
    print(f"{what:48}{'M rows/s':>10}{'best':>9}{'ns/row':>10}")
    for name, (_, function) in names.items():
        runs: dict[str, Run] = dict(getattr(modules[name], function)())
        rates = interleaved({one: partial(run, given.seconds) for one, run in runs.items()}, given.repeats)
        for one, found in rates.items():
            title = f"{name}: {one}" if what == ALL else one
            print(f"{title:48}{median(found) / 1e6:10.3f}{max(found) / 1e6:9.3f}{1e9 / median(found):10.0f}")
