"""The contenders: ours, the null source, pulsar-client and the Java client, each measured from outside as a whole."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from bench.publish import Workload
from bench.sources import MeasuredSource, NullSource
from brokers.pulsar import distribution, program_environment
from spark_mq_source.core.options import READ
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import read_range
from spark_mq_source.spark._compat import arrow_schema
from spark_mq_source.spark.pulsar import PulsarNativeDataSource

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["CONTENDERS", "JVM", "Case", "perf_rate", "spark_schema", "spark_session", "warm_broker", "warm_up"]

ROOT = Path(__file__).resolve().parent.parent

VALUE_ONLY = "value binary"

JVM = {"PULSAR_MEM": "-Xms2g -Xmx2g -XX:MaxDirectMemorySize=4g", "PULSAR_GC": "-XX:+UseParallelGC"}
"""The broker's and the Java client's: the memory that Pulsar's own scripts give them, and the collector that takes the
least of the processor from the others on two cores."""

WARM_UP_READS = 8
"""In the first ones a broker takes three times the processor time that it takes once its JVM has compiled itself."""

NULL_BATCHES = 16
"""Batches that the null source takes turns with: some 32 MB, so that it does not read from the processor's cache."""

CLIENT_MESSAGES = {100: 1_000_000, 1024: 500_000}
"""What pulsar-client reads of a topic: at a tenth of our rate, a few seconds give its rate as well as minutes."""

PERF_SECONDS = 7
PERF_WARM_UP_SECONDS = 2
PERF_SHARE = 0.85
"""The Java client stops at this share of the topic, so that every partition is being read to the end."""


@dataclass
class Case:
    """One workload being read by all contenders.

    Attributes:
        workload: what the topic holds.
        service_url: the broker's address.
        spark: a session with as many cores as there are partitions, two at most.
        folder: for files of this run.
    """

    workload: Workload
    service_url: str
    spark: SparkSession
    folder: Path
    _null_files: dict[str, Path] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, str]:
        """Options of `pulsar-native`."""
        return {"serviceUrl": self.service_url, "topic": self.workload.topic}

    @property
    def client_topic(self) -> str:
        """The topic for the other clients: the partition itself where there is one, which spares them a layer."""
        return self.workload.topic if self.workload.partitions > 1 else f"{self.workload.topic}-partition-0"

    def read_ours(self, columns: str | None) -> DataFrame:
        """Our DataFrame: default columns, or those named."""
        reader = self.spark.read.format("pulsar-native").options(**self.options)
        return (reader.schema(columns) if columns else reader).load()

    def check(self, columns: str | None) -> None:
        """Reads everything once and compares what came with what was published.

        Raises:
            RuntimeError: rows are missing, too many, or not of the right size.
        """
        wanted = (self.workload.messages, self.workload.messages * self.workload.value_bytes)
        found = self.read_ours(columns).selectExpr("count(*)", "sum(length(value))").first()
        if found is None or tuple(found) != wanted:
            raise RuntimeError(f"{self.workload.topic}: read (rows, bytes) {found}, published {wanted}")

    def null_file(self, columns: str | None) -> Path:
        """Batches that our reader makes of this topic, for the null source."""
        key = columns or "default"
        if key not in self._null_files:
            options = PulsarOptions.from_spark(self.options, READ)
            schema = arrow_schema(spark_schema(columns))
            path = self.folder / f"null-{self.workload.topic.rpartition('/')[2]}-{key.split()[0]}.arrow"
            batches = read_range(options, plan_batch(options)[0], schema)
            # Closing the generator closes its connection: the rest of the topic is not wanted.
            with contextlib.closing(cast("Generator[pa.RecordBatch]", batches)), pa.ipc.new_file(path, schema) as file:
                for batch in itertools.islice(batches, NULL_BATCHES):
                    file.write_batch(batch)
            self._null_files[key] = path
        return self._null_files[key]


def spark_schema(columns: str | None) -> StructType:
    """The named columns, or those that are read by default."""
    from pyspark.sql.types import StructType

    return cast("StructType", StructType.fromDDL(columns or PulsarNativeDataSource({}).schema()))


def spark_session(partitions: int, folder: Path) -> SparkSession:
    """A session with a core for each partition, at most the two that the broker is sharing; one before is stopped."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    # The workers import bench.sources.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{min(partitions, 2)}]")
        .appName("spark-mq-source bench")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    spark.dataSource.register(PulsarNativeDataSource)
    spark.dataSource.register(NullSource)
    spark.dataSource.register(MeasuredSource)
    return spark


def _rate_of(dataframe: Callable[[], DataFrame], messages: int) -> float:
    """Rows a second of the whole query: planning, the task or tasks, Spark's own start and end of a job."""
    started = time.perf_counter()
    dataframe().write.format("noop").mode("overwrite").save()
    return messages / (time.perf_counter() - started)


def _ours(columns: str | None) -> Callable[[Case], float]:
    return lambda case: _rate_of(lambda: case.read_ours(columns), case.workload.messages)


def _null(columns: str | None) -> Callable[[Case], float]:
    def measure(case: Case) -> float:
        workload = case.workload
        reader = (
            case.spark.read.format("bench-null")
            .option("batches", str(case.null_file(columns)))
            .option("rows", str(workload.messages // workload.partitions))
            .option("partitions", str(workload.partitions))
            .schema(spark_schema(columns))
        )
        return _rate_of(reader.load, workload.messages)

    return measure


def _pulsar_client(case: Case) -> float:
    messages = min(CLIENT_MESSAGES[case.workload.value_bytes], case.workload.messages // 2)
    # A process of its own: its threads and its memory allocator are not shared with Spark's driver.
    command = [sys.executable, "-m", "bench.readers", case.service_url, case.client_topic, str(messages)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300)
    return float(done.stdout.split()[-1])


def _pulsar_perf(case: Case) -> float:
    """The Java client's own rates a second, without the seconds in which its JVM warms up.

    Every consumer (one a partition) reports its rate each second; its mean is taken, and the partitions are summed.
    """
    command: list[str] = [
        str(distribution() / "bin" / "pulsar-perf"), "consume",
        "--service-url", case.service_url,
        "--subscriptions", f"bench-{uuid.uuid4().hex}",
        "--subscription-position", "Earliest",
        "--receiver-queue-size", "10000",
        "--stats-interval-seconds", "1",
        "--test-duration", str(PERF_SECONDS),
        "--num-messages", str(int(PERF_SHARE * case.workload.messages)),
        case.client_topic,
    ]  # fmt: skip
    environment = {**os.environ, **program_environment(case.folder, JVM)}
    done = subprocess.run(
        command, env=environment, cwd=case.folder, check=False, capture_output=True, text=True, timeout=300
    )
    return perf_rate(
        done.stdout + done.stderr, "Consume throughput received:", range(PERF_WARM_UP_SECONDS, PERF_SECONDS)
    )


def perf_rate(output: str, what: str, seconds: range) -> float:
    """The mean of what pulsar-perf reports a partition in these seconds of its run, the partitions summed.

    Raises:
        RuntimeError: it reports nothing.
    """
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for partition, rate in re.findall(rf"\[(\S+-partition-\d+)\].*{what} ([0-9.]+) msgs?/s", output):
        rates[partition].append(float(rate))
    steady = [fmean(r[seconds.start : seconds.stop]) for r in rates.values() if len(r) > seconds.start]
    if not steady:
        raise RuntimeError(f"pulsar-perf reported no rates:\n{output[-2000:]}")
    return sum(steady)


CONTENDERS: Mapping[str, Callable[[Case], float]] = {
    "ours": _ours(None),
    "null": _null(None),
    "ours_value": _ours(VALUE_ONLY),
    "null_value": _null(VALUE_ONLY),
    "pulsar_client": _pulsar_client,
    "pulsar_perf": _pulsar_perf,
}
"""Name to what measures it: rows a second. The order is that of an interleaved round."""


def warm_broker(case: Case) -> None:
    """Reads until the broker's JVM has compiled what sends messages: later contenders must not meet a faster broker."""
    options = PulsarOptions.from_spark(case.options, READ)
    for _ in range(WARM_UP_READS):
        for task in plan_batch(options):
            for _batch in read_range(options, task, arrow_schema(spark_schema(VALUE_ONLY))):
                pass


def warm_up(case: Case, names: Sequence[str]) -> None:
    """One unmeasured run of everything whose JVM lives on from run to run; ours is checked at the same time."""
    for name in names:
        if name.startswith("ours"):
            case.check(VALUE_ONLY if name.endswith("value") else None)
        elif name.startswith("null"):
            CONTENDERS[name](case)


def _read_with_pulsar_client(service_url: str, topic: str, messages: int) -> float:
    import pulsar

    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10_000)
    reader.read_next(60_000)
    started = time.perf_counter()
    for _ in range(messages - 1):
        reader.read_next().data()
    seconds = time.perf_counter() - started
    client.close()
    return (messages - 1) / seconds


if __name__ == "__main__":
    print(_read_with_pulsar_client(sys.argv[1], sys.argv[2], int(sys.argv[3])))
