"""Reads of NSQ in Spark: drains that can be repeated, and streams whose batches are repeated unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fix_brokers import NsqUnderTest, wait_until
from tests.fix_spark import run_script
from tests.spark.streams import SIGKILLED, Sink, run_driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def numbered(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


def texts(start: int, stop: int) -> list[str]:
    return sorted(str(number) for number in range(start, stop))


def options(nsq: NsqUnderTest, topic: str, **more: Any) -> dict[str, str]:
    given = {"nsqlookupdHttpAddresses": nsq.lookupd_address, "topic": topic, "channel": "c"} | more
    return {name: str(value) for name, value in given.items()}


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return Sink(tmp_path, "nsq", "value string, message_id string, attempts int")


def is_empty(nsq: NsqUnderTest, topic: str) -> bool:
    stats = nsq.channel_stats(topic, "c")
    return (stats["depth"], stats["in_flight_count"]) == (0, 0)


# -- batches


KILLED_IN_THE_MIDDLE = """
import json, os, signal, sys
from pathlib import Path
from pyspark.sql import SparkSession

folder, options = Path(sys.argv[1]), json.loads(sys.argv[2])

def take(rows):
    for number, row in enumerate(rows):
        if number == 3000 and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (folder / f"{os.getpid()}.rows").open("a").write(row.value + "\\n")

conf = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.memory": "512m"}
spark = SparkSession.builder.master("local[2,4]").config(map=conf).getOrCreate()
spark.read.format("nsq").options(**options).schema("value string").load().foreachPartition(take)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_written_down", [False, True])
def test_a_drain_with_a_killed_worker_fails_without_wal_dir(
    nsq: NsqUnderTest, tmp_path: Path, is_written_down: bool
) -> None:
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(0, 10_000))
    more = {"walDir": tmp_path / "wal", "runId": "r"} if is_written_down else {}
    given = options(nsq, topic, idleTimeout="2s", msgTimeout="1s", maxInFlight=500, **more)
    done = run_script(KILLED_IN_THE_MIDDLE, tmp_path, str(tmp_path), json.dumps(given))
    assert (tmp_path / "killed").exists(), done.output[-3000:]
    if is_written_down:
        assert done.code == 0, done.output[-3000:]
        # The attempt that was not killed has all of them.
        files = sorted(tmp_path.glob("*.rows"), key=lambda file: file.stat().st_size)
        assert sorted(files[-1].read_text().split()) == texts(0, 10_000)
    else:
        assert done.code != 0
        assert "attempt 2 at a read without walDir" in done.output


@pytest.mark.parametrize("is_written_down", [False, True])
def test_a_drain_that_spark_reads_twice_fails_without_wal_dir(
    spark: SparkSession, nsq: NsqUnderTest, tmp_path: Path, is_written_down: bool
) -> None:
    """Spark sorts several partitions by ranges of a sample, for which it reads its input once more."""
    topics = [nsq.topic("c") for _ in range(2)]
    nsq.publish(topics[0], *numbered(0, 10))
    nsq.publish(topics[1], *numbered(10, 20))
    more = {"walDir": tmp_path / "wal", "runId": "r"} if is_written_down else {}
    given = options(nsq, "", topics=",".join(topics), idleTimeout="1s", **more)
    del given["topic"]
    ordered = spark.read.format("nsq").options(**given).schema("value string").load().orderBy("value")
    if is_written_down:
        assert [row.value for row in ordered.collect()] == texts(0, 20)
    else:
        with pytest.raises(Exception, match="attempt 2 at a read without walDir"):
            ordered.collect()


# -- streams


@pytest.mark.slow
def test_a_killed_driver_causes_no_loss_and_no_duplicates(spark: SparkSession, nsq: NsqUnderTest, sink: Sink) -> None:
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(0, 2000))
    given = options(nsq, topic, walDir=sink.folder / "wal", msgTimeout="2s")
    first = given | {"maxRowsPerTrigger": "700"}
    # Before 4.2 AvailableNow is one batch, and this must reach its second one.
    trigger = {"processingTime": "0 seconds"}
    assert run_driver(sink, first, "killed_in_a_task", trigger=trigger, batch=1, after=300) == SIGKILLED
    nsq.publish(topic, *numbered(2000, 2500))
    # Before 4.2 AvailableNow is one batch, too: first the interrupted one, then another with the rest.
    for _ in range(2):
        sink.run(spark, given)
    assert sorted(sink.values) == texts(0, 2500)
    wait_until(lambda: is_empty(nsq, topic), "all messages are finished")
