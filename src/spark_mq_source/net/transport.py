"""A TCP or TLS byte stream with deadlines: the only place that knows sockets."""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from spark_mq_source.core.errors import ConnectionLostError, ConnectTimeoutError, OptionError, TransportError
from spark_mq_source.net.retry import Deadline

__all__ = ["TlsSettings", "Transport", "connect"]


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How a TLS peer is verified and who we are to it.

    Attributes:
        trust_certs: PEM file of the authorities to trust; None trusts the system's.
        client_cert: PEM file of our certificate chain, for mutual TLS.
        client_key: PEM file of its key; None where it is in `client_cert`.
        verify_hostname: whether the certificate must be for the host we connected to. The chain is always verified.
    """

    trust_certs: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    verify_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """The `ssl` context of these settings.

        Raises:
            OptionError: a file that cannot be read or is not what it should be.
        """
        for path in (self.trust_certs, self.client_cert, self.client_key):
            if path is not None and not Path(path).is_file():
                msg = f"{path}: no such file on this machine (every executor needs it at the same path)"
                raise OptionError(msg)
        try:
            context = ssl.create_default_context(cafile=self.trust_certs)
            if self.client_cert is not None:
                context.load_cert_chain(self.client_cert, self.client_key)
        except (ssl.SSLError, OSError) as error:
            msg = f"cannot load the certificates {self.trust_certs or 'of the system'}, {self.client_cert}: {error}"
            raise OptionError(msg) from error
        context.check_hostname = self.verify_hostname
        return context


class Transport:
    """One connected, non-blocking byte stream. Not thread-safe: the driver serialises its use.

    Attributes:
        address: the peer as `host:port`, for messages.
    """

    def __init__(self, sock: socket.socket, address: str) -> None:
        self._sock = sock
        self.address = address

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._sock.fileno()

    def recv_into(self, view: memoryview) -> int | None:
        """Receives what is there: the number of bytes, 0 at the peer's end, None where it would block.

        Raises:
            ConnectionLostError: the connection was reset or its TLS session broken.
        """
        try:
            return self._sock.recv_into(view)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except ssl.SSLEOFError:
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def pending(self) -> bool:
        """True where decrypted bytes wait inside the TLS session, invisible to `select`."""
        return isinstance(self._sock, ssl.SSLSocket) and self._sock.pending() > 0

    def send(self, data: memoryview) -> int:
        """Sends what fits now: the number of bytes, 0 where it would block.

        Raises:
            ConnectionLostError: the peer is gone.
        """
        try:
            return self._sock.send(data)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise self._lost(error) from error

    def close(self) -> None:
        """Closes the stream; what is unsent is dropped. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _lost(self, error: OSError) -> ConnectionLostError:
        return ConnectionLostError(f"{self.address}: the connection broke ({error})")


def connect(host: str, port: int, *, tls: TlsSettings | None, deadline: Deadline) -> Transport:
    """Opens a stream to `host:port`, over TLS where `tls` is given, and leaves it non-blocking.

    Raises:
        ConnectTimeoutError: no connection, or no finished TLS handshake, before `deadline`.
        TransportError: refused, unreachable, or the name does not resolve; not retryable where TLS cannot work.
        OptionError: certificate files that cannot be used.
    """
    address = f"{host}:{port}"
    context = tls.context() if tls is not None else None
    try:
        sock = socket.create_connection((host, port), timeout=max(deadline.remaining_seconds(), 0.001))
    except TimeoutError as error:
        msg = f"{address}: no TCP connection in time; check the address and whether a firewall drops it"
        raise ConnectTimeoutError(msg) from error
    except OSError as error:
        msg = f"{address}: cannot connect ({error.strerror or error}); check the address and that the broker runs"
        raise TransportError(msg) from error
    try:
        # Requests are small and waited for: coalescing them would cost a round trip each.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            sock.setblocking(False)
            return Transport(sock, address)
        return Transport(_tls_handshake(sock, context, host, address, deadline), address)
    except BaseException:
        sock.close()
        raise


def _tls_handshake(
    sock: socket.socket, context: ssl.SSLContext, host: str, address: str, deadline: Deadline
) -> ssl.SSLSocket:
    sock.setblocking(False)
    try:
        secure = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        while True:
            try:
                secure.do_handshake()
            except ssl.SSLWantReadError:
                ready = select.select([secure], [], [], deadline.remaining_seconds())[0]
            except ssl.SSLWantWriteError:
                ready = select.select([], [secure], [], deadline.remaining_seconds())[1]
            else:
                return secure
            if not ready:
                msg = f"{address}: no TLS handshake in time; does this port speak TLS?"
                raise ConnectTimeoutError(msg)
    except ssl.SSLCertVerificationError as error:
        msg = (
            f"{address}: the certificate is not trusted ({error.verify_message}); set trustCerts to the PEM file of "
            f"the authority that signed it, and connect by a name that is in it"
        )
        raise _refused(msg) from error
    except (ssl.SSLError, ConnectionError) as error:
        msg = f"{address}: the TLS handshake failed ({error}); does this port speak TLS, and does it want clientCert?"
        raise _refused(msg) from error


def _refused(message: str) -> TransportError:
    """A transport error that trying again cannot mend."""
    error = TransportError(message)
    error.retryable = False
    return error
