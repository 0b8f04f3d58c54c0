"""Idle connections kept for the next task: reused if they are usable, otherwise closed and replaced."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from spark_mq_source.core.errors import AuthenticationError, AuthorizationError
from spark_mq_source.core.options import READ
from spark_mq_source.pulsar.client import warm
from spark_mq_source.pulsar.client.consumer import Subscription, open_consumer
from spark_mq_source.pulsar.client.session import Session
from spark_mq_source.pulsar.client.warm import SessionKey, WarmSessions, warm_sessions
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.reader import PulsarRange, read_range
from tests.fix_brokers import wait_until
from tests.fix_net import FaultProxy
from tests.formats import schema_of
from tests.formats.pulsar import PulsarFormat, read_tasks

VALUES = [b"%d" % n for n in range(50)]


@dataclass
class Task:
    """A task that is run again and again, like a trigger's tasks in one of Spark's workers.

    Attributes:
        link: the proxy before the broker; each test has a separate one, so that no connection of another is reused.
    """

    link: FaultProxy
    options: PulsarOptions
    ranges: list[PulsarRange]

    def run(self) -> int:
        """Read everything; return how many connections it opened for that."""
        before = self.link.connections
        table = read_tasks(self.options, self.ranges)
        assert table["value"].to_pylist() == VALUES
        return self.link.connections - before

    def until_warm(self) -> None:
        """Repeat until it needs no new connection."""
        # The previous run may not have the confirmation yet that its consumer is closed.
        wait_until(lambda: self.run() == 0, "a task that opens no connection")


def task(mq: PulsarFormat, link: FaultProxy, **options: str) -> Task:
    topic = mq.new_topic(0)
    mq.publish(topic, VALUES)
    made = mq.options(topic, service=("127.0.0.1", link.port), **options)
    return Task(link, made, mq.plan(topic))


@pytest.fixture
def secured_link(featured: PulsarFormat) -> Iterator[FaultProxy]:
    with featured.proxy() as proxy:
        yield proxy


def test_the_next_task_opens_no_connection(mq: PulsarFormat, link: FaultProxy):
    again = task(mq, link)
    assert again.run() > 0
    again.until_warm()


def test_an_idle_connection_is_closed(mq: PulsarFormat, link: FaultProxy, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warm, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(warm, "_OF_PROCESS", {})  # connections of other tests stay idle for longer
    again = task(mq, link)
    again.run()
    link.wait_for(lambda proxy: proxy.open == 0)
    assert again.run() > 0


@dataclass
class Waiting:
    """Connections that wait for no other test.

    Attributes:
        key: the key by which they are reused.
        sessions: the connections, all open.
    """

    key: SessionKey
    sessions: list[Session]


@pytest.fixture
def waiting(mq: PulsarFormat, closing: Callable[[Session], Session]) -> Waiting:
    options, where = mq.options("t"), mq.service
    sessions = [closing(Session(options, *where, proxy_to=None)) for _ in range(3)]
    return Waiting(SessionKey.of(options, *where, None), sessions)


def test_the_connection_returned_last_is_taken_first_and_once(waiting: Waiting):
    pool = WarmSessions()
    for session in waiting.sessions:
        pool.give(waiting.key, session)
    assert [pool.take(waiting.key) for _ in range(4)] == [*reversed(waiting.sessions), None]


def test_the_number_of_idle_connections_is_limited(waiting: Waiting, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(warm, "MAX_IDLE", 2)
    pool = WarmSessions()
    for session in waiting.sessions:
        pool.give(waiting.key, session)
    assert [session.closed for session in waiting.sessions] == [True, False, False]


def test_a_connection_idle_for_too_long_is_not_taken(waiting: Waiting, monkeypatch: pytest.MonkeyPatch):
    # A process that was stopped resumes before any connection has been closed.
    pool = WarmSessions()
    pool.give(waiting.key, waiting.sessions[0])
    later = SimpleNamespace(monotonic=lambda: time.monotonic() + warm.IDLE_SECONDS, sleep=time.sleep)
    monkeypatch.setattr(warm, "time", later)
    assert pool.take(waiting.key) is None


def test_an_ended_or_busy_connection_is_not_taken(mq: PulsarFormat, waiting: Waiting):
    ended, used, _ = waiting.sessions
    pool = WarmSessions()
    pool.give(waiting.key, ended)
    pool.give(waiting.key, used)
    ended.close()
    topic = TopicPartition.parse(mq.new_topic(0))
    open_consumer(used, topic, Subscription("s"), 1)
    assert pool.take(waiting.key) is None


@pytest.mark.parametrize("abort", [False, True])
def test_a_broken_connection_is_replaced(mq: PulsarFormat, link: FaultProxy, abort: bool):
    again = task(mq, link)
    again.until_warm()
    assert link.cut_now(abort=abort) >= 1
    assert again.run() > 0
    again.until_warm()


def test_a_connection_left_in_the_middle_of_a_range_is_not_kept(mq: PulsarFormat, link: FaultProxy):
    again = task(mq, link, maxBatchRows="1")
    batches = read_range(again.options, again.ranges[0], schema_of("value binary"))
    assert next(batches).num_rows
    batches.close()
    link.wait_for(lambda proxy: proxy.open == 0)


def test_an_idle_connection_has_no_reader(mq: PulsarFormat, link: FaultProxy):
    again = task(mq, link)
    again.until_warm()
    topic = again.ranges[0].topic_partition.topic
    wait_until(lambda: not mq.broker.admin.stats(topic)["subscriptions"], "the broker has no reader")
    assert link.open


def test_a_connection_is_not_reused_with_other_credentials(featured: PulsarFormat, secured_link: FaultProxy):
    again = task(featured, secured_link)
    again.until_warm()
    credentials = featured.broker.require_own().credentials
    topic, service = again.ranges[0].topic_partition.topic, ("127.0.0.1", secured_link.port)
    for other, error in (
        ({"authToken": credentials.token("somebody")}, AuthorizationError),
        ({"authToken": credentials.token("admin")[:-6] + "AAAAAA"}, AuthenticationError),
        ({"authBasicUser": "admin", "authBasicPassword": "wrong"}, AuthenticationError),
    ):
        options = PulsarFormat(featured.broker).options(topic, service=service, **other)
        with pytest.raises(error):
            read_tasks(options, again.ranges)
    again.until_warm()


def test_a_forked_process_begins_without_idle_connections(mq: PulsarFormat, link: FaultProxy):
    again = task(mq, link)
    again.until_warm()
    key = SessionKey.of(again.options, "127.0.0.1", link.port, None)
    with warnings.catch_warnings():
        # Python warns of threads that do not exist in the child; the child uses none.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os._exit(0 if warm_sessions().take(key) is None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    again.until_warm()


def test_a_key_shows_no_secret():
    for secret in ({"authToken": "hush-hush"}, {"authBasicUser": "alice", "authBasicPassword": "hush-hush"}):
        given = {"serviceurl": "pulsar://h:1", "topic": "t"} | secret
        key = SessionKey.of(PulsarOptions.from_spark(given, READ), "h", 1, None)
        assert "hush-hush" not in repr(key)
        assert "authentication=" in repr(key)
