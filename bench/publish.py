"""Fills topics fast: ready-made batches over one raw socket, bytes in flight bounded, every receipt counted.

The clients' own producers reach 0.02 to 0.3 M messages/s, which would make filling a topic the longest part of a
benchmark. Here every batch entry is encoded, compressed and checksummed once and sent again and again; only the
sequence id in front of it changes. The frames are written by hand from the protocol's field numbers, so that nothing
of the code under test takes part in making its input.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import socket
import struct
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import crc32c
import lz4.block

__all__ = ["NAMESPACE", "Workload", "create_topic", "publish", "publish_one_each", "trickle", "use_namespace"]

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

CODEC_NUMBERS = {"none": 0, "lz4": 1}
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
        OSError: the admin interface refused or did not answer.
    """
    _admin(admin_url, "PUT", f"namespaces/{NAMESPACE}", {}, may_exist=True)
    keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    _admin(admin_url, "POST", f"namespaces/{NAMESPACE}/retention", keep)


def create_topic(admin_url: str, topic: str, partitions: int) -> bool:
    """Makes a partitioned topic; False where it exists already.

    Raises:
        OSError: the admin interface refused or did not answer.
    """
    return _admin(admin_url, "PUT", f"{topic.replace('://', '/')}/partitions", partitions, may_exist=True)


def publish(address: tuple[str, int], workload: Workload) -> float:
    """Publishes a workload's messages; waits for every receipt.

    Args:
        address: the broker's host and port; it must serve the topic itself, as a standalone broker does.
        workload: what to publish; its topic exists.

    Returns:
        Messages a second.

    Raises:
        RuntimeError: the broker refused something.
    """
    names = [f"{workload.topic}-partition-{n}" for n in range(workload.partitions)]
    batches = list(_batches(workload))
    started = time.perf_counter()
    with _Publisher(address, names) as publisher:
        left, turn = workload.messages, 0
        while left:
            count = min(left, workload.batch_messages)
            # The last batch may be smaller, and is then made for the purpose.
            full = count == workload.batch_messages
            body = batches[turn % VARIANTS] if full else next(_batches(workload, messages=count))
            publisher.send(turn % workload.partitions, count, body)
            left -= count
            turn += 1
    return workload.messages / (time.perf_counter() - started)


def publish_one_each(address: tuple[str, int], topic: str, partitions: int) -> None:
    """Publishes one small message to each partition.

    Raises:
        RuntimeError: the broker refused something.
    """
    body = next(_batches(Workload(100, "none", partitions, partitions), messages=1))
    with _Publisher(address, [f"{topic}-partition-{n}" for n in range(partitions)]) as publisher:
        for n in range(partitions):
            publisher.send(n, 1, body)


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
    payloads = list(itertools.islice(_payloads(Workload(100, "none", partitions, 0), TRICKLE_MESSAGES), 16))
    left = threading.Event()

    def publish_until_left(publisher: _Publisher) -> None:
        began = time.monotonic()
        for turn in itertools.count():
            if left.wait(max(0.0, began + turn * TRICKLE_MESSAGES / rate - time.monotonic())):
                return
            body = _entry(payloads[turn % len(payloads)], TRICKLE_MESSAGES, "none", int(time.time() * 1000))
            publisher.send(turn % partitions, TRICKLE_MESSAGES, body)
            publisher.settle(TRICKLE_BATCHES_DUE)

    with (
        _Publisher(address, [f"{topic}-partition-{n}" for n in range(partitions)]) as publisher,
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

    def __init__(self, address: tuple[str, int], topics: list[str]) -> None:
        self._socket = socket.create_connection(address, timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self._sequence_ids = [0] * len(topics)
        self._due: deque[int] = deque()
        self._in_flight_bytes = 0
        connect = _text(1, "spark-mq-source bench") + _number(4, 19)
        self._socket.sendall(_frame(2, 2, connect))
        self._expect(3)
        # The look-up is what makes a broker load the part of the namespace that a topic is in.
        for n, topic in enumerate(topics):
            self._socket.sendall(_frame(23, 23, _text(1, topic) + _number(2, n)))
        for _ in topics:
            self._expect(24)
        for n, topic in enumerate(topics):
            self._socket.sendall(_frame(5, 5, _text(1, topic) + _number(2, n) + _number(3, n)))
        for _ in topics:
            self._expect(17)

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                self.settle(0)
        finally:
            self._socket.close()

    def send(self, producer: int, messages: int, body: bytes) -> None:
        """Sends one ready-made entry, once there is room in flight for it."""
        while self._in_flight_bytes + len(body) > IN_FLIGHT_BYTES:
            self._take_receipt()
        sequence_id = self._sequence_ids[producer]
        self._sequence_ids[producer] += messages
        send = _number(1, producer) + _number(2, sequence_id) + _number(3, messages)
        if messages > 1:
            send += _number(6, sequence_id + messages - 1)
        command = _number(1, 6) + _text(6, send)
        head = struct.pack(">II", 4 + len(command) + len(body), len(command)) + command
        self._socket.sendall(head)
        self._socket.sendall(body)
        self._due.append(len(body))
        self._in_flight_bytes += len(body)

    def settle(self, most_due: int) -> None:
        """Waits until no more than this many entries are without receipt."""
        while len(self._due) > most_due:
            self._take_receipt()

    def _take_receipt(self) -> None:
        self._expect(7)
        # Receipts of different partitions may overtake each other; batches are of one size, so the sum is right enough.
        self._in_flight_bytes -= self._due.popleft()

    def _expect(self, *kinds: int) -> None:
        """Takes the next command, which must be of one of these types; PINGs are answered on the way."""
        while True:
            command = self._next_command()
            # Every command begins with field 1, the type, which is below 128 for all that can arrive here.
            kind = command[1]
            if kind == 18:
                self._socket.sendall(_frame(19, 19, b""))
            elif kind in kinds:
                return
            else:
                msg = f"the broker answered with command {kind}, not {kinds}: {bytes(command)!r}"
                raise RuntimeError(msg)

    def _next_command(self) -> bytes:
        while len(self._received) < 8 or len(self._received) < 4 + int.from_bytes(self._received[:4]):
            data = self._socket.recv(1 << 16)
            if not data:
                msg = "the broker closed the connection"
                raise RuntimeError(msg)
            self._received += data
        total, size = struct.unpack_from(">II", self._received)
        command = bytes(self._received[8 : 8 + size])
        del self._received[: 4 + total]
        return command


def _batches(workload: Workload, messages: int | None = None) -> Iterator[bytes]:
    """Ready-made entries, all of them published now."""
    count = messages or workload.batch_messages
    for payload in _payloads(workload, count):
        yield _entry(payload, count, workload.codec, int(time.time() * 1000))


def _payloads(workload: Workload, count: int) -> Iterator[bytes]:
    """Payloads of batches of `count` messages, before compression."""
    rng = random.Random(SEED)
    for variant in range(VARIANTS):
        payload = bytearray()
        for n in range(count):
            single = _text(2, f"k{rng.randrange(10_000):04d}") + _number(3, workload.value_bytes)
            single += _number(5, 1_700_000_000_000 + 1000 * variant + n)
            payload += struct.pack(">I", len(single)) + single + _value(rng, workload.value_bytes)
        yield bytes(payload)


def _entry(payload: bytes, count: int, codec: str, publish_time_ms: int) -> bytes:
    """An entry: magic, checksum, metadata, payload (Pulsar binary protocol, Payload commands)."""
    metadata = _text(1, "bench") + _number(2, 0) + _number(3, publish_time_ms)
    packed = payload
    if codec == "lz4":
        packed = lz4.block.compress(payload, store_size=False)
        metadata += _number(8, CODEC_NUMBERS["lz4"])
    metadata += _number(9, len(payload)) + _number(11, count)
    checked = struct.pack(">I", len(metadata)) + metadata + packed
    return b"\x0e\x01" + struct.pack(">I", crc32c.crc32c(checked)) + checked


def _value(rng: random.Random, size: int) -> bytes:
    """One JSON record as applications send them, cut or filled to `size`: half names and spaces, half random digits."""
    text = bytearray()
    while len(text) < size:
        text += (
            f'{{"id":"{rng.getrandbits(64):016x}","city":"{rng.choice(CITIES)}","amount":{rng.uniform(0, 1000):.2f},'
            f'"clicks":{rng.randrange(1000)},"ok":{"true" if rng.random() < 0.5 else "false"}}}\n'
        ).encode()
    return bytes(text[:size])


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return _varint(field << 3 | 2) + _varint(len(data)) + data


def _frame(kind: int, field: int, body: bytes) -> bytes:
    """One simple command: BaseCommand with its type and the one field that carries it."""
    command = _number(1, kind) + _text(field, body)
    return struct.pack(">II", 4 + len(command), len(command)) + command


def _admin(admin_url: str, method: str, path: str, body: object, *, may_exist: bool = False) -> bool:
    request = urllib.request.Request(  # noqa: S310 - the address of a broker we started
        f"{admin_url}/admin/v2/{path}",
        data=json.dumps(body).encode(),
        method=method,
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120):  # noqa: S310
            return True
    except urllib.error.HTTPError as error:
        if error.code == 409 and may_exist:
            return False
        raise
