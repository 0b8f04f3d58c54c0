"""What differs between the Spark releases from 4.0 to 4.3: nothing else in the package asks for a version."""

from __future__ import annotations

import inspect
import os
from typing import TYPE_CHECKING, Any

import pyspark.sql.datasource
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import to_arrow_schema

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase
except ImportError:  # before 4.1
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class StreamWriterBase(DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[misc, no-redef]
        """Takes Arrow batches all the same: for the worker it is enough to be a `DataSourceArrowWriter` (4.0.0)."""


try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before 4.2
    HAS_ADMISSION_CONTROL = False
else:
    HAS_ADMISSION_CONTROL = True

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    from spark_mq_source.core.ports import Stream

__all__ = [
    "FILTER_OPERATORS",
    "HAS_ADMISSION_CONTROL",
    "StreamReaderBase",
    "StreamWriterBase",
    "arrow_schema",
    "collects_worker_logs",
    "register",
]

FILTER_OPERATORS: Mapping[type, str] = {
    getattr(pyspark.sql.datasource, name): operator
    for name, operator in {
        "EqualTo": "=",
        "LessThan": "<",
        "LessThanOrEqual": "<=",
        "GreaterThan": ">",
        "GreaterThanOrEqual": ">=",
        "In": "in",
    }.items()
    if hasattr(pyspark.sql.datasource, name)
}
"""Spark's classes of conditions that compare a column with a value; none before 4.1, which hands readers none."""

# 4.0 and 4.1 have UTC as their only zone for Arrow; later releases want it named (seen on 4.0.0 and 4.3.0).
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark's worker compares a reader's batches with, to the letter."""
    return to_arrow_schema(schema, **_UTC)


class _StreamReader(DataSourceStreamReader):
    """What all releases ask of a stream reader, over the format's `stream`."""

    @property
    def stream(self) -> Stream[Any]:
        """The format's side of the query."""
        raise NotImplementedError

    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Where a query starts that has no checkpoint.

        Spark asks for it again where a restarted query has to do its first batch over.
        """
        if self._initial is None:
            self._initial = self.stream.initial()
        return self._initial

    def commit(self, end: dict[str, object]) -> None:
        """Spark will never ask again for what is before `end`."""
        self.stream.commit(end)

    _initial: dict[str, object] | None = None
    # The end of the trigger planned last is the start of the next one, which releases before 4.2 do not say. After a
    # restart they ask for the partitions of what the checkpoint has before anything else (seen on 4.0.0).
    _begins_at: dict[str, object] | None = None


if HAS_ADMISSION_CONTROL:

    class StreamReaderBase(_StreamReader, SupportsTriggerAvailableNow):
        """Limits, lag and `Trigger.AvailableNow`, from Spark 4.2 on."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
            """Anything but "all available": the limits are options, and `latest` knows them."""
            return ReadMaxRows(2**63 - 1)

        def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
            """Where the next trigger ends; `Trigger.Once` asks for all there is, whatever the options say."""
            return self.stream.latest(start, limited=not isinstance(limit, ReadAllAvailable))

        def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802 - Spark's name
            """The newest offset, so that progress shows the lag."""
            return self.stream.newest

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Nothing that comes from now on belongs to this query."""
            self.stream.aim_at_now()

else:

    class StreamReaderBase(_StreamReader):  # type: ignore[no-redef]
        """Limits where the start of a trigger is known; `Trigger.AvailableNow` is Spark's one batch."""

        def latestOffset(self) -> dict[str, object]:  # type: ignore[override]  # noqa: N802
            """Where the next trigger ends. Of a new query Spark asks this first, and where it starts afterwards."""
            start = self.initialOffset() if self._begins_at is None else self._begins_at
            return self.stream.latest(start, limited=True)


def collects_worker_logs() -> bool:
    """Whether Spark collects what is logged in this process, for `spark.tvf.python_worker_logs()` (from 4.1 on).

    Its worker tells by the session that they are for (seen on 4.3.0).
    """
    return "PYSPARK_SPARK_SESSION_UUID" in os.environ


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Registers a data source with a session, also where Spark has found it by itself."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # 4.0 refuses the name of an installed data source, which is this one; later releases take it (seen on 4.0.0).
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
