"""nsqlookupd: the registry of topics and brokers, and an HTTP interface that behaves as nsqlookupd 1.3.0."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from spark_mq_source.testing.http import Handler, HttpError, Request, find_route
from spark_mq_source.testing.settings import VERSION

_TOMBSTONE_LIFETIME_S: Final = 45.0
_DOCUMENTED: Final = ("remote_address", "hostname", "broadcast_address", "tcp_port", "http_port", "version")


@dataclass(eq=False, slots=True)
class Node:
    """A broker in the registry, with its topics and their channels."""

    remote_address: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str = VERSION
    topics: dict[str, set[str]] = field(default_factory=dict)
    tombstones: dict[str, float] = field(default_factory=dict)

    def has_tombstone(self, topic: str) -> bool:
        """Return whether lookups of this topic omit the broker."""
        return time.monotonic() - self.tombstones.get(topic, float("-inf")) < _TOMBSTONE_LIFETIME_S

    def document(self) -> dict[str, Any]:
        """Return the broker in the answer of `/lookup`."""
        return {name: getattr(self, name) for name in _DOCUMENTED}


class Registry:
    """The registrations of an nsqlookupd; used by the threads of several brokers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: list[Node] = []
        # Topics and channels stay registered without brokers, except ephemeral ones (nsqlookupd 1.3.0).
        self._channels: dict[str, dict[str, None]] = {}

    def add_node(self, node: Node) -> None:
        """Add a broker."""
        with self._lock:
            self._nodes.append(node)

    def remove_node(self, node: Node) -> None:
        """Remove a broker."""
        with self._lock:
            if node in self._nodes:
                self._nodes.remove(node)

    def register(self, node: Node | None, topic: str, channel: str | None) -> None:
        """Register a broker's topic, or a channel of it; with None, a topic or channel without a broker."""
        channels = [] if channel is None else [channel]
        with self._lock:
            self._channels.setdefault(topic, {}).update(dict.fromkeys(channels))
            if node is not None:
                node.topics.setdefault(topic, set()).update(channels)

    def unregister(self, node: Node, topic: str, channel: str | None) -> None:
        """Unregister a broker's topic, or a channel of it."""
        with self._lock:
            if channel is None:
                node.topics.pop(topic, None)
                if topic.endswith("#ephemeral") and not any(topic in other.topics for other in self._nodes):
                    self._channels.pop(topic, None)
                return
            node.topics.get(topic, set()).discard(channel)
            if channel.endswith("#ephemeral") and not any(channel in n.topics.get(topic, ()) for n in self._nodes):
                self._channels.get(topic, {}).pop(channel, None)

    def forget(self, topic: str, channel: str | None) -> bool:
        """Remove a topic or channel, also from the brokers; return whether it was registered."""
        with self._lock:
            if channel is not None:
                for node in self._nodes:
                    node.topics.get(topic, set()).discard(channel)
                known = self._channels.get(topic, {})
                was_known = channel in known
                known.pop(channel, None)
                return was_known
            for node in self._nodes:
                node.topics.pop(topic, None)
            return self._channels.pop(topic, None) is not None

    def add_tombstone(self, topic: str, address: str) -> None:
        """Add a tombstone for the topic on the broker with this HTTP address."""
        with self._lock:
            for node in self._nodes:
                if f"{node.broadcast_address}:{node.http_port}" == address:
                    node.tombstones[topic] = time.monotonic()

    def topics(self) -> list[str]:
        """Return all topics."""
        with self._lock:
            return list(self._channels)

    def channels(self, topic: str) -> list[str]:
        """Return the channels of a topic."""
        with self._lock:
            return list(self._channels.get(topic, ()))

    def producers(self, topic: str) -> list[Node]:
        """Return the brokers of a topic."""
        with self._lock:
            return [node for node in self._nodes if topic in node.topics and not node.has_tombstone(topic)]

    def nodes(self) -> list[dict[str, Any]]:
        """Return all brokers, in the form of `/nodes`."""
        with self._lock:
            return [
                {
                    **node.document(),
                    "tombstones": [node.has_tombstone(topic) for topic in node.topics],
                    "topics": list(node.topics),
                }
                for node in self._nodes
            ]


class LookupHttp:
    """Handler that answers HTTP requests from the registrations."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._routes: Mapping[tuple[str, str], Handler] = {
            ("GET", "/ping"): lambda _: "OK",
            ("GET", "/info"): lambda _: {"version": VERSION},
            ("GET", "/topics"): lambda _: {"topics": registry.topics()},
            ("GET", "/channels"): lambda request: {"channels": registry.channels(request.required("topic"))},
            ("GET", "/nodes"): lambda _: {"producers": registry.nodes()},
            ("GET", "/lookup"): self._lookup,
            ("POST", "/topic/create"): lambda request: registry.register(None, request.required_name("topic"), None),
            ("POST", "/topic/delete"): self._delete_topic,
            ("POST", "/topic/tombstone"): lambda request: registry.add_tombstone(
                request.required("topic"), request.required("node")
            ),
            ("POST", "/channel/create"): lambda request: registry.register(
                None, request.required_name("topic"), request.required_name("channel")
            ),
            ("POST", "/channel/delete"): self._delete_channel,
        }

    def __call__(self, request: Request) -> Any:  # noqa: ANN401 - see http.Handler
        """Answer a request.

        Raises:
            HttpError: nsqlookupd would answer another status than 200.
        """
        return find_route(self._routes, request)(request)

    def _lookup(self, request: Request) -> object:
        topic = request.required("topic")
        if topic not in self._registry.topics():
            raise HttpError(404, "TOPIC_NOT_FOUND")
        return {
            "channels": self._registry.channels(topic),
            "producers": [node.document() for node in self._registry.producers(topic)],
        }

    def _delete_topic(self, request: Request) -> None:
        self._registry.forget(request.required("topic"), None)

    def _delete_channel(self, request: Request) -> None:
        if not self._registry.forget(request.required_name("topic"), request.required_name("channel")):
            raise HttpError(404, "CHANNEL_NOT_FOUND")
