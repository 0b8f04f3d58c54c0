"""One live connection to an nsqd: answers complete futures, messages go to the consumer's queue.

The ids that `Consumer.close` returns are complete, because nsqd handles the commands of a connection in order: its
errors for FINs come before CLOSE_WAIT. Above `receive_queue_bytes` of messages not yet taken, the driver's thread sends
RDY 0. (If the socket were not read, as in Pulsar's consumer, nsqd would close the connection.)
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

from spark_mq_source.core.connection import client_version
from spark_mq_source.core.errors import (
    BrokerError,
    ConnectionLostError,
    MQSourceError,
    RemoteProtocolError,
    RequestTimeoutError,
    TransportError,
)
from spark_mq_source.net.driver import DrivenSession, exchange
from spark_mq_source.net.inbox import Inbox
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import TlsSettings, connect
from spark_mq_source.nsq.options import Compression, NsqOptions
from spark_mq_source.nsq.payload.messages import message_ids
from spark_mq_source.nsq.protocol import commands
from spark_mq_source.nsq.protocol.connection import DEFAULT_MAX_MESSAGE_BYTES, ConnectionState, Event, NsqConnection

logger = logging.getLogger(__name__)


class Consumer:
    """The subscription of a session, with its queue of received messages.

    The driver's thread fills the queue; one other thread takes from it.
    """

    def __init__(self, session: Session, topic: str, channel: str, queue_bytes: int) -> None:
        self.session = session
        self.topic = topic
        self.channel = channel
        self._count = 0
        self._unfinished: list[bytes] = []
        self._inbox: Inbox[commands.Messages] = Inbox(
            queue_bytes,
            size_of=lambda run: len(run.data),
            hold=lambda: self._tell(commands.Rdy(0)),
            let_go=lambda: self._tell(commands.Rdy(self._count)),
        )

    def ready(self, count: int) -> None:
        """Allow up to `count` messages in flight (RDY), or nsqd's maximum if that is lower.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        with self._inbox.lock:
            self._count = min(count, self.session.identified.max_rdy_count)
            if not self._inbox.held:
                self.session.send(commands.Rdy(self._count))

    def receive(self, *, max_bytes: int, timeout_seconds: float) -> list[commands.Messages]:
        """Return runs of messages as received, at least one and about `max_bytes`; none after a timeout.

        Raises:
            MQSourceError: the connection has ended, and everything received before is taken.
        """
        try:
            return self._inbox.take(max_bytes=max_bytes, timeout_seconds=timeout_seconds)
        except MQSourceError as error:
            raise error.within(f"nsq topic {self.topic}, channel {self.channel}") from error

    @property
    def unfinished_bytes(self) -> int:
        """The number of received bytes of a frame that is not complete yet; read in another thread, so an estimate."""
        return self.session.connection.unfinished_bytes

    def queued_ids(self) -> bytes:
        """Return the ids of the messages received and not taken yet, 16 bytes each."""
        return b"".join(message_ids(run.data) for run in self._inbox.waiting())

    def fin(self, ids: commands.ByteString) -> None:
        """Finish messages, by ids of 16 bytes each. `close` returns those that nsqd refused to finish.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        if ids:
            self.session.send(commands.Fin(ids))

    def requeue(self, ids: commands.ByteString, *, delay_ms: int = 0) -> None:
        """Requeue messages, to be delivered after `delay_ms`.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        if ids:
            self.session.send(commands.Req(ids, delay_ms))

    def touch(self, ids: commands.ByteString) -> None:
        """Restart the messages' timeout; nsqd 1.3.0 allows it up to `max_msg_timeout_ms` after the delivery.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        if ids:
            self.session.send(commands.Touch(ids))

    def close(self, *, timeout_seconds: float) -> bytes:
        """Stop consuming; wait until nsqd has handled all earlier commands and sends no more messages.

        Messages that were received and not taken, and those that still arrive, are requeued (REQ 0).

        Returns:
            The ids of the messages whose FIN nsqd refused, 16 bytes each: they are delivered again.

        Raises:
            RequestTimeoutError: no answer in time; the session is then closed.
            ConnectionLostError: the connection has ended, so the outcome of the FINs is unknown.
        """
        left = b"".join(message_ids(run.data) for run in self._inbox.close())
        self.session.send(commands.Rdy(0))
        self.requeue(left)
        answer = self.session.request(commands.Cls())
        try:
            answer.result(timeout_seconds)
        except FutureTimeoutError:
            self.session.close()
            raise RequestTimeoutError(
                f"nsq topic {self.topic}, channel {self.channel}: {self.session.address}: no CLOSE_WAIT within "
                f"{timeout_seconds:.0f} s"
            ) from None
        return b"".join(self._unfinished)

    # Callbacks of the session, in the driver's thread.

    def deliver(self, run: commands.Messages) -> None:
        """Queue received messages."""
        if not self._inbox.put((run,), len(run.data)):
            self._tell(commands.Req(message_ids(run.data)))

    def refused(self, failed: commands.Failed) -> None:
        """Record a FIN that nsqd refused."""
        logger.debug("%s: %s", self.session.address, failed)
        if failed.command == "FIN":
            self._unfinished.append(failed.message_id)

    def fail(self, error: MQSourceError) -> None:
        """End the queue with an error; queued messages can still be taken."""
        self._inbox.fail(error)

    def _tell(self, command: commands.Command) -> None:
        try:
            self.session.send(command)
        except MQSourceError as error:
            # The driver will report the same error to all.
            logger.debug("%s: %s not sent: %s", self.session.address, type(command).__name__, error)


class Session(DrivenSession):
    """One connection to an nsqd, negotiated and authorized. Any thread may publish; one consumes.

    Raises:
        ConnectTimeoutError: not connected within `connectTimeout`.
        TransportError: nsqd cannot be reached.
        AuthenticationError: nsqd rejected the credentials.
        BrokerError: nsqd refused a setting of the connection.
        UnsupportedFeatureError: nsqd has no TLS, and the options require it.
        OptionError: certificate files that cannot be used.
    """

    connection: NsqConnection

    def __init__(self, options: NsqOptions, host: str, port: int) -> None:
        self._options = options
        self._waiting: deque[Future[None]] = deque()
        self._sending = threading.Lock()
        self._connected: Future[None] = Future()
        self._consumer: Consumer | None = None
        deadline = Deadline.after_ms(options.connect_timeout_ms)
        self.connection = NsqConnection(
            identify_of(options),
            auth_secret=options.auth_secret,
            max_message_bytes=options.max_message_bytes or DEFAULT_MAX_MESSAGE_BYTES,
            now=time.monotonic(),
        )
        transport = connect(host, port, tls=None, deadline=deadline)
        self.address = transport.address
        try:
            if options.tls:
                exchange(
                    self.connection,
                    transport,
                    until=lambda: self.connection.state is not ConnectionState.IDENTIFYING,
                    deadline=deadline,
                )
                transport.start_tls(TlsSettings.of(options), host, deadline=deadline)
                self.connection.tls_started()
            self._drive(transport)
        except BaseException:
            transport.close()
            raise
        silence = "no answer to IDENTIFY in time; is this the TCP port of an nsqd?"
        self._wait_until(self._connected, deadline, silence)

    @property
    def identified(self) -> commands.Identified:
        """The negotiated settings."""
        return self.connection.identified

    @property
    def authorized(self) -> commands.Authorized | None:
        """The identity that nsqd reported; None if it requires no authentication."""
        return self.connection.authorized

    def subscribe(self, topic: str, channel: str) -> Consumer:
        """Subscribe to a channel, which nsqd creates if necessary. No message arrives before `Consumer.ready`.

        Raises:
            RequestTimeoutError: no answer within `operationTimeout`.
            AuthorizationError: nsqd denies the subscription.
            MQSourceError: the connection has ended, or nsqd refused.
        """
        consumer = Consumer(self, topic, channel, self._options.receive_queue_bytes)
        self._consumer = consumer
        try:
            self.request(commands.Sub(topic, channel)).result(self._options.operation_timeout_ms / 1000)
        except FutureTimeoutError:
            self.close()
            raise RequestTimeoutError(
                f"nsq topic {topic}, channel {channel}: {self.address}: no answer to SUB within operationTimeout"
            ) from None
        except MQSourceError as error:
            raise error.within(f"nsq topic {topic}, channel {channel}") from error
        return consumer

    def request(self, command: commands.Command) -> Future[None]:
        """Send a command that has an answer, such as messages to publish; the future holds the error, if any.

        Answers come in the order of the commands. After a retryable error, it is unknown whether nsqd has accepted the
        messages.
        """
        answer: Future[None] = Future()
        with self._sending:
            self._waiting.append(answer)
            try:
                self.send(command)
            except MQSourceError as error:
                # A socket that has just failed may still hold nsqd's reason: the driver's thread reads and reports it.
                if self.closed or not isinstance(error, TransportError):
                    self._waiting.remove(answer)
                    answer.set_exception(self._unknown_outcome(error))
        return answer

    def _unknown_outcome(self, error: MQSourceError) -> MQSourceError:
        """Return the error for a command after the one that nsqd refused: its outcome is unknown."""
        if not isinstance(error, BrokerError):
            return error
        return ConnectionLostError(f"{self.address}: the connection ended with an earlier command ({error})")

    def _on_events(self, events: Sequence[Event]) -> None:
        for event in events:
            match event:
                case commands.Messages():
                    if self._consumer is not None:
                        self._consumer.deliver(event)
                case commands.Ok() | commands.CloseWait():
                    self._answer(event)
                case commands.Failed():
                    if self._consumer is not None:
                        self._consumer.refused(event)
                case commands.Identified():
                    self._connected.set_result(None)

    def _answer(self, event: commands.Ok | commands.CloseWait) -> None:
        with self._sending:
            waiting = self._waiting.popleft() if self._waiting else None
        if waiting is None:
            raise RemoteProtocolError(
                f"{self.address}: nsqd answered {type(event).__name__}, but no request is pending"
            )
        waiting.set_result(None)

    def _on_closed(self, error: MQSourceError) -> None:
        if not self._connected.done():
            self._connected.set_exception(error)
        if self._consumer is not None:
            self._consumer.fail(error)
        with self._sending:
            waiting, self._waiting = self._waiting, deque()
        # nsqd's refusal is for the oldest pending command.
        for answer in waiting:
            answer.set_exception(error)
            error = self._unknown_outcome(error)


def identify_of(options: NsqOptions) -> commands.Identify:
    """Return the settings to request for a connection with these options."""
    hostname = socket.gethostname()
    return commands.Identify(
        client_id=options.client_id or hostname.partition(".")[0],
        hostname=hostname,
        user_agent=client_version("/"),
        heartbeat_interval_ms=options.heartbeat_interval_ms,
        output_buffer_bytes=options.output_buffer_bytes,
        output_buffer_timeout_ms=options.output_buffer_timeout_ms,
        msg_timeout_ms=options.msg_timeout_ms,
        tls_v1=options.tls,
        snappy=options.compression is Compression.SNAPPY,
        deflate=options.compression is Compression.DEFLATE,
        deflate_level=options.deflate_level if options.compression is Compression.DEFLATE else None,
        sample_rate=options.sample_rate,
        topology_region=options.topology_region,
        topology_zone=options.topology_zone,
    )
