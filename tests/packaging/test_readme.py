"""README's snippets run with an installed wheel, where the checkout is out of reach."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.fix_brokers import NsqUnderTest, PulsarUnderTest
from tests.packaging.conftest import ROOT, Environment

pytestmark = pytest.mark.timeout(1300)  # as in test_wheel.py, whose build this shares


def snippet(*marks: str, without: str = "\0") -> str:
    """The README's first block of Python that has all of these."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    found = [block for block in blocks if all(mark in block for mark in marks) and without not in block]
    assert found, f"README.md has no snippet with {marks}"
    return found[0]


SESSION = """
import json, sys
from pyspark.sql import SparkSession

spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2").config("spark.sql.warehouse.dir", sys.argv[1])
    .getOrCreate()
)
flights = spark.range(1000).selectExpr("concat('carrier-', id % 4) as carrier", "id as number")
alerts = flights.limit(10)
"""
RESULT = """
import spark_mq_source
print(json.dumps({
    "package": spark_mq_source.__file__,
    "implementation": spark_mq_source.implementation(),
    "tasks": json.loads(tasks),
    "read": read,
    "streamed": spark.read.parquet(sys.argv[1] + "/flights").count(),
    "drained": late.count(),
}))
"""
TASKS = """
def package_of_a_task(batches):
    import pyarrow, spark_mq_source
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"found": [json.dumps(spark_mq_source.__file__)]})

tasks = spark.range(1).mapInArrow(package_of_a_task, "found string").head()[0]
"""


def test_an_installed_wheel_runs_the_readme(
    installed: Environment, pulsar: PulsarUnderTest, nsq: NsqUnderTest, tmp_path: Path
):
    """Writes, reads and streams Pulsar, writes and drains NSQ, by the README's own lines with other addresses."""
    topic = pulsar.topic(2)
    alerts = nsq.topic("spark")
    written = snippet('.write.format("pulsar-native")', without="valueFormat")
    script = "\n".join(
        [
            SESSION,
            TASKS,
            snippet('spark.readStream.format("pulsar-native")'),
            "query.processAllAvailable()",  # it begins at the latest message, so it must be there first
            written,
            "query.processAllAvailable(); query.stop()",
            snippet('spark.read.format("pulsar-native")', "groupBy"),
            "read = {row.key: row['count'] for row in flights.groupBy('key').count().collect()}",
            snippet('.write.format("nsq")'),
            snippet('spark.read.format("nsq")', "idleTimeout", without="NsqBroker"),
            RESULT,
        ]
    )
    replacements = {
        "pulsar://localhost:6650": pulsar.service_url,
        '"topic", "flights"': f'"topic", "{topic}"',
        '"topic", "alerts"': f'"topic", "{alerts}"',
        "localhost:4150": nsq.tcp_address,
        "localhost:4161": nsq.lookupd_address,
        "/data/": f"{tmp_path}/",
    }
    for old, new in replacements.items():
        assert old in script
        script = script.replace(old, new)
    (tmp_path / "readme.py").write_text(script)
    found = json.loads(installed.run(tmp_path / "readme.py", tmp_path).splitlines()[-1])
    assert Path(found["package"]).is_relative_to(installed.folder)
    assert found["tasks"] == found["package"]
    assert found["implementation"] == ("native" if shutil.which("cc") else "python")
    assert found["read"] == {f"carrier-{number}": 250 for number in range(4)}
    assert found["streamed"] == 1000
    assert found["drained"] == 10
