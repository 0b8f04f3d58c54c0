"""`python -m bench tubemq`: what `tubemq` reads and writes, beside raw socket loops and the official Java client.

    python -m bench tubemq                    everything, three times in turn
    python -m bench tubemq --sizes 100 --only read_raw read_alone
    python -m bench tubemq --update-readme    and the table into the project's README.md

It starts a master and one stock broker, and fills a topic of one partition for each size; readers begin at its start.
Writers share a topic of three partitions. The raw loops are the limit of one connection: `read_raw` keeps eight fetches
under way and parses the answers with protobuf, `write_raw` sends frames made ready, 2,000 under way, and counts the
answers. `CliConsumer` and `CliProducer` are TubeMQ's own programs, without their start and end: see `_steady_rate`. All
others are timed from before they connect; in Spark, the whole job, without the start of Python's workers: `_warm_rate`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import subprocess
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

from bench.publish import make_values
from bench.readers import ROOT, VALUE_ONLY, spark_session
from bench.report import describe_machine, replaced, runs
from brokers.tubemq import VERSION, TubeCluster, distribution
from brokers.tubemq_admin import Topic
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.spark.tubemq import TubeMQDataSource
from spark_mq_source.tubemq.client.bounds import fetch_bounds, partitions_of
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY, TubeMQOptions
from spark_mq_source.tubemq.protocol import _pb, commands
from spark_mq_source.tubemq.protocol.wire import Frame, take_frame
from spark_mq_source.tubemq.read.planner import plan_batch
from spark_mq_source.tubemq.read.reader import TubeMQRange, read_range
from spark_mq_source.tubemq.write.writer import write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

READ_MESSAGES = {100: 6_000_000, 1024: 3_000_000}
"""Five seconds of reading or more: the Java client compiles itself in the first of them; it counts from a tenth on."""

WRITTEN_MESSAGES = {100: 300_000, 1024: 300_000}
SYNC_MESSAGES = 4_000
"""What the synchronous Java client writes, at a twentieth of our rate or less."""

TASKS = 2
"""Of the reads that are split: as many as the machine has cores."""

FETCHES_UNDER_WAY = TubeMQOptions.fetches_in_flight
"""As many as ours has by default."""

SENDS_UNDER_WAY = 2000
SENDS_TOGETHER = 50
ARROW_ROWS = 10_000
"""As many rows as Spark puts into one Arrow batch."""

WARMING_MESSAGES = ARROW_ROWS

TIMEOUT_MS = 60_000
BROKER_JVM = ("-XX:+UseParallelGC", "-Xmx3g", "-Xmn2g")
"""Its own start script gives it 15 GiB, 5 of them young."""

FLUSH_PATIENCE_S = 120.0
PROGRAM_PATIENCE_S = 300.0

LABELS = {
    "read_raw": "read, raw pipelined loop",
    "read_alone": "read, 1 task without Spark",
    "read_alone_split": f"read, {TASKS} tasks without Spark",
    "read_spark": "read in Spark",
    "read_spark_split": f"read in Spark, minPartitions={TASKS}",
    "read_java": "read, Java (CliConsumer, pull)",
    "read_java_push": "read, Java (CliConsumer, push)",
    "write_raw": "write, raw pipelined loop",
    "write_alone": "write, 1 task without Spark",
    "write_spark": "write in Spark",
    "write_java": "write, Java (CliProducer, asynchronous)",
    "write_java_sync": "write, Java (CliProducer, synchronous)",
}


@dataclass(frozen=True)
class Case:
    """A cluster, and messages of one size that go through it.

    Attributes:
        cluster: where.
        value_bytes: of each message.
        spark: a session with two cores.
        folder: for files of this run.
    """

    cluster: TubeCluster
    value_bytes: int
    spark: SparkSession
    folder: Path

    @property
    def full(self) -> str:
        """The topic that is read."""
        return f"full_{self.value_bytes}"

    @property
    def sink(self) -> str:
        """The topic that is written."""
        return f"sink_{self.value_bytes}"

    @property
    def read_messages(self) -> int:
        """How many messages are read."""
        return READ_MESSAGES[self.value_bytes]

    @property
    def written_messages(self) -> int:
        """How many messages are written."""
        return WRITTEN_MESSAGES[self.value_bytes]

    def options(self, topic: str) -> dict[str, str]:
        """The options of a read from the start, or a write."""
        return {"masters": self.cluster.master_addresses, "topic": topic}

    def rows(self) -> pa.Table:
        """What is written; made once."""
        return _rows(self.value_bytes)

    def fill(self) -> None:
        """Writes what is read, and waits until it is flushed."""
        _write(self, self.full, self.read_messages)
        deadline = time.monotonic() + FLUSH_PATIENCE_S
        options = TubeMQOptions.from_spark(self.options(self.full), READ)
        with TubeMQClient(options) as client:
            found = partitions_of(client.fetch_topics([self.full], group="bench").partitions())
            while True:
                (bounds,) = fetch_bounds(client, options, found, priority=FLUSHED_ONLY).values()
                if bounds.last == self.read_messages * INDEX_BYTES:
                    return
                if time.monotonic() > deadline:
                    raise RuntimeError(
                        f"only {bounds.last // INDEX_BYTES} of {self.read_messages} messages were flushed"
                    )
                time.sleep(0.2)  # the broker tells nobody


@cache
def _rows(value_bytes: int) -> pa.Table:
    return pa.table({"value": pa.array(make_values(value_bytes, 2 * ARROW_ROWS), pa.binary())})


def _rate(messages: int, work: Callable[[], None]) -> float:
    """Messages a second."""
    started = time.perf_counter()
    work()
    return messages / (time.perf_counter() - started)


def _warm_rate(messages: int, job: Callable[[int], None]) -> float:
    """The same of a Spark job that reads or writes so many messages, after one of a few.

    Spark ends Python's workers that had nothing to do for a minute, which the Java client's turns take: to start them
    again is no part of a rate, as the start of Java's programs is none.
    """
    job(WARMING_MESSAGES)
    return _rate(messages, partial(job, messages))


# -- reading


def _read_raw(case: Case) -> None:
    client, topic = f"bench-raw-{time.monotonic_ns()}", case.full
    register = commands.RegisterPartition(
        commands.RegisterType.REGISTER, client, "bench_raw", topic, 0, curr_offset=0, qry_priority_id=FLUSHED_ONLY
    )
    fetch = commands.GetMessage(client, 0, "bench_raw", topic, manual_commit_offset=True)
    leave = commands.RegisterPartition(commands.RegisterType.UNREGISTER, client, "bench_raw", topic, 0)
    left = case.read_messages
    with _connected(case) as sock:
        answers = _answers(sock)
        sock.sendall(commands.encode_request(0, register, timeout_ms=TIMEOUT_MS))
        next(answers)
        ask = commands.encode_request(1, fetch, timeout_ms=TIMEOUT_MS)
        sock.sendall(ask * FETCHES_UNDER_WAY)
        while left > 0:
            left -= _count_messages(next(answers))
            sock.sendall(ask)
        for _ in range(FETCHES_UNDER_WAY):
            next(answers)
        sock.sendall(commands.encode_request(2, leave, timeout_ms=TIMEOUT_MS))
        next(answers)
    _check_rows(case.read_messages - left, case.read_messages)


def _count_messages(answer: Frame) -> int:
    _, response = commands.decode_response(answer)
    if not isinstance(response, commands.GetMessageResponse):
        raise TypeError(f"{response} came where messages were asked for")
    return len(_pb.TransferedMessages.FromString(bytes(response.body)).messages)


def _read_alone(case: Case) -> None:
    options = TubeMQOptions.from_spark(case.options(case.full), READ)
    _check_rows(sum(_count_rows(options, task) for task in plan_batch(options)), case.read_messages)


def _read_alone_split(case: Case) -> None:
    options = TubeMQOptions.from_spark({**case.options(case.full), "minPartitions": str(TASKS)}, READ)
    rows = sum(_processes().map(partial(_count_rows, options), plan_batch(options)))
    _check_rows(rows, case.read_messages)


def _count_rows(options: TubeMQOptions, task: TubeMQRange) -> int:
    return sum(batch.num_rows for batch in read_range(options, task, pa.schema([("value", pa.binary())])))


@cache
def _processes() -> ProcessPoolExecutor:
    """One for each task, as Spark has them, and kept like Spark's: the round that is not counted starts them."""
    return ProcessPoolExecutor(TASKS, mp_context=get_context("spawn"))


def _read_spark(case: Case, messages: int, **options: str) -> None:
    end = {"endingOffsets": json.dumps({f"1:{case.full}:0": messages * INDEX_BYTES})}
    reader = case.spark.read.format("tubemq").schema(VALUE_ONLY).options(**case.options(case.full), **end, **options)
    reader.load().write.format("noop").mode("overwrite").save()


def _read_java(case: Case, *flags: str) -> float:
    group = f"bench_{time.monotonic_ns()}"
    command = _java_command(case, "CliConsumer", case.full, case.read_messages)
    command += ["--groupName", group, "--consume-position", "-1", *flags]

    def position() -> int | None:
        holders = case.cluster.admin.holders(1, group)
        return holders[0]["zkOffset"] + holders[0]["tmpOffset"] if holders else None

    return _steady_rate(command, case.read_messages, position)


def _check_rows(rows: int, expected: int) -> None:
    if rows != expected:
        raise RuntimeError(f"{rows} rows of {expected} were read")


# -- writing


def _write_raw(case: Case) -> None:
    """Sends frames made ready, which differ in nothing but their value and partition; as many again as are refused."""
    values = make_values(case.value_bytes, SENDS_TOGETHER * 30)
    frames = [
        commands.encode_request(
            number,
            commands.SendMessage(
                "bench-raw", case.sink, number % 3, value, 0, zlib.crc32(value) & 0x7FFFFFFF, 0x7F000001
            ),
            timeout_ms=TIMEOUT_MS,
        )
        for number, value in enumerate(values)
    ]
    packs = [b"".join(frames[at : at + SENDS_TOGETHER]) for at in range(0, len(frames), SENDS_TOGETHER)]
    free = threading.Semaphore(SENDS_UNDER_WAY // SENDS_TOGETHER)
    missing = case.written_messages
    with _connected(case) as sock:
        answers = _answers(sock)

        def take_answers(count: int) -> None:
            nonlocal missing
            for _ in range(count):
                missing -= sum(commands.is_stored(next(answers).payload) for _ in range(SENDS_TOGETHER))
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


def _write_alone(case: Case) -> None:
    _write(case, case.sink, case.written_messages)


def _write(case: Case, topic: str, messages: int) -> None:
    options = TubeMQOptions.from_spark(case.options(topic), WRITE)
    batches = case.rows().to_batches(max_chunksize=ARROW_ROWS)
    turns = (batches[number % len(batches)] for number in range(messages // ARROW_ROWS))
    write_rows(options, turns, TaskAttempt("bench"))


def _write_spark(case: Case, messages: int) -> None:
    file = case.folder / f"rows-{case.value_bytes}.arrow"
    if not file.exists():
        rows = case.rows()
        with pa.ipc.new_file(file, rows.schema) as out:
            out.write_table(rows, max_chunksize=ARROW_ROWS)
    (
        case.spark.read.format("bench-null")
        .options(batches=str(file), rows=str(messages), partitions="1")
        .schema(VALUE_ONLY)
        .load()
        .write.format("tubemq")
        .options(**case.options(case.sink))
        .mode("append")
        .save()
    )


def _write_java(case: Case, messages: int, *flags: str) -> float:
    size = str(case.value_bytes)
    command = [*_java_command(case, "CliProducer", case.sink, messages), "--message-data-size", size, *flags]
    options = TubeMQOptions.from_spark(case.options(case.sink), READ)
    with TubeMQClient(options) as client:
        found = partitions_of(client.fetch_topics([case.sink], group="bench").partitions())

        def end() -> int:
            # They are in one store, and share its index.
            return max(bounds.last for bounds in fetch_bounds(client, options, found, priority=WITH_MEMORY).values())

        before = end()
        return _steady_rate(command, messages, lambda: end() - before)


# -- both


@contextlib.contextmanager
def _connected(case: Case) -> Iterator[socket.socket]:
    broker = case.cluster.broker(1)
    with socket.create_connection((broker.host, broker.port), timeout=60) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def _answers(sock: socket.socket) -> Iterator[Frame]:
    """The answers, in order."""
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


def _java_command(case: Case, program: str, topic: str, messages: int) -> list[str]:
    return [
        "java", "-Xmx1g", "-cp", f"{distribution()}/lib/*", f"org.apache.inlong.tubemq.server.tools.cli.{program}",
        "--master-servers", case.cluster.master_addresses, "--topicName", topic, "--messages", str(messages),
    ]  # fmt: skip


def _steady_rate(command: Sequence[str], messages: int, index_bytes: Callable[[], int | None]) -> float:
    """Runs one of TubeMQ's programs; its rate between a tenth and nine tenths of the messages.

    By where the broker's index is, because the programs say no times that are of use: the consumer waits 13 s for its
    partition, and the producer looks every five seconds whether it has finished.
    """
    seen: list[tuple[float, float]] = []
    deadline = time.monotonic() + PROGRAM_PATIENCE_S
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        while program.poll() is None:
            if time.monotonic() > deadline:
                program.kill()
                raise RuntimeError(f"{command[4]} did not end within {PROGRAM_PATIENCE_S:.0f} s")
            offset = index_bytes()
            if offset is not None:
                seen.append((time.perf_counter(), offset / INDEX_BYTES / messages))
            time.sleep(0.02)  # the broker tells nobody
    steady = [(when, share) for when, share in seen if 0.1 <= share <= 0.9]
    if len(steady) < 2:
        raise RuntimeError(f"{len(steady)} looks at what {command[4]} does are too few for a rate")
    (began, first), (ended, last) = steady[0], steady[-1]
    return (last - first) * messages / (ended - began)


def contenders(case: Case) -> Mapping[str, Callable[[], float]]:
    """What is measured, by name; each gives messages a second."""
    read, written = case.read_messages, case.written_messages
    return {
        "read_raw": partial(_rate, read, partial(_read_raw, case)),
        "read_alone": partial(_rate, read, partial(_read_alone, case)),
        "read_alone_split": partial(_rate, read, partial(_read_alone_split, case)),
        "read_spark": partial(_warm_rate, read, partial(_read_spark, case)),
        "read_spark_split": partial(_warm_rate, read, partial(_read_spark, case, minPartitions=str(TASKS))),
        "read_java": partial(_read_java, case),
        "read_java_push": partial(_read_java, case, "--consume-push"),
        "write_raw": partial(_rate, written, partial(_write_raw, case)),
        "write_alone": partial(_rate, written, partial(_write_alone, case)),
        "write_spark": partial(_warm_rate, written, partial(_write_spark, case)),
        "write_java": partial(_write_java, case, written, "--without-delay"),
        "write_java_sync": partial(_write_java, case, SYNC_MESSAGES, "--sync-produce", "--without-delay"),
    }


# -- the run


def main(arguments: Sequence[str]) -> None:
    """Parses the command line, measures, reports."""
    parser = argparse.ArgumentParser(
        prog="python -m bench tubemq", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(LABELS), choices=list(LABELS), metavar="CONTENDER")
    parser.add_argument("--sizes", nargs="+", type=int, default=list(READ_MESSAGES), choices=list(READ_MESSAGES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, help="folder of tubemq.json, of which this run's part is replaced")
    parser.add_argument("--update-readme", action="store_true", help="write the table into README.md")
    given = parser.parse_args(arguments)
    rates: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory(prefix="spark-mq-source-bench-") as temporary:
        folder = Path(temporary)
        topics = [Topic(f"full_{size}") for size in given.sizes]
        topics += [Topic(f"sink_{size}", partitions=3) for size in given.sizes]
        cluster = TubeCluster(folder / "tubemq", topics=topics, jvm=BROKER_JVM)
        with cluster:
            spark = spark_session(TASKS, folder)
            spark.dataSource.register(TubeMQDataSource)
            for size in given.sizes:
                case = Case(cluster, size, spark, folder)
                case.fill()
                rates[str(size)] = _interleaved(case, given.only, given.repeats)
            cluster.kill()
    machine = describe_machine(f"TubeMQ {VERSION}")
    if given.output is not None:
        given.output.mkdir(parents=True, exist_ok=True)
        file = given.output / "tubemq.json"
        earlier = json.loads(file.read_text())["rows_per_second"] if file.exists() else {}
        rates = {size: earlier.get(size, {}) | rates.get(size, {}) for size in sorted(earlier | rates, key=int)}
        file.write_text(json.dumps({"machine": machine, "rows_per_second": rates}, indent=1) + "\n")
    table = markdown(rates)
    print(table)
    if given.update_readme:
        readme = ROOT / "README.md"
        readme.write_text(replaced(readme.read_text(), "bench-tubemq", table))


def _interleaved(case: Case, names: Sequence[str], repeats: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in names}
    # The first round is not counted: the broker and Spark compile themselves; Java programs are new each time.
    for repeat in range(repeats + 1):
        for name, measure in contenders(case).items():
            if name in rates and (repeat or "java" not in name):
                rate = measure()
                if repeat:
                    rates[name].append(rate)
        if repeat:
            found = ", ".join(f"{name} {each[-1] / 1e6:.4f}" for name, each in rates.items())
            print(f"[bench]   {case.value_bytes} B {repeat}/{repeats} M rows/s: {found}", flush=True)
    return rates


def markdown(rates: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """The table of README.md.

    Example:
        >>> found = {"100": {"write_raw": [5e4], "write_alone": [4e4], "write_java": [1e4]}}
        >>> print(markdown(found).splitlines()[3])
        | 100 B: write, 1 task without Spark | 0.0400 | 0.80 | 4.0x |
    """
    lines = ["| | M rows/s | of the raw loop | of the Java client |", "|---|---:|---:|---:|"]
    for size, found in rates.items():
        medians = {name: median(found[name]) for name in LABELS if name in found}
        for name, rate in medians.items():
            verb = name.partition("_")[0]
            raw = medians.get(f"{verb}_raw")
            # The faster of its two ways.
            java = max((each for other, each in medians.items() if other.startswith(f"{verb}_java")), default=None)
            ours = not name.endswith("_raw") and "_java" not in name
            share = f"{rate / raw:.2f}" if raw and not name.endswith("_raw") else ""
            times = f"{rate / java:.1f}x" if java and ours else ""
            lines.append(f"| {int(size):,} B: {LABELS[name]} | {rate / 1e6:.4f} | {share} | {times} |")
    machine = describe_machine(f"TubeMQ {VERSION}")
    lines += [
        "",
        f"Medians of {runs(rates.values())} interleaved runs. {machine['date'][:10]}, {machine['cores']} cores "
        f"({machine['cpu']}), TubeMQ {VERSION} and Spark on the same machine; Spark {machine['versions']['pyspark']}.",
    ]
    return "\n".join(lines) + "\n"
