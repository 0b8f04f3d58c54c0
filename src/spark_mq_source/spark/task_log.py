"""A line in the log for each task, and one for each write: what was read or written, and where the time went.

They are logged as INFO, so nobody sees them unasked. Python on executors has no logging of its own to be configured;
there are two ways to ask. `spark.sql.pyspark.worker.logging.enabled=true` (Spark 4.1) has Spark collect the lines of
batches in `spark.tvf.python_worker_logs()`, with the counters as fields. `SPARK_MQ_SOURCE_LOG=INFO` in the environment
of executors and driver has this package write them to their stderr, on any Spark.

A reader's task has no way to tell the driver anything: Spark takes no metrics from Python data sources, and drops what
their tasks add to accumulators. A writer's task has its commit message, so the driver logs the sum of a write.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import OptionError
from spark_mq_source.net.stopwatch import made
from spark_mq_source.spark._compat import collects_worker_logs

if TYPE_CHECKING:
    import pyarrow as pa


logger = logging.getLogger(__name__)

ENVIRONMENT: Final = "SPARK_MQ_SOURCE_LOG"
"""Names a level: what this package logs from that level on goes to stderr."""


def log_to_stderr(level: str) -> None:
    """Has this package write to stderr what it logs from a level on; nothing where the level is empty.

    Raises:
        OptionError: there is no such level.
    """
    if not level:
        return
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise OptionError(f"{ENVIRONMENT}={level}: expected DEBUG, INFO, WARNING or ERROR")
    package = logging.getLogger("spark_mq_source")
    package.setLevel(number)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package.addHandler(handler)


def logged_read(
    format_name: str, task: object, batches: Iterator[pa.RecordBatch], counters: Counters
) -> Iterator[pa.RecordBatch]:
    """The rows of a task; a line about them when it ends, also early.

    Args:
        format_name: in `spark.read.format(name)`.
        task: what is read.
        batches: its rows.
        counters: in which the reader counts the rest.
    """
    what = "read part of"
    try:
        yield from made(batches, counters)
        what = "read"
    finally:
        _log(format_name, f"{what} {task}", counters)


def log_write(format_name: str, partition: int, counters: Counters) -> None:
    """A line about one task of a write, in the executor's log."""
    _log(format_name, f"wrote task {partition}", counters)


def log_written(format_name: str, tasks: Sequence[Counters]) -> None:
    """A line about a whole write, in the driver's log: what those of its tasks that count have done."""
    _log(format_name, f"wrote with {len(tasks)} tasks", sum(tasks, Counters()))


def _log(format_name: str, what: str, counters: Counters) -> None:
    # Where Spark collects logs, whoever turned that on wants to see them.
    if collects_worker_logs() and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    # Spark's logs have a field `context`, a map of texts.
    fields = {"format": format_name, "what": what, **counters.as_texts()}
    logger.info("%s: %s: %s", format_name, what, counters, extra={"context": fields})


log_to_stderr(os.environ.get(ENVIRONMENT, ""))
