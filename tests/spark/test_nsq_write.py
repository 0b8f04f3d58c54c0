"""Writing to NSQ as a user of Spark sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from tests.fix_brokers import NsqUnderTest, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def save(df: DataFrame, nsq: NsqUnderTest, mode: str = "append", **options: Any) -> None:
    given = {"nsqdTcpAddresses": nsq.tcp_address, "nsqdHttpAddresses": nsq.http_address}
    df.write.format("nsq").options(**given | options).mode(mode).save()


def refusal(df: DataFrame, nsq: NsqUnderTest, **options: Any) -> str:
    with pytest.raises(PySparkException) as caught:
        save(df, nsq, **options)
    return str(caught.value)


def waiting(nsq: NsqUnderTest, topic: str) -> int:
    return int(nsq.channel_stats(topic, "c")["depth"])


def test_deferred_rows_wait(spark: SparkSession, nsq: NsqUnderTest) -> None:
    topic = nsq.topic("c")
    save(spark.range(10).selectExpr("cast(id as string) as value", "id * 60000 as defer"), nsq, topic=topic)
    wait_until(lambda: nsq.channel_stats(topic, "c")["deferred_count"] == 9, "nine deferred")
    assert waiting(nsq, topic) == 1


def test_what_cannot_be_written_is_said_before_anything_is(spark: SparkSession, nsq: NsqUnderTest) -> None:
    topic = nsq.topic("c")
    df = spark.range(1).selectExpr("cast(id as string) as value", "id as valeu", "cast(id as string) as defer")
    sentence = refusal(df, nsq, topic=topic)
    assert "column valeu is unknown (known: value, topic, defer)" in sentence
    assert "column defer is string, expected bigint or int" in sentence
    assert "set the option topic, or write a column topic" in refusal(df.select("value"), nsq)
    sentence = refusal(spark.sql("select 'x' as value union all select '' as value"), nsq, topic=topic)
    assert "NSQ has no empty messages" in sentence
    assert waiting(nsq, topic) <= 1
