"""A Pulsar cluster of three brokers and three bookies under chaos: streams, batches, queues, and all guarantees."""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pulsar as official
import pyarrow as pa

from brokers.pulsar import distribution, offloaders
from brokers.pulsar_cluster import PulsarCluster
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.format import PulsarFormat
from tests.chaos.faults import Kind, frozen, link_faults
from tests.chaos.loads import PAUSE_S, Batches, Load, Stream, Writing, differences
from tests.fix_net import FaultProxy
from tests.formats.pulsar import MESSAGE_ID

NAMESPACE = "public/chaos"
SOURCE_NAMESPACE = "public/source"
SOURCE = f"persistent://{SOURCE_NAMESPACE}/source"
TRIMMED_NAMESPACE = "public/trimmed"
"""Without retention: brokers delete the entries that the subscription of its only stream has acknowledged."""
TRIMMED = f"persistent://{TRIMMED_NAMESPACE}/source"
PARTITIONS, MAX_PARTITIONS = 3, 6
GUARANTEES = ("at-least-once", "exactly-once", "transaction")
PROXIED = "exactly-once"
"""The query that connects only through the Pulsar proxy."""
TRANSACTION_NAMESPACE = "public/transactions"
"""Its bundles are neither unloaded nor split; its topics are unloaded.

A coordinator that commits a transaction looks its topics up to write the markers. For a topic whose bundle is being
unloaded, the answer is MetadataError, which the coordinator treats as a deleted topic (`TransactionBufferHandlerImpl`,
4.0.8). It reports the commit and writes no marker, and a later transaction aborts this one on the topic (`Successes to
abort low water mark`): rows of a committed transaction are lost, each time.
"""
ROW = f"value binary, partition int, {MESSAGE_ID}"
RATE, TRIMMED_RATE = 200, 40
"""Messages per second."""
REPEAT = 0.05
"""Probability that a driver is killed after it has written a batch and before it records that."""

Message = tuple[int, int, int, int, bytes]
"""Partition, ledger, entry, index in its batch, value."""


def message_of(row: dict[str, Any]) -> Message:
    """Return a row as a message."""
    return (row["partition"], *row["message_id"].values(), row["value"])


def topic_of(guarantee: str) -> str:
    """Return the topic written with a guarantee."""
    return f"persistent://{TRANSACTION_NAMESPACE if guarantee == 'transaction' else NAMESPACE}/{guarantee}"


class Publisher(Load):
    """The official client, which publishes numbers; resent messages are duplicates.

    On a topic that deduplicates it loses messages: after faults of brokers some hundreds were acknowledged as
    duplicates and stored nowhere (pulsar-client 3.13, broker 4.0.8).

    Attributes:
        acknowledged: the values that the brokers have acknowledged, and their message ids.
        uncounted: the number of messages in entries that the topic does not count, see `Scene.check`.
    """

    def __init__(self, name: str, seed: int, service_url: str, topic: str, rate: int) -> None:
        super().__init__(name, seed)
        self._client = official.Client(service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
        self._producer = self._client.create_producer(
            topic, producer_name=name, send_timeout_millis=0, block_if_queue_full=True, batching_enabled=True
        )
        self._rate = rate
        self.acknowledged: dict[bytes, str] = {}
        self.uncounted = 0
        self._number = 0

    def report(self) -> str:
        """Return the number of messages sent, for the report."""
        return f"{self._number} messages, {len(self.acknowledged)} acknowledged, {self.uncounted} uncounted"

    def step(self) -> bool:
        """Publish the messages of a tenth of a second; at the end wait for all answers."""
        if self.finishing:
            self._producer.flush()
            return False
        for _ in range(self._rate // 10):
            value = b"%d" % self._number
            self._number += 1
            self._producer.send_async(value, lambda result, at, value=value: self._answered(result, at, value))
        self._finishing.wait(0.1)
        return True

    def _answered(self, result: Any, at: Any, value: bytes) -> None:
        if result == official.Result.Ok:
            self.acknowledged[value] = str(at)
        else:
            self.failures[str(result)] += 1

    def close(self) -> None:
        """Close the client."""
        self._client.close()


class Copy(Stream):
    """A query that copies the source to a separate topic."""

    def __init__(self, name: str, seed: int, given: dict[str, str], sink: dict[str, str], *, repeat: float) -> None:
        super().__init__(name, seed, PulsarFormat(), given, ROW)
        self.sink = Writing(PulsarFormat(), sink, f"{name}-{seed}", self.dice)
        self._repeat = repeat

    def write(self, batch_id: int, tasks: Sequence[pa.Table]) -> None:
        """Write the batch, with one task for each range."""
        self.sink.write(batch_id, [table.column("value").to_pylist() for table in tasks], repeat=self._repeat)


class Scene:
    """The cluster, its loads and its faults."""

    name = "pulsar"

    def __init__(self, folder: Path, seed: int) -> None:
        self._stack = contextlib.ExitStack()
        self.cluster = PulsarCluster(folder, overrides=offloading_to(folder / "offloaded"), proxy=True)
        self._seed = seed
        self._links: dict[str, FaultProxy] = {}
        self.loads: list[Load] = []

    def start(self) -> None:
        """Start the cluster and prepare topics and loads."""
        cluster = self._stack.enter_context(self.cluster)
        with contextlib.closing(cluster.admin) as admin:
            admin.create_namespace(SOURCE_NAMESPACE)
            for namespace in (NAMESPACE, TRANSACTION_NAMESPACE):
                admin.create_namespace(namespace)
                admin.set_deduplication(namespace, enabled=True)
            admin.create_namespace(TRIMMED_NAMESPACE, keep_data=False)
            admin.create_topic(TRIMMED, PARTITIONS)
            # A message that is published before the subscription exists may be deleted at once.
            admin.create_subscription(TRIMMED, "pin")
            admin.create_topic(SOURCE, PARTITIONS)
            for guarantee in GUARANTEES:
                admin.create_topic(topic_of(guarantee), PARTITIONS)
        for number, port in enumerate(cluster.proxied_ports):
            link = FaultProxy("127.0.0.1", cluster.broker_port(number), listen_port=port)
            self._links[f"broker-{number}"] = self._stack.enter_context(link)
        timeouts = {"operationTimeout": "20s", "keepAliveInterval": "5s"}
        links = ",".join(link.address for link in self._links.values())
        access = timeouts | {"serviceUrl": f"pulsar://{links}", "listenerName": "proxied"}
        limited = {"topic": SOURCE, "startingOffsets": "earliest", "maxEntriesPerTrigger": "300"}
        source = access | limited
        queue = access | {
            "topic": SOURCE,
            "subscription": "queue",
            "subscriptionType": "shared",
            "initialPosition": "earliest",
            "walDir": str(self.cluster.folder / "wal"),
            "idleTimeout": "2s",
        }
        format_ = PulsarFormat()
        self.publisher = Publisher("publisher", self._seed, cluster.service_url, SOURCE, RATE)
        self.refiller = Publisher("refiller", self._seed, cluster.service_url, TRIMMED, TRIMMED_RATE)
        self.trimmed = Stream("trimmed", self._seed, format_, source | {"topic": TRIMMED, "subscription": "pin"}, ROW)
        self.batches = Batches(self._seed, format_, access | {"topic": SOURCE, "startingOffsets": "earliest"}, ROW)
        self.stream = Stream("stream", self._seed, format_, source | {"subscription": "pin"}, ROW)
        self.queue = Stream("queue", self._seed, format_, queue, ROW)
        self.copies = {}
        for guarantee in GUARANTEES:
            way = timeouts | {"serviceUrl": cluster.proxy_url} if guarantee == PROXIED else access
            sink = way | {"topic": topic_of(guarantee), "deliveryGuarantee": guarantee, "sendTimeout": "60s"}
            # Transactions are aborted with their tasks; a repeated batch is stored twice.
            repeat = REPEAT
            if guarantee == "transaction":
                sink["transactionTimeout"], repeat = "2m", 0.0
            self.copies[guarantee] = Copy(guarantee, self._seed, way | limited, sink, repeat=repeat)
        readers = [self.batches, self.stream, self.queue, self.trimmed, *self.copies.values()]
        self.loads = [self.publisher, self.refiller, *readers]

    def stop(self) -> None:
        """Stop the cluster."""
        self._stack.close()

    # -- faults

    def kinds(self) -> list[Kind]:
        """Return the kinds of faults."""
        brokers = [name for name in self.cluster.servers if name.startswith("broker")]
        bookies = [name for name in self.cluster.servers if name.startswith("bookie")]
        processes = {name: lambda server=server: server.process for name, server in self.cluster.servers.items()}
        freeze = frozen(processes)
        topics = [SOURCE, *map(topic_of, GUARANTEES)]
        return [
            Kind("kill", "brokers", brokers, (0, 15), self._killed, 2),
            Kind("kill", "bookies", bookies, (0, 15), self._killed, 2),
            Kind("freeze", "brokers", brokers, (1, 40), freeze, 2),
            Kind("freeze", "bookies", bookies, (1, 30), freeze),
            Kind("kill", "proxy", ["proxy"], (0, 10), self._killed, 0.5),
            Kind("freeze", "proxy", ["proxy"], (1, 30), freeze, 0.5),
            Kind("freeze", "zookeeper", ["zookeeper"], (1, 6), freeze),
            Kind("unload", "topics", topics, (0, 0), self._unloaded, 2),
            Kind("unload namespace", "topics", [NAMESPACE, SOURCE_NAMESPACE], (0, 0), self._unloaded_namespace),
            Kind("split bundle", "topics", [NAMESPACE, SOURCE_NAMESPACE], (0, 0), self._split, 0.5),
            Kind("add partition", "topics", [SOURCE], (0, 0), self._grown, 0.5),
            Kind("trim", "topics", [TRIMMED], (0, 0), self._trimmed, 2),
            Kind("offload", "topics", [SOURCE], (0, 0), self._offloaded),
            Kind("link", "links", brokers, (0, 20), link_faults(self._links), 3),
        ]  # fmt: skip

    @contextlib.contextmanager
    def _killed(self, name: str, _: random.Random) -> Iterator[None]:
        server = self.cluster.servers[name]
        server.kill()
        try:
            yield
        finally:
            server.start()
            if name.startswith("broker"):
                self.cluster.wait_for_broker(int(name.rpartition("-")[2]))

    @contextlib.contextmanager
    def _unloaded(self, topic: str, dice: random.Random) -> Iterator[None]:
        with contextlib.closing(self.cluster.admin) as admin:
            admin.unload(f"{topic}-partition-{dice.randrange(PARTITIONS)}")
        yield

    @contextlib.contextmanager
    def _unloaded_namespace(self, namespace: str, _: random.Random) -> Iterator[None]:
        with contextlib.closing(self.cluster.admin) as admin:
            admin.unload_namespace(namespace)
        yield

    @contextlib.contextmanager
    def _split(self, namespace: str, dice: random.Random) -> Iterator[None]:
        with contextlib.closing(self.cluster.admin) as admin:
            boundaries = admin.request("GET", f"namespaces/{namespace}/bundles")["boundaries"]
            begin = dice.randrange(len(boundaries) - 1)
            bundle = f"{boundaries[begin]}_{boundaries[begin + 1]}"
            admin.request("PUT", f"namespaces/{namespace}/{bundle}/split?unload=true")
        yield

    @contextlib.contextmanager
    def _trimmed(self, topic: str, dice: random.Random) -> Iterator[None]:
        """Open a new ledger, and delete those before the subscription, which the stream has read."""
        partition = f"{topic}-partition-{dice.randrange(PARTITIONS)}"
        with contextlib.closing(self.cluster.admin) as admin:
            admin.unload(partition)
            admin.trim(partition)
        yield

    @contextlib.contextmanager
    def _offloaded(self, topic: str, dice: random.Random) -> Iterator[None]:
        """Move the closed ledgers to files, and delete them from the bookies."""
        partition = f"{topic}-partition-{dice.randrange(PARTITIONS)}"
        with contextlib.closing(self.cluster.admin) as admin:
            admin.unload(partition)
            admin.offload(partition)
            admin.trim(partition)
        yield

    @contextlib.contextmanager
    def _grown(self, topic: str, _: random.Random) -> Iterator[None]:
        with contextlib.closing(self.cluster.admin) as admin:
            path = topic.replace("://", "/")
            now = int(admin.request("GET", f"{path}/partitions")["partitions"])
            if now < MAX_PARTITIONS:
                admin.add_partitions(topic, now + 1)
        yield

    # -- the end of a run

    def heal(self) -> None:
        """Run all servers, and restart the brokers.

        A broker that was frozen while it unloaded a bundle may never finish (4.0.8), until an operator restarts it.
        """
        for name, server in self.cluster.servers.items():
            if name.startswith("broker"):
                server.kill()
            server.start()
        for number in range(self.cluster.brokers):
            self.cluster.wait_for_broker(number)

    def _end_transactions(self) -> None:
        """Wait until the transactions of failed commits have timed out: an open one hides the entries after it.

        A coordinator's timeouts run only once a client has connected to it since the start of its broker.
        """
        sink = self.copies["transaction"].sink
        topics = [f"{topic_of('transaction')}-partition-{number}" for number in range(PARTITIONS)]
        options = sink.format.parse_write_options(sink.given, ["value"])
        with PulsarClient(options) as client, contextlib.closing(self.cluster.admin) as admin:
            for number in range(client.fetch_coordinators()):
                retrying(partial(client.open_coordinator, number), deadline=Deadline.after_ms(60_000))
            while admin.open_transactions(topics):
                time.sleep(PAUSE_S)  # there is no event for this

    def _uncounted(self, source: Sequence[Message]) -> set[Message]:
        """Return the messages in entries that are in BookKeeper but not counted by the topic.

        If ZooKeeper fails while a broker replaces a bookie, the broker counts the entries that it has acknowledged, and
        writes the others again to its next ledger. Readers and subscriptions get both, unless they restart between the
        two: then they continue with the next ledger (4.0.8).
        """
        counts: dict[tuple[int, int], int] = {}
        with contextlib.closing(self.cluster.admin) as admin:
            for partition in {message[0] for message in source}:
                ledgers = admin.ledgers(f"{SOURCE}-partition-{partition}")
                counts |= {(partition, ledger): entries for ledger, entries in ledgers}
        # Entries of a ledger that is not listed do not count as uncounted.
        return {message for message in source if message[2] >= counts.get(message[:2], message[2] + 1)}

    def check(self) -> Iterator[str]:
        """Yield the rows that the loads have lost, or have more than once."""
        self._end_transactions()
        client = official.Client(self.cluster.service_url, logger=official.ConsoleLogger(official.LoggerLevel.Error))
        try:
            source = stored(client, SOURCE)
            copies = {name: stored(client, topic_of(name)) for name in GUARANTEES}
        finally:
            client.close()
        values = [message[-1] for message in source]
        acknowledged = self.publisher.acknowledged
        if lost := sorted(acknowledged.keys() - set(values), key=int):
            some = [(value, acknowledged[value]) for value in lost[:: 1 + len(lost) // 12]]
            yield f"source: {len(lost)} lost by the cluster or the publisher, such as {some}"
        found = [message_of(row) for row in self.trimmed.rows]
        if lost := self.refiller.acknowledged.keys() - {message[-1] for message in found}:
            yield f"trimmed: {len(lost)} missing, such as {sorted(lost)[:5]}"
        if disorder := first_disorder(found):
            yield f"trimmed: {disorder}"
        uncounted = self._uncounted(source)
        self.publisher.uncounted = len(uncounted)
        counted_values = {message[-1] for message in source if message not in uncounted}
        if lost := {message[-1] for message in uncounted} - counted_values:
            yield f"source: {len(lost)} only in entries that the topic does not count, such as {sorted(lost)[:5]}"
        for load in (self.stream, self.queue, *self.copies.values()):
            found = [message_of(row) for row in load.rows]
            # A read that was interrupted in uncounted entries continues after them, as a queue does.
            left_out = uncounted - set(found)
            for problem in differences([message for message in source if message not in left_out], found):
                yield f"{load.name}: {problem}"
            if load is not self.queue and (disorder := first_disorder(found)):
                yield f"{load.name}: {disorder}"
        for number, rows in enumerate(self.batches.reads):
            found = [message_of(row) for row in rows]
            for partition in range(MAX_PARTITIONS):
                part = [message for message in found if message[0] == partition]
                left_out = uncounted - set(part)
                whole = [message for message in source if message[0] == partition and message not in left_out]
                if part != whole[: len(part)]:
                    yield f"batch {number}: partition {partition} is not a prefix of the topic"
        for name, copy in self.copies.items():
            expected = [row["value"] for row in copy.rows]
            written = [message[-1] for message in copies[name]]
            if name != "exactly-once":
                # Values that were written again may be duplicates.
                allowed = Counter(written) - Counter(expected)
                written = list((Counter(written) - (allowed & copy.sink.repeated)).elements())
            if name == "at-least-once":
                written = list((Counter(written) & Counter(expected)).elements())
            for problem in differences(expected, written):
                yield f"{name}, written: {problem}"


def offloading_to(folder: Path) -> dict[str, str]:
    """Return a broker's settings for offloading to files; bookies may delete the ledgers a second later."""
    return {
        "offloadersDirectory": str(offloaders()),
        "managedLedgerOffloadDriver": "filesystem",
        "fileSystemURI": folder.as_uri(),
        "fileSystemProfilePath": str(distribution() / "conf" / "filesystem_offload_core_site.xml"),
        "managedLedgerOffloadDeletionLagMs": "1000",
    }


def stored(client: Any, topic: str) -> list[Message]:
    """Return all messages of a topic as the official client reads them."""
    found: list[Message] = []
    for name in client.get_topic_partitions(topic):
        partition = int(name.rpartition("-")[2])
        reader = client.create_reader(name, official.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(60_000)
            at = message.message_id()
            found.append((partition, at.ledger_id(), at.entry_id(), at.batch_index(), message.data()))
        reader.close()
    return found


def first_disorder(messages: Sequence[Message]) -> str | None:
    """Return the first pair of a partition's messages that is not in order, as text."""
    by_partition = sorted(messages, key=lambda message: message[0])
    for before, after in itertools.pairwise(by_partition):
        if before[0] == after[0] and before[:4] >= after[:4]:
            return f"{after} after {before}"
    return None
