"""Streaming: the time of a trigger, the rate of a query that catches up, and the delay from publishing to a row.

Ours and the null stream source run in turn in the same Spark session, each time as a new query with a new checkpoint.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from bench.engine import Sample
from bench.pulsar_broker import NAMESPACE, Broker, Workload, count, create_topic, spark_schema, trickle
from bench.runner import Case, Contender, here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

LABEL = "pulsar-native"
CATCH_UP_MESSAGES = 3_000_000
RATE = 1_000
"""Messages a second while triggers and latency are measured, all partitions together."""

TRIGGER = "200 milliseconds"
WARM_UP_TRIGGERS = 15
"""Spark and the workers compile and load in the first ones."""


def streams(broker: Broker) -> Iterator[Case]:
    """Yield catching up, triggers and latency, with one partition and with four."""
    for partitions in (1, 4):
        one = _Streams(broker, Workload(100, "none", partitions, broker.setup.scaled(CATCH_UP_MESSAGES)))
        for name, unit, work in (("catching up", "rows/s", one.catch_up), ("a trigger", "ms", one.triggers)):
            contenders = (
                Contender("ours", LABEL, "ours", here(work, True)),
                Contender("null", "null source", "limit", here(work, False)),
            )
            yield Case("stream", f"{name}, {count(partitions)}", contenders, unit=unit, prepare=one.prepare)
        latencies: Sample = {}

        def percentile(name: str, one: _Streams = one, latencies: Sample = latencies) -> Sample:
            latencies.update(latencies or one.latencies())
            return {"value": latencies[name]}

        for name, shown in (("p50", "median"), ("p99", "99 %")):
            run = Contender("ours", LABEL, "ours", here(percentile, name), warm=0)
            yield Case("stream", f"publish to foreachBatch, {shown}, {count(partitions)}", (run,), unit="ms", repeats=1)


@dataclass(frozen=True)
class _Streams:
    """Streaming queries over topics of this many partitions."""

    broker: Broker
    workload: Workload

    @property
    def spark(self) -> SparkSession:
        return self.broker.setup.engine.session(min(self.workload.partitions, 2))

    @property
    def trickled(self) -> str:
        return f"persistent://{NAMESPACE}/trickle-p{self.workload.partitions}"

    def prepare(self) -> None:
        self.broker.fill(self.workload)
        create_topic(self.broker.standalone.admin_url, self.trickled, self.workload.partitions)

    def trickling(self) -> AbstractContextManager[None]:
        return trickle(self.broker.address, self.trickled, self.workload.partitions, RATE)

    def reader(self, ours: bool, *, live: bool) -> DataStreamReader:
        """Return our stream or the null source's: of the whole topic, or of messages published later."""
        if ours:
            options = self.broker.options(self.trickled if live else self.workload.topic)
            start = "latest" if live else "earliest"
            return self.spark.readStream.format("pulsar-native").options(**options, startingOffsets=start)
        partitions = self.workload.partitions
        limit = ("rowsPerSecond", RATE) if live else ("rows", self.workload.messages // partitions)
        return (
            self.spark.readStream.format("bench-null")
            .options(batches=self.broker.null_file(self.workload, None), partitions=str(partitions))
            .option(*map(str, limit))
            .schema(spark_schema(None))
        )

    def query(self, reader: DataStreamReader) -> DataStreamWriter:
        checkpoint = self.broker.setup.folder / f"checkpoint-{uuid.uuid4().hex}"
        return reader.load().writeStream.option("checkpointLocation", str(checkpoint))

    def catch_up(self, ours: bool) -> Sample:
        """Return rows a second of a whole query, from its start to its end."""
        writer = self.query(self.reader(ours, live=False)).format("noop").trigger(availableNow=True)
        started = time.perf_counter()
        query = writer.start()
        query.awaitTermination()
        seconds = time.perf_counter() - started
        rows: int = sum(progress["numInputRows"] for progress in _progress(query))
        if rows != self.workload.messages:
            raise RuntimeError(f"{self.workload.topic}: read {rows:,} rows, published {self.workload.messages:,}")
        return {"value": rows / seconds}

    def triggers(self, ours: bool) -> Sample:
        """Return the median milliseconds of a trigger and of its parts, as Spark reports them."""
        triggers = self.broker.setup.triggers
        with self.trickling() if ours else nullcontext():
            query = self.query(self.reader(ours, live=True)).format("noop").trigger(processingTime=TRIGGER).start()
            with self.stopping(query):
                _wait_for(query, WARM_UP_TRIGGERS + triggers)
                counted = _progress(query)[WARM_UP_TRIGGERS : WARM_UP_TRIGGERS + triggers]
        parts = [progress["durationMs"] for progress in counted]
        medians = {name: median(part.get(name, 0) for part in parts) for name in parts[0]}
        return {"value": medians.pop("triggerExecution"), **medians}

    def latencies(self) -> Sample:
        """Return percentiles of the milliseconds between a message's publish time and its row in foreachBatch."""
        latencies: list[list[float]] = []

        def take(rows: DataFrame, _batch: int) -> None:
            times = rows.selectExpr("unix_millis(publish_time) AS ms").toArrow()["ms"].to_pylist()
            now_ms = time.time() * 1000
            if times:
                latencies.append([now_ms - ms for ms in times])

        with self.trickling():
            reader = self.reader(True, live=True)
            query = self.query(reader).foreachBatch(take).trigger(processingTime=TRIGGER).start()
            with self.stopping(query):
                _wait_for(query, WARM_UP_TRIGGERS + self.broker.setup.triggers)
        hundredths = quantiles((ms for batch in latencies[WARM_UP_TRIGGERS:] for ms in batch), n=100)
        return {"p50": hundredths[49], "p99": hundredths[98]}

    @contextmanager
    def stopping(self, query: StreamingQuery) -> Iterator[None]:
        try:
            yield
        finally:
            # The running trigger is aborted, which Spark logs at length.
            self.spark.sparkContext.setLogLevel("OFF")
            query.stop()
            self.spark.sparkContext.setLogLevel("ERROR")


def _wait_for(query: StreamingQuery, triggers: int) -> None:
    """Wait for this many triggers with rows; a query that fails raises its error here."""
    while len(_progress(query)) < triggers:
        if query.awaitTermination(1):
            raise RuntimeError("the query ended by itself")


def _progress(query: StreamingQuery) -> list[dict[str, Any]]:
    """Return Spark's progress of the triggers that had rows; it keeps the last hundred."""
    return [found for found in (json.loads(p.json) for p in query.recentProgress) if found["numInputRows"]]
