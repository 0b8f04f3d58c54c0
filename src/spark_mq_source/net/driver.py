"""Drives one sans-IO connection over one transport in a separate thread, and owns the clock.

This thread answers heartbeats even while the thread that reads messages is busy. It sleeps in `select`. Callers send
from their own threads, and wake this thread only if the socket does not accept all bytes.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from spark_mq_source.core.connection import SansIOConnection
from spark_mq_source.core.errors import ConnectionLostError, ConnectTimeoutError, LocalProtocolError, MQSourceError
from spark_mq_source.core.ports import Closing
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import Transport

RECEIVE_BYTES = 1 << 20
"""The minimum space for one receive: enough for several batches of messages."""

LAST_RECEIVES = 16
"""The maximum number of receives from a peer that accepts no more bytes: it may have sent the reason."""


class DrivenSession(Closing):
    """One live connection: the base of the sessions of all protocols, which get its events.

    Attributes:
        address: the peer's address, for errors.
        connection: the state machine; once it is driven, only the methods here change it.
    """

    address: str
    connection: SansIOConnection[Any, Any]

    def _drive(self, transport: Transport) -> None:
        """Start the thread, which first sends the bytes that the connection has queued; it closes the transport."""
        self._transport = transport
        self._lock = threading.Lock()
        self._unsent = memoryview(b"")
        self._closing = False
        self._error: MQSourceError | None = None
        self._reading = True
        self._wake_receiver, self._wake_sender = socket.socketpair()
        self._wake_receiver.setblocking(False)
        self._wake_sender.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake_receiver, selectors.EVENT_READ)
        self._selector.register(transport, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name=f"spark-mq-source {transport.address}", daemon=True)
        self._thread.start()

    def _wait_until(self, connected: Future[None], deadline: Deadline, silence: str) -> None:
        """Wait for the end of the handshake, or close the connection; `silence` is the error if there is no answer."""
        try:
            connected.result(deadline.remaining_seconds())
        except FutureTimeoutError:
            self.close()
            raise ConnectTimeoutError(f"{self.address}: {silence}") from None
        except BaseException:
            self.close()
            raise

    def _on_events(self, events: Sequence[Any]) -> None:
        """Take the events that arrived, in order; called in the thread, must not block."""
        raise NotImplementedError

    def _on_closed(self, error: MQSourceError) -> None:
        """Take the error that ended the connection; called once, in the thread."""
        raise NotImplementedError

    @property
    def closed(self) -> bool:
        """True once nothing more can be sent or will arrive."""
        return self._error is not None or self._closing

    def send(self, *commands: Any) -> None:  # noqa: ANN401 - of the protocol
        """Send commands in order, or queue the bytes that the socket does not accept yet.

        Raises:
            ConnectionLostError: the connection was closed, or has ended; the error that ended it.
            LocalProtocolError: the protocol forbids a command now.
        """
        with self._lock:
            if self._error is not None:
                # A copy: an exception object must not be raised in two threads.
                copy = self._error.within("")
                copy.args = self._error.args
                raise copy
            if self._closing:
                # The same error as after the thread's end: the caller may react to an event that came during the close.
                raise ConnectionLostError(f"{self._transport.address}: this connection was closed here")
            for command in commands:
                self.connection.send(command)
            flushed = False
            try:
                flushed = self._flush()
            finally:
                # Also if the socket is broken: the thread then finds the reason, and ends.
                if not flushed:
                    self._wake()

    def pause_reading(self) -> None:
        """Stop receiving, so that TCP holds the peer back. Heartbeats are still sent."""
        self._set_reading(False)

    def resume_reading(self) -> None:
        """Receive again."""
        self._set_reading(True)

    def close(self) -> None:
        """Send queued bytes if the socket accepts them, close, and wait for the thread to end.

        Pending requests fail.
        """
        with self._lock:
            self._closing = True
        self._wake()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _set_reading(self, reading: bool) -> None:
        with self._lock:
            if self._reading == reading:
                return
            self._reading = reading
            self.connection.paused = not reading
        self._wake()

    def _wake(self) -> None:
        # A full pipe means that a wake-up is pending; a closed pipe, that the thread has ended.
        with contextlib.suppress(OSError):
            self._wake_sender.send(b"\0")

    def _flush(self) -> bool:
        """Send what the socket accepts; return True if nothing is left. The caller holds the lock."""
        while True:
            if not self._unsent:
                # Bytes queued meanwhile stay in the connection, in one piece, and are not copied here.
                self._unsent = memoryview(self.connection.data_to_send())
                if not self._unsent:
                    return True
            sent = self._transport.send(self._unsent)
            if not sent:
                return False
            self._unsent = self._unsent[sent:]

    def _run(self) -> None:
        try:
            self._pump()
            error: MQSourceError = ConnectionLostError(f"{self._transport.address}: this connection was closed here")
        except MQSourceError as failure:
            error = _named(self._transport.why_lost(failure), self._transport.address)
        except Exception as failure:  # noqa: BLE001 - a bug must not leave callers waiting
            error = LocalProtocolError(f"{self._transport.address}: {type(failure).__name__}: {failure}")
            error.__cause__ = failure
        with self._lock:
            self._error = error
            self._selector.close()
            self._wake_receiver.close()
            self._wake_sender.close()
            self._transport.close()
        self._on_closed(error)

    def _pump(self) -> None:
        interest = selectors.EVENT_READ
        while True:
            with self._lock:
                try:
                    flushed = self._flush()
                except MQSourceError as error:
                    broken = self._error = _named(self._peer_reason(error), self._transport.address)
                    said = self.connection.events_received()
                    break
                if self._closing:
                    return
                timer = self.connection.next_timer()
                wanted = (selectors.EVENT_READ if self._reading else 0) | (0 if flushed else selectors.EVENT_WRITE)
                hidden = self._reading and self._transport.pending()
            if wanted != interest:
                self._watch(interest, wanted)
                interest = wanted
            timeout = 0.0 if hidden else None if timer is None else max(0.0, timer - time.monotonic())
            ready = self._selector.select(timeout)
            readable = hidden
            for key, mask in ready:
                if key.fileobj is self._wake_receiver:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_receiver.recv(4096)
                elif mask & selectors.EVENT_READ:
                    readable = True
            events, failure = self._step(readable)
            if events:
                self._on_events(events)
            if failure is not None:
                raise failure
        if said:
            self._on_events(said)
        raise broken

    def _peer_reason(self, error: MQSourceError) -> MQSourceError:
        """Return the reason that the peer sent before it broke the connection, or `error` itself."""
        try:
            for _ in range(LAST_RECEIVES):
                n = self._transport.recv_into(self.connection.writable(RECEIVE_BYTES))
                if not n:
                    break
                self.connection.received(n, time.monotonic())
        except ConnectionLostError:
            return error
        except MQSourceError as reason:
            return reason
        return error

    def _watch(self, before: int, wanted: int) -> None:
        if not before:
            self._selector.register(self._transport, wanted)
        elif not wanted:
            self._selector.unregister(self._transport)
        else:
            self._selector.modify(self._transport, wanted)

    def _step(self, readable: bool) -> tuple[Sequence[Any], MQSourceError | None]:
        """Receive once; return the events, and the error after them: events before an error still count."""
        now = time.monotonic()
        failure: MQSourceError | None = None
        with self._lock:
            try:
                if readable and self._reading:
                    n = self._transport.recv_into(self.connection.writable(RECEIVE_BYTES))
                    if n == 0:
                        self.connection.receive_eof()
                    elif n is not None:
                        self.connection.received(n, now)
                timer = self.connection.next_timer()
                if timer is not None and timer <= now:
                    self.connection.handle_timer(now)
            except MQSourceError as error:
                # Set at once: the closed connection would reject further commands as errors of their sender.
                failure = self._error = _named(error, self._transport.address)
            return self.connection.events_received(), failure


def exchange(
    connection: SansIOConnection[Any, Any],
    transport: Transport,
    *,
    until: Callable[[], bool],
    deadline: Deadline,
) -> None:
    """Send and receive in the caller's thread until `until()` is true, before a driver takes over.

    For negotiations that change the stream itself, such as starting TLS. Events stay in the connection.

    Raises:
        ConnectTimeoutError: `until()` is not true before `deadline`.
        MQSourceError: the connection failed.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(transport, selectors.EVENT_READ)
        unsent = memoryview(b"")
        while True:
            unsent = unsent[transport.send(unsent) :] if unsent else memoryview(connection.data_to_send())
            if unsent:
                selector.modify(transport, selectors.EVENT_WRITE)
            elif until():
                return
            else:
                selector.modify(transport, selectors.EVENT_READ)
            if not selector.select(deadline.remaining_seconds()):
                raise ConnectTimeoutError(f"{transport.address}: no answer in time")
            if unsent:
                continue
            try:
                n = transport.recv_into(connection.writable(RECEIVE_BYTES))
                if n == 0:
                    connection.receive_eof()
                elif n is not None:
                    connection.received(n, time.monotonic())
            except MQSourceError as error:
                raise _named(transport.why_lost(error), transport.address) from error


def _named(error: MQSourceError, address: str) -> MQSourceError:
    """Add to an error the peer's address, which a connection without I/O does not know."""
    if address in str(error):
        return error
    named = error.within(address)
    named.__cause__ = error
    return named
