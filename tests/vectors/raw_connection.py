"""A plain connection to a broker, for programs that send commands that no client would send."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import TypeVar

from spark_mq_source.pulsar.protocol.commands import (
    AckEntries,
    Connected,
    Lookup,
    LookupResponse,
    Producer,
    ProducerSuccess,
    Request,
    Schema,
    Send,
)
from spark_mq_source.pulsar.protocol.connection import PulsarConnection

__all__ = ["RawConnection"]

T = TypeVar("T")


class RawConnection:
    """A connection without authentication to a broker that serves all topics, as a standalone broker does.

    Args:
        host: the broker's.
        port: of its binary protocol, without TLS.
    """

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = PulsarConnection(client_version="spark-mq-source", authentication=None, now=time.monotonic())
        self._events: deque[object] = deque()
        self.expect(Connected)

    def close(self) -> None:
        """Close the socket, without waiting for anything."""
        self._socket.close()

    def open_producers(self, topics: Sequence[str], schema: Schema | None = None) -> list[bytes]:
        """Open a producer of each topic, whose index is its id; return the versions of the schema, if any."""
        # The lookup makes a broker load the bundle of the topic.
        for number, topic in enumerate(topics):
            self.send(Lookup(topic, number))
        for _ in topics:
            self.expect(LookupResponse)
        for number, topic in enumerate(topics):
            self.send(Producer(topic, producer_id=number, request_id=number, schema=schema))
        return [self.expect(ProducerSuccess).schema_version for _ in topics]

    def send(self, command: Request | AckEntries | Send) -> None:
        """Send a command."""
        self._connection.send(command)
        self._socket.sendall(self._connection.data_to_send())

    def receive(self, most_bytes: int) -> bytes:
        """Return received bytes without parsing them; `expect` cannot be used afterwards.

        Raises:
            ConnectionError: the broker closed the connection.
        """
        data = self._socket.recv(most_bytes)
        if not data:
            raise ConnectionError("the broker closed the connection")
        return data

    def expect(self, kind: type[T]) -> T:
        """Return the next command, which must be of this type; answer PINGs before it.

        Raises:
            RuntimeError: it is of another type.
            MQSourceError: the broker closed the connection.
        """
        while not self._events:
            self._socket.sendall(self._connection.data_to_send())
            data = self._socket.recv(1 << 16)
            if data:
                self._connection.receive_data(data)
            else:
                self._connection.receive_eof()
            self._events.extend(self._connection.events_received())
        event = self._events.popleft()
        if isinstance(event, kind):
            return event
        raise RuntimeError(f"the broker sent {event}, not {kind.__name__}")
