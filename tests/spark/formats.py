"""What the Spark-facing suite needs to know of a format: a topic of its own, how to fill it, and who still reads it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from spark_mq_source.core.options import READ
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from spark_mq_source.tubemq.reader import reading_group
from tests.behaviours.formats import send_to_partition, tubemq_options, wait_until_flushed
from tests.fix_brokers import PulsarUnderTest
from tests.fix_tubemq import TubeUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_TIMEOUT_S = 30.0


class Feed(Protocol):
    """One topic (or what a format calls it) that nobody else uses.

    Attributes:
        options: what reads it: the format's options with their values.
    """

    options: Mapping[str, str]

    def publish(self, values: Sequence[bytes]) -> None:
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
        open: makes a feed with this many partitions.
        takes_empty: whether a message may hold nothing.
        plenty: more messages of 100 bytes than a broker sends ahead to somebody who takes none.
    """

    name: str
    source: str
    fixture: str
    schema: Mapping[str, str]
    secret: str
    misspelt: tuple[str, str]
    batch_rows: str
    open: Callable[[Any, int], Feed]
    takes_empty: bool = True
    plenty: int = 400_000


class PulsarFeed:
    """A Pulsar topic; `partitions=0` makes one that is not partitioned."""

    def __init__(self, broker: PulsarUnderTest, partitions: int) -> None:
        self.broker = broker
        self.topic = broker.topic(partitions)
        self.topic_partitions = [f"{self.topic}-partition-{n}" for n in range(partitions)] or [self.topic]
        self.options = {"serviceUrl": broker.service_url, "topic": self.topic}

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
        self.partitions = partitions
        self.options = {
            "masters": tube.masters,
            "topic": self.topic,
            # Servers that do not ask for it do not look at it; the password is what must not be shown.
            "authUser": "tests",
            "authPassword": "not-looked-at",
        }
        self._read = tubemq_options(tube.masters, self.topic, READ)

    def publish(self, values: Sequence[bytes]) -> None:
        for n in range(self.partitions):
            send_to_partition(self._read, self.topic, n, values[n :: self.partitions])
        wait_until_flushed(self._read)

    def readers(self) -> int:
        holders = self.tube.admin.ask_broker(1, "admin_query_broker_all_consumer_info")["dataSet"]
        return sum(holder["topicName"] == self.topic for holder in holders)

    def sent(self) -> int:
        group = reading_group(self._read, 0)
        ends = (self.tube.admin.group_offset(1, group, self.topic, n) for n in range(self.partitions))
        return max(end or 0 for end in ends) // INDEX_BYTES


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
        open=PulsarFeed,
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
        open=TubeMQFeed,
        takes_empty=False,
        plenty=60_000,
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
