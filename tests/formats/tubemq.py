"""`tubemq` on a cluster, for the common suites and its own tests."""

from __future__ import annotations

import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from brokers.tubemq_admin import Topic
from spark_mq_source.core.options import READ, Scope
from spark_mq_source.tubemq.client import session as tubemq_session
from spark_mq_source.tubemq.client.bounds import fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.members import ProducerMember
from spark_mq_source.tubemq.client.reading_groups import reading_group
from spark_mq_source.tubemq.format import TubeMQFormat as Door
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY, TubeMQOptions
from spark_mq_source.tubemq.protocol.commands import SendMessage
from tests.fix_net import HOST, FaultProxy
from tests.fix_tubemq import TubeUnderTest
from tests.formats import Format

if TYPE_CHECKING:
    from tests.behaviours.tubemq.java_client import TubeJavaClient

SENDS_AT_ONCE = 1000
"""So few that a busy machine answers them within the request's timeout."""


class _BrokerLink(FaultProxy):
    """A link to a TubeMQ broker. Clients cannot be directed to it: they connect to the address from the masters.

    So while it exists, all connections of this process to that broker go to it.
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
class TubeMQFormat(Format):
    """The format tubemq on broker 1 of a cluster. `java` starts the official client, or returns the running one."""

    door = Door()
    name = "tubemq"
    schema = {
        "value": "binary",
        "topic": "string",
        "broker_id": "int",
        "partition": "int",
        "message_id": "bigint",
        "message_time": "timestamp",
        "message_type": "string",
        "attributes": "map<string,string>",
    }
    position_columns = "topic string, broker_id int, partition int, message_id bigint"
    secret = "authPassword"
    takes_empty = False
    partitions_have_ends = False  # the partitions of one store share an index
    impatient = {"requestTimeout": "1s"}

    tube: TubeUnderTest
    java: Callable[[], TubeJavaClient]

    @property
    def service(self) -> tuple[str, int]:
        host, _, port = self.tube.masters.partition(":")
        return host, int(port)

    def feed(self, partitions: int) -> TubeMQFeed:
        return TubeMQFeed(self.tube, partitions)

    def new_topic(self, partitions: int = 1) -> str:
        return self.tube.topic(partitions)

    def unused_topic(self) -> str:
        return self.tube.group("absent")

    def create(self, topic: str) -> None:
        self.tube.admin.add_topics([Topic(topic, 1, 1, (1,), settings={"unflushThreshold": "1"})])
        self.tube.cluster.wait_for_topics([topic])

    def topics(self) -> list[str]:
        return sorted(entry["topicName"] for entry in self.tube.admin.query("admin_query_topic_info"))

    def publish(self, topic: str, values: Sequence[bytes], *, partition: int | None = None) -> None:
        if partition is None:
            places = self.java().produce(self.tube.cluster, topic, list(values))
            # The official client has many messages in flight: another order is no fault of the read.
            for at in {(place.broker_id, place.partition) for place in places}:
                stored = [place.offset for place in places if (place.broker_id, place.partition) == at]
                assert stored == sorted(stored), f"{topic} at {at} was not stored in the order of sending"
        else:
            # The official client does not choose the partition.
            send_to_partition(self.options(topic), topic, partition, values)
        wait_until_flushed(self.options(topic), len(values))

    def consume(self, topic: str, count: int) -> list[bytes]:
        return [m.value for m in self.java().consume(self.tube.cluster, topic, self.tube.group(), count)]

    def options(self, topic: str | None, **options: Any) -> TubeMQOptions:
        options.pop("via", None)  # all connections go through it while it exists
        return tubemq_options(self.tube.masters, topic, READ, **options)

    def proxy(self) -> FaultProxy:
        host, _, port = self.tube.cluster.broker(1).address.partition(":")
        return _BrokerLink(host, int(port))

    def assert_each_once(self, rows: Sequence[dict[str, Any]]) -> None:
        # Ids identify messages of one partition, but have no order.
        seen = Counter((row["topic"], row["broker_id"], row["partition"], row["message_id"]) for row in rows)
        assert [key for key, times in seen.items() if times > 1] == []


class TubeMQFeed:
    """A topic on broker 1."""

    def __init__(self, tube: TubeUnderTest, partitions: int) -> None:
        self.tube = tube
        self.topic = tube.topic(partitions)
        self.partitions = range(partitions)
        self.options = {
            "masters": tube.masters,
            "topic": self.topic,
            # Servers without authentication ignore it; the password is the text that must not be shown.
            "authUser": "tests",
            "authPassword": "not-looked-at",
        }
        self.straight = self.target = self.options
        # Without a group, because a member of a group reads only the partitions that the master has assigned by then.
        self.stream = self.options | {"startingOffsets": "earliest", "assignment": "client"}
        self._read = tubemq_options(tube.masters, self.topic, READ)

    def publish(self, values: Sequence[bytes], **_: Any) -> None:
        for n in self.partitions:
            send_to_partition(self._read, self.topic, n, values[n :: len(self.partitions)])
        self.wait_until_flushed()

    def wait_until_flushed(self, at_least: int = 0) -> None:
        """Wait until readers of flushed messages see all messages, and this many."""
        wait_until_flushed(self._read, at_least)

    def readers(self) -> int:
        holders = self.tube.admin.ask_broker(1, "admin_query_broker_all_consumer_info")["dataSet"]
        return sum(holder["topicName"] == self.topic for holder in holders)

    def sent(self) -> int:
        group = reading_group(self._read, 0)
        ends = (self.tube.admin.group_offset(1, group, self.topic, n) for n in self.partitions)
        return max(end or 0 for end in ends) // INDEX_BYTES


def tubemq_options(masters: str, topic: str | None, scope: Scope, **options: Any) -> TubeMQOptions:
    """Return options of `spark.read.format("tubemq").options(...)`; `service=(host, port)` is another master."""
    if service := options.pop("service", None):
        masters = "{}:{}".format(*service)
    given = {"masters": masters} | options
    if topic is not None:
        given["topic"] = topic
    return TubeMQOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, scope)


def wait_until_flushed(options: TubeMQOptions, at_least: int = 0) -> None:
    """Wait until readers of flushed messages see all that the brokers have, and this many messages."""
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
            time.sleep(0.02)  # a broker has no event for it


def send_to_partition(options: TubeMQOptions, topic: str, partition: int, values: Sequence[bytes]) -> None:
    """Publish values to one partition of broker 1, in order."""
    with TubeMQClient(options) as client:
        producer = client.enter(ProducerMember(client.masters, [topic]))
        broker = producer.meta.brokers[1]
        sends = [
            SendMessage(producer.client_id, topic, partition, value, 0, zlib.crc32(value) & 0x7FFFFFFF, 0)
            for value in values
        ]
        for start in range(0, len(sends), SENDS_AT_ONCE):
            for answer in client.broker(broker).call(*sends[start : start + SENDS_AT_ONCE]):
                client.wait(answer, "send")
        producer.close()
