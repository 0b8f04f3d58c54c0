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

from spark_mq_source.core.connection import SansIOConnection
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
from spark_mq_source.pulsar.protocol.metadata import count_messages
from spark_mq_source.pulsar.protocol.wire import (
    DEFAULT_MAX_MESSAGE_BYTES,
    FRAME_OVERHEAD_BYTES,
    missing_bytes,
    take_frame,
)

logger = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 20
"""The version that we announce. A broker sends broker entry metadata from 18 on, reads partition metadata's flag from
19 on, and sends TOPIC_MIGRATED from 20 on (recorded from broker 4.0.8 with a client of version 20)."""

MAX_FRAME_BYTES: Final = 256 << 20
"""The largest frame accepted, whatever message size a broker allows: a memory limit, not one of the protocol."""

MAX_PERMITS: Final = (1 << 31) - 1
"""With more permits in one FLOW, or outstanding, the broker drops the connection or stalls (seen on broker 4.0.8)."""

COUNT_ABOVE_PERMITS: Final = 1 << 30
"""Number of permits from which on they are counted exactly, see `_Opened`."""

Event: TypeAlias = commands.Connected | Message | Notice | Response
"""The events of `PulsarConnection.events_received`."""

_KEY_SHARED_VERSION: Final = 14
"""The protocol version that added Key_Shared subscriptions."""

_UNANSWERED: Final = (commands.Flow, commands.RedeliverUnacknowledgedMessages)


class ConnectionState(Enum):
    """State in the life of a connection."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


class _Opened:
    """A consumer or producer that is open, or requested by `asked_by`."""

    __slots__ = ("asked_by", "is_open", "permits")

    def __init__(self, asked_by: int) -> None:
        self.asked_by = asked_by
        self.is_open = False
        self.permits = 0
        """Of a consumer: at least the permits that the broker still has.

        An entry counts as one message, because its number of messages would require parsing its metadata. With so many
        permits that a long read of batches could seem to overflow, entries are counted exactly.
        """

    def record_received(self, message: Message) -> None:
        self.permits -= 1 if self.permits < COUNT_ABOVE_PERMITS else count_messages(message.body)


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


class PulsarConnection(SansIOConnection[Command, Event]):
    """One connection; CONNECT is queued at once.

    Args:
        client_version: our name; brokers show it in their statistics.
        authentication: None for brokers without authentication.
        proxy_to_broker_url: `host:port` of the broker to which a proxy must forward this connection.
        keep_alive_ms: silence after which a PING is sent; after twice as much the peer is dead.
        max_frame_bytes: the largest frame accepted, whatever message size the broker allows.

    Attributes:
        protocol_version: the common version, once CONNECTED.
        feature_flags: the broker's further features, once CONNECTED.

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
        max_frame_bytes: int = MAX_FRAME_BYTES,
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
        self._max_frame_bytes = max_frame_bytes
        self._limit = min(max_frame_bytes, DEFAULT_MAX_MESSAGE_BYTES + FRAME_OVERHEAD_BYTES)
        self._pinged = False
        self._requests: dict[int, Request | AckEntries] = {}
        self._consumers: dict[int, _Opened] = {}
        self._closed_by_broker: set[int] = set()
        self._producers: dict[int, _Opened] = {}
        self._producers_closed_by_broker: set[int] = set()
        self._shown = b"" if authentication is None else authentication.auth_data(None)
        self._unsent += encode_command(
            commands.Connect(
                client_version=client_version,
                auth_data=None if authentication is None else self._shown,
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
        return "nobody in particular" if self._authentication is None else self._authentication.principal(self._shown)

    @property
    def proof(self) -> bytes:
        """The credentials last sent to the broker; empty for none."""
        return self._shown

    # Output.

    def send(self, command: Command) -> None:
        """Queue a command.

        A FLOW or REDELIVER_UNACKNOWLEDGED_MESSAGES for a consumer that the broker has meanwhile closed is dropped,
        because it crossed CLOSE_CONSUMER.

        Raises:
            LocalProtocolError: not connected, not a command of clients, or one for which the broker would drop the
                connection or never answer: a request id in use, FLOW of 0 or beyond 2^31-1 permits, an id of a consumer
                that is in use (SUBSCRIBE) or unknown (FLOW, ACK, REDELIVER_UNACKNOWLEDGED_MESSAGES, CONSUMER_STATS), or
                of a producer that is in use (PRODUCER) or not open (SEND), a SEND larger than the broker takes.
            UnsupportedFeatureError: the broker's protocol version does not have the command.
            ServiceNotReadyError: ACK or CONSUMER_STATS for a consumer, or SEND on a producer, that the broker has
                closed: open it again.
        """
        if self.state is not ConnectionState.CONNECTED:
            why = "before CONNECTED" if self.state is ConnectionState.CONNECTING else f"after {self._closed_by}"
            raise LocalProtocolError(f"{type(command).__name__} sent {why}")
        if type(command) is Send:
            self._send_entry(command)
            return
        if not isinstance(command, Request | AckEntries):
            raise LocalProtocolError(f"{type(command).__name__} is not for users of a connection to send")
        request_id: int | None = getattr(command, "request_id", None)
        if request_id in self._requests:
            raise LocalProtocolError(
                f"{command} has the request id of {self._requests[request_id]}, which is not answered yet"
            )
        self._check_version(command)
        consumer = self._consumer_for(command)
        if isinstance(command, _UNANSWERED):
            if consumer is None:
                logger.debug("%s not sent: the broker has closed the consumer", command)
                return
            if isinstance(command, commands.Flow):
                self._check_flow(command, consumer)
        data = encode_command(command)
        self._unsent += data
        if request_id is not None:
            self._requests[request_id] = command
        self._note_sent(command, consumer)

    def _note_sent(self, command: Request | AckEntries, consumer: _Opened | None) -> None:
        match command:
            case commands.Subscribe():
                self._consumers[command.consumer_id] = _Opened(command.request_id)
                self._closed_by_broker.discard(command.consumer_id)
            case commands.CloseConsumer() | commands.Unsubscribe():
                self._consumers.pop(command.consumer_id, None)
            case commands.Flow() if consumer is not None:
                consumer.permits += command.message_permits
            case commands.Producer():
                self._producers[command.producer_id] = _Opened(command.request_id)
                self._producers_closed_by_broker.discard(command.producer_id)
            case commands.CloseProducer():
                self._producers.pop(command.producer_id, None)

    def _send_entry(self, send: Send) -> None:
        producer = self._producers.get(send.producer_id)
        if producer is None and send.producer_id in self._producers_closed_by_broker:
            # The broker would ignore it silently (seen on broker 4.0.8).
            raise ServiceNotReadyError(
                f"SEND {send.sequence_id}: the broker has closed producer {send.producer_id} meanwhile; open it again"
            )
        if producer is None or not producer.is_open:
            raise LocalProtocolError(
                f"SEND {send.sequence_id} is on producer {send.producer_id}, which is not open on this connection"
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
        events, consumers = self._events, self._consumers
        offset = 0
        while (frame := take_frame(data, offset, self._limit)) is not None:
            offset += frame.size
            command = decode_command(frame)
            if type(command) is Message:
                consumer = consumers.get(command.consumer_id)
                if consumer is not None and consumer.is_open:
                    consumer.record_received(command)
                    events.append(command)
                else:
                    self._discard(command)
            else:
                self._take(command)
        self._missing = missing_bytes(data, offset)
        return offset

    def _discard(self, message: Message) -> None:
        if self.state is not ConnectionState.CONNECTED:
            raise RemoteProtocolError("a MESSAGE before CONNECTED")
        # Messages in transit still arrive after their consumer is closed.
        logger.debug("a message for consumer %d, which is not open, was dropped", message.consumer_id)

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
            self._limit = min(self._max_frame_bytes, connected.max_message_size + FRAME_OVERHEAD_BYTES)
        self._events.append(connected)

    def _handle_notice(self, notice: Notice) -> None:
        if isinstance(notice, commands.CloseConsumer) and self._consumers.pop(notice.consumer_id, None) is not None:
            self._closed_by_broker.add(notice.consumer_id)
        if isinstance(notice, commands.CloseProducer) and self._producers.pop(notice.producer_id, None) is not None:
            self._producers_closed_by_broker.add(notice.producer_id)
        self._events.append(notice)

    def _take_response(self, response: Response) -> None:
        if isinstance(response, commands.ProducerSuccess) and not response.producer_ready:
            # The producer still waits for exclusive access, and so does the request: the same answer will come again.
            logger.info("producer %s waits until it may be exclusive", response.producer_name)
            return
        request = None if response.request_id is None else self._requests.pop(response.request_id, None)
        if isinstance(request, commands.Subscribe):
            self._note_opened(self._consumers, request.consumer_id, response)
        elif isinstance(request, commands.Producer):
            self._note_opened(self._producers, request.producer_id, response)
        self._events.append(response)

    @staticmethod
    def _note_opened(asked: dict[int, _Opened], number: int, response: Response) -> None:
        # It may have been closed, and its id reused, before the answer arrived.
        if number in asked and asked[number].asked_by == response.request_id:
            if isinstance(response, commands.Success | commands.ProducerSuccess):
                asked[number].is_open = True
            else:
                del asked[number]

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
        self._shown = self._authentication.auth_data(asked_with)
        response = commands.AuthData(method, self._shown)
        self._unsent += encode_command(commands.AuthResponse(self._client_version, response, PROTOCOL_VERSION))

    def _consumer_for(self, command: Request | AckEntries) -> _Opened | None:
        """Return the consumer of a command after a check; None if there is none or it need not be open."""
        match command:
            case commands.Subscribe():
                if command.consumer_id in self._consumers:
                    raise LocalProtocolError(f"{command} has the id of a consumer that is open")
                return None
            case commands.Producer() if command.producer_id in self._producers:
                raise LocalProtocolError(f"{command} has the id of a producer that is open")
            case (
                commands.Flow()
                | commands.Ack()
                | AckEntries()
                | commands.RedeliverUnacknowledgedMessages()
                | commands.ConsumerStats()
            ):
                consumer = self._consumers.get(command.consumer_id)
            case _:
                return None
        # CONSUMER_STATS requires an open consumer; the others may follow SUBSCRIBE without waiting for its answer.
        if consumer is not None and (consumer.is_open or not isinstance(command, commands.ConsumerStats)):
            return consumer
        if command.consumer_id not in self._closed_by_broker:
            raise LocalProtocolError(f"{command} is for a consumer that is not open on this connection")
        if not isinstance(command, _UNANSWERED):
            raise ServiceNotReadyError(f"{command}: the broker has closed this consumer meanwhile; subscribe again")
        return None

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

    @staticmethod
    def _check_flow(flow: commands.Flow, consumer: _Opened) -> None:
        if not 1 <= flow.message_permits <= MAX_PERMITS:
            raise LocalProtocolError(f"{flow}: a broker drops the connection unless permits are 1 to {MAX_PERMITS}")
        if consumer.permits + flow.message_permits > MAX_PERMITS:
            raise LocalProtocolError(
                f"{flow}: with {consumer.permits} outstanding the broker's sum of permits would overflow"
            )

    def _open_text(self) -> str:
        """Return what the end of the connection leaves open, for an error."""
        text = self._pending_text(self._requests.values())
        for count, what in ((len(self._consumers), "consumers"), (len(self._producers), "producers")):
            if count:
                text += f"{' and' if text else ' while'} {count} {what} were open"
        return text + self._unfinished()
