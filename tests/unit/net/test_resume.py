"""The loop that reads a range to its end, over several connections if needed."""

from __future__ import annotations

import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import (
    ConnectionLostError,
    CorruptMessageError,
    DataLossError,
    EncryptedMessageError,
    RemoteProtocolError,
)
from spark_mq_source.net import resume, retry
from spark_mq_source.net.resume import ReopenError, ResumingReader

TIMED = resume


class Numbers(ResumingReader[str, int, object]):
    """A range of numbers up to `end`; each connection yields as many as its script says, and then raises."""

    def __init__(self, end, *scripts, timeout_ms=20_000):
        super().__init__("numbers", 0, timeout_ms=timeout_ms, counters=Counters())
        self.end = end
        self.scripts = list(scripts)
        self.opened_at = []
        self.trusted = []
        self.left = 0

    def _is_finished(self):
        return self._done >= self.end

    def _open(self):
        self.opened_at.append(self._done)
        self.trusted.append(not self._is_distrusted())
        return self.scripts.pop(0) if self.scripts else (self.end, None)

    def _drain(self, consumer):
        most, error = consumer
        for _ in range(most):
            if self._is_finished():
                return
            self._done += 1
            yield self._done
        if error is not None:
            raise error

    def _leave(self, consumer):
        self.left += 1

    def _rest(self):
        yield "rest"


def test_each_number_is_read_once_after_any_connection_error():
    read = Numbers(9, (2, ConnectionLostError("x")), (0, ReopenError("moved")), (3, RemoteProtocolError("bits")))
    assert list(read.batches()) == [*range(1, 10), "rest"]
    assert read.opened_at == [0, 2, 2, 5]
    assert read.left == 4
    assert read._counters.reconnects == 3
    assert read._counters.wait_seconds > 0


def test_a_range_that_is_read_already_opens_nothing():
    read = Numbers(0)
    assert list(read.batches()) == ["rest"]
    assert read.opened_at == []


@pytest.mark.parametrize("kind", [CorruptMessageError, RemoteProtocolError])
def test_an_error_repeated_at_the_same_position_is_raised(kind):
    read = Numbers(9, (2, kind("a")), (1, kind("b")), (0, kind("c")))
    seen = []
    with pytest.raises(kind, match="c"):
        seen.extend(read.batches())
    assert (read.opened_at, read.trusted) == ([0, 2, 3], [True, False, False])
    assert read.left == 3


@pytest.mark.parametrize("error", [EncryptedMessageError("key"), DataLossError("gone")])
def test_an_error_that_no_reconnect_solves_is_raised_at_once(error):
    read = Numbers(9, (2, error))
    with pytest.raises(type(error)):
        list(read.batches())
    assert (read.opened_at, read.left) == ([0], 1)


def test_progress_renews_the_timeout():
    lost = ConnectionLostError("x")
    read = Numbers(9, (1, lost), (1, lost), (0, lost), (0, lost), timeout_ms=0)
    with pytest.raises(ConnectionLostError):
        list(read.batches())
    assert read.opened_at == [0, 1, 2]


def test_only_a_repeated_failure_at_the_same_position_is_followed_by_a_pause(clock, monkeypatch):
    monkeypatch.setattr(retry, "time", clock)
    lost = ConnectionLostError("x")
    read = Numbers(9, (1, lost), (1, lost), (0, lost), (0, lost), (1, lost), (0, lost), timeout_ms=1000)
    assert list(read.batches()) == [*range(1, 10), "rest"]
    first, second, after_progress = clock.slept
    assert 0.025 <= first <= 0.05 <= second <= 0.1
    assert 0.025 <= after_progress <= 0.05
    # A broker that opens each consumer and refuses each read is asked a few times until the timeout.
    read = Numbers(9, *[(0, lost)] * 99, timeout_ms=1000)
    with pytest.raises(ConnectionLostError):
        list(read.batches())
    assert 5 < len(read.opened_at) < 10


def test_an_abandoned_read_leaves_its_consumer():
    read = Numbers(9)
    batches = read.batches()
    assert next(batches) == 1
    batches.close()
    assert read.left == 1
