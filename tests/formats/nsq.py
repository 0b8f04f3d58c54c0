"""`nsq` on several brokers, for the common suites."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_mq_source.core.options import READ, STREAM, Scope
from spark_mq_source.nsq.format import NsqFormat as Door
from spark_mq_source.nsq.options import NsqOptions
from tests.fix_brokers import NsqUnderTest
from tests.fix_net import FaultProxy
from tests.formats import Format, schema_of


@dataclass
class NsqFormat(Format):
    """The format nsq, with an nsqd as a partition.

    Topics have two channels, created before messages are published: one to read, one for reads aside. A read without
    an option for its end ends with as many messages as were published, so that it waits for none.
    """

    door = Door()
    name = "nsq"
    schema = {
        "value": "binary",
        "topic": "string",
        "channel": "string",
        "message_id": "string",
        "timestamp": "timestamp",
        "attempts": "int",
        "nsqd": "string",
    }
    position_columns = "topic string, nsqd string, message_id string"
    partition = "nsqd"
    secret = "authSecret"
    takes_empty = False
    ordered = False
    rows_stay = False
    has_positions = False
    reconnects = False
    more_tasks = {"connectionsPerNsqd": "4"}
    # One trigger gets far enough to be stopped half way.
    impatient = {"heartbeatInterval": "1s", "msgTimeout": "4s", "maxInFlight": "1000"}
    open_end = {"idleTimeout": "2s"}
    aside = {"channel": "aside"}

    brokers: Sequence[NsqUnderTest]
    folder: Path
    _published: Counter[str] = field(default_factory=Counter)

    @property
    def service(self) -> tuple[str, int]:
        host, _, port = self.brokers[0].lookupd_address.partition(":")
        return host, int(port)

    @property
    def repeatable(self) -> Mapping[str, str]:
        return {"walDir": str(self.folder / "wal"), "runId": "again"}

    def feed(self, partitions: int) -> NsqFeed:
        return NsqFeed(self, partitions)

    def new_topic(self, partitions: int = 1) -> str:
        topic = self.unused_topic()
        for broker in self.brokers[:partitions]:
            broker.create(topic, "c", "aside")
        return topic

    def unused_topic(self) -> str:
        return self.brokers[0].unused_topic()

    def create(self, topic: str) -> None:
        self.brokers[0].create(topic, "c", "aside")

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
        given = {"nsqlookupdHttpAddresses": f"{host}:{port}", "channel": "c", "operationTimeout": "60s"} | options
        if topic is not None:
            given["topic"] = topic
        if scope == READ and not given.keys() & {"maxRows", "maxSeconds", "idleTimeout"}:
            count = self._published[topic or ""]
            given |= {"maxRows": count, "idleTimeout": "30s"} if count else {"idleTimeout": "300ms"}
        return NsqOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, scope)

    def consume(self, topic: str, count: int) -> list[bytes]:
        return self.read(topic, maxRows=count, idleTimeout="30s").column("value").to_pylist()

    def batches(self, topic: str | None, ddl: str = "value binary", **options: Any) -> Iterator[pa.RecordBatch]:
        if link := options.pop("via", None):
            options["hostMap"] = f"{self.brokers[0].tcp_address}={link.address}"
            if "channel" not in options:
                return self._triggers(topic or "", ddl, **options)
        return super().batches(topic, ddl, **options)

    def _triggers(self, topic: str, ddl: str, **options: Any) -> Iterator[pa.RecordBatch]:
        """Read as a stream does, until all messages have arrived: a batch read ends with its connection."""
        # The timeout of messages in flight on a broken connection must pass: so it is short, and few are in flight.
        how = {"walDir": self.folder / "wal", "msgTimeout": "1s", "maxInFlight": 200, "operationTimeout": "2s"}
        made = self.options(topic, STREAM, **how | options)
        stream, rows = self.door.open_stream(made), 0
        at = stream.initial()
        deadline = time.monotonic() + 120
        while rows < self._published[topic]:
            assert time.monotonic() < deadline, f"{rows} of {self._published[topic]} came"
            end = stream.latest(at)
            if end == at:
                time.sleep(0.02)  # nsqd has no event for a passed timeout
                continue
            for task in stream.ranges(at, end):
                for batch in self.door.read(made, task, schema_of(ddl)):
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


class NsqFeed:
    """A topic on this many brokers."""

    def __init__(self, mq: NsqFormat, partitions: int) -> None:
        self.brokers = mq.brokers[:partitions]
        self.topic = mq.new_topic(partitions)
        self.partitions = [broker.tcp_address for broker in self.brokers]
        self.target = {"nsqdTcpAddresses": ",".join(self.partitions), "topic": self.topic}
        self._mq = mq
        self._wal = str(mq.folder / self.topic)
        self._where = {"nsqlookupdHttpAddresses": mq.brokers[0].lookupd_address, "topic": self.topic, "channel": "c"}
        self._runs = 0
        self._newest = 0

    @property
    def options(self) -> Mapping[str, str]:
        return self.straight | {"walDir": self._wal, "runId": f"run-{self._runs}"}

    @property
    def straight(self) -> Mapping[str, str]:
        # The number of messages published last, so that no read waits for its end.
        end = {"maxRows": f"{self._newest}", "idleTimeout": "30s"} if self._newest else {"idleTimeout": "300ms"}
        return self._where | end

    @property
    def stream(self) -> Mapping[str, str]:
        return self._where | {"walDir": self._wal}

    def publish(self, values: Sequence[bytes], **_: Any) -> None:
        self._mq.publish(self.topic, values)
        self._runs += 1
        self._newest = len(values)

    def readers(self) -> int:
        return sum(stats["client_count"] for stats in self._stats())

    def sent(self) -> int:
        # A message in flight or finished was sent once, and once more for each requeue and timeout.
        return sum(
            stats["message_count"] - stats["depth"] + stats["requeue_count"] + stats["timeout_count"]
            for stats in self._stats()
        )

    def _stats(self) -> list[dict[str, Any]]:
        return [broker.channel_stats(self.topic, "c") for broker in self.brokers]
