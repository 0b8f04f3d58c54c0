"""The formats as Spark data sources: the only package here that imports pyspark."""
