"""The base of all connections: bytes and times in, events and bytes out, closing and loss.

A connection has no socket, thread or clock; `net.driver` owns these. The driver fills `writable()`, reports the number
of bytes with `received()`, takes `events_received()` and `data_to_send()` after every call, and calls `handle_timer()`
when `next_timer()` is due. Each protocol adds its requests, sending windows and heartbeats.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import ClassVar, Generic, NoReturn, TypeVar

from spark_mq_source.core.buffer import ReceiveBuffer
from spark_mq_source.core.errors import ConnectionLostError, LocalProtocolError, MQSourceError, RemoteProtocolError

CommandT = TypeVar("CommandT")
EventT = TypeVar("EventT")
T = TypeVar("T")

_SIZE_BYTES = 4
_TLS_ALERT, _TLS_HANDSHAKE, _TLS_MAJOR_VERSION = 0x15, 0x16, 0x03


class SansIOConnection(ABC, Generic[CommandT, EventT]):
    """The state machine of one connection.

    An error raised by `received`, `receive_data`, `receive_eof` or `handle_timer` closes the connection; the events
    before the error can still be taken from `events_received`. Not thread-safe.

    Args:
        state: the first state.
        now: the current time, in monotonic seconds as in all methods.

    Attributes:
        state: the current state; each protocol has its own states.
    """

    _CLOSED: ClassVar[Enum]
    """The state of a connection that has ended."""

    state: Enum

    def __init__(self, state: Enum, now: float) -> None:
        self.state = state
        self._now = now
        self._last_received = now
        self._paused = False
        self._buffer = ReceiveBuffer()
        self._missing = 0
        """The number of bytes missing from the frame that has begun to arrive, if known."""
        self._events: list[EventT] = []
        self._unsent = bytearray()
        self._closed_by = ""
        """The reason why the connection is closed; empty while it is open."""

    # Output

    @abstractmethod
    def send(self, command: CommandT) -> None:
        """Queue a command; `data_to_send` returns its bytes.

        Raises:
            LocalProtocolError: the protocol forbids it now.
        """

    def data_to_send(self) -> bytes | bytearray:
        """Return the bytes to send now. Each byte is returned once, and the caller owns the result."""
        data, self._unsent = self._unsent, bytearray()
        return data

    def close(self) -> None:
        """Close this side: send and receive nothing more. The peer sees only the end of the stream."""
        self._close("the connection was closed here")

    # Input

    def writable(self, hint_bytes: int) -> memoryview:
        """Return free space of at least `hint_bytes`, more if a large frame has begun; see `received`."""
        return self._buffer.writable(max(hint_bytes, self._missing))

    def received(self, n: int, now: float) -> None:
        """Process the first `n` bytes of `writable()`, which were received at `now`.

        Raises:
            RemoteProtocolError: the bytes violate the protocol.
            AuthenticationError: the peer rejected the credentials.
            BrokerError: the peer refused the connection or a command, and ends the connection.
            LocalProtocolError: the connection is closed.
            MQSourceError: the connection cannot be used for another reason.
        """
        if self._closed_by:
            raise LocalProtocolError(f"bytes received after {self._closed_by}")
        self._now = now
        if n:
            self._note_received()
        try:
            self._take_bytes(n)
        except MQSourceError as error:
            self._close(f"an error ({error})")
            raise

    @property
    def unfinished_bytes(self) -> int:
        """The number of received bytes of the frame that has begun to arrive."""
        return len(self._buffer)

    def receive_data(self, data: bytes | memoryview, now: float | None = None) -> None:
        """Process a copy of `data` like `received`; without `now`, no time has passed.

        Raises:
            MQSourceError: see `received`.
        """
        rest = memoryview(data)
        while rest:
            space = self.writable(len(rest))
            n = min(len(space), len(rest))
            space[:n] = rest[:n]
            self.received(n, self._now if now is None else now)
            rest = rest[n:]

    def receive_eof(self) -> None:
        """Process the end of the stream: the peer has closed its side.

        Raises:
            ConnectionLostError: always, unless the connection is closed already; names the unanswered requests.
        """
        if not self._closed_by:
            self._end_of_stream()

    def events_received(self) -> list[EventT]:
        """Return the events since the last call, in order, without those that the connection handles itself."""
        events = self._events
        self._events = []
        return events

    # Time

    @property
    def paused(self) -> bool:
        """True while the driver does not read: the peer's silence then means nothing."""
        return self._paused

    @paused.setter
    def paused(self, paused: bool) -> None:
        if paused != self._paused:
            self._paused = paused
            # The peer may have sent bytes that are not read yet.
            self._note_received()

    def next_timer(self) -> float | None:
        """Return the time at which to call `handle_timer`, in monotonic seconds; None once closed."""
        return None if self._closed_by else self._timer()

    def handle_timer(self, now: float) -> None:
        """Send heartbeats that are due, and detect a dead peer; do nothing before `next_timer()`.

        Raises:
            ConnectionLostError: the peer is dead.
        """
        timer = self.next_timer()
        self._now = max(self._now, now)
        if timer is not None and timer <= now:
            self._buffer.trim()
            self._handle_timer(now)

    # Methods of a protocol

    @abstractmethod
    def _take_frames(self, data: memoryview) -> int:
        """Process the complete frames; return the offset of the first incomplete one."""

    @abstractmethod
    def _end_of_stream(self) -> NoReturn:
        """Raise ConnectionLostError with the reason that follows from the connection's state."""

    @abstractmethod
    def _timer(self) -> float | None:
        """Return the time of the next action if nothing arrives; None without one."""

    @abstractmethod
    def _handle_timer(self, now: float) -> None:
        """Perform the action that is due at the time of `_timer`."""

    def _take_bytes(self, n: int) -> None:
        self._buffer.commit(n)
        self._parse()

    def _parse(self) -> None:
        self._buffer.take(self._take_frames(self._buffer.view()))

    def _note_received(self) -> None:
        """Restart the measurement of the peer's silence."""
        self._last_received = max(self._last_received, self._now)

    def _pending_text(self, requests: Iterable[object]) -> str:
        """Return a text for an error: the requests without an answer at the end of the connection."""
        kinds = Counter(type(request).__name__ for request in requests)
        parts = [f"{count} {kind}" if count > 1 else kind for kind, count in kinds.items()]
        return f" while {', '.join(parts)} waited for an answer" if parts else ""

    def _unfinished(self) -> str:
        """Return a text for an error: the size of the frame that has begun to arrive."""
        return f" ({len(self._buffer)} bytes of an unfinished frame received)" if len(self._buffer) else ""

    def _raise_lost(self, reason: str, *, retryable: bool = True) -> NoReturn:
        self._close(f"the connection was lost ({reason})")
        error = ConnectionLostError(reason)
        error.retryable = retryable
        raise error

    def _close(self, reason: str) -> None:
        if not self._closed_by:
            self._closed_by = reason
            self.state = self._CLOSED
            self._unsent.clear()


@cache
def client_version(separator: str = "-") -> str:
    """Return the name and version of this package, for a broker's log and statistics."""
    try:
        return f"spark-mq-source{separator}{version('spark-mq-source')}"
    except PackageNotFoundError:
        return "spark-mq-source"


def expect(response: object, kind: type[T]) -> T:
    """Return the response if it has the type that answers the request.

    Raises:
        RemoteProtocolError: it has another type.
    """
    if not isinstance(response, kind):
        raise RemoteProtocolError(f"the server answered {type(response).__name__} instead of {kind.__name__}")
    return response


def wrong_protocol(start: bytes, *, http: str, tls: str, otherwise: str) -> RemoteProtocolError:
    """Return the error of a frame that begins impossibly, which names the kind of server that the peer seems to be.

    Args:
        start: the first 4 bytes.
        http: the end of the sentence about an HTTP server: the expected server and its port.
        tls: the end of the sentence about a TLS port: the remedy.
        otherwise: the sentence about anything else.

    Example:
        >>> wrong_protocol(bytes([0x16, 3, 1, 0]), http="nsqd", tls="set tls=true", otherwise="damaged")
        RemoteProtocolError('this looks like a TLS port: set tls=true')
    """
    if start == b"HTTP":
        return RemoteProtocolError(f"this looks like an HTTP server, not {http}")
    if start[0] in {_TLS_ALERT, _TLS_HANDSHAKE} and start[1] == _TLS_MAJOR_VERSION:
        return RemoteProtocolError(f"this looks like a TLS port: {tls}")
    return RemoteProtocolError(otherwise)


def check_frame_size(
    data: memoryview, offset: int, max_frame_bytes: int, *, protocol: str, http: str, tls: str
) -> None:
    """Refuse the frame at `offset` if the size that it begins with is impossible.

    Raises:
        RemoteProtocolError: the size is impossible (see `wrong_protocol`).
    """
    start = bytes(data[offset : offset + _SIZE_BYTES])
    size = int.from_bytes(start, "big")
    if not _SIZE_BYTES <= size <= max_frame_bytes:
        otherwise = (
            f"a frame of {size} bytes was announced, where {_SIZE_BYTES} to {max_frame_bytes} are possible: either "
            f"this is not {protocol}'s protocol, or the stream is damaged"
        )
        raise wrong_protocol(start, http=http, tls=tls, otherwise=otherwise)


def missing_bytes(data: memoryview, offset: int) -> int:
    r"""Return the known number of missing bytes of a frame, whose size was checked.

    Example:
        >>> missing_bytes(memoryview(b"\0\0\0\5abc"), 0), missing_bytes(memoryview(b""), 0)
        (2, 8)
    """
    available = len(data) - offset
    if available < _SIZE_BYTES:
        return 2 * _SIZE_BYTES - available
    return _SIZE_BYTES + int.from_bytes(data[offset : offset + _SIZE_BYTES], "big") - available
