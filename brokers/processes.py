"""Programs that run beside a test or a tool: started in a process group of their own, ended by that group's id."""

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
    """This many different TCP ports of 127.0.0.1 that nobody listens on now.

    They are free, not reserved: another program may take one before its user does, so a starter tries again.
    """
    with contextlib.ExitStack() as stack:
        ports = []
        for _ in range(count):
            probe = stack.enter_context(socket.socket())
            probe.bind(("127.0.0.1", 0))
            ports.append(int(probe.getsockname()[1]))
        return ports


def log_tail(log: Path, lines: int = 25) -> str:
    """The last lines of a log file, or a remark that there is none."""
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return f"({log} was not written)"


class ManagedProcess:
    """One running program; it ends at the latest when this Python process does, even if that is killed.

    Args:
        command: the program and its arguments.
        log: receives its standard output and error, appended.
        environment: added to this process's environment.
        folder: its working folder.
    """

    def __init__(
        self, command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str] | None = None, folder: Path
    ) -> None:
        self.log = log
        self.command = [str(part) for part in command]
        with log.open("ab") as output:
            self._supervisor = subprocess.Popen(
                # -S: no site-packages, so it starts in 20 ms and no plug-in runs in it.
                [sys.executable, "-I", "-S", str(SUPERVISOR), *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env={**os.environ, **(environment or {})},
                cwd=folder,
                start_new_session=True,  # a Ctrl-C at the terminal reaches the owner, which then ends this in order
            )
        assert self._supervisor.stdout is not None  # noqa: S101 - for the type checker: it was asked for above
        first_line = self._supervisor.stdout.readline()
        if not first_line:
            self._close()
            raise RuntimeError(f"{self.command[0]} could not be started:\n{log_tail(log)}")
        self.pid = int(first_line)

    @property
    def alive(self) -> bool:
        """Whether the program still runs."""
        return self._supervisor.poll() is None

    def wait(self, timeout_s: float) -> int:
        """Waits until the program has ended by itself and returns its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        code = self._supervisor.wait(timeout_s)
        self._close()
        return code

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the program and everything it started; nothing happens if it has ended."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self, timeout_s: float = 20.0) -> None:
        """Asks it to end, waits, and kills what is left after the timeout."""
        self.signal(signal.SIGTERM)
        try:
            self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._close()

    def kill(self) -> None:
        """Ends it without notice (SIGKILL) and waits until it is gone."""
        self.signal(signal.SIGKILL)
        self._supervisor.wait(20)
        self._close()

    def _close(self) -> None:
        for pipe in (self._supervisor.stdin, self._supervisor.stdout):
            if pipe is not None:
                pipe.close()
        self._supervisor.wait(20)
