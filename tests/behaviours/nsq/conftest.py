"""What the NSQ tests share: a client that speaks the protocol by hand, and programs that are clients of others."""

from __future__ import annotations

import socket
import struct
import zlib
from collections.abc import Callable

import pytest

from tests.fix_brokers import NsqUnderTest

PATIENCE_S = 60.0


class RawClient:
    """A connection on which tests say every byte, and read frames.

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
        """Exactly so many bytes.

        Raises:
            EOFError: the broker has closed.
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
        """Whether what comes is deflated."""
        return self._inflate is not None

    def inflate(self) -> None:
        """What was not read yet, and all that comes from here on, is deflated."""
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._unread = self._inflate.decompress(self._unread)

    def frame(self) -> bytes:
        """The next frame, whole."""
        size = self.read(4)
        return size + self.read(struct.unpack(">I", size)[0])

    def response(self) -> tuple[int, bytes]:
        """The next frame's type and body."""
        frame = self.frame()
        return struct.unpack(">I", frame[4:8])[0], frame[8:]

    def expect_nothing(self, within_s: float) -> None:
        """Fails if anything comes, or the broker closes."""
        assert not self._unread, f"nothing was expected, but this came: {self._unread!r}"
        self.sock.settimeout(within_s)
        try:
            data = self.sock.recv(1 << 16)
        except TimeoutError:
            return
        finally:
            self.sock.settimeout(PATIENCE_S)
        pytest.fail(f"nothing was expected, but this came: {data!r}")

    def expect_closed(self) -> None:
        """Fails unless the broker closes, without another byte."""
        with pytest.raises(EOFError):
            assert self.read(1) == b"", "the connection was expected to be closed"


@pytest.fixture
def raw(nsq: NsqUnderTest, closing: Callable[[RawClient], RawClient]) -> Callable[..., RawClient]:
    """Opens connections by hand, to the shared broker or to one's own; they are closed with the test."""
    return lambda broker=nsq: closing(RawClient(broker.tcp_address))
