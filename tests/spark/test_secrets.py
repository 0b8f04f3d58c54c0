"""Spark's views of a query (UI, plans, progress) without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.fix_brokers import PulsarUnderTest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAME = "pulsar-native"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbCJ9.c2lnbmF0dXJl"
PASSWORD = "flights-and-ledgers"

Shown = Callable[[], str]


@contextmanager
def shown_since_now(spark: SparkSession) -> Iterator[Shown]:
    """Yield the texts of the UI's SQL pages for the queries that begin within."""
    store = spark._jsparkSession.sharedState().statusStore()
    before = store.executionsCount()

    def shown() -> str:
        executions = store.executionsList(int(before), 1000)
        texts = []
        for n in range(executions.size()):
            one = executions.apply(n)
            graph = store.planGraph(one.executionId()).allNodes()
            texts += [one.description(), one.details(), one.physicalPlanDescription(), one.modifiedConfigs().toString()]
            texts += [graph.apply(node).desc() for node in range(graph.size())]
        return "\n".join(texts)

    yield shown


def plans(df: DataFrame) -> str:
    """Return all plans of a DataFrame, in every form that `explain` has."""
    query = df._jdf.queryExecution()
    mode = df.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode
    return "\n".join(query.explainString(mode.fromString(name)) for name in ("extended", "formatted", "cost"))


def test_reading_and_writing(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    # A broker without authentication accepts every password and token.
    given = {"authBasicUser": "al", "authBasicPassword": PASSWORD}
    topic = pulsar.topic()
    options = {"serviceUrl": pulsar.service_url, "topic": topic} | given
    with shown_since_now(spark) as shown:
        rows = spark.range(3).selectExpr("concat('written-', id) as value")
        rows.write.format(NAME).options(**options).mode("append").save()
        df = spark.read.format(NAME).options(**options).load().selectExpr("concat('read-', value) as value")
        assert sorted(row.value for row in df.collect()) == [f"read-written-{n}" for n in range(3)]
        text = shown()
    # Check that these texts show the queries.
    assert all(words in text for words in ("AppendData", "written-", "read-"))
    assert NAME in plans(df)
    assert PASSWORD not in text + plans(df)


def test_streams(spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    first, second = pulsar.topic(), pulsar.topic()
    options = {"serviceUrl": pulsar.service_url, "authToken": TOKEN}
    spark.range(3).selectExpr("cast(id as string) as value").write.format(NAME).options(**options, topic=first).mode(
        "append"
    ).save()
    with shown_since_now(spark) as shown:
        query = (
            spark.readStream.format(NAME)
            .options(**options, topic=first, startingOffsets="earliest")
            .load()
            .select("value")
            .writeStream.format(NAME)
            .options(**options, topic=second)
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        progress = query.lastProgress
        assert progress is not None
        text = shown() + progress.json + query._jsq.explainInternal(True)
    assert progress["numInputRows"] == 3
    assert NAME in text
    assert TOKEN not in text
    checkpoint = "\n".join(file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file())
    assert "batchWatermarkMs" in checkpoint
    assert TOKEN not in checkpoint
