"""A TubeMQ cluster of two masters and three brokers under chaos: a writer, streams, a group, and batches."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from brokers.tubemq import Server, TubeCluster
from brokers.tubemq_admin import Topic
from spark_mq_source.tubemq.format import TubeMQFormat
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from tests.behaviours.tubemq.java_client import TubeJavaClient
from tests.chaos.faults import Kind, Victim, frozen
from tests.chaos.loads import Batches, Load, Numbers, Row, Stream, differences

BROKERS, MASTERS = 3, 2
TOPIC = Topic("chaos", partitions=2, settings={"unflushThreshold": "1"})
ROW = "value binary, broker_id int, partition int, message_id bigint"


def message_of(row: Row) -> tuple[int, int, int, bytes]:
    """Return a row as a message: broker, partition, id, value."""
    return row["broker_id"], row["partition"], row["message_id"], row["value"]


class Scene:
    """The cluster, its loads and its faults. The brokers flush before they acknowledge."""

    name = "tubemq"

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self.cluster = TubeCluster(
            folder / "cluster",
            master_count=MASTERS,
            broker_count=BROKERS,
            unbuffered=range(1, BROKERS + 1),
            topics=[TOPIC],
        )
        self._java_log = folder / "java.log"
        self.loads: list[Load] = []

    def start(self) -> None:
        """Start the cluster and prepare the loads."""
        self.cluster.start()
        format_ = TubeMQFormat()
        access = {"masters": self.cluster.master_addresses, "topic": TOPIC.name, "operationTimeout": "60s"}
        earliest = access | {"startingOffsets": "earliest"}
        self.writer = Numbers("writer", self._seed, format_, access | {"sendTimeout": "60s"})
        self.streams = [
            Stream("stream", self._seed, format_, earliest | {"assignment": "client"}, ROW),
            Stream("group", self._seed, format_, earliest | {"assignment": "server", "group": "chaos"}, ROW),
        ]
        self.batches = Batches(self._seed, format_, earliest, ROW)
        self.loads = [self.writer, self.batches, *self.streams]

    def stop(self) -> None:
        """Stop the cluster."""
        self.cluster.kill()

    def kinds(self) -> list[Kind]:
        """Return the kinds of faults."""
        masters = [master.name for master in self.cluster.masters]
        brokers = [broker.name for broker in self.cluster.brokers]
        servers = {server.name: server for server in self.cluster.servers}

        def process(name: str) -> Victim | None:
            return servers[name].process  # type: ignore[return-value] # a ManagedProcess

        freeze = frozen({name: lambda name=name: process(name) for name in servers})  # type: ignore[misc]
        return [
            Kind("kill", "masters", masters, (0, 10), self._killed_master, 2),
            Kind("kill", "brokers", brokers, (0, 15), self._killed_broker, 2),
            Kind("freeze", "masters", masters, (1, 30), freeze),
            Kind("freeze", "brokers", brokers, (1, 30), freeze, 2),
            Kind("freeze", "zookeeper", ["zookeeper"], (1, 3), freeze, 0.5),
        ]

    @contextlib.contextmanager
    def _killed_master(self, name: str, _: random.Random) -> Iterator[None]:
        master = self._server(name)
        master.kill()
        try:
            yield
        finally:
            self.cluster.start_server(master)

    @contextlib.contextmanager
    def _killed_broker(self, name: str, dice: random.Random) -> Iterator[None]:
        broker = self._server(name)
        if dice.random() < 0.5:
            broker.kill()
        else:
            broker.stop()
        try:
            yield
        finally:
            self.cluster.start_server(broker)

    def _server(self, name: str) -> Server:
        return next(server for server in self.cluster.servers if server.name == name)

    def heal(self) -> None:
        """Run all servers: a broker starts only while a master is active."""
        for server in self.cluster.servers:
            if server in self.cluster.brokers:
                self.cluster.wait_for_leader()
            if not server.alive or server.gave_up:
                server.kill()
                self.cluster.start_server(server)
        self.cluster.wait_for_topics([TOPIC.name])

    def check(self) -> Iterator[str]:
        """Yield the rows that the loads have lost, or have more than once."""
        # The partitions of a store share its index.
        ranges = [self.cluster.admin.topic_range(broker_id, TOPIC.name, 0) for broker_id in range(1, BROKERS + 1)]
        count = sum((last - first) // INDEX_BYTES for first, last in ranges)
        with contextlib.closing(TubeJavaClient(self._java_log)) as java:
            messages = java.consume(self.cluster, TOPIC.name, "truth", count, balanced=True)
        source = [message.value for message in messages]
        written = Counter(source)
        more = written - Counter(self.writer.values)
        for problem in differences(self.writer.values, list((written - more).elements())):
            yield f"written: {problem}"
        if unknown := set(more) - set(self.writer.values):
            yield f"written: {len(unknown)} that were never written, such as {sorted(unknown)[:5]}"
        for load in self.streams:
            found = [message_of(row) for row in load.rows]
            if twice := [message for message, times in Counter(found).items() if times > 1]:
                yield f"{load.name}: {len(twice)} more than once, such as {twice[:5]}"
            for problem in differences(source, [message[-1] for message in found]):
                yield f"{load.name}: {problem}"
        for number, rows in enumerate(self.batches.reads):
            found = [message_of(row) for row in rows]
            if len(set(found)) < len(found):
                yield f"batch {number}: some messages more than once"
            if number and len(found) < len(self.batches.reads[number - 1]):
                yield f"batch {number}: fewer messages than the batch before"
