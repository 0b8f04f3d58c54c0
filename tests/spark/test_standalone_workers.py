"""A standalone cluster of three workers: one is killed with its executor during a write, another during a read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_spark import standalone_cluster

ROWS = 3000

SCRIPT = """
import json, os, sys, time
from pathlib import Path

url, topic, folder = sys.argv[1:]
spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")

def held(name):
    # The first task that gets here has moved a batch of rows, and waits until its worker is killed.
    def hold(batches):
        for batch in batches:
            yield batch
            try:
                os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            Path(folder, f"{name}-runs").write_text(os.getcwd())
            while True:
                time.sleep(1)
    return hold

given = {"serviceUrl": url, "topic": topic}
numbers = spark.range(0, ROWS, 1, 6).selectExpr("cast(id as string) as value")
numbers.mapInArrow(held("write"), "value string").write.format("pulsar-native").options(
    **given, deliveryGuarantee="exactly-once", batchingMaxMessages="10"
).mode("append").save()
stored = spark.read.format("pulsar-native").options(**given, minPartitions="6").schema("value string").load()
read = [row.value for row in stored.mapInArrow(held("read"), "value string").collect()]
print(json.dumps(read))
spark.stop()
""".replace("ROWS", str(ROWS))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rows_are_stored_once_although_two_of_three_workers_are_killed(pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    topic = pulsar.topic(3, namespace=pulsar.new_namespace(deduplicates=True))
    with standalone_cluster(tmp_path, 3) as cluster:
        killed = []

        def kill_the_worker_that(name: str) -> None:
            runs = tmp_path / f"{name}-runs"
            wait_until(lambda: runs.exists() and bool(runs.read_text()), f"a task of the {name}", 1500)
            number = next(n for n in range(3) if tmp_path / f"work-{n}" in Path(runs.read_text()).parents)
            cluster.workers[number].kill()
            killed.append(number)

        def kill() -> None:
            for name in ("write", "read"):
                kill_the_worker_that(name)

        killing = threading.Thread(target=kill)
        killing.start()
        result = cluster.run(SCRIPT, pulsar.service_url, topic, str(tmp_path), timeout_s=1500)
        killing.join()
    assert result.code == 0, result.output[-3000:]
    assert len(set(killed)) == 2
    assert sorted(map(int, result.last_json())) == list(range(ROWS))
