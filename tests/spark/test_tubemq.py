"""Features of TubeMQ only in Spark: streams in a group and alone, and written rows read back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_mq_source.tubemq.offsets import INDEX_BYTES
from tests.fix_brokers import wait_until
from tests.fix_tubemq import TubeUnderTest
from tests.formats import numbers
from tests.formats.tubemq import TubeMQFeed
from tests.spark.frames import load
from tests.spark.streams import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ALL_READ_TIMEOUT_S = 120.0


@pytest.mark.slow
def test_a_members_query_continues_at_its_position(spark: SparkSession, tubemq: TubeUnderTest, tmp_path: Path) -> None:
    feed, group = TubeMQFeed(tubemq, 3), tubemq.group()
    sink = Sink(tmp_path, "tubemq", "value string, partition int")
    options = feed.options | {"assignment": "server", "group": group, "startingOffsets": "earliest"}
    for end in (30, 60):
        feed.publish(numbers(end)[-30:])
        all_read = threading.Event()

        def write(df: DataFrame, number: int, end: int = end, all_read: threading.Event = all_read) -> None:
            sink.write(df, number)
            if len(sink.values) >= end:
                all_read.set()

        with sink.running(spark, options, write) as query:
            # As many rebalances of the master as it takes.
            assert all_read.wait(ALL_READ_TIMEOUT_S), query.exception()
        assert sorted(map(int, sink.values)) == list(range(end))
        # Spark does not wait until the query has left the group.
        wait_until(lambda: not feed.readers(), "the query has left the group")
        assert [tubemq.admin.group_offset(1, group, feed.topic, n) for n in range(3)] == [end * INDEX_BYTES] * 3


def test_rows_written_by_spark_are_read_back(spark: SparkSession, tubemq: TubeUnderTest) -> None:
    feed = TubeMQFeed(tubemq, 3)
    rows = spark.range(300).selectExpr(
        "cast(id as string) as value",
        "if(id % 3 = 0, 'fizz', null) as message_type",
        "timestamp_seconds(60 * id) as message_time",
        "map('third', cast(id % 3 as string)) as attributes",
    )
    rows.write.format("tubemq").options(**feed.options).mode("append").save()
    feed.wait_until_flushed(300)
    columns = "value string, message_type string, message_time timestamp, attributes map<string,string>"
    found = load(spark, "tubemq", feed.options, columns)
    assert sorted(map(repr, found.collect())) == sorted(map(repr, rows.collect()))
    fizz = load(spark, "tubemq", feed.options | {"filters": "fizz"}, columns)
    assert sorted(int(row.value) for row in fizz.collect()) == list(range(0, 300, 3))
