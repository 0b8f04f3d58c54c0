"""Queues: a Shared subscription whose messages are acknowledged one by one, beside the official clients doing the same.

    python -m bench.pulsar_queue URL TOPIC MESSAGES     rows a second that pulsar-client receives and acknowledges

Each run drains a new subscription, from the first message on, and waits for every acknowledgement. Beside it
are the same drain with the write-ahead folder, as in a stream, and our reader in offset mode: the
difference is the cost of acknowledgements and durability.
"""

from __future__ import annotations

import contextlib
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from bench.engine import Job, Sample
from bench.pulsar_broker import NAMESPACE, Broker, Workload, create_topic, drain, publish
from bench.runner import Case, Contender, here, ours, program

LABEL = "pulsar-native, Shared"

BATCHED_MESSAGES = 4_000_000
SINGLE_MESSAGES = 400_000
"""Each is a separate entry, as from a producer without batching."""

CLIENT_MESSAGES = {1000: 500_000, 1: 100_000}
"""The messages that pulsar-client drains, by the messages of an entry: a few seconds are enough for its rate."""

WARM_UP_READS = 3


class _Single(Workload):
    """A workload whose messages are separate entries."""

    @property
    def topic(self) -> str:
        """The full topic name."""
        return f"persistent://{NAMESPACE}/single-v{self.value_bytes}-n{self.messages}"

    @property
    def batch_messages(self) -> int:
        """The messages of a batch: 1."""
        return 1


PerfReads = Callable[[Broker, Workload, str], Sample]
"""A function that returns the Java client's rate with a subscription of that type."""


def queues(broker: Broker, perf_reads: PerfReads) -> Iterator[Case]:
    """Yield drains of a Shared subscription: of batches, and of single messages."""
    scaled = broker.setup.scaled
    yield _drains(broker, Workload(100, "none", 1, scaled(BATCHED_MESSAGES)), "batches of 1,000", perf_reads)
    yield _drains(broker, _Single(100, "none", 1, scaled(SINGLE_MESSAGES)), "single messages", perf_reads)


def _drains(broker: Broker, workload: Workload, name: str, perf_reads: PerfReads) -> Case:
    rows = workload.messages
    job = Job("read", "pulsar-native", broker.options(workload.topic), rows, None)

    @contextlib.contextmanager
    def around(given: Mapping[str, str]) -> Iterator[Job]:
        """Yield the job with a new subscription, which is deleted afterwards: it would keep unacknowledged messages."""
        subscription = f"bench-{uuid.uuid4().hex}"
        queue = {
            "subscription": subscription,
            "subscriptionType": "shared",
            "initialPosition": "earliest",
            "maxRows": str(rows),
        }
        yield replace(job, options=dict(job.options) | queue | dict(given))
        broker.standalone.admin.delete_subscription(f"{workload.topic}-partition-0", subscription)

    def durable() -> contextlib.AbstractContextManager[Job]:
        folder = broker.setup.folder / f"wal-{uuid.uuid4().hex}"
        return around({"walDir": str(folder), "runId": "bench"})

    def prepare() -> None:
        if create_topic(broker.standalone.admin_url, workload.topic, 1):
            publish(broker.address, workload.topic, workload)
        for _ in range(WARM_UP_READS):
            drain(broker.address, workload)

    contenders = (
        ours("ours", LABEL, job, partial(around, {})),
        ours("durable", f"{LABEL}, with walDir", job, durable),
        replace(ours("offsets", "offset mode", job), role="limit"),
        Contender("pulsar_client", "pulsar-client", "peer", here(_client_drains, broker, workload), warm=0),
        Contender("pulsar_perf", "pulsar-perf (Java)", "peer", here(perf_reads, broker, workload, "Shared"), warm=0),
    )
    return Case("queue", f"100 B, {name}, 1 partition", contenders, prepare=prepare)


def _client_drains(broker: Broker, workload: Workload) -> Sample:
    messages = min(CLIENT_MESSAGES[workload.batch_messages], workload.messages // 2)
    topic = f"{workload.topic}-partition-0"
    return {"value": program("bench.pulsar_queue", broker.standalone.service_url, topic, messages)}


def _drain_with_client(service_url: str, topic: str, messages: str) -> float:
    import pulsar

    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    consumer = client.subscribe(
        topic,
        f"bench-{uuid.uuid4().hex}",
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=10_000,
    )
    consumer.acknowledge(consumer.receive(60_000))
    counted = int(messages) - 1
    started = time.perf_counter()
    for _ in range(counted):
        message = consumer.receive()
        message.data()
        consumer.acknowledge(message)
    seconds = time.perf_counter() - started
    client.close()
    return counted / seconds


if __name__ == "__main__":
    print(_drain_with_client(*sys.argv[1:]))
