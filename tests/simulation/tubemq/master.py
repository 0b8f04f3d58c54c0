"""TubeMQ masters in the simulated world: members of groups, and the partitions assigned to them (2.4.0)."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from tests.simulation.network import Stream, network
from tests.simulation.tubemq.link import Link

if TYPE_CHECKING:
    from tests.simulation.tubemq.cluster import Cluster

MEMBER_SECONDS = 30.0
"""Seconds after which a master removes a silent client."""

FROZEN_ROUNDS = 10
"""Rounds that a group waits for the answer to an event."""

STANDBY = c.RpcException(
    c.Status.ERROR, "org.apache.inlong.tubemq.corerpc.exception.StandbyException", "is not master now"
)
OK = "OK!"
NOBODY = c.AuthorizedInfo(-2)
RULES_ID = 7

Place = tuple[str, int, int]
"""Topic, broker's id, partition."""


@dataclass
class Member:
    """A client of a group.

    Attributes:
        held: the member's partitions from the master's view: those that it reported last.
        events: pending rebalance events, in order; the first one may have been sent.
    """

    client_id: str
    topics: tuple[str, ...]
    conditions: tuple[str, ...]
    is_balanced: bool
    heard_at: float
    held: set[Place] = field(default_factory=set)
    events: deque[c.Event] = field(default_factory=deque)
    is_sent: bool = False
    session: tuple[str, int] | None = None
    """Key and number of members of its session."""
    offsets: dict[Place, int] = field(default_factory=dict)


@dataclass
class Group:
    """A group, the rounds that it has waited for the answer to an event, and the member that starts each partition."""

    members: dict[str, Member] = field(default_factory=dict)
    rounds: int = 0
    is_allocated: bool = False
    starts: dict[Place, str] = field(default_factory=dict)
    times_started: int = 0


class Master:
    """One master.

    Attributes:
        address: `host:port`.
        is_up: whether its process runs.
        leads: whether it serves; the others are on standby.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.address = f"127.0.1.{number + 1}:8715"
        self.is_up = False
        self.leads = False
        self.groups: dict[str, Group] = {}
        self.producers: dict[str, float] = {}
        self.links: list[Link] = []
        self._last_rebalance = 0
        self._loaded_at = self._informed_at = 0.0
        self._brokers_at = math.inf
        self._read_early: frozenset[int] = frozenset()
        self._lives = 0
        self._dice = self.world.dice(f"master {number}")
        self.start()

    # -- start and stop

    def start(self) -> None:
        """Start its process, without clients and brokers."""
        if not self.is_up:
            self.is_up = True
            self._brokers_at = math.inf
            network().listen(self.address, self._accept)
            self.cluster.elect()

    def kill(self) -> None:
        """Kill it by SIGKILL; another master leads after some seconds."""
        self.world.note(f"master {self.address} is killed")
        self.is_up = self.leads = False
        self.groups.clear()
        self.producers.clear()
        network().unlisten(self.address)
        links, self.links = self.links, []
        for link in links:
            link.close()
        self.world.after(4.0, self.cluster.elect)

    def lose_session(self, seconds: float) -> None:
        """Go on standby while ZooKeeper does not answer, and then read the configuration again."""
        if not self.leads:
            return
        self.world.note(f"master {self.address} has lost its session")
        self.leads = False
        self.world.after(seconds, lambda: self.cluster.elect(self))

    def lead(self) -> None:
        """Serve from now on, even while the configuration is read from ZooKeeper."""
        self.world.note(f"master {self.address} leads")
        self.leads = True
        self._loaded_at = self.world.now + self._dice.choice((0.0, 0.5, 3.0))
        # Brokers are known before the topics are read, and from then on; the topics of a broker before those of others.
        seconds = (self._loaded_at - self.world.now) * self._dice.random()
        self._brokers_at = min(self._brokers_at, self.world.now + seconds)
        self._read_early = frozenset(one.number for one in self.cluster.brokers if self._dice.random() < 0.5)
        # It knows the topics on brokers as soon as these have reported them.
        self._informed_at = self._loaded_at + self._dice.choice((0.0, 0.5, 3.0))
        for broker in self.cluster.brokers:
            # A broker that registers while topics are read gets those already read, and soon the others.
            if self.world.now < self._loaded_at and self._dice.random() < 0.3:
                broker.forget_topics(self._loaded_at - self.world.now + self._dice.choice((0.5, 20.0)))
        self._lives += 1
        life = self._lives

        def balance() -> None:
            if self.leads and self._lives == life:
                self._balance()
                self.world.after(self.cluster.balance_seconds, balance)

        self.world.after(self.cluster.balance_seconds, balance)

    def _accept(self, stream: Stream) -> Link:
        link = Link(self.world, stream, self._handle, self._forget)
        self.links.append(link)
        return link

    def _forget(self, link: Link) -> None:
        if link in self.links:
            self.links.remove(link)

    @property
    def _broker_infos(self) -> tuple[str, ...]:
        """All brokers, running or not: masters report the configuration (2.4.0)."""
        return self.cluster.broker_infos if self.world.now >= self._brokers_at else ()

    @property
    def _brokers_id(self) -> int:
        """The time of the brokers' last change, in ms, which is the time at which they were read."""
        known_for = self.world.now - self._brokers_at
        return int(1000 * (self.world.wall - known_for)) if known_for >= 0 else -1

    def _brokers_of(self, name: str) -> tuple[int, ...]:
        """Return the brokers of a topic, as far as the configuration has been read."""
        topic = self.cluster.topics.get(name)
        numbers = () if topic is None else topic.brokers
        return tuple(n for n in numbers if self.world.now >= self._loaded_at or n in self._read_early)

    # -- requests

    def _handle(self, link: Link, request: Any) -> Any:  # noqa: PLR0911 - one line a request
        del link
        if not self.leads:
            return STANDBY
        self._expire()
        match request:
            case c.RegisterProducer():
                self.producers[request.client_id] = self.world.now
                config = c.ApprovedClientConfig(1, self.cluster.max_message_bytes)
                return c.RegisterProducerResponse(True, 200, OK, self._brokers_id, self._broker_infos, NOBODY, config)
            case c.ProducerHeartbeat():
                return self._producer_heartbeat(request)
            case c.CloseProducer():
                self.producers.pop(request.client_id, None)
                return c.CloseProducerResponse(True, 200, OK)
            case c.RegisterConsumer():
                return self._register(request)
            case c.ConsumerHeartbeat():
                return self._heartbeat(request)
            case c.RegisterConsumerV2():
                return self._register_v2(request)
            case c.ConsumerHeartbeatV2():
                member = self._member(request)
                if member is None:
                    return c.ConsumerHeartbeatV2Response(411, f"Not found groupName {request.group_name} in holder!")
                ops = self._ops(request)
                return c.ConsumerHeartbeatV2Response(200, OK, ops_task_info=ops, authorized_info=NOBODY)
            case c.GetPartMeta():
                return self._metadata(request)
            case c.CloseConsumer():
                group = self.groups.get(request.group_name)
                if group is not None:
                    self._leave(group, request.client_id)
                return c.CloseConsumerResponse(True, 200, OK)
        raise AssertionError(f"a master does not handle {request}")

    def _producer_heartbeat(self, request: c.ProducerHeartbeat) -> c.ProducerHeartbeatResponse:
        if request.client_id not in self.producers:
            return c.ProducerHeartbeatResponse(False, 411, "not found")
        self.producers[request.client_id] = self.world.now
        infos = tuple(
            f"{topic}#" + ",".join(f"{n}:{known.partitions}:{known.stores}" for n in known.brokers) + "#"
            for topic in request.topic_list
            if self.world.now >= self._informed_at and (known := self.cluster.topics.get(topic)) is not None
        )
        brokers = self._brokers_id, infos, self._broker_infos
        return c.ProducerHeartbeatResponse(True, 200, OK, *brokers, authorized_info=NOBODY)

    def _member(self, request: Any) -> Member | None:
        group = self.groups.get(request.group_name)
        member = None if group is None else group.members.get(request.client_id)
        if member is not None:
            member.heard_at = self.world.now
        return member

    def _join(self, request: Any, *, is_balanced: bool) -> tuple[int, str]:  # noqa: PLR0911 - one line a code
        session = (request.session_key, request.total_count) if getattr(request, "require_bound", False) else None
        group = self.groups.setdefault(request.group_name, Group())
        conditions = tuple(sorted(request.topic_condition))
        unknown = [topic for topic in request.topic_list if not self._brokers_of(topic)]
        if unknown:
            return 431, f"{unknown} not deployed"
        if self.cluster.authorized is not None and request.group_name not in self.cluster.authorized:
            return 450, "[unAuthorized Group]"
        for other in group.members.values():
            if other.client_id == request.client_id:
                continue
            if other.is_balanced != is_balanced or (other.session is None) != (session is None):
                return 424, "consume type"
            if set(other.topics) != set(request.topic_list):
                return 425, "topics"
            if other.conditions != conditions:
                return 426, "filters"
            if session is not None and other.session != session:
                return (427, "session") if other.session[0] != session[0] else (429, "members")  # type: ignore[index]
        is_new = request.client_id not in group.members
        member = group.members[request.client_id] = Member(
            request.client_id, tuple(request.topic_list), conditions, is_balanced, self.world.now, session=session
        )
        if session is not None and is_new:
            self._record_starts(group, member, request.required_partition)
        return 200, OK

    @staticmethod
    def _record_starts(group: Group, member: Member, required: str) -> None:
        """Record the member that starts each partition: the last one of those with its highest offset."""
        for text in filter(None, required.split(",")):
            name, _, offset = text.partition("=")
            number, topic, partition = name.split(":")
            place = topic, int(number), int(partition)
            member.offsets[place] = int(offset)
            other = group.members.get(group.starts.get(place, ""))
            if other is None or int(offset) >= other.offsets.get(place, -1):
                group.starts[place] = member.client_id

    def _register(self, request: c.RegisterConsumer) -> c.RegisterConsumerResponse:
        code, words = self._join(request, is_balanced=True)
        if code != 200:
            return c.RegisterConsumerResponse(False, code, words)
        group = self.groups[request.group_name]
        group.members[request.client_id].held = _places(request.subscribe_info)
        return c.RegisterConsumerResponse(
            True, 200, OK, not group.is_allocated, authorized_info=NOBODY, **self._rules(request)
        )

    def _heartbeat(self, request: c.ConsumerHeartbeat) -> c.ConsumerHeartbeatResponse:
        member = self._member(request)
        if member is None:
            return c.ConsumerHeartbeatResponse(False, 411, f"Not found groupName {request.group_name} in holder!")
        group = self.groups[request.group_name]
        if request.report_subscribe_info:
            member.held = _places(request.subscribe_info)
        if request.event is not None and request.event.rebalance_id > 0:
            # Masters check neither the event's id nor its status (2.4.0).
            group.is_allocated = True
            if member.events:
                member.events.popleft()
            for place in member.held:
                if self.cluster.unstarted.get(place) == member.client_id:
                    del self.cluster.unstarted[place]
            member.is_sent = False
        event = None
        if member.events and not member.is_sent:
            member.is_sent = True
            event = member.events[0]
        return c.ConsumerHeartbeatResponse(
            True, 200, OK, event, not group.is_allocated, authorized_info=NOBODY, **self._rules(request)
        )

    def _register_v2(self, request: c.RegisterConsumerV2) -> c.RegisterConsumerV2Response:
        code, words = self._join(request, is_balanced=False)
        if code != 200:
            return c.RegisterConsumerV2Response(code, words)
        infos, ops = self._broker_infos, self._ops(request)
        return c.RegisterConsumerV2Response(200, OK, 1, infos, ops_task_info=ops, authorized_info=NOBODY)

    def _rules(self, known: Any) -> dict[str, Any]:
        """Return the group's rules, their text only to a client that lacks it."""
        none = {"def_flow_check_id": -2, "def_flow_control_info": " ", "ssd_store_id": -2, "qry_priority_id": -2}
        if not self.cluster.rules:
            return none | {"group_flow_check_id": -2, "group_flow_control_info": " "}
        text = " " if known.group_flow_check_id == RULES_ID else self.cluster.rules
        return none | {"group_flow_check_id": RULES_ID, "group_flow_control_info": text, "qry_priority_id": 301}

    def _ops(self, request: Any) -> c.OpsTaskInfo:
        found = self._rules(request.ops_task_info)
        if found["group_flow_check_id"] != RULES_ID:
            return c.OpsTaskInfo()
        text = found["group_flow_control_info"].strip() or None
        return c.OpsTaskInfo(group_flow_check_id=RULES_ID, group_flow_control_info=text, qry_priority_id=301)

    def _metadata(self, request: c.GetPartMeta) -> c.GetPartMetaResponse:
        member = self._member(request)
        if member is None:
            return c.GetPartMetaResponse(411, f"Not found groupName {request.group_name} in holder!")
        infos = tuple(
            f"{name}#" + ",".join(f"{n}:{topic.stores}:{topic.partitions}:1" for n in known)
            for name in member.topics
            if (known := self._brokers_of(name)) and (topic := self.cluster.topics[name])
        )
        return c.GetPartMetaResponse(200, OK, 1, 1, infos, self._broker_infos)

    # -- assignment of partitions

    @staticmethod
    def _leave(group: Group, client_id: str) -> None:
        group.members.pop(client_id, None)
        group.starts = {place: member for place, member in group.starts.items() if member != client_id}

    def _expire(self) -> None:
        now = self.world.now
        for group in self.groups.values():
            for client_id, member in list(group.members.items()):
                if now - member.heard_at > MEMBER_SECONDS:
                    self._leave(group, client_id)
        for name, group in list(self.groups.items()):
            if not group.members:
                del self.groups[name]
        for client_id, heard_at in list(self.producers.items()):
            if now - heard_at > MEMBER_SECONDS:
                del self.producers[client_id]

    def _balance(self) -> None:
        self._expire()
        if self.world.now < self._loaded_at:
            return
        for name, group in self.groups.items():
            members = [member for _, member in sorted(group.members.items()) if member.is_balanced]
            if not members:
                continue
            if any(member.events for member in members):
                group.rounds += 1
                if group.rounds < FROZEN_ROUNDS:
                    continue
                for member in members:
                    member.events.clear()
                    member.is_sent = False
            group.rounds = 0
            session = members[0].session
            if session is not None and group.starts and not group.is_allocated and group.times_started < 2:
                if len(members) >= session[1]:
                    group.times_started += 1
                    for member in members:
                        if mine := sorted(place for place, who in group.starts.items() if who == member.client_id):
                            self._add_event(name, member, c.EventType.ONLY_CONNECT, mine)
                continue
            self._share_out(name, members)

    def _share_out(self, group: str, members: list[Member]) -> None:
        places = sorted(
            (topic, number, partition)
            for topic in members[0].topics
            for number in self.cluster.topics[topic].brokers
            for partition in self.cluster.topics[topic].partition_ids
        )
        fewest, more = divmod(len(places), len(members))
        taken = {place for member in members for place in member.held}
        is_left = False
        for number, member in enumerate(members):
            wanted = fewest + (number < more)
            excess = sorted(member.held)[wanted:]
            if excess:
                is_left = True
                self._add_event(group, member, c.EventType.ONLY_DISCONNECT, excess)
        if is_left:
            return  # partitions are assigned once all excess ones have been released
        free = deque(place for place in places if place not in taken)
        for number, member in enumerate(members):
            count = max(0, fewest + (number < more) - len(member.held))
            given = [free.popleft() for _ in range(min(count, len(free)))]
            if given:
                self._add_event(group, member, c.EventType.ONLY_CONNECT, given)

    def _add_event(self, group: str, member: Member, kind: int, places: list[Place]) -> None:
        self._last_rebalance += 1
        if kind == c.EventType.ONLY_CONNECT and member.session is not None and not self.groups[group].is_allocated:
            self.cluster.unstarted |= dict.fromkeys(places, member.client_id)
        infos = tuple(
            f"{member.client_id}@{group}#{self.cluster.brokers[number - 1].info}#{topic}:{partition}"
            for topic, number, partition in places
        )
        member.events.append(c.Event(self._last_rebalance, kind, None, infos))
        self.world.note(f"group {group}: {member.client_id[-8:]}: {c.EventType(kind).name} {places}")


def _places(infos: tuple[str, ...]) -> set[Place]:
    found = (BrokerPartition.parse(text) for text in infos)
    return {(one.topic, one.broker.broker_id, one.partition_id) for one in found}
