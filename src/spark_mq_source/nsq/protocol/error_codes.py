"""Maps nsqd's error codes to error classes, each with a remedy.

The codes are those of nsqd 1.3.0 (recorded, and E_PUB_FAILED to E_AUTH_ERROR from the V2 specification and nsqd's own
texts). The class's `retryable` is True if a retry can help.
"""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.broker_codes import AGAIN, Code, refusal
from spark_mq_source.core.errors import AuthenticationError, AuthorizationError, BrokerError, ServiceNotReadyError

AUTH_FAILED: Final = "E_AUTH_FAILED"

_STORED: Final = (ServiceNotReadyError, f"nsqd could not store it (its disk, or it is exiting); {AGAIN}")
_CODES: Final = {
    "E_BAD_PROTOCOL": (BrokerError, "is this the TCP port of an nsqd?"),
    "E_INVALID": (BrokerError, "nsqd does not accept this command in this state, or with these parameters"),
    "E_BAD_TOPIC": (BrokerError, "check the topic's name"),
    "E_BAD_CHANNEL": (BrokerError, "check the channel's name"),
    "E_BAD_BODY": (BrokerError, "a setting or a size beyond what nsqd is configured for"),
    "E_BAD_MESSAGE": (
        BrokerError,
        "nsqd does not accept this message; set maxMessageBytes to nsqd's -max-msg-size to find such rows earlier",
    ),
    "E_IDENTIFY_FAILED": (BrokerError, "nsqd refused the requested settings of the connection"),
    "E_AUTH_FIRST": (AuthenticationError, "set authSecret"),
    "E_AUTH_DISABLED": (AuthenticationError, "this nsqd has no authorization server; remove authSecret"),
    AUTH_FAILED: (
        AuthenticationError,
        "the authorization server refused authSecret, or nsqd could not reach that server",
    ),
    "E_AUTH_ERROR": (AuthenticationError, "nsqd could not use the answer of the authorization server"),
    "E_UNAUTHORIZED": (AuthorizationError, "ask for the permission on this topic and channel"),
    "E_SUB_FAILED": (ServiceNotReadyError, f"the channel is full of consumers, or being deleted; {AGAIN}"),
    "E_PUB_FAILED": _STORED,
    "E_MPUB_FAILED": _STORED,
    "E_DPUB_FAILED": _STORED,
}
_BODY_TOO_BIG: Final = (BrokerError, "set maxBodyBytes to nsqd's -max-body-size to send smaller ones")
_TLS_REQUIRED: Final = (BrokerError, "this nsqd requires TLS: set tls=true")


def error_for_code(code: str, words: str, context: str = "") -> BrokerError:
    """Return the error for an error frame.

    Args:
        code: nsqd's code; an unknown code is a plain BrokerError.
        words: the rest of nsqd's message; only the beginning is kept.
        context: the request, put in front; may be empty.

    Example:
        >>> error = error_for_code("E_UNAUTHORIZED", 'AUTH failed for PUB on "denied" ""')
        >>> type(error).__name__, error.retryable
        ('AuthorizationError', False)
        >>> print(error)  # doctest: +ELLIPSIS
        nsqd refused with E_UNAUTHORIZED: AUTH failed for PUB on "denied" ""; ask for the permission on this topic ...
    """
    known = _CODES.get(code, (BrokerError, "see nsqd's log"))
    if code == "E_INVALID" and "TLS" in words:
        known = _TLS_REQUIRED
    elif code == "E_BAD_BODY" and words.startswith("MPUB"):
        known = _BODY_TOO_BIG
    code = code[:64]  # an unknown one may be arbitrary data, which could fill the log
    return refusal(Code(code, *known), f"nsqd refused with {code}", words, context)
