"""A queue task with scripted consumers: permits, limits, acknowledgements, and retries of acknowledgements."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import (
    BrokerError,
    CorruptMessageError,
    MQSourceError,
    RequestTimeoutError,
    ResourceBusyError,
    ServiceNotReadyError,
    TooManyAttemptsError,
)
from spark_mq_source.core.options import READ, STREAM
from spark_mq_source.net.write_ahead import Slot, open_folder, write_plan
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.read import queue_reader as module
from spark_mq_source.pulsar.read.permits import FIRST_GRANT_MESSAGES
from spark_mq_source.pulsar.read.queue_log import log_batch
from spark_mq_source.pulsar.read.queue_reader import (
    FAILOVER_SECONDS,
    PATIENCE_SECONDS,
    SPARE_PERMITS,
    STANDBY_SECONDS,
    PulsarQueueRange,
    QueueSource,
    read_queue,
    subscription_of,
)
from spark_mq_source.pulsar.read.recent import EntryRanges
from tests.unit.pulsar.payload.test_messages import batch, entry, single
from tests.unit.standins import Clock

TIMED = module

TOPIC = "persistent://public/default/t"
LOST = ServiceNotReadyError("the connection is lost")
SCHEMA = pa.schema([("value", pa.binary())])


def message(number: int, messages: int = 1, *, ledger: int = 7, redeliveries: int = 0, **more: Any) -> c.Message:
    value = b"%d" % number
    body = entry(value, **more) if messages == 1 else batch(*[single(value)] * messages)
    return c.Message(1, ledger, number, redeliveries, (), memoryview(body))


def chunk(number: int, part: int, of: int, uuid: str = "u") -> c.Message:
    return message(number, uuid=uuid, chunk_id=part, num_chunks_from_msg=of, total_chunk_msg_size=of)


def corrupt(number: int) -> c.Message:
    return message(number)._replace(body=memoryview(entry(b"v")[:-1] + b"w"))


class Consumer:
    """A consumer that delivers its script, where each burst is messages or an error, and then nothing.

    Attributes:
        calls: GRANT, ACK and CLOSE in order: (kind, number of messages or entries).
        timeouts: the timeouts of `receive`.
        answers: to ACKs, in order: None, an error, or "never"; then None.
    """

    address = "broker:6650"
    was_replaced = False
    taken_entries = taken_bytes = unfinished_bytes = 0

    def __init__(self, *script: Sequence[c.Message] | MQSourceError, answers: Sequence[Any] = ()) -> None:
        self.script, self.answers = list(script), list(answers)
        self.calls: list[tuple[str, Any]] = []
        self.timeouts: list[float] = []
        self.is_active = True

    def receive(self, *, max_bytes: int, timeout_seconds: float) -> Sequence[c.Message]:
        self.timeouts.append(timeout_seconds)
        burst = self.script.pop(0) if self.script else []
        if isinstance(burst, MQSourceError):
            raise burst
        return burst

    def grant(self, messages: int) -> None:
        self.calls.append(("grant", messages))

    def acknowledge(
        self, entries: Sequence[tuple[int, int]], damage: c.ValidationError | None = None
    ) -> Future[object]:
        numbers = [number for _, number in entries]
        return self._acknowledged("ack", numbers) if damage is None else self._acknowledged(damage.name, numbers)

    def acknowledge_until(self, entry_: tuple[int, int]) -> Future[object]:
        return self._acknowledged("until", entry_[1])

    def _acknowledged(self, what: str, entries: object) -> Future[object]:
        self.calls.append((what, entries))
        answer, future = self.answers.pop(0) if self.answers else None, Future[object]()
        if isinstance(answer, MQSourceError):
            future.set_exception(answer)
        elif answer is None:
            future.set_result(None)
        return future

    def close(self, *, timeout_seconds: float) -> None:
        self.calls.append(("close", None))

    def of(self, *kinds: str) -> list[Any]:
        return [value if len(kinds) == 1 else (kind, value) for kind, value in self.calls if kind in kinds]


def options_of(**given: str) -> PulsarOptions:
    made = {"serviceUrl": "pulsar://h:1", "topic": "t", "subscription": "s", "subscriptionType": "exclusive"}
    made |= {"operationTimeout": "1s", "idleTimeout": "10ms"} | given
    scope = STREAM if "walDir" in given and "runId" not in given else READ
    return PulsarOptions.from_spark(made, scope)


def inflow(*consumers: Consumer, known: Sequence[str] = (), topic: str = TOPIC, **more: Any) -> module._Inflow:
    """Return the inflow of a task with these consumers in turn; `more` has its limits and options."""
    waiting = iter(consumers)
    client: Any = SimpleNamespace(open_queue_consumer=lambda *_: next(waiting))
    limits = {name: more.pop(name, None) for name in ("max_rows", "max_entries")}
    task = PulsarQueueRange(QueueSource(topic, -1), max_entries=limits["max_entries"])
    given = {name: str(value) for name, value in more.items()}
    made = module._Inflow(
        client, options_of(**given), task, EntryRanges(known), Counters(), max_rows=limits["max_rows"]
    )
    made.want(100)
    return made


def taken(flow: module._Inflow) -> list[int]:
    return flow.take().column("entry").to_pylist()


# -- joining the subscription


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        (QueueSource(TOPIC, -1), {}, (c.InitialPosition.Latest, (), False)),
        (QueueSource(TOPIC, -1), {"initialPosition": "earliest"}, (c.InitialPosition.Earliest, (), False)),
        (QueueSource(TOPIC, -1, base=TOPIC), {}, (c.InitialPosition.Earliest, (), False)),
        (QueueSource(TOPIC, -1, 0, 9), {}, (c.InitialPosition.Latest, ((0, 9),), False)),
        (QueueSource("non-persistent://a/b/c", -1), {}, (c.InitialPosition.Latest, (), True)),
    ],
)
def test_the_options_of_a_new_consumer(source: QueueSource, given: dict[str, str], expected: object) -> None:
    made = subscription_of(options_of(**given), source, "0003")
    assert (made.initial, made.key_ranges, made.creates_topic) == expected
    assert (made.name, (made.consumer_name or "").endswith("-0003")) == ("s", True)
    named = subscription_of(options_of(**given, consumerName="me"), source, "0003")
    assert named.consumer_name == "me-0003"


# -- permits


@pytest.mark.parametrize(
    ("bursts", "grants"),
    [
        ([], [100]),
        # Half of the allowed permits remain: nothing is granted. Then one less remains.
        ([[message(n) for n in range(49)]], [100]),
        ([[message(n) for n in range(34)]], [100]),
        ([[message(n) for n in range(67)]], [100]),
        ([[message(0, 68)]], [100]),
        ([[message(0, 100)]], [100]),
    ],
)
def test_received_messages_are_not_granted_again(bursts: list[Any], grants: list[int]) -> None:
    consumer = Consumer(*bursts)
    flow = inflow(consumer)
    for _ in range(2):
        flow.receive(0.1)
    assert consumer.of("grant") == grants


@pytest.mark.parametrize(("held", "granted"), [(49, []), (50, [50]), (51, [51])])
def test_permits_are_repaid_once_half_is_used(held: int, granted: list[int]) -> None:
    consumer = Consumer([message(0, held)])
    flow = inflow(consumer)
    flow.receive(0.1)
    assert taken(flow) == [0]
    flow.acknowledge()
    flow.want(100)
    assert consumer.of("grant") == [100, *granted]


@pytest.mark.parametrize(
    ("given", "granted"),
    [
        ({}, [100]),
        ({"maxInFlight": 60}, [60]),
        ({"max_entries": 30}, [30]),
        ({"topic": "non-persistent://a/b/c", "maxInFlight": 60}, [60]),
        ({"topic": "non-persistent://a/b/c", "maxInFlight": 60, "max_rows": 20}, [20]),
        ({"max_entries": 0}, []),
    ],
)
def test_the_first_grant(given: dict[str, Any], granted: list[int]) -> None:
    consumer = Consumer()
    inflow(consumer, **given)
    assert consumer.of("grant") == granted


def test_a_grant_before_and_after_sizes_are_known() -> None:
    consumer = Consumer([message(0)])
    flow = inflow(consumer, receiveQueueBytes="1mb")
    flow._permits.outstanding = 0
    flow.want(10**9)
    flow.receive(0.1)
    flow._permits.outstanding = 0
    flow.want(10**9)
    # 50 may be in flight by default, unless that exceeds the number known to fit.
    most = flow.most
    assert consumer.of("grant") == [
        100,
        min(most, FIRST_GRANT_MESSAGES),
        min(most - 1, 2 * 2**20 // flow._permits.nbytes),
    ]


def test_receive_reports_the_lost_connection_of_a_grant() -> None:
    consumer = Consumer(LOST)

    def refuse(_: int) -> None:
        raise LOST

    consumer.grant = refuse  # type: ignore[method-assign]
    other = Consumer([message(0)])
    flow = inflow(consumer, other)
    assert flow.receive(0.1)
    assert flow.receive(0.1)
    assert (taken(flow), other.of("grant")) == ([0], [100])


@pytest.mark.parametrize(
    ("kind", "spare"),
    [("shared", [100, SPARE_PERMITS]), ("key_shared", [100, SPARE_PERMITS]), ("exclusive", [100]), ("failover", [100])],
)
def test_a_consumer_that_shares_is_closed_with_permits_left(kind: str, spare: list[int]) -> None:
    consumer = Consumer()
    flow = inflow(consumer, subscriptionType=kind)
    flow.close()
    flow.close()
    assert (consumer.of("grant"), consumer.of("close")) == (spare, [None])


def test_permits_that_an_entry_has_overdrawn_are_added_to_the_last_grant() -> None:
    consumer = Consumer([message(0, 105)])
    flow = inflow(consumer, subscriptionType="shared")
    flow.receive(0.1)
    flow.close()
    assert consumer.of("grant") == [100, 5 + SPARE_PERMITS]


# -- receiving


def test_a_failover_consumer_waits_longer_until_its_first_message(clock: Clock) -> None:
    consumer = Consumer([], [message(0)], [])
    flow = inflow(consumer, subscriptionType="failover")
    assert [flow.receive(0.1) for _ in range(3)] == [False, True, False]
    assert consumer.timeouts == [FAILOVER_SECONDS, FAILOVER_SECONDS, 0.1]
    other = Consumer()
    inflow(other).receive(0.1)
    assert other.timeouts == [0.1]
    long = Consumer()
    inflow(long, subscriptionType="failover").receive(9.0)
    assert long.timeouts == [9.0]


def test_a_standby_consumer_waits(clock: Clock) -> None:
    consumer = Consumer()
    flow = inflow(consumer, subscriptionType="failover")
    consumer.is_active = False
    found = []
    for seconds in (0, STANDBY_SECONDS - 1, 1):
        clock.now += seconds
        found.append(flow.receive(0.1))
    assert found == [True, True, False]
    clock.now -= STANDBY_SECONDS
    consumer.is_active = True
    assert not flow.receive(0.1)


def test_an_error_that_is_not_retryable_ends_the_task() -> None:
    refused = BrokerError("no", code=3)
    refused.retryable = False
    with pytest.raises(BrokerError, match="no"):
        inflow(Consumer(refused), Consumer()).receive(0.1)


@pytest.mark.parametrize(
    ("given", "messages", "wanted", "seconds", "due"),
    [
        ({}, 0, 0, 9.0, False),
        ({}, 4, 5, 0.0, False),
        ({}, 5, 5, 0.0, True),
        ({"maxInFlight": 9}, 4, 100, 0.0, False),
        ({"maxInFlight": 8}, 4, 100, 0.0, True),
        ({"max_entries": 4}, 3, 100, 0.0, False),
        ({"max_entries": 3}, 3, 100, 0.0, True),
        ({}, 4, 100, PATIENCE_SECONDS - 0.5, False),
        ({}, 4, 100, PATIENCE_SECONDS, True),
    ],
)
def test_when_received_messages_are_passed_on(
    clock: Clock, given: dict[str, Any], messages: int, wanted: int, seconds: float, due: bool
) -> None:
    flow = inflow(Consumer([message(n) for n in range(messages)]), **given)
    flow.receive(0.1)
    clock.now += seconds
    assert flow.is_due(wanted) == due


def test_received_messages_are_passed_on_at_the_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    one = message(0)
    for most, due in ((len(one.body), True), (len(one.body) + 1, False)):
        monkeypatch.setattr(module, "LOG_BYTES", most)
        flow = inflow(Consumer([one]))
        flow.receive(0.1)
        assert flow.is_due(100) == due


def test_the_delay_begins_with_the_oldest_message(clock: Clock) -> None:
    flow = inflow(Consumer([message(0)], [message(1)]))
    flow.receive(0.1)
    clock.now += PATIENCE_SECONDS
    flow.receive(0.1)
    assert flow.is_due(100)


# -- limits


@pytest.mark.parametrize(
    ("limits", "sizes", "entries", "is_full"),
    [
        ({}, [1, 2, 3], [0, 1, 2], False),
        ({"max_rows": 7}, [1, 2, 3], [0, 1, 2], False),
        ({"max_rows": 6}, [1, 2, 3], [0, 1, 2], True),
        ({"max_rows": 5}, [1, 2, 3], [0, 1], True),
        ({"max_rows": 3}, [1, 2, 3], [0, 1], True),
        ({"max_rows": 2}, [1, 2, 3], [0], True),
        # The first one is taken, whatever its size.
        ({"max_rows": 2}, [3, 1], [0], True),
        ({"max_entries": 4}, [1, 2, 3], [0, 1, 2], False),
        ({"max_entries": 3}, [1, 2, 3], [0, 1, 2], True),
        ({"max_entries": 2}, [1, 2, 3], [0, 1], True),
        ({"max_entries": 2, "max_rows": 2}, [1, 2, 3], [0], True),
        ({"max_entries": 1, "max_rows": 6}, [1, 2, 3], [0], True),
        ({"max_entries": 3, "max_rows": 5}, [1, 2, 3], [0, 1], True),
    ],
)
def test_messages_are_taken_up_to_the_limits(
    limits: dict[str, int], sizes: list[int], entries: list[int], is_full: bool
) -> None:
    flow = inflow(Consumer([message(n, size) for n, size in enumerate(sizes)]), **limits)
    flow.receive(0.1)
    assert flow.rows == sum(sizes)
    assert taken(flow) == entries
    assert (flow.most == 0, flow.rows) == (is_full, 0)


def test_a_second_take_is_limited_to_the_rest() -> None:
    flow = inflow(Consumer([message(0, 2)], [message(1, 2)]), max_rows=3)
    flow.receive(0.1)
    assert taken(flow) == [0]
    flow.receive(0.1)
    # It is no longer the first one: 2 do not fit 1.
    assert taken(flow) == []
    assert flow.most == 0


def test_chunks_count_as_one_message_and_are_taken_together() -> None:
    parts = [chunk(0, 0, 3), chunk(1, 1, 3), chunk(2, 2, 3)]
    flow = inflow(Consumer([*parts, message(3)]), max_rows=1)
    flow.receive(0.1)
    assert flow.rows == 2
    assert taken(flow) == [0, 1, 2]
    # An entry limit counts chunks too, and does not separate them.
    flow = inflow(Consumer([message(9), *parts]), max_entries=2)
    flow.receive(0.1)
    assert taken(flow) == [9, 0, 1, 2]


def test_an_empty_take_does_not_count_as_the_first() -> None:
    flow = inflow(Consumer([message(0, 3)]), max_rows=2)
    assert taken(flow) == []
    flow.receive(0.1)
    assert taken(flow) == [0]


def test_returned_messages_are_not_taken() -> None:
    flow = inflow(Consumer([message(0)]))
    flow.receive(0.1)
    flow.put_back()
    assert (flow.rows, flow.most, taken(flow)) == (0, 0, [])


# -- redeliveries


@pytest.mark.parametrize(
    ("bursts", "rows"),
    [
        ([[0, 1, 2]], [0, 1, 2]),
        ([[0, 1, 1, 2]], [0, 1, 2]),
        ([[1, 0, 1]], [1, 0]),
        ([[0, 1], [1, 2]], [0, 1, 2]),
        ([[0, 1], [2, 3], [0]], [0, 1, 2, 3]),
        ([[0, 5], [1, 4], [0, 1, 2, 3, 4, 5]], [0, 5, 1, 4, 2, 3]),
    ],
)
def test_an_entry_counts_once(bursts: list[list[int]], rows: list[int]) -> None:
    consumer = Consumer(*[[message(n) for n in burst] for burst in bursts])
    flow = inflow(consumer)
    for _ in bursts:
        flow.receive(0.1)
    assert taken(flow) == rows
    assert consumer.of("ack") == []


def test_entries_of_two_ledgers_with_equal_numbers_are_different() -> None:
    flow = inflow(Consumer([message(3), message(3, ledger=8)]))
    flow.receive(0.1)
    assert taken(flow) == [3, 3]


def test_duplicates_are_acknowledged_and_dropped() -> None:
    consumer = Consumer([message(n) for n in range(4)])
    flow = inflow(consumer, known=["7:1-2"])
    flow.receive(0.1)
    assert (taken(flow), consumer.of("ack")) == ([0, 3], [[1, 2]])


def test_duplicate_chunks_are_acknowledged_together() -> None:
    consumer = Consumer([chunk(0, 0, 2)], [chunk(1, 1, 2)])
    flow = inflow(consumer, known=["7:0-1"])
    flow.receive(0.1)
    assert consumer.of("ack") == []
    flow.receive(0.1)
    assert (taken(flow), consumer.of("ack")) == ([], [[0, 1]])


@pytest.mark.parametrize(("given", "sent"), [({}, [[3, 4]]), ({"ackMode": "nack"}, [])])
def test_chunks_repeated_after_their_message_are_acknowledged(given: dict[str, str], sent: list[Any]) -> None:
    consumer = Consumer([chunk(n, part, 3) for n, part in enumerate((0, 1, 2, 1, 2))])
    flow = inflow(consumer, **given)
    flow.receive(0.1)
    assert taken(flow) == [0, 1, 2]
    assert consumer.of("ack") == sent


def test_a_topic_that_stores_nothing_has_no_duplicates() -> None:
    consumer = Consumer([message(0), message(0)], [message(0)])
    flow = inflow(consumer, topic="non-persistent://a/b/c")
    flow.receive(0.1)
    flow.receive(0.1)
    assert taken(flow) == [0, 0, 0]
    flow.acknowledge()
    assert consumer.of("ack") == []


def test_only_the_remaining_messages_of_a_batch_count() -> None:
    for words, rows in (((), 5), ((0b10010,), 2), ((-1, 1), 65), ((0,), 1)):
        flow = inflow(Consumer([message(0, 5)._replace(ack_set=words)]))
        flow.receive(0.1)
        # Those that are acknowledged cost no permits.
        assert (flow.rows, 100 - flow._permits.outstanding) == (rows, rows)


def test_a_corrupt_entry_is_redelivered_once() -> None:
    first, second = Consumer([message(0), corrupt(1)]), Consumer([message(0), corrupt(1)])
    flow = inflow(first, second)
    assert flow.receive(0.1)
    assert (first.of("close"), flow.rows) == ([None], 0)
    flow.receive(0.1)
    assert (taken(flow), second.of("close")) == ([0, 1], [])
    flow.note_damaged(known := {(7, 0): c.ValidationError.DecryptionError})
    flow.acknowledge()
    # With the reason, for the broker's log.
    assert second.of("ack", "DecryptionError", "ChecksumMismatch") == [
        ("DecryptionError", [0]),
        ("ChecksumMismatch", [1]),
    ]
    assert not known
    # A topic that stores nothing redelivers nothing.
    flow = inflow(Consumer([corrupt(0)]), topic="non-persistent://a/b/c")
    flow.receive(0.1)
    assert taken(flow) == [0]


# -- another consumer


def test_messages_passed_on_are_duplicates_for_the_next_consumer() -> None:
    second = Consumer([message(n) for n in range(4)])
    flow = inflow(Consumer([message(0), message(1)], [message(2)], LOST), second)
    flow.receive(0.1)
    assert taken(flow) == [0, 1]
    flow.receive(0.1)
    # Messages that were received and not passed on are dropped, and are redelivered.
    assert flow.receive(0.1)
    assert flow.rows == 0
    flow.receive(0.1)
    assert taken(flow) == [2, 3]
    flow.acknowledge()
    assert second.of("ack") == [[0, 1, 2, 3]]


def test_received_messages_of_a_topic_that_stores_nothing_are_kept() -> None:
    flow = inflow(Consumer([message(0)], LOST), Consumer([message(0)]), topic="non-persistent://a/b/c")
    for _ in range(3):
        flow.receive(0.1)
    assert taken(flow) == [0, 0]


def test_a_message_that_is_still_arriving_is_no_silence() -> None:
    consumer = Consumer()
    flow = inflow(consumer)
    consumer.unfinished_bytes = 1
    assert flow.receive(0.1)
    consumer.unfinished_bytes = 0
    assert not flow.receive(0.1)


def test_connections_that_all_end_before_a_message_are_an_error() -> None:
    flow = inflow(*(Consumer(LOST) for _ in range(1000)), operationTimeout="200ms")
    with pytest.raises(ServiceNotReadyError, match="the connection is lost"):
        all(flow.receive(0.1) for _ in range(1000))


def test_a_connection_that_ends_after_a_message_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=time.monotonic))
    flow = inflow(*(Consumer([message(n)], LOST) for n in range(100)))
    for n in range(100):
        assert flow.receive(0.1)
        assert taken(flow) == [n]
        assert n == 99 or flow.receive(0.1)


@pytest.mark.parametrize(
    ("answers", "again"),
    [([None, None], []), (["never", None], [[0]]), ([LOST, None], [[0]]), ([None, LOST], [[1]]), (["never"], [[0]])],
)
def test_the_next_consumer_repeats_unanswered_acknowledgements(answers: list[Any], again: list[list[int]]) -> None:
    first, second = Consumer([message(0)], [message(1)], LOST, answers=answers), Consumer()
    flow = inflow(first, second)
    for _ in range(2):
        flow.receive(0.1)
        flow.take()
        flow.acknowledge()
    flow.receive(0.1)
    assert (first.of("ack"), second.of("ack")) == ([[0], [1]], again)
    assert flow.settle() == []
    assert flow.acknowledged == "7:0-1;"


@pytest.mark.parametrize(
    ("answers", "refused", "resumed"),
    [
        ([None], [], 0),
        ([LOST], [], 1),
        ([LOST, LOST], [], 2),
        ([CorruptMessageError("no")], [(7, 0), (7, 1)], 0),
        ([LOST, CorruptMessageError("no")], [(7, 0), (7, 1)], 1),
    ],
)
def test_settling(answers: list[MQSourceError | None], refused: list[tuple[int, int]], resumed: int) -> None:
    consumers = [Consumer([message(0), message(1)], answers=answers[:1])]
    consumers += [Consumer(answers=[answer]) for answer in answers[1:]] + [Consumer()]
    flow = inflow(*consumers)
    flow.receive(0.1)
    flow.take()
    flow.acknowledge()
    assert flow.settle() == refused
    assert [one.of("ack", "close") for one in consumers[: resumed + 1]] == [
        [("ack", [0, 1]), ("close", None)] for _ in range(resumed + 1)
    ]
    assert consumers[-1].calls == [] or resumed == len(consumers) - 1


def test_settling_ends_with_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Deadline, "expired", True)
    flow = inflow(Consumer([message(0)], answers=[LOST]))
    flow.receive(0.1)
    flow.take()
    flow.acknowledge()
    assert flow.settle() == [(7, 0)]


def test_a_late_answer_is_a_failure() -> None:
    consumer = Consumer([message(0), message(1)], answers=["never"])
    flow = inflow(consumer)
    flow.receive(0.1)
    flow.take()
    flow.acknowledge()
    failure = flow._answered(module.Deadline.after_ms(0))
    assert isinstance(failure, RequestTimeoutError)
    assert (flow._unconfirmed, flow._answered(module.Deadline.after_ms(0))) == ([(7, 0), (7, 1)], None)


# -- cumulative acknowledgements


@pytest.mark.parametrize(
    ("given", "bursts", "sent"),
    [
        ({}, [[message(0), message(4)]], [("ack", [0, 4])]),
        ({"readCompacted": "true"}, [[message(0), message(4)]], [("until", 4)]),
        ({"readCompacted": "true"}, [[message(0)], [message(4)]], [("until", 0), ("until", 4)]),
        # Out of order, repeated, or a chunk: not all messages up to there were passed on.
        ({"readCompacted": "true"}, [[message(4), message(0)]], [("ack", [4, 0])]),
        (
            {"readCompacted": "true"},
            [[message(4)], [message(4), message(5)]],
            [("until", 4), ("ack", [4]), ("ack", [5])],
        ),
        ({"readCompacted": "true"}, [[chunk(0, 0, 2), message(1), chunk(2, 1, 2)]], [("ack", [1, 0, 2])]),
    ],
)
def test_entries_removed_by_compaction_are_acknowledged_with_the_following_ones(
    given: dict[str, str], bursts: list[Any], sent: list[Any]
) -> None:
    consumer = Consumer(*bursts)
    flow = inflow(consumer, subscriptionType="exclusive", **given)
    for _ in bursts:
        flow.receive(0.1)
        flow.take()
        flow.acknowledge()
    assert consumer.of("ack", "until") == sent


def test_after_another_consumer_s_turn_entries_are_acknowledged_one_by_one() -> None:
    consumer = Consumer([message(0)])
    flow = inflow(consumer, subscriptionType="failover", readCompacted="true")
    flow.receive(0.1)
    flow.take()
    consumer.was_replaced = True
    flow.acknowledge()
    assert consumer.of("ack", "until") == [("ack", [0])]


@pytest.mark.parametrize(("acknowledges", "sent"), [(True, [("until", 1)]), (False, [("ack", [0, 1])])])
def test_a_new_consumer_acknowledges_all_entries_if_none_is_held(acknowledges: bool, sent: list[Any]) -> None:
    second = Consumer([message(1)])
    flow = inflow(Consumer([message(0)], LOST), second, subscriptionType="exclusive", readCompacted="true")
    flow.receive(0.1)
    flow.take()
    if acknowledges:
        flow.acknowledge()
    for _ in range(2):
        flow.receive(0.1)
    flow.take()
    flow.acknowledge()
    assert second.of("ack", "until") == sent


# -- the redelivery limit


class Letters:
    """Recorded messages that are given up or put off, instead of sent."""

    def __init__(self, *_: object, **__: object) -> None:
        self.given_up: list[tuple[list[int], list[str]]] = []

    def give_up(self, logged: pa.RecordBatch, reasons: list[str]) -> None:
        self.given_up.append((logged.column("entry").to_pylist(), reasons))

    def put_off(self, logged: pa.RecordBatch) -> None:
        PUT_OFF.append(logged.column("entry").to_pylist())

    def close(self) -> None:
        pass


PUT_OFF: list[list[int]] = []

REDELIVERED = [
    message(0),
    message(1, redeliveries=2),
    message(2, redeliveries=3),
    *(chunk(3 + n, n, 3) for n in range(3)),
]


def kept(count: str, last: int, on: str = "deadLetter") -> tuple[list[int], list[tuple[list[int], list[str]]]]:
    """Return the kept messages of `REDELIVERED`, whose last chunk has this redelivery count."""
    messages = [*REDELIVERED[:-2], REDELIVERED[-2]._replace(redelivery_count=last), REDELIVERED[-1]]
    given = {"subscriptionType": "shared", "maxRedeliverCount": count, "onMaxRedeliver": on}
    letters: Any = Letters()
    options = options_of(**(given if int(count) else {}))
    found = module._kept(options, log_batch(messages, [1, 1, 1, 0, 0, 1]), letters)
    return found.column("entry").to_pylist(), letters.given_up


@pytest.mark.parametrize(
    ("count", "last", "entries", "given_up"),
    [
        ("0", 0, [0, 1, 2, 3, 4, 5], []),
        ("3", 3, [0, 1, 2, 3, 4, 5], []),
        ("2", 2, [0, 1, 3, 4, 5], [([2], [3])]),
        ("2", 3, [0, 1], [([2, 3, 4, 5], [3, 3, 3, 3])]),
        ("1", 0, [0, 3, 4, 5], [([1, 2], [2, 3])]),
    ],
)
def test_messages_that_were_redelivered_too_often_are_given_up(
    count: str, last: int, entries: list[int], given_up: list[Any]
) -> None:
    reasons = [(rows, [f"redelivered {times} times" for times in counts]) for rows, counts in given_up]
    assert kept(count, last) == (entries, reasons)


def test_messages_that_were_redelivered_too_often_end_the_read() -> None:
    with pytest.raises(TooManyAttemptsError, match="message 7:2 was redelivered 3 times"):
        kept("2", 0, "fail")
    assert kept("3", 0, "fail") == ([0, 1, 2, 3, 4, 5], [])


# -- a task


class Client:
    """A client that opens these consumers in turn."""

    consumers: list[Consumer]

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def open_queue_consumer(self, *_: object) -> Consumer:
        return self.consumers.pop(0)

    def hand_over(self) -> None:
        pass


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    monkeypatch.setattr(module, "PulsarClient", Client)
    monkeypatch.setattr(module, "QueueLetters", Letters)
    PUT_OFF.clear()
    return Client


def drain(given: dict[str, str], **limits: Any) -> list[bytes]:
    options = options_of(**given)
    task = PulsarQueueRange(QueueSource(TOPIC, -1), **limits)
    made = read_queue(options, task, SCHEMA, open_writer=lambda *_: None)  # type: ignore[arg-type,return-value]
    return [row["value"] for one in made for row in one.to_pylist()]


@pytest.mark.parametrize(
    ("given", "acknowledged", "put_off"),
    [
        ({}, [[0, 1, 2, 3]], []),
        ({"ackMode": "nack"}, [], []),
        ({"ackMode": "nack", "retryTopic": "true", "subscriptionType": "shared"}, [[0, 1, 2, 3]], [[0, 1, 2, 3]]),
        ({"retryTopic": "true", "subscriptionType": "shared"}, [[0, 1, 2, 3]], []),
    ],
)
def test_the_end_of_a_task_by_acknowledgement_mode(
    scripted: type[Client], given: dict[str, str], acknowledged: list[Any], put_off: list[Any]
) -> None:
    consumer = Consumer([message(n) for n in range(4)])
    scripted.consumers = [consumer]
    assert drain(given | {"maxInFlight": "4"}, max_rows=4) == [b"0", b"1", b"2", b"3"]
    assert (consumer.of("ack"), PUT_OFF) == (acknowledged, put_off)


@pytest.mark.parametrize(
    ("in_flight", "limits", "granted"), [("4", {}, 4), ("4", {"max_rows": 3}, 3), ("4", {"max_rows": 9}, 4)]
)
def test_a_read_without_acknowledgements_ends_at_the_limit_in_flight(
    scripted: type[Client], in_flight: str, limits: dict[str, int], granted: int
) -> None:
    consumer = Consumer([message(n) for n in range(granted)])
    scripted.consumers = [consumer]
    found = drain({"ackMode": "nack", "maxInFlight": in_flight}, **limits)
    assert found == [b"%d" % n for n in range(granted)]
    assert consumer.of("grant")[0] == granted


def test_a_read_without_acknowledgements_has_each_message_once_after_a_reconnect(scripted: type[Client]) -> None:
    second = Consumer([message(n) for n in range(4)])
    scripted.consumers = [Consumer([message(0), message(1)], LOST), second]
    assert drain({"ackMode": "nack", "maxInFlight": "4"}) == [b"0", b"1", b"2", b"3"]
    assert second.of("ack") == []


def test_logged_messages_are_replayed_from_the_log(scripted: type[Client], tmp_path: Path) -> None:
    consumer = Consumer([message(n) for n in range(3)])
    scripted.consumers = [consumer]
    given = {"walDir": str(tmp_path), "runId": "r", "idleTimeout": "10ms"}
    write_plan(open_folder("pulsar-native", str(tmp_path)), "f", {})
    assert drain(given, folder="f") == drain(given, folder="f") == [b"0", b"1", b"2"]
    assert consumer.of("ack") == [[0, 1, 2]]


@pytest.mark.parametrize(
    ("given", "error", "ends_early"),
    [
        ({}, LOST, True),
        ({"runId": "r"}, LOST, False),
        ({}, ResourceBusyError("others have it"), False),
        ({}, CorruptMessageError("no"), False),
    ],
)
def test_errors_that_end_a_batch_early(given: dict[str, str], error: MQSourceError, ends_early: bool) -> None:
    task = PulsarQueueRange(QueueSource(TOPIC, -1), folder="f")
    log: Any = SimpleNamespace(slots=[])
    letters: Any = Letters()
    options = options_of(walDir="/tmp/none", **given)
    assert module._Collector(options, task, log, Counters(), letters)._may_end_early(error) == ends_early


@pytest.mark.parametrize(("given", "begins"), [({}, "EARLIEST"), ({"runId": "r"}, "LATEST")])
def test_where_a_task_begins_a_subscription_that_was_deleted(given: dict[str, str], begins: str) -> None:
    task = PulsarQueueRange(QueueSource(TOPIC, -1), folder="f")
    log: Any = SimpleNamespace(slots=[])
    letters: Any = Letters()
    options = options_of(walDir="/tmp/none", **given)
    assert module._Collector(options, task, log, Counters(), letters)._options.initial_position.name == begins


def test_the_rows_of_a_log_are_those_of_all_attempts() -> None:
    task = PulsarQueueRange(QueueSource(TOPIC, -1), folder="f")
    log: Any = SimpleNamespace(slots=[], attempt="me", ids=lambda _: [], read=lambda slot: [batches[slot.number]])
    letters: Any = Letters()
    collector = module._Collector(options_of(walDir="/tmp/none"), task, log, Counters(), letters)
    batches = {1: log_batch([message(0), message(1)], [3, 4])}
    collector._messages_taken = 5
    log.slots += [slot_of("me", 0), slot_of("other", 1)]
    assert collector._rows() == 12
    log.slots.append(slot_of("other", 2, is_end=True))
    assert collector._rows() == 12


def slot_of(attempt: str, number: int, *, is_end: bool = False) -> Slot:
    made: Any = SimpleNamespace(attempt=attempt, number=number, is_end=is_end)
    return made  # type: ignore[no-any-return]
