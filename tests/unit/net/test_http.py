"""JSON over HTTP from real servers: the result or error of each answer."""

import contextlib
import json
import socket
from urllib.parse import urlsplit

import pytest
import urllib3

from spark_mq_source.core.errors import (
    AuthenticationError,
    BrokerError,
    OptionError,
    RemoteProtocolError,
    ServiceNotReadyError,
    TopicNotFoundError,
    TransportError,
)
from spark_mq_source.net import http as net_http
from spark_mq_source.net.http import fetch_json
from spark_mq_source.net.transport import TlsSettings
from tests.fix_net import HOST, ScriptError, abort, close, deaf_address, failing_tls, free_port, send, stay_silent
from tests.http_server import ScriptedHttpServer

JSON = b'{"ledgers": [{"ledgerId": 7, "entries": 3}]}'


def fetch(url, *, headers=None, tls=None, timeout_seconds=20.0, **more):
    return fetch_json(url, headers=headers or {}, tls=tls, timeout_seconds=timeout_seconds, **more)


def test_an_answer():
    with ScriptedHttpServer((200, JSON, {})) as server:
        answer = fetch(f"{server.origin}/admin/v2/x?y=1", headers={"Authorization": "Bearer secret"})
    assert answer == json.loads(JSON)
    path, headers = server.asked[0]
    assert path == "/admin/v2/x?y=1"
    assert headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("value", ["Bearer secret\n", "Bearer sec\0ret", "Bearer sec\r\nret", "Bearer secret\x7f"])
def test_a_header_with_a_control_character_is_refused_without_its_value(value):
    with pytest.raises(OptionError, match="the header Authorization contains a control character") as caught:
        fetch(f"http://{HOST}:{free_port()}", headers={"Authorization": value})
    assert "sec" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BrokerError),
        (401, AuthenticationError),
        (403, AuthenticationError),
        (404, TopicNotFoundError),
        (409, BrokerError),
        (500, BrokerError),
    ],
)
def test_a_refusal_is_raised_at_once_with_the_servers_message(status, kind):
    with ScriptedHttpServer((status, b'{"reason":"not for you"}', {})) as server, pytest.raises(kind) as caught:
        fetch(f"{server.origin}/x", headers={"Authorization": "Bearer secret"})
    assert type(caught.value) is kind
    assert caught.value.code == status
    assert not caught.value.retryable
    assert str(caught.value) == f'{server.origin}/x: HTTP status {status} ({{"reason":"not for you"}})'
    assert caught.value.broker_message == '{"reason":"not for you"}'
    assert len(server.asked) == 1


def test_long_and_undecodable_messages_are_truncated():
    with ScriptedHttpServer((500, b"\xff" * 1000, {})) as server, pytest.raises(BrokerError) as caught:
        fetch(server.origin)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_request_to_a_server_that_is_not_ready_is_repeated(status):
    with ScriptedHttpServer((status, b"", {}), (status, b"", {}), (200, JSON, {})) as server:
        assert fetch(server.origin) == json.loads(JSON)
    assert len(server.asked) == 3


def test_a_server_that_never_gets_ready_ends_at_the_deadline():
    starting = pytest.raises(ServiceNotReadyError, match=r"HTTP status 503 \(starting\)")
    with ScriptedHttpServer((503, b"starting", {})) as server, starting as caught:
        fetch(server.origin, timeout_seconds=1)
    assert caught.value.code == 503
    assert len(server.asked) > 1


def test_a_retry_after_of_an_hour_is_not_waited_for():
    with ScriptedHttpServer((503, b"", {"Retry-After": "3600"}), (200, JSON, {})) as server:
        assert fetch(server.origin) == json.loads(JSON)


@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff\xfe", b"[" * 100_000, b'{"a": 1'])
def test_an_answer_that_is_not_json(body):
    with (
        ScriptedHttpServer((200, body, {})) as server,
        pytest.raises(RemoteProtocolError, match="not JSON; check the admin"),
    ):
        fetch(server.origin)


def test_an_answer_that_is_too_large(monkeypatch):
    monkeypatch.setattr(net_http, "MAX_BODY_BYTES", 1000)
    with ScriptedHttpServer((200, b"[" + b" " * 998 + b"]", {}), (200, b"[" + b" " * 999 + b"]", {})) as server:
        assert fetch(server.origin) == []
        with pytest.raises(RemoteProtocolError, match="more than 1000 bytes"):
            fetch(server.origin)


@pytest.mark.parametrize("step", [send(b"\x00\x00\x00\x15 not http\r\n\r\n"), stay_silent])
def test_an_answer_that_is_not_http_ends_at_the_deadline(scripted_server, step):
    server = scripted_server([step], repeat=True)
    with pytest.raises(TransportError, match=f"{server.address}/x: no answer"):
        fetch(f"http://{server.address}/x", timeout_seconds=0.3)


@pytest.mark.skipif(not hasattr(urllib3.HTTPResponse, "read1"), reason="this urllib3 cannot read a part of a piece")
def test_an_answer_that_comes_too_slowly_ends_at_the_deadline(scripted_server, monkeypatch):
    monkeypatch.setattr(net_http, "MAX_BODY_BYTES", 4 << 20)

    def answer(peer):
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError):  # the client has closed
            while True:
                peer.send(b" ")

    server = scripted_server([answer])
    with pytest.raises(TransportError, match="the answer had not ended in time; check the admin address"):
        fetch(f"http://{server.address}", timeout_seconds=1)


def test_a_port_without_a_listener():
    port = free_port()
    with pytest.raises(TransportError, match="Connection refused") as caught:
        fetch(f"http://{HOST}:{port}/x", timeout_seconds=0.3)
    assert "check the admin address" in str(caught.value)
    assert " at 0x" not in str(caught.value)


def test_an_address_that_does_not_answer_leaves_time_for_the_next(monkeypatch):
    with ScriptedHttpServer((200, JSON, {})) as server, deaf_address() as deaf:
        port = urlsplit(server.origin).port
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", at) for at in (deaf, (HOST, port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        assert fetch(f"http://two-addresses.example:{port}/x", timeout_seconds=4) == json.loads(JSON)


def test_a_request_on_a_broken_connection_is_repeated(scripted_server):
    def answer(peer):
        while peer.read_line() != b"\r":
            pass
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(JSON), JSON))

    def break_off(peer):
        while peer.read_line() != b"\r":
            pass
        peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(JSON), JSON[:7]))

    server = scripted_server([close], [break_off], [answer])
    assert fetch(f"http://{server.address}/x") == json.loads(JSON)


# -- redirects: a broker redirects a request about a topic to the broker that serves it


TOKEN = {"Authorization": "Bearer secret"}


def test_a_redirect_to_an_unknown_host_does_not_get_the_token():
    with (
        ScriptedHttpServer((200, JSON, {})) as second,
        ScriptedHttpServer((307, b"", {"Location": f"http://localhost:{second.port}/there"})) as first,
    ):
        with pytest.raises(RemoteProtocolError, match=r"no option names localhost, .*; do this") as caught:
            fetch(f"{first.origin}/here", headers=TOKEN, remedy="; do this")
        assert second.asked == []
        assert first.origin in str(caught.value)
        assert "secret" not in str(caught.value)
        assert fetch(f"{first.origin}/here") == json.loads(JSON), "a redirect without a token is followed"
        assert fetch(f"{first.origin}/here", headers=TOKEN, is_trusted=["localhost"].__contains__) == json.loads(JSON)
    assert [asked.get("Authorization") for _, asked in second.asked] == [None, "Bearer secret"]


def test_a_redirect_back_from_a_trusted_host_is_followed():
    onwards = {}
    with (
        ScriptedHttpServer((307, b"", onwards), (200, JSON, {})) as home,
        ScriptedHttpServer((307, b"", {"Location": f"{home.origin}/back"})) as away,
    ):
        onwards["Location"] = f"http://localhost:{away.port}/there"
        assert fetch(home.origin, headers=TOKEN, is_trusted=["localhost"].__contains__) == json.loads(JSON)
    assert [(path, headers["Authorization"]) for path, headers in home.asked] == [
        (path, "Bearer secret") for path in ("/", "/back")
    ]


def test_a_redirect_to_no_address():
    with (
        ScriptedHttpServer((307, b"", {"Location": "http://[::1"})) as server,
        pytest.raises(RemoteProtocolError, match="which is not an address"),
    ):
        fetch(server.origin)


def test_circular_redirects():
    with (
        ScriptedHttpServer((307, b"", {"Location": "/again"})) as server,
        pytest.raises(RemoteProtocolError, match="redirected"),
    ):
        fetch(f"{server.origin}/here")
    assert [path for path, _ in server.asked] == ["/here"] + ["/again"] * net_http.MAX_REDIRECTS


def test_a_redirect_without_an_address_is_a_refusal():
    with ScriptedHttpServer((307, b"where to?", {})) as server, pytest.raises(BrokerError, match="HTTP status 307"):
        fetch(server.origin)


def test_a_redirect_from_https_to_http_is_not_followed(tls_material):
    with (
        ScriptedHttpServer((200, JSON, {})) as plain,
        ScriptedHttpServer((307, b"", {"Location": plain.origin}), context=tls_material.server()) as secure,
        pytest.raises(RemoteProtocolError, match="a redirect from HTTPS"),
    ):
        fetch(secure.origin, headers={"Authorization": "Bearer secret"}, tls=TlsSettings(tls_material.ca))
    assert plain.asked == []


# -- TLS


def test_https_with_a_client_certificate(tls_material):
    with ScriptedHttpServer((200, JSON, {}), context=tls_material.server(wants_client=True)) as server:
        assert fetch(server.origin, tls=TlsSettings(tls_material.ca, tls_material.client)) == json.loads(JSON)
        with pytest.raises(TransportError):
            fetch(server.origin, tls=TlsSettings(tls_material.ca), timeout_seconds=0.5)


@pytest.mark.parametrize("trusted", ["other", "system", "none given"])
def test_https_from_an_authority_that_is_not_trusted_fails_at_once(scripted_server, tls_material, trusted):
    server = scripted_server([failing_tls(tls_material.server())])
    tls = {"other": TlsSettings(tls_material.other_ca), "system": TlsSettings(), "none given": None}[trusted]
    # The server fails the test at a second request.
    with pytest.raises(TransportError, match="certificate verify failed") as caught:
        fetch(f"https://{server.address}/x", tls=tls)
    assert not caught.value.retryable


def test_http_to_an_https_port_ends_at_the_second_try(scripted_server, tls_material):
    server = scripted_server([failing_tls(tls_material.server())], repeat=True)
    with pytest.raises(TransportError, match="speaks TLS: use https://") as caught:
        fetch(f"http://{server.address}/x")
    assert not caught.value.retryable
    assert len(server.peers) == 3  # two requests, and a check for TLS


@pytest.mark.parametrize("end", [close, abort], ids=["eof", "reset"])
@pytest.mark.parametrize("keeps_silent", [True, False])
def test_https_to_a_port_that_closes_ends_if_it_closes_only_handshakes(
    scripted_server, tls_material, end, keeps_silent
):
    def hang_up(peer):
        if keeps_silent:
            with contextlib.suppress(ScriptError):
                peer.read(1)
        end(peer)

    server = scripted_server([hang_up], repeat=True)
    timeout_seconds = 20.0 if keeps_silent else 1.0
    with pytest.raises(TransportError) as caught:
        fetch(f"https://{server.address}/x", tls=TlsSettings(tls_material.ca), timeout_seconds=timeout_seconds)
    assert caught.value.retryable is not keeps_silent
    assert (len(server.peers) == 4) is keeps_silent  # the request, a handshake, silence, a handshake


def test_https_for_another_name(tls_material):
    context = tls_material.server("other_name")
    with ScriptedHttpServer((200, JSON, {}), context=context) as server:
        with pytest.raises(TransportError, match="no answer"):
            fetch(server.origin, tls=TlsSettings(tls_material.ca), timeout_seconds=1)
        settings = TlsSettings(tls_material.ca, verify_hostname=False)
        assert fetch(server.origin, tls=settings) == json.loads(JSON)


def test_a_redirect_to_https_is_verified(tls_material):
    with (
        ScriptedHttpServer((200, JSON, {}), context=tls_material.server()) as secure,
        ScriptedHttpServer((307, b"", {"Location": secure.origin})) as plain,
    ):
        assert fetch(plain.origin, tls=TlsSettings(tls_material.ca)) == json.loads(JSON)
        with pytest.raises(TransportError, match="certificate verify failed"):
            fetch(plain.origin, tls=TlsSettings(tls_material.other_ca))


# -- forms


def post(url, form):
    return fetch_json(url, headers={}, tls=None, timeout_seconds=20.0, form=form, address="the issuer")


def test_a_form_is_posted():
    with ScriptedHttpServer((200, JSON, {})) as server:
        assert post(f"{server.origin}/x", {"a": "b c&", "ä": "1"}) == json.loads(JSON)
    assert server.forms == [b"a=b+c%26&%C3%A4=1"]
    assert server.asked[0][1]["Content-Type"] == "application/x-www-form-urlencoded"


def test_a_form_is_sent_again_if_the_server_restarts():
    with ScriptedHttpServer((503, b"", {}), (200, JSON, {})) as server:
        assert post(f"{server.origin}/x", {"a": "1"}) == json.loads(JSON)
    assert server.forms == [b"a=1", b"a=1"]


def test_the_servers_message_about_a_form_is_not_in_the_error():
    with ScriptedHttpServer((400, b"you said hush", {})) as server, pytest.raises(BrokerError) as caught:
        post(f"{server.origin}/x", {"secret": "hush"})
    assert str(caught.value) == f"{server.origin}/x: HTTP status 400"
    assert caught.value.broker_message == "you said hush"


def test_a_redirect_of_a_form_is_not_followed():
    with (
        ScriptedHttpServer((200, JSON, {})) as other,
        ScriptedHttpServer((307, b"", {"Location": f"{other.origin}/y"})) as server,
        pytest.raises(RemoteProtocolError, match="which is not followed with a secret; check the issuer"),
    ):
        post(f"{server.origin}/x", {"secret": "hush"})
    assert other.forms == []
