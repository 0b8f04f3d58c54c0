"""A streaming query that writes is killed at each step: the official client finds what its guarantee promises."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from spark_mq_source.core.options import WRITE
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.write.transactions import Transaction, abort_transactions
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_spark import SparkCluster
from tests.formats import numbers
from tests.formats.pulsar import PulsarFeed
from tests.spark.streams import NAME, ROOT, SIGKILLED, run_task, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = Path(__file__).with_name("writing_driver.py")
ROWS = 200
"""Rows of one micro-batch, which has two tasks."""

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]


class Copy:
    """A query that copies one topic to another, in micro-batches of `ROWS` rows."""

    def __init__(self, source: PulsarFeed, target: PulsarFeed, folder: Path, token: str | None, **sink: Any) -> None:
        self.target = target
        self.folder = folder
        self._admin_url, self._token = source.broker.admin_url, token
        access = {} if token is None else {"authToken": token}
        self._source = source.options | access | {"startingOffsets": "earliest", "maxEntriesPerTrigger": str(ROWS)}
        # Batches of ten rows, so that some are stored whenever a process is killed.
        self._sink = target.options | access | {"batchingMaxMessages": "10"} | sink

    def run(
        self,
        *points: str,
        ends_by_itself: bool = False,
        master: str = "local[2,4]",
        conf: Mapping[str, str] | None = None,
    ) -> None:
        """Run a separate driver with faults at points of the first batch; it is killed, or ends by itself.

        Args:
            points: names of points in `writing_driver`.
            ends_by_itself: whether the driver outlives them, and copies all messages.
            master: its Spark master.
            conf: more of Spark's configuration.
        """
        task = {
            "folder": str(self.folder),
            "source": self._source,
            "sink": self._sink,
            "points": points,
            "master": master,
            "conf": dict(conf or {}),
            "admin_url": self._admin_url,
            "admin_token": self._token,
            "targets": self.target.topic_partitions,
        }
        done = run_task(DRIVER, self.folder, task)
        assert done.code == (0 if ends_by_itself else SIGKILLED), done.output[-6000:]

    def finish(self, spark: SparkSession) -> None:
        """Copy the remaining messages."""
        query = (
            spark.readStream.format(NAME)
            .options(**self._source)
            .schema("value string")
            .load()
            .writeStream.format(NAME)
            .options(**self._sink)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def reported(self) -> list[Transaction]:
        """Return the transactions of the last batch that the driver was about to commit."""
        reports = pickle.loads((self.folder / "reports").read_bytes())  # noqa: S301 - our own
        return [report.transaction for report in reports]

    def abort(self, transactions: Sequence[Transaction]) -> None:
        """End transactions that a killed driver or worker has left open."""
        options = PulsarOptions.from_spark(self._sink, WRITE)
        abort_transactions(options, transactions)

    def open_transactions(self) -> list[Transaction]:
        """Return the open transactions that have written to the target, as listed by the broker's coordinator."""
        names = self.target.broker.admin.open_transactions(self.target.topic_partitions)
        return [Transaction(*map(int, name.strip("()").split(","))) for name in names]

    @property
    def found(self) -> Counter[str]:
        return Counter(message.value for message in stored(self.target))

    def check_planned(self) -> None:
        """Check that the first batch's offsets are in the checkpoint, without a commit, and no row is written."""
        assert (self.folder / "checkpoint/offsets/0").exists()
        assert not (self.folder / "checkpoint/commits/0").exists()
        assert not any(self.target.broker.admin.stats(name)["msgInCounter"] for name in self.target.topic_partitions)


def all_once() -> Counter[str]:
    return Counter(map(str, range(2 * ROWS)))


@pytest.fixture
def transacted(pulsar_featured: PulsarUnderTest, tmp_path: Path) -> Callable[[int], Copy]:
    """Copy in transactions that do not time out, from this many partitions to two."""

    def make(partitions: int) -> Copy:
        source, target = PulsarFeed(pulsar_featured, partitions), PulsarFeed(pulsar_featured, 2)
        source.publish(numbers(2 * ROWS), batching_enabled=False)
        token = pulsar_featured.require_own().admin_token
        return Copy(source, target, tmp_path, token, deliveryGuarantee="transaction", transactionTimeout="20m")

    return make


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_a_repeated_batch_loses_nothing_and_repeats_only_what_its_guarantee_allows(
    spark: SparkSession, pulsar: PulsarUnderTest, deduplicated: PulsarUnderTest, tmp_path: Path, guarantee: str
) -> None:
    source, target = PulsarFeed(pulsar, 2), PulsarFeed(deduplicated, 3)
    source.publish(numbers(2 * ROWS), batching_enabled=False)
    copy = Copy(source, target, tmp_path, None, deliveryGuarantee=guarantee)
    copy.run("planned")
    copy.check_planned()
    # Each run repeats the same batch, since it was not committed.
    copy.run("worker", "committed")
    assert (tmp_path / "killed a worker").exists()
    assert copy.found.keys() == set(map(str, range(ROWS)))
    copy.finish(spark)
    assert copy.found.keys() == all_once().keys()
    assert (copy.found == all_once()) == (guarantee == "exactly-once")


@pytest.mark.slow
def test_transactions_of_killed_workers_hide_rows_until_they_end(transacted: Callable[[int], Copy]) -> None:
    copy = transacted(2)
    copy.run("worker", ends_by_itself=True)
    left = copy.open_transactions()
    assert left
    assert len(copy.found) < 2 * ROWS
    copy.abort(left)
    wait_until(lambda: copy.found.keys() == all_once().keys(), "all rows are visible")
    assert copy.found == all_once()


@pytest.mark.slow
def test_transactions_repeat_only_rows_committed_before_the_driver_was_killed(
    spark: SparkSession, transacted: Callable[[int], Copy]
) -> None:
    copy = transacted(2)
    copy.run("between two ends")
    left = copy.reported()[1:]
    copy.finish(spark)
    # Transactions left open by the killed driver hide later rows. This test does not wait for their timeout.
    assert len(copy.found) < 2 * ROWS
    copy.abort(left)
    wait_until(lambda: copy.found.keys() == all_once().keys(), "all rows are visible")
    twice = copy.found - all_once()
    # One of two tasks of the first batch, which have one partition of the source each.
    halves = [Counter(map(str, range(first, ROWS, 2))) for first in range(2)]
    assert twice in halves


@pytest.mark.slow
def test_the_slower_of_two_concurrent_attempts_aborts_its_transaction(
    spark_cluster: SparkCluster, transacted: Callable[[int], Copy], tmp_path: Path
) -> None:
    copy = transacted(1)
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.task.duration.threshold": "100ms",
        # Rows are passed to the next Python worker as soon as there are this many bytes of them.
        "spark.buffer.size": "256",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.executorEnv.SPARK_MQ_SOURCE_LOG": "DEBUG",
    }
    copy.run("raced", ends_by_itself=True, master=spark_cluster.master_url, conf=conf)
    assert {path.name for path in tmp_path.glob("attempt *")} == {"attempt 0", "attempt 1"}
    wait_until(lambda: not copy.open_transactions(), "the slower attempt's transaction is aborted")
    wait_until(lambda: copy.found == all_once(), "all rows are visible")
