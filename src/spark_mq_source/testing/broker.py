"""The embedded broker: its thread with an event loop, its ports, and its start, stop and crash."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from spark_mq_source.testing.http import Handler, HttpError, Request, serve_client
from spark_mq_source.testing.lookup import LookupHttp, Node, Registry
from spark_mq_source.testing.nsqd_http import NsqdHttp
from spark_mq_source.testing.protocol import Connection
from spark_mq_source.testing.queues import Broker
from spark_mq_source.testing.settings import NsqSettings

if TYPE_CHECKING:
    from typing_extensions import Self

T = TypeVar("T")

# nsqd checks timeouts every 100 ms; this interval is shorter, so that tests wait less.
_WAKE_INTERVAL_S: Final = 0.02
_PATIENCE_S: Final = 20.0


class _Daemon:
    """The event loop of one daemon, in a separate thread, and its listening sockets."""

    def __init__(self, name: str, host: str) -> None:
        self._host = host
        self._servers: list[asyncio.Server] = []
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"{name} {host}", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE_S)

    async def add_http(self, handler: Handler, port: int, context: ssl.SSLContext | None = None) -> int:
        # A task that start_server() makes logs an error in Python 3.11 if it is cancelled; this one does not.
        def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(serve_client(handler, reader, writer))
            self._clients[task] = writer
            task.add_done_callback(self._clients.pop)

        return self._added(await asyncio.start_server(serve, self._host, port, ssl=context))

    async def add_tcp(self, factory: Callable[[], asyncio.Protocol], port: int) -> int:
        return self._added(await asyncio.get_running_loop().create_server(factory, self._host, port, backlog=1024))

    def _added(self, server: asyncio.Server) -> int:
        self._servers.append(server)
        return int(server.sockets[0].getsockname()[1])

    def stop_listening(self) -> None:
        """Close the sockets, and the connections of HTTP clients; in the loop's thread."""
        for server in self._servers:
            server.close()
        for writer in self._clients.values():
            writer.transport.abort()

    def close(self) -> None:
        """Stop listening, cancel running tasks and end the thread."""
        self.run(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    async def _end_tasks(self) -> None:
        self.stop_listening()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class NsqLookupd:
    """An nsqlookupd for several brokers of this process; without it, each broker has its own.

    It has the HTTP interface for clients, but not the TCP port for nsqd.

    Args:
        host: address to listen on.
        http_port: 0 selects a free port.

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
        self._daemon: _Daemon | None = None

    @property
    def http_address(self) -> str:
        """The address of the HTTP interface, as `host:port`."""
        return f"{self._host}:{self._http_port}"

    def producers(self, topic: str) -> list[str]:
        """Return the TCP addresses of a topic's brokers."""
        return [f"{node.broadcast_address}:{node.tcp_port}" for node in self.registry.producers(topic)]

    def start(self) -> Self:
        """Start listening; after stop(), on the same port.

        Raises:
            OSError: the port is in use.
        """
        self._daemon = _Daemon("nsqlookupd", self._host)
        try:
            self._http_port = self._daemon.run(self._daemon.add_http(LookupHttp(self.registry), self._http_port))
        except OSError:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop listening, but keep the registrations."""
        if self._daemon is not None:
            self._daemon.close()
            self._daemon = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class NsqBroker:
    """An in-memory NSQ broker in a thread of this process: protocol, HTTP interfaces and lookups of nsqd 1.3.0.

    Args:
        lookupd: one or more nsqlookupd to register with; None starts an own one.
        host: address to listen on.
        tcp_port: port of the protocol; for all ports, 0 selects a free one.
        http_port: port of nsqd's HTTP interface.
        https_port: port of nsqd's HTTPS interface, if there is a certificate.
        lookupd_http_port: port of the broker's own nsqlookupd.
        settings: nsqd's flags, see `NsqSettings`.

    Raises:
        ValueError: a setting is out of range.

    Example:
        >>> with NsqBroker(msg_timeout_ms=1000) as broker:
        ...     broker.create_channel("flights", "archive")
        ...     broker.publish("flights", b"UA 1545", b"AA 1141")
        ...     broker.depth("flights", "archive")
        2

        Any NSQ client can connect to `broker.tcp_address`, use `broker.http_address`, or find the broker through
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
        self._daemon: _Daemon | None = None
        self._wake: asyncio.TimerHandle | None = None

    # -- addresses

    @property
    def tcp_address(self) -> str:
        """The address for clients, as `host:port`."""
        return f"{self._host}:{self.tcp_port}"

    @property
    def http_address(self) -> str:
        """The address of the HTTP interface, as `host:port`."""
        return f"{self._host}:{self.http_port}"

    @property
    def https_address(self) -> str:
        """The address of the HTTPS interface, if there is a certificate."""
        return f"{self._host}:{self.https_port}"

    @property
    def lookupd_addresses(self) -> Sequence[str]:
        """The HTTP addresses of the broker's nsqlookupd."""
        return [lookupd.http_address for lookupd in self.lookupds]

    @property
    def lookupd_address(self) -> str:
        """The HTTP address of the first nsqlookupd, as `host:port`."""
        return self.lookupd_addresses[0]

    # -- start and stop

    def start(self) -> Self:
        """Start the broker; after stop() or crash() with the same ports and the remaining messages.

        Raises:
            OSError: a port is in use.
        """
        if self._own_lookupd is not None:
            self._own_lookupd.start()
        self._daemon = _Daemon("nsqd", self._host)
        try:
            self._daemon.run(self._listen(self._daemon))
        except OSError:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop the broker cleanly: messages are kept, and those in flight or deferred are queued again."""
        self._end(crash=False)

    def crash(self) -> None:
        """End the broker as `kill -9` ends an nsqd with messages beyond `mem_queue_size` on disk.

        Messages in memory and in flight are lost. Messages read from disk since the last sync (`sync_every`,
        `sync_timeout_ms`) are delivered again, even if they were finished. Topics and channels stay.
        """
        self._end(crash=True)

    def restart(self, *, crash: bool = False) -> None:
        """Stop or crash the broker, and start it again.

        Raises:
            OSError: a port is in use.

        Example:
            >>> with NsqBroker() as broker:
            ...     broker.publish("flights", b"UA 1545")
            ...     broker.restart()
            ...     broker.publish("flights", b"AA 1141", b"B6 725")
            ...     published = broker.depth("flights")
            ...     broker.restart(crash=True)  # keeps messages written to disk by the clean stop
            ...     published, broker.depth("flights")
            (3, 1)
        """
        self._end(crash=crash)
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- for tests

    def publish(self, topic: str, *bodies: bytes, defer_ms: int = 0) -> None:
        """Publish messages.

        Raises:
            ValueError: the topic's name is invalid, or a message is empty or too large.
        """
        body = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
        if defer_ms:
            for each in bodies:
                self._http("POST", "/pub", each, topic=topic, defer=defer_ms)
        else:
            self._http("POST", "/mpub", len(bodies).to_bytes(4, "big") + body, topic=topic, binary="true")

    def create_topic(self, topic: str) -> None:
        """Create a topic.

        Raises:
            ValueError: the name is invalid.
        """
        self._http("POST", "/topic/create", topic=topic)

    def create_channel(self, topic: str, channel: str) -> None:
        """Create a channel and its topic. Only the first channel of a topic gets messages published before.

        Raises:
            ValueError: a name is invalid.
        """
        self.create_topic(topic)
        self._http("POST", "/channel/create", topic=topic, channel=channel)

    def pause(self, topic: str, channel: str | None = None, *, paused: bool = True) -> None:
        """Pause a channel or a topic, or unpause it with paused=False.

        Raises:
            ValueError: the topic or channel does not exist.
        """
        more: dict[str, Any] = {} if channel is None else {"channel": channel}
        kind = "topic" if channel is None else "channel"
        self._http("POST", f"/{kind}/{'pause' if paused else 'unpause'}", topic=topic, **more)

    def stats(self, topic: str = "", channel: str = "") -> dict[str, Any]:
        """Return the answer of `GET /stats?format=json`."""
        found = self._http("GET", "/stats", format="json", topic=topic, channel=channel)
        assert isinstance(found, dict)  # noqa: S101 - format=json returns a dict
        return found

    def depth(self, topic: str, channel: str | None = None) -> int:
        """Return the number of messages waiting in a channel, or in a topic without channels; 0 if it is missing."""
        topics = self.stats(topic, channel or "")["topics"] or [{"depth": 0, "channels": []}]
        waiting = topics[0]["depth"] if channel is None else sum(c["depth"] for c in topics[0]["channels"])
        return int(waiting)

    def _http(self, method: str, path: str, body: bytes = b"", **parameters: object) -> object:
        request = Request(method, path, {name: [str(value)] for name, value in parameters.items()}, body)
        if self._daemon is None:
            raise RuntimeError("the broker is not running")
        try:
            return self._daemon.run(_call(functools.partial(NsqdHttp(self, encrypted=True), request)))
        except HttpError as error:
            raise ValueError(f"{path} {dict(parameters)}: {error.text}") from error

    # -- callbacks, in the broker's thread

    def start_timer(self) -> None:
        """Start the timer for timeouts and deferred messages."""
        if self._wake is None:
            self._wake = asyncio.get_running_loop().call_later(_WAKE_INTERVAL_S, self._on_timer)

    def _on_timer(self) -> None:
        self._wake = None
        self.broker.wake(time.monotonic())
        if any(c.is_waiting for topic in self.broker.topics.values() for c in topic.channels.values()):
            self.start_timer()

    async def _listen(self, daemon: _Daemon) -> None:
        self.tcp_port = await daemon.add_tcp(lambda: Connection(self), self.tcp_port)
        self.http_port = await daemon.add_http(NsqdHttp(self, encrypted=False), self.http_port)
        if self.tls_context is not None:
            handler = NsqdHttp(self, encrypted=True)
            self.https_port = await daemon.add_http(handler, self.https_port, self.tls_context)
        self.started_s = int(time.time())
        self._register()

    def _register(self) -> None:
        self._node = Node(
            f"{self._host}:{self.tcp_port}",
            socket.gethostname(),
            self.settings.broadcast_address,
            self.tcp_port,
            self.http_port,
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
        if self._daemon is not None:
            self._daemon.run(self._shut(self._daemon, crash=crash))
            self._daemon.close()
            self._daemon = None
        if self._own_lookupd is not None:
            self._own_lookupd.stop()

    async def _shut(self, daemon: _Daemon, *, crash: bool) -> None:
        daemon.stop_listening()
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
        # The next iterations of the loop close the sockets.
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
