"""`pulsar-native` on a broker, for the common suites and its own tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from spark_mq_source.core.options import READ
from spark_mq_source.pulsar.format import PulsarFormat as Door
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.reader import PulsarRange, read_range
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import HOST, FaultProxy
from tests.formats import Format, schema_of

MESSAGE_ID_TYPE = "struct<ledger_id:bigint,entry_id:bigint,batch_index:int>"
MESSAGE_ID = f"message_id {MESSAGE_ID_TYPE}"


@dataclass
class PulsarFormat(Format):
    """The format pulsar-native on a stock broker."""

    door = Door()
    name = "pulsar-native"
    schema = {
        "key": "binary",
        "value": "binary",
        "topic": "string",
        "partition": "int",
        "message_id": MESSAGE_ID_TYPE,
        "publish_time": "timestamp",
        "event_time": "timestamp",
        "properties": "map<string,string>",
    }
    position_columns = f"topic string, partition int, {MESSAGE_ID}"
    secret = "authToken"
    plenty = 80_000
    apart = {"batching_enabled": False}
    impatient = {"keepAliveInterval": "500ms"}

    broker: PulsarUnderTest
    defaults: dict[str, str] = field(default_factory=dict)

    @property
    def service(self) -> tuple[str, int]:
        parts = urlsplit(self.broker.service_url)
        return parts.hostname or "", parts.port or 0

    def feed(self, partitions: int) -> PulsarFeed:
        return PulsarFeed(self.broker, partitions)

    def new_topic(self, partitions: int = 1) -> str:
        return self.broker.topic(partitions)

    def unused_topic(self) -> str:
        return self.broker.unused_topic()

    def create(self, topic: str) -> None:
        self.broker.admin.create_topic(topic, 1)

    def topics(self) -> list[str]:
        return self.broker.admin.topics(self.broker.namespace)

    def publish(self, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> None:
        client = self.broker.client()
        name = topic if partition is None else f"{topic}-partition-{partition}"
        producer = client.create_producer(
            name, batching_enabled=True, batching_max_publish_delay_ms=5, block_if_queue_full=True
        )
        for value in values:
            producer.send_async(value, _must_succeed)
        producer.flush()
        producer.close()

    def consume(self, topic: str, count: int) -> list[bytes]:
        import pulsar

        found: list[bytes] = []
        for name in self.broker.client().get_topic_partitions(topic):
            reader = self.broker.client().create_reader(name, pulsar.MessageId.earliest)
            while reader.has_message_available():
                found.append(reader.read_next(10_000).data())
            reader.close()
        assert len(found) >= count
        return found

    def options(self, topic: str | None, **options: Any) -> PulsarOptions:
        return pulsar_options(self.broker.service_url, topic, **(self.defaults | options))

    def proxy(self) -> FaultProxy:
        # A standalone broker answers lookups like a Pulsar proxy: connect again to the address of the lookup.
        return FaultProxy(*self.service)

    def position_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row["message_id"].values())

    def assert_each_once(self, rows: Sequence[dict[str, Any]]) -> None:
        assert_each_once(rows, self.position_of)


@dataclass(kw_only=True)
class PulsarQueueFormat(PulsarFormat):
    """The format whose streams read a subscription as a queue. Requeued messages arrive out of order."""

    ordered = False
    has_positions = False
    tasks_have_sizes = False
    counted = PulsarFormat.apart  # the backlog of a subscription is counted in entries

    folder: Path

    def feed(self, partitions: int) -> PulsarFeed:
        feed = super().feed(partitions)
        queue = {"subscription": "queue", "subscriptionType": "shared", "initialPosition": "earliest"}
        # A trigger waits for its planned messages for as long as a busy broker takes.
        feed.stream = feed.options | queue | {"walDir": str(self.folder / "wal"), "idleTimeout": "20s"}
        return feed


class PulsarFeed:
    """A topic; `partitions=0` creates one that is not partitioned."""

    def __init__(self, broker: PulsarUnderTest, partitions: int) -> None:
        self.broker = broker
        self.topic = broker.topic(partitions)
        self.topic_partitions = [f"{self.topic}-partition-{n}" for n in range(partitions)] or [self.topic]
        self.options = {"serviceUrl": broker.service_url, "topic": self.topic}
        self.straight = self.target = self.options
        self.stream = self.options | {"startingOffsets": "earliest", "subscription": "stream"}
        self.partitions = range(partitions)

    def publish(self, values: Sequence[bytes], **producing: Any) -> None:
        client = self.broker.client()
        for n, name in enumerate(self.topic_partitions):
            producer = client.create_producer(
                name, block_if_queue_full=True, **({"batching_enabled": True} | producing)
            )
            for value in values[n :: len(self.topic_partitions)]:
                producer.send_async(value, _must_succeed)
            producer.flush()
            producer.close()

    def readers(self) -> int:
        subscriptions = (self.broker.admin.stats(name)["subscriptions"] for name in self.topic_partitions)
        return sum(len(found) for found in subscriptions)

    def sent(self) -> int:
        return sum(int(self.broker.admin.stats(name)["msgOutCounter"]) for name in self.topic_partitions)


def _must_succeed(result: Any, _: Any) -> None:
    assert str(result).endswith("Ok"), result


def pulsar_options(service_url: str, topic: str | None = None, **options: Any) -> PulsarOptions:
    """Return options as `spark.read.format("pulsar-native").options(...)` makes them.

    Args:
        service_url: unless `service=(host, port)` names another address.
        topic: the option of that name.
        options: more options, in camelCase.
    """
    if link := options.pop("via", None):
        options["service"] = (HOST, link.port)
    if service := options.pop("service", None):
        service_url = "pulsar://{}:{}".format(*service)
    given = {"serviceUrl": service_url, "operationTimeout": "60s"} | options
    if topic is not None:
        given["topic"] = topic
    return PulsarOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, READ)


def read_tasks(options: PulsarOptions, tasks: Sequence[PulsarRange], ddl: str = "value binary") -> pa.Table:
    """Return the rows of these ranges, one after the other."""
    schema = schema_of(ddl)
    return pa.Table.from_batches([b for task in tasks for b in read_range(options, task, schema)], schema)


def assert_each_once(rows: Sequence[dict[str, Any]], position_of: Callable[[dict[str, Any]], tuple[Any, ...]]) -> None:
    """Check that positions ascend in every topic-partition: no duplicates, and in order."""
    last: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        partition, position = (row.get("topic"), row.get("partition")), position_of(row)
        assert last.get(partition, ()) < position, f"{partition}: {position} after {last[partition]}"
        last[partition] = position
