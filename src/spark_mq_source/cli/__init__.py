"""`spark-mq`: look at a broker as the connector sees it, without Spark."""
