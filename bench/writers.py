"""Writing: ours, the null sink, ready-made entries, pulsar-client and the Java client, each measured as a whole."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow as pa

from bench.publish import NAMESPACE, Workload, create_topic, make_values, publish
from bench.readers import JVM, ROOT, VALUE_ONLY, perf_rate
from brokers.pulsar import distribution, program_environment
from brokers.pulsar_admin import PulsarAdmin
from spark_mq_source.pulsar.options import PulsarOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["WRITERS", "WRITTEN_MESSAGES", "WriteCase", "warm_broker_up", "warm_up_writers"]

WRITTEN_MESSAGES = 3_000_000

BATCHES = 16
BATCH_ROWS = 10_000
"""Of the null source: as many rows as Spark puts into one Arrow batch."""

CLIENT_MESSAGES = 120_000
"""What pulsar-client writes: at a twentieth of our rate, a few seconds give its rate as well as minutes."""

CLIENT_BATCH_BYTES = PulsarOptions.batching_max_bytes
"""Of the two clients' batches: as many as ours have; Java's are slower with the 100 kB of the entries made ready."""

BATCH_DELAY_MS = 10
"""How long the two clients wait for a batch to fill."""

PERF_SECONDS = 7
PERF_WARM_UP_SECONDS = 3
PERF_REPORT = "Publish throughput:"
PERF_RATE = 10_000_000
"""A second: as fast as it can."""

WARM_UP_WRITES = 3
"""The first ones are half as fast."""

_serial = itertools.count()


@dataclass(frozen=True)
class WriteCase:
    """One workload being written by all contenders, each time to a topic of its own.

    Attributes:
        workload: how many messages, of what size and codec, to how many partitions.
        service_url: the broker's address.
        admin_url: its admin interface.
        spark: a session with as many cores as there are partitions, two at most.
        folder: for files of this run.
    """

    workload: Workload
    service_url: str
    admin_url: str
    spark: SparkSession
    folder: Path

    def rows(self) -> DataFrame:
        """The null source's DataFrame, the same for all that Spark writes: as many partitions as the topic."""
        workload = self.workload
        file = self.folder / f"rows-{workload.value_bytes}.arrow"
        if not file.exists():
            values = pa.table({"value": pa.array(make_values(workload.value_bytes, BATCHES * BATCH_ROWS), pa.binary())})
            with pa.ipc.new_file(file, values.schema) as out:
                out.write_table(values, max_chunksize=BATCH_ROWS)
        return (
            self.spark.read.format("bench-null")
            .option("batches", str(file))
            .option("rows", str(workload.messages // workload.partitions))
            .option("partitions", str(workload.partitions))
            .schema(VALUE_ONLY)
            .load()
        )

    @contextmanager
    def topic(self) -> Iterator[str]:
        """A new topic, which is deleted afterwards: the disk is not to fill."""
        topic = f"persistent://{NAMESPACE}/written-{os.getpid()}-{next(_serial)}"
        create_topic(self.admin_url, topic, self.workload.partitions)
        yield topic
        PulsarAdmin(self.admin_url).delete_topic(topic, partitioned=True)

    def save(self, format_: str, **options: str) -> float:
        """Rows a second of the whole job: planning, the tasks, Spark's own start and end."""
        rows = self.rows()
        started = time.perf_counter()
        rows.write.format(format_).options(**options).mode("append").save()
        return self.workload.messages / (time.perf_counter() - started)

    def save_ours(self, topic: str) -> float:
        """Rows a second of `pulsar-native`."""
        codec = self.workload.codec.upper()
        return self.save("pulsar-native", serviceUrl=self.service_url, topic=topic, compressionType=codec)

    def check(self) -> None:
        """Writes everything once and compares what is in the topic then.

        Raises:
            RuntimeError: rows are missing, too many, or not of the right size.
        """
        with self.topic() as topic:
            self.save_ours(topic)
            reader = self.spark.read.format("pulsar-native").options(serviceUrl=self.service_url, topic=topic)
            found = reader.schema(VALUE_ONLY).load().selectExpr("count(*)", "sum(length(value))").first()
        wanted = (self.workload.messages, self.workload.messages * self.workload.value_bytes)
        if found is None or tuple(found) != wanted:
            raise RuntimeError(f"{topic}: found (rows, bytes) {found}, written {wanted}")


def _ours(case: WriteCase) -> float:
    with case.topic() as topic:
        return case.save_ours(topic)


def _null(case: WriteCase) -> float:
    return case.save("bench-null", rows=str(case.workload.messages))


def _ready_made(case: WriteCase) -> float:
    parts = urlsplit(case.service_url)
    with case.topic() as topic:
        return publish((parts.hostname or "", parts.port or 6650), topic, case.workload, value_only=True)


def _pulsar_client(case: WriteCase) -> float:
    workload = case.workload
    with case.topic() as topic:
        # A process of its own: its threads and its memory allocator are not shared with Spark's driver.
        command = [sys.executable, "-m", "bench.writers", case.service_url, topic, workload.codec]
        command += [str(workload.value_bytes), str(CLIENT_MESSAGES)]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300)
    return float(done.stdout.split()[-1])


def _pulsar_perf(case: WriteCase) -> float:
    """The Java client's own rates a second, without the seconds in which its JVM warms up."""
    workload = case.workload
    payloads = case.folder / f"payloads-{workload.value_bytes}.txt"
    if not payloads.exists():
        payloads.write_bytes(b"~".join(make_values(workload.value_bytes, BATCH_ROWS)))
    with case.topic() as topic:
        command: list[str] = [
            str(distribution() / "bin" / "pulsar-perf"), "produce",
            "--service-url", case.service_url,
            "--rate", str(PERF_RATE),
            "--payload-file", str(payloads), "--payload-delimiter", "~",
            "--batch-max-bytes", str(CLIENT_BATCH_BYTES),
            "--batch-max-messages", str(CLIENT_BATCH_BYTES),
            "--batch-time-window", str(BATCH_DELAY_MS),
            "--compression", workload.codec.upper(),
            "--stats-interval-seconds", "1",
            "--test-duration", str(3 * PERF_SECONDS),
            topic,
        ]  # fmt: skip
        environment = {**os.environ, **program_environment(case.folder, JVM)}
        with subprocess.Popen(
            command, env=environment, cwd=case.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            assert process.stdout is not None  # noqa: S101 - for mypy
            output, reports = "", 0
            for line in process.stdout:
                output += line
                reports += PERF_REPORT in line
                if reports == PERF_SECONDS * workload.partitions:
                    # Ending by itself takes it ten more seconds.
                    process.kill()
    return perf_rate(output, PERF_REPORT, range(PERF_WARM_UP_SECONDS, PERF_SECONDS))


WRITERS: Mapping[str, Callable[[WriteCase], float]] = {
    "ours": _ours,
    "null": _null,
    "ready_made": _ready_made,
    "pulsar_client": _pulsar_client,
    "pulsar_perf": _pulsar_perf,
}
"""Name to what measures it: rows a second. The order is that of an interleaved round."""


def warm_broker_up(case: WriteCase) -> None:
    """Writes until the broker's JVM has compiled what takes messages."""
    for _ in range(WARM_UP_WRITES):
        _ready_made(case)


def warm_up_writers(case: WriteCase) -> None:
    """What is not counted: Spark's JVM compiles itself, what ours writes is read and counted."""
    for _ in range(WARM_UP_WRITES):
        _ours(case)
    case.check()
    _null(case)


def _write_with_pulsar_client(service_url: str, topic: str, codec: str, value_bytes: int, messages: int) -> float:
    import pulsar

    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_allowed_size_in_bytes=CLIENT_BATCH_BYTES,
        batching_max_messages=CLIENT_BATCH_BYTES,
        batching_max_publish_delay_ms=BATCH_DELAY_MS,
        block_if_queue_full=True,
        max_pending_messages=100_000,
        max_pending_messages_across_partitions=400_000,
        compression_type=getattr(pulsar.CompressionType, codec.upper()),
    )
    values = make_values(value_bytes, BATCH_ROWS)
    stored = 0
    all_stored = threading.Event()

    def take(result: Any, _message_id: object) -> None:  # noqa: ANN401 - the client's enumeration is not annotated
        nonlocal stored
        # The client calls from one thread at a time: it holds the interpreter's lock.
        stored += result == pulsar.Result.Ok
        if stored == messages:
            all_stored.set()

    started = time.perf_counter()
    for value in itertools.islice(itertools.cycle(values), messages):
        producer.send_async(value, take)
    producer.flush()
    if not all_stored.wait(60):
        raise RuntimeError(f"{stored} of {messages} messages were stored")
    seconds = time.perf_counter() - started
    client.close()
    return messages / seconds


if __name__ == "__main__":
    url, topic, codec, *sizes = sys.argv[1:]
    print(_write_with_pulsar_client(url, topic, codec, *map(int, sizes)))
