"""Planning of queues at the boundaries of its comparisons: shares, offsets, remaining and remembered messages."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_mq_source.core.queue_offsets import BatchOffset
from spark_mq_source.net import queue_stream
from spark_mq_source.net.queue_plan import MAX_UNCOUNTED, QueueTask, share_drain, split_parts
from spark_mq_source.net.queue_stream import MAX_STEP_SECONDS, REMEMBERED_SECONDS, QueueStream
from spark_mq_source.net.write_ahead import TaskLog, read_plan

Waiting = dict[str, int | None]
NOW = 1_800_000_000.0


@dataclass(frozen=True, slots=True)
class Source:
    name: str


@dataclass(frozen=True, slots=True)
class Task(QueueTask[Source]):
    source_type = Source


class Stream(QueueStream[Source, Task]):
    """A queue whose brokers report the numbers that the test sets.

    Attributes:
        depths: the backlog of each source.
        checked: the empty sources that were checked.
    """

    task_type = Task

    def __init__(self, folder: Path, depths: Waiting) -> None:
        options = SimpleNamespace(
            wal_dir=str(folder), max_rows_per_trigger=None, min_rows_per_trigger=None, max_trigger_delay_ms=0
        )
        super().__init__("nsq", "queue", options, topic="t")
        self.depths = depths
        self.checked: list[str] = []

    def _begin(self) -> None: ...

    def _sources(self) -> Sequence[Source]:
        return [Source(name) for name in self.depths]

    def _waiting(self, sources: Sequence[Source]) -> dict[Source, int | None]:
        return {source: self.depths[source.name] for source in sources}

    def _check(self, source: Source) -> None:
        self.checked.append(source.name)

    def _tasks(self, waiting: Mapping[Source, int | None], budget: int | None, *, turn: int) -> Sequence[Task]:
        return [Task(source, rows) for source, rows in waiting.items()]

    def _merged(self, recent: str, last: str) -> str:
        return recent + last

    # called by tests

    def log(self, at: BatchOffset, name: str) -> TaskLog:
        (task,) = (task for task in self._planned(at) if task.source.name == name)
        return TaskLog(self._store, at.folder, task.task)

    def plan(self, start: BatchOffset) -> tuple[BatchOffset, Waiting]:
        """Return the next offset and its tasks' limit for each source; no limits if the offset is not new."""
        end = BatchOffset.from_json(self.latest(start.to_json()))
        return end, {} if end == start else {task.source.name: task.max_rows for task in self._planned(end)}

    def read(self, at: BatchOffset, *, is_idle: bool = True, **found: int) -> None:
        """Let the tasks of a batch find so many messages, and end: because the broker has no more, or early."""
        for name, count in found.items():
            log = self.log(at, name)
            if count:
                log.append(pa.record_batch({"message_id": [f"{name}{number}" for number in range(count)]}))
            log.end(is_idle=is_idle)


@pytest.fixture
def at() -> BatchOffset:
    return BatchOffset("wal", 0)


@pytest.mark.parametrize(
    ("waiting", "budget", "expected"),
    [
        ({}, 5, {}),
        ({"a": 0, "b": 0, "c": 0}, 7, {"a": 3, "b": 2, "c": 2}),
        ({"a": 0, "b": 0, "c": 0}, 6, {"a": 2, "b": 2, "c": 2}),
        ({"a": 10, "b": 0}, 4, {"a": 4, "b": 0}),
    ],
)
def test_a_drain_reads_its_total_budget(waiting: Waiting, budget: int, expected: Waiting):
    assert share_drain(waiting, budget) == expected


def test_shares_of_tasks_differ_by_one_at_most():
    assert split_parts([("a", 7), ("b", 6), ("c", 1), ("d", 0)], 3) == [
        *[("a", 3), ("a", 2), ("a", 2)],
        *[("b", 2), ("b", 2), ("b", 2)],
        ("c", 1),
    ]


def test_the_backlog_is_known_only_if_every_source_reports_it(tmp_path: Path, at: BatchOffset):
    stream = Stream(tmp_path, {"a": 2, "b": 3})
    stream.plan(at)
    assert stream.newest == at.to_json() | {"topic": "t", "waiting": 5, "unit": "messages"}
    stream.depths["b"] = None
    stream.plan(at)
    assert stream.newest == at.to_json() | {"topic": "t", "waiting": None, "unit": "messages"}


def test_a_trigger_has_the_batches_between_its_offsets(tmp_path: Path, at: BatchOffset):
    stream = Stream(tmp_path, {"a": 1})
    ends = [at]
    for _ in range(3):
        ends.append(stream.plan(ends[-1])[0])
    for first, last in itertools.combinations(range(4), 2):
        folders = [task.folder for task in stream.ranges(ends[first].to_json(), ends[last].to_json())]
        assert folders == [f"wal/{number}" for number in range(first + 1, last + 1)]
    # A start that was created again has another folder, and no batch.
    other = BatchOffset("other", 2).to_json()
    assert [task.folder for task in stream.ranges(other, ends[2].to_json())] == ["wal/1", "wal/2"]


def test_a_commit_keeps_its_own_batch_and_later_ones(tmp_path: Path, at: BatchOffset):
    stream = Stream(tmp_path, {"a": 1})
    ends = [at]
    for _ in range(3):
        ends.append(stream.plan(ends[-1])[0])
    stream.commit(ends[2].to_json())
    assert sorted(stream._store.names("wal")) == ["2", "3"]


def test_only_the_initial_backlog_is_read(tmp_path: Path, at: BatchOffset):
    stream = Stream(tmp_path, {"a": 5, "b": 2, "c": 0})
    stream.cap_at_current_end()
    one, planned = stream.plan(at)
    stream.depths = {"a": 9, "b": 9, "c": 9}
    assert planned == {"a": 5, "b": 2, "c": 0}
    stream.read(one, a=3, b=2, c=0)
    two, planned = stream.plan(one)
    assert planned == {"a": 2, "b": 0, "c": 0}
    # A repeated call counts nothing twice.
    assert stream.plan(one) == (two, {"a": 2, "b": 0, "c": 0})
    stream.read(two, a=9, b=0, c=0)  # more than remained
    assert stream.plan(two) == (two, {})


@pytest.mark.parametrize("counts_held", [False, True])
@pytest.mark.parametrize(
    ("depth", "checked", "left"), [(4, ["a"], 4), (None, ["a"], 0), (0, [], 4)], ids=["some", "unknown", "none"]
)
def test_an_empty_batch_ends_a_source_that_reports_no_backlog(
    tmp_path: Path,
    at: BatchOffset,
    monkeypatch: pytest.MonkeyPatch,
    counts_held: bool,
    depth: int | None,
    checked: list[str],
    left: int,
):
    monkeypatch.setattr(Stream, "counts_held", counts_held)
    stream = Stream(tmp_path, {"a": 4 if depth is not None else None})
    stream.cap_at_current_end()
    one, _ = stream.plan(at)
    stream.read(one, a=0)
    stream.depths["a"] = depth
    stream.plan(one)
    assert stream.checked == checked
    assert stream._left == {"a": 0 if counts_held and checked else left}


@pytest.mark.parametrize("depth", [4, None])
def test_a_source_that_ends_with_a_backlog_is_a_warning(
    tmp_path: Path,
    at: BatchOffset,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    depth: int | None,
):
    monkeypatch.setattr(Stream, "counts_held", True)
    stream = Stream(tmp_path, {"a": depth})
    stream.cap_at_current_end()
    one, _ = stream.plan(at)
    stream.read(one, a=0)
    caplog.clear()
    assert stream.plan(one) == (one, {})
    warned = "queue: a: the broker counts 4 unacknowledged entries, and sent none within idleTimeout"
    assert [record.message.partition(";")[0] for record in caplog.records] == ([warned] if depth else [])


def test_an_empty_batch_that_ended_early_does_not_end_its_source(tmp_path: Path, at: BatchOffset):
    stream = Stream(tmp_path, {"a": None})
    stream.cap_at_current_end()
    one, _ = stream.plan(at)
    stream.read(one, is_idle=False, a=0)
    two, planned = stream.plan(one)
    assert planned == {"a": None}
    stream.read(two, a=0)
    assert stream.plan(two) == (two, {})


@pytest.mark.parametrize(("found", "warned"), [(2, False), (1, True)])
def test_a_vanished_source_is_a_warning_if_it_was_not_read(
    tmp_path: Path, at: BatchOffset, caplog: pytest.LogCaptureFixture, found: int, warned: bool
):
    stream = Stream(tmp_path, {"a": 2, "b": 1})
    stream.cap_at_current_end()
    one, _ = stream.plan(at)
    stream.read(one, a=found, b=0)
    del stream.depths["a"]
    with caplog.at_level(logging.WARNING):
        stream.plan(one)
    assert sum("a disappeared before it was read" in record.message for record in caplog.records) == warned


@pytest.mark.parametrize(
    ("age", "step", "kept"),
    [
        (REMEMBERED_SECONDS - 11, 10, REMEMBERED_SECONDS - 1),
        (REMEMBERED_SECONDS - 10, 10, None),
        (0, MAX_STEP_SECONDS, MAX_STEP_SECONDS),
        (0, MAX_STEP_SECONDS + 1, MAX_STEP_SECONDS),
        (5, -10, 5),
    ],
)
def test_messages_that_may_be_redelivered_are_remembered_until_the_timeout(
    tmp_path: Path, at: BatchOffset, monkeypatch: pytest.MonkeyPatch, age: float, step: float, kept: float | None
):
    now = [NOW]
    monkeypatch.setattr(queue_stream.time, "time", lambda: now[0])
    stream = Stream(tmp_path, {"a": 1})
    monkeypatch.setattr(stream, "_remembered", lambda *_: ({"a": {"id": age}}, {}, {}))
    one, _ = stream.plan(at)
    monkeypatch.undo()
    now[0] += step
    monkeypatch.setattr(queue_stream.time, "time", lambda: now[0])
    two, _ = stream.plan(one)
    assert read_plan(stream._store, two.folder)["duplicates"] == ({} if kept is None else {"a": {"id": kept}})


def test_a_source_is_forgotten_once_it_was_absent_for_a_day(
    tmp_path: Path, at: BatchOffset, monkeypatch: pytest.MonkeyPatch
):
    now = [NOW]
    monkeypatch.setattr(queue_stream.time, "time", lambda: now[0])
    stream = Stream(tmp_path, {"a": 1, "gone": 1, "back": 1})
    stream._doubts.started = dict.fromkeys(stream.depths, 5)
    stream._doubts.names = {"gone"}
    end, _ = stream.plan(at)
    for name in stream.depths:
        log = stream.log(end, name)
        log.append(pa.record_batch({"message_id": [name]}))
        log.acknowledged([], name)
    stream.depths = {"a": 1}
    for hour in range(25):
        # The first step is the one from the last batch with all of them.
        now[0] += MAX_STEP_SECONDS
        stream.depths |= {"back": 1} if hour == 3 else {}
        end, _ = stream.plan(end)
        stream.depths.pop("back", None)
        plan = read_plan(stream._store, end.folder)
        known = {"a", "back"} | ({"gone"} if hour < 23 else set())
        assert (plan["recent"].keys(), plan["started"].keys()) == (known, known), hour
    assert plan["absent"] == {"back": 21 * MAX_STEP_SECONDS}
    assert plan["doubted"] == []


class Restarting(Stream):
    """A queue whose broker `a` has a time of its start."""

    started_s = 100

    def _waiting(self, sources: Sequence[Source]) -> dict[Source, int | None]:
        return {
            source: self._doubts.count(source.name, count or 0, self.started_s)
            for source, count in super()._waiting(sources).items()
        }


@pytest.mark.parametrize("found", [10_000, MAX_UNCOUNTED // 2 + 2])
def test_available_now_ends_although_a_restarted_broker_gets_messages_all_the_time(
    tmp_path: Path, at: BatchOffset, found: int
):
    stream = Restarting(tmp_path, {"a": 4})
    one, _ = stream.plan(at)
    stream.read(one, a=4)
    stream.started_s += 1
    stream.cap_at_current_end()
    end, planned = stream.plan(one)
    left = 4 + MAX_UNCOUNTED
    while planned:
        assert planned == {"a": left}
        stream.read(end, a=found, is_idle=False)
        left = max(0, left - found)
        end, planned = stream.plan(end)
    assert left == 0


def test_available_now_ends_once_a_restarted_broker_is_read_to_its_end(tmp_path: Path, at: BatchOffset):
    stream = Restarting(tmp_path, {"a": 4})
    stream.cap_at_current_end()
    one, _ = stream.plan(at)
    stream.read(one, a=3)
    stream.started_s += 1
    two, planned = stream.plan(one)
    assert planned == {"a": 4 + MAX_UNCOUNTED}
    stream.depths = {"a": 0}
    stream.read(two, a=9)
    assert stream.plan(two) == (two, {})
    stream.depths = {"a": 7}
    assert stream.plan(two) == (two, {})
