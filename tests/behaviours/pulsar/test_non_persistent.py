"""Topics that store nothing: rows reach who is connected, and what is lost is said."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pulsar as official
import pyarrow as pa
import pytest

from brokers.pulsar import PulsarStandalone
from brokers.pulsar_admin import AdminError
from spark_mq_source.core.errors import OptionError, TopicNotFoundError, UnwritableRowError
from spark_mq_source.core.options import READ, STREAM, WRITE, Scope
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.write.writer import write_rows
from tests.behaviours.pulsar.streams import numbered, wait_until
from tests.fix_brokers import PulsarUnderTest


def options_of(broker: PulsarUnderTest, scope: Scope = WRITE, **more: str) -> PulsarOptions:
    given = {"serviceUrl": broker.service_url} | more
    return PulsarOptions.from_spark({name.lower(): text for name, text in given.items()}, scope)


def rows_of(*values: str, **columns: Any) -> pa.RecordBatch:
    count = len(values)
    given = {"value": [value.encode() for value in values]} | {name: [one] * count for name, one in columns.items()}
    return pa.RecordBatch.from_pydict(given)


def write(broker: PulsarUnderTest, topic: str | None, *values: str, columns: Any = None, **more: str) -> int:
    target = {} if topic is None else {"topic": topic}
    options = options_of(broker, **target, **more)
    return write_rows(options, iter([rows_of(*values, **(columns or {}))]), TaskAttempt("np")).rows


def unused(broker: PulsarUnderTest) -> str:
    return "non-" + broker.unused_topic()


def received(consumer: official.Consumer, count: int) -> list[str]:
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=20_000)
        found.append(message.data().decode())
        consumer.acknowledge(message)
    return found


@pytest.mark.parametrize("partitions", [0, 2])
def test_rows_reach_who_is_connected(pulsar: PulsarUnderTest, caplog: pytest.LogCaptureFixture, partitions: int):
    topic = unused(pulsar)
    if partitions:
        pulsar.admin.create_topic(topic, partitions)
    one, other = (pulsar.client().subscribe(topic, name) for name in ("one", "other"))
    with caplog.at_level(logging.WARNING, "spark_mq_source"):
        assert write(pulsar, topic, *numbered(300)) == 300
    assert f"{topic} stores nothing: rows are lost for every subscription without a connected consumer" in caplog.text
    assert "dropped" not in caplog.text
    assert sorted(received(one, 300)) == sorted(received(other, 300)) == sorted(numbered(300))
    late = pulsar.client().subscribe(topic, "late", initial_position=official.InitialPosition.Earliest)
    assert write(pulsar, topic, "last") == 1
    assert received(late, 1) == ["last"]


def test_rows_can_name_their_topic(pulsar: PulsarUnderTest):
    topic, stored = unused(pulsar), pulsar.topic()
    consumers = [pulsar.client().subscribe(name, "s") for name in (topic, stored)]
    for name in (topic, stored):
        assert write(pulsar, None, "a", columns={"topic": name}) == 1
    assert [received(consumer, 1) for consumer in consumers] == [["a"], ["a"]]


def test_a_topic_that_nobody_uses_is_not_there(pulsar: PulsarUnderTest):
    topic = unused(pulsar)
    with pytest.raises(TopicNotFoundError, match="createTopic=true would create it"):
        write(pulsar, topic, "a")
    assert write(pulsar, topic, "a", createTopic="true") == 1


def test_no_more_entries_are_under_way_than_a_broker_takes(pulsar: PulsarUnderTest, caplog: pytest.LogCaptureFixture):
    topic = unused(pulsar)
    with caplog.at_level(logging.WARNING, "spark_mq_source"):
        assert write(pulsar, topic, *numbered(20_000), createTopic="true", batching="false") == 20_000
    assert "dropped" not in caplog.text


@pytest.mark.slow
def test_what_the_broker_drops_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    few = {"maxConcurrentNonPersistentMessagePerConnection": "0"}
    with PulsarStandalone(tmp_path / "pulsar", overrides=few) as broker:
        under_test = PulsarUnderTest(broker.service_url, broker.admin_url, broker.admin, broker=broker)
        topic = "non-persistent://public/default/t"
        # With room for all: what a consumer has no permits for is lost behind the broker, and not counted.
        consumer = under_test.client().subscribe(topic, "s", receiver_queue_size=10_000)
        with caplog.at_level(logging.WARNING, "spark_mq_source"):
            assert write(under_test, topic, *numbered(5_000), batching="false") == 5_000
        (dropped,) = re.findall(r"the broker dropped (\d+) of the entries that were sent: too many", caplog.text)
        assert received(consumer, 5_000 - int(dropped))
        with pytest.raises(official.Timeout):
            consumer.receive(timeout_millis=1_000)
        under_test.close_clients()


def test_a_write_goes_on_after_an_unload(pulsar: PulsarUnderTest):
    topic = unused(pulsar)
    consumer = pulsar.client().subscribe(topic, "s")

    def batches() -> Any:
        yield rows_of("a")
        pulsar.admin.unload(topic)
        wait_until(lambda: _is_connected(pulsar, topic), "the consumer is connected again")
        yield rows_of("b")

    options = options_of(pulsar, topic=topic, createTopic="true", batching="false", batchingMaxPublishDelay="1ms")
    assert write_rows(options, batches(), TaskAttempt("np")).rows == 2
    found = received(consumer, 1)
    while found[-1] != "b":
        found += received(consumer, 1)
    assert found in (["a", "b"], ["b"])


def _is_connected(broker: PulsarUnderTest, topic: str) -> bool:
    try:
        found = broker.admin.stats(topic)["subscriptions"]
    except AdminError:
        return False  # nobody has it loaded yet
    return bool(found.get("s", {}).get("consumers"))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"deliveryGuarantee": "exactly-once"}, "deliveryGuarantee=exactly-once needs a topic that stores messages"),
        ({"deliveryGuarantee": "transaction"}, "deliveryGuarantee=transaction needs a topic that stores messages"),
        ({"chunking": "true"}, "chunking needs a topic that stores messages"),
    ],
)
def test_what_needs_a_topic_that_stores(pulsar: PulsarUnderTest, more: dict[str, str], sentence: str):
    topic = "non-persistent://public/default/t"
    with pytest.raises(OptionError, match=sentence):
        write(pulsar, topic, "a", **more)
    if "transaction" not in more.values():
        with pytest.raises(UnwritableRowError, match=sentence):
            write(pulsar, None, "a", columns={"topic": topic}, **more)


@pytest.mark.parametrize("scope", [READ, STREAM])
def test_a_queue_over_it_is_not_built(pulsar: PulsarUnderTest, scope: Scope):
    queue = {"walDir": "/tmp/wal"} if scope == STREAM else {"maxRows": "1"}
    with pytest.raises(OptionError, match=r"only queue mode \(walDir\) could read it, which this release does not do"):
        options_of(
            pulsar,
            scope,
            topic="non-persistent://public/default/t",
            subscription="s",
            subscriptionType="shared",
            **queue,
        )


@pytest.mark.parametrize("scope", [READ, STREAM])
@pytest.mark.parametrize("option", ["topic", "topics"])
def test_reading_is_for_queue_mode(pulsar: PulsarUnderTest, scope: Scope, option: str):
    with pytest.raises(OptionError, match=r"stores nothing, so there are no positions .* only queue mode \(walDir\)"):
        options_of(pulsar, scope, **{option: "non-persistent://public/default/t"})
