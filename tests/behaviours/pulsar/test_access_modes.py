"""Access modes of producers: exclusive, waiting, fencing; through unloads and lost connections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import BrokerError, RequestTimeoutError, ResourceBusyError
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar.test_security import Frames
from tests.behaviours.pulsar.test_writer import options
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_net import Fault, FaultProxy, RecordingProxy
from tests.formats.pulsar import PulsarFormat

Open = Callable[..., PulsarWriter]


@pytest.fixture
def open_writer(pulsar: PulsarUnderTest, closing: Callable[[PulsarWriter], PulsarWriter]) -> Open:
    """Return writers of a topic: `open_writer(topic, mode, option=value)`; close them with the test."""

    def open_(topic: str, mode: str = "Shared", **more: Any) -> PulsarWriter:
        return closing(PulsarWriter(options(pulsar, topic, accessMode=mode, **more), TaskAttempt("job")))

    return open_


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def write_values(writer: PulsarWriter, *values: bytes) -> None:
    """Write values, and wait until they are stored."""
    writer.write(pa.record_batch({"value": list(values)}))
    writer.flush()


def values(mq: PulsarFormat, topic: str) -> list[bytes]:
    found: list[bytes] = mq.read(topic).column("value").to_pylist()
    return found


def is_waiting(broker: PulsarUnderTest, topic: str, count: int) -> bool:
    return int(broker.admin.stats(topic)["waitingPublishers"]) == count


def assert_waits(broker: PulsarUnderTest, topic: str, writing: Future[None], count: int = 1) -> None:
    wait_until(lambda: is_waiting(broker, topic, count) or writing.done(), "the producer waits")
    assert not writing.done()


def test_an_exclusive_producer_excludes_others(pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, open_writer: Open):
    topic = pulsar.topic()
    alone = open_writer(topic, "Exclusive")
    write_values(alone, b"1")
    with pytest.raises(BrokerError, match=rf"writing to {topic}.*ProducerFenced \(25\).*existing exclusive producer"):
        write_values(open_writer(topic, "Exclusive"), b"2")
    with pytest.raises(ResourceBusyError, match=r"ProducerBusy \(16\).*existing exclusive producer"):
        write_values(open_writer(topic, sendTimeout="1s"), b"3")
    write_values(alone, b"4")
    alone.close()
    wait_until(lambda: not pulsar.admin.stats(topic)["publishers"], "the producer is closed")
    write_values(open_writer(topic), b"5")
    assert values(pulsar_format, topic) == [b"1", b"4", b"5"]


def test_an_exclusive_producer_is_refused_while_others_write(pulsar: PulsarUnderTest, open_writer: Open):
    topic = pulsar.topic()
    write_values(open_writer(topic), b"1")
    with pytest.raises(BrokerError, match=r"existing shared producers.*with this accessMode the topic is for one"):
        write_values(open_writer(topic, "Exclusive"), b"2")


def test_a_waiting_producer_writes_when_the_others_are_gone(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, open_writer: Open, thread: ThreadPoolExecutor
):
    topic = pulsar.topic()
    # Longer than any request to a broker may take: such waiting is not a request.
    patience = {"sendTimeout": "2s", "operationTimeout": "2s"}
    first = open_writer(topic, "WaitForExclusive")
    write_values(first, b"1")
    waiting = thread.submit(lambda: write_values(open_writer(topic, "WaitForExclusive", **patience), b"2"))
    assert_waits(pulsar, topic, waiting)
    time.sleep(2.5)  # intended: longer than operationTimeout
    assert_waits(pulsar, topic, waiting)
    write_values(first, b"1 again")
    first.close()
    waiting.result(60)
    assert values(pulsar_format, topic) == [b"1", b"1 again", b"2"]


def test_tasks_that_wait_for_each_other_do_not_deadlock(
    pulsar: PulsarUnderTest, open_writer: Open, thread: ThreadPoolExecutor
):
    topic = pulsar.topic(2)
    a, b = (open_writer(topic, "WaitForExclusive", sendTimeout="3s") for _ in range(2))

    def to(writer: PulsarWriter, partition: int) -> None:
        writer.write(pa.record_batch({"value": [b"x"], "partition": pa.array([partition], pa.int32())}))
        writer.flush()

    to(a, 0)
    to(b, 1)
    crossed = [thread.submit(to, a, 1), thread.submit(to, b, 0)]
    errors = [one.exception(60) for one in crossed]
    assert any(isinstance(error, RequestTimeoutError) for error in errors)
    assert all("others have the topic for themselves" in str(error) for error in errors if error is not None)


def test_a_fencing_producer_disconnects_the_others(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, open_writer: Open
):
    topic = pulsar.topic()
    first, second = (open_writer(topic, "ExclusiveWithFencing") for _ in range(2))
    write_values(first, b"1")
    write_values(second, b"2")
    with pytest.raises(BrokerError, match=r"from sequence id 1 on.*ProducerFenced \(25\)"):
        write_values(first, b"3")
    write_values(second, b"4")
    assert values(pulsar_format, topic) == [b"1", b"2", b"4"]


@pytest.mark.parametrize("fault", ["unload", "cut"])
@pytest.mark.parametrize("mode", ["Exclusive", "WaitForExclusive", "ExclusiveWithFencing"])
def test_an_exclusive_producer_stays_exclusive_after_an_unload_or_a_lost_connection(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, open_writer: Open, link: FaultProxy, mode: str, fault: str
):
    topic = pulsar.topic()
    writer = open_writer(topic, mode, service=("127.0.0.1", link.port))
    for n in range(3):
        write_values(writer, b"%d" % n)
        link.cut_now() if fault == "cut" else pulsar.admin.unload(topic)
    write_values(writer, b"3")
    assert values(pulsar_format, topic) == [b"0", b"1", b"2", b"3"]
    with pytest.raises(BrokerError, match="ProducerFenced"):
        write_values(open_writer(topic, "Exclusive"), b"x")


def test_a_producer_fenced_during_an_unload_does_not_reconnect(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, open_writer: Open
):
    topic = pulsar.topic()
    first, second = (open_writer(topic, "ExclusiveWithFencing") for _ in range(2))
    write_values(first, b"1")
    pulsar.admin.unload(topic)
    write_values(second, b"2")
    second.close()
    wait_until(lambda: not pulsar.admin.stats(topic)["publishers"], "the producer is closed")
    with pytest.raises(BrokerError, match="Topic epoch has already moved"):
        write_values(first, b"3")
    assert values(pulsar_format, topic) == [b"1", b"2"]


def test_a_waiting_producer_keeps_waiting_after_an_unload(
    pulsar: PulsarUnderTest, open_writer: Open, thread: ThreadPoolExecutor
):
    topic = pulsar.topic()
    first = open_writer(topic, "Exclusive")
    write_values(first, b"1")
    waiting = thread.submit(lambda: write_values(open_writer(topic, "WaitForExclusive"), b"2"))
    assert_waits(pulsar, topic, waiting)
    # The broker admits the waiting producer and reports that it is not ready (seen on 4.0.8): it tries again.
    pulsar.admin.unload(topic)
    waiting.result(60)
    with pytest.raises(BrokerError, match="ProducerFenced"):
        write_values(first, b"3")


def test_a_producer_blocked_by_its_own_connection_retries_until_the_broker_closes_that(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, open_writer: Open, thread: ThreadPoolExecutor
):
    topic = pulsar.topic()
    with RecordingProxy(*pulsar_format.service, frames := Frames()) as link:
        # One connection to look up, one to write. The broker does not see the end of a stalled one.
        link.add(Fault("stall", "c2b", at=100_000, connections=2))
        writer = open_writer(topic, "Exclusive", service=("127.0.0.1", link.port), sendTimeout="8s")
        write_values(writer, b"1")
        writing = thread.submit(write_values, writer, b"2" * 200_000)
        wait_until(lambda: frames.passed("ERROR") > 0 or writing.done(), "the producer is refused")
        assert not writing.done()
        link.resume()
        writing.result(60)
    # The stalled messages arrive, too: at least once.
    assert [value[:1] for value in values(pulsar_format, topic)][:2] == [b"1", b"2"]
