"""A cache of downloads (broker distributions) outside the checkout, shared by all checkouts."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

MAVEN_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy"
MAVEN_DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
MAVEN_INSTALL = "org.apache.maven.plugins:maven-install-plugin:3.1.1:install-file"


def cache_folder() -> Path:
    """Return the cache folder, created if missing: SPARK_MQ_SOURCE_CACHE, or a folder in XDG_CACHE_HOME or ~/.cache."""
    named = os.environ.get("SPARK_MQ_SOURCE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(named) if named else Path(base) / "spark-mq-source"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Hold the cache's lock of this name; other processes wait. The lock ends with its process.

    The time counts for no alarm, such as that of pytest-timeout: a download takes as long as the network needs.
    """
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        with (cache_folder() / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)


def unpacked_artifact(
    coordinates: str, *, say: str, top_folder: str = "", folder_name: str = "", parent: str = ""
) -> Path:
    """Return the unpacked folder of a tar.gz or jar with Maven coordinates, downloaded once.

    Safe for concurrent processes: one downloads, the others wait. An interrupted download leaves no folder.

    Args:
        coordinates: group:artifact:version:type:classifier; the type is tar.gz or jar.
        say: text to print before the download.
        top_folder: the single folder in the archive; also its name in the cache.
        folder_name: the name in the cache of an archive without such a folder.
        parent: coordinates (group:artifact:version) of the artifact's parent, for repositories that lack it.

    Raises:
        RuntimeError: Maven is missing or failed; with the end of its output.
    """
    folder = cache_folder() / (folder_name or top_folder)
    if folder.is_dir():
        return folder
    with exclusive(folder.name):
        if folder.is_dir():  # downloaded by another process
            return folder
        print(say, flush=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=f".{folder.name}-") as temporary:
            archive = _fetch(coordinates, Path(temporary), parent)
            unpacked = Path(temporary) / "unpacked"
            if archive.suffix == ".jar":
                shutil.unpack_archive(archive, unpacked, "zip")
            else:
                with tarfile.open(archive) as packed:
                    # Python 3.11.2, Debian's, has no filters.
                    packed.extraction_filter = getattr(tarfile, "data_filter", None)
                    packed.extractall(unpacked)  # noqa: S202 - with the filter where there is one
            # The atomic rename makes it visible.
            (unpacked / top_folder).rename(folder)
    return folder


def artifact(coordinates: str, *, say: str) -> Path:
    """Return one file with Maven coordinates (group:artifact:version:type), downloaded once.

    Raises:
        RuntimeError: Maven is missing or failed; with the end of its output.
    """
    _, name, version, kind = coordinates.split(":")
    file = cache_folder() / f"{name}-{version}.{kind}"
    if file.is_file():
        return file
    with exclusive(file.name):
        if file.is_file():  # downloaded by another process
            return file
        print(say, flush=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=f".{file.name}-") as temporary:
            _fetch(coordinates, Path(temporary)).rename(file)
    return file


def artifact_with_dependencies(coordinates: str, *, say: str) -> Path:
    """Return a folder with the jar of Maven coordinates (group:artifact:version) and all its dependencies.

    Raises:
        RuntimeError: Maven is missing or failed; with the end of its output.
    """
    group, name, version = coordinates.split(":")
    folder = cache_folder() / f"{name}-{version}-with-dependencies"
    if folder.is_dir():
        return folder
    with exclusive(folder.name):
        if folder.is_dir():  # downloaded by another process
            return folder
        print(say, flush=True)
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix=f".{folder.name}-") as temporary:
            Path(temporary, "pom.xml").write_text(
                "<project><modelVersion>4.0.0</modelVersion><groupId>any</groupId><artifactId>any</artifactId>"
                f"<version>1</version><dependencies><dependency><groupId>{group}</groupId><artifactId>{name}"
                f"</artifactId><version>{version}</version></dependency></dependencies></project>\n"
            )
            jars = Path(temporary) / "jars"
            done = _maven([MAVEN_DEPENDENCIES, f"-DoutputDirectory={jars}"], Path(temporary))
            if done.returncode != 0:
                tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
                raise RuntimeError(f"Maven could not fetch {coordinates} (exit {done.returncode}):\n{tail}")
            jars.rename(folder)
    return folder


def go_program(package: str, version: str) -> Path:
    """Return a program that a Go package contains, compiled once.

    Raises:
        RuntimeError: there is no Go toolchain, or it failed; with the end of its output.
    """
    name = package.rpartition("/")[2]
    file = cache_folder() / f"{name}-{version}" / name
    with exclusive(file.parent.name):
        if file.is_file():
            return file
        go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
        if go is None:
            raise RuntimeError(f"Go (go) is needed to compile {name}, but it is not on PATH")
        print(f"Compiling {name} {version} (minutes, once) ...", flush=True)
        environment = {**os.environ, "GOBIN": str(file.parent)}
        command = [go, "install", f"{package}@{version}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            tail = "\n".join(done.stderr.splitlines()[-15:])
            raise RuntimeError(f"Go could not compile {package} (exit {done.returncode}):\n{tail}")
    return file


def _fetch(coordinates: str, folder: Path, parent: str = "") -> Path:
    """Copy one artifact into the folder with Maven, whose settings contain the repository."""
    kind = coordinates.split(":")[3]
    copy = [MAVEN_COPY, f"-Dartifact={coordinates}", f"-DoutputDirectory={folder}"]
    done = _maven(copy, folder)
    if done.returncode != 0 and parent:
        group, name, version = parent.split(":")
        if f"{group}:{name}:pom:{version}" in done.stdout:
            stub = folder / "parent.xml"
            stub.write_text(
                "<project><modelVersion>4.0.0</modelVersion><packaging>pom</packaging>"
                f"<groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></project>\n"
            )
            _maven([MAVEN_INSTALL, f"-Dfile={stub}", f"-DpomFile={stub}"], folder)
            done = _maven(copy, folder)
    found = list(folder.glob(f"*.{kind}"))
    if done.returncode != 0 or len(found) != 1:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RuntimeError(f"Maven could not fetch {coordinates} (exit {done.returncode}):\n{tail}")
    return found[0]


def _maven(arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    maven = shutil.which("mvn")
    if maven is None:
        raise RuntimeError("Maven (mvn) is needed to download brokers, but it is not on PATH")
    return subprocess.run(
        [maven, "-B", "-q", *arguments],
        cwd=folder,  # without a pom.xml
        capture_output=True,
        text=True,
        check=False,
    )
