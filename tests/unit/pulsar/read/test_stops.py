"""The end position of a stream that ends at a time, and when it is known."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read import stops
from spark_mq_source.pulsar.read.stops import LATE_MS, Stops

TP = TopicPartition("persistent://public/default/t", -1)
AT_MS = 1_000_000
OPTIONS = PulsarOptions.from_spark({"serviceurl": "pulsar://h", "topic": "t", "endingtimestamp": str(AT_MS)}, STREAM)


class Topic:
    """The client of `Stops`: it returns the position before the first message at or after a time."""

    def __init__(self) -> None:
        self.before = Position(7, 3)
        self.asked = 0
        self.delivered: Position | None = None
        self.starts: list[dict[TopicPartition, Position]] = []

    def fetch_positions_at(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, Position]:
        self.asked += len(times)
        return dict.fromkeys(times, self.before)

    def fetch_first_entries(self, starts: Mapping[TopicPartition, Position], _: int) -> dict[TopicPartition, Position]:
        self.starts.append(dict(starts))
        return dict.fromkeys(starts, self.delivered) if self.delivered else {}

    def fetch_stored(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        return dict(positions)


def test_a_time_is_resolved_after_a_later_message_or_a_minute(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(stops.time, "time", lambda: clock[0])
    topic: Any = Topic()
    ends = Stops(topic, OPTIONS)
    for _ in range(2):  # no later message: all are read, and the same last message is looked up once
        assert ends.apply({}, {TP: Position(7, 3)}) == {TP: Position(7, 3)}
    assert not ends.are_reached({TP: Position(7, 3)})
    assert topic.asked == 1
    assert ends.apply({}, {TP: Position(7, 9)}) == {TP: Position(7, 3)}
    assert ends.are_reached({TP: Position(7, 3)})
    assert not ends.are_reached({TP: Position(7, 2)})
    idle = Stops(topic, OPTIONS)
    assert idle.apply({}, {TP: Position(7, 3)}) == {TP: Position(7, 3)}
    clock[0] = (AT_MS + LATE_MS + 1) / 1000
    assert not idle.are_reached({TP: Position(7, 3)})
    assert idle.apply({}, {TP: Position(7, 3)}) == {TP: Position(7, 3)}
    assert idle.are_reached({TP: Position(7, 3)})
    assert idle.apply({}, {TP: Position(8, 0)}) == {TP: Position(7, 3)}


@pytest.mark.parametrize(
    ("end", "before", "looked_from"),
    [
        (EARLIEST, Position(5, -1), EARLIEST),
        # The last entry is a marker of a transaction.
        (Position(4, 97), Position(4, 99), Position(4, 98)),
        # The ledger that was read is deleted.
        (Position(4, 99), Position(5, -1), Position(4, 100)),
    ],
    ids=["empty", "marker", "deleted"],
)
def test_a_topic_without_a_later_message_ends_too(
    monkeypatch: pytest.MonkeyPatch, end: Position, before: Position, looked_from: Position
):
    clock = [0.0]
    monkeypatch.setattr(stops.time, "time", lambda: clock[0])
    topic: Any = Topic()
    topic.before, topic.delivered = before, Position(9, 9)
    ends = Stops(topic, OPTIONS)
    assert ends.apply({}, {TP: end}) == {TP: end}
    assert not ends.are_reached({TP: end})
    clock[0] = (AT_MS + LATE_MS + 1) / 1000
    # The broker did not report a message that it has.
    assert ends.apply({}, {TP: end}) == {TP: end}
    assert not ends.are_reached({TP: end})
    topic.delivered = None
    assert ends.apply({}, {TP: end}) == {TP: end}
    assert ends.are_reached({TP: end})
    assert topic.starts == [{TP: looked_from}] * 2


def test_a_pattern_that_matches_no_topic_ends_with_its_time(monkeypatch: pytest.MonkeyPatch):
    clock = [0.0]
    monkeypatch.setattr(stops.time, "time", lambda: clock[0])
    ends = Stops(Topic(), OPTIONS)  # type: ignore[arg-type]
    assert not ends.are_reached({})
    clock[0] = (AT_MS + LATE_MS + 1) / 1000
    assert ends.are_reached({})
