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


@pytest.mark.parametrize(
    ("interval", "is_dropped"),
    [
        pytest.param("300ms", False, id="with-ping"),
        # With the receive queue full nothing is read, so that the broker's PING is not answered.
        pytest.param("30s", True, id="without"),
    ],
)
def test_a_consumer_of_batches_that_pauses_is_dropped_without_ping(
    impatient: PulsarFormat, interval: str, is_dropped: bool, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "spark_mq_source")
    topic = impatient.broker.topic()
    # The first permits are for messages of which the queue would have room for more.
    values = publish_batches(impatient, topic, 60, size=20_000)
    batches = impatient.batches(topic, ROW, **SMALL, keepAliveInterval=interval)
    rows = next(batches).to_pylist()
    # The silence is intended: longer than the broker waits for a PONG.
    time.sleep(3 * KEEP_ALIVE_SECONDS)
    for one in batches:
        rows += one.to_pylist()
    assert [row["value"] for row in rows] == values
    assert_each_once(rows, impatient.position_of)
    # On a busy machine the client may get no PONG in time, and drop the broker.
    dropped = [text for text in caplog.messages if "resuming" in text and "the broker was silent" not in text]
    assert len(dropped) == is_dropped


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
        q = query(topic, subscription=PIN, maxEntriesPerTrigger=2, serviceUrl=f"pulsar://{proxy.address}")
        for n in range(2):
            publish(impatient.broker, f"{topic}-partition-{n}", numbered(4, f"{n}."))
        q.trigger()
        opened = proxy.connections
        # In Python, so that the thread that answers the broker's PING needs the interpreter's lock beside this one.
        until = time.monotonic() + 3 * KEEP_ALIVE_SECONDS
        while time.monotonic() < until:
            pass
        q.stream.latest(q.at)
        q.stream.commit(q.at)
        assert proxy.connections == opened
        assert len(q.drain()) == 6
        q.close()
