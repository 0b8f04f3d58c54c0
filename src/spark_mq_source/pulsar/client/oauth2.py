"""Tokens by OAuth 2.0 client credentials (RFC 6749, section 4.4): asked of the issuer, and used until they are old.

A process asks once for all of its connections. The issuer says where it takes requests (OpenID Connect Discovery 1.0,
section 4), as Pulsar's own clients ask it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from spark_mq_source.core.errors import AuthenticationError, BrokerError, MQSourceError, ServiceNotReadyError
from spark_mq_source.net.transport import TlsSettings

_ADDRESS: Final = "authIssuerUrl"
_USED_SHARE: Final = 0.9
"""A token is used for this share of its life: a connection that begins with it should not be asked again at once."""
_FRESH_SECONDS: Final = 5.0
"""A token that is asked for by several connections at once, because the last one has expired, is fetched once."""


@dataclass(frozen=True, slots=True)
class _Token:
    """One token. Its times are monotonic."""

    text: str = field(repr=False)
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class OAuth2Authentication:
    """Who we are is what an issuer of tokens says of us.

    Attributes:
        issuer_url: of the issuer, without a slash at its end.
        client_id: who we are to it; None where `credentials_file` says it.
        client_secret: what proves it; the same.
        credentials_file: JSON with ``client_id`` and ``client_secret``; read for each connection.
        audience: whom the token is for; None where the issuer does not ask.
        scope: what it is for; the same.
        trust_certs: PEM file of the authorities to trust for the issuer; None trusts the system's.
        timeout_ms: how long the issuer may take.

    Example:
        >>> OAuth2Authentication("https://issuer", client_id="spark", client_secret="hush").method_name
        'token'
    """

    issuer_url: str
    client_id: str | None = None
    client_secret: str | None = field(default=None, repr=False)
    credentials_file: str | None = None
    audience: str | None = None
    scope: str | None = None
    trust_certs: str | None = None
    timeout_ms: int = 10_000

    @property
    def method_name(self) -> str:
        """`token`, which is what the broker gets."""
        return "token"

    def auth_data(self, challenge: bytes | None) -> bytes:
        """A token that has time left; a new one where the broker asks again.

        Raises:
            AuthenticationError: the issuer refuses, or the credentials file cannot be used.
            MQSourceError: the issuer cannot be reached, or does not answer as one.
        """
        with _lock:
            now = time.monotonic()
            client = self._credentials()
            token = _tokens.get((self, *client))
            if token is None or now >= token.until or (challenge is not None and now >= token.since + _FRESH_SECONDS):
                token = _tokens[self, *client] = self._fetch(now, *client)
        return token.text.encode()

    def principal(self, data: bytes) -> str:
        """The client's name and the issuer."""
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
            life = 0.0  # it does not say: used once
        return _Token(text, now, now + life * _USED_SHARE)

    def _ask(self, url: str, form: Mapping[str, str] | None = None) -> dict[str, Any]:
        from spark_mq_source.net.http import fetch_json  # noqa: PLC0415 - a fifth of what a task imports, and few need it

        answer = fetch_json(
            url,
            headers={"Accept": "application/json"},
            tls=TlsSettings(trust_certs=self.trust_certs),
            timeout_seconds=self.timeout_ms / 1000,
            form=form,
            address=_ADDRESS,
        )
        return answer if isinstance(answer, dict) else {}

    def _refusal(self, error: MQSourceError, secret: str) -> MQSourceError:
        """The error in the words of what is done here; an issuer that says no does so until something is changed."""
        where = f"no token for {self.principal(b'')}"
        if not isinstance(error, BrokerError) or isinstance(error, ServiceNotReadyError):
            return error.within(where)
        # RFC 6749, section 5.2. Whatever an issuer says, it is not to repeat the secret in a log.
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
            # Without its cause, which may show a part of it.
            raise AuthenticationError(f"{self.credentials_file} is no JSON with client_id and client_secret") from None


_lock = threading.Lock()
_tokens: dict[tuple[OAuth2Authentication, str, str], _Token] = {}
"""By issuer, client id and secret: a credentials file may hold those of another client by now."""
