"""Options of tubemq, and errors of invalid ones."""

from __future__ import annotations

import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.options import READ, STREAM, WRITE, Scope
from spark_mq_source.core.shared_options import OnCorrupt
from spark_mq_source.tubemq.offsets import EARLIEST, TopicPartition
from spark_mq_source.tubemq.options import Assignment, TubeMQOptions, parse_masters

SECRET = "do-not-show-me"


def made(scope: Scope = READ, **options: str) -> TubeMQOptions:
    return TubeMQOptions.from_spark({"masters": "m", "topic": "t"} | options, scope)


def refusal(scope: Scope = READ, **options: str) -> str:
    with pytest.raises(OptionError) as caught:
        made(scope, **options)
    sentence = str(caught.value)
    assert sentence.startswith("format 'tubemq': ")
    assert SECRET not in sentence
    return sentence.removeprefix("format 'tubemq': ")


@pytest.mark.parametrize(
    ("text", "masters"),
    [
        ("h", [("h", 8715)]),
        ("h:1", [("h", 1)]),
        ("a.b-c:8000, 10.0.0.1", [("a.b-c", 8000), ("10.0.0.1", 8715)]),
    ],
)
def test_masters(text: str, masters: list[tuple[str, int]]):
    assert list(parse_masters(text)) == masters


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("h:0", "masters='h:0': 0 is not a port"),
        ("h:99999", "masters='h:99999': 99999 is not a port"),
        ("tube://h:1", "masters='tube://h:1': 'tube://h:1' is not host or host:port"),
        ("::1", "masters='::1': '::1' is not host or host:port"),
        ("h,h:8715", "masters='h,h:8715': duplicate address h:8715"),
        ("h,,i", "masters='h,,i': expected a comma-separated list without empty names"),
    ],
)
def test_invalid_masters(text: str, sentence: str):
    assert refusal(masters=text) == sentence


def test_one_of_topic_and_topics():
    assert made(topics="b,a", topic=None).topic_names == ("a", "b")  # type: ignore[arg-type]
    assert TubeMQOptions.from_spark({"masters": "m"}, WRITE).topic is None
    with pytest.raises(OptionError, match=r"set exactly one of topic, topics, topicsPattern$"):
        TubeMQOptions.from_spark({"masters": "m"}, READ)
    assert "topic='1t': a topic's name begins with a letter" in refusal(topic="1t")
    with pytest.raises(OptionError, match="topics='a,a': duplicate topic a"):
        TubeMQOptions.from_spark({"masters": "m", "topics": "a,a"}, READ)


def test_groups_are_equal_if_topics_and_filters_are():
    one = made(topics="a,b", topic=None, filters="x,y")  # type: ignore[arg-type]
    same = made(topics="b,a", topic=None, filters="y,x")  # type: ignore[arg-type]
    other = made(topics="a,b", topic=None)  # type: ignore[arg-type]
    assert one.group_name == same.group_name != other.group_name
    assert made(group="mine").group_name == "mine"


@pytest.mark.parametrize("text", ["1g", "g g", "g:1", "g" * 101, "g#"])
def test_invalid_groups(text: str):
    assert f"group='{text}': expected a letter" in refusal(group=text)


@pytest.mark.parametrize("text", ["a b", "a#b", "a;b", "a:b", "a@b"])
def test_invalid_filters(text: str):
    assert "contains a character that a message type cannot have" in refusal(filters=text)


def test_filters_of_single_topics():
    more = {"topics": "a,b", "filters": "x"}
    one = made(topic=None, **more, topicFilters='{"b": ["y", "z"], "a": []}')  # type: ignore[arg-type]
    assert [one.filters_of(topic) for topic in "abc"] == [(), ("y", "z"), ("x",)]
    assert one.group_name != made(topic=None, **more).group_name  # type: ignore[arg-type]
    assert "topicFilters names c, which this query does not read" in refusal(topicFilters='{"c": ["x"]}')
    for text in ('{"t": "x"}', '{"t": [1]}', "[]"):
        assert "topicFilters" in refusal(topicFilters=text)


def test_a_stream_in_a_group_requires_its_name():
    assert "assignment=server shares the topics with the other members of a group: set group" in refusal(STREAM)
    assert made(STREAM, assignment="client").group is None
    assert made(STREAM, group="g").assignment is Assignment.SERVER
    assert "assignment: has no meaning when reading a batch" in refusal(assignment="client")
    assert "assignment='master': expected server or client" in refusal(STREAM, assignment="master", group="g")


def test_a_query_cannot_choose_positions_of_a_group():
    offsets = '{"t": "earliest"}'
    more = {"group": "g", "sessionMembers": "2"}
    assert "sessionMembers needs assignment=server, and startingOffsets as JSON" in refusal(STREAM, **more)
    assert "sessionMembers needs sessionKey" in refusal(STREAM, **more, startingOffsets=offsets)
    assert made(STREAM, **more, startingOffsets=offsets, sessionKey="k").session_members == 2
    assert "waitForTopic needs assignment=client" in refusal(STREAM, group="g", waitForTopic="5m")
    assert "endingOffsets needs assignment=client" in refusal(STREAM, group="g", endingOffsets='{"t": 28}')
    assert "latest is no end of a stream" in refusal(STREAM, assignment="client", endingOffsets="latest")
    assert "topicsPattern needs assignment=client" in refusal(STREAM, group="g", topicsPattern="t.*")
    assert made(STREAM, assignment="client", startingOffsets=offsets).starting_offsets is not None
    wanted = made(STREAM, group="g", startingOffsets="earliest").starting_offsets
    assert wanted is not None
    assert wanted.everywhere == EARLIEST


def test_an_empty_range_is_refused():
    assert "startingOffsets: latest would read nothing in a batch" in refusal(startingOffsets="latest")
    assert "endingOffsets: earliest would read nothing" in refusal(endingOffsets='{"t": "earliest"}')
    text = refusal(startingOffsets='{"1:t:0": 56}', endingOffsets='{"1:t:0": 28}')
    assert text == "startingOffsets is past endingOffsets for 1:t:0: 56 and 28"
    wanted = made(startingOffsets='{"1:t:0": 28}', endingOffsets='{"1:t:0": 28}').ending_offsets
    assert wanted is not None
    assert wanted.at(TopicPartition("t", 1, 0)) == 28


def test_options_of_security_depend_on_each_other():
    assert refusal(authPassword=SECRET) == "authUser and authPassword go together: set both"
    both = {"authUser": "u", "authPassword": SECRET, "authPlugin": "m:f"}
    assert refusal(**both) == "authUser and authPlugin contradict each other: set only one"
    assert refusal(trustCerts="c") == "trustCerts has no meaning without TLS: set tls=true"
    assert made(tls="true", trustCerts="c", clientCert="d").client_cert == "d"


def test_zones():
    assert made(messageTimeZone="Asia/Shanghai").message_time_zone == "Asia/Shanghai"
    assert "unknown time zone 'Asia/Nowhere' on this machine" in refusal(messageTimeZone="Asia/Nowhere")


@pytest.mark.parametrize("read", [{"topic": "dead"}, {"topicsPattern": "d.*"}])
def test_the_dead_letter_topic_must_not_be_read(read: dict[str, str]) -> None:
    given = {"masters": "m", "onCorrupt": "deadLetter", "deadLetterTopic": "dead"}
    with pytest.raises(OptionError, match="deadLetterTopic: must differ from a topic that is read"):
        TubeMQOptions.from_spark(given | read, READ)
    assert TubeMQOptions.from_spark(given | {"topicsPattern": "flights.*"}, READ).dead_letter_topic == "dead"


def test_wait_for_disk_applies_only_to_dead_letters_of_a_read() -> None:
    assert made(waitForDisk="true").dead_letter_topic is None  # logged and ignored, as an option of writes
    options = made(waitForDisk="true", onCorrupt="deadletter", deadLetterTopic="dead")
    assert (options.on_corrupt, options.wait_for_disk) == (OnCorrupt.DEAD_LETTER, True)
