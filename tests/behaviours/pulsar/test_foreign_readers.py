"""Messages of the writer, read unchanged by the official clients, C++ and Java."""

from __future__ import annotations

import random
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pulsar as official
import pyarrow as pa
import pytest

from spark_mq_source.core.compression import CODECS
from spark_mq_source.core.errors import UnwritableRowError
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.test_writer import read_official, write
from tests.fix_brokers import PulsarUnderTest, wait_until

TIME = pa.timestamp("us", "UTC")
MAP = pa.map_(pa.string(), pa.string())
EVENT_TIME_MS = 1_700_000_000_123
COLUMNS = {
    "value": pa.array([b"one", None, b"", b"four" * 50], pa.binary()),
    "key": pa.array([b"k\x00\xff", b"k", None, b"l"], pa.binary()),
    "ordering_key": pa.array([None, b"o\x00", None, b"p"], pa.binary()),
    "event_time": pa.array([EVENT_TIME_MS * 1000 + 999, None, None, 1000], TIME),
    "properties": pa.array([[("a", "1"), ("ä", "")], None, [], [("b", "2")]], MAP),
}
EVENT_TIMES_MS = [EVENT_TIME_MS, 0, 0, 1]
PROPERTIES: list[dict[str, str]] = [{"a": "1", "ä": ""}, {}, {}, {"b": "2"}]


@pytest.mark.parametrize("batching", [True, False])
@pytest.mark.parametrize("codec", CODECS)
def test_both_clients_read_everything_of_a_message(
    pulsar: PulsarUnderTest, java: JavaClient, codec: str, batching: bool
):
    topic = pulsar.topic()
    write(pulsar, topic, COLUMNS, compressionType=codec, batching=batching)

    messages = read_official(pulsar, topic, 4)
    assert [message.data() for message in messages] == [b"one", b"", b"", b"four" * 50]
    assert [message.has_null_value() for message in messages] == [False, True, False, False]
    assert [message.event_timestamp() for message in messages] == EVENT_TIMES_MS
    assert [message.properties() for message in messages] == PROPERTIES

    found = java.consume(pulsar, topic, 4)
    assert [message["value"] for message in found] == COLUMNS["value"].to_pylist()
    assert [message.get("key") for message in found] == COLUMNS["key"].to_pylist()
    assert [message.get("isBase64") for message in found] == [True, True, None, True]
    assert [message["orderingKey"] for message in found] == COLUMNS["ordering_key"].to_pylist()
    assert [message["eventTime"] for message in found] == EVENT_TIMES_MS
    assert [message["properties"] for message in found] == PROPERTIES
    assert [message["sequenceId"] for message in found] == [0, 1, 2, 3]
    # Messages that do not shrink are sent uncompressed: the short ones do not shrink on their own.
    assert [message["compression"] for message in found] == ([codec] * 4 if batching else ["NONE"] * 3 + [codec])


def test_text_keys_are_text_to_the_clients(pulsar: PulsarUnderTest, java: JavaClient):
    topic = pulsar.topic()
    write(pulsar, topic, {"value": ["text", "t"], "key": ["schlüssel", None]})
    assert [message.partition_key() for message in read_official(pulsar, topic, 2)] == ["schlüssel", ""]
    found = java.consume(pulsar, topic, 2)
    assert [(m.get("key"), m.get("isBase64")) for m in found] == [("schlüssel".encode(), False), (None, None)]


@pytest.mark.parametrize("compression", ["NONE", "LZ4"])
def test_large_messages_are_sent_in_chunks(pulsar: PulsarUnderTest, java: JavaClient, compression: str):
    topic = pulsar.topic()
    large = random.Random(1).randbytes(12 << 20)
    columns = {"value": [b"before", large, b"behind"], "key": ["a", "b", "c"]}
    with pytest.raises(UnwritableRowError, match=rf"{re.escape(topic)}.*larger than the 5242880.*chunking=true"):
        write(pulsar, topic, columns, compressionType=compression)
    topic = pulsar.topic()
    write(pulsar, topic, columns, compressionType=compression, chunking=True)
    assert [message.data() for message in read_official(pulsar, topic, 3)] == columns["value"]
    found = java.consume(pulsar, topic, 3)
    assert [message["value"] for message in found] == columns["value"]
    assert [message["key"] for message in found] == [b"a", b"b", b"c"]


def test_a_delayed_message_is_delivered_when_it_is_due(pulsar: PulsarUnderTest, java: JavaClient):
    topic = pulsar.topic()
    consumer = pulsar.client().subscribe(topic, "s", consumer_type=official.ConsumerType.Shared)
    with ThreadPoolExecutor(1) as pool:
        shared = pool.submit(java.share, pulsar, topic, 2, kind="Shared")
        # The consumer's start may take longer than the delay, and then nothing is delayed.
        wait_until(lambda: len(pulsar.admin.stats(topic)["subscriptions"]) == 2, "both have subscribed")
        due_ms = int(time.time() * 1000) + 5000
        write(pulsar, topic, {"value": [b"later", b"now"], "deliver_at": pa.array([due_ms * 1000, None], TIME)})
        first, second = shared.result()
    assert (first["value"], second["value"]) == (b"now", b"later")
    # The stock broker checks once a second, and may deliver that much early.
    assert second["receivedAt"] >= due_ms - 1000
    assert consumer.receive(20_000).data() == b"now"
    late = consumer.receive(20_000)
    assert late.data() == b"later"


# Enough keys that each of two consumers has some, however unevenly the broker divides the hashes by random names.
KEYS = [f"k{n}" for n in range(60)]


@pytest.mark.parametrize("column", ["key", "ordering_key"])
def test_each_key_of_a_key_shared_subscription_has_one_consumer(
    pulsar: PulsarUnderTest, java: JavaClient, rng: random.Random, column: str
):
    chosen = [rng.choice(KEYS) for _ in range(700)]
    columns: dict[str, Any] = {"value": [f"{n:03d}{key}".encode() for n, key in enumerate(chosen)]}
    if column == "key":
        columns["key"] = chosen
    else:
        columns["ordering_key"] = [key.encode() for key in chosen]
        columns["key"] = [rng.choice(KEYS) for _ in chosen]
    topic = pulsar.topic()
    # Its consumers subscribe before the messages: a later one takes keys over from the other one.
    received: SimpleQueue[tuple[int, str]] = SimpleQueue()
    for number in range(2):
        subscribe_official(pulsar, topic, number, received)
    write(pulsar, topic, columns, batchingByKey=True, batchingMaxMessages=5)
    assert_one_consumer_a_key([received.get(timeout=30) for _ in chosen])
    found = java.share(pulsar, topic, len(chosen), kind="Key_Shared", consumers=2)
    assert_one_consumer_a_key([(message["consumer"], message["value"].decode()) for message in found])


def subscribe_official(
    broker: PulsarUnderTest, topic: str, number: int, received: SimpleQueue[tuple[int, str]]
) -> None:
    def take(consumer: official.Consumer, message: official.Message) -> None:
        received.put((number, message.data().decode()))
        consumer.acknowledge(message)

    broker.client().subscribe(topic, "official", consumer_type=official.ConsumerType.KeyShared, message_listener=take)


def assert_one_consumer_a_key(found: Sequence[tuple[int, str]]) -> None:
    assert len({consumer for consumer, _ in found}) == 2
    of_key: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for consumer, value in found:
        of_key[value[3:]].append((consumer, value))
    for key, messages in of_key.items():
        assert len({consumer for consumer, _ in messages}) == 1, key
        assert messages == sorted(messages), key
