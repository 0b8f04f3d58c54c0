"""Runs the test suite in parts, two at a time: half of what a part does is waiting for brokers and for Spark.

    python -m tools.run_tests [--slow] [argument of pytest ...]

Each line says which part it is of; when all have ended, what pytest says of each at its end is said once more. The
parts are what needs no broker, on the checked build of the compiled modules (`tests.checked`), what runs in a Spark
session, everything else, and, in .venv-oldest, those of tests/spark that depend on the release of Spark. ``--slow``
runs what these leave out: the tests marked `slow`, and in .venv-oldest the rest of tests/spark, but for the faults, as
what those kill is the same there. ``TEST_JOBS=1`` in the environment has the parts run one after the other.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

JOBS = 2
NEWEST, OLDEST = ".venv/bin/python", ".venv-oldest/bin/python"
SPARK = "tests/spark"
WITH_SPARK = (SPARK, "tests/docs")
"""What shares one session."""
QUICK = ("tests/unit", "tests/properties", "src")
"""What needs neither a broker nor Spark, with the examples in docstrings: run on the checked build."""
CHECKED = ("-p", "tests.checked")
RELEASES = tuple(
    f"{SPARK}/test_{name}.py"
    for name in ("batch_contract", "stream_contract", "write_contract", "streaming", "streaming_limits")
)
"""What a release of Spark does in its own way: how it calls a data source, and what it asks of a stream."""
SAME_IN_ALL_RELEASES = (
    f"--deselect={SPARK}/test_applications.py::test_standalone_cluster_reads_four_partitions",
    f"--ignore={SPARK}/test_streaming_faults.py",
    f"--ignore={SPARK}/test_streaming_write_faults.py",
)
SUMMARY = "short test summary info"
NOTHING_SELECTED = 5
"""pytest's exit code where the arguments mean no test; of all parts together they must mean some."""


@dataclass
class Part:
    """Some of the tests.

    Attributes:
        name: what its lines begin with.
        command: runs them.
        lines: what it has printed.
        code: its exit code.
        minutes: how long it took.
    """

    name: str
    command: Sequence[str]
    lines: list[str] = field(default_factory=list)
    code: int = -1
    minutes: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether a test did, or pytest itself; not where the arguments mean no test of this part."""
        return self.code not in {0, NOTHING_SELECTED}

    def summary(self) -> list[str]:
        """The last words of pytest: its summary, or its last line."""
        # The last one: what a failed test has printed may have a summary in it too.
        begin = max((n for n, line in enumerate(self.lines) if SUMMARY in line), default=-1)
        return self.lines[begin:]


def parts(arguments: Sequence[str], *, slow: bool = False) -> list[Part]:
    """The parts of the suite, those that take longest first.

    Args:
        arguments: of pytest; its last `-m` wins, so that one here replaces the choice between slow and not.
        slow: what `make test-slow` runs, in place of what `make test` does.
    """
    pytest = ("-m", "pytest", "-m")
    if slow:
        rest = (SPARK, *_but(*RELEASES), *SAME_IN_ALL_RELEASES)
        return [
            Part("spark", [NEWEST, *pytest, "slow", *arguments, *WITH_SPARK]),
            Part("other", [NEWEST, *pytest, "slow", *arguments, "tests", "src", *_but(*WITH_SPARK)]),
            Part("oldest", [OLDEST, *pytest, "not slow", *arguments, *rest]),
        ]
    return [
        Part("other", [NEWEST, *pytest, "not slow", *arguments, "tests", *_but(*WITH_SPARK, *QUICK)]),
        Part("spark", [NEWEST, *pytest, "not slow", *arguments, *WITH_SPARK]),
        Part("oldest", [OLDEST, *pytest, "not slow", *arguments, *RELEASES, *SAME_IN_ALL_RELEASES]),
        Part("quick", [NEWEST, *pytest, "not slow", *arguments, *CHECKED, *QUICK]),
    ]


def _but(*paths: str) -> list[str]:
    return [f"--ignore={path}" for path in paths]


def run(found: Sequence[Part], jobs: int) -> int:
    """Runs them, so many at a time, and prints; the exit code is 1 if one of them failed, or none had a test to run.

    An interrupt, or the signal to end, is passed on to those that run, once: they say what failed until then.
    """
    running: list[subprocess.Popen[str]] = []
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        for process in tuple(running):
            process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(partial(_run, running=running, stopping=stopping), found))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for part in found:
        print(f"\n======== {part.name}: {part.minutes:.1f} minutes, exit code {part.code}", *part.summary(), sep="\n")
    return int(any(part.failed for part in found) or all(part.code == NOTHING_SELECTED for part in found))


def _run(part: Part, *, running: list[subprocess.Popen[str]], stopping: threading.Event) -> None:
    if stopping.is_set():
        return
    began = time.monotonic()
    with subprocess.Popen(
        part.command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        process_group=0,  # an interrupt of the terminal reaches it by `stop` alone
    ) as process:
        running.append(process)
        assert process.stdout is not None  # noqa: S101 - for mypy
        for line in process.stdout:
            part.lines.append(line.rstrip("\n"))
            print(f"[{part.name}] {line}", end="", flush=True)
    running.remove(process)
    part.code = process.returncode
    part.minutes = (time.monotonic() - began) / 60


def main() -> None:
    """Runs all parts with the command line's arguments."""
    arguments = sys.argv[1:]
    if slow := arguments[:1] == ["--slow"]:
        del arguments[0]
    sys.exit(run(parts(arguments, slow=slow), int(os.environ.get("TEST_JOBS", JOBS))))


if __name__ == "__main__":
    main()
