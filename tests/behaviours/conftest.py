"""The formats that the common suite runs with: one fixture each and one name in `FORMATS`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.behaviours.formats import Format, NsqFormat, PulsarFormat, TubeMQFormat
from tests.behaviours.tubemq.java_client import TubeJavaClient
from tests.fix_brokers import NsqUnderTest, PulsarUnderTest
from tests.fix_net import FaultProxy
from tests.fix_tubemq import TubeUnderTest

FORMATS = ["pulsar", "tubemq", "nsq_embedded", "nsq_nsqd"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # The format's fixture is asked for by name, which the collection of all tests cannot see.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.broker)


@pytest.fixture
def pulsar_format(pulsar: PulsarUnderTest) -> PulsarFormat:
    """`pulsar-native` on the shared stock broker."""
    return PulsarFormat(pulsar)


@pytest.fixture
def tubemq_format(tubemq: TubeUnderTest, tube_java: TubeJavaClient) -> TubeMQFormat:
    """`tubemq` on the shared cluster."""
    return TubeMQFormat(tubemq, tube_java)


@pytest.fixture
def nsq_embedded_format(nsq_embedded_cluster: Sequence[NsqUnderTest], tmp_path: Path) -> NsqFormat:
    """`nsq` on embedded brokers."""
    return NsqFormat(nsq_embedded_cluster, tmp_path / "wal")


@pytest.fixture
def nsq_nsqd_format(nsq_nsqd_cluster: Sequence[NsqUnderTest], tmp_path: Path) -> NsqFormat:
    """`nsq` on nsqd."""
    return NsqFormat(nsq_nsqd_cluster, tmp_path / "wal")


@pytest.fixture(params=FORMATS)
def mq(request: pytest.FixtureRequest) -> Format:
    """The format under test."""
    return request.getfixturevalue(f"{request.param}_format")


@pytest.fixture
def link(mq: Format) -> Iterator[FaultProxy]:
    """A link to the broker of the format under test that can be made to fail."""
    with mq.proxy() as proxy:
        yield proxy
