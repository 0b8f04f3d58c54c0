"""Entries that no client publishes (corrupt, encrypted, contradictory): never skipped without a report."""

from __future__ import annotations

import logging

import lz4.block
import pytest

from spark_mq_source.core.errors import (
    CorruptMessageError,
)
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.raw_producer import RawProducer, metadata, number
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat

LZ4, ZSTD = 1, 3
PACKED = lz4.block.compress(b"hello " * 100, store_size=False)


def packed(codec: int, size: int) -> bytes:
    return metadata(number(8, codec) + number(9, size))


# Each kind of damage: tests/unit/pulsar/payload/test_messages.py.
CORRUPT = {
    "lying size": (packed(LZ4, 599), PACKED),
    "no ZSTD": (packed(ZSTD, 600), b"\xff" * 50),
    "a batch of garbage": (metadata(number(11, 2)), b"\xff" * 30),
}


def publish(mq: PulsarFormat, head: bytes, payload: bytes) -> tuple[str, tuple[int, int]]:
    """Publish one odd entry between two good ones in a new topic; return the topic and the odd entry's id."""
    topic = mq.broker.topic()
    with RawProducer(mq.service, topic) as producer:
        producer.send(metadata(), b"before")
        odd = producer.send(head, payload)
        producer.send(metadata(), b"after")
    return topic, odd


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_entry_fails_the_read_and_is_skipped_or_null_only_by_option(
    pulsar_format: PulsarFormat, caplog, what
):
    topic, (ledger, entry) = publish(pulsar_format, *CORRUPT[what])
    with pytest.raises(CorruptMessageError, match=rf"pulsar-native.*{topic}.*{ledger}:{entry}"):
        pulsar_format.read(topic)
    with caplog.at_level(logging.WARNING):
        assert pulsar_format.read(topic, onCorrupt="skip").column("value").to_pylist() == [b"before", b"after"]
        assert f"{ledger}:{entry}" in caplog.text
        caplog.clear()
        rows = pulsar_format.read(topic, f"value binary, topic string, {MESSAGE_ID}", onCorrupt="null").to_pylist()
        assert f"{ledger}:{entry}" in caplog.text
    assert [row["value"] for row in rows] == [b"before", None, b"after"]
    assert (rows[1]["topic"], *list(rows[1]["message_id"].values())[:2]) == (topic, ledger, entry)


@pytest.mark.parametrize("given", [{}, {"valueFormat": "string"}])
def test_a_corrupt_entry_is_sent_to_the_dead_letter_topic_unchanged(pulsar_format: PulsarFormat, given):
    head, payload = CORRUPT["no ZSTD"]
    topic, (ledger, entry) = publish(pulsar_format, head, payload)
    dead = {"onCorrupt": "deadLetter", "deadLetterTopic": pulsar_format.broker.unused_topic(), "createTopic": True}
    ddl = "value string" if given else "value binary"
    rows = pulsar_format.read(topic, ddl, **dead, **given).column("value").to_pylist()
    assert rows == (["before", "after"] if given else [b"before", b"after"])
    (letter,) = pulsar_format.read(
        dead["deadLetterTopic"], "value binary, properties map<string,string>, key binary"
    ).to_pylist(maps_as_pydicts="strict")
    (corrupt,) = pulsar_format.read(topic, "_corrupt binary, _error string", onCorrupt="null").to_pylist()[1:2]
    assert letter["value"] == corrupt["_corrupt"]
    assert letter["value"].endswith(payload)
    assert letter["key"] is None
    assert letter["properties"] == {
        "REAL_TOPIC": topic,
        "ORIGIN_MESSAGE_ID": f"{ledger}:{entry}:-1",
        "REASON": corrupt["_error"],
        "ATTEMPT": "0",
    }


def test_a_dead_letter_keeps_its_key_and_may_be_larger_than_an_entry(pulsar_format: PulsarFormat):
    topic, dead = pulsar_format.broker.topic(), pulsar_format.broker.topic()
    value = b"\xff" * (5 * 1024 * 1024 - 10_000)
    producer = pulsar_format.broker.client().create_producer(topic, batching_enabled=False)
    producer.send(value, partition_key="k", properties={"about": "x" * 6000, "empty": ""})
    producer.close()
    options = {"valueFormat": "string", "onCorrupt": "deadLetter", "deadLetterTopic": dead}
    assert pulsar_format.read(topic, "value string", **options).num_rows == 0
    (letter,) = pulsar_format.read(dead, "value binary, key binary, properties map<string,string>").to_pylist(
        maps_as_pydicts="strict"
    )
    assert (letter["value"], letter["key"], letter["properties"]["empty"]) == (value, b"k", "")


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("batching", [False, True])
def test_the_java_client_reads_our_dead_letters_like_its_own(
    pulsar_format: PulsarFormat, java: JavaClient, partitions: int, batching: bool
):
    broker = pulsar_format.broker
    topic, dead, javas = broker.topic(partitions=partitions), broker.topic(), broker.topic()
    messages = [
        {"value": b"\xff%d" % n, "key": f"k{n}", "properties": {"n": str(n), "": "x", "utf": "ü"}} for n in range(4)
    ]
    java.produce(broker, topic, messages, batching=batching)
    options = {"valueFormat": "string", "onCorrupt": "deadLetter", "deadLetterTopic": dead}
    assert pulsar_format.read(topic, "value string", **options).num_rows == 0
    ours = sorted(java.consume(broker, dead, 4), key=lambda one: one["value"])
    theirs = sorted(java.reject(broker, topic, javas, 4), key=lambda one: one["value"])
    for sent, one, other in zip(messages, ours, theirs, strict=True):
        assert one["value"] == other["value"] == sent["value"]
        assert (one["key"], one["isBase64"]) == (other["key"], other["isBase64"]) == (sent["key"].encode(), False)
        # The second name is Java's, too (4.0.8).
        for name in ("REAL_SUBSCRIPTION", "ORIGIN_MESSAGE_IDY_TIME"):
            del other["properties"][name]
        assert other["properties"].keys() == sent["properties"].keys() | {"REAL_TOPIC", "ORIGIN_MESSAGE_ID"}
        assert one["properties"] == other["properties"] | {
            "ATTEMPT": "0",
            "REASON": "value: the payload is not UTF-8: invalid start byte at byte 0",
        }


def test_a_dead_letter_with_a_binary_key(pulsar_format: PulsarFormat, java: JavaClient):
    broker = pulsar_format.broker
    topic, dead = broker.topic(), broker.topic()
    keys = {b"\xff0": b"\x00\xff", b"\xff1": b"text", b"\xff2": None}
    java.produce(broker, topic, [{"value": value, **({"keyBytes": key} if key else {})} for value, key in keys.items()])
    options = {"valueFormat": "string", "onCorrupt": "deadLetter", "deadLetterTopic": dead}
    assert pulsar_format.read(topic, "value string", **options).num_rows == 0
    found = {one["value"]: (one.get("key"), one.get("isBase64")) for one in java.consume(broker, dead, 3)}
    assert found == {b"\xff0": (b"\x00\xff", True), b"\xff1": (b"text", False), b"\xff2": (None, None)}
