"""Record the conversations of official clients with a real broker, as vectors for the tests.

::

    python -m tests.vectors.record_pulsar [group ...]

Writes `recorded-messages.jsonl` and `recorded-consumers.jsonl` in `tests/vectors/pulsar`, with the broker and clients
of the README there. Ids, times and ports differ from one recording to the next.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
from google.protobuf import text_format

from brokers.pulsar import PulsarStandalone
from spark_mq_source.pulsar.protocol.wire import BROKER_METADATA_MAGIC, CHECKSUM_MAGIC
from tests.behaviours.pulsar.java_client import JavaClient
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import FaultProxy, RecordingProxy
from tests.protobuf import pulsar as pb
from tests.vectors import FOLDER

if TYPE_CHECKING:
    from typing_extensions import Self

HOST = "127.0.0.1"
NAMESPACE = "persistent://public/tests"
PATIENCE_S = 60.0
MAX_MESSAGE_BYTES = 1024
"""So small that the C++ client, which has no option for the size, cuts small messages into chunks."""
MIN_HOST_NAME = 5
"""The shortest name to search for: shorter ones occur in any bytes."""

ENTRY_METADATA = {
    "brokerEntryMetadataInterceptors": (
        "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor,"
        "org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor"
    ),
    "exposingBrokerEntryMetadataToClientEnabled": "true",
}
STANDALONE = ENTRY_METADATA | {
    "acknowledgmentAtBatchIndexLevelEnabled": "true",
    "maxMessageSize": str(MAX_MESSAGE_BYTES),
    "clusterMigrationCheckDurationSeconds": "1",
}


class Case(RecordingProxy):
    """A proxy that keeps the frames that pass, until `lines` converts them to a recording."""

    def __init__(self, name: str, service_url: str) -> None:
        self.recorded = io.StringIO()
        host, _, port = service_url.removeprefix("pulsar://").rpartition(":")
        super().__init__(host, int(port), self.recorded, name)

    def __enter__(self) -> Self:
        return self

    @property
    def service_url(self) -> str:
        """The URL of the proxy for clients."""
        return f"pulsar://{self.address}"

    def frames(self) -> list[dict[str, str]]:
        """Return the frames that have passed so far."""
        return [json.loads(line) for line in self.recorded.getvalue().splitlines()]

    def wait_for_frames(self, kind: str, count: int = 1, *, words: str = "") -> None:
        """Wait until this number of commands of a type, with these words in their text, have passed."""

        def have_passed(_: FaultProxy) -> bool:
            return sum(frame["type"] == kind and words in frame["text"] for frame in self.frames()) >= count

        self.wait_for(have_passed)

    def lines(self) -> Iterator[str]:
        """Yield each frame once, with its message's metadata in the text.

        Raises:
            RuntimeError: a frame names this machine.
        """
        seen = set()
        host = socket.gethostname().encode()
        for frame in self.frames():
            if frame["hex"] in seen:
                continue
            seen.add(frame["hex"])
            data = bytes.fromhex(frame["hex"])
            if re.search(rb"/home/|/root/|/tmp/", data) or (len(host) >= MIN_HOST_NAME and host in data):
                raise RuntimeError(f"{self.name}: a frame names this machine: {frame['text']}")
            # The package's own definitions have numbers in place of names.
            frame["text"] = re.sub(r"^type: \d+", f"type: {frame['type']}", frame["text"]) + describe_body(data)
            yield json.dumps(frame)


def describe_body(frame: bytes) -> str:
    """Return the metadata after the command of a frame, as text; empty if there is none."""
    body = frame[8 + int.from_bytes(frame[4:8], "big") :]
    if not body:
        return ""
    parts = []
    if body.startswith(BROKER_METADATA_MAGIC):
        size = int.from_bytes(body[2:6], "big")
        broker = pb.BrokerEntryMetadata.FromString(body[6 : 6 + size])
        parts.append(f"BROKER_ENTRY{{{text_format.MessageToString(broker, as_one_line=True).strip()}}}")
        body = body[6 + size :]
    if body.startswith(CHECKSUM_MAGIC):
        body = body[6:]
    size = int.from_bytes(body[:4], "big")
    metadata = pb.MessageMetadata.FromString(body[4 : 4 + size])
    text = text_format.MessageToString(metadata, as_one_line=True, print_unknown_fields=True).strip()
    parts += [f"METADATA{{{text}}}", f"payload {len(body) - 4 - size} bytes"]
    return " | " + " | ".join(parts)


@contextlib.contextmanager
def official_client(service_url: str, **options: Any) -> Iterator[Any]:
    """Yield a pulsar-client (C++), and close it at the end."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service_url, logger=logger, **options)
    try:
        yield client
    finally:
        client.close()


@dataclass
class Recorder:
    """A recorder, which runs cases against one broker."""

    broker: PulsarStandalone
    java: JavaClient

    def record(self, names: Sequence[str], service_url: str) -> list[Case]:
        """Run cases, each through a separate proxy to this address."""
        cases = []
        for name in names:
            with Case(name.replace("_", " "), service_url) as case:
                getattr(self, name)(case)
            cases.append(case)
        return cases

    def produce_java(self, service_url: str, topic: str, messages: list[Any], **how: Any) -> None:
        """Publish with the Java client."""
        under_test = PulsarUnderTest(service_url, self.broker.admin_url, self.broker.admin)
        self.java.produce(under_test, topic, messages, **how)

    # -- consumers

    def failover(self, case: Case) -> None:
        """Close the first of two consumers of a failover subscription."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/failover")
        with official_client(case.service_url) as client:
            consumers = [
                client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=name) for name in ("a", "b")
            ]
            case.wait_for_frames("ACTIVE_CONSUMER_CHANGE", 2)
            consumers[0].close()
            case.wait_for_frames("ACTIVE_CONSUMER_CHANGE", 2, words="is_active: true")

    def seek_by_time(self, case: Case) -> None:
        """Seek a consumer to an earlier time."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/seek")
        with official_client(case.service_url) as client:
            client.create_producer(topic).send(b"one")
            consumer = client.subscribe(topic, "s")
            consumer.seek(int(time.time() * 1000) - 60_000)
            consumer.receive(20_000)

    def batch_index(self, case: Case) -> None:
        """Acknowledge one message of a batch; the others are redelivered."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/batch-index")
        with official_client(case.service_url) as client:
            produce_batch(client, topic)
            consumer = client.subscribe(
                topic, "s", pulsar.ConsumerType.Shared, initial_position=pulsar.InitialPosition.Earliest,
                batch_index_ack_enabled=True, negative_ack_redelivery_delay_ms=100,
            )  # fmt: skip
            messages = [consumer.receive(20_000) for _ in range(3)]
            consumer.acknowledge(messages[1])
            case.wait_for_frames("ACK")
            for message in messages[::2]:
                consumer.negative_acknowledge(message)
            case.wait_for_frames("MESSAGE", 2)
            consumer.close()
            consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, batch_index_ack_enabled=True)
            consumer.receive(20_000)

    def partitions(self, case: Case) -> None:
        """Publish and read messages of a topic with partitions."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/partitioned", 2)
        with official_client(case.service_url) as client:
            producer = client.create_producer(topic, message_router=lambda message, _: int(message.partition_key()))
            consumer = client.subscribe(topic, "s")
            for partition in (0, 1):
                producer.send(b"value", partition_key=str(partition))
                consumer.receive(20_000)

    def topics_by_mode(self, case: Case) -> None:
        """Subscribe to topics by pattern: persistent, non-persistent, and all."""
        self.broker.admin.create_topic("persistent://public/default/one")
        for mode in ("PersistentOnly", "NonPersistentOnly", "AllTopics"):
            with official_client(case.service_url) as client:
                client.subscribe(
                    re.compile("persistent://public/default/.*"), f"s-{mode}",
                    regex_subscription_mode=getattr(pulsar.RegexSubscriptionMode, mode),
                )  # fmt: skip

    # -- messages

    def java_messages(self, case: Case) -> None:
        """Publish and read messages with the Java client, alone and in a batch, with all fields that it can set."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/java")
        messages = [
            {"key": "text key", "value": b"value", "properties": {"a": "1", "b": "2"}, "eventTime": 1_700_000_000_000},
            {"keyBytes": b"\x00\xffkey", "value": None},
            {"orderingKey": b"order\x00", "value": b""},
        ]
        self.produce_java(case.service_url, topic, messages)
        self.produce_java(case.service_url, topic, messages, batching=True, producer="java-batches")
        self.broker.run_program(
            "pulsar-client", "--url", case.service_url,
            "consume", "--subscription-name", "s", "--subscription-position", "Earliest", "--num-messages", "6", topic,
        )  # fmt: skip

    def java_chunks(self, case: Case) -> None:
        """Publish a message that the Java client cuts into three chunks."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/java-chunks")
        self.produce_java(case.service_url, topic, [b"0123456789" * 12], chunkBytes=50)
        self.produce_java(case.service_url, topic, [bytes(range(120))], chunkBytes=50, compression="LZ4")
        with official_client(case.service_url) as client:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            for _ in range(2):
                reader.read_next(20_000)

    def cpp_chunks(self, case: Case) -> None:
        """Publish a message that the C++ client cuts into three chunks."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/cpp-chunks")
        with official_client(case.service_url) as client:
            client.create_producer(topic, chunking_enabled=True).send(b"0123456789" * 220, partition_key="k")
            client.create_reader(topic, pulsar.MessageId.earliest).read_next(20_000)

    def compacted(self, case: Case) -> None:
        """Publish and read batches before and after the compaction of their topic."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/compacted")
        batches: list[list[dict[str, Any]]] = [
            [{"key": "a", "value": b"a1"}, {"key": "b", "value": b"b1"}, {"key": "a", "value": b"a2"}],
            [{"key": "b", "value": b"b2"}, {"value": b"no key"}, {"key": "c", "value": None}],
            [{"key": "d", "value": b"d1"}, {"key": "e", "value": b"e1"}, {"key": "d", "value": b"d2"}],
        ]
        for batch, codec in zip(batches, ("NONE", "NONE", "LZ4"), strict=True):
            self.produce_java(case.service_url, topic, batch, batching=True, compression=codec)
        self.produce_java(case.service_url, topic, [{"key": "f", "value": b"f1"}])
        self.broker.admin.compact(topic)
        with official_client(case.service_url) as client:
            reader = client.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
            while reader.has_message_available():
                reader.read_next(20_000)

    def migrated(self, case: Case) -> None:
        """Mark the cluster as migrated, with a connected consumer and a producer."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/migrated")
        with official_client(case.service_url) as client:
            # A consumer with protocol 20 is notified once its subscription has no backlog (seen on broker 4.0.8).
            consumer = client.subscribe(topic, "s")
            client.create_producer(topic).send(b"value")
            consumer.acknowledge(consumer.receive(20_000))
            target = {
                "serviceUrl": self.broker.admin_url,
                "serviceUrlTls": "",
                "brokerServiceUrl": self.broker.service_url,
                "brokerServiceUrlTls": "pulsar+ssl://127.0.0.1:6651",
            }
            self.broker.admin.request("POST", "clusters/standalone/migrate?migrated=true", target)
            case.wait_for_frames("TOPIC_MIGRATED")


def produce_batch(client: Any, topic: str) -> None:
    """Publish a batch of three messages."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=3, batching_max_publish_delay_ms=60_000
    )
    for value in (b"zero", b"one", b"two"):
        producer.send_async(value, None)
    producer.flush()
    producer.close()


GROUPS = {
    "messages": ("java_messages", "java_chunks", "cpp_chunks", "compacted"),
    "consumers": ("failover", "seek_by_time", "batch_index", "partitions", "topics_by_mode", "migrated"),
}
"""`consumers` ends with the migration of the cluster, so no case can follow it on the same broker."""


def main(arguments: list[str] | None = None) -> None:
    """Record the requested groups, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.vectors.record_pulsar", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], default=[])
    wanted = parser.parse_args(arguments).groups or list(GROUPS)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        broker = stack.enter_context(PulsarStandalone(folder / "standalone", overrides=STANDALONE))
        java = JavaClient(folder / "java.log")
        stack.callback(java.close)
        for group in (group for group in GROUPS if group in wanted):
            cases = Recorder(broker, java).record(GROUPS[group], broker.service_url)
            path = FOLDER / "pulsar" / f"recorded-{group}.jsonl"
            path.write_text("".join(f"{line}\n" for case in cases for line in case.lines()), encoding="utf-8")
            sys.stderr.write(f"{path.name}: {sum(len(case.frames()) for case in cases)} frames\n")


if __name__ == "__main__":
    main()
