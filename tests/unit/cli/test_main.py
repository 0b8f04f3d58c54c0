"""Commands on the embedded NSQ broker: their output, and the channels and messages that they do not change."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pytest
from typer.testing import CliRunner

from spark_mq_source.cli.main import app
from spark_mq_source.testing import NsqBroker, NsqLookupd
from tests.fix_brokers import wait_until

if TYPE_CHECKING:
    from click.testing import Result


@pytest.fixture
def broker() -> Iterator[NsqBroker]:
    with NsqBroker() as broker:
        yield broker


def spark_mq(*arguments: str, **environment: str) -> Result:
    return CliRunner(env=environment).invoke(app, arguments)


def at(broker: NsqBroker, *more: str) -> list[str]:
    return ["nsq", "-o", f"nsqlookupdHttpAddresses={broker.lookupd_address}", *more]


def rows(*arguments: str) -> list[dict[str, object]]:
    answer = spark_mq(*arguments, "--json")
    assert answer.exit_code == 0, answer.stderr
    return [json.loads(line) for line in answer.stdout.splitlines()]


def channels(broker: NsqBroker, topic: str) -> list[str]:
    (found,) = broker.stats(topic)["topics"]
    return [one["channel_name"] for one in found["channels"]]


def test_the_version_is_that_of_the_package():
    assert spark_mq("--version").stdout == f"spark-mq-source {version('spark-mq-source')}\n"


def test_topics_without_options_are_all_topics(broker: NsqBroker):
    broker.create_channel("flights", "spark")
    broker.create_channel("flights", "archive")
    broker.create_topic("weather")
    both = [
        {"topic": "flights", "nsqds": 1, "channels": ["archive", "spark"]},
        {"topic": "weather", "nsqds": 1, "channels": []},
    ]
    assert rows("topics", *at(broker)) == both
    assert rows("topics", "nsq", "-o", f"nsqdTcpAddresses={broker.tcp_address}", "-o", http(broker)) == both
    assert rows("topics", *at(broker, "-t", "flights")) == both[:1]


def http(broker: NsqBroker) -> str:
    return f"nsqdHttpAddresses={broker.http_address}"


def test_a_list_that_would_lack_topics_is_an_error(broker: NsqBroker):
    elsewhere = f"nsqdHttpAddresses={broker.lookupd_address}"
    answer = spark_mq("topics", "nsq", "-o", f"nsqdTcpAddresses={broker.tcp_address}", "-o", elsewhere)
    assert answer.exit_code == 1
    assert f"cannot list all topics: {broker.tcp_address}: " in answer.stderr


def test_only_pulsar_has_namespaces(broker: NsqBroker):
    answer = spark_mq("topics", *at(broker, "--namespace", "public/default"))
    assert (answer.exit_code, answer.stderr) == (
        2,
        "spark-mq: format nsq has no namespaces: remove --namespace\n",
    )


def test_the_topic_can_be_given_by_either_option(broker: NsqBroker):
    broker.create_channel("flights", "c")
    broker.publish("flights", b"one")
    given = at(broker, "-o", "channel=c")
    assert [row["waiting"] for row in rows("offsets", *given, "-t", "flights")] == [1]
    by_option = spark_mq("peek", *given, "-o", "topic=flights", "-n", "1").stdout
    assert by_option.endswith(" one\n")
    assert spark_mq("peek", *given, "--topic", "flights", "-n", "1").stdout == by_option


def test_peek_creates_no_channel_unless_requested(broker: NsqBroker):
    broker.create_topic("flights")
    broker.publish("flights", b"one")
    peek = ["peek", *at(broker, "-t", "flights", "-o", "channel=c", "-n", "1")]
    answer = spark_mq(*peek)
    assert answer.exit_code == 1
    assert "set createChannel=true" in answer.stderr
    assert channels(broker, "flights") == []
    assert spark_mq(*peek, "-o", "createChannel=true").stdout.endswith(" one\n")
    assert channels(broker, "flights") == ["c"]


def test_peek_creates_no_channel_on_an_nsqd_without_it():
    with NsqLookupd() as lookupd, NsqBroker(lookupd=lookupd) as one, NsqBroker(lookupd=lookupd) as other:
        # A channel that exists first is created with the topic, as in nsqd.
        other.create_topic("flights")
        one.create_channel("flights", "c")
        one.publish("flights", b"one")
        other.publish("flights", b"other")
        given = [*at(one, "-t", "flights", "-o", "channel=c"), "-o", "idleTimeout=100ms"]
        assert [row["value"] for row in rows("peek", *given)] == ["one"]
        assert channels(other, "flights") == []
        other.create_channel("flights", "c")
        assert sorted(str(row["value"]) for row in rows("peek", *given)) == ["one", "other"]


def test_peek_refuses_an_nsqd_that_does_not_list_its_channels(broker: NsqBroker):
    broker.create_channel("flights", "c")
    given = at(broker, "-t", "flights", "-o", "channel=c", "-o", f"hostMap={broker.http_address}=127.0.0.1:9")
    answer = spark_mq("peek", *given)
    assert answer.exit_code == 1
    assert re.search(r"does not report whether it has the channel \(.+\); set createChannel=true", answer.stderr)


@pytest.mark.parametrize("more", [[], ["--follow", "--last", "5"]])
def test_nsq_has_no_last_messages(broker: NsqBroker, more: list[str]):
    broker.create_channel("flights", "spark")
    answer = spark_mq("tail", *at(broker, "-t", "flights"), *more)
    assert answer.exit_code == 2
    assert "nsq keeps no past messages: pass --follow without --last" in answer.stderr
    assert channels(broker, "flights") == ["spark"]


def test_tail_does_not_take_the_backlog_of_the_first_channel(broker: NsqBroker):
    broker.create_topic("flights")
    broker.publish("flights", b"one")
    answer = spark_mq("tail", "--follow", *at(broker, "-t", "flights"))
    assert answer.exit_code == 2
    assert "has no channel: the first channel of a topic takes the messages waiting in it" in answer.stderr
    assert broker.depth("flights") == 1


def test_tail_prints_messages_until_ctrl_c_and_leaves_no_channel(broker: NsqBroker):
    """The command runs as a process that gets a keyboard's signal; its exit status is that of kcat."""
    broker.create_channel("flights", "spark")
    broker.publish("flights", b"before")
    with following(*at(broker, "-t", "flights", "-o", "channel=spark", *VALUES)) as process:
        said = process.stderr.readline()
        assert re.search(
            r"from a separate channel, spark-mq-tail-\w+#ephemeral, which nsqd deletes when this command ends", said
        )
        wait_until(lambda: len(channels(broker, "flights")) == 2, "the channels")
        broker.publish("flights", b"one", b"two")
        assert [process.stdout.readline() for _ in range(2)] == ["one\n", "two\n"]
        broker.publish("flights", b"three")
        assert process.stdout.readline() == "three\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        assert (process.stdout.read(), process.stderr.read()) == ("", "")
    wait_until(lambda: channels(broker, "flights") == ["spark"], "the channels")
    assert broker.depth("flights", "spark") == 4


VALUES = ["-f", r"%s\n"]
"""Format that prints values only."""


@contextmanager
def following(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that follows a topic, and end it."""
    command = [sys.executable, "-m", "spark_mq_source.cli.main", "tail", "--follow", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_tail_of_decoded_values_needs_no_channel(broker: NsqBroker):
    broker.create_channel("flights", "spark")
    decoding = ["-o", "valueFormat=json", "-o", "valueSchema=a int", "-o", "flatten=true"]
    with following(*at(broker, "-t", "flights", *decoding, *VALUES)) as process:
        assert "from a separate channel" in process.stderr.readline()
        wait_until(lambda: len(channels(broker, "flights")) == 2, "the channels")
        broker.publish("flights", b'{"a": 1}')
        assert process.stdout.readline() == '{"a":1}\n'


def test_times_that_python_lacks_are_numbers(broker: NsqBroker):
    """Spark has years up to 294247."""
    fields = {"at": LATE, "all": [LATE, 0], "by": {"k": LATE}, "day": 10**9}
    types: list[Any] = ["long", {"type": "array", "items": "long"}, {"type": "map", "values": "long"}, "int"]

    def schema(types: list[Any]) -> dict[str, Any]:
        made = [{"name": name, "type": type_} for name, type_ in zip(fields, types, strict=True)]
        return {"type": "record", "name": "flight", "fields": made}

    written = io.BytesIO()
    fastavro.schemaless_writer(written, schema(types), fields)
    moment, day = {"type": "long", "logicalType": "timestamp-micros"}, {"type": "int", "logicalType": "date"}
    read = schema([moment, {"type": "array", "items": moment}, {"type": "map", "values": moment}, day])
    broker.create_channel("flights", "c")
    broker.publish("flights", written.getvalue())
    decoding = ["-o", "valueFormat=avro", "-o", f"valueSchema={json.dumps(read)}", "-o", "channel=c"]
    (row,) = rows("peek", *at(broker, "-t", "flights", *decoding, "-n", "1"))
    assert row["value"] == {
        "at": LATE, "all": [LATE, "1970-01-01T00:00:00+00:00"], "by": [["k", LATE]], "day": 10**9,
    }  # fmt: skip
    answer = spark_mq("doctor", *at(broker, "-t", "flights", *decoding))
    assert answer.exit_code == 0, answer.stderr


LATE = 2**62


def test_an_error_ends_a_tail(broker: NsqBroker):
    broker.create_channel("flights", "spark")
    with following(*at(broker, "-t", "flights")) as process:
        process.stderr.readline()
        wait_until(lambda: len(channels(broker, "flights")) == 2, "the channels")
        broker.publish("flights", b"one")
        assert process.stdout.readline().endswith(" one\n")
        broker.stop()
        assert process.wait(60) == 1
        assert process.stderr.read().startswith("spark-mq: nsq topic flights, channel spark-mq-tail-")


def test_exactly_one_format_is_required(broker: NsqBroker, tmp_path: Path):
    missing = spark_mq("topics")
    assert (missing.exit_code, missing.stderr) == (
        2,
        "spark-mq: FORMAT is missing: give one of pulsar-native, tubemq, nsq, or --profile NAME\n",
    )
    unknown = spark_mq("topics", "kafka")
    assert (unknown.exit_code, "unknown format kafka" in unknown.stderr) == (2, True)


PROFILES = """
[dev]
format = "nsq"
nsqlookupdHttpAddresses = "{lookupd}"
topic = "flights"
channel = "c"
maxInFlight = 5
tls = false
authSecret = {{ env = "NSQ_SECRET" }}
"""


def written(broker: NsqBroker, folder: Path) -> dict[str, str]:
    """Write the profiles; return the environment with which a command finds them on every platform."""
    environment = {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / ".config"), "NSQ_SECRET": "t0psecret"}
    (folder / ".config" / "spark-mq").mkdir(parents=True)
    (folder / ".config" / "spark-mq" / "profiles.toml").write_text(PROFILES.format(lookupd=broker.lookupd_address))
    return environment


def test_a_profile_has_the_format_and_the_options(broker: NsqBroker, tmp_path: Path):
    environment = written(broker, tmp_path)
    broker.create_channel("flights", "c")
    broker.create_channel("weather", "c")
    broker.publish("flights", b"one")
    offsets = spark_mq("--profile", "dev", "offsets", "--json", **environment)
    assert json.loads(offsets.stdout)["waiting"] == 1, offsets.stderr
    by_variable = spark_mq("offsets", "-t", "weather", "--json", SPARK_MQ_PROFILE="dev", **environment)
    assert json.loads(by_variable.stdout)["topic"] == "weather"
    named = spark_mq("--profile", "dev", "offsets", "nsq", "-o", "channel=d", "--json", **environment)
    assert json.loads(named.stdout)["channel"] == "d"
    other = spark_mq("--profile", "dev", "offsets", "tubemq", **environment)
    assert (other.exit_code, other.stderr) == (
        2,
        "spark-mq: profile dev has the format nsq, not tubemq: leave FORMAT out, or use another profile\n",
    )


def test_profiles_are_listed_without_secrets(broker: NsqBroker, tmp_path: Path):
    environment = written(broker, tmp_path)
    listed = spark_mq("profiles", "--json", **environment)
    row = json.loads(listed.stdout)
    assert (row["profile"], row["format"], row["options"]["authSecret"]) == ("dev", "nsq", {"env": "NSQ_SECRET"})
    table = spark_mq("profiles", COLUMNS="300", **environment)
    assert '"authSecret":{"env":"NSQ_SECRET"}' in table.stdout
    assert "t0psecret" not in listed.output + table.output


def test_without_profiles_the_path_of_their_file_is_printed(tmp_path: Path):
    answer = spark_mq("profiles", HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))
    assert (answer.exit_code, answer.stdout) == (0, "")
    assert answer.stderr == f"there are no profiles in {tmp_path / 'spark-mq' / 'profiles.toml'}\n"
    assert spark_mq("profiles", "--json", HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path)).output == ""


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("spark-mq --profile d", ["dev"]),
        ("spark-mq --profile dev lag -o nsqdT", ["nsqdTcpAddresses="]),
        ("spark-mq --profile dev peek -t ", ["flights", "weather"]),
        ("spark-mq peek nsq -o nsqlookupdHttpAddresses={lookupd} --topic w", ["weather"]),
        ("spark-mq peek nsq -t w", []),
        ("spark-mq tail nsq --fol", ["--follow"]),
    ],
)
def test_profiles_and_topics_are_completed(broker: NsqBroker, tmp_path: Path, typed: str, names: list[str]):
    environment = written(broker, tmp_path)
    broker.create_topic("flights")
    broker.create_topic("weather")
    asked = {"_SPARK_MQ_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    typed = typed.format(lookupd=broker.lookupd_address)
    found = CliRunner(env=environment | asked | {"_TYPER_COMPLETE_ARGS": typed}).invoke(app, [], prog_name="spark-mq")
    assert [line.split("\t")[0] for line in found.stdout.split("\n") if line] == names
