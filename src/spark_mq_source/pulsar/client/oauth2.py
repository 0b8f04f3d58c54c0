"""Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4), requested from the issuer and reused while fresh.

All connections of a process share a token. The token endpoint is discovered (OpenID Connect Discovery 1.0, section 4),
as in Pulsar's own clients.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from spark_mq_source.core.errors import AuthenticationError, BrokerError, MQSourceError, ServiceNotReadyError
from spark_mq_source.net.transport import TlsSettings

_ADDRESS: Final = "authIssuerUrl"
_USED_SHARE: Final = 0.9
"""Share of a token's lifetime for which it is reused, so that a new connection is not challenged soon after."""
_FRESH_SECONDS: Final = 5.0
"""Held while a token is fetched, so that connections that need a new one at the same time fetch it once."""


@dataclass(frozen=True, slots=True)
class _Token:
    """One token. Its times are monotonic."""

    text: str = field(repr=False)
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class OAuth2Authentication:
    """Authentication by a token of an OAuth 2.0 issuer.

    Attributes:
        issuer_url: URL of the issuer, without a slash at the end.
        client_id: None if `credentials_file` has it.
        client_secret: None if `credentials_file` has it.
        credentials_file: JSON with ``client_id`` and ``client_secret``; read for each connection.
        trust_certs: file of the authorities to trust for the issuer, PEM or a store; None for the system's.

    Example:
        >>> OAuth2Authentication("https://issuer", client_id="spark", client_secret="hush").method_name
        'token'
    """

    method_name: ClassVar[str] = "token"  # all that the broker sees
    issuer_url: str
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    audience: str | None = None
    scope: str | None = None
    trust_certs: str | None = None
    trust_password: str | None = field(default=None, repr=False)
    timeout_ms: int = 10_000

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Return a token that is valid for some time; a new one at a challenge.

        Raises:
            AuthenticationError: the issuer refuses, or the credentials file is invalid.
            MQSourceError: the issuer cannot be reached, or its answer is not an issuer's.
        """
        with _lock:
            now = time.monotonic()
            client = self._credentials()
            key = (self, *client)
            token = _tokens.get(key)
            if token is None or now >= token.until or (challenge is not None and now >= token.since + _FRESH_SECONDS):
                token = _tokens[key] = self._fetch(now, *client)
        return token.text.encode()

    def principal(self, data: bytes) -> str:
        """Return the client id and the issuer."""
        who = f"the client in {self.credentials_file}" if self.client_id is None else f"client {self.client_id!r}"
        return f"{who} of {self.issuer_url}"

    def _fetch(self, now: float, client_id: str, secret: str) -> _Token:
        form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": secret}
        if self.audience is not None:
            form["audience"] = self.audience
        if self.scope is not None:
            form["scope"] = self.scope
        try:
            found = self._ask(f"{self.issuer_url}/.well-known/openid-configuration")
            endpoint = found.get("token_endpoint")
            if not isinstance(endpoint, str) or (
                self.issuer_url.startswith("https:") and not endpoint.startswith("https:")
            ):
                raise AuthenticationError(f"it names no token_endpoint that a secret could be sent to ({endpoint})")
            answer = self._ask(endpoint, form)
        except MQSourceError as error:
            raise self._refusal(error, secret) from None
        text = answer.get("access_token")
        if not isinstance(text, str) or not text:
            raise AuthenticationError(f"{self.issuer_url}: the answer has no access_token; is this {_ADDRESS}?")
        try:
            life = float(answer["expires_in"])
        except (KeyError, TypeError, ValueError):
            life = 0.0  # unknown: used once
        return _Token(text, now, now + life * _USED_SHARE)

    def _ask(self, url: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
        from spark_mq_source.net.http import fetch_json  # noqa: PLC0415 - a fifth of what a task imports, and few need it

        answer = fetch_json(
            url,
            headers={"Accept": "application/json"},
            tls=TlsSettings(self.trust_certs, trust_password=self.trust_password, trust_option="authIssuerTrustCerts"),
            timeout_seconds=self.timeout_ms / 1000,
            form=form,
            address=_ADDRESS,
        )
        return answer if isinstance(answer, dict) else {}

    def _refusal(self, error: MQSourceError, secret: str) -> MQSourceError:
        """Return the error with its context; a refusal is permanent until the configuration changes."""
        where = f"no token for {self.principal(b'')}"
        if not isinstance(error, BrokerError) or isinstance(error, ServiceNotReadyError):
            return error.within(where)
        # RFC 6749, section 5.2. The issuer's text must not repeat the secret in a log.
        try:
            document = json.loads(error.broker_message)
            words = ": ".join(str(document[name]) for name in ("error", "error_description") if name in document)
        except (ValueError, TypeError):
            words = ""
        said = f": {words.replace(secret, '***')}" if words else ""
        return AuthenticationError(f"{where}: {error}{said}", code=error.code)

    def _credentials(self) -> tuple[str, str]:
        if self.credentials_file is None:
            return self.client_id or "", self.client_secret or ""
        try:
            document = json.loads(Path(self.credentials_file).read_bytes())
            return str(document["client_id"]), str(document["client_secret"])
        except OSError as error:
            raise AuthenticationError(
                f"{self.credentials_file} cannot be read ({error.strerror}); every executor needs it at this path"
            ) from error
        except (ValueError, KeyError, TypeError):
            # Without the cause, which may contain a part of the file.
            raise AuthenticationError(f"{self.credentials_file} is no JSON with client_id and client_secret") from None


_lock = threading.Lock()
_tokens: dict[tuple[OAuth2Authentication, str, str], _Token] = {}
"""By issuer, client id and secret, because a credentials file may now contain those of another client."""
