"""Storms over a subscription: a query and official consumers share it while topics are unloaded and tasks are killed.

What each consumer handled is kept with the time that it was there. From that follows which messages two of them may
have handled (docs/guarantees/duplicates.md). A consumer that was there without any interruption, and has acknowledged a
message, is the only one that handles it; but for those who were sent it before an interruption of their own, and for
those who get it after the topic was unloaded.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pulsar as official
import pytest

from spark_mq_source.pulsar.read.queue_reader import _Inflow
from tests.behaviours.pulsar.java_client import JavaClient
from tests.behaviours.pulsar.queues import ROW, SUBSCRIPTION, SubscriptionQuery, read_tasks
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_net import HOST, FaultProxy

PARTITIONS = 2
KEYS = 40
FEWEST_UNLOADS = 20
FEWEST_OF_EACH = 3
"""A storm lasts until each kind of fault has happened so often."""
PATIENCE_SECONDS = 240.0
MAX_ATTEMPTS = 50
"""At a task: more than are killed."""
FAULTS = {"take": "before the log", "acknowledge": "before the acknowledgement", "settle": "before the answers"}
"""Where our connections are cut and our tasks are killed, by the method that is about to run."""
CUTS, KILLS = 0.12, 0.06
DRIVER_KILLS = 0.1
RIVALS = 0.1
"""How often a task has two attempts at once."""


class Entry(NamedTuple):
    """What a broker delivers and acknowledges."""

    ledger: int
    entry: int


class Id(NamedTuple):
    """Of a message; its batch index is -1 if it is an entry of its own."""

    ledger: int
    entry: int
    batch_index: int

    @property
    def whole(self) -> Entry:
        """Its entry."""
        return Entry(self.ledger, self.entry)


class KilledError(Exception):
    """The process of a task was killed."""


@dataclass
class Stay:
    """What one consumer handled, from before it joined until the broker knew its acknowledgements.

    Attributes:
        is_ours: whether it was our query, in one micro-batch.
        ids: the messages, in the order in which they came.
        began: seconds.
        ended: infinite if it did not leave in order.
        given_back: messages that it did not handle, and had delivered again.
    """

    is_ours: bool
    ids: Sequence[Id]
    began: float
    ended: float
    given_back: Sequence[Id] = ()

    def __str__(self) -> str:
        return f"{'us' if self.is_ours else 'another'} from {self.began:.3f} to {self.ended:.3f}"


@dataclass
class Storm:
    """One storm, and the calm after it.

    Args:
        broker: a stock broker.
        java: the official Java client.
        link: what stands between the broker and our query.
        kind: `Shared` or `Key_Shared`.
        seed: of all choices but the broker's.
        wal: the query's `walDir`.

    Attributes:
        happened: how often each fault did.
        stays: of all consumers.
        rows: of our query, in the order of micro-batches and tasks.
        sent: the values that the broker has confirmed.
    """

    broker: PulsarUnderTest
    java: JavaClient
    link: FaultProxy
    kind: str
    seed: int
    wal: Path
    happened: Counter[str] = field(default_factory=Counter)
    stays: list[Stay] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    unloads: list[tuple[float, float]] = field(default_factory=list)
    cuts: list[tuple[float, float]] = field(default_factory=list)
    stored: dict[Id, str] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._lock = threading.Lock()
        self._is_calm = False
        self._producers: list[Any] = []
        self.topic = self.broker.topic(PARTITIONS)
        self.partitions = [f"{self.topic}-partition-{n}" for n in range(PARTITIONS)]
        self.query = SubscriptionQuery(
            self.broker,
            self.topic,
            self.wal,
            serviceUrl=f"pulsar://{HOST}:{self.link.port}",
            subscriptionType=self.kind,
            maxRowsPerTrigger=150,
            maxInFlight=60,
        )

    # -- what happens

    def run(self, patch: pytest.MonkeyPatch) -> None:
        """The storm, and then the calm, until everything is acknowledged."""
        for name in FAULTS:
            patch.setattr(_Inflow, name, self._faulty(name, getattr(_Inflow, name)))
        self.query.trigger()  # the subscription is there, before anything is published
        self._producers = self._open_producers()
        with self._acting(self._unload, self._publish, self._visit_by_java, self._visit_by_python) as is_alive:
            self._drive(lambda: self._has_raged() or not is_alive())
        self._is_calm = True
        self._drive(lambda: not self._backlog())
        with self._acting(self._publish) as is_alive, ThreadPoolExecutor(2) as threads:
            # More comes until they have enough.
            visits = [threads.submit(one, most=60, seconds=60.0) for one in (self.visit_by_java, self.visit_by_python)]
            self._drive(lambda: all(visit.done() for visit in visits) or not is_alive())
            for visit in visits:
                assert len(visit.result().ids) >= 50, self
        self._drive(lambda: not self._backlog())
        self.query.close()
        self._read_all()

    @contextlib.contextmanager
    def _acting(self, *actors: Callable[[threading.Event, random.Random], None]) -> Iterator[Callable[[], bool]]:
        """Whether all of them are still at it."""
        is_over = threading.Event()
        with ThreadPoolExecutor(len(actors)) as threads:
            acting: list[Future[None]] = [
                threads.submit(actor, is_over, random.Random(self.rng.random())) for actor in actors
            ]
            try:
                yield lambda: not any(one.done() for one in acting)
            finally:
                is_over.set()
            for one in acting:
                one.result()

    def _has_raged(self) -> bool:
        kinds = [f"{what} {where}" for what in ("cut", "killed") for where in FAULTS.values()]
        kinds += ["driver killed when planned", "driver killed when read", "driver killed when stored"]
        kinds += ["two attempts", "visit by java", "visit by python"]
        return len(self.unloads) >= FEWEST_UNLOADS and all(self.happened[kind] >= FEWEST_OF_EACH for kind in kinds)

    def _drive(self, is_over: Callable[[], bool]) -> None:
        def has_ended() -> bool:
            self._trigger()
            return is_over()

        wait_until(has_ended, f"{self}", PATIENCE_SECONDS)

    def _backlog(self) -> int:
        stats = [self.broker.admin.stats(name)["subscriptions"][SUBSCRIPTION] for name in self.partitions]
        return sum(int(one["msgBacklog"]) for one in stats)

    def _unload(self, is_over: threading.Event, rng: random.Random) -> None:
        while not is_over.wait(rng.uniform(0.3, 1.5)):
            began = time.monotonic()
            self.broker.admin.unload(rng.choice(self.partitions))
            self.unloads.append((began, time.monotonic()))

    def _open_producers(self) -> list[Any]:
        """One of single messages, and one of batches of a key each."""
        client = self.broker.client()
        batches = {
            "batching_max_messages": 5,
            "batching_max_publish_delay_ms": 20,
            "batching_type": official.BatchingType.KeyBased,
        }
        return [
            client.create_producer(self.topic, send_timeout_millis=10_000, batching_enabled=False),
            client.create_producer(self.topic, send_timeout_millis=10_000, batching_enabled=True, **batches),
        ]

    def _publish(self, is_over: threading.Event, rng: random.Random) -> None:
        numbers = itertools.count()
        while not is_over.wait(rng.uniform(0.01, 0.1)):
            producer, key = rng.choice(self._producers), f"k{rng.randrange(KEYS)}"
            for _ in range(rng.randrange(1, 30)):
                value = f"{key}:{next(numbers)}"
                producer.send_async(value.encode(), partial(self._note_sent, value), partition_key=key)
            # What is not known to be stored after `send_timeout_millis` may be there.
            with contextlib.suppress(official.PulsarException):
                producer.flush()

    def _note_sent(self, value: str, result: Any, _: Any) -> None:
        if result == official.Result.Ok:
            self.sent.append(value)

    def _visit_by_java(self, is_over: threading.Event, rng: random.Random) -> None:
        while not is_over.is_set():
            self.visit_by_java(most=rng.randrange(1, 80), seconds=rng.uniform(0.05, 1.5), dropped=rng.choice((0, 0, 3)))
            is_over.wait(rng.uniform(0.0, 0.6))

    def _visit_by_python(self, is_over: threading.Event, rng: random.Random) -> None:
        while not is_over.is_set():
            gives_back = self.kind == "Shared" and rng.random() < 0.3
            self.visit_by_python(
                most=rng.randrange(1, 80),
                seconds=rng.uniform(0.05, 1.5),
                dropped=rng.choice((0, 0, 3)),
                every=3 if gives_back else 0,
            )
            is_over.wait(rng.uniform(0.0, 0.6))

    def visit_by_java(self, *, most: int, seconds: float, dropped: int = 0) -> Stay:
        """A Java consumer joins, takes some messages, acknowledges all but the last ones, and leaves."""
        began = time.monotonic()
        how = {"kind": self.kind, "subscription": SUBSCRIPTION, "most": most, "seconds": seconds, "dropped": dropped}
        ids, has_left = self.java.visit(self.broker, self.topic, **how)
        self.happened["visit by java"] += 1
        return self._stayed([Id(*one) for one in ids], began, has_left=has_left)

    def visit_by_python(self, *, most: int, seconds: float, dropped: int = 0, every: int = 0) -> Stay:
        """The same with the Python client; `every` so many messages it gives one back, which is counted for others."""
        began = time.monotonic()
        kind = {"Shared": official.ConsumerType.Shared, "Key_Shared": official.ConsumerType.KeyShared}[self.kind]
        # A client may wait for a topic that is unloaded meanwhile for as long as it is let.
        client = self.broker.client(operation_timeout_seconds=30 if self._is_calm else 3)
        ids: list[Id] = []
        given_back: list[Id] = []
        has_left = False
        with contextlib.suppress(official.PulsarException), contextlib.closing(client):
            consumer = client.subscribe(
                self.topic,
                SUBSCRIPTION,
                consumer_type=kind,
                receiver_queue_size=20,
                negative_ack_redelivery_delay_ms=10,
            )
            with contextlib.suppress(official.Timeout):
                for number in range(1, most + 1):
                    left = began + seconds - time.monotonic()
                    message = consumer.receive(max(1, round(left * 1000)))
                    at = message.message_id()
                    id_ = Id(at.ledger_id(), at.entry_id(), at.batch_index())
                    if every and not number % every:
                        given_back.append(id_)
                        consumer.negative_acknowledge(message)
                    elif number <= most - dropped:
                        consumer.acknowledge(message)
                        ids.append(id_)
            consumer.close()
            has_left = True
        self.happened["visit by python"] += 1
        return self._stayed(ids, began, given_back, has_left=has_left)

    def _stayed(self, ids: Sequence[Id], began: float, given_back: Sequence[Id] = (), *, has_left: bool) -> Stay:
        stay = Stay(False, ids, began, time.monotonic() if has_left else math.inf, given_back)
        self.stays.append(stay)
        return stay

    # -- our query, as Spark runs it

    def _trigger(self) -> None:
        query = self.query
        began = time.monotonic()
        end, tasks = query.plan()
        if self._happens("driver killed when planned", DRIVER_KILLS):
            query.restart()
            planned, (end, tasks) = end, query.plan()
            assert planned in (query.at, end), f"{self}: a batch was planned, and then another one"
        if end == query.at:
            return
        rows = self._read(tasks)
        if self._happens("driver killed when read", DRIVER_KILLS):
            query.restart()
            tasks = query.stream.ranges(query.at, end)
            assert self._read(tasks) == rows, f"{self}: other rows when a batch was repeated"
        query.at = end
        if self._happens("driver killed when stored", DRIVER_KILLS):
            query.restart()
        else:
            query.stream.commit(end)
        self.rows += rows
        self.stays.append(Stay(is_ours=True, ids=list(map(id_of, rows)), began=began, ended=time.monotonic()))

    def _read(self, tasks: Sequence[Any]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(2 * len(tasks)) as threads:
            attempts = [[threads.submit(self._attempt, task)] for task in tasks]
            if self._happens("two attempts", RIVALS):
                for task, first in zip(tasks, attempts, strict=True):
                    first.append(threads.submit(self._attempt, task))
            found = [[attempt.result() for attempt in both] for both in attempts]
        for one in found:
            assert one[0] == one[-1], f"{self}: two attempts at a task have other rows"
        return [row for one in found for row in one[0]]

    def _attempt(self, task: Any) -> list[dict[str, Any]]:
        for _ in range(MAX_ATTEMPTS):
            with contextlib.suppress(KilledError):
                rows: list[dict[str, Any]] = read_tasks(
                    self.query.options, [task], f"{ROW}, redelivery_count int"
                ).to_pylist()
                return rows
        raise AssertionError(f"{self}: a task has failed {MAX_ATTEMPTS} times")

    def _faulty(self, name: str, method: Callable[[_Inflow], Any]) -> Callable[[_Inflow], Any]:
        where = FAULTS[name]

        def faulty(inflow: _Inflow) -> Any:
            if self._happens(f"killed {where}", KILLS):
                self._cut()
                raise KilledError
            if self._happens(f"cut {where}", CUTS):
                self._cut()
            return method(inflow)

        return faulty

    def _cut(self) -> None:
        began = time.monotonic()
        self.link.cut_now(abort=self.rng.random() < 0.5)
        self.cuts.append((began, time.monotonic()))

    def _happens(self, what: str, share: float) -> bool:
        """Whether this fault does, at one of the places where it can; often enough at first."""
        with self._lock:
            is_rare = self.happened[what] < FEWEST_OF_EACH
            happens = not self._is_calm and self.rng.random() < (4 * share if is_rare else share)
            self.happened[what] += happens
        return happens

    # -- what must be true afterwards

    def _read_all(self) -> None:
        client = self.broker.client()
        for partition in self.partitions:
            reader = client.create_reader(partition, official.MessageId.earliest)
            while reader.has_message_available():
                message = reader.read_next(20_000)
                at = message.message_id()
                self.stored[Id(at.ledger_id(), at.entry_id(), at.batch_index())] = message.data().decode()

    def check_each_is_handled(self) -> None:
        """Nothing is lost, and nothing comes from nowhere."""
        assert Counter(self.sent) - Counter(self.stored.values()) == Counter(), self
        handled = [id_ for stay in self.stays for id_ in stay.ids]
        lost = sorted(self.stored.keys() - Counter(handled).keys())
        assert lost == [], f"{self}: {len(lost)} of {len(self.stored)} messages were handled by nobody: {lost[:10]}"
        strange = sorted(Counter(handled).keys() - self.stored.keys())
        assert strange == [], f"{self}: {strange[:10]}"
        altered = [row for row in self.rows if row["value"] != self.stored[id_of(row)]]
        assert altered == [], f"{self}: {altered[:10]}"

    def check_ours_are_once(self) -> None:
        """No message is in two of our rows."""
        twice = sorted((Counter(map(id_of, self.rows)) - Counter(self.stored.keys())).elements())
        assert twice == [], f"{self}: {len(twice)} rows came again: {twice[:10]}"

    def check_others_have_a_reason(self) -> int:
        """How many messages were handled more than once; none without a reason."""
        sizes = Counter(id_.whole for id_ in self.stored)
        settled = [self._settled(stay, sizes) for stay in self.stays]
        handlings: dict[Id, list[int]] = defaultdict(list)
        for number, stay in enumerate(self.stays):
            for id_ in stay.ids:
                handlings[id_].append(number)
        doubled = {id_: numbers for id_, numbers in handlings.items() if len(numbers) > 1}
        for id_, numbers in doubled.items():
            for one, other in itertools.permutations(numbers, 2):
                first, second = self.stays[one], self.stays[other]
                is_second_settled = id_.whole in settled[other]
                if id_.whole not in settled[one] or (is_second_settled and second.ended < first.ended):
                    continue
                had_it_before = not is_second_settled and second.began < first.ended
                # An unload may forget acknowledgements that were answered a moment before (seen on 4.0.8).
                is_forgotten = _meets(self.unloads, first.ended, second.ended)
                assert had_it_before or is_forgotten, (
                    f"{self}: {id_} was acknowledged by {first}, and handled by {second}; unloads: {self.unloads}"
                )
        return len(doubled)

    def _settled(self, stay: Stay, sizes: Counter[Entry]) -> set[Entry]:
        """The entries that the broker knows to be acknowledged by this consumer, for certain.

        It forgets single messages of a batch; and what a consumer had when its topic was unloaded, or its connection
        was cut, may have gone to another before its acknowledgement.
        """
        interruptions = self.unloads + self.cuts if stay.is_ours else self.unloads
        if _meets(interruptions, stay.began, stay.ended):
            return set()
        counts = Counter(id_.whole for id_ in dict.fromkeys(stay.ids))
        whole = {entry for entry, count in counts.items() if count == sizes[entry]}
        return whole - {id_.whole for id_ in stay.given_back}

    def check_counts(self) -> None:
        """Only what somebody has given back is counted as redelivered."""
        given_back = {id_.whole for stay in self.stays for id_ in stay.given_back}
        counted = [id_of(row) for row in self.rows if row["redelivery_count"]]
        assert [id_ for id_ in counted if id_.whole not in given_back] == [], self

    def check_order(self) -> None:
        """Of each key, our rows are in the order of the topic-partition.

        But for those that another consumer has handled, too: they come again, whenever its acknowledgement got lost.
        """
        foreign = Counter(id_ for stay in self.stays if not stay.is_ours for id_ in stay.ids)
        last: dict[str, Id] = {}
        for row in self.rows:
            before, at = last.get(row["key"]), id_of(row)
            if not foreign[at]:
                assert before is None or before < at, f"{self}: {row['key']} has {at} after {before}"
                last[row["key"]] = at

    def __str__(self) -> str:
        others = sum(len(stay.ids) for stay in self.stays if not stay.is_ours)
        return (
            f"seed {self.seed}: {len(self.rows)} rows, {others} messages of other consumers, {len(self.unloads)} "
            f"unloads, {dict(self.happened)}"
        )


def id_of(row: dict[str, Any]) -> Id:
    """Of a message of ours."""
    return Id(**{name.removesuffix("_id"): value for name, value in row["message_id"].items()})


def _meets(interruptions: Sequence[tuple[float, float]], began: float, ended: float) -> bool:
    return any(one <= ended and began <= other for one, other in interruptions)
