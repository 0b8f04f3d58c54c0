"""Authentication at a Pulsar broker: token, user and password, or the TLS certificate. See also `oauth2`.

Each class is an `Authentication` for a connection. Secrets never appear in a `repr` or an error.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

from spark_mq_source.core.errors import AuthenticationError
from spark_mq_source.core.user_functions import AUTH_PLUGIN, ask_plugin, call_function

_RENEW: Final = b"PulsarAuthRefresh"
"""The challenge by which a broker requests authentication again (4.0.8)."""


@dataclass(frozen=True, slots=True)
class TokenAuthentication:
    """A fixed token (JWT).

    Example:
        >>> token = TokenAuthentication("abc")
        >>> token.method_name, token.auth_data(None), token
        ('token', b'abc', TokenAuthentication())
    """

    method_name: ClassVar[str] = "token"
    token: str = field(repr=False)

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Return the token."""
        return self.token.encode()

    def principal(self, data: bytes) -> str:
        """Return the token's subject."""
        return _principal_of_token(data)


@dataclass(frozen=True, slots=True)
class TokenFileAuthentication:
    r"""A token in a file that another program renews: read when connecting and at each challenge.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w") as file:
        ...     _ = file.write("abc\n")
        ...     file.flush()
        ...     TokenFileAuthentication(file.name).auth_data(None)
        b'abc'
    """

    method_name: ClassVar[str] = "token"
    path: str

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Return the token that the file contains now, without surrounding white space.

        Raises:
            AuthenticationError: the file cannot be read or is empty.
        """
        try:
            token = Path(self.path).read_bytes().strip()
        except OSError as error:
            raise AuthenticationError(
                f"the token file {self.path} cannot be read ({error.strerror}); every executor needs it at this path"
            ) from error
        if not token:
            raise AuthenticationError(f"the token file {self.path} is empty")
        return token

    def principal(self, data: bytes) -> str:
        """Return the token's subject, and the file."""
        return f"{_principal_of_token(data)} in {self.path}"


@dataclass(frozen=True, slots=True)
class TokenSupplierAuthentication:
    """A user's function that returns a token: called when connecting and at each challenge.

    Attributes:
        function: its name, ``module:function``; takes no argument, returns text or bytes.

    Example:
        >>> TokenSupplierAuthentication("secrets:token_hex").method_name
        'token'
    """

    method_name: ClassVar[str] = "token"
    function: str

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Return the function's result, without surrounding white space.

        Raises:
            OptionError: the function cannot be imported on this machine.
            AuthenticationError: the function failed, or returned no token.
        """
        token = call_function("authTokenSupplier", self.function)
        data = token.encode() if isinstance(token, str) else token
        if not isinstance(data, bytes) or not data.strip():
            raise AuthenticationError(
                f"authTokenSupplier={self.function!r} returned no token (but {type(token).__name__})"
            )
        return data.strip()

    def principal(self, data: bytes) -> str:
        """Return the token's subject, and the function."""
        return f"{_principal_of_token(data)} from {self.function}"


@dataclass(frozen=True, slots=True)
class BasicAuthentication:
    """A user name and a password.

    Example:
        >>> BasicAuthentication("alice", "secret").auth_data(None)
        b'alice:secret'
    """

    method_name: ClassVar[str] = "basic"
    user: str
    password: str = field(repr=False)

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Return ``user:password``."""
        return f"{self.user}:{self.password}".encode()

    def principal(self, data: bytes) -> str:
        """Return the user name."""
        return f"user {self.user!r}"


@dataclass(frozen=True, slots=True)
class TlsAuthentication:
    """The client certificate of the TLS session, which needs no further data.

    Example:
        >>> TlsAuthentication("c.pem").method_name, TlsAuthentication("c.pem").auth_data(None)
        ('tls', b'')
    """

    method_name: ClassVar[str] = "tls"
    client_cert: str

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Return nothing: the TLS handshake has sent the certificate."""
        return b""

    def principal(self, data: bytes) -> str:
        """Return the path of the certificate."""
        return f"the owner of the certificate {self.client_cert}"


@dataclass(slots=True, unsafe_hash=True)
class PluginAuthentication:
    """A user's function that authenticates one connection by any method, in one step or several.

    Attributes:
        function: its name, ``module:function``; see `user_functions.ask_plugin`.
        host: the host of the connection.
        method_name: the broker's name of the method, after the first step.
    """

    function: str
    host: str
    method_name: str = field(default="", compare=False)
    _state: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Return the function's data for a challenge; its first data if the broker requests authentication again.

        Raises:
            OptionError: the function cannot be imported on this machine.
            AuthenticationError: the function failed, or returned something else than a method and bytes.
        """
        if challenge in (None, _RENEW):
            challenge = None
            self._state.clear()
        self.method_name, data = ask_plugin(self.function, self.host, challenge, self._state)
        return data

    def principal(self, data: bytes) -> str:
        """Return the function, and the token's subject if it returned a token."""
        who = _principal_of_token(data) if self.method_name == "token" else f"the client of {self.method_name!r}"
        return f"{who} from {AUTH_PLUGIN}={self.function}"


def _principal_of_token(token: bytes) -> str:
    """Return the subject of a JWT (claim `sub`, RFC 7519, section 4.1.2), the broker's default for the role.

    Example:
        >>> _principal_of_token(b"e30.eyJzdWIiOiJzcGFyayJ9.c2ln"), _principal_of_token(b"opaque")
        ("'spark' (the token's subject)", 'whom the token is about')
    """
    try:
        payload = token.split(b".")[1]
        subject = json.loads(base64.urlsafe_b64decode(payload + b"=" * (-len(payload) % 4)))["sub"]
    except (IndexError, ValueError, KeyError, TypeError):
        return "whom the token is about"
    return f"{subject!r} (the token's subject)"
