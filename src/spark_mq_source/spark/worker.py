"""The Python worker: detects that Spark has ended a task or a query, and avoids needless garbage collection.

Spark ends a task (killed, lost a speculation, failed input) by closing its side of the connection. Arrow takes this for
the regular end of the stream, so a writer would take the rows received so far for all rows (seen on 4.3.0). Spark gives
a data source no other signal, so this module checks the connection itself.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import io
import logging
import os
import pickle
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
from pyspark import SparkFiles, TaskContext

from spark_mq_source.core.errors import TaskEndedError

if TYPE_CHECKING:
    from types import FrameType

    import pyarrow as pa

logger = logging.getLogger(__name__)


def freeze_loaded_modules() -> None:
    """Exclude all objects created so far from garbage collection; only in Spark's Python workers.

    Spark's daemon collects garbage after every task, and whenever a worker has created or planned a data source (4.0.0
    and 4.3.0). Each collection visits some hundred thousand live objects of modules: 45 ms of processor time, as much
    as reading 200,000 rows, and twice for each query while its first task starts. The cost: a reference cycle that is
    alive now and dropped later is never freed. So objects are excluded again only after more modules were loaded.
    """
    if connection_to_spark() is not None:
        _freeze(len(sys.modules))


@functools.cache
def _freeze(modules: int) -> None:
    gc.freeze()


class _Terminated(SystemExit):
    """SIGTERM has arrived."""


def stop_on_sigterm() -> None:
    """Let SIGTERM end a worker of Spark with an exception, so that Spark's code stops the stream reader.

    Spark ends the worker that plans a query with this signal, and does not wait for it; only a worker whose connection
    was closed would stop its reader (`PythonStreamingSourceRunner.stop`, 4.0.0 and 4.3.0).
    """
    if is_called_by_spark() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)


def _terminate(_: int, __: FrameType | None) -> None:
    ignore_sigterm()
    raise _Terminated


def ignore_sigterm() -> None:
    """Let a stream reader that is being stopped end: Spark sends SIGTERM then, too, after an error or Ctrl-C."""
    if signal.getsignal(signal.SIGTERM) is _terminate:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def exit_if_terminated() -> None:
    """End the process if SIGTERM has arrived: Spark's code would report the signal to a connection that is closed."""
    if isinstance(sys.exc_info()[1], _Terminated):
        logging.shutdown()
        os._exit(0)


def rows_while_running(batches: Iterator[pa.RecordBatch], connection: int | None) -> Iterator[pa.RecordBatch]:
    """Yield the batches, then raise if Spark has ended the task; any thread may iterate.

    Raises:
        TaskEndedError: Spark has ended the task.
    """
    yield from batches
    check_running(connection)


def is_read_again(context: TaskContext, options: object, task: object) -> bool:
    """Return whether this executor has read a task before in the same execution of a query, and remember it.

    A query may read one topic with several channels, subscriptions or clusters, which only the options distinguish.
    The text of options does not contain secrets.

    Spark reads its input twice to sort it: once for a sample (`RangePartitioner`, 4.3.0), whose rows it does not keep.
    The attempt number does not show this, nor the repetition of a stage after an executor was lost. Another executor
    does not know of it.
    """
    execution = context.getLocalProperty("spark.sql.execution.id")
    if execution is None:
        return False
    identity = pickle.dumps((execution, context.partitionId(), repr(options), task))
    digest = hashlib.blake2b(identity, digest_size=16).hexdigest()
    folder = SparkFiles.getRootDirectory()
    try:
        Path(folder, f"spark-mq-{digest}").touch(exist_ok=False)
    except FileExistsError:
        return True
    except OSError as error:
        _warn_of_unwritable(folder, error.strerror)
    return False


@functools.cache
def _warn_of_unwritable(folder: str, reason: str | None) -> None:
    logger.warning(
        "%s cannot be written to (%s), so a second read of a task without walDir, as for orderBy, is not detected: it "
        "takes the next messages, and the rows of the first read are lost; make the executor's working directory "
        "writable, or set walDir and runId",
        folder,
        reason,
    )


def check_running(connection: int | None) -> None:
    """Check that Spark still waits for this task.

    Args:
        connection: see `connection_to_spark`; None skips the check.

    Raises:
        TaskEndedError: Spark has closed the connection.
    """
    if connection is not None and _is_closed(connection):
        raise TaskEndedError(
            "Spark has ended this task early: it was killed, another attempt was faster, or its input failed"
        )


def connection_of_task() -> int | None:
    """Return the connection of this task, see `connection_to_spark`; log a warning, once, if a task has none.

    Rows that arrive after Spark has ended such a task cannot be distinguished from complete rows.
    """
    connection = connection_to_spark()
    if connection is None and TaskContext.get() is not None:
        _warn_of_no_connection()
    return connection


@functools.cache
def _warn_of_no_connection() -> None:
    logger.warning(
        "the connection of this Python worker to Spark is not found (pyspark %s): a task that Spark ends while it "
        "writes, because it is killed or because another attempt was faster, counts as complete; do not use "
        "spark.python.use.daemon=false, and report this",
        pyspark.__version__,
    )


def connection_to_spark() -> int | None:
    """Return the file descriptor of this worker's connection to Spark; None outside of a worker.

    Spark does not pass it on, so this function searches the frames of Spark's own code for any socket, or file on a
    socket, regardless of its name. All of them are duplicates of one connection: `sock`, `infile` and `outfile` on
    4.0.0 and 4.3.0. Call this from the main thread.
    """
    for frame in _sparks_frames():
        for value in frame.f_locals.values():
            if isinstance(value, socket.socket | io.IOBase) and (found := _socket_of(value)) is not None:
                return found
    return None


def is_called_by_spark() -> bool:
    """Return whether Spark's own code called the running code, as in all of its Python workers."""
    return next(_sparks_frames(), None) is not None


def _sparks_frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if _is_sparks(frame.f_globals):
            yield frame
        frame = frame.f_back


def _is_sparks(module: Mapping[str, object]) -> bool:
    """Return whether these are the globals of a module of pyspark, even one that runs as `__main__`."""
    names = (module.get("__name__"), getattr(module.get("__spec__"), "name", None))
    return any(isinstance(name, str) and name.startswith("pyspark.") for name in names)


def _socket_of(value: socket.socket | io.IOBase) -> int | None:
    """Return the descriptor of an open socket; None for other values."""
    try:
        descriptor = value.fileno()
        return descriptor if stat.S_ISSOCK(os.fstat(descriptor).st_mode) else None
    except (OSError, ValueError):
        return None  # closed, or a pair of files without a descriptor: workers without pyspark's daemon


def _is_closed(descriptor: int) -> bool:
    if not hasattr(socket, "MSG_DONTWAIT"):
        return False  # Windows has no non-blocking peek
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        try:
            return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
