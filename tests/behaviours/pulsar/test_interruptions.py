"""Faults of the topic, the broker or the link while a range is read: nothing is lost or duplicated."""

from __future__ import annotations

import re
import socket
import threading

import pytest

from spark_mq_source.core.errors import CorruptMessageError, MQSourceError
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import read_range
from tests.behaviours.pulsar.raw_producer import RawProducer, batch, metadata
from tests.fix_brokers import wait_until
from tests.fix_net import Direction, Fault, FaultProxy, _Link, free_port
from tests.formats import schema_of
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat, assert_each_once

ROW = f"value binary, {MESSAGE_ID}"
SMALL = {"receiveQueueBytes": "1m", "maxBatchRows": 1, "receiverQueueSize": 200}
"""Limits with which most entries are still on the broker when the first batch is emitted."""


def publish_batches(mq: PulsarFormat, topic: str, entries: int, *, size: int = 1000, messages: int = 10) -> list[bytes]:
    """Publish batches fast; return the values."""
    values = [n.to_bytes(4, "big") * (size // 4) for n in range(entries * messages)]
    with RawProducer(mq.service, topic) as producer:
        for at in range(0, len(values), messages):
            head, payload = batch(*values[at : at + messages])
            producer.send(head, payload, messages=messages)
    return values


@pytest.fixture
def numbered(pulsar_format: PulsarFormat) -> tuple[str, list[bytes]]:
    """Return a topic of 600 batches of ten messages of 1000 bytes, and its values."""
    topic = pulsar_format.broker.topic()
    return topic, publish_batches(pulsar_format, topic, 600)


def test_unloading_all_bundles_while_planning_and_reading(pulsar_format: PulsarFormat):
    namespace = pulsar_format.broker.new_namespace()
    topic = pulsar_format.broker.admin.create_topic(f"persistent://{namespace}/t", 4)
    for partition in range(4):
        pulsar_format.publish(topic, [bytes([n]) for n in range(50)], partition=partition)
    stop = threading.Event()

    def unload_always() -> None:
        while not stop.is_set():
            pulsar_format.broker.admin.unload_namespace(namespace)
            stop.wait(0.3)

    unloading = threading.Thread(target=unload_always)
    unloading.start()
    try:
        for _ in range(5):
            rows = pulsar_format.read(topic, f"partition int, {ROW}").to_pylist()
            assert [row["value"] for row in rows] == [bytes([n]) for n in range(50)] * 4
            assert_each_once(rows, pulsar_format.position_of)
    finally:
        stop.set()
        unloading.join()


def test_a_topic_deleted_while_it_is_read(pulsar_format: PulsarFormat, numbered):
    topic, _ = numbered
    batches = pulsar_format.batches(topic, ROW, **SMALL, operationTimeout="5s")
    next(batches)
    pulsar_format.broker.admin.delete_topic(topic)
    with pytest.raises(MQSourceError) as caught:
        list(batches)
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "pulsar-native" in sentence
    assert topic in sentence
    assert re.search(r"gone|does not exist|not found|deleted", sentence), sentence
    assert topic not in pulsar_format.broker.admin.topics(pulsar_format.broker.namespace)


def test_a_bit_that_is_always_flipped_is_reported(pulsar_format: PulsarFormat, link: FaultProxy):
    topic = pulsar_format.broker.topic()
    with RawProducer(pulsar_format.service, topic) as producer:
        producer.send(metadata(), b"x" * 500_000)
    options = pulsar_format.options(topic, service=("127.0.0.1", link.port))
    (task,) = plan_batch(options)
    for n in range(4):  # a corrupt entry is read again over the same connection
        link.add(Fault("flip", "b2c", at=200_000 + 500_000 * n, connections=100))
    with pytest.raises(CorruptMessageError, match=rf"{re.escape(topic)}.*{task.end.ledger}:0.*checksum"):
        list(read_range(options, task, schema_of(ROW)))


def test_an_abandoned_reader_leaves_nothing_behind(pulsar_format: PulsarFormat, numbered):
    topic, _ = numbered
    before = set(threading.enumerate())  # perhaps those of idle connections of an earlier test
    batches = pulsar_format.batches(topic, ROW, **SMALL)
    next(batches)
    assert len(pulsar_format.broker.admin.subscriptions(topic)) == 1
    batches.close()
    names = {thread.name for thread in set(threading.enumerate()) - before}
    assert not any(name.startswith("spark-mq-source") for name in names)
    wait_until(lambda: not pulsar_format.broker.admin.subscriptions(topic), "the broker has no reader")


class ElsewhereProxy(FaultProxy):
    """A proxy that makes lookups return an address where nothing listens, as in a cluster in another network."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(host, port)
        self.elsewhere = free_port()
        while len(str(self.elsewhere)) != len(str(port)):
            self.elsewhere = free_port()

    def _pass_on(self, link: _Link, direction: Direction, data: bytes, target: socket.socket, faults: list[Fault]):
        theirs, other = (f"pulsar://127.0.0.1:{port}".encode() for port in (self.broker[1], self.elsewhere))
        if direction == "b2c" and theirs in data:
            # The last byte of the answer is `proxy_through_service_url`, which only standalone and proxies set.
            data = data.replace(theirs, other).replace(b"\x40\x01", b"\x40\x00")
        return super()._pass_on(link, direction, data, target, faults)


def test_a_broker_that_advertises_an_address_out_of_reach(pulsar_format: PulsarFormat):
    topic = pulsar_format.broker.topic()
    with ElsewhereProxy(*pulsar_format.service) as proxy:
        sentence = rf"advertises itself as 127\.0\.0\.1:{proxy.elsewhere}.*listenerName"
        with pytest.raises(MQSourceError, match=sentence):
            pulsar_format.read(topic, service=("127.0.0.1", proxy.port), operationTimeout="2s")
