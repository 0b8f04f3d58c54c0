"""Encryption of payloads; `tests/behaviours/pulsar/test_encryption.py` compares it with the official clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from spark_mq_source.core.errors import EncryptedMessageError, OptionError, UnreadableKeyError
from spark_mq_source.pulsar.payload.cipher import RENEW_MS, PayloadDecryptor, PayloadEncryptor
from spark_mq_source.pulsar.protocol.metadata import MessageMetadata

PEM, SPKI = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
OPENSSL, PKCS8 = serialization.PrivateFormat.TraditionalOpenSSL, serialization.PrivateFormat.PKCS8
OPEN = serialization.NoEncryption()
# The output of `openssl ecparam -name prime256v1 -genkey` before the key.
PARAMETERS = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"

PAIRS = {"rsa": rsa.generate_private_key(public_exponent=65_537, key_size=2048)} | {
    curve.name: ec.generate_private_key(curve)
    for curve in (ec.SECP256R1(), ec.SECP384R1(), ec.SECP521R1(), ec.SECP256K1())
}

# Written by Pulsar's Java client 4.0.8.
JAVA_PRIVATE_KEY = b"""-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIAGUKpSmeQ7CjE0Tb0jHIqQHd24lVVLM5R8+bwaOs0AkoAoGCCqGSM49
AwEHoUQDQgAEkvXByV1q9PMTRdneGgUPAnIho0J0ySrR3yIW1f4TU4vCAvDbr2VU
T7KIsDyUR3IVPnc5W1v1DiL5pUADthaCOQ==
-----END EC PRIVATE KEY-----
"""
JAVA_PAYLOAD = bytes.fromhex("27251e2cab3907ff1c6f4da55385f76cfb6fcff732")
JAVA_PARAM = bytes.fromhex("bb94a8e59727185dd32d1bee")
JAVA_DATA_KEY = bytes.fromhex(
    "04a3ae0f967297f9685c323a625428386fa5ec117f54ad80afc8b4aaf4f5f7001b54c23d3c6edb61bca00d493a443f5c583aebaa56440ddc69"
    "3048a811af320517f76fd57f183168fe9c912f35944642aa8fd011bd93ea22e25678ab430950317dadceb59d48ce42a6ddabcd7600de699c66"
    "b1ba40"
)


@dataclass
class Keys:
    """Keys in PEM by name."""

    public: Mapping[str, bytes] = field(default_factory=dict)
    private: Mapping[str, bytes] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    asked: list[tuple[str, Mapping[str, str]]] = field(default_factory=list)

    def __call__(self, kind: str, name: str, metadata: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
        if kind == "public":
            return self.public[name], self.metadata
        self.asked.append((name, metadata))
        if name not in self.private:
            raise OptionError(f"no file for the key {name!r}")
        return self.private[name], {}


KEYS = Keys(
    {name: pair.public_key().public_bytes(PEM, SPKI) for name, pair in PAIRS.items()},
    {name: pair.private_bytes(PEM, OPENSSL, OPEN) for name, pair in PAIRS.items()},
)


def encrypted(*names: str, keys: Keys = KEYS, payload: bytes = b"hello") -> tuple[bytes, MessageMetadata]:
    encryptor = PayloadEncryptor(names, keys, 0)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    encryptor.describe(metadata, 0)
    return encryptor.encrypt(payload, metadata), metadata


def test_a_message_of_the_java_client() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, encryption_param=JAVA_PARAM)
    metadata["encryption_keys"] = [{"key": "ec", "value": JAVA_DATA_KEY}]
    assert PayloadDecryptor(Keys(private={"ec": JAVA_PRIVATE_KEY})).decrypt(JAVA_PAYLOAD, metadata) == b"hello"


@pytest.mark.parametrize("name", PAIRS)
def test_each_kind_of_key(name: str) -> None:
    body, metadata = encrypted(name)
    assert len(body) == len(b"hello") + 16
    assert PayloadDecryptor(KEYS).decrypt(memoryview(body).cast("b"), metadata) == b"hello"


def test_a_key_that_cannot_be_read_is_asked_for_again() -> None:
    body, metadata = encrypted("rsa", "secp256r1")
    failures = [UnreadableKeyError("the store is busy")] * 2

    def keys(kind: str, name: str, more: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
        if failures:
            raise failures.pop()
        return KEYS(kind, name, more)

    decryptor = PayloadDecryptor(keys)
    with pytest.raises(UnreadableKeyError, match="the store is busy; the store is busy"):
        decryptor.decrypt(body, metadata)
    failures.append(UnreadableKeyError("the store is busy"))
    assert decryptor.decrypt(body, metadata) == b"hello"


def certificate(pair: ec.EllipticCurvePrivateKey) -> bytes:
    name, now = x509.Name([]), datetime.now(timezone.utc)
    builder = x509.CertificateBuilder(name, name, pair.public_key(), 1, now, now + timedelta(1))
    return builder.sign(pair, hashes.SHA256()).public_bytes(PEM)


def test_each_form_of_a_key() -> None:
    pair = ec.generate_private_key(ec.SECP256R1())
    public = [pair.public_key().public_bytes(PEM, SPKI), certificate(pair)]
    private = [pair.private_bytes(PEM, form, OPEN) for form in (OPENSSL, PKCS8)]
    for half in (public, private):
        half.append(PARAMETERS + half[0])
    for one in public:
        body, metadata = encrypted("k", keys=Keys({"k": one}))
        for other in private:
            assert PayloadDecryptor(Keys(private={"k": other})).decrypt(body, metadata) == b"hello"


@pytest.mark.parametrize(
    "pem",
    [
        b"",
        b"no key",
        ed25519.Ed25519PrivateKey.generate().private_bytes(PEM, PKCS8, OPEN),
        PAIRS["rsa"].private_bytes(PEM, PKCS8, serialization.BestAvailableEncryption(b"secret words")),
    ],
    ids=["empty", "no PEM", "another kind", "with password"],
)
def test_invalid_keys(pem: bytes) -> None:
    with pytest.raises(OptionError, match=r"the public key 'k' is not a PEM of an RSA or EC key without password$"):
        encrypted("k", keys=Keys({"k": pem}))
    body, metadata = encrypted("rsa")
    with pytest.raises(EncryptedMessageError, match="the private key 'rsa' is not a PEM of an RSA or EC key"):
        PayloadDecryptor(Keys(private={"rsa": pem})).decrypt(body, metadata)


def test_any_of_several_keys_is_enough() -> None:
    body, metadata = encrypted("rsa", "secp256r1", "secp384r1")
    for name in ("rsa", "secp256r1", "secp384r1"):
        assert PayloadDecryptor(Keys(private={name: KEYS.private[name]})).decrypt(body, metadata) == b"hello"
    with pytest.raises(EncryptedMessageError, match=r"no file for the key 'rsa'; no file .* 'secp256r1'; no file"):
        PayloadDecryptor(Keys()).decrypt(body, metadata)


@pytest.mark.parametrize("name", ["rsa", "secp256r1"])
def test_another_key_of_this_name(name: str) -> None:
    body, metadata = encrypted(name)
    others = (rsa.generate_private_key(public_exponent=65_537, key_size=2048), ec.generate_private_key(ec.SECP256R1()))
    for pair in others:
        keys = Keys(private={name: pair.private_bytes(PEM, PKCS8, OPEN)})
        with pytest.raises(EncryptedMessageError, match=f"the private key '{name}' does not belong to the public key"):
            PayloadDecryptor(keys).decrypt(body, metadata)


@pytest.mark.parametrize("name", ["rsa", "secp256r1"])
def test_every_change_is_detected(name: str) -> None:
    body, metadata = encrypted(name)
    (wrapped,) = metadata["encryption_keys"]
    value, param = wrapped["value"], metadata["encryption_param"]
    decryptor = PayloadDecryptor(KEYS)
    for changed in (*_damaged(body), b""):
        with pytest.raises(EncryptedMessageError, match="the payload was changed after its encryption"):
            decryptor.decrypt(changed, metadata)
    for changed in (*_damaged(param), b"", param * 20):
        with pytest.raises(EncryptedMessageError, match="the payload was changed after its encryption"):
            decryptor.decrypt(body, metadata | {"encryption_param": changed})  # type: ignore[arg-type]
    for changed in (*_damaged(value), value[:30], b""):
        keys = [{"key": name, "value": changed}]
        with pytest.raises(EncryptedMessageError, match="does not belong"):
            decryptor.decrypt(body, metadata | {"encryption_keys": keys})  # type: ignore[arg-type]
    assert decryptor.decrypt(body, metadata) == b"hello"


def _damaged(data: bytes) -> list[bytes]:
    bits = [bytes([*data[:at], data[at] ^ 1, *data[at + 1 :]]) for at in range(0, len(data), 7)]
    return [*bits, data[:-1], data + b"\0"]


def test_a_data_key_is_renewed_in_time_and_each_is_decrypted_once() -> None:
    keys = Keys(KEYS.public, KEYS.private, {"version": "3"})
    encryptor, decryptor = PayloadEncryptor(["rsa"], keys, 0), PayloadDecryptor(keys)
    found, params = [], set()
    for now_ms in (0, RENEW_MS - 1, RENEW_MS, RENEW_MS + 1):
        metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
        encryptor.describe(metadata, now_ms)
        body = encryptor.encrypt(b"hello", metadata)
        assert decryptor.decrypt(body, metadata) == b"hello"
        found.append(metadata["encryption_keys"][0]["value"])
        params.add(metadata["encryption_param"])
    assert found[0] == found[1] != found[2] == found[3]
    assert len(params) == 4
    assert keys.asked == [("rsa", {"version": "3"})] * 2
