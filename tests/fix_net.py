"""Peers for network tests, all real sockets on the loopback: scripted servers, faulty links, and TLS certificates.

`ScriptedServer` plays a peer's side byte by byte, `FaultProxy` stands between a client and a real peer and breaks
the link in one chosen way, `RecordingProxy` writes down the Pulsar frames that pass. None of them sleeps: they wait for
bytes and events, each no longer than `PATIENCE_SECONDS`.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import pytest

from brokers.credentials import Authority, key_pem_of, pem_of

PATIENCE_SECONDS = 60.0
"""The limit of any wait of a script, reached by failing tests only."""

HOST = "127.0.0.1"

Step = Callable[["Peer"], None]
"""An action of a scripted server on a connection."""


class ScriptError(AssertionError):
    """A client that departed from the script, or a script that could not be played to its end."""


def listen(port: int = 0) -> socket.socket:
    """Return a listening socket on this loopback port, or a free one."""
    return socket.create_server((HOST, port), backlog=64)


def free_port() -> int:
    """Return a port on which nothing listens (for now)."""
    with listen() as sock:
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def deaf_address() -> Iterator[tuple[str, int]]:
    """Open an address that does not answer connections: a full backlog drops the SYN, as a firewall does."""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.socket())
        deaf.bind((HOST, 0))
        deaf.listen(0)
        for _ in range(8):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        yield deaf.getsockname()


def open_descriptors() -> int:
    """Return the number of open sockets and selectors of this process."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            count += str(descriptor.readlink()).startswith(("socket:", "anon_inode:[eventpoll"))
    return count


def reset(sock: socket.socket) -> None:
    """Close with RST instead of FIN."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Peer:
    """The server's end of one connection, for the steps of a script.

    Attributes:
        number: which connection of the server it is, from 0.
        seen: every byte that has arrived so far.
    """

    def __init__(self, sock: socket.socket, number: int, stopping: threading.Event) -> None:
        self.number = number
        self.seen = bytearray()
        self._sock = sock
        self._unread = bytearray()
        self._stopping = stopping
        sock.settimeout(PATIENCE_SECONDS)

    @property
    def sock(self) -> socket.socket:
        """The socket, for actions that are no step."""
        return self._sock

    def read(self, size: int) -> bytes:
        """Read exactly `size` bytes."""
        while len(self._unread) < size:
            # No byte more: a TLS handshake may follow, which is not read here.
            self._receive(f"{size} bytes", most=size - len(self._unread))
        data = bytes(self._unread[:size])
        del self._unread[:size]
        return data

    def read_line(self) -> bytes:
        """Read until the next newline; return the bytes before it."""
        while b"\n" not in self._unread:
            self._receive("a line")
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread[:] = rest
        return line

    def read_frame(self) -> bytes:
        """Read one frame with its 32-bit size in front, whole."""
        size = self.read(4)
        return size + self.read(int.from_bytes(size, "big"))

    def read_eof(self) -> None:
        """Wait until the client closes; fail if it has sent more bytes."""
        while True:
            try:
                data = self._sock.recv(1 << 16)
            except (ConnectionError, ssl.SSLError):
                return
            except TimeoutError:
                raise ScriptError(f"connection {self.number}: the client did not close") from None
            if not data:
                break
            self._unread += data
            self.seen += data
        if self._unread:
            raise ScriptError(
                f"connection {self.number}: nothing more was expected, but came {bytes(self._unread[:200])!r}"
            )

    def expect(self, expected: bytes) -> None:
        """Read exactly these bytes, or fail."""
        got = self.read(len(expected))
        if got != expected:
            raise ScriptError(f"connection {self.number}: expected {expected!r}, got {got!r}")

    def send(self, data: bytes) -> None:
        """Send all bytes."""
        self._sock.sendall(data)

    def close(self) -> None:
        """Close in order: the client sees the end of the stream."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def reset(self) -> None:
        """Close with RST."""
        reset(self._sock)

    def wait(self, event: threading.Event) -> None:
        """Wait for the test's event."""
        if not event.wait(PATIENCE_SECONDS):
            raise ScriptError(f"connection {self.number}: the test did not set the event the script waits for")

    def stay_silent(self) -> None:
        """Read all bytes and answer nothing, until the client or the test is done."""
        self._sock.settimeout(0.05)
        while not self._stopping.is_set():
            try:
                data = self._sock.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            self.seen += data

    def start_tls(self, context: ssl.SSLContext) -> None:
        """Do the server's side of the handshake."""
        self._sock = context.wrap_socket(self._sock, server_side=True)

    def fail_tls(self, context: ssl.SSLContext) -> None:
        """Do a handshake in which one side must refuse the other."""
        try:
            self.start_tls(context)
            # In TLS 1.3 the client refuses the certificate after the server is done.
            if self._sock.recv(1):
                raise ScriptError(f"connection {self.number}: the TLS handshake was expected to fail, but bytes came")
        except (ssl.SSLError, ConnectionError):
            pass
        finally:
            self._sock.close()

    def _receive(self, wanted: str, *, most: int = 1 << 20) -> None:
        try:
            data = self._sock.recv(most)
        except TimeoutError:
            data = b""
        if not data:
            raise ScriptError(f"connection {self.number}: wanted {wanted}, have only {bytes(self._unread[:200])!r}")
        self._unread += data
        self.seen += data


def expect(data: bytes) -> Step:
    """Return a step in which the client sends exactly these bytes."""
    return lambda peer: peer.expect(data)


def expect_eof() -> Step:
    """Return a step in which the client closes, with nothing sent before."""
    return Peer.read_eof


def send(data: bytes) -> Step:
    """Return a step that sends these bytes."""
    return lambda peer: peer.send(data)


def wait(event: threading.Event) -> Step:
    """Return a step that waits for the test."""
    return lambda peer: peer.wait(event)


def tls(context: ssl.SSLContext) -> Step:
    """Return a step that starts TLS."""
    return lambda peer: peer.start_tls(context)


def failing_tls(context: ssl.SSLContext) -> Step:
    """Return a step with a TLS handshake that must fail, and the end of the connection."""
    return lambda peer: peer.fail_tls(context)


close: Step = Peer.close
abort: Step = Peer.reset
stay_silent: Step = Peer.stay_silent


class ScriptedServer:
    """A server that plays one script a connection, in the order of the connections; the last one again if `repeat`.

    Args:
        scripts: the steps of each connection; connections still open after the last step are closed.
        repeat: whether connections past the last script play it again.

    Example:
        ::

            with ScriptedServer([expect(b"hello\\n"), send(b"welcome\\n")]) as server:
                talk_to("127.0.0.1", server.port)
    """

    def __init__(self, *scripts: Sequence[Step], repeat: bool = False) -> None:
        self._scripts = scripts
        self._repeat = repeat
        self._stopping = threading.Event()
        self._failures: list[BaseException] = []
        self._threads: list[threading.Thread] = []
        self._sock = listen()
        self.port = int(self._sock.getsockname()[1])
        self.address = f"{HOST}:{self.port}"
        self.peers: list[Peer] = []
        self._all_came = threading.Event()
        self._accepting = threading.Thread(target=self._accept, name=f"scripted server {self.port}")
        self._accepting.start()

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.stop()
        if kind is None:
            self.check()

    def stop(self) -> None:
        """Stop listening and wait for the scripts: silent ones stop, others end when they are played."""
        # A client may have closed before its connection is accepted here.
        self._all_came.wait(1)
        self._stopping.set()
        # Wakes the accepting thread: on Linux, closing a socket does not.
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._accepting.join(PATIENCE_SECONDS)
        self._sock.close()
        for thread in self._threads:
            thread.join(2 * PATIENCE_SECONDS)

    def check(self) -> None:
        """Fail unless every script was played to its end."""
        if self._failures:
            raise self._failures[0]
        if len(self.peers) < len(self._scripts):
            raise ScriptError(f"only {len(self.peers)} of {len(self._scripts)} connections came")
        still = [thread.name for thread in [self._accepting, *self._threads] if thread.is_alive()]
        if still:
            raise ScriptError(f"still running: {still}")

    def _accept(self) -> None:
        while True:
            try:
                sock = self._sock.accept()[0]
            except OSError:
                return
            number = len(self.peers)
            peer = Peer(sock, number, self._stopping)
            if number >= len(self._scripts) and not self._repeat:
                self._failures.append(ScriptError(f"connection {number} was not expected"))
                peer.close()
                continue
            self.peers.append(peer)
            if len(self.peers) >= len(self._scripts):
                self._all_came.set()
            script = self._scripts[min(number, len(self._scripts) - 1)]
            thread = threading.Thread(target=self._play, args=(peer, script), name=f"{self.address} script {number}")
            self._threads.append(thread)
            thread.start()

    def _play(self, peer: Peer, script: Sequence[Step]) -> None:
        try:
            for step in script:
                step(peer)
        except BaseException as error:  # noqa: BLE001 - handed to the test's own thread
            self._failures.append(error)
        finally:
            peer.close()


class Link:
    """A server's end of one connection, and the requests received on it; protocols define how these are read."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        self.requests: list[Any] = []

    def read(self) -> Any:
        """Read the next request.

        Raises:
            AssertionError, OSError: the client has closed.
        """
        raise NotImplementedError

    def answer(self, reply: Any) -> None:
        """Answer the request read last."""
        raise NotImplementedError


class AnsweringServer:
    """A server that answers as real ones do, unless `answers` has another answer for a request's class.

    An answer is a function of the link and the request; what it returns is sent (None: nothing is).
    """

    link: type[Link]

    def __init__(self, answers: Mapping[type, Callable[[Any, Any], object]] | None = None) -> None:
        self.answers = dict(answers or {})
        self.links: list[Any] = []
        self.changed = threading.Condition()
        self.server = ScriptedServer([self._serve], repeat=True)
        self.server._all_came.set()  # no client must connect: `stop` waits for none

    def usual(self, link: Any, request: Any) -> object:
        """Return the answer of a real server."""
        raise NotImplementedError

    def stop(self) -> None:
        self.server.stop()
        if self.server._failures:
            raise self.server._failures[0]

    def of(self, kind: type) -> list[Any]:
        """Return every request of a class on all connections, in order of arrival on each."""
        return [request for link in self.links for request in link.requests if isinstance(request, kind)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_SECONDS), [link.requests for link in self.links]

    def _serve(self, peer: Peer) -> None:
        link = self.link(peer)
        with self.changed:
            self.links.append(link)
        while True:
            try:
                request = link.read()
            except (AssertionError, OSError):
                return  # the client has closed
            with self.changed:
                link.requests.append(request)
                self.changed.notify_all()
            reply = self.answers.get(type(request), self.usual)(link, request)
            if reply is not None:
                # The client may have closed, or the answer may have cut the connection, while more requests were sent.
                with contextlib.suppress(OSError):
                    link.answer(reply)


def in_turn(*answers: object) -> Callable[[Any, Any], object]:
    """Return an answer that gives each of these once, the last one repeatedly; a function is called for its answer."""
    left = list(answers)

    def answer(link: Any, request: Any) -> object:
        chosen = left.pop(0) if len(left) > 1 else left[0]
        return chosen(link, request) if callable(chosen) else chosen

    return answer


Direction = Literal["c2b", "b2c"]


@dataclass
class Fault:
    """A fault of a link.

    Attributes:
        kind: `cut` closes both sides once `at` bytes went in `direction` (`abort` with RST); `stall` passes `at` bytes
            on and then none until `resume()`, with the connection open; `flip` turns the lowest bit of the byte number
            `at`; `delay` holds every piece for `seconds`; `deaf` accepts and never forwards or answers anything.
        direction: c2b from the client to the broker, b2c the other way.
        at: bytes of this connection and direction.
        seconds: for `delay`.
        connections: how many connections it affects, from the next one on.
    """

    kind: Literal["cut", "abort", "stall", "flip", "delay", "deaf"]
    direction: Direction = "b2c"
    at: int = 0
    seconds: float = 0.0
    connections: int = 1


class _Link:
    """One proxied connection."""

    def __init__(self, client: socket.socket, number: int, faults: list[Fault]) -> None:
        self.client = client
        self.number = number
        self.broker: socket.socket | None = None
        self.aborted = False
        self.faults = faults
        self.passed: dict[Direction, int] = {"c2b": 0, "b2c": 0}

    def end(self, *, abort: bool = False) -> None:
        self.aborted = abort
        for sock in (self.client, self.broker):
            # A socket that its own thread has closed already needs no shutdown.
            with contextlib.suppress(OSError):
                if sock is not None and abort:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    # Wakes the threads, which close; SHUT_RDWR would send a FIN instead of a RST.
                    sock.shutdown(socket.SHUT_RD)
                elif sock is not None:
                    sock.shutdown(socket.SHUT_RDWR)


class FaultProxy:
    """A proxy that forwards connections to `host:port`, and breaks the next ones in the requested ways.

    Example:
        ::

            with FaultProxy("127.0.0.1", 6650) as proxy:
                proxy.add(Fault("cut", "b2c", at=10_000))
                read_through(proxy.port)  # the first connection is cut, the second one works
    """

    def __init__(self, host: str, port: int, *, listen_port: int = 0) -> None:
        self.broker = (host, port)
        self._sock = listen(listen_port)
        self.port = int(self._sock.getsockname()[1])
        self.address = f"{HOST}:{self.port}"
        self._change = threading.Condition()
        self._faults: list[Fault] = []
        self._links: list[_Link] = []
        self._threads: list[threading.Thread] = []
        self._stalled = False
        self._resumed = 0
        self._stopping = threading.Event()
        self.connections = 0
        self.happened: list[Fault] = []
        self._accepting = threading.Thread(target=self._accept, name=f"proxy {self.port}")
        self._accepting.start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- control, from the test

    def add(self, fault: Fault) -> None:
        """Break the next `fault.connections` connections in this way."""
        with self._change:
            self._faults.append(fault)

    def cut_now(self, *, abort: bool = False) -> int:
        """Cut every open connection; return their number."""
        with self._change:
            links = list(self._links)
        for link in links:
            link.end(abort=abort)
        return len(links)

    def stall_now(self) -> None:
        """Stop forwarding on all connections until `resume`."""
        with self._change:
            self._stalled = True

    def resume(self) -> None:
        """Resume stalled connections."""
        with self._change:
            self._stalled = False
            self._resumed += 1
            self._change.notify_all()

    def wait_for(self, condition: Callable[[FaultProxy], bool]) -> None:
        """Wait until the condition holds; it is checked whenever bytes pass or a fault happens."""
        with self._change:
            if not self._change.wait_for(lambda: condition(self), PATIENCE_SECONDS):
                raise ScriptError(
                    f"{self.address}: waited in vain ({self.connections} connections, {self.happened} happened)"
                )

    @property
    def open(self) -> int:
        """The number of open connections."""
        return len(self._links)

    def passed(self, direction: Direction) -> int:
        """Return the bytes forwarded on the open connections."""
        return sum(link.passed[direction] for link in self._links)

    def stop(self) -> None:
        """Close everything and wait for the threads."""
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._accepting.join(PATIENCE_SECONDS)
        self._sock.close()
        self.resume()
        self.cut_now()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                raise ScriptError(f"{thread.name} does not end")

    # -- forwarding

    def tap(self, number: int, direction: Direction, data: bytes) -> None:
        """Receive every piece that is forwarded; for `RecordingProxy`."""

    def _accept(self) -> None:
        while True:
            try:
                client = self._sock.accept()[0]
            except OSError:
                return
            with self._change:
                faults = [fault for fault in self._faults if fault.connections > 0]
                for fault in faults:
                    fault.connections -= 1
                link = _Link(client, self.connections, faults)
                self.connections += 1
                self._links.append(link)
                self._change.notify_all()
            thread = threading.Thread(target=self._serve, args=(link,), name=f"{self.address} link {link.number}")
            self._threads.append(thread)
            thread.start()

    def _serve(self, link: _Link) -> None:
        try:
            deaf = next((fault for fault in link.faults if fault.kind == "deaf"), None)
            if deaf is not None:
                self._happens(deaf)
                self._swallow(link.client)
                return
            try:
                link.broker = socket.create_connection(self.broker, timeout=PATIENCE_SECONDS)
            except OSError:
                reset(link.client)
                return
            link.broker.settimeout(None)
            back = threading.Thread(
                target=self._forward,
                args=(link, "b2c", link.broker, link.client),
                name=f"{self.address} back {link.number}",
            )
            back.start()
            self._forward(link, "c2b", link.client, link.broker)
            back.join(PATIENCE_SECONDS)
        finally:
            link.client.close()
            if link.broker is not None:
                link.broker.close()
            with self._change:
                self._links.remove(link)
                self._change.notify_all()

    def _swallow(self, sock: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(sock, selectors.EVENT_READ)
            while not self._stopping.is_set():
                if selector.select(0.05):
                    try:
                        if not sock.recv(1 << 16):
                            return
                    except OSError:
                        return

    def _forward(self, link: _Link, direction: Direction, source: socket.socket, target: socket.socket) -> None:
        faults = [fault for fault in link.faults if fault.direction == direction]
        try:
            while data := source.recv(1 << 16):
                if not self._pass_on(link, direction, data, target, faults):
                    return
            # One side has closed its half: so does the other; the other direction continues until it ends too.
            if not link.aborted:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            link.end(abort=link.aborted)

    def _pass_on(
        self, link: _Link, direction: Direction, data: bytes, target: socket.socket, faults: list[Fault]
    ) -> bool:
        """Forward one piece, with its faults; return False once the link is cut."""
        begin = link.passed[direction]
        with self._change:
            if self._stalled:
                self._change.wait_for(lambda: not self._stalled or self._stopping.is_set())
        for fault in list(faults):
            offset = fault.at - begin
            if fault.kind == "delay":
                self._stopping.wait(fault.seconds)
            elif offset >= len(data):
                continue
            elif fault.kind == "flip":
                data = data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]
                faults.remove(fault)
                self._happens(fault)
            elif fault.kind == "stall":
                self._count(link, direction, data[:offset], target)
                data = data[offset:]
                begin = link.passed[direction]
                faults.remove(fault)
                with self._change:
                    resumed = self._resumed
                    self.happened.append(fault)
                    self._change.notify_all()
                    self._change.wait_for(lambda r=resumed: self._resumed > r)  # type: ignore[misc]
            else:
                self._count(link, direction, data[:offset], target)
                # Before the end: an observer of the end of the connection may check at once.
                self._happens(fault)
                link.end(abort=fault.kind == "abort")
                return False
        self._count(link, direction, data, target)
        return True

    def _count(self, link: _Link, direction: Direction, data: bytes, target: socket.socket) -> None:
        if data:
            self.tap(link.number, direction, data)
            target.sendall(data)
        with self._change:
            link.passed[direction] += len(data)
            self._change.notify_all()

    def _happens(self, fault: Fault) -> None:
        with self._change:
            self.happened.append(fault)
            self._change.notify_all()


class SniProxy(FaultProxy):
    """A proxy that forwards TLS connections unread if their server name is that of the peer; closes others.

    Attributes:
        asked: the server names of the connections, in order; None for none.
    """

    def __init__(self, name: str, host: str, port: int) -> None:
        self.name = name
        self.asked: list[str | None] = []
        super().__init__(host, port)

    def _serve(self, link: _Link) -> None:
        size = int.from_bytes(link.client.recv(5, socket.MSG_PEEK | socket.MSG_WAITALL)[3:], "big")
        hello = ssl.MemoryBIO()
        hello.write(link.client.recv(5 + size, socket.MSG_PEEK | socket.MSG_WAITALL))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = lambda _, name, __: self.asked.append(name)
        with contextlib.suppress(ssl.SSLError):
            context.wrap_bio(hello, ssl.MemoryBIO(), server_side=True).do_handshake()
        if self.asked[-1] != self.name:
            link.faults.append(Fault("cut", "c2b", at=0))
        super()._serve(link)


class RecordingProxy(FaultProxy):
    """A proxy that writes every Pulsar frame as one JSON line: name, dir, hex, type and the command as text.

    Args:
        host: of the broker.
        port: of the broker.
        out: where the lines go.
        name: the name in the lines; set it before each case.
    """

    def __init__(self, host: str, port: int, out: IO[str], name: str = "") -> None:
        self.name = name
        self._out = out
        self._writing = threading.Lock()
        self._parts: dict[tuple[int, Direction], bytearray] = {}
        super().__init__(host, port)

    def __enter__(self) -> RecordingProxy:
        return self

    def tap(self, number: int, direction: Direction, data: bytes) -> None:
        """Split the bytes into frames."""
        part = self._parts.setdefault((number, direction), bytearray())
        part += data
        while len(part) >= 4 and len(part) >= (size := 4 + int.from_bytes(part[:4], "big")):
            frame = bytes(part[:size])
            del part[:size]
            kind, text = describe_frame(frame)
            line = {"name": self.name, "dir": direction, "hex": frame.hex(), "type": kind, "text": text}
            with self._writing:
                self._out.write(json.dumps(line) + "\n")
                self._out.flush()


# `BaseCommand.Type` of Pulsar 4.0.8: official clients send more of them than the package knows.
_COMMAND_TYPES = """
CONNECT=2 CONNECTED=3 SUBSCRIBE=4 PRODUCER=5 SEND=6 SEND_RECEIPT=7 SEND_ERROR=8 MESSAGE=9 ACK=10 FLOW=11
UNSUBSCRIBE=12 SUCCESS=13 ERROR=14 CLOSE_PRODUCER=15 CLOSE_CONSUMER=16 PRODUCER_SUCCESS=17 PING=18 PONG=19
REDELIVER_UNACKNOWLEDGED_MESSAGES=20 PARTITIONED_METADATA=21 PARTITIONED_METADATA_RESPONSE=22 LOOKUP=23
LOOKUP_RESPONSE=24 CONSUMER_STATS=25 CONSUMER_STATS_RESPONSE=26 REACHED_END_OF_TOPIC=27 SEEK=28 GET_LAST_MESSAGE_ID=29
GET_LAST_MESSAGE_ID_RESPONSE=30 ACTIVE_CONSUMER_CHANGE=31 GET_TOPICS_OF_NAMESPACE=32
GET_TOPICS_OF_NAMESPACE_RESPONSE=33 GET_SCHEMA=34 GET_SCHEMA_RESPONSE=35 AUTH_CHALLENGE=36 AUTH_RESPONSE=37
ACK_RESPONSE=38 GET_OR_CREATE_SCHEMA=39 GET_OR_CREATE_SCHEMA_RESPONSE=40 NEW_TXN=50 NEW_TXN_RESPONSE=51
ADD_PARTITION_TO_TXN=52 ADD_PARTITION_TO_TXN_RESPONSE=53 ADD_SUBSCRIPTION_TO_TXN=54
ADD_SUBSCRIPTION_TO_TXN_RESPONSE=55 END_TXN=56 END_TXN_RESPONSE=57 END_TXN_ON_PARTITION=58
END_TXN_ON_PARTITION_RESPONSE=59 END_TXN_ON_SUBSCRIPTION=60 END_TXN_ON_SUBSCRIPTION_RESPONSE=61
TC_CLIENT_CONNECT_REQUEST=62 TC_CLIENT_CONNECT_RESPONSE=63 WATCH_TOPIC_LIST=64 WATCH_TOPIC_LIST_SUCCESS=65
WATCH_TOPIC_UPDATE=66 WATCH_TOPIC_LIST_CLOSE=67 TOPIC_MIGRATED=68
"""
_COMMAND_NAMES = {int(number): name for name, number in (pair.split("=") for pair in _COMMAND_TYPES.split())}


def describe_frame(frame: bytes) -> tuple[str, str]:
    """Return the type of a Pulsar frame's command (`UNKNOWN_n` if it has no name here), and the command as text."""
    from google.protobuf import text_format

    from tests.protobuf import pulsar as pb

    size = int.from_bytes(frame[4:8], "big")
    command = pb.BaseCommand()
    command.ParseFromString(frame[8 : 8 + size])
    text = text_format.MessageToString(command, as_one_line=True, print_unknown_fields=True).strip()
    # The number is in the first field; a value that the package does not know is missing in `command.type`.
    number = frame[9] if size >= 2 and frame[8] == 0x08 else -1
    return _COMMAND_NAMES.get(number, f"UNKNOWN_{number}"), text


# -- certificates


@dataclass(frozen=True)
class TlsMaterial:
    """PEM files for one test session, and the contexts of servers that use them.

    Attributes:
        ca: the authority to trust.
        other_ca: one that signed none of these.
        client: certificate and key in one file, signed by `ca`.
        client_cert: the certificate alone.
        client_key: its key alone.
        client_key_encrypted: the key under a password.
        stranger: a client certificate signed by `other_ca`.
    """

    folder: Path
    ca: str
    other_ca: str
    client: str
    client_cert: str
    client_key: str
    client_key_encrypted: str
    stranger: str
    _servers: dict[str, str] = field(default_factory=dict)

    def server(
        self,
        which: Literal["good", "other_name", "expired"] = "good",
        *,
        wants_client: bool = False,
        version: ssl.TLSVersion | None = None,
    ) -> ssl.SSLContext:
        """Return the context of a server: localhost (127.0.0.1), broker.example, or expired localhost."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._servers[which])
        if version is not None:
            context.minimum_version = context.maximum_version = version
        if wants_client:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(self.ca)
        return context


def make_tls_material(folder: Path) -> TlsMaterial:
    """Write the certificates into `folder`."""

    def write(name: str, *parts: bytes) -> str:
        path = folder / name
        path.write_bytes(b"".join(parts))
        return str(path)

    ours, others = Authority("our test authority"), Authority("another authority")
    here = ["localhost", HOST]
    good, good_key = ours.issue("localhost", here)
    elsewhere, elsewhere_key = ours.issue("broker.example", ["broker.example"])
    expired, expired_key = ours.issue("localhost", here, days=-1)
    client, client_key = ours.issue("client")
    stranger, stranger_key = others.issue("stranger")
    return TlsMaterial(
        folder=folder,
        ca=write("ca.pem", pem_of(ours.certificate)),
        other_ca=write("other-ca.pem", pem_of(others.certificate)),
        client=write("client.pem", pem_of(client), key_pem_of(client_key)),
        client_cert=write("client-cert.pem", pem_of(client)),
        client_key=write("client-key.pem", key_pem_of(client_key)),
        client_key_encrypted=write("client-key-encrypted.pem", key_pem_of(client_key, b"sesame")),
        stranger=write("stranger.pem", pem_of(stranger), key_pem_of(stranger_key)),
        _servers={
            "good": write("server.pem", pem_of(good), key_pem_of(good_key)),
            "other_name": write("elsewhere.pem", pem_of(elsewhere), key_pem_of(elsewhere_key)),
            "expired": write("expired.pem", pem_of(expired), key_pem_of(expired_key)),
        },
    )


@pytest.fixture(scope="session")
def tls_material(tmp_path_factory: pytest.TempPathFactory) -> TlsMaterial:
    """Return certificates for TLS tests."""
    return make_tls_material(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def scripted_server() -> Iterator[Callable[..., ScriptedServer]]:
    """Start `ScriptedServer`s; when the test ends, stop them, and fail it if a script was not followed."""
    servers: list[ScriptedServer] = []

    def start(*scripts: Sequence[Step], repeat: bool = False) -> ScriptedServer:
        servers.append(ScriptedServer(*scripts, repeat=repeat))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
    for server in servers:
        server.check()


@pytest.fixture
def fault_proxy() -> Iterator[Callable[[str, int], FaultProxy]]:
    """Start `FaultProxy`s in front of `host, port`; stop them when the test ends."""
    with contextlib.ExitStack() as stack:
        yield lambda host, port: stack.enter_context(FaultProxy(host, port))
