"""`make demo`: 336,776 real flights through a real Pulsar broker into Spark, compared with their source file.

Starts a Pulsar broker on free ports, publishes the flights that left New York in 2013 with
`df.write.format("pulsar-native")`, reads them with the official pulsar-client and with
`spark.read.format("pulsar-native")`, and replays the year to a streaming query, see `demo.live`. Late flights are
forwarded to a TubeMQ topic, and alerts of the worst ones to an NSQ topic, and read back there. Stops everything, and
exits with code 1 if a flight is missing, duplicated or changed.
"""

from __future__ import annotations

import csv
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brokers.pulsar import PulsarStandalone
from demo.data import FLIGHT_COLUMNS, DelayTotals, Flight, compare, data_file, read_flights, unpack_flights
from demo.live import replay_and_compare
from demo.nsq import alert_and_count
from demo.official import read_all
from demo.say import say
from demo.tubemq import pass_on_and_count

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "persistent://public/tests/flights"
PARTITIONS = 4
BY_CARRIER = """
    SELECT name AS airline, count(*) AS flights, avg(flight.dep_delay) AS mean_delay_min, first(key) AS carrier
    FROM (SELECT CAST(key AS STRING) AS key,
                 from_csv(CAST(value AS STRING), '{columns}', map('nullValue', 'NA')) AS flight
          FROM flights)
    JOIN airlines ON flight.carrier = airlines.carrier
    GROUP BY name ORDER BY flights DESC
"""


def main() -> None:
    """Run the demo.

    Raises:
        SystemExit: with 1 if the results differ from the file.
    """
    say("Starting a Pulsar broker (the first time, fetching it takes a minute) ...")
    with tempfile.TemporaryDirectory(prefix="flights-", ignore_cleanup_errors=True) as folder:
        with PulsarStandalone(Path(folder) / "broker") as broker:
            say(f"Pulsar {broker.admin.broker_version()} answers on {broker.service_url}")
            broker.admin.create_topic(TOPIC, PARTITIONS)
            say("Starting Spark ...")
            spark = start_spark()
            try:
                flights = list(read_flights())
                publish(spark, broker.service_url, unpack_flights(Path(folder)), len(flights))
                problems = check_with_official_client(broker, flights)
                problems += read_and_compare(spark, broker.service_url, by_carrier(flights))
                problems += replay_and_compare(spark, broker, flights, Path(folder) / "checkpoint")
                published = load_flights(spark, broker.service_url).select("key", "value")
                problems += pass_on_and_count(published, flights, Path(folder) / "tubemq")
                problems += alert_and_count(published, flights)
            finally:
                spark.stop()
        for problem in problems:
            say(f"MISMATCH: {problem}")
        if problems:
            sys.exit(1)
        say(
            "Every flight was read exactly once: by the official client, in batch and stream, from TubeMQ and NSQ. All "
            "stopped."
        )


def publish(spark: SparkSession, service_url: str, csv_file: Path, flights: int) -> None:
    """Publish each line of the file as a message; the key is the carrier, the event time the hour of departure."""
    from pyspark.sql import functions as f

    say(f'Publishing them to {PARTITIONS} partitions with df.write.format("pulsar-native") ...')
    began = time.monotonic()
    (
        spark.read.text(str(csv_file))
        .withColumn("flight", f.from_csv("value", FLIGHT_COLUMNS, {"nullValue": "NA"}))
        .filter("flight.flight IS NOT NULL")  # drops the header
        .selectExpr("value", "flight.carrier AS key", "flight.time_hour AS event_time")
        .write.format("pulsar-native")
        .option("serviceUrl", service_url)
        .option("topic", TOPIC)
        .option("compressionType", "LZ4")
        .mode("append")
        .save()
    )
    seconds = time.monotonic() - began
    say(f"  {flights:,} flights parsed, and acknowledged by the broker, in {seconds:.1f} s")


def check_with_official_client(broker: PulsarStandalone, flights: Sequence[Flight]) -> list[str]:
    """Read the topic with pulsar-client, and return its differences from the file."""
    say("Reading them with the official pulsar-client ...")
    began = time.monotonic()
    found = read_all(broker, TOPIC)
    seconds = time.monotonic() - began
    wanted = Counter((flight.line, flight.carrier, flight.hour_ms) for flight in flights)
    say(f"  {found.total():,} messages in {seconds:.1f} s, {(found & wanted).total():,} of them as in the file")
    if found == wanted:
        return []
    return [f"pulsar-client: {(wanted - found).total():,} flights are missing, {(found - wanted).total():,} too many"]


def by_carrier(flights: Sequence[Flight]) -> dict[str, DelayTotals]:
    """Return the expected totals of the batch read, by carrier."""
    totals: dict[str, DelayTotals] = defaultdict(DelayTotals)
    for flight in flights:
        totals[flight.carrier].add(flight)
    return dict(totals)


def start_spark() -> SparkSession:
    """Return a local session with two task slots, on loopback."""
    # Executors use PYSPARK_PYTHON, not the driver's interpreter.
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


def load_flights(spark: SparkSession, service_url: str) -> DataFrame:
    """Return the topic as a DataFrame."""
    return spark.read.format("pulsar-native").option("serviceUrl", service_url).option("topic", TOPIC).load()


def read_and_compare(spark: SparkSession, service_url: str, expected: Mapping[str, DelayTotals]) -> list[str]:
    """Print the table and the rate, and return all differences from the file."""
    flights = load_flights(spark, service_url)
    flights.createOrReplaceTempView("flights")
    say('Reading them with spark.read.format("pulsar-native") ...')
    began = time.monotonic()
    rows = spark.sql(BY_CARRIER.format(columns=FLIGHT_COLUMNS)).collect()
    table_seconds = time.monotonic() - began
    say(f"\n  {'airline':<28}{'flights':>9}{'mean departure delay':>24}")
    problems = []
    for row in rows:
        say(f"  {row.airline:<28}{row.flights:>9,}{row.mean_delay_min:>20.1f} min")
        problems += compare(row.airline, row.flights, row.mean_delay_min, expected.get(row.carrier, DelayTotals()))
    read, published = sum(row.flights for row in rows), sum(total.flights for total in expected.values())
    say(f"\n{read:,} rows read, {published:,} lines in the file; the table took {table_seconds:.1f} s")
    if read != published or len(rows) != len(expected):
        problems.append(f"{read:,} rows of {len(rows)} carriers read, {published:,} of {len(expected)} in the file")
    # The rate of reading alone, with all default columns and warm Spark.
    began = time.monotonic()
    load_flights(spark, service_url).write.format("noop").mode("overwrite").save()
    seconds = time.monotonic() - began
    say(f"Read again without the SQL: {published:,} rows, all default columns, {published / seconds:,.0f} rows/s")
    return problems


if __name__ == "__main__":
    main()
