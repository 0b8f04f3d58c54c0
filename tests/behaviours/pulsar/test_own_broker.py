"""Tests that need a separate broker: one that is restarted, crashes, or drops silent clients soon."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from brokers.pulsar import PulsarStandalone
from tests.behaviours.pulsar.streams import PIN, Query, numbered, publish, query_of
from tests.behaviours.pulsar.test_interruptions import SMALL, publish_batches
from tests.fix_brokers import _start, _under_test
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat, assert_each_once

ROW = f"value binary, {MESSAGE_ID}"
KEEP_ALIVE_SECONDS = 2

Filled = tuple[str, list[bytes]]


@pytest.fixture(scope="module")
def impatient(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarFormat]:
    """Return a broker that drops clients which were silent for four seconds, and that a test may crash."""
    overrides = {"keepAliveIntervalSeconds": str(KEEP_ALIVE_SECONDS)}
    broker = PulsarStandalone(tmp_path_factory.mktemp("pulsar-impatient"), overrides=overrides)
    under_test = _under_test(_start(pytestconfig, broker))
    yield PulsarFormat(under_test)
    under_test.close_clients()
    broker.remove()


@pytest.fixture
def query(impatient: PulsarFormat, closing: Callable[[Query], Query]) -> Callable[..., Query]:
    """Start queries there, from the first message on."""
    return lambda topic, **options: closing(
        query_of(impatient.broker, topic, {"startingOffsets": "earliest", **options})
    )


@pytest.fixture
def filled(impatient: PulsarFormat) -> Filled:
    """Return a topic of batches of ten messages of 1000 bytes, and its values."""
    topic = impatient.broker.topic()
    return topic, publish_batches(impatient, topic, 600)


def test_a_consumer_of_batches_that_pauses_keeps_its_connection(impatient: PulsarFormat, filled: Filled):
    topic, values = filled
    with impatient.proxy() as link:
        batches = impatient.batches(topic, ROW, **SMALL, keepAliveInterval="300ms", service=("127.0.0.1", link.port))
        rows = next(batches).to_pylist()
        opened = link.connections
        # The silence is intended: longer than the broker waits for a PONG, with the receive queue full.
        time.sleep(3 * KEEP_ALIVE_SECONDS)
        for one in batches:
            rows += one.to_pylist()
        assert link.connections == opened
    assert [row["value"] for row in rows] == values
    assert_each_once(rows, impatient.position_of)


def test_a_consumer_of_batches_dropped_while_it_pauses_continues(impatient: PulsarFormat, filled: Filled):
    topic, values = filled
    # Our interval is the default of 30 s: with the queue full nothing is read, so the broker's PING is not answered.
    batches = impatient.batches(topic, ROW, **SMALL)
    rows = next(batches).to_pylist()
    time.sleep(3 * KEEP_ALIVE_SECONDS)
    for one in batches:
        rows += one.to_pylist()
    assert [row["value"] for row in rows] == values
    assert_each_once(rows, impatient.position_of)


def test_a_broker_that_crashes_and_restarts_while_a_range_is_read(impatient: PulsarFormat, filled: Filled):
    topic, values = filled
    batches = impatient.batches(topic, ROW, **SMALL, operationTimeout="100s")
    rows = []
    for n, one in enumerate(batches):
        rows += one.to_pylist()
        if n == 100:
            impatient.broker.require_own().restart(crash=True)
    assert [row["value"] for row in rows] == values
    assert_each_once(rows, impatient.position_of)


def test_connections_survive_a_driver_that_computes(impatient: PulsarFormat, query: Callable[..., Query]):
    topic = impatient.new_topic(2)
    with impatient.proxy() as proxy:
        options = {"serviceUrl": f"pulsar://{proxy.address}", "keepAliveInterval": "500ms"}
        q = query(topic, subscription=PIN, maxEntriesPerTrigger=2, **options)
        for n in range(2):
            publish(impatient.broker, f"{topic}-partition-{n}", numbered(4, f"{n}."))
        q.trigger()
        opened = proxy.connections
        # In Python, so that the thread that answers the broker needs the interpreter's lock beside this one.
        until = time.monotonic() + 3 * KEEP_ALIVE_SECONDS
        while time.monotonic() < until:
            pass
        q.stream.latest(q.at)
        q.stream.commit(q.at)
        assert proxy.connections == opened
        assert len(q.drain()) == 6
        q.close()
