"""The common part of all connections, tested with a minimal one."""

from __future__ import annotations

from enum import Enum

import pytest

from spark_mq_source.core.connection import SansIOConnection
from spark_mq_source.core.errors import ConnectionLostError, LocalProtocolError, RemoteProtocolError


class State(Enum):
    OPEN = "open"
    CLOSED = "closed"


class Lines(SansIOConnection[str, str]):
    """A connection of text lines; `bad` is a protocol error, and after a second of silence the connection is lost."""

    _CLOSED = State.CLOSED

    def send(self, command):
        self._unsent += command.encode() + b"\n"

    def _take_frames(self, data):
        *lines, rest = bytes(data).split(b"\n")
        for line in lines:
            if line == b"bad":
                raise RemoteProtocolError("bad")
            self._events.append(line.decode())
        self._missing = 1 if rest else 0
        return len(data) - len(rest)

    def _end_of_stream(self):
        self._raise_lost(f"the end{self._pending_text([1, 2, ''])}{self._unfinished()}")

    def _timer(self):
        return self._last_received + 1.0

    def _handle_timer(self, now):
        self._raise_lost(f"silent for {now - self._last_received:.0f} s", retryable=False)


@pytest.fixture
def lines():
    return Lines(State.OPEN, 0.0)


def test_bytes_to_send_are_returned_once(lines):
    lines.send("a")
    lines.send("b")
    assert lines.data_to_send() == b"a\nb\n"
    assert lines.data_to_send() == b""


def test_events_are_the_same_for_any_split_of_the_bytes(lines):
    for byte in b"one\ntwo\nthr":
        lines.receive_data(bytes([byte]))
    assert lines.events_received() == ["one", "two"]
    lines.receive_data(b"ee\n")
    assert lines.events_received() == ["three"]
    assert lines.events_received() == []


def test_events_before_an_error_are_delivered_and_none_after_it(lines):
    lines.send("unsent")
    with pytest.raises(RemoteProtocolError, match="bad"):
        lines.receive_data(b"good\nbad\nlate\n")
    assert lines.state is State.CLOSED
    assert lines.events_received() == ["good"]
    assert lines.data_to_send() == b""
    assert lines.next_timer() is None
    with pytest.raises(LocalProtocolError, match=r"received after an error \(bad\)"):
        lines.receive_data(b"more\n")


def test_the_end_of_the_stream_reports_once_what_is_open(lines):
    lines.receive_data(b"unfin")
    with pytest.raises(ConnectionLostError, match=r"end while 2 int, str waited for an answer \(5 bytes of an unf"):
        lines.receive_eof()
    lines.receive_eof()
    assert lines.state is State.CLOSED


def test_a_closed_connection_keeps_its_first_reason(lines):
    lines.close()
    lines.close()
    lines.receive_eof()
    with pytest.raises(LocalProtocolError, match="received after the connection was closed here"):
        lines.received(0, 1.0)


@pytest.mark.parametrize("what", [lambda one: one.receive_data(b"x", 0.5), lambda one: setattr(one, "paused", True)])
def test_received_bytes_and_pauses_restart_the_silence_timer(lines, what):
    lines.handle_timer(0.5)
    what(lines)
    lines.received(0, 1.3)
    assert lines.next_timer() == 1.5
    lines.handle_timer(1.4)
    with pytest.raises(ConnectionLostError, match="silent for 1 s") as caught:
        lines.handle_timer(1.5)
    assert not caught.value.retryable
