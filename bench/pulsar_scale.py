"""Many topic-partitions: the time of planning, of triggers and of `spark-mq lag` as their number grows.

A busy machine makes any time longer, so the processor time of this process and of the broker is reported
as well. The first plan of a topic also makes the broker load every topic-partition, which is the larger part.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from bench.engine import AnyEngine, Job, Sample
from bench.pulsar_broker import Broker, create_topic, partitions_of, publish_one_each, use_namespace
from bench.runner import Case, Contender, here
from bench.sources import OURS
from spark_mq_source.pulsar.offsets import encode_offsets

SETTINGS: Final = {"topicLoadTimeoutSeconds": "600", "brokerDeleteInactiveTopicsEnabled": "false"}
"""A broker loads all topic-partitions at once, and aborts each after 60 s by default, also on a busy machine."""

PATIENCE: Final = "1800s"
SIZES: Final = {"read": (100, 1000, 10_000), "stream": (1000, 5000), "pattern": (100, 1000, 10_000)}
READ_TASKS: Final = 100
"""Tasks of each read: they follow each other here, as on one core."""

ALL: Final = "reading all of them with Spark, a task each"

TICKS: Final = os.sysconf("SC_CLK_TCK")


def scale(broker: Broker) -> Iterator[Case]:
    """Yield planning, streams, patterns and lag; a contender is a number of topic-partitions."""
    many = _Many(broker)
    cases: list[tuple[str, tuple[int, ...], Callable[..., Sample]]] = [
        ("planning a topic that the broker has not loaded", SIZES["read"], many.plan_unloaded),
        ("planning it again", SIZES["read"], many.plan),
        (f"reading {READ_TASKS} of its partitions", SIZES["read"], many.read),
        (ALL, SIZES["read"], many.read_all),
        ("`spark-mq lag` of a checkpoint", SIZES["read"], many.lag),
        ("a stream's first trigger", SIZES["stream"], partial(many.trigger, "first")),
        ("an idle trigger", SIZES["stream"], partial(many.trigger, "idle")),
        ("a trigger with a message in each partition", SIZES["stream"], partial(many.trigger, "busy")),
        ("planning a pattern of so many loaded topics", SIZES["pattern"], many.pattern),
    ]
    for name, sizes, work in cases:
        contenders = [
            Contender(f"n{size}", f"{size:,}", "ours", partial(work, size) if name == ALL else here(work, size), warm=0)
            for size in sizes
            if size <= max(1000, broker.setup.scale * 10_000)
        ]
        yield Case("scale", name, contenders, unit="s", repeats=1)


@dataclass
class _Many:
    """Topics of many partitions on one broker, created when they are needed."""

    broker: Broker
    triggers: dict[int, Mapping[str, Sample]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.format = OURS["pulsar-native"]({}).format

    def topic(self, size: int) -> str:
        """Return a topic of this many partitions, each with a message, in a separate namespace."""
        namespace = f"public/bench-scale-{size}"
        use_namespace(self.broker.standalone.admin_url, namespace)
        topic = f"persistent://{namespace}/partitions"
        if create_topic(self.broker.standalone.admin_url, topic, size):
            self.settle()
            publish_one_each(self.broker.address, partitions_of(topic, size))
        return topic

    def settle(self) -> None:
        """Wait until the broker is idle: it continues to load topics long after it has answered."""
        before = self.busy_s()
        while True:
            time.sleep(2)
            now = self.busy_s()
            if now - before < 0.2:
                return
            before = now

    def busy_s(self) -> float:
        """Return the processor time that the broker has used."""
        user, system = Path(f"/proc/{self.broker.standalone.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / TICKS

    def options(self, **topic: str) -> dict[str, str]:
        return {"serviceurl": self.broker.standalone.service_url, "operationtimeout": PATIENCE, **topic}

    def measured(self, work: Callable[[], Any]) -> Sample:
        """Return seconds of a call, of which processor time here and in the broker, and the maximum of connections."""
        counter = _Counter(self.broker.address[1])
        broker_s, own_s, started = self.busy_s(), time.process_time(), time.perf_counter()
        with counter:
            work()
        seconds = time.perf_counter() - started
        own_s, broker_s = time.process_time() - own_s - counter.busy_s, self.busy_s() - broker_s
        return {"value": seconds, "own_s": own_s, "broker_s": broker_s, "connections": counter.most}

    def plan_unloaded(self, size: int) -> Sample:
        topic = self.topic(size)
        self.broker.standalone.admin.unload_namespace(topic.partition("://")[2].rpartition("/")[0])
        self.settle()
        return self.plan(size)

    def plan(self, size: int) -> Sample:
        return self.planned(size, topic=self.topic(size))

    def planned(self, size: int, **topic: str) -> Sample:
        options = self.format.parse_options(self.options(**topic))
        ranges: list[Any] = []
        sample = self.measured(lambda: ranges.extend(self.format.plan(options, ())))
        if len(ranges) != size:
            raise RuntimeError(f"{len(ranges)} ranges were planned for {size} partitions")
        return sample

    def read(self, size: int) -> Sample:
        schema = pa.schema([("value", pa.binary())])
        options = self.format.fit_read(self.format.parse_options(self.options(topic=self.topic(size))), schema)
        tasks = self.format.plan(options, ())[:: max(1, size // READ_TASKS)][:READ_TASKS]
        rows: list[int] = []
        sample = self.measured(
            lambda: rows.extend(b.num_rows for task in tasks for b in self.format.read(options, task, schema))
        )
        if sum(rows) < READ_TASKS:
            raise RuntimeError(f"{sum(rows)} rows came of {READ_TASKS} tasks")
        return sample

    def read_all(self, size: int, engine: AnyEngine) -> Sample:
        options = self.options(topic=self.topic(size))
        broker_s = self.busy_s()
        found = engine.run(Job("read", "pulsar-native", options, size, cores=2))
        own_s = size * (found["worker_ns"] + found["jvm_ns"]) / 1e9
        return {"value": size / found["value"], "own_s": own_s, "broker_s": self.busy_s() - broker_s}

    def lag(self, size: int) -> Sample:
        options = self.format.parse_options(self.options(topic=self.topic(size)))
        inspector = self.format.open_inspector(options)
        with contextlib.closing(inspector):
            return self.measured(lambda: list(inspector.lag(encode_offsets({}))))

    def trigger(self, kind: str, size: int) -> Sample:
        """Return one of three triggers of a stream, which runs once."""
        if size not in self.triggers:
            topic, found = self.topic(size), {}
            options = self.format.parse_stream_options(self.options(topic=topic, startingoffsets="earliest"))
            with contextlib.closing(self.format.open_stream(options)) as stream:
                at: list[Any] = []

                def trigger() -> None:
                    start = at[-1] if at else stream.initial()
                    at.append(stream.latest(start, limited=True))
                    planned = len(stream.ranges(start, at[-1])) if at[-1] != start else 0
                    if planned not in (0, size):
                        raise RuntimeError(f"{planned} tasks were planned for {size} partitions")

                found["first"] = self.measured(trigger)
                found["idle"] = self.measured(trigger)
                publish_one_each(self.broker.address, partitions_of(topic, size))
                found["busy"] = self.measured(trigger)
            self.triggers[size] = found
        return self.triggers[size][kind]

    def pattern(self, size: int) -> Sample:
        namespace = f"public/bench-topics-{size}"
        use_namespace(self.broker.standalone.admin_url, namespace)
        # Topics without partitions are created by their producers.
        publish_one_each(self.broker.address, [f"persistent://{namespace}/topic-{n}" for n in range(size)])
        return self.planned(size, topicspattern=f"persistent://{namespace}/topic-.*")


class _Counter:
    """A counter of this process's connections to a port, ten times a second, until the context is left.

    Attributes:
        most: the maximum of connections.
        busy_s: processor time of counting.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._count)
        self.most = 0
        self.busy_s = 0.0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    def _count(self) -> None:
        while not self._left.wait(0.1):
            self.most = max(self.most, _connections(self._port))
        self.busy_s = time.thread_time()


def _connections(port: int) -> int:
    """Return the number of this process's connections to a port, from /proc."""
    own = set()
    for one in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            own.add(str(one.readlink()))
    # Remote address, state (01 is established) and inode are the 3rd, 4th and 10th field (proc(5)).
    lines = [line.split() for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    there = [line for line in lines if int(line[2].rpartition(":")[2], 16) == port and line[3] == "01"]
    return sum(f"socket:[{line[9]}]" in own for line in there)
