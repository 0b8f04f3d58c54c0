"""Streaming: how long a trigger takes, how fast a query catches up, and how old a message is when it is seen.

Ours and the null stream source run in turn in the same Spark session, each time as a new query with a new checkpoint.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from bench.publish import NAMESPACE, create_topic, trickle
from bench.readers import Case, spark_schema
from bench.report import StreamResult

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

__all__ = ["CATCH_UP_MESSAGES", "measure_stream"]

CATCH_UP_MESSAGES = 3_000_000
RATE = 1_000
"""Messages a second while triggers and latency are measured, all partitions together."""

TRIGGER = "200 milliseconds"
TRIGGERS = 60
WARM_UP_TRIGGERS = 15
"""Spark and the workers compile and load in the first ones."""


def measure_stream(
    case: Case, broker: tuple[str, int], admin_url: str, *, repeats: int, triggers: int, say: Callable[[str], None]
) -> StreamResult:
    """Measures everything for one number of partitions.

    Args:
        case: the topic to catch up with, filled.
        broker: host and port.
        admin_url: its admin interface.
        repeats: how often each is measured.
        triggers: how many triggers a measurement has.
        say: told about progress.

    Raises:
        RuntimeError: a query did not read what was published.
    """
    partitions = case.workload.partitions
    result = StreamResult(partitions, case.workload.messages, RATE)
    topic = f"persistent://{NAMESPACE}/trickle-p{partitions}"
    create_topic(admin_url, topic, partitions)
    # The first of each is not counted: it compiles what both need.
    for repeat in range(repeats + 1):
        rates = {"ours": _catch_up(case, _ours(case)), "null": _catch_up(case, _null_at_once(case))}
        if repeat:
            result.add_rates(rates)
            say(f"  {repeat}/{repeats} catching up, M rows/s: {_line(rates, 1e-6)}")
    for repeat in range(repeats):
        with trickle(broker, topic, partitions, RATE):
            ours = _triggers(case, _ours(case, topic), triggers)
        null = _triggers(case, _null_by_clock(case), triggers)
        result.add_triggers({"ours": ours, "null": null})
        medians = {name: parts["triggerExecution"] for name, parts in (("ours", ours), ("null", null))}
        say(f"  {repeat + 1}/{repeats} a trigger, ms: {_line(medians, 1)}")
    with trickle(broker, topic, partitions, RATE):
        result.latencies_ms = _latencies(case, topic, triggers)
    say(f"  publish to foreachBatch, ms: {_line(result.latencies_ms, 1)}")
    return result


def _ours(case: Case, topic: str | None = None) -> DataStreamReader:
    """Our stream: of the case's whole topic, or of what comes to another."""
    options = case.options if topic is None else {**case.options, "topic": topic}
    start = "earliest" if topic is None else "latest"
    return case.spark.readStream.format("pulsar-native").options(**options, startingOffsets=start)


def _null_at_once(case: Case) -> DataStreamReader:
    workload = case.workload
    return _null(case).option("rows", str(workload.messages // workload.partitions))


def _null_by_clock(case: Case) -> DataStreamReader:
    return _null(case).option("rowsPerSecond", str(RATE))


def _null(case: Case) -> DataStreamReader:
    return (
        case.spark.readStream.format("bench-null")
        .option("batches", str(case.null_file(None)))
        .option("partitions", str(case.workload.partitions))
        .schema(spark_schema(None))
    )


def _to_noop(case: Case, reader: DataStreamReader) -> DataStreamWriter:
    checkpoint = case.folder / f"checkpoint-{uuid.uuid4().hex}"
    return reader.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))


def _catch_up(case: Case, reader: DataStreamReader) -> float:
    """Rows a second of a whole query, from its start to its end."""
    writer = _to_noop(case, reader).trigger(availableNow=True)
    started = time.perf_counter()
    query = writer.start()
    query.awaitTermination()
    seconds = time.perf_counter() - started
    rows: int = sum(progress["numInputRows"] for progress in _progress(query))
    if rows != case.workload.messages:
        raise RuntimeError(f"{case.workload.topic}: read {rows:,} rows, published {case.workload.messages:,}")
    return rows / seconds


def _triggers(case: Case, reader: DataStreamReader, triggers: int) -> dict[str, float]:
    """The median milliseconds of a trigger and of its parts, as Spark reports them."""
    query = _to_noop(case, reader).trigger(processingTime=TRIGGER).start()
    try:
        _wait_for(query, WARM_UP_TRIGGERS + triggers)
        counted = _progress(query)[WARM_UP_TRIGGERS : WARM_UP_TRIGGERS + triggers]
    finally:
        _stop(case, query)
    parts = [progress["durationMs"] for progress in counted]
    return {name: median(part.get(name, 0) for part in parts) for name in parts[0]}


def _latencies(case: Case, topic: str, triggers: int) -> dict[str, float]:
    """Percentiles of how many milliseconds lie between a message's publish time and its row in foreachBatch."""
    latencies: list[list[float]] = []

    def take(rows: DataFrame, _batch: int) -> None:
        times = rows.selectExpr("unix_millis(publish_time) AS ms").toArrow()["ms"].to_pylist()
        now_ms = time.time() * 1000
        if times:
            latencies.append([now_ms - ms for ms in times])

    checkpoint = case.folder / f"checkpoint-{uuid.uuid4().hex}"
    query = (
        _ours(case, topic)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(processingTime=TRIGGER)
        .start()
    )
    try:
        _wait_for(query, WARM_UP_TRIGGERS + triggers)
    finally:
        _stop(case, query)
    hundredths = quantiles((ms for batch in latencies[WARM_UP_TRIGGERS:] for ms in batch), n=100)
    return {"p50": hundredths[49], "p99": hundredths[98]}


def _wait_for(query: StreamingQuery, triggers: int) -> None:
    """Waits for so many triggers with rows; a query that fails raises its error here."""
    while len(_progress(query)) < triggers:
        if query.awaitTermination(1):
            raise RuntimeError("the query ended by itself")


def _stop(case: Case, query: StreamingQuery) -> None:
    # The trigger under way is aborted, which Spark tells at length.
    case.spark.sparkContext.setLogLevel("OFF")
    query.stop()
    case.spark.sparkContext.setLogLevel("ERROR")


def _progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """What Spark reports of the triggers that had rows; it keeps the last hundred."""
    return [found for found in (json.loads(p.json) for p in query.recentProgress) if found["numInputRows"]]


def _line(figures: Mapping[str, float], scale: float) -> str:
    return ", ".join(f"{name} {figure * scale:.3g}" for name, figure in figures.items())
