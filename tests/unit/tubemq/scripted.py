"""TubeMQ servers on real sockets that answer as a test says: what real ones do rarely, or never when asked to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from typing import Any

from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker
from spark_mq_source.tubemq.protocol.wire import take_frame
from tests.fix_net import HOST, Peer, ScriptedServer
from tests.tubemq_server import decode_request, encode_response

PATIENCE_S = 30.0
TOKEN = c.AuthorizedInfo(7)
STANDBY = c.RpcException(c.Status.ERROR, "org.apache.inlong.tubemq.corerpc.exception.StandbyException", "not me")

Reply = Callable[["Link", Any], object]


class Link:
    """One connection of a server, and what came over it."""

    def __init__(self, peer: Peer) -> None:
        self.requests: list[Any] = []
        self._peer = peer
        self._unread = bytearray()

    def read(self) -> tuple[int, Any]:
        """The next call; fails where the client has closed."""
        while (frame := take_frame(memoryview(bytes(self._unread)), 0)) is None:
            self._unread += self._peer.read(1)
            waiting = bytes(self._peer._unread)
            self._peer._unread.clear()
            self._unread += waiting
        del self._unread[: frame.size]
        return frame.serial_no, decode_request(frame)[0]

    def send(self, serial_no: int, response: Any) -> None:
        self._peer.send(encode_response(serial_no, response))

    def close(self) -> None:
        self._peer.close()


class Server:
    """A master and a broker in one, which answers as real ones do unless `answers` has something else for a request.

    An answer is a function of the link and the request; what it returns is sent (None: nothing is).

    Args:
        answers: by the request's class.
        broker_id: as the broker that it is.
        brokers: others that the master knows of.
        partitions: of every topic, on every broker.
        port: 0 for a free one.
    """

    def __init__(
        self,
        answers: Mapping[type, Reply] | None = None,
        *,
        broker_id: int = 1,
        brokers: tuple[Broker, ...] = (),
        partitions: int = 1,
    ) -> None:
        self.answers = dict(answers or {})
        self.links: list[Link] = []
        self.changed = threading.Condition()
        self.partitions = partitions
        self.server = ScriptedServer([self._serve], repeat=True)
        self.address = self.server.address
        self.broker = Broker(broker_id, HOST, self.server.port)
        self.brokers = (self.broker, *brokers)

    def stop(self) -> None:
        self.server.stop()
        if self.server._failures:
            raise self.server._failures[0]

    def of(self, kind: type) -> list[Any]:
        """Every request of a class, on all connections, in the order they came on each."""
        return [request for link in self.links for request in link.requests if isinstance(request, kind)]

    def wait_for(self, condition: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, PATIENCE_S), [link.requests for link in self.links]

    def usual(self, request: Any) -> object:  # noqa: PLR0911 - one line a request
        """What a real server answers."""
        infos = tuple(map(str, self.brokers))
        topics = getattr(request, "topic_list", ("t",))
        match request:
            case c.RegisterProducer():
                config = c.ApprovedClientConfig(1, 1000)
                return c.RegisterProducerResponse(True, 200, "OK!", 1, infos, TOKEN, config)
            case c.ProducerHeartbeat():
                places = ",".join(f"{broker.broker_id}:{self.partitions}:1" for broker in self.brokers)
                found = tuple(f"{topic}#{places}#" for topic in topics)
                return c.ProducerHeartbeatResponse(True, 200, "OK!", 1, found, infos, authorized_info=TOKEN)
            case c.CloseProducer():
                return c.CloseProducerResponse(True, 200, "OK!")
            case c.RegisterConsumerV2():
                return c.RegisterConsumerV2Response(200, "OK!", 1, infos, authorized_info=TOKEN)
            case c.GetPartMeta():
                places = ",".join(f"{broker.broker_id}:1:{self.partitions}:1" for broker in self.brokers)
                return c.GetPartMetaResponse(200, "OK!", 1, 1, (f"t#{places}",), infos)
            case c.RegisterConsumer():
                return c.RegisterConsumerResponse(True, 200, "OK!", True, authorized_info=TOKEN)
            case c.ConsumerHeartbeat():
                return c.ConsumerHeartbeatResponse(True, 200, "OK!", authorized_info=TOKEN)
            case c.CloseConsumer():
                return c.CloseConsumerResponse(True, 200, "OK!")
            case c.RegisterPartition():
                return c.RegisterPartitionResponse(True, 200, "OK!", request.curr_offset or 0, 2800)
            case c.BrokerHeartbeat():
                return c.BrokerHeartbeatResponse(True, 200, "OK!")
            case c.GetMessage():
                return c.GetMessageResponse(False, 404, "The request offset reached maxOffset!")
            case c.CommitOffset():
                return c.CommitOffsetResponse(True, 200, "OK!", 0, 2800)
            case c.SendMessage():
                return c.SendMessageResponse(True, 200, "1", False, 1, 1, 0)
        return None

    def _serve(self, peer: Peer) -> None:
        link = Link(peer)
        with self.changed:
            self.links.append(link)
        while True:
            try:
                serial_no, request = link.read()
            except (AssertionError, OSError):
                return  # the client has closed
            with self.changed:
                link.requests.append(request)
                self.changed.notify_all()
            answer = self.answers.get(type(request))
            reply = self.usual(request) if answer is None else answer(link, request)
            if reply is not None:
                # The client may be gone, or the answer have cut the connection, while more was asked already.
                with contextlib.suppress(OSError):
                    link.send(serial_no, reply)


def in_turn(*answers: object) -> Reply:
    """Each answer once, the last one again and again; a function is called for its answer."""
    left = list(answers)

    def answer(link: Link, request: Any) -> object:
        chosen = left.pop(0) if len(left) > 1 else left[0]
        return chosen(link, request) if callable(chosen) else chosen

    return answer


def cut(link: Link, _: Any) -> None:
    """Closes the connection."""
    link.close()
