"""Each guarantee when the broker is killed while it is written, and started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from brokers.pulsar import PulsarStandalone
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.options import DeliveryGuarantee, PulsarOptions
from spark_mq_source.pulsar.write.transactions import commit_transactions
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.behaviours.pulsar.test_transactions import visible
from tests.fix_brokers import PulsarUnderTest, _start, _under_test

TASK = TaskAttempt("query", batch_id=0)


@pytest.fixture
def mortal(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[PulsarUnderTest]:
    """A broker of the test's own that deduplicates and has transactions."""
    overrides = {"transactionCoordinatorEnabled": "true", "brokerDeduplicationEnabled": "true"}
    broker = PulsarStandalone(tmp_path / "pulsar", overrides=overrides)
    under_test = _under_test(_start(pytestconfig, broker))
    yield under_test
    under_test.close_clients()
    broker.remove()


def options(broker: PulsarUnderTest, topic: str, guarantee: DeliveryGuarantee, **more: Any) -> PulsarOptions:
    given = {
        "serviceUrl": broker.service_url, "topic": topic, "deliveryGuarantee": guarantee.value,
        "batchingMaxMessages": "10", "sendTimeout": "2m", "operationTimeout": "1m",
    } | more  # fmt: skip
    return PulsarOptions.from_spark({name.lower(): value for name, value in given.items()}, WRITE)


def rows(start: int, end: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([b"%06d" % number for number in range(start, end)], pa.binary())})


@pytest.mark.broker
@pytest.mark.slow
def test_a_broker_is_killed_under_every_guarantee(mortal: PulsarUnderTest) -> None:
    topics = {guarantee: mortal.topic(prefix=guarantee.value) for guarantee in DeliveryGuarantee}
    settings = {guarantee: options(mortal, topic, guarantee) for guarantee, topic in topics.items()}
    reported = PulsarWriter(settings[DeliveryGuarantee.TRANSACTION], TASK)
    reported.write(rows(100, 200))
    before = reported.finish().transaction
    reported.close()
    # An attempt that nobody continues, with some of its rows stored.
    with PulsarWriter(settings[DeliveryGuarantee.EXACTLY_ONCE], TASK) as killed:
        killed.write(rows(0, 35))
        killed._wait_until(lambda: not any(producer.pending for producer in killed._open))
    with ExitStack() as stack:
        writers = {
            guarantee: stack.enter_context(PulsarWriter(given, replace(TASK, attempt=1)))
            for guarantee, given in settings.items()
        }
        for writer in writers.values():
            writer.write(rows(0, 35))
        # A producer of which nothing is stored cannot be told from one on a broker that does not deduplicate.
        in_transaction = writers[DeliveryGuarantee.TRANSACTION]
        in_transaction._wait_until(lambda: not any(producer.pending for producer in in_transaction._open))
        for writer in writers.values():
            writer.write(rows(35, 55))
        mortal.require_own().restart(crash=True)
        for writer in writers.values():
            writer.write(rows(55, 100))
        transactions = {guarantee: writer.finish().transaction for guarantee, writer in writers.items()}
    ended = [before, transactions.pop(DeliveryGuarantee.TRANSACTION)]
    assert set(transactions.values()) == {None}
    # Committed after the kill, of which one was all written before it.
    commit_transactions(settings[DeliveryGuarantee.TRANSACTION], [one for one in ended if one is not None])
    found = {guarantee: Counter(visible(mortal, topic)) for guarantee, topic in topics.items()}
    assert found[DeliveryGuarantee.AT_LEAST_ONCE].keys() == set(range(100))
    assert found[DeliveryGuarantee.EXACTLY_ONCE] == Counter(range(100))
    assert found[DeliveryGuarantee.TRANSACTION] == Counter(range(200))
