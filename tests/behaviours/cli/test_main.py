"""The command `spark-mq` on a real broker: its output and exit statuses."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import socket
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar as official
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from spark_mq_source.cli.main import app
from spark_mq_source.core.errors import SITE
from spark_mq_source.core.options import READ
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.tubemq.format import TubeMQFormat
from spark_mq_source.tubemq.offsets import INDEX_BYTES
from tests.behaviours.pulsar.streams import publish as publish_entries
from tests.fix_brokers import NsqUnderTest, PulsarUnderTest
from tests.fix_tubemq import TubeUnderTest
from tests.formats.pulsar import PulsarFormat
from tests.formats.tubemq import send_to_partition, tubemq_options, wait_until_flushed
from tests.oracles.inlong import inlong_msg

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


def write_checkpoint(folder: Path, offset: str) -> None:
    """Write the checkpoint of a query whose batch 0 ended with the offset."""
    for name, lines in (("offsets", ["v1", "{}", offset]), ("commits", ["v1"])):
        (folder / name).mkdir()
        (folder / name / "0").write_text("\n".join(lines))


def filled(broker: PulsarUnderTest) -> str:
    topic = broker.topic(2)
    feed = PulsarFormat(broker)
    feed.publish(topic, [b"zero", b"\xff"], partition=0)
    feed.publish(topic, [b"one"], partition=1)
    return topic


def test_printed_offsets_are_accepted_as_starting_offsets(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    rows = asked("offsets", pulsar, topic=topic)
    latest = {f"{row['topic']}-partition-{row['partition']}": row["latest"] for row in rows}
    assert asked("peek", pulsar, topic=topic, startingOffsets=json.dumps(latest)) == []
    earliest = {f"{row['topic']}-partition-{row['partition']}": row["earliest"] for row in rows}
    assert len(asked("peek", pulsar, topic=topic, startingOffsets=json.dumps(earliest))) == 3


def test_the_lag_of_a_subscription_is_read_without_disturbing_its_consumers(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    reader = pulsar.client().subscribe(topic, "group", consumer_type=official.ConsumerType.Shared)
    PulsarFormat(pulsar).publish(topic, [b"more"], partition=1)
    assert asked("lag", pulsar, topic=topic, subscription="group", adminUrl=pulsar.admin_url) == (
        lag := asked("lag", pulsar, "--subscription", "group", topic=topic)
    )
    assert lag == [
        {"topic": topic, "partition": 0, "entries_behind": 0},
        {"topic": topic, "partition": 1, "entries_behind": 1},
    ]
    reader.close()
    given = ["lag", "pulsar-native", "-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}"]
    neither = spark_mq(*given)
    assert (neither.exit_code, "pass --checkpoint or --subscription" in neither.stderr) == (2, True)
    both = spark_mq(*given, "--checkpoint", "/", "--subscription", "group")
    assert (both.exit_code, "--checkpoint and --subscription exclude each other" in both.stderr) == (2, True)
    unknown = spark_mq(*given, "--subscription", "none")
    assert (unknown.exit_code, "there is no durable subscription none" in unknown.stderr) == (1, True)


def test_peek_and_lag_leave_a_queue_unchanged(pulsar: PulsarUnderTest, tmp_path: Path):
    topic = pulsar.topic()
    reader = pulsar.client().subscribe(topic, "queue", consumer_type=official.ConsumerType.Shared)
    reader.close()
    publish_entries(pulsar, topic, ["a", "b", "c"], batch=3)
    # The options of a query over the queue.
    queue = {"topic": topic, "subscription": "queue", "subscriptionType": "shared", "walDir": str(tmp_path / "wal")}
    assert [row["value"] for row in asked("peek", pulsar, **queue)] == ["a", "b", "c"]
    assert [row["value"] for row in asked("peek", pulsar, "--rows", "1", **queue)] == ["a"]
    assert [row["entries_behind"] for row in asked("lag", pulsar, **queue)] == [1]
    assert not (tmp_path / "wal").exists()
    write_checkpoint(tmp_path, '{"version": 1, "batch": 7, "wal": "a"}')
    given = ["-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}"]
    refused = spark_mq("lag", "pulsar-native", *given, "--checkpoint", str(tmp_path))
    assert (refused.exit_code, "a query with walDir has none: pass --subscription" in refused.stderr) == (2, True)
    assert [row["entries_released"] for row in asked("unsubscribe", pulsar, **queue)] == [1]


def test_a_queue_is_not_deleted_while_it_has_consumers(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    kinds = official.ConsumerType
    given = ["-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}"]
    for kind in (kinds.Shared, kinds.KeyShared, kinds.Failover):
        readers = [pulsar.client().subscribe(topic, kind.name, consumer_type=kind) for _ in range(2)]
        refused = spark_mq("unsubscribe", "pulsar-native", *given, "-o", f"subscription={kind.name}")
        assert refused.exit_code == 1
        assert f"subscription {kind.name} is in use, so nothing is deleted (stop its consumers first)" in refused.stderr
        for reader in readers:
            reader.close()
        rows = asked("unsubscribe", pulsar, topic=topic, subscription=kind.name)
        assert [row["subscription"] for row in rows] == [kind.name] * 2


def test_a_subscription_is_deleted_once_it_has_no_consumers(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    client = pulsar.client()
    reader = client.subscribe(topic, "done", initial_position=official.InitialPosition.Earliest)
    given = ["-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}", "-o", "subscription=done"]
    # Fails at once: retries until operationTimeout would exceed this test's timeout.
    refused = spark_mq("unsubscribe", "pulsar-native", *given, "-o", "operationTimeout=20m")
    assert refused.exit_code == 1
    assert re.search(r"subscription done is in use, so nothing is deleted .*ConsumerBusy", refused.stderr)
    names = [set(pulsar.admin.stats(f"{topic}-partition-{n}")["subscriptions"]) for n in range(2)]
    assert names == [{"done"}, {"done"}]
    reader.close()
    # Two messages in a batch are one entry.
    assert asked("unsubscribe", pulsar, topic=topic, subscription="done") == [
        {"topic": topic, "partition": 0, "subscription": "done", "entries_released": 1},
        {"topic": topic, "partition": 1, "subscription": "done", "entries_released": 1},
    ]
    assert [pulsar.admin.stats(f"{topic}-partition-{n}")["subscriptions"] for n in range(2)] == [{}, {}]


def test_unsubscribing_a_missing_subscription_leaves_nothing_behind(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    rows = asked("unsubscribe", pulsar, topic=topic, subscription="never")
    assert [row["entries_released"] for row in rows] == [0, 0]
    assert [pulsar.admin.stats(f"{topic}-partition-{n}")["subscriptions"] for n in range(2)] == [{}, {}]
    assert [name for name in pulsar.admin.topics(pulsar.namespace) if name.startswith(f"{topic}-never")] == []


def test_unsubscribing_also_deletes_the_subscription_of_the_retry_topic(pulsar: PulsarUnderTest):
    topic, client = filled(pulsar), pulsar.client()
    retry = pulsar.admin.create_topic(f"{topic}-done-RETRY", 2)
    names = [f"{name}-partition-{n}" for name in (topic, retry) for n in range(2)]
    client.subscribe(topic, "done").close()
    reader = client.subscribe(retry, "done")
    PulsarFormat(pulsar).publish(f"{retry}-partition-1", [b"put off"])
    given = ["-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}", "-o", "subscription=done"]
    assert "is in use, so nothing is deleted" in spark_mq("unsubscribe", "pulsar-native", *given).stderr
    assert [set(pulsar.admin.subscriptions(name)) for name in names] == [{"done"}] * 4
    reader.close()
    # Retry messages belong to all partitions, so they stay when one partition is named.
    single = asked("unsubscribe", pulsar, topic=names[0], subscription="done")
    assert [(row["topic"], row["partition"]) for row in single] == [(topic, 0)]
    rows = asked("unsubscribe", pulsar, topic=topic, subscription="done")
    assert [(row["topic"], row["partition"], row["entries_released"]) for row in rows] == [
        (topic, 0, 0),
        (topic, 1, 0),
        (retry, 0, 0),
        (retry, 1, 1),
    ]
    assert [pulsar.admin.subscriptions(name) for name in names] == [[]] * 4


def test_a_retry_topic_without_the_subscription_is_not_touched(pulsar: PulsarUnderTest):
    topic = pulsar.topic()
    retry = pulsar.admin.create_topic(f"{topic}-done-RETRY")
    pulsar.client().subscribe(topic, "done").close()
    assert [row["topic"] for row in asked("unsubscribe", pulsar, topic=topic, subscription="done")] == [topic]
    assert pulsar.admin.subscriptions(retry) == []


def test_unsubscribing_without_a_subscription_is_refused(pulsar: PulsarUnderTest):
    nameless = spark_mq("unsubscribe", "pulsar-native", "-o", f"serviceUrl={pulsar.service_url}", "-o", "topic=t")
    assert nameless.exit_code == 2
    assert "set the option subscription" in nameless.stderr
    other = spark_mq("unsubscribe", "tubemq", "-o", "masters=localhost:1", "-o", "topic=t", "-o", "group=g")
    assert other.exit_code == 2
    assert "format tubemq has no subscriptions to delete" in other.stderr


def test_the_default_output_is_a_table(pulsar: PulsarUnderTest):
    topic = filled(pulsar)
    given = ["pulsar-native", "-o", f"serviceUrl={pulsar.service_url}", "-o", f"topic={topic}"]
    answer = spark_mq("topics", *given)
    assert answer.exit_code == 0
    assert [line.split() for line in answer.stdout.splitlines()] == [["topic", "partitions"], [topic, "2"]]
    table = spark_mq("offsets", *given)
    assert re.findall(r" \d+ +before (\d+:0) +(\d+:0) +(\d+)\s*$", table.stdout, re.MULTILINE) == [
        (f"{row['latest']['ledger']}:0", f"{row['latest']['ledger']}:0", "1")  # type: ignore[index]
        for row in asked("offsets", pulsar, topic=topic)
    ]
    plain = spark_mq("partitions", *given[:3], "-t", pulsar.topic())
    assert "not partitioned" in plain.stdout
    assert max(map(len, table.stdout.splitlines())) <= 80


def publish(door: Any, options: Mapping[str, str], **columns: pa.Array) -> None:
    batch = pa.record_batch(columns)
    parsed = door.parse_write_options({name.lower(): value for name, value in options.items()}, batch.schema.names)
    door.commit(parsed, [door.write(parsed, iter([batch]), TaskAttempt("job"))])


def headers(*rows: list[tuple[str, str]]) -> pa.Array:
    return pa.array(rows, pa.map_(pa.string(), pa.string()))


TIME = r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\dZ"


def test_peek_prints_a_line_for_each_message_of_pulsar(pulsar: PulsarUnderTest):
    options = {"serviceUrl": pulsar.service_url, "topic": pulsar.topic()}
    publish(
        PulsarFormat(pulsar).door,
        options,
        key=pa.array(["UA", "AA", None]),
        value=pa.array(["käse\n".encode(), None, b"\xff"]),
        properties=headers([("day", "1"), ("late", "no")], [], []),
    )
    given = ["pulsar-native", *(flag for name, value in options.items() for flag in ("-o", f"{name}={value}"))]
    (ledger,) = {row["message_id"]["ledger_id"] for row in asked("peek", pulsar, topic=options["topic"])}  # type: ignore[index]
    lines = spark_mq("peek", *given).stdout.splitlines()
    assert [re.sub(TIME, "TIME", line) for line in lines] == [
        rf"- {ledger}:0:0 TIME UA käse\n",
        rf"- {ledger}:0:1 TIME AA NULL",
        rf"- {ledger}:0:2 TIME NULL \xff",
    ]
    of_pattern = ["-o", f"serviceUrl={pulsar.service_url}", "-o", f"topicsPattern={options['topic']}"]
    assert spark_mq("peek", "pulsar-native", *of_pattern).stdout.splitlines() == [
        f"{options['topic']} {line}" for line in lines
    ]
    assert spark_mq("peek", *given, "-n", "1", "-f", "%s").stdout == r"käse\n"


def test_peek_prints_a_line_for_each_message_of_tubemq(tubemq: TubeUnderTest):
    options = {"masters": tubemq.masters, "topic": tubemq.topic()}
    publish(
        TubeMQFormat(),
        options | {"waitForDisk": "true"},
        value=pa.array([b"one", b"two"]),
        message_type=pa.array(["UA", None]),
        message_time=pa.array([datetime(2026, 2, 28, 23, 59, tzinfo=timezone.utc), None], pa.timestamp("us", "UTC")),
        attributes=headers([("day", "1"), ("late", "no")], []),
    )
    given = ["tubemq", *(flag for name, value in options.items() for flag in ("-o", f"{name}={value}"))]
    first, second = (row["message_id"] for row in asked_of("tubemq", "peek", **options))
    assert spark_mq("peek", *given).stdout.splitlines() == [
        f"1:0 {first} 2026-02-28T23:59:00.000Z UA one",
        f"1:0 {second} NULL NULL two",
    ]


def test_peek_prints_a_line_for_each_message_of_nsq(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    nsq.publish(topic, b"one", b"\x1b[31m")
    given = ["-o", f"nsqlookupdHttpAddresses={nsq.lookupd_address}", "-o", f"topic={topic}", "-o", "channel=c"]
    # Peek does not wait for messages behind the last one that it prints.
    given += ["-o", "idleTimeout=1h"]
    lines = spark_mq("peek", "nsq", *given, "-n", "2").stdout.splitlines()
    assert sorted(re.sub(rf"[0-9a-f]{{16}} {TIME}", "ID TIME", line) for line in lines) == [
        rf"{nsq.tcp_address} ID TIME \x1b[31m",
        f"{nsq.tcp_address} ID TIME one",
    ]
    assert spark_mq("peek", "nsq", *given, "-n", "1", "-f", "%{attempts} %k %K [%h]").stdout == "2 NULL -1 []"


def test_colors_are_for_terminals_only(nsq: NsqUnderTest, monkeypatch: pytest.MonkeyPatch):
    topic = nsq.topic("c")
    nsq.publish(topic, b"one")
    given = ["-o", f"nsqlookupdHttpAddresses={nsq.lookupd_address}", "-o", f"topic={topic}", "-o", "channel=c"]
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for command in (["peek", "nsq", "-n", "1", "-o", "idleTimeout=1h"], ["offsets", "nsq"], ["doctor", "nsq"]):
        assert "\x1b" not in printed(*command, *given)
        assert "\x1b[" in printed(*command, *given, terminal=True)
        with monkeypatch.context() as colorless:
            colorless.setenv("NO_COLOR", "1")
            assert "\x1b[3" not in printed(*command, *given, terminal=True)


def printed(*arguments: str, terminal: bool = False) -> str:
    """Return the output of a command to a pipe or a terminal; in this process, because imports take longest."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with os.fdopen(theirs, "w") as output, contextlib.redirect_stdout(output):
        assert not app(arguments, standalone_mode=False)
    found = b""
    # Reading a terminal whose other end is closed is an error (EIO, on Linux) instead of an end of file.
    with contextlib.suppress(OSError):
        while part := os.read(ours, 65536):
            found += part
    os.close(ours)
    assert found
    return found.decode()


def test_the_doctor_reports_the_step_that_fails_and_the_reason(pulsar: PulsarUnderTest):
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


def test_wrong_arguments_have_their_own_status_and_no_secret_is_shown(pulsar: PulsarUnderTest):
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


def test_commands_on_nsq_take_no_messages(nsq: NsqUnderTest):
    topic = nsq.topic("c")
    nsq.publish(topic, b"one", b"two")
    options = {"nsqlookupdHttpAddresses": nsq.lookupd_address, "topic": topic, "channel": "c", "idleTimeout": "2s"}
    assert asked_of("nsq", "topics", **options) == [{"topic": topic, "nsqds": 1, "channels": ["c"]}]
    assert [row["nsqd"] for row in asked_of("nsq", "partitions", **options)] == [nsq.tcp_address]
    assert sorted(str(row["value"]) for row in asked_of("nsq", "peek", **options)) == ["one", "two"]
    assert [(row["exists"], row["waiting"]) for row in asked_of("nsq", "lag", **options)] == [(True, 2)]
    misspelt = options | {"channel": "misspelt"}
    assert [(row["exists"], row["waiting"]) for row in asked_of("nsq", "lag", **misspelt)] == [(False, None)]
    flags = [flag for option, value in options.items() for flag in ("-o", f"{option}={value}")]
    answer = spark_mq("doctor", "nsq", *flags)
    assert answer.exit_code == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok"] * 4
    assert [row["waiting"] for row in asked_of("nsq", "offsets", **options)] == [2]


def test_commands_on_tubemq(tubemq: TubeUnderTest, tmp_path: Path):
    topic = tubemq.topic(2)
    options = {"masters": tubemq.masters, "topic": topic}
    read = tubemq_options(tubemq.masters, topic, READ)
    send_to_partition(read, topic, 0, [b"one", b"two"])
    wait_until_flushed(read)
    assert [row["partitions"] for row in asked_of("tubemq", "topics", **options)] == [2]
    assert [row["partition"] for row in asked_of("tubemq", "partitions", **options)] == [0, 1]
    offsets = asked_of("tubemq", "offsets", **options)
    # Both are in one store and share its offsets.
    assert [int(str(row["latest"])) - int(str(row["earliest"])) for row in offsets] == [2 * INDEX_BYTES] * 2
    assert [row["messages_in_store"] for row in offsets] == [2, 2]
    read_to = {f"1:{topic}:{partition}": offsets[partition]["earliest"] for partition in range(2)}
    write_checkpoint(tmp_path, json.dumps({"version": 1, "positions": read_to, "from": read_to}))
    lag = asked_of("tubemq", "lag", "--checkpoint", str(tmp_path), **options)
    assert [row["messages_behind_in_store"] for row in lag] == [2, 2]
    assert [row["value"] for row in asked_of("tubemq", "peek", **options)] == ["one", "two"]
    flags = [flag for option, value in options.items() for flag in ("-o", f"{option}={value}")]
    answer = spark_mq("doctor", "tubemq", *flags)
    assert answer.exit_code == 0, answer.stderr
    assert [line.split()[0] for line in answer.stdout.splitlines()] == ["ok"] * 3


def test_the_value_is_a_record_of_inlong(tubemq: TubeUnderTest):
    topic = tubemq.topic(1)
    read = tubemq_options(tubemq.masters, topic, READ)
    send_to_partition(read, topic, 0, [inlong_msg(1, [("groupId=g&streamId=s", [b"a", b"b"])])])
    wait_until_flushed(read)
    options = {"masters": tubemq.masters, "topic": topic, "valueFormat": "inlong"}
    head = {"groupId": "g", "streamId": "s", "dt": None, "attributes": [["groupId", "g"], ["streamId", "s"]]}
    for command in ("peek", "tail"):
        assert [row["value"] for row in asked_of("tubemq", command, **options)] == [
            {**head, "data": data} for data in ("a", "b")
        ]
    flags = [flag for option, value in options.items() for flag in ("-o", f"{option}={value}")]
    answer = spark_mq("doctor", "tubemq", *flags)
    assert answer.exit_code == 0, answer.stderr
    assert answer.stdout.endswith("the first message can be decoded\n")
