"""The state machine of one connection to a Pulsar broker or proxy: bytes and times in, events and bytes out.

This module decides all that concerns a whole connection: the handshake, keep-alive in both directions, renewed
authentication, which consumers, producers and requests are open, and what must not be sent because the broker would
drop the connection. It knows nothing of topics and lookups.

::

    CONNECTING --CONNECTED--> CONNECTED --EOF, silence, error, close()--> CLOSED
        |                                                                   ^
        +--------------- ERROR, EOF, silence, close() ----------------------+
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Final, NoReturn, Protocol, TypeAlias

from spark_mq_source.core.connection import SansIOConnection, missing_bytes
from spark_mq_source.core.errors import (
    AuthenticationError,
    LocalProtocolError,
    RemoteProtocolError,
    ServiceNotReadyError,
    UnsupportedFeatureError,
)
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.codec import decode_command, encode_command, encode_send
from spark_mq_source.pulsar.protocol.commands import (
    NEEDED_VERSIONS,
    NO_ID,
    AckEntries,
    Command,
    Message,
    Notice,
    Request,
    Response,
    Send,
)
from spark_mq_source.pulsar.protocol.error_codes import error_for_code
from spark_mq_source.pulsar.protocol.wire import DEFAULT_MAX_MESSAGE_BYTES, FRAME_OVERHEAD_BYTES, take_frame

logger = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 20
"""The version that we announce. A broker sends broker entry metadata from 18 on, reads partition metadata's flag from
19 on, and sends TOPIC_MIGRATED from 20 on (recorded from broker 4.0.8 with a client of version 20)."""

MAX_FRAME_BYTES: Final = 256 << 20
"""The largest frame accepted, whatever message size a broker allows: a memory limit, not one of the protocol."""

MAX_PERMITS: Final = (1 << 31) - 1
"""With more permits in one FLOW, or outstanding, the broker drops the connection or stalls (seen on broker 4.0.8). Who
grants them knows how many are outstanding (`read.permits`)."""

Event: TypeAlias = commands.Connected | Message | Notice | Response
"""The events of `PulsarConnection.events_received`."""

_KEY_SHARED_VERSION: Final = 14
"""The protocol version that added Key_Shared subscriptions."""

_FOR_OPEN_CONSUMERS: Final = (commands.Flow, commands.Ack, AckEntries, commands.ConsumerStats)
"""The commands that a broker ignores, or for which it drops the connection, if their consumer is not open."""


class ConnectionState(Enum):
    """State in the life of a connection."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


class Authentication(Protocol):
    """Authentication of a connection, at the start and at the broker's challenges."""

    @property
    def method_name(self) -> str:
        """The broker's name of the method."""

    def auth_data(self, challenge: bytes | None) -> bytes:
        """Return the credentials; `challenge` is the broker's data, None when connecting.

        Raises:
            MQSourceError: there are none.
        """

    def principal(self, data: bytes) -> str:
        """Return the name that these credentials prove, for errors."""


class PulsarConnection(SansIOConnection[Request | AckEntries | Send, Event]):
    """One connection; CONNECT is queued at once.

    Args:
        client_version: our name; brokers show it in their statistics.
        authentication: None for brokers without authentication.
        proxy_to_broker_url: `host:port` of the broker to which a proxy must forward this connection.
        keep_alive_ms: silence after which a PING is sent; after twice as much the peer is dead.
        producing_keep_alive_ms: the same, once a producer was open; None for `keep_alive_ms`. A broker that limits the
            rate of a topic reads nothing from its producers' connections meanwhile, also no PING (4.0.8,
            `ServerCnxThrottleTracker`).

    Attributes:
        protocol_version: the common version, once CONNECTED.
        feature_flags: the broker's further features, once CONNECTED.
        proof: the credentials last sent to the broker: a token, or user name and password; empty for none.

    Raises:
        MQSourceError: `authentication` has no credentials.
        LocalProtocolError: an argument does not fit the protocol.

    Example:
        >>> connection = PulsarConnection(client_version="doctest", authentication=None, now=0.0)
        >>> len(connection.data_to_send())
        31
        >>> connection.receive_data(encode_command(commands.Connected("Pulsar Server4.0.8", 19, 5242880)))
        >>> connection.events_received()[0].server_version, connection.state.name
        ('Pulsar Server4.0.8', 'CONNECTED')
        >>> connection.send(commands.Lookup("persistent://public/default/t", 1))
        >>> connection.receive_data(encode_command(commands.Ping()))
        >>> len(connection.data_to_send()) > 0
        True
    """

    _CLOSED = ConnectionState.CLOSED
    state: ConnectionState

    def __init__(
        self,
        *,
        client_version: str,
        authentication: Authentication | None,
        proxy_to_broker_url: str | None = None,
        keep_alive_ms: int = 30_000,
        producing_keep_alive_ms: int | None = None,
        now: float,
    ) -> None:
        super().__init__(ConnectionState.CONNECTING, now)
        self.server_version = ""
        self.protocol_version = 0
        self.feature_flags = commands.FeatureFlags()
        self.max_message_bytes = DEFAULT_MAX_MESSAGE_BYTES
        self._client_version = client_version
        self._authentication = authentication
        self._keep_alive_seconds = keep_alive_ms / 1000
        self._producing_keep_alive_seconds = (producing_keep_alive_ms or keep_alive_ms) / 1000
        self._limit = min(MAX_FRAME_BYTES, DEFAULT_MAX_MESSAGE_BYTES + FRAME_OVERHEAD_BYTES)
        self._pinged = False
        self._requests: dict[int, Request | AckEntries] = {}
        # Those that are open.
        self._consumers: set[int] = set()
        self._producers: set[int] = set()
        self.proof = b"" if authentication is None else authentication.auth_data(None)
        self._unsent += encode_command(
            commands.Connect(
                client_version=client_version,
                auth_data=None if authentication is None else self.proof,
                protocol_version=PROTOCOL_VERSION,
                auth_method_name=None if authentication is None else authentication.method_name,
                proxy_to_broker_url=proxy_to_broker_url,
                feature_flags=commands.FeatureFlags(
                    supports_auth_refresh=True,
                    supports_broker_entry_metadata=True,
                    supports_get_partitioned_metadata_without_auto_creation=True,
                ),
            )
        )

    @property
    def principal(self) -> str:
        """The name by which the broker knows us, for errors; without a secret."""
        return "nobody in particular" if self._authentication is None else self._authentication.principal(self.proof)

    # Output.

    def send(self, command: Request | AckEntries | Send) -> None:
        """Queue a command.

        A FLOW for a consumer that the broker has meanwhile closed is dropped, because it crossed CLOSE_CONSUMER.

        Raises:
            LocalProtocolError: not connected, FLOW of 0 or beyond 2^31-1 permits, a SEND larger than the broker takes,
                or a field that does not fit the protocol.
            UnsupportedFeatureError: the broker's protocol version does not have the command.
            ServiceNotReadyError: ACK or CONSUMER_STATS for a consumer, or SEND on a producer, that the broker has
                closed: open it again.
        """
        if self.state is not ConnectionState.CONNECTED:
            why = "before CONNECTED" if self.state is ConnectionState.CONNECTING else f"after {self._closed_by}"
            raise LocalProtocolError(f"{type(command).__name__} sent {why}")
        if isinstance(command, Send):
            self._send_entry(command)
            return
        self._check_version(command)
        if isinstance(command, _FOR_OPEN_CONSUMERS) and command.consumer_id not in self._consumers:
            if not isinstance(command, commands.Flow):
                raise ServiceNotReadyError(
                    f"{command}: the consumer was closed meanwhile, by the broker or here; subscribe again"
                )
            logger.debug("%s not sent: the consumer was closed meanwhile", command)
            return
        if isinstance(command, commands.Flow) and not 1 <= command.message_permits <= MAX_PERMITS:
            raise LocalProtocolError(f"{command}: a broker drops the connection unless permits are 1 to {MAX_PERMITS}")
        self._unsent += encode_command(command)
        request_id: int | None = getattr(command, "request_id", None)
        if request_id is not None:
            self._requests[request_id] = command
        if isinstance(command, commands.CloseConsumer | commands.Unsubscribe):
            self._consumers.discard(command.consumer_id)
        elif isinstance(command, commands.CloseProducer):
            self._producers.discard(command.producer_id)

    def _send_entry(self, send: Send) -> None:
        if send.producer_id not in self._producers:
            # The broker would ignore it silently (seen on broker 4.0.8).
            raise ServiceNotReadyError(
                f"SEND {send.sequence_id}: the broker has closed producer {send.producer_id} meanwhile; open it again"
            )
        if len(send.body) > self.max_message_bytes:
            raise LocalProtocolError(
                f"SEND {send.sequence_id} has {len(send.body)} bytes: a broker drops the connection for more than its "
                f"{self.max_message_bytes}"
            )
        self._unsent += encode_send(send)
        self._unsent += send.body

    # Time.

    def _timer(self) -> float:
        intervals = 2 if self._pinged or self._connecting else 1
        return self._last_received + intervals * self._keep_alive_seconds

    def _handle_timer(self, now: float) -> None:
        """Send a PING after one interval of silence; after the second one the broker is dead.

        While reading is paused, silence proves nothing, but PINGs are still sent: any traffic of ours keeps the broker
        from closing the connection, though it gets no PONG.
        """
        if self._connecting:
            self._raise_lost(f"no answer to CONNECT for {now - self._last_received:.0f} s")
        if self._pinged:
            self._raise_lost(
                f"the broker was silent for {now - self._last_received:.0f} s, even to PING{self._open_text()}"
            )
        self._unsent += encode_command(commands.Ping())
        if self._paused:
            self._last_received = now
        else:
            self._pinged = True

    def _note_received(self) -> None:
        super()._note_received()
        self._pinged = False

    def _end_of_stream(self) -> NoReturn:
        if self._connecting:
            self._raise_lost(
                "the peer closed the connection before it answered CONNECT; is this the binary port of a Pulsar "
                "broker, the plain one for pulsar:// (6650 unless configured), the TLS one for pulsar+ssl:// (6651)?"
            )
        self._raise_lost(f"the broker closed the connection{self._open_text()}")

    def _take_frames(self, data: memoryview) -> int:
        events = self._events
        offset = 0
        while (frame := take_frame(data, offset, self._limit)) is not None:
            offset += frame.size
            command = decode_command(frame)
            if type(command) is Message and self.state is ConnectionState.CONNECTED:
                events.append(command)
            else:
                self._take(command)
        self._missing = missing_bytes(data, offset)
        return offset

    def _take(self, command: Command) -> None:
        match command:
            case commands.Ping():
                self._unsent += encode_command(commands.Pong())
            case commands.Pong():
                pass
            case commands.UnknownCommand():
                logger.debug("a command of type %d was ignored", command.command_type)
            case commands.AuthChallenge():
                self._answer_challenge(command)
            case commands.Error() if self.state is ConnectionState.CONNECTING or command.request_id == NO_ID:
                raise error_for_code(command.error, command.message, self._connecting_as if self._connecting else "")
            case commands.Connected():
                self._take_connected(command)
            case _ if self._connecting:
                raise RemoteProtocolError(f"the broker sent {type(command).__name__} before CONNECTED")
            case Response():
                self._take_response(command)
            case Notice():
                self._handle_notice(command)
            case _:
                raise RemoteProtocolError(f"the broker sent {type(command).__name__}, which only clients send")

    @property
    def _connecting(self) -> bool:
        return self.state is ConnectionState.CONNECTING

    @property
    def _connecting_as(self) -> str:
        return "connecting" if self._authentication is None else f"connecting as {self.principal}"

    def _take_connected(self, connected: commands.Connected) -> None:
        if not self._connecting:
            logger.debug("a second CONNECTED was ignored")
            return
        self.state = ConnectionState.CONNECTED
        self.server_version = connected.server_version
        self.protocol_version = connected.protocol_version
        self.feature_flags = connected.feature_flags or commands.FeatureFlags()
        if connected.max_message_size is not None:
            if connected.max_message_size <= 0:
                raise RemoteProtocolError(
                    f"the broker takes messages of {connected.max_message_size} bytes: that is no broker"
                )
            self.max_message_bytes = connected.max_message_size
            self._limit = min(MAX_FRAME_BYTES, connected.max_message_size + FRAME_OVERHEAD_BYTES)
        self._events.append(connected)

    def _handle_notice(self, notice: Notice) -> None:
        if isinstance(notice, commands.CloseConsumer):
            self._consumers.discard(notice.consumer_id)
        elif isinstance(notice, commands.CloseProducer):
            self._producers.discard(notice.producer_id)
        self._events.append(notice)

    def _take_response(self, response: Response) -> None:
        if isinstance(response, commands.ProducerSuccess) and not response.producer_ready:
            # The producer still waits for exclusive access, and so does the request: the same answer will come again.
            logger.info("producer %s waits until it may be exclusive", response.producer_name)
            return
        request = None if response.request_id is None else self._requests.pop(response.request_id, None)
        if isinstance(request, commands.Subscribe) and isinstance(response, commands.Success):
            self._consumers.add(request.consumer_id)
        elif isinstance(request, commands.Producer) and isinstance(response, commands.ProducerSuccess):
            self._producers.add(request.producer_id)
            self._keep_alive_seconds = self._producing_keep_alive_seconds
        self._events.append(response)

    def _answer_challenge(self, challenge: commands.AuthChallenge) -> None:
        asked = "" if challenge.challenge is None else challenge.challenge.auth_method_name
        if self._authentication is None:
            raise AuthenticationError(
                f"the broker asks for authentication{f' by {asked}' if asked else ''}: set authToken, authTokenFile, "
                f"authTokenSupplier, authIssuerUrl, authBasicUser with authBasicPassword, clientCert with clientKey, "
                f"or authPlugin"
            )
        method = self._authentication.method_name
        if asked and asked != method:
            raise AuthenticationError(f"the broker asks for authentication by {asked}, the options are for {method}")
        asked_with = b"" if challenge.challenge is None else challenge.challenge.auth_data
        self.proof = self._authentication.auth_data(asked_with)
        response = commands.AuthData(method, self.proof)
        self._unsent += encode_command(commands.AuthResponse(self._client_version, response, PROTOCOL_VERSION))

    def _check_version(self, command: Request | AckEntries) -> None:
        # A broker drops the connection if it does not know a command, and never answers an ACK before version 17.
        needed = NEEDED_VERSIONS.get(type(command), 0)
        if isinstance(command, commands.Subscribe) and command.sub_type is commands.SubType.Key_Shared:
            needed = _KEY_SHARED_VERSION
        if needed > self.protocol_version:
            what = "a Key_Shared subscription" if needed == _KEY_SHARED_VERSION else type(command).__name__
            raise UnsupportedFeatureError(
                f"{what} needs version {needed} of Pulsar's protocol, and {self.server_version or 'the broker'} has "
                f"version {self.protocol_version}: use a newer broker (all since Pulsar 2.10 have 19)"
            )

    def _open_text(self) -> str:
        """Return what the end of the connection leaves open, for an error."""
        text = self._pending_text(self._requests.values())
        for count, what in ((len(self._consumers), "consumers"), (len(self._producers), "producers")):
            if count:
                text += f"{' and' if text else ' while'} {count} {what} were open"
        return text + self._unfinished()
