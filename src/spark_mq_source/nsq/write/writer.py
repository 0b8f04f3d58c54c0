"""Writes the rows of one task until nsqd has acknowledged them: batches, nsqd in turn, limits, resending.

The rows of an Arrow batch become MPUBs, each for one topic and within nsqd's size limits; a row with ``defer`` becomes
a DPUB. They go to the nsqd in turn. A command without OK when its connection ends is sent to another nsqd, or to the
same one after a reconnect. So nothing is lost, but a command whose OK was lost is stored twice: at least once. An nsqd
accepts an MPUB as a whole or not at all (V2 specification).

OKs arrive in other threads, one per connection, which only wake the task's thread.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

from spark_mq_source.core.columns import rows_by_topic
from spark_mq_source.core.errors import (
    BrokerError,
    MQSourceError,
    RequestTimeoutError,
    ServiceNotReadyError,
    UnwritableRowError,
)
from spark_mq_source.net.sending import Writer
from spark_mq_source.nsq.client.client import NsqClient, Nsqd
from spark_mq_source.nsq.payload.messages import open_rows
from spark_mq_source.nsq.protocol.commands import Dpub, Mpub, Pub, parse_name
from spark_mq_source.nsq.protocol.error_codes import AUTH_FAILED

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import TaskAttempt
    from spark_mq_source.nsq.client.session import Session
    from spark_mq_source.nsq.options import NsqOptions
    from spark_mq_source.nsq.payload.messages import RowSource


logger = logging.getLogger(__name__)

DEFAULT_MAX_MESSAGE_BYTES: Final = 1 << 20
DEFAULT_MAX_BODY_BYTES: Final = 5 << 20
DEFAULT_MAX_DEFER_NS: Final = 3_600_000_000_000
"""nsqd's defaults of `-max-msg-size`, `-max-body-size` and `-max-req-timeout` (nsqd 1.3.0)."""

_PAUSE_SECONDS: Final = 1.0
"""Time for which an nsqd is not used after a failed connection."""


@dataclass(slots=True)
class _Pending:
    """A command without OK."""

    command: Pub | Mpub | Dpub
    rows: int
    answer: Future[None] = field(default_factory=Future)

    @property
    def size(self) -> int:
        return len(self.command.body)


class _Target:
    """One nsqd, with its pending commands in order."""

    def __init__(self, nsqd: Nsqd) -> None:
        self.nsqd = nsqd
        self.session: Session | None = None
        self.pending: deque[_Pending] = deque()
        self.pending_bytes = 0
        self.last_progress = 0.0
        self.paused_until = 0.0

    def rest(self) -> None:
        """Close the connection and pause this nsqd; its pending commands must have been removed before."""
        if self.session is not None:
            self.session.close()
            self.session = None
        self.paused_until = time.monotonic() + _PAUSE_SECONDS


class NsqWriter(Writer["NsqOptions", int]):
    """Writer of the rows of one task, see `net.sending.Writer`. Tasks begin with different nsqd.

    Raises:
        MQSourceError: no nsqlookupd answered, or none knows an nsqd.
    """

    def __init__(self, options: NsqOptions, attempt: TaskAttempt, counters: Counters | None = None) -> None:
        super().__init__(options, attempt, counters)
        self._client = NsqClient(options)
        self._targets = [_Target(nsqd) for nsqd in self._client.fetch_writable(options.topic)]
        if not self._targets:
            raise ServiceNotReadyError(
                "nsq: no nsqd to write to: nsqlookupd lists none that is not tombstoned; set nsqdTcpAddresses"
            )
        self._turn = attempt.partition % len(self._targets)
        self._unplaced: deque[_Pending] = deque()
        self._last_progress = time.monotonic()
        self._last_error: MQSourceError | None = None
        self._is_authorized = False

    def close(self) -> None:
        """Close the connections without waiting for OKs; see `flush`."""
        for target in self._targets:
            if target.session is not None:
                target.session.close()

    def write(self, batch: pa.RecordBatch) -> None:
        """Send the rows of a batch; wait while `maxPendingBytes` are pending.

        All rows are checked before the first one is sent.

        Raises:
            OptionError: a column is unknown or not writable, or ``value`` is missing.
            UnwritableRowError: a row cannot become a message.
            MQSourceError: nsqd refused a message, or none accepted it in time.
        """
        if not batch.num_rows:
            return
        try:
            source = open_rows(batch, first_row=self.rows)
        except UnwritableRowError as error:
            raise error.within("nsq") from None
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        named = rows_by_topic(columns.get("topic"), batch.num_rows, self._options.topic, "nsq")
        topics = [(_named(name), order) for name, order in named]
        defer = columns["defer"].to_pylist() if "defer" in columns else None
        self._check(source, defer)
        for topic, order in topics:
            if defer is None:
                self._write_at_once(topic, source, order)
            else:
                rows = range(batch.num_rows) if order is None else order
                self._write_at_once(topic, source, array("i", (row for row in rows if not defer[row])))
                for row in rows:
                    if defer[row]:
                        self._publish(_Pending(Dpub(topic, defer[row], source.value(row) or b""), 1))
        self.rows += batch.num_rows

    def flush(self) -> None:
        """Wait until all commands have their OK.

        Raises:
            MQSourceError: nsqd refused a message, or none accepted it in time.
        """
        self._wait_until(lambda: not self._unplaced and not any(target.pending for target in self._targets))

    def finish(self) -> int:
        """Wait until all commands have their OK; return the number of rows.

        Raises:
            MQSourceError: as for `flush`.
        """
        self.flush()
        return self.rows

    # -- encoding

    def _check(self, source: RowSource, defer: list[int | None] | None) -> None:
        """Refuse rows for which nsqd would close the connection."""
        most = self._max_message_bytes
        row = source.find_unwritable(most)
        if row >= 0:
            value = source.value(row)
            problem = "its value is NULL" if value is None else "its value is empty, and NSQ has no empty messages"
            if value:
                problem = (
                    f"its value has {len(value)} bytes, but nsqd accepts at most {most} "
                    "(-max-msg-size; set maxMessageBytes if nsqd's HTTP is unreachable)"
                )
            raise UnwritableRowError(self._about(row, problem))
        if defer is not None and any(defer):
            for row, wait_ms in enumerate(defer):
                if wait_ms is not None and not 0 <= wait_ms <= self._max_defer_ms:
                    problem = (
                        f"its defer is {wait_ms} ms, but nsqd accepts 0 to {self._max_defer_ms} (-max-req-timeout)"
                    )
                    raise UnwritableRowError(self._about(row, problem))

    def _about(self, row: int, problem: str) -> str:
        return f"nsq: row {self.rows + row} of the task cannot be a message: {problem}; nothing of its batch was sent"

    # Limits that all nsqd accept, because a command may be resent to any of them.

    @cached_property
    def _max_message_bytes(self) -> int:
        return self._options.max_message_bytes or self._least_setting("max_msg_size", DEFAULT_MAX_MESSAGE_BYTES)

    @cached_property
    def _max_body_bytes(self) -> int:
        return self._options.max_body_bytes or self._least_setting("max_body_size", DEFAULT_MAX_BODY_BYTES)

    @cached_property
    def _max_defer_ms(self) -> int:
        return self._least_setting("max_req_timeout", DEFAULT_MAX_DEFER_NS) // 1_000_000

    def _least_setting(self, name: str, default: int) -> int:
        return min(self._client.fetch_setting(target.nsqd, name, default) for target in self._targets)

    def _write_at_once(self, topic: str, source: RowSource, order: array[int] | None) -> None:
        max_bytes = min(self._options.batching_max_bytes, self._max_body_bytes)
        at, end = 0, source.rows if order is None else len(order)
        while at < end:
            body, following = source.build_body(
                order, at, end, max_bytes=max_bytes, max_rows=self._options.batching_max_messages
            )
            if following == at:
                row = at if order is None else order[at]
                self._publish(_Pending(Pub(topic, source.value(row) or b""), 1))
                following += 1
            else:
                self._publish(_Pending(Mpub(topic, body), following - at))
            at = following

    # -- sending and resending

    def _publish(self, entry: _Pending) -> None:
        if not self._unplaced and not any(target.pending for target in self._targets):
            self._last_progress = time.monotonic()
        self._unplaced.append(entry)
        self._advance()
        if self._unplaced:
            self._wait_until(lambda: not self._unplaced)

    def _is_due(self) -> bool:
        return any(target.pending and target.pending[0].answer.done() for target in self._targets)

    def _attend(self) -> None:
        if not self._is_due():
            self._end_patience()
        self._advance()

    def _advance(self) -> None:
        """Handle OKs, and send unplaced commands."""
        for target in self._targets:
            self._handle_answers(target)
        while self._unplaced and self._place(self._unplaced[0]):
            self._unplaced.popleft()

    def _handle_answers(self, target: _Target) -> None:
        """Handle the answers of an nsqd.

        Raises:
            MQSourceError: it refused a command permanently.
        """
        while target.pending and target.pending[0].answer.done():
            entry = target.pending[0]
            error = entry.answer.exception()
            if error is None:
                target.pending.popleft()
                target.pending_bytes -= entry.size
                self._last_progress = target.last_progress = time.monotonic()
            elif isinstance(error, MQSourceError) and self._may_pass(error):
                logger.info("%s: resending its unacknowledged commands: %s", target.nsqd.name, error)
                self._last_error = error
                self._counters.reconnects += 1
                self._unplaced.extend(target.pending)
                target.pending.clear()
                target.pending_bytes = 0
                target.rest()
            elif isinstance(error, MQSourceError):
                raise self._in_context(entry, error) from error
            else:
                raise error

    def _place(self, entry: _Pending) -> bool:
        """Send an entry to the next nsqd with room; return False if none has room.

        Raises:
            MQSourceError: an nsqd refuses the connection permanently.
        """
        room = self._options.max_pending_bytes // len(self._targets)
        for _ in self._targets:
            target = self._targets[self._turn]
            self._turn = (self._turn + 1) % len(self._targets)
            # A single entry may exceed the limit, or it could never be sent.
            if target.pending and target.pending_bytes + entry.size > room:
                continue
            if target.paused_until > time.monotonic() or not self._open(target, entry):
                continue
            assert target.session is not None  # noqa: S101 - for mypy: it is open now
            if not target.pending:
                target.last_progress = time.monotonic()
            target.pending.append(entry)
            target.pending_bytes += entry.size
            self._counters.entries += 1
            self._counters.entry_bytes += entry.size
            entry.answer = target.session.request(entry.command)
            entry.answer.add_done_callback(self._answered)
            return True
        return False

    def _open(self, target: _Target, entry: _Pending) -> bool:
        if target.session is None:
            try:
                target.session = self._client.open_session(target.nsqd)
                self._is_authorized = self._is_authorized or target.session.authorized is not None
            except MQSourceError as error:
                if not self._may_pass(error):
                    raise self._in_context(entry, error) from error
                logger.info("%s cannot be written to: %s", target.nsqd.name, error)
                self._last_error = error
                target.rest()
        return target.session is not None

    def _may_pass(self, error: MQSourceError) -> bool:
        """Return whether the same command may succeed later.

        nsqd asks the authorization server again for each connection, and for a command after the time that this server
        has set. If it cannot reach the server, it reports E_AUTH_FAILED, as for a wrong secret (nsqd 1.3.0,
        protocol_v2.go). A secret that this task has used is not wrong.
        """
        is_authorization_lost = isinstance(error, BrokerError) and error.code_name == AUTH_FAILED
        return error.retryable or (self._is_authorized and is_authorization_lost)

    def _answered(self, _: Future[None]) -> None:
        with self._arrived:
            self._wake(is_due=True)

    def _patience(self) -> tuple[str, int]:
        """Return what must come in time, and the time in milliseconds."""
        operation_ms, send_ms = self._options.operation_timeout_ms, self._options.send_timeout_ms
        if operation_ms < send_ms and all(target.session is None for target in self._targets):
            return "connection within operationTimeout", operation_ms
        return "OK within sendTimeout", send_ms

    def _until(self) -> float:
        seconds = self._patience()[1] / 1000
        # Also pauses that have ended: a connection must be opened now.
        pauses = [target.paused_until for target in self._targets if self._unplaced and target.session is None]
        # Half of the time for the current connection, half for another.
        halves = [target.last_progress + seconds / 2 for target in self._targets if target.pending]
        return min([self._last_progress + seconds, *halves, *pauses])

    def _end_patience(self) -> None:
        """Close the connection of an nsqd that does not answer.

        Raises:
            RequestTimeoutError: `sendTimeout` has passed without any OK, or `operationTimeout` without a connection.
        """
        now = time.monotonic()
        limit, limit_ms = self._patience()
        if now >= self._last_progress + limit_ms / 1000:
            pending = [*self._unplaced, *(target.pending[0] for target in self._targets if target.pending)]
            what = f"{pending[0].rows} rows to topic {pending[0].command.topic}" if pending else "rows"
            reason = f": {self._last_error}" if self._last_error is not None else ""
            raise RequestTimeoutError(f"nsq: writing {what}: no {limit} ({limit_ms} ms){reason}")
        for target in self._targets:
            if target.pending and target.session is not None and now >= target.last_progress + limit_ms / 2000:
                logger.info("%s: no OK for %.0f s", target.nsqd.name, limit_ms / 2000)
                # Its pending commands fail now, and are sent again.
                target.session.close()

    @staticmethod
    def _in_context(entry: _Pending, error: MQSourceError) -> MQSourceError:
        return error.within(f"nsq: writing {entry.rows} rows to topic {entry.command.topic}")


def _named(name: str) -> str:
    try:
        return parse_name(name)
    except ValueError as error:
        raise UnwritableRowError(f"nsq: a row is for topic {name!r}: {error}") from error
