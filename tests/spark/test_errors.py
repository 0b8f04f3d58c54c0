"""Errors of users as Spark shows them: one sentence with a link, in the first line and without our stack frames."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_mq_source.core.errors import SITE
from spark_mq_source.testing import NsqBroker

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTHING_LISTENS = "127.0.0.1:9"
PULSAR = {"serviceUrl": f"pulsar://{NOTHING_LISTENS}", "topic": "flights", "operationTimeout": "1s"}
TUBEMQ = {"masters": NOTHING_LISTENS, "topic": "flights", "operationTimeout": "1s"}
FRAME = re.compile(r'File ".*spark_mq_source')


@pytest.fixture(scope="module")
def nsq() -> Iterator[NsqBroker]:
    with NsqBroker() as broker:
        broker.create_channel("orders", "spark")
        yield broker


@pytest.fixture
def options(nsq: NsqBroker) -> dict[str, str]:
    return {"nsqlookupdHttpAddresses": nsq.lookupd_address, "topic": "orders", "channel": "spark"}


def error_of(action: Callable[[], object]) -> str:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        action()
    return str(caught.value)


def expect(text: str, sentence: str, error: str) -> None:
    """Check that the first line about the error is the sentence with its link, and that no traceback is shown."""
    first = next((line for line in text.splitlines() if "spark_mq_source." in line), "")
    assert f"spark_mq_source.{error}: " in first, text
    assert sentence in first, text
    assert first.endswith(f". See {SITE}troubleshooting/#{error.lower()}"), text
    assert "Traceback" not in text
    assert FRAME.search(text) is None, text


def read(
    spark: SparkSession, name: str, options: Mapping[str, Any], schema: str | None = None, **more: Any
) -> Callable[[], object]:
    reader = spark.read.format(name).options(**options, **more)
    return lambda: (reader if schema is None else reader.schema(schema)).load().collect()


def save(rows: DataFrame, options: Mapping[str, Any], mode: str = "append", **more: Any) -> Callable[[], object]:
    return lambda: rows.write.format("nsq").options(**options, **more).mode(mode).save()


@pytest.mark.parametrize(
    ("name", "more", "schema", "sentence", "error"),
    [
        ("pulsar-native", {"topik": "t"}, None, "topik: unknown option (did you mean topic?)", "OptionError"),
        ("pulsar-native", {}, "publishtime timestamp", "did you mean publish_time?", "OptionError"),
        ("pulsar-native", {}, None, "127.0.0.1:9: cannot connect", "TransportError"),
        ("tubemq", {}, None, "cannot connect", "TransportError"),
    ],
)
def test_a_load_that_cannot_be_planned(
    spark: SparkSession, name: str, more: dict[str, str], schema: str | None, sentence: str, error: str
) -> None:
    expect(
        error_of(read(spark, name, {"pulsar-native": PULSAR, "tubemq": TUBEMQ}[name] | more, schema)), sentence, error
    )


def test_a_task_that_cannot_decode_a_message(spark: SparkSession, nsq: NsqBroker, options: dict[str, str]) -> None:
    nsq.publish("orders", b"no JSON")
    text = error_of(read(spark, "nsq", options, "value struct<a: int>", valueFormat="json", maxRows=1))
    expect(text, "nsq: reading nsqd ", "CorruptMessageError")


def test_a_write_that_cannot_begin(spark: SparkSession, options: dict[str, str]) -> None:
    rows = spark.sql("select 'x' as payload")
    expect(error_of(save(rows, options)), "there is no column value to write", "OptionError")
    expect(error_of(save(rows, options, mode="overwrite")), "use mode('append')", "OptionError")


def test_a_task_that_cannot_write(spark: SparkSession, nsq: NsqBroker, options: dict[str, str]) -> None:
    text = error_of(save(spark.sql("select cast(null as string) as value"), options))
    expect(text, "its value is NULL", "UnwritableRowError")
    nowhere = {"nsqdTcpAddresses": NOTHING_LISTENS, "topic": "orders"}
    text = error_of(save(spark.sql("select 'x' as value"), nowhere, sendTimeout="1s", operationTimeout="1s"))
    expect(text, "cannot connect", "RequestTimeoutError")


@pytest.mark.parametrize(
    ("more", "sentence", "error"),
    [
        ({"endingOffsets": "latest"}, "endingOffsets: latest is no end of a stream", "OptionError"),
        ({}, "127.0.0.1:9: cannot connect", "TransportError"),
    ],
)
def test_a_stream_that_cannot_begin(
    spark: SparkSession, tmp_path: Path, more: dict[str, str], sentence: str, error: str
) -> None:
    stream = spark.readStream.format("pulsar-native").options(**PULSAR, **more).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path)).start()
    text = error_of(query.awaitTermination)
    expect(text, sentence, error)
    expect(str(query.exception()), sentence, error)


def test_a_stream_that_cannot_write(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("cast(value as string) as value")
    writer = rows.writeStream.format("nsq").options(nsqdTcpAddresses=NOTHING_LISTENS, topic="t", sendTimeout="1s")
    query = writer.option("operationTimeout", "1s").option("checkpointLocation", str(tmp_path)).start()
    expect(error_of(query.awaitTermination), "cannot connect", "RequestTimeoutError")


def test_debug_shows_the_tracebacks(spark: SparkSession) -> None:
    text = error_of(read(spark, "pulsar-native", PULSAR, debug=True))
    assert FRAME.search(text) is not None
    assert "cannot connect" in text


def test_an_error_that_is_not_ours_keeps_its_traceback(spark: SparkSession) -> None:
    from spark_mq_source.spark.sources import NsqDataSource

    class BrokenDataSource(NsqDataSource):
        format_name = "broken"

        @property
        def format(self) -> Any:
            return {}["missing"]

    spark.dataSource.register(BrokenDataSource)
    text = error_of(read(spark, "broken", {}))
    assert "KeyError: 'missing'" in text
    assert FRAME.search(text) is not None


def test_spark_connect_shows_the_sentence(spark_connect: Callable[..., Any]) -> None:
    script = (
        "import spark_mq_source\n"
        "spark_mq_source.register(spark)\n"
        "try:\n"
        "    spark.read.format('pulsar-native').option('topik', 't').load().collect()\n"
        "except Exception as error:\n"
        "    print(str(error))\n"
    )
    expect(spark_connect(script).output, "topik: unknown option (did you mean topic?)", "OptionError")
