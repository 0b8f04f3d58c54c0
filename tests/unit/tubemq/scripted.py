"""Scripted TubeMQ servers on real sockets, for behaviour that real servers rarely show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spark_mq_source.tubemq.protocol import commands as c
from spark_mq_source.tubemq.protocol.addresses import Broker
from spark_mq_source.tubemq.protocol.wire import take_frame
from tests import fix_net
from tests.fix_net import HOST, Peer
from tests.tubemq_server import decode_request, encode_response

TOKEN = c.AuthorizedInfo(7)
STANDBY = c.RpcException(c.Status.ERROR, "org.apache.inlong.tubemq.corerpc.exception.StandbyException", "not me")

Reply = Callable[["Link", Any], object]


class Link(fix_net.Link):
    """One connection of a server."""

    def __init__(self, peer: Peer) -> None:
        super().__init__(peer)
        self._unread = bytearray()
        self._serial_no = 0

    def read(self) -> Any:
        while (frame := take_frame(memoryview(bytes(self._unread)), 0)) is None:
            self._unread += self.peer.read(1)
            waiting = bytes(self.peer._unread)
            self.peer._unread.clear()
            self._unread += waiting
        del self._unread[: frame.size]
        self._serial_no = frame.serial_no
        return decode_request(frame)[0]

    def answer(self, reply: Any) -> None:
        self.peer.send(encode_response(self._serial_no, reply))

    def close(self) -> None:
        self.peer.close()


class Server(fix_net.AnsweringServer):
    """A master and a broker in one.

    Args:
        answers: answers by the request's class.
        broker_id: its id as a broker.
        brokers: other brokers that the master knows.
        partitions: number of partitions of every topic on every broker.
        port: 0 for a free one.
    """

    link = Link

    def __init__(
        self,
        answers: Mapping[type, Reply] | None = None,
        *,
        broker_id: int = 1,
        brokers: tuple[Broker, ...] = (),
        partitions: int = 1,
    ) -> None:
        super().__init__(answers)
        self.partitions = partitions
        self.address = self.server.address
        self.broker = Broker(broker_id, HOST, self.server.port)
        self.brokers = (self.broker, *brokers)

    def usual(self, link: Any, request: Any) -> object:  # noqa: PLR0911 - one line a request
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


def cut(link: Link, _: Any) -> None:
    """Close the connection."""
    link.close()
