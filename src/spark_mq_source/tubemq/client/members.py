"""Members of groups that choose their own partitions, and producers, registered at masters: their heartbeats."""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias, TypeVar

from spark_mq_source.core.connection import client_version, expect
from spark_mq_source.core.errors import BrokerError, MQSourceError, ServiceNotReadyError, TopicNotFoundError
from spark_mq_source.core.ports import Closing
from spark_mq_source.tubemq.client.masters import Masters
from spark_mq_source.tubemq.client.session import local_address
from spark_mq_source.tubemq.protocol import commands
from spark_mq_source.tubemq.protocol.addresses import (
    Broker,
    BrokerPartition,
    TopicMeta,
    parse_topic_infos,
    parse_topic_metas,
)
from spark_mq_source.tubemq.protocol.commands import MasterRequest
from spark_mq_source.tubemq.protocol.error_codes import HB_NO_NODE, NOT_READY, TOPIC_NOT_DEPLOYED

AnswerT = TypeVar("AnswerT", bound=commands.Answer | commands.AnswerV2)

Filters: TypeAlias = Sequence[str] | Mapping[str, Sequence[str]]

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS: Final = 10.0
"""Interval of heartbeats; masters drop clients that are silent for 30 s (master 2.4.0)."""

SETTLING_SECONDS: Final = 10.0
"""Time from when a master has read its brokers until it is trusted to have read all topics.

It answers while it reads them, one by one (seen on 2.4.0: for 1.8 s, with 80 to read and 30 ms for each answer of
ZooKeeper).
"""

_counter = itertools.count(1)


def unique_client_id(name: str) -> str:
    """Return an id that is unique across processes, in the form of the Java client's.

    It is ``GROUP_ADDRESS-PID-TIME-RANDOM-Pull-VERSION``: brokers show address and process id from it (2.4.0).

    Example:
        >>> unique_client_id("group") == unique_client_id("group"), unique_client_id("group").startswith("group_")
        (False, True)
    """
    unique = f"{os.getpid()}-{time.time_ns()}-{next(_counter)}{random.randrange(1 << 32):010d}"  # noqa: S311
    return f"{name}_{_own_address()}-{unique}-Pull-{client_version()}"


@lru_cache(maxsize=1)
def _own_address() -> str:
    """Return this machine's IPv4 address for outside connections; nothing is sent to that address of documentation."""
    return local_address("192.0.2.1", 9)


@dataclass(frozen=True, slots=True)
class ClusterMeta:
    """The brokers, and the topics on them.

    Attributes:
        topics: one item for each topic and broker.
    """

    brokers: Mapping[int, Broker]
    topics: tuple[TopicMeta, ...]

    def partitions(self, topic: str | None = None) -> list[BrokerPartition]:
        """Return every partition, or those of one topic, by topic, broker and number.

        Example:
            >>> meta = ClusterMeta({1: Broker(1, "host", 8123)}, (TopicMeta("demo", 1, stores=1, partitions=2),))
            >>> [str(partition) for partition in meta.partitions()]
            ['1:host:8123#demo:0', '1:host:8123#demo:1']
        """
        found = [
            BrokerPartition(self.brokers[meta.broker_id], meta.topic, partition_id)
            for meta in self.topics
            if meta.broker_id in self.brokers and topic in {None, meta.topic}
            for partition_id in meta.partition_ids
        ]
        return sorted(found, key=lambda one: (one.topic, one.broker.broker_id, one.partition_id))


class Member:
    """A client that is registered at a master and sends heartbeats.

    Attributes:
        error: the master's refusal, after which it is no longer a member.
    """

    def __init__(self, masters: Masters, name: str, seconds: float) -> None:
        self.client_id = unique_client_id(name)
        self.error: MQSourceError | None = None
        self._masters = masters
        self._seconds = seconds
        self._closing = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"spark-mq-source {name} heartbeats", daemon=True)

    def start(self) -> None:
        """Register, and start the heartbeats.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        self.register()
        self._thread.start()

    def register(self) -> None:
        """Register at the master.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        raise NotImplementedError

    def send_heartbeat(self) -> None:
        """Send one heartbeat; register again if the master has dropped this member.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        raise NotImplementedError

    def leave(self) -> None:
        """Unregister; ignore errors."""
        try:
            self._masters.ask(self._close_request())
        except MQSourceError as error:
            logger.debug("%s is not unregistered: %s", self.client_id, error)

    def close(self) -> None:
        """Stop the heartbeats, and unregister."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self.leave()

    def _close_request(self) -> MasterRequest:
        raise NotImplementedError

    def _ask(self, request: MasterRequest, kind: type[AnswerT], what: str) -> AnswerT:
        """Return the answer to a request; if the master has dropped this member, register and send it once more.

        Raises:
            MQSourceError: no answer, or a refusal; names the request as `what`.
        """
        try:
            try:
                return expect(self._masters.ask(request), kind)
            except BrokerError as error:
                if error.code != HB_NO_NODE:
                    raise
                logger.warning("the master has forgotten %s, which registers again: %s", self.client_id, error)
            self.register()
            return expect(self._masters.ask(request), kind)
        except BrokerError as error:
            raise error.within(what) from error

    def _meta_of(self, texts: Sequence[str], topics: Sequence[TopicMeta]) -> ClusterMeta:
        brokers = (Broker.parse(text, self._masters.default_broker_port) for text in texts)
        return ClusterMeta({broker.broker_id: broker for broker in brokers}, tuple(topics))

    def _run(self) -> None:
        while True:
            self._wake.wait(self._seconds)
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                self.send_heartbeat()
            except MQSourceError as error:
                if _refuses_for_good(error):
                    self.error = error
                    logger.error("%s is no member any more: %s", self.client_id, error)  # noqa: TRY400 - one sentence
                    return
                logger.warning("%s: a heartbeat failed and is sent again: %s", self.client_id, error)


class ConsumerMember(Member):
    """A consumer: a member of a group.

    Args:
        masters: the client's connections, which stay open.
        filters: the same for all members: for all topics, or by topic.
    """

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        filters: Filters,
        seconds: float = HEARTBEAT_SECONDS,
    ) -> None:
        super().__init__(masters, group, seconds)
        self._group = group
        self.topics = tuple(topics)
        by_topic = filters if isinstance(filters, Mapping) else dict.fromkeys(topics, filters)
        self._conditions = tuple(f"{topic}#{','.join(by_topic[topic])}" for topic in topics if by_topic.get(topic))

    def _join(self, request: MasterRequest) -> commands.Response:
        """Return the answer to a consumer's registration.

        Raises:
            TopicNotFoundError: a topic is on no broker; retryable if the master has not read its configuration yet.
            MQSourceError: no answer, or another refusal.
        """
        try:
            return self._masters.ask(request)
        except TopicNotFoundError as error:
            probe = ProducerMember(self._masters, ())
            try:
                probe.register()
                error.retryable = probe.settling_seconds > 0
            except ServiceNotReadyError:
                error.retryable = True
            finally:
                probe.leave()
            if error.retryable:
                raise
            return self._masters.ask(request)  # it may have read the configuration in between

    def _close_request(self) -> MasterRequest:
        return commands.CloseConsumer(self.client_id, self._group)


class ClientBalancedMember(ConsumerMember, Closing):
    """A member of a group whose members choose their own partitions (V2); their number is not limited."""

    _read: commands.ClientSubRepInfo | None = None
    """The partitions, all of which this member reads, for the master's statistics."""

    def register(self) -> None:
        """See `Member`."""
        address = self._masters.local_address()
        self._join(
            commands.RegisterConsumerV2(
                self.client_id,
                self._group,
                address,
                self.topics,
                topic_condition=self._conditions,
                ops_task_info=commands.OpsTaskInfo(**self._masters.rules.ids),
            )
        )

    def send_heartbeat(self) -> None:
        """See `Member`."""
        ops = commands.OpsTaskInfo(**self._masters.rules.ids)
        request = commands.ConsumerHeartbeatV2(self.client_id, self._group, self._read, ops)
        self._ask(request, commands.ConsumerHeartbeatV2Response, f"heartbeat of group {self._group}")

    def fetch_topics(self) -> ClusterMeta:
        """Fetch the current locations of the topics.

        Raises:
            TopicNotFoundError: a topic is on no broker.
            MQSourceError: no answer, or a refusal.
        """
        request = commands.GetPartMeta(self.client_id, self._group)
        response = self._ask(request, commands.GetPartMetaResponse, f"topics of group {self._group}")
        meta = self._meta_of(response.broker_config_list, parse_topic_metas(response.topic_meta_info_list))
        missing = [topic for topic in self.topics if not meta.partitions(topic)]
        if missing:
            error = TopicNotFoundError(
                f"topic {', '.join(missing)} is on no broker; an administrator adds topics to brokers"
            )
            error.retryable = not meta.brokers  # see `ProducerMember.register`
            raise error
        parts = tuple(
            f"{topic}#{','.join(f'{one.broker.broker_id}:{one.partition_id}' for one in meta.partitions(topic))}"
            for topic in self.topics
        )
        brokers_id, topics_id = (one or -2 for one in (response.broker_config_id, response.topic_meta_info_id))
        self._read = commands.ClientSubRepInfo(
            brokers_id, topics_id, time.time_ns() // 1_000_000, report_sub_info=True, part_sub_info=parts
        )
        return meta


class ProducerMember(Member):
    """A producer of topics, registered at a master.

    Args:
        masters: the client's connections, which stay open.
        topics: topics to begin with.

    Attributes:
        meta: the writable locations of topics in the answer to the last heartbeat.
    """

    def __init__(self, masters: Masters, topics: Sequence[str]) -> None:
        self._name = "spark-mq-source-producer"
        super().__init__(masters, self._name, HEARTBEAT_SECONDS)
        self._topics = tuple(topics)
        self.meta = ClusterMeta({}, ())
        self._max_bytes: int | None = None
        self._check_sum = -1
        self._config_id = -2

    def start(self) -> None:
        """Register, and fetch the locations of the topics: only a heartbeat's answer has them (seen on master 2.4.0).

        Raises:
            TopicNotFoundError: a topic is on no broker, or takes no messages on any.
            MQSourceError: no answer, or a refusal.
        """
        self.register()
        self.add_topics(())
        self._thread.start()

    def add_topics(self, topics: Sequence[str]) -> None:
        """Add topics, and fetch their locations.

        Raises:
            TopicNotFoundError: a topic is on no broker, or takes no messages on any.
            MQSourceError: no answer, or a refusal.
        """
        self._topics = tuple(dict.fromkeys((*self._topics, *topics)))
        self.send_heartbeat()
        missing = [topic for topic in self._topics if not self.meta.partitions(topic)]
        if missing:
            error = TopicNotFoundError(
                f"topic {', '.join(missing)} is on no broker that takes messages for it (acceptPublish)"
            )
            # A master that has just become active learns from the brokers which topics they have (2.4.0).
            error.retryable = self._are_deployed(missing)
            raise error

    @property
    def settling_seconds(self) -> float:
        """Time for which the master may still be reading its topics; 0 if it did not start just now.

        The check sum of its brokers is the time of their last change, in ms (2.4.0).
        """
        age = time.time() - self._check_sum / 1000
        return SETTLING_SECONDS - max(age, 0.0) if abs(age) < SETTLING_SECONDS else 0.0

    def _are_deployed(self, topics: Sequence[str]) -> bool:
        """Return whether the master's configuration has these topics: only a consumer's registration tells."""
        reader = ClientBalancedMember(self._masters, self._name, topics, ())
        try:
            reader.register()
        except BrokerError as error:
            return error.retryable or error.code != TOPIC_NOT_DEPLOYED
        reader.leave()
        return True

    def register(self) -> None:
        """See `Member`.

        Raises:
            ServiceNotReadyError: the master knows no broker. A new master serves before it has read its configuration,
                which lasts while ZooKeeper is slow: it knows no topic either, and refuses consumers with 431 (2.4.0).
            MQSourceError: no answer, or a refusal.
        """
        request = commands.RegisterProducer(
            self.client_id,
            self._topics,
            self._masters.local_address(),
            self._check_sum,
            jdk_version="",
            appd_config=commands.ApprovedClientConfig(self._config_id),
        )
        response = expect(self._masters.ask(request), commands.RegisterProducerResponse)
        self._take(response, self.meta.topics)
        if not self.meta.brokers:
            raise ServiceNotReadyError("the master knows no broker: it has just taken over, or the cluster has none")

    def send_heartbeat(self) -> None:
        """See `Member`; take the current locations of topics from the answer."""
        request = commands.ProducerHeartbeat(
            self.client_id,
            self._topics,
            self._masters.local_address(),
            self._check_sum,
            appd_config=commands.ApprovedClientConfig(self._config_id),
        )
        try:
            response = self._ask(request, commands.ProducerHeartbeatResponse, "heartbeat of a producer")
        except BrokerError as error:
            if error.code == NOT_READY and self.meta.topics:
                # A master that has just taken over does not know the brokers yet: keep the previous locations.
                return
            raise
        self._take(response, parse_topic_infos(response.topic_infos))

    def max_bytes(self, topic: str) -> int | None:
        """Return the size of the largest message that a topic takes, attributes included; None if not reported."""
        return next(
            (one.max_bytes for one in self.meta.topics if one.topic == topic and one.max_bytes), self._max_bytes
        )

    def _take(
        self,
        response: commands.RegisterProducerResponse | commands.ProducerHeartbeatResponse,
        topics: Sequence[TopicMeta],
    ) -> None:
        """Take what the answer has; it leaves out what the checksum and the id of the request show as known."""
        self._check_sum, config = response.broker_check_sum, response.appd_config
        if config is not None:
            self._config_id = config.config_id
            self._max_bytes = self._max_bytes if config.max_msg_size is None else config.max_msg_size
        found = self._meta_of(response.broker_infos, topics)
        self.meta = found if found.brokers else ClusterMeta(self.meta.brokers, found.topics)

    def _close_request(self) -> MasterRequest:
        return commands.CloseProducer(self.client_id)


def _refuses_for_good(error: MQSourceError) -> bool:
    """Return whether a heartbeat's error is permanent.

    A master that has just taken over knows no topic until the brokers report them (seen on master 2.4.0), and one that
    fails at a heartbeat (a Java exception, which has no code) may succeed at the next.
    """
    return (
        isinstance(error, BrokerError)
        and error.code is not None
        and not error.retryable
        and not isinstance(error, TopicNotFoundError)
    )
