"""A peer that is gone without a word is given up in time for another try, with the default options."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.behaviours.pulsar.streams import PIN, Query, numbered, publish
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import FaultProxy

DEFAULTS = {"operationTimeout": "30s"}
"""The timeout's own default, in place of what the tests of streams take for theirs."""


@pytest.mark.slow
def test_a_query_goes_on_after_its_connections_died_between_two_triggers(
    pulsar: PulsarUnderTest, query: Callable[..., Query], link: FaultProxy
):
    topic = pulsar.topic(2)
    q = query(topic, serviceUrl=f"pulsar://{link.address}", subscription=PIN, **DEFAULTS)
    assert q.trigger() == []
    values = numbered(10)
    publish(pulsar, f"{topic}-partition-1", values)
    assert link.freeze_now() > 0
    assert q.trigger() == values
    assert q.trigger() == []
