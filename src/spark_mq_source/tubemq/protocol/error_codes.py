"""Maps the servers' error codes and Java exceptions to error classes, each with a remedy.

The codes are those of `TErrCodeConstants` of server 2.4.0 that a server sends; their meanings were observed on it. The
class's `retryable` is True if a retry can help.
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

NOT_READY: Final = 201
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
PARTITION_OCCUPIED: Final = 410
HB_NO_NODE: Final = 411
DUPLICATE_PARTITION: Final = 412
CERTIFICATE_FAILURE: Final = 415
SERVER_RECEIVE_OVERFLOW: Final = 419
TOPIC_NOT_DEPLOYED: Final = 431
CONSUME_GROUP_FORBIDDEN: Final = 450
SERVER_CONSUME_SPEED_LIMIT: Final = 452


class StandbyError(ServiceNotReadyError):
    """The master is on standby: try the next one."""


_GROUP = "all members of a group, Java consumers included, need the same settings; read with another group"
# A master that has just taken over may send brokers only the topics that it has read by then; a broker refuses all
# others until the master sends the rest: after half a second to 30 s, or hours (seen on 2.4.0).
_UNKNOWN_TO_BROKER: Final = (
    "if the master lists the topic there, an administrator lets the master send it to the broker again "
    "(admin_reload_broker_configure)"
)
_CODES: Final = {
    0: Code("no code", BrokerError, "the broker could not read one of its files: see its log"),
    NOT_READY: Code("NOT_READY", ServiceNotReadyError, f"the master has just started; {AGAIN}"),
    301: Code("MOVED", BrokerError, "the position is below what the broker still has"),
    400: Code("BAD_REQUEST", BrokerError, "the server does not accept a field of the request"),
    UNAUTHORIZED: Code(
        "UNAUTHORIZED", ServiceNotReadyError, "the partition is not, or no longer, this client's; it registers again"
    ),
    FORBIDDEN: Code(
        "FORBIDDEN", BrokerError, "check that the topic is on this broker and accepts this, and the partition's number"
    ),
    NOT_FOUND: Code("NOT_FOUND", ServiceNotReadyError, "there is nothing to read now at this position"),
    PARTITION_OCCUPIED: Code(
        "PARTITION_OCCUPIED",
        ResourceBusyError,
        "another client of the group reads this partition; it is free 30 s after that one has died",
    ),
    HB_NO_NODE: Code(
        "HB_NO_NODE", ServiceNotReadyError, "the server does not know this client, or no longer; it registers again"
    ),
    DUPLICATE_PARTITION: Code(
        "DUPLICATE_PARTITION", BrokerError, "another client of the same group has taken this partition over"
    ),
    CERTIFICATE_FAILURE: Code(
        "CERTIFICATE_FAILURE",
        AuthenticationError,
        "check authUser, authPassword (or authPlugin) and the clock, which may be 20 s off",
    ),
    SERVER_RECEIVE_OVERFLOW: Code(
        "SERVER_RECEIVE_OVERFLOW", ResourceBusyError, f"the topic's store on the broker is full now; {AGAIN}"
    ),
    421: Code("CLIENT_HIGH_FREQUENCY_REQUEST", ResourceBusyError, f"too many requests; {AGAIN}"),
    422: Code("PARTITION_UNSUBSCRIBABLE", BrokerError, "the topic accepts no readers here (acceptSubscribe)"),
    423: Code("PARTITION_UNPUBLISHABLE", BrokerError, "the topic accepts no messages here (acceptPublish)"),
    424: Code(
        "CLIENT_INCONSISTENT_CONSUMETYPE",
        BrokerError,
        f"the group has members with another kind of assignment (assignment=server or client); {_GROUP}",
    ),
    425: Code("CLIENT_INCONSISTENT_TOPICSET", BrokerError, f"the group has members with other topics; {_GROUP}"),
    426: Code("CLIENT_INCONSISTENT_FILTERSET", BrokerError, f"the group has members with other filters; {_GROUP}"),
    427: Code(
        "CLIENT_INCONSISTENT_SESSIONKEY",
        ResourceBusyError,
        "the group has members of another session (sessionKey), which must leave first; a member that died has left "
        "after 30 s",
    ),
    428: Code("CLIENT_INCONSISTENT_SELECTBIG", BrokerError, f"the group has members with another selection; {_GROUP}"),
    429: Code("CLIENT_INCONSISTENT_SOURCECOUNT", BrokerError, f"the group has another number of members; {_GROUP}"),
    430: Code("CLIENT_DUPLICATE_INDEXID", BrokerError, f"the group has a member with this number; {_GROUP}"),
    TOPIC_NOT_DEPLOYED: Code(
        "TOPIC_NOT_DEPLOYED", TopicNotFoundError, "check the names; an administrator adds topics to brokers"
    ),
    CONSUME_GROUP_FORBIDDEN: Code(
        "CONSUME_GROUP_FORBIDDEN",
        AuthorizationError,
        "the group may not read this topic: have an administrator authorize it, or set group to one that may",
    ),
    SERVER_CONSUME_SPEED_LIMIT: Code(
        "SERVER_CONSUME_SPEED_LIMIT", ResourceBusyError, "the group's flow control delays it"
    ),
    455: Code("CONSUME_CONTENT_FORBIDDEN", AuthorizationError, "the group may not read these filters"),
    500: Code("INTERNAL_SERVER_ERROR", BrokerError, "see the server's log"),
    503: Code("SERVICE_UNAVAILABLE", ServiceNotReadyError, f"the server is starting or stopping; {AGAIN}"),
    510: Code("INTERNAL_SERVER_ERROR_MSGSET_NULL", ServiceNotReadyError, f"its store was not readable; {AGAIN}"),
}

_NO_SERVICE: Final = re.compile(r"No service (\d+) found on the server")
"""The text of a `java.lang.Exception` (servers 2.4.0, `NettyRpcServer`)."""

_RPC: Final = "org.apache.inlong.tubemq.corerpc.exception."
_EXCEPTIONS: Final = {
    f"{_RPC}StandbyException": (StandbyError, "the next master is tried"),
    f"{_RPC}ServerNotReadyException": (ServiceNotReadyError, f"the server is starting; {AGAIN}"),
    f"{_RPC}ServiceStoppingException": (ServiceNotReadyError, f"the server is stopping; {AGAIN}"),
    f"{_RPC}OverflowException": (ResourceBusyError, f"the server is overloaded; {AGAIN}"),
}


def error_for_code(code: int, words: str, context: str) -> BrokerError:
    """Return the error for an answer.

    Args:
        code: `err_code`; an unknown code is a plain BrokerError.
        words: `err_msg`; only the beginning is kept.
        context: the request, put in front; may be empty.

    Example:
        >>> error = error_for_code(410, "has been registered by c1", "demo:0")
        >>> type(error).__name__, error.retryable, error.code_name
        ('ResourceBusyError', True, 'PARTITION_OCCUPIED')
        >>> print(error)  # doctest: +ELLIPSIS
        demo:0: the server refused with PARTITION_OCCUPIED (410): has been registered by c1; another client of ...
    """
    known = _CODES.get(code, Code("an unknown code", BrokerError, "see TubeMQ's documentation"))
    is_unknown = code == FORBIDDEN and "not existed" in words
    if is_unknown:
        known = known._replace(kind=TopicNotFoundError, remedy=_UNKNOWN_TO_BROKER)
    error = refusal(known, f"the server refused with {known.name} ({code})", words, context, code)
    error.retryable |= is_unknown
    return error


def error_for_exception(exception_name: str, words: str, context: str) -> BrokerError:
    """Return the error for a call that the server did not handle.

    Args:
        exception_name: a Java class; an unknown class is a plain BrokerError.
        words: its message; only the beginning is kept.
        context: the request, put in front; may be empty.

    Example:
        >>> error = error_for_exception("org.apache.inlong.tubemq.corerpc.exception.StandbyException", "m is not", "")
        >>> type(error).__name__, error.retryable, error.code_name
        ('StandbyError', True, 'StandbyException')
    """
    name = exception_name.rpartition(".")[2]
    kind, remedy = _EXCEPTIONS.get(exception_name, (BrokerError, "see the server's log"))
    if missing := _NO_SERVICE.search(words):
        # A broker listens before it has published its services (2 to read, 3 to write). Its address is from the
        # master's answer, so it is a broker; the address of a master (1) is from the user, and may be that of another
        # server.
        is_starting = missing[1] != "1"
        kind = ServiceNotReadyError if is_starting else BrokerError
        remedy = f"the broker is starting; {AGAIN}" if is_starting else "this is not a master, or it is starting"
    return refusal(Code(name, kind, remedy), f"the server could not handle it ({name})", words, context)
