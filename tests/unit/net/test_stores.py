"""Java key stores made by keytool: the certificates and keys that TLS gets from them, and errors."""

from __future__ import annotations

import select
import ssl
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from spark_mq_source.core.errors import OptionError, UnsupportedFeatureError
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import TlsSettings, connect
from tests.fix_net import HOST, expect_eof, send, tls
from tests.java_stores import STORE_PASSWORD, keytool, make_key_store, make_trust_store

TYPES = ("PKCS12", "JKS")


@pytest.fixture(scope="session")
def stores(tls_material, tmp_path_factory):
    """Return a function that returns the path of a store by content and type, and makes it at the first call."""
    folder = tmp_path_factory.mktemp("stores")

    def make(path, content, kind):
        certificate, key = Path(tls_material.client_cert), Path(tls_material.client_key)
        if content == "trust":
            return make_trust_store(path, kind, Path(tls_material.ca))
        if content == "no certificate":
            make_trust_store(path, kind, Path(tls_material.ca))
            keytool("-delete", "-alias", "authority", "-keystore", path, "-storepass", STORE_PASSWORD)
            return path
        make_key_store(path, kind, certificate, key, *(("one", "two") if content == "two keys" else ()))
        if content == "other password":
            change = ("-storepass", STORE_PASSWORD, "-keypass", STORE_PASSWORD, "-new", "another-one")
            keytool("-keypasswd", "-alias", "client", "-keystore", path, *change)
        return path

    def find(content, kind):
        path = folder / f"{content}.{kind}"
        return str(path if path.exists() else make(path, content, kind))

    return find


@pytest.mark.parametrize("kind", TYPES)
def test_mutual_tls_with_stores(stores, tls_material, scripted_server, monkeypatch, tmp_path, kind):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = scripted_server([tls(tls_material.server(wants_client=True)), send(b"x"), expect_eof()])
    settings = TlsSettings(
        stores("trust", kind), stores("key", kind), trust_password=STORE_PASSWORD, key_password=STORE_PASSWORD
    )
    assert STORE_PASSWORD not in repr(settings)
    transport = connect(HOST, server.port, tls=settings, deadline=Deadline.after_ms(20_000))
    view = memoryview(bytearray(1))
    while transport.recv_into(view) is None:
        assert select.select([transport], [], [], 10)[0]
    transport.close()
    assert bytes(view) == b"x"
    assert list(tmp_path.iterdir()) == []


def test_the_key_is_in_no_file_unencrypted(stores, monkeypatch):
    seen = []

    class Context(ssl.SSLContext):
        def load_cert_chain(self, certfile, keyfile=None, password=None):
            seen.append((Path(certfile).read_bytes(), Path(certfile).stat().st_mode & 0o777))
            super().load_cert_chain(certfile, keyfile, password)

    monkeypatch.setattr(ssl, "create_default_context", lambda **_: Context(ssl.PROTOCOL_TLS_CLIENT))
    TlsSettings(client_cert=stores("key", "JKS"), key_password=STORE_PASSWORD).context()
    ((content, mode),) = seen
    assert b"BEGIN ENCRYPTED PRIVATE KEY" in content
    assert b"BEGIN PRIVATE KEY" not in content
    assert mode == 0o600


def test_a_jks_store_is_trusted_without_its_password(stores):
    assert len(TlsSettings(stores("trust", "JKS")).context().get_ca_certs()) == 1


def test_a_pem_key_may_be_encrypted(tls_material):
    TlsSettings(None, tls_material.client_cert, tls_material.client_key_encrypted, key_password="sesame").context()


def trusting(path, password):
    return TlsSettings(path, trust_password=password)


def being(path, password):
    return TlsSettings(client_cert=path, key_password=password)


@pytest.mark.parametrize(
    ("use", "content", "kind", "password", "words"),
    [
        (trusting, "trust", "PKCS12", "wrong", "the password does not open the store.*check trustCertsPassword"),
        (trusting, "trust", "JKS", "wrong", "the password does not open the store.*check trustCertsPassword"),
        (trusting, "trust", "PKCS12", None, "the password does not open the store"),
        (being, "key", "JKS", "wrong", "the password does not open the store.*check clientKeyPassword"),
        (being, "key", "JKS", None, "has a password: set clientKeyPassword"),
        (being, "other password", "JKS", STORE_PASSWORD, "the private key has another password.*keytool -keypasswd"),
        (being, "trust", "PKCS12", STORE_PASSWORD, "contains 0 private keys, and must contain one"),
        (being, "trust", "JKS", STORE_PASSWORD, "contains 0 private keys"),
        (being, "two keys", "PKCS12", STORE_PASSWORD, "contains 2 private keys.*keytool -importkeystore"),
        (being, "two keys", "JKS", STORE_PASSWORD, "contains 2 private keys"),
        (trusting, "no certificate", "JKS", STORE_PASSWORD, "contains no certificate"),
        (trusting, "trust", "JCEKS", STORE_PASSWORD, "a store of type JCEKS; convert it .keytool -importkeystore"),
    ],
)
def test_a_store_that_cannot_be_used(stores, use, content, kind, password, words):
    path = stores(content, kind)
    with pytest.raises(OptionError, match=words) as caught:
        use(path, password).context()
    assert path in str(caught.value)
    assert STORE_PASSWORD not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (bytes.fromhex("30820102 3003 0201"), "neither PEM nor a store of type PKCS12 or JKS"),
        (bytes.fromhex("feedfeed 00000002 00000001 00000002 ffff") + b"x" * 30, "the JKS store is damaged"),
        (b"\0\0\0\2\0\0\0\x14", "a store of type BKS"),
    ],
    ids=["BCFKS", "cut", "BKS"],
)
def test_invalid_bytes_of_a_store(tmp_path, content, words):
    (tmp_path / "store").write_bytes(content)
    with pytest.raises(OptionError, match=words):
        trusting(str(tmp_path / "store"), None).context()


def test_a_key_beside_a_store_is_an_error(stores, tls_material):
    with pytest.raises(OptionError, match="contains the client's key: remove clientKey"):
        TlsSettings(None, stores("key", "JKS"), tls_material.client_key, key_password=STORE_PASSWORD).context()


@pytest.mark.parametrize("kind", ["PEM", *TYPES])
def test_doctor_shows_which_certificate_expires_first(stores, tls_material, kind):
    if kind == "PEM":
        settings = TlsSettings(tls_material.ca, tls_material.client)
    else:
        passwords = {"trust_password": STORE_PASSWORD, "key_password": STORE_PASSWORD}
        settings = TlsSettings(stores("trust", kind), stores("key", kind), **passwords)
    found = {name: step() for name, step in settings.steps()}
    (_, trusts), (_, identifies) = replace(settings, client_key="/none").steps()
    assert trusts() in found.values()
    with pytest.raises(OptionError, match="/none: no such file"):
        identifies()
    days = [
        x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc.date()
        for path in (tls_material.ca, tls_material.client_cert)
    ]
    assert found == {
        f"read the certificates in {settings.trust_certs}": f"1; CN=our test authority expires first, on {days[0]}",
        f"read the certificates in {settings.client_cert}": f"1; CN=client expires first, on {days[1]}",
    }


def test_without_cryptography_the_error_names_the_package(stores, monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    assert trusting(stores("trust", "JKS"), STORE_PASSWORD).context().get_ca_certs()
    assert [step()[:6] for _, step in trusting(stores("trust", "JKS"), None).steps()] == ["usable"]
    with pytest.raises(UnsupportedFeatureError, match=r"pip install 'spark-mq-source\[stores\]'"):
        being(stores("key", "JKS"), STORE_PASSWORD).context()
