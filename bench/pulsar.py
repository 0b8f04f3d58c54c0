"""Pulsar: reads and writes of `pulsar-native`, beside raw sockets, the null source, and the official clients.

python -m bench.pulsar read URL TOPIC MESSAGES                reads with pulsar-client, in rows a second
python -m bench.pulsar write URL TOPIC CODEC BYTES MESSAGES   writes with it
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

from bench.engine import ARROW_ROWS, VALUE_ONLY, Job, Sample, value_file
from bench.pulsar_broker import (
    NAMESPACE,
    WARM_UP_READS,
    Broker,
    Workload,
    count,
    default_columns,
    drain,
    publish,
    use_namespace,
)
from bench.pulsar_limits import limits
from bench.pulsar_offloaded import history, offloading
from bench.pulsar_queue import queues
from bench.pulsar_scale import SETTINGS as SCALE_SETTINGS
from bench.pulsar_scale import scale
from bench.pulsar_spark import LABEL as SPARK_LABEL
from bench.pulsar_spark import PulsarSpark
from bench.pulsar_stream import streams
from bench.pulsar_typed import typed
from bench.runner import Case, Contender, Setup, here, loop, ours, program
from bench.values import make_values
from brokers.pulsar import VERSION, PulsarStandalone, distribution, program_environment
from spark_mq_source.pulsar.options import PulsarOptions

LABEL = "pulsar-native"
BROKER = f"Pulsar {VERSION}"
QUICK = r"(read|write) 100 B, uncompressed, 1 partition"

READ_MESSAGES = {100: 8_000_000, 1024: 3_040_000}
"""So many that a read takes seconds and the fixed costs of a Spark job weigh little."""

WRITTEN_MESSAGES = 3_000_000

GUARANTEES = ("exactly-once", "at-least-once")
CODECS = {"none": "uncompressed", "lz4": "LZ4"}

JVM = {"PULSAR_MEM": "-Xms2g -Xmx2g -XX:MaxDirectMemorySize=4g", "PULSAR_GC": "-XX:+UseParallelGC"}
"""Of the broker and the Java client: the memory that Pulsar's scripts give them, and the collector that takes the least
processor time from the others on two cores."""

BROKER_SETTINGS = {"readBufferSizeBytes": str(1 << 20)}
"""The stock bookie fetches an entry of 100 KB in 26 reads of 4 KiB, which halves the rate of every reader."""

WARM_UP_WRITES = 3

CLIENT_READS = {100: 1_000_000, 1024: 500_000}
"""The messages that pulsar-client reads: at a tenth of our rate, a few seconds give its rate as well as minutes."""

CLIENT_WRITES = 120_000
CLIENT_BATCH_BYTES = PulsarOptions.batching_max_bytes
"""The two clients' batches are as large as ours; Java's are slower with the 100 kB of the prepared entries."""

BATCH_DELAY_MS = 10
"""The two clients' maximum wait for a full batch."""

PERF_SECONDS = 7
PERF_SHARE = 0.85
"""The Java client stops reading at this share of the topic, so that every partition is being read to the end."""


@contextlib.contextmanager
def running(setup: Setup) -> Iterator[Iterator[Case]]:
    """Return the cases of a broker that runs until the context is left."""
    with (
        offloading(setup.folder) as (history_settings, store),
        PulsarStandalone(
            setup.folder / "broker", overrides={**BROKER_SETTINGS, **SCALE_SETTINGS, **history_settings}, jvm=JVM
        ) as standalone,
    ):
        use_namespace(standalone.admin_url)
        with contextlib.closing(PulsarSpark(standalone.service_url, standalone.admin_url)) as spark:
            broker = Broker(standalone, setup)
            yield itertools.chain(cases(broker, spark), history(broker, _perf_reads, store) if history_settings else ())


def cases(broker: Broker, spark: PulsarSpark) -> Iterator[Case]:
    """Yield all cases."""
    shapes = list(itertools.product((1, 4), READ_MESSAGES, CODECS))
    for partitions, size, codec in shapes:
        yield _reads(broker, spark, Workload(size, codec, partitions, broker.setup.scaled(READ_MESSAGES[size])))
    for partitions, codec in itertools.product((1, 4), CODECS):
        yield _writes(broker, Workload(100, codec, partitions, broker.setup.scaled(WRITTEN_MESSAGES)))
    for partitions, batch_bytes in itertools.product((1, 4), (1 << 20, 128 << 10)):
        workload = Workload(100, "none", partitions, broker.setup.scaled(WRITTEN_MESSAGES))
        yield _guarantees(broker, workload, batch_bytes)
    yield from typed(broker)
    yield from streams(broker)
    yield from queues(broker, _perf_reads)
    yield from limits(broker)
    yield from scale(broker)


def _title(workload: Workload) -> str:
    size = f"{workload.value_bytes} B" if workload.value_bytes % 1024 else f"{workload.value_bytes // 1024} KiB"
    return f"{size}, {CODECS[workload.codec]}, {count(workload.partitions)}"


# -- reading


def _reads(broker: Broker, spark: PulsarSpark, workload: Workload) -> Case:
    topic, rows, cores = workload.topic, workload.messages, min(workload.partitions, 2)
    job = Job("read", "pulsar-native", broker.options(topic), rows, None, cores=cores)

    def null(columns: str | None) -> Sample:
        file = broker.null_file(workload, columns)
        given = {"batches": file, "rows": str(rows // workload.partitions), "partitions": str(workload.partitions)}
        return broker.setup.engine.run(
            replace(job, format="bench-null", options=given, columns=columns or default_columns())
        )

    def pulsar_spark() -> Sample:
        return {"value": spark.read(topic, rows, cores)}

    def prepare() -> None:
        broker.fill(workload)
        for _ in range(WARM_UP_READS):
            drain(broker.address, workload)

    contenders = (
        ours("ours", LABEL, job),
        Contender("null", "null source", "limit", here(null, None)),
        ours("ours_value", "value only", replace(job, columns=VALUE_ONLY)),
        Contender("null_value", "null source, value only", "limit", here(null, VALUE_ONLY), "ours_value"),
        ours("alone", "value only, without Spark", replace(job, columns=VALUE_ONLY, spark=False)),
        loop("drain", "raw drain", rows, partial(drain, broker.address, workload), beside="ours_value"),
        Contender("pulsar_client", "pulsar-client", "peer", here(_client_reads, broker, workload), warm=0),
        Contender("pulsar_perf", "pulsar-perf (Java)", "peer", here(_perf_reads, broker, workload), warm=0),
        Contender("pulsar_spark", SPARK_LABEL, "peer", here(pulsar_spark)),
    )
    return Case("read", _title(workload), contenders, prepare=prepare)


def _client_topic(workload: Workload) -> str:
    """Return the topic for the other clients: a single partition by its name, which saves them a layer."""
    return workload.topic if workload.partitions > 1 else f"{workload.topic}-partition-0"


def _client_reads(broker: Broker, workload: Workload) -> Sample:
    messages = min(CLIENT_READS[workload.value_bytes], workload.messages // 2)
    url = broker.standalone.service_url
    return {"value": program("bench.pulsar", "read", url, _client_topic(workload), messages)}


def _perf_reads(broker: Broker, workload: Workload, kind: str = "Exclusive") -> Sample:
    """Return the Java client's own rates a second, without the seconds in which its JVM warms up.

    It acknowledges each message. Every consumer (one a partition) reports its rate each second; its mean is taken, and
    the partitions are summed.
    """
    arguments: list[object] = [
        "consume", "--subscriptions", f"bench-{uuid.uuid4().hex}", "--subscription-position", "Earliest",
        "--subscription-type", kind, "--receiver-queue-size", 10_000, "--test-duration", PERF_SECONDS,
        "--num-messages", int(PERF_SHARE * workload.messages), _client_topic(workload),
    ]  # fmt: skip
    return {"value": _perf(broker, arguments, "Consume throughput received:", 2, workload.partitions)}


def _perf(broker: Broker, arguments: Sequence[object], report: str, warm_up_seconds: int, partitions: int) -> float:
    """Run pulsar-perf until it has reported for its seconds, or end.

    Raises:
        RuntimeError: it reports nothing.
    """
    verb, *others = map(str, arguments)
    command = [str(distribution() / "bin" / "pulsar-perf"), verb, "--service-url", broker.standalone.service_url,
               "--stats-interval-seconds", "1", *others]  # fmt: skip
    folder = broker.setup.folder
    output, reports = "", 0
    with subprocess.Popen(
        command, env={**os.environ, **program_environment(folder, JVM)}, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None  # noqa: S101 - for mypy
        for line in process.stdout:
            output += line
            reports += report in line
            if reports == PERF_SECONDS * partitions:
                # It takes ten more seconds to end by itself.
                process.kill()
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for partition, rate in re.findall(rf"\[(\S+-partition-\d+)\].*{report} ([0-9.]+) msgs?/s", output):
        rates[partition].append(float(rate))
    steady = [fmean(r[warm_up_seconds:PERF_SECONDS]) for r in rates.values() if len(r) > warm_up_seconds]
    if not steady:
        raise RuntimeError(f"pulsar-perf reported no rates:\n{output[-2000:]}")
    return sum(steady)


# -- writing


def _writes(broker: Broker, workload: Workload) -> Case:
    rows, partitions = workload.messages, workload.partitions
    job = _write_job(broker, workload)
    codec = {"compressionType": workload.codec.upper()}

    @contextlib.contextmanager
    def around(spark: bool) -> Iterator[Job]:
        with broker.topic(partitions) as topic:
            yield replace(job, options=broker.options(topic) | codec, spark=spark)

    def null() -> Sample:
        return broker.setup.engine.run(replace(job, format="bench-null", options={"rows": str(rows)}))

    def ready_made() -> None:
        with broker.topic(partitions) as topic:
            publish(broker.address, topic, workload, value_only=True)

    def prepare() -> None:
        for _ in range(WARM_UP_WRITES):
            ready_made()
        with around(False) as made:
            broker.setup.engine.run(made)
            # Exactly the written messages are stored.
            broker.setup.engine.run(replace(made, verb="read", options=broker.options(made.options["topic"])))

    contenders = (
        ours("ours", LABEL, job, partial(around, True)),
        Contender("null", "null sink", "limit", here(null)),
        ours("alone", "without Spark", job, partial(around, False)),
        loop("ready_made", "ready-made batches", rows, ready_made),
        Contender("pulsar_client", "pulsar-client", "peer", here(_client_writes, broker, workload), warm=0),
        Contender("pulsar_perf", "pulsar-perf (Java)", "peer", here(_perf_writes, broker, workload), warm=0),
    )
    return Case("write", _title(workload), contenders, prepare=prepare)


def _write_job(broker: Broker, workload: Workload) -> Job:
    file = value_file(broker.setup.folder, workload.value_bytes)
    partitions = workload.partitions
    return Job(
        "write", "pulsar-native", {}, workload.messages, file=file, partitions=partitions, cores=min(partitions, 2)
    )


def _guarantees(broker: Broker, workload: Workload, batch_bytes: int) -> Case:
    namespace = f"{NAMESPACE}-once"
    job = _write_job(broker, workload)

    @contextlib.contextmanager
    def around(guarantee: str, spark: bool) -> Iterator[Job]:
        with broker.topic(workload.partitions, namespace) as topic:
            given = {"deliveryGuarantee": guarantee, "batchingMaxBytes": str(batch_bytes)}
            yield replace(job, options=broker.options(topic) | given, spark=spark)

    def both(suffix: str, label: str, spark: bool) -> list[Contender]:
        one, other = (
            ours(each.replace("-", "_") + suffix, each + label, job, partial(around, each, spark))
            for each in GUARANTEES
        )
        return [one, replace(other, role="limit", beside=one.name)]

    def prepare() -> None:
        use_namespace(broker.standalone.admin_url, namespace)
        broker.standalone.admin.set_deduplication(namespace, enabled=True)

    contenders = both("", "", True) + both("_alone", " without Spark", False)
    name = f"{_title(workload)}, batches of {batch_bytes >> 10} KiB"
    return Case("guarantees", name, contenders, prepare=prepare)


def _client_writes(broker: Broker, workload: Workload) -> Sample:
    with broker.topic(workload.partitions) as topic:
        given = (broker.standalone.service_url, topic, workload.codec, workload.value_bytes, CLIENT_WRITES)
        return {"value": program("bench.pulsar", "write", *given)}


def _perf_writes(broker: Broker, workload: Workload) -> Sample:
    """Return the Java client's own rates a second, without the seconds in which its JVM warms up."""
    payloads = broker.setup.folder / f"payloads-{workload.value_bytes}.txt"
    if not payloads.exists():
        payloads.write_bytes(b"~".join(make_values(workload.value_bytes, ARROW_ROWS)))
    with broker.topic(workload.partitions) as topic:
        arguments: list[object] = [
            "produce", "--rate", 10_000_000, "--payload-file", payloads, "--payload-delimiter", "~",
            "--batch-max-bytes", CLIENT_BATCH_BYTES, "--batch-max-messages", CLIENT_BATCH_BYTES,
            "--batch-time-window", BATCH_DELAY_MS, "--compression", workload.codec.upper(),
            "--test-duration", 3 * PERF_SECONDS, topic,
        ]  # fmt: skip
        return {"value": _perf(broker, arguments, "Publish throughput:", 3, workload.partitions)}


# -- pulsar-client, in a separate process


def _read_with_client(service_url: str, topic: str, messages: str) -> float:
    import pulsar

    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10_000)
    reader.read_next(60_000)
    counted = int(messages) - 1
    started = time.perf_counter()
    for _ in range(counted):
        reader.read_next().data()
    seconds = time.perf_counter() - started
    client.close()
    return counted / seconds


def _write_with_client(service_url: str, topic: str, codec: str, value_bytes: str, messages: str) -> float:
    import pulsar

    client = pulsar.Client(service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_allowed_size_in_bytes=CLIENT_BATCH_BYTES,
        batching_max_messages=CLIENT_BATCH_BYTES,
        batching_max_publish_delay_ms=BATCH_DELAY_MS,
        block_if_queue_full=True,
        max_pending_messages=100_000,
        max_pending_messages_across_partitions=400_000,
        compression_type=getattr(pulsar.CompressionType, codec.upper()),
    )
    values = make_values(int(value_bytes), ARROW_ROWS)
    wanted = int(messages)
    stored = 0
    all_stored = threading.Event()

    def take(result: Any, _message_id: object) -> None:  # noqa: ANN401 - the client's enumeration is not annotated
        nonlocal stored
        # The client calls from one thread at a time: it holds the interpreter's lock.
        stored += result == pulsar.Result.Ok
        if stored == wanted:
            all_stored.set()

    started = time.perf_counter()
    for value in itertools.islice(itertools.cycle(values), wanted):
        producer.send_async(value, take)
    producer.flush()
    if not all_stored.wait(60):
        raise RuntimeError(f"{stored} of {wanted} messages were stored")
    seconds = time.perf_counter() - started
    client.close()
    return wanted / seconds


if __name__ == "__main__":
    _, verb, *given = sys.argv
    print(_read_with_client(*given) if verb == "read" else _write_with_client(*given))
