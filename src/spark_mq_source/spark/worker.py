"""The Python worker of a task: detects tasks that Spark has ended, and avoids needless garbage collection.

Spark ends a task (killed, lost a speculation, failed input) by closing its side of the connection. Arrow takes this for
a regular end of the stream, so a writer would take the rows received so far for all rows (seen on 4.3.0). Spark gives a
data source no other signal, so the connection itself is checked.
"""

from __future__ import annotations

import functools
import gc
import os
import socket
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from spark_mq_source.core.errors import TaskEndedError

if TYPE_CHECKING:
    from types import FrameType

    import pyarrow as pa


def leave_modules_uncollected() -> None:
    """Excludes all objects loaded so far from garbage collection; only in Spark's Python workers.

    Spark's daemon collects garbage after every task, and whenever a worker has made or planned a data source (4.0.0 and
    4.3.0). Each time it visits some hundred thousand live objects of modules: 45 ms of processor time, as much as
    reading 200,000 rows, and twice for each query while its first task starts. The cost: a reference cycle that is
    alive now and dropped later is never freed. So nothing is excluded anew unless more modules are loaded since.
    """
    if connection_to_spark() is not None:
        _freeze(len(sys.modules))


@functools.cache
def _freeze(modules: int) -> None:
    gc.freeze()


def rows_while_wanted(batches: Iterator[pa.RecordBatch], connection: int | None) -> Iterator[pa.RecordBatch]:
    """The batches, followed by an error if Spark has ended the task; any thread may iterate.

    Raises:
        TaskEndedError: Spark has ended the task.
    """
    yield from batches
    check_wanted(connection)


def check_wanted(connection: int | None) -> None:
    """Checks that Spark still waits for this task.

    Args:
        connection: see `connection_to_spark`; None skips the check.

    Raises:
        TaskEndedError: Spark has closed the connection.
    """
    if connection is not None and _is_closed(connection):
        raise TaskEndedError(
            "Spark has ended this task early: it was killed, another attempt was faster, or its input failed"
        )


def connection_to_spark() -> int | None:
    """The file descriptor of this worker's connection to Spark; None outside a worker.

    Only a frame of the worker's `main` function holds it (4.0.0 and 4.3.0), so call this from the main thread.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and "infile" in frame.f_locals:
            try:
                return int(frame.f_locals["infile"].fileno())
            except OSError:
                return None  # without pyspark's daemon, a pair of files without a descriptor
        frame = frame.f_back
    return None


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
