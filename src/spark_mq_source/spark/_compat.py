"""What differs between the Spark releases from 4.0 to 4.3: nothing else in the package asks for a version."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pyspark.sql.datasource
from pyspark.sql.pandas.types import to_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["FILTER_OPERATORS", "arrow_schema"]

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
