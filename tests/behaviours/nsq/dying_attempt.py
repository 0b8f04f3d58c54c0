"""An attempt at a task that is killed at one of its steps: a program, and the store in which those steps are seen.

`python -m tests.behaviours.nsq.dying_attempt` takes options, task and step, pickled, from its standard input.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from spark_mq_source.net import storage
from spark_mq_source.net.storage import LocalStore
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.reader import NsqRange, read_range

ROOT = Path(__file__).resolve().parents[3]
ATTEMPT_TIMEOUT_S = 120
SCHEMA = pa.schema([("value", pa.binary())])

STEPS = ("rows are written", "their slot is made", "their slot is checked", "it is noted that they are finished")
"""Before each of them an attempt can be killed. Of the last two the messages are in the log already."""


class KillingStore(LocalStore):
    """A folder of this machine that ends the process before the step that it is told."""

    step: ClassVar[str] = ""

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        self._before("rows are written", path.endswith(".arrow"))
        super().write(path, data)

    def create(self, path: str, data: bytes) -> bool:
        self._before("their slot is made", path.rpartition("/")[2].isdecimal())
        self._before("it is noted that they are finished", path.endswith(".ack"))
        return super().create(path, data)

    def exists(self, path: str) -> bool:
        self._before("their slot is checked", path.endswith("plan"))
        return super().exists(path)

    def _before(self, step: str, is_here: bool) -> None:
        if is_here and step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def start_attempt() -> subprocess.Popen[bytes]:
    """A process that waits to be told what to attempt."""
    return subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)


def die_before(step: str, attempt: subprocess.Popen[bytes], options: NsqOptions, task: NsqRange) -> None:
    """Has it attempt a task, and waits until it was killed."""
    told = pickle.dumps((options, task, step))
    _, errors = attempt.communicate(told, ATTEMPT_TIMEOUT_S)
    assert attempt.returncode == -signal.SIGKILL, errors.decode()[-3000:]


if __name__ == "__main__":
    options, task, KillingStore.step = pickle.load(sys.stdin.buffer)  # noqa: S301 - the test's own
    storage.LocalStore = KillingStore  # type: ignore[misc]
    for _ in read_range(options, task, SCHEMA):
        pass
