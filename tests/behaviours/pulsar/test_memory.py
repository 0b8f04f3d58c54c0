"""Memory use, bounded by the options and not by the size of a topic."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys

import pytest

from tests.behaviours.pulsar.raw_producer import RawProducer, metadata, number
from tests.formats.pulsar import PulsarFormat

MEBIBYTE = 1 << 20
MESSAGES = 16

READER = """
import hashlib, sys
from pathlib import Path
sys.path.insert(0, ".")
from tests.formats import schema_of
from tests.formats.pulsar import pulsar_options
from spark_mq_source.pulsar.read.planner import plan_batch
from spark_mq_source.pulsar.read.reader import read_range

def most_bytes():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

url, topic, small = sys.argv[1:]
limits = {"receiveQueueBytes": "4m", "maxBatchBytes": "1m", "maxPendingChunkBytes": "32m"}
schema, before, rows = schema_of("value binary"), 0, 0
digest = hashlib.sha256()
for name in small, topic:
    options = pulsar_options(url, name, **limits)
    before, rows = most_bytes(), 0
    for task in plan_batch(options):
        for batch in read_range(options, task, schema):
            for value in batch.column("value"):
                digest.update(value.as_buffer())
            rows += batch.num_rows
print(rows, most_bytes() - before, digest.hexdigest())
"""


def read_apart(mq: PulsarFormat, topic: str) -> tuple[int, int, str]:
    """Return rows, the growth of a process that reads a small topic and then this one, and the digest of all values."""
    small = mq.broker.topic()
    mq.publish(small, [])
    done = subprocess.run(
        [sys.executable, "-c", READER, mq.broker.service_url, topic, small],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rows, growth, digest = done.stdout.split()
    return int(rows), int(growth), digest


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel for a process's peak memory")
@pytest.mark.parametrize("gap_at", [None, 5])
def test_a_topic_of_many_entries_stays_within_the_memory_limits(pulsar_format: PulsarFormat, gap_at):
    topic, value = pulsar_format.broker.topic(), random.Random(1).randbytes(MEBIBYTE)
    with RawProducer(pulsar_format.service, topic) as producer:
        for n in range(200):
            if n == gap_at:
                producer.send(metadata(number(20, 10)), b"")  # a marker, which is not delivered
            producer.send(metadata(), value)
    rows, growth, digest = read_apart(pulsar_format, topic)
    assert rows == 200
    assert digest == hashlib.sha256(value * 200).hexdigest()
    assert growth < 64 * MEBIBYTE


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel for a process's peak memory")
def test_memory_holds_only_a_few_chunked_messages_of_20_mebibytes(pulsar_format: PulsarFormat):
    topic, value = pulsar_format.broker.topic(), random.Random(2).randbytes(20 * MEBIBYTE)
    producer = pulsar_format.broker.client().create_producer(
        topic, batching_enabled=False, chunking_enabled=True, send_timeout_millis=60_000
    )
    for _ in range(MESSAGES):
        producer.send(value)
    producer.close()
    rows, growth, digest = read_apart(pulsar_format, topic)
    assert rows == MESSAGES
    assert digest == hashlib.sha256(value * MESSAGES).hexdigest()
    # One in assembly, one in the columns (which grow by doubling), one in their batch, and one in the batch before.
    assert growth < 192 * MEBIBYTE
