"""Every guarantee but at-least-once under unloads and killed attempts; `storm` runs as many rounds as asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brokers.pulsar import PulsarStandalone
from tests.behaviours.pulsar.storm import KINDS, storms
from tests.fix_brokers import PulsarUnderTest, _start, _under_test


@pytest.fixture
def transactional(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[PulsarUnderTest]:
    """A stock broker with transactions."""
    broker = PulsarStandalone(tmp_path / "pulsar", overrides={"transactionCoordinatorEnabled": "true"})
    yield _under_test(_start(pytestconfig, broker))
    broker.remove()


@pytest.mark.broker
@pytest.mark.slow
def test_each_row_is_there_once_after_a_storm(transactional: PulsarUnderTest) -> None:
    ended = list(storms(transactional.service_url, transactional.admin, 1, len(KINDS)))
    assert len(ended) == len(KINDS)
    assert all(storm.unloads for storm in ended)
