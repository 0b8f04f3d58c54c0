"""A model server's end of a connection, which answers requests in the order of their arrival."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.tubemq.protocol.commands import Response
from spark_mq_source.tubemq.protocol.wire import take_frame
from tests.simulation.network import Stream
from tests.simulation.world import World
from tests.tubemq_server import decode_request, encode_response

Handle = Callable[["Link", Any], Response | None]


class Link:
    """One connection.

    Args:
        world: the link's world.
        stream: carries the bytes.
        handle: returns the answer to a request; None for no answer, as servers do with late requests.
        on_lost: called when the connection has ended.

    Attributes:
        stalled_until: the time until which it answers nothing, as in a long garbage collection.
    """

    def __init__(self, world: World, stream: Stream, handle: Handle, on_lost: Callable[[Link], None]) -> None:
        self.stream = stream
        self.stalled_until = 0.0
        self._world = world
        self._handle = handle
        self._on_lost = on_lost
        self._unread = bytearray()
        self._queue: list[tuple[float, Any]] = []
        self._is_answering = False
        self._is_over = self._is_lost = False

    def received(self, data: bytes) -> None:
        """See `network.Peer`."""
        self._unread += data
        while (frame := take_frame(memoryview(bytes(self._unread)), 0)) is not None:
            request, timeout_ms = decode_request(frame)
            assert timeout_ms > 0, f"{request} has no timeout: a server drops it"
            self._queue.append((self._world.now + timeout_ms / 1000, (frame.serial_no, request)))
            del self._unread[: frame.size]
        self._answer()

    def lost(self) -> None:
        """See `network.Peer`; a server carries out what it has received, also after the connection has ended."""
        self._is_lost = True
        self._on_lost(self)

    def close(self) -> None:
        """Close the connection, as the end of the server's process does."""
        self._is_over = True
        self.stream.close()

    def _answer(self) -> None:
        if self._is_answering:
            return
        while self._queue and not self._is_over:
            if self._world.now < self.stalled_until:
                self._is_answering = True
                self._world.at(self.stalled_until, self._go_on)
                return
            expires, (serial_no, request) = self._queue.pop(0)
            if self._world.now > expires:
                continue  # dropped without an answer (seen on 2.4.0)
            response = self._handle(self, request)
            if response is not None and not self._is_lost:
                try:
                    data = encode_response(serial_no, response)
                except MQSourceError as error:
                    raise AssertionError(f"the model cannot answer {request}: {error}") from error
                self.stream.send(data)

    def _go_on(self) -> None:
        self._is_answering = False
        self._answer()
