"""Commands and answers of NSQ's V2 protocol, as frozen dataclasses.

Source: TCP protocol specification V2, Commands; the answers as recorded from nsqd 1.3.0.

nsqd's commands `FIN`, `REQ` and `TOUCH` are for one message; `Fin`, `Req` and `Touch` have concatenated message ids of
16 bytes each, and become one command for each (`messages.encode_id_commands`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias

ByteString = bytes | bytearray | memoryview

DEFAULT_MAX_RDY_COUNT: Final = 2500
"""Default of nsqd's `-max-rdy-count`, for an nsqd without feature negotiation."""

OFF: Final = -1
"""The value of a setting of IDENTIFY that switches off heartbeats, a buffer or its time limit."""

_MAX_NAME: Final = 64
_NAME: Final = re.compile(r"[.a-zA-Z0-9_-]+(#ephemeral)?")


def parse_name(text: str) -> str:
    """Check the name of a topic or a channel, and return it.

    The rules are nsqd's own (V2 specification, Notes; lengths of 1 to 64 with the suffix, seen on nsqd 1.3.0). They are
    checked here because a command ends at a newline and its words at spaces: nsqd 1.3.0 accepted ``PUB bad topic!`` as
    a publish to ``bad``.

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
    """IDENTIFY: the client's name and the settings that it requests (see `NsqOptions`); None means nsqd's default."""

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
    """AUTH: the secret; before SUB and the publishing commands, with `Identified.auth_required`."""

    secret: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sub:
    """SUB: once per connection; answered by `Ok`."""

    topic: str
    channel: str


@dataclass(frozen=True, slots=True)
class Rdy:
    """RDY: maximum number of messages in flight; a ceiling, not a credit (seen on nsqd 1.3.0)."""

    count: int


@dataclass(frozen=True, slots=True)
class Fin:
    """FIN of each message, on the connection that received it; only a failure is answered."""

    message_ids: ByteString


@dataclass(frozen=True, slots=True)
class Req:
    """REQ of each message: requeues it, after `delay_ms` (which nsqd 1.3.0 limits to `-max-req-timeout`)."""

    message_ids: ByteString
    delay_ms: int = 0


@dataclass(frozen=True, slots=True)
class Touch:
    """TOUCH of each message: restarts its timeout."""

    message_ids: ByteString


@dataclass(frozen=True, slots=True)
class Cls:
    """CLS: stops deliveries; answered by `CloseWait` after all earlier commands."""


@dataclass(frozen=True, slots=True)
class Nop:
    """NOP: the answer to a heartbeat."""


@dataclass(frozen=True, slots=True)
class Pub:
    """PUB: one message; answered by `Ok`."""

    topic: str
    body: ByteString = field(repr=False)


@dataclass(frozen=True, slots=True)
class Mpub:
    """MPUB: many messages, all or none; answered by `Ok`.

    Attributes:
        body: the number of messages, and each message with its size, see `wire`.
    """

    topic: str
    body: ByteString = field(repr=False)


@dataclass(frozen=True, slots=True)
class Dpub:
    """DPUB: one message, delivered after `defer_ms` (0 up to nsqd's `-max-req-timeout`); answered by `Ok`."""

    topic: str
    defer_ms: int
    body: ByteString = field(repr=False)


Command: TypeAlias = Identify | Auth | Sub | Rdy | Fin | Req | Touch | Cls | Nop | Pub | Mpub | Dpub


@dataclass(frozen=True, slots=True)
class Ok:
    """OK."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A heartbeat; after two without an answer nsqd closes the connection (V2 specification)."""


@dataclass(frozen=True, slots=True)
class CloseWait:
    """CLOSE_WAIT, the answer to CLS: all earlier commands are done, and their failures were reported."""


@dataclass(frozen=True, slots=True)
class Identified:
    """The answer to IDENTIFY: the settings of the connection.

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
    output_buffer_bytes: int = 16_384
    output_buffer_timeout_ms: int = 250
    topology_region: str = ""
    topology_zone: str = ""


@dataclass(frozen=True, slots=True)
class Authorized:
    """The answer to AUTH: the client's identity by the authorization server."""

    identity: str
    identity_url: str
    permission_count: int


@dataclass(frozen=True, slots=True)
class Failed:
    """E_FIN_FAILED, E_REQ_FAILED or E_TOUCH_FAILED: the message was no longer ours; the connection stays open.

    Attributes:
        command: ``FIN``, ``REQ`` or ``TOUCH``.
        message_id: the message's id; empty if nsqd's text does not contain it.
        words: nsqd's text.
    """

    command: str
    message_id: bytes
    words: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Any other error: nsqd closes the connection after it.

    Attributes:
        code: such as ``E_BAD_TOPIC``.
        words: the rest of nsqd's text.
    """

    code: str
    words: str


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages as received: complete frames, concatenated.

    Attributes:
        data: the frames; a view of the receive buffer that keeps it alive.
    """

    data: memoryview = field(repr=False)
    count: int


Response: TypeAlias = Ok | Heartbeat | CloseWait
