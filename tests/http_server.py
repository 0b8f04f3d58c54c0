"""Real HTTP(S) servers on the loopback whose answers a test chooses."""

from __future__ import annotations

import contextlib
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = tuple[int, bytes, Mapping[str, str]]
"""A status, a body and headers."""


class HttpServer:
    """A server that answers GET, POST and PUT by `answer`; a context manager.

    Attributes:
        port: on which it listens.
        origin: `http://host:port`.
    """

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                said = self.rfile.read(int(self.headers["Content-Length"] or 0))
                status, body, headers = server.answer(self, said)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            do_POST = do_PUT = do_GET  # noqa: N815 - http.server finds them by these names

            def log_message(self, *_: object) -> None:
                pass

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass

        self._server = Quiet(("127.0.0.1", 0), Handler)
        if context is not None:
            # The thread of the connection does the handshake.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port = self._server.server_port
        self.origin = f"http{'' if context is None else 's'}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def answer(self, request: BaseHTTPRequestHandler, said: bytes) -> Answer:
        """Return the answer to a request with this body."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class ScriptedHttpServer(HttpServer):
    """A server that answers each request with the next of `answers`, the last one repeatedly.

    Attributes:
        asked: path and headers of each request.
        forms: the body of each POST.
    """

    def __init__(self, *answers: Answer, context: ssl.SSLContext | None = None) -> None:
        super().__init__(context)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.forms: list[bytes] = []
        self._answers = answers

    def answer(self, request: BaseHTTPRequestHandler, said: bytes) -> Answer:
        self.asked.append((request.path, dict(request.headers)))
        if request.command == "POST":
            self.forms.append(said)
        return self._answers[min(len(self.asked), len(self._answers)) - 1]
