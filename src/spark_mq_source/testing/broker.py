"""The embedded broker's life: a thread with an event loop, its ports, starting, stopping, crashing."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final, Self, TypeVar

from spark_mq_source.testing.http import Handler, HttpError, Request, serve_client
from spark_mq_source.testing.lookup import LookupHttp, Node, Registry
from spark_mq_source.testing.nsqd_http import NsqdHttp
from spark_mq_source.testing.protocol import Connection
from spark_mq_source.testing.queues import Broker
from spark_mq_source.testing.settings import NsqSettings

T = TypeVar("T")

# nsqd looks every 100 ms for what timed out; shorter here, so that tests wait less.
_WAKE_INTERVAL_S: Final = 0.02
_PATIENCE_S: Final = 20.0


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs it there and returns what it returns."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    def close(self) -> None:
        """Ends what still runs, and the thread."""
        self.run(_cancel_others())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class _Listeners:
    """The listening sockets of one daemon."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._servers: list[asyncio.Server] = []
        self._writers: set[asyncio.StreamWriter] = set()

    async def add_http(self, handler: Handler, port: int, context: ssl.SSLContext | None = None) -> int:
        """Listens; returns the port."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._writers.add(writer)
            try:
                await serve_client(handler, reader, writer)
            finally:
                self._writers.discard(writer)

        return self._added(await asyncio.start_server(serve, self._host, port, ssl=context))

    async def add_tcp(self, factory: Callable[[], asyncio.Protocol], port: int) -> int:
        """Listens; returns the port."""
        return self._added(await asyncio.get_running_loop().create_server(factory, self._host, port, backlog=1024))

    def _added(self, server: asyncio.Server) -> int:
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stops listening, and ends the HTTP connections."""
        for server in self._servers:
            server.close()
        for writer in self._writers:
            writer.transport.abort()


class NsqLookupd:
    """A lookup daemon under which several brokers can register; each broker has one of its own otherwise.

    Those of this process: it has the HTTP interface that clients ask, but not the TCP port where nsqd would register.

    Args:
        host: where to listen.
        http_port: 0 finds a free one.

    Example:
        >>> with NsqLookupd() as lookupd, NsqBroker(lookupd=lookupd) as first, NsqBroker(lookupd=lookupd) as second:
        ...     first.publish("events", b"a")
        ...     second.publish("events", b"b")
        ...     len(lookupd.producers("events"))
        2
    """

    def __init__(self, *, host: str = "127.0.0.1", http_port: int = 0) -> None:
        self.registry = Registry()
        self._host = host
        self._http_port = http_port
        self._thread: _LoopThread | None = None
        self._listeners: _Listeners | None = None

    @property
    def http_address(self) -> str:
        """Its HTTP interface, as `host:port`."""
        return f"{self._host}:{self._http_port}"

    def producers(self, topic: str) -> list[str]:
        """The TCP addresses of the brokers that have a topic."""
        return [f"{node.broadcast_address}:{node.tcp_port}" for node in self.registry.producers(topic)]

    def start(self) -> Self:
        """Listens; the same port again after stop().

        Raises:
            OSError: the port is taken.
        """
        self._thread = _LoopThread(f"nsqlookupd {self._host}")
        self._listeners = _Listeners(self._host)
        try:
            self._http_port = self._thread.run(self._listeners.add_http(LookupHttp(self.registry), self._http_port))
        except OSError:
            self._thread.close()
            self._thread = None
            raise
        return self

    def stop(self) -> None:
        """Stops listening. What it knows stays."""
        if self._thread is not None and self._listeners is not None:
            self._thread.run(_call(self._listeners.close))
            self._thread.close()
        self._thread = self._listeners = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class NsqBroker:
    """An NSQ broker in a thread of this process: protocol, HTTP interfaces and lookups of nsqd 1.3.0, all in memory.

    Args:
        lookupd: where it registers, one or several; None starts one of its own.
        host: where to listen.
        tcp_port: 0 finds a free one, as the other ports.
        http_port: of nsqd's HTTP interface.
        https_port: the same with TLS, where there is a certificate.
        lookupd_http_port: of the lookup daemon of its own.
        settings: nsqd's flags, see `NsqSettings`.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> with NsqBroker(msg_timeout_ms=1000) as broker:
        ...     broker.create_channel("flights", "archive")
        ...     broker.publish("flights", b"UA 1545", b"AA 1141")
        ...     broker.depth("flights", "archive")
        2

        Anything that speaks NSQ can connect to `broker.tcp_address`, ask `broker.http_address`, or find it through
        `broker.lookupd_address`.
    """

    def __init__(
        self,
        *,
        lookupd: NsqLookupd | Sequence[NsqLookupd] | None = None,
        host: str = "127.0.0.1",
        tcp_port: int = 0,
        http_port: int = 0,
        https_port: int = 0,
        lookupd_http_port: int = 0,
        **settings: Any,  # noqa: ANN401 - the fields of NsqSettings, each of its type
    ) -> None:
        self.settings = NsqSettings(**settings)
        self.tls_context = _tls_context(self.settings)
        self.connections: dict[Connection, None] = {}
        self.started_s = 0
        self.tcp_port, self.http_port, self.https_port = tcp_port, http_port, https_port
        self.broker = Broker(self.settings, self._changed, self._known_channels)
        has_own_lookupd = lookupd is None
        if lookupd is None or isinstance(lookupd, NsqLookupd):
            lookupd = [lookupd or NsqLookupd(host=host, http_port=lookupd_http_port)]
        self.lookupds = list(lookupd)
        self._own_lookupd = self.lookupds[0] if has_own_lookupd else None
        self._host = host
        self._node: Node | None = None
        self._thread: _LoopThread | None = None
        self._listeners: _Listeners | None = None
        self._wake: asyncio.TimerHandle | None = None

    # -- addresses

    @property
    def tcp_address(self) -> str:
        """Where clients connect, as `host:port`."""
        return f"{self._host}:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        """Nsqd's HTTP interface, as `host:port`."""
        return f"{self._host}:{self.http_port}"

    @property
    def https_address(self) -> str:
        """The same with TLS, where there is a certificate."""
        return f"{self._host}:{self.https_port}"

    @property
    def lookupd_addresses(self) -> Sequence[str]:
        """The HTTP interfaces of its lookup daemons."""
        return [lookupd.http_address for lookupd in self.lookupds]

    @property
    def lookupd_address(self) -> str:
        """The HTTP interface of its (first) lookup daemon, as `host:port`."""
        return self.lookupd_addresses[0]

    # -- life

    def start(self) -> Self:
        """Starts it; after stop() or crash() with the same ports, and with what they left.

        Raises:
            OSError: a port is taken.
        """
        if self._own_lookupd is not None:
            self._own_lookupd.start()
        self._thread = _LoopThread(f"nsqd {self._host}")
        try:
            self._thread.run(self._listen())
        except OSError:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stops it in order: messages are kept; what was in flight or deferred is back in its queue."""
        self._end(crash=False)

    def crash(self) -> None:
        """Ends it as `kill -9` ends nsqd, which had on disk what did not fit into `mem_queue_size`.

        The messages in memory and in flight are lost. Those on disk come again that were delivered since the last sync
        (`sync_every`, `sync_timeout_ms`), finished or not, as if they never were. Topics and channels stay.
        """
        self._end(crash=True)

    def restart(self, *, crash: bool = False) -> None:
        """Stops or crashes it, and starts it again.

        Raises:
            OSError: a port was taken meanwhile.

        Example:
            >>> with NsqBroker() as broker:
            ...     broker.publish("flights", b"UA 1545")
            ...     broker.restart()
            ...     broker.publish("flights", b"AA 1141", b"B6 725")
            ...     published = broker.depth("flights")
            ...     broker.restart(crash=True)  # what an orderly end wrote to disk is kept
            ...     published, broker.depth("flights")
            (3, 1)
        """
        self._end(crash=crash)
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- what tests do with it

    def publish(self, topic: str, *bodies: bytes, defer_ms: int = 0) -> None:
        """Publishes messages, as a client would.

        Raises:
            ValueError: the topic's name is not valid, a message is empty or too large.
        """
        body = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
        if defer_ms:
            for each in bodies:
                self._http("POST", "/pub", each, topic=topic, defer=defer_ms)
        else:
            self._http("POST", "/mpub", len(bodies).to_bytes(4, "big") + body, topic=topic, binary="true")

    def create_topic(self, topic: str) -> None:
        """Makes a topic.

        Raises:
            ValueError: the name is not valid.
        """
        self._http("POST", "/topic/create", topic=topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Makes a channel, and its topic. Only the first channel of a topic gets what was published before.

        Raises:
            ValueError: a name is not valid.
        """
        self.create_topic(topic)
        self._http("POST", "/channel/create", topic=topic, channel=channel)

    def pause(self, topic: str, channel: str | None = None, *, paused: bool = True) -> None:
        """Pauses a channel, or a topic; with paused=False it goes on.

        Raises:
            ValueError: there is no such topic or channel.
        """
        verb = "pause" if paused else "unpause"
        if channel is None:
            self._http("POST", f"/topic/{verb}", topic=topic)
        else:
            self._http("POST", f"/channel/{verb}", topic=topic, channel=channel)

    def stats(self, topic: str = "", channel: str = "") -> dict[str, Any]:
        """What `GET /stats?format=json` answers."""
        found = self._http("GET", "/stats", format="json", topic=topic, channel=channel)
        assert isinstance(found, dict)  # noqa: S101 - it is JSON that was asked for
        return found

    def depth(self, topic: str, channel: str | None = None) -> int:
        """Messages that wait in a channel, or in a topic without channels; 0 if there is no such thing."""
        topics = self.stats(topic, channel or "")["topics"] or [{"depth": 0, "channels": []}]
        waiting = topics[0]["depth"] if channel is None else sum(c["depth"] for c in topics[0]["channels"])
        return int(waiting)

    def _http(self, method: str, path: str, body: bytes = b"", **parameters: object) -> object:
        request = Request(method, path, {name: [str(value)] for name, value in parameters.items()}, body)
        if self._thread is None:
            raise RuntimeError("the broker is not running")
        try:
            return self._thread.run(_call(functools.partial(NsqdHttp(self, encrypted=True), request)))
        except HttpError as error:
            raise ValueError(f"{path} {dict(parameters)}: {error.text}") from error

    # -- what its parts call, in its thread

    def wake_soon(self) -> None:
        """Something may time out from now on."""
        if self._wake is None:
            self._wake = asyncio.get_running_loop().call_later(_WAKE_INTERVAL_S, self._woken)

    def _woken(self) -> None:
        self._wake = None
        self.broker.wake(time.monotonic())
        if any(c.is_waiting for topic in self.broker.topics.values() for c in topic.channels.values()):
            self.wake_soon()

    async def _listen(self) -> None:
        self._listeners = listeners = _Listeners(self._host)
        self.tcp_port = await listeners.add_tcp(lambda: Connection(self), self.tcp_port)
        self.http_port = await listeners.add_http(NsqdHttp(self, encrypted=False), self.http_port)
        if self.tls_context is not None:
            handler = NsqdHttp(self, encrypted=True)
            self.https_port = await listeners.add_http(handler, self.https_port, self.tls_context)
        self.started_s = int(time.time())
        self._register()

    def _register(self) -> None:
        self._node = Node(
            f"{self._host}:{self.tcp_port}",
            socket.gethostname(),
            self.settings.broadcast_address,
            self.tcp_port,
            self.http_port,
            self.settings.topology_zone,
            self.settings.topology_region,
        )
        for lookupd in self.lookupds:
            lookupd.registry.add_node(self._node)
        for topic in self.broker.topics.values():
            for channel in [None, *topic.channels]:
                self._changed(topic.name, channel, present=True)

    def _changed(self, topic: str, channel: str | None, present: bool) -> None:
        for lookupd in self.lookupds:
            if self._node is not None and present:
                lookupd.registry.register(self._node, topic, channel)
            elif self._node is not None:
                lookupd.registry.unregister(self._node, topic, channel)

    def _known_channels(self, topic: str) -> Iterable[str]:
        return {channel: None for lookupd in self.lookupds for channel in lookupd.registry.channels(topic)}

    def _end(self, *, crash: bool) -> None:
        if self._thread is not None:
            self._thread.run(self._shut(crash=crash))
            self._thread.close()
            self._thread = None
        if self._own_lookupd is not None:
            self._own_lookupd.stop()

    async def _shut(self, *, crash: bool) -> None:
        if self._listeners is not None:
            self._listeners.close()
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._node is not None:
            for lookupd in self.lookupds:
                lookupd.registry.remove_node(self._node)
            self._node = None
        self.broker.restart(time.monotonic(), crash=crash)
        for connection in list(self.connections):
            connection.channel = None
            connection.abort() if crash else connection.close()
        self.connections.clear()
        # The loop's next rounds close the sockets.
        await asyncio.sleep(0)


async def _call(function: Callable[[], T]) -> T:
    return function()


def _tls_context(settings: NsqSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    if settings.tls_root_ca_file is not None:
        context.load_verify_locations(settings.tls_root_ca_file)
    if settings.tls_client_auth_policy:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
