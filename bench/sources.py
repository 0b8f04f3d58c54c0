"""Data sources that only the benchmark has: the null source, and ours with its memory measured.

Spark's workers import this module, so it holds nothing else.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_mq_source.spark.base import MQPartition
from spark_mq_source.spark.pulsar import PulsarNativeDataSource

__all__ = ["MeasuredSource", "NullSource", "PeakMemory"]


@dataclass(frozen=True)
class _Rows(InputPartition):
    value: int


class NullSource(DataSource):
    """Batches that lie ready in memory, again and again: what Spark itself takes, so the ceiling of every source.

    Options:
        batches: an Arrow IPC file of batches, made by the reader under test from the same topic, so that columns,
            types, row sizes and batch sizes are the same.
        rows: how many rows each partition yields.
        partitions: how many partitions.
    """

    @classmethod
    def name(cls) -> str:
        """The name in `spark.read.format(name)`."""
        return "bench-null"

    def schema(self) -> StructType:
        """Never asked for: the benchmark always names its columns."""
        raise NotImplementedError

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader; the file must be of this schema, which Spark checks."""
        options = self.options
        return _NullReader(options["batches"], int(options["rows"]), int(options["partitions"]))


class _NullReader(DataSourceReader):
    def __init__(self, batches: str, rows: int, partitions: int) -> None:
        self._batches = batches
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        return [_Rows(self._rows)] * self._partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Read, not mapped: page faults are none of Spark's doing.
        with pa.ipc.open_file(pa.BufferReader(Path(self._batches).read_bytes())) as file:
            batches = [file.get_batch(n) for n in range(file.num_record_batches)]
        left = partition.value
        for batch in itertools.cycle(batches):
            if left <= batch.num_rows:
                yield batch.slice(0, left)
                return
            yield batch
            left -= batch.num_rows


class PeakMemory:
    """How far this process's resident memory rises above what it is now (Linux)."""

    def __init__(self) -> None:
        # Forgets the peak that starting up left behind (proc(5), clear_refs: 5 resets VmHWM).
        Path("/proc/self/clear_refs").write_text("5")
        self.before_bytes = _status_bytes("VmRSS")

    def growth_bytes(self) -> int:
        """The highest resident size since the start, less the size then."""
        return _status_bytes("VmHWM") - self.before_bytes


def _status_bytes(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    msg = f"/proc/self/status has no {name}"
    raise RuntimeError(msg)


class MeasuredSource(PulsarNativeDataSource):
    """`pulsar-native`, whose worker writes down how much memory a task took.

    Options: those of `pulsar-native`, and `memoryFile`: where to write.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._file = options.pop("memoryFile")
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        """The name in `spark.read.format(name)`."""
        return "bench-measured"

    def reader(self, schema: StructType) -> DataSourceReader:
        """The reader of `pulsar-native`, wrapped."""
        return _MeasuredReader(super().reader(schema), self._file)


class _MeasuredReader(DataSourceReader):
    def __init__(self, reader: DataSourceReader, file: str) -> None:
        self._reader = reader
        self._file = file

    def partitions(self) -> Sequence[InputPartition]:
        return self._reader.partitions()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, MQPartition):
            return
        memory = PeakMemory()
        rows = 0
        for batch in self._reader.read(partition):
            rows += cast("pa.RecordBatch", batch).num_rows
            yield batch
        measured = {"before_bytes": memory.before_bytes, "growth_bytes": memory.growth_bytes(), "rows": rows}
        Path(self._file).write_text(json.dumps(measured))
