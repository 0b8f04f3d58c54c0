"""Messages of every kind that the official clients publish are read unchanged."""

from __future__ import annotations

import datetime
import random

import pulsar as official
import pytest

from spark_mq_source.pulsar.payload.columns import COLUMNS
from tests.behaviours.pulsar.java_client import JavaClient
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat
from tests.readable import ddl_of

CODECS = ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"]
ROW = ddl_of(COLUMNS)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def some_values(count: int) -> list[bytes]:
    """Return values of many sizes, half random, half repeating, so that every codec has something to compress."""
    rng = random.Random(count)
    return [rng.randbytes(n % 40) + b"ab" * (n % 300) + str(n).encode() for n in range(count)]


def produce_cpp(broker, topic: str, messages, **how) -> list[tuple[int, int, int]]:
    """Publish with pulsar-client (C++); return ledger, entry and batch index of each message."""
    producer = broker.client().create_producer(topic, block_if_queue_full=True, send_timeout_millis=60_000, **how)
    ids = []
    for message in messages:
        content = message if isinstance(message, dict) else {"content": message}
        producer.send_async(callback=lambda result, i: ids.append((result, i)), **content)
    producer.flush()
    producer.close()
    assert {str(result) for result, _ in ids} == {"Result.Ok"}
    return sorted((i.ledger_id(), i.entry_id(), i.batch_index()) for _, i in ids)


def positions(table) -> list[tuple[int, int, int]]:
    return [tuple(i.values()) for i in table.column("message_id").to_pylist()]


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
@pytest.mark.parametrize("codec", CODECS)
def test_messages_of_the_cpp_client(pulsar_format: PulsarFormat, codec, batching):
    topic, values = pulsar_format.broker.topic(), some_values(400)
    compression = getattr(official.CompressionType, {"ZLIB": "ZLib"}.get(codec, codec))
    ids = produce_cpp(
        pulsar_format.broker,
        topic,
        values,
        compression_type=compression,
        batching_enabled=batching,
        batching_max_messages=60,
        batching_max_publish_delay_ms=1000,
    )
    table = pulsar_format.read(topic, f"value binary, {MESSAGE_ID}")
    assert table.column("value").to_pylist() == values
    assert positions(table) == ids


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
@pytest.mark.parametrize("codec", CODECS)
def test_messages_of_the_java_client(pulsar_format: PulsarFormat, java: JavaClient, codec, batching):
    topic, values = pulsar_format.broker.topic(), some_values(400)
    ids = java.produce(pulsar_format.broker, topic, values, compression=codec, batching=batching, batchMessages=60)
    table = pulsar_format.read(topic, f"value binary, {MESSAGE_ID}")
    assert table.column("value").to_pylist() == values
    assert positions(table) == [i[:3] for i in ids]
    assert {i[2] for i in ids} == (set(range(60)) if batching else {-1})


def test_all_columns_of_a_message(pulsar_format: PulsarFormat, java: JavaClient):
    topic = pulsar_format.broker.topic()
    before = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(milliseconds=1)
    message = {
        "key": "clé",
        "value": b"v",
        "orderingKey": b"\x00\xff",
        "eventTime": 1_357_035_300_123,
        "properties": {"a": "1", "leer": "", "ключ": "значение"},
    }
    java.produce(pulsar_format.broker, topic, [message], producer="p-False")
    # The Java client publishes a batch of one message as a message without a batch.
    java.produce(pulsar_format.broker, topic, [message, message], batching=True, producer="p-True")
    single, batched, _ = pulsar_format.read(topic, ROW).to_pylist()
    for row, batch_index in (single, -1), (batched, 0):
        assert before <= row.pop("publish_time") <= datetime.datetime.now(datetime.timezone.utc)
        assert row.pop("message_id")["batch_index"] == batch_index
        assert row == {
            "key": "clé".encode(),
            "value": b"v",
            "topic": topic,
            "partition": -1,
            "event_time": EPOCH + datetime.timedelta(milliseconds=1_357_035_300_123),
            "properties": list(message["properties"].items()),
            "producer_name": f"p-{batch_index >= 0}",
            "sequence_id": 0,
            "ordering_key": b"\x00\xff",
            "schema_version": None,
            "schema_id": None,
            "replicated_from": None,
            "broker_publish_time": None,
            "broker_index": None,
            "redelivery_count": 0,
            "encryption_context": None,
            "_corrupt": None,
            "_error": None,
        }


@pytest.mark.parametrize("size", [1, 5 << 20, (5 << 20) + 1, 20 << 20])
@pytest.mark.parametrize("codec", ["NONE", "ZSTD"])
def test_large_messages_of_the_java_client_in_chunks(pulsar_format: PulsarFormat, java: JavaClient, size, codec):
    topic = pulsar_format.broker.topic()
    values = [b"before", random.Random(size).randbytes(size), b"after"]
    how = {"chunkBytes": 0} if size > 4 << 20 else {"chunkBytes": 1000}
    ids = java.produce(pulsar_format.broker, topic, values, compression=codec, **how)
    table = pulsar_format.read(topic, f"value binary, {MESSAGE_ID}")
    assert table.column("value").to_pylist() == values
    assert positions(table) == [i[:3] for i in ids]


def test_one_partition_by_its_name(pulsar_format: PulsarFormat):
    topic = pulsar_format.new_topic(3)
    for partition in range(3):
        pulsar_format.publish(topic, [f"{partition}".encode()], partition=partition)
    rows = pulsar_format.read(f"{topic}-partition-1", "value binary, topic string, partition int").to_pylist()
    assert rows == [{"value": b"1", "topic": topic, "partition": 1}]


def test_several_topics(pulsar_format: PulsarFormat):
    topics = [pulsar_format.broker.topic(), pulsar_format.new_topic(2), pulsar_format.broker.topic()]
    for topic in topics:
        pulsar_format.publish(topic, [topic.encode()] * 3)
    rows = pulsar_format.read(None, "value binary, topic string", topics=",".join(topics)).to_pylist()
    assert sorted(row["topic"] for row in rows) == sorted(topics * 3)
    assert all(row["value"] == row["topic"].encode() for row in rows)


def test_topics_by_a_pattern(pulsar_format: PulsarFormat):
    namespace = pulsar_format.broker.new_namespace()
    admin = pulsar_format.broker.admin
    for name, partitions in ("red-1", 0), ("red-2", 2), ("blue-1", 0), ("red", 0):
        topic = admin.create_topic(f"persistent://{namespace}/{name}", partitions)
        pulsar_format.publish(topic, [name.encode()] * 2)
    rows = pulsar_format.read(None, "value binary, topic string", topicsPattern=f"{namespace}/red-.*").to_pylist()
    assert sorted(row["value"] for row in rows) == [b"red-1"] * 2 + [b"red-2"] * 2
    assert {row["topic"].rpartition("/")[2] for row in rows} == {"red-1", "red-2"}


def test_a_topic_whose_name_needs_quoting(pulsar_format: PulsarFormat):
    topic = pulsar_format.broker.admin.create_topic(f"{pulsar_format.broker.unused_topic()} $/ü%2F?".replace("/ü", "ü"))
    pulsar_format.publish(topic, [b"v"])
    assert pulsar_format.read(topic, "value binary, topic string").to_pylist() == [{"value": b"v", "topic": topic}]
    assert pulsar_format.read(topic, minPartitions=2, adminUrl=pulsar_format.broker.admin_url).num_rows == 1
