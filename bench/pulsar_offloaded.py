"""History: the same offloaded ledgers, read from an S3 server on this machine and from the broker's bookie."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from bench.engine import VALUE_ONLY, AnyEngine, Job, Sample, processor_ns
from bench.object_server import serving
from bench.pulsar_broker import NAMESPACE, WARM_UP_READS, Broker, Workload, default_columns, drain, publish_one_each
from bench.runner import Case, Contender, here, ours
from brokers.pulsar import offloaders
from brokers.s3 import S3Gateway

BUCKET = "history"
MESSAGES = {100: 8_000_000, 1024: 3_040_000}


class _History(Workload):
    """A new topic, whose ledgers are offloaded."""

    @property
    def topic(self) -> str:
        """The full topic name."""
        return f"persistent://{NAMESPACE}/history-v{self.value_bytes}-n{self.messages}"


@contextlib.contextmanager
def offloading(folder: Path) -> Iterator[tuple[dict[str, str], int]]:
    """Return the settings of a broker that offloads to an S3 server, and the id of the process that serves objects.

    There are no settings if Go is missing. Objects are written by a complete S3 server, and read with sendfile.
    """
    (folder / "s3").mkdir()
    try:
        gateway = S3Gateway(folder / "s3", BUCKET)
    except RuntimeError as error:
        print(f"[bench] without history: {error}", flush=True)
        yield {}, 0
        return
    with gateway, serving(folder / "s3" / "objects") as (read_url, server):
        url = gateway.environment["AWS_ENDPOINT_URL"]
        # The driver `S3` has no signature known to the server, and `aws-s3` asks Amazon for the bucket's region.
        jclouds = {"regions": "us-east-1", "region.us-east-1.endpoint": url, "s3.virtual-host-buckets": "false"}
        extra = " ".join(f"-Djclouds.{name}={v}" for name, v in jclouds.items())
        os.environ.update({**gateway.environment, "AWS_ENDPOINT_URL": read_url, "PULSAR_EXTRA_OPTS": extra})
        settings = {
            "offloadersDirectory": str(offloaders()),
            "narExtractionDirectory": str(folder / "nar"),
            "managedLedgerOffloadDriver": "aws-s3",
            "s3ManagedLedgerOffloadRegion": "us-east-1",
            "s3ManagedLedgerOffloadBucket": BUCKET,
            "s3ManagedLedgerOffloadServiceEndpoint": url,
            "managedLedgerDataReadPriority": "bookkeeper-first",
        }
        yield settings, server


def history(broker: Broker, perf_reads: Callable[[Broker, Workload], Sample], store: int) -> Iterator[Case]:
    """Yield reads of 100 B and 1 KiB, from the store, from the broker, and at full scale by the Java client."""
    for size, messages in MESSAGES.items():
        yield _reads(broker, _History(size, "none", 1, broker.setup.scaled(messages)), perf_reads, store)


def _reads(broker: Broker, workload: Workload, perf_reads: Callable[[Broker, Workload], Sample], store: int) -> Case:
    topic, rows, admin = workload.topic, workload.messages, broker.standalone.admin
    partition = f"{topic}-partition-0"
    job = Job("read", "pulsar-native", broker.options(topic), rows, None)
    stored = {
        "readOffloaded": "always",
        "offloadStorage": f"s3://{BUCKET}",
        "adminUrl": broker.standalone.admin_url,
    }

    def prepare() -> None:
        broker.fill(workload)
        for _ in range(WARM_UP_READS):
            drain(broker.address, workload)
        # The ledgers before that of the last message are offloaded.
        admin.unload(partition)
        publish_one_each(broker.address, [partition])
        admin.offload(partition, timeout_s=600)

    @contextlib.contextmanager
    def around(columns: str | None, more: dict[str, str]) -> Iterator[Job]:
        ledger, entries = [one for one in admin.ledgers(partition) if one[1]][-2]
        end = f'{{"{partition}": {{"ledger": {ledger}, "entry": {entries - 1}}}}}'
        yield replace(job, columns=columns, options={**job.options, **more, "endingOffsets": end})

    def from_store(name: str, label: str, columns: str | None) -> Contender:
        def run(engine: AnyEngine) -> Sample:
            with around(columns, stored) as made:
                before = processor_ns(store)
                return {**engine.run(made), "server_ns": (processor_ns(store) - before) / rows}

        return Contender(name, label, "ours", run)

    def null(columns: str | None) -> Sample:
        given = {"batches": broker.null_file(workload, columns), "rows": str(rows), "partitions": "1"}
        return broker.setup.engine.run(
            replace(job, format="bench-null", options=given, columns=columns or default_columns())
        )

    # The Java client reports a rate each second, and its first two are dropped: it needs all of the messages.
    java = Contender(
        "pulsar_perf", "pulsar-perf (Java), from the broker", "peer", here(perf_reads, broker, workload), warm=0
    )
    contenders = (
        from_store("ours", "from the store", None),
        Contender("null", "null source", "limit", here(null, None)),
        ours("broker", "from the broker", job, lambda: around(None, {})),
        from_store("ours_value", "value only, from the store", VALUE_ONLY),
        Contender("null_value", "null source, value only", "limit", here(null, VALUE_ONLY), "ours_value"),
        ours("broker_value", "value only, from the broker", job, lambda: around(VALUE_ONLY, {})),
        *([java] if broker.setup.scale >= 1 else []),
    )
    size = f"{workload.value_bytes} B" if workload.value_bytes % 1024 else f"{workload.value_bytes // 1024} KiB"
    return Case("history", size, contenders, prepare=prepare)
