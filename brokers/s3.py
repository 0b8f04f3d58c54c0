"""An S3 server that serves the files of a folder fast: the Versity S3 Gateway, for measurements."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

from brokers.cache import go_program
from brokers.processes import ManagedProcess, free_ports, log_tail

if TYPE_CHECKING:
    from typing_extensions import Self

PACKAGE = "github.com/versity/versitygw/cmd/versitygw"
VERSION = "v1.8.0"
START_TIMEOUT_S = 30.0


class S3Gateway:
    """A server with one empty bucket.

    Args:
        folder: folder for the objects and the log.
        bucket: the bucket's name.

    Raises:
        RuntimeError: Go is missing or failed, or the server does not start.
    """

    def __init__(self, folder: Path, bucket: str) -> None:
        program = go_program(PACKAGE, VERSION)
        objects = folder / "objects"
        (objects / bucket).mkdir(parents=True)
        (port,) = free_ports(1)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        """The variables by which clients find it."""
        given = {
            "ROOT_ACCESS_KEY": "key",
            "ROOT_SECRET_KEY": self.environment["AWS_SECRET_ACCESS_KEY"],
            # As S3: by default this server ends each connection after an answer.
            "VGW_KEEP_ALIVE": "true",
        }
        log = folder / "s3.log"
        command: list[str | Path] = [program, "--port", f"127.0.0.1:{port}", "--quiet", "posix", objects]
        self._process = ManagedProcess(command, log=log, environment=given, folder=folder)
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
            except OSError:
                if time.monotonic() > deadline or not self._process.alive:
                    self._process.stop()
                    raise RuntimeError(f"the S3 server does not answer:\n{log_tail(log)}") from None
                time.sleep(0.05)
            else:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
