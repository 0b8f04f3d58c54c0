"""A real Pulsar standalone broker in a separate process: downloaded once, configured, started, killed, stopped.

with PulsarStandalone(Path("/tmp/somewhere")) as broker:
    broker.service_url, broker.admin, broker.client()
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brokers.cache import cache_folder, unpacked_artifact
from brokers.class_data import ClassData
from brokers.credentials import BASIC_PASSWORD, BASIC_USER, Credentials, make_credentials
from brokers.processes import ManagedProcess, free_ports, log_tail
from brokers.pulsar_admin import TEST_NAMESPACE, AdminError, PulsarAdmin

if TYPE_CHECKING:
    from typing_extensions import Self

VERSION = "4.0.8"
START_TIMEOUT_S = 180.0
START_ATTEMPTS = 3
SMALL_JVM = {
    "PULSAR_MEM": "-Xms384m -Xmx1g -XX:MaxDirectMemorySize=1g",
    "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}
"""Enough for tests next to a build and Spark; chosen for a fast start."""

# Settings of the featured broker. Small ledgers make every test cross ledger boundaries; the scans for trimming and
# expiry run often enough for tests to wait for them.
FEATURED = {
    "transactionCoordinatorEnabled": "true",
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "brokerEntryMetadataInterceptors": (
        "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
        "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
    ),
    "exposingBrokerEntryMetadataToClientEnabled": "true",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "retentionCheckIntervalInSeconds": "10",
    "messageExpiryCheckIntervalInMinutes": "1",
    "authenticationRefreshCheckSeconds": "1",
    "brokerDeduplicationSnapshotIntervalSeconds": "5",
}

OPENED_FOR_JAVA_17 = [
    f"--add-opens={package}=ALL-UNNAMED"
    for package in (
        "java.base/java.io",
        "java.base/java.lang",
        "java.base/java.net",
        "java.base/java.nio",
        "java.base/java.util",
        "java.base/java.util.zip",
        "java.base/jdk.internal.misc",
        "java.base/sun.net",
        "java.management/sun.management",
        "jdk.management/com.sun.management.internal",
    )
]
"""Packages that Pulsar 2.10, made for Java 8 and 11, accesses by reflection; later versions open them by themselves."""


def distribution(version: str = VERSION) -> Path:
    """Return the unpacked Pulsar distribution, downloaded on first use."""
    return unpacked_artifact(
        f"org.apache.pulsar:pulsar-server-distribution:{version}:tar.gz:bin",
        top_folder=f"apache-pulsar-{version}",
        say=f"Fetching Pulsar {version} (about 250 MB, once) ...",
    )


def offloaders(version: str = VERSION) -> Path:
    """Return the folder of the offloaders of Pulsar, for its setting `offloadersDirectory`; downloaded on first use."""
    home = unpacked_artifact(
        f"org.apache.pulsar:pulsar-offloader-distribution:{version}:tar.gz:bin",
        top_folder=f"apache-pulsar-offloaders-{version}",
        say=f"Fetching the offloaders of Pulsar {version} (about 60 MB, once) ...",
    )
    return home / "offloaders"


def program_environment(log_folder: Path, jvm: Mapping[str, str] = SMALL_JVM) -> dict[str, str]:
    """Return the environment for Pulsar's shell scripts, which then write only into the folder."""
    return {
        **jvm,
        # The default writes logs next to the distribution. A killed JVM leaves the libraries that it has unpacked.
        "PULSAR_GC_LOG": f"-Djava.io.tmpdir={log_folder}",
        "PULSAR_LOG_DIR": str(log_folder),
        "PULSAR_LOG_LEVEL": "info",
        # Output without colours and banner.
        "TERM": "dumb",
    }


def class_data(version: str = VERSION, role: str = "", jvm: Mapping[str, str] = SMALL_JVM) -> ClassData:
    """Return the archive of classes of Pulsar's JVMs: of standalone, or of one role of a cluster."""
    home = distribution(version)
    return ClassData(cache_folder(), f"{home.name}{role and '-' + role}", [home, home / "lib"], jvm.values())


def archived_environment(
    log_folder: Path, jvm: Mapping[str, str], archive: ClassData | None, home: Path
) -> dict[str, str]:
    """Return the same for a JVM that maps an archive of classes, or records one."""
    environment = program_environment(log_folder, jvm)
    if archive is not None:
        # A JVM with a folder of files on its class path maps no archive, and bin/pulsar puts that of the logging
        # configuration there; so this one does not exist.
        environment["PULSAR_LOG_CONF"] = str(home / "no-folder" / "log4j2.yaml")
        logging = f"-Dlog4j.configurationFile={home / 'conf' / 'log4j2.yaml'}"
        environment["PULSAR_GC"] = " ".join([environment["PULSAR_GC"], logging, *archive.options(record=True)])
    return environment


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a broker on 127.0.0.1."""

    broker: int = 6650
    web: int = 8080
    tls: int | None = None
    bookie: int | None = None
    zookeeper: int | None = None


@dataclass(slots=True)
class PulsarStandalone:
    """One standalone broker with its own data.

    Args:
        folder: folder for all its files, created if missing; start() reuses existing data.
        featured: with transactions, broker entry metadata, small ledgers, TLS, and authentication by token, user name
            and password, and client certificate, with authorization; the role `admin` may do everything.
        overrides: further settings of standalone.conf.
        ports: None selects free ones.
        jvm: memory and garbage collector of its JVM, as variables of Pulsar's scripts.
        version: Pulsar's version.
    """

    folder: Path
    featured: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)
    ports: Ports | None = None
    credentials: Credentials | None = None
    jvm: Mapping[str, str] = field(default_factory=lambda: SMALL_JVM)
    version: str = VERSION
    _process: ManagedProcess | None = None
    _admin: PulsarAdmin | None = None

    # -- addresses and clients

    @property
    def service_url(self) -> str:
        """The address for clients, e.g. pulsar://127.0.0.1:6650."""
        return f"pulsar://127.0.0.1:{self._ports.broker}"

    @property
    def service_url_tls(self) -> str:
        """The address for clients with TLS (featured broker only)."""
        return f"pulsar+ssl://127.0.0.1:{self._ports.tls}"

    @property
    def admin_url(self) -> str:
        """The address of the admin API, e.g. http://127.0.0.1:8080."""
        return f"http://127.0.0.1:{self._ports.web}"

    @property
    def admin(self) -> PulsarAdmin:
        """A client of the admin API, as super user."""
        if self._admin is None or self._admin.url != self.admin_url:
            self._admin = PulsarAdmin(self.admin_url, self.admin_token)
        return self._admin

    @property
    def admin_token(self) -> str | None:
        """The super user's token; None without authentication."""
        return self.credentials.token("admin") if self.credentials else None

    @property
    def log(self) -> Path:
        """The broker's log file."""
        return self.folder / "broker.log"

    @property
    def pid(self) -> int:
        """The broker's process id, which is also its process group's.

        Raises:
            RuntimeError: the broker is not running.
        """
        if self._process is None:
            raise RuntimeError("the broker is not running")
        return self._process.pid

    @property
    def _ports(self) -> Ports:
        if self.ports is None:
            raise RuntimeError("the broker has no ports before start()")
        return self.ports

    def client(self, **options: Any) -> Any:  # noqa: ANN401 - pulsar.Client's own arguments and type; it has no annotations
        """Return the official client (pulsar-client, C++), as super user; the caller closes it."""
        import pulsar  # imported here, since only this method needs it

        options.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        if self.credentials:
            options.setdefault("authentication", pulsar.AuthenticationToken(self.admin_token))
        return pulsar.Client(self.service_url, **options)

    # -- start and stop

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Start the broker and wait until it is ready; retry with other free ports if one is in use.

        Raises:
            RuntimeError: it ended, or was not ready in time; with the end of its log.
        """
        choose_ports = self.ports is None
        for attempt in range(START_ATTEMPTS):
            if choose_ports:
                broker, web, tls, bookie, zookeeper = free_ports(5)
                self.ports = Ports(broker, web, tls if self.featured else None, bookie, zookeeper)
            try:
                self._start_once()
            except RuntimeError as error:
                self.kill()
                port_taken = "Address already in use" in str(error) or "BindException" in str(error)
                if not (choose_ports and port_taken) or attempt == START_ATTEMPTS - 1:
                    raise
            else:
                return self
        raise AssertionError

    def _start_once(self) -> None:
        command, environment = self.prepare()
        self._process = ManagedProcess(command, log=self.log, environment=environment, folder=self.folder)
        wait_until_ready(self.admin, self.log, still_alive=lambda: self._process is not None and self._process.alive)
        if (archive := self._class_data) is not None:
            archive.make(self._process.pid)

    def prepare(self) -> tuple[list[str], dict[str, str]]:
        """Write the configuration; return the command line and environment of the broker."""
        home = distribution(self.version)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.featured and self.credentials is None:
            self.credentials = make_credentials(self.folder / "credentials")
        configuration = self.folder / "standalone.conf"
        configuration.write_text(configured((home / "conf" / "standalone.conf").read_text(), self._settings()))
        command = [
            str(home / "bin" / "pulsar"), "standalone", "--no-functions-worker", "--no-stream-storage",
            "--advertised-address", "127.0.0.1",
            "--bookkeeper-dir", str(self.folder / "bookkeeper"),
            "--bookkeeper-port", str(self._ports.bookie or 3181),
        ]  # fmt: skip
        if self._release >= (2, 11):
            command += ["--metadata-dir", str(self.folder / "metadata")]
        else:
            command += ["--zookeeper-dir", str(self.folder / "metadata")]
            command += ["--zookeeper-port", str(self._ports.zookeeper or 2181)]
        environment = archived_environment(self.folder, self.jvm, self._class_data, home)
        # bin/pulsar passes it to the broker; some versions refuse it twice.
        environment["PULSAR_STANDALONE_CONF"] = str(configuration)
        extra = [f"-Dpulsar.auth.basic.conf={self.credentials.password_file}"] if self.credentials else []
        if self._release < (2, 11):
            extra += OPENED_FOR_JAVA_17
        if extra:
            environment["PULSAR_EXTRA_OPTS"] = " ".join(extra)
        return command, environment

    @property
    def _class_data(self) -> ClassData | None:
        """The archive of classes for the small JVM of tests; benchmarks measure JVMs as users start them."""
        return class_data(self.version) if self.jvm is SMALL_JVM else None

    @property
    def _release(self) -> tuple[int, int]:
        major, minor, _ = self.version.split(".", 2)
        return int(major), int(minor)

    def _settings(self) -> dict[str, str]:
        ports = self._ports
        settings = {
            "brokerServicePort": str(ports.broker),
            "webServicePort": str(ports.web),
            "bindAddress": "127.0.0.1",
            "advertisedAddress": "127.0.0.1",
        }
        if self.featured and self.credentials:
            credentials = self.credentials
            providers = "org.apache.pulsar.broker.authentication.AuthenticationProvider"
            settings |= FEATURED | {
                "brokerServicePortTls": str(ports.tls),
                "tlsCertificateFilePath": str(credentials.certificate("server")),
                "tlsKeyFilePath": str(credentials.key("server")),
                "tlsTrustCertsFilePath": str(credentials.ca_certificate),
                "authenticationEnabled": "true",
                "authenticationProviders": ",".join(providers + kind for kind in ("Token", "Basic", "Tls")),
                "authorizationEnabled": "true",
                "superUserRoles": "admin",
                "tokenSecretKey": credentials.secret_key_setting,
                "basicAuthConf": str(credentials.password_file),
                "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
                "brokerClientAuthenticationParameters": f"token:{credentials.token('admin')}",
            }
        return settings | dict(self.overrides)

    def stop(self) -> None:
        """Stop the broker cleanly (SIGTERM): clients get CLOSE frames, then the end of the stream. Its data stays."""
        if self._process is not None:
            self._process.stop()
            self._process = None
        if self._admin is not None:
            self._admin.close()

    def kill(self) -> None:
        """Kill the broker (SIGKILL), as in a crash. Its data stays."""
        if self._process is not None:
            self._process.kill()
            self._process = None
        if self._admin is not None:
            self._admin.close()

    def restart(self, *, crash: bool = False) -> None:
        """Stop or kill the broker, and start it again with the same data and ports.

        Raises:
            RuntimeError: it did not start.
        """
        if crash:
            self.kill()
        else:
            self.stop()
        self.start()

    # -- the official Java programs

    def run_program(self, program: str, *arguments: str, timeout_s: float = 300.0) -> str:
        """Run a program of the distribution, such as pulsar-perf or pulsar-client; return its output.

        Raises:
            RuntimeError: it failed; with the end of its output. subprocess.TimeoutExpired: it took too long and was
                killed.
        """
        environment = {**os.environ, **program_environment(self.folder)}
        # For short-lived clients, tiered compilation costs more than it saves.
        environment["PULSAR_MEM"] = "-Xms64m -Xmx512m -XX:MaxDirectMemorySize=512m"
        done = subprocess.run(
            [distribution(self.version) / "bin" / program, *arguments],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-15:])
            raise RuntimeError(f"{program} {' '.join(arguments[:1])} failed (exit {done.returncode}):\n{tail}")
        return done.stdout

    def remove(self) -> None:
        """Kill the broker and delete its folder."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def wait_until_ready(
    admin: PulsarAdmin, log: Path, *, still_alive: Callable[[], bool], cluster: str = "standalone"
) -> None:
    """Wait until the broker serves topics, and create the tests' namespace.

    An answer alone proves nothing: standalone opens its web port seconds before it creates its cluster, tenant and
    namespace (seen on 4.0.8), and all of those exist at a restart. Only a message that is stored proves that the
    bookies can be written to.

    Raises:
        RuntimeError: the broker ended or was not ready in time; with the end of its log.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    last: object = "no answer"
    while time.monotonic() < deadline:
        if not still_alive():
            raise RuntimeError(f"Pulsar ended while starting; the end of {log}:\n{_first_cause(log)}{log_tail(log)}")
        with contextlib.suppress(AdminError):
            if admin.clusters() == [cluster] and "public/default" in admin.namespaces():
                try:
                    admin.create_namespace(TEST_NAMESPACE)
                    admin.check_health()
                except AdminError as error:
                    last = error
                else:
                    return
        time.sleep(0.2)  # there is no event for it
    raise RuntimeError(
        f"Pulsar did not get ready in {START_TIMEOUT_S:.0f} s ({last}); the end of {log}:\n{log_tail(log)}"
    )


def _first_cause(log: Path) -> str:
    """Return the log's lines about a port in use, which are seldom at its end."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return "".join(
        f"{line}\n" for line in lines[-2000:] if "Address already in use" in line or "BindException" in line
    )[:500]


def configured(stock: str, settings: Mapping[str, str]) -> str:
    """Return the default configuration with these settings replaced, or added at the end."""
    text = stock
    for name, value in settings.items():
        line = f"{name}={value}"
        text, count = re.subn(rf"(?m)^{re.escape(name)}=.*$", line.replace("\\", r"\\"), text)
        if not count:
            text += f"\n{line}"
    return text + "\n"


__all__ = ["BASIC_PASSWORD", "BASIC_USER", "Ports", "PulsarStandalone", "distribution", "wait_until_ready"]
