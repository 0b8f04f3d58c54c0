"""What a stream decides by itself: offsets as a checkpoint holds them."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import DataLossError, OptionError
from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.client.session import Bounds
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.read.stream import PulsarStream, _pin_positions, offsets_from_json, offsets_to_json
from spark_mq_source.spark.base import MQStreamReader

TOPIC = "persistent://public/default/t"

partitions = st.builds(TopicPartition, st.sampled_from([TOPIC, "persistent://a/b/c"]), st.integers(0, 40))
whole = st.builds(Position, st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(-1, 2**31 - 1))
positions = st.one_of(whole, st.just(EARLIEST), st.builds(Position, st.integers(0, 2**63 - 1), st.just(-1)))


@given(st.dictionaries(partitions, positions, max_size=10))
def test_offsets_survive_json(offsets):
    text = json.dumps(offsets_to_json(offsets))
    assert offsets_from_json(json.loads(text)) == offsets
    assert json.dumps(offsets_to_json(dict(reversed(offsets.items())))) == text


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"positions": {}},
        {"version": 2, "positions": {}},
        {"version": "1", "positions": {}},
        {"version": 1, "positions": {}, "more": 1},
        {"version": 1, "positions": {TOPIC: {"ledger": 1}}},
        {"version": 1, "positions": {TOPIC: {"ledger": -1, "entry": 3}}},
    ],
)
def test_what_is_no_checkpoint_of_ours_is_refused(document):
    with pytest.raises(OptionError, match="pulsar-native: the checkpoint cannot be used: "):
        offsets_from_json(document)


def test_a_reader_goes_to_executors_without_its_connections():
    options = PulsarOptions.from_spark({"serviceurl": "pulsar://127.0.0.1:1", "topic": "t"}, STREAM)
    reader = MQStreamReader(PulsarFormat(), options, None)
    assert isinstance(reader.stream, PulsarStream)
    copy = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own
    assert copy._stream is None
    assert copy._options == options
    assert reader._stream is reader.stream
    copy.stop()
    reader.stop()


class FakeStream(PulsarStream):
    """A stream of one topic whose last entry is `stored`."""

    def __init__(self, stored: Position, **options: str) -> None:
        given = {"serviceUrl": "pulsar://localhost:1", "topic": "t"} | options
        super().__init__(PulsarOptions.from_spark(given, STREAM))
        self._present = lambda: ([TopicPartition(TOPIC, -1)], {})
        self._client.fetch_stored = lambda asked: {at: min(position, stored) for at, position in asked.items()}

    def planned(self, start: Position, end: Position) -> list[str]:
        at = TopicPartition(TOPIC, -1)
        return [str(task) for task in self.ranges(offsets_to_json({at: start}), offsets_to_json({at: end}))]


def test_a_trigger_that_ends_before_its_start_is_loss_if_the_start_is_not_there():
    # What Spark before 4.2 makes of a topic that was restored: it asks `latest` without a start.
    start, end = Position(40, 7), Position(35, 2)
    with pytest.raises(DataLossError, match=f"{TOPIC}: position 40:7 does not exist"):
        FakeStream(end).planned(start, end)
    assert FakeStream(end, failOnDataLoss="false").planned(start, end) == [f"{TOPIC} (earliest, 35:2]"]


def test_a_trigger_that_ends_before_its_start_is_empty_if_the_start_is_there():
    # The transaction behind the start was aborted, and the start is a marker: neither is the last message any more.
    assert FakeStream(Position(12, 3)).planned(Position(12, 1), Position(12, 0)) == []


AT = TopicPartition(TOPIC, -1)
READ, FIRST = Position(12, 9), Position(14, -1)
"""The position read last, whose ledger is gone, and where the first one that is left begins."""


@pytest.mark.parametrize("watched", [Position(12, 8), READ, Position(12, 10), Position(13, 9), FIRST])
@pytest.mark.parametrize("following", [None, Position(13, 0), FIRST, Position(14, 0)])
def test_a_ledger_that_is_gone_is_loss_if_a_cursor_has_passed_it_and_nothing_tells_what_followed(watched, following):
    stream = FakeStream(READ)
    stream._client.fetch_bounds = lambda asked: dict.fromkeys(asked, Bounds(FIRST, Position(14, 5)))
    stream._watch = lambda _: {AT: Bounds(watched, Position(14, 5))}
    stream._watchers = {AT: None}
    stream._limiter.following = lambda *_: following
    if watched > READ and (following is None or following <= FIRST):
        with pytest.raises(DataLossError, match=f"{TOPIC}: messages after 12:9 up to 14:-1 are gone"):
            stream._check_trimmed(AT, READ)
        assert stream._successors == {}
    else:
        stream._check_trimmed(AT, READ)
        assert stream._successors == {(AT, READ): FIRST}


@pytest.mark.parametrize(
    ("position", "is_looked_at"), [(Position(14, -1), False), (Position(14, 0), True), (Position(14, 1), False)]
)
def test_a_watcher_right_at_the_position_read_last_may_mean_that_its_ledger_is_gone(position, is_looked_at):
    stream = FakeStream(Position(14, 9))
    looked_at = []
    stream._check_trimmed = lambda _, at: looked_at.append(at)
    first = position if is_looked_at else FIRST
    assert stream._checked({AT: position}, {AT: Bounds(first, Position(14, 9))}) == {AT: position}
    assert looked_at == [position] * is_looked_at


@pytest.mark.parametrize(
    ("cursor", "begin"),
    [
        # Right before the first entry: the start was that, or there was nothing, and the entry is read.
        (Position(14, -1), EARLIEST),
        (Position(14, 0), Position(14, 1)),
        (Position(14, 3), Position(14, 4)),
        # The end of the batch and the last message: this is no place where a batch began.
        (Position(14, 4), None),
        (Position(14, 5), None),
    ],
)
@pytest.mark.parametrize("last", [Position(14, 4), Position(14, 9)])
def test_batch_0_done_over_begins_where_the_subscription_has_been_placed(cursor, begin, last):
    stream = FakeStream(last, subscription="s")
    stream._open_pins = lambda *_, **__: None
    stream._ask_pins = lambda asked: dict.fromkeys(asked, cursor)
    stream._client.fetch_bounds = lambda asked: dict.fromkeys(asked, Bounds(FIRST, last))
    stream._client.fetch_first_entries = lambda asked: {
        at: c.Message(0, first.ledger, first.entry, 0, (), memoryview(b"")) for at, first in asked.items()
    }
    assert stream._pinned_starts({AT: Position(14, 4)}) == ({} if begin is None else {AT: begin})


@pytest.mark.parametrize("last", [EARLIEST, Position(14, -1), Position(14, 4), Position(14, 5), Position(14, 6)])
def test_a_trigger_never_ends_before_it_begins(last):
    """The last message can be before the position read last: what was behind it was aborted, or removed."""
    stream, begin = FakeStream(Position(14, 5)), Position(14, 5)
    stream._partitions = lambda _: [AT]
    stream._watch = lambda _: {AT: Bounds(FIRST, last)}
    start = offsets_to_json({AT: begin})
    assert offsets_from_json(stream.latest(start)) == {AT: max(begin, last)}
    assert offsets_from_json(stream.newest) == {AT: max(begin, last)}


def test_a_subscription_keeps_the_entry_of_each_position():
    """Without it the next trigger could not tell whether its ledger had more."""
    kept = {(7, 3): (7, 2), (7, 1): (7, 0), (7, 0): (7, -1), (7, -1): (7, -1)}
    parts = {at: TopicPartition(TOPIC, n) for n, at in enumerate(kept)}
    positions = {tp: Position(*at) for at, tp in parts.items()} | {AT: EARLIEST}
    assert _pin_positions(positions) == {parts[at]: Position(*before) for at, before in kept.items()}
