"""README's snippets, run with an installed wheel and without access to the checkout."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.docs.snippets import snippets
from tests.fix_brokers import PulsarUnderTest
from tests.packaging.conftest import ROOT, Environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1300)]  # as in test_wheel.py, whose build this shares

# Only the settings of Spark for a small test machine; the lines of README find this session and define all else.
SESSION = """
import json, sys
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

def package_of_a_task(batches):
    import pyarrow, spark_mq_source
    for _ in batches:
        yield pyarrow.RecordBatch.from_pydict({"found": [spark_mq_source.__file__]})

query.processAllAvailable()
print(json.dumps({
    "package": spark_mq_source.__file__,
    "implementation": spark_mq_source.implementation(),
    "tasks": spark.range(1).mapInArrow(package_of_a_task, "found string").head()[0],
    "streamed": spark.read.parquet(f"{sys.argv[1]}/flights").count(),
}))
query.stop()
"""


def test_an_installed_wheel_runs_the_readme(installed: Environment, pulsar: PulsarUnderTest, tmp_path: Path):
    """Only the address, the topic and the folder are replaced; nothing is defined for it beforehand."""
    blocks = snippets((ROOT / "README.md").read_text(encoding="utf-8"))
    program = "\n".join(block.text for block in blocks if block.language == "python")
    for old, new in {"pulsar://localhost:6650": pulsar.service_url, "/data/": f"{tmp_path}/"}.items():
        assert old in program, f"README does not name {old}"
        program = program.replace(old, new)
    # The topic option is the one after the address; the topic used instead retains messages without a subscription.
    topic = re.compile(rf'("{pulsar.service_url}"\)\s*\.option\("topic", )"flights"')
    program, found = topic.subn(rf'\1"{pulsar.topic(2)}"', program)
    assert found == 3, "README writes, reads and streams"
    (tmp_path / "readme.py").write_text("\n".join([SESSION, program, RESULT]))
    *shown, last = installed.run(tmp_path / "readme.py", tmp_path).splitlines()
    assert sum(line.startswith("|carrier-") and line.endswith("|  250|") for line in shown) == 8, "NSQ's and Pulsar's"
    result = json.loads(last)
    assert Path(result["package"]).is_relative_to(installed.folder)
    assert result["tasks"] == result["package"]
    assert result["implementation"] == ("native" if shutil.which("cc") else "python")
    assert result["streamed"] == 1000
