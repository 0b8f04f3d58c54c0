"""Operations on a missing topic, which do not create it even if the broker creates topics that a client names."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spark_mq_source.cli.main import app
from spark_mq_source.core.errors import TopicNotFoundError
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar.streams import query_of
from tests.fix_brokers import PulsarUnderTest
from tests.formats.pulsar import PulsarFormat

PARTITIONS = 3
FOREVER = "20m"
"""Retries until this `operationTimeout` would fail the test by its own timeout."""


@pytest.fixture(params=["partitioned", "non-partitioned"])
def namespace(pulsar: PulsarUnderTest, request: pytest.FixtureRequest) -> str:
    """Return a namespace whose topics are created as soon as a client names them."""
    made = pulsar.new_namespace()
    policy: dict[str, Any] = {"allowAutoTopicCreation": True, "topicType": request.param}
    if request.param == "partitioned":
        policy["defaultNumPartitions"] = PARTITIONS
    pulsar.admin.request("POST", f"namespaces/{made}/autoTopicCreation", policy)
    return made


def everything(pulsar: PulsarUnderTest, namespace: str) -> tuple[list[str], list[str]]:
    """Return all topics, and all partitioned topics, which need not have a partition yet."""
    listed = pulsar.admin.request("GET", f"persistent/{namespace}")
    return sorted(listed), sorted(pulsar.admin.request("GET", f"persistent/{namespace}/partitioned"))


def read_batch(pulsar: PulsarUnderTest, topic: str) -> None:
    PulsarFormat(pulsar).read(topic, operationTimeout=FOREVER)


def read_stream(pulsar: PulsarUnderTest, topic: str) -> None:
    with query_of(pulsar, topic, {"operationTimeout": FOREVER}) as query:
        query.trigger()


def read_pinned_stream(pulsar: PulsarUnderTest, topic: str) -> None:
    with query_of(pulsar, topic, {"operationTimeout": FOREVER, "subscription": "pin"}) as query:
        query.trigger()


def look(command: str) -> Callable[[PulsarUnderTest, str], None]:
    def run(pulsar: PulsarUnderTest, topic: str) -> None:
        given = ["-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}"]
        given += ["-o", f"operationTimeout={FOREVER}"]
        answer = CliRunner().invoke(app, [command, "pulsar-native", *given])
        assert answer.exit_code == 1, answer.stdout
        raise TopicNotFoundError(answer.stderr)

    return run


def write(pulsar: PulsarUnderTest, topic: str, **more: str) -> None:
    given = {"serviceurl": pulsar.service_url, "topic": topic, "operationtimeout": FOREVER, **more}
    with PulsarWriter(PulsarOptions.from_spark(given, WRITE), TaskAttempt("job")) as writer:
        writer.write(pa.record_batch({"value": [b"v"]}))
        writer.flush()


def write_exactly_once(pulsar: PulsarUnderTest, topic: str) -> None:
    write(pulsar, topic, deliveryguarantee="exactly-once", producername="p")


@pytest.mark.parametrize(
    "use",
    [
        read_batch,
        read_stream,
        read_pinned_stream,
        *(pytest.param(look(name), id=name) for name in ("topics", "partitions", "offsets", "peek", "doctor")),
        write,
        write_exactly_once,
    ],
)
@pytest.mark.parametrize("suffix", ["", "-partition-0"], ids=["topic", "partition"])
def test_a_topic_that_does_not_exist_is_not_created(pulsar: PulsarUnderTest, namespace: str, use, suffix: str):
    topic = f"persistent://{namespace}/misspelt{suffix}"
    before = everything(pulsar, namespace)
    with pytest.raises(TopicNotFoundError) as caught:
        use(pulsar, topic)
    assert f"{namespace}/misspelt" in str(caught.value)
    assert everything(pulsar, namespace) == before == ([], [])


@pytest.mark.parametrize("use", [read_batch, write])
def test_a_partition_that_a_topic_does_not_have_is_not_created(pulsar: PulsarUnderTest, namespace: str, use):
    topic = pulsar.topic(2, namespace=namespace)
    before = everything(pulsar, namespace)
    with pytest.raises(TopicNotFoundError):
        use(pulsar, f"{topic}-partition-7")
    assert everything(pulsar, namespace) == before


@pytest.mark.parametrize("name", ["public/absent/t", "absent/tests/t"])
@pytest.mark.parametrize("use", [read_batch, write, lambda *where: write(*where, createtopic="true")])
def test_a_missing_namespace_is_reported_at_once(pulsar: PulsarUnderTest, name: str, use):
    with pytest.raises(TopicNotFoundError, match="check the names"):
        use(pulsar, name)


def test_an_unused_partitioned_topic(pulsar: PulsarUnderTest, namespace: str):
    topic = f"persistent://{namespace}/unused"
    # The state after a lookup created a partitioned topic: none of its partitions exists.
    pulsar.admin.request("PUT", f"persistent/{namespace}/unused/partitions?createLocalTopicOnly=true", PARTITIONS)
    for partition in range(PARTITIONS):
        with contextlib.suppress(Exception):
            pulsar.admin.request("DELETE", f"persistent/{namespace}/unused-partition-{partition}?force=true")
    listed = everything(pulsar, namespace)
    flags = ["-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}", "-o", f"adminUrl={pulsar.admin_url}"]
    answer = CliRunner().invoke(app, ["topics", "pulsar-native", *flags, "--json"])
    assert answer.exit_code == 0, answer.stderr
    assert json.loads(answer.stdout) == {"topic": topic, "partitions": PARTITIONS}
    assert everything(pulsar, namespace) == listed


def test_a_topic_that_is_deleted_while_it_is_written_is_not_created_again(pulsar: PulsarUnderTest, namespace: str):
    topic = pulsar.topic(2, namespace=namespace)
    given = {"serviceurl": pulsar.service_url, "topic": topic}
    with PulsarWriter(PulsarOptions.from_spark(given, WRITE), TaskAttempt("job")) as writer:
        writer.write(pa.record_batch({"value": [b"v", b"w"]}))
        writer.flush()
        name = topic.rpartition("/")[2]
        pulsar.admin.request("DELETE", f"persistent/{namespace}/{name}/partitions?force=true&deleteSchema=true")
        writer.write(pa.record_batch({"value": [b"x", b"y"]}))
        with pytest.raises(TopicNotFoundError):
            writer.flush()
    assert everything(pulsar, namespace) == ([], [])
