"""Loads: threads that use the package as Spark does, and the lists of rows that they read or wrote."""

from __future__ import annotations

import random
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import DataLossError, LocalProtocolError, MQSourceError
from spark_mq_source.core.ports import TaskAttempt
from tests.formats import schema_of, through_json

TASK_ATTEMPTS = 4
"""The default of `spark.task.maxFailures`."""
PAUSE_S = 0.2
PATIENCE_S = 300.0
"""Seconds without progress after which a load counts as hung once all servers run."""

Row = dict[str, Any]
Options = Mapping[str, str]


class Load(ABC):
    """One user of a cluster, in a separate thread.

    Attributes:
        name: in the report.
        problems: errors that no fault explains.
        failures: the number of errors that are expected while servers fail, by class.
        errors: the first traceback of each class.
        steps: units of work that succeeded.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.problems: list[str] = []
        self.failures: Counter[str] = Counter()
        self.errors: dict[str, str] = {}
        self.steps = 0
        self.dice = random.Random(f"{seed} {name}")
        self._finishing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def report(self) -> str:
        """Return the work done, for the report."""
        return f"{self.steps} steps"

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def finish(self) -> None:
        """Let the load do the remaining work, now that all servers run."""
        self._finishing.set()

    def join(self) -> None:
        """Wait for its end, as long as it makes progress."""
        steps = -1
        while self._thread.is_alive() and self.steps > steps:
            steps = self.steps
            self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            self.problems.append(f"did nothing for {PATIENCE_S:.0f} s after the last fault")

    @property
    def finishing(self) -> bool:
        """Whether the faults are over."""
        return self._finishing.is_set()

    @abstractmethod
    def step(self) -> bool:
        """Do one unit of work; return whether there was any."""

    def recover(self) -> None:  # noqa: B027 - not all loads need it
        """Recover from an error as Spark or its user does."""

    def close(self) -> None:  # noqa: B027 - as above
        """Close all resources."""

    def _run(self) -> None:
        deadline = None
        try:
            while True:
                if self.finishing and deadline is None:
                    deadline = time.monotonic() + PATIENCE_S
                done_before = self.finishing
                try:
                    worked = self.step()
                    self.steps += worked
                except (DataLossError, LocalProtocolError):
                    # These runs lose no data, and no fault of a server explains a protocol error of this package.
                    self.problems.append(traceback.format_exc())
                    return
                except (MQSourceError, OSError) as error:
                    self.failures[type(error).__name__] += 1
                    self.errors.setdefault(type(error).__name__, traceback.format_exc())
                    worked = True
                    if deadline is not None and time.monotonic() > deadline:
                        self.problems.append(f"still fails: {error}")
                        return
                    self._finishing.wait(PAUSE_S)
                    self.recover()
                if done_before and not worked:
                    return
                if not worked:
                    self._finishing.wait(PAUSE_S)
        except Exception:  # noqa: BLE001 - the report must show any error
            self.problems.append(traceback.format_exc())
        finally:
            try:
                self.close()
            except (MQSourceError, OSError) as error:
                self.failures[type(error).__name__] += 1


def attempts(task: Callable[[int], Any]) -> Any:
    """Run a task up to four times, as Spark does."""
    for attempt in range(TASK_ATTEMPTS - 1):
        try:
            return task(attempt)
        except (DataLossError, LocalProtocolError):
            raise
        except (MQSourceError, OSError):
            time.sleep(PAUSE_S)
    return task(TASK_ATTEMPTS - 1)


class Stream(Load):
    """A streaming query with a checkpoint, which is restarted after errors, and sometimes without one.

    Attributes:
        rows: the rows of all committed triggers.
    """

    IDLE_TRIGGERS = 3
    """Consecutive triggers without rows after which all counts as read."""

    def __init__(self, name: str, seed: int, format_: Any, given: Options, columns: str) -> None:
        super().__init__(name, seed)
        self.format = format_
        self.schema = schema_of(columns)
        options = format_.parse_stream_options({key.lower(): value for key, value in given.items()})
        self.options = format_.fit_read(options, self.schema)
        self.stream: Any = None
        self.offsets: list[tuple[dict[str, object], dict[str, object]]] = []
        self.committed = 0
        self.rows: list[Row] = []
        self._idle = 0

    def report(self) -> str:
        """Return the batches and their rows."""
        return f"{self.committed} batches with {len(self.rows)} rows"

    def step(self) -> bool:
        """Run one trigger, or the batch that was interrupted."""
        if self.stream is None:
            self.stream = self.format.open_stream(self.options)
        if self.committed == len(self.offsets):
            start = self.offsets[-1][1] if self.offsets else through_json(self.stream.initial())
            end = through_json(self.stream.latest(start, limited=True))
            if end == start:
                self._idle += 1
                return self.finishing and not self.has_all
            self._idle = 0
            self.offsets.append((start, end))
            if len(self.offsets) > 1:
                self.stream.commit(self.offsets[-2][1])
        start, end = self.offsets[-1]
        if self.dice.random() < 0.02:
            self.recover()
            self.stream = self.format.open_stream(self.options)
        found = [self._read(task) for task in self.stream.ranges(start, end)]
        self.write(self.committed, found)
        self.rows += [row for table in found for row in table.to_pylist()]
        self.committed += 1
        return True

    @property
    def has_all(self) -> bool:
        """Whether all rows are read, once no more are written."""
        return self._idle >= self.IDLE_TRIGGERS

    def _read(self, task: Any) -> pa.Table:
        return attempts(
            lambda attempt: pa.Table.from_batches(
                self.format.read(self.options, task, self.schema, tries=attempt), self.schema
            )
        )

    def write(self, batch_id: int, tasks: Sequence[pa.Table]) -> None:
        """Write a batch to the sink."""

    def recover(self) -> None:
        """Restart the query from its checkpoint."""
        if self.stream is not None:
            self.stream.close()
            self.stream = None

    def close(self) -> None:
        """Stop the query."""
        self.recover()


class Batches(Load):
    """Repeated batch reads of a whole topic.

    Attributes:
        reads: the rows of each read.
    """

    def __init__(self, seed: int, format_: Any, given: Options, columns: str) -> None:
        super().__init__("batches", seed)
        self._format = format_
        self._schema = schema_of(columns)
        options = format_.parse_options({name.lower(): value for name, value in given.items()})
        self._options = format_.fit_read(options, self._schema)
        self.reads: list[list[Row]] = []

    def step(self) -> bool:
        """Read all current rows."""
        tasks = self._format.plan(self._options, ())
        batches = [batch for task in tasks for batch in self._format.read(self._options, task, self._schema)]
        self.reads.append(pa.Table.from_batches(batches, self._schema).to_pylist())
        self._finishing.wait(5)
        return not self.finishing


class Writing:
    """The sink of micro-batches.

    Attributes:
        repeated: the values of batches that were written more than once.
        unfinished: whether the last batch was started and failed.
    """

    def __init__(self, format_: Any, given: Options, query: str, dice: random.Random) -> None:
        self.format = format_
        self.given = {key.lower(): value for key, value in given.items()}
        self.query = query
        self.repeated: Counter[bytes] = Counter()
        self.unfinished = False
        self._dice = dice

    def write(self, batch_id: int, tasks: Sequence[Sequence[bytes]], *, repeat: float = 0.0) -> None:
        """Write one batch, and with this probability once more, as after a kill of the driver.

        A batch that failed is written again by the next call.
        """
        schema = pa.schema({"value": pa.binary()})
        options = self.format.fit(self.format.parse_write_options(self.given, schema.names), schema)
        for again in range(1 + (self._dice.random() < repeat)):
            if again or self.unfinished:
                self.repeated.update(value for values in tasks for value in values)
            self.unfinished = True
            reports = []
            try:
                for partition, values in enumerate(tasks):
                    rows = [pa.record_batch([pa.array(values, pa.binary())], schema=schema)] if values else []
                    base = TaskAttempt(self.query, batch_id, partition)
                    reports.append(attempts(lambda n, rows=rows, base=base: self._attempt(options, rows, base, n)))
                self.format.commit(options, reports)
            except (MQSourceError, OSError):
                self.format.abort(options, reports)
                raise
            self.unfinished = False

    def _attempt(self, options: Any, rows: Sequence[pa.RecordBatch], base: TaskAttempt, number: int) -> Any:
        attempt = replace(base, attempt=number, attempt_id=self._dice.randrange(1 << 40))
        return self.format.write(options, iter(rows), attempt)


class Numbers(Load):
    """A streaming write of numbered values.

    Attributes:
        values: the values of all written batches.
    """

    ROWS = 40
    TASKS = 2

    def __init__(self, name: str, seed: int, format_: Any, given: Options) -> None:
        super().__init__(name, seed)
        self.sink = Writing(format_, given, f"{name}-{seed}", self.dice)
        self.values: list[bytes] = []

    def step(self) -> bool:
        """Write one batch."""
        if self.finishing and not self.sink.unfinished:
            return False
        batch_id = len(self.values) // self.ROWS
        values = [b"%s %d" % (self.name.encode(), n) for n in range(batch_id * self.ROWS, (batch_id + 1) * self.ROWS)]
        self.sink.write(batch_id, [values[n :: self.TASKS] for n in range(self.TASKS)])
        self.values += values
        self._finishing.wait(PAUSE_S)
        return True


def differences(expected: Sequence[Any], found: Sequence[Any]) -> Iterator[str]:
    """Yield the missing and the excess rows."""
    missing, extra = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
    if missing:
        yield f"{missing.total()} missing, such as {sorted(missing)[:5]}"
    if extra:
        yield f"{extra.total()} too many, such as {sorted(extra)[:5]}"
