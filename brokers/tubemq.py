"""A real TubeMQ cluster of processes: ZooKeeper, masters and brokers; downloaded once, started, killed, stopped.

With a with block::

    with TubeCluster(Path("/tmp/somewhere"), topics=[Topic("flights", partitions=3)]) as cluster:
        cluster.master_addresses, cluster.admin

From the command line, until Ctrl-C or a signal::

    python -m brokers.tubemq [--brokers 2] [--masters 2] [--secure] [--unbuffered] flights:1:3 delays:2:2

A topic is NAME[:STORES[:PARTITIONS]]. When the cluster is ready (after 10 to 15 s), one line of JSON is printed:
`masters`, `brokers`, `admin` (web addresses) and, for a secure cluster, the files and names for clients.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

from brokers.cache import artifact, cache_folder, unpacked_artifact
from brokers.class_data import ClassData
from brokers.credentials import Credentials, make_credentials
from brokers.processes import ManagedProcess, free_ports, log_tail
from brokers.tubemq_admin import MODIFY_TOKEN, AdminError, Topic, TubeAdmin

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION = "2.4.0"
HOST = "127.0.0.1"
START_TIMEOUT_S = 240.0
RELOAD_S = 40.0
"""More than the 30 s that a new topic takes."""
START_ATTEMPTS = 3
POLL_S = 0.1
REPORTED_TLS_PORT = 8124
"""The port that a broker without TLS reports to a master, which must have it in its configuration (2.4.0)."""

SMALL_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CICompilerCount=1")
"""Chosen for a fast start."""
ZOOKEEPER_HEAP, MASTER_HEAP, BROKER_HEAP = "-Xmx128m", "-Xmx256m", "-Xmx384m"

AUTH_USER = "tube-user"
AUTH_PASSWORD = "flights-and-stores"  # noqa: S105 - protects nothing: servers on loopback with made-up data
STORE_PASSWORD = "throw-away"  # noqa: S105 - as above

# Run the masters' periodic work every second instead of every half minute, and forget a member that is dead as soon as
# the brokers do (`consumerRegTimeoutMs`); the official client sends a heartbeat every 13 s.
MASTER_SETTINGS = {
    "consumerBalancePeriodMs": "1000",
    "firstBalanceDelayAfterStartMs": "1000",
    "consumerHeartbeatTimeoutMs": "20000",
    "confModAuthToken": MODIFY_TOKEN,
}
BROKER_SETTINGS = {
    "maxSegmentSize": "1073741824",
    "maxIndexSegmentSize": "22020096",
    "transferSize": "524288",
    "loadMessageStoresInParallel": "true",
    "consumerRegTimeoutMs": "20000",  # the minimum
    "heartbeatPeriodMs": "500",
}
LOGGING = """<configuration status="WARN">
  <appenders>
    <Console name="out" target="SYSTEM_OUT"><PatternLayout pattern="%d{HH:mm:ss.SSS} %-5p %c{1.} %m%n"/></Console>
  </appenders>
  <loggers><root level="INFO"><appender-ref ref="out"/></root></loggers>
</configuration>
"""


def distribution() -> Path:
    """Return the unpacked TubeMQ servers, downloaded on first use; lib/ also contains the official Java client."""
    return unpacked_artifact(
        f"org.apache.inlong:tubemq-server:{VERSION}:tar.gz:bin",
        folder_name=f"apache-inlong-tubemq-server-{VERSION}",
        say=f"Fetching TubeMQ {VERSION} (51 MB, once) ...",
        # Maven requires the parent, which some repositories lack and the archive does not need.
        parent=f"org.apache.inlong:inlong-tubemq:{VERSION}",
    )


def zookeeper_classpath() -> str:
    """Return the class path of ZooKeeper, which is among TubeMQ's libraries except for one dependency."""
    metrics = artifact("io.dropwizard.metrics:metrics-core:4.1.12.1:jar", say="Fetching what ZooKeeper needs ...")
    return f"{distribution()}/lib/*:{metrics}"


def class_data(server: str) -> ClassData:
    """Return the archive of the classes of a server, for the small JVM."""
    home = distribution()
    return ClassData(cache_folder(), f"{home.name}-{server.partition('-')[0]}", [home / "lib"], SMALL_JVM)


class Process(Protocol):
    """A running program, such as `ManagedProcess`."""

    @property
    def pid(self) -> int:
        """Its process id."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        ...

    def stop(self) -> None:
        """Stop it cleanly."""
        ...

    def kill(self) -> None:
        """Kill it."""
        ...


Launch = Callable[["Server"], Process]


@dataclass(slots=True)
class Server:
    """One server of a cluster: ZooKeeper, a master or a broker.

    Attributes:
        name: e.g. `broker-1`.
        folder: folder for its files.
        command: its command line, run in the distribution's folder, where masters have their web pages.
        host: its host.
        port: its port for clients; other ports are 0 if missing.
        web_port: port of its web interface.
        tls_port: port for clients with TLS.
    """

    name: str
    folder: Path
    command: list[str]
    host: str
    port: int
    web_port: int = 0
    tls_port: int = 0
    process: Process | None = None
    _log_before_bytes: int = 0

    @property
    def log(self) -> Path:
        """Its log file."""
        return self.folder / f"{self.name}.log"

    @property
    def address(self) -> str:
        """Its address for clients."""
        return f"{self.host}:{self.port}"

    @property
    def tls_address(self) -> str:
        """Its address for clients with TLS."""
        return f"{self.host}:{self.tls_port}"

    @property
    def web(self) -> str:
        """The address of its web interface."""
        return f"http://{self.host}:{self.web_port}"

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return self.process is not None and self.process.alive

    @property
    def gave_up(self) -> bool:
        """Whether a broker's main thread has ended; its process then keeps running without effect (2.4.0).

        A heartbeat that finds a master which has just taken over logs the same exception, and is repeated.
        """
        return b'Exception in thread "main" ' in self.log.read_bytes()[self._log_before_bytes :]

    def start(self, launch: Launch) -> None:
        """Start it without waiting."""
        if self.log.exists():
            self._log_before_bytes = self.log.stat().st_size
        self.process = launch(self)

    def stop(self) -> None:
        """Stop it cleanly (SIGTERM): a broker flushes its memory."""
        if self.process is not None:
            self.process.stop()
            self.process = None

    def kill(self) -> None:
        """Kill it (SIGKILL): a broker loses the messages in its memory, acknowledged or not."""
        if self.process is not None:
            self.process.kill()
            self.process = None


def managed(server: Server) -> Process:
    """Start a server that ends with this process."""
    return ManagedProcess(server.command, log=server.log, folder=distribution())


@dataclass(slots=True)
class TubeCluster:
    """ZooKeeper, masters and brokers with their own data.

    Args:
        folder: folder for all their files, created if missing; start() reuses existing data.
        master_count: number of masters; the first is active.
        broker_count: number of brokers, with ids 1, 2, ...
        secure: with mutual TLS besides plain ports, visit tokens, and authentication of producers and consumers
            (AUTH_USER, AUTH_PASSWORD; servers only check that they are present).
        unbuffered: ids of brokers that flush every message to disk before they acknowledge it (`enableMemStore`,
            `unflushThreshold`), so that it is readable as flushed at once; by default that takes 4 to 34 s.
        topics: topics created by start(), after which all can be used; a master offers others half a minute later.
        master_settings: further settings of [master] in master.ini.
        broker_settings: further settings of [broker] in broker.ini.
        ports: ZooKeeper's, then (port, web, TLS) of each master, then of each broker; None selects free ones.
        jvm: options of every JVM.
        data_folder: folder for messages of unbuffered brokers; None for `folder`.
        launch: starts a server.
    """

    folder: Path
    master_count: int = 1
    broker_count: int = 1
    secure: bool = False
    unbuffered: Collection[int] = ()
    topics: Sequence[Topic] = ()
    master_settings: Mapping[str, str] = field(default_factory=dict)
    broker_settings: Mapping[str, str] = field(default_factory=dict)
    ports: Sequence[int] | None = None
    jvm: Sequence[str] = SMALL_JVM
    data_folder: Path | None = None
    launch: Launch = managed
    credentials: Credentials | None = None
    zookeeper: Server = field(init=False)
    masters: list[Server] = field(default_factory=list)
    brokers: list[Server] = field(default_factory=list)
    admin: TubeAdmin = field(init=False)

    # -- addresses

    @property
    def master_addresses(self) -> str:
        """The masters' addresses for clients, as host:port,host:port."""
        return ",".join(master.address for master in self.masters)

    @property
    def master_addresses_tls(self) -> str:
        """The masters' addresses for clients with TLS (secure cluster only)."""
        return ",".join(master.tls_address for master in self.masters)

    @property
    def servers(self) -> list[Server]:
        """All servers, in the order of their start."""
        return [self.zookeeper, *self.masters, *self.brokers]

    @property
    def broker_ids(self) -> range:
        """The ids of all brokers."""
        return range(1, self.broker_count + 1)

    def broker(self, broker_id: int) -> Server:
        """Return the broker with this id."""
        return self.brokers[broker_id - 1]

    @property
    def trust_store(self) -> Path:
        """The certificate authority, for Java, with STORE_PASSWORD (secure cluster only)."""
        return self.folder / "trust.p12"

    # -- start and stop

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start all servers and wait until every topic is writable and readable.

        Raises:
            RuntimeError: a server ended, or did not answer in time; with the end of its log.
        """
        choose_ports = self.ports is None
        for attempt in range(START_ATTEMPTS):
            self.prepare()
            try:
                self._start_once()
            except (AdminError, RuntimeError) as error:
                self.kill()
                if not (choose_ports and "Address already in use" in str(error)) or attempt == START_ATTEMPTS - 1:
                    raise
                self.ports = None
            else:
                return self
        raise AssertionError

    def _start_once(self) -> None:
        first, *other_masters = self.masters
        # A master started before ZooKeeper never becomes active (seen on 2.4.0).
        self.start_server(self.zookeeper)
        self.start_server(first)
        self.wait_for_leader()
        known = self.admin.query("admin_query_broker_configure")
        for broker_id, broker in enumerate(self.brokers, 1):
            if not any(int(entry["brokerId"]) == broker_id for entry in known):
                self.admin.add_broker(
                    broker_id,
                    host=broker.host,
                    port=broker.port,
                    tls_port=broker.tls_port if self.secure else REPORTED_TLS_PORT,
                    web_port=broker.web_port,
                )
        names = {entry["topicName"] for entry in self.admin.query("admin_query_topic_info")}
        self._add_topics(topic for topic in self.topics if topic.name not in names)
        for broker in self.brokers:
            broker.start(self.launch)
        self._wait_for(lambda: self.admin.brokers_online(self.broker_ids), "not all brokers are online", *self.brokers)
        # A master offers a new topic only after 30 s (StepStatus of 2.4.0). A restarted master gets all topics from the
        # brokers and offers them at once.
        self._make_class_data(first)
        first.stop()
        # A program stands still meanwhile, which here makes no master lose its session.
        self._make_class_data(self.zookeeper)
        self._make_class_data(self.brokers[0])
        self.start_server(first)
        self.wait_for_topics(topic.name for topic in self.topics)
        for master in other_masters:
            self.start_server(master)

    def start_server(self, server: Server) -> None:
        """Start one server and wait until it listens.

        Raises:
            RuntimeError: it ended, or did not listen in time.
        """
        server.start(self.launch)

        def listens() -> bool:
            for port in filter(None, (server.port, server.web_port)):
                with socket.socket() as probe:
                    if probe.connect_ex((server.host, port)) != 0:
                        return False
            return True

        self._wait_for(listens, f"{server.name} does not listen on {server.address}", server)

    def restart_broker(self, broker_id: int, *, crash: bool = False) -> None:
        """Stop or kill a broker, and start it again with the same data and ports.

        Raises:
            RuntimeError: it did not start.
        """
        broker = self.broker(broker_id)
        if crash:
            broker.kill()
        else:
            broker.stop()
        self.start_broker(broker_id)

    def start_broker(self, broker_id: int) -> None:
        """Start a stopped broker and wait until it is online at the active master.

        Raises:
            RuntimeError: it did not start.
        """
        broker = self.broker(broker_id)
        self.start_server(broker)
        self._wait_for(lambda: self.admin.brokers_online([broker_id]), f"{broker.name} is not online", broker)

    def _add_topics(self, topics: Iterable[Topic]) -> None:
        forced = {"unflushThreshold": "1"}
        self.admin.add_topics(
            replace(topic, settings=forced | dict(topic.settings))
            if set(topic.brokers or self.broker_ids) & set(self.unbuffered)
            else topic
            for topic in topics
        )

    def wait_for_leader(self) -> None:
        """Wait until a master is active, after another one has ended.

        Raises:
            RuntimeError: not in time.
        """
        self._wait_for(lambda: bool(self.admin.leader()), "no master is active")

    def wait_for_topics(self, names: Iterable[str]) -> None:
        """Wait until the active master offers all these topics.

        A master that has just started or taken over may send its brokers an incomplete list of topics (2.4.0): it is
        told to send the list again after `RELOAD_S`.

        Raises:
            RuntimeError: not in time.
        """
        wanted = list(names)
        reload_at = time.monotonic() + RELOAD_S

        def are_ready() -> bool:
            nonlocal reload_at
            if self.admin.topics_ready(wanted):
                return True
            if time.monotonic() >= reload_at:
                reload_at += RELOAD_S
                self.admin.reload_brokers(self.broker_ids)
            return False

        self._wait_for(are_ready, f"not all of {wanted} can be used", *self.brokers)

    def stop(self) -> None:
        """Stop all servers cleanly. Their data stays."""
        for server in reversed(self.servers):
            server.stop()
        self.admin.close()

    def kill(self) -> None:
        """Kill all servers. Their data stays."""
        for server in reversed(self.servers):
            server.kill()
        self.admin.close()

    def remove(self) -> None:
        """Kill the servers and delete all their files."""
        self.kill()
        for folder in filter(None, (self.folder, self.data_folder)):
            shutil.rmtree(folder, ignore_errors=True)

    def _wait_for(self, condition: Callable[[], bool], problem: str, *needed: Server) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        last = ""
        while time.monotonic() < deadline:
            for server in needed:
                if not server.alive or server.gave_up:
                    msg = f"TubeMQ's {server.name} ended; {_first_cause(server.log)}the end of {server.log}:\n"
                    raise RuntimeError(msg + log_tail(server.log))
            try:
                if condition():
                    return
            except AdminError as error:
                last = str(error)
            time.sleep(POLL_S)  # there is no event for it
        logs = "\n".join(f"{server.log}:\n{log_tail(server.log, 10)}" for server in needed)
        raise RuntimeError(f"TubeMQ {VERSION}: {problem} after {START_TIMEOUT_S:.0f} s {last}\n{logs}")

    # -- configuration

    def prepare(self) -> None:
        """Select ports, write the configuration and create `servers`."""
        self.folder.mkdir(parents=True, exist_ok=True)
        count = 1 + 3 * (self.master_count + self.broker_count)
        ports = list(self.ports or free_ports(count))
        self.ports = ports
        if self.secure and self.credentials is None:
            self.credentials = make_credentials(self.folder / "credentials")
            write_java_stores(self.credentials, self.folder)
        (self.folder / "log4j2.xml").write_text(LOGGING)
        threes = [tuple(ports[at : at + 3]) for at in range(1, count, 3)]
        self.zookeeper = self._zookeeper(ports[0])
        self.masters = [self._master(number, *threes[number - 1]) for number in range(1, self.master_count + 1)]
        self.brokers = [self._broker(number, *threes[self.master_count + number - 1]) for number in self.broker_ids]
        self.admin = TubeAdmin(
            [master.web for master in self.masters],
            {number: broker.web for number, broker in enumerate(self.brokers, 1)},
        )

    def _zookeeper(self, port: int) -> Server:
        configuration = self._write_folder("zookeeper") / "zoo.cfg"
        settings = {
            "tickTime": "1000",  # the shortest session timeout is two ticks
            "dataDir": str(configuration.parent / "data"),
            "clientPort": str(port),
            "clientPortAddress": HOST,
            "admin.enableServer": "false",
        }
        configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        program = "org.apache.zookeeper.server.ZooKeeperServerMain"
        options = [ZOOKEEPER_HEAP, *self._jvm_options("zookeeper")]
        command = ["java", *options, "-cp", zookeeper_classpath(), program, str(configuration)]
        return Server("zookeeper", configuration.parent, command, HOST, port)

    def _master(self, number: int, port: int, web_port: int, tls_port: int) -> Server:
        name = f"master-{number}"
        settings = {
            "hostName": HOST,
            "port": str(port),
            "webPort": str(web_port),
            "webResourcePath": str(distribution() / "resources"),
            **MASTER_SETTINGS,
        }
        if self.secure:
            settings |= {
                "startVisitTokenCheck": "true",
                "startProduceAuthenticate": "true",
                "startConsumeAuthenticate": "true",
                "needBrokerVisitAuth": "true",
                "visitName": AUTH_USER,
                "visitPassword": AUTH_PASSWORD,
            }
        sections = {
            "master": settings | dict(self.master_settings),
            "meta_zookeeper": {
                "zkNodeRoot": "/tubemq",
                "zkServerAddr": self.zookeeper.address,
                "zkSessionTimeoutMs": "4000",
                "zkConnectionTimeoutMs": "30000",
                "zkSyncTimeMs": "1000",
                "zkCommitPeriodMs": "1000",
                "zkMasterCheckPeriodMs": "1000",
            },
        }
        command = self._command("MasterStartup", MASTER_HEAP, name, sections, tls_port)
        return Server(name, self.folder / name, command, HOST, port, web_port, tls_port)

    def _broker(self, number: int, port: int, web_port: int, tls_port: int) -> Server:
        name = f"broker-{number}"
        data = self.folder if self.data_folder is None or number not in self.unbuffered else self.data_folder
        host = f"127.0.0.{number}"  # brokers of a cluster need different addresses (2.4.0)
        settings = {
            "brokerId": str(number),
            "hostName": host,
            "port": str(port),
            "webPort": str(web_port),
            "masterAddressList": self.master_addresses,  # TLS is for clients only
            "primaryPath": str(data / name / "data"),
            "enableMemStore": str(number not in self.unbuffered).lower(),
            **BROKER_SETTINGS,
        }
        if self.secure:
            settings |= {"visitMasterAuth": "true", "visitName": AUTH_USER, "visitPassword": AUTH_PASSWORD}
        sections = {"broker": settings | dict(self.broker_settings), "audit": {"auditEnable": "false"}}
        command = self._command("BrokerStartup", BROKER_HEAP, name, sections, tls_port)
        return Server(name, self.folder / name, command, host, port, web_port, tls_port)

    def _command(
        self, program: str, heap: str, name: str, sections: Mapping[str, Mapping[str, str]], tls_port: int
    ) -> list[str]:
        folder = self._write_folder(name)
        configuration = folder / f"{name}.ini"
        everything = {**sections, "prometheus": {"promEnable": "false"}}
        if self.secure:
            # Without client certificates, a server with TLS exits at the first connection (2.4.0).
            everything["tlsSetting"] = {
                "tlsEnable": "true",
                "tlsPort": str(tls_port),
                "tlsKeyStorePath": str(self.folder / "server.p12"),
                "tlsKeyStorePassword": STORE_PASSWORD,
                "tlsTwoWayAuthEnable": "true",
                "tlsTrustStorePath": str(self.trust_store),
                "tlsTrustStorePassword": STORE_PASSWORD,
            }
        configuration.write_text(
            "".join(
                f"[{section}]\n" + "".join(f"{name}={value}\n" for name, value in settings.items())
                for section, settings in everything.items()
            )
        )
        return [
            "java", heap, *self._jvm_options(name), f"-Dtubemq.home={folder}", f"-Dtubemq.log.path={folder}",
            f"-Dlog4j.configurationFile={self.folder / 'log4j2.xml'}", "-cp", f"{distribution()}/lib/*",
            f"org.apache.inlong.tubemq.server.tools.{program}", "-f", str(configuration),
        ]  # fmt: skip

    def _jvm_options(self, name: str) -> list[str]:
        # Benchmarks measure JVMs as users start them.
        options = [*self.jvm, f"-Djava.io.tmpdir={self.folder}"]
        return [*options, *(class_data(name).options(record=True) if self.jvm is SMALL_JVM else ())]

    def _make_class_data(self, server: Server) -> None:
        if server.process is not None and self.jvm is SMALL_JVM:
            class_data(server.name).make(server.process.pid)

    def _write_folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder


def write_java_stores(credentials: Credentials, folder: Path) -> None:
    """Write the certificates for Java: server.p12, client.p12 and trust.p12, with STORE_PASSWORD."""
    lock = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
    authority = x509.load_pem_x509_certificate(credentials.ca_certificate.read_bytes())
    for name in ("server", "client"):
        key = serialization.load_pem_private_key(credentials.key(name).read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)  # noqa: S101 - for the type checker
        certificate = x509.load_pem_x509_certificate(credentials.certificate(name).read_bytes())
        store = pkcs12.serialize_key_and_certificates(name.encode(), key, certificate, [authority], lock)
        (folder / f"{name}.p12").write_bytes(store)
    trusted = [pkcs12.PKCS12Certificate(authority, b"authority")]
    (folder / "trust.p12").write_bytes(pkcs12.serialize_java_truststore(trusted, lock))


def _first_cause(log: Path) -> str:
    """Return the log's lines about a port in use, which are seldom at its end."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    # All servers except the first on a machine log a failed listen for Prometheus, even if it is disabled (2.4.0).
    taken = [line for line in lines if "Address already in use" in line and "prometheus" not in line]
    return "".join(f"{line}\n" for line in taken)[:500]


# -- command line


def parse_topic(text: str) -> Topic:
    """Parse a topic of the command line, NAME[:STORES[:PARTITIONS]].

    Raises:
        argparse.ArgumentTypeError: not a topic.
    """
    match = re.fullmatch(r"([A-Za-z]\w*)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME[:STORES[:PARTITIONS]]")
    return Topic(match[1], int(match[2] or 1), int(match[3] or 1))


def description(cluster: TubeCluster) -> dict[str, object]:
    """Return the addresses and credentials for clients, for JSON."""
    found: dict[str, object] = {
        "masters": cluster.master_addresses,
        "brokers": {number: broker.address for number, broker in enumerate(cluster.brokers, 1)},
        "admin": [master.web for master in cluster.masters],
        "broker_admin": {number: broker.web for number, broker in enumerate(cluster.brokers, 1)},
        "logs": {server.name: str(server.log) for server in cluster.servers},
    }
    if cluster.credentials is not None:
        found |= {
            "masters_tls": cluster.master_addresses_tls,
            "ca": str(cluster.credentials.ca_certificate),
            "certificate": str(cluster.credentials.certificate("client")),
            "key": str(cluster.credentials.key("client")),
            "user": AUTH_USER,
            "password": AUTH_PASSWORD,
        }
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run a cluster until a signal."""
    parser = argparse.ArgumentParser(prog="python -m brokers.tubemq", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("topics", nargs="*", type=parse_topic, help="NAME[:STORES[:PARTITIONS]]")
    parser.add_argument("--masters", type=int, default=1, help="number (default: 1)")
    parser.add_argument("--brokers", type=int, default=1, help="number (default: 1)")
    parser.add_argument("--secure", action="store_true", help="mutual TLS, visit tokens, authentication")
    parser.add_argument("--unbuffered", action="store_true", help="messages are readable as flushed at once")
    options = parser.parse_args(arguments)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with tempfile.TemporaryDirectory(prefix="tubemq-") as folder:
        cluster = TubeCluster(
            Path(folder),
            master_count=options.masters,
            broker_count=options.brokers,
            secure=options.secure,
            unbuffered=range(1, options.brokers + 1) if options.unbuffered else (),
            topics=options.topics,
        )
        try:
            cluster.start()
            print(json.dumps(description(cluster)), flush=True)
            ended.wait()
        finally:
            cluster.kill()


if __name__ == "__main__":
    main()
