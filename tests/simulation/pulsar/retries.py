"""Batch reads in the simulated world that retry messages later, through the retry topic, until they are dead letters.

Every published message is handled, waits in the retry topic, or is a dead letter: a letter is stored before its
message is acknowledged. The letter's properties have the correct number of retries. A message has two letters only
after a fault between the letter and the acknowledgement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from spark_mq_source.core.errors import BrokerError, RequestTimeoutError
from tests.simulation import spark
from tests.simulation.explore import Fault, Plan, ViolationError
from tests.simulation.pulsar import oracle
from tests.simulation.pulsar.entries import Entry, properties_of
from tests.simulation.pulsar.ledgers import Position
from tests.simulation.pulsar.queues import (
    FORMAT,
    SCHEMA,
    SUBSCRIPTION,
    TOPIC,
    Message,
    SharedQueue,
    Stranded,
    allowed_outcome,
    drained,
    loses_connections,
    queue_faults,
)
from tests.simulation.pulsar.topic import Producer
from tests.simulation.pulsar.writes import arrange_writes, write_faults
from tests.simulation.queues import executors_of, install, life
from tests.simulation.spark import Executors
from tests.simulation.world import World

RETRY, DEAD = f"{TOPIC}-{SUBSCRIPTION}-RETRY", f"{TOPIC}-{SUBSCRIPTION}-DLQ"


@dataclass(frozen=True)
class Letter:
    """A message in the retry or the dead letter topic."""

    name: str
    row: oracle.Row
    entry: Entry
    properties: Mapping[str, str]

    @property
    def times(self) -> int:
        """The number of retries in its properties."""
        return int(self.properties.get("RECONSUMETIMES", "0"))


class Letters:
    """A queue whose messages are retried later, and oracles of it.

    Args:
        queue: the queue.
        most_times: the maximum number of retries, after which a message is a dead letter; 0 for no limit.
        first_seconds: the first delay.
        most_seconds: the maximum delay.
    """

    def __init__(self, queue: SharedQueue, most_times: int, first_seconds: int, most_seconds: int) -> None:
        self._queue = queue
        self.most_times = most_times
        self.first_seconds = first_seconds
        self.most_seconds = most_seconds
        self.taken: Counter[bytes] = Counter()
        """The number of times that each value was handled."""
        self.seen: Counter[bytes] = Counter()
        """The number of times that each value was read and put off."""

    def of(self, topic: str) -> list[Letter]:
        """Return the letters of a topic."""
        cluster = self._queue.cluster
        found = []
        for name in cluster.names(topic) if topic in cluster.partitions else ():
            history = cluster.storage[name].history
            for row in oracle.rows_of(cluster, name):
                entry = history[row[:2]]
                found.append(Letter(name, row, entry, properties_of(entry)[max(row[2], 0)]))
        return found

    def left(self) -> list[oracle.Row]:
        """Return the published messages that are neither handled nor dead letters."""
        done = self.taken.keys() | {one.row[3] for one in self.of(DEAD)} | self._handled()
        return [message for message in self._queue.published() if message[1][3] not in done]

    def _handled(self) -> set[bytes]:
        """Return the values that foreign consumers have handled, from the topic or from the retry topic."""
        queue = self._queue
        letters = {one.row[3] for one in self.of(RETRY) if queue.is_handled((one.name, one.row))}
        return letters | {row[3] for name, row in queue.published() if queue.is_handled((name, row))}

    def due_seconds(self) -> float:
        """Return the seconds until the first unacknowledged letter is due; 0 if one is due."""
        cluster = self._queue.cluster
        waiting = [
            one.entry.deliver_at
            for one in self.of(RETRY)
            if one.entry.deliver_at is not None and not self._is_acknowledged(one.name, one.row[:2])
        ]
        return max(0.0, min(waiting, default=0) / 1000 - cluster.world.wall)

    def _is_acknowledged(self, name: str, position: Position) -> bool:
        cursor = self._queue.cluster.storage[name].cursors.get(SUBSCRIPTION)
        return cursor is not None and cursor.is_deleted(position)

    def check(self, *, is_calm: bool) -> None:
        """Check that the letters of each message count up from 1, without duplicates in a calm run.

        Args:
            is_calm: whether no fault may cause duplicates.

        Raises:
            ViolationError: they do not.
        """
        published: dict[bytes, list[Message]] = {}  # an entry that is stored twice has two messages
        for message in self._queue.published():
            published.setdefault(message[1][3], []).append(message)
        retried, dead = self._by_value(RETRY), self._by_value(DEAD)
        invented = sorted((self.taken.keys() | retried.keys() | dead.keys()) - published.keys())
        if invented:
            raise ViolationError(f"never published: {invented[:8]}")
        handled = self._handled()
        for value, messages in published.items():
            letters = sorted(retried.get(value, ()), key=lambda one: one.times)
            dead_letters = dead.get(value, [])
            for one in (*letters, *dead_letters):
                self._check_origin(one, messages)
            times = [one.times for one in letters]
            if sorted(set(times)) != list(range(1, max(times, default=0) + 1)):
                raise ViolationError(f"{value!r} has the retries {times}")
            for one in letters:
                self._check_delay(one)
            for one in dead_letters:
                self._check_reason(one)
            if is_calm and len(messages) == 1:
                ends = self.taken[value] + len(dead_letters) + (value in handled)
                if ends != 1 or len(times) != len(set(times)) or self.seen[value] != len(times) + len(dead_letters):
                    raise ViolationError(
                        f"{value!r} has {ends} ends, was read {self.seen[value]} times, is {times} in the retry "
                        f"topic and {len(dead_letters)} times a dead letter"
                    )

    def _by_value(self, topic: str) -> dict[bytes, list[Letter]]:
        found: dict[bytes, list[Letter]] = {}
        for one in self.of(topic):
            found.setdefault(one.row[3], []).append(one)
        return found

    @staticmethod
    def _check_origin(one: Letter, messages: Sequence[Message]) -> None:
        says, expected = one.properties, []
        for name, (ledger, entry, index, _) in messages:
            partition = name.rpartition("-partition-")[2] if "-partition-" in name else -1
            at = ":".join(map(str, (ledger, entry, partition)))
            expected += [at if index < 0 else f"{at}:{index}"] if name.startswith(says["REAL_TOPIC"]) else []
        if says["ORIGIN_MESSAGE_ID"] not in expected:
            raise ViolationError(f"a letter of {messages} has {says}, not {expected}")

    def _check_delay(self, one: Letter) -> None:
        delay_ms = 1000 * min(self.most_seconds, self.first_seconds * 2 ** (one.times - 1))
        deliver_at = one.entry.deliver_at
        if one.properties["DELAY_TIME"] != str(delay_ms) or deliver_at is None:
            raise ViolationError(f"{one.row} with {one.properties} is delayed until {deliver_at}, not by {delay_ms} ms")
        if self._queue.keeps_time and not self._queue.began_ms <= deliver_at - delay_ms <= one.entry.publish_time:
            raise ViolationError(f"{one.row}, published at {one.entry.publish_time}, is delivered at {deliver_at}")

    def _check_reason(self, one: Letter) -> None:
        reason = one.properties["REASON"]
        if reason == f"put off {self.most_times} times" and one.times == self.most_times > 0:
            return
        # Foreign consumers request redeliveries, too, and the broker counts them.
        times = reason.removeprefix("redelivered ").removesuffix(" times")
        if not (self._queue.has_foreign and times.isdecimal() and int(times) > self.most_times > 0):
            raise ViolationError(f"a dead letter for a wrong reason: {one}")


class QueueRetry:
    """Some batch reads that put off the messages they read, and then others that handle the remaining messages."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        if dice.random() < 0.15:
            return []  # only then is each message handled exactly once
        found = [*queue_faults(dice, size), *write_faults(dice, 4 * size)]
        for _ in range(dice.choice((0, 1, 1, 2))):
            kind = dice.choice(("cut", "cut", "kill", "kill_broker"))
            found.append(Fault("stored", args=(dice.randrange(4 * size), kind, dice.choice((0.0, 0.002, 0.01)))))
        return found

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        install()
        dice = world.dice("scenario")
        queue = SharedQueue(world, plan, ("shared", "shared", "key_shared"))
        first_seconds = dice.choice((1, 3, 20))
        letters = Letters(queue, dice.choice((0, 1, 1, 2)), first_seconds, first_seconds * dice.choice((1, 3, 100)))
        executors = executors_of(world)
        # No read gets the messages that another attempt has put off.
        is_calm = queue.is_calm and not executors.speculation
        given = queue.options | {"retryTopic": "true", "createTopic": "true"}
        if dice.random() < 0.5:
            queue.cluster.create(RETRY, dice.choice((0, 0, 2)))
            queue.cluster.create(DEAD, dice.choice((0, 0, 2)))
        queue.arrange()
        arrange_writes(queue.cluster.writes, plan.faults)
        self._arrange(queue)
        queue.publish(3 * plan.size, 1.0 * plan.size)
        for _ in range(dice.choice((1, 2, 2, 3))):
            self._put_off(queue, letters, given, executors)
            world.sleep(dice.choice((0.1, 2.0, 1.5 * first_seconds)))
        outcome = self._take(queue, letters, given, executors)
        if outcome == "read":
            letters.check(is_calm=is_calm)
        queue.check_nothing_leaks()
        return outcome

    @staticmethod
    def _arrange(queue: SharedQueue) -> None:
        """Schedule these faults.

        - `stored`: number of a letter, event, seconds after its storage: all consumers lose their connections (`cut`),
            or the process that has sent the letter is killed, or the broker that has stored it.
        """
        world, cluster = queue.world, queue.cluster

        def happen(kind: str, producer: Producer) -> None:
            if kind == "kill":
                world.kill(producer.connection.stream.process)
            elif kind == "kill_broker":
                broker = producer.connection.broker
                broker.kill()
                world.after(0.5, broker.start)
            else:
                queue.drop_consumers()

        def call(kind: str, seconds: float) -> Callable[[Producer], None]:
            return lambda producer: world.after(seconds, lambda: happen(kind, producer))

        for fault in queue.plan.faults:
            if fault.kind == "stored":
                number, kind, seconds = fault.args
                cluster.writes.calls[number] = call(kind, seconds)

    @staticmethod
    def _put_off(queue: SharedQueue, letters: Letters, given: Mapping[str, str], executors: Executors) -> None:
        """Run one batch read that puts off the messages it reads; it may fail, and be repeated by Spark."""
        dice = queue.world.dice("rounds")
        options = {name: text for name, text in given.items() if name != "walDir"} | {
            "ackMode": "nack",
            "nackDelay": f"{letters.first_seconds}s",
            "nackMaxDelay": f"{letters.most_seconds}s",
            "idleTimeout": dice.choice(("50ms", "2s")),
            "maxSeconds": "10",
        }
        if letters.most_times:
            options |= {"maxRedeliverCount": str(letters.most_times), "onMaxRedeliver": "deadLetter"}
        if dice.random() < 0.3:
            options["maxRows"] = dice.choice(("2", "7"))
        parsed = FORMAT.parse_options(options)

        def read() -> None:
            found = spark.in_driver(lambda: spark.read_batch(FORMAT, parsed, SCHEMA, executors))
            letters.seen.update(row["value"] for task in found for row in task)

        life(queue.plan, read, _outcome_of)

    @staticmethod
    def _take(queue: SharedQueue, letters: Letters, given: Mapping[str, str], executors: Executors) -> str:
        """Run batch reads that handle the remaining messages until none is left; each waits for retried ones."""
        world, number = queue.world, 0
        patience = Stranded(queue, loses_connections=loses_connections(queue.plan, executors))
        parsed = FORMAT.parse_options({**given, "idleTimeout": "2s", "runId": "run"})
        while (left := letters.left()) or world.now <= queue.publishes_until:
            if seconds := letters.due_seconds():
                world.sleep(seconds)
                patience.rest()
            patience.check(left)
            number += 1
            found = drained(queue.plan, replace(parsed, run_id=f"run-{number}"), executors)
            if found is None:
                return "torn"
            rows = [row for task in found for row in task]
            queue.check_not_twice(rows)
            letters.taken.update(row["value"] for row in rows)
            if not rows:
                world.sleep(1.0)
        return "read"


def _outcome_of(plan: Plan, error: BaseException) -> str:
    """Check an error as `allowed_outcome` does; letters may be refused, too."""
    if isinstance(error, RequestTimeoutError | BrokerError) and plan.faults:
        return "refused"
    return allowed_outcome(plan, error)
