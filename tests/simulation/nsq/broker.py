"""nsqd and nsqlookupd in the simulated world: parts of the embedded broker without its sockets and event loop.

Queues, connections and HTTP interfaces are those of `spark_mq_source.testing`; test_likeness.py compares both with a
real nsqd, including kills. This module replaces sockets with streams of the simulated network, and the event loop's
clock with the world's.
"""

from __future__ import annotations

import asyncio
import time
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from spark_mq_source.testing import lookup, nsqd_http, protocol
from spark_mq_source.testing.http import HttpError, Request
from spark_mq_source.testing.lookup import LookupHttp, Node, Registry
from spark_mq_source.testing.nsqd_http import NsqdHttp
from spark_mq_source.testing.protocol import Connection
from spark_mq_source.testing.queues import HEAD_SIZE, Broker, Channel, Queue
from spark_mq_source.testing.settings import NsqSettings
from tests.simulation import clockwork, http
from tests.simulation.network import Stream, network
from tests.simulation.world import Process, World

LOOKUPD = "nsqlookupd:4161"

OTHER = "other"
"""A channel of other consumers; an nsqd that has it and not the readers' channel passes all messages to it."""

SCAN_SECONDS = 0.1
"""The interval in which nsqd looks for messages that have timed out (`QueueScanInterval`)."""


class _Handle:
    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class _Loop:
    """The methods of an event loop that the embedded broker's connections use."""

    def call_later(self, seconds: float, call: Callable[..., object], *args: object) -> _Handle:
        handle = _Handle()
        clockwork.here().after(seconds, lambda: None if handle.cancelled else call(*args))
        return handle

    def call_soon(self, call: Callable[..., object], *args: object) -> _Handle:
        return self.call_later(0.0, call, *args)


def _install() -> None:
    """Make the embedded broker's parts use the world's clock while a world runs, and the real clock otherwise."""
    clock = types.SimpleNamespace(
        monotonic=lambda: time.monotonic() if clockwork.world is None else clockwork.world.now,
        time=lambda: time.time() if clockwork.world is None else clockwork.world.wall,
        time_ns=lambda: time.time_ns() if clockwork.world is None else int(clockwork.world.wall * 1e9),
    )
    for module in (protocol, nsqd_http, lookup):
        vars(module)["time"] = clock
    vars(protocol)["asyncio"] = clockwork.namespace(
        asyncio, get_running_loop=lambda: asyncio.get_running_loop() if clockwork.world is None else _Loop()
    )


_install()


class _Transport(asyncio.Transport):
    """The broker's end of a stream."""

    def __init__(self, stream: Stream, connection: Connection) -> None:
        super().__init__()
        self._stream = stream
        self._connection = connection
        self._closing = False
        self._is_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._stream.send(bytes(data))
        if not self._stream.is_writable and not self._is_paused:
            self._is_paused = True
            self._connection.pause_writing()
            self._look_again()

    def _look_again(self) -> None:
        if not self._stream.is_open or self._closing:
            return
        if self._stream.is_writable:
            self._is_paused = False
            self._connection.resume_writing()
        else:
            clockwork.here().after(0.01, self._look_again)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._end(self._stream.close)

    def abort(self) -> None:
        self._end(self._stream.cut)

    def _end(self, end: Callable[[], None]) -> None:
        if self._closing:
            return
        self._closing = True
        # A broker that has closed a connection does not wait until the client sees it.
        clockwork.here().after(0.0, lambda: self._connection.connection_lost(None))
        end()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("10.0.0.1", self._stream.number) if name == "peername" else default


class _Buffering(Connection):
    """A connection with nsqd's output buffer (protocol_v2.go): messages wait in it while the consumer can take more.

    nsqd sends them when the buffer is full or its timer ends, with an answer or a heartbeat, or if RDY allows no more.
    """

    def __init__(self, nsqd: Nsqd) -> None:
        super().__init__(nsqd)
        self._buffered: list[bytes] = []
        self._is_timed = False
        self._world = nsqd.cluster.world

    def deliver(self, frames: Sequence[bytes]) -> None:
        self._buffered += frames
        self.server.start_timer()
        timeout_ms = self._output_buffer_timeout_ms
        if self.ready_count <= len(self.in_flight) or sum(map(len, self._buffered)) >= self._output_buffer_size:
            self._flush()
        elif timeout_ms and not self._is_timed:
            self._is_timed = True
            self._world.after(self._world.dice("buffers").random() * timeout_ms / 1000, self._flush)

    def _flush(self) -> None:
        self._is_timed = False
        buffered, self._buffered = self._buffered, []
        if buffered and not self._ended:
            super().deliver(buffered)

    def _write(self, data: bytes) -> None:
        self._flush()
        super()._write(data)

    def _rdy(self, parameters: Sequence[bytes]) -> None:
        super()._rdy(parameters)
        if self.ready_count <= len(self.in_flight):
            self._flush()


class _Peer:
    """See `network.Peer`."""

    def __init__(self, stream: Stream, nsqd: Nsqd) -> None:
        self._connection = _Buffering(nsqd)
        self._transport = _Transport(stream, self._connection)
        self._connection.connection_made(self._transport)
        vars(self._connection)["stream"] = stream

    def received(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._connection.data_received(data)

    def lost(self) -> None:
        if not self._transport.is_closing():
            self._transport._closing = True
            self._connection.connection_lost(None)


class Cluster:
    """One nsqlookupd and its nsqd.

    Args:
        world: the cluster's world.
        nsqds: the number of nsqd.
        settings: of every nsqd.

    Attributes:
        published: every message that an nsqd received, as (nsqd, body), in order.
        lost: the messages that an nsqd lost in a kill or with a deleted channel, or passed only to channel `OTHER`.
    """

    def __init__(self, world: World, nsqds: int, **settings: Any) -> None:
        self.world = world
        vars(world)["cluster"] = self
        self.registry = Registry()
        self.published: Counter[tuple[str, bytes]] = Counter()
        self.lost: Counter[tuple[str, bytes]] = Counter()
        http.serve(LOOKUPD, _handler(LookupHttp(self.registry)))
        self.nsqds = [Nsqd(self, f"nsqd-{n}", NsqSettings(node_id=n, **settings)) for n in range(nsqds)]
        for nsqd in self.nsqds:
            nsqd.start()

    def create(self, topic: str, channel: str) -> None:
        """Create a topic and a channel on every nsqd."""
        for nsqd in self.nsqds:
            nsqd.broker.topic(topic, self.world.now).channel(channel, self.world.now)

    def lacking(self, topics: Iterable[str], channel: str) -> list[tuple[str, bytes]]:
        """Return the nsqd that are up and have one of these topics without the channel."""
        up = [nsqd for nsqd in self.nsqds if nsqd.is_up]
        return [
            (nsqd.name, b"") for nsqd in up for topic in topics if channel not in nsqd.broker.topics[topic].channels
        ]

    def holders(self) -> set[Process]:
        """Return the processes that have messages in flight."""
        return {
            connection.stream.process  # type: ignore[attr-defined] - set by `_Peer`
            for nsqd in self.nsqds
            for connection in nsqd.connections
            if len(connection.in_flight)
        }

    def uncounted(self) -> set[tuple[str, bytes]]:
        """Return the messages of channels that an nsqd counts as empty since it was killed."""
        return {(nsqd.name, body) for nsqd in self.nsqds for body in nsqd.uncounted()}

    @property
    def tcp_addresses(self) -> str:
        """The value of `nsqdTcpAddresses`."""
        return ",".join(nsqd.address for nsqd in self.nsqds)

    @property
    def http_addresses(self) -> str:
        """The value of `nsqdHttpAddresses`."""
        return ",".join(nsqd.http_address for nsqd in self.nsqds)


class Nsqd:
    """One nsqd, with the parts of `NsqBroker` that `testing.protocol` and `testing.nsqd_http` use.

    Args:
        cluster: has the nsqlookupd at which it registers.
        name: its host.
        settings: nsqd's flags.
    """

    tcp_port, http_port, https_port = 4150, 4151, 0
    tls_context = None
    lookupd_addresses: Sequence[str] = (LOOKUPD,)

    def __init__(self, cluster: Cluster, name: str, settings: NsqSettings) -> None:
        self.cluster = cluster
        self.name = name
        self.address = f"{name}:{self.tcp_port}"
        self.http_address = f"{name}:{self.http_port}"
        self.settings = settings
        self.connections: dict[Connection, None] = {}
        self.started_s = 0
        self.is_up = False
        self.broker = _Recording(self)
        self._node: Node | None = None
        self._scans = False

    def start(self) -> None:
        """Listen and register, with the messages on disk."""
        if self.is_up:
            return
        self.is_up = True
        # Two starts within a second, which nsqd reports as one, are not explored: they need a kill within it, too.
        self.started_s = max(int(self.cluster.world.wall), self.started_s + 1)
        network().listen(self.address, lambda stream: _Peer(stream, self))
        http.serve(self.http_address, _handler(NsqdHttp(self, encrypted=False)))
        self._node = Node(self.address, self.name, self.name, self.tcp_port, self.http_port)
        self.cluster.registry.add_node(self._node)
        for topic in self.broker.topics.values():
            for channel in [None, *topic.channels]:
                self.cluster.registry.register(self._node, topic.name, channel)

    def stop(self, *, crash: bool) -> None:
        """Stop it in order, or as `kill -9` does."""
        if not self.is_up:
            return
        self.cluster.world.note(f"{self.name} is {'killed' if crash else 'stopped'}")
        self.is_up = False
        network().unlisten(self.address)
        http.serve(self.http_address, None)
        if self._node is not None:
            self.cluster.registry.remove_node(self._node)
            self._node = None
        with self._losing():
            self.broker.restart(self.cluster.world.now, crash=crash)
        for connection in list(self.connections):
            connection.channel = None
            if crash:
                connection.abort()
            else:
                connection.close()
        self.connections.clear()

    def delete_channel(self, topic: str, channel: str) -> None:
        """Delete a channel with its messages, as an administrator does; the topic then has only channel `OTHER`."""
        found = self.broker.topic(topic, self.cluster.world.now)
        found.channel(OTHER, self.cluster.world.now)
        if channel in found.channels:
            with self._losing():
                found.delete_channel(channel)

    @contextmanager
    def _losing(self) -> Iterator[None]:
        """Record the messages that the body loses."""
        before = {name: self.held(name) for name in self.broker.topics}
        yield
        for name, held in before.items():
            self.cluster.lost.update({(self.name, body): n for body, n in (held - self.held(name)).items()})

    def held(self, name: str | None = None) -> Counter[bytes]:
        """Return the messages that are queued, deferred or in flight; a body's count is the highest of any channel.

        Those of the channel `OTHER` do not count.

        Args:
            name: of a topic, to return only its messages.
        """
        found: Counter[bytes] = Counter()
        for topic in [topic for topic in self.broker.topics.values() if name in (None, topic.name)]:
            found |= Counter(_bodies(_frames(topic.queue)))
            for channel in [channel for channel in topic.channels.values() if channel.name != OTHER]:
                found |= Counter(_bodies(_all_frames(channel)))
        return found

    def uncounted(self) -> list[bytes]:
        """Return the messages of channels that it counts as empty since it was killed."""
        channels = [channel for topic in self.broker.topics.values() for channel in topic.channels.values()]
        empty = [channel for channel in channels if channel.queue.depth <= channel.queue.uncounted]
        return _bodies(frame for channel in empty for frame in _all_frames(channel))

    def hide_http(self, seconds: float) -> None:
        """Let its HTTP interface refuse connections for a time."""
        http.serve(self.http_address, None)

        def show() -> None:
            if self.is_up:
                http.serve(self.http_address, _handler(NsqdHttp(self, encrypted=False)))

        self.cluster.world.after(seconds, show)

    def publish(self, topic: str, bodies: Iterable[bytes]) -> None:
        """Publish as a foreign producer; nsqd receives it at once."""
        world = self.cluster.world
        self.broker.topic(topic, world.now).publish(list(bodies), 0.0, world.now, int(world.wall * 1e9))
        self.broker.pump(world.now)

    # -- methods that its parts call

    def start_timer(self) -> None:
        """See `testing.broker.NsqBroker`."""
        if not self._scans:
            self._scans = True
            self.cluster.world.after(SCAN_SECONDS, self._scan)

    def _scan(self) -> None:
        self._scans = False
        if not self.is_up:
            return
        self.broker.wake(self.cluster.world.now)
        if any(c.is_waiting for topic in self.broker.topics.values() for c in topic.channels.values()):
            self.start_timer()


class _Recording(Broker):
    """A broker that records the published messages."""

    def __init__(self, nsqd: Nsqd) -> None:
        def changed(topic: str, channel: str | None, present: bool) -> None:
            node = nsqd._node
            if node is not None:
                call = nsqd.cluster.registry.register if present else nsqd.cluster.registry.unregister
                call(node, topic, channel)

        super().__init__(nsqd.settings, changed, nsqd.cluster.registry.channels)
        self._nsqd = nsqd

    def took(self, bodies: Sequence[bytes]) -> None:
        """Record messages."""
        self._nsqd.cluster.published.update((self._nsqd.name, body) for body in bodies)

    def topic(self, name: str, now_s: float) -> Any:
        topic = super().topic(name, now_s)
        if "publish" not in vars(topic):
            publish = topic.publish

            def noting(bodies: Sequence[bytes], defer_s: float, now_s: float, now_ns: int) -> None:
                self.took(bodies)
                publish(bodies, defer_s, now_s, now_ns)
                if set(topic.channels) == {OTHER}:
                    self._nsqd.cluster.lost.update((self._nsqd.name, body) for body in bodies)

            vars(topic)["publish"] = noting
        return topic


def _frames(queue: Queue) -> list[bytes]:
    return [frame for n, (part, _) in enumerate(queue._lists) for frame in (part[queue._taken :] if n == 0 else part)]


def _all_frames(channel: Channel) -> list[bytes]:
    in_flight = [frame for holder in channel._holders for frame, _, _ in holder.values()]
    return _frames(channel.queue) + in_flight + [frame for _, _, frame in channel._deferred]


def _bodies(frames: Iterable[bytes]) -> list[bytes]:
    return [frame[HEAD_SIZE:] for frame in frames]


def _handler(answer: Callable[[Request], Any]) -> http.Handler:
    def handle(method: str, path: str, parameters: Mapping[str, str]) -> http.Answer:
        request = Request(method, path, {name: [value] for name, value in parameters.items()}, b"")
        try:
            return 200, answer(request)
        except HttpError as error:
            return error.status, {"message": error.text}

    return handle
