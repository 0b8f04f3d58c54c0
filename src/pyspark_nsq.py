"""Spark looks for a top-level module named pyspark_* and takes its DefaultSource: here, format "nsq"."""

from spark_mq_source.spark.sources import NsqDataSource as DefaultSource

__all__ = ["DefaultSource"]
