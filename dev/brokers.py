"""Real brokers in the background, on their usual ports: `make brokers`, `make brokers-stop`.

    python -m dev.brokers start | stop | status

What runs is recorded in the cache, with the process's start time, so that `stop` never ends a process that merely got
the same number. Their data stays in the cache from one start to the next.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from dev.cache import cache_folder, exclusive
from dev.pulsar_broker import VERSION, Ports, PulsarStandalone, wait_until_ready

STOP_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Running:
    """A process that this tool started; the start time tells it from a later one with the same number."""

    pid: int
    started: str

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return bool(self.started) and _start_time(self.pid) == self.started


def main() -> None:
    """Parses the command line.

    Raises:
        SystemExit: a broker did not start, or (status) does not run.
    """
    parser = argparse.ArgumentParser(prog="python -m dev.brokers", description="Real brokers in the background.")
    parser.add_argument("command", choices=["start", "stop", "status"])
    command = parser.parse_args().command
    with exclusive("brokers"):
        if command == "start":
            start()
        elif command == "stop":
            stop()
        else:
            running = _recorded()
            print(_line() if running and running.alive else "pulsar   not started by this tool")
            sys.exit(0 if running and running.alive else 1)


def start() -> None:
    """Starts what does not run yet, waits until it answers, prints one line a broker.

    Raises:
        SystemExit: it could not be started; the message says why.
    """
    broker = _broker()
    running = _recorded()
    if running is None or not running.alive:
        _refuse_taken_ports(Ports())
        running = _launch(broker)
    try:
        wait_until_ready(broker.admin, broker.log, still_alive=lambda: running.alive)
    except RuntimeError as error:
        stop()
        sys.exit(str(error))
    print(_line())


def stop() -> None:
    """Ends what start() started, and nothing else."""
    running = _recorded()
    if running is None or not running.alive:
        print("pulsar   was not running")
    else:
        _end(running)
        print("pulsar   stopped")
    _record_file().unlink(missing_ok=True)


def _broker() -> PulsarStandalone:
    return PulsarStandalone(cache_folder() / "brokers" / "pulsar", ports=Ports())


def _line() -> str:
    broker = _broker()
    return f"pulsar   {broker.service_url}   admin {broker.admin_url}   (Pulsar {VERSION}, log {broker.log})"


def _launch(broker: PulsarStandalone) -> Running:
    command, environment = broker.prepare()
    with broker.log.open("ab") as log:
        # A session of its own: it outlives this command, and its process group can be ended by its number.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **environment},
            cwd=broker.folder,
            start_new_session=True,
        )
    running = Running(process.pid, _start_time(process.pid))
    _record_file().write_text(json.dumps(asdict(running)))
    return running


def _end(running: Running) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, number)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while running.alive and time.monotonic() < deadline:
            _reap(running.pid)
            time.sleep(0.05)  # not our child in general, so there is no event to wait for
        if not running.alive:
            return


def _reap(pid: int) -> None:
    """Collects the process if this very command started it; a zombie would count as running."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _record_file() -> Path:
    return cache_folder() / "brokers" / "pulsar.json"


def _recorded() -> Running | None:
    try:
        return Running(**json.loads(_record_file().read_text()))
    except (FileNotFoundError, ValueError, TypeError):
        return None


def _start_time(pid: int) -> str:
    """When the process started, as /proc or (where there is none) ps tells it; empty if there is no such process."""
    if Path("/proc/self/stat").exists():
        try:
            # The command's name, in parentheses, may hold blanks; the start time is the 22nd field of the line.
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        except (FileNotFoundError, ProcessLookupError):
            return ""
    ps = shutil.which("ps") or "ps"
    asked = subprocess.run([ps, "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _refuse_taken_ports(ports: Ports) -> None:
    for port in (ports.broker, ports.web):
        with socket.socket() as probe:
            # As the broker itself will: ports of connections that just closed are no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                sys.exit(f"pulsar   port {port} of 127.0.0.1 is taken by another program: {error.strerror}")


if __name__ == "__main__":
    main()
