from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import MQSourceError, UnwritableRowError
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.members import unique_client_id
from spark_mq_source.tubemq.format import TubeMQFormat
from tests.behaviours.tubemq.conftest import options_for
from tests.behaviours.tubemq.java_client import TubeJavaClient
from tests.fix_brokers import wait_until
from tests.fix_tubemq import TubeUnderTest
from tests.protobuf import tubemq as pb

ATTEMPT = TaskAttempt("job")


def write(tubemq: TubeUnderTest, batches: Iterator[pa.RecordBatch], **options: Any) -> int:
    return TubeMQFormat().write(options_for(tubemq, **options), batches, ATTEMPT).rows


def numbered(start: int, stop: int, size: int = 20) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"%0*d" % (size, n) for n in range(start, stop)], pa.binary())})


def stored(tubemq: TubeUnderTest, topic: str, *, flushed: bool = True) -> dict[str, list[bytes]]:
    """Return the content of every partition of a topic, read from its start by fetches and commits."""
    found: dict[str, list[bytes]] = {}
    group = tubemq.group("count")
    with TubeMQClient(options_for(tubemq)) as client:
        for partition in client.fetch_topics([topic], group=group).partitions():
            consumer = client.consumer(partition, client_id=unique_client_id(group), group=group)
            priority = 1 if flushed else 301
            end = client.wait(consumer.register(curr_offset=0, qry_priority_id=priority), "register").max_offset
            values = found[f"{partition.broker.broker_id}:{partition.partition_id}"] = []
            position = 0
            while position < end:
                pairs = [consumer.get_and_commit() for _ in range(4)]
                for got, committed in pairs:
                    response = client.wait(got, "fetch")
                    messages = pb.TransferedMessages.FromString(bytes(response.body)).messages
                    values += [message.pay_load_data for message in messages]
                    position = client.wait(committed, "commit").curr_offset
            client.wait(consumer.unregister(), "unregister")
    return found


def test_the_java_client_reads_the_written_messages(tubemq: TubeUnderTest, tube_java: TubeJavaClient) -> None:
    topic = tubemq.topic(3)
    time = datetime(2026, 2, 28, 23, 59, 30, tzinfo=timezone.utc)
    batch = pa.record_batch(
        {
            "value": pa.array([b"plain", b"typed", "käse".encode(), bytes(20_000), b"attributes only"]),
            "message_type": [None, "a", "käse", "a b", None],
            "message_time": pa.array([None, None, time, time + timedelta(hours=1), None], pa.timestamp("us", "UTC")),
            "attributes": pa.array(
                [None, [], [("k", "v"), ("ä", "ö")], None, [("k", " w")]], pa.map_(pa.string(), pa.string())
            ),
        }
    )
    assert write(tubemq, iter([batch]), topic=topic) == 5
    read = tube_java.consume(tubemq.cluster, topic, tubemq.group(), 5)
    assert {(m.value, m.type, m.time, m.attributes) for m in read} == {
        (b"plain", None, None, None),
        (b"typed", "a", None, "$msgType$=a"),
        ("käse".encode(), "käse", "202602282359", "$msgType$=käse,$msgTime$=202602282359,k=v,ä=ö"),
        (bytes(20_000), "a b", "202603010059", "$msgType$=a b,$msgTime$=202603010059"),
        (b"attributes only", None, None, "k= w"),
    }
    assert len({m.partition for m in read}) == 3


def test_every_row_is_stored_once_spread_over_all_partitions_of_all_brokers(tubemq: TubeUnderTest) -> None:
    topic, count = tubemq.topic(2, brokers=(1, 2)), 20_000
    batches = (numbered(start, start + 5_000) for start in range(0, count, 5_000))
    report = TubeMQFormat().write(options_for(tubemq, topic=topic, logReceipts="true"), batches, ATTEMPT)
    assert report.rows == sum(span.rows for span in report.spans.values()) == count
    ends = [max(at.last.offset for tp, at in report.spans.items() if tp.broker_id == broker) for broker in (1, 2)]
    assert sum(end + 28 for end in ends) == 28 * count
    found = stored(tubemq, topic, flushed=False)
    assert sorted(int(value) for values in found.values() for value in values) == list(range(count))
    assert {name: len(values) for name, values in found.items()} == dict.fromkeys(
        ["1:0", "1:1", "2:0", "2:1"], count // 4
    )


def test_rows_of_a_key_or_partition_are_stored_there_in_order(tubemq: TubeUnderTest) -> None:
    topic, count = tubemq.topic(2, brokers=(1, 2)), 3_000
    rows = numbered(0, count)
    keyed = rows.append_column("key", pa.array([f"carrier {n % 7}" for n in range(count)]))
    write(tubemq, iter([keyed]), topic=topic)
    found = stored(tubemq, topic, flushed=False)
    by_key = {n % 7: [name for name in found if any(int(value) % 7 == n for value in found[name])] for n in range(7)}
    assert all(len(names) == 1 for names in by_key.values())
    assert len({name for names in by_key.values() for name in names}) > 1
    assert sorted(int(value) for values in found.values() for value in values) == list(range(count))
    assert all(values == sorted(values) for values in found.values())
    places = {"broker_id": [2, 1, 2], "partition": [1, 1, 0]}
    columns = {name: pa.array(cells, pa.int32()) for name, cells in places.items()}
    write(tubemq, iter([pa.record_batch({"value": [b"2:1", b"1:1", b"2:0"]} | columns)]), topic=topic)
    assert {name: values[-1] for name, values in stored(tubemq, topic, flushed=False).items() if name != "1:0"} == {
        name: name.encode() for name in ("1:1", "2:0", "2:1")
    }


def test_a_topic_may_have_a_separate_limit(tubemq: TubeUnderTest) -> None:
    topic = tubemq.topic()
    tubemq.admin.modify("admin_update_topic_control_info", topicName=topic, maxMsgSizeInMB=2)
    batch = pa.record_batch({"value": [bytes(2 << 20)]})

    def is_taken() -> bool:
        try:
            return write(tubemq, iter([batch]), topic=topic) == 1
        except MQSourceError:
            return False  # the master sends the broker this setting with its next heartbeat

    wait_until(is_taken, "the broker has the topic's limit", 60)
    assert [len(value) for value in stored(tubemq, topic)["1:0"]] == [2 << 20]
    with pytest.raises(UnwritableRowError, match=f"allows at most {2 << 20}"):
        write(tubemq, iter([pa.record_batch({"value": [bytes((2 << 20) + 1)]})]), topic=topic)
