"""The settings of an embedded broker: nsqd's flags with the names and defaults of nsqd 1.3.0."""

from __future__ import annotations

import socket
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

VERSION: Final = "1.3.0"
"""The nsqd version that the broker emulates and reports."""


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """The data of a client's AUTH, as nsqd sends it to its authorization server.

    Attributes:
        secret: the client's secret.
        remote_ip: the client's address.
        tls: whether the connection is encrypted.
        common_name: common name of the client's certificate; empty without one.
    """

    secret: str
    remote_ip: str
    tls: bool
    common_name: str


@dataclass(frozen=True, slots=True)
class Authorization:
    """One permission of a client.

    Attributes:
        topic: regular expression, searched in the topic's name.
        channels: regular expressions; one must match in the channel's name (which is empty for publishing).
        permissions: `subscribe`, `publish` or both.
    """

    topic: str = ".*"
    channels: Sequence[str] = (".*",)
    permissions: Sequence[Literal["subscribe", "publish"]] = ("subscribe", "publish")


@dataclass(frozen=True, slots=True)
class AuthorizedClient:
    """A client's identity and permissions.

    Attributes:
        identity: the client's name, sent to the client.
        authorizations: permissions; none refuses the client.
        identity_url: sent to the client.
        ttl_s: seconds until the broker calls `authorize` again.
    """

    identity: str
    authorizations: Sequence[Authorization] = (Authorization(),)
    identity_url: str = ""
    ttl_s: float = 3600.0


Authorize = Callable[[AuthRequest], AuthorizedClient | None]
"""Authorizes a client; None refuses the secret."""


@dataclass(frozen=True, slots=True)
class NsqSettings:
    """The flags of nsqd. Names with a unit suffix are durations in nsqd.

    Attributes:
        broadcast_address: the broker's host in lookups.
        node_id: part of every message id, 0 to 1023; None derives it from the host name, as in nsqd, so that two
            brokers on one host can give the same id to different messages.
        msg_timeout_ms: time after which an unanswered message is redelivered, unless the client sets another one.
        max_msg_timeout_ms: the longest timeout of a client, and the longest time that TOUCH can hold a message.
        max_msg_size: maximum bytes of a message.
        max_body_size: maximum bytes of a command's body.
        max_req_timeout_ms: the longest delay of REQ and DPUB.
        client_timeout_ms: twice the interval of heartbeats.
        max_heartbeat_interval_ms: the longest interval that a client may set.
        max_rdy_count: maximum number of messages in flight per client.
        max_output_buffer_size: maximum bytes that a client may set.
        max_output_buffer_timeout_ms: maximum that a client may set.
        min_output_buffer_timeout_ms: minimum that a client may set.
        output_buffer_timeout_ms: default for clients.
        max_channel_consumers: maximum number of subscribers of a channel; 0 for no limit.
        mem_queue_size: number of messages of a topic or channel in memory, which a crash loses. nsqd keeps further
            messages on disk; here they are in memory too, but survive. An ephemeral topic or channel drops messages
            beyond this number.
        sync_every: number of messages written or read after which a queue's position on disk is synced.
        sync_timeout_ms: time after which it is synced.
        tls_cert: PEM file of the server's certificate; enables TLS.
        tls_key: PEM file of its private key.
        tls_root_ca_file: PEM file of the authority for client certificates.
        tls_client_auth_policy: `require-verify` requires a client certificate of that authority (and TLS).
        tls_required: refuses unencrypted connections; `tcp-https` allows plain HTTP.
        deflate: whether clients may use deflate.
        max_deflate_level: the highest level for clients, 1 to 9.
        snappy: whether clients may use snappy.
        authorize: authorizes clients; None disables AUTH.
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
    authorize: Authorize | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the settings as nsqd does at start.

        Raises:
            ValueError: a setting is out of range, or TLS is required without a certificate.
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
        """True if a connection must be encrypted, as client certificates require."""
        return bool(self.tls_required) or bool(self.tls_client_auth_policy)

    @property
    def effective_node_id(self) -> int:
        """The number in every message id."""
        return zlib.crc32(socket.gethostname().encode()) % 1024 if self.node_id is None else self.node_id

    def config(self, lookupds: Sequence[str]) -> Mapping[str, object]:
        """Return the answers of `GET /config/<name>`; durations are in nanoseconds."""
        names = [
            "broadcast_address", "max_msg_size", "max_body_size", "max_rdy_count", "max_output_buffer_size",
            "max_channel_consumers", "mem_queue_size", "sync_every", "tls_client_auth_policy", "deflate",
            "max_deflate_level", "snappy",
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
