"""The log line of a task, in a process without configured logging, and where Spark collects logs."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import OptionError
from spark_mq_source.spark import task_log
from spark_mq_source.spark.task_log import log_counters, log_to_stderr, logged_read

BATCH = pa.record_batch({"n": [1, 2, 3]})
WORKER = "PYSPARK_SPARK_SESSION_UUID"

PROGRAM = """
import logging
from spark_mq_source.core.counters import Counters
from spark_mq_source.spark.task_log import log_counters
log_counters("pulsar-native", "wrote task 3", Counters(rows=5, entries=1, entry_bytes=10))
logging.getLogger("spark_mq_source.pulsar.read.reader").warning("messages are gone")
"""


def stderr_of(environment: dict[str, str]) -> str:
    inherited = {name: text for name, text in os.environ.items() if name not in {task_log.ENVIRONMENT, WORKER}}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=inherited | environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    package = logging.getLogger("spark_mq_source")
    before = package.level, task_log.logger.level, package.handlers[:]
    yield
    package.setLevel(before[0])
    task_log.logger.setLevel(before[1])
    package.handlers[:] = before[2]


def test_without_configured_logging_warnings_are_shown_and_no_counters() -> None:
    assert stderr_of({}) == "messages are gone\n"


def test_the_environment_shows_the_counters_on_stderr() -> None:
    counters, warning = stderr_of({"SPARK_MQ_SOURCE_LOG": "info"}).splitlines()
    assert counters.endswith(
        " INFO spark_mq_source.spark.task_log: pulsar-native: wrote task 3: 5 rows in 1 entries of 10 B, "
        "0 reconnects, waited 0.000 s, worked 0.000 s"
    )
    assert warning.endswith(" WARNING spark_mq_source.pulsar.read.reader: messages are gone")


def test_an_invalid_level_is_a_warning() -> None:
    with pytest.raises(OptionError, match="SPARK_MQ_SOURCE_LOG=loud: expected DEBUG, INFO, WARNING or ERROR"):
        log_to_stderr("loud")


@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_read_has_one_line_when_it_ends(caplog: pytest.LogCaptureFixture, is_ahead: bool) -> None:
    counters = Counters(entries=2)
    rows = logged_read("nsq", "nsqd one", iter([BATCH, BATCH]), counters, is_ahead=is_ahead)
    next(rows)
    assert not caplog.records
    assert sum(batch.num_rows for batch in rows) == 3
    (record,) = caplog.records
    assert (record.levelname, record.name) == ("INFO", "spark_mq_source.spark.task_log")
    assert record.getMessage().startswith("nsq: read nsqd one: 6 rows in 2 entries of 0 B, 0 reconnects, ")
    # The fields that Spark writes in its JSON logs of workers.
    fields = json.loads(json.dumps(record.__dict__["context"]))
    assert fields["rows"] == "6"
    assert (fields["format"], fields["what"]) == ("nsq", "read nsqd one")


def test_the_line_of_an_abandoned_read_marks_it_as_partial(caplog: pytest.LogCaptureFixture) -> None:
    counters = Counters()

    def read() -> Iterator[pa.RecordBatch]:
        try:
            yield BATCH
            yield BATCH
        finally:
            counters.entries = 5  # as in readers that count at the end of a connection

    rows = logged_read("nsq", "nsqd one", read(), counters)
    next(rows)
    rows.close()  # type: ignore[attr-defined]
    (text,) = caplog.messages
    assert text.startswith("nsq: read part of nsqd one: 3 rows in 5 entries of 0 B, ")


def test_the_line_of_a_failed_read_has_its_counters(caplog: pytest.LogCaptureFixture) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield BATCH
        raise ConnectionError

    with pytest.raises(ConnectionError):
        list(logged_read("nsq", "nsqd one", failing(), Counters()))
    assert [r.getMessage().partition(" rows")[0] for r in caplog.records] == ["nsq: read part of nsqd one: 3"]


def test_lines_are_among_the_logs_that_spark_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    logging.getLogger("spark_mq_source").setLevel(logging.WARNING)
    log_counters("tubemq", "wrote", Counters())
    assert not task_log.logger.isEnabledFor(logging.INFO)
    monkeypatch.setenv(WORKER, "a session")
    log_counters("tubemq", "wrote", Counters())
    assert task_log.logger.isEnabledFor(logging.INFO)
