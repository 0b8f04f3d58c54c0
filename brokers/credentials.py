"""Temporary credentials for a local broker: a certificate authority, certificates, tokens, a password file."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import json
import secrets
from collections.abc import Sequence
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
        """Return the certificate file of `server`, `client` (role client), or `stranger`, which no broker trusts."""
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        """Return the private key file of `server`, `client` or `stranger`, PKCS 8."""
        return self.folder / f"{name}.key"

    @property
    def password_file(self) -> Path:
        """The htpasswd file with BASIC_USER."""
        return self.folder / "htpasswd"

    def token(self, role: str, *, expires_at_s: float | None = None) -> str:
        """Return a JSON Web Token (HS256) for a role.

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
    """Write new certificates, keys and a password file into the folder, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    credentials = Credentials(folder, secrets.token_bytes(32))
    ours, others = Authority("spark-mq-source test authority"), Authority("another test authority")
    credentials.ca_certificate.write_bytes(pem_of(ours.certificate))
    credentials.other_ca_certificate.write_bytes(pem_of(others.certificate))
    for name in ("server", "client", "stranger"):
        certificate, key = (others if name == "stranger" else ours).issue(
            name, ["127.0.0.1", "127.0.0.2", "broker.test"]
        )
        credentials.certificate(name).write_bytes(pem_of(certificate))
        credentials.key(name).touch(mode=0o600)
        credentials.key(name).write_bytes(key_pem_of(key))
    credentials.password_file.write_text(f"{BASIC_USER}:{BASIC_HASH}\n")
    return credentials


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Authority:
    """A certificate authority.

    Args:
        name: its common name.
        has_key_usage: whether its certificate has a key usage; `openssl req -x509` makes one without.
    """

    def __init__(self, name: str, *, has_key_usage: bool = True) -> None:
        self._name = _name(name)
        self._has_key_usage = has_key_usage
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(self._name, self._key.public_key(), is_ca=True)

    def issue(
        self, name: str, hosts: Sequence[str] = (), *, days: int = 30
    ) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
        """Return a certificate for a server and a client, and its private key.

        Args:
            name: the common name.
            hosts: addresses and host names for which it is valid.
            days: until it expires; a negative number for one that has expired.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        return self._sign(_name(name), key.public_key(), hosts, days=days), key

    def _sign(
        self,
        subject: x509.Name,
        public_key: ec.EllipticCurvePublicKey,
        hosts: Sequence[str] = (),
        *,
        days: int = 30,
        is_ca: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.timezone.utc)
        others = ["content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"]
        usage = x509.KeyUsage(
            digital_signature=True, key_cert_sign=is_ca, crl_sign=is_ca,
            **dict.fromkeys([*others, "decipher_only"], False),
        )  # fmt: skip
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=3))
            .not_valid_after(now + datetime.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            # Python 3.13 verifies strictly: it requires both key identifiers and, for an authority, the key usage.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
        )
        if self._has_key_usage or not is_ca:
            builder = builder.add_extension(usage, critical=True)
        if not is_ca:
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        if hosts:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, hashes.SHA256())


def pem_of(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem_of(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    """Return a private key as PEM (PKCS 8), encrypted if there is a password."""
    encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if password is not None:
        encryption = serialization.BestAvailableEncryption(password)
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
