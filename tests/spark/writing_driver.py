"""A separate Spark driver, with a streaming query that writes to Pulsar, and faults at points of its first batch.

    python writing_driver.py TASK

TASK is the JSON that `test_streaming_write_faults.Copy.run` makes, with the points of the first batch where faults
happen. The format's methods are wrapped with them.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext

from brokers.pulsar_admin import PulsarAdmin
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.spark.base import MQDataSource
from tests.spark.streams import NAME, session

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.ports import TaskAttempt
    from spark_mq_source.pulsar.options import PulsarOptions
    from spark_mq_source.pulsar.write.writer import WriteReport

ROWS_BEFORE_A_KILL = 50
TIMEOUT_S = 60.0


class MortalFormat(PulsarFormat):
    """Pulsar with faults around its methods."""

    name = "pulsar-mortal"

    def __init__(self, task: Mapping[str, Any], driver: int) -> None:
        self._task = task
        self._driver = driver

    def _kill_driver(self) -> None:
        os.killpg(self._driver, signal.SIGKILL)
        # This process is not in the process group of pyspark's daemon; otherwise it ends with the JVM's sockets.
        os.kill(os.getpid(), signal.SIGKILL)

    def _happens(self, point: str) -> bool:
        return point in self._task["points"]

    def _note(self, what: str) -> Path:
        return Path(self._task["folder"]) / what

    def write(
        self, options: PulsarOptions, batches: Iterator[pa.RecordBatch], attempt: TaskAttempt, *more: Any
    ) -> WriteReport:
        if attempt.batch_id == 0:
            if self._happens("planned"):
                self._kill_driver()
            if self._happens("worker") and attempt.attempt == 0:
                batches = self._killing(batches)
        return super().write(options, batches, attempt, *more)

    def _killing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            yield batch
            rows += batch.num_rows
            if rows >= ROWS_BEFORE_A_KILL:
                self._wait_until_some_are_stored()
                self._note("killed a worker").touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def _admin(self) -> PulsarAdmin:
        return PulsarAdmin(self._task["admin_url"], self._task["admin_token"])

    def _wait_until_some_are_stored(self) -> None:
        admin = self._admin()
        _wait(lambda: any(admin.stats(name)["msgInCounter"] for name in self._task["targets"]))

    def wait_until_no_transaction_is_open(self) -> None:
        """Wait until no transaction that has written to the target is open."""
        admin = self._admin()
        _wait(lambda: not admin.open_transactions(self._task["targets"]))

    def racing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Delay rows before the writer: the first attempt's rows are slow once some are stored; the second's are not.

        The second one waits until then. So it is done while the first one is in the middle of it, unless it takes more
        than a minute.
        """
        context = TaskContext.get()
        assert context is not None
        attempt, rows = context.attemptNumber(), 0
        is_slow = False
        for batch in batches:
            for at in range(0, batch.num_rows, 1 if is_slow else batch.num_rows):
                time.sleep(0.5 if is_slow else 0)  # the fault itself
                yield batch.slice(at, 1 if is_slow else batch.num_rows)
            rows += batch.num_rows
            if rows >= ROWS_BEFORE_A_KILL and not self._note(f"attempt {attempt}").exists():
                if attempt == 0:
                    self._wait_until_some_are_stored()
                    is_slow = True
                else:
                    _wait(self._note("attempt 0").exists)
                self._note(f"attempt {attempt}").touch()

    def commit(self, options: PulsarOptions, reports: Sequence[WriteReport]) -> None:
        self._note("reports").write_bytes(pickle.dumps(reports))
        if self._happens("between two ends"):
            super().commit(options, reports[:1])
            self._kill_driver()
        super().commit(options, reports)
        if self._happens("committed"):
            self._kill_driver()


def _wait(condition: Callable[[], bool]) -> None:
    """Wait for an action of another process, which sends no event; with a limit, so that the test reports a failure."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def main() -> None:
    """Run the query."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    folder = Path(task["folder"])

    format_ = MortalFormat(task, os.getpgrp())

    class MortalDataSource(MQDataSource):
        """Defined here, so that it is sent to the other processes by value, with its task."""

        format = format_
        format_name = MortalFormat.name

    spark = session(task)
    # A task's rows arrive in many batches.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
    spark.dataSource.register(MortalDataSource)
    df = spark.readStream.format(NAME).options(**task["source"]).schema("value string").load()
    if "raced" in task["points"]:
        df = df.mapInArrow(format_.racing, df.schema)
    query = (
        df.writeStream.format(MortalFormat.name)
        .options(**task["sink"])
        .option("checkpointLocation", str(folder / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    query.stop()
    if "raced" in task["points"]:
        # Executors stay alive, as those of a running query: Spark does not wait for the slower attempt.
        format_.wait_until_no_transaction_is_open()
    spark.stop()


if __name__ == "__main__":
    main()
