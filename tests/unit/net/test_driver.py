"""The driver, with a protocol of lines: data arrives in order, errors reach all callers, and nothing leaks."""

import contextlib
import gc
import threading
import time
import weakref
from collections import deque

import pytest

from spark_mq_source.core.errors import (
    ConnectionLostError,
    ConnectTimeoutError,
    LocalProtocolError,
    MQSourceError,
    RemoteProtocolError,
)
from spark_mq_source.net.driver import DrivenSession, exchange
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import TlsSettings, connect
from tests.fix_net import HOST, Fault, abort, close, expect, expect_eof, open_descriptors, send, stay_silent, tls, wait

PATIENCE = 20.0


class LineConnection:
    """A protocol of text lines: `PING` is answered with `PONG`, `bad` is a protocol error, `bug` an error here."""

    def __init__(self, *, interval=None):
        self.paused = False
        self.ticks = 0
        self._free = bytearray(1 << 16)
        self._unread = b""
        self._events: deque[str] = deque()
        self._out = bytearray()
        self._interval = interval
        self._timer = None if interval is None else time.monotonic() + interval

    def send(self, command):
        if command == "forbidden":
            raise LocalProtocolError("forbidden now")
        self._out += command.encode() + b"\n"

    def writable(self, hint_bytes):
        return memoryview(self._free)

    def received(self, n, now):
        *lines, self._unread = (self._unread + self._free[:n]).split(b"\n")
        for line in lines:
            if line == b"PING":
                self._out += b"PONG\n"
            elif line == b"bad":
                raise RemoteProtocolError("the peer said bad")
            elif line == b"bug":
                raise ZeroDivisionError("a bug")
            else:
                self._events.append(line.decode())

    def receive_eof(self):
        raise ConnectionLostError("the peer closed")

    def events_received(self):
        events = list(self._events)
        self._events.clear()
        return events

    def data_to_send(self):
        data = bytes(self._out)
        self._out.clear()
        return data

    def next_timer(self):
        return self._timer

    def handle_timer(self, now):
        self.ticks += 1
        self._timer = now + self._interval
        self._out += b"TICK\n"


class Driver(DrivenSession):
    def __init__(self, connection, transport, *, on_events, on_closed):
        self.address, self.connection = transport.address, connection
        self._on_events, self._on_closed = on_events, on_closed
        self._drive(transport)


class Client:
    """A driver, and the events that it has reported."""

    def __init__(self, port, *, connection=None, settings=None, on_events=None):
        self.connection = connection or LineConnection()
        self.lines = []
        self.errors = []
        self.changed = threading.Condition()
        self.react = on_events
        transport = connect(HOST, port, tls=settings, deadline=Deadline.after_ms(60_000))
        self.address = transport.address
        self.driver = Driver(self.connection, transport, on_events=self.on_events, on_closed=self.on_closed)

    def on_events(self, events):
        assert threading.current_thread().name == f"spark-mq-source {self.address}"
        if self.react is not None:
            self.react(events)
        with self.changed:
            self.lines += events
            self.changed.notify_all()

    def on_closed(self, error):
        with self.changed:
            self.errors.append(error)
            self.changed.notify_all()

    def wait_for(self, condition):
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE), (self.lines[-5:], self.errors)

    def wait_for_end(self):
        """Return the one error that ended the connection."""
        self.wait_for(lambda: self.errors)
        self.driver.close()
        assert len(self.errors) == 1
        return self.errors[0]


@pytest.fixture
def start(closing):
    """Return a function that starts clients; close them when the test ends."""

    def make(port, **more):
        client = Client(port, **more)
        closing(client.driver)
        return client

    return make


def echo(peer):
    """Answer each line with itself, until the client closes."""
    while True:
        try:
            data = peer.sock.recv(1 << 16)
        except OSError:
            return
        if not data:
            return
        peer.seen += data
        peer.send(data)


def test_requests_and_answers(scripted_server, start):
    server = scripted_server([expect(b"CONNECT\n"), expect(b"one\ntwo\n"), send(b"1\n2"), send(b"\n3\n"), expect_eof()])
    connection = LineConnection()
    # Data queued before the start is sent first.
    connection.send("CONNECT")
    client = start(server.port, connection=connection)
    assert client.driver.address == server.address
    client.driver.send("one", "two")
    client.wait_for(lambda: len(client.lines) == 3)
    assert client.lines == ["1", "2", "3"]
    assert not client.driver.closed
    client.driver.close()
    assert client.driver.closed


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_many_threads_at_once(scripted_server, start, tls_material, secure):
    script = [tls(tls_material.server()), echo] if secure else [echo]
    server = scripted_server(script)
    client = start(server.port, settings=TlsSettings(tls_material.ca) if secure else None)
    threads, each = 8, 300
    begin = threading.Barrier(threads)

    def work(number):
        begin.wait()
        for n in range(each):
            client.driver.send(f"{number}:{n}:a", f"{number}:{n}:b")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    client.wait_for(lambda: len(client.lines) == 2 * threads * each)
    assert len(set(client.lines)) == 2 * threads * each
    for number in range(threads):
        mine = [line for line in client.lines if line.startswith(f"{number}:")]
        assert mine == [f"{number}:{n}:{x}" for n in range(each) for x in "ab"]
    # The commands of one call stay together.
    for first, second in zip(client.lines[::2], client.lines[1::2], strict=True):
        assert first[:-1] == second[:-1]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
def test_data_beyond_the_socket_buffer_is_sent_in_parts(scripted_server, start, tls_material, secure):
    go_on = threading.Event()
    big = "x" * (24 << 20)

    def read_all(peer):
        assert peer.read_line() == big.encode()
        peer.expect(b"after\n")
        peer.send(b"got it\n")

    first = [tls(tls_material.server())] if secure else []
    server = scripted_server([*first, wait(go_on), read_all, expect_eof()])
    client = start(server.port, settings=TlsSettings(tls_material.ca) if secure else None)
    # The peer reads nothing before both calls have returned.
    client.driver.send(big)
    client.driver.send("after")
    go_on.set()
    client.wait_for(lambda: client.lines == ["got it"])
    client.driver.close()


def test_a_paused_connection_applies_back_pressure_and_its_timers_fire(scripted_server, start):
    blocked = threading.Event()
    line = b"y" * 1023 + b"\n"
    sent = 0

    def flood(peer):
        nonlocal sent
        while peer.read_line() == b"TICK":
            pass
        peer.sock.setblocking(False)
        quiet = 0
        # Nothing is read: the buffers of both sockets fill, and then sending blocks.
        while quiet < 5:
            try:
                sent += peer.sock.send(line * 64)
                quiet = 0
            except BlockingIOError:
                quiet += 1
                threading.Event().wait(0.02)
        blocked.set()
        peer.sock.settimeout(PATIENCE)
        rest = -sent % len(line)
        peer.send(line[len(line) - rest :] if rest else b"")
        sent += rest
        # Timers fire while nothing is read: their lines arrive here.
        for _ in range(3):
            peer.expect(b"TICK\n")
        peer.send(b"end\n")
        peer.stay_silent()

    server = scripted_server([flood])
    client = start(server.port, connection=LineConnection(interval=0.05))
    # Before anything is sent to the peer, so that no byte of the flood is read.
    client.driver.pause_reading()
    client.driver.pause_reading()
    assert client.connection.paused
    client.driver.send("ready")
    assert blocked.wait(PATIENCE), "the peer was never blocked"
    assert client.lines == []
    ticks = client.connection.ticks
    deadline = Deadline.after_ms(60_000)
    while client.connection.ticks < ticks + 5 and not deadline.expired:
        threading.Event().wait(0.01)
    assert client.connection.ticks >= ticks + 5
    client.driver.resume_reading()
    assert not client.connection.paused
    client.wait_for(lambda: "end" in client.lines)
    assert len(client.lines) == sent // len(line) + 1
    assert set(client.lines) == {"y" * 1023, "end"}
    client.driver.close()


def test_sending_continues_while_reading_is_paused(scripted_server, start):
    server = scripted_server([send(b"early\n"), expect(b"one\ntwo\n"), send(b"late\n"), expect_eof()])
    client = start(server.port)
    client.wait_for(lambda: client.lines == ["early"])
    client.driver.pause_reading()
    client.driver.send("one")
    client.driver.send("two")
    assert client.lines == ["early"]
    client.driver.resume_reading()
    client.wait_for(lambda: client.lines == ["early", "late"])
    client.driver.close()


def test_tls_bytes_that_select_does_not_report_are_delivered(scripted_server, start, tls_material):
    # One TLS record of 16 KB, received 100 bytes at a time: after the first, the socket itself has nothing left.
    class Small(LineConnection):
        def writable(self, hint_bytes):
            return memoryview(self._free)[:100]

    lines = [f"{n:07d}" for n in range(2000)]
    server = scripted_server([tls(tls_material.server()), send(("\n".join(lines) + "\n").encode()), expect_eof()])
    client = start(server.port, connection=Small(), settings=TlsSettings(tls_material.ca))
    client.wait_for(lambda: len(client.lines) == 2000)
    assert client.lines == lines
    client.driver.close()


def test_the_end_of_the_stream(scripted_server, start):
    server = scripted_server([send(b"last words\n"), close])
    client = start(server.port)
    error = client.wait_for_end()
    assert type(error) is ConnectionLostError
    assert str(error) == f"{server.address}: the peer closed"
    assert client.lines == ["last words"]
    assert client.driver.closed
    with pytest.raises(ConnectionLostError, match=f"^{server.address}: the peer closed$") as caught:
        client.driver.send("x")
    assert caught.value is not error


@pytest.mark.parametrize(
    ("line", "kind", "sentence"),
    [("bad", RemoteProtocolError, "the peer said bad"), ("bug", LocalProtocolError, "ZeroDivisionError: a bug")],
)
def test_an_error_in_the_connection_ends_it_for_all_callers(scripted_server, start, line, kind, sentence):
    server = scripted_server([expect(b"go\n"), send(f"before\n{line}\nafter\n".encode()), expect_eof()])
    client = start(server.port)
    client.driver.send("go")
    error = client.wait_for_end()
    assert type(error) is kind
    assert sentence in str(error)
    with pytest.raises(kind, match=sentence):
        client.driver.send("x")
    if line == "bad":
        # Lines before the error are delivered, though they arrived in the same piece.
        assert client.lines == ["before"]


def test_sending_on_a_failing_connection_raises_the_error_that_ended_it(scripted_server, start):
    # The connection is broken a moment before its thread has ended: its error for a command sent then
    # ("sent after ...") would look like a mistake of the caller.
    class Strict(LineConnection):
        broken = False

        def send(self, command):
            if self.broken:
                raise LocalProtocolError("sent after the end")
            super().send(command)

        def received(self, n, now):
            try:
                super().received(n, now)
            except RemoteProtocolError:
                self.broken = True
                raise

    told: list[BaseException] = []

    def send_now(_events):
        with pytest.raises(RemoteProtocolError, match="the peer said bad") as caught:
            client.driver.send("x")
        told.append(caught.value)

    server = scripted_server([expect(b"go\n"), send(b"before\nbad\n"), expect_eof()])
    client = start(server.port, connection=Strict())
    client.react = send_now
    client.driver.send("go")
    error = client.wait_for_end()
    assert type(error) is RemoteProtocolError
    assert len(told) == 1


def test_a_bug_in_the_handler_of_events_ends_it(scripted_server, start):
    def fail(_events):
        raise KeyError("not there")

    server = scripted_server([send(b"x\n"), expect_eof()])
    client = start(server.port, on_events=fail)
    error = client.wait_for_end()
    assert type(error) is LocalProtocolError
    assert f"{server.address}: KeyError" in str(error)
    assert type(error.__cause__) is KeyError


def test_a_forbidden_command_is_an_error_only_for_its_sender(scripted_server, start):
    server = scripted_server([expect(b"fine\n"), expect_eof()])
    client = start(server.port)
    with pytest.raises(LocalProtocolError, match="forbidden now"):
        client.driver.send("forbidden")
    client.driver.send("fine")
    client.driver.close()
    assert str(client.wait_for_end()) == f"{server.address}: this connection was closed here"


def test_closing_from_many_threads(scripted_server, start):
    server = scripted_server([stay_silent])
    client = start(server.port)
    begin = threading.Barrier(6)

    def work():
        begin.wait()
        client.driver.close()
        assert client.errors, "close() returned before the thread had ended"

    workers = [threading.Thread(target=work) for _ in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
        assert not worker.is_alive()
    assert len(client.errors) == 1
    with pytest.raises(ConnectionLostError, match="was closed here"):
        client.driver.send("x")


def test_closing_from_the_drivers_own_thread(scripted_server, start):
    server = scripted_server([expect(b"hello\n"), send(b"go away\n"), expect_eof()])
    client = start(server.port)
    client.react = lambda _: client.driver.close()
    client.driver.send("hello")
    assert "was closed here" in str(client.wait_for_end())


def test_closing_while_reading_is_paused_with_much_unsent_data(scripted_server, start):
    server = scripted_server([wait(release := threading.Event()), stay_silent])
    client = start(server.port)
    client.driver.pause_reading()
    client.driver.send("x" * (16 << 20))
    client.driver.close()
    release.set()


def test_a_hundred_connections_leave_no_thread_and_no_descriptor(scripted_server):
    server = scripted_server([echo], repeat=True)

    def use(number):
        client = Client(server.port)
        client.driver.send("x")
        client.wait_for(lambda: client.lines == ["x"])
        if number % 3 == 0:
            client.driver.pause_reading()
        client.driver.close()

    def ours():
        return [t for t in threading.enumerate() if t.name.startswith("spark-mq-source")]

    use(0)
    gc.collect()
    threads, descriptors = len(ours()), open_descriptors()
    for number in range(100):
        use(number)
    assert len(ours()) == threads == 0
    # The server's sockets close a moment after ours.
    deadline = Deadline.after_ms(60_000)
    while open_descriptors() > descriptors and not deadline.expired:
        threading.Event().wait(0.01)
    assert open_descriptors() <= descriptors


def test_a_closed_connection_needs_no_garbage_collector(scripted_server):
    # A connection has megabytes of receive buffers, and a worker that Spark reuses opens connections for every task.
    server = scripted_server([stay_silent])
    connection = LineConnection()
    freed = weakref.ref(connection)
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(60_000))
    driver = Driver(connection, transport, on_events=lambda _: None, on_closed=lambda _: None)
    driver.close()
    gc.collect()
    gc.disable()
    try:
        del connection, driver
        assert freed() is None
    finally:
        gc.enable()


def test_an_idle_connection_does_not_spin(scripted_server, start):
    server = scripted_server([send(b"x\n"), stay_silent])
    asked = 0

    class Counting(LineConnection):
        def next_timer(self):
            nonlocal asked
            asked += 1
            return super().next_timer()

    client = start(server.port, connection=Counting(interval=0.02))
    deadline = Deadline.after_ms(60_000)
    while client.connection.ticks < 10 and not deadline.expired:
        threading.Event().wait(0.01)
    client.driver.close()
    assert client.connection.ticks >= 10
    assert asked < 10 * client.connection.ticks


# -- the faulty links themselves: if a fault did not happen, other tests would pass without testing it


@pytest.mark.parametrize(
    ("fault", "lines", "end"),
    [
        (Fault("stall", "b2c", at=7), ["0123"], None),
        (Fault("flip", "b2c", at=6), ["0123", "4467"], None),
        (Fault("cut", "b2c", at=7), ["0123"], "the peer closed"),
        (Fault("abort", "b2c", at=2), [], "the connection broke"),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_a_faulty_link(scripted_server, fault_proxy, start, fault, lines, end):
    server = scripted_server([send(b"0123\n4567\n"), stay_silent], repeat=True)
    proxy = fault_proxy(HOST, server.port)
    proxy.add(fault)
    client = start(proxy.port)
    client.wait_for(lambda: len(client.lines) == len(lines))
    proxy.wait_for(lambda p: p.happened == [fault])
    if end is not None:
        assert end in str(client.wait_for_end())
        client = start(proxy.port)
    proxy.resume()
    client.wait_for(lambda: len(client.lines) == 2)
    assert client.lines == ["0123", "4467" if fault.kind == "flip" else "4567"]
    assert proxy.cut_now() == 1
    assert "the peer closed" in str(client.wait_for_end())


def test_a_silent_link_sends_no_answer_and_the_next_one_works(scripted_server, fault_proxy, start):
    server = scripted_server([expect(b"x\n"), send(b"y\n"), stay_silent])
    proxy = fault_proxy(HOST, server.port)
    proxy.add(Fault("deaf"))
    first = start(proxy.port)
    first.driver.send("x")
    proxy.wait_for(lambda p: p.happened)
    second = start(proxy.port)
    second.driver.send("x")
    second.wait_for(lambda: second.lines == ["y"])
    assert first.lines == []
    assert not first.driver.closed
    assert len(server.peers) == 1


# -- errors that the peer sent before it closed the connection


def test_an_error_that_the_peer_sent_before_a_reset_is_reported(start, scripted_server):
    """The driver notices the broken connection when it sends; the bytes that it has not read contain the reason."""
    go = threading.Event()
    server = scripted_server([expect(b"first\n"), wait(go), send(b"one\nbad\n"), abort])
    client = start(server.port)
    client.driver.send("first")
    client.driver.pause_reading()
    go.set()
    with contextlib.suppress(MQSourceError):
        # The socket's buffers are filled until the reset arrives; the driver's thread does the rest.
        client.driver.send("x" * 50_000_000)
    assert "the peer said bad" in str(client.wait_for_end())
    assert client.lines == ["one"]


# -- before a driver takes over


def test_an_exchange_sends_more_than_the_socket_buffer(scripted_server):
    line = "x" * 5_000_000
    server = scripted_server([expect(line.encode() + b"\n"), send(b"got it\n"), stay_silent])
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(60_000))
    connection = LineConnection()
    connection.send(line)
    exchange(connection, transport, until=lambda: bool(connection._events), deadline=Deadline.after_ms(60_000))
    assert connection.events_received() == ["got it"]
    transport.close()


@pytest.mark.parametrize(
    ("step", "error", "words"),
    [
        (stay_silent, ConnectTimeoutError, "no answer in time"),
        (close, ConnectionLostError, "the peer closed"),
        (send(b"bad\n"), RemoteProtocolError, "the peer said bad"),
    ],
    ids=["silent", "closed", "bad"],
)
def test_an_exchange_that_fails_names_the_address(scripted_server, step, error, words):
    server = scripted_server([step])
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(60_000))
    with pytest.raises(error, match=words) as caught:
        exchange(LineConnection(), transport, until=lambda: False, deadline=Deadline.after_ms(300))
    assert str(caught.value).startswith(f"{HOST}:{server.port}: ")
    transport.close()


def test_tls_begins_in_the_middle_of_a_stream(scripted_server, tls_material):
    server = scripted_server(
        [
            expect(b"upgrade\n"),
            send(b"PING\ngo on\n"),
            expect(b"PONG\n"),
            tls(tls_material.server()),
            expect(b"hello\n"),
            send(b"welcome\n"),
            stay_silent,
        ]
    )
    transport = connect(HOST, server.port, tls=None, deadline=Deadline.after_ms(60_000))
    connection = LineConnection()
    connection.send("upgrade")
    exchange(connection, transport, until=lambda: bool(connection._events), deadline=Deadline.after_ms(60_000))
    transport.start_tls(TlsSettings(trust_certs=tls_material.ca), HOST, deadline=Deadline.after_ms(60_000))
    connection.send("hello")
    assert connection.events_received() == ["go on"]
    exchange(connection, transport, until=lambda: bool(connection._events), deadline=Deadline.after_ms(60_000))
    assert connection.events_received() == ["welcome"]
    transport.close()
