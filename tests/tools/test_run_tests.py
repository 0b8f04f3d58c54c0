"""The parts of the suite: their lines and summaries, and their exit code."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from tools.run_tests import NOTHING_SELECTED, ON_RELEASES, Part, parts, run

TESTS = {
    "good": "def test_it(): print('said')",
    "bad": "def test_it(): assert 1 == 2",
    "none": "",
}


@pytest.fixture(autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Start pytest without plug-ins, which take longer than the rest; return the folder in which run makes its own."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("folders")))
    return Path(tempfile.gettempdir())


def part(folder: Path, name: str) -> Part:
    """A real run of pytest over one file."""
    file = folder / f"test_{name}.py"
    file.write_text(TESTS[name])
    return Part(
        name, [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", os.devnull, "-ra", "-s", str(file)]
    )


def test_lines_say_their_part_and_the_end_says_all_summaries_failed_parts_last(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    none = part(tmp_path, "none")
    assert run([part(tmp_path, "bad"), part(tmp_path, "good"), none], 2) == 1
    assert none.code == NOTHING_SELECTED
    lines = capfd.readouterr().out.splitlines()
    assert any(line.startswith("[good] ") and "said" in line for line in lines)
    begins = [n for n, line in enumerate(lines) if line.startswith("======== ")]
    assert "1 passed" in lines[begins[0] + 1]
    end = lines[begins[2] :]
    assert end[0].startswith("======== bad")
    assert "exit code 1" in end[0]
    assert "short test summary info" in end[1]
    assert end[2].startswith("FAILED ")
    assert "test_bad.py::test_it" in end[2]
    assert "1 failed" in end[-1]


@pytest.mark.parametrize(
    ("codes", "code"),
    [([0, NOTHING_SELECTED], 0), ([NOTHING_SELECTED] * 2, 1), ([0, pytest.ExitCode.TESTS_FAILED, 0], 1)],
)
def test_one_failure_fails_all_and_so_does_having_no_test_in_any_part(codes: list[int], code: int) -> None:
    assert run([Part("part", [sys.executable, "-S", "-c", f"raise SystemExit({each:d})"]) for each in codes], 1) == code


@pytest.mark.parametrize("fails", [False, True])
def test_temporary_files_remain_only_after_a_failure(
    folder: Path, capfd: pytest.CaptureFixture[str], fails: bool
) -> None:
    writing = f"import tempfile; tempfile.mkstemp(); raise SystemExit({fails:d})"
    assert run([Part("writing", [sys.executable, "-S", "-c", writing])], 1) == fails
    found = list(folder.iterdir())
    assert [len(list(one.iterdir())) for one in found] == [1] * fails
    assert all(f"are in {one}." in capfd.readouterr().out for one in found)


def test_an_interrupt_ends_the_parts_that_run_and_starts_no_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # An interrupt within an import or a destructor would be ignored.
    program = f"import os, time; os.close(os.open({str(pipe)!r}, os.O_WRONLY)); time.sleep(60)"
    waiting = Part("waiting", [sys.executable, "-c", program])

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


@pytest.mark.parametrize("chosen", ["not slow", ""])
def test_the_parts_are_the_whole_suite(chosen: str) -> None:
    commands = {one.name: one.command for one in parts(["-k", "x"], chosen=chosen)}
    begin = ["-m", "pytest", "-m", chosen, "-k", "x"]
    assert all(command[1:7] == begin for name, command in commands.items() if name != "oldest")
    assert commands["spark"][7:] == ["tests/spark", "tests/docs/test_snippets.py"]
    assert commands["quick"][7:] == ["-p", "tests.checked", "tests/unit", "tests/properties", "src"]
    assert commands["pulsar"][7:] == ["tests/behaviours/pulsar", "tests/simulation/pulsar"]
    others = [*commands["spark"][7:], *commands["pulsar"][7:], *commands["quick"][9:]]
    elsewhere = [f"--ignore={path}" for path in others]
    assert commands["other"][7:] == ["tests", *elsewhere]


def test_slow_parts_are_the_whole_suite_too() -> None:
    spark, pulsar, other = (one.command[5:] for one in parts([], chosen="slow"))
    assert spark == ["tests/spark", "tests/docs/test_snippets.py"]
    assert other == ["tests", "src", *(f"--ignore={path}" for path in [*spark, *pulsar])]


def test_the_oldest_dependencies_run_the_contracts_of_spark() -> None:
    (oldest,) = (one.command for one in parts([]) if one.name == "oldest")
    assert oldest[0] == ".make/env-oldest/bin/python"
    assert oldest[5:7] == ["-k", ON_RELEASES]
    contracts = "".join(Path(file).read_text() for file in oldest[7:])
    assert [words for words in ON_RELEASES.split(" or ") if words not in contracts] == []
