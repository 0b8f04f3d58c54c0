"""The network of a simulated world: hosts that listen, byte streams between them, and the faults of those.

A client (the program under test) has one end of a stream, with the interface of `net.transport.Transport`; the other
end is a model broker's, which is called when bytes arrive. Bytes travel in order, in pieces cut at random, each with a
delay; a fault cuts a stream, makes it half-open, or delays one direction. A broker may notice a cut later than the
client, and until then executes the requests that were in transit.
"""

from __future__ import annotations

import selectors
from collections.abc import Callable
from typing import Any, Protocol

from spark_mq_source.core.errors import ConnectionLostError, ConnectTimeoutError, MQSourceError, TransportError
from tests.simulation.clockwork import here

WINDOW_BYTES = 256 << 10
"""Bytes that the kernels at both ends buffer for one direction: `send` accepts no more."""

LATE_SECONDS = (None, 0.0, 0.3, 4.0)
"""Seconds after the client at which a broker notices a cut, or None for at once, without the bytes in transit."""


class Peer(Protocol):
    """A model broker's side of one stream."""

    def received(self, data: bytes) -> None:
        """Handle bytes, which arrive in order."""

    def lost(self) -> None:
        """Handle the end of the stream: closed by the other side, or broken."""


class Fate:
    """The faults of a stream, by the bytes that it has carried: independent of time, so that they can be replayed.

    Attributes:
        cut_after_sent: bytes from the client after which the stream breaks; bytes in transit are lost in part.
        cut_after_received: likewise, bytes from the broker.
        mute_after_received: bytes from the broker after which the stream is half-open: it carries no bytes in either
            direction, and neither end is notified.
        stall_after_sent: bytes from the client after which the client's bytes are delayed, and the delay in seconds.
        stall_after_received: likewise, bytes from the broker.
    """

    __slots__ = (
        "cut_after_received",
        "cut_after_sent",
        "mute_after_received",
        "stall_after_received",
        "stall_after_sent",
    )

    def __init__(
        self,
        cut_after_sent: int | None = None,
        cut_after_received: int | None = None,
        mute_after_received: int | None = None,
        stall_after_sent: tuple[int, float] | None = None,
        stall_after_received: tuple[int, float] | None = None,
    ) -> None:
        self.cut_after_sent = cut_after_sent
        self.cut_after_received = cut_after_received
        self.mute_after_received = mute_after_received
        self.stall_after_sent = stall_after_sent
        self.stall_after_received = stall_after_received


class _Pollable:
    """An object that a selector can wait for."""

    def __init__(self) -> None:
        # In the order of registration: the order of object addresses would differ from run to run.
        self._watchers: dict[Any, None] = {}

    def _changed(self) -> None:
        for fiber in tuple(self._watchers):
            here().wake(fiber)

    def poll(self) -> int:
        """Return the events that it is ready for."""
        raise NotImplementedError


class Stream:
    """One connection between a process and a model broker.

    Attributes:
        number: its index in its world.
        address: the address that the client connected to.
        transport: the client's end.
        peer: the broker's end; set by the listener.
        is_open: whether it carries bytes.
    """

    def __init__(self, number: int, address: str, fate: Fate, latency: Callable[[], float]) -> None:
        self.number = number
        self.address = address
        self.fate = fate
        self.is_open = True
        self.muted = False
        self.transport = SimulatedTransport(self)
        self.peer: Peer | None = None
        self.process = here().here
        self.on_closed: list[Callable[[], None]] = []
        self.sent_bytes = 0
        self.received_bytes = 0
        self._latency = latency
        self._dice = here().dice("network")
        self._in_flight = {"broker": 0, "client": 0}
        self._last_at = {"broker": 0.0, "client": 0.0}
        self.process.on_killed.append(self.abandon)

    # The client's end.

    def client_sends(self, data: bytes) -> int:
        """Send the bytes that fit into the window; return their number."""
        room = WINDOW_BYTES - self._in_flight["broker"]
        taken = data[: max(room, 0)]
        if not taken:
            return 0
        limit = self.fate.cut_after_sent
        self.sent_bytes += len(taken)
        if self.fate.stall_after_sent is not None and self.sent_bytes >= self.fate.stall_after_sent[0]:
            self._stall("broker", self.fate.stall_after_sent[1])
            self.fate.stall_after_sent = None
        if limit is not None and self.sent_bytes >= limit:
            kept = len(taken) - (self.sent_bytes - limit)
            self._carry("broker", taken[: max(kept, 0)])
            self._then("broker", self.cut)
            return len(taken)
        self._carry("broker", taken)
        return len(taken)

    # The broker's end.

    def send(self, data: bytes) -> None:
        """Send to the client (the model broker calls this)."""
        if not self.is_open or not data:
            return
        cut, mute = self.fate.cut_after_received, self.fate.mute_after_received
        self.received_bytes += len(data)
        if self.fate.stall_after_received is not None and self.received_bytes >= self.fate.stall_after_received[0]:
            self._stall("client", self.fate.stall_after_received[1])
            self.fate.stall_after_received = None
        if mute is not None and self.received_bytes >= mute:
            kept = len(data) - (self.received_bytes - mute)
            self._carry("client", data[: max(kept, 0)])
            self._then("client", self.mute)
            return
        if cut is not None and self.received_bytes >= cut:
            kept = len(data) - (self.received_bytes - cut)
            self._carry("client", data[: max(kept, 0)])
            self._then("client", self.cut)
            return
        self._carry("client", data)

    @property
    def is_writable(self) -> bool:
        """Whether the client's window has room: a broker that respects TCP sends no messages without it."""
        return self._in_flight["client"] + len(self.transport.arrived) < WINDOW_BYTES

    def close(self) -> None:
        """Close the stream from the broker's side; bytes sent before still arrive."""
        self._then("client", self._broker_closed)

    # Faults.

    def cut(self) -> None:
        """Break the stream; the bytes in transit to the client are lost, those to the broker in some cases."""
        if not self.is_open or self.transport.broken:
            return
        late = here().dice("cuts").choice(LATE_SECONDS)
        here().note(f"stream {self.number} to {self.address} is cut; the broker notices it after {late} s")
        self.transport.broken = True
        self.transport._changed()
        if late is None:
            self.is_open = False
            self._notify_broker()
        else:
            self._stall("broker", late)
            self._then("broker", self._client_closed)

    def mute(self) -> None:
        """Make the stream half-open: it carries no more bytes, and neither end is notified."""
        if not self.muted:
            here().note(f"stream {self.number} to {self.address} is half-open")
        self.muted = True

    def _stall(self, to: str, seconds: float) -> None:
        """Delay all bytes that are sent in this direction from now on until this time is over."""
        here().note(f"stream {self.number} to {self.address} is held up for {seconds} s on the way to the {to}")
        self._last_at[to] = max(self._last_at[to], here().now + seconds)
        here().stopped_until = max(here().stopped_until, self._last_at[to])

    def abandon(self) -> None:
        """Close the stream as the kernel does when the client's process has died."""
        self.client_closes()

    def client_closes(self) -> None:
        """Close the client's end; the broker sees the end after the bytes sent before."""
        if self.transport.closed:
            return
        self.transport.closed = True
        if self.is_open:
            self._then("broker", self._client_closed)

    # Carrying.

    def _carry(self, to: str, data: bytes) -> None:
        if not data:
            return
        self._in_flight[to] += len(data)
        pieces = [data]
        if len(data) > 1 and self._dice.random() < 0.3:
            at = self._dice.randrange(1, len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            self._then(to, lambda piece=piece: self._arrive(to, piece))

    def _then(self, to: str, call: Callable[[], None]) -> None:
        """Call a function when all bytes sent in this direction until now have arrived."""
        at = max(here().now + self._latency(), self._last_at[to])
        self._last_at[to] = at
        here().at(at, call)

    def _arrive(self, to: str, piece: bytes) -> None:
        self._in_flight[to] -= len(piece)
        if not self.is_open or self.muted:
            if self.muted:
                # The bytes stay in the kernel, which sends them again and again.
                self._in_flight[to] += len(piece)
            return
        if to == "client":
            if not self.transport.closed and not self.transport.broken:
                self.transport.arrived += piece
                self.transport._changed()
        else:
            self.transport._changed()
            if self.peer is not None:
                self.peer.received(piece)

    def _client_closed(self) -> None:
        if not self.muted:
            self.is_open = False
            self._notify_broker()

    def _broker_closed(self) -> None:
        if not self.muted:
            self.is_open = False
            self.transport.ended = True
            self.transport._changed()
            self._notify_broker()

    def _notify_broker(self) -> None:
        peer, self.peer = self.peer, None
        if peer is not None:
            peer.lost()
        for call in self.on_closed:
            call()
        self.on_closed.clear()


class SimulatedTransport(_Pollable):
    """The client's end, with the interface of `net.transport.Transport`."""

    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self.stream = stream
        self.address = stream.address
        self.arrived = bytearray()
        self.ended = False
        self.broken = False
        self.closed = False

    def poll(self) -> int:
        ready = 0
        if self.arrived or self.ended or self.broken:
            ready |= selectors.EVENT_READ
        if self.broken or self.stream._in_flight["broker"] < WINDOW_BYTES:
            ready |= selectors.EVENT_WRITE
        return ready

    def recv_into(self, view: memoryview) -> int | None:
        here().pause()
        if self.arrived:
            n = min(len(view), len(self.arrived))
            view[:n] = self.arrived[:n]
            del self.arrived[:n]
            return n
        if self.broken:
            raise ConnectionLostError(f"{self.address}: the connection broke (reset by the simulated network)")
        return 0 if self.ended else None

    def pending(self) -> bool:
        return False

    def send(self, data: memoryview) -> int:
        here().pause()
        if self.broken or self.ended or self.closed:
            raise ConnectionLostError(f"{self.address}: the connection broke (broken pipe in the simulated network)")
        return self.stream.client_sends(bytes(data))

    def start_tls(self, *_: object, **__: object) -> None:
        raise NotImplementedError("TLS is not simulated")

    def why_lost(self, error: MQSourceError) -> MQSourceError:
        return error

    def close(self) -> None:
        here().check_alive()
        self.stream.client_closes()


class Network:
    """The hosts of a world.

    Attributes:
        streams: all streams ever opened, in order.
        fates: the faults of streams, by number.
    """

    def __init__(self) -> None:
        self.streams: list[Stream] = []
        self.fates: dict[int, Fate] = {}
        self.https: dict[str, Any] = {}
        self._listeners: dict[str, Callable[[Stream], Peer]] = {}
        self._silent: set[str] = set()
        self._dice = here().dice("network")
        base = self._dice.choice((0.0002, 0.001, 0.02))
        self._base_latency = base

    def latency(self) -> float:
        """Return the delay of a piece: mostly short, sometimes long."""
        draw = self._dice.random()
        return self._base_latency * (0.5 + draw) if draw < 0.97 else self._base_latency * 50 * draw

    def listen(self, address: str, accept: Callable[[Stream], Peer]) -> None:
        """Let a model broker listen on `host:port`; `accept` creates its end of a new stream."""
        self._listeners[address] = accept
        self._silent.discard(address)

    def unlisten(self, address: str) -> None:
        """Refuse connections from now on."""
        self._listeners.pop(address, None)

    def silence(self, address: str) -> None:
        """Leave connections to this address unanswered, as behind a firewall."""
        self._silent.add(address)

    def connect(self, address: str, timeout: float) -> SimulatedTransport:
        """Open a stream from the running fiber."""
        world = here()
        if address in self._silent:
            world.sleep(timeout)
            raise ConnectTimeoutError(f"{address}: no TCP connection in time (simulated)")
        world.sleep(min(2 * self.latency(), timeout))
        accept = self._listeners.get(address)
        if accept is None:
            raise TransportError(f"{address}: cannot connect (connection refused by the simulated network)")
        stream = Stream(len(self.streams), address, self.fates.get(len(self.streams), Fate()), self.latency)
        self.streams.append(stream)
        stream.peer = accept(stream)
        return stream.transport


def network() -> Network:
    """Return the network of the running world."""
    world = here()
    found = getattr(world, "network", None)
    if found is None:
        found = world.network = Network()
    return found


def connect(host: str, port: int, *, tls: object, deadline: Any, proxy: object = None) -> SimulatedTransport:
    """Replace `net.transport.connect`."""
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return network().connect(address, deadline.remaining_seconds())


# -- selectors and wake-ups of the driver


class _PairEnd(_Pollable):
    """One end of a `socket.socketpair`."""

    def __init__(self) -> None:
        super().__init__()
        self.other: _PairEnd
        self._bytes = 0
        self._closed = False

    def setblocking(self, flag: bool) -> None:
        pass

    def send(self, data: bytes) -> int:
        here().check_alive()
        if self._closed or self.other._closed:
            raise OSError("closed")
        self.other._bytes += len(data)
        self.other._changed()
        return len(data)

    def recv(self, n: int) -> bytes:
        if not self._bytes:
            raise BlockingIOError
        taken, self._bytes = min(n, self._bytes), max(0, self._bytes - n)
        return b"\0" * taken

    def poll(self) -> int:
        return selectors.EVENT_WRITE | (selectors.EVENT_READ if self._bytes else 0)

    def close(self) -> None:
        self._closed = True


def socketpair() -> tuple[_PairEnd, _PairEnd]:
    """Replace `socket.socketpair`, which the driver uses for wake-ups."""
    one, other = _PairEnd(), _PairEnd()
    one.other, other.other = other, one
    return one, other


class Selector:
    """A `selectors.DefaultSelector`."""

    def __init__(self) -> None:
        self._keys: dict[int, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, id(fileobj), events, data)
        self._keys[id(fileobj)] = key
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys.pop(id(fileobj))

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        world = here()
        world.pause()
        until = None if timeout is None else world.now + timeout
        while True:
            ready = [(key, key.fileobj.poll() & key.events) for key in self._keys.values()]
            ready = [(key, events) for key, events in ready if events]
            if ready or (until is not None and world.now >= until):
                return ready
            me, watched = world.current, [key.fileobj for key in self._keys.values()]
            for fileobj in watched:
                fileobj._watchers[me] = None
            try:
                world.park(None if until is None else until - world.now)
            finally:
                for fileobj in watched:
                    fileobj._watchers.pop(me, None)

    def close(self) -> None:
        self._keys.clear()

    def __enter__(self) -> Selector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
