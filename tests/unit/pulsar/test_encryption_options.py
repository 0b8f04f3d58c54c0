from __future__ import annotations

import pickle

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, WRITE, Scope
from spark_mq_source.pulsar.options import PulsarOptions


def parse(scope: Scope, **options: str) -> PulsarOptions:
    return PulsarOptions.from_spark({"serviceUrl": "pulsar://b", "topic": "t"} | options, scope)


def test_keys_have_the_names_of_their_files_or_are_named() -> None:
    options = parse(WRITE, cryptoPublicKeys="alice=/a.pem, bob=file:///b.pem")
    assert options.public_key_names == ("alice", "bob")
    assert options.crypto_public_keys == (("alice", "/a.pem"), ("bob", "/b.pem"))
    assert parse(WRITE, cryptoPublicKeys="/all.pem", encryptionKeys="a,b").public_key_names == ("a", "b")
    assert parse(WRITE, cryptoKeyReader="m:f", **{"pulsar.producer.encryptionKeys": "a"}).public_key_names == ("a",)
    assert parse(WRITE).public_key_names == ()
    assert pickle.loads(pickle.dumps(options)) == options  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("scope", "given", "problem"),
    [
        (WRITE, {"encryptionKeys": "a"}, "encryptionKeys: no file for a: set cryptoPublicKeys, or cryptoKeyReader"),
        (WRITE, {"encryptionKeys": "a,b", "cryptoPublicKeys": "a=/a"}, "encryptionKeys: no file for b"),
        (WRITE, {"cryptoPublicKeys": "/a"}, "need encryptionKeys"),
        (WRITE, {"cryptoKeyReader": "m:f"}, "need encryptionKeys"),
        (WRITE, {"cryptoKeyReader": "m"}, "expected module:function"),
        (WRITE, {"cryptoPublicKeys": "a=/a", "cryptoKeyReader": "m:f"}, "contradict each other"),
        (WRITE, {"cryptoPublicKeys": "a="}, "expected a path"),
        (WRITE, {"cryptoPublicKeys": "a=/a,a=/b"}, "each name once"),
        (READ, {"cryptoPrivateKeys": "/a", "cryptoKeyReader": "m:f"}, "contradict each other"),
        (READ, {"cryptoFailureAction": "SEND"}, "SEND: reading it must be FAIL or DISCARD or CONSUME"),
        (WRITE, {"pulsar.producer.cryptoFailureAction": "consume"}, "CONSUME: writing it must be FAIL or SEND"),
    ],
)
def test_contradictory_options(scope: Scope, given: dict[str, str], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        parse(scope, **given)
