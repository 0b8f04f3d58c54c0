"""`spark-mq tail` on real brokers: the last messages and those that follow."""

from __future__ import annotations

import json
import signal
import subprocess

from spark_mq_source.core.options import READ
from tests.behaviours.cli.test_main import asked, asked_of, spark_mq
from tests.behaviours.pulsar.streams import publish
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_tubemq import TubeUnderTest
from tests.formats.pulsar import PulsarFormat
from tests.formats.tubemq import send_to_partition, tubemq_options, wait_until_flushed
from tests.unit.cli.test_main import VALUES, following


def values(rows: list[dict[str, object]]) -> list[object]:
    return [row["value"] for row in rows]


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Press Ctrl-C; return the exit status and the text on stderr."""
    process.send_signal(signal.SIGINT)
    status = process.wait(60)
    assert process.stderr is not None
    return status, process.stderr.read()


def lines(process: subprocess.Popen[str], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def test_the_last_messages_of_a_partition_are_found_across_ledgers(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    for number in range(3):
        publish(pulsar, topic, [f"{number}-{each}" for each in range(4)], batch=2)
        pulsar.admin.unload(topic)
    publish(pulsar, topic, ["3-0", "3-1"], batch=2)
    assert [entries for _, entries in pulsar.admin.ledgers(topic)] == [2, 2, 2, 1]
    everything = [f"{number}-{each}" for number in range(3) for each in range(4)] + ["3-0", "3-1"]
    for last in (0, 2, 3, 14, 100):
        assert (
            values(asked("tail", pulsar, "-n", str(last), topic=topic)) == everything[len(everything) - last :][-last:]
        )
    assert values(asked("tail", pulsar, topic=topic)) == everything[-10:]


def test_each_partition_has_its_last_messages_in_the_order_of_their_times(pulsar: PulsarUnderTest):
    topic = pulsar.topic(2)
    feed = PulsarFormat(pulsar)
    feed.publish(topic, [b"a", b"b", b"c"], partition=1)
    feed.publish(topic, [b"d"], partition=0)
    assert values(asked("tail", pulsar, "--last", "2", topic=topic)) == ["b", "c", "d"]
    given = ["-o", f"serviceUrl={pulsar.service_url}", "-t", pulsar.topic()]
    empty = spark_mq("tail", "pulsar-native", *given)
    assert (empty.exit_code, empty.stdout, empty.stderr) == (0, "", "no message to read\n")


def test_entries_removed_by_compaction_are_not_counted(pulsar: PulsarUnderTest):
    """With compaction most of the last entries are left out."""
    topic = pulsar.topic()
    client = pulsar.client()
    producer = client.create_producer(topic, batching_enabled=False)
    for key, value in [("a", b"1"), ("b", b"2"), *[("c", b"%d" % number) for number in range(3, 30)]]:
        producer.send(value, partition_key=key)
    producer.close()
    pulsar.admin.compact(topic)
    compacted = asked("tail", pulsar, "-n", "3", topic=topic, readCompacted="true")
    assert values(compacted) == ["1", "2", "29"]


def test_tail_prints_new_messages_of_pulsar_and_leaves_nothing_behind(pulsar: PulsarUnderTest):
    topic = pulsar.topic(2)
    feed = PulsarFormat(pulsar)
    feed.publish(topic, [b"before"], partition=0)
    with following("pulsar-native", "-o", f"serviceUrl={pulsar.service_url}", "-t", topic, *VALUES) as process:
        assert lines(process, 1) == ["before"]
        # One partition is still empty.
        feed.publish(topic, [b"one"], partition=0)
        assert lines(process, 1) == ["one"]
        feed.publish(topic, [b"two"], partition=1)
        assert lines(process, 1) == ["two"]
        # The broker closes the waiting consumers, and a new ledger begins.
        pulsar.admin.unload(topic)
        feed.publish(topic, [b"three", b"four"], partition=0)
        assert lines(process, 2) == ["three", "four"]
        assert interrupted(process) == (0, "")
    for partition in range(2):
        name = f"{topic}-partition-{partition}"
        wait_until(lambda name=name: pulsar.admin.subscriptions(name) == [], "no subscription is left")


def test_peek_and_tail_of_a_queue_create_no_subscription(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    PulsarFormat(pulsar).publish(topic, [b"one"])
    given = ["-o", f"serviceUrl={pulsar.service_url}", "-t", topic, "-o", "subscriptionType=shared"]
    answer = spark_mq("peek", "pulsar-native", *given, "-o", "subscription=queue", "-o", "maxRows=5")
    assert answer.exit_code == 1
    assert "there is no durable subscription queue, and looking at a queue creates none" in answer.stderr
    assert pulsar.admin.subscriptions(topic) == []
    # The newest messages are read by position, whether or not the options name a queue.
    tail = spark_mq("tail", "pulsar-native", *given, "-o", "subscription=queue", "--json")
    assert json.loads(tail.stdout)["value"] == "one"


def test_peek_of_a_non_persistent_topic_is_refused(pulsar: PulsarUnderTest):
    topic = pulsar.unused_topic().replace("persistent", "non-persistent")
    given = ["-o", f"serviceUrl={pulsar.service_url}", "-t", topic, "-o", "subscriptionType=shared"]
    answer = spark_mq("peek", "pulsar-native", *given, "-o", "subscription=queue")
    assert answer.exit_code == 2
    assert "looking at a message would take it from the other consumers" in answer.stderr


def test_all_topics_of_a_namespace_are_listed(pulsar: PulsarUnderTest):
    namespace = pulsar.new_namespace()
    plain, partitioned = pulsar.topic(namespace=namespace), pulsar.topic(3, namespace=namespace)
    rows = sorted((row["topic"], row["partitions"]) for row in asked("topics", pulsar, "--namespace", namespace))
    assert rows == sorted([(plain, 0), (partitioned, 3)])
    elsewhere = asked("topics", pulsar)
    assert all(str(row["topic"]).startswith("persistent://public/default/") for row in elsewhere)


def test_tail_of_tubemq_prints_the_last_messages_of_the_partition_and_new_ones(tubemq: TubeUnderTest):
    topic = tubemq.topic(2)
    options = {"masters": tubemq.masters, "topic": topic}
    read = tubemq_options(tubemq.masters, topic, READ)
    # Both are in one store, whose last twenty messages belong to the other partition.
    send_to_partition(read, topic, 0, [b"a", b"b", b"c"])
    send_to_partition(read, topic, 1, [b"%d" % number for number in range(20)])
    wait_until_flushed(read, 23)
    found = asked_of("tubemq", "tail", "-n", "2", **options)
    assert sorted((row["partition"], row["value"]) for row in found) == [(0, "b"), (0, "c"), (1, "18"), (1, "19")]
    rows = {
        row["topic"]: row
        for row in asked_of("tubemq", "topics", masters=tubemq.masters, adminUrl=tubemq.admin.masters[0])
    }
    assert rows[topic] == {"topic": topic, "partitions": 2, "brokers": 1}
    with following("tubemq", "-o", f"masters={tubemq.masters}", "-t", topic, "-n", "1", *VALUES) as process:
        assert sorted(lines(process, 2)) == ["19", "c"]
        send_to_partition(read, topic, 0, [b"d"])
        assert lines(process, 1) == ["d"]
        assert interrupted(process) == (0, "")


def test_all_topics_of_tubemq_need_a_master_that_lists_them(tubemq: TubeUnderTest):
    elsewhere = tubemq.admin.brokers[1]
    answer = spark_mq("topics", "tubemq", "-o", f"masters={tubemq.masters}", "-o", f"adminUrl={elsewhere}")
    assert answer.exit_code == 1
    assert answer.stderr.startswith("spark-mq: tubemq: cannot list all topics: ")
    assert answer.stderr.endswith("; set adminUrl, or name a topic\n")
