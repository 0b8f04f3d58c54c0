"""The loop in which a writer's task waits for acknowledgements and handles failures."""

from __future__ import annotations

import threading
import time

import pyarrow as pa

from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.net.sending import Writer
from tests.fix_brokers import wait_until

BATCHES = [pa.record_batch({"value": [b"x"] * count}) for count in (2, 3)]


class Entries(Writer[None, int]):
    """A writer for which each batch is an entry; the test acknowledges or loses one at a time."""

    def __init__(self):
        super().__init__(None, TaskAttempt("job"))
        self.pending = self.lost = self.sent = self.checks = 0

    def write(self, batch):
        self.rows += batch.num_rows
        self.pending += 1
        self.sent += 1

    def flush(self):
        self._wait_until(self._is_stored)

    def finish(self):
        self.flush()
        return self.rows

    def close(self):
        self.rows = -1

    def answer(self, *, is_lost=False):
        with self._arrived:
            self.lost += is_lost
            self.pending -= not is_lost
            self._wake(is_due=is_lost)

    def _is_stored(self):
        self.checks += 1
        return not self.pending

    def _is_due(self):
        return self.lost > 0

    def _until(self):
        return time.monotonic() + 20

    def _attend(self):
        self.sent, self.lost = self.sent + self.lost, 0


def test_a_task_wakes_only_to_act_or_when_done_and_closes_its_writer():
    writer, reports = Entries(), []
    task = threading.Thread(target=lambda: reports.append(writer.write_all(iter(BATCHES))))
    task.start()
    wait_until(lambda: writer._awaited is not None, "the task waits for both")
    writer.answer(is_lost=True)
    wait_until(lambda: writer.sent == 3 and writer._awaited is not None, "the task has sent one again")
    with writer._arrived:
        seen = writer.checks
    writer.answer()
    with writer._arrived:
        assert writer.checks == seen + 1, "the check runs in the thread of the answer, not in the task"
    writer.answer()
    task.join()
    assert (reports, writer.rows, writer.sent) == ([5], -1, 3)
    assert writer._counters.wait_seconds > 0
