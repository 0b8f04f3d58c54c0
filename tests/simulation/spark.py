"""A minimal model of the way in which Spark uses a format: tasks, attempts, jobs, micro-batches and their logs.

From Spark's own source (4.0 to 4.3) and from runs on 4.0.0 and 4.3.0:

- A task is tried `spark.task.maxFailures` times (4); with speculation a second attempt runs at the same time, and the
  first one that succeeds counts (`TaskSetManager`). The other attempt is killed later; it runs until then.
- A micro-batch is written into the offset log before it runs and into the commit log afterwards
  (`MicroBatchExecution`). The source's `commit` of a batch is called when the *next* one has been logged. A restarted
  query whose last logged batch is not committed runs it again, in a new stream object whose `latest` has never been
  called. The offset log has only ends: a batch begins at the logged end of the batch before, and batch 0 at the current
  result of `initial`.
- Before that, a restarted query requests from a Python reader the ranges from the last logged end to the same end
  (`PythonMicroBatchStream.setLatestSeenOffset`). From that call `spark/_compat.py` learns where `latest` begins before
  4.2.
- A Python reader's `latest` and `ranges` run in one process as long as the query lives, `read` in the executors'
  processes. The objects there are pickled copies.
- A batch write's tasks send commit messages; if all succeed, `commit` is called with one message of each task,
  otherwise `abort` with those received. Each batch has a new stream writer, and another new one commits.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.core.ports import TaskAttempt
from tests.simulation.clockwork import here
from tests.simulation.standins import Condition
from tests.simulation.world import KilledError, Process, World

MAX_FAILURES = 4
"""`spark.task.maxFailures`."""


class JobFailedError(Exception):
    """A job has failed: an attempt at one of its tasks failed for the last time.

    Attributes:
        cause: the error of that attempt.
        results: of the tasks that had succeeded, in the order of tasks.
    """

    def __init__(self, cause: BaseException, results: Sequence[Any] = ()) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.cause = cause
        self.results = results


class DriverKilledError(Exception):
    """The driver's process was killed; its logs are in the checkpoint."""


@dataclass
class Executors:
    """Settings of the executors that run tasks. Every choice is drawn from the dice `spark`.

    Attributes:
        speculation: the probability of a second attempt while the first one runs.
        zombies: the probability that an attempt continues when it is no longer needed, instead of being killed.
        copies: the maximum number of concurrent attempts at a task, without zombies; 2 in Spark, which speculates if
            one runs (`TaskSetManager`: `copiesRunning(index) == 1`).
        slow: the longest time, in seconds, that a consumer takes for each of a task's batches; drawn from 0 on.
        name: the prefix of their processes' names; a fault may name one of them.
    """

    speculation: float = 0.0
    zombies: float = 0.0
    slow: float = 0.0
    at_once: int = 2
    name: str = "executor"
    copies: float = inf

    def run(
        self, work: Sequence[Callable[[TaskAttempt], Any]], attempt_of: Callable[[int, int, int], TaskAttempt]
    ) -> list[Any]:
        """Run tasks as one job; return the result of one attempt at each.

        Args:
            work: of each task.
            attempt_of: the attempt of a task, the number of failed attempts, and the attempt's unique id.

        Raises:
            JobFailedError: a task has failed for the last time.
        """
        return _Job(self, work, attempt_of).run()


class _Job:
    def __init__(
        self,
        executors: Executors,
        work: Sequence[Callable[[TaskAttempt], Any]],
        attempt_of: Callable[[int, int, int], TaskAttempt],
    ) -> None:
        self._executors = executors
        self._work = work
        self._attempt_of = attempt_of
        self._changed = Condition()
        self._results: dict[int, Any] = {}
        self._failures = dict.fromkeys(range(len(work)), 0)
        self._running: dict[int, list[Process]] = {n: [] for n in range(len(work))}
        self._waiting = list(range(len(work)))
        self._failed: BaseException | None = None
        self._dice = here().dice("spark")

    def run(self) -> list[Any]:
        world = here()
        self._dice.shuffle(self._waiting)
        with self._changed:
            while len(self._results) < len(self._work) and self._failed is None:
                while self._waiting and sum(map(len, self._running.values())) < self._executors.at_once:
                    self._begin(self._waiting.pop())
                self._changed.wait()
            leftover = [p for running in self._running.values() for p in running]
        for process in leftover:
            if self._dice.random() >= self._executors.zombies:
                world.after(self._dice.random() * 0.1, lambda process=process: world.kill(process))
        if self._failed is not None:
            raise JobFailedError(self._failed, [self._results[n] for n in sorted(self._results)])
        return [self._results[n] for n in range(len(self._work))]

    def _begin(self, task: int) -> None:
        world = here()
        attempt_id = world.count("attempts")
        process = world.process(f"{self._executors.name}-{attempt_id}")
        attempt = self._attempt_of(task, self._failures[task], attempt_id)
        self._running[task].append(process)
        over: list[bool] = []

        def end(result: Any, error: BaseException | None) -> None:
            if over:
                return
            over.append(True)
            self._running[task].remove(process)
            if error is None:
                self._results.setdefault(task, result)
            elif task not in self._results:
                self._failures[task] += 1
                world.note(f"attempt {attempt.attempt_id} at task {task} failed: {type(error).__name__}: {error}")
                if self._failures[task] >= MAX_FAILURES:
                    self._failed = self._failed or error
                elif not self._running[task]:
                    self._waiting.append(task)
            for waiter in tuple(self._changed._waiters):
                world.wake(waiter)
            self._changed._waiters.clear()

        def main() -> None:
            try:
                result = self._work[task](attempt)
            except Exception as error:  # noqa: BLE001 - any error fails the attempt
                end(None, error)
            else:
                end(result, None)
            # The worker waits for its next task; its idle connections close by themselves.

        process.on_killed.append(lambda: end(None, ConnectionError("the worker was killed")))
        world.spawn(main, "task", process)
        if self._dice.random() < self._executors.speculation:

            def speculate() -> None:
                is_wanted = task not in self._results and self._failed is None and task not in self._waiting
                if not over and is_wanted and len(self._running[task]) < self._executors.copies:
                    self._begin(task)

            world.after(self._dice.random() * 0.5, speculate)


def read_task(
    format_: Any, options: Any, task: Any, schema: pa.Schema, executors: Executors
) -> Callable[[TaskAttempt], list[dict[str, Any]]]:
    """Return the work of a task that reads a range and returns its rows."""

    def work(attempt: TaskAttempt) -> list[dict[str, Any]]:
        world = here()
        # Without a log, a second attempt would be refused.
        tries = attempt.attempt if getattr(task, "folder", "") else 0
        rows: list[dict[str, Any]] = []
        copy = pickle.loads(pickle.dumps((options, task)))  # noqa: S301 - our own
        for batch in format_.read(*copy, schema, tries=tries):
            assert batch.schema == schema, f"{batch.schema} is not {schema}"
            rows += batch.to_pylist()
            if executors.slow:
                world.sleep(world.dice("spark").random() * executors.slow)
        return rows

    return work


def _reading(task: int, failures: int, attempt_id: int) -> TaskAttempt:
    return TaskAttempt("read", partition=task, attempt=failures, attempt_id=attempt_id)


def read_batch(format_: Any, options: Any, schema: pa.Schema, executors: Executors) -> list[list[dict[str, Any]]]:
    """Run `spark.read…collect()`; return the rows of each task.

    Raises:
        JobFailedError: a task has failed for the last time.
        MQSourceError: planning has failed.
    """
    ranges = list(format_.plan(options, ()))
    return executors.run([read_task(format_, options, task, schema, executors) for task in ranges], _reading)


def in_driver(work: Callable[[], Any]) -> Any:
    """Run work in the process of a new driver, which a fault may name; return its result.

    Raises:
        DriverKilledError: the process was killed.
        BaseException: raised by the work.
    """
    world = here()
    process = world.process(f"driver-{world.count('drivers')}")
    fiber = world.spawn(work, "driver", process)
    process.on_killed.append(lambda: [world.wake(joiner) for joiner in fiber.joiners])
    if not world.join(fiber):
        raise DriverKilledError
    if fiber.error is not None and not isinstance(fiber.error, KilledError):
        raise fiber.error
    return fiber.result


@dataclass
class Checkpoint:
    """The logs of a streaming query, which outlive its driver.

    Attributes:
        offsets: the start and end of each logged batch, as JSON.
        committed: the numbers of the committed batches.
        sink: the rows of each batch in an idempotent sink: a repeated batch replaces itself.
        replays: every successful run of a batch, in order: (batch, rows).
    """

    offsets: list[tuple[Any, Any]] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)
    sink: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    replays: list[tuple[int, list[dict[str, Any]]]] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of all committed batches, in order of batches."""
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]


def waiting_for_rows(world: World) -> dict[str, str]:
    """Return options of a query that may wait for rows, for less than the oracles' timeout."""
    dice = world.dice("pace")
    if dice.random() < 0.8:
        return {}
    return {"minRowsPerTrigger": str(dice.choice((2, 5, 20))), "maxTriggerDelay": "3s"}


def in_small_tasks(world: World) -> dict[str, str]:
    """Return options of a read whose tasks may have a limit of messages."""
    dice = world.dice("tasks")
    return {"maxRecordsPerPartition": str(dice.choice((1, 3, 10)))} if dice.random() < 0.3 else {}


@dataclass
class Query:
    """A streaming query that reads; each `run` is one life of its driver.

    Attributes:
        format: the format that is read.
        options: of the format, parsed.
        schema: the requested columns.
        executors: run its tasks.
        checkpoint: outlives it.
        interval: seconds between triggers.
        limited: whether the limits of the options apply; not with `Trigger.Once`.
        planned: called with the number of each batch when it is logged.
        sink: called with each batch's number and the rows of its tasks.
        aimed: called when a life with `available_now` has determined its end.
        newest: the last messages when the last trigger was planned, regardless of limits.
    """

    format: Any
    options: Any
    schema: pa.Schema
    executors: Executors
    checkpoint: Checkpoint
    interval: float = 0.1
    limited: bool = True
    planned: Callable[[int], None] | None = None
    sink: Callable[[int, list[list[dict[str, Any]]]], None] | None = None
    aimed: Callable[[], None] | None = None
    newest: Any = None

    def run(self, *, until: Callable[[], bool], available_now: bool = False) -> None:
        """Run in a new process until `until()` or, with `available_now`, until there is nothing new.

        Raises:
            DriverKilledError: its process was killed.
            JobFailedError: a task has failed for the last time.
            MQSourceError: raised by the driver's side.
        """
        in_driver(lambda: self._live(until, available_now))

    def life(self, *, until: Callable[[], bool], available_now: bool = False) -> BaseException | None:
        """Run as `run` does; return the error of a task or the driver that ended it, or DriverKilledError."""
        try:
            self.run(until=until, available_now=available_now)
        except JobFailedError as failed:
            return failed.cause
        except (DriverKilledError, MQSourceError) as error:
            return error
        return None

    def _live(self, until: Callable[[], bool], available_now: bool) -> None:
        log, world = self.checkpoint, here()
        stream = self.format.open_stream(pickle.loads(pickle.dumps(self.options)))  # noqa: S301 - our own
        try:
            if available_now:
                stream.cap_at_current_end()
                if self.aimed is not None:
                    self.aimed()
            if log.offsets:
                number, end = len(log.offsets) - 1, log.offsets[-1][1]
                stream.ranges(_copy(end), _copy(end))
                if number not in log.committed:
                    self._run_batch(stream, number, None if number else _copy(stream.initial()))
                start = _copy(end)
            else:
                start = _copy(stream.initial())
            while not until():
                world.pause()
                end = _copy(stream.latest(start, limited=self.limited))
                self.newest = _copy(stream.newest)
                # A new query has a first batch, even an empty one: its offset is compared with a committed one.
                if end == start and log.offsets:
                    if available_now:
                        return
                    world.sleep(self.interval)
                    continue
                log.offsets.append((start, end))
                number = len(log.offsets) - 1
                if number > 0:
                    stream.commit(_copy(log.offsets[number - 1][1]))
                world.pause()
                if self.planned is not None:
                    self.planned(number)
                self._run_batch(stream, number)
                start = end
                world.sleep(self.interval)
        finally:
            stream.close()

    def _run_batch(self, stream: Any, number: int, restart: Any = None) -> None:
        """Run a logged batch, from `restart` if it is given, which a repetition of batch 0 needs."""
        start, end = self.checkpoint.offsets[number]
        ranges = list(stream.ranges(_copy(start) if restart is None else restart, _copy(end)))
        work = [read_task(self.format, self.options, task, self.schema, self.executors) for task in ranges]
        found = self.executors.run(work, _reading)
        rows = [row for task in found for row in task]
        self.checkpoint.replays.append((number, rows))
        here().sleep(0.001)  # also an empty batch takes some time
        if self.sink is not None:
            self.sink(number, found)
        self.checkpoint.sink[number] = rows
        here().pause()
        self.checkpoint.committed.add(number)


def _copy(offset: Any) -> Any:
    """Return an offset after a round trip through the log, which keeps JSON."""
    import json

    return json.loads(json.dumps(offset))


def write(
    format_: Any,
    options: Any,
    tasks: Sequence[Sequence[pa.RecordBatch]],
    executors: Executors,
    *,
    job_id: str,
    batch_id: int | None = None,
) -> None:
    """Run `df.write…save()`, or one micro-batch of a streaming write (`batch_id`).

    Raises:
        JobFailedError: a task has failed for the last time; `abort` was called with the messages received.
        MQSourceError: `commit` has failed; `abort` was called with all messages.
    """

    def work_of(task: int) -> Callable[[TaskAttempt], Any]:
        def work(attempt: TaskAttempt) -> Any:
            world = here()

            def batches() -> Iterator[pa.RecordBatch]:
                for batch in tasks[task]:
                    if executors.slow:
                        world.sleep(world.dice("spark").random() * executors.slow)
                    yield batch

            report = format_.write(pickle.loads(pickle.dumps(options)), batches(), attempt)  # noqa: S301 - our own
            return pickle.loads(pickle.dumps(report))  # noqa: S301 - our own

        return work

    def attempt_of(task: int, failures: int, attempt_id: int) -> TaskAttempt:
        return TaskAttempt(job_id, batch_id, task, failures, attempt_id)

    try:
        reports = executors.run([work_of(n) for n in range(len(tasks))], attempt_of)
    except JobFailedError as failed:
        format_.abort(options, failed.results)
        raise
    try:
        format_.commit(options, reports)
    except Exception:
        format_.abort(options, reports)
        raise
