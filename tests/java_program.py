"""A Java program behind a pipe: one JSON request a line, one JSON answer a line; started from its source."""

from __future__ import annotations

import json
import subprocess
import threading
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parent / "java"


class JavaProgram:
    """A program of `tests/java`, with the libraries of a distribution. Threads may send requests, one at a time.

    Args:
        source: its name.
        libraries: the folder of the jars.
        log: receives its standard error.
    """

    def __init__(self, source: str, libraries: Path, log: Path) -> None:
        self._log = log.open("wb")
        self._asking = threading.Lock()
        options = ["-Xmx768m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={log.parent}"]
        self._process = subprocess.Popen(
            ["java", *options, "-cp", f"{libraries}/*", SOURCES / source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )

    def close(self) -> None:
        """End the process: it ends by itself after the last request."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def ask(self, request: dict[str, Any]) -> Any:
        """Return the answer to one request.

        Raises:
            RuntimeError: the program failed, or ended.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._asking:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline() or '{"error": "the Java program ended"}')
        if "error" in answer:
            raise RuntimeError(f"the Java client: {answer['error']}; see {self._log.name}")
        return answer["ok"]
