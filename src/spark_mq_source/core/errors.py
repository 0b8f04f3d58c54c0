"""Every error this package raises, in one tree.

::

    MQSourceError
    ├── OptionError (also ValueError)      the user's options or schema
    ├── TransportError                     the network; retryable
    │   ├── ConnectTimeoutError
    │   ├── ConnectionLostError
    │   └── RequestTimeoutError
    ├── ProtocolError
    │   ├── LocalProtocolError             we broke the protocol: a bug here
    │   └── RemoteProtocolError            the peer broke it, or is not the broker we think
    ├── BrokerError                        the broker refused, with a code of its own
    │   ├── AuthenticationError  AuthorizationError
    │   ├── TopicNotFoundError   ResourceBusyError
    │   └── ServiceNotReadyError
    ├── CorruptMessageError                a message that cannot be decoded
    │   └── EncryptedMessageError
    ├── UnwritableRowError                 a row that cannot become a message
    ├── ReplayError                        what is written again is not what was written before
    ├── DataLossError                      data between two positions is gone
    ├── StorageError                       files of our own that cannot be written or read
    ├── TaskEndedError                     Spark has ended a task that was writing
    ├── TooManyAttemptsError               a message was delivered more often than the options allow
    └── UnsupportedFeatureError            the peer, Spark or an extra is missing

Spark's Python worker sends only the traceback's text to the JVM, so ``str(error)`` is the whole interface: one
sentence that names format, topic and partition, position, broker address, the broker's code and what to do, and never
a secret. Every class is built from one message, so that every one survives pickling; what a program needs to decide
upon is a class attribute (`retryable`) or a keyword with a default.
"""

from __future__ import annotations

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BrokerError",
    "ConnectTimeoutError",
    "ConnectionLostError",
    "CorruptMessageError",
    "DataLossError",
    "EncryptedMessageError",
    "LocalProtocolError",
    "MQSourceError",
    "OptionError",
    "ProtocolError",
    "RemoteProtocolError",
    "ReplayError",
    "RequestTimeoutError",
    "ResourceBusyError",
    "ServiceNotReadyError",
    "StorageError",
    "TaskEndedError",
    "TooManyAttemptsError",
    "TopicNotFoundError",
    "TransportError",
    "UnsupportedFeatureError",
    "UnwritableRowError",
]


class MQSourceError(Exception):
    """The root: catch this to catch everything this package raises.

    Attributes:
        retryable: True where the same request may succeed on a new connection.

    Example:
        >>> issubclass(DataLossError, MQSourceError)
        True
    """

    retryable: bool = False

    def within(self, context: str) -> MQSourceError:
        """The same error, of the same class, with `context` put before its sentence.

        Layers that know more (the topic, the address) add it on the way up; nothing is nested or lost.

        Example:
            >>> str(DataLossError("entries 3 to 9 are gone").within("pulsar-native topic t, partition 0"))
            'pulsar-native topic t, partition 0: entries 3 to 9 are gone'
        """
        error = type(self)(f"{context}: {self}")
        error.__dict__.update(self.__dict__)
        return error


class OptionError(MQSourceError, ValueError):
    """An option or a schema column that cannot be used; all problems are in the one sentence."""


class TransportError(MQSourceError):
    """The network failed; a new connection may work."""

    retryable = True


class ConnectTimeoutError(TransportError):
    """No connection, TLS session or protocol handshake within its deadline."""


class ConnectionLostError(TransportError):
    """The peer closed, reset, or stopped answering keep-alives."""


class RequestTimeoutError(TransportError):
    """A request on a live connection had no answer before its deadline."""


class ProtocolError(MQSourceError):
    """Bytes or commands outside the protocol."""


class LocalProtocolError(ProtocolError):
    """This package tried something the protocol forbids: a bug to report."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something the protocol forbids."""


class BrokerError(MQSourceError):
    """The broker answered with an error.

    Attributes:
        code: the broker's own code, as a number; None where it gave none.
        code_name: the broker's own name of that code.
        broker_message: the broker's own words.
    """

    def __init__(self, message: str, *, code: int | None = None, code_name: str = "", broker_message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.code_name = code_name
        self.broker_message = broker_message


class AuthenticationError(BrokerError):
    """Who we are was not accepted."""


class AuthorizationError(BrokerError):
    """Who we are was accepted, what we asked was not allowed."""


class TopicNotFoundError(BrokerError):
    """The topic, or the namespace or tenant it would be in, does not exist."""


class ResourceBusyError(BrokerError):
    """Somebody else holds the subscription, producer name or partition; retryable."""

    retryable = True


class ServiceNotReadyError(BrokerError):
    """The broker cannot serve this now (loading, unloading, restarting); retryable."""

    retryable = True


class CorruptMessageError(MQSourceError):
    """A message whose checksum, compression or framing is wrong."""


class EncryptedMessageError(CorruptMessageError):
    """A message whose payload is encrypted, where only plain ones can be read."""


class UnwritableRowError(MQSourceError):
    """A row that cannot become a message: too large, or with what the protocol has no place for."""


class ReplayError(MQSourceError):
    """Rows that are written again, in place of what is stored of them already, are not the same rows."""


class DataLossError(MQSourceError):
    """Messages that should be in the range are gone from the broker, or from the folder that kept them."""


class TooManyAttemptsError(MQSourceError):
    """A message was delivered more often than the options allow."""


class StorageError(MQSourceError):
    """A file of our own that cannot be written or read: the disk is full, the folder read-only, the store away."""


class TaskEndedError(MQSourceError):
    """Spark has ended a task that was writing, and nobody waits for it any more."""


class UnsupportedFeatureError(MQSourceError):
    """The broker, the Spark version or an optional dependency lacks what was asked for."""
