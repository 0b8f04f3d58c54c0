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


@pytest.fixture(autouse=True)
def _quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts pytest without plug-ins: loading them takes longer than everything else here."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


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


def test_the_parts_are_the_whole_suite_but_for_the_slow_ones() -> None:
    commands = {one.name: " ".join(one.command) for one in parts(["-k", "x"])}
    assert all("-m pytest -m not slow -k x " in command for command in commands.values())
    assert commands["spark"].endswith(" -k x tests/spark tests/docs")
    assert commands["quick"].endswith(" -p tests.checked tests/unit tests/properties src")
    left = " --ignore=tests/spark --ignore=tests/docs --ignore=tests/unit --ignore=tests/properties --ignore=src"
    assert commands["other"].endswith(f" -k x tests{left}")


def test_slow_parts_are_the_rest() -> None:
    commands = {one.name: " ".join(one.command) for one in parts([], slow=True)}
    assert commands["spark"].endswith("-m pytest -m slow tests/spark tests/docs")
    assert commands["other"].endswith("-m pytest -m slow tests src --ignore=tests/spark --ignore=tests/docs")


def test_the_oldest_dependencies_run_all_of_spark_in_two_parts() -> None:
    (now,) = (one.command for one in parts([]) if one.name == "oldest")
    (later,) = (one.command for one in parts([], slow=True) if one.name == "oldest")
    assert now[0] == later[0] == ".venv-oldest/bin/python"
    files = [word for word in now if word.startswith("tests/spark/")]
    assert files
    assert all(Path(file).exists() for file in files)
    assert "tests/spark" in later
    assert all(f"--ignore={file}" in later for file in files)
