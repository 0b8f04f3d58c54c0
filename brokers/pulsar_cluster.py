"""A real Pulsar cluster on 127.0.0.1: ZooKeeper, bookies and brokers, each a process that can be killed or frozen.

with PulsarCluster(Path("/tmp/somewhere")) as cluster:
    cluster.service_url, cluster.admin, cluster.servers
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import tempfile
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from brokers.class_data import ClassData
from brokers.processes import ManagedProcess, free_ports, log_tail
from brokers.pulsar import (
    SMALL_JVM,
    START_TIMEOUT_S,
    VERSION,
    archived_environment,
    class_data,
    configured,
    distribution,
    wait_until_ready,
)
from brokers.pulsar_admin import PulsarAdmin

if TYPE_CHECKING:
    from typing_extensions import Self

NAME = "cluster"
HOST = "127.0.0.1"
JVM = {**SMALL_JVM, "PULSAR_MEM": "-Xms128m -Xmx400m -XX:MaxDirectMemorySize=400m"}
"""Enough for each process under the load of tests."""

ZOOKEEPER = "tickTime=1000\ninitLimit=10\nsyncLimit=5\nadmin.enableServer=false\nmaxClientCnxns=0\n"

BOOKIE = {
    "advertisedAddress": HOST,
    "allowLoopback": "true",
    "dbStorage_writeCacheMaxSizeMb": "32",
    "dbStorage_readAheadCacheMaxSizeMb": "16",
    "dbStorage_rocksDB_blockCacheSize": str(16 << 20),
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
    "httpServerEnabled": "false",
    "statsProviderClass": "org.apache.bookkeeper.stats.NullStatsProvider",
}

# A message is on two of three bookies, so one that is lost loses nothing. Ledgers are small, so a topic has many.
BROKER = {
    "clusterName": NAME,
    "bindAddress": HOST,
    "advertisedAddress": HOST,
    "managedLedgerDefaultEnsembleSize": "2",
    "managedLedgerDefaultWriteQuorum": "2",
    "managedLedgerDefaultAckQuorum": "2",
    "managedLedgerMaxEntriesPerLedger": "500",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "metadataStoreSessionTimeoutMillis": "10000",
    "transactionCoordinatorEnabled": "true",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "loadBalancerSheddingEnabled": "false",
}


@dataclass(slots=True)
class PulsarServer:
    """One process of a cluster.

    Attributes:
        command: its command line.
        log: its log file.
        environment: its environment variables.
        archive: the archive of its classes.
    """

    command: list[str]
    log: Path
    environment: dict[str, str]
    archive: ClassData
    process: ManagedProcess | None = None

    @property
    def running(self) -> bool:
        """Whether it is running, or frozen."""
        return self.process is not None and self.process.alive

    def start(self) -> None:
        """Start it, unless it is running, without waiting until it is ready."""
        if not self.running:
            folder = self.log.parent
            self.process = ManagedProcess(self.command, log=self.log, environment=self.environment, folder=folder)

    def kill(self) -> None:
        """Kill it (SIGKILL), as in a crash."""
        if self.process is not None:
            self.process.kill()
            self.process = None


@dataclass(slots=True)
class PulsarCluster:
    """Brokers and bookies with one ZooKeeper, and their data.

    Args:
        folder: folder for all files, created if missing.
        brokers: how many brokers.
        bookies: how many bookies; a message is stored on two of them.
        overrides: further settings of broker.conf.
        proxy: whether a Pulsar proxy runs, too.

    Attributes:
        servers: the processes by name: `zookeeper`, `bookie-0`, ..., `broker-0`, ..., `proxy`
    """

    folder: Path
    brokers: int = 3
    bookies: int = 3
    overrides: Mapping[str, str] = field(default_factory=dict)
    proxy: bool = False
    servers: dict[str, PulsarServer] = field(default_factory=dict)
    _ports: list[int] = field(default_factory=list)

    @property
    def service_url(self) -> str:
        """The address of all brokers, as clients take it."""
        return "pulsar://" + ",".join(f"{HOST}:{self.broker_port(number)}" for number in range(self.brokers))

    @property
    def proxy_url(self) -> str:
        """The address of the Pulsar proxy."""
        return f"pulsar://{HOST}:{self._ports[-2]}"

    @property
    def proxied_ports(self) -> list[int]:
        """The ports of the listener `proxied`, which the brokers advertise and nothing of the cluster listens on."""
        return self._ports[-2 - self.brokers : -2]

    @property
    def admin_url(self) -> str:
        """The address of the first broker's admin API."""
        return f"http://{HOST}:{self._web_port(0)}"

    @property
    def admin(self) -> PulsarAdmin:
        """A client of the admin API of a broker that runs, which the caller closes.

        Raises:
            RuntimeError: no broker runs.
        """
        for number in range(self.brokers):
            if self.servers[f"broker-{number}"].running:
                return PulsarAdmin(f"http://{HOST}:{self._web_port(number)}")
        raise RuntimeError("no broker of the cluster is running")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> Self:
        """Start all processes, with new metadata if there is none, and wait until each broker serves topics.

        Raises:
            RuntimeError: one ended, or was not ready in time; with the end of its log.
        """
        new = not self.servers
        if new:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._ports = free_ports(1 + self.bookies + 3 * self.brokers + 2)
            self._configure()
        try:
            self.servers["zookeeper"].start()
            if new:
                self._initialize_metadata()
            for server in self.servers.values():
                server.start()
            for number in range(self.brokers):
                self.wait_for_broker(number)
            if self.proxy:
                self._wait("proxy", self._ports[-1])
        except BaseException:
            self.kill()
            raise
        return self

    def wait_for_broker(self, number: int) -> None:
        """Wait until a broker serves topics.

        Raises:
            RuntimeError: it ended, or was not ready in time; with the end of its log.
        """
        self._wait(f"broker-{number}", self._web_port(number))

    def _wait(self, name: str, web_port: int) -> None:
        server = self.servers[name]
        with contextlib.closing(PulsarAdmin(f"http://{HOST}:{web_port}")) as admin:
            wait_until_ready(admin, server.log, still_alive=lambda: server.running, cluster=NAME)
        if server.process is not None:
            server.archive.make(server.process.pid)

    def kill(self) -> None:
        """Kill all processes (SIGKILL). Their data stays."""
        for server in reversed(self.servers.values()):
            server.kill()

    # -- configuration

    def broker_port(self, number: int) -> int:
        """Return the port of a broker."""
        return self._ports[1 + self.bookies + 2 * number]

    def _web_port(self, number: int) -> int:
        return self._ports[2 + self.bookies + 2 * number]

    @property
    def _metadata_store(self) -> str:
        return f"zk:{HOST}:{self._ports[0]}"

    def _configure(self) -> None:
        folder = self.folder / "zookeeper"
        settings = f"dataDir={folder / 'data'}\nclientPort={self._ports[0]}\nclientPortAddress={HOST}\n"
        self._add("zookeeper", "zookeeper", "PULSAR_ZK_CONF", ZOOKEEPER + settings)
        for number in range(self.bookies):
            name = f"bookie-{number}"
            settings_of_bookie = BOOKIE | {
                "bookiePort": str(self._ports[1 + number]),
                "journalDirectories": str(self.folder / name / "journal"),
                "ledgerDirectories": str(self.folder / name / "ledgers"),
                "metadataServiceUri": f"zk+hierarchical://{HOST}:{self._ports[0]}/ledgers",
            }
            stock = (distribution() / "conf" / "bookkeeper.conf").read_text()
            self._add(name, "bookie", "PULSAR_BOOKKEEPER_CONF", configured(stock, settings_of_bookie))
        for number in range(self.brokers):
            settings_of_broker = BROKER | {
                "brokerServicePort": str(self.broker_port(number)),
                "webServicePort": str(self._web_port(number)),
                "advertisedListeners": (
                    f"internal:pulsar://{HOST}:{self.broker_port(number)},"
                    f"proxied:pulsar://{HOST}:{self.proxied_ports[number]}"
                ),
                "internalListenerName": "internal",
                "metadataStoreUrl": self._metadata_store,
                "configurationMetadataStoreUrl": self._metadata_store,
            }
            stock = (distribution() / "conf" / "broker.conf").read_text()
            text = configured(stock, settings_of_broker | dict(self.overrides))
            self._add(f"broker-{number}", "broker", "PULSAR_BROKER_CONF", text)
        if self.proxy:
            settings_of_proxy = {
                "clusterName": NAME,
                "bindAddress": HOST,
                "advertisedAddress": HOST,
                "servicePort": str(self._ports[-2]),
                "webServicePort": str(self._ports[-1]),
                "metadataStoreUrl": self._metadata_store,
                "configurationMetadataStoreUrl": self._metadata_store,
                "brokerProxyAllowedTargetPorts": "*",
            }
            stock = (distribution() / "conf" / "proxy.conf").read_text()
            self._add("proxy", "proxy", "PULSAR_PROXY_CONF", configured(stock, settings_of_proxy))

    def _add(self, name: str, role: str, variable: str, configuration: str) -> None:
        folder = self.folder / name
        folder.mkdir()
        file = folder / f"{role}.conf"
        file.write_text(configuration)
        archive = class_data(VERSION, role, JVM)
        self.servers[name] = PulsarServer(
            [str(distribution() / "bin" / "pulsar"), role],
            folder / "log",
            {**archived_environment(folder, JVM, archive, distribution()), variable: str(file)},
            archive,
        )

    def _initialize_metadata(self) -> None:
        """Create the cluster in ZooKeeper, which is repeated until it answers.

        Raises:
            RuntimeError: it failed until the time-out; with the end of its output.
        """
        server = self.servers["zookeeper"]
        command = [
            str(distribution() / "bin" / "pulsar"), "initialize-cluster-metadata", "--cluster", NAME,
            "--metadata-store", self._metadata_store, "--configuration-metadata-store", self._metadata_store,
            "--web-service-url", self.admin_url, "--broker-service-url", self.service_url,
        ]  # fmt: skip
        log = self.folder / "metadata.log"
        process = ManagedProcess(command, log=log, environment=server.environment, folder=self.folder)
        if process.wait(START_TIMEOUT_S) != 0:
            raise RuntimeError(f"the cluster's metadata could not be created; the end of {log}:\n{log_tail(log)}")


def main(arguments: list[str] | None = None) -> None:
    """Run a cluster until a signal."""
    parser = argparse.ArgumentParser(prog="python -m brokers.pulsar_cluster", description="A Pulsar cluster.")
    parser.add_argument("--brokers", type=int, default=3, help="number (default: 3)")
    parser.add_argument("--proxy", action="store_true", help="run a Pulsar proxy, too")
    parser.add_argument("--bookies", type=int, default=3, help="number, at least 2 (default: 3)")
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with (
        tempfile.TemporaryDirectory(prefix="pulsar-cluster-", ignore_cleanup_errors=True) as folder,
        PulsarCluster(Path(folder), options.brokers, options.bookies, proxy=options.proxy) as cluster,
    ):
        pids = {name: server.process.pid for name, server in cluster.servers.items() if server.process}
        found = {"serviceUrl": cluster.service_url, "adminUrl": cluster.admin_url, "pids": pids}
        print(json.dumps(found | ({"proxyUrl": cluster.proxy_url} if cluster.proxy else {})), flush=True)
        ended.wait()


if __name__ == "__main__":
    main()
