"""A long run: a writer and two streaming queries on a broker that unloads and dies; their resources must not grow.

    python -m bench.endurance --minutes 60 --output FILE    run it, and write samples and results as JSON
    python -m bench.endurance drive FOLDER URL QUERIES      the Spark driver of such a run
    python -m bench.endurance write FOLDER URL ROWS SECONDS the writer of such a run

The writer writes some rows a second exactly once. One query reads them by offsets, pinned by a subscription, as fast
as triggers follow each other; the other reads them as a queue with `walDir`. Each writes the numbers of a micro-batch
into a file named after the micro-batch, so that a repeated one replaces its file. In the end all numbers of each
query are sorted and compared with the written ones.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from bench import report
from brokers.pulsar import SMALL_JVM, VERSION, PulsarStandalone
from brokers.pulsar_admin import AdminError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NAMESPACE: Final = "public/endurance"
TOPIC: Final = f"persistent://{NAMESPACE}/rows"
PARTITIONS: Final = 2
VALUE_BYTES: Final = 100
SAMPLE_SECONDS: Final = 10.0
KEPT_SAMPLES: Final = 100
QUERIES: Final = {"offsets": "0 seconds", "queue": "5 seconds"}
"""The queries and their trigger intervals."""
SUBSCRIPTIONS: Final = {"offsets": "pin", "queue": "queue"}
PATIENCE: Final = "300s"
"""Longer than a broker needs to start again on a busy machine."""
SETTINGS: Final = {
    "managedLedgerMaxEntriesPerLedger": "2000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "retentionCheckIntervalInSeconds": "30",
}
"""Many small ledgers, which are deleted soon after they were read."""
MAX_ROWS: Final = 400_000
PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def options(url: str, **more: str) -> dict[str, str]:
    """Return the options of all three."""
    return {"serviceUrl": url, "topic": TOPIC, "operationTimeout": PATIENCE, **more}


def read_options(url: str, **more: str) -> dict[str, str]:
    """Return the options of both queries: the driver collects the numbers of a micro-batch, so these are limited."""
    return options(url, maxRowsPerTrigger=str(MAX_ROWS), **more)


# -- the writer


def write(folder: Path, url: str, rows_each: int, seconds: float) -> None:
    """Write `rows_each` rows every `seconds` until a file `stop` exists, and keep their number in `written`."""
    from spark_mq_source.core.errors import MQSourceError
    from spark_mq_source.core.ports import TaskAttempt
    from spark_mq_source.pulsar.format import PulsarFormat

    door, schema = PulsarFormat(), pa.schema({"value": pa.binary()})
    given = options(url, deliveryGuarantee="exactly-once", batchingMaxMessages="1000")
    fitted = door.fit(door.parse_write_options({k.lower(): v for k, v in given.items()}, schema.names), schema)
    failures, batch_id, started = 0, 0, time.monotonic()
    while not (folder / "stop").exists():
        rows = [_numbered(batch_id * rows_each, rows_each)]
        for attempt in range(1000):
            try:
                task = TaskAttempt("endurance", batch_id, 0, attempt, batch_id << 10 | attempt)
                door.commit(fitted, [door.write(fitted, iter(rows), task)])
                break
            except (MQSourceError, OSError) as error:
                failures += 1
                print(f"attempt {attempt} of batch {batch_id}: {error}", flush=True)
                time.sleep(1)
        batch_id += 1
        (folder / "written.new").write_text(json.dumps({"rows": batch_id * rows_each, "failures": failures}))
        (folder / "written.new").rename(folder / "written")
        time.sleep(max(0.0, started + batch_id * seconds - time.monotonic()))


def _numbered(first: int, count: int) -> pa.RecordBatch:
    """Return values that begin with their number: eight bytes, big-endian."""
    values = np.zeros(count, [("number", ">i8"), ("rest", f"S{VALUE_BYTES - 8}")])
    values["number"] = np.arange(first, first + count)
    values["rest"] = b"x" * (VALUE_BYTES - 8)
    offsets = np.arange(0, (count + 1) * VALUE_BYTES, VALUE_BYTES, dtype=np.int32)
    array = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(values.tobytes())])
    return pa.record_batch([array], names=["value"])


# -- the driver


def drive(folder: Path, url: str, names: Sequence[str]) -> None:
    """Run the queries until a file `enough` exists; start a failed one again."""
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2,4]")
        .appName("spark-mq-source endurance")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "700m")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    given = {
        "offsets": read_options(url, subscription=SUBSCRIPTIONS["offsets"], startingOffsets="earliest"),
        "queue": read_options(
            url, subscription=SUBSCRIPTIONS["queue"], subscriptionType="shared", initialPosition="earliest",
            walDir=str(folder / "wal"), idleTimeout="1s",
        ),
    }  # fmt: skip
    queries: dict[str, Any] = {}
    restarts = dict.fromkeys(names, 0)
    while True:
        for name in names:
            query = queries.get(name)
            if query is not None and query.isActive:
                continue
            if any(one.isActive and not one.recentProgress for one in queries.values()):
                continue  # one at a time: Spark waits ten seconds for its Python process, even on a busy machine
            if query is not None:
                restarts[name] += 1
                print(f"{name} ended: {query.exception()}", flush=True)
            queries[name] = (
                spark.readStream.format("pulsar-native").options(**given[name]).schema("value binary").load()
                .selectExpr("substring(value, 1, 8) AS number")
                .writeStream.foreachBatch(_sink(folder / f"numbers-{name}"))
                .option("checkpointLocation", str(folder / f"checkpoint-{name}"))
                .trigger(processingTime=QUERIES[name]).start()
            )  # fmt: skip
        (folder / "restarts").write_text(json.dumps(restarts))
        if (folder / "enough").exists():
            break
        time.sleep(1)
    for query in queries.values():
        query.stop()
    spark.stop()


def _sink(folder: Path) -> Any:  # noqa: ANN401 - the function that Spark wants
    folder.mkdir(exist_ok=True)

    def take(rows: DataFrame, batch_id: int) -> None:
        numbers = rows.toArrow()["number"].combine_chunks()
        data = numbers.buffers()[2] if len(numbers) else b""
        temporary = folder / f"{batch_id}.new"
        temporary.write_bytes(np.frombuffer(data, ">i8", len(numbers)).astype("<u4").tobytes())
        temporary.rename(folder / f"{batch_id}")

    return take


# -- the samples


@dataclass
class Run:
    """A run and its samples.

    Attributes:
        folder: for all its files.
        rate: rows that are written each second.
        every: seconds between two writes.
        queries: the names of the queries.
        samples: one every ten seconds.
        faults: the time of each, in seconds from the start, and its kind.
    """

    folder: Path
    rate: int
    every: float
    queries: Sequence[str]
    samples: list[dict[str, float]] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)

    def run(self, minutes: float, batches: int, unload_s: float, kill_s: float) -> dict[str, Any]:
        """Run for `minutes`, and until the query by offsets has had `batches` micro-batches; return the results."""
        with PulsarStandalone(self.folder / "broker", overrides=SETTINGS, jvm=dict(SMALL_JVM)) as broker:
            broker.admin.create_namespace(NAMESPACE, keep_data=False)
            broker.admin.set_deduplication(NAMESPACE, enabled=True)
            broker.admin.create_topic(TOPIC, PARTITIONS)
            # Before a row is written: the other query's reads let the broker delete rows that this one has not read.
            for name in self.queries:
                broker.admin.request("PUT", f"persistent/{NAMESPACE}/rows/subscription/{SUBSCRIPTIONS[name]}")
            url = broker.service_url
            with (
                _program("write", self.folder, url, str(round(self.rate * self.every)), str(self.every)) as writer,
                _program("drive", self.folder, url, *self.queries) as driver,
            ):
                started = time.monotonic()
                due = {"unload": unload_s, "kill": kill_s}
                while (at := time.monotonic() - started) < minutes * 60 or self._last("offsets_batches") < batches:
                    for kind, every in (("unload", unload_s), ("kill", kill_s)):
                        if at >= due[kind]:
                            due[kind] = at + every
                            self._inject(kind, at, broker)
                    self._sample(at, driver.pid, writer.pid)
                    for one in (driver, writer):
                        if one.poll() is not None:
                            raise RuntimeError(f"process {one.pid} ended by itself; see {self.folder}")
                    time.sleep(SAMPLE_SECONDS)
                (self.folder / "stop").touch()
                writer.wait(600)
                written = json.loads((self.folder / "written").read_text())
                while any(self._read_so_far(name) < written["rows"] for name in self.queries):
                    self._sample(time.monotonic() - started, driver.pid, None)
                    time.sleep(SAMPLE_SECONDS)
                    if driver.poll() is not None:
                        raise RuntimeError(f"the driver ended by itself; see {self.folder}")
                (self.folder / "enough").touch()
                driver.wait(120)
        # The final reads, as fast as possible, are no steady state.
        steady = [one for one in self.samples if one["writer_mib"]]
        return {
            "machine": report.describe_machine(f"Pulsar {VERSION}"),
            "minutes": round(steady[-1]["seconds"] / 60, 1),
            "written": written,
            "restarts": json.loads((self.folder / "restarts").read_text()),
            "faults": self.faults,
            "queries": {name: self._compared(name, written["rows"]) for name in self.queries},
            "growth_per_hour": {name: slope for name in _FLAT if (slope := growth(steady, name)) is not None},
            "samples": steady[:: max(1, len(steady) // KEPT_SAMPLES)],
        }

    def _last(self, name: str) -> float:
        return self.samples[-1][name] if self.samples else 0.0

    def _inject(self, kind: str, at: float, broker: PulsarStandalone) -> None:
        self.faults.append((round(at), kind))
        if kind == "kill":
            broker.restart(crash=True)
            return
        with contextlib.suppress(AdminError):
            broker.admin.unload(f"{TOPIC}-partition-{len(self.faults) % PARTITIONS}")

    def _sample(self, at: float, driver: int, writer: int | None) -> None:
        parents = _parents()
        processes = _below(driver, parents)
        jvms = [pid for pid in processes if _name(pid) == "java"]
        workers = [pid for pid in processes if pid not in jvms and pid != driver]
        found: dict[str, float] = {"seconds": round(at, 1)}
        writers = [] if writer is None else [writer]
        for name, pids in (("driver", [driver]), ("jvm", jvms), ("workers", workers), ("writer", writers)):
            each = [usage for pid in pids if (usage := _usage(pid)) is not None]
            found |= {f"{name}_{key}": sum(usage[key] for usage in each) for key in ("mib", "files", "threads")}
        found["processes"] = len(workers)
        for name in self.queries:
            files, size = _size_of(self.folder / f"checkpoint-{name}")
            found |= {f"{name}_checkpoint_files": files, f"{name}_checkpoint_mib": size / 2**20}
            found[f"{name}_batches"] = _batches(self.folder / f"numbers-{name}")
            found[f"{name}_rows"] = self._read_so_far(name)
        files, size = _size_of(self.folder / "wal")
        found |= {"wal_files": files, "wal_mib": size / 2**20}
        self.samples.append({name: round(value, 2) for name, value in found.items()})
        with (self.folder / "samples").open("a") as out:
            out.write(json.dumps(self.samples[-1]) + "\n")

    def _read_so_far(self, name: str) -> int:
        with os.scandir(self.folder / f"numbers-{name}") as found:
            return sum(_bytes_of(entry) for entry in found if not entry.name.endswith(".new")) // 4

    def _compared(self, name: str, rows: int) -> dict[str, Any]:
        folder = self.folder / f"numbers-{name}"
        files = sorted((file for file in folder.iterdir() if file.suffix != ".new"), key=lambda file: int(file.name))
        numbers = np.concatenate([np.fromfile(file, "<u4") for file in files])
        times = np.bincount(numbers, minlength=rows)
        return {
            "batches": len(files),
            "rows": len(numbers),
            "missing": int((times == 0).sum()),
            "twice": int((times > 1).sum()),
        }


_FLAT: Final = (
    "driver_mib", "driver_files", "driver_threads", "jvm_mib", "jvm_files", "jvm_threads", "workers_mib",
    "workers_files", "workers_threads", "writer_mib", "writer_files", "writer_threads", "offsets_checkpoint_files",
    "offsets_checkpoint_mib", "queue_checkpoint_files", "queue_checkpoint_mib", "wal_files", "wal_mib",
)  # fmt: skip


def growth(samples: Iterable[dict[str, float]], name: str) -> dict[str, float] | None:
    """Return the growth of a figure in an hour, by a straight line through the second half of a run, and its median.

    Example:
        >>> growth([{"seconds": 36.0 * n, "wal_mib": 5.0 + n} for n in range(10)], "wal_mib")
        {'median': 12.0, 'per_hour': 100.0}
    """
    found = [(one["seconds"], one[name]) for one in samples if one.get(name)]
    found = [(at, value) for at, value in found if at >= found[-1][0] / 2]
    if len(found) < 3:
        return None
    fit = linear_regression(*zip(*found, strict=True))
    return {"median": round(median(value for _, value in found), 2), "per_hour": round(fit.slope * 3600, 2)}


@contextlib.contextmanager
def _program(verb: str, folder: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / f"{verb}.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.endurance", verb, str(folder), *arguments],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _parents() -> dict[int, int]:
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                found[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return found


def _below(top: int, parents: dict[int, int]) -> list[int]:
    found = [top]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _usage(pid: int) -> dict[str, float] | None:
    """Return resident memory, open files and threads of a process; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        files = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    threads = re.search(r"Threads:\s+(\d+)", status)
    return {"mib": pages * PAGE / 2**20, "files": files, "threads": int(threads[1]) if threads else 0}


def _size_of(folder: Path) -> tuple[int, int]:
    """Return the number of files below a folder, and their bytes."""
    sizes = [
        size
        for at, _, names in os.walk(folder)
        for size in (_bytes_of(Path(at) / name) for name in names)
        if size is not None
    ]
    return len(sizes), sum(sizes)


def _bytes_of(entry: os.DirEntry[str] | Path) -> int:
    with contextlib.suppress(OSError):
        return entry.stat().st_size
    return 0


def _batches(folder: Path) -> int:
    """Return the number of micro-batches that have written their files."""
    return sum(one.name.isdigit() for one in folder.iterdir())


def main() -> None:
    """Run the command line's command."""
    if sys.argv[1:2] == ["write"]:
        write(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
        return
    if sys.argv[1:2] == ["drive"]:
        drive(Path(sys.argv[2]), sys.argv[3], sys.argv[4:])
        return
    parser = argparse.ArgumentParser(prog="python -m bench.endurance", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--batches", type=int, default=0, help="micro-batches of the query by offsets, at least")
    parser.add_argument("--rate", type=int, default=20_000, help="rows written each second")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two writes")
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES))
    parser.add_argument("--unload", type=float, default=60, help="seconds between two unloads")
    parser.add_argument("--kill", type=float, default=600, help="seconds between two kills of the broker")
    parser.add_argument("--folder", type=Path, required=True, help="for all files of the run")
    parser.add_argument("--output", type=Path, help="where the results are written")
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    for name in given.queries:
        (given.folder / f"numbers-{name}").mkdir()
    found = Run(given.folder, given.rate, given.every, given.queries).run(
        given.minutes, given.batches, given.unload, given.kill
    )
    text = json.dumps(found)
    (given.output or given.folder / "results.json").write_text(text.replace("{", "\n{") + "\n")
    print(json.dumps({name: one for name, one in found.items() if name != "samples"}, indent=1))


if __name__ == "__main__":
    main()
