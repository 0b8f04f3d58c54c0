"""Positions keep their order in JSON, and parsers raise no other error than ValueError."""

import json

from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_mq_source.pulsar.offsets import (
    EARLIEST,
    LATEST,
    Position,
    TopicPartition,
    decode_offsets,
    encode_offsets,
    parse_offsets,
    parse_timestamps,
    parse_topic,
)

# small numbers are often equal, large ones show a loss in a float
NUMBERS = st.integers(-1, 2) | st.integers(2**53 - 1, 2**53 + 2) | st.integers(-1, 2**63 - 1)
POSITIONS = st.builds(
    Position, ledger=NUMBERS, entry=NUMBERS, batch=st.integers(-1, 2) | st.integers(-1, 2**31 - 1)
).filter(lambda one: (one.ledger >= 0 or one.entry < 0) and (one.entry >= 0 or one.batch < 0)) | st.sampled_from(
    [EARLIEST, LATEST]
)
NAMES = st.text(min_size=1).filter(
    lambda text: text == text.strip() and "/" not in text and not any(ord(c) < 32 or ord(c) == 127 for c in text)
)
TOPICS = st.builds("persistent://{}/{}/{}".format, st.sampled_from(["a", "b.c"]), st.sampled_from(["n", "-"]), NAMES)
# The name of a topic may end like that of a partition.
TOPIC_PARTITIONS = st.builds(TopicPartition, TOPICS, st.integers(-1, 2**31 - 1)).map(str).map(TopicPartition.parse)
T = TopicPartition("persistent://public/default/t", -1)


def through_json(position):
    return decode_offsets(json.loads(json.dumps(encode_offsets({T: position}))))[T]


@settings(deadline=None)  # a slow machine must not fail it
@given(POSITIONS, POSITIONS)
def test_order_survives_json(a, b):
    c, d = through_json(a), through_json(b)
    assert (c, d) == (a, b)
    assert (a < b, a <= b, a == b, a >= b, a > b) == (c < d, c <= d, c == d, c >= d, c > d)


@settings(deadline=None)  # a slow machine must not fail it
@given(POSITIONS, POSITIONS, POSITIONS)
def test_order_is_total(a, b, c):
    assert [a < b, a == b, a > b].count(True) == 1
    assert (a <= b) == (not a > b)
    assert (a >= b) == (not a < b)
    assert not (a <= b <= c) or a <= c
    assert EARLIEST <= a <= LATEST


@settings(deadline=None)  # a slow machine must not fail it
@given(POSITIONS, POSITIONS)
def test_a_whole_entry_is_after_its_messages_and_before_the_next_entry(a, b):
    whole = Position(a.ledger, a.entry)
    assert a <= whole
    if whole < b:
        assert (b.ledger, b.entry) > (a.ledger, a.entry)


@settings(deadline=None)  # a slow machine must not fail it
@given(st.dictionaries(TOPIC_PARTITIONS, POSITIONS, min_size=1))
def test_checkpoints_survive_json_and_are_valid_as_options(positions):
    document = encode_offsets(positions)
    assert decode_offsets(json.loads(json.dumps(document))) == positions
    assert parse_offsets(json.dumps(document)).named == {str(tp): position for tp, position in positions.items()}
    assert json.dumps(document) == json.dumps(encode_offsets(dict(reversed(positions.items()))))


@settings(deadline=None)  # a slow machine must not fail it
@given(TOPICS, st.integers(-1, 2**31 - 1))
def test_partition_names_survive_parsing(topic, partition):
    name = str(TopicPartition(topic, partition))
    assert parse_topic(name) == name
    assert str(TopicPartition.parse(name)) == name
    if partition >= 0:
        assert TopicPartition.parse(name) == TopicPartition(topic, partition)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["earliest", "0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["t", "0", "ledger", "entry", "batch", "version", "positions", "a/b"]), inner)
    ),
    max_leaves=10,
)


@settings(deadline=None)  # a slow machine must not fail it
@given(st.text() | st.text().map("{".__add__) | JSON.map(json.dumps))
@example("9" * 6000)
@example('{"t":' + "9" * 6000 + "}")
@example("[" * 200_000)
def test_any_text_is_read_or_refused_with_a_message(text):
    for parse in (parse_offsets, parse_timestamps, parse_topic):
        try:
            parse(text)
        except ValueError as error:
            assert str(error)  # noqa: PT017 - both outcomes are right


@settings(deadline=None)  # a slow machine must not fail it
@given(JSON)
def test_any_checkpoint_is_read_or_refused_with_a_message(document):
    try:
        decode_offsets(document)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - both outcomes are right
