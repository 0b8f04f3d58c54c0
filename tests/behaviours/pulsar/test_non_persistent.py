"""Topics that store nothing: rows reach the connected consumers, and losses are reported.

Seen on broker 4.0.8: all four types of a subscription are allowed; a consumer gets the messages published while it has
permits, and no others; `maxUnackedMessagesPerConsumer` does not stop it without ACKs; and
the subscription is gone with its last consumer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar as official
import pyarrow as pa
import pytest

from brokers.pulsar import PulsarStandalone
from brokers.pulsar_admin import AdminError
from spark_mq_source.core.errors import OptionError, TopicNotFoundError, UnwritableRowError
from spark_mq_source.core.options import WRITE, Scope
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read import queue_reader
from spark_mq_source.pulsar.read.queue_reader import PulsarQueueRange
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar.queues import (
    FORMAT,
    SUBSCRIPTION,
    SubscriptionQuery,
    drain_options,
    read,
    read_tasks,
    values,
)
from tests.behaviours.pulsar.streams import numbered, publish
from tests.fix_brokers import PulsarUnderTest, wait_until


def options_of(broker: PulsarUnderTest, scope: Scope = WRITE, **more: str) -> PulsarOptions:
    return PulsarOptions.from_spark({"serviceUrl": broker.service_url} | more, scope)


def rows_of(*values: str, **columns: Any) -> pa.RecordBatch:
    count = len(values)
    given = {"value": [value.encode() for value in values]} | {name: [one] * count for name, one in columns.items()}
    return pa.RecordBatch.from_pydict(given)


def write(broker: PulsarUnderTest, topic: str | None, *values: str, columns: Any = None, **more: str) -> int:
    target = {} if topic is None else {"topic": topic}
    options = options_of(broker, **target, **more)
    return PulsarWriter(options, TaskAttempt("np")).write_all(iter([rows_of(*values, **(columns or {}))])).rows


def unused(broker: PulsarUnderTest) -> str:
    return "non-" + broker.unused_topic()


def wait_until_listening(broker: PulsarUnderTest, topic: str, *subscriptions: str) -> None:
    """Wait until their consumers have permits, which arrive after they subscribe: until then nothing is kept."""

    def is_listening() -> bool:
        try:
            found = broker.admin.stats(topic)["subscriptions"]
        except AdminError:
            return False  # no client has it loaded yet
        consumers = [found.get(name, {}).get("consumers") for name in subscriptions]
        return all(some and all(one["availablePermits"] > 0 for one in some) for some in consumers)

    wait_until(is_listening, f"the consumers of {topic} have permits")


def received(consumer: official.Consumer, count: int) -> list[str]:
    found = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=20_000)
        found.append(message.data().decode())
        consumer.acknowledge(message)
    return found


@pytest.mark.parametrize("partitions", [0, 2])
def test_rows_reach_the_connected_consumers(pulsar: PulsarUnderTest, caplog: pytest.LogCaptureFixture, partitions: int):
    topic = unused(pulsar)
    if partitions:
        pulsar.admin.create_topic(topic, partitions)
    one, other = (pulsar.client().subscribe(topic, name) for name in ("one", "other"))
    for part in [f"{topic}-partition-{n}" for n in range(partitions)] or [topic]:
        wait_until_listening(pulsar, part, "one", "other")
    with caplog.at_level(logging.WARNING, "spark_mq_source"):
        assert write(pulsar, topic, *numbered(300)) == 300
    assert f"{topic} stores nothing: rows are lost for every subscription without a connected consumer" in caplog.text
    assert "dropped" not in caplog.text
    assert sorted(received(one, 300)) == sorted(received(other, 300)) == sorted(numbered(300))
    late = pulsar.client().subscribe(topic, "late", initial_position=official.InitialPosition.Earliest)
    for part in [f"{topic}-partition-{n}" for n in range(partitions)] or [topic]:
        wait_until_listening(pulsar, part, "late")
    assert write(pulsar, topic, "last") == 1
    assert received(late, 1) == ["last"]


def test_an_unused_topic_does_not_exist(pulsar: PulsarUnderTest):
    topic = unused(pulsar)
    with pytest.raises(TopicNotFoundError, match="or set createTopic=true to create the topic"):
        write(pulsar, topic, "a")
    assert write(pulsar, topic, "a", createTopic="true") == 1


def test_entries_in_flight_stay_within_the_brokers_limit(pulsar: PulsarUnderTest, caplog: pytest.LogCaptureFixture):
    topic = unused(pulsar)
    with caplog.at_level(logging.WARNING, "spark_mq_source"):
        assert write(pulsar, topic, *numbered(20_000), createTopic="true", batching="false") == 20_000
    assert "dropped" not in caplog.text


@pytest.mark.slow
def test_messages_dropped_by_the_broker_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    few = {"maxConcurrentNonPersistentMessagePerConnection": "0"}
    with PulsarStandalone(tmp_path / "pulsar", overrides=few) as broker:
        under_test = PulsarUnderTest(broker.service_url, broker.admin_url, broker.admin, broker=broker)
        topic = "non-persistent://public/default/t"
        with caplog.at_level(logging.WARNING, "spark_mq_source"):
            assert write(under_test, topic, *numbered(5_000), createTopic="true", batching="false") == 5_000
        (dropped,) = re.findall(r"the broker dropped (\d+) of the entries that were sent: too many", caplog.text)
        # The broker took these, whether or not a consumer was connected: a slow consumer misses more.
        assert broker.admin.stats(topic)["msgInCounter"] == 5_000 - int(dropped)


def test_a_write_continues_after_an_unload(pulsar: PulsarUnderTest):
    topic = unused(pulsar)
    consumer = pulsar.client().subscribe(topic, "s")

    def batches() -> Any:
        yield rows_of("a")
        pulsar.admin.unload(topic)
        wait_until_listening(pulsar, topic, "s")
        yield rows_of("b")

    options = options_of(pulsar, topic=topic, createTopic="true", batching="false", batchingMaxPublishDelay="1ms")
    assert PulsarWriter(options, TaskAttempt("np")).write_all(batches()).rows == 2
    found = received(consumer, 1)
    while found[-1] != "b":
        found += received(consumer, 1)
    # Messages unacknowledged at the unload are sent again: they may be lost, or be duplicates.
    assert found in (["b"], ["a", "b"], ["a", "a", "b"])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"deliveryGuarantee": "exactly-once"}, "deliveryGuarantee=exactly-once needs a topic that stores messages"),
        ({"deliveryGuarantee": "transaction"}, "deliveryGuarantee=transaction needs a topic that stores messages"),
        ({"chunking": "true"}, "chunking needs a topic that stores messages"),
    ],
)
def test_options_that_need_a_topic_that_stores_are_refused(
    pulsar: PulsarUnderTest, more: dict[str, str], sentence: str
):
    topic = "non-persistent://public/default/t"
    with pytest.raises(OptionError, match=sentence):
        write(pulsar, topic, "a", **more)
    if "transaction" not in more.values():
        with pytest.raises(UnwritableRowError, match=sentence):
            write(pulsar, None, "a", columns={"topic": topic}, **more)


# -- reading, as a queue: tests publish when the consumers have permits, and a read ends by its `maxRows`


KINDS = ("Exclusive", "Failover", "Shared", "Key_Shared")
PATIENCE = {"idleTimeout": "100s", "initialPosition": None}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """End triggers by their rows, and not by the time that a test takes to publish them."""
    monkeypatch.setattr(queue_reader, "TRIGGER_SECONDS", 100.0)


def live_topic(broker: PulsarUnderTest, partitions: int = 0) -> str:
    topic = unused(broker)
    broker.admin.create_topic(topic, partitions)
    return topic


def room(broker: PulsarUnderTest, topic: str) -> int:
    """Return the number of messages that the subscription's consumers may be sent."""
    try:
        found = broker.admin.stats(topic)["subscriptions"]
    except AdminError:
        return 0  # no client has it loaded yet
    return sum(int(one["availablePermits"]) for one in found.get(SUBSCRIPTION, {}).get("consumers", ()))


def has_left(broker: PulsarUnderTest, topic: str) -> bool:
    return SUBSCRIPTION not in broker.admin.stats(topic)["subscriptions"]


def publish_when_there(broker: PulsarUnderTest, topic: str, messages: Sequence[str]) -> None:
    wait_until(lambda: room(broker, topic) >= len(messages), "permits for the messages", 60)
    publish(broker, topic, list(messages))


def read_at_once(options: PulsarOptions, tasks: Sequence[PulsarQueueRange]) -> Callable[[], list[pa.Table]]:
    """Run tasks at the same time; wait for their rows."""
    pool = ThreadPoolExecutor(len(tasks))
    running = [pool.submit(read_tasks, options, [task]) for task in tasks]
    pool.shutdown(wait=False)
    return lambda: [one.result(90) for one in running]


@pytest.fixture
def stream(queue: Callable[..., SubscriptionQuery]) -> Callable[..., SubscriptionQuery]:
    return lambda topic, **options: queue(topic, **PATIENCE | options)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_reads_once_the_messages_published_while_its_triggers_run(
    pulsar: PulsarUnderTest, stream: Callable[..., SubscriptionQuery], kind: str
):
    topic = live_topic(pulsar)
    query = stream(topic, subscriptionType=kind, maxRowsPerTrigger=100)
    found: list[str] = []
    for trigger in range(3):
        end = query.plan()
        tasks = query.stream.ranges(query.at, end)
        assert len(tasks) == 1
        rows = read_at_once(query.options, tasks)
        publish_when_there(pulsar, topic, numbered(100, f"{trigger}."))
        (table,) = rows()
        assert table.column("message_id").to_pylist() == [{"ledger_id": 0, "entry_id": 0, "batch_index": -1}] * 100
        wait_until(lambda: has_left(pulsar, topic), "the task has unsubscribed")
        publish(pulsar, topic, ["between two triggers"])
        # Spark repeats the batch, with and without the driver.
        assert query.read(tasks) == table.to_pylist()
        query.restart()
        assert query.read_to(end) == table.to_pylist()
        query.at = end
        query.stream.commit(end)
        found += values(table)
    assert found == [value for trigger in range(3) for value in numbered(100, f"{trigger}.")]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 10])
def test_a_drain_ends_with_its_rows_and_a_rerun_returns_them_again(
    pulsar: PulsarUnderTest, tmp_path: Path, kind: str, batch: int
):
    topic = live_topic(pulsar)
    for more in ({}, {"walDir": tmp_path, "runId": "r"}):
        options = drain_options(pulsar, topic, **PATIENCE, subscriptionType=kind, maxRows=100, **more)
        tasks = FORMAT.plan(options, ())
        rows = read_at_once(options, tasks)
        wait_until(lambda: room(pulsar, topic) >= 100, "permits for the messages", 60)
        publish(pulsar, topic, numbered(100), batch=batch)
        (table,) = rows()
        assert values(table) == numbered(100)
        wait_until(lambda: has_left(pulsar, topic), "the task has unsubscribed")
    assert read(options).equals(table)


def test_each_consumer_of_each_partition_gets_a_part(pulsar: PulsarUnderTest, stream: Callable[..., SubscriptionQuery]):
    topic = live_topic(pulsar, 2)
    query = stream(topic, consumersPerPartition=2, maxRowsPerTrigger=200)
    tasks = query.tasks()
    assert [(task.source.partition, task.max_rows) for task in tasks] == [(0, 50), (0, 50), (1, 50), (1, 50)]
    rows = read_at_once(query.options, tasks)
    for partition in range(2):
        publish_when_there(pulsar, f"{topic}-partition-{partition}", numbered(100, f"{partition}."))
    found = [values(table) for table in rows()]
    assert [len(part) for part in found] == [50] * 4
    for partition in range(2):
        one, other = found[2 * partition : 2 * partition + 2]
        assert sorted(one + other) == sorted(numbered(100, f"{partition}."))


def test_concurrent_attempts_have_the_same_rows(
    pulsar: PulsarUnderTest, stream: Callable[..., SubscriptionQuery], monkeypatch: pytest.MonkeyPatch
):
    """All messages have one id: an attempt does not leave out messages that another one has logged."""
    monkeypatch.setattr(queue_reader, "PATIENCE_SECONDS", 0.0)
    topic = live_topic(pulsar)
    query = stream(topic, maxRowsPerTrigger=100)
    (task,) = query.tasks()
    rows = read_at_once(query.options, [task, task])
    wait_until(lambda: room(pulsar, topic) >= 200, "permits for the messages of both")
    publish(pulsar, topic, numbered(100))
    one, other = rows()
    assert one.equals(other)
    assert sorted(values(one)) == sorted(numbered(100))


def test_missing_acknowledgements_block_no_consumer(pulsar: PulsarUnderTest, tmp_path: Path):
    namespace = pulsar.admin.create_namespace(f"public/{tmp_path.name.replace('_', '-')}")
    pulsar.admin.request("POST", f"namespaces/{namespace}/maxUnackedMessagesPerConsumer", 10)
    topic = f"non-persistent://{namespace}/t"
    options = drain_options(pulsar, topic, **PATIENCE, createTopic="true", maxRows=300)
    rows = read_at_once(options, FORMAT.plan(options, ()))
    publish_when_there(pulsar, topic, numbered(300))
    (table,) = rows()
    assert values(table) == numbered(300)


def test_an_unused_topic_is_read_if_it_may_be_created(pulsar: PulsarUnderTest):
    topic = unused(pulsar)
    with pytest.raises(TopicNotFoundError, match=r"exists only while it is used: .*createTopic=true"):
        FORMAT.plan(drain_options(pulsar, topic, initialPosition=None), ())
    options = drain_options(pulsar, topic, **PATIENCE, createTopic="true", maxRows=10)
    rows = read_at_once(options, FORMAT.plan(options, ()))
    publish_when_there(pulsar, topic, numbered(10))
    (table,) = rows()
    assert values(table) == numbered(10)


def test_available_now_ends_with_a_trigger_without_messages(
    pulsar: PulsarUnderTest, stream: Callable[..., SubscriptionQuery], caplog: pytest.LogCaptureFixture
):
    topic = live_topic(pulsar)
    query = stream(topic, idleTimeout="1ms")
    query.stream.cap_at_current_end()
    assert query.trigger() == []
    assert f"{topic}: number of waiting messages unknown (it stores none); read until a batch finds none" in caplog.text
    assert query.plan() == query.at
    assert query.stream.newest["waiting"] is None
