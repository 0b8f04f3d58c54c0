"""What needs a broker of its own: one that is restarted, crashes, or is impatient with silent clients."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from brokers.pulsar import PulsarStandalone
from tests.behaviours.pulsar.raw_producer import RawProducer, batch
from tests.fix_brokers import _start, _under_test
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat, assert_each_once

ROW = f"value binary, {MESSAGE_ID}"
SMALL = {"receiveQueueBytes": "1m", "maxBatchRows": 1, "receiverQueueSize": 200}
KEEP_ALIVE_SECONDS = 2


@pytest.fixture(scope="module")
def impatient(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PulsarFormat]:
    """A broker that drops clients which were silent for four seconds."""
    folder = tmp_path_factory.mktemp("pulsar-impatient")
    broker = PulsarStandalone(folder, overrides={"keepAliveIntervalSeconds": str(KEEP_ALIVE_SECONDS)})
    under_test = _under_test(_start(pytestconfig, broker))
    yield PulsarFormat(under_test)
    under_test.close_clients()
    broker.remove()


def filled(mq: PulsarFormat, entries: int = 600) -> tuple[str, list[bytes]]:
    """A topic of batches of ten messages of 1000 bytes, and its values."""
    topic = mq.broker.topic()
    values = [n.to_bytes(4, "big") * 250 for n in range(10 * entries)]
    with RawProducer(mq.service, topic) as producer:
        for at in range(0, len(values), 10):
            producer.send(*batch(*values[at : at + 10]), messages=10)
    return topic, values


def test_a_consumer_of_batches_that_pauses_keeps_its_connection(impatient: PulsarFormat):
    topic, values = filled(impatient)
    with impatient.proxy() as link:
        batches = impatient.batches(topic, ROW, **SMALL, keepAliveInterval="300ms", service=("127.0.0.1", link.port))
        rows = next(batches).to_pylist()
        opened = link.connections
        # Silence is the point: longer than the broker waits for a sign of life, with the receive queue full.
        time.sleep(3 * KEEP_ALIVE_SECONDS)
        for one in batches:
            rows += one.to_pylist()
        assert link.connections == opened
    assert [row["value"] for row in rows] == values
    assert_each_once(rows, impatient.position_of)


def test_a_consumer_of_batches_that_is_dropped_while_it_pauses_goes_on(impatient: PulsarFormat):
    topic, values = filled(impatient)
    # Our own interval is the default of 30 s: with the queue full nothing is read, and the broker's PING stays there.
    batches = impatient.batches(topic, ROW, **SMALL)
    rows = next(batches).to_pylist()
    time.sleep(3 * KEEP_ALIVE_SECONDS)
    for one in batches:
        rows += one.to_pylist()
    assert [row["value"] for row in rows] == values
    assert_each_once(rows, impatient.position_of)


def test_a_broker_that_crashes_and_restarts_while_a_range_is_read(impatient: PulsarFormat):
    topic, values = filled(impatient)
    batches = impatient.batches(topic, ROW, **SMALL, operationTimeout="100s")
    rows = []
    for n, one in enumerate(batches):
        rows += one.to_pylist()
        if n == 100:
            impatient.broker.require_own().restart(crash=True)
    assert [row["value"] for row in rows] == values
    assert_each_once(rows, impatient.position_of)
