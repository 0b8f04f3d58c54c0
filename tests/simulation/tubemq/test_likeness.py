"""Likeness of the model of TubeMQ to the real servers: one script per fact, run on both, with equal observations."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from brokers.tubemq import TubeCluster
from brokers.tubemq_admin import Topic as RealTopic
from spark_mq_source.core.errors import BrokerError
from spark_mq_source.core.options import WRITE
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.group_members import GroupMember
from spark_mq_source.tubemq.options import FLUSHED_ONLY, WITH_MEMORY, TubeMQOptions
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from tests.fix_tubemq import Shape, TubeUnderTest, start_or_skip
from tests.protobuf import tubemq as tubemq_pb
from tests.simulation import standins
from tests.simulation.tubemq.cluster import Cluster, Topic
from tests.simulation.world import World

ANY_CODE = range(1000)
PATIENCE_S = 60.0


Lab = Any
"""A cluster: `SimulatedLab` or `RealLab`."""
Script = Callable[[Lab], list[Any]]
SCRIPTS: dict[str, Script] = {}


def script(run: Script) -> Script:
    """Register a fact."""
    SCRIPTS[run.__name__] = run
    return run


def wait_until(lab: Lab, condition: Callable[[], bool], seen: object = None) -> None:
    """Poll until a condition holds; fail with `seen` on a timeout."""
    for _ in range(int(PATIENCE_S / 0.05)):
        if condition():
            return
        lab.pause()
    raise AssertionError(seen)


class Desk:
    """Requests to one broker about one topic, which return the relevant parts of the answers."""

    def __init__(self, lab: Lab, topic: str, group: str, *, broker: int = 1) -> None:
        self.lab, self.topic, self.group = lab, topic, group
        self.where = lab.broker(broker)

    def ask(self, request: Any) -> Any:
        (answer,) = self.lab.client.broker(self.where).call(request, accepted=ANY_CODE)
        return self.lab.client.wait(answer, "an answer")

    def register(
        self, client: str, at: int | None = None, *, partition: int = 0, status: int = 0, prio: int = 303
    ) -> Any:
        """Register; return the code, the position and the end."""
        answer = self.ask(
            c.RegisterPartition(31, client, self.group, self.topic, partition, status, (), at, qry_priority_id=prio)
        )
        return answer.err_code, answer.curr_offset, answer.max_offset

    def leave(self, client: str, *, partition: int = 0, status: int = 1) -> int:
        return int(self.ask(c.RegisterPartition(32, client, self.group, self.topic, partition, status)).err_code)

    def get(self, client: str, *, partition: int = 0, last: bool = False) -> Any:
        """Fetch; return the code, the start position, and the values."""
        answer = self.ask(c.GetMessage(client, partition, self.group, self.topic, last))
        values = [m.pay_load_data for m in tubemq_pb.TransferedMessages.FromString(bytes(answer.body)).messages]
        return answer.err_code, answer.curr_offset, values

    def commit(self, client: str, *, partition: int = 0, last: bool = True) -> Any:
        answer = self.ask(c.CommitOffset(client, self.topic, partition, self.group, last))
        return answer.err_code, answer.curr_offset

    def beat(self, client: str, *, partition: int = 0, prio: int = 303) -> list[str]:
        """Send a heartbeat; return the codes of the failures."""
        place = str(BrokerPartition(self.where, self.topic, partition))
        answer = self.ask(c.BrokerHeartbeat(client, self.group, (place,), qry_priority_id=prio))
        return [text.partition(":")[0] for text in answer.failure_info]

    def send(self, *values: bytes, partition: int = 0) -> list[int]:
        """Send values; return the codes."""
        found = []
        for value in values:
            answer = self.ask(
                c.SendMessage("producer", self.topic, partition, value, 0, zlib.crc32(value) & 0x7FFFFFFF, 0)
            )
            found.append(int(answer.err_code))
        return found

    def until_flushed(self, entries: int) -> None:
        """Wait until this number of messages is on the disk."""

        def are_flushed() -> bool:
            _, _, end = self.register("flushed", 0, prio=FLUSHED_ONLY)
            self.leave("flushed")
            return bool(end >= 28 * entries)

        wait_until(self.lab, are_flushed)

    def read(self, client: str, *, partition: int = 0) -> tuple[list[bytes], list[int]]:
        """Read by pairs of fetch and commit; return all values, the end, and the code and start of one more fetch."""
        values: list[bytes] = []
        end = self.register(client, 0, partition=partition)[2]
        at = 0
        while at < end:
            got, committed = self.get(client, partition=partition), self.commit(client, partition=partition)
            if got[0] == 200:
                assert got[1] == at, "a fetch begins where the one before ended"
            values += got[2]
            at = committed[1]
        after = self.get(client, partition=partition)
        self.leave(client, partition=partition)
        return values, [at, after[0], after[1]]


@script
def start_positions_of_registrations(lab: Lab) -> list[Any]:
    desk = Desk(lab, lab.topic(), lab.group())
    desk.send(*[b"%d" % n for n in range(5)])
    desk.until_flushed(5)
    found = [desk.register("a", at) for at in (0, 56, 57, 83, 10_000)]
    return [*found, desk.register("a"), desk.register("a", -5), desk.register("a", 28), desk.register("a")]


@script
def start_positions_of_new_groups(lab: Lab) -> list[Any]:
    topic = lab.topic()
    Desk(lab, topic, lab.group()).send(b"1", b"2")
    first, last = Desk(lab, topic, lab.group()), Desk(lab, topic, lab.group())
    return [first.register("a", status=0)[:2], last.register("a", status=1)[:2], last.register("a", status=0)[:2]]


@script
def a_partition_has_one_holder(lab: Lab) -> list[Any]:
    desk = Desk(lab, lab.topic(), lab.group())
    desk.send(b"1", b"2")
    found: list[Any] = [desk.register("a", 0)[0], desk.register("b", 0)[:2]]
    found += [desk.get("b")[0], desk.commit("b")[0], desk.leave("b"), desk.beat("b"), desk.beat("a")]
    # Any client may unregister a partition in the holder's name.
    found += [desk.leave("a"), desk.get("a")[0], desk.commit("a")[0], desk.beat("a"), desk.leave("a")]
    found += [desk.register("b", 0)[0], desk.get("a")[0], desk.register("a", 0)[0], desk.get("b")[:2]]
    return found


@script
def the_same_client_moves_its_own_cursor(lab: Lab) -> list[Any]:
    desk = Desk(lab, lab.topic(), lab.group())
    desk.send(b"1", b"2", b"3")
    desk.until_flushed(3)
    return [desk.register("a", 0), desk.register("a", 56), desk.get("a"), desk.commit("a"), desk.get("a")[:2]]


@script
def commits_follow_fetches(lab: Lab) -> list[Any]:
    desk = Desk(lab, lab.topic(), lab.group())
    desk.send(b"1")
    desk.until_flushed(1)
    found: list[Any] = [desk.register("a", 0)]
    found += [desk.get("a"), desk.get("a")]  # without a commit the same comes again
    found += [desk.commit("a", last=False), desk.get("a"), desk.commit("a"), desk.commit("a"), desk.get("a")[:2]]
    found += [desk.register("a", 0), desk.get("a"), desk.leave("a", status=1), desk.register("a")]
    found += [desk.get("a"), desk.leave("a", status=0), desk.register("a")]
    desk.register("a", 0)
    found += [desk.get("a")[0], desk.get("a", last=True)[:2]]  # this one commits the fetch before
    return found


@script
def partitions_of_a_store_share_its_index(lab: Lab) -> list[Any]:
    desk = Desk(lab, lab.topic(3, stores=2), lab.group())
    sent = [desk.send(b"%d.%d" % (partition, n), partition=partition) for n in range(7) for partition in (0, 1, 10_000)]
    desk.until_flushed(14)
    return [sent, *(desk.read(f"r{partition}", partition=partition) for partition in (0, 1, 2, 10_000, 10_001))]


@script
def unknown_topics_partitions_and_readers_are_refused(lab: Lab) -> list[Any]:
    topic = lab.topic()
    desk, elsewhere = Desk(lab, topic, lab.group()), Desk(lab, "no_such_topic", lab.group())
    return [
        elsewhere.register("a", 0)[0],
        elsewhere.send(b"1"),
        desk.register("a", 0, partition=7)[0],
        desk.send(b"1", partition=7),
        desk.get("nobody", partition=0)[0],
        desk.commit("nobody")[0],
    ]


@script
def messages_in_memory_are_read_only_on_request(lab: Lab) -> list[Any]:
    desk = Desk(lab, lab.topic(broker=2), lab.group(), broker=2)
    sent = desk.send(b"1", b"2", b"3")
    found: list[Any] = [sent, desk.register("a", 0, prio=FLUSHED_ONLY), desk.get("a")[:2]]
    found += [desk.register("a", 0, prio=WITH_MEMORY), desk.get("a"), desk.commit("a")]
    # A heartbeat sets the priority again.
    desk.register("a", 0, prio=WITH_MEMORY)
    found += [desk.beat("a", prio=FLUSHED_ONLY), desk.get("a")[:2]]
    return found


@script
def offsets_are_reused_after_a_crash(lab: Lab) -> list[Any]:
    desk = Desk(lab, lab.topic(broker=2), lab.group(), broker=2)
    found: list[Any] = [desk.send(b"1", b"2", b"3"), desk.register("a", 0)]
    lab.crash(2)
    found += [desk.register("a", 84), desk.send(b"other"), desk.register("a", 0)]
    return found


def at_master(lab: Lab, request: Any) -> Any:
    try:
        return lab.client.masters.ask(request)
    except BrokerError as error:
        return SimpleNamespace(err_code=error.code)


@script
def members_of_a_group_are_alike(lab: Lab) -> list[Any]:
    one, other, group, shared = lab.topic(), lab.topic(), lab.group(), lab.group()

    def v2(client: str, group_: str, topics: tuple[str, ...], conditions: tuple[str, ...] = ()) -> int:
        asked = c.RegisterConsumerV2(client, group_, "127.0.0.1", topics, topic_condition=conditions)
        return int(at_master(lab, asked).err_code)

    def v1(client: str, group_: str) -> int:
        request = c.RegisterConsumer(
            client, group_, "127.0.0.1", (one,), require_bound=False, total_count=-1, required_partition="",
            not_allocated=True, select_big=True, session_time=1, group_flow_check_id=-2, def_flow_check_id=-2,
            qry_priority_id=-2, jdk_version="",
        )  # fmt: skip
        return int(at_master(lab, request).err_code)

    found = [v2("a", group, (one,)), v2("b", group, (one,)), v2("c", group, (other,)), v1("d", group)]
    found += [v2("e", group, (one,), (f"{one}#x",)), v2("f", group, ("no_such_topic",))]
    found += [v1("a", shared), v2("b", shared, (one,))]
    found += [int(at_master(lab, c.GetPartMeta("stranger", group)).err_code)]
    found += [int(at_master(lab, c.ConsumerHeartbeatV2("a", group)).err_code)]
    for client, group_ in (("a", group), ("b", group), ("a", shared)):
        found.append(int(at_master(lab, c.CloseConsumer(client, group_)).err_code))
    found += [int(at_master(lab, c.ConsumerHeartbeatV2("a", group)).err_code)]
    return found


@script
def answers_to_a_producer(lab: Lab) -> list[Any]:
    topic = lab.topic(3, stores=2)
    registered = at_master(lab, c.RegisterProducer("p", (), "127.0.0.1", jdk_version=""))
    beat = at_master(lab, c.ProducerHeartbeat("p", (topic,), "127.0.0.1"))
    stranger = at_master(lab, c.ProducerHeartbeat("stranger", (topic,), "127.0.0.1"))
    numbers = sorted(int(info.partition(":")[0]) for info in registered.broker_infos)
    infos = [info.replace(topic, "T") for info in beat.topic_infos]
    return [numbers, infos, stranger.err_code, at_master(lab, c.CloseProducer("p")).err_code]


@script
def partitions_are_balanced_between_members(lab: Lab) -> list[Any]:
    topic, group = lab.topic(3), lab.group()
    log: list[Any] = []

    def note(name: str, what: str) -> Callable[[Any], Any]:
        def take(places: Any) -> Any:
            log.append((name, what, len(places)))
            return places

        return take

    def join(name: str) -> Any:
        masters = lab.client.masters
        return lab.client.enter(GroupMember(masters, group, [topic], (), note(name, "takes"), note(name, "leaves")))

    first = join("first")
    wait_until(lab, lambda: len(first.assignment) == 3, log)
    second = join("second")
    wait_until(lab, lambda: len(second.assignment) == 1, log)
    first.close()
    wait_until(lab, lambda: len(second.assignment) == 3, log)
    second.close()
    return log


@script
def a_partition_that_a_member_gives_up_is_assigned_again(lab: Lab) -> list[Any]:
    topic, group = lab.topic(2), lab.group()
    given: list[list[int]] = []

    def take(places: Any) -> Any:
        given.append(sorted(place.partition_id for place in places))
        return places

    member = lab.client.enter(GroupMember(lab.client.masters, group, [topic], (), take, lambda places: places))

    def has_both_after(events: int) -> bool:
        return len(given) == events and len(member.assignment) == 2

    wait_until(lab, lambda: has_both_after(1), given)
    member.give_up(max(member.assignment, key=lambda place: place.partition_id))
    wait_until(lab, lambda: has_both_after(2), given)
    member.close()
    return given


# -- the two labs


class SimulatedLab:
    """The model. Broker 1 forces each message to its disk at once; broker 2 keeps messages in memory."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.cluster = Cluster(world, brokers=2, flush_seconds=1000.0, balance_seconds=1.0)
        world.sleep(6.0)  # the master of the real lab has known its brokers' topics for long
        self._options = TubeMQOptions.from_spark({"masters": self.cluster.addresses}, WRITE)
        self.client = TubeMQClient(self._options)
        self._keep_flushing()

    def _keep_flushing(self) -> None:
        for store in self.cluster.brokers[0].stores.values():
            store.write()
            store.force()
        self.world.after(0.01, self._keep_flushing)

    def topic(self, partitions: int = 1, *, stores: int = 1, broker: int = 1) -> str:
        name = f"t{len(self.cluster.topics)}"
        self.cluster.create(Topic(name, stores, partitions, (broker,)))
        return name

    def broker(self, number: int) -> Broker:
        return Broker.parse(self.cluster.brokers[number - 1].info)

    def group(self) -> str:
        return f"g{self.world.count('groups')}"

    def pause(self) -> None:
        self.world.sleep(0.05)

    def crash(self, number: int) -> None:
        self.cluster.brokers[number - 1].kill()
        self.world.sleep(1.0)
        self.cluster.brokers[number - 1].start()


class RealLab:
    """Real servers."""

    def __init__(self, tubemq: TubeUnderTest) -> None:
        self.tubemq = tubemq
        self.client = TubeMQClient(TubeMQOptions.from_spark({"masters": tubemq.masters}, WRITE))

    def topic(self, partitions: int = 1, *, stores: int = 1, broker: int = 1) -> str:
        return self.tubemq.topic(partitions, stores=stores, brokers=(broker,))

    def broker(self, number: int) -> Broker:
        return Broker.parse(f"{number}:{self.tubemq.cluster.broker(number).address}")

    def group(self) -> str:
        return self.tubemq.group()

    def pause(self) -> None:
        threading.Event().wait(0.05)  # servers have no event for this

    def crash(self, number: int) -> None:
        self.tubemq.cluster.restart_broker(number, crash=True)


def on_the_model(name: str) -> list[Any]:
    """Return the observations on the model."""
    standins.install()
    try:
        standins.reset()
        world = World(1)

        def main() -> list[Any]:
            lab = SimulatedLab(world)
            try:
                return SCRIPTS[name](lab)
            finally:
                lab.client.close()

        with world.running():
            return world.run(main)
    finally:
        standins.uninstall()


OFFSETS_AGAIN = "offsets_are_reused_after_a_crash"


@contextmanager
def real_lab(tubemq: TubeUnderTest) -> Iterator[RealLab]:
    lab = RealLab(tubemq)
    try:
        yield lab
    finally:
        lab.client.close()


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != OFFSETS_AGAIN])
def test_the_model_does_what_the_servers_do(name: str, tubemq: TubeUnderTest) -> None:
    with real_lab(tubemq) as lab:
        observed = SCRIPTS[name](lab)
    assert on_the_model(name) == observed


@pytest.mark.slow
def test_the_model_crashes_as_a_broker_does(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> None:
    topics = [RealTopic(f"crash_{n}", brokers=(2,)) for n in range(2)]
    cluster = TubeCluster(tmp_path_factory.mktemp("tubemq-likeness"), broker_count=2, topics=topics)
    start_or_skip(pytestconfig, cluster)
    try:
        under_test = TubeUnderTest(cluster, {Shape(brokers=(2,)): [topic.name for topic in topics]})
        with real_lab(under_test) as lab:
            observed = SCRIPTS[OFFSETS_AGAIN](lab)
    finally:
        cluster.remove()
    assert on_the_model(OFFSETS_AGAIN) == observed
