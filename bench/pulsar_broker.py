"""Fast publishing to topics: prepared batches over one raw socket, bytes in flight bounded, every receipt counted.

The clients' own producers reach 0.02 to 1 M messages/s, which would make filling a topic the longest part of a
benchmark. Here every batch entry is encoded, compressed and checksummed once and sent again and again; only the
sequence id in front of it changes. So its rate is also the maximum of a broker on one connection.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from bench.runner import Setup
from bench.sources import OURS
from bench.values import SEED, make_values
from brokers.pulsar import PulsarStandalone
from brokers.pulsar_admin import CONFLICT, AdminError, PulsarAdmin
from spark_mq_source.pulsar.payload.encoder import EntryEncoder, open_rows
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.spark._compat import arrow_schema
from tests.vectors.raw_connection import RawConnection

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAMESPACE = "public/bench"

BATCH_BYTES = 100_000
"""Payload of a batch before compression: the size at which broker 4.0.8 accepts the most messages a second."""

IN_FLIGHT_BYTES = 16_000_000
"""Sent and not yet acknowledged: more only lengthens the broker's queue."""

VARIANTS = 64
"""Different batches sent in turn: 6.4 MB, more than the window of a compressor or the inner caches of a processor."""

RECEIVE_BYTES = 1 << 20
A_MESSAGE = bytes(8) + b"\x08\x09"
"""The beginning of a frame with an entry: two sizes, and the type of its command."""

TRICKLE_MESSAGES = 10
"""Messages of a batch of `trickle`: the messages of 10 ms at 1,000 a second."""

TRICKLE_BATCHES_DUE = 10
"""Batches of `trickle` without receipt, so many that the broker's disk does not set the rate."""


NULL_BATCHES = 16
"""Batches that the null source repeats: some 32 MB, so that it does not read from the processor's cache."""

WARM_UP_READS = 8
"""In the first ones a broker takes three times the processor time that it takes once its JVM has compiled the code."""

PRODUCERS_AT_ONCE = 200
"""Producers at once on one connection of `publish_one_each`."""

_serial = itertools.count()


@dataclass(frozen=True, slots=True)
class Workload:
    """The content of one topic.

    Attributes:
        value_bytes: size of each message's value.
        codec: `none` or `lz4`.
        partitions: topic-partitions; messages go to them in turn, a batch at a time.
        messages: how many in all.
    """

    value_bytes: int
    codec: str
    partitions: int
    messages: int

    @property
    def topic(self) -> str:
        """The full topic name.

        Example:
            >>> Workload(100, "lz4", 4, 1000).topic
            'persistent://public/bench/v100-lz4-p4-n1000'
        """
        return f"persistent://{NAMESPACE}/v{self.value_bytes}-{self.codec}-p{self.partitions}-n{self.messages}"

    @property
    def batch_messages(self) -> int:
        """Messages in a batch.

        Example:
            >>> Workload(100, "none", 1, 1).batch_messages, Workload(1024, "none", 1, 1).batch_messages
            (1000, 97)
        """
        return max(1, BATCH_BYTES // self.value_bytes)


@dataclass(frozen=True)
class Broker:
    """A running standalone broker, and files of this run."""

    standalone: PulsarStandalone
    setup: Setup

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the binary protocol."""
        host, _, port = self.standalone.service_url.rpartition("/")[2].partition(":")
        return host, int(port)

    def options(self, topic: str) -> dict[str, str]:
        """Return the options of a read or a write."""
        return {"serviceUrl": self.standalone.service_url, "topic": topic}

    def fill(self, workload: Workload) -> None:
        """Publish the messages to read, unless they are stored already."""
        if create_topic(self.standalone.admin_url, workload.topic, workload.partitions):
            publish(self.address, workload.topic, workload)
            # Written data is flushed now, not during the first reads, whose rate would be a sixth lower.
            os.sync()

    @contextlib.contextmanager
    def topic(self, partitions: int, namespace: str = NAMESPACE) -> Iterator[str]:
        """Yield a new topic, which is deleted afterwards, so that the disk does not fill."""
        topic = f"persistent://{namespace}/written-{os.getpid()}-{next(_serial)}"
        create_topic(self.standalone.admin_url, topic, partitions)
        yield topic
        self.standalone.admin.delete_topic(topic, partitioned=True)

    def null_file(self, workload: Workload, columns: str | None) -> str:
        """Return a file of batches that our reader makes of this topic, for the null source; made once."""
        kind = "default" if columns is None else "value"
        path = self.setup.folder / f"null-{workload.topic.rpartition('/')[2]}-{kind}.arrow"
        self.keep_batches(path, self.options(workload.topic), columns)
        return str(path)

    def keep_batches(self, path: Path, given: Mapping[str, str], columns: str | None) -> None:
        """Write the first batches that our reader makes with these options, unless the file exists."""
        if not path.exists():
            format_ = OURS["pulsar-native"]({}).format
            schema = arrow_schema(spark_schema(columns))
            options = format_.fit_read(format_.parse_options(given), schema)
            batches = format_.read(options, format_.plan(options, ())[0], schema)
            # Closing the generator closes its connection: the rest of the topic is not needed.
            with contextlib.closing(cast("Generator[pa.RecordBatch]", batches)), pa.ipc.new_file(path, schema) as file:
                for batch in itertools.islice(batches, NULL_BATCHES):
                    file.write_batch(batch)


def default_columns() -> str:
    """Return the default columns of `pulsar-native`, as SQL."""
    return str(OURS["pulsar-native"]({}).schema())


def spark_schema(columns: str | None) -> StructType:
    """Return the named columns, or those that are read by default; needs a session."""
    from pyspark.sql.types import StructType

    return cast("StructType", StructType.fromDDL(columns or default_columns()))


def count(partitions: int) -> str:
    """Return a number of partitions, in words."""
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def use_namespace(admin_url: str, namespace: str = NAMESPACE) -> None:
    """Create the namespace, and keep its messages: by default unread data is deleted within minutes.

    Raises:
        AdminError: the admin interface refused or did not answer.
    """
    PulsarAdmin(admin_url).create_namespace(namespace)


def create_topic(admin_url: str, topic: str, partitions: int) -> bool:
    """Create a partitioned topic; return False if it exists already.

    Raises:
        AdminError: the admin interface refused or did not answer.
    """
    try:
        PulsarAdmin(admin_url).create_topic(topic, partitions)
    except AdminError as error:
        if error.status == CONFLICT:
            return False
        raise
    return True


def publish(address: tuple[str, int], topic: str, workload: Workload, *, value_only: bool = False) -> None:
    """Publish a workload's messages; wait for every receipt.

    Args:
        address: the broker's host and port; it must serve the topic itself, as a standalone broker does.
        topic: the topic, which exists, with as many partitions as the workload.
        workload: the messages to publish.
        value_only: whether the messages have no key and no event time.

    Raises:
        RuntimeError: the broker refused something.
    """
    entries = list(_entries(workload, workload.batch_messages, value_only=value_only))
    with _Publisher(address, partitions_of(topic, workload.partitions)) as publisher:
        left, turn = workload.messages, 0
        while left:
            count = min(left, workload.batch_messages)
            # The last batch may be smaller, and is then made separately.
            full = count == workload.batch_messages
            entry = entries[turn % VARIANTS] if full else next(_entries(workload, count, value_only=value_only))
            publisher.send(turn % workload.partitions, entry)
            left -= count
            turn += 1


def publish_values(
    address: tuple[str, int], topic: str, values: Sequence[bytes], schema: commands.Schema, messages: int
) -> None:
    """Publish values again and again to a topic of one partition, which registers their schema.

    Args:
        address: the broker's host and port; it must serve the topic itself, as a standalone broker does.
        topic: the topic, which exists, with one partition.
        values: of the messages, in batches of 1,000; the values and the messages are multiples of it.
        schema: of the values.
        messages: how many to publish.

    Raises:
        RuntimeError: the broker refused something.
    """
    with _Publisher(address, partitions_of(topic, 1), schema) as publisher:
        (version,) = publisher.schema_versions
        batches = [values[first : first + 1000] for first in range(0, len(values), 1000)]
        made = [_entry(pa.record_batch({"value": pa.array(batch, pa.binary())}), "none", version) for batch in batches]
        for turn in range(messages // 1000):
            publisher.send(0, made[turn % len(made)])


def drain(address: tuple[str, int], workload: Workload) -> None:
    """Read a workload's topic over one raw socket and discard it: entries are counted by the sizes of frames.

    Args:
        address: the broker's host and port; it must serve the topic itself, as a standalone broker does.
        workload: the workload that `publish` has published, without other messages.

    Raises:
        RuntimeError: the broker refused something.
        ConnectionError: it closed the connection.
    """
    topics = partitions_of(workload.topic, workload.partitions)
    name = f"drain-{time.monotonic_ns()}"
    with contextlib.closing(RawConnection(*address)) as connection:
        for n, topic in enumerate(topics):
            connection.send(commands.Lookup(topic, n))
            connection.expect(commands.LookupResponse)
            start = commands.MessageId(-1, -1)
            kind = commands.SubType.Exclusive
            connection.send(commands.Subscribe(topic, name, kind, n, n, durable=False, start_message_id=start))
            connection.expect(commands.Success)
        for n in range(len(topics)):
            connection.send(commands.Flow(n, workload.messages))
        left = -(-workload.messages // workload.batch_messages)
        head, skipped = b"", 0  # of the next frame, which begins this many bytes from here
        while left:
            data = head + connection.receive(RECEIVE_BYTES)
            at = skipped
            while len(data) - at >= len(A_MESSAGE):
                left -= data[at + 8 : at + 10] == A_MESSAGE[8:]
                at += 4 + int.from_bytes(data[at : at + 4], "big")
            head, skipped = data[at:], max(0, at - len(data))


def publish_one_each(address: tuple[str, int], topics: Sequence[str]) -> None:
    """Publish one small message to each topic or partition; a broker loads some hundreds at once.

    Raises:
        RuntimeError: the broker refused something.
    """
    entry = next(_entries(Workload(100, "none", 1, 1), 1))
    for at in range(0, len(topics), PRODUCERS_AT_ONCE):
        names = topics[at : at + PRODUCERS_AT_ONCE]
        with _Publisher(address, names) as publisher:
            for n in range(len(names)):
                publisher.send(n, entry)


@contextlib.contextmanager
def trickle(address: tuple[str, int], topic: str, partitions: int, rate: int) -> Iterator[None]:
    """Publish 100 B messages in the background, evenly and a batch to each partition in turn, until the block ends.

    Publish times are this machine's clock at the moment a batch is sent.

    Args:
        address: the broker's host and port; it must serve the topic itself, as a standalone broker does.
        topic: it exists, with this many partitions.
        partitions: how many.
        rate: messages a second, all partitions together.

    Raises:
        RuntimeError: the broker refused something.
    """
    batches = list(itertools.islice(_batches(100, TRICKLE_MESSAGES), 16))
    left = threading.Event()

    def publish_until_left(publisher: _Publisher) -> None:
        began = time.monotonic()
        for turn in itertools.count():
            if left.wait(max(0.0, began + turn * TRICKLE_MESSAGES / rate - time.monotonic())):
                return
            publisher.send(turn % partitions, _entry(batches[turn % len(batches)], "none"))
            publisher.settle(TRICKLE_BATCHES_DUE)

    with (
        _Publisher(address, partitions_of(topic, partitions)) as publisher,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        publishing = pool.submit(publish_until_left, publisher)
        try:
            yield
        finally:
            left.set()
        publishing.result()


class _Publisher:
    """Producers on one connection. Leaving the `with` block waits for the missing receipts."""

    def __init__(self, address: tuple[str, int], topics: Sequence[str], schema: commands.Schema | None = None) -> None:
        self._connection = RawConnection(*address)
        self.schema_versions = self._connection.open_producers(topics, schema)
        self._sequence_ids = [0] * len(topics)
        self._due: deque[int] = deque()
        self._in_flight_bytes = 0

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.settle(0)
        finally:
            self._connection.close()

    def send(self, producer: int, entry: commands.Send) -> None:
        """Send one prepared entry, once the bytes in flight allow it."""
        size = len(entry.body)
        while self._in_flight_bytes + size > IN_FLIGHT_BYTES:
            self._take_receipt()
        first = self._sequence_ids[producer]
        self._sequence_ids[producer] += entry.num_messages
        last = None if entry.num_messages == 1 else first + entry.num_messages - 1
        self._connection.send(entry._replace(producer_id=producer, sequence_id=first, highest_sequence_id=last))
        self._due.append(size)
        self._in_flight_bytes += size

    def settle(self, most_due: int) -> None:
        """Wait until no more than this many entries are without receipt."""
        while len(self._due) > most_due:
            self._take_receipt()

    def _take_receipt(self) -> None:
        self._connection.expect(commands.SendReceipt)
        # Receipts of different partitions may overtake each other; batches are of one size, so the sum is exact enough.
        self._in_flight_bytes -= self._due.popleft()


def partitions_of(topic: str, partitions: int) -> list[str]:
    """Return the names of the partitions of a topic."""
    return [f"{topic}-partition-{n}" for n in range(partitions)]


def _entries(workload: Workload, count: int, *, value_only: bool = False) -> Iterator[commands.Send]:
    """Return prepared entries of `count` messages, all of them published now."""
    for batch in _batches(workload.value_bytes, count):
        yield _entry(batch.select(["value"]) if value_only else batch, workload.codec)


def _batches(value_bytes: int, count: int) -> Iterator[pa.RecordBatch]:
    rng = random.Random(SEED)
    for variant in range(VARIANTS):
        keys = [f"k{rng.randrange(10_000):04d}" for _ in range(count)]
        first_us = (1_700_000_000_000 + 1000 * variant) * 1000
        times = pa.array(range(first_us, first_us + 1000 * count, 1000), pa.timestamp("us", "UTC"))
        values = pa.array(make_values(value_bytes, count, rng), pa.binary())
        yield pa.record_batch({"value": values, "key": pa.array(keys), "event_time": times})


def _entry(batch: pa.RecordBatch, codec: str, schema_version: bytes = b"") -> commands.Send:
    """Return one entry of all the rows, published now."""
    now_ms = int(time.time() * 1000)
    encoder = EntryEncoder(
        producer_id=0,
        producer_name="bench",
        sequence_id=0,
        max_message_bytes=5 << 20,
        compression=codec.upper(),
        batch_bytes=1 << 20,
        batch_rows=2**31 - 1,
        schema_version=schema_version,
    )
    encoder.append(open_rows(batch), None, 0, batch.num_rows, now_ms=now_ms)
    encoder.flush(now_ms=now_ms)
    (entry,) = encoder.take()
    return entry
