"""Streaming queries of every format: each message once, and the same rows when a batch is repeated."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from spark_mq_source.core.errors import EndOfStreamError, OptionError
from tests.fix_brokers import wait_until
from tests.fix_formats import every_stream
from tests.formats import Format, Query, numbers, start_query

MakeQuery = Callable[..., Query]

pytestmark = every_stream


@pytest.fixture
def query(mq: Format, closing: Callable[[Query], Query]) -> MakeQuery:
    """Start a query on a topic: `query(feed, option="value")`."""
    return lambda feed, **options: closing(start_query(mq, feed.stream | options))


def test_triggers_read_each_message_once(mq: Format, query: MakeQuery):
    topic = mq.feed(3)
    asked = query(topic)
    for end in (90, 96, 186):
        topic.publish(numbers(end)[len(asked.rows) :])
        asked.until(end)
    assert sorted(asked.values) == sorted(numbers(186))
    mq.assert_each_once(asked.rows)


def test_a_trigger_without_new_messages_has_the_same_offset_and_no_rows(mq: Format, query: MakeQuery):
    topic = mq.feed(2)
    asked = query(topic)
    assert asked.plan() == asked.at
    topic.publish(numbers(10))
    asked.until(10)
    assert (asked.plan(), asked.trigger()) == (asked.at, [])


def test_a_repeated_trigger_has_the_same_rows_despite_new_messages(mq: Format, query: MakeQuery):
    topic = mq.feed(2)
    asked = query(topic)
    topic.publish(numbers(60))
    end = asked.plan()
    first = asked.read_to(end)
    assert first
    topic.publish(numbers(90)[60:])
    asked.restart()
    key = repr
    assert sorted(asked.read_to(end), key=key) == sorted(first, key=key)
    asked.until(90)
    assert sorted(asked.values) == sorted(numbers(90))


def test_a_limit_of_rows_holds_in_every_trigger(mq: Format, query: MakeQuery):
    topic = mq.feed(2)
    topic.publish(numbers(90), **mq.apart)
    asked = query(topic, maxRowsPerTrigger="40")
    asked.until(90)
    assert max(asked.sizes) <= 40
    assert sorted(asked.values) == sorted(numbers(90))


def test_no_task_has_more_records_than_its_limit(mq: Format, query: MakeQuery):
    topic = mq.feed(2)
    topic.publish(numbers(90), **mq.apart)
    if not mq.tasks_have_sizes:
        with pytest.raises(OptionError, match="maxRecordsPerPartition has no meaning for a queue"):
            query(topic, maxRecordsPerPartition="20")
        return
    asked = query(topic, maxRecordsPerPartition="20")
    wait_until(lambda: asked.plan() != asked.at, "rows exist")
    tasks = [asked.read([task]) for task in asked.tasks()]
    assert max(map(len, tasks)) <= 20
    assert len({row["value"] for rows in tasks for row in rows}) == sum(map(len, tasks)) > 20


def test_a_trigger_waits_for_enough_rows(mq: Format, query: MakeQuery):
    topic = mq.feed(1)
    topic.publish(numbers(5))
    asked = query(topic, minRowsPerTrigger="20", maxTriggerDelay="10m", **mq.open_end)
    asked.until(5)  # the first trigger does not wait
    begun = len(asked.sizes)
    before = asked.stream.newest
    topic.publish(numbers(15)[5:])
    wait_until(lambda: asked.plan() == asked.at and asked.stream.newest != before, "more rows exist")
    assert asked.trigger() == []
    topic.publish(numbers(60)[15:], **mq.counted)
    asked.until(60)
    assert next(filter(None, asked.sizes[begun:])) >= 20
    assert sorted(asked.values) == sorted(numbers(60))


def test_a_trigger_waits_for_rows_no_longer_than_its_delay(mq: Format, query: MakeQuery):
    topic = mq.feed(1)
    topic.publish(numbers(5))
    asked = query(topic, minRowsPerTrigger="1000", maxTriggerDelay="1s")
    asked.until(5)
    topic.publish(numbers(15)[5:])
    asked.until(15)
    assert sorted(asked.values) == sorted(numbers(15))


def test_available_now_does_not_wait_for_a_number_of_rows(mq: Format, query: MakeQuery):
    topic = mq.feed(1)
    topic.publish(numbers(30), **mq.apart)
    asked = query(topic, minRowsPerTrigger="20", maxRowsPerTrigger="20")
    asked.stream.cap_at_current_end()
    asked.until(30)
    assert sorted(asked.values) == sorted(numbers(30))


def test_available_now_leaves_later_messages(mq: Format, query: MakeQuery):
    topic = mq.feed(2)
    topic.publish(numbers(30), **mq.apart)
    asked = query(topic, maxRowsPerTrigger="20")
    asked.stream.cap_at_current_end()
    # A queue counts its messages when it plans the first trigger.
    asked.trigger()
    topic.publish([b"later"] * 10)
    asked.until(30)
    assert asked.trigger() == []
    if mq.ordered:
        assert sorted(asked.values) == sorted(numbers(30))
    else:
        assert len(asked.rows) == 30


def test_a_query_reads_exactly_to_its_end_and_ends_again_after_a_restart(mq: Format, query: MakeQuery):
    topic = mq.feed(2)
    topic.publish(numbers(40), **mq.apart)
    before = query(topic)
    before.until(40)
    before.close()
    if not mq.has_positions:
        with pytest.raises(OptionError, match=r"(?i)endingOffsets"):
            query(topic, endingOffsets=json.dumps(before.at))
        return
    topic.publish([b"later"] * 10)
    asked = query(topic, endingOffsets=json.dumps(before.at), maxRowsPerTrigger="15", minRowsPerTrigger="15")
    asked.until(40)
    for _ in range(2):
        with pytest.raises(EndOfStreamError, match="read to its endingOffsets"):
            asked.until(41)
        asked.restart()
    assert sorted(asked.values) == sorted(numbers(40))
    asked.stream.cap_at_current_end()
    assert [asked.trigger() for _ in range(5)] == [[]] * 5
    asked.close()
    with pytest.raises(OptionError, match=r"the query would end at .*, before .*, its start"):
        query(topic, startingOffsets="latest", endingOffsets=json.dumps(before.at))
