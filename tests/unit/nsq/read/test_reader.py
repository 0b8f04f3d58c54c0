"""What of a batch is new, what came too often, and what a task tells of its acknowledgements."""

from __future__ import annotations

from types import SimpleNamespace

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import TooManyAttemptsError
from spark_mq_source.core.options import READ
from spark_mq_source.nsq.client.client import Nsqd, Source
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.read.reader import _LOGGED, NsqRange, _Collector, _Task


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
    made = NsqOptions.from_spark({name.lower(): text for name, text in options.items()}, READ)
    task = _Task(made, NsqRange(Source("t", Nsqd("h:4150", "h", 4150))), Counters())
    ids = {f"{n:016x}" for n in known}
    rows = task._without_repeats(None, batch(*attempts), lambda: ids, repeated)
    return [int(id_, 16) for id_ in rows.column("message_id").to_pylist()]


@pytest.mark.parametrize(
    ("attempts", "known", "repeated", "expected"),
    [
        ([1, 1, 1], set(), set(), [0, 1, 2]),
        # A first delivery is compared with nothing, the second one is.
        ([1, 1], {0}, set(), [0, 1]),
        ([1, 2], {1}, set(), [0]),
        ([2, 1], {1}, set(), [0]),
        ([1, 1, 1], set(), {1}, [0, 2]),
        ([2, 1, 1], {0}, {2}, [1]),
    ],
)
def test_a_message_that_came_before_is_left_out(attempts, known, repeated, expected) -> None:
    assert kept(attempts, known, repeated) == expected


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_message_is_given_up_when_it_comes_more_often_than_it_may(limit: int) -> None:
    assert kept([1, limit], set(), limit=limit) == [0, 1]
    with pytest.raises(TooManyAttemptsError, match=f"was delivered {limit + 1} times, and maxAttempts is {limit}"):
        kept([1, limit + 1], set(), limit=limit)
    # Given up once: whoever has it already is not asked.
    assert kept([1, limit + 1], {1}, limit=limit) == [0]


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_a_task_tells_what_was_finished_too_late(refused: int) -> None:
    ids = [f"{n:016x}" for n in range(refused)]
    collector = SimpleNamespace(
        _close_consumer=lambda _: "".join(ids).encode(), _recent=SimpleNamespace(last=b"f" * 16)
    )
    assert _Collector._close(collector, SimpleNamespace(consumer=None)) == (ids, "f" * 16)
