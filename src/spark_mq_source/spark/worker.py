"""The Python worker that a task runs in: whether Spark is still there when its rows have ended.

Spark ends a task that it has no use for (killed, the loser of a speculation, one whose input has failed) by closing its
side of the connection. To Arrow that is a regular end of the stream, so the rows of such a task just end early, and
whoever writes them would believe that they are all (seen on 4.3.0). What Spark calls in a worker is not told otherwise;
so the connection is looked at.

And what pyspark does in it after each task: it collects garbage, whoever's turn is next.
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


@functools.cache
def leave_modules_uncollected() -> None:
    """Has the garbage collector of this worker leave out what is loaded by now; once a process, and only in workers.

    pyspark's daemon collects garbage after every task (4.0.0 and 4.3.0), and looks at some hundred thousand objects of
    modules each time, which are no garbage: 45 ms of processor, as much as reading 200,000 rows. What this would keep
    for good is a cycle of objects that is alive now and is dropped later.
    """
    if connection_to_spark() is not None:
        gc.freeze()


def rows_while_wanted(batches: Iterator[pa.RecordBatch], connection: int | None) -> Iterator[pa.RecordBatch]:
    """The batches, and an error where they end because Spark has ended the task; any thread may take them.

    Raises:
        TaskEndedError: it has.
    """
    yield from batches
    check_wanted(connection)


def check_wanted(connection: int | None) -> None:
    """Checks that Spark still waits for what this task does.

    Args:
        connection: see `connection_to_spark`; with None there is nothing to be checked.

    Raises:
        TaskEndedError: it has closed the connection.
    """
    if connection is not None and _is_closed(connection):
        raise TaskEndedError(
            "Spark has ended this task early: it was killed, another attempt was faster, or what makes its rows failed"
        )


def connection_to_spark() -> int | None:
    """The file descriptor of what connects this worker with Spark; None outside of a worker.

    Only the frame of its main function has it (4.0.0 and 4.3.0), so it is the main thread's to ask.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and "infile" in frame.f_locals:
            try:
                return int(frame.f_locals["infile"].fileno())
            except OSError:
                return None  # without pyspark's daemon it is a pair of files, which has no number
        frame = frame.f_back
    return None


def _is_closed(descriptor: int) -> bool:
    if not hasattr(socket, "MSG_DONTWAIT"):
        return False  # on Windows nobody can look without waiting
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        try:
            return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True
