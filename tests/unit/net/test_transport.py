"""Opening of streams: each kind of failure has its class, its message and its deadline."""

import os
import pickle
import resource
import select
import socket
import ssl
import threading

import pytest

from brokers.credentials import Authority, key_pem_of, pem_of
from spark_mq_source.core.errors import ConnectionLostError, ConnectTimeoutError, OptionError, TransportError
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import MIN_SILENCE_SECONDS, TlsSettings, Transport, connect, is_tls_port
from tests.fix_net import (
    HOST,
    ScriptError,
    abort,
    close,
    deaf_address,
    expect,
    expect_eof,
    failing_tls,
    free_port,
    open_descriptors,
    send,
    stay_silent,
    tls,
    wait,
)

SHORT_MS = 300
LONG_MS = 20_000
AMPLE_MS = 600_000
"""Timeout of a decision that takes two handshakes; on a busy machine a handshake may take a third of LONG_MS."""


def hello(peer):
    """Read the first bytes that the client sends."""
    peer.read(2)


def silence(peer):
    """Wait until the client closes a connection on which it has sent nothing."""
    peer.sock.settimeout(AMPLE_MS / 1000)
    with pytest.raises(ScriptError, match="have only b''"):
        peer.read(1)


def readable(transport):
    assert select.select([transport], [], [], 10)[0], "nothing to read within 10 s"


def receive(transport, size):
    """Return exactly `size` bytes, or fewer at the end of the stream."""
    data = bytearray(size)
    got = 0
    while got < size:
        n = transport.recv_into(memoryview(data)[got:])
        if n is None:
            readable(transport)
        elif n == 0:
            break
        else:
            got += n
    return bytes(data[:got])


def fails(expected, *, host=HOST, port, settings=None, timeout_ms=LONG_MS, retryable):
    """Return the error of connecting; check its class, and that it survives pickling."""
    with pytest.raises(TransportError) as caught:
        connect(host, port, tls=settings, deadline=Deadline.after_ms(timeout_ms)).close()
    assert type(caught.value) is expected
    assert caught.value.retryable is retryable
    assert f"{host}:{port}" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301
    return str(caught.value)


# -- TCP


def test_bytes_are_sent_in_both_directions(scripted_server):
    server = scripted_server([expect(b"hello"), send(b"welcome"), close])
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(LONG_MS))
    assert transport.address == f"{HOST}:{server.port}"
    assert transport.recv_into(memoryview(bytearray(10))) is None
    assert transport.send(memoryview(b"hello")) == 5
    assert receive(transport, 100) == b"welcome"
    assert transport.recv_into(memoryview(bytearray(1))) == 0
    assert not transport.pending()
    transport.close()
    transport.close()


def test_a_reset_is_a_lost_connection(scripted_server):
    server = scripted_server([expect(b"x"), abort])
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(LONG_MS))
    transport.send(memoryview(b"x"))
    readable(transport)
    with pytest.raises(ConnectionLostError, match=f"{server.address}: the connection broke") as caught:
        transport.recv_into(memoryview(bytearray(1)))
    assert caught.value.retryable
    with pytest.raises(ConnectionLostError, match="the connection broke"):
        transport.send(memoryview(b"x"))
    transport.close()


def test_a_full_socket_accepts_bytes_again_when_it_is_read(scripted_server):
    go_on = threading.Event()
    sent = 0

    def drain(peer):
        peer.read(sent)

    server = scripted_server([wait(go_on), drain, close])
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(LONG_MS))
    block = memoryview(bytes(1 << 20))
    while n := transport.send(block):
        sent += n
    assert sent > 0
    go_on.set()
    assert receive(transport, 1) == b""
    transport.close()
    assert len(server.peers[0].seen) == sent


def test_a_port_without_a_listener():
    sentence = fails(TransportError, port=free_port(), retryable=True)
    assert "Connection refused" in sentence
    assert "check the address and that the broker runs" in sentence


def test_a_name_that_does_not_exist():
    sentence = fails(TransportError, host="no-such-host.invalid", port=6650, retryable=True)
    assert "cannot find the host" in sentence


@pytest.mark.parametrize("host", ["a..b", ".example", "a" * 64 + ".example"])
def test_an_invalid_name_is_an_option_error(host):
    with pytest.raises(OptionError, match="not a host name") as caught:
        connect(host, 6650, tls=None, deadline=Deadline.after_ms(LONG_MS))
    assert host in str(caught.value)


@pytest.mark.timeout(100)
def test_no_answer_to_syn_ends_at_the_common_deadline_of_all_addresses(monkeypatch):
    with deaf_address() as target:
        sentence = fails(ConnectTimeoutError, port=target[1], timeout_ms=SHORT_MS, retryable=True)
        assert "no TCP connection in time" in sentence
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(2, 1, 6, "", target)] * 1000)
        # With one deadline for each address it would take 300 s.
        fails(ConnectTimeoutError, host="many.example", port=6650, timeout_ms=SHORT_MS, retryable=True)


def test_an_address_without_a_listener_does_not_hide_the_next(scripted_server, monkeypatch):
    server = scripted_server([expect_eof()])
    dead = free_port()
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (HOST, port)) for port in (dead, server.port)]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    connect("two-addresses.example", 6650, tls=None, deadline=Deadline.after_ms(LONG_MS)).close()


def test_an_ipv6_address_stands_in_brackets():
    with pytest.raises(TransportError, match=r"^\[::1\]:1: cannot connect"):
        connect("::1", 1, tls=None, deadline=Deadline.after_ms(LONG_MS))


# -- TLS


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("host", ["localhost", HOST])
def test_tls_with_a_trusted_certificate(scripted_server, tls_material, host, version):
    server = scripted_server([tls(tls_material.server(version=version)), expect(b"hello"), send(b"welcome"), close])
    settings = TlsSettings(trust_certs=tls_material.ca)
    transport = connect(host, server.port, tls=settings, deadline=Deadline.after_ms(LONG_MS))
    assert transport.send(memoryview(b"hello")) == 5
    assert receive(transport, 100) == b"welcome"
    transport.close()
    transport.close()


@pytest.mark.parametrize("end", [close, abort], ids=["eof", "reset"])
def test_a_tls_session_that_ends_without_a_close(scripted_server, tls_material, end):
    server = scripted_server([tls(tls_material.server()), expect(b"x"), end])
    settings = TlsSettings(trust_certs=tls_material.ca)
    transport = connect(HOST, server.port, tls=settings, deadline=Deadline.after_ms(LONG_MS))
    transport.send(memoryview(b"x"))
    try:
        assert receive(transport, 1) == b""
    except ConnectionLostError as error:
        # A reset is the end of the stream or an error, depending on the bytes that TLS still had to read.
        assert end is abort
        assert error.retryable  # noqa: PT017
    transport.close()


def test_an_authority_that_is_not_trusted(scripted_server, tls_material):
    server = scripted_server([failing_tls(tls_material.server())], repeat=True)
    unverified_name = TlsSettings(tls_material.other_ca, verify_hostname=False)
    for settings in (TlsSettings(tls_material.other_ca), TlsSettings(None), unverified_name):
        sentence = fails(TransportError, port=server.port, settings=settings, retryable=False)
        assert "the certificate is not trusted" in sentence
        assert "set trustCerts" in sentence


def test_an_authority_without_key_usage_is_accepted_by_every_version_of_python(scripted_server, tmp_path, monkeypatch):
    default = ssl.create_default_context

    def strict(**given):  # as from Python 3.13 on
        context = default(**given)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    authority = Authority("an old authority", has_key_usage=False)
    (tmp_path / "ca.pem").write_bytes(pem_of(authority.certificate))
    certificate, key = authority.issue("localhost", ["localhost"])
    (tmp_path / "server.pem").write_bytes(pem_of(certificate) + key_pem_of(key))
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "server.pem")
    server = scripted_server([tls(served), send(b"x"), expect_eof()])
    settings = TlsSettings(str(tmp_path / "ca.pem"))
    transport = connect("localhost", server.port, tls=settings, deadline=Deadline.after_ms(LONG_MS))
    assert receive(transport, 1) == b"x"
    transport.close()


def test_a_certificate_for_another_name(scripted_server, tls_material):
    context = tls_material.server("other_name")
    server = scripted_server([failing_tls(context)], [tls(context), send(b"x"), expect_eof()])
    settings = TlsSettings(tls_material.ca)
    sentence = fails(TransportError, host="localhost", port=server.port, settings=settings, retryable=False)
    assert "Hostname mismatch" in sentence
    assert "connect by a name that is in it" in sentence
    # The chain is still verified then; only the name is not.
    settings = TlsSettings(tls_material.ca, verify_hostname=False)
    transport = connect("localhost", server.port, tls=settings, deadline=Deadline.after_ms(LONG_MS))
    assert receive(transport, 1) == b"x"
    transport.close()


def test_an_expired_certificate(scripted_server, tls_material):
    server = scripted_server([failing_tls(tls_material.server("expired"))])
    settings = TlsSettings(tls_material.ca)
    assert "certificate has expired" in fails(TransportError, port=server.port, settings=settings, retryable=False)


def test_tls_to_a_plain_port_that_answers_something_else(scripted_server, tls_material):
    server = scripted_server([send(b"HTTP/1.1 400 Bad Request\r\n\r\n"), stay_silent])
    sentence = fails(TransportError, port=server.port, settings=TlsSettings(tls_material.ca), retryable=False)
    assert "the TLS handshake failed" in sentence
    assert "check that this port uses TLS" in sentence


def test_tls_to_a_plain_port_that_is_silent(scripted_server, tls_material):
    server = scripted_server([stay_silent])
    settings = TlsSettings(tls_material.ca)
    sentence = fails(ConnectTimeoutError, port=server.port, settings=settings, timeout_ms=SHORT_MS, retryable=True)
    assert "no TLS handshake in time; check that this port uses TLS" in sentence


@pytest.mark.parametrize("end", [close, abort], ids=["eof", "reset"])
def test_a_port_that_closes_during_each_handshake_does_not_speak_tls(scripted_server, tls_material, end):
    # A plain Pulsar port does so. The connection between the two handshakes is silent, and is kept.
    server = scripted_server([hello, end], [silence], [hello, end])
    settings = TlsSettings(tls_material.ca)
    sentence = fails(ConnectionLostError, port=server.port, settings=settings, timeout_ms=AMPLE_MS, retryable=False)
    assert "closed during the TLS handshake" in sentence
    assert "check that this port uses TLS" in sentence


@pytest.mark.parametrize("end", [close, abort], ids=["eof", "reset"])
@pytest.mark.parametrize(
    ("timeout_ms", "connections"),
    [(AMPLE_MS, 2), (int(MIN_SILENCE_SECONDS * 1000) - 1, 1)],
    ids=["enough", "short"],
)
def test_a_port_that_closes_every_connection_is_retryable(scripted_server, tls_material, end, timeout_ms, connections):
    # A load balancer does so while its broker restarts; the error is the same if no time is left to find out.
    server = scripted_server(*[[hello, end], [end]][:connections])
    settings = TlsSettings(tls_material.ca)
    fails(ConnectionLostError, port=server.port, settings=settings, timeout_ms=timeout_ms, retryable=True)


def test_a_connection_that_is_reset_before_its_handshake_begins(scripted_server, tls_material):
    server = scripted_server([abort])
    with socket.create_connection((HOST, server.port)) as sock:
        select.select([sock], [], [])
        with pytest.raises(ConnectionLostError, match="closed during the TLS handshake"):
            Transport(sock, "peer").start_tls(TlsSettings(tls_material.ca), HOST, deadline=Deadline.after_ms(AMPLE_MS))


def test_a_handshake_that_a_restart_interrupts_is_repeated(scripted_server, tls_material):
    server = scripted_server([hello, close], [silence], [tls(tls_material.server()), send(b"welcome"), close])
    deadline = Deadline.after_ms(AMPLE_MS)
    transport = connect(HOST, server.port, tls=TlsSettings(tls_material.ca), deadline=deadline)
    assert receive(transport, 100) == b"welcome"
    transport.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda one: one.name)
def test_the_second_connection_that_a_tls_port_closes_reveals_tls(scripted_server, tls_material, version):
    context = tls_material.server()
    context.maximum_version = version
    server = scripted_server([failing_tls(context)], repeat=True)
    kept = ConnectionLostError("why")
    for attempt in (1, 2):
        transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(LONG_MS))
        found = transport.why_lost(kept)
        transport.close()
        assert (found is kept) is (attempt == 1)
    assert type(found) is TransportError
    assert not found.retryable
    assert f"{server.address}: this port speaks TLS" in str(found)
    assert transport.why_lost(other := OptionError("x")) is other


@pytest.mark.parametrize("answer", [b"", b"\x15", b"\x15\x02", b"HTTP/1.1 400"])
def test_a_port_without_an_answer_to_tls_is_no_tls_port(scripted_server, answer):
    server = scripted_server([hello, send(answer), close], repeat=True)
    assert [is_tls_port(HOST, server.port) for _ in range(2)] == [False, False]


def test_a_peer_that_has_answered_without_tls_is_not_probed_for_it(scripted_server):
    server = scripted_server([send(b"x"), close])
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(LONG_MS))
    assert receive(transport, 100) == b"x"
    lost = ConnectionLostError("why")
    assert transport.why_lost(lost) is lost
    transport.close()
    assert [is_tls_port(HOST, server.port) for _ in range(2)] == [False, False]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_mutual_tls(scripted_server, tls_material, version):
    context = tls_material.server(wants_client=True, version=version)
    server = scripted_server([tls(context), send(b"x"), expect_eof()], repeat=True)
    for cert, key in ((tls_material.client, None), (tls_material.client_cert, tls_material.client_key)):
        settings = TlsSettings(tls_material.ca, cert, key)
        transport = connect(HOST, server.port, tls=settings, deadline=Deadline.after_ms(LONG_MS))
        assert receive(transport, 1) == b"x"
        transport.close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("who", ["nobody", "stranger"])
def test_mutual_tls_without_an_accepted_certificate(scripted_server, tls_material, version, who):
    server = scripted_server([failing_tls(tls_material.server(wants_client=True, version=version))])
    settings = TlsSettings(tls_material.ca, tls_material.stranger if who == "stranger" else None)
    with pytest.raises(TransportError) as caught:  # noqa: PT012 - the TLS version decides which of the two raises
        transport = connect(HOST, server.port, tls=settings, deadline=Deadline.after_ms(LONG_MS))
        try:
            receive(transport, 1)
        finally:
            transport.close()
    assert not caught.value.retryable
    assert "clientCert" in str(caught.value)


def test_a_handshake_on_a_descriptor_past_1023(scripted_server, tls_material):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("this machine allows too few descriptors")
    server = scripted_server([tls(tls_material.server()), send(b"x"), expect_eof()])
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    fillers: list[int] = []
    try:
        while not fillers or fillers[-1] < 1030:
            fillers.append(os.open(os.devnull, os.O_RDONLY))
        settings = TlsSettings(tls_material.ca)
        transport = connect(HOST, server.port, tls=settings, deadline=Deadline.after_ms(LONG_MS))
        assert transport.fileno() > 1023
        with socket.socket():
            while transport.recv_into(memoryview(bytearray(1))) is None:
                poll = select.poll()
                poll.register(transport, select.POLLIN)
                assert poll.poll(10_000)
        transport.close()
    finally:
        for descriptor in fillers:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"trust_certs": "/no/such/ca.pem"}, "/no/such/ca.pem: no such file on this machine"),
        ({"client_cert": "/no/such/cert.pem"}, "/no/such/cert.pem: no such file on this machine"),
        ({"client_key": "/no/such/key.pem"}, "/no/such/key.pem: no such file on this machine"),
        ({"trust_certs": "KEY"}, "cannot load the certificates"),
        ({"client_cert": "CERT"}, "cannot load the certificates"),
        ({"client_cert": "CERT", "client_key": "STRANGER"}, "cannot load the certificates"),
        ({"client_cert": "CERT", "client_key": "ENCRYPTED"}, "encrypted with a password"),
    ],
)
def test_certificate_files_that_cannot_be_used(tls_material, change, sentence):
    paths = {
        "KEY": tls_material.client_key,
        "CERT": tls_material.client_cert,
        "STRANGER": tls_material.stranger,
        "ENCRYPTED": tls_material.client_key_encrypted,
    }
    settings = TlsSettings(**{name: paths.get(path, path) for name, path in change.items()})
    with pytest.raises(OptionError, match=sentence):
        connect(HOST, free_port(), tls=settings, deadline=Deadline.after_ms(LONG_MS))


def test_no_failure_leaves_a_descriptor(scripted_server, tls_material):
    garbage = scripted_server([send(b"HTTP/1.1 400 Bad Request\r\n\r\n"), stay_silent], repeat=True)
    settings = TlsSettings(tls_material.ca)

    def fail_each_way():
        for port, timeout_ms in ((free_port(), LONG_MS), (garbage.port, LONG_MS)):
            with pytest.raises(TransportError):
                connect(HOST, port, tls=settings, deadline=Deadline.after_ms(timeout_ms))

    fail_each_way()
    before = open_descriptors()
    for _ in range(20):
        fail_each_way()
    # The server's sockets close a moment later than ours.
    deadline = Deadline.after_ms(LONG_MS)
    while open_descriptors() > before + 3 and not deadline.expired:
        threading.Event().wait(0.01)
    assert open_descriptors() <= before + 3


@pytest.mark.parametrize(
    ("server_certificate", "authority", "sentence"),
    [("good", "other_ca", "the certificate is not trusted"), ("other_name", "ca", "the certificate is not trusted")],
)
def test_tls_that_begins_later_is_verified_as_well(
    scripted_server, tls_material, server_certificate, authority, sentence
):
    server = scripted_server([expect(b"upgrade"), send(b"do"), failing_tls(tls_material.server(server_certificate))])
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(LONG_MS))
    transport.send(memoryview(b"upgrade"))
    assert receive(transport, 2) == b"do"
    settings = TlsSettings(trust_certs=getattr(tls_material, authority))
    with pytest.raises(TransportError, match=sentence) as caught:
        transport.start_tls(settings, HOST, deadline=Deadline.after_ms(LONG_MS))
    assert not caught.value.retryable
    transport.close()
