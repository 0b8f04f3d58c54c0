"""Locations of topics, memberships of readers and writers, and the connections to masters and brokers.

One `TubeMQClient` holds the connections of one task or of the driver. A thread of its own sends the periodic requests
of a member of a group or a producer to the master, whatever its user does.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import re
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from typing import Final, TypeVar

from spark_mq_source.core.connection import client_version, expect
from spark_mq_source.core.errors import (
    BrokerError,
    LocalProtocolError,
    MQSourceError,
    RequestTimeoutError,
    TopicNotFoundError,
    TransportError,
)
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.tubemq.client.authentication import UserAuthentication
from spark_mq_source.tubemq.client.session import (
    Authorization,
    PartitionConsumer,
    Session,
    local_address,
)
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol import commands
from spark_mq_source.tubemq.protocol.addresses import (
    Broker,
    BrokerPartition,
    TopicMeta,
    parse_topic_infos,
    parse_topic_metas,
)
from spark_mq_source.tubemq.protocol.commands import (
    SUCCESS,
    AuthorizedInfo,
    EventStatus,
    EventType,
    MasterRequest,
    Response,
)
from spark_mq_source.tubemq.protocol.error_codes import HB_NO_NODE, NOT_READY, StandbyError, error_for_code

T = TypeVar("T")

logger = logging.getLogger(__name__)

IDLE_SECONDS: Final = 60.0
"""The time after which an unused connection is closed when another one is opened."""

HEARTBEAT_SECONDS: Final = 10.0
"""The interval of heartbeats; masters forget clients that are silent for 30 s (master 2.4.0)."""

GROUP_HEARTBEAT_SECONDS: Final = 1.0
"""The interval of members that the master balances: their events come only with the answers."""

FIRST_REST_SECONDS, MAX_REST_SECONDS = 1.0, 30.0
"""The time for which a broker that failed is set aside: at first, and at most."""

_EVERY_CODE: Final = range(1000)
_counter = itertools.count(1)


def unique_client_id(name: str) -> str:
    """Make an id that no client has had, in any process; like the Java client's, it begins with the group's name.

    Example:
        >>> unique_client_id("group") == unique_client_id("group"), unique_client_id("group").startswith("group_")
        (False, True)
    """
    host = re.sub(r"[^A-Za-z0-9.]", "-", socket.gethostname())
    unique = f"{os.getpid()}-{time.time_ns() // 1_000_000}-{next(_counter)}-{random.randrange(1 << 32):08x}"  # noqa: S311
    return f"{name}_{host}-{unique}-{client_version()}"


@dataclass(frozen=True, slots=True)
class ClusterMeta:
    """The brokers, and the topics on them.

    Attributes:
        brokers: by id.
        topics: one for each topic and broker.
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


class _Rest:
    """Brokers that failed: each is set aside for a while, longer each time, and then tried again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._resting: dict[Broker, tuple[float, float]] = {}

    def failed(self, broker: Broker) -> None:
        now = time.monotonic()
        with self._lock:
            until, seconds = self._resting.get(broker, (0.0, 0.0))
            if now >= until:
                # Many calls fail at once with a broker: they count as one.
                seconds = min(max(FIRST_REST_SECONDS, 2 * seconds), MAX_REST_SECONDS)
                self._resting[broker] = now + seconds, seconds

    def works(self, broker: Broker) -> None:
        with self._lock:
            self._resting.pop(broker, None)

    def is_set_aside(self, broker: Broker) -> bool:
        return time.monotonic() < self._resting.get(broker, (0.0, 0.0))[0]


class _MasterLink:
    """The connection to one master, if there is one.

    Heartbeats of several members and what their users ask go to masters at the same time, not all to the same one while
    another one takes over: no call may end a connection that another one uses, nor wait until it is opened.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None


class TubeMQClient:
    """The connections to one cluster and what is asked over them; close it when done. Several threads may use it.

    Args:
        options: addresses, credentials, timeouts.
        authorized: what a master has let the driver have, for the client of a task: it need not ask then.

    Example:
        ::

            with TubeMQClient(options) as client:
                for partition in client.fetch_topics(["flights"], group="g").partitions():
                    consumer = client.consumer(partition, client_id=unique_client_id("g"), group="g")
                    client.wait(consumer.register(curr_offset=0), f"register of {partition}")
    """

    def __init__(self, options: TubeMQOptions, *, authorized: AuthorizedInfo | None = None) -> None:
        self._options = options
        self._masters = list(options.addresses)
        user = None
        if options.auth_user is not None:
            user = UserAuthentication(options.auth_user, options.auth_password or "")
        self._authorization = Authorization(user, authorized, self._renew_authorization)
        self._masters_lock = threading.Lock()
        self._master_links = {address: _MasterLink() for address in self._masters}
        self._brokers_lock = threading.Lock()
        self._brokers: dict[tuple[str, int], Session] = {}
        self._rest = _Rest()
        self._closed = False

    def __enter__(self) -> TubeMQClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection; the servers forget what is registered 30 s later."""
        self._closed = True
        with self._brokers_lock:
            while self._brokers:
                self._brokers.popitem()[1].close()
        for link in self._master_links.values():
            with link.lock:
                if link.session is not None:
                    link.session.close()

    @property
    def authorized(self) -> AuthorizedInfo | None:
        """The master's last authorization, for the clients of tasks; valid for at least 16 minutes."""
        return self._authorization.given

    def authorization_for_brokers(self) -> AuthorizedInfo:
        """Return the authorization for a message that is sent."""
        return self._authorization.for_broker()

    def renew_authorization(self, refused: AuthorizedInfo | None) -> None:
        """Get a new visit token, unless a newer one than `refused` exists already.

        Raises:
            MQSourceError: no master gave one.
        """
        self._authorization.renew(refused)

    # -- masters

    def ask_master(self, request: MasterRequest, *, any_code: bool = False) -> Response:
        """Send a request to the active master, once: to the last one used, or the first of the others that is active.

        Args:
            request: the request; the credentials are added to it.
            any_code: whether answers with an error are returned rather than raised.

        Raises:
            MQSourceError: no master answered, or the active one refused.
        """
        failures: list[MQSourceError] = []
        for address in list(self._masters):
            try:
                return self._ask(address, request, any_code=any_code)
            except (StandbyError, TransportError) as failure:
                failures.append(failure)
                with self._masters_lock:
                    if self._masters[0] == address:
                        self._masters.append(self._masters.pop(0))
        if len(failures) == 1:
            raise failures[0]
        error = TransportError(f"no active master: {'; '.join(map(str, failures))}")
        error.retryable = any(failure.retryable for failure in failures)
        raise error

    def fetch_topics(self, topics: Sequence[str], *, group: str, filters: Sequence[str] = ()) -> ClusterMeta:
        """Fetch the locations of topics, as a short-lived member of a group that chooses its partitions itself.

        Raises:
            TopicNotFoundError: a topic is on no broker.
            MQSourceError: no answer in time, or a refusal; 424 if members of the group are balanced by the master.
        """

        def ask() -> ClusterMeta:
            member = ClientBalancedMember(self, group, topics, filters)
            member.register()
            try:
                return member.fetch_topics()
            finally:
                member.leave()

        return retrying(ask, deadline=self._deadline())

    def fetch_brokers(self) -> Mapping[int, Broker]:
        """Fetch every broker of the cluster, by id, as a producer without topics, which needs no authorized group.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        return self._asked_as_producer().meta.brokers

    def join(
        self,
        group: str,
        topics: Sequence[str],
        *,
        filters: Sequence[str] = (),
        on_connect: Callable[[Sequence[BrokerPartition]], Collection[BrokerPartition]],
        on_disconnect: Callable[[Sequence[BrokerPartition]], Collection[BrokerPartition]],
    ) -> GroupMember:
        """Join a group that the master balances; see `GroupMember`.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        member = GroupMember(self, group, topics, filters, on_connect, on_disconnect)
        retrying(member.start, deadline=self._deadline())
        return member

    def join_v2(self, group: str, topics: Sequence[str], *, filters: Sequence[str] = ()) -> ClientBalancedMember:
        """Join a group whose members choose their partitions themselves; see `ClientBalancedMember`.

        Raises:
            MQSourceError: no answer in time, or a refusal.
        """
        member = ClientBalancedMember(self, group, topics, filters)
        retrying(member.start, deadline=self._deadline())
        return member

    def publish(self, topics: Sequence[str]) -> ProducerMember:
        """Register a producer of topics; see `ProducerMember`.

        Raises:
            TopicNotFoundError: a topic is on no broker, or takes no messages on any.
            MQSourceError: no answer in time, or a refusal.
        """
        member = ProducerMember(self, topics)
        retrying(member.start, deadline=self._deadline())
        return member

    # -- brokers

    def consumer(self, partition: BrokerPartition, *, client_id: str, group: str) -> PartitionConsumer:
        """Make a consumer of a partition with a client id, on the one connection to its broker; register nothing yet.

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
            self._check_open()
            self._close_idle(key)
            session = self._brokers.get(key)
            if session is None or session.closed:
                try:
                    session = Session(self._options, *key, self._authorization, broker=broker)
                except TransportError:
                    self._rest.failed(broker)
                    raise
                self._brokers[key] = session
            return session

    def broker_failed(self, broker: Broker) -> None:
        """Set a broker aside: for a second at first, longer each time, until `broker_works`."""
        self._rest.failed(broker)

    def broker_works(self, broker: Broker) -> None:
        """End the time for which a broker is set aside, if it is."""
        self._rest.works(broker)

    def is_set_aside(self, broker: Broker) -> bool:
        """Return whether a broker failed, and it is not yet time to try it again."""
        return self._rest.is_set_aside(broker)

    def wait(self, answer: Future[T], what: str) -> T:
        """Wait for an answer.

        Raises:
            MQSourceError: there is none, or a refusal; names the request as `what`.
        """
        try:
            # The connection gives a call up by itself, but not while it is not read from.
            return answer.result(2 * self._options.request_timeout_ms / 1000)
        except FutureTimeoutError:
            raise RequestTimeoutError(
                f"no answer to {what} within requestTimeout ({self._options.request_timeout_ms} ms)"
            ) from None
        except MQSourceError as error:
            raise error.within(what) from error

    # -- how it is asked

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._options.operation_timeout_ms)

    def local_address(self) -> str:
        """Return this machine's IPv4 address as masters see it."""
        return local_address(*self._masters[0])

    def _ask(self, address: tuple[str, int], request: MasterRequest, *, any_code: bool) -> Response:
        link = self._master_links[address]
        with link.lock:
            self._check_open()
            session = link.session
            if session is None or session.closed:
                session = link.session = Session(self._options, *address, self._authorization, broker=None)
        (answer,) = session.call(request, accepted=_EVERY_CODE)
        response = self.wait(answer, f"{type(request).__name__}")
        assert not isinstance(response, commands.RpcException)  # noqa: S101 - for mypy: raised by the session
        self._authorization.take(getattr(response, "authorized_info", None))
        if response.err_code != SUCCESS and not any_code:
            raise error_for_code(response.err_code, response.err_msg, session.address)
        return response

    def _check_open(self) -> None:
        # Who asks later, a heartbeat for one, would open a connection that nobody closes.
        if self._closed:
            raise LocalProtocolError("tubemq: this client was closed")

    def _renew_authorization(self) -> None:
        self._asked_as_producer()  # the answer has a visit token

    def _asked_as_producer(self) -> ProducerMember:
        """Register and unregister a producer without groups and topics, for the data that any client may get."""
        producer = ProducerMember(self, ())
        retrying(producer.register, deadline=self._deadline())
        producer.leave()
        return producer

    def _close_idle(self, kept: tuple[str, int]) -> None:
        now = time.monotonic()
        for key, session in list(self._brokers.items()):
            if key != kept and session.at_rest and now - session.last_used > IDLE_SECONDS:
                del self._brokers[key]
                session.close()


class _Member:
    """Somebody whom the master knows, and who has to say so again and again.

    Attributes:
        client_id: unique.
        error: why it is none any more, where the master refuses it for good.
    """

    def __init__(self, client: TubeMQClient, name: str, seconds: float) -> None:
        self.client_id = unique_client_id(name)
        self.error: MQSourceError | None = None
        self._client = client
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

    def beat(self) -> None:
        """Send one heartbeat; register again if the master has forgotten this member.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        raise NotImplementedError

    def leave(self) -> None:
        """Unregister; ignore errors."""
        try:
            self._client.ask_master(self._farewell())
        except MQSourceError as error:
            logger.debug("%s could not say that it ends: %s", self.client_id, error)

    def close(self) -> None:
        """Stop the heartbeats, and unregister."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()
        self.leave()

    def _farewell(self) -> MasterRequest:
        raise NotImplementedError

    def _run(self) -> None:
        while True:
            self._wake.wait(self._seconds)
            self._wake.clear()
            if self._closing.is_set():
                return
            try:
                self.beat()
            except MQSourceError as error:
                if _refuses_for_good(error):
                    self.error = error
                    logger.error("%s is no member any more: %s", self.client_id, error)  # noqa: TRY400 - one sentence
                    return
                logger.warning("%s: a heartbeat failed and is sent again: %s", self.client_id, error)


class GroupMember(_Member):
    """A member of a group whose partitions the master shares out (V1).

    The master says once what is to be taken or left, and waits for the answer: an answer that never comes stops the
    whole group for ten rounds (seen on master 2.4.0). So a thread asks every second, another one has the partitions
    taken and left, one event at a time, and what came of it is said at once.

    Args:
        client: its connections; not closed with it.
        group: whose member.
        topics: all members' are the same.
        filters: all members' are the same.
        on_connect: takes partitions, and returns those that it has taken.
        on_disconnect: leaves partitions, and returns those that it has left: whatever is to be committed is then. For
            the others FAILED is answered here and there, and the master asks again.

    Attributes:
        assigned: set when the first event has been answered.
    """

    def __init__(
        self,
        client: TubeMQClient,
        group: str,
        topics: Sequence[str],
        filters: Sequence[str],
        on_connect: Callable[[Sequence[BrokerPartition]], Collection[BrokerPartition]],
        on_disconnect: Callable[[Sequence[BrokerPartition]], Collection[BrokerPartition]],
    ) -> None:
        super().__init__(client, group, GROUP_HEARTBEAT_SECONDS)
        self.assigned = threading.Event()
        self._group = group
        self._topics = tuple(topics)
        self._conditions = _conditions(topics, filters)
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self._assignment: frozenset[BrokerPartition] = frozenset()
        self._gave_up = 0
        """The number of partitions given up that were not reported to the master yet."""
        self._todo: deque[commands.Event] = deque()
        self._done: deque[commands.Event] = deque()
        self._arrived = threading.Condition()
        self._worker = threading.Thread(target=self._answer_events, name=f"spark-mq-source {group} events", daemon=True)

    @property
    def assignment(self) -> frozenset[BrokerPartition]:
        """The partitions it has, as far as events have been answered."""
        return self._assignment

    def give_up(self, partition: BrokerPartition) -> None:
        """Report to the master that another client has a partition, so that it is assigned again."""
        with self._arrived:
            self._assignment -= {partition}
            self._gave_up += 1
        self._wake.set()

    def start(self) -> None:
        """Register, and start to handle events.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        super().start()
        self._worker.start()

    def close(self) -> None:
        """Finish the event that is being handled, stop the heartbeats, and unregister."""
        self._closing.set()
        with self._arrived:
            self._arrived.notify_all()
        if self._worker.is_alive() and threading.current_thread() is not self._worker:
            self._worker.join()
        super().close()

    def register(self) -> None:
        """Register at the master, with the partitions held from before.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        assignment = self._assignment
        self._client.ask_master(
            commands.RegisterConsumer(
                self.client_id,
                self._group,
                self._client.local_address(),
                self._topics,
                subscribe_info=self._subscribed(),
                topic_condition=self._conditions,
                require_bound=False,
                session_time=time.time_ns() // 1_000_000,
                total_count=-1,
                required_partition="",
                not_allocated=not assignment,
                select_big=True,
                group_flow_check_id=-2,
                def_flow_check_id=-2,
                qry_priority_id=-2,
                jdk_version="",
            )
        )

    def beat(self) -> None:
        """Send a heartbeat: report the finished rebalance event and fetch the next.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        done = self._done[0] if self._done else None
        gave_up = self._gave_up
        response = expect(
            self._client.ask_master(
                commands.ConsumerHeartbeat(
                    self.client_id,
                    self._group,
                    report_subscribe_info=done is not None or gave_up > 0,
                    subscribe_info=self._subscribed() if done is not None or gave_up > 0 else (),
                    event=done,
                    def_flow_check_id=-2,
                    group_flow_check_id=-2,
                ),
                any_code=True,
            ),
            commands.ConsumerHeartbeatResponse,
        )
        if response.err_code == HB_NO_NODE:
            logger.warning("the master has forgotten %s, which registers again: %s", self.client_id, response.err_msg)
            self.register()
            return
        if response.err_code != SUCCESS:
            raise error_for_code(response.err_code, response.err_msg, f"heartbeat of group {self._group}")
        with self._arrived:
            self._gave_up -= gave_up
        if done is not None:
            self._done.popleft()
            self.assigned.set()
        if response.event is not None and response.event.rebalance_id > 0:
            with self._arrived:
                self._todo.append(response.event)
                self._arrived.notify_all()
        if self._done:
            self._wake.set()

    def _subscribed(self) -> tuple[str, ...]:
        return tuple(sorted(partition.subscribed(self.client_id, self._group) for partition in self._assignment))

    def _farewell(self) -> MasterRequest:
        return commands.CloseConsumer(self.client_id, self._group)

    def _answer_events(self) -> None:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._todo or self._closing.is_set())
                if self._closing.is_set():
                    return
                event = self._todo.popleft()
            self._done.append(self._answer(event))
            self._wake.set()

    def _answer(self, event: commands.Event) -> commands.Event:
        status = EventStatus.FAILED
        try:
            partitions = [BrokerPartition.parse(text) for text in event.subscribe_info]
            if event.op_type in {EventType.CONNECT, EventType.ONLY_CONNECT}:
                changed = frozenset(self._on_connect(partitions))
                with self._arrived:
                    self._assignment |= changed
            elif event.op_type in {EventType.DISCONNECT, EventType.ONLY_DISCONNECT}:
                changed = frozenset(self._on_disconnect(partitions))
                with self._arrived:
                    self._assignment -= changed
            else:
                changed = frozenset()
            # What is reported next is what it has: otherwise nobody would read the rest until the group changes again.
            status = EventStatus.DONE if changed.issuperset(partitions) else EventStatus.FAILED
        except Exception:  # whatever it is: an event that is not answered stops the whole group
            logger.exception("group %s: event %s failed", self._group, event)
        return commands.Event(event.rebalance_id, event.op_type, status, event.subscribe_info)


class ClientBalancedMember(_Member):
    """A member of a group whose members choose their partitions themselves (V2). Any number of them may be there.

    Args:
        client: its connections; not closed with it.
        group: whose member.
        topics: all members' are the same.
        filters: all members' are the same.
    """

    def __init__(
        self,
        client: TubeMQClient,
        group: str,
        topics: Sequence[str],
        filters: Sequence[str],
    ) -> None:
        super().__init__(client, group, HEARTBEAT_SECONDS)
        self._group = group
        self._topics = tuple(topics)
        self._conditions = _conditions(topics, filters)

    def __enter__(self) -> ClientBalancedMember:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def register(self) -> None:
        """Register at the master.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        self._client.ask_master(
            commands.RegisterConsumerV2(
                self.client_id,
                self._group,
                self._client.local_address(),
                self._topics,
                topic_condition=self._conditions,
            )
        )

    def beat(self) -> None:
        """Send a heartbeat.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        response = expect(
            self._client.ask_master(commands.ConsumerHeartbeatV2(self.client_id, self._group), any_code=True),
            commands.ConsumerHeartbeatV2Response,
        )
        self._check(response.err_code, response.err_msg)

    def fetch_topics(self) -> ClusterMeta:
        """Fetch the current locations of the topics.

        Raises:
            TopicNotFoundError: a topic is on no broker.
            MQSourceError: no answer, or a refusal.
        """
        response = self._fetch()
        if response.err_code == HB_NO_NODE:
            self.register()
            response = self._fetch()
        if response.err_code != SUCCESS:
            raise error_for_code(response.err_code, response.err_msg, f"topics of group {self._group}")
        meta = _meta_of(response.broker_config_list, parse_topic_metas(response.topic_meta_info_list))
        missing = [topic for topic in self._topics if not meta.partitions(topic)]
        if missing:
            raise TopicNotFoundError(
                f"topic {', '.join(missing)} is on no broker; an administrator adds topics to brokers"
            )
        return meta

    def _fetch(self) -> commands.GetPartMetaResponse:
        request = commands.GetPartMeta(self.client_id, self._group)
        return expect(self._client.ask_master(request, any_code=True), commands.GetPartMetaResponse)

    def _check(self, code: int, words: str) -> None:
        if code == HB_NO_NODE:
            logger.warning("the master has forgotten %s, which registers again: %s", self.client_id, words)
            self.register()
        elif code != SUCCESS:
            raise error_for_code(code, words, f"heartbeat of group {self._group}")

    def _farewell(self) -> MasterRequest:
        return commands.CloseConsumer(self.client_id, self._group)


class ProducerMember(_Member):
    """A producer of topics, as the master knows it.

    Args:
        client: its connections; not closed with it.
        topics: more can be added.
    """

    def __init__(self, client: TubeMQClient, topics: Sequence[str]) -> None:
        super().__init__(client, "spark-mq-source-producer", HEARTBEAT_SECONDS)
        self._topics = tuple(topics)
        self._meta = ClusterMeta({}, ())
        self._max_message_bytes: int | None = None

    @property
    def max_message_bytes(self) -> int | None:
        """The largest message that a topic accepts, attributes included; None if the master did not report it."""
        return self._max_message_bytes

    @property
    def meta(self) -> ClusterMeta:
        """The writable locations of topics in the answer to the last heartbeat."""
        return self._meta

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
        self.beat()
        missing = [topic for topic in self._topics if not self._meta.partitions(topic)]
        if missing:
            raise TopicNotFoundError(
                f"topic {', '.join(missing)} is on no broker that takes messages for it (acceptPublish)"
            )

    def register(self) -> None:
        """Register at the master.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        request = commands.RegisterProducer(
            self.client_id,
            self._topics,
            self._client.local_address(),
            jdk_version="",
        )
        response = expect(self._client.ask_master(request), commands.RegisterProducerResponse)
        self._take_config(response.appd_config)
        self._meta = _meta_of(response.broker_infos, self._meta.topics)

    def beat(self) -> None:
        """Send a heartbeat, and take the current locations of topics from its answer.

        Raises:
            MQSourceError: no answer, or a refusal.
        """
        request = commands.ProducerHeartbeat(
            self.client_id,
            self._topics,
            self._client.local_address(),
        )
        response = expect(self._client.ask_master(request, any_code=True), commands.ProducerHeartbeatResponse)
        if response.err_code == HB_NO_NODE:
            logger.warning("the master has forgotten %s, which registers again: %s", self.client_id, response.err_msg)
            self.register()
            response = expect(self._client.ask_master(request, any_code=True), commands.ProducerHeartbeatResponse)
        if response.err_code == NOT_READY and self._meta.topics:
            # A master that has just taken over does not know the brokers yet: what we know is still true.
            return
        if response.err_code != SUCCESS:
            raise error_for_code(response.err_code, response.err_msg, "heartbeat of a producer")
        self._take_config(response.appd_config)
        self._meta = _meta_of(response.broker_infos, parse_topic_infos(response.topic_infos))

    def _take_config(self, config: commands.ApprovedClientConfig | None) -> None:
        if config is not None and config.max_msg_size is not None:
            self._max_message_bytes = config.max_msg_size

    def _farewell(self) -> MasterRequest:
        return commands.CloseProducer(self.client_id)


def _refuses_for_good(error: MQSourceError) -> bool:
    """Return whether a heartbeat need not be repeated: a refusal stays one, other errors may not.

    A master that has just begun to lead knows no topic until the brokers have reported them (seen on master 2.4.0), and
    one that fails at a heartbeat (a Java exception, which has no code) may succeed at the next.
    """
    return (
        isinstance(error, BrokerError)
        and error.code is not None
        and not error.retryable
        and not isinstance(error, TopicNotFoundError)
    )


def _conditions(topics: Sequence[str], filters: Sequence[str]) -> tuple[str, ...]:
    """Return `topic_condition`: the same filters for each topic, if there are any."""
    return tuple(f"{topic}#{','.join(filters)}" for topic in topics) if filters else ()


def _meta_of(brokers: Sequence[str], topics: Sequence[TopicMeta]) -> ClusterMeta:
    known = map(Broker.parse, brokers)
    return ClusterMeta({broker.broker_id: broker for broker in known}, tuple(topics))
