"""A server of a folder's objects like an S3 server, but the kernel sends the bytes: sendfile(2).

A real store runs on other machines. A server that copies the bytes, on the same two cores, takes half as much processor
time as the worker, at the expense of the worker and of Spark.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Objects(BaseHTTPRequestHandler):
    """A handler of GET; signatures are not verified."""

    protocol_version = "HTTP/1.1"
    root: Path

    def do_GET(self) -> None:
        path = self.root / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            first, last = (int(asked[1]), min(int(asked[2]), size - 1)) if asked else (0, size - 1)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last + 1 - first))
            self.send_header("Last-Modified", self.date_time_string())
            self.send_header("ETag", f'"{size}"')
            self.end_headers()
            while first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last + 1 - first)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class' name
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    parent = 0

    def service_actions(self) -> None:
        if os.getppid() != self.parent:
            os._exit(1)  # the benchmark was killed


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[tuple[str, int]]:
    """Run a server of the buckets in a folder, in a separate process; return its URL and the process' id."""
    handler = type("_ObjectsOfFolder", (_Objects,), {"root": folder})
    with _Server(("127.0.0.1", 0), handler) as server:
        server.parent = os.getpid()
        process = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
        process.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", process.pid or 0
        finally:
            process.terminate()
            process.join()
