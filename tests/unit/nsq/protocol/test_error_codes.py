from __future__ import annotations

import pickle

import pytest

from spark_mq_source.core.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    LocalProtocolError,
    ServiceNotReadyError,
)
from spark_mq_source.nsq.protocol.error_codes import error_for_code
from tests.unit.nsq.vectors import FROM_NSQD


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("E_INVALID", BrokerError, False),
        ("E_BAD_TOPIC", BrokerError, False),
        ("E_AUTH_FIRST", AuthenticationError, False),
        ("E_AUTH_FAILED", AuthenticationError, False),
        ("E_UNAUTHORIZED", AuthorizationError, False),
        ("E_SUB_FAILED", ServiceNotReadyError, True),
        ("E_PUB_FAILED", ServiceNotReadyError, True),
        ("E_MPUB_FAILED", ServiceNotReadyError, True),
        ("E_DPUB_FAILED", ServiceNotReadyError, True),
        ("E_NEVER_HEARD_OF", BrokerError, False),
    ],
)
def test_codes_are_errors_of_their_kind(code: str, kind: type[BrokerError], retryable: bool) -> None:
    error = error_for_code(code, "some words", "publishing")
    assert type(error) is kind
    assert error.retryable is retryable
    assert str(error).startswith(f"publishing: nsqd refused with {code}: some words; ")
    assert (error.code_name, error.broker_message) == (code, "some words")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own


def test_every_code_that_was_recorded_is_known() -> None:
    codes = {frame[8:].split()[0].decode() for frame in FROM_NSQD if frame[7] == 1}
    not_fatal = {"E_FIN_FAILED", "E_REQ_FAILED", "E_TOUCH_FAILED"}
    for code in codes - not_fatal:
        assert "see nsqd's log" not in str(error_for_code(code, "")), code
    assert len(codes) > 10


def test_the_error_of_a_broker_that_requires_tls_is_recognised() -> None:
    error = error_for_code("E_INVALID", "cannot SUB in current state (TLS disabled)")
    assert "set tls=true" in str(error)


def test_long_messages_are_truncated() -> None:
    error = error_for_code("E_INVALID" + "x" * 1000, "long " * 1000)
    assert len(str(error)) < 800
    assert not isinstance(error, LocalProtocolError)
