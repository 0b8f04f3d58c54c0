"""Builds of the compiled modules with assertions, and for the fuzzer with sanitizers, beside the installed ones."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHECKED = ROOT / "build" / "checked"
CHECKS = "spark_mq_source.core._checks"
"""A module that exists only in checked builds: see checks.pyx."""


def hot_modules() -> list[str]:
    """Return the names of all compiled modules."""
    return list(runpy.run_path(str(ROOT / "setup.py"), run_name="setup")["HOT_MODULES"])


def has_compiler() -> bool:
    return shutil.which("cc") is not None or shutil.which("gcc") is not None


def build(folder: Path = CHECKED, **environment: str) -> Path:
    """Build the modules that are older than their sources, with assertions; return the folder with the package.

    Raises:
        SystemExit: a build failed.
    """
    modules = folder / "lib"
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(modules)]
    command += ["--build-temp", str(folder / "temp")]
    environment = {**os.environ, **environment, "SPARK_MQ_SOURCE_CHECKED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}{done.stderr[-6000:]}")
    return modules


def use_modules(folder: Path) -> None:
    """Import the modules that `build` made instead of the installed ones, in this process."""
    names = [*hot_modules(), CHECKS]
    for package_name in dict.fromkeys(name.rpartition(".")[0] for name in names):
        package = import_module(package_name)
        package.__path__.insert(0, str(folder.joinpath(*package_name.split("."))))
    for name in names:
        module = import_module(name)
        assert str(module.__file__).startswith(str(folder)), f"{module.__file__} was imported too early"
    assert import_module(CHECKS).is_checked()
