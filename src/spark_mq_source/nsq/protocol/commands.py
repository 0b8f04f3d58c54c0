"""Commands and answers of NSQ's V2 protocol, as frozen dataclasses.

Source: TCP protocol specification V2, Commands; the answers as recorded from nsqd 1.3.0.

Where nsqd takes a command for one message, ours are for many: `Fin`, `Req` and `Touch` hold message ids one after the
other, 16 bytes each, and become that many commands in one piece (`messages.encode_id_commands`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias

ByteString = bytes | bytearray | memoryview

DEFAULT_MAX_RDY_COUNT: Final = 2500
"""nsqd's `-max-rdy-count` where it does not say its own: an nsqd without feature negotiation."""


_MAX_NAME: Final = 64
_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


def parse_name(text: str) -> str:
    """Check the name of a topic or a channel, and return it.

    The rules are nsqd's own (V2 specification, Notes; lengths of 1 to 64 with the suffix, seen on nsqd 1.3.0). They are
    kept here because a command ends at a newline and its words at spaces: nsqd 1.3.0 took ``PUB bad topic!`` for a
    publish to ``bad``.

    Raises:
        ValueError: not a name; the message gives the reason.

    Example:
        >>> parse_name("flights.2013#ephemeral")
        'flights.2013#ephemeral'
    """
    if not _NAME.fullmatch(text) or len(text) > _MAX_NAME:
        raise ValueError("expected 1 to 64 letters, digits and .-_ optionally followed by #ephemeral")
    return text


@dataclass(frozen=True, slots=True)
class Identify:
    """IDENTIFY: who we are and what we would like. None leaves a setting to nsqd.

    Attributes:
        client_id: shown in statistics.
        hostname: shown in statistics.
        user_agent: shown in statistics.
        heartbeat_interval_ms: 1000 up to nsqd's limit; without heartbeats nsqd 1.3.0 refuses SUB.
        output_buffer_bytes: what nsqd collects before it sends; 64 up to its limit.
        output_buffer_timeout_ms: and for how long; 1 up to its limit.
        msg_timeout_ms: after which a message that was not finished is delivered again.
        tls_v1: whether to upgrade to TLS.
        snappy: whether to compress by snappy.
        deflate: whether to compress by deflate; not both.
        deflate_level: 1 up to nsqd's limit, to which it lowers what is more.
        sample_rate: percentage of messages delivered; the others are gone for the channel; 0 means all.
        topology_region: where we are; in nsqd 1.3.0, not in the specification.
        topology_zone: the same, closer.
    """

    client_id: str
    hostname: str
    user_agent: str
    heartbeat_interval_ms: int = 30_000
    output_buffer_bytes: int | None = None
    output_buffer_timeout_ms: int | None = None
    msg_timeout_ms: int | None = None
    tls_v1: bool = False
    snappy: bool = False
    deflate: bool = False
    deflate_level: int | None = None
    sample_rate: int = 0
    topology_region: str | None = None
    topology_zone: str | None = None


@dataclass(frozen=True, slots=True)
class Auth:
    """AUTH: the secret; before SUB and the publishing commands where `Identified.auth_required`."""

    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sub:
    """SUB: once a connection; answered by `Ok`."""

    topic: str
    channel: str


@dataclass(frozen=True, slots=True)
class Rdy:
    """RDY: how many messages may be in flight at once; it is a ceiling, not a credit (seen on nsqd 1.3.0)."""

    count: int


@dataclass(frozen=True, slots=True)
class Fin:
    """FIN of each message; only the connection that it was delivered on may, and only failure is answered."""

    message_ids: ByteString


@dataclass(frozen=True, slots=True)
class Req:
    """REQ of each message: back into the queue, after `delay_ms` (nsqd 1.3.0 cuts it to its `-max-req-timeout`)."""

    message_ids: ByteString
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Touch:
    """TOUCH of each message: its timeout begins anew."""

    message_ids: ByteString


@dataclass(frozen=True, slots=True)
class Cls:
    """CLS: no more messages; answered by `CloseWait` once everything sent before it was done."""


@dataclass(frozen=True, slots=True)
class Nop:
    """NOP: a sign of life."""


@dataclass(frozen=True, slots=True)
class Pub:
    """PUB: one message; answered by `Ok`."""

    topic: str
    body: ByteString = field(repr=False)


@dataclass(frozen=True, slots=True)
class Mpub:
    """MPUB: many messages, all or none; answered by `Ok`.

    Attributes:
        topic: the topic.
        body: the number of messages and each with its size, see `wire`.
    """

    topic: str
    body: ByteString = field(repr=False)


@dataclass(frozen=True, slots=True)
class Dpub:
    """DPUB: one message, delivered `defer_ms` from now (0 up to nsqd's `-max-req-timeout`); answered by `Ok`."""

    topic: str
    defer_ms: int
    body: ByteString = field(repr=False)


Command: TypeAlias = Identify | Auth | Sub | Rdy | Fin | Req | Touch | Cls | Nop | Pub | Mpub | Dpub


@dataclass(frozen=True, slots=True)
class Ok:
    """OK."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A question for a sign of life; two without an answer end the connection (V2 specification)."""


@dataclass(frozen=True, slots=True)
class CloseWait:
    """CLOSE_WAIT, the answer to CLS: what was sent before it has been done, and its failures have been told."""


@dataclass(frozen=True, slots=True)
class Identified:
    """The answer to IDENTIFY: what the connection has.

    Attributes: the names are nsqd's own, with units.
    """

    max_rdy_count: int = DEFAULT_MAX_RDY_COUNT
    version: str = ""
    max_msg_timeout_ms: int = 900_000
    msg_timeout_ms: int = 60_000
    tls_v1: bool = False
    deflate: bool = False
    deflate_level: int = 0
    max_deflate_level: int = 0
    snappy: bool = False
    sample_rate: int = 0
    auth_required: bool = False
    output_buffer_bytes: int = 0
    output_buffer_timeout_ms: int = 0
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, slots=True)
class Authorized:
    """The answer to AUTH: who the authorization server says we are."""

    identity: str
    identity_url: str
    permission_count: int


@dataclass(frozen=True, slots=True)
class Failed:
    """E_FIN_FAILED, E_REQ_FAILED or E_TOUCH_FAILED: the message was not ours any more; the connection goes on.

    Attributes:
        command: ``FIN``, ``REQ`` or ``TOUCH``.
        message_id: whose; empty where nsqd's words do not have it.
        words: nsqd's own.
    """

    command: str
    message_id: bytes
    words: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Any other error: nsqd closes the connection after it.

    Attributes:
        code: such as ``E_BAD_TOPIC``.
        words: what nsqd says besides.
    """

    code: str
    words: str


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages as they came, whole frames one after the other.

    Attributes:
        data: the frames; a view of the receive buffer that keeps it alive.
        count: how many.
    """

    data: memoryview = field(repr=False)
    count: int


Response: TypeAlias = Ok | Heartbeat | CloseWait
