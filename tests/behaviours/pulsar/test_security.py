"""Every way to authenticate to a broker that authorizes, for reading and writing."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from brokers.credentials import BASIC_PASSWORD, BASIC_USER, Credentials
from brokers.pulsar import PulsarStandalone, distribution
from spark_mq_source.core.errors import AuthenticationError, AuthorizationError, MQSourceError
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.client import oauth2
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar.test_writer import options, write
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_net import HOST, RecordingProxy, SniProxy
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat, assert_each_once
from tests.issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from tests.java_program import SOURCES
from tests.java_stores import STORE_PASSWORD, make_key_store, make_trust_store

ROLE = "flights"
Supply = Callable[[Callable[..., object]], str]


@dataclass
class Way:
    """A way to authenticate.

    Attributes:
        options: for it.
        role: the role that the broker assigns.
        principal: the principal that errors name.
        secrets: texts that must not appear anywhere.
    """

    options: Mapping[str, str]
    role: str
    principal: str
    secrets: tuple[str, ...]


@pytest.fixture
def credentials(pulsar_featured: PulsarUnderTest) -> Credentials:
    found = pulsar_featured.require_own().credentials
    assert found is not None
    return found


@pytest.fixture
def issuer(credentials: Credentials, monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    """Run an issuer whose tokens the broker accepts."""
    monkeypatch.setattr(oauth2, "_tokens", {})
    with Issuer(lambda: credentials.token(ROLE)) as issuer:
        yield issuer


WAYS = ["token", "token file", "token supplier", "OAuth2", "OAuth2 file", "basic", "mTLS", "stores", "token over TLS"]


@pytest.fixture(params=WAYS)
def way(  # noqa: PLR0911 - one a way
    request: pytest.FixtureRequest,
    pulsar_featured: PulsarUnderTest,
    credentials: Credentials,
    supply: Supply,
    issuer: Issuer,
    tmp_path: Path,
) -> Way:
    token = credentials.token(ROLE)
    subject = f"'{ROLE}' (the token's subject)"
    tls = {
        "serviceUrl": pulsar_featured.require_own().service_url_tls,
        "trustCerts": str(credentials.ca_certificate),
    }
    file = tmp_path / "secret"
    match request.param:
        case "token":
            return Way({"authToken": token}, ROLE, subject, (token,))
        case "token file":
            file.write_text(token)
            return Way({"authTokenFile": str(file)}, ROLE, f"{subject} in {file}", (token,))
        case "token supplier":
            function = supply(lambda: token)
            return Way({"authTokenSupplier": function}, ROLE, f"{subject} from {function}", (token,))
        case "OAuth2":
            given = {"authIssuerUrl": issuer.url, "authClientId": CLIENT_ID, "authClientSecret": CLIENT_SECRET}
            return Way(given, ROLE, f"client '{CLIENT_ID}' of {issuer.url}", (token, CLIENT_SECRET))
        case "OAuth2 file":
            file.write_text(json.dumps({"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}))
            given = {"issuerUrl": issuer.url, "authCredentialsFile": str(file), "audience": "urn:pulsar"}
            return Way(given, ROLE, f"the client in {file} of {issuer.url}", (token, CLIENT_SECRET))
        case "basic":
            given = {"authBasicUser": BASIC_USER, "authBasicPassword": BASIC_PASSWORD}
            return Way(given, BASIC_USER, f"user '{BASIC_USER}'", (BASIC_PASSWORD,))
        case "mTLS":
            certificate = str(credentials.certificate("client"))
            given = tls | {"clientCert": certificate, "clientKey": str(credentials.key("client"))}
            return Way(given, "client", f"the owner of the certificate {certificate}", ())
        case "stores":
            authority, certificate, key = (
                credentials.ca_certificate,
                credentials.certificate("client"),
                credentials.key("client"),
            )
            store = make_key_store(tmp_path / "key.jks", "JKS", certificate, key)
            given = {
                "serviceUrl": tls["serviceUrl"],
                "pulsar.client.authPluginClassName": "org.apache.pulsar.client.impl.auth.AuthenticationKeyStoreTls",
                "pulsar.client.authParams": f"keyStoreType:JKS,keyStorePath:{store},keyStorePassword:{STORE_PASSWORD}",
                "pulsar.client.useKeyStoreTls": "true",
                "pulsar.client.tlsTrustStoreType": "JKS",
                "pulsar.client.tlsTrustStorePath": str(make_trust_store(tmp_path / "trust.jks", "JKS", authority)),
                "pulsar.client.tlsTrustStorePassword": STORE_PASSWORD,
            }
            return Way(given, "client", f"the owner of the certificate {store}", (STORE_PASSWORD,))
        case _:
            return Way(tls | {"authToken": token}, ROLE, subject, (token,))


@pytest.fixture
def namespace(pulsar_featured: PulsarUnderTest) -> str:
    """Return a namespace without any permissions."""
    return pulsar_featured.new_namespace()


def read(broker: PulsarUnderTest, topic: str, given: Mapping[str, str]) -> list[bytes]:
    return PulsarFormat(broker).read(topic, **given).column("value").to_pylist()


def write_one(broker: PulsarUnderTest, topic: str, given: Mapping[str, str]) -> None:
    write(broker, topic, {"value": [b"v"]}, **given)


def test_granted_operations_work_and_others_are_refused_with_principal_and_operation(
    pulsar_featured: PulsarUnderTest, namespace: str, way: Way, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    broker, admin = pulsar_featured, pulsar_featured.admin
    topic = broker.topic(2, namespace=namespace)
    refusals = []

    def refused(do: Callable[[], object], what: str) -> None:
        with pytest.raises(AuthorizationError) as caught:
            do()
        sentence = str(caught.value)
        for words in ("pulsar-native", topic, f"as {way.principal}: ", "AuthorizationError (4)", what):
            assert words in sentence
        refusals.append(sentence)

    def reads() -> list[bytes]:
        return read(broker, topic, way.options)

    def writes() -> None:
        write_one(broker, topic, way.options)

    refused(reads, "Client is not authorized to Get Partition Metadata")
    refused(writes, "Client is not authorized to Get Partition Metadata")
    admin.grant(namespace, way.role, ["consume"])
    assert reads() == []
    refused(writes, "Client is not authorized to Produce; ask for consume (produce to write) permission")
    admin.grant(namespace, way.role, ["produce"])
    with PulsarWriter(options(broker, topic, **way.options), TaskAttempt("job")) as writer:
        for value in (b"v", b"w"):
            writer.write(pa.record_batch({"value": [value]}))
            writer.flush()
            admin.unload_namespace(namespace)
    refused(reads, "Client is not authorized to subscribe; ask for consume")
    admin.grant(namespace, way.role, ["consume", "produce"])
    assert sorted(reads()) == [b"v", b"w"]
    made = options(broker, topic, **way.options)
    assert "opening the producer again" in caplog.text
    for shown in (*refusals, caplog.text, repr(made), str(made)):
        assert not any(secret in shown for secret in way.secrets)


@pytest.mark.parametrize("does", ["reads", "writes"])
@pytest.mark.parametrize("kind", ["token", "password", "client secret", "certificate"])
def test_invalid_credentials_are_refused_without_details(
    pulsar_featured: PulsarUnderTest,
    credentials: Credentials,
    issuer: Issuer,
    kind: str,
    does: str,
):
    token = credentials.token("al")[:-6] + "AAAAAA"
    given, secret, words = {
        "token": (
            {"authToken": token},
            token,
            r"connecting as 'al' \(the token's subject\).*AuthenticationError \(3\)",
        ),
        "password": (
            {"authBasicUser": BASIC_USER, "authBasicPassword": "wrong-word"},
            "wrong-word",
            rf"connecting as user '{BASIC_USER}'.*AuthenticationError \(3\)",
        ),
        "client secret": (
            {"authIssuerUrl": issuer.url, "authClientId": CLIENT_ID, "authClientSecret": "wrong-word"},
            "wrong-word",
            rf"no token for client '{CLIENT_ID}' of {issuer.url}.*HTTP status 401: invalid_client",
        ),
        "certificate": (
            {
                "serviceUrl": pulsar_featured.require_own().service_url_tls,
                "trustCerts": str(credentials.ca_certificate),
                "clientCert": str(credentials.certificate("stranger")),
                "clientKey": str(credentials.key("stranger")),
            },
            "BEGIN",
            "TLS was refused by the peer|the TLS handshake failed",
        ),
    }[kind]
    topic = pulsar_featured.topic()
    do = read if does == "reads" else write_one
    with pytest.raises(MQSourceError, match=words) as caught:
        do(pulsar_featured, topic, given)
    assert secret not in str(caught.value)


# -- tokens that expire during the operation


MESSAGES = 2_000
SMALL = {"maxBatchRows": 1, "receiverQueueSize": 20, "operationTimeout": "5s"}
"""Limits with which most entries are still on the broker when the first batch is emitted."""


class Frames(io.StringIO):
    """The commands that passed a recording proxy."""

    def passed(self, kind: str) -> int:
        return sum(json.loads(line)["type"] == kind for line in self.getvalue().splitlines())


def proxied(featured: PulsarFormat, frames: Frames) -> RecordingProxy:
    parts = urlsplit(featured.broker.service_url)
    return RecordingProxy(parts.hostname or "", parts.port or 0, frames, "token")


def short_lived_token(credentials: Credentials) -> str:
    """Return a token that is valid for connecting, and not for long."""
    return credentials.token("admin", expires_at_s=time.time() + 4)


class Renewal:
    """A source of tokens: the first one expires soon; those fetched after `renew` do not."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._first: str | None = None
        self.asked = 0
        self.file: Path | None = None
        self._is_renewed = False

    def fetch(self) -> str:
        self.asked += 1
        if self._is_renewed:
            return self._credentials.token("admin")
        self._first = self._first or short_lived_token(self._credentials)
        return self._first

    def renew(self) -> None:
        self._is_renewed = True
        if self.file is not None:
            self.file.write_text(self.fetch())


@pytest.fixture
def renewal(credentials: Credentials) -> Renewal:
    return Renewal(credentials)


@pytest.fixture
def renewed(
    request: pytest.FixtureRequest,
    renewal: Renewal,
    supply: Supply,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[dict[str, str]]:
    """Yield options that renew a token."""
    way = getattr(request, "param", "supplier")
    if way == "file":
        renewal.file = tmp_path / "token"
        renewal.file.write_text(renewal.fetch())
        yield {"authTokenFile": str(renewal.file)}
        return
    if way == "supplier":
        yield {"authTokenSupplier": supply(renewal.fetch)}
        return
    if way == "plug-in":
        yield {"authPlugin": supply(lambda host, challenge, state: ("token", renewal.fetch()))}
        return
    monkeypatch.setattr(oauth2, "_tokens", {})
    monkeypatch.setattr(oauth2, "_FRESH_SECONDS", 0.0)  # the token is old as soon as it is refused
    with Issuer(renewal.fetch) as issuer:
        yield {"authIssuerUrl": issuer.url, "authClientId": CLIENT_ID, "authClientSecret": CLIENT_SECRET}


def test_a_write_continues_with_a_renewed_token_on_its_connection(
    featured: PulsarFormat, renewal: Renewal, renewed: dict[str, str]
):
    topic = featured.broker.topic()
    with proxied(featured, frames := Frames()) as proxy:
        given = options(featured.broker, topic, service=("127.0.0.1", proxy.port), **renewed)
        with PulsarWriter(given, TaskAttempt("job")) as writer:
            writer.write(pa.record_batch({"value": [b"0"]}))
            writer.flush()
            opened = proxy.connections
            renewal.renew()
            wait_until(lambda: frames.passed("AUTH_RESPONSE") >= opened, "the renewed tokens are sent")
            writer.write(pa.record_batch({"value": [b"1"]}))
            writer.finish()
        assert frames.passed("AUTH_CHALLENGE") == frames.passed("AUTH_RESPONSE")
        assert proxy.connections == opened
    assert renewal.asked > 1
    assert featured.read(topic).column("value").to_pylist() == [b"0", b"1"]


@pytest.fixture
def topic(featured: PulsarFormat) -> str:
    """Return a topic of batches of ten messages, on the broker that checks for expired tokens every second."""
    name = featured.broker.topic()
    values = [b"%d" % n for n in range(MESSAGES)]
    write(featured.broker, name, {"value": values}, batchingMaxMessages=10, **featured.defaults)
    return name


@pytest.mark.parametrize("renewed", ["file", "supplier", "plug-in", "OAuth2"], indirect=True)
def test_a_read_continues_with_a_renewed_token_on_its_connection(
    featured: PulsarFormat, topic: str, renewal: Renewal, renewed: dict[str, str]
):
    reader = PulsarFormat(featured.broker)
    rows = []
    with proxied(featured, frames := Frames()) as proxy:
        given = SMALL | {"service": ("127.0.0.1", proxy.port)} | renewed
        for number, batch in enumerate(reader.batches(topic, f"value binary, {MESSAGE_ID}", **given)):
            rows += batch.to_pylist()
            if number == 0:
                opened = proxy.connections
                renewal.renew()
                wait_until(lambda: frames.passed("AUTH_RESPONSE") > 0, "the renewed token is sent")
        assert frames.passed("AUTH_CHALLENGE") == frames.passed("AUTH_RESPONSE")
        assert proxy.connections == opened
    assert renewal.asked > 1
    assert_each_once(rows, reader.position_of)
    assert [int(row["value"]) for row in rows] == list(range(MESSAGES))


def test_an_expired_token_ends_the_read(featured: PulsarFormat, topic: str, credentials: Credentials):
    token = short_lived_token(credentials)
    reader = PulsarFormat(featured.broker)
    with proxied(featured, frames := Frames()) as proxy:
        batches = reader.batches(topic, **SMALL, service=("127.0.0.1", proxy.port), authToken=token)
        assert next(batches).num_rows
        wait_until(lambda: frames.passed("AUTH_RESPONSE") > 0, "the old token is sent again")
        with pytest.raises(AuthenticationError, match=rf"reading {topic}.*expired") as caught:
            assert sum(batch.num_rows for batch in batches) < MESSAGES
    assert token not in str(caught.value)


def test_an_expired_token_ends_the_write(featured: PulsarFormat, credentials: Credentials):
    topic = featured.broker.topic()
    token = short_lived_token(credentials)
    with proxied(featured, frames := Frames()) as proxy:
        given = options(featured.broker, topic, service=("127.0.0.1", proxy.port), authToken=token)
        with PulsarWriter(given, TaskAttempt("job")) as writer:
            writer.write(pa.record_batch({"value": [b"0"]}))
            writer.flush()
            wait_until(lambda: frames.passed("AUTH_RESPONSE") > 0, "the old token is sent again")
            with pytest.raises(AuthenticationError, match=rf"writing to {topic}.*") as caught:
                write_until_refused(writer)
    assert token not in str(caught.value)


def write_until_refused(writer: PulsarWriter) -> None:
    """Write until an error: the broker accepts messages until it checks the answer."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        writer.write(pa.record_batch({"value": [b"1"]}))
        writer.flush()


# -- methods of plug-ins


@pytest.mark.slow
@pytest.mark.broker
def test_a_proxy_that_forwards_by_server_name(pulsar_featured: PulsarUnderTest, credentials: Credentials):
    broker, topic = pulsar_featured.require_own(), pulsar_featured.topic()
    port = urlsplit(broker.service_url_tls).port
    assert port is not None
    # This name does not resolve: only the proxy finds the broker.
    with SniProxy("broker.test", HOST, port) as proxy:
        given = {
            "serviceUrl": f"pulsar+ssl://broker.test:{port}",
            "proxyServiceUrl": f"pulsar+ssl://{proxy.address}",
            "trustCerts": str(credentials.ca_certificate),
            "authToken": credentials.token("admin"),
        }
        write_one(pulsar_featured, topic, given)
        assert read(pulsar_featured, topic, given) == [b"v"]
        assert set(proxy.asked) == {"broker.test"}
        where = f"other.test:{port} through {proxy.address}: closed during the TLS handshake"
        with pytest.raises(MQSourceError, match=re.escape(where)):
            read(pulsar_featured, topic, given | {"serviceUrl": f"pulsar+ssl://other.test:{port}"})


def test_a_method_of_several_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, supply: Supply):
    """The broker's side is a provider in its class path, so the test starts a separate broker."""
    libraries = distribution() / "lib"
    subprocess.run(
        ["javac", "-proc:none", "-cp", f"{libraries}/*", "-d", tmp_path, SOURCES / "StepsProvider.java"], check=True
    )
    monkeypatch.setenv("PULSAR_EXTRA_CLASSPATH", str(tmp_path))
    hosts = []

    def authenticate(host: str, challenge: bytes | None, state: dict[str, object]) -> tuple[str, str]:
        if challenge is None:
            hosts.append(host)
            state["word"] = str(len(hosts))
            return "steps", str(state["word"])
        return "steps", hashlib.sha256(f"{secret}{state['word']}{challenge.decode()}".encode()).hexdigest()

    providers = "org.apache.pulsar.broker.authentication.AuthenticationProviderToken,StepsProvider"
    broker = PulsarStandalone(tmp_path / "pulsar", featured=True, overrides={"authenticationProviders": providers})
    broker.start()
    try:
        given = {"serviceUrl": broker.service_url, "topic": "steps", "authPlugin": supply(authenticate)}
        secret = "a-shared-secret"
        written = PulsarOptions.from_spark({**given, "createTopic": "true"}, WRITE)
        with PulsarWriter(written, TaskAttempt("job")) as writer:
            writer.write(pa.record_batch({"value": [b"v"]}))
            writer.finish()
        with PulsarClient(PulsarOptions.from_spark(given, READ)) as client:
            assert [tp.partition for tp in client.fetch_partitions(["persistent://public/default/steps"])] == [-1]
        assert set(hosts) == {"127.0.0.1"}
        secret = "another"
        with (
            PulsarClient(PulsarOptions.from_spark(given, READ)) as client,
            pytest.raises(
                AuthenticationError, match="connecting as the client of 'steps' from authPlugin=of_mine:function"
            ),
        ):
            client.fetch_partitions(["persistent://public/default/steps"])
    finally:
        broker.remove()
