"""Fixtures of the formats for the common suites, see `tests.formats`: one each, and one name in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from brokers.nsq import nsqd_on_path
from tests.fix_brokers import NsqUnderTest, PulsarUnderTest
from tests.fix_tubemq import TubeUnderTest
from tests.formats import Feed, Format
from tests.formats.nsq import NsqFormat
from tests.formats.pulsar import PulsarFormat, PulsarQueueFormat
from tests.formats.tubemq import TubeMQFormat

FORMATS = ["pulsar", "tubemq", "nsq_embedded", "nsq_nsqd"]
every_stream = pytest.mark.parametrize(
    "mq", [pytest.param(name, marks=pytest.mark.broker) for name in (*FORMATS, "pulsar_queue")], indirect=True
)
"""Run a test with each format, and with a subscription of Pulsar that is read as a queue."""


@pytest.fixture
def pulsar_format(pulsar: PulsarUnderTest) -> PulsarFormat:
    """Return `pulsar-native` on the shared stock broker."""
    return PulsarFormat(pulsar)


@pytest.fixture
def pulsar_queue_format(pulsar: PulsarUnderTest, tmp_path: Path) -> PulsarQueueFormat:
    """Return `pulsar-native` with streams that read a subscription as a queue."""
    return PulsarQueueFormat(pulsar, folder=tmp_path)


@pytest.fixture
def tubemq_format(tubemq: TubeUnderTest, request: pytest.FixtureRequest) -> TubeMQFormat:
    """Return `tubemq` on the shared cluster."""
    return TubeMQFormat(tubemq, lambda: request.getfixturevalue("tube_java"))


@pytest.fixture
def nsq_embedded_format(nsq_embedded_cluster: Sequence[NsqUnderTest], tmp_path: Path) -> NsqFormat:
    """Return `nsq` on embedded brokers."""
    return NsqFormat(nsq_embedded_cluster, tmp_path)


@pytest.fixture
def nsq_nsqd_format(nsq_nsqd_cluster: Sequence[NsqUnderTest], tmp_path: Path) -> NsqFormat:
    """Return `nsq` on nsqd."""
    return NsqFormat(nsq_nsqd_cluster, tmp_path)


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.broker) for name in FORMATS])
def mq(request: pytest.FixtureRequest) -> Format:
    """Return the format under test."""
    return request.getfixturevalue(f"{request.param}_format")


@pytest.fixture
def every_feed(request: pytest.FixtureRequest) -> Callable[[int], Sequence[tuple[Format, Feed]]]:
    """Create a topic of each format, for processes started once for all of them: `every_feed(partitions)`."""
    here = [name for name in FORMATS if name != "nsq_nsqd" or nsqd_on_path()]
    formats: list[Format] = [request.getfixturevalue(f"{name}_format") for name in here]
    return lambda partitions: [(mq, mq.feed(partitions)) for mq in formats]
