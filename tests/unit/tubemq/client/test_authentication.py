from __future__ import annotations

import pickle

import pytest

from spark_mq_source.tubemq.client.authentication import UserAuthentication


@pytest.mark.parametrize(
    ("user", "password", "timestamp_ms", "nonce", "signature"),
    [
        pytest.param("alice", "secret", 1_795_232_000_000, 7, "6rC%2F67lG4QJc%2BWdrL7wd%2BX6%2FqdM%3D", id="usual"),
        pytest.param("bob", "päss wörd", 1_795_232_000_001, 2**31 - 2, "OQhMTcgfDxRPCoipesf7bsRAiKY%3D", id="umlauts"),
    ],
)
def test_a_signature_is_what_the_java_client_2_4_0_makes(
    user: str, password: str, timestamp_ms: int, nonce: int, signature: str
) -> None:
    signed = UserAuthentication(user, password).sign(timestamp_ms=timestamp_ms, nonce=nonce)
    assert signed.signature == signature
    assert signed.token == f"{user} {timestamp_ms} {nonce} {signature}"


def test_the_password_is_not_shown() -> None:
    user = UserAuthentication("alice", "secret")
    signed = user.sign(timestamp_ms=1, nonce=1)
    assert "secret" not in repr(user) + repr(signed)
    assert signed.signature not in repr(signed)
    assert pickle.loads(pickle.dumps(user)) == user  # noqa: S301 - our own bytes
