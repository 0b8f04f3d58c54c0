"""Class-data archives: the classes of a Java program, parsed and verified once instead of at each start.

A JVM that maps such an archive needs about a third less processor time to start (JEP 350). The first start on a machine
records the classes; `ClassData.make` writes those that are loaded when the program is ready. Without an
archive, or with one that does not fit, a JVM starts as usual.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

MAKE_TIMEOUT_S = 120.0
QUIET = ("-Xlog:disable", "-Xlog:all=error:stderr")
"""Without a warning on standard output, which other programs parse, that an archive does not fit."""


def java() -> Path | None:
    """Return the `java` that broker scripts and Spark start; None if there is none."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home, "bin", "java")) if home else shutil.which("java")
    return Path(found).resolve() if found and Path(found).exists() else None


class ClassData:
    """The class-data archive of one program, in one environment.

    Args:
        folder: where archives are kept; created if missing.
        name: the program and its version.
        libraries: folders of its jars; an archive is valid only for the same files.
        flags: further flags of its JVM that an archive depends on, such as the garbage collector.

    Attributes:
        file: the archive, which need not exist.
    """

    def __init__(self, folder: Path, name: str, libraries: Iterable[Path], flags: Iterable[str] = ()) -> None:
        self._folder = folder
        self._name = name
        self._java = java()
        known = [str(self._java), *flags]
        files = sorted(file for library in libraries for file in library.glob("*.jar"))
        known += [f"{file} {stat.st_size} {stat.st_mtime_ns}" for file in files for stat in [file.stat()]]
        key = hashlib.sha256("\n".join(known).encode()).hexdigest()[:16]
        self.file = folder / f"{name}-{key}.jsa"

    def options(self, *, record: bool = False) -> list[str]:
        """Return the options of a JVM that map the archive; without one, those that record classes for `make`.

        Args:
            record: whether to record, which makes this start slower; otherwise there are no options without an archive.
        """
        if self.file.exists():
            options = ["-Xshare:auto", f"-XX:SharedArchiveFile={self.file}"]
        elif record:
            options = ["-XX:+IgnoreUnrecognizedVMOptions", "-XX:+RecordDynamicDumpInfo"]  # since Java 17
        else:
            return []
        return [*options, *QUIET]

    def make(self, pid: int) -> None:
        """Write the archive from a running program that was started with `options(record=True)`, if there is none.

        Only speed depends on it, so a failure is no error; the next start tries again.

        Args:
            pid: the id of its process, which must be a JVM: any other program would end.
        """
        if self._java is None or self.file.exists():
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(OSError, subprocess.SubprocessError),
            (self._folder / f"{self._name}.lock").open("w") as lock,
        ):
            # Another process that makes it right now raises BlockingIOError here.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self.file.exists():
                return
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=f".{self._name}-") as temporary:
                made = Path(temporary, "classes.jsa")
                dump = [str(self._java.with_name("jcmd")), str(pid), "VM.cds", "dynamic_dump", str(made)]
                subprocess.run(dump, check=True, capture_output=True, timeout=MAKE_TIMEOUT_S)
                for outdated in self._folder.glob(f"{self._name}-*.jsa"):
                    outdated.unlink()  # a JVM that has mapped it keeps it
                made.rename(self.file)
