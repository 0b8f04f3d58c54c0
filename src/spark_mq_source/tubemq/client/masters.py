"""Connections to the masters of a cluster, and the requests to the active one."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from spark_mq_source.core.errors import LocalProtocolError, MQSourceError, TransportError
from spark_mq_source.tubemq.client.flow import KnownRules
from spark_mq_source.tubemq.client.session import Authorization, Session, local_address, wait_for
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol import commands
from spark_mq_source.tubemq.protocol.addresses import PLAIN_PORT, TLS_PORT
from spark_mq_source.tubemq.protocol.commands import SUCCESS, MasterRequest, Response
from spark_mq_source.tubemq.protocol.error_codes import StandbyError, error_for_code

_EVERY_CODE: Final = range(1000)


class _Link:
    """The connection to one master, if any.

    Members send heartbeats at the same time, and during a failover not all to the same master: no request may close a
    connection that another one uses, nor wait until it is opened.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.session: Session | None = None


class Masters:
    """The connections to the masters. Several threads may use them.

    Args:
        authorization: the credentials; updated from the answers.

    Attributes:
        rules: the flow rules of the group whose members use these connections.
        default_broker_port: the port of brokers that the masters name without one.
    """

    def __init__(self, options: TubeMQOptions, authorization: Authorization) -> None:
        self.rules = KnownRules()
        self.default_broker_port = TLS_PORT if options.tls else PLAIN_PORT
        self._options = options
        self._authorization = authorization
        self._addresses = list(options.masters)
        self._lock = threading.Lock()
        self._links = {address: _Link() for address in self._addresses}
        self._closed = False

    def close(self) -> None:
        """Close every connection."""
        self._closed = True
        for link in self._links.values():
            with link.lock:
                if link.session is not None:
                    link.session.close()

    def hosts(self) -> list[str]:
        """Return the masters' hosts, that of the last active one first."""
        return [host for host, _ in self._addresses]

    def local_address(self) -> str:
        """Return this machine's IPv4 address as masters see it."""
        return local_address(*self._addresses[0])

    def ask(self, request: MasterRequest) -> Response:
        """Send a request once to the active master: the last one used, or the first of the others that is active.

        Args:
            request: the request; the credentials are added to it.

        Raises:
            MQSourceError: no master answered, or the active one refused.
        """
        failures: list[MQSourceError] = []
        for address in list(self._addresses):
            try:
                return self._ask(address, request)
            except (StandbyError, TransportError) as failure:
                failures.append(failure)
                with self._lock:
                    if self._addresses[0] == address:
                        self._addresses.append(self._addresses.pop(0))
        raise _no_active_master(failures)

    def _ask(self, address: tuple[str, int], request: MasterRequest) -> Response:
        link = self._links[address]
        with link.lock:
            if self._closed:
                # A late heartbeat would open a connection that is never closed.
                raise LocalProtocolError("tubemq: this client was closed")
            session = link.session
            if session is None or session.closed:
                session = link.session = Session(self._options, *address, self._authorization, broker=None)
        (answer,) = session.call(request, accepted=_EVERY_CODE)
        response = wait_for(answer, type(request).__name__, self._options.request_timeout_ms)
        assert not isinstance(response, commands.RpcException)  # noqa: S101 - for mypy: raised by the session
        if (given := getattr(response, "authorized_info", None)) is not None:
            self._authorization.given = given
        self.rules.take(response)
        if response.err_code != SUCCESS:
            raise error_for_code(response.err_code, response.err_msg, session.address)
        return response


def _no_active_master(failures: Sequence[MQSourceError]) -> MQSourceError:
    if len(failures) == 1:
        return failures[0]
    error = TransportError(f"no active master: {'; '.join(map(str, failures))}")
    error.retryable = any(failure.retryable for failure in failures)
    return error
