"""A TCP or TLS byte stream with deadlines; only this module uses sockets."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from spark_mq_source.core.errors import (
    ConnectionLostError,
    ConnectTimeoutError,
    MQSourceError,
    OptionError,
    TransportError,
    UnsupportedFeatureError,
)
from spark_mq_source.core.shared_options import TlsOptions
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.stores import describe_certificates, is_store, load_identity, trusted_certificates

PROBE_SECONDS: Final = 1.0
"""The time within which a peer must answer the first message of a TLS handshake, to show whether it speaks TLS."""

MIN_SILENCE_SECONDS: Final = 0.25
"""The time for which a peer must keep a silent connection, before the loss of another one counts as its answer."""

CLOSED: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The errors of a stream that ends during a TLS handshake; which one depends on the builds of Python and OpenSSL."""

_TLS_RECORDS: Final = (b"\x15\x03", b"\x16\x03")
"""The first bytes of a TLS alert and of a handshake message (RFC 8446, section 5.1)."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The verification of a TLS peer, and the client's certificate.

    Attributes:
        trust_certs: file of the trusted authorities, PEM or a store; None for those of the system.
        client_cert: file of the client's certificate chain, PEM or a store, for mutual TLS.
        client_key: PEM file of its key; None if `client_cert` contains it.
        verify_hostname: whether the certificate must be for the host of the address. The chain is always verified.
        trust_password: password of the store `trust_certs`.
        key_password: password of the client's key, and of its store.
        trust_option: the option of `trust_certs`, for errors.
    """

    trust_certs: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    verify_hostname: bool = True
    trust_password: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    trust_option: str = "trustCerts"

    @classmethod
    def of(cls, options: TlsOptions) -> TlsSettings:
        """Return the TLS settings of a format's options."""
        return cls(
            options.trust_certs,
            options.client_cert,
            options.client_key,
            options.tls_verify_hostname,
            options.trust_certs_password,
            options.client_key_password,
        )

    def context(self) -> ssl.SSLContext:
        """Return an `ssl` context with these settings, from the present content of the files.

        Raises:
            OptionError: a file cannot be read, or has other content or another password.
            UnsupportedFeatureError: a store needs a library that is missing.
        """
        for path in (self.trust_certs, self.client_cert, self.client_key):
            if path is not None and not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises on forbidden folders
                raise OptionError(f"{path}: no such file on this machine (every executor needs it at the same path)")
        try:
            if self.trust_certs is not None and is_store(self.trust_certs):
                option = f"{self.trust_option}Password"
                trusted = trusted_certificates(self.trust_certs, self.trust_password, option)
                context = ssl.create_default_context(cadata=trusted)
            else:
                context = ssl.create_default_context(cafile=self.trust_certs)
            if self.client_cert is not None:
                self._load_client(context, self.client_cert)
        except (ssl.SSLError, OSError) as error:
            raise OptionError(
                f"cannot load the certificates {self.trust_certs or 'of the system'}, {self.client_cert}: {error}"
            ) from error
        context.check_hostname = self.verify_hostname
        # From 3.13 on, Python refuses authorities without a key usage, such as those of `openssl req -x509`. Java and
        # the brokers' own clients accept them.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def steps(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """Yield the checks of the files, for `spark-mq doctor`; each returns its finding, or raises an error."""
        if (trusted := self.trust_certs) is not None:
            alone = replace(self, client_cert=None, client_key=None)
            option = f"{self.trust_option}Password"
            yield f"read the certificates in {trusted}", partial(alone._describe, trusted, self.trust_password, option)
        if (own := self.client_cert) is not None:
            yield (
                f"read the certificates in {own}",
                partial(self._describe, own, self.key_password, "clientKeyPassword"),
            )

    def _describe(self, path: str, password: str | None, option: str) -> str:
        self.context()  # raises an error if a file cannot be used
        try:
            return describe_certificates(path, password, option)
        except UnsupportedFeatureError:
            return "usable; with spark-mq-source[stores], until when is shown here"

    def _load_client(self, context: ssl.SSLContext, path: str) -> None:
        if not is_store(path):
            context.load_cert_chain(path, self.client_key, password=self._give_key_password)
        elif self.client_key is not None:
            raise OptionError(f"{path}: this store contains the client's key: remove clientKey")
        else:
            load_identity(context, path, self.key_password, "clientKeyPassword")

    def _give_key_password(self) -> str:
        # Without this callback OpenSSL asks for the password at the terminal, which an executor does not have.
        if self.key_password is None:
            raise OptionError("the private key is encrypted with a password: set clientKeyPassword")
        return self.key_password


class Transport:
    """One connected, non-blocking byte stream. Not thread-safe: the driver serializes its use."""

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._sock = sock
        self.address = address
        self._peer = _peer_of(sock)
        self._has_received = False

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._sock.fileno()

    def recv_into(self, view: memoryview) -> int | None:
        """Receive available bytes; return their number, 0 at the end of the stream, None if it would block.

        Raises:
            ConnectionLostError: the connection was reset, or its TLS session is broken.
        """
        try:
            n = self._sock.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except CLOSED:
            return 0
        except OSError as error:
            raise self._lost(error) from error
        if n and self._peer is not None and not self._has_received:
            self._has_received = True
            if not isinstance(self._sock, ssl.SSLSocket):
                _without_tls.add(self._peer)
        return n

    def pending(self) -> bool:
        """Return whether the TLS session holds decrypted bytes, which `select` does not see."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0

    def send(self, data: memoryview) -> int:
        """Send as much as possible without blocking; return the number of bytes, 0 if it would block.

        Raises:
            ConnectionLostError: the peer has closed the connection.
        """
        try:
            return self._sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def start_tls(self, tls: TlsSettings, host: str, *, deadline: Deadline) -> None:
        """Continue over TLS, for protocols that negotiate it in plain text.

        Raises:
            ConnectTimeoutError: the TLS handshake did not finish before `deadline`.
            ConnectionLostError: the peer closed the connection during the handshake.
            TransportError: TLS cannot work with this peer; not retryable.
            OptionError: a certificate file cannot be used.
        """
        self._sock = _tls_handshake(self._sock, tls.context(), host, self.address, deadline)

    def why_lost(self, error: MQSourceError) -> MQSourceError:
        """Return the reason of a loss: `error`, or, not retryable, that this port requires TLS."""
        if self._peer is None or self._has_received or isinstance(self._sock, ssl.SSLSocket):
            return error
        if not isinstance(error, ConnectionLostError) or not is_tls_port(*self._peer):
            return error
        return _refused(
            f"{self.address}: this port speaks TLS, and this connection was made without TLS: connect with TLS, or to "
            f"the port without TLS"
        )

    def close(self) -> None:
        """Close the stream, and drop unsent bytes. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _lost(self, error: OSError) -> ConnectionLostError:
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or ""):
            # In TLS 1.3 the peer verifies the client's certificate after the client's side of the handshake has ended.
            lost = ConnectionLostError(f"{self.address}: TLS was refused by the peer ({error}); check clientCert")
            lost.retryable = False
            return lost
        return ConnectionLostError(f"{self.address}: the connection broke ({error})")


def connect(
    host: str, port: int, *, tls: TlsSettings | None, deadline: Deadline, proxy: tuple[str, int] | None = None
) -> Transport:
    """Open a stream to `host:port`, over TLS unless `tls` is None, and leave it non-blocking.

    Args:
        host: the peer, whose name its certificate must have.
        port: its port.
        tls: None for a stream without TLS.
        deadline: of the TCP connection and the TLS handshake.
        proxy: host and port to connect to instead: a proxy that finds the peer by the server name in the handshake.

    Raises:
        ConnectTimeoutError: no connection, or no finished TLS handshake, before `deadline`.
        ConnectionLostError: the peer closed the connection during the TLS handshake; not retryable if it does so again
            but keeps a connection on which nothing is sent.
        TransportError: refused, unreachable, or the name does not resolve; not retryable if TLS cannot work.
        OptionError: a certificate file or the host name cannot be used.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if proxy is not None:
        address += f" through {proxy[0]}:{proxy[1]}"
    context = tls.context() if tls is not None else None
    peer = proxy or (host, port)
    began = time.monotonic()
    try:
        return _connect(peer, host, context, address, deadline)
    except ConnectionLostError:
        # A restarting broker or load balancer closes connections too, but then it may close any connection.
        silence = MIN_SILENCE_SECONDS + 2 * (time.monotonic() - began)
        if deadline.remaining_seconds() <= silence or not _keeps_silent_connection(*peer, silence):
            raise
    try:
        return _connect(peer, host, context, address, deadline)
    except ConnectionLostError as error:
        error.retryable = False
        raise


def _connect(
    peer: tuple[str, int], host: str, context: ssl.SSLContext | None, address: str, deadline: Deadline
) -> Transport:
    sock = _tcp_connect(*peer, address, deadline)
    try:
        # Requests are small, and callers wait for the answers: coalescing them would cost a round trip each.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        if context is None:
            return Transport(sock, address)
        return Transport(_tls_handshake(sock, context, host, address, deadline), address)
    except BaseException:
        sock.close()
        raise


def _tcp_connect(host: str, port: int, address: str, deadline: Deadline) -> socket.socket:
    """Connect to the first address of the name that accepts; all addresses share the deadline."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OptionError(f"{address}: not a host name ({error})") from error
    except OSError as error:
        raise TransportError(
            f"{address}: cannot find the host ({error.strerror or error}); check the address"
        ) from error
    failure: OSError | None = None
    for index, (family, kind, protocol, _, target) in enumerate(found):
        # Divide the time among the remaining addresses: a firewall may drop the packets to the first one.
        share = max(deadline.remaining_seconds() / (len(found) - index), 0.001)
        try:
            sock = socket.socket(family, kind, protocol)
        except OSError as error:
            failure = error
            continue
        try:
            sock.settimeout(share)
            sock.connect(target)
        except OSError as error:
            sock.close()
            failure = error
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    if isinstance(failure, TimeoutError):
        raise ConnectTimeoutError(
            f"{address}: no TCP connection in time; check the address and whether a firewall drops it"
        ) from failure
    reason = "no address" if failure is None else failure.strerror or failure
    raise TransportError(
        f"{address}: cannot connect ({reason}); check the address and that the broker runs"
    ) from failure


def _tls_handshake(
    sock: socket.socket, context: ssl.SSLContext, host: str, address: str, deadline: Deadline
) -> ssl.SSLSocket:
    try:
        secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except OSError as error:  # Python reads from a socket that is reset already.
        raise _lost_in_handshake(address, error) from error
    try:
        # The timeout is that of the whole handshake.
        secure.settimeout(max(deadline.remaining_seconds(), 0.001))
        secure.do_handshake()
        secure.setblocking(False)
    except BaseException as error:
        secure.close()
        if isinstance(error, TimeoutError):
            raise ConnectTimeoutError(f"{address}: no TLS handshake in time; check that this port uses TLS") from error
        if isinstance(error, ssl.SSLCertVerificationError):
            raise _refused(
                f"{address}: the certificate is not trusted ({error.verify_message}); set trustCerts to the PEM file "
                f"of the authority that signed it, and connect by a name that is in it"
            ) from error
        if isinstance(error, ssl.SSLError) and not isinstance(error, CLOSED):
            raise _refused(
                f"{address}: the TLS handshake failed ({error}); check that this port uses TLS, and clientCert"
            ) from error
        if isinstance(error, OSError):
            raise _lost_in_handshake(address, error) from error
        raise
    return secure


def _lost_in_handshake(address: str, error: OSError) -> ConnectionLostError:
    return ConnectionLostError(
        f"{address}: closed during the TLS handshake ({error}); check that this port uses TLS, and clientCert"
    )


def _peer_of(sock: socket.socket) -> tuple[str, int] | None:
    """Return the peer's host and port; None if it has none to connect to."""
    try:
        return sock.getpeername()[:2] if sock.family in {socket.AF_INET, socket.AF_INET6} else None
    except OSError:
        return None


_without_tls: set[tuple[str, int]] = set()
"""Peers (host and port) that have answered this process on a connection without TLS."""

_losses: Counter[tuple[str, int]] = Counter()
"""Number of connections without TLS that a peer closed before it sent anything."""


def is_tls_port(host: str, port: int) -> bool:
    """Return whether a peer that has closed a connection without TLS, and sent nothing, speaks TLS.

    This is tested on another connection, without credentials; not if the peer has ever answered without TLS, nor after
    the first loss, because a restarting broker closes connections, too.
    """
    peer = host, port
    _losses[peer] += 1
    return _losses[peer] > 1 and peer not in _without_tls and _speaks_tls(host, port)


def _speaks_tls(host: str, port: int) -> bool:
    """Return whether the peer answers the first message of a TLS handshake with a TLS message."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Only the first message is sent to the peer, so its identity does not matter.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    hello = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), hello).do_handshake()
    try:
        with socket.create_connection((host, port), PROBE_SECONDS) as sock:
            sock.sendall(hello.read())
            return sock.recv(2, socket.MSG_WAITALL) in _TLS_RECORDS
    except OSError:
        return False


def _keeps_silent_connection(host: str, port: int, seconds: float) -> bool:
    """Return whether the peer keeps a connection for `seconds` on which nothing is sent."""
    try:
        with socket.create_connection((host, port), seconds) as sock, selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            return not selector.select(seconds)
    except OSError:
        return False


def _refused(message: str) -> TransportError:
    error = TransportError(message)
    error.retryable = False
    return error
