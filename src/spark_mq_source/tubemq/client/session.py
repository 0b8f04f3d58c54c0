"""One live connection to a master or a broker: answers complete futures, receipts go to the writer."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import random
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from spark_mq_source.core.errors import MQSourceError, RequestTimeoutError
from spark_mq_source.net.driver import DrivenSession
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import TlsSettings, connect
from spark_mq_source.tubemq.client.authentication import PluginAuthentication, UserAuthentication
from spark_mq_source.tubemq.options import TubeMQOptions
from spark_mq_source.tubemq.protocol import commands
from spark_mq_source.tubemq.protocol.addresses import Broker, BrokerPartition
from spark_mq_source.tubemq.protocol.commands import (
    SUCCESS,
    AuthenticateInfo,
    AuthorizedInfo,
    MasterCertificateInfo,
    ReadStatus,
    RegisterType,
    Request,
    Response,
)
from spark_mq_source.tubemq.protocol.connection import (
    MAX_SERIAL_NO,
    Answer,
    CallTimedOut,
    Event,
    NotAuthorized,
    PartitionLost,
    TubeMQConnection,
)
from spark_mq_source.tubemq.protocol.error_codes import (
    CERTIFICATE_FAILURE,
    NOT_FOUND,
    SERVER_CONSUME_SPEED_LIMIT,
    error_for_code,
    error_for_exception,
)

T = TypeVar("T")

logger = logging.getLogger(__name__)

NO_TOKEN: Final = -2
"""The visit token of a client without one (Java client 2.4.0)."""

SIGNATURE_SECONDS: Final = 5.0
"""The time for which a signature is reused; servers accept it for 20 s."""

HEARTBEAT_MS: Final = 10_000
"""The interval of heartbeats for registered partitions, which a broker forgets after 30 s."""

_ONLY_SUCCESS: Final = frozenset({SUCCESS})
_ACCEPTED: Final[Mapping[type, Collection[int]]] = {
    commands.GetMessage: frozenset({SUCCESS, NOT_FOUND, SERVER_CONSUME_SPEED_LIMIT})
}
"""The codes of answers that are not errors, if they are not only `SUCCESS`."""
_serial_nos = itertools.count(1)


class Authorization:
    """Credentials for masters and brokers, for all connections of a client; thread-safe.

    Args:
        user: None if the cluster does not authenticate.
        given: an earlier authorization by a master; it may be old.
        renew: requests another one from a master, and waits for it.
    """

    def __init__(
        self,
        user: UserAuthentication | PluginAuthentication | None,
        given: AuthorizedInfo | None,
        renew: Callable[[], object],
    ) -> None:
        self.given = given
        self._user = user
        self._renew = renew
        self._renewing = threading.Lock()
        self._signed: tuple[float, AuthenticateInfo] | None = None

    def renew(self, refused: AuthorizedInfo | None) -> None:
        """Get another authorization from a master, unless another thread has got one since `refused` was sent.

        Raises:
            MQSourceError: no master provided one.
        """
        with self._renewing:
            shown = None if refused is None else refused.visit_authorized_token
            if self.given is None or self.given.visit_authorized_token == shown:
                self._renew()

    def for_master(self) -> MasterCertificateInfo | None:
        """Return the credentials for a request to a master: a new or recent signature, and the master's token.

        The Java client sends one of both, a signature if the last answer required it (`require_auth`).
        """
        signed = self._signature()
        if signed is None:
            return None
        given = self.given
        return MasterCertificateInfo(signed, None if given is None else given.auth_authorized_token)

    def for_broker(self) -> AuthorizedInfo:
        """Return the credentials for a request to a broker: the visit token, and the master's token or our signature.

        A master 2.4.0 provides no token, and a broker that authenticates accepts any.
        """
        given = self.given
        visit, token = (
            (NO_TOKEN, None) if given is None else (given.visit_authorized_token, given.auth_authorized_token)
        )
        if not token:
            signature = self._signature()
            token = None if signature is None else signature.token
        return AuthorizedInfo(visit, token)

    def _signature(self) -> AuthenticateInfo | None:
        if self._user is None:
            return None
        now = time.monotonic()
        signed = self._signed
        if signed is None or now - signed[0] > SIGNATURE_SECONDS:
            nonce = random.randrange(1 << 31)  # noqa: S311 - it need not be hard to guess, only another one each time
            signed = self._signed = now, self._user.sign(timestamp_ms=time.time_ns() // 1_000_000, nonce=nonce)
        return signed[1]


Receipt: TypeAlias = tuple[commands.SendMessage, Response | MQSourceError]
"""The outcome of a message: the answer, or the error instead of it."""

Deliver: TypeAlias = Callable[[Sequence[Receipt]], None]
"""Handles the outcomes of messages, in the order of the answers; called in the driver's thread, it must not block."""


class _Pending(NamedTuple):
    """Requests that were sent together: one call, or many messages.

    Attributes:
        requests: those without an answer, by serial number. One object for all, because the garbage collector would
            traverse many small ones repeatedly.
        deliver: called with their outcomes.
    """

    requests: dict[int, Any]
    deliver: Callable[[Sequence[Any]], None]


class Session(DrivenSession):
    """One connection. Servers answer calls in the order of sending, and keep registrations for 30 s (seen on 2.4.0).

    Args:
        broker: the broker at the other end; None for a master.

    Attributes:
        last_used: time of the last send, in monotonic seconds.
        is_kept: whether it stays open while idle.

    Raises:
        TransportError: no connection.
    """

    connection: TubeMQConnection

    def __init__(
        self, options: TubeMQOptions, host: str, port: int, authorization: Authorization, *, broker: Broker | None
    ) -> None:
        self.address = f"master {host}:{port}" if broker is None else f"broker {broker}"
        self.last_used = time.monotonic()
        self.is_kept = False
        self._timeout_ms = options.request_timeout_ms
        self._authorization = authorization
        self._is_master = broker is None
        self._waiting: dict[int, _Pending] = {}
        self._consumers: dict[tuple[str, str, str, int], PartitionConsumer] = {}
        self.connection = TubeMQConnection(
            broker=broker,
            request_timeout_ms=options.request_timeout_ms,
            heartbeat_ms=HEARTBEAT_MS,
            authorized=authorization.for_broker,
            keeps_receipts=options.log_receipts,
            now=time.monotonic(),
        )
        transport = connect(
            host,
            port,
            tls=TlsSettings.of(options) if options.tls else None,
            deadline=Deadline.after_ms(options.connect_timeout_ms),
        )
        self._drive(transport)

    @property
    def at_rest(self) -> bool:
        """True if no call is pending, no partition is registered, and the session need not be kept."""
        return not (self._waiting or self._consumers or self.is_kept)

    def call(self, *requests: Request, accepted: Collection[int] | None = None) -> list[Future[Response]]:
        """Send requests in one go; each future holds the answer, or the error.

        Args:
            requests: the requests, to which credentials are added here.
            accepted: the codes of answers that are not errors; None for those of the request.
        """
        answers: list[Future[Response]] = [Future() for _ in requests]
        settle = [partial(self._settle, answer, accepted) for answer in answers]
        self._send(*map(self._pending, requests, settle))
        return answers

    def send_messages(self, sends: Sequence[commands.SendMessage], deliver: Deliver) -> None:
        """Send messages together, unchanged; `deliver` gets the outcome of each, once.

        Args:
            sends: with credentials in them.
            deliver: called in the driver's thread, or in this one if the connection has ended.
        """
        self._send(_Pending({_next_serial_no(): send for send in sends}, deliver))

    # Inside.

    def _authorized(self, request: Request) -> Request:
        if isinstance(request, commands.GetMessage | commands.CommitOffset):
            return request
        if isinstance(request, commands.SendMessage):
            return request._replace(auth_info=self._authorization.for_broker())
        if self._is_master:
            return dataclasses.replace(request, auth_info=self._authorization.for_master())  # type: ignore[arg-type]
        return dataclasses.replace(request, auth_info=self._authorization.for_broker())  # type: ignore[arg-type]

    def _pending(self, request: Request, settle: Callable[[Sequence[Any]], None]) -> _Pending:
        return _Pending({_next_serial_no(): self._authorized(request)}, settle)

    def _send(self, *packs: _Pending) -> None:
        self.last_used = time.monotonic()
        calls = [call for pack in packs for call in pack.requests.items()]
        for pack in packs:
            self._waiting.update(dict.fromkeys(pack.requests, pack))
        try:
            self.send(calls)
        except MQSourceError as error:
            # The driver's thread may have reported some already.
            self._tell((serial_no, error) for serial_no, _ in calls)

    def _on_events(self, events: Sequence[Event]) -> None:
        outcomes: list[tuple[int, Response | MQSourceError]] = []
        for event in events:
            if type(event) is Answer:
                outcomes.append((event.serial_no, event.response))
            elif type(event) is CallTimedOut:
                outcomes.append((event.serial_no, self._unanswered(event.request)))
            elif type(event) is PartitionLost:
                self._lose_partition(event)
            elif type(event) is NotAuthorized:
                self._in_background(partial(self._authorization.renew, event.shown))
        self._tell(outcomes)

    def _tell(self, outcomes: Iterable[tuple[int, Response | MQSourceError]]) -> None:
        """Deliver outcomes by serial number, those for one function together; ignore those of calls that have one."""
        told: dict[Deliver, list[Receipt]] = {}
        for serial_no, outcome in outcomes:
            pack = self._waiting.pop(serial_no, None)
            if pack is not None:
                told.setdefault(pack.deliver, []).append((pack.requests.pop(serial_no), outcome))
        for deliver, receipts in told.items():
            deliver(receipts)

    def _unanswered(self, request: Request) -> RequestTimeoutError:
        what = type(request).__name__
        return RequestTimeoutError(f"{self.address}: no answer to {what} within requestTimeout ({self._timeout_ms} ms)")

    def _settle(
        self,
        answer: Future[Response],
        accepted: Collection[int] | None,
        outcomes: Sequence[tuple[Request, Response | MQSourceError]],
        *,
        renews: bool = True,
    ) -> None:
        """Complete the future of a call, or renew its credentials once."""
        ((request, response),) = outcomes
        if isinstance(response, MQSourceError):
            answer.set_exception(response)
        elif isinstance(response, commands.RpcException):
            answer.set_exception(error_for_exception(response.exception_name, response.stack_trace, self.address))
        elif response.err_code in (_ACCEPTED.get(type(request), _ONLY_SUCCESS) if accepted is None else accepted):
            answer.set_result(response)
        elif response.err_code == CERTIFICATE_FAILURE and not self._is_master and renews:
            self._in_background(partial(self._retry_call, request, answer, accepted))
        else:
            answer.set_exception(error_for_code(response.err_code, response.err_msg, self.address))

    def _retry_call(self, request: Request, answer: Future[Response], accepted: Collection[int] | None) -> None:
        """Repeat a call with a new visit token: a token is valid for 16 minutes, and a task may start later."""
        try:
            self._authorization.renew(getattr(request, "auth_info", None))
        except MQSourceError as error:
            answer.set_exception(error)
            return
        self._send(self._pending(request, partial(self._settle, answer, accepted, renews=False)))

    @staticmethod
    def _in_background(call: Callable[[], None]) -> None:
        # A request to a master may take long, but the driver's thread must not block.
        def run() -> None:
            try:
                call()
            except MQSourceError as error:
                logger.warning("no new visit token: %s", error)

        threading.Thread(target=run, name="spark-mq-source visit token", daemon=True).start()

    def _lose_partition(self, event: PartitionLost) -> None:
        key = (event.client_id, event.group_name, event.partition.topic, event.partition.partition_id)
        consumer = self._consumers.get(key)
        if consumer is not None:
            consumer.lost = error_for_code(
                event.code, "a heartbeat was answered so", f"{self.address}: {event.partition}"
            )

    def _on_closed(self, error: MQSourceError) -> None:
        self._tell([(serial_no, error) for serial_no in list(self._waiting)])
        for consumer in list(self._consumers.values()):
            consumer.lost = consumer.lost or error


class PartitionConsumer:
    """One client id on one partition, on its broker's connection. Calls do not wait; they are pipelined.

    A client id belongs to one attempt at one task: a second registration under the same id silently moves the cursor of
    the first (seen on broker 2.4.0). While registered, it is kept by the connection's heartbeats.

    Attributes:
        lost: why it is no longer registered, if a heartbeat or the end of the connection has shown that.
    """

    def __init__(self, session: Session, partition: BrokerPartition, *, client_id: str, group: str) -> None:
        self.session = session
        self.partition = partition
        self.client_id = client_id
        self.group = group
        self.lost: MQSourceError | None = None
        self._key = (client_id, group, partition.topic, partition.partition_id)
        self._fetch = commands.GetMessage(client_id, partition.partition_id, group, partition.topic)
        self._registration = commands.RegisterPartition(
            RegisterType.REGISTER, client_id, group, partition.topic, partition.partition_id, ReadStatus.STORED_OR_MAX
        )
        self._commit = commands.CommitOffset(client_id, partition.topic, partition.partition_id, group)

    @property
    def address(self) -> str:
        """The broker's address for errors."""
        return self.session.address

    def register(
        self,
        *,
        curr_offset: int | None,
        read_status: int = ReadStatus.STORED_OR_MIN,
        filters: Sequence[str] = (),
        qry_priority_id: int | None = None,
    ) -> Future[commands.RegisterPartitionResponse]:
        """Register the partition, see `commands.RegisterPartition`; `curr_offset` of the answer may differ.

        Errors by code: 410 another client has it, 403 no such topic, 500 no such partition, 450 group not authorized.
        """
        self.lost = None
        self.session._consumers[self._key] = self
        (answer,) = self.session.call(
            dataclasses.replace(
                self._registration,
                read_status=read_status,
                filter_cond_str=tuple(filters),
                curr_offset=curr_offset,
                qry_priority_id=qry_priority_id,
            )
        )
        answer.add_done_callback(self._forget_unless_registered)
        return answer  # type: ignore[return-value]  # decoded by the request's method

    def get_and_commit(
        self, *, escapes: bool = False
    ) -> tuple[Future[commands.GetMessageResponse], Future[commands.CommitOffsetResponse]]:
        """Fetch, and commit that fetch, together: the commit's `curr_offset` is the end of the fetch.

        The fetch's `err_code` is 200, 404 or 452. Errors by code: 411 not registered, 412 another client has taken it
        over; of the commit, 401: the partition does not belong to this client.

        Args:
            escapes: whether the broker must not apply the cluster's flow rules.
        """
        fetch = self._fetch if not escapes else dataclasses.replace(self._fetch, esc_flow_ctrl=True)
        got, committed = self.session.call(fetch, self._commit)
        return got, committed  # type: ignore[return-value]

    def unregister(self) -> Future[commands.RegisterPartitionResponse]:
        """Unregister the partition; roll back the last fetch."""
        self.session._consumers.pop(self._key, None)
        (answer,) = self.session.call(dataclasses.replace(self._registration, op_type=RegisterType.UNREGISTER))
        return answer  # type: ignore[return-value]

    def _forget_unless_registered(self, answer: Future[Response]) -> None:
        if answer.exception() is not None and self.session._consumers.get(self._key) is self:
            del self.session._consumers[self._key]


def wait_for(answer: Future[T], what: str, timeout_ms: int) -> T:
    """Wait for an answer; `timeout_ms` is the connection's `requestTimeout`.

    Raises:
        MQSourceError: no answer in time, or a refusal; names the request as `what`.
    """
    try:
        # The connection itself ends overdue calls, but not while it is not read.
        return answer.result(2 * timeout_ms / 1000)
    except FutureTimeoutError:
        raise RequestTimeoutError(f"no answer to {what} within requestTimeout ({timeout_ms} ms)") from None
    except MQSourceError as error:
        raise error.within(what) from error


def _next_serial_no() -> int:
    return next(_serial_nos) % MAX_SERIAL_NO + 1


def local_address(host: str, port: int) -> str:
    """Return this machine's IPv4 address for connections to `host:port`, without sending anything."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
