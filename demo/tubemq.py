"""The second part of the demo: forwards late flights from Pulsar to a TubeMQ topic, and reads them back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokers.tubemq import TubeCluster
from brokers.tubemq_admin import Topic
from demo.data import FLIGHT_COLUMNS, Flight
from demo.say import say

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["pass_on_and_count"]

TOPIC: Final = "delays"
LATE_MIN: Final = 120
"""Minimum departure delay of forwarded flights, in minutes."""


def pass_on_and_count(flights: DataFrame, expected: Sequence[Flight], folder: Path) -> list[str]:
    """Start a TubeMQ cluster, write the late flights to it, read them back, and return how they differ.

    Args:
        flights: the Pulsar topic, with key and value.
        expected: all flights of the file.
        folder: for the cluster's files.
    """
    say("Starting a TubeMQ cluster (ZooKeeper, a master, a broker) ...")
    with TubeCluster(folder, topics=[Topic(TOPIC, partitions=2)]) as cluster:
        options = {"masters": cluster.master_addresses, "topic": TOPIC}
        say(f'Passing on flights more than {LATE_MIN} minutes late with df.write.format("tubemq") ...')
        began = time.monotonic()
        (
            flights.selectExpr("cast(value as string) as value", "cast(key as string) as message_type")
            .where(f"from_csv(value, '{FLIGHT_COLUMNS}', map('nullValue', 'NA')).dep_delay > {LATE_MIN}")
            .write.format("tubemq")
            .options(**options)
            .mode("append")
            .save()
        )
        say(f"  acknowledged by the broker in {time.monotonic() - began:.1f} s")
        # They are still in the broker's memory, and flushed some seconds later.
        read = (
            flights.sparkSession.read.format("tubemq")
            .options(**options, lowLatency="true")
            .schema("value string, message_type string")
            .load()
        )
        found = Counter((row.message_type, row.value) for row in read.collect())
    wanted = Counter((f.carrier, f.line) for f in expected if f.delay_min is not None and f.delay_min > LATE_MIN)
    say(f"  {found.total():,} read back from TubeMQ, {wanted.total():,} such flights in the file")
    if found == wanted:
        return []
    return [f"tubemq: {(wanted - found).total():,} flights are missing, {(found - wanted).total():,} too many"]
