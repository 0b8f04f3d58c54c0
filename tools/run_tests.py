"""Run the test suite in parts, four at a time: a part waits for brokers and for Spark, and uses half a core.

    python -m tools.run_tests [--slow | --all] [argument of pytest ...]

Each line begins with the name of its part; the end repeats pytest's summary of each part without the skipped tests,
those of parts that failed last, because often only the end of a log is kept. The parts are the tests that
need no broker, on the checked build of the compiled modules (`tests.checked`), those that share a Spark session, those
of Pulsar alone, all others, and the contracts of tests/spark that a release of Spark may break, with the oldest
supported dependencies: the contracts are Spark's, so all of them run with one format, and a read and a write of all
columns with each other one.
``--slow`` runs only the tests marked `slow`; ``--all`` runs these with all others, and so starts brokers and sessions
once for both, but leaves out the chaos on clusters. ``TEST_JOBS=1`` in the environment runs the parts one after the
other.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

JOBS = 4
NEWEST, OLDEST = ".make/env/bin/python", ".make/env-oldest/bin/python"
SPARK = "tests/spark"
WITH_SPARK = (SPARK, "tests/docs/test_snippets.py")
"""The tests that share one session."""
PULSAR = ("tests/behaviours/pulsar", "tests/simulation/pulsar")
"""The tests of Pulsar alone, without Spark: they take as long as all the remaining ones."""
QUICK = ("tests/unit", "tests/properties", "src")
"""The tests that need neither a broker nor Spark, and the examples in docstrings: run on the checked build."""
CHECKED = ("-p", "tests.checked")
RELEASES = tuple(
    f"{SPARK}/test_{name}.py" for name in ("batch_contract", "stream_contract", "write_contract", "streaming")
)
"""The contracts that a release of Spark may break: its calls of a data source and of a stream."""
ON_RELEASES = "nsq_embedded or test_streaming or cuts_short or named_columns or every_row_of_every"
"""All with the fastest format, streams by offsets with Pulsar, and a read and a write with each format."""
SUMMARY = "short test summary info"
NOTHING_SELECTED = 5
"""pytest's exit code if the arguments select no test; they must select one in some part."""


@dataclass
class Part:
    """A part of the tests.

    Attributes:
        name: the name at the beginning of its lines.
        command: the command that runs it.
        lines: its output.
        code: its exit code.
        minutes: its duration.
    """

    name: str
    command: Sequence[str]
    lines: list[str] = field(default_factory=list)
    code: int = -1
    minutes: float = 0.0

    @property
    def failed(self) -> bool:
        """Whether a test or pytest itself failed; a part without a test that the arguments select did not."""
        return self.code not in {0, NOTHING_SELECTED}

    def summary(self) -> list[str]:
        """Return pytest's summary without the skipped tests, or its last line."""
        # The last one: the output of a failed test may contain a summary too.
        begin = max((n for n, line in enumerate(self.lines) if SUMMARY in line), default=-1)
        return [line for line in self.lines[begin:] if not line.startswith("SKIPPED")]


def parts(arguments: Sequence[str], *, chosen: str = "not slow") -> list[Part]:
    """Return the parts of the suite, those that take longest first.

    Args:
        arguments: arguments of pytest; its last `-m` wins, so that one here replaces `chosen`.
        chosen: the expression of marks: `slow`, `not slow`, or `not chaos` for both.
    """
    pytest = ("-m", "pytest", "-m", chosen)
    if chosen == "slow":
        return [
            Part("spark", [NEWEST, *pytest, *arguments, *WITH_SPARK]),
            Part("pulsar", [NEWEST, *pytest, *arguments, *PULSAR]),
            Part("other", [NEWEST, *pytest, *arguments, "tests", "src", *_but(*WITH_SPARK, *PULSAR)]),
        ]
    return [
        Part("spark", [NEWEST, *pytest, *arguments, *WITH_SPARK]),
        Part("other", [NEWEST, *pytest, *arguments, "tests", *_but(*WITH_SPARK, *PULSAR, *QUICK)]),
        Part("pulsar", [NEWEST, *pytest, *arguments, *PULSAR]),
        Part("oldest", [OLDEST, "-m", "pytest", "-m", "not slow", "-k", ON_RELEASES, *arguments, *RELEASES]),
        Part("quick", [NEWEST, *pytest, *arguments, *CHECKED, *QUICK]),
    ]


def _but(*paths: str) -> list[str]:
    return [f"--ignore={path}" for path in paths]


def run(found: Sequence[Part], jobs: int) -> int:
    """Run the parts, `jobs` at a time, and print; return 1 if one of them failed, or none had a test to run.

    An interrupt, or the signal to end, is passed on once to the parts that run: they report the failures until then.
    Their temporary files are in one folder, which remains after a failure.
    """
    folder = tempfile.mkdtemp(prefix="tests-")
    running: list[subprocess.Popen[str]] = []
    stopping = threading.Event()

    def stop(*_: object) -> None:
        stopping.set()
        for process in tuple(running):
            process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(partial(_run, folder=folder, running=running, stopping=stopping), found))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    has_failed = any(part.failed for part in found)
    if has_failed:
        print(f"\nThe files of these tests are in {folder}.")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    for part in sorted(found, key=lambda part: part.failed):
        print(f"\n======== {part.name}: {part.minutes:.1f} minutes, exit code {part.code}", *part.summary(), sep="\n")
    return int(has_failed or all(part.code == NOTHING_SELECTED for part in found))


def _run(part: Part, *, folder: str, running: list[subprocess.Popen[str]], stopping: threading.Event) -> None:
    if stopping.is_set():
        return
    began = time.monotonic()
    with subprocess.Popen(
        part.command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONUNBUFFERED": "1", "TMPDIR": folder},
        start_new_session=True,  # an interrupt of the terminal reaches it only by `stop`
    ) as process:
        running.append(process)
        assert process.stdout is not None  # noqa: S101 - for mypy
        for line in process.stdout:
            part.lines.append(line.rstrip("\n"))
            print(f"[{part.name}] {line}", end="", flush=True)
    running.remove(process)
    part.code = process.returncode
    part.minutes = (time.monotonic() - began) / 60


CHOICES = {"--slow": "slow", "--all": "not chaos"}


def main() -> None:
    """Run all parts with the command line's arguments."""
    first, *rest = sys.argv[1:] or [""]
    chosen, arguments = (CHOICES[first], rest) if first in CHOICES else ("not slow", sys.argv[1:])
    sys.exit(run(parts(arguments, chosen=chosen), int(os.environ.get("TEST_JOBS", JOBS))))


if __name__ == "__main__":
    main()
