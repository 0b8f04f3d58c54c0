"""InLong's messages in the brokers that InLong writes to: a message gives the rows of all its records, or none."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import cramjam
import pyarrow as pa
import pytest

from spark_mq_source.core.errors import CorruptMessageError
from tests.formats import Format, schema_of, start_query, write_batches
from tests.formats.tubemq import TubeMQFeed
from tests.oracles.inlong import inlong_msg, proxy

FORMATS = ["tubemq", "pulsar", "pulsar_queue"]
every = pytest.mark.parametrize("mq", [pytest.param(name, marks=pytest.mark.broker) for name in FORMATS], indirect=True)
INLONG = {"valueFormat": "inlong", "inlongFields": "n int, name string"}
COLUMNS = "groupId string, streamId string, dt timestamp, attributes map<string,string>, data struct<n:int,name:string>"


def message(*numbers: int, stream: str = "s") -> bytes:
    attributes = f"groupId=g&streamId={stream}&dt=1700000000001"
    return inlong_msg(1, [(attributes, [f"{n}|row {n}".encode() for n in numbers])], snappy=True)


def messages(count: int) -> tuple[list[bytes], list[int]]:
    """Return this many messages of one to three records, and the numbers in them."""
    numbers = iter(range(3 * count))
    made = [[next(numbers) for _ in range(at % 3 + 1)] for at in range(count)]
    return [message(*some) for some in made], [n for some in made for n in some]


def numbers_of(rows: Sequence[dict[str, Any]]) -> list[int]:
    return sorted(row["data"]["n"] for row in rows)


@every
def test_each_record_is_a_row_with_the_position_of_its_message(mq: Format) -> None:
    topic = mq.new_topic()
    payloads, numbers = messages(300)
    mq.publish(topic, payloads, partition=0)
    rows = mq.read(topic, f"{COLUMNS}, {mq.position_columns}", maxBatchRows=7, **INLONG).to_pylist()
    assert [row["data"] for row in rows] == [{"n": n, "name": f"row {n}"} for n in numbers]
    assert {(row["groupId"], row["streamId"], str(row["dt"])) for row in rows} == {
        ("g", "s", "2023-11-14 22:13:20.001000+00:00")
    }
    ids = [str(row["message_id"]) for row in rows]
    assert [ids.count(one) for one in dict.fromkeys(ids)] == [1, 2, 3] * 100
    assert all(batch.num_rows <= 7 for batch in mq.batches(topic, "dt timestamp", maxBatchRows=7, **INLONG))
    assert mq.read(topic, "partition int", **INLONG).num_rows == len(numbers)


@every
def test_the_protobuf_form_is_recognized_by_its_properties(mq: Format) -> None:
    feed = mq.feed(1)
    objects = [{"msg_time": 1700000000001, "source_ip": "10.0.0.1", "body": b"%d|x" % n} for n in range(3)]
    body = bytes(cramjam.snappy.compress_raw(proxy.MessageObjs(msgs=objects).SerializeToString()))
    headers = {"version": "1", "inlongGroupId": "g", "inlongStreamId": "s", "compressType": "INLONG_SNAPPY"}
    properties = mq.door.columns.properties
    schema = schema_of(f"value binary, {properties} map<string,string>")
    row = {"value": body, properties: [*headers.items()]}
    write_batches(mq, feed.target, schema, [[pa.RecordBatch.from_pylist([row], schema=schema)]])
    if isinstance(feed, TubeMQFeed):
        feed.wait_until_flushed()
    rows = mq.read(feed.topic, COLUMNS, **INLONG).to_pylist()
    assert [(row["groupId"], row["streamId"], *row["data"].values()) for row in rows] == [
        ("g", "s", n, "x") for n in range(3)
    ]
    assert dict(rows[0]["attributes"]) == {"sourceIp": "10.0.0.1"}


@every
def test_a_damaged_message_is_rejected_as_a_whole(mq: Format) -> None:
    topic, dead = mq.new_topic(), mq.new_topic()
    bad = [message(3, 4)[:-9] + message(3, 4)[-2:], inlong_msg(1, [("streamId=s", [b"5|good", b"x|bad"])])]
    mq.publish(topic, [message(1, 2), *bad, message(6)], partition=0)
    columns = f"{COLUMNS}, _error string, _corrupt binary, {mq.position_columns}"
    with pytest.raises(
        CorruptMessageError, match=r"message.*: value: a body of .* bytes remain; correct the producer"
    ) as caught:
        mq.read(topic, COLUMNS, **INLONG)
    assert mq.name in str(caught.value)
    rows = mq.read(topic, columns, onCorrupt="null", **INLONG).to_pylist()
    assert [row["data"] and row["data"]["n"] for row in rows] == [1, 2, None, None, 6]
    assert [row["_corrupt"] for row in rows] == [None, None, *bad, None]
    assert rows[3]["_error"] == 'value: row 2: field n: "x" is not a valid int'
    for how in ({"onCorrupt": "skip"}, {"onCorrupt": "deadLetter", "deadLetterTopic": dead}):
        assert numbers_of(mq.read(topic, COLUMNS, **INLONG, **how).to_pylist()) == [1, 2, 6]
    assert mq.consume(dead, 2) == bad


@every
def test_a_stream_resumes_after_whole_messages(mq: Format) -> None:
    feed = mq.feed(2)
    payloads, numbers = messages(200)
    feed.publish(payloads[:100])
    given = {**feed.stream, **INLONG, "maxRowsPerTrigger": "30"}
    query = start_query(mq, given, COLUMNS)
    first = query.plan()
    assert query.read_to(first) == query.read_to(first)
    query.until(199)
    query.restart()
    feed.publish(payloads[100:])
    query.until(len(numbers))
    query.close()
    assert numbers_of(query.rows) == numbers


@every
def test_rows_are_written_as_messages_of_inlong(mq: Format) -> None:
    feed = mq.feed(1)
    value = "struct<groupId:string,streamId:string,dt:timestamp,data:struct<n:int,name:string>>"
    schema = schema_of(f"value {value}")
    moment = datetime.datetime(2024, 2, 29, 1, 2, tzinfo=datetime.timezone.utc)
    rows = [
        {"value": {"groupId": "g", "streamId": f"s{n % 2}", "dt": moment, "data": {"n": n, "name": f"row {n}"}}}
        for n in range(100)
    ]
    batches = [pa.RecordBatch.from_pylist(some, schema=schema) for some in (rows[:60], rows[60:])]
    write_batches(mq, {**feed.target, "valueFormat": "inlong"}, schema, [batches])
    if isinstance(feed, TubeMQFeed):
        feed.wait_until_flushed()
    found = mq.read(feed.topic, COLUMNS, **INLONG).to_pylist()
    assert numbers_of(found) == [*range(100)]
    assert {(row["groupId"], row["dt"]) for row in found} == {("g", moment)}
    properties = mq.door.columns.properties
    raw = mq.read(feed.topic, f"{properties} map<string,string>").to_pylist()
    marks = {"version": "2", "msgEnType": "2", "inlongGroupId": "g", "inlongStreamId": "s0"}
    assert marks in [dict(row[properties]) for row in raw]
    assert numbers_of(mq.read(feed.topic, COLUMNS, **INLONG, inlongStreams="s1").to_pylist()) == [*range(1, 100, 2)]
    if isinstance(feed, TubeMQFeed):
        types = mq.read(feed.topic, "message_type string, message_time timestamp", filters="s1").to_pylist()
        assert types == [{"message_type": "s1", "message_time": moment}] * 50
