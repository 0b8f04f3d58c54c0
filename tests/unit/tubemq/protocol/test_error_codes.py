from __future__ import annotations

import pickle

import pytest

from spark_mq_source.core import errors
from spark_mq_source.tubemq.protocol.codec import decode_response
from spark_mq_source.tubemq.protocol.commands import RpcException
from spark_mq_source.tubemq.protocol.error_codes import StandbyError, error_for_code, error_for_exception
from spark_mq_source.tubemq.protocol.wire import take_frame
from tests.vectors import tubemq_calls

RPC = "org.apache.inlong.tubemq.corerpc.exception."


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        (0, errors.BrokerError, False),
        (201, errors.ServiceNotReadyError, True),
        (301, errors.BrokerError, False),
        (400, errors.BrokerError, False),
        (401, errors.ServiceNotReadyError, True),
        (403, errors.BrokerError, False),
        (404, errors.ServiceNotReadyError, True),
        (410, errors.ResourceBusyError, True),
        (411, errors.ServiceNotReadyError, True),
        (412, errors.BrokerError, False),
        (415, errors.AuthenticationError, False),
        (419, errors.ResourceBusyError, True),
        (424, errors.BrokerError, False),
        (425, errors.BrokerError, False),
        (426, errors.BrokerError, False),
        (431, errors.TopicNotFoundError, False),
        (450, errors.AuthorizationError, False),
        (452, errors.ResourceBusyError, True),
        (500, errors.BrokerError, False),
        (503, errors.ServiceNotReadyError, True),
        (999, errors.BrokerError, False),
    ],
)
def test_a_code_has_its_class(code: int, kind: type, retryable: bool) -> None:
    error = error_for_code(code, "words", "here")
    assert (type(error), error.retryable, error.code) == (kind, retryable, code)
    assert str(error).startswith("here: the server refused with ")
    assert f"({code}): words; " in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301 - our own bytes


def test_an_unknown_topic_is_distinguished_from_a_wrong_checksum() -> None:
    words = "topicName nope not existed, please check your configure"
    error = error_for_code(403, words, "")
    assert type(error) is errors.TopicNotFoundError
    # The broker may have it again soon: see `docs/guarantees/broker.md`.
    assert error.retryable
    assert pickle.loads(pickle.dumps(error)).retryable  # noqa: S301 - our own bytes
    assert type(error_for_code(403, "Checksum msg data failure: 1 of demo", "")) is errors.BrokerError


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (f"{RPC}StandbyException", StandbyError),
        (f"{RPC}ServerNotReadyException", errors.ServiceNotReadyError),
        (f"{RPC}ServiceStoppingException", errors.ServiceNotReadyError),
        (f"{RPC}OverflowException", errors.ResourceBusyError),
        ("com.google.protobuf.InvalidProtocolBufferException", errors.BrokerError),
        ("", errors.BrokerError),
    ],
)
def test_a_java_exception_has_its_class(name: str, kind: type) -> None:
    error = error_for_exception(name, "words", "")
    assert type(error) is kind
    assert error.code is None
    assert str(error).startswith("the server could not handle it (")


@pytest.mark.parametrize(
    ("service", "kind", "remedy"),
    [
        (1, errors.BrokerError, "this is not a master, or it is starting"),
        (2, errors.ServiceNotReadyError, "the broker is starting; this is usually temporary and is retried"),
        (3, errors.ServiceNotReadyError, "the broker is starting; this is usually temporary and is retried"),
    ],
)
@pytest.mark.parametrize(
    "words", ["No service {} found on the server", "java.lang.Exception: No service {} found on the server\n\tat x"]
)
def test_a_missing_service_means_a_starting_broker(service: int, kind: type, remedy: str, words: str) -> None:
    error = error_for_exception("java.lang.Exception", words.format(service), "register")
    assert (type(error), error.retryable) == (kind, kind is errors.ServiceNotReadyError)
    assert str(error).startswith("register: the server could not handle it (Exception): ")
    assert str(error).endswith(f"; {remedy}")


def test_a_recorded_standby_master_is_recognised() -> None:
    (recorded,) = [call for call in tubemq_calls() if "standby" in call.case]
    frame = take_frame(memoryview(recorded.answer), 0)
    assert frame is not None
    _, response = decode_response(frame)
    assert isinstance(response, RpcException)
    assert isinstance(error_for_exception(response.exception_name, response.stack_trace, ""), StandbyError)


def test_long_messages_are_truncated_to_one_line() -> None:
    text = str(error_for_code(500, "line\n\tline " + "x" * 2000, ""))
    assert "line line xxx" in text
    assert len(text) < 700
