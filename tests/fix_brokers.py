"""Fixtures of real brokers: started by the first test that needs them, ended with the session at the latest."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from brokers.nsq import NsqdProcess, NsqlookupdProcess, nsqd_on_path
from brokers.pulsar import PulsarStandalone, wait_until_ready
from brokers.pulsar_admin import TEST_NAMESPACE, PulsarAdmin
from spark_mq_source.testing import NsqBroker, NsqLookupd

_serial = itertools.count()

NSQ_CLUSTER_SIZE = 4
"""As many brokers as the suites of all formats use partitions."""


@dataclass
class PulsarUnderTest:
    """A running broker, with the helpers of tests.

    `broker` is its process (None if it was running before the tests, which then do not stop it).
    """

    service_url: str
    admin_url: str
    admin: PulsarAdmin
    namespace: str = TEST_NAMESPACE  # keeps all data: retention has no limit
    broker: PulsarStandalone | None = None
    _clients: list[Any] = field(default_factory=list)

    def topic(self, partitions: int = 0, *, prefix: str = "t", namespace: str | None = None) -> str:
        """Create a new topic and return its full name."""
        return self.admin.create_topic(self.unused_topic(prefix=prefix, namespace=namespace), partitions)

    def unused_topic(self, *, prefix: str = "t", namespace: str | None = None) -> str:
        """Return the full name of a topic that does not exist."""
        return f"persistent://{namespace or self.namespace}/{prefix}-{os.getpid()}-{next(_serial)}"

    def new_namespace(self, *, prefix: str = "n", keep_data: bool = True, deduplicates: bool = False) -> str:
        """Create a new namespace; with keep_data=False it has the stock retention of nothing."""
        name = self.admin.create_namespace(f"public/{prefix}-{os.getpid()}-{next(_serial)}", keep_data=keep_data)
        if deduplicates:
            self.admin.set_deduplication(name, enabled=True)
        return name

    def client(self, **options: Any) -> Any:
        """Return the official client, closed with the fixture. Its default request timeout, 30 s, is too short here."""
        options.setdefault("operation_timeout_seconds", 120)
        if self.broker is not None:
            client = self.broker.client(**options)
        else:
            import pulsar

            options.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            client = pulsar.Client(self.service_url, **options)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """Close the official clients, also those that a test has closed already."""
        for client in self._clients:
            with contextlib.suppress(Exception):  # "closed already", for which the client has no separate error
                client.close()
        self._clients.clear()

    def is_before(self, first: tuple[int, int]) -> bool:
        """Whether the broker's version is older."""
        return tuple(map(int, self.admin.broker_version().split(".")[:2])) < first

    def require_version(self, first: tuple[int, int], why: str) -> None:
        """Skip with a reason if the broker's version is older than one known to have the tested feature."""
        if self.is_before(first):
            pytest.skip(f"Pulsar {self.admin.broker_version()} {why}")

    def trim(self, topic: str) -> None:
        """Delete the ledgers that nothing retains; skip on brokers whose admin interface cannot do so (2.11.0)."""
        self.require_version((3, 3), "deletes no ledgers on request")
        self.admin.trim(topic)

    def require_own(self) -> PulsarStandalone:
        """Return the broker's process, for tests that run its programs; skip if the tests did not start it."""
        if self.broker is None:
            pytest.skip("needs a broker that the tests started (run without --pulsar-url)")
        return self.broker


def _under_test(broker: PulsarStandalone) -> PulsarUnderTest:
    return PulsarUnderTest(broker.service_url, broker.admin_url, broker.admin, broker=broker)


def _start(config: pytest.Config, broker: PulsarStandalone) -> PulsarStandalone:
    """Start a broker; if it cannot run here, skip the test, or fail it if brokers are required."""
    try:
        return broker.start()
    except (RuntimeError, OSError) as error:
        if config.getoption("--require-brokers"):
            pytest.fail(f"a broker is required and did not start: {error}", pytrace=False)
        pytest.skip(f"no Pulsar: {error}")


@pytest.fixture(scope="session")
def _pulsar_session(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarUnderTest]:
    url = pytestconfig.getoption("--pulsar-url")
    if url:
        admin = PulsarAdmin(pytestconfig.getoption("--pulsar-admin-url"))
        wait_until_ready(admin, Path("(not started here)"), still_alive=lambda: True)
        yield PulsarUnderTest(url, admin.url, admin)
        return
    version = pytestconfig.getoption("--pulsar-version")
    broker = _start(pytestconfig, PulsarStandalone(tmp_path_factory.mktemp("pulsar"), version=version))
    yield _under_test(broker)
    broker.remove()


@pytest.fixture(scope="session")
def _pulsar_featured_session(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PulsarUnderTest]:
    version = pytestconfig.getoption("--pulsar-version")
    folder = tmp_path_factory.mktemp("pulsar-featured")
    broker = _start(pytestconfig, PulsarStandalone(folder, featured=True, version=version))
    yield _under_test(broker)
    broker.remove()


@pytest.fixture
def pulsar(_pulsar_session: PulsarUnderTest) -> Iterator[PulsarUnderTest]:
    """Yield a stock broker, shared by all tests: use new topics, do not restart it."""
    yield _pulsar_session
    _pulsar_session.close_clients()


@pytest.fixture
def deduplicated(pulsar: PulsarUnderTest) -> PulsarUnderTest:
    """Return the same broker with a namespace whose topics deduplicate."""
    return replace(pulsar, namespace=pulsar.new_namespace(deduplicates=True))


@pytest.fixture
def pulsar_featured(_pulsar_featured_session: PulsarUnderTest) -> Iterator[PulsarUnderTest]:
    """Yield a broker with transactions, broker entry metadata, ledgers of 10 entries, TLS and authorization.

    Shared by all tests. `pulsar_featured.broker.credentials` has tokens, certificates and the password file's user.
    """
    yield _pulsar_featured_session
    _pulsar_featured_session.close_clients()


@pytest.fixture
def pulsar_private(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[PulsarUnderTest]:
    """Yield a stock broker for one test, which may restart (`.broker.restart()`), kill and reconfigure it."""
    version = pytestconfig.getoption("--pulsar-version")
    broker = _start(pytestconfig, PulsarStandalone(tmp_path / "pulsar", version=version))
    under_test = _under_test(broker)
    yield under_test
    under_test.close_clients()
    broker.remove()


@dataclass
class NsqUnderTest:
    """A running NSQ broker, with the helpers of tests: the embedded one, or nsqd if it is on PATH.

    Both are used over the same HTTP interface, so that tests do not depend on which one it is.
    """

    broker: NsqBroker | NsqdProcess
    lookupd: NsqLookupd | NsqlookupdProcess

    @property
    def name(self) -> str:
        """The kind of broker."""
        return "embedded" if isinstance(self.broker, NsqBroker) else "nsqd"

    @property
    def tcp_address(self) -> str:
        """The address for clients, as `host:port`."""
        return self.broker.tcp_address

    @property
    def http_address(self) -> str:
        """The address of its HTTP interface, as `host:port`."""
        return self.broker.http_address

    @property
    def lookupd_address(self) -> str:
        """The address of its lookup daemon's HTTP interface, as `host:port`."""
        return self.lookupd.http_address

    def unused_topic(self, *, prefix: str = "t") -> str:
        """Return the name of a topic that does not exist."""
        return f"{prefix}-{os.getpid()}-{next(_serial)}"

    def topic(self, *channels: str, prefix: str = "t") -> str:
        """Create a new topic with these channels, and wait until lookups find it."""
        topic = self.unused_topic(prefix=prefix)
        self.create(topic, *channels)
        return topic

    def create(self, topic: str, *channels: str) -> None:
        """Create a topic and these channels, and wait until lookups find them."""
        self.post("/topic/create", topic=topic)
        for channel in channels:
            self.post("/channel/create", topic=topic, channel=channel)

        def is_known() -> bool:
            status, found = self.ask("GET", self.lookupd_address, "/lookup", topic=topic)
            return status == 200 and set(channels) <= set(found["channels"]) and self._port() in _ports(found)

        wait_until(is_known, f"{self.lookupd_address} knows {topic}")

    def _port(self) -> int:
        return int(self.tcp_address.rpartition(":")[2])

    def publish(self, topic: str, *bodies: bytes) -> None:
        """Publish messages."""
        for start in range(0, len(bodies), 1000):
            part = bodies[start : start + 1000]
            packed = b"".join(len(body).to_bytes(4, "big") + body for body in part)
            self.post("/mpub", len(part).to_bytes(4, "big") + packed, topic=topic, binary="true")

    def post(self, path: str, body: bytes = b"", **parameters: str) -> None:
        """Send a request to its HTTP interface; fail if it is refused."""
        status, answer = self.ask("POST", self.http_address, path, body, **parameters)
        assert status == 200, f"{path} {parameters}: {status} {answer}"

    def channel_stats(self, topic: str, channel: str) -> dict[str, Any]:
        """Return its statistics of a channel; empty if the channel does not exist."""
        _, found = self.ask("GET", self.http_address, "/stats", format="json", topic=topic, channel=channel)
        topics = found["topics"] or []
        return topics[0]["channels"][0] if topics else {}

    def topic_stats(self, topic: str) -> dict[str, Any]:
        """Return its statistics of a topic; empty if the topic does not exist."""
        _, found = self.ask("GET", self.http_address, "/stats", format="json", topic=topic)
        topics: list[dict[str, Any]] = found["topics"] or [{}]
        return topics[0]

    def ask(self, method: str, address: str, path: str, body: bytes = b"", **parameters: str) -> tuple[int, Any]:
        """Send a request to any HTTP interface; return the status and the answer, parsed if it is JSON."""
        connection = http.client.HTTPConnection(address, timeout=60)
        try:
            connection.request(method, f"{path}?{urlencode(parameters)}" if parameters else path, body)
            answer = connection.getresponse()
            text = answer.read().decode()
            is_json = (answer.getheader("Content-Type") or "").startswith("application/json")
            return answer.status, json.loads(text) if is_json else text
        finally:
            connection.close()


def _ports(found: dict[str, Any]) -> set[int]:
    return {int(producer["tcp_port"]) for producer in found["producers"]}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 120) -> None:
    """Poll until the condition holds, for states without an event."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


def _nsq(kind: str, folder: Path, *, lookupd: NsqUnderTest | None = None, **settings: Any) -> NsqUnderTest:
    """Return a broker that is not started yet."""
    joined = None if lookupd is None else lookupd.lookupd
    if kind == "nsqd":
        assert joined is None or isinstance(joined, NsqlookupdProcess)
        process = NsqdProcess(folder, lookupd=joined, **settings)
        return NsqUnderTest(process, process.lookupds[0])
    assert joined is None or isinstance(joined, NsqLookupd)
    broker = NsqBroker(lookupd=joined, **settings)
    return NsqUnderTest(broker, broker.lookupds[0])


@contextlib.contextmanager
def start_nsq(kind: str, folder: Path, **settings: Any) -> Iterator[NsqUnderTest]:
    """Run a broker of one kind, see `nsq_kind` and `nsq_private`."""
    under_test = _nsq(kind, folder, **settings)
    under_test.broker.start()
    try:
        yield under_test
    finally:
        under_test.broker.stop()


def _skip_without_nsqd() -> None:
    if not nsqd_on_path():
        pytest.skip("nsqd and nsqlookupd are not on PATH; the same test runs on the embedded broker")


@pytest.fixture(scope="session", params=["embedded", "nsqd"])
def nsq_kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of NSQ broker, each for every test; skip nsqd without nsqd and nsqlookupd on PATH."""
    if request.param == "nsqd":
        _skip_without_nsqd()
    return str(request.param)


@pytest.fixture(scope="session")
def _nsq_session(nsq_kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NsqUnderTest]:
    with start_nsq(nsq_kind, tmp_path_factory.mktemp("nsq")) as under_test:
        yield under_test


@pytest.fixture
def nsq(_nsq_session: NsqUnderTest) -> NsqUnderTest:
    """Return an NSQ broker with nsqd's default settings, shared by all tests: use new topics, do not restart it."""
    return _nsq_session


@contextlib.contextmanager
def _nsq_cluster(kind: str, folder: Path) -> Iterator[Sequence[NsqUnderTest]]:
    with contextlib.ExitStack() as running:
        brokers = [running.enter_context(start_nsq(kind, folder / "0"))]
        for number in range(1, NSQ_CLUSTER_SIZE):
            brokers.append(running.enter_context(start_nsq(kind, folder / str(number), lookupd=brokers[0])))
        yield brokers


@pytest.fixture(scope="session")
def nsq_embedded_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[NsqUnderTest]]:
    """Yield embedded NSQ brokers with one lookup daemon, for the suites of all formats: a partition is a broker."""
    with _nsq_cluster("embedded", tmp_path_factory.mktemp("nsq-cluster")) as brokers:
        yield brokers


@pytest.fixture(scope="session")
def nsq_nsqd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[NsqUnderTest]]:
    """Yield nsqd processes with one lookup daemon; skip if nsqd is not on PATH."""
    _skip_without_nsqd()
    with _nsq_cluster("nsqd", tmp_path_factory.mktemp("nsqd-cluster")) as brokers:
        yield brokers


@pytest.fixture
def nsq_private(nsq_kind: str, tmp_path: Path) -> Iterator[Callable[..., NsqUnderTest]]:
    """Yield a function that starts NSQ brokers for one test: `nsq_private(msg_timeout_ms=1000, lookupd=another)`.

    Settings are those of `NsqBroker`. The test may restart (`.broker.restart(crash=True)`) and stop them.
    """
    with contextlib.ExitStack() as running:

        def start(**settings: Any) -> NsqUnderTest:
            return running.enter_context(start_nsq(nsq_kind, tmp_path / f"nsq-{next(_serial)}", **settings))

        yield start
