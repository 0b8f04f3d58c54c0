"""Duplicates in a batch, messages that exceed the attempt limit, and the report of a task's acknowledgements."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import ConnectionLostError, MQSourceError, OptionError, TooManyAttemptsError
from spark_mq_source.core.options import READ
from spark_mq_source.net.queue_task import Limits
from spark_mq_source.nsq.client.client import Nsqd, Source
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.protocol.commands import Identified, Messages
from spark_mq_source.nsq.protocol.error_codes import error_for_code
from spark_mq_source.nsq.protocol.wire import MESSAGE, encode_frame
from spark_mq_source.nsq.read.backoff import Backoff
from spark_mq_source.nsq.read.reader import _LOGGED, NsqRange, _Attempt, _Collector, _Inflow

TASK = NsqRange(Source("t", Nsqd("h:4150", "h", 4150)))


class FakeConsumer:
    """A consumer that records its commands and has frames of messages to deliver."""

    def __init__(self) -> None:
        self.session = SimpleNamespace(identified=Identified(), closed=False, address="h:4150")
        self.commands: list[tuple[object, ...]] = []
        self.unfinished_bytes = 0

    def ready(self, count: int) -> None:
        self.commands.append(("RDY", count))

    def fin(self, ids: bytes) -> None:
        self.commands.append(("FIN", len(ids) // 16))

    def requeue(self, ids: bytes, *, delay_ms: int = 0) -> None:
        self.commands.append(("REQ", bytes(ids), delay_ms))

    def receive(self, **_: object) -> list[Messages]:
        return [Messages(memoryview(self.frames), 1)]

    def deliver(self, inflow: _Inflow, *messages: tuple[bytes, int]) -> None:
        self.frames = b"".join(
            encode_frame(MESSAGE, bytes(8) + attempts.to_bytes(2, "big") + id_ + b"v") for id_, attempts in messages
        )
        inflow.receive(0.0)


def inflow_of(consumer: FakeConsumer, backoff: Backoff | None = None, **options: str) -> _Inflow:
    given = {"nsqdtcpaddresses": "h", "topic": "t", "channel": "c", "idletimeout": "1s"} | options
    return _Inflow(consumer, NsqOptions.from_spark(given, READ), TASK, _LOGGED, Counters(), backoff=backoff)


def test_an_attempt_after_failures_pauses_and_reads_one_message_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = FakeConsumer()
    monkeypatch.setattr("time.sleep", lambda seconds: consumer.commands.append(("pause", seconds)))
    inflow = inflow_of(consumer, Backoff(2, 120_000))
    inflow.pause()
    inflow.want(500)
    for _ in range(3):
        consumer.deliver(inflow, (b"a" * 16, 1))
        assert inflow.is_due(500) is (len(consumer.commands) < 9)
        inflow.take()
        inflow.want(500)
        inflow.acknowledge()
    assert consumer.commands == [
        *[("pause", 4), ("RDY", 1)],
        *[("RDY", 1), ("RDY", 0), ("FIN", 1), ("pause", 2), ("RDY", 1)],
        *[("RDY", 1), ("RDY", 0), ("FIN", 1), ("RDY", 500)],
        *[("RDY", 500), ("FIN", 1)],
    ]


def test_a_read_that_ends_within_its_first_message_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    for unfinished, received in ((0, False), (7, True), (7, False)):
        consumer = FakeConsumer()
        inflow = inflow_of(consumer)
        if received:
            consumer.deliver(inflow, (b"a" * 16, 1))
        consumer.unfinished_bytes = unfinished
        inflow.put_back()
    (warning,) = caplog.messages
    assert "nsqd h:4150: the time of this read ended within its first message, of which 7 bytes" in warning


@pytest.mark.parametrize("has_failed", [True, False])
def test_the_requeue_delay_of_a_failed_task_grows_with_attempts(has_failed: bool) -> None:
    consumer = FakeConsumer()
    inflow = inflow_of(consumer, requeuedelay="1m", maxrequeuedelay="4m")
    consumer.deliver(inflow, (b"a" * 16, 1), (b"b" * 16, 3))
    inflow.take()
    consumer.deliver(inflow, (b"c" * 16, 9), (b"d" * 16, 1))
    inflow.has_failed = has_failed
    inflow.put_back()
    requeued = {command[1]: command[2] for command in consumer.commands if command[0] == "REQ"}
    assert consumer.commands[0] == ("RDY", 0)
    if has_failed:
        assert requeued == {b"a" * 16 + b"d" * 16: 60_000, b"b" * 16: 180_000, b"c" * 16: 240_000}
    else:
        assert requeued == {b"a" * 16 + b"b" * 16 + b"c" * 16 + b"d" * 16: 0}


@pytest.mark.parametrize(
    ("timeout_ms", "size", "deflate", "seconds"),
    [
        (250, 16_384, False, 0.5),  # shorter than the task's own idle time
        (5_000, 16_384, False, 5.1),
        (0, 16_384, False, 30.1),  # until the buffer is full, or the next heartbeat
        (0, 1, False, 0.5),
        (0, 1, True, 30.1),
    ],
)
def test_a_task_is_not_idle_while_nsqd_may_buffer_messages(
    timeout_ms: int, size: int, deflate: bool, seconds: float
) -> None:
    consumer = FakeConsumer()
    consumer.session.identified = Identified(
        output_buffer_timeout_ms=timeout_ms, output_buffer_bytes=size, deflate=deflate
    )
    inflow = inflow_of(consumer, idletimeout="500ms")
    options = NsqOptions.from_spark(
        {"nsqdtcpaddresses": "h", "topic": "t", "channel": "c", "idletimeout": "500ms"}, READ
    )
    limits = Limits.of(options, None, min_idle_seconds=inflow.min_idle_seconds)
    assert limits.seconds_left() == pytest.approx(seconds, abs=0.05)


@pytest.mark.parametrize(("timeout_ms", "option"), [(10_000, "outputbuffertimeout"), (0, "heartbeatinterval")])
def test_nsqd_must_send_a_message_before_it_redelivers_it(timeout_ms: int, option: str) -> None:
    consumer = FakeConsumer()
    consumer.session.identified = Identified(output_buffer_timeout_ms=timeout_ms, msg_timeout_ms=10_000)
    with pytest.raises(OptionError, match=r"may buffer a message for 10000 ms, but redelivers it after 10000 ms"):
        inflow_of(consumer, **{option: "10s"})


def batch(*attempts: int) -> pa.RecordBatch:
    rows = [
        {"value": b"v", "message_id": f"{n:016x}", "attempts": times, "timestamp": n, "timestamp_ns": n}
        for n, times in enumerate(attempts)
    ]
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in _LOGGED]
    return pa.RecordBatch.from_arrays(columns, schema=_LOGGED)


def kept(attempts: list[int], known: set[int], repeated: set[int] = frozenset(), limit: int = 0) -> list[int]:
    options = {"nsqdTcpAddresses": "h", "topic": "t", "channel": "c", "idleTimeout": "1s", "maxAttempts": str(limit)}
    options |= {"onMaxAttempts": "fail"} if limit else {}
    made = NsqOptions.from_spark(options, READ)
    task = _Attempt(made, TASK, Counters())
    ids = {f"{n:016x}" for n in known}
    rows = task._without_repeats(None, batch(*attempts), lambda: ids, repeated)
    return [int(id_, 16) for id_ in rows.column("message_id").to_pylist()]


@pytest.mark.parametrize(
    ("attempts", "known", "repeated", "expected"),
    [
        ([1, 1, 1], set(), set(), [0, 1, 2]),
        # A first delivery is not compared with known messages, a second one is.
        ([1, 1], {0}, set(), [0, 1]),
        ([1, 2], {1}, set(), [0]),
        ([2, 1], {1}, set(), [0]),
        ([1, 1, 1], set(), {1}, [0, 2]),
        ([2, 1, 1], {0}, {2}, [1]),
    ],
)
def test_a_duplicate_is_dropped(attempts, known, repeated, expected) -> None:
    assert kept(attempts, known, repeated) == expected


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_message_beyond_the_attempt_limit_is_given_up(limit: int) -> None:
    assert kept([1, limit], set(), limit=limit) == [0, 1]
    with pytest.raises(TooManyAttemptsError, match=f"was delivered {limit + 1} times, and maxAttempts is {limit}"):
        kept([1, limit + 1], set(), limit=limit)
    # It is given up only once: messages that were read before are not counted.
    assert kept([1, limit + 1], {1}, limit=limit) == [0]


@pytest.mark.parametrize(
    ("error", "run_id", "expected"),
    [
        (error_for_code("E_SUB_FAILED", "SUB failed exiting").within("nsq topic t"), None, True),
        (error_for_code("E_SUB_FAILED", "SUB failed exiting"), "r", False),
        (error_for_code("E_SUB_FAILED", "SUB failed consumers for t:c exceeds limit of 1"), None, False),
        (ConnectionLostError("lost"), None, True),
    ],
)
def test_a_batch_of_a_stream_ends_early_if_nsqd_goes_away(
    error: MQSourceError, run_id: str | None, expected: bool
) -> None:
    collector = SimpleNamespace(_options=SimpleNamespace(run_id=run_id))
    assert _Collector._may_end_early(collector, error) is expected


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_a_task_reports_messages_that_were_finished_too_late(refused: int) -> None:
    ids = [f"{n:016x}" for n in range(refused)]
    collector = SimpleNamespace(
        _close_consumer=lambda _: "".join(ids).encode(), _recent=SimpleNamespace(last=b"f" * 16)
    )
    assert _Collector._close(collector, SimpleNamespace(consumer=None)) == (ids, "f" * 16)
