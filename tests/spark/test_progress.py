"""Metrics of tasks and triggers of every format, on real Spark and real brokers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import spark_mq_source
from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from spark_mq_source.spark.progress import ProgressListener, observe_delay, triggers_of
from tests.fix_brokers import NsqUnderTest, PulsarUnderTest, start_nsq, wait_until
from tests.fix_tubemq import TubeUnderTest
from tests.formats.pulsar import PulsarFeed
from tests.formats.tubemq import TubeMQFeed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS, LIMIT = 900, 600
LOGGING = "spark.sql.pyspark.worker.logging.enabled"
QUERY_TIMEOUT_S = 200.0


@dataclass(frozen=True)
class Route:
    """A topic: the options that write and read it, and the names of its lag and times."""

    name: str
    topic: str
    write: dict[str, str]
    read: dict[str, str]
    stream: dict[str, str]
    unit: str
    published: str
    settle: Callable[[], object] = lambda: None


def pulsar_route(broker: PulsarUnderTest) -> Route:
    feed = PulsarFeed(broker, 0)
    # A message an entry, so that a limit in rows is exact. The broker deletes a topic that is empty for a minute.
    return Route(
        "pulsar-native", feed.topic, {**feed.options, "batching": "false", "createTopic": "true"}, dict(feed.options),
        {"startingOffsets": "earliest", "maxEntriesPerTrigger": str(LIMIT)}, "entries", "publish_time",
    )  # fmt: skip


def tubemq_route(tube: TubeUnderTest) -> Route:
    feed = TubeMQFeed(tube, 1)
    given = {"startingOffsets": "earliest", "maxRowsPerTrigger": str(LIMIT), "assignment": "client"}
    return Route(
        "tubemq", feed.topic, dict(feed.options), dict(feed.options),
        given, "messages", "message_time",
        lambda: feed.wait_until_flushed(ROWS),
    )  # fmt: skip


def nsq_route(nsq: NsqUnderTest, folder: Path) -> Route:
    topic = nsq.topic("c")
    return Route(
        "nsq", topic, {"nsqdTcpAddresses": nsq.tcp_address, "topic": topic},
        {"nsqlookupdHttpAddresses": nsq.lookupd_address, "topic": topic, "channel": "c"},
        {"walDir": str(folder / "wal"), "maxRowsPerTrigger": str(LIMIT)}, "messages", "timestamp",
        lambda: wait_until(lambda: nsq.channel_stats(topic, "c")["depth"] == ROWS, "all messages are in the channel"),
    )  # fmt: skip


@pytest.fixture(params=["pulsar", "tubemq", "nsq"])
def route(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Route]:
    if request.param == "nsq":
        with start_nsq("embedded", tmp_path / "nsq") as nsq:
            yield nsq_route(nsq, tmp_path)
    else:
        make = {"pulsar": pulsar_route, "tubemq": tubemq_route}[request.param]
        yield make(request.getfixturevalue(request.param))


@pytest.fixture(scope="module")
def logging_session(spark: SparkSession) -> SparkSession:
    """Return a separate session: Spark keeps workers' logs by session, and starts new Python processes for it."""
    session = spark.newSession()
    spark_mq_source.register(session)
    session.conf.set(LOGGING, "true")
    return session


def publish(session: SparkSession, route: Route, rows: int = ROWS) -> None:
    columns = ["cast(id as string) as value"] + ["current_timestamp() as message_time"] * (route.name == "tubemq")
    written = session.range(0, rows, 1, 2).selectExpr(*columns)
    written.write.format(route.name).options(**route.write).mode("append").save()
    route.settle()


def test_counters_of_tasks_are_summed_by_the_driver(logging_session: SparkSession, route: Route) -> None:
    session = logging_session
    publish(session, route)
    loaded = session.read.format(route.name).options(**route.read)
    if route.name == "nsq":
        loaded = loaded.option("idleTimeout", "2s")
    assert len(loaded.schema("value string").load().collect()) == ROWS
    if not hasattr(session, "tvf") or not hasattr(session.tvf, "python_worker_logs"):
        return  # before 4.1 the lines are in the logs of executors and driver only
    logs = session.tvf.python_worker_logs().where("logger = 'spark_mq_source.spark.task_log'")
    rows = [row.asDict() | row.context for row in logs.select("level", "msg", "context").collect()]
    found = [row for row in rows if row["format"] == route.name]
    assert {row["level"] for row in found} == {"INFO"}

    def total(beginning: str, name: str) -> float:
        return sum(float(row[name]) for row in found if row["what"].startswith(beginning))

    assert total("read", "rows") == total("wrote task", "rows") == total("wrote with 2 tasks", "rows") == ROWS
    for what in ("read", "wrote with"):
        assert total(what, "entries") > 0
        # The values are 1 to 3 digits, and entries add some bytes to each.
        assert total(what, "entry_bytes") > 2 * ROWS
        assert total(what, "wait_seconds") > 0
        assert total(what, "work_seconds") > 0
        assert total(what, "reconnects") == 0
    assert total("wrote task", "entries") == total("wrote with", "entries")


def test_a_listener_reports_rates_lag_and_delay(spark: SparkSession, route: Route, tmp_path: Path) -> None:
    publish(spark, route)
    lines: list[str] = []
    all_read = threading.Event()

    def say(line: str) -> None:
        lines.append(line)
        if sum(trigger.rows for trigger in listener.triggers) == ROWS:
            all_read.set()

    listener = ProgressListener(say)
    spark.streams.addListener(listener)
    rows = spark.readStream.format(route.name).options(**route.read, **route.stream).load()
    query = (
        observe_delay(rows, route.published)
        .writeStream.queryName("watched")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        assert all_read.wait(QUERY_TIMEOUT_S), query.exception()
        triggers = [trigger for trigger in triggers_of(query) if trigger.rows]
    finally:
        query.stop()
        spark.streams.removeListener(listener)
    assert [trigger for trigger in listener.triggers if trigger.rows] == triggers
    assert {trigger.query for trigger in triggers} == {"watched"}
    assert [line for line in lines if ": 0 rows" not in line] == [str(trigger) for trigger in triggers]
    for trigger in triggers:
        assert trigger.rows_per_second > 0
        assert trigger.delay_seconds is not None
        assert 0 < trigger.seconds < trigger.delay_seconds
    if not HAS_ADMISSION_CONTROL:
        assert not any(trigger.lags for trigger in triggers)
        return
    left = ROWS
    for trigger in triggers:
        left -= trigger.rows
        (lag,) = trigger.lags
        assert (lag.topic, lag.behind, lag.unit, lag.is_exact) == (route.topic, left, route.unit, route.name != "nsq")
    assert triggers[0].rows <= LIMIT
    least = "at least " if route.name == "nsq" else ""
    assert f"behind {route.topic} {least}{ROWS - triggers[0].rows} {route.unit}" in str(triggers[0])
