"""Prometheus metrics of a real stream, compared with the queries of the dashboard."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from spark_mq_source.spark.metrics import MetricsListener
from spark_mq_source.spark.progress import observe_delay
from tests.behaviours.pulsar.streams import numbered, publish
from tests.fix_brokers import PulsarUnderTest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import QueryProgressEvent

pytest.importorskip("prometheus_client")

DASHBOARD = Path(__file__).parents[2] / "docs/run/grafana.json"
ROWS, REDELIVERED = 300, 100
QUERY_TIMEOUT_S = 200.0


class Watched(MetricsListener):
    """A listener that sets an event when all rows are counted."""

    def __init__(self) -> None:
        super().__init__(port=0)
        self.has_all = threading.Event()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        super().onQueryProgress(event)
        if sum(trigger.rows for trigger in self.triggers) == ROWS:
            self.has_all.set()


def deliver_once(broker: PulsarUnderTest, topic: str) -> None:
    """Deliver messages to a consumer that returns them, and receives no others while it stays."""
    import pulsar

    consumer = broker.client().subscribe(
        topic, "watched", pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest, receiver_queue_size=0,
    )  # fmt: skip
    for _ in range(REDELIVERED):
        consumer.receive()
    consumer.redeliver_unacknowledged_messages()


def test_prometheus_has_the_metrics_of_the_dashboard(
    spark: SparkSession, pulsar: PulsarUnderTest, tmp_path: Path
) -> None:
    from prometheus_client.parser import text_string_to_metric_families

    topic = pulsar.topic()
    publish(pulsar, topic, numbered(REDELIVERED))
    deliver_once(pulsar, topic)
    publish(pulsar, topic, numbered(ROWS - REDELIVERED))
    listener = Watched()
    spark.streams.addListener(listener)
    stream = (
        spark.readStream.format("pulsar-native")
        .options(serviceUrl=pulsar.service_url, topic=topic, subscription="watched", subscriptionType="Shared")
        .options(walDir=str(tmp_path / "wal"))
        .schema("value string, publish_time timestamp, redelivery_count int")
        .load()
    )
    query = (
        observe_delay(stream, redelivered="redelivery_count > 0")
        .writeStream.queryName("watched")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        assert listener.has_all.wait(QUERY_TIMEOUT_S), query.exception()
        with urllib.request.urlopen(f"http://127.0.0.1:{listener.port}/metrics") as answer:
            text = answer.read().decode()
    finally:
        query.stop()
        spark.streams.removeListener(listener)
        listener.close()
    found = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["query"] for sample in found} == {"watched"}
    values = {sample.name: sample.value for sample in found}
    assert values["spark_mq_rows_total"] == ROWS
    assert values["spark_mq_redelivered_rows_total"] >= REDELIVERED
    assert values["spark_mq_delay_seconds"] > values["spark_mq_broker_seconds"] > 0
    phases = {sample.labels["phase"]: sample.value for sample in found if sample.name == "spark_mq_phase_seconds_total"}
    assert phases["addBatch"] > 0
    assert phases["latestOffset"] > 0
    if HAS_ADMISSION_CONTROL:
        assert [(one.labels["topic"], one.labels["unit"]) for one in found if one.name == "spark_mq_lag"] == [
            (topic, "entries")
        ]
        shown = re.findall(r"spark_mq_\w+", " ".join(expressions(json.loads(DASHBOARD.read_text(encoding="utf-8")))))
        assert set(shown) == values.keys()


def expressions(dashboard: dict) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
