"""All errors of this package, in one tree.

::

    MQSourceError
    ├── OptionError (also ValueError)      the user's options or schema
    ├── TransportError                     the network; retryable
    │   ├── ConnectTimeoutError
    │   ├── ConnectionLostError
    │   └── RequestTimeoutError
    ├── ProtocolError
    │   ├── LocalProtocolError             this package broke the protocol: a bug
    │   └── RemoteProtocolError            the peer broke it, or is not the expected broker
    ├── BrokerError                        the broker refused, with its own code
    │   ├── AuthenticationError  AuthorizationError
    │   ├── TopicNotFoundError   ResourceBusyError
    │   └── ServiceNotReadyError
    ├── CorruptMessageError                a message that cannot be decoded
    │   └── EncryptedMessageError
    │       └── UnreadableKeyError (also OptionError)
    ├── UnwritableRowError                 a row that cannot become a message
    ├── ReplayError                        rewritten rows differ from the stored rows
    ├── DataLossError                      messages of the range are lost
    ├── StorageError                       a local or object-store file cannot be read or written
    ├── TaskEndedError                     Spark has ended a task that was writing
    ├── EndOfStreamError                   a query has read all that its topics will ever have
    ├── TooManyAttemptsError               a message was delivered more often than the options allow
    └── UnsupportedFeatureError            the peer, Spark or an extra is missing

Spark's Python worker sends only the traceback's text to the JVM, so ``str(error)`` is the whole interface: one sentence
with format, topic-partition, position, broker address, the broker's code and the remedy, and never a secret. The
constructor takes one message, so that errors can be pickled; properties that code depends on are class attributes
(`retryable`) or keywords with a default.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "AuthenticationError",
    "AuthorizationError",
    "BrokerError",
    "ConnectTimeoutError",
    "ConnectionLostError",
    "CorruptMessageError",
    "DataLossError",
    "EncryptedMessageError",
    "EndOfStreamError",
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
    "UnreadableKeyError",
    "UnsupportedFeatureError",
    "UnwritableRowError",
]


SITE: Final = "https://spark-mq-source.readthedocs.io/"
"""The address of the documentation; `site_url` in mkdocs.yml is the same."""


class MQSourceError(Exception):
    """The base class of all errors of this package.

    Attributes:
        retryable: whether the same request may succeed on a new connection.

    Example:
        >>> issubclass(DataLossError, MQSourceError)
        True
    """

    # Spark shows the full name of an error's class; this is the name that users import.
    __module__ = "spark_mq_source"

    retryable: bool = False

    def __init_subclass__(cls) -> None:
        if cls.__module__ == __name__:
            cls.__module__ = MQSourceError.__module__

    @property
    def help_url(self) -> str:
        """The section of the documentation about errors of this class."""
        name = next(kind.__name__ for kind in type(self).__mro__ if kind.__name__ in __all__)
        return f"{SITE}troubleshooting/#{name.lower()}"

    def within(self, context: str) -> MQSourceError:
        """Return a copy of this error with `context` before its message.

        Outer layers use it to add the topic or the address; class and attributes stay the same.

        Example:
            >>> str(DataLossError("entries 3 to 9 are gone").within("pulsar-native topic t, partition 0"))
            'pulsar-native topic t, partition 0: entries 3 to 9 are gone'
        """
        error = type(self)(f"{context}: {self}")
        error.__dict__.update(self.__dict__)
        return error

    def with_remedy(self, remedy: str) -> MQSourceError:
        """Return a copy of this error with `remedy` after its message.

        Layers that know the user's options use it; class and attributes stay the same.

        Example:
            >>> str(TopicNotFoundError("no such topic; check its name").with_remedy(", or set createTopic=true"))
            'no such topic; check its name, or set createTopic=true'
        """
        error = type(self)(f"{self}{remedy}")
        error.__dict__.update(self.__dict__)
        return error


class OptionError(MQSourceError, ValueError):
    """An invalid option or schema column; one sentence reports all problems."""


class TransportError(MQSourceError):
    """A network failure; a new connection may work."""

    retryable = True


class ConnectTimeoutError(TransportError):
    """No connection, TLS session or protocol handshake before its deadline."""


class ConnectionLostError(TransportError):
    """The peer closed or reset the connection, or stopped answering keep-alives."""


class RequestTimeoutError(TransportError):
    """No answer to a request on a live connection before its deadline."""


class ProtocolError(MQSourceError):
    """Bytes or commands outside the protocol."""


class LocalProtocolError(ProtocolError):
    """This package violated the protocol: a bug to report."""


class RemoteProtocolError(ProtocolError):
    """The peer violated the protocol."""


class BrokerError(MQSourceError):
    """An error response of the broker.

    Attributes:
        code: the broker's error code; None if it sent none.
        code_name: the broker's name for the code.
        broker_message: the broker's message.
    """

    def __init__(self, message: str, *, code: int | None = None, code_name: str = "", broker_message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.code_name = code_name
        self.broker_message = broker_message


class AuthenticationError(BrokerError):
    """The credentials were not accepted."""


class AuthorizationError(BrokerError):
    """The credentials were accepted, but do not permit the request."""


class TopicNotFoundError(BrokerError):
    """The topic, its namespace or its tenant does not exist."""


class ResourceBusyError(BrokerError):
    """Another client holds the subscription, producer name or partition; retryable."""

    retryable = True


class ServiceNotReadyError(BrokerError):
    """The broker is temporarily unable to serve the request (loading, unloading, restarting); retryable."""

    retryable = True


class CorruptMessageError(MQSourceError):
    """A message whose checksum, compression or framing is wrong."""


class EncryptedMessageError(CorruptMessageError):
    """A message with an encrypted payload, if there is no key for it and `cryptoFailureAction` is `FAIL`."""


class UnreadableKeyError(EncryptedMessageError, OptionError):
    """A key of end-to-end encryption that may exist and cannot be read; `cryptoFailureAction` does not apply."""


class UnwritableRowError(MQSourceError):
    """A row that cannot become a message: too large, or not representable in the protocol."""


class ReplayError(MQSourceError):
    """The rows of a repeated write differ from the stored ones."""


class DataLossError(MQSourceError):
    """Messages of the range are no longer on the broker, or in the write-ahead log."""


class TooManyAttemptsError(MQSourceError):
    """A message was delivered more often than the options allow."""


class StorageError(MQSourceError):
    """A file cannot be read or written: the disk is full, the folder is read-only, or the store is unreachable."""


class TaskEndedError(MQSourceError):
    """Spark has ended this writing task."""


class EndOfStreamError(MQSourceError):
    """Not a failure: a query has read all that it is to read, by `endingOffsets` or `endAtTermination`."""


class UnsupportedFeatureError(MQSourceError):
    """The broker, the Spark version or an optional dependency lacks the requested feature."""
