"""The end of programs that are started for a test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brokers.processes import ManagedProcess, free_ports

ROOT = Path(__file__).resolve().parents[2]
# A program that starts another one, as bin/pulsar does, and ignores SIGTERM.
STUBBORN = "trap '' TERM; sleep 300 & echo started; wait; wait"


def alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until_gone(group: int, timeout_s: float = 10.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.02)  # a foreign process group has no event
    return not alive(group)


def test_output_and_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = ManagedProcess(["sh", "-c", "echo out; echo err >&2; exit 7"], log=log, folder=tmp_path)
    assert process.wait(10) == 7
    assert log.read_text() == "out\nerr\n"
    assert not process.alive


def test_stop_ends_the_whole_group_even_if_it_ignores_the_request(tmp_path: Path) -> None:
    process = ManagedProcess(["sh", "-c", STUBBORN], log=tmp_path / "log", folder=tmp_path)
    assert alive(process.pid)
    process.stop(timeout_s=0.3)
    assert wait_until_gone(process.pid)


def test_stop_after_the_end_is_harmless(tmp_path: Path) -> None:
    process = ManagedProcess(["true"], log=tmp_path / "log", folder=tmp_path)
    for end in (process.stop, process.stop, process.kill):
        end()
        assert not process.alive


def test_a_program_that_does_not_exist_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no-such-program could not be started"):
        ManagedProcess(["no-such-program"], log=tmp_path / "log", folder=tmp_path)


def test_killing_the_owner_ends_the_program(tmp_path: Path) -> None:
    source = (
        "import sys, pathlib; from brokers.processes import ManagedProcess\n"
        f"p = ManagedProcess(['sh', '-c', {STUBBORN!r}], log=pathlib.Path({str(tmp_path / 'log')!r}), "
        f"folder=pathlib.Path({str(tmp_path)!r}))\n"
        "print(p.pid, flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    with owner:
        assert owner.stdout is not None
        group = int(owner.stdout.readline())
        assert alive(group)
        owner.send_signal(signal.SIGKILL)
    assert wait_until_gone(group)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(20))) == 20
