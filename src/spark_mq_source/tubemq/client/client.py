"""The connections of one task or of the driver to a cluster, and the requests over them."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from spark_mq_source.core.errors import LocalProtocolError, MQSourceError, TransportError
from spark_mq_source.core.ports import Closing
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.tubemq.client.authentication import PluginAuthentication, UserAuthentication
from spark_mq_source.tubemq.client.flow import FlowRules
from spark_mq_source.tubemq.client.group_members import GroupMember, GroupSession
from spark_mq_source.tubemq.client.masters import Masters
from spark_mq_source.tubemq.client.members import ClientBalancedMember, ClusterMeta, Filters, ProducerMember
from spark_mq_source.tubemq.client.session import Authorization, PartitionConsumer, Session, wait_for
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY, TubeMQOptions
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.commands import AuthorizedInfo

T = TypeVar("T")

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 60.0
"""Idle time after which a connection is closed when another one is opened."""

_DEFAULT_WEB_PORT: Final = 8080
"""A master's default `webPort` (TubeMQ 2.4.0)."""

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
"""Time for which a failed broker is set aside: at first, and at most."""


class BrokerHealth:
    """Brokers that failed: each is set aside for a second, and longer each time it fails again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paused: dict[Broker, tuple[float, float]] = {}

    def failed(self, broker: Broker) -> None:
        """Set a broker aside."""
        now = time.monotonic()
        with self._lock:
            until, seconds = self._paused.get(broker, (0.0, 0.0))
            if now >= until:
                # Many calls fail at once with a broker: they count as one failure.
                seconds = min(max(MIN_PAUSE_SECONDS, 2 * seconds), MAX_PAUSE_SECONDS)
                self._paused[broker] = now + seconds, seconds

    def works(self, broker: Broker) -> None:
        """End the time for which a broker is set aside, if it is."""
        with self._lock:
            self._paused.pop(broker, None)

    def is_set_aside(self, broker: Broker) -> bool:
        """Return whether a broker failed and should not be tried again yet."""
        return time.monotonic() < self._paused.get(broker, (0.0, 0.0))[0]


class TubeMQClient(Closing):
    """The connections to one cluster, and the requests over them; close it when done. Thread-safe.

    Args:
        authorized: the driver's authorization by a master, so that a task need not request one.
        rules: the flow rules that the driver got; by default those of this client's members of the group.

    Example:
        ::

            with TubeMQClient(options) as client:
                for partition in client.fetch_topics(["flights"], group="g").partitions():
                    consumer = client.consumer(partition, client_id=unique_client_id("g"), group="g")
                    client.wait(consumer.register(curr_offset=0), f"register of {partition}")
    """

    def __init__(
        self, options: TubeMQOptions, *, authorized: AuthorizedInfo | None = None, rules: FlowRules | None = None
    ) -> None:
        self._options = options
        user: UserAuthentication | PluginAuthentication | None = None
        if options.auth_plugin is not None:
            user = PluginAuthentication(options.auth_plugin, options.addresses[0][0])
        elif options.auth_user is not None:
            user = UserAuthentication(options.auth_user, options.auth_password or "")
        self._authorization = Authorization(user, authorized, self._renew_authorization)
        self.masters = Masters(options, self._authorization)
        if rules is not None:
            self.masters.rules.rules = rules
        self.health = BrokerHealth()
        self._brokers_lock = threading.Lock()
        self._brokers: dict[tuple[str, int], Session] = {}
        self._closed = False

    def close(self) -> None:
        """Close every connection; the servers drop registrations 30 s later."""
        self._closed = True
        with self._brokers_lock:
            while self._brokers:
                self._brokers.popitem()[1].close()
        self.masters.close()

    @property
    def authorized(self) -> AuthorizedInfo | None:
        """The master's last authorization, for the clients of tasks; valid for at least 16 minutes."""
        return self._authorization.given

    @property
    def flow_rules(self) -> FlowRules:
        """The flow rules of the group and of the cluster, as far as masters have sent them."""
        return self.masters.rules.rules

    @property
    def read_priority(self) -> int:
        """The qryPriorityId of reads: memory is read only if the options and the group's rules allow it."""
        options = self._options
        filtered = bool(options.filters) or any(types for _, types in options.topic_filters)
        reads_memory = options.low_latency and self.flow_rules.allows_memory(filtered=filtered)
        return WITH_MEMORY if reads_memory else FLUSHED_ONLY

    def authorization_for_brokers(self) -> AuthorizedInfo:
        """Return the authorization for sending a message."""
        return self._authorization.for_broker()

    def renew_authorization(self, refused: AuthorizedInfo | None) -> None:
        """Get a new visit token, unless a newer one than `refused` exists already.

        Raises:
            MQSourceError: no master provided one.
        """
        self._authorization.renew(refused)

    # -- masters

    def fetch_topics(self, topics: Sequence[str], *, group: str, filters: Filters = ()) -> ClusterMeta:
        """Fetch the locations of topics, as a short-lived member of a group whose members choose their own partitions.

        Raises:
            TopicNotFoundError: a topic is on no broker.
            MQSourceError: no answer in time, or a refusal; 424 if members of the group are balanced by the master.
        """

        def ask() -> ClusterMeta:
            member = ClientBalancedMember(self.masters, group, topics, filters)
            member.register()
            try:
                return member.fetch_topics()
            finally:
                member.leave()

        return retrying(ask, deadline=self._deadline())

    def fetch_partitions(self) -> list[BrokerPartition]:
        """Fetch the partitions of the options' topics, or of those that match `topicsPattern` now.

        Raises:
            TopicNotFoundError: a topic is on no broker.
            MQSourceError: no answer in time, or a refusal.
        """
        options = self.matched()
        if not options.topic_names:
            return []
        filters = {topic: options.filters_of(topic) for topic in options.topic_names}
        return self.fetch_topics(options.topic_names, group=options.group_name, filters=filters).partitions()

    def matched(self, known: Collection[str] = ()) -> TubeMQOptions:
        """Return the options with the topics that match `topicsPattern` now; the same options without a pattern.

        A group named after the topics has members with these topics only.

        Args:
            known: topics that were read: they match as long as they are configured, also while their broker is down.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        pattern = self._options.topics_pattern
        if pattern is None:
            return self._options
        self.fetch_brokers()  # detects the active master: only that one knows which topics brokers have
        names = [str(row["topic"]) for row in self.list_topics(readable=True, known=known)]
        topics = tuple(name for name in names if pattern.fullmatch(name))
        return dataclasses.replace(self._options, topics=topics, topics_pattern=None)

    def list_topics(self, *, readable: bool = False, known: Collection[str] = ()) -> list[Mapping[str, object]]:
        """Return all topics by a master's web API, because masters report only named topics to clients.

        Args:
            readable: whether to leave out topics that no broker offers to readers now.
            known: topics that are left out only if they are not configured, or deleted.

        Raises:
            TransportError: no master's web API answered.
        """
        from spark_mq_source.net.http import fetch_json  # noqa: PLC0415 - only lists of all topics need it

        failures = []
        options = self._options
        default = [f"http://{host}:{_DEFAULT_WEB_PORT}" for host in self.masters.hosts()]
        for url in [options.admin_url] if options.admin_url else default:
            try:
                answer = fetch_json(
                    f"{url}/webapi.htm?type=op_query&method=admin_query_topic_info",
                    headers={},
                    tls=None,
                    timeout_seconds=options.request_timeout_ms / 1000,
                    address="adminUrl, the address of a master's web API",
                    retries=False,
                )
                rows = [
                    _topic_row(one)
                    for one in answer["data"]  # type: ignore[index]
                    if not readable or _is_readable(one) or (one["topicName"] in known and _is_configured(one))
                ]
            except MQSourceError as error:
                failures.append(str(error))
            except (KeyError, TypeError, ValueError):
                failures.append(f"{url}: not the answer of a TubeMQ master's web API")
            else:
                return sorted(rows, key=lambda row: str(row["topic"]))
        raise TransportError(f"tubemq: cannot list all topics: {'; '.join(failures)}; set adminUrl, or name a topic")

    def fetch_brokers(self) -> Mapping[int, Broker]:
        """Fetch every broker of the cluster, by id, as a producer without topics, which needs no authorized group.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        return self._registered_producer().meta.brokers

    def wait_until_settled(self) -> None:
        """Wait until the active master has had the time to read all topics, for `operationTimeout` at most.

        One that has just started leaves out those that it has not read yet.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        deadline = self._deadline()
        seconds = min(self._registered_producer().settling_seconds, deadline.remaining_seconds())
        if seconds > 0:
            logger.info("tubemq: the active master has just started: planning waits for %.1f s", seconds)
            time.sleep(seconds)

    def join(
        self,
        group: str,
        topics: Sequence[str],
        *,
        filters: Filters = (),
        on_connect: Callable[[Sequence[BrokerPartition]], Collection[BrokerPartition]],
        on_disconnect: Callable[[Sequence[BrokerPartition]], Collection[BrokerPartition]],
        session: GroupSession | None = None,
    ) -> GroupMember:
        """Join a group whose partitions the master assigns; see `GroupMember`.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        member = GroupMember(self.masters, group, topics, filters, on_connect, on_disconnect, session)
        retrying(member.start, deadline=self._deadline())
        return member

    def join_v2(self, group: str, topics: Sequence[str], *, filters: Filters = ()) -> ClientBalancedMember:
        """Join a group whose members choose their own partitions; see `ClientBalancedMember`.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        member = ClientBalancedMember(self.masters, group, topics, filters)
        retrying(member.start, deadline=self._deadline())
        return member

    def publish(self, topics: Sequence[str]) -> ProducerMember:
        """Register a producer of topics; see `ProducerMember`.

        Raises:
            TopicNotFoundError: a topic is on no broker, or takes no messages on any.
            MQSourceError: no answer in time, or a refusal.
        """
        member = ProducerMember(self.masters, topics)
        retrying(member.start, deadline=self._deadline())
        return member

    # -- brokers

    def consumer(self, partition: BrokerPartition, *, client_id: str, group: str) -> PartitionConsumer:
        """Create a consumer of a partition, on the one connection to its broker, without registering it.

        Raises:
            TransportError: no connection.
        """
        return PartitionConsumer(self.broker(partition.broker), partition, client_id=client_id, group=group)

    def broker(self, broker: Broker) -> Session:
        """Return the connection to a broker, opened if necessary; close idle connections to others.

        Raises:
            TransportError: no connection; the broker is set aside for a while.
        """
        key = broker.host, broker.port
        with self._brokers_lock:
            if self._closed:
                raise LocalProtocolError("tubemq: this client was closed")
            self._close_idle(key)
            session = self._brokers.get(key)
            if session is None or session.closed:
                try:
                    session = Session(self._options, *key, self._authorization, broker=broker)
                except TransportError:
                    self.health.failed(broker)
                    raise
                self._brokers[key] = session
            return session

    def wait(self, answer: Future[T], what: str) -> T:
        """Wait for an answer.

        Raises:
            MQSourceError: no answer in time, or a refusal; names the request as `what`.
        """
        return wait_for(answer, what, self._options.request_timeout_ms)

    # -- requests

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._options.operation_timeout_ms)

    def _renew_authorization(self) -> None:
        self._registered_producer()  # the answer contains a visit token

    def _registered_producer(self) -> ProducerMember:
        """Register and unregister a producer without topics, for the data that any client may get."""
        producer = ProducerMember(self.masters, ())
        retrying(producer.register, deadline=self._deadline())
        producer.leave()
        return producer

    def _close_idle(self, kept: tuple[str, int]) -> None:
        now = time.monotonic()
        for key, session in list(self._brokers.items()):
            if key != kept and session.at_rest and now - session.last_used > IDLE_SECONDS:
                del self._brokers[key]
                session.close()


def _topic_row(answer: Mapping[str, Any]) -> Mapping[str, object]:
    places = answer["topicInfo"]
    partitions = sum(int(one["numPartitions"]) * int(one["numTopicStores"]) for one in places)
    return {"topic": answer["topicName"], "partitions": partitions, "brokers": len(places)}


def _is_readable(answer: Mapping[str, Any]) -> bool:
    return any(one["runInfo"]["acceptSubscribe"] is True for one in answer["topicInfo"])


def _is_configured(answer: Mapping[str, Any]) -> bool:
    return any(one["topicStatusId"] == 0 for one in answer["topicInfo"])
