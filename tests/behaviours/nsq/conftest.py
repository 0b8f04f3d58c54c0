"""Fixtures of the NSQ tests: a client with a protocol written by hand, and programs of other clients."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable

import pytest

from tests.fix_brokers import NsqUnderTest

PATIENCE_S = 60.0


class RawClient:
    """A connection on which tests write every byte and read frames.

    Args:
        address: `host:port`.
    """

    def __init__(self, address: str) -> None:
        host, port = address.split(":")
        self.sock = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
        self._unread = b""
        self._inflate: zlib._Decompress | None = None

    def close(self) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self, size: int) -> bytes:
        """Read exactly this many bytes.

        Raises:
            EOFError: the broker closed the connection.
        """
        while len(self._unread) < size:
            try:
                data = self.sock.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError
            self._unread += self._inflate.decompress(data) if self._inflate else data
        data, self._unread = self._unread[:size], self._unread[size:]
        return data

    @property
    def inflates(self) -> bool:
        """Whether incoming bytes are deflated."""
        return self._inflate is not None

    def inflate(self) -> None:
        """Inflate the bytes that are not read yet and all that follow."""
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._unread = self._inflate.decompress(self._unread)

    def frame(self) -> bytes:
        """Read the next frame, whole."""
        size = self.read(4)
        return size + self.read(struct.unpack(">I", size)[0])

    def response(self) -> tuple[int, bytes]:
        """Read the next frame; return its type and body."""
        frame = self.frame()
        return struct.unpack(">I", frame[4:8])[0], frame[8:]

    def expect_nothing(self, within_s: float) -> None:
        """Fail if anything arrives or the broker closes."""
        assert not self._unread, f"expected nothing, received {self._unread!r}"
        self.sock.settimeout(within_s)
        try:
            data = self.sock.recv(1 << 16)
        except TimeoutError:
            return
        finally:
            self.sock.settimeout(PATIENCE_S)
        pytest.fail(f"expected nothing, received {data!r}")

    def expect_closed(self) -> None:
        """Fail unless the broker closes without another byte."""
        with pytest.raises(EOFError):
            assert self.read(1) == b"", "the connection was expected to be closed"


@pytest.fixture
def raw(nsq: NsqUnderTest, closing: Callable[[RawClient], RawClient]) -> Callable[..., RawClient]:
    """Open raw connections, to the shared broker or another one; close them with the test."""
    return lambda broker=nsq: closing(RawClient(broker.tcp_address))
