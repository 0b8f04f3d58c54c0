"""Connections that wait for the next task: Spark keeps its Python workers, so a trigger need not connect anew.

A task that has read its range hands its connections over; the next one in the same process takes those that lead to
the same place as the same user. They wait for a few seconds and are closed then.
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
"""Connections that wait in one process: a task has one or two, and a worker one task at a time."""

IDLE_SECONDS = 5.0
"""How long one waits: longer than most triggers are apart, and shorter than anything on the way forgets it."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Everything that tells connections apart. Secrets are not in its `repr`.

    Attributes:
        host: where it leads.
        port: the same.
        proxy_to: the broker behind a proxy, as `host:port`.
        tls: how the peer is verified, and by which certificate it knows us; None without TLS.
        authentication: who we are.
        keep_alive_ms: how long it may be silent.
    """

    host: str
    port: int
    proxy_to: str | None
    tls: TlsSettings | None
    authentication: Authentication | None
    keep_alive_ms: int

    @classmethod
    def of(cls, options: PulsarOptions, host: str, port: int, proxy_to: str | None) -> SessionKey:
        """The key of a connection with these options."""
        tls = TlsSettings.of(options) if options.uses_tls else None
        return cls(host, port, proxy_to, tls, authentication_of(options), keep_alive_ms(options))


@dataclass(frozen=True, slots=True)
class _Idle:
    key: SessionKey
    session: Session
    until: float


class WarmSessions:
    """The connections that wait in one process. May be used by several threads at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The one that has waited longest is the first.
        self._idle: list[_Idle] = []
        self._watched = False

    def __len__(self) -> int:
        return len(self._idle)

    def take(self, key: SessionKey) -> Session | None:
        """A connection that works as far as is known, the last one handed over first; None where there is none.

        It has shown the broker the same credentials that a new one would: a token's file or function may have those of
        another user by now.

        Raises:
            MQSourceError: the credentials cannot be read, or nobody issues them.
        """
        if not self._idle:
            return None
        now, proof = time.monotonic(), proof_of(key.authentication)
        with self._lock:
            for place in reversed(range(len(self._idle))):
                idle = self._idle[place]
                # The clock is looked at here too: a process that was stopped meanwhile has not closed any.
                if idle.key == key and idle.session.proof == proof and idle.until > now and idle.session.at_rest:
                    del self._idle[place]
                    return idle.session
        return None

    def give(self, key: SessionKey, session: Session) -> None:
        """Hands over a connection on which nothing is read any more."""
        idle = _Idle(key, session, time.monotonic() + IDLE_SECONDS)
        with self._lock:
            self._idle.append(idle)
            surplus = self._idle.pop(0) if len(self._idle) > MAX_IDLE else None
            begin = not self._watched
            self._watched = True
        if begin:
            threading.Thread(target=self._watch, name="spark-mq-source idle connections", daemon=True).start()
        if surplus is not None:
            surplus.session.close()

    def _watch(self) -> None:
        """Closes what has waited long enough, as long as anything waits."""
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
    """Those of this process: a fork begins with none, for it cannot share its parent's."""
    return _OF_PROCESS.setdefault(os.getpid(), WarmSessions())
