"""NSQ: reads and writes of `nsq`, beside raw socket loops, which are the limit, and pynsq.

    python -m bench.nsq NSQD TOPIC MESSAGES     reads with pynsq, in rows a second

It runs nsqd if that is on PATH, the embedded broker otherwise, in a separate process with its stock settings: no
more than 2,500 messages are in flight on a connection. Messages are 100 B. The raw loops know the size of every frame
beforehand and parse nothing else: they receive and send FIN for all messages, or send prepared MPUBs and count
the answers. Reading lasts until the channel is empty and nothing is in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from bench.engine import Job, Sample, timed, value_file
from bench.runner import Case, Contender, Setup, here, ours, program
from bench.values import make_values
from brokers.nsq import NsqdProcess, nsqd_on_path, wait_until_answering
from brokers.processes import ManagedProcess, free_ports

LABEL = "nsq"
BROKER = "nsqd" if nsqd_on_path() else "the embedded broker"
QUICK = r"(read|write) 100 B"

MESSAGES = 2_000_000
PYNSQ_MESSAGES = 60_000
"""At a fiftieth of our rate, these take as long as all messages take us."""

VALUE_BYTES = 100
FRAME_BYTES = 34 + VALUE_BYTES
READY = 2500
"""nsqd's default `-max-rdy-count`."""

MPUB_MESSAGES = 2500
PENDING_MPUBS = 64


@contextlib.contextmanager
def running(setup: Setup) -> Iterator[Iterator[Case]]:
    """Return the cases of a broker that runs until the context is left."""
    if nsqd_on_path():
        nsqd = NsqdProcess(setup.folder / "nsqd", mem_queue_size=2 * MESSAGES)
        nsqd.start()
        try:
            yield cases(Broker(nsqd.tcp_address, nsqd.http_address), setup)
        finally:
            nsqd.stop()
        return
    tcp, web, lookup = free_ports(3)
    command = [sys.executable, "-m", "spark_mq_source.testing", "--tcp-port", str(tcp), "--http-port", str(web),
               "--lookupd-http-port", str(lookup)]  # fmt: skip
    log = setup.folder / "broker.log"
    process = ManagedProcess(command, log=log, folder=setup.folder)
    try:
        wait_until_answering(f"127.0.0.1:{web}", log, lambda: process.alive)
        yield cases(Broker(f"127.0.0.1:{tcp}", f"127.0.0.1:{web}"), setup)
    finally:
        process.stop()


@dataclass(frozen=True)
class Broker:
    """The addresses of an nsqd."""

    tcp_address: str
    http_address: str

    def options(self, topic: str) -> dict[str, str]:
        """Return the options of a write."""
        return {"nsqdTcpAddresses": self.tcp_address, "nsqdHttpAddresses": self.http_address, "topic": topic}

    @contextlib.contextmanager
    def topic(self, *, holding: int = 0, leaving: int = 0) -> Iterator[str]:
        """Yield a new topic with the channel `c`, which is deleted afterwards, so that memory does not fill.

        Args:
            holding: its messages at the beginning.
            leaving: messages that it must have at the end of the block.

        Raises:
            RuntimeError: it has another number of messages then.
        """
        topic = f"bench-{time.monotonic_ns()}"
        self._ask("POST", "/topic/create", topic=topic)
        self._ask("POST", "/channel/create", topic=topic, channel="c")
        if holding:
            self.send_mpubs(topic, holding)
        yield topic
        stats = json.loads(self._ask("GET", "/stats", format="json", topic=topic, channel="c", include_mem="false"))
        channel = stats["topics"][0]["channels"][0]
        left = int(channel["depth"]) + int(channel["in_flight_count"])
        if left != leaving:
            raise RuntimeError(f"{topic} has {left} messages, not {leaving}")
        self._ask("POST", "/topic/delete", topic=topic)

    def _ask(self, method: str, path: str, **parameters: str) -> bytes:
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        connection = http.client.HTTPConnection(self.http_address, timeout=60)
        with contextlib.closing(connection):
            connection.request(method, f"{path}?{query}")
            answer = connection.getresponse()
            body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body!r}")
        return body

    def drain(self, topic: str, messages: int) -> None:
        """Finish this many messages, and parse only their ids."""
        with self._connected() as sock:
            sock.sendall(f"SUB {topic} c\nRDY {READY}\n".encode())
            _expect(sock, b"\0\0\0\x06\0\0\0\0OK")
            unread = b""
            left = messages
            while left:
                data = unread + sock.recv(1 << 18)
                count = len(data) // FRAME_BYTES
                end = count * FRAME_BYTES
                if count:
                    idents = [data[start : start + 16] for start in range(18, end, FRAME_BYTES)]
                    sock.sendall(b"FIN " + b"\nFIN ".join(idents) + b"\n")
                unread = data[end:]
                left -= count
            sock.sendall(b"CLS\n")
            _expect(sock, b"\0\0\0\x0e\0\0\0\0CLOSE_WAIT")

    def send_mpubs(self, topic: str, messages: int) -> None:
        """Send this many messages (a multiple of `MPUB_MESSAGES`), and count the answers."""
        values = make_values(VALUE_BYTES, MPUB_MESSAGES)
        head = struct.pack(">I", VALUE_BYTES)
        packed = struct.pack(">I", MPUB_MESSAGES) + b"".join(head + value for value in values)
        command = f"MPUB {topic}\n".encode() + struct.pack(">I", len(packed)) + packed
        count = messages // MPUB_MESSAGES
        free = threading.Semaphore(PENDING_MPUBS)
        with self._connected() as sock:

            def take_answers() -> None:
                for _ in range(count):
                    _expect(sock, b"\0\0\0\x06\0\0\0\0OK")
                    free.release()

            taker = threading.Thread(target=take_answers)
            taker.start()
            for _ in range(count):
                free.acquire()
                sock.sendall(command)
            taker.join()

    @contextlib.contextmanager
    def _connected(self) -> Iterator[socket.socket]:
        host, _, port = self.tcp_address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60) as sock:
            sock.sendall(b"  V2")
            yield sock


def _expect(sock: socket.socket, expected: bytes) -> None:
    got = b""
    while len(got) < len(expected):
        data = sock.recv(len(expected) - len(got))
        if not data:
            break
        got += data
    if got != expected:
        raise RuntimeError(f"{expected!r} was expected, {got!r} came")


def cases(broker: Broker, setup: Setup) -> Iterator[Case]:
    """Yield all cases."""
    messages = setup.scaled(MESSAGES)
    read = Job("read", "nsq", {}, messages, cores=2)
    write = Job("write", "nsq", {}, messages, file=value_file(setup.folder, VALUE_BYTES), cores=2)

    @contextlib.contextmanager
    def reading(spark: bool, **options: str) -> Iterator[Job]:
        with broker.topic(holding=messages) as topic:
            given = {**broker.options(topic), "channel": "c", "maxRows": str(messages), **options}
            yield replace(read, options=given, spark=spark, cores=2 if spark else 1)

    @contextlib.contextmanager
    def writing(spark: bool, **options: str) -> Iterator[Job]:
        with broker.topic(leaving=messages) as topic:
            yield replace(write, options={**broker.options(topic), **options}, spark=spark)

    def drained() -> Sample:
        with broker.topic(holding=messages) as topic:
            return timed(messages, partial(broker.drain, topic, messages))

    def sent() -> Sample:
        with broker.topic(leaving=messages) as topic:
            return timed(messages, partial(broker.send_mpubs, topic, messages))

    def pynsq() -> Sample:
        with broker.topic(holding=PYNSQ_MESSAGES) as topic:
            return {"value": program("bench.nsq", broker.tcp_address, topic, PYNSQ_MESSAGES)}

    yield Case(
        "read",
        f"{VALUE_BYTES} B",
        (
            ours("ours", LABEL, read, partial(reading, True)),
            ours("ours_2", "2 connections", read, partial(reading, True, connectionsPerNsqd="2")),
            ours("ours_deflate", "deflate", read, partial(reading, True, compression="deflate")),
            ours("ours_snappy", "snappy", read, partial(reading, True, compression="snappy")),
            ours("alone", "without Spark", read, partial(reading, False)),
            Contender("drain", "raw drain", "limit", here(drained)),
            Contender("pynsq", "pynsq", "peer", here(pynsq), warm=0),
        ),
    )
    yield Case(
        "write",
        f"{VALUE_BYTES} B",
        (
            ours("ours", LABEL, write, partial(writing, True)),
            ours("ours_deflate", "deflate", write, partial(writing, True, compression="deflate")),
            ours("ours_snappy", "snappy", write, partial(writing, True, compression="snappy")),
            ours("alone", "without Spark", write, partial(writing, False)),
            Contender("ready_made", "raw MPUB loop", "limit", here(sent)),
        ),
    )


async def _pynsq(address: str, topic: str, messages: int) -> float:
    import nsq  # type: ignore[import-untyped] # it has no annotations

    left = messages
    done = asyncio.Event()

    def handle(_message: object) -> bool:
        nonlocal left
        left -= 1
        if not left:
            # The FIN of this one follows, and pynsq does not report when it is sent.
            asyncio.get_running_loop().call_later(0.05, done.set)
        return True

    started = time.perf_counter()
    nsq.Reader(topic, "c", handle, nsqd_tcp_addresses=[address], max_in_flight=READY)
    await done.wait()
    return messages / (time.perf_counter() - started)


if __name__ == "__main__":
    print(asyncio.run(_pynsq(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
