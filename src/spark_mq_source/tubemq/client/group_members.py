"""Members of groups whose partitions the master assigns (V1): sessions that start at offsets, and rebalance events."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from spark_mq_source.core.connection import expect
from spark_mq_source.core.errors import RemoteProtocolError
from spark_mq_source.tubemq.client.masters import Masters
from spark_mq_source.tubemq.client.members import ConsumerMember, Filters
from spark_mq_source.tubemq.protocol import commands
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from spark_mq_source.tubemq.protocol.commands import EventStatus, EventType

logger = logging.getLogger(__name__)

GROUP_HEARTBEAT_SECONDS: Final = 1.0
"""Interval for members whose partitions the master assigns: their events arrive only with the answers."""


@dataclass(slots=True)
class GroupSession:
    """Session in which a group starts at given offsets: all of its members register for it (a "bound" subscription).

    A master assigns each named partition to a member with its highest offset, once all members are there; unnamed
    partitions, and members that come later, get partitions as in any group (master 2.4.0).

    Attributes:
        key: the same for all members; a master refuses members with another key until the last of this one has left.
        members: number of members for which the master waits.
        offsets: the offsets by partition, as ``brokerId:topic:partition``.
        is_starting: whether the partitions that are being taken start at these offsets.
        is_counted: whether this member registered before any had partitions, so that no position is below its offsets.
    """

    key: str
    members: int
    offsets: Mapping[str, int]
    is_starting: bool = False
    is_counted: bool = False

    @property
    def required(self) -> str:
        """`required_partition` of the registration."""
        return ",".join(f"{name}={offset}" for name, offset in self.offsets.items())


class GroupMember(ConsumerMember):
    """A member of a group whose partitions the master assigns (V1).

    The master sends a rebalance event once, and waits for the answer: without one, the whole group waits for ten rounds
    (seen on master 2.4.0). So one thread sends a heartbeat every second, and another one takes and releases partitions,
    one event at a time; the result is reported at once.

    Args:
        on_connect: takes partitions, and returns those taken.
        on_disconnect: releases partitions after their last commit, and returns those released. If some are missing, the
            event is answered with FAILED, and the master sends it again.
        session: the session that this member starts or joins, if any.

    Attributes:
        assigned: set once the first event has been answered.
        assignment: its partitions, by the answered events.
    """

    def __init__(
        self,
        masters: Masters,
        group: str,
        topics: Sequence[str],
        filters: Filters,
        on_connect: Callable[[Sequence[BrokerPartition]], Collection[BrokerPartition]],
        on_disconnect: Callable[[Sequence[BrokerPartition]], Collection[BrokerPartition]],
        session: GroupSession | None = None,
    ) -> None:
        super().__init__(masters, group, topics, filters, GROUP_HEARTBEAT_SECONDS)
        self.assigned = threading.Event()
        self._on_connect = on_connect
        self._on_disconnect = on_disconnect
        self.assignment: frozenset[BrokerPartition] = frozenset()
        self._reports = 0
        """Number of reasons to report the partitions held: some were given up, or the master asked."""
        self._session = session
        self._session_time_ms = time.time_ns() // 1_000_000
        self._is_starting = session is not None
        """True while no member has had partitions in this session, by the answers so far."""
        self._todo: deque[tuple[commands.Event, bool]] = deque()
        self._done: deque[commands.Event] = deque()
        self._arrived = threading.Condition()
        self._worker = threading.Thread(target=self._answer_events, name=f"spark-mq-source {group} events", daemon=True)

    def give_up(self, partition: BrokerPartition) -> None:
        """Report that another client has a partition, so that the master assigns it again."""
        with self._arrived:
            self.assignment -= {partition}
            self._reports += 1
        self._wake.set()

    def start(self) -> None:
        """See `Member`; also start to handle events."""
        super().start()
        self._worker.start()

    def close(self) -> None:
        """Finish the current event, stop the heartbeats, and unregister."""
        self._closing.set()
        with self._arrived:
            self._arrived.notify_all()
        if self._worker.is_alive() and threading.current_thread() is not self._worker:
            self._worker.join()
        super().close()

    def register(self) -> None:
        """See `Member`; report the partitions held before."""
        assignment = self.assignment
        session = self._session
        answer = self._join(
            commands.RegisterConsumer(
                self.client_id,
                self._group,
                self._masters.local_address(),
                self.topics,
                subscribe_info=self._subscribed(),
                topic_condition=self._conditions,
                require_bound=session is not None,
                session_time=self._session_time_ms,
                session_key=None if session is None else session.key,
                total_count=-1 if session is None else session.members,
                required_partition="" if session is None else session.required,
                not_allocated=not assignment,
                select_big=True,
                jdk_version="",
                **self._masters.rules.ids,
            )
        )
        self._take_allocated(expect(answer, commands.RegisterConsumerResponse).not_allocated)
        if session is not None and not self._thread.is_alive():
            session.is_counted = self._is_starting

    def _take_allocated(self, not_allocated: bool | None) -> None:
        self._is_starting = self._is_starting and not_allocated is not False

    def send_heartbeat(self) -> None:
        """See `Member`; report the finished rebalance event, and fetch the next."""
        done = self._done[0] if self._done else None
        reports = self._reports
        is_changed = done is not None or reports > 0
        request = commands.ConsumerHeartbeat(
            self.client_id,
            self._group,
            report_subscribe_info=is_changed,
            subscribe_info=self._subscribed() if is_changed else (),
            event=done,
            **self._masters.rules.ids,
        )
        response = self._ask(request, commands.ConsumerHeartbeatResponse, f"heartbeat of group {self._group}")
        with self._arrived:
            self._reports -= reports
        if done is not None:
            self._done.popleft()
            self.assigned.set()
        event = response.event
        if event is not None and event.rebalance_id > 0 and event.op_type != EventType.STOPREBALANCE:
            with self._arrived:
                if event.op_type == EventType.REPORT:
                    self._reports += 1
                else:
                    # Another member may have answered first: only an event after that is of a later round.
                    self._todo.append((event, self._is_starting))
                    self._is_starting = False
                    self._arrived.notify_all()
        self._take_allocated(response.not_allocated)
        if self._done or self._reports:
            self._wake.set()

    def _subscribed(self) -> tuple[str, ...]:
        return tuple(sorted(partition.subscribed(self.client_id, self._group) for partition in self.assignment))

    def _answer_events(self) -> None:
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._todo or self._closing.is_set())
                if self._closing.is_set():
                    return
                event, is_starting = self._todo.popleft()
            if self._session is not None:
                self._session.is_starting = is_starting
            self._done.append(self._answer(event))
            self._wake.set()

    def _answer(self, event: commands.Event) -> commands.Event:
        status = EventStatus.FAILED
        try:
            partitions = [BrokerPartition.parse(text) for text in event.subscribe_info]
            if event.op_type in {EventType.CONNECT, EventType.ONLY_CONNECT}:
                changed = frozenset(self._on_connect(partitions))
                with self._arrived:
                    self.assignment |= changed
            elif event.op_type in {EventType.DISCONNECT, EventType.ONLY_DISCONNECT}:
                changed = frozenset(self._on_disconnect(partitions))
                with self._arrived:
                    self.assignment -= changed
            else:
                raise RemoteProtocolError(f"the master asks for the unknown operation {event.op_type}")  # noqa: TRY301
            # The next report lists all partitions held: else the others would be unread until the group changes.
            status = EventStatus.DONE if changed.issuperset(partitions) else EventStatus.FAILED
        except Exception:  # any error: an event without an answer stops the whole group
            logger.exception("group %s: event %s failed", self._group, event)
        return commands.Event(event.rebalance_id, event.op_type, status, event.subscribe_info)
