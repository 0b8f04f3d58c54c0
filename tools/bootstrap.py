"""Create a virtual environment with exactly one lock file's packages and this checkout, editable.

Needs only Python's standard library. Installs with uv, which pip installs at a pinned version. If uv cannot reach the
package index (pip reads settings that uv does not, such as a private index in pip.conf), pip installs everything,
slower.

    python3 tools/bootstrap.py .make/env requirements/dev.txt
    python3 tools/bootstrap.py --native .make/env              # only compile the hot module again
"""

from __future__ import annotations

import argparse
import compileall
import py_compile
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

UV_VERSION = "0.13.8"
MINIMUM_PYTHON = (3, 10)


def run(*command: str | Path) -> bool:
    """Run a command and show its output; return whether it succeeded."""
    print("+", *command, flush=True)
    return subprocess.run(command, check=False).returncode == 0


def install(environment: Path, lock: Path) -> None:
    """Create the environment if missing and install the lock file's packages.

    Raises:
        SystemExit: neither uv nor pip could install.
    """
    python = environment / "bin" / "python"
    if not python.exists():
        venv.create(environment, clear=environment.exists(), with_pip=True, symlinks=True)
    uv = environment / "bin" / "uv"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    with_uv = run(*pip, f"uv=={UV_VERSION}")
    # --python names the environment, so that uv never uses another, activated one.
    synced = with_uv and run(uv, "pip", "install", "--quiet", "--python", python, "-r", lock)
    if not synced and not run(*pip, "-r", lock):
        sys.exit(f"{environment}: the dependencies in {lock} could not be installed; pip's message above says why")
    for archive in environment.glob("lib/python*/site-packages/pyspark/python/lib/pyspark.zip"):
        compile_pyspark(archive)


def compile_pyspark(archive: Path) -> None:
    """Add compiled modules to the archive from which Spark's workers import pyspark: each start takes 0.4 s less."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(archive, folder)
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        # `legacy` puts them beside their sources, which an import from an archive requires.
        compileall.compile_dir(folder, stripdir=folder, legacy=True, quiet=1, invalidation_mode=unchecked)
        # uv links an installed file to its cache: it is replaced, not changed.
        made = shutil.make_archive(str(archive.with_suffix("")) + "-compiled", "zip", folder)
    Path(made).replace(archive)


def install_checkout(environment: Path) -> None:
    """Install this checkout editable, with its hot loops compiled in place.

    Raises:
        SystemExit: the build failed for a reason other than a missing C compiler (which only costs speed).
    """
    python = environment / "bin" / "python"
    # The build tools come from the lock, not from an isolated download.
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    if not run(*pip, "--no-build-isolation", "--editable", "."):
        sys.exit(f"{environment}: this checkout could not be installed; pip's message above says why")
    probe = "import spark_mq_source as s; print('spark-mq-source decodes with:', s.implementation())"
    subprocess.run([python, "-c", probe], check=False, stderr=subprocess.DEVNULL)


def main() -> None:
    """Parse the command line.

    Raises:
        SystemExit: the interpreter is too old, or an installation failed.
    """
    if sys.version_info < MINIMUM_PYTHON:
        wanted = ".".join(str(part) for part in MINIMUM_PYTHON)
        sys.exit(
            f"Python {wanted} or newer is needed, this is {sys.version.split()[0]}: make PYTHON=python{wanted} ..."
        )
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environment", type=Path)
    parser.add_argument("lock", type=Path, nargs="?")
    parser.add_argument("--native", action="store_true", help="install the checkout and compile its hot loops")
    arguments = parser.parse_args()
    if arguments.native:
        if shutil.which("cc") is None and shutil.which("gcc") is None:
            print("no C compiler found: the slower interpreted loops are used")
        install_checkout(arguments.environment)
    else:
        if arguments.lock is None:
            parser.error("a lock file is required")
        install(arguments.environment, arguments.lock)


if __name__ == "__main__":
    main()
