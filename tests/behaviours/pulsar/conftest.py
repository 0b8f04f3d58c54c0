"""Fixtures of Pulsar's tests only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.queues import SubscriptionQuery
from tests.behaviours.pulsar.streams import Query, query_of
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import PulsarFormat


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """Return the official Java client."""
    client = JavaClient(tmp_path_factory.mktemp("java") / "client.log")
    yield client
    client.close()


@pytest.fixture
def mq(pulsar_format: PulsarFormat) -> PulsarFormat:
    """Return the one format of the tests in this folder."""
    return pulsar_format


@pytest.fixture
def featured(pulsar_featured: PulsarUnderTest) -> PulsarFormat:
    """Return `pulsar-native` on a broker with transactions, small ledgers, entry metadata and authentication."""
    return PulsarFormat(pulsar_featured, defaults={"authToken": pulsar_featured.require_own().admin_token or ""})


@pytest.fixture
def query(pulsar: PulsarUnderTest, closing: Callable[[Query], Query]) -> Callable[..., Query]:
    """Start queries on the stock broker with `query(topic, option=value)`; close them with the test."""
    return lambda topic=None, **options: closing(query_of(pulsar, topic, options))


@pytest.fixture
def queue(
    pulsar: PulsarUnderTest, tmp_path: Path, closing: Callable[[SubscriptionQuery], SubscriptionQuery]
) -> Callable[..., SubscriptionQuery]:
    """Start queries of a subscription with `queue(topic, option=value)`; end them with the test."""
    return lambda topic, **options: closing(SubscriptionQuery(pulsar, topic, tmp_path / "wal", **options))
