"""Data sources of the benchmark only: the null source, and a wrapper that measures another one.

Spark's workers import this module, so it has no other code; its imports are loaded when a job begins.
"""

from __future__ import annotations

import functools
import itertools
import json
import time
import uuid
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

import pyspark_nsq
import pyspark_pulsar_native
import pyspark_tubemq

OURS: Final[Mapping[str, Any]] = {
    module.DefaultSource.name(): module.DefaultSource for module in (pyspark_pulsar_native, pyspark_tubemq, pyspark_nsq)
}
"""The data sources of this package, by name, through the modules that Spark finds by itself."""


@dataclass(frozen=True)
class _Rows(InputPartition):
    value: int


class NullSource(DataSource):
    """Batches in memory, repeated: the cost of Spark itself, so the maximum of every source.

    As a sink, it counts the rows and drops them: the rate of Spark itself, so the maximum of every sink.

    Options, of reading:
        batches: an Arrow IPC file of batches, made by the reader under test from the same topic, so that columns,
            types, row sizes and batch sizes are the same.
        rows: how many rows each partition yields.
        partitions: how many partitions.
        rowsPerSecond: only of a stream: it never ends, and yields this many rows a second, all partitions together.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name in `spark.read.format(name)`."""
        return "bench-null"

    def schema(self) -> StructType:
        """Raise: Spark never calls this, because the benchmark always names its columns."""
        raise NotImplementedError

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader; the file must be of this schema, which Spark checks."""
        options = self.options
        return _NullReader(options["batches"], int(options["rows"]), int(options["partitions"]))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the stream's reader; the file must be of this schema, which Spark checks."""
        options = self.options
        partitions = int(options["partitions"])
        rate = options.get("rowsPerSecond")
        return _NullStreamReader(
            options["batches"],
            partitions,
            int(options.get("rows", 0)) * partitions,
            None if rate is None else int(rate),
        )

    def writer(self, schema: StructType, overwrite: bool) -> _NullWriter:
        """Return the writer; it needs the option `rows`, of all partitions together."""
        return _NullWriter(int(self.options["rows"]))


@dataclass(frozen=True)
class _Counted(WriterCommitMessage):
    rows: int


class _NullWriter(DataSourceArrowWriter):
    def __init__(self, rows: int) -> None:
        self._rows = rows

    def write(self, iterator: Iterator[pa.RecordBatch]) -> _Counted:
        return _Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        rows = sum(message.rows for message in messages if isinstance(message, _Counted))
        if rows != self._rows:
            raise RuntimeError(f"{rows} rows were written, {self._rows} expected")


class _NullReader(DataSourceReader):
    def __init__(self, batches: str, rows: int, partitions: int) -> None:
        self._batches = batches
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        return [_Rows(self._rows)] * self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _take(_load(self._batches), partition.value)


class _NullStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All rows at once, or by the clock; the rows of a trigger are divided among all partitions."""

    def __init__(self, batches: str, partitions: int, rows: int, rows_per_second: int | None) -> None:
        self._batches = batches
        self._partitions = partitions
        self._rows = rows
        self._rows_per_second = rows_per_second
        self._first: dict[str, int] | None = None

    def _now(self) -> dict[str, int]:
        if self._rows_per_second is None:
            return {"rows": self._rows}
        return {"rows": int(time.time() * self._rows_per_second)}

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        # Spark asks twice and expects the same answer.
        if self._first is None:
            self._first = {"rows": 0} if self._rows_per_second is None else self._now()
        return self._first

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        return ReadMaxRows(2**63 - 1)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return self._now()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        each, more = divmod(end["rows"] - start["rows"], self._partitions)
        return [_Rows(each + (n < more)) for n in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _take(load_once(self._batches), partition.value)


def _load(path: str) -> Sequence[pa.RecordBatch]:
    # Read, not mapped: page faults are not Spark's.
    with pa.ipc.open_file(pa.BufferReader(Path(path).read_bytes())) as file:
        return [file.get_batch(n) for n in range(file.num_record_batches)]


# A trigger of a few rows must not wait for the whole file; Spark keeps its workers.
load_once = functools.lru_cache(maxsize=1)(_load)


def _take(batches: Sequence[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    left = rows
    for batch in itertools.cycle(batches):
        if left <= batch.num_rows:
            yield batch.slice(0, left)
            return
        yield batch
        left -= batch.num_rows


class Meter:
    """Resources of this process since the meter was made: processor time, and on Linux the peak of memory."""

    def __init__(self) -> None:
        # Resets the peak of the start (proc(5), clear_refs: 5 resets VmHWM).
        if _STATUS.exists():
            Path("/proc/self/clear_refs").write_text("5")
        self._before_bytes = _status_bytes("VmRSS")
        self._before_ns = time.process_time_ns()

    def read(self, rows: int) -> dict[str, float]:
        """Return rows moved, nanoseconds of the processor, and the growth of resident memory at its peak."""
        busy_ns = time.process_time_ns() - self._before_ns
        return {"rows": rows, "ns": busy_ns, "growth_bytes": _status_bytes("VmHWM") - self._before_bytes}


_STATUS: Final = Path("/proc/self/status")


def _status_bytes(name: str) -> int:
    lines = _STATUS.read_text().splitlines() if _STATUS.exists() else ()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


class MeasuredSource(DataSource):
    """Another data source, each of whose tasks writes the resources of its Python worker: a file of JSON a task.

    All work for a task counts, including the transfer of rows from and to Spark: the null source has no other
    work.

    Options: those of the other one, `measuredFormat` (its name) and `measuredFolder` (the folder of the files).
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        name, self._folder = options.pop("measuredFormat"), options.pop("measuredFolder")
        self._source: DataSource = (NullSource if name == "bench-null" else OURS[name])(options)

    @classmethod
    def name(cls) -> str:
        """Return the name in `spark.read.format(name)`."""
        return "bench-measured"

    def schema(self) -> StructType | str:
        """Return the other's."""
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the other's reader, measured."""
        return _MeasuredReader(self._source.reader(schema), self._folder)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the other's writer, measured."""
        return _MeasuredWriter(cast("DataSourceArrowWriter", self._source.writer(schema, overwrite)), self._folder)


class _MeasuredReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader, folder: str) -> None:
        self._reader = reader
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        meter, rows = Meter(), 0
        for batch in self._reader.read(partition):
            rows += cast("pa.RecordBatch", batch).num_rows
            yield batch
        _note(meter, rows, self._folder)


class _MeasuredWriter(DataSourceArrowWriter):
    def __init__(self, writer: DataSourceArrowWriter, folder: str) -> None:
        self._writer = writer
        self._folder = folder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        meter, rows = Meter(), 0

        def counted() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in iterator:
                rows += batch.num_rows
                yield batch

        message = self._writer.write(counted())
        _note(meter, rows, self._folder)
        return message

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._writer.abort(messages)


def _note(meter: Meter, rows: int, folder: str) -> None:
    (Path(folder) / uuid.uuid4().hex).write_text(json.dumps(meter.read(rows)))
