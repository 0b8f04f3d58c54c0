"""Scenarios of TubeMQ in the simulated world: ways to use the package, faults, and oracles."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import DataLossError, MQSourceError, TopicNotFoundError
from spark_mq_source.tubemq.format import TubeMQFormat
from spark_mq_source.tubemq.offsets import TopicPartition
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.read.reader import TubeMQRange
from spark_mq_source.tubemq.read.stream import TubeMQStream
from tests.simulation.clockwork import here
from tests.simulation.explore import (
    Fault,
    Plan,
    Scenario,
    ViolationError,
    check_allowed,
    check_letters,
    check_nothing_runs,
    common_faults,
)
from tests.simulation.queues import check_replays
from tests.simulation.spark import (
    Checkpoint,
    DriverKilledError,
    Executors,
    JobFailedError,
    Query,
    in_small_tasks,
    read_task,
    waiting_for_rows,
    write,
)
from tests.simulation.spark import _reading as reading_attempt
from tests.simulation.tubemq.cluster import Cluster, Topic
from tests.simulation.tubemq.store import ENTRY_BYTES
from tests.simulation.world import World

FORMAT = TubeMQFormat()

SCHEMA = pa.schema(
    [("topic", pa.string()), ("broker_id", pa.int32()), ("partition", pa.int32()), ("value", pa.binary())]
)

TYPES = ("a", "b")

DEAD = "dead"
"""The topic of dead letters."""

EXECUTORS = ("executor-0", "executor-1", "executor-2")

SERVERS = ("kill_broker", "stop_broker", "stall_broker", "kill_master")

PATIENCE_SECONDS = 900.0
"""Seconds after the last message within which a group must read everything, after any faults."""

MAX_RUNS = 12
"""Maximum number of lives of a query's driver: each fault ends one at most."""

Row = tuple[TopicPartition, bytes]


# -- faults


def cluster_faults(dice: Random, *, kinds: Sequence[str], seconds: float) -> Iterator[Fault]:
    """Yield a few faults of the cluster, or none."""
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        kind = dice.choice(kinds)
        yield Fault(kind, at=round(dice.random() * seconds, 3), args=(dice.randrange(2), dice.choice((0.5, 5.0, 20.0))))


def arrange(world: World, cluster: Cluster, faults: Sequence[Fault]) -> None:
    """Schedule the faults of the cluster, at times from now on.

    - `kill_broker`, `stop_broker`, `kill_master`: number, seconds until it runs again.
    - `stall_broker`: number, seconds for which it answers nothing.
    - `lose_session`: number of a master, seconds for which it does not lead; then it reads its configuration.
    - `remove`: number, and the fraction of the messages in its stores to remove, in 20ths.
    - `remove_fetched`: number of a fetch, and the number of messages to remove from its position on.
    """
    cluster.removals.update(fault.args for fault in faults if fault.kind == "remove_fetched")
    for fault in faults:
        call = _cluster_fault(cluster, fault)
        if call is not None:
            world.after(fault.at, call)


def _cluster_fault(cluster: Cluster, fault: Fault) -> Callable[[], None] | None:
    if fault.kind not in {*SERVERS, "lose_session", "remove"}:
        return None
    number, amount = fault.args
    broker = cluster.brokers[number % len(cluster.brokers)]
    master = cluster.masters[number % len(cluster.masters)]

    def happen() -> None:
        if fault.kind == "kill_master" and master.is_up:
            master.kill()
            cluster.world.after(amount, master.start)
        elif fault.kind == "lose_session":
            master.lose_session(amount)
        elif fault.kind == "stall_broker":
            broker.stall(amount)
        elif fault.kind == "remove":
            for (topic, _), store in broker.stores.items():
                entries = (store.forced - store.first) // ENTRY_BYTES
                broker.remove(topic, store, store.first + ENTRY_BYTES * int(entries * amount / 20))
        elif fault.kind in {"kill_broker", "stop_broker"} and broker.is_up:
            broker.kill() if fault.kind == "kill_broker" else broker.stop()
            cluster.world.after(amount, broker.start)

    return happen


def check_nothing_leaks(world: World, cluster: Cluster) -> None:
    """Check that a minute after a run its processes have no open connection and no partition.

    Raises:
        ViolationError: they have.
    """
    world.rest(80.0)  # a process that was stopped still has its timeouts to wait for
    for server in (*cluster.masters, *cluster.brokers):
        for link in server.links:
            if link.stream.process.alive and not link.stream.muted:
                raise ViolationError(f"{link.stream.process} still has a connection to {server.address}")
    for broker in cluster.brokers:
        if broker.holders():
            raise ViolationError(f"broker {broker.number} still has readers: {broker.holders()}")
    check_nothing_runs(world)


# -- the cluster and its messages


def make_cluster(world: World, plan: Plan) -> Cluster:
    """Return a cluster of drawn size, with topics of drawn shape."""
    dice = world.dice("scenario")
    kills = any(fault.kind == "kill_master" for fault in plan.faults)
    cluster = Cluster(
        world,
        brokers=dice.choice((1, 1, 2)),
        masters=2 if kills else dice.choice((1, 2)),
        flush_seconds=dice.choice((0.3, 2.0, 5.0)),
        force_seconds=dice.choice((0.1, 1.0)),
        balance_seconds=dice.choice((1.0, 3.0)),
    )
    cluster.limits = dice.choice((0.0, 0.0, 0.1))
    if world.dice("rules").random() < 0.2:
        paces = {"normFreqInMs": 50, "filterFreqInMs": 80, "minDataFilterFreqInMs": 100}
        rules = [{"type": 1, "rule": [{"zeroCnt": 1, "freqInMs": 400}]}, {"type": 3, "rule": [paces]}]
        cluster.rules = json.dumps(rules)
    cluster.overflows = dice.choice((0.0, 0.0, 0.1))
    everywhere = tuple(broker.number for broker in cluster.brokers)
    for n in range(dice.choice((1, 1, 2))):
        name = f"t{n}"
        brokers = dice.choice(((1,), everywhere))
        cluster.create(Topic(name, dice.choice((1, 1, 2)), dice.choice((1, 2, 3)), brokers))
    return cluster


class Producer:
    """A foreign producer, which publishes every value once.

    Args:
        cluster: receives the messages.
        bad: the number of every seven values that are not UTF-8.
        types: the types that messages are drawn from.
    """

    def __init__(self, cluster: Cluster, *, bad: int = 0, types: Sequence[str | None] = (None, *TYPES)) -> None:
        self.cluster = cluster
        self._bad = bad
        self._types = types
        self.published = 0
        self._dice = cluster.world.dice("producer")
        self._places = [
            (topic.name, number, partition)
            for topic in cluster.topics.values()
            if topic.name != DEAD
            for number in topic.brokers
            for partition in topic.partition_ids
        ]

    def publish(self, count: int) -> None:
        """Publish this number of messages to drawn partitions."""
        for _ in range(count):
            topic, number, partition = self._dice.choice(self._places)
            value = f"{self.published}".encode().ljust(self._dice.choice((0, 0, 40)), b".")
            if self.published * 3 % 7 < self._bad:
                value = b"\xff" + value
            self.cluster.publish(topic, number, partition, [value], self._dice.choice(self._types))
            self.published += 1

    def keep_publishing(self, rounds: int, seconds: float) -> None:
        """Publish some messages in each of this number of rounds, spread over this time."""
        world = self.cluster.world
        for n in range(rounds):
            world.after(seconds * (n + 1) / rounds, lambda: self.publish(self._dice.choice((1, 3, 8))))


def truth(cluster: Cluster, tp: TopicPartition, start: int, end: int, filters: Iterable[str] = ()) -> list[bytes]:
    """Return the values of a range, from the messages that are or were in the file."""
    wanted = set(filters)
    messages = cluster.store(tp.topic, tp.broker_id, tp.partition).file[start // ENTRY_BYTES : end // ENTRY_BYTES]
    return [value_of(m) for m in messages if m.partition == tp.partition and (not wanted or m.type in wanted)]


def value_of(message: Any) -> bytes:
    """Return a message's value."""
    payload = message.payload
    return bytes(payload[4 + int.from_bytes(payload[:4], "big") :] if message.flag & 1 else payload)


def partitions(cluster: Cluster) -> list[TopicPartition]:
    """Return all partitions, except those of dead letters."""
    return sorted(
        TopicPartition(topic.name, number, partition)
        for topic in cluster.topics.values()
        if topic.name != DEAD
        for number in topic.brokers
        for partition in topic.partition_ids
    )


def of_partitions(rows: Iterable[Mapping[str, Any]]) -> dict[TopicPartition, list[bytes]]:
    """Return the values of rows by partition, in order."""
    found: dict[TopicPartition, list[bytes]] = {}
    for row in rows:
        tp = TopicPartition(row["topic"], row["broker_id"], row["partition"])
        found.setdefault(tp, []).append(row["value"])
    return found


def reading_options(cluster: Cluster, dice: Random, **more: str) -> dict[str, str]:
    """Return drawn options of any read."""
    options = {
        "masters": cluster.addresses,
        "topics": ",".join(topic for topic in cluster.topics if topic != DEAD),
        "fetchesInFlight": dice.choice(("1", "2", "8")),
        "maxBatchRows": dice.choice(("1", "5", "100")),
        **more,
    }
    if dice.random() < 0.3:
        options["filters"] = dice.choice(TYPES)
    if dice.random() < 0.4:
        options["minPartitions"] = str(dice.randint(2, 8))
    return options | in_small_tasks(cluster.world)


def any_executors(dice: Random) -> Executors:
    """Return executors with drawn settings."""
    return Executors(
        speculation=dice.choice((0.0, 0.3)), zombies=dice.choice((0.0, 1.0)), slow=dice.choice((0.0, 0.05, 0.3))
    )


# -- batch reads


class BatchRead:
    """A batch read while servers fail and messages are published and removed.

    Args:
        removal: whether messages that are not read yet may be removed.
    """

    def __init__(self, *, removal: bool) -> None:
        self._removal = removal

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 0.3 * size
        found = list(common_faults(dice, streams=6, processes=EXECUTORS, seconds=seconds))
        found += cluster_faults(dice, kinds=SERVERS, seconds=seconds)
        if self._removal:
            at = round(dice.random() * seconds, 3)
            found.append(Fault("remove", at=at, args=(dice.randrange(2), dice.randint(1, 20))))
            for _ in range(dice.choice((0, 2, 4))):
                found.append(Fault("remove_fetched", args=(int(dice.random() * 12 * size), dice.randint(1, 12))))
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = make_cluster(world, plan)
        # With a filter that matches 1 message in 20, several fetches in sequence find none.
        is_sparse = dice.random() < 0.5
        producer = Producer(cluster, types=("rare", *19 * TYPES[:1]) if is_sparse else (None, *TYPES))
        producer.publish((40 if is_sparse else 10) * plan.size)
        for broker in cluster.brokers:
            for store in broker.stores.values():
                store.write()
                store.force()
        producer.publish(dice.choice((0, 5)))
        producer.keep_publishing(10, 1.0)
        fails = dice.random() < 0.7
        given = reading_options(cluster, dice, failOnDataLoss=str(fails).lower())
        if is_sparse:
            given["filters"] = "rare"
        options = FORMAT.parse_options(given)
        cluster.keeps_index = not options.filters and world.dice("index").random() < 0.5
        arrange(world, cluster, plan.faults)
        outcome = self._read(cluster, plan, options, any_executors(dice), fails=fails)
        check_nothing_leaks(world, cluster)
        return outcome

    def _read(self, cluster: Cluster, plan: Plan, options: Any, executors: Executors, *, fails: bool) -> str:
        before = {tp: cluster.store(tp.topic, tp.broker_id, tp.partition).forced for tp in partitions(cluster)}
        try:
            ranges = list(FORMAT.plan(options, ()))
        except MQSourceError as error:
            check_allowed(plan, error)
            return "not planned"
        self._check_plan(cluster, ranges, before)
        try:
            work = [read_task(FORMAT, options, task, SCHEMA, executors) for task in ranges]
            found = executors.run(work, reading_attempt)
        except JobFailedError as failed:
            if isinstance(failed.cause, DataLossError) and fails and self._removal:
                return "data loss"
            check_allowed(plan, failed.cause)
            return "failed"
        for task, rows in zip(ranges, found, strict=True):
            there = truth(cluster, task.topic_partition, task.start, task.end, options.filters)
            read = [row["value"] for row in rows]
            may_lack = self._removal and not fails
            if read != there and not (may_lack and _lacks_removed_only(cluster, task, read, options.filters)):
                raise ViolationError(f"{task}: {read} was read, expected {there}")
        return "read"

    def _check_plan(self, cluster: Cluster, ranges: Sequence[Any], before: Mapping[TopicPartition, int]) -> None:
        for tp, forced in before.items():
            mine = sorted((r.start, r.end) for r in ranges if r.topic_partition == tp)
            store = cluster.store(tp.topic, tp.broker_id, tp.partition)
            if not mine:
                if store.first < forced:
                    raise ViolationError(f"{tp} is not read")
                continue
            if any(one[1] != other[0] for one, other in itertools.pairwise(mine)):
                raise ViolationError(f"{tp}: the pieces {mine} are not contiguous")
            if mine[0][0] > store.first or not forced <= mine[-1][1] <= store.forced:
                raise ViolationError(f"{tp}: {mine} is not [{store.first}, {forced} to {store.forced})")


def _lacks_removed_only(cluster: Cluster, task: TubeMQRange, read: list[bytes], filters: Iterable[str]) -> bool:
    """Return whether the values are those of the range, in order and once, without some that were removed."""
    tp = task.topic_partition
    first = max(task.start, cluster.store(tp.topic, tp.broker_id, tp.partition).data_first)
    removed = truth(cluster, tp, task.start, first, filters)
    kept = truth(cluster, tp, first, task.end, filters)
    seen = set(read)
    return read == [value for value in removed if value in seen] + kept


# -- streaming reads


class StreamRead:
    """A query that reads all partitions, killed and restarted from its checkpoint."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 2.0 * size
        found = list(common_faults(dice, streams=12, processes=("driver-0", "driver-0", *EXECUTORS), seconds=seconds))
        found += cluster_faults(dice, kinds=(*SERVERS, "lose_session"), seconds=seconds)
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = make_cluster(world, plan)
        producer = Producer(cluster)
        producer.publish(5 * plan.size)
        producer.keep_publishing(3 * plan.size, 2.0 * plan.size)
        more = {"assignment": "client", "startingOffsets": "earliest"}
        if dice.random() < 0.4:
            more["maxRowsPerTrigger"] = str(dice.choice((1, 5, 20)))
        else:
            more |= waiting_for_rows(world)
        options = FORMAT.parse_stream_options(reading_options(cluster, dice, **more))
        arrange(world, cluster, plan.faults)
        query = Query(FORMAT, options, SCHEMA, any_executors(dice), Checkpoint(), interval=0.5)
        over_at = world.now + 2.0 * plan.size
        runs = run_again_and_again(world, plan, query, lambda: world.now > over_at and _all_read(cluster, query))
        check_replays(query.checkpoint)
        found = of_partitions(query.checkpoint.rows())
        for tp in partitions(cluster):
            end = cluster.store(tp.topic, tp.broker_id, tp.partition).forced
            there = truth(cluster, tp, 0, end, options.filters)
            if found.get(tp, []) != there:
                raise ViolationError(f"{tp}: {found.get(tp)} was read, expected {there}")
        check_nothing_leaks(world, cluster)
        return "read" if runs == 1 else "restarted"


def _all_read(cluster: Cluster, *queries: Query) -> bool:
    """Return whether committed triggers cover all messages."""
    read: dict[TopicPartition, int] = {}
    for query in queries:
        log = query.checkpoint
        if log.offsets and len(log.offsets) - 1 not in log.committed:
            return False
        for name, at in (log.offsets[-1][1]["positions"] if log.offsets else {}).items():
            tp = TopicPartition.parse(name)
            read[tp] = max(read.get(tp, 0), at)
    return all(read.get(tp, 0) >= cluster.store(tp.topic, tp.broker_id, tp.partition).end for tp in partitions(cluster))


def check_looked_for(plan: Plan, error: BaseException) -> None:
    """Check that an error may end a run whose topics a master may not have read yet.

    A master that leads again, or whose clock differs by more than `SETTLING_SECONDS`, is not recognized as settling.

    Raises:
        ViolationError: it may not.
    """
    unrecognized = any(fault.kind in {"lose_session", "wall_clock"} for fault in plan.faults)
    if not (isinstance(error, TopicNotFoundError) and unrecognized):
        check_allowed(plan, error)


def run_again_and_again(world: World, plan: Plan, query: Query, until: Callable[[], bool]) -> int:
    """Run a query, and restart it from its checkpoint after each failure, until `until()`; return the number of runs.

    Raises:
        ViolationError: it fails in a way that is not allowed, or too often.
    """
    for runs in range(1, MAX_RUNS):
        try:
            query.run(until=until)
        except DriverKilledError:
            world.sleep(1.0)
        except JobFailedError as failed:
            check_allowed(plan, failed.cause)
            world.sleep(5.0)
        except MQSourceError as error:
            check_looked_for(plan, error)
            world.sleep(5.0)
        else:
            return runs
    raise ViolationError(f"the query was run {MAX_RUNS} times and has not read everything")


TEXT_SCHEMA = pa.schema([pa.field("value", pa.string()) if field.name == "value" else field for field in SCHEMA])


def _is_good(value: bytes) -> bool:
    return not value.startswith(b"\xff")


class _Watched(TubeMQFormat):
    """The format, with a check at each batch of a task that the dead letters before its last row are stored.

    Attributes:
        attempts: the number of task attempts whose range had each bad value.
    """

    def __init__(self, cluster: Cluster, filters: Iterable[str], *, for_disk: bool) -> None:
        self._cluster = cluster
        self._filters = filters
        self._for_disk = for_disk
        self.attempts: Counter[bytes] = Counter()

    def read(
        self, options: Any, task: TubeMQRange, schema: pa.Schema, counters: Any = None, *, tries: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """See `TubeMQFormat`."""
        there = truth(self._cluster, task.topic_partition, task.start, task.end, self._filters)
        self.attempts.update(value for value in there if not _is_good(value))
        for batch in super().read(options, task, schema, counters, tries=tries):
            if batch.num_rows:
                last = batch.column("value")[-1].as_py().encode()
                self.check(task, there[: there.index(last)])
            yield batch
        self.check(task, there)

    def check(self, where: object, values: Iterable[bytes]) -> None:
        """Check that the bad values are in the dead letter topic, or were until a broker was killed.

        Raises:
            ViolationError: one is not.
        """
        letters = self.letters()
        lost = [value for value in values if not _is_good(value) and value not in letters]
        if lost:
            raise ViolationError(f"{where} is passed on without its dead letters: {lost[:8]}")

    def letters(self) -> Counter[bytes]:
        """Return the dead letters that brokers have acknowledged, and how often each."""
        stores = self._cluster.all_stores(DEAD)
        kept = [message for store in stores for message in store.file]
        if not self._for_disk:
            kept += [message for store in stores for message in (*store.memory, *store.lost)]
        return Counter(map(value_of, kept))


class DeadLetters(StreamRead):
    """A stream or a batch read of good and bad messages, whose dead letters go to another topic of the same brokers.

    A broker has acknowledged a dead letter before its batch is passed on, and so before it is committed; with
    `waitForDisk` it is on the disk. It has duplicates only if a task or a send was retried. Each good message is read
    once.
    """

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        # Without any fault, only a retried task duplicates a letter.
        return [] if dice.random() < 0.2 else super().faults(dice, size)

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = make_cluster(world, plan)
        producer = Producer(cluster, bad=dice.choice((1, 2, 6)))
        everywhere = tuple(broker.number for broker in cluster.brokers)
        cluster.create(Topic(DEAD, dice.choice((1, 2)), dice.choice((1, 2)), dice.choice(((1,), everywhere))))
        for_disk = dice.random() < 0.4
        given = reading_options(
            cluster,
            dice,
            valueFormat="string",
            onCorrupt="deadLetter",
            deadLetterTopic=DEAD,
            waitForDisk=str(for_disk).lower(),
        )
        executors = any_executors(dice)
        producer.publish(5 * plan.size)
        arrange(world, cluster, plan.faults)
        if dice.random() < 0.5:
            options = FORMAT.fit_read(FORMAT.parse_options(given), TEXT_SCHEMA)
            format_ = _Watched(cluster, options.filters, for_disk=for_disk)
            for store in (store for broker in cluster.brokers for store in broker.stores.values()):
                store.write()
                store.force()
            outcome = self._read_once(cluster, plan, format_, options, executors)
        else:
            producer.keep_publishing(3 * plan.size, 2.0 * plan.size)
            given |= {"assignment": "client", "startingoffsets": "earliest"}
            if dice.random() < 0.4:
                given["maxrowspertrigger"] = str(dice.choice((1, 5, 20)))
            options = FORMAT.fit_read(FORMAT.parse_stream_options(given), TEXT_SCHEMA)
            format_ = _Watched(cluster, options.filters, for_disk=for_disk)
            query = Query(format_, options, TEXT_SCHEMA, executors, Checkpoint(), interval=0.5)
            outcome = self._read_on(world, cluster, plan, query)
        check_nothing_leaks(world, cluster)
        check_letters(plan, format_.letters(), format_.attempts)
        return outcome

    @staticmethod
    def _read_once(cluster: Cluster, plan: Plan, format_: _Watched, options: Any, executors: Executors) -> str:
        try:
            ranges = list(format_.plan(options, ()))
            work = [read_task(format_, options, task, TEXT_SCHEMA, executors) for task in ranges]
            found = executors.run(work, reading_attempt)
        except (JobFailedError, MQSourceError) as failed:
            check_looked_for(plan, failed.cause if isinstance(failed, JobFailedError) else failed)
            return "failed"
        for task, rows in zip(ranges, found, strict=True):
            there = truth(cluster, task.topic_partition, task.start, task.end, options.filters)
            read = [row["value"].encode() for row in rows]
            if read != [value for value in there if _is_good(value)]:
                raise ViolationError(f"{task}: {read} was read, expected {there}")
        return "read"

    @staticmethod
    def _read_on(world: World, cluster: Cluster, plan: Plan, query: Query) -> str:
        over_at = world.now + 2.0 * plan.size
        filters = query.options.filters

        def check_batch(number: int, _: list[list[dict[str, Any]]]) -> None:
            start, end = (offset["positions"] for offset in query.checkpoint.offsets[number])
            for name in end:
                tp = TopicPartition.parse(name)
                query.format.check(name, truth(cluster, tp, start.get(name, 0), end[name], filters))

        query.sink = check_batch
        runs = run_again_and_again(world, plan, query, lambda: world.now > over_at and _all_read(cluster, query))
        check_replays(query.checkpoint)
        found = of_partitions(query.checkpoint.rows())
        for tp in partitions(cluster):
            there = truth(cluster, tp, 0, cluster.store(tp.topic, tp.broker_id, tp.partition).forced, filters)
            read = [value.encode() for value in found.get(tp, [])]  # type: ignore[attr-defined] # texts here
            if read != [value for value in there if _is_good(value)]:
                raise ViolationError(f"{tp}: {read} was read, expected {there}")
        return "read" if runs == 1 else "restarted"


class _BesideASlowSource(TubeMQFormat):
    """The format in a query with another source, which delays the call of `ranges` after `latest` of this one."""

    def open_stream(self, options: TubeMQOptions) -> TubeMQStream:
        return _SlowlyPlanned(options)


class _SlowlyPlanned(TubeMQStream):
    def ranges(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[TubeMQRange]:
        world = here()
        world.sleep(world.dice("spark").choice((0.0, 3.0, 15.0)))
        return super().ranges(start, end)


def group_seconds(size: int) -> float:
    """Return the seconds for which messages are published to a group."""
    return 10.0 + 4.0 * size


def make_cluster_of_a_group(world: World, plan: Plan) -> tuple[Cluster, float]:
    """Return a cluster to which messages are published from now on, and the time of the last ones."""
    cluster = make_cluster(world, plan)
    producer = Producer(cluster)
    producer.publish(5 * plan.size)
    producer.keep_publishing(6 * plan.size, group_seconds(plan.size))
    return cluster, world.now + group_seconds(plan.size)


def check_progress(world: World, over_at: float) -> None:
    """Check that a group has not stood still since the last message, at `over_at`.

    Raises:
        ViolationError: it has.
    """
    if world.now > over_at + PATIENCE_SECONDS:
        raise ViolationError(f"not read within {PATIENCE_SECONDS} s: the group makes no progress")


class GroupRead:
    """Two queries that share a group, between which the master moves partitions."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = group_seconds(size)
        processes = ("driver-0", "driver-1", *EXECUTORS)
        found = list(common_faults(dice, streams=16, processes=processes, seconds=seconds))
        found += cluster_faults(dice, kinds=(*SERVERS, "lose_session"), seconds=seconds)
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster, over_at = make_cluster_of_a_group(world, plan)
        more = {"assignment": "server", "group": "g", "startingOffsets": "earliest"}
        starts: dict[TopicPartition, int] = {}
        former: dict[TopicPartition, int] = {}
        if dice.random() < 0.4:
            # The queries choose the offsets at which the group starts, which may differ from the group's position.
            starts = {tp: 28 * dice.randrange(3 * plan.size) for tp in partitions(cluster)}
            starts = {tp: min(at, cluster.store(tp.topic, tp.broker_id, tp.partition).end) for tp, at in starts.items()}
            more["startingOffsets"] = json.dumps({str(tp): at for tp, at in starts.items()})
            more |= {"sessionKey": "s", "sessionMembers": dice.choice(("1", "2"))}
            if world.dice("former").random() < 0.5:
                for tp in starts:
                    former[tp] = cluster.store(tp.topic, tp.broker_id, tp.partition).end
                    cluster.brokers[tp.broker_id - 1].seek(("g", tp.topic, tp.partition), former[tp])
            # A killed broker may lose messages before these offsets if they are still in its memory.
            more["failOnDataLoss"] = "false"
        options = FORMAT.parse_stream_options(reading_options(cluster, dice, **more))
        arrange(world, cluster, plan.faults)
        queries = [
            Query(
                dice.choice((FORMAT, FORMAT, _BesideASlowSource())),
                options,
                SCHEMA,
                Executors(slow=dice.choice((0.0, 0.3))),
                Checkpoint(),
                interval=1.0,
            )
            for _ in range(2)
        ]
        ended: list[bool] = []

        def until() -> bool:
            check_progress(world, over_at)
            return bool(ended) or (world.now > over_at and _all_read(cluster, *queries) and not ended.append(True))

        # One query may end and return while the other continues, so partitions move in both directions.
        leaves_at = world.now + group_seconds(plan.size) * dice.choice((0.3, 0.6, 1e9))
        away_seconds = dice.choice((4.0, 15.0))

        def live(query: Query, number: int) -> None:
            if number:
                world.sleep(dice.choice((0.0, 8.0)))
                run_again_and_again(world, plan, query, lambda: until() or world.now > leaves_at)
                world.sleep(away_seconds)
            run_again_and_again(world, plan, query, until)

        fibers = [
            world.spawn(lambda q=query, n=n: live(q, n), f"query {n}", world.test) for n, query in enumerate(queries)
        ]
        for fiber in fibers:
            world.join(fiber)
            if fiber.error is not None:
                raise fiber.error
        for query in queries:
            check_replays(query.checkpoint)
        may_start_later = {
            tp: at
            for tp, at in former.items()
            if (tp.topic, tp.broker_id, tp.partition) in cluster.unstarted
            or ("g", tp.topic, tp.partition) in cluster.brokers[tp.broker_id - 1].moved_back
        }
        # One that is killed while it leaves a partition may have a trigger there that Spark repeats.
        killed_drivers = sum(fault.kind == "kill" and fault.args[0].startswith("driver") for fault in plan.faults)
        repeats = _check_group(
            cluster,
            queries,
            options.filters,
            starts,
            may_start_later=may_start_later,
            killed_drivers=killed_drivers,
        )
        check_nothing_leaks(world, cluster)
        return "twice, as allowed" if repeats else "read"


def _check_group(
    cluster: Cluster,
    queries: Sequence[Query],
    filters: Iterable[str],
    starts: Mapping[TopicPartition, int],
    *,
    may_start_later: Mapping[TopicPartition, int],
    killed_drivers: int,
) -> int:
    """Check that the group has read every message, and return how many came twice.

    Args:
        cluster: has the messages.
        queries: the members.
        filters: of the members.
        starts: where the group started, if its session named offsets.
        may_start_later: partitions that the group may have read from its former position on, and that position.
        killed_drivers: the number of kills of drivers.

    Raises:
        ViolationError: a message is missing, or came twice without a reason.
    """
    found = Counter(value for query in queries for row in query.checkpoint.rows() for value in [row["value"]])
    there = Counter(
        value
        for tp in partitions(cluster)
        for end in [cluster.store(tp.topic, tp.broker_id, tp.partition).file_end]
        for value in truth(cluster, tp, starts.get(tp, 0), end, filters)
    )
    before = {v for tp, at in may_start_later.items() for v in truth(cluster, tp, starts[tp], at)}
    if missing := (there - found).keys() - before:
        raise ViolationError(f"never read: {sorted(missing)}")
    _check_repeats(cluster, queries, killed_drivers)
    return len(found - there)


def _check_repeats(cluster: Cluster, queries: Sequence[Query], killed_drivers: int) -> None:
    """Check that rows came twice only where a partition was started again, or taken over: then those of one trigger.

    Raises:
        ViolationError: there were more.
    """
    readings: dict[TopicPartition, dict[bytes, list[tuple[int, int]]]] = {}
    for number, query in enumerate(queries):
        for batch, rows in query.checkpoint.sink.items():
            for tp, values in of_partitions(rows).items():
                for value in values:
                    readings.setdefault(tp, {}).setdefault(value, []).append((number, batch))
    for tp, triggers_of in readings.items():
        broker, key = cluster.brokers[tp.broker_id - 1], ("g", tp.topic, tp.partition)
        # Pairs of triggers that have rows in common: those of one takeover share the trigger that was read again.
        apart: list[list[tuple[int, int]]] = []
        for triggers in triggers_of.values():
            if len(triggers) > 1 and not any(one in pair for pair in apart for one in triggers):
                apart.append(triggers)
        allowed = broker.taken_over[key] + killed_drivers
        if len(apart) > allowed and key not in broker.moved_back | broker.started_again:
            raise ViolationError(
                f"{tp} was taken over {broker.taken_over[key]} times, but its rows came twice in {apart}"
            )


class GroupReadOfMemory:
    """A query in a group that reads brokers' memory, which kills lose.

    A broker that has new messages at the offsets of lost ones before the query asks it hides the loss, as documented.
    So after each kill nothing is published until the query has planned a trigger.
    """

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = group_seconds(size)
        found = list(common_faults(dice, streams=16, processes=("driver-0", *EXECUTORS), seconds=seconds))
        found += cluster_faults(dice, kinds=("kill_broker",), seconds=seconds)
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster, over_at = make_cluster_of_a_group(world, plan)
        more = {"assignment": "server", "group": "g", "startingOffsets": "earliest"}
        more |= {"lowLatency": "true", "failOnDataLoss": "false"}
        cluster.is_quiet_after_kills = True
        options = FORMAT.parse_stream_options(reading_options(cluster, dice, **more))
        arrange(world, cluster, plan.faults)
        query = Query(_Resuming(cluster), options, SCHEMA, any_executors(dice), Checkpoint(), interval=1.0)

        def until() -> bool:
            check_progress(world, over_at)
            return world.now > over_at and _all_read(cluster, query)

        run_again_and_again(world, plan, query, until)
        found = Counter(row["value"] for row in query.checkpoint.rows())
        stores = [cluster.store(tp.topic, tp.broker_id, tp.partition) for tp in partitions(cluster)]
        for tp, store in zip(partitions(cluster), stores, strict=True):
            there = truth(cluster, tp, 0, store.file_end, options.filters)
            if missing := [value for value in there if value not in found]:
                raise ViolationError(f"{tp}: never read: {missing}")
        if twice := [value for value, count in found.items() if count > 1]:
            raise ViolationError(f"read twice: {twice}")
        check_nothing_leaks(world, cluster)
        return "read after a loss" if any(store.lost for store in stores) else "read"


class _Resuming(TubeMQFormat):
    """The format, whose stream lets the cluster's producers continue after a kill once it has planned a trigger."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def open_stream(self, options: TubeMQOptions) -> TubeMQStream:
        return _ResumingStream(options, self._cluster)


class _ResumingStream(TubeMQStream):
    def __init__(self, options: TubeMQOptions, cluster: Cluster) -> None:
        super().__init__(options)
        self._cluster = cluster

    def latest(self, start: Mapping[str, object], *, limited: bool = True) -> dict[str, object]:
        began = here().now
        end = super().latest(start, limited=limited)
        for broker in self._cluster.brokers:
            broker.is_quiet = broker.is_quiet and not (broker.is_up and broker.started_at < began)
        return end


# -- writing


class Write:
    """A write of several tasks, at least once."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 0.5 * size
        found = list(common_faults(dice, streams=8, processes=EXECUTORS, seconds=seconds))
        found += cluster_faults(dice, kinds=SERVERS, seconds=seconds)
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = make_cluster(world, plan)
        for_disk = dice.random() < 0.5
        options = FORMAT.parse_write_options(
            {
                "masters": cluster.addresses,
                "topic": "t0",
                "waitfordisk": str(for_disk).lower(),
                "logreceipts": world.dice("receipts").choice(("false", "true")),
                "maxpendingmessages": dice.choice(("1", "4", "2000")),
            },
            ("value",),
        )
        tasks = [
            [
                pa.record_batch({"value": pa.array([f"{task}.{n}.{i}".encode() for i in range(4)], pa.binary())})
                for n in range(2 * plan.size)
            ]
            for task in range(dice.choice((1, 2, 3)))
        ]
        arrange(world, cluster, plan.faults)
        try:
            write(FORMAT, options, tasks, any_executors(dice), job_id="job")
        except JobFailedError as failed:
            check_allowed(plan, failed.cause)
            outcome = "failed"
        else:
            outcome = "written"
            wanted = {value for task in tasks for batch in task for value in batch.column("value").to_pylist()}
            self._check(cluster, wanted, for_disk=for_disk)
        check_nothing_leaks(world, cluster)
        return outcome

    @staticmethod
    def _check(cluster: Cluster, wanted: set[bytes], *, for_disk: bool) -> None:
        stores = cluster.all_stores("t0")
        kept = {value_of(m) for store in stores for m in store.file}
        if for_disk:
            if missing := wanted - kept:
                raise ViolationError(f"not on a disk: {sorted(missing)}")
            return
        kept |= {value_of(m) for store in stores for m in (*store.memory, *store.lost)}
        if missing := wanted - kept:
            raise ViolationError(f"never acknowledged: {sorted(missing)}")


SCENARIOS: Mapping[str, Scenario] = {
    "batch_read": BatchRead(removal=False),
    "batch_read_removal": BatchRead(removal=True),
    "dead_letters": DeadLetters(),
    "group_read": GroupRead(),
    "group_read_memory": GroupReadOfMemory(),
    "stream_read": StreamRead(),
    "write": Write(),
}
