"""Entries that no client publishes: corrupt, encrypted, contradicting themselves. Never skipped without a word."""

from __future__ import annotations

import logging

import lz4.block
import pulsar as official
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from spark_mq_source.core.compression import decompress
from spark_mq_source.core.errors import (
    CorruptMessageError,
    EncryptedMessageError,
    UnsupportedFeatureError,
)
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import read_range
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.raw_producer import RawProducer, chunk, metadata, number
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
    """A topic of one odd entry between two good ones, and the odd one's id."""
    topic = mq.broker.topic()
    with RawProducer(mq.service, topic) as producer:
        producer.send(metadata(), b"before")
        odd = producer.send(head, payload)
        producer.send(metadata(), b"after")
    return topic, odd


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_entry_fails_by_name(pulsar_format: PulsarFormat, what):
    topic, (ledger, entry) = publish(pulsar_format, *CORRUPT[what])
    with pytest.raises(CorruptMessageError, match=rf"pulsar-native.*{topic}.*{ledger}:{entry}"):
        pulsar_format.read(topic)


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_entry_is_skipped_only_where_asked_for(pulsar_format: PulsarFormat, caplog, what):
    topic, (ledger, entry) = publish(pulsar_format, *CORRUPT[what])
    with caplog.at_level(logging.WARNING):
        assert pulsar_format.read(topic, onCorrupt="skip").column("value").to_pylist() == [b"before", b"after"]
    assert f"{ledger}:{entry}" in caplog.text


@pytest.mark.parametrize("what", CORRUPT)
def test_a_corrupt_entry_becomes_a_row_without_value_where_asked_for(pulsar_format: PulsarFormat, caplog, what):
    topic, (ledger, entry) = publish(pulsar_format, *CORRUPT[what])
    with caplog.at_level(logging.WARNING):
        rows = pulsar_format.read(topic, f"value binary, topic string, {MESSAGE_ID}", onCorrupt="null").to_pylist()
    assert [row["value"] for row in rows] == [b"before", None, b"after"]
    assert (rows[1]["topic"], rows[1]["message_id"]["ledger_id"], rows[1]["message_id"]["entry_id"]) == (
        topic,
        ledger,
        entry,
    )
    assert f"{ledger}:{entry}" in caplog.text


@pytest.mark.parametrize("given", [{}, {"valueFormat": "string"}])
def test_a_corrupt_entry_goes_to_the_dead_letter_topic_as_it_was(pulsar_format: PulsarFormat, given):
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


def test_a_chunked_message_larger_than_the_bound_is_refused(pulsar_format: PulsarFormat):
    topic = pulsar_format.broker.topic()
    with RawProducer(pulsar_format.service, topic) as producer:
        for n in range(3):
            producer.send(metadata(chunk("u", n, 3, 3_000_000)), b"x" * 1_000_000)
    with pytest.raises(UnsupportedFeatureError, match=r"maxPendingChunkBytes"):
        pulsar_format.read(topic, maxPendingChunkBytes="2m", operationTimeout="5s")
    assert pulsar_format.read(topic, maxPendingChunkBytes="4m").column("value").to_pylist() == [b"x" * 3_000_000]


@pytest.mark.parametrize("batching", [True, False], ids=["batched", "single"])
def test_an_encrypted_message_fails_or_passes_as_it_is(pulsar_format: PulsarFormat, tmp_path, batching):
    key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    topic = pulsar_format.broker.topic()
    producer = pulsar_format.broker.client().create_producer(
        topic,
        encryption_key="key",
        crypto_key_reader=official.CryptoKeyReader(str(public), str(private)),
        batching_enabled=batching,
        compression_type=official.CompressionType.ZLib if batching else official.CompressionType.NONE,
    )
    producer.send(b"secret words")
    producer.close()
    with pytest.raises(EncryptedMessageError, match=r"pulsar-native.*cryptoFailureAction=CONSUME"):
        pulsar_format.read(topic)
    (value,) = pulsar_format.read(topic, cryptoFailureAction="CONSUME").column("value").to_pylist()
    assert b"secret words" not in value
    # Decrypted with what the column has, and what compression and batching had made of it undone.
    schema = arrow_schema_of({"encryption_context": COLUMNS.readable["encryption_context"][0]})
    options = pulsar_format.options(topic, cryptoFailureAction="CONSUME")
    (task,) = plan_batch(options)
    (context,) = [b.column(0)[0].as_py() for b in read_range(options, task, schema)]
    (wrapped,) = context["keys"]
    assert wrapped["key"] == "key"
    # The C++ client's MessageCrypto: OAEP with SHA-1.
    oaep = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)  # noqa: S303
    data_key = key.decrypt(wrapped["value"], oaep)
    plain = AESGCM(data_key).decrypt(context["param"], value, None)
    assert context["compression"] == ("ZLIB" if batching else "NONE")
    if not batching:
        assert plain == b"secret words"
        assert context["batch_size"] is None
        return
    assert context["batch_size"] == 1
    plain = decompress(context["compression"], plain, context["uncompressed_size"])
    size = int.from_bytes(plain[:4], "big")
    assert bytes(plain[4 + size :]) == b"secret words"


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("batching", [False, True])
def test_the_java_client_reads_dead_letters_as_its_own(
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
        # The second one is Java's, too (4.0.8).
        for name in ("REAL_SUBSCRIPTION", "ORIGIN_MESSAGE_IDY_TIME"):
            del other["properties"][name]
        assert other["properties"].keys() == sent["properties"].keys() | {"REAL_TOPIC", "ORIGIN_MESSAGE_ID"}
        assert one["properties"] == other["properties"] | {
            "ATTEMPT": "0",
            "REASON": "value: the payload is not UTF-8: invalid start byte at byte 0",
        }


def test_the_key_of_a_dead_letter_that_is_no_text(pulsar_format: PulsarFormat, java: JavaClient):
    broker = pulsar_format.broker
    topic, dead = broker.topic(), broker.topic()
    keys = {b"\xff0": b"\x00\xff", b"\xff1": b"text", b"\xff2": None}
    java.produce(broker, topic, [{"value": value, **({"keyBytes": key} if key else {})} for value, key in keys.items()])
    options = {"valueFormat": "string", "onCorrupt": "deadLetter", "deadLetterTopic": dead}
    assert pulsar_format.read(topic, "value string", **options).num_rows == 0
    found = {one["value"]: (one.get("key"), one.get("isBase64")) for one in java.consume(broker, dead, 3)}
    assert found == {b"\xff0": (b"\x00\xff", True), b"\xff1": (b"text", False), b"\xff2": (None, None)}
