"""The streaming part of the demo: one year of flights, replayed in half a minute, and a table of delays.

A streaming query on `pulsar-native` computes the mean departure delay of each airport in event-time windows of four
weeks, while the official pulsar-client replays the year in order. It ends when all replayed flights have been read, and
the table is compared with the file.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from brokers.pulsar import PulsarStandalone
from demo.data import FLIGHT_COLUMNS, DelayTotals, Flight, compare
from demo.official import Publisher
from demo.say import say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["replay_and_compare"]

TOPIC = "persistent://public/tests/flights-replayed"
PARTITIONS = 4
REPLAY_SECONDS = 20.0
DAY_MS = 86_400_000
WINDOW_DAYS = 28
WINDOW_MS = WINDOW_DAYS * DAY_MS
WATERMARK_DAYS = 7
"""A day is stored completely before the next one is sent, so within a trigger the partitions differ by the days that
pass while their ends are fetched: one or two.
"""
TRIGGER = "3 seconds"
AIRPORTS = ("EWR", "JFK", "LGA")

Group = tuple[int, str]
"""Start of a window, in seconds since 1970, and an airport."""


class DelayTable:
    """The query's latest result for each window and airport."""

    def __init__(self) -> None:
        self.flights: dict[Group, int] = {}
        self.mean_delays_min: dict[Group, float] = {}

    def take(self, changed: DataFrame, _batch: int) -> None:
        """Store and print the changed rows of one trigger."""
        rows = changed.collect()
        if not rows:
            return
        for row in rows:
            self.flights[row.start_s, row.origin] = row.flights
            self.mean_delays_min[row.start_s, row.origin] = row.mean_delay_min
        say(
            f"\n  {sum(self.flights.values()):,} flights read\n  four weeks from{''.join(f'{a:>20}' for a in AIRPORTS)}"
        )
        for start_s in sorted({row.start_s for row in rows}):
            cells = [self._cell((start_s, airport)) for airport in AIRPORTS]
            say(f"  {date(start_s)}     {''.join(f'{cell:>20}' for cell in cells)}")

    def _cell(self, group: Group) -> str:
        if group not in self.flights:
            return ""
        return f"{self.flights[group]:,}: {self.mean_delays_min[group]:.1f} min"


def replay_and_compare(
    spark: SparkSession, broker: PulsarStandalone, flights: Sequence[Flight], checkpoint: Path
) -> list[str]:
    """Replay the flights, print the table's changes, and return all differences from the file."""
    broker.admin.create_topic(TOPIC, PARTITIONS)
    say(
        f'\nReading them as they come, with spark.readStream.format("pulsar-native"): the year is replayed in '
        f"{REPLAY_SECONDS:.0f} seconds, and a table of flights and mean departure delays follows every {TRIGGER} ..."
    )
    table = DelayTable()
    query = (
        delays_by_airport(spark, broker.service_url)
        .writeStream.outputMode("update")
        .trigger(processingTime=TRIGGER)
        .option("checkpointLocation", str(checkpoint))
        .foreachBatch(table.take)
        .start()
    )
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            seconds = pool.submit(replay, broker, flights).result()
        say(f"\n  All {len(flights):,} flights are replayed, in {seconds:.0f} s; waiting for the last to be read ...")
        query.processAllAvailable()
    finally:
        query.stop()
    return differences(table, flights)


def delays_by_airport(spark: SparkSession, service_url: str) -> DataFrame:
    """Return the streaming table: flights and mean delay for each event-time window and airport."""
    from pyspark.sql import functions as f

    return (
        spark.readStream.format("pulsar-native")
        .option("serviceUrl", service_url)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("subscription", "delays")
        .schema("value string, event_time timestamp")
        .load()
        .withColumn("flight", f.from_csv("value", FLIGHT_COLUMNS, {"nullValue": "NA"}))
        .withWatermark("event_time", f"{WATERMARK_DAYS} days")
        .groupBy(f.window("event_time", f"{WINDOW_DAYS} days"), "flight.origin")
        .agg(f.count("*").alias("flights"), f.avg("flight.dep_delay").alias("mean_delay_min"))
        .select(f.unix_seconds("window.start").alias("start_s"), "origin", "flights", "mean_delay_min")
    )


def replay(broker: PulsarStandalone, flights: Sequence[Flight]) -> float:
    """Publish the flights day by day, evenly over `REPLAY_SECONDS`; return the seconds it took.

    Raises:
        RuntimeError: the broker did not acknowledge every message.
    """
    in_order = sorted(flights, key=lambda flight: flight.hour_ms)
    days = [list(day) for _, day in groupby(in_order, key=lambda flight: flight.hour_ms // DAY_MS)]
    began = time.monotonic()
    with Publisher(broker, TOPIC) as publisher:
        for number, day in enumerate(days):
            time.sleep(max(0.0, began + number * REPLAY_SECONDS / len(days) - time.monotonic()))
            for flight in day:
                publisher.send(flight)
            publisher.flush()
    return time.monotonic() - began


def differences(table: DelayTable, flights: Sequence[Flight]) -> list[str]:
    """Return the differences between the query's final table and the file."""
    expected: dict[Group, DelayTotals] = defaultdict(DelayTotals)
    for flight in flights:
        # As in Spark, windows begin at multiples of their length.
        expected[flight.hour_ms // WINDOW_MS * WINDOW_MS // 1000, flight.origin].add(flight)
    read, groups = sum(table.flights.values()), len(table.flights)
    say(f"\n{read:,} flights in {groups} groups of the table, {len(flights):,} in {len(expected)} of the file")
    problems = []
    for group in sorted(expected.keys() | table.flights.keys()):
        found = table.flights.get(group, 0), table.mean_delays_min.get(group, 0.0)
        problems += compare(f"{group[1]} from {date(group[0])}", *found, expected.get(group, DelayTotals()))
    return problems


def date(seconds: int) -> str:
    """Return the day of a time, in UTC."""
    return f"{datetime.fromtimestamp(seconds, timezone.utc):%Y-%m-%d}"
