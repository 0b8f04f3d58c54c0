"""Topic names, positions and their JSON."""

import itertools
import json
import pickle

import pytest

from spark_mq_source.pulsar.offsets import (
    EARLIEST,
    LATEST,
    PerTopic,
    Position,
    TopicPartition,
    decode_offsets,
    encode_offsets,
    parse_offsets,
    parse_position,
    parse_timestamps,
    parse_topic,
)

T = "persistent://public/default/t"
INT64 = 2**63 - 1


def test_positions_are_totally_ordered():
    ordered = [
        EARLIEST,
        Position(0, -1),
        Position(0, 0, 0),
        Position(0, 0, 1),
        Position(0, 0, 2**31 - 1),
        Position(0, 0),
        Position(0, 1, 0),
        Position(1, 0, 5),
        Position(1, 0),
        Position(2**53, 1),
        Position(2**53 + 1, 0),
        Position(INT64, INT64, 3),
        LATEST,
    ]
    for (i, a), (j, b) in itertools.product(enumerate(ordered), repeat=2):
        assert (a < b, a <= b, a > b, a >= b, a == b) == (i < j, i <= j, i > j, i >= j, i == j), (a, b)


@pytest.mark.parametrize("other", [(1, 2, 3), None, 5, "1:2:3"])
def test_a_position_compares_with_positions_only(other):
    position = Position(1, 2, 3)
    assert position != other
    for compare in (position.__lt__, position.__le__, position.__gt__, position.__ge__):
        assert compare(other) is NotImplemented
    with pytest.raises(TypeError):
        _ = position < other


def test_positions_are_hashed_pickled_and_shown():
    position = Position(12, 3, 4)
    assert pickle.loads(pickle.dumps(position)) == position  # noqa: S301 - our own bytes
    assert len({position, Position(12, 3, 4), Position(12, 3)}) == 2
    assert [str(one) for one in (position, Position(12, 3), EARLIEST, LATEST)] == [
        "12:3:4",
        "12:3",
        "earliest",
        "latest",
    ]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("t", T),
        ("public/default/t", T),
        (T, T),
        ("t-partition-3", T + "-partition-3"),
        ("acme/prod.eu/a:b=c", "persistent://acme/prod.eu/a:b=c"),
        ("persistent://a/b/with space", "persistent://a/b/with space"),
        ("流れ", "persistent://public/default/流れ"),
    ],
)
def test_topic_names(text, name):
    assert parse_topic(text) == name
    assert parse_topic(name) == name
    assert parse_topic(name, stored=False) == name


def test_the_name_of_a_topic_that_stores_nothing():
    name = "non-persistent://public/default/t-partition-3"
    assert parse_topic(name, stored=False) == name
    assert TopicPartition.parse(name) == TopicPartition("non-persistent://public/default/t", 3)
    with pytest.raises(ValueError, match="expected name, tenant/namespace/name"):
        parse_topic("non-persistent://t", stored=False)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("non-persistent://public/default/t", "nothing can be read back"),
        ("topic://public/default/t", "scalable topic of Pulsar 5"),
        ("segment://public/default/t", "scalable topic of Pulsar 5"),
        ("kafka://t", "kafka:// is not a kind of topic"),
        ("persistent://t", "expected name, tenant/namespace/name"),
        ("default/t", "expected name, tenant/namespace/name"),
        ("persistent://prop/us-west/ns/t", "cluster"),
        ("a/b/c/d/e", "expected name"),
        ("/default/t", "the tenant must"),
        ("a b/default/t", "the tenant must"),
        ("public/dé/t", "the namespace must"),
        ("public//t", "the namespace must"),
        ("public/default/", "is empty"),
        ("", "is empty"),
        (" t", "spaces around"),
        ("t\n", "spaces around"),
        ("a\x00b", "control characters"),
    ],
)
def test_invalid_names(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_topic(text)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        (T, (T, -1)),
        (T + "-partition-0", (T, 0)),
        (T + "-partition-12", (T, 12)),
        (T + "-partition-2147483647", (T, 2**31 - 1)),
        (T + "-partition-0-partition-1", (T + "-partition-0", 1)),
        (T + "-partition-2147483648", (T + "-partition-2147483648", -1)),
        (T + "-partition-" + "9" * 5000, (T + "-partition-" + "9" * 5000, -1)),
        (T + "-partition-01", (T + "-partition-01", -1)),
        (T + "-partition-", (T + "-partition-", -1)),
        (T + "-partition-1\n", (T + "-partition-1\n", -1)),
        (T + "-partition-٣", (T + "-partition-٣", -1)),
        (T + "-partition-1x", (T + "-partition-1x", -1)),
    ],
)
def test_partitions(name, parts):
    assert TopicPartition.parse(name) == TopicPartition(*parts)
    assert str(TopicPartition(*parts)) == name


def test_offsets_as_words():
    assert parse_offsets("earliest") == PerTopic(everywhere=EARLIEST)
    assert parse_offsets("LATEST") == PerTopic(everywhere=LATEST)
    assert parse_offsets("latest").at(T) == LATEST


def test_offsets_in_json():
    text = (
        '{"persistent://public/default/t-partition-0": {"ledger": 12, "entry": 3, "batch": -1},'
        ' "u": {"0": {"ledger": 9223372036854775807, "entry": 0, "batch": 7}, "1": "earliest", "10": "latest"},'
        ' "acme/prod/v": "earliest", "w": {"ledger": 4, "entry": 5}}'
    )
    assert parse_offsets(text).named == {
        T + "-partition-0": Position(12, 3),
        "persistent://public/default/u-partition-0": Position(INT64, 0, 7),
        "persistent://public/default/u-partition-1": EARLIEST,
        "persistent://public/default/u-partition-10": LATEST,
        "persistent://acme/prod/v": EARLIEST,
        "persistent://public/default/w": Position(4, 5),
    }


def test_offsets_of_a_partition_take_precedence_over_its_topic():
    offsets = parse_offsets('{"t": "earliest", "t-partition-1": {"ledger": 1, "entry": 2}}')
    assert offsets.at(T + "-partition-0") == EARLIEST
    assert offsets.at(T + "-partition-1") == Position(1, 2)
    assert offsets.at(T) == EARLIEST
    assert offsets.at(T + "x") is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected earliest, latest or a JSON object"),
        ("earlist", "expected earliest, latest or a JSON object"),
        ('["t"]', "expected earliest, latest or a JSON object"),
        ("{", "not JSON: "),
        ('{"t": "earliest"} x', "not JSON: "),
        ('{"a":' * 100_000, "too deep"),
        ('{"t": {"ledger": ' + "9" * 5000 + ', "entry": 1}}', "too many digits"),
        ("{}", "names no topic"),
        ('{"t": {}}', '"t": an empty JSON object names no partition'),
        ('{"t": "earliest", "t": "latest"}', 'duplicate key "t"'),
        (
            '{"t": "earliest", "public/default/t": "latest"}',
            "duplicate topic or partition persistent://public/default/t",
        ),
        (
            '{"t": {"0": "earliest"}, "t-partition-0": "earliest"}',
            "duplicate topic or partition persistent://public/default/t-partition-0",
        ),
        ('{"t": {"0": "earlist"}}', '"t, partition 0": expected "earliest"'),
        ('{"t": {"00": "earliest"}}', '"00" is not the number of a partition'),
        ('{"t": {"-1": "earliest"}}', '"-1" is not the number of a partition'),
        ('{"t": {"entry": 1}}', '"entry" is not the number of a partition'),
        ('{"t": {"ledger": 1}}', 'expected "earliest"'),
        ('{"t": {"ledger": 1, "entry": 2, "index": 3}}', 'expected "earliest"'),
        ('{"t": {"ledger": 1.0, "entry": 2}}', '"ledger" must be a whole number'),
        ('{"t": {"ledger": NaN, "entry": 2}}', '"ledger" must be a whole number'),
        ('{"t": {"ledger": true, "entry": 2}}', '"ledger" must be a whole number'),
        ('{"t": {"ledger": "1", "entry": 2}}', '"ledger" must be a whole number'),
        ('{"t": {"ledger": 9223372036854775808, "entry": 2}}', "from -1 to 9223372036854775807"),
        ('{"t": {"ledger": 1, "entry": -2}}', '"entry" must be a whole number from -1'),
        (
            '{"t": {"ledger": 1, "entry": 2, "batch": 2147483648}}',
            '"batch" must be a whole number from -1 to 2147483647',
        ),
        ('{"t": {"ledger": -1, "entry": 0}}', 'an "entry" needs a "ledger"'),
        ('{"t": {"ledger": 1, "entry": -1, "batch": 0}}', 'a "batch" needs an "entry"'),
        ('{"t": [8, 12]}', "not a message id: it has a ledger and an entry"),
        ('{"t": []}', "not a message id: it has a ledger and an entry"),
        ('{"t": [8, 12, 16]}', "not a message id"),
        ('{"t": [8, 12, 16, 300]}', "expected a message id as a list of bytes"),
        ('{"t": [8, 12, 16, true]}', "expected a message id as a list of bytes"),
        ('{"t": [8, 12, 16, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1]}', "does not exist"),
        ('{"t": 5}', 'expected "earliest"'),
        ('{"t": null}', 'expected "earliest"'),
        ('{"non-persistent://a/b/t": "earliest"}', "nothing can be read back"),
    ],
)
def test_offsets_refused(text, reason):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is compared below
        parse_offsets(text)
    assert reason in str(caught.value)


# As pulsar-spark 3.1.1.4 wrote them on broker 4.0.8: its __messageId, and the lists of bytes in its checkpoint.
EARLIEST_ID = [8, *[-1] * 9, 1, 16, *[-1] * 9, 1]
LATEST_ID = [8, *[-1] * 8, 127, 16, *[-1] * 8, 127]


@pytest.mark.parametrize(
    ("message_id", "before", "entry"),
    [
        ([8, 3, 16, 1], Position(3, 0), Position(3, 1)),
        ([8, 3, 16, 1, 32, 2], Position(3, 0), Position(3, 1)),
        ([8, 3, 16, 1, 32, 2, 48, 4], Position(3, 0), Position(3, 1)),
        ([8, 3, 16, 0, 24, 2], Position(3, -1), Position(3, 0)),
        ([8, -84, 2, 16, 101], Position(300, 100), Position(300, 101)),
        ([8, 172, 2, 16, 101], Position(300, 100), Position(300, 101)),
        (EARLIEST_ID, EARLIEST, EARLIEST),
        (LATEST_ID, LATEST, LATEST),
    ],
)
def test_a_message_id_of_pulsar_spark_begins_and_ends_with_its_whole_entry(message_id, before, entry):
    text = json.dumps({T: message_id})
    assert parse_offsets(text).named == {T: before}
    assert parse_offsets(text, is_end=True).named == {T: entry}


def test_the_text_of_a_checkpoint():
    positions = {TopicPartition(T, 1): Position(INT64, 0, 2), TopicPartition(T, 0): EARLIEST}
    text = json.dumps(encode_offsets(positions))
    assert text == (
        '{"version": 1, "positions": {"persistent://public/default/t-partition-0": {"ledger": -1, "entry": -1, '
        '"batch": -1}, "persistent://public/default/t-partition-1": {"ledger": 9223372036854775807, "entry": 0, '
        '"batch": 2}}}'
    )
    assert decode_offsets(json.loads(text)) == positions
    assert parse_offsets(text).named == {str(tp): position for tp, position in positions.items()}
    assert decode_offsets(encode_offsets({})) == {}
    assert parse_position({"entry": 3, "ledger": 12}) == Position(12, 3)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (None, "not from this package"),
        ([], "not from this package"),
        ({"positions": {}}, "not from this package"),
        ({"version": 2, "positions": {}}, "offsets of version 2, but this release supports only version 1"),
        ({"version": "1", "positions": {}}, "offsets of version '1'"),
        ({"version": True, "positions": {}}, "offsets of version True"),
        ({"version": 1}, 'must have the keys "version" and "positions"'),
        ({"version": 1, "positions": {}, "more": 1}, 'must have the keys "version" and "positions"'),
        ({"version": 1, "positions": []}, '"positions" must be a JSON object'),
        ({"version": 1, "positions": {"t": {"ledger": 1}}}, '"t": expected'),
        ({"version": 1, "positions": {"a/b": {"ledger": 1, "entry": 2}}}, '"a/b": expected name'),
    ],
)
def test_checkpoints_refused(document, reason):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is compared below
        decode_offsets(document)
    assert reason in str(caught.value)


def test_a_user_may_name_a_topic_version():
    assert parse_offsets('{"version": "earliest"}').named == {"persistent://public/default/version": EARLIEST}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0),
        ("1357035300000", 1357035300000),
        ("1970-01-01T00:00:00Z", 0),
        ("2013-01-01T05:15:00-05:00", 1357035300000),
        ("2013-01-01 10:15:00.5+00:00", 1357035300500),
        # rounded up: the first message at or after 0.0001 ms is that of 1 ms
        ("1970-01-01T00:00:00.000001Z", 1),
        ("1970-01-01T00:00:00.001000Z", 1),
        ("1970-01-01T00:00:00.001001Z", 2),
    ],
)
def test_times(text, ms):
    assert parse_timestamps(text) == PerTopic(everywhere=ms)
    named = {"t": 5, "u": {"1": text}}
    assert parse_timestamps(json.dumps(named)).named == {T: 5, T[:-1] + "u-partition-1": ms}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "expected milliseconds"),
        ("-1", "expected milliseconds"),
        ("1.5", "expected milliseconds"),
        ("9223372036854775808", "expected milliseconds"),
        ("yesterday", "expected milliseconds"),
        ("2013-01-01T05:15:00", "without a zone"),
        ("2013-01-01", "without a zone"),
        ("1969-12-31T23:59:59Z", "before 1970"),
        ("0001-01-01T00:00:00+14:00", "before 1970"),
        ('{"t": "2013-01-01"}', '"t": a time without a zone'),
        ('{"t": true}', '"t": expected milliseconds'),
        ('{"t": 1.5}', '"t": expected milliseconds'),
        ('{"t": {"ledger": 1, "entry": 2}}', '"ledger" is not the number of a partition'),
        ("{}", "names no topic"),
    ],
)
def test_times_refused(text, reason):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is compared below
        parse_timestamps(text)
    assert reason in str(caught.value)
