"""Fixtures of real TubeMQ clusters: started by the first test that needs them, ended with the session at the latest."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brokers.tubemq import TubeCluster
from brokers.tubemq_admin import AdminError, Topic, TubeAdmin
from tests.behaviours.tubemq.java_client import TubeJavaClient

_serial = itertools.count()


@dataclass(frozen=True)
class Shape:
    """The shape of a TubeMQ topic: partitions a store, stores a broker, and the brokers' ids."""

    partitions: int = 1
    stores: int = 1
    brokers: tuple[int, ...] = (1,)


TUBE_TOPICS = {
    Shape(): 110,
    Shape(partitions=2): 24,
    Shape(partitions=3): 60,
    Shape(partitions=4): 10,
    Shape(stores=2, partitions=2): 12,
    Shape(stores=2, partitions=3): 4,
    Shape(brokers=(2,)): 8,
    Shape(partitions=3, brokers=(2,)): 8,
    Shape(partitions=2, brokers=(1, 2)): 8,
}
"""The number of topics of each shape created when the cluster starts: a later one takes half a minute."""
MEMORY_PREFIX = "spark-mq-source-"
MEMORY_NEEDED_BYTES = 2 << 30


@dataclass
class TubeUnderTest:
    """A running TubeMQ cluster, with the helpers of tests.

    Broker 1 has every message flushed when it acknowledges it; broker 2 is a stock one, which keeps messages in memory
    for 4 to 14 s. Topics are on broker 1 unless a test asks for others.
    """

    cluster: TubeCluster
    _unused: dict[Shape, list[str]] = field(default_factory=dict)

    @property
    def masters(self) -> str:
        """The addresses of the masters, for clients."""
        return self.cluster.master_addresses

    @property
    def admin(self) -> TubeAdmin:
        """The admin interface of the cluster."""
        return self.cluster.admin

    def topic(self, partitions: int = 1, *, stores: int = 1, brokers: tuple[int, ...] = (1,)) -> str:
        """Return a new topic with this many partitions a store, and this many stores a broker."""
        shape = Shape(partitions, stores, brokers)
        unused = self._unused.get(shape)
        assert unused, f"no topic of {shape} is left: see TUBE_TOPICS, and `_tubemq_secure_session`"
        return unused.pop()

    def group(self, prefix: str = "g") -> str:
        """Return the name of a new group."""
        return f"{prefix}_{os.getpid()}_{next(_serial)}"


def tube_topics(shape: Shape, count: int) -> list[Topic]:
    """Return this many topics of a shape, with new names."""
    # A stock topic reports flushed messages only after 1000 messages or 10 s.
    settings = {"unflushThreshold": "1"}
    return [
        Topic(f"t_{next(_serial)}", shape.stores, shape.partitions, shape.brokers, settings=settings)
        for _ in range(count)
    ]


def memory_folder() -> Path | None:
    """Return a folder in memory for data that brokers flush after every message; None without enough space.

    Forcing a message to a real disk takes up to 10 ms. Files of a killed run are deleted first.
    """
    memory = Path("/dev/shm")
    if not memory.is_dir() or shutil.disk_usage(memory).free < MEMORY_NEEDED_BYTES:
        return None
    for left in memory.glob(f"{MEMORY_PREFIX}*"):
        if not Path(f"/proc/{left.name.split('-')[-2]}").exists():
            shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{MEMORY_PREFIX}{os.getpid()}-", dir=memory))


def start_or_skip(config: pytest.Config, cluster: TubeCluster) -> TubeCluster:
    """Start a cluster; if it cannot run here, skip the test, or fail it if brokers are required."""
    try:
        return cluster.start()
    except (AdminError, RuntimeError, OSError) as error:
        if config.getoption("--require-brokers"):
            pytest.fail(f"a broker is required and did not start: {error}", pytrace=False)
        pytest.skip(f"no TubeMQ: {error}")


@pytest.fixture(scope="session")
def _tubemq_session(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TubeUnderTest]:
    topics = {shape: tube_topics(shape, count) for shape, count in TUBE_TOPICS.items()}
    cluster = TubeCluster(
        tmp_path_factory.mktemp("tubemq"),
        broker_count=2,
        unbuffered=(1,),
        data_folder=memory_folder(),
        topics=[topic for made in topics.values() for topic in made],
    )
    start_or_skip(pytestconfig, cluster)
    yield TubeUnderTest(cluster, {shape: [topic.name for topic in made] for shape, made in topics.items()})
    cluster.remove()


@pytest.fixture
def tubemq(_tubemq_session: TubeUnderTest) -> TubeUnderTest:
    """Yield a master and two brokers, shared by all tests: use new topics and groups, restart nothing."""
    return _tubemq_session


@pytest.fixture(scope="session")
def tube_java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TubeJavaClient]:
    """Yield the official Java client."""
    client = TubeJavaClient(tmp_path_factory.mktemp("tube-java") / "client.log")
    yield client
    client.close()


@pytest.fixture(scope="session")
def _tubemq_secure_session(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TubeUnderTest]:
    topics = tube_topics(Shape(partitions=3), 30)
    cluster = TubeCluster(
        tmp_path_factory.mktemp("tubemq-secure"),
        secure=True,
        unbuffered=(1,),
        topics=topics,
        data_folder=memory_folder(),
    )
    start_or_skip(pytestconfig, cluster)
    yield TubeUnderTest(cluster, {Shape(partitions=3): [topic.name for topic in topics]})
    cluster.remove()


@pytest.fixture
def tubemq_secure(_tubemq_secure_session: TubeUnderTest) -> TubeUnderTest:
    """Yield a cluster with mutual TLS, visit tokens and authentication; topics have 3 partitions on its one broker.

    `tubemq_secure.cluster.credentials` has the certificates, `brokers.tubemq` the user and the password.
    """
    return _tubemq_secure_session
