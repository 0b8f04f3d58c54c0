"""The wheel as users install it: built from the sdist, which is built from a copy of the checkout."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.fix_spark import spark_environment

ROOT = Path(__file__).resolve().parents[2]
BUILD_TIMEOUT_S = 600.0
NOT_SOURCES = (".*", "build", "dist", "tests", "__pycache__", "*.egg-info", "*.so", "artifacts", "node_modules")


@dataclass(frozen=True)
class Distributions:
    """The results of `python -m build`."""

    sdist: Path
    wheel: Path


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """Build the sdist of a copy of the checkout, and the wheel of that sdist.

    A copy, because a build in the checkout would write into it, and use files of earlier builds there. The build
    tools are those of this environment: nothing is downloaded.
    """
    checkout = tmp_path_factory.mktemp("checkout") / "spark-mq-source"
    shutil.copytree(ROOT, checkout, ignore=shutil.ignore_patterns(*NOT_SOURCES))
    dist = checkout / "dist"
    done = subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", dist, checkout],
        env={**os.environ, "CFLAGS": "-O0 -g0"},  # a quarter of the time
        cwd=checkout.parent,
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return Distributions(sdist, wheel)


@dataclass(frozen=True)
class Environment:
    """A virtual environment."""

    folder: Path

    @property
    def python(self) -> Path:
        """The path of its interpreter."""
        return self.folder / "bin" / "python"

    def run(self, *arguments: str | Path, timeout_s: float = 600.0, **variables: str) -> str:
        """Run its interpreter with these arguments, away from the checkout; return its output."""
        mine = {"PYSPARK_PYTHON": str(self.python), "PYSPARK_DRIVER_PYTHON": str(self.python), "PYTHONPATH": ""}
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env={**os.environ, **spark_environment(), **mine, **variables},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
        return done.stdout


def new_environment(folder: Path) -> Environment:
    """Return an environment with the dependencies and without the package.

    pyspark alone is 450 MB, so the dependencies are those of this environment, by their path: a path that a .pth file
    adds is searched, but its own .pth files are ignored, and the editable install is one of those.
    """
    venv.create(folder, symlinks=True, with_pip=False)
    (own,) = folder.glob("lib/python*/site-packages")
    (own / "dependencies.pth").write_text("\n".join(site.getsitepackages()))
    environment = Environment(folder)
    found = environment.run("-c", "from importlib.util import find_spec; print(find_spec('spark_mq_source'))")
    assert found == "None\n", "the editable install must not be in reach"
    return environment


@pytest.fixture(scope="session")
def dependencies_only(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment without the package."""
    return new_environment(tmp_path_factory.mktemp("dependencies"))


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory, distributions: Distributions) -> Environment:
    """Return an environment with the wheel."""
    environment = new_environment(tmp_path_factory.mktemp("installed"))
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", environment.python),
            *("install", "--quiet", "--no-index", "--no-deps", "--ignore-installed", distributions.wheel),
        ],
        check=True,
        timeout=BUILD_TIMEOUT_S,
    )
    return environment
