"""Streams of nsq: every message in one batch, each batch the same whenever it is read, whatever happens in between."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import (
    DataLossError,
    MQSourceError,
    OptionError,
    StorageError,
    TopicNotFoundError,
    TransportError,
    UnsupportedFeatureError,
)
from spark_mq_source.net import storage
from spark_mq_source.net.storage import LocalStore
from spark_mq_source.net.write_ahead import TaskLog, open_folder, read_plan, write_plan
from spark_mq_source.nsq.client.session import identify_of
from spark_mq_source.nsq.protocol.codec import encode
from spark_mq_source.nsq.protocol.commands import Rdy, Sub, Touch
from spark_mq_source.nsq.read.reader import _Collector
from tests.behaviours.nsq.clients import ids_of, open_session, put_back, receive, take
from tests.behaviours.nsq.dying_attempt import STEPS, die_before, start_attempt
from tests.behaviours.nsq.reads import Query, numbered, read_tasks, values
from tests.fix_brokers import NsqUnderTest, wait_until
from tests.fix_net import Fault, FaultProxy, TlsMaterial, free_port

Start = Callable[..., NsqUnderTest]


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Callable[..., Query]]:
    """Starts queries: `query(broker, topic, option=value)`; they are closed with the test."""
    started: list[Query] = []

    def start(broker: NsqUnderTest, topic: str, **options: Any) -> Query:
        started.append(Query(broker, topic, options.pop("walDir", tmp_path / "wal"), **options))
        return started[-1]

    yield start
    for one in started:
        one.stream.close()


def in_flight(broker: NsqUnderTest, topic: str) -> int:
    return int(broker.channel_stats(topic, "c")["in_flight_count"])


# -- in peace


def test_triggers_take_what_waits_and_nothing_is_there_twice(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    q = query(nsq, topic, connectionsPerNsqd=2)
    assert q.plan()[0] == q.at, "nothing waits, so there is no batch"
    nsq.publish(topic, *numbered(6000))
    first = q.trigger()
    nsq.publish(topic, *numbered(10, "later"))
    assert sorted(first + q.trigger()) == numbered(10, "later") + numbered(6000)
    assert q.plan()[0] == q.at
    assert q.at["batch"] == 2
    assert in_flight(nsq, topic) == 0


def test_a_trigger_takes_no_more_than_it_may(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5000))
    q = query(nsq, topic, maxRowsPerTrigger=3500)
    assert [len(q.trigger()) for _ in range(3)] == [3500, 1500, 0]
    assert sorted(row["value"] for row in q.rows) == numbered(5000)
    assert {row["attempts"] for row in q.rows} == {1}, "none was received without being wanted"


def test_available_now_ends_and_leaves_what_comes_later(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(10))
    q = query(nsq, topic, maxRowsPerTrigger=6)
    q.stream.cap_at_current_end()
    assert len(q.trigger()) == 6
    nsq.publish(topic, *numbered(10, "later"))
    assert len(q.trigger()) == 4
    assert q.plan()[0] == q.at
    assert q.stream.newest is not None
    assert q.stream.newest["waiting"] == 10


def test_what_nobody_needs_any_more_is_deleted(nsq: NsqUnderTest, query: Callable[..., Query], tmp_path: Path):
    topic = nsq.topic("c")
    q = query(nsq, topic)
    for number in range(4):
        nsq.publish(topic, b"%d" % number)
        q.trigger()
    # The last one knows what may come again.
    assert [path.name for path in (tmp_path / "wal" / str(q.at["wal"])).iterdir()] == ["4"]


def test_without_http_batches_are_tried(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(nsq, topic, nsqdTcpAddresses=proxy.address, createChannel="true")
        nsq.publish(topic, *numbered(10))
        assert sorted(q.trigger()) == numbered(10)
        assert q.trigger() == []
        nsq.publish(topic, *numbered(10, "more"))
        assert sorted(q.trigger()) == numbered(10, "more")


def available_now(q: Query) -> list[bytes]:
    """What a run of the query reads with `Trigger.AvailableNow`, which ends."""
    q.restart()
    q.stream.cap_at_current_end()
    before = len(q.rows)
    for _ in range(20):
        if q.plan()[0] == q.at:
            return sorted(row["value"] for row in q.rows[before:])
        q.trigger()
    pytest.fail("it does not end")


def test_available_now_reads_what_waits_on_an_nsqd_whose_http_nobody_reaches(
    nsq: NsqUnderTest, query: Callable[..., Query]
):
    topic = nsq.topic("c")
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(nsq, topic, nsqdTcpAddresses=proxy.address, createChannel="true", maxRowsPerTrigger=200)
        nsq.publish(topic, *numbered(500))
        assert available_now(q) == numbered(500)
        # Its last batch was empty, which says nothing of the messages that came since.
        nsq.publish(topic, *numbered(300, "more"))
        assert available_now(q) == numbered(300, "more")


def test_available_now_reads_every_nsqd_whether_its_http_answers_or_not(
    nsq_private: Start, query: Callable[..., Query]
):
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


def test_available_now_does_not_take_an_nsqd_out_of_reach_for_an_empty_one(
    nsq: NsqUnderTest, query: Callable[..., Query]
):
    topic = nsq.topic("c")
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(nsq, topic, nsqdTcpAddresses=proxy.address, nsqdHttpAddresses=nsq.http_address)
        nsq.publish(topic, *numbered(500))
        proxy.stop()
        with pytest.raises(MQSourceError, match=proxy.address):
            available_now(q)


def test_a_trigger_ends_although_messages_keep_coming(nsq: NsqUnderTest, query: Callable[..., Query]):
    """At half of the time that nsqd waits for the first of them."""
    topic = nsq.topic("c")
    host, port = nsq.tcp_address.split(":")
    enough = threading.Event()

    def publish() -> None:
        while not enough.wait(0.1):
            nsq.publish(topic, b"x")

    with FaultProxy(host, int(port)) as proxy, ThreadPoolExecutor(2) as pool:
        # Where nobody says over HTTP what waits, nothing else bounds it.
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
    assert q.plan()[0] == q.at
    nsq.post("/channel/unpause", topic=topic, channel="c")
    assert sorted(q.trigger()) == numbered(3)


def test_a_channel_paused_after_planning_gives_an_empty_batch(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(3))
    q = query(nsq, topic)
    _, tasks = q.plan()
    nsq.post("/channel/pause", topic=topic, channel="c")
    assert read_tasks(q.options, tasks).num_rows == 0
    nsq.post("/channel/unpause", topic=topic, channel="c")
    assert q.trigger() == [], "that batch is what it was"
    assert sorted(q.trigger()) == numbered(3)


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


def test_what_was_finished_is_remembered_once_however_many_tasks_a_batch_has(
    nsq: NsqUnderTest, query: Callable[..., Query]
):
    topic = nsq.topic("c")
    q = query(nsq, topic, connectionsPerNsqd=2)
    for number in range(5):
        nsq.publish(topic, *numbered(10, str(number)))
        q.until(10 * (number + 1))
    nsq.publish(topic, *numbered(10, "more"))
    _, tasks = q.plan()
    for task in tasks:
        remembered = [task.recent[at : at + 16] for at in range(0, len(task.recent), 16)]
        assert sorted(remembered) == sorted(row["message_id"] for row in q.rows)


# -- done over


def test_a_batch_done_over_has_the_same_rows_and_no_others(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(3000))
    q = query(nsq, topic)
    end, tasks = q.plan()
    first = read_tasks(q.options, tasks)
    nsq.publish(topic, *numbered(7, "later"))
    assert read_tasks(q.options, tasks).equals(first)
    q.restart()
    # What Spark does after a crash in the first batch, where its start is not written down.
    again = q.stream.ranges(q.stream.initial(), end)
    assert again == tasks
    assert read_tasks(q.options, again).equals(first)
    assert q.plan()[0] == end, "it was planned already"
    assert sorted(q.trigger() + q.trigger()) == numbered(7, "later") + numbered(3000)


def test_two_attempts_at_once_agree(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(9000))
    q = query(nsq, topic)
    for _ in range(3):
        if len(q.rows) == 9000:
            break
        end, tasks = q.plan()
        with ThreadPoolExecutor(3) as pool:
            tables = list(pool.map(read_tasks, [q.options] * 3, [tasks] * 3))
        assert tables[0].equals(tables[1])
        assert tables[0].equals(tables[2])
        q.at = end
        q.rows += tables[0].to_pylist()
    assert sorted(row["value"] for row in q.rows) == numbered(9000)
    wait_until(lambda: in_flight(nsq, topic) == 0, "those that lost have put everything back")


def test_a_message_that_another_attempt_has_written_down_meanwhile_is_not_written_down_again(
    nsq: NsqUnderTest, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
):
    """It timed out here and was delivered there; both have it when this one comes to its slot."""
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(10))
    q = query(nsq, topic)
    end, tasks = q.plan()
    append, others = TaskLog.append, iter([3])

    def overtaken(log: TaskLog, batch: Any) -> bool:
        for rows in others:
            other = TaskLog(open_folder("nsq", q.options.wal_dir or ""), tasks[0].folder, tasks[0].task)
            assert append(other, batch.slice(0, rows))
        return append(log, batch)

    monkeypatch.setattr(TaskLog, "append", overtaken)
    assert sorted(values(read_tasks(q.options, tasks))) == numbered(10)
    q.at = end
    assert q.trigger() == []


def test_a_new_checkpoint_finds_nothing_of_the_old_one(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5, "old"))
    assert len(query(nsq, topic).trigger()) == 5
    nsq.publish(topic, *numbered(5, "new"))
    assert sorted(query(nsq, topic).trigger()) == numbered(5, "new")


def test_what_was_written_by_another_format_is_refused(nsq: NsqUnderTest, query: Callable[..., Query]):
    q = query(nsq, nsq.topic("c"))
    with pytest.raises(OptionError, match="checkpoint cannot be used"):
        q.stream.latest({"version": 2, "batch": 1, "wal": "x"})


# -- the folder


def test_a_folder_lost_before_its_batch_is_read_stops_the_query(
    nsq: NsqUnderTest, query: Callable[..., Query], tmp_path: Path
):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5))
    q = query(nsq, topic)
    end, tasks = q.plan()
    shutil.rmtree(tmp_path / "wal")
    with pytest.raises(DataLossError, match=r"wal/\w+/1/plan is gone, and with it rows of the write-ahead log"):
        read_tasks(q.options, tasks)
    with pytest.raises(DataLossError, match=r"wal/\w+/1/plan is gone"):
        q.stream.ranges(q.at, end)
    wait_until(lambda: in_flight(nsq, topic) == 0, "the messages are back")
    assert nsq.channel_stats(topic, "c")["depth"] == 5


def test_a_folder_lost_after_its_batch_was_read_stops_the_query(
    nsq: NsqUnderTest, query: Callable[..., Query], tmp_path: Path
):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5))
    q = query(nsq, topic)
    _, tasks = q.plan()
    read_tasks(q.options, tasks)
    nsq.publish(topic, *numbered(5, "new"))
    shutil.rmtree(tmp_path / "wal")
    with pytest.raises(DataLossError, match="is gone"):
        read_tasks(q.options, tasks)
    q.restart()
    with pytest.raises(DataLossError, match=r"wal/\w+/1/plan is gone"):
        q.stream.latest({**q.at, "batch": 1})


class Slow:
    """A disk that takes longer to write rows than nsqd waits for an answer."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.go_on = threading.Event()

    def write(self, store: LocalStore, path: str, data: Any) -> None:
        if path.endswith(".arrow"):
            self.started.set()
            assert self.go_on.wait(60)
        write(store, path, data)


write = LocalStore.write


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    """Makes the disk slow."""
    disk = Slow()

    def write_slowly(store: LocalStore, path: str, data: Any) -> None:
        disk.write(store, path, data)

    monkeypatch.setattr(LocalStore, "write", write_slowly)
    return disk


def test_a_folder_that_cannot_make_files_exclusively_is_refused(
    nsq: NsqUnderTest, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(LocalStore, "create", lambda self, path, data: write(self, f"{path}{data!r}", data) or True)
    with pytest.raises(UnsupportedFeatureError, match=r"nsq: walDir /.* cannot make a file exclusively"):
        query(nsq, nsq.topic("c"))


def test_a_disk_that_is_full_fails_the_task_and_loses_nothing(
    nsq: NsqUnderTest, query: Callable[..., Query], monkeypatch: pytest.MonkeyPatch
):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5))
    q = query(nsq, topic)
    _, tasks = q.plan()

    def write_new(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left")

    with monkeypatch.context() as full:
        full.setattr(storage, "_write_new", write_new)
        text = r"nsq: walDir /.*\.arrow cannot be written \(No space left\); free space"
        with pytest.raises(StorageError, match=text):
            read_tasks(q.options, tasks)
    wait_until(lambda: nsq.channel_stats(topic, "c")["depth"] == 5, "the messages are back")
    assert sorted(values(read_tasks(q.options, tasks))) == numbered(5)


def test_a_folder_that_cannot_be_written_to_is_refused(nsq: NsqUnderTest, query: Callable[..., Query], tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"walDir .* cannot be written to"):
        query(nsq, nsq.topic("c"), walDir=tmp_path / "file" / "wal")


def test_messages_are_kept_while_they_are_written_slowly(nsq: NsqUnderTest, query: Callable[..., Query], slow: Slow):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5))
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy, ThreadPoolExecutor(1) as pool:
        there = f"{nsq.tcp_address}={proxy.address}"
        q = query(nsq, topic, msgTimeout="2s", hostMap=there)
        end, tasks = q.plan()
        reading = pool.submit(read_tasks, q.options, tasks)
        assert slow.started.wait(60)
        # One each second: with the third one another consumer would have them if none had been obeyed.
        touches = 3 * len(encode(Touch(bytes(5 * 16))))
        before = proxy.passed("c2b")
        proxy.wait_for(lambda p: p.passed("c2b") >= before + touches)
        assert in_flight(nsq, topic) == 5
        assert nsq.channel_stats(topic, "c")["timeout_count"] == 0
        slow.go_on.set()
        assert sorted(values(reading.result(60))) == numbered(5)
    q.at = end
    assert q.plan()[0] == end


# -- what goes wrong


def test_messages_finished_in_vain_come_again_and_are_left_out(nsq: NsqUnderTest, query: Callable[..., Query]):
    """The connection breaks when rows are in the log and their FINs are on their way."""
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5))
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(nsq, topic, hostMap=f"{nsq.tcp_address}={proxy.address}", msgTimeout="1s")
        end, tasks = q.plan()
        sent = _bytes_until_first_fin(q)
        proxy.add(Fault("cut", "c2b", at=sent))
        assert sorted(values(read_tasks(q.options, tasks))) == numbered(5), "they are in the log"
        assert proxy.happened
        q.at = end
        q.stream.commit(end)
        nsq.publish(topic, *numbered(5, "new"))
        wait_until(lambda: nsq.channel_stats(topic, "c")["depth"] == 10, "the timeout has put them back")
        q.restart()
        assert sorted(q.until(5)) == numbered(5, "new")
        wait_until(
            lambda: in_flight(nsq, topic) == 0 and nsq.channel_stats(topic, "c")["depth"] == 0, "all is finished"
        )


def _bytes_until_first_fin(q: Query) -> int:
    """How much a task sends before it finishes anything: the same each time, up to the FINs."""
    commands = [identify_of(q.options), Sub(q.options.topic or "", "c"), Rdy(5), Rdy(0)]
    return len(b"  V2") + sum(len(encode(command)) for command in commands)


def test_a_connection_cut_anywhere_loses_nothing_and_doubles_nothing(
    nsq: NsqUnderTest, query: Callable[..., Query], rng: random.Random
):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(2000))
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(
            nsq,
            topic,
            hostMap=f"{nsq.tcp_address}={proxy.address}",
            msgTimeout="1s",
            maxRowsPerTrigger=300,
            maxInFlight=100,
        )
        for _ in range(12):
            direction, most = rng.choice([("c2b", 7000), ("b2c", 15_000)])
            proxy.add(Fault(rng.choice(["cut", "abort"]), direction, at=rng.randrange(most)))  # type: ignore[arg-type]
            if rng.random() < 0.3:
                q.restart()
            q.trigger()
        assert sorted(q.until(2000)) == numbered(2000)
        wait_until(lambda: in_flight(nsq, topic) == 0, "all is finished")
        assert q.trigger() == [], "what may have come again was left out"


def test_attempts_that_die_anywhere_leave_a_batch_that_others_finish(
    nsq: NsqUnderTest, query: Callable[..., Query], rng: random.Random
):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(2000))
    host, port = nsq.tcp_address.split(":")
    with FaultProxy(host, int(port)) as proxy:
        q = query(
            nsq,
            topic,
            hostMap=f"{nsq.tcp_address}={proxy.address}",
            msgTimeout="1s",
            maxRowsPerTrigger=500,
            maxInFlight=100,
        )
        while len(q.rows) < 2000:
            end, tasks = q.plan()
            for task in tasks:
                for _ in range(rng.randrange(3)):
                    # What an attempt does until it is killed: its slots stay, its FINs may or may not be there.
                    _die(q, task, rng.randrange(6))
                first = read_tasks(q.options, [task])
                assert read_tasks(q.options, [task]).equals(first)
                q.rows += first.to_pylist()
            q.at = end
            q.stream.commit(end)
        assert sorted(row["value"] for row in q.rows) == numbered(2000)


def test_what_a_dead_attempt_has_written_down_and_not_finished_is_not_taken_again(
    nsq: NsqUnderTest, query: Callable[..., Query]
):
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(300))
    q = query(nsq, topic, msgTimeout="1s", maxInFlight=100)
    _, (task,) = q.plan()
    _die(q, task, 1)
    wait_until(lambda: in_flight(nsq, topic) == 0, "the dead attempt's messages are back")
    # Those of its first slot are finished. So that those of the second one come to the next attempt:
    with open_session(nsq.tcp_address) as session:
        consumer = session.subscribe(topic, "c")
        consumer.ready(50)
        others = take(consumer, 50)
        consumer.close(timeout_seconds=60)
    rows = q.trigger()
    assert len(set(rows)) == len(rows) >= 200
    wait_until(lambda: in_flight(nsq, topic) == 0, "what was put back is there")
    q.trigger()
    assert set(numbered(300)) <= {row["value"] for row in q.rows} | set(others)
    assert len({row["value"] for row in q.rows}) == len(q.rows)


def test_an_attempt_that_is_killed_at_any_step_loses_nothing_and_doubles_nothing(
    nsq: NsqUnderTest, query: Callable[..., Query]
):
    topic = nsq.topic("c")
    q = query(nsq, topic, msgTimeout="1s")
    with contextlib.ExitStack() as running:
        attempts = [running.enter_context(start_attempt()) for _ in STEPS]
        for number, (step, attempt) in enumerate(zip(STEPS, attempts, strict=True)):
            nsq.publish(topic, *numbered(20, f"{number}-"))
            end, (task,) = q.plan()
            die_before(step, attempt, q.options, task)
            found = read_tasks(q.options, [task])
            assert read_tasks(q.options, [task]).equals(found)
            q.rows += found.to_pylist()
            q.at = end
            q.stream.commit(end)
    published = [value for number in range(len(STEPS)) for value in numbered(20, f"{number}-")]
    assert sorted(q.until(len(published))) == published
    wait_until(lambda: in_flight(nsq, topic) == 0, "what may have come again was left out and finished")
    assert q.trigger() == []


def test_messages_that_time_out_while_they_are_written_are_left_out_when_they_come_again(
    nsq_private: Start, query: Callable[..., Query], slow: Slow
):
    # TOUCH keeps them for so long and no longer.
    nsq = nsq_private(max_msg_timeout_ms=3000)
    topic = nsq.topic("c")
    nsq.publish(topic, *numbered(5))
    q = query(nsq, topic, msgTimeout="1s")
    end, tasks = q.plan()
    with ThreadPoolExecutor(1) as pool, open_session(nsq.tcp_address, msgTimeout="3s") as session:
        reading = pool.submit(read_tasks, q.options, tasks)
        assert slow.started.wait(60)
        other = session.subscribe(topic, "c")
        other.ready(1)
        lost = receive(other, 1)
        slow.go_on.set()
        assert sorted(values(reading.result(60))) == numbered(5), "they are in the log"
        other.ready(0)
        other.requeue(ids_of(lost))
        other.close(timeout_seconds=60)
    q.at = end
    wait_until(lambda: nsq.channel_stats(topic, "c")["depth"] > 0, "it is back")
    end, (task,) = q.plan()
    assert ids_of(lost).decode() in task.duplicates
    assert read_tasks(q.options, [task]).num_rows == 0
    wait_until(lambda: in_flight(nsq, topic) == 0, "it is finished")
    assert nsq.channel_stats(topic, "c")["depth"] == 0


@pytest.mark.parametrize("hours", [-1, 1, 50], ids=["the clock was moved back", "it ran", "it did not run"])
def test_what_may_come_again_is_looked_for_a_day_long_while_the_query_runs(
    nsq: NsqUnderTest, query: Callable[..., Query], tmp_path: Path, hours: int
):
    topic = nsq.topic("c")
    nsq.publish(topic, b"1")
    q = query(nsq, topic)
    q.trigger()
    store, batch = open_folder("nsq", str(tmp_path / "wal")), f"{q.at['wal']}/1"
    plan = dict(read_plan(store, batch))
    plan["planned"] = time.time() - hours * 3600
    plan["duplicates"] = {nsq.tcp_address: {"a" * 16: 24.5 * 3600, "b" * 16: 22.5 * 3600}}
    store.remove(f"{batch}/plan")
    assert write_plan(store, batch, plan)
    nsq.publish(topic, b"2")
    _, (task,) = q.plan()
    assert task.duplicates == {"b" * 16}


def test_without_a_limit_a_message_comes_however_often_it_was_put_back(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, b"unlucky")
    put_back(nsq.tcp_address, topic, count=1, times=10)
    q = query(nsq, topic)
    assert q.trigger() == [b"unlucky"]
    assert q.rows[0]["attempts"] == 11


def test_messages_that_come_too_often_are_put_aside_once(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic, dead = nsq.topic("c"), nsq.topic("c")
    nsq.publish(topic, *numbered(3))
    put_back(nsq.tcp_address, topic, count=3, times=2)
    nsq.publish(topic, b"new")
    q = query(nsq, topic, maxAttempts=2, onMaxAttempts="deadLetter", deadLetterTopic=dead)
    _, tasks = q.plan()
    for _ in range(2):
        assert values(read_tasks(q.options, tasks)) == [b"new"]
    assert nsq.channel_stats(dead, "c")["depth"] == 3
    assert in_flight(nsq, topic) == 0


class KilledError(Exception):
    """An attempt ends here."""


def _die(q: Query, task: Any, slots: int) -> None:
    """Begins an attempt at a task and ends it without a word after so many slots, before it finishes the last."""

    class Dying(TaskLog):
        def append(self, batch: Any) -> bool:
            if len(self.slots) >= slots:
                super().append(batch)
                raise KilledError
            return super().append(batch)

    log = Dying(open_folder("nsq", q.options.wal_dir or ""), task.folder, task.task)
    log.catch_up()
    if not log.is_ended:
        with contextlib.suppress(KilledError):
            _Collector(q.options, task, log, Counters()).collect()


# -- brokers that come and go


def test_an_nsqd_that_is_gone_has_no_more_messages_and_its_return_is_noticed(
    nsq_private: Start, query: Callable[..., Query]
):
    one = nsq_private()
    two = nsq_private(lookupd=one)
    topic = one.topic("c")
    two.create(topic, "c")
    one.publish(topic, *numbered(5, "one"))
    two.publish(topic, *numbered(5, "two"))
    q = query(one, topic)
    end, tasks = q.plan()
    assert len(tasks) == 2
    two.broker.stop()
    assert sorted(values(read_tasks(q.options, tasks))) == numbered(5, "one")
    q.at = end
    two.broker.start()
    wait_until(
        lambda: len(one.ask("GET", one.lookupd_address, "/lookup", topic=topic)[1]["producers"]) == 2, "it is back"
    )
    assert sorted(q.until(5)) == numbered(5, "two")


def test_a_new_nsqd_is_found_at_the_next_trigger(nsq_private: Start, query: Callable[..., Query]):
    one = nsq_private()
    topic = one.topic("c")
    q = query(one, topic)
    q.trigger()
    two = nsq_private(lookupd=one)
    two.create(topic, "c")
    two.publish(topic, *numbered(5, "two"))
    assert sorted(q.until(5)) == numbered(5, "two")


def test_a_topic_that_nobody_knows_is_an_error_when_a_query_starts(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.unused_topic()
    with pytest.raises(TopicNotFoundError, match=f"nsq topic {topic}: .*createChannel=true to wait for it"):
        query(nsq, topic)


def test_a_query_goes_on_while_its_only_nsqd_is_away(nsq_private: Start, query: Callable[..., Query]):
    broker = nsq_private()
    topic = broker.topic("c")
    q = query(broker, topic, nsqdTcpAddresses=broker.tcp_address, nsqdHttpAddresses=broker.http_address)
    broker.broker.stop()
    end, tasks = q.plan()
    assert [task.nsqd.name for task in tasks] == [broker.tcp_address]
    assert read_tasks(q.options, tasks).num_rows == 0
    q.at = end
    broker.broker.start()
    broker.publish(topic, *numbered(5))
    assert sorted(q.until(5)) == numbered(5)


def test_a_topic_that_comes_later_is_read_then(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.unused_topic()
    q = query(nsq, topic, createChannel="true")
    assert q.plan()[0] == q.at
    nsq.create(topic, "c")
    nsq.publish(topic, *numbered(3))
    assert sorted(q.trigger()) == numbered(3)


def test_a_broker_that_restarts_loses_no_message_that_it_keeps(nsq_private: Start, query: Callable[..., Query]):
    broker = nsq_private()
    topic = broker.topic("c")
    broker.publish(topic, *numbered(3000))
    q = query(broker, topic, maxRowsPerTrigger=1000)
    q.trigger()
    broker.broker.restart()
    wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon knows it again")
    assert sorted(q.until(3000)) == numbered(3000)


def test_a_broker_that_crashes_loses_what_it_had_and_the_query_goes_on(nsq_private: Start, query: Callable[..., Query]):
    broker = nsq_private()
    topic = broker.topic("c")
    broker.publish(topic, *numbered(3000))
    q = query(broker, topic, maxRowsPerTrigger=1000)
    end, tasks = q.plan()
    first = read_tasks(q.options, tasks)
    broker.broker.restart(crash=True)
    assert read_tasks(q.options, tasks).equals(first), "what was read is written down"
    q.at, q.rows = end, first.to_pylist()
    wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon knows it again")
    broker.publish(topic, *numbered(5, "new"))

    def new_ones_have_come() -> bool:
        q.trigger()
        return set(numbered(5, "new")) <= {row["value"] for row in q.rows}

    wait_until(new_ones_have_come, "the new messages")
    found = [row["value"] for row in q.rows]
    assert len(set(found)) == len(found)
    assert set(found) <= {*numbered(3000), *numbered(5, "new")}


def test_messages_that_a_killed_nsqd_delivers_again_are_left_out(nsq_private: Start, query: Callable[..., Query]):
    """nsqd saves how far a queue on disk was read every 2 s or 2,500 messages, and counts attempts anew after that."""
    # All queues are on disk, and how far they were read is saved when nsqd ends in order, but not before.
    broker = nsq_private(mem_queue_size=0, sync_every=100_000, sync_timeout_ms=3_600_000)
    topic = broker.topic("c")
    broker.publish(topic, *numbered(1010))
    broker.broker.restart()
    wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon knows it again")
    q = query(broker, topic, maxRowsPerTrigger=600)
    assert sorted(q.until(1010)) == numbered(1010)
    for crash in range(2):
        broker.broker.restart(crash=True)
        wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon knows it again")
        assert broker.channel_stats(topic, "c")["depth"] >= 1010, "they are delivered again"
        broker.publish(topic, *numbered(10, f"new{crash}"))
        if crash:
            q.restart()
        q.until(1010 + 10 * (crash + 1))
    wait_until(lambda: q.trigger() == [] and broker.channel_stats(topic, "c")["depth"] == 0, "all of it was looked at")
    assert sorted(row["value"] for row in q.rows) == numbered(1010) + numbered(10, "new0") + numbered(10, "new1")
    assert in_flight(broker, topic) == 0


def test_copies_that_a_killed_nsqd_makes_of_a_message_are_one_row(nsq_private: Start, query: Callable[..., Query]):
    """The topic's queue hands messages to the channel's anew, though nobody has read the first copies yet."""
    broker = nsq_private(mem_queue_size=0, sync_every=1500, sync_timeout_ms=3_600_000)
    topic = broker.topic()
    broker.publish(topic, *numbered(1010))
    broker.broker.restart()
    # With its first channel the topic hands over all that it has.
    broker.create(topic, "c")
    wait_until(lambda: broker.channel_stats(topic, "c")["depth"] == 1010, "the channel has them")
    q = query(broker, topic, maxRowsPerTrigger=600)
    # With 1,010 written and 490 read the channel's queue is saved; the topic's, with 1,010 read, is not.
    assert len(q.trigger()) == 600
    broker.broker.restart(crash=True)
    wait_until(lambda: _known(broker, topic) == 1, "the lookup daemon knows it again")
    wait_until(lambda: broker.channel_stats(topic, "c")["depth"] > 1400, "the channel has them and their copies")
    q.until(1010)
    wait_until(lambda: q.trigger() == [] and broker.channel_stats(topic, "c")["depth"] == 0, "all of it was looked at")
    assert sorted(row["value"] for row in q.rows) == numbered(1010)


def _known(broker: NsqUnderTest, topic: str) -> int:
    """How many nsqd the lookup daemon knows that have the topic, once it knows its channel."""
    status, found = broker.ask("GET", broker.lookupd_address, "/lookup", topic=topic)
    return len(found["producers"]) if status == 200 and "c" in found["channels"] else 0


def test_who_nobody_lets_in_stops_the_query(nsq: NsqUnderTest, query: Callable[..., Query]):
    topic = nsq.topic("c")
    nsq.publish(topic, b"x")
    q = query(nsq, topic, authSecret="s", tls="true", tlsVerifyHostname="false")
    _, tasks = q.plan()
    with pytest.raises(MQSourceError, match="TLS"):
        read_tasks(q.options, tasks)


@pytest.mark.parametrize("wrong", ["ca", "host name", "client certificate"])
def test_a_connection_that_can_never_work_stops_the_query(
    nsq_private: Start, query: Callable[..., Query], tls_material: TlsMaterial, wrong: str
):
    """An nsqd that does not answer may come back; a certificate that is refused stays refused."""
    server = str(tls_material.folder / ("elsewhere.pem" if wrong == "host name" else "server.pem"))
    policy = {"tls_root_ca_file": tls_material.ca, "tls_client_auth_policy": "require-verify"}
    broker = nsq_private(tls_cert=server, tls_key=server, **policy if wrong == "client certificate" else {})
    # Planned by who is let in, as a query is before its certificates change.
    let_in = {"tlsVerifyHostname": "false", "clientCert": tls_material.client}
    where = {"nsqdTcpAddresses": broker.tcp_address, "createChannel": "true", "channel": "c#ephemeral"}
    q = query(broker, broker.unused_topic(), tls="true", trustCerts=tls_material.ca, **let_in, **where)
    _, tasks = q.plan()
    changed = {
        "ca": {"trust_certs": tls_material.other_ca},
        "host name": {"tls_verify_hostname": True},
        "client certificate": {"client_cert": tls_material.stranger},
    }[wrong]
    assert tasks
    with pytest.raises(TransportError, match=r"is not trusted|TLS was refused|want a client certificate"):
        read_tasks(dataclasses.replace(q.options, **changed), tasks)
