"""The check whether Spark still waits for a task, by the connection of the worker."""

from __future__ import annotations

import gc
import io
import logging
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

import pyarrow as pa
import pytest
from pyspark import SparkFiles, TaskContext

from pyspark_nsq import DefaultSource
from spark_mq_source.core.errors import TaskEndedError
from spark_mq_source.nsq.client.client import Nsqd, Source
from spark_mq_source.nsq.options import READ, NsqOptions
from spark_mq_source.nsq.read.reader import NsqRange
from spark_mq_source.spark.worker import (
    _freeze,
    _warn_of_no_connection,
    _warn_of_unwritable,
    check_running,
    connection_of_task,
    connection_to_spark,
    freeze_loaded_modules,
    is_called_by_spark,
    is_read_again,
    rows_while_running,
)

BATCH = pa.record_batch({"value": pa.array([b"1", b"2"])})


def check() -> None:
    check_running(connection_to_spark())


def frame_of(module: str, run_as: str = "") -> Callable[..., None]:
    """Return a function in a pyspark module: it runs a task while its frame holds the objects it was called with."""
    spec = ModuleSpec(module, None)
    names = {"__name__": run_as or module, "__spec__": spec}
    exec("def run(task, *, infile=None, outfile=None, sock=None, receiver=None): task()", names)  # noqa: S102
    return names["run"]  # type: ignore[return-value]


IN_WORKER, IN_DAEMON = frame_of("pyspark.worker"), frame_of("pyspark.daemon", run_as="__main__")


class Worker:
    """A Python worker and Spark's side of its connection."""

    def __init__(self) -> None:
        self.spark, self.sock = socket.socketpair()
        self.file = self.sock.makefile("rb")

    def run(self, task: Callable[[], object]) -> None:
        """Run a task as `pyspark.worker` does."""
        IN_WORKER(task, infile=self.file, outfile=self.file)

    def close(self) -> None:
        self.file.close()
        self.sock.close()
        self.spark.close()


@pytest.fixture
def worker(closing: Callable[[Worker], Worker]) -> Worker:
    return closing(Worker())


def test_a_task_that_spark_waits_for_continues(worker: Worker) -> None:
    worker.run(check)
    worker.spark.send(b"what Spark says after the rows")
    worker.run(check)


@pytest.mark.parametrize("end", [lambda spark: spark.shutdown(socket.SHUT_WR), lambda spark: spark.close()])
def test_a_task_that_spark_has_ended_is_an_error(worker: Worker, end: Callable[[socket.socket], None]) -> None:
    end(worker.spark)
    with pytest.raises(TaskEndedError, match="another attempt was faster"):
        worker.run(check)


def test_a_reset_connection_is_an_error_too(worker: Worker) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as own:
        spark, _ = server.accept()
        own.send(b"unread")
        spark.recv(1)
        spark.close()

        with pytest.raises(TaskEndedError):
            IN_WORKER(check, infile=own)


def test_rows_that_end_with_the_connection_are_incomplete(worker: Worker) -> None:
    def task() -> None:
        batches = rows_while_running(iter([BATCH, BATCH]), connection_to_spark())
        assert next(batches) is BATCH
        worker.spark.close()
        assert next(batches) is BATCH
        # The writer may take them in a thread that has no frame of Spark.
        with ThreadPoolExecutor(1) as pool, pytest.raises(TaskEndedError):
            pool.submit(next, batches).result()

    worker.run(task)


def test_outside_of_a_worker_no_connection_is_checked() -> None:
    assert list(rows_while_running(iter([BATCH]), connection_to_spark())) == [BATCH]
    check()


@pytest.mark.parametrize(
    "run",
    [
        lambda worker, task: IN_WORKER(task, infile=worker.file),
        lambda worker, task: IN_WORKER(task, receiver=object(), outfile=worker.file),
        lambda worker, task: IN_DAEMON(lambda: IN_WORKER(task, receiver=object()), sock=worker.sock),
    ],
    ids=["4.0 to 4.3: main", "4.3: invoke_udf", "the daemon alone"],
)
def test_the_connection_is_found_in_every_frame_of_spark(
    worker: Worker, run: Callable[[Worker, Callable[[], object]], None]
) -> None:
    run(worker, check)
    worker.spark.close()
    with pytest.raises(TaskEndedError):
        run(worker, check)


def test_other_sockets_and_files_are_no_connection_to_spark(worker: Worker, tmp_path: Path) -> None:
    def main(infile: IO[bytes]) -> None:
        assert connection_to_spark() is None

    main(worker.file)  # a function of the user
    closed = socket.socket()
    closed.close()
    (tmp_path / "log").touch()
    with (tmp_path / "log").open("rb") as log:
        IN_WORKER(lambda: main(worker.file), infile=log, outfile=io.BytesIO(), sock=closed)


def test_code_that_spark_calls_is_known_without_a_connection() -> None:
    called: list[bool] = []
    IN_WORKER(lambda: called.append(is_called_by_spark()))
    assert called == [True]
    assert not is_called_by_spark()


@pytest.mark.parametrize("is_task", [True, False])
def test_a_task_without_a_connection_is_a_warning_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, is_task: bool
) -> None:
    monkeypatch.setattr(TaskContext, "get", lambda: object() if is_task else None)
    _warn_of_no_connection.cache_clear()
    for _ in range(2):
        IN_WORKER(lambda: check_running(connection_of_task()))
    assert ["counts as complete" in record.message for record in caplog.records] == [True] * is_task


@pytest.fixture
def frozen() -> Iterator[Callable[[], int]]:
    """Yield the count of objects that collections ignore; none before and after a test."""
    _freeze.cache_clear()
    gc.unfreeze()
    yield gc.get_freeze_count
    gc.unfreeze()
    _freeze.cache_clear()


def test_a_workers_first_task_excludes_loaded_modules_from_collections(
    worker: Worker, frozen: Callable[[], int]
) -> None:
    worker.run(freeze_loaded_modules)
    loaded = frozen()
    assert loaded > 10_000
    later = [[] for _ in range(1000)]
    worker.run(freeze_loaded_modules)
    assert frozen() <= loaded
    assert len(later) == 1000


def test_modules_that_are_loaded_later_are_excluded_too(
    worker: Worker, frozen: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.run(freeze_loaded_modules)
    loaded = frozen()
    module = ModuleType("a_module_loaded_later")
    module.__dict__["objects"] = [[] for _ in range(1000)]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    worker.run(freeze_loaded_modules)
    assert frozen() >= loaded + 1000


def test_the_worker_that_plans_a_query_excludes_them_before_it_answers(
    worker: Worker, frozen: Callable[[], int]
) -> None:
    worker.run(lambda: DefaultSource({}))
    assert frozen() > 10_000


def test_collections_outside_of_workers_are_unchanged(frozen: Callable[[], int]) -> None:
    freeze_loaded_modules()
    assert frozen() == 0


TASK = NsqRange(Source("t", Nsqd("n", "localhost", 4150)))


def drain(channel: str) -> NsqOptions:
    return NsqOptions.from_spark(
        {"nsqdTcpAddresses": "localhost", "topic": "t", "channel": channel, "maxRows": "9"}, READ
    )


def context(execution: str | None) -> Any:
    return SimpleNamespace(getLocalProperty=lambda _: execution, partitionId=lambda: 0)


def test_only_the_same_read_of_a_task_is_a_second_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path))
    reads = [("1", drain("a")), ("1", drain("b")), ("2", drain("a")), ("1", drain("a")), (None, drain("a"))]
    assert [is_read_again(context(execution), options, TASK) for execution, options in reads] == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_a_folder_that_cannot_be_written_to_does_not_fail_a_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _warn_of_unwritable.cache_clear()
    monkeypatch.setattr(SparkFiles, "getRootDirectory", lambda: str(tmp_path / "missing"))
    with caplog.at_level(logging.WARNING):
        assert not any(is_read_again(context("1"), drain("a"), TASK) for _ in range(2))
    (warning,) = caplog.messages
    assert "missing cannot be written to (No such file or directory)" in warning
