"""What a stream decides by itself: offsets as a checkpoint holds them."""

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.errors import DataLossError, OptionError
from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.stream import PulsarStream, offsets_from_json, offsets_to_json
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
