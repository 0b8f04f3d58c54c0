"""What a query of any format does in Spark: the same suite for all of them, against real brokers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from tests.formats import Format, numbers
from tests.spark.streams import Sink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_sink_has_each_message_once_through_restarts_within_the_limit(
    spark: SparkSession, mq: Format, tmp_path: Path
) -> None:
    topic = mq.feed(2)
    sink = Sink(tmp_path, mq.name, mq.columns)
    # Before 4.2 AvailableNow is one batch.
    limit = {"maxRowsPerTrigger": "40"} if HAS_ADMISSION_CONTROL else {}
    end = 0
    for count in (90, 6, 0):
        start, end = end, end + count
        if count:
            topic.publish(numbers(end)[start:], **mq.apart)
        progress = sink.run(spark, topic.stream | limit)
        assert sum(batch["numInputRows"] for batch in progress) == count
        assert sorted(sink.values) == sorted(value.decode() for value in numbers(end))
    if HAS_ADMISSION_CONTROL:
        assert max(sink.batches) <= 40
