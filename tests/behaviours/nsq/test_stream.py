"""Streams of nsq: each message in one batch, and the same rows whenever a batch is read, under all faults."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_mq_source.core.errors import (
    DataLossError,
    MQSourceError,
    OptionError,
    TopicNotFoundError,
    TransportError,
)
from spark_mq_source.core.options import READ
from spark_mq_source.nsq.inspector import NsqInspector
from spark_mq_source.nsq.options import NsqOptions
from tests.behaviours.nsq.clients import open_session, put_back, receive
from tests.behaviours.nsq.reads import Query, numbered, read_tasks, values
from tests.fix_brokers import NsqUnderTest, wait_until
from tests.fix_net import FaultProxy, TlsMaterial, free_port

Start = Callable[..., NsqUnderTest]


@pytest.fixture
def query(tmp_path: Path, closing: Callable[[Query], Query]) -> Callable[..., Query]:
    """Start queries with `query(broker, topic, option=value)`; close them with the test."""

    def start(broker: NsqUnderTest, topic: str, **options: Any) -> Query:
        return closing(Query(broker, topic, options.pop("walDir", tmp_path / "wal"), **options))

    return start


def in_flight(broker: NsqUnderTest, topic: str) -> int:
    return int(broker.channel_stats(topic, "c")["in_flight_count"])


# -- without faults


def test_data_of_finished_batches_is_deleted(nsq: NsqUnderTest, query: Callable[..., Query], tmp_path: Path):
    topic = nsq.topic("c")
    q = query(nsq, topic)
    for number in range(4):
        nsq.publish(topic, b"%d" % number)
        q.trigger()
    # The last one has the messages that may be redelivered.
    assert [path.name for path in (tmp_path / "wal" / str(q.at["wal"])).iterdir()] == ["4"]


def available_now(q: Query) -> list[bytes]:
    """Return the rows that a run of the query with `Trigger.AvailableNow` reads."""
    q.restart()
    q.stream.cap_at_current_end()
    before = len(q.rows)
    for _ in range(20):
        if q.plan() == q.at:
            return sorted(row["value"] for row in q.rows[before:])
        q.trigger()
    pytest.fail("the query does not end")


def test_available_now_reads_an_nsqd_without_a_reachable_http_interface(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(nsq, topic, nsqdTcpAddresses=proxy.address, createChannel="true", maxRowsPerTrigger=200)
        nsq.publish(topic, *numbered(500))
        assert available_now(q) == numbered(500)
        # Its last batch was empty, but messages have arrived since.
        nsq.publish(topic, *numbered(300, "more"))
        assert available_now(q) == numbered(300, "more")


def test_available_now_reads_every_nsqd_with_and_without_http(nsq_private: Start, query: Callable[..., Query]):
    one = nsq_private()
    two = nsq_private(lookupd=one)
    topic = one.topic("c")
    two.create(topic, "c")
    one.publish(topic, *numbered(500, "one"))
    two.publish(topic, *numbered(500, "two"))
    host, port = two.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(one, topic, nsqdTcpAddresses=f"{one.tcp_address},{proxy.address}", createChannel="true",
                  nsqdHttpAddresses=f"{one.http_address},127.0.0.1:{free_port()}")  # fmt: skip
        assert available_now(q) == numbered(500, "one") + numbered(500, "two")


def test_available_now_does_not_treat_an_unreachable_nsqd_as_empty(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(nsq, topic, nsqdTcpAddresses=proxy.address, nsqdHttpAddresses=nsq.http_address)
        nsq.publish(topic, *numbered(500))
        proxy.stop()
        with pytest.raises(MQSourceError, match=proxy.address):
            available_now(q)


def test_available_now_reports_messages_that_another_connection_holds(
    nsq: NsqUnderTest, query: Callable[..., Query], caplog: pytest.LogCaptureFixture
):
    topic = nsq.topic("c")
    q = query(nsq, topic)
    nsq.publish(topic, *numbered(5))
    q.stream.cap_at_current_end()
    q.plan()
    with open_session(nsq.tcp_address) as session:
        consumer = session.subscribe(topic, "c")
        consumer.ready(2)
        receive(consumer, 2)
        assert len(q.trigger()) == 3
        assert q.plan() == q.at
    (warning,) = [message for message in caplog.messages if "no more messages wait" in message]
    assert f"{topic} on " in warning
    assert "but 2 are deferred, or held by another consumer or a lost connection" in warning


def test_a_trigger_ends_while_messages_keep_arriving(nsq: NsqUnderTest, query: Callable[..., Query]):
    """It ends after half of the time that nsqd waits for its first message."""
    topic = nsq.topic("c")
    host, port = nsq.tcp_address.split(":")
    enough = threading.Event()

    def publish() -> None:
        while not enough.wait(0.1):
            nsq.publish(topic, b"x")

    with FaultProxy(host, int(port)) as proxy, ThreadPoolExecutor(2) as pool:
        # Without the count of waiting messages over HTTP, only this bounds it.
        q = query(nsq, topic, nsqdTcpAddresses=proxy.address, createChannel="true", msgTimeout="1s", idleTimeout="30s")
        publishing = pool.submit(publish)
        try:
            assert pool.submit(q.trigger).result(60)
        finally:
            enough.set()
        publishing.result(60)


def test_a_paused_channel_gives_no_batch(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(3))
    nsq.post("/channel/pause", topic=topic, channel="c")
    q = query(nsq, topic)
    assert q.plan() == q.at
    nsq.post("/channel/unpause", topic=topic, channel="c")
    assert sorted(q.trigger()) == numbered(3)


def test_a_paused_topic_passes_nothing_on_and_its_channel_is_read(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(3, "before"))
    wait_until(lambda: nsq.channel_stats(topic, "c")["depth"] == 3, "the channel has them")
    nsq.post("/topic/pause", topic=topic)
    nsq.publish(topic, *numbered(3, "paused"))
    q = query(nsq, topic)
    assert sorted(q.trigger()) == numbered(3, "before")
    assert q.plan() == q.at
    nsq.post("/topic/unpause", topic=topic)
    assert sorted(q.trigger()) == numbered(3, "paused")


@pytest.mark.parametrize("create_channel", ["true", "false"])
def test_an_nsqd_without_the_channel_gets_it(
    nsq_private: Start, query: Callable[..., Query], create_channel: str, caplog: pytest.LogCaptureFixture
):
    """An nsqd with another channel passes all messages to that one, and counts none for ours."""
    one, two = nsq_private(), nsq_private()
    topic = one.topic("c")
    two.create(topic, "other")
    addresses = {
        "nsqdTcpAddresses": f"{one.tcp_address},{two.tcp_address}",
        "nsqdHttpAddresses": f"{one.http_address},{two.http_address}",
    }
    given = {"topic": topic, "channel": "c", "idleTimeout": "1s", **addresses}
    *_, (_, find_channel) = NsqInspector(NsqOptions.from_spark(given, READ)).steps()
    assert find_channel() == f"c exists; a query creates it for {topic} on {two.tcp_address}"
    q = query(one, topic, createChannel=create_channel, **addresses)
    assert q.plan() == q.at
    assert f"{topic} on {two.tcp_address}: no channel c: creating it" in caplog.text
    one.publish(topic, *numbered(5, "one"))
    two.publish(topic, *numbered(5, "two"))
    assert sorted(q.until(10)) == numbered(5, "one") + numbered(5, "two")
    # So does one whose channel is deleted while the query runs.
    two.post("/channel/delete", topic=topic, channel="c")
    assert q.plan() == q.at
    two.publish(topic, *numbered(5, "more"))
    assert sorted(q.trigger()) == numbered(5, "more")


def test_an_ephemeral_channel_gets_the_messages_that_wait_in_the_topic(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic()
    nsq.publish(topic, *numbered(5))
    assert sorted(query(nsq, topic, channel="gone#ephemeral", createChannel="true").until(5)) == numbered(5)


def test_an_ephemeral_channel_lives_between_triggers(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic()
    q = query(nsq, topic, channel="gone#ephemeral", createChannel="true")
    q.trigger()
    for number in range(3):
        nsq.publish(topic, *numbered(5, str(number)))
        assert sorted(q.until(5 * (number + 1))[-5:]) == numbered(5, str(number))


def test_two_queries_on_one_channel_share_its_messages(nsq: NsqUnderTest, query: Callable[..., Query], tmp_path: Path):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(4000))
    one, two = (query(nsq, topic, walDir=tmp_path / name, maxRowsPerTrigger=700) for name in ("one", "two"))
    while len(one.rows) + len(two.rows) < 4000:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(Query.trigger, (one, two)))
    assert sorted(row["value"] for q in (one, two) for row in q.rows) == numbered(4000)


# -- replays


def test_a_new_checkpoint_ignores_data_of_the_old_one(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5, "old"))
    assert len(query(nsq, topic).trigger()) == 5
    nsq.publish(topic, *numbered(5, "new"))
    assert sorted(query(nsq, topic).trigger()) == numbered(5, "new")


def test_a_checkpoint_of_another_format_is_refused(nsq: NsqUnderTest, query: Callable[..., Query]):
    q = query(nsq, nsq.topic("c"))
    with pytest.raises(OptionError, match="checkpoint cannot be used"):
        q.stream.latest({"version": 2, "batch": 1, "wal": "x"})


# -- the folder


def test_a_folder_lost_after_its_batch_was_read_stops_the_query(
    nsq: NsqUnderTest, query: Callable[..., Query], tmp_path: Path
):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5))
    q = query(nsq, topic)
    tasks = q.tasks()
    read_tasks(q.options, tasks)
    nsq.publish(topic, *numbered(5, "new"))
    shutil.rmtree(tmp_path / "wal")
    with pytest.raises(DataLossError, match="is gone"):
        read_tasks(q.options, tasks)
    q.restart()
    with pytest.raises(DataLossError, match=r"wal/\w+/1/plan is gone"):
        q.stream.latest({**q.at, "batch": 1})


# -- faults


def test_messages_delivered_too_often_are_set_aside_once(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic, dead = nsq.topic("c"), nsq.topic("c")
    nsq.publish(topic, *numbered(3))
    put_back(nsq.tcp_address, topic, count=3, times=2)
    nsq.publish(topic, b"new")
    q = query(nsq, topic, maxAttempts=2, onMaxAttempts="deadLetter", deadLetterTopic=dead)
    tasks = q.tasks()
    for _ in range(2):
        assert values(read_tasks(q.options, tasks)) == [b"new"]
    assert nsq.channel_stats(dead, "c")["depth"] == 3
    assert in_flight(nsq, topic) == 0


# -- brokers that leave and return


def test_an_unreachable_nsqd_is_skipped_and_read_again_when_it_returns(nsq_private: Start, query: Callable[..., Query]):
    one = nsq_private()
    two = nsq_private(lookupd=one)
    topic = one.topic("c")
    two.create(topic, "c")
    one.publish(topic, *numbered(5, "one"))
    two.publish(topic, *numbered(5, "two"))
    q = query(one, topic)
    end = q.plan()
    tasks = q.stream.ranges(q.at, end)
    assert len(tasks) == 2
    two.broker.stop()
    assert sorted(values(read_tasks(q.options, tasks))) == numbered(5, "one")
    q.at = end
    two.broker.start()
    wait_until(
        lambda: len(one.ask("GET", one.lookupd_address, "/lookup", topic=topic)[1]["producers"]) == 2, "it is back"
    )
    assert sorted(q.until(5)) == numbered(5, "two")


def test_an_unknown_topic_is_an_error_when_a_query_starts(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.unused_topic()
    with pytest.raises(TopicNotFoundError, match=f"nsq topic {topic}: .*set waitForTopic to wait for it"):
        query(nsq, topic)


def test_a_query_continues_while_its_only_nsqd_is_away(nsq_private: Start, query: Callable[..., Query]):
    broker = nsq_private()
    topic = broker.topic("c")
    q = query(broker, topic, nsqdTcpAddresses=broker.tcp_address, nsqdHttpAddresses=broker.http_address)
    broker.broker.stop()
    end = q.plan()
    tasks = q.stream.ranges(q.at, end)
    assert [task.nsqd.name for task in tasks] == [broker.tcp_address]
    assert read_tasks(q.options, tasks).num_rows == 0
    q.at = end
    broker.broker.start()
    broker.publish(topic, *numbered(5))
    assert sorted(q.until(5)) == numbered(5)


@pytest.mark.parametrize("name", ["topics", "topicsPattern"])
def test_a_query_continues_while_its_lookup_is_away(
    nsq: NsqUnderTest, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
):
    topic = nsq.topic("c")
    host, port = nsq.lookupd_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        given = {name: topic, "nsqlookupdHttpAddresses": proxy.address, "operationTimeout": "500ms"}
        q = Query(nsq, None, tmp_path / "wal", **given)
        assert q.plan() == q.at
        proxy.stop()
        nsq.publish(topic, *numbered(5))
        assert sorted(q.trigger()) == numbered(5)
    (warning,) = [message for message in caplog.messages if "reading from the nsqd that are known" in message]
    assert proxy.address in warning
    q.restart()
    with pytest.raises(TransportError, match=f"asking nsqlookupd http://{proxy.address}"):
        q.plan()
    q.stream.close()


def test_a_topic_created_later_is_read(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.unused_topic()
    q = query(nsq, topic, createChannel="true")
    assert q.plan() == q.at
    nsq.create(topic, "c")
    nsq.publish(topic, *numbered(3))
    assert sorted(q.trigger()) == numbered(3)


def test_messages_redelivered_by_a_killed_nsqd_are_left_out(nsq_private: Start, query: Callable[..., Query]):
    """nsqd saves its position in a queue on disk every 2 s or 2,500 messages, and resets attempts after it."""
    # All queues are on disk; their read positions are saved when nsqd ends in order, but not before.
    broker = nsq_private(mem_queue_size=0, sync_every=100_000, sync_timeout_ms=3_600_000)
    topic = broker.topic("c")
    broker.publish(topic, *numbered(1010))
    broker.broker.restart()
    wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon lists it again")
    q = query(broker, topic, maxRowsPerTrigger=600)
    assert sorted(q.until(1010)) == numbered(1010)
    for crash in range(2):
        broker.broker.restart(crash=True)
        wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon lists it again")
        # nsqd saves the position when its channel has been read to the end, as after the first crash.
        assert broker.channel_stats(topic, "c")["depth"] >= (100 if crash else 1010), "they are delivered again"
        broker.publish(topic, *numbered(10, f"new{crash}"))
        if crash:
            q.restart()
        q.until(1010 + 10 * (crash + 1))
    wait_until(lambda: q.trigger() == [] and broker.channel_stats(topic, "c")["depth"] == 0, "the channel is empty")
    assert sorted(row["value"] for row in q.rows) == numbered(1010) + numbered(10, "new0") + numbered(10, "new1")
    assert in_flight(broker, topic) == 0


@pytest.mark.parametrize("how", ["at once", "limited", "by another driver", "available now"])
def test_all_messages_of_a_killed_nsqd_are_read_although_it_counts_fewer(
    nsq_private: Start, query: Callable[..., Query], how: str
):
    """nsqd counts only the messages that were on disk at its last sync, until its channel is read to the end."""
    broker = nsq_private(mem_queue_size=0, sync_every=100_000, sync_timeout_ms=3_600_000)
    topic = broker.topic("c")
    broker.publish(topic, *numbered(10))
    broker.broker.restart()
    wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon lists it again")
    q = query(broker, topic, **{"maxRowsPerTrigger": 100} if how == "limited" else {})
    assert sorted(q.trigger()) == numbered(10)
    broker.publish(topic, *numbered(500, "more"))
    broker.broker.restart(crash=True)
    wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon lists it again")
    if how == "available now":
        assert available_now(q) == numbered(500, "more")
        return
    if how == "by another driver":
        q.restart()
    assert sorted(q.until(510)) == sorted(numbered(10) + numbered(500, "more"))
    # The count is trusted again: without waiting messages nothing is planned.
    q.trigger()
    assert q.plan() == q.at


def _known(broker: NsqUnderTest, topic: str) -> int:
    """Return the number of nsqd that the lookup daemon lists for the topic, once it lists its channel."""
    status, found = broker.ask("GET", broker.lookupd_address, "/lookup", topic=topic)
    return len(found["producers"]) if status == 200 and "c" in found["channels"] else 0


@pytest.mark.parametrize("wrong", ["ca", "host name", "client certificate"])
def test_a_permanent_connection_error_stops_the_query(
    nsq_private: Start, query: Callable[..., Query], tls_material: TlsMaterial, wrong: str
):
    """An nsqd that does not answer may come back; a certificate that is refused stays refused."""
    server = str(tls_material.folder / ("elsewhere.pem" if wrong == "host name" else "server.pem"))
    policy = {"tls_root_ca_file": tls_material.ca, "tls_client_auth_policy": "require-verify"}
    broker = nsq_private(tls_cert=server, tls_key=server, **policy if wrong == "client certificate" else {})
    # Planned with valid certificates, as by a query whose certificates change later.
    let_in = {"tlsVerifyHostname": "false", "clientCert": tls_material.client}
    where = {"nsqdTcpAddresses": broker.tcp_address, "createChannel": "true", "channel": "c#ephemeral"}
    q = query(broker, broker.unused_topic(), tls="true", trustCerts=tls_material.ca, **let_in, **where)
    tasks = q.tasks()
    changed = {
        "ca": {"trust_certs": tls_material.other_ca},
        "host name": {"tls_verify_hostname": True},
        "client certificate": {"client_cert": tls_material.stranger},
    }[wrong]
    assert tasks
    with pytest.raises(TransportError, match=r"is not trusted|TLS was refused|want a client certificate"):
        read_tasks(dataclasses.replace(q.options, **changed), tasks)
