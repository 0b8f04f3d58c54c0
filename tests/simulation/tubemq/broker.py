"""A TubeMQ broker in the simulated world, which behaves as `BrokerServiceServer` of 2.4.0.

It identifies the clients of a partition by their ids only: the end of a connection has no effect.
"""

from __future__ import annotations

import zlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from tests.protobuf import tubemq as tubemq_pb
from tests.simulation.network import Stream, network
from tests.simulation.tubemq.link import Link
from tests.simulation.tubemq.store import ENTRY_BYTES, Message, Store

if TYPE_CHECKING:
    from tests.simulation.tubemq.cluster import Cluster, Topic

HOLD_SECONDS = 30.0
"""Seconds after which a silent consumer loses a partition (`consumerRegTimeoutMs`)."""

LATE_SECONDS = 1.0
"""Seconds for which a busy broker may still execute a fetch whose connection has ended (seen on 2.4.0)."""

OFFSETS_SECONDS = 5.0
"""Seconds between writes of committed positions to the disk."""

ENTRIES_A_FETCH = 12
"""Maximum number of index entries that one fetch scans: 4,000 in 2.4.0, fewer here so that a topic takes several."""

OK = "OK!"

REFUSALS = {
    c.RegisterPartition: c.RegisterPartitionResponse,
    c.GetMessage: c.GetMessageResponse,
    c.CommitOffset: c.CommitOffsetResponse,
    c.SendMessage: c.SendMessageResponse,
}
"""Responses that refuse a request whose topic the broker does not have, by the type of the request."""


@dataclass
class Holder:
    """The client that has a partition for a group."""

    client_id: str
    priority: int
    filters: frozenset[str]
    heard_at: float


class Broker:
    """One broker.

    Attributes:
        number: its id.
        address: `host:port`.
        is_up: whether its process runs.
        stores: by topic and number of the store.
        starts: how often its process has been started.
        started_at: the time of the last start.
        is_quiet: whether foreign producers do not publish to it.
        moved_back: partitions, with group and topic, whose position a kill moved back after a reader had left them.
        started_again: partitions, with group and topic, of which readers set the position a second time, to an earlier
            one: a start that a fault interrupts is repeated by the next member that gets the partition.
        taken_over: how many times a reader of a group registered a partition, with group and topic, that another one
            had not unregistered. A restarted broker has no readers registered, and a restarted master assigns a
            partition to another one: the first reader cannot have been notified.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.number = number
        self.address = f"127.0.0.{number}:{8123}"
        self.info = f"{number}:{self.address}"
        self.is_up = False
        self.starts = 0
        self.started_at = 0.0
        self.is_quiet = False
        self.stores: dict[tuple[str, int], Store] = {}
        self.links: list[Link] = []
        self.moved_back: set[tuple[str, str, int]] = set()
        self.started_again: set[tuple[str, str, int]] = set()
        self.taken_over: Counter[tuple[str, str, int]] = Counter()
        self._started: set[tuple[str, str, int]] = set()
        self._holders: dict[tuple[str, str, int], Holder] = {}
        self._never_left: dict[tuple[str, str, int], str] = {}
        self._positions: dict[tuple[str, str, int], int] = {}
        self._saved: dict[tuple[str, str, int], int] = {}
        self._left_since: set[tuple[str, str, int]] = set()
        """The partitions that a reader has left since positions were saved."""
        self._fetched: dict[tuple[str, str, int], int] = {}
        self._last_fetches: dict[Link, tuple[tuple[str, str, int], str, int]] = {}
        """The last fetch of each connection: the partition, with group and topic, the client id, and the length."""
        self._late_fetches: dict[tuple[str, str, int], tuple[float, int]] = {}
        """Fetches of ended connections: the time until which they may be executed, and their length."""
        self._dice = self.world.dice(f"broker {number}")
        self._last_message_id = 0
        self._forgets_until = 0.0
        self.start()

    # -- start and stop

    def start(self) -> None:
        """Start its process, with the data on the disk."""
        if self.is_up:
            return
        self.is_up = True
        self.starts += 1
        self.started_at = self.world.now
        self._holders.clear()
        for each in (self._fetched, self._last_fetches, self._late_fetches):
            each.clear()
        self._positions = dict(self._saved)
        network().listen(self.address, self._accept)
        self._tick(self.starts)
        self.world.note(f"broker {self.number} is up")

    def kill(self) -> None:
        """Kill it by SIGKILL: data in memory is lost."""
        self.moved_back |= {key for key in self._left_since if self._positions.get(key) != self._saved.get(key)}
        self._end()
        for store in self.stores.values():
            store.lose_memory()
        self.is_quiet = self.cluster.is_quiet_after_kills
        self.world.note(f"broker {self.number} is killed")

    def stop(self) -> None:
        """Stop it by SIGTERM: everything is written first."""
        for store in self.stores.values():
            store.write()
            store.force()
        self._saved = dict(self._positions)
        self._end()
        self.world.note(f"broker {self.number} is stopped")

    def stall(self, seconds: float) -> None:
        """Answer nothing for a time."""
        for link in self.links:
            link.stalled_until = max(link.stalled_until, self.world.now + seconds)

    def forget_topics(self, seconds: float) -> None:
        """Have no topic for a time: a master sent a list that it had not read completely."""
        self.world.note(f"broker {self.number} forgets its topics")
        self._forgets_until = max(self._forgets_until, self.world.now + seconds)

    def _end(self) -> None:
        self.is_up = False
        network().unlisten(self.address)
        links, self.links = self.links, []
        for link in links:
            link.close()

    def _tick(self, start: int) -> None:
        """Write memory to the file, force the file and save positions, each at its interval."""
        flush, force = self.cluster.flush_seconds, self.cluster.force_seconds

        def write() -> None:
            if self.is_up and self.starts == start:
                for store in self.stores.values():
                    store.write()
                self.world.after(flush, write)

        def force_all() -> None:
            if self.is_up and self.starts == start:
                for store in self.stores.values():
                    store.force()
                self.world.after(force, force_all)

        def save() -> None:
            if self.is_up and self.starts == start:
                self._saved = dict(self._positions)
                self._left_since.clear()
                self.world.after(OFFSETS_SECONDS, save)

        self.world.after(self._dice.random() * flush, write)
        self.world.after(self._dice.random() * force, force_all)
        self.world.after(self._dice.random() * OFFSETS_SECONDS, save)

    def _accept(self, stream: Stream) -> Link:
        link = Link(self.world, stream, self._handle, self._forget)
        self.links.append(link)
        return link

    def _forget(self, link: Link) -> None:
        if link in self.links:
            self.links.remove(link)
            key, client_id, length = self._last_fetches.pop(link, ((), "", 0))
            holder = self._holders.get(key)
            if holder is not None and holder.client_id == client_id:
                self._late_fetches[key] = self.world.now + LATE_SECONDS, length

    # -- requests

    def _handle(self, link: Link, request: Any) -> Any:  # noqa: PLR0911 - one line a request
        if self.world.now < self._forgets_until and request.__class__ in REFUSALS:
            # All requests but the heartbeat look the topic up (2.4.0).
            words = f"topicName {request.topic_name} not existed, please check your configure"
            return REFUSALS[request.__class__](False, 403, words)
        match request:
            case c.RegisterPartition() if request.op_type == c.RegisterType.REGISTER:
                return self._register(request)
            case c.RegisterPartition():
                return self._unregister(link, request)
            case c.BrokerHeartbeat():
                return self._heartbeat(request)
            case c.GetMessage():
                return self._get(link, request)
            case c.CommitOffset():
                return self._commit(request)
            case c.SendMessage():
                return self._send(link, request)
        raise AssertionError(f"a broker does not handle {request}")

    def store(self, topic: str, partition: int) -> Store:
        """Return the store of a partition; create it on first use."""
        return self.stores.setdefault((topic, partition // 10_000), Store())

    def remove(self, topic: str, store: Store, before: int) -> None:
        """Remove old messages of a topic's store."""
        store.remove(before, with_index=not self.cluster.keeps_index or self.cluster.topics[topic].partitions > 1)

    def _topic(self, name: str) -> Topic | None:
        topic = self.cluster.topics.get(name)
        return topic if topic is not None and self.number in topic.brokers else None

    def _register(self, request: c.RegisterPartition) -> c.RegisterPartitionResponse:
        topic = self._topic(request.topic_name)
        if topic is None:
            return c.RegisterPartitionResponse(False, 403, f"Topic {request.topic_name} not existed", -1)
        key = request.group_name, request.topic_name, request.partition_id
        holder = self._holders.get(key)
        now = self.world.now
        if holder is not None and holder.client_id != request.client_id:
            if now - holder.heard_at > HOLD_SECONDS:
                # The refused client tries again.
                del self._holders[key]
                self._fetched.pop(key, None)
                words = f"[Duplicated Register] Remove Invalid Consumer Register {holder.client_id}"
            else:
                words = f"[Duplicated Register] Partition {key} has been registered by {holder.client_id}"
            return c.RegisterPartitionResponse(False, 410, words, -1)
        priority = 300 if request.qry_priority_id is None else request.qry_priority_id
        self._holders[key] = Holder(request.client_id, priority, frozenset(request.filter_cond_str), now)
        if self._never_left.setdefault(key, request.client_id) != request.client_id:
            self.taken_over[key] += 1
            self._never_left[key] = request.client_id
        if request.partition_id not in topic.partition_ids:
            return c.RegisterPartitionResponse(False, 500, "Register broker failure!", -1)
        store = self.store(request.topic_name, request.partition_id)
        self._fetched.pop(key, None)
        from_first = request.read_status == c.ReadStatus.STORED_OR_MIN
        position = self._positions.setdefault(key, store.first if from_first else store.end)
        if request.curr_offset is not None and request.curr_offset >= 0:
            wanted = request.curr_offset - request.curr_offset % ENTRY_BYTES
            if wanted < position and key in self._started:
                self.started_again.add(key)
            self._started.add(key)
            position = self._positions[key] = min(max(wanted, store.first), store.end)
        return c.RegisterPartitionResponse(True, 200, OK, position, self._end_for(store, priority))

    @staticmethod
    def _end_for(store: Store, priority: int) -> int:
        return store.forced if priority <= 1 else store.end

    def _unregister(self, link: Link, request: c.RegisterPartition) -> c.RegisterPartitionResponse:
        key = request.group_name, request.topic_name, request.partition_id
        if link not in self.links:
            # One thread carries out the requests of a connection, in their order, so its last fetch is over (2.4.0).
            self._late_fetches.pop(key, None)
        holder = self._holders.get(key)
        if holder is None:
            return c.RegisterPartitionResponse(False, 411, "UnRegistered Consumer", -1)
        if holder.client_id != request.client_id:
            return c.RegisterPartitionResponse(False, 412, f"has been consumed by {holder.client_id}", -1)
        self._commit_fetched(key, consumed=request.read_status == c.ReadStatus.STORED_OR_MIN)
        del self._holders[key]
        self._never_left.pop(key, None)
        self._left_since.add(key)
        return c.RegisterPartitionResponse(True, 200, OK, -1)

    def _heartbeat(self, request: c.BrokerHeartbeat) -> c.BrokerHeartbeatResponse:
        failures = []
        for text in request.partition_info:
            one = BrokerPartition.parse(text)
            holder = self._holders.get((request.group_name, one.topic, one.partition_id))
            if holder is None:
                failures.append(f"411:{text}")
            elif holder.client_id != request.client_id:
                failures.append(f"412:{text}")
            else:
                holder.heard_at = self.world.now
                holder.priority = 300 if request.qry_priority_id is None else request.qry_priority_id
        return c.BrokerHeartbeatResponse(True, 200, OK, bool(failures), tuple(failures))

    def _get(self, link: Link, request: c.GetMessage) -> c.GetMessageResponse:
        key = request.group_name, request.topic_name, request.partition_id
        holder = self._holders.get(key)
        if holder is None:
            return c.GetMessageResponse(False, 411, "UnRegistered Consumer")
        if holder.client_id != request.client_id:
            return c.GetMessageResponse(False, 412, f"has been consumed by {holder.client_id}")
        holder.heard_at = self.world.now
        store = self.store(request.topic_name, request.partition_id)
        if request.last_pack_consumed:
            self._commit_fetched(key, consumed=True)
        position = self._positions.get(key, 0)
        end = self._end_for(store, holder.priority)
        if removed := self.cluster.removals.get(self.world.count("fetches")):
            self.remove(request.topic_name, store, position + ENTRY_BYTES * removed)
        if self._dice.random() < self.cluster.limits:
            return c.GetMessageResponse(False, 452, "limited", -1, 200)
        if position >= end:
            self._positions[key] = min(position, store.end)
            return c.GetMessageResponse(False, 404, "The request offset reached maxOffset!", -1, 113_033)
        if position < store.first:
            position = self._positions[key] = store.first
        from_file = position < store.file_end
        there = (store.file_end if from_file else store.end) - position
        entries = min(there // ENTRY_BYTES, ENTRIES_A_FETCH)
        if from_file:
            entries = -(-entries // 2)  # reads of the file go through half of the index that they load
        scanned = store.scan(position, entries, from_file=from_file)
        if len(scanned) > 1 and self._dice.random() < 0.2:
            scanned = scanned[: self._dice.randrange(1, len(scanned))]  # as with large messages
        self._fetched[key] = ENTRY_BYTES * len(scanned)
        self._last_fetches[link] = key, request.client_id, self._fetched[key]
        # Messages without data are left out, whatever their partition (source of 2.4.0).
        with_data = [m for n, m in enumerate(scanned) if position + ENTRY_BYTES * n >= store.data_first]
        found = [m for m in with_data if m.partition == request.partition_id and _passes(m, holder.filters)]
        if not found and self._dice.random() < 0.5:
            return c.GetMessageResponse(False, 404, "no message", -1)
        return c.GetMessageResponse(True, 200, OK, position, body=memoryview(_body(position, store, found)))

    def _commit(self, request: c.CommitOffset) -> c.CommitOffsetResponse:
        key = request.group_name, request.topic_name, request.partition_id
        holder = self._holders.get(key)
        if holder is None or holder.client_id != request.client_id:
            return c.CommitOffsetResponse(False, 401, "The partition not registered by consumers")
        until, length = self._late_fetches.pop(key, (0.0, 0))
        if self.world.now < until:
            # It passed the check of the holder before the connection ended, and sets the length after the holder's own.
            self._fetched[key] = length
        position = self._commit_fetched(key, consumed=request.last_pack_consumed)
        end = self._end_for(self.store(request.topic_name, request.partition_id), holder.priority)
        return c.CommitOffsetResponse(True, 200, OK, position, end)

    def _commit_fetched(self, key: tuple[str, str, int], *, consumed: bool) -> int:
        fetched = self._fetched.pop(key, 0)
        if consumed:
            self._positions[key] = self._positions.get(key, 0) + fetched
        return self._positions.get(key, 0)

    def _send(self, link: Link, request: c.SendMessage) -> c.SendMessageResponse:
        topic = self._topic(request.topic_name)
        if topic is None or request.partition_id not in topic.partition_ids:
            return c.SendMessageResponse(False, 403, f"Topic {request.topic_name} not existed")
        data = bytes(request.data)
        assert request.check_sum == zlib.crc32(data) & 0x7FFFFFFF
        if self._dice.random() < self.cluster.overflows:
            return c.SendMessageResponse(False, 419, "overflow")
        message = Message(
            request.partition_id,
            self.next_message_id(),
            data,
            request.flag,
            request.check_sum,
            request.msg_type,
            link.stream.number,
        )
        position = self.store(request.topic_name, request.partition_id).append(message)
        now_ms = int(self.world.wall * 1000)
        return c.SendMessageResponse(True, 200, OK, False, message.message_id, now_ms, position)

    def next_message_id(self) -> int:
        """Return the id of the next message; ids repeat, and are not in order (2.4.0)."""
        self._last_message_id += 1
        return (self._last_message_id * 7919) % 1009

    def seek(self, key: tuple[str, str, int], position: int) -> None:
        """Set the position of a group in a partition, as readers of an earlier time left it."""
        self._positions[key] = self._saved[key] = position

    # -- observations

    def position(self, group: str, topic: str, partition: int) -> int | None:
        """Return the position of a group in a partition."""
        return self._positions.get((group, topic, partition))

    def holders(self) -> list[tuple[str, str, int]]:
        """Return the partitions whose holder has not timed out, with group and topic."""
        return [key for key, one in self._holders.items() if self.world.now - one.heard_at <= HOLD_SECONDS]


def _passes(message: Message, filters: frozenset[str]) -> bool:
    return not filters or message.type in filters


def _body(position: int, store: Store, messages: list[Message]) -> bytes:
    head = tubemq_pb.GetMessageResponse(
        success=True,
        err_code=200,
        err_msg=OK,
        curr_offset=position,
        esc_flow_ctrl=False,
        curr_data_dlt=store.end - position,
        max_offset=store.end,
    ).SerializeToString()
    stored = [
        tubemq_pb.TransferedMessage(
            message_id=m.message_id, check_sum=m.check_sum, pay_load_data=m.payload, flag=m.flag
        )
        for m in messages
    ]
    return head + tubemq_pb.TransferedMessages(messages=stored).SerializeToString()
