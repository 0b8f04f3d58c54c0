"""A separate Spark driver with one streaming query, for faults that must not hit the test's process: being killed.

    python streaming_driver.py TASK

TASK is the JSON that `streams.run_driver` makes. The driver ends when the query has read everything there is, or by the
requested step: always at the same point, because the query itself does it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.streams import Sink, Write, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row


def kill_this_driver() -> None:
    """Kill the driver, its JVM and the Python processes that the JVM started."""
    os.killpg(os.getpgrp(), signal.SIGKILL)


def killed_when_planned(sink: Sink, *, batch: int) -> Write:
    """Kill the driver when this batch's offsets are in the checkpoint and nothing has been read."""

    def write(df: DataFrame, number: int) -> None:
        if number == batch:
            kill_this_driver()
        sink.write(df, number)

    return write


def killed_in_a_task(sink: Sink, *, batch: int, after: int) -> Write:
    """Kill the driver when a task of this batch has this many rows."""
    driver = os.getpgrp()

    def kill(rows: Iterator[Row]) -> Iterator[Row]:
        for number, row in enumerate(rows):
            if number == after:
                os.killpg(driver, signal.SIGKILL)
            yield row

    return lambda df, number: sink.write(df, number, kill if number == batch else None)


def killed_when_written(sink: Sink, *, batch: int) -> Write:
    """Kill the driver when the sink has this batch, and the checkpoint has no commit of it."""

    def write(df: DataFrame, number: int) -> None:
        sink.write(df, number)
        if number == batch:
            kill_this_driver()

    return write


def reader_killed(sink: Sink, *, port: int, after: int) -> Write:
    """Kill the Python worker that reads from the broker's port, when a task has this many rows; once."""
    notes = sink.folder / "killed"

    def kill(rows: Iterator[Row]) -> Iterator[Row]:
        def parent(pid: int) -> int:
            return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

        def files(pid: int) -> Iterator[str]:
            for name in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    yield str(name.readlink())

        def readers() -> Iterator[int]:
            connections = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
            sockets = {f"socket:[{c[9]}]" for c in connections if int(c[2].rpartition(":")[2], 16) == port}
            jvm = parent(os.getppid())
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    pid = int(process.name)
                    # A worker is forked by a Python daemon of the JVM; the process of the stream's driver side is not.
                    if parent(parent(pid)) == jvm and not sockets.isdisjoint(files(pid)):
                        yield pid

        for number, row in enumerate(rows):
            if number == after and not notes.exists():
                killed = list(readers())
                notes.write_text(json.dumps(killed))
                for pid in killed:
                    os.kill(pid, signal.SIGKILL)
            yield row

    return lambda df, number: sink.write(df, number, kill)


def worker_killed(sink: Sink, *, after: int) -> Write:
    """Kill the Python worker of a task that has this many rows; once."""
    notes = sink.folder / "killed"

    def kill(rows: Iterator[Row]) -> Iterator[Row]:
        for number, row in enumerate(rows):
            if number == after and not notes.exists():
                notes.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield row

    return lambda df, number: sink.write(df, number, kill)


STEPS = {
    step.__name__: step
    for step in (
        killed_when_planned,
        killed_in_a_task,
        killed_when_written,
        reader_killed,
        worker_killed,
    )
}


def main() -> None:
    """Run the query."""
    task: dict[str, Any] = json.loads(sys.argv[1])
    sink = Sink(Path(task["folder"]), task["name"], task["schema"])
    spark = session(task)
    write = STEPS[task["step"]](sink, **task["arguments"])
    query = sink.start(spark, task["options"], write, **task["trigger"])
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
