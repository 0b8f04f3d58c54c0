"""One live connection to a broker. It passes answers to futures, messages to consumers, and receipts to producers."""

from __future__ import annotations

import itertools
import logging
import re
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

from spark_mq_source.core.connection import client_version, expect
from spark_mq_source.core.errors import AuthorizationError, BrokerError, MQSourceError, ServiceNotReadyError
from spark_mq_source.net.driver import DrivenSession
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import TlsSettings, connect
from spark_mq_source.pulsar.client.authentication import (
    BasicAuthentication,
    PluginAuthentication,
    TlsAuthentication,
    TokenAuthentication,
    TokenFileAuthentication,
    TokenSupplierAuthentication,
)
from spark_mq_source.pulsar.client.oauth2 import OAuth2Authentication
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.connection import Authentication, PulsarConnection
from spark_mq_source.pulsar.protocol.error_codes import error_for_code

if TYPE_CHECKING:
    from spark_mq_source.pulsar.client.consumer import BaseConsumer
    from spark_mq_source.pulsar.offsets import TopicPartition


T = TypeVar("T")

MIN_KEEP_ALIVE_MS = 1000
"""Minimum, so that a short operation timeout does not make a briefly paused broker look dead."""

logger = logging.getLogger(__name__)

_PLACES_CURSORS = 4
"""The first major version known to do so, see `Session.places_cursors`."""


ConsumerT = TypeVar("ConsumerT", bound="BaseConsumer")

_Resource = tuple[commands.ResourceType, int]
"""A consumer or producer of one connection, by its id."""


class ProducerEvents(Protocol):
    """Events of a producer, in the broker's order, called in the driver's thread; none may block."""

    topic_partition: TopicPartition

    def opened(self) -> None:
        """Handle the opening of the producer: later events are about entries sent after it."""

    def deliver(self, event: commands.SendReceipt | commands.SendError) -> None:
        """Handle a stored or refused entry."""

    def fail(self, error: MQSourceError) -> None:
        """Handle the end of the producer, with or without its connection."""


class Answer(Future[T]):
    """The answer to a request over a connection."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.session = session


class Session(DrivenSession):
    """One connection, which passes answers to futures, messages to consumers, and receipts to producers.

    Attributes:
        proxy_to: the broker behind a proxy, as `host:port`.
        connection: its state, with what the broker has said about itself and the credentials last sent to it.
        migrated_to: the URLs of the clusters to which topic-partitions of producers have migrated, by name.
        assigned: the URLs of the brokers to which this one has passed topic-partitions, by name.
        late_refusals: why the broker refused an entry of a producer that it had closed, by producer id.
    """

    connection: PulsarConnection

    def __init__(self, options: PulsarOptions, host: str, port: int, *, proxy_to: str | None) -> None:
        self.host_port = (host, port)
        self.proxy_to = proxy_to
        self.address = f"{host}:{port}" if proxy_to is None else f"{host}:{port} (proxy to {proxy_to})"
        self._request_ids = itertools.count(1)
        self._consumer_ids = itertools.count(1)
        self._waiting: dict[int, Future[object]] = {}
        self._consumers: dict[int, BaseConsumer] = {}
        self._producers: dict[int, ProducerEvents] = {}
        self._connected: Future[None] = Future()
        # The requests that open consumers and producers, by what they open.
        self._opening: dict[_Resource, int] = {}
        self.migrated_to: dict[str, str] = {}
        # The topic-partitions of producers, open or not, by producer id.
        self._targets: dict[int, str] = {}
        self.assigned: dict[str, str] = {}
        self.late_refusals: dict[int, BrokerError] = {}
        self._tls = options.uses_tls
        deadline = Deadline.after_ms(options.connect_timeout_ms)
        self.connection = PulsarConnection(
            client_version=client_version(),
            authentication=authentication_of(options, host),
            proxy_to_broker_url=proxy_to,
            keep_alive_ms=keep_alive_ms(options),
            # `sendTimeout` limits the wait for receipts.
            producing_keep_alive_ms=options.keep_alive_interval_ms,
            now=time.monotonic(),
        )
        tls = TlsSettings.of(options) if options.uses_tls else None
        transport = connect(host, port, tls=tls, deadline=deadline, proxy=options.sni_proxy)
        self._drive(transport)
        silence = "no answer to CONNECT in time; is this a Pulsar broker's binary port, without TLS?"
        self._wait_until(self._connected, deadline, silence)

    @property
    def at_rest(self) -> bool:
        """True if another client can use it: open, nothing read or pending, and no topic has migrated."""
        return not (self.closed or self._waiting or self._consumers or self._producers or self.migrated_to)

    @property
    def places_cursors(self) -> bool:
        """True if the cursor of a subscription that starts in a deleted ledger moves to the oldest message left.

        Seen on 4.0.8; on 2.10.1 it stays at the requested start. Versions between were not tested.
        """
        found = re.search(r"\d+", self.connection.server_version)
        return found is not None and int(found[0]) >= _PLACES_CURSORS

    @property
    def can_avoid_creation(self) -> bool:
        """True if PARTITIONED_METADATA has a field that keeps it from creating a missing topic.

        Older brokers ignore the field and create the topic (PIP-344; seen on 2.10.1).
        """
        return self.connection.feature_flags.supports_get_partitioned_metadata_without_auto_creation

    def request(
        self,
        command: Callable[..., commands.Command],
        convert: Callable[[object], T],
        *,
        opens: _Resource | None = None,
    ) -> Answer[T]:
        """Send `command(request_id=...)`; the future holds `convert(response)` or the error.

        `opens` is what the command opens: a broker may answer with TOPIC_MIGRATED, which names that but no request id.
        """
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
                failure = failure.within(f"as {self.connection.principal}")
            if failure is not None:
                result.set_exception(failure)

        answer.add_done_callback(settle)
        if opens is not None:
            self._opening[opens] = request_id
            result.add_done_callback(lambda _: self._opening.pop(opens, None))
        self._waiting[request_id] = answer
        try:
            self.send(command(request_id=request_id))
        except MQSourceError as error:
            if self._waiting.pop(request_id, None) is not None:
                answer.set_exception(error)
        return result

    def subscribe(
        self, make: Callable[[int], ConsumerT], subscribe: Callable[..., commands.Subscribe]
    ) -> Answer[ConsumerT]:
        """Send SUBSCRIBE; from now on, also before the answer, the consumer gets its events."""
        consumer_id = next(self._consumer_ids)
        consumer = self._consumers[consumer_id] = make(consumer_id)

        def open_(response: object) -> ConsumerT:
            expect(response, commands.Success)
            return consumer

        def forget(done: Future[ConsumerT]) -> None:
            if done.exception() is not None:
                self._consumers.pop(consumer_id, None)

        opened = self.request(
            partial(subscribe, consumer_id), open_, opens=(commands.ResourceType.Consumer, consumer_id)
        )
        opened.add_done_callback(forget)
        return opened

    def forget_consumer(self, consumer_id: int) -> None:
        """Stop passing events to a consumer."""
        self._consumers.pop(consumer_id, None)

    def close_consumer(self, consumer_id: int) -> Future[object]:
        """Send CLOSE_CONSUMER; the consumer gets no more events."""
        self.forget_consumer(consumer_id)
        return self.request(partial(commands.CloseConsumer, consumer_id), accepted(commands.Success))

    def unsubscribe(self, consumer_id: int) -> Future[object]:
        """Send UNSUBSCRIBE; the consumer gets no more events."""
        self.forget_consumer(consumer_id)
        return self.request(partial(commands.Unsubscribe, consumer_id), accepted(commands.Success))

    def open_producer(
        self, producer_id: int, events: ProducerEvents, create: Callable[..., commands.Producer]
    ) -> Future[commands.ProducerSuccess]:
        """Send PRODUCER; from the answer on, `events` gets the producer's events.

        Args:
            producer_id: not in use on this connection.
            events: callbacks for its events.
            create: returns the command for a `request_id`.
        """

        def open_(response: object) -> commands.ProducerSuccess:
            # In the driver's thread, after the events of the previous producer and before those of this one.
            success = expect(response, commands.ProducerSuccess)
            self._producers[producer_id] = events
            self.late_refusals.pop(producer_id, None)
            events.opened()
            return success

        self._targets[producer_id] = str(events.topic_partition)
        return self.request(create, open_, opens=(commands.ResourceType.Producer, producer_id))

    def has_producer(self, producer_id: int) -> bool:
        """Return whether a producer is open here, by the events so far."""
        return producer_id in self._producers

    def close_producer(self, producer_id: int) -> Future[object]:
        """Send CLOSE_PRODUCER; entries stored by then have their receipts before the answer."""

        def close(response: object) -> object:
            self._producers.pop(producer_id, None)
            return expect(response, commands.Success)

        return self.request(partial(commands.CloseProducer, producer_id), close)

    def _on_events(self, events: Sequence[object]) -> None:
        index, count = 0, len(events)
        while index < count:
            event = events[index]
            begin = index
            index += 1
            if type(event) is not commands.Message:
                self._on_event(event)
                continue
            # Runs of messages of one consumer are the hot path: one wake-up for each run.
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
                self._end("consumer", self._consumers.pop(event.consumer_id, None), event)
            case commands.SendReceipt() | commands.SendError():
                producer = self._producers.get(event.producer_id)
                if producer is not None:
                    producer.deliver(event)
                elif isinstance(event, commands.SendError):
                    # If its storage fails, a broker closes the producers first (`PersistentTopic.addFailed` of 4.0.8).
                    refusal = error_for_code(event.error, event.message, self.address)
                    self.late_refusals[event.producer_id] = refusal
            case commands.CloseProducer():
                self._end("producer", self._producers.pop(event.producer_id, None), event)
            case commands.TopicMigrated():
                self._end_migrated(event)
            case commands.ReachedEndOfTopic() | commands.ActiveConsumerChange():
                self._tell_consumer(event)
            case _:
                self._answer(event)

    def _end(
        self,
        what: str,
        closed: BaseConsumer | ProducerEvents | None,
        event: commands.CloseConsumer | commands.CloseProducer,
    ) -> None:
        """End a consumer or producer that the broker has closed, and remember the broker that has its topic now."""
        if closed is None:
            return
        url = event.assigned_broker_service_url_tls if self._tls else event.assigned_broker_service_url
        if url:
            self.assigned[str(closed.topic_partition)] = url
        closed.fail(ServiceNotReadyError(f"{self.address}: the broker closed the {what} (topic unloaded or moved)"))

    def _end_migrated(self, event: commands.TopicMigrated) -> None:
        """End a consumer for good, and a producer until it is opened on the other cluster."""
        url = event.broker_service_url_tls if self._tls else event.broker_service_url
        words = f"{self.address}: the topic has migrated to {url}"
        if event.resource_type is commands.ResourceType.Consumer:
            error: MQSourceError = BrokerError(
                f"{words}, where messages have other ids, so this read must not continue there: set serviceUrl to that "
                "cluster, and start a stream with a new checkpointLocation (and walDir)"
            )
            ended: BaseConsumer | ProducerEvents | None = self._consumers.pop(event.resource_id, None)
        else:
            error = ServiceNotReadyError(words)
            target = self._targets.get(event.resource_id)
            if target is not None:
                self.migrated_to[target] = url or ""
            ended = self._producers.pop(event.resource_id, None)
        opening = self._waiting.pop(self._opening.get((event.resource_type, event.resource_id), -1), None)
        if opening is not None:
            opening.set_exception(error)
        if ended is not None:
            ended.fail(error)

    def _tell_consumer(self, event: commands.ReachedEndOfTopic | commands.ActiveConsumerChange) -> None:
        # Also before the broker has answered SUBSCRIBE: it chooses the active consumer first (seen on 4.0.8).
        consumer = self._consumers.get(event.consumer_id)
        logger.debug("%s: %s", self.address, event)
        if consumer is None:
            return
        if isinstance(event, commands.ReachedEndOfTopic):
            consumer.has_ended = True
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

    def _on_closed(self, error: MQSourceError) -> None:
        if not self._connected.done():
            self._connected.set_exception(error)
        for waiting in _removed(self._waiting):
            waiting.set_exception(error)
        for consumer in _removed(self._consumers):
            consumer.fail(error)
        for producer in _removed(self._producers):
            producer.fail(error)


def _removed(entries: MutableMapping[int, T]) -> Iterator[T]:
    """Yield all values, each removed first; other threads may remove some meanwhile, even the last one."""
    with suppress(KeyError):
        while True:
            yield entries.popitem()[1]


def keep_alive_ms(options: PulsarOptions) -> int:
    """Return the silence after which a connection is probed; it is dead after the same time again.

    So a peer that disappears is given up in half of `operationTimeout`, which leaves the other half for a retry.
    """
    in_time = max(MIN_KEEP_ALIVE_MS, options.operation_timeout_ms // 4)
    return min(options.keep_alive_interval_ms, in_time)


def authentication_of(options: PulsarOptions, host: str | None = None) -> Authentication | None:  # noqa: PLR0911 - one a way
    """Return the authentication that the options select, for a connection to `host` (default: that of `serviceUrl`)."""
    if options.auth_plugin is not None:
        return PluginAuthentication(options.auth_plugin, options.addresses[0][0] if host is None else host)
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
            trust_password=options.auth_issuer_trust_certs_password,
            timeout_ms=options.connect_timeout_ms,
        )
    if options.auth_basic_user is not None:
        return BasicAuthentication(options.auth_basic_user, options.auth_basic_password or "")
    if options.client_cert is not None and options.uses_tls:
        return TlsAuthentication(options.client_cert)
    return None


def proof_of(authentication: Authentication | None) -> bytes:
    """Return the credentials that a new connection would send to the broker; see `PulsarConnection.proof`.

    Raises:
        MQSourceError: they cannot be read, or no issuer provides them.
    """
    return b"" if authentication is None else authentication.auth_data(None)


def accepted(kind: type[T]) -> Callable[[object], T]:
    """Return a conversion for `Session.request`, which returns a response of this kind.

    Raises:
        RemoteProtocolError: the response is of another kind.
        BrokerError: the response is an error.
    """
    return partial(_accept, kind)


def _accept(kind: type[T], response: object) -> T:
    # The error comes first: a proxy refuses PARTITIONED_METADATA by a LOOKUP_RESPONSE (4.0.8, `LookupProxyHandler`).
    for code, words in (("error", "message"), ("error_code", "error_message")):
        if getattr(response, code, None) is not None:
            raise error_for_code(getattr(response, code), getattr(response, words), "")
    return expect(response, kind)
