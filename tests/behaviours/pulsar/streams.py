"""A streaming query without Spark, and what its tests do to topics."""

from __future__ import annotations

import contextlib
from typing import Any

from spark_mq_source.core.options import STREAM
from spark_mq_source.pulsar.offsets import Position
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.read.stream import PulsarStream
from tests.fix_brokers import PulsarUnderTest, wait_until
from tests.formats import through_json
from tests.formats.pulsar import MESSAGE_ID, read_tasks

ROW = f"topic string, partition int, value string, {MESSAGE_ID}"
PIN = "pin"

Offset = dict[str, Any]
Row = dict[str, Any]


class Query:
    """What Spark does with a stream: a checkpoint, triggers, and a sink that takes what the ranges hold."""

    def __init__(self, options: PulsarOptions, checkpoint: Offset | None = None) -> None:
        self.options = options
        self.stream = PulsarStream(options)
        self.at = checkpoint
        self.rows: list[Row] = []
        self.triggers: list[int] = []
        """The entries that each trigger read."""
        self.sizes: list[int] = []
        """And its rows."""

    def plan(self) -> tuple[Offset, Offset]:
        """Where the first trigger of a new query begins and ends; nothing is read."""
        start = through_json(self.stream.initial())
        return start, through_json(self.stream.latest(start))

    def trigger(self, *, limited: bool = True) -> list[str]:
        """Plans, reads and commits; the values read. Nothing new: nothing is read, and the offset is the same."""
        if self.at is None:
            self.at = through_json(self.stream.initial())
        end = through_json(self.stream.latest(self.at, limited=limited))
        never_back(self.at, end)
        if end == self.at:
            return []
        rows = read_tasks(self.options, self.stream.ranges(self.at, end), ROW).to_pylist()
        self.stream.commit(end)
        self.at = end
        self.rows += rows
        self.triggers.append(len({(row["topic"], row["partition"], *entry_of(row)) for row in rows}))
        self.sizes.append(len(rows))
        return [row["value"] for row in rows]

    def drain(self) -> list[str]:
        """Triggers until nothing is new."""
        before = len(self.rows)
        while True:
            planned = self.at
            self.trigger()
            if self.at == planned:
                break
        return [row["value"] for row in self.rows[before:]]

    def drain_to(self, value: str) -> list[str]:
        """Triggers until this value is read; the values read."""
        found: list[str] = []
        while value not in found:
            found += self.trigger()
        return found

    def restart(self) -> None:
        """The next run from the same checkpoint."""
        self.stream.close()
        self.stream = PulsarStream(self.options)

    def close(self) -> None:
        """Ends it."""
        self.stream.close()


def entry_of(row: Row) -> tuple[int, int]:
    return row["message_id"]["ledger_id"], row["message_id"]["entry_id"]


def position(offset: Offset, topic: str) -> Position:
    return Position(**offset["positions"][topic])


def never_back(start: Offset, end: Offset) -> None:
    for name, at in start["positions"].items():
        if name in end["positions"]:
            assert Position(**at) <= Position(**end["positions"][name]), (name, start, end)


def started(stack: contextlib.ExitStack, broker: PulsarUnderTest, topic: str | None, options: dict[str, Any]) -> Query:
    checkpoint = options.pop("checkpoint", None)
    given = {"serviceUrl": broker.service_url, "operationTimeout": "60s"} | options
    if topic is not None:
        given["topic"] = topic
    made = Query(PulsarOptions.from_spark({k.lower(): str(v) for k, v in given.items()}, STREAM), checkpoint)
    stack.callback(made.close)
    return made


def publish(broker: PulsarUnderTest, topic: str, values: list[str], *, batch: int = 1) -> list[Position]:
    """Publishes values, `batch` to an entry; the positions of the entries."""
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
    """Fills a topic with several ledgers; the values in order."""
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
    """A topic of which the first ledger, with these entries, is gone; one message is left."""
    topic = broker.topic(namespace=broker.new_namespace(keep_data=False))
    ids = publish(broker, topic, numbered(5))
    trim_all(broker, topic)
    publish(broker, topic, ["left"])
    return topic, ids


def trim_all(broker: PulsarUnderTest, topic: str) -> None:
    """Deletes all closed ledgers that no subscription waits for."""
    last = broker.admin.ledgers(topic)[-1][0]
    broker.admin.unload(topic)
    broker.client().create_producer(topic).close()  # loads it again
    broker.trim(topic)
    wait_until(lambda: broker.admin.ledgers(topic)[0][0] > last, "the ledger is gone")
