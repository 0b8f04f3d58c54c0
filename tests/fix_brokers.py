"""Fixtures of real brokers: started when the first test asks, ended with the session at the latest."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dev.pulsar_admin import TEST_NAMESPACE, PulsarAdmin
from dev.pulsar_broker import PulsarStandalone, wait_until_ready

_serial = itertools.count()


@dataclass
class PulsarUnderTest:
    """A running broker as tests see it.

    `broker` is the process behind it (None if it was running before the tests and is not theirs to stop).
    """

    service_url: str
    admin_url: str
    admin: PulsarAdmin
    namespace: str = TEST_NAMESPACE  # keeps all data: retention has no limit
    broker: PulsarStandalone | None = None
    _clients: list[Any] = field(default_factory=list)

    def topic(self, partitions: int = 0, *, prefix: str = "t", namespace: str | None = None) -> str:
        """Creates a topic nobody else uses and returns its full name."""
        return self.admin.create_topic(self.unused_topic(prefix=prefix, namespace=namespace), partitions)

    def unused_topic(self, *, prefix: str = "t", namespace: str | None = None) -> str:
        """The full name of a topic that does not exist."""
        return f"persistent://{namespace or self.namespace}/{prefix}-{os.getpid()}-{next(_serial)}"

    def new_namespace(self, *, prefix: str = "n", keep_data: bool = True) -> str:
        """Creates a namespace nobody else uses; with keep_data=False it has the stock retention of nothing."""
        return self.admin.create_namespace(f"public/{prefix}-{os.getpid()}-{next(_serial)}", keep_data=keep_data)

    def client(self, **options: Any) -> Any:
        """The official client, closed with the fixture."""
        if self.broker is not None:
            client = self.broker.client(**options)
        else:
            import pulsar

            options.setdefault("logger", pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            client = pulsar.Client(self.service_url, **options)
        self._clients.append(client)
        return client

    def close_clients(self) -> None:
        """Closes the official clients, also those that a test has closed already."""
        for client in self._clients:
            with contextlib.suppress(Exception):  # "closed already", for which the client has no error of its own
                client.close()
        self._clients.clear()

    def require_own(self) -> PulsarStandalone:
        """The broker's process, for tests that run its programs; skips where the broker is somebody else's."""
        if self.broker is None:
            pytest.skip("needs a broker that the tests started (run without --pulsar-url)")
        return self.broker


def _under_test(broker: PulsarStandalone) -> PulsarUnderTest:
    return PulsarUnderTest(broker.service_url, broker.admin_url, broker.admin, broker=broker)


def _start(config: pytest.Config, broker: PulsarStandalone) -> PulsarStandalone:
    """Starts a broker; one that cannot run here skips the test, or fails it where brokers are required."""
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
    broker = _start(pytestconfig, PulsarStandalone(tmp_path_factory.mktemp("pulsar")))
    yield _under_test(broker)
    broker.remove()


@pytest.fixture(scope="session")
def _pulsar_featured_session(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PulsarUnderTest]:
    broker = _start(pytestconfig, PulsarStandalone(tmp_path_factory.mktemp("pulsar-featured"), featured=True))
    yield _under_test(broker)
    broker.remove()


@pytest.fixture
def pulsar(_pulsar_session: PulsarUnderTest) -> Iterator[PulsarUnderTest]:
    """A stock broker, shared by all tests: use topics of your own, do not restart it."""
    yield _pulsar_session
    _pulsar_session.close_clients()


@pytest.fixture
def pulsar_featured(_pulsar_featured_session: PulsarUnderTest) -> Iterator[PulsarUnderTest]:
    """A broker with transactions, broker entry metadata, ledgers of 10 entries, TLS, authentication and authorization.

    Shared by all tests. `pulsar_featured.broker.credentials` has tokens, certificates and the password file's user.
    """
    yield _pulsar_featured_session
    _pulsar_featured_session.close_clients()


@pytest.fixture
def pulsar_private(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[PulsarUnderTest]:
    """A stock broker of the test's own, which it may restart (`.broker.restart()`), kill and reconfigure."""
    broker = _start(pytestconfig, PulsarStandalone(tmp_path / "pulsar"))
    under_test = _under_test(broker)
    yield under_test
    under_test.close_clients()
    broker.remove()
