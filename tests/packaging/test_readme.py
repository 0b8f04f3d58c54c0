"""README's snippets run with an installed wheel, where the checkout is out of reach."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.fix_brokers import NsqUnderTest, PulsarUnderTest
from tests.fix_tubemq import TubeUnderTest
from tests.packaging.conftest import ROOT, Environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1300)]  # as in test_wheel.py, whose build this shares


def quickstart() -> str:
    """Every block of Python of README's quickstart, in the order in which they are printed."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text[text.index("\n## Five minutes\n") :]
    section = section[: section.index("\n## ", 1)]
    return "\n".join(re.findall(r"```python\n(.*?)```", section, re.DOTALL))


# Only what a small test machine wants of Spark; the lines of README find this session and define all else.
SESSION = """
import json, sys, time
from pyspark.sql import SparkSession

(
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.driver.memory", "1g")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "2").config("spark.sql.warehouse.dir", sys.argv[1])
    .getOrCreate()
)
"""
RESULT = """
import spark_mq_source

def counted(rows):
    return {row.key: row["count"] for row in rows}

def streamed(name):
    # A member of a group has no partition before the master's next round, so its first triggers are empty.
    until = time.monotonic() + 120
    while time.monotonic() < until:
        for one in spark.streams.active:
            one.processAllAvailable()
        found = spark.read.schema("value binary").parquet(f"{sys.argv[1]}/{name}").count()
        if found >= 1000:
            break
    return found

print(json.dumps({
    "package": spark_mq_source.__file__,
    "implementation": spark_mq_source.implementation(),
    "tasks": json.loads(tasks),
    "published": counted(published.groupBy("key").count().collect()),
    "stored": counted(stored.groupBy(stored.message_type.alias("key")).count().collect()),
    "flights": streamed("flights"),
    "delays": streamed("delays"),
    "drained": drained,
    "active": len(spark.streams.active),
}))
for one in spark.streams.active:
    one.stop()
"""
TASKS = """
def package_of_a_task(batches):
    import pyarrow, spark_mq_source
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"found": [json.dumps(spark_mq_source.__file__)]})

tasks = spark.range(1).mapInArrow(package_of_a_task, "found string").head()[0]
"""


def test_an_installed_wheel_runs_the_readme(
    installed: Environment, pulsar: PulsarUnderTest, tubemq: TubeUnderTest, nsq: NsqUnderTest, tmp_path: Path
):
    """The quickstart as it stands, with other addresses, topics and folders: nothing is defined for it beforehand."""
    topics = {"pulsar-native": pulsar.topic(2), "tubemq": tubemq.topic(2)}
    script = quickstart()
    replacements = {
        "pulsar://localhost:6650": pulsar.service_url,
        "localhost:8715": tubemq.masters,
        "localhost:4150": nsq.tcp_address,
        "localhost:4161": nsq.lookupd_address,
        '"topic", "alerts"': f'"topic", "{nsq.unused_topic()}"',
        '"delays")': f'"{tubemq.group()}")',
        "/data/": f"{tmp_path}/",
    }
    for old, new in replacements.items():
        assert old in script, f"README's quickstart does not name {old}"
        script = script.replace(old, new)
    for name, topic in topics.items():
        # The topic is the option that comes behind the format and the address.
        script, found = re.subn(
            rf'(format\("{name}"\)\s*\.option[^\n]*\n\s*\.option\("topic", )"flights"', rf'\1"{topic}"', script
        )
        assert found == 3, f"README writes, reads and streams {name}"
    (tmp_path / "readme.py").write_text("\n".join([SESSION, script, TASKS, RESULT]))
    found = json.loads(installed.run(tmp_path / "readme.py", tmp_path).splitlines()[-1])
    assert Path(found["package"]).is_relative_to(installed.folder)
    assert found["tasks"] == found["package"]
    assert found["implementation"] == ("native" if shutil.which("cc") else "python")
    assert found["published"] == found["stored"] == {f"carrier-{number}": 250 for number in range(4)}
    assert found["flights"] == found["delays"] == 1000
    assert found["drained"] == 10
    assert found["active"] == 3
