"""Key stores made by the JDK's keytool."""

from __future__ import annotations

import subprocess
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12

STORE_PASSWORD = "password-of-stores"


def keytool(*arguments: str | Path) -> None:
    """Run keytool without prompts."""
    subprocess.run(["keytool", "-noprompt", *arguments], check=True, capture_output=True, timeout=60)


def make_trust_store(path: Path, kind: str, authority: Path, password: str = STORE_PASSWORD) -> Path:
    """Make a store of this type with one certificate."""
    keytool(
        "-importcert", "-alias", "authority", "-file", authority, "-keystore", path, "-storetype", kind, "-storepass",
        password,
    )  # fmt: skip
    return path


def make_key_store(path: Path, kind: str, certificate: Path, key: Path, *aliases: str) -> Path:
    """Make a store of this type with the key and its certificate, once under each alias."""
    found = serialization.load_pem_private_key(key.read_bytes(), None)
    assert isinstance(found, ec.EllipticCurvePrivateKey)
    owner = x509.load_pem_x509_certificate(certificate.read_bytes())
    lock = serialization.BestAvailableEncryption(STORE_PASSWORD.encode())
    for alias in aliases or ("client",):
        given = path.with_suffix(".given")
        given.write_bytes(pkcs12.serialize_key_and_certificates(alias.encode(), found, owner, None, lock))
        keytool(
            "-importkeystore", "-srckeystore", given, "-srcstorepass", STORE_PASSWORD, "-destkeystore", path,
            "-deststoretype", kind, "-deststorepass", STORE_PASSWORD,
        )  # fmt: skip
        given.unlink()
    return path
