"""Rows of the writer under faults: stored at least once and in order."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pulsar as official
import pyarrow as pa
import pytest

from spark_mq_source.core.errors import (
    MQSourceError,
    OptionError,
    RequestTimeoutError,
    UnwritableRowError,
)
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.offsets import EARLIEST, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol.metadata import LOCAL, decode_metadata
from spark_mq_source.pulsar.write.writer import PulsarWriter
from spark_mq_source.values.encoders import encoded_rows
from tests.behaviours.pulsar.java_client import JavaClient
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import HOST, Fault, FaultProxy, free_port
from tests.formats.pulsar import PulsarFormat

ATTEMPT = TaskAttempt("job")


def options(broker: PulsarUnderTest, topic: str | None, **more: Any) -> PulsarOptions:
    host, port = more.pop("service", (None, None))
    given = {"serviceUrl": broker.service_url if host is None else f"pulsar://{host}:{port}"} | more
    if topic is not None:
        given["topic"] = topic
    return PulsarOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, WRITE)


def write(broker: PulsarUnderTest, topic: str | None, *batches: dict[str, Any], **more: Any) -> None:
    made = [pa.record_batch(columns) for columns in batches]
    fitted = PulsarFormat.door.fit(options(broker, topic, **more), made[0].schema)
    with PulsarWriter(fitted, ATTEMPT) as writer:
        for batch in encoded_rows(fitted.encoded, iter(made)):
            writer.write(batch)
        writer.flush()


def read_official(broker: PulsarUnderTest, topic: str, count: int) -> list[Any]:
    reader = broker.client().create_reader(topic, official.MessageId.earliest)
    messages = [reader.read_next(20_000) for _ in range(count)]
    assert not reader.has_message_available()
    reader.close()
    return messages


def test_replication_and_the_producers_shown_by_the_broker(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    official_producer = pulsar.client().create_producer(topic)
    official_producer.send(b"theirs", disable_replication=True)
    official_producer.close()
    given = options(pulsar, topic, replicationClusters="none", producerProperties='{"team": "delays"}')
    with PulsarWriter(given, ATTEMPT) as writer:
        writer.write(pa.record_batch({"value": [b"a", b"b"]}))
        writer.flush()
        (publisher,) = pulsar.admin.stats(topic)["publishers"]
    assert publisher["metadata"] == {"team": "delays"}
    at = TopicPartition.parse(topic)
    with PulsarClient(given) as client:
        consumer = client.open_consumer(at, EARLIEST)
        consumer.grant(10)
        messages: list[Any] = []
        while len(messages) < 2:
            messages += consumer.receive(max_bytes=1, timeout_seconds=20)
    theirs, ours = (decode_metadata(message.body)[0]["replicate_to"] for message in messages)
    assert list(ours) == list(theirs) == [LOCAL]


def test_an_unreachable_cluster_is_replaced_by_another_one(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    clusters = {
        "serviceUrl": f"pulsar://{HOST}:{free_port()}",
        "failoverServiceUrls": pulsar.service_url,
        "failoverDelay": "10ms",
    }
    write(pulsar, topic, {"value": [b"a", b"b"]}, **clusters)
    given = {name.lower(): value for name, value in (clusters | {"topic": topic}).items()}
    schema = pa.schema([("value", pa.binary())])
    planned = PulsarFormat.door.fit_read(PulsarFormat.door.parse_options(given), schema)
    assert (planned.service_url, planned.failover_service_urls) == (pulsar.service_url, ())
    rows = [
        batch for task in PulsarFormat.door.plan(planned, ()) for batch in PulsarFormat.door.read(planned, task, schema)
    ]
    assert pa.Table.from_batches(rows).column("value").to_pylist() == [b"a", b"b"]


@pytest.mark.parametrize("scheme", ["JavaStringHash", "Murmur3_32Hash"])
@pytest.mark.parametrize("is_text", [True, False])
def test_a_key_is_routed_as_by_the_java_client(
    pulsar: PulsarUnderTest,
    pulsar_format: PulsarFormat,
    java: JavaClient,
    rng: random.Random,
    scheme: str,
    is_text: bool,
):
    alphabet = "abcäß€😀\u0000zy"
    keys = ["", *("".join(rng.choices(alphabet, k=rng.randrange(9))) for _ in range(60))]
    topic = pulsar.topic(7)
    name = "key" if is_text else "keyBytes"
    messages = [{"value": b"x", name: key if is_text else key.encode()} for key in keys]
    ids = java.produce(pulsar, topic, messages, hashing=scheme)
    ours = pulsar.topic(7)
    column = pa.array(keys) if is_text else pa.array([key.encode() for key in keys], pa.binary())
    write(pulsar, ours, {"value": [b"%d" % n for n in range(len(keys))], "key": column}, hashingScheme=scheme)
    rows = pulsar_format.read(ours, "value binary, partition int").to_pylist()
    assert len({row["partition"] for row in rows}) > 3
    assert {int(row["value"]): row["partition"] for row in rows} == {n: i[3] for n, i in enumerate(ids)}


def test_a_missing_topic_is_created_and_another_number_of_partitions_is_an_error_before_a_task(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat
):
    ours, of_rows = pulsar.unused_topic(), pulsar.unused_topic()
    more = {"createTopic": True, "topicPartitions": 3, "adminUrl": pulsar.admin_url}
    columns = {"value": [b"%d" % n for n in range(9)], "partition": pa.array(list(range(3)) * 3, pa.int32())}
    for _ in range(2):  # the second time it exists
        write(pulsar, ours, columns, **more)
    write(pulsar, None, {"value": [b"v"], "topic": [of_rows]}, **more)
    rows = pulsar_format.read(ours, "value binary, partition int").to_pylist()
    assert sorted((row["partition"], int(row["value"])) for row in rows) == [
        (n, value) for n in range(3) for value in (n, n, n + 3, n + 3, n + 6, n + 6)
    ]
    assert len(pulsar.client().get_topic_partitions(of_rows)) == 3
    for existing, is_said in ((pulsar.topic(2), "has 2 partitions"), (pulsar.topic(), "is not partitioned")):
        with pytest.raises(OptionError, match=f"{existing} exists and {is_said}, but topicPartitions=3: remove"):
            PulsarFormat.door.fit(options(pulsar, existing, **more), pa.schema({"value": pa.binary()}))


def test_rows_are_sent_to_their_topic_and_partition_columns(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat):
    several, one, default = pulsar.topic(3), pulsar.topic(), pulsar.topic()
    columns = {
        "value": [b"0", b"1", b"2", b"3", b"4"],
        "topic": [several, one.removeprefix("persistent://"), several, None, several],
        "partition": pa.array([2, -1, 0, None, 2], pa.int32()),
        "key": ["a", "a", "a", "a", None],
    }
    write(pulsar, default, columns)
    assert pulsar_format.read(several, "value binary, partition int").to_pylist() == [
        {"value": b"2", "partition": 0},
        {"value": b"0", "partition": 2},
        {"value": b"4", "partition": 2},
    ]
    assert pulsar_format.read(one).column("value").to_pylist() == [b"1"]
    assert pulsar_format.read(default).column("value").to_pylist() == [b"3"]
    columns["partition"] = pa.array([3, None, None, None, None], pa.int32())
    with pytest.raises(UnwritableRowError, match=rf"partition 3 of {re.escape(several)}, which has 3"):
        write(pulsar, default, columns)


def test_rows_without_a_key_are_spread_batch_by_batch(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat):
    topic = pulsar.topic(4)
    batches = [{"value": [b"%06d" % n for n in range(start, start + 700)]} for start in range(0, 7000, 700)]
    write(pulsar, topic, *batches, batchingMaxMessages=100)
    rows = pulsar_format.read(topic, "value binary, partition int, sequence_id bigint").to_pylist()
    for number, found in groupby(rows, key=lambda row: row["partition"]):
        values = [int(row["value"]) for row in found]
        assert values == [n for n in range(7000) if n // 100 % 4 == number]


# Faults.


def numbered(total: int, size: int = 1000) -> Iterator[dict[str, Any]]:
    for start in range(0, total, 500):
        yield {"value": [b"%08d" % n + b"x" * size for n in range(start, min(total, start + 500))]}


def numbers(mq: PulsarFormat, topic: str) -> list[int]:
    return [int(value[:8]) for value in mq.read(topic).column("value").to_pylist()]


def assert_complete(found: list[int], total: int) -> None:
    """Check that all are stored in order, except for runs that were sent again."""
    assert set(found) == set(range(total))
    seen = -1
    for before, number in zip([-1, *found], found, strict=False):
        assert number == before + 1 or number <= seen, f"{number} after {before}, with {seen} seen"
        seen = max(seen, number)


@pytest.mark.parametrize(
    ("fault", "deduplicates"), [("unload", False), ("unload", True), ("cut", False), ("cut", True)]
)
def test_a_write_continues_when_its_topic_is_unloaded_or_its_link_cut(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, link: FaultProxy, fault: str, deduplicates: bool
):
    topic = pulsar.topic(namespace=pulsar.new_namespace(deduplicates=deduplicates))
    with PulsarWriter(
        options(pulsar, topic, service=("127.0.0.1", link.port), batchingMaxBytes=5000), ATTEMPT
    ) as writer:
        for n, columns in enumerate(numbered(20_000)):
            writer.write(pa.record_batch(columns))
            if n % 8 == 4:
                link.cut_now() if fault == "cut" else pulsar.admin.unload(topic)
        writer.flush()
    found = numbers(pulsar_format, topic)
    assert_complete(found, 20_000)
    # Rows that the broker refused on a lost connection, unknown to the writer, are sent as new. 2.10.1 and 2.11.0
    # sometimes break the connection when they unload.
    if fault == "unload" and deduplicates and not pulsar.is_before((3, 3)):
        assert found == list(range(20_000))


def test_a_flipped_bit_is_sent_again(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, link: FaultProxy, rng: random.Random
):
    topic = pulsar.topic()
    # Past the requests most bytes are payload.
    link.add(Fault("flip", "c2b", at=rng.randrange(50_000, 5_000_000), connections=2))
    write(pulsar, topic, *numbered(10_000), service=("127.0.0.1", link.port))
    assert len(link.happened) == 1
    assert set(numbers(pulsar_format, topic)) == set(range(10_000))


def test_a_hanging_connection_is_replaced(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, link: FaultProxy):
    pulsar.require_version((3, 3), "holds a producer's name until its own keep-alive ends a connection that hangs")
    topic = pulsar.topic()
    # One connection to look up, one to write.
    link.add(Fault("stall", "c2b", at=250_000, connections=2))
    write(pulsar, topic, *numbered(2000), service=("127.0.0.1", link.port), sendTimeout="4s")
    assert len(link.happened) == 1
    assert_complete(numbers(pulsar_format, topic), 2000)


def test_a_broker_that_sends_no_receipt(pulsar: PulsarUnderTest, link: FaultProxy):
    pulsar.require_version((3, 3), "holds a producer's name until its own keep-alive ends a connection that hangs")
    topic = pulsar.topic()
    link.add(Fault("stall", "c2b", at=50_000, connections=100))
    with pytest.raises(RequestTimeoutError) as caught:
        write(pulsar, topic, *numbered(2000), service=("127.0.0.1", link.port), sendTimeout="3s")
    sentence = rf"writing to {re.escape(topic)}: 127\.0\.0\.1:{link.port}.*sequence id 0 within sendTimeout \(3000 ms\)"
    assert re.search(sentence, str(caught.value))


def test_a_broker_that_limits_the_rate_is_not_taken_for_dead(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat):
    pulsar.require_version((4, 0), "limits the rate in another way")
    namespace = pulsar.new_namespace()
    rate = {"publishThrottlingRateInMsg": 200, "publishThrottlingRateInByte": -1}
    pulsar.admin.request("POST", f"namespaces/{namespace}/publishRate", rate)
    topic = pulsar.topic(namespace=namespace)
    # Other connections are given up after 2 s; each batch takes 5 s.
    with PulsarWriter(options(pulsar, topic, operationTimeout="4s", batchingMaxMessages=1000), ATTEMPT) as writer:
        for columns in numbered(2000):
            writer.write(pa.record_batch(columns))
        writer.flush()
        assert writer._counters.reconnects == 0
    assert numbers(pulsar_format, topic) == list(range(2000))


def test_pending_bytes_stay_within_their_limit(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat):
    topic = pulsar.topic(3)
    most = 0
    with PulsarWriter(options(pulsar, topic, batchingMaxBytes=100_000, maxPendingBytes=300_000), ATTEMPT) as writer:
        for columns in numbered(10_000):
            writer.write(pa.record_batch(columns))
            most = max(most, sum(producer.pending_bytes for producer in writer._open))
        writer.flush()
    assert most <= 300_000
    assert sorted(numbers(pulsar_format, topic)) == list(range(10_000))


# Refusals.


def test_a_terminated_topic(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    with PulsarWriter(options(pulsar, topic, sendTimeout="10s"), ATTEMPT) as writer:
        writer.write(pa.record_batch({"value": [b"x"]}))
        writer.flush()
        pulsar.admin.terminate(topic)
        writer.write(pa.record_batch({"value": [b"y"]}))
        with pytest.raises(
            MQSourceError, match=rf"writing to {re.escape(topic)} from sequence id 1 on.*TopicTerminated"
        ):
            writer.flush()


def test_a_row_without_a_topic(pulsar: PulsarUnderTest):
    with pytest.raises(UnwritableRowError, match="set the option topic, or the column"):
        write(pulsar, None, {"value": [b"x"]})
    with pytest.raises(UnwritableRowError, match="topic 'a//b'"):
        write(pulsar, None, {"value": [b"x"], "topic": ["a//b"]})
