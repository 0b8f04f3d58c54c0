"""The settings of an embedded broker: nsqd's flags under their own names, with nsqd 1.3.0's defaults."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

VERSION: Final = "1.3.0"
"""The nsqd whose behaviour is kept, and which the broker says it is."""


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """What a client's AUTH tells; nsqd sends the same to its authorization server.

    Attributes:
        secret: the client's secret.
        remote_ip: where it connects from.
        tls: whether the connection is encrypted.
        common_name: of the client's certificate; empty if it gave none.
    """

    secret: str
    remote_ip: str
    tls: bool
    common_name: str


@dataclass(frozen=True, slots=True)
class Authorization:
    """One thing that a client may do.

    Attributes:
        topic: a regular expression, searched for in the topic's name.
        channels: regular expressions, one of which must be found in the channel's name (empty for publishing).
        permissions: `subscribe`, `publish` or both.
    """

    topic: str = ".*"
    channels: Sequence[str] = (".*",)
    permissions: Sequence[Literal["subscribe", "publish"]] = ("subscribe", "publish")


@dataclass(frozen=True, slots=True)
class AuthorizedClient:
    """Who a client is, and what it may do.

    Attributes:
        identity: its name, which the client is told.
        authorizations: none refuses the client.
        identity_url: the client is told this too.
        ttl_s: seconds after which the broker asks again.
    """

    identity: str
    authorizations: Sequence[Authorization] = (Authorization(),)
    identity_url: str = ""
    ttl_s: float = 3600.0


Authorize = Callable[[AuthRequest], AuthorizedClient | None]
"""Decides about a client's AUTH; None refuses the secret."""


@dataclass(frozen=True, slots=True)
class NsqSettings:
    """What nsqd's command line sets. Where a name ends in a unit, nsqd takes a duration.

    Attributes:
        broadcast_address: what lookups answer for the broker's host.
        node_id: part of every message id, 0 to 1023; None derives it from the host name, as nsqd does, so that two
            brokers of one host give the same ids to different messages.
        msg_timeout_ms: a message that is not answered for this long is delivered again, unless the client asked for
            another time.
        max_msg_timeout_ms: the longest a client may ask for, and the longest that TOUCH can hold a message.
        max_msg_size: bytes of one message.
        max_body_size: bytes of one command's body.
        max_req_timeout_ms: the longest delay of REQ and DPUB.
        client_timeout_ms: twice the interval of heartbeats.
        max_heartbeat_interval_ms: the longest interval that a client may ask for.
        max_rdy_count: the most messages that one client may have in flight.
        max_output_buffer_size: bytes that a client may ask for.
        max_output_buffer_timeout_ms: what a client may ask for, at most.
        min_output_buffer_timeout_ms: what a client may ask for, at least.
        output_buffer_timeout_ms: what a client is told if it does not ask.
        max_channel_consumers: subscribers of one channel; 0 for any number.
        mem_queue_size: messages of a topic or channel that a crash loses; the others are on nsqd's disk, here in
            memory too, but kept. An ephemeral topic or channel drops what comes when it holds this many.
        sync_every: after so many messages written or read it is safe from a crash where on disk a queue begins.
        sync_timeout_ms: and after so long.
        tls_cert: PEM file of the server's certificate; enables TLS.
        tls_key: PEM file of its private key.
        tls_root_ca_file: PEM file of the authority of client certificates.
        tls_client_auth_policy: `require-verify` demands a client certificate of that authority (and TLS).
        tls_required: refuses what is not encrypted; `tcp-https` leaves HTTP open.
        deflate: whether clients may have deflate.
        max_deflate_level: the highest level that a client gets, 1 to 9.
        snappy: whether clients may have snappy.
        topology_region: the broker's region, which clients are told.
        topology_zone: the broker's zone, which clients are told.
        authorize: decides about AUTH; None switches authorization off.
    """

    broadcast_address: str = "127.0.0.1"
    node_id: int | None = None
    msg_timeout_ms: int = 60_000
    max_msg_timeout_ms: int = 900_000
    max_msg_size: int = 1024 * 1024
    max_body_size: int = 5 * 1024 * 1024
    max_req_timeout_ms: int = 3_600_000
    client_timeout_ms: int = 60_000
    max_heartbeat_interval_ms: int = 60_000
    max_rdy_count: int = 2500
    max_output_buffer_size: int = 64 * 1024
    max_output_buffer_timeout_ms: int = 30_000
    min_output_buffer_timeout_ms: int = 25
    output_buffer_timeout_ms: int = 250
    max_channel_consumers: int = 0
    mem_queue_size: int = 10_000
    sync_every: int = 2500
    sync_timeout_ms: int = 2000
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    tls_root_ca_file: str | Path | None = None
    tls_client_auth_policy: Literal["", "require-verify"] = ""
    tls_required: bool | Literal["tcp-https"] = False
    deflate: bool = True
    max_deflate_level: int = 6
    snappy: bool = True
    topology_region: str = ""
    topology_zone: str = ""
    authorize: Authorize | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Checks what nsqd checks when it starts.

        Raises:
            ValueError: a setting is out of range, or TLS is demanded without a certificate.
        """
        if not 1 <= self.max_deflate_level <= 9:
            raise ValueError(f"max_deflate_level must be 1 to 9, not {self.max_deflate_level}")
        if self.sync_every < 1 or self.sync_timeout_ms < 1:
            raise ValueError(
                f"sync_every and sync_timeout_ms must be at least 1, not {self.sync_every} and {self.sync_timeout_ms}"
            )
        if self.node_id is not None and not 0 <= self.node_id < 1024:
            raise ValueError(f"node_id must be 0 to 1023, not {self.node_id}")
        if self.tls_client_auth_policy not in ("", "require-verify"):
            raise ValueError(
                f"tls_client_auth_policy must be empty or 'require-verify', not {self.tls_client_auth_policy!r}"
            )
        if self.needs_tls and self.tls_cert is None:
            raise ValueError("TLS is required, but there is no tls_cert")

    @property
    def needs_tls(self) -> bool:
        """Whether a connection must be encrypted; a client certificate can only be demanded of one that is."""
        return bool(self.tls_required) or bool(self.tls_client_auth_policy)

    @property
    def effective_node_id(self) -> int:
        """The number in every message id."""
        return zlib.crc32(socket.gethostname().encode()) % 1024 if self.node_id is None else self.node_id

    def config(self, lookupds: Sequence[str]) -> Mapping[str, object]:
        """What `GET /config/<name>` answers: durations in nanoseconds."""
        names = [
            "broadcast_address", "max_msg_size", "max_body_size", "max_rdy_count", "max_output_buffer_size",
            "max_channel_consumers", "mem_queue_size", "sync_every", "tls_client_auth_policy", "deflate",
            "max_deflate_level", "snappy", "topology_region", "topology_zone",
        ]  # fmt: skip
        durations = [
            "msg_timeout", "max_msg_timeout", "max_req_timeout", "max_heartbeat_interval", "max_output_buffer_timeout",
            "min_output_buffer_timeout", "output_buffer_timeout", "sync_timeout",
        ]  # fmt: skip
        return {
            "id": self.effective_node_id,
            "nsqlookupd_tcp_addresses": list(lookupds),
            **{name: getattr(self, name) for name in names},
            **{name: getattr(self, f"{name}_ms") * 1_000_000 for name in durations},
        }
