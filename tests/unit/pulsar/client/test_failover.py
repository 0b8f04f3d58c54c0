"""Failover between clusters: the client's choice when a cluster cannot be reached, and when it can again."""

import logging

import pytest

from spark_mq_source.core.errors import AuthenticationError, OptionError, TransportError
from spark_mq_source.core.options import READ, STREAM, WRITE
from spark_mq_source.pulsar.client import failover as module
from spark_mq_source.pulsar.client.failover import on_available_cluster
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands as c
from tests.fix_net import HOST, free_port
from tests.unit.pulsar.client import test_client
from tests.unit.pulsar.client.test_client import TOPIC

TIMED = module

broker = test_client.broker
client = test_client.client


@pytest.fixture(autouse=True)
def _no_choices(monkeypatch):
    monkeypatch.setattr(module, "_choices", {})


def options_of(first, *others, scope=WRITE, **more):
    given = {"serviceUrl": first, "failoverServiceUrls": ";".join(others), "topic": "t", "failoverDelay": "10ms"} | more
    return PulsarOptions.from_spark(given, scope)


def test_a_client_of_an_unreachable_cluster_uses_the_next_reachable_one(broker, client, clock, caplog):
    down, other = [f"pulsar://{HOST}:{free_port()}" for _ in range(2)]
    up = broker()
    with caplog.at_level(logging.WARNING):
        client(down, failoverServiceUrls=f"{other}; {up.url}", failoverDelay="10ms").fetch_partitions([TOPIC])
    assert f"failing over to {up.url}: {down}: " in caplog.text
    # The client uses the connection of the check, and later clients do not try the first cluster again.
    assert (len(up.links), len(up.of(c.PartitionedMetadata))) == (1, 1)
    with pytest.raises(TransportError, match=rf"no cluster of .* can be reached: {down}: .*; {other}: "):
        on_available_cluster(options_of(down, other))


def test_the_first_cluster_is_used_again_once_it_was_reachable_for_long_enough(broker, clock, monkeypatch):
    port = free_port()
    first, second = f"pulsar://{HOST}:{port}", broker()
    options = options_of(first, second.url, switchBackDelay="60s")
    reachable = set()
    connect = module._connect

    def connect_or_not(cluster):
        if cluster.service_url == first and first not in reachable:
            raise TransportError("down")
        if cluster.service_url != first:
            connect(cluster)

    monkeypatch.setattr(module, "_connect", connect_or_not)
    used = []
    for now, is_up in ((0, False), (31, True), (62, False), (93, True), (124, True), (125, True), (155, True)):
        clock.now = now
        reachable = {first} if is_up else set()
        used.append(on_available_cluster(options).service_url)
    assert used == [second.url] * 6 + [first]


def test_a_refusal_does_not_cause_a_failover(broker, clock):
    one, other = broker({c.Connect: lambda *_: c.Error(-1, 3, "no")}), broker()
    with pytest.raises(AuthenticationError):
        on_available_cluster(options_of(one.url, other.url))
    assert not other.links


@pytest.mark.parametrize(
    ("scope", "more", "why"),
    [
        (STREAM, {}, "not for streams"),
        (WRITE, {"deliveryGuarantee": "exactly-once"}, "another cluster does not know"),
        (WRITE, {"deliveryGuarantee": "transaction"}, "another cluster does not know"),
        (WRITE, {"accessMode": "Exclusive"}, "exclusive access is on one cluster"),
    ],
)
def test_operations_bound_to_one_cluster_do_not_fail_over(scope, more, why):
    with pytest.raises(OptionError, match=why):
        options_of("pulsar://a", "pulsar://b", scope=scope, **more)


def test_one_cluster_needs_no_check(clock):
    options = PulsarOptions.from_spark({"serviceurl": "pulsar://nowhere.invalid", "topic": "t"}, READ)
    assert on_available_cluster(options) is options
