"""The connections of one task or of the driver to a cluster, and the requests over them."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final, TypeVar

from spark_mq_source.core.errors import LocalProtocolError, MQSourceError, TransportError
from spark_mq_source.core.ports import Closing
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.tubemq.client.authentication import PluginAuthentication, UserAuthentication
from spark_mq_source.tubemq.client.flow import FlowRules
from spark_mq_source.tubemq.client.masters import Masters
from spark_mq_source.tubemq.client.members import ClientBalancedMember, ClusterMeta, Filters, Member, ProducerMember
from spark_mq_source.tubemq.client.session import Authorization, PartitionConsumer, Session, wait_for
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY, TubeMQOptions
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.commands import AuthorizedInfo

T = TypeVar("T")
MemberT = TypeVar("MemberT", bound=Member)

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 60.0
"""Idle time after which a connection is closed when another one is opened."""

_DEFAULT_WEB_PORT: Final = 8080
"""A master's default `webPort` (TubeMQ 2.4.0)."""


class TubeMQClient(Closing):
    """The connections to one cluster, and the requests over them; close it when done. Thread-safe.

    Args:
        authorized: the driver's authorization by a master, so that a task need not request one.
        rules: the flow rules that the driver got; by default those of this client's members of the group.

    Attributes:
        authorization: the credentials; `given` by a master, it is valid for at least 16 minutes.

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
            user = PluginAuthentication(options.auth_plugin, options.masters[0][0])
        elif options.auth_user is not None:
            user = UserAuthentication(options.auth_user, options.auth_password or "")
        self.authorization = Authorization(user, authorized, self._registered_producer)
        self.masters = Masters(options, self.authorization)
        if rules is not None:
            self.masters.rules.rules = rules
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

    def enter(self, member: MemberT) -> MemberT:
        """Register a member of a group, or a producer, and start its heartbeats; see `GroupMember` and the others.

        Raises:
            TopicNotFoundError: a topic is on no broker, or takes no messages on any.
            MQSourceError: no answer in time, or a refusal.
        """
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
            TransportError: no connection.
        """
        key = broker.host, broker.port
        with self._brokers_lock:
            if self._closed:
                raise LocalProtocolError("tubemq: this client was closed")
            self._close_idle(key)
            session = self._brokers.get(key)
            if session is None or session.closed:
                session = self._brokers[key] = Session(self._options, *key, self.authorization, broker=broker)
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

    def _registered_producer(self) -> ProducerMember:
        """Register and unregister a producer without topics, for what any client may get, and a visit token."""
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
