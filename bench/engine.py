"""Runs of this package's jobs, in Spark or without it: in this process, or in one with another commit's package.

    python -m bench.engine FOLDER     read jobs as JSON, a line each, and answer each with its sample

Of the package only public names and `core.ports` are used, so that most commits can be run.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from bench import sources
from spark_mq_source import implementation
from spark_mq_source.core.ports import TaskAttempt

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROOT: Final = Path(__file__).resolve().parent.parent
VALUE_ONLY: Final = "value binary"
ARROW_ROWS: Final = 10_000
"""The rows of one Arrow batch of Spark."""

Sample = dict[str, float]
"""Results of one run: `value` in the unit of its case, `worker_ns` (processor time of the Python processes that read or
write, a row), `jvm_ns` (that of Spark's JVM, in Spark), and other figures."""


@dataclass(frozen=True)
class Job:
    """Rows for this package, or the null source, to read or write.

    Attributes:
        verb: whether they are read or written.
        format: the data source's name.
        options: its options.
        rows: the number of rows to read or write.
        columns: those to read, as SQL; None for those of the format.
        file: Arrow batches to write (`value_file`).
        partitions: of the rows that are written.
        cores: of Spark; without Spark, processes.
        spark: whether Spark runs it.
        select: an expression that Spark computes of the rows read, as SQL; empty for none.
    """

    verb: Literal["read", "write"]
    format: str
    options: Mapping[str, str]
    rows: int
    columns: str | None = VALUE_ONLY
    file: str = ""
    partitions: int = 1
    cores: int = 1
    spark: bool = True
    select: str = ""


class Engine:
    """An engine that runs jobs in this process and its Spark session.

    Args:
        folder: for files of this run.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cores = 0

    def run(self, job: Job) -> Sample:
        """Run a job.

        Raises:
            RuntimeError: other rows were moved than the job has.
        """
        started = time.perf_counter()
        jvm_ns = 0
        if job.spark:
            dataframe = self._prepared(job)
            measured = self._folder / uuid.uuid4().hex
            measured.mkdir()
            jvm_ns = self._jvm_ns()
            started = time.perf_counter()
            self._move(job, dataframe, measured)
            seconds = time.perf_counter() - started
            jvm_ns = self._jvm_ns() - jvm_ns
            found = [json.loads(file.read_text()) for file in measured.iterdir()]
        else:
            found = self._alone(job)
            seconds = time.perf_counter() - started
        rows = sum(each["rows"] for each in found)
        if rows != job.rows:
            raise RuntimeError(f"{rows} rows of {job.rows} came: {job}")
        return {
            "value": rows / seconds,
            "worker_ns": sum(each["ns"] for each in found) / rows,
            "growth_mib": max(each["growth_bytes"] for each in found) / 2**20,
            "jvm_ns": jvm_ns / rows,
        }

    def session(self, cores: int) -> SparkSession:
        """Return a session with this many cores; stop an earlier one."""
        from pyspark.sql import SparkSession

        active = SparkSession.getActiveSession()
        if active is not None:
            if self._cores == cores:
                return active
            active.stop()
        # The workers import bench.sources.
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(ROOT))))
        os.environ["PYSPARK_PYTHON"] = sys.executable
        self._cores = cores
        spark = (
            SparkSession.builder.master(f"local[{cores}]")
            .appName("spark-mq-source bench")
            .config("spark.ui.enabled", "false")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.log.level", "ERROR")
            .config("spark.sql.warehouse.dir", str(self._folder / "warehouse"))
            .getOrCreate()
        )
        for source in (*sources.OURS.values(), sources.NullSource, sources.MeasuredSource):
            spark.dataSource.register(source)
        return spark

    def _jvm_ns(self) -> int:
        """Return the processor time that Spark's JVM has used so far."""
        gateway = self.session(self._cores).sparkContext._gateway
        return processor_ns(gateway.proc.pid if gateway else 0)

    def _prepared(self, job: Job) -> DataFrame | None:
        """Return the rows to write. This starts Spark's workers: Spark ends those that were idle for a minute."""
        file = value_file(self._folder, 8, 1)
        self._null(Job("read", "", {}, job.cores, file=file, partitions=job.cores, cores=job.cores)).write.format(
            "noop"
        ).mode("overwrite").save()
        return self._null(job) if job.verb == "write" else None

    def _null(self, job: Job) -> DataFrame:
        return (
            self.session(job.cores)
            .read.format("bench-null")
            .options(batches=job.file, rows=str(job.rows // job.partitions), partitions=str(job.partitions))
            .schema(VALUE_ONLY)
            .load()
        )

    def _move(self, job: Job, rows: DataFrame | None, measured: Path) -> None:
        options = {**job.options, "measuredFormat": job.format, "measuredFolder": str(measured)}
        if rows is not None:
            rows.write.format("bench-measured").options(**options).mode("append").save()
            return
        reader = self.session(job.cores).read.format("bench-measured").options(**options)
        found = (reader.schema(job.columns) if job.columns else reader).load()
        if job.select:
            found = found.selectExpr(job.select)
        found.write.format("noop").mode("overwrite").save()

    def _alone(self, job: Job) -> list[dict[str, float]]:
        format_ = sources.OURS[job.format]({}).format
        if job.verb == "write":
            return [_write_alone(job)]
        options = format_.parse_options(dict(job.options))
        read = partial(_read_alone, job.format, options)
        tasks = format_.plan(options, ())
        return list(_processes(job.cores).map(read, tasks) if job.cores > 1 else map(read, tasks))


def processor_ns(pid: int) -> int:
    """Return the processor time that a process has used so far; 0 without /proc."""
    stat = Path(f"/proc/{pid}/stat")
    if not stat.exists():
        return 0
    # utime and stime, the 14th and 15th field (proc(5)); the second one may contain spaces.
    user, system = stat.read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) * 10**9 // os.sysconf("SC_CLK_TCK")


def _read_alone(name: str, options: Any, task: Any) -> dict[str, float]:  # noqa: ANN401 - the format's own
    meter = sources.Meter()
    batches = sources.OURS[name]({}).format.read(options, task, pa.schema([("value", pa.binary())]))
    return meter.read(sum(batch.num_rows for batch in batches))


def _write_alone(job: Job) -> dict[str, float]:
    format_ = sources.OURS[job.format]({}).format
    batches = sources.load_once(job.file)
    schema = batches[0].schema
    options = format_.fit(format_.parse_write_options(dict(job.options), schema.names), schema)
    meter = sources.Meter()
    format_.write(options, islice(cycle(batches), job.rows // ARROW_ROWS), TaskAttempt(uuid.uuid4().hex))
    return meter.read(job.rows)


_POOLS: dict[int, ProcessPoolExecutor] = {}


def _processes(count: int) -> ProcessPoolExecutor:
    """Return processes that are kept, like Spark's workers: the warm-up run starts them."""
    if count not in _POOLS:
        _POOLS[count] = ProcessPoolExecutor(count, mp_context=get_context("spawn"))
    return _POOLS[count]


class OtherEngine:
    """An engine that runs jobs in a separate process, with the package of another folder.

    Args:
        tree: the folder: a checkout with its compiled modules.
        folder: for files of this run.

    Raises:
        RuntimeError: a job failed.
    """

    def __init__(self, tree: Path, folder: Path) -> None:
        paths = os.pathsep.join((str(tree / "src"), str(ROOT)))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bench.engine", str(folder)],
            env={**os.environ, "PYTHONPATH": paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        hello = self._answer()
        self.implementation, self.package = hello["implementation"], hello["package"]

    def run(self, job: Job) -> Sample:
        """As `Engine.run`."""
        assert self._process.stdin is not None  # noqa: S101 - for mypy
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        answer: Sample = self._answer()
        return answer

    def close(self) -> None:
        """End the process."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.communicate(timeout=30)
        self._process.kill()
        self._process.wait()

    def _answer(self) -> Any:  # noqa: ANN401 - JSON
        assert self._process.stdout is not None  # noqa: S101 - for mypy
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("the process that runs jobs has ended; what it wrote is above")


AnyEngine = Engine | OtherEngine


def timed(rows: int, work: Callable[[], object]) -> Sample:
    """Return the sample of a function in this process that moves rows."""
    started, busy = time.perf_counter(), time.process_time_ns()
    work()
    return {"value": rows / (time.perf_counter() - started), "worker_ns": (time.process_time_ns() - busy) / rows}


def value_file(folder: Path, value_bytes: int, batches: int = 16) -> str:
    """Return an Arrow file of batches as Spark passes them, with one column of JSON records; made once."""
    from bench.values import make_values

    path = folder / f"values-{value_bytes}-{batches}.arrow"
    if not path.exists():
        values = pa.table({"value": pa.array(make_values(value_bytes, batches * ARROW_ROWS), pa.binary())})
        with pa.ipc.new_file(path, values.schema) as out:
            out.write_table(values, max_chunksize=ARROW_ROWS)
    return str(path)


def jobs(lines: Iterator[str]) -> Iterator[Job]:
    """Yield the jobs in lines of JSON."""
    return (Job(**json.loads(line)) for line in lines)


def main() -> None:
    """Run the jobs of standard input."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    engine = Engine(folder)
    package = str(Path(sys.modules["spark_mq_source"].__file__ or "").parent)
    print(json.dumps({"implementation": implementation(), "package": package}), flush=True)
    for job in jobs(sys.stdin):
        print(json.dumps(engine.run(job)), flush=True)


if __name__ == "__main__":
    main()
