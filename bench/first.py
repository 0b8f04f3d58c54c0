"""The first reads of new Spark sessions: four of one topic, and the parts of the first one's time.

    python -m bench.first                            five sessions of ours and five of the null source, in turn
    python -m bench.first --against ../other/src     also with the package of another checkout, in turn
    python -m bench.first --imports                  processor time of a worker for the imports of a format

Each session is a separate process, with a new JVM on two cores; the broker is warm. The null source yields batches
that are in memory: its time is Spark's. Medians of seconds, and of processor time: on a busy machine only
the latter can be compared.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from bench.__main__ import say
from bench.engine import ROOT, VALUE_ONLY, Engine, value_file
from bench.pulsar import BROKER_SETTINGS, JVM
from bench.pulsar_broker import WARM_UP_READS, Broker, Workload, drain, use_namespace
from bench.runner import Setup, interleaved
from brokers.pulsar import PulsarStandalone

READS: Final = 4
MESSAGES: Final = 3_000_000
FORMATS: Final = ("pulsar", "tubemq", "nsq")

_IMPORTS: Final = """
import socket, time
import pyarrow, pyspark.worker, pyspark.sql.worker.plan_data_source_read
__name__, (connection, _) = "pyspark.pretended", socket.socketpair()  # what tells the package that it is in a worker
began = time.process_time_ns()
import spark_mq_source.spark.{0}
found = time.process_time_ns()
import spark_mq_source.{0}.format
print((found - began) / 1e6, (time.process_time_ns() - found) / 1e6)
"""


def drive(format_: str, options: dict[str, str]) -> None:
    """Read a topic several times in a session of this process; print seconds and processor seconds of each part."""
    laps = [("", time.perf_counter(), 0.0, 0.0)]

    def lap(name: str) -> None:
        assert spark.sparkContext._gateway is not None  # noqa: S101 - for mypy
        laps.append((name, time.perf_counter(), *_busy(spark.sparkContext._gateway.proc.pid)))

    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config("spark.log.level", "ERROR")
    ).getOrCreate()
    if format_ == "bench-null":
        from bench.sources import NullSource

        spark.dataSource.register(NullSource)
    lap("session")
    for number in range(1, READS + 1):
        rows = spark.read.format(format_).options(**options).schema(VALUE_ONLY).load()
        lap(f"load {number}")
        rows.write.format("noop").mode("overwrite").save()
        lap(f"read {number}")
    found = {}
    for (_, *before), (name, *after) in itertools.pairwise(laps):
        for kind, start, end in zip(("", ", JVM", ", Python"), before, after, strict=True):
            found[name + kind] = end - start
    print(json.dumps(found))


def _busy(jvm: int) -> tuple[float, float]:
    """Return the seconds of the processor that the JVM has used so far, and its Python processes (Linux)."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # ppid; utime, stime, and both of the children that have ended: fields 4 and 14 to 17 (proc(5)).
            fields = stat.read_text().rpartition(")")[2].split()
            parents[int(stat.parent.name)] = int(fields[1])
            used[int(stat.parent.name)] = [int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:15]]

    def is_below(pid: int) -> bool:
        return pid == jvm or (pid in parents and is_below(parents[pid]))

    return sum(used[jvm][:2]), sum(sum(used[pid]) for pid, above in parents.items() if is_below(above))


def session(source: str, format_: str, options: dict[str, str]) -> dict[str, float]:
    """Run `drive` in a new process, with the package in a folder of sources."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "bench.first", "drive", format_, json.dumps(options)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((source, str(ROOT))), "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE, check=True, text=True, timeout=300,
    )  # fmt: skip
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def imports(source: str, format_: str) -> dict[str, float]:
    """Return the milliseconds of a worker's processor time to import the data source, and to import its format."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _IMPORTS.format(format_)],
        env={**os.environ, "PYTHONPATH": source}, stdout=subprocess.PIPE, check=True, text=True, timeout=60,
    )  # fmt: skip
    return dict(zip(("data source, ms", "format, ms"), map(float, done.stdout.split()), strict=True))


def _shown(found: dict[str, list[dict[str, float]]]) -> str:
    """Return the medians as a table."""
    parts = list(dict.fromkeys(part for runs in found.values() for run in runs for part in run))
    lines = [f"| | {' | '.join(found)} |", f"|---|{'---:|' * len(found)}"]
    for part in parts:
        cells = [f"{median(run[part] for run in runs):.3g}" for runs in found.values()]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command line's command."""
    if sys.argv[1:2] == ["drive"]:
        drive(sys.argv[2], json.loads(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(prog="python -m bench.first", description=__doc__)
    parser.add_argument("--against", type=Path, help="the src of another checkout, with its compiled modules")
    parser.add_argument("--sessions", type=int, default=5, help="of each")
    parser.add_argument("--imports", action="store_true", help="only measure imports")
    given = parser.parse_args()
    sources = {"this": str(ROOT / "src")} | ({"other": str(given.against.resolve())} if given.against else {})
    if given.imports:
        for format_ in FORMATS:
            runs = {name: partial(imports, source, format_) for name, source in sources.items()}
            print(f"{format_}\n{_shown(interleaved(runs, given.sessions))}")
        return
    with (
        tempfile.TemporaryDirectory(prefix="spark-mq-source-first-") as temporary,
        PulsarStandalone(Path(temporary) / "broker", overrides=BROKER_SETTINGS, jvm=JVM) as standalone,
    ):
        use_namespace(standalone.admin_url)
        broker = Broker(standalone, Setup(Engine(Path(temporary)), Path(temporary)))
        workload = Workload(100, "none", 1, MESSAGES)
        broker.fill(workload)
        for _ in range(WARM_UP_READS):
            drain(broker.address, workload)
        null = {"batches": value_file(Path(temporary), 100), "rows": str(MESSAGES), "partitions": "1"}
        runs = {
            name: partial(session, source, "pulsar-native", broker.options(workload.topic))
            for name, source in sources.items()
        }
        runs["null source"] = partial(session, sources["this"], "bench-null", null)
        print(_shown(interleaved(runs, given.sessions, lambda n, _: say(f"{n}/{given.sessions} sessions of each"))))


if __name__ == "__main__":
    main()
