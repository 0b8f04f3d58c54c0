"""Dead letters and retry messages of a queue, as Pulsar's Java client reads and writes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.options import READ
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.letters import QueueLetters, letter_topic_of
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar import raw_producer as raw
from tests.behaviours.pulsar import test_queue_consumer
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.raw_producer import RawProducer
from tests.behaviours.pulsar.test_queue_consumer import NAME, PATIENCE, Open, ids, take
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import PulsarFormat

open_consumer = test_queue_consumer.open_consumer

COLUMNS = "value binary, key binary, ordering_key binary, event_time timestamp, properties map<string,string>"
DELAY_MS = 700

MakeLetters = Callable[..., QueueLetters]


@pytest.fixture
def letters(pulsar: PulsarUnderTest, closing: Callable[[QueueLetters], QueueLetters]) -> MakeLetters:
    """Make the letters of a task: `letters(topic, deadLetterTopic=...)`; close them with the test."""

    def make(
        topic: str,
        counters: Counters | None = None,
        *,
        first_delay_ms: int = DELAY_MS,
        most_times: int = 0,
        **more: str,
    ) -> QueueLetters:
        given = {"serviceUrl": pulsar.service_url, "topic": topic} | more
        options = PulsarOptions.from_spark(given, READ)
        options = replace(options, subscription=NAME, max_redeliver_count=most_times, nack_delay_ms=first_delay_ms)

        def open_writer(to: str, sent: Counters) -> PulsarWriter:
            writing = replace(options, topic=to, create_topic=True, chunking=True)
            return PulsarWriter(writing, TaskAttempt("letters"), sent)

        at = TopicPartition.parse(topic)
        return closing(QueueLetters(options, at, "the task", open_writer, counters=counters))

    return make


def logged(messages: Sequence[Any]) -> pa.RecordBatch:
    """Return entries in the form of the log."""
    rows = [
        {
            "ledger": message.ledger_id,
            "entry": message.entry_id,
            "ack_set": b"".join(word.to_bytes(8, "little", signed=True) for word in message.ack_set),
            "body": bytes(message.body),
        }
        for message in messages
    ]
    schema = pa.schema([("ledger", pa.int64()), ("entry", pa.int64()), ("ack_set", pa.binary()), ("body", pa.binary())])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def received(open_consumer: Open, topic: str, count: int, **how: Any) -> list[Any]:
    """Receive and acknowledge this many entries."""
    consumer = open_consumer(topic, **how)
    consumer.grant(count)
    messages = take(consumer, count)
    consumer.acknowledge(ids(messages)).result(PATIENCE)
    consumer.close(timeout_seconds=PATIENCE)
    return messages


def reported(found: dict[str, Any], *, of: str) -> dict[str, Any]:
    """Return the fields that Java's client reports of a message, without names of its topic and position."""
    properties = dict(found["properties"])
    assert properties.pop("REAL_TOPIC") == of
    positions = {properties.pop("ORIGIN_MESSAGE_ID"), properties.pop("ORIGIN_MESSAGE_IDY_TIME")}
    assert len(positions) == 1
    kept = ("value", "key", "isBase64", "orderingKey", "eventTime")
    return {name: found.get(name) for name in kept} | {"properties": properties}


def test_a_java_consumer_continues_our_retry_messages(
    pulsar: PulsarUnderTest, java: JavaClient, open_consumer: Open, letters: MakeLetters
):
    theirs, ours = pulsar.topic(), pulsar.topic()
    message = {"value": b"v", "key": "k", "orderingKey": b"o", "eventTime": 1357017300123, "properties": {"a": "1"}}
    how = {"subscription": NAME, "most": 1, "delay_ms": DELAY_MS, "dead": 1}
    for topic in (theirs, ours):
        java.produce(pulsar, topic, [message])
    first, second, dead = java.reconsume(pulsar, theirs, 2, **how)
    assert first["properties"] == {"a": "1"}
    letters(ours).put_off(logged(received(open_consumer, ours, 1)))
    our_second, our_dead = java.reconsume(pulsar, ours, 1, **how)
    assert our_second["topic"] == letter_topic_of(ours, NAME, "RETRY")
    assert our_dead["topic"] == letter_topic_of(ours, NAME, "DLQ")
    assert reported(our_second, of=ours) == reported(second, of=theirs)
    assert reported(our_dead, of=ours) == reported(dead, of=theirs)
    assert our_dead["properties"]["RECONSUMETIMES"] == "2"


def test_our_retry_messages_continue_those_of_a_java_consumer(
    pulsar: PulsarUnderTest, java: JavaClient, open_consumer: Open, letters: MakeLetters
):
    topic = pulsar.topic()
    java.produce(pulsar, topic, [{"value": b"v", "key": "k"}])
    (first,) = java.reconsume(pulsar, topic, 1, subscription=NAME, most=16, delay_ms=100, dead=0)
    retry = letter_topic_of(topic, NAME, "RETRY")
    # The subscription is the same on both topics; letters of letters keep the first origin.
    messages = received(open_consumer, retry, 1)
    making = letters(topic)
    making.put_off(logged(messages))
    rows = PulsarFormat(pulsar).read(retry, COLUMNS).to_pylist(maps_as_pydicts="strict")
    assert [row["value"] for row in rows] == [b"v", b"v"]
    before, after = (row["properties"] for row in rows)
    assert (before.pop("RECONSUMETIMES"), after.pop("RECONSUMETIMES")) == ("1", "2")
    assert (before.pop("DELAY_TIME"), after.pop("DELAY_TIME")) == ("100", str(2 * DELAY_MS))
    assert before == after
    assert before["REAL_TOPIC"] == topic
    del first


def test_batches_and_chunks_become_letters_of_their_messages(
    pulsar: PulsarUnderTest, open_consumer: Open, letters: MakeLetters
):
    topic, dead = pulsar.topic(), pulsar.topic()
    with RawProducer(PulsarFormat(pulsar).service, topic) as producer:
        entries = [producer.send(*raw.batch(b"a", b"b", b"c"), messages=3)]
        entries += [
            producer.send(raw.metadata(raw.chunk("u", n, 2, 6)), part) for n, part in enumerate((b"one", b"two"))
        ]
        entries.append(producer.send(raw.metadata(), b"d"))
    counters = Counters()
    batch = logged(received(open_consumer, topic, 4))
    making = letters(topic, counters, deadLetterTopic=dead, onCorrupt="deadLetter")
    making.give_up(batch, ["first", "", "second", "third"])
    rows = PulsarFormat(pulsar).read(dead, COLUMNS).to_pylist(maps_as_pydicts="strict")
    assert [(row["value"], row["properties"]["REASON"]) for row in rows] == [
        (b"a", "first"),
        (b"b", "first"),
        (b"c", "first"),
        (b"onetwo", "second"),
        (b"d", "third"),
    ]
    assert {row["properties"]["REAL_SUBSCRIPTION"] for row in rows} == {NAME}
    assert [row["properties"]["ORIGIN_MESSAGE_ID"] for row in rows] == [
        *(f"{entries[0][0]}:{entries[0][1]}:-1:{index}" for index in range(3)),
        f"{entries[2][0]}:{entries[2][1]}:-1",
        f"{entries[3][0]}:{entries[3][1]}:-1",
    ]
    assert counters.dead_letters == 5


def test_only_unacknowledged_messages_of_a_batch_become_letters(
    pulsar: PulsarUnderTest, open_consumer: Open, letters: MakeLetters
):
    topic = pulsar.topic()
    with RawProducer(PulsarFormat(pulsar).service, topic) as producer:
        producer.send(*raw.batch(b"a", b"b", b"c"), messages=3)
    (message,) = received(open_consumer, topic, 1)
    letters(topic).put_off(logged([message._replace(ack_set=(0b101,))]))
    rows = PulsarFormat(pulsar).read(letter_topic_of(topic, NAME, "RETRY"), COLUMNS).column("value").to_pylist()
    assert rows == [b"a", b"c"]


def test_a_corrupt_entry_is_sent_to_dead_letters_unchanged_and_cannot_be_retried(
    pulsar: PulsarUnderTest, open_consumer: Open, letters: MakeLetters
):
    topic, dead = pulsar.topic(), pulsar.topic()
    with RawProducer(PulsarFormat(pulsar).service, topic) as producer:
        head, payload = raw.batch(b"a", b"b")
        ledger, entry = producer.send(head, payload[:-1])
    (message,) = received(open_consumer, topic, 1)
    making = letters(topic, deadLetterTopic=dead, onCorrupt="deadLetter")
    with pytest.raises(CorruptMessageError, match=rf"message {ledger}:{entry}: batch index 1"):
        making.put_off(logged([message]))
    making.give_up(logged([message]), ["it was redelivered 17 times"])
    (row,) = PulsarFormat(pulsar).read(dead, COLUMNS).to_pylist(maps_as_pydicts="strict")
    assert row["value"] == bytes(message.body)
    assert row["properties"]["REASON"] == "it was redelivered 17 times"
