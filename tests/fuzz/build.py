"""Build of the compiled modules with sanitizers and assertions, and of the fuzzer's C code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from tests import native
from tests.fuzz.worker import FOLDER

SANITIZERS = ("libasan.so", "libubsan.so")

OPTIONS = {
    # Python keeps memory until its end. An allocation beyond the bounds of the targets ends the process.
    "ASAN_OPTIONS": "detect_leaks=0:max_allocation_size_mb=256:hard_rss_limit_mb=2500:quarantine_size_mb=32:"
    "allocator_may_return_null=0:handle_abort=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # Objects and Arrow's memory are allocated separately, so that reading past one is detected.
    "PYTHONMALLOC": "malloc",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OMP_NUM_THREADS": "1",
}


class Build(NamedTuple):
    """The results of a build."""

    modules: Path
    """The folder with the instrumented package."""
    fuzzer: Path
    preload: str

    def environment(self) -> dict[str, str]:
        """Return the environment of a worker."""
        return os.environ | OPTIONS | {"LD_PRELOAD": self.preload, "SPARK_MQ_SOURCE_FUZZER": str(self.fuzzer)}


def build() -> Build:
    """Build all files that are older than their sources.

    Raises:
        SystemExit: a tool is missing, or a build failed.
    """
    compiler = shutil.which("gcc")
    if compiler is None:
        sys.exit("make fuzz needs gcc with its sanitizer libraries (Debian: apt-get install gcc); nothing was run")
    libraries = [_library(compiler, name) for name in SANITIZERS]
    FOLDER.mkdir(parents=True, exist_ok=True)
    fuzzer = FOLDER / "fuzzer.so"
    source = Path(__file__).with_name("fuzzer.c")
    if not fuzzer.exists() or fuzzer.stat().st_mtime < source.stat().st_mtime:
        _run(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", str(fuzzer), str(source))
    modules = native.build(FOLDER, SPARK_MQ_SOURCE_SANITIZE="1")
    return Build(modules, fuzzer, ":".join([*libraries, str(fuzzer)]))


def _library(compiler: str, name: str) -> str:
    found = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        sys.exit(f"make fuzz needs {name}, which {compiler} does not have (Debian: libgcc-*-dev); nothing was run")
    return path


def _run(*command: str) -> None:
    done = subprocess.run(command, cwd=native.ROOT, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-6000:]}")
