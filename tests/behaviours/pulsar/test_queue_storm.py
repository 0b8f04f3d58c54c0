"""A subscription that a query shares with official consumers, in a storm: see `queue_storm`."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.queue_storm import Storm
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import FaultProxy


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_each_message_is_handled_in_a_storm_and_none_twice_without_a_reason(
    pulsar: PulsarUnderTest, java: JavaClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    parts = urlsplit(pulsar.service_url)
    with FaultProxy(parts.hostname or "", parts.port or 0) as link, monkeypatch.context() as patch:
        storm = Storm(pulsar, java, link, "Key_Shared", 1, tmp_path / "wal")
        storm.run(patch)
    storm.check_each_is_handled()
    storm.check_ours_are_once()
    doubled = storm.check_others_have_a_reason()
    storm.check_counts()
    storm.check_order()
    print(storm, "doubled:", doubled)  # noqa: T201
