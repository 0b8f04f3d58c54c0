"""The loop in which a writer's task waits for room and for acknowledgements, and acts on what went wrong."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import ConnectionLostError, RequestTimeoutError
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.net.sending import Writer
from tests.fix_brokers import wait_until

BATCHES = [pa.record_batch({"value": [b"x"] * count}) for count in (2, 3)]


class Scripted(Writer[str, int]):
    """One entry for each batch. A thread answers each as the script says: `stored`, or an error; None stays silent."""

    def __init__(self, *script, seconds=20):
        super().__init__("options", TaskAttempt("job"))
        self.script, self.seconds = list(script), seconds
        self.pending, self.errors, self.sent, self.checks = 0, [], 0, 0
        self.is_closed = False

    def write(self, batch):
        self.rows += batch.num_rows
        self._wait_until(lambda: self.pending < 2)
        self.pending += 1
        self._send()

    def flush(self):
        self._wait_until(self._is_stored)

    def finish(self):
        self.flush()
        return self.rows

    def close(self):
        self.is_closed = True

    def _is_stored(self):
        self.checks += 1
        return not self.pending

    def _send(self):
        self.sent += 1
        self.last = time.monotonic()
        threading.Thread(target=self._answer, args=(self.script.pop(0) if self.script else "stored",)).start()

    def _answer(self, answer):
        with self._arrived:
            if answer == "stored":
                self.pending -= 1
            elif answer is not None:
                self.errors.append(answer)
            self._wake(is_due=self._is_due())

    def _is_due(self):
        return bool(self.errors)

    def _until(self):
        return self.last + self.seconds

    def _attend(self):
        if not self.errors:
            raise RequestTimeoutError("silent")
        self.errors.pop()
        self._send()


@pytest.mark.parametrize("cuts", [0, 2])
def test_each_batch_is_stored_whatever_is_lost_and_the_report_counts_the_rows(cuts):
    writer = Scripted(*[ConnectionLostError("cut")] * cuts)
    assert (writer.write_all(iter(BATCHES)), writer.sent, writer.is_closed) == (5, 2 + cuts, True)


def test_silence_ends_at_its_time_and_the_connections_are_closed():
    writer = Scripted(None, seconds=0.1)
    with pytest.raises(RequestTimeoutError, match="silent"):
        writer.write_all(iter(BATCHES[:1]))
    assert writer.is_closed
    assert writer._counters.wait_seconds > 0


def test_a_task_that_waits_is_not_woken_before_there_is_something_to_do():
    writer = Scripted(None, None)
    for batch in BATCHES:
        writer.write(batch)
    waiting = threading.Thread(target=writer.flush)
    waiting.start()
    wait_until(lambda: writer._awaited is not None, "it waits")
    with writer._arrived:
        seen = writer.checks
    writer._answer("stored")
    with writer._arrived:
        assert writer.checks == seen + 1, "asked by the thread that answers, and not by the task"
    writer._answer("stored")
    waiting.join()
    assert not writer.pending
