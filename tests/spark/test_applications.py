"""Separate Spark applications of users, each started once for all formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.fix_brokers import wait_until
from tests.fix_spark import ScriptResult, SparkCluster, run_script
from tests.formats import BATCH_ROWS, Feed, Format, numbers

MakeFeeds = Callable[[int], Sequence[tuple[Format, Feed]]]

for_all_formats = pytest.mark.timeout(600)
"""It takes as long as three tests."""

RETRY_SCRIPT = """
import json, os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType

formats, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
spark = (
    SparkSession.builder.master("local[2,3]")
    .config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    .config("spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false")
    .config("spark.eventLog.dir", str(folder)).config("spark.sql.shuffle.partitions", "2").getOrCreate()
)

def read(number, name, options, columns):
    died = folder / f"died-{number}"

    @F.udf(IntegerType())
    def once(value):
        if value == "250" and not died.exists():
            died.touch()
            os._exit(1)
        return int(value)

    df = spark.read.format(name).options(**options).schema("value string").load()
    retried = sorted(row[0] for row in df.select(once("value")).collect())
    in_options = ", ".join(f"{key} '{value}'" for key, value in options.items())
    spark.sql(f"CREATE TEMPORARY VIEW v{number} USING `{name}` OPTIONS ({in_options})")
    in_sql = spark.sql(f"SELECT count(*) FROM v{number}").first()[0]
    return {"died": died.exists(), "retried": retried, "in_sql": in_sql}

found = [read(number, *one) for number, one in enumerate(formats)]
spark.stop()
print(json.dumps(found))
"""


@for_all_formats
def test_retried_tasks_repeat_nothing_and_the_event_log_has_no_secret(every_feed: MakeFeeds, tmp_path: Path) -> None:
    feeds = every_feed(2)
    secret = "do-not-log-me-anywhere"
    for _, topic in feeds:
        topic.publish(numbers(500))
    result = run_script(
        RETRY_SCRIPT,
        tmp_path,
        json.dumps(
            [(mq.name, topic.options | {mq.secret: secret, BATCH_ROWS: "50"}, mq.columns) for mq, topic in feeds]
        ),
        str(tmp_path),
    )
    assert result.code == 0, result.output[-3000:]
    assert result.last_json() == [{"died": True, "retried": list(range(500)), "in_sql": 500}] * len(feeds)
    logs = [path for path in tmp_path.rglob("*local-*") if path.is_file()]
    text = "".join(path.read_text() for path in logs)
    assert "SparkListenerTaskEnd" in text
    assert text.replace(" ", "").count('"Failed":true') >= len(feeds)
    assert secret not in text
    assert secret not in result.output
    for mq, topic in feeds:
        wait_until(lambda t=topic: t.readers() == 0, f"{mq.name}: no reader is left, not even of the failed task")


CONNECT_SCRIPT = """
import json, sys
import spark_mq_source

formats = json.loads(sys.argv[1])
found = [[] for _ in formats]
for register in (False, True):
    if register:
        spark_mq_source.register(spark)
    for rows, (name, options, columns) in zip(found, formats):
        df = spark.read.format(name).options(**options).schema(columns).load()
        rows.append(sorted(int(row.value) for row in df.collect()))
spark.stop()
print(json.dumps(found))
"""


@for_all_formats
@pytest.mark.spark
def test_spark_connect_reads_with_and_without_registration(
    spark_connect: Callable[..., ScriptResult], every_feed: MakeFeeds
) -> None:
    feeds = every_feed(2)
    for _, topic in feeds:
        topic.publish(numbers(50))
    result = spark_connect(CONNECT_SCRIPT, as_json(feeds))
    assert result.code == 0, result.output[-3000:]
    found = result.last_json()
    assert len(found) == len(feeds)
    for unregistered, registered in found:
        assert unregistered == list(range(50))
        assert registered == list(range(50))


CLUSTER_SCRIPT = """
import json, os, sys
from pyspark import TaskContext
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

@F.udf(StringType())
def executor(value):
    return os.getcwd()

found = []
for name, options, columns in json.loads(sys.argv[1]):
    df = spark.read.format(name).options(**options).schema(columns).load()
    rows = df.select("value", F.spark_partition_id().alias("task"), executor("value").alias("executor")).collect()
    found.append({
        "values": sorted(int(row.value) for row in rows),
        "tasks": len({row.task for row in rows}),
        "executors": len({row.executor for row in rows}),
    })
print(json.dumps(found))
spark.stop()
"""


@for_all_formats
def test_standalone_cluster_reads_four_partitions(spark_cluster: SparkCluster, every_feed: MakeFeeds) -> None:
    feeds = every_feed(4)
    for _, topic in feeds:
        topic.publish(numbers(400))
    result = spark_cluster.run(CLUSTER_SCRIPT, as_json(feeds))
    assert result.code == 0, result.output[-3000:]
    found = result.last_json()
    assert len(found) == len(feeds)
    for one in found:
        assert one["values"] == list(range(400))
        assert one["tasks"] == 4
        assert one["executors"] >= 1


def as_json(feeds: Sequence[tuple[Format, Feed]]) -> str:
    """Return the format, options and columns of each read, for a script."""
    return json.dumps([(mq.name, dict(topic.options), mq.columns) for mq, topic in feeds])
