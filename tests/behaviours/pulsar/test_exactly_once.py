"""`deliveryGuarantee=exactly-once` on a broker that deduplicates: a later attempt completes an interrupted one."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pulsar as official
import pyarrow as pa
import pytest

from spark_mq_source.core.errors import BrokerError, MQSourceError, ReplayError, UnsupportedFeatureError
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar.test_writer import read_official
from tests.fix_brokers import PulsarUnderTest, wait_until

TASK = TaskAttempt("query", batch_id=7, partition=3)
"""Each test has separate topics, so that all of them can write under one name."""


@pytest.fixture(scope="module")
def namespace(_pulsar_session: PulsarUnderTest) -> str:
    """Return a namespace whose topics deduplicate."""
    return _pulsar_session.new_namespace(deduplicates=True)


@pytest.fixture
def topic(pulsar: PulsarUnderTest, namespace: str) -> str:
    return pulsar.topic(namespace=namespace)


def options(broker: PulsarUnderTest, topic: str, **more: Any) -> PulsarOptions:
    given = {
        "serviceUrl": broker.service_url, "topic": topic, "deliveryGuarantee": "exactly-once",
        "batchingMaxMessages": 10, "sendTimeout": "30s",
    } | more  # fmt: skip
    return PulsarOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, WRITE)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"%06d" % number for number in numbers], pa.binary())})


def write(broker: PulsarUnderTest, topic: str, batch: pa.RecordBatch, task: TaskAttempt = TASK, **more: Any) -> None:
    PulsarWriter(options(broker, topic, **more), task).write_all(iter([batch]))


def left_behind(
    broker: PulsarUnderTest, topic: str, batch: pa.RecordBatch, task: TaskAttempt = TASK, **more: Any
) -> None:
    """Run an attempt that is killed when its full batches of ten are stored."""
    with PulsarWriter(options(broker, topic, **more), task) as writer:
        writer.write(batch)
        writer._wait_until(lambda: not any(producer.pending for producer in writer._open))


def stored(broker: PulsarUnderTest, topic: str, count: int) -> list[int]:
    return [int(message.data()) for message in read_official(broker, topic, count)]


@pytest.mark.parametrize("batching", [True, False])
def test_an_attempt_continues_a_killed_one(pulsar: PulsarUnderTest, topic: str, batching: bool) -> None:
    left_behind(pulsar, topic, rows(*range(35)), batching=batching)
    assert stored(pulsar, topic, 30 if batching else 35) == list(range(30 if batching else 35))
    for attempt in range(2):
        write(pulsar, topic, rows(*range(100)), replace(TASK, attempt=attempt), batching=batching)
    assert stored(pulsar, topic, 100) == list(range(100))


def test_a_row_refused_by_a_policy_is_stored_after_the_policy_changes(pulsar: PulsarUnderTest, topic: str) -> None:
    """The broker refuses only this row; if it stored the next one, that would later hide this row as a duplicate."""
    pulsar.require_version((2, 11), "has policies of topics off by default")
    limit = f"{topic.replace('://', '/')}/maxMessageSize"
    batch = pa.record_batch({"value": [b"%06d" % number + b"-" * (3000 if number == 5 else 0) for number in range(10)]})
    probe = pa.record_batch({"value": [b"-" * 3000]})
    refusals: list[bool] = []

    def is_refused() -> bool:
        """Write a large row under another name: a topic applies a policy some time after the broker reports it."""
        try:
            write(pulsar, topic, probe, TaskAttempt(f"probe-{len(refusals)}"))
        except BrokerError:
            refusals.append(True)
        else:
            refusals.append(False)
        return refusals[-1]

    pulsar.admin.request("POST", limit, 2000)
    wait_until(is_refused, "the topic applies the policy")
    with pytest.raises(BrokerError, match=r"NotAllowedError \(22\): Exceed maximum message size"):
        write(pulsar, topic, batch, batching=False)
    pulsar.admin.request("DELETE", limit)
    wait_until(lambda: not is_refused(), "the topic no longer applies the policy")
    write(pulsar, topic, batch, replace(TASK, attempt=1), batching=False)
    found = [message.data() for message in read_official(pulsar, topic, 10 + refusals.count(False))]
    assert [value for value in found if value != b"-" * 3000] == batch["value"].to_pylist()


def test_a_repeated_batch_adds_only_missing_rows(pulsar: PulsarUnderTest, topic: str) -> None:
    for number, job in enumerate(("a", "b")):
        left_behind(pulsar, topic, rows(*range(20 + 10 * number)), TaskAttempt(job), producerName="flights")
    write(pulsar, topic, rows(*range(40)), TaskAttempt("c"), producerName="flights")
    assert stored(pulsar, topic, 40) == list(range(40))
    write(pulsar, topic, rows(1), TaskAttempt("d"))
    assert stored(pulsar, topic, 41)[40:] == [1]


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_messages_in_chunks_are_stored_once(pulsar: PulsarUnderTest, topic: str, compression: str) -> None:
    pulsar.require_version((3, 3), "cannot deduplicate chunks")
    large = random.Random(1).randbytes(6 << 20)
    batch = pa.record_batch({"value": [b"before", large, b"behind", large]})
    given = {"chunking": True, "compressionType": compression}
    left_behind(pulsar, topic, batch.slice(0, 3), **given)
    for _ in range(2):
        write(pulsar, topic, batch, **given)
    reader = pulsar.client().create_reader(topic, official.MessageId.earliest)
    # Other attempts leave behind chunks without the last one, which are no message.
    write(pulsar, topic, rows(0), replace(TASK, partition=0))
    assert [reader.read_next(20_000).data() for _ in range(5)] == [*batch["value"].to_pylist(), b"000000"]


@pytest.mark.parametrize("behind", [0, 1])
def test_a_message_with_one_stored_chunk_is_stored_once_after_an_unload(
    pulsar: PulsarUnderTest, topic: str, behind: int
) -> None:
    """A broker that loads a topic takes the sequence id of the last entry, even if that is a chunk."""
    batch = pa.record_batch({"value": [b"before"] * behind + [random.Random(1).randbytes(11 << 20), b"behind"]})
    pulsar.require_version((3, 3), "cannot deduplicate chunks")
    with PulsarWriter(options(pulsar, topic, chunking=True), TASK) as writer:
        send, chunks = writer._send_entry, []

        def send_one_chunk(producer: Any, entry: Any) -> None:
            chunks.append(entry.send.is_chunk)
            if sum(chunks) > 1:
                raise OSError
            send(producer, entry)

        writer._send_entry = send_one_chunk  # type: ignore[method-assign]
        with pytest.raises(OSError):  # noqa: PT011 - the one from above
            writer.write(batch)
        assert chunks == [False] * behind + [True, True]
    pulsar.admin.unload(topic)
    for attempt in range(1, 3):
        write(pulsar, topic, batch, replace(TASK, attempt=attempt), chunking=True)
    write(pulsar, topic, rows(0), replace(TASK, partition=0))
    reader = pulsar.client().create_reader(topic, official.MessageId.earliest)
    found = [reader.read_next(20_000).data() for _ in range(behind + 3)]
    assert found == [*batch["value"].to_pylist(), b"000000"]


@pytest.mark.parametrize(
    ("again", "sentence"),
    [
        pytest.param(range(1, 101), "rows 20 to 29 differ from the rows", id="other rows of the same size"),
        pytest.param(range(20), "has 20 rows, an earlier one has stored 30", id="fewer batches"),
        pytest.param([], "has 0 rows, an earlier one has stored 30", id="no rows"),
    ],
)
def test_a_replay_with_other_rows_fails(pulsar: PulsarUnderTest, topic: str, again: Any, sentence: str) -> None:
    left_behind(pulsar, topic, rows(*range(35)))
    with pytest.raises(ReplayError, match=rf"writing to {re.escape(topic)}.*({sentence}).*producerName"):
        write(pulsar, topic, rows(*again))
    assert stored(pulsar, topic, 30) == list(range(30))


def test_a_replay_without_rows_for_a_partition_fails(pulsar: PulsarUnderTest, namespace: str) -> None:
    topic = pulsar.topic(2, namespace=namespace)
    here = {"value": [b"1"] * 10, "partition": pa.array([0] * 10, pa.int32())}
    there = here | {"partition": pa.array([1] * 10, pa.int32())}
    left_behind(pulsar, topic, pa.record_batch(here), batchingMaxMessages=5)
    with pytest.raises(ReplayError, match=r"partition-0.*has 0 rows, an earlier one has stored 5"):
        write(pulsar, topic, pa.record_batch(there))


def strict(schema: str, *values: Any) -> tuple[pa.RecordBatch, dict[str, str]]:
    """Return rows for partition 1 of a topic, and the options for a schema."""
    batch = {"value": pa.array(values, pa.string()), "partition": pa.array([1] * len(values), pa.int32())}
    return pa.record_batch(batch), {"schema": schema}


@pytest.mark.parametrize(
    "schema",
    ["STRING", '{"type": "JSON", "schema": {"type": "record", "name": "R", "fields": []}}'],
    ids=["STRING", "JSON"],
)
def test_partitions_without_rows_are_checked_if_a_schema_is_required(pulsar: PulsarUnderTest, schema: str) -> None:
    namespace = pulsar.new_namespace(deduplicates=True)
    pulsar.admin.request("POST", f"namespaces/{namespace}/schemaValidationEnforced", True)
    topic = pulsar.topic(3, namespace=namespace)
    batch, given = strict(schema, *["{}"] * 20)
    left_behind(pulsar, topic, batch, **given)
    # A task without rows has none in any partition.
    with pytest.raises(ReplayError, match=r"partition-1.*has 0 rows, an earlier one has stored 10"):
        PulsarWriter(options(pulsar, topic, **given), TASK).write_all(iter([]))
    for number in range(2):
        PulsarWriter(options(pulsar, topic, **given), replace(TASK, partition=number)).write_all(iter([]))
    write(pulsar, topic, batch, **given)
    assert len(read_official(pulsar, topic, 20)) == 20


MODES = ["Exclusive", "WaitForExclusive", "ExclusiveWithFencing"]


@pytest.mark.parametrize("mode", MODES)
def test_exclusive_producers_also_write_once(pulsar: PulsarUnderTest, namespace: str, mode: str) -> None:
    topic = pulsar.topic(3, namespace=namespace)
    left_behind(pulsar, topic, rows(*range(35)), accessMode=mode)
    with pytest.raises(ReplayError, match="differ from the rows stored"):
        write(pulsar, topic, rows(*range(1, 101)), accessMode=mode)
    for attempt in range(2):
        write(pulsar, topic, rows(*range(100)), replace(TASK, attempt=attempt), accessMode=mode)
        pulsar.admin.unload(topic)
    assert sorted(stored(pulsar, topic, 100)) == list(range(100))


def test_a_task_cannot_check_a_partition_that_another_task_holds_exclusively(
    pulsar: PulsarUnderTest, namespace: str
) -> None:
    topic = pulsar.topic(2, namespace=namespace)
    batch = pa.record_batch({"value": [b"1"], "partition": pa.array([0], pa.int32())})
    other = pa.record_batch({"value": [b"2"], "partition": pa.array([1], pa.int32())})
    given = {"accessMode": "Exclusive", "operationTimeout": "1s"}
    with PulsarWriter(options(pulsar, topic, **given), TASK) as writer:
        writer.write(batch)
        writer.flush()
        with pytest.raises(MQSourceError, match=r"write with a single task.*partition-0.*existing exclusive producer"):
            write(pulsar, topic, other, replace(TASK, partition=4), **given)


def test_two_attempts_never_write_at_once(pulsar: PulsarUnderTest, topic: str) -> None:
    with PulsarWriter(options(pulsar, topic), TASK) as first:
        first.write(rows(*range(20)))
        with pytest.raises(MQSourceError, match=r"ProducerBusy \(16\)"):
            write(pulsar, topic, rows(*range(20)), sendTimeout="500ms")
        first.finish()
    write(pulsar, topic, rows(*range(20)))
    assert stored(pulsar, topic, 20) == list(range(20))


def test_a_broker_without_deduplication_is_detected(pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic()
    sentence = rf"set-deduplication --enable {pulsar.namespace}`, or brokerDeduplicationEnabled=true"
    with pytest.raises(UnsupportedFeatureError, match=sentence):
        write(pulsar, topic, rows(*range(100)))
    assert stored(pulsar, topic, 10) == list(range(10))
