"""Scenarios of Pulsar in the simulated world: ways to use the package, faults, and oracles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from random import Random
from typing import Any, TypeAlias

import pyarrow as pa

from spark_mq_source.core.errors import (
    BrokerError,
    DataLossError,
    EndOfStreamError,
    MQSourceError,
    ReplayError,
    RequestTimeoutError,
    ResourceBusyError,
    ServiceNotReadyError,
)
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.offsets import EARLIEST, LATEST, Position, TopicPartition, decode_begins
from spark_mq_source.pulsar.read.stream import offsets_from_json
from spark_mq_source.pulsar.write.transactions import Transaction
from spark_mq_source.pulsar.write.writer import WriteReport
from tests.simulation.clockwork import here
from tests.simulation.explore import Fault, Plan, Scenario, ViolationError, check_allowed, check_letters, common_faults
from tests.simulation.pulsar import oracle
from tests.simulation.pulsar.broker import Cluster
from tests.simulation.pulsar.ledgers import COMPACTION
from tests.simulation.pulsar.offloading import Offloader, names_the_ledger, store_faults
from tests.simulation.pulsar.queues import QueueDrain, QueuePeek, QueueStream
from tests.simulation.pulsar.retries import QueueRetry
from tests.simulation.pulsar.writes import arrange_writes, write_faults
from tests.simulation.spark import (
    Checkpoint,
    Executors,
    JobFailedError,
    Query,
    in_small_tasks,
    read_task,
    waiting_for_rows,
    write,
)
from tests.simulation.spark import _reading as reading_attempt
from tests.simulation.world import World

FORMAT = PulsarFormat()
SCHEMA = oracle.SCHEMA

TOPIC = "persistent://public/default/t"

PENDING_MESSAGE_BYTES = 600
"""An upper bound of the overhead of a message under assembly, besides its own bytes."""

MAX_LIVES = 21
"""Maximum number of lives of a query's driver: each fault ends a few at most."""

MAX_EMPTY_BATCHES = 100
"""An upper bound of consecutive batches without rows: a topic has fewer entries."""

# -- faults


def cluster_faults(dice: Random, *, kinds: Sequence[str], partitions: int, seconds: float) -> Iterator[Fault]:
    """Yield a few faults of the cluster, or none."""
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        kind = dice.choice(kinds)
        at = round(dice.random() * seconds, 3)
        if kind == "kill_broker":
            yield Fault(kind, at=at, args=(dice.randrange(3), dice.choice((0.5, 8.0))))
        elif kind == "replace_bookie":
            yield Fault(kind, at=at, args=(dice.randrange(partitions), dice.randint(1, 4)))
        else:
            yield Fault(kind, at=at, args=(dice.randrange(partitions),))


def removals(dice: Random, seconds: float) -> Iterator[Fault]:
    """Yield one or more faults that remove messages, or move cursors past them."""
    for _ in range(dice.choice((1, 1, 2))):
        kind = dice.choice(("acknowledge", "acknowledge", "expire", "truncate", "sweep"))
        at, partition = round(dice.random() * seconds, 3), dice.randrange(3)
        if kind == "sweep":
            yield Fault(kind, at=at, args=(partition, dice.choice((5, 20, 60)), dice.choice((0.002, 0.005, 0.02))))
        else:
            yield Fault(kind, at=at, args=(partition, round(dice.random(), 2)))


def arrange(
    world: World,
    cluster: Cluster,
    names: Sequence[str],
    faults: Sequence[Fault],
    offloader: Offloader | None = None,
) -> None:
    """Schedule the faults of the cluster and of `store_faults`, at times from now on.

    - `unload`, `trim`, `expire`, `truncate`, `roll_over`, `compact`: number of a topic-partition.
    - `kill_broker`: number of the broker, seconds until it runs again.
    - `replace_bookie`: number of a topic-partition, number of entries stored twice (`close_unrecorded`).
    - `acknowledge`: number of a topic-partition, fraction of its entries that the foreign subscription acknowledges.
    - `sweep`: number of a topic-partition, repetitions, seconds between them: an entry is published and expires by TTL.
    """

    def named(number: int) -> str:
        return names[number % len(names)]

    def replace_bookie(number: int, count: int) -> None:
        name = named(number)
        is_dead = name == DEAD or name.startswith(f"{DEAD}-")
        cluster.replace_bookie(names[0] if is_dead else name, count)

    def add_partition(_: int) -> None:
        if cluster.partitions[TOPIC]:
            cluster.add_partitions(TOPIC, cluster.partitions[TOPIC] + 1)
            for name in cluster.names(TOPIC):
                cluster.subscribe(name, "keeper")

    def acknowledge(number: int, part: float) -> None:
        ledger = cluster.load(named(number)).ledger
        if "keeper" in ledger.cursors and ledger.entries:
            positions = list(ledger.entries)
            cluster.acknowledge(named(number), "keeper", positions[int(part * (len(positions) - 1))])

    calls: dict[str, Callable[..., Any]] = {
        "unload": lambda number: cluster.unload(named(number)),
        "trim": lambda number: cluster.trim(named(number)),
        "expire": lambda number, _: cluster.expire(named(number)),
        "compact": lambda number: cluster.compact(named(number)),
        "truncate": lambda number, _: cluster.truncate(named(number)),
        "roll_over": lambda number: cluster.roll_over(named(number)),
        "sweep": lambda number, left, seconds: _sweep(cluster, named(number), left=left, seconds=seconds),
        "kill_broker": cluster.kill_broker,
        "replace_bookie": replace_bookie,
        "add_partition": add_partition,
        "acknowledge": acknowledge,
    }
    for fault in faults:
        if offloader is not None and fault.kind in {"offload", "object", "busy"}:
            world.after(fault.at, partial(offloader.fail, fault))
        elif (call := calls.get(fault.kind)) is not None:
            world.after(fault.at, partial(call, *fault.args))


def _sweep(cluster: Cluster, name: str, *, left: int, seconds: float) -> None:
    # TTL moves the other cursors only if a durable one has a backlog.
    cluster.publish(name, [f"swept-{cluster.world.count('swept')}".encode()], sequence_id=9000)
    cluster.expire(name)
    if left > 1:
        cluster.world.after(seconds, partial(_sweep, cluster, name, left=left - 1, seconds=seconds))


Span: TypeAlias = tuple[str, Position, Position]
"""A topic-partition, and the positions of a range of it."""


def may_look_removed(cluster: Cluster, spans: Iterable[Span]) -> bool:
    """Return whether a loss in these ranges may be reported.

    It may if an entry of them was removed, or the ledger in which a range begins, which may have had more entries; or
    if two cursors moved before they were requested. A reader that finds its new cursor moved opens another one. TTL and
    truncation move cursors every few minutes at most: a false report because both were moved is rare, and safe.
    """
    return any(
        ledger.unseen_moves > 1
        or start.ledger in ledger.removed
        or any(at[0] in ledger.removed and start < Position(*at) <= end for at in ledger.history)
        for name, start, end in spans
        for ledger in [cluster.storage[name]]
    )


# -- topics and their messages


def fill(
    cluster: Cluster,
    names: Sequence[str],
    dice: Random,
    entries: int,
    *,
    chunks: bool = False,
    value_of: Callable[[str], bytes] = str.encode,
) -> None:
    """Publish messages and batches as foreign producers do, some in transactions, and with `chunks` larger messages."""
    with_transactions = cluster.coordinators.count > 0 and dice.random() < 0.5
    for name in names:
        n = 0
        while n < entries:
            prefix = f"{name.rsplit('-', 1)[-1]}-{n}"
            draw = dice.random()
            if chunks and draw < 0.5:
                n += _fill_chunks(cluster, name, dice, prefix, n)
                continue
            txn = None
            if with_transactions and draw > 0.7:
                if draw > 0.9:
                    # Then the broker has to find the last message.
                    cluster.unload(name)
                txn = cluster.coordinators.begin(0, 3_600_000)
                cluster.coordinators.add(txn, (name,))
                ends_at = dice.choice((0.0, 0.0, 0.1, 1.0))
                commits = dice.random() < 0.5
                cluster.world.after(ends_at, _ender(cluster, txn, commits=commits))
            count = dice.choice((1, 1, 2, 5))
            values = [value_of(f"{prefix}.{i}") for i in range(count)]
            cluster.publish(name, values, sequence_id=n, txn=txn)
            n += 1


def _ender(cluster: Cluster, txn: tuple[int, int], *, commits: bool) -> Callable[[], None]:
    return lambda: cluster.coordinators.end(txn, commits, lambda _: None)


def _fill_chunks(cluster: Cluster, name: str, dice: Random, prefix: str, n: int) -> int:
    """Store a chunked message, some with a restart in the middle under the same name and number; return its entries."""
    parts = dice.randint(2, 4)
    stored = 0
    producer = dice.choice(("p", "q"))

    def value(which: str) -> bytes:
        return f"{prefix}{which}".ljust(40, which).encode()

    def store(which: str, begin: int, end: int) -> None:
        nonlocal stored
        made = cluster.publish_chunks(name, value(which), parts, producer=producer, sequence_id=n)
        for entry in made[begin:end]:
            if dice.random() < 0.2:
                cluster.publish(name, [f"{prefix}between{stored}".encode()], sequence_id=n)
                stored += 1
            cluster.store(name, entry)
            stored += 1

    kind = dice.choice(("whole", "whole", "anew", "again", "abandoned"))
    if kind in {"anew", "abandoned"}:
        # The producer was restarted in the middle of the message, and continues to count from there.
        store("a", 0, dice.randint(1, parts - 1))
    if kind == "again":
        # A receipt was lost: a part of the message is sent again.
        upto = dice.randint(1, parts)
        store("b", 0, upto)
        store("b", dice.randint(0, upto - 1), parts)
    elif kind != "abandoned":
        store("b", 0, parts)
    return stored


def options_of(cluster: Cluster, **more: str) -> dict[str, str]:
    """Return the options of every scenario."""
    return {"serviceUrl": cluster.url, "topic": TOPIC, **more}


def _readable_cluster(world: World, dice: Random, *, places_cursors: bool = True) -> Cluster:
    return Cluster(
        world,
        brokers=dice.choice((1, 1, 2, 3)),
        ledger_entries=dice.choice((3, 5, 10)),
        coordinators=1,
        places_cursors=places_cursors,
    )


def _wanted_positions(world: World, cluster: Cluster, names: Sequence[str]) -> dict[str, dict[str, Position]]:
    """Return values of `startingOffsets` and `endingOffsets`, at rows and within batches; each may be absent."""
    dice = world.dice("positions")
    rows = {name: oracle.deliverable_rows(cluster, name) for name in names}
    if dice.random() < 0.6 or not all(rows.values()):
        return {}
    wanted: dict[str, dict[str, Position]] = {"startingOffsets": {}, "endingOffsets": {}}
    for name in names:
        two = sorted((dice.randrange(len(rows[name])), dice.randrange(len(rows[name]))))
        for of, at in zip(wanted.values(), two, strict=True):
            of[name] = oracle.row_position(rows[name][at])
    for option in dice.choice(((), ("startingOffsets",), ("endingOffsets",))):
        del wanted[option]
    return wanted


def _offloader(world: World, cluster: Cluster, names: Sequence[str]) -> Offloader:
    """Return the offloader of a cluster, after it has offloaded some topic-partitions."""
    dice = world.dice("store")
    offloader = Offloader(cluster, dice.choice((1, 2, 4, 100)))
    for name in names:
        if dice.random() < 0.8:
            offloader.offload(name)
    return offloader


class BatchRead:
    """A batch read while topics are unloaded, brokers are killed and ledgers are removed.

    Args:
        removal: whether messages that are not read yet may be removed.
        chunks: whether there are messages in chunks.
        stored: whether ledgers are offloaded, and read from the object store.
    """

    def __init__(self, *, removal: bool = False, chunks: bool = False, stored: bool = False) -> None:
        self._removal = removal
        self._chunks = chunks
        self._stored = stored

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 0.3 * size
        found = list(common_faults(dice, streams=6, processes=("executor-0", "executor-1"), seconds=seconds))
        kinds = ("unload", "kill_broker", "roll_over", "replace_bookie")
        found += cluster_faults(dice, kinds=kinds, partitions=3, seconds=seconds)
        if self._removal:
            found += removals(dice, seconds)
        if self._stored:
            found += store_faults(dice, seconds)
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = _readable_cluster(world, dice)
        names = cluster.create(TOPIC, dice.choice((0, 1, 2, 3)))
        fill(cluster, names, dice, 6 * plan.size, chunks=self._chunks)
        how = world.dice("store").choice(("auto", "auto", "auto", "always"))
        offloader = _offloader(world, cluster, names) if self._stored else None
        for name in names:
            cluster.subscribe(name, "keeper")
        fails = dice.random() < 0.8
        options = {
            "failOnDataLoss": str(fails).lower(),
            "receiverQueueSize": dice.choice(("2", "10", "1000")),
            "maxBatchRows": dice.choice(("1", "3", "100")),
        }
        if dice.random() < 0.4:
            options["minPartitions"] = str(dice.randint(2, 8))
        options |= in_small_tasks(world) if offloader is None else offloader.options(how)
        wanted = {} if self._chunks else _wanted_positions(world, cluster, names)
        options |= {option: json.dumps({n: asdict(at) for n, at in of.items()}) for option, of in wanted.items()}
        if self._chunks and dice.random() < 0.5:
            # Enough for two messages: more are under assembly only if some were abandoned.
            options["maxPendingChunkBytes"] = str(2 * (40 + PENDING_MESSAGE_BYTES))
        parsed = FORMAT.parse_options(options_of(cluster, **options))
        executors = Executors(
            speculation=dice.choice((0.0, 0.3)), zombies=dice.choice((0.0, 1.0)), slow=dice.choice((0.0, 0.05, 0.3))
        )
        arrange(world, cluster, names, plan.faults, offloader)
        try:
            outcome = self._read(world, plan, cluster, parsed, executors, wanted, fails=fails)
        except ViolationError as error:
            if not (isinstance(error.__cause__, MQSourceError) and names_the_ledger(error.__cause__, how)):
                raise
            outcome = "not in the store"
        oracle.check_nothing_leaks(cluster)
        return outcome

    def _read(
        self,
        world: World,
        plan: Plan,
        cluster: Cluster,
        options: Any,
        executors: Executors,
        wanted: Mapping[str, Mapping[str, Position]],
        *,
        fails: bool,
    ) -> str:
        names = cluster.names(TOPIC)
        starts, ends = wanted.get("startingOffsets", {}), wanted.get("endingOffsets", {})
        before = {
            name: oracle.within(
                oracle.deliverable_rows(cluster, name), starts.get(name, EARLIEST), ends.get(name, LATEST)
            )
            for name in names
        }
        try:
            ranges = list(FORMAT.plan(options, ()))
        except MQSourceError as error:
            spans = [(name, starts.get(name, EARLIEST), LATEST) for name in names]
            if isinstance(error, DataLossError) and starts and may_look_removed(cluster, spans):
                return "data loss"
            check_allowed(plan, error)
            return "not planned"
        kept = {name: set(cluster.storage[name].ledgers) for name in names}
        for name in names:
            mine = [r for r in ranges if str(r.topic_partition) == name]
            beyond = [r for r in mine if r.start < starts.get(name, EARLIEST) or r.end > ends.get(name, LATEST)]
            if beyond:
                raise ViolationError(f"{name}: {[str(r) for r in beyond]} is not within {wanted}")
            for row in before[name]:
                # From "earliest" on, entries skipped by TTL or truncation during planning may count as gone.
                taken = row[:2] <= cluster.storage[name].taken
                if (
                    row[0] in kept[name]
                    and not taken
                    and not any(r.start < oracle.row_position(row) <= r.end for r in mine)
                ):
                    raise ViolationError(f"{name}: {row} is in none of the ranges {[str(r) for r in mine]}")
        try:
            work = [read_task(FORMAT, options, task, SCHEMA, executors) for task in ranges]
            found = executors.run(work, reading_attempt)
        except JobFailedError as failed:
            cause = failed.cause
            if isinstance(cause, DataLossError):
                if not fails:
                    raise ViolationError(f"an error despite failOnDataLoss=false: {cause}") from cause
                if not may_look_removed(cluster, [(str(r.topic_partition), r.start, r.end) for r in ranges]):
                    raise ViolationError(f"a loss though nothing was removed: {cause}") from cause
                return "data loss"
            check_allowed(plan, cause)
            return "failed"
        for task, rows in zip(ranges, found, strict=True):
            oracle.check_range(
                cluster, task.topic_partition, task.start, task.end, oracle.found_rows(rows), may_lose=not fails
            )
        return "read"


class StreamRead:
    """A streaming query whose driver and tasks are killed, and whose topic is unloaded, grows and is trimmed.

    Args:
        subscription: whether it has a durable subscription, which keeps unread messages; then none can be lost.
        removal: whether messages that are not read yet may be removed.
        places_cursors: False on a cluster with the cursors of 2.10.1; then every trigger has a limit.
        stored: whether ledgers are offloaded, and read from the object store.
    """

    def __init__(self, *, subscription: bool, removal: bool, places_cursors: bool = True, stored: bool = False) -> None:
        self._stored = stored
        self._subscription = subscription
        self._removal = removal
        self._places_cursors = places_cursors

    _value_of: Callable[[str], bytes] = staticmethod(str.encode)
    """The value of a message, from a unique text."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 0.5 * size
        processes = ("driver-0", "driver-1", "executor-0", "executor-1", "executor-2")
        found = list(common_faults(dice, streams=8, processes=processes, seconds=seconds))
        kinds = ("unload", "kill_broker", "roll_over", "add_partition", "replace_bookie")
        kinds += ("trim",) if self._subscription else ()
        found += cluster_faults(dice, kinds=kinds, partitions=3, seconds=seconds)
        if self._removal:
            found += removals(dice, seconds)
        if self._stored:
            found += store_faults(dice, seconds)
        if dice.random() < 0.2:
            # The driver is killed this time after the first batch was logged.
            found.append(Fault("interrupt", args=(round(dice.choice((0.0, 0.01, 0.1)) * dice.random(), 4),)))
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = _readable_cluster(world, dice, places_cursors=self._places_cursors)
        names = cluster.create(TOPIC, dice.choice((0, 1, 2, 3)))
        self._fill(cluster, names, dice, dice.choice((0, 2, 2 * plan.size)))
        for name in names:
            cluster.subscribe(name, "keeper")
        fails = dice.random() < 0.8 or not self._removal
        options = {
            "failOnDataLoss": str(fails).lower(),
            "receiverQueueSize": dice.choice(("2", "10", "1000")),
            "maxBatchRows": dice.choice(("1", "3", "100")),
            "startingOffsets": dice.choice(("earliest", "earliest", "latest")),
        }
        if dice.random() < 0.4:
            options["minPartitions"] = str(dice.randint(2, 8))
        offloader = _offloader(world, cluster, names) if self._stored else None
        options |= in_small_tasks(world) if offloader is None else offloader.options("auto")
        if dice.random() < 0.5 or not self._places_cursors:
            options[dice.choice(("maxEntriesPerTrigger", "maxRowsPerTrigger"))] = str(dice.choice((1, 3, 10)))
        if "maxRowsPerTrigger" not in options:
            options |= waiting_for_rows(world)
        if self._subscription:
            options["subscription"] = "query"
            self._subscribe_before(world, cluster, names)
            if world.dice("failover").random() < 0.3:
                options |= {"subscriptionType": "failover", "priorityLevel": "1", "consumerName": "q"}
        options |= self._options(cluster, names)
        arrange(world, cluster, names, plan.faults, offloader)
        query = Query(
            FORMAT,
            FORMAT.parse_stream_options(options_of(cluster, **options)),
            SCHEMA,
            Executors(
                speculation=dice.choice((0.0, 0.3)), zombies=dice.choice((0.0, 1.0)), slow=dice.choice((0.0, 0.0, 0.1))
            ),
            Checkpoint(),
            limited=dice.random() < 0.8 or not self._places_cursors,
        )
        query.planned = partial(self._planned, cluster, plan)
        self._begins_at_latest = options["startingOffsets"] == "latest"
        self._publish(world, cluster, plan, dice)
        outcome = self._live(world, plan, cluster, query, fails=fails)
        oracle.check_nothing_leaks(cluster)
        return outcome

    def _options(self, cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
        """Return further options of the query: in some runs it waits for its topic, which does not exist yet."""
        dice = cluster.world.dice("waiting")
        if dice.random() < 0.8:
            return {}
        cluster.unmade |= {TOPIC, *names}
        cluster.world.after(dice.choice((0.01, 1.0, 5.0)), cluster.unmade.clear)
        return {"waitForTopic": "10m"}

    def _fill(self, cluster: Cluster, names: Sequence[str], dice: Random, entries: int) -> None:
        fill(cluster, names, dice, entries)

    @staticmethod
    def _subscribe_before(world: World, cluster: Cluster, names: Sequence[str]) -> None:
        """Create the subscription before the query in some runs, at a drawn position."""
        dice = world.dice("subscription")
        if dice.random() < 0.3:
            for name in names:
                cluster.subscribe(name, "query")
                entries = list(cluster.load(name).ledger.entries)
                if entries and dice.random() < 0.8:
                    cluster.acknowledge(name, "query", dice.choice(entries))

    def _planned(self, cluster: Cluster, plan: Plan, number: int) -> None:
        """Handle a logged batch: from the first one on, only the query's subscription keeps the entries it needs."""
        if number != 0:
            return
        world = cluster.world
        for fault in plan.faults:
            if fault.kind == "interrupt":
                world.after(fault.args[0], partial(world.kill, world.here))
        if self._subscription:
            for ledger in cluster.storage.values():
                ledger.cursors.pop("keeper", None)
            if world.dice("subscription").random() < 0.5:
                for name in cluster.names(TOPIC):
                    cluster.trim(name)

    def _publish(self, world: World, cluster: Cluster, plan: Plan, dice: Random) -> None:
        """Publish as foreign producers do while the query runs."""
        self._publishes_until = world.now
        for n in range(4 * plan.size):
            at = dice.random() * 0.5 * plan.size

            def publish(n: int = n) -> None:
                names = cluster.names(TOPIC)
                name = names[dice.randrange(len(names))]
                self._publish_to(cluster, name, dice, f"live-{n}", 1000 + n)

            world.after(at, publish)
            self._publishes_until = max(self._publishes_until, world.now + at)

    def _publish_to(self, cluster: Cluster, name: str, dice: Random, prefix: str, n: int) -> None:
        values = [self._value_of(f"{prefix}.{i}") for i in range(dice.choice((1, 1, 3)))]
        cluster.publish(name, values, sequence_id=n)

    def _live(self, world: World, plan: Plan, cluster: Cluster, query: Query, *, fails: bool) -> str:
        give_up = world.now + 900.0
        batches = 0

        def has_all() -> bool:
            nonlocal batches
            if world.now >= give_up:
                return True
            self._check_progress(query)
            if world.now > self._publishes_until + 60.0:
                # Thousands of empty triggers would add no information.
                query.interval = 0.1 if len(query.checkpoint.offsets) > batches else 5.0
                batches = len(query.checkpoint.offsets)
            return world.now > self._publishes_until and self._is_complete(cluster, query, fails=fails)

        for _ in range(MAX_LIVES):
            error = query.life(until=has_all)
            if error is None:
                break
            if isinstance(error, DataLossError):
                self._check_loss(cluster, query, error, fails=fails)
                self._check_batches(cluster, query, fails=fails)
                return "data loss"
            self._check_allowed(plan, error)
            world.sleep(world.dice("restart").choice((0.0, 0.0, 1.0)))
        else:
            raise ViolationError("the query fails too often")
        self._check_batches(cluster, query, fails=fails)
        if world.now >= give_up:
            raise ViolationError(f"the query makes no progress; offsets {query.checkpoint.offsets[-1:]}")
        return "read"

    @staticmethod
    def _check_allowed(plan: Plan, error: BaseException) -> None:
        check_allowed(plan, error)

    @staticmethod
    def _check_progress(query: Query) -> None:
        sink = query.checkpoint.sink
        last = range(len(sink) - MAX_EMPTY_BATCHES, len(sink))
        if last[0] >= 0 and not any(sink.get(number) for number in last):
            raise ViolationError(f"{len(last)} batches without a row; offsets {query.checkpoint.offsets[-1:]}")

    def _check_loss(self, cluster: Cluster, query: Query, error: DataLossError, *, fails: bool) -> None:
        if not fails:
            raise ViolationError(f"an error despite failOnDataLoss=false: {error}") from error
        if self._subscription and not self._removal:
            raise ViolationError(f"a loss though the subscription keeps everything: {error}") from error
        log = query.checkpoint
        last = log.offsets[-1][len(log.offsets) - 1 in log.committed] if log.offsets else None
        begins = {} if last is None else {str(at): begin for at, begin in offsets_from_json(last).items()}
        spans = [(name, begins.get(name, EARLIEST), LATEST) for name in cluster.names(TOPIC)]
        if not may_look_removed(cluster, spans):
            raise ViolationError(f"a loss though nothing was removed: {error}") from error

    def _is_complete(self, cluster: Cluster, query: Query, *, fails: bool) -> bool:
        """Return whether the last committed batch reaches the last row of every partition.

        Removed rows count only if their loss must be reported (`failOnDataLoss=true`), and not if nothing of their
        partition was read before: they are not requested then.
        """
        log = query.checkpoint
        if not log.offsets and cluster.world.now > self._publishes_until + 60.0:
            # It began after everything, or no entries were left from its start on.
            return self._begins_at_latest or not any(
                self._wanted_rows(cluster, name, removed=False) for name in cluster.names(TOPIC)
            )
        if not log.offsets or len(log.offsets) - 1 not in log.committed:
            return False
        ends = _logged_ends(query)
        for name in cluster.names(TOPIC):
            end = ends.get(name, EARLIEST)
            rows = self._wanted_rows(cluster, name, removed=end > EARLIEST and fails)
            if rows and oracle.row_position(rows[-1]) > end:
                return False
        return True

    @staticmethod
    def _wanted_rows(cluster: Cluster, name: str, *, removed: bool) -> list[oracle.Row]:
        """Return the rows of a topic-partition that a query from its beginning on should read."""
        gone = set() if removed else oracle.gone_rows(cluster, name)
        return [row for row in oracle.rows_of(cluster, name) if row not in gone]

    @staticmethod
    def _check_rows(
        cluster: Cluster,
        at: TopicPartition,
        start: Position,
        end: Position,
        rows: Sequence[Mapping[str, Any]],
        **how: bool,
    ) -> None:
        """Check the rows of a range; `how` has further arguments of `oracle.check_range`."""
        oracle.check_range(cluster, at, start, end, oracle.found_rows(rows), **how)

    def _check_batches(self, cluster: Cluster, query: Query, *, fails: bool) -> None:
        """Check that each run of a batch has the expected rows of its range.

        Raises:
            ViolationError: one does not.
        """
        begins = offsets_from_json(query.checkpoint.offsets[0][0]) if query.checkpoint.offsets else {}
        for number, rows in query.checkpoint.replays:
            start, end = (offsets_from_json(offset) for offset in query.checkpoint.offsets[number])
            # The end names the first entry of what is read for the first time.
            own = decode_begins(query.checkpoint.offsets[number][1]) or {}
            for at in end:
                mine = [r for r in rows if r["topic"] == at.topic and r["partition"] == at.partition]
                begin = own.get(at, start.get(at, EARLIEST))
                try:
                    is_first = begins.get(at, EARLIEST) == start.get(at, EARLIEST)
                    self._check_rows(cluster, at, begin, end[at], mine, may_lose=not fails, is_first=is_first)
                except ViolationError as error:
                    raise ViolationError(f"batch {number}: {error}") from error


class StreamTrimmed(StreamRead):
    """A query with limits, whose topic loses the entries that were read at once, and no others: nothing is lost.

    If a trigger ends with a ledger that is removed afterwards, only the driver's earlier record shows that no entries
    followed in it: so the driver is not killed, and the whole backlog exists from the start.
    """

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 1.0 * size
        found = list(common_faults(dice, streams=8, processes=("executor-0", "executor-1"), seconds=seconds))
        kinds = ("unload", "unload", "kill_broker", "replace_bookie")
        return [*found, *cluster_faults(dice, kinds=kinds, partitions=3, seconds=seconds)]

    def _options(self, cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
        return {
            "startingOffsets": "earliest",
            "maxEntriesPerTrigger": here().dice("trimmed").choice(("1", "2", "3", "5")),
        }

    def _publish(self, world: World, cluster: Cluster, plan: Plan, dice: Random) -> None:
        self._topic_ends: set[tuple[str, Position]] = set()
        self._publishes_until = world.now
        for name in cluster.names(TOPIC):
            for n in range(3 * plan.size):
                cluster.publish(name, [f"more-{n}".encode()], sequence_id=2000 + n)

    def _trim(self, cluster: Cluster, query: Query) -> None:
        """Acknowledge entries read by earlier triggers, except up to an end of the topic that is not due to a limit.

        Without limits a trigger ends with the topic, or before an open transaction. If that end was removed after later
        entries, a query could not know whether entries between were lost.
        """
        if not query.limited or query.newest is None:
            return
        self._topic_ends |= {(str(tp), end) for tp, end in offsets_from_json(query.newest).items()}
        dice = here().dice("trimmed")
        for name, end in _logged_ends(query).items():
            if end != EARLIEST and (name, end) not in self._topic_ends and dice.random() < 0.7:
                cluster.acknowledge(name, "keeper", (end.ledger, end.entry))

    def _live(self, world: World, plan: Plan, cluster: Cluster, query: Query, *, fails: bool) -> str:
        def has_all() -> bool:
            self._trim(cluster, query)
            return self._is_complete(cluster, query, fails=fails)

        error = query.life(until=has_all)
        self._check_batches(cluster, query, fails=fails)
        if isinstance(error, DataLossError):
            self._check_loss(cluster, query, error, fails=fails)
            return "data loss"
        if error is not None:
            self._check_allowed(plan, error)
        return "read" if error is None else "failed"

    def _check_loss(self, cluster: Cluster, query: Query, error: DataLossError, *, fails: bool) -> None:
        raise ViolationError(f"a loss though only read messages were removed: {error}") from error


class StreamChunks(StreamRead):
    """A query whose topic has chunked messages, also with chunks on both sides of a trigger's end."""

    def _fill(self, cluster: Cluster, names: Sequence[str], dice: Random, entries: int) -> None:
        fill(cluster, names, dice, entries, chunks=True)

    def _publish_to(self, cluster: Cluster, name: str, dice: Random, prefix: str, n: int) -> None:
        if dice.random() < 0.5:
            super()._publish_to(cluster, name, dice, prefix, n)
            return
        at = 0.0
        for entry in cluster.publish_chunks(name, prefix.encode().ljust(20), 3, producer="live", sequence_id=n):
            cluster.world.after(at, partial(cluster.store, name, entry))
            self._publishes_until = max(self._publishes_until, cluster.world.now + at)
            at += dice.choice((0.0, 0.01, 1.0, 3.0))

    def _check_loss(self, cluster: Cluster, query: Query, error: DataLossError, *, fails: bool) -> None:
        if not (
            fails
            and "no first chunk" in str(error)
            and any(map(partial(oracle.gone_rows, cluster), cluster.names(TOPIC)))
        ):
            super()._check_loss(cluster, query, error, fails=fails)


class StreamChunksTrimmed(StreamChunks, StreamTrimmed):
    """A query whose topic loses the entries that were read at once, also the first chunks of unread messages."""


class StreamCompacted(StreamRead):
    """A query with `readCompacted`, whose topic is compacted, and loses the original messages of the compacted ledger.

    Each last message of a key is read, and each message that is not compacted; nothing is lost. A range may lack a
    message whose key has a newer one in the compacted ledger.
    """

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 0.5 * size
        processes = ("driver-0", "driver-1", "executor-0", "executor-1", "executor-2")
        found = list(common_faults(dice, streams=8, processes=processes, seconds=seconds))
        found += cluster_faults(
            dice, kinds=("unload", "kill_broker", "roll_over", "trim"), partitions=3, seconds=seconds
        )
        for _ in range(dice.choice((1, 2, 4))):
            at = round(dice.random() * seconds, 3)
            found.append(Fault("compact", at=at, args=(dice.randrange(3),)))
            found.append(Fault("acknowledge", at=at, args=(dice.randrange(3), round(dice.random(), 2))))
        return found

    def _fill(self, cluster: Cluster, names: Sequence[str], dice: Random, entries: int) -> None:
        self._keys = dice.choice((1, 2, 4))
        for name in names:
            cluster.subscribe(name, COMPACTION)
            for n in range(entries):
                self._publish_to(cluster, name, dice, f"{name.rsplit('-', 1)[-1]}-{n}", n)
            if dice.random() < 0.5:
                cluster.compact(name)
            if dice.random() < 0.5:
                cluster.roll_over(name)
                cluster.trim(name)

    def _options(self, cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
        return {**super()._options(cluster, names), "readCompacted": "true"}

    def _publish_to(self, cluster: Cluster, name: str, dice: Random, prefix: str, n: int) -> None:
        # An empty message removes its key.
        values = [f"{prefix}.{i}".encode() for i in range(dice.choice((0, 1, 1, 1, 2, 3)))] or [b""]
        cluster.publish(name, values, sequence_id=n, key=f"k{dice.randrange(self._keys)}")

    def _check_loss(self, cluster: Cluster, query: Query, error: DataLossError, *, fails: bool) -> None:
        raise ViolationError(f"a loss though nothing was removed that was not compacted: {error}") from error

    @staticmethod
    def _wanted_rows(cluster: Cluster, name: str, *, removed: bool) -> list[oracle.Row]:
        ledger, rows = cluster.storage[name], oracle.rows_of(cluster, name)
        latest = {ledger.history[row[:2]].key: row for row in rows if row[:2] <= ledger.horizon}
        return [row for row in rows if row[:2] > ledger.horizon or (row in latest.values() and row[3])]

    @classmethod
    def _check_rows(
        cls,
        cluster: Cluster,
        at: TopicPartition,
        start: Position,
        end: Position,
        rows: Sequence[Mapping[str, Any]],
        **how: bool,
    ) -> None:
        found = oracle.found_rows(rows)
        wanted = oracle.within(cls._wanted_rows(cluster, str(at), removed=True), start, end)
        stored = oracle.within(oracle.rows_of(cluster, str(at)), start, end)
        if not (oracle.is_part(wanted, found) and oracle.is_part(found, stored)):
            raise ViolationError(f"{at} ({start}, {end}]: {oracle.difference(found, wanted)} at least")


class BatchCompacted(StreamCompacted):
    """A batch read of such a topic."""

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = _readable_cluster(world, dice)
        names = cluster.create(TOPIC, dice.choice((0, 1, 2)))
        self._fill(cluster, names, dice, 6 * plan.size)
        options = {"readCompacted": "true", "maxBatchRows": dice.choice(("1", "3", "100"))} | in_small_tasks(world)
        if dice.random() < 0.4:
            options["minPartitions"] = str(dice.randint(2, 8))
        parsed = FORMAT.parse_options(options_of(cluster, **options))
        executors = Executors(speculation=dice.choice((0.0, 0.3)), zombies=dice.choice((0.0, 1.0)))
        arrange(world, cluster, names, plan.faults)
        try:
            ranges = list(FORMAT.plan(parsed, ()))
            work = [read_task(FORMAT, parsed, task, SCHEMA, executors) for task in ranges]
            found = executors.run(work, reading_attempt)
        except (MQSourceError, JobFailedError) as error:
            check_allowed(plan, error.cause if isinstance(error, JobFailedError) else error)
            return "failed"
        for name in names:
            mine = [(r, rows) for r, rows in zip(ranges, found, strict=True) if str(r.topic_partition) == name]
            rows = [row for _, some in mine for row in some]
            ends = [r.end for r, _ in mine]
            if mine:
                self._check_rows(cluster, mine[0][0].topic_partition, EARLIEST, max(ends), rows, may_lose=False)
            if wanted := oracle.within(
                self._wanted_rows(cluster, name, removed=True), max(ends, default=EARLIEST), LATEST
            ):
                raise ViolationError(f"{name}: {wanted} are in none of the ranges up to {ends}")
        oracle.check_nothing_leaks(cluster)
        return "read"


class Termination(StreamRead):
    """A query that ends with its topics, which are terminated after the last message."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`; over the longest time until the end."""
        seconds = 0.5 * size + 10.0
        processes = ("driver-0", "driver-1", "executor-0", "executor-1", "executor-2")
        found = list(common_faults(dice, streams=8, processes=processes, seconds=seconds))
        kinds = ("unload", "kill_broker", "roll_over", "replace_bookie", *(["trim"] if self._subscription else []))
        return [*found, *cluster_faults(dice, kinds=kinds, partitions=3, seconds=seconds)]

    def _options(self, cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
        return {**super()._options(cluster, names), "endAtTermination": "true"}

    def _publish(self, world: World, cluster: Cluster, plan: Plan, dice: Random) -> None:
        super()._publish(world, cluster, plan, dice)
        for number, name in enumerate(cluster.names(TOPIC)):
            after = self._publishes_until - world.now + dice.choice((0.01, 1.0, 5.0)) * dice.random()

            def terminate(number: int = number, name: str = name) -> None:
                # A broker cannot load a terminated topic without messages again (4.0.8).
                cluster.publish(name, [self._value_of(f"end-{number}")], sequence_id=5000 + number)
                cluster.terminate(name)

            world.after(after, terminate)

    def _live(self, world: World, plan: Plan, cluster: Cluster, query: Query, *, fails: bool) -> str:
        give_up = world.now + 900.0
        for _ in range(MAX_LIVES):
            error = query.life(until=lambda: world.now >= give_up)
            if isinstance(error, EndOfStreamError):
                self._check_end(cluster, query, fails=fails)
                return "ended"
            if error is not None:
                self._check_allowed(plan, error)
            if world.now >= give_up:
                raise ViolationError(f"the query does not end; offsets {query.checkpoint.offsets[-1:]}")
        raise ViolationError("the query fails too often")

    def _check_end(self, cluster: Cluster, query: Query, *, fails: bool) -> None:
        """Check that all topics were terminated, read and committed before the query ended.

        Raises:
            ViolationError: one was not.
        """
        alive = [name for name in cluster.names(TOPIC) if not cluster.storage[name].is_terminated]
        if alive:
            raise ViolationError(f"the query has ended, but {alive} may have more")
        log = query.checkpoint
        if not (self._begins_at_latest and not log.offsets) and not self._is_complete(cluster, query, fails=fails):
            raise ViolationError(f"the query has ended before all was read; offsets {log.offsets[-1:]}")
        self._check_batches(cluster, query, fails=fails)


class ToAnEnd(Termination):
    """A query with `endingOffsets`, after which further messages are published."""

    def _options(self, cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
        dice = here().dice("ends")
        self._ends = {}
        for name in names:
            # An unload replaces a ledger without entries, so no position is in it.
            ledger, entry = cluster.publish(name, [self._value_of("first")], sequence_id=4000)
            self._ends[name] = Position(ledger, entry + dice.choice((0, 0, 1, 4)))
        ends = json.dumps({name: asdict(at) for name, at in self._ends.items()})
        return {"startingOffsets": "earliest", "endingOffsets": ends}

    def _publish(self, world: World, cluster: Cluster, plan: Plan, dice: Random) -> None:
        StreamRead._publish(self, world, cluster, plan, dice)
        for name in self._ends:
            for n in range(6):

                def publish(name: str = name, n: int = n) -> None:
                    cluster.publish(name, [self._value_of(f"end-{n}")], sequence_id=5000 + n)

                world.after(self._publishes_until - world.now + 0.1 * n, publish)

    def _check_end(self, cluster: Cluster, query: Query, *, fails: bool) -> None:
        """Check that all batches have the expected rows and, if there are any, that they end at the ending offsets.

        Raises:
            ViolationError: one does not.
        """
        for name, end in _logged_ends(query).items():
            stop, uncounted = self._ends[name], cluster.storage[name].uncounted
            rows = [row for row in oracle.rows_of(cluster, name) if row[:2] not in uncounted]
            left = oracle.within(rows, end, stop)
            if end > stop or left:
                raise ViolationError(f"{name}: ended at {end}, not at {stop}, before {left}")
        self._check_batches(cluster, query, fails=fails)


class AvailableNow(StreamRead):
    """A query that is restarted with `Trigger.AvailableNow`, while messages are published and partitions added."""

    def _options(self, cluster: Cluster, names: Sequence[str]) -> Mapping[str, str]:
        return {}  # a query that has waited for its topic is capped again, which no oracle sees

    def _live(self, world: World, plan: Plan, cluster: Cluster, query: Query, *, fails: bool) -> str:
        query.limited = True
        give_up = world.now + 900.0
        failures = 0
        aim: dict[str, Position] = {}

        def note_aim() -> None:
            aim.update({name: Position(*cluster.storage[name].last) for name in cluster.names(TOPIC)})

        query.aimed = note_aim
        while not (world.now > self._publishes_until and self._is_complete(cluster, query, fails=fails)):
            due = {name: oracle.deliverable_rows(cluster, name) for name in cluster.names(TOPIC)}
            aim.clear()
            aim.update(_logged_ends(query))
            error = query.life(until=lambda: world.now >= give_up, available_now=True)
            if isinstance(error, DataLossError):
                self._check_loss(cluster, query, error, fails=fails)
                self._check_batches(cluster, query, fails=fails)
                return "data loss"
            if error is not None:
                check_allowed(plan, error)
                failures += 1
            else:
                if world.now >= give_up:
                    raise ViolationError(f"the query does not end; offsets {query.checkpoint.offsets[-1:]}")
                # Entries removed from a new partition before the query has seen it are not expected.
                left = {
                    name: [row for row in rows if row[0] not in cluster.storage[name].removed]
                    for name, rows in due.items()
                }
                self._check_reached(query, left, aim)
            if failures >= MAX_LIVES:
                raise ViolationError("the query fails too often")
            world.sleep(world.dice("scenario").choice((0.2, 1.0, 5.0)))
        self._check_batches(cluster, query, fails=fails)
        return "read"

    def _check_reached(
        self, query: Query, due: Mapping[str, Sequence[oracle.Row]], aim: Mapping[str, Position]
    ) -> None:
        """Check that a life without a failure has read the messages that were present at its start, and no newer ones.

        Raises:
            ViolationError: it has not.
        """
        log = query.checkpoint
        if log.offsets and len(log.offsets) - 1 not in log.committed:
            raise ViolationError("the query has ended before its last batch was committed")
        ends = _logged_ends(query)
        for name, rows in due.items():
            if (
                rows
                and (ends or not self._begins_at_latest)
                and ends.get(name, EARLIEST) < oracle.row_position(rows[-1])
            ):
                raise ViolationError(f"{name}: ended at {ends.get(name)}, but {rows[-1]} existed before")
        # A new query determines its end before its start, so the start may be past the end; nothing is read then.
        began = {str(tp): at for tp, at in offsets_from_json(log.offsets[0][0]).items()} if log.offsets else {}
        for name, end in ends.items():
            if end > max(aim.get(name, EARLIEST), began.get(name, EARLIEST)):
                raise ViolationError(f"{name}: ended at {end}, but {aim.get(name)} was last at the start")


def _logged_ends(query: Query) -> dict[str, Position]:
    if not query.checkpoint.offsets:
        return {}
    return {str(tp): position for tp, position in offsets_from_json(query.checkpoint.offsets[-1][1]).items()}


CHUNK_BYTES = 300
"""`maxMessageSize` for messages in chunks: room for the metadata of a chunk and some of its payload."""


class Write:
    """A write while producers are closed, receipts are lost, and attempts are killed, duplicated and repeated.

    Args:
        guarantee: `at-least-once`, `exactly-once` or `transaction`.
        streams: whether it writes the micro-batches of a query, which are repeated; otherwise one `save`.
        chunks: whether some messages exceed the brokers' maximum, and are sent in chunks.
    """

    def __init__(self, guarantee: str, *, streams: bool = False, chunks: bool = False) -> None:
        self._guarantee = guarantee
        self._streams = streams
        self._chunks = chunks

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 0.1 * size
        processes = ("executor-0", "executor-1", "executor-2")
        found = list(common_faults(dice, streams=6, processes=processes, seconds=seconds))
        found += cluster_faults(dice, kinds=("unload", "unload", "kill_broker"), partitions=3, seconds=seconds)
        most = (4 * size + 4) * (3 if self._chunks else 1)
        found += write_faults(dice, most)
        if self._guarantee == "transaction":
            draw = dice.random()
            # Longer than transactionTimeout.
            if draw < 0.1:
                found.append(Fault("stop", at=dice.random() * seconds, args=(dice.choice(processes), 150.0)))
            elif draw < 0.2:
                found.append(Fault("slow_input", args=(dice.choice((45.0, 90.0, 150.0)),)))
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = Cluster(
            world,
            brokers=dice.choice((1, 1, 2, 3)),
            ledger_entries=dice.choice((3, 5, 10)),
            deduplicates=self._guarantee == "exactly-once" or dice.random() < 0.3,
            coordinators=2 if self._guarantee == "transaction" else 0,
            **({"max_message_bytes": CHUNK_BYTES} if self._chunks else {}),
        )
        names = cluster.create(TOPIC, dice.choice((0, 1, 2, 3)))
        for name in names:
            cluster.subscribe(name, "keeper")
        arrange_writes(cluster.writes, plan.faults)
        arrange(world, cluster, names, plan.faults)
        options = {
            "deliveryGuarantee": self._guarantee,
            "batchingMaxMessages": str(dice.choice((1, 3, 10))),
        }
        if self._guarantee == "transaction":
            options["transactionTimeout"] = "120s"
        if dice.random() < 0.3:
            options["maxPendingBytes"] = "300"
        if self._chunks:
            options["chunking"] = "true"
        keyed = dice.random() < 0.5
        parsed = FORMAT.parse_write_options(options_of(cluster, **options), ["value", "key"] if keyed else ["value"])
        executors = Executors(
            speculation=dice.choice((0.0, 0.3)), zombies=dice.choice((0.0, 0.5)), slow=dice.choice((0.0, 0.0, 0.05))
        )
        executors.slow = max([executors.slow, *(fault.args[0] for fault in plan.faults if fault.kind == "slow_input")])
        batches = dice.randint(1, 3) if self._streams else 1
        written: list[bytes] = []
        outcome = "written"
        for batch in range(batches):
            tasks = _rows_to_write(
                dice, f"b{batch}", dice.randint(1, 3), 6 * plan.size, keyed=keyed, large=self._chunks
            )
            values = [value for task in tasks for rows in task for value in rows.column("value").to_pylist()]
            succeeded = self._write(world, plan, parsed, tasks, executors, batch if self._streams else None, dice)
            written += values
            if succeeded != "written":
                self._settle(world)
                self._check(cluster, written[: len(written) - len(values)], values, complete=False, outcome=succeeded)
                outcome = succeeded
                break
            world.note(f"batch {batch} is written")
        else:
            self._settle(world)
            self._check(cluster, written, [], complete=True, outcome="written")
        oracle.check_nothing_leaks(cluster)
        return outcome

    def _write(
        self,
        world: World,
        plan: Plan,
        options: Any,
        tasks: Sequence[Sequence[pa.RecordBatch]],
        executors: Executors,
        batch: int | None,
        dice: Random,
    ) -> str:
        job = f"job-{world.count('jobs')}" if batch is None else "query"
        times = 1 if batch is None or self._guarantee != "exactly-once" else dice.choice((1, 1, 2, 3))
        outcome = "failed"
        for _ in range(times + 3 if batch is not None and self._guarantee == "exactly-once" else 1):
            try:
                write(FORMAT, options, tasks, executors, job_id=job, batch_id=batch)
            except JobFailedError as failed:
                check_allowed_write(plan, executors, failed.cause)
                outcome = "failed"
            except MQSourceError as error:
                check_allowed_write(plan, executors, error, commits=True)
                outcome = "not committed"
            else:
                outcome = "written"
                times -= 1
                if times <= 0:
                    break
                world.note("the batch is done over")
        return outcome

    @staticmethod
    def _settle(world: World) -> None:
        # Until the last transaction has timed out: one of 120 s, opened by an attempt that was stopped for 150 s.
        world.sleep(300.0)

    def _check(
        self, cluster: Cluster, before: Sequence[bytes], values: Sequence[bytes], *, complete: bool, outcome: str
    ) -> None:
        """Check that the visible rows satisfy the guarantee.

        Args:
            cluster: has the rows.
            before: the rows of successful writes.
            values: of a write that failed.
            complete: whether no write failed.
            outcome: the outcome of the last write.
        """
        visible = [row[3] for name in cluster.names(TOPIC) for row in oracle.rows_of(cluster, name)]
        lost = [value for value in before if value not in visible]
        if lost:
            raise ViolationError(f"lost: {oracle.difference(visible, before)}")
        strange = [value for value in visible if value not in before and value not in values]
        if strange:
            raise ViolationError(f"never written: {strange[:8]}")
        if self._guarantee != "at-least-once":
            twice = sorted({value for value in visible if visible.count(value) > 1})
            if twice:
                raise ViolationError(f"twice: {twice[:8]}")
        if self._guarantee == "transaction":
            for name in cluster.names(TOPIC):
                ongoing = cluster.buffers[name].ongoing
                if ongoing:
                    raise ViolationError(f"{name}: transactions are still open: {ongoing}")
            if outcome == "failed":
                shown = [value for value in values if value in visible]
                if shown:
                    raise ViolationError(f"visible, though the write failed: {shown[:8]}")


def check_allowed_write(plan: Plan, executors: Executors, error: BaseException, *, commits: bool = False) -> None:
    """Check that an error may end a write.

    Raises:
        ViolationError: it may not.
    """
    kinds = {fault.kind for fault in plan.faults}
    if isinstance(error, ResourceBusyError | ServiceNotReadyError) and (executors.speculation or executors.zombies):
        return  # attempts at the same task take over each other's producer name
    if isinstance(error, RequestTimeoutError | BrokerError) and plan.faults:
        return
    if commits and isinstance(error, BrokerError) and plan.faults:
        return
    if isinstance(error, ReplayError) and kinds & {"send_checksum", "send_fail", "send_fail_stored"}:
        return  # the stored entries have a gap, which cannot be filled
    check_allowed(plan, error)


def _rows_to_write(
    dice: Random, name: str, tasks: int, rows: int, *, keyed: bool, large: bool
) -> list[list[pa.RecordBatch]]:
    found = []
    for task in range(tasks):
        batches = []
        left = dice.randint(0, rows)
        n = 0
        while left > 0:
            count = dice.randint(1, left)
            values = [
                f"{name}-{task}-{n + i}".encode()
                + b"." * (dice.randrange(2 * CHUNK_BYTES) if large and dice.random() < 0.4 else dice.randint(0, 20))
                for i in range(count)
            ]
            columns = {"value": pa.array(values, pa.binary())}
            if keyed:
                columns["key"] = pa.array([f"k{dice.randrange(4)}".encode() for _ in range(count)], pa.binary())
            batches.append(pa.RecordBatch.from_pydict(columns))
            n, left = n + count, left - count
        found.append(batches)
    return found


DEAD = "persistent://public/default/dead"

TEXT_SCHEMA = pa.schema([("value", pa.string()), *list(SCHEMA)[1:]])


def _good_or_bad(name: str) -> bytes:
    """Return the value of a name; every third one is not UTF-8."""
    value = name.encode()
    return b"\xff" + value if sum(value) % 3 == 0 else value


def _is_good(row: oracle.Row) -> bool:
    return not row[3].startswith(b"\xff")


class _Watched(PulsarFormat):
    """The format, with a check at each batch of a task that the dead letters before its last row are stored.

    Attributes:
        attempts: the number of task attempts whose range had each bad value.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.attempts: Counter[bytes] = Counter()

    def read(
        self, options: Any, task: Any, schema: pa.Schema, counters: Any = None, *, tries: int = 0
    ) -> Iterator[pa.RecordBatch]:
        """See `PulsarFormat`."""
        at = task.topic_partition
        self.attempts.update(self._bad(at, task.start, task.end))
        for batch in super().read(options, task, schema, counters, tries=tries):
            if batch.num_rows:
                (last,) = oracle.found_rows(batch.slice(batch.num_rows - 1).to_pylist())
                self.check(at, task.start, oracle.row_position(last))
            yield batch
        self.check(at, task.start, task.end)

    def check(self, at: TopicPartition, start: Position, end: Position) -> None:
        """Check that the bad messages of a range are in the dead letter topic.

        Raises:
            ViolationError: one is not.
        """
        letters = self.letters()
        lost = [value for value in self._bad(at, start, end) if value not in letters]
        if lost:
            raise ViolationError(f"{at} ({start}, {end}] is passed on without its dead letters: {lost[:8]}")

    def letters(self) -> Counter[bytes]:
        """Return the values in the dead letter topic, and how often each."""
        names = self._cluster.names(DEAD) if DEAD in self._cluster.partitions else []
        return Counter(row[3] for name in names for row in oracle.rows_of(self._cluster, name))

    def _bad(self, at: TopicPartition, start: Position, end: Position) -> list[bytes]:
        rows = oracle.within(oracle.rows_of(self._cluster, str(at)), start, end)
        return [row[3] for row in rows if not _is_good(row)]


class DeadLetters(StreamRead):
    """A stream or a batch read of good and bad messages, with faults of their topic and of the dead letter topic.

    A bad message is in the dead letter topic before its batch is passed on, and so before it is committed. It has
    duplicates there only if a task or a send was retried. Each good message is read once.
    """

    _value_of = staticmethod(_good_or_bad)

    def __init__(self) -> None:
        super().__init__(subscription=False, removal=False)

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        if dice.random() < 0.2:
            return []  # without faults no retry duplicates a letter
        return [*super().faults(dice, size), *write_faults(dice, 2 * size)]

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = _readable_cluster(world, dice)
        names = cluster.create(TOPIC, dice.choice((0, 1, 2, 3)))
        fill(cluster, names, dice, dice.choice((2, 2, 4)) * plan.size, value_of=self._value_of)
        for name in names:
            cluster.subscribe(name, "keeper")
        options = options_of(
            cluster,
            valueFormat="string",
            onCorrupt="deadLetter",
            deadLetterTopic=DEAD,
            receiverQueueSize=dice.choice(("2", "10", "1000")),
            maxBatchRows=dice.choice(("1", "3", "100")),
        )
        if dice.random() < 0.5:
            options["createTopic"] = "true"
            watched = names
        else:
            watched = [*names, *cluster.create(DEAD, dice.choice((0, 0, 2)))]
        if dice.random() < 0.4:
            options["minPartitions"] = str(dice.randint(2, 8))
        arrange_writes(cluster.writes, plan.faults)
        arrange(world, cluster, watched, plan.faults)
        executors = Executors(
            speculation=dice.choice((0.0, 0.3)), zombies=dice.choice((0.0, 1.0)), slow=dice.choice((0.0, 0.05, 0.3))
        )
        format_ = _Watched(cluster)
        if dice.random() < 0.5:
            outcome = self._stream(world, plan, cluster, format_, options, executors)
        else:
            parsed = FORMAT.fit_read(FORMAT.parse_options(options), TEXT_SCHEMA)
            outcome = self._read(plan, cluster, format_, parsed, executors)
        oracle.check_nothing_leaks(cluster)
        check_letters(plan, format_.letters(), format_.attempts)
        return outcome

    def _stream(
        self,
        world: World,
        plan: Plan,
        cluster: Cluster,
        format_: _Watched,
        options: dict[str, str],
        executors: Executors,
    ) -> str:
        dice = world.dice("scenario")
        options["startingOffsets"] = "earliest"
        if dice.random() < 0.5:
            options[dice.choice(("maxEntriesPerTrigger", "maxRowsPerTrigger"))] = str(dice.choice((1, 3, 10)))
        parsed = FORMAT.fit_read(FORMAT.parse_stream_options(options), TEXT_SCHEMA)
        query = Query(format_, parsed, TEXT_SCHEMA, executors, Checkpoint(), limited=dice.random() < 0.8)
        self._begins_at_latest = False

        def check_batch(number: int, _: list[list[dict[str, Any]]]) -> None:
            start, end = (offsets_from_json(offset) for offset in query.checkpoint.offsets[number])
            for at in end:
                format_.check(at, start.get(at, EARLIEST), end[at])

        query.sink = check_batch
        self._publish(world, cluster, plan, dice)
        return self._live(world, plan, cluster, query, fails=True)

    def _read(self, plan: Plan, cluster: Cluster, format_: _Watched, options: Any, executors: Executors) -> str:
        try:
            ranges = list(format_.plan(options, ()))
            work = [read_task(format_, options, task, TEXT_SCHEMA, executors) for task in ranges]
            found = executors.run(work, reading_attempt)
        except (JobFailedError, MQSourceError) as failed:
            self._check_allowed(plan, failed.cause if isinstance(failed, JobFailedError) else failed)
            return "failed"
        for task, rows in zip(ranges, found, strict=True):
            self._check_rows(cluster, task.topic_partition, task.start, task.end, rows, may_lose=False)
        return "read"

    @staticmethod
    def _check_rows(
        cluster: Cluster,
        at: TopicPartition,
        start: Position,
        end: Position,
        rows: Sequence[Mapping[str, Any]],
        **how: bool,
    ) -> None:
        found = oracle.found_rows([{**row, "value": row["value"].encode()} for row in rows])
        oracle.check_range(cluster, at, start, end, found, is_wanted=_is_good, **how)

    @staticmethod
    def _check_allowed(plan: Plan, error: BaseException) -> None:
        if not (isinstance(error, RequestTimeoutError | BrokerError) and plan.faults):  # a dead letter's
            check_allowed(plan, error)


class Commits:
    """The end of a job: the driver commits or aborts the transactions of all its tasks, sometimes very many."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        found = list(common_faults(dice, streams=3, processes=("nobody",), seconds=0.5))
        found += cluster_faults(dice, kinds=("unload", "kill_broker"), partitions=3, seconds=0.1)
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = Cluster(world, brokers=dice.choice((1, 2)), ledger_entries=200, coordinators=2)
        names = cluster.create(TOPIC, dice.choice((0, 2)))
        parsed = FORMAT.parse_write_options(
            options_of(cluster, deliveryGuarantee="transaction", transactionTimeout="120s"), ["value"]
        )
        # A window of the driver has 500.
        count = dice.choice((3, 20, 20, 20, 501, 620 + dice.randrange(500)))
        reports = []
        written: list[bytes] = []
        for n in range(count):
            txn = cluster.coordinators.begin(dice.randrange(2), 120_000)
            name = names[dice.randrange(len(names))]
            cluster.coordinators.add(txn, (name,))
            written.append(f"row-{n}".encode())
            position = cluster.publish(name, [written[-1]], txn=txn)
            if count <= 20 and dice.random() < 0.5:
                cluster.publish(name, [f"{FOREIGN}{n}".encode()])
            reports.append(WriteReport(1, Transaction(*txn, TopicPartition.parse(name), Position(*position))))
        if times_out := dice.random() < 0.3:
            # Some transactions time out while the driver ends them, or all just before.
            world.sleep(120.0 - dice.choice((0.05, 0.5, 2.0)) * dice.random())
        arrange(world, cluster, names, plan.faults)
        commits = dice.random() < 0.7
        outcome = "committed" if commits else "aborted"
        try:
            (FORMAT.commit if commits else FORMAT.abort)(parsed, reports)
        except MQSourceError as error:
            if not (times_out and isinstance(error, BrokerError)):
                check_allowed_write(plan, Executors(), error)
            outcome = "not committed"
        at_once = len(_visible(cluster))
        world.sleep(200.0)
        visible = _visible(cluster)
        if outcome == "committed" and sorted(visible) != sorted(written):
            raise ViolationError(f"the commit succeeded: {oracle.difference(visible, written)}")
        if outcome == "aborted" and visible:
            raise ViolationError(f"visible though aborted: {visible[:8]}")
        if outcome == "aborted" and not plan.faults and any(b.ongoing for b in cluster.buffers.values()):
            raise ViolationError(f"open though aborted; {at_once}")
        if len(visible) != len(set(visible)):
            raise ViolationError("duplicate rows")
        oracle.check_nothing_leaks(cluster)
        return outcome


FOREIGN = "foreign-"


def _visible(cluster: Cluster) -> list[bytes]:
    values = [row[3] for name in cluster.names(TOPIC) for row in oracle.rows_of(cluster, name)]
    return [value for value in values if not value.startswith(FOREIGN.encode())]


class Rebuilt:
    """A query whose positions are past the end, because the cluster was rebuilt or restored from an older copy.

    Args:
        restored: whether the cluster was restored with a part of its entries.
    """

    def __init__(self, *, restored: bool = False) -> None:
        self._restored = restored

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        return list(common_faults(dice, streams=8, processes=("driver-1",), seconds=2.0))

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = _readable_cluster(world, dice)
        names = cluster.create(TOPIC, dice.choice((0, 1, 2)))
        fill(cluster, names, dice, 4 + plan.size)
        for name in names:
            cluster.subscribe(name, "keeper")
        options = options_of(cluster, **({"subscription": "query"} if dice.random() < 0.5 else {}))
        parsed = FORMAT.parse_stream_options(options | {"startingOffsets": "earliest"})
        query = Query(FORMAT, parsed, SCHEMA, Executors(), Checkpoint(), limited=dice.random() < 0.5)
        ends: dict[TopicPartition, Position] = {}
        # Until the last foreign transaction has ended: its later marker could be stored at the query's position.
        until = world.now + 3.0
        for _ in range(MAX_LIVES):
            error = query.life(until=lambda: bool(query.checkpoint.committed) and world.now > until)
            if error is None:
                ends = offsets_from_json(query.checkpoint.offsets[-1][1])
                break
            check_allowed(plan, error)
        if not ends:
            return "not begun"
        if self._restored:
            cluster.restore(lambda entries: dice.randint(0, entries // 2))
        else:
            cluster.rebuild()
        # Old positions are past the end there: fewer entries in ledgers of lower ids.
        for name in names:
            for n in range(dice.choice((0, 1, 3))):
                cluster.publish(name, [f"other-{n}".encode()])
        if not any(at > Position(*cluster.storage[str(tp)].last) for tp, at in ends.items()):
            return "not past the end"
        began = world.now
        query.interval = 10.0
        for _ in range(5):
            error = query.life(until=lambda: world.now > began + 300.0)
            if isinstance(error, DataLossError):
                return "noticed"
            if error is None:
                break
            check_allowed(plan, error)
        raise ViolationError(f"positions {[f'{at} {p}' for at, p in ends.items()]} are past the end, without an error")


SCENARIOS: Mapping[str, Scenario] = {
    "available_now": AvailableNow(subscription=False, removal=False),
    "available_now_stored": AvailableNow(subscription=False, removal=False, stored=True),
    "available_now_subscription": AvailableNow(subscription=True, removal=False),
    "batch_read": BatchRead(removal=False),
    "batch_compacted": BatchCompacted(subscription=False, removal=False),
    "batch_read_removal": BatchRead(removal=True),
    "batch_read_chunks": BatchRead(chunks=True),
    "batch_read_stored": BatchRead(removal=True, stored=True),
    "commits": Commits(),
    "dead_letters": DeadLetters(),
    "queue_available_now": QueueStream(available_now=True),
    "queue_drain": QueueDrain(),
    "queue_peek": QueuePeek(),
    "queue_retry": QueueRetry(),
    "queue_stream": QueueStream(),
    "rebuilt": Rebuilt(),
    "restored": Rebuilt(restored=True),
    "stream": StreamRead(subscription=False, removal=False),
    "stream_2_10": StreamRead(subscription=False, removal=False, places_cursors=False),
    "stream_chunks": StreamChunks(subscription=False, removal=False),
    "stream_chunks_removal": StreamChunks(subscription=False, removal=True),
    "stream_chunks_trimmed": StreamChunksTrimmed(subscription=False, removal=False),
    "stream_compacted": StreamCompacted(subscription=False, removal=False),
    "stream_compacted_subscription": StreamCompacted(subscription=True, removal=False),
    "stream_removal": StreamRead(subscription=False, removal=True),
    "stream_stored": StreamRead(subscription=True, removal=True, stored=True),
    "stream_subscription": StreamRead(subscription=True, removal=False),
    "stream_trimmed": StreamTrimmed(subscription=False, removal=False),
    "stream_to_an_end": ToAnEnd(subscription=False, removal=False),
    "stream_to_an_end_subscription": ToAnEnd(subscription=True, removal=False),
    "termination": Termination(subscription=False, removal=False),
    "termination_subscription": Termination(subscription=True, removal=False),
    "write_at_least_once": Write("at-least-once"),
    "write_chunks_at_least_once": Write("at-least-once", chunks=True),
    "write_chunks_exactly_once": Write("exactly-once", streams=True, chunks=True),
    "write_chunks_transaction": Write("transaction", chunks=True),
    "write_exactly_once": Write("exactly-once"),
    "write_stream_exactly_once": Write("exactly-once", streams=True),
    "write_transaction": Write("transaction"),
}

LOTS: Mapping[str, int] = {
    **dict.fromkeys(("queue_available_now", "queue_drain", "queue_peek", "queue_retry", "queue_stream"), 3),
    **dict.fromkeys(("stream", "stream_2_10", "stream_removal", "stream_subscription"), 2),
}
"""Scenarios with more variants than one lot in the draw explores."""
