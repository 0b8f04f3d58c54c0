"""A topic-partition in memory, and its client, which answers as broker 4.0.8 does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spark_mq_source.pulsar.client.admin import Ledger
from spark_mq_source.pulsar.client.consumer import Bounds
from spark_mq_source.pulsar.offsets import EARLIEST, Position, TopicPartition
from spark_mq_source.pulsar.protocol import commands as c
from tests.unit.pulsar.payload.test_messages import batch, entry, single

TOPIC = "persistent://public/default/t"
TP = TopicPartition(TOPIC, -1)


class Consumer:
    """A subscription that begins at an entry, or at the first remaining one after it.

    Attributes:
        cursor: the position that it reports; a test may move it.
    """

    address, taken_entries, taken_bytes = "broker:6650", 0, 1

    def __init__(self, topic: Topic, start: Position, burst: int) -> None:
        self.opened = Bounds(topic.cursor_at(start), topic.last)
        self.cursor, self.topic_partition, self.session = self.opened.first, TP, topic
        self.waiting = [topic.message(*at) for at in topic.entries if Position(*at) > self.cursor]
        self.granted: list[int] = []
        self._burst = burst

    def receive(self, *, max_bytes: int, timeout_seconds: float) -> Sequence[c.Message]:
        found, self.waiting = self.waiting[: self._burst], self.waiting[self._burst :]
        return found

    def grant(self, messages: int) -> None:
        self.granted.append(messages)

    def bounds_after_gap(self, *_: int) -> Bounds:
        return self.request_bounds()

    def request_bounds(self) -> Bounds:
        return Bounds(self.cursor, self.session.last)

    def leave(self) -> None:
        pass


class Topic:
    """A client of a cluster with one topic-partition.

    Args:
        ledgers: the number of messages of each entry, by ledger; the last ledger is open.
        tells_ends: whether a cursor past the end of a ledger is placed at its end, unlike in 2.10.1.
        burst: the number of entries delivered at once.
    """

    places_cursors = True

    def __init__(self, ledgers: Mapping[int, Sequence[int]], *, tells_ends: bool = True, burst: int = 2) -> None:
        self.ledgers = ledgers
        self.entries = [(ledger, n) for ledger, sizes in ledgers.items() for n in range(len(sizes))]
        self.last = Position(*self.entries[-1]) if self.entries else EARLIEST
        self.tells_ends, self.burst = tells_ends, burst
        self.opened: list[Consumer] = []
        self.looked_at: list[Position] = []

    def message(self, ledger: int, number: int) -> c.Message:
        values = [b"%d:%d:%d" % (ledger, number, n) for n in range(self.ledgers[ledger][number])]
        body = entry(values[0]) if len(values) == 1 else batch(*map(single, values))
        return c.Message(1, ledger, number, 0, (), memoryview(body))

    def rows(self, start: Position, end: Position) -> list[bytes]:
        """Return the values of a range."""
        return [
            b"%d:%d:%d" % (ledger, number, n)
            for ledger, number in self.entries
            for n in range(self.ledgers[ledger][number])
            if start < Position(ledger, number, n) <= end
        ]

    def cursor_at(self, start: Position) -> Position:
        """Return the position right before the first message of a subscription at this position."""
        if start.ledger not in self.ledgers:
            following = [ledger for ledger in self.ledgers if ledger > start.ledger]
            return Position(following[0], -1) if following else self.last
        at = start.entry - 1
        is_closed = start.ledger != max(self.ledgers)
        most = len(self.ledgers[start.ledger]) - 1 if self.tells_ends or not is_closed else at
        return Position(start.ledger, max(-1, min(at, most)))

    # -- the client

    def open_consumer(self, _: TopicPartition, start: Position) -> Consumer:
        self.opened.append(Consumer(self, start, self.burst))
        return self.opened[-1]

    def fetch_first_entries(self, starts: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        return self.sample_first_entries(starts, lambda _, entry: Position(entry.ledger_id, entry.entry_id))

    def sample_first_entries(self, starts: Mapping[TopicPartition, Position], take: Any) -> dict[TopicPartition, Any]:
        self.looked_at += starts.values()
        found = {tp: [at for at in self.entries if Position(*at) >= start] for tp, start in starts.items()}
        return {tp: take(tp, self.message(*at[0])) for tp, at in found.items() if at}

    def fetch_stored(self, positions: Mapping[TopicPartition, Position]) -> dict[TopicPartition, Position]:
        return {tp: self.cursor_at(Position(at.ledger, at.entry + 1)) for tp, at in positions.items()}

    def fetch_bounds(self, asked: Iterable[TopicPartition]) -> dict[TopicPartition, Bounds]:
        return dict.fromkeys(asked, Bounds(Position(min(self.ledgers), -1), self.last))

    def confirmed(self, look: Callable[[], dict[TopicPartition, Bounds]]) -> dict[TopicPartition, Bounds]:
        return look()

    def fetch_backlogs(self, starts: Mapping[Any, Position], ends: Mapping[Any, Position]) -> dict[Any, int]:
        return {tp: len(self.between(start, ends[tp])) for tp, start in starts.items()}

    def between(self, start: Position, end: Position) -> list[tuple[int, int]]:
        """Return the entries of a range, which include the entry of a start within a batch."""
        return [at for at in self.entries if start < Position(*at) and at <= (end.ledger, end.entry)]

    def fetch_ledgers(self, _: TopicPartition) -> list[Ledger]:
        return [
            Ledger(ledger, len(sizes), sum(len(self.message(ledger, n).body) for n in range(len(sizes))))
            for ledger, sizes in self.ledgers.items()
        ]

    def wait(self, answer: Bounds, _: str) -> Bounds:
        return answer
