"""Keeps what is downloaded once (broker distributions) in a folder outside the checkout, shared by all checkouts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"


def cache_folder() -> Path:
    """The folder of downloads, made if absent: SPARK_MQ_SOURCE_CACHE, else one in XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("SPARK_MQ_SOURCE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named) if named else Path(base) / "spark-mq-source"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Holds the cache's lock of this name; a second process waits. The lock goes with the process that held it."""
    with (cache_folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def unpacked_artifact(coordinates: str, *, top_folder: str, say: str) -> Path:
    """The unpacked folder of a tar.gz published under Maven coordinates, fetched the first time.

    Two processes may ask at once: one fetches, the other waits and finds it. A fetch that is cut short leaves nothing
    that looks complete.

    Args:
        coordinates: group:artifact:version:tar.gz:classifier.
        top_folder: the one folder in the archive; also its name in the cache.
        say: printed before the first, slow fetch.

    Raises:
        RuntimeError: Maven is absent or could not fetch; the message carries Maven's last lines.
    """
    folder = cache_folder() / top_folder
    if folder.is_dir():
        return folder
    with exclusive(top_folder):
        if folder.is_dir():  # another process was faster
            return folder
        print(say, flush=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=f".{top_folder}-") as temporary:
            archive = _fetch(coordinates, Path(temporary))
            with tarfile.open(archive) as packed:
                packed.extractall(temporary, filter="data")
            # The rename is what makes it visible, and it is atomic.
            (Path(temporary) / top_folder).rename(folder)
    return folder


def _fetch(coordinates: str, folder: Path) -> Path:
    """Copies one artifact into the folder through Maven, whose settings name the repository."""
    maven = shutil.which("mvn")
    if maven is None:
        msg = f"Maven (mvn) is needed to fetch {coordinates}, and it is not on PATH"
        raise RuntimeError(msg)
    done = subprocess.run(
        [maven, "-B", "-q", MAVEN_COPY, f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}"],
        cwd=folder,  # away from any pom.xml of the caller
        capture_output=True,
        text=True,
        check=False,
    )
    archives = list(folder.glob("*.tar.gz"))
    if done.returncode != 0 or len(archives) != 1:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        msg = f"Maven could not fetch {coordinates} (exit {done.returncode}):\n{tail}"
        raise RuntimeError(msg)
    return archives[0]
