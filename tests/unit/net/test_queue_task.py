"""The end of a queue task's wait, at the boundaries of its limits; time passes only while the task waits."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import MQSourceError, TransportError
from spark_mq_source.net import queue_task
from spark_mq_source.net.queue_task import MAX_WAIT_SECONDS, Collector, Limits, drained, wait_for_messages
from spark_mq_source.net.write_ahead import TaskLog, open_folder, write_plan
from tests.unit.standins import Clock

TIMED = queue_task


class Messages:
    """A scripted delivery: each entry has the seconds until the next messages, and their number."""

    most = 5

    def __init__(self, clock: Clock, *script: tuple[float, int]) -> None:
        self.clock, self.script = clock, list(script)
        self.rows = 0
        self.wanted: list[int] = []
        self.waits: list[float] = []

    def want(self, messages: int) -> None:
        self.wanted.append(messages)

    def receive(self, timeout_seconds: float) -> bool:
        self.waits.append(timeout_seconds)
        after, count = self.script[0] if self.script else (float("inf"), 0)
        if after > timeout_seconds:
            self.clock.now += timeout_seconds
            if self.script:
                self.script[0] = (after - timeout_seconds, count)
            return False
        self.clock.now += after
        self.script.pop(0)
        self.rows += count
        return count > 0

    def is_due(self, wanted: int) -> bool:
        return self.rows >= min(wanted, self.most) > 0

    def take(self) -> pa.RecordBatch:
        rows, self.rows = self.rows, 0
        return pa.record_batch({"message_id": [f"own-{row}" for row in range(rows)]})

    def acknowledge(self) -> None: ...

    def put_back(self) -> None: ...


def test_a_wait_reports_whether_a_message_arrived(clock: Clock):
    assert wait_for_messages(Messages(clock), Limits(None, None, 0.5), 5) is False
    assert wait_for_messages(Messages(clock, (0.25, 1)), Limits(None, None, 0.5), 5) is True


def test_the_task_stops_waiting_at_its_row_limit(clock: Clock):
    inflow = Messages(clock, (0.0, 9))
    assert wait_for_messages(inflow, Limits(0, None, 0.5), 0) is False
    assert inflow.waits == []


@pytest.mark.parametrize(("passes", "asked"), [(MAX_WAIT_SECONDS - 0.25, 0), (MAX_WAIT_SECONDS, 1)])
def test_the_end_of_the_task_is_checked_after_each_wait(clock: Clock, passes: float, asked: int):
    questions = []
    inflow = Messages(clock, (passes, 5))
    assert wait_for_messages(inflow, Limits(None, None, 9.0), 5, lambda: bool(questions.append(clock.now))) is True
    assert len(questions) == asked


def test_an_attempt_that_is_over_ends_at_once_without_rows(clock: Clock):
    inflow = Messages(clock, (0.25, 1))
    assert wait_for_messages(inflow, Limits(None, None, 9.0), 5, lambda: True) is False
    assert clock.now == 100.0 + 0.25 + MAX_WAIT_SECONDS


@pytest.mark.parametrize(
    ("rows", "max_rows", "wanted"), [(0, None, 5), (0, 4, 4), (0, 5, 5), (0, 6, 5), (4, 5, 1), (5, 5, 0), (6, 5, 0)]
)
def test_messages_in_flight_are_limited_by_the_room_of_a_read(rows: int, max_rows: int | None, wanted: int):
    assert Limits(max_rows, None, None).request_count(rows, 5) == wanted


def test_the_earlier_of_two_limits_ends_a_wait(clock: Clock):
    limits = Limits(None, 2.0, 1.5)
    assert limits.seconds_left() == 1.5
    clock.now += 1.0
    limits.restart_idle_time()
    assert limits.seconds_left() == 1.0
    clock.now += 1.0
    assert limits.seconds_left() == 0.0


def test_a_drain_reads_exactly_its_rows(clock: Clock):
    inflow = Messages(clock, (0.0, 5), (0.0, 2), (0.0, 9))
    batches = drained(inflow, Limits(7, None, 1.0), is_peek=False)
    assert [batch.num_rows for batch in batches] == [5, 2]
    assert inflow.wanted == [5, 2, 0]


class Filling(Collector[Messages]):
    """A task that fills a log with the messages of half a second; all are acknowledged."""

    def __init__(self, log: TaskLog, inflow: Messages) -> None:
        super().__init__("a task", log)
        self._inflow = inflow
        self.known: set[str] = set()
        self.max_rows: int | None = None
        self.fails: MQSourceError | None = None

    def _open(self) -> AbstractContextManager[Messages]:
        return nullcontext(self._inflow)

    def _limits(self, inflow: Messages) -> Limits:
        return Limits(self.max_rows, None, 0.5)

    def _without_known(self, inflow: Messages, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def _close(self, inflow: Messages) -> tuple[Sequence[str], str]:
        if self.fails is not None:
            raise self.fails
        return (), ""

    def _may_end_early(self, error: MQSourceError) -> bool:
        return isinstance(error, TransportError)

    def _add_known(self, ids: set[str]) -> None:
        self.known |= ids


def test_an_attempt_that_lost_a_slot_remembers_its_messages(clock: Clock, tmp_path: Path):
    store = open_folder("nsq", str(tmp_path))
    write_plan(store, "w/1", {"duplicates": {}, "recent": {}})
    mine, other = TaskLog(store, "w/1", 0), TaskLog(store, "w/1", 0)
    assert other.append(pa.record_batch({"message_id": ["other-0"]}))
    filling = Filling(mine, Messages(clock, (0.0, 2)))
    filling.collect()
    assert filling.known == {"other-0"}


@pytest.mark.parametrize(
    ("max_rows", "fails", "is_idle"),
    [(None, None, True), (5, None, False), (4, None, False), (6, None, True), (None, TransportError("broken"), False)],
)
def test_a_log_records_whether_the_broker_had_no_more_messages(
    clock: Clock, tmp_path: Path, max_rows: int | None, fails: MQSourceError | None, is_idle: bool
):
    store = open_folder("nsq", str(tmp_path))
    write_plan(store, "w/1", {"duplicates": {}, "recent": {}})
    filling = Filling(TaskLog(store, "w/1", 0), Messages(clock, (0.0, 5 if max_rows is None else min(5, max_rows))))
    filling.max_rows, filling.fails = max_rows, fails
    filling.collect()
    log = TaskLog(store, "w/1", 0)
    log.catch_up()
    assert log.ended_idle == is_idle


@pytest.mark.parametrize(("came", "unconfirmed"), [(2, []), (0, ["other-0"])])
def test_only_an_attempt_with_new_messages_logs_their_acknowledgement(
    clock: Clock, tmp_path: Path, came: int, unconfirmed: list[str]
):
    write_plan(open_folder("nsq", str(tmp_path)), "w/1", {"duplicates": {}, "recent": {}})

    def log() -> TaskLog:
        made = TaskLog(open_folder("nsq", str(tmp_path)), "w/1", 0)
        made.catch_up()
        return made

    if not came:
        # Another attempt has logged a message, but has not logged its acknowledgement.
        assert log().append(pa.record_batch({"message_id": ["other-0"]}))
    Filling(log(), Messages(clock, (0.0, came))).collect()
    found = log()
    assert found.is_ended
    assert found.outcome()[0] == ([unconfirmed] if unconfirmed else [])
