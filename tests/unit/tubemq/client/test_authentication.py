from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from spark_mq_source.core.errors import AuthenticationError
from spark_mq_source.tubemq.client.authentication import PluginAuthentication, UserAuthentication
from spark_mq_source.tubemq.client.session import Authorization
from spark_mq_source.tubemq.protocol.commands import AuthorizedInfo


@pytest.mark.parametrize(
    ("user", "password", "timestamp_ms", "nonce", "signature"),
    [
        pytest.param("alice", "secret", 1_795_232_000_000, 7, "6rC%2F67lG4QJc%2BWdrL7wd%2BX6%2FqdM%3D", id="usual"),
        pytest.param("bob", "päss wörd", 1_795_232_000_001, 2**31 - 2, "OQhMTcgfDxRPCoipesf7bsRAiKY%3D", id="umlauts"),
    ],
)
def test_a_signature_is_that_of_the_java_client_2_4_0(
    user: str, password: str, timestamp_ms: int, nonce: int, signature: str
) -> None:
    signed = UserAuthentication(user, password).sign(timestamp_ms=timestamp_ms, nonce=nonce)
    assert signed.signature == signature
    assert signed.token == f"{user} {timestamp_ms} {nonce} {signature}"


def test_the_token_of_a_master_accompanies_signatures() -> None:
    authorization = Authorization(UserAuthentication("alice", "secret"), None, lambda: None)
    for token in (None, "one", "two"):
        authorization.given = AuthorizedInfo(7, token)
        shown = authorization.for_master()
        assert shown is not None
        assert shown.auth_info is not None
        assert (shown.auth_info.user_name, shown.authorized_token) == ("alice", token)
        own = f"alice {shown.auth_info.timestamp} {shown.auth_info.nonce} {shown.auth_info.signature}"
        assert authorization.for_broker() == AuthorizedInfo(7, token or own)
    assert Authorization(None, AuthorizedInfo(7, "token"), lambda: None).for_master() is None


def test_a_plugin_signs_the_time_and_the_nonce(supply: Callable[..., str]) -> None:
    def sign(host: str, challenge: bytes, state: dict[str, int]) -> tuple[str, bytes]:
        state["asked"] = state.get("asked", 0) + 1
        return f"alice@{host}", b"%d:" % state["asked"] + challenge

    plugin = PluginAuthentication(supply(sign), "master")
    signed = [plugin.sign(timestamp_ms=5, nonce=nonce) for nonce in (7, 8)]
    assert [one.token for one in signed] == ["alice@master 5 7 1:5 7", "alice@master 5 8 2:5 8"]
    supply(lambda *_: ("alice", b"\xff"))
    with pytest.raises(AuthenticationError, match="authPlugin='of_mine:function' returned a signature that is not"):
        plugin.sign(timestamp_ms=5, nonce=7)


def test_the_password_is_not_shown() -> None:
    user = UserAuthentication("alice", "secret")
    signed = user.sign(timestamp_ms=1, nonce=1)
    assert "secret" not in repr(user) + repr(signed)
    assert signed.signature not in repr(signed)
    assert pickle.loads(pickle.dumps(user)) == user  # noqa: S301 - our own bytes
