"""How the package is used with Pulsar in the simulated world, what goes wrong meanwhile, and what must come of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import DataLossError, MQSourceError
from spark_mq_source.spark.pulsar import PulsarFormat
from tests.simulation.explore import Fault, Plan, Scenario, ViolationError, common_faults
from tests.simulation.pulsar import oracle
from tests.simulation.pulsar.broker import Cluster
from tests.simulation.spark import Executors, JobFailedError, read_task
from tests.simulation.spark import _reading as reading_attempt
from tests.simulation.world import World

FORMAT = PulsarFormat()

TOPIC = "persistent://public/default/t"

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        (
            "message_id",
            pa.struct([("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("batch_index", pa.int32())]),
        ),
    ]
)


# -- what goes wrong


CLUSTER_FAULTS = ("unload", "kill_broker", "trim", "expire", "truncate", "roll_over")


def cluster_faults(dice: Random, *, kinds: Sequence[str], partitions: int, seconds: float) -> Iterator[Fault]:
    """Faults of the cluster, a few or none."""
    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        kind = dice.choice(kinds)
        at = round(dice.random() * seconds, 3)
        if kind == "kill_broker":
            yield Fault(kind, at=at, args=(dice.randrange(3), dice.choice((0.5, 8.0))))
        else:
            yield Fault(kind, at=at, args=(dice.randrange(partitions),))


def arrange(world: World, cluster: Cluster, names: Sequence[str], faults: Sequence[Fault]) -> None:
    """Has the faults of the cluster happen at their times from now on.

    - `unload`, `trim`, `expire`, `truncate`, `roll_over`: number of a topic-partition.
    - `kill_broker`: number of the broker, seconds until it runs again.
    - `acknowledge`: number of a topic-partition; the foreign subscription acknowledges this part of its entries.
    """
    for fault in faults:
        call = _cluster_fault(cluster, names, fault)
        if call is not None:
            world.after(fault.at, call)


def _cluster_fault(cluster: Cluster, names: Sequence[str], fault: Fault) -> Callable[[], None] | None:
    world = cluster.world
    if fault.kind == "kill_broker":
        number, seconds = fault.args
        broker = cluster.brokers[number % len(cluster.brokers)]

        def kill() -> None:
            broker.kill()
            world.after(seconds, broker.start)

        return kill
    if fault.kind in {"unload", "trim", "expire", "truncate"}:
        name = names[fault.args[0] % len(names)]
        return lambda: getattr(cluster, fault.kind)(name)
    if fault.kind == "roll_over":
        name = names[fault.args[0] % len(names)]

        def roll_over() -> None:
            cluster.load(name).ledger.roll_over()

        return roll_over
    if fault.kind == "acknowledge":
        name, part = names[fault.args[0] % len(names)], fault.args[1]

        def acknowledge() -> None:
            ledger = cluster.load(name).ledger
            if "keeper" in ledger.cursors and ledger.entries:
                positions = list(ledger.entries)
                cluster.acknowledge(name, "keeper", positions[int(part * (len(positions) - 1))])

        return acknowledge
    return None


REMOVING = frozenset({"trim", "expire", "truncate", "acknowledge", "unload", "roll_over"})
"""Faults after which messages can be gone."""


def check_allowed(plan: Plan, error: BaseException) -> None:
    """An error of the network or a broker may end a run in which something went wrong.

    Raises:
        ViolationError: nothing did, or it is another error.
    """
    if isinstance(error, MQSourceError) and error.retryable and plan.faults:
        return
    if isinstance(error, ConnectionError) and any(fault.kind in {"kill", "stop"} for fault in plan.faults):
        return  # a worker was killed for the last time
    raise ViolationError(f"an error that is not allowed here: {type(error).__name__}: {error}") from error


def check_nothing_leaks(world: World, cluster: Cluster) -> None:
    """Some seconds after a run its processes hold nothing open.

    Raises:
        ViolationError: they do.
    """
    world.sleep(80.0)  # a half-open connection takes a minute to be found out by its broker
    for broker in cluster.brokers:
        for connection in broker.connections:
            if not connection.stream.process.alive or connection.stream.muted:
                continue
            raise ViolationError(
                f"{connection.stream.process} still has a connection to {broker.address}, with "
                f"{len(connection.consumers)} consumers and {len(connection.producers)} producers:\n{world.places()}"
            )
    for process in world.processes:
        if process is not world.test and process.alive and world.threads_of(process):
            raise ViolationError(f"{process} still has fibers:\n{world.places()}")


# -- what is there


def fill(cluster: Cluster, names: Sequence[str], dice: Random, entries: int) -> None:
    """Foreign producers publish: single messages, batches, and entries of transactions and in chunks."""
    for name in names:
        for n in range(entries):
            prefix = f"{name.rsplit('-', 1)[-1]}-{n}"
            count = dice.choice((1, 1, 2, 5))
            cluster.publish(name, [f"{prefix}.{i}".encode() for i in range(count)], sequence_id=n)


def options_of(cluster: Cluster, **more: str) -> dict[str, str]:
    """The options that every scenario has."""
    return {"serviceUrl": cluster.url, "topic": TOPIC, **more}


class BatchRead:
    """A batch read while topics move, brokers die and ledgers are removed.

    Args:
        removal: whether messages that are not read yet may be removed.
    """

    def __init__(self, *, removal: bool) -> None:
        self._removal = removal

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 0.3 * size
        found = list(common_faults(dice, streams=6, processes=("executor-0", "executor-1"), seconds=seconds))
        kinds = ("unload", "kill_broker", "roll_over")
        found += cluster_faults(dice, kinds=kinds, partitions=3, seconds=seconds)
        if self._removal:
            for _ in range(dice.choice((1, 1, 2))):
                kind = dice.choice(("acknowledge", "acknowledge", "expire", "truncate"))
                at = round(dice.random() * seconds, 3)
                part = round(dice.random(), 2)
                found.append(Fault(kind, at=at, args=(dice.randrange(3), part)))
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        dice = world.dice("scenario")
        cluster = Cluster(world, brokers=dice.choice((1, 1, 2, 3)), ledger_entries=dice.choice((3, 5, 10)))
        names = cluster.create(TOPIC, dice.choice((0, 1, 2, 3)))
        fill(cluster, names, dice, 6 * plan.size)
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
        parsed = FORMAT.parse_options(options_of(cluster, **options))
        executors = Executors(
            speculation=dice.choice((0.0, 0.3)), zombies=dice.choice((0.0, 1.0)), slow=dice.choice((0.0, 0.05, 0.3))
        )
        arrange(world, cluster, names, plan.faults)
        outcome = self._read(world, plan, cluster, parsed, executors, fails=fails)
        check_nothing_leaks(world, cluster)
        return outcome

    def _read(
        self, world: World, plan: Plan, cluster: Cluster, options: Any, executors: Executors, *, fails: bool
    ) -> str:
        names = cluster.names(TOPIC)
        before = {name: oracle.rows_of(cluster, name) for name in names}
        try:
            ranges = list(FORMAT.plan(options, ()))
        except MQSourceError as error:
            check_allowed(plan, error)
            return "not planned"
        kept = {name: set(cluster.storage[name].ledgers) for name in names}
        for name in names:
            mine = [r for r in ranges if str(r.topic_partition) == name]
            for row in before[name]:
                if row[0] in kept[name] and not any(r.start < oracle.row_position(row) <= r.end for r in mine):
                    raise ViolationError(f"{name}: {row} is in no range of {[str(r) for r in mine]}")
        try:
            work = [read_task(FORMAT, options, task, SCHEMA, executors) for task in ranges]
            found = executors.run(work, reading_attempt)
        except JobFailedError as failed:
            cause = failed.cause
            if isinstance(cause, DataLossError):
                if not fails:
                    raise ViolationError(f"failOnDataLoss=false, and yet: {cause}") from cause
                if not any(cluster.storage[name].removed for name in names):
                    raise ViolationError(f"nothing was removed, and yet: {cause}") from cause
                return "data loss"
            check_allowed(plan, cause)
            return "failed"
        for task, rows in zip(ranges, found, strict=True):
            oracle.check_range(
                cluster, task.topic_partition, task.start, task.end, oracle.found_rows(rows), may_lose=not fails
            )
        return "read"


SCENARIOS: Mapping[str, Scenario] = {
    "batch_read": BatchRead(removal=False),
    "batch_read_removal": BatchRead(removal=True),
}
