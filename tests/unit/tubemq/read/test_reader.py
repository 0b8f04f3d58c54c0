"""Reads of a range from a scripted partition: progress of fetches, and missing messages."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import BrokerError, DataLossError, RequestTimeoutError, ServiceNotReadyError
from spark_mq_source.core.options import READ
from spark_mq_source.tubemq.client.bounds import Bounds
from spark_mq_source.tubemq.client.flow import FlowPace, FlowRules
from spark_mq_source.tubemq.offsets import TopicPartition
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.payload.layout import MissingMessagesError
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.commands import GetMessageResponse
from spark_mq_source.tubemq.protocol.error_codes import (
    DUPLICATE_PARTITION,
    FORBIDDEN,
    SERVER_CONSUME_SPEED_LIMIT,
    error_for_code,
)
from spark_mq_source.tubemq.read import reader as module
from spark_mq_source.tubemq.read.reader import MAX_LIMIT_MS, MAX_UNPROVEN, TubeMQRange
from tests.unit.standins import done
from tests.unit.tubemq.payload.test_messages import answer, message

TP, BROKER = TopicPartition("t", 1, 0), Broker(1, "host", 8123)
SCHEMA = pa.schema([("value", pa.binary())])

Fetch = tuple[int, int, int]
"""A fetch: its code, the offset where it began, and the offset after its commit."""


class Consumer:
    """A registered partition whose fetches are answered in order; `registered` has the offsets of registrations."""

    partition, address, client_id, group = BrokerPartition(BROKER, "t", 0), "host:8123", "id", "g"

    def __init__(self, fetches: Sequence[Fetch | tuple[int, int, int, bytes]], registered: Sequence[int] = ()) -> None:
        self.fetches, self.registered = list(fetches), list(registered)
        self.asked = self.registrations = 0

    def get_and_commit(self, *, escapes: bool = False) -> tuple[Future[Any], Future[Any]]:
        self.asked += 1
        self.escapes = escapes
        code, began, ended, *body = self.fetches.pop(0) if self.fetches else (404, -1, 0)
        limit_ms = ended if code == SERVER_CONSUME_SPEED_LIMIT else -1
        got = GetMessageResponse(code == 200, code, "said", began, limit_ms, body=memoryview(*body or (b"",)))
        return done(got), done(SimpleNamespace(curr_offset=-1 if code == SERVER_CONSUME_SPEED_LIMIT else ended))

    def register(self, *, curr_offset: int, **_: object) -> Future[Any]:
        self.registrations += 1
        at = self.registered.pop(0) if self.registered else curr_offset
        return done(SimpleNamespace(curr_offset=at, max_offset=10**6))


CLIENT: Any = SimpleNamespace(wait=lambda future, _: future.result(), flow_rules=FlowRules(), read_priority=1)


class World:
    """The environment of a test's fetches: the bounds of the partition, including memory, and a clock.

    Attributes:
        proofs: how many times the bounds were fetched, to prove that no message was removed.
        waits: seconds between fetches.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.first, self.last, self.now = 0, 10**6, 100.0
        self.proofs = 0
        self.waits: list[float] = []
        monkeypatch.setattr(module, "fetch_bounds", self._bounds)
        event = SimpleNamespace(wait=self._wait)
        monkeypatch.setattr(module, "threading", SimpleNamespace(Event=lambda: event))
        monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("spark_mq_source.net.retry.time", SimpleNamespace(monotonic=lambda: self.now))

    def _bounds(self, *_: object, **__: object) -> dict[TopicPartition, Bounds]:
        self.proofs += 1
        return {TP: Bounds(self.first, self.last)}

    def _wait(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def options_of(**given: str) -> TubeMQOptions:
    made = {"masters": "h:1", "topics": "t", "operationTimeout": "2s", "fetchesInFlight": "1"} | given
    return TubeMQOptions.from_spark(made, READ)


def cursor(consumer: Any, start: int = 0, **given: str) -> module._Cursor:
    return module._Cursor(CLIENT, options_of(**given), consumer, start)


@pytest.mark.parametrize(
    ("fetches", "end", "began", "position", "proofs", "asked"),
    [
        ([(200, 0, 280)], 560, 0, 280, 0, 1),
        # Empty fetches are passed over, up to the next one that reports where it began ...
        ([(404, -1, 280), (200, 280, 560)], 840, 280, 560, 1, 2),
        ([(404, -1, 280), (404, -1, 308), (200, 308, 560)], 840, 308, 560, 1, 3),
        # ... or to the end, or to a maximum number of them.
        ([(404, -1, 560)], 560, 0, 560, 1, 1),
        ([(404, -1, 532), (404, -1, 560)], 560, 532, 560, 1, 2),
        (
            [(404, -1, 28 * n) for n in range(1, 40)],
            2800,
            28 * (MAX_UNPROVEN - 1),
            28 * MAX_UNPROVEN,
            1,
            MAX_UNPROVEN,
        ),
        # A fetch without progress is repeated.
        ([(404, -1, 0), (404, -1, 0), (200, 0, 28)], 560, 0, 28, 0, 3),
    ],
)
def test_a_fetch_with_progress(
    world: World, fetches: list[Fetch], end: int, began: int, position: int, proofs: int, asked: int
) -> None:
    consumer = Consumer(fetches)
    made = cursor(consumer)
    made.next_fetch(end)
    assert (made.began, made.position, world.proofs, consumer.asked) == (began, position, proofs, asked)


def test_rules_of_the_group_delay_the_next_fetch_without_a_timeout(world: World) -> None:
    rules = [
        {"type": 0, "rule": [{"start": "00:00", "end": "24:00", "dltInM": 21, "limitInM": 0, "freqInMs": 300}]},
        {"type": 1, "rule": [{"zeroCnt": 1, "freqInMs": 5000}]},
        {"type": 3, "rule": [{"normFreqInMs": 400}]},
    ]
    pace = FlowPace(FlowRules(group=json.dumps(rules)), filtered=False)
    consumer = Consumer([(200, 0, 280), (404, -1, 280), (404, -1, 280), (200, 280, 560), (200, 560, 840)])
    made = module._Cursor(CLIENT, options_of(fetchesInFlight="8"), consumer, 0, pace)
    for _ in range(3):
        made.next_fetch(840)
    assert (made.position, consumer.asked, consumer.escapes) == (840, 5, True)
    assert [round(seconds, 3) for seconds in world.waits if seconds] == [0.4, 5.0, 5.0, 0.4]


@pytest.mark.parametrize(("first", "is_kept"), [(0, True), (28, True), (29, False), (56, False), (400, False)])
def test_skipped_fetches_require_that_their_messages_still_exist(world: World, first: int, is_kept: bool) -> None:
    world.first = first
    made = cursor(Consumer([(404, -1, 280), (404, -1, 560), (200, 560, 588)]), 28)
    if is_kept:
        made.next_fetch(10**4)
    else:
        with pytest.raises(ServiceNotReadyError, match=f"its first message is now at {first}, after 28, where"):
            made.next_fetch(10**4)


def test_a_fetch_that_began_elsewhere_is_refused(world: World) -> None:
    with pytest.raises(ServiceNotReadyError, match="a fetch began at 56, expected was 28"):
        cursor(Consumer([(200, 56, 84)]), 28).next_fetch(560)


@pytest.mark.parametrize(
    ("most", "end", "asked"),
    [("4", 29, 2), ("4", 28, 1), ("4", 56, 2), ("4", 57, 3), ("4", 10**4, 4), ("1", 10**4, 1), ("2", 10**4, 2)],
)
def test_fetches_in_flight_are_limited_by_the_estimated_rest(world: World, most: str, end: int, asked: int) -> None:
    consumer = Consumer([(200, n * 28 - 28, n * 28) for n in range(1, 40)])
    made = cursor(consumer, fetchesInFlight=most)
    made._advance = 28
    made._prefetch(end)
    assert consumer.asked == min(int(most), max(1, asked))


def test_behind_the_end_one_fetch_is_in_flight(world: World) -> None:
    consumer = Consumer([])
    cursor(consumer, 560, fetchesInFlight="8")._prefetch(560)
    assert consumer.asked == 1


def test_fetches_from_an_empty_broker_are_delayed_and_time_out(world: World) -> None:
    with pytest.raises(RequestTimeoutError, match=r"nothing to read at 0 for 2000 ms \(404: said\), though the range"):
        cursor(Consumer([])).next_fetch(560)
    assert [round(seconds, 2) for seconds in world.waits] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5, 0.5]


def test_progress_renews_the_timeout(world: World) -> None:
    fetches: list[Fetch] = [(404, -1, 0)] * 7 + [(404, -1, 28)] + [(404, -1, 28)] * 7 + [(200, 28, 56)]
    made = cursor(Consumer(fetches))
    made.next_fetch(560)
    assert (made.position, sum(world.waits) > 2) == (56, True)


@pytest.mark.parametrize(
    ("limit_ms", "waited"),
    [(0, 0.001), (1, 0.001), (700, 0.7), (MAX_LIMIT_MS, 10.0), (MAX_LIMIT_MS + 1, 10.0), (-1, 0.001)],
)
def test_flow_control_delays_fetches_without_a_timeout(world: World, limit_ms: int, waited: float) -> None:
    held = (SERVER_CONSUME_SPEED_LIMIT, -1, limit_ms)
    made = cursor(Consumer([held, held, held, (200, 0, 28)]))
    made.next_fetch(560)
    assert (made.position, world.waits) == (28, [waited] * 3)


# -- a range


def reader(
    consumer: Consumer,
    at: int = 0,
    most: int = 10**6,
    *,
    start: int = 0,
    end: int = 560,
    owns_store: bool = False,
    **given: str,
) -> module._RangeReader:
    task = TubeMQRange(TP, BROKER, start, end, owns_store=owns_store)
    made = module._RangeReader(CLIENT, options_of(**given), task, SCHEMA, Counters())
    response: Any = SimpleNamespace(curr_offset=at, max_offset=most)
    made._check(consumer, response)  # type: ignore[arg-type]
    return made


LOST, RESTARTED = "the messages between 280 and 308 are gone", "it has messages up to"


@pytest.mark.parametrize(
    ("at", "most", "memory", "lost", "span"),
    [
        (280, 560, 560, None, (280, 560)),
        (280, 588, 588, None, (280, 560)),
        (308, 560, 560, LOST, (308, 560)),
        (280, 532, 532, RESTARTED, (280, 532)),
        # The broker counts only what is flushed.
        (280, 532, 560, None, (280, 560)),
        (280, 252, 588, None, (280, 560)),
        (280, 252, 532, RESTARTED, (280, 532)),
        # Nothing remains: the range is complete.
        (280, 280, 280, RESTARTED, (280, 280)),
        (252, 252, 252, RESTARTED, (280, 280)),
        (252, 560, 560, RESTARTED, (280, 280)),
        (308, 532, 532, LOST, (308, 532)),
    ],
)
def test_the_bounds_of_a_range_at_a_broker(
    world: World, at: int, most: int, memory: int, lost: str | None, span: tuple[int, int]
) -> None:
    world.last = memory
    if lost is not None:
        with pytest.raises(DataLossError, match=lost):
            reader(Consumer([]), at, most, start=280)
    made = reader(Consumer([]), at, most, start=280, failOnDataLoss="false" if lost else "true")
    assert (made._done, made._end) == span
    assert made._is_finished() == (span[0] >= span[1])
    assert (world.proofs > 0) == (most < 560)


def rows(consumer: Consumer, **given: Any) -> list[bytes]:
    made = reader(consumer, **given)
    batches = [*made._drain(consumer), *made._rest()]  # type: ignore[arg-type]
    return [row["value"] for batch in batches for row in batch.to_pylist()]


def body(*numbers: int) -> bytes:
    return answer(*(message(b"%d" % n, message_id=n) for n in numbers))


def test_a_range_that_ends_with_a_fetch(world: World) -> None:
    consumer = Consumer([(200, 0, 280, body(0, 1)), (200, 280, 560, body(2))])
    assert rows(consumer) == [b"0", b"1", b"2"]
    assert (consumer.asked, consumer.registrations) == (2, 0)


@pytest.mark.parametrize(
    ("behind", "found"),
    [
        # A fetch past the end is truncated before the first message at or after the end.
        ([(200, 560, 588, body(2))], [b"0", b"1"]),
        ([(404, -1, 580), (200, 580, 588, body(2))], [b"0", b"1"]),
        # No message of this partition is before the fetch's end.
        ([(200, 560, 588, b"")], [b"0", b"1", b"2"]),
        ([(200, 560, 574, b""), (200, 574, 588, b"")], [b"0", b"1", b"2"]),
    ],
)
def test_a_fetch_past_the_end_is_truncated_there(world: World, behind: list[Any], found: list[bytes]) -> None:
    assert rows(Consumer([(200, 0, 588, body(0, 1, 2)), *behind])) == found


@pytest.mark.parametrize(
    "fetches",
    [
        [(200, 0, 84, body(0, 2))],
        # Messages at or after the end do not count,
        [(200, 0, 112, body(0, 2, 3)), (200, 84, 112, body(3))],
        # and a fetch that does not report its start does.
        [(404, -1, 28), (200, 28, 84, body(0, 2))],
    ],
)
def test_a_fetch_without_a_message_of_the_index_is_repeated_and_then_a_loss(
    world: World, caplog: pytest.LogCaptureFixture, fetches: list[Any]
) -> None:
    def drained(*, again: bool, **given: Any) -> list[bytes]:
        consumer = Consumer(list(fetches))
        made = reader(consumer, end=84, **given)
        made._distrusted = 0 if again else None
        batches = [*made._drain(consumer), *made._rest()]  # type: ignore[arg-type]
        return [row["value"] for batch in batches for row in batch.to_pylist()]

    words = r"the index has 3 messages from \d+ on, but the broker sent 2"
    with pytest.raises(MissingMessagesError, match=words):
        drained(again=False, owns_store=True)
    with pytest.raises(DataLossError, match=words + ": the topic's deletePolicy removed the others"):
        drained(again=True, owns_store=True)
    assert drained(again=True, owns_store=True, failOnDataLoss="false") == [b"0", b"2"]
    assert re.search(words, caplog.messages[-1])
    # What the index has of other partitions, and of messages that the broker filters, is unknown.
    assert drained(again=False, owns_store=False) == [b"0", b"2"]
    assert drained(again=False, owns_store=True, filters="a") == []


def test_a_deleted_end_is_detected_when_the_range_is_reopened(world: World) -> None:
    with pytest.raises(ServiceNotReadyError, match="registered at 588 and not at 560"):
        rows(Consumer([(200, 0, 588, body(0, 1))], registered=[588]))


@pytest.mark.parametrize(
    ("given", "sizes"),
    [
        ({}, [3]),
        ({"maxBatchRows": "3"}, [3]),
        ({"maxBatchRows": "2"}, [2, 1]),
        ({"maxBatchRows": "1"}, [1, 1, 1]),
        ({"maxBatchBytes": "1"}, [2, 1]),
    ],
)
def test_rows_of_a_batch(world: World, given: dict[str, str], sizes: list[int]) -> None:
    consumer = Consumer([(200, 0, 280, body(0, 1)), (200, 280, 560, body(2))])
    made = reader(consumer, **given)
    batches = [*made._drain(consumer), *made._rest()]  # type: ignore[arg-type]
    assert [batch.num_rows for batch in batches] == sizes


def test_bytes_of_a_batch() -> None:
    made = reader(Consumer([]))
    made._decoder.decode(body(0, 1), 0, None)
    size = made._decoder.nbytes
    assert [batch.num_rows for batch in made._taken(at_least_rows=3, at_least_bytes=size + 1)] == []
    assert [batch.num_rows for batch in made._taken(at_least_rows=3, at_least_bytes=size)] == [2]


def test_errors_after_which_a_range_continues() -> None:
    made = reader(Consumer([]))
    codes = [DUPLICATE_PARTITION, DUPLICATE_PARTITION + 1]
    errors = [BrokerError("no", code=code) for code in codes] + [ServiceNotReadyError("not yet"), DataLossError("gone")]
    for error in errors[:2]:
        error.retryable = False
    assert [made._may_pass(error) for error in errors] == [True, False, True, False]


@pytest.mark.parametrize(("code", "continues"), [(0, True), (301, True), (500, True), (FORBIDDEN, False)])
@pytest.mark.parametrize("is_committed", [True, False])
def test_after_a_failed_fetch_a_range_continues_where_it_began(
    world: World, monkeypatch: pytest.MonkeyPatch, code: int, continues: bool, is_committed: bool
) -> None:
    consumer = Consumer([])
    made = reader(consumer)
    failed, commit = Future[Any](), done(SimpleNamespace(curr_offset=280))
    failed.set_exception(error_for_code(code, "Ok", "broker"))
    if not is_committed:
        commit = Future[Any]()
        commit.set_exception(BrokerError("lost"))
    monkeypatch.setattr(consumer, "get_and_commit", lambda **_: (failed, commit))
    with pytest.raises(BrokerError, match=rf"broker: the server refused with .* \({code}\): Ok; ") as caught:
        list(made._drain(consumer))  # type: ignore[arg-type]
    assert (made._done, made._may_pass(caught.value)) == (0, continues)
    # A registration with such a code has a lasting cause.
    assert not made._may_pass(error_for_code(code, "no such partition", "broker"))
