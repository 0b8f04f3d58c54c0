"""What only Pulsar's tests use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.behaviours.formats import PulsarFormat
from tests.behaviours.pulsar.java_client import JavaClient
from tests.fix_brokers import PulsarUnderTest


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """The official Java client."""
    client = JavaClient(tmp_path_factory.mktemp("java") / "client.log")
    yield client
    client.close()


@pytest.fixture
def featured(pulsar_featured: PulsarUnderTest) -> PulsarFormat:
    """`pulsar-native` on the broker with transactions, small ledgers, broker entry metadata and authentication."""
    return PulsarFormat(pulsar_featured, defaults={"authToken": pulsar_featured.require_own().admin_token or ""})
