"""Certificates and keys in Java's stores: PKCS12, which `cryptography` reads, and JKS, which this module reads.

JKS is Java's own format (OpenJDK 17, `sun.security.provider.JavaKeyStore` and `KeyProtector`); Python has no maintained
library for it. Numbers are big-endian, a text has two bytes of length, other lengths have four::

    file         FEEDFEED, version, number of entries, entries, SHA1(password in UTF-16, "Mighty Aphrodite", the rest)
    entry        kind (1 key, 2 certificate), alias, 8 bytes of time, content
    key          length, PKCS 8 encrypted by XOR with chained SHA1 digests, number of certificates, certificates
    certificate  type (not in version 1), length, DER
"""

from __future__ import annotations

import hashlib
import secrets
import ssl
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final

from spark_mq_source.core.errors import OptionError, UnsupportedFeatureError

_JKS: Final = bytes.fromhex("feedfeed")
_PKCS12: Final = b"\x30"
_REFUSED: Final = {bytes.fromhex("cececece"): "JCEKS", b"\0\0\0\1": "BKS", b"\0\0\0\2": "BKS"}
_PKCS12_KEY: Final = bytes.fromhex("060b2a864886f70d010c0a0102")
"""The object identifier of an encrypted key (RFC 7292, section 4.2.2)."""
_JKS_KEY: Final = bytes.fromhex("060a2b060104012a021101010500")
"""The object identifier of the encryption of a key; the encrypted bytes follow."""
_SHA1_BYTES: Final = 20


@dataclass(frozen=True, slots=True)
class _Store:
    """The content of a store: all certificates as DER, and for each private key its decryption and its certificates."""

    certificates: list[bytes]
    keys: list[tuple[Callable[[], Any], list[bytes]]]


def is_store(path: str) -> bool:
    """Return whether a file is a store, also of a type that cannot be read; PEM is none.

    Raises:
        OSError: it cannot be read.
    """
    with Path(path).open("rb") as file:
        start = file.read(4)
    return start == _JKS or start in _REFUSED or start.startswith(_PKCS12)


def trusted_certificates(path: str, password: str | None, option: str) -> bytes:
    """Return all certificates of a store, as DER one after the other.

    Args:
        path: the file.
        password: of the store; JKS needs none, and its integrity is then not verified, as in Java.
        option: the option with the password, for errors.

    Raises:
        OptionError: the store has another type or password, is damaged, or contains no certificate.
        UnsupportedFeatureError: `cryptography` is missing.
        OSError: the file cannot be read.
    """
    found = _read(path, password, option).certificates
    if not found:
        raise OptionError(f"{path}: the store contains no certificate")
    return b"".join(found)


def load_identity(context: ssl.SSLContext, path: str, password: str | None, option: str) -> None:
    """Load the private key of a store, and its certificates, into a context.

    Python's `ssl` takes only files: the key is in one for a moment, encrypted with a password that is used once.

    Raises:
        OptionError: the store has another type or password, is damaged, or does not contain exactly one key.
        UnsupportedFeatureError: `cryptography` is missing.
        OSError: the file cannot be read.
        ssl.SSLError: OpenSSL refuses the key or a certificate.
    """
    if password is None:
        raise OptionError(f"{path}: a store with a private key has a password: set {option}")
    keys = _read(path, password, option).keys
    if len(keys) != 1:
        raise OptionError(
            f"{path}: the store contains {len(keys)} private keys, and must contain one: copy the right one (keytool "
            f"-importkeystore -srckeystore {path} -srcalias NAME -destkeystore ONE.p12 -deststoretype PKCS12)"
        )
    serialization = _cryptography(path)
    decrypt, chain = keys[0]
    once = secrets.token_hex(32).encode()
    pem = decrypt().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(once)
    )
    with tempfile.NamedTemporaryFile(prefix="spark-mq-source-") as file:  # with mode 0600
        file.write("".join(map(ssl.DER_cert_to_PEM_cert, chain)).encode() + pem)
        file.flush()
        context.load_cert_chain(file.name, password=once)


def describe_certificates(path: str, password: str | None, option: str) -> str:
    """Return how many certificates a file contains, PEM or a store, and which of them expires first.

    Raises:
        OptionError: the store has another type or password, is damaged, or the file contains no certificate.
        UnsupportedFeatureError: `cryptography` is missing.
        OSError: the file cannot be read.
    """
    _cryptography(path)
    from cryptography import x509  # noqa: PLC0415 - an extra

    stored = _read(path, password, option).certificates if is_store(path) else None
    try:
        if stored is None:
            found = x509.load_pem_x509_certificates(Path(path).read_bytes())
        else:
            found = [x509.load_der_x509_certificate(one) for one in stored]
        first = min(found, key=lambda one: one.not_valid_after_utc)
    except ValueError as error:
        raise OptionError(f"{path}: no certificates ({error})") from error
    return f"{len(found)}; {first.subject.rfc4514_string()} expires first, on {first.not_valid_after_utc:%Y-%m-%d}"


def _read(path: str, password: str | None, option: str) -> _Store:
    data = Path(path).read_bytes()
    if data.startswith(_JKS):
        return _read_jks(data, path, password, option)
    if data[:4] in _REFUSED:
        raise OptionError(
            f"{path}: a store of type {_REFUSED[data[:4]]}; convert it (keytool -importkeystore -srckeystore {path} "
            f"-destkeystore NEW.p12 -deststoretype PKCS12)"
        )
    return _read_pkcs12(data, path, password, option)


def _read_pkcs12(data: bytes, path: str, password: str | None, option: str) -> _Store:
    serialization = _cryptography(path)
    try:
        store = serialization.pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        # Its two messages distinguish a wrong password or damage from other files, such as BCFKS or a certificate.
        if "password" in str(error):
            raise _locked(path, option) from error
        raise OptionError(f"{path}: neither PEM nor a store of type PKCS12 or JKS; convert it with keytool") from error
    chain = [
        entry.certificate.public_bytes(serialization.Encoding.DER)
        for entry in (store.cert, *store.additional_certs)
        if entry is not None
    ]
    number = 0 if store.key is None else max(1, data.count(_PKCS12_KEY))
    return _Store(chain, [(lambda: store.key, chain)] * number)


def _read_jks(data: bytes, path: str, password: str | None, option: str) -> _Store:
    content, digest = data[:-_SHA1_BYTES], data[-_SHA1_BYTES:]
    if password is not None:
        salted = password.encode("utf-16-be") + b"Mighty Aphrodite" + content
        if not compare_digest(hashlib.sha1(salted, usedforsecurity=False).digest(), digest):
            raise _locked(path, option)
    store = _Store([], [])
    position = len(_JKS)

    def take(form: str) -> Any:  # noqa: ANN401 - a number, or bytes
        nonlocal position
        (value,) = struct.unpack_from(form, content, position)
        position += struct.calcsize(form)
        return value

    def take_certificate() -> bytes:
        if version > 1:
            take(f"{take('>H')}s")
        found: bytes = take(f"{take('>I')}s")
        store.certificates.append(found)
        return found

    try:
        version = take(">I")
        for _ in range(take(">I")):
            kind = take(">I")
            take(f"{take('>H')}s")
            take("8s")
            if kind == 1:
                encrypted = take(f"{take('>I')}s")
                chain = [take_certificate() for _ in range(take(">I"))]
                store.keys.append((partial(_decrypt, encrypted, path, password or "", option), chain))
            else:
                take_certificate()
    except struct.error as error:
        raise OptionError(f"{path}: the JKS store is damaged ({error})") from error
    return store


def _decrypt(encrypted: bytes, path: str, password: str, option: str) -> Any:  # noqa: ANN401 - its classes vary
    """Return a private key of a JKS store."""
    protected = encrypted.partition(_JKS_KEY)[2]
    if not protected:
        raise OptionError(f"{path}: the private key is not encrypted as JKS describes; convert the store to PKCS12")
    # An OCTET STRING: a salt, the key, and a digest of the key. Its length may take more than one byte.
    body = protected[2 + (protected[1] & 0x7F if protected[1] & 0x80 else 0) :]
    salt, hidden, check = body[:_SHA1_BYTES], body[_SHA1_BYTES:-_SHA1_BYTES], body[-_SHA1_BYTES:]
    secret = password.encode("utf-16-be")
    stream, last = b"", salt
    while len(stream) < len(hidden):
        last = hashlib.sha1(secret + last, usedforsecurity=False).digest()
        stream += last
    key = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if not compare_digest(hashlib.sha1(secret + key, usedforsecurity=False).digest(), check):
        raise OptionError(
            f"{path}: the private key has another password than the store ({option}); give both the same (keytool "
            f"-keypasswd -keystore {path} -alias NAME)"
        )
    try:
        return _cryptography(path).load_der_private_key(key, None)
    except ValueError as error:
        raise OptionError(f"{path}: the private key has an unknown type") from error


def _locked(path: str, option: str) -> OptionError:
    return OptionError(f"{path}: the password does not open the store, or the file is damaged; check {option}")


def _cryptography(path: str) -> Any:  # noqa: ANN401 - a module that may be missing
    try:
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.serialization import pkcs12  # noqa: F401, PLC0415 - loads the submodule
    except ImportError as error:
        raise UnsupportedFeatureError(
            f"{path}: this store needs cryptography: pip install 'spark-mq-source[stores]' on the driver and every "
            f"executor"
        ) from error
    return serialization
