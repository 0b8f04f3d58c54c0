"""Scenarios of subscriptions as queues in the simulated world: faults and oracles.

Every published message is in a batch that Spark has committed, or was acknowledged by a foreign consumer. Spark has no
message twice; Spark and a foreign consumer both have a message only after a fault between the log and the
acknowledgement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, ClassVar

from spark_mq_source.core.errors import ResourceBusyError
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.protocol.commands import KeySharedMeta, KeySharedMode, SubType
from spark_mq_source.pulsar.read import queue_reader
from spark_mq_source.pulsar.read.recent import EntryRanges
from tests.simulation import files
from tests.simulation.explore import Fault, Plan, ViolationError, check_allowed, common_faults
from tests.simulation.pulsar import oracle
from tests.simulation.pulsar.broker import Cluster
from tests.simulation.pulsar.dispatch import Limits, Shared
from tests.simulation.pulsar.entries import Entry
from tests.simulation.pulsar.foreign import ForeignConsumer
from tests.simulation.pulsar.ledgers import Position
from tests.simulation.queues import (
    PATIENCE_SECONDS,
    PROCESSES,
    Patience,
    arrange_folder,
    check_replays,
    executors_of,
    folder_faults,
    folder_outcome,
    install,
    read_until,
    run_once,
)
from tests.simulation.spark import Checkpoint, Executors, Query, waiting_for_rows
from tests.simulation.world import World

FORMAT = PulsarFormat()
SCHEMA = oracle.SCHEMA
TOPIC, SUBSCRIPTION = "persistent://public/default/q", "s"

STRANDED_SECONDS = 120.0
"""Seconds without progress after which an operator looks for chunks that block a subscription."""

KINDS = {
    "exclusive": SubType.Exclusive,
    "failover": SubType.Failover,
    "shared": SubType.Shared,
    "key_shared": SubType.Key_Shared,
}

TYPES = ("shared", "shared", "key_shared", "failover", "exclusive")

Message = tuple[str, oracle.Row]
"""The topic-partition, and the row."""


# -- faults


def queue_faults(dice: Random, size: int) -> Sequence[Fault]:
    """Return the faults of a read of work of this size."""
    seconds = 2.0 * size
    return [
        *common_faults(dice, streams=12, processes=PROCESSES, seconds=seconds),
        *_own_faults(dice, seconds),
        *folder_faults(dice, seconds, tears=(0, 0, 0, 0, 0, 1)),
    ]


def _own_faults(dice: Random, seconds: float) -> Iterator[Fault]:
    def at() -> float:
        return round(dice.random() * seconds, 3)

    for _ in range(dice.choice((0, 1, 1, 2, 3))):
        kind = dice.choice(("unload", "kill_broker", "kill_broker", "roll_over", "replace_bookie"))
        if kind == "kill_broker":
            yield Fault(kind, at=at(), args=(dice.randrange(3), dice.choice((0.1, 0.5, 8.0))))
        elif kind == "replace_bookie":
            yield Fault(kind, at=at(), args=(dice.randrange(3), dice.randint(1, 4)))
        else:
            yield Fault(kind, at=at(), args=(dice.randrange(3),))
    for _ in range(dice.choice((0, 0, 1, 2, 3))):
        yield Fault("foreign", at=at(), args=(dice.randrange(3), dice.choice((0.2, 1.0, 10.0))))
    for _ in range(dice.choice((0, 0, 1, 2))):
        yield Fault("ack", args=(int(dice.random() * 4 * seconds), dice.choice(("lost", "unanswered", "refused"))))


HARMLESS = frozenset({"add_partition", "foreign", "roll_over", "replace_bookie", "wall_clock"})
"""Faults after which no acknowledged message is redelivered."""


class _CheckedInflow(queue_reader._Inflow):
    """The inflow of a task, with a check that after `settle` the broker has all acknowledgements but those returned.

    Attributes:
        queue: of the current world.
    """

    queue: ClassVar[SharedQueue]

    def settle(self) -> list[Position]:
        """See `_Inflow`."""
        refused = super().settle()
        self.queue.check_settled(str(self._task.topic_partition), EntryRanges([self.acknowledged]), refused)
        return refused


class SharedQueue:
    """A topic with its subscription, and the messages that foreign consumers have handled.

    Args:
        world: the queue's world.
        plan: has the faults.
        kinds: the types from which that of its subscription is drawn.
    """

    def __init__(self, world: World, plan: Plan, kinds: Sequence[str] = TYPES) -> None:
        _CheckedInflow.queue = self
        queue_reader._Inflow = _CheckedInflow  # type: ignore[misc]
        dice = world.dice("scenario")
        self.world = world
        self.plan = plan
        self.has_chunks = dice.random() < 0.3
        # FLOW of a blocked consumer is ignored, and chunks stay unacknowledged until their message is complete.
        limits = Limits() if self.has_chunks else Limits(dice.choice((4, 50_000)), dice.choice((8, 200_000)))
        self.most_unacknowledged = min(limits.consumer, limits.subscription)
        self.cluster = Cluster(
            world,
            brokers=dice.choice((1, 1, 2, 3)),
            ledger_entries=dice.choice((3, 5, 10)),
            batch_indexes=dice.random() < 0.5,
            limits=limits,
        )
        self.names = self.cluster.create(TOPIC, dice.choice((0, 1, 2, 3)))
        self.kind = dice.choice(kinds)
        self.begins_latest = any(fault.kind == "add_partition" for fault in plan.faults)
        self.is_sticky = self.kind == "key_shared" and dice.random() < 0.3
        self.handled: set[tuple[str, Position, int]] = set()
        self._parts: dict[tuple[str, Position], Sequence[Position]] = {}
        """All chunks of a message, by its topic-partition and last chunk."""
        self.began_ms = int(world.wall * 1000)
        self.publishes_until = world.now
        self.may_grow: Callable[[], bool] = lambda: False
        """Returns whether a query has begun, so that it reads all of a new topic-partition."""
        self._unsettled: list[str] = []
        self._last: dict[str, int] = {}

    @property
    def options(self) -> dict[str, str]:
        """Return the options of all its reads."""
        dice = self.world.dice("scenario")
        given = {
            "serviceUrl": self.cluster.url,
            "topic": TOPIC,
            "subscription": SUBSCRIPTION,
            "subscriptionType": self.kind,
            "initialPosition": "latest" if self.begins_latest else "earliest",
            "walDir": f"{files.SCHEME}wal",
            "maxBatchRows": dice.choice(("1", "3", "100")),
            "maxInFlight": dice.choice(("1", "4", "1000")),
        }
        if self.is_sticky:
            given |= {"keySharedMode": "sticky", "keyRanges": "0-30000,30001-65535"}
        elif self.kind in {"exclusive", "failover"} and self.world.dice("compacted").random() < 0.5:
            # Nothing is compacted here, but this option makes acknowledgements cumulative.
            given["readCompacted"] = "true"
        elif self.kind in {"shared", "key_shared"} and not self.plan.faults:
            # Above 1 a redelivered message may be in two tasks of a batch.
            given["consumersPerPartition"] = dice.choice(("1", "2", "3"))
        return given

    def publish(self, entries: int, seconds: float) -> None:
        """Publish entries as foreign producers do, over this time: messages and batches with few keys."""
        dice = self.world.dice("producers")
        for name in self.names:
            if dice.random() < 0.5 or self.begins_latest:
                self.cluster.subscribe(name, SUBSCRIPTION)
        for n in range(entries):
            at = dice.choice((0.0, dice.random())) * seconds
            self.world.after(at, lambda n=n: self._publish(n))
            self.publishes_until = max(self.publishes_until, self.world.now + at)

    def _publish(self, n: int) -> None:
        dice = self.world.dice("producers")
        name = dice.choice(self.names)
        key = dice.choice(("a", "b", "c", "d", "e"))
        if self.has_chunks and dice.random() < 0.3:
            value = f"{n:04d}.{key}".ljust(40, "+").encode()
            chunks = self.cluster.publish_chunks(name, value, dice.randint(2, 4), producer="p", sequence_id=n)
            again = self.world.dice("repeated").randrange(2 * len(chunks)) if not self.has_foreign else 0
            if 0 < again < len(chunks):  # the producer was restarted before its last chunk
                chunks = chunks[:again] + chunks
            elif again > len(chunks):  # a chunk before the last one was sent twice
                chunks.insert(again - len(chunks), chunks[again - len(chunks) - 1])
            self._store_chunks(name, chunks, [], dice.choice((0.0, 0.0, 0.1, 1.0)))
            return
        count = dice.choice((1, 1, 2, 5))
        self.cluster.publish(name, [f"{n:04d}.{key}.{i}".encode() for i in range(count)], sequence_id=n, key=key)

    def _store_chunks(self, name: str, chunks: Sequence[Entry], stored: list[Position], seconds: float) -> None:
        """Store the first chunk, and each other one within this time of the one before."""
        stored.append(self.cluster.store(name, chunks[0]))
        if len(chunks) == 1:
            self._parts[name, stored[-1]] = stored
        elif seconds:
            after = self.world.dice("producers").random() * seconds
            self.publishes_until = max(self.publishes_until, self.world.now + len(chunks) * seconds)
            self.world.after(after, lambda: self._store_chunks(name, chunks[1:], stored, seconds))
        else:
            self._store_chunks(name, chunks[1:], stored, seconds)

    def arrange(self) -> None:
        """Schedule the faults, at times from now on.

        - `unload`, `roll_over`: number of a topic-partition, including those of letters.
        - `kill_broker`: number of the broker, seconds until it runs again.
        - `replace_bookie`: number of a topic-partition, number of entries stored twice (`close_unrecorded`).
        - `add_partition`: no parameters; a partition is added once a query has begun (`may_grow`).
        - `foreign`: number of a topic-partition, seconds for which a foreign consumer joins it.
        - `ack`: number of an ACK, its fault; see `Cluster`.
        - `drop`: no parameters; all consumers lose their connections.
        - those of the folder, see `arrange_folder`.
        """
        world, cluster = self.world, self.cluster
        arrange_folder(world, self.plan.faults)
        cluster.ack_faults.update(fault.args for fault in self.plan.faults if fault.kind == "ack")

        def named(number: int) -> str:
            names = list(cluster.storage)
            return names[number % len(names)]

        calls: dict[str, Callable[..., Any]] = {
            "unload": lambda number: cluster.unload(named(number)),
            "roll_over": lambda number: cluster.load(named(number)).ledger.roll_over(),
            "kill_broker": cluster.kill_broker,
            "replace_bookie": lambda n, count: cluster.replace_bookie(self.names[n % len(self.names)], count),
            "add_partition": self._add_partition,
            "foreign": lambda number, seconds: self._foreign(named(number), seconds),
            "drop": self.drop_consumers,
        }
        for fault in self.plan.faults:
            if (call := calls.get(fault.kind)) is not None:
                world.after(fault.at, lambda call=call, args=fault.args: call(*args))

    def drop_consumers(self) -> None:
        """Close the connections of all consumers."""
        for connection in [one for broker in self.cluster.brokers for one in broker.connections if one.consumers]:
            connection.close()

    def _add_partition(self) -> None:
        if self.cluster.partitions[TOPIC] and self.may_grow():
            self.cluster.add_partitions(TOPIC, self.cluster.partitions[TOPIC] + 1)
            self.names = self.cluster.names(TOPIC)

    def _foreign(self, name: str, seconds: float) -> None:
        if self.is_sticky or self.kind == "exclusive" or self.cluster.owner(name) is None:
            return
        meta = KeySharedMeta(KeySharedMode.AUTO_SPLIT) if self.kind == "key_shared" else None
        self.stays_until = self.world.now + seconds
        ForeignConsumer(
            self.cluster,
            name,
            SUBSCRIPTION,
            KINDS[self.kind],
            seconds,
            meta,
            lambda at, position, indexes: self.handled.update((at, position, index) for index in indexes),
        )

    @property
    def has_foreign(self) -> bool:
        """Whether foreign consumers join."""
        return any(fault.kind == "foreign" for fault in self.plan.faults)

    @property
    def keeps_time(self) -> bool:
        """Whether the wall clock is never moved."""
        return all(fault.kind != "wall_clock" for fault in self.plan.faults)

    @property
    def is_calm(self) -> bool:
        """Whether no fault may redeliver Spark's messages to a foreign consumer.

        A consumer of a Failover subscription has a second to acknowledge its messages when another one is chosen.
        """
        is_harmless = all(fault.kind in HARMLESS for fault in self.plan.faults)
        return is_harmless and not (self.kind == "failover" and self.has_foreign)

    @property
    def state(self) -> str:
        """The positions and consumers of the subscriptions, for a message."""
        found = [self.kind]
        for name, topic in self.cluster.topics.items():
            for subscription in topic.subscriptions.values():
                at, has = subscription.cursor, [(one.name, one.permits, one.unacked) for one in subscription.consumers]
                found.append(f"{name} marked {at.mark} read {at.read} acked {sorted(at.acked)[:5]}, consumers {has}")
        return "; ".join(found)

    def free_stranded(self, *, loses_connections: bool) -> None:
        """Free a subscription as an operator does that chunks block permanently, a fault of brokers (seen on 4.0.8).

        Chunks are assigned to a consumer that left, if it was a foreign one without permits or lost its connection:
        the topic is unloaded. (A consumer of this package is closed with permits left, so the broker can send it the
        chunks.) Or the first chunk is gone, and the others are skipped: a foreign client without support for chunks
        has acknowledged it, or the broker removed its ledger and a kill made the broker forget that the others were
        acknowledged, too.

        Args:
            loses_connections: whether connections may be lost.

        Raises:
            ViolationError: a consumer of this package has left chunks behind without a lost connection.
        """
        for (name, _), parts in self._parts.items():
            ledger = self.cluster.load(name).ledger
            if any((name, position, 0) in self.handled for position in parts) or parts[0] not in ledger.entries:
                ledger.cursors[SUBSCRIPTION].delete([(position, ()) for position in parts], now=self.world.now)
        for name, topic in list(self.cluster.topics.items()):
            for subscription in topic.subscriptions.values():
                dispatcher = subscription.dispatcher
                stranded = dispatcher.stranded if isinstance(dispatcher, Shared) else {}
                for uuid, consumer in stranded.items():
                    is_lost = not consumer.was_closed and loses_connections
                    if not (isinstance(consumer.connection, ForeignConsumer) or is_lost):
                        raise ViolationError(f"{consumer.name} left {name} without permits, with some chunks of {uuid}")
                if stranded:
                    self.cluster.unload(name)

    # -- the oracle

    def published(self) -> list[Message]:
        """Return every readable message."""
        return [(name, row) for name in self.names for row in oracle.rows_of(self.cluster, name)]

    def missing(self, rows: Sequence[Mapping[str, Any]]) -> list[Message]:
        """Return the messages that Spark does not have and no foreign consumer has acknowledged.

        Delivery is not guaranteed for an uncounted entry, nor for its copy once the entry is acknowledged.
        """
        found, published = self.found(rows), self.published()
        left = [message for message in published if message not in found and not self.is_handled(message)]
        is_uncounted = {message: message[1][:2] in self.cluster.storage[message[0]].uncounted for message in published}
        copied = {(name, row[3]) for name, row in set(published) - set(left) if is_uncounted[name, row]}
        return [
            (name, row)
            for name, row in left
            if not is_uncounted[name, row]
            and not ((name, row[3]) in copied and self.cluster.storage[name].cursors[SUBSCRIPTION].is_deleted(row[:2]))
        ]

    def is_handled(self, message: Message) -> bool:
        """Return whether a foreign consumer has acknowledged it."""
        name, row = message
        # A consumer that acknowledges one chunk of a message takes it from all others.
        parts = self._parts.get((name, row[:2]), (row[:2],))
        return any((name, position, max(row[2], 0)) in self.handled for position in parts)

    @staticmethod
    def found(rows: Sequence[Mapping[str, Any]]) -> Counter[Message]:
        """Return the messages that were read, and how often each."""
        return Counter(zip(SharedQueue._names(rows), oracle.found_rows(rows), strict=True))

    @staticmethod
    def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
        return [
            row["topic"] if row["partition"] < 0 else f"{row['topic']}-partition-{row['partition']}" for row in rows
        ]

    def check_each_once(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that Spark has no message twice, none that was never published, and, if calm, none of other consumers.

        Raises:
            ViolationError: it has one.
        """
        self.check_not_twice(rows)
        self.check_published(rows)
        if self.is_calm:
            others = sorted(filter(self.is_handled, self.found(rows)))
            if others:
                raise ViolationError(f"read, and handled by others: {others[:8]}")

    def check_not_twice(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that no message was read twice.

        Raises:
            ViolationError: one was.
        """
        twice = sorted(message for message, n in self.found(rows).items() if n > 1)
        if twice:
            raise ViolationError(f"{len(twice)} messages twice: {twice[:8]}")

    def check_published(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that only published messages were read.

        Raises:
            ViolationError: another one was.
        """
        invented = sorted(self.found(rows).keys() - set(self.published()))
        if invented:
            raise ViolationError(f"never published: {invented[:8]}")

    def check_settled(self, name: str, acknowledged: EntryRanges, refused: Sequence[Position]) -> None:
        """Check that the broker has these acknowledgements except the refused ones, unless a kill made it forget them.

        Otherwise `check_nothing_leaks` raises.
        """
        if any("kill_broker" in (fault.kind, *fault.args) for fault in self.plan.faults):
            return
        ledger = self.cluster.storage[name]
        left = [at for at in ledger.entries if at in acknowledged and not ledger.cursors[SUBSCRIPTION].is_deleted(at)]
        if not set(left) <= set(refused):
            # An error raised here would only fail the attempt, which Spark retries.
            self._unsettled.append(f"{name}: {left} are not acknowledged, but only {refused} were refused")

    def check_chunks_settled(self) -> None:
        """Check that no chunk of an acknowledged message is left, also of those that were sent twice.

        Raises:
            ViolationError: a chunk is left.
        """
        for (name, last), parts in self._parts.items():
            cursor = self.cluster.storage[name].cursors[SUBSCRIPTION]
            left = [position for position in parts if not cursor.is_deleted(position)]
            if left and cursor.is_deleted(last) and not self.has_foreign:
                raise ViolationError(f"{name}: {left} are left of the message that {last} completes")

    def check_left(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that read messages are still in the subscription, unless a foreign consumer has handled them.

        Raises:
            ViolationError: one is not.
        """
        gone = [
            message
            for message in self.found(rows)
            if self.cluster.storage[message[0]].cursors[SUBSCRIPTION].is_deleted(message[1][:2])
            and not self.is_handled(message)
        ]
        if gone:
            raise ViolationError(f"acknowledged by a read that must not acknowledge: {gone[:8]}")

    def check_keys(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Check that the messages of each key are in order, for runs without faults in which each key has one task.

        Raises:
            ViolationError: they are not.
        """
        last: dict[tuple[str, bytes], oracle.Row] = {}
        for name, row in zip(self._names(rows), oracle.found_rows(rows), strict=True):
            key = row[3].split(b".")[1]
            if key in {b"a", b"b", b"c", b"d", b"e"} and row < last.get((name, key), row):
                raise ViolationError(f"{name}: {row} after {last[name, key]}")
            last[name, key] = row

    def check_nothing_leaks(self) -> None:
        """Check that some time after a run its processes have no open connection and its tasks have settled all.

        Raises:
            ViolationError: a connection is open, or a task has not settled.
        """
        if self._unsettled:
            raise ViolationError("; ".join(self._unsettled[:3]))
        oracle.check_nothing_leaks(self.cluster)


class Stranded(Patience):
    """A check that ends a run without progress, after it has freed chunks that block the subscription.

    Args:
        queue: the queue, whose world has the clock.
        loses_connections: whether connections may be lost, with consumers that have the first chunks of a message.
    """

    def __init__(self, queue: SharedQueue, *, loses_connections: bool) -> None:
        super().__init__(queue.world)
        self._loses_connections = loses_connections
        self._queue = queue
        self._reloaded = queue.world.now

    def rest(self) -> None:
        """See `Patience`."""
        super().rest()
        self._reloaded = self._since

    def _wait(self, left: Sequence[Message]) -> None:
        queue, now = self._queue, self._world.now
        if queue.has_chunks and now > self._reloaded + STRANDED_SECONDS:
            self._reloaded = now
            queue.free_stranded(loses_connections=self._loses_connections)
        elif now > self._since + PATIENCE_SECONDS:
            gone = [
                (name, row)
                for name, row in left
                if queue.cluster.storage[name].cursors[SUBSCRIPTION].is_deleted(row[:2])
            ]
            if gone:
                raise ViolationError(f"{len(gone)} messages are acknowledged and lost: {gone[:8]}")
            raise ViolationError(f"{len(left)} not read after {PATIENCE_SECONDS:.0f} s: {left[:8]}; {queue.state}")


def allowed_outcome(plan: Plan, error: BaseException) -> str:
    """Check that an error may end a run: one of the network, a broker or a disk that has a fault; return the outcome.

    Raises:
        ViolationError: there was no such fault, or it is another error.
    """
    if outcome := folder_outcome(plan, error):
        return outcome
    if isinstance(error, ResourceBusyError) and plan.faults:
        # A stopped consumer holds an Exclusive subscription until the broker checks its connection.
        return "busy"
    check_allowed(plan, error)
    return "allowed error"


def loses_connections(plan: Plan, executors: Executors) -> bool:
    """Return whether connections may be lost: by a fault, or with an attempt that is killed as no longer needed."""
    return bool(plan.faults) or (executors.speculation > 0 and executors.zombies < 1)


def drained(plan: Plan, options: Any, executors: Executors) -> list[list[dict[str, Any]]] | None:
    """Return the rows of each task of a batch read; None if its log is damaged. See `run_once`."""
    return run_once(FORMAT, SCHEMA, plan, options, executors, allowed_outcome)


class QueueStream:
    """A streaming query of a queue that reads everything, in as many lives of its driver as needed.

    Args:
        available_now: whether each life ends after the messages that were present at its start.
    """

    def __init__(self, *, available_now: bool = False) -> None:
        self._available_now = available_now

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        faults = list(queue_faults(dice, size))
        if dice.random() < 0.3:
            faults.append(Fault("add_partition", at=round(dice.random() * size, 3)))
        return faults

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        install()
        dice = world.dice("scenario")
        queue = SharedQueue(world, plan)
        given = queue.options
        if dice.random() < 0.5:
            given["maxRowsPerTrigger"] = dice.choice(("2", "7", "50"))
        else:
            given |= waiting_for_rows(world)
        if dice.random() < 0.5:
            given["idleTimeout"] = dice.choice(("50ms", "5s"))
        checkpoint = Checkpoint()
        query = Query(FORMAT, FORMAT.parse_stream_options(given), SCHEMA, executors_of(world), checkpoint)
        query.interval = dice.choice((0.1, 1.0))
        queue.may_grow = lambda: bool(checkpoint.committed)
        queue.arrange()
        queue.publish(6 * plan.size, 2.0 * plan.size)
        outcome = self._read(queue, query)
        queue.check_each_once(checkpoint.rows())
        check_replays(checkpoint)
        queue.check_chunks_settled()
        if (
            queue.kind == "key_shared"
            and not plan.faults
            and not query.executors.speculation
            and given.get("consumersPerPartition", "1") == "1"
        ):
            queue.check_keys(checkpoint.rows())
        queue.check_nothing_leaks()
        return outcome

    def _read(self, queue: SharedQueue, query: Query) -> str:
        patience = Stranded(queue, loses_connections=loses_connections(queue.plan, query.executors))

        def is_done() -> bool:
            left = queue.missing(query.checkpoint.rows())
            patience.check(left)
            return not left and queue.world.now > queue.publishes_until

        return read_until(queue.plan, query, is_done, allowed_outcome, available_now=self._available_now)


class QueueDrain:
    """Batch reads with `runId` until everything is read; each is repeated until it succeeds, and once more."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        return queue_faults(dice, size)

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        install()
        dice = world.dice("scenario")
        queue = SharedQueue(world, plan)
        given = queue.options | {"idleTimeout": dice.choice(("50ms", "2s", "5s")), "runId": "run"}
        if dice.random() < 0.5:
            given["maxRows"] = dice.choice(("2", "7", "50"))
        parsed = FORMAT.parse_options(given)
        executors = executors_of(world)
        queue.arrange()
        queue.publish(6 * plan.size, 2.0 * plan.size)
        rows: list[dict[str, Any]] = []
        patience, number = Stranded(queue, loses_connections=loses_connections(plan, executors)), 0
        while (left := queue.missing(rows)) or world.now <= queue.publishes_until:
            patience.check(left)
            number += 1
            options = replace(parsed, run_id=f"run-{number}")
            found, again = (drained(plan, options, executors) for _ in range(2))
            if found is None or again is None:
                return "torn"
            if found != again:
                raise ViolationError(f"run {number} was {found} and then {again}")
            run = [row for task in found for row in task]
            queue.check_each_once(run)
            rows += run
            if not run:
                world.sleep(1.0)
        if queue.is_calm:
            # After faults a run may read again the messages that another run could not finish.
            queue.check_each_once(rows)
        queue.check_nothing_leaks()
        return "read"


class QueuePeek:
    """Batch reads that leave the messages in their subscription (`ackMode=nack`).

    A read has no message twice, even after lost connections, and acknowledges nothing. Without faults the last one has
    as many messages of each topic-partition as its limits allow.
    """

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        found = [fault for fault in queue_faults(dice, size) if fault.kind not in {"fill_disk", "tear"}]
        drops = dice.choice((0, 0, 1, 3, 6))
        return found + [Fault("drop", at=round(dice.random() * 2.0 * size, 3)) for _ in range(drops)]

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        install()
        dice = world.dice("scenario")
        queue = SharedQueue(world, plan)
        most = dice.choice((4, 8, 30))
        given = {name: text for name, text in queue.options.items() if name not in {"walDir", "consumersPerPartition"}}
        given |= {"ackMode": "nack", "maxInFlight": str(most), "idleTimeout": dice.choice(("300ms", "2s"))}
        if dice.random() < 0.3:
            given["maxRows"] = dice.choice(("2", "7", "50"))
        options, executors = FORMAT.parse_options(given), executors_of(world)
        queue.arrange()
        queue.publish(6 * plan.size, 2.0 * plan.size)
        is_over = False
        while not is_over:
            is_over = world.now > queue.publishes_until
            found = drained(plan, options, executors)
            assert found is not None
            rows = [row for task in found for row in task]
            queue.check_not_twice(rows)
            queue.check_published(rows)
            queue.check_left(rows)
            world.sleep(dice.choice((0.1, 1.0)))
        if not plan.faults and not executors.speculation:
            self._check_complete(queue, rows, min(most, options.max_rows or most))
        queue.check_nothing_leaks()
        return "read"

    @staticmethod
    def _check_complete(queue: SharedQueue, rows: Sequence[Mapping[str, Any]], most: int) -> None:
        found = Counter(name for name, _ in queue.found(rows))
        for name, published in Counter(name for name, _ in queue.published()).items():
            # A broker stops at its limit of unacknowledged messages; a message in chunks counts as several there.
            if found[name] < min(published, 1 if queue.has_chunks else queue.most_unacknowledged, most):
                raise ViolationError(f"{found[name]} of {published} messages of {name} were read")
