"""Maps the broker's error codes to error classes, each with a remedy.

The codes are `ServerError` of Pulsar's protocol (0 to 25 on broker 4.0.8). The class's `retryable` is True if a retry
can help; observations of broker 4.0.8 decide it (for example, a restarting broker first answers PersistenceError).
"""

from __future__ import annotations

import re
from typing import Final

from spark_mq_source.core.broker_codes import AGAIN, Code, refusal
from spark_mq_source.core.errors import (
    AuthenticationError,
    AuthorizationError,
    BrokerError,
    ResourceBusyError,
    ServiceNotReadyError,
    TopicNotFoundError,
)

_CODES = {
    0: Code("UnknownError", ServiceNotReadyError, f"the broker's log knows more; {AGAIN}"),
    1: Code("MetadataError", ServiceNotReadyError, f"the broker's metadata or the consumer asked for; {AGAIN}"),
    2: Code("PersistenceError", ServiceNotReadyError, f"its storage (BookKeeper) is not ready; {AGAIN}"),
    3: Code(
        "AuthenticationError",
        AuthenticationError,
        "check authToken, authTokenFile, authTokenSupplier, authIssuerUrl, authBasicUser with authBasicPassword, "
        "clientCert with clientKey, or authPlugin: wrong, expired, or not what this broker takes",
    ),
    4: Code("AuthorizationError", AuthorizationError, "ask for consume (produce to write) permission on the namespace"),
    5: Code("ConsumerBusy", ResourceBusyError, "another consumer holds this subscription; one query at a time may"),
    6: Code("ServiceNotReady", ServiceNotReadyError, f"the topic is being moved or loaded; {AGAIN}"),
    7: Code(
        "ProducerBlockedQuotaExceededError", ResourceBusyError, "the topic's backlog quota is full; consume or raise it"
    ),
    8: Code("ProducerBlockedQuotaExceededException", BrokerError, "the topic's backlog quota is full; raise it"),
    9: Code("ChecksumError", BrokerError, "bytes were damaged between here and the broker; run it again"),
    10: Code("UnsupportedVersionError", BrokerError, "the broker is too old or too new for this request"),
    11: Code("TopicNotFound", TopicNotFoundError, "check the names of topic, namespace and tenant"),
    12: Code("SubscriptionNotFound", BrokerError, "check the subscription's name"),
    13: Code("ConsumerNotFound", ServiceNotReadyError, f"the consumer was closed meanwhile; {AGAIN}"),
    14: Code("TooManyRequests", ServiceNotReadyError, f"the broker limits requests; {AGAIN}"),
    15: Code("TopicTerminatedError", BrokerError, "a terminated topic takes no more messages; write to another one"),
    16: Code("ProducerBusy", ResourceBusyError, "another producer has this name, or the topic for itself"),
    17: Code("InvalidTopicName", BrokerError, "write persistent://tenant/namespace/topic, or a topic's short name"),
    18: Code(
        "IncompatibleSchema",
        BrokerError,
        "write what fits the topic's schema (`pulsar-admin schemas get`), or have it or the namespace's rules changed",
    ),
    19: Code(
        "ConsumerAssignError", ResourceBusyError, "the subscription is used with another type, or others have its keys"
    ),
    20: Code("TransactionCoordinatorNotFound", ServiceNotReadyError, f"are they enabled? If so, {AGAIN}"),
    21: Code("InvalidTxnStatus", BrokerError, "the transaction is already committed or aborted"),
    22: Code("NotAllowedError", BrokerError, "the broker's configuration or policies forbid this"),
    23: Code("TransactionConflict", BrokerError, "another transaction has touched the same messages"),
    24: Code("TransactionNotFound", BrokerError, "the transaction ended before, or timed out: its outcome is unknown"),
    25: Code(
        "ProducerFenced",
        BrokerError,
        "with this accessMode the topic is for one producer, and others are connected or have taken over",
    ),
}


_FINAL_METADATA_ERRORS: Final = {
    # Broker 2.10.1's answer to LOOKUP and PARTITIONED_METADATA of a missing namespace.
    r"Namespace not found": (TopicNotFoundError, _CODES[11].remedy),
    # PRODUCER without encryption, if the namespace requires it (seen on 4.0.8).
    r"Encryption is required": (BrokerError, "set cryptoPublicKeys, or cryptoKeyReader with encryptionKeys"),
    # SEND without encryption, by a producer that announced it (4.0.8, `Producer.checkAndStartPublish`).
    r"Messages must be encrypted": (
        BrokerError,
        "a public key could not be read, and cryptoFailureAction=SEND sends without encryption: provide the keys",
    ),
    # GET_LAST_MESSAGE_ID of a compacted topic if the compacted ledger ends with an encrypted batch: the broker tries to
    # count its messages, and reports one of these errors of its parser (seen on 4.0.8).
    r"Failed to read last entry of the compacted Ledger (Some required fields are missing|Invalid unk|readerIndex\()": (
        BrokerError,
        "its last batch is encrypted, and the broker cannot count its messages: read without readCompacted, or write "
        "to this topic with batching=false and compact it again",
    ),
}
"""Beginnings of texts with MetadataError that no retry changes, with the error and the remedy."""


def error_for_code(code: int, broker_message: str, context: str) -> BrokerError:
    """Return the error for a broker's answer.

    Args:
        code: `ServerError`; an unknown code is a plain BrokerError.
        broker_message: the broker's text; only the beginning is kept.
        context: the request, put in front; may be empty.

    Example:
        >>> error = error_for_code(5, "Exclusive consumer is already connected", "subscription s")
        >>> type(error).__name__, error.retryable, error.code_name
        ('ResourceBusyError', True, 'ConsumerBusy')
        >>> print(error)  # doctest: +ELLIPSIS
        subscription s: the broker refused with ConsumerBusy (5): Exclusive consumer is already connected; another ...
    """
    name, kind, remedy = _CODES.get(code, Code("an unknown code", BrokerError, "see the broker's documentation"))
    if name == "MetadataError":
        words = " ".join(broker_message.split())
        final = (found for start, found in _FINAL_METADATA_ERRORS.items() if re.match(start, words))
        kind, remedy = next(final, (kind, remedy))
    return refusal(Code(name, kind, remedy), f"the broker refused with {name} ({code})", broker_message, context, code)
