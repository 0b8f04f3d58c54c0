"""Tokens: their sources, lifetime and names of principals, and secrets that are never shown."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import pickle

import pytest

from brokers.credentials import make_credentials
from spark_mq_source.core.errors import AuthenticationError, MQSourceError, OptionError, TransportError
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.pulsar.client import oauth2
from spark_mq_source.pulsar.client.admin import http_headers
from spark_mq_source.pulsar.client.authentication import (
    BasicAuthentication,
    PluginAuthentication,
    TlsAuthentication,
    TokenAuthentication,
    TokenFileAuthentication,
    TokenSupplierAuthentication,
)
from spark_mq_source.pulsar.client.oauth2 import OAuth2Authentication
from spark_mq_source.pulsar.client.session import authentication_of
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.protocol.codec import encode_command
from spark_mq_source.pulsar.protocol.connection import PulsarConnection
from tests.fix_net import free_port
from tests.issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from tests.java_stores import STORE_PASSWORD, make_trust_store


def jwt(subject: str) -> str:
    payload = base64.urlsafe_b64encode(json.dumps({"sub": subject}).encode()).rstrip(b"=").decode()
    return f"e30.{payload}.c2lnbmF0dXJl"


@pytest.fixture
def supplier(supply):
    return lambda function: TokenSupplierAuthentication(supply(function))


def test_a_function_is_called_for_each_token(supplier):
    number = itertools.count()
    authentication = supplier(lambda: f" token-{next(number)}\n")
    assert [authentication.auth_data(c) for c in (None, b"PulsarAuthRefresh")] == [b"token-0", b"token-1"]
    assert supplier(lambda: b"abc").auth_data(None) == b"abc"


@pytest.mark.parametrize("returned", [None, "", "  ", 7])
def test_a_function_that_returns_no_token_is_an_error(supplier, returned):
    with pytest.raises(AuthenticationError, match="authTokenSupplier='of_mine:function' returned no token"):
        supplier(lambda: returned).auth_data(None)


def test_a_function_that_fails_shows_no_secret(supplier):
    def fetch():
        raise RuntimeError(f"no answer for {CLIENT_SECRET}")

    with pytest.raises(AuthenticationError, match="failed with RuntimeError") as caught:
        supplier(fetch).auth_data(None)
    assert CLIENT_SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.fixture
def plugin(supply):
    return lambda function: PluginAuthentication(supply(function), "broker")


def test_a_plugin_answers_challenges_with_the_state_of_its_connection(plugin):
    def authenticate(host, challenge, state):
        if challenge is None:
            assert state == {}
            state["steps"] = b"1"
            return "steps", f"hello {host}"
        state["steps"] += challenge
        return "steps", state["steps"]

    def respond(challenge):
        connection.receive_data(encode_command(c.AuthChallenge("b", c.AuthData("steps", challenge), 19)))
        return connection.data_to_send()

    def answer(data):
        return encode_command(c.AuthResponse("test", c.AuthData("steps", data), 20))

    first = plugin(authenticate)
    connection = PulsarConnection(client_version="test", authentication=first, now=0.0)
    assert b"\x05steps" in (connect := connection.data_to_send())
    assert b"hello broker" in connect
    assert [respond(challenge) for challenge in (b"2", b"3")] == [answer(b"12"), answer(b"123")]
    connection.receive_data(encode_command(c.Connected("b", 19, 1024)))
    assert respond(b"PulsarAuthRefresh") == answer(b"hello broker")
    assert respond(b"2") == answer(b"12")
    # Connections with the same first data are equal, whatever their state.
    assert first == PluginAuthentication("of_mine:function", "broker")
    assert "123" not in repr(first)


@pytest.mark.parametrize("returned", [None, "token", ("token", 7), ("", b"x"), ("token", b"x", 1), (b"token", b"x")])
def test_a_plugin_that_returns_something_else_is_an_error(plugin, returned):
    with pytest.raises(AuthenticationError, match="authPlugin='of_mine:function' must return a method"):
        plugin(lambda *_: returned).auth_data(None)


@pytest.mark.parametrize(
    ("method", "data", "headers"),
    [
        ("token", b"t0k", {"Authorization": "Bearer t0k"}),
        ("token", b" t0k\n", {"Authorization": "Bearer t0k"}),
        ("token", b"t\xff", {"Authorization": "Bearer t\xff"}),
        ("basic", b"t0k", {"Authorization": "Basic dDBr"}),
        ("steps", b"t0k", {}),
    ],
)
def test_the_admin_api_supports_methods_with_an_http_scheme(plugin, method, data, headers):
    given = {"serviceUrl": "pulsar://b", "topic": "t", "authPlugin": plugin(lambda *_: (method, data)).function}
    assert http_headers(PulsarOptions.from_spark(given, READ)) == headers


@pytest.mark.parametrize(
    ("authentication", "proof", "principal"),
    [
        (TokenAuthentication(jwt("al")), jwt("al"), "'al' (the token's subject)"),
        (TokenAuthentication("opaque"), "opaque", "whom the token is about"),
        (TokenAuthentication("a.!.c"), "a.!.c", "whom the token is about"),
        (TokenAuthentication("a.W10.c"), "a.W10.c", "whom the token is about"),
        (TokenFileAuthentication("/f"), jwt("al"), "'al' (the token's subject) in /f"),
        (TokenSupplierAuthentication("m:f"), jwt("al"), "'al' (the token's subject) from m:f"),
        (PluginAuthentication("m:f", "h", "token"), jwt("al"), "'al' (the token's subject) from authPlugin=m:f"),
        (PluginAuthentication("m:f", "h", "sasl"), "hush", "the client of 'sasl' from authPlugin=m:f"),
        (BasicAuthentication("al", "hush"), "al:hush", "user 'al'"),
        (TlsAuthentication("/c.pem"), "", "the owner of the certificate /c.pem"),
        (OAuth2Authentication("https://i", client_id="c"), "t", "client 'c' of https://i"),
        (OAuth2Authentication("https://i", credentials_file="/c"), "t", "the client in /c of https://i"),
    ],
)
def test_an_error_names_the_principal(authentication, proof, principal):
    assert authentication.principal(proof.encode()) == principal


@pytest.mark.parametrize("scope", [READ, WRITE])
@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({"authToken": CLIENT_SECRET}, TokenAuthentication),
        ({"authTokenFile": "/f"}, TokenFileAuthentication),
        ({"authTokenSupplier": "m:f"}, TokenSupplierAuthentication),
        ({"authPlugin": "m:f"}, PluginAuthentication),
        ({"authBasicUser": "u", "authBasicPassword": CLIENT_SECRET}, BasicAuthentication),
        ({"clientCert": "/c"}, TlsAuthentication),
        ({"issuerUrl": "https://i", "authClientId": "c", "authClientSecret": CLIENT_SECRET}, OAuth2Authentication),
        ({"issuerUrl": "https://i", "authCredentialsFile": "/c"}, OAuth2Authentication),
    ],
)
def test_options_choose_and_show_no_secret(given, kind, scope):
    required = {"serviceUrl": "pulsar+ssl://b", "topic": "t"}
    options = PulsarOptions.from_spark(required | given, scope)
    authentication = authentication_of(options)
    assert type(authentication) is kind
    for shown in (repr(options), str(options), repr(authentication), str(authentication), f"{authentication!r}"):
        assert CLIENT_SECRET not in shown
    # The executors get all of it.
    assert authentication_of(pickle.loads(pickle.dumps(options))) == authentication  # noqa: S301 - our own


# -- OAuth 2.0


@pytest.fixture(autouse=True)
def _no_tokens(monkeypatch):
    monkeypatch.setattr(oauth2, "_tokens", {})


@pytest.fixture
def issuer():
    number = itertools.count()
    with Issuer(lambda: f"token-{next(number)}") as issuer:
        yield issuer


def client_of(issuer, **more):
    return OAuth2Authentication(
        issuer.url, **({"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET, "timeout_ms": 20_000} | more)
    )


def test_a_token_is_requested_by_rfc_6749(issuer):
    authentication = client_of(issuer, audience="urn:broker", scope="a b")
    assert authentication.auth_data(None) == b"token-0"
    assert issuer.asked == [
        {
            "grant_type": "client_credentials",
            "client_id": CLIENT_ID,
            "client_secret": CLIENT_SECRET,
            "audience": "urn:broker",
            "scope": "a b",
        }
    ]
    # Parameters that are not set are not sent.
    client_of(issuer).auth_data(None)
    assert set(issuer.asked[1]) == {"grant_type", "client_id", "client_secret"}


def test_a_token_is_cached_by_the_current_contents_of_the_file(issuer, tmp_path):
    file = tmp_path / "credentials.json"
    authentication = client_of(issuer, client_id=None, client_secret=None, credentials_file=str(file))
    right, wrong = ({"client_id": CLIENT_ID, "client_secret": secret} for secret in (CLIENT_SECRET, "wrong"))
    for _ in range(2):
        file.write_text(json.dumps({"type": "client_credentials"} | right))
        assert authentication.auth_data(None) == b"token-0"
        file.write_text(json.dumps(wrong))
        with pytest.raises(AuthenticationError, match="invalid_client"):
            authentication.auth_data(None)
    file.unlink()
    with pytest.raises(AuthenticationError, match="cannot be read"):
        authentication.auth_data(None)


def test_a_process_requests_a_token_once_until_it_is_old(issuer, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(oauth2.time, "monotonic", lambda: now)
    assert client_of(issuer).auth_data(None) == b"token-0"
    now += 3600 * 0.9 - 1
    assert client_of(issuer).auth_data(None) == b"token-0"
    now += 2
    assert client_of(issuer).auth_data(None) == b"token-1"
    assert client_of(issuer, scope="other").auth_data(None) == b"token-2"


def test_a_challenge_is_answered_with_a_new_token_once_for_all_connections(issuer, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(oauth2.time, "monotonic", lambda: now)
    assert client_of(issuer).auth_data(None) == b"token-0"
    now += 60
    assert client_of(issuer).auth_data(b"PulsarAuthRefresh") == b"token-1"
    assert client_of(issuer).auth_data(b"PulsarAuthRefresh") == b"token-1"
    assert client_of(issuer).auth_data(None) == b"token-1"


def test_a_token_without_a_lifetime_is_used_once():
    with Issuer(lambda: "t", expires_in=None) as issuer:
        for _ in range(2):
            client_of(issuer).auth_data(None)
        assert len(issuer.asked) == 2


def test_an_issuer_of_a_private_authority(tmp_path):
    credentials = make_credentials(tmp_path)
    server = str(credentials.certificate("server")), str(credentials.key("server"))
    with Issuer(lambda: "t", certificate=server) as issuer:
        store = str(make_trust_store(tmp_path / "trust.p12", "PKCS12", credentials.ca_certificate))
        for trusted in (
            {"trust_certs": str(credentials.ca_certificate)},
            {"trust_certs": store, "trust_password": STORE_PASSWORD},
        ):
            assert client_of(issuer, **trusted).auth_data(None) == b"t"
        with pytest.raises(OptionError, match=r"no token for client 'flights'.*check authIssuerTrustCertsPassword"):
            client_of(issuer, trust_certs=store).auth_data(None)
        with pytest.raises(TransportError, match=r"no token for client 'flights'.*authIssuerUrl"):
            client_of(issuer).auth_data(None)


def test_a_refusal_has_the_client_and_reason_and_no_secret(issuer):
    with pytest.raises(AuthenticationError) as caught:
        client_of(issuer, client_secret="wrong-and-secret").auth_data(None)
    sentence = str(caught.value)
    assert f"no token for client 'flights' of {issuer.url}: {issuer.origin}/tokens: HTTP status 401" in sentence
    assert "invalid_client: *** is not the secret of flights" in sentence
    assert "wrong-and-secret" not in sentence
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("refusal", "kind", "words"),
    [
        ((400, json.dumps({"error": "invalid_scope"})), AuthenticationError, "HTTP status 400: invalid_scope"),
        ((500, f"<html>{CLIENT_SECRET}"), AuthenticationError, "HTTP status 500$"),
        ((400, json.dumps([CLIENT_SECRET])), AuthenticationError, "HTTP status 400$"),
        ((200, "<html>"), MQSourceError, "the answer is not JSON; check authIssuerUrl"),
        ((200, "[]"), AuthenticationError, "the answer has no access_token"),
        ((200, json.dumps({"access_token": ""})), AuthenticationError, "the answer has no access_token"),
    ],
)
def test_no_answer_of_an_issuer_reveals_a_secret(issuer, refusal, kind, words, caplog):
    caplog.set_level(logging.DEBUG)
    issuer.refusal = refusal
    with pytest.raises(kind, match=words) as caught:
        client_of(issuer).auth_data(None)
    assert CLIENT_SECRET not in str(caught.value)
    assert CLIENT_SECRET not in caplog.text


def test_an_issuer_that_is_unreachable_or_invalid():
    nobody = OAuth2Authentication(f"http://127.0.0.1:{free_port()}", client_id="c", client_secret="s", timeout_ms=300)
    with pytest.raises(TransportError, match=r"no token for client 'c'.*check authIssuerUrl"):
        nobody.auth_data(None)
    with (
        Issuer(lambda: "t") as issuer,
        pytest.raises(AuthenticationError, match=r"no token for client 'c'.*HTTP status 404"),
    ):
        OAuth2Authentication(issuer.origin, client_id="c", client_secret="s").auth_data(None)


@pytest.mark.parametrize("text", [None, "", "[]", '{"client_id": "c"}', '{"client_secret": "hush-and-more-hush"'])
def test_an_invalid_credentials_file(tmp_path, text):
    file = tmp_path / "c.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(AuthenticationError, match=r"c\.json") as caught:
        OAuth2Authentication("https://i", credentials_file=str(file)).auth_data(None)
    assert CLIENT_SECRET not in str(caught.value)
