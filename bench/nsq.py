"""`python -m bench nsq`: what `nsq` reads and writes, beside raw socket loops, which are the limit, and pynsq.

    python -m bench nsq                    everything, three times in turn
    python -m bench nsq --only read_raw read_alone --messages 500000
    python -m bench nsq --update-readme    and the table into the project's README.md

It runs nsqd where that is on PATH, the embedded broker elsewhere, in a process of its own with its stock settings: no
more than 2,500 messages are in flight on a connection. Messages are 100 B. The raw loops know the size of every frame
beforehand and look at nothing else: they receive and send FIN for all that came, or send MPUBs made ready and count
the answers. Reading is timed until the channel is empty and nothing is in flight, from before connecting; in Spark, the
whole job.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import http.client
import json
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

from bench.publish import make_values
from bench.readers import ROOT, VALUE_ONLY, spark_session
from bench.report import describe_machine, replaced, runs
from brokers.nsq import NsqdProcess, nsqd_on_path, wait_until_answering
from brokers.processes import ManagedProcess, free_ports
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.planner import plan_batch
from spark_mq_source.nsq.read.reader import read_range
from spark_mq_source.nsq.write.writer import write_rows
from spark_mq_source.spark.nsq import NsqDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MESSAGES = 2_000_000
PYNSQ_MESSAGES = 60_000
"""At a fiftieth of our rate, that takes as long as ours takes for all."""

VALUE_BYTES = 100
FRAME_BYTES = 34 + VALUE_BYTES
READY = 2500
"""nsqd's default `-max-rdy-count`."""

MPUB_MESSAGES = 2500
PENDING_MPUBS = 64
ARROW_ROWS = 10_000
"""As many rows as Spark puts into one Arrow batch."""

LABELS = {
    "read_raw": "read, raw socket loop",
    "read_alone": "read, 1 connection, without Spark",
    "read_spark": "read in Spark, 1 connection",
    "read_spark_2": "read in Spark, 2 connections",
    "read_deflate": "read in Spark, deflate",
    "read_snappy": "read in Spark, snappy",
    "read_pynsq": "read, pynsq",
    "write_raw": "write, raw MPUB loop",
    "write_alone": "write, without Spark",
    "write_spark": "write in Spark",
    "write_deflate": "write in Spark, deflate",
    "write_snappy": "write in Spark, snappy",
}


@dataclass(frozen=True)
class Case:
    """One broker, and how much goes through it.

    Attributes:
        tcp_address: of nsqd.
        http_address: of its HTTP interface.
        messages: how many.
        spark: a session with two cores.
        folder: for files of this run.
    """

    tcp_address: str
    http_address: str
    messages: int
    spark: SparkSession
    folder: Path

    @property
    def addresses(self) -> dict[str, str]:
        """The options that say where the broker is."""
        return {"nsqdTcpAddresses": self.tcp_address, "nsqdHttpAddresses": self.http_address}

    @contextlib.contextmanager
    def topic(self, *, filled: int = 0) -> Iterator[str]:
        """A new topic with the channel `c`, which is deleted afterwards: memory is not to fill."""
        topic = f"bench-{time.monotonic_ns()}"
        self.post("/topic/create", topic=topic)
        self.post("/channel/create", topic=topic, channel="c")
        if filled:
            _send_mpubs(self, topic, filled)
        yield topic
        self.post("/topic/delete", topic=topic)

    def post(self, path: str, **parameters: str) -> None:
        """Tells the broker's HTTP interface something."""
        self._ask("POST", path, **parameters)

    def waiting(self, topic: str) -> int:
        """Messages in the topic's channel, those in flight included."""
        stats = json.loads(self._ask("GET", "/stats", format="json", topic=topic, channel="c", include_mem="false"))
        channel = stats["topics"][0]["channels"][0]
        return int(channel["depth"]) + int(channel["in_flight_count"])

    def _ask(self, method: str, path: str, **parameters: str) -> bytes:
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        connection = http.client.HTTPConnection(self.http_address, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, f"{path}?{query}")
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body!r}")
        return body


@functools.cache
def _rows() -> pa.Table:
    """What is written."""
    values = make_values(VALUE_BYTES, 16 * ARROW_ROWS)
    return pa.table({"value": pa.array(values, pa.binary())})


# -- reading


def _read(case: Case, read: Callable[[str, int], None], messages: int | None = None) -> float:
    """Messages a second of something that empties a channel."""
    messages = messages or case.messages
    with case.topic(filled=messages) as topic:
        started = time.perf_counter()
        read(topic, messages)
        seconds = time.perf_counter() - started
        left = case.waiting(topic)
        if left:
            raise RuntimeError(f"{left} messages of {messages} were not finished")
    return messages / seconds


def _raw_loop(case: Case, topic: str, messages: int) -> None:
    with _connected(case) as sock:
        sock.sendall(f"SUB {topic} c\nRDY {READY}\n".encode())
        _expect(sock, b"\0\0\0\x06\0\0\0\0OK")
        unread = b""
        left = messages
        while left:
            data = unread + sock.recv(1 << 18)
            count = len(data) // FRAME_BYTES
            end = count * FRAME_BYTES
            if count:
                idents = [data[start : start + 16] for start in range(18, end, FRAME_BYTES)]
                sock.sendall(b"FIN " + b"\nFIN ".join(idents) + b"\n")
            unread = data[end:]
            left -= count
        sock.sendall(b"CLS\n")
        _expect(sock, b"\0\0\0\x0e\0\0\0\0CLOSE_WAIT")


def _read_alone(case: Case, topic: str, messages: int) -> None:
    options = NsqOptions.from_spark(_read_options(case, topic, messages), READ)
    schema = pa.schema([("value", pa.binary())])
    rows = sum(batch.num_rows for part in plan_batch(options) for batch in read_range(options, part, schema))
    _check_rows(rows, messages)


def _read_spark(case: Case, topic: str, messages: int, **options: str) -> None:
    given = {**_read_options(case, topic, messages), **options}
    case.spark.read.format("nsq").schema(VALUE_ONLY).options(**given).load().write.format("noop").mode(
        "overwrite"
    ).save()


def _read_options(case: Case, topic: str, messages: int) -> dict[str, str]:
    return {**case.addresses, "topic": topic, "channel": "c", "maxRows": str(messages)}


def _check_rows(rows: int, messages: int) -> None:
    if rows != messages:
        raise RuntimeError(f"{rows} rows of {messages} were read")


def _read_pynsq(case: Case, topic: str, messages: int) -> None:
    command = [sys.executable, "-m", "bench.nsq", "pynsq", case.tcp_address, topic, str(messages)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=600)


async def _pynsq(address: str, topic: str, messages: int) -> None:
    import nsq  # type: ignore[import-untyped] # it has no annotations

    left = messages
    done = asyncio.Event()

    def handle(_message: object) -> bool:
        nonlocal left
        left -= 1
        if not left:
            # The FIN of this one follows, and pynsq does not tell when it is sent.
            asyncio.get_running_loop().call_later(0.05, done.set)
        return True

    nsq.Reader(topic, "c", handle, nsqd_tcp_addresses=[address], max_in_flight=READY)
    await done.wait()


# -- writing


def _write(case: Case, write: Callable[[str], None]) -> float:
    """Messages a second of something that fills a topic."""
    with case.topic() as topic:
        started = time.perf_counter()
        write(topic)
        seconds = time.perf_counter() - started
        _check_rows(case.waiting(topic), case.messages)
    return case.messages / seconds


def _send_mpubs(case: Case, topic: str, messages: int) -> None:
    values = make_values(VALUE_BYTES, MPUB_MESSAGES)
    head = struct.pack(">I", VALUE_BYTES)
    packed = struct.pack(">I", MPUB_MESSAGES) + b"".join(head + value for value in values)
    command = f"MPUB {topic}\n".encode() + struct.pack(">I", len(packed)) + packed
    count, rest = divmod(messages, MPUB_MESSAGES)
    if rest:
        raise ValueError(f"{messages} is no multiple of {MPUB_MESSAGES}")
    free = threading.Semaphore(PENDING_MPUBS)
    with _connected(case) as sock:

        def take_answers() -> None:
            for _ in range(count):
                _expect(sock, b"\0\0\0\x06\0\0\0\0OK")
                free.release()

        taker = threading.Thread(target=take_answers)
        taker.start()
        for _ in range(count):
            free.acquire()
            sock.sendall(command)
        taker.join()


def _write_alone(case: Case, topic: str) -> None:
    options = NsqOptions.from_spark({**case.addresses, "topic": topic}, WRITE)
    batches = _rows().to_batches(max_chunksize=ARROW_ROWS)
    turns = (batches[number % len(batches)] for number in range(case.messages // ARROW_ROWS))
    write_rows(options, turns, TaskAttempt("bench"))


def _write_spark(case: Case, topic: str, **options: str) -> None:
    given = {**case.addresses, "topic": topic, **options}
    file = case.folder / "rows.arrow"
    if not file.exists():
        rows = _rows()
        with pa.ipc.new_file(file, rows.schema) as out:
            out.write_table(rows, max_chunksize=ARROW_ROWS)
    (
        case.spark.read.format("bench-null")
        .options(batches=str(file), rows=str(case.messages), partitions="1")
        .schema(VALUE_ONLY)
        .load()
        .write.format("nsq")
        .options(**given)
        .mode("append")
        .save()
    )


@contextlib.contextmanager
def _connected(case: Case) -> Iterator[socket.socket]:
    host, _, port = case.tcp_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60) as sock:
        sock.sendall(b"  V2")
        yield sock


def _expect(sock: socket.socket, expected: bytes) -> None:
    got = b""
    while len(got) < len(expected):
        data = sock.recv(len(expected) - len(got))
        if not data:
            break
        got += data
    if got != expected:
        raise RuntimeError(f"{expected!r} was expected, {got!r} came")


def contenders(case: Case) -> Mapping[str, Callable[[], float]]:
    """What is measured, by name; each gives messages a second."""
    return {
        "read_raw": functools.partial(_read, case, functools.partial(_raw_loop, case)),
        "read_alone": functools.partial(_read, case, functools.partial(_read_alone, case)),
        "read_spark": functools.partial(_read, case, functools.partial(_read_spark, case)),
        "read_spark_2": functools.partial(_read, case, functools.partial(_read_spark, case, connectionsPerNsqd="2")),
        "read_deflate": functools.partial(_read, case, functools.partial(_read_spark, case, compression="deflate")),
        "read_snappy": functools.partial(_read, case, functools.partial(_read_spark, case, compression="snappy")),
        "read_pynsq": functools.partial(_read, case, functools.partial(_read_pynsq, case), PYNSQ_MESSAGES),
        "write_raw": functools.partial(_write, case, lambda topic: _send_mpubs(case, topic, case.messages)),
        "write_alone": functools.partial(_write, case, functools.partial(_write_alone, case)),
        "write_spark": functools.partial(_write, case, functools.partial(_write_spark, case)),
        "write_deflate": functools.partial(_write, case, functools.partial(_write_spark, case, compression="deflate")),
        "write_snappy": functools.partial(_write, case, functools.partial(_write_spark, case, compression="snappy")),
    }


# -- the run


def main(arguments: Sequence[str]) -> None:
    """Parses the command line, measures, reports."""
    if arguments[:1] == ["pynsq"]:
        _, address, topic, messages = arguments
        asyncio.run(_pynsq(address, topic, int(messages)))
        return
    parser = argparse.ArgumentParser(
        prog="python -m bench nsq", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", default=list(LABELS), choices=list(LABELS), metavar="CONTENDER")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"a multiple of {ARROW_ROWS}")
    parser.add_argument("--output", type=Path, help="folder of nsq.json")
    parser.add_argument("--update-readme", action="store_true", help="write the table into README.md")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="spark-mq-source-bench-") as temporary:
        folder = Path(temporary)
        with _broker(folder) as (name, tcp_address, http_address):
            spark = spark_session(2, folder)
            spark.dataSource.register(NsqDataSource)
            case = Case(tcp_address, http_address, given.messages, spark, folder)
            rates = _interleaved(case, given.only, given.repeats)
    table = markdown(rates, name)
    print(table)
    machine = describe_machine(name)
    if given.output is not None:
        document = {"machine": machine, "messages": given.messages, "rows_per_second": rates}
        (given.output / "nsq.json").write_text(json.dumps(document, indent=1) + "\n")
    if given.update_readme:
        readme = ROOT / "README.md"
        readme.write_text(replaced(readme.read_text(), "bench-nsq", table))


def _interleaved(case: Case, names: Sequence[str], repeats: int) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in names}
    _rows()  # made before anything is timed
    # The first of each is not counted: Spark compiles and loads what all need.
    for repeat in range(repeats + 1):
        for name, measure in contenders(case).items():
            if name in rates and (repeat or "spark" in name):
                rate = measure()
                if repeat:
                    rates[name].append(rate)
        if repeat:
            found = ", ".join(f"{name} {each[-1] / 1e6:.3f}" for name, each in rates.items())
            print(f"[bench]   {repeat}/{repeats} M rows/s: {found}", flush=True)
    return rates


def markdown(rates: Mapping[str, Sequence[float]], broker: str) -> str:
    """The table of README.md.

    Example:
        >>> print(markdown({"read_raw": [2e6], "read_alone": [1e6], "read_pynsq": [5e4]}, "nsqd").splitlines()[3])
        | read, 1 connection, without Spark | 1.00 | 0.50 | 20x |
    """
    lines = ["| messages of 100 B | M rows/s | of the raw loop | of pynsq |", "|---|---:|---:|---:|"]
    medians = {name: median(each) for name, each in rates.items()}
    for name, rate in medians.items():
        verb = name.partition("_")[0]
        raw, peer = medians.get(f"{verb}_raw"), medians.get(f"{verb}_pynsq")
        share = f"{rate / raw:.2f}" if raw and not name.endswith("_raw") else ""
        times = f"{rate / peer:.0f}x" if peer and not name.endswith("_pynsq") else ""
        lines.append(f"| {LABELS[name]} | {rate / 1e6:.{2 if rate > 1e5 else 3}f} | {share} | {times} |")
    machine = describe_machine(broker)
    versions = machine["versions"]
    lines += [
        "",
        f"Medians of {runs([rates])} interleaved runs. {machine['date'][:10]}, {machine['cores']} cores "
        f"({machine['cpu']}), {broker} and Spark on the same machine; Spark {versions['pyspark']}.",
    ]
    return "\n".join(lines)


@contextlib.contextmanager
def _broker(folder: Path) -> Iterator[tuple[str, str, str]]:
    """What it is, and its addresses."""
    if nsqd_on_path():
        nsqd = NsqdProcess(folder / "nsqd", mem_queue_size=2 * MESSAGES)
        nsqd.start()
        try:
            yield "nsqd", nsqd.tcp_address, nsqd.http_address
        finally:
            nsqd.stop()
        return
    tcp, web, lookup = free_ports(3)
    command = [sys.executable, "-m", "spark_mq_source.testing", "--tcp-port", str(tcp), "--http-port", str(web),
               "--lookupd-http-port", str(lookup)]  # fmt: skip
    log = folder / "broker.log"
    process = ManagedProcess(command, log=log, folder=folder)
    try:
        wait_until_answering(f"127.0.0.1:{web}", log, lambda: process.alive)
        yield "the embedded broker", f"127.0.0.1:{tcp}", f"127.0.0.1:{web}"
    finally:
        process.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
