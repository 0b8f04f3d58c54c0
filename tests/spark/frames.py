"""DataFrames of any format, and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def load(spark: SparkSession, name: str, options: Mapping[str, str], schema: str | None = None) -> DataFrame:
    """Return the DataFrame of a format with these options."""
    reader = spark.read.format(name).options(**options)
    return (reader if schema is None else reader.schema(schema)).load()


def failure(df: DataFrame) -> str:
    """Return the text of the exception that collecting it raises."""
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as caught:
        df.collect()
    return str(caught.value)
