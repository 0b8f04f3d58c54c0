"""Spark looks for a top-level module named pyspark_* and takes its DefaultSource: here, format "tubemq"."""

from spark_mq_source.spark.sources import TubeMQDataSource as DefaultSource

__all__ = ["DefaultSource"]
