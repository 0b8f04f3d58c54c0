"""Fixtures of real Spark: a local session, Spark Connect, and a standalone cluster by the pip package's scripts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokers.class_data import ClassData
from brokers.processes import ManagedProcess, log_tail

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRELOADING = Path(__file__).with_name("preloading")
"""A folder whose `sitecustomize` Python finds: see there."""
CLUSTER_TIMEOUT_S = 90.0

SHORT_LIVED_JVM = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""It ends before better code pays off: compiling that would take a third of its time."""


def class_data() -> ClassData:
    """Return the archive of Spark's classes, which is in the environment of the pyspark that it is made from."""
    (pyspark,) = find_spec("pyspark").submodule_search_locations
    return ClassData(Path(sys.prefix, "class-data"), "spark", [Path(pyspark, "jars")], [SHORT_LIVED_JVM])


def spark_environment(*, record: bool = False) -> dict[str, str]:
    """Return the environment of every Spark process here: this interpreter on both sides, everything on loopback.

    Args:
        record: whether the driver records its classes if they have no archive yet.
    """
    temporary = f"-Djava.io.tmpdir={tempfile.gettempdir()}"  # a killed session leaves libraries and blocks there
    options = " ".join([SHORT_LIVED_JVM, temporary, *class_data().options(record=record)])
    return {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "127.0.0.1",
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LAUNCHER_OPTS": SHORT_LIVED_JVM,
        "SPARK_SUBMIT_OPTS": options,
        "SPARK_DAEMON_JAVA_OPTS": options,
    }


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yield one session with two task slots in this process's JVM, whose Python processes have the package imported.

    Otherwise the import takes most of the time of a failing plan or a starting query: each is a separate process.
    Sessions in separate drivers import it as users' sessions do.
    """
    os.environ.update(spark_environment())
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master("local[2]")
        .appName("spark-mq-source tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    )
    if find_spec("grpc") is not None:
        # As `remote("local")` starts it; its clients are in separate processes, see `spark_connect`.
        builder = (
            builder.config("spark.plugins", "org.apache.spark.sql.connect.SparkConnectPlugin")
            .config("spark.connect.grpc.binding.address", "127.0.0.1")
            .config("spark.connect.grpc.binding.port", "0")
        )
    with pytest.MonkeyPatch.context() as only_for_the_jvm:
        only_for_the_jvm.setenv("PYTHONPATH", str(PRELOADING), prepend=os.pathsep)
        # Only this session runs with the oldest dependencies, so recording would not pay off.
        record = "oldest" not in Path(sys.prefix).name
        only_for_the_jvm.setenv("SPARK_SUBMIT_OPTS", spark_environment(record=record)["SPARK_SUBMIT_OPTS"])
        session = builder.getOrCreate()
    if record:
        # The archive also has the classes that most queries need.
        session.range(10).selectExpr("cast(id AS string) AS text").groupBy("text").count().collect()
        class_data().make(session._jvm.java.lang.ProcessHandle.current().pid())
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


@dataclass
class ScriptResult:
    """The results of a script that ran in a separate process."""

    code: int
    output: str

    def last_json(self) -> object:
        """The last line of the output that is JSON: the scripts print their result there."""
        for line in reversed(self.output.splitlines()):
            try:
                return json.loads(line)
            except json.JSONDecodeError:
                continue
        pytest.fail(f"the script printed no JSON line:\n{self.output[-3000:]}")


def run_script(source: str, folder: Path, *arguments: str, timeout_s: float = 400.0) -> ScriptResult:
    """Run Python source in a fresh interpreter of this environment: see `run_program`."""
    script = folder / "script.py"
    script.write_text(source)
    return run_program(script, folder, *arguments, timeout_s=timeout_s)


def run_program(
    file: Path, folder: Path, *arguments: str, timeout_s: float, environment: Mapping[str, str] | None = None
) -> ScriptResult:
    """Run a Python file in a fresh interpreter of this environment, until it ends or kills itself.

    All processes of its group end with it, a Spark session's JVM included.
    """
    log = folder / f"{file.stem}.log"
    given = spark_environment() | dict(environment or {})
    process = ManagedProcess([sys.executable, file, *arguments], log=log, environment=given, folder=folder)
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{file.name} did not end in {timeout_s:.0f} s:\n{log_tail(log, 60)}")
    finally:
        process.kill()
    return ScriptResult(code, log.read_text(errors="replace"))


@pytest.fixture(scope="session")
def spark_connect_url(spark: SparkSession) -> str:
    """Return the address of the Spark Connect server in the JVM of `spark`. Each client has a separate session."""
    if find_spec("grpc") is None or find_spec("pandas") is None:
        pytest.skip("Spark Connect's own requirements (pyspark[connect]) are not in this environment")
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    return f"sc://127.0.0.1:{getattr(service, 'MODULE$').localPort()}"


@pytest.fixture
def spark_connect(spark_connect_url: str, tmp_path: Path) -> Callable[..., ScriptResult]:
    """Run a script under Spark Connect: `spark_connect(source, *arguments) -> ScriptResult`.

    The script finds `spark`, a session of the server. A separate process, because one process cannot have a classic
    session and one of Connect.
    """
    prologue = (
        "from pyspark.sql import SparkSession\n"
        f'spark = SparkSession.builder.remote("{spark_connect_url}").getOrCreate()\n'
    )
    return lambda source, *arguments: run_script(prologue + source, tmp_path, *arguments)


@dataclass
class SparkCluster:
    """A standalone master with workers of one core each, whose files are in `work-0`, `work-1` and so on."""

    master_url: str
    folder: Path
    workers: list[ManagedProcess]

    def run(self, source: str, *arguments: str, timeout_s: float = 400.0) -> ScriptResult:
        """Run a script as a driver of the cluster; it finds `spark`, a session on it."""
        prologue = (
            "from pyspark.sql import SparkSession\n"
            f'spark = (SparkSession.builder.master("{self.master_url}")\n'
            '    .config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")\n'
            '    .config("spark.driver.bindAddress", "127.0.0.1")\n'
            '    .config("spark.executor.memory", "512m").config("spark.driver.memory", "512m")\n'
            f'    .config("spark.executor.extraJavaOptions", "{spark_environment()["SPARK_DAEMON_JAVA_OPTS"]}")\n'
            '    .config("spark.sql.session.timeZone", "UTC").getOrCreate())\n'
        )
        return run_script(prologue + source, self.folder, *arguments, timeout_s=timeout_s)


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """Yield a standalone cluster of two workers."""
    with standalone_cluster(tmp_path_factory.mktemp("cluster"), 2) as cluster:
        yield cluster


@contextmanager
def standalone_cluster(tmp_path: Path, workers: int) -> Iterator[SparkCluster]:
    """Run a standalone cluster, with master and workers in separate JVMs."""
    (pyspark,) = find_spec("pyspark").submodule_search_locations
    spark_class = Path(pyspark, "bin", "spark-class")
    environment = spark_environment() | {"SPARK_DAEMON_MEMORY": "384m"}
    any_port = ("--port", "0", "--webui-port", "0")
    daemons: list[ManagedProcess] = []

    def start(name: str, daemon: str, host: str, *arguments: str) -> None:
        command = [spark_class, f"org.apache.spark.deploy.{daemon}", "--host", host, *any_port, *arguments]
        log = tmp_path / f"{name}.log"
        daemons.append(ManagedProcess(command, log=log, environment=environment, folder=tmp_path))

    try:
        start("master", "master.Master", "127.0.0.1")
        master_url = _wait_for_log(daemons[0], r"Starting Spark master at (spark://\S+)\n")
        status_url = _wait_for_log(daemons[0], r"Bound MasterWebUI to .* started at (http://\S+)\n")
        # Two names of this machine: Spark starts a speculative attempt only on another host than the first one.
        for number in range(workers):
            room = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"work-{number}"))
            host = "localhost" if number % 2 else "127.0.0.1"
            start(f"worker-{number}", "worker.Worker", host, *room, master_url)
        _wait_for_workers(f"{status_url}/json/", workers, daemons)
        yield SparkCluster(master_url, tmp_path, daemons[1:])
    finally:
        for daemon in reversed(daemons):
            daemon.kill()


def _wait_for_log(daemon: ManagedProcess, line: str) -> str:
    """Return the group of the first line in a log that matches."""
    deadline = time.monotonic() + CLUSTER_TIMEOUT_S
    while time.monotonic() < deadline:
        if found := re.search(line, daemon.log.read_text()):
            return found[1]
        if not daemon.alive:
            break
        time.sleep(0.1)  # the log is the only indication
    pytest.fail(f"no line {line!r}:\n{log_tail(daemon.log)}")


def _wait_for_workers(status_url: str, count: int, daemons: list[ManagedProcess]) -> None:
    deadline = time.monotonic() + CLUSTER_TIMEOUT_S
    alive = 0
    while time.monotonic() < deadline:
        ended = [daemon for daemon in daemons if not daemon.alive]
        if ended:
            pytest.fail(f"{ended[0].command[1]} ended while starting:\n{log_tail(ended[0].log)}")
        try:
            with urllib.request.urlopen(status_url, timeout=5) as answer:  # noqa: S310 - a literal http address
                workers = json.load(answer)["workers"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            workers = []
        alive = sum(worker["state"] == "ALIVE" for worker in workers)
        if alive == count:
            return
        time.sleep(0.2)  # the master's status page is the only indication
    pytest.fail(f"{alive} of {count} workers registered in {CLUSTER_TIMEOUT_S:.0f} s:\n{log_tail(daemons[0].log)}")
