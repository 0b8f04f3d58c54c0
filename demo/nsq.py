"""The last part of the demo: sends alerts for the worst delays to an NSQ topic, and reads them back."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from demo.data import FLIGHT_COLUMNS, Flight
from demo.say import say
from spark_mq_source.testing import NsqBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["alert_and_count"]

TOPIC: Final = "alerts"
CHANNEL: Final = "duty-manager"
ALARMING_MIN: Final = 600
"""Minimum departure delay for an alert, in minutes."""


def alert_and_count(flights: DataFrame, expected: Sequence[Flight]) -> list[str]:
    """Write alerts for the most delayed flights, read them back, and return their differences from the file.

    Args:
        flights: the Pulsar topic, with key and value.
        expected: all flights of the file.
    """
    say("Starting an NSQ broker (the embedded one of spark_mq_source.testing) ...")
    with NsqBroker() as broker:
        options = {"nsqlookupdHttpAddresses": broker.lookupd_address, "topic": TOPIC}
        say(f'Alerting of flights more than {ALARMING_MIN} minutes late with df.write.format("nsq") ...')
        began = time.monotonic()
        (
            flights.selectExpr("cast(value as string) as value")
            .where(f"from_csv(value, '{FLIGHT_COLUMNS}', map('nullValue', 'NA')).dep_delay > {ALARMING_MIN}")
            .write.format("nsq")
            .options(**options)
            .mode("append")
            .save()
        )
        say(f"  acknowledged by the broker in {time.monotonic() - began:.1f} s")
        read = (
            flights.sparkSession.read.format("nsq")
            .options(**options, channel=CHANNEL, createChannel="true", idleTimeout="2s")
            .schema("value string")
            .load()
        )
        found = Counter(row.value for row in read.collect())
    wanted = Counter(f.line for f in expected if f.delay_min is not None and f.delay_min > ALARMING_MIN)
    say(f"  {found.total():,} alerts read back from NSQ, {wanted.total():,} such flights in the file")
    if found == wanted:
        return []
    return [f"nsq: {(wanted - found).total():,} alerts are missing, {(found - wanted).total():,} too many"]
