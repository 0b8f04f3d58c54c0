"""The peer pulsar-spark: the JVM connector, in a Spark 3.5 with a separate process and Python environment.

    PYTHON bench/pulsar_spark.py CORES        read topics named by lines of JSON, and answer each with its rate

The connector is loaded by its Maven coordinates when the session starts. Spark 4 cannot load it: it is for Scala 2.12.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

# Imported by Spark 3.5's Python, which has nothing else of this project.
SPARK: Final = "3.5.9"
CONNECTOR: Final = "io.streamnative.connectors:pulsar-spark-connector_2.12:3.1.1.4"
"""The newest on Maven Central."""

LABEL: Final = "pulsar-spark (Spark 3.5)"


class PulsarSpark:
    """Reads of topics with pulsar-spark; its Spark session stays for all runs with as many cores.

    Args:
        service_url: of the broker.
        admin_url: of the broker.
    """

    def __init__(self, service_url: str, admin_url: str) -> None:
        self._urls = {"service.url": service_url, "admin.url": admin_url}
        self._cores = 0
        self._process: subprocess.Popen[str] | None = None

    def read(self, topic: str, rows: int, cores: int) -> float:
        """Read a topic into the noop sink; return the rows per second.

        Raises:
            UnavailableError: Spark 3.5 or the connector cannot be downloaded.
            RuntimeError: other rows came than the topic has, or Spark failed.
        """
        from bench.runner import UnavailableError

        is_new = self._process is None or self._cores != cores
        if is_new:
            self.close()
            self._start(cores)
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - for mypy
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps({"options": self._urls | {"topic": topic}, "rows": rows}) + "\n")
            process.stdin.flush()
        for line in process.stdout:
            if line.startswith("{"):
                return float(json.loads(line)["value"])
        self.close()
        if is_new:
            raise UnavailableError(f"{CONNECTOR} does not run in Spark {SPARK}; what it wrote is above")
        raise RuntimeError("pulsar-spark's process has ended; what it wrote is above")

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=30)
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, cores: int) -> None:
        self._cores = cores
        python = _environment()
        self._process = subprocess.Popen(
            # Isolated: otherwise this folder's json.py would be imported.
            [str(python), "-I", __file__, str(cores)],
            env={**os.environ, "PYSPARK_PYTHON": str(python)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip


def _environment() -> Path:
    """Return the Python of an environment with Spark 3.5, which is made once.

    Raises:
        UnavailableError: it cannot be downloaded.
    """
    from bench.runner import UnavailableError
    from brokers.cache import cache_folder, exclusive

    folder = cache_folder() / f"pyspark-{SPARK}"
    python, made = folder / "bin" / "python", folder / "made"
    with exclusive(folder.name):
        if not made.exists():
            try:
                subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
                subprocess.run([str(python), "-m", "pip", "install", "--quiet", f"pyspark=={SPARK}"], check=True)
            except subprocess.CalledProcessError as error:
                raise UnavailableError(f"pyspark {SPARK} cannot be installed: {error}") from error
            made.touch()
    return python


def main() -> None:
    """Read the topics that standard input names."""
    from pyspark.sql import DataFrame, Observation, SparkSession
    from pyspark.sql import functions as sql

    spark = (
        SparkSession.builder.master(f"local[{sys.argv[1]}]")
        .appName("pulsar-spark bench")
        .config("spark.jars.packages", CONNECTOR)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    counted: set[str] = set()

    def move(rows: DataFrame) -> None:
        rows.write.format("noop").mode("overwrite").save()

    for line in sys.stdin:
        given: dict[str, Any] = json.loads(line)
        options, wanted = given["options"], given["rows"]
        seen = Observation()
        started = time.perf_counter()
        # The schema is read from the broker here: a part of the query, as in ours.
        rows = spark.read.format("pulsar").options(**options).load()
        if options["topic"] in counted:
            move(rows)
        else:
            # Only in the warm-up run: counting takes time, too.
            move(rows.observe(seen, sql.count(sql.lit(1)).alias("rows")))
            if seen.get["rows"] != wanted:
                raise RuntimeError(f"{seen.get['rows']} rows of {wanted} came of {options['topic']}")
            counted.add(options["topic"])
        print(json.dumps({"value": wanted / (time.perf_counter() - started)}), flush=True)


if __name__ == "__main__":
    main()
