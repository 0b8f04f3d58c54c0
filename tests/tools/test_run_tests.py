"""The suite in parts: what is said of each, and when it counts as failed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tools.run_tests import Part, parts, run

TESTS = {
    "good": "def test_it(): print('said')",
    "bad": "def test_it(): assert 1 == 2",
    "none": "",
}


def part(folder: Path, name: str) -> Part:
    """A real run of pytest over one file."""
    file = folder / f"test_{name}.py"
    file.write_text(TESTS[name])
    return Part(
        name, [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "-ra", "-s", str(file)]
    )


def test_lines_say_their_part_and_the_end_says_all_summaries(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run([part(tmp_path, "bad"), part(tmp_path, "good")], 2) == 1
    lines = capfd.readouterr().out.splitlines()
    assert any(line.startswith("[good] ") and "said" in line for line in lines)
    end = lines[lines.index(next(line for line in lines if line.startswith("======== bad"))) :]
    assert "exit code 1" in end[0]
    assert "short test summary info" in end[1]
    assert end[2].startswith("FAILED ")
    assert "test_bad.py::test_it" in end[2]
    assert "1 passed" in end[-1]


@pytest.mark.parametrize(
    ("names", "code"), [(["good", "none"], 0), (["none", "none"], 1), (["good", "bad", "good"], 1)]
)
def test_one_failure_fails_all_and_so_does_having_no_test_in_any_part(
    tmp_path: Path, names: list[str], code: int
) -> None:
    assert run([part(tmp_path, name) for name in names], 1) == code


def test_an_interrupt_ends_the_parts_that_run_and_starts_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    waiting = Part("waiting", [sys.executable, "-c", f"open({str(pipe)!r}, 'w').close(); import time; time.sleep(60)"])

    def interrupt() -> None:
        pipe.read_text()  # until it is open at the other end
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert run([waiting, part(tmp_path, "good")], 1) == 1
    thread.join()
    out = capfd.readouterr().out
    assert "KeyboardInterrupt" in out
    assert "said" not in out


def test_the_parts_are_the_whole_suite() -> None:
    spark, other, oldest = (" ".join(one.command) for one in parts(["-k", "x"]))
    assert spark.endswith("-m pytest -k x tests/spark")
    assert other.endswith("tests src --ignore=tests/spark")
    assert "oldest" in oldest
    assert "tests/spark" in oldest
