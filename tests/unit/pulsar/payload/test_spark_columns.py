"""pulsar-spark's columns: their types, its message ids, and the schemas of its sink."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.payload.spark_columns import SparkRows, SparkWrite, default_columns

UTC = pa.timestamp("us", "UTC")
PROPERTIES = pa.map_(pa.string(), pa.string())
POSITION = pa.struct([("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("batch_index", pa.int32())])
PARTITION = TopicPartition("persistent://public/default/t", 2)

# The schema that the sink of pulsar-spark 3.1.1.4 in Spark 3.4.4 registered on broker 4.0.8 for rows of these types.
RECORDED = (
    '{"type":"record","name":"topLevelRecord","fields":[{"name":"id","type":"int"},{"name":"amount","type":[{"type":'
    '"fixed","name":"fixed","namespace":"topLevelRecord.amount","size":6,"logicalType":"decimal","precision":12,'
    '"scale":2},"null"]},{"name":"ns","type":{"type":"array","items":["long","null"]}},{"name":"m","type":{"type":'
    '"map","values":{"type":"record","name":"m","namespace":"topLevelRecord","fields":[{"name":"x","type":[{"type":'
    '"fixed","name":"fixed","namespace":"topLevelRecord.m.x","size":9,"logicalType":"decimal","precision":20,"scale":1'
    '},"null"]}]}}},{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"day","type":{"type":'
    '"int","logicalType":"date"}},{"name":"bin","type":"bytes"},{"name":"name","type":"string"},{"name":"s","type":{'
    '"type":"record","name":"s","namespace":"topLevelRecord","fields":[{"name":"a","type":"long"},{"name":"b","type":'
    '"double"}]}}]}'
)


def field(name: str, type_: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, type_, nullable=nullable)


def test_the_schema_of_a_write_is_the_one_that_pulsar_spark_registers() -> None:
    in_map = pa.struct([pa.field("x", pa.decimal128(20, 1))])
    columns = [
        field("id", pa.int32()),
        field("amount", pa.decimal128(12, 2), nullable=True),
        field("ns", pa.list_(pa.int64())),
        field("m", pa.map_(pa.string(), field("value", in_map))),
        # Spark sets the time zone of the session in its workers.
        field("at", pa.timestamp("us", "Etc/UTC")),
        field("day", pa.date32()),
        field("bin", pa.binary()),
        field("name", pa.string()),
        field("s", pa.struct([field("a", pa.int64()), field("b", pa.float64())])),
        field("__key", pa.string()),
    ]
    write = SparkWrite(pa.schema(columns), has_topic=True)
    assert (write.value_format, json.loads(write.definition or "")) == ("avro", json.loads(RECORDED))


@pytest.mark.parametrize(
    ("type_", "value_format"),
    [
        (pa.binary(), "raw"),
        (pa.string(), "string"),
        (pa.bool_(), "bool"),
        (pa.int8(), "int8"),
        (pa.int64(), "int64"),
        (pa.float32(), "float"),
        (pa.timestamp("us", "Europe/Berlin"), "timestamp"),
    ],
)
def test_a_single_column_of_any_name_is_the_value(type_: pa.DataType, value_format: str) -> None:
    write = SparkWrite(pa.schema([("n", type_), ("__key", pa.binary())]), has_topic=True)
    assert (write.value_format, write.definition, write.native.field("value").type) == (value_format, None, type_)


def test_rows_to_write_have_our_columns_without_those_that_a_sink_ignores() -> None:
    batch = pa.record_batch(
        {
            "__messageId": pa.array([b"x", b"y"]),
            "b": pa.array(["p", None]),
            "__topic": pa.array(["t", "u"]),
            "__eventTime": pa.array([1_700_000_000_123, 0]),
            "a": pa.array([1, 2]),
        }
    )
    times = [1_700_000_000_123_000, None]
    for has_topic, beside in ((True, []), (False, ["topic"])):
        write = SparkWrite(batch.schema, has_topic=has_topic)
        made = write.take(batch)
        assert made.schema == write.native
        assert made.schema.names == ["value", *beside, "event_time"]
        assert made.column("value").to_pylist() == [{"b": "p", "a": 1}, {"b": None, "a": 2}]
        assert made.column("event_time").cast(pa.int64()).to_pylist() == times


def test_an_event_time_not_after_1970_is_null_as_in_pulsar_spark() -> None:
    times = pa.array([1_700_000_000_123_456, 999, 0, -5, None], pa.int64()).cast(UTC)
    batch = pa.record_batch({"value": pa.array([b""] * 5), "__eventTime": times})
    made = SparkWrite(batch.schema, has_topic=True).take(batch)
    assert made.column("event_time").cast(pa.int64()).to_pylist() == [1_700_000_000_123_000, None, None, None, None]


def test_a_key_of_text_is_written_as_its_bytes_like_pulsar_spark_does() -> None:
    rows = pa.record_batch({"a": ["x", "y", "z"], "__key": ["k", None, "é"]}).slice(1)
    write = SparkWrite(rows.schema, has_topic=True)
    made = write.take(rows)
    assert made.schema == write.native == pa.schema([("value", pa.string()), ("key", pa.binary())])
    assert made.column("key").to_pylist() == [None, "é".encode()]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ([("__key", pa.binary())], "there is no column for the value"),
        ([("a", pa.date32())], "column a is date32[day], which cannot be a value by itself"),
        ([("a", pa.int8()), ("b", pa.timestamp("us"))], "timestamp[us] has no Avro type"),
        ([("a", pa.int8()), ("__key", pa.int8())], "column __key is int8, expected binary or string"),
        ([("a", pa.int8()), ("__eventTime", pa.date32())], "column __eventTime is date32[day], expected timestamp or"),
    ],
)
def test_columns_that_cannot_be_written(columns: list[tuple[str, pa.DataType]], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        SparkWrite(pa.schema(columns), has_topic=True)
    assert problem in str(caught.value)


BESIDE = [
    ("__key", pa.binary()),
    ("__topic", pa.string()),
    ("__messageId", pa.binary()),
    ("__publishTime", UTC),
    ("__eventTime", UTC),
    ("__messageProperties", PROPERTIES),
]


def test_columns_by_default_are_those_of_pulsar_spark_in_its_order() -> None:
    assert default_columns(pa.binary()) == pa.schema([("value", pa.binary()), *BESIDE])
    fields = [("key", pa.string()), ("topic", pa.int32())]
    assert default_columns(pa.struct(fields)) == pa.schema([*fields, *BESIDE])
    with pytest.raises(OptionError, match="__key is also a field of the value"):
        default_columns(pa.struct([("__key", pa.string())]))


def test_fields_of_the_value_may_have_the_names_of_our_columns() -> None:
    fields = [("key", pa.string()), ("partition", pa.int32())]
    rows = SparkRows(pa.schema([("__key", pa.binary()), *fields[::-1]]), pa.struct(fields))
    value = pa.array([{"partition": 7, "key": "a"}, None], pa.struct(fields[::-1]))
    made = rows.take(pa.record_batch([value, pa.array([b"k", None])], schema=rows.native), PARTITION)
    assert made.to_pylist() == [
        {"__key": b"k", "partition": 7, "key": "a"},
        {"__key": None, "partition": None, "key": None},
    ]


@pytest.mark.parametrize(
    ("partition", "tail"), [(-1, []), (0, [24, 0]), (2, [24, 2])], ids=["unpartitioned", "first", "third"]
)
def test_message_ids_have_the_bytes_of_pulsar_spark_3_1(partition: int, tail: list[int]) -> None:
    rows = SparkRows(pa.schema([("__messageId", pa.binary()), ("__topic", pa.string())]), pa.binary())
    positions = pa.array([(3, 0, 0), (3, 0, 3), (300, 101, -1)], POSITION)
    topic_partition = TopicPartition("persistent://public/default/t", partition)
    made = rows.take(pa.record_batch([positions], schema=rows.native), topic_partition)
    ids = [[8, 3, 16, 0, *tail, 32, 0], [8, 3, 16, 0, *tail, 32, 3], [8, 172, 2, 16, 101, *tail]]
    assert [list(one) for one in made.column("__messageId").to_pylist()] == ids
    assert made.column("__topic").to_pylist() == [str(topic_partition)] * 3


@pytest.mark.parametrize(
    ("columns", "value", "problem"),
    [
        ([("key", pa.binary())], pa.binary(), "column key is unknown (known: value, __key, __topic"),
        ([("value", pa.binary())], pa.struct([("a", pa.int8())]), "column value is unknown (known: a, __key"),
        ([("__key", pa.string())], pa.binary(), "column __key is string, expected binary"),
    ],
)
def test_columns_that_cannot_be_read(columns: list[tuple[str, pa.DataType]], value: pa.DataType, problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        SparkRows(pa.schema(columns), value)
    assert problem in str(caught.value)
