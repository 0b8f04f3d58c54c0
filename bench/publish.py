"""Fills topics fast: ready-made batches over one raw socket, bytes in flight bounded, every receipt counted.

The clients' own producers reach 0.02 to 1 M messages/s, which would make filling a topic the longest part of a
benchmark. Here every batch entry is encoded, compressed and checksummed once and sent again and again; only the
sequence id in front of it changes. So it is also the most that a broker takes from one connection.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from brokers.pulsar_admin import CONFLICT, AdminError, PulsarAdmin
from spark_mq_source.pulsar.payload.messages import EntryEncoder, open_rows
from spark_mq_source.pulsar.protocol import commands
from tests.vectors.raw_connection import RawConnection

__all__ = [
    "NAMESPACE",
    "Workload",
    "create_topic",
    "make_values",
    "publish",
    "publish_one_each",
    "trickle",
    "use_namespace",
]

NAMESPACE = "public/bench"

BATCH_BYTES = 100_000
"""Payload of a batch before compression: the size at which broker 4.0.8 takes the most messages a second."""

IN_FLIGHT_BYTES = 16_000_000
"""Sent and not yet acknowledged: more only lengthens the broker's queue."""

VARIANTS = 64
"""Different batches sent in turn: 6.4 MB, beyond what a compressor or a processor's inner caches could remember."""

TRICKLE_MESSAGES = 10
"""Messages of a batch of `trickle`: what a producer gathers in 10 ms at 1,000 messages a second."""

TRICKLE_BATCHES_DUE = 10
"""Batches of `trickle` that wait for their receipts, so that the broker's disk does not set the pace."""

SEED = 20_260
CITIES = ("Lisbon", "Nairobi", "Osaka", "Quito", "Turin", "Utrecht", "Warsaw", "Yerevan")


@dataclass(frozen=True, slots=True)
class Workload:
    """What one topic holds.

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


def use_namespace(admin_url: str) -> None:
    """Makes the namespace, and keeps what is published to it: by default unread data is dropped within minutes.

    Raises:
        AdminError: the admin interface refused or did not answer.
    """
    PulsarAdmin(admin_url).create_namespace(NAMESPACE)


def create_topic(admin_url: str, topic: str, partitions: int) -> bool:
    """Makes a partitioned topic; False where it exists already.

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


def publish(address: tuple[str, int], topic: str, workload: Workload, *, value_only: bool = False) -> float:
    """Publishes a workload's messages; waits for every receipt.

    Args:
        address: the broker's host and port; it must serve the topic itself, as a standalone broker does.
        topic: where to; it exists, with as many partitions as the workload.
        workload: what to publish.
        value_only: whether the messages have no key and no event time.

    Returns:
        Messages a second.

    Raises:
        RuntimeError: the broker refused something.
    """
    entries = list(_entries(workload, workload.batch_messages, value_only=value_only))
    started = time.perf_counter()
    with _Publisher(address, _partitions_of(topic, workload.partitions)) as publisher:
        left, turn = workload.messages, 0
        while left:
            count = min(left, workload.batch_messages)
            # The last batch may be smaller, and is then made for the purpose.
            full = count == workload.batch_messages
            entry = entries[turn % VARIANTS] if full else next(_entries(workload, count, value_only=value_only))
            publisher.send(turn % workload.partitions, entry)
            left -= count
            turn += 1
    return workload.messages / (time.perf_counter() - started)


def publish_one_each(address: tuple[str, int], topic: str, partitions: int) -> None:
    """Publishes one small message to each partition.

    Raises:
        RuntimeError: the broker refused something.
    """
    entry = next(_entries(Workload(100, "none", partitions, partitions), 1))
    with _Publisher(address, _partitions_of(topic, partitions)) as publisher:
        for n in range(partitions):
            publisher.send(n, entry)


@contextlib.contextmanager
def trickle(address: tuple[str, int], topic: str, partitions: int, rate: int) -> Iterator[None]:
    """Publishes 100 B messages in the background, evenly and a batch to each partition in turn, until it is left.

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
        _Publisher(address, _partitions_of(topic, partitions)) as publisher,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        publishing = pool.submit(publish_until_left, publisher)
        try:
            yield
        finally:
            left.set()
        publishing.result()


class _Publisher:
    """Producers on one connection. Leaving the `with` block waits for the receipts that are due."""

    def __init__(self, address: tuple[str, int], topics: Sequence[str]) -> None:
        self._connection = RawConnection(*address)
        self._connection.open_producers(topics)
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
        """Sends one ready-made entry, once there is room in flight for it."""
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
        """Waits until no more than this many entries are without receipt."""
        while len(self._due) > most_due:
            self._take_receipt()

    def _take_receipt(self) -> None:
        self._connection.expect(commands.SendReceipt)
        # Receipts of different partitions may overtake each other; batches are of one size, so the sum is right enough.
        self._in_flight_bytes -= self._due.popleft()


def make_values(value_bytes: int, count: int, rng: random.Random | None = None) -> list[bytes]:
    """JSON records as applications send them, cut or filled to size: half names and spaces, half random digits."""
    rng = random.Random(SEED) if rng is None else rng
    values = []
    for _ in range(count):
        text = bytearray()
        while len(text) < value_bytes:
            text += (
                f'{{"id":"{rng.getrandbits(64):016x}","city":"{rng.choice(CITIES)}",'
                f'"amount":{rng.uniform(0, 1000):.2f},"clicks":{rng.randrange(1000)},'
                f'"ok":{"true" if rng.random() < 0.5 else "false"}}}\n'
            ).encode()
        values.append(bytes(text[:value_bytes]))
    return values


def _partitions_of(topic: str, partitions: int) -> list[str]:
    return [f"{topic}-partition-{n}" for n in range(partitions)]


def _entries(workload: Workload, count: int, *, value_only: bool = False) -> Iterator[commands.Send]:
    """Ready-made entries of `count` messages, all of them published now."""
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


def _entry(batch: pa.RecordBatch, codec: str) -> commands.Send:
    """One entry of all the rows, published now."""
    now_ms = int(time.time() * 1000)
    encoder = EntryEncoder(
        producer_id=0,
        producer_name="bench",
        sequence_id=0,
        max_message_bytes=5 << 20,
        compression=codec.upper(),
        batch_bytes=1 << 20,
    )
    encoder.append(open_rows(batch), None, 0, batch.num_rows, now_ms=now_ms)
    encoder.flush(now_ms=now_ms)
    (entry,) = encoder.take()
    return entry
