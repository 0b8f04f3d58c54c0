"""A streaming query without Spark, and helpers that publish to topics and trim them."""

from __future__ import annotations

import itertools
from typing import Any

from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.offsets import Position
from spark_mq_source.pulsar.options import PulsarOptions
from tests import formats
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat

ROW = f"topic string, partition int, value string, {MESSAGE_ID}"
PIN = "pin"

Offset = dict[str, Any]
Row = dict[str, Any]


class Query(formats.Query):
    """A query of topics, whose offsets never decrease."""

    def __init__(self, options: PulsarOptions, checkpoint: Offset | None = None) -> None:
        super().__init__(PulsarFormat.door, options, ROW, checkpoint)

    @property
    def triggers(self) -> list[int]:
        """Return the number of entries that each trigger read."""
        rows = iter(self.rows)
        parts = [list(itertools.islice(rows, size)) for size in self.sizes]
        return [len({(row["topic"], row["partition"], *entry_of(row)) for row in part}) for part in parts]

    def plan(self, *, limited: bool = True) -> Offset:
        end = super().plan(limited=limited)
        assert self.at is not None
        never_back(self.at, end)
        return end

    def drain(self) -> list[str]:
        """Trigger until nothing is new."""
        before = len(self.rows)
        while True:
            planned = self.at
            self.trigger()
            if self.at == planned:
                break
        return self.values[before:]

    def drain_to(self, value: str) -> list[str]:
        """Trigger until this value is read; return the values read."""
        found: list[str] = []
        while value not in found:
            found += self.trigger()
        return found


def entry_of(row: Row) -> tuple[int, int]:
    return row["message_id"]["ledger_id"], row["message_id"]["entry_id"]


def position(offset: Offset, topic: str) -> Position:
    return Position(**offset["positions"][topic])


def never_back(start: Offset, end: Offset) -> None:
    for name, at in start["positions"].items():
        if name in end["positions"]:
            assert Position(**at) <= Position(**end["positions"][name]), (name, start, end)


def query_of(broker: PulsarUnderTest, topic: str | None, options: dict[str, Any]) -> Query:
    checkpoint = options.pop("checkpoint", None)
    given = {"serviceUrl": broker.service_url, "operationTimeout": "60s"} | options
    if topic is not None:
        given["topic"] = topic
    return Query(PulsarOptions.from_spark({k: str(v) for k, v in given.items()}, STREAM), checkpoint)


def publish(broker: PulsarUnderTest, topic: str, values: list[str], *, batch: int = 1) -> list[Position]:
    """Publish values, `batch` to an entry; return the positions of the entries."""
    producer = broker.client().create_producer(
        topic,
        batching_enabled=batch > 1,
        batching_max_messages=max(batch, 2),
        batching_max_publish_delay_ms=60_000,
        block_if_queue_full=True,
    )
    ids: list[Any] = []
    for n, value in enumerate(values, 1):
        producer.send_async(value.encode(), lambda result, message_id: ids.append((result, message_id)))
        if n % batch == 0:
            producer.flush()
    producer.flush()
    producer.close()
    assert len(ids) == len(values)
    assert all(str(result).endswith("Ok") for result, _ in ids), ids
    return sorted({Position(i.ledger_id(), i.entry_id()) for _, i in ids}, key=lambda p: (p.ledger, p.entry))


def numbered(count: int, prefix: str = "") -> list[str]:
    return [f"{prefix}{n}" for n in range(count)]


def rolled(broker: PulsarUnderTest, topic: str, ledgers: int, entries: int) -> list[str]:
    """Fill a topic with several ledgers; return the values in order."""
    values = []
    for ledger in range(ledgers):
        part = numbered(entries, f"{ledger}.")
        publish(broker, topic, part)
        broker.admin.unload(topic)
        values += part
    return values


def backlog(broker: PulsarUnderTest, topic: str) -> int:
    return int(broker.admin.stats(topic)["subscriptions"][PIN]["msgBacklog"])


def cursor(broker: PulsarUnderTest, topic: str) -> str:
    return str(broker.admin.internal_stats(topic)["cursors"][PIN]["markDeletePosition"])


def trimmed(broker: PulsarUnderTest) -> tuple[str, list[Position]]:
    """Return a topic whose first ledger, with these entries, is deleted; one message is left."""
    topic = broker.topic(namespace=broker.new_namespace(keep_data=False))
    ids = publish(broker, topic, numbered(5))
    trim_all(broker, topic)
    publish(broker, topic, ["left"])
    return topic, ids


def trim_all(broker: PulsarUnderTest, topic: str) -> None:
    """Delete all closed ledgers that no subscription retains."""
    last = broker.admin.ledgers(topic)[-1][0]
    broker.admin.unload(topic)
    broker.client().create_producer(topic).close()  # loads it again
    broker.trim(topic)
    wait_until(lambda: broker.admin.ledgers(topic)[0][0] > last, "the ledger is gone")
