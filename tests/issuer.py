"""An issuer of OAuth 2.0 tokens on this machine: a real HTTP(S) server that knows one client."""

from __future__ import annotations

import http.server
import json
import ssl
import threading
from collections.abc import Callable
from types import TracebackType
from urllib.parse import parse_qsl

__all__ = ["CLIENT_ID", "CLIENT_SECRET", "Issuer"]

CLIENT_ID = "flights"
CLIENT_SECRET = "hush-and-more-hush"


class Issuer:
    """Gives tokens to the one client; a context manager.

    Args:
        issue: makes a token.
        expires_in: what it says of a token's life, in seconds; None says nothing.
        certificate: its certificate and key file, for HTTPS.

    Attributes:
        asked: the fields of each request for a token.
        refusal: status and body to answer with instead of a token; None for none.
    """

    def __init__(
        self,
        issue: Callable[[], str],
        *,
        expires_in: float | None = 3600,
        certificate: tuple[str, str] | None = None,
    ) -> None:
        self.asked: list[dict[str, str]] = []
        self.refusal: tuple[int, str] | None = None
        self._issue = issue
        self._expires_in = expires_in
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path == "/tenant/.well-known/openid-configuration"
                self._answer(200 if found else 404, json.dumps({"token_endpoint": f"{issuer.origin}/tokens"}))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                if self.path != "/tokens" or self.headers["Content-Type"] != "application/x-www-form-urlencoded":
                    self._answer(404, "")
                else:
                    self._answer(*issuer._respond(dict(parse_qsl(body))))

            def _answer(self, status: int, body: str) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http{'s' if certificate else ''}://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.origin}/tenant"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def _respond(self, form: dict[str, str]) -> tuple[int, str]:
        self.asked.append(form)
        if self.refusal is not None:
            return self.refusal
        if form.get("grant_type") != "client_credentials":
            return 400, json.dumps({"error": "unsupported_grant_type"})
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            # What a careless one may do: repeat what it was told.
            words = f"{form.get('client_secret')} is not the secret of {form.get('client_id')}"
            return 401, json.dumps({"error": "invalid_client", "error_description": words})
        answer: dict[str, object] = {"access_token": self._issue(), "token_type": "Bearer"}
        return 200, json.dumps(answer if self._expires_in is None else answer | {"expires_in": self._expires_in})

    def __enter__(self) -> Issuer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
