"""`spark-mq` as its user meets it: what it prints and how it exits, on the real broker."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar as official
from typer.testing import CliRunner

from spark_mq_source.cli.main import app
from spark_mq_source.core.errors import SITE
from spark_mq_source.core.options import READ
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from spark_mq_source.pulsar.read.stream import offsets_to_json
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from tests.fix_brokers import NsqUnderTest, PulsarUnderTest
from tests.fix_tubemq import TubeUnderTest
from tests.formats.pulsar import PulsarFormat
from tests.formats.tubemq import send_to_partition, tubemq_options, wait_until_flushed

if TYPE_CHECKING:
    from click.testing import Result


def spark_mq(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def asked(command: str, broker: PulsarUnderTest, *more: str, **options: str) -> list[dict[str, object]]:
    return asked_of("pulsar-native", command, *more, **{"serviceUrl": broker.service_url} | options)


def asked_of(name: str, command: str, *more: str, **options: str) -> list[dict[str, object]]:
    flags = [flag for option, value in options.items() for flag in ("--option", f"{option}={value}")]
    answer = spark_mq(command, name, *flags, *more, "--json")
    assert answer.exit_code == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def filled(broker: PulsarUnderTest) -> str:
    topic = broker.topic(2)
    feed = PulsarFormat(broker)
    feed.publish(topic, [b"zero", b"\xff"], partition=0)
    feed.publish(topic, [b"one"], partition=1)
    return topic


def test_topics_and_partitions_are_listed(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    pattern = topic.removeprefix("persistent://")
    assert asked("topics", pulsar, topicsPattern=pattern) == [{"topic": topic, "partitions": 2}]
    broker = pulsar.service_url.removeprefix("pulsar://")
    assert [(row["partition"], row["broker"]) for row in asked("partitions", pulsar, topic=topic)] == [
        (0, broker),
        (1, broker),
    ]


def test_offsets_can_be_given_back_as_starting_offsets(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    rows = asked("offsets", pulsar, topic=topic)
    latest = {f"{row['topic']}-partition-{row['partition']}": row["latest"] for row in rows}
    assert asked("peek", pulsar, topic=topic, startingOffsets=json.dumps(latest)) == []
    earliest = {f"{row['topic']}-partition-{row['partition']}": row["earliest"] for row in rows}
    assert len(asked("peek", pulsar, topic=topic, startingOffsets=json.dumps(earliest))) == 3


def test_peek_shows_as_many_messages_as_asked_for(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    assert [row["value"] for row in asked("peek", pulsar, topic=topic)] == ["zero", "ff", "one"]
    assert [row["value"] for row in asked("peek", pulsar, "--rows", "1", topic=topic)] == ["zero"]


def test_the_lag_of_a_query_is_read_off_its_checkpoint(pulsar: PulsarUnderTest, tmp_path: Path):
    topic = filled(pulsar)
    rows = asked("offsets", pulsar, topic=topic)
    read = Position(**rows[1]["latest"])  # type: ignore[arg-type]
    for folder, name, lines in [
        ("offsets", "3", ["v1", "{}", json.dumps(offsets_to_json({TopicPartition(topic, 1): read}))]),
        ("offsets", "4", ["v1", "{}", "not committed"]),
        ("commits", "3", ["v1", "{}"]),
    ]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text("\n".join(lines))
    lag = asked("lag", pulsar, "--checkpoint", str(tmp_path), topic=topic)
    assert [(row["partition"], row["entries_behind"]) for row in lag] == [(0, 1), (1, 0)]


def test_the_lag_of_a_subscription_is_what_the_broker_says(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    client = pulsar.client()
    client.subscribe(topic, "group").close()
    PulsarFormat(pulsar).publish(topic, [b"more"], partition=1)
    lag = asked("lag", pulsar, topic=topic, subscription="group", adminUrl=pulsar.admin_url)
    assert [row["entries_behind"] for row in lag] == [0, 1]


def test_a_subscription_is_deleted_once_nobody_uses_it(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    client = pulsar.client()
    reader = client.subscribe(topic, "done", initial_position=official.InitialPosition.Earliest)
    given = ["-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}", "-o", "subscription=done"]
    began = time.monotonic()
    refused = spark_mq("unsubscribe", "pulsar-native", *given)
    assert refused.exit_code == 1
    assert time.monotonic() - began < 10, "at once, not when operationTimeout has passed"
    assert re.search(r"subscription done is in use, so nothing is deleted .*ConsumerBusy", refused.stderr)
    names = [set(pulsar.admin.stats(f"{topic}-partition-{n}")["subscriptions"]) for n in range(2)]
    assert names == [{"done"}, {"done"}]
    reader.close()
    # Two messages in a batch are one entry.
    assert asked("unsubscribe", pulsar, topic=topic, subscription="done") == [
        {"topic": topic, "partition": 0, "subscription": "done", "entries_let_go": 1},
        {"topic": topic, "partition": 1, "subscription": "done", "entries_let_go": 1},
    ]
    assert [pulsar.admin.stats(f"{topic}-partition-{n}")["subscriptions"] for n in range(2)] == [{}, {}]


def test_a_subscription_that_is_not_there_leaves_nothing_behind(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    rows = asked("unsubscribe", pulsar, topic=topic, subscription="never")
    assert [row["entries_let_go"] for row in rows] == [0, 0]
    assert [pulsar.admin.stats(f"{topic}-partition-{n}")["subscriptions"] for n in range(2)] == [{}, {}]


def test_what_cannot_be_unsubscribed_is_said(pulsar: PulsarUnderTest):
    nameless = spark_mq("unsubscribe", "pulsar-native", "-o", f"serviceUrl={pulsar.service_url}", "-o", "topic=t")
    assert nameless.exit_code == 2
    assert "set the option subscription" in nameless.stderr
    other = spark_mq("unsubscribe", "tubemq", "-o", "masters=localhost:1", "-o", "topic=t", "-o", "group=g")
    assert other.exit_code == 2
    assert "format tubemq has no subscriptions to delete" in other.stderr


def test_a_table_is_what_a_person_gets(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    answer = spark_mq("topics", "pulsar-native", "-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}")
    assert answer.exit_code == 0
    assert re.search(r"topic\s+┃\s+partitions", answer.stdout)


def test_the_doctor_walks_every_step_of_a_read(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    answer = spark_mq("doctor", "pulsar-native", "-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}")
    assert answer.exit_code == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok"] * 5
    assert "the first message can be decoded" in answer.stdout


def test_the_doctor_says_which_step_fails_and_why(pulsar: PulsarUnderTest):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        answer = spark_mq("doctor", "pulsar-native", "-o", f"serviceUrl=pulsar://{address}", "-o", "topic=t")
    assert answer.exit_code == 1
    assert answer.stdout.split()[:5] == ["failed", "connect", "to", address, "see"]
    assert f"{SITE}troubleshooting/#" in answer.stdout
    assert address in answer.stderr
    topic = pulsar.unused_topic()
    answer = spark_mq("doctor", "pulsar-native", "-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}")
    assert answer.exit_code == 1
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok", "failed", "see"]
    assert answer.stdout.endswith("/troubleshooting/#topicnotfounderror\n")
    assert topic in answer.stderr


def test_wrong_arguments_have_a_status_of_their_own_and_no_secret_is_shown(pulsar: PulsarUnderTest):
    service = f"serviceUrl={pulsar.service_url}"
    for arguments, why in [
        (["topics", "kafka"], "unknown format kafka; expected one of pulsar-native, tubemq, nsq"),
        (["topics", "pulsar-native", "-o", service, "-o", "topik=t"], "topik"),
        (["topics", "pulsar-native", "-o", service, "-o", "t0psecret"], "an --option is not NAME=VALUE"),
        (["lag", "pulsar-native", "-o", service, "-o", "topic=t", "--checkpoint", "/nowhere"], "no committed batch"),
    ]:
        answer = spark_mq(*arguments)
        assert answer.exit_code == 2
        assert answer.stderr.startswith("spark-mq: ")
        assert len(answer.stderr.splitlines()) == 1
        assert why in answer.stderr
        assert "t0psecret" not in answer.stderr


def test_nsq_is_looked_at_and_nothing_is_taken(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    nsq.publish(topic, b"one", b"two")
    options = {"nsqlookupdHttpAddresses": nsq.lookupd_address, "topic": topic, "channel": "c"}
    assert asked_of("nsq", "topics", **options) == [{"topic": topic, "nsqds": 1, "channels": ["c"]}]
    assert [row["nsqd"] for row in asked_of("nsq", "partitions", **options)] == [nsq.tcp_address]
    assert sorted(str(row["value"]) for row in asked_of("nsq", "peek", **options)) == ["one", "two"]
    assert [row["waiting"] for row in asked_of("nsq", "lag", **options)] == [2]
    flags = [flag for option, value in options.items() for flag in ("-o", f"{option}={value}")]
    answer = spark_mq("doctor", "nsq", *flags)
    assert answer.exit_code == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok"] * 4
    assert [row["waiting"] for row in asked_of("nsq", "offsets", **options)] == [2]


def test_tubemq_is_looked_at(tubemq: TubeUnderTest):
    topic = tubemq.topic(2)
    options = {"masters": tubemq.masters, "topic": topic}
    read = tubemq_options(tubemq.masters, topic, READ)
    send_to_partition(read, topic, 0, [b"one", b"two"])
    wait_until_flushed(read)
    assert [row["partitions"] for row in asked_of("tubemq", "topics", **options)] == [2]
    assert [row["partition"] for row in asked_of("tubemq", "partitions", **options)] == [0, 1]
    offsets = asked_of("tubemq", "offsets", **options)
    # Both are in one store, and share its offsets.
    assert [int(str(row["latest"])) - int(str(row["earliest"])) for row in offsets] == [2 * INDEX_BYTES] * 2
    assert [row["value"] for row in asked_of("tubemq", "peek", **options)] == ["one", "two"]
    flags = [flag for option, value in options.items() for flag in ("-o", f"{option}={value}")]
    answer = spark_mq("doctor", "tubemq", *flags)
    assert answer.exit_code == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok"] * 3


def test_it_is_a_program_of_its_own():
    program = subprocess.run(
        [sys.executable, "-m", "spark_mq_source.cli.main", "--help"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert all(command in program.stdout for command in ("topics", "partitions", "offsets", "peek", "lag", "doctor"))
