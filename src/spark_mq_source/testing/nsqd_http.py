"""nsqd's HTTP interface: publishing, administration and statistics, behaving as nsqd 1.3.0."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from spark_mq_source.testing.http import Handler, HttpError, Request, find_route
from spark_mq_source.testing.protocol import IncompleteError, take_mpub
from spark_mq_source.testing.queues import Channel, Topic, is_valid_name
from spark_mq_source.testing.settings import VERSION

if TYPE_CHECKING:
    from spark_mq_source.testing.broker import NsqBroker

_TRUTH: Final = {"true": True, "1": True, "false": False, "0": False}
_NO_LATENCY: Final = {"count": 0, "percentiles": None}


class NsqdHttp:
    """Handler of HTTP requests.

    Args:
        server: the broker.
        encrypted: whether requests come over TLS.
    """

    def __init__(self, server: NsqBroker, *, encrypted: bool) -> None:
        self._server = server
        self._encrypted = encrypted
        self._routes: Mapping[tuple[str, str], Handler] = {
            ("GET", "/ping"): lambda _: "OK",
            ("GET", "/info"): self._info,
            ("GET", "/stats"): self._stats,
            ("POST", "/pub"): self._pub,
            ("POST", "/mpub"): self._mpub,
            ("POST", "/topic/create"): self._create_topic,
            ("POST", "/topic/delete"): lambda request: server.broker.delete_topic(self._topic(request).name),
            ("POST", "/topic/empty"): self._empty_topic,
            ("POST", "/topic/pause"): self._pause_topic,
            ("POST", "/topic/unpause"): self._pause_topic,
            ("POST", "/channel/create"): self._create_channel,
            ("POST", "/channel/delete"): self._delete_channel,
            ("POST", "/channel/empty"): lambda request: self._channel(request).empty(),
            ("POST", "/channel/pause"): self._pause_channel,
            ("POST", "/channel/unpause"): self._pause_channel,
        }

    def __call__(self, request: Request) -> Any:  # noqa: ANN401 - see http.Handler
        """Answer a request.

        Raises:
            HttpError: nsqd would answer another status than 200.
        """
        if (
            not self._encrypted
            and self._server.settings.needs_tls
            and self._server.settings.tls_required != "tcp-https"
        ):
            raise HttpError(403, "TLS_REQUIRED")
        if request.path.startswith("/config/"):
            return self._config(request)
        answer = find_route(self._routes, request)(request)
        self._server.broker.pump(time.monotonic())
        return answer

    # -- publishing

    def _pub(self, request: Request) -> str:
        settings = self._server.settings
        if len(request.body) > settings.max_msg_size:
            raise HttpError(413, "MSG_TOO_BIG")
        if not request.body:
            raise HttpError(400, "MSG_EMPTY")
        topic = self._new_topic(request)
        defer_ms = 0
        if "defer" in request.parameters:
            try:
                defer_ms = int(request.first("defer"))
            except ValueError:
                raise HttpError(400, "INVALID_DEFER") from None
            if not 0 <= defer_ms <= settings.max_req_timeout_ms:
                raise HttpError(400, "INVALID_DEFER")
        topic.publish([request.body], defer_ms / 1000, time.monotonic(), time.time_ns())
        self._server.start_timer()
        return "OK"

    def _mpub(self, request: Request) -> str:
        settings = self._server.settings
        if len(request.body) > settings.max_body_size:
            raise HttpError(413, "BODY_TOO_BIG")
        topic = self._new_topic(request)
        # Any other value means true.
        if "binary" in request.parameters and _TRUTH.get(request.first("binary"), True):
            try:
                bodies, _ = take_mpub(request.body, 0, settings)
            except ValueError as error:
                raise HttpError(413, str(error).partition(" ")[0].removeprefix("E_")) from error
            except IncompleteError:
                raise HttpError(413, "BAD_BODY" if len(request.body) < 4 else "BAD_MESSAGE") from None
        else:
            bodies = [line for line in request.body.split(b"\n") if line]
            if any(len(line) > settings.max_msg_size for line in bodies):
                raise HttpError(413, "MSG_TOO_BIG")
        topic.publish(bodies, 0.0, time.monotonic(), time.time_ns())
        return "OK"

    # -- topics and channels

    def _new_topic(self, request: Request) -> Topic:
        name = request.required("topic")
        if not is_valid_name(name):
            raise HttpError(400, "INVALID_TOPIC")
        return self._server.broker.topic(name, time.monotonic())

    def _topic(self, request: Request) -> Topic:
        topic = self._server.broker.topics.get(request.required("topic"))
        if topic is None:
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return topic

    def _topic_and_channel_name(self, request: Request) -> tuple[Topic, str]:
        request.required_name("topic")
        channel = request.required_name("channel")
        return self._topic(request), channel

    def _channel(self, request: Request) -> Channel:
        topic, name = self._topic_and_channel_name(request)
        if name not in topic.channels:
            raise HttpError(404, "CHANNEL_NOT_FOUND")
        return topic.channels[name]

    def _create_topic(self, request: Request) -> None:
        self._new_topic(request)

    def _empty_topic(self, request: Request) -> None:
        if "topic" in request.parameters and not is_valid_name(request.first("topic")):
            raise HttpError(400, "INVALID_TOPIC")
        self._topic(request).empty()

    def _pause_topic(self, request: Request) -> None:
        topic = self._topic(request)
        topic.paused = not request.path.endswith("unpause")
        topic.flow(time.monotonic())

    def _create_channel(self, request: Request) -> None:
        topic, name = self._topic_and_channel_name(request)
        topic.channel(name, time.monotonic())

    def _delete_channel(self, request: Request) -> None:
        channel = self._channel(request)
        channel.topic.delete_channel(channel.name)

    def _pause_channel(self, request: Request) -> None:
        channel = self._channel(request)
        channel.paused = not request.path.endswith("unpause")
        self._server.broker.needs_pump(channel)

    # -- information

    def _config(self, request: Request) -> object:
        # Settings cannot be changed at run time.
        if request.method != "GET":
            raise HttpError(405, "METHOD_NOT_ALLOWED")
        config = self._server.settings.config(self._server.lookupd_addresses)
        name = request.path.removeprefix("/config/")
        if name not in config:
            raise HttpError(400, "INVALID_OPTION")
        return config[name]

    def _info(self, request: Request) -> object:
        del request
        server, settings = self._server, self._server.settings
        return {
            "version": VERSION,
            "broadcast_address": settings.broadcast_address,
            "hostname": socket.gethostname(),
            "http_port": server.http_port,
            "tcp_port": server.tcp_port,
            "start_time": server.started_s,
            "max_heartbeat_interval": settings.max_heartbeat_interval_ms * 1_000_000,
            "max_output_buffer_size": settings.max_output_buffer_size,
            "max_output_buffer_timeout": settings.max_output_buffer_timeout_ms * 1_000_000,
            "max_deflate_level": settings.max_deflate_level,
        }

    def _stats(self, request: Request) -> object:
        with_clients = _TRUTH.get(request.first("include_clients"), True)
        wanted = request.first("topic")
        topics = self._topics(wanted, request.first("channel"), with_clients=with_clients)
        if request.first("format") != "json":
            return _stats_text(self._server.started_s, topics or [])
        producers = [c.stats(wanted) for c in self._server.connections if c.published] if with_clients else []
        return {
            "version": VERSION,
            "health": "OK",
            "start_time": self._server.started_s,
            "topics": topics,
            **({"memory": _memory()} if _TRUTH.get(request.first("include_mem"), True) else {}),
            "producers": producers or None,
        }

    def _topics(self, topic: str, channel: str, *, with_clients: bool) -> list[dict[str, Any]] | None:
        topics = self._server.broker.topics
        if topic:
            if topic not in topics:
                return None
            chosen = [topics[topic]]
        else:
            chosen = [topics[name] for name in sorted(topics)]
        return [
            self._topic_stats(each, channel, with_clients=with_clients)
            for each in chosen
            if not channel or channel in each.channels
        ]

    def _topic_stats(self, topic: Topic, channel: str, *, with_clients: bool) -> dict[str, Any]:
        names = [channel] if channel else sorted(topic.channels)
        return {
            "topic_name": topic.name,
            "channels": [_channel_stats(topic.channels[name], topic.name if with_clients else None) for name in names],
            "depth": topic.depth - topic.queue.uncounted,
            "backend_depth": topic.queue.disk_depth - topic.queue.uncounted,
            "message_count": topic.message_count,
            "message_bytes": topic.message_bytes,
            "paused": topic.paused,
            "e2e_processing_latency": _NO_LATENCY,
        }


def _channel_stats(channel: Channel, with_clients: str | None) -> dict[str, Any]:
    clients = None
    if with_clients is not None:
        clients = [consumer.stats(with_clients) for consumer in channel.consumers]
    return {
        "channel_name": channel.name,
        "depth": channel.queue.depth - channel.queue.uncounted,
        "backend_depth": channel.queue.disk_depth - channel.queue.uncounted,
        "in_flight_count": channel.in_flight_count,
        "deferred_count": channel.deferred_count,
        "message_count": channel.message_count,
        "requeue_count": channel.requeue_count,
        "timeout_count": channel.timeout_count,
        "client_count": len(channel.consumers),
        "clients": clients,
        "paused": channel.paused,
        "e2e_processing_latency": _NO_LATENCY,
    }


def _memory() -> dict[str, int]:
    """Return the fields of Go's memory statistics, all zero."""
    names = ["heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes", "gc_pause_usec_100",
             "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs"]  # fmt: skip
    return dict.fromkeys(names, 0)


def _stats_text(started_s: int, topics: Iterable[Mapping[str, Any]]) -> str:
    lines = [f"nsqd v{VERSION} (embedded)", f"start_time {started_s}", "", "Health: OK", "", "Topics:"]
    for topic in topics:
        lines.append(f"   [{topic['topic_name']}] depth: {topic['depth']} msgs: {topic['message_count']}")
        lines += [
            f"      [{c['channel_name']}] depth: {c['depth']} inflt: {c['in_flight_count']} def: {c['deferred_count']} "
            f"re-q: {c['requeue_count']} timeout: {c['timeout_count']} msgs: {c['message_count']}"
            for c in topic["channels"]
        ]
    return "\n".join(lines) + "\n"
