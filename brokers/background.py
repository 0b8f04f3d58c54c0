"""Real brokers in the background, on their default ports: `make brokers`, `make brokers-stop`.

    python -m brokers start | stop | status [pulsar | tubemq | nsq ...]

Running processes are recorded in the cache with their start times, so that `stop` never ends another process with a
reused id. The brokers' data stays in the cache between starts.
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
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Protocol

from brokers import pulsar as pulsar_broker
from brokers import tubemq as tubemq_servers
from brokers.cache import cache_folder, exclusive
from brokers.nsq import NsqdProcess, NsqlookupdProcess, nsqd_on_path, wait_until_answering
from brokers.pulsar import PulsarStandalone, wait_until_ready
from brokers.pulsar_admin import PulsarAdmin
from brokers.tubemq import TubeCluster
from brokers.tubemq_admin import AdminError, Topic

STOP_TIMEOUT_S = 20.0
TUBEMQ_PORTS = (2181, 8715, 8717, 8716, 8123, 8127, 8124, 8125, 8128, 8126)
"""ZooKeeper's, then (port, web, TLS) of the master and of each broker; the default web port, 8080, is Pulsar's."""
NSQ_PORTS = (4150, 4151, 4160, 4161)
"""nsqd's (TCP, HTTP), then nsqlookupd's."""
PULSAR_NAMESPACE = "public/default"
TUBEMQ_TOPIC = Topic("demo", partitions=3)


class Background:
    """A process that outlives this command; its start time distinguishes it from a later one with the same id."""

    def __init__(self, pid: int, started: str) -> None:
        self.pid = pid
        self.started = started

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        # Reap it if this command started it, since a zombie would count as running.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return bool(self.started) and _start_time(self.pid) == self.started

    def stop(self) -> None:
        """Send SIGTERM to its process group, wait, and kill it after the timeout."""
        self._end(signal.SIGTERM, signal.SIGKILL)

    def kill(self) -> None:
        """Kill its process group."""
        self._end(signal.SIGKILL)

    def _end(self, *signals: signal.Signals) -> None:
        for number in signals:
            if not self.alive:
                return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            while self.alive and time.monotonic() < deadline:
                time.sleep(0.05)  # usually not a child process, so there is no event to wait for


class Record:
    """The processes of one kind of broker started by this tool, in order."""

    def __init__(self, kind: str) -> None:
        self._file = cache_folder() / "brokers" / f"{kind}.json"

    def launch(
        self, name: str, command: Sequence[str], *, log: Path, folder: Path, environment: Mapping[str, str] = os.environ
    ) -> Background:
        """Start and record a process."""
        with log.open("ab") as output:
            # In a new session it outlives this command, and its process group can be ended by id.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                cwd=folder,
                start_new_session=True,
            )
        started = Background(process.pid, _start_time(process.pid))
        everything = self.processes | {name: started}
        self._file.write_text(json.dumps({key: [each.pid, each.started] for key, each in everything.items()}))
        return started

    @property
    def processes(self) -> dict[str, Background]:
        """All started processes by name, running or not."""
        try:
            found = json.loads(self._file.read_text())
            return {name: Background(int(pid), str(started)) for name, (pid, started) in found.items()}
        except (FileNotFoundError, ValueError, TypeError):
            return {}

    def stop(self) -> bool:
        """Stop the processes in reverse order; return whether any was running."""
        running = [process for process in self.processes.values() if process.alive]
        for process in reversed(running):
            process.stop()
        self._file.unlink(missing_ok=True)
        return bool(running)


class Kind(Protocol):
    """One kind of broker."""

    @property
    def name(self) -> str:
        """Its name on the command line and in the record."""
        ...

    @property
    def processes(self) -> int:
        """The number of its processes."""
        ...

    @property
    def ports(self) -> Iterable[int]:
        """The ports it listens on."""
        ...

    def start(self, record: Record) -> None:
        """Start its processes, and wait until it is ready."""
        ...

    def wait(self, record: Record) -> None:
        """Wait until it is ready."""
        ...

    def describe(self) -> str:
        """Return its addresses."""
        ...


class Pulsar:
    """Pulsar standalone with transactions and deduplication, so that every `deliveryGuarantee` works."""

    name = "pulsar"
    processes = 1
    overrides: ClassVar[Mapping[str, str]] = {"transactionCoordinatorEnabled": "true"}

    def __init__(self) -> None:
        ports = pulsar_broker.Ports()
        self.ports = (ports.broker, ports.web)
        folder = cache_folder() / "brokers" / self.name
        self._broker = PulsarStandalone(folder, overrides=self.overrides, ports=ports)

    def start(self, record: Record) -> None:
        """Start the broker, and wait until it is ready."""
        command, environment = self._broker.prepare()
        folder = self._broker.folder
        record.launch(self.name, command, log=self._broker.log, folder=folder, environment=environment)
        self.wait(record)

    def wait(self, record: Record) -> None:
        """Wait until it is ready, and configure it."""
        process = record.processes[self.name]
        wait_until_ready(self._broker.admin, self._broker.log, still_alive=lambda: process.alive)
        self.configure(self._broker.admin)

    @staticmethod
    def configure(admin: PulsarAdmin) -> None:
        """Enable retention and deduplication."""
        admin.set_retention(PULSAR_NAMESPACE)
        admin.set_deduplication(PULSAR_NAMESPACE, enabled=True)

    def describe(self) -> str:
        """Return its addresses."""
        broker = self._broker
        return f"{broker.service_url}   admin {broker.admin_url}   (Pulsar {pulsar_broker.VERSION}, log {broker.log})"


class TubeMQ:
    """ZooKeeper, a master and two brokers, with one topic."""

    name = "tubemq"
    processes = 4
    ports = TUBEMQ_PORTS

    def __init__(self) -> None:
        self._folder = cache_folder() / "brokers" / self.name

    def start(self, record: Record) -> None:
        """Start all servers, and wait until the topic is ready."""

        def launch(server: tubemq_servers.Server) -> Background:
            folder = tubemq_servers.distribution()
            return record.launch(server.name, server.command, log=server.log, folder=folder)

        TubeCluster(self._folder, broker_count=2, topics=[TUBEMQ_TOPIC], ports=TUBEMQ_PORTS, launch=launch).start()

    def wait(self, record: Record) -> None:
        """Wait until the topic is ready."""
        cluster = TubeCluster(self._folder, broker_count=2, ports=TUBEMQ_PORTS)
        cluster.prepare()
        for server in cluster.servers:
            server.process = record.processes[server.name]
        cluster.wait_for_topics([TUBEMQ_TOPIC.name])

    def describe(self) -> str:
        """Return its addresses, and the topic."""
        web = f"http://{tubemq_servers.HOST}:{TUBEMQ_PORTS[2]}"
        return (
            f"{tubemq_servers.HOST}:{TUBEMQ_PORTS[1]}   admin {web}   topic {TUBEMQ_TOPIC.name}"
            f"   (TubeMQ {tubemq_servers.VERSION}, logs {self._folder})"
        )


class Nsq:
    """nsqd and nsqlookupd if they are on PATH, otherwise the embedded broker."""

    name = "nsq"

    def __init__(self) -> None:
        self._folder = cache_folder() / "brokers" / self.name
        tcp_port, http_port, lookupd_tcp_port, lookupd_http_port = NSQ_PORTS
        self._lookupd = NsqlookupdProcess(self._folder, tcp_port=lookupd_tcp_port, http_port=lookupd_http_port)
        self._nsqd = NsqdProcess(self._folder, lookupd=self._lookupd, tcp_port=tcp_port, http_port=http_port)
        self._commands = {"nsq": [sys.executable, "-m", "spark_mq_source.testing"]}
        if nsqd_on_path():
            self._commands = {"nsqlookupd": self._lookupd.command(), "nsqd": self._nsqd.command()}
        self.processes = len(self._commands)
        self.ports = NSQ_PORTS

    def start(self, record: Record) -> None:
        """Start the processes, and wait until they answer."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, command in self._commands.items():
            record.launch(name, command, log=self._folder / f"{name}.log", folder=self._folder)
        self.wait(record)

    def wait(self, record: Record) -> None:
        """Wait until both HTTP interfaces answer."""
        processes = record.processes.values()
        for address, name in ((self._lookupd.http_address, "nsqlookupd"), (self._nsqd.http_address, "nsqd")):
            log = self._folder / f"{name if name in self._commands else self.name}.log"
            wait_until_answering(address, log, lambda: all(process.alive for process in processes))

    def describe(self) -> str:
        """Return its addresses."""
        kind = "nsqd and nsqlookupd" if nsqd_on_path() else "embedded broker"
        return (
            f"{self._nsqd.tcp_address}   http {self._nsqd.http_address}   lookupd {self._lookupd.http_address}"
            f"   ({kind}, logs {self._folder})"
        )


KINDS: tuple[Callable[[], Kind], ...] = (Pulsar, TubeMQ, Nsq)


def main() -> None:
    """Parse the command line.

    Raises:
        SystemExit: a broker did not start, or (status) is not running.
    """
    kinds = [make() for make in KINDS]
    parser = argparse.ArgumentParser(prog="python -m brokers", description="Real brokers in the background.")
    parser.add_argument("command", choices=["start", "stop", "status"])
    parser.add_argument("brokers", nargs="*", choices=[*(kind.name for kind in kinds), []], help="which (default: all)")
    options = parser.parse_args()
    wanted = [kind for kind in kinds if not options.brokers or kind.name in options.brokers]
    with exclusive("brokers"):
        if options.command == "start":
            for kind in wanted:
                start(kind)
        elif options.command == "stop":
            for kind in wanted:
                _say(kind, "stopped" if Record(kind.name).stop() else "was not running")
        else:
            running = [is_running(kind, Record(kind.name)) for kind in wanted]
            for kind, runs in zip(wanted, running, strict=True):
                _say(kind, kind.describe() if runs else "not started by this tool")
            sys.exit(0 if all(running) else 1)


def start(kind: Kind) -> None:
    """Start a broker unless it is running, wait until it is ready, and print one line.

    Raises:
        SystemExit: it could not be started; the message says why.
    """
    record = Record(kind.name)
    try:
        if is_running(kind, record):
            kind.wait(record)
        else:
            record.stop()  # remaining processes
            _refuse_taken_ports(kind)
            kind.start(record)
    except (RuntimeError, AdminError) as error:
        record.stop()
        sys.exit(str(error))
    _say(kind, kind.describe())


def is_running(kind: Kind, record: Record) -> bool:
    """Return whether all its processes are running."""
    processes = record.processes.values()
    return len(processes) == kind.processes and all(process.alive for process in processes)


def _say(kind: Kind, text: str) -> None:
    print(f"{kind.name:8} {text}")


def _start_time(pid: int) -> str:
    """Return the start time of a process from /proc, or else from ps; empty if the process does not exist."""
    if Path("/proc/self/stat").exists():
        try:
            # The command's name, in parentheses, may contain blanks; the start time is field 22.
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        except (FileNotFoundError, ProcessLookupError):
            return ""
    ps = shutil.which("ps") or "ps"
    asked = subprocess.run([ps, "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return asked.stdout.strip()


def _refuse_taken_ports(kind: Kind) -> None:
    for port in kind.ports:
        with socket.socket() as probe:
            # As in the broker: ports of recently closed connections are usable.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError as error:
                sys.exit(f"{kind.name:8} port {port} of 127.0.0.1 is in use by another program: {error.strerror}")


if __name__ == "__main__":
    main()
