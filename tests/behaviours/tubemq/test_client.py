from __future__ import annotations

import contextlib
import dataclasses
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence

import pytest

from brokers.tubemq import STORE_PASSWORD
from brokers.tubemq_admin import AdminError
from spark_mq_source.core.errors import (
    AuthenticationError,
    BrokerError,
)
from spark_mq_source.tubemq.client import session
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.group_members import GroupMember
from spark_mq_source.tubemq.client.members import ClientBalancedMember, unique_client_id
from spark_mq_source.tubemq.client.session import PartitionConsumer
from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import BrokerPartition
from tests.behaviours.tubemq.conftest import options_for
from tests.fix_brokers import wait_until
from tests.fix_tubemq import TubeUnderTest
from tests.protobuf import tubemq as pb

Clients = Callable[..., TubeMQClient]


def partitions_of(client: TubeMQClient, topic: str, group: str = "look") -> list[BrokerPartition]:
    return client.fetch_topics([topic], group=f"{group}_{topic}").partitions()


def reader(client: TubeMQClient, partition: BrokerPartition, group: str) -> PartitionConsumer:
    return client.consumer(partition, client_id=unique_client_id(group), group=group)


def values(response: c.GetMessageResponse) -> list[bytes]:
    return [m.pay_load_data for m in pb.TransferedMessages.FromString(bytes(response.body)).messages]


def message(topic: str, data: bytes, *, check_sum: int | None = None, partition_id: int = 0) -> c.SendMessage:
    checked = zlib.crc32(data) & 0x7FFFFFFF if check_sum is None else check_sum
    return c.SendMessage("client", topic, partition_id, data, 0, checked, 2130706433)


def code_of(raised: pytest.ExceptionInfo[BrokerError]) -> int | None:
    return raised.value.code


# -- metadata


def test_metadata_has_every_partition_of_every_store_on_every_broker(tubemq: TubeUnderTest, client_of: Clients) -> None:
    client = client_of(tubemq)
    stores, brokers = tubemq.topic(2, stores=2), tubemq.topic(2, brokers=(1, 2))
    meta = client.fetch_topics([stores, brokers], group=tubemq.group())
    assert [p.partition_id for p in meta.partitions(stores)] == [0, 1, 10_000, 10_001]
    found = [(p.broker.broker_id, p.broker.address, p.partition_id) for p in meta.partitions(brokers)]
    addresses = [broker.address for broker in tubemq.cluster.brokers]
    assert found == [(1, addresses[0], 0), (1, addresses[0], 1), (2, addresses[1], 0), (2, addresses[1], 1)]


# -- partitions


def test_a_heartbeat_detects_a_lost_partition(
    tubemq: TubeUnderTest, client_of: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HEARTBEAT_MS", 200)
    client, other, group = client_of(tubemq), client_of(tubemq), tubemq.group()
    kept, lost = partitions_of(client, tubemq.topic(3))[:2]
    consumers = [client.consumer(one, client_id="the_same", group=group) for one in (kept, lost)]
    for consumer in consumers:
        client.wait(consumer.register(curr_offset=0), "register")
    other.wait(other.consumer(lost, client_id="the_same", group=group).unregister(), "unregister")
    wait_until(lambda: consumers[1].lost is not None, "a heartbeat detects the loss", 30)
    assert "HB_NO_NODE (411)" in str(consumers[1].lost)
    assert str(lost) in str(consumers[1].lost)
    assert consumers[0].lost is None
    assert client.wait(consumers[0].get_and_commit()[0], "fetch").err_code == 404


def test_a_refused_message_reports_the_reason_and_keeps_the_connection(
    tubemq: TubeUnderTest, client_of: Clients
) -> None:
    client, topic = client_of(tubemq), tubemq.topic()
    (partition,) = partitions_of(client, topic)
    broker = client.broker(partition.broker)
    sends = [
        message(topic, b"1"),
        message(topic, b"2", check_sum=1),
        message(topic, b"3", partition_id=7),
        message("nowhere", b"4"),
        message(topic, bytes((1 << 20) + 10_241)),
        message(topic, b""),
        message(topic, b"5"),
    ]
    codes = []
    for answer in broker.call(*sends):
        try:
            codes.append(client.wait(answer, "send").err_code)  # type: ignore[union-attr]
        except BrokerError as error:
            codes.append(error.code or 0)
    assert codes == [200, 403, 403, 403, 400, 400, 200]
    assert client.broker(partition.broker) is broker


# -- members with partitions assigned by the master


@contextlib.contextmanager
def member(client: TubeMQClient, group: str, topic: str, log: list[str], name: str) -> Iterator[GroupMember]:
    def note(what: str) -> Callable[[Sequence[BrokerPartition]], Sequence[BrokerPartition]]:
        def take(partitions: Sequence[BrokerPartition]) -> Sequence[BrokerPartition]:
            log.extend(f"{name} {what} {one.partition_id}" for one in partitions)
            return partitions

        return take

    joined = client.enter(GroupMember(client.masters, group, [topic], (), note("takes"), note("leaves")))
    try:
        yield joined
    finally:
        joined.close()


def test_a_failed_event_is_answered_too_and_the_group_continues(tubemq: TubeUnderTest, client_of: Clients) -> None:
    client, group, topic = client_of(tubemq), tubemq.group(), tubemq.topic(3)
    failed = threading.Event()

    def fail(partitions: Sequence[BrokerPartition]) -> Sequence[BrokerPartition]:
        failed.set()
        raise RuntimeError

    broken = client.enter(GroupMember(client.masters, group, [topic], (), fail, fail))
    assert failed.wait(60)
    assert broken.assigned.wait(60)
    assert not broken.assignment
    broken.close()
    with member(client, group, topic, [], "a") as other:
        wait_until(lambda: len(other.assignment) == 3, "another member has all partitions")


def test_a_forgotten_member_registers_again_with_its_partitions(tubemq: TubeUnderTest, client_of: Clients) -> None:
    client, group, topic = client_of(tubemq), tubemq.group(), tubemq.topic(3)
    with member(client, group, topic, [], "a") as first:
        wait_until(lambda: len(first.assignment) == 3, "the member has all partitions")
        client.masters.ask(c.CloseConsumer(first.client_id, group))
        wait_until(lambda: members(tubemq, group) == [first.client_id], "it is a member again")
        with member(client, group, topic, [], "b") as second:
            wait_until(lambda: (len(first.assignment), len(second.assignment)) == (2, 1), "both have partitions")


def members(tubemq: TubeUnderTest, group: str) -> list[str]:
    try:
        return [one["consumerId"] for one in tubemq.admin.group_members(group)]
    except AdminError:  # no master is the leader at the moment
        return []


def test_a_client_balanced_member_is_kept_and_registers_again(tubemq: TubeUnderTest, client_of: Clients) -> None:
    client, group, topic = client_of(tubemq), tubemq.group(), tubemq.topic(3)
    with client.enter(ClientBalancedMember(client.masters, group, [topic], ())) as chooser:
        chooser.send_heartbeat()
        client.masters.ask(c.CloseConsumer(chooser.client_id, group))
        assert len(chooser.fetch_topics().partitions()) == 3
        client.masters.ask(c.CloseConsumer(chooser.client_id, group))
        chooser.send_heartbeat()
        assert len(chooser.fetch_topics().partitions()) == 3
        chooser.send_heartbeat()
        (shown,) = tubemq.admin.group_members(group)
        assert [sorted(one["partId"] for one in shown["parInfo"]), shown["parCount"]] == [[0, 1, 2], 3]


# -- secure clusters


@pytest.mark.parametrize("files", ["PEM", "PKCS12"])
def test_a_secure_cluster_accepts_a_certificate_and_a_signature(
    tubemq_secure: TubeUnderTest, client_of: Clients, files: str
) -> None:
    cluster, topic = tubemq_secure.cluster, tubemq_secure.topic(3)
    stores: dict[str, str | None] = {
        "trustCerts": str(cluster.trust_store),
        "trustCertsPassword": STORE_PASSWORD,
        "clientCert": str(cluster.folder / "client.p12"),
        "clientKey": None,
        "clientKeyPassword": STORE_PASSWORD,
    }
    client = client_of(tubemq_secure, **(stores if files == "PKCS12" else {}))
    partition = partitions_of(client, topic)[0]
    tls_ports = {broker.tls_address for broker in cluster.brokers}
    assert {partition.broker.address} == tls_ports
    assert client.wait(client.broker(partition.broker).call(message(topic, b"x"))[0], "send").err_code == 200  # type: ignore[union-attr]
    consumer = reader(client, partition, tubemq_secure.group())
    opened = client.wait(consumer.register(curr_offset=0, qry_priority_id=1), "register")
    assert opened.max_offset == 28
    assert values(client.wait(consumer.get_and_commit()[0], "fetch")) == [b"x"]
    client.wait(consumer.unregister(), "unregister")


def test_an_authenticating_master_refuses_a_client_without_a_user(tubemq_secure: TubeUnderTest) -> None:
    options = dataclasses.replace(options_for(tubemq_secure), auth_user=None, auth_password=None)
    with TubeMQClient(options) as client:
        with pytest.raises(AuthenticationError, match=r"CERTIFICATE_FAILURE \(415\).*check authUser") as raised:
            client.fetch_topics(["t"], group="g")
        assert code_of(raised) == 415
