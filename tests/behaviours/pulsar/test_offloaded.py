"""`readOffloaded`: objects of Pulsar's offloader in an S3 server give the same rows that the broker sends."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar as official
import pulsar.schema as official_schema
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from brokers.pulsar import PulsarStandalone, offloaders
from spark_mq_source.core.errors import StorageError, UnsupportedFeatureError
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.net.storage import open_store
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.write.transactions import abort_transactions, commit_transactions
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.fix_brokers import PulsarUnderTest
from tests.fix_s3 import BUCKET, S3Server
from tests.formats import through_json
from tests.spark.frames import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_MQ = PulsarFormat()
ENTRIES_PER_LEDGER = 20


@pytest.fixture
def broker(
    s3: S3Server, tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PulsarUnderTest]:
    """Return a broker with authentication that offloads to the S3 server, and itself reads from its bookies."""
    version = pytestconfig.getoption("--pulsar-version")
    # The names of the driver `S3`; `aws-s3` asks Amazon for the region of the bucket.
    monkeypatch.setenv("ACCESS_KEY_ID", s3.environment["AWS_ACCESS_KEY_ID"])
    monkeypatch.setenv("ACCESS_KEY_SECRET", s3.environment["AWS_SECRET_ACCESS_KEY"])
    settings = {
        "offloadersDirectory": str(offloaders(version)),
        "narExtractionDirectory": str(tmp_path / "nar"),
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": BUCKET,
        "managedLedgerOffloadServiceEndpoint": s3.environment["AWS_ENDPOINT_URL"],
        # Pulsar writes a damaged object if an entry does not fit into a block (seen on 4.0.8 with 5 MiB).
        "managedLedgerOffloadMaxBlockSizeInBytes": str(8 << 20),
        "managedLedgerDataReadPriority": "bookkeeper-first",
        "managedLedgerMaxEntriesPerLedger": str(ENTRIES_PER_LEDGER),
    }
    process = PulsarStandalone(tmp_path / "pulsar", featured=True, overrides=settings, version=version)
    try:
        process.start()
    except RuntimeError as error:
        pytest.skip(f"no Pulsar: {error}")
    under_test = PulsarUnderTest(process.service_url, process.admin_url, process.admin, broker=process)
    yield under_test
    under_test.close_clients()
    process.remove()


def access(broker: PulsarUnderTest, topic: str) -> dict[str, str]:
    token = broker.require_own().admin_token or ""
    return {"serviceurl": broker.service_url, "topic": topic, "authtoken": token}


def rows_of(broker: PulsarUnderTest, topic: str, **more: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the rows, in order, and the ranges that they are from."""
    given = access(broker, topic) | {name.lower(): text for name, text in more.items()}
    schema, _ = SPARK_MQ.columns_by_default(given)
    if "valueformat" not in given:
        schema = arrow_schema_of({name: types[0] for name, types in COLUMNS.readable.items()})
    options = SPARK_MQ.fit_read(SPARK_MQ.parse_options(given), schema)
    # In the form in which Spark passes them to its tasks.
    options, plan = pickle.loads(pickle.dumps((options, SPARK_MQ.plan(options, ()))))  # noqa: S301 - our own
    return [row for r in plan for batch in SPARK_MQ.read(options, r, schema) for row in batch.to_pylist()], list(plan)


def rows_of_stream(broker: PulsarUnderTest, topic: str, **more: str) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the rows of a query with `Trigger.AvailableNow`, started again after each trigger, and the ranges."""
    given = access(broker, topic) | {name.lower(): text for name, text in more.items()}
    schema = arrow_schema_of({name: types[0] for name, types in COLUMNS.readable.items()})
    options = SPARK_MQ.fit_read(SPARK_MQ.parse_stream_options(given), schema)
    rows: list[dict[str, Any]] = []
    ranges: list[Any] = []
    start = None
    while True:
        stream = SPARK_MQ.open_stream(options)
        try:
            stream.cap_at_current_end()
            start = through_json(stream.initial()) if start is None else start
            end = through_json(stream.latest(start))
            if end == start:
                return rows, ranges
            planned = stream.ranges(start, end)
            rows += [row for r in planned for batch in SPARK_MQ.read(options, r, schema) for row in batch.to_pylist()]
            ranges += planned
            stream.commit(end)
            start = end
        finally:
            stream.close()


def send(broker: PulsarUnderTest, topic: str, values: list[bytes], **how: Any) -> None:
    producer = broker.client().create_producer(topic, **{"batching_enabled": False, **how})
    for value in values:
        producer.send_async(value, None, partition_key="k", properties={"p": value[:5].decode("latin-1")})
    producer.flush()
    producer.close()


def send_in_transaction(broker: PulsarUnderTest, topic: str, end: Any) -> None:
    given = access(broker, topic) | {"deliveryguarantee": "transaction"}
    options = PulsarOptions.from_spark(given, WRITE)
    batch = pa.record_batch({"value": [b"in a transaction %d" % n for n in range(30)]})
    end(options, [PulsarWriter(options, TaskAttempt("query")).write_all(iter([batch])).transaction])


class Flight(official_schema.Record):
    carrier = official_schema.String()
    number = official_schema.Integer()


def key_pair(folder: Path) -> tuple[str, str]:
    pair = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
    private = pair.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    public = pair.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "public.pem").write_bytes(public)
    (folder / "private.pem").write_bytes(private)
    return str(folder / "public.pem"), str(folder / "private.pem")


def test_rows_are_those_of_the_broker(
    broker: PulsarUnderTest, s3: S3Server, tmp_path: Path, spark: SparkSession
) -> None:
    topic = broker.topic()
    send(broker, topic, [b"single %d" % n for n in range(16)])
    batching = {"batching_enabled": True, "batching_max_messages": 7, "batching_max_publish_delay_ms": 10_000}
    send(
        broker,
        topic,
        [b"batched %d" % n for n in range(90)],
        compression_type=official.CompressionType.ZSTD,
        **batching,
    )
    for n in range(5):
        # Their chunks cross blocks and ledgers.
        send(broker, topic, [os.urandom(11 << 20), b"between %d" % n], chunking_enabled=True)
    plain, _ = rows_of(broker, topic)
    assert len(plain) == 16 + 90 + 10
    broker.admin.offload(topic)
    stored = {"adminUrl": broker.admin_url, "readOffloaded": "auto", "offloadStorage": s3.url}
    for pieces in ("1", "9"):
        rows, plan = rows_of(broker, topic, minPartitions=pieces, **stored)
        assert rows == plain
        assert sum(bool(r.ledgers) for r in plan) > (pieces == "9")
        # The open ledger is the broker's.
        assert plan[0].ledgers
        assert not plan[-1].ledgers
    rows, plan = rows_of_stream(broker, topic, startingOffsets="earliest", maxEntriesPerTrigger="15", **stored)
    assert rows == plain
    assert len(plan) > 2
    assert plan[0].ledgers
    given = access(broker, topic) | {name.lower(): text for name, text in stored.items()}
    with closing(SPARK_MQ.open_inspector(SPARK_MQ.parse_list_options(given))) as inspector:
        parts = list(inspector.offsets())
    assert [part["source"] for part in parts] == ["offloadStorage", "brokers"]
    assert sum(part["entries"] for part in parts) == sum(n for _, n in broker.admin.ledgers(topic))
    with pytest.raises(UnsupportedFeatureError, match="is not in offloadStorage: end the range before it"):
        rows_of(broker, topic, **stored | {"readOffloaded": "always"})

    send_in_transaction(broker, topic, commit_transactions)
    send_in_transaction(broker, topic, abort_transactions)
    send(broker, topic, [b"last %d" % n for n in range(2 * ENTRIES_PER_LEDGER)])
    plain, _ = rows_of(broker, topic)
    assert sum(row["value"].startswith(b"in a transaction") for row in plain) == 30
    broker.admin.offload(topic)
    assert rows_of(broker, topic, **stored)[0] == plain

    # An encrypted topic with a schema, also as a Spark job.
    typed = broker.topic()
    public, private = key_pair(tmp_path)
    producer = broker.client().create_producer(
        typed,
        schema=official_schema.AvroSchema(Flight),
        batching_enabled=False,
        encryption_key="rsa",
        crypto_key_reader=official.CryptoKeyReader(public, private),
    )
    for n in range(3 * ENTRIES_PER_LEDGER):
        producer.send(Flight(carrier="DL", number=n))
    how = {"valueFormat": "auto", "cryptoPrivateKeys": f"rsa={private}"}
    plain_flights, _ = rows_of(broker, typed, **how)
    broker.admin.offload(typed)
    flights, plan = rows_of(broker, typed, **how, **stored)
    assert flights == plain_flights
    assert [row["value"]["number"] for row in flights] == list(range(3 * ENTRIES_PER_LEDGER))
    assert plan[0].ledgers
    frame = load(spark, "pulsar-native", access(broker, typed) | how | stored)
    assert [row[0] for row in frame.select("value.number").collect()] == list(range(3 * ENTRIES_PER_LEDGER))

    # A ledger that is deleted between the plan and the read.
    objects = open_store(s3.url)
    first = rows_of(broker, topic, **stored)[1][0].ledgers[0]
    objects.remove(f"{first.uuid}-ledger-{first.ledger_id}")
    assert rows_of(broker, topic, **stored)[0] == plain
    end = f'{{"{topic}": {{"ledger": {first.ledger_id}, "entry": {first.entries - 1}}}}}'
    with pytest.raises(StorageError, match=f"does not exist, so ledger {first.ledger_id} was deleted"):
        rows_of(broker, topic, **stored | {"readOffloaded": "always", "endingOffsets": end})

    # Ledgers that are offloaded while a task reads them from the broker.
    moved = broker.topic()
    values = [b"moved %d" % n for n in range(5 * ENTRIES_PER_LEDGER)]
    send(broker, moved, values)
    options = SPARK_MQ.parse_options(access(broker, moved) | {"receiverqueuesize": "5", "maxbatchrows": "5"})
    (task,) = SPARK_MQ.plan(options, ())
    batches = SPARK_MQ.read(options, task, pa.schema([("value", pa.binary())]))
    found = next(batches)["value"].to_pylist()
    broker.admin.offload(moved)
    assert found + [value for batch in batches for value in batch["value"].to_pylist()] == values
