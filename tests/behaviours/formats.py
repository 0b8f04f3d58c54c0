"""What the common suite needs to know of a format: how to make a topic, publish to it, and read it without Spark."""

from __future__ import annotations

import re
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_mq_source.core.options import READ, STREAM, Scope
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.planner import plan_batch as plan_nsq
from spark_mq_source.nsq.read.reader import NsqRange
from spark_mq_source.nsq.read.reader import read_range as read_nsq
from spark_mq_source.nsq.read.stream import NsqStream
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import PulsarRange, read_range
from spark_mq_source.spark._compat import arrow_schema
from spark_mq_source.tubemq.client import session as tubemq_session
from spark_mq_source.tubemq.client.bounds import fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY, TubeMQOptions
from spark_mq_source.tubemq.protocol.commands import SendMessage
from spark_mq_source.tubemq.read.planner import plan_batch as plan_tubemq
from spark_mq_source.tubemq.read.reader import TubeMQRange
from spark_mq_source.tubemq.read.reader import read_range as read_tubemq
from tests.behaviours.tubemq.java_client import TubeJavaClient
from tests.fix_brokers import NsqUnderTest, PulsarUnderTest
from tests.fix_net import HOST, FaultProxy
from tests.fix_tubemq import TubeUnderTest

SENDS_AT_ONCE = 1000
"""So few that a busy machine answers them before the request's time is out."""
MESSAGE_ID = "message_id struct<ledger_id:bigint,entry_id:bigint,batch_index:int>"

TYPES: Mapping[str, Callable[[], DataType]] = {
    "binary": BinaryType,
    "string": StringType,
    "int": IntegerType,
    "bigint": LongType,
    "timestamp": TimestampType,
    "map<string,string>": lambda: MapType(StringType(), StringType()),
}


def schema_of(ddl: str) -> pa.Schema:
    """The Arrow schema that Spark asks a reader for where the user wrote `.schema(ddl)`.

    Spark's own parser needs a JVM; this one knows just what columns are made of.
    """
    return arrow_schema(_struct(ddl, separator=" "))


def _struct(text: str, separator: str) -> StructType:
    parts = (part.strip().split(separator, 1) for part in re.split(r",(?![^<]*>)", text))
    return StructType([StructField(name, _type(kind)) for name, kind in parts])


def _type(text: str) -> DataType:
    if text.startswith("struct<"):
        return _struct(text[len("struct<") : -1], separator=":")
    return TYPES[text]()


class Format(Protocol):
    """One data source and its broker, as the common suite sees them.

    Attributes:
        name: of the data source.
        service: host and port that clients connect to first.
        partitions_have_ends: whether a plan sees that a partition has no message.
        more_tasks: options for at least seven tasks where a topic has two partitions.
        impatient: options for tests of links that fail without a word.
        ordered: whether a partition's messages come as they were published. NSQ promises no order.
        reconnects: whether one read goes on over a new connection. NSQ's does not: what a broken connection held is
            delivered again only after its timeout, to whoever reads then.
        open_end: options of a read that goes on while messages come; empty where a plan has an end, which those do not
            have that keep no positions.
        repeatable: options with which a read can be done again; empty where any can. What NSQ has delivered is gone
            unless it was written down.
        aside: options of a read that takes nothing from those without them; empty where no read takes anything. In NSQ
            it is another channel's.
    """

    name: str
    service: tuple[str, int]
    partitions_have_ends: bool
    more_tasks: Mapping[str, str]
    impatient: Mapping[str, str]
    ordered: bool
    reconnects: bool
    open_end: Mapping[str, str]
    repeatable: Mapping[str, str]
    aside: Mapping[str, str]

    def new_topic(self, partitions: int = 1) -> str:
        """Creates a topic."""

    def unused_topic(self) -> str:
        """The name of a topic that does not exist."""

    def topics(self) -> list[str]:
        """All topics there are."""

    def publish(self, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> None:
        """Publishes values with the broker's official client, in order, to one partition or to all in turn."""

    def plan(self, topic: str, **options: Any) -> list[Any]:
        """The tasks of a batch read."""

    def read(self, topic: str, ddl: str = "value binary", **options: Any) -> pa.Table:
        """All rows of a topic, task after task.

        With `service=(host, port)` another address is asked first; with `via=` a `proxy()` the rows come through that.
        """

    def batches(self, topic: str, ddl: str = "value binary", **options: Any) -> Iterator[pa.RecordBatch]:
        """The same as they come."""

    def proxy(self) -> FaultProxy:
        """A link to the broker that all connections pass through, made to fail; the caller stops it."""

    def partition_of(self, row: dict[str, Any]) -> int:
        """The partition of a row with `position_columns`, as `publish` counts them."""

    def assert_each_once(self, rows: Sequence[dict[str, Any]]) -> None:
        """Nothing is there twice or, as far as `position_columns` tell, out of order."""

    position_columns: str


class _Positioned:
    """What the formats have in common whose brokers keep positions: reading changes nothing."""

    more_tasks: Mapping[str, str] = {"minPartitions": "7"}
    ordered = True
    reconnects = True
    open_end: Mapping[str, str] = {}
    repeatable: Mapping[str, str] = {}
    aside: Mapping[str, str] = {}

    def partition_of(self, row: dict[str, Any]) -> int:
        return int(row["partition"])


@dataclass
class PulsarFormat(_Positioned):
    """`pulsar-native` on a stock broker."""

    broker: PulsarUnderTest
    name: str = "pulsar-native"
    position_columns: str = f"topic string, partition int, {MESSAGE_ID}"
    partitions_have_ends: bool = True
    impatient: Mapping[str, str] = field(default_factory=lambda: {"keepAliveInterval": "500ms"})
    defaults: dict[str, str] = field(default_factory=dict)

    @property
    def service(self) -> tuple[str, int]:
        parts = urlsplit(self.broker.service_url)
        return parts.hostname or "", parts.port or 0

    def new_topic(self, partitions: int = 1) -> str:
        return self.broker.topic(partitions)

    def unused_topic(self) -> str:
        return self.broker.unused_topic()

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

    def options(self, topic: str | None, **options: Any) -> PulsarOptions:
        return pulsar_options(self.broker.service_url, topic, **(self.defaults | options))

    def plan(self, topic: str, **options: Any) -> list[PulsarRange]:
        return plan_batch(self.options(topic, **options))

    def read(self, topic: str | None, ddl: str = "value binary", **options: Any) -> pa.Table:
        return pa.Table.from_batches(self.batches(topic, ddl, **options), schema_of(ddl))

    def batches(self, topic: str | None, ddl: str = "value binary", **options: Any) -> Iterator[pa.RecordBatch]:
        made = self.options(topic, **options)
        for task in plan_batch(made):
            yield from read_range(made, task, schema_of(ddl))

    def proxy(self) -> FaultProxy:
        # A standalone broker answers lookups like a Pulsar proxy: connect again to the address that was asked.
        return FaultProxy(*self.service)

    def position_of(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(row["message_id"].values())

    def assert_each_once(self, rows: Sequence[dict[str, Any]]) -> None:
        assert_each_once(rows, self.position_of)


class _BrokerLink(FaultProxy):
    """A link to a TubeMQ broker, which clients cannot be sent through: they connect to the address masters tell.

    So while it is there, whoever connects to that broker, here, connects to it.
    """

    def __enter__(self) -> _BrokerLink:
        self._connect = tubemq_session.connect

        def connect(host: str, port: int, **how: Any) -> Any:
            return self._connect(*((HOST, self.port) if (host, port) == self.broker else (host, port)), **how)

        tubemq_session.connect = connect
        return self

    def __exit__(self, *exc: object) -> None:
        tubemq_session.connect = self._connect
        super().__exit__(*exc)


@dataclass
class TubeMQFormat(_Positioned):
    """`tubemq` on a cluster; topics are on its broker 1."""

    tube: TubeUnderTest
    java: TubeJavaClient
    name: str = "tubemq"
    position_columns: str = "topic string, broker_id int, partition int, message_id bigint"
    partitions_have_ends: bool = False  # of one store they have one index
    impatient: Mapping[str, str] = field(default_factory=lambda: {"requestTimeout": "1s"})

    @property
    def service(self) -> tuple[str, int]:
        host, _, port = self.tube.masters.partition(":")
        return host, int(port)

    def new_topic(self, partitions: int = 1) -> str:
        return self.tube.topic(partitions)

    def unused_topic(self) -> str:
        return self.tube.group("absent")

    def topics(self) -> list[str]:
        return sorted(entry["topicName"] for entry in self.tube.admin.query("admin_query_topic_info"))

    def publish(self, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> None:
        if partition is None:
            self.java.produce(self.tube.cluster, topic, list(values))
        else:
            # The official client lets nobody choose.
            send_to_partition(self.options(topic), topic, partition, values)
        wait_until_flushed(self.options(topic), len(values))

    def options(self, topic: str | None, **options: Any) -> TubeMQOptions:
        return tubemq_options(self.tube.masters, topic, READ, **options)

    def plan(self, topic: str, **options: Any) -> list[TubeMQRange]:
        return plan_tubemq(self.options(topic, **options))

    def read(self, topic: str | None, ddl: str = "value binary", **options: Any) -> pa.Table:
        return pa.Table.from_batches(self.batches(topic, ddl, **options), schema_of(ddl))

    def batches(self, topic: str | None, ddl: str = "value binary", **options: Any) -> Iterator[pa.RecordBatch]:
        options.pop("via", None)  # all go through it while it is there
        made = self.options(topic, **options)
        for task in plan_tubemq(made):
            yield from read_tubemq(made, task, schema_of(ddl))

    def proxy(self) -> FaultProxy:
        host, _, port = self.tube.cluster.broker(1).address.partition(":")
        return _BrokerLink(host, int(port))

    def assert_each_once(self, rows: Sequence[dict[str, Any]]) -> None:
        # Ids tell messages of one partition apart, but have no order.
        seen = Counter((row["topic"], row["broker_id"], row["partition"], row["message_id"]) for row in rows)
        assert [key for key, times in seen.items() if times > 1] == []


@dataclass
class NsqFormat:
    """`nsq` on several brokers: a partition is an nsqd.

    Topics have two channels, made before anything is published: one to read, one to look at aside. Unless a read says
    when it ends it ends with as many messages as were published, so that it waits for none.
    """

    brokers: Sequence[NsqUnderTest]
    wal_dir: Path
    name: str = "nsq"
    position_columns: str = "topic string, nsqd string, message_id string"
    partitions_have_ends: bool = True
    more_tasks: Mapping[str, str] = field(default_factory=lambda: {"connectionsPerNsqd": "4"})
    impatient: Mapping[str, str] = field(
        # One trigger gets far enough to be stopped half way.
        default_factory=lambda: {"heartbeatInterval": "1s", "msgTimeout": "4s", "maxInFlight": "1000"}
    )
    ordered: bool = False
    reconnects: bool = False
    open_end: Mapping[str, str] = field(default_factory=lambda: {"idleTimeout": "2s"})
    aside: Mapping[str, str] = field(default_factory=lambda: {"channel": "aside"})
    _published: Counter[str] = field(default_factory=Counter)

    @property
    def service(self) -> tuple[str, int]:
        host, _, port = self.brokers[0].lookupd_address.partition(":")
        return host, int(port)

    @property
    def repeatable(self) -> Mapping[str, str]:
        return {"walDir": str(self.wal_dir), "runId": "again"}

    def new_topic(self, partitions: int = 1) -> str:
        topic = self.unused_topic()
        for broker in self.brokers[:partitions]:
            broker.create(topic, "c", "aside")
        return topic

    def unused_topic(self) -> str:
        return self.brokers[0].unused_topic()

    def topics(self) -> list[str]:
        _, found = self.brokers[0].ask("GET", self.brokers[0].lookupd_address, "/topics")
        return sorted(found["topics"])

    def publish(self, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> None:
        having = [broker for broker in self.brokers if broker.topic_stats(topic)]
        if partition is not None:
            having = [having[partition]]
        for number, broker in enumerate(having):
            broker.publish(topic, *values[number :: len(having)])
        self._published[topic] += len(values)

    def options(self, topic: str | None, scope: Scope = READ, **options: Any) -> NsqOptions:
        host, port = options.pop("service", self.service)
        given = {"nsqlookupdHttpAddresses": f"{host}:{port}", "channel": "c", "operationTimeout": "30s"} | options
        if topic is not None:
            given["topic"] = topic
        if scope == READ and not given.keys() & {"maxRows", "maxSeconds", "idleTimeout"}:
            count = self._published[topic or ""]
            given |= {"maxRows": count, "idleTimeout": "30s"} if count else {"idleTimeout": "300ms"}
        return NsqOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, scope)

    def plan(self, topic: str, **options: Any) -> list[NsqRange]:
        return plan_nsq(self.options(topic, **options))

    def read(self, topic: str | None, ddl: str = "value binary", **options: Any) -> pa.Table:
        return pa.Table.from_batches(self.batches(topic, ddl, **options), schema_of(ddl))

    def batches(self, topic: str | None, ddl: str = "value binary", **options: Any) -> Iterator[pa.RecordBatch]:
        if link := options.pop("via", None):
            options["hostMap"] = f"{self.brokers[0].tcp_address}={link.address}"
            if "channel" not in options:
                return self._triggers(topic or "", ddl, **options)
        made = self.options(topic, **options)
        return (batch for task in plan_nsq(made) for batch in read_nsq(made, task, schema_of(ddl)))

    def _triggers(self, topic: str, ddl: str, **options: Any) -> Iterator[pa.RecordBatch]:
        """Reads as a stream does, until all there is has come: a batch read ends with its connection."""
        # Of what is in flight on a connection that breaks the timeout must pass: so it is short, and that little.
        how = {"walDir": self.wal_dir, "msgTimeout": "2s", "maxInFlight": 200, "operationTimeout": "2s"}
        made = self.options(topic, STREAM, **how | options)
        stream, rows = NsqStream(made), 0
        at = stream.initial()
        deadline = time.monotonic() + 120
        while rows < self._published[topic]:
            assert time.monotonic() < deadline, f"{rows} of {self._published[topic]} came"
            end = stream.latest(at)
            if end == at:
                time.sleep(0.02)  # nsqd tells nobody that a timeout has passed
                continue
            for task in stream.ranges(at, end):
                for batch in read_nsq(made, task, schema_of(ddl)):
                    rows += batch.num_rows
                    yield batch
            at = end
            stream.commit(at)

    def proxy(self) -> FaultProxy:
        host, _, port = self.brokers[0].tcp_address.partition(":")
        return FaultProxy(host, int(port))

    def partition_of(self, row: dict[str, Any]) -> int:
        return [broker.tcp_address for broker in self.brokers].index(row["nsqd"])

    def assert_each_once(self, rows: Sequence[dict[str, Any]]) -> None:
        # Two nsqd may give the same id to two messages.
        seen = Counter((row["topic"], row["nsqd"], row["message_id"]) for row in rows)
        assert [key for key, times in seen.items() if times > 1] == []


def tubemq_options(masters: str, topic: str | None, scope: Scope, **options: Any) -> TubeMQOptions:
    """Options as `spark.read.format("tubemq").options(...)` makes them; `service=(host, port)` is another master."""
    if service := options.pop("service", None):
        masters = "{}:{}".format(*service)
    given = {"masters": masters, "operationTimeout": "30s"} | options
    if topic is not None:
        given["topic"] = topic
    return TubeMQOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, scope)


def wait_until_flushed(options: TubeMQOptions, at_least: int = 0) -> None:
    """Waits until readers of what is on disk see what the brokers have, and this many messages."""
    deadline = time.monotonic() + 60
    with TubeMQClient(options) as client:
        partitions = partitions_of(client.fetch_topics(options.topic_names, group=options.group_name).partitions())
        while True:
            flushed = fetch_bounds(client, options, partitions, priority=FLUSHED_ONLY)
            if flushed == fetch_bounds(client, options, partitions, priority=WITH_MEMORY) and at_least <= sum(
                (bounds.last - bounds.first) // INDEX_BYTES for tp, bounds in flushed.items()
            ):
                return
            assert time.monotonic() < deadline, flushed
            time.sleep(0.02)  # a broker tells nobody


def send_to_partition(options: TubeMQOptions, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Publishes values to one partition of broker 1, in order."""
    with TubeMQClient(options) as client:
        producer = client.publish([topic])
        broker = producer.meta.brokers[1]
        sends = [
            SendMessage(producer.client_id, topic, partition, value, 0, zlib.crc32(value) & 0x7FFFFFFF, 0)
            for value in values
        ]
        for start in range(0, len(sends), SENDS_AT_ONCE):
            for answer in client.broker(broker).call(*sends[start : start + SENDS_AT_ONCE]):
                client.wait(answer, "send")
        producer.close()


def _must_succeed(result: Any, _: Any) -> None:
    assert str(result).endswith("Ok"), result


def pulsar_options(service_url: str, topic: str | None = None, **options: Any) -> PulsarOptions:
    """Options as `spark.read.format("pulsar-native").options(...)` makes them.

    Args:
        service_url: unless `service=(host, port)` names another address.
        topic: the option of that name.
        options: more options, in camelCase.
    """
    if link := options.pop("via", None):
        options["service"] = (HOST, link.port)
    if service := options.pop("service", None):
        service_url = "pulsar://{}:{}".format(*service)
    given = {"serviceUrl": service_url, "operationTimeout": "20s"} | options
    if topic is not None:
        given["topic"] = topic
    return PulsarOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, READ)


def read_tasks(options: PulsarOptions, tasks: Sequence[PulsarRange], ddl: str = "value binary") -> pa.Table:
    """The rows of these ranges, one after the other."""
    schema = schema_of(ddl)
    return pa.Table.from_batches([b for task in tasks for b in read_range(options, task, schema)], schema)


def assert_each_once(rows: Sequence[dict[str, Any]], position_of: Callable[[dict[str, Any]], tuple[Any, ...]]) -> None:
    """Positions ascend in every topic-partition: nothing twice, nothing out of order."""
    last: dict[tuple[Any, ...], tuple[Any, ...]] = {}
    for row in rows:
        partition, position = (row.get("topic"), row.get("partition")), position_of(row)
        assert last.get(partition, ()) < position, f"{partition}: {position} after {last[partition]}"
        last[partition] = position
