from __future__ import annotations

import pickle

import pytest

from spark_mq_source.core.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ResourceBusyError,
    ServiceNotReadyError,
    TopicNotFoundError,
)
from spark_mq_source.pulsar.protocol.error_codes import error_for_code

# Numbers and names are those of ServerError in Pulsar's protocol; the class and `retryable` are ours.
CODES = [
    (0, "UnknownError", ServiceNotReadyError),
    (1, "MetadataError", ServiceNotReadyError),
    (2, "PersistenceError", ServiceNotReadyError),
    (3, "AuthenticationError", AuthenticationError),
    (4, "AuthorizationError", AuthorizationError),
    (5, "ConsumerBusy", ResourceBusyError),
    (6, "ServiceNotReady", ServiceNotReadyError),
    (7, "ProducerBlockedQuotaExceededError", ResourceBusyError),
    (8, "ProducerBlockedQuotaExceededException", BrokerError),
    (9, "ChecksumError", BrokerError),
    (10, "UnsupportedVersionError", BrokerError),
    (11, "TopicNotFound", TopicNotFoundError),
    (12, "SubscriptionNotFound", BrokerError),
    (13, "ConsumerNotFound", ServiceNotReadyError),
    (14, "TooManyRequests", ServiceNotReadyError),
    (15, "TopicTerminatedError", BrokerError),
    (16, "ProducerBusy", ResourceBusyError),
    (17, "InvalidTopicName", BrokerError),
    (18, "IncompatibleSchema", BrokerError),
    (19, "ConsumerAssignError", ResourceBusyError),
    (20, "TransactionCoordinatorNotFound", ServiceNotReadyError),
    (21, "InvalidTxnStatus", BrokerError),
    (22, "NotAllowedError", BrokerError),
    (23, "TransactionConflict", BrokerError),
    (24, "TransactionNotFound", BrokerError),
    (25, "ProducerFenced", BrokerError),
    (26, "an unknown code", BrokerError),
    (-1, "an unknown code", BrokerError),
]


@pytest.mark.parametrize(("code", "name", "kind"), CODES)
def test_every_code_has_a_class_and_a_message_that_survive_pickling(
    code: int, name: str, kind: type[BrokerError]
) -> None:
    error = error_for_code(code, "the broker's words", "LOOKUP of t")
    assert type(error) is kind
    assert error.retryable is (kind in {ServiceNotReadyError, ResourceBusyError})
    assert (error.code, error.code_name, error.broker_message) == (code, name, "the broker's words")
    text = str(error)
    assert text.startswith(f"LOOKUP of t: the broker refused with {name} ({code}): the broker's words; ")
    assert len(text.split("; ", 1)[1]) > 10
    copy = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert (type(copy), str(copy), copy.__dict__) == (kind, text, error.__dict__)


_COMPACTED = "Failed to read last entry of the compacted Ledger "


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        ("Encryption is required in persistent://public/default/t", "set cryptoPublicKeys"),
        ("Messages must be encrypted", "cryptoFailureAction=SEND"),
        # As seen on 4.0.8, for an encrypted batch.
        (f"{_COMPACTED}Some required fields are missing", "batching=false"),
        (f"{_COMPACTED}Invalid unknown tag type: 6", "batching=false"),
        (f"{_COMPACTED}readerIndex(330) + length(74) exceeds writerIndex(397): AbstractPooled", "batching=false"),
        (f"{_COMPACTED}Error while recovering ledger", None),
    ],
)
def test_metadata_errors_that_are_not_retryable(words: str, remedy: str | None) -> None:
    error = error_for_code(1, words, "PRODUCER")
    assert error.retryable == (remedy is None)
    assert remedy is None or remedy in str(error)


def test_a_missing_context_or_message_leaves_no_gap() -> None:
    assert str(error_for_code(6, "", "")).startswith("the broker refused with ServiceNotReady (6); ")


def test_a_stack_trace_is_truncated_to_one_line() -> None:
    error = error_for_code(0, "java.lang.IllegalStateException\n\tat Broker.java:1" * 100, "SUBSCRIBE")
    assert "\n" not in str(error)
    assert len(str(error)) < 800
    assert len(error.broker_message) > 1000
