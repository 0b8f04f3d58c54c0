"""Errors of reads and writes: in time, in one sentence with format, topic, address and remedy; nothing is created."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import (
    MQSourceError,
    OptionError,
    TopicNotFoundError,
)
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.spark.base import MQStreamReader
from spark_mq_source.spark.sources import PulsarNativeDataSource
from tests.formats.pulsar import PulsarFormat

# -- names


def without_link(error: MQSourceError) -> str:
    """Return the sentence without the link that methods called by Spark add to it."""
    return str(error).removesuffix(f". See {error.help_url}")


def missing_topic(pulsar_format: PulsarFormat, topic: str, doing: str) -> str:
    """Return the sentence about a missing topic; its beginning and end are the same for all operations."""
    broker, door = pulsar_format.broker, pulsar_format.door
    given = {"serviceurl": broker.service_url, "topic": topic}
    writing = given | {"createtopic": str(doing == "write and create").lower()}
    row = pa.record_batch({"value": [b"x"]})
    attempts = {
        "read": lambda: door.plan(door.parse_options(given), ()),
        "stream": lambda: MQStreamReader(door, door.parse_stream_options(given), row.schema).initialOffset(),
        "write": lambda: door.write(
            door.parse_write_options(writing, ["value"]), iter([row]), TaskAttempt("job"), Counters()
        ),
    }
    with pytest.raises(TopicNotFoundError) as caught:
        attempts[doing.split(maxsplit=1)[0]]()
    begin = f"partition metadata of {topic}: {broker.service_url.removeprefix('pulsar://')}: the broker refused with "
    before, found, after = without_link(caught.value).partition(begin)
    assert found
    return f"{before}... {after}"


@pytest.mark.parametrize(
    ("doing", "before", "after"),
    [
        ("read", "planning", ": a read does not create topics"),
        ("stream", "planning", ": a read does not create topics"),
        ("write", "writing to {}", ", or set createTopic=true to create the topic"),
    ],
)
def test_the_error_about_a_missing_topic_names_the_remedies(
    pulsar_format: PulsarFormat, doing: str, before: str, after: str
):
    topic = pulsar_format.broker.unused_topic()
    assert missing_topic(pulsar_format, topic, doing) == (
        f"pulsar-native: {before.format(topic)}: ... TopicNotFound (11); "
        f"check the names of topic, namespace and tenant{after}"
    )


def test_the_error_about_a_topic_that_cannot_be_created_does_not_suggest_createtopic(pulsar_format: PulsarFormat):
    sentence = missing_topic(pulsar_format, "persistent://public/absent/t", "write and create")
    assert sentence.endswith(
        "check the names of topic, namespace and tenant: createTopic=true creates topics only where the broker "
        "permits it, and no namespaces"
    )


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("flatten", "columns", "what"),
    [
        (False, StructType().add("value", StructType().add("a", StringType())), ""),
        (False, StructType().add("topic", StringType()).add("value", LongType()), ""),
        (True, StructType().add("a", StringType()).add("b", LongType()), " and flatten=true has no fields"),
        (True, StructType().add("value", BinaryType()), " and flatten=true has no fields"),
        (False, StructType().add("value", StringType()).add("topic", StringType()), None),
        (False, StructType().add("topic", StringType()), None),
    ],
)
def test_columns_of_a_topic_without_a_schema(
    pulsar_format: PulsarFormat, partitions: int, stream: bool, flatten: bool, columns: StructType, what: str | None
):
    topic = pulsar_format.new_topic(partitions)
    given = {"serviceUrl": pulsar_format.broker.service_url, "topic": topic, "valueFormat": "auto"}
    source = PulsarNativeDataSource({name.lower(): value for name, value in given.items()} | {"flatten": str(flatten)})

    def make() -> None:
        if stream:
            source.streamReader(columns).initialOffset()  # the first method that Spark calls reports the error
        else:
            source.reader(columns)

    if what is None:
        make()
        return
    with pytest.raises(OptionError) as caught:
        make()
    assert without_link(caught.value) == (
        f"format 'pulsar-native': {topic} has no schema, so valueFormat=auto cannot decode its values{what}: set "
        "valueFormat to their format (json, avro or protobuf, with valueSchema where it needs one), or read column "
        "value as binary or string"
    )


def test_a_pattern_in_a_missing_namespace(pulsar_format: PulsarFormat):
    # The broker answers with no topics, as for a namespace that is empty (seen on 4.0.8).
    assert pulsar_format.plan(None, topicsPattern="public/absent/t.*") == []
    assert "public/absent" not in pulsar_format.broker.admin.namespaces()
