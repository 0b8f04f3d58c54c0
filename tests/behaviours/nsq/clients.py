"""Sessions and options for the tests of nsq."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from spark_mq_source.core.options import READ, WRITE
from spark_mq_source.nsq.client.session import Consumer, Session
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.payload.messages import MessageDecoder, message_ids
from spark_mq_source.nsq.protocol.commands import Messages
from tests.behaviours.nsq.conftest import PATIENCE_S
from tests.fix_brokers import NsqUnderTest
from tests.fix_net import FaultProxy

Proxies = Callable[[str, int], FaultProxy]

COLUMNS = pa.schema([("value", pa.binary()), ("message_id", pa.string()), ("attempts", pa.int32())])


def read_options(address: str, topic: str = "t", channel: str = "c", **options: str) -> NsqOptions:
    given = {"nsqdTcpAddresses": address, "topic": topic, "channel": channel, "maxSeconds": "60"}
    return NsqOptions.from_spark({**given, **options}, READ)


def write_options(address: str, **options: str) -> NsqOptions:
    return NsqOptions.from_spark({"nsqdTcpAddresses": address, **options}, WRITE)


@contextlib.contextmanager
def open_session(address: str, **options: str) -> Iterator[Session]:
    host, _, port = address.rpartition(":")
    with Session(read_options(address, **options), host, int(port)) as session:
        yield session


def in_front_of(fault_proxy: Proxies, nsq: NsqUnderTest) -> FaultProxy:
    host, _, port = nsq.tcp_address.rpartition(":")
    return fault_proxy(host, int(port))


def receive(consumer: Consumer, count: int) -> list[Messages]:
    """Receive exactly this many messages, in order of arrival."""
    runs: list[Messages] = []
    deadline = time.monotonic() + PATIENCE_S
    while (missing := count - sum(run.count for run in runs)) > 0:
        more = consumer.receive(max_bytes=1 << 20, timeout_seconds=1.0)
        assert more or time.monotonic() < deadline, f"{missing} of {count} messages did not come"
        runs += more
    assert sum(run.count for run in runs) == count
    return runs


def ids_of(runs: list[Messages]) -> bytes:
    return b"".join(message_ids(run.data) for run in runs)


def rows_of(runs: list[Messages], schema: pa.Schema = COLUMNS) -> list[dict[str, Any]]:
    decoder = MessageDecoder(schema, topic="t", channel="c", nsqd="n")
    for run in runs:
        decoder.append(run)
    return decoder.take_batch().to_pylist()


def take(consumer: Consumer, count: int) -> list[bytes]:
    """Receive and finish exactly this many messages; return their values."""
    runs = receive(consumer, count)
    consumer.fin(ids_of(runs))
    return [row["value"] for row in rows_of(runs)]


def take_all(session: Session, topic: str, count: int) -> list[bytes]:
    """Receive and finish all messages that wait in channel c, which must be this many; return their values."""
    consumer = session.subscribe(topic, "c")
    consumer.ready(2500)
    got: list[bytes] = []
    while len(got) < count:
        runs = consumer.receive(max_bytes=1 << 20, timeout_seconds=PATIENCE_S)
        assert runs, f"{len(got)} of {count} came"
        consumer.fin(ids_of(runs))
        got += [row["value"] for row in rows_of(runs)]
    assert consumer.close(timeout_seconds=PATIENCE_S) == b""
    return got


def put_back(address: str, topic: str, *, count: int, times: int) -> None:
    """Receive and requeue all `count` messages of channel c, this many times."""
    with open_session(address) as session:
        consumer = session.subscribe(topic, "c")
        for _ in range(times):
            consumer.ready(count)
            runs = receive(consumer, count)
            consumer.ready(0)
            consumer.requeue(ids_of(runs))
        consumer.close(timeout_seconds=PATIENCE_S)
