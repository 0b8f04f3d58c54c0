"""Background programs of tests and tools: started in their own process group, and ended by its id."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SUPERVISOR = Path(__file__).with_name("supervise.py")


def free_ports(count: int) -> list[int]:
    """Return this many different free TCP ports of 127.0.0.1.

    They are not reserved: another program may take one first, so callers retry.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def log_tail(log: Path, lines: int = 25) -> str:
    """Return the last lines of a log file, or a note that it does not exist."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return f"({log} was not written)"


class ManagedProcess:
    """A running program, which ends at the latest with this Python process, even if that is killed.

    Args:
        command: the program and its arguments.
        log: file to which standard output and error are appended.
        environment: added to this process's environment.
        folder: working folder of the program.
    """

    def __init__(
        self, command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None, folder: Path
    ) -> None:
        self.log = log
        self.command = [str(part) for part in command]
        with log.open("ab") as output:
            self._supervisor = subprocess.Popen(
                # -S: without site-packages it starts in 20 ms and runs no plug-ins.
                [sys.executable, "-I", "-S", str(SUPERVISOR), *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,  # a Ctrl-C at the terminal reaches only the owner, which stops this program
            )
        assert self._supervisor.stdout is not None  # noqa: S101 - for the type checker: a pipe, see above
        first_line = self._supervisor.stdout.readline()
        if not first_line:
            self._close()
            raise RuntimeError(f"{self.command[0]} could not be started:\n{log_tail(log)}")
        self.pid = int(first_line)

    @property
    def alive(self) -> bool:
        """Whether the program is running."""
        return self._supervisor.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Wait until the program has ended by itself; return its exit code.

        Raises:
            subprocess.TimeoutExpired: it is still running.
        """
        code = self._supervisor.wait(timeout_s)
        self._close()
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program's process group, unless it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self, timeout_s: float = 20.0) -> None:
        """Send SIGTERM, wait, and kill the process group after the timeout."""
        self.signal(signal.SIGTERM)
        try:
            self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def kill(self) -> None:
        """Kill the process group (SIGKILL) and wait until it has ended."""
        self.signal(signal.SIGKILL)
        self._supervisor.wait(20)
        self._close()

    def _close(self) -> None:
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                pipe.close()
        self._supervisor.wait(20)
