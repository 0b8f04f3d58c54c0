"""Helpers of streaming tests: a sink that accepts repeated batches, messages stored by the broker, steps inside tasks.

The sink is a folder of parquet, overwritten batch by batch: Spark may hand it a batch again after a crash, and that
must change nothing. Its expected rows are read with the broker's official client.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds

from spark_mq_source.pulsar.offsets import Position
from tests.fix_spark import ScriptResult, run_program
from tests.formats.pulsar import MESSAGE_ID_TYPE, PulsarFeed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, Row, SparkSession
    from pyspark.sql.streaming import StreamingQuery

NAME = "pulsar-native"
SCHEMA = f"value string, partition int, message_id {MESSAGE_ID_TYPE}"
QUERY_TIMEOUT_S = 200.0
SIGKILLED = 128 + 9
DRIVER = Path(__file__).with_name("streaming_driver.py")
ROOT = Path(__file__).resolve().parents[2]

Write = Callable[["DataFrame", int], None]
"""A function that takes a batch: its rows and its number."""

Step = Callable[[Iterator["Row"]], Iterator["Row"]]
"""A function of a task's rows before it writes them. A closure, so that it is sent to the executors by value."""


def finish(query: StreamingQuery) -> None:
    """Wait for the end of a query that ends by itself; stop it in any case."""
    try:
        assert query.awaitTermination(QUERY_TIMEOUT_S), "the query did not end"
    finally:
        query.stop()


def is_late_worker(error: Exception | None) -> bool:
    """Return whether a query failed because its Python process needed more than the 10 s that Spark allows it to start.

    Nothing is lost if the query is started again from its checkpoint.
    """
    return "failed to connect back" in str(error)


class Message(NamedTuple):
    """One message and its position."""

    partition: int
    ledger: int
    entry: int
    batch: int
    value: str


def stored(feed: PulsarFeed) -> list[Message]:
    """Return every message of a topic, as the broker's official client reads them."""
    import pulsar

    client = feed.broker.client()
    found = []
    for number, name in enumerate(feed.topic_partitions):
        partition = -1 if name == feed.topic else number
        reader = client.create_reader(name, pulsar.MessageId.earliest)
        while reader.has_message_available():
            message = reader.read_next(10_000)
            at = message.message_id()
            found.append(Message(partition, at.ledger_id(), at.entry_id(), at.batch_index(), message.data().decode()))
        reader.close()
    return found


def stream(spark: SparkSession, options: Mapping[str, str], name: str = NAME, schema: str = SCHEMA) -> DataFrame:
    return spark.readStream.format(name).options(**options).schema(schema).load()


class Sink:
    """A table and the checkpoint of the query that fills it; both outlast queries, sessions and processes.

    Args:
        folder: where they are.
        name: the format that the query reads.
        schema: the columns.
    """

    def __init__(self, folder: Path, name: str = NAME, schema: str = SCHEMA) -> None:
        self.folder = folder
        self.name = name
        self.schema = schema

    # -- the query

    def start(
        self, spark: SparkSession, options: Mapping[str, str], write: Write | None = None, **trigger: Any
    ) -> StreamingQuery:
        """Start a query into this sink; `write` takes the batches in place of `self.write`."""
        return (
            stream(spark, options, self.name, self.schema)
            .writeStream.trigger(**trigger)
            .option("checkpointLocation", str(self.folder / "checkpoint"))
            .foreachBatch(write or self.write)
            .start()
        )

    @contextlib.contextmanager
    def running(
        self, spark: SparkSession, options: Mapping[str, str], write: Write | None = None
    ) -> Iterator[StreamingQuery]:
        """Run a query until the block ends, as fast as its batches are done."""
        query = self.start(spark, options, write, processingTime="0 seconds")
        try:
            yield query
        finally:
            query.stop()

    def run(
        self, spark: SparkSession, options: Mapping[str, str], write: Write | None = None
    ) -> list[Mapping[str, Any]]:
        """Run a query on all present messages, in as many batches as the limits make of it; return its progress."""
        while True:
            query = self.start(spark, options, write, availableNow=True)
            try:
                finish(query)
            except Exception as error:
                if not is_late_worker(error):
                    raise
            else:
                return [json.loads(progress.json) for progress in query.recentProgress]

    def write(self, df: DataFrame, number: int, step: Step | None = None) -> None:
        """Write a batch over an earlier one of the same number; each task applies `step` to its rows."""
        if step is not None:
            # With an RDD rows arrive as they are read, and pandas is not needed.
            df = df.sparkSession.createDataFrame(df.rdd.mapPartitions(step), df.schema)
        df.write.mode("overwrite").parquet(str(self.folder / "table" / str(number)))

    # -- results

    @property
    def batches(self) -> list[int]:
        """The number of rows of each batch, in order."""
        return [table.num_rows for table in self._tables()]

    @property
    def values(self) -> list[str]:
        """The column `value` of all rows in the table."""
        return [value for table in self._tables() for value in table.column("value").to_pylist()]

    @property
    def messages(self) -> list[Message]:
        """All rows in the table."""
        rows = itertools.chain(*(table.to_pylist() for table in self._tables()))
        return [Message(row["partition"], *row["message_id"].values(), row["value"]) for row in rows]

    @property
    def offsets(self) -> list[dict[str, Position]]:
        """The end offsets of each batch in the checkpoint."""
        documents = [path.read_text().splitlines()[-1] for path in self._numbered("checkpoint/offsets")]
        positions = [json.loads(document)["positions"] for document in documents]
        return [{name: Position(**at) for name, at in ends.items()} for ends in positions]

    @property
    def commits(self) -> list[int]:
        """The batches that are committed in the checkpoint."""
        return [int(path.name) for path in self._numbered("checkpoint/commits")]

    def check(self, feed: PulsarFeed) -> None:
        """Check that the table has every message of the topic once, and that no offset has decreased."""
        found, expected = Counter(self.messages), set(stored(feed))
        assert expected

        def places(messages: Iterable[Message]) -> list[tuple[object, ...]]:
            return sorted(message[:-1] for message in messages)

        assert places(message for message, times in found.items() if times > 1) == [], "twice"
        assert places(expected - found.keys()) == [], "missing"
        assert places(found.keys() - expected) == [], "not from there"
        for before, after in itertools.pairwise(self.offsets):
            assert before.keys() <= after.keys()
            assert all(at <= after[name] for name, at in before.items()), (before, after)

    def _tables(self) -> Iterator[pa.Table]:
        return (ds.dataset(path, format="parquet").to_table() for path in self._numbered("table"))

    def _numbered(self, kind: str) -> list[Path]:
        return sorted((p for p in (self.folder / kind).glob("*") if p.name.isdigit()), key=lambda p: int(p.name))


def run_driver(
    sink: Sink,
    options: Mapping[str, str],
    step: str,
    *,
    master: str = "local[2]",
    conf: Mapping[str, str] | None = None,
    trigger: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> int:
    """Run a query in a separate Spark driver until it ends or kills itself; return its exit code.

    Args:
        sink: where its batches go.
        options: the source's.
        step: the fault of its batches, a name of `streaming_driver.STEPS`.
        master: its Spark master.
        conf: more of Spark's configuration.
        trigger: the query's; `availableNow` if None.
        arguments: the step's own.
    """
    task = {
        "folder": str(sink.folder),
        "name": sink.name,
        "schema": sink.schema,
        "options": dict(options),
        "step": step,
        "master": master,
        "conf": dict(conf or {}),
        "trigger": dict(trigger or {"availableNow": True}),
        "arguments": arguments,
    }
    return run_task(DRIVER, sink.folder, task).code


def run_task(driver: Path, folder: Path, task: Mapping[str, Any]) -> ScriptResult:
    """Run a Spark driver of these tests, whose argument describes its task."""
    environment = {"PYTHONPATH": str(ROOT)}
    return run_program(driver, folder, json.dumps(task), timeout_s=QUERY_TIMEOUT_S, environment=environment)


def session(task: Mapping[str, Any]) -> SparkSession:
    """Return the session of such a driver, with the task's master, folder and configuration."""
    from pyspark.sql import SparkSession

    conf = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.warehouse.dir": f"{task['folder']}/warehouse",
    } | task["conf"]
    return SparkSession.builder.master(task["master"]).config(map=conf).getOrCreate()


def pausing(folder: Path, after: int) -> Step:
    """Stop the first task that has this many rows until `folder/resume` exists; create `folder/paused` meanwhile."""

    def pause(rows: Iterator[Row]) -> Iterator[Row]:
        for number, row in enumerate(rows):
            if number == after:
                with contextlib.suppress(FileExistsError):
                    os.close(os.open(folder / "paused", os.O_CREAT | os.O_EXCL))
                    while not (folder / "resume").exists():
                        time.sleep(0.01)  # written by another process
            yield row

    return pause
