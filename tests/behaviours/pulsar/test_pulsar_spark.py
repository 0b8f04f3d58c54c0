"""Reads and writes with `columns=pulsar-spark`, compared with the official client and our default columns."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.core.sql_types import ddl_of_schema
from tests.behaviours.pulsar.test_writer import read_official
from tests.fix_brokers import PulsarUnderTest
from tests.formats import schema_of
from tests.formats.pulsar import PulsarFormat

DOOR = PulsarFormat.door
BESIDE = (
    "`__key` binary, `__topic` string, `__messageId` binary, `__publishTime` timestamp, `__eventTime` timestamp, "
    "`__messageProperties` map<string,string>"
).replace("`", "")
KEYS = [b"a", None, b"c"]


def given(broker: PulsarUnderTest, topic: str, **options: Any) -> dict[str, str]:
    texts = {"serviceUrl": broker.service_url, "topic": topic, "columns": "pulsar-spark"} | options
    return {name.lower(): str(value) for name, value in texts.items()}


def write(broker: PulsarUnderTest, topic: str, columns: dict[str, Any], **options: Any) -> None:
    batch = pa.record_batch(columns)
    parsed = DOOR.parse_write_options(given(broker, topic, **options), batch.schema.names)
    DOOR.write(DOOR.fit(parsed, batch.schema), iter([batch]), TaskAttempt("job"))


def read(broker: PulsarUnderTest, topic: str, ddl: str | None = None, **options: Any) -> tuple[str, list[Any]]:
    """Return the default columns, and the rows of these or the given ones."""
    texts = given(broker, topic, **options)
    columns, typed = DOOR.columns_by_default(texts)
    schema = schema_of(ddl or ddl_of_schema(columns))
    fitted = DOOR.fit_read(DOOR.parse_options(texts), schema, typed)
    batches = [batch for task in DOOR.plan(fitted, ()) for batch in DOOR.read(fitted, task, schema)]
    return ddl_of_schema(columns), pa.Table.from_batches(batches, schema).to_pylist()


def test_flat_columns_are_written_and_read_as_pulsar_spark_has_them(pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic(1)
    columns = {
        "id": pa.array([1, 2, 3], pa.int32()),
        "key": pa.array(["x", None, "z"]),
        "__key": pa.array(KEYS),
        "__eventTime": pa.array([1_700_000_000_000, 0, None], pa.int64()),
        "__messageProperties": pa.array([[("p", "q")], None, []], pa.map_(pa.string(), pa.string())),
    }
    write(pulsar, topic, columns)
    ddl, rows = read(pulsar, topic)
    assert ddl == f"id int, key string, {BESIDE}"
    partition = f"{topic}-partition-0"
    official = read_official(pulsar, partition, 3)
    # The C++ client adds the size of the batch, as pulsar-spark from 3.2 on does.
    assert [
        one.message_id().serialize()[: len(row["__messageId"])] for one, row in zip(official, rows, strict=True)
    ] == [row["__messageId"] for row in rows]
    assert [(row["id"], row["key"], row["__key"]) for row in rows] == [(1, "x", b"a"), (2, None, None), (3, "z", b"c")]
    assert [row["__topic"] for row in rows] == [partition] * 3
    assert [row["__messageProperties"] for row in rows] == [[("p", "q")], [], []]
    assert [row["__eventTime"] and row["__eventTime"].timestamp() for row in rows] == [1_700_000_000, None, None]
    assert [int(row["__publishTime"].timestamp() * 1000) for row in rows] == [
        one.publish_timestamp() for one in official
    ]


def test_a_key_of_text_has_the_stored_form_and_the_partition_of_its_bytes(pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic(4)
    keys = [f"k{number}" for number in range(8)]
    write(pulsar, topic, {"n": keys, "__key": [key.encode() for key in keys]})
    write(pulsar, topic, {"n": keys, "__key": keys})
    stored: dict[str, list[tuple[str, str]]] = {}
    for number in range(4):
        partition = f"{topic}-partition-{number}"
        _, rows = read(pulsar, partition)
        for one in read_official(pulsar, partition, len(rows)):
            stored.setdefault(one.data().decode(), []).append((partition, one.partition_key()))
    assert all(len(places) == 2 and len(set(places)) == 1 for places in stored.values()), stored
    assert {key: places[0][1] for key, places in stored.items()} == {
        key: base64.b64encode(key.encode()).decode() for key in keys
    }


def test_topics_with_different_schemas_are_read_as_bytes_by_option(pulsar: PulsarUnderTest) -> None:
    topic = pulsar.topic()
    write(pulsar, topic, {"n": ["a", "b"]})
    ddl, rows = read(pulsar, topic, allowDifferentTopicSchemas="true")
    assert (ddl, [row["value"] for row in rows]) == (f"value binary, {BESIDE}", [b"a", b"b"])


def test_rows_name_their_topics_unless_the_option_does(pulsar: PulsarUnderTest) -> None:
    first, second = pulsar.topic(), pulsar.topic()
    rows = {"n": ["a", "b"], "__topic": [first, second]}
    batch = pa.record_batch(rows)
    texts = {name: text for name, text in given(pulsar, first).items() if name != "topic"}
    options = DOOR.fit(DOOR.parse_write_options(texts, batch.schema.names), batch.schema)
    DOOR.write(options, iter([batch]), TaskAttempt("job"))
    write(pulsar, second, rows)
    assert [row["value"] for row in read(pulsar, first)[1]] == ["a"]
    assert [row["value"] for row in read(pulsar, second)[1]] == ["b", "a", "b"]


@pytest.mark.parametrize("option", ["flatten", "keyFormat"])
def test_options_that_change_the_columns_are_refused(pulsar: PulsarUnderTest, option: str) -> None:
    value = {"flatten": "true", "keyFormat": "string"}[option]
    with pytest.raises(OptionError, match=f"{option} has no meaning with columns=pulsar-spark"):
        read(pulsar, pulsar.topic(), **{option: value})
