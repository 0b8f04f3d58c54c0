"""Authentication: signatures of a user's name for masters, tokens for brokers.

A signature is ``urlencode(base64(HMAC-SHA1(password, user + timestamp + nonce)))``; the clocks may be 20 s apart (the
Java client and master 2.4.0). The password never leaves this module, nor appears in a `repr` or an error.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import quote_plus

from spark_mq_source.core.errors import AuthenticationError
from spark_mq_source.core.user_functions import AUTH_PLUGIN, ask_plugin
from spark_mq_source.tubemq.protocol.commands import AuthenticateInfo


@dataclass(frozen=True, slots=True)
class UserAuthentication:
    """A user name and a password.

    Example:
        >>> UserAuthentication("alice", "secret").sign(timestamp_ms=1_795_232_000_000, nonce=7).token
        'alice 1795232000000 7 6rC%2F67lG4QJc%2BWdrL7wd%2BX6%2FqdM%3D'
        >>> UserAuthentication("alice", "secret")
        UserAuthentication(user='alice')
    """

    user: str
    password: str = field(repr=False)

    def sign(self, *, timestamp_ms: int, nonce: int) -> AuthenticateInfo:
        """Sign the user's name with this time and nonce, a random number from 0 to 2^31-1; valid for 20 s."""
        text = f"{self.user}{timestamp_ms}{nonce}".encode()
        digest = hmac.new(self.password.encode(), text, hashlib.sha1).digest()
        return AuthenticateInfo(self.user, timestamp_ms, nonce, "", quote_plus(base64.b64encode(digest)))


@dataclass(frozen=True, slots=True)
class PluginAuthentication:
    """A user's function that signs, for masters and brokers that verify other signatures.

    Attributes:
        function: its name, ``module:function``; see `user_functions.ask_plugin`. The challenge is
            ``timestamp nonce``, and the function returns the user's name and the signature.
        host: the host of the first master.
    """

    function: str
    host: str
    _state: dict[str, object] = field(default_factory=dict, compare=False, repr=False)

    def sign(self, *, timestamp_ms: int, nonce: int) -> AuthenticateInfo:
        """Let the function sign a request with this time and nonce.

        Raises:
            OptionError: the function cannot be imported on this machine.
            AuthenticationError: the function failed, or did not return a name and a signature as text or UTF-8.
        """
        user, data = ask_plugin(self.function, self.host, f"{timestamp_ms} {nonce}".encode(), self._state)
        try:
            return AuthenticateInfo(user, timestamp_ms, nonce, "", data.decode())
        except UnicodeDecodeError:
            raise AuthenticationError(
                f"{AUTH_PLUGIN}={self.function!r} returned a signature that is not text"
            ) from None
