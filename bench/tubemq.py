"""TubeMQ: reads and writes of `tubemq`, beside raw pipelined loops and the programs of the official Java client.

A master and one stock broker run, with a topic of one partition for each size, which is filled and read from its
start; writers share a topic of three partitions. The raw loops are the limit of one connection: the drain keeps eight
fetches in flight and parses the answers with protobuf, the other one sends prepared frames, 2,000 in flight, and
counts the answers. `CliConsumer` and `CliProducer` are TubeMQ's own programs, without their start and end: see
`_steady_rate`.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.engine import Job, Sample, value_file
from bench.runner import Case, Contender, Setup, here, loop, ours
from bench.values import make_values
from brokers.tubemq import VERSION, TubeCluster, distribution
from brokers.tubemq_admin import Topic
from spark_mq_source.core.options import READ
from spark_mq_source.core.protobuf_fields import take_fields
from spark_mq_source.tubemq.client.bounds import fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY, TubeMQOptions
from spark_mq_source.tubemq.protocol import commands
from spark_mq_source.tubemq.protocol.codec import decode_response, encode_request
from spark_mq_source.tubemq.protocol.hot import is_stored
from spark_mq_source.tubemq.protocol.wire import Frame, take_frame

LABEL = "tubemq"
BROKER = f"TubeMQ {VERSION}"
QUICK = r"(read|write) 100 B"

READ_MESSAGES = {100: 6_000_000, 1024: 3_000_000}
"""Five seconds of reading or more: the JVM of the Java client compiles in the first; a tenth is not counted."""

WRITTEN_MESSAGES = 320_000
SYNC_MESSAGES = 4_000
"""The messages of the synchronous Java client, at a twentieth of our rate or less."""

TASKS = 2
"""Tasks of split reads: as many as the machine has cores."""

FETCHES_UNDER_WAY = TubeMQOptions.fetches_in_flight
"""The default of ours."""

SENDS_UNDER_WAY = 2000
SENDS_TOGETHER = 50
MESSAGES_TAG = 4 << 3 | 2
"""The tag of a message in an answer to GET_MESSAGE."""

TIMEOUT_MS = 60_000
BROKER_JVM = ("-XX:+UseParallelGC", "-Xmx3g", "-Xmn2g")
"""The broker's start script gives it 15 GiB, 5 of them young."""

FLUSH_PATIENCE_S = 120.0
PROGRAM_PATIENCE_S = 300.0


@contextlib.contextmanager
def running(setup: Setup) -> Iterator[Iterator[Case]]:
    """Return the cases of a cluster that runs until the context is left."""
    topics = [Topic(f"full_{size}") for size in READ_MESSAGES]
    topics += [Topic(f"sink_{size}", partitions=3) for size in READ_MESSAGES]
    cluster = TubeCluster(setup.folder / "tubemq", topics=topics, jvm=BROKER_JVM)
    with cluster:
        yield itertools.chain.from_iterable(_cases(Work(cluster, size, setup)) for size in READ_MESSAGES)
        cluster.kill()


@dataclass(frozen=True)
class Work:
    """A cluster, and messages of one size for it."""

    cluster: TubeCluster
    value_bytes: int
    setup: Setup

    @property
    def full(self) -> str:
        """The topic to read."""
        return f"full_{self.value_bytes}"

    @property
    def sink(self) -> str:
        """The topic to write."""
        return f"sink_{self.value_bytes}"

    @property
    def read_messages(self) -> int:
        """The number of messages to read."""
        return self.setup.scaled(READ_MESSAGES[self.value_bytes])

    @property
    def written_messages(self) -> int:
        """The number of messages to write."""
        return self.setup.scaled(WRITTEN_MESSAGES)

    def options(self, topic: str) -> dict[str, str]:
        """Return the options of a read from the start, or a write."""
        return {"masters": self.cluster.master_addresses, "topic": topic}

    def job(self, topic: str, messages: int) -> Job:
        """Return a job that writes this many messages."""
        file = value_file(self.setup.folder, self.value_bytes)
        return Job("write", "tubemq", self.options(topic), messages, file=file, cores=TASKS)

    def fill(self) -> None:
        """Write the messages to read, unless they are stored already, and wait until they are flushed."""
        if not self.end(self.full, FLUSHED_ONLY):
            self.setup.engine.run(replace(self.job(self.full, self.read_messages), spark=False))
        deadline = time.monotonic() + FLUSH_PATIENCE_S
        while (there := self.end(self.full, FLUSHED_ONLY)) < self.read_messages:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {there} of {self.read_messages} messages were flushed")
            time.sleep(0.2)  # the broker has no event for it

    def end(self, topic: str, priority: int) -> int:
        """Return the number of messages in a topic's store, which its partitions share."""
        options = TubeMQOptions.from_spark(self.options(topic), READ)
        with TubeMQClient(options) as client:
            found = partitions_of(client.fetch_topics([topic], group="bench").partitions())
            bounds = fetch_bounds(client, options, found, priority=priority).values()
            return max(each.last for each in bounds) // INDEX_BYTES


def _cases(work: Work) -> Iterator[Case]:
    rows, size = work.read_messages, f"{work.value_bytes:,} B"
    read = Job("read", "tubemq", work.options(work.full), rows, cores=TASKS)
    split = replace(read, options={**read.options, "minPartitions": str(TASKS)})
    yield Case(
        "read",
        size,
        (
            ours("ours", LABEL, read),
            ours("ours_split", f"minPartitions={TASKS}", split),
            ours("alone", "without Spark", replace(read, spark=False, cores=1)),
            ours("alone_split", f"without Spark, {TASKS} tasks", replace(split, spark=False)),
            loop("drain", "raw drain", rows, partial(_drain, work)),
            Contender("java", "Java, pull", "peer", here(_read_java, work), warm=0),
            Contender("java_push", "Java, push", "peer", here(_read_java, work, "--consume-push"), warm=0),
        ),
        prepare=work.fill,
    )
    write = work.job(work.sink, work.written_messages)
    fast, sync = (work.written_messages, "--without-delay"), (SYNC_MESSAGES, "--sync-produce", "--without-delay")
    yield Case(
        "write",
        size,
        (
            ours("ours", LABEL, write),
            ours("alone", "without Spark", replace(write, spark=False)),
            loop("ready_made", "raw pipelined loop", work.written_messages, partial(_send, work)),
            Contender("java", "Java, asynchronous", "peer", here(_write_java, work, *fast), warm=0),
            Contender("java_sync", "Java, synchronous", "peer", here(_write_java, work, *sync), warm=0),
        ),
    )


# -- raw loops


def _drain(work: Work) -> None:
    client, topic = f"bench-raw-{time.monotonic_ns()}", work.full
    register = commands.RegisterPartition(
        commands.RegisterType.REGISTER, client, "bench_raw", topic, 0, curr_offset=0, qry_priority_id=FLUSHED_ONLY
    )
    fetch = commands.GetMessage(client, 0, "bench_raw", topic, manual_commit_offset=True)
    leave = commands.RegisterPartition(commands.RegisterType.UNREGISTER, client, "bench_raw", topic, 0)
    left = work.read_messages
    with _connected(work) as sock:
        answers = _answers(sock)
        sock.sendall(encode_request(0, register, timeout_ms=TIMEOUT_MS))
        next(answers)
        ask = encode_request(1, fetch, timeout_ms=TIMEOUT_MS)
        sock.sendall(ask * FETCHES_UNDER_WAY)
        while left > 0:
            left -= _count_messages(next(answers))
            sock.sendall(ask)
        for _ in range(FETCHES_UNDER_WAY):
            next(answers)
        sock.sendall(encode_request(2, leave, timeout_ms=TIMEOUT_MS))
        next(answers)


def _count_messages(answer: Frame) -> int:
    _, response = decode_response(answer)
    if not isinstance(response, commands.GetMessageResponse):
        raise TypeError(f"{response} came where messages were asked for")
    body = bytes(response.body)
    return sum(tag == MESSAGES_TAG for tag, _, _ in take_fields(body, 0, len(body)))


def _send(work: Work) -> None:
    """Send prepared frames, which differ only in their value and partition; send refused ones again."""
    values = make_values(work.value_bytes, SENDS_TOGETHER * 30)
    frames = [
        encode_request(
            number,
            commands.SendMessage(
                "bench-raw", work.sink, number % 3, value, 0, zlib.crc32(value) & 0x7FFFFFFF, 0x7F000001
            ),
            timeout_ms=TIMEOUT_MS,
        )
        for number, value in enumerate(values)
    ]
    packs = [b"".join(frames[at : at + SENDS_TOGETHER]) for at in range(0, len(frames), SENDS_TOGETHER)]
    free = threading.Semaphore(SENDS_UNDER_WAY // SENDS_TOGETHER)
    missing = work.written_messages
    with _connected(work) as sock:
        answers = _answers(sock)

        def take_answers(count: int) -> None:
            nonlocal missing
            for _ in range(count):
                missing -= sum(is_stored(bytes(next(answers).payload)) for _ in range(SENDS_TOGETHER))
                free.release()

        while missing > 0:
            # A broker whose memory is full refuses with 419 until it has written some to disk.
            count = -(-missing // SENDS_TOGETHER)
            taker = threading.Thread(target=take_answers, args=(count,))
            taker.start()
            for turn in range(count):
                free.acquire()
                sock.sendall(packs[turn % len(packs)])
            taker.join()


@contextlib.contextmanager
def _connected(work: Work) -> Iterator[socket.socket]:
    broker = work.cluster.broker(1)
    with socket.create_connection((broker.host, broker.port), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def _answers(sock: socket.socket) -> Iterator[Frame]:
    """Yield the answers, in order."""
    data = b""
    while True:
        at, view = 0, memoryview(data)
        while (frame := take_frame(view, at)) is not None:
            at += frame.size
            yield frame
        received = sock.recv(1 << 20)
        if not received:
            raise RuntimeError("the broker closed the connection")
        data = data[at:] + received


# -- the Java client's programs


def _read_java(work: Work, *flags: str) -> Sample:
    group = f"bench_{time.monotonic_ns()}"
    command = [*_java_command(work, "CliConsumer", work.full, work.read_messages), "--groupName", group]

    def position() -> int | None:
        holders = work.cluster.admin.holders(1, group)
        return (holders[0]["zkOffset"] + holders[0]["tmpOffset"]) // INDEX_BYTES if holders else None

    return _steady_rate([*command, "--consume-position", "-1", *flags], work.read_messages, position)


def _write_java(work: Work, messages: int, *flags: str) -> Sample:
    size = str(work.value_bytes)
    command = [*_java_command(work, "CliProducer", work.sink, messages), "--message-data-size", size, *flags]
    before = work.end(work.sink, WITH_MEMORY)
    return _steady_rate(command, messages, lambda: work.end(work.sink, WITH_MEMORY) - before)


def _java_command(work: Work, program: str, topic: str, messages: int) -> list[str]:
    return [
        "java", "-Xmx1g", "-cp", f"{distribution()}/lib/*", f"org.apache.inlong.tubemq.server.tools.cli.{program}",
        "--master-servers", work.cluster.master_addresses, "--topicName", topic, "--messages", str(messages),
    ]  # fmt: skip


def _steady_rate(command: Sequence[str], messages: int, done: Callable[[], int | None]) -> Sample:
    """Run one of TubeMQ's programs; return its rate between a tenth and nine tenths of the messages.

    By the position of the broker's index, because the programs report no useful times: the consumer waits 13 s for its
    partition, and the producer checks every five seconds whether it has finished.
    """
    seen: list[tuple[float, float]] = []
    deadline = time.monotonic() + PROGRAM_PATIENCE_S
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        while program.poll() is None:
            if time.monotonic() > deadline:
                program.kill()
                raise RuntimeError(f"{command[4]} did not end within {PROGRAM_PATIENCE_S:.0f} s")
            moved = done()
            if moved is not None:
                seen.append((time.perf_counter(), moved / messages))
            time.sleep(0.02)  # the broker has no event for it
    steady = [(when, share) for when, share in seen if 0.1 <= share <= 0.9]
    if len(steady) < 2:
        raise RuntimeError(f"{len(steady)} looks at what {command[4]} does are too few for a rate")
    (began, first), (ended, last) = steady[0], steady[-1]
    return {"value": (last - first) * messages / (ended - began)}
