"""What the Spark-facing suite needs to know of a format: a topic of its own, how to fill it, and who still reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from spark_mq_source.core.options import READ
from spark_mq_source.tubemq.client.reading_groups import reading_group
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from tests.behaviours.formats import NsqFormat, send_to_partition, tubemq_options, wait_until_flushed
from tests.fix_brokers import NsqUnderTest, PulsarUnderTest
from tests.fix_tubemq import TubeUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_TIMEOUT_S = 30.0


class Feed(Protocol):
    """One topic (or what a format calls it) that nobody else uses.

    Attributes:
        options: what reads it, as often as one likes: the format's options with their values. Those of NSQ name a run,
            which is written down, and after each `publish` another one.
        straight: what reads it with every row passing straight from the broker to Spark.
        stream: what a query reads it with, from the first message on.
        partitions: what `FormatCase.partition` says of each partition, in order.
    """

    @property
    def options(self) -> Mapping[str, str]: ...

    @property
    def straight(self) -> Mapping[str, str]: ...

    @property
    def stream(self) -> Mapping[str, str]: ...

    partitions: Sequence[object]

    def publish(self, values: Sequence[bytes], **producing: Any) -> None:
        """Publishes values with the broker's official client, value i to partition i modulo their number."""

    def readers(self) -> int:
        """How many readers the broker knows of at this moment."""

    def sent(self) -> int:
        """How many messages the broker has sent to readers since the topic exists."""


@dataclass(frozen=True)
class FormatCase:
    """A format as the common suite sees it.

    Attributes:
        name: in `spark.read.format(name)`.
        source: its data source in `spark_mq_source`.
        fixture: the fixture of its broker.
        schema: the columns read by default with their types, as Spark shows them.
        secret: an option whose value must never be shown.
        misspelt: an option that does not exist, and what the error is to suggest.
        batch_rows: the option for the most rows of one Arrow batch.
        open: makes a feed of a broker with this many partitions, which may keep files in a folder.
        takes_empty: whether a message may hold nothing.
        plenty: more messages of 100 bytes than a broker sends ahead to somebody who takes none.
        partition: the column that tells partitions apart: in NSQ a partition is an nsqd.
        flag: an option that is true or false.
        ordered: whether a partition's messages come as they were published. NSQ promises no order.
        rows_stay: whether what was read can be read by others. What NSQ has delivered is gone.
        broker: which one it is, where there are several kinds.
        apart: how its feed publishes messages that a limit can come between.
    """

    name: str
    source: str
    fixture: str
    schema: Mapping[str, str]
    secret: str
    misspelt: tuple[str, str]
    batch_rows: str
    open: Callable[[Any, int, Path], Feed]
    takes_empty: bool = True
    plenty: int = 400_000
    partition: str = "partition"
    flag: str = "failOnDataLoss"
    ordered: bool = True
    rows_stay: bool = True
    broker: str = ""
    apart: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> str:
        """A value and its partition, as `.schema()` takes them."""
        return f"value string, {self.partition} {self.schema[self.partition]}"


class PulsarFeed:
    """A Pulsar topic; `partitions=0` makes one that is not partitioned."""

    def __init__(self, broker: PulsarUnderTest, partitions: int) -> None:
        self.broker = broker
        self.topic = broker.topic(partitions)
        self.topic_partitions = [f"{self.topic}-partition-{n}" for n in range(partitions)] or [self.topic]
        self.options = {"serviceUrl": broker.service_url, "topic": self.topic}
        self.straight = self.options
        self.stream = self.options | {"startingOffsets": "earliest", "subscription": "stream"}
        self.partitions = range(partitions)

    def publish(self, values: Sequence[bytes], **producing: Any) -> None:
        client = self.broker.client()
        failures: list[object] = []

        def check(result: object, _: object) -> None:
            if not str(result).endswith("Ok"):
                failures.append(result)

        for n, name in enumerate(self.topic_partitions):
            producer = client.create_producer(
                name, block_if_queue_full=True, **({"batching_enabled": True} | producing)
            )
            for value in values[n :: len(self.topic_partitions)]:
                producer.send_async(value, check)
            producer.flush()
            producer.close()
        assert not failures, failures[0]

    def readers(self) -> int:
        subscriptions = (self.broker.admin.stats(name)["subscriptions"] for name in self.topic_partitions)
        return sum(len(found) for found in subscriptions)

    def sent(self) -> int:
        return sum(int(self.broker.admin.stats(name)["msgOutCounter"]) for name in self.topic_partitions)


class TubeMQFeed:
    """A TubeMQ topic on broker 1."""

    def __init__(self, tube: TubeUnderTest, partitions: int) -> None:
        self.tube = tube
        self.topic = tube.topic(partitions)
        self.partitions = range(partitions)
        self.options = {
            "masters": tube.masters,
            "topic": self.topic,
            # Servers that do not ask for it do not look at it; the password is what must not be shown.
            "authUser": "tests",
            "authPassword": "not-looked-at",
        }
        self.straight = self.options
        # Alone, because a group's member reads what the master has given it by then.
        self.stream = self.options | {"startingOffsets": "earliest", "assignment": "client"}
        self._read = tubemq_options(tube.masters, self.topic, READ)

    def publish(self, values: Sequence[bytes]) -> None:
        for n in self.partitions:
            send_to_partition(self._read, self.topic, n, values[n :: len(self.partitions)])
        wait_until_flushed(self._read)

    def readers(self) -> int:
        holders = self.tube.admin.ask_broker(1, "admin_query_broker_all_consumer_info")["dataSet"]
        return sum(holder["topicName"] == self.topic for holder in holders)

    def sent(self) -> int:
        group = reading_group(self._read, 0)
        ends = (self.tube.admin.group_offset(1, group, self.topic, n) for n in self.partitions)
        return max(end or 0 for end in ends) // INDEX_BYTES


class NsqFeed:
    """An NSQ topic on so many brokers."""

    def __init__(self, brokers: Sequence[NsqUnderTest], partitions: int, folder: Path) -> None:
        self.brokers = brokers[:partitions]
        self._format = NsqFormat(self.brokers, folder)
        topic = self._format.new_topic(partitions)
        self._wal = str(folder / topic)
        self._where = {"nsqlookupdHttpAddresses": brokers[0].lookupd_address, "topic": topic, "channel": "c"}
        self.partitions = [broker.tcp_address for broker in self.brokers]
        self._runs = 0
        self._newest = 0

    @property
    def options(self) -> Mapping[str, str]:
        return self.straight | {"walDir": self._wal, "runId": f"run-{self._runs}"}

    @property
    def straight(self) -> Mapping[str, str]:
        # What was published last and no more, so that no read waits for its end.
        end = {"maxRows": f"{self._newest}", "idleTimeout": "30s"} if self._newest else {"idleTimeout": "300ms"}
        return self._where | end

    @property
    def stream(self) -> Mapping[str, str]:
        return self._where | {"walDir": self._wal}

    def publish(self, values: Sequence[bytes]) -> None:
        self._format.publish(self._where["topic"], values)
        self._runs += 1
        self._newest = len(values)

    def readers(self) -> int:
        return sum(stats["client_count"] for stats in self._stats())

    def sent(self) -> int:
        # Who has a message, or has finished it, was sent it; and who has not any more, once for each time.
        return sum(
            stats["message_count"] - stats["depth"] + stats["requeue_count"] + stats["timeout_count"]
            for stats in self._stats()
        )

    def _stats(self) -> list[dict[str, Any]]:
        return [broker.channel_stats(self._where["topic"], "c") for broker in self.brokers]


MESSAGE_ID = "struct<ledger_id:bigint,entry_id:bigint,batch_index:int>"

FORMATS = [
    FormatCase(
        name="pulsar-native",
        source="PulsarNativeDataSource",
        fixture="pulsar",
        schema={
            "key": "binary",
            "value": "binary",
            "topic": "string",
            "partition": "int",
            "message_id": MESSAGE_ID,
            "publish_time": "timestamp",
            "event_time": "timestamp",
            "properties": "map<string,string>",
        },
        secret="authToken",
        misspelt=("startingOffset", "startingOffsets"),
        batch_rows="maxBatchRows",
        open=lambda broker, partitions, _: PulsarFeed(broker, partitions),
        apart={"batching_enabled": False},
    ),
    FormatCase(
        name="tubemq",
        source="TubeMQDataSource",
        fixture="tubemq",
        schema={
            "value": "binary",
            "topic": "string",
            "broker_id": "int",
            "partition": "int",
            "message_id": "bigint",
            "message_time": "timestamp",
            "message_type": "string",
            "attributes": "map<string,string>",
        },
        secret="authPassword",
        misspelt=("startingOffset", "startingOffsets"),
        batch_rows="maxBatchRows",
        open=lambda broker, partitions, _: TubeMQFeed(broker, partitions),
        takes_empty=False,
        plenty=60_000,
    ),
    *(
        FormatCase(
            name="nsq",
            source="NsqDataSource",
            fixture=f"nsq_{broker}_cluster",
            schema={
                "value": "binary",
                "topic": "string",
                "channel": "string",
                "message_id": "string",
                "timestamp": "timestamp",
                "attempts": "int",
                "nsqd": "string",
            },
            secret="authSecret",
            misspelt=("channelx", "channel"),
            batch_rows="maxBatchRows",
            open=NsqFeed,
            takes_empty=False,
            plenty=60_000,
            partition="nsqd",
            flag="createChannel",
            ordered=False,
            rows_stay=False,
            broker=broker,
        )
        for broker in ("embedded", "nsqd")
    ),
]


def load(spark: SparkSession, name: str, options: Mapping[str, str], schema: str | None = None) -> DataFrame:
    """The DataFrame of a format with these options."""
    reader = spark.read.format(name).options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def failure(df: DataFrame) -> str:
    """The text of the exception that the user gets who collects it."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        df.collect()
    return str(caught.value)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = POLL_TIMEOUT_S) -> None:
    """Polls what the broker tells on request only.

    Raises:
        pytest.fail.Exception: it did not come true in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.1)  # the broker offers no event for it


def numbers(count: int) -> list[bytes]:
    """Values that tell themselves apart."""
    return [b"%d" % number for number in range(count)]
