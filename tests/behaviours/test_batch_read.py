"""Batch reads of every format: each published message once, in order, unchanged."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from spark_mq_source.core.errors import MQSourceError, TopicNotFoundError
from tests.fix_net import Fault, FaultProxy, free_port
from tests.formats import Format

VALUES = [f"message {n} of many".encode() for n in range(3000)]


def assert_are(mq: Format, found: list[bytes], published: list[bytes]) -> None:
    """Check that all published values are found, none twice, and in order if the format has one."""
    if not mq.ordered:
        found, published = sorted(found), sorted(published)
    assert found == published


def test_reads_published_messages_in_order(mq: Format):
    topic = mq.new_topic()
    mq.publish(topic, VALUES)
    rows = mq.read(topic, f"value binary, {mq.position_columns}").to_pylist()
    assert_are(mq, [row["value"] for row in rows], VALUES)
    mq.assert_each_once(rows)


def test_reads_every_partition_once(mq: Format):
    topic = mq.new_topic(4)
    for partition in range(4):
        mq.publish(topic, VALUES[partition::4], partition=partition)
    rows = mq.read(topic, f"value binary, {mq.position_columns}").to_pylist()
    for partition in range(4):
        found = [row["value"] for row in rows if mq.partition_of(row) == partition]
        assert_are(mq, found, VALUES[partition::4])
    mq.assert_each_once(rows)


def test_plans_one_task_a_partition_and_none_for_an_empty_one(mq: Format):
    topic = mq.new_topic(3)
    mq.publish(topic, VALUES[:10], partition=0)
    mq.publish(topic, VALUES[10:20], partition=2)
    assert len(mq.plan(topic)) == (2 if mq.partitions_have_ends else 3)
    assert mq.read(topic).num_rows == 20


def test_an_empty_topic_has_no_rows(mq: Format):
    # Without an end, a task always waits for messages.
    assert len(mq.plan(mq.new_topic(2))) == (2 if mq.open_end else 0)
    assert mq.read(mq.new_topic(2)).num_rows == 0


def test_reads_only_messages_present_at_planning_unless_it_has_no_end(mq: Format):
    topic = mq.new_topic()
    mq.publish(topic, VALUES[:100])
    batches = mq.batches(topic, maxBatchRows=10, **mq.open_end)
    first = next(batches)
    mq.publish(topic, VALUES[100:200])
    rest = [value for batch in batches for value in batch.column("value").to_pylist()]
    assert_are(mq, first.column("value").to_pylist() + rest, VALUES[: 200 if mq.open_end else 100])


def test_reading_twice_gives_the_same_rows(mq: Format):
    topic = mq.new_topic(2)
    mq.publish(topic, VALUES)
    columns = f"value binary, {mq.position_columns}"
    first = mq.read(topic, columns, **mq.repeatable)
    assert first.num_rows == len(VALUES)
    assert mq.read(topic, columns, **mq.repeatable).equals(first)


def test_only_the_requested_columns_in_their_order(mq: Format):
    topic = mq.new_topic()
    mq.publish(topic, VALUES[:5])
    table = mq.read(topic, "topic string, value string")
    assert table.schema.names == ["topic", "value"]
    assert set(table.column("topic").to_pylist()) == {topic}
    assert_are(mq, [text.encode() for text in table.column("value").to_pylist()], VALUES[:5])


def test_values_from_nothing_to_a_mebibyte(mq: Format):
    rng = random.Random(7)
    values = [rng.randbytes(size) for size in (1, 2, 127, 128, 1000, 65_535, 65_536, 1 << 20)]
    topic = mq.new_topic()
    mq.publish(topic, values)
    assert_are(mq, mq.read(topic).column("value").to_pylist(), values)


def test_batches_are_as_small_as_requested(mq: Format):
    topic = mq.new_topic()
    mq.publish(topic, VALUES)
    batches = list(mq.batches(topic, maxBatchRows=500))
    assert sum(batch.num_rows for batch in batches) == len(VALUES)
    # An entry is decoded whole: a batch may pass the limit by one entry's rows.
    assert max(batch.num_rows for batch in batches) < 500 + 1000


def test_more_tasks_than_partitions_read_the_same(mq: Format):
    topic = mq.new_topic(2)
    for start, stop in pairwise(range(0, 3001, 100)):  # one call, one entry at the least
        mq.publish(topic, VALUES[start:stop], partition=start // 100 % 2)
    columns = f"value binary, {mq.position_columns}"
    whole = mq.read(topic, columns, **mq.aside)
    tasks = mq.plan(topic, **mq.more_tasks)
    assert len(tasks) >= 7
    split = mq.read(topic, columns, **mq.more_tasks)
    assert whole.num_rows == len(VALUES)
    if not mq.ordered:
        whole, split = whole.sort_by("value"), split.sort_by("value")
    assert split.equals(whole)


def test_a_missing_topic_is_a_clear_error_and_creates_nothing(mq: Format):
    before, topic = mq.topics(), mq.unused_topic()
    with pytest.raises(TopicNotFoundError) as caught:
        mq.read(topic)
    sentence = str(caught.value)
    assert mq.name in sentence
    assert topic in sentence
    assert "{}:{}".format(*mq.service) in sentence
    assert mq.topics() == before


@pytest.mark.parametrize(("kind", "at"), [("cut", 1), ("abort", 500), ("cut", 5_000), ("abort", 20_000)])
def test_a_connection_cut_after_some_bytes_loses_nothing(mq: Format, link: FaultProxy, kind, at):
    topic = mq.new_topic()
    mq.publish(topic, VALUES)
    assert at < _bytes_of_a_read(mq, link, topic)
    link.add(Fault(kind, "b2c", at=at, connections=6 if at == 1 else 12))
    rows = mq.read(topic, f"value binary, {mq.position_columns}", via=link).to_pylist()
    # Connections that carry requests only may end before this byte.
    assert len(link.happened) >= 5
    assert_are(mq, [row["value"] for row in rows], VALUES)
    mq.assert_each_once(rows)


def test_a_connection_cut_repeatedly_loses_nothing(mq: Format, link: FaultProxy, rng: random.Random):
    if not mq.reconnects:
        pytest.skip("a read ends with its connection, and the next one gets the remaining messages")
    topic = mq.new_topic()
    mq.publish(topic, VALUES)
    batches = mq.batches(topic, f"value binary, {mq.position_columns}", via=link, maxBatchRows=1)
    rows = []
    for n, batch in enumerate(batches):
        rows += batch.to_pylist()
        if n < 5:
            link.cut_now(abort=rng.random() < 0.5)
    assert_are(mq, [row["value"] for row in rows], VALUES)
    mq.assert_each_once(rows)


def test_a_stalled_connection_is_replaced_and_loses_nothing(mq: Format, link: FaultProxy):
    topic = mq.new_topic()
    mq.publish(topic, VALUES)
    stall = Fault("stall", "b2c", at=_bytes_of_a_read(mq, link, topic) // 2, connections=4)
    link.add(stall)
    rows = mq.read(
        topic,
        f"value binary, {mq.position_columns}",
        via=link,
        **mq.impatient,
    ).to_pylist()
    assert set(map(id, link.happened)) == {id(stall)}
    assert_are(mq, [row["value"] for row in rows], VALUES)
    mq.assert_each_once(rows)


def test_an_unresponsive_address_fails_within_the_timeout(mq: Format):
    with FaultProxy(*mq.service) as link:
        link.add(Fault("deaf", connections=1000))
        with pytest.raises(MQSourceError, match=rf"{mq.name}.*127\.0\.0\.1:{link.port}"):
            mq.read(
                "flights",
                service=("127.0.0.1", link.port),
                operationTimeout="1s",
                connectTimeout="500ms",
                **mq.impatient,
            )


def test_a_closed_port_fails_within_the_timeout(mq: Format):
    port = free_port()
    with pytest.raises(MQSourceError, match=rf"{mq.name}.*127\.0\.0\.1:{port}.*refused"):
        mq.read("flights", service=("127.0.0.1", port), operationTimeout="1s")


def _bytes_of_a_read(mq: Format, link: FaultProxy, topic: str) -> int:
    """Return the bytes that the broker sends over the connection that reads this topic of one task."""
    most = max(link.passed("b2c") for _ in mq.batches(topic, via=link, **mq.aside))
    link.cut_now()  # it stays idle for the next task, which must open a new one
    return most
