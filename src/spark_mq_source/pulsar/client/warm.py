"""Idle connections for the next task: Spark reuses its Python workers, so that a trigger need not connect again.

A task that has read its range leaves its connections here; the next one in the same process takes those to the same
address with the same credentials. Idle connections are closed after a few seconds.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.pulsar.client.session import Session, authentication_of, keep_alive_ms, proof_of
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol.connection import Authentication

MAX_IDLE = 8
"""Maximum number of idle connections of a process: a task has one or two, and a worker runs one task at a time."""

IDLE_SECONDS = 5.0
"""Idle time: longer than most trigger intervals, and shorter than the timeouts of firewalls and load balancers."""

WATCH_THREAD = "spark-mq-source idle connections"
"""Name of the thread that closes idle connections; it ends with the last one."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Everything that distinguishes connections. Secrets are not in its `repr`.

    Attributes:
        proxy_to: the broker behind a proxy, as `host:port`.
        sni_proxy: host and port of a proxy that forwards by the server name; None without.
    """

    host: str
    port: int
    proxy_to: str | None
    sni_proxy: tuple[str, int] | None
    tls: TlsSettings | None
    authentication: Authentication | None
    keep_alive_ms: int
    producing_keep_alive_ms: int

    @classmethod
    def of(cls, options: PulsarOptions, host: str, port: int, proxy_to: str | None) -> SessionKey:
        """Return the key of a connection with these options."""
        tls = TlsSettings.of(options) if options.uses_tls else None
        return cls(
            host,
            port,
            proxy_to,
            options.sni_proxy,
            tls,
            authentication_of(options, host),
            keep_alive_ms(options),
            options.keep_alive_interval_ms,
        )


@dataclass(frozen=True, slots=True)
class _Idle:
    key: SessionKey
    session: Session
    until: float


class WarmSessions:
    """The idle connections of one process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Oldest first.
        self._idle: list[_Idle] = []
        self._watched = False

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, key: SessionKey) -> Session | None:
        """Return a connection that seems to work, the most recent one first; None if there is none.

        It has sent the broker the same credentials that a new one would: the token's file or function may now return
        those of another user.

        Raises:
            MQSourceError: the credentials cannot be read, or no issuer provides them.
        """
        if not self._idle:
            return None
        now, proof = time.monotonic(), proof_of(key.authentication)
        with self._lock:
            for place in reversed(range(len(self._idle))):
                idle, session = self._idle[place], self._idle[place].session
                # The time is checked here too: in a process that was stopped meanwhile, none was closed.
                if (idle.key, session.connection.proof) == (key, proof) and idle.until > now and session.at_rest:
                    del self._idle[place]
                    return session
        return None

    def give(self, key: SessionKey, session: Session) -> None:
        """Add a connection that is no longer used."""
        idle = _Idle(key, session, time.monotonic() + IDLE_SECONDS)
        with self._lock:
            self._idle.append(idle)
            surplus = self._idle.pop(0) if len(self._idle) > MAX_IDLE else None
            begin = not self._watched
            self._watched = True
        if begin:
            threading.Thread(target=self._watch, name=WATCH_THREAD, daemon=True).start()
        if surplus is not None:
            surplus.session.close()

    def _watch(self) -> None:
        """Close connections that have been idle for long enough, as long as there are any."""
        while True:
            now = time.monotonic()
            with self._lock:
                if not self._idle:
                    self._watched = False
                    return
                until = self._idle[0].until
                expired = self._idle.pop(0) if until <= now else None
            if expired is not None:
                expired.session.close()
            else:
                time.sleep(until - now)


_OF_PROCESS: dict[int, WarmSessions] = {}


def warm_sessions() -> WarmSessions:
    """Return the idle connections of this process; a fork starts without any, since it cannot share its parent's."""
    return _OF_PROCESS.setdefault(os.getpid(), WarmSessions())
