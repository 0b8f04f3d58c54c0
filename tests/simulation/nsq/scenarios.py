"""Scenarios of NSQ in the simulated world: ways to use the package, faults, and oracles."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import MQSourceError, TopicNotFoundError
from spark_mq_source.nsq.format import NsqFormat
from tests.simulation import files, spark
from tests.simulation.explore import Fault, Plan, Scenario, ViolationError, check_nothing_runs, common_faults
from tests.simulation.nsq.broker import LOOKUPD, Cluster
from tests.simulation.queues import (
    PROCESSES,
    Patience,
    arrange_folder,
    check_replays,
    executors_of,
    folder_faults,
    folder_outcome,
    install,
    life,
    read_until,
    run_once,
)
from tests.simulation.spark import Checkpoint, Executors, Query, waiting_for_rows
from tests.simulation.world import World

FORMAT = NsqFormat()
TOPIC, CHANNEL = "t", "c"
TOPICS = (TOPIC, "u")
SCHEMA = pa.schema([("value", pa.binary()), ("nsqd", pa.string()), ("message_id", pa.string())])

HOLDER_SECONDS = 10.0
"""Seconds until `stall_holder` gives up waiting for an executor that has messages in flight."""

Message = tuple[str, bytes]
"""The nsqd that received it, and its body; bodies are published once."""


# -- faults


def nsq_faults(dice: Random, *, seconds: float, folder: bool) -> Iterator[Fault]:
    """Yield a few faults of nsqd and of the write-ahead folder, or none."""
    for _ in range(dice.choice((0, 0, 1, 1, 2, 3))):
        kind = dice.choice(("kill_nsqd", "kill_nsqd", "stop_nsqd", "hide_http"))
        yield Fault(kind, at=round(dice.random() * seconds, 3), args=(dice.randrange(3), dice.choice((0.3, 5.0, 40.0))))
    for _ in range(dice.choice((0, 0, 1, 3, 6))):
        kind = dice.choice(("stall", "stall_holder"))
        yield Fault(kind, at=round(dice.random() * seconds, 3), args=(dice.randrange(4), dice.choice((2.5, 4.0, 8.0))))
    if folder:
        yield from folder_faults(dice, seconds, tears=(0, 0, 0, 0, 1))


def read_faults(dice: Random, size: int, *, streams: int) -> Sequence[Fault]:
    """Return the faults of a read of work of this size over about this number of connections."""
    seconds = 3.0 * size
    return [
        *common_faults(dice, streams=streams, processes=PROCESSES, seconds=seconds),
        *nsq_faults(dice, seconds=seconds, folder=True),
        *[
            Fault("delete_channel", at=round(dice.random() * seconds, 3), args=(dice.randrange(3),))
            for _ in range(dice.choice((0, 0, 0, 0, 1)))
        ],
    ]


def arrange(world: World, cluster: Cluster, faults: Sequence[Fault]) -> None:
    """Schedule the faults, at times from now on.

    - `kill_nsqd`, `stop_nsqd`: number of the nsqd, seconds until it runs again.
    - `stall`: one of the last executors, seconds for which it is stopped: longer than a message's timeout.
    - `stall_holder`: likewise, for the first executor from that time on that has messages in flight.
    - `hide_http`: number of the nsqd, seconds for which its HTTP interface is unreachable.
    - `delete_channel`: number of the nsqd on which an administrator deletes the channel, if it is up.
    - those of the folder, see `arrange_folder`.
    """
    arrange_folder(world, faults)
    for fault in faults:
        if fault.kind in {"kill_nsqd", "stop_nsqd"}:
            nsqd, seconds = cluster.nsqds[fault.args[0] % len(cluster.nsqds)], fault.args[1]

            def end(nsqd: Any = nsqd, seconds: float = seconds, crash: bool = fault.kind == "kill_nsqd") -> None:
                nsqd.stop(crash=crash)
                world.after(seconds, nsqd.start)

            world.after(fault.at, end)
        elif fault.kind in {"stall", "stall_holder"}:

            def stall(
                back: int = fault.args[0],
                seconds: float = fault.args[1],
                is_holder: bool = fault.kind == "stall_holder",
                until: float = world.now + fault.at + HOLDER_SECONDS,
            ) -> None:
                executors = [p for p in world.processes if p.alive and p.name.startswith("executor-")]
                if is_holder:
                    holders = cluster.holders()
                    executors = [p for p in executors if p in holders]
                if executors:
                    world.stop(executors[-1 - back % len(executors)], seconds)
                elif is_holder and world.now < until:
                    world.after(0.02, stall)

            world.after(fault.at, stall)
        elif fault.kind == "hide_http":
            nsqd = cluster.nsqds[fault.args[0] % len(cluster.nsqds)]
            world.after(fault.at, lambda nsqd=nsqd, seconds=fault.args[1]: nsqd.hide_http(seconds))
        elif fault.kind == "delete_channel":
            nsqd = cluster.nsqds[fault.args[0] % len(cluster.nsqds)]
            world.after(fault.at, lambda nsqd=nsqd: nsqd.is_up and nsqd.delete_channel(TOPIC, CHANNEL))


def check_allowed(plan: Plan, error: BaseException) -> str:
    """Check that an error may end a run: one of the network, a broker or a disk that has a fault; return the outcome.

    Raises:
        ViolationError: there was no such fault, or it is another error.
    """
    kinds = {fault.kind for fault in plan.faults}
    if isinstance(error, MQSourceError) and error.retryable and plan.has_lasting_fault:
        return "allowed error"
    if isinstance(error, ConnectionError) and kinds & {"kill", "stop"}:
        return "killed"
    if isinstance(error, TopicNotFoundError) and kinds & {"kill_nsqd", "stop_nsqd"} and LOOKUPD in str(error):
        return "nobody there"
    if outcome := folder_outcome(plan, error):
        return outcome
    raise ViolationError(f"an error that is not allowed here: {type(error).__name__}: {error}") from error


def check_nothing_leaks(world: World, cluster: Cluster) -> None:
    """Check that some minutes after a run its processes have no open connection, and no message is in flight.

    Raises:
        ViolationError: a connection is open or a message is in flight.
    """
    world.rest(200.0)  # the longest pause of a process, two heartbeats and the timeout of a message
    for nsqd in cluster.nsqds:
        for connection in nsqd.connections:
            if connection.stream.process.alive:  # type: ignore[attr-defined] - set by the model
                raise ViolationError(f"{connection.stream.process} is connected to {nsqd.name}:\n{world.places()}")  # type: ignore[attr-defined] - set by the model
        for topic in nsqd.broker.topics.values():
            for channel in topic.channels.values():
                if channel.in_flight_count:
                    raise ViolationError(f"{nsqd.name}: {channel.in_flight_count} messages in flight to no client")
    check_nothing_runs(world)


# -- the oracle


def messages_of(rows: Sequence[Mapping[str, Any]]) -> Counter[Message]:
    """Return the messages that were read, and how often each."""
    return Counter((row["nsqd"].partition(":")[0], row["value"]) for row in rows)


def check_each_once(found: Counter[Message], cluster: Cluster) -> None:
    """Check that no message was read twice or never published.

    Raises:
        ViolationError: one was.
    """
    twice = [message for message, n in found.items() if n > 1]
    if twice:
        raise ViolationError(f"{len(twice)} messages twice: {sorted(twice)[:8]}")
    invented = found - cluster.published
    if invented:
        raise ViolationError(f"never published: {sorted(invented)[:8]}")


def missing(found: Counter[Message], cluster: Cluster) -> list[Message]:
    """Return the messages that were published, not read, and not lost by a killed nsqd."""
    return sorted(cluster.published - found - cluster.lost)


def check_nothing_missing(found: Counter[Message], cluster: Cluster) -> None:
    """Check that every message was read, lost by a killed nsqd, or is still in nsqd.

    Raises:
        ViolationError: a message is missing.
    """
    kept = Counter({(n.name, body): 1 for n in cluster.nsqds for body in n.held()})
    gone = [message for message in missing(found, cluster) if message not in kept]
    if gone:
        raise ViolationError(f"{len(gone)} messages are lost: {gone[:8]}")


# -- the cluster and its messages


def cluster_to_read(world: World) -> Cluster:
    """Return a cluster of which an nsqd may lack the channel, such as one that was added after the channel."""
    cluster, dice = cluster_of(world), world.dice("channels")
    for nsqd in cluster.nsqds:
        for topic in TOPICS:
            if dice.random() < 0.1:
                nsqd.delete_channel(topic, CHANNEL)
    return cluster


def cluster_of(world: World) -> Cluster:
    """Return one to three nsqd, with drawn settings whose limits a few messages reach."""
    dice = world.dice("scenario")
    cluster = Cluster(
        world,
        dice.choice((1, 1, 2, 3)),
        mem_queue_size=dice.choice((0, 3, 10_000)),
        sync_every=dice.choice((1, 4, 9, 2500)),
        msg_timeout_ms=dice.choice((2_000, 2_000, 60_000)),
        max_rdy_count=dice.choice((3, 10, 2500)),
    )
    for topic in TOPICS:
        cluster.create(topic, CHANNEL)
    return cluster


def publish(
    cluster: Cluster,
    count: int,
    seconds: float,
    body: Callable[[int], bytes] = b"%05d".__mod__,
    *,
    topics: Sequence[str],
) -> None:
    """Publish messages as foreign producers do, in parts over this time; wait while all nsqd are down."""
    world, dice = cluster.world, cluster.world.dice("producers")
    numbers = iter(range(count))

    def send(bodies: Sequence[bytes]) -> None:
        up = [nsqd for nsqd in cluster.nsqds if nsqd.is_up]
        if up:
            dice.choice(up).publish(dice.choice(topics), bodies)
        else:
            world.after(1.0, lambda: send(bodies))

    while part := [body(n) for n in islice(numbers, dice.choice((1, 3, 8)))]:
        world.after(dice.choice((0.0, dice.random())) * seconds, lambda part=part: send(part))


def where(cluster: Cluster, dice: Random) -> dict[str, str]:
    """Return the options that name the nsqd."""
    if dice.random() < 0.6:
        return {"nsqlookupdhttpaddresses": LOOKUPD}
    found = {"nsqdtcpaddresses": cluster.tcp_addresses, "createchannel": "true"}
    return found | ({"nsqdhttpaddresses": cluster.http_addresses} if dice.random() < 0.7 else {})


def topics_read(given: Mapping[str, str]) -> Sequence[str]:
    """Return the topics of a read with these options."""
    return (TOPIC,) if "topic" in given else TOPICS


def read_options(cluster: Cluster, dice: Random, plan: Plan) -> dict[str, str]:
    """Return the options of all reads."""
    given = where(cluster, dice) | {"channel": CHANNEL, "waldir": f"{files.SCHEME}wal"}
    given |= dice.choice(({"topic": TOPIC}, {"topic": TOPIC}, {"topics": ",".join(TOPICS)}, {"topicspattern": "[tu]"}))
    given["connectionspernsqd"] = "1" if plan.faults else dice.choice(("1", "2"))
    given["maxbatchrows"] = dice.choice(("1", "3", "100"))
    given["requeuedelay"] = dice.choice(("0", "0", "500ms", "5s"))
    given["maxbackoffduration"] = dice.choice(("0", "5s", "2m"))
    return given


class Stream:
    """A streaming query that reads everything, in as many lives of its driver as needed.

    Args:
        available_now: whether each life ends after the messages that were present at its start.
    """

    def __init__(self, *, available_now: bool) -> None:
        self._available_now = available_now

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        return read_faults(dice, size, streams=8)

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        install()
        dice = world.dice("scenario")
        cluster = cluster_to_read(world)
        given = read_options(cluster, dice, plan)
        given["heartbeatinterval"] = dice.choice(("1s", "30s"))
        if dice.random() < 0.5:
            given["maxrowspertrigger"] = dice.choice(("2", "7", "50"))
        else:
            given |= {name.lower(): value for name, value in waiting_for_rows(world).items()}
        if dice.random() < 0.5:
            given["idletimeout"] = dice.choice(("50ms", "5s", "5s"))
        checkpoint = Checkpoint()
        query = Query(FORMAT, FORMAT.parse_stream_options(given), SCHEMA, executors_of(world), checkpoint)
        query.interval = dice.choice((0.1, 1.0))
        arrange(world, cluster, plan.faults)
        publish(cluster, 12 * plan.size, 2.0 * plan.size, topics=topics_read(given))
        world.sleep(0.0)
        outcome = self._read(world, plan, cluster, query, topics_read(given))
        found = messages_of(checkpoint.rows())
        check_each_once(found, cluster)
        check_replays(checkpoint)
        check_nothing_leaks(world, cluster)
        if outcome != "torn":  # the messages of a damaged batch stay unread
            check_nothing_missing(found, cluster)
        return outcome

    def _read(self, world: World, plan: Plan, cluster: Cluster, query: Query, topics: Sequence[str]) -> str:
        patience = Patience(world)

        def is_done() -> bool:
            is_read, left = self._is_read(plan, query, cluster)
            left = [*left, *(lacking := cluster.lacking(topics, CHANNEL))]
            try:
                patience.check(left)
            except ViolationError:
                # A connection that is delayed for `idleTimeout` looks like a channel that was read to its end.
                is_held_up = any(fault.kind.startswith("stall") for fault in plan.faults)
                if not is_held_up or not set(left) <= cluster.uncounted():
                    raise
                return True
            return is_read and not lacking

        return read_until(plan, query, is_done, check_allowed, available_now=self._available_now)

    def _is_read(self, plan: Plan, query: Query, cluster: Cluster) -> tuple[bool, list[Message]]:
        """Return whether all messages were published and read, and those that are left."""
        left = missing(messages_of(query.checkpoint.rows()), cluster)
        return not left and sum(cluster.published.values()) == 12 * plan.size, left


class Drain:
    """Batch reads with `runId` until everything is read; each is repeated until it succeeds, and once more.

    Each attempt is a separate life of a driver, which a fault may end: the next one continues with the same `runId`.
    """

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        return read_faults(dice, size, streams=6)

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        install()
        dice = world.dice("scenario")
        cluster = cluster_to_read(world)
        given = read_options(cluster, dice, plan)
        # 5 s are longer than a message's timeout: messages held by another attempt at the task arrive in time.
        given["idletimeout"] = dice.choice(("50ms", "2s", "5s"))
        if dice.random() < 0.5:
            given["maxrows"] = dice.choice(("2", "7", "50"))
        parsed = FORMAT.parse_options(given | {"runid": "run"})
        executors = executors_of(world)
        arrange(world, cluster, plan.faults)
        publish(cluster, 12 * plan.size, 2.0 * plan.size, topics=topics_read(given))
        world.sleep(0.0)
        rows: list[dict[str, Any]] = []
        outcome, patience, number = "read", Patience(world), 0
        topics = topics_read(given)
        while (left := missing(messages_of(rows), cluster) + cluster.lacking(topics, CHANNEL)) or sum(
            cluster.published.values()
        ) < 12 * plan.size:
            patience.check(left)
            number += 1
            options = replace(parsed, run_id=f"run-{number}")
            found, again = (run_once(FORMAT, SCHEMA, plan, options, executors, check_allowed) for _ in range(2))
            if found is None or again is None:
                return "torn"
            if found != again:
                raise ViolationError(f"run {number} was {found} and then {again}")
            run = [row for task in found for row in task]
            check_each_once(messages_of(run), cluster)
            rows += run
            if not run:
                world.sleep(1.0)
                if set(left) <= cluster.uncounted() and sum(cluster.published.values()) == 12 * plan.size:
                    break  # batch reads trust the count
            if not plan.faults:
                # After faults a run may read again the messages that another run could not finish.
                check_each_once(messages_of(rows), cluster)
        check_nothing_leaks(world, cluster)
        check_nothing_missing(messages_of(rows), cluster)
        return outcome


class Write:
    """A write: after its success every row is in nsqd at least once."""

    def faults(self, dice: Random, size: int) -> Sequence[Fault]:
        """See `Scenario`."""
        seconds = 1.0 * size
        return [
            *common_faults(dice, streams=6, processes=PROCESSES[:4], seconds=seconds),
            *nsq_faults(dice, seconds=seconds, folder=False),
        ]

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        install()
        dice = world.dice("scenario")
        cluster = cluster_of(world)
        given = {**where(cluster, dice), "topic": TOPIC}
        given.pop("createchannel", None)
        given["batchingmaxmessages"] = dice.choice(("1", "4", "1000"))
        given["maxpendingbytes"] = dice.choice(("1", "100", "16m"))
        # Without heartbeats nsqd never detects that the client of a half-open connection is gone.
        is_mute = any(fault.kind == "mute" for fault in plan.faults)
        given["heartbeatinterval"] = dice.choice(("1s", "30s", "30s" if is_mute else "-1"))
        if dice.random() < 0.3:
            # Without any fault a packet may take a second, and so may the OK, so a timeout of 2 s may expire.
            given["sendtimeout"] = dice.choice(("2s", "10s")) if plan.faults else "10s"
        options = FORMAT.parse_write_options(given, ("value",))
        tasks, numbers = [], iter(range(10_000))
        for _ in range(dice.choice((1, 2, 3))):
            parts = [[b"%05d" % next(numbers) for _ in range(dice.choice((1, 7)))] for _ in range(2 * plan.size)]
            tasks.append([pa.record_batch({"value": pa.array(part, pa.binary())}) for part in parts])
        rows = [value for task in tasks for batch in task for value in batch.column("value").to_pylist()]
        arrange(world, cluster, plan.faults)
        executors = executors_of(world)
        outcome = (
            life(plan, lambda: spark.write(FORMAT, options, tasks, executors, job_id="job"), check_allowed) or "written"
        )
        if outcome == "written":
            there = Counter(body for nsqd in cluster.nsqds for body in nsqd.held().elements())
            lost = {body for _, body in cluster.lost}
            gone = [row for row in rows if not there[row] and row not in lost]
            if gone:
                raise ViolationError(f"{len(gone)} of {len(rows)} rows are missing: {gone[:8]}")
        check_nothing_leaks(world, cluster)
        invented = {body for _, body in cluster.published} - set(rows)
        if invented:
            raise ViolationError(f"rows that were never written: {sorted(invented)[:8]}")
        return outcome


DEAD = "dead"
TEXT_SCHEMA = pa.schema([("value", pa.string()), *list(SCHEMA)[1:]])


class DeadLetters(Stream):
    """A read of good and bad messages: a stream, or batch reads without `walDir`.

    After any faults, once everything is read, every bad message is in the dead letter topic at least once. A stream
    reads each good message once; batch reads lose the good messages of a failed task.
    """

    def __init__(self) -> None:
        super().__init__(available_now=False)

    def run(self, world: World, plan: Plan) -> str:
        """See `Scenario`."""
        install()
        dice = world.dice("scenario")
        cluster = cluster_to_read(world)
        given = read_options(cluster, dice, plan)
        given |= {"valueformat": "string", "oncorrupt": "deadLetter", "deadlettertopic": DEAD}
        executors = executors_of(world)
        arrange(world, cluster, plan.faults)

        def body(number: int) -> bytes:
            return (b"%05d" if number % 3 else b"\xff%05d") % number

        publish(cluster, 12 * plan.size, 2.0 * plan.size, body, topics=topics_read(given))
        world.sleep(0.0)
        if dice.random() < 0.5:
            options = FORMAT.fit_read(FORMAT.parse_stream_options(given), TEXT_SCHEMA)
            checkpoint = Checkpoint()
            query = Query(FORMAT, options, TEXT_SCHEMA, executors, checkpoint)
            outcome = self._read(world, plan, cluster, query, topics_read(given))
            check_each_once(self._good(checkpoint.rows()), cluster)
            check_replays(checkpoint)
        else:
            given.pop("waldir")
            # A second attempt would find nothing and end the job, and the attempt with the messages would be killed.
            executors = replace(executors, speculation=0.0)
            given["idletimeout"] = dice.choice(("50ms", "2s", "5s"))
            options = FORMAT.fit_read(FORMAT.parse_options(given), TEXT_SCHEMA)
            outcome = self._drain(world, plan, cluster, options, executors)
        check_nothing_leaks(world, cluster)
        if outcome != "torn" and (gone := self._gone(cluster)):
            raise ViolationError(f"{len(gone)} bad messages are lost: {gone[:8]}")
        return outcome

    def _drain(self, world: World, plan: Plan, cluster: Cluster, options: Any, executors: Executors) -> str:
        outcome, patience = "read", Patience(world)

        def left() -> list[Message]:
            return sorted((nsqd.name, body) for nsqd in cluster.nsqds for topic in TOPICS for body in nsqd.held(topic))

        def read() -> None:
            spark.in_driver(lambda: spark.read_batch(FORMAT, options, TEXT_SCHEMA, executors))

        while left() or not self._all_published(plan, cluster):
            patience.check(left())
            outcome = life(plan, read, check_allowed) or outcome
            world.sleep(1.0)
        return outcome

    def _is_read(self, plan: Plan, query: Query, cluster: Cluster) -> tuple[bool, list[Message]]:
        good = self._good(query.checkpoint.rows())
        left = [one for one in missing(good, cluster) if not _is_bad(one)] + self._gone(cluster)
        return not left and self._all_published(plan, cluster), left

    @staticmethod
    def _all_published(plan: Plan, cluster: Cluster) -> bool:
        return len({body for _, body in cluster.published}) == 12 * plan.size

    @staticmethod
    def _good(rows: Sequence[Mapping[str, Any]]) -> Counter[Message]:
        return messages_of([{**row, "value": row["value"].encode()} for row in rows])

    @staticmethod
    def _gone(cluster: Cluster) -> list[Message]:
        """Return the bad messages that are not dead letters and that no killed nsqd has lost."""
        kept = {body for nsqd in cluster.nsqds for body in nsqd.held(DEAD)} | {body for _, body in cluster.lost}
        return sorted(one for one in cluster.published if _is_bad(one) and one[1] not in kept)


def _is_bad(message: Message) -> bool:
    return message[1].startswith(b"\xff")


SCENARIOS: Mapping[str, Scenario] = {
    "available_now": Stream(available_now=True),
    "dead_letters": DeadLetters(),
    "drain": Drain(),
    "stream": Stream(available_now=False),
    "write": Write(),
}
