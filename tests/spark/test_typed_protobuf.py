"""Protobuf values in Spark: each of its types, and descriptors in a file or in the option itself."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from tests.formats import Format
from tests.oracles.protobuf import schema
from tests.spark.frames import load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHT = schema(
    "Flight: carrier string 1, number uint32 2, at Timestamp 3, took Duration 4, repeated legs Leg 5, "
    "tags map<string, int64> 6, miles double 7 / way, km double 8 / way, status Status 9, optional seen bool 10"
    "\nLeg: city string 1",
    enums="Status: UNKNOWN 0, LANDED 4",
)
COLUMNS = {
    "carrier": "string",
    "number": "int",
    "at": "timestamp",
    "took": "interval day to second",
    "legs": "array<struct<city:string>>",
    "tags": "map<string,bigint>",
    "miles": "double",
    "km": "double",
    "status": "string",
    "seen": "boolean",
}


def flight() -> bytes:
    message = FLIGHT.make(carrier="AA", number=2**32 - 1, legs=[{"city": "JFK"}, {}], tags={"a": 1}, km=1.5, status=4)
    message.at.FromJsonString("2013-01-01T05:00:00.25Z")
    message.took.FromJsonString("-3.5s")
    message.seen = False
    return bytes(message.SerializeToString())


def test_every_type_reaches_spark(spark: SparkSession, nsq_embedded_format: Format, tmp_path: Path) -> None:
    topic = nsq_embedded_format.feed(1)
    # An unknown field, and a number that does not end.
    topic.publish([flight(), b"\x98\x06\x01", b"\x08"])
    path = tmp_path / "flight.desc"
    path.write_bytes(FLIGHT.descriptors)
    given = dict(topic.options) | {
        "valueFormat": "protobuf", "valueSchema": f"file:{path}", "valueMessage": "p.Flight", "onCorrupt": "null"
    }  # fmt: skip
    df = load(spark, nsq_embedded_format.name, given)
    assert dict(df.select("value.*").dtypes) == COLUMNS
    found = [row.value and row.value.asDict(recursive=True) for row in df.select("value").collect()]
    empty = dict.fromkeys(COLUMNS) | {"legs": [], "tags": {}}
    expected = empty | {
        "carrier": "AA",
        "number": -1,
        "at": datetime(2013, 1, 1, 5, 0, 0, 250_000, tzinfo=timezone.utc).astimezone().replace(tzinfo=None),
        "took": timedelta(seconds=-3.5),
        "legs": [{"city": "JFK"}, {"city": None}],
        "tags": {"a": 1},
        "km": 1.5,
        "status": "LANDED",
        "seen": False,
    }
    assert sorted(found, key=[expected, empty, None].index) == [expected, empty, None]
