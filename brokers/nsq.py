"""nsqd and nsqlookupd as processes, if they are on PATH: the reference for the embedded broker."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from brokers.processes import ManagedProcess, free_ports, log_tail
from spark_mq_source.testing import AuthorizedClient, AuthRequest
from spark_mq_source.testing.settings import Authorize

if TYPE_CHECKING:
    from typing_extensions import Self

START_TIMEOUT_S = 30.0


def nsqd_on_path() -> bool:
    """Return whether both programs are on PATH."""
    return shutil.which("nsqd") is not None and shutil.which("nsqlookupd") is not None


class NsqlookupdProcess:
    """One nsqlookupd.

    Args:
        folder: folder for its log.
        tcp_port: for both ports, None selects a free one.
        http_port: port of the HTTP interface.
    """

    def __init__(self, folder: Path, *, tcp_port: int | None = None, http_port: int | None = None) -> None:
        self.folder = folder
        self.log = folder / "nsqlookupd.log"
        free = free_ports(2)
        self.tcp_address = f"127.0.0.1:{tcp_port or free[0]}"
        self.http_address = f"127.0.0.1:{http_port or free[1]}"
        self._process: ManagedProcess | None = None

    def command(self) -> list[str]:
        """Return its command line."""
        program = shutil.which("nsqlookupd") or "nsqlookupd"
        return [program, f"-tcp-address={self.tcp_address}", f"-http-address={self.http_address}"]

    def start(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            RuntimeError: it ended, or does not answer; with the end of the log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._process = ManagedProcess(self.command(), log=self.log, folder=self.folder)
        wait_until_answering(self.http_address, self.log, lambda: self._process is not None and self._process.alive)
        return self

    @property
    def is_running(self) -> bool:
        """Whether it was started and not ended."""
        return self._process is not None

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.stop()
            self._process = None


class NsqdProcess:
    """One nsqd with its own data, and its own nsqlookupd unless one is given.

    Args:
        folder: folder for its data and logs.
        lookupd: one or more nsqlookupd to register with.
        tcp_port: for both ports, None selects a free one.
        http_port: port of the HTTP interface.
        settings: as for `spark_mq_source.testing.NsqBroker`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        lookupd: NsqlookupdProcess | Sequence[NsqlookupdProcess] | None = None,
        tcp_port: int | None = None,
        http_port: int | None = None,
        **settings: Any,  # noqa: ANN401 - flags of any type
    ) -> None:
        self.folder = folder
        self.log = folder / "nsqd.log"
        self._own_lookupd = lookupd is None
        if lookupd is None or isinstance(lookupd, NsqlookupdProcess):
            lookupd = [lookupd or NsqlookupdProcess(folder / "lookupd")]
        self.lookupds = list(lookupd)
        self._authorize: Authorize | None = settings.pop("authorize", None)
        self._settings: dict[str, Any] = {"broadcast_address": "127.0.0.1", **settings}
        free = free_ports(3)
        self.tcp_port = tcp_port or free[0]
        self.http_port = http_port or free[1]
        self.https_port = free[2]
        self._process: ManagedProcess | None = None
        self._authorizer: ThreadingHTTPServer | None = None

    @property
    def tcp_address(self) -> str:
        """The address for clients, as `host:port`."""
        return f"127.0.0.1:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        """The address of the HTTP interface, as `host:port`."""
        return f"127.0.0.1:{self.http_port}"

    @property
    def https_address(self) -> str:
        """The address of the HTTPS interface, if there is a certificate."""
        return f"127.0.0.1:{self.https_port}"

    @property
    def lookupd_address(self) -> str:
        """The HTTP address of its first nsqlookupd, as `host:port`."""
        return self.lookupds[0].http_address

    def command(self) -> list[str]:
        """Return its command line."""
        flags = {
            "tcp_address": self.tcp_address,
            "http_address": self.http_address,
            "https_address": self.https_address,
            "data_path": self.folder,
            "lookupd_tcp_address": [lookupd.tcp_address for lookupd in self.lookupds],
            **self._settings,
        }
        if self._authorizer is not None:
            flags["auth_http_address"] = f"127.0.0.1:{self._authorizer.server_address[1]}"
        return [shutil.which("nsqd") or "nsqd", *(one for name, value in flags.items() for one in _flags(name, value))]

    def start(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            RuntimeError: it ended, or does not answer; with the end of the log.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._own_lookupd:
            self.lookupds[0].start()
        if self._authorize is not None:
            self._authorizer = _authorization_server(self._authorize)
        self._process = ManagedProcess(self.command(), log=self.log, folder=self.folder)
        wait_until_answering(self.http_address, self.log, lambda: self._process is not None and self._process.alive)
        self._wait_until_registered()
        return self

    def _wait_until_registered(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        registered = f'"tcp_port":{self.tcp_port},'
        while not all(registered in _get(one.http_address, "/nodes") for one in self.lookupds if one.is_running):
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"nsqd did not register with nsqlookupd; the end of {self.log}:\n{log_tail(self.log)}"
                )
            time.sleep(0.02)  # there is no event for it

    def stop(self) -> None:
        """Stop it cleanly; its messages are on disk."""
        if self._process is not None:
            self._process.stop()
        self._close()

    def crash(self) -> None:
        """Kill it; messages in memory are lost."""
        if self._process is not None:
            self._process.kill()
        self._close()

    def restart(self, *, crash: bool = False) -> None:
        """Stop or kill it, and start it again with the same data and ports.

        Raises:
            RuntimeError: it did not start.
        """
        if crash:
            self.crash()
        else:
            self.stop()
        self.start()

    def _close(self) -> None:
        self._process = None
        if self._own_lookupd:
            self.lookupds[0].stop()
        if self._authorizer is not None:
            self._authorizer.shutdown()
            self._authorizer.server_close()
            self._authorizer = None


def wait_until_answering(http_address: str, log: Path, still_alive: Callable[[], bool]) -> None:
    """Wait until a daemon answers /ping.

    Raises:
        RuntimeError: it ended, or does not answer; with the end of the log.
    """
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if not still_alive():
            break
        try:
            answer = _get(http_address, "/ping")
            if answer == "OK" or "TLS_REQUIRED" in answer:
                return
        except OSError:
            time.sleep(0.02)  # not listening yet; there is no event for it
    raise RuntimeError(f"no answer from {http_address}; the end of {log}:\n{log_tail(log)}")


def _get(http_address: str, path: str) -> str:
    connection = http.client.HTTPConnection(http_address, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _flags(name: str, value: object) -> list[str]:
    if isinstance(value, list):
        return [flag for one in value for flag in _flags(name, one)]
    if name.endswith("_ms"):
        name, value = name.removesuffix("_ms"), f"{value}ms"
    if isinstance(value, bool):
        value = str(value).lower()
    return [f"-{name.replace('_', '-')}={value}"]


def _authorization_server(authorize: Authorize) -> ThreadingHTTPServer:
    """Return an authorization server for nsqd that calls a function."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
            client = authorize(
                AuthRequest(
                    asked["secret"][0], asked["remote_ip"][0], asked["tls"][0] == "true", asked["common_name"][0]
                )
            )
            self.send_response(403 if client is None else 200)
            document = {} if client is None else _authorization(client)
            body = json.dumps(document).encode()
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), name="authorization server", daemon=True).start()
    return server


def _authorization(client: AuthorizedClient) -> dict[str, object]:
    return {
        "ttl": max(1, int(client.ttl_s)),
        "identity": client.identity,
        "identity_url": client.identity_url,
        "authorizations": [
            {"topic": a.topic, "channels": list(a.channels), "permissions": list(a.permissions)}
            for a in client.authorizations
        ],
    }
