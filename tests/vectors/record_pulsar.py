"""Records again what official clients and a real broker say to each other, as vectors for the tests.

::

    python -m tests.vectors.record_pulsar [group ...]

Writes `tests/vectors/pulsar/recorded-*.jsonl`, one file a group of cases, with the brokers and clients of the README
there. Takes some six minutes: brokers are started and stopped for it. Ids, times and ports differ from one recording to
the next.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
from google.protobuf import text_format

from brokers.processes import ManagedProcess, free_ports, log_tail
from brokers.pulsar import Ports, PulsarStandalone, distribution, program_environment
from brokers.pulsar_admin import AdminError, PulsarAdmin
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
"""So small that the C++ client, which cannot be told a size, cuts small messages into chunks."""
MIN_HOST_NAME = 5
"""A shorter one stands somewhere in any bytes."""

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
EXTENSIBLE = {
    "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl",
    "loadBalancerLoadSheddingStrategy": "org.apache.pulsar.broker.loadbalance.extensions.scheduler.TransferShedder",
}


class Case(RecordingProxy):
    """A proxy that holds what passes, until `lines` turns it into a recording."""

    def __init__(self, name: str, service_url: str, *, listen_port: int = 0) -> None:
        self.recorded = io.StringIO()
        host, _, port = service_url.removeprefix("pulsar://").rpartition(":")
        super().__init__(host, int(port), self.recorded, name, listen_port=listen_port)

    def __enter__(self) -> Self:
        return self

    @property
    def service_url(self) -> str:
        """Where clients find the proxy."""
        return f"pulsar://{self.address}"

    def frames(self) -> list[dict[str, str]]:
        """What has passed so far."""
        return [json.loads(line) for line in self.recorded.getvalue().splitlines()]

    def wait_for_frames(self, kind: str, count: int = 1, *, words: str = "") -> None:
        """Until so many commands of a type have passed, whose text has these words in it."""

        def have_passed(_: FaultProxy) -> bool:
            return sum(frame["type"] == kind and words in frame["text"] for frame in self.frames()) >= count

        self.wait_for(have_passed)

    def lines(self) -> Iterator[str]:
        """Each frame once, with its message's metadata in the text.

        Raises:
            RuntimeError: one of them names this machine.
        """
        seen = set()
        host = socket.gethostname().encode()
        for frame in self.frames():
            if frame["hex"] in seen:
                continue
            seen.add(frame["hex"])
            data = bytes.fromhex(frame["hex"])
            if re.search(rb"/home/|/root/|/tmp/", data) or (len(host) >= MIN_HOST_NAME and host in data):
                raise RuntimeError(f"{self.name}: a frame that names this machine: {frame['text']}")
            # The package's own definitions have numbers for names.
            frame["text"] = re.sub(r"^type: \d+", f"type: {frame['type']}", frame["text"]) + describe_body(data)
            yield json.dumps(frame)


def describe_body(frame: bytes) -> str:
    """What stands behind the command of a frame, as text; empty if nothing does."""
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
    """pulsar-client (C++), closed at the end."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service_url, logger=logger, **options)
    try:
        yield client
    finally:
        client.close()


@dataclass
class Recorder:
    """Runs cases against one broker."""

    broker: PulsarStandalone
    java: JavaClient

    def record(self, names: Sequence[str], service_url: str) -> list[Case]:
        """Runs cases, each through a proxy of its own in front of this address."""
        cases = []
        for name in names:
            with Case(name.replace("_", " "), service_url) as case:
                getattr(self, name)(case)
            cases.append(case)
        return cases

    def produce_java(self, service_url: str, topic: str, messages: list[Any], **how: Any) -> None:
        """Publishes with the Java client."""
        under_test = PulsarUnderTest(service_url, self.broker.admin_url, self.broker.admin)
        self.java.produce(under_test, topic, messages, **how)

    # -- consumers

    def failover(self, case: Case) -> None:
        """Two consumers of a failover subscription: the first leaves."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/failover")
        with official_client(case.service_url) as client:
            consumers = [
                client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=name) for name in ("a", "b")
            ]
            case.wait_for_frames("ACTIVE_CONSUMER_CHANGE", 2)
            consumers[0].close()
            case.wait_for_frames("ACTIVE_CONSUMER_CHANGE", 2, words="is_active: true")

    def seek_by_time(self, case: Case) -> None:
        """A consumer goes back in time."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/seek")
        with official_client(case.service_url) as client:
            client.create_producer(topic).send(b"one")
            consumer = client.subscribe(topic, "s")
            consumer.seek(int(time.time() * 1000) - 60_000)
            consumer.receive(20_000)

    def batch_index(self, case: Case) -> None:
        """One message of a batch is acknowledged, the others come again."""
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
        """Messages of a topic with partitions."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/partitioned", 2)
        with official_client(case.service_url) as client:
            producer = client.create_producer(topic, message_router=lambda message, _: int(message.partition_key()))
            consumer = client.subscribe(topic, "s")
            for partition in (0, 1):
                producer.send(b"value", partition_key=str(partition))
                consumer.receive(20_000)

    def topics_by_mode(self, case: Case) -> None:
        """A consumer of topics by pattern asks for persistent ones, others, and all."""
        self.broker.admin.create_topic("persistent://public/default/one")
        for mode in ("PersistentOnly", "NonPersistentOnly", "AllTopics"):
            with official_client(case.service_url) as client:
                client.subscribe(
                    re.compile("persistent://public/default/.*"), f"s-{mode}",
                    regex_subscription_mode=getattr(pulsar.RegexSubscriptionMode, mode),
                )  # fmt: skip

    # -- messages

    def java_messages(self, case: Case) -> None:
        """What the Java client can put into a message, alone and in a batch; read by the Java client too."""
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
        """A message that the Java client cut into three."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/java-chunks")
        self.produce_java(case.service_url, topic, [b"0123456789" * 12], chunkBytes=50)
        self.produce_java(case.service_url, topic, [bytes(range(120))], chunkBytes=50, compression="LZ4")
        with official_client(case.service_url) as client:
            reader = client.create_reader(topic, pulsar.MessageId.earliest)
            for _ in range(2):
                reader.read_next(20_000)

    def cpp_chunks(self, case: Case) -> None:
        """A message that the C++ client cut into three."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/cpp-chunks")
        with official_client(case.service_url) as client:
            client.create_producer(topic, chunking_enabled=True).send(b"0123456789" * 220, partition_key="k")
            client.create_reader(topic, pulsar.MessageId.earliest).read_next(20_000)

    def compacted(self, case: Case) -> None:
        """Batches before and after the compaction of their topic."""
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

    # -- the rest

    def proxy(self, case: Case) -> None:
        """Through Pulsar's own proxy: `case` stands between the client and it."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/behind-the-proxy")
        with official_client(case.service_url) as client:
            client.create_producer(topic).send(b"value")
            client.create_reader(topic, pulsar.MessageId.earliest).read_next(20_000)

    def migrated(self, case: Case) -> None:
        """The cluster is marked as migrated, under a consumer and a producer."""
        topic = self.broker.admin.create_topic(f"{NAMESPACE}/migrated")
        with official_client(case.service_url) as client:
            # A consumer is told once its subscription has no backlog, if it speaks protocol 20 (seen on broker 4.0.8).
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
    """A batch of three."""
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=3, batching_max_publish_delay_ms=60_000
    )
    for value in (b"zero", b"one", b"two"):
        producer.send_async(value, None)
    producer.flush()
    producer.close()


# -- Pulsar's proxy


@contextlib.contextmanager
def pulsar_proxy(broker: PulsarStandalone, folder: Path) -> Iterator[str]:
    """`bin/pulsar proxy` in front of the broker; gives its service URL."""
    port, web = free_ports(2)
    configuration = folder / "proxy.conf"
    settings = {
        "clusterName": "standalone",
        "brokerServiceURL": broker.service_url,
        "brokerWebServiceURL": broker.admin_url,
        "bindAddress": HOST,
        "advertisedAddress": HOST,
        "servicePort": str(port),
        "webServicePort": str(web),
        # The stock ones are 6650 and 6651.
        "brokerProxyAllowedTargetPorts": "*",
    }
    write_configuration(configuration, "proxy.conf", settings)
    process = run_pulsar("proxy", folder, {"PULSAR_PROXY_CONF": str(configuration)})
    try:
        wait_for_port(port, process)
        yield f"pulsar://{HOST}:{port}"
    finally:
        process.stop()


def write_configuration(path: Path, stock: str, settings: Mapping[str, str]) -> None:
    """A stock configuration and these settings; of two with the same name the last one counts."""
    lines = [(distribution() / "conf" / stock).read_text(encoding="utf-8")]
    lines += [f"{name}={value}" for name, value in settings.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def run_pulsar(program: str, folder: Path, environment: Mapping[str, str]) -> ManagedProcess:
    """Starts one of the servers of bin/pulsar."""
    command = [str(distribution() / "bin" / "pulsar"), program]
    environment = {**program_environment(folder), **environment}
    return ManagedProcess(command, log=folder / f"{program}.log", environment=environment, folder=folder)


def wait_for_port(port: int, process: ManagedProcess) -> None:
    """Until somebody listens on the port.

    Raises:
        RuntimeError: the process has ended, or nobody does in time.
    """
    deadline = time.monotonic() + PATIENCE_S
    while process.alive and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), 1):
            return
        time.sleep(0.2)  # the process offers no event for it
    raise RuntimeError(f"nobody listens on {port}:\n{log_tail(process.log)}")


# -- two brokers of one cluster


class StandaloneWithZooKeeper(PulsarStandalone):
    """A standalone broker with a metadata store that another broker can share."""

    zookeeper_port = 0

    def prepare(self) -> tuple[list[str], dict[str, str]]:
        """As the base does, with ZooKeeper, and with listeners instead of an address."""
        command, environment = super().prepare()
        for option in ("--advertised-address", "--metadata-dir"):
            at = command.index(option)
            del command[at : at + 2]
        command += ["--zookeeper-port", str(self.zookeeper_port), "--zookeeper-dir", str(self.folder / "zookeeper")]
        return command, environment | {"PULSAR_STANDALONE_USE_ZOOKEEPER": "1"}


@dataclass
class Cluster:
    """Two brokers, and a recording proxy in front of each, to which their listener `recorded` leads."""

    brokers: tuple[str, str]
    admins: tuple[PulsarAdmin, PulsarAdmin]
    proxy_ports: tuple[int, int]

    @contextlib.contextmanager
    def cases(self, name: str) -> Iterator[tuple[Case, Case]]:
        """One recording at each broker."""
        with (
            Case(f"{name}, at the first broker", self.brokers[0], listen_port=self.proxy_ports[0]) as first,
            Case(f"{name}, at the second broker", self.brokers[1], listen_port=self.proxy_ports[1]) as second,
        ):
            yield first, second

    def redirect(self) -> list[Case]:
        """A topic that no broker serves yet is looked up at a broker that is not the leader."""
        self.admins[0].request("PUT", "namespaces/public/fresh", {"bundles": {"numBundles": 1}})
        with (
            self.cases("lookup redirect") as cases,
            official_client(cases[1].service_url, listener_name="recorded") as client,
        ):
            client.create_reader("persistent://public/fresh/topic", pulsar.MessageId.earliest).close()
        return list(cases)

    def assigned_broker(self) -> list[Case]:
        """A topic moves to the other broker, under its consumer."""
        self.admins[0].request("PUT", "namespaces/public/fresh", {"bundles": {"numBundles": 1}})
        with (
            self.cases("topic moves to another broker") as cases,
            official_client(cases[1].service_url, listener_name="recorded") as client,
        ):
            client.subscribe("persistent://public/fresh/topic", "s")
            owner = 0 if any(frame["type"] == "SUBSCRIBE" for frame in cases[0].frames()) else 1
            # Brokers know each other by this name, whatever they advertise to clients.
            target = self.admins[1 - owner].url.replace(f"http://{HOST}", "localhost")
            bundle = "namespaces/public/fresh/0x00000000_0xffffffff"
            self.admins[owner].request("PUT", f"{bundle}/unload?destinationBroker={target}")
            # It names the internal listener, so the client goes on past the other proxy (seen on broker 4.0.8).
            cases[owner].wait_for_frames("CLOSE_CONSUMER", words="assigned_broker_service_url")
        return list(cases)


@contextlib.contextmanager
def cluster_of_two(folder: Path, overrides: Mapping[str, str]) -> Iterator[Cluster]:
    """A standalone broker and one more; the first is the leader, because it was there first."""
    folder.mkdir()
    ports = free_ports(8)
    broker_ports, web_ports, proxy_ports = (ports[0], ports[1]), (ports[2], ports[3]), (ports[4], ports[5])
    listeners = [
        {
            "advertisedAddress": "",
            "advertisedListeners": f"internal:pulsar://{HOST}:{port},recorded:pulsar://{HOST}:{proxy}",
            "internalListenerName": "internal",
            # A standalone broker has none, and so knows of no other broker, unless it is told to.
            "loadBalancerEnabled": "true",
            "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl",
        }
        for port, proxy in zip(broker_ports, proxy_ports, strict=True)
    ]
    first = StandaloneWithZooKeeper(
        folder / "first", overrides=listeners[0] | dict(overrides), ports=Ports(ports[0], ports[2], None, ports[6])
    )
    first.zookeeper_port = ports[7]
    second_folder = folder / "second"
    second_folder.mkdir()
    settings = {
        "metadataStoreUrl": f"zk:{HOST}:{ports[7]}",
        "configurationMetadataStoreUrl": f"zk:{HOST}:{ports[7]}",
        "clusterName": "standalone",
        "brokerServicePort": str(broker_ports[1]),
        "webServicePort": str(web_ports[1]),
        "bindAddress": HOST,
        "managedLedgerDefaultEnsembleSize": "1",
        "managedLedgerDefaultWriteQuorum": "1",
        "managedLedgerDefaultAckQuorum": "1",
    }
    write_configuration(second_folder / "broker.conf", "broker.conf", settings | listeners[1] | dict(overrides))
    with first:
        process = run_pulsar("broker", second_folder, {"PULSAR_BROKER_CONF": str(second_folder / "broker.conf")})
        admin = PulsarAdmin(f"http://{HOST}:{web_ports[1]}")
        try:
            wait_for_port(web_ports[1], process)
            while not is_member(first.admin, admin):
                if not process.alive:
                    raise RuntimeError(log_tail(process.log))
                time.sleep(0.5)  # the brokers offer no event for it
            yield Cluster((first.service_url, f"pulsar://{HOST}:{broker_ports[1]}"), (first.admin, admin), proxy_ports)
        finally:
            process.stop()
            admin.close()


def is_member(*admins: PulsarAdmin) -> bool:
    """Whether each of the brokers knows of all."""
    try:
        return all(len(admin.request("GET", "brokers/standalone")) == len(admins) for admin in admins)
    except AdminError:
        return False


# -- all of it

CONSUMERS = ("failover", "seek_by_time", "batch_index", "partitions", "topics_by_mode", "migrated")
MESSAGES = ("java_messages", "java_chunks", "cpp_chunks", "compacted")
GROUPS = ("messages", "proxy", "consumers", "redirect", "assigned_broker")
"""`consumers` ends with the migration of the cluster, so nothing can come after it on the same broker."""


def write_recording(group: str, cases: Iterable[Case]) -> None:
    """One file."""
    path = FOLDER / "pulsar" / f"recorded-{group.replace('_', '-')}.jsonl"
    path.write_text("".join(f"{line}\n" for case in cases for line in case.lines()), encoding="utf-8")
    sys.stderr.write(f"{path.name}: {sum(len(case.frames()) for case in cases)} frames\n")


def main(arguments: list[str] | None = None) -> None:
    """Records the groups that are asked for, or all."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.vectors.record_pulsar", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("groups", nargs="*", choices=[*GROUPS, []], default=list(GROUPS))
    groups = parser.parse_args(arguments).groups
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if {"messages", "proxy", "consumers"} & set(groups):
            record_standalone(folder, groups)
        for group, overrides, record in (
            ("redirect", {}, Cluster.redirect),
            ("assigned_broker", EXTENSIBLE, Cluster.assigned_broker),
        ):
            if group in groups:
                with cluster_of_two(folder / group, overrides) as cluster:
                    write_recording(group, record(cluster))


def record_standalone(folder: Path, groups: Sequence[str]) -> None:
    """What one broker is enough for."""
    with PulsarStandalone(folder / "standalone", overrides=STANDALONE) as broker:
        java = JavaClient(folder / "java.log")
        recorder = Recorder(broker, java)
        try:
            if "messages" in groups:
                write_recording("messages", recorder.record(MESSAGES, broker.service_url))
            if "proxy" in groups:
                with pulsar_proxy(broker, folder) as service_url:
                    write_recording("proxy", recorder.record(["proxy"], service_url))
            if "consumers" in groups:
                write_recording("consumers", recorder.record(CONSUMERS, broker.service_url))
        finally:
            java.close()


if __name__ == "__main__":
    main()
