"""Retries: they depend on `retryable` alone, and end at the deadline."""

import pytest

from spark_mq_source.core.errors import (
    AuthenticationError,
    ConnectionLostError,
    MQSourceError,
    ServiceNotReadyError,
    TransportError,
)
from spark_mq_source.net import retry
from spark_mq_source.net.retry import Deadline, retrying

TIMED = retry


class Calls:
    """A function that raises the given errors, one a call, then succeeds; if `endless`, it repeats the last error."""

    def __init__(self, *errors, endless=False):
        self.errors = errors
        self.endless = endless
        self.count = 0

    def __call__(self):
        self.count += 1
        if self.count <= len(self.errors):
            raise self.errors[self.count - 1]
        if self.endless:
            raise self.errors[-1]
        return self.count


def test_one_call_is_made_even_when_time_is_up(clock):
    call = Calls()
    assert retrying(call, deadline=Deadline.after_ms(0)) == 1
    assert clock.slept == []
    call = Calls(ConnectionLostError("gone"))
    with pytest.raises(ConnectionLostError, match="gone"):
        retrying(call, deadline=Deadline.after_ms(0))
    assert (call.count, clock.slept) == (1, [])


def test_retryable_errors_are_retried(clock):
    call = Calls(ConnectionLostError("a"), ServiceNotReadyError("b"), TransportError("c"))
    assert retrying(call, deadline=Deadline.after_ms(10_000)) == 4
    assert len(clock.slept) == 3


def refused():
    error = TransportError("no TLS here")
    error.retryable = False
    return error


@pytest.mark.parametrize("error", [AuthenticationError("no"), MQSourceError("no"), refused(), ValueError("no")])
def test_other_errors_are_raised_at_once(clock, error):
    call = Calls(ConnectionLostError("first"), error)
    with pytest.raises(type(error)) as caught:
        retrying(call, deadline=Deadline.after_ms(60_000))
    assert caught.value is error
    assert (call.count, len(clock.slept)) == (2, 1)


def test_the_delays_double_up_to_two_seconds(clock):
    call = Calls(ConnectionLostError("gone"), endless=True)
    with pytest.raises(ConnectionLostError):
        retrying(call, deadline=Deadline.after_ms(60_000))
    wanted = 0.05
    for slept in clock.slept:
        assert wanted / 2 <= slept <= wanted
        wanted = min(2 * wanted, 2.0)
    # The tasks of one job do not retry all at once.
    assert len({slept / 2.0 for slept in clock.slept[8:]}) > 1


@pytest.mark.parametrize("timeout_ms", [1, 10, 49, 100, 777, 5000, 60_000])
def test_no_delay_exceeds_the_deadline(clock, timeout_ms):
    begin = clock.now
    call = Calls(ConnectionLostError("gone"), endless=True)
    with pytest.raises(ConnectionLostError):
        retrying(call, deadline=Deadline.after_ms(timeout_ms))
    assert clock.now - begin < timeout_ms / 1000
    # It does not give up while the remaining time exceeds the longest delay.
    assert clock.now - begin > timeout_ms / 1000 - 2.0
    assert call.count == len(clock.slept) + 1


def test_the_last_failure_is_reported(clock):
    errors = [ConnectionLostError(str(n)) for n in range(100)]
    call = Calls(*errors)
    with pytest.raises(ConnectionLostError) as caught:
        retrying(call, deadline=Deadline.after_ms(3000))
    assert caught.value is errors[call.count - 1]


def test_deadlines(clock):
    deadline = Deadline.after_ms(1500)
    assert deadline.remaining_seconds() == 1.5
    assert not deadline.expired
    clock.now += 1.5
    assert deadline.expired
    clock.now += 10
    assert deadline.remaining_seconds() == 0
