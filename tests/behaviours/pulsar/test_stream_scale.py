"""A stream of many topic-partitions and of many triggers: few round trips, no new connections, constant memory."""

from __future__ import annotations

import gc
import io
import json
import tracemalloc
from collections import Counter
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest

from tests.behaviours.pulsar.streams import PIN, Query, numbered, publish
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import RecordingProxy

PARTITIONS = 100
TRIGGERS = 1000


def test_an_idle_trigger_of_many_partitions_asks_each_once_and_opens_no_connection(
    pulsar: PulsarUnderTest, query: Callable[..., Query]
):
    topic = pulsar.topic(PARTITIONS)
    address = urlsplit(pulsar.service_url)
    lines = io.StringIO()
    with RecordingProxy(address.hostname or "", address.port or 0, lines) as proxy:
        q = query(topic, serviceUrl=f"pulsar://{proxy.address}", subscription=PIN, operationTimeout="60s")
        q.trigger()
        q.trigger()
        connections = proxy.connections
        lines.seek(0)
        lines.truncate()
        assert q.trigger() == []
        asked = Counter(
            frame["type"] for frame in map(json.loads, lines.getvalue().splitlines()) if frame["dir"] == "c2b"
        )
        assert asked == {"PARTITIONED_METADATA": 1, "GET_LAST_MESSAGE_ID": PARTITIONS}
        assert proxy.connections == connections
        q.close()
    publish(pulsar, f"{topic}-partition-{PARTITIONS - 1}", numbered(3))
    assert query(topic, subscription=PIN, checkpoint=q.at, operationTimeout="60s").trigger() == numbered(3)


@pytest.mark.slow
def test_memory_is_flat_over_many_triggers(pulsar: PulsarUnderTest, query: Callable[..., Query]):
    topic = pulsar.topic(4)
    q = query(topic, subscription=PIN, maxEntriesPerTrigger=2, maxRowsPerTrigger=100)
    q.trigger()

    def run(triggers: int) -> int:
        for n in range(triggers):
            if n % 50 == 0:
                name = f"{topic}-partition-{n // 50 % 4}"
                publish(pulsar, name, numbered(3))
                pulsar.admin.unload(name)
            q.trigger()
        for noted in (q.rows, q.sizes):
            noted.clear()
        pulsar.close_clients()
        gc.collect()
        # The receive block of each connection is counted below.
        filters = [tracemalloc.Filter(False, name) for name in ("*/core/buffer.py", tracemalloc.__file__)]
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(filters).traces)

    tracemalloc.start()
    try:
        first = run(TRIGGERS // 5)
        last = run(TRIGGERS)
    finally:
        tracemalloc.stop()
    # One object of 100 B kept at each trigger would be detected.
    assert last - first < 100 * TRIGGERS, (first, last)
    alive = Counter(type(thing).__name__ for thing in gc.get_objects())
    assert alive["PulsarConnection"] < 16
    assert alive["Consumer"] < 50
