"""The state machine of one connection to a TubeMQ master or broker: bytes and times in, events and bytes out.

This module decides all that concerns a whole connection: which calls are pending and for how long, which partitions are
registered on it, and the heartbeats that keep them. There is no handshake::

    OPEN --EOF, silence, error, close()--> CLOSED

A server silently drops a call that it reaches too late, that has no timeout, or whose frame is invalid (seen on server
2.4.0): so every call has a timer. Time is measured in ticks, a quarter of `request_timeout_ms` each, because a sender
does not know the time: a call fails after four to five of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, NoReturn, TypeAlias

from spark_mq_source.core.connection import SansIOConnection
from spark_mq_source.core.errors import LocalProtocolError, RemoteProtocolError
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition, parse_failure
from spark_mq_source.tubemq.protocol.codec import decode_response, encode_request, method_of
from spark_mq_source.tubemq.protocol.commands import (
    SUCCESS,
    AuthorizedInfo,
    BrokerHeartbeat,
    BrokerHeartbeatResponse,
    GetMessageResponse,
    RegisterPartition,
    RegisterPartitionResponse,
    RegisterType,
    Request,
    Response,
    SendMessage,
)
from spark_mq_source.tubemq.protocol.error_codes import CERTIFICATE_FAILURE, DUPLICATE_PARTITION, HB_NO_NODE
from spark_mq_source.tubemq.protocol.hot import STORED, take_stored
from spark_mq_source.tubemq.protocol.wire import SeenBlocks, take_frame

logger = logging.getLogger(__name__)

_new_tuple = tuple.__new__

TICKS_TO_ANSWER: Final = 4
"""Number of whole ticks that a call may wait."""

MAX_SERIAL_NO: Final = (1 << 31) - 1
"""Serial numbers of calls are 1 to this; the connection's own heartbeats have negative ones."""


Call: TypeAlias = tuple[int, Request]
"""The number of an answer, unique among pending calls, and the request."""


class Answer(NamedTuple):
    """Answer to a call."""

    serial_no: int
    request: Request
    response: Response


class CallTimedOut(NamedTuple):
    """A call without an answer in time, on a connection that works: the server has dropped it."""

    serial_no: int
    request: Request


class PartitionLost(NamedTuple):
    """A heartbeat has found that a partition is no longer registered for this client.

    Attributes:
        code: HB_NO_NODE if no client has it, DUPLICATE_PARTITION if another client has.
    """

    client_id: str
    group_name: str
    partition: BrokerPartition
    code: int


class NotAuthorized(NamedTuple):
    """A heartbeat was refused, or its answer requires others, because its credentials are probably too old."""

    shown: AuthorizedInfo | None


Event: TypeAlias = Answer | CallTimedOut | PartitionLost | NotAuthorized
"""The events of `TubeMQConnection.events_received`."""


class ConnectionState(Enum):
    """State in the life of a connection."""

    OPEN = "open"
    CLOSED = "closed"


class _Reader(NamedTuple):
    """The owner of registered partitions; one heartbeat covers all of them."""

    client_id: str
    group_name: str
    qry_priority_id: int | None


class _Waiting(NamedTuple):
    """A pending call, and the tick in which it was sent."""

    request: Request
    tick: int


class TubeMQConnection(SansIOConnection[Sequence[Call], Event]):
    """One connection.

    Args:
        broker: the broker at the other end; None for a master.
        request_timeout_ms: maximum wait for the answer to a call.
        heartbeat_ms: the interval at which registered partitions are confirmed; a broker forgets them after 30 s.
        authorized: returns the credentials of heartbeats to the broker.
        keeps_receipts: whether answers to stored messages are decoded; otherwise they are all `STORED`.

    Example:
        >>> from spark_mq_source.tubemq.protocol.commands import CloseProducer
        >>> from spark_mq_source.tubemq.protocol.wire import encode_frame
        >>> connection = TubeMQConnection(request_timeout_ms=10_000, now=0.0)
        >>> connection.send([(1, CloseProducer("client"))])
        >>> len(connection.data_to_send())
        40
        >>> answer = bytes.fromhex("02080104 08001803 0e080312 0a080110 c8011a03 4f4b21")
        >>> connection.receive_data(encode_frame(1, answer))
        >>> connection.events_received()[0].response
        CloseProducerResponse(success=True, err_code=200, err_msg='OK!')
    """

    _CLOSED = ConnectionState.CLOSED
    state: ConnectionState

    def __init__(
        self,
        *,
        broker: Broker | None = None,
        request_timeout_ms: int,
        heartbeat_ms: int = 10_000,
        authorized: Callable[[], AuthorizedInfo] | None = None,
        keeps_receipts: bool = False,
        now: float,
    ) -> None:
        super().__init__(ConnectionState.OPEN, now)
        self._authorized = authorized
        self._broker = broker
        self._keeps_receipts = keeps_receipts
        self._request_timeout_ms = request_timeout_ms
        self._tick_seconds = request_timeout_ms / 1000 / TICKS_TO_ANSWER
        self._heartbeat_seconds = heartbeat_ms / 1000
        self._tick = 0
        self._received_tick = 0
        self._next_tick = now + self._tick_seconds
        self._next_heartbeat = now + self._heartbeat_seconds
        self._seen = SeenBlocks()
        self._waiting: dict[int, _Waiting] = {}
        self._registered: dict[_Reader, dict[str, BrokerPartition]] = {}
        self._last_own_serial_no = 0

    # Output.

    def send(self, command: Sequence[Call]) -> None:
        """Queue calls, in order.

        Raises:
            LocalProtocolError: the connection is closed, the serial number is in use or invalid, or the request does
                not fit the protocol; nothing is queued then.
        """
        waiting, tick, timeout_ms = self._waiting, self._tick, self._request_timeout_ms
        for serial_no, request in command:
            if self.state is ConnectionState.CLOSED:
                raise LocalProtocolError(f"{type(request).__name__} sent after {self._closed_by}")
            if serial_no in waiting or not 0 < serial_no <= MAX_SERIAL_NO:
                raise LocalProtocolError(
                    f"{type(request).__name__} has the serial number {serial_no}, which is in use or invalid"
                )
        frames = [encode_request(serial_no, request, timeout_ms=timeout_ms) for serial_no, request in command]
        self._unsent += b"".join(frames)
        for serial_no, request in command:
            waiting[serial_no] = _new_tuple(_Waiting, (request, tick))
            if type(request) is RegisterPartition and request.op_type == RegisterType.UNREGISTER:
                self._forget(request.client_id, request.group_name, request.topic_name, request.partition_id)

    # Input, and time.

    def received(self, n: int, now: float) -> None:
        """See `SansIOConnection`."""
        if n:
            self._received_tick = self._tick
        super().received(n, now)

    def _end_of_stream(self) -> NoReturn:
        self._raise_lost(f"the server closed the connection{self._unanswered()}")

    def _timer(self) -> float:
        return min(self._next_tick, self._next_heartbeat)

    def _handle_timer(self, now: float) -> None:
        """Fail overdue calls (but not while reading is paused), and send heartbeats."""
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + self._heartbeat_seconds
            self._send_heartbeats()
        if now >= self._next_tick:
            self._next_tick = now + self._tick_seconds
            if not self._paused:
                self._tick += 1
                self._give_up()

    def _take_frames(self, data: memoryview) -> int:
        events = self._events
        offset = 0
        while True:
            stored: list[int] = []
            if not self._keeps_receipts:
                stored, offset = take_stored(data, offset)
            for serial_no in stored:
                request = self._answered(serial_no)
                if type(request) is SendMessage:
                    events.append(_new_tuple(Answer, (serial_no, request, STORED)))
                elif request is not None:
                    self._refuse_answer(request, STORED)
            frame = take_frame(data, offset, self._seen)
            if frame is None:
                return offset
            offset += frame.size
            request = self._answered(frame.serial_no)
            if request is not None:
                method, response = decode_response(frame)
                if method is not None and method is not method_of(request):
                    self._refuse_answer(request, response)
                self._take(frame.serial_no, request, response)

    def _answered(self, serial_no: int) -> Request | None:
        call = self._waiting.pop(serial_no, None)
        if call is None:
            # The call, or a heartbeat, had already timed out.
            logger.debug("an answer to call %d, which is not pending, was dropped", serial_no)
            return None
        return call[0]

    @staticmethod
    def _refuse_answer(request: Request, response: Response) -> NoReturn:
        raise RemoteProtocolError(f"the server answered {type(request).__name__} by {type(response).__name__}")

    def _take(self, serial_no: int, request: Request, response: Response) -> None:
        if serial_no < 0:
            assert isinstance(request, BrokerHeartbeat)  # noqa: S101 - for mypy: nothing else is sent here
            self._take_heartbeat(request, response)
            return
        if isinstance(request, RegisterPartition):
            if request.op_type == RegisterType.REGISTER:
                self._take_registered(request, response)
        elif isinstance(response, GetMessageResponse) and response.err_code in {HB_NO_NODE, DUPLICATE_PARTITION}:
            # The caller gets this answer; a heartbeat has nothing to add.
            self._forget(request.client_id, request.group_name, request.topic_name, request.partition_id)  # type: ignore[union-attr]
        self._events.append(Answer(serial_no, request, response))

    def _take_registered(self, request: RegisterPartition, response: Response) -> None:
        if self._broker is None or not isinstance(response, RegisterPartitionResponse) or response.err_code != SUCCESS:
            return
        # Otherwise a partition registered again with another priority would alternate between both in heartbeats.
        self._forget(request.client_id, request.group_name, request.topic_name, request.partition_id)
        partition = BrokerPartition(self._broker, request.topic_name, request.partition_id)
        reader = _Reader(request.client_id, request.group_name, request.qry_priority_id)
        self._registered.setdefault(reader, {})[str(partition)] = partition

    def _forget(self, client_id: str, group_name: str, topic: str, partition_id: int) -> None:
        if self._broker is None:
            return
        text = str(BrokerPartition(self._broker, topic, partition_id))
        for reader, partitions in list(self._registered.items()):
            if (reader.client_id, reader.group_name) == (client_id, group_name):
                partitions.pop(text, None)
                if not partitions:
                    del self._registered[reader]

    def _send_heartbeats(self) -> None:
        for reader, partitions in self._registered.items():
            self._last_own_serial_no = self._last_own_serial_no % MAX_SERIAL_NO + 1
            heartbeat = BrokerHeartbeat(
                reader.client_id,
                reader.group_name,
                tuple(partitions),
                qry_priority_id=reader.qry_priority_id,
                auth_info=None if self._authorized is None else self._authorized(),
            )
            serial_no = -self._last_own_serial_no
            self._unsent += encode_request(serial_no, heartbeat, timeout_ms=self._request_timeout_ms)
            self._waiting[serial_no] = _Waiting(heartbeat, self._tick)

    def _take_heartbeat(self, request: BrokerHeartbeat, response: Response) -> None:
        if not isinstance(response, BrokerHeartbeatResponse) or response.err_code != SUCCESS:
            logger.warning("the broker refused a heartbeat of %s: %s", request.client_id, response)
            if getattr(response, "err_code", None) == CERTIFICATE_FAILURE:
                self._events.append(NotAuthorized(request.auth_info))
            return
        if response.require_auth:
            self._events.append(NotAuthorized(request.auth_info))
        for text in response.failure_info:
            code, partition = parse_failure(text)
            self._forget(request.client_id, request.group_name, partition.topic, partition.partition_id)
            self._events.append(PartitionLost(request.client_id, request.group_name, partition, code))

    def _give_up(self) -> None:
        waiting = self._waiting
        while waiting:
            serial_no = next(iter(waiting))
            call = waiting[serial_no]
            if self._tick - call.tick <= TICKS_TO_ANSWER:
                return
            if self._received_tick < call.tick:
                self._raise_lost(f"the server was silent for {self._request_timeout_ms} ms{self._unanswered()}")
            del waiting[serial_no]
            if serial_no > 0:
                self._events.append(CallTimedOut(serial_no, call.request))

    def _unanswered(self) -> str:
        """Return the calls that the end of the connection leaves unanswered, as text for an error."""
        return self._pending_text(call.request for call in self._waiting.values()) + self._unfinished()
