"""How we say who we are to a Pulsar broker: token, user and password, or the TLS certificate.

Below the connection, so that the options can build one. Secrets never appear in a `repr` or an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from spark_mq_source.core.errors import AuthenticationError

__all__ = [
    "Authentication",
    "BasicAuthentication",
    "TlsAuthentication",
    "TokenAuthentication",
    "TokenFileAuthentication",
]


class Authentication(Protocol):
    """What a connection asks for when it connects and when the broker challenges it."""

    @property
    def method_name(self) -> str:
        """The broker's name of the method."""

    def auth_data(self, challenge: bytes | None) -> bytes:
        """What proves who we are; `challenge` is what the broker sent, None when connecting.

        Raises:
            AuthenticationError: it cannot be had.
        """


@dataclass(frozen=True, slots=True)
class TokenAuthentication:
    """A token (JWT) that stays the same.

    Example:
        >>> token = TokenAuthentication("abc")
        >>> token.method_name, token.auth_data(None), token
        ('token', b'abc', TokenAuthentication())
    """

    token: str = field(repr=False)

    @property
    def method_name(self) -> str:
        """`token`."""
        return "token"

    def auth_data(self, challenge: bytes | None) -> bytes:
        """The token."""
        return self.token.encode()


@dataclass(frozen=True, slots=True)
class TokenFileAuthentication:
    r"""A token in a file that something else renews: read when connecting and at each challenge.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w") as file:
        ...     _ = file.write("abc\n")
        ...     file.flush()
        ...     TokenFileAuthentication(file.name).auth_data(None)
        b'abc'
    """

    path: str

    @property
    def method_name(self) -> str:
        """`token`."""
        return "token"

    def auth_data(self, challenge: bytes | None) -> bytes:
        """The token that is in the file now, without white space around it.

        Raises:
            AuthenticationError: the file cannot be read or is empty.
        """
        try:
            token = Path(self.path).read_bytes().strip()
        except OSError as error:
            msg = f"the token file {self.path} cannot be read ({error.strerror}); every executor needs it at this path"
            raise AuthenticationError(msg) from error
        if not token:
            msg = f"the token file {self.path} is empty"
            raise AuthenticationError(msg)
        return token


@dataclass(frozen=True, slots=True)
class BasicAuthentication:
    """A user's name and password.

    Example:
        >>> BasicAuthentication("alice", "secret").auth_data(None)
        b'alice:secret'
    """

    user: str
    password: str = field(repr=False)

    @property
    def method_name(self) -> str:
        """`basic`."""
        return "basic"

    def auth_data(self, challenge: bytes | None) -> bytes:
        """`user:password`."""
        return f"{self.user}:{self.password}".encode()


@dataclass(frozen=True, slots=True)
class TlsAuthentication:
    """The client certificate of the TLS session says it all.

    Example:
        >>> TlsAuthentication().method_name, TlsAuthentication().auth_data(None)
        ('tls', b'')
    """

    @property
    def method_name(self) -> str:
        """`tls`."""
        return "tls"

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Nothing: the certificate has been shown."""
        return b""
