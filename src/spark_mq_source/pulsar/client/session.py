"""One live connection to a broker: answers go to the futures that wait, messages to their consumers' queues."""

from __future__ import annotations

import itertools
import logging
import operator
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol, TypeVar

from spark_mq_source.core.errors import (
    AuthorizationError,
    ConnectTimeoutError,
    MQSourceError,
    RemoteProtocolError,
    ServiceNotReadyError,
)
from spark_mq_source.net.driver import ConnectionDriver
from spark_mq_source.net.inbox import Inbox
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import TlsSettings, connect
from spark_mq_source.pulsar.client.authentication import (
    BasicAuthentication,
    TlsAuthentication,
    TokenAuthentication,
    TokenFileAuthentication,
    TokenSupplierAuthentication,
)
from spark_mq_source.pulsar.client.oauth2 import OAuth2Authentication
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.connection import Authentication, PulsarConnection
from spark_mq_source.pulsar.protocol.error_codes import error_for_code

T = TypeVar("T")

MIN_KEEP_ALIVE_MS = 1000
"""No operation timeout, however short, makes a broker that pauses for a moment look dead."""

logger = logging.getLogger(__name__)

_PLACES_CURSORS = 4
"""The first major version that is known to, see `Session.places_cursors`."""

_body_of = operator.attrgetter("body")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a topic-partition held at one moment, as the half-open range `(first, last]`.

    Attributes:
        first: just before the first message that is kept.
        last: the last message that can be delivered; EARLIEST where there is none.
    """

    first: Position
    last: Position


class BaseConsumer(ABC):
    """A consumer of this process on one topic-partition, and the queue of what it was sent.

    The driver's thread fills the queue; one other thread takes from it. When more than `queue_bytes` wait, the
    connection is no longer read from until half is taken: memory is bounded whatever the broker sends.

    Attributes:
        topic_partition: what it reads.
        session: the connection it is on.
        has_ended: whether the broker has said that the topic is terminated and nothing of it is left to acknowledge.
        taken_entries: how many were taken from the queue.
        taken_bytes: of them.
    """

    def __init__(self, session: Session, consumer_id: int, topic_partition: TopicPartition, queue_bytes: int) -> None:
        self.topic_partition = topic_partition
        self.session = session
        self.has_ended = False
        self.taken_entries = 0
        self.taken_bytes = 0
        self._consumer_id = consumer_id
        self._inbox: Inbox[commands.Message] = Inbox(
            queue_bytes,
            size_of=lambda message: len(message.body),
            hold=session.pause_reading,
            let_go=session.resume_reading,
        )

    @property
    def address(self) -> str:
        """The broker's address."""
        return self.session.address

    def grant(self, messages: int) -> None:
        """Lets the broker send `messages` more messages (FLOW); batches may overshoot it.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        self.session.send(commands.Flow(self._consumer_id, messages))

    def receive(self, *, max_bytes: int, timeout_seconds: float) -> list[commands.Message]:
        """Messages in the order they came, at least one and about `max_bytes` at most; none after `timeout_seconds`.

        Raises:
            MQSourceError: the consumer or its connection has ended, once everything that came before is taken.
        """
        taken = self._inbox.take(max_bytes=max_bytes, timeout_seconds=timeout_seconds)
        self.taken_entries += len(taken)
        self.taken_bytes += sum(map(len, map(_body_of, taken)))
        return taken

    def _unbounded_until(self, asked: Future[T]) -> Future[T]:
        """An answer that comes behind the messages under way: the queue may pass its bound until it is here."""
        self._inbox.lift()
        asked.add_done_callback(lambda _: self._inbox.restore())
        return asked

    # What the session tells, in the driver's thread; nothing of it may block.

    def deliver(self, messages: Sequence[commands.Message]) -> None:
        """Queues what arrived."""
        self._inbox.put(messages, sum(map(len, map(_body_of, messages))))

    @abstractmethod
    def note_active(self, *, is_active: bool) -> None:
        """The broker has chosen this consumer of a Failover subscription, or another one."""

    def note_end(self) -> None:
        """The topic is terminated, and this consumer's subscription has all of it behind it."""
        self.has_ended = True

    def fail(self, error: MQSourceError) -> None:
        """Ends the queue with an error; what is queued can still be taken."""
        self._inbox.fail(error)


ConsumerT = TypeVar("ConsumerT", bound=BaseConsumer)


class Consumer(BaseConsumer):
    """One subscription of this process, which reads from a position on and acknowledges cumulatively, if at all.

    Attributes:
        opened: where the broker had placed its cursor when it was opened, and the last message then.
        is_closed: whether it, or its connection, has ended.
        is_active: of a Failover subscription: whether the broker has chosen this consumer; None before it has said so.
    """

    def __init__(self, session: Session, consumer_id: int, topic_partition: TopicPartition, queue_bytes: int) -> None:
        super().__init__(session, consumer_id, topic_partition, queue_bytes)
        self.opened = Bounds(EARLIEST, EARLIEST)
        self.is_closed = False
        self.is_active: bool | None = None
        self._chosen: Future[None] = Future()
        # Ledger and entry of the last message that arrived; None before the first.
        self._arrived_at: tuple[int, int] | None = None
        # Behind each run of messages with a gap: its last message, and the bounds that the broker was asked for then.
        self._after_gaps: deque[tuple[tuple[int, int], Future[Bounds]]] = deque()

    def request_bounds(self) -> Future[Bounds]:
        """Asks where the broker has this consumer's cursor (`first`) and what the last message is (`last`).

        The cursor of a consumer that never acknowledges stays where it was opened: if it moved, the broker moved it,
        by TTL, eviction or trimming (seen on broker 4.0.8).

        The answer comes behind the messages under way, so the queue may pass its bound until it is here: by what is
        granted and not yet sent.
        """
        return self._unbounded_until(self._ask_bounds())

    def bounds_after_gap(self, ledger: int, entry: int) -> Future[Bounds]:
        """The bounds as the broker had them after it sent this entry, which is not the one after the last one taken.

        They were asked for when the entry arrived, not now: what the broker has removed since was sent before.
        """
        while self._after_gaps[0][0] < (ledger, entry):
            self._after_gaps.popleft()
        asked = self._after_gaps[0][1]
        # The answer comes behind what is under way, see `request_bounds`.
        return asked if asked.done() else self._unbounded_until(asked)

    def _ask_bounds(self) -> Future[Bounds]:
        return self.session.request(
            lambda request_id: commands.GetLastMessageId(self._consumer_id, request_id), _bounds_of
        )

    def request_backlog(self) -> Future[int]:
        """Asks how many entries the broker has from this consumer's cursor to the end, across ledgers.

        Exact where nothing was received; markers and aborted messages count (seen on broker 4.0.8).
        """
        return self.session.request(
            lambda request_id: commands.ConsumerStats(request_id, self._consumer_id), _backlog_of
        )

    def request_ack(self, position: Position) -> Future[object]:
        """Acknowledges everything up to and with an entry. The answer says nothing: read the cursor back.

        The broker answers acknowledgements past the end or backwards as it does good ones (seen on 4.0.8).
        """
        return self.session.request(
            lambda request_id: commands.Ack(
                self._consumer_id,
                commands.AckType.Cumulative,
                (commands.MessageId(position.ledger, position.entry),),
                request_id,
            ),
            acknowledged,
        )

    def request_seek(self, target: int | Position) -> Future[object]:
        """Puts the cursor to a publish time (ms), or before an entry; that is on disk when the broker answers.

        The broker closes the consumer before it answers (seen on 4.0.8).
        """

        def command(request_id: int) -> commands.Seek:
            if isinstance(target, int):
                return commands.Seek(self._consumer_id, request_id, message_publish_time=target)
            entry = commands.MessageId(target.ledger, target.entry)
            return commands.Seek(self._consumer_id, request_id, message_id=entry)

        return self.session.request(command, _success_of)

    def chosen(self) -> Future[None]:
        """Done once the broker has chosen this consumer of a Failover subscription, or the consumer has ended."""
        return self._chosen

    def note_active(self, *, is_active: bool) -> None:
        """The broker has chosen this consumer of a Failover subscription, or another one (the driver's thread)."""
        self.is_active = is_active
        if is_active and not self._chosen.done():
            self._chosen.set_result(None)

    def release(self) -> None:
        """Lets the connection be read again whatever is queued here: nobody will take it any more."""
        self._inbox.lift()

    def deliver(self, messages: Sequence[commands.Message]) -> None:
        """Queues what arrived (the driver's thread)."""
        last = messages[-1]
        before = self._arrived_at or (self.opened.first.ledger, self.opened.first.entry)
        self._arrived_at = (last.ledger_id, last.entry_id)
        # Entries of a ledger are numbered without gaps, so the ends of a run tell whether it has one.
        if (last.ledger_id, last.entry_id - len(messages)) != before:
            self._after_gaps.append((self._arrived_at, self._ask_bounds()))
        super().deliver(messages)

    def fail(self, error: MQSourceError) -> None:
        """Ends the queue with an error (the driver's thread); what is queued can still be taken."""
        self.is_closed = True
        if not self._chosen.done():
            self._chosen.set_exception(error)
        super().fail(error)


class ProducerEvents(Protocol):
    """What a producer is told, by the driver's thread, in the order in which the broker says it; none may block."""

    def opened(self) -> None:
        """The producer is open: what comes from here on is about what is sent from here on."""

    def deliver(self, event: commands.SendReceipt | commands.SendError) -> None:
        """The broker has stored an entry, or has not."""

    def fail(self, error: MQSourceError) -> None:
        """The producer has ended, with or without its connection."""


class Answer(Future[T]):
    """What a request over a connection will be answered with.

    Attributes:
        session: the connection.
    """

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session


class Session:
    """One connection: answers go to the futures that wait, messages to their consumers, receipts to their producers."""

    def __init__(self, options: PulsarOptions, host: str, port: int, *, proxy_to: str | None) -> None:
        self.host_port = (host, port)
        self.address = f"{host}:{port}" if proxy_to is None else f"{host}:{port} (proxy to {proxy_to})"
        self._request_ids = itertools.count(1)
        self._consumer_ids = itertools.count(1)
        self._waiting: dict[int, Future[object]] = {}
        self._consumers: dict[int, BaseConsumer] = {}
        self._producers: dict[int, ProducerEvents] = {}
        self._connected: Future[None] = Future()
        self.migrated_to: str | None = None
        self._tls = options.uses_tls
        deadline = Deadline.after_ms(options.connect_timeout_ms)
        connection = PulsarConnection(
            client_version=client_version(),
            authentication=authentication_of(options),
            proxy_to_broker_url=proxy_to,
            keep_alive_ms=keep_alive_ms(options),
            now=time.monotonic(),
        )
        transport = connect(host, port, tls=TlsSettings.of(options) if options.uses_tls else None, deadline=deadline)
        self._connection = connection
        self._driver = ConnectionDriver(connection, transport, on_events=self._on_events, on_closed=self._on_closed)
        self._driver.start()
        try:
            self._connected.result(deadline.remaining_seconds())
        except FutureTimeoutError:
            self.close()
            raise ConnectTimeoutError(
                f"{self.address}: no answer to CONNECT in time; is this a Pulsar broker's binary port, without TLS?"
            ) from None
        except BaseException:
            self.close()
            raise

    @property
    def closed(self) -> bool:
        """True once nothing more can be sent or will arrive."""
        return self._driver.closed

    @property
    def proof(self) -> bytes:
        """The credentials that the broker was shown last: a token, or a user's name and password; empty for none."""
        return self._connection.proof

    @property
    def at_rest(self) -> bool:
        """True where it could serve somebody else: open, nothing read or waited for, and no topic has moved away."""
        return not (self.closed or self._waiting or self._consumers or self._producers or self.migrated_to is not None)

    @property
    def max_message_bytes(self) -> int:
        """The largest entry that the broker takes."""
        return self._connection.max_message_bytes

    @property
    def server_version(self) -> str:
        """What the broker calls itself."""
        return self._connection.server_version

    @property
    def places_cursors(self) -> bool:
        """Whether the cursor of a subscription that begins in a deleted ledger is at what is left.

        Seen on 4.0.8; on 2.10.1 it is wherever it was asked to be. Versions between were not looked at.
        """
        found = re.search(r"\d+", self.server_version)
        return found is not None and int(found[0]) >= _PLACES_CURSORS

    @property
    def asks_without_creating(self) -> bool:
        """Whether PARTITIONED_METADATA creates no topic that does not exist where it is sent not to.

        Older brokers do not know that field and create the topic (PIP-344; seen on 2.10.1).
        """
        return self._connection.feature_flags.supports_get_partitioned_metadata_without_auto_creation

    def close(self) -> None:
        """Closes the connection; what waits on it fails."""
        self._driver.close()

    def send(self, *messages: commands.Command) -> None:
        """Sends commands that have no answer.

        Raises:
            ConnectionLostError: the connection has ended.
        """
        self._driver.send(*messages)

    def pause_reading(self) -> None:
        """Holds the broker back by TCP; keep-alives go on."""
        self._driver.pause_reading()

    def resume_reading(self) -> None:
        """Receives again."""
        self._driver.resume_reading()

    def request(self, command: Callable[[int], commands.Command], convert: Callable[[object], T]) -> Answer[T]:
        """Sends a command with a request id of its own; the future holds `convert(response)` or the error."""
        request_id = next(self._request_ids)
        answer: Future[object] = Future()
        result: Answer[T] = Answer(self)

        def settle(done: Future[object]) -> None:
            failure = done.exception()
            if failure is None:
                try:
                    result.set_result(convert(done.result()))
                except MQSourceError as refused:
                    failure = refused.within(self.address)
            if isinstance(failure, AuthorizationError):
                failure = failure.within(f"as {self._connection.principal}")
            if failure is not None:
                result.set_exception(failure)

        answer.add_done_callback(settle)
        self._waiting[request_id] = answer
        try:
            self.send(command(request_id))
        except MQSourceError as error:
            if self._waiting.pop(request_id, None) is not None:
                answer.set_exception(error)
        return result

    def open_consumer(
        self, topic_partition: TopicPartition, subscribe: Callable[[int, int], commands.Subscribe], queue_bytes: int
    ) -> Answer[Consumer]:
        """SUBSCRIBE and GET_LAST_MESSAGE_ID in one go; the consumer knows its bounds when the future is done."""
        opened: Answer[Consumer] = Answer(self)

        def place(consumer: Consumer, done: Future[Bounds]) -> None:
            error = done.exception()
            if error is not None:
                self._consumers.pop(consumer._consumer_id, None)
                opened.set_exception(error)
            else:
                consumer.opened = done.result()
                opened.set_result(consumer)

        def ask(done: Future[Consumer]) -> None:
            error = done.exception()
            if error is not None:
                opened.set_exception(error)
            else:
                done.result().request_bounds().add_done_callback(partial(place, done.result()))

        made = self.subscribe(lambda consumer_id: Consumer(self, consumer_id, topic_partition, queue_bytes), subscribe)
        made.add_done_callback(ask)
        return opened

    def subscribe(
        self, make: Callable[[int], ConsumerT], subscribe: Callable[[int, int], commands.Subscribe]
    ) -> Answer[ConsumerT]:
        """SUBSCRIBE; the consumer is told what happens to it from now on, before the answer too.

        Args:
            make: a consumer of this consumer id.
            subscribe: the command of a consumer id and a request id.
        """
        consumer_id = next(self._consumer_ids)
        consumer = self._consumers[consumer_id] = make(consumer_id)

        def open_(response: object) -> ConsumerT:
            _success_of(response)
            return consumer

        def forget(done: Future[ConsumerT]) -> None:
            if done.exception() is not None:
                self._consumers.pop(consumer_id, None)

        opened = self.request(lambda request_id: subscribe(consumer_id, request_id), open_)
        opened.add_done_callback(forget)
        return opened

    def close_consumer(self, consumer: Consumer) -> Future[object]:
        """CLOSE_CONSUMER; a non-durable subscription is gone with it."""
        consumer.release()
        return self.close_consumer_of(consumer._consumer_id)

    def close_consumer_of(self, consumer_id: int) -> Future[object]:
        """CLOSE_CONSUMER; nobody is told any more what happens to it."""
        self._consumers.pop(consumer_id, None)
        return self.request(lambda request_id: commands.CloseConsumer(consumer_id, request_id), _success_of)

    def unsubscribe(self, consumer: Consumer) -> Future[object]:
        """UNSUBSCRIBE; the subscription is gone, and the consumer with it."""
        self._consumers.pop(consumer._consumer_id, None)
        consumer.release()
        return self.request(lambda request_id: commands.Unsubscribe(consumer._consumer_id, request_id), _success_of)

    def open_producer(
        self, producer_id: int, events: ProducerEvents, create: Callable[[int], commands.Producer]
    ) -> Future[commands.ProducerSuccess]:
        """PRODUCER; from the answer on, `events` is told what the broker says of it.

        Args:
            producer_id: not in use on this connection.
            events: who is told.
            create: makes the command of a request id.
        """

        def open_(response: object) -> commands.ProducerSuccess:
            # In the driver's thread, between what the broker said of its forerunner and what it says of this one.
            success = expect(response, commands.ProducerSuccess)
            self._producers[producer_id] = events
            events.opened()
            return success

        return self.request(create, open_)

    def has_producer(self, producer_id: int) -> bool:
        """Whether a producer is open here, as far as the broker has said."""
        return producer_id in self._producers

    def close_producer(self, producer_id: int) -> Future[object]:
        """CLOSE_PRODUCER; what the broker has stored by then has its receipt before the answer."""

        def close(response: object) -> object:
            self._producers.pop(producer_id, None)
            return _success_of(response)

        return self.request(lambda request_id: commands.CloseProducer(producer_id, request_id), close)

    def _on_events(self, events: Sequence[object]) -> None:
        index, count = 0, len(events)
        while index < count:
            event = events[index]
            begin = index
            index += 1
            if type(event) is not commands.Message:
                self._on_event(event)
                continue
            # Runs of messages of one consumer are the hot path: one wake-up for all of them.
            consumer_id = event.consumer_id
            while index < count and type(event := events[index]) is commands.Message:
                if event.consumer_id != consumer_id:
                    break
                index += 1
            consumer = self._consumers.get(consumer_id)
            if consumer is not None:
                consumer.deliver(events[begin:index])  # type: ignore[arg-type]  # the loop checked each

    def _on_event(self, event: object) -> None:
        match event:
            case commands.Connected():
                self._connected.set_result(None)
            case commands.CloseConsumer():
                self._end_consumer(event.consumer_id, "the broker closed the consumer (topic unloaded or moved)")
            case commands.SendReceipt() | commands.SendError():
                producer = self._producers.get(event.producer_id)
                if producer is not None:
                    producer.deliver(event)
            case commands.CloseProducer():
                self._end_producer(event.producer_id, "the broker closed the producer (topic unloaded or moved)")
            case commands.TopicMigrated():
                self.migrated_to = event.broker_service_url_tls if self._tls else event.broker_service_url
                is_consumer = event.resource_type is commands.ResourceType.Consumer
                end = self._end_consumer if is_consumer else self._end_producer
                end(event.resource_id, f"the topic has migrated to {self.migrated_to}")
            case commands.ReachedEndOfTopic() | commands.ActiveConsumerChange():
                self._tell_consumer(event)
            case _:
                self._answer(event)

    def _tell_consumer(self, event: commands.ReachedEndOfTopic | commands.ActiveConsumerChange) -> None:
        # Also before the broker has answered SUBSCRIBE: it chooses the active consumer first (seen on 4.0.8).
        consumer = self._consumers.get(event.consumer_id)
        logger.debug("%s: %s", self.address, event)
        if consumer is None:
            return
        if isinstance(event, commands.ReachedEndOfTopic):
            consumer.note_end()
        else:
            consumer.note_active(is_active=event.is_active)

    def _answer(self, event: object) -> None:
        waiting = self._waiting.pop(getattr(event, "request_id", -1), None)
        if waiting is None:
            logger.debug("%s: an answer that nobody waits for: %s", self.address, event)
        elif isinstance(event, commands.Error):
            waiting.set_exception(error_for_code(event.error, event.message, self.address))
        else:
            waiting.set_result(event)

    def _end_consumer(self, consumer_id: int, reason: str) -> None:
        consumer = self._consumers.pop(consumer_id, None)
        if consumer is not None:
            consumer.fail(ServiceNotReadyError(f"{self.address}: {reason}"))

    def _end_producer(self, producer_id: int, reason: str) -> None:
        producer = self._producers.pop(producer_id, None)
        if producer is not None:
            producer.fail(ServiceNotReadyError(f"{self.address}: {reason}"))

    def _on_closed(self, error: MQSourceError) -> None:
        if not self._connected.done():
            self._connected.set_exception(error)
        while self._waiting:
            self._waiting.popitem()[1].set_exception(error)
        while self._consumers:
            self._consumers.popitem()[1].fail(error)
        while self._producers:
            self._producers.popitem()[1].fail(error)


@cache
def client_version() -> str:
    """What we call ourselves to a broker, as its log and statistics show it; reading it takes milliseconds."""
    try:
        return f"spark-mq-source-{version('spark-mq-source')}"
    except PackageNotFoundError:
        return "spark-mq-source"


def keep_alive_ms(options: PulsarOptions) -> int:
    """How long a connection may be silent before it is asked for a sign of life, for which it has as long again.

    A peer that is gone without a word is given up in half of `operationTimeout`: the other half is for another try.
    """
    in_time = max(MIN_KEEP_ALIVE_MS, options.operation_timeout_ms // 4)
    return min(options.keep_alive_interval_ms, in_time)


def authentication_of(options: PulsarOptions) -> Authentication | None:  # noqa: PLR0911 - one a way
    """Who we are to the broker, as the options say it."""
    if options.auth_token is not None:
        return TokenAuthentication(options.auth_token)
    if options.auth_token_file is not None:
        return TokenFileAuthentication(options.auth_token_file)
    if options.auth_token_supplier is not None:
        return TokenSupplierAuthentication(options.auth_token_supplier)
    if options.auth_issuer_url is not None:
        return OAuth2Authentication(
            options.auth_issuer_url,
            client_id=options.auth_client_id,
            client_secret=options.auth_client_secret,
            credentials_file=options.auth_credentials_file,
            audience=options.auth_audience,
            scope=options.auth_scope,
            trust_certs=options.auth_issuer_trust_certs,
            timeout_ms=options.connect_timeout_ms,
        )
    if options.auth_basic_user is not None:
        return BasicAuthentication(options.auth_basic_user, options.auth_basic_password or "")
    if options.client_cert is not None and options.uses_tls:
        return TlsAuthentication(options.client_cert)
    return None


def proof_of(authentication: Authentication | None) -> bytes:
    """Return the credentials that a new connection would show to the broker; see `Session.proof`.

    Raises:
        MQSourceError: they cannot be read, or nobody issues them.
    """
    return b"" if authentication is None else authentication.auth_data(None)


def _success_of(response: object) -> object:
    return expect(response, commands.Success)


def _bounds_of(response: object) -> Bounds:
    answer = expect(response, commands.GetLastMessageIdResponse)
    mark, last = answer.consumer_mark_delete_position, answer.last_message_id
    return Bounds(
        EARLIEST if mark is None else Position(mark.ledger_id, mark.entry_id),
        Position(last.ledger_id, last.entry_id),
    )


def _backlog_of(response: object) -> int:
    answer = expect(response, commands.ConsumerStatsResponse)
    if answer.error_code is not None:
        raise error_for_code(answer.error_code, answer.error_message, "")
    return answer.msg_backlog


def acknowledged(response: object) -> object:
    """The answer to an ACK, if it is no refusal.

    Raises:
        BrokerError: it is one.
    """
    answer = expect(response, commands.AckResponse)
    if answer.error is not None:
        raise error_for_code(answer.error, answer.message, "")
    return answer


def expect(response: object, kind: type[T]) -> T:
    """The response, if it is of the kind that the request is answered with.

    Raises:
        RemoteProtocolError: it is another.
    """
    if not isinstance(response, kind):
        raise RemoteProtocolError(f"the broker answered {type(response).__name__} where {kind.__name__} belongs")
    return response
