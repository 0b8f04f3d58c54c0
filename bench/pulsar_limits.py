"""Two limits that must hold at any rate: memory of a large partition, planning of many partitions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from bench.engine import Job, Sample
from bench.pulsar_broker import NAMESPACE, Broker, Workload, create_topic, partitions_of, publish_one_each
from bench.runner import Case, Contender, here
from bench.sources import OURS

LARGE_PARTITION = Workload(1024, "none", 1, 3_000_000)
PLANNED_PARTITIONS = 1000


def limits(broker: Broker) -> Iterator[Case]:
    """Yield memory growth while a partition of 3 GiB is read, and seconds to plan a topic of 1,000 partitions."""
    job = Job("read", "pulsar-native", broker.options(LARGE_PARTITION.topic), LARGE_PARTITION.messages, None)

    def grown(given: Job) -> Sample:
        return {"value": broker.setup.engine.run(given)["growth_mib"]}

    yield Case(
        "limits",
        "growth of the worker's memory over a partition of 3 GiB",
        (
            Contender("ours", "pulsar-native", "ours", here(grown, job), warm=0),
            # Two processes, so that the read has a separate one; the topic has only one task.
            Contender("alone", "without Spark", "ours", here(grown, replace(job, spark=False, cores=2)), warm=0),
        ),
        unit="MiB",
        prepare=lambda: broker.fill(LARGE_PARTITION),
        repeats=1,
    )
    topic = f"persistent://{NAMESPACE}/planned-{PLANNED_PARTITIONS}"
    admin_url = broker.standalone.admin_url

    def plan() -> Sample:
        format_ = OURS["pulsar-native"]({}).format
        options = format_.parse_options(broker.options(topic))
        started = time.perf_counter()
        ranges = format_.plan(options, ())
        seconds = time.perf_counter() - started
        if len(ranges) != PLANNED_PARTITIONS:
            raise RuntimeError(f"{len(ranges)} ranges were planned for {PLANNED_PARTITIONS} partitions")
        return {"value": seconds}

    def unloaded() -> None:
        if create_topic(admin_url, topic, PLANNED_PARTITIONS):
            publish_one_each(broker.address, partitions_of(topic, PLANNED_PARTITIONS))
        broker.standalone.admin.unload_namespace(NAMESPACE)

    planner = Contender("ours", "pulsar-native", "ours", here(plan), warm=0)
    name = "planning 1,000 partitions"
    yield Case("limits", f"{name} that the broker has not loaded", (planner,), unit="s", prepare=unloaded, repeats=1)
    yield Case("limits", name, (planner,), unit="s", repeats=1)
