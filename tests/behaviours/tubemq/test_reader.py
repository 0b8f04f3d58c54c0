"""Ranges of partitions on a real broker: exactly the messages of the official client, with concurrent readers."""

from __future__ import annotations

import dataclasses
import json
import logging
import random
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import BrokerError, CorruptMessageError, DataLossError, OptionError
from spark_mq_source.core.options import READ
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.members import ProducerMember, unique_client_id
from spark_mq_source.tubemq.client.reading_groups import reading_group
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from spark_mq_source.tubemq.protocol.commands import SendMessage
from spark_mq_source.tubemq.read.planner import plan_batch
from spark_mq_source.tubemq.read.reader import TubeMQRange, read_range
from tests.behaviours.tubemq.java_client import Place, TubeJavaClient
from tests.fix_net import Fault
from tests.fix_tubemq import TubeUnderTest
from tests.formats import schema_of
from tests.formats.tubemq import TubeMQFormat, tubemq_options, wait_until_flushed

ROW = "partition int, message_id bigint, value binary, message_type string"


def read(options: Any, task: TubeMQRange, ddl: str = ROW) -> list[dict[str, Any]]:
    schema = schema_of(ddl)
    return pa.Table.from_batches(list(read_range(options, task, schema)), schema).to_pylist()


def within(places: Sequence[Place], task: TubeMQRange) -> list[int]:
    """Return the ids of the messages whose positions, as reported to the official client, are in a range, in order."""
    tp = task.topic_partition
    inside = [
        (place.offset, place.message_id)
        for place in places
        if (place.broker_id, place.partition) == (tp.broker_id, tp.partition) and task.start <= place.offset < task.end
    ]
    return [message_id for _, message_id in sorted(inside)]


def moved(task: TubeMQRange, start: int, end: int) -> TubeMQRange:
    return TubeMQRange(task.topic_partition, task.broker, start, end, task.authorized)


def random_ranges(rng: random.Random, task: TubeMQRange, count: int) -> list[TubeMQRange]:
    ends = [sorted(rng.randrange(task.start // 28, task.end // 28 + 1) * 28 for _ in range(2)) for _ in range(count)]
    return [moved(task, *pair) for pair in ends]


@pytest.mark.parametrize("broker", [1, 2])
@pytest.mark.parametrize("filters", [None, "a,c"])
def test_any_range_has_exactly_the_messages_published_there(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, rng: random.Random, broker: int, filters: str | None
):
    topic = tubemq.topic(3, brokers=(broker,))
    kinds = ["a", "b", "c", "Aa", "BB"]
    messages = [
        {"value": rng.randbytes(rng.choice([1, 20, 900])), "type": kinds[n % 5], "time": "202611211200"}
        for n in range(600)
    ]
    places = tube_java.produce(tubemq.cluster, topic, messages)
    if filters is not None:
        places = [place for place, message in zip(places, messages, strict=True) if message["type"] in ("a", "c")]
    # Broker 2 has them only in memory at first.
    options = tubemq_options(
        tubemq.masters, topic, READ, lowLatency=broker == 2, **({} if filters is None else {"filters": filters})
    )
    if broker == 1:
        wait_until_flushed(options)
    tasks = plan_batch(options)
    assert sum(len(read(options, task)) for task in tasks) == len(places)
    for task in tasks:
        for some in random_ranges(rng, task, 6):
            assert [row["message_id"] for row in read(options, some)] == within(places, some), some
    pieces = plan_batch(dataclasses.replace(options, min_partitions=rng.randrange(4, 40)))
    assert len(pieces) > len(tasks)
    for piece in pieces:
        assert [row["message_id"] for row in read(options, piece)] == within(places, piece), piece
    assert sum(len(within(places, piece)) for piece in pieces) == len(places)


def test_each_topic_has_its_own_filters(tubemq: TubeUnderTest, tube_java: TubeJavaClient):
    topics = sorted([tubemq.topic(), tubemq.topic(), tubemq.topic()])
    for topic in topics:
        tube_java.produce(tubemq.cluster, topic, [{"value": one.encode(), "type": one} for one in "abc"])
        wait_until_flushed(tubemq_options(tubemq.masters, topic, READ))
    by_topic = {topics[1]: ["b", "c"], topics[2]: []}
    given = {"topics": ",".join(topics), "filters": "a", "topicFilters": json.dumps(by_topic)}
    options = tubemq_options(tubemq.masters, None, READ, **given)
    found = [[row["message_type"] for row in read(options, task)] for task in plan_batch(options)]
    assert found == [["a"], ["b", "c"], ["a", "b", "c"]]


def test_everything_of_a_message(tubemq: TubeUnderTest, tube_java: TubeJavaClient, tubemq_format: TubeMQFormat):
    topic = tubemq.topic()
    message = {
        "value": b"\x00body",
        "type": "delay",
        "time": "202611210340",
        "attributes": {"carrier": "UA", "n\u00e4me": "w\u00e4rt"},
    }
    (place,) = tube_java.produce(tubemq.cluster, topic, [message])
    wait_until_flushed(tubemq_format.options(topic))
    ddl = (
        "value binary, topic string, broker_id int, partition int, message_id bigint, message_time timestamp, "
        "message_type string, attributes map<string,string>, fetch_offset bigint"
    )
    (row,) = tubemq_format.read(topic, ddl, messageTimeZone="Asia/Shanghai").to_pylist()
    assert row.pop("message_time").isoformat() == "2026-11-20T19:40:00+00:00"
    assert dict(row.pop("attributes")) == {"carrier": "UA", "n\u00e4me": "w\u00e4rt"}
    assert row == {
        "value": b"\x00body",
        "topic": topic,
        "broker_id": 1,
        "partition": 0,
        "message_id": place.message_id,
        "message_type": "delay",
        "fetch_offset": 0,
    }


def test_concurrent_reads_of_a_partition_are_complete_and_unregister(
    tubemq: TubeUnderTest, tubemq_format: TubeMQFormat
):
    topic = tubemq.topic()
    values = [b"%d" % n for n in range(500)]
    tubemq_format.publish(topic, values)
    options = tubemq_format.options(topic, maxBatchRows=10)
    (task,) = plan_batch(options)
    schema = schema_of("value binary")
    # An abandoned attempt continues to read, two more begin, and it ends last of all.
    zombie = read_range(options, task, schema)
    found = [next(zombie).column("value").to_pylist()]
    others = [read_range(options, task, schema) for _ in range(2)]
    rest: list[list[bytes]] = [[], []]
    for _ in range(50):
        for one, seen in zip(others, rest, strict=True):
            batch = next(one, None)
            seen.extend([] if batch is None else batch.column("value").to_pylist())
    found += [batch.column("value").to_pylist() for batch in zombie]
    for one, seen in zip(others, rest, strict=True):
        seen.extend(value for batch in one for value in batch.column("value").to_pylist())
    assert [value for part in found for value in part] == values
    assert rest == [values] * 2
    assert tubemq.admin.holders(1, reading_group(options, 0)) == []
    assert tubemq.admin.holders(1, reading_group(options, 1)) == []


def test_the_position_of_the_users_group_is_not_changed(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, tubemq_format: TubeMQFormat
):
    topic, group = tubemq.topic(), tubemq.group()
    tubemq_format.publish(topic, [b"%d" % n for n in range(20)])
    assert len(tube_java.consume(tubemq.cluster, topic, group, 20)) == 20
    before = tubemq.admin.group_offset(1, group, topic, 0)
    assert tubemq_format.read(topic, group=group).num_rows == 20
    assert tubemq.admin.group_offset(1, group, topic, 0) == before


def test_offsets_given_by_the_user(tubemq: TubeUnderTest, tubemq_format: TubeMQFormat):
    topic = tubemq.topic()
    tubemq_format.publish(topic, [b"%d" % n for n in range(10)])
    start, end = f'{{"1:{topic}:0": 84}}', f'{{"{topic}": 196}}'
    table = tubemq_format.read(topic, startingOffsets=start, endingOffsets=end)
    assert table.column("value").to_pylist() == [b"3", b"4", b"5", b"6"]
    with pytest.raises(OptionError, match="tubemq: planning: startingOffsets names 1:nowhere:0, which this query"):
        tubemq_format.plan(topic, startingOffsets=f'{{"1:nowhere:0": 0, "{topic}": 0}}')
    other = tubemq.topic()
    with pytest.raises(
        OptionError, match=f"startingOffsets must name every partition or its topic; missing: 1:{other}:0"
    ):
        tubemq_format.plan(None, topics=f"{topic},{other}", startingOffsets=start)


def test_an_offset_beyond_the_partition_is_a_loss(tubemq: TubeUnderTest, tubemq_format: TubeMQFormat, caplog):
    topic = tubemq.topic()
    tubemq_format.publish(topic, [b"%d" % n for n in range(10)])
    start = f'{{"{topic}": 28000}}'
    with pytest.raises(DataLossError, match=f"1:{topic}:0: the broker has offsets from 0 to 280, but not 28000"):
        tubemq_format.plan(topic, startingOffsets=start)
    assert tubemq_format.plan(topic, startingOffsets=start, failOnDataLoss="false") == []
    # A killed broker has fewer messages than a planned range.
    (task,) = tubemq_format.plan(topic)
    lost = moved(task, 140, 28_000)
    with pytest.raises(DataLossError, match=r"reading .* \[140, 28000\): .* it has messages up to 280 only"):
        read(tubemq_format.options(topic), lost)
    with caplog.at_level(logging.WARNING):
        rows = read(tubemq_format.options(topic, failOnDataLoss="false"), lost)
    assert [row["value"] for row in rows] == [b"5", b"6", b"7", b"8", b"9"]
    assert "it has messages up to 280 only" in caplog.text
    assert read(tubemq_format.options(topic, failOnDataLoss="false"), moved(task, 560, 28_000)) == []


def test_unflushed_messages_are_read_after_their_flush_or_with_low_latency(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient
):
    topic = tubemq.topic(brokers=(2,))
    tube_java.produce(tubemq.cluster, topic, [b"%d" % n for n in range(20)])
    quick = tubemq_options(tubemq.masters, topic, READ, lowLatency=True)
    (task,) = plan_batch(quick)
    assert [row["value"] for row in read(quick, task)] == [b"%d" % n for n in range(20)]
    # Without lowLatency a reader gets none of them until they are on disk, up to 14 s later, also of this plan.
    careful = tubemq_options(tubemq.masters, topic, READ)
    assert [row["value"] for row in read(careful, task)] == [b"%d" % n for n in range(20)]
    (task,) = plan_batch(careful)
    assert [row["value"] for row in read(careful, task)] == [b"%d" % n for n in range(20)]


def test_an_unreadable_message_is_named_or_left_out(tubemq: TubeUnderTest, tubemq_format: TubeMQFormat, caplog):
    topic = tubemq.topic()
    tubemq_format.publish(topic, [b"before"])
    # Messages with attributes of a wrong length are accepted but not delivered (seen on 2.4.0); this one is delivered.
    send(tubemq_format, topic, b"\x00\x00\x00\x03k=\xffbody", flag=1)
    tubemq_format.publish(topic, [b"after"])
    ddl = "value binary, message_id bigint, attributes map<string,string>"
    with pytest.raises(
        CorruptMessageError, match=r"message \d+, number \d of those fetched at \d+: the attributes are"
    ):
        tubemq_format.read(topic, ddl)
    # A read without the column attributes does not decode them.
    assert tubemq_format.read(topic).column("value").to_pylist() == [b"before", b"body", b"after"]
    skipped = tubemq_format.read(topic, ddl, onCorrupt="skip")
    assert skipped.column("value").to_pylist() == [b"before", b"after"]
    with caplog.at_level(logging.WARNING):
        rows = tubemq_format.read(topic, ddl, onCorrupt="null").to_pylist()
    assert [row["value"] for row in rows] == [b"before", None, b"after"]
    assert rows[1]["message_id"] is not None
    assert "1 corrupt messages" in caplog.text


def test_dead_letters_of_empty_and_unreadable_messages(tubemq: TubeUnderTest, tubemq_format: TubeMQFormat):
    topic, dead = tubemq.topic(), tubemq.topic()
    corrupt, empty = b"\x00\x00\x00\x03k=\xffbody", b"\x00\x00\x00\x03k=v"
    send(tubemq_format, topic, corrupt, flag=1)
    send(tubemq_format, topic, empty, flag=1)
    tubemq_format.publish(topic, [b"1"])
    letters = {"onCorrupt": "deadLetter", "deadLetterTopic": dead, "waitForDisk": True, "lowLatency": True}
    found = tubemq_format.read(topic, "value struct<a:int>", valueFormat="json", valueSchema="a int", **letters)
    assert found.num_rows == 0
    ddl = "value binary, attributes map<string,string>"
    rows = tubemq_format.read(dead, ddl).to_pylist(maps_as_pydicts="strict")
    found = {row["value"]: row["attributes"] for row in rows}
    whole = next(value for value in found if value.endswith(corrupt) or corrupt in value)
    assert found.keys() == {whole, b"", b"1"}
    assert (found[b""]["k"], found[b""]["REAL_TOPIC"]) == ("v", topic)
    assert found[b""]["ORIGIN_MESSAGE_ID"].startswith("1:0:")
    assert "attributes are" in found[whole]["REASON"]


def send(mq: TubeMQFormat, topic: str, data: bytes, *, flag: int) -> None:
    with TubeMQClient(mq.options(topic)) as client:
        producer = client.enter(ProducerMember(client.masters, [topic]))
        message = SendMessage(producer.client_id, topic, 0, data, flag, zlib.crc32(data) & 0x7FFFFFFF, 0)
        (answer,) = client.broker(producer.meta.brokers[1]).call(message)
        client.wait(answer, "send")
        producer.close()


def test_a_group_of_another_kind_is_an_error_with_a_remedy(
    tubemq: TubeUnderTest, tube_java: TubeJavaClient, tubemq_format: TubeMQFormat
):
    topic, group = tubemq.topic(), tubemq.group()
    with (
        tube_java.join(tubemq.cluster, [topic], group, reading=False),
        pytest.raises(BrokerError, match=r"tubemq: planning: .*424.*read with another group"),
    ):
        tubemq_format.plan(topic, group=group)


def test_a_partition_taken_in_one_group_is_read_in_the_next(tubemq: TubeUnderTest, tubemq_format: TubeMQFormat):
    topic = tubemq.topic()
    tubemq_format.publish(topic, [b"x"])
    options = tubemq_format.options(topic)
    (task,) = plan_batch(options)
    group = reading_group(options, 0)
    with TubeMQClient(options) as client:
        consumer = client.consumer(
            BrokerPartition(task.broker, topic, 0), client_id=unique_client_id(group), group=group
        )
        client.wait(consumer.register(curr_offset=0), "register")
        # A killed holder keeps it for 20 s; the read does not wait for that.
        assert [row["value"] for row in read(options, task)] == [b"x"]
        assert tubemq_format.plan(topic) == [task]
        client.wait(consumer.unregister(), "unregister")


def test_a_lost_connection_is_replaced_in_the_next_group(tubemq: TubeUnderTest, tubemq_format: TubeMQFormat):
    """A busy broker may still execute a fetch of the lost one, and count its length for a commit of the same group."""
    topic = tubemq.topic()
    values = [b"%d" % n for n in range(3000)]
    tubemq_format.publish(topic, values)
    options = tubemq_format.options(topic)
    with tubemq_format.proxy() as link:
        link.add(Fault("cut", "b2c", at=5000, connections=6))
        rows = tubemq_format.read(topic, ROW, via=link).to_pylist()
    assert [row["value"] for row in rows] == values
    holders = tubemq.admin.ask_broker(1, "admin_query_broker_all_consumer_info")["dataSet"]
    kept = [holder["groupName"] for holder in holders if holder["topicName"] == topic]
    assert kept
    assert sorted(kept) == [reading_group(options, n) for n in range(len(kept))]
