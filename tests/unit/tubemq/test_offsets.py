"""Offsets of TubeMQ in options and checkpoints, and errors of invalid ones."""

from __future__ import annotations

import json

import pytest

from spark_mq_source.tubemq.offsets import (
    EARLIEST,
    LATEST,
    TopicPartition,
    Trigger,
    decode_offsets,
    encode_offsets,
    parse_offsets,
    parse_topic,
)

TP = TopicPartition("t", 1, 0)


def test_offsets_as_words():
    assert parse_offsets("earliest").at(TP) == EARLIEST
    assert parse_offsets("LATEST").at(TP) == LATEST


def test_offsets_of_a_partition_take_precedence_over_its_topic():
    wanted = parse_offsets('{"t": "earliest", "1:t:0": 56, "2:u:10000": "latest"}')
    assert wanted.at(TP) == 56
    assert wanted.at(TopicPartition("t", 1, 1)) == EARLIEST
    assert wanted.at(TopicPartition("u", 2, 10_000)) == LATEST
    assert wanted.at(TopicPartition("u", 1, 10_000)) is None


def test_a_checkpoint_can_be_pasted():
    text = json.dumps(encode_offsets(Trigger({TP: 84}, {TP: 28})))
    assert parse_offsets(text).at(TP) == 84


@pytest.mark.parametrize(
    ("name", "value", "is_one"),
    [
        ("2147483647:t:0", 0, True),
        ("1:t:2147483647", 28, True),
        ("2147483648:t:0", 0, False),
        ("1:t:2147483648", 0, False),
        ("1:t:0", LATEST - LATEST % 28 - 28, True),
        ("1:t:0", LATEST + 28 - LATEST % 28, False),
        ("1:t:0", LATEST, False),
        ("1:t:0", 2**63 - 1, False),
    ],
)
def test_the_largest_numbers(name: str, value: int, is_one: bool):
    text = json.dumps({name: value})
    if is_one:
        assert parse_offsets(text).partitions == {TopicPartition.parse(name): value}
    else:
        with pytest.raises(ValueError, match="expected"):
            parse_offsets(text)


def test_topics_may_be_named_as_the_keys_of_a_checkpoint():
    assert parse_offsets('{"version": "latest", "positions": 28}').topics == {"version": LATEST, "positions": 28}
    assert parse_offsets('{"version": 28}').topics == {"version": 28}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("soon", "expected earliest, latest or a JSON object that begins with {"),
        ("{", "not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("{}", "an empty JSON object names no topic"),
        ('{"t": 0, "t": 28}', 'duplicate key "t"'),
        ('{"t": 27}', '"t": expected "earliest", "latest" or an offset, a multiple of 28'),
        ('{"t": -28}', '"t": expected "earliest", "latest" or an offset, a multiple of 28'),
        ('{"t": 28.0}', '"t": expected "earliest", "latest" or an offset, a multiple of 28'),
        ('{"t": true}', '"t": expected "earliest", "latest" or an offset, a multiple of 28'),
        ('{"t": {"0": 28}}', '"t": expected "earliest", "latest" or an offset, a multiple of 28'),
        ('{"1:t": 28}', '"1:t": expected brokerId:topic:partition, such as 1:flights:0'),
        ('{"x:t:0": 28}', '"x:t:0": expected brokerId:topic:partition, such as 1:flights:0'),
        ('{"1:t:01": 28}', '"1:t:01": expected brokerId:topic:partition, such as 1:flights:0'),
        ('{"1:t:4294967296": 28}', '"1:t:4294967296": expected brokerId:topic:partition, such as 1:flights:0'),
        (
            '{"version": 2, "positions": {}, "from": {}}',
            "offsets of version 2, but this release supports only version 1",
        ),
        ('{"t": ' + "9" * 5000 + "}", "not JSON: number has too many digits"),
        ('{"t": ' + "[" * 100_000 + "}", "JSON is nested too deeply"),
    ],
)
def test_invalid_offsets_are_an_error(text: str, sentence: str):
    with pytest.raises(ValueError, match=r".+") as caught:
        parse_offsets(text)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ({"positions": {}}, 'offsets without a "version" are not from this package'),
        ([], 'offsets without a "version" are not from this package'),
        ({"version": 1, "positions": {}}, 'offsets must have exactly the keys "version", "positions" and "from"'),
        ({"version": True, "positions": {}, "from": {}}, "offsets of version True"),
        ({"version": 1, "positions": [], "from": {}}, '"positions" is not a JSON object'),
        ({"version": 1, "positions": {"1:t:0": 3}, "from": {}}, '"1:t:0": expected "earliest", "latest" or an offset'),
    ],
)
def test_an_invalid_checkpoint_is_an_error(document: object, sentence: str):
    with pytest.raises(ValueError, match=r".+") as caught:
        decode_offsets(document)
    assert str(caught.value).startswith(sentence)


@pytest.mark.parametrize("name", ["", "1t", "t t", "t:1", "t" * 65, "t\n", "\u00e4"])
def test_invalid_names(name: str):
    with pytest.raises(ValueError, match="a topic's name begins with a letter"):
        parse_topic(name)


def test_equal_offsets_have_equal_text():
    other = TopicPartition("t", 2, 0)
    one, two = Trigger({TP: 28, other: 0}, {TP: 0}), Trigger({other: 0, TP: 28}, {TP: 0})
    assert json.dumps(encode_offsets(one)) == json.dumps(encode_offsets(two))
