from __future__ import annotations

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, STREAM, WRITE, Scope
from spark_mq_source.nsq.options import NsqOptions, parse_address
from spark_mq_source.nsq.protocol.commands import parse_name

READING = {"nsqdTcpAddresses": "h", "topic": "t", "channel": "c", "maxRows": "1"}
STREAMING = {"nsqdTcpAddresses": "h", "topic": "t", "channel": "c", "walDir": "/wal"}
WRITING = {"nsqdTcpAddresses": "h"}


def parse(scope: Scope = READ, **changed: str) -> NsqOptions:
    given = {READ: READING, STREAM: STREAMING, WRITE: WRITING}[scope]
    return NsqOptions.from_spark({**given, **changed}, scope)


@pytest.mark.parametrize("name", ["a", "x" * 64, "A.b_c-9", "t#ephemeral", "x" * 54 + "#ephemeral"])
def test_valid_names(name: str) -> None:
    assert parse_name(name) == name
    assert parse(topic=name, channel=name).topic == name


@pytest.mark.parametrize(
    "name", ["", "x" * 65, "x" * 55 + "#ephemeral", "a b", "a\n", "é", "a!", "#ephemeral", "a#eph", "a#ephemeralx"]
)
def test_invalid_names(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 letters"):
        parse_name(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h", ("h", 4150)),
        ("h:1", ("h", 1)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[::1]", ("::1", 4150)),
        ("[fe80::1]:9", ("fe80::1", 9)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text, 4150) == expected


@pytest.mark.parametrize("text", ["", "h:", ":1", "h:0", "h:70000", "h:x", "::1", "http://h", "u@h", "h/p", "h h"])
def test_invalid_addresses(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_address(text, 4150)


def test_lookups_are_urls() -> None:
    options = parse(nsqlookupdHttpAddresses="a, b:9, http://c/, https://d, https://[::1]:7")
    assert options.nsqlookupd_http_addresses == (
        "http://a:4161",
        "http://b:9",
        "http://c:80",
        "https://d:443",
        "https://[::1]:7",
    )
    with pytest.raises(OptionError, match="expected host:port, http://host:port"):
        parse(nsqlookupdHttpAddresses="nsq://a")


def test_the_host_map_maps_hosts_or_addresses() -> None:
    assert parse(hostMap="a=b, c:1=d:2").host_map == (("a", "b"), ("c:1", "d:2"))
    for wrong in ("a", "a=", "=b", "a:1=b", "a=b:1", "a=b=c:x"):
        with pytest.raises(OptionError, match="hostMap"):
            parse(hostMap=wrong)


@pytest.mark.parametrize(
    ("scope", "changed", "words"),
    [
        (READ, {"maxRows": "0"}, "at least 1"),
        (READ, {"deflateLevel": "3"}, "deflateLevel has no meaning without compression=deflate"),
        (READ, {"compression": "deflate", "deflateLevel": "10"}, "from 1 to 9"),
        (READ, {"compression": "gzip"}, "none or deflate or snappy"),
        (READ, {"sampleRate": "100"}, "from 0 to 99"),
        (READ, {"msgTimeout": "10ms"}, "from 1s"),
        (READ, {"heartbeatInterval": "10ms"}, "from 1s"),
        (READ, {"heartbeatInterval": "-1"}, "nsqd refuses a consumer without heartbeats"),
        (READ, {"outputBufferSize": "-2"}, "outputBufferSize"),
        (READ, {"walDir": "/w"}, "walDir needs runId"),
        (READ, {"runId": "r"}, "runId needs walDir"),
        (READ, {"trustCerts": "k"}, "trustCerts has no meaning without TLS: set tls=true"),
        (READ, {"lookupdAuthorization": "true"}, "lookupdAuthorization needs authSecret"),
        (READ, {"nsqdHttpAddresses": "a,b"}, "one for each of nsqdTcpAddresses"),
        (READ, {"maxAttempts": "3", "onMaxAttempts": "deadLetter"}, "go together"),
        (READ, {"maxAttempts": "3", "deadLetterTopic": "d"}, "go together"),
        (READ, {"onMaxAttempts": "fail"}, "no meaning without maxAttempts"),
        (
            READ,
            {"maxAttempts": "3", "onMaxAttempts": "deadLetter", "deadLetterTopic": "t"},
            "would get its own messages back",
        ),
        (STREAM, {"maxRows": "1"}, "has no meaning when reading a stream"),
        (READ, {"hostMapp": "c"}, "did you mean hostMap"),
    ],
)
def test_contradictory_options_are_refused(scope: Scope, changed: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        parse(scope, **changed)


def test_a_read_whose_number_of_messages_is_unknown_is_not_split() -> None:
    given = {name: value for name, value in READING.items() if name != "maxRows"} | {"idleTimeout": "1s"}
    with pytest.raises(OptionError, match="maxRecordsPerPartition needs maxRows"):
        NsqOptions.from_spark({**given, "maxRecordsPerPartition": "9"}, READ)


def test_all_missing_options_are_in_one_error() -> None:
    with pytest.raises(OptionError) as caught:
        NsqOptions.from_spark({}, READ)
    for words in (
        "set nsqlookupdHttpAddresses or nsqdTcpAddresses",
        "set exactly one of topic, topics, topicsPattern",
        "channel: required",
        "set maxRows, maxSeconds or idleTimeout",
    ):
        assert words in str(caught.value)
    with pytest.raises(OptionError, match="walDir: required but not set"):
        NsqOptions.from_spark({}, STREAM)
