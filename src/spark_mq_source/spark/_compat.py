"""The differences between Spark 4.0 to 4.3; no other module depends on the version."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyspark.sql.datasource
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from spark_mq_source.spark.boundary import called_by_spark

try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter as StreamWriterBase
except ImportError:  # before 4.1
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class StreamWriterBase(DataSourceArrowWriter, DataSourceStreamWriter):  # type: ignore[misc, no-redef]
        """A writer that gets Arrow batches: the worker checks only for `DataSourceArrowWriter` (4.0.0)."""


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
    "register",
    "spark_schema",
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
"""Spark's filter classes that compare a column with a value; empty before 4.1, which lacks pushdown."""

# 4.0 and 4.1 use only UTC for Arrow; later releases take the zone as an argument (seen on 4.0.0 and 4.3.0).
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact Arrow schema that Spark's worker requires of a reader's batches."""
    return to_arrow_schema(schema, **_UTC)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return Spark's schema; `spark.sql.timestampType` decides only what `timestamp` in a text means."""
    return from_arrow_schema(schema, prefer_timestamp_ntz=True)


class _StreamReader(DataSourceStreamReader):
    """The methods of a stream reader in all releases, based on the format's `stream`."""

    @property
    def stream(self) -> Stream[Any]:
        raise NotImplementedError

    def initial(self) -> dict[str, object]:
        if self._initial is None:
            self._initial = self.stream.initial()
        return self._initial

    @called_by_spark
    def initialOffset(self) -> dict[str, object]:  # noqa: N802 - Spark's name
        """Return the start of a query without a checkpoint.

        Spark calls this again if a restarted query has to repeat its first batch.
        """
        return self.initial()

    @called_by_spark
    def commit(self, end: dict[str, object]) -> None:
        self.stream.commit(end)

    _initial: dict[str, object] | None = None
    # Releases before 4.2 do not pass the start of a trigger; it is the end of the last planned trigger. After a restart
    # they first call `partitions` with the offsets from the checkpoint (seen on 4.0.0).
    _begins_at: dict[str, object] | None = None


if HAS_ADMISSION_CONTROL:

    class StreamReaderBase(_StreamReader, SupportsTriggerAvailableNow):
        """Limits, lag and `Trigger.AvailableNow`, from Spark 4.2 on."""

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
            """Return any limit except "all available": the real limits are options, which `latest` applies."""
            return ReadMaxRows(2**63 - 1)

        @called_by_spark
        def latestOffset(self, start: dict[str, object], limit: ReadLimit) -> dict[str, object]:  # noqa: N802
            """Return the end of the next trigger; `Trigger.Once` ignores the limits in the options."""
            return self.stream.latest(start, limited=not isinstance(limit, ReadAllAvailable))

        @called_by_spark
        def reportLatestOffset(self) -> dict[str, object] | None:  # noqa: N802 - Spark's name
            """Return the newest offset, from which the progress shows the lag."""
            return self.stream.newest

        @called_by_spark
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
            """Exclude messages published from now on."""
            self.stream.cap_at_current_end()

else:

    class StreamReaderBase(_StreamReader):  # type: ignore[no-redef]
        """Limits in `latestOffset`; Spark runs `Trigger.AvailableNow` as one batch."""

        @called_by_spark
        def latestOffset(self) -> dict[str, object]:  # type: ignore[override]  # noqa: N802
            """Return the end of the next trigger; for a new query Spark calls this before `initialOffset`."""
            return self.stream.latest(self.initial() if self._begins_at is None else self._begins_at, limited=True)


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register a data source with a session, even if Spark has already discovered it."""
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        # 4.0 refuses the name of an installed data source, here the same one; later ones accept it (seen on 4.0.0).
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
