"""Creates temporary credentials for a local broker: a certificate authority, certificates, tokens, a password file."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import secrets
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BASIC_USER = "basic-user"
BASIC_PASSWORD = "flights-and-ledgers"  # noqa: S105 - protects nothing: a broker on loopback with made-up data
# Its Apache md5 hash, the form documented for Pulsar's basic authentication.
BASIC_HASH = "$apr1$sparkmqs$DaAJL4n/87RuwxotsD7nb0"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Paths and secrets of one broker instance.

    The server certificate is valid for 127.0.0.1, 127.0.0.2 and broker.test, but not for localhost, so that host name
    verification of localhost fails.
    """

    folder: Path
    secret_key: bytes

    @property
    def ca_certificate(self) -> Path:
        """The authority that clients must trust."""
        return self.folder / "ca.pem"

    @property
    def other_ca_certificate(self) -> Path:
        """An authority that signed only the stranger: a client that trusts only this one must refuse the broker."""
        return self.folder / "other-ca.pem"

    def certificate(self, name: str) -> Path:
        """The certificate file of `server`, `client` (role client), or `stranger`, which no broker trusts."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        """The private key file of `server`, `client` or `stranger`, PKCS 8."""
        return self.folder / f"{name}.key"

    @property
    def password_file(self) -> Path:
        """The htpasswd file with BASIC_USER."""
        return self.folder / "htpasswd"

    def token(self, role: str, *, expires_at_s: float | None = None) -> str:
        """A JSON Web Token (HS256) for a role.

        Args:
            role: the token's subject; `admin` is the super user.
            expires_at_s: Unix time in seconds after which the broker refuses it; None for never.
        """
        claims: dict[str, object] = {"sub": role}
        if expires_at_s is not None:
            claims["exp"] = int(expires_at_s)
        parts = [_base64url(json.dumps(part).encode()) for part in ({"alg": "HS256"}, claims)]
        signature = hmac.new(self.secret_key, ".".join(parts).encode(), hashlib.sha256).digest()
        return ".".join([*parts, _base64url(signature)])

    @property
    def secret_key_setting(self) -> str:
        """The broker's `tokenSecretKey`."""
        return "data:;base64," + base64.b64encode(self.secret_key).decode()


def make_credentials(folder: Path) -> Credentials:
    """Writes new certificates, keys and a password file into the folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    credentials = Credentials(folder, secrets.token_bytes(32))
    ca_key = ec.generate_private_key(ec.SECP256R1())
    ca_name = _name("spark-mq-source test authority")
    ca = _certificate(ca_name, ca_key.public_key(), ca_name, ca_key, is_ca=True)
    _write_certificate(credentials.ca_certificate, ca)
    other_key = ec.generate_private_key(ec.SECP256R1())
    other_name = _name("another test authority")
    other_ca = _certificate(other_name, other_key.public_key(), other_name, other_key, is_ca=True)
    _write_certificate(credentials.other_ca_certificate, other_ca)
    for name in ("server", "client", "stranger"):
        key = ec.generate_private_key(ec.SECP256R1())
        signed_by = (other_name, other_key) if name == "stranger" else (ca_name, ca_key)
        certificate = _certificate(_name(name), key.public_key(), *signed_by, is_ca=False)
        _write_certificate(credentials.certificate(name), certificate)
        credentials.key(name).touch(mode=0o600)
        credentials.key(name).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    credentials.password_file.write_text(f"{BASIC_USER}:{BASIC_HASH}\n")
    return credentials


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _write_certificate(path: Path, certificate: x509.Certificate) -> None:
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def _certificate(
    subject: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_ca: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        # Python 3.13 verifies strictly: it requires both key identifiers and, for an authority, the key usage.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()),
            critical=False,
        )
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=is_ca,
                crl_sign=is_ca,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if not is_ca:
        addresses = [x509.IPAddress(ipaddress.ip_address(f"127.0.0.{number}")) for number in (1, 2)]
        names = [*addresses, x509.DNSName("broker.test")]
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return builder.sign(issuer_key, hashes.SHA256())
