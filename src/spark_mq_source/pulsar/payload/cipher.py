"""End-to-end encryption of payloads, as Pulsar's official clients have it.

A payload (a message, a whole batch or a chunk, after its compression) is encrypted by AES-256-GCM with a random IV of
12 bytes; the tag is its end. The data key is random too, and is stored in each entry, encrypted with every public key:

- RSA: OAEP with SHA-1, as in the Java client (`MessageCryptoBc`) and the C++ client (`MessageCrypto`);
- EC: BouncyCastle's ``ECIES`` with its default parameters (`IESEngine` without a block cipher), as in the Java client.
  The result is an ephemeral public key (uncompressed point), the XOR of the data key with a key stream, and a MAC. KDF2
  with SHA-1 makes the 16 bytes of the MAC's key and the key stream of the point and the shared secret; the MAC is
  HMAC-SHA1 of the encrypted key and of the length of absent parameters, 8 zero bytes.

Needs the package cryptography.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, hmac, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

from spark_mq_source.core.errors import EncryptedMessageError, OptionError, UnreadableKeyError
from spark_mq_source.pulsar.protocol.commands import key_values
from spark_mq_source.pulsar.protocol.metadata import EncryptionKeys, MessageMetadata

Payload: TypeAlias = "bytes | bytearray | memoryview"

RENEW_MS: Final = 4 * 3600 * 1000
"""The age at which a data key is replaced, as in the Java client."""

_DATA_KEY_BITS: Final = 256
_IV_BYTES: Final = 12
_MAC_KEY_BYTES: Final = 16
_MAC_BYTES: Final = 20
_MAX_DATA_KEYS: Final = 10_000
"""Maximum number of data keys that a reader remembers. A producer has one, and another one every few hours."""

# SHA-1 is part of the format; neither use needs resistance to collisions.
_OAEP: Final = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)  # noqa: S303
_EC_PARAMETERS: Final = re.compile(rb"-----BEGIN EC PARAMETERS-----.*?-----END EC PARAMETERS-----\s*", re.DOTALL)
"""The parameters that `openssl ecparam -genkey` writes before a key; the key itself names its curve, too."""


KeyReader: TypeAlias = Callable[[str, str, Mapping[str, str]], "tuple[bytes, Mapping[str, str]]"]
"""Returns a key in PEM (or a certificate with it), and the metadata to store with data keys that it encrypts.

Its arguments are `public` or `private`, the name of the key, and the metadata of the data key that it is to decrypt. A
key that is missing is an OptionError.
"""


class PayloadEncryptor:
    """Encryption of payloads with a data key, which is renewed.

    Args:
        names: names of the public keys; each one's owner can decrypt.
        keys: reads the public keys, each time that the data key is renewed.
        now_ms: milliseconds since 1970.

    Raises:
        OptionError: a public key is missing or cannot be used.
    """

    def __init__(self, names: Sequence[str], keys: KeyReader, now_ms: int) -> None:
        self._names = names
        self._keys = keys
        self._renew(now_ms)

    def describe(self, metadata: MessageMetadata, now_ms: int) -> None:
        """Put the encrypted data keys into an entry's metadata, and an IV of the same size as that of `encrypt`.

        Raises:
            OptionError: the data key was to be renewed, and a public key is missing or cannot be used.
        """
        if now_ms >= self._renew_at:
            self._renew(now_ms)
        metadata["encryption_keys"] = self._wrapped
        metadata["encryption_param"] = bytes(_IV_BYTES)

    def encrypt(self, payload: Payload, metadata: MessageMetadata) -> bytes:
        """Return an encrypted payload, and put its IV into the metadata that `describe` has prepared."""
        metadata["encryption_param"] = iv = os.urandom(_IV_BYTES)
        return self._data_key.encrypt(iv, payload, None)

    def _renew(self, now_ms: int) -> None:
        data_key = AESGCM.generate_key(_DATA_KEY_BITS)
        self._wrapped = [self._wrap(name, data_key) for name in self._names]
        self._data_key = AESGCM(data_key)
        self._renew_at = now_ms + RENEW_MS

    def _wrap(self, name: str, data_key: bytes) -> EncryptionKeys:
        pem, metadata = self._keys("public", name, {})
        wrapped = EncryptionKeys(key=name, value=_wrap(_parsed(f"public key {name!r}", _parse_public, pem), data_key))
        if metadata:
            wrapped["metadata"] = key_values(metadata.items())
        return wrapped


class PayloadDecryptor:
    """Decryption of payloads, with a memory of data keys and of why one cannot be decrypted.

    Args:
        keys: reads the private keys, once for each data key.

    Example:
        >>> pair, pem = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
        >>> def keys(kind, name, metadata):
        ...     if kind == "public":
        ...         return pair.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo), {}
        ...     return pair.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()), {}
        >>> encryptor, metadata = PayloadEncryptor(["alice"], keys, now_ms=0), {}
        >>> encryptor.describe(metadata, now_ms=0)
        >>> PayloadDecryptor(keys).decrypt(encryptor.encrypt(b"hello", metadata), metadata)
        b'hello'
    """

    def __init__(self, keys: KeyReader) -> None:
        self._keys = keys
        self._data_keys: dict[bytes, AESGCM | str] = {}
        self._private: dict[bytes, _PrivateKey] = {}

    def decrypt(self, payload: Payload, metadata: MessageMetadata) -> bytes:
        """Return a decrypted payload.

        Raises:
            EncryptedMessageError: there is no private key for it, or it was changed after its encryption.
            UnreadableKeyError: one of its private keys cannot be read, and no other one decrypts it.
        """
        problems, kind = [], EncryptedMessageError
        # The views of Arrow's buffers have signed bytes, which the cipher does not take.
        view = memoryview(payload).cast("B")
        for wrapped in metadata["encryption_keys"]:
            data_key: AESGCM | str
            try:
                data_key = self._data_key(wrapped)
            except UnreadableKeyError as error:
                data_key, kind = str(error), UnreadableKeyError
            if isinstance(data_key, str):
                problems.append(data_key)
                continue
            try:
                return data_key.decrypt(metadata.get("encryption_param", b""), view, None)
            except (InvalidTag, ValueError):
                problems.append(f"key {wrapped['key']!r} is right, but the payload was changed after its encryption")
        raise kind(f"the payload is encrypted and cannot be decrypted: {'; '.join(problems)}")

    def _data_key(self, wrapped: EncryptionKeys) -> AESGCM | str:
        """Return a data key, or why there is none.

        Raises:
            UnreadableKeyError: the private key cannot be read now.
        """
        found = self._data_keys.get(wrapped["value"])
        if found is None:
            if len(self._data_keys) >= _MAX_DATA_KEYS:
                del self._data_keys[next(iter(self._data_keys))]
            found = self._data_keys[wrapped["value"]] = self._unwrapped(wrapped)
        return found

    def _unwrapped(self, wrapped: EncryptionKeys) -> AESGCM | str:
        name = wrapped["key"]
        try:
            metadata = {one["key"]: one["value"] for one in wrapped.get("metadata", ())}
            pem, _ = self._keys("private", name, metadata)
            if pem not in self._private:
                self._private[pem] = _parsed(f"private key {name!r}", _parse_private, pem)
        except UnreadableKeyError:
            raise
        except OptionError as error:
            return str(error)
        try:
            return AESGCM(_unwrap(self._private[pem], wrapped["value"]))
        except (ValueError, InvalidSignature):
            return f"the private key {name!r} does not belong to the public key with which the message was encrypted"


_PublicKey: TypeAlias = "rsa.RSAPublicKey | ec.EllipticCurvePublicKey"
_PrivateKey: TypeAlias = "rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey"
_Key = TypeVar("_Key")


def _parsed(what: str, parse: Callable[[bytes], _Key], pem: bytes) -> _Key:
    """Return a parsed key.

    Raises:
        OptionError: it is not a key of RSA or EC, or needs a password; the message has none of its text.
    """
    try:
        return parse(_EC_PARAMETERS.sub(b"", pem))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise OptionError(f"the {what} is not a PEM of an RSA or EC key without password") from None


def _parse_public(pem: bytes) -> _PublicKey:
    is_certificate = b"-----BEGIN CERTIFICATE" in pem
    key = x509.load_pem_x509_certificate(pem).public_key() if is_certificate else serialization.load_pem_public_key(pem)
    if not isinstance(key, (rsa.RSAPublicKey, ec.EllipticCurvePublicKey)):
        raise TypeError
    return key


def _parse_private(pem: bytes) -> _PrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey)):
        raise TypeError
    return key


def _wrap(key: _PublicKey, data_key: bytes) -> bytes:
    if isinstance(key, rsa.RSAPublicKey):
        return key.encrypt(data_key, _OAEP)
    ephemeral = ec.generate_private_key(key.curve)
    point = ephemeral.public_key().public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    mac_key, stream = _streams(point, ephemeral.exchange(ec.ECDH(), key), len(data_key))
    encrypted = _xor(data_key, stream)
    return point + encrypted + _mac(mac_key, encrypted).finalize()


def _unwrap(key: _PrivateKey, wrapped: bytes) -> bytes:
    """Return a data key.

    Raises:
        ValueError: it was encrypted for another key, or is damaged.
        InvalidSignature: 〃
    """
    if isinstance(key, rsa.RSAPrivateKey):
        return key.decrypt(wrapped, _OAEP)
    size = 1 + 2 * ((key.curve.key_size + 7) // 8)
    point, encrypted, mac = wrapped[:size], wrapped[size:-_MAC_BYTES], wrapped[-_MAC_BYTES:]
    ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, point)
    mac_key, stream = _streams(point, key.exchange(ec.ECDH(), ephemeral), len(encrypted))
    _mac(mac_key, encrypted).verify(mac)
    return _xor(encrypted, stream)


def _streams(point: bytes, secret: bytes, size: int) -> tuple[bytes, bytes]:
    """Return the key of the MAC, and a key stream of `size` bytes. KDF2 and X9.63's KDF are the same function."""
    made = X963KDF(hashes.SHA1(), _MAC_KEY_BYTES + size, None).derive(point + secret)  # noqa: S303
    return made[:_MAC_KEY_BYTES], made[_MAC_KEY_BYTES:]


def _mac(key: bytes, encrypted: bytes) -> hmac.HMAC:
    mac = hmac.HMAC(key, hashes.SHA1())  # noqa: S303
    mac.update(encrypted + bytes(8))
    return mac


def _xor(data: bytes, stream: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(data, stream, strict=True))
