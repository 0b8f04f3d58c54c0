"""An issuer of OAuth 2.0 tokens on this machine: a real HTTP(S) server with one client."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl

from tests.http_server import Answer, HttpServer

__all__ = ["CLIENT_ID", "CLIENT_SECRET", "Issuer"]

CLIENT_ID = "flights"
CLIENT_SECRET = "hush-and-more-hush"


class Issuer(HttpServer):
    """A server that gives tokens to the one client; a context manager.

    Args:
        issue: makes a token.
        expires_in: the lifetime of a token in its answer, in seconds; None for an answer without one.
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
        context = None
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
        super().__init__(context)
        self.url = f"{self.origin}/tenant"
        self.asked: list[dict[str, str]] = []
        self.refusal: tuple[int, str] | None = None
        self._issue = issue
        self._expires_in = expires_in

    def answer(self, request: BaseHTTPRequestHandler, said: bytes) -> Answer:
        status, text = self._respond(request, said.decode())
        return status, text.encode(), {}

    def _respond(self, request: BaseHTTPRequestHandler, said: str) -> tuple[int, str]:
        if request.command == "GET":
            found = request.path == "/tenant/.well-known/openid-configuration"
            return 200 if found else 404, json.dumps({"token_endpoint": f"{self.origin}/tokens"})
        if request.path != "/tokens" or request.headers["Content-Type"] != "application/x-www-form-urlencoded":
            return 404, ""
        form = dict(parse_qsl(said))
        self.asked.append(form)
        if self.refusal is not None:
            return self.refusal
        if form.get("grant_type") != "client_credentials":
            return 400, json.dumps({"error": "unsupported_grant_type"})
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            # A careless issuer may do this: repeat the client's secret.
            words = f"{form.get('client_secret')} is not the secret of {form.get('client_id')}"
            return 401, json.dumps({"error": "invalid_client", "error_description": words})
        answer: dict[str, object] = {"access_token": self._issue(), "token_type": "Bearer"}
        return 200, json.dumps(answer if self._expires_in is None else answer | {"expires_in": self._expires_in})
