"""Logs one line per task and per write, with counters and times.

The level is INFO, which is hidden by default. Python on executors has no logging configuration, so there are two ways
to see the lines. With `spark.sql.pyspark.worker.logging.enabled=true` (Spark 4.1) Spark collects the lines of batches
in `spark.tvf.python_worker_logs()`, with the counters as fields. With `SPARK_MQ_SOURCE_LOG=INFO` in the environment of
the executors and the driver, this package writes them to stderr, on any Spark.

A reader's task cannot report to the driver: Spark accepts no metrics from Python data sources, and drops their
accumulator updates. A writer's task sends its counters in its commit message, and the driver logs their sum.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from spark_mq_source.core.errors import OptionError
from spark_mq_source.net.ahead import made_ahead
from spark_mq_source.net.stopwatch import timed_output

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.counters import Counters

logger = logging.getLogger(__name__)

ENVIRONMENT: Final = "SPARK_MQ_SOURCE_LOG"
"""The environment variable with the level from which this package logs to stderr."""


def log_to_stderr(level: str) -> None:
    """Log to stderr from this level on; an empty level does nothing.

    Raises:
        OptionError: the level is unknown.
    """
    if not level:
        return
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise OptionError(f"{ENVIRONMENT}={level}: expected DEBUG, INFO, WARNING or ERROR")
    package = logging.getLogger("spark_mq_source")
    package.setLevel(number)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    package.addHandler(handler)


def logged_read(
    format_name: str, task: object, batches: Iterator[pa.RecordBatch], counters: Counters, *, is_ahead: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task; log a line when it ends, even if it ends early.

    Args:
        format_name: name in `spark.read.format(name)`.
        task: the range, for the log line.
        batches: the task's rows.
        counters: the reader's counters.
        is_ahead: whether a thread makes one more batch, see `made_ahead`.
    """
    what = "read part of"
    rows = timed_output(batches, counters)
    try:
        yield from made_ahead(rows) if is_ahead else rows
        what = "read"
    finally:
        log_counters(format_name, f"{what} {task}", counters)


def log_counters(format_name: str, what: str, counters: Counters) -> None:
    """Log what was read or written, with its counters."""
    # The user lets Spark collect this process's logs: its environment then has the session's id (seen on 4.3.0).
    if "PYSPARK_SPARK_SESSION_UUID" in os.environ and logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    # Spark's worker logs have a field `context`, a map of strings.
    fields = {"format": format_name, "what": what, **counters.as_texts()}
    logger.info("%s: %s: %s", format_name, what, counters, extra={"context": fields})


log_to_stderr(os.environ.get(ENVIRONMENT, ""))
