"""`deliveryGuarantee=transaction`: visibility of rows to the broker's official client."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pulsar as official
import pyarrow as pa
import pytest

from spark_mq_source.core.errors import BrokerError, EndOfStreamError, UnsupportedFeatureError
from spark_mq_source.core.options import STREAM, WRITE, Scope
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read import stops
from spark_mq_source.pulsar.read.stream import PulsarStream
from spark_mq_source.pulsar.write.transactions import (
    TaskTransaction,
    Transaction,
    abort_transactions,
    commit_transactions,
)
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.fix_net import FaultProxy

TASK = TaskAttempt("query", batch_id=0)


class CountingProxy(FaultProxy):
    """A proxy that counts the broker's bytes by connection, and cuts one before it exceeds a number of bytes."""

    def __init__(self, host: str, port: int) -> None:
        self.answered: Counter[int] = Counter()
        self.lose_at: dict[int, int] = {}
        super().__init__(host, port)

    def tap(self, number: int, direction: str, data: bytes) -> None:
        if direction == "b2c":
            self.answered[number] += len(data)
            if self.answered[number] > self.lose_at.get(number, 1 << 30):
                del self.lose_at[number]
                raise ConnectionError


@pytest.fixture
def broker(pulsar_featured: PulsarUnderTest) -> PulsarUnderTest:
    return pulsar_featured


@pytest.fixture
def proxy(broker: PulsarUnderTest) -> Iterator[CountingProxy]:
    host, _, port = broker.service_url.removeprefix("pulsar://").rpartition(":")
    with CountingProxy(host, int(port)) as proxy:
        yield proxy


def options(broker: PulsarUnderTest, topic: str, **more: Any) -> PulsarOptions:
    given = {
        "deliveryGuarantee": "transaction", "sendTimeout": "30s", "batchingMaxMessages": 10, "transactionTimeout": "2m",
    } | more  # fmt: skip
    return options_of(broker, WRITE, topic=topic, **given)


def options_of(broker: PulsarUnderTest, scope: Scope, **given: Any) -> PulsarOptions:
    given.setdefault("serviceUrl", broker.service_url)
    if broker.broker is not None and broker.broker.admin_token is not None:
        given["authToken"] = broker.broker.admin_token
    return PulsarOptions.from_spark({name.lower(): str(value) for name, value in given.items()}, scope)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"%06d" % number for number in numbers], pa.binary())})


def write(broker: PulsarUnderTest, topic: str, *numbers: int, **more: Any) -> Transaction:
    transaction = PulsarWriter(options(broker, topic, **more), TASK).write_all(iter([rows(*numbers)])).transaction
    assert transaction is not None
    return transaction


def visible(broker: PulsarUnderTest, topic: str) -> list[int]:
    """Return the numbers in the messages that are visible now."""
    reader = broker.client().create_reader(topic, official.MessageId.earliest)
    found = []
    # Broker 2.10.1 counts invisible messages as available, so nothing may arrive.
    with contextlib.suppress(official.Timeout):
        while reader.has_message_available():
            found.append(int(reader.read_next(5_000).data()))
    reader.close()
    return found


def test_rows_are_visible_when_the_driver_has_committed(broker: PulsarUnderTest) -> None:
    topic = broker.topic(2)
    partitions = [f"{topic}-partition-{number}" for number in range(2)]
    one = write(broker, topic, *range(50))
    other = write(broker, topic, *range(50, 100))
    assert [visible(broker, name) for name in partitions] == [[], []]
    commit_transactions(options(broker, topic), [one, other])
    found = [visible(broker, name) for name in partitions]
    assert all(found)
    assert sorted(found[0] + found[1]) == list(range(100))


def test_a_stream_ends_at_a_time_behind_markers_and_in_an_empty_partition(
    broker: PulsarUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = broker.topic(2)
    commit_transactions(options(broker, topic), [write(broker, f"{topic}-partition-0", 1, 2)])
    monkeypatch.setattr(stops, "LATE_MS", 0)
    until = int(time.time() * 1000) + 1000
    wait_until(lambda: time.time() * 1000 > until, "the end")
    given = options_of(broker, STREAM, topic=topic, startingOffsets="earliest", endingTimestamp=until)
    with contextlib.closing(PulsarStream(given)) as stream:
        end = stream.latest(stream.initial())
        assert stream.latest(end) == end
        with pytest.raises(EndOfStreamError):
            stream.latest(end)


def test_rows_of_a_discarded_attempt_are_never_visible(broker: PulsarUnderTest) -> None:
    topic = broker.topic()
    loser, winner = write(broker, topic, *range(50)), write(broker, topic, *range(50))
    commit_transactions(options(broker, topic), [winner])
    abort_transactions(options(broker, topic), [loser])
    assert visible(broker, topic) == list(range(50))


def test_a_failed_attempt_aborts_its_transaction(broker: PulsarUnderTest) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(*range(100))
        raise OSError

    # In new namespaces, brokers still take the topic's first snapshot of transactions then, in about 4 of 10 cases.
    for _ in range(8):
        topic = broker.topic(namespace=broker.new_namespace())
        with pytest.raises(OSError):  # noqa: PT011 - the one from above
            PulsarWriter(options(broker, topic), TASK).write_all(batches())
        producer = broker.client().create_producer(topic)
        producer.send(b"7")
        producer.close()
        # An open transaction would hide it.
        assert visible(broker, topic) == [7]


def test_a_killed_attempt_hides_later_rows_until_its_transaction_times_out(broker: PulsarUnderTest) -> None:
    topic = broker.topic()
    killed = PulsarWriter(options(broker, topic, transactionTimeout="8s"), TASK)
    killed.write(rows(*range(20)))
    killed._wait_until(lambda: not any(producer.pending for producer in killed._open))
    killed.close()
    commit_transactions(options(broker, topic), [write(broker, topic, 7)])
    assert visible(broker, topic) == []
    deadline = time.monotonic() + 60
    while not visible(broker, topic) and time.monotonic() < deadline:
        time.sleep(0.2)  # the broker offers no event for it
    assert visible(broker, topic) == [7]


def test_a_transaction_that_timed_out_fails_the_commit(broker: PulsarUnderTest) -> None:
    topic = broker.topic()
    late, other = write(broker, topic, 1, transactionTimeout="1s"), write(broker, topic, 2)
    wait_until(lambda: len(broker.admin.open_transactions([topic])) == 1, "the coordinator has ended one transaction")
    with pytest.raises(
        BrokerError,
        match=rf"1 of 2 transactions are committed.*{re.escape(str(late))} was not committed.*TransactionNotFound",
    ):
        commit_transactions(options(broker, topic), [late, other])
    abort_transactions(options(broker, topic), [late, other])
    assert visible(broker, topic) == [2]


def test_a_commit_with_a_lost_answer_is_verified(broker: PulsarUnderTest, proxy: CountingProxy) -> None:
    topic = broker.topic()
    through_proxy = options(broker, topic, serviceUrl=f"pulsar://{proxy.address}")
    commit_transactions(through_proxy, [write(broker, topic, 0)])
    # One connection to look up, one to the coordinator.
    assert list(proxy.answered) == [0, 1]
    proxy.lose_at = {3: proxy.answered[1] - 5}  # within the answer to END_TXN
    commit_transactions(through_proxy, [write(broker, topic, 1)])
    assert proxy.lose_at == {}
    assert visible(broker, topic) == [0, 1]


def test_a_commit_that_the_coordinator_has_begun_counts(
    broker: PulsarUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    topic = broker.topic()
    missing = TopicPartition.parse(broker.unused_topic(namespace=f"public/{topic.rpartition('/')[2]}"))
    given = options(broker, topic, sendTimeout="2s", operationTimeout="2s")
    begun = write(broker, topic, 7)
    with PulsarClient(given) as client:
        joined = TaskTransaction(given, client)
        joined.id = begun
        joined.join(missing)
    # The coordinator repeats the commit until the namespace exists.
    commit_transactions(given, [begun])
    assert f"transaction {begun} will be committed once all of its topics are available" in caplog.text
    assert visible(broker, topic) == [7]
    broker.admin.create_namespace(missing.topic.removeprefix("persistent://").rpartition("/")[0])
    broker.admin.create_topic(str(missing))
    wait_until(lambda: not broker.admin.open_transactions([topic]), "the coordinator has ended the transaction")


def test_a_task_without_rows_begins_no_transaction(broker: PulsarUnderTest) -> None:
    assert PulsarWriter(options(broker, broker.topic()), TASK).write_all(iter([rows()])).transaction is None


def test_a_broker_without_transactions_is_named(pulsar: PulsarUnderTest) -> None:
    with pytest.raises(UnsupportedFeatureError, match="transactionCoordinatorEnabled=true"):
        write(pulsar, pulsar.topic(), 1)
