"""Sources of the keys of encrypted payloads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from spark_mq_source.core.errors import OptionError, UnreadableKeyError, UnsupportedFeatureError
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.pulsar import payload
from spark_mq_source.pulsar.client.crypto_keys import decryptor_of, encryptor_of, key_in_file, supplied_key
from spark_mq_source.pulsar.options import PulsarOptions

GIVEN = {"serviceurl": "pulsar://b", "topic": "t"}


def test_a_name_without_a_separate_file_uses_the_common_one(tmp_path: Any) -> None:
    for name in ("alice", "others"):
        (tmp_path / name).write_text(name)
    files = {"public": (), "private": (("alice", str(tmp_path / "alice")), ("", str(tmp_path / "others")))}
    assert [key_in_file(files, "private", name, {}) for name in ("alice", "bob")] == [(b"alice", {}), (b"others", {})]
    with pytest.raises(OptionError, match=r"^cryptoPublicKeys has no file for the key 'alice'$"):
        key_in_file(files, "public", "alice", {})


def test_a_function_receives_the_name_of_the_key(supply: Callable[..., str]) -> None:
    name = supply(lambda *asked: (repr(asked), {"version": "3"}) if asked[0] == "public" else repr(asked).encode())
    assert supplied_key(name, "public", "k", {}) == (b"('public', 'k', {})", {"version": "3"})
    assert supplied_key(name, "private", "k", {"version": "3"}) == (b"('private', 'k', {'version': '3'})", {})


def test_the_error_of_a_failed_key_function_shows_no_secret(supply: Callable[..., str]) -> None:
    def fail(*asked: object) -> bytes:
        raise ValueError(f"the secret key of {asked}")

    with pytest.raises(OptionError, match=r"failed with ValueError for the public key 'k'$") as caught:
        supplied_key(supply(fail), "public", "k", {})
    assert caught.value.__cause__ is None
    assert isinstance(caught.value, UnreadableKeyError)
    for nothing in (None, b"", "", 7, (b"pem", "no metadata")):
        with pytest.raises(OptionError, match="cryptoKeyReader='of_mine:function' returned no private key 'k'"):
            supplied_key(supply(lambda *_, found=nothing: found), "private", "k", {})
    with pytest.raises(OptionError, match=r"cryptoKeyReader='of_mine:gone' cannot be imported"):
        supplied_key("of_mine:gone", "private", "k", {})


@pytest.mark.parametrize(
    ("error", "may_exist"),
    [(KeyError, False), (FileNotFoundError, False), (TimeoutError, True), (PermissionError, True)],
)
def test_a_function_without_a_key_differs_from_one_that_failed(
    supply: Callable[..., str], error: type[Exception], may_exist: bool
) -> None:
    def fail(*_: object) -> bytes:
        raise error

    with pytest.raises(OptionError, match=error.__name__) as caught:
        supplied_key(supply(fail), "private", "k", {})
    assert isinstance(caught.value, UnreadableKeyError) is may_exist


def test_a_missing_file_or_function_may_exist_elsewhere(tmp_path: Any) -> None:
    with pytest.raises(UnreadableKeyError, match="every executor needs it at this path"):
        key_in_file({"public": (), "private": (("k", str(tmp_path / "none")),)}, "private", "k", {})
    with pytest.raises(UnreadableKeyError, match="cannot be imported"):
        supplied_key("of_mine:gone", "private", "k", {})


def test_without_the_extra_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(payload, "cipher", raising=False)
    monkeypatch.delitem(sys.modules, "spark_mq_source.pulsar.payload.cipher", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    writing = PulsarOptions.from_spark(GIVEN | {"cryptopublickeys": "k=/k.pem"}, WRITE)
    reading = PulsarOptions.from_spark(GIVEN | {"cryptoprivatekeys": "/k.pem"}, READ)
    for make in (lambda: encryptor_of(writing, 0), lambda: decryptor_of(reading)):
        with pytest.raises(UnsupportedFeatureError, match=r"spark-mq-source\[encryption\]"):
            make()
    assert encryptor_of(PulsarOptions.from_spark(GIVEN, WRITE), 0) is None
    assert decryptor_of(PulsarOptions.from_spark(GIVEN, READ)) is None
