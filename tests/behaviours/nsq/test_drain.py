"""Batch reads of nsq: the messages that they take and leave, and reruns with a write-ahead folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from spark_mq_source.core.errors import (
    RemoteProtocolError,
    TooManyAttemptsError,
    TopicNotFoundError,
    TransportError,
)
from spark_mq_source.nsq.client.client import Nsqd, Source
from spark_mq_source.nsq.client.session import Consumer
from spark_mq_source.nsq.protocol.codec import encode
from spark_mq_source.nsq.protocol.commands import Messages, Touch
from spark_mq_source.nsq.protocol.wire import MAGIC, MESSAGE, RESPONSE, encode_frame
from spark_mq_source.nsq.read.planner import plan_batch
from spark_mq_source.nsq.read.reader import NsqRange, read_range
from tests.behaviours.nsq import clients
from tests.behaviours.nsq.clients import put_back
from tests.behaviours.nsq.reads import numbered, read, read_options, read_tasks, values
from tests.fix_brokers import NsqUnderTest, wait_until
from tests.fix_net import FaultProxy, Peer, ScriptedServer, expect, free_port, send, wait
from tests.formats import schema_of

Start = Callable[..., NsqUnderTest]


def waiting(broker: NsqUnderTest, topic: str, channel: str = "c") -> tuple[int, int]:
    """Return the messages of the channel that wait and those that are in flight."""
    stats = broker.channel_stats(topic, channel)
    return stats["depth"] + broker.topic_stats(topic)["depth"], stats["in_flight_count"]


def filled(broker: NsqUnderTest, count: int) -> str:
    topic = broker.topic("c")
    broker.publish(topic, *numbered(count))
    return topic


def test_a_read_takes_all_waiting_messages_out_of_the_channel(nsq: NsqUnderTest):
    topic = filled(nsq, 10_000)
    assert sorted(values(read(read_options(nsq, topic)))) == numbered(10_000)
    assert waiting(nsq, topic) == (0, 0)


def test_max_rows_leaves_the_remaining_messages_untouched(nsq: NsqUnderTest):
    topic = filled(nsq, 6000)
    options = read_options(nsq, topic, maxRows=5000, connectionsPerNsqd=3)
    first = values(read(options))
    assert len(first) == 5000
    assert waiting(nsq, topic) == (1000, 0)
    rest = read(read_options(nsq, topic, maxRows=1000))
    assert set(rest.column("attempts").to_pylist()) == {1}
    assert sorted(first + values(rest)) == numbered(6000)


def test_a_peek_requeues_all_messages(nsq: NsqUnderTest):
    topic = filled(nsq, 50)
    peeked = read(read_options(nsq, topic, ackMode="requeue", maxRows=20))
    assert peeked.num_rows == 20
    assert waiting(nsq, topic) == (50, 0)
    rows = read(read_options(nsq, topic, maxRows=50))
    assert sorted(values(rows)) == numbered(50)
    assert sorted(rows.column("attempts").to_pylist()) == [1] * 30 + [2] * 20


def test_time_spent_in_spark_does_not_end_a_read(nsq: NsqUnderTest):
    topic = filled(nsq, 6)
    options = read_options(nsq, topic, maxInFlight=2, idleTimeout="500ms")
    (task,) = plan_batch(options)
    batches = read_range(options, task, schema_of("value binary"))
    first = next(batches).num_rows
    assert 0 < first <= 2
    Event().wait(0.7)  # longer than idleTimeout, visible only by the clock
    assert first + sum(batch.num_rows for batch in batches) == 6


def test_a_message_that_takes_longer_than_the_idle_time_is_read(
    scripted_server: Callable[..., ScriptedServer], monkeypatch: pytest.MonkeyPatch
):
    message = encode_frame(MESSAGE, bytes(8) + b"\0\1" + b"a" * 16 + b"large")
    has_waited = Event()
    receive = Consumer.receive

    def receive_part(consumer: Consumer, **limits: Any) -> list[Messages]:
        # An empty answer means that the idle time has passed: it is the shortest limit.
        found = receive(consumer, **limits)
        if not found and consumer.unfinished_bytes:
            has_waited.set()
        return found

    monkeypatch.setattr(Consumer, "receive", receive_part)
    server = scripted_server([
        expect(MAGIC + b"IDENTIFY\n"),
        Peer.read_frame,
        send(encode_frame(RESPONSE, b'{"version": "1.3.0", "max_rdy_count": 1, "output_buffer_timeout": 1}')),
        expect(b"SUB t c\n"),
        send(encode_frame(RESPONSE, b"OK")),
        expect(b"RDY 1\n"),
        send(message[:20]),
        wait(has_waited),
        send(message[20:]),
        expect(b"RDY 0\nFIN " + b"a" * 16 + b"\nRDY 0\nCLS\n"),
        send(encode_frame(RESPONSE, b"CLOSE_WAIT")),
    ])  # fmt: skip
    options = clients.read_options(server.address, maxRows="1", idleTimeout="100ms")
    host, port = server.address.split(":")
    task = NsqRange(Source("t", Nsqd(server.address, host, int(port))), 1)
    assert values(read_tasks(options, [task])) == [b"large"]


def test_messages_are_kept_while_spark_takes_rows_slowly(nsq: NsqUnderTest):
    """Both the messages whose rows Spark has and those that wait here behind them."""
    topic = nsq.topic("c")
    published = [value + bytes(20_000) for value in numbered(100)]
    nsq.publish(topic, *published)
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        there = f"{nsq.tcp_address}={proxy.address}"
        options = read_options(nsq, topic, msgTimeout="1s", maxBatchBytes="50k", hostMap=there)
        (task,) = plan_batch(options)
        batches = read_range(options, task, schema_of("value binary"))
        taken = next(batches).column("value").to_pylist()
        assert len(taken) < 100
        # Three a second: by the fifth, others would have received the messages if no TOUCH had been obeyed.
        touches = 5 * len(encode(Touch(bytes(100 * 16))))
        before = proxy.passed("c2b")
        proxy.wait_for(lambda p: p.passed("c2b") >= before + touches)
        assert nsq.channel_stats(topic, "c")["timeout_count"] == 0
        for batch in batches:
            taken += batch.column("value").to_pylist()
    assert sorted(taken) == published
    assert waiting(nsq, topic) == (0, 0)


def test_a_peek_returns_each_message_once_however_long_it_waits(nsq: NsqUnderTest):
    topic = filled(nsq, 100)
    peeked = read(read_options(nsq, topic, ackMode="requeue", msgTimeout="1s", idleTimeout="3s"))
    assert sorted(values(peeked)) == numbered(100)
    assert nsq.channel_stats(topic, "c")["timeout_count"] == 0
    assert waiting(nsq, topic) == (100, 0)


def test_a_peek_ends_when_a_message_is_redelivered(nsq_private: Start):
    """nsqd limits the time until an answer to its -max-msg-timeout, in spite of TOUCH."""
    broker = nsq_private(max_msg_timeout_ms=1000)
    topic = filled(broker, 100)
    peeked = read(read_options(broker, topic, ackMode="requeue", msgTimeout="1s", idleTimeout="60s"))
    assert sorted(values(peeked)) == numbered(100)
    wait_until(lambda: waiting(broker, topic) == (100, 0), "all messages are requeued")


def test_a_read_that_stops_early_leaves_the_remaining_messages(nsq: NsqUnderTest):
    topic = filled(nsq, 5000)
    options = read_options(nsq, topic)
    (task,) = plan_batch(options)
    batches = read_range(options, task, schema_of("value binary"))
    taken = next(batches).num_rows
    assert 0 < taken < 5000
    batches.close()
    wait_until(lambda: waiting(nsq, topic) == (5000, 0), "all messages are requeued")


def test_a_channel_is_created_only_if_the_option_says_so(nsq: NsqUnderTest):
    topic = nsq.topic()
    nsq.publish(topic, *numbered(3))
    with pytest.raises(TopicNotFoundError, match=f"nsq topic {topic}, channel c: .*createChannel=true"):
        read(read_options(nsq, topic, maxRows=3))
    assert sorted(values(read(read_options(nsq, topic, maxRows=3, createChannel="true")))) == numbered(3)


def test_an_http_address_of_nsqd_is_not_accepted_as_a_lookup_daemon(nsq: NsqUnderTest):
    topic = filled(nsq, 1)
    options = read_options(nsq, topic, nsqlookupdHttpAddresses=nsq.http_address, operationTimeout="5s")
    with pytest.raises(
        RemoteProtocolError, match=rf"{nsq.http_address}.* 404 .*is this the HTTP address of an nsqlookupd"
    ):
        read(options)


def test_an_nsqd_that_is_down_is_named_with_the_reason(nsq: NsqUnderTest):
    down = f"127.0.0.1:{free_port()}"
    options = read_options(nsq, "t", nsqdTcpAddresses=down)
    with pytest.raises(TransportError, match=rf"looking for the channel on {down}.*refused"):
        read(options)


def test_several_nsqd_are_read_by_one_task_each(nsq_private: Start):
    one = nsq_private()
    two = nsq_private(lookupd=one)
    topic = one.topic("c")
    two.create(topic, "c")
    one.publish(topic, *numbered(30, "one"))
    two.publish(topic, *numbered(20, "two"))
    options = read_options(one, topic, maxRows=50)
    assert len(plan_batch(options)) == 2
    assert sorted(values(read(options))) == numbered(30, "one") + numbered(20, "two")


def test_too_many_deliveries_stop_the_read(nsq: NsqUnderTest):
    topic = filled(nsq, 3)
    put_back(nsq.tcp_address, topic, count=3, times=2)
    assert read(read_options(nsq, topic, maxAttempts=3, ackMode="requeue", maxRows=3)).num_rows == 3
    with pytest.raises(TooManyAttemptsError, match="delivered 4 times, and maxAttempts is 3; set onMaxAttempts"):
        read(read_options(nsq, topic, maxAttempts=3, maxRows=3))
    wait_until(lambda: waiting(nsq, topic) == (3, 0), "no message is lost")


# -- with a write-ahead folder


def test_a_rerun_returns_the_same_rows_despite_new_messages(nsq: NsqUnderTest, tmp_path: Path):
    topic = filled(nsq, 5000)
    options = read_options(nsq, topic, walDir=tmp_path, runId="monday", connectionsPerNsqd=2, maxRows=5000)
    first = read(options)
    assert sorted(values(first)) == numbered(5000)
    assert waiting(nsq, topic) == (0, 0)
    nsq.publish(topic, *numbered(10, "later"))
    assert read(options).equals(first)
    assert read(options, "value string, nsqd string").column("value").to_pylist() == [v.decode() for v in values(first)]
    assert waiting(nsq, topic) == (10, 0)
    tuesday = read_options(nsq, topic, walDir=tmp_path, runId="tuesday", maxRows=10)
    assert sorted(values(read(tuesday))) == numbered(10, "later")


def test_a_run_fails_without_its_nsqd_and_succeeds_when_it_is_back(nsq_private: Start, tmp_path: Path):
    broker = nsq_private()
    topic = filled(broker, 5)
    options = read_options(broker, topic, walDir=tmp_path, runId="r", maxRows=5)
    tasks = plan_batch(options)
    broker.broker.stop()
    with pytest.raises(TransportError, match="cannot connect"):
        read_tasks(options, tasks)
    broker.broker.start()
    assert sorted(values(read_tasks(options, tasks))) == numbered(5)
