"""Two bounds that must hold whatever the rates are: memory of a large partition, planning of many partitions."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from bench.publish import NAMESPACE, Workload, create_topic, publish_one_each
from bench.readers import spark_schema
from bench.sources import PeakMemory
from spark_mq_source.core.options import READ
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import read_range
from spark_mq_source.spark._compat import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["LARGE_PARTITION", "measure_memory", "measure_planning"]

LARGE_PARTITION = Workload(1024, "none", 1, 3_000_000)
PLANNED_PARTITIONS = 1000
ROOT = Path(__file__).resolve().parent.parent


def measure_memory(service_url: str, spark: SparkSession, folder: Path) -> dict[str, dict[str, int]]:
    """Memory growth while the 3 GiB partition is read: by the reader alone, and in Spark's Python worker.

    Raises:
        RuntimeError: a read did not bring all rows.
    """
    # Column types are parsed by Spark's JVM, which the other process does without.
    command = [sys.executable, "-m", "bench.limits", service_url, LARGE_PARTITION.topic, spark_schema(None).json()]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=600)
    alone: dict[str, int] = json.loads(done.stdout)
    file = folder / "memory.json"
    reader = spark.read.format("bench-measured").option("serviceUrl", service_url).option("memoryFile", str(file))
    reader.option("topic", LARGE_PARTITION.topic).load().write.format("noop").mode("overwrite").save()
    in_spark: dict[str, int] = json.loads(file.read_text())
    for measured in (alone, in_spark):
        if measured["rows"] != LARGE_PARTITION.messages:
            raise RuntimeError(f"{measured['rows']} rows of {LARGE_PARTITION.messages} were read")
    return {"reader": alone, "spark_worker": in_spark}


def measure_planning(service_url: str, admin_url: str, address: tuple[str, int]) -> dict[str, float]:
    """Seconds to plan a topic of 1,000 partitions: with the broker serving none of them yet, and all.

    Raises:
        RuntimeError: the plan has not a range a partition.
    """
    topic = f"persistent://{NAMESPACE}/planned-{PLANNED_PARTITIONS}"
    if create_topic(admin_url, topic, PLANNED_PARTITIONS):
        publish_one_each(address, topic, PLANNED_PARTITIONS)
    unload = urllib.request.Request(f"{admin_url}/admin/v2/namespaces/{NAMESPACE}/unload", method="PUT")  # noqa: S310
    with urllib.request.urlopen(unload, timeout=300):  # noqa: S310 - the address of a broker we started
        pass
    options = PulsarOptions.from_spark({"serviceUrl": service_url, "topic": topic}, READ)
    seconds = {}
    for name in ("topics_not_loaded", "topics_loaded"):
        started = time.perf_counter()
        ranges = plan_batch(options)
        seconds[name] = time.perf_counter() - started
        if len(ranges) != PLANNED_PARTITIONS:
            raise RuntimeError(f"{len(ranges)} ranges were planned for {PLANNED_PARTITIONS} partitions")
    return seconds


def _read_alone(service_url: str, topic: str, columns: str) -> dict[str, int]:
    from pyspark.sql.types import StructType

    options = PulsarOptions.from_spark({"serviceUrl": service_url, "topic": topic}, READ)
    schema = arrow_schema(StructType.fromJson(json.loads(columns)))
    (task,) = plan_batch(options)
    memory = PeakMemory()
    rows = sum(batch.num_rows for batch in read_range(options, task, schema))
    return {"before_bytes": memory.before_bytes, "growth_bytes": memory.growth_bytes(), "rows": rows}


if __name__ == "__main__":
    print(json.dumps(_read_alone(*sys.argv[1:4])))
