"""Records what the official Java client of TubeMQ and real servers say to each other, as vectors for the tests.

::

    python -m tests.vectors.record_tubemq

Writes `tests/vectors/tubemq/java-client-2.4.0.jsonl`: one call and its answer a line, as in the other file there. Takes
half a minute. Proxies stand in front of the master and of the broker; masters tell clients the broker's address, so in
their answers its port is replaced by the proxy's, which has as many digits. Ids, times and ports differ from one
recording to the next.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from brokers.tubemq import HOST, VERSION, TubeCluster
from brokers.tubemq_admin import Topic
from spark_mq_source.tubemq.protocol.codec import decode_response
from spark_mq_source.tubemq.protocol.wire import Frame, take_frame
from tests.behaviours.tubemq.java_client import TubeJavaClient
from tests.fix_net import Direction, FaultProxy, _Link
from tests.tubemq_server import decode_request
from tests.vectors import FOLDER

TOPIC = "recorded"
MAX_OF_A_KIND = 3
"""Calls of one method that are kept of a case: heartbeats and fetches come again and again."""


class CallRecorder(FaultProxy):
    """Forwards, pairs each call with its answer, and replaces the broker's port in what masters answer.

    Args:
        address: of the server, host:port.
        replace: the broker's port and the one to be told instead.
    """

    def __init__(self, address: str, replace: tuple[int, int] | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.calls: list[tuple[bytes, bytes]] = []
        self._replace = replace
        self._unread: dict[tuple[int, Direction], bytearray] = {}
        self._asked: dict[tuple[int, int], bytes] = {}
        super().__init__(host, int(port))

    def __enter__(self) -> CallRecorder:
        return self

    def tap(self, number: int, direction: Direction, data: bytes) -> None:
        """Cuts what passes into frames."""
        unread = self._unread.setdefault((number, direction), bytearray())
        unread += data
        while (frame := take_frame(memoryview(bytes(unread)), 0)) is not None:
            whole = bytes(unread[: frame.size])
            del unread[: frame.size]
            key = number, frame.serial_no
            if direction == "c2b":
                self._asked[key] = whole
            else:
                self.calls.append((self._asked.pop(key), whole))

    def _count(self, link: _Link, direction: Direction, data: bytes, target: socket.socket) -> None:
        if self._replace is not None and direction == "b2c":
            old, new = (f":{port}".encode() for port in self._replace)
            data = data.replace(old, new)
        super()._count(link, direction, data, target)


def lines(case: str, recorders: list[CallRecorder]) -> Iterator[str]:
    """Each call with its answer, both decoded.

    Raises:
        RuntimeError: one of them names this machine.
    """
    seen: Counter[str] = Counter()
    host = socket.gethostname().encode()
    for send, recv in (call for recorder in recorders for call in recorder.calls):
        if len(host) > 4 and host in send + recv:
            raise RuntimeError(f"{case}: a frame that names this machine")
        request, _ = decode_request(_frame(send))
        _, response = decode_response(_frame(recv))
        kind = type(request).__name__
        seen[kind] += 1
        if seen[kind] <= MAX_OF_A_KIND:
            decoded = f"{request!r} => {response!r}"
            name = f"{case}: {kind} {seen[kind]}"
            yield json.dumps({"name": name, "send": send.hex(), "recv": recv.hex(), "decoded": decoded})


def _frame(data: bytes) -> Frame:
    frame = take_frame(memoryview(data), 0)
    assert frame is not None
    return frame


def main() -> None:
    """Records all cases."""
    found: list[str] = []
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cluster = stack.enter_context(TubeCluster(folder / "tubemq", unbuffered=(1,), topics=[Topic(TOPIC)]))
        java = TubeJavaClient(folder / "java.log")
        stack.callback(java.close)

        @contextlib.contextmanager
        def recorded(case: str) -> Iterator[str]:
            broker_port = cluster.broker(1).port
            with CallRecorder(cluster.broker(1).address) as broker:
                with CallRecorder(cluster.masters[0].address, (broker_port, broker.port)) as master:
                    if len(str(broker_port)) != len(str(broker.port)):
                        raise RuntimeError("the ports differ in their number of digits: try again")
                    yield f"{HOST}:{master.port}"
                found.extend(lines(case, [master, broker]))

        typed = {"value": b"typed", "type": "a", "time": "202601021504", "attributes": {"k": "v"}}
        messages: list[bytes | dict[str, Any]] = [b"plain", typed, b"x"]
        with recorded("Java producer") as masters:
            java.produce(cluster, TOPIC, messages, masters=masters)
            java.close_producer(cluster, masters)
        with recorded("Java consumer, shared by the master") as masters:
            java.consume(cluster, TOPIC, "java_v1", 3, masters=masters)
        with recorded("Java consumer, filtered") as masters:
            java.consume(cluster, TOPIC, "java_filtered", 1, filters=["a", "b"], masters=masters)
        with recorded("Java consumer, choosing for itself") as masters:
            java.consume(cluster, TOPIC, "java_v2", 3, balanced=True, masters=masters)
        cluster.kill()
    path = FOLDER / "tubemq" / f"java-client-{VERSION}.jsonl"
    path.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    sys.stderr.write(f"{path.name}: {len(found)} calls\n")


if __name__ == "__main__":
    main()
