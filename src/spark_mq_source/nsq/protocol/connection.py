"""The state machine of one connection to an nsqd: bytes and times in, events and bytes out.

This module decides all that concerns a whole connection: the negotiation and the order of the upgrades, heartbeats,
which commands are valid in a state, and what must not be sent because nsqd would close the connection. It does not
match answers with callers.

::

    IDENTIFYING --answer--> [STARTING_TLS --tls_started()--> UPGRADING --OK-->]
                            [UPGRADING (snappy or deflate) --OK-->] [AUTHENTICATING --answer-->] CONNECTED
    any --EOF, silence, an error that is not about one message, close()--> CLOSED

Each upgrade has its own OK, inside the upgraded stream; AUTH comes after all of them (V2 specification, IDENTIFY and
AUTH; recorded from nsqd 1.3.0). The shell does TLS itself: it upgrades the stream in the state STARTING_TLS.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Final, NoReturn, TypeAlias

from spark_mq_source.core.connection import SansIOConnection, missing_bytes
from spark_mq_source.core.errors import (
    AuthenticationError,
    LocalProtocolError,
    RemoteProtocolError,
    UnsupportedFeatureError,
)
from spark_mq_source.nsq.payload.messages import scan_messages
from spark_mq_source.nsq.protocol.codec import (
    decode_authorized,
    decode_error,
    decode_identified,
    decode_response,
    encode,
)
from spark_mq_source.nsq.protocol.commands import (
    OFF,
    Auth,
    Authorized,
    CloseWait,
    Cls,
    Command,
    Dpub,
    Failed,
    Fin,
    Heartbeat,
    Identified,
    Identify,
    Messages,
    Mpub,
    Nop,
    Ok,
    Pub,
    Rdy,
    Refused,
    Req,
    Sub,
    Touch,
    parse_name,
)
from spark_mq_source.nsq.protocol.compression import MAX_INPUT_BYTES, DeflateStream, SnappyStream, Stream
from spark_mq_source.nsq.protocol.error_codes import error_for_code
from spark_mq_source.nsq.protocol.wire import ERROR, MAGIC, MESSAGE, MESSAGE_HEAD_BYTES, SIZE_BYTES, Frame, take_frame

logger = logging.getLogger(__name__)

DEFAULT_MAX_MESSAGE_BYTES: Final = 128 << 20
"""The largest message accepted if the user sets no limit: a memory limit; nsqd's own default is 1 MiB."""

_MAX_ANSWER_BYTES: Final = 64 << 10
"""Maximum size of answers and errors, however small messages may be."""

_SILENT_INTERVALS: Final = 3
"""Number of missing heartbeats after which nsqd is dead; nsqd itself drops a client after two."""

Event: TypeAlias = Identified | Messages | Ok | CloseWait | Failed
"""The events of `NsqConnection.events_received`; `Identified` comes once, when the connection is usable."""


class ConnectionState(Enum):
    """State in the life of a connection."""

    IDENTIFYING = "identifying"
    STARTING_TLS = "starting TLS"
    UPGRADING = "upgrading"
    AUTHENTICATING = "authenticating"
    CONNECTED = "connected"
    CLOSED = "closed"


class NsqConnection(SansIOConnection[Command, Event]):
    r"""One connection; the magic and IDENTIFY are queued at once.

    Args:
        identify: our name and the settings to request.
        auth_secret: for AUTH, if nsqd requires it.

    Attributes:
        identified: the negotiated settings, from STARTING_TLS or UPGRADING on.
        authorized: the identity that nsqd reported; None if it requires no authentication.

    Example:
        >>> from spark_mq_source.nsq.protocol.wire import RESPONSE, encode_frame
        >>> connection = NsqConnection(Identify("me", "host", "doctest"), now=0.0)
        >>> bytes(connection.data_to_send()[:13])
        b'  V2IDENTIFY\n'
        >>> connection.receive_data(encode_frame(RESPONSE, b'{"version": "1.3.0", "max_rdy_count": 2500}'))
        >>> connection.events_received()[0].version, connection.state.name
        ('1.3.0', 'CONNECTED')
        >>> connection.receive_data(encode_frame(RESPONSE, b"_heartbeat_"))
        >>> bytes(connection.data_to_send())
        b'NOP\n'
    """

    _CLOSED = ConnectionState.CLOSED
    state: ConnectionState

    def __init__(
        self,
        identify: Identify,
        *,
        auth_secret: str | None = None,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        now: float,
    ) -> None:
        super().__init__(ConnectionState.IDENTIFYING, now)
        self.identified = Identified()
        self.authorized: Authorized | None = None
        self._identify = identify
        self._auth_secret = auth_secret
        self._max_message_bytes = max_message_bytes
        # As `size` counts, without itself.
        self._max_message_size = max_message_bytes + MESSAGE_HEAD_BYTES - SIZE_BYTES
        self._max_frame_size = max(self._max_message_size, _MAX_ANSWER_BYTES)
        self._interval_seconds = identify.heartbeat_interval_ms / 1000
        self._stream: Stream | None = None
        self._compressed = memoryview(bytearray(MAX_INPUT_BYTES))
        self._unsent += MAGIC + encode(identify)
        self._subscribed = False

    # Output.

    def send(self, command: Command) -> None:
        """Queue a command.

        Raises:
            LocalProtocolError: not connected, or nsqd would close the connection for this command: a second SUB, RDY or
                a message's command before SUB, RDY above nsqd's limit, incomplete message ids, an invalid name, an
                empty body.
        """
        if self.state is not ConnectionState.CONNECTED:
            why = f"after {self._closed_by}" if self.state is ConnectionState.CLOSED else f"while {self.state.value}"
            raise LocalProtocolError(f"{type(command).__name__} sent {why}")
        match command:
            case Pub() | Mpub() | Dpub():
                self._check_publish(command)
            case Fin() | Req() | Touch() | Rdy() | Cls() if not self._subscribed:
                raise LocalProtocolError(f"{type(command).__name__} before SUB")
            case Rdy() if not 0 <= command.count <= self.identified.max_rdy_count:
                raise LocalProtocolError(f"{command}: nsqd takes 0 to {self.identified.max_rdy_count}")
            case Sub():
                self._check_sub(command)
            case Identify() | Auth():
                raise LocalProtocolError(f"{type(command).__name__} is not for users of a connection to send")
        try:
            self._unsent += encode(command)
        except ValueError as error:
            raise LocalProtocolError(str(error)) from error
        self._subscribed = self._subscribed or isinstance(command, Sub)

    def data_to_send(self) -> bytes | bytearray:
        """Return the bytes to send now, compressed if that was negotiated; each byte is returned once."""
        data = super().data_to_send()
        return self._stream.compress(bytes(data)) if data and self._stream is not None else data

    def tls_started(self) -> None:
        """Continue after the shell has upgraded the stream to TLS.

        Raises:
            LocalProtocolError: TLS was not requested.
            RemoteProtocolError: bytes arrived before TLS, in plain text: an attacker in between may have inserted them.
        """
        if self.state is not ConnectionState.STARTING_TLS:
            raise LocalProtocolError(f"TLS was started while {self.state.value}")
        if len(self._buffer):
            msg = "bytes arrived in plain text where TLS had to begin"
            self._close(f"an error ({msg})")
            raise RemoteProtocolError(msg)
        self.state = ConnectionState.UPGRADING

    # Input.

    def writable(self, hint_bytes: int) -> memoryview:
        """Return free space to receive into, never empty; see `received`. `hint_bytes` at least, unless compressed."""
        if self._stream is not None:
            return self._compressed
        # At most double the buffer: an announced size is not trusted.
        return self._buffer.writable(max(hint_bytes, min(self._missing, len(self._buffer))))

    def _take_bytes(self, n: int) -> None:
        if self._stream is None:
            super()._take_bytes(n)
        else:
            self._decompress(self._stream, self._compressed[:n])

    def _end_of_stream(self) -> NoReturn:
        if self.state is not ConnectionState.CONNECTED:
            hint, retryable = "is this the TCP port of an nsqd (4150 unless configured)?", True
            if self._identify.tls_v1 and self.state is not ConnectionState.IDENTIFYING:
                # In TLS 1.3 the peer checks our certificate after our side of the handshake has ended.
                hint, retryable = "does nsqd want a client certificate (clientCert), or another one?", False
            self._raise_lost(f"the peer closed the connection while {self.state.value}; {hint}", retryable=retryable)
        self._raise_lost(f"nsqd closed the connection{self._unfinished()}")

    # Time.

    def _timer(self) -> float | None:
        if self._identify.heartbeat_interval_ms == OFF:
            return None
        return self._last_received + self._interval_seconds * (1 if self._paused else _SILENT_INTERVALS)

    def _handle_timer(self, now: float) -> None:
        """Detect a dead nsqd by three missing heartbeats. While reading is paused, send NOPs without them.

        So nsqd keeps the connection open as long as it can send: it closes one whose client has read nothing for a
        heartbeat interval (nsqd 1.3.0). To pause for longer, send RDY 0 and continue to read.
        """
        if not self._paused:
            self._raise_lost(f"nsqd was silent for {now - self._last_received:.0f} s, without heartbeats")
        if self.state is ConnectionState.CONNECTED:
            self._unsent += encode(Nop())
        self._last_received = now

    def _decompress(self, stream: Stream, data: bytes | memoryview) -> None:
        for piece in stream.decompress(data):
            self._buffer.append(piece)
        self._parse()

    def _parse(self) -> None:
        stream = self._stream
        super()._parse()
        if self._stream is not stream and self._stream is not None:
            # The bytes after the answer are compressed already.
            rest = bytes(self._buffer.take(len(self._buffer)))
            self._decompress(self._stream, rest)

    def _take_frames(self, data: memoryview) -> int:
        """Take the complete frames; stop if the stream itself changes."""
        offset = 0
        stream = self._stream
        while self.state is not ConnectionState.STARTING_TLS and self._stream is stream:
            if self._subscribed:
                count, end = scan_messages(data, offset, self._max_message_size)
                if count:
                    self._events.append(Messages(data[offset:end], count))
                    offset = end
            frame = take_frame(data, offset, self._max_frame_size)
            if frame is None:
                break
            offset += frame.size
            self._take(frame)
        self._missing = missing_bytes(data, offset)
        return offset

    def _take(self, frame: Frame) -> None:
        if frame.kind == MESSAGE:
            # Message frames that are valid were taken before, by `scan_messages`.
            value_bytes = frame.size - MESSAGE_HEAD_BYTES
            if not self._subscribed:
                msg = "a message before SUB"
            elif value_bytes > self._max_message_bytes:
                msg = (
                    f"a message of {value_bytes} bytes, and maxMessageBytes is {self._max_message_bytes}: set it to "
                    f"nsqd's -max-msg-size"
                )
            else:
                msg = f"a message in a frame of {frame.size} bytes, which is too short for one"
            raise RemoteProtocolError(msg)
        if frame.kind == ERROR:
            error = decode_error(frame.data)
            if isinstance(error, Refused):
                context = "" if self.state is ConnectionState.CONNECTED else self.state.value
                raise error_for_code(error.code, error.words, context)
            self._events.append(error)
        elif self.state is ConnectionState.IDENTIFYING:
            self._take_identified(decode_identified(frame.data))
        elif self.state is ConnectionState.AUTHENTICATING and bytes(frame.data[:1]) == b"{":
            self.authorized = decode_authorized(frame.data)
            self._connected()
        else:
            self._take_response(decode_response(frame.data))

    def _take_response(self, response: Ok | Heartbeat | CloseWait) -> None:
        if isinstance(response, Heartbeat):
            self._unsent += encode(Nop())
        elif self.state is ConnectionState.CONNECTED:
            self._events.append(response)
        elif self.state is ConnectionState.UPGRADING and isinstance(response, Ok):
            self._continue_handshake()
        else:
            raise RemoteProtocolError(f"nsqd sent {type(response).__name__} while {self.state.value}")

    def _take_identified(self, identified: Identified) -> None:
        self.identified = identified
        if self._identify.tls_v1:
            if not identified.tls_v1:
                raise UnsupportedFeatureError(
                    "this nsqd has no TLS: start it with -tls-cert and -tls-key, or remove the option tls"
                )
            self.state = ConnectionState.STARTING_TLS
        else:
            self._continue_handshake()

    def _continue_handshake(self) -> None:
        """Continue after IDENTIFY, or after the OK of an upgrade."""
        wanted, agreed = self._identify, self.identified
        if self._stream is not None:
            self._authenticate()
        elif wanted.snappy and agreed.snappy:
            self._stream = SnappyStream()
            self.state = ConnectionState.UPGRADING
        elif wanted.deflate and agreed.deflate:
            self._stream = DeflateStream(min(max(agreed.deflate_level, 1), 9))
            self.state = ConnectionState.UPGRADING
        else:
            if wanted.snappy or wanted.deflate:
                logger.warning("this nsqd does not offer the requested compression: enable it by -snappy or -deflate")
            self._authenticate()

    def _authenticate(self) -> None:
        if not self.identified.auth_required:
            # A client must not authorize unless requested (V2 specification, AUTH).
            self._connected()
            return
        if self._auth_secret is None:
            raise AuthenticationError("nsqd asks for authorization: set authSecret")
        self._unsent += encode(Auth(self._auth_secret))
        self.state = ConnectionState.AUTHENTICATING

    def _connected(self) -> None:
        self.state = ConnectionState.CONNECTED
        self._events.append(self.identified)

    def _check_sub(self, command: Sub) -> None:
        if self._subscribed:
            raise LocalProtocolError(f"{command}: a connection has one subscription")
        _check_name(command, command.topic)
        _check_name(command, command.channel)

    @staticmethod
    def _check_publish(command: Pub | Mpub | Dpub) -> None:
        _check_name(command, command.topic)
        if not len(command.body):
            raise LocalProtocolError(f"{command}: an empty message")
        if isinstance(command, Dpub) and command.defer_ms < 0:
            raise LocalProtocolError(f"{command}: a time that has passed")


def _check_name(command: Command, name: str) -> None:
    try:
        parse_name(name)
    except ValueError as error:
        raise LocalProtocolError(f"{command}: {name!r} is not a valid name: {error}") from error
