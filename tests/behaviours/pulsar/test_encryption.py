"""Encryption of payloads, both ways between the official clients and this package; see `payload/cipher.py`."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pulsar as official
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from spark_mq_source.core.errors import BrokerError, EncryptedMessageError, OptionError, UnreadableKeyError
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import read_range
from tests.behaviours.pulsar import queues, test_exactly_once
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.test_contents import produce_cpp, some_values
from tests.behaviours.pulsar.test_writer import read_official, write
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats.pulsar import PulsarFormat

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "batches": {"batching": True, "compression": "LZ4"},
    "single": {"batching": False, "compression": "SNAPPY"},
    "chunks": {"batching": False, "compression": "ZLIB"},
}
LARGE = 12 << 20
"""More than the broker's 5 MiB, also when it is compressed, and with a last chunk that is not full."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of key pairs: PEM as written by `openssl genrsa` and `openssl ecparam -genkey`."""
    folder = tmp_path_factory.mktemp("keys")
    pairs = {
        "rsa": rsa.generate_private_key(public_exponent=65_537, key_size=2048),
        "other": rsa.generate_private_key(public_exponent=65_537, key_size=2048),
        "ec": ec.generate_private_key(ec.SECP256R1()),
        "ec521": ec.generate_private_key(ec.SECP521R1()),
    }
    for name, pair in pairs.items():
        private = pair.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        public = pair.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        (folder / f"{name}.private.pem").write_bytes(private)
        (folder / f"{name}.public.pem").write_bytes(public)
    return folder


def paths(keys: Path, half: str, *names: str) -> dict[str, str]:
    return {name: str(keys / f"{name}.{half}.pem") for name in names}


def files(keys: Path, half: str, *names: str) -> str:
    return ",".join(f"{name}={path}" for name, path in paths(keys, half, *names).items())


def values_of(shape: str) -> list[bytes]:
    return [b"small", random.Random(7).randbytes(LARGE), b"small again"] if shape == "chunks" else some_values(200)


@pytest.mark.parametrize(("name", "shape"), [*product(("rsa", "ec"), SHAPES), ("ec521", "single")])
def test_both_ways_with_the_java_client(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, java: JavaClient, keys: Path, name: str, shape: str
):
    values = values_of(shape)
    how, chunks = SHAPES[shape], shape == "chunks"
    theirs, ours = pulsar.topic(), pulsar.topic()
    sizes = {"chunkBytes": 1 << 20} if chunks else {}
    java.produce(pulsar, theirs, values, publicKeys=paths(keys, "public", name), **how, **sizes)
    private = files(keys, "private", name)
    assert pulsar_format.read(theirs, cryptoPrivateKeys=private).column("value").to_pylist() == values
    written = {"batching": how["batching"], "compressionType": how["compression"], "chunking": chunks}
    write(pulsar, ours, {"value": values}, cryptoPublicKeys=files(keys, "public", name), **written)
    found = java.consume(pulsar, ours, len(values), privateKeys=paths(keys, "private", name))
    assert [message["value"] for message in found] == values
    assert pulsar_format.read(ours, cryptoPrivateKeys=private).column("value").to_pylist() == values


@pytest.mark.parametrize("shape", SHAPES)
def test_both_ways_with_the_cpp_client(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, keys: Path, shape: str):
    values = values_of(shape)
    how, chunks = SHAPES[shape], shape == "chunks"
    theirs, ours = pulsar.topic(), pulsar.topic()
    reader = official.CryptoKeyReader(str(keys / "rsa.public.pem"), str(keys / "rsa.private.pem"))
    compression = getattr(official.CompressionType, {"ZLIB": "ZLib"}.get(how["compression"], how["compression"]))
    produce_cpp(
        pulsar, theirs, values, encryption_key="rsa", crypto_key_reader=reader, compression_type=compression,
        batching_enabled=how["batching"], chunking_enabled=chunks, batching_max_publish_delay_ms=1000,
    )  # fmt: skip
    private = str(keys / "rsa.private.pem")
    assert pulsar_format.read(theirs, cryptoPrivateKeys=private).column("value").to_pylist() == values
    written = {"batching": how["batching"], "compressionType": how["compression"], "chunking": chunks}
    write(pulsar, ours, {"value": values}, encryptionKeys="rsa", cryptoPublicKeys=keys / "rsa.public.pem", **written)
    consumer = pulsar.client().subscribe(
        ours, "cpp", crypto_key_reader=reader, initial_position=official.InitialPosition.Earliest
    )
    assert [consumer.receive(20_000).data() for _ in values] == values


def test_encrypted_messages_without_batches_can_be_compacted(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, keys: Path
):
    topic = pulsar.topic()
    how = {"cryptoPublicKeys": files(keys, "public", "rsa"), "batching": False}
    write(pulsar, topic, {"key": ["a", "b", "a"], "value": [b"a1", b"b1", b"a2"]}, **how)
    pulsar.admin.compact(topic)
    table = pulsar_format.read(topic, cryptoPrivateKeys=files(keys, "private", "rsa"), readCompacted="true")
    assert table.column("value").to_pylist() == [b"b1", b"a2"]


@pytest.fixture
def mixed(pulsar: PulsarUnderTest, keys: Path) -> str:
    """Return a topic with a message for `rsa`, a batch for `other`, and an unencrypted message."""
    topic = pulsar.topic()
    write(pulsar, topic, {"value": [b"mine"]}, cryptoPublicKeys=files(keys, "public", "rsa"))
    write(pulsar, topic, {"value": [b"not", b"mine"]}, cryptoPublicKeys=files(keys, "public", "other"))
    write(pulsar, topic, {"value": [b"plain"]})
    return topic


@pytest.mark.parametrize(
    ("files_of", "reason"),
    [
        ("rsa=rsa", "cryptoPrivateKeys has no file for the key 'other'"),
        ("rsa=rsa,other=rsa", "the private key 'other' does not belong to the public key"),
    ],
    ids=["no key", "wrong key"],
)
def test_undecryptable_messages_are_an_error_or_discarded_or_ciphertext(
    pulsar_format: PulsarFormat, mixed: str, keys: Path, caplog: pytest.LogCaptureFixture, files_of: str, reason: str
):
    pairs = [pair.split("=") for pair in files_of.split(",")]
    private = ",".join(f"{name}={keys / of}.private.pem" for name, of in pairs)
    with pytest.raises(EncryptedMessageError, match=rf"pulsar-native: reading .*: message \d+:1: .*{reason}"):
        pulsar_format.read(mixed, cryptoPrivateKeys=private)
    with caplog.at_level(logging.WARNING):
        table = pulsar_format.read(mixed, cryptoPrivateKeys=private, cryptoFailureAction="discard")
    assert table.column("value").to_pylist() == [b"mine", b"plain"]
    assert "left out (cryptoFailureAction=DISCARD)" in caplog.text
    schema = arrow_schema_of({name: COLUMNS.readable[name][0] for name in ("value", "encryption_context")})
    options = pulsar_format.options(mixed, cryptoPrivateKeys=private, cryptoFailureAction="CONSUME")
    batches = [batch for task in plan_batch(options) for batch in read_range(options, task, schema)]
    rows = pa.Table.from_batches(batches).to_pylist()
    assert [row["encryption_context"] is not None for row in rows] == [False, True, False]
    context = rows[1]["encryption_context"]
    assert ([key["key"] for key in context["keys"]], context["batch_size"]) == (["other"], 2)


@pytest.mark.parametrize("action", ["fail", "discard", "consume"])
def test_a_missing_file_is_an_error_whatever_the_action_is(
    pulsar_format: PulsarFormat, mixed: str, keys: Path, action: str
):
    private = f"rsa={keys / 'rsa'}.private.pem,other={keys / 'none'}.private.pem"
    with pytest.raises(UnreadableKeyError, match=r"message \d+:1: .*none\.private\.pem cannot be read \(No such file"):
        pulsar_format.read(mixed, cryptoPrivateKeys=private, cryptoFailureAction=action)


def test_a_queue_acknowledges_discarded_messages(pulsar: PulsarUnderTest, mixed: str, keys: Path):
    options = queues.drain_options(
        pulsar, mixed, cryptoPrivateKeys=files(keys, "private", "rsa"), cryptoFailureAction="DISCARD"
    )
    assert sorted(queues.values(queues.read(options))) == ["mine", "plain"]
    subscriptions = lambda: pulsar.admin.stats(mixed)["subscriptions"]  # noqa: E731 - one line
    wait_until(lambda: subscriptions()[queues.SUBSCRIPTION]["msgBacklog"] == 0, "all of it is acknowledged")
    logged = re.compile(rf"{re.escape(mixed)}.*ack for corrupted message at \d+:1 - Reason: DecryptionError")
    log = pulsar.require_own().log
    wait_until(lambda: logged.search(log.read_text()) is not None, "the broker logs the reason")


@pytest.fixture
def encrypting(pulsar: PulsarUnderTest) -> str:
    """Return a namespace that requires encryption and deduplicates."""
    namespace = pulsar.new_namespace()
    pulsar.admin.require_encryption(namespace)
    pulsar.admin.set_deduplication(namespace, enabled=True)
    return namespace


def test_a_namespace_that_requires_encryption(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, keys: Path, encrypting: str
):
    topic = pulsar.topic(namespace=encrypting)
    # The error is not retried until sendTimeout.
    with pytest.raises(BrokerError, match=r"Encryption is required.*set cryptoPublicKeys") as caught:
        write(pulsar, topic, {"value": [b"v"]})
    assert not caught.value.retryable
    missing = {"cryptoPublicKeys": f"rsa={keys}/none.pem"}
    with pytest.raises(OptionError, match=r"writing to .*cryptoPublicKeys: .*none\.pem cannot be read"):
        write(pulsar, topic, {"value": [b"v"]}, **missing)
    with pytest.raises(
        BrokerError, match=r"sequence id 0: .*Messages must be encrypted; .*cryptoFailureAction"
    ) as caught:
        write(pulsar, topic, {"value": [b"v"]}, **missing, cryptoFailureAction="SEND")
    assert not caught.value.retryable
    write(pulsar, topic, {"value": [b"v"]}, cryptoPublicKeys=files(keys, "public", "rsa"))
    private = files(keys, "private", "rsa")
    assert pulsar_format.read(topic, cryptoPrivateKeys=private).column("value").to_pylist() == [b"v"]


def test_a_write_without_its_key_is_unencrypted_if_the_option_allows_it(pulsar: PulsarUnderTest, keys: Path):
    topic = pulsar.topic()
    write(pulsar, topic, {"value": [b"v"]}, cryptoPublicKeys=f"rsa={keys}/none.pem", cryptoFailureAction="SEND")
    assert [message.data() for message in read_official(pulsar, topic, 1)] == [b"v"]


@pytest.mark.parametrize("chunking", [False, True], ids=["batches", "chunks"])
def test_attempts_of_an_encrypted_write_store_each_row_once(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, keys: Path, encrypting: str, chunking: bool
):
    """They encrypt the same rows with different data keys."""
    topic, task = pulsar.topic(namespace=encrypting), test_exactly_once.TASK
    values = [b"%06d" % n for n in range(35)] + ([bytes(range(256)) * (LARGE >> 8)] if chunking else [])
    batch = pa.record_batch({"value": pa.array(values, pa.binary())})
    how = {"cryptoPublicKeys": files(keys, "public", "rsa"), "chunking": chunking}
    test_exactly_once.left_behind(pulsar, topic, batch, **how)
    for attempt in range(1, 3):
        test_exactly_once.write(pulsar, topic, batch, replace(task, attempt=attempt), **how)
    private = files(keys, "private", "rsa")
    assert pulsar_format.read(topic, cryptoPrivateKeys=private).column("value").to_pylist() == values
