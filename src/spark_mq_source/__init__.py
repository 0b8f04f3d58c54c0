"""Apache Pulsar, InLong TubeMQ and NSQ as PySpark data sources, over the brokers' own protocols.

After `pip install`, `spark.read.format("pulsar-native")` works without further setup. Sessions that do not discover
installed data sources, such as Spark Connect servers, need `register`.

Example:
    >>> import spark_mq_source
    >>> spark_mq_source.implementation() in ("native", "python")
    True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spark_mq_source.core import errors
from spark_mq_source.core.errors import *  # noqa: F403 - all errors are public
from spark_mq_source.core.implementation import Implementation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from spark_mq_source.spark.sources import NsqDataSource, PulsarNativeDataSource, TubeMQDataSource

__all__ = [
    "NsqDataSource",
    "PulsarNativeDataSource",
    "TubeMQDataSource",
    "implementation",
    "register",
]
__all__ += errors.__all__

_WITH_LOOPS = ("pulsar.payload.messages", "pulsar.payload.encoder", "tubemq.payload.messages", "nsq.payload.messages")
_DATA_SOURCES = ("NsqDataSource", "PulsarNativeDataSource", "TubeMQDataSource")


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the module has
    # The data sources import pyspark, which a program that uses only the errors should not load.
    if name not in _DATA_SOURCES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("spark_mq_source.spark.sources"), name)


def implementation() -> str:
    """Return the implementation of the hot loops: `native` (compiled), or `python` if any interpreted twin runs.

    `SPARK_MQ_SOURCE_IMPL=native` or `python` in the environment forces one.
    """
    modules = [import_module(f"spark_mq_source.{name}") for name in _WITH_LOOPS]
    chosen = [loop for module in modules for loop in vars(module).values() if isinstance(loop, Implementation)]
    return "native" if all(loop.name == "native" for loop in chosen) else "python"


def register(spark: SparkSession) -> None:
    """Register every format of this package with a session.

    Args:
        spark: a session, classic or Spark Connect.

    Example:
        ::

            spark = SparkSession.builder.remote("sc://localhost").getOrCreate()
            spark_mq_source.register(spark)
    """
    compat = import_module("spark_mq_source.spark._compat")
    for name in _DATA_SOURCES:
        compat.register(spark, __getattr__(name))
