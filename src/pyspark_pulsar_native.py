"""Spark looks for a top-level module named pyspark_* and takes its DefaultSource: here, format "pulsar-native"."""

from spark_mq_source.spark.sources import PulsarNativeDataSource as DefaultSource

__all__ = ["DefaultSource"]
