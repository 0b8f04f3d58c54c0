"""Killed brokers and masters, rebalanced groups and repeated tasks: the rows read are the rows written.

Values are numbered, so that lost and duplicate ones are detected, and written by the official client, or read by it.
All on one cluster: broker 1 has every acknowledged message on disk, broker 2 loses those in its memory in a crash.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pytest

from brokers.tubemq import Server, TubeCluster
from brokers.tubemq_admin import Topic
from spark_mq_source.core.errors import ConnectionLostError, DataLossError
from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.client.members import ClientBalancedMember, ProducerMember
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol.error_codes import SERVER_RECEIVE_OVERFLOW
from spark_mq_source.tubemq.read.planner import plan_batch
from spark_mq_source.tubemq.read.reader import TubeMQRange, read_range
from spark_mq_source.tubemq.write.writer import TubeMQWriter
from tests.behaviours.tubemq.java_client import TubeJavaClient
from tests.behaviours.tubemq.streams import Query, encoded, numbered
from tests.fix_tubemq import Shape, TubeUnderTest, memory_folder, start_or_skip, tube_topics
from tests.formats import schema_of
from tests.formats.tubemq import tubemq_options, wait_until_flushed

ROW = "partition int, message_id bigint, value binary"
WIDE = 400
"""Bytes of a value, so many that a read makes more fetches than a reader requests ahead."""
LITTLE_MEMORY = "little_memory"
"""A topic of broker 2 with the least memory for messages that it allows, which are slowly written to the disk."""
DATA_FILE_BYTES = 1 << 20
"""The size at which a broker begins another file of messages; one file of their index has 700,000."""
HELD = ("held_1", "held_2")
"""Topics of broker 2 whose messages stay in memory for longer than any test takes, so that a crash loses them."""


@pytest.fixture(scope="module")
def faulty(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TubeUnderTest]:
    """Yield two masters and two brokers for these tests only, which notice within 5 s that a consumer is silent."""
    shapes = {Shape(): 4, Shape(partitions=3): 8, Shape(brokers=(2,)): 5, Shape(partitions=2, brokers=(1, 2)): 2}
    topics = {shape: tube_topics(shape, count) for shape, count in shapes.items()}
    little_memory = Topic(LITTLE_MEMORY, brokers=(2,), settings={"memCacheMsgSizeInMB": "2", "unflushThreshold": "1"})
    held = [Topic(name, brokers=(2,), flush_ms=600_000) for name in HELD]
    cluster = TubeCluster(
        tmp_path_factory.mktemp("tubemq-faulty"),
        master_count=2,
        broker_count=2,
        unbuffered=(1,),
        data_folder=memory_folder(),
        broker_settings={"maxSegmentSize": str(DATA_FILE_BYTES)},
        topics=[little_memory, *held, *(topic for made in topics.values() for topic in made)],
        master_settings={"consumerHeartbeatTimeoutMs": "5000"},
    )
    start_or_skip(pytestconfig, cluster)
    yield TubeUnderTest(cluster, {shape: [topic.name for topic in made] for shape, made in topics.items()})
    cluster.remove()


def wide(count: int, prefix: str = "") -> list[bytes]:
    """Return numbered values, padded to WIDE bytes."""
    return [f"{prefix}{n}".encode().ljust(WIDE, b".") for n in range(count)]


def crash(faulty: TubeUnderTest, broker_id: int = 1) -> None:
    """Kill a broker and start it again."""
    faulty.cluster.restart_broker(broker_id, crash=True)


def read_all(options: TubeMQOptions) -> list[bytes]:
    """Return the values of the whole topic, read as one batch."""
    schema = schema_of("value binary")
    batches = (batch for task in plan_batch(options) for batch in read_range(options, task, schema))
    return [value for batch in batches for value in batch.column("value").to_pylist()]


# -- brokers


def test_a_broker_is_killed_and_restarted_while_ranges_are_read(faulty: TubeUnderTest, tube_java: TubeJavaClient):
    topic = faulty.topic(3)
    values = wide(12_000)
    tube_java.produce(faulty.cluster, topic, values)
    options = tubemq_options(faulty.masters, topic, READ, maxBatchRows=500, operationTimeout="60s")
    tasks = plan_batch(options)
    under_way, killed = threading.Barrier(1 + len(tasks)), threading.Event()

    def read(task: TubeMQRange) -> list[bytes]:
        found = []
        for number, batch in enumerate(read_range(options, task, schema_of(ROW))):
            found += batch.column("value").to_pylist()
            if number == 3:
                under_way.wait(60)
                assert killed.wait(60)
        return found

    with ThreadPoolExecutor(len(tasks)) as pool:
        reading = [pool.submit(read, task) for task in tasks]
        under_way.wait(60)
        faulty.cluster.broker(1).kill()
        killed.set()
        faulty.cluster.start_broker(1)
        rows = [value for one in reading for value in one.result(120)]
    assert Counter(rows) == Counter(values)


def test_messages_whose_data_a_broker_has_deleted_before_their_index_are_reported(
    faulty: TubeUnderTest, tube_java: TubeJavaClient
):
    topic = faulty.topic()
    values = wide(6000)
    tube_java.produce(faulty.cluster, topic, values)
    options = tubemq_options(faulty.masters, topic, READ, operationTimeout="60s")
    assert read_all(options) == values
    faulty.cluster.broker(1).stop()
    folder = (faulty.cluster.data_folder or faulty.cluster.folder) / "broker-1" / "data" / f"{topic}-0"
    first, *others = sorted(folder.glob("*.tube"))
    assert others
    first.unlink()
    faulty.cluster.start_broker(1)
    assert faulty.admin.topic_range(1, topic, 0) == (0, len(values) * INDEX_BYTES)
    with pytest.raises(DataLossError, match=f"{topic}:0.*: the index has .* the topic's deletePolicy removed the oth"):
        read_all(options)
    left = read_all(replace(options, fail_on_data_loss=False))
    assert 0 < len(left) < len(values)
    assert left == values[-len(left) :]


def test_a_session_that_starts_before_the_group_s_position_stays_there_when_the_broker_is_killed(
    faulty: TubeUnderTest, tube_java: TubeJavaClient
):
    topic, group = faulty.topic(), faulty.group()
    values = numbered(200)
    tube_java.produce(faulty.cluster, topic, encoded(values))
    with Query(faulty.masters, topic, group=group, startingOffsets="earliest") as first:
        first.trigger_until(lambda: len(first.rows) == len(values), "all is read")
    faulty.cluster.restart_broker(1)  # it saves the groups' positions when it stops, and otherwise every few seconds
    start = json.dumps({f"1:{topic}:0": 0})
    with Query(faulty.masters, topic, group=group, startingOffsets=start, maxRowsPerTrigger=50) as again:
        again.trigger_until(lambda: bool(again.rows), "the session has started")
        crash(faulty)
        again.trigger_until(lambda: len(again.rows) >= len(values), "all is read again")
    assert (first.values, again.values) == (values, values)


@pytest.mark.slow
def test_a_task_with_wait_for_disk_loses_nothing_to_a_killed_broker(faulty: TubeUnderTest, tube_java: TubeJavaClient):
    """Broker 2 acknowledges messages in memory: without the option the write succeeds and its rows are lost."""
    kept, (lost, torn) = faulty.topic(brokers=(2,)), HELD
    values = wide(500)
    batch = pa.record_batch({"value": values})

    def write(topic: str, **options: object) -> TubeMQWriter:
        return TubeMQWriter(tubemq_options(faulty.masters, topic, WRITE, **options), TaskAttempt("job"))

    with write(kept, waitForDisk=True) as careful, write(lost) as hasty, write(torn, waitForDisk=True) as unlucky:
        careful.write(batch)
        careful.flush()
        for writer in (hasty, unlucky):
            writer.write(batch)
        hasty.flush()
        unlucky._wait_until(lambda: not any(target.pending_rows for target in unlucky._targets.values()))
        faulty.cluster.broker(2).kill()
        with pytest.raises(ConnectionLostError, match="ended before 500 acknowledged rows"):
            unlucky.flush()
    faulty.cluster.start_broker(2)
    assert [faulty.admin.topic_range(2, topic, 0)[1] for topic in HELD] == [0, 0]
    read = [m.value for m in tube_java.consume(faulty.cluster, kept, faulty.group(), 500)]
    assert read == values


def test_a_second_broker_replaces_the_first_until_that_is_back(faulty: TubeUnderTest, tube_java: TubeJavaClient):
    topic = faulty.topic(2, brokers=(1, 2))
    values: list[bytes] = []

    def has_so_many(broker_id: int) -> int:
        return faulty.admin.topic_range(broker_id, topic, 0)[1] // INDEX_BYTES

    def write(count: int) -> None:
        more = wide(count, f"{len(values)}.")
        values.extend(more)
        writer.write(pa.record_batch({"value": more}))

    with TubeMQWriter(tubemq_options(faulty.masters, topic, WRITE), TaskAttempt("job")) as writer:
        write(2000)
        faulty.cluster.broker(1).kill()
        write(3000)
        writer.flush()
        assert has_so_many(2) > 3000
        faulty.cluster.start_broker(1)
        had = has_so_many(1)
        # The broker is tried again after a while, with one message, and gets its share when that is acknowledged.
        while has_so_many(1) < had + 100:
            assert len(values) < 100_000
            write(20)
            writer.flush()
            threading.Event().wait(0.02)  # the pause of the broker ends with time, without an event
    stored = has_so_many(1) + has_so_many(2)
    found = Counter(m.value for m in tube_java.consume(faulty.cluster, topic, faulty.group(), stored))
    assert found.keys() == set(values)
    # At least once: messages in flight when the broker died may be duplicates.
    assert sum(found.values()) - len(values) <= writer._options.max_pending_messages


def test_a_broker_with_full_memory_gets_the_message_again(faulty: TubeUnderTest):
    """Several concurrent writers are faster than any disk of the broker."""
    writers, at_once, most = 4, 20, 1000
    padding = bytes(300_000)
    refused = threading.Event()

    def write(name: int) -> int:
        options = tubemq_options(faulty.masters, LITTLE_MEMORY, WRITE, operationTimeout="100s", sendTimeout="200s")
        written = 0
        with TubeMQWriter(options, TaskAttempt("job", partition=name)) as writer:
            while not refused.is_set() and written < most:
                numbers = range(written, written + at_once)
                writer.write(pa.record_batch({"value": [b"%d %d." % (name, n) + padding for n in numbers]}))
                written += at_once
                if writer._reason is not None:
                    refused.set()
            writer.flush()
        assert writer._reason is None or getattr(writer._reason, "code", None) == SERVER_RECEIVE_OVERFLOW
        return written

    with ThreadPoolExecutor(writers) as pool:
        written = list(pool.map(write, range(writers)))
    assert refused.is_set(), f"the broker had room for all of it: {written}"
    found = read_all(tubemq_options(faulty.masters, LITTLE_MEMORY, READ, lowLatency=True))
    # A refused message is not stored, so there are no duplicates.
    sent = [(name, n) for name, count in enumerate(written) for n in range(count)]
    assert sorted(tuple(map(int, value.partition(b".")[0].split())) for value in found) == sent


def test_flow_control_is_obeyed(faulty: TubeUnderTest, caplog: pytest.LogCaptureFixture):
    """A consumer that is 21 MB behind gets 20 MB in 5 s, and then a pause from the broker."""
    topic = faulty.topic()
    values = [b"%d." % n + bytes(1_000_000) for n in range(26)]
    with TubeMQWriter(tubemq_options(faulty.masters, topic, WRITE), TaskAttempt("job")) as writer:
        writer.write(pa.record_batch({"value": values}))
        writer.flush()
    options = tubemq_options(faulty.masters, topic, READ)
    wait_until_flushed(options, len(values))
    deadline = time.monotonic() + 60
    faulty.admin.set_flow_control(
        [{"type": 0, "rule": [{"start": "00:00", "end": "24:00", "dltInM": 21, "limitInM": 240, "freqInMs": 200}]}]
    )
    try:
        with caplog.at_level(logging.INFO):
            # The rule reaches the brokers with their heartbeats.
            while "flow control" not in caplog.text:
                assert time.monotonic() < deadline
                assert read_all(options) == values
    finally:
        faulty.admin.remove_flow_control()
    assert f"#{topic}:0: flow control lets it wait for 200 ms" in caplog.text


# -- masters


@pytest.fixture
def leader(faulty: TubeUnderTest) -> Iterator[Server]:
    """Yield the leading master; start it again afterwards if the test killed it."""
    found = next(master for master in faulty.cluster.masters if master.address == faulty.admin.leader())
    yield found
    if not found.alive:
        faulty.cluster.start_server(found)


def test_the_leading_master_is_killed_while_a_stream_a_writer_and_members_are_active(
    faulty: TubeUnderTest, leader: Server, tube_java: TubeJavaClient
):
    topic, group = faulty.topic(3), faulty.group()
    values = numbered(4000)
    cluster = faulty.cluster
    standby = next(master for master in cluster.masters if master is not leader)
    standby_first = f"{standby.address},{leader.address}"
    with (
        Query(standby_first, topic, group=group, startingOffsets="earliest") as query,
        TubeMQClient(tubemq_options(standby_first, topic, WRITE)) as client,
        client.enter(ClientBalancedMember(client.masters, f"{group}_v2", [topic], ())) as chooser,
    ):
        producer = client.enter(ProducerMember(client.masters, [topic]))
        query.begin()
        with TubeMQWriter(tubemq_options(faulty.masters, topic, WRITE), TaskAttempt("job")) as writer:
            for begin in range(0, len(values), 500):
                writer.write(pa.record_batch({"value": encoded(values[begin : begin + 500])}))
                writer.flush()
                query.trigger()
                if begin == 2000:
                    leader.kill()
        query.trigger_until(lambda: len(query.rows) >= len(values), "all is read")
        cluster.wait_for_leader()
        assert faulty.admin.leader() == standby.address
        cluster.wait_for_topics([topic])
        # The new master rebalances the group: another member gets its part.
        with tube_java.join(cluster, [topic], group) as member:
            # The part is random: the master may know the member before the query has connected to it.
            member.wait_until(lambda m: 0 < len(m.held) < 3, "it has its part of the partitions")
            more = numbered(300, "shared.")
            values += more
            tube_java.produce(cluster, topic, encoded(more))
            query.trigger_until(lambda: len(query.rows) + len(member.look().read) >= len(values), "all is read")
        # Members without a request since then are not members of the new master yet.
        patience = Deadline.after_ms(60_000)
        assert len(retrying(chooser.fetch_topics, deadline=patience).partitions()) == 3
        retrying(producer.send_heartbeat, deadline=patience)
        assert len(producer.meta.partitions(topic)) == 3
        producer.close()
    assert Counter(query.values + [m.value.decode() for m in member.read]) == Counter(values)
