"""The connections of one client: which broker serves which topic-partition, and the timeouts of requests."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures import wait as wait_until_done
from functools import partial
from typing import TypeVar
from urllib.parse import urlsplit

from spark_mq_source.core.errors import MQSourceError, RemoteProtocolError, RequestTimeoutError, TransportError
from spark_mq_source.core.ports import Closing
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.pulsar.client.session import Answer, Session, accepted
from spark_mq_source.pulsar.client.warm import SessionKey, warm_sessions
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands
from spark_mq_source.pulsar.protocol.error_codes import error_for_code

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_REQUESTS_IN_FLIGHT = 500
"""Maximum number of pending requests; a broker allows 5,000 topic loads and 50,000 lookups at once."""

MAX_REDIRECTS = 20
"""Maximum number of redirects of one lookup, which otherwise loops (the Java client's own limit)."""


class Connections(Closing):
    """The connections to one cluster, opened on demand.

    Args:
        options: addresses, credentials, timeouts.
        role: suffix of its consumers' names; the option `consumerName` is their prefix.
    """

    def __init__(self, options: PulsarOptions, role: str = "driver") -> None:
        self._options = options
        self._consumer_name = None if options.consumer_name is None else f"{options.consumer_name}-{role}"
        # Random at first; an address that has failed is last.
        self._addresses = random.sample(options.addresses, len(options.addresses))
        self._sessions: dict[tuple[str, int, str | None], Session] = {}

    def close(self) -> None:
        """Close every connection, and with them the non-durable subscriptions."""
        while self._sessions:
            self._sessions.popitem()[1].close()

    def hand_over(self) -> None:
        """Keep the connections a few seconds for the next client of this process with equal options.

        The client must have closed all its consumers and producers.
        """
        while self._sessions:
            where, session = self._sessions.popitem()
            session.assigned.clear()
            warm_sessions().give(SessionKey.of(self._options, *where), session)

    def fetch_addresses(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, str]:
        """Return the broker (`host:port`) that serves each topic-partition now."""
        sessions = retrying(lambda: self._lookup(topic_partitions), deadline=self._deadline())
        return {tp: session.address for tp, session in sessions.items()}

    def wait(self, answer: Future[T], what: str, deadline: Deadline | None = None) -> T:
        """Return an answer; wait for it until the deadline, or for `operationTimeout`.

        Raises:
            MQSourceError: no answer in time, a refusal, or the consumer has ended.
        """
        try:
            return answer.result((deadline or self._deadline()).remaining_seconds())
        except FutureTimeoutError:
            if isinstance(answer, Answer):
                # The cause of this delay would also delay the next attempt on the same connection.
                answer.session.close()
            raise RequestTimeoutError(
                f"no answer to {what} within operationTimeout ({self._options.operation_timeout_ms} ms)"
            ) from None
        except MQSourceError as error:
            if error.retryable and isinstance(answer, Answer):
                # A broker that is shutting down refuses lookups until it ends (4.0.8, `ServerCnx.handleLookup`).
                self._ask_last(*answer.session.host_port)
            raise error.within(what) from error

    def wait_for(self, asked: Iterable[tuple[TopicPartition, Future[T]]], what: str) -> dict[TopicPartition, T]:
        """Return the answers to requests for several topic-partitions.

        Args:
            asked: sends a request for each when it is iterated, which keeps a limited number in flight.
            what: the request, for errors.

        Raises:
            MQSourceError: no answer within `operationTimeout`, a refusal, or a consumer has ended.
        """
        found: dict[TopicPartition, T] = {}
        pending: deque[tuple[TopicPartition, Future[T], Deadline]] = deque()

        def settle() -> None:
            tp, answer, deadline = pending.popleft()
            found[tp] = self.wait(answer, f"{what} of {tp}", deadline)

        for tp, answer in asked:
            pending.append((tp, answer, self._deadline()))
            if len(pending) == MAX_REQUESTS_IN_FLIGHT:
                # A broker answers in order: one wake-up instead of one for each answer.
                _, middle, deadline = pending[MAX_REQUESTS_IN_FLIGHT // 2]
                wait_until_done([middle], deadline.remaining_seconds())
                for _ in range(MAX_REQUESTS_IN_FLIGHT // 2):
                    settle()
        while pending:
            settle()
        return found

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._options.operation_timeout_ms)

    def service(self, topic_partition: str = "") -> Session:
        """Return a connection to the first service address that works; a migrated topic-partition has its own address.

        Raises:
            TransportError: no address can be reached.
            MQSourceError: the cluster refuses the connection.
        """
        failures: list[MQSourceError] = []
        for host, port in list(self._addresses_for(topic_partition)):
            try:
                return self._session(host, port, None)
            except TransportError as failure:
                failures.append(failure)
                self._ask_last(host, port)
        if len(failures) == 1:
            raise failures[0]
        error = TransportError("; ".join(map(str, failures)))
        error.retryable = any(failure.retryable for failure in failures)
        raise error

    def _ask_last(self, host: str, port: int) -> None:
        """Let `service` prefer the other addresses."""
        if (host, port) in self._addresses:
            self._addresses.remove((host, port))
            self._addresses.append((host, port))

    def _migrated_to(self, topic_partition: str) -> str | None:
        """Return the URL of the cluster to which a topic-partition has migrated; None if it has not.

        A namespace can migrate without the others of its cluster (`AbstractTopic.getMigratedClusterUrlAsync` of 4.0.8).
        """
        moved = (session.migrated_to.get(topic_partition) for session in self._sessions.values())
        return next((url for url in moved if url is not None), None)

    def _addresses_for(self, topic_partition: str) -> list[tuple[str, int]]:
        moved = self._migrated_to(topic_partition)
        return self._addresses if moved is None else [split_broker_url(moved)]

    def _session(self, host: str, port: int, proxy_to: str | None) -> Session:
        key = (host, port, proxy_to)
        session = self._sessions.get(key)
        if session is None or session.closed:
            session = warm_sessions().take(SessionKey.of(self._options, *key))
            if session is None:
                session = Session(self._options, host, port, proxy_to=proxy_to)
            self._sessions[key] = session
        return session

    def _lookup(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, Session]:
        found = {tp: session for tp in topic_partitions if (session := self._assigned(tp)) is not None}
        if len(found) == len(topic_partitions):
            return found
        asking: dict[TopicPartition, tuple[Session, bool]] = {
            tp: (self.service(str(tp)), False) for tp in topic_partitions if tp not in found
        }
        for _ in range(MAX_REDIRECTS):
            answers = (
                (tp, self._request_lookup(session, tp, authoritative=authoritative))
                for tp, (session, authoritative) in asking.items()
            )
            responses = self.wait_for(answers, "LOOKUP")
            asked, asking = asking, {}
            for tp, response in responses.items():
                session = self._session_of(response, asked[tp][0], self._addresses_for(str(tp)))
                if response.response is commands.LookupType.Redirect:
                    asking[tp] = (session, response.authoritative)
                else:
                    found[tp] = session
            if not asking:
                return found
        raise RemoteProtocolError(f"LOOKUP of {next(iter(asking))} was redirected more than {MAX_REDIRECTS} times")

    def _assigned(self, topic_partition: TopicPartition) -> Session | None:
        """Return the connection to the broker that the previous one has named, once; None if there is none."""
        for old in list(self._sessions.values()):
            url = old.assigned.pop(str(topic_partition), None)
            if url is None:
                continue
            try:
                host, port = split_broker_url(url)
                if old.proxy_to is None:
                    return self._session(host, port, None)
                return self._session(*old.host_port, f"{host}:{port}")
            except (RemoteProtocolError, TransportError) as error:
                logger.info("%s: looking up its broker, because the assigned one fails: %s", topic_partition, error)
        return None

    def _request_lookup(
        self, session: Session, tp: TopicPartition, *, authoritative: bool
    ) -> Future[commands.LookupResponse]:
        listener = self._options.listener_name
        command = partial(commands.Lookup, str(tp), authoritative=authoritative, advertised_listener_name=listener)
        return session.request(command, _lookup_of)

    def _session_of(
        self, response: commands.LookupResponse, asked: Session, addresses: Sequence[tuple[str, int]]
    ) -> Session:
        url = response.broker_service_url_tls if self._options.uses_tls else response.broker_service_url
        if not url:
            wanted = "pulsar+ssl://" if self._options.uses_tls else "pulsar://"
            raise RemoteProtocolError(
                f"{asked.address}: LOOKUP names a broker without a {wanted} address; use the other kind of serviceUrl"
            )
        host, port = split_broker_url(url)
        if response.proxy_through_service_url:
            # A proxy forwards the connection to the broker that CONNECT names. A broker that answers so (standalone
            # does) is that broker itself, so the connection in use serves.
            service = asked.host_port if asked.host_port in addresses else addresses[0]
            return self._session(*service, None if service == (host, port) else f"{host}:{port}")
        try:
            return self._session(host, port, None)
        except TransportError as error:
            hint = (
                f"the broker advertises itself as {host}:{port}, which cannot be reached from here; set listenerName, "
                f"or connect through a Pulsar proxy"
            )
            raise error.within(hint) from error


def windows(keys: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the keys in parts, each with as many as there may be requests in flight.

    Example:
        >>> [len(window) for window in windows(range(1200))]
        [500, 500, 200]
    """
    for start in range(0, len(keys), MAX_REQUESTS_IN_FLIGHT):
        yield keys[start : start + MAX_REQUESTS_IN_FLIGHT]


def split_broker_url(url: str) -> tuple[str, int]:
    """Return the host and port of a broker's own URL.

    Raises:
        RemoteProtocolError: not a Pulsar URL.

    Example:
        >>> split_broker_url("pulsar://broker-1.example.com:6650")
        ('broker-1.example.com', 6650)
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or parts.scheme not in {"pulsar", "pulsar+ssl"}:
        raise RemoteProtocolError(f"a lookup answered with the address {url!r}, which is no Pulsar address")
    return host, port


def _lookup_of(response: object) -> commands.LookupResponse:
    answer = accepted(commands.LookupResponse)(response)
    if answer.response is commands.LookupType.Failed:
        raise error_for_code(0, answer.message, "")
    return answer
